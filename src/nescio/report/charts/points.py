"""Charts of values of models: intervals, dots, heat maps, scatter plots and relative changes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

from nescio.report.blocks import Figure
from nescio.report.charts.lazy import alt
from nescio.report.charts.parts import (
    NUMBER,
    Axis,
    Series,
    Side,
    data,
    guide_line,
    legend,
    number_axis,
    tooltips,
    unique_names,
)
from nescio.report.charts.style import (
    COLOUR,
    DASHED,
    LETTER_WIDTH,
    SELECTED,
    SERIES_COLOURS,
    SHAPES,
    WIDTH,
    Chart,
    Layer,
    finish,
)
from nescio.report.format import format_millions, format_number, interval_columns
from nescio.rows import Row

OTHERS = "others"  # name of points without a colour of their own
NAMED_POINTS = 15  # a scatter plot of more points names those of the front only, and shows no intervals
HEIGHT = 420  # pixels of a scatter plot with sizes
NAME_LETTER, NAME_LIMIT = 6, 260  # pixels of a letter of a name at a mark; pixels at which it is cut
HEAT_EXPONENT = 4  # exponent of the opacity scale of a heat map, which separates the upper values
SMALL, LARGE = 24, 420  # square pixels of the smallest and the largest model
LEAST_CHANGE = 0.02  # minimum span of an axis of relative changes
GOLDEN = 0.618034  # golden ratio: multiples of it modulo 1 spread points evenly
JITTER = 0.7  # share of a column's width that its points are spread over


def intervals_chart(points: Sequence[Row], selected: str | None = None) -> Chart:
    """Value and interval of every model by the selected metric; the accent colour marks the best group.

    points  each has `question`, `model`, `rank`, `value`, `low`, `high` (or None) and `best`
    """
    verdicts = ["not significantly different from the best", "significantly worse than the best"]
    rows = [
        {"question": str(p["question"]), "model": str(p["model"]), "rank": p["rank"], "value": float(p["value"])}
        | {end: float(p["value"] if p[end] is None else p[end]) for end in ("low", "high")}
        | {"verdict": verdicts[not p["best"]]}
        for p in points
    ]
    questions, models = unique_names(rows, "question"), unique_names(rows, "model")
    colour = Series("verdict", verdicts, (COLOUR["accent"], COLOUR["soft"]), legend=legend("circle", 260)).colour()
    y = alt.Y("model:N", title=None, sort=alt.EncodingSortField("rank"), axis=alt.Axis(labelLimit=180, grid=False))
    base = data(rows).transform_filter(f"datum.question == {SELECTED}").encode(y)
    values = (("value:Q", "value", ".4f"), ("low:Q", "from", ".4f"), ("high:Q", "to", ".4f"))
    tips = tooltips(("model:N", "model"), *values, ("rank:Q", "rank"), ("verdict:N", "verdict"))
    bars = base.mark_rule(strokeWidth=2).encode(number_axis("x", "low", nice=True), alt.X2("high:Q"), colour)
    dots = base.mark_point(filled=True, size=110, opacity=1).encode(alt.X("value:Q"), colour.copy(), tooltip=tips)
    description = "Values and intervals of all models; the accent colour marks the best group."
    selected = selected if selected in questions else questions[0] if questions else ""
    return finish([bars, dots], description, 34 * max(2, len(models)), selected)


def dots_chart(points: Sequence[Row], title: str, guide: tuple[str, float] | None = None) -> Chart:
    """Values of names, with one dot per kind and a line between the dots; `guide` is a labelled vertical line.

    points  each has `name`, `kind`, `value` and `spread`; names are in the order of the points
    """
    names, kinds = unique_names(points, "name"), unique_names(points, "kind")
    rows = [
        {"name": str(point["name"]), "kind": str(point["kind"]), "value": float(point["value"])}
        | {"spread": f"± {format_number(point['spread'], 3)}" if point.get("spread") is not None else "one seed"}
        for point in points
    ]
    x = number_axis("x", "value", title, "~%")
    y = alt.Y("name:N", title=None, sort=names, axis=alt.Axis(labelLimit=240, grid=False, labelColor=COLOUR["ink"]))
    dot_ranges = data(rows).transform_aggregate(low="min(value)", high="max(value)", groupby=["name"])
    between = dot_ranges.mark_rule(strokeWidth=2, color=COLOUR["faint"])
    several_kinds = len(kinds) > 1
    colours = (COLOUR["soft"], COLOUR["accent"], *SERIES_COLOURS[1:]) if several_kinds else (COLOUR["accent"],)
    colour = Series("kind", kinds, colours, legend=legend("circle", 170) if several_kinds else None).colour()
    tips = tooltips(("name:N", "method"), ("kind:N", "as"), ("value:Q", "mean", ".2%"), ("spread:N", "over seeds"))
    dots = data(rows).mark_point(filled=True, size=120, opacity=1).encode(x, y, colour, tooltip=tips)
    layers = [between.encode(alt.X("low:Q", title=title), alt.X2("high:Q"), y), dots]
    if guide:
        mark = data([{"value": float(guide[1]), "text": guide[0]}])
        layers.insert(0, mark.mark_rule(strokeDash=DASHED, color=COLOUR["ink"]).encode(x))
        text = mark.mark_text(align="right", baseline="bottom", dx=-5, dy=-4, fontSize=12, color=COLOUR["ink"])
        layers.append(text.encode(x, alt.Text("text:N"), y=alt.value("height")))
    description = f"{title} of {', '.join(names)}"
    description += f"; {guide[0]} at {format_number(guide[1], 3)}" if guide else ""
    return finish(layers, f"{description}.", 30 * max(3, len(names)))


# ---- heat maps


def scatter_figure(
    key: str,
    title: str,
    caption: str,
    points: Sequence[Row],
    x: str,
    y: str,
    tips: Mapping[str, str] | None = None,
    **look: Any,
) -> Figure:
    """Return a scatter plot as a figure with its numbers; `tips` and `look` are those of `scatter_chart`."""
    titles = tips or {}
    data = [
        {titles.get(column, column): value for column, value in point.items() if column != "name" or column in titles}
        for point in points
    ]
    return Figure(key, title, caption, lambda: scatter_chart(points, x, y, tips=tips, **look), data)


def heat_figure(
    key: str,
    title: str,
    caption: str,
    cells: Sequence[Row],
    axis: str,
    floor: float,
    names: tuple[str, str, str],
    format: str = ".2f",
) -> Figure | None:
    """Return a heat map as a figure with its numbers; None for fewer than two cells."""
    if len(cells) < 2:
        return None
    line, column, n = names
    points = [{line: cell["line"], column: cell["column"], axis: cell["value"], n: cell["n"]} for cell in cells]
    return Figure(key, title, caption, lambda: heat_chart(cells, axis, floor, names, format), points)


def heat_chart(
    cells: Sequence[Row],
    title: str,
    floor: float,
    names: tuple[str, str, str] = ("method", "measure", "mean over lines"),
    format: str = ".2f",
) -> Chart:
    """Heat map of a value; values below `floor` have no colour.

    cells  each has `line`, `column`, `value` and `n`; lines and columns are in the order of the cells
    names  titles of line, column and n in tooltips
    """
    lines, columns = unique_names(cells, "line"), unique_names(cells, "column")
    rows = [
        {"line": str(cell["line"]), "column": str(cell["column"]), "value": float(cell["value"]), "n": int(cell["n"])}
        for cell in cells
    ]
    line, column, n = names
    narrow = f"width < {LETTER_WIDTH * len(columns) * (2 + max(map(len, columns)))}"  # labels would overlap
    base = data(rows).encode(
        alt.X("column:N", title=None, sort=columns).axis(
            orient="top",
            labelAngle=alt.ExprRef(f"{narrow} ? -50 : 0"),
            labelAlign=alt.ExprRef(f"{narrow} ? 'left' : 'center'"),
        ),
        alt.Y("line:N", title=None, sort=lines, axis=alt.Axis(labelLimit=300)),
        tooltip=tooltips(("line:N", line), ("column:N", column), ("value:Q", title, ".4f"), ("n:Q", n)),
    )
    # opacity of one colour suits light and dark pages
    highest = max((float(cell["value"]) for cell in cells if cell["value"] > floor), default=floor + 1)
    scale = alt.Scale(type="pow", exponent=HEAT_EXPONENT, domain=[floor, highest], range=[0.02, 0.6], clamp=True)
    rects = base.mark_rect(color=COLOUR["accent"], cornerRadius=3, stroke=COLOUR["ground"])
    texts = base.mark_text(fontSize=alt.ExprRef("width < 480 ? 9.5 : 12"), color=COLOUR["ink"])
    layers = [
        rects.encode(alt.Opacity("value:Q", scale=scale, legend=None)),
        texts.encode(alt.Text("value:Q", format=format)),
    ]
    description = f"Heat map of {title}: {', '.join(lines)} by {', '.join(columns)}."
    return finish(layers, description, 28 * max(3, len(lines)))


# ---- scatter plots


def scatter_chart(
    points: Sequence[Row],
    x: str,
    y: str,
    *,
    tips: Mapping[str, str] | None = None,
    log: bool = False,
    front: Sequence[tuple[float, float]] = (),
    links: Sequence[tuple[Row, Row]] = (),
    guides: Sequence[tuple[Side, float]] = (),
    spans: tuple[float, float] = (0.0, 0.0),
) -> Chart:
    """Scatter plot of two numbers, coloured and shaped by `name`; a click on a legend entry selects its points.

    points  each has `name` (OTHERS is grey), the numbers under the keys x and y, and the keys of `tips`; optional are
            `parameters` (size of the mark), `distilled` (a dot in it), and `interval_columns` of the numbers. Up to
            NAMED_POINTS points show their intervals and their `model`; of more points, those of the front are named
    tips    further entries of tooltips: key of the points → title
    front   points of a dashed line
    links   pairs of points that a line connects
    guides  ("x", value) is a vertical line, ("y", value) a horizontal one
    spans   minimum spans of the axes
    """
    names = sorted(unique_names(points, "name"), key=lambda name: name == OTHERS)
    tips = tips or {}
    axes = _scatter_axes(points, x, y, log, spans)
    base = data(_scatter_rows(points, x, y, names, tips)).encode(*axes)
    is_small = len(points) <= NAMED_POINTS
    layers = [layer for side, value in guides for layer in guide_line(side, value, color=COLOUR["soft"])]
    if links:
        ends = [{"x": float(a[x]), "y": float(a[y]), "x2": float(b[x]), "y2": float(b[y])} for a, b in links]
        rules = data(ends).mark_rule(strokeWidth=1, color=COLOUR["soft"], opacity=0.7)
        layers.append(rules.encode(*axes, alt.X2("x2:Q"), alt.Y2("y2:Q")))
    layers += [_interval_bars(points, x, y, axes, side) for side in (x, y) if is_small and _ends(points, side)]
    scaled = any(point.get("parameters") for point in points)
    entries = [(f"{key}:N", title) for key, title in tips.items()] + [("x:Q", x, ".4~g"), ("y:Q", y, ".4~g")]
    entries += [("params:N", "parameters")] if scaled else []
    only = alt.selection_point(fields=["name"], bind="legend")
    layers.append(_scatter_marks(base, names, scaled, only).encode(tooltip=tooltips(*entries)).add_params(only))
    if any(point.get("distilled") for point in points):
        dots = base.transform_filter("datum.dot == 1").mark_point(filled=True, size=10, color=COLOUR["ink"])
        layers.append(dots.encode(opacity=alt.condition(only, alt.value(1), alt.value(0))))
    named_points = [point for point in points if "model" in point and (is_small or (point[x], point[y]) in front)]
    layers += _name_layers(named_points, points, x, y, axes, log)
    if len(front) > 1:
        line = data([{"x": float(a), "y": float(b)} for a, b in front])
        layers.append(line.mark_line(strokeDash=DASHED, strokeWidth=1.25, color=COLOUR["ink"]).encode(*axes))
    return finish(layers, f"{len(points)} points of {', '.join(names)}: {y} against {x}.", HEIGHT if scaled else 340)


def _scatter_axes(points: Sequence[Row], x: str, y: str, log: bool, spans: tuple[float, float]) -> tuple[Axis, Axis]:
    lowest = min((float(point[x]) for point in points), default=1.0)  # ~s prints numbers below 1 in thousandths
    format = "~s" if log and lowest >= 1 else NUMBER
    return (
        number_axis("x", "x", x, format, log=log, domain=_domain(points, x, spans[0])),
        number_axis("y", "y", y, domain=_domain(points, y, spans[1])),
    )


def _scatter_marks(base: Layer, names: Sequence[str], with_sizes: bool, chosen_names: alt.Parameter) -> Layer:
    """Marks with the colour and shape of their name."""
    styles: dict[str, Any] = {"opacity": alt.condition(chosen_names, alt.value(0.8), alt.value(0.07))}
    if with_sizes:
        styles["size"] = alt.Size("size:Q", scale=alt.Scale(type="sqrt", range=[SMALL, LARGE]), legend=None)
    key = legend("circle", 132, symbolStrokeWidth=0, symbolSize=90, symbolLimit=0)
    colours = [
        COLOUR["faint"] if name == OTHERS else SERIES_COLOURS[number % len(SERIES_COLOURS)]
        for number, name in enumerate(names)
    ]
    shapes = [SHAPES[number // len(SERIES_COLOURS) % len(SHAPES)] for number in range(len(names))]
    shape = alt.Shape("name:N", scale=alt.Scale(domain=list(names), range=shapes), legend=key)
    marks = base.mark_point(filled=True) if with_sizes else base.mark_point(filled=True, size=80)
    colour = Series("name", names, colours or SERIES_COLOURS, legend=key).colour()
    encoded: Layer = marks.encode(colour, shape, **styles)
    return encoded


_Corner = tuple[Literal["left", "right"], Literal["bottom", "top"]]  # of a name, next to its mark
_Box = tuple[float, float, float, float]  # left, top, right and bottom, in pixels
_CORNERS: tuple[_Corner, ...] = (("left", "bottom"), ("left", "top"), ("right", "bottom"), ("right", "top"))


def _name_layers(
    named_points: Sequence[Row], points: Sequence[Row], x: str, y: str, axes: Sequence[Axis], log: bool
) -> list[Layer]:
    """Names of points, each on the side of its mark where it overlaps the fewest other names and marks."""
    x_pixels = _pixels([math.log(point[x]) if log else point[x] for point in points], WIDTH)
    y_pixels = _pixels([-point[y] for point in points], HEIGHT)
    boxes_so_far = [(px - 8, py - 8, px + 8, py + 8) for px, py in zip(x_pixels, y_pixels, strict=True)]
    labels: dict[_Corner, list[Row]] = {}
    for point, px, py in zip(points, x_pixels, y_pixels, strict=True):
        if point not in named_points:
            continue
        width = min(NAME_LIMIT, NAME_LETTER * len(str(point["model"])))
        boxes: dict[_Corner, _Box] = {}
        for corner in _CORNERS:
            left = px + 9 if corner[0] == "left" else px - 9 - width
            top = py - 18 if corner[1] == "bottom" else py + 5
            boxes[corner] = left, top, left + width, top + 13
        overlaps = [
            sum(_overlap(box, neighbour) for neighbour in boxes_so_far) + len(points) * (box[0] < 0 or box[2] > WIDTH)
            for box in boxes.values()
        ]
        best = _CORNERS[overlaps.index(min(overlaps))]
        boxes_so_far.append(boxes[best])
        labels.setdefault(best, []).append({"x": float(point[x]), "y": float(point[y]), "model": str(point["model"])})
    return [
        data(rows)
        .mark_text(
            align=align,
            baseline=baseline,
            dx=9 if align == "left" else -9,
            dy=-5 if baseline == "bottom" else 5,
            fontSize=11,
            limit=NAME_LIMIT,
            color=COLOUR["ink"],
        )
        .encode(*axes, alt.Text("model:N"))
        for (align, baseline), rows in labels.items()
    ]


def _pixels(values: Sequence[float], size: float) -> list[float]:
    """Approximate positions of values on an axis."""
    low, high = min(values), max(values)
    return [size * (value - low) / (high - low or 1) for value in values]


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _ends(points: Sequence[Row], name: str) -> list[float]:
    """Both ends of the intervals of a number."""
    ends = [point.get(end) for point in points for end in interval_columns(name)]
    return [float(end) for end in ends if end is not None]


def _domain(points: Sequence[Row], name: str, span: float) -> tuple[float, float] | None:
    """The domain of an axis whose values span less than `span`; None if they span enough."""
    values = [float(point[name]) for point in points] + (_ends(points, name) if len(points) <= NAMED_POINTS else [])
    low, high = min(values), max(values)
    if high - low >= span:
        return None
    margin = (span - (high - low)) / 2
    start = max(0.0, low - margin) if low >= 0 else low - margin
    return start, start + span


def _interval_bars(points: Sequence[Row], x: str, y: str, axes: Sequence[Axis], side: str) -> Layer:
    """Intervals of a number as lines through the marks."""
    rows: list[Row] = []
    for point in points:
        ends = _ends([point], side)
        if len(ends) == 2:
            row = {"x": float(point[x]), "y": float(point[y])}
            rows.append(row | ({"x": ends[0], "x2": ends[1]} if side == x else {"y": ends[0], "y2": ends[1]}))
    rules = data(rows).mark_rule(strokeWidth=1.25, color=COLOUR["soft"])
    bars: Layer = rules.encode(*axes, alt.X2("x2:Q") if side == x else alt.Y2("y2:Q"))
    return bars


def _scatter_rows(points: Sequence[Row], x: str, y: str, names: Sequence[str], tips: Mapping[str, str]) -> list[Row]:
    """The points as rows of the chart, grey ones first."""
    sizes = [float(point["parameters"]) for point in points if point.get("parameters")]
    median_size = median(sizes or [1.0])
    sorted_points = sorted(points, key=lambda p: -1 if p["name"] == OTHERS else names.index(str(p["name"])))
    return [
        {"name": str(p["name"]), **{key: str(p[key]) for key in tips}, "x": float(p[x]), "y": float(p[y])}
        | {"size": float(p.get("parameters") or median_size), "dot": int(bool(p.get("distilled")))}
        | {"params": format_millions(p.get("parameters"))}
        for p in sorted_points
    ]


def changes_chart(points: Sequence[Row], title: str) -> Chart:
    """Relative changes of models, one column per kind, with the median of each; positive is better.

    points  each has `kind`, `model`, `than` (the model it is compared with) and `value` (0.01 is one percent)
    """
    kinds = unique_names(points, "kind")
    rows: list[Row] = []
    medians: list[Row] = []
    for column, kind in enumerate(kinds):
        members = [point for point in points if str(point["kind"]) == kind]
        for number, point in enumerate(members):
            offset = JITTER * ((number * GOLDEN) % 1 - 0.5) if len(members) > 1 else 0.0
            row = {"kind": kind, "model": str(point["model"]), "than": str(point["than"])}
            rows.append(row | {"value": float(point["value"]), "x": column + offset})
        median_value = median(float(point["value"]) for point in members)
        medians.append({"left": column - JITTER / 2, "right": column + JITTER / 2, "value": median_value})
    labels = json.dumps([kind.split(" ") for kind in kinds])  # a list is a label of several lines
    axis = alt.Axis(values=list(range(len(kinds))), labelExpr=f"{labels}[datum.value]", labelOverlap=False, grid=False)
    scale = alt.Scale(domain=[-0.5, len(kinds) - 0.5], nice=False)
    span = _domain([{"value": 0.0}, *rows], "value", LEAST_CHANGE)
    y = alt.Y("value:Q", title=title, axis=alt.Axis(format="+.1~%"))
    y = y if span is None else y.scale(domain=span)
    tips = tooltips(("model:N", "model"), ("than:N", "compared with"), ("value:Q", title, "+.2%"))
    marks = data(rows).mark_point(filled=True, size=46, opacity=0.6, color=COLOUR["accent"])
    bars = data(medians).mark_rule(strokeWidth=2, color=COLOUR["ink"])
    x = alt.X("x:Q", title=None, scale=scale, axis=axis)
    layers = [
        *guide_line("y", 0.0, field="value", color=COLOUR["soft"]),
        marks.encode(x, y, tooltip=tips),
        bars.encode(alt.X("left:Q", scale=scale, axis=axis, title=None), alt.X2("right:Q"), y),
    ]
    if len(rows) <= NAMED_POINTS:
        names = data(rows).mark_text(align="left", dx=6, dy=-8, fontSize=11, color=COLOUR["ink"])
        layers.append(names.encode(x, y, alt.Text("model:N")))
    return finish(layers, f"{title} of {len(rows)} models by {', '.join(kinds)}; positive is better.", 340)
