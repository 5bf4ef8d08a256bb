"""The tables and figures of Galil et al. 2023 about graded detection of new classes, each a named function of rows.

`REPORTS` holds them by the paper's names (`fig6`, `fig25`), appendix M.8 as `overlap`; the page tells all of them, and
`nescio report ROWS --only fig6,fig25` writes those that are asked for.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from nescio.errors import Undefined
from nescio.networks import families, regimes
from nescio.protocols.cood import SEVERITY
from nescio.protocols.cood.hierarchy import ORDERS
from nescio.protocols.selective import MC_DROPOUT
from nescio.protocols.selective.tables import NAMELESS
from nescio.protocols.uimnet.reports import _count, _data
from nescio.report import Cell, Table
from nescio.report.boxes import Box, box_figure, level_points, levels_figure
from nescio.report.cells import JOINT, grouped, legend, number, of_hundred
from nescio.report.charts import PAGE, heat_figure
from nescio.report.clouds import OTHERS, cloud_figure, cloud_points, millions
from nescio.report.pages import Block, Choice, Figure, Fold, Section, Story, Terms
from nescio.report.studies import needs
from nescio.rows import Row

if TYPE_CHECKING:
    from nescio.report.studies import Told

USUAL, ENTROPY = "largest", "entropy"
SOFTMAX = {USUAL: "softmax", ENTROPY: "entropy", MC_DROPOUT: "MC-dropout"}  # κ as the paper calls them
LEAST = 3  # models of a family, or of a pair of rankings, whose correlation is shown
TOP = 20  # models on the terminal
LONG = 24  # lines of a table above which the page folds it
RESNETS = {"ResNet-50": 25_557_032, "ResNet-101": 44_549_160}  # whose sizes Figure 19 marks
ALL = "all models"
AUROC = "AUROC of new against known"
NEW, GAIN, RHO = "new classes", "relative improvement", "Spearman’s ρ"
# what reports need of their rows
GRADED = "a model with one of the measures on both sets"
THREE = f"{LEAST} models or more"
UNDER_DROPOUT = "models that were asked about both sets under dropout (the variant mc-dropout; `nescio zoo --drop 0.2`)"


# ---- rows to models


@dataclass(frozen=True)
class Model:
    """Everything that the rows say of one model."""

    name: str
    params: int | None
    graded: dict[str, dict[str, float]] = field(default_factory=dict)  # κ → {group: AUROC}
    inside: dict[str, float] = field(default_factory=dict)  # κ → AUROC of right against wrong
    facts: dict[str, float] = field(default_factory=dict)  # accuracy, input_size, …

    @property
    def family(self) -> str:
        return families.family(self.name)


@dataclass(frozen=True)
class Models:
    """All models of the rows, and what was asked of them."""

    held: dict[str, Model]
    levels: tuple[str, ...]  # "severity 0" …
    fixed: tuple[str, ...]  # names of sets that are the same for all
    measures: tuple[str, ...]  # κ, the usual one first

    def at(self, group: str, measure: str) -> dict[str, float]:
        """Model → AUROC at a severity, or on a fixed set."""
        return {
            name: model.graded[measure][group]
            for name, model in self.held.items()
            if group in model.graded.get(measure, {})
        }

    def of(self, what: Callable[[Model], float | None]) -> dict[str, float]:
        """Model → a number, for those that have it."""
        return {name: value for name, model in self.held.items() if (value := what(model)) is not None}

    @property
    def usual(self) -> str:
        return self.measures[0] if self.measures else USUAL

    @property
    def middle(self) -> str:
        """The median severity: 5 of 0 to 10."""
        return self.levels[(len(self.levels) - 1) // 2] if self.levels else ""

    def best(self, measure: str | None = None) -> str | None:
        """The model with the highest mean AUROC over all severities."""
        own: dict[str, list[float]] = {}
        for level in self.levels:
            for name, value in self.at(level, measure or self.usual).items():
                own.setdefault(name, []).append(value)
        return max(sorted(own), key=lambda name: fmean(own[name]), default=None)


def models_of(rows: Iterable[Row] | Models) -> Models:
    """One Model for every backbone of the rows, in their order."""
    if isinstance(rows, Models):
        return rows
    held: dict[str, Model] = {}
    for row in rows:
        if row["backbone"] is None:
            continue
        model = held.setdefault(row["backbone"], Model(row["backbone"], row["params"]))
        if row["metric"] == "auroc" and row["split"] == "out":
            model.graded.setdefault(row["measure"], {})[row["group"]] = row["value"]
        elif row["metric"] == "auroc":
            model.inside[row["measure"]] = row["value"]
        elif row["measure"] is None:
            model.facts[row["metric"]] = row["value"]
    groups = {group: None for m in held.values() for own in m.graded.values() for group in own}
    levels = sorted((g for g in groups if g.startswith(SEVERITY)), key=lambda g: int(g.removeprefix(SEVERITY)))
    measures = sorted({κ: None for m in held.values() for κ in m.graded}, key=lambda κ: κ != USUAL)
    fixed = tuple(group for group in groups if not group.startswith(SEVERITY))
    return Models(held, tuple(levels), fixed, tuple(measures))


def correlation(a: Mapping[str, float], b: Mapping[str, float]) -> float | None:
    """Spearman's ρ over the models that have both; None for fewer than three, or where one of them never varies."""
    from nescio.metrics import spearman

    both = [name for name in a if name in b]
    if len(both) < LEAST:
        return None
    try:
        return spearman([a[name] for name in both], [b[name] for name in both])
    except Undefined:
        return None


def gains(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Relative improvement (after − before)/before of every model that has both."""
    return {name: (after[name] - value) / value for name, value in before.items() if name in after and value}


def _rho(value: float | None) -> Cell | None:
    return None if value is None else Cell(number(value, 2), value)


def _auroc(value: float, best: bool = False) -> Cell:
    return Cell(number(value, 3), value, best)


def _percent(value: float) -> Cell:
    text = f"{100 * value:+.2f} %"
    return Cell(text, value, value > 0) if text.strip("+-0. %") else Cell("0.00 %", value)


def _counted(n: int) -> Cell:
    return Cell(f"{n:,}", n)


# ---- Figure 6: every model at every severity


def severities(rows: Iterable[Row] | Models, measure: str | None = None) -> Table:
    """AUROC of all models at each severity and on fixed sets beside them (Figure 6): quartiles, ends, best model."""
    models = models_of(rows)
    measure = measure or models.usual
    lines = []
    for group in (*models.levels, *models.fixed):
        values = models.at(group, measure)
        if values:
            best = max(sorted(values), key=lambda name: values[name])
            cells = [_counted(len(values)), *(_auroc(value) for value in _five(list(values.values())))]
            lines.append((group, (*cells, Cell(best, values[best]))))
    note = (
        f"AUROC of new against known images, by {_word(measure)}: severity 0 holds the classes that a model finds "
        "easiest to notice, the last severity those of which it is most sure; every model and measure has its own"
    )
    heads = ("models", "lowest", "lower quartile", "median", "upper quartile", "highest", "best model")
    title = f"Detection at each severity (Figure 6), {_word(measure)}"
    return Table(title, "new classes", heads, tuple(lines), note, legend(["auroc"]))


def _five(values: Sequence[float]) -> tuple[float, float, float, float, float]:
    box = Box.of(values)
    return min(values), box.lower, box.middle, box.upper, max(values)


@needs(GRADED)
def fig_6(rows: Iterable[Row] | Models) -> list[Block]:
    """Detection of all models at each severity, with a fixed set such as ImageNet-O beside (Figure 6)."""
    models = models_of(rows)
    if not models.levels:
        return []
    levels = {group: models.at(group, models.usual) for group in (*models.levels, *models.fixed)}
    lines = {}
    for name in dict.fromkeys((models.best(), _resnet(models))):
        if name is not None and len(models.held) > 1:
            lines[name] = models.held[name].graded[models.usual]
    words = (
        "Figure 6. One box over all models at each severity: quartiles, whiskers to 1.5 times the height of the box, "
        f"circles beyond; by {_word(models.usual)}. 0.5 is chance."
    )
    if models.fixed:
        words += f" {', '.join(models.fixed)}: the same images for every model."
    picture = Figure(
        "fig6",
        "Detection from the easiest to the hardest classes",
        words,
        lambda: box_figure(levels, AUROC, lines=lines, apart=models.fixed, guide=0.5, palette=PAGE),
        level_points(levels, NEW, "model", AUROC),
    )
    tables = {_word(measure): [severities(models, measure)] for measure in models.measures}
    first = next(iter(tables.values()))[0]
    return [picture, Choice("Measure of uncertainty", tables) if len(tables) > 1 else first]


def _resnet(models: Models) -> str | None:
    """The plain ResNet-50, which ImageNet-O was made to fool."""
    named = [name for name in models.held if name.removeprefix("torchvision:").partition(".")[0] == "resnet50"]
    return next((name for name in named if models.usual in models.held[name].graded), None)


def _word(measure: str) -> str:
    return SOFTMAX.get(measure, measure)


# ---- Figures 7, 19 and 20: what goes with detection at the median severity


def by_family(models: Models, names: Iterable[str]) -> dict[str, list[str]]:
    """The models of each family among these, the largest families first."""
    held: dict[str, list[str]] = {}
    for name in names:
        held.setdefault(models.held[name].family, []).append(name)
    return dict(sorted(held.items(), key=lambda each: (-len(each[1]), each[0])))


def against(rows: Iterable[Row] | Models, what: Callable[[Model], float | None], title: str, head: str) -> Table:
    """Spearman's ρ of detection at the median severity with another number, over all models and by family."""
    models = models_of(rows)
    detects, other = models.at(models.middle, models.usual), models.of(what)
    both = [name for name in detects if name in other]
    lines = [(ALL, (_counted(len(both)), _rho(correlation(detects, other))))]
    for family, own in by_family(models, both).items():
        if len(own) >= LEAST:
            rho = correlation({name: detects[name] for name in own}, other)
            lines.append((families.label(family), (_counted(len(own)), _rho(rho))))
    note = f"Families of at least {LEAST} models; a dash where one of the two numbers is the same for all of them"
    return Table(title, "architecture", ("models", head), tuple(lines) if len(both) >= LEAST else (), note)


@needs(f"{THREE} with labels of the in-domain images")
def fig_7(rows: Iterable[Row] | Models) -> list[Block]:
    """Detection at the median severity against the in-distribution AUROC (Figure 7)."""
    models = models_of(rows)
    return _scatter(models, "fig7", lambda m: m.inside.get(models.usual), "in-distribution AUROC")


@needs("models whose number of parameters is known, as `nescio zoo` knows it")
def fig_19(rows: Iterable[Row] | Models) -> list[Block]:
    """Detection at the median severity against the number of parameters (Figure 19)."""
    models = models_of(rows)
    small = best_under(models)
    return [
        *_scatter(models, "fig19", lambda m: m.params, "parameters", marks=tuple(RESNETS.values())),
        *([small] if small.lines else []),
    ]


@needs(f"{THREE} with labels of the in-domain images")
def fig_20(rows: Iterable[Row] | Models) -> list[Block]:
    """Detection at the median severity against the accuracy (Figure 20)."""
    return _scatter(models_of(rows), "fig20", lambda m: m.facts.get("accuracy"), "accuracy")


def _scatter(
    models: Models, key: str, what: Callable[[Model], float | None], x: str, marks: Sequence[float] = ()
) -> list[Block]:
    y = f"AUROC at {models.middle}"
    detects, other = models.at(models.middle, models.usual), models.of(what)
    both = [name for name in detects if name in other]
    if len(both) < LEAST:
        return []
    kinds = by_family(models, both)
    names = {}
    for family, own in kinds.items():
        rho = correlation({name: detects[name] for name in own}, other)
        said = f"{number(rho, 2)}, {len(own)}" if rho is not None else str(len(own))
        names[family] = f"{families.label(family)} ({said})" if len(own) >= LEAST else OTHERS
    points = [
        {"name": names[models.held[name].family], "model": name, "size": models.held[name].params}
        | {
            "family": families.label(models.held[name].family),
            "dot": families.distilled(name),
            x: other[name],
            y: detects[name],
        }
        for name in both
    ]
    rho = correlation(detects, other)
    words = (
        f"Figure {key.removeprefix('fig')}. One point a model, larger with more parameters, by {_word(models.usual)}. "
        "Behind a family: Spearman’s ρ, and how many models."
        + ("" if rho is None else f" Over all {len(both)} models ρ = {number(rho, 2)}.")
        + (f" Upright lines: the sizes of {' and '.join(RESNETS)}." if marks else "")
    )

    def chart() -> Any:
        from nescio.report.clouds import _lines

        drawn = cloud_figure(points, x, y, log=bool(marks), palette=PAGE)
        drawn.layer = [*(line for mark in marks for line in _lines((mark, None), PAGE)), *drawn.layer]
        return drawn

    title = f"Detection at the median severity against {x} (Figure {key.removeprefix('fig')})"
    return [Figure(key, title, words, chart, cloud_points(points, x, y)), against(models, what, title, f"ρ with {x}")]


def best_under(rows: Iterable[Row] | Models) -> Table:
    """The best model at the median severity among those of at most the size of ResNet-50, and of ResNet-101 (M.1)."""
    models = models_of(rows)
    detects = models.at(models.middle, models.usual)
    lines = []
    for name, most in RESNETS.items():
        held = {model: models.held[model].params for model in detects}
        own = [model for model, params in held.items() if params is not None and params <= most]
        if own:
            best = max(sorted(own), key=lambda model: detects[model])
            params = held[best] or 0
            cells = (Cell(best, detects[best]), _auroc(detects[best]), Cell(millions(params), params))
            lines.append((f"up to {name} ({millions(most)})", (*cells, _counted(len(own)))))
    heads = ("best model", f"AUROC at {models.middle} ↑", "its parameters", "of models")
    return Table("The best model of a limited size (Figure 19)", "parameters", heads, tuple(lines))


# ---- Figure 21: training regimes


TAUGHT = {regimes.PRUNING_TAUGHT: regimes.DISTILLATION}  # distillation in any form


def regime_gains(rows: Iterable[Row] | Models) -> dict[str, dict[str, dict[str, float]]]:
    """Regime → severity → {model: relative improvement over its own counterpart}."""
    models = models_of(rows)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for pair in regimes.pairs(models.held):
        if pair.counterpart is None:
            continue
        for level in models.levels:
            values = models.at(level, models.usual)
            if pair.model in values and values.get(pair.counterpart):
                gain = (values[pair.model] - values[pair.counterpart]) / values[pair.counterpart]
                kind = TAUGHT.get(pair.regime, pair.regime)
                found.setdefault(kind, {}).setdefault(level, {})[pair.model] = gain
    return {kind: found[kind] for kind in regimes.REGIMES if kind in found}


def regime_table(rows: Iterable[Row] | Models) -> Table:
    """Mean relative improvement of each training regime at each severity (Figure 21)."""
    models = models_of(rows)
    lines = []
    for kind, by_level in regime_gains(models).items():
        pairs = len({name for own in by_level.values() for name in own})
        cells = [_percent(fmean(by_level[level].values())) if level in by_level else None for level in models.levels]
        lines.append((kind, (_counted(pairs), *cells)))
    note = (
        "Mean relative improvement of AUROC over each model's own counterpart, the same network without the regime; "
        "distillation in any form, pruning with the unpruned teacher included. Bold is for the better"
    )
    heads = ("models", *map(_short, models.levels))
    return Table("What the way of training does to detection (Figure 21)", "regime", heads, tuple(lines), note)


@needs(
    "a model and the same network without its training regime, by timm's names, such as "
    "deit_tiny_distilled_patch16_224.fb_in1k and deit_tiny_patch16_224.fb_in1k"
)
def fig_21(rows: Iterable[Row] | Models) -> list[Block]:
    """Mean relative improvement by training regime, from the easiest to the hardest classes (Figure 21)."""
    models = models_of(rows)
    found = regime_gains(models)
    if not found:
        return []
    lines = {kind: {level: fmean(own.values()) for level, own in held.items()} for kind, held in found.items()}
    picture = Figure(
        "fig21",
        "What the way of training does at each severity",
        "Figure 21. Mean relative improvement of AUROC over each model’s own counterpart; above the line is better.",
        lambda: levels_figure(lines, GAIN, guide=0.0, form="+.2%", palette=PAGE),
        level_points(lines, "regime", NEW, GAIN),
    )
    return [picture, regime_table(models)]


def _short(level: str) -> str:
    return level.replace(SEVERITY, "s")


# ---- Figures 22 to 24: one κ against another


def improvement(rows: Iterable[Row] | Models, after: str, before: str, figure: int) -> Table:
    """Relative improvement of every model's AUROC by one κ over another, at each severity.

    Each κ is judged on the groups that were built for it: those of the other would favour the other.
    """
    models = models_of(rows)
    lines = []
    for level in models.levels:
        values = list(gains(models.at(level, after), models.at(level, before)).values())
        if values:
            better = fmean(value > 0 for value in values)
            cells = [_counted(len(values)), *map(_percent, (*_five(values), fmean(values)))]
            lines.append((level, (*cells, Cell(f"{100 * better:.0f} %", better))))
    heads = ("models", "lowest", "lower quartile", "median", "upper quartile", "highest", "mean", "better")
    note = "(after − before)/before of AUROC; each measure on the groups that were built for it. Bold is for the better"
    title = f"{_word(after)} against {_word(before)} (Figure {figure})"
    return Table(title, "new classes", heads, tuple(lines), note)


def _boxes(rows: Iterable[Row] | Models, after: str, before: str, figure: int) -> list[Block]:
    models = models_of(rows)
    levels = {level: gains(models.at(level, after), models.at(level, before)) for level in models.levels}
    if not any(levels.values()):
        return []
    picture = Figure(
        f"fig{figure}",
        f"{_word(after)} instead of {_word(before)}",
        f"Figure {figure}. Relative improvement of each model’s AUROC; above the line {_word(after)} is better.",
        lambda: box_figure(levels, GAIN, guide=0.0, form="+.2%", palette=PAGE),
        level_points(levels, NEW, "model", GAIN),
    )
    return [picture, improvement(models, after, before, figure)]


@needs("the measures largest and entropy (--measures)")
def fig_22(rows: Iterable[Row] | Models) -> list[Block]:
    """Relative improvement by entropy over the largest softmax, at each severity (Figure 22)."""
    return _boxes(rows, ENTROPY, USUAL, 22)


@needs(UNDER_DROPOUT)
def fig_23(rows: Iterable[Row] | Models) -> list[Block]:
    """Relative improvement by MC-dropout over the largest softmax, at each severity (Figure 23)."""
    return _boxes(rows, MC_DROPOUT, USUAL, 23)


@needs(UNDER_DROPOUT)
def fig_24(rows: Iterable[Row] | Models) -> list[Block]:
    """Relative improvement by MC-dropout over entropy, at each severity (Figure 24)."""
    return _boxes(rows, MC_DROPOUT, ENTROPY, 24)


# ---- Figure 25: do severities rank models alike?


def ranks(rows: Iterable[Row] | Models) -> Table:
    """Spearman's ρ between the rankings of the models at every two severities (Figure 25)."""
    models = models_of(rows)
    values = {level: models.at(level, models.usual) for level in models.levels}
    lines = [
        (_short(a), tuple(_rho(correlation(values[a], values[b])) for b in models.levels))
        for a in reversed(models.levels)
    ]
    enough = any(cell is not None for _, cells in lines for cell in cells)
    note = f"Spearman's ρ over {len(models.held)} models, by {_word(models.usual)}"
    title = "Do severities rank the models alike? (Figure 25)"
    return Table(title, "severity", tuple(map(_short, models.levels)), tuple(lines) if enough else (), note)


@needs(THREE)
def fig_25(rows: Iterable[Row] | Models) -> list[Block]:
    """Rank correlation of the models between severities (Figure 25)."""
    models = models_of(rows)
    table = ranks(models)
    cells = [
        {"line": line, "column": head, "value": cell.value, "n": len(models.held)}
        for line, own in table.lines
        for head, cell in zip(table.heads, own, strict=True)
        if cell is not None
    ]
    if not cells:
        return []
    picture = Figure(
        "fig25",
        "How alike two severities rank the models",
        "Figure 25. Spearman’s ρ: 1 is the same order, 0 is none; more colour is more alike.",
        lambda: heat_figure(cells, RHO, 0.0, PAGE),
        [{"severity": c["line"], "other severity": c["column"], RHO: c["value"], "models": c["n"]} for c in cells],
    )
    return [picture, table]


# ---- Figure 26: factors


FACTORS: dict[str, Callable[[Model, str], float | None]] = {
    "accuracy": lambda model, κ: model.facts.get("accuracy"),
    "ID-AUROC": lambda model, κ: model.inside.get(κ),
    "#parameters": lambda model, κ: model.params,
    "input size": lambda model, κ: model.facts.get("input_size"),
    "embedding size": lambda model, κ: model.facts.get("embedding_size"),
}


def factors(rows: Iterable[Row] | Models) -> Table:
    """Spearman's ρ of detection with accuracy, ID-AUROC, size, input and embedding, at each severity (Figure 26)."""
    models = models_of(rows)
    lines = []
    for name, of in FACTORS.items():
        other = models.of(lambda model, of=of: of(model, models.usual))  # type: ignore[misc]
        cells = [_rho(correlation(models.at(level, models.usual), other)) for level in models.levels]
        if any(cells):
            lines.append((name, (*cells, _counted(len(other)))))
    heads = (*map(_short, models.levels), "models")
    note = f"Spearman's ρ over models, by {_word(models.usual)}; a dash where the factor does not vary"
    return Table("What goes with detection at each severity (Figure 26)", "factor", heads, tuple(lines), note)


@needs(f"{THREE} that differ in accuracy, size or input")
def fig_26(rows: Iterable[Row] | Models) -> list[Block]:
    """Rank correlation of detection with properties of models, at each severity (Figure 26)."""
    models = models_of(rows)
    table = factors(models)
    lines = {
        name: {level: cell.value for level, cell in zip(models.levels, cells, strict=False) if cell is not None}
        for name, cells in table.lines
    }
    if not lines:
        return []
    picture = Figure(
        "fig26",
        "What goes with detection",
        "Figure 26. Spearman’s ρ between a property of the models and their AUROC at each severity.",
        lambda: levels_figure(lines, RHO, guide=0.0, palette=PAGE),
        level_points(lines, "factor", NEW, RHO),
    )
    return [picture, table]


# ---- appendix M.8: whose classes are hard?


def overlap(rows: Iterable[Row]) -> Table:
    """At each severity: how many classes some model's group holds, and how many every one's (appendix M.8)."""
    rows = [row for row in rows if row["metric"] in ("union", "intersection", "out_classes", "window")]
    counts = {name: [row["value"] for row in rows if row["metric"] == name] for name in ("out_classes", "window")}
    if not counts["out_classes"] or not any(row["metric"] == "union" for row in rows):
        return Table("Are the same classes hard for all models? (M.8)", "new classes", (), ())
    every = int(max(counts["out_classes"]))
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if row["metric"] in ("union", "intersection"):
            found.setdefault((row["measure"], row["group"]), {})[row["metric"]] = row
    lines = []
    for (measure, group), held in sorted(found.items(), key=lambda each: (each[0][0] != USUAL, each[0][0])):
        some, all_ = held["union"]["value"], held["intersection"]["value"]
        cells = (_counted(int(some)), Cell(f"{100 * some / every:.1f} %", some / every), _counted(int(all_)))
        lines.append((JOINT.join((_word(measure), group)), (*cells, _counted(held["union"]["n"]))))
    note = (
        f"Of {every:,} new classes, {int(max(counts['window'])):,} in a group. Where some model's group holds nearly "
        "all of them and no class is in every model's, what is hard for one model is easy for another"
    )
    heads = ("in some model's group", "of all", "in every model's", "models")
    corner = JOINT.join(("measure", "new classes"))
    return Table("Are the same classes hard for all models? (M.8)", corner, heads, tuple(lines), note, labels=2)


def alike(rows: Iterable[Row]) -> Table:
    """Images of hard classes to which most models give the same answer (Figure 27)."""
    lines = [
        (row["group"], (_counted(int(row["value"])), _counted(row["n"])))
        for row in rows
        if row["metric"] == "same_answer"
    ]
    corner = JOINT.join(("image", "its class", "the answer"))
    note = "Among the test images of each model's own hardest group; no answer is right, for the class was never taught"
    title = "Images that many models mistake alike (Figure 27)"
    return Table(title, corner, ("models that say so", "of models"), tuple(lines), note, labels=3)


# ---- every model


def scores(rows: Iterable[Row] | Models, most: int | None = None) -> Table:
    """One line a model, the one that notices new classes best first; `most`: only so many."""
    models = models_of(rows)
    κ, middle = models.usual, models.middle
    ends = dict.fromkeys((*models.levels[:1], middle, *models.levels[-1:], *models.fixed))
    columns: dict[str, dict[str, float]] = {f"{_short(group)} ↑": models.at(group, κ) for group in ends if group}
    columns["right ↑"] = models.of(lambda m: m.facts.get("accuracy"))
    columns["notices errors ↑"] = models.of(lambda m: m.inside.get(κ))
    columns = {head: values for head, values in columns.items() if values}
    best = {head: max(values.values()) if len(set(values.values())) > 1 else None for head, values in columns.items()}
    detects = models.at(middle, κ)
    order = sorted(detects, key=lambda name: (-detects[name], name))

    def cell(head: str, name: str) -> Cell | None:
        value = columns[head].get(name)
        return None if value is None else Cell(f"{100 * value:.1f} %", value, value == best[head])

    lines = []
    for name in order[: most or len(order)]:
        params = models.held[name].params
        sized = Cell(millions(params), params) if params is not None else None
        lines.append((name, (*(cell(head, name) for head in columns), sized)))
    first = f"The {most} best of {len(order)}. " if most and len(order) > most else ""
    span = " to ".join(map(_short, (*models.levels[:1], *models.levels[-1:])))
    note = (
        f"{first}{span}: pairs of a new and a known image in which the model is less sure of the new one, from the "
        f"classes that are easiest for it to the hardest, by {_word(κ)}. Right: answers on known images. Notices "
        "errors: pairs of a wrong and a right answer in which it is less sure of the wrong one"
    )
    heads = (*columns, "params")
    return Table("Which models notice what they were never taught?", "model", heads, tuple(lines), note)


# ---- the whole


def _block(table: Callable[..., Table]) -> Callable[[Iterable[Row]], list[Block]]:
    def blocks(rows: Iterable[Row]) -> list[Block]:
        made = table(rows)
        return [made] if made.lines else []

    blocks.__doc__ = table.__doc__
    return blocks


Report = Callable[[Iterable[Row]], list[Block]]
REPORTS: dict[str, Report] = {
    "models": needs(GRADED)(_block(scores)),
    "fig6": fig_6,
    "fig7": fig_7,
    "fig19": fig_19,
    "fig20": fig_20,
    "fig21": fig_21,
    "fig22": fig_22,
    "fig23": fig_23,
    "fig24": fig_24,
    "fig25": fig_25,
    "fig26": fig_26,
    "fig27": needs("two models that give one answer to one of their hardest images")(_block(alike)),
    "overlap": needs("two models")(_block(overlap)),
}


def first_look(told: Told) -> list[Table]:
    """The tables for the terminal."""
    models = models_of(told.rows)
    found = [scores(models, TOP)]
    if len(models.held) > 1:
        found.append(_narrow(severities(models), ("lowest", "median", "highest", "best model")))
    if ENTROPY in models.measures and USUAL in models.measures:
        found.append(_narrow(improvement(models, ENTROPY, USUAL, 22), ("lowest", "median", "highest", "better")))
    return [table for table in found if table.lines]


def _narrow(table: Table, heads: Sequence[str]) -> Table:
    """Some columns of a table."""
    at = [table.heads.index(head) for head in heads]
    return replace(
        table, heads=tuple(heads), lines=tuple((name, tuple(cells[i] for i in at)) for name, cells in table.lines)
    )


def lead(told: Told) -> list[str]:
    """What was done and what came out, in plain sentences."""
    models = models_of(told.rows)
    counts = {row["metric"]: int(row["value"]) for row in told.rows if row["metric"] in ("out_classes", "window")}
    s = "" if len(models.held) == 1 else "s"
    who = f"{_count(len(models.held)).capitalize()} model{s}"
    known = f" that know{'' if s else 's'} {_data(told)}" if _data(told) not in NAMELESS else ""
    sentences = []
    if counts:
        new = f"{counts['out_classes']:,} classes that {'they were' if s else 'it was'} never taught"
        sentences.append(
            f"{who}{known} met {new}, in groups of {counts['window']:,} from the easiest to the hardest for each."
        )
    detects = models.at(models.middle, models.usual)
    hardest = models.at(models.levels[-1], models.usual) if models.levels else {}
    if detects:
        best = max(sorted(detects), key=lambda name: detects[name])
        sentences.append(
            f"Shown a new and a known image, {best} is less sure of the new one in {of_hundred(detects[best])} pairs "
            "at the median severity"
        )
        sentences[-1] += f" (the median model: {of_hundred(median(detects.values()))})" if s else ""
        sentences[-1] += f", in {of_hundred(hardest[best])} among its hardest classes." if best in hardest else "."
    if ENTROPY in models.measures and USUAL in models.measures:
        own = gains(models.at(models.middle, ENTROPY), models.at(models.middle, USUAL))
        if len(own) > 1:
            up = sum(value > 0 for value in own.values())
            sentences.append(f"Entropy notices more there than the largest softmax in {up} of {len(own)} models.")
    if told.failures:
        n = len(told.failures)
        sentences.append(f"{_count(n).capitalize()} piece{'s' if n != 1 else ''} of work failed: see below.")
    return sentences


def story(told: Told) -> Story:
    """The page of a graded study."""
    models = models_of(told.rows)
    sections: list[Section] = []

    def section(link: str, title: str, blocks: Sequence[Block], words: str = "") -> None:
        if blocks:
            sections.append(Section(link, title, blocks, words))

    look = scores(models)
    section("Who notices?", look.title, [_folded(look)] if look.lines else [])
    section("Severities", "From the easiest to the hardest classes", fig_6(models))
    section("Measures", "Which measure notices new classes best?", _folded_all(fig_22, fig_23, fig_24, rows=models))
    section("What goes with it", "Which models notice new classes?", _folded_all(fig_26, fig_7, fig_20, rows=models))
    section("Size", "Do larger models notice more?", _folded_all(fig_19, rows=models))
    section("Training", "What does the way of training change?", _folded_all(fig_21, rows=models))
    section("Rankings", "Do severities rank the models alike?", _folded_all(fig_25, rows=models))
    shared = [table for table in (overlap(told.rows), alike(told.rows)) if table.lines]
    section("Classes", "Are the same classes hard for all?", [_folded(table) for table in shared])
    section("Failures", "What failed", [Terms(told.failures)] if told.failures else [])
    missing = grouped(told.reasons)
    section("Gaps", "What could not be said", [Terms(missing)] if missing or told.notes else [], " ".join(told.notes))
    title = "which models notice new classes?"
    title = title.capitalize() if _data(told) in NAMELESS else f"{_data(told)}: {title}"
    return Story(title, lead(told), sections, told.footer(command_of))


def _folded_all(*reports: Callable[[Models], list[Block]], rows: Models) -> list[Block]:
    """Figures first to last, their tables behind a fold: a page for reading, all numbers at hand."""
    found: list[Block] = []
    for report in reports:
        for block in report(rows):
            found.append(Fold(block.title, [block]) if isinstance(block, Table) else block)
    return found


def _folded(table: Table) -> Block:
    return Fold(table.title, [table]) if len(table.lines) > LONG else table


def command_of(plan: Mapping[str, Any]) -> str:
    """The options that grade alike again; which models and files is not in the plan."""
    if not plan:
        return ""
    words = ["nescio", "run", "cood"]
    for name in ("estimation", "test", "severities", "window", "hierarchy", "seed"):
        if plan.get(name) is not None:
            words += [f"--{name}", str(plan[name])]
    if plan.get("hierarchy") is not None:
        words += ["--hierarchy-order", str(plan.get("order", ORDERS[0])).replace(" ", "-")]
    return shlex.join([*words, "--measures", ",".join(plan.get("measures") or ())])
