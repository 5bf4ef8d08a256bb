"""What the reports on many pretrained models share: results by model, families, rank correlations, gains, clouds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import fmean, median
from typing import Any, Literal

from nescio.errors import Undefined
from nescio.networks import families, regimes
from nescio.predictions.entries import OWN
from nescio.report.blocks import Figure
from nescio.report.charts import OTHERS, cloud_figure, cloud_points
from nescio.report.frame import Frame
from nescio.report.studies import Study
from nescio.report.tables import COUNT, Column, Form, Head, Table, Writer, percents, table
from nescio.report.words import legend
from nescio.rows import Row

USUAL, ENTROPY = "largest", "entropy"
LEAST = 3  # models of a family, or of a pair of rankings, whose correlation is shown
TOP = 20  # models on the terminal
ALL = "all models"
PARAMS = "parameters"
COUNTS = ("models", "# models", "of models")  # heads of numbers of things
CHANGE = percents(2, sign=True)
RHO = Form(".2f")
TIPS = {"model": "model", "family": "family"}


# ---- rows to models


@dataclass(frozen=True)
class ModelResults:
    """Everything that the rows hold of one model."""

    name: str
    params: int | None
    values: dict[tuple[Any, ...], float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # rows behind a metric

    def get(
        self,
        metric: str,
        measure: str | None = None,
        calibrated: bool = False,
        *,
        target: str | None = None,
        condition: str | None = None,
        level: float | None = None,
    ) -> float | None:
        return self.values.get((metric, measure, calibrated, target, condition, level))

    @property
    def family(self) -> str:
        return families.family(self.name)

    @property
    def distilled(self) -> bool:
        of_teachers = (regimes.DISTILLATION, regimes.PRUNING_TAUGHT)
        return families.distilled(self.name) or regimes.regime(self.name) in of_teachers


@lru_cache(maxsize=4)
def results_of(frame: Frame) -> tuple[ModelResults, ...]:
    """One entry for every backbone of the rows, in their order."""
    models: dict[str, ModelResults] = {}
    for row in frame:
        if row["backbone"] is None:
            continue
        model = models.setdefault(row["backbone"], ModelResults(row["backbone"], row["params"]))
        where = (row.get("target"), row.get("condition"), row.get("level"))
        model.values[(row["metric"], row["measure"], bool(row["calibrated"]), *where)] = row["value"]
        model.counts[row["metric"]] = row["n"]
    return tuple(models.values())


Of = Callable[[ModelResults], float | None]


def numbers(models: Iterable[ModelResults], of: Of) -> dict[str, float]:
    """Model → a number, for those that have it."""
    return {model.name: value for model in models if (value := of(model)) is not None}


def by_family(models: Iterable[ModelResults]) -> dict[str, list[ModelResults]]:
    """The models of each family, the largest families first."""
    members: dict[str, list[ModelResults]] = {}
    for model in models:
        members.setdefault(model.family, []).append(model)
    return dict(sorted(members.items(), key=lambda entry: (-len(entry[1]), entry[0])))


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


def gains(after: Mapping[str, float], before: Mapping[str, float], *, lower: bool = False) -> dict[str, float]:
    """Relative improvement (after − before)/before of every model that has both; minus that of what is better lower."""
    sign = -1 if lower else 1
    return {name: sign * (after[name] - value) / value for name, value in before.items() if name in after and value}


def best_of(values: Mapping[str, float]) -> str | None:
    """The model with the highest value, the first by name of several."""
    return max(sorted(values), key=lambda name: values[name], default=None)


# ---- tables


def wide(
    rows: Sequence[Row],
    title: str,
    *corner: str,
    form: Writer | None = None,
    forms: Mapping[str, Writer] | None = None,
    note: str = "",
    changes: bool = False,
    within: Sequence[str] = (),
    explain: Sequence[str] = (),
) -> Table:
    """A table of dictionaries, one per line, whose keys are the heads, but for those of the `corner`.

    form     of numbers; `forms` are those of some heads, and counts have their own
    changes  bold marks a change for the better; else an arrow in a head tells which value of a column is bold
    within   columns: only lines of equal values there are compared with each other
    explain  metrics whose sentences stand below
    """
    names = dict.fromkeys(name for row in rows for name in row if name not in corner)
    mark: Literal["change", "best"] = "change" if changes else "best"
    own = dict.fromkeys(COUNTS, COUNT) | dict(forms or {})
    heads = [Head(name, name, better=_better(name, changes, own), form=own.get(name, form)) for name in names]
    lines = [Column(name, keep=True) for name in corner]
    made = table(rows, title, lines=lines, heads=heads, note=note, mark=mark, within=within)
    return replace(made, legend=legend(explain))


def _better(head: str, changes: bool, own: Mapping[str, Writer]) -> str:
    if changes:
        return "neither" if head in own else "higher"
    return {"↑": "higher", "↓": "lower"}.get(head[-1:], "neither")


def summed_up(values: Iterable[float], prefix: str = "") -> Row:
    """Mean, median and the share that got better, of relative changes."""
    values = list(values)
    if not values:
        return {}
    better = fmean(value > 0 for value in values)
    return {f"{prefix}mean": fmean(values), f"{prefix}median": median(values), f"{prefix}better": better}


# ---- clouds of models


def cloud(models: Iterable[ModelResults], place: Callable[[ModelResults], Row | None], most: int | None) -> list[Row]:
    """Points of a cloud. The `most` largest families have names (None: all with LEAST models), the others are grey."""
    placed = [(model, at) for model in models if (at := place(model)) is not None]
    members = by_family(model for model, _ in placed)
    several = [family for family, own in members.items() if len(own) >= LEAST]
    named = set((several or list(members))[: most or len(members)])
    return [
        point(model, families.label(model.family) if model.family in named else OTHERS) | at for model, at in placed
    ]


def point(model: ModelResults, name: str) -> Row:
    """What a cloud shows of a model beside its place; `name` is that of its colour."""
    family = families.label(model.family)
    return {"name": name, "family": family, "model": model.name, "size": model.params, "dot": model.distilled}


def cloud_block(key: str, title: str, words: str, points: list[Row], x: str, y: str, **options: Any) -> Figure | None:
    """A figure of points, if there are any."""
    if not points:
        return None
    words = f"{figure_name(key)}. {words}"
    return Figure(
        key, title, words, lambda: cloud_figure(points, x, y, tips=TIPS, **options), cloud_points(points, x, y)
    )


def figure_name(key: str) -> str:
    """fig5 → Figure 5."""
    return f"Figure {key.removeprefix('fig')}"


def titled(study: Study, question: str) -> str:
    """A question about the study's data, if that has a name: files of predictions have none."""
    return question[:1].upper() + question[1:] if unnamed(study) else f"{study.data}: {question}"


def unnamed(study: Study) -> bool:
    return study.data in ("", OWN)
