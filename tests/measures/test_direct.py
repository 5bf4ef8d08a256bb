"""Uncertainties that the network itself brings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nescio import Predictions, Undefined
from nescio.measures import _direct, jacobian, native, norm, registry
from tests.support.reference import load


@given(arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 5)), elements=st.floats(-1e3, 1e3)))
def test_norm_is_minus_the_length(embeddings):
    u = norm(Predictions(embeddings=embeddings))
    np.testing.assert_allclose(u, [-(sum(v**2 for v in row) ** 0.5) for row in embeddings], rtol=1e-12)


def test_norm_equals_the_stored_lengths_negated():
    stored = load("repreli_scores")
    members = [norm(Predictions(embeddings=test)) for test in stored["test"]]
    for m, u in enumerate(members):
        np.testing.assert_allclose(u, -stored[f"euclidean_L2Norm_m{m}"], rtol=1e-6)
    np.testing.assert_allclose(np.mean(members, 0), -stored["euclidean_ens-L2Norm"], rtol=1e-6)


def test_norm_of_half_precision_does_not_overflow():
    u = norm(Predictions(embeddings=np.full((3, 1000), 300, np.float16)))
    np.testing.assert_allclose(u, -300 * 1000**0.5)


def test_norm_in_blocks_is_the_same(monkeypatch):
    predictions = Predictions(embeddings=np.random.default_rng(0).normal(size=(50, 7)))
    whole = norm(predictions)
    monkeypatch.setattr(_direct, "BLOCK_VALUES", 20)
    np.testing.assert_array_equal(norm(predictions), whole)


def test_native_is_the_stored_score():
    score = np.array([0.5, -2.0, 7.0], np.float32)
    u = native(Predictions(scores={"native": score, "other": -score}))
    np.testing.assert_array_equal(u, score)
    assert u.dtype == np.float64


def test_native__absent_is_a_sentence():
    with pytest.raises(Undefined, match="embeddings"):
        norm(Predictions(labels=[0, 1]))
    with pytest.raises(Undefined, match="score named native"):
        native(Predictions(scores={"other": [1.0]}))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("measure", [native, jacobian])
def test_direct__the_dumps_own_scores_cannot_be_written_to(measure, dtype):
    scores = np.arange(4.0).astype(dtype)
    dump = Predictions(scores={"native": scores, "jacobian": scores})
    with pytest.raises(ValueError, match="read-only"):
        measure(dump)[0] = 7
    assert scores.flags.writeable
    np.testing.assert_array_equal(measure(dump), scores)


def test_direct__the_commonest_measures_come_first():
    """Lists and scorecards have the order of registration, which follows the order of imports."""
    names = list(registry)
    assert names[:3] == ["msp", "gap", "entropy"]
    assert names[3:8] == ["max_logit", "energy", "mutual_information", "expected_entropy", "dempster_shafer"]
