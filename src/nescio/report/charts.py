"""Pure functions from curves to Altair charts.

A chart takes its colours from a palette: PAPER holds fixed colours for figures in files, PAGE names the custom
properties of the HTML page, so that light, dark and print are a matter of its style sheet alone.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from nescio.report.cells import USUAL, Row, by_fame, model_name, number, question

PAPER = {
    "ink": "#1c2230",
    "soft": "#667085",
    "faint": "#c9cfda",
    "rule": "#e6e9ef",
    "ground": "#ffffff",
    "accent": "#2b5fd9",
    **{
        f"c{i}": colour
        for i, colour in enumerate(
            ("#2b5fd9", "#c2550a", "#1a7f64", "#a3307f", "#7a6400", "#5b3fc4", "#0f7c99", "#b3363b"), start=1
        )
    },
}
PAGE = {name: f"var(--{name})" for name in PAPER}
MODEL_COLOURS = 8
CHOSEN, OTHERS, OPTIMAL, RANDOM = "chosen", "other measures", "best possible order", "random order"
KEPT, WRONG = "share of answers kept, the surest first", "wrong among them"  # axes of a risk–coverage curve
GUIDES = ("optimal", "random")  # lines that stand beside the measures in curves["risk_coverage"]
FIRST_SEEN = 0.05  # coverages below this do not set the height of the picture: few rows, wild shares
POINTS = 400  # of a risk–coverage curve: more cannot be seen
STRIPES = 200  # coverages at which several models are compared
BINS = 30  # of a histogram
TAILS = (0.005, 0.995)  # quantiles between which a histogram is drawn: densities have far outliers
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

Curve = tuple[Sequence[float], Sequence[float]]


def config(palette: Mapping[str, str] = PAPER) -> dict[str, Any]:
    """The look that all charts share: no frame, quiet grid, the page's letters."""
    axis = {"labelColor": palette["soft"], "titleColor": palette["soft"], "gridColor": palette["rule"]}
    return {
        "background": "transparent" if palette is PAGE else palette["ground"],
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            **axis,
            "domain": False,
            "ticks": False,
            "labelPadding": 8,
            "titlePadding": 12,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "tickCount": 5,
        },
        "legend": {
            "orient": "top",
            "direction": "horizontal",
            "title": None,
            "labelColor": palette["ink"],
            "labelFontSize": 12,
            "labelLimit": 260,
            "symbolStrokeWidth": 2,
            "columnPadding": 16,
            "padding": 0,
            "offset": 12,
        },
    }


def curves_of(drawn: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The points of all figures, from what a scorecard keeps of its raw and calibrated versions.

    A version holds `wrong` (n,), `u` {measure: (n,)}, `out` {measure: {set: (n,)}} and `answers`.
    """
    from nescio.metrics import reliability_curve, risk_coverage

    raw = drawn.get("raw", {})
    wrong = raw.get("wrong")
    curves: dict[str, Any] = {}
    for version, held in drawn.items():
        if held.get("answers") is not None:
            bins = reliability_curve(held["answers"])
            curves.setdefault("reliability", {})[version] = bins.count, bins.confidence, bins.accuracy
    if wrong is None:
        return curves
    wrong = np.asarray(wrong, bool)
    if raw.get("u"):
        at = np.unique(np.linspace(0, len(wrong) - 1, POINTS).round().astype(int))
        lines = {}
        for measure, u in raw["u"].items():
            coverage, risk = risk_coverage(u, wrong)
            lines[measure] = coverage[at], risk[at]
        kept, errors = at + 1, int(wrong.sum())
        lines["optimal"] = kept / len(wrong), np.maximum(0, kept - (len(wrong) - errors)) / kept
        lines["random"] = np.array([0.0, 1.0]), np.full(2, errors / len(wrong))
        curves["risk_coverage"] = lines
        curves["histogram"] = {
            measure: _histogram(np.asarray(u), wrong, (raw.get("out") or {}).get(measure, {}))
            for measure, u in raw["u"].items()
        }
    return curves


def _histogram(u: Any, wrong: Any, outside: Mapping[str, Any]) -> dict[str, Any]:
    """Counts of right, wrong and out-domain rows in shared bins; the outermost bins hold the far tails."""
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


def measures_of(curves: Mapping[str, Any]) -> list[str]:
    """The measures that a card's curves can show, the best known first."""
    names = dict.fromkeys([*curves.get("risk_coverage", {}), *curves.get("histogram", {})])
    return sorted((name for name in names if name not in GUIDES), key=by_fame)


def risk_coverage_figure(
    curves: Mapping[str, Curve], chosen: str | None = None, palette: Mapping[str, str] = PAPER
) -> Any:
    """Share of wrong answers among the surest ones, against the share that is kept; one measure stands out."""
    import altair as alt

    measures = [name for name in curves if name not in GUIDES]
    chosen = chosen if chosen in measures else _first(measures)
    choice = alt.param(name=CHOSEN, value=chosen)
    total = max((float(risk[-1]) for _, risk in curves.values() if len(risk)), default=0.0)
    keys = [CHOSEN, *([OTHERS] if len(measures) > 1 else [])]
    keys += [key for key, name in ((OPTIMAL, "optimal"), (RANDOM, "random")) if name in curves]
    look = {
        CHOSEN: (palette["accent"], [1, 0]),
        OTHERS: (palette["faint"], [1, 0]),
        OPTIMAL: (palette["ink"], [5, 3]),
        RANDOM: (palette["soft"], [1, 3]),
    }
    named = _legend("stroke", labelExpr=f"datum.label == '{CHOSEN}' ? {CHOSEN} : datum.label")
    colour = alt.Scale(domain=keys, range=[look[key][0] for key in keys])
    dash = alt.Scale(domain=keys, range=[look[key][1] for key in keys])
    base = alt.Chart(_inline(_points(curves, "measure"))).encode(_kept("coverage"), _wrong(curves.values()))

    def line(key: str, where: str, width: float) -> Any:
        return (
            base.transform_filter(where)
            .transform_calculate(line=f"'{key}'")
            .mark_line(strokeWidth=width, clip=True)
            .encode(
                alt.Detail("measure:N"),
                alt.Color("line:N", scale=colour, legend=named),
                alt.StrokeDash("line:N", scale=dash, legend=named),
            )
        )

    guide = " && ".join(f"datum.measure != '{name}'" for name in GUIDES)
    layers = [line(OTHERS, f"{guide} && datum.measure != {CHOSEN}", 1)] if OTHERS in keys else []
    layers += [line(RANDOM, "datum.measure == 'random'", 1.5)] if RANDOM in keys else []
    layers += [line(OPTIMAL, "datum.measure == 'optimal'", 1.25)] if OPTIMAL in keys else []
    layers.append(line(CHOSEN, f"datum.measure == {CHOSEN}", 2.5))
    layers.append(_hover(base.transform_filter(f"datum.measure == {CHOSEN}"), palette))
    return _dress(
        alt.layer(*layers).add_params(choice),
        palette,
        f"Risk–coverage curve: of all answers {number(100 * total, 1)} percent are wrong; the line shows how many "
        f"of the surest are wrong, by the chosen one of {len(measures)} measures.",
    )


def models_figure(
    models: Mapping[str, Mapping[str, Curve]], chosen: str | None = None, palette: Mapping[str, str] = PAPER
) -> Any:
    """Risk–coverage curves of several models over one another, by one measure."""
    import altair as alt

    lines_of = {
        model: {name: curve for name, curve in curves.items() if name not in GUIDES} for model, curves in models.items()
    }
    measures = list(dict.fromkeys(name for curves in lines_of.values() for name in curves))
    chosen = chosen if chosen in measures else _first(measures)
    fields: list[Any] = [f"risk{at}" for at in range(len(models))]  # models have people's names, fields their own
    colours = [palette[f"c{at % MODEL_COLOURS + 1}"] for at in range(len(models))]
    dashes = [[1, 0] if at < MODEL_COLOURS else [5, 3] for at in range(len(models))]
    legend = _legend("stroke", labelExpr=f"{json.dumps(list(models))}[indexof({json.dumps(fields)}, datum.label)]")
    base = alt.Chart(_inline(_side_by_side(lines_of, measures))).transform_filter(f"datum.measure == {CHOSEN}")
    lines = (
        base.transform_fold(fields, as_=["model", "risk"])
        .transform_filter("isValid(datum.risk)")
        .mark_line(strokeWidth=2, clip=True)
        .encode(
            _kept("coverage"),
            _wrong(curve for curves in lines_of.values() for curve in curves.values()),
            alt.Color("model:N", scale=alt.Scale(domain=fields, range=colours), legend=legend),
            alt.StrokeDash("model:N", scale=alt.Scale(domain=fields, range=dashes), legend=legend),
        )
    )
    said = {f"said{at}": f"isValid(datum.risk{at}) ? format(datum.risk{at}, '.2%') : '–'" for at in range(len(models))}
    touch = _touch(
        base.transform_calculate(**said).encode(_kept("from"), alt.X2("coverage:Q")),
        "coverage",
        [
            alt.Tooltip("coverage:Q", title="kept", format=".1%"),
            *(alt.Tooltip(f"{name}:N", title=f"wrong: {model}") for name, model in zip(said, models, strict=True)),
        ],
        palette,
    )
    return _dress(
        alt.layer(lines, touch).add_params(alt.param(name=CHOSEN, value=chosen)),
        palette,
        f"Risk–coverage curves of {', '.join(models)}: share of wrong answers among the surest.",
    )


def reliability_figure(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]], palette: Mapping[str, str] = PAPER
) -> Any:
    """How often it is right, against how sure it claims to be; on the diagonal the two agree."""
    import altair as alt

    rows = [
        {"stage": name, "count": int(n), "confidence": float(p), "accuracy": float(a)}
        for name, (count, confidence, accuracy) in curves.items()
        for n, p, a in zip(count, confidence, accuracy, strict=True)
        if n > 0
    ]
    stages = list(curves)
    looks = [(palette["accent"], [1, 0]), (palette["ink"], [5, 3]), (palette["soft"], [1, 3])]
    domain = alt.Scale(domain=[0, 1], nice=False)
    x = alt.X("confidence:Q", title="how sure it claims to be", scale=domain, axis=alt.Axis(format="%"))
    y = alt.Y("accuracy:Q", title="how often it is right", scale=domain, axis=alt.Axis(format="%"))
    legend = _legend("stroke") if len(stages) > 1 else None
    colour = alt.Color(
        "stage:N", scale=alt.Scale(domain=stages, range=[looks[i % 3][0] for i in range(len(stages))]), legend=legend
    )
    dash = alt.StrokeDash(
        "stage:N", scale=alt.Scale(domain=stages, range=[looks[i % 3][1] for i in range(len(stages))]), legend=legend
    )
    base = alt.Chart(_inline(rows)).encode(x, y)
    diagonal = (
        alt.Chart(_inline([{"confidence": 0, "accuracy": 0}, {"confidence": 1, "accuracy": 1}]))
        .mark_line(strokeWidth=1, color=palette["faint"])
        .encode(x, y)
    )
    lines = base.mark_line(strokeWidth=1.5, opacity=0.55).encode(colour, dash)
    points = base.mark_point(filled=True, opacity=1).encode(
        colour.copy(),
        alt.Size("count:Q", scale=alt.Scale(type="sqrt", range=[25, 260]), legend=None),
        tooltip=[
            alt.Tooltip("stage:N", title="answers"),
            alt.Tooltip("confidence:Q", title="claims", format=".1%"),
            alt.Tooltip("accuracy:Q", title="right", format=".1%"),
            alt.Tooltip("count:Q", title="how many", format=","),
        ],
    )
    return _dress(
        alt.layer(diagonal, lines, points),
        palette,
        f"Reliability diagram ({', '.join(stages)}): how often the model is right against how sure it claims to be; "
        "on the diagonal the two agree. A larger dot stands for more answers.",
    )


def histogram_figure(
    curves: Mapping[str, Mapping[str, Any]], chosen: str | None = None, palette: Mapping[str, str] = PAPER
) -> Any:
    """How unsure the model is where it is right, where it is wrong, and on what it was never taught."""
    import altair as alt

    outside = list(dict.fromkeys(name for held in curves.values() for name in held.get("out") or {}))
    kinds = ["right", "wrong", *(f"never taught: {name}" for name in outside)]
    shares: list[Any] = [
        f"share{at}" for at in range(len(kinds))
    ]  # kinds are people's words: fields have names of their own
    bins = [step for measure, held in curves.items() for step in _steps(measure, held, outside)]
    dashes = [[1, 0], [5, 3], [1, 3], [8, 3, 1, 3]]
    colours = [palette["soft"], palette["accent"], *(palette["ink"] for _ in outside)]
    legend = _legend("stroke", 180, labelExpr=f"{json.dumps(kinds)}[indexof({json.dumps(shares)}, datum.label)]")
    colour = alt.Color("kind:N", scale=alt.Scale(domain=shares, range=colours), legend=legend)
    dash = alt.StrokeDash(
        "kind:N",
        scale=alt.Scale(domain=shares, range=[[1, 0], [1, 0], *(dashes[at % 4] for at, _ in enumerate(outside))]),
        legend=legend,
    )
    x = alt.X(
        "u:Q",
        title="less sure →",
        scale=alt.Scale(zero=False, nice=False),
        axis=alt.Axis(format="~g", grid=False, tickCount=_few_ticks()),
    )
    y = alt.Y("share:Q", title="share of its kind", stack=None, axis=alt.Axis(format="~%"))
    base = alt.Chart(_inline(bins)).transform_filter(f"datum.measure == {CHOSEN}").encode(x)
    folded = base.transform_fold(shares, as_=["kind", "share"]).transform_filter("isValid(datum.share)").encode(y)
    areas = [
        folded.transform_filter(f"datum.kind == '{share}'").mark_area(
            interpolate="step-after", opacity=0.16, color=shade
        )
        for share, shade in zip(shares[:2], colours[:2], strict=True)
    ]
    lines = folded.mark_line(interpolate="step-after", strokeWidth=1.75).encode(colour, dash)
    said = {
        f"said{at}": f"isValid(datum.share{at}) ? format(datum.share{at}, '.1%') + ' (' + datum.count{at} + ')' : '–'"
        for at in range(len(kinds))
    }
    touch = _touch(
        base.transform_filter("datum.u < datum.to").transform_calculate(**said).encode(alt.X2("to:Q")),
        "u",
        [
            alt.Tooltip("u:Q", title="from", format=".4~g"),
            alt.Tooltip("to:Q", title="to", format=".4~g"),
            *(alt.Tooltip(f"{name}:N", title=kind) for name, kind in zip(said, kinds, strict=True)),
        ],
        palette,
    )
    return _dress(
        alt.layer(*areas, lines, touch).add_params(alt.param(name=CHOSEN, value=chosen or _first(list(curves)))),
        palette,
        f"Histogram of uncertainty by the chosen measure: share of {', '.join(kinds)} in each range, less sure to the "
        "right.",
    )


def intervals_figure(rows: Iterable[Row], chosen: str | None = None, palette: Mapping[str, str] = PAPER) -> Any:
    """Every model's value with its interval; accented dots cannot be told from the best."""
    import altair as alt

    groups = ["cannot be told from the best", "behind the best"]
    rows = [row for row in rows if row.get("best") is not None]  # without a better direction there is no best
    points = [
        {
            "question": question(row),
            "model": model_name(row),
            "rank": row.get("rank"),
            "value": float(row["value"]),
            "low": float(row["value"] if row.get("low") is None else row["low"]),
            "high": float(row["value"] if row.get("high") is None else row["high"]),
            "group": groups[0] if row.get("best") else groups[1],
        }
        for row in rows
    ]
    questions = list(dict.fromkeys(question(row) for row in rows))
    chosen = chosen if chosen in questions else _first(questions)
    colour = alt.Scale(domain=groups, range=[palette["accent"], palette["soft"]])
    legend = _legend("circle", 200)
    y = alt.Y("model:N", title=None, sort=alt.EncodingSortField("rank"), axis=alt.Axis(labelLimit=180, grid=False))
    base = alt.Chart(_inline(points)).transform_filter(f"datum.question == {CHOSEN}").encode(y)
    x = alt.X(
        "low:Q", title=None, scale=alt.Scale(zero=False, padding=14), axis=alt.Axis(format="~g", tickCount=_few_ticks())
    )
    bars = base.mark_rule(strokeWidth=2).encode(x, alt.X2("high:Q"), alt.Color("group:N", scale=colour, legend=legend))
    dots = base.mark_point(filled=True, size=110, opacity=1).encode(
        alt.X("value:Q"),
        alt.Color("group:N", scale=colour, legend=legend),
        tooltip=[
            alt.Tooltip("model:N", title="model"),
            alt.Tooltip("value:Q", title="value", format=".4f"),
            alt.Tooltip("low:Q", title="from", format=".4f"),
            alt.Tooltip("high:Q", title="to", format=".4f"),
            alt.Tooltip("rank:Q", title="rank"),
            alt.Tooltip("group:N", title="verdict"),
        ],
    )
    height = 34 * max(2, len({point["model"] for point in points}))
    return _dress(
        alt.layer(bars, dots).add_params(alt.param(name=CHOSEN, value=chosen)),
        palette,
        "Values and intervals of each model; dots in the accent colour cannot be told from the best.",
        height,
    )


def dots_figure(
    points: Sequence[Row], title: str, guide: tuple[str, float] | None = None, palette: Mapping[str, str] = PAPER
) -> Any:
    """Values of names, one dot a kind and a line between them; `guide` is a named upright line.

    A point holds `name`, `kind`, `value` and `spread`; names stand in the order of the points.
    """
    import altair as alt

    names, kinds = (list(dict.fromkeys(str(point[key]) for point in points)) for key in ("name", "kind"))
    looks = [palette["soft"], palette["accent"], *(palette[f"c{at}"] for at in range(2, MODEL_COLOURS))]
    if len(kinds) == 1:
        looks = looks[1:]
    held = [
        {"name": str(p["name"]), "kind": str(p["kind"]), "value": float(p["value"])}
        | {"said": f"± {number(p['spread'], 3)}" if p.get("spread") is not None else "one seed"}
        for p in points
    ]
    x = alt.X(
        "value:Q",
        title=title,
        scale=alt.Scale(zero=False, padding=14, nice=False),
        axis=alt.Axis(format="~%", tickCount=_few_ticks()),
    )
    y = alt.Y("name:N", title=None, sort=names, axis=alt.Axis(labelLimit=240, grid=False, labelColor=palette["ink"]))
    base = alt.Chart(_inline(held)).encode(x, y)
    between = (
        alt.Chart(_inline(held))
        .transform_aggregate(low="min(value)", high="max(value)", groupby=["name"])
        .mark_rule(strokeWidth=2, color=palette["faint"])
        .encode(alt.X("low:Q", title=title), alt.X2("high:Q"), y)
    )
    dots = base.mark_point(filled=True, size=120, opacity=1).encode(
        alt.Color(
            "kind:N",
            scale=alt.Scale(domain=kinds, range=[looks[at % len(looks)] for at in range(len(kinds))]),
            legend=_legend("circle", 170) if len(kinds) > 1 else None,
        ),
        tooltip=[
            alt.Tooltip("name:N", title="method"),
            alt.Tooltip("kind:N", title="as"),
            alt.Tooltip("value:Q", title="mean", format=".2%"),
            alt.Tooltip("said:N", title="over seeds"),
        ],
    )
    layers = [between, dots]
    if guide:
        mark = alt.Chart(_inline([{"value": float(guide[1]), "text": guide[0]}]))
        layers.insert(0, mark.mark_rule(strokeDash=[5, 3], color=palette["ink"]).encode(x))
        text = mark.mark_text(align="right", baseline="bottom", dx=-5, dy=-4, fontSize=12, color=palette["ink"])
        layers.append(text.encode(x, alt.Text("text:N"), y=alt.value("height")))
    words = f"{title} of {', '.join(names)}" + (f"; {guide[0]} at {number(guide[1], 3)}" if guide else "")
    return _dress(alt.layer(*layers), palette, f"{words}.", 30 * max(3, len(names)))


def heat_figure(cells: Sequence[Row], title: str, floor: float, palette: Mapping[str, str] = PAPER) -> Any:
    """A value for every line and column, with more colour where it is higher and none below `floor`.

    A cell holds `line`, `column`, `value` and `n`; lines and columns stand in the order of the cells.
    """
    import altair as alt

    lines, columns = (list(dict.fromkeys(str(cell[key]) for cell in cells)) for key in ("line", "column"))
    held = [
        {"line": str(c["line"]), "column": str(c["column"]), "value": float(c["value"]), "n": int(c["n"])}
        for c in cells
    ]
    top = max((float(c["value"]) for c in cells if c["value"] > floor), default=floor + 1)
    base = alt.Chart(_inline(held)).encode(
        alt.X("column:N", title=None, sort=columns, axis=alt.Axis(orient="top", labelAngle=alt.ExprRef(_slant()))),
        alt.Y("line:N", title=None, sort=lines, axis=alt.Axis(labelLimit=300)),
        tooltip=[
            alt.Tooltip("line:N", title="method"),
            alt.Tooltip("column:N", title="measure"),
            alt.Tooltip("value:Q", title=title, format=".4f"),
            alt.Tooltip("n:Q", title="mean over lines"),
        ],
    )
    # one colour, more of it where the value is higher: its ground may be light or dark; good values differ little
    scale = alt.Scale(type="pow", exponent=STEEP, domain=[floor, top], range=[0.02, 0.6], clamp=True)
    strength = alt.Opacity("value:Q", scale=scale, legend=None)
    shades = base.mark_rect(color=palette["accent"], cornerRadius=3, stroke=palette["ground"]).encode(strength)
    texts = base.mark_text(fontSize=alt.ExprRef("width < 480 ? 9.5 : 12"), color=palette["ink"]).encode(
        alt.Text("value:Q", format=".2f")
    )
    words = f"Heat map of {title}: {', '.join(lines)} by {', '.join(columns)}; more colour is higher."
    return _dress(alt.layer(shades, texts), palette, words, 28 * max(3, len(lines)))


def _slant() -> str:
    return "width < 620 ? -50 : 0"


STEEP = 4  # power by which a heat map tells the upper values apart
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")


def scatter_figure(points: Sequence[Row], x: str, y: str, palette: Mapping[str, str] = PAPER) -> Any:
    """Two numbers of many things, coloured and shaped by `name`; a click on a name in the legend shows it alone.

    A point holds `name`, `about` (what else there is to say) and the numbers under the names x and y.
    """
    import altair as alt

    names = list(dict.fromkeys(str(point["name"]) for point in points))
    held = [
        {"name": str(p["name"]), "about": str(p["about"]), "x": float(p[x]), "y": float(p[y])}
        for p in sorted(points, key=lambda p: names.index(str(p["name"])))
    ]
    values = [float(point[x]) for point in points]
    wide = min(values) > 0 and max(values) > 20 * min(values)
    only = alt.selection_point(fields=["name"], bind="legend")
    legend = _legend("circle", 124, symbolStrokeWidth=0, symbolSize=90)
    colours = [palette[f"c{at % MODEL_COLOURS + 1}"] for at in range(len(names))]
    shapes = [SHAPES[at // MODEL_COLOURS % len(SHAPES)] for at in range(len(names))]
    chart = (
        alt.Chart(_inline(held))
        .mark_point(filled=True, size=80)
        .encode(
            alt.X(
                "x:Q",
                title=x,
                scale=alt.Scale(type="log", padding=14, nice=False)
                if wide
                else alt.Scale(zero=False, padding=14, nice=False),
                axis=alt.Axis(format="~g", tickCount=_few_ticks()),
            ),
            alt.Y("y:Q", title=y, scale=alt.Scale(zero=False, padding=14), axis=alt.Axis(format="~g")),
            alt.Color("name:N", scale=alt.Scale(domain=names, range=colours), legend=legend),
            alt.Shape("name:N", scale=alt.Scale(domain=names, range=shapes), legend=legend),
            opacity=alt.condition(only, alt.value(0.9), alt.value(0.08)),
            tooltip=[
                alt.Tooltip("name:N", title="method"),
                alt.Tooltip("about:N", title="network"),
                alt.Tooltip("x:Q", title=x, format=".4f"),
                alt.Tooltip("y:Q", title=y, format=".4f"),
            ],
        )
        .add_params(only)
    )
    return _dress(chart, palette, f"{len(held)} points of {', '.join(names)}: {y} against {x}.", 340)


# ---- parts


def _first(names: Sequence[str]) -> str:
    return USUAL if USUAL in names else names[0] if names else ""


def _inline(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as CSV text: Altair copies and checks lists value by value, and texts not at all; and it is shorter."""
    import altair as alt

    out = io.StringIO()
    names = list(rows[0]) if rows else ["nothing"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([f"{v:.5g}" if isinstance(v, float) else v for v in row.values()] for row in rows)
    kinds = {name: "string" if rows and isinstance(rows[0][name], str) else "number" for name in names}
    return alt.InlineData(values=out.getvalue(), format=alt.CsvDataFormat(type="csv", parse=kinds))


def _legend(symbol: str, entry: int = 124, **more: Any) -> Any:
    """A legend above the picture that breaks into lines on a narrow screen; an entry takes so many pixels."""
    import altair as alt

    return alt.Legend(symbolType=symbol, columns=alt.ExprRef(expr=f"max(1, floor((width + 60) / {entry}))"), **more)


def _points(curves: Mapping[str, Curve], name: str) -> list[dict[str, Any]]:
    return [
        {name: key, "coverage": float(c), "risk": float(r)}
        for key, (coverage, risk) in curves.items()
        for c, r in zip(coverage, risk, strict=True)
    ]


def _few_ticks() -> Any:
    """As many ticks as a narrow screen can label."""
    import altair as alt

    return alt.ExprRef(expr="max(2, floor(width / 90))")


def _kept(field: str) -> Any:
    import altair as alt

    return alt.X(
        f"{field}:Q",
        title=KEPT,
        scale=alt.Scale(domain=[0, 1], nice=False),
        axis=alt.Axis(format="%", grid=False),
    )


def _wrong(curves: Iterable[Curve]) -> Any:
    import altair as alt

    seen = [float(r) for c, risk in curves for at, r in zip(c, risk, strict=True) if at >= FIRST_SEEN]
    top = min(1.0, 1.08 * max(seen, default=0.0)) or 1.0
    scale = alt.Scale(domain=[0, top], nice=False)
    return alt.Y("risk:Q", title=WRONG, scale=scale, axis=alt.Axis(format="~%"))


def _hover(base: Any, palette: Mapping[str, str]) -> Any:
    """A dot that follows the pointer along the curve and tells its figures.

    Vega-Lite 6 loses texts in the tooltip of a nearest point, so that only numbers are told.
    """
    import altair as alt

    near = alt.selection_point(nearest=True, on="pointerover", clear="pointerout", fields=["coverage"], empty=False)
    return (
        base.mark_point(filled=True, size=90, color=palette["accent"], clip=True)
        .encode(
            opacity=alt.condition(near, alt.value(1), alt.value(0)),
            tooltip=[
                alt.Tooltip("coverage:Q", title="kept", format=".1%"),
                alt.Tooltip("risk:Q", title=WRONG, format=".2%"),
            ],
        )
        .add_params(near)
    )


def _touch(base: Any, field: str, tooltip: Sequence[Any], palette: Mapping[str, str]) -> Any:
    """Upright stripes, unseen until the pointer is over them, that tell everything at their place."""
    import altair as alt

    over = alt.selection_point(on="pointerover", clear="pointerout", fields=[field], empty=False)
    return (
        base.mark_rect(color=palette["soft"])
        .encode(
            y=alt.value(0),
            y2=alt.value("height"),
            opacity=alt.condition(over, alt.value(0.12), alt.value(0)),
            tooltip=list(tooltip),
        )
        .add_params(over)
    )


def _side_by_side(models: Mapping[str, Mapping[str, Curve]], measures: Sequence[str]) -> list[dict[str, Any]]:
    """One row a measure and coverage, with every model's risk there."""
    grid = np.arange(1, STRIPES + 1) / STRIPES
    rows: list[dict[str, Any]] = [
        {"measure": measure, "from": (at - 1) / STRIPES, "coverage": at / STRIPES}
        for measure in measures
        for at in range(1, STRIPES + 1)
    ]
    for at, curves in enumerate(models.values()):
        for place, measure in enumerate(measures):
            risks = np.interp(grid, *curves[measure]).tolist() if measure in curves else [None] * STRIPES
            for step, risk in enumerate(risks):
                rows[place * STRIPES + step][f"risk{at}"] = risk
    return rows


def _steps(measure: str, held: Mapping[str, Any], outside: Sequence[str]) -> list[dict[str, Any]]:
    """One row a bin: its edges, and count and share of every kind; one more closes the last bin's step."""
    edges = [float(edge) for edge in held["edges"]]
    counts = [held.get("right"), held.get("wrong"), *((held.get("out") or {}).get(name) for name in outside)]
    steps = [{"measure": measure, "u": low, "to": high} for low, high in pairwise(edges)]
    for at, own in enumerate(counts):
        total = float(sum(own)) if own is not None else 0.0
        for bin_number, step in enumerate(steps):
            n = own[bin_number] if own is not None and total else None
            step[f"count{at}"] = None if n is None else int(n)
            step[f"share{at}"] = None if n is None else float(n) / total
    return [*steps, {**steps[-1], "u": edges[-1]}] if steps else []


def _dress(chart: Any, palette: Mapping[str, str], description: str, height: int = 300) -> Any:
    width: Any = "container" if palette is PAGE else 460
    return chart.properties(width=width, height=height, description=description).configure(**config(palette))


__all__ = [
    "dots_figure",
    "heat_figure",
    "histogram_figure",
    "intervals_figure",
    "models_figure",
    "reliability_figure",
    "risk_coverage_figure",
    "scatter_figure",
]
