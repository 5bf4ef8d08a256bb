"""What the rows of many pretrained models say, as models, and the tables of Galil et al. 2023 made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from nescio.errors import Undefined
from nescio.networks import families, regimes
from nescio.predictions.entries import OWN
from nescio.report import Cell, Table
from nescio.report.cells import JOINT, legend, number
from nescio.report.clouds import millions
from nescio.rows import Row

USUAL, MC_DROPOUT = "largest", "mc-dropout"
LEAST = 3  # models of a family whose correlations are shown
TOP = 20  # models on the terminal
TEMPERATURE, DROPOUT = "temperature scaling", "MC-dropout"
ACCURACY, PARAMS = "accuracy", "parameters"
NAMELESS = ("", OWN)  # datasets of files that do not say which


# ---- rows to models


@dataclass(frozen=True)
class Model:
    """Everything that the rows say of one model."""

    name: str
    params: int | None
    values: dict[tuple[str, str | None, bool], float] = field(default_factory=dict)  # (metric, κ, calibrated)
    curves: dict[tuple[str, bool], list[tuple[float, float]]] = field(default_factory=dict)  # (coverage, risk)
    counts: dict[str, int] = field(default_factory=dict)  # rows behind a metric

    @property
    def family(self) -> str:
        return families.family(self.name)

    @property
    def distilled(self) -> bool:
        taught = (regimes.DISTILLATION, regimes.PRUNING_TAUGHT)
        return families.distilled(self.name) or regimes.regime(self.name) in taught

    def get(self, metric: str, calibrated: bool = False, measure: str | None = None) -> float | None:
        return self.values.get((metric, measure, calibrated))

    def auroc(self, calibrated: bool = False, measure: str = USUAL) -> float | None:
        return self.get("auroc", calibrated, measure)

    def ece(self, calibrated: bool = False) -> float | None:
        return self.get("ece", calibrated)

    def sac(self, accuracy: float) -> float | None:
        return self.get(f"sac@{accuracy:g}", measure=USUAL)

    @property
    def accuracy(self) -> float | None:
        return self.get("accuracy")

    @property
    def temperature(self) -> float | None:
        return self.get("temperature", calibrated=True)

    @property
    def input_size(self) -> float | None:
        return self.get("input_size")


class Models(list[Model]):
    """Rows that are models already."""


Source = Iterable[Row] | Models


def models_of(rows: Source) -> Models:
    """One Model for every backbone of the rows, in their order."""
    if isinstance(rows, Models):
        return rows
    found: dict[str, Model] = {}
    for row in rows:
        model = found.setdefault(row["backbone"], Model(row["backbone"], row["params"]))
        if row["group"] is None:
            model.values[row["metric"], row["measure"], bool(row["calibrated"])] = row["value"]
            model.counts[row["metric"]] = row["n"]
        elif row["metric"] == "selective_risk":
            model.curves.setdefault((row["measure"], bool(row["calibrated"])), []).append(
                (float(row["group"]), row["value"])
            )
    return Models(found.values())


def by_family(models: Sequence[Model]) -> dict[str, list[Model]]:
    """The models of each family, the largest families first."""
    held: dict[str, list[Model]] = {}
    for model in models:
        held.setdefault(model.family, []).append(model)
    return dict(sorted(held.items(), key=lambda each: (-len(each[1]), each[0])))


def strictest(models: Sequence[Model]) -> float:
    """The highest accuracy under which coverage was asked for: 0.99 unless the plan says otherwise."""
    asked = {m.partition("@")[2] for model in models for m, _, _ in model.values if m.startswith("sac@")}
    return max(map(float, asked), default=0.99)


Of = Callable[[Model], float | None]


def correlation(models: Sequence[Model], a: Of, b: Of) -> float | None:
    """Spearman's ρ over the models that have both; None for fewer than three, or where one of them never varies."""
    from nescio.metrics import spearman

    both = [(x, y) for model in models if (x := a(model)) is not None and (y := b(model)) is not None]
    if len(both) < LEAST:
        return None
    try:
        return spearman(*zip(*both, strict=True))
    except Undefined:
        return None


def _minus_ece(model: Model) -> float | None:
    ece = model.ece()
    return None if ece is None else -ece


# ---- Table 1, and how AUROC and ECE agree


FACTORS: dict[str, Of] = {
    "Accuracy": lambda model: model.accuracy,
    "#Parameters": lambda model: model.params,
    "Input Size": lambda model: model.input_size,
}
QUALITIES: dict[str, Of] = {"AUROC": Model.auroc, "-ECE": _minus_ece}
ALL = "all models"


def table_1(rows: Source) -> Table:
    """Spearman correlation of AUROC and −ECE with accuracy, parameters and input size, by family (Table 1)."""
    models = models_of(rows)
    heads = [f"{quality} & {factor}" for factor in FACTORS for quality in QUALITIES]

    def line(of: Sequence[Model]) -> tuple[Cell | None, ...]:
        found = [correlation(of, q, f) for f in FACTORS.values() for q in QUALITIES.values()]
        return (*(_rho(rho) for rho in found), Cell(str(len(of)), len(of)))

    shown, few = _enough(models)
    lines = [(families.label(name), line(own)) for name, own in shown.items()]
    lines = [(ALL, line(models)), *lines] if len(models) >= LEAST else []
    note = (
        "Spearman's ρ over the models of a family; positive is a good use of the resource, a dash is a resource that "
        f"does not vary or is not known. Families of at least {LEAST} models{_left(few)}"
    )
    return Table("What uncertainty is related to (Table 1)", "architecture", (*heads, "# models"), tuple(lines), note)


def agreement(rows: Source) -> Table:
    """Spearman correlation of AUROC and ECE, over all models and by family (§3)."""
    models = models_of(rows)
    shown, few = _enough(models)
    lines = []
    for name, own in ((ALL, list(models)), *((families.label(name), own) for name, own in shown.items())):
        rho = correlation(own, Model.auroc, Model.ece)
        if rho is not None:
            lines.append((name, (_rho(rho), Cell(str(len(own)), len(own)))))
    note = (
        "Spearman's ρ of AUROC and ECE: near −1, the model that ranks best is also calibrated best; near 1, the worst. "
        f"Families of at least {LEAST} models{_left(few)}"
    )
    return Table("Do ranking and calibration agree?", "architecture", ("AUROC & ECE", "# models"), tuple(lines), note)


def _enough(models: Sequence[Model]) -> tuple[dict[str, list[Model]], list[str]]:
    held = by_family(models)
    few = [families.label(name) for name, own in held.items() if len(own) < LEAST]
    return {name: own for name, own in held.items() if len(own) >= LEAST}, few


def _left(few: Sequence[str]) -> str:
    if not few:
        return ""
    shown = ", ".join(sorted(few)[:TOP]) + (f" and {len(few) - TOP} more" if len(few) > TOP else "")
    return f"; counted under {ALL!r} only: {shown}"


def _rho(value: float | None) -> Cell | None:
    return None if value is None else Cell(number(value, 2), value)


# ---- Table 2


def table_2(rows: Source) -> Table:
    """MC-dropout against the plain softmax (Table 2, appendix K): accuracy, AUROC and coverage, in percent."""
    models = [m for m in models_of(rows) if m.auroc(measure=MC_DROPOUT) is not None]
    strict = strictest(models)
    lines = []
    for model in models:
        asked = ("accuracy", "auroc", f"sac@{strict:g}")
        plain = [model.accuracy, model.auroc(), model.sac(strict)]
        under = [model.get(metric, measure=MC_DROPOUT) for metric in asked]
        for method, own, others in (("vanilla", plain, under), (DROPOUT, under, plain)):
            cells = [_hundred(value, other) for value, other in zip(own, others, strict=True)]
            lines.append((JOINT.join((model.name, method)), tuple(cells)))
    heads = ("accuracy ↑", "AUROC ↑", f"SAC@{strict:g} ↑")
    note = (
        "In percent. MC-dropout: answers of the mean softmax of the passes under dropout, ranked by its entropy, which "
        "is no probability and has no ECE"
    )
    title, corner = "MC-dropout against the plain softmax (Table 2)", JOINT.join(("architecture", "method"))
    return Table(title, corner, heads, tuple(lines), note, legend(["auroc", "sac"]), labels=2)


def _hundred(value: float | None, other: float | None) -> Cell | None:
    """In percent; bold when it is above the other one."""
    return None if value is None else Cell(number(100 * value, 2), 100 * value, other is not None and value > other)


# ---- what training regimes do (Figures 3 and 4)


def improvements(rows: Source) -> list[Row]:
    """Every model against its own counterpart: `kind`, `model`, `than`, and relative improvements `auroc` and `ece`.

    AUROC: (after − before)/before. ECE: (before − after)/before, so that better is positive in both. Kinds are the
    regimes, temperature scaling and MC-dropout (AUROC only) against the same model's plain softmax.
    """
    models = models_of(rows)
    named = {model.name: model for model in models}
    found: list[Row] = []

    def add(kind: str, model: str, than: str, auroc: _Change, ece: _Change = (None, None)) -> None:
        found.append(
            {"kind": kind, "model": model, "than": than, "auroc": _gain(*auroc), "ece": _gain(*ece, lower=True)}
        )

    for pair in regimes.pairs(named):
        if pair.counterpart:
            a, b = named[pair.model], named[pair.counterpart]
            add(pair.regime, a.name, b.name, (b.auroc(), a.auroc()), (b.ece(), a.ece()))
    for model in models:
        if model.temperature is not None:
            before, after = (model.auroc(), model.auroc(True)), (model.ece(), model.ece(True))
            add(TEMPERATURE, model.name, "itself, uncalibrated", before, after)
        if model.auroc(measure=MC_DROPOUT) is not None:
            add(DROPOUT, model.name, "its plain softmax", (model.auroc(), model.auroc(measure=MC_DROPOUT)))
    order = (*regimes.REGIMES, TEMPERATURE, DROPOUT)
    return sorted(found, key=lambda row: order.index(row["kind"]))


_Change = tuple[float | None, float | None]


def _gain(before: float | None, after: float | None, lower: bool = False) -> float | None:
    if before is None or after is None or before == 0:
        return None
    return (before - after if lower else after - before) / before


def regime_table(rows: Source) -> Table:
    """The improvements of Figures 3 and 4 by regime: how many models, mean, median, share that got better."""
    held: dict[str, list[Row]] = {}
    for row in improvements(rows):
        held.setdefault(row["kind"], []).append(row)
    lines = []
    for kind, own in held.items():
        cells: list[Cell | None] = [Cell(str(len(own)), len(own))]
        for metric in ("auroc", "ece"):
            values = [row[metric] for row in own if row[metric] is not None]
            cells += _spread(values) if values else [None, None, None]
        lines.append((kind, tuple(cells)))
    heads = ["models"]
    heads += [f"{name} {word}" for name in ("AUROC", "ECE") for word in ("mean", "median", "better")]
    note = (
        "Relative improvement of a model over its own counterpart: the same network without the regime, the same model "
        "uncalibrated, or its plain softmax; a positive change is for the better in both"
    )
    return Table("What does the way of training change?", "regime", tuple(heads), tuple(lines), note)


def _spread(values: Sequence[float]) -> list[Cell | None]:
    better = fmean(value > 0 for value in values)
    return [*(_percent(of(values)) for of in (fmean, median)), Cell(f"{100 * better:.0f} %", better)]


def _percent(value: float) -> Cell:
    text = f"{100 * value:+.2f} %"
    return Cell(text, value, value > 0) if text.strip("+-0. %") else Cell("0.00 %", value)


# ---- temperature


def temperature_table(rows: Source) -> Table:
    """What temperature scaling does to AUROC and ECE, for temperatures below and above 1 (appendix I)."""
    models = models_of(rows)
    scaled = [model for model in models if model.temperature is not None]
    changes = {row["model"]: row for row in improvements(models) if row["kind"] == TEMPERATURE}

    def line(own: Sequence[Model]) -> tuple[Cell | None, ...]:
        cells: list[Cell | None] = [Cell(str(len(own)), len(own))]
        for metric in ("auroc", "ece"):
            values = [v for model in own if (v := changes[model.name][metric]) is not None]
            cells += _spread(values) if values else [None, None, None]
            cells.append(_rho(correlation(own, lambda m: m.temperature, lambda m, k=metric: changes[m.name][k])))  # type: ignore[misc]
        return tuple(cells)

    parts = {
        "all": scaled,
        "T < 1": [m for m in scaled if m.temperature is not None and m.temperature < 1],
        "T > 1": [m for m in scaled if m.temperature is not None and m.temperature > 1],
    }
    heads = ["models"]
    heads += [f"{name} {word}" for name in ("AUROC", "ECE") for word in ("mean", "median", "better", "ρ with T")]
    note = "Relative improvement of each model by its own temperature, on rows that did not fit it; positive is better"
    lines = tuple((name, line(own)) for name, own in parts.items() if own)
    return Table("What does temperature scaling change?", "temperature", tuple(heads), lines, note)


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


def size(model: Model) -> float | None:
    return model.params or None


def pareto(rows: Source) -> Table:
    """The models that no other one beats in two things at once, and in which two."""
    models = models_of(rows)
    strict = strictest(models)
    goods: dict[str, tuple[str, Of]] = {
        "AUROC ↑": ("AUROC", Model.auroc),
        "ECE ↓": ("ECE", _minus_ece),
        f"SAC@{strict:g} ↑": (f"SAC@{strict:g}", lambda model: model.sac(strict)),
    }
    costs: dict[str, tuple[Of, bool]] = {PARAMS: (size, True), ACCURACY: (lambda model: model.accuracy, False)}
    on: dict[str, list[str]] = {}
    for cost, (of_cost, less) in costs.items():
        for good, of_good in goods.values():
            held = {m.name: (a, b) for m in models if (a := of_cost(m)) is not None and (b := of_good(m)) is not None}
            best = set(front(held.values(), less))
            for name, point in held.items():
                if point in best:
                    on.setdefault(name, []).append(f"{good} by {cost}")
    named = {model.name: model for model in models}
    lines = []
    for name in sorted(on, key=lambda name: (named[name].params or 0, name)):
        model = named[name]
        values = (model.params, model.accuracy, model.auroc(), model.ece(), model.sac(strict))
        cells = [Cell(millions(values[0]), values[0]) if values[0] else None]
        cells += [None if v is None else Cell(number(v, 4), v) for v in values[1:]]
        lines.append((name, (*cells, Cell(", ".join(on[name]), len(on[name])))))
    heads = (PARAMS, "accuracy ↑", *goods, "on the fronts of")
    note = "No other model has fewer parameters (or is right more often) and is at least as good in the thing named"
    return Table("Models that no other one beats", "model", heads, tuple(lines), note)


# ---- every model


def scores(rows: Source, most: int | None = None) -> Table:
    """One line a model, the one that knows best when it is wrong first; `most`: only so many."""
    models = sorted(models_of(rows), key=lambda m: (-(m.auroc() or 0), m.name))
    strict, common = strictest(models), middle(models)
    heads: dict[str, tuple[Of, bool | None]] = {
        "right ↑": (lambda m: m.accuracy, True),
        "notices ↑": (lambda m: m.auroc(), True),
        "ECE ↓": (lambda m: m.ece(), False),
        "ECE, T ↓": (lambda m: m.ece(True), False),
        f"keeps@{100 * common:g} ↑": (lambda m: m.sac(common), True),
        f"keeps@{100 * strict:g} ↑": (lambda m: m.sac(strict), True),
        "params": (lambda m: m.params, None),
    }
    heads = {head: of for head, of in heads.items() if any(of[0](m) is not None for m in models)}
    text: dict[str, Callable[[float], str]] = dict.fromkeys(heads, _share) | {"params": millions}
    best = {head: _best([v for m in models if (v := of(m)) is not None], up) for head, (of, up) in heads.items()}

    def cell(head: str, model: Model) -> Cell | None:
        value = heads[head][0](model)
        return None if value is None else Cell(text[head](value), value, value == best[head])

    shown = models[: most or len(models)]
    lines = tuple((model.name, tuple(cell(head, model) for head in heads)) for model in shown)
    return Table("Which models know when they are wrong?", "model", tuple(heads), lines, _meaning(models, most))


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _best(values: Sequence[float], up: bool | None) -> float | None:
    if up is None or len(set(values)) < 2:
        return None
    return max(values) if up else min(values)


def _meaning(models: Sequence[Model], most: int | None) -> str:
    n = max((m.counts.get("accuracy", 0) for m in models), default=0)
    fit = max((m.counts.get("temperature", 0) for m in models), default=0)
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


def middle(models: Sequence[Model]) -> float:
    """The accuracy of the paper's example: 95 %, or the strictest that was asked for."""
    return 0.95 if any(model.sac(0.95) is not None for model in models) else strictest(models)


# ---- two examples with exact numbers (appendices A and C)


EXAMPLE = 1000  # rows of the examples: every share in them is a whole number of rows


def investment(rows: Source = ()) -> Table:
    """The investment example (§1, appendix A): what each metric says of a sure model and of one that knows its errors.

    Model A is right in 95 % and always 0.95 sure; model B is right in 40 %, 0.6 sure when it is and 0.4 when it is not.
    """
    import numpy as np

    from nescio import metrics

    lines = []
    for name, accuracy, sure, unsure in (("model A", 0.95, 0.95, 0.95), ("model B", 0.40, 0.6, 0.4)):
        right = np.arange(EXAMPLE) < round(EXAMPLE * accuracy)
        top = np.where(right, sure, unsure)
        probs = np.stack([top, (1 - top) / 2, (1 - top) / 2], axis=1)
        labels = np.where(right, 0, 1)
        answers, ranked = metrics.answers(probs, labels), metrics.Ranking(1 - top, ~right)
        values = (
            metrics.accuracy(answers),
            metrics.auroc(ranked),
            metrics.sac(ranked, accuracy=0.96),
            metrics.aurc(ranked),
            metrics.e_aurc(ranked),
            metrics.nll(answers),
            metrics.brier(answers),
            metrics.ece(answers),
        )
        lines.append((name, tuple(Cell(number(value, 4), value) for value in values)))
    heads = ("accuracy ↑", "AUROC ↑", "SAC@0.96 ↑", "AURC ↓", "E-AURC ↓", "NLL ↓", "Brier ↓", "ECE ↓")
    note = (
        f"{EXAMPLE:,} rows, three classes. Model B knows exactly when it is wrong: AUROC, SAC and E-AURC see it, the "
        "others prefer model A. The paper prints 0.12 for model B's AURC, which no definition gives"
    )
    return Table("Two investment advisers (appendix A)", "model", heads, tuple(lines), note, legend(["auroc", "sac"]))


CONSTANT = (("model A", 0.9), ("model B", 0.5))  # error rates of two models that are always equally sure (appendix C)


def constant(risk: float, best: bool) -> Any:
    """The ranking of a model that is equally sure of every answer, or of its best possible version."""
    import numpy as np

    from nescio import metrics

    wrong = np.arange(EXAMPLE) >= round(EXAMPLE * (1 - risk))
    return metrics.Ranking(wrong if best else np.zeros(EXAMPLE), wrong)


def e_aurc_example(rows: Source = ()) -> Table:
    """The E-AURC example (appendix C): two models that cannot rank, and what E-AURC makes of their accuracies."""
    from nescio import metrics

    lines = []
    for name, risk in CONSTANT:
        flat, best = constant(risk, False), constant(risk, True)
        limit = risk + (1 - risk) * math.log(1 - risk)
        values = (1 - risk, metrics.auroc(flat), metrics.aurc(flat), metrics.aurc(best), limit, metrics.e_aurc(flat))
        cells = [Cell(number(value, 4), value) for value in (*values, risk - risk**2 / 2)]
        lines.append((name, tuple(cells)))
    heads = ("accuracy", "AUROC", "AURC", "best AURC", "its limit", "E-AURC", "E-AURC in the paper")
    note = (
        f"{EXAMPLE:,} rows. Neither model ranks its answers at all, and E-AURC still tells them apart: it depends on "
        "the accuracy. The paper takes r²/2 for the best AURC, which is not the area under that curve; with exact "
        "numbers E-AURC prefers model A, not model B"
    )
    return Table("E-AURC depends on the accuracy (appendix C)", "model", heads, tuple(lines), note)
