"""Bootstrap intervals of one model's metrics, and of the rows of a scorecard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nescio import measures
from nescio.analysis.bootstrap import Estimate, check_resampling, estimates, resample
from nescio.analysis.evaluation_rows import shared_rows
from nescio.analysis.metric_kinds import (
    KINDS,
    EvaluatedRows,
    MetricKind,
    applicable_metrics,
    applies_to_one_model,
    kinds_of,
    reads_uncertainty,
)
from nescio.analysis.metric_specs import MetricSpec, parse_metric
from nescio.analysis.resamplers import Resampler
from nescio.analysis.results import Scorecard
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures import summary
from nescio.predictions import Predictions
from nescio.rows import Row


@dataclass(frozen=True)
class Missing:
    """Metrics that a model does not have, and why."""

    metrics: Sequence[MetricSpec]
    reason: str


@dataclass(frozen=True, eq=False)
class ModelResampler:
    """Metrics of one model on resamples, and further columns of their rows."""

    resampler: Resampler
    columns: Row


def model_resamplers(
    predictions: Predictions, positions: Array, measure: str, specs: Sequence[MetricSpec], resamples: int
) -> Iterator[ModelResampler | Missing]:
    """Metrics of one model on its rows at these positions."""
    wrong = summary(predictions).outcomes(positions).wrong
    rows = EvaluatedRows(predictions, positions, wrong)
    kinds = [kind for kind in KINDS.values() if kind.reads != "ood" and not kind.needs_threshold]
    yield from _of_kinds([kind for kind in kinds if kind.reads == "predictions"], rows, specs, resamples)
    try:
        u = measures.uncertainty(measure, predictions)
    except Undefined as reason:
        yield Missing([spec for spec in specs if reads_uncertainty(spec)], str(reason))
        return
    rows = EvaluatedRows(predictions, positions, wrong, u)
    yield from _of_kinds([kind for kind in kinds if kind.reads == "uncertainty"], rows, specs, resamples)


def ood_resamplers(
    predictions: Predictions,
    positions: Array,
    ood: Predictions,
    measure: str,
    specs: Sequence[MetricSpec],
    ood_share: float,
    resamples: int,
) -> Iterator[ModelResampler | Missing]:
    """Metrics of one model and one OOD set."""
    try:
        u, u_ood = measures.uncertainty(measure, predictions), measures.uncertainty(measure, ood)
    except Undefined as reason:
        yield Missing(specs, str(reason))
        return
    wrong = summary(predictions).outcomes(positions).wrong
    rows = EvaluatedRows(predictions, positions, wrong, u, u_ood, ood_share=ood_share)
    yield from _of_kinds(ood_kinds(), rows, specs, resamples)


def ood_kinds() -> list[MetricKind]:
    """Kinds of metrics of in-distribution and OOD rows that need no validation rows."""
    return [kind for kind in KINDS.values() if kind.reads == "ood" and not kind.needs_threshold]


def _of_kinds(
    kinds: Sequence[MetricKind], rows: EvaluatedRows, specs: Sequence[MetricSpec], resamples: int
) -> Iterator[ModelResampler | Missing]:
    for kind in kinds:
        of_kind = [spec for spec in specs if kind.name in spec.metric.kinds]
        if not of_kind:
            continue
        try:
            for prepared in kind.prepare(rows, of_kind):
                try:
                    yield ModelResampler(prepared.resampler(resamples), prepared.columns)
                except Undefined as reason:
                    yield Missing(prepared.metrics, str(reason))
        except Undefined as reason:
            yield Missing(of_kind, str(reason))


def one_model_specs(metrics: Iterable[str] | None, with_ood: bool = False) -> list[MetricSpec]:
    """The metrics with these names; None: all that apply to one model, with OOD rows or without."""
    applicable = applicable_metrics()
    if with_ood:
        labels = {spec.label for spec in applicable}
        applicable += [spec for kind in ood_kinds() for spec in kind.metrics() if spec.label not in labels]
    if metrics is None:
        return applicable
    names = [metrics] if isinstance(metrics, str) else list(dict.fromkeys(metrics))
    if not names:
        raise BadInput("No metric is named; omit metrics to get all that apply.")
    specs = [parse_metric(name) for name in names]
    for spec in specs:
        needs_ood = any(kind in ood_kinds() for kind in kinds_of(spec))
        if not applies_to_one_model(spec.metric) and not (with_ood and needs_ood):
            reason = "needs out-of-distribution rows" if needs_ood else "does not apply to one model's rows"
            labels_text = ", ".join(other.label for other in applicable)
            raise BadInput(f"The metric {spec.label!r} {reason}; there are {labels_text}.")
    return specs


CELL = ("calibrated", "subgroup", "split", "measure", "metric")  # columns that identify a row of a scorecard


@dataclass(frozen=True)
class Interval:
    """A percentile interval and the number of resamples on which the metric is undefined.

    The limits are None if it is undefined on more than half of the resamples.
    """

    low: float | None
    high: float | None
    undefined: int

    @classmethod
    def from_estimate(cls, estimate: Estimate, level: float) -> Interval:
        """The interval of an estimate."""
        undefined = int(np.isnan(estimate.values).sum())
        low, high = (None, None) if undefined > len(estimate.values) / 2 else estimate.limits(level)
        return cls(low, high, undefined)

    def undefined_note(self, resamples: int) -> str:
        """Sentence about undefined resamples."""
        effect = "so it has no interval" if self.low is None else "which its interval omits"
        return f"undefined on {self.undefined} of {resamples} resamples, {effect}."


def bootstrap(
    predictions: Predictions,
    *,
    measures: Sequence[str] = ("msp",),
    metrics: Iterable[str] | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[tuple[str | None, str], Interval]:
    """Intervals of one model's metrics by (measure, metric); the measure is None for metrics of predictions alone.

    The resamples are those of `compare`. Metrics that are undefined on the rows, and measures that do not apply, are
    omitted.
    """
    check_resampling(resamples, level, seed)
    positions, specs = shared_rows({"": predictions})[""], one_model_specs(metrics)
    cells: list[str | None] = []
    resamplers: list[Resampler] = []
    for measure in measures:
        for entry in model_resamplers(predictions, positions, measure, specs, resamples):
            if isinstance(entry, Missing):
                continue
            cell = measure if reads_uncertainty(entry.resampler.metrics[0]) else None
            if cell is not None or measure == measures[0]:  # metrics of predictions are the same for all measures
                cells.append(cell)
                resamplers.append(entry.resampler)
    intervals = _intervals(resamplers, len(positions), resamples, level, seed)
    return {
        (cell, label): interval
        for cell, by_label in zip(cells, intervals, strict=True)
        for label, interval in by_label.items()
    }


def add_intervals(card: Scorecard, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> None:
    """Fill low and high of all rows of a scorecard, calibrated ones, groups and OOD sets too.

    In-distribution and OOD rows are drawn separately. Calibrations, densities, thresholds and neighbours stay fixed:
    intervals are about the evaluated rows only.
    """
    check_resampling(resamples, level, seed)
    rows = {_key(row, row["metric"]): row for row in card.rows}
    sources = [source for source in card.sources if any(_key(source.cell, label) in rows for label in source.metrics)]
    for sizes in dict.fromkeys(source.sizes for source in sources):
        cells, resamplers = [], []
        for source in sources:
            if source.sizes == sizes:
                try:
                    resamplers.append(source.resampler(resamples))
                    cells.append(source.cell)
                except Undefined as reason:
                    where = {"measure": source.cell["measure"], "metric": None, "split": source.cell["split"]}
                    card.reasons.append({**where, "reason": f"The interval: {reason}"})
        intervals = _intervals(resamplers, sizes if len(sizes) > 1 else sizes[0], resamples, level, seed)
        for cell, by_label in zip(cells, intervals, strict=True):
            for label, interval in by_label.items():
                if row := rows.get(_key(cell, label)):
                    _set_interval(card, row, interval, resamples)


def _key(cell: Row, label: str) -> tuple[object, ...]:
    return tuple((cell | {"metric": label})[column] for column in CELL)


def _set_interval(card: Scorecard, row: Row, interval: Interval, resamples: int) -> None:
    row["low"], row["high"] = interval.low, interval.high
    if interval.undefined:
        reason = {"reason": f"The interval: {interval.undefined_note(resamples)}"}
        card.reasons.append({column: row[column] for column in ("measure", "metric", "split")} | reason)


def _intervals(
    resamplers: Sequence[Resampler], n: int | Sequence[int], resamples: int, level: float, seed: int
) -> list[dict[str, Interval]]:
    """The interval of every metric of each resampler that is defined on the rows themselves."""
    return [
        {
            spec.label: Interval.from_estimate(estimate, level)
            for spec, estimate in zip(resampler.metrics, estimates(resampler, sample, level, seed), strict=True)
            if isinstance(estimate, Estimate)
        }
        for resampler, sample in zip(resamplers, resample(resamplers, n, resamples, seed), strict=True)
    ]
