"""Points of risk–coverage curves, reliability diagrams and histograms, from what a scorecard keeps of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

OPTIMAL, RANDOM = "optimal", "random"  # lines beside the measures of a risk–coverage diagram
GUIDES = (OPTIMAL, RANDOM)
POINTS = 400  # of a risk–coverage curve: more cannot be seen
BINS = 30  # of a histogram
TAILS = (0.005, 0.995)  # quantiles between which a histogram is drawn: densities have far outliers


def curves_of(versions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`reliability`, `risk_coverage` and `histogram`, as far as the raw and calibrated versions of a scorecard allow.

    A version holds `wrong` (n,), `u` {measure: (n,)}, `out` {measure: {set: (n,)}} and `answers`.
    """
    from nescio.metrics import reliability_curve

    curves: dict[str, Any] = {}
    for name, version in versions.items():
        if version.get("answers") is not None:
            bins = reliability_curve(version["answers"])
            curves.setdefault("reliability", {})[name] = bins.count, bins.confidence, bins.accuracy
    raw = versions.get("raw", {})
    if raw.get("wrong") is None or not raw.get("u"):
        return curves
    wrong, outside = np.asarray(raw["wrong"], bool), raw.get("out") or {}
    curves["risk_coverage"] = _risk_coverage(raw["u"], wrong)
    curves["histogram"] = {
        measure: _histogram(np.asarray(u), wrong, outside.get(measure, {})) for measure, u in raw["u"].items()
    }
    return curves


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
