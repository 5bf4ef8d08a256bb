"""Bootstrap over rows: resamples as counts of rows, estimates with their bias, and percentile intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nescio.analysis.resamplers import ProbsResampler, RankingResampler, Resampler, SummaryResampler, have_numba
from nescio.arrays.parallel import one_blas_thread, run_on_threads
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.progress import track

MAX_RESAMPLES = 1_000_000  # their values are kept in memory
CALIBRATED = 100  # draws of labels from the probabilities, which show the values of a calibrated model
UNSEEN = 2  # rows: a kind of row with this expected count in n rows is absent from one sample in seven
NUMBA_WORK = 90_000_000  # rows × resamples × rankings: above this numba saves more than its second of compiling


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
    unseen  bound on the change by kinds of rows that are absent from the sample
    """

    value: float
    values: Array
    bias: float = 0.0
    unseen: float = 0.0

    def limits(self, level: float) -> tuple[float, float]:
        """Interval for the population's value: percentiles, minus the bias if there is one."""
        if not self.unseen:
            return interval(self.values, level)
        noise = _noise_interval(self.values, level)
        low, high = self.value + noise[0] - self.bias - self.unseen, self.value + noise[1] + self.unseen
        return max(0.0, min(low, self.value)), max(high, self.value)

    def minus(self, other: Estimate) -> tuple[Array, Array]:
        """Difference from another model on the same resamples, at the lowest and the highest bias."""
        paired = self.values - other.values
        paired = paired[~np.isnan(paired)]
        if not (self.unseen and len(paired) and np.ptp(paired) > 0):
            return paired, paired
        noise = self.value - other.value + paired - paired.mean()
        return noise - self.bias - self.unseen, noise + other.bias + self.unseen


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
    calibrated = _calibrated_values(resampler, seed) if measures_calibration else None
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
        result.append(Estimate(value, values, bias, UNSEEN / resampler.n))
    return result


def _calibrated_values(resampler: SummaryResampler | ProbsResampler, seed: int) -> Array:
    stream = np.random.default_rng([seed, CALIBRATED])
    return np.array([resampler.calibrated(stream) for _ in range(CALIBRATED)])


def _noise_interval(values: Array, level: float) -> tuple[float, float]:
    low, high = interval(values, level)
    mean = float(np.nanmean(values))
    return low - mean, high - mean


def interval(values: Array, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval: the middle share `level` of the resamples on which the metric is defined."""
    values = np.asarray(values, np.float64)
    values = values[~np.isnan(values)]
    if not len(values):
        raise Undefined("The metric is undefined on every resample, so it has no interval.")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
