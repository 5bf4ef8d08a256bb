"""Counts of float16 scores: equal to the array form, and mergeable."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nescio import BadInput, Undefined
from nescio.metrics import Float16Counts, Ranking, registry

METRICS = [m for m in registry.parts() if m.prepared and {"ranking", "detection"} & set(m.kinds)]
HALF = st.floats(allow_nan=False, allow_infinity=False, width=16)
HALF |= st.sampled_from([0.0, -0.0, 0.5, 1.0, -65504.0, 65504.0, 6e-8, -6e-8])
ROWS = st.integers(1, 40).flatmap(
    lambda n: st.tuples(arrays(np.float16, n, elements=HALF), arrays(bool, n, elements=st.booleans()))
)


def halves(*values):
    return np.array(values, np.float16)


def assert_same(a, b):
    assert np.array_equal(a.values, b.values) and np.array_equal(a.ends, b.ends) and np.array_equal(a.hits, b.hits)


@given(ROWS)
def test_float16_counts__counts_are_the_array_form(case):
    u, wrong = case
    counts = Float16Counts.count(u, wrong)
    assert_same(counts.ranking(), Ranking(u, wrong))
    assert counts.n == len(u)
    for metric in METRICS:
        try:
            exact = metric.function(u, wrong)
        except Undefined:
            continue
        assert metric.function(counts.ranking()) == exact
        assert counts.bound(metric.function) == 0.0


@given(ROWS, st.integers(0, 40))
def test_float16_counts__shards_add_up(case, cut):
    u, wrong = case
    whole, first, second = (
        Float16Counts.count(u[part], wrong[part]) for part in (slice(None), slice(cut), slice(cut, None))
    )
    for merged in (first + second, second + first):
        assert np.array_equal(merged.table, whole.table)
        assert_same(merged.ranking(), whole.ranking())


def test_ranking__many_blocks_and_strides():
    rng = np.random.default_rng(1)
    u = rng.normal(size=(600_000, 2)).astype(np.float16)[:, 1]
    wrong = rng.random(1_200_000)[::2] < 0.3
    assert_same(Float16Counts.count(u, wrong).ranking(), Ranking(u, wrong))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -np.nan])
def test_float16_counts__scores_must_be_finite(value):
    with pytest.raises(BadInput, match="in 1 rows"):
        Float16Counts.count(halves(0, value, 1), [0, 1, 1])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Float16Counts.count(halves(1, 2), [1]), "u has 2 rows, wrong has 1"),
        (lambda: Float16Counts.count(halves([1.0]), [1]), "shape"),
        (lambda: Float16Counts.count(np.zeros(1, np.float32), [1]), "dtype float32; give one float16 number per row"),
        (lambda: Float16Counts.count(["a"], [1]), "one float16 number per row"),
        (lambda: Float16Counts.count(halves(1), [2]), "booleans"),
        (lambda: Float16Counts.count(halves(), np.zeros(0, bool)).ranking(), "no rows"),
    ],
)
def test_float16_counts__bad_input_is_told_in_a_sentence(call, words):
    with pytest.raises(BadInput, match=words):
        call()


def test_float16_counts__only_counts_add_to_counts():
    with pytest.raises(TypeError):
        Float16Counts.count(halves(1), [1]) + 1
    with pytest.raises(TypeError):
        1 + Float16Counts.count(halves(1), [1])


@pytest.mark.parametrize("order", [">", "<"])
def test_float16_counts__the_byte_order_does_not_matter(order):
    rng = np.random.default_rng(0)
    u, wrong = rng.normal(size=500).astype(np.float16), rng.random(500) < 0.3
    foreign = Float16Counts.count(u.astype(np.dtype(np.float16).newbyteorder(order)), wrong)
    np.testing.assert_array_equal(foreign.table, Float16Counts.count(u, wrong).table)
