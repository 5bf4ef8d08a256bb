"""Figures of scorecards and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from nescio.analysis.curves import GUIDES, corp_points
from nescio.arrays.types import Array
from nescio.report.blocks import Figure, Panel
from nescio.report.charts.curves import (
    corp_chart,
    cost_chart,
    histogram_chart,
    models_chart,
    reliability_chart,
    risk_coverage_chart,
)
from nescio.report.charts.points import intervals_chart
from nescio.report.charts.style import Chart
from nescio.report.labels import measure_sort_key
from nescio.report.scorecards.questions import model_name
from nescio.report.scorecards.tables import comparison_label
from nescio.rows import Row

if TYPE_CHECKING:
    from nescio.analysis.curves import Curves
    from nescio.analysis.results import Comparison

CAPTIONS = {  # kind of figure → title, caption
    "risk": (
        "Risk–coverage curve",
        "The selective risk is the error rate of the predictions that are kept; the coverage is their share. "
        "Predictions are kept in order of confidence. Lower is better. Risks at very low coverages may be cut off.",
    ),
    "reliability": (
        "Reliability diagram",
        "Accuracy against mean confidence in each bin. The dot size is the number of rows. Dots below the diagonal are "
        "overconfident, dots above it underconfident.",
    ),
    "corp": (
        "Reliability diagram without bins (CORP)",
        "Isotonic fit of accuracy against confidence. A calibrated model stays inside the band at nine of ten "
        "confidences.",
    ),
    "cost": (
        "Cost curve",
        "A prediction that is wrong or out-of-distribution costs 1; abstaining costs the value on the axis. The "
        "threshold is the best one at every cost. Lower is better.",
    ),
    "histogram": (
        "Uncertainty of right, wrong and out-of-distribution predictions",
        "Less overlap means better detection. The outermost bins include all values beyond them.",
    ),
    "models": ("Risk–coverage curves", "Lower is better. If curves cross, the better model depends on the coverage."),
    "intervals": (
        "Values with intervals",
        "The accent colour marks models that are not significantly different from the best.",
    ),
}

PAGE_POINTS, MIN_POINTS = 40_000, 50  # points of all curves of a page, and minimum of one curve


def measures_of(curves: Curves) -> list[str]:
    """Return the measures of a scorecard's curves, msp first."""
    names = dict.fromkeys([*curves.get("risk_coverage", {}), *curves.get("histogram", {})])
    return sorted((name for name in names if name not in GUIDES), key=measure_sort_key)


def thin_curves(curves: Curves, models: int) -> Curves:
    """Reduce the points of risk–coverage curves if many models share the page."""
    lines = curves.get("risk_coverage") or {}
    max_points = max(MIN_POINTS, PAGE_POINTS // (models * max(1, len(lines))))

    def thin(values: Array) -> Array:
        positions = [round(number * (len(values) - 1) / (max_points - 1)) for number in range(max_points)]
        return values if len(values) <= max_points else np.asarray(values)[positions]

    return {**curves, "risk_coverage": {name: (thin(coverage), thin(risk)) for name, (coverage, risk) in lines.items()}}


def _figure(kind: str, key: str, chart: Callable[[], Chart]) -> Figure:
    return Figure(key, *CAPTIONS[kind], chart, kind=kind)


def scorecard_panel(curves: Curves, number: int) -> Panel:
    """Return the figures of one model; `number` makes their keys unique."""
    measures = measures_of(curves)
    first = measures[0] if measures else None
    charts: dict[str, Callable[[], Chart]] = {}
    if curves.get("risk_coverage"):
        charts["risk"] = lambda: risk_coverage_chart(curves["risk_coverage"], first)
    if curves.get("reliability"):
        charts["reliability"] = lambda: reliability_chart(curves["reliability"])
    if curves.get("corp"):
        charts["corp"] = lambda: corp_chart(corp_points(curves["corp"]))
    if "cost" in curves:
        charts["cost"] = lambda: cost_chart(curves["cost"](), first)
    if curves.get("histogram"):
        charts["histogram"] = lambda: histogram_chart(curves["histogram"], first)
    figures = [_figure(kind, f"{kind}-{number}", chart) for kind, chart in charts.items()]
    return Panel(figures, "Measure", measures)


def models_panel(curves: Mapping[str, Curves]) -> Panel:
    """Return the risk–coverage curves of several models."""
    lines = {name: lines["risk_coverage"] for name, lines in curves.items() if lines.get("risk_coverage")}
    measures = sorted(
        {name: None for line in lines.values() for name in line if name not in GUIDES}, key=measure_sort_key
    )
    figures = [_figure("models", "models", lambda: models_chart(lines, measures[0]))] if measures else []
    return Panel(figures, "Measure", measures)


def comparison_panel(comparison: Comparison) -> Panel:
    """Return the values of all models with intervals, by metric."""
    points = interval_points(comparison)
    figures = [_figure("intervals", "intervals", lambda: intervals_chart(points))] if points else []
    return Panel(figures, "Metric", list(dict.fromkeys(str(point["question"]) for point in points)))


def interval_points(comparison: Comparison) -> list[Row]:
    """Return the rows of a comparison as points of a figure; metrics without a better direction are left out."""
    fields = ("rank", "value", "low", "high", "best")
    return [
        {"question": comparison_label(row), "model": model_name(row)} | {name: row.get(name) for name in fields}
        for row in comparison.rows
        if row.get("best") is not None
    ]
