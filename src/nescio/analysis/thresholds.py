"""From which uncertainty on must a model abstain, so that its answers keep a promise? Thresholds with a guarantee.

    promise = ltt(u, wrong, risk=0.01, delta=0.05)
    promise.threshold                            # answer where u ≤ threshold, abstain elsewhere

With probability 1 − delta over the rows, at most a share `risk` of the answers to new rows of the same kind is wrong,
however badly the model is calibrated. Only thresholds that can be set are tried: ends of tie groups.

Letters: n rows; of the m rows with u ≤ t, e are wrong. Given m, e is binomial with the selective risk at t, whatever
the model is, so that an exact binomial limit holds for a threshold that was fixed beforehand. Thresholds taken at fixed
ranks of the rows' own u are as good wherever the selective risk does not fall as more is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nescio import measures
from nescio.analysis import calibration
from nescio.analysis.evaluation_rows import resolve_measure
from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.measures import summary
from nescio.metrics import Ranking, as_share, ranking, row_count
from nescio.predictions import Predictions, same_rows

STARTS, GRID = 5, 100  # of Learn-then-Test: where the sequence may begin anew, and how many thresholds it goes through
FIT_SHARE, FIT_MOST = 10, 5000  # a fitted temperature takes a tenth of the rows, and no more than this
LEAST_RISK = 1e-12  # below it float64 cannot tell limits of neighbouring numbers of rows apart
REPEATS = 20  # resamples behind an estimate of what more rows would buy


@dataclass(frozen=True)
class Guarantee:
    """A threshold and what it promises. Answer where u ≤ threshold, abstain elsewhere.

    threshold  None where none was found that keeps the promise: then everything must be abstained from
    bound      the selective risk on new rows is at most this, with probability 1 − delta over the rows
    level      the part of delta that one look at the rows was given
    least      smallest limit of any threshold, where none was found: it is chosen by its errors, so it promises nothing
    """

    method: str
    risk: float | None  # what is to be kept; None where a coverage is
    delta: float
    level: float
    n: int
    threshold: float | None = None
    accepted: int = 0
    errors: int = 0
    bound: float | None = None
    least: float | None = None

    @property
    def attainable(self) -> bool:
        return self.threshold is not None

    @property
    def coverage(self) -> float:
        return self.accepted / self.n


# ---- one threshold, one limit


def upper_limit(errors: Any, rows: Any, delta: float) -> Any:
    """The largest risk that makes so few errors in so many rows no rarer than delta (Clopper–Pearson's upper limit).

    The b with P(Binomial(m, b) ≤ e) = delta, the inverse of the exact binomial tail: 1 − delta^(1/m) for e = 0, and 1
    for e = m. Source: Geifman and El-Yaniv 2017, §3.
    """
    from scipy.special import betainccinv

    e, m = np.asarray(errors, np.float64), np.asarray(rows, np.float64)
    limit = np.where(e < m, betainccinv(e + 1, np.maximum(m - e, 1), delta), 1.0)
    limit = np.where(e == 0, -np.expm1(np.log(delta) / m), limit)
    return limit if limit.ndim else float(limit)


def rows_needed(risk: float, delta: float) -> int:
    """The fewest accepted rows that can promise this risk, all of them right."""
    if risk < LEAST_RISK:
        raise BadInput(f"risk is {risk}, which no number of rows can promise; give at least {LEAST_RISK}.")
    m = max(1, math.floor(math.log(delta) / math.log1p(-risk)))
    while upper_limit(0, m, delta) > risk:
        m += 1
    return m


def at_coverage(u: Any, wrong: Any, coverage: float, delta: float = 0.05) -> Guarantee:
    """The threshold that accepts the surest `coverage` of the rows (with those tied to the last), and its risk limit.

    One threshold at a rank that no error had a say in: the exact limit at delta, which nothing has to be shared with.
    """
    r = ranking(u, wrong, "wrong")
    _probability(delta, "delta")
    kept = row_count(coverage, r.n, "coverage")
    if kept == 0:
        raise BadInput("coverage is 0, which keeps no row; give a share above 0.")
    return _promise(r, int(np.searchsorted(r.ends, kept)), "coverage", None, delta, delta)


# ---- the most coverage that keeps a risk


def sgr(u: Any, wrong: Any, risk: float, delta: float = 0.05) -> Guarantee:
    """Selection with guaranteed risk: bisection for the largest coverage whose risk limit is at most `risk`.

    Every one of at most k = ⌈log₂ n⌉ looks takes `upper_limit` at delta/k, so that all of them hold together. Coverages
    too small to be promised even without errors are never looked at, and full coverage is. `bound` is the limit of the
    chosen threshold. Source: Geifman and El-Yaniv 2017, §3.
    """
    r = _checked(u, wrong, risk, delta)
    looks = max(1, math.ceil(math.log2(r.n)))
    level = delta / looks
    nothing = low = int(np.searchsorted(r.ends, rows_needed(risk, level))) - 1
    high = len(r.ends) - 1
    for _ in range(looks):
        if low == high:
            break
        middle = (low + high + 1) // 2
        if upper_limit(r.hits[middle], r.ends[middle], level) <= risk:
            low = middle
        else:
            high = middle - 1
    return _promise(r, None if low == nothing else low, "sgr", risk, delta, level)


def ltt(
    u: Any, wrong: Any, risk: float, delta: float = 0.05, *, starts: int = STARTS, thresholds: int = GRID
) -> Guarantee:
    """Learn-then-Test: thresholds are tested in a fixed order, the most restrictive first, by exact binomial p-values.

    H_t: the selective risk at t is above `risk`; p = P(Binomial(m, risk) ≤ e), and p ≤ level is limit ≤ risk. Plain
    fixed-sequence testing (starts = 1) begins at the fewest rows m₀ that could be promised, where one error ends it. So
    delta is shared by several starts, at m₀·(n/m₀)^(i/starts) rows, and a rejected threshold hands its level on to the
    next one (the fallback procedure): no wrong rejection with probability 1 − delta. What is tested, and so what is
    bounded, is the risk itself. Source: Angelopoulos et al. 2021; Wiens 2003.
    """
    r = _checked(u, wrong, risk, delta)
    if starts < 1 or thresholds < 1:
        raise BadInput(f"starts is {starts} and thresholds is {thresholds}; both must be at least 1.")
    level = delta / starts
    least = rows_needed(risk, level)
    if least > r.n:
        return _promise(r, None, "ltt", risk, delta, level)
    begin = np.searchsorted(r.ends, least * (r.n / least) ** (np.arange(starts) / starts))
    tested = np.union1d(begin, np.searchsorted(r.ends, np.linspace(least, r.n, thresholds)))
    fresh = np.bincount(begin, minlength=len(r.ends)) * level
    chosen, own = None, 0.0
    for group in tested:
        own += fresh[group]
        if own and upper_limit(r.hits[group], r.ends[group], own) <= risk:
            chosen = int(group)
        else:
            own = 0.0
    return _promise(r, chosen, "ltt", risk, delta, level)


METHODS = {"ltt": ltt, "sgr": sgr}


def expected_coverage(
    u: Any, wrong: Any, risk: float, delta: float = 0.05, *, rows: int, method: str = "ltt", seed: int = 0
) -> float:
    """An estimate of the coverage that a method would reach with so many rows: its mean on resamples of that size.

    The rows at hand stand for the population, so it promises nothing. A resample that attains nothing counts as 0.
    """
    u, wrong = np.asarray(u), np.asarray(wrong)
    stream = np.random.default_rng(seed)
    draws = (stream.integers(len(u), size=rows) for _ in range(REPEATS))
    return float(np.mean([METHODS[method](u[draw], wrong[draw], risk, delta).coverage for draw in draws]))


def _checked(u: Any, wrong: Any, risk: float, delta: float) -> Ranking:
    _probability(risk, "risk")
    _probability(delta, "delta")
    return ranking(u, wrong, "wrong")


def _probability(value: Any, name: str) -> None:
    if not 0 < as_share(value, name) < 1:
        raise BadInput(f"{name} is {value}; it must lie between 0 and 1.")


def _promise(r: Ranking, group: int | None, method: str, risk: float | None, delta: float, level: float) -> Guarantee:
    if group is None:
        least = float(np.min(upper_limit(r.hits, r.ends, level)))
        return Guarantee(method, risk, delta, level, r.n, least=least)
    errors, accepted = int(r.hits[group]), int(r.ends[group])
    bound = risk if method == "ltt" else upper_limit(errors, accepted, level)
    return Guarantee(method, risk, delta, level, r.n, float(r.values[group]), accepted, errors, bound)


# ---- dumps


@dataclass(frozen=True)
class ThresholdOutcome:
    """What a threshold does to labelled rows."""

    n: int
    accepted: int
    errors: int

    @property
    def coverage(self) -> float:
        return self.accepted / self.n

    @property
    def risk(self) -> float | None:
        return self.errors / self.accepted if self.accepted else None


@dataclass(frozen=True)
class GuaranteedThreshold:
    """A threshold on one measure of a model, and the temperature under which it was set.

    fitted   rows that the temperature was fitted on; the guarantee has not seen them
    at_edge  the temperature stands at the edge of its range: these rows cannot say which is best
    tried    what the guarantee was chosen from; each has its own part of delta
    rows     (u, wrong) of the rows that earned it
    """

    measure: str
    temperature: float
    guarantee: Guarantee
    tried: tuple[Guarantee, ...]
    rows: tuple[Array, Array] = field(repr=False, compare=False)
    fitted: int = 0
    at_edge: bool = False
    score: Callable[[Predictions], Array] | None = field(default=None, repr=False, compare=False)

    def attains(self, risk: float, delta: float) -> bool:
        """Whether the same rows and methods would give a threshold for another promise."""
        u, wrong = self.rows
        return any(METHODS[one.method](u, wrong, risk, delta / len(self.tried)).attainable for one in self.tried)

    def with_more_rows(self, factor: int, seed: int = 0) -> float:
        """About which share of the rows could be answered under the same promise, had it so many times the rows."""
        promise = self.guarantee
        if promise.risk is None:
            raise BadInput("More rows change the coverage that keeps a risk, and here the coverage was given.")
        u, wrong = self.rows
        rows, delta = factor * promise.n, promise.delta / len(self.tried)
        return max(
            expected_coverage(u, wrong, promise.risk, delta, rows=rows, method=one.method, seed=seed)
            for one in self.tried
        )

    def judge(self, predictions: Predictions) -> ThresholdOutcome:
        """What the threshold does to the rows of another dump whose class was in training."""
        u, wrong = uncertainty_and_errors(predictions, self.measure, self.temperature, self.score)
        kept = u <= self.guarantee.threshold if self.guarantee.threshold is not None else np.zeros(len(u), bool)
        return ThresholdOutcome(len(u), int(kept.sum()), int(wrong[kept].sum()))


def guarantee_threshold(
    predictions: Predictions,
    *,
    risk: float | None = None,
    coverage: float | None = None,
    delta: float = 0.05,
    measure: str = "msp",
    method: str = "ltt",
    temperature: float | str = 1.0,
    val: Predictions | None = None,
    fit_rows: int | None = None,
    seed: int = 0,
    score: Callable[[Predictions], Array] | None = None,
) -> GuaranteedThreshold:
    """The threshold on a dump that keeps a risk (or a coverage), set on rows that the temperature has not seen.

    method       "ltt", "sgr", or "both": each with half of delta, and the one that keeps more rows is taken
    temperature  a number that these rows had no say in, or "fit": on `val`, else on `fit_rows` rows of this dump (a
                 tenth, at most 5,000), which are drawn evenly over the classes and then left out
    score        the measure, fitted to reference rows, if it is one that must be
    """
    if (risk is None) == (coverage is None):
        raise BadInput("Give a risk or a coverage: the one decides the threshold, the other comes out.")
    if method not in (*METHODS, "both"):
        raise BadInput(f"There is no method named {method!r}. There are: {', '.join(METHODS)}, both.")
    if predictions.labels is None and not predictions.has_outcomes:
        raise BadInput("There are no labels: a guarantee is earned on rows whose answers can be judged.")
    if fit_rows is not None and (temperature != "fit" or val is not None):
        raise BadInput("fit_rows counts rows of this dump that a temperature is fitted on, and none is.")
    if val is not None and temperature != "fit":
        raise BadInput("A temperature is given, and validation rows to fit one on: give one of them.")
    if val is not None and same_rows(predictions, val):
        raise BadInput("The validation rows are the rows that earn the guarantee: fit the temperature on other rows.")
    known = predictions if predictions.in_distribution is None else _known(predictions)
    measure = measures.canonical(measure, predictions)
    rest, fitted, at_edge = np.arange(len(known)), 0, False
    if temperature == "fit":
        if val is None:
            chosen, rest = stratified_split(known, _fit_rows(fit_rows, len(known)), seed)
            val = known.take(chosen)
        fit = calibration.temperature(val)
        fitted, temperature, at_edge = len(val), fit.temperature, fit.at_edge
    t = _temperature(temperature)
    u, wrong = (array[rest] for array in uncertainty_and_errors(known, measure, t, score))
    if len(u) > 1 and (u == u[0]).all():
        one = measure in measures.registry and measures.registry[measure].needs_draws and known.draws == 1
        why = "it compares several draws, and these predictions have one" if one else "it cannot rank them"
        raise BadInput(f"The measure {measure!r} is {u[0]:g} for all {len(u):,} rows: {why}; use entropy instead.")
    if risk is None:
        assert coverage is not None
        tried = [at_coverage(u, wrong, coverage, delta)]
    else:
        names = list(METHODS) if method == "both" else [method]
        tried = [METHODS[name](u, wrong, risk, delta / len(names)) for name in names]
    best = replace(max(tried, key=lambda guarantee: guarantee.accepted), delta=delta)  # the choice has all of delta
    return GuaranteedThreshold(measure, t, best, tuple(tried), (u, wrong), fitted, at_edge, score)


def uncertainty_and_errors(
    predictions: Predictions,
    measure: str,
    temperature: float = 1.0,
    score: Callable[[Predictions], Array] | None = None,
) -> tuple[Array, Array]:
    """(u, wrong) of the rows whose class was in training, under this temperature.

    A fitted score reads the logits that it was fitted to, whatever the temperature of the probability beside it.
    `mc-dropout` judges the answers of the mean under dropout by its entropy, as benchmark `selective` does.
    """
    measure = measures.canonical(measure, predictions)
    of_logits = measure in measures.registry and "logits" in measures.registry[measure].needs
    if temperature != 1 and not (of_logits or score is not None):
        raise BadInput(f"A temperature does not change the measure {measure}: leave it out.")
    predictions, measure = resolve_measure(predictions, measure)
    scaled = predictions if temperature == 1 else calibration.Temperature(temperature)(predictions)
    seen = summary(scaled)
    u = measures.uncertainty(measure, scaled) if score is None else score(predictions)
    return u[seen.labelled], ~seen.outcomes().correct


def stratified_split(predictions: Predictions, rows: int, seed: int = 0) -> tuple[Array, Array]:
    """(chosen, rest): exactly `rows` rows, of which every class gives its share, one row more or less.

    Rows are sorted by class, at random within one, and every (n/rows)-th is taken from a random start: each row has the
    same chance, so that the rest is a sample of the same population, rare classes too. Rows are identified by their
    index: models that answered the same images are divided alike.
    """
    n = len(predictions)
    draws = np.random.PCG64(seed).random_raw(n + 1)  # raw bits: NumPy may change its permutations
    by_key = np.argsort(predictions.index, kind="stable")
    order = by_key[np.lexsort((draws[1:], np.asarray(predictions.labels)[by_key]))]
    passed = (np.arange(n + 1) * rows + int(draws[0] % np.uint64(n))) // n
    chosen = passed[1:] > passed[:-1]
    return np.sort(order[chosen]), np.sort(order[~chosen])


def _known(predictions: Predictions) -> Predictions:
    assert predictions.in_distribution is not None
    if not predictions.in_distribution.any():
        raise BadInput("Every row is of a class that was not in training; a guarantee needs rows that can be right.")
    return predictions if predictions.in_distribution.all() else predictions.take(predictions.in_distribution)


def _fit_rows(wanted: int | None, n: int) -> int:
    rows = max(2, min(n // FIT_SHARE, FIT_MOST)) if wanted is None else wanted
    if not 2 <= rows < n:
        raise BadInput(f"A temperature is fitted on at least 2 rows and leaves at least one; {rows} of {n} do not.")
    return rows


def _temperature(value: Any) -> float:
    try:
        t = float(value)
    except (TypeError, ValueError):
        t = math.nan
    if not (0 < t < math.inf):
        raise BadInput(f"The temperature is {value}; it must be a number above 0, or fit.")
    return t
