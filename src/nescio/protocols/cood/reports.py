"""The tables and figures of Galil et al. 2023 about graded detection of new classes, each a named function of rows.

Reports have the paper's names (`cood/fig6`, `cood/fig25`), appendix M.8 is `cood/overlap`; the page holds all of them,
and `nescio report ROWS --only fig6,fig25` writes some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median
from typing import Any

from nescio.analysis.answers import MC_DROPOUT
from nescio.networks import families, regimes
from nescio.protocols.base import registry
from nescio.protocols.cood import NAME, SEVERITY
from nescio.protocols.pretrained import (
    ALL,
    CHANGE,
    ENTROPY,
    LEAST,
    PARAMS,
    RHO,
    TOP,
    USUAL,
    ModelResults,
    Of,
    best_of,
    by_family,
    cloud_block,
    correlation,
    figure_name,
    gains,
    numbers,
    point,
    results_of,
    titled,
    unnamed,
    wide,
)
from nescio.report.blocks import Block, Choice, Figure, Made, SectionParts, Story, flat, fold_tables
from nescio.report.charts import OTHERS, Box, box_figure, heat_figure, level_points, levels_figure
from nescio.report.frame import Frame
from nescio.report.named import report
from nescio.report.studies import Study, story_of
from nescio.report.tables import COUNT, Table, decimals, percents
from nescio.report.words import millions, number, of_hundred, plural
from nescio.rows import Row

WORDS = {USUAL: "softmax", ENTROPY: "entropy", MC_DROPOUT: "MC-dropout"}  # measures as the paper calls them
RESNETS = {"ResNet-50": 25_557_032, "ResNet-101": 44_549_160}  # whose sizes Figure 19 marks
AUROC = "AUROC of new against known"
NEW, GAIN, SPEARMAN = "new classes", "relative improvement", "Spearman’s ρ"
QUARTILES = ("lowest", "lower quartile", "median", "upper quartile", "highest")
# what reports need of their rows
GRADED = "a model with one of the measures on both sets"
THREE = f"{LEAST} models or more"
LABELLED = f"{THREE} with labels of the in-distribution images"
UNDER_DROPOUT = "models with predictions on both sets under dropout (the variant mc-dropout; `nescio zoo --drop 0.2`)"


# ---- rows to models


@dataclass(frozen=True)
class GradedModels:
    """All models of the rows, and the groups of new classes that they were graded on."""

    models: dict[str, ModelResults]
    severities: dict[str, float]  # "severity 0" …: the number
    fixed: tuple[str, ...]  # names of sets that are the same for all
    measures: tuple[str, ...]  # the usual one first

    def at(self, group: str, measure: str | None = None) -> dict[str, float]:
        """Model → AUROC at a severity, or on a fixed set."""
        where: dict[str, Any] = {"target": group}
        if group in self.severities:
            where = {"condition": SEVERITY, "level": self.severities[group]}
        return self.of(lambda model: model.get("auroc", measure or self.usual, **where))

    def of(self, number: Of) -> dict[str, float]:
        """Model → a number, for those that have it."""
        return numbers(self.models.values(), number)

    def errors(self, model: ModelResults) -> float | None:
        """The AUROC of wrong against right answers."""
        return model.get("auroc", self.usual)

    @property
    def usual(self) -> str:
        return self.measures[0] if self.measures else USUAL

    @property
    def groups(self) -> tuple[str, ...]:
        return (*self.severities, *self.fixed)

    @property
    def middle(self) -> str:
        """The median severity: 5 of 0 to 10."""
        names = list(self.severities)
        return names[(len(names) - 1) // 2] if names else ""

    def best(self) -> str | None:
        """The model with the highest mean AUROC over all severities."""
        means: dict[str, float] = {}
        for name in self.models:
            values = [own[name] for level in self.severities if name in (own := self.at(level))]
            means |= {name: fmean(values)} if values else {}
        return best_of(means)


@lru_cache(maxsize=4)
def graded_models(frame: Frame) -> GradedModels:
    """The models of the rows, in their order."""
    out = frame.where(metric="auroc", split="out", backbone=lambda name: name is not None)
    levels = sorted(out.where(condition=SEVERITY).values("level"))
    measures = sorted(out.values("measure"), key=lambda measure: measure != USUAL)
    fixed = tuple(name for name in out.values("target") if name is not None)
    severities = {f"{SEVERITY} {level:g}": level for level in levels}
    return GradedModels({model.name: model for model in results_of(frame)}, severities, fixed, tuple(measures))


def _accuracy(model: ModelResults) -> float | None:
    return model.get("accuracy")


def _word(measure: str) -> str:
    return WORDS.get(measure, measure)


def _short(level: str) -> str:
    return level.replace(f"{SEVERITY} ", "s")


def _ticks(graded: GradedModels) -> dict[str, str]:
    return {level: _short(level) for level in graded.severities}


def _five(values: Mapping[str, float]) -> Row:
    """Ends and quartiles."""
    box = Box.of(list(values.values()))
    ends = (min(values.values()), box.lower, box.middle, box.upper, max(values.values()))
    return dict(zip(QUARTILES, ends, strict=True))


# ---- every model


@report("cood/models", needs=GRADED)
def scores(frame: Frame, most: int | None = None) -> Table:
    """One line per model, the one that notices new classes best first; `most`: only so many."""
    graded = graded_models(frame)
    levels = list(graded.severities)
    groups = dict.fromkeys((*levels[:1], graded.middle, *levels[-1:], *graded.fixed))
    columns = {f"{_short(group)} ↑": graded.at(group) for group in groups if group}
    columns["right ↑"] = graded.of(_accuracy)
    columns["notices errors ↑"] = graded.of(graded.errors)
    columns["params"] = graded.of(lambda model: model.params)
    detects = graded.at(graded.middle)
    order = sorted(detects, key=lambda name: (-detects[name], name))
    rows = [{"model": name} | {head: own.get(name) for head, own in columns.items()} for name in order]
    first = f"The {most} best of {len(order)}. " if most and len(order) > most else ""
    note = (
        f"{first}{' to '.join(map(_short, (*levels[:1], *levels[-1:])))}: pairs of a new and a known image in which "
        "the model is less sure of the new one, from the classes that are easiest for it to the hardest, by "
        f"{_word(graded.usual)}. Right: answers on known images. Notices errors: pairs of a wrong and a right answer "
        "in which it is less sure of the wrong one"
    )
    title = "Which models notice classes that were not in training?"
    whole = wide(rows, title, "model", form=percents(), forms={"params": millions}, note=note)
    return whole.top(most) if most else whole


# ---- Figure 6: every model at every severity


def severities(frame: Frame, measure: str | None = None) -> Table:
    """AUROC of all models at each severity and on fixed sets beside them (Figure 6): quartiles, ends, best model."""
    graded = graded_models(frame)
    measure = measure or graded.usual
    rows = [
        {NEW: group, "models": len(values), **_five(values), "best model": best_of(values)}
        for group in graded.groups
        if (values := graded.at(group, measure))
    ]
    note = (
        f"AUROC of new against known images, by {_word(measure)}: severity 0 holds the classes that a model finds "
        "easiest to notice, the last severity those of which it is most sure; every model and measure has its own"
    )
    title = f"Detection at each severity (Figure 6), {_word(measure)}"
    return wide(rows, title, NEW, form=decimals(3), note=note, explain=("auroc",))


@report("cood/fig6", needs=GRADED)
def fig_6(frame: Frame) -> Made:
    """Detection of all models at each severity, with a fixed set such as ImageNet-O beside (Figure 6)."""
    graded = graded_models(frame)
    if not graded.severities:
        return None
    levels = {group: graded.at(group) for group in graded.groups}
    lines = {
        name: {group: values[name] for group, values in levels.items() if name in values}
        for name in dict.fromkeys((graded.best(), _resnet(graded)))
        if name is not None and len(graded.models) > 1
    }
    words = (
        "Figure 6. One box over all models at each severity: quartiles, whiskers to 1.5 times the height of the box, "
        f"circles beyond; by {_word(graded.usual)}. 0.5 is chance."
    )
    if graded.fixed:
        words += f" {', '.join(graded.fixed)}: the same images for every model."

    def chart() -> Any:
        return box_figure(levels, AUROC, lines=lines, apart=graded.fixed, guide=0.5, ticks=_ticks(graded))

    title = "Detection from the easiest to the hardest classes"
    picture = Figure("fig6", title, words, chart, level_points(levels, NEW, "model", AUROC))
    tables = {_word(measure): [severities(frame, measure)] for measure in graded.measures}
    return [picture, Choice("Measure of uncertainty", tables) if len(tables) > 1 else severities(frame)]


def _resnet(graded: GradedModels) -> str | None:
    """The plain ResNet-50, which ImageNet-O was made to fool."""
    detects = graded.at(graded.middle)
    return next((name for name in detects if name.removeprefix("torchvision:").partition(".")[0] == "resnet50"), None)


# ---- Figures 7, 19 and 20: what goes with detection at the median severity


@report("cood/fig7", needs=LABELLED)
def fig_7(frame: Frame) -> Made:
    """Detection at the median severity against the in-distribution AUROC (Figure 7)."""
    return _scatter(frame, "fig7", graded_models(frame).errors, "in-distribution AUROC")


@report("cood/fig19", needs="models whose number of parameters is known, as `nescio zoo` knows it")
def fig_19(frame: Frame) -> Made:
    """Detection at the median severity against the number of parameters (Figure 19)."""
    marks = [("x", float(size)) for size in RESNETS.values()]
    words = f" Upright lines: the sizes of {' and '.join(RESNETS)}."
    blocks = _scatter(frame, "fig19", lambda model: model.params, PARAMS, words, log=True, guides=marks)
    return [*blocks, best_under(frame)]


@report("cood/fig20", needs=LABELLED)
def fig_20(frame: Frame) -> Made:
    """Detection at the median severity against the accuracy (Figure 20)."""
    return _scatter(frame, "fig20", _accuracy, "accuracy")


def _scatter(frame: Frame, key: str, of: Of, x: str, more: str = "", **options: Any) -> list[Block]:
    graded = graded_models(frame)
    y = f"AUROC at {graded.middle}"
    detects, other = graded.at(graded.middle), graded.of(of)
    both = [graded.models[name] for name in detects if name in other]
    if len(both) < LEAST:
        return []
    rows: list[Row] = [{"architecture": ALL, "models": len(both), f"ρ with {x}": correlation(detects, other)}]
    points = []
    for family, own in by_family(both).items():
        name, rho = OTHERS, correlation(numbers(own, lambda model: detects[model.name]), other)
        if len(own) >= LEAST:
            counted = str(len(own)) if rho is None else f"{number(rho, 2)}, {len(own)}"
            name = f"{families.label(family)} ({counted})"
            rows.append({"architecture": families.label(family), "models": len(own), f"ρ with {x}": rho})
        points += [point(model, name) | {x: other[model.name], y: detects[model.name]} for model in own]
    rho = rows[0][f"ρ with {x}"]
    words = (
        f"One point per model, larger with more parameters, by {_word(graded.usual)}. Behind a family: Spearman’s ρ, "
        "and how many models." + ("" if rho is None else f" Over all {len(both)} models ρ = {number(rho, 2)}.") + more
    )
    title = f"Detection at the median severity against {x} ({figure_name(key)})"
    note = f"Families of at least {LEAST} models; a dash where one of the two numbers is the same for all of them"
    table = wide(rows, title, "architecture", form=RHO, note=note)
    return flat([cloud_block(key, title, words, points, x, y, **options), table])


def best_under(frame: Frame) -> Table:
    """The best model at the median severity among those of at most the size of ResNet-50, and of ResNet-101 (M.1)."""
    graded = graded_models(frame)
    params, head = graded.of(lambda model: model.params), f"AUROC at {graded.middle}"
    rows: list[Row] = []
    for name, most in RESNETS.items():
        own = {model: value for model, value in graded.at(graded.middle).items() if params.get(model, most + 1) <= most}
        if best := best_of(own):
            line = {PARAMS: f"up to {name} ({millions(most)})", "best model": best, head: own[best]}
            rows.append(line | {"its parameters": params[best], "of models": len(own)})
    title = "The best model of a limited size (Figure 19)"
    return wide(rows, title, PARAMS, form=decimals(3), forms={"its parameters": millions})


# ---- Figure 21: training regimes

ANY_FORM = {regimes.PRUNING_TAUGHT: regimes.DISTILLATION}  # distillation in any form


def regime_gains(frame: Frame) -> dict[str, dict[str, dict[str, float]]]:
    """Regime → severity → {model: relative improvement over its own counterpart}."""
    graded = graded_models(frame)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for pair in regimes.pairs(graded.models):
        for level in graded.severities:
            values = graded.at(level)
            if pair.model in values and pair.counterpart and values.get(pair.counterpart):
                gain = gains({"": values[pair.model]}, {"": values[pair.counterpart]})[""]
                kind = ANY_FORM.get(pair.regime, pair.regime)
                found.setdefault(kind, {}).setdefault(level, {})[pair.model] = gain
    return {kind: found[kind] for kind in regimes.REGIMES if kind in found}


@report(
    "cood/fig21",
    needs="a model and the same network without its training regime, by timm's names, such as "
    "deit_tiny_distilled_patch16_224.fb_in1k and deit_tiny_patch16_224.fb_in1k",
)
def fig_21(frame: Frame) -> Made:
    """Mean relative improvement by training regime, from the easiest to the hardest classes (Figure 21)."""
    found = regime_gains(frame)
    if not found:
        return None
    lines = {kind: {level: fmean(own.values()) for level, own in levels.items()} for kind, levels in found.items()}
    rows = [
        {"regime": kind, "models": len({name for own in found[kind].values() for name in own})}
        | {_short(level): value for level, value in line.items()}
        for kind, line in lines.items()
    ]
    note = (
        "Mean relative improvement of AUROC over each model's own counterpart, the same network without the regime; "
        "distillation in any form, pruning with the unpruned teacher included. Bold is for the better"
    )
    title = "What the way of training does to detection (Figure 21)"
    picture = Figure(
        "fig21",
        "What the way of training does at each severity",
        "Figure 21. Mean relative improvement of AUROC over each model’s own counterpart; above the line is better.",
        lambda: levels_figure(lines, GAIN, guide=0.0, form="+.2%", ticks=_ticks(graded_models(frame))),
        level_points(lines, "regime", NEW, GAIN),
    )
    return [picture, wide(rows, title, "regime", form=CHANGE, note=note, changes=True)]


# ---- Figures 22 to 24: one measure against another


def improvement(frame: Frame, after: str, before: str, key: str) -> Table:
    """Relative improvement of every model's AUROC by one measure over another, at each severity.

    Each measure is judged on the groups that were built for it: those of the other would favour the other.
    """
    rows = [
        {NEW: level, "models": len(values), **_five(values), "mean": fmean(values.values())}
        | {"better": fmean(value > 0 for value in values.values())}
        for level, values in _improvements(graded_models(frame), after, before).items()
    ]
    note = "(after − before)/before of AUROC; each measure on the groups that were built for it. Bold is for the better"
    title = f"{_word(after)} against {_word(before)} ({figure_name(key)})"
    return wide(rows, title, NEW, form=CHANGE, forms={"better": percents(0)}, note=note, changes=True)


def _improvements(graded: GradedModels, after: str, before: str) -> dict[str, dict[str, float]]:
    """Severity → {model: relative improvement}, where there are any."""
    levels = {level: gains(graded.at(level, after), graded.at(level, before)) for level in graded.severities}
    return {level: values for level, values in levels.items() if values}


def _boxes(frame: Frame, after: str, before: str, key: str) -> Made:
    graded = graded_models(frame)
    levels = _improvements(graded, after, before)
    if not levels:
        return None
    picture = Figure(
        key,
        f"{_word(after)} instead of {_word(before)}",
        f"{figure_name(key)}. Relative improvement of each model’s AUROC; above the line {_word(after)} is better.",
        lambda: box_figure(levels, GAIN, guide=0.0, form="+.2%", ticks=_ticks(graded)),
        level_points(levels, NEW, "model", GAIN),
    )
    return [picture, improvement(frame, after, before, key)]


@report("cood/fig22", needs="the measures largest and entropy (--measures)")
def fig_22(frame: Frame) -> Made:
    """Relative improvement by entropy over the largest softmax, at each severity (Figure 22)."""
    return _boxes(frame, ENTROPY, USUAL, "fig22")


@report("cood/fig23", needs=UNDER_DROPOUT)
def fig_23(frame: Frame) -> Made:
    """Relative improvement by MC-dropout over the largest softmax, at each severity (Figure 23)."""
    return _boxes(frame, MC_DROPOUT, USUAL, "fig23")


@report("cood/fig24", needs=UNDER_DROPOUT)
def fig_24(frame: Frame) -> Made:
    """Relative improvement by MC-dropout over entropy, at each severity (Figure 24)."""
    return _boxes(frame, MC_DROPOUT, ENTROPY, "fig24")


# ---- Figure 25: do severities rank models alike?


@report("cood/fig25", needs=THREE)
def fig_25(frame: Frame) -> Made:
    """Rank correlation of the models between severities (Figure 25)."""
    graded = graded_models(frame)
    n, levels = len(graded.models), list(graded.severities)
    cells: list[Row] = [
        {"line": _short(a), "column": _short(b), "value": rho, "n": n}
        for a in reversed(levels)
        for b in levels
        if (rho := correlation(graded.at(a), graded.at(b))) is not None
    ]
    if not cells:
        return None
    rows: dict[str, Row] = {}
    for cell in cells:
        rows.setdefault(cell["line"], {SEVERITY: cell["line"]})[cell["column"]] = cell["value"]
    note = f"Spearman's ρ over {n} models, by {_word(graded.usual)}"
    picture = Figure(
        "fig25",
        "How alike two severities rank the models",
        "Figure 25. Spearman’s ρ: 1 is the same order, 0 is none; more colour is more alike.",
        lambda: heat_figure(cells, SPEARMAN, 0.0, (SEVERITY, "other severity", "models")),
        [{SEVERITY: c["line"], "other severity": c["column"], SPEARMAN: c["value"], "models": n} for c in cells],
    )
    title = "Do severities rank the models alike? (Figure 25)"
    return [picture, wide(list(rows.values()), title, SEVERITY, form=RHO, note=note)]


# ---- Figure 26: factors


@report("cood/fig26", needs=f"{THREE} that differ in accuracy, size or input")
def fig_26(frame: Frame) -> Made:
    """Rank correlation of detection with properties of models, at each severity (Figure 26)."""
    graded = graded_models(frame)
    factors: dict[str, Of] = {
        "accuracy": _accuracy,
        "ID-AUROC": graded.errors,
        "#parameters": lambda model: model.params,
        "input size": lambda model: model.get("input_size"),
        "embedding size": lambda model: model.get("embedding_size"),
    }
    rows, lines = [], {}
    for name, of in factors.items():
        other = graded.of(of)
        found = {level: rho for level in graded.severities if (rho := correlation(graded.at(level), other)) is not None}
        if found:
            lines[name] = found
            rows.append({"factor": name, **{_short(level): rho for level, rho in found.items()}, "models": len(other)})
    if not lines:
        return None
    note = f"Spearman's ρ over models, by {_word(graded.usual)}; a dash where the factor does not vary"
    picture = Figure(
        "fig26",
        "What goes with detection",
        "Figure 26. Spearman’s ρ between a property of the models and their AUROC at each severity.",
        lambda: levels_figure(lines, SPEARMAN, guide=0.0, ticks=_ticks(graded)),
        level_points(lines, "factor", NEW, SPEARMAN),
    )
    title = "What goes with detection at each severity (Figure 26)"
    return [picture, wide(rows, title, "factor", form=RHO, note=note)]


# ---- appendix M.8: whose classes are hard?


@report("cood/overlap", needs="two models")
def overlap(frame: Frame) -> Table | None:
    """At each severity: how many classes some model's group holds, and how many every one's (appendix M.8)."""
    counts = {metric: frame.where(metric=metric).column() for metric in ("out_classes", "window")}
    shared = frame.where(metric=("union", "intersection"))
    if not shared or not counts["out_classes"]:
        return None
    every, window = (int(max(values)) for values in counts.values())
    rows = []
    for (measure, level), own in shared.sort(lambda row: row["measure"] != USUAL).by("measure", "level"):
        some = own.where(metric="union")
        in_all = own.where(metric="intersection").one()
        line = {"measure": _word(measure), NEW: f"{SEVERITY} {level:g}", "in some model's group": some.one()}
        share = {"of all": some.one() / every, "in every model's": in_all, "models": some.one("n")}
        rows.append(line | share)
    note = (
        f"Of {every:,} new classes, {window:,} in a group. Where some model's group holds nearly all of them and no "
        "class is in every model's, what is hard for one model is easy for another"
    )
    title = "Are the same classes hard for all models? (M.8)"
    return wide(rows, title, "measure", NEW, form=COUNT, forms={"of all": percents()}, note=note)


@report("cood/fig27", needs="two models that give one answer to one of their hardest images")
def fig_27(frame: Frame) -> Table:
    """Images of hard classes to which most models give the same answer (Figure 27)."""
    rows = [
        {"image": row["group"], "its class": row["target"], "the answer": row["condition"]}
        | {"models that say so": row["value"], "of models": row["n"]}
        for row in frame.where(metric="same_answer")
    ]
    note = "Among the test images of each model's own hardest group; no answer is right: the class was not in training"
    title = "Images that many models mistake alike (Figure 27)"
    return wide(rows, title, "image", "its class", "the answer", form=COUNT, note=note)


# ---- the whole


def first_look(study: Study) -> list[Table]:
    """The tables for the terminal."""
    frame, graded = study.frame, graded_models(study.frame)
    tables = [scores(frame, TOP)]
    if len(graded.models) > 1:
        tables.append(severities(frame).only("lowest", "median", "highest", "best model"))
    if {ENTROPY, USUAL} <= set(graded.measures):
        change = improvement(frame, ENTROPY, USUAL, "fig22")
        tables.append(change.only("lowest", "median", "highest", "better"))
    return [table for table in tables if table]


def lead(study: Study) -> list[str]:
    """What was done and what came out, in plain sentences."""
    frame = study.frame
    graded = graded_models(frame)
    one = len(graded.models) == 1
    known = "" if unnamed(study) else f" that know{'s' if one else ''} {study.data}"
    classes, window = (frame.where(metric=metric).one() for metric in ("out_classes", "window"))
    sentences = []
    if classes is not None:
        sentences.append(
            f"{plural(len(graded.models), 'model')}{known} met {classes:,.0f} classes that were not in training, in "
            f"groups of {window:,.0f} from the easiest to the hardest for each."
        )
    detects = graded.at(graded.middle)
    if best := best_of(detects):
        sentences.append(
            f"Shown a new and a known image, {best} is less sure of the new one in {of_hundred(detects[best])} pairs "
            "at the median severity"
        )
        sentences[-1] += "" if one else f" (the median model: {of_hundred(median(detects.values()))})"
        hardest = graded.at(list(graded.severities)[-1])
        sentences[-1] += f", in {of_hundred(hardest[best])} among its hardest classes." if best in hardest else "."
    changes = gains(graded.at(graded.middle, ENTROPY), graded.at(graded.middle, USUAL))
    if len(changes) > 1:
        up = sum(value > 0 for value in changes.values())
        sentences.append(f"Entropy notices more there than the largest softmax in {up} of {len(changes)} models.")
    return sentences


def story(study: Study) -> Story:
    """The page of a graded study."""
    frame = study.frame
    look = scores(frame)

    def folded(*reports: Callable[[Frame], Made]) -> Sequence[Made]:
        """Figures first to last, their tables behind a fold: a page for reading, all numbers at hand."""
        return fold_tables(flat(function(frame) for function in reports))

    sections: list[SectionParts] = [
        ("Who notices?", look.title, [look]),
        ("Severities", "From the easiest to the hardest classes", [fig_6(frame)]),
        ("Measures", "Which measure notices new classes best?", folded(fig_22, fig_23, fig_24)),
        ("What goes with it", "Which models notice new classes?", folded(fig_26, fig_7, fig_20)),
        ("Size", "Do larger models notice more?", folded(fig_19)),
        ("Training", "What does the way of training change?", folded(fig_21)),
        ("Rankings", "Do severities rank the models alike?", folded(fig_25)),
        ("Classes", "Are the same classes hard for all?", [overlap(frame), fig_27(frame)]),
    ]
    title = titled(study, "which models notice new classes?")
    return story_of(study, title, lead(study), sections, command=registry[NAME].command)
