"""Rank correlations, crops and human votes against five-line definitions, SciPy and others' values."""

import subprocess
import sys
from math import prod

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from nescio import BadInput, Undefined
from nescio.metrics._alignment import crop_agreement, has_votes, human_alignment, kendall, spearman, vote_entropy
from tests.support.reference import load, note

numbers = st.integers(-3, 3) | st.floats(-1e6, 1e6)
two_columns = st.lists(st.tuples(numbers, numbers), min_size=2, max_size=40).map(np.array)
varied = two_columns.filter(lambda x: np.ptp(x[:, 0]) > 0 and np.ptp(x[:, 1]) > 0)


def brute_kendall(a, b):
    s, t = (np.sign(x[:, None] - x[None]) for x in (a, b))
    return (s * t).sum() / np.sqrt((s != 0).sum() * (t != 0).sum())


def brute_spearman(a, b):
    r, s = ((x[:, None] > x[None]).sum(1) + (x[:, None] >= x[None]).sum(1) for x in (a, b))
    return np.corrcoef(r, s)[0, 1]


@given(varied)
def test_spearman__equal_to_their_definitions(x):
    a, b = x.T
    assert kendall(a, b) == pytest.approx(brute_kendall(a, b), abs=1e-12)
    assert spearman(a, b) == pytest.approx(brute_spearman(a, b), abs=1e-12)
    assert spearman(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic, abs=1e-12)


@given(varied, st.randoms(use_true_random=False))
def test_alignment__invariances(x, random):
    a, b = x.T
    for f in (kendall, spearman):
        assert f(a, b) == pytest.approx(f(b, a), abs=1e-12)
        assert f(a, b) == pytest.approx(-f(-a, b), abs=1e-12)
        assert -1 <= f(a, b) <= 1
        assert f(a, a) == pytest.approx(1, abs=1e-12) and f(a, -a) == pytest.approx(-1, abs=1e-12)
        order = random.sample(range(len(a)), len(a))
        assert f(a[order], b[order]) == pytest.approx(f(a, b), abs=1e-12)


def test_spearman__large_input():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 1000, 200_000)
    b = a + rng.integers(0, 1000, 200_000)
    assert spearman(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic, abs=1e-12)
    assert kendall(a, b) == pytest.approx(scipy.stats.kendalltau(a, b).statistic, abs=1e-12)


@pytest.mark.parametrize("f", [kendall, spearman])
def test_alignment__undefined_and_bad_input(f):
    with pytest.raises(Undefined, match="the same value"):
        f([1, 2, 3], [5, 5, 5])
    with pytest.raises(Undefined, match="the same value"):
        f([1], [2])
    with pytest.raises(BadInput, match="3 and 2 rows"):
        f([1, 2, 3], [1, 2])
    with pytest.raises(BadInput, match="nan in row 1"):
        f([1, np.nan, 3], [1, 2, 3])
    with pytest.raises(BadInput, match="empty"):
        f([], [])


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1))
def test_crop_agreement_counts_strict_increases(pairs):
    u, cropped = np.array(pairs).T
    assert crop_agreement(u, cropped) == sum(c > w for w, c in pairs) / len(pairs)


def test_crop_agreement__crop_bad_input():
    with pytest.raises(BadInput, match="u has 2 rows, u_cropped has 3"):
        crop_agreement([1, 2], [1, 2, 3])
    with pytest.raises(BadInput, match=r"u_cropped.*inf.*row 0"):
        crop_agreement([1], [np.inf])


def test_crop_agreement__reference_crops():
    ref, said = load("url_crop_metric"), note("url_crop_metric")
    u, cropped = ref["unc_orig"], ref["unc_crop"]
    ours = crop_agreement(u, cropped)
    assert ours == pytest.approx(float(ref["pct_cropped_bigger"]), abs=1e-7)  # stored from float32
    assert ours == pytest.approx(said["value"], abs=1e-7)
    assert (u == cropped).sum() == ref["n_equal"]
    # Counting ties half is another metric: here a tie is a failure to see that something is missing.
    assert ours == pytest.approx(float(ref["x_half_ties"]) - ref["n_equal"] / 2 / len(u), abs=1e-12)
    assert ours != pytest.approx(float(ref["x_half_ties"]), abs=1e-3)


def test_vote_entropy_in_nats():
    votes = np.array([[4, 0, 0], [2, 2, 0], [1, 1, 1], [1, 2, 7]])
    assert np.allclose(vote_entropy(votes), scipy.stats.entropy(votes, axis=1), atol=1e-15)
    assert vote_entropy([[3, 0]])[0] == 0


@given(st.lists(st.integers(0, 30), min_size=2, max_size=9).filter(any), st.randoms(use_true_random=False))
def test_vote_entropy__votes_for_other_classes_tie_exactly(votes, random):
    moved = random.sample(votes, len(votes))
    assert vote_entropy([votes])[0] == vote_entropy([moved])[0] == vote_entropy([[4 * v for v in votes]])[0]


def exact_entropy(votes):
    """What decides whether two entropies are equal: Π v^v of the votes of one total, a whole number."""
    return prod(int(v) ** int(v) for v in votes if v)


def test_vote_entropy__equal_entropies_of_different_votes_tie():
    same = vote_entropy([[1, 1, 2, 6], [6, 2, 1, 1], [0, 3, 3, 4], [3, 0, 4, 3]])
    assert len(set(same)) == 1
    drawn = np.random.default_rng(0).multinomial(20, np.full(6, 1 / 6), 4000)
    exact = [exact_entropy(votes) for votes in drawn]
    entropies = vote_entropy(drawn)
    assert len(set(zip(exact, entropies, strict=True))) == len(set(exact)) == len(set(entropies))
    u = np.arange(4000) % 7
    order = {value: rank for rank, value in enumerate(sorted(set(exact), reverse=True))}
    assert human_alignment(u, drawn) == spearman(u, [order[value] for value in exact])


def test_human_alignment():
    rng = np.random.default_rng(1)
    votes = rng.integers(0, 50, (300, 10))
    votes[:, 0] += 1
    u = scipy.stats.entropy(votes, axis=1) + rng.normal(0, 0.1, 300)
    expected = scipy.stats.spearmanr(u, scipy.stats.entropy(votes, axis=1)).statistic
    assert human_alignment(u, votes) == pytest.approx(expected, abs=1e-12)
    assert human_alignment(u, votes / votes.sum(1, keepdims=True)) == pytest.approx(expected, abs=1e-12)
    assert human_alignment(vote_entropy(votes), votes) == pytest.approx(1, abs=1e-12)


def test_human_alignment__rows_without_votes_are_left_out_of_human_alignment():
    rng = np.random.default_rng(1)
    votes = rng.integers(0, 50, (300, 10))
    votes[:, 0] += 1
    u = rng.random(300)
    without = np.arange(300) % 3 == 0
    expected = human_alignment(u[~without], votes[~without])
    votes[without] = 0
    assert human_alignment(u, votes) == expected
    np.testing.assert_array_equal(has_votes(votes), ~without)
    with pytest.raises(Undefined, match=r"No.*has human votes"):
        human_alignment([1, 2], [[0, 0], [0, 0]])
    with pytest.raises(BadInput, match=r"votes.*row 1"):
        vote_entropy([[1, 2], [0, 0]])


def test_human_alignment_refuses():
    with pytest.raises(Undefined, match="the same value"):
        human_alignment([1, 2], [[3, 0], [0, 5]])  # everyone agrees on everything
    for votes, message in [
        ([[1, 2], [3, -1]], r"negative.*row 1"),
        ([[1, np.nan], [3, 1]], r"negative.*row 0"),
        ([1, 2], "must be \\(n, classes\\)"),
        ([["a", "b"]], "votes as numbers"),
        ([[1, 2]], "u has 2 rows, annotations has 1"),
    ]:
        with pytest.raises(BadInput, match=message):
            human_alignment([1, 2], votes)


def test_alignment__all_stay_light():
    code = (
        "import sys; from nescio.metrics._alignment import human_alignment, kendall; kendall([1, 2], [3, 1]);"
        "human_alignment([1, 2, 3], [[1, 2], [1, 1], [1, 3]]); assert 'scipy.stats' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def mean_over_opponents(values, labels):
    """(opponents, n) -> (n,), leaving out the row's own class."""
    values = values.copy()
    values[labels, np.arange(len(labels))] = np.nan
    return np.nanmean(values, axis=0)


def test_kendall__reference_reliability():
    """Tau-b and rho of a score against four errors of one-vs-one heads, with and without ties."""
    ref, said = load("repreli_reliability"), note("repreli_reliability")["kendall"]
    labels, p = ref["labels"], ref["ovo_prob_target_first"]
    assert "p_target" in str(ref["task_rows"]) and p.shape == (3, 10, 120, 2)
    p = p.mean(0)  # the ensemble
    wrong = p[..., 1]
    assert np.allclose(mean_over_opponents(2 * wrong**2, labels), ref["ens_brier"], atol=1e-15)
    assert np.allclose(mean_over_opponents(wrong, labels), ref["ens_pred_err"], atol=1e-15)
    assert np.allclose(mean_over_opponents(np.log(p[..., 0]), labels), ref["ens_log_pred_prob"], atol=1e-15)
    nats = mean_over_opponents(scipy.special.entr(p).sum(-1), labels)
    # Their entropy is in bits, ours in nats everywhere: another unit, the same ranking.
    assert np.allclose(nats / np.log(2), ref["ens_pred_entropy"], atol=1e-14)
    assert not np.isclose(nats, ref["ens_pred_entropy"]).any()
    for ties, score in (("cont", ref["score"]), ("ties", ref["score_ties"])):
        for error in ("pred_entropy", "brier", "pred_err", "log_pred_prob"):
            for end, f in (("tau", kendall), ("spearman", spearman)):
                key = f"{ties}_{error}-{end}"
                ours = f(score, -ref[f"ens_{error}"])
                assert ours == pytest.approx(float(ref[f"tau_{key}"]), abs=1e-12) == pytest.approx(said[key], abs=1e-12)
        if ties == "ties":  # τ-b, not τ-a: without its correction for ties the value is smaller
            s, e = (np.sign(x[:, None] - x[None]) for x in (score, ref["ens_brier"]))
            tau_a = -(s * e).sum() / (120 * 119)
            assert abs(tau_a) < abs(float(ref["tau_ties_brier-tau"])) - 1e-3
    # log_pred_prob is a success, not an error: against its minus the correlations come out with the opposite sign.
    assert kendall(ref["score"], ref["ens_log_pred_prob"]) == pytest.approx(-float(ref["tau_cont_log_pred_prob-tau"]))


def test_human_alignment__ragged_votes_are_one_sentence():
    with pytest.raises(BadInput, match="of different lengths"):
        human_alignment([0.1, 0.2], [[1, 2], [3]])
