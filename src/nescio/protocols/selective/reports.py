"""The tables and figures of Galil et al. 2023 about in-distribution answers, each a named function of rows.

`REPORTS` holds them by the paper's names (`table1`, `fig5`) beside a few of our own (`models`, `regimes`, `pareto` …);
the page tells all of them, and `nescio report ROWS --only fig5,table1` writes those that are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nescio.networks import families, regimes
from nescio.protocols.selective import FEWEST, SHARE
from nescio.protocols.selective.tables import (
    ACCURACY,
    CONSTANT,
    LEAST,
    NAMELESS,
    PARAMS,
    TEMPERATURE,
    TOP,
    USUAL,
    Model,
    Models,
    Of,
    Source,
    agreement,
    by_family,
    constant,
    correlation,
    e_aurc_example,
    front,
    improvements,
    investment,
    middle,
    models_of,
    pareto,
    regime_table,
    scores,
    size,
    strictest,
    table_1,
    table_2,
    temperature_table,
)
from nescio.protocols.uimnet.reports import _count, _data
from nescio.report import Table
from nescio.report.cells import explained_once, grouped, number, of_hundred, percent
from nescio.report.charts import KEPT, PAGE, WRONG, models_figure
from nescio.report.clouds import OTHERS, changes_figure, cloud_figure, cloud_points
from nescio.report.pages import Block, Figure, Fold, Section, Story, Terms
from nescio.report.studies import needs
from nescio.rows import Row

if TYPE_CHECKING:
    from nescio.report.studies import Told

NAMED = 12  # families with a colour of their own in the small pictures
LONG = 24  # lines of a table above which the page folds it
AUROC, ECE = "AUROC × 100", "−log(ECE)"
# what reports need of their rows
ERRORS = "a model with right and wrong answers, and an ECE that is not zero"
CHANGED = (
    "a model and the same network without its training regime, by timm's names, such as "
    "deit_tiny_distilled_patch16_224.fb_in1k and deit_tiny_patch16_224.fb_in1k; or a temperature, or answers under "
    "dropout"
)
SCALED = (
    f"a model whose temperature could be fitted: on {SHARE * FEWEST:,} rows or more, right and wrong ones among them"
)
SIZES = "models whose number of parameters is known: `nescio zoo` knows it, of files --facts tells it"
UNDER_DROPOUT = "answers under dropout (the variant mc-dropout; `nescio zoo --drop 0.2` for models of timm)"


# ---- what training regimes change (Figures 3 and 4)


@needs(CHANGED)
def fig_3(rows: Source) -> list[Block]:
    """AUROC of models against their own counterparts, by training regime (Figure 3)."""
    return _changes(rows, "auroc", "fig3", "AUROC improvement", "What changes how well models rank their answers")


@needs(CHANGED)
def fig_4(rows: Source) -> list[Block]:
    """ECE of models against their own counterparts, by training regime (Figure 4)."""
    return _changes(rows, "ece", "fig4", "ECE improvement", "What changes how well models are calibrated")


def _changes(rows: Source, metric: str, key: str, axis: str, title: str) -> list[Block]:
    points = [row | {"value": row[metric]} for row in improvements(rows) if row[metric] is not None]
    if not points:
        return []
    words = (
        f"{_named(key)}. One point a model, relative to the same model without the method: above the line it got "
        "better. The bar is the median."
    )
    shown = [{"regime": p["kind"], "model": p["model"], "compared with": p["than"], axis: p["value"]} for p in points]
    return [Figure(key, title, words, lambda: changes_figure(points, axis, palette=PAGE), shown)]


# ---- temperature (Figures 15 to 17)


@needs(SCALED)
def fig_15(rows: Source) -> list[Block]:
    """AUROC and −log(ECE) of every model after temperature scaling (Figure 15)."""
    title = "Ranking and calibration after temperature scaling"
    return _ranking_and_calibration(rows, "fig15", title, NAMED, calibrated=True)


@needs(SCALED)
def fig_16(rows: Source) -> list[Block]:
    """Temperature against the AUROC improvement that it brings (Figure 16)."""
    return _by_temperature(rows, "auroc", "fig16", "AUROC")


@needs(SCALED)
def fig_17(rows: Source) -> list[Block]:
    """Temperature against the ECE improvement that it brings (Figure 17)."""
    return _by_temperature(rows, "ece", "fig17", "ECE")


def _by_temperature(rows: Source, metric: str, key: str, name: str) -> list[Block]:
    models = models_of(rows)
    gains = {row["model"]: row[metric] for row in improvements(models) if row["kind"] == TEMPERATURE}
    x, y = "temperature", f"{name} improvement, %"

    def place(model: Model) -> Row | None:
        gain = gains.get(model.name)
        return None if gain is None else {x: model.temperature, y: 100 * gain}

    points = _points(models, place, NAMED)
    if not points:
        return []
    words = (
        f"{_named(key)}. Above the level line the model got better, right of the upright one the temperature is above "
        f"1. {_sides(points, x, y)}"
    )
    return [
        Figure(
            key,
            f"Does {name} improve with the temperature?",
            words,
            lambda: cloud_figure(points, x, y, guides=(1.0, 0.0), palette=PAGE),
            cloud_points(points, x, y),
        )
    ]


def _sides(points: Sequence[Row], x: str, y: str) -> str:
    """How many got better on each side of temperature 1."""
    said = []
    for words, own in (
        ("below 1", [p for p in points if p[x] < 1]),
        ("above 1", [p for p in points if p[x] > 1]),
    ):
        if own:
            said.append(f"{sum(p[y] > 0 for p in own)} of {len(own)} models with a temperature {words} got better")
    return f"{'; '.join(said)}." if said else ""


# ---- clouds of models (Figures 1, 5, 8, 9, 10, 15, 18)


def _points(models: Sequence[Model], place: Callable[[Model], Row | None], most: int | None = None) -> list[Row]:
    """Points of a cloud. The `most` largest families have names (None: all with LEAST models), the others are grey."""
    own = [(model, at) for model in models if (at := place(model)) is not None]
    kinds = by_family([model for model, _ in own])
    several = [name for name, held in kinds.items() if len(held) >= LEAST]
    named = set((several or list(kinds))[: most or len(kinds)])
    return [
        {
            "name": families.label(model.family) if model.family in named else OTHERS,
            "family": families.label(model.family),
            "model": model.name,
            "size": model.params,
            "dot": model.distilled,
        }
        | at
        for model, at in own
    ]


def _ranked_and_calibrated(calibrated: bool = False) -> Callable[[Model], Row | None]:
    def place(model: Model) -> Row | None:
        auroc, ece = model.auroc(calibrated), model.ece(calibrated)
        return {AUROC: 100 * auroc, ECE: -math.log(ece)} if auroc is not None and ece else None

    return place


def _ranking_and_calibration(
    rows: Source, key: str, title: str, most: int | None, calibrated: bool = False
) -> list[Block]:
    points = _points(models_of(rows), _ranked_and_calibrated(calibrated), most)
    if not points:
        return []
    words = (
        f"{_named(key)}. Right: it knows better when it is wrong. Up: it claims what it keeps. A larger mark, more "
        "parameters; a dot in the mark, a distilled model. Click on a name to see it alone."
    )
    shown = cloud_points(points, AUROC, ECE)
    return [Figure(key, title, words, lambda: cloud_figure(points, AUROC, ECE, palette=PAGE), shown)]


@needs(ERRORS)
def fig_1(rows: Source) -> list[Block]:
    """AUROC and −log(ECE) of every model, the largest families named (Figure 1)."""
    return _ranking_and_calibration(rows, "fig1", "Ranking and calibration of every model", NAMED)


@needs(ERRORS)
def fig_8(rows: Source) -> list[Block]:
    """AUROC and −log(ECE) of every model, every family named (Figure 8)."""
    return _ranking_and_calibration(rows, "fig8", "Ranking and calibration, with every family", None)


def _against(
    rows: Source, key: str, title: str, x: tuple[str, Of], y: tuple[str, Of], less: bool, log: bool, words: str
) -> list[Block]:
    """A cloud with its Pareto front: y is better when higher, x when lower (`less`) or higher."""

    def place(model: Model) -> Row | None:
        a, b = x[1](model), y[1](model)
        return {x[0]: a, y[0]: b} if a is not None and b is not None else None

    points = _points(models_of(rows), place, NAMED)
    if not points:
        return []
    best = front([(p[x[0]], p[y[0]]) for p in points], less)
    words = f"{_named(key)}. {words} The dashed line joins the models that no other one beats in both."

    def chart() -> Any:
        return cloud_figure(points, x[0], y[0], log=log, front=best, palette=PAGE)

    return [Figure(key, title, words, chart, cloud_points(points, x[0], y[0]))]


def _hundred_auroc(model: Model) -> float | None:
    auroc = model.auroc()
    return None if auroc is None else 100 * auroc


def _log_ece(model: Model) -> float | None:
    ece = model.ece()
    return -math.log(ece) if ece else None


def _coverage(models: Sequence[Model]) -> tuple[str, Of]:
    strict = strictest(models)
    return f"coverage at {100 * strict:g} % accuracy", lambda model: model.sac(strict)


def fig_5(rows: Source) -> list[Block]:
    """Accuracy of every model against the coverage that it gives at the strictest accuracy (Figure 5)."""
    models, x = models_of(rows), (ACCURACY, lambda model: model.accuracy)
    words = "Up: it may answer more before its kept answers are wrong too often."
    title = "How many answers are left when almost none may be wrong"
    return _against(models, "fig5", title, x, _coverage(models), less=False, log=False, words=words)


@needs(SIZES)
def fig_9(rows: Source) -> list[Block]:
    """Parameters of every model against AUROC (Figure 9)."""
    title, words = "Ranking by size", "Of two models above each other, the upper one ranks better at the same size."
    return _against(rows, "fig9", title, (PARAMS, size), (AUROC, _hundred_auroc), less=True, log=True, words=words)


@needs(SIZES)
def fig_10(rows: Source) -> list[Block]:
    """Parameters of every model against −log(ECE) (Figure 10)."""
    title, words = "Calibration by size", "Of two models above each other, the upper one is calibrated better."
    return _against(rows, "fig10", title, (PARAMS, size), (ECE, _log_ece), less=True, log=True, words=words)


@needs(SIZES)
def fig_18(rows: Source) -> list[Block]:
    """Parameters of every model against the coverage that it gives at the strictest accuracy (Figure 18)."""
    models, title = models_of(rows), "How many answers are left, by size"
    words = "Of two models above each other, the upper one may answer more at the same size."
    return _against(models, "fig18", title, (PARAMS, size), _coverage(models), less=True, log=True, words=words)


# ---- curves (Figure 2)


@needs(ERRORS)
def fig_2(rows: Source) -> list[Block]:
    """Risk–coverage curves of the best and the worst model by AUROC, and of one that accuracy misjudges (Figure 2)."""
    models = models_of(rows)
    chosen = curve_models(models)
    curves = {
        f"{model.name} ({why})": {USUAL: _curve(*zip(*sorted(model.curves[USUAL, False]), strict=True))}
        for model, why in chosen
    }
    if not curves:
        return []
    words = (
        f"{_named('fig2')}. Share of wrong answers among those that a model keeps, the surest first; lower is better."
    )
    if len(chosen) > 2:
        words += (
            f" {chosen[2][0].name} is right less often than {chosen[1][0].name}, and still gives more answers at "
            f"{100 * middle(models):g} % accuracy."
        )
    title = "Risk and coverage of the best and the worst"
    return [Figure("fig2", title, words, lambda: models_figure(curves, USUAL, PAGE), _steps(curves))]


def _steps(curves: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]) -> list[Row]:
    """Risk–coverage curves for a table."""
    return [
        {"model": name, KEPT: float(coverage), WRONG: float(risk)}
        for name, own in curves.items()
        for coverage, risk in zip(*own[USUAL], strict=True)
    ]


def _curve(coverage: Any, risk: Any) -> tuple[list[float], list[float]]:
    return [float(each) for each in coverage], [float(each) for each in risk]


def curve_models(models: Sequence[Model]) -> list[tuple[Model, str]]:
    """The best and the worst by AUROC; of those less accurate than the worst, the one that covers most more than it."""
    ranked = sorted((m for m in models if m.auroc() is not None and m.curves), key=lambda m: -(m.auroc() or 0))
    if len(ranked) < 2:
        return [(model, "the only one") for model in ranked]
    best, worst = ranked[0], ranked[-1]
    found = [(best, "best AUROC"), (worst, "worst AUROC")]
    common = middle(models)
    under = [
        m
        for m in ranked[1:-1]
        if (m.accuracy or 0) < (worst.accuracy or 0) and (m.sac(common) or 0) > (worst.sac(common) or 0)
    ]
    if under:
        found.append((max(under, key=lambda m: m.sac(common) or 0), "less accurate"))
    return found


# ---- distillation (Figures 13 and 14)


@needs(
    "a model and its distilled version, by timm's names, such as deit_tiny_patch16_224.fb_in1k and "
    "deit_tiny_distilled_patch16_224.fb_in1k"
)
def fig_13(rows: Source) -> list[Block]:
    """Distilled models and their undistilled counterparts (Figure 13)."""
    models = models_of(rows)
    kinds = (regimes.DISTILLATION, regimes.PRUNING_TAUGHT)
    held = [pair for pair in _pairs(models) if pair.regime in kinds and pair.counterpart]
    alone = {pair.model for pair in held if pair.own_teacher}
    words = (
        "A line goes from a model to its distilled version, which has a dot. “Its own teacher”: pruned networks that "
        "were taught by the network they were made from."
    )
    links = [(pair.counterpart or "", pair.model) for pair in held]
    title = "What distillation does to a model"
    return _linked(models, "fig13", title, words, links, dict.fromkeys(alone, "its own teacher"))


@needs(
    "a teacher and a model that learnt from it, by timm's names, such as regnety_160.deit_in1k and "
    "deit_tiny_distilled_patch16_224.fb_in1k"
)
def fig_14(rows: Source) -> list[Block]:
    """Teachers and their students (Figure 14)."""
    models = models_of(rows)
    links = [(pair.teacher or "", pair.model) for pair in _pairs(models) if pair.teacher and not pair.own_teacher]
    words = "A line goes from a teacher to a model that learnt from its answers, which has a dot."
    names = dict.fromkeys((teacher for teacher, _ in links), "teacher")
    return _linked(models, "fig14", "Teachers and their students", words, links, names)


def _pairs(models: Models) -> list[regimes.Pair]:
    return regimes.pairs(model.name for model in models)


def _linked(
    models: Models, key: str, title: str, words: str, links: Sequence[tuple[str, str]], names: Mapping[str, str]
) -> list[Block]:
    """Models and what came of them; `names` are those that are not called by their architecture."""
    firsts, wanted = {first for first, _ in links}, {name for link in links for name in link}
    points = _points([model for model in models if model.name in wanted], _ranked_and_calibrated())
    for point in points:
        point["name"] = names.get(point["model"]) or families.label(families.architecture(point["model"]))
        point["dot"] = point["model"] not in firsts
    at = {point["model"]: point for point in points}
    drawn = [(at[first], at[second]) for first, second in links if first in at and second in at]
    if not drawn:
        return []
    words = f"{_named(key)}. {words}"
    origins = {second["model"]: first["model"] for first, second in drawn}
    shown = [row | {"comes from": origins.get(row["model"])} for row in cloud_points(points, AUROC, ECE)]
    return [Figure(key, title, words, lambda: cloud_figure(points, AUROC, ECE, links=drawn, palette=PAGE), shown)]


# ---- two examples with exact numbers (appendices A and C, Figures 11 and 12)


def fig_11(rows: Source = ()) -> list[Block]:
    """Risk–coverage curves of two models that are always equally sure (Figure 11)."""
    return _example("fig11", False, "Two models that cannot rank their answers")


def fig_12(rows: Source = ()) -> list[Block]:
    """Risk–coverage curves of the best possible versions of those two models (Figure 12)."""
    return _example("fig12", True, "The same two models with the best possible order")


def _example(key: str, best: bool, title: str) -> list[Block]:
    from nescio import metrics

    curves = {
        f"{name}, right in {100 * (1 - risk):g} %": {USUAL: _curve(*metrics.risk_coverage(constant(risk, best)))}
        for name, risk in CONSTANT
    }
    words = f"{_named(key)}: an example that is worked out, not measured."
    return [Figure(key, title, words, lambda: models_figure(curves, USUAL, PAGE), _steps(curves))]


# ---- the whole


def _block(table: Callable[[Source], Table]) -> Callable[[Source], list[Block]]:
    def blocks(rows: Source) -> list[Block]:
        made = table(rows)
        return [made] if made.lines else []

    blocks.__doc__ = table.__doc__
    return blocks


Report = Callable[[Source], list[Block]]
REPORTS: dict[str, Report] = {
    "models": _block(scores),
    "table1": needs(f"{LEAST} models or more")(_block(table_1)),
    "table2": needs(UNDER_DROPOUT)(_block(table_2)),
    "agreement": needs(f"{LEAST} models or more that differ in AUROC and in ECE")(_block(agreement)),
    "regimes": needs(CHANGED)(_block(regime_table)),
    "temperature": needs(SCALED)(_block(temperature_table)),
    "pareto": _block(pareto),
    "fig1": fig_1,
    "fig2": fig_2,
    "fig3": fig_3,
    "fig4": fig_4,
    "fig5": fig_5,
    "fig8": fig_8,
    "fig9": fig_9,
    "fig10": fig_10,
    "fig11": fig_11,
    "fig12": fig_12,
    "fig13": fig_13,
    "fig14": fig_14,
    "fig15": fig_15,
    "fig16": fig_16,
    "fig17": fig_17,
    "fig18": fig_18,
    "investment": _block(investment),
    "e-aurc": _block(e_aurc_example),
}
EXAMPLES = ("investment", "e-aurc", "fig11", "fig12")  # worked out, not measured


def _named(key: str) -> str:
    return f"Figure {key.removeprefix('fig')}"


def first_look(told: Told) -> list[Table]:
    """The tables for the terminal: what fits it and can be read without the page."""
    models = models_of(told.rows)
    keeps = f"keeps@{100 * strictest(models):g} ↑"
    found = [
        _columns(scores(models, TOP), ("right ↑", "notices ↑", "ECE ↓", keeps, "params")),
        _columns(regime_table(models), ("models", "AUROC median", "AUROC better", "ECE median", "ECE better")),
    ]
    return [table for table in found if table.lines]


def _columns(table: Table, heads: Sequence[str]) -> Table:
    """The table with these columns only."""
    kept = [table.heads.index(head) for head in heads if head in table.heads]
    lines = tuple((name, tuple(cells[at] for at in kept)) for name, cells in table.lines)
    return replace(table, heads=tuple(table.heads[at] for at in kept), lines=lines)


def lead(told: Told) -> list[str]:
    """What was done and what came out, in plain sentences."""
    models = models_of(told.rows)
    n = max((m.counts.get("accuracy", 0) for m in models), default=0)
    s = "" if len(models) == 1 else "s"
    of = f" of {_data(told)}" if _data(told) not in NAMELESS else ""
    sentences = [f"{_count(len(models)).capitalize()} pretrained model{s} answered {n:,} images{of}."]
    strict = strictest(models)

    def winner(of: Of) -> tuple[str, float] | None:
        held = [(v, model.name) for model in models if (v := of(model)) is not None]
        return max(((name, v) for v, name in held), key=lambda each: each[1], default=None)

    right, notices, keeps = winner(lambda m: m.accuracy), winner(Model.auroc), winner(lambda m: m.sac(strict))
    if right and right[1] == 0:
        sentences.append("No answer is right.")
    elif right:
        sentences.append(f"Right most often: {right[0]}, in {percent(right[1])} of answers.")
    if notices:
        who = "the same model" if right and notices[0] == right[0] and len(models) > 1 else notices[0]
        pairs = f"less sure of the wrong one in {of_hundred(notices[1])} pairs of a wrong and a right answer"
        sentences.append(f"Knows best when it is wrong: {who}, {pairs}.")
    if keeps and keeps[1] > 0:
        sentences.append(
            f"Where {100 * strict:g} % of the answers given must be right, {keeps[0]} gives most: {percent(keeps[1])}."
        )
    elif keeps:
        sentences.append(f"No model gives any answers of which {100 * strict:g} % are right.")
    if told.failures:
        n = len(told.failures)
        sentences.append(f"{_count(n).capitalize()} model{'s' if n != 1 else ''} failed: see below.")
    return sentences


def story(told: Told) -> Story:
    """The page of a study of pretrained models."""
    models = models_of(told.rows)
    sections: list[Section] = []
    explained: set[str] = set()

    def section(link: str, title: str, *names: str | Block, words: str = "") -> None:
        blocks: list[Block] = []
        for name in names:
            made = REPORTS[name](models) if isinstance(name, str) else [name]
            for block in made:
                (block,) = explained_once([block], explained) if isinstance(block, Table) else (block,)
                blocks.append(_folded(block))
        if blocks:
            sections.append(Section(link, title, blocks, words))

    look = scores(models, TOP)
    section("Who knows?", look.title, look, "fig1")
    section("Coverage", "How much may each model answer?", "fig5", "fig18", "fig2")
    section("Size", "Who is best for its size?", "fig9", "fig10", "pareto")
    section("Training", "What does the way of training change?", "regimes", "fig3", "fig4", "fig13", "fig14")
    title = "What does temperature scaling change?"
    section("Temperature", title, "temperature", "fig15", "fig16", "fig17")
    section("Families", "What is uncertainty related to?", "table1", "agreement", "fig8", words=_overall(models))
    section("MC-dropout", "Does MC-dropout help?", "table2")
    if len(models) > TOP:
        section("All models", "All models", Fold("Every model", [scores(models)]))
    section("Examples", "Two examples that are worked out", *EXAMPLES)
    section("Failures", "What failed", *([Terms(told.failures)] if told.failures else []))
    missing = grouped(told.reasons)
    gaps = [Terms(missing)] if missing or told.notes else []
    section("Gaps", "What could not be said", *gaps, words=" ".join(told.notes))
    title = "which pretrained models know when they are wrong?"
    title = title.capitalize() if _data(told) in NAMELESS else f"{_data(told)}: {title}"
    alone = f"Each table and figure alone: `nescio report rows.parquet --only NAMES`, of {', '.join(REPORTS)}."
    return Story(title, lead(told), sections, [*told.footer(), alone])


def _overall(models: Models) -> str:
    rho = correlation(models, Model.auroc, Model.ece)
    if rho is None:
        return ""
    return (
        f"Over all {len(models)} models, AUROC and ECE have a rank correlation of {number(rho, 2)} (−0.5 over the 484 "
        "of the paper); within a family it may be of the other sign."
    )


def _folded(block: Block) -> Block:
    return Fold(block.title, [block]) if isinstance(block, Table) and len(block.lines) > LONG else block
