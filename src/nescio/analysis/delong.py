"""Which measure ranks some rows above others best, and which cannot be told from it: DeLong's paired test of AUROCs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import Undefined


@dataclass(frozen=True)
class BestMeasure:
    """The measure with the highest AUROC; `equals` are those that cannot be told from it, itself included."""

    name: str
    auroc: float
    equals: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Placements:
    """What every row adds to an AUROC, ties counted half; the difference of two is that of two scores on the same rows.

    above    kind → (m,) of each positive row of a kind the share of negative rows below it
    below    (n,) of each negative row the share of positive rows above it, kinds by their weights
    weights  kind → its part in the area; their sum is 1

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
        """Of the area: rows of every kind are a sample of their own."""
        own = sum(weight**2 * _variance(self.above[kind]) for kind, weight in self.weights.items())
        return float(own + _variance(self.below))

    def __sub__(self, other: Placements) -> Placements:
        above = {kind: rows - other.above[kind] for kind, rows in self.above.items()}
        return Placements(above, self.below - other.below, self.weights)


def _variance(rows: Array) -> float:
    """Of the mean of rows."""
    return float(np.var(rows, ddof=1) / len(rows))


def interval(several: Sequence[Placements], level: float = 0.95) -> tuple[float, float]:
    """Of the mean area, by the normal approximation: the variance of one of them, and what sets them apart."""
    from statistics import NormalDist

    areas = np.array([placed.area for placed in several])
    between = areas.var(ddof=1) if len(areas) > 1 else 0.0
    spread = math.sqrt(np.mean([placed.variance for placed in several]) + between)
    reach = NormalDist().inv_cdf((1 + level) / 2) * spread
    return float(areas.mean() - reach), float(areas.mean() + reach)


def placements(negative: Array, positive: Mapping[str, Array], weights: Mapping[str, float]) -> Placements:
    """Of scores u of negative rows and of the kinds of positive ones."""
    ordered = np.sort(negative)
    above = {kind: _share_below(u, ordered) for kind, u in positive.items()}
    below = sum(weight * (1 - _share_below(negative, np.sort(positive[kind]))) for kind, weight in weights.items())
    return Placements(above, np.asarray(below), weights)


def best_ranking(measures: Mapping[str, Any], positive: Any, level: float = 0.95) -> BestMeasure:
    """The measure that ranks positive rows highest, and its equals by DeLong's paired test with Holm's adjustment.

    measures  u (n,) by name, all of the same rows
    """
    positive = np.asarray(positive, bool)
    if min(positive.sum(), (~positive).sum()) < 2:
        raise Undefined("Two rows of each kind are needed to tell measures apart.")
    scores = {name: np.asarray(u) for name, u in measures.items()}
    return best_of({name: placements(u[~positive], {"": u[positive]}, {"": 1.0}) for name, u in scores.items()}, level)


def best_of(placed: Mapping[str, Placements], level: float = 0.95) -> BestMeasure:
    """The score of the largest area, the first of equal ones, and those that cannot be told from it."""
    areas = {name: own.area for name, own in placed.items()}
    best = max(areas, key=lambda name: areas[name])
    differences = {name: placed[best] - own for name, own in placed.items() if name != best}
    p = {name: _two_sided(own.area, own.variance) for name, own in differences.items()}
    return BestMeasure(best, areas[best], (best, *_not_rejected(p, 1 - level)))


def _share_below(values: Array, ordered: Array) -> Array:
    left, right = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    return np.asarray((left + right) / (2 * len(ordered)))


def _two_sided(difference: float, variance: float) -> float:
    """The p-value of a normal difference; equal measures have neither difference nor variance."""
    if variance <= 1e-18:
        return 1.0 if abs(difference) < 1e-12 else 0.0
    return math.erfc(abs(difference) / math.sqrt(2 * variance))


def _not_rejected(p: Mapping[str, float], error: float) -> list[str]:
    """The names that Holm's step-down test at this error does not reject."""
    names = sorted(p, key=lambda name: p[name])
    for place, name in enumerate(names):
        if p[name] * (len(names) - place) > error:
            return names[place:]
    return []
