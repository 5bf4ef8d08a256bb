"""Bootstrap over rows: resamples as counts of rows, estimates with their bias, intervals of metrics and scorecards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nescio import measures
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
from nescio.analysis.resamplers import ProbsResampler, RankingResampler, Resampler, SummaryResampler, have_numba
from nescio.analysis.results import Scorecard
from nescio.arrays.parallel import one_blas_thread, run_on_threads
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures import summary
from nescio.predictions import Predictions
from nescio.progress import track
from nescio.rows import Row

MAX_RESAMPLES = 1_000_000  # limit, because the values of all resamples are in memory
LABEL_DRAWS = 100  # draws of labels from the probabilities, for the values of a calibrated model
ABSENT_ROWS = 2  # expected rows of a kind in a sample; a sample without such rows has probability 1/7
NUMBA_WORK = 90_000_000  # rows × resamples × rankings, above which numba is faster despite a second of compilation


def draw_counts(n: int | Sequence[int], seed: int, number: int) -> Array:
    """Count the draws of each of n rows in resample `number`: n draws with replacement from its own random stream.

    The stream depends on the seed and the number only, so threads and the number of resamples do not change it. If n
    is a sequence, it is the sizes of consecutive sets of rows, which are drawn separately.
    """
    if isinstance(n, int):
        return _counts(n, seed, (number,))
    # the first set has the stream of a set that is drawn alone
    keys = [(number,), *((number, position) for position in range(1, len(n)))]
    return np.concatenate([_counts(rows, seed, key) for rows, key in zip(n, keys, strict=True)])


def _counts(n: int, seed: int, key: tuple[int, ...]) -> Array:
    stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
    return np.bincount(stream.integers(n, size=n), minlength=n)


def check_resampling(resamples: int, level: float, seed: int, minimum: int = 1) -> None:
    """Refuse invalid arguments of a bootstrap; a minimum of 0 allows no resamples at all."""
    if not minimum <= resamples <= MAX_RESAMPLES or resamples != int(resamples):
        raise BadInput(f"resamples is {resamples}; it must be a whole number from {minimum} to {MAX_RESAMPLES:,}.")
    if not 0 < level < 1:
        raise BadInput(f"level is {level}; it must lie between 0 and 1, such as 0.95.")
    if seed < 0:
        raise BadInput(f"seed is {seed}; it must be 0 or more.")


def resample(
    resamplers: Sequence[Resampler],
    n: int | Sequence[int],
    resamples: int,
    seed: int,
    *,
    workers: int | None = None,
    numba: bool | None = None,
) -> list[Array]:
    """(resamples, metrics) of every resampler, all on the same resamples; NaN if a metric is undefined.

    n      number of rows, or the sizes of sets that are drawn separately
    numba  None: use it if it is installed and the work exceeds NUMBA_WORK
    """
    rankings = [resampler for resampler in resamplers if isinstance(resampler, RankingResampler)]
    if numba is None:
        numba = int(np.sum(n)) * resamples * len(rankings) > NUMBA_WORK and have_numba()
    if numba:
        for ranking in rankings:
            ranking.accelerate()
    samples = [np.empty((resamples, len(resampler.metrics))) for resampler in resamplers]

    def work(worker: int, workers: int) -> None:
        numbers: Iterable[int] = range(worker, resamples, workers)
        for number in track(numbers, "resamples") if worker == 0 else numbers:
            counts = draw_counts(n, seed, number)
            for resampler, values in zip(resamplers, samples, strict=True):
                values[number] = resampler.values(counts)

    with one_blas_thread():
        run_on_threads(work, workers)
    return samples


@dataclass(frozen=True, eq=False)
class Estimate:
    """A metric on the rows and on resamples of them.

    bias    bound on how far the value exceeds the population's because rows are few; 0 for an unbiased metric
    absent  bound on the effect of kinds of rows that are absent from the sample
    """

    value: float
    values: Array
    bias: float = 0.0
    absent: float = 0.0

    def limits(self, level: float) -> tuple[float, float]:
        """Interval for the population's value: percentiles, minus the bias if there is one."""
        if not self.absent:
            return interval(self.values, level)
        mean = float(np.nanmean(self.values))
        low, high = (self.value + (limit - mean) for limit in interval(self.values, level))
        return max(0.0, min(low - self.bias - self.absent, self.value)), max(high + self.absent, self.value)

    def minus(self, other: Estimate) -> tuple[Array, Array]:
        """Difference from another model on the same resamples, at the lowest and the highest bias."""
        paired = self.values - other.values
        paired = paired[~np.isnan(paired)]
        if not (self.absent and len(paired) and np.ptp(paired) > 0):
            return paired, paired
        noise = self.value - other.value + paired - paired.mean()
        return noise - self.bias - self.absent, noise + other.bias + self.absent


def estimates(resampler: Resampler, sample: Array, level: float, seed: int) -> list[Estimate | Undefined]:
    """Every metric of a resampler, from its resamples (resamples, metrics).

    On few rows a metric such as ECE exceeds its population value: noise of a bin's gap g adds to |g|. Resampling adds
    noise a second time. The bias is at most 1 + √2 times the mean of the resamples minus the value. This is exact for
    g = 0: E|s·Z| against E|√2·s·Z| − E|s·Z|. If labels drawn from the probabilities give such a value too, the whole
    value may be bias.
    """
    points = resampler.point()
    if not isinstance(resampler, SummaryResampler | ProbsResampler):
        return [p if isinstance(p, Undefined) else Estimate(p, v) for p, v in zip(points, sample.T, strict=True)]
    measures_calibration = any(spec.metric.bias == "calibrated" for spec in resampler.metrics)
    calibrated: Array | None = None
    if measures_calibration:
        stream = np.random.default_rng([seed, LABEL_DRAWS])
        calibrated = np.array([resampler.calibrated(stream) for _ in range(LABEL_DRAWS)])
    result: list[Estimate | Undefined] = []
    for position, (spec, value) in enumerate(zip(resampler.metrics, points, strict=True)):
        values = sample[:, position]
        if isinstance(value, Undefined) or spec.metric.bias == "none" or np.isnan(values).all():
            result.append(value if isinstance(value, Undefined) else Estimate(value, values))
            continue
        bias = (1 + math.sqrt(2)) * max(0.0, float(np.nanmean(values)) - value)
        if calibrated is not None and spec.metric.bias == "calibrated":
            chance = float(np.nanquantile(calibrated[:, position], (1 + level) / 2))
            bias = max(bias, value) if value <= chance else bias
        result.append(Estimate(value, values, bias, ABSENT_ROWS / resampler.n))
    return result


def interval(values: Array, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval: the middle share `level` of the resamples on which the metric is defined."""
    values = np.asarray(values, np.float64)
    values = values[~np.isnan(values)]
    if not len(values):
        raise Undefined("The metric is undefined on every resample, so it has no interval.")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Missing:
    """Metrics that a model does not have, and the reason."""

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
    """Resamplers of one model's metrics on its rows at these positions."""
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
    """Resamplers of metrics of one model and one OOD set."""
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
        """Sentence about resamples on which the metric is undefined."""
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
                    columns = {"measure": source.cell["measure"], "metric": None, "split": source.cell["split"]}
                    card.reasons.append({**columns, "reason": f"The interval: {reason}"})
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
