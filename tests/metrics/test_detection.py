"""Thresholds from validation rows, on in- and out-of-distribution rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nescio import BadInput
from nescio.metrics import auroc, in_as_in, out_as_out, threshold
from tests.support.reference import load

SCORES = st.lists(st.integers(-4, 4).map(lambda i: i / 2), min_size=1, max_size=25)


@given(SCORES, st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.95, 1.0]))
def test_threshold_is_the_linearly_interpolated_quantile(u, level):
    ordered, at = sorted(u), level * (len(u) - 1)
    low, high = ordered[int(np.floor(at))], ordered[int(np.ceil(at))]
    assert threshold(u, level) == pytest.approx(low + (high - low) * (at - np.floor(at)), abs=1e-12)


@given(SCORES, SCORES.map(lambda u: u[0]))
def test_out_as_out__a_row_is_in_up_to_the_threshold_and_out_above_it(u, t):
    assert in_as_in(u, t) == sum(x <= t for x in u) / len(u)
    assert out_as_out(u, t) == sum(x > t for x in u) / len(u)
    assert in_as_in(u, t) + out_as_out(u, t) == pytest.approx(1)


def test_threshold__a_threshold_lets_its_own_level_in():
    u = np.random.default_rng(0).normal(size=10_001)
    assert in_as_in(u, threshold(u, 0.95)) == pytest.approx(0.95, abs=1e-4)
    assert in_as_in(np.ones(3), threshold([1.0])) == 1.0 and out_as_out(np.ones(3), 1.0) == 0.0


def test_auroc__uimnet_values():
    """Every value of the original code, on continuous scores and on scores rounded by np.round."""
    case = load("uimnet_ood_metrics")
    seen = {"val_in", "test_in", "test_out"}
    for name, shape in (("cont", lambda u: u), ("ties", np.round)):
        val, inside, outside = (shape(case[key]) for key in ("val_in", "test_in", "test_out"))
        t = threshold(val)
        ours = {
            "threshold": t,
            "InAsIn": in_as_in(inside, t),
            "InAsOut": 1 - in_as_in(inside, t),
            "OutAsIn": 1 - out_as_out(outside, t),
            "OutAsOut": out_as_out(outside, t),
            "AUC": auroc(np.concatenate([inside, outside]), np.arange(700) >= 400),
        }
        for key, value in ours.items():
            assert value == pytest.approx(float(case[f"{name}_{key}"]), abs=1e-12), key
            seen.add(f"{name}_{key}")
    assert seen == set(case)


def test_detection__half_precision_is_widened_before_interpolating():
    u = np.array([1000, 1001], np.float16)
    assert threshold(u, 0.25) == 1000.25


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: threshold([]), "u_val is empty"),
        (lambda: threshold([1, np.nan]), r"u_val.*nan.*row 1"),
        (lambda: threshold([1, 2], 1.5), "level is 1.5"),
        (lambda: threshold([1, 2], np.nan), "level is nan"),
        (lambda: in_as_in([], 0), "u is empty"),
        (lambda: in_as_in([1, 2], np.nan), "threshold is nan"),
        (lambda: out_as_out([np.nan], 0), r"u.*row 0"),
        (lambda: out_as_out([[1.0]], 0), "shape"),
    ],
)
def test_in_as_in__bad_input_is_told_in_a_sentence(call, words):
    with pytest.raises(BadInput, match=words):
        call()


@pytest.mark.parametrize("odd", ["x", "0.5", None, [0.5], np.array([0.1, 0.2]), np.nan, {}])
def test_detection__what_is_no_number_is_one_sentence(odd):
    with pytest.raises(BadInput, match="level is"):
        threshold([0.1, 0.2], level=odd)
    for share in (in_as_in, out_as_out):
        with pytest.raises(BadInput, match="threshold is"):
            share([0.1, 0.2], odd)
