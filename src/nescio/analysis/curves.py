"""Points of risk–coverage curves, reliability diagrams and histograms, from what a scorecard keeps of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from nescio.metrics import CorpCurve

OPTIMAL, RANDOM = "optimal", "random"  # lines beside the measures of a risk–coverage diagram
GUIDES = (OPTIMAL, RANDOM)
POINTS = 400  # of a risk–coverage curve: more cannot be seen
BINS = 30  # of a histogram
CORP_POINTS = 60  # of a reliability diagram without bins
TAILS = (0.005, 0.995)  # quantiles between which a histogram is drawn: densities have far outliers


def curves_of(versions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`reliability`, `corp`, `risk_coverage`, `histogram` and `cost`, as far as the versions of a scorecard allow.

    A version, raw or calibrated, holds `wrong` (n,), `u` {measure: (n,)}, `out` {measure: {set: (n,)}}, the `share` of
    `out` in mixtures, and `answers`. `cost` is a function of nothing, since only a page draws it.
    """
    from nescio.metrics import corp_curve, reliability_curve

    curves: dict[str, Any] = {}
    for name, version in versions.items():
        if version.get("answers") is not None:
            bins = reliability_curve(version["answers"])
            curves.setdefault("reliability", {})[name] = bins.count, bins.confidence, bins.accuracy
            curves.setdefault("corp", {})[name] = corp_curve(version["answers"])
    raw = versions.get("raw", {})
    if raw.get("wrong") is None or not raw.get("u"):
        return curves
    wrong, outside = np.asarray(raw["wrong"], bool), raw.get("out") or {}
    curves["risk_coverage"] = _risk_coverage(raw["u"], wrong)
    curves["histogram"] = {
        measure: _histogram(np.asarray(u), wrong, outside.get(measure, {})) for measure, u in raw["u"].items()
    }
    if any(outside.values()):
        curves["cost"] = partial(_costs, raw["u"], wrong, outside, raw["share"])
    return curves


def corp_points(curves: Mapping[str, CorpCurve]) -> dict[str, dict[str, Any]]:
    """Diagrams at no more points than can be seen, with the bands in which they would lie if they were calibrated."""
    from nescio.metrics import corp_band

    points = {}
    for name, curve in curves.items():
        at = np.unique(np.linspace(0, len(curve.count) - 1, CORP_POINTS).round().astype(int))
        low, high = corp_band(curve, at)
        line = {"confidence": curve.confidence[at], "calibrated": curve.calibrated[at]}
        points[name] = {**line, "low": low, "high": high}
    return points


def _costs(
    measures: Mapping[str, Any], wrong: Any, outside: Mapping[str, Mapping[str, Any]], share: float
) -> dict[str, dict[str, tuple[Any, Any]]]:
    """(prices, costs) of every measure and out-of-distribution set, and of the guides under the name of a measure: the
    best possible order, and none at all. The share is stated, so that these are the same for all sets."""
    from nescio.metrics import ABSTENTION_PRICES as prices
    from nescio.metrics import Mixture, cost_curve

    lines = {
        measure: {name: cost_curve(Mixture(measures[measure], wrong, u, share).ranking()) for name, u in own.items()}
        for measure, own in outside.items()
    }
    failures = share + (1 - share) * float(np.mean(wrong))
    at = np.array(prices)
    return {**lines, OPTIMAL: {"": (at, at * failures)}, RANDOM: {"": (at, np.minimum(at, failures))}}


def _risk_coverage(measures: Mapping[str, Any], wrong: Any) -> dict[str, tuple[Any, Any]]:
    """(coverage, risk) of every measure, of the best possible order and of a random one."""
    from nescio.metrics import risk_coverage

    n, errors = len(wrong), int(wrong.sum())
    at = np.unique(np.linspace(0, n - 1, POINTS).round().astype(int))
    lines = {}
    for measure, u in measures.items():
        coverage, risk = risk_coverage(u, wrong)
        lines[measure] = coverage[at], risk[at]
    kept = at + 1
    lines[OPTIMAL] = kept / n, np.maximum(0, kept - (n - errors)) / kept
    lines[RANDOM] = np.array([0.0, 1.0]), np.full(2, errors / n)
    return lines


def _histogram(u: Any, wrong: Any, outside: Mapping[str, Any]) -> dict[str, Any]:
    """Counts of right, wrong and out-of-distribution rows in shared bins; the outermost bins hold the far tails."""
    pooled = np.concatenate([u, *outside.values()]).astype(np.float64)
    low, high = np.quantile(pooled, TAILS)
    if not high > low:
        low, high = float(pooled.min()), float(pooled.max())
    if not high > low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)

    def count(values: Any) -> Any:
        return np.histogram(np.clip(np.asarray(values, np.float64), low, high), edges)[0]

    return {
        "edges": edges,
        "right": count(u[~wrong]),
        "wrong": count(u[wrong]),
        "out": {name: count(values) for name, values in outside.items()},
    }
