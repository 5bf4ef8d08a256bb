"""Shared parts of the benchmarks on pretrained models: rows, numbers by model, families, clouds, tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from nescio.analysis.model_choice import pareto_front
from nescio.networks import families, regimes
from nescio.predictions.model_predictions import UNNAMED, ModelPredictions
from nescio.report.blocks import Block, Details, Figure, SectionSpec, Story, collapse_tables, figures_of
from nescio.report.charts.points import NAMED_POINTS, OTHERS, scatter_figure
from nescio.report.format import format_millions, interval_columns
from nescio.report.frame import Frame
from nescio.report.named_reports import find_report
from nescio.report.studies import Study, story_of
from nescio.report.tables import NumberFormat, Table, percents, table_from_records
from nescio.rows import FACTS, NetworkFacts, Row, RowBuilder

PRETRAINED = "pretrained"  # method of networks that were not trained here
USUAL, ENTROPY = "msp", "entropy"  # default measure; entropy
LEAST = 3  # minimum number of models in a family with a correlation
LEAST_SHARE = 0.02  # minimum span of an axis of shares
TOP = 20  # number of models in the first table
ALL = "all models"
PARAMS = "parameters"
PLACE = ("target", "severity", "coverage", "criterion")  # columns that distinguish rows of one metric and measure
CHANGE = percents(2, sign=True)
RHO = NumberFormat(".2f")
UNDER_DROPOUT = "predictions under dropout (the variant mc-dropout; `nescio zoo --dropout 0.2` for models of timm)"
COUNTERPART = (
    "a model and the same network without its training regime, by timm's names, such as "
    "deit_tiny_distilled_patch16_224.fb_in1k and deit_tiny_patch16_224.fb_in1k"
)
Values = Mapping[str, float]  # model → a number; models without it are absent
Intervals = Mapping[str, tuple[float, float]]  # model → limits of its interval


# ---- rows of one model


@dataclass(kw_only=True)
class ModelRows(RowBuilder):
    """Gathers the results of one pretrained model."""

    model: ModelPredictions

    def __post_init__(self) -> None:
        params = self.model.fact_as_number("params")
        about = {"dataset": self.model.data, "backbone": self.model.model, "members": 1, "split": "test"}
        about["params"] = None if params is None else int(params)
        self.facts = {"method": PRETRAINED} | about | self.facts
        super().__post_init__()

    def describe_model(self, *names: str) -> None:
        """Note facts about the model."""
        facts: NetworkFacts = {name: self.model.fact_as_number(name) for name in names}  # type: ignore[assignment]
        self.describe(**facts)


def config_of(model: ModelPredictions, facts: Iterable[str], plan: object, settings: Iterable[str]) -> Row:
    """Configuration that determines the numbers of one model: its facts, and fields of the plan."""
    numbers = {name: model.fact_as_number(name) for name in ("params", *facts)}
    config = {"model": model.model, "data": model.data, "facts": numbers}
    return config | {name: getattr(plan, name) for name in settings}


# ---- rows to numbers


@dataclass(frozen=True)
class Models:
    """The models of the rows, in their order, and their numbers."""

    sizes: dict[str, int | None]  # model → parameters
    columns: dict[tuple[Any, ...], dict[str, float]]
    intervals: dict[tuple[Any, ...], dict[str, tuple[float, float]]] = field(default_factory=dict)

    def get(self, metric: str, measure: str | None = None, calibrated: bool = False, **place: object) -> Values:
        """Model → a number; `place` names the target, severity, coverage and criterion."""
        return self.columns.get((metric, measure, calibrated, *map(place.get, PLACE)), {})

    def interval(self, metric: str, measure: str | None = None, calibrated: bool = False) -> Intervals:
        """Model → the 95 % interval of the same number, of those that have one."""
        return self.intervals.get((metric, measure, calibrated, *[None] * len(PLACE)), {})

    @property
    def params(self) -> Values:
        return {name: size for name, size in self.sizes.items() if size}


@lru_cache(maxsize=4)
def models_of(frame: Frame) -> Models:
    """Every backbone of the rows."""
    models = Models({}, {})
    for row in frame.where(backbone=lambda name: name is not None):
        if row["backbone"] not in models.sizes:
            models.sizes[row["backbone"]] = row.get("params")
            for name in FACTS:
                if row.get(name) is not None:
                    column = (name, None, False, *[None] * len(PLACE))
                    models.columns.setdefault(column, {})[row["backbone"]] = row[name]
        column = (row["metric"], row["measure"], bool(row["calibrated"]), *map(row.get, PLACE))
        models.columns.setdefault(column, {})[row["backbone"]] = row["value"]
        if row.get("low") is not None and row.get("high") is not None:
            models.intervals.setdefault(column, {})[row["backbone"]] = row["low"], row["high"]
    return models


def gains(values: Values, references: Values, *, lower: bool = False) -> dict[str, float]:
    """Relative improvement (value − reference)/reference of models that have both; negated if lower is better."""
    sign = -1 if lower else 1
    return {
        name: sign * (values[name] - value) / value for name, value in references.items() if name in values and value
    }


def gains_over(values: Values, counterparts: Mapping[str, str], *, lower: bool = False) -> dict[str, float]:
    """Relative improvement of every model over its counterpart."""
    references = {model: values[other] for model, other in counterparts.items() if other in values}
    return gains(values, references, lower=lower)


def best_of(values: Values) -> str | None:
    """The model with the highest value, the first by name of several."""
    return max(sorted(values), key=lambda name: values[name], default=None)


# ---- families


def correlation(a: Values, b: Values) -> float | None:
    """Spearman's ρ over the models that have both; None for fewer than three, or if one of them is constant."""
    return Frame({"a": value, "b": b.get(name)} for name, value in a.items()).correlation("a", "b")


def correlations(models: Collection[str], pairs: Mapping[str, tuple[Values, Values]]) -> list[Row]:
    """Rows of all models and of each family of at least LEAST: number of models, ρ of every pair of numbers."""
    groups = {ALL: models} | {
        name: members for name, members in families.by_family(models).items() if len(members) >= LEAST
    }
    return [
        {"architecture": group, "models": len(members)}
        | {head: correlation({name: a[name] for name in members if name in a}, b) for head, (a, b) in pairs.items()}
        for group, members in groups.items()
    ]


# ---- tables


def models_table(
    title: str,
    order: Values,
    columns: Mapping[str, tuple[Values, str]],
    most: int | None = None,
    intervals: Mapping[str, Intervals] | None = None,
) -> Table:
    """Table with one line per model, the highest in `order` first, and at most `most` lines.

    columns    head → the numbers of models, and what they mean
    intervals  head → 95 % intervals of the numbers
    """
    names = sorted(order, key=lambda name: (-order[name], name))
    rows: list[Row] = [
        {"model": name} | {head: values.get(name) for head, (values, _) in columns.items()} for name in names
    ]
    for head, limits in (intervals or {}).items():
        for name, row in zip(names, rows, strict=True):
            row.update(zip(interval_columns(head), limits.get(name, ()), strict=False))
    limit_note = f"The {most} best of {len(names)}" if most and len(names) > most else ""
    meanings = [meaning for values, meaning in columns.values() if values]
    brackets = "In brackets: 95 % intervals" if any((intervals or {}).values()) else ""
    note = ". ".join(filter(None, (limit_note, *meanings, brackets)))
    full_table = table_from_records(
        rows, title, "model", format=percents(), formats={"params": format_millions}, note=note
    )
    return full_table.head(most) if most else full_table


# ---- clouds of models


@dataclass(frozen=True)
class Axis:
    """Numbers of models on an axis, with the axis label.

    around  intervals of the numbers; empty if there are none
    least   minimum span of the axis, so that noise is not magnified; at least twice the widest interval
    """

    label: str
    values: Values
    around: Intervals = field(default_factory=dict)
    least: float = 0.0
    note: str = ""  # sentence of the caption about the intervals

    @property
    def span(self) -> float:
        return max([self.least, *(2 * (high - low) for low, high in self.around.values())])

    def ends(self, name: str) -> Row:
        """The ends of a model's interval, as columns of a point."""
        ends = self.around.get(name, (None, None))
        return dict(zip(interval_columns(self.label), ends, strict=True)) if self.around else {}


@dataclass(frozen=True)
class Cloud:
    """A scatter plot of two numbers of many models: names of its axes, title and caption.

    most    families that have colours, the largest ones (None: all of LEAST models or more)
    better  which x is better, lower or higher: a dashed line joins the models that no other one beats
    guides  lines at x or y
    """

    name: str
    title: str
    x: str
    y: str
    caption: str
    needs: str = "two models or more"
    most: int | None = 12
    better: str = ""
    guides: tuple[tuple[str, float], ...] = ()

    def figure(
        self,
        models: Models,
        axes: Mapping[str, Axis],
        colours: Mapping[str, str] | None = None,
        links: Sequence[tuple[str, str]] = (),
    ) -> Figure | None:
        """The figure of the models that have both numbers; None for fewer than two.

        colours  model → the name of its colour, of those that are shown (default: all, by family)
        links    pairs of models with a line between them
        """
        x, y = axes[self.x], axes[self.y]
        complete_models = [name for name in models.sizes if name in x.values and name in y.values]
        colours = family_colours(complete_models, self.most) if colours is None else colours
        points: dict[str, Row] = {
            name: {"name": colours[name], "model": name, "family": families.paper_name(families.family(name))}
            | {x.label: x.values[name], y.label: y.values[name], **x.ends(name), **y.ends(name)}
            | {PARAMS: models.sizes[name], "distilled": regimes.distilled(name)}
            for name in complete_models
            if name in colours
        }
        if len(complete_models) < 2 or not points:
            return None
        positions = [(x.values[name], y.values[name]) for name in complete_models]
        best = pareto_front(positions, self.better == "lower") if self.better else []
        marks, lines = list(points.values()), [(points[a], points[b]) for a, b in links]
        sentences = {
            self.caption: True,
            "A larger mark: more parameters.": any(point[PARAMS] for point in marks),
            "A dot in the mark: a distilled model.": any(point["distilled"] for point in marks),
            "The dashed line joins the models of the Pareto front.": len(best) > 1,
            " ".join(["Lines through the marks: 95 % intervals.", *filter(None, (x.note, y.note))]): (
                bool(x.around or y.around) and len(marks) <= NAMED_POINTS
            ),
        }
        options: Row = {"log": self.x == PARAMS, "front": best, "links": lines, "guides": self.guides}
        options |= {"spans": (0.0 if self.x == PARAMS else x.span, y.span)}
        tooltips = {"model": "model", "family": "family"}
        caption = " ".join(text for text, applies in sentences.items() if applies)
        return scatter_figure(self.name, self.title, caption, marks, x.label, y.label, tooltips, **options)


def family_colours(models: Iterable[str], most: int | None = None) -> dict[str, str]:
    """Model → its family, if that is one of the `most` largest of LEAST models or more; the others are grey."""
    members = families.by_family(models)
    large_families = [family for family, models_of_family in members.items() if len(models_of_family) >= LEAST]
    coloured = (large_families or list(members))[: most or len(members)]
    return {
        name: family if family in coloured else OTHERS
        for family, models_of_family in members.items()
        for name in models_of_family
    }


# ---- the page


def page(
    study: Study,
    question: str,
    lead: Sequence[str],
    scores: Callable[[Frame, int | None], Table],
    sections: Sequence[tuple[str, str, Sequence[str]]],
) -> Story:
    """A story whose sections are named reports, the best models by `scores` first, and all of them last."""
    frame, all_models = study.frame, scores(study.frame, None)
    parts: list[SectionSpec] = [(link, title, _blocks(study, names)) for link, title, names in sections]
    link, title, first, *_ = parts[0]
    parts[0] = link, title, [scores(frame, TOP), *first]
    parts.append(
        ("All models", "All models", [Details("Every model", [all_models])] if len(all_models.rows) > TOP else [])
    )
    title = question if unnamed(study) else f"{question} on {study.data}"
    return story_of(study, title, lead, parts)


def _blocks(study: Study, names: Sequence[str]) -> list[Block]:
    """The blocks of named reports; if a report has a figure, its tables are collapsed."""
    report_blocks = [find_report(f"{study.benchmark}/{name}").blocks(study.frame) for name in names]
    return [block for blocks in report_blocks for block in (collapse_tables(blocks) if figures_of(blocks) else blocks)]


def unnamed(study: Study) -> bool:
    """Whether the study's data has no name: files of predictions have none."""
    return study.data in ("", UNNAMED)
