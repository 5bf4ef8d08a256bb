"""Tests of significance: Holm's adjustment, DeLong's paired test of AUROCs, and the comparison with the best line.

Sources: Holm 1979; DeLong, DeLong and Clarke-Pearson 1988; Welch 1947.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance
from typing import Any, Generic, TypeVar

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import Undefined
from nescio.rows import Row

Line = TypeVar("Line", bound=Hashable)  # a name, or the columns that identify a line of a table
Runs = Mapping[Any, float]  # run (such as a data seed) → value
ROUNDING = 1e-12  # maximum rounding error of a sum
MIN_VARIANCE = 1e-18  # variance below which measures are equal
MAX_FREEDOM = 1e9  # degrees of freedom, if only the shared variance is known
MIN_RUNS = 3  # minimum number of common runs for a paired t-test; with two it has hardly any power
PAIRED, WELCH, DELONG = "paired t-test", "Welch's t-test", "DeLong's test"


def holm_adjusted(p: Mapping[Line, float | None]) -> dict[Line, float | None]:
    """Holm's adjusted p-values, the smallest first; comparisons without a p-value count and come last as None.

    adjusted_(i) = max_{j ≤ i} min(1, (m − j + 1)·p_(j)), with the m values of p in rising order.
    """
    running, adjusted = 0.0, dict[Line, float | None]()
    tested = {line: value for line, value in p.items() if value is not None}
    for position, line in enumerate(sorted(tested, key=lambda line: tested[line])):
        running = max(running, min(1.0, (len(p) - position) * tested[line]))
        adjusted[line] = running
    return adjusted | {line: None for line, value in p.items() if value is None}


def not_rejected(adjusted: Mapping[Line, float | None], error: float) -> list[Line]:
    """The comparisons whose adjusted p-value is missing or above the error level."""
    return [line for line, value in adjusted.items() if value is None or value > error]


def bootstrap_p_value(lows: Array, highs: Array | None = None) -> float:
    """Two-sided bootstrap p-value of a difference, 2·min(1 + #{d ≤ 0}, 1 + #{d ≥ 0})/(resamples + 1), at most 1.

    highs  the resampled differences with the bias added, if `lows` are those with the bias subtracted
    """
    highs = lows if highs is None else highs
    not_above, not_below = int((lows <= ROUNDING).sum()), int((highs >= -ROUNDING).sum())
    return min(1.0, 2 * (1 + min(not_above, not_below)) / (len(lows) + 1))


# ---- DeLong: areas under ROC curves of scores of the same rows


@dataclass(frozen=True)
class BestMeasure:
    """The measure with the highest AUROC; `equals` contains it and the measures that are not significantly worse."""

    name: str
    auroc: float
    equals: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class DeLongComponents:
    """Contribution of every row to an AUROC, ties counted half. Subtract the components of two scores of the same rows.

    above    kind → (m,) for each positive row of a kind, the share of negative rows below it
    below    (n,) for each negative row, the share of positive rows above it, with kinds by their weights
    weights  kind → its weight in the area; they sum to 1

    DeLong, DeLong and Clarke-Pearson 1988, for a weighted mean of areas over the same negative rows.
    """

    above: Mapping[str, Array]
    below: Array
    weights: Mapping[str, float]

    @property
    def area(self) -> float:
        return float(sum(weight * self.above[kind].mean() for kind, weight in self.weights.items()))

    @property
    def variance(self) -> float:
        """Variance of the area; rows of every kind are a separate sample."""
        of_kinds = sum(weight**2 * _variance_of_mean(self.above[kind]) for kind, weight in self.weights.items())
        return float(of_kinds + _variance_of_mean(self.below))

    def __sub__(self, other: DeLongComponents) -> DeLongComponents:
        above = {kind: rows - other.above[kind] for kind, rows in self.above.items()}
        return DeLongComponents(above, self.below - other.below, self.weights)


def delong_components(negative: Array, positive: Mapping[str, Array], weights: Mapping[str, float]) -> DeLongComponents:
    """Components of the AUROC, given u of the negative rows and u of each kind of positive rows."""
    ordered = np.sort(negative)
    above = {kind: _share_below(u, ordered) for kind, u in positive.items()}
    below = sum(weight * (1 - _share_below(negative, np.sort(positive[kind]))) for kind, weight in weights.items())
    return DeLongComponents(above, np.asarray(below), weights)


def area_interval(draws: Sequence[DeLongComponents], level: float = 0.95) -> tuple[float, float]:
    """Normal interval of the mean area, from the variance of one area plus the variance between them."""
    areas = np.array([components.area for components in draws])
    variance_between = areas.var(ddof=1) if len(areas) > 1 else 0.0
    spread = math.sqrt(np.mean([components.variance for components in draws]) + variance_between)
    reach = NormalDist().inv_cdf((1 + level) / 2) * spread
    return float(areas.mean() - reach), float(areas.mean() + reach)


def best_measure(measures: Mapping[str, Array], positive: Array, level: float = 0.95) -> BestMeasure:
    """The measure that ranks positive rows highest, with its equals by DeLong's test and Holm's adjustment.

    measures  u (n,) by name, all of the same rows
    """
    positive = np.asarray(positive, bool)
    if min(positive.sum(), (~positive).sum()) < 2:
        raise Undefined("A test of measures needs at least 2 rows of each kind.")
    scores = {name: np.asarray(u) for name, u in measures.items()}
    components = {name: delong_components(u[~positive], {"": u[positive]}, {"": 1.0}) for name, u in scores.items()}
    return best_by_delong(components, level)


def best_by_delong(components: Mapping[str, DeLongComponents], level: float = 0.95) -> BestMeasure:
    """The score of the largest area (the first of equal ones), and those that are not significantly worse."""

    def test(line: str, best: str) -> tuple[None, None, float]:
        difference = components[best] - components[line]
        return None, None, _normal_p_value(difference.area, difference.variance)

    areas = {name: {0: score.area} for name, score in components.items()}
    verdict = compare_with_best(areas, images=(DELONG, test), level=level)
    equals = [name for name in components if name in verdict.equals and name != verdict.best]
    return BestMeasure(verdict.best, areas[verdict.best][0], (verdict.best, *equals))


def _variance_of_mean(rows: Array) -> float:
    return float(np.var(rows, ddof=1) / len(rows))


def _share_below(values: Array, ordered: Array) -> Array:
    left, right = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    return np.asarray((left + right) / (2 * len(ordered)))


def _normal_p_value(difference: float, spread: float) -> float:
    """Two-sided p-value of a normally distributed difference; without variance 1 if it is zero, else 0."""
    if spread <= MIN_VARIANCE:
        return 1.0 if abs(difference) < ROUNDING else 0.0
    return math.erfc(abs(difference) / math.sqrt(2 * spread))


# ---- the best line, and those that are not significantly different from it


@dataclass(frozen=True)
class Verdict(Generic[Line]):
    """The best line, and every other line's difference to it in the form of `Comparison.differences`.

    tests  names of the tests that were possible; empty if there was none
    """

    best: Line
    differences: list[Row]
    tests: tuple[str, ...] = ()
    level: float = 0.95

    @property
    def equals(self) -> set[Line]:
        """The best line, and those whose test did not reject equality; without a test the best alone."""
        adjusted = {row["model"]: row["adjusted"] for row in self.differences if row["adjusted"] is not None}
        return {self.best, *not_rejected(adjusted, 1 - self.level)}


ImageTest = Callable[[Line, Line], tuple[float | None, float | None, float | None]]  # (line, best) → low, high, p


def compare_with_best(
    lines: Mapping[Line, Runs],
    better: str = "higher",
    *,
    noise: Mapping[Line, float] | None = None,
    images: tuple[str, ImageTest[Line]] | None = None,
    level: float = 0.95,
) -> Verdict[Line]:
    """Test every line against the line with the best mean, with Holm's adjustment.

    MIN_RUNS common runs or more: paired t-test. Otherwise the test of `images`, if there is one. Otherwise Welch's
    t-test, if the runs are different ones or `noise` is known. Otherwise no test.

    noise   the variance that all runs of a line share, such as that of their test images
    images  the name of a test of single networks on the same images, and the test
    """
    sign = -1 if better == "lower" else 1
    best = max(lines, key=lambda line: sign * _mean(lines[line]))
    variances = [variance(runs.values()) for runs in lines.values() if len(runs) > 1]
    pooled_variance = fmean(variances) if variances else 0.0
    differences, tests = list[Row](), list[str]()
    for line in sorted(lines, key=lambda line: -sign * _mean(lines[line])):
        if line == best:
            continue
        shared_runs = lines[line].keys() & lines[best].keys()
        test, gap = "", _mean(lines[line]) - _mean(lines[best])
        low = high = p = None
        if len(shared_runs) >= MIN_RUNS:
            test = PAIRED
            gap, low, high, p = _paired(lines[line], lines[best], level)
        elif images is not None:
            test = images[0]
            low, high, p = images[1](line, best)
        elif noise is not None or not shared_runs:
            test = WELCH if noise is None else f"{WELCH} with the variance of images"
            images_noise = noise[line] + noise[best] if noise else 0.0
            low, high, p = _welch(lines[line], lines[best], pooled_variance, images_noise, level)
        tests += [test] if p is not None else []
        limits = {"difference": gap, "low": low, "high": high, "p": p, "adjusted": None}
        differences.append({"model": line, "best": best} | limits)
    adjusted = holm_adjusted({row["model"]: row["p"] for row in differences})
    differences = [row | {"adjusted": adjusted[row["model"]]} for row in differences]
    return Verdict(best, differences, tuple(dict.fromkeys(tests)), level)


def _mean(runs: Runs) -> float:
    return fmean(runs.values())


def _paired(line: Runs, best: Runs, level: float) -> tuple[float, float | None, float | None, float | None]:
    """Paired t-test over the runs that both lines have: difference line − best, its interval, p-value."""
    gaps = [value - best[run] for run, value in line.items() if run in best]
    return fmean(gaps), *_t_test(fmean(gaps), variance(gaps) / len(gaps), len(gaps) - 1, level)


def _welch(
    line: Runs, best: Runs, pooled_variance: float, noise: float, level: float
) -> tuple[float | None, float | None, float | None]:
    """Welch's t-test for runs that are not paired: interval of line − best, p-value.

    pooled_variance  variance of a line with one run; unknown if all lines have one run
    noise            variance of the test images of both lines; conservative if the images are the same
    """
    pair = line, best
    variances = [variance(runs.values()) / len(runs) if len(runs) > 1 else pooled_variance for runs in pair]
    total = sum(variances) + noise
    # Satterthwaite; only runs reduce the degrees of freedom, as there are many images
    lost_freedom = sum(share**2 / max(len(runs) - 1, 1) for share, runs in zip(variances, pair, strict=True))
    freedom = total**2 / lost_freedom if lost_freedom else MAX_FREEDOM if total else 0.0
    return _t_test(_mean(line) - _mean(best), total, freedom, level)


def _t_test(gap: float, noise: float, freedom: float, level: float) -> tuple[float | None, float | None, float | None]:
    """Interval and two-sided p-value of a difference; None without degrees of freedom."""
    from scipy.special import stdtr, stdtrit

    if not freedom > 0:
        return None, None, None
    error = math.sqrt(noise)
    reach = float(stdtrit(freedom, (1 + level) / 2)) * error
    p = 2 * float(stdtr(freedom, -abs(gap) / error)) if error else float(not gap)
    return gap - reach, gap + reach, p
