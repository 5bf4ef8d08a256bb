"""The tables and figures of Galil et al. 2023 on graded OOD detection; appendix M.8 is `overlap`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import fmean, median
from typing import Any

from nescio.analysis.evaluation_rows import MC_DROPOUT
from nescio.benchmarks import pretrained
from nescio.benchmarks.cood import NAME, SEVERITY
from nescio.benchmarks.pretrained import (
    ENTROPY,
    LEAST,
    LEAST_SHARE,
    PARAMS,
    RHO,
    TOP,
    USUAL,
    Axis,
    Cloud,
    Models,
    Values,
)
from nescio.networks import families, regimes
from nescio.report.blocks import Blocks, Figure, Story, Tabs, flatten, tables_of
from nescio.report.charts.levels import Box, box_chart, levels_figure
from nescio.report.charts.points import OTHERS, heat_figure
from nescio.report.format import format_millions, format_number, join_names, plural
from nescio.report.frame import Frame
from nescio.report.named_reports import report
from nescio.report.studies import Study
from nescio.report.tables import COUNT, Table, decimals, percents, table_from_records
from nescio.rows import Row
from nescio.specs import NetworkName

WORDS = {USUAL: "softmax", ENTROPY: "entropy", MC_DROPOUT: "MC-dropout"}  # the paper's names of measures
RESNETS = {"ResNet-50": 25_557_032, "ResNet-101": 44_549_160}  # numbers of parameters that scatter plots mark
AUROC = "AUROC of OOD detection"
GROUP, GAIN, SPEARMAN = "OOD classes", "relative improvement", "Spearman’s ρ"
# rows that reports need
GRADED = "a model with one of the measures on both sets"
THREE = f"{LEAST} models or more"
LABELLED = f"{THREE} with labels of the in-distribution images"


# ---- rows to models


@dataclass(frozen=True)
class GradedModels:
    """All models of the rows, and the groups of OOD classes by severity."""

    models: Models
    severities: dict[str, float]  # "severity 0" …: the number
    fixed: tuple[str, ...]  # OOD sets that are the same for all models
    measures: tuple[str, ...]  # measures of uncertainty, the default one first; never empty

    def aurocs(self, group: str, measure: str | None = None) -> Values:
        """Model → AUROC at a severity, or on a fixed set."""
        level = self.severities.get(group)
        place = {"target": group} if level is None else {"severity": level}
        return self.models.get("auroc", measure or self.main_measure, **place)

    @property
    def main_measure(self) -> str:
        return self.measures[0]

    @property
    def median_level(self) -> str:
        """The median severity: 5 of 0 to 10."""
        names = list(self.severities)
        return names[(len(names) - 1) // 2] if names else ""

    @property
    def axes(self) -> dict[str, Axis]:
        """The properties of models in scatter plots."""
        return {
            "detects": Axis(f"AUROC at {self.median_level}", self.aurocs(self.median_level), least=LEAST_SHARE),
            "errors": Axis("in-distribution AUROC", self.models.get("auroc", self.main_measure), least=LEAST_SHARE),
            PARAMS: Axis(PARAMS, self.models.params),
            "accuracy": Axis("accuracy", self.models.get("accuracy"), least=LEAST_SHARE),
        }

    def best(self) -> str | None:
        """The model with the highest mean AUROC over all severities."""
        levels = [self.aurocs(level) for level in self.severities]
        aurocs = {name: [level[name] for level in levels if name in level] for name in self.models.sizes}
        return pretrained.best_of({name: fmean(values) for name, values in aurocs.items() if values})


@lru_cache(maxsize=4)
def graded_models(frame: Frame) -> GradedModels:
    """Return the models, severities, fixed sets and measures of the rows."""
    ood_rows = frame.where(metric="auroc", split="out", backbone=lambda name: name is not None)
    levels = sorted(level for level in ood_rows.unique("severity") if level is not None)
    measures = sorted(ood_rows.unique("measure"), key=lambda measure: measure != USUAL) or [USUAL]
    fixed = tuple(name for name in ood_rows.unique("target") if name is not None)
    severities = {f"{SEVERITY} {level:g}": level for level in levels}
    return GradedModels(pretrained.models_of(frame), severities, fixed, tuple(measures))


def _label(measure: str) -> str:
    return WORDS.get(measure, measure)


def _short_level(level: str) -> str:
    return level.replace(f"{SEVERITY} ", "s")


def _ticks(levels: Iterable[str]) -> dict[str, str]:
    return {level: _short_level(level) for level in levels}


def _box_values(values: Values) -> Row:
    """Minimum, quartiles and maximum."""
    numbers = list(values.values())
    box = Box.from_values(numbers)
    quartiles = {"lower quartile": box.lower, "median": box.middle, "upper quartile": box.upper}
    return {"lowest": min(numbers)} | quartiles | {"highest": max(numbers)}


# ---- every model

TITLE = "OOD detection by severity"
ERRORS = "ID-AUROC: misclassification detection on in-distribution images"
DETECTS = "AUROC of OOD against in-distribution images, from the easiest OOD classes of the model to the hardest"


@report("cood/models", needs=GRADED)
def scores(frame: Frame, max_rows: int | None = None) -> Table:
    """One line per model, the highest AUROC at the median severity first; `max_rows` limits their number."""
    graded = graded_models(frame)
    levels = list(graded.severities)
    groups = dict.fromkeys((*levels[:1], graded.median_level, *levels[-1:], *graded.fixed))
    columns = {f"{_short_level(group)} ↑": (graded.aurocs(group), "") for group in groups if group}
    columns["accuracy ↑"] = graded.models.get("accuracy"), ""
    columns["ID-AUROC ↑"] = graded.models.get("auroc", graded.main_measure), ERRORS
    columns["params"] = graded.models.params, ""
    if levels:
        extent = " to ".join(map(_short_level, (levels[0], levels[-1])))
        legend = f"{extent}: {DETECTS}, by {_label(graded.main_measure)}"
        columns[f"{_short_level(levels[0])} ↑"] = graded.aurocs(levels[0]), legend
    return pretrained.models_table(TITLE, graded.aurocs(graded.median_level), columns, max_rows)


# ---- every model at every severity


def severities(frame: Frame, measure: str | None = None) -> Table:
    """AUROC of all models at each severity and on fixed sets: quartiles, minimum, maximum, best model."""
    graded = graded_models(frame)
    measure = measure or graded.main_measure
    rows = [
        {GROUP: group, "models": len(values), **_box_values(values), "best model": pretrained.best_of(values)}
        for group in (*graded.severities, *graded.fixed)
        if (values := graded.aurocs(group, measure))
    ]
    note = (
        f"AUROC of OOD against in-distribution images by {_label(measure)}. Severity 0: the OOD classes with the "
        "highest uncertainty; last severity: those with the lowest. Groups differ between models and measures"
    )
    title = f"OOD detection at each severity, {_label(measure)}"
    return table_from_records(rows, title, GROUP, format=decimals(3), note=note, explain=("auroc",))


@report("cood/fig6", needs=GRADED)
def fig_6(frame: Frame) -> Blocks:
    """Boxes of the AUROC of all models at each severity, and on fixed sets such as ImageNet-O."""
    graded = graded_models(frame)
    if not graded.severities:
        return None
    levels = {group: graded.aurocs(group) for group in (*graded.severities, *graded.fixed)}
    lines = {
        name: {group: values[name] for group, values in levels.items() if name in values}
        for name in dict.fromkeys((graded.best(), _resnet(graded)))
        if name is not None and len(graded.models.sizes) > 1
    }
    caption = (
        "One box over all models at each severity: quartiles, whiskers to 1.5 times the height of the box, circles "
        f"beyond; by {_label(graded.main_measure)}. 0.5 is chance."
    )
    if graded.fixed:
        caption += f" {', '.join(graded.fixed)}: the same images for every model."
    title = "OOD detection from the easiest to the hardest classes"
    options: Row = {"lines": lines, "unconnected": graded.fixed, "guide": 0.5}
    figure = _boxes("fig6", title, caption, levels, AUROC, **options)
    tables = {_label(measure): [severities(frame, measure)] for measure in graded.measures}
    return [figure, Tabs("Measure of uncertainty", tables) if len(tables) > 1 else severities(frame)]


def _boxes(key: str, title: str, caption: str, levels: Mapping[str, Values], axis: str, **look: Any) -> Figure:
    """One box over the models at each level."""
    return levels_figure(key, title, caption, levels, (GROUP, "model", axis), box_chart, ticks=_ticks(levels), **look)


def _resnet(graded: GradedModels) -> str | None:
    """The plain ResNet-50, which selected the images of ImageNet-O."""
    names = graded.aurocs(graded.median_level)
    return next((name for name in names if NetworkName.parse(name).name.partition(".")[0] == "resnet50"), None)


# ---- OOD detection at the median severity against properties of models

DETECTION = "OOD detection at the median severity against"
EACH = "One point per model."
CLOUDS = (
    Cloud("fig7", f"{DETECTION} in-distribution AUROC", "errors", "detects", EACH, LABELLED),
    Cloud(
        "fig19",
        f"{DETECTION} parameters",
        PARAMS,
        "detects",
        f"{EACH} Vertical lines: the sizes of {' and '.join(RESNETS)}.",
        "models with a number of parameters, from `nescio zoo`",
        guides=tuple(("x", float(size)) for size in RESNETS.values()),
    ),
    Cloud("fig20", f"{DETECTION} accuracy", "accuracy", "detects", EACH, LABELLED),
)


def scatter(frame: Frame, spec: Cloud) -> Blocks:
    """Two properties of every model, their correlation by family, and for sizes the best model of a limited size."""
    graded = graded_models(frame)
    x, y = graded.axes[spec.x], graded.axes[spec.y]
    model_names = [name for name in y.values if name in x.values]
    size_table = [best_under(graded)] if spec.x == PARAMS else []
    if len(model_names) < LEAST:
        return size_table
    rho_title = f"ρ with {x.label}"
    rows = pretrained.correlations(model_names, {rho_title: (y.values, x.values)})
    labels = {row["architecture"]: _with_rho(row["architecture"], row[rho_title], row["models"]) for row in rows}
    colours = {name: labels.get(families.paper_name(families.family(name)), OTHERS) for name in model_names}
    caption = f"{spec.caption} In brackets: {SPEARMAN} and the number of models." if len(rows) > 1 else spec.caption
    picture = replace(spec, caption=caption).figure(graded.models, graded.axes, colours)
    note = f"Families of at least {LEAST} models; a dash: one of the two properties does not vary"
    table = table_from_records(rows, spec.title, "architecture", format=RHO, note=note)
    return [picture, table, *size_table] if picture else size_table


def _with_rho(family: str, rho: float | None, n: int) -> str:
    return f"{family} ({n})" if rho is None else f"{family} ({format_number(rho, 2)}, {n})"


def best_under(graded: GradedModels) -> Table:
    """The best model at the median severity among those of at most the size of ResNet-50, and of ResNet-101."""
    params, auroc = graded.models.params, graded.axes["detects"]
    rows: list[Row] = []
    for name, limit in RESNETS.items():
        small = {model: value for model, value in auroc.values.items() if params.get(model, limit + 1) <= limit}
        if best := pretrained.best_of(small):
            line = {PARAMS: f"up to {name} ({format_millions(limit)})", "best model": best, auroc.label: small[best]}
            rows.append(line | {"its parameters": params[best], "of models": len(small)})
    title = "The best model of a limited size"
    return table_from_records(rows, title, PARAMS, format=decimals(3), formats={"its parameters": format_millions})


# ---- figures over the severities, each with its table


@report("cood/fig21", needs=pretrained.COUNTERPART)
def fig_21(frame: Frame) -> Blocks:
    """Mean relative improvement by training regime, from the easiest to the hardest classes."""
    graded = graded_models(frame)
    lines, counts = dict[str, Values](), dict[str, int]()
    for regime, counterparts in _counterparts(graded.models).items():
        gains = {level: pretrained.gains_over(graded.aurocs(level), counterparts) for level in graded.severities}
        lines[regime] = {level: fmean(values.values()) for level, values in gains.items() if values}
        counts[regime] = len(set().union(*gains.values()))
    note = (
        "Mean relative improvement of AUROC over each model's counterpart, the same network without the regime. "
        "Distillation includes pruning with the unpruned teacher. Above the line, and bold, is better"
    )
    options = {"format": pretrained.CHANGE, "note": note, "changes": True}
    return _lines("fig21", "OOD detection by training regime", ("regime", GROUP, GAIN), lines, counts, options)


def _counterparts(models: Models) -> dict[str, dict[str, str]]:
    """Regime → {model: its counterpart}; pruning with the unpruned teacher is distillation too."""
    pairs = regimes.counterparts(models.sizes)
    distilled = pairs.pop(regimes.DISTILLATION, {}) | pairs.pop(regimes.PRUNING_DISTILLED, {})
    return ({regimes.DISTILLATION: distilled} if distilled else {}) | pairs


@report("cood/fig26", needs=f"{THREE} that differ in accuracy, size or input")
def fig_26(frame: Frame) -> Blocks:
    """Rank correlation of detection with properties of models, at each severity."""
    graded = graded_models(frame)
    models = graded.models
    factors = {"accuracy": models.get("accuracy"), "ID-AUROC": models.get("auroc", graded.main_measure)}
    factors |= {"#parameters": models.params, "input size": models.get("input_size")}
    factors["embedding size"] = models.get("embedding_size")
    lines, counts = dict[str, Values](), dict[str, int]()
    for name, values in factors.items():
        rhos = {level: pretrained.correlation(graded.aurocs(level), values) for level in graded.severities}
        lines[name] = {level: rho for level, rho in rhos.items() if rho is not None}
        counts[name] = len(values)
    note = f"{SPEARMAN} over models, by {_label(graded.main_measure)}; a dash: the property does not vary"
    title, options = "Rank correlation of OOD detection with properties of models", {"format": RHO, "note": note}
    return _lines("fig26", title, ("factor", GROUP, SPEARMAN), lines, counts, options)


def _lines(
    key: str, title: str, names: tuple[str, str, str], lines: Mapping[str, Values], models: Mapping[str, int], look: Row
) -> Blocks:
    """Lines over the severities, and their table with the numbers of models."""
    lines = {name: line for name, line in lines.items() if line}
    if not lines:
        return None
    formatter, ticks = "+.2%" if GAIN in names else ".3f", _ticks(next(iter(lines.values())))
    figure = levels_figure(key, title, f"{look['note']}.", lines, names, guide=0.0, format=formatter, ticks=ticks)
    rows = [
        {names[0]: name, "models": models[name]} | {_short_level(level): value for level, value in line.items()}
        for name, line in lines.items()
    ]
    return [figure, table_from_records(rows, title, names[0], **look)]


COMPARED = {  # name → measures after and before, required rows
    "fig22": (ENTROPY, USUAL, "the measures msp and entropy"),
    "fig23": (MC_DROPOUT, USUAL, pretrained.UNDER_DROPOUT),
    "fig24": (MC_DROPOUT, ENTROPY, pretrained.UNDER_DROPOUT),
}


def measure_gain(frame: Frame, key: str) -> Blocks:
    """Relative improvement of every model's AUROC by one measure over another, at each severity.

    Each measure is evaluated on its own groups, since those of the other favour that measure.
    """
    graded = graded_models(frame)
    new_measure, old_measure, _ = COMPARED[key]
    changes = {
        level: pretrained.gains(graded.aurocs(level, new_measure), graded.aurocs(level, old_measure))
        for level in graded.severities
    }
    levels = {level: values for level, values in changes.items() if values}
    if not levels:
        return None
    rows = [
        {GROUP: level, "models": len(values), **_box_values(values), "mean": fmean(values.values())}
        | {"better": fmean(value > 0 for value in values.values())}
        for level, values in levels.items()
    ]
    title = f"{_label(new_measure)} instead of {_label(old_measure)}"
    note = "(after − before)/before of AUROC; each measure on its groups of classes. Bold is better"
    caption = f"Relative improvement of each model's AUROC; above the line {_label(new_measure)} is better."
    figure = _boxes(key, title, caption, levels, GAIN, guide=0.0, format="+.2%")
    options: Row = {"format": pretrained.CHANGE, "formats": {"better": percents(0)}, "changes": True}
    return [figure, table_from_records(rows, title, GROUP, note=note, **options)]


@report("cood/fig25", needs=THREE)
def fig_25(frame: Frame) -> Blocks:
    """Rank correlation of the models between severities."""
    graded = graded_models(frame)
    n, levels = len(graded.models.sizes), list(graded.severities)
    cells: list[Row] = [
        {"line": _short_level(row_level), "column": _short_level(column_level), "value": rho, "n": n}
        for row_level in reversed(levels)
        for column_level in levels
        if (rho := pretrained.correlation(graded.aurocs(row_level), graded.aurocs(column_level))) is not None
    ]
    title, names = "Rank correlation of models between severities", (SEVERITY, "other severity", "models")
    caption = f"{SPEARMAN} over {n} models, by {_label(graded.main_measure)}"
    figure = heat_figure("fig25", title, f"{caption}.", cells, SPEARMAN, 0.0, names)
    rows = [
        {SEVERITY: line} | {c["column"]: c["value"] for c in group} for (line,), group in Frame(cells).group_by("line")
    ]
    return [figure, table_from_records(rows, title, SEVERITY, format=RHO, note=caption)] if figure else None


# ---- shared hard classes


@report("cood/overlap", needs="two models")
def overlap(frame: Frame) -> Table | None:
    """At each severity: the number of classes in the group of any model, and in the groups of all models."""
    classes, windows = (frame.facts(name).column() for name in ("out_classes", "window"))
    overlaps = frame.where(metric=("union", "intersection"))
    if not overlaps or not classes:
        return None
    rows = []
    for (measure, level), group in overlaps.sort(lambda row: row["measure"] != USUAL).group_by("measure", "severity"):
        union = group.where(metric="union")
        line = {"measure": _label(measure), GROUP: f"{SEVERITY} {level:g}", "in any group": union.first()}
        line |= {"of all": union.first() / max(classes), "in every group": group.where(metric="intersection").first()}
        rows.append(line | {"models": union.first("n")})
    note = (
        f"Of {max(classes):,.0f} OOD classes, {max(windows):,.0f} in each group of a model. Many classes in any group "
        "and none in every group: models differ in the classes that are hard"
    )
    title = "Hard classes that models share"
    return table_from_records(rows, title, "measure", GROUP, format=COUNT, formats={"of all": percents()}, note=note)


@report("cood/fig27", needs="two models with the same prediction for one of their hardest images")
def fig_27(frame: Frame) -> Table:
    """Images of hard classes with the same prediction by most models."""
    rows = [
        {"image": row["image"], "its class": row["image_class"], "prediction": row["predicted_class"]}
        | {"models that predict it": row["value"], "of models": row["n"]}
        for row in frame.where(metric="agreeing_models")
    ]
    note = "Test images of each model's hardest group; their classes are OOD, so that no prediction is correct"
    title = "Images with the same prediction by many models"
    return table_from_records(rows, title, "image", "its class", "prediction", format=COUNT, note=note)


# ---- the page

for _cloud in CLOUDS:
    report(f"{NAME}/{_cloud.name}", needs=_cloud.needs)(partial(scatter, spec=_cloud))
for _key, (_, _, _needs) in COMPARED.items():
    report(f"{NAME}/{_key}", needs=_needs)(partial(measure_gain, key=_key))

SECTIONS = (
    ("Models", TITLE, ()),
    ("Severities", "From the easiest to the hardest classes", ("fig6",)),
    ("Measures", "OOD detection by measure", tuple(COMPARED)),
    ("Properties", "OOD detection and properties of models", ("fig26", "fig7", "fig20")),
    ("Size", "OOD detection by size", ("fig19",)),
    ("Training", "OOD detection by training regime", ("fig21",)),
    ("Rankings", "Rank correlation of models between severities", ("fig25",)),
    ("Classes", "Hard classes that models share", ("overlap", "fig27")),
)


def first_look(study: Study) -> list[Table]:
    """The tables for the terminal."""
    frame = study.frame
    tables = [scores(frame, TOP)]
    if len(pretrained.models_of(frame).sizes) > 1:
        tables.append(severities(frame).select("lowest", "median", "highest", "best model"))
    changes = flatten([measure_gain(frame, "fig22")])
    tables += [table.select("lowest", "median", "highest", "better") for table in tables_of(changes)]
    return [table for table in tables if table]


UNTESTED = "Groups of classes differ between models, so differences of models are not tested."


def lead(study: Study) -> list[str]:
    """The best model at the median severity and at the hardest, and the gain of entropy."""
    frame = study.frame
    graded = graded_models(frame)
    classes, window = (frame.facts(name).first() for name in ("out_classes", "window"))
    count, sentences = plural(len(graded.models.sizes), "model"), []
    if classes is not None:
        dataset = "" if pretrained.unnamed(study) else f" of {study.data}"
        sentences.append(f"{count}{dataset}, {classes:,.0f} OOD classes, in groups of {window:,.0f} by severity.")
    auroc = graded.aurocs(graded.median_level)
    if best := pretrained.best_of(auroc):
        values = [f"{format_number(auroc[best], 3)} at the median severity"]
        hardest = graded.aurocs(list(graded.severities)[-1])
        values += [f"{format_number(hardest[best], 3)} at the last"] if best in hardest else []
        sentence = f"Highest AUROC of OOD detection: {best}, {join_names(values)}"
        if len(graded.models.sizes) == 1:
            sentences.append(f"AUROC of OOD detection: {join_names(values)}.")
        else:
            sentences += [f"{sentence} (median of the models {format_number(median(auroc.values()), 3)}).", UNTESTED]
    changes = pretrained.gains(graded.aurocs(graded.median_level, ENTROPY), graded.aurocs(graded.median_level, USUAL))
    if len(changes) > 1:
        gains = sum(value > 0 for value in changes.values())
        sentences.append(f"At the median severity, entropy surpasses {USUAL} for {gains} of {len(changes)} models.")
    return sentences


def story(study: Study) -> Story:
    """The page of a graded study."""
    return pretrained.page(study, TITLE, lead(study), scores, SECTIONS)
