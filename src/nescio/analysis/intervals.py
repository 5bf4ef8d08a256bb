"""Bootstrap intervals of one model's metrics, and of the rows of a scorecard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nescio.analysis.bootstrap import Estimate, check_resampling, estimates, resample
from nescio.analysis.metric_kinds import reads_uncertainty
from nescio.analysis.model_resamplers import Missing, model_resamplers, one_model_specs
from nescio.analysis.resamplers import Resampler
from nescio.analysis.results import Scorecard
from nescio.analysis.shared_rows import shared_rows
from nescio.errors import Undefined
from nescio.predictions import Predictions
from nescio.rows import Row

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
