"""Charts over levels, such as the severities of a shift: lines, and boxes over models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nescio.report.blocks import Figure
from nescio.report.charts.lazy import alt
from nescio.report.charts.parts import (
    Axis,
    Series,
    data,
    guide_line,
    legend,
    level_axis,
    line_layers,
    number_axis,
    tooltips,
    value_axis,
)
from nescio.report.charts.style import COLOUR, DASHED, DOTTED, SERIES_COLOURS, SOLID, Chart, Layer, finish
from nescio.rows import Row

WHISKER = 1.5  # maximum length of a whisker, in heights of the box (Tukey 1977)


@dataclass(frozen=True)
class Box:
    """Quartiles of values, whiskers to the furthest value within 1.5 heights of the box, and the outliers."""

    low: float
    lower: float
    middle: float
    upper: float
    high: float
    outliers: tuple[float, ...]

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Box:
        """Compute the box of values."""
        sorted_values = np.sort(np.asarray(values, np.float64))
        lower, median, upper = (float(quartile) for quartile in np.quantile(sorted_values, (0.25, 0.5, 0.75)))
        reach = WHISKER * (upper - lower)
        inliers = sorted_values[(sorted_values >= lower - reach) & (sorted_values <= upper + reach)]
        # an interpolated quartile may be beyond all near values; the whisker then ends at the box
        low, high = min(float(inliers[0]), lower), max(float(inliers[-1]), upper)
        return cls(low, lower, median, upper, high, tuple(float(v) for v in sorted_values if v < low or v > high))


def box_chart(
    levels: Mapping[str, Mapping[str, float]],
    title: str,
    *,
    lines: Mapping[str, Mapping[str, float]] | None = None,
    unconnected: Sequence[str] = (),
    guide: float | None = None,
    format: str = ".3f",
    ticks: Mapping[str, str] | None = None,
) -> Chart:
    """One box per level over the values of all models; `guide` is a horizontal line.

    levels  level → {model: value}, in order
    lines   models drawn as lines: name → {level: value}
    unconnected  levels that lines omit, because they are not on the same scale
    format  number format of tooltips
    ticks   shorter names of levels on the axis
    """
    names = [level for level, values in levels.items() if values]
    boxes: list[Row] = []
    outliers: list[Row] = []
    for level in names:
        box = Box.from_values(list(levels[level].values()))
        box_values = {"low": box.low, "lower": box.lower, "middle": box.middle, "upper": box.upper, "high": box.high}
        boxes.append({"level": level, **box_values, "n": len(levels[level])})
        outliers += [
            {"level": level, "model": model, "value": float(value)}
            for model, value in levels[level].items()
            if not box.low <= value <= box.high
        ]
    x = level_axis(names, ticks)
    base = data(boxes).encode(x)
    quartiles = (
        ("middle:Q", "median", format),
        ("lower:Q", "lower quartile", format),
        ("upper:Q", "upper quartile", format),
    )
    bars = base.mark_bar(size=18, color=COLOUR["accent"], opacity=0.35)
    medians = base.mark_tick(size=18, thickness=2, color=COLOUR["accent"], opacity=1)
    layers = [] if guide is None else guide_line("y", guide, field="value")
    layers += [
        base.mark_rule(color=COLOUR["soft"]).encode(value_axis("low", title, format), alt.Y2("high:Q")),
        bars.encode(
            value_axis("lower", title, format),
            alt.Y2("upper:Q"),
            tooltip=tooltips(("level:N", "at"), *quartiles, ("n:Q", "models")),
        ),
        medians.encode(value_axis("middle", title, format)),
    ]
    if outliers:
        marks = data(outliers).mark_point(size=18, color=COLOUR["soft"], opacity=0.8)
        tips = tooltips(("model:N", "model"), ("value:Q", title, format))
        layers.append(marks.encode(x, value_axis("value", title, format), tooltip=tips))
    if lines:
        layers += _level_lines(lines, names, x, value_axis("value", title, format), format, unconnected)
    max_count = max((len(values) for values in levels.values()), default=0)
    return finish(layers, f"{title} of up to {max_count} models, as boxes at {', '.join(names)}.", 340)


def levels_chart(
    lines: Mapping[str, Mapping[str, float]],
    title: str,
    *,
    guide: float | None = None,
    format: str = ".3f",
    ticks: Mapping[str, str] | None = None,
    positions: Mapping[str, float] | None = None,
    axis: str | None = None,
    dashed: Mapping[str, str] | None = None,
) -> Chart:
    """One line per name over the levels, in order of first appearance; `guide` is a horizontal line.

    positions  positions of the levels on an axis of numbers with the title `axis` (default: evenly spaced)
    dashed     dashed lines: name → name of the line with the same colour
    """
    names = list(dict.fromkeys(level for line in lines.values() for level in line))
    x = level_axis(names, ticks) if positions is None else number_axis("x", "position", axis, "~f")
    layers = [] if guide is None else guide_line("y", guide, field="value")
    y = value_axis("value", title, format)
    layers += _level_lines(lines, names, x, y, format, positions=positions, dashed=dashed)
    return finish(layers, f"{title} of {', '.join(lines)} at {', '.join(names)}.", 320)


def levels_figure(
    key: str,
    title: str,
    caption: str,
    values: Mapping[str, Mapping[str, float]],
    names: tuple[str, str, str],
    chart: Callable[..., Chart] = levels_chart,
    **look: Any,
) -> Figure:
    """Return lines over levels, or boxes, as a figure with their numbers.

    names  titles of outer keys, inner keys and values
    look   further options of the chart
    """
    outer, inner, axis = names
    points = [{outer: a, inner: b, axis: float(value)} for a, series in values.items() for b, value in series.items()]
    return Figure(key, title, caption, lambda: chart(values, axis, **look), points)


def _level_lines(
    lines: Mapping[str, Mapping[str, float]],
    levels: Sequence[str],
    x: Axis,
    y: Axis,
    format: str,
    unconnected: Sequence[str] = (),
    positions: Mapping[str, float] | None = None,
    dashed: Mapping[str, str] | None = None,
) -> list[Layer]:
    positions = positions or {}
    rows = [
        {"name": name, "level": level, "value": float(line[level]), "step": int(level not in unconnected)}
        | ({"position": positions[level]} if positions else {})
        for name, line in lines.items()
        for level in levels
        if level in line
    ]
    names = list(lines)
    entries = legend("stroke", min(170, 52 + 8 * max(map(len, names), default=0)))
    series = Series("name", names, *_colours_and_dashes(names, dashed), entries)
    base = data(rows).encode(x, y)
    tips = tooltips(("name:N", "of"), ("level:N", "at"), ("value:Q", "value", format))
    points = base.mark_point(filled=True, size=48, opacity=1)
    return [
        *line_layers(base.transform_filter("datum.step == 1"), series, width=1.75),
        points.encode(series.colour(), tooltip=tips),
    ]


def _colours_and_dashes(
    names: Sequence[str], dashed: Mapping[str, str] | None
) -> tuple[tuple[str, ...], list[list[int]]]:
    """Colours and dashes; a line of `dashed` has the colour of its related line."""
    colours = (*SERIES_COLOURS[1:], SERIES_COLOURS[0])
    if dashed is None:
        return colours, []
    first = [name for name in names if dashed.get(name) not in names]  # names with a colour of their own
    style_of = {name: divmod(number, len(colours)) for number, name in enumerate(first)}
    dashes = [(SOLID, DOTTED)[style_of[name][0] % 2] if name in style_of else DASHED for name in names]
    return tuple(colours[style_of[name if name in style_of else dashed[name]][1]] for name in names), dashes
