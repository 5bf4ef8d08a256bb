"""Which measure ranks wrong answers best, and which cannot be told from it: DeLong's paired test of AUROCs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio.errors import Undefined

Array = NDArray[Any]


@dataclass(frozen=True)
class BestMeasure:
    """The measure with the highest AUROC; `equals` are those that cannot be told from it, itself included."""

    name: str
    auroc: float
    equals: tuple[str, ...]


def best_ranking(measures: Mapping[str, Any], positive: Any, level: float = 0.95) -> BestMeasure:
    """The measure that ranks positive rows highest, and its equals by DeLong's paired test with Holm's adjustment.

    measures  u (n,) by name, all of the same rows
    """
    positive = np.asarray(positive, bool)
    if min(positive.sum(), (~positive).sum()) < 2:
        raise Undefined("Two rows of each kind are needed to tell measures apart.")
    names = list(measures)
    above, below = zip(*(_placements(np.asarray(measures[name]), positive) for name in names), strict=True)
    areas = np.array([part.mean() for part in above])
    best = int(np.argmax(areas))
    covariance = np.cov(above) / positive.sum() + np.cov(below) / (~positive).sum()
    covariance = np.atleast_2d(covariance)
    p = {}
    for at, name in enumerate(names):
        if at != best:
            variance = covariance[best, best] + covariance[at, at] - 2 * covariance[best, at]
            p[name] = _two_sided(areas[best] - areas[at], variance)
    return BestMeasure(names[best], float(areas[best]), (names[best], *_not_rejected(p, 1 - level)))


def _placements(u: Array, positive: Array) -> tuple[Array, Array]:
    """(of each positive row the share of negative ones below it, of each negative row the share of positive above it)

    Ties count half; both average to the AUROC. DeLong, DeLong and Clarke-Pearson 1988.
    """
    high, low = u[positive], u[~positive]
    return _share_below(high, np.sort(low)), 1 - _share_below(low, np.sort(high))


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
