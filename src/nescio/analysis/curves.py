"""Scores behind a scorecard, and the points of its curves: risk–coverage, reliability, histograms, costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypedDict

import numpy as np

from nescio.arrays.types import Array
from nescio.metrics import DEFAULT_OOD_SHARE, CorpCurve, Outcomes

ByMeasure = dict[str, Array]  # measure → (n,)
BySet = dict[str, ByMeasure]  # measure → OOD set → (m,)


@dataclass
class ValidationScores:
    """Uncertainties of the validation rows that have labels, and of OOD validation sets."""

    uncertainty: ByMeasure = field(default_factory=dict)
    ood: BySet = field(default_factory=dict)
    wrong: Array | None = None


@dataclass
class ScoreSet:
    """Uncertainties of one version of a scorecard, raw or calibrated.

    wrong      (n,) which in-distribution rows are misclassified; None without labels
    outcomes   predictions compared with labels; None if neither logits nor a confidence is known
    ood_share  share of OOD rows in mixtures
    """

    uncertainty: ByMeasure = field(default_factory=dict)
    ood: BySet = field(default_factory=dict)
    wrong: Array | None = None
    outcomes: Outcomes | None = None
    ood_share: float = DEFAULT_OOD_SHARE
    val: ValidationScores = field(default_factory=ValidationScores)


OPTIMAL, RANDOM = "optimal", "random"  # guide lines of a risk–coverage diagram
GUIDES = (OPTIMAL, RANDOM)
POINTS = 400  # points of a risk–coverage curve, which are enough for a page
BINS = 30  # bins of a histogram
CORP_POINTS = 60  # points of a reliability diagram without bins
TAILS = (0.005, 0.995)  # quantiles that limit the axis of a histogram, because densities have far outliers


Line = tuple[Array, Array]  # x and y of every point


class Histogram(TypedDict):
    """Counts of rows in shared bins; `out` maps an OOD set to its counts."""

    edges: Array
    right: Array
    wrong: Array
    out: dict[str, Array]


class Curves(TypedDict, total=False):
    """Points of the figures of a scorecard; a figure without data is missing.

    reliability    version → rows, confidence and accuracy of every bin
    corp           version → calibration curve without bins
    risk_coverage  measure or guide → (coverage, risk)
    histogram      measure → counts
    cost           computes measure or guide → OOD set → (prices, costs)
    """

    reliability: dict[str, tuple[Array, Array, Array]]
    corp: dict[str, CorpCurve]
    risk_coverage: dict[str, Line]
    histogram: dict[str, Histogram]
    cost: Callable[[], dict[str, dict[str, Line]]]


def curves_of(raw: ScoreSet | None, calibrated: ScoreSet | None = None) -> Curves:
    """Curves of a scorecard; `cost` is computed when called, because only pages draw it."""
    from nescio.metrics import corp_curve, reliability_curve

    curves: Curves = {}
    for name, version in {"raw": raw, "calibrated": calibrated}.items():
        if version is not None and version.outcomes is not None:
            bins = reliability_curve(version.outcomes)
            curves.setdefault("reliability", {})[name] = bins.count, bins.confidence, bins.accuracy
            curves.setdefault("corp", {})[name] = corp_curve(version.outcomes)
    if raw is None or raw.wrong is None or not raw.uncertainty:
        return curves
    wrong = np.asarray(raw.wrong, bool)
    curves["risk_coverage"] = _risk_coverage(raw.uncertainty, wrong)
    curves["histogram"] = {
        measure: _histogram(np.asarray(u), wrong, raw.ood.get(measure, {})) for measure, u in raw.uncertainty.items()
    }
    if any(raw.ood.values()):
        curves["cost"] = partial(_costs, raw, wrong)
    return curves


def corp_points(curves: Mapping[str, CorpCurve]) -> dict[str, dict[str, Array]]:
    """At most 60 points of every curve, with the band of a calibrated model."""
    from nescio.metrics import corp_band

    lines = {}
    for name, curve in curves.items():
        points = np.unique(np.linspace(0, len(curve.count) - 1, CORP_POINTS).round().astype(int))
        low, high = corp_band(curve, points)
        line = {"confidence": curve.confidence[points], "calibrated": curve.calibrated[points]}
        lines[name] = {**line, "low": low, "high": high}
    return lines


def _costs(raw: ScoreSet, wrong: Array) -> dict[str, dict[str, Line]]:
    """(prices, costs) of every measure and OOD set, and of the guides: the best possible order, and a random one.

    The share of OOD rows is fixed, so the guides are the same for all sets.
    """
    from nescio.metrics import ABSTENTION_PRICES, Mixture, cost_curve

    lines = {
        measure: {
            name: cost_curve(Mixture(raw.uncertainty[measure], wrong, u, raw.ood_share).ranking())
            for name, u in sets.items()
        }
        for measure, sets in raw.ood.items()
    }
    failures = raw.ood_share + (1 - raw.ood_share) * float(np.mean(wrong))
    prices = np.array(ABSTENTION_PRICES)
    guides = {OPTIMAL: {"": (prices, prices * failures)}, RANDOM: {"": (prices, np.minimum(prices, failures))}}
    return lines | guides


def _risk_coverage(measures: Mapping[str, Array], wrong: Array) -> dict[str, Line]:
    """(coverage, risk) of every measure, of the best possible order and of a random one."""
    from nescio.metrics import risk_coverage

    n, errors = len(wrong), int(wrong.sum())
    points = np.unique(np.linspace(0, n - 1, POINTS).round().astype(int))
    lines = {}
    for measure, u in measures.items():
        coverage, risk = risk_coverage(u, wrong)
        lines[measure] = coverage[points], risk[points]
    accepted = points + 1
    lines[OPTIMAL] = accepted / n, np.maximum(0, accepted - (n - errors)) / accepted
    lines[RANDOM] = np.array([0.0, 1.0]), np.full(2, errors / n)
    return lines


def _histogram(u: Array, wrong: Array, ood: Mapping[str, Array]) -> Histogram:
    """Counts of right, wrong and out-of-distribution rows in shared bins; the outermost bins include the tails."""
    pooled = np.concatenate([u, *ood.values()]).astype(np.float64)
    low, high = np.quantile(pooled, TAILS)
    if not high > low:
        low, high = float(pooled.min()), float(pooled.max())
    if not high > low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)

    def count(values: Array) -> Array:
        return np.histogram(np.clip(np.asarray(values, np.float64), low, high), edges)[0]

    return {
        "edges": edges,
        "right": count(u[~wrong]),
        "wrong": count(u[wrong]),
        "out": {name: count(values) for name, values in ood.items()},
    }
