"""Ranking metrics against their definitions, against scikit-learn, and at their edges."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from nescio import BadInput, Undefined
from nescio.metrics import Ranking, aupr, auroc, fpr_at_tpr, gamma, ranking, registry

TIED = st.sampled_from([-3.0, -0.5, -0.0, 0.0, 0.5, 1e-300, 2.0, 7.0])
ROWS = st.lists(st.tuples(TIED, st.booleans()), min_size=1, max_size=30).map(
    lambda rows: (np.array([u for u, _ in rows]), np.array([p for _, p in rows]))
)
RANKING_METRICS = [m for m in registry.parts() if m.prepared and {"ranking", "detection"} & set(m.kinds)]


def value_of(metric, *arguments, **options):
    """The value, or the kind of refusal: both must be the same wherever two inputs mean the same."""
    try:
        return metric(*arguments, **options)
    except Undefined:
        return "undefined"


def pairs(u, positive):
    return [(a, b) for a in u[positive] for b in u[~positive]]


def brute_auroc(u, positive):
    return sum((a > b) + (a == b) / 2 for a, b in pairs(u, positive)) / len(pairs(u, positive))


def brute_aupr(u, positive):
    total, found = 0.0, 0
    for t in sorted(set(u), reverse=True):
        flagged = u >= t
        total += (positive[flagged].sum() - found) * positive[flagged].mean()
        found = positive[flagged].sum()
    return total / positive.sum()


def brute_fpr(u, positive, tpr):
    reached = [t for t in u if Fraction(int((u[positive] >= t).sum()), int(positive.sum())) >= Fraction(str(tpr))]
    return (u[~positive] >= max(reached)).mean()


def brute_gamma(u, positive):
    right, inverted = (sum(a > b for a, b in pairs(u, positive)), sum(a < b for a, b in pairs(u, positive)))
    return (right - inverted) / (right + inverted)


@given(ROWS)
def test_auroc_is_the_share_of_pairs_in_order(rows):
    u, positive = rows
    if positive.all() or not positive.any():
        with pytest.raises(Undefined):
            auroc(u, positive)
    else:
        assert auroc(u, positive) == pytest.approx(brute_auroc(u, positive), abs=1e-15)


@given(ROWS)
def test_aupr_is_average_precision(rows):
    u, positive = rows
    if not positive.any():
        with pytest.raises(Undefined):
            aupr(u, positive)
    else:
        assert aupr(u, positive) == pytest.approx(brute_aupr(u, positive), abs=1e-14)


@given(ROWS, st.sampled_from([0.01, 0.3, 0.5, 0.7, 0.9, 0.95, 1.0, "0.95", np.float32(0.9)]))
def test_fpr_at_tpr_takes_the_highest_threshold_that_reaches(rows, tpr):
    u, positive = rows
    if positive.all() or not positive.any():
        with pytest.raises(Undefined):
            fpr_at_tpr(u, positive, tpr)
    else:
        assert fpr_at_tpr(u, positive, tpr) == brute_fpr(u, positive, tpr)


@given(ROWS)
def test_gamma_counts_only_pairs_that_differ(rows):
    u, positive = rows
    if all(a == b for a, b in pairs(u, positive)):
        with pytest.raises(Undefined):
            gamma(u, positive)
    else:
        assert gamma(u, positive) == pytest.approx(brute_gamma(u, positive), abs=1e-15)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8])
def test_aupr__equal_to_scikit_learn(seed, dtype):
    rng = np.random.default_rng(seed)
    positive = rng.random(3000) < 0.3
    u = (10 * (rng.normal(size=3000) + positive)).astype(dtype)  # int8 and float16 tie often
    assert auroc(u, positive) == pytest.approx(roc_auc_score(positive, u), abs=1e-13)
    assert aupr(u, positive) == pytest.approx(average_precision_score(positive, u), abs=1e-13)
    fpr, tpr, _ = roc_curve(positive, u, drop_intermediate=False)
    for wanted in (0.5, 0.8, 0.95):
        assert fpr_at_tpr(u, positive, wanted) == fpr[np.argmax(tpr >= wanted)]


def test_gamma_is_two_auroc_minus_one_only_without_ties():
    rng = np.random.default_rng(0)
    u, wrong = rng.normal(size=500), rng.random(500) < 0.4
    assert gamma(u, wrong) == pytest.approx(2 * auroc(u, wrong) - 1, abs=1e-15)
    tied = np.round(u)
    assert abs(gamma(tied, wrong)) > abs(2 * auroc(tied, wrong) - 1)
    assert gamma([0, 1], [False, True]) == 1 and gamma([1, 0], [False, True]) == -1


def test_auroc__scores_outside_zero_one_are_scores():
    assert auroc([120, 130, 150, 170], [0, 0, 1, 1]) == 1.0
    assert auroc([-170, -150, -130, -120], [0, 0, 1, 1]) == 1.0


def test_ranking__auroc_is_exact_for_neighbouring_floats_and_both_signs():
    one = 1.0
    u = np.array([one, np.nextafter(one, 2), -one, np.nextafter(-one, -2), 5e-324, -5e-324, 0.0, -0.0])
    order = np.argsort(u, kind="stable")
    r = Ranking(u, np.arange(8) % 2 == 0)
    assert r.values.tolist() == sorted(set(u.tolist())) and r.ends.tolist() == [1, 2, 3, 5, 6, 7, 8]
    assert r.hits[-1] == 4 and r.n == 8 and r.values[r.sizes == 2].tolist() == [0.0]
    assert np.array_equal(np.repeat(r.values, r.sizes), u[order])


@pytest.mark.parametrize("metric", RANKING_METRICS, ids=lambda m: m.name)
@given(rows=ROWS, seed=st.integers(0, 99))
def test_ranking__only_the_order_counts(metric, rows, seed):
    """Strictly monotone maps and permutations of the rows change nothing, to the last bit."""
    u, positive = rows
    value = value_of(metric.function, u, positive)
    order = np.random.default_rng(seed).permutation(len(u))
    assert value_of(metric.function, u[order], positive[order]) == value
    ranks = np.unique(u, return_inverse=True)[1]
    for mapped in (
        3 * ranks - 20,
        np.exp(ranks / 3),
        -np.exp(-ranks / 3),
        ranks.astype(np.float16),
        (ranks - 4.0) ** 3,
    ):
        assert value_of(metric.function, mapped, positive) == value
    assert value_of(metric.function, Ranking(u, positive)) == value
    assert value_of(metric.function, u.tolist(), positive.astype(int).tolist()) == value


# SAC and AUPR also depend on which thresholds there are, not on the order alone.
@pytest.mark.parametrize("metric", [m for m in RANKING_METRICS if m.name not in ("sac", "aupr")], ids=lambda m: m.name)
@given(rows=ROWS)
def test_ranking__better_orders_are_not_worse(metric, rows):
    """All positive rows last is the best order of the given rows, all positive rows first the worst."""
    u, positive = rows
    best = value_of(metric.function, positive.astype(float), positive)
    worst = value_of(metric.function, -positive.astype(float), positive)
    value = value_of(metric.function, u, positive)
    if "undefined" not in (best, worst, value):
        low, high = (worst, best) if metric.better == "higher" else (best, worst)
        assert low - 1e-15 <= value <= high + 1e-15


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_gamma__constant_scores_tell_nothing(n):
    positive = np.arange(n) % 2 == 0
    u = np.full(n, 3.25)
    if n > 1:
        assert auroc(u, positive) == 0.5
        assert fpr_at_tpr(u, positive) == 1.0
    assert aupr(u, positive) == positive.mean()
    with pytest.raises(Undefined, match="wrong row differs"):
        gamma(u, positive)


def test_aupr__one_class_is_undefined():
    for positive in (np.ones(4, bool), np.zeros(4, bool)):
        for metric in (auroc, fpr_at_tpr, gamma):
            with pytest.raises(Undefined):
                metric(np.arange(4.0), positive)
    assert aupr(np.arange(4.0), np.ones(4, bool)) == 1.0
    with pytest.raises(Undefined):
        aupr(np.arange(4.0), np.zeros(4, bool))


def test_fpr_at_tpr__a_tpr_is_read_as_its_decimal_text():
    positive = np.array([True] * 10 + [False] * 10)
    u = np.concatenate([np.arange(10), np.arange(10) - 0.5])
    # 0.7 of 10 positives is 7, although 0.7 · 10 and 1 − 0.3 carry float error
    assert fpr_at_tpr(u, positive, 0.7) == fpr_at_tpr(u, positive, Fraction(7, 10)) == 0.6
    assert fpr_at_tpr(u, positive, 0) == 0.0
    assert fpr_at_tpr([1, 2, 3, 4, 5, 6, 7, 0], [1, 1, 1, 1, 1, 1, 1, 0], 5 / 7) == 0.0


def test_ranking__groups_make_the_same_ranking_as_rows():
    rng = np.random.default_rng(1)
    u, positive = rng.integers(-5, 5, 400) / 4, rng.random(400) < 0.3
    values, group = np.unique(u, return_inverse=True)
    r = Ranking.from_groups(values, np.bincount(group), np.bincount(group, positive))
    for metric in RANKING_METRICS:
        assert metric.function(r) == metric.function(u, positive)
    assert ranking(r) is r


def test_ranking__pairs_of_billions_of_rows_are_counted_in_whole_numbers():
    rows = 10**11
    r = Ranking.from_groups([0, 1], [rows, rows], [1, rows - 1])
    right, tied, inverted = r.pairs
    assert right == (rows - 1) ** 2 and inverted == 1 and right + tied + inverted == rows**2
    assert r.total_hits == Fraction(rows + 1, 2) + rows + Fraction((rows - 1) * (rows + 1), 2)


@pytest.mark.parametrize(
    ("u", "positive", "words"),
    [
        ([1, 2, 3], [1, 0], "u has 3 rows, positive has 2"),
        ([1, np.nan, 3], [1, 0, 1], r"u.*row 1"),
        ([1, 2, np.inf], [1, 0, 1], r"u.*row 2"),
        ([], [], "u is empty"),
        ([[1, 2]], [1, 0], "shape \\(1, 2\\)"),
        (["a", "b"], [1, 0], "real number"),
        (np.array([1, None], object), [1, 0], "real number"),
        ([1 + 2j, 0], [1, 0], "real number"),
        ([1, 2], [1, 2], "positive must be"),
        ([1, 2], ["yes", "no"], "positive must be"),
        ([1, 2], [[1], [0]], "shape \\(2, 1\\)"),
        ([1, 2], [np.nan, 1], "positive must be"),
        ([1, 2], None, "positive is missing"),
        ([2**62, 2**62 + 1], [1, 0], "2\\*\\*53"),
        (Ranking([1, 2], [0, 1]), [0, 1], "prepared Ranking"),
    ],
)
def test_ranking__bad_input_is_told_in_a_sentence(u, positive, words):
    with pytest.raises(BadInput, match=words):
        auroc(u, positive)


@pytest.mark.parametrize("tpr", [-0.1, 1.1, np.nan, "many", np.inf])
def test_fpr_at_tpr__bad_tpr(tpr):
    with pytest.raises(BadInput, match="tpr is"):
        fpr_at_tpr([1, 2], [0, 1], tpr)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (([0, 1], [1], [1]), "one length"),
        (([1, 0], [1, 1], [1, 1]), "rise"),
        (([0, 1], [1, 1], [2, 0]), "between 0 and counts"),
        (([0, 1], [0, 0], [0, 0]), "no rows"),
    ],
)
def test_ranking__bad_groups(groups, words):
    with pytest.raises(BadInput, match=words):
        Ranking.from_groups(*groups)


@pytest.mark.parametrize(("u", "positive"), [([[1, 2], [3]], [0, 1]), ([1, 2], [[0], [1, 0]])])
def test_auroc__ragged_input_is_one_sentence(u, positive):
    with pytest.raises(BadInput, match="of different lengths"):
        auroc(u, positive)
