"""Charts, all built of the same parts: scales, axes, legends, guide lines and tooltips.

A plug-in builds further charts from `parts` and `style`: `finish(layers, description)` of layers made with `data`,
`number_axis`, `Series` and `tooltips`.
"""

from nescio.report.charts.curves import (
    Curve,
    bars_chart,
    corp_chart,
    cost_chart,
    curves_figure,
    histogram_chart,
    models_chart,
    reliability_chart,
    risk_coverage_chart,
)
from nescio.report.charts.levels import Box, box_chart, levels_chart, levels_figure
from nescio.report.charts.points import (
    NAMED_POINTS,
    OTHERS,
    changes_chart,
    dots_chart,
    heat_chart,
    heat_figure,
    intervals_chart,
    scatter_chart,
)
from nescio.report.charts.style import DARK, FONT, PAPER, SELECTED, Chart, on_page, on_paper

__all__ = [
    "DARK",
    "FONT",
    "NAMED_POINTS",
    "OTHERS",
    "PAPER",
    "SELECTED",
    "Box",
    "Chart",
    "Curve",
    "bars_chart",
    "box_chart",
    "changes_chart",
    "corp_chart",
    "cost_chart",
    "curves_figure",
    "dots_chart",
    "heat_chart",
    "heat_figure",
    "histogram_chart",
    "intervals_chart",
    "levels_chart",
    "levels_figure",
    "models_chart",
    "on_page",
    "on_paper",
    "reliability_chart",
    "risk_coverage_chart",
    "scatter_chart",
]
