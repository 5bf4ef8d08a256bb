"""Charts of one model, and of several models by one measure: risk–coverage, reliability, cost, histograms."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from nescio.analysis.curves import GUIDES, OPTIMAL, RANDOM
from nescio.report.blocks import Figure
from nescio.report.charts.lazy import alt
from nescio.report.charts.parts import (
    FEW_TICKS,
    NUMBER,
    Axis,
    Series,
    Tips,
    data,
    guide_line,
    legend,
    line_layers,
    rename_labels,
    selected_rows,
    share_axis,
    start_of_menu,
    stripes,
    tooltips,
)
from nescio.report.charts.style import COLOUR, DASHED, DOTTED, SELECTED, SOLID, Chart, Layer, finish
from nescio.report.format import format_number
from nescio.report.labels import DEFAULT_MEASURE, ood_label
from nescio.rows import Row

if TYPE_CHECKING:
    from nescio.analysis.curves import Histogram

COVERAGE, RISK = "coverage", "selective risk"  # axes of a risk–coverage curve
MIN_COVERAGE = 0.05  # smaller coverages do not set the height of the chart, since their risks are of few rows
STRIPES = 200  # coverages at which several models are compared
GUIDE_LABELS = ("optimal ranking", "random ranking")  # labels in risk–coverage charts, in the order of GUIDES
COST_GUIDE_LABELS = ("optimal ranking", "no ranking")  # labels in cost charts
STAGE_COLOURS = (COLOUR["accent"], COLOUR["ink"], COLOUR["soft"])  # colours of raw and calibrated confidences
Values: TypeAlias = "Sequence[float] | np.ndarray"
Curve: TypeAlias = "tuple[Values, Values]"  # coverages and risks, or the values of two other axes


def line_chart(
    base: Layer,
    lines: Series,
    description: str,
    *,
    tips: Tips | None = None,
    below: Sequence[Layer] = (),
    above: Sequence[Layer] = (),
    menu: str | None = None,
    width: float = 2,
    points: float = 0,
    size: alt.Size | None = None,
) -> Chart:
    """Lines of a series with tooltips: risk–coverage curves, reliability diagrams and cost curves.

    base    data with both axes
    below, above  further layers
    menu    measure that the menu starts with; only the rows of the selected measure are drawn (None: no menu)
    points  opacity of the points; `size` is their size
    """
    base = base if menu is None else selected_rows(base, "measure")
    layers = line_layers(base, lines, tips, width=width, points=points)
    if size is not None:
        layers[-1] = layers[-1].encode(size)
    return finish([*below, *layers, *above], description, selected=menu)


def _points(curve: Curve) -> Iterable[tuple[float, float]]:
    return ((float(x), float(y)) for x, y in zip(*curve, strict=True))


# ---- risk and coverage


def risk_coverage_chart(curves: Mapping[str, Curve], selected: str | None = None) -> Chart:
    """Selective risk against coverage of one model, by all measures; one measure is selected."""
    measures = [name for name in curves if name not in GUIDES]
    styles = {SELECTED: (COLOUR["accent"], SOLID)}
    styles |= {"other measures": (COLOUR["faint"], SOLID)} if len(measures) > 1 else {}
    styles |= {GUIDE_LABELS[0]: (COLOUR["ink"], DASHED)} if OPTIMAL in curves else {}
    styles |= {GUIDE_LABELS[1]: (COLOUR["soft"], DOTTED)} if RANDOM in curves else {}
    colours, dashes = zip(*styles.values(), strict=True)
    names = legend("stroke", labelExpr=f"datum.label == '{SELECTED}' ? {SELECTED} : datum.label")
    series = Series("line", list(styles), colours, dashes, names)
    labels = zip(GUIDES, GUIDE_LABELS, strict=True)
    guides = "".join(f"datum.measure == '{guide}' ? '{label}' : " for guide, label in labels)
    line = f"datum.measure == {SELECTED} ? '{SELECTED}' : {guides}'other measures'"
    rows = [{"measure": name, "coverage": c, "risk": r} for name, curve in curves.items() for c, r in _points(curve)]
    base = data(rows).encode(share_axis("x", "coverage", COVERAGE, grid=False), _risk_axis(curves.values()))
    lines = base.transform_calculate(line=line).encode(alt.Detail("measure:N"))
    total = max((float(risk[-1]) for _, risk in curves.values() if len(risk)), default=0.0)
    return line_chart(
        lines,
        series,
        f"Risk–coverage curve by one of {len(measures)} measures; the risk at full coverage is "
        f"{format_number(100 * total, 1)} percent.",
        below=line_layers(lines.transform_filter(f"datum.line != '{SELECTED}'"), series, width=1.25),
        above=[_nearest_point(selected_rows(base, "measure"))],
        menu=start_of_menu(measures, selected),
        width=2.5,
    )


def _risk_axis(curves: Iterable[Curve]) -> Axis:
    risks = [risk for curve in curves for coverage, risk in _points(curve) if coverage >= MIN_COVERAGE]
    return share_axis("y", "risk", RISK, min(1.0, 1.08 * max(risks, default=0.0)) or 1.0)


def _nearest_point(base: Layer) -> Layer:
    """A dot that follows the pointer along the curve; Vega-Lite 6 loses texts in the tooltips of nearest points."""
    near = alt.selection_point(nearest=True, on="pointerover", clear="pointerout", fields=["coverage"], empty=False)
    marks = base.mark_point(filled=True, size=90, color=COLOUR["accent"], clip=True)
    tips = tooltips(("coverage:Q", COVERAGE, ".1%"), ("risk:Q", RISK, ".2%"))
    dots: Layer = marks.encode(opacity=alt.condition(near, alt.value(1), alt.value(0)), tooltip=tips)
    return dots.add_params(near)


def curves_figure(key: str, title: str, caption: str, curves: Mapping[str, Curve]) -> Figure:
    """Return the risk–coverage curves of models as a figure, with their points as its data."""
    points: list[Row] = [
        {"model": model, COVERAGE: coverage, RISK: risk}
        for model, curve in curves.items()
        for coverage, risk in _points(curve)
    ]
    models = {model: {DEFAULT_MEASURE: curve} for model, curve in curves.items()}
    return Figure(key, title, caption, lambda: models_chart(models, DEFAULT_MEASURE), points)


def models_chart(models: Mapping[str, Mapping[str, Curve]], selected: str | None = None) -> Chart:
    """Selective risk against coverage of several models, by one measure."""
    measures = list(dict.fromkeys(name for curves in models.values() for name in curves if name not in GUIDES))
    fields = [f"risk{number}" for number in range(len(models))]  # safe names of fields
    grid = np.arange(1, STRIPES + 1) / STRIPES
    rows: list[Row] = []  # one per measure and coverage, with the risk of every model
    for measure in measures:
        risks = [
            np.interp(grid, *curves[measure]).tolist() if measure in curves else [None] * STRIPES
            for curves in models.values()
        ]
        for coverage, *values in zip(grid.tolist(), *risks, strict=True):
            row: Row = {"measure": measure, "from": coverage - 1 / STRIPES, "coverage": coverage}
            rows.append(row | dict(zip(fields, values, strict=True)))
    base = data(rows)
    texts = {f"text{n}": f"isValid(datum.risk{n}) ? format(datum.risk{n}, '.2%') : '–'" for n in range(len(models))}
    tips = [(f"{name}:N", f"risk of {model}") for name, model in zip(texts, models, strict=True)]
    columns = selected_rows(base, "measure").transform_calculate(**texts)
    columns = columns.encode(share_axis("x", "from", COVERAGE, grid=False), alt.X2("coverage:Q"))
    shown_curves = [curves[name] for curves in models.values() for name in measures if name in curves]
    return line_chart(
        _fold(base, fields, "model", "risk").encode(
            share_axis("x", "coverage", COVERAGE, grid=False), _risk_axis(shown_curves)
        ),
        Series("model", fields, legend=legend("stroke", labelExpr=rename_labels(fields, list(models)))),
        f"Risk–coverage curves of {', '.join(models)}.",
        above=[stripes(columns, "coverage", tooltips(("coverage:Q", COVERAGE, ".1%"), *tips))],
        menu=start_of_menu(measures, selected),
    )


def _fold(base: Layer, fields: Sequence[str], name: str, value: str) -> Layer:
    """Transform wide rows into one row per field with a value."""
    return base.transform_fold([*fields], as_=[name, value]).transform_filter(f"isValid(datum.{value})")


# ---- calibration


def reliability_chart(curves: Mapping[str, tuple[Values, Values, Values]]) -> Chart:
    """Reliability diagram: accuracy against mean confidence of each bin.

    curves  stage → counts, mean confidences, accuracies
    """
    rows = [
        {"stage": stage, "count": int(n), "confidence": float(confidence), "accuracy": float(accuracy)}
        for stage, bins in curves.items()
        for n, confidence, accuracy in zip(*bins, strict=True)
        if n > 0
    ]
    size = alt.Size("count:Q", scale=alt.Scale(type="sqrt", range=[25, 260]), legend=None)
    description = f"Reliability diagram ({', '.join(curves)}): accuracy against mean confidence; dot size: rows."
    return _calibration_chart(rows, list(curves), description, [("count:Q", "rows", ",")], size=size)


def corp_chart(curves: Mapping[str, Mapping[str, Values]]) -> Chart:
    """CORP reliability diagram: isotonic fit of accuracy against confidence, with consistency bands.

    curves  stage → confidence, calibrated, low, high
    """
    fields = ("confidence", "accuracy", "low", "high")
    rows = [
        {"stage": stage, **dict(zip(fields, map(float, point), strict=True))}
        for stage, curve in curves.items()
        for point in zip(curve["confidence"], curve["calibrated"], curve["low"], curve["high"], strict=True)
    ]
    tips = [("low:Q", "band from", ".1%"), ("high:Q", "to", ".1%")]
    description = f"CORP reliability diagram ({', '.join(curves)}): isotonic accuracy against confidence, with bands."
    return _calibration_chart(rows, list(curves), description, tips)


def _calibration_chart(
    rows: Sequence[Row],
    stages: Sequence[str],
    description: str,
    tips: Sequence[Sequence[str]],
    size: alt.Size | None = None,
) -> Chart:
    """Accuracy against confidence, with the diagonal; points have a size, or lines have bands."""
    x, y = share_axis("x", "confidence", "confidence"), share_axis("y", "accuracy", "accuracy")
    base = data(rows)
    below = [
        base.transform_filter(alt.FieldEqualPredicate(field="stage", equal=stage))
        .mark_area(opacity=0.12, color=colour)
        .encode(x, share_axis("y", "low", "accuracy"), alt.Y2("high:Q"))
        for stage, colour in zip(stages if size is None else (), STAGE_COLOURS, strict=False)
    ]
    ends = data([{"confidence": 0, "accuracy": 0}, {"confidence": 1, "accuracy": 1}])
    below.append(ends.mark_line(strokeWidth=1, color=COLOUR["faint"]).encode(x, y))
    shares = [("stage:N", "predictions"), ("confidence:Q", "confidence", ".1%"), ("accuracy:Q", "accuracy", ".1%")]
    return line_chart(
        base.encode(x, y),
        Series("stage", stages, STAGE_COLOURS, (SOLID, DASHED, DOTTED), legend("stroke") if len(stages) > 1 else None),
        description,
        tips=tooltips(*shares, *tips),
        below=below,
        width=2 if size is None else 1.5,
        points=0 if size is None else 1,
        size=size,
    )


# ---- cost


def cost_chart(curves: Mapping[str, Mapping[str, Curve]], selected: str | None = None) -> Chart:
    """Mean cost per row at the best threshold against the abstention cost; one measure is selected.

    curves  measure → OOD set → (abstention costs, mean costs); the guides are among the measures
    """
    rows: list[Row] = [
        {"measure": measure, "set": name, "price": price, "cost": cost}
        for measure, sets in curves.items()
        for name, curve in sets.items()
        for price, cost in _points(curve)
    ]
    measures = [name for name in curves if name not in GUIDES]
    sets = list(dict.fromkeys(name for measure in measures for name in curves[measure]))
    highest = max(row["cost"] for row in rows)
    x = share_axis("x", "price", "abstention cost (an error costs 1)", grid=False)
    base = data(rows).encode(x, share_axis("y", "cost", "mean cost per row", 1.05 * highest))
    set_names = legend("stroke", labelExpr=rename_labels(sets, [f"with {ood_label(name)}" for name in sets]))
    guide_names = legend("stroke", labelExpr=rename_labels(GUIDES, COST_GUIDE_LABELS))
    guides = base.transform_filter(f"indexof({json.dumps(GUIDES)}, datum.measure) >= 0")
    guides = guides.mark_line(strokeWidth=1, color=COLOUR["soft"])
    return line_chart(
        base,
        Series("set", sets, dashes=None, legend=set_names),
        f"Mean cost per row at the best threshold against the abstention cost, with {', '.join(sets)}.",
        tips=tooltips(("set:N", "OOD set"), ("price:Q", "abstention cost", ".0%"), ("cost:Q", "mean cost", ".2%")),
        below=[guides.encode(Series("measure", GUIDES, dashes=(DOTTED, DASHED), legend=guide_names).dash())],
        menu=start_of_menu(measures, selected),
    )


# ---- histograms


def histogram_chart(curves: Mapping[str, Histogram], selected: str | None = None) -> Chart:
    """Uncertainty of right, wrong and out-of-distribution predictions; one measure is selected."""
    ood_sets = list(dict.fromkeys(name for bins in curves.values() for name in bins.get("out") or {}))
    kinds = ["right", "wrong", *(f"out-of-distribution: {name}" for name in ood_sets)]
    shares = [f"share{number}" for number in range(len(kinds))]  # safe names of fields
    colours = [COLOUR["soft"], COLOUR["accent"], *(COLOUR["ink"] for _ in ood_sets)]
    dashes = [SOLID, SOLID, *((SOLID, DASHED, DOTTED, [8, 3, 1, 3])[number % 4] for number in range(len(ood_sets)))]
    series = Series("kind", shares, colours, dashes, legend("stroke", 180, labelExpr=rename_labels(shares, kinds)))
    x = alt.X("u:Q", title="uncertainty →", scale=alt.Scale(zero=False, nice=False))
    x = x.axis(format=NUMBER, grid=False, tickCount=alt.ExprRef(expr=FEW_TICKS))
    y = alt.Y("share:Q", title="share of rows", stack=None, axis=alt.Axis(format="~%"))
    steps = [step for measure, bins in curves.items() for step in _steps(measure, bins, ood_sets)]
    base = selected_rows(data(steps), "measure").encode(x)
    folded = _fold(base, shares, "kind", "share").encode(y)
    layers = [
        folded.transform_filter(f"datum.kind == '{share}'").mark_area(
            interpolate="step-after", opacity=0.16, color=colour
        )
        for share, colour in zip(shares[:2], colours[:2], strict=True)
    ]
    lines = folded.mark_line(interpolate="step-after", strokeWidth=1.75)
    layers.append(lines.encode(series.colour(), series.dash()))
    texts = {
        f"text{n}": f"isValid(datum.share{n}) ? format(datum.share{n}, '.1%') + ' (' + datum.count{n} + ')' : '–'"
        for n in range(len(kinds))
    }
    tips = [(f"{name}:N", kind) for name, kind in zip(texts, kinds, strict=True)]
    bars = base.transform_filter("datum.u < datum.to").transform_calculate(**texts).encode(alt.X2("to:Q"))
    layers.append(stripes(bars, "u", tooltips(("u:Q", "from", ".4~g"), ("to:Q", "to", ".4~g"), *tips)))
    description = f"Histogram of uncertainty by the selected measure: shares of {', '.join(kinds)}."
    return finish(layers, description, selected=selected or start_of_menu(list(curves)))


def _steps(measure: str, bins: Histogram, ood_sets: Sequence[str]) -> list[Row]:
    """One row per bin with its edges, and the count and share of each kind; a last row closes the last bin."""
    edges = [float(edge) for edge in bins["edges"]]
    counts = [bins.get("right"), bins.get("wrong"), *((bins.get("out") or {}).get(name) for name in ood_sets)]
    steps: list[Row] = [{"measure": measure, "u": low, "to": high} for low, high in pairwise(edges)]
    for kind, values in enumerate(counts):
        total = float(sum(values)) if values is not None else 0.0
        for number, step in enumerate(steps):
            n = values[number] if values is not None and total else None
            step[f"count{kind}"] = None if n is None else int(n)
            step[f"share{kind}"] = None if n is None else float(n) / total
    return [*steps, {**steps[-1], "u": edges[-1]}] if steps else []


def bars_chart(
    values: Sequence[float], edges: Sequence[float], title: str, guide: tuple[str, float], description: str
) -> Chart:
    """Histogram of values; `guide` is a labelled vertical line."""
    counts, _ = np.histogram(values, edges)
    bars = [
        {"low": float(low), "high": float(high), "rows": int(rows)}
        for (low, high), rows in zip(pairwise(edges), counts, strict=True)
    ]
    x = alt.X("low:Q", title=title).axis(format=NUMBER, tickCount=alt.ExprRef(expr=FEW_TICKS))
    tips = tooltips(("low:Q", "from", ".3f"), ("high:Q", "to", ".3f"), ("rows:Q", "rows"))
    marks = data(bars).mark_bar(color=COLOUR["accent"], binSpacing=1)
    marks = marks.encode(x.bin("binned"), alt.X2("high:Q"), alt.Y("rows:Q", title="rows"), tooltip=tips)
    return finish([marks, *guide_line("x", guide[1], guide[0], field="low", strokeDash=DASHED)], description)
