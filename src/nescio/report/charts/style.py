"""Colours, fonts and configuration of all charts, and their specifications for pages and paper.

Charts use the custom properties of the page's style sheet as colours, so the style sheet alone defines light, dark and
print. `on_paper` replaces them by fixed colours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from nescio.report.charts.lazy import alt

Chart: TypeAlias = "alt.LayerChart"
Layer: TypeAlias = "alt.Chart"  # a chart before it is combined with others
Spec: TypeAlias = dict[str, Any]  # specification in Vega-Lite

LINES_LIGHT = ("#2b5fd9", "#c2550a", "#1a7f64", "#a3307f", "#7a6400", "#5b3fc4", "#0f7c99", "#b3363b")
LINES_DARK = ("#8ab0ff", "#f0a35e", "#5fcfaa", "#ec8fcb", "#d8c25a", "#b9a3ff", "#64c8e3", "#f28b8b")
PAPER = {"ink": "#1c2230", "soft": "#667085", "faint": "#c9cfda", "rule": "#e6e9ef", "ground": "#ffffff"}
PAPER |= {"accent": "#2b5fd9", **{f"c{number}": colour for number, colour in enumerate(LINES_LIGHT, start=1)}}
DARK = {"ink": "#e8ebf1", "soft": "#a0a9ba", "faint": "#475063", "rule": "#262c38", "ground": "#11141b"}
DARK |= {"accent": "#8ab0ff", **{f"c{number}": colour for number, colour in enumerate(LINES_DARK, start=1)}}
COLOUR = {name: f"var(--{name})" for name in PAPER}
SERIES_COLOURS = tuple(COLOUR[f"c{number}"] for number in range(1, len(LINES_LIGHT) + 1))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
SOLID, DASHED, DOTTED = [1, 0], [5, 3], [1, 3]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
WIDTH = 620  # pixels of a chart on paper
LETTER_WIDTH = 7  # pixels of a letter of a label, on average
SELECTED = "chosen"  # chart parameter set by a menu of the page


def on_page(chart: Chart) -> Spec:
    """Return the chart's specification for the page."""
    spec: Spec = chart.to_dict(validate=False)  # the tests validate every kind of chart
    spec.pop("$schema", None)  # a web address, which an offline page must not contain
    return spec


def on_paper(chart: Chart) -> Spec:
    """Return the chart's specification with fixed colours and a fixed width."""
    spec = on_page(chart)
    spec["config"]["background"] = PAPER["ground"]
    text = re.sub(r"var\(--(\w+)\)", lambda match: PAPER[match[1]], json.dumps(spec))
    return {**json.loads(text), "width": WIDTH}


def finish(layers: Sequence[Layer], description: str, height: int = 300, selected: str | None = None) -> Chart:
    """Combine layers into a chart.

    description  text for readers who cannot see the chart
    selected     initial value of the menu that controls the chart (None: no menu)
    """
    chart = alt.layer(*layers)
    if selected is not None:
        chart = chart.add_params(alt.param(name=SELECTED, value=selected))
    finished: Chart = chart.properties(width="container", height=height, description=description).configure(**_config())
    return finished


def _config() -> Spec:
    """The look of all charts: no frame, light grid, the fonts of the page."""
    axis = {"labelColor": COLOUR["soft"], "titleColor": COLOUR["soft"], "gridColor": COLOUR["rule"], "domain": False}
    axis |= {"ticks": False, "labelPadding": 8, "titlePadding": 12, "labelFontSize": 12, "titleFontSize": 12}
    legend = {"orient": "top", "direction": "horizontal", "title": None, "labelColor": COLOUR["ink"], "offset": 12}
    legend |= {"labelFontSize": 12, "labelLimit": 340, "symbolStrokeWidth": 2, "columnPadding": 16, "padding": 0}
    return {
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "axis": axis | {"titleFontWeight": "normal", "tickCount": 5},
        "legend": legend,
    }
