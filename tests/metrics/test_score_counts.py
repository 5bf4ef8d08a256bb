"""Counts by score: shards add up to the whole, exactly while there are few scores, within a bound above that."""

import numpy as np
import pytest

from nescio import metrics
from nescio.errors import BadInput
from nescio.metrics import Ranking, ScoreCounts, augrc, aurc, auroc, fpr_at_tpr, registry
from nescio.metrics import _score_counts as module


def rows(n=3000, seed=0, decimals=None):
    rng = np.random.default_rng(seed)
    u = rng.normal(size=n) * 10.0 ** rng.integers(-3, 3, n)
    wrong = rng.random(n) < 1 / (1 + np.exp(-u))
    return (u if decimals is None else u.round(decimals)), wrong


def summed(u, wrong, cuts):
    parts = zip(np.split(u, cuts), np.split(wrong, cuts), strict=True)
    total, *others = (ScoreCounts.of(*part) for part in parts)
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


def test_minus_zero_is_zero_and_float16_is_exact():
    u = np.array([-0.0, 0.0, -1.5, 2.0], np.float16)
    counts = ScoreCounts.of(u, [0, 1, 0, 1])
    assert counts.rows.tolist() == [[1, 0], [1, 1], [0, 1]]
    assert counts.ranking().values.tolist() == [-1.5, 0.0, 2.0]


def test_more_scores_than_there_is_room_for_lose_their_last_digits_alone(monkeypatch):
    u, wrong = rows()
    exact = {metric: metric(u, wrong) for metric in (auroc, aurc, augrc)}
    found = {}
    for most in (16, 256, 2048):
        monkeypatch.setattr(module, "MOST", most)
        counts = ScoreCounts.of(u, wrong)
        assert most / 4 < len(counts.keys) <= most and counts.digits > 0
        for metric, value in exact.items():
            off = abs(metric(counts.ranking()) - value)
            assert off <= counts.bound(metric) + 1e-15
        found[most] = counts.bound(auroc)
    assert 0 < found[2048] < found[256] < found[16]


def test_where_shards_are_cut_does_not_matter(monkeypatch):
    monkeypatch.setattr(module, "MOST", 100)
    u, wrong = rows()
    whole = ScoreCounts.of(u, wrong)
    for cuts in ([1], [50, 2000], [*range(10, 3000, 10)]):
        made = summed(u, wrong, cuts)
        assert made.digits == whole.digits
        assert np.array_equal(made.keys, whole.keys) and np.array_equal(made.rows, whole.rows)


def test_rows_of_two_sets_are_counted_against_each_other():
    (u, wrong), (v, other) = rows(), rows(500, seed=1)
    both = ScoreCounts.of(u, wrong).against(ScoreCounts.of(v, other)).ranking()
    out = np.repeat([False, True], [3000, 500])
    for metric in (auroc, fpr_at_tpr):
        assert metric(both) == metric(np.concatenate([u, v]), out)


def test_what_is_no_score_is_refused():
    with pytest.raises(BadInput, match="is nan in row 1"):
        ScoreCounts.of([1.0, np.nan], [0, 1])
    with pytest.raises(BadInput, match="u has 1 rows, wrong has 2"):
        ScoreCounts.of([1.0], [0, 1])


def test_gaps_of_shards_add_up_to_those_of_all_rows():
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(5), 999), rng.integers(0, 5, 999)
    whole = metrics.answers(probs, labels)
    parts = [metrics.ece_gaps(whole.take(slice(start, start + 100))) for start in range(0, 999, 100)]
    np.testing.assert_allclose(np.abs(sum(parts)).sum() / 999, metrics.ece(whole), rtol=1e-12)
