"""Results of an evaluation: the scorecard of one model, and the comparison of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from nescio import measures
from nescio.analysis.curves import Curves, ScoreSet, curves_of
from nescio.analysis.metric_specs import parse_metric
from nescio.analysis.resamplers import Resampler
from nescio.errors import BadInput, FaultyPlugin, Undefined, did_you_mean
from nescio.metrics import DEFAULT_OOD_SHARE
from nescio.registry import is_plugin_code, source_file
from nescio.rows import Row

if TYPE_CHECKING:
    from nescio.analysis.score_choice import ScoreChoice

REPR_METRICS = ("accuracy", "nll", "ece", "temperature")  # metrics in the text of a scorecard
REPR_NOTES = 3


class Renderer(Protocol):
    """Interface that shows results as HTML, charts and pages; the report package registers one with `use_renderer`."""

    def html(self, result: object) -> str: ...

    def plots(self, result: object) -> object: ...

    def write(self, result: object, folder: str | Path) -> str | Path: ...


_renderers: list[Callable[[], Renderer]] = []


def use_renderer(load: Callable[[], Renderer]) -> None:
    """Set the function that loads the renderer of all results."""
    _renderers[:] = [load]


def _renderer() -> Renderer:
    if not _renderers:
        raise BadInput("Charts and pages need the package: import scorecard and compare from nescio.")
    return _renderers[0]()


class ResultRows:
    """Base class of results: rows, and their data frames, charts and page."""

    rows: list[Row]

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame."""
        return _package("pandas").DataFrame(self.rows)

    def to_polars(self) -> Any:
        """The rows as a polars DataFrame."""
        return _package("polars").DataFrame(self.rows, infer_schema_length=None)

    @property
    def plot(self) -> Any:
        """Altair charts, such as card.plot.risk_coverage(), card.plot.reliability(), comparison.plot.intervals()."""
        return _renderer().plots(self)

    def report(self, folder: str | Path) -> Path:
        """Write the page and its tables; return the path of the page."""
        return Path(_renderer().write(self, folder))

    def _repr_html_(self) -> str | None:
        return str(_renderer().html(self)) if _renderers else None


def _package(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        raise BadInput(f"{name} is not installed: pip install {name}") from None


@dataclass(frozen=True)
class RowSource:
    """Rows of a scorecard, with the resampler that recomputes them on a bootstrap resample.

    cell       the columns that the rows share: calibrated, subgroup, split, measure
    metrics    labels of the metrics
    sizes      sizes of the sets of rows that are drawn separately: one, or in-distribution and OOD rows
    resampler  number of resamples → the metrics on resamples
    """

    cell: Row
    metrics: Sequence[str]
    sizes: tuple[int, ...]
    resampler: Callable[[int], Resampler]


@dataclass(repr=False)
class Scorecard(ResultRows):
    """Rows and reasons (measure, metric, split, reason) of one model.

    notes                sentences that a reader needs beside the numbers
    raw, calibrated      uncertainties and errors behind the curves
    sources              rows for the bootstrap
    calibration_warning  reason why calibrated numbers are unreliable; None if they are reliable
    score_choices        recommended scores, from `choose_scores`
    """

    name: str
    rows: list[Row] = field(default_factory=list)
    reasons: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raw: ScoreSet | None = None
    calibrated: ScoreSet | None = None
    sources: list[RowSource] = field(default_factory=list)
    calibration_warning: str | None = None
    score_choices: Sequence[ScoreChoice] = ()

    def value(
        self, metric: str, measure: str | None = None, split: str | None = None, calibrated: bool = False
    ) -> float:
        """The value of a metric and measure, by any of their names; `Undefined` with the reason if it is missing."""
        if metric not in {row["metric"] for row in (*self.rows, *self.reasons)}:
            metric = parse_metric(metric).label
        if measure is not None and measure not in {row["measure"] for row in self.rows}:
            measure = measures.registry.canonical(measure)
        labels = {str(row["metric"]): None for row in self.rows if (row["measure"], row["subgroup"]) == (measure, None)}
        with_parameter = [label for label in labels if label.startswith(f"{metric}@")]
        if metric not in labels and len(with_parameter) == 1:
            metric = with_parameter[0]
        for row in self.rows:
            identity = (row["metric"], row["measure"], row["calibrated"], row["subgroup"])
            if identity == (metric, measure, calibrated, None) and split in (None, row["split"]):
                return float(row["value"])
        for row in self.reasons:
            if row["metric"] in (metric, None) and row["measure"] in (measure, None):
                raise Undefined(row["reason"])
        names = f"{did_you_mean(metric, labels)} There are: {', '.join(labels)}." if labels else ""
        raise Undefined(f"There is no {metric} of {measure or 'the predictions'} on this scorecard.{names}")

    def add_reason(self, measure: str | None, metric: str | None, split: str, reason: str) -> None:
        """Record why there are no rows of a measure or metric."""
        entry = {"measure": measure, "metric": metric, "split": split, "reason": reason}
        if entry not in self.reasons:
            self.reasons.append(entry)

    def add_failure(self, measure: str, split: str, reason: ValueError) -> None:
        """Record why a measure has no rows; for a plug-in, also add a note with its file."""
        self.add_reason(measure, None, split, str(reason))
        if isinstance(reason, FaultyPlugin):
            self.add_note(str(reason))
        elif measure in measures.registry and is_plugin_code(function := measures.registry[measure].function):
            self.add_note(f"The measure {measure} ({source_file(function)}) has no numbers: {reason}")

    def add_note(self, sentence: str) -> None:
        """Add a note once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def __repr__(self) -> str:
        rows = [row for row in self.rows if row["subgroup"] is None and row["metric"] in REPR_METRICS]
        first = {(row["metric"], row["calibrated"]): row for row in reversed(rows)}
        cells = [
            f"{row['metric']}{' calibrated' if row['calibrated'] else ''} {row['value']:.4f}" for row in first.values()
        ]
        lines = [f"Scorecard of {self.name or 'a model'}: {len(self.rows)} rows, {len(self.reasons)} reasons"]
        return "\n  ".join([*lines, ", ".join(reversed(cells)) or "no values", *self.notes[:REPR_NOTES]])

    @cached_property
    def curves(self) -> Curves:
        """Points of risk–coverage curves, reliability diagrams and histograms."""
        return curves_of(self.raw, self.calibrated)


@dataclass(repr=False)
class Comparison(ResultRows):
    """Models compared on the same rows.

    rows         one per model and metric; the model is in `method`. `rank` is 1 + the number of strictly better models.
                 `best` is True for the best model and those not significantly different from it. Both are None for a
                 metric without a better direction. `split` is the OOD set, or None for in-distribution rows alone.
    reasons      dicts `method, measure, metric, split, reason`: missing values, and resamples that intervals omit
    differences  dicts `model, best, measure, metric, split, difference, low, high, p, adjusted`: model − best on the
                 same resamples, percentile interval, two-sided bootstrap p-value, and Holm's adjustment of it over the
                 comparisons of this metric
    notes        how the models' predictions were read
    ood_share    share of OOD rows in the mixtures behind AURC and AUGRC of mixtures
    """

    models: tuple[str, ...]
    n: int
    resamples: int
    level: float
    seed: int
    ood_share: float = DEFAULT_OOD_SHARE
    rows: list[Row] = field(default_factory=list)
    reasons: list[Row] = field(default_factory=list)
    differences: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        lines = [f"Comparison of {', '.join(self.models)} on {self.n} rows, {self.resamples} resamples"]
        for metric in ("accuracy", "nll", "ece", "auroc"):
            rows = [row for row in self.rows if row["metric"] == metric and row["split"] is None]
            best = [f"{row['method']} {row['value']:.4f}" for row in rows if row["best"]]
            others = [f"{row['method']} {row['value']:.4f}" for row in rows if not row["best"]]
            lines += [f"{metric}: {' = '.join(best)}{' | ' if others else ''}{', '.join(others)}"] if rows else []
        return "\n  ".join(lines)
