"""Many models in one picture: clouds of points, pairs of them joined, changes by kind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from nescio.report.cells import number
from nescio.report.charts import MODEL_COLOURS, PAPER, SHAPES, _dress, _few_ticks, _inline, _legend
from nescio.rows import Row

OTHERS = "others"
SMALL, LARGE = 24, 420  # square pixels of the smallest and the largest model
GOLDEN = 0.618034  # steps of this share spread points evenly, however many there are, and the same every time
SPREAD = 0.7  # share of a kind's width over which its points are laid, so that they do not hide each other


def cloud_figure(
    points: Sequence[Row],
    x: str,
    y: str,
    *,
    log: bool = False,
    front: Sequence[tuple[float, float]] = (),
    links: Sequence[tuple[Row, Row]] = (),
    guides: tuple[float | None, float | None] = (None, None),
    palette: Mapping[str, str] = PAPER,
) -> Any:
    """Two numbers of every model, coloured and shaped by `name`, larger where `size` is; distilled ones have a dot.

    A point holds `name` (its family; OTHERS is grey), `model`, `size` (parameters, or None), `dot` (True or False) and
    the numbers under the names x and y. `front` is a dashed line, `links` are pairs of points with a line between them,
    `guides` an upright and a level line.
    """
    import altair as alt

    held, names = _points(points, x, y)
    only = alt.selection_point(fields=["name"], bind="legend")
    colour, shape = _looks(names, palette)
    base = alt.Chart(_inline(held)).encode(_axis_x(x, log), _axis_y(y))
    marks = (
        base.mark_point(filled=True)
        .encode(
            colour,
            shape,
            alt.Size("size:Q", scale=alt.Scale(type="sqrt", range=[SMALL, LARGE]), legend=None),
            opacity=alt.condition(only, alt.value(0.75), alt.value(0.06)),
            tooltip=[
                alt.Tooltip("model:N", title="model"),
                alt.Tooltip("name:N", title="family"),
                alt.Tooltip("x:Q", title=x, format=".4~g"),
                alt.Tooltip("y:Q", title=y, format=".4~g"),
                alt.Tooltip("said:N", title="parameters"),
            ],
        )
        .add_params(only)
    )
    layers = [*_lines(guides, palette), *([_between(links, x, y, log, palette)] if links else []), marks]
    if any(point["dot"] for point in points):
        dots = base.transform_filter("datum.dot == 1").mark_point(filled=True, size=10, color=palette["ink"])
        layers.append(dots.encode(opacity=alt.condition(only, alt.value(1), alt.value(0))))
    if len(front) > 1:
        line = alt.Chart(_inline([{"x": float(a), "y": float(b)} for a, b in front]))
        layers.append(
            line.mark_line(strokeDash=[5, 3], strokeWidth=1.25, color=palette["ink"]).encode(
                _axis_x(x, log), _axis_y(y)
            )
        )
    words = f"{len(held)} models of {', '.join(names)}: {y} against {x}."
    return _dress(alt.layer(*layers), palette, words, 420)


def cloud_points(points: Sequence[Row], x: str, y: str) -> list[Row]:
    """What a cloud shows, for a table; points also hold `family`, which is told of the grey ones too."""
    return [
        {"model": p["model"], "family": p["family"], x: p[x], y: p[y], "parameters": p["size"], "distilled": p["dot"]}
        for p in points
    ]


def changes_figure(points: Sequence[Row], title: str, palette: Mapping[str, str] = PAPER) -> Any:
    """Relative changes of models, one column a kind, above the line for the better; a bar marks each kind's median.

    A point holds `kind`, `model`, `than` (what it is compared with) and `value` (0.01 is one percent).
    """
    import altair as alt

    kinds = list(dict.fromkeys(str(point["kind"]) for point in points))
    held: list[Row] = []
    for column, kind in enumerate(kinds):
        own = [point for point in points if point["kind"] == kind]
        for place, point in enumerate(own):
            aside = SPREAD * ((place * GOLDEN) % 1 - 0.5) if len(own) > 1 else 0.0
            held.append(
                {"kind": kind, "model": str(point["model"]), "than": str(point["than"])}
                | {"value": float(point["value"]), "x": column + aside}
            )
    middles = [
        {"left": column - SPREAD / 2, "right": column + SPREAD / 2, "value": median(p["value"] for p in own)}
        for column, kind in enumerate(kinds)
        if (own := [p for p in held if p["kind"] == kind])
    ]
    words = json.dumps([kind.split(" ") for kind in kinds])  # a label of several lines is a list
    axis = alt.Axis(values=list(range(len(kinds))), labelExpr=f"{words}[datum.value]", labelOverlap=False, grid=False)
    scale = alt.Scale(domain=[-0.5, len(kinds) - 0.5], nice=False)
    x, y = (
        alt.X("x:Q", title=None, scale=scale, axis=axis),
        alt.Y("value:Q", title=title, axis=alt.Axis(format="+.1~%")),
    )
    zero = alt.Chart(_inline([{"value": 0.0}])).mark_rule(color=palette["soft"], strokeWidth=1).encode(y)
    marks = (
        alt.Chart(_inline(held))
        .mark_point(filled=True, size=46, opacity=0.6, color=palette["accent"])
        .encode(
            x,
            y,
            tooltip=[
                alt.Tooltip("model:N", title="model"),
                alt.Tooltip("than:N", title="compared with"),
                alt.Tooltip("value:Q", title=title, format="+.2%"),
            ],
        )
    )
    bars = alt.Chart(_inline(middles)).mark_rule(strokeWidth=2, color=palette["ink"])
    bars = bars.encode(alt.X("left:Q", scale=scale, axis=axis, title=None), alt.X2("right:Q"), y)
    said = f"{title} of {len(held)} models by {', '.join(kinds)}; above the line is better."
    return _dress(alt.layer(zero, marks, bars), palette, said, 340)


# ---- parts


def _points(points: Sequence[Row], x: str, y: str) -> tuple[list[Row], list[str]]:
    """The points as the chart holds them, and the names, the others last."""
    sizes = [float(point["size"]) for point in points if point["size"]]
    usual = median(sizes) if sizes else 1.0
    names = list(dict.fromkeys(str(point["name"]) for point in points))
    names.sort(key=lambda name: name == OTHERS)
    held: list[Row] = [
        {"name": str(p["name"]), "model": str(p["model"]), "x": float(p[x]), "y": float(p[y])}
        | {"size": float(p["size"] or usual), "dot": int(bool(p["dot"])), "said": millions(p["size"])}
        for p in sorted(points, key=lambda p: names.index(str(p["name"])) if p["name"] != OTHERS else -1)
    ]
    return held, names


def millions(params: float | None) -> str:
    """25.6 M."""
    return f"{number(params / 1e6, 1 if params >= 1e6 else 2)} M" if params else "unknown"


def _looks(names: Sequence[str], palette: Mapping[str, str]) -> tuple[Any, Any]:
    import altair as alt

    colours = [palette["faint"] if n == OTHERS else palette[f"c{i % MODEL_COLOURS + 1}"] for i, n in enumerate(names)]
    shapes = [SHAPES[i // MODEL_COLOURS % len(SHAPES)] for i in range(len(names))]
    legend = _legend("circle", 132, symbolStrokeWidth=0, symbolSize=90, symbolLimit=0)
    colour = alt.Color("name:N", scale=alt.Scale(domain=list(names), range=colours), legend=legend)
    return colour, alt.Shape("name:N", scale=alt.Scale(domain=list(names), range=shapes), legend=legend)


def _axis_x(title: str, log: bool) -> Any:
    import altair as alt

    scale = alt.Scale(type="log", padding=14, nice=False) if log else alt.Scale(zero=False, padding=14, nice=False)
    return alt.X("x:Q", title=title, scale=scale, axis=alt.Axis(format="~s" if log else "~g", tickCount=_few_ticks()))


def _axis_y(title: str) -> Any:
    import altair as alt

    return alt.Y("y:Q", title=title, scale=alt.Scale(zero=False, padding=14), axis=alt.Axis(format="~g"))


def _between(links: Sequence[tuple[Row, Row]], x: str, y: str, log: bool, palette: Mapping[str, str]) -> Any:
    import altair as alt

    ends = [{"x": float(a[x]), "y": float(a[y]), "x2": float(b[x]), "y2": float(b[y])} for a, b in links]
    rules = alt.Chart(_inline(ends)).mark_rule(strokeWidth=1, color=palette["soft"], opacity=0.7)
    return rules.encode(_axis_x(x, log), _axis_y(y), alt.X2("x2:Q"), alt.Y2("y2:Q"))


def _lines(guides: tuple[float | None, float | None], palette: Mapping[str, str]) -> list[Any]:
    import altair as alt

    found = []
    for key, at in zip(("x", "y"), guides, strict=True):
        if at is not None:
            rule = alt.Chart(_inline([{key: float(at)}])).mark_rule(color=palette["soft"], strokeWidth=1)
            found.append(rule.encode(**{key: f"{key}:Q"}))
    return found
