"""The tables and figures of Galil et al. 2023 about in-distribution answers, each a named function of rows.

Reports have the paper's names (`selective/table1`, `selective/fig5`) beside a few of our own (`models`, `regimes`,
`pareto` …); the page holds all of them, and `nescio report ROWS --only fig5,table1` writes some.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from nescio.analysis.answers import MC_DROPOUT
from nescio.networks import families, regimes
from nescio.protocols.base import registry
from nescio.protocols.pretrained import (
    ALL,
    CHANGE,
    LEAST,
    PARAMS,
    RHO,
    TOP,
    USUAL,
    ModelResults,
    Of,
    by_family,
    cloud,
    cloud_block,
    correlation,
    figure_name,
    gains,
    numbers,
    results_of,
    summed_up,
    titled,
    unnamed,
    wide,
)
from nescio.protocols.selective import COVERAGE, FEWEST, NAME, SHARE
from nescio.protocols.selective import examples as worked
from nescio.report.blocks import Figure, Fold, Made, SectionParts, Story
from nescio.report.charts import changes_figure
from nescio.report.frame import Frame
from nescio.report.named import names_of, report
from nescio.report.studies import Study, story_of
from nescio.report.tables import Form, Table, decimals, percents
from nescio.report.words import listed, millions, number, of_hundred, percent, plural
from nescio.rows import Row

NAMED = 12  # families with a colour of their own in the small pictures
TEMPERATURE, DROPOUT = "temperature scaling", "MC-dropout"
AUROC, ECE, ACCURACY = "AUROC × 100", "−log(ECE)", "accuracy"
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
SIZES = "models whose number of parameters is known: `nescio zoo` knows it, for files --facts has it"
UNDER_DROPOUT = "answers under dropout (the variant mc-dropout; `nescio zoo --drop 0.2` for models of timm)"
Models = Sequence[ModelResults]


# ---- numbers of a model


def accuracy(model: ModelResults) -> float | None:
    return model.get("accuracy")


def auroc(model: ModelResults, calibrated: bool = False, measure: str = USUAL) -> float | None:
    return model.get("auroc", measure, calibrated)


def ece(model: ModelResults, calibrated: bool = False) -> float | None:
    return model.get("ece", calibrated=calibrated)


def minus_ece(model: ModelResults) -> float | None:
    value = ece(model)
    return None if value is None else -value


def sac(share: float, measure: str = USUAL) -> Of:
    """The coverage that a model gives at an accuracy."""
    return lambda model: model.get(f"sac@{share:g}", measure)


def temperature(model: ModelResults) -> float | None:
    return model.get("temperature", calibrated=True)


def size(model: ModelResults) -> float | None:
    return model.params or None


def strictest(models: Models) -> float:
    """The highest accuracy whose coverage was measured: 0.99 unless the plan says otherwise."""
    shares = {metric.partition("@")[2] for model in models for metric, *_ in model.values if metric.startswith("sac@")}
    return max(map(float, shares), default=0.99)


def middle(models: Models) -> float:
    """The accuracy of the paper's example: 95 %, or the strictest that was measured."""
    return 0.95 if numbers(models, sac(0.95)) else strictest(models)


# ---- every model


@report("selective/models")
def scores(frame: Frame, most: int | None = None) -> Table:
    """One line per model, the one that knows best when it is wrong first; `most`: only so many."""
    models = sorted(results_of(frame), key=lambda model: (-(auroc(model) or 0), model.name))
    strict, common = strictest(models), middle(models)
    columns: dict[str, Of] = {
        "right ↑": accuracy,
        "notices ↑": auroc,
        "ECE ↓": ece,
        "ECE, T ↓": lambda model: ece(model, calibrated=True),
        f"keeps@{100 * common:g} ↑": sac(common),
        f"keeps@{100 * strict:g} ↑": sac(strict),
        "params": lambda model: model.params,
    }
    rows = [{"model": model.name} | {head: of(model) for head, of in columns.items()} for model in models]
    title, note = "Which models know when they are wrong?", _meaning(models, most)
    whole = wide(rows, title, "model", form=percents(), forms={"params": millions}, note=note)
    return whole.top(most) if most else whole


def _meaning(models: Models, most: int | None) -> str:
    n = max((model.counts.get("accuracy", 0) for model in models), default=0)
    fit = max((model.counts.get("temperature", 0) for model in models), default=0)
    strict, common = strictest(models), middle(models)
    kept = f"Keeps@{100 * common:g}{'' if common == strict else f' and @{100 * strict:g}'}"
    first = f"The {most} that notice best, of {len(models)}. " if most and len(models) > most else ""
    fitted = f" that is fitted on {fit:,} others" if fit else ""
    return (
        f"{first}{n:,} images each. Right: answers that are. Notices: pairs of a wrong and a right answer in which it "
        f"is less sure of the wrong one (AUROC, largest softmax). ECE: how far what it claims is from what it keeps; "
        f"T: after division by a temperature{fitted}. {kept}: share of the images that it may answer, the surest "
        "first, while that many percent of those answers are right"
    )


# ---- Table 1, and how AUROC and ECE agree

FACTORS: dict[str, Of] = {
    "Accuracy": accuracy,
    "#Parameters": lambda model: model.params,
    "Input Size": lambda model: model.get("input_size"),
}
QUALITIES: dict[str, Of] = {"AUROC": auroc, "-ECE": minus_ece}


@report("selective/table1", needs=f"{LEAST} models or more")
def table_1(frame: Frame) -> Table:
    """Spearman correlation of AUROC and −ECE with accuracy, parameters and input size, by family (Table 1)."""
    pairs = {f"{q} & {f}": (QUALITIES[q], FACTORS[f]) for f in FACTORS for q in QUALITIES}
    note = (
        "Spearman's ρ over the models of a family; positive is a good use of the resource, a dash is a resource that "
        "does not vary or is not known."
    )
    title = "What uncertainty is related to (Table 1)"
    return _by_architecture(results_of(frame), title, pairs, note)


@report("selective/agreement", needs=f"{LEAST} models or more that differ in AUROC and in ECE")
def agreement(frame: Frame) -> Table:
    """Spearman correlation of AUROC and ECE, over all models and by family (§3)."""
    note = "Spearman's ρ of AUROC and ECE: near −1, the model that ranks best is calibrated best; near 1, worst."
    title = "Do ranking and calibration agree?"
    return _by_architecture(results_of(frame), title, {"AUROC & ECE": (auroc, ece)}, note)


def _by_architecture(models: Models, title: str, pairs: Mapping[str, tuple[Of, Of]], note: str) -> Table:
    """Correlations of pairs of numbers, over all models and by family; lines without any are left out."""
    members = by_family(models)
    groups = {ALL: list(models)} | {families.label(f): own for f, own in members.items() if len(own) >= LEAST}
    rows: list[Row] = []
    for name, own in groups.items():
        found = {head: correlation(numbers(own, a), numbers(own, b)) for head, (a, b) in pairs.items()}
        if any(rho is not None for rho in found.values()):
            rows.append({"architecture": name, **found, "# models": len(own)})
    note = f"{note} Families of at least {LEAST} models"
    if few := sorted(families.label(family) for family, own in members.items() if len(own) < LEAST):
        more = f" and {len(few) - TOP} more" if len(few) > TOP else ""
        note += f"; counted under {ALL!r} only: {', '.join(few[:TOP])}{more}"
    return wide(rows, title, "architecture", form=RHO, note=note)


# ---- Table 2


@report("selective/table2", needs=UNDER_DROPOUT)
def table_2(frame: Frame) -> Table:
    """MC-dropout against the plain softmax (Table 2, appendix K): accuracy, AUROC and coverage, in percent."""
    models = [model for model in results_of(frame) if auroc(model, measure=MC_DROPOUT) is not None]
    strict = strictest(models)
    rows = []
    for model in models:
        for method, measure, answers in (("vanilla", USUAL, None), (DROPOUT, MC_DROPOUT, MC_DROPOUT)):
            values = {
                "accuracy ↑": model.get("accuracy", answers),
                "AUROC ↑": auroc(model, measure=measure),
                f"SAC@{strict:g} ↑": sac(strict, measure)(model),
            }
            rows.append({"architecture": model.name, "method": method, **values})
    note = (
        "In percent. MC-dropout: answers of the mean softmax of the passes under dropout, ranked by its entropy, which "
        "is not a probability and has no ECE"
    )
    return wide(
        rows,
        "MC-dropout against the plain softmax (Table 2)",
        "architecture",
        "method",
        form=Form(".2f", 100),
        note=note,
        within=("architecture",),
        explain=("auroc", "sac"),
    )


# ---- what training regimes do (Figures 3 and 4)


def improvements(models: Models) -> list[Row]:
    """Every model against its own counterpart: `kind`, `model`, `than`, and relative improvements `auroc` and `ece`.

    AUROC: (after − before)/before. ECE: (before − after)/before, so that better is positive in both. Kinds are the
    regimes, temperature scaling and MC-dropout (AUROC only) against the same model's plain softmax.
    """
    by_name = {model.name: model for model in models}
    rows: list[Row] = []

    def add(kind: str, model: ModelResults, than: str, aurocs: _Change, eces: _Change = (None, None)) -> None:
        changes = {"auroc": _gain(*aurocs), "ece": _gain(*eces, lower=True)}
        rows.append({"kind": kind, "model": model.name, "than": than, **changes})

    for pair in regimes.pairs(by_name):
        if pair.counterpart:
            a, b = by_name[pair.model], by_name[pair.counterpart]
            add(pair.regime, a, b.name, (auroc(b), auroc(a)), (ece(b), ece(a)))
    for model in models:
        before = auroc(model)
        if temperature(model) is not None:
            eces = (ece(model), ece(model, calibrated=True))
            add(TEMPERATURE, model, "itself, uncalibrated", (before, auroc(model, calibrated=True)), eces)
        if (after := auroc(model, measure=MC_DROPOUT)) is not None:
            add(DROPOUT, model, "its plain softmax", (before, after))
    order = (*regimes.REGIMES, TEMPERATURE, DROPOUT)
    return sorted(rows, key=lambda row: order.index(row["kind"]))


_Change = tuple[float | None, float | None]  # before, after


def _gain(before: float | None, after: float | None, *, lower: bool = False) -> float | None:
    known = {} if before is None else {"": before}
    return None if after is None else gains({"": after}, known, lower=lower).get("")


@report("selective/regimes", needs=CHANGED)
def regime_table(frame: Frame) -> Table:
    """The improvements of Figures 3 and 4 by regime: how many models, mean, median, share that got better."""
    changes = Frame(improvements(results_of(frame)))
    rows = [{"regime": kind, "models": len(own)} | _changes_of(own) for (kind,), own in changes.by("kind")]
    note = (
        "Relative improvement of a model over its own counterpart: the same network without the regime, the same model "
        "uncalibrated, or its plain softmax; a positive change is for the better in both"
    )
    return _change_table(rows, "What does the way of training change?", "regime", note)


def _changes_of(changes: Frame) -> Row:
    """Mean, median and share of improvements of AUROC and ECE."""
    found: Row = {}
    for metric in ("auroc", "ece"):
        values = [value for value in changes.column(metric) if value is not None]
        found |= summed_up(values, f"{metric.upper()} ")
    return found


def _change_table(rows: Sequence[Row], title: str, corner: str, note: str) -> Table:
    forms = dict.fromkeys(("AUROC better", "ECE better"), percents(0))
    forms |= dict.fromkeys(("AUROC ρ with T", "ECE ρ with T"), RHO)
    return wide(rows, title, corner, form=CHANGE, forms=forms, note=note, changes=True)


@report("selective/fig3", needs=CHANGED)
def fig_3(frame: Frame) -> Made:
    """AUROC of models against their own counterparts, by training regime (Figure 3)."""
    return _changes(frame, "auroc", "fig3", "AUROC improvement", "What changes how well models rank their answers")


@report("selective/fig4", needs=CHANGED)
def fig_4(frame: Frame) -> Made:
    """ECE of models against their own counterparts, by training regime (Figure 4)."""
    return _changes(frame, "ece", "fig4", "ECE improvement", "What changes how well models are calibrated")


def _changes(frame: Frame, metric: str, key: str, axis: str, title: str) -> Made:
    rows = improvements(results_of(frame))
    points = [row | {"value": row[metric]} for row in rows if row[metric] is not None]
    if not points:
        return None
    words = (
        f"{figure_name(key)}. One point per model, relative to the same model without the method: above the line it "
        "got better. The bar is the median."
    )
    shown = [{"regime": p["kind"], "model": p["model"], "compared with": p["than"], axis: p["value"]} for p in points]
    return Figure(key, title, words, lambda: changes_figure(points, axis), shown)


# ---- temperature (appendix I, Figures 15 to 17)


@report("selective/temperature", needs=SCALED)
def temperature_table(frame: Frame) -> Table:
    """What temperature scaling does to AUROC and ECE, for temperatures below and above 1 (appendix I)."""
    models = results_of(frame)
    warmth = numbers(models, temperature)
    changes = Frame(improvements(models)).where(kind=TEMPERATURE)
    parts = {
        "all": changes,
        "T < 1": changes.where(model=lambda name: warmth[name] < 1),
        "T > 1": changes.where(model=lambda name: warmth[name] > 1),
    }
    rows = []
    for name, own in parts.items():
        line: Row = {"temperature": name, "models": len(own)} | _changes_of(own)
        for metric in ("auroc", "ece"):
            values = {row["model"]: row[metric] for row in own if row[metric] is not None}
            line[f"{metric.upper()} ρ with T"] = correlation(warmth, values)
        rows += [line] if own else []
    note = "Relative improvement of each model by its own temperature, on rows that did not fit it; positive is better"
    return _change_table(rows, "What does temperature scaling change?", "temperature", note)


@report("selective/fig15", needs=SCALED)
def fig_15(frame: Frame) -> Made:
    """AUROC and −log(ECE) of every model after temperature scaling (Figure 15)."""
    title = "Ranking and calibration after temperature scaling"
    return _ranking_and_calibration(frame, "fig15", title, NAMED, calibrated=True)


@report("selective/fig16", needs=SCALED)
def fig_16(frame: Frame) -> Made:
    """Temperature against the AUROC improvement that it brings (Figure 16)."""
    return _by_temperature(frame, "auroc", "fig16", "AUROC")


@report("selective/fig17", needs=SCALED)
def fig_17(frame: Frame) -> Made:
    """Temperature against the ECE improvement that it brings (Figure 17)."""
    return _by_temperature(frame, "ece", "fig17", "ECE")


def _by_temperature(frame: Frame, metric: str, key: str, name: str) -> Made:
    models = results_of(frame)
    changes = {row["model"]: row[metric] for row in improvements(models) if row["kind"] == TEMPERATURE}
    x, y = "temperature", f"{name} improvement, %"

    def place(model: ModelResults) -> Row | None:
        gain = changes.get(model.name)
        return None if gain is None else {x: temperature(model), y: 100 * gain}

    points = cloud(models, place, NAMED)
    words = (
        "Above the level line the model got better, right of the upright one the temperature is above 1. "
        f"{_sides(points, x, y)}"
    )
    title = f"Does {name} improve with the temperature?"
    return cloud_block(key, title, words, points, x, y, guides=[("x", 1.0), ("y", 0.0)])


def _sides(points: Sequence[Row], x: str, y: str) -> str:
    """How many got better on each side of temperature 1."""
    sides = {"below 1": [p for p in points if p[x] < 1], "above 1": [p for p in points if p[x] > 1]}
    sentences = [
        f"{sum(p[y] > 0 for p in own)} of {len(own)} models with a temperature {side} got better"
        for side, own in sides.items()
        if own
    ]
    return f"{'; '.join(sentences)}." if sentences else ""


# ---- clouds of models (Figures 1, 5, 8, 9, 10, 15, 18)


def _placed(calibrated: bool = False) -> Callable[[ModelResults], Row | None]:
    """Where a model stands among AUROC and −log(ECE)."""

    def place(model: ModelResults) -> Row | None:
        ranks, error = auroc(model, calibrated), ece(model, calibrated)
        return {AUROC: 100 * ranks, ECE: -math.log(error)} if ranks is not None and error else None

    return place


def _ranking_and_calibration(
    frame: Frame, key: str, title: str, most: int | None, calibrated: bool = False
) -> Figure | None:
    points = cloud(results_of(frame), _placed(calibrated), most)
    words = (
        "Right: it knows better when it is wrong. Up: it claims what it keeps. A larger mark, more parameters; a dot "
        "in the mark, a distilled model. Click on a name to see it alone."
    )
    return cloud_block(key, title, words, points, AUROC, ECE)


@report("selective/fig1", needs=ERRORS)
def fig_1(frame: Frame) -> Made:
    """AUROC and −log(ECE) of every model, the largest families named (Figure 1)."""
    return _ranking_and_calibration(frame, "fig1", "Ranking and calibration of every model", NAMED)


@report("selective/fig8", needs=ERRORS)
def fig_8(frame: Frame) -> Made:
    """AUROC and −log(ECE) of every model, every family named (Figure 8)."""
    return _ranking_and_calibration(frame, "fig8", "Ranking and calibration, with every family", None)


@report("selective/fig5")
def fig_5(frame: Frame) -> Made:
    """Accuracy of every model against the coverage that it gives at the strictest accuracy (Figure 5)."""
    words = "Up: it may answer more before its kept answers are wrong too often."
    title = "How many answers are left when almost none may be wrong"
    return _against(frame, "fig5", title, (ACCURACY, accuracy), _coverage(frame), words)


@report("selective/fig9", needs=SIZES)
def fig_9(frame: Frame) -> Made:
    """Parameters of every model against AUROC (Figure 9)."""
    words = "Of two models above each other, the upper one ranks better at the same size."
    return _against(frame, "fig9", "Ranking by size", (PARAMS, size), (AUROC, _hundred_auroc), words)


@report("selective/fig10", needs=SIZES)
def fig_10(frame: Frame) -> Made:
    """Parameters of every model against −log(ECE) (Figure 10)."""
    words = "Of two models above each other, the upper one is calibrated better."
    return _against(frame, "fig10", "Calibration by size", (PARAMS, size), (ECE, _log_ece), words)


@report("selective/fig18", needs=SIZES)
def fig_18(frame: Frame) -> Made:
    """Parameters of every model against the coverage that it gives at the strictest accuracy (Figure 18)."""
    words = "Of two models above each other, the upper one may answer more at the same size."
    title = "How many answers are left, by size"
    return _against(frame, "fig18", title, (PARAMS, size), _coverage(frame), words)


def _hundred_auroc(model: ModelResults) -> float | None:
    value = auroc(model)
    return None if value is None else 100 * value


def _log_ece(model: ModelResults) -> float | None:
    value = ece(model)
    return -math.log(value) if value else None


def _coverage(frame: Frame) -> tuple[str, Of]:
    strict = strictest(results_of(frame))
    return f"coverage at {100 * strict:g} % accuracy", sac(strict)


def _against(frame: Frame, key: str, title: str, x: tuple[str, Of], y: tuple[str, Of], words: str) -> Made:
    """A cloud with its Pareto front: y is better when higher, and so is x, unless it is the number of parameters."""

    def place(model: ModelResults) -> Row | None:
        a, b = x[1](model), y[1](model)
        return {x[0]: a, y[0]: b} if a is not None and b is not None else None

    points, of_size = cloud(results_of(frame), place, NAMED), x[0] == PARAMS
    best = front([(p[x[0]], p[y[0]]) for p in points], less=of_size)
    words = f"{words} The dashed line joins the models that no other one beats in both."
    return cloud_block(key, title, words, points, x[0], y[0], log=of_size, front=best)


# ---- Pareto fronts


def front(points: Iterable[tuple[float, float]], less: bool = True) -> list[tuple[float, float]]:
    """The points that no other one beats: in x, which is better lower (`less`) or higher, and in y, better higher.

    A point is beaten by one that is at least as good in both and better in one. In order of x, equal points once.
    """
    best: list[tuple[float, float]] = []
    for x, y in sorted(set(points), key=lambda point: (point[0] if less else -point[0], -point[1])):
        if not best or y > best[-1][1]:
            best.append((x, y))
    return sorted(best)


@report("selective/pareto")
def pareto(frame: Frame) -> Table:
    """The models that no other one beats in two things at once, and in which two."""
    models = results_of(frame)
    strict = strictest(models)
    goods: dict[str, Of] = {"AUROC": auroc, "ECE": minus_ece, f"SAC@{strict:g}": sac(strict)}
    fronts: dict[str, list[str]] = {}
    for cost, (of_cost, less) in {PARAMS: (size, True), ACCURACY: (accuracy, False)}.items():
        for good, of_good in goods.items():
            x, y = numbers(models, of_cost), numbers(models, of_good)
            points = {name: (x[name], y[name]) for name in x if name in y}
            best = set(front(points.values(), less))
            for name in [name for name, at in points.items() if at in best]:
                fronts.setdefault(name, []).append(f"{good} by {cost}")
    rows = [
        {
            "model": model.name,
            PARAMS: size(model),
            "accuracy ↑": accuracy(model),
            "AUROC ↑": auroc(model),
            "ECE ↓": ece(model),
            f"SAC@{strict:g} ↑": sac(strict)(model),
            "on the fronts of": ", ".join(fronts[model.name]),
        }
        for model in sorted(models, key=lambda model: (model.params or 0, model.name))
        if model.name in fronts
    ]
    note = "No other model has fewer parameters (or is right more often) and is at least as good in the thing named"
    title = "Models that no other one beats"
    return wide(rows, title, "model", form=decimals(4), forms={PARAMS: millions}, note=note)


# ---- curves (Figure 2)


@report("selective/fig2", needs=ERRORS)
def fig_2(frame: Frame) -> Made:
    """Risk–coverage curves of the best and the worst model by AUROC, and of one that accuracy misjudges (Figure 2)."""
    models = results_of(frame)
    chosen = curve_models(models)
    if not chosen:
        return None
    words = "Figure 2. Share of wrong answers among those that a model keeps, the surest first; lower is better."
    if len(chosen) > 2:
        words += (
            f" {chosen[2][0].name} is right less often than {chosen[1][0].name}, and still gives more answers at "
            f"{100 * middle(models):g} % accuracy."
        )
    curves = {f"{model.name} ({why})": risk_coverage(model) for model, why in chosen}
    return worked.curves_block("fig2", "Risk and coverage of the best and the worst", words, curves)


def risk_coverage(model: ModelResults) -> worked.Curve:
    """(coverages, risks) of the raw answers, ranked by the largest softmax."""
    points = sorted(
        (key[-1], value)
        for key, value in model.values.items()
        if key[:3] == ("selective_risk", USUAL, False) and key[-2] == COVERAGE
    )
    return [at for at, _ in points], [risk for _, risk in points]


def curve_models(models: Models) -> list[tuple[ModelResults, str]]:
    """The best and the worst by AUROC; of those less accurate than the worst, the one that covers most more than it."""
    known = [model for model in models if auroc(model) is not None and risk_coverage(model)[0]]
    ranked = sorted(known, key=lambda model: -(auroc(model) or 0))
    if len(ranked) < 2:
        return [(model, "the only one") for model in ranked]
    best, worst = ranked[0], ranked[-1]
    covers = sac(middle(models))
    under = [
        model
        for model in ranked[1:-1]
        if (accuracy(model) or 0) < (accuracy(worst) or 0) and (covers(model) or 0) > (covers(worst) or 0)
    ]
    third = [(max(under, key=lambda model: covers(model) or 0), "less accurate")] if under else []
    return [(best, "best AUROC"), (worst, "worst AUROC"), *third]


# ---- distillation (Figures 13 and 14)


@report(
    "selective/fig13",
    needs="a model and its distilled version, by timm's names, such as deit_tiny_patch16_224.fb_in1k and "
    "deit_tiny_distilled_patch16_224.fb_in1k",
)
def fig_13(frame: Frame) -> Made:
    """Distilled models and their undistilled counterparts (Figure 13)."""
    kinds = (regimes.DISTILLATION, regimes.PRUNING_TAUGHT)
    pairs = [pair for pair in _pairs(frame) if pair.regime in kinds and pair.counterpart]
    names = {pair.model: "its own teacher" for pair in pairs if pair.own_teacher}
    words = (
        "A line goes from a model to its distilled version, which has a dot. “Its own teacher”: pruned networks that "
        "learnt from the network they were made from."
    )
    links = [(pair.counterpart or "", pair.model) for pair in pairs]
    return _linked(frame, "fig13", "What distillation does to a model", words, links, names)


@report(
    "selective/fig14",
    needs="a teacher and a model that learnt from it, by timm's names, such as regnety_160.deit_in1k and "
    "deit_tiny_distilled_patch16_224.fb_in1k",
)
def fig_14(frame: Frame) -> Made:
    """Teachers and their students (Figure 14)."""
    links = [(pair.teacher, pair.model) for pair in _pairs(frame) if pair.teacher and not pair.own_teacher]
    words = "A line goes from a teacher to a model that learnt from its answers, which has a dot."
    names = dict.fromkeys((teacher for teacher, _ in links), "teacher")
    return _linked(frame, "fig14", "Teachers and their students", words, links, names)


def _pairs(frame: Frame) -> list[regimes.Pair]:
    return regimes.pairs(model.name for model in results_of(frame))


def _linked(
    frame: Frame, key: str, title: str, words: str, links: Sequence[tuple[str, str]], names: Mapping[str, str]
) -> Made:
    """Models and what came of them; `names` are those that are not called by their architecture."""
    firsts, wanted = {first for first, _ in links}, {name for link in links for name in link}
    points = cloud([model for model in results_of(frame) if model.name in wanted], _placed(), None)
    for point in points:
        point["name"] = names.get(point["model"]) or families.label(families.architecture(point["model"]))
        point["dot"] = point["model"] not in firsts
    at = {point["model"]: point for point in points}
    drawn = [(at[first], at[second]) for first, second in links if first in at and second in at]
    block = cloud_block(key, title, words, points if drawn else [], AUROC, ECE, links=drawn)
    if block is None:
        return None
    origins = {second["model"]: first["model"] for first, second in drawn}
    return replace(block, points=[{**row, "comes from": origins.get(row["model"])} for row in block.points])


# ---- the whole


def first_look(study: Study) -> list[Table]:
    """The tables for the terminal: what fits it and can be read without the page."""
    keeps = f"keeps@{100 * strictest(results_of(study.frame)):g} ↑"
    tables = [
        scores(study.frame, TOP).only("right ↑", "notices ↑", "ECE ↓", keeps, "params"),
        regime_table(study.frame).only("models", "AUROC median", "AUROC better", "ECE median", "ECE better"),
    ]
    return [table for table in tables if table]


def lead(study: Study) -> list[str]:
    """What was done and what came out, in plain sentences."""
    models = results_of(study.frame)
    n = max((model.counts.get("accuracy", 0) for model in models), default=0)
    of = "" if unnamed(study) else f" of {study.data}"
    sentences = [f"{plural(len(models), 'pretrained model')} answered {n:,} images{of}."]
    strict = strictest(models)
    right, notices, keeps = (numbers(models, of) for of in (accuracy, auroc, sac(strict)))
    first = _winner(right)
    if first and first[1] == 0:
        sentences.append("No answer is right.")
    elif first:
        sentences.append(f"Right most often: {first[0]}, in {percent(first[1])} of answers.")
    if best := _winner(notices):
        who = "the same model" if first and best[0] == first[0] and len(models) > 1 else best[0]
        pairs = f"less sure of the wrong one in {of_hundred(best[1])} pairs of a wrong and a right answer"
        sentences.append(f"Knows best when it is wrong: {who}, {pairs}.")
    most = _winner(keeps)
    if most and most[1] > 0:
        sentences.append(
            f"Where {100 * strict:g} % of the answers given must be right, {most[0]} gives most: {percent(most[1])}."
        )
    elif most:
        sentences.append(f"No model gives any answers of which {100 * strict:g} % are right.")
    return sentences


def _winner(values: Mapping[str, float]) -> tuple[str, float] | None:
    return max(values.items(), key=lambda entry: (entry[1], entry[0]), default=None)


def story(study: Study) -> Story:
    """The page of a study of pretrained models."""
    frame = study.frame
    models = results_of(frame)
    look, everyone = scores(frame, TOP), Fold("Every model", [scores(frame)])
    regime, rescaled = regime_table(frame), temperature_table(frame)
    examples: list[Made] = [worked.investment(), worked.e_aurc(), worked.fig_11(), worked.fig_12()]
    sections: list[SectionParts] = [
        ("Who knows?", look.title, [look, fig_1(frame)]),
        ("Coverage", "How much may each model answer?", [fig_5(frame), fig_18(frame), fig_2(frame)]),
        ("Size", "Who is best for its size?", [fig_9(frame), fig_10(frame), pareto(frame)]),
        ("Training", regime.title, [regime, fig_3(frame), fig_4(frame), fig_13(frame), fig_14(frame)]),
        ("Temperature", rescaled.title, [rescaled, fig_15(frame), fig_16(frame), fig_17(frame)]),
        (
            "Families",
            "What is uncertainty related to?",
            [table_1(frame), agreement(frame), fig_8(frame)],
            _overall(models),
        ),
        ("MC-dropout", "Does MC-dropout help?", [table_2(frame)]),
        ("All models", "All models", [everyone if len(models) > TOP else None]),
        ("Examples", "Two examples that are worked out", examples),
    ]
    title = titled(study, "which pretrained models know when they are wrong?")
    alone = f"Each table and figure alone: `nescio report rows.parquet --only NAMES`, of {listed(names_of(NAME))}."
    return story_of(study, title, lead(study), sections, command=registry[NAME].command, footer=[alone])


def _overall(models: Models) -> str:
    rho = correlation(numbers(models, auroc), numbers(models, ece))
    if rho is None:
        return ""
    return (
        f"Over all {len(models)} models, AUROC and ECE have a rank correlation of {number(rho, 2)} (−0.5 over the 484 "
        "of the paper); within a family it may be of the other sign."
    )
