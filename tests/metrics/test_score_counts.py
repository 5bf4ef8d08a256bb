"""Counts by score: shards add up to the whole, exactly while there are few scores, within a bound above that."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nescio import metrics
from nescio.errors import BadInput, Undefined
from nescio.metrics import Ranking, ScoreCounts, augrc, aupr, aurc, auroc, e_aurc, fpr_at_tpr, registry, sac
from nescio.metrics import _score_counts as module

METRICS = [m for m in registry.parts() if m.prepared and {"ranking", "detection"} & set(m.kinds)]
FULL = st.floats(allow_nan=False, allow_infinity=False, width=32)
# steps of 2^-20 differ in their last digits alone; tiny numbers of both signs meet at zero
CLOSE = st.tuples(st.sampled_from([-1.0, 1.0, 1.0078125]), st.integers(0, 4)).map(
    lambda t: t[0] * (1 + t[1] * 2.0**-20)
)
CLOSE |= st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 3e-44])
MOST = st.sampled_from([1, 2, 5, 64])


def some(scores, dtype):
    return st.integers(1, 40).flatmap(
        lambda n: st.tuples(arrays(dtype, n, elements=scores), arrays(bool, n, elements=st.booleans()))
    )


def rows(n=3000, seed=0, decimals=None):
    rng = np.random.default_rng(seed)
    u = rng.normal(size=n) * 10.0 ** rng.integers(-3, 3, n)
    wrong = rng.random(n) < 1 / (1 + np.exp(-u))
    return (u if decimals is None else u.round(decimals)), wrong


def summed(u, wrong, cuts):
    parts = zip(np.split(u, cuts), np.split(wrong, cuts), strict=True)
    total, *others = (ScoreCounts.count(*part) for part in parts)
    for other in others:
        total = total + other
    return total


@pytest.mark.parametrize("decimals", [None, 1])
@pytest.mark.parametrize("cuts", [[], [1], [700, 701, 2999], [1000, 2000]])
def test_ranking_metrics_of_shards_are_those_of_all_rows(cuts, decimals):
    u, wrong = rows(decimals=decimals)
    counts, whole = summed(u, wrong, cuts), Ranking(u, wrong)
    assert counts.digits == 0 and counts.n == 3000
    for metric in registry.parts():
        if "ranking" in metric.kinds and metric.prepared:
            assert metric.function(counts.ranking()) == metric.function(whole), metric.name
            assert counts.bound(metric.function) == 0


def test_score_counts__minus_zero_is_zero_and_float16_is_exact():
    u = np.array([-0.0, 0.0, -1.5, 2.0], np.float16)
    counts = ScoreCounts.count(u, [0, 1, 0, 1])
    assert counts.rows.tolist() == [[1, 0], [1, 1], [0, 1]]
    assert counts.ranking().values.tolist() == [-1.5, 0.0, 2.0]


def test_score_counts__more_scores_than_there_is_room_for_lose_their_last_digits_alone(monkeypatch):
    u, wrong = rows()
    exact = {metric: metric(u, wrong) for metric in (auroc, aurc, augrc)}
    found = {}
    for most in (16, 256, 2048):
        monkeypatch.setattr(module, "MAX_SCORES", most)
        counts = ScoreCounts.count(u, wrong)
        assert most / 4 < len(counts.keys) <= most and counts.digits > 0
        for metric, value in exact.items():
            off = abs(metric(counts.ranking()) - value)
            assert off <= counts.bound(metric) + 1e-15
        found[most] = counts.bound(auroc)
    assert 0 < found[2048] < found[256] < found[16]


@settings(max_examples=100)
@given(some(FULL | CLOSE, np.float32), MOST)
def test_score_counts__float32_counts_stay_inside_their_bound(case, most):
    check_bound(*case, most)


@settings(max_examples=60)
@given(some(CLOSE | st.sampled_from([1 + 1e-9, 1 + 2e-9, 1.0]), np.float64), MOST)
def test_score_counts__float64_counts_stay_inside_their_bound(case, most):
    check_bound(*case, most)


def check_bound(u, wrong, most):
    counts = ScoreCounts.count(u, wrong, most)
    if len(np.unique(u)) <= most:
        assert counts.digits == 0
    for metric in METRICS:
        for options in [{name: value} for name, values in metric.values.items() for value in values] or [{}]:
            try:
                exact = metric.function(u, wrong, **options)
                close = metric.function(counts.ranking(), **options)
            except Undefined:
                continue
            bound = counts.bound(metric.function, **options)
            assert abs(close - exact) <= bound + 1e-12, metric.name
            assert counts.digits or (bound == 0 and close == exact), metric.name


def test_e_aurc__the_bound_is_reached():
    """Two rows in one key: the counts say tied, the scores say in order, or inverted."""
    u = np.array([1, 1 + 2.0**-20], np.float32)
    for wrong in ([False, True], [True, False]):
        counts = ScoreCounts.count(u, wrong, 1)
        assert auroc(counts.ranking()) == 0.5 and counts.bound(auroc) == 0.5
        assert abs(auroc(u, wrong) - 0.5) == 0.5
        assert e_aurc(counts.ranking()) == pytest.approx(counts.bound(e_aurc))


def test_sac__wrong_rows_alone_in_a_key_still_hide_thresholds():
    u = np.array([0, 0, 0, 0, 1, 1 + 2.0**-20], np.float32)
    wrong = np.array([False] * 4 + [True, True])
    counts = ScoreCounts.count(u, wrong, 2)
    assert sac(counts.ranking(), accuracy=0.8) == 4 / 6 and sac(u, wrong, 0.8) == 5 / 6
    assert counts.bound(sac, accuracy=0.8) == pytest.approx(1 / 6)
    assert counts.bound(auroc) == 0 and counts.bound(aupr) >= abs(aupr(counts.ranking()) - aupr(u, wrong))


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float64, bool])
def test_score_counts__whole_numbers_and_truth_values_are_scores_too(dtype):
    u, wrong = np.array([0, 1, 1, 0, 1], dtype), [0, 1, 1, 0, 0]
    assert auroc(ScoreCounts.count(u, wrong).ranking()) == auroc(u, wrong)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("order", [">", "<"])
def test_score_counts__the_byte_order_does_not_matter(dtype, order):
    u, wrong = rows()
    ours = ScoreCounts.count(u.astype(dtype), wrong)
    foreign = ScoreCounts.count(u.astype(dtype).astype(np.dtype(dtype).newbyteorder(order)), wrong)
    assert np.array_equal(foreign.keys, ours.keys) and np.array_equal(foreign.rows, ours.rows)


def test_score_counts__where_shards_are_cut_does_not_matter(monkeypatch):
    monkeypatch.setattr(module, "MAX_SCORES", 100)
    u, wrong = rows()
    whole = ScoreCounts.count(u, wrong)
    for cuts in ([1], [50, 2000], [*range(10, 3000, 10)]):
        made = summed(u, wrong, cuts)
        assert made.digits == whole.digits
        assert np.array_equal(made.keys, whole.keys) and np.array_equal(made.rows, whole.rows)


def test_score_counts__rows_of_two_sets_are_counted_against_each_other():
    (u, wrong), (v, other) = rows(), rows(500, seed=1)
    both = ScoreCounts.count(u, wrong).against(ScoreCounts.count(v, other)).ranking()
    out = np.repeat([False, True], [3000, 500])
    for metric in (auroc, fpr_at_tpr):
        assert metric(both) == metric(np.concatenate([u, v]), out)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -np.nan])
def test_score_counts__scores_must_be_finite(dtype, value):
    with pytest.raises(BadInput, match=r"in row 1;.*finite number"):
        ScoreCounts.count(np.array([0, value, 1], dtype), [0, 1, 1])


def test_score_counts__what_is_no_score_is_refused():
    with pytest.raises(BadInput, match="u has 1 rows, wrong has 2"):
        ScoreCounts.count([1.0], [0, 1])


def test_ece_gaps__gaps_of_shards_add_up_to_those_of_all_rows():
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(5), 999), rng.integers(0, 5, 999)
    whole = metrics.outcomes(probs, labels)
    parts = [metrics.ece_gaps(whole.take(slice(start, start + 100))) for start in range(0, 999, 100)]
    np.testing.assert_allclose(np.abs(sum(parts)).sum() / 999, metrics.ece(whole), rtol=1e-12)
