"""Resamplers: metrics of one model on a bootstrap resample, computed from the number of draws of each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, lru_cache
from typing import Protocol

import numpy as np

from nescio.analysis.metric_specs import MetricSpec
from nescio.arrays.types import Array
from nescio.errors import Undefined
from nescio.metrics import Mixture, Outcomes, Ranking

Sums = tuple[int, int, int, int, float]


class Resampler(Protocol):
    """Metrics of one model on its rows and on resamples of them."""

    metrics: list[MetricSpec]

    def point(self) -> list[float | Undefined]:
        """Every metric on the rows themselves."""

    def values(self, counts: Array) -> list[float]:
        """Every metric on a resample, NaN if it is undefined; counts (n,) are the draws of each row."""


class SummaryResampler:
    """Metrics of outcomes, such as accuracy and NLL: a mean over rows is a product with the counts."""

    def __init__(self, outcomes: Outcomes, metrics: Sequence[MetricSpec]) -> None:
        self.outcomes, self.metrics, self.n = outcomes, list(metrics), outcomes.n
        self._means: dict[int, Array] = {}
        self._binned: dict[int, tuple[Array, Array, Array]] = {}
        for position, spec in enumerate(self.metrics):
            row_values, row_bins = spec.metric.row_values, spec.metric.row_bins
            if row_values is not None:
                self._means[position] = row_values(outcomes, **spec.options)
            elif row_bins is not None and (bins := row_bins(outcomes, **spec.options)) is not None:
                self._binned[position] = _bin_gaps(outcomes, bins[0])
        self._columns = np.array([np.asarray(column, np.float64) for column in self._means.values()])
        self._other_positions = [i for i in range(len(self.metrics)) if i not in self._means and i not in self._binned]

    def point(self) -> list[float | Undefined]:
        return [_value_or_reason(spec, self.outcomes) for spec in self.metrics]

    def values(self, counts: Array) -> list[float]:
        values = np.empty(len(self.metrics))
        if self._means:
            values[list(self._means)] = self._columns @ counts.astype(np.float64) / self.n
        for position, (order, gaps, starts) in self._binned.items():
            # Σ_b |B_b|/n · |acc_b − conf_b| = Σ_b |Σ_{i in b} counts_i · (right_i − confidence_i)| / n
            values[position] = np.abs(np.add.reduceat(counts[order] * gaps, starts)).sum() / self.n
        if self._other_positions:
            resampled = self.outcomes.take(np.repeat(np.arange(self.n), counts))
            for position in self._other_positions:
                values[position] = _value_or_nan(self.metrics[position], resampled)
        return values.tolist()

    def calibrated(self, stream: np.random.Generator) -> list[float]:
        """Every metric if all confidences are calibrated; NaN for metrics that do not measure calibration."""
        values = np.full(len(self.metrics), np.nan)
        drawn_correct = stream.random(self.n) < self.outcomes.confidence
        for position, (order, _, starts) in self._binned.items():
            gaps: Array = (drawn_correct - self.outcomes.confidence)[order]
            values[position] = np.abs(np.add.reduceat(gaps, starts)).sum() / self.n
        redrawn = replace(self.outcomes, correct=drawn_correct)
        for position in self._other_positions:
            if self.metrics[position].metric.bias == "calibrated":
                values[position] = _value_or_nan(self.metrics[position], redrawn)
        return values.tolist()


class RankingResampler:
    """AUROC, AURC and other ranking metrics: rows are sorted once, and a resample counts them in this order."""

    def __init__(self, u: Array, wrong: Array, metrics: Sequence[MetricSpec]) -> None:
        self.metrics, self.ranking = list(metrics), Ranking(u, wrong)
        self.n, self.order = len(u), np.argsort(u, kind="stable")
        sorted_u, self.wrong = np.asarray(u, np.float64)[self.order], np.asarray(wrong, bool)[self.order]
        self.ends = np.flatnonzero(np.append(sorted_u[1:] != sorted_u[:-1], True)) + 1
        self.starts, self.group_u = np.append(0, self.ends[:-1]), sorted_u[self.ends - 1]
        # Tie groups with wrong rows: first and last row among all rows, and first row among the wrong rows.
        errors = np.add.reduceat(self.wrong, self.starts, dtype=np.int64)
        groups = np.flatnonzero(errors)
        self.first, self.last, self.wrong_rows = self.starts[groups], self.ends[groups], self.order[self.wrong]
        self.wrong_first = np.cumsum(errors[groups]) - errors[groups]
        self.harmonic = _harmonic(self.n)
        self.fast: Callable[..., Sums] | None = None

    def point(self) -> list[float | Undefined]:
        return [_value_or_reason(spec, self.ranking) for spec in self.metrics]

    def values(self, counts: Array) -> list[float]:
        ranking = ResampledRanking(self, counts)
        return [_value_or_nan(spec, ranking) for spec in self.metrics]

    def accelerate(self) -> None:
        """Use numba's single pass over the sorted rows for all later resamples."""
        self.fast = _ordered_pass()


class ArraysResampler:
    """Any metric of arrays: a resample repeats each row as often as it was drawn."""

    def __init__(self, arrays: Sequence[Array], metrics: Sequence[MetricSpec]) -> None:
        self.arrays, self.metrics = [np.asarray(array) for array in arrays], list(metrics)

    def point(self) -> list[float | Undefined]:
        return [_value_or_reason(spec, *self.arrays) for spec in self.metrics]

    def values(self, counts: Array) -> list[float]:
        rows = np.repeat(np.arange(len(counts)), counts)
        resampled = [array[rows] for array in self.arrays]
        return [_value_or_nan(spec, *resampled) for spec in self.metrics]


class ProbsResampler(ArraysResampler):
    """Metrics of the probabilities (n, c) of all classes and of the labels (n,)."""

    def __init__(self, probs: Array, labels: Array, metrics: Sequence[MetricSpec]) -> None:
        super().__init__((probs, labels), metrics)
        self.n = len(labels)

    def calibrated(self, stream: np.random.Generator) -> list[float]:
        """Every metric for labels drawn from the probabilities; NaN for metrics that do not measure calibration."""
        probs = self.arrays[0]
        sums = np.cumsum(probs, axis=1, dtype=np.float64)
        labels = (sums <= (stream.random(self.n) * sums[:, -1])[:, None]).sum(1)
        return [
            _value_or_nan(spec, probs, labels) if spec.metric.bias == "calibrated" else np.nan for spec in self.metrics
        ]


class MixtureResampler:
    """AURC and other metrics with OOD rows as failures; OOD rows and in-distribution rows are drawn separately."""

    def __init__(self, mixture: Mixture, metrics: Sequence[MetricSpec]) -> None:
        self.mixture, self.metrics = mixture, list(metrics)

    def point(self) -> list[float | Undefined]:
        return [mixture_metric(spec, self.mixture.ranking()) for spec in self.metrics]

    def values(self, counts: Array) -> list[float]:
        ranking = self.mixture.ranking(counts)
        return [mixture_metric(spec, ranking) for spec in self.metrics]


def mixture_metric(metric: MetricSpec, ranking: Ranking) -> float:
    """A mixture metric of the ranking of a mixture."""
    if metric.metric.of_ranking is None:
        raise Undefined(f"The metric {metric.label} declares no `of_ranking`, so it is not computed for mixtures.")
    return metric.metric.of_ranking(ranking, **metric.options)


class ShareResampler:
    """The share of True among flags (n,); rows with NaN are ignored."""

    def __init__(self, flags: Array, metric: MetricSpec) -> None:
        self.metrics, self.flags = [metric], np.asarray(flags, np.float64)
        self.counting = ~np.isnan(self.flags)

    def point(self) -> list[float | Undefined]:
        return [float(self.flags[self.counting].mean())]

    def values(self, counts: Array) -> list[float]:
        drawn = counts[self.counting]
        return [float(drawn @ self.flags[self.counting] / drawn.sum()) if drawn.any() else np.nan]


class ResampledRanking(Ranking):
    """The ranking of resampled rows; copies of one row are ties.

    Every area is a sum over the few tie groups with wrong rows. Notation: a rows precede such a group, b rows end with
    it, `bad` of its b − a rows are wrong, there are e wrong rows in all, and H are the harmonic numbers:

        pairs with the wrong row higher   Σ bad·a − Σ_{g < g'} bad_g·bad_g'
        tied pairs                        Σ bad·(b − a − bad)
        Σᵢ Eᵢ                             n·e − Σ bad·a − ½·Σ bad·(b − a − 1)
        Σᵢ Eᵢ/i                           e + Σ bad·(H_n − H_b) − Σ a·bad/(b − a)·(H_b − H_a)

    The tie groups themselves are computed when a metric first reads them.
    """

    def __init__(self, resampler: RankingResampler, counts: Array) -> None:
        self._resampler, self._counts, n = resampler, counts, resampler.n
        compute_sums = _sums if resampler.fast is None else resampler.fast
        r = resampler
        args = counts, r.order, r.first, r.last, r.wrong_rows, r.wrong_first, *r.harmonic
        errors, rows_before, group_rows, squares, share = compute_sums(*args)
        self._errors = errors
        higher_pairs, tied_pairs = rows_before - (errors**2 - squares) // 2, group_rows - squares
        self.pairs = higher_pairs, tied_pairs, errors * (n - errors) - higher_pairs - tied_pairs
        self.total_hits = Fraction(2 * (n * errors - rows_before) - group_rows + errors, 2)
        self.total_share = share

    @property
    def n(self) -> int:
        return self._resampler.n

    @property
    def positives(self) -> int:
        return self._errors

    def __getattr__(self, name: str) -> Array:
        if name not in ("values", "ends", "hits"):
            raise AttributeError(name)
        resampler, sizes = self._resampler, self._counts[self._resampler.order]
        hits = sizes * resampler.wrong
        if len(resampler.starts) < resampler.n:
            sizes, hits = np.add.reduceat(sizes, resampler.starts), np.add.reduceat(hits, resampler.starts)
        drawn_groups = np.flatnonzero(sizes)
        self.values, self.ends, self.hits = (
            resampler.group_u[drawn_groups],
            np.cumsum(sizes[drawn_groups]),
            np.cumsum(hits[drawn_groups]),
        )
        array: Array = self.__dict__[name]
        return array


def _sums(
    counts: Array,
    order: Array,
    first: Array,
    last: Array,
    wrong_rows: Array,
    wrong_first: Array,
    harmonic: Array,
    harmonic_errors: Array,
) -> Sums:
    """(e, Σ bad·a, Σ bad·(b − a), Σ bad², Σᵢ Eᵢ/i) of a resample: see `ResampledRanking`."""
    if not len(first):
        return 0, 0, 0, 0, 0.0
    n = len(order)
    rows = np.zeros(n + 1, np.int64)
    np.cumsum(counts[order], out=rows[1:])
    bad = counts[wrong_rows]
    if len(wrong_first) < len(bad):
        bad = np.add.reduceat(bad, wrong_first)
    a, b = rows[first], rows[last]
    errors, size = int(bad.sum()), b - a
    harmonic_difference = (harmonic[b] - harmonic[a]) + (harmonic_errors[b] - harmonic_errors[a])
    weighted_ranks = bad @ (harmonic[n] - harmonic[b]) - (a * bad / np.maximum(size, 1)) @ harmonic_difference
    return errors, int(bad @ a), int(bad @ size), int(bad @ bad), float(errors + weighted_ranks)


@lru_cache(maxsize=1)
def _harmonic(n: int) -> tuple[Array, Array]:
    """H_0 … H_n and their rounding errors, for exact differences of neighbours."""
    exact = np.append(0, np.cumsum(1 / np.arange(1, n + 1, dtype=np.longdouble)))
    rounded = exact.astype(np.float64)
    return rounded, (exact - rounded).astype(np.float64)


def _bin_gaps(outcomes: Outcomes, bins: Array) -> tuple[Array, Array, Array]:
    """(order, right − confidence in that order, starts of the bins) of the rows sorted by their bin."""
    order = np.argsort(bins, kind="stable")
    return order, (outcomes.correct - outcomes.confidence)[order], np.flatnonzero(np.diff(bins[order], prepend=-1))


def _value_or_reason(metric: MetricSpec, *arrays: object) -> float | Undefined:
    try:
        return metric(*arrays)
    except Undefined as reason:
        return reason


def _value_or_nan(metric: MetricSpec, *arrays: object) -> float:
    try:
        return metric(*arrays)
    except Undefined:
        return np.nan


# ---- the same sums in numba


def have_numba() -> bool:
    from importlib.util import find_spec

    return find_spec("numba") is not None


@cache
def _ordered_pass() -> Callable[..., Sums]:
    import numba

    def sums(
        counts: Array,
        order: Array,
        first: Array,
        last: Array,
        wrong_rows: Array,
        wrong_first: Array,
        harmonic: Array,
        harmonic_errors: Array,
    ) -> Sums:
        n, groups = len(order), len(first)
        rows = np.empty(n + 1, np.int64)
        errors = rows_before = group_rows = squares = total = 0
        share = 0.0
        rows[0] = 0
        for i in range(n):
            total += counts[order[i]]
            rows[i + 1] = total
        for g in range(groups):
            bad = 0
            for i in range(wrong_first[g], wrong_first[g + 1] if g + 1 < groups else len(wrong_rows)):
                bad += counts[wrong_rows[i]]
            # No branch on bad = 0: the processor would mispredict it often, and all terms are 0 then.
            a, b = rows[first[g]], rows[last[g]]
            size = b - a
            harmonic_difference = (harmonic[b] - harmonic[a]) + (harmonic_errors[b] - harmonic_errors[a])
            share += bad * (harmonic[n] - harmonic[b]) - a * bad / max(size, 1) * harmonic_difference
            errors += bad
            rows_before += bad * a
            group_rows += bad * size
            squares += bad * bad
        return errors, rows_before, group_rows, squares, errors + share

    compiled: Callable[..., Sums] = numba.njit(nogil=True, error_model="numpy")(sums)
    return compiled
