"""Altair charts, all made of a few marks with shared scales, axes, legends, guide lines and tooltips.

A chart names the custom properties of the page's style sheet as its colours, so that light, dark and print are a matter
of the style sheet alone; `on_paper` puts fixed colours in their place.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from nescio.analysis.curves import GUIDES, OPTIMAL, RANDOM
from nescio.report.blocks import Figure
from nescio.report.format import format_millions, format_number
from nescio.report.labels import DEFAULT_MEASURE, ood_label
from nescio.rows import Row

LINES_LIGHT = ("#2b5fd9", "#c2550a", "#1a7f64", "#a3307f", "#7a6400", "#5b3fc4", "#0f7c99", "#b3363b")
LINES_DARK = ("#8ab0ff", "#f0a35e", "#5fcfaa", "#ec8fcb", "#d8c25a", "#b9a3ff", "#64c8e3", "#f28b8b")
PAPER = {"ink": "#1c2230", "soft": "#667085", "faint": "#c9cfda", "rule": "#e6e9ef", "ground": "#ffffff"}
PAPER |= {"accent": "#2b5fd9", **{f"c{at}": colour for at, colour in enumerate(LINES_LIGHT, start=1)}}
DARK = {"ink": "#e8ebf1", "soft": "#a0a9ba", "faint": "#475063", "rule": "#262c38", "ground": "#11141b"}
DARK |= {"accent": "#8ab0ff", **{f"c{at}": colour for at, colour in enumerate(LINES_DARK, start=1)}}
COLOUR = {name: f"var(--{name})" for name in PAPER}
SERIES = tuple(COLOUR[f"c{at}"] for at in range(1, len(LINES_LIGHT) + 1))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
SOLID, DASHED, DOTTED = [1, 0], [5, 3], [1, 3]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
WIDTH = 620  # pixels of a figure that stands alone
LETTER = 7  # pixels of a letter of a label, about

CHOSEN = "chosen"  # parameter of a chart that a menu of the page sets
OTHERS = "others"  # name of what has no colour of its own
KEPT, WRONG = "share of answers kept, the surest first", "wrong among them"  # axes of a risk–coverage curve
FIRST_SEEN = 0.05  # coverages below this do not set the height of the picture: few rows, wild shares
STRIPES = 200  # coverages at which several models are compared
STEEP = 4  # power by which a heat map tells the upper values apart
REACH = 1.5  # of a whisker, in heights of the box (Tukey 1977)
SMALL, LARGE = 24, 420  # square pixels of the smallest and the largest model
GOLDEN = 0.618034  # steps of this share spread points evenly, however many there are, and the same every time
APART = 0.7  # share of a column's width over which its points are laid, so that they do not hide each other
NUMBER = ".6~g"  # with its digits: left to d3, ticks of 0.1 and 0.12 are both "0.1" (their step is rounded)
FEW_TICKS = "max(2, floor(width / 90))"  # as many as a narrow screen can label

COST_GUIDES = ("best possible order", "no order")  # in the order of GUIDES
Curve = tuple[Any, Any]  # coverages and risks, or other two axes


# ---- where a chart stands


def on_page(chart: Any) -> dict[str, Any]:
    """The chart's specification for the page."""
    spec: dict[str, Any] = chart.to_dict(validate=False)  # the tests check every kind of chart against the schema
    spec.pop("$schema", None)  # an address that the page must not hold
    return spec


def on_paper(chart: Any) -> dict[str, Any]:
    """The chart's specification as it stands alone: fixed colours, and a width of its own."""
    spec = on_page(chart)
    spec["config"]["background"] = PAPER["ground"]
    text = re.sub(r"var\(--(\w+)\)", lambda mark: PAPER[mark[1]], json.dumps(spec))
    return {**json.loads(text), "width": WIDTH}


def _config() -> dict[str, Any]:
    """The look that all charts share: no frame, quiet grid, the page's letters."""
    axis = {"labelColor": COLOUR["soft"], "titleColor": COLOUR["soft"], "gridColor": COLOUR["rule"], "domain": False}
    axis |= {"ticks": False, "labelPadding": 8, "titlePadding": 12, "labelFontSize": 12, "titleFontSize": 12}
    legend = {"orient": "top", "direction": "horizontal", "title": None, "labelColor": COLOUR["ink"], "offset": 12}
    legend |= {"labelFontSize": 12, "labelLimit": 260, "symbolStrokeWidth": 2, "columnPadding": 16, "padding": 0}
    return {
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "axis": axis | {"titleFontWeight": "normal", "tickCount": 5},
        "legend": legend,
    }


def _finished(layers: Sequence[Any], words: str, height: int = 300, chosen: str | None = None) -> Any:
    """The layers as one chart; `words` are read to those who do not see it, `chosen` is what a menu starts with."""
    import altair as alt

    chart = alt.layer(*layers) if len(layers) > 1 else layers[0]
    if chosen is not None:
        chart = chart.add_params(alt.param(name=CHOSEN, value=chosen))
    return chart.properties(width="container", height=height, description=words).configure(**_config())


# ---- parts that charts share


def _data(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A chart of rows as CSV text: Altair copies and checks lists value by value, and texts not at all."""
    import altair as alt

    out = io.StringIO()
    names = list(rows[0]) if rows else ["nothing"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([f"{v:.5g}" if isinstance(v, float) else v for v in row.values()] for row in rows)
    kinds = {name: "string" if rows and isinstance(rows[0][name], str) else "number" for name in names}
    return alt.Chart(alt.InlineData(values=out.getvalue(), format=alt.CsvDataFormat(type="csv", parse=kinds)))


def _number_axis(
    side: str,
    field: str,
    title: str | None = None,
    format: str = NUMBER,
    *,
    log: bool = False,
    pad: int = 14,
    **scale: Any,
) -> Any:
    """An axis of numbers that does not begin at zero; `scale` holds further properties of its scale."""
    import altair as alt

    scale = {"type": "log", "padding": pad, **scale} if log else {"zero": False, "padding": pad, **scale}
    axis = alt.Axis(format=format, tickCount=alt.ExprRef(expr=FEW_TICKS)) if side == "x" else alt.Axis(format=format)
    if side == "x":
        scale.setdefault("nice", False)
    return {"x": alt.X, "y": alt.Y}[side](f"{field}:Q", title=title, scale=alt.Scale(**scale), axis=axis)


def _share_axis(side: str, field: str, title: str, top: float = 1.0, grid: bool = True) -> Any:
    """An axis of shares from 0 to `top`."""
    import altair as alt

    axis = alt.Axis(format="%" if top == 1 else "~%", grid=grid)
    scale = alt.Scale(domain=[0, top], nice=False)
    return {"x": alt.X, "y": alt.Y}[side](f"{field}:Q", title=title, scale=scale, axis=axis)


def _level_axis(names: Sequence[str], ticks: Mapping[str, str] | None = None) -> Any:
    """An axis of named levels; `ticks` are shorter names."""
    import altair as alt

    axis = alt.Axis(
        labelAngle=alt.ExprRef("width < 480 ? -50 : 0"),
        labelAlign=alt.ExprRef("width < 480 ? 'right' : 'center'"),
        labelExpr=f"{json.dumps(dict(ticks or {}))}[datum.label] || datum.label",
    )
    return alt.X("level:N", title=None, sort=list(names), axis=axis)


def _legend(symbol: str, entry: int = 124, **more: Any) -> Any:
    """A legend above the picture that breaks into lines on a narrow screen; an entry takes so many pixels."""
    import altair as alt

    return alt.Legend(symbolType=symbol, columns=alt.ExprRef(expr=f"max(1, floor((width + 60) / {entry}))"), **more)


def _colours(field: str, names: Sequence[str], colours: Sequence[str], legend: Any = None) -> Any:
    """The encoding of a field's names as colours."""
    import altair as alt

    scale = alt.Scale(domain=list(names), range=[colours[at % len(colours)] for at in range(len(names))])
    return alt.Color(f"{field}:N", scale=scale, legend=legend)


def _dashes(field: str, names: Sequence[str], dashes: Sequence[list[int]], legend: Any = None) -> Any:
    import altair as alt

    return alt.StrokeDash(f"{field}:N", scale=alt.Scale(domain=list(names), range=list(dashes)), legend=legend)


def _rounds(names: Sequence[str]) -> list[list[int]]:
    """Dashes of names that repeat the colours of the first ones."""
    return [SOLID if at < len(SERIES) else DASHED for at in range(len(names))]


def _tips(*fields: Sequence[str]) -> list[Any]:
    """Tooltips of (field:type, title) or (field:type, title, format)."""
    import altair as alt

    made = []
    for field, title, *format in fields:
        tip = alt.Tooltip(field, title=_in_expression(title))
        made.append(tip.format(format[0]) if format else tip)
    return made


def _in_expression(name: str) -> str:
    """A name on one line that Vega-Lite can put into an expression: it escapes quotes, and not backslashes."""
    return "".join(mark if mark.isprintable() else " " for mark in name).replace("\\", "\\\\")


def _guide(side: str, at: float, words: str = "", *, field: str | None = None, **look: Any) -> list[Any]:
    """A line across the picture at a value, upright for side x; its words beside it."""
    import altair as alt

    name = field or side
    look = {"color": COLOUR["ink"], "strokeWidth": 1, **look}
    base = _data([{name: float(at), "text": words}])
    place = {side: f"{name}:Q"}
    layers = [base.mark_rule(**look).encode(**place)]
    if words:
        text = base.mark_text(align="left", baseline="top", dx=5, fontSize=12, color=COLOUR["ink"])
        layers.append(text.encode(alt.Text("text:N"), y=alt.value(0), **place))
    return layers


def _first(names: Sequence[str]) -> str:
    return DEFAULT_MEASURE if DEFAULT_MEASURE in names else names[0] if names else ""


def _names(rows: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    return list(dict.fromkeys(str(row[key]) for row in rows))


def _renamed(fields: Sequence[str], names: Sequence[str]) -> str:
    """A legend's expression that shows people's names for fields, which have names of their own."""
    return f"{json.dumps(list(names))}[indexof({json.dumps(list(fields))}, datum.label)]"


def _stripes(base: Any, field: str, tooltip: Sequence[Any]) -> Any:
    """Upright stripes, unseen until the pointer is over them, that show everything at their place."""
    import altair as alt

    over = alt.selection_point(on="pointerover", clear="pointerout", fields=[field], empty=False)
    look = {"y": alt.value(0), "y2": alt.value("height"), "tooltip": list(tooltip)}
    marks = base.mark_rect(color=COLOUR["soft"])
    return marks.encode(opacity=alt.condition(over, alt.value(0.12), alt.value(0)), **look).add_params(over)


# ---- risk and coverage


def risk_coverage_chart(curves: Mapping[str, Curve], chosen: str | None = None) -> Any:
    """Share of wrong answers among the surest ones, against the share that is kept; one measure stands out."""
    import altair as alt

    measures = [name for name in curves if name not in GUIDES]
    chosen = chosen if chosen in measures else _first(measures)
    guide = " && ".join(f"datum.measure != '{name}'" for name in GUIDES)
    looks = {  # line → colour, dash, width, which rows; drawn in this order
        "other measures": (COLOUR["faint"], SOLID, 1, f"{guide} && datum.measure != {CHOSEN}"),
        "random order": (COLOUR["soft"], DOTTED, 1.5, f"datum.measure == '{RANDOM}'"),
        "best possible order": (COLOUR["ink"], DASHED, 1.25, f"datum.measure == '{OPTIMAL}'"),
        CHOSEN: (COLOUR["accent"], SOLID, 2.5, f"datum.measure == {CHOSEN}"),
    }
    absent = {"random order": RANDOM not in curves, "best possible order": OPTIMAL not in curves}
    absent["other measures"] = len(measures) < 2
    looks = {line: look for line, look in looks.items() if not absent.get(line)}
    order = [line for line in (CHOSEN, "other measures", "best possible order", "random order") if line in looks]
    named = _legend("stroke", labelExpr=f"datum.label == '{CHOSEN}' ? {CHOSEN} : datum.label")
    colour = _colours("line", order, [looks[line][0] for line in order], named)
    dash = _dashes("line", order, [looks[line][1] for line in order], named)
    rows = [
        {"measure": name, "coverage": float(c), "risk": float(r)}
        for name, (coverage, risk) in curves.items()
        for c, r in zip(coverage, risk, strict=True)
    ]
    base = _data(rows).encode(_share_axis("x", "coverage", KEPT, grid=False), _risk_axis(curves.values()))
    layers = [
        base.transform_filter(where)
        .transform_calculate(line=f"'{line}'")
        .mark_line(strokeWidth=width, clip=True)
        .encode(alt.Detail("measure:N"), colour, dash)
        for line, (_, _, width, where) in looks.items()
    ]
    layers.append(_hover(base.transform_filter(f"datum.measure == {CHOSEN}")))
    total = max((float(risk[-1]) for _, risk in curves.values() if len(risk)), default=0.0)
    words = (
        f"Risk–coverage curve: of all answers {format_number(100 * total, 1)} percent are wrong; the "
        "line shows how many "
        f"of the surest are wrong, by the chosen one of {len(measures)} measures."
    )
    return _finished(layers, words, chosen=chosen)


def _risk_axis(curves: Iterable[Curve]) -> Any:
    seen = [float(r) for c, risk in curves for at, r in zip(c, risk, strict=True) if at >= FIRST_SEEN]
    return _share_axis("y", "risk", WRONG, min(1.0, 1.08 * max(seen, default=0.0)) or 1.0)


def _hover(base: Any) -> Any:
    """A dot that follows the pointer along the curve and shows its numbers.

    Vega-Lite 6 loses texts in the tooltip of a nearest point, hence numbers alone.
    """
    import altair as alt

    near = alt.selection_point(nearest=True, on="pointerover", clear="pointerout", fields=["coverage"], empty=False)
    marks = base.mark_point(filled=True, size=90, color=COLOUR["accent"], clip=True)
    tips = _tips(("coverage:Q", "kept", ".1%"), ("risk:Q", WRONG, ".2%"))
    return marks.encode(opacity=alt.condition(near, alt.value(1), alt.value(0)), tooltip=tips).add_params(near)


def curves_figure(name: str, title: str, words: str, curves: Mapping[str, Curve]) -> Figure:
    """Risk–coverage curves of models over one another, and their points for a table."""
    points: list[Row] = [
        {"model": model, KEPT: float(coverage), WRONG: float(risk)}
        for model, curve in curves.items()
        for coverage, risk in zip(*curve, strict=True)
    ]
    shown = {model: {DEFAULT_MEASURE: curve} for model, curve in curves.items()}
    return Figure(name, title, words, lambda: models_chart(shown, DEFAULT_MEASURE), points)


def models_chart(models: Mapping[str, Mapping[str, Curve]], chosen: str | None = None) -> Any:
    """Risk–coverage curves of several models over one another, by one measure."""
    import altair as alt

    curves = {model: {k: curve for k, curve in own.items() if k not in GUIDES} for model, own in models.items()}
    measures = list(dict.fromkeys(name for own in curves.values() for name in own))
    fields: list[Any] = [f"risk{at}" for at in range(len(models))]  # models have people's names, fields their own
    legend = _legend("stroke", labelExpr=_renamed(fields, list(models)))
    base = _data(_side_by_side(curves, measures)).transform_filter(f"datum.measure == {CHOSEN}")
    lines = (
        base.transform_fold(fields, as_=["model", "risk"])
        .transform_filter("isValid(datum.risk)")
        .mark_line(strokeWidth=2, clip=True)
        .encode(
            _share_axis("x", "coverage", KEPT, grid=False),
            _risk_axis(curve for own in curves.values() for curve in own.values()),
            _colours("model", fields, SERIES, legend),
            _dashes("model", fields, _rounds(fields), legend),
        )
    )
    shown = {
        f"shown{at}": f"isValid(datum.risk{at}) ? format(datum.risk{at}, '.2%') : '–'" for at in range(len(models))
    }
    tips = [(f"{name}:N", f"wrong: {model}") for name, model in zip(shown, models, strict=True)]
    stripes = base.transform_calculate(**shown).encode(_share_axis("x", "from", KEPT, grid=False), alt.X2("coverage:Q"))
    layers = [lines, _stripes(stripes, "coverage", _tips(("coverage:Q", "kept", ".1%"), *tips))]
    words = f"Risk–coverage curves of {', '.join(models)}: share of wrong answers among the surest."
    return _finished(layers, words, chosen=chosen if chosen in measures else _first(measures))


def _side_by_side(models: Mapping[str, Mapping[str, Curve]], measures: Sequence[str]) -> list[Row]:
    """One row per measure and coverage, with every model's risk there."""
    places = np.arange(1, STRIPES + 1) / STRIPES
    rows: list[Row] = []
    for measure in measures:
        risks = [
            np.interp(places, *own[measure]).tolist() if measure in own else [None] * STRIPES for own in models.values()
        ]
        for at in range(STRIPES):
            row: Row = {"measure": measure, "from": at / STRIPES, "coverage": (at + 1) / STRIPES}
            rows.append(row | {f"risk{model}": own[at] for model, own in enumerate(risks)})
    return rows


def reliability_chart(curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]]) -> Any:
    """How often it is right, against how sure it claims to be; on the diagonal the two agree."""
    import altair as alt

    rows = [
        {"stage": name, "count": int(n), "confidence": float(p), "accuracy": float(a)}
        for name, (count, confidence, accuracy) in curves.items()
        for n, p, a in zip(count, confidence, accuracy, strict=True)
        if n > 0
    ]
    stages = list(curves)
    x, y = (
        _share_axis("x", "confidence", "how sure it claims to be"),
        _share_axis("y", "accuracy", "how often it is right"),
    )
    legend = _legend("stroke") if len(stages) > 1 else None
    colour = _colours("stage", stages, (COLOUR["accent"], COLOUR["ink"], COLOUR["soft"]), legend)
    dash = _dashes("stage", stages, [(SOLID, DASHED, DOTTED)[at % 3] for at in range(len(stages))], legend)
    base = _data(rows).encode(x, y)
    diagonal = _data([{"confidence": 0, "accuracy": 0}, {"confidence": 1, "accuracy": 1}])
    size = alt.Size("count:Q", scale=alt.Scale(type="sqrt", range=[25, 260]), legend=None)
    tips = _tips(("stage:N", "answers"), ("confidence:Q", "claims", ".1%"), ("accuracy:Q", "right", ".1%"))
    tips += _tips(("count:Q", "how many", ","))
    layers = [
        diagonal.mark_line(strokeWidth=1, color=COLOUR["faint"]).encode(x, y),
        base.mark_line(strokeWidth=1.5, opacity=0.55).encode(colour, dash),
        base.mark_point(filled=True, opacity=1).encode(colour.copy(), size, tooltip=tips),
    ]
    words = (
        f"Reliability diagram ({', '.join(stages)}): how often the model is right against how sure it claims to be; "
        "on the diagonal the two agree. A larger dot stands for more answers."
    )
    return _finished(layers, words)


def corp_chart(curves: Mapping[str, Mapping[str, Sequence[float]]]) -> Any:
    """How often it is right, against how sure it claims to be, without bins; bands are where calibrated ones would lie.

    curves  stage → confidence, calibrated, low, high
    """
    import altair as alt

    fields = ("confidence", "calibrated", "low", "high")
    rows = [
        {"stage": stage, **dict(zip(fields, map(float, point), strict=True))}
        for stage, own in curves.items()
        for point in zip(*(own[name] for name in fields), strict=True)
    ]
    stages = list(curves)
    x, y = (
        _share_axis("x", "confidence", "how sure it claims to be"),
        _share_axis("y", "calibrated", "how often it is right"),
    )
    legend = _legend("stroke") if len(stages) > 1 else None
    colours = COLOUR["accent"], COLOUR["ink"], COLOUR["soft"]
    colour = _colours("stage", stages, colours, legend)
    dash = _dashes("stage", stages, [(SOLID, DASHED, DOTTED)[at % 3] for at in range(len(stages))], legend)
    base = _data(rows)
    diagonal = _data([{"confidence": 0, "calibrated": 0}, {"confidence": 1, "calibrated": 1}])
    low = _share_axis("y", "low", "how often it is right")
    bands = [
        base.transform_filter(alt.FieldEqualPredicate(field="stage", equal=stage))
        .mark_area(opacity=0.12, color=shade)
        .encode(x, low, alt.Y2("high:Q"))
        for stage, shade in zip(stages, colours, strict=False)
    ]
    tips = _tips(("stage:N", "answers"), ("confidence:Q", "claims", ".1%"), ("calibrated:Q", "right", ".1%"))
    tips += _tips(("low:Q", "calibrated from", ".1%"), ("high:Q", "to", ".1%"))
    layers = [
        *bands,
        diagonal.mark_line(strokeWidth=1, color=COLOUR["faint"]).encode(x, y),
        base.mark_line(strokeWidth=2).encode(x, y, colour, dash),
        base.mark_point(filled=True, size=40, opacity=0).encode(x, y, tooltip=tips),
    ]
    words = (
        f"Reliability diagram without bins ({', '.join(stages)}): how often the model is right against how sure it "
        "claims to be; bands are where the line of a calibrated model would lie."
    )
    return _finished(layers, words)


def cost_chart(curves: Mapping[str, Mapping[str, Curve]], chosen: str | None = None) -> Any:
    """What a row costs at the best threshold, against the price of withholding an answer; one measure at a time.

    curves  measure → out-of-distribution set → (prices, costs); the guides among the measures
    """
    rows = [
        {"measure": measure, "set": name, "price": float(price), "cost": float(cost)}
        for measure, own in curves.items()
        for name, (prices, costs) in own.items()
        for price, cost in zip(prices, costs, strict=True)
    ]
    measures = [name for name in curves if name not in GUIDES]
    sets = list(dict.fromkeys(name for measure in measures for name in curves[measure]))
    x = _share_axis("x", "price", "price of withholding an answer, where a failure costs 1", grid=False)
    highest = max(float(max(costs)) for own in curves.values() for _, costs in own.values())
    y = _share_axis("y", "cost", "cost of a row", 1.05 * highest)
    base = _data(rows).encode(x, y)
    tips = _tips(("set:N", "with"), ("price:Q", "price", ".0%"), ("cost:Q", "cost", ".2%"))
    shown = base.transform_filter(f"datum.measure == {CHOSEN}")
    guides = base.transform_filter(f"indexof({json.dumps(GUIDES)}, datum.measure) >= 0")
    with_set = _renamed(sets, [f"with {ood_label(name)}" for name in sets])
    layers = [
        guides.mark_line(strokeWidth=1, color=COLOUR["soft"]).encode(
            _dashes("measure", GUIDES, [DOTTED, DASHED], _legend("stroke", labelExpr=_renamed(GUIDES, COST_GUIDES)))
        ),
        shown.mark_line(strokeWidth=2).encode(_colours("set", sets, SERIES, _legend("stroke", labelExpr=with_set))),
        shown.mark_point(filled=True, size=40, opacity=0).encode(tooltip=tips),
    ]
    words = f"Cost of a row at the best threshold against the price of withholding an answer, with {', '.join(sets)}."
    return _finished(layers, words, chosen=chosen if chosen in measures else _first(measures))


# ---- histograms


def histogram_chart(curves: Mapping[str, Mapping[str, Any]], chosen: str | None = None) -> Any:
    """How unsure the model is where it is right, where it is wrong, and out of distribution."""
    import altair as alt

    outside = list(dict.fromkeys(name for own in curves.values() for name in own.get("out") or {}))
    kinds = ["right", "wrong", *(f"out-of-distribution: {name}" for name in outside)]
    shares: list[Any] = [f"share{at}" for at in range(len(kinds))]  # kinds are people's words, fields have own names
    bins = [step for measure, own in curves.items() for step in _steps(measure, own, outside)]
    colours = [COLOUR["soft"], COLOUR["accent"], *(COLOUR["ink"] for _ in outside)]
    dashes = [SOLID, SOLID, *((SOLID, DASHED, DOTTED, [8, 3, 1, 3])[at % 4] for at in range(len(outside)))]
    legend = _legend("stroke", 180, labelExpr=_renamed(shares, kinds))
    x = alt.X("u:Q", title="less sure →", scale=alt.Scale(zero=False, nice=False))
    x = x.axis(format=NUMBER, grid=False, tickCount=alt.ExprRef(expr=FEW_TICKS))
    y = alt.Y("share:Q", title="share of its kind", stack=None, axis=alt.Axis(format="~%"))
    base = _data(bins).transform_filter(f"datum.measure == {CHOSEN}").encode(x)
    folded = base.transform_fold(shares, as_=["kind", "share"]).transform_filter("isValid(datum.share)").encode(y)
    layers = [
        folded.transform_filter(f"datum.kind == '{share}'").mark_area(
            interpolate="step-after", opacity=0.16, color=colour
        )
        for share, colour in zip(shares[:2], colours[:2], strict=True)
    ]
    lines = folded.mark_line(interpolate="step-after", strokeWidth=1.75)
    layers.append(lines.encode(_colours("kind", shares, colours, legend), _dashes("kind", shares, dashes, legend)))
    shown = {
        f"shown{at}": f"isValid(datum.share{at}) ? format(datum.share{at}, '.1%') + ' (' + datum.count{at} + ')' : '–'"
        for at in range(len(kinds))
    }
    tips = [(f"{name}:N", kind) for name, kind in zip(shown, kinds, strict=True)]
    stripes = base.transform_filter("datum.u < datum.to").transform_calculate(**shown).encode(alt.X2("to:Q"))
    layers.append(_stripes(stripes, "u", _tips(("u:Q", "from", ".4~g"), ("to:Q", "to", ".4~g"), *tips)))
    words = (
        f"Histogram of uncertainty by the chosen measure: share of {', '.join(kinds)} in each range, less sure to the "
        "right."
    )
    return _finished(layers, words, chosen=chosen or _first(list(curves)))


def _steps(measure: str, own: Mapping[str, Any], outside: Sequence[str]) -> list[Row]:
    """One row per bin: its edges, and count and share of every kind; one more closes the last bin's step."""
    edges = [float(edge) for edge in own["edges"]]
    counts = [own.get("right"), own.get("wrong"), *((own.get("out") or {}).get(name) for name in outside)]
    steps: list[Row] = [{"measure": measure, "u": low, "to": high} for low, high in pairwise(edges)]
    for at, kind in enumerate(counts):
        total = float(sum(kind)) if kind is not None else 0.0
        for place, step in enumerate(steps):
            n = kind[place] if kind is not None and total else None
            step[f"count{at}"] = None if n is None else int(n)
            step[f"share{at}"] = None if n is None else float(n) / total
    return [*steps, {**steps[-1], "u": edges[-1]}] if steps else []


def bars_chart(
    values: Sequence[float], edges: Sequence[float], title: str, guide: tuple[str, float], words: str
) -> Any:
    """How many values lie between every two edges; `guide` is a named upright line."""
    import altair as alt

    counts, _ = np.histogram(values, edges)
    bars = [
        {"low": float(low), "high": float(high), "rows": int(rows)}
        for (low, high), rows in zip(pairwise(edges), counts, strict=True)
    ]
    x = alt.X("low:Q", title=title).axis(format=NUMBER, tickCount=alt.ExprRef(expr=FEW_TICKS))
    tips = _tips(("low:Q", "from", ".3f"), ("high:Q", "to", ".3f"), ("rows:Q", "rows"))
    marks = _data(bars).mark_bar(color=COLOUR["accent"], binSpacing=1)
    marks = marks.encode(x.bin("binned"), alt.X2("high:Q"), alt.Y("rows:Q", title="rows"), tooltip=tips)
    return _finished([marks, *_guide("x", guide[1], guide[0], field="low", strokeDash=DASHED)], words)


# ---- values of models


def intervals_chart(points: Sequence[Row], chosen: str | None = None) -> Any:
    """Every model's value with its interval; accented dots cannot be told from the best.

    A point holds `question`, `model`, `rank`, `value`, `low`, `high` (or None) and `best`.
    """
    import altair as alt

    verdicts = ["cannot be told from the best", "behind the best"]
    rows = [
        {"question": str(p["question"]), "model": str(p["model"]), "rank": p["rank"], "value": float(p["value"])}
        | {end: float(p["value"] if p[end] is None else p[end]) for end in ("low", "high")}
        | {"verdict": verdicts[not p["best"]]}
        for p in points
    ]
    questions, models = _names(rows, "question"), _names(rows, "model")
    colour = _colours("verdict", verdicts, (COLOUR["accent"], COLOUR["soft"]), _legend("circle", 200))
    y = alt.Y("model:N", title=None, sort=alt.EncodingSortField("rank"), axis=alt.Axis(labelLimit=180, grid=False))
    base = _data(rows).transform_filter(f"datum.question == {CHOSEN}").encode(y)
    tips = _tips(("model:N", "model"), *((f"{name}:Q", word, ".4f") for name, word in _VALUE_TIPS))
    tips += _tips(("rank:Q", "rank"), ("verdict:N", "verdict"))
    bars = base.mark_rule(strokeWidth=2).encode(_number_axis("x", "low", nice=True), alt.X2("high:Q"), colour)
    dots = base.mark_point(filled=True, size=110, opacity=1).encode(alt.X("value:Q"), colour.copy(), tooltip=tips)
    words = "Values and intervals of each model; dots in the accent colour cannot be told from the best."
    chosen = chosen if chosen in questions else questions[0] if questions else ""
    return _finished([bars, dots], words, 34 * max(2, len(models)), chosen)


_VALUE_TIPS = (("value", "value"), ("low", "from"), ("high", "to"))


def dots_chart(points: Sequence[Row], title: str, guide: tuple[str, float] | None = None) -> Any:
    """Values of names, one dot per kind and a line between them; `guide` is a named upright line.

    A point holds `name`, `kind`, `value` and `spread`; names stand in the order of the points.
    """
    import altair as alt

    names, kinds = _names(points, "name"), _names(points, "kind")
    rows = [
        {"name": str(p["name"]), "kind": str(p["kind"]), "value": float(p["value"])}
        | {"spread": f"± {format_number(p['spread'], 3)}" if p.get("spread") is not None else "one seed"}
        for p in points
    ]
    x = _number_axis("x", "value", title, "~%")
    y = alt.Y("name:N", title=None, sort=names, axis=alt.Axis(labelLimit=240, grid=False, labelColor=COLOUR["ink"]))
    ends = _data(rows).transform_aggregate(low="min(value)", high="max(value)", groupby=["name"])
    between = ends.mark_rule(strokeWidth=2, color=COLOUR["faint"])
    colours = (COLOUR["soft"], COLOUR["accent"], *SERIES[1:])[len(kinds) == 1 :]
    tips = _tips(("name:N", "method"), ("kind:N", "as"), ("value:Q", "mean", ".2%"), ("spread:N", "over seeds"))
    colour = _colours("kind", kinds, colours, _legend("circle", 170) if len(kinds) > 1 else None)
    dots = _data(rows).mark_point(filled=True, size=120, opacity=1).encode(x, y, colour, tooltip=tips)
    layers = [between.encode(alt.X("low:Q", title=title), alt.X2("high:Q"), y), dots]
    if guide:
        mark = _data([{"value": float(guide[1]), "text": guide[0]}])
        layers.insert(0, mark.mark_rule(strokeDash=DASHED, color=COLOUR["ink"]).encode(x))
        text = mark.mark_text(align="right", baseline="bottom", dx=-5, dy=-4, fontSize=12, color=COLOUR["ink"])
        layers.append(text.encode(x, alt.Text("text:N"), y=alt.value("height")))
    words = f"{title} of {', '.join(names)}" + (f"; {guide[0]} at {format_number(guide[1], 3)}" if guide else "")
    return _finished(layers, f"{words}.", 30 * max(3, len(names)))


def heat_figure(
    key: str, title: str, words: str, cells: Sequence[Row], axis: str, floor: float, names: tuple[str, str, str]
) -> Figure | None:
    """The figure of `heat_figure` with its numbers; None of fewer than two cells."""
    if len(cells) < 2:
        return None
    line, column, n = names
    points = [{line: cell["line"], column: cell["column"], axis: cell["value"], n: cell["n"]} for cell in cells]
    return Figure(key, title, words, lambda: heat_chart(cells, axis, floor, names), points)


def heat_chart(
    cells: Sequence[Row],
    title: str,
    floor: float,
    names: tuple[str, str, str] = ("method", "measure", "mean over lines"),
    format: str = ".2f",
) -> Any:
    """A value for every line and column, with more colour where it is higher and none below `floor`.

    A cell holds `line`, `column`, `value` and `n`; lines and columns stand in the order of the cells, and `names` are
    what tooltips call line, column and n.
    """
    import altair as alt

    lines, columns = _names(cells, "line"), _names(cells, "column")
    rows = [
        {"line": str(c["line"]), "column": str(c["column"]), "value": float(c["value"]), "n": int(c["n"])}
        for c in cells
    ]
    line, column, n = names
    narrow = f"width < {LETTER * len(columns) * (2 + max(map(len, columns)))}"  # the longest name fills its column
    base = _data(rows).encode(
        alt.X("column:N", title=None, sort=columns).axis(
            orient="top",
            labelAngle=alt.ExprRef(f"{narrow} ? -50 : 0"),
            labelAlign=alt.ExprRef(f"{narrow} ? 'left' : 'center'"),
        ),
        alt.Y("line:N", title=None, sort=lines, axis=alt.Axis(labelLimit=300)),
        tooltip=_tips(("line:N", line), ("column:N", column), ("value:Q", title, ".4f"), ("n:Q", n)),
    )
    # one colour, more of it where the value is higher: its ground may be light or dark; good values differ little
    top = max((float(c["value"]) for c in cells if c["value"] > floor), default=floor + 1)
    scale = alt.Scale(type="pow", exponent=STEEP, domain=[floor, top], range=[0.02, 0.6], clamp=True)
    shades = base.mark_rect(color=COLOUR["accent"], cornerRadius=3, stroke=COLOUR["ground"])
    texts = base.mark_text(fontSize=alt.ExprRef("width < 480 ? 9.5 : 12"), color=COLOUR["ink"])
    layers = [
        shades.encode(alt.Opacity("value:Q", scale=scale, legend=None)),
        texts.encode(alt.Text("value:Q", format=format)),
    ]
    words = f"Heat map of {title}: {', '.join(lines)} by {', '.join(columns)}; more colour is higher."
    return _finished(layers, words, 28 * max(3, len(lines)))


# ---- many models in one picture


NAMED_POINTS = 15  # that have their names and intervals in a cloud; more would hide each other


def scatter_chart(
    points: Sequence[Row],
    x: str,
    y: str,
    *,
    tips: Mapping[str, str] | None = None,
    log: bool = False,
    front: Sequence[tuple[float, float]] = (),
    links: Sequence[tuple[Row, Row]] = (),
    guides: Sequence[tuple[str, float]] = (),
    spans: tuple[float, float] = (0.0, 0.0),
) -> Any:
    """Two numbers of many things, coloured and shaped by `name` (OTHERS is grey); a click on a name shows it alone.

    points  each holds `name`, the numbers under the names x and y, and what `tips` name; perhaps `parameters`, the size
            of its mark, and `distilled`, a dot in it; "NUMBER, from" and "NUMBER, to" are the ends of an interval. Up
            to NAMED_POINTS of them show their intervals, and their `model` as a name
    tips    what else a tooltip shows: key of the points → title
    front   a dashed line through these points
    links   pairs of points with a line between them
    guides  ("x", value) is an upright line, ("y", value) a level one
    spans   what the two axes span at least
    """
    import altair as alt

    names = sorted(_names(points, "name"), key=lambda name: name == OTHERS)
    tips = tips or {}
    only = alt.selection_point(fields=["name"], bind="legend")
    legend = _legend("circle", 132, symbolStrokeWidth=0, symbolSize=90, symbolLimit=0)
    colours = [COLOUR["faint"] if name == OTHERS else SERIES[at % len(SERIES)] for at, name in enumerate(names)]
    shapes = alt.Scale(domain=names, range=[SHAPES[at // len(SERIES) % len(SHAPES)] for at in range(len(names))])
    least = min((float(point[x]) for point in points), default=1.0)  # below 1 the letters of ~s are thousandths
    format = "~s" if log and least >= 1 else NUMBER
    axes = (
        _number_axis("x", "x", x, format, log=log, **_domain(points, x, spans[0])),
        _number_axis("y", "y", y, **_domain(points, y, spans[1])),
    )
    base = _data(_cloud_rows(points, x, y, names, tips)).encode(*axes)
    sized = any(point.get("parameters") for point in points)
    looks: dict[str, Any] = {"opacity": alt.condition(only, alt.value(0.8), alt.value(0.07))}
    if sized:
        looks["size"] = alt.Size("size:Q", scale=alt.Scale(type="sqrt", range=[SMALL, LARGE]), legend=None)
    shown = [(f"{key}:N", title) for key, title in tips.items()] + [("x:Q", x, ".4~g"), ("y:Q", y, ".4~g")]
    shown += [("params:N", "parameters")] if sized else []
    marks = base.mark_point(filled=True, **({} if sized else {"size": 80})).encode(
        _colours("name", names, colours, legend), alt.Shape("name:N", scale=shapes, legend=legend), **looks
    )
    layers = [layer for side, at in guides for layer in _guide(side, at, color=COLOUR["soft"])]
    layers += [_links(links, x, y, axes)] if links else []
    few = len(points) <= NAMED_POINTS
    layers += [_bars(points, x, y, axes, side) for side in (x, y) if few and _ends(points, side)]
    layers.append(marks.encode(tooltip=_tips(*shown)).add_params(only))
    if any(point.get("distilled") for point in points):
        dots = base.transform_filter("datum.dot == 1").mark_point(filled=True, size=10, color=COLOUR["ink"])
        layers.append(dots.encode(opacity=alt.condition(only, alt.value(1), alt.value(0))))
    if few and all("model" in point for point in points):
        words = [{"x": float(p[x]), "y": float(p[y]), "model": str(p["model"])} for p in points]
        text = _data(words).mark_text(dy=-13, fontSize=11, limit=220, color=COLOUR["ink"])
        layers.append(text.encode(*axes, alt.Text("model:N")))
    if len(front) > 1:
        line = _data([{"x": float(a), "y": float(b)} for a, b in front])
        layers.append(line.mark_line(strokeDash=DASHED, strokeWidth=1.25, color=COLOUR["ink"]).encode(*axes))
    return _finished(layers, f"{len(points)} points of {', '.join(names)}: {y} against {x}.", 420 if sized else 340)


def _ends(points: Sequence[Row], name: str) -> list[float]:
    """Both ends of the intervals of a number."""
    ends = [point.get(f"{name}, {end}") for point in points for end in ("from", "to")]
    return [float(end) for end in ends if end is not None]


def _domain(points: Sequence[Row], name: str, span: float) -> dict[str, Any]:
    """The domain of an axis whose values would span less; nothing where they span enough."""
    shown = len(points) <= NAMED_POINTS
    values = [float(point[name]) for point in points] + (_ends(points, name) if shown else [])
    low, high = min(values), max(values)
    if high - low >= span:
        return {}
    room = (span - (high - low)) / 2
    return {"domain": [low - room, high + room]}


def _bars(points: Sequence[Row], x: str, y: str, axes: Sequence[Any], side: str) -> Any:
    """Intervals of a number as lines through the marks."""
    import altair as alt

    rows: list[Row] = []
    for point in points:
        ends = _ends([point], side)
        if len(ends) == 2:
            across = side == x
            row = {"x": float(point[x]), "y": float(point[y])}
            rows.append(row | ({"x": ends[0], "x2": ends[1]} if across else {"y": ends[0], "y2": ends[1]}))
    rules = _data(rows).mark_rule(strokeWidth=1.25, color=COLOUR["soft"])
    return rules.encode(*axes, alt.X2("x2:Q") if side == x else alt.Y2("y2:Q"))


def _cloud_rows(points: Sequence[Row], x: str, y: str, names: Sequence[str], tips: Mapping[str, str]) -> list[Row]:
    """The points as the chart holds them, the grey ones first."""
    sizes = [float(point["parameters"]) for point in points if point.get("parameters")]
    usual = median(sizes or [1.0])
    order = sorted(points, key=lambda p: -1 if p["name"] == OTHERS else names.index(str(p["name"])))
    return [
        {"name": str(p["name"]), **{key: str(p[key]) for key in tips}, "x": float(p[x]), "y": float(p[y])}
        | {"size": float(p.get("parameters") or usual), "dot": int(bool(p.get("distilled")))}
        | {"params": format_millions(p.get("parameters"))}
        for p in order
    ]


def _links(links: Sequence[tuple[Row, Row]], x: str, y: str, axes: Sequence[Any]) -> Any:
    import altair as alt

    ends = [{"x": float(a[x]), "y": float(a[y]), "x2": float(b[x]), "y2": float(b[y])} for a, b in links]
    rules = _data(ends).mark_rule(strokeWidth=1, color=COLOUR["soft"], opacity=0.7)
    return rules.encode(*axes, alt.X2("x2:Q"), alt.Y2("y2:Q"))


def changes_chart(points: Sequence[Row], title: str) -> Any:
    """Relative changes of models, one column per kind, above the line for the better; a bar marks each median.

    A point holds `kind`, `model`, `than` (what it is compared with) and `value` (0.01 is one percent).
    """
    import altair as alt

    kinds = _names(points, "kind")
    rows: list[Row] = []
    middles: list[Row] = []
    for column, kind in enumerate(kinds):
        own = [point for point in points if str(point["kind"]) == kind]
        for place, point in enumerate(own):
            aside = APART * ((place * GOLDEN) % 1 - 0.5) if len(own) > 1 else 0.0
            row = {"kind": kind, "model": str(point["model"]), "than": str(point["than"])}
            rows.append(row | {"value": float(point["value"]), "x": column + aside})
        middle = median(float(point["value"]) for point in own)
        middles.append({"left": column - APART / 2, "right": column + APART / 2, "value": middle})
    words = json.dumps([kind.split(" ") for kind in kinds])  # a label of several lines is a list
    axis = alt.Axis(values=list(range(len(kinds))), labelExpr=f"{words}[datum.value]", labelOverlap=False, grid=False)
    scale = alt.Scale(domain=[-0.5, len(kinds) - 0.5], nice=False)
    y = alt.Y("value:Q", title=title, axis=alt.Axis(format="+.1~%"))
    tips = _tips(("model:N", "model"), ("than:N", "compared with"), ("value:Q", title, "+.2%"))
    marks = _data(rows).mark_point(filled=True, size=46, opacity=0.6, color=COLOUR["accent"])
    bars = _data(middles).mark_rule(strokeWidth=2, color=COLOUR["ink"])
    layers = [
        *_guide("y", 0.0, field="value", color=COLOUR["soft"]),
        marks.encode(alt.X("x:Q", title=None, scale=scale, axis=axis), y, tooltip=tips),
        bars.encode(alt.X("left:Q", scale=scale, axis=axis, title=None), alt.X2("right:Q"), y),
    ]
    alike = f"{title} of {len(rows)} models by {', '.join(kinds)}; above the line is better."
    return _finished(layers, alike, 340)


# ---- levels


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
        ordered = np.sort(np.asarray(values, np.float64))
        lower, middle, upper = (float(q) for q in np.quantile(ordered, (0.25, 0.5, 0.75)))
        reach = REACH * (upper - lower)
        near = ordered[(ordered >= lower - reach) & (ordered <= upper + reach)]
        # an interpolated quartile may lie beyond all values that are near: a whisker then ends at the box
        low, high = min(float(near[0]), lower), max(float(near[-1]), upper)
        return cls(low, lower, middle, upper, high, tuple(float(v) for v in ordered if v < low or v > high))


def box_chart(
    levels: Mapping[str, Mapping[str, float]],
    title: str,
    *,
    lines: Mapping[str, Mapping[str, float]] | None = None,
    apart: Sequence[str] = (),
    guide: float | None = None,
    format: str = ".3f",
    ticks: Mapping[str, str] | None = None,
) -> Any:
    """One box per level over the values of all models there; `lines` single out some models, `guide` is a level line.

    levels  level → {model: value}, in the order in which they stand
    lines   name → {level: value}
    apart   levels that are no step of the others: a line does not go there, its point does
    format    how a tooltip prints a value
    ticks   shorter names of levels on the axis
    """
    import altair as alt

    names = [level for level, values in levels.items() if values]
    boxes: list[Row] = []
    beyond: list[Row] = []
    for level in names:
        box = Box.of(list(levels[level].values()))
        ends = {"low": box.low, "lower": box.lower, "middle": box.middle, "upper": box.upper, "high": box.high}
        boxes.append({"level": level, **ends, "n": len(levels[level])})
        beyond += [
            {"level": level, "model": model, "value": float(value)}
            for model, value in levels[level].items()
            if not box.low <= value <= box.high
        ]
    x = _level_axis(names, ticks)
    base = _data(boxes).encode(x)
    quartiles = (
        ("middle:Q", "median", format),
        ("lower:Q", "lower quartile", format),
        ("upper:Q", "upper quartile", format),
    )
    bars = base.mark_bar(size=18, color=COLOUR["accent"], opacity=0.35)
    middles = base.mark_tick(size=18, thickness=2, color=COLOUR["accent"], opacity=1)
    layers = [] if guide is None else _guide("y", guide, field="value")
    layers += [
        base.mark_rule(color=COLOUR["soft"]).encode(_value_axis("low", title, format), alt.Y2("high:Q")),
        bars.encode(
            _value_axis("lower", title, format),
            alt.Y2("upper:Q"),
            tooltip=_tips(("level:N", "at"), *quartiles, ("n:Q", "models")),
        ),
        middles.encode(_value_axis("middle", title, format)),
    ]
    if beyond:
        far = _data(beyond).mark_point(size=18, color=COLOUR["soft"], opacity=0.8)
        tips = _tips(("model:N", "model"), ("value:Q", title, format))
        layers.append(far.encode(x, _value_axis("value", title, format), tooltip=tips))
    if lines:
        layers += _level_lines(lines, names, x, _value_axis("value", title, format), format, apart)
    most = max((len(values) for values in levels.values()), default=0)
    return _finished(layers, f"{title} of up to {most} models: one box each at {', '.join(names)}.", 340)


def levels_chart(
    lines: Mapping[str, Mapping[str, float]],
    title: str,
    *,
    guide: float | None = None,
    format: str = ".3f",
    ticks: Mapping[str, str] | None = None,
    positions: Mapping[str, float] | None = None,
    axis: str | None = None,
    kin: Mapping[str, str] | None = None,
) -> Any:
    """One line per name over the levels, in the order in which they are first seen; `guide` is a level line.

    positions  where levels that are numbers stand on an axis of numbers (default: side by side), whose title is `axis`
    kin     name → the name of another line, whose colour it has, dashed
    """
    names = list(dict.fromkeys(level for line in lines.values() for level in line))
    x = _level_axis(names, ticks) if positions is None else _number_axis("x", "position", axis, "~f")
    layers = [] if guide is None else _guide("y", guide, field="value")
    layers += _level_lines(lines, names, x, _value_axis("value", title, format), format, positions=positions, kin=kin)
    return _finished(layers, f"{title} of {', '.join(lines)} at {', '.join(names)}.", 320)


def levels_figure(
    key: str,
    title: str,
    words: str,
    values: Mapping[str, Mapping[str, float]],
    names: tuple[str, str, str],
    figure: Callable[..., Any] = levels_chart,
    **look: Any,
) -> Figure:
    """Lines over levels, or boxes of them, with their numbers; `names` of outer keys, inner keys and values."""
    outer, inner, axis = names
    points = [{outer: a, inner: b, axis: float(value)} for a, own in values.items() for b, value in own.items()]
    return Figure(key, title, words, lambda: figure(values, axis, **look), points)


def _value_axis(field: str, title: str, format: str) -> Any:
    return _number_axis("y", field, title, "+.1~%" if format.endswith("%") else NUMBER, pad=8)


def _level_lines(
    lines: Mapping[str, Mapping[str, float]],
    levels: Sequence[str],
    x: Any,
    y: Any,
    format: str,
    apart: Sequence[str] = (),
    positions: Mapping[str, float] | None = None,
    kin: Mapping[str, str] | None = None,
) -> list[Any]:
    positions = positions or {}
    rows = [
        {"name": name, "level": level, "value": float(line[level]), "step": int(level not in apart)}
        | ({"position": positions[level]} if positions else {})
        for name, line in lines.items()
        for level in levels
        if level in line
    ]
    names = list(lines)
    colours, dashes = (*SERIES[1:], SERIES[0]), _rounds(names)
    if kin is not None:
        first = [name for name in names if kin.get(name) not in names]  # those that have a colour of their own
        turns = {name: divmod(at, len(colours)) for at, name in enumerate(first)}
        dashes = [(SOLID, DOTTED)[turns[name][0] % 2] if name in turns else DASHED for name in names]
        colours = tuple(colours[turns[name if name in turns else kin[name]][1]] for name in names)
    legend = _legend("stroke", min(170, 52 + 8 * max(map(len, names), default=0)))
    base = _data(rows).encode(x, y, _colours("name", names, colours, legend))
    tips = _tips(("name:N", "of"), ("level:N", "at"), ("value:Q", "value", format))
    drawn = base.transform_filter("datum.step == 1").mark_line(strokeWidth=1.75)
    return [
        drawn.encode(_dashes("name", names, dashes, legend)),
        base.mark_point(filled=True, size=48, opacity=1).encode(tooltip=tips),
    ]
