"""Many models at each of several levels: boxes of their values, and lines of what is said of them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nescio.report.charts import MODEL_COLOURS, PAPER, _dress, _inline, _legend
from nescio.rows import Row

REACH = 1.5  # of a whisker, in heights of the box (Tukey 1977)


@dataclass(frozen=True)
class Box:
    """Quartiles of values, whiskers to the furthest value within 1.5 heights of the box, and the values beyond."""

    low: float
    lower: float
    middle: float
    upper: float
    high: float
    beyond: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Box:
        held = np.sort(np.asarray(values, np.float64))
        lower, middle, upper = (float(q) for q in np.quantile(held, (0.25, 0.5, 0.75)))
        reach = REACH * (upper - lower)
        near = held[(held >= lower - reach) & (held <= upper + reach)]
        # an interpolated quartile may lie beyond all values that are near: a whisker then ends at the box
        low, high = min(float(near[0]), lower), max(float(near[-1]), upper)
        return cls(low, lower, middle, upper, high, tuple(float(v) for v in held if v < low or v > high))


def box_figure(
    levels: Mapping[str, Mapping[str, float]],
    title: str,
    *,
    lines: Mapping[str, Mapping[str, float]] | None = None,
    apart: Sequence[str] = (),
    guide: float | None = None,
    form: str = ".3f",
    palette: Mapping[str, str] = PAPER,
) -> Any:
    """One box a level over the values of all models there; `lines` single out some models, `guide` is a level line.

    levels  level → {model: value}, in the order in which they stand
    lines   name → {level: value}
    apart   levels that are no step of the others: a line does not go there, its point does
    form    how a tooltip prints a value
    """
    import altair as alt

    names = [level for level, values in levels.items() if values]
    boxes: list[Row] = []
    beyond: list[Row] = []
    for level in names:
        box = Box.of(list(levels[level].values()))
        boxes.append(
            {"level": level, "low": box.low, "lower": box.lower, "middle": box.middle, "upper": box.upper}
            | {"high": box.high, "n": len(levels[level])}
        )
        beyond += [
            {"level": level, "model": model, "value": float(value)}
            for model, value in levels[level].items()
            if not box.low <= value <= box.high
        ]
    x = _level_axis(names)
    percent = form.endswith("%")

    def y(field: str) -> Any:
        return alt.Y(
            f"{field}:Q",
            title=title,
            scale=alt.Scale(zero=False, padding=8),
            axis=alt.Axis(format="+.1~%" if percent else "~g"),
        )

    base = alt.Chart(_inline(boxes)).encode(x)
    tooltip = [
        alt.Tooltip("level:N", title="at"),
        *(
            alt.Tooltip(f"{field}:Q", title=words, format=form)
            for field, words in (("middle", "median"), ("lower", "lower quartile"), ("upper", "upper quartile"))
        ),
        alt.Tooltip("n:Q", title="models"),
    ]
    layers = []
    if guide is not None:
        rule = alt.Chart(_inline([{"value": float(guide)}])).mark_rule(color=palette["ink"], strokeWidth=1)
        layers.append(rule.encode(y("value")))
    layers += [
        base.mark_rule(color=palette["soft"]).encode(y("low"), alt.Y2("high:Q")),
        base.mark_bar(size=18, color=palette["accent"], opacity=0.35).encode(
            y("lower"), alt.Y2("upper:Q"), tooltip=tooltip
        ),
        base.mark_tick(size=18, thickness=2, color=palette["accent"], opacity=1).encode(y("middle")),
    ]
    if beyond:
        far = alt.Chart(_inline(beyond)).mark_point(size=18, color=palette["soft"], opacity=0.8)
        told = [alt.Tooltip("model:N", title="model"), alt.Tooltip("value:Q", title=title, format=form)]
        layers.append(far.encode(x, y("value"), tooltip=told))
    if lines:
        layers += _lines(lines, names, x, y("value"), form, palette, apart)
    words = f"{title} of up to {max((len(v) for v in levels.values()), default=0)} models: one box each at "
    return _dress(alt.layer(*layers), palette, f"{words}{', '.join(names)}.", 340)


def levels_figure(
    lines: Mapping[str, Mapping[str, float]],
    title: str,
    *,
    guide: float | None = None,
    form: str = ".3f",
    palette: Mapping[str, str] = PAPER,
) -> Any:
    """One line a name over the levels, in the order in which they are first seen; `guide` is a level line."""
    import altair as alt

    names = list(dict.fromkeys(level for line in lines.values() for level in line))
    axis = alt.Axis(format="+.1~%" if form.endswith("%") else "~g")
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False, padding=8), axis=axis)
    layers = []
    if guide is not None:
        rule = alt.Chart(_inline([{"value": float(guide)}])).mark_rule(color=palette["ink"], strokeWidth=1)
        layers.append(rule.encode(y))
    layers += _lines(lines, names, _level_axis(names), y, form, palette)
    return _dress(alt.layer(*layers), palette, f"{title} of {', '.join(lines)} at {', '.join(names)}.", 320)


def level_points(held: Mapping[str, Mapping[str, float]], outer: str, inner: str, title: str) -> list[Row]:
    """What boxes or lines show, for a table: one row a value, `outer` and `inner` are called so."""
    return [{outer: a, inner: b, title: float(value)} for a, own in held.items() for b, value in own.items()]


def _level_axis(names: Sequence[str]) -> Any:
    import altair as alt

    axis = alt.Axis(
        labelAngle=alt.ExprRef("width < 480 ? -50 : 0"),
        labelAlign=alt.ExprRef("width < 480 ? 'right' : 'center'"),
        labelExpr="replace(datum.label, 'severity ', 's')",
    )
    return alt.X("level:N", title=None, sort=list(names), axis=axis)


def _lines(
    lines: Mapping[str, Mapping[str, float]],
    levels: Sequence[str],
    x: Any,
    y: Any,
    form: str,
    palette: Mapping[str, str],
    apart: Sequence[str] = (),
) -> list[Any]:
    import altair as alt

    held = [
        {"name": name, "level": level, "value": float(line[level]), "step": int(level not in apart)}
        for name, line in lines.items()
        for level in levels
        if level in line
    ]
    names = list(lines)
    colours = [palette[f"c{(at + 1) % MODEL_COLOURS + 1}"] for at in range(len(names))]
    dashes = [[1, 0] if at < MODEL_COLOURS else [5, 3] for at in range(len(names))]
    legend = _legend("stroke", 170)
    colour = alt.Color("name:N", scale=alt.Scale(domain=names, range=colours), legend=legend)
    dash = alt.StrokeDash("name:N", scale=alt.Scale(domain=names, range=dashes), legend=legend)
    base = alt.Chart(_inline(held)).encode(x, y, colour)
    tooltip = [
        alt.Tooltip("name:N", title="of"),
        alt.Tooltip("level:N", title="at"),
        alt.Tooltip("value:Q", title="value", format=form),
    ]
    return [
        base.transform_filter("datum.step == 1").mark_line(strokeWidth=1.75).encode(dash),
        base.mark_point(filled=True, size=48, opacity=1).encode(tooltip=tooltip),
    ]


__all__ = ["Box", "box_figure", "level_points", "levels_figure"]
