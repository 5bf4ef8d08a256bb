"""Abstention thresholds with a guaranteed maximum selective risk.

    guarantee = ltt(u, wrong, risk=0.01, delta=0.05)
    guarantee.threshold                            # accept rows with u ≤ threshold, abstain from the others

With probability 1 − delta over the rows, at most a share `risk` of the accepted new rows of the same distribution is
wrong, whatever the calibration of the model. Thresholds are ends of tie groups.

Notation: n rows; e of the m rows with u ≤ t are wrong. Given m, e is binomial with the selective risk at t for any
model. Therefore an exact binomial limit holds for a threshold that was fixed beforehand. Thresholds at fixed ranks of
the same rows are valid too wherever the selective risk does not fall as more rows are accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from nescio import measures
from nescio.analysis import calibration
from nescio.analysis.evaluation_rows import resolve_measure
from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.measures import summary
from nescio.metrics import Ranking, as_share, ranking, row_count
from nescio.predictions import Predictions, same_rows

STARTS, GRID = 5, 100  # Learn-then-Test: number of starts of the sequence, and of tested thresholds
FIT_DIVISOR, MAX_FIT_ROWS = 10, 5000  # a temperature is fitted on a tenth of the rows, at most 5,000
MIN_RISK = 1e-12  # minimum risk; below, the limits of n and n + 1 rows are equal in float64
REPEATS = 20  # number of resamples for the estimated coverage with more rows


@dataclass(frozen=True)
class Guarantee:
    """A threshold and its guarantee: accept rows with u ≤ threshold, abstain from the others.

    threshold  None if no threshold attains the risk
    bound      upper limit of the selective risk on new rows, with probability 1 − delta over the rows
    level      share of delta of one test
    smallest_limit  smallest limit of any threshold if none attains the risk; no guarantee, as errors selected it
    """

    method: str
    risk: float | None  # maximum risk; None if a coverage is required
    delta: float
    level: float
    n: int
    threshold: float | None = None
    accepted: int = 0
    errors: int = 0
    bound: float | None = None
    smallest_limit: float | None = None

    @property
    def attainable(self) -> bool:
        return self.threshold is not None

    @property
    def coverage(self) -> float:
        return self.accepted / self.n


# ---- one threshold, one limit


def upper_limit(errors: ArrayLike, rows: ArrayLike, delta: float) -> Any:
    """Upper limit of the risk at confidence 1 − delta, given the errors among the rows (Clopper–Pearson).

    The b with P(Binomial(m, b) ≤ e) = delta, the inverse of the exact binomial tail: 1 − delta^(1/m) for e = 0, and 1
    for e = m. Source: Geifman and El-Yaniv 2017, §3.
    """
    from scipy.special import betainccinv

    e, m = np.asarray(errors, np.float64), np.asarray(rows, np.float64)
    limit = np.where(e < m, betainccinv(e + 1, np.maximum(m - e, 1), delta), 1.0)
    limit = np.where(e == 0, -np.expm1(np.log(delta) / m), limit)
    return limit if limit.ndim else float(limit)


def rows_needed(risk: float, delta: float) -> int:
    """The smallest number of accepted rows that can guarantee this risk without errors."""
    if risk < MIN_RISK:
        raise BadInput(f"risk is {risk}, which no number of rows can guarantee; give at least {MIN_RISK}.")
    m = max(1, math.floor(math.log(delta) / math.log1p(-risk)))
    while upper_limit(0, m, delta) > risk:
        m += 1
    return m


def at_coverage(u: ArrayLike, wrong: ArrayLike, coverage: float, delta: float = 0.05) -> Guarantee:
    """The threshold that accepts the most confident `coverage` of the rows and their ties, with its risk limit.

    The rank does not depend on errors, so the exact limit at the whole delta holds.
    """
    r = ranking(u, wrong, "wrong")
    _probability(delta, "delta")
    accepted_rows = row_count(coverage, r.n, "coverage")
    if accepted_rows == 0:
        raise BadInput("coverage is 0, which accepts no row; give a share above 0.")
    return _guarantee(r, int(np.searchsorted(r.ends, accepted_rows)), "coverage", None, delta, delta)


# ---- the largest coverage at a maximum risk


def sgr(u: ArrayLike, wrong: ArrayLike, risk: float, delta: float = 0.05) -> Guarantee:
    """Selection with guaranteed risk: bisection for the largest coverage whose risk limit is at most `risk`.

    At most k = ⌈log₂ n⌉ thresholds are tested, each by `upper_limit` at delta/k, so that all limits hold jointly.
    Coverages that cannot be guaranteed even without errors are not tested. `bound` is the limit of the
    chosen threshold. Source: Geifman and El-Yaniv 2017, §3.
    """
    r = _checked_ranking(u, wrong, risk, delta)
    tests = max(1, math.ceil(math.log2(r.n)))
    level = delta / tests
    unattainable = low = int(np.searchsorted(r.ends, rows_needed(risk, level))) - 1
    high = len(r.ends) - 1
    for _ in range(tests):
        if low == high:
            break
        middle = (low + high + 1) // 2
        if upper_limit(r.hits[middle], r.ends[middle], level) <= risk:
            low = middle
        else:
            high = middle - 1
    return _guarantee(r, None if low == unattainable else low, "sgr", risk, delta, level)


def ltt(
    u: ArrayLike, wrong: ArrayLike, risk: float, delta: float = 0.05, *, starts: int = STARTS, thresholds: int = GRID
) -> Guarantee:
    """Learn-then-Test: thresholds are tested in a fixed order, the most restrictive first, by exact binomial p-values.

    Hypothesis H_t: the selective risk at t is above `risk`. Its p = P(Binomial(m, risk) ≤ e), and p ≤ level if limit ≤
    risk. Plain fixed-sequence testing (starts = 1) begins at the smallest number of rows m₀ that could be guaranteed,
    where one error ends it. Therefore several starts share delta, at m₀·(n/m₀)^(i/starts) rows. A rejected threshold
    passes its level on to the next one (the fallback procedure), so that no rejection is wrong with probability 1 −
    delta. The bound is the tested risk itself. Source: Angelopoulos et al. 2021; Wiens 2003.
    """
    r = _checked_ranking(u, wrong, risk, delta)
    if starts < 1 or thresholds < 1:
        raise BadInput(f"starts is {starts} and thresholds is {thresholds}; both must be at least 1.")
    level = delta / starts
    min_rows = rows_needed(risk, level)
    if min_rows > r.n:
        return _guarantee(r, None, "ltt", risk, delta, level)
    start_groups = np.searchsorted(r.ends, min_rows * (r.n / min_rows) ** (np.arange(starts) / starts))
    tested_groups = np.union1d(start_groups, np.searchsorted(r.ends, np.linspace(min_rows, r.n, thresholds)))
    start_levels = np.bincount(start_groups, minlength=len(r.ends)) * level
    accepted_group, level_left = None, 0.0
    for group in tested_groups:
        level_left += start_levels[group]
        if level_left and upper_limit(r.hits[group], r.ends[group], level_left) <= risk:
            accepted_group = int(group)
        else:
            level_left = 0.0
    return _guarantee(r, accepted_group, "ltt", risk, delta, level)


METHODS = {"ltt": ltt, "sgr": sgr}


def expected_coverage(
    u: ArrayLike, wrong: ArrayLike, risk: float, delta: float = 0.05, *, rows: int, method: str = "ltt", seed: int = 0
) -> float:
    """Estimate the coverage of a method with this number of rows: its mean on resamples of that size.

    The rows replace the population, so this is no guarantee. A resample without an attainable threshold counts as 0.
    """
    u, wrong = np.asarray(u), np.asarray(wrong)
    stream = np.random.default_rng(seed)
    draws = (stream.integers(len(u), size=rows) for _ in range(REPEATS))
    return float(np.mean([METHODS[method](u[draw], wrong[draw], risk, delta).coverage for draw in draws]))


def _checked_ranking(u: ArrayLike, wrong: ArrayLike, risk: float, delta: float) -> Ranking:
    _probability(risk, "risk")
    _probability(delta, "delta")
    return ranking(u, wrong, "wrong")


def _probability(value: float, name: str) -> None:
    if not 0 < as_share(value, name) < 1:
        raise BadInput(f"{name} is {value}; it must lie between 0 and 1.")


def _guarantee(r: Ranking, group: int | None, method: str, risk: float | None, delta: float, level: float) -> Guarantee:
    if group is None:
        smallest_limit = float(np.min(upper_limit(r.hits, r.ends, level)))
        return Guarantee(method, risk, delta, level, r.n, smallest_limit=smallest_limit)
    errors, accepted = int(r.hits[group]), int(r.ends[group])
    bound = risk if method == "ltt" else upper_limit(errors, accepted, level)
    return Guarantee(method, risk, delta, level, r.n, float(r.values[group]), accepted, errors, bound)


# ---- predictions


@dataclass(frozen=True)
class ThresholdOutcome:
    """Numbers of accepted rows and of errors of a threshold on labelled rows."""

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

    fitted   number of rows that the temperature was fitted on; the guarantee does not use them
    at_edge  the temperature is at the edge of its range, so these rows do not determine it
    guarantees  guarantees of all methods; each has a share of delta
    rows     (u, wrong) of the rows behind the guarantee
    """

    measure: str
    temperature: float
    guarantee: Guarantee
    guarantees: tuple[Guarantee, ...]
    rows: tuple[Array, Array] = field(repr=False, compare=False)
    fitted: int = 0
    at_edge: bool = False
    score: Callable[[Predictions], Array] | None = field(default=None, repr=False, compare=False)

    def attains(self, risk: float, delta: float) -> bool:
        """Whether the same rows and methods give a threshold for another risk and delta."""
        u, wrong = self.rows
        return any(
            METHODS[one.method](u, wrong, risk, delta / len(self.guarantees)).attainable for one in self.guarantees
        )

    def with_more_rows(self, factor: int, seed: int = 0) -> float:
        """Estimated coverage under the same guarantee with `factor` times the rows."""
        chosen_guarantee = self.guarantee
        if chosen_guarantee.risk is None:
            raise BadInput("With a required coverage, more rows do not change the coverage.")
        u, wrong = self.rows
        rows, delta = factor * chosen_guarantee.n, chosen_guarantee.delta / len(self.guarantees)
        return max(
            expected_coverage(u, wrong, chosen_guarantee.risk, delta, rows=rows, method=guarantee.method, seed=seed)
            for guarantee in self.guarantees
        )

    def evaluate(self, predictions: Predictions) -> ThresholdOutcome:
        """Outcome of the threshold on the in-distribution rows of other predictions."""
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
    """Set the threshold that guarantees a maximum risk or a coverage, on rows that the temperature was not fitted on.

    method       "ltt", "sgr", or "both": each with half of delta; the one with the larger coverage is used
    temperature  a number that does not depend on these rows, or "fit": on `val`, else on `fit_rows` of these rows (a
                 tenth, at most 5,000), which are stratified by class and then omitted
    score        the fitted measure, if the measure needs reference rows
    """
    if (risk is None) == (coverage is None):
        raise BadInput("Give either a risk or a coverage: one determines the other.")
    if method not in (*METHODS, "both"):
        raise BadInput(f"There is no method named {method!r}. There are: {', '.join(METHODS)}, both.")
    if predictions.labels is None and not predictions.has_outcomes:
        raise BadInput("There are no labels: a guarantee needs rows with in_distribution errors.")
    if fit_rows is not None and (temperature != "fit" or val is not None):
        raise BadInput("fit_rows has no effect: no temperature is fitted on these rows.")
    if val is not None and temperature != "fit":
        raise BadInput("temperature and val are both given: give one of them.")
    if val is not None and same_rows(predictions, val):
        raise BadInput("val has the rows behind the guarantee: fit the temperature on other rows.")
    in_distribution = predictions if predictions.in_distribution is None else _in_distribution(predictions)
    measure = measures.canonical(measure, predictions)
    guarantee_rows, fitted_rows, at_edge = np.arange(len(in_distribution)), 0, False
    if temperature == "fit":
        if val is None:
            temperature_rows, guarantee_rows = stratified_split(
                in_distribution, _fit_rows(fit_rows, len(in_distribution)), seed
            )
            val = in_distribution.take(temperature_rows)
        fit = calibration.temperature(val)
        fitted_rows, temperature, at_edge = len(val), fit.temperature, fit.at_edge
    t = _temperature(temperature)
    u, wrong = (array[guarantee_rows] for array in uncertainty_and_errors(in_distribution, measure, t, score))
    if len(u) > 1 and (u == u[0]).all():
        single_draw = (
            measure in measures.registry and measures.registry[measure].needs_draws and in_distribution.draws == 1
        )
        cause = "it compares several draws, and these predictions have one" if single_draw else "it cannot rank them"
        raise BadInput(f"The measure {measure!r} is {u[0]:g} for all {len(u):,} rows: {cause}; use entropy instead.")
    if risk is None:
        assert coverage is not None
        guarantees = [at_coverage(u, wrong, coverage, delta)]
    else:
        names = list(METHODS) if method == "both" else [method]
        guarantees = [METHODS[name](u, wrong, risk, delta / len(names)) for name in names]
    best = replace(
        max(guarantees, key=lambda guarantee: guarantee.accepted), delta=delta
    )  # the selected threshold has all of delta
    return GuaranteedThreshold(measure, t, best, tuple(guarantees), (u, wrong), fitted_rows, at_edge, score)


def uncertainty_and_errors(
    predictions: Predictions,
    measure: str,
    temperature: float = 1.0,
    score: Callable[[Predictions], Array] | None = None,
) -> tuple[Array, Array]:
    """(u, wrong) of the in-distribution rows at a temperature.

    A fitted score reads unscaled logits.
    `mc-dropout` is the entropy of the mean prediction under dropout.
    """
    measure = measures.canonical(measure, predictions)
    of_logits = measure in measures.registry and "logits" in measures.registry[measure].needs
    if temperature != 1 and not (of_logits or score is not None):
        raise BadInput(f"A temperature does not change the measure {measure}: omit it.")
    predictions, measure = resolve_measure(predictions, measure)
    scaled = predictions if temperature == 1 else calibration.Temperature(temperature)(predictions)
    scaled_summary = summary(scaled)
    u = measures.uncertainty(measure, scaled) if score is None else score(predictions)
    return u[scaled_summary.labelled], ~scaled_summary.outcomes().correct


def stratified_split(predictions: Predictions, rows: int, seed: int = 0) -> tuple[Array, Array]:
    """Split into `rows` rows stratified by class, up to one row per class, and the remaining rows.

    Rows are sorted by class, and randomly within a class. Every (n/rows)-th row from a random start is chosen, so each
    row has the same probability and the remaining rows are a sample of the same population. The split depends on the
    index only, so models with the same images get the same split.
    """
    n = len(predictions)
    draws = np.random.PCG64(seed).random_raw(n + 1)  # raw bits: NumPy may change its permutations
    by_key = np.argsort(predictions.index, kind="stable")
    order = by_key[np.lexsort((draws[1:], np.asarray(predictions.labels)[by_key]))]
    passed = (np.arange(n + 1) * rows + int(draws[0] % np.uint64(n))) // n
    chosen = passed[1:] > passed[:-1]
    return np.sort(order[chosen]), np.sort(order[~chosen])


def _in_distribution(predictions: Predictions) -> Predictions:
    assert predictions.in_distribution is not None
    if not predictions.in_distribution.any():
        raise BadInput("Every row is out-of-distribution; a guarantee needs in-distribution rows.")
    return predictions if predictions.in_distribution.all() else predictions.take(predictions.in_distribution)


def _fit_rows(fit_rows: int | None, n: int) -> int:
    rows = max(2, min(n // FIT_DIVISOR, MAX_FIT_ROWS)) if fit_rows is None else fit_rows
    if not 2 <= rows < n:
        raise BadInput(f"A temperature is fitted on at least 2 rows and at most all but one, got {rows} of {n}.")
    return rows


def _temperature(value: float | str) -> float:
    try:
        t = float(value)
    except (TypeError, ValueError):
        t = math.nan
    if not (0 < t < math.inf):
        raise BadInput(f"The temperature is {value}; it must be a number above 0, or fit.")
    return t
