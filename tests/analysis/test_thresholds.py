"""Thresholds with a guarantee: the promise is kept against the population, and no rows are wasted for it."""

import json
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from nescio import Predictions
from nescio.analysis.thresholds import (
    at_coverage,
    expected_coverage,
    guarantee_threshold,
    ltt,
    rows_needed,
    sgr,
    stratified_split,
    upper_limit,
)
from nescio.cli import main
from nescio.errors import BadInput

DELTA = 0.05
METHODS = [sgr, ltt]


# ---- populations whose selective risk is known


class Power:
    """u uniform on (0, 1), wrong with probability f + a·u^p: the risk below t is f + a·t^p/(p + 1)."""

    def __init__(self, f=0.002, a=0.8, p=3):
        self.f, self.a, self.p = f, a, p

    def draw(self, rng, n):
        u = rng.random(n)
        return u, rng.random(n) < self.f + self.a * u**self.p

    def risk(self, t):
        return self.f + self.a * t**self.p / (self.p + 1)

    def coverage(self, t):
        return t

    def oracle(self, risk):
        return min(1.0, ((risk - self.f) * (self.p + 1) / self.a) ** (1 / self.p))


class Atoms:
    """u takes twelve values with unequal chances: thresholds between them do not exist."""

    values = np.arange(12) / 12
    chance = np.array([6, 1, 4, 2, 8, 1, 1, 3, 5, 2, 4, 3]) / 40
    wrong = 0.004 + 0.5 * values**2

    def draw(self, rng, n):
        at = rng.choice(12, n, p=self.chance)
        return self.values[at], rng.random(n) < self.wrong[at]

    def risk(self, t):
        kept = self.values <= t
        return (self.chance * self.wrong)[kept].sum() / self.chance[kept].sum()

    def coverage(self, t):
        return self.chance[self.values <= t].sum()

    def oracle(self, risk):
        return max(self.coverage(t) for t in self.values if self.risk(t) <= risk)


class ConfidentlyWrong(Power):
    """As Power, but the surest two hundredths are wrong one time in ten: the risk first falls, then rises."""

    edge = 0.02

    def draw(self, rng, n):
        u, wrong = super().draw(rng, n)
        return u, np.where(u < self.edge, rng.random(n) < 0.1, wrong)

    def risk(self, t):
        if t <= self.edge:
            return 0.1
        below = self.f * self.edge + self.a * self.edge ** (self.p + 1) / (self.p + 1)
        return (0.1 * self.edge + t * super().risk(t) - below) / t

    def oracle(self, risk):
        grid = np.linspace(0.03, 1, 2000)
        return max(t for t in grid if self.risk(t) <= risk)


def kept_promises(method, population, n, risk, draws, seed=0):
    """(share of draws whose population risk is above the promise, mean population coverage)."""
    rng = np.random.default_rng(seed)
    broken, coverage = 0, 0.0
    for _ in range(draws):
        found = method(*population.draw(rng, n), risk, DELTA)
        if found.threshold is not None:
            broken += population.risk(found.threshold) > risk
            coverage += population.coverage(found.threshold)
    return broken / draws, coverage / draws


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("population", [Power(), Atoms(), ConfidentlyWrong()], ids=lambda p: type(p).__name__)
def test_thresholds__the_guarantee_holds_against_the_population_over_a_thousand_draws(method, population):
    broken, coverage = kept_promises(method, population, 1500, 0.05, draws=1000)
    assert broken <= stats.binom.ppf(0.999, 1000, DELTA) / 1000
    assert coverage >= 0.6 * population.oracle(0.05)


@pytest.mark.parametrize("method", METHODS)
def test_thresholds__coverage_comes_close_to_the_oracles_with_many_rows(method):
    population = Power()
    broken, coverage = kept_promises(method, population, 20_000, 0.02, draws=60)
    assert broken <= stats.binom.ppf(0.999, 60, DELTA) / 60
    assert coverage >= 0.9 * population.oracle(0.02)


def test_thresholds__the_empirical_threshold_breaks_the_promise_most_of_the_time():
    """What one does without a guarantee: the most coverage whose own share of errors is small enough."""
    rng, population, broken = np.random.default_rng(0), Power(), 0
    for _ in range(300):
        u, wrong = population.draw(rng, 1500)
        order = np.argsort(u)
        share = np.cumsum(wrong[order]) / np.arange(1, 1501)
        threshold = u[order][np.flatnonzero(share <= 0.05)[-1]]
        broken += population.risk(threshold) > 0.05
    assert broken / 300 > 0.4


def test_sgr_without_the_shared_delta_would_not_hold_at_a_hard_population():
    """Delta is shared for a reason: where all thresholds are just above the risk, each look may be fooled."""
    rng, broken = np.random.default_rng(0), {"shared": 0, "whole": 0}
    for _ in range(400):
        u, wrong = rng.random(2000), rng.random(2000) < 0.0501
        broken["shared"] += sgr(u, wrong, 0.05, DELTA).attainable
        ends = np.arange(1, 2001)
        broken["whole"] += bool((upper_limit(np.cumsum(wrong[np.argsort(u)]), ends, DELTA) <= 0.05).any())
    assert broken["shared"] / 400 <= stats.binom.ppf(0.999, 400, DELTA) / 400 < broken["whole"] / 400


@pytest.mark.parametrize("population", [Power(), ConfidentlyWrong()], ids=lambda p: type(p).__name__)
def test_ltt__several_starts_keep_more_than_a_sequence_that_one_early_error_ends(population):
    once = kept_promises(lambda *x: ltt(*x, starts=1), population, 4000, 0.03, draws=100)
    several = kept_promises(ltt, population, 4000, 0.03, draws=100)
    assert several[1] > once[1]


# ---- definitions


def tail(errors, rows, risk):
    """P(Binomial(rows, risk) ≤ errors), term by term."""
    p = Fraction(risk)
    return float(sum(math.comb(rows, i) * p**i * (1 - p) ** (rows - i) for i in range(errors + 1)))


@pytest.mark.parametrize("delta", [0.2, 0.05, 0.05 / 16])
@pytest.mark.parametrize(("errors", "rows"), [(0, 1), (0, 59), (1, 2), (3, 40), (39, 40), (7, 200)])
def test_upper_limit__the_limit_inverts_the_exact_binomial_tail(errors, rows, delta):
    limit = upper_limit(errors, rows, delta)
    assert tail(errors, rows, limit) == pytest.approx(delta, rel=1e-9)
    assert limit == pytest.approx(stats.beta.ppf(1 - delta, errors + 1, rows - errors), rel=1e-9)


def test_upper_limit__limits_at_the_ends():
    assert upper_limit(5, 5, 0.05) == 1
    assert upper_limit(0, 299, 0.05) == pytest.approx(1 - 0.05 ** (1 / 299), rel=1e-12)
    assert upper_limit([0, 2], [10, 2], 0.1).tolist() == [pytest.approx(1 - 0.1**0.1), 1]
    assert upper_limit(0, 10**9, 1e-4) == pytest.approx(-math.log(1e-4) / 1e9, rel=1e-6)  # no cancellation
    assert rows_needed(0.01, 0.05) == 299 and rows_needed(0.5, 0.5) == 1 and rows_needed(0.999, 0.05) == 1


def slow_sgr(u, wrong, risk, delta):
    """Bisection over the values that u takes, the surest first."""
    values = sorted(set(u))
    looks = math.ceil(math.log2(len(u))) or 1

    def limit(value):
        kept = u <= value
        return upper_limit(int(wrong[kept].sum()), int(kept.sum()), delta / looks)

    values = [v for v in values if upper_limit(0, int((u <= v).sum()), delta / looks) <= risk]
    best = None
    while values:
        middle = (len(values) - 1) // 2
        if limit(values[middle]) <= risk:
            best, values = values[middle], values[middle + 1 :]
        else:
            values = values[:middle]
    return best


def slow_ltt(u, wrong, risk, delta, starts=5, grid=100):
    """The fallback procedure on p-values that are summed term by term."""
    values, n = sorted(set(u)), len(u)
    counts = [int((u <= v).sum()) for v in values]
    least = next((m for m in range(1, n + 1) if (1 - risk) ** m <= delta / starts * (1 + 1e-12)), None)
    if least is None:
        return None

    def first(rows):
        return next(i for i, count in enumerate(counts) if count >= rows)

    begin = [first(least * (n / least) ** (i / starts)) for i in range(starts)]
    tested = sorted({*begin, *(first(rows) for rows in np.linspace(least, n, grid))})
    best, level = None, 0.0
    for i in tested:
        level += begin.count(i) * delta / starts
        p = tail(int(wrong[u <= values[i]].sum()), counts[i], Fraction(str(risk)))
        best, level = (values[i], level) if p <= level else (best, 0.0)
    return best


@pytest.mark.parametrize(("method", "slow"), [(sgr, slow_sgr), (ltt, slow_ltt)])
@pytest.mark.parametrize("values", [10**6, 30, 4])
def test_thresholds__equal_to_their_definitions(method, slow, values):
    rng = np.random.default_rng(values)
    found = []
    for _ in range(25):
        n = int(rng.integers(20, 150))
        u = np.floor(rng.random(n) * values) / values
        wrong = rng.random(n) < 0.4 * u**2
        risk = float(rng.choice([0.1, 0.2, 0.3]))
        found.append(method(u, wrong, risk, 0.1).threshold)
        assert found[-1] == slow(u, wrong, risk, 0.1)
    assert None in found and len(set(found)) > 3


@pytest.mark.parametrize("method", METHODS)
def test_thresholds__what_is_said_of_a_threshold_is_true_of_the_rows(method):
    rng = np.random.default_rng(1)
    u = np.round(rng.random(3000), 2)  # ties: a threshold takes a whole group or none of it
    wrong = rng.random(3000) < 0.6 * u**3
    found = method(u, wrong, 0.05, DELTA)
    kept = u <= found.threshold
    assert (found.accepted, found.errors) == (kept.sum(), wrong[kept].sum())
    assert found.threshold in u and found.coverage == kept.mean() and found.n == 3000
    assert found.errors / found.accepted < found.bound <= 0.05
    shuffled = rng.permutation(3000)
    assert method(u[shuffled], wrong[shuffled], 0.05, DELTA) == found


def test_sgr__the_bound_of_sgr_is_the_limit_at_its_share_of_delta():
    rng = np.random.default_rng(2)
    u = rng.random(1000)
    found = sgr(u, rng.random(1000) < 0.5 * u**3, 0.08, DELTA)
    assert found.level == DELTA / 10
    assert found.bound == pytest.approx(stats.beta.ppf(1 - DELTA / 10, found.errors + 1, found.accepted - found.errors))


@pytest.mark.parametrize("method", METHODS)
def test_thresholds__always_right_is_full_coverage_and_always_wrong_is_none(method):
    u = np.random.default_rng(0).random(1000)
    right = method(u, np.zeros(1000, bool), 0.02, DELTA)
    assert right.coverage == 1 and right.threshold == u.max()
    never = method(u, np.ones(1000, bool), 0.02, DELTA)
    assert never.threshold is None and never.bound is None and never.coverage == 0 and not never.attainable
    assert never.smallest_limit == 1


def sure_and_wrong():
    """The 16 surest of 2,000 rows are wrong, and all from row 620 on: bisection passes over what lies between."""
    row = np.arange(2000)
    return row / 2000, (row < 16) | (row >= 620)


def test_sgr__bisection_may_miss_what_learn_then_test_finds():
    missed = sgr(*sure_and_wrong(), 0.05, DELTA)
    assert not missed.attainable and missed.smallest_limit < 0.05
    assert ltt(*sure_and_wrong(), 0.05, DELTA).accepted > 600


@pytest.mark.parametrize("method", METHODS)
def test_thresholds__one_tie_group_is_all_or_nothing(method):
    wrong = np.arange(400) < 4
    assert method(np.zeros(400), wrong, 0.05, DELTA).coverage == 1
    assert method(np.zeros(400), wrong, 0.01, DELTA).threshold is None


@pytest.mark.parametrize("method", METHODS)
def test_thresholds__too_few_rows_promise_nothing_and_say_what_they_could(method):
    found = method(np.arange(100) / 100, np.zeros(100, bool), 0.01, DELTA)
    assert found.threshold is None and found.smallest_limit == pytest.approx(1 - found.level ** (1 / 100))
    assert found.smallest_limit > 0.01


def test_sgr__single_rows():
    assert sgr([0.3], [False], 0.97, DELTA).threshold == 0.3  # 1 − 0.05 = 0.95
    assert sgr([0.3], [False], 0.9, DELTA).threshold is None
    assert ltt([0.3], [True], 0.97, DELTA).threshold is None


def test_at_coverage__at_a_coverage_the_limit_needs_no_sharing():
    rng = np.random.default_rng(3)
    u, wrong = np.round(rng.random(500), 1), rng.random(500) < 0.1
    found = at_coverage(u, wrong, 0.52, DELTA)
    kept = u <= found.threshold
    assert kept.mean() >= 0.52 > (u < found.threshold).mean()
    assert found.bound == upper_limit(int(wrong[kept].sum()), int(kept.sum()), DELTA) and found.risk is None


def test_at_coverage__the_limit_at_a_coverage_holds_against_the_population():
    rng, population = np.random.default_rng(4), Power()
    broken = 0
    for _ in range(1000):
        found = at_coverage(*population.draw(rng, 400), 0.7, DELTA)
        broken += population.risk(found.threshold) > found.bound
    assert broken <= stats.binom.ppf(0.999, 1000, DELTA)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"risk": 0}, "risk"),
        ({"risk": 1.5}, "risk"),
        ({"delta": 0}, "delta"),
        ({"delta": 1}, "delta"),
        ({"u": [1]}, "rows"),
    ],
)
def test_thresholds__bad_questions_are_sentences(method, change, word):
    asked = {"u": [0.1, 0.2], "wrong": [True, False], "risk": 0.1, "delta": 0.05} | change
    with pytest.raises(BadInput, match=word):
        method(**asked)


@pytest.mark.parametrize("population", [Power(), Atoms(), ConfidentlyWrong()])
def test_expected_coverage__what_more_rows_would_buy_is_about_what_they_buy(population):
    rng = np.random.default_rng(6)
    estimates = [expected_coverage(*population.draw(rng, 1000), 0.05, DELTA, rows=2000) for _ in range(20)]
    bought = [ltt(*population.draw(rng, 2000), 0.05, DELTA).coverage for _ in range(60)]
    now = [ltt(*population.draw(rng, 1000), 0.05, DELTA).coverage for _ in range(60)]
    assert np.mean(now) < np.mean(estimates)
    assert np.mean(estimates) == pytest.approx(np.mean(bought), abs=0.06)


# ---- dumps


def two_class_dump(rng, n, true=2.5, longest=12.0):
    """Margins x uniform on (0, longest) for class 0 or 1, right with probability σ(x/true): overconfident logits."""
    x, first = rng.random(n) * longest, rng.random(n) < 0.5
    right = rng.random(n) < 1 / (1 + np.exp(-x / true))
    logits = np.where(first[:, None], np.stack([x, 0 * x], 1), np.stack([0 * x, x], 1))
    return Predictions(logits=logits, labels=np.where(right == first, 0, 1))


def two_class_risk(u, temperature, true=2.5, longest=12.0):
    """∫ σ(−x/true) over the margins that are accepted, x ≥ T·log((1 − u)/u), in closed form."""
    least = max(0.0, temperature * math.log((1 - u) / u))
    area = true * (np.log1p(math.exp(-least / true)) - np.log1p(math.exp(-longest / true)))
    return area / (longest - least)


@pytest.mark.parametrize("method", ["ltt", "sgr", "both"])
def test_guarantee_threshold__with_a_fitted_temperature_the_promise_still_holds(method):
    rng, broken, temperatures, coverage = np.random.default_rng(5), 0, [], []
    for seed in range(60):
        found = guarantee_threshold(two_class_dump(rng, 1500), risk=0.05, method=method, temperature="fit", seed=seed)
        temperatures.append(found.temperature)
        coverage.append(found.guarantee.coverage)
        if found.guarantee.attainable:
            broken += two_class_risk(found.guarantee.threshold, found.temperature) > 0.05
    assert broken <= stats.binom.ppf(0.999, 60, DELTA)
    assert np.median(temperatures) == pytest.approx(2.5, rel=0.1) and np.mean(coverage) > 0.3


def test_guarantee_threshold__the_guarantee_sees_no_row_that_the_temperature_saw():
    dump = two_class_dump(np.random.default_rng(6), 1000)
    found = guarantee_threshold(dump, risk=0.05, temperature="fit", fit_rows=300, seed=9)
    chosen, rest = stratified_split(dump, 300, 9)
    assert sorted([*chosen, *rest]) == list(range(1000)) and found.fitted == 300
    assert found.guarantee.n == 700
    # Other labels on the temperature's rows move the temperature; with it held, they change nothing.
    held = guarantee_threshold(dump.take(rest), risk=0.05, temperature=found.temperature)
    assert held.guarantee == found.guarantee and held.guarantee.accepted > 100
    val = dump.take(chosen)
    moved = guarantee_threshold(dump.take(rest), risk=0.05, temperature="fit", val=val.replace(labels=1 - val.labels))
    assert moved.temperature != found.temperature
    assert moved.guarantee.accepted == found.guarantee.accepted  # a temperature keeps the order of two classes


def test_guarantee_threshold__a_temperature_from_validation_rows_leaves_all_rows_to_the_guarantee():
    rng = np.random.default_rng(7)
    dump, val = two_class_dump(rng, 800), two_class_dump(rng, 500)
    found = guarantee_threshold(dump, risk=0.06, temperature="fit", val=val)
    assert found.guarantee.n == 800 and found.fitted == 500


def test_stratified_split__rows_are_divided_evenly_over_classes_and_alike_in_any_order():
    rng = np.random.default_rng(8)
    labels = rng.choice(6, 500, p=[0.5, 0.2, 0.15, 0.1, 0.04, 0.01])
    dump = Predictions(labels=labels, logits=rng.normal(size=(500, 6)), index=rng.permutation(10_000)[:500])
    chosen, _ = stratified_split(dump, 77, 3)
    assert len(chosen) == 77
    share = np.bincount(labels, minlength=6) * 77 / 500
    assert (np.abs(np.bincount(labels[chosen], minlength=6) - share) < 1).all()
    order = rng.permutation(500)
    mixed = dump.take(order)
    assert set(mixed.index[stratified_split(mixed, 77, 3)[0]]) == set(dump.index[chosen])
    assert set(stratified_split(dump, 77, 4)[0]) != set(chosen)


def test_stratified_split__every_row_has_the_same_chance_to_be_set_aside():
    """Rounding by class would favour rows of some classes, and the rest would be of another population."""
    labels = np.repeat([0, 1, 2, 3], [3, 7, 11, 29])
    dump = Predictions(labels=labels, logits=np.zeros((50, 4)))
    taken = np.zeros(50)
    for seed in range(4000):
        taken[stratified_split(dump, 12, seed)[0]] += 1
    p = 12 / 50
    assert np.abs(taken / 4000 - p).max() < 5 * math.sqrt(p * (1 - p) / 4000)


def test_guarantee_threshold__measures_scores_and_dropout():
    rng = np.random.default_rng(9)
    dump = two_class_dump(rng, 2000)
    logs = np.log(rng.dirichlet([1, 1], 2000))
    dump = dump.replace(scores={"mine": rng.random(2000)}, variants={"mc-dropout": logs})
    for measure, u in (
        ("entropy", None),
        ("scores/mine", dump.scores["mine"]),
        ("mc-dropout", -(np.exp(logs) * logs).sum(1)),
    ):
        found = guarantee_threshold(dump, coverage=0.5, measure=measure)
        assert found.measure == measure and found.guarantee.accepted == 1000
        if u is not None:
            assert found.guarantee.threshold == pytest.approx(np.sort(u)[999], rel=1e-9)
    wrong = logs.argmax(1) != dump.labels  # the answers under dropout are those that its κ ranks
    kept = -(np.exp(logs) * logs).sum(1) <= found.guarantee.threshold * (1 + 1e-12)
    assert found.guarantee.errors == wrong[kept].sum()


def test_guarantee_threshold__both_shares_delta_and_takes_the_larger_coverage():
    dump = two_class_dump(np.random.default_rng(10), 3000)
    both = guarantee_threshold(dump, risk=0.05, method="both")
    alone = [guarantee_threshold(dump, risk=0.05, delta=DELTA / 2, method=name).guarantee for name in ("ltt", "sgr")]
    assert list(both.guarantees) == alone and both.guarantee.delta == DELTA
    assert both.guarantee.accepted == max(each.accepted for each in alone)


def test_guarantee_threshold__rows_of_classes_that_were_not_taught_are_left_out():
    dump = two_class_dump(np.random.default_rng(11), 1000)
    in_distribution = np.arange(1000) % 4 > 0
    labels = np.where(in_distribution, dump.labels, 77)
    found = guarantee_threshold(dump.replace(labels=labels, in_distribution=in_distribution), risk=0.06)
    assert (
        found.guarantee == guarantee_threshold(dump.take(in_distribution), risk=0.06).guarantee
        and found.guarantee.n == 750
    )


def test_guarantee_threshold__judging_other_rows():
    rng = np.random.default_rng(12)
    dump, other = two_class_dump(rng, 2000), two_class_dump(rng, 700)
    found = guarantee_threshold(dump, risk=0.05, temperature=2.0)
    margin = np.abs(other.logits[:, 0, 0] - other.logits[:, 0, 1]) / 2
    kept = 1 / (1 + np.exp(margin)) <= found.guarantee.threshold
    wrong = other.logits[:, 0].argmax(1) != other.labels
    judged = found.evaluate(other)
    assert (judged.n, judged.accepted, judged.errors) == (700, kept.sum(), wrong[kept].sum())
    assert judged.risk == wrong[kept].mean() and judged.coverage == kept.mean()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "a risk or a coverage"),
        ({"risk": 0.1, "coverage": 0.5}, "a risk or a coverage"),
        ({"risk": 0.1, "method": "hope"}, "hope"),
        ({"risk": 0.1, "measure": "entropi"}, "entropi"),
        ({"risk": 0.1, "measure": "knn_distance"}, "must be fitted first"),
        ({"risk": 0.1, "measure": "scores/none"}, "none"),
        ({"risk": 0.1, "temperature": -1}, "temperature"),
        ({"risk": 0.1, "temperature": "warm"}, "warm"),
        ({"risk": 0.1, "temperature": "fit", "fit_rows": 50}, "50 of 50"),
        ({"risk": 0.1, "fit_rows": 5}, "fit_rows"),
        ({"risk": 0.1, "measure": "native", "temperature": 2}, "does not change"),
        ({"coverage": 0}, "coverage"),
    ],
)
def test_guarantee_threshold__bad_settings_are_sentences(options, word):
    dump = two_class_dump(np.random.default_rng(0), 50)
    with pytest.raises(BadInput, match=word):
        guarantee_threshold(dump, **options)


def test_guarantee_threshold__rows_that_earn_the_guarantee_fit_no_temperature():
    rng = np.random.default_rng(3)
    dump = two_class_dump(rng, 300)
    for copy in (dump, dump.take(rng.permutation(300)), dump.replace(index=np.arange(300) + 5)):
        with pytest.raises(BadInput, match="other rows"):
            guarantee_threshold(dump, risk=0.1, temperature="fit", val=copy)


def test_guarantee_threshold__more_rows_mean_nothing_where_the_coverage_is_given():
    found = guarantee_threshold(two_class_dump(np.random.default_rng(0), 300), coverage=0.5)
    with pytest.raises(BadInput, match="coverage"):
        found.with_more_rows(2)


def test_guarantee_threshold__no_labels_and_nothing_taught():
    dump = two_class_dump(np.random.default_rng(0), 50)
    with pytest.raises(BadInput, match="no labels"):
        guarantee_threshold(dump.replace(labels=None), risk=0.1)
    with pytest.raises(BadInput, match="out-of-distribution"):
        guarantee_threshold(dump.replace(in_distribution=False), risk=0.1)


# ---- the command


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("dumps"), np.random.default_rng(0)
    for name in ("preds", "other"):
        two_class_dump(rng, 2000).save(folder / f"{name}.npz")
    two_class_dump(rng, 50).replace(labels=None).save(folder / "unlabelled.npz")
    return folder


def ask(capsys, *words):
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_thresholds__more_rows_never_seem_to_cost_answers(capsys, tmp_path):
    """Where all is answered by luck, resamples answer less; that is nothing that more rows would buy."""
    labels = np.arange(60) % 4
    np.savez(tmp_path / "all.npz", labels=labels, logits=np.eye(4)[0] * (2 - (labels[:, None] > 0)))
    _, out, _ = ask(capsys, "threshold", tmp_path / "all.npz", "--risk", 0.9)
    assert "(coverage 100 %)" in out and "More rows" in out and "as many rows" not in out


def test_guarantee_threshold__a_measure_that_is_the_same_for_all_rows_has_no_threshold(capsys, files):
    code, out, err = ask(capsys, "threshold", files / "preds.npz", "--coverage", 0.5, "--measure", "mutual_information")
    assert code == 2 and out == "" and "mutual_information" in err and "entropy" in err
    with pytest.raises(BadInput, match="temperature_of_the_day"):
        same = two_class_dump(np.random.default_rng(0), 20).replace(scores={"temperature_of_the_day": np.full(20, 3.0)})
        guarantee_threshold(same, risk=0.5, measure="temperature_of_the_day")


def test_upper_limit__json_says_what_to_do(capsys, files):
    code, out, err = ask(capsys, "threshold", files / "preds.npz", "--risk", 0.05, "--format", "json")
    found = json.loads(out)
    assert code == 0 and err == "" and found["attainable"]
    assert found["measure"] == "msp" and found["method"] == "ltt" and found["delta"] == 0.05
    dump = Predictions.load(files / "preds.npz")
    z = np.asarray(dump.logits[:, 0], np.float64)
    u = 1 / (1 + np.exp(np.abs(z[:, 0] - z[:, 1])))
    kept = u <= found["threshold"] * (1 + 1e-9)
    assert found["coverage"] == kept.mean() and found["accepted"] == kept.sum()
    assert found["errors"] == (z.argmax(1) != dump.labels)[kept].sum()
    assert found["bound"] == 0.05
    assert [more["rows"] for more in found["more_rows"]] == [4000, 20_000]
    assert found["coverage"] < found["more_rows"][0]["coverage"] < found["more_rows"][1]["coverage"] < 1
    _, out, _ = ask(capsys, "threshold", files / "preds.npz", "--risk", 0.05, "--guarantee", "sgr", "--format", "json")
    fewer = json.loads(out)
    assert fewer["bound"] == upper_limit(fewer["errors"], fewer["accepted"], 0.05 / 11) <= 0.05
    assert fewer["coverage"] < found["coverage"]


def test_thresholds__the_sentences(capsys, files):
    code, out, _ = ask(
        capsys, "threshold", files / "preds.npz", "--risk", 0.05, "--fit-temperature", "--test", files / "other.npz"
    )
    assert code == 0
    for words in (
        "Predict when",
        "'msp' is at most",
        "probability is at least",
        "fitted on 200 other rows",
        "95 % confidence",
        "of the check",
        "with twice as many rows",
        "Estimated coverage",
    ):
        assert words in out
    _, out, _ = ask(capsys, "threshold", files / "preds.npz", "--coverage", 0.8, "--measure", "entropy")
    assert "coverage 80 %" in out and "top probability" not in out


def test_thresholds__what_bisection_missed_is_not_called_unattainable(capsys, tmp_path):
    u, wrong = sure_and_wrong()
    surest = 1 - u / 2
    Predictions(probs=np.stack([surest, 1 - surest], 1), labels=wrong.astype(int)).save(tmp_path / "p.npz")
    code, _, err = ask(capsys, "threshold", tmp_path / "p.npz", "--risk", 0.05, "--guarantee", "sgr")
    assert code == 1 and "bisection" in err and "or try --guarantee ltt." in err
    assert "limit" not in err
    assert ask(capsys, "threshold", tmp_path / "p.npz", "--risk", 0.05)[0] == 0


def test_thresholds__not_attainable_is_said_and_has_its_own_exit_code(capsys, files):
    code, out, err = ask(capsys, "threshold", files / "preds.npz", "--risk", 0.0001)
    assert code == 1 and out == "" and "Not attainable" in err
    code, out, _ = ask(
        capsys, "threshold", files / "preds.npz", "--risk", 0.005, "--test", files / "other.npz", "--format", "json"
    )
    found = json.loads(out)
    assert code == 1 and found["threshold"] is None and not found["attainable"] and found["coverage"] == 0
    assert "Not attainable" in found["reason"] and found["smallest_limit"] > 0.005


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("preds.npz",), "--risk"),
        (("preds.npz", "--risk", "0.1", "--coverage", "0.5"), "not both"),
        (("preds.npz", "--risk", "2"), "risk is 2"),
        (("preds.npz", "--risk", "0.1", "--delta", "0"), "delta"),
        (("unlabelled.npz", "--risk", "0.1"), "no labels"),
        (("missing.npz", "--risk", "0.1"), "missing.npz"),
        (("preds.npz", "--risk", "0.1", "--temperature", "hot"), "hot"),
        (("preds.npz", "--risk", "0.1", "--temperature", "2", "--val", "other.npz"), "--temperature"),
    ],
)
def test_thresholds__bad_input_is_one_sentence(capsys, files, monkeypatch, words, sentence):
    monkeypatch.chdir(files)
    try:
        code, out, err = ask(capsys, "threshold", *words)
    except SystemExit as stop:
        said = capsys.readouterr()
        code, out, err = stop.code, said.out, said.err
    assert code == 2 and out == "" and sentence in err and len(err.strip().splitlines()) == 1


def test_thresholds__it_needs_no_torch(files):
    code = (
        "import sys; from nescio.cli import main; main(sys.argv[1:]); "
        "sys.exit(str({'torch', 'scipy.stats', 'sklearn', 'pandas'} & set(sys.modules)))"
    )
    words = ["threshold", str(files / "preds.npz"), "--risk", "0.05", "--guarantee", "both"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.stderr.strip() == "set()"


@pytest.mark.parametrize("risk", [1e-308, 1e-200, 1e-17])
def test_rows_needed__risks_that_no_number_of_rows_can_promise(risk):
    with pytest.raises(BadInput, match="rows"):
        rows_needed(risk, 0.05)
