"""Counts per key: equal to the array form on float16, inside the stated bound otherwise, and mergeable."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nescio import BadInput, Undefined
from nescio.metrics import Counts, Ranking, aupr, auroc, e_aurc, registry, sac

METRICS = [m for m in registry.parts() if m.prepared and {"ranking", "detection"} & set(m.kinds)]
HALF = st.floats(allow_nan=False, allow_infinity=False, width=16)
FULL = st.floats(allow_nan=False, allow_infinity=False, width=32)
# steps of 2^-20 share their upper 16 bits; tiny numbers of both signs meet at the key of zero
CLOSE = st.tuples(st.sampled_from([-1.0, 1.0, 1.0078125]), st.integers(0, 4)).map(
    lambda t: t[0] * (1 + t[1] * 2.0**-20)
)
CLOSE |= st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 3e-44])


def rows(scores, dtype):
    return st.integers(1, 40).flatmap(
        lambda n: st.tuples(arrays(dtype, n, elements=scores), arrays(bool, n, elements=st.booleans()))
    )


def assert_same(a, b):
    assert np.array_equal(a.values, b.values) and np.array_equal(a.ends, b.ends) and np.array_equal(a.hits, b.hits)


@given(rows(HALF | st.sampled_from([0.0, -0.0, 0.5, 1.0, -65504.0, 65504.0, 6e-8, -6e-8]), np.float16))
def test_float16_counts_are_the_array_form(case):
    u, wrong = case
    counts = Counts.of(u, wrong)
    assert_same(counts.ranking(), Ranking(u, wrong))
    assert counts.shared == 0.0 and counts.n == len(u)
    for metric in METRICS:
        try:
            exact = metric.function(u, wrong)
        except Undefined:
            continue
        assert metric.function(counts.ranking()) == exact
        assert counts.bound(metric.function) == 0.0


@settings(max_examples=100)
@given(rows(FULL | CLOSE, np.float32), st.integers(0, 3))
def test_float32_counts_stay_inside_their_bound(case, keys):
    u, wrong = case
    check_bound(u, wrong, Counts.of(u, wrong))
    check_bound(u, wrong, Counts.of(u, wrong, split=Counts.of(u, wrong).crowded(keys)))


@settings(max_examples=60)
@given(rows(CLOSE | st.sampled_from([1 + 1e-9, 1 + 2e-9, 1.0]), np.float64), st.integers(0, 3))
def test_float64_counts_stay_inside_their_bound(case, keys):
    """Scores that float32 cannot tell apart are unsure also where their key is split."""
    u, wrong = case
    check_bound(u, wrong, Counts.of(u, wrong, split=Counts.of(u, wrong).crowded(keys)))


def check_bound(u, wrong, counts):
    for metric in METRICS:
        for option in metric.at or {None: (None,)}:
            for value in (metric.at or {None: (None,)})[option]:
                options = {} if option is None else {option: value}
                try:
                    exact = metric.function(u, wrong, **options)
                    close = metric.function(counts.ranking(), **options)
                except Undefined:
                    continue
                assert abs(close - exact) <= counts.bound(metric.function, **options) + 1e-12, metric.name
    if counts.shared == 0 and wrong.any() and not wrong.all():
        assert counts.bound(auroc) == 0 == auroc(counts.ranking()) - auroc(u, wrong)


@given(rows(CLOSE, np.float32))
def test_a_split_of_every_key_is_exact(case):
    u, wrong = case
    every = np.unique(u.view(np.uint32) >> 16)
    assert_same(Counts.of(u, wrong, split=every).ranking(), Ranking(u, wrong))


@given(rows(HALF, np.float16), st.integers(0, 40))
def test_shards_add_up(case, cut):
    u, wrong = case
    whole, parts = Counts.of(u, wrong), [Counts.of(u[:cut], wrong[:cut]), Counts.of(u[cut:], wrong[cut:])]
    for merged in (parts[0] + parts[1], parts[1].merge(parts[0]), sum(parts)):
        assert np.array_equal(merged.table, whole.table)
        assert_same(merged.ranking(), whole.ranking())


def test_a_second_pass_refines_the_crowded_keys():
    rng = np.random.default_rng(0)
    u = rng.random(200_000, np.float32)
    wrong = rng.random(200_000) < u / 2
    shards = list(zip(np.array_split(u, 7), np.array_split(wrong, 7), strict=True))
    first = functools.reduce(Counts.merge, (Counts.of(*shard) for shard in shards))
    bounds, errors = [first.bound(auroc)], [abs(auroc(first.ranking()) - auroc(u, wrong))]
    for keys in (8, 24, 64):
        split = first.crowded(keys)
        second = sum(Counts.of(*shard, split=split) for shard in shards)
        bounds.append(second.bound(auroc))
        errors.append(abs(auroc(second.ranking()) - auroc(u, wrong)))
        assert second.shared < first.shared and second.n == first.n == 200_000
    assert bounds == sorted(bounds, reverse=True) and bounds[0] < 2e-3 and bounds[-1] < 0.6 * bounds[0]
    assert all(error <= bound for error, bound in zip(errors, bounds, strict=True))


def test_the_bound_is_reached():
    """Two rows in one key: the counts say tied, the scores say in order, or inverted."""
    u = np.array([1, 1 + 2.0**-20], np.float32)
    for wrong in ([False, True], [True, False]):
        counts = Counts.of(u, wrong)
        assert auroc(counts.ranking()) == 0.5 and counts.bound(auroc) == 0.5 and counts.shared == 1.0
        assert abs(auroc(u, wrong) - 0.5) == 0.5
        assert e_aurc(counts.ranking()) == pytest.approx(counts.bound(e_aurc))


def test_wrong_rows_alone_in_a_key_still_hide_thresholds():
    u = np.array([0, 0, 0, 0, 1, 1 + 2.0**-20], np.float32)
    wrong = np.array([False] * 4 + [True, True])
    counts = Counts.of(u, wrong)
    assert sac(counts.ranking(), accuracy=0.8) == 4 / 6 and sac(u, wrong, 0.8) == 5 / 6
    assert counts.bound(sac, accuracy=0.8) == pytest.approx(1 / 6)
    assert counts.bound(auroc) == 0 and counts.bound(aupr) >= abs(aupr(counts.ranking()) - aupr(u, wrong))


def test_many_blocks_and_strides():
    rng = np.random.default_rng(1)
    u = rng.normal(size=(600_000, 2)).astype(np.float16)[:, 1]
    wrong = rng.random(1_200_000)[::2] < 0.3
    assert_same(Counts.of(u, wrong).ranking(), Ranking(u, wrong))


def test_whole_numbers_and_truth_values_are_scores_too():
    for dtype in (np.int64, np.uint8, np.float64, bool):
        u = np.array([0, 1, 1, 0, 1], dtype)
        assert auroc(Counts.of(u, [0, 1, 1, 0, 0]).ranking()) == auroc(u, [0, 1, 1, 0, 0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -np.nan])
def test_scores_must_be_finite(dtype, value):
    with pytest.raises(BadInput, match="in 1 rows"):
        Counts.of(np.array([0, value, 1], dtype), [0, 1, 1])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Counts.of([1.0, 2.0], [1]), "u has 2 rows, wrong has 1"),
        (lambda: Counts.of([1.0, 1e300], [1, 0]), "beyond float32"),
        (lambda: Counts.of([[1.0]], [1]), "shape"),
        (lambda: Counts.of(["a"], [1]), "real number"),
        (lambda: Counts.of([1.0], [2]), "wrong must hold truth values"),
        (lambda: Counts.of(np.zeros(1, np.float16), [1], split=[0]), "leave split out"),
        (lambda: Counts.of(np.zeros(1, np.float16), [1]) + Counts.of(np.zeros(1, np.float32), [1]), "one dtype"),
        (lambda: Counts.of([1.0], [1], split=[0]) + Counts.of([1.0], [1]), "same split"),
        (lambda: Counts.of(np.zeros(0), np.zeros(0, bool)).ranking(), "no rows"),
    ],
)
def test_bad_input_is_told_in_a_sentence(call, words):
    with pytest.raises(BadInput, match=words):
        call()


def test_only_counts_add_to_counts():
    with pytest.raises(TypeError):
        Counts.of([1.0], [1]) + 1
    with pytest.raises(TypeError):
        1 + Counts.of([1.0], [1])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("order", [">", "<"])
def test_the_byte_order_does_not_matter(dtype, order):
    rng = np.random.default_rng(0)
    u, wrong = rng.normal(size=500).astype(dtype), rng.random(500) < 0.3
    ours, foreign = Counts.of(u, wrong), Counts.of(u.astype(np.dtype(dtype).newbyteorder(order)), wrong)
    assert (foreign.half, foreign.exact) == (ours.half, ours.exact) == (dtype == np.float16, dtype != np.float64)
    np.testing.assert_array_equal(foreign.table, ours.table)
