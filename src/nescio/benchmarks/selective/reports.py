"""The tables and figures of Galil et al. 2023 on in-distribution predictions, and a few more."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean, median

from nescio.analysis.evaluation_rows import MC_DROPOUT
from nescio.analysis.model_choice import pareto_front
from nescio.benchmarks import pretrained
from nescio.benchmarks.pretrained import (
    LEAST,
    LEAST_SHARE,
    PARAMS,
    TOP,
    USUAL,
    Axis,
    Cloud,
    Models,
    Values,
    gains,
    models_of,
)
from nescio.benchmarks.selective import ADJUSTED, AMONG, DIFFERENCE, FEWEST, NAME, SCORECARD, TENTH
from nescio.networks import families, regimes
from nescio.report.blocks import Block, Blocks, Figure, Story
from nescio.report.charts.curves import Curve, curves_figure
from nescio.report.charts.points import changes_chart
from nescio.report.format import describe_best, format_millions, format_number, format_percent, plural
from nescio.report.frame import Frame
from nescio.report.named_reports import report
from nescio.report.scorecards.tables import scorecard_blocks
from nescio.report.studies import Study
from nescio.report.tables import Formatter, NumberFormat, Table, decimals, percents, table_from_records
from nescio.rows import Row

TEMPERATURE, DROPOUT = "temperature scaling", "MC-dropout"
EXTRA_METRIC = "aurc_over"  # metric that a scorecard does not show
AXIS = "AUROC of misclassification detection"
TITLE = "Misclassification detection by pretrained models"
METRICS = {"auroc": "AUROC", "ece": "ECE"}  # metrics whose improvements are shown
# rows that reports need
ERRORS = "a model with correct and wrong predictions, and an ECE that is not zero"
CHANGED = f"{pretrained.COUNTERPART}; or two models with a temperature, or with predictions under dropout"
SCALED = f"a model whose temperature could be fitted: on {TENTH * FEWEST:,} rows or more, some of them misclassified"
SIZES = "models with a number of parameters, from `nescio zoo` or a file of facts"
TEACHER = (
    "a teacher and its student, by timm's names, such as regnety_160.deit_in1k and "
    "deit_tiny_distilled_patch16_224.fb_in1k"
)


def strictest(models: Models) -> float:
    """The highest accuracy whose coverage was measured: 0.99 by default."""
    shares = {metric.partition("@")[2] for metric, *_ in models.columns if metric.startswith("sac@")}
    return max(map(float, shares), default=0.99)


def example_accuracy(models: Models) -> float:
    """The accuracy of the paper's example: 95 %, or the strictest that was measured."""
    return 0.95 if coverage_at(models, 0.95) else strictest(models)


def coverage_at(models: Models, accuracy: float, measure: str = USUAL) -> Values:
    """The coverage of each model at an accuracy."""
    return models.get(f"sac@{accuracy:g}", measure)


def images_of(frame: Frame, metric: str) -> str:
    """Number of rows behind a metric; the smallest and largest number if models differ."""
    counts = frame.where(metric=metric).column("n") or [0]
    return " to ".join(f"{n:,}" for n in sorted({min(counts), max(counts)}))


# ---- every model

ACCURACY, AUROC = "accuracy ↑", "AUROC ↑"
DETECTION = "AUROC: misclassification detection by msp"
COVERAGE = "Coverage@A: largest share of images, the most confident first, with at least A % accuracy"


@report("selective/models")
def scores(frame: Frame, max_rows: int | None = None, intervals: bool = True) -> Table:
    """One line per model, the highest AUROC of misclassification detection first; `max_rows` limits their number."""
    models = models_of(frame)
    strict_share, common, auroc = strictest(models), example_accuracy(models), models.get("auroc", USUAL)
    fit, test_counts = images_of(frame, "temperature"), images_of(frame, "auroc")
    count_note = (
        ""
        if test_counts in ("0", images_of(frame, "accuracy"))
        else f" for the accuracy, {test_counts} for the other metrics"
    )
    columns = {
        ACCURACY: (models.get("accuracy"), f"{images_of(frame, 'accuracy')} images each{count_note}"),
        AUROC: (auroc, DETECTION),
        "ECE ↓": (models.get("ece"), ""),
        "ECE, T ↓": (models.get("ece", calibrated=True), f"T: after a temperature, fitted on {fit} other images"),
        f"coverage@{100 * common:g} ↑": (coverage_at(models, common), ""),
        f"coverage@{100 * strict_share:g} ↑": (coverage_at(models, strict_share), COVERAGE),
        "params": (models.params, ""),
    }
    order = {name: auroc.get(name, 0) for name in models.sizes}
    intervals_of = {
        ACCURACY: models.interval("accuracy"),
        AUROC: models.interval("auroc", USUAL),
        "ECE ↓": models.interval("ece"),
        "ECE, T ↓": models.interval("ece", calibrated=True),
        **{f"coverage@{100 * share:g} ↑": models.interval(f"sac@{share:g}", USUAL) for share in (common, strict_share)},
    }
    return pretrained.models_table(TITLE, order, columns, max_rows, intervals_of if intervals else None)


@report("selective/table2", needs=pretrained.UNDER_DROPOUT)
def table_2(frame: Frame) -> Table:
    """MC-dropout against the plain softmax: accuracy, AUROC and coverage, in percent."""
    models = models_of(frame)
    strict_accuracy, rows = strictest(models), []
    for name in models.get("auroc", MC_DROPOUT):
        for method, measure, outputs in (("vanilla", USUAL, None), (DROPOUT, MC_DROPOUT, MC_DROPOUT)):
            values = {
                "accuracy ↑": models.get("accuracy", outputs).get(name),
                "AUROC ↑": models.get("auroc", measure).get(name),
                f"SAC@{strict_accuracy:g} ↑": coverage_at(models, strict_accuracy, measure).get(name),
            }
            rows.append({"architecture": name, "method": method, **values})
    note = "In percent. MC-dropout: predictions of the mean softmax of the passes under dropout, ranked by its entropy"
    look: Row = {"format": NumberFormat(".2f", 100), "compare_within": ("architecture",), "explain": ("auroc", "sac")}
    return table_from_records(rows, "MC-dropout against the plain softmax", "architecture", "method", note=note, **look)


# ---- correlations by family


@report("selective/table1", needs=f"{LEAST} models or more")
def table_1(frame: Frame) -> Table:
    """Spearman's ρ of AUROC and −ECE with accuracy, parameters and input size, by family."""
    models = models_of(frame)
    minus_ece = {name: -value for name, value in models.get("ece").items()}
    qualities = {"AUROC": models.get("auroc", USUAL), "-ECE": minus_ece}
    resources = {"Accuracy": models.get("accuracy"), "#Parameters": models.params}
    resources["Input Size"] = models.get("input_size")
    pairs = {f"{quality} & {r}": (qualities[quality], resources[r]) for r in resources for quality in qualities}
    note = "a dash is a property that does not vary or is missing"
    return _correlated(models, "Rank correlation of uncertainty with accuracy, size and input", pairs, note)


@report("selective/agreement", needs=f"{LEAST} models or more that differ in AUROC and in ECE")
def agreement(frame: Frame) -> Table:
    """Spearman's ρ of AUROC and ECE, over all models and by family."""
    models = models_of(frame)
    pairs = {"AUROC & ECE": (models.get("auroc", USUAL), models.get("ece"))}
    note = "at −1 the model with the highest AUROC has the lowest ECE"
    return _correlated(models, "Rank correlation of AUROC and ECE", pairs, note)


def _correlated(models: Models, title: str, pairs: Mapping[str, tuple[Values, Values]], note: str) -> Table:
    lines = pretrained.correlations(models.sizes, pairs)
    rows = [row for row in lines if any(row[head] is not None for head in pairs)]
    note = f"Spearman's ρ over the models of a family: {note}. Families of at least {LEAST} models"
    rare = sorted(family for family, members in families.by_family(models.sizes).items() if len(members) < LEAST)
    if rare:
        overflow = f" and {len(rare) - TOP} more" if len(rare) > TOP else ""
        note += f"; counted under {pretrained.ALL!r} only: {', '.join(rare[:TOP])}{overflow}"
    return table_from_records(rows, title, "architecture", format=pretrained.RHO, note=note)


# ---- changes by training regimes, temperatures and dropout


def improvements(models: Models) -> Frame:
    """Every model against its own counterpart: `kind`, `model`, `than`, and relative improvements `auroc` and `ece`.

    AUROC: (after − before)/before. ECE: (before − after)/before, so that better is positive in both. Kinds are the
    regimes, temperature scaling and MC-dropout (AUROC only) against the same model's plain softmax.
    """
    auroc, ece, dropout = models.get("auroc", USUAL), models.get("ece"), models.get("auroc", MC_DROPOUT)
    changes: list[tuple[str, Mapping[str, str], Values, Values]] = [
        (regime, others, pretrained.gains_over(auroc, others), pretrained.gains_over(ece, others, lower=True))
        for regime, others in regimes.counterparts(models.sizes).items()
    ]
    scaled = dict.fromkeys(models.get("temperature", calibrated=True), "itself, uncalibrated")
    aurocs, eces = models.get("auroc", USUAL, True), models.get("ece", calibrated=True)
    changes.append((TEMPERATURE, scaled, gains(aurocs, auroc), gains(eces, ece, lower=True)))
    changes.append((DROPOUT, dict.fromkeys(dropout, "its plain softmax"), gains(dropout, auroc), {}))
    return Frame(
        {"kind": kind, "model": model, "than": origin, "auroc": aurocs.get(model), "ece": eces.get(model)}
        for kind, origins, aurocs, eces in changes
        for model, origin in origins.items()
    )


@report("selective/regimes", needs=CHANGED)
def regime_table(frame: Frame) -> Table:
    """The improvements by regime: number of models, mean, median, share of improved models."""
    groups = {kind: group for (kind,), group in improvements(models_of(frame)).group_by("kind")}
    note = (
        "Relative improvement of a model over its counterpart: the same network without the regime, the same model "
        "uncalibrated, or its plain softmax; positive is better for AUROC and ECE"
    )
    return _change_table("AUROC and ECE by training regime", "regime", groups, note)


@report("selective/temperature", needs=SCALED)
def temperature_table(frame: Frame) -> Table:
    """Effect of temperature scaling on AUROC and ECE, for temperatures below and above 1."""
    models = models_of(frame)
    scales = models.get("temperature", calibrated=True)
    every = improvements(models).where(kind=TEMPERATURE)
    cool, warm = every.where(model=lambda name: scales[name] < 1), every.where(model=lambda name: scales[name] > 1)
    note = "Relative improvement of each model by its temperature, not on the rows of its fit; positive is better"
    groups = {"all": every, "T < 1": cool, "T > 1": warm}
    return _change_table("AUROC and ECE after temperature scaling", "temperature", groups, note, scales)


def _change_table(title: str, index: str, parts: Mapping[str, Frame], note: str, scales: Values | None = None) -> Table:
    """Improvements of groups of models; with temperatures (`scales`) also the rank correlation with them."""
    rows = [{index: name, "models": len(group)} for name, group in parts.items() if group]
    for line in rows:
        for metric, label in METRICS.items():
            if gains := _gains(parts[str(line[index])], metric):
                values = list(gains.values())
                line |= {f"{label} mean": fmean(values), f"{label} median": median(values)}
                line |= {f"{label} better": fmean(value > 0 for value in values)}
            line |= {f"{label} ρ with T": pretrained.correlation(scales, gains)} if scales else {}
    formats: dict[str, Formatter] = {f"{label} better": percents(0) for label in METRICS.values()}
    formats |= {f"{label} ρ with T": pretrained.RHO for label in METRICS.values()}
    return table_from_records(rows, title, index, format=pretrained.CHANGE, formats=formats, note=note, changes=True)


def _gains(changes: Frame, metric: str) -> Values:
    return {row["model"]: row[metric] for row in changes if row[metric] is not None}


def change_figure(frame: Frame, name: str, metric: str, title: str) -> Blocks:
    """Models against their own counterparts, by training regime."""
    axis = f"{METRICS[metric]} improvement"
    changes = improvements(models_of(frame)).where(**{metric: lambda value: value is not None})
    points = [row | {"value": row[metric]} for row in changes]
    caption = "One point per model against its counterpart: above the line is better. The bar is the median."
    records = [{"regime": p["kind"], "model": p["model"], "compared with": p["than"], axis: p["value"]} for p in points]
    return Figure(name, title, caption, lambda: changes_chart(points, axis), records) if len(points) > 1 else None


# ---- scatter plots of models

BOTH = "Right: better misclassification detection. Up: better calibration. Click on a name to see it alone."
KEPT = "Up: more predictions at this accuracy."
LIMITED = "Of two models above each other, the upper one is better at the same size."
HEATED = "Above the horizontal line the model improves; right of the vertical line the temperature is above 1."
LEAST_COVERAGE = 0.1  # minimum span of an axis of coverages
ONE = (("x", 1.0), ("y", 0.0))
CLOUDS = (
    Cloud("fig1", "Ranking and calibration of every model", "auroc", "ece", BOTH, ERRORS),
    Cloud("fig8", "Ranking and calibration, with every family", "auroc", "ece", BOTH, ERRORS, most=None),
    Cloud("fig15", "Ranking and calibration after scaling", "scaled auroc", "scaled ece", BOTH, SCALED),
    Cloud("fig5", "Coverage at a high accuracy", "accuracy", "coverage", KEPT, better="higher"),
    Cloud("fig9", "Ranking by size", PARAMS, "auroc", LIMITED, SIZES, better="lower"),
    Cloud("fig10", "Calibration by size", PARAMS, "ece", LIMITED, SIZES, better="lower"),
    Cloud("fig18", "Coverage by size", PARAMS, "coverage", LIMITED, SIZES, better="lower"),
    Cloud("fig16", "AUROC improvement by temperature", "temperature", "auroc gain", HEATED, SCALED, guides=ONE),
    Cloud("fig17", "ECE improvement by temperature", "temperature", "ece gain", HEATED, SCALED, guides=ONE),
)


def axes_of(models: Models) -> dict[str, Axis]:
    """The properties of models in scatter plots."""
    strict_accuracy, changes = strictest(models), improvements(models).where(kind=TEMPERATURE)
    axes = {
        PARAMS: Axis(PARAMS, models.params),
        "accuracy": Axis("accuracy", models.get("accuracy"), models.interval("accuracy"), LEAST_SHARE),
        "coverage": Axis(
            f"coverage at {100 * strict_accuracy:g} % accuracy",
            coverage_at(models, strict_accuracy),
            models.interval(f"sac@{strict_accuracy:g}", USUAL),
            LEAST_COVERAGE,
        ),
        "temperature": Axis("temperature", models.get("temperature", calibrated=True), least=0.2),
    }
    for prefix, calibrated in (("", False), ("scaled ", True)):
        aurocs, eces = models.get("auroc", USUAL, calibrated), models.get("ece", calibrated=calibrated)
        auroc_range = models.interval("auroc", USUAL, calibrated)
        axes[f"{prefix}auroc"] = Axis(AXIS, aurocs, auroc_range, LEAST_SHARE)
        log_ece = {name: -math.log10(value) for name, value in eces.items() if value}
        smallest = min(filter(None, eces.values()), default=1.0) / 2  # lower end of intervals that include 0
        log_ece_range = {
            name: (-math.log10(high), -math.log10(max(low, smallest)))
            for name, (low, high) in models.interval("ece", calibrated=calibrated).items()
            if name in log_ece
        }
        is_cut = any(models.interval("ece", calibrated=calibrated)[name][0] < smallest for name in log_ece_range)
        note = "Intervals that include an ECE of 0 are cut." if is_cut else ""
        label = "calibration: −log₁₀ ECE (0.1 is 1, 0.01 is 2)"
        axes[f"{prefix}ece"] = Axis(label, log_ece, log_ece_range, math.log10(2), note)
    for metric, word in METRICS.items():
        gains = {name: 100 * value for name, value in _gains(changes, metric).items()}
        axes[f"{metric} gain"] = Axis(f"{word} improvement, %", gains, least=2.0)
    return axes


def cloud(frame: Frame, spec: Cloud) -> Blocks:
    """Scatter plot of two properties of every model."""
    models = models_of(frame)
    return spec.figure(models, axes_of(models))


@report("selective/pareto", needs="two models or more")
def pareto(frame: Frame) -> Table | None:
    """The models of the Pareto fronts of quality against size or accuracy."""
    models = models_of(frame)
    if len(models.sizes) < 2:
        return None
    target, sizes, accuracy = strictest(models), models.params, models.get("accuracy")
    coverage, auroc, ece = coverage_at(models, target), models.get("auroc", USUAL), models.get("ece")
    qualities = {"AUROC": auroc, "ECE": {name: -value for name, value in ece.items()}, f"SAC@{target:g}": coverage}
    fronts: dict[str, list[str]] = {}
    for cost, costs in ((PARAMS, sizes), ("accuracy", accuracy)):
        for good, y in qualities.items():
            points = {name: (costs[name], y[name]) for name in costs if name in y}
            best = pareto_front(points.values(), lower_x_is_better=cost == PARAMS)
            for name in [name for name, point in points.items() if point in best]:
                fronts.setdefault(name, []).append(f"{good} by {cost}")
    columns = {PARAMS: sizes, "accuracy ↑": accuracy, "AUROC ↑": auroc, "ECE ↓": ece, f"SAC@{target:g} ↑": coverage}
    rows = [
        {"model": name}
        | {head: values.get(name) for head, values in columns.items()}
        | {"on the fronts of": ", ".join(fronts[name])}
        for name in sorted(fronts, key=lambda name: (sizes.get(name, 0), name))
    ]
    note = "On a front: no other model has fewer parameters (or a higher accuracy) and an at least equal quality"
    title = "Pareto fronts of the models"
    return table_from_records(rows, title, "model", format=decimals(4), formats={PARAMS: format_millions}, note=note)


# ---- risk–coverage curves


@report("selective/fig2", needs="two models or more with correct and wrong predictions")
def fig_2(frame: Frame) -> Blocks:
    """Risk–coverage curves of the best and the worst model by AUROC, and of a less accurate one with more coverage."""
    curves, models = risk_coverage(frame), models_of(frame)
    reasons = curve_models(models, curves)
    caption = "Risk: error rate of the most confident predictions up to a coverage; lower is better."
    if len(reasons) > 2:
        _, worst, less_accurate = reasons
        share = f"{100 * example_accuracy(models):g} % accuracy"
        caption += f" {less_accurate} has a lower accuracy than {worst}, and a higher coverage at {share}."
    selected = {f"{name} ({reason})": curves[name] for name, reason in reasons.items()}
    return (
        curves_figure("fig2", "Risk–coverage curves of the best and the worst model", caption, selected)
        if selected
        else None
    )


def risk_coverage(frame: Frame) -> dict[str, Curve]:
    """Model → (coverages, risks) of uncalibrated predictions, ranked by msp."""
    points = frame.where(metric="selective_risk", measure=USUAL, calibrated=False, evaluation="risk-coverage").sort(
        "coverage"
    )
    return {name: (own.column("coverage"), own.column()) for (name,), own in points.group_by("backbone")}


def curve_models(models: Models, curves: Mapping[str, Curve]) -> dict[str, str]:
    """The best and the worst by AUROC; of those less accurate, the one with the largest gain in coverage."""
    auroc, accuracy = models.get("auroc", USUAL), models.get("accuracy")
    coverages = coverage_at(models, example_accuracy(models))
    ranked = sorted((name for name in auroc if name in curves), key=lambda name: -auroc[name])
    if len(ranked) < 2:
        return {}
    best, *others, worst = ranked
    covering = {name: coverages[name] for name in others if coverages.get(name, 0) > coverages.get(worst, 0)}
    less_accurate = [name for name in covering if accuracy.get(name, 0) < accuracy.get(worst, 0)]
    third = {max(less_accurate, key=lambda name: covering[name]): "less accurate"} if less_accurate else {}
    return {best: "best AUROC", worst: "worst AUROC"} | third


# ---- distillation


@report("selective/fig13", needs=pretrained.COUNTERPART)
def fig_13(frame: Frame) -> Blocks:
    """Distilled models and their undistilled counterparts."""
    kinds = (regimes.DISTILLATION, regimes.PRUNING_DISTILLED)
    pairs = [pair for pair in regimes.pairs(models_of(frame).sizes) if pair.regime in kinds]
    names = {pair.model: "its own teacher" for pair in pairs if pair.own_teacher}
    caption = "A line goes from a model to its distilled version."
    caption += " “Its own teacher”: pruned networks distilled from the network that was pruned." if names else ""
    spec = Cloud("fig13", "Distilled models and their counterparts", "auroc", "ece", caption)
    return _origins_figure(frame, spec, {pair.model: pair.counterpart for pair in pairs if pair.counterpart}, names)


@report("selective/fig14", needs=TEACHER)
def fig_14(frame: Frame) -> Blocks:
    """Teachers and their students."""
    pairs = regimes.pairs(models_of(frame).sizes)
    origins = {pair.model: pair.teacher for pair in pairs if pair.teacher and not pair.own_teacher}
    caption = "A line goes from a teacher to its student."
    spec = Cloud("fig14", "Teachers and their students", "auroc", "ece", caption)
    return _origins_figure(frame, spec, origins, dict.fromkeys(origins.values(), "teacher"))


def _origins_figure(frame: Frame, spec: Cloud, origins: Mapping[str, str], names: Mapping[str, str]) -> Blocks:
    """Scatter plot with a line from each model's origin to the model; `names` replace the names of architectures."""
    models = models_of(frame)
    axes = axes_of(models)
    plotted = axes[spec.x].values.keys() & axes[spec.y].values.keys()
    linked = {model: origin for model, origin in origins.items() if {model, origin} <= plotted}
    linked_models = {*origins, *origins.values()} if linked else set()
    colours = {name: names.get(name) or families.paper_name(families.architecture(name)) for name in linked_models}
    figure = spec.figure(models, axes, colours, [(origin, model) for model, origin in linked.items()])
    if figure is None:
        return None
    return replace(figure, points=[{**point, "comes from": linked.get(point["model"])} for point in figure.points])


# ---- the page

for _spec in CLOUDS:
    report(f"{NAME}/{_spec.name}", needs=_spec.needs)(partial(cloud, spec=_spec))
for _name, _metric, _title in (
    ("fig3", "auroc", "AUROC by training regime"),
    ("fig4", "ece", "ECE by training regime"),
):
    report(f"{NAME}/{_name}", needs=CHANGED)(partial(change_figure, name=_name, metric=_metric, title=_title))

SECTIONS = (
    ("Models", TITLE, ("fig1",)),
    ("Scorecard", "Scorecard", ("scorecard",)),
    ("Coverage", "Coverage at a high accuracy", ("fig5", "fig18", "fig2")),
    ("Size", "Metrics by size", ("fig9", "fig10", "pareto")),
    ("Training", "Training regimes", ("regimes", "fig3", "fig4", "fig13", "fig14")),
    ("Temperature", "Temperature scaling", ("temperature", "fig15", "fig16", "fig17")),
    ("Families", "Rank correlations by family", ("table1", "agreement", "fig8")),
    ("MC-dropout", "MC-dropout", ("table2",)),
)


def first_look(study: Study) -> list[Table]:
    """The tables for the terminal."""
    kept = f"coverage@{100 * strictest(models_of(study.frame)):g} ↑"
    look = scores(study.frame, TOP, intervals=False).select(ACCURACY, AUROC, "ECE ↓", kept, "params")
    changes = regime_table(study.frame).select("models", "AUROC median", "AUROC better", "ECE median", "ECE better")
    return [table for table in (look, changes) if table]


TESTED = (
    f"The best is compared with the next {AMONG - 1} at most on the same images: paired bootstrap, 95 % intervals, "
    "Holm's adjustment."
)
UNTESTED = "Not all of these models were compared on the same images: their differences are not tested."


def lead(study: Study) -> list[str]:
    """The best models by accuracy, AUROC and coverage, each with its test against the next."""
    models = models_of(study.frame)
    strict_share, single_model = strictest(models), len(models.sizes) == 1
    dataset = "" if pretrained.unnamed(study) else f" of {study.data}"
    images = f"{images_of(study.frame, 'accuracy')} images{dataset}"
    sentences = [f"{plural(len(models.sizes), 'pretrained model')}, {images}."]
    share, tests = f"{100 * strict_share:g} %", []
    columns: dict[str, tuple[str, Values, Callable[[float], str]]] = {
        "accuracy": ("accuracy", models.get("accuracy"), format_percent),
        "auroc": (AXIS, models.get("auroc", USUAL), lambda value: format_number(value, 3)),
        f"sac@{strict_share:g}": (f"coverage at {share} accuracy", coverage_at(models, strict_share), format_percent),
    }
    for metric, (label, values, format) in columns.items():
        best = pretrained.best_of(values)
        if best is None:
            continue
        if not values[best] and metric != "auroc":
            sentences.append(f"No model has {'a correct prediction' if metric == 'accuracy' else f'a {label}'}.")
            continue
        value = format(values[best])
        sentence = f"{label.capitalize() if label != AXIS else label}: {value}."
        if not single_model:
            sentence = f"Highest {label}: {best}, {value}."
        reference = _compared_best(study.frame, metric, best)
        test = _describe_test(study.frame, metric, reference)
        if reference != best and values.get(str(reference)) != values[best]:  # one file has further rows
            test = f"On their common images {reference} is best. {test}"
        tests.append(test)
        sentences.append(f"{sentence} {test}".strip())
    if single_model and not (study.plan or {}).get("files"):
        (name,) = models.sizes
        sentences.append(f"Its scorecard is below; with charts: `nescio evaluate zoo:{name} --output DIR`.")
    if tests and not single_model:
        sentences.append(TESTED if all(tests) else UNTESTED)
    return sentences


def _compared_best(frame: Frame, metric: str, best: str | None) -> str | None:
    """The best model on the images that all compared models share; the best one by value without a comparison."""
    return next((str(row["reference"]) for row in frame.where(metric=DIFFERENCE, criterion=metric)), best)


def _describe_test(frame: Frame, metric: str, best: str | None) -> str:
    """The difference of the best model to the next, with its test; empty for models that were not compared."""
    rows = frame.where(metric=DIFFERENCE, criterion=metric, reference=best)
    p_values = {row["backbone"]: row["value"] for row in frame.where(metric=ADJUSTED, criterion=metric)}
    differences = [
        {"model": row["backbone"], "difference": row["value"], "adjusted": p_values.get(row["backbone"])}
        | {end: row[end] for end in ("low", "high")}
        for row in rows
    ]
    return describe_best(differences) if differences else ""


@report("selective/scorecard", needs="one model")
def scorecard(frame: Frame) -> list[Block]:
    """The scorecard of a study of one model."""
    if len(models_of(frame).sizes) > 1:
        return []
    return scorecard_blocks(frame.where(evaluation=SCORECARD).without(metric=EXTRA_METRIC))


def story(study: Study) -> Story:
    """The page of a study of pretrained models."""
    return pretrained.page(study, TITLE, lead(study), scores, SECTIONS)
