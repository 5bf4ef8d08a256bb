"""Bootstrap over rows: a resample is how often each row was drawn, and every metric is read off those counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache
from inspect import Parameter, signature
from typing import Any, Protocol

import numpy as np

from nescio.arrays.parallel import one_blas_thread, run_on_threads
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.metrics import MIXTURE_METRICS, Metric, Mixture, Outcomes, Ranking, bins_of, registry
from nescio.progress import track
from nescio.specs import parameter

MOST_RESAMPLES = 1_000_000  # their values are kept
CALIBRATED = 100  # draws of labels from the probabilities, which say what a metric is where these are right
UNSEEN = 2  # rows: a kind with so many in n rows on average is in none of them once in seven samples
NUMBA_WORK = 90_000_000  # rows × resamples × rankings: above this numba saves more than its second of compiling


# ---- which metrics


@dataclass(frozen=True)
class MetricSpec:
    """A metric with its parameter, as a table names it: `auroc`, `sac@0.95`, `accuracy@5`."""

    label: str
    metric: Metric
    options: Mapping[str, Any]

    @property
    def ranks(self) -> bool:
        """Reads (u, wrong); otherwise it reads (probs, labels)."""
        return "ranking" in self.metric.kinds

    def option(self, name: str) -> Any:
        """The parameter's value, given or by default."""
        return self.options.get(name, signature(self.metric.function).parameters[name].default)

    @property
    def by_measure(self) -> bool:
        """Depends on a measure of uncertainty, not on the answers or embeddings alone."""
        return bool({"ranking", "mixture", "votes", "retrieval-ranking", "pairs"} & set(self.metric.kinds))

    def __call__(self, *arrays: Any) -> float:
        return float(self.metric.function(*arrays, **self.options))


def parse_metric(label: str) -> MetricSpec:
    """The metric behind a table's name for it."""
    label = registry.canonical(label)
    name, value = parameter(label)
    _, at, text = label.partition("@")
    name = registry.canonical(name)
    label = f"{name}{at}{text}"
    metric = registry[name]
    if value is None:
        return MetricSpec(label, metric, {})
    keys = list(metric.values) or [
        key
        for key, parameter in signature(metric.function).parameters.items()
        if isinstance(parameter.default, int | float) and parameter.kind is not Parameter.VAR_KEYWORD
    ]
    if not keys:
        raise BadInput(f"The metric {name!r} takes no parameter, so {label!r} means nothing; ask for {name!r}.")
    return MetricSpec(label, metric, {keys[0]: value})


OF_ONE_MODEL = {"predictions", "ranking", "votes", "retrieval", "retrieval-ranking"}  # kinds of metrics of its own rows


def applies_to_one_model(metric: Metric) -> bool:
    """Whether a scorecard shows it for the in-distribution rows of one model."""
    return "curve" not in metric.kinds and (bool(OF_ONE_MODEL & set(metric.kinds)) or metric.name == "crop_agreement")


def applicable_metrics() -> list[MetricSpec]:
    """Every registered metric of one model's own rows, at its scorecard values."""
    return [
        shown for metric in registry.parts() if applies_to_one_model(metric) for shown in at_scorecard_values(metric)
    ]


def at_scorecard_values(metric: Metric) -> list[MetricSpec]:
    """The metric as a scorecard shows it, once for every value of its parameter, spelled as sac@0.95."""
    if not metric.values:
        return [MetricSpec(metric.name, metric, {})]
    ((option, values),) = metric.values.items()
    return [
        MetricSpec(
            metric.name if (metric.name, value) == ("accuracy", 1) else f"{metric.name}@{value:g}",
            metric,
            {option: value},
        )
        for value in values
    ]


def scorecard_metrics(kind: str) -> list[MetricSpec]:
    """Every metric of this kind that a scorecard shows."""
    return [spec for metric in registry.parts() if kind in metric.kinds for spec in at_scorecard_values(metric)]


# ---- one resample of one model


class Resampler(Protocol):
    """What one model says of a resample: how often each row was drawn (n,) in, one number per metric out, or NaN."""

    metrics: list[MetricSpec]

    def point(self) -> list[float | Undefined]: ...

    def values(self, counts: Array) -> list[float]: ...


class SummaryResampler:
    """Accuracy, NLL and the like: means over rows, so a resample is a product with its counts."""

    def __init__(self, answers: Outcomes, metrics: Sequence[MetricSpec]) -> None:
        self.answers, self.metrics, self.n = answers, list(metrics), answers.n
        self._means: dict[int, Array] = {}
        self._binned: dict[int, tuple[Array, Array, Array]] = {}
        for place, metric in enumerate(self.metrics):
            name = metric.metric.name
            if name == "accuracy":
                self._means[place] = _top(answers, metric.option("k"))
            elif name == "nll":
                self._means[place] = answers.log_loss
            elif name == "brier":
                self._means[place] = answers.brier
            elif name == "ece" and metric.option("scheme") == "width":
                self._binned[place] = _bin_gaps(answers, metric.option("bins"))
        self._columns = np.array([np.asarray(column, np.float64) for column in self._means.values()])
        self._other = [i for i in range(len(self.metrics)) if i not in self._means and i not in self._binned]

    def point(self) -> list[float | Undefined]:
        return [_value(metric, self.answers) for metric in self.metrics]

    def values(self, counts: Array) -> list[float]:
        values = np.empty(len(self.metrics))
        if self._means:
            values[list(self._means)] = self._columns @ counts.astype(np.float64) / self.n
        for place, (order, gaps, starts) in self._binned.items():
            # Σ_b |B_b|/n · |acc_b − conf_b| = Σ_b |Σ_{i in b} counts_i · (right_i − confidence_i)| / n
            values[place] = np.abs(np.add.reduceat(counts[order] * gaps, starts)).sum() / self.n
        if self._other:
            again = self.answers.take(np.repeat(np.arange(self.n), counts))
            for place in self._other:
                values[place] = _number(self.metrics[place], again)
        return values.tolist()

    def calibrated(self, stream: np.random.Generator) -> list[float]:
        """The same where every confidence is right; NaN for metrics that do not measure calibration."""
        values = np.full(len(self.metrics), np.nan)
        right = stream.random(self.n) < self.answers.confidence
        for place, (order, _, starts) in self._binned.items():
            gaps: Array = (right - self.answers.confidence)[order]
            values[place] = np.abs(np.add.reduceat(gaps, starts)).sum() / self.n
        again = replace(self.answers, correct=right)
        for place in self._other:
            if self.metrics[place].metric.bias == "calibrated":
                values[place] = _number(self.metrics[place], again)
        return values.tolist()


class RankingResampler:
    """AUROC, AURC and the like: rows are sorted once; counts in that order are the resample's own tie groups."""

    def __init__(self, u: Array, wrong: Array, metrics: Sequence[MetricSpec]) -> None:
        self.metrics, self.ranking = list(metrics), Ranking(u, wrong)
        self.n, self.order = len(u), np.argsort(u, kind="stable")
        sorted_u, self.wrong = np.asarray(u, np.float64)[self.order], np.asarray(wrong, bool)[self.order]
        self.ends = np.flatnonzero(np.append(sorted_u[1:] != sorted_u[:-1], True)) + 1
        self.starts, self.group_u = np.append(0, self.ends[:-1]), sorted_u[self.ends - 1]
        # Tie groups with a wrong row: where they start and end among all rows, and start among the wrong rows.
        errors = np.add.reduceat(self.wrong, self.starts, dtype=np.int64)
        at = np.flatnonzero(errors)
        self.first, self.last, self.wrong_rows = self.starts[at], self.ends[at], self.order[self.wrong]
        self.wrong_first = np.cumsum(errors[at]) - errors[at]
        self.harmonic = _harmonic(self.n)
        self.fast: Callable[..., Any] | None = None

    def point(self) -> list[float | Undefined]:
        return [_value(metric, self.ranking) for metric in self.metrics]

    def values(self, counts: Array) -> list[float]:
        ranking = ResampledRanking(self, counts)
        return [_number(metric, ranking) for metric in self.metrics]

    def accelerate(self) -> None:
        """From here on in numba's one ordered pass."""
        self.fast = _ordered_pass()


class ArraysResampler:
    """Any metric as it is: a resample repeats the rows of its arrays as often as they were drawn."""

    def __init__(self, arrays: Sequence[Array], metrics: Sequence[MetricSpec]) -> None:
        self.arrays, self.metrics = [np.asarray(array) for array in arrays], list(metrics)

    def point(self) -> list[float | Undefined]:
        return [_value(metric, *self.arrays) for metric in self.metrics]

    def values(self, counts: Array) -> list[float]:
        rows = np.repeat(np.arange(len(counts)), counts)
        again = [array[rows] for array in self.arrays]
        return [_number(metric, *again) for metric in self.metrics]


class ProbsResampler(ArraysResampler):
    """Metrics of the probabilities (n, c) of all classes and the labels (n,)."""

    def __init__(self, probs: Array, labels: Array, metrics: Sequence[MetricSpec]) -> None:
        super().__init__((probs, labels), metrics)
        self.n = len(labels)

    def calibrated(self, stream: np.random.Generator) -> list[float]:
        """The same for labels drawn from the probabilities; NaN for metrics that do not measure calibration."""
        probs = self.arrays[0]
        sums = np.cumsum(probs, axis=1, dtype=np.float64)
        labels = (sums <= (stream.random(self.n) * sums[:, -1])[:, None]).sum(1)
        return [_number(m, probs, labels) if m.metric.bias == "calibrated" else np.nan for m in self.metrics]


class MixtureResampler:
    """AURC and the like with out-of-distribution rows as failures; rows of both kinds are drawn apart."""

    def __init__(self, mixture: Mixture, metrics: Sequence[MetricSpec]) -> None:
        self.mixture, self.metrics = mixture, list(metrics)

    def point(self) -> list[float | Undefined]:
        return [mixture_metric(metric, self.mixture.ranking()) for metric in self.metrics]

    def values(self, counts: Array) -> list[float]:
        ranking = self.mixture.ranking(counts)
        return [mixture_metric(metric, ranking) for metric in self.metrics]


def mixture_metric(metric: MetricSpec, ranking: Ranking) -> float:
    """A metric of mixtures of the ranking that the mixture is."""
    return MIXTURE_METRICS[metric.metric.name](ranking, **metric.options)


class ShareResampler:
    """The share of rows of which something is so: flags (n,), NaN for rows that do not count."""

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

    The sums behind every area come from the tie groups with wrong rows alone, which are few. With a and b the rows
    before and up to such a group, `bad` of its b − a rows wrong, e wrong rows in all and H the harmonic numbers:

        pairs with the wrong row higher   Σ bad·a − Σ_{g < g'} bad_g·bad_g'
        tied pairs                        Σ bad·(b − a − bad)
        Σᵢ Eᵢ                             n·e − Σ bad·a − ½·Σ bad·(b − a − 1)
        Σᵢ Eᵢ/i                           e + Σ bad·(H_n − H_b) − Σ a·bad/(b − a)·(H_b − H_a)

    The tie groups themselves are only worked out when a metric asks for them.
    """

    def __init__(self, part: RankingResampler, counts: Array) -> None:
        self._part, self._counts, n = part, counts, part.n
        run = _sums if part.fast is None else part.fast
        args = counts, part.order, part.first, part.last, part.wrong_rows, part.wrong_first, *part.harmonic
        errors, before, spread, squares, share = run(*args)
        self._errors = errors
        higher, equal = before - (errors**2 - squares) // 2, spread - squares
        self.pairs = higher, equal, errors * (n - errors) - higher - equal
        self.total_hits = Fraction(2 * (n * errors - before) - spread + errors, 2)
        self.total_share = share

    @property
    def n(self) -> int:
        return self._part.n

    @property
    def positives(self) -> int:
        return self._errors

    def __getattr__(self, name: str) -> Any:
        if name not in ("values", "ends", "hits"):
            raise AttributeError(name)
        part, sizes = self._part, self._counts[self._part.order]
        hits = sizes * part.wrong
        if len(part.starts) < part.n:
            sizes, hits = np.add.reduceat(sizes, part.starts), np.add.reduceat(hits, part.starts)
        drawn = np.flatnonzero(sizes)
        self.values, self.ends, self.hits = part.group_u[drawn], np.cumsum(sizes[drawn]), np.cumsum(hits[drawn])
        return self.__dict__[name]


Sums = tuple[int, int, int, int, float]


def _sums(
    counts: Array,
    order: Array,
    first: Array,
    last: Array,
    wrong_rows: Array,
    wrong_first: Array,
    harmonic: Array,
    rest: Array,
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
    gap = (harmonic[b] - harmonic[a]) + (rest[b] - rest[a])
    after = bad @ (harmonic[n] - harmonic[b]) - (a * bad / np.maximum(size, 1)) @ gap
    return errors, int(bad @ a), int(bad @ size), int(bad @ bad), float(errors + after)


@lru_cache(maxsize=1)
def _harmonic(n: int) -> tuple[Array, Array]:
    """H_0 … H_n and what rounding took from them, so that differences of neighbours keep their digits."""
    exact = np.append(0, np.cumsum(1 / np.arange(1, n + 1, dtype=np.longdouble)))
    rounded = exact.astype(np.float64)
    return rounded, (exact - rounded).astype(np.float64)


def _top(answers: Outcomes, k: float) -> Array:
    """(n,) whether the label is among the k most probable classes; NaN when there are fewer classes."""
    return answers.rank < k if k <= answers.classes else np.full(answers.n, np.nan)


def _bin_gaps(answers: Outcomes, bins: int) -> tuple[Array, Array, Array]:
    """(order, right − confidence in that order, starts of the bins) of the rows sorted by their bin of confidence."""
    which = bins_of(answers, bins, "width")
    order = np.argsort(which, kind="stable")
    return order, (answers.correct - answers.confidence)[order], np.flatnonzero(np.diff(which[order], prepend=-1))


def _value(metric: MetricSpec, *arrays: Any) -> float | Undefined:
    try:
        return metric(*arrays)
    except Undefined as reason:
        return reason


def _number(metric: MetricSpec, *arrays: Any) -> float:
    try:
        return metric(*arrays)
    except Undefined:
        return np.nan


# ---- the same in numba


def have_numba() -> bool:
    from importlib.util import find_spec

    return find_spec("numba") is not None


@cache
def _ordered_pass() -> Callable[..., Any]:
    import numba

    def sums(
        counts: Array,
        order: Array,
        first: Array,
        last: Array,
        wrong_rows: Array,
        wrong_first: Array,
        harmonic: Array,
        rest: Array,
    ) -> Sums:
        n, groups = len(order), len(first)
        rows = np.empty(n + 1, np.int64)
        errors = before = spread = squares = total = 0
        share = 0.0
        rows[0] = 0
        for i in range(n):
            total += counts[order[i]]
            rows[i + 1] = total
        for g in range(groups):
            bad = 0
            for i in range(wrong_first[g], wrong_first[g + 1] if g + 1 < groups else len(wrong_rows)):
                bad += counts[wrong_rows[i]]
            # No branch on bad = 0, which would be guessed wrong too often: all terms are then 0.
            a, b = rows[first[g]], rows[last[g]]
            size = b - a
            gap = (harmonic[b] - harmonic[a]) + (rest[b] - rest[a])
            share += bad * (harmonic[n] - harmonic[b]) - a * bad / max(size, 1) * gap
            errors += bad
            before += bad * a
            spread += bad * size
            squares += bad * bad
        return errors, before, spread, squares, errors + share

    compiled: Callable[..., Any] = numba.njit(nogil=True, error_model="numpy")(sums)
    return compiled


# ---- many resamples


def draw_counts(n: int | Sequence[int], seed: int, number: int) -> Array:
    """How often each of n rows is drawn in resample `number`: n draws with replacement from a stream of its own.

    The stream depends on the seed and the number alone, so neither threads nor the number of resamples move it.
    Of several sets of rows, one after the other, each is drawn by itself.
    """
    if not isinstance(n, int):
        return np.concatenate([_drawn(rows, seed, (number, at)[: at + 1]) for at, rows in enumerate(n)])
    return _drawn(n, seed, (number,))


def _drawn(n: int, seed: int, key: tuple[int, ...]) -> Array:
    stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
    return np.bincount(stream.integers(n, size=n), minlength=n)


def check_resampling(resamples: int, level: float, seed: int, least: int = 1) -> None:
    """Refuses what no bootstrap can be; `least`: 0 where none is a choice."""
    if not least <= resamples <= MOST_RESAMPLES or resamples != int(resamples):
        raise BadInput(f"resamples is {resamples}; it must be a whole number from {least} to {MOST_RESAMPLES:,}.")
    if not 0 < level < 1:
        raise BadInput(f"level is {level}; it must lie between 0 and 1, such as 0.95.")
    if seed < 0:
        raise BadInput(f"seed is {seed}; it must be 0 or more.")


def resample(
    parts: Sequence[Resampler],
    n: int | Sequence[int],
    resamples: int,
    seed: int,
    *,
    workers: int | None = None,
    numba: bool | None = None,
) -> list[Array]:
    """(resamples, metrics) of every part, all parts on the same resamples; NaN where a metric is undefined.

    `n`: the rows, or those of each set that is drawn by itself.
    `numba`: None = when it is installed and the work is above NUMBA_WORK.
    """
    ranked = [part for part in parts if isinstance(part, RankingResampler)]
    if numba is None:
        numba = int(np.sum(n)) * resamples * len(ranked) > NUMBA_WORK and have_numba()
    if numba:
        for part in ranked:
            part.accelerate()
    samples = [np.empty((resamples, len(part.metrics))) for part in parts]

    def work(worker: int, workers: int) -> None:
        numbers: Any = range(worker, resamples, workers)
        for number in track(numbers, "resamples") if worker == 0 else numbers:
            counts = draw_counts(n, seed, number)
            for part, values in zip(parts, samples, strict=True):
                values[number] = part.values(counts)

    with one_blas_thread():
        run_on_threads(work, workers)
    return samples


@dataclass(frozen=True, eq=False)
class Estimate:
    """A metric on the rows and on resamples of them.

    bias    how much higher than the population's the value may be because the rows are few; 0 of an unbiased metric
    unseen  how much rows may change it of whose kind none was drawn
    """

    value: float
    values: Array
    bias: float = 0.0
    unseen: float = 0.0

    def limits(self, level: float) -> tuple[float, float]:
        """An interval for the population's value: percentiles, less the bias where there is one."""
        if not self.unseen:
            return interval(self.values, level)
        noise = _interval_of_noise(self.values, level)
        low, high = self.value + noise[0] - self.bias - self.unseen, self.value + noise[1] + self.unseen
        return max(0.0, min(low, self.value)), max(high, self.value)

    def less(self, other: Estimate) -> tuple[Array, Array]:
        """The difference from another model's on the same resamples, as low and as high as the biases let it be."""
        paired = self.values - other.values
        paired = paired[~np.isnan(paired)]
        if not (self.unseen and len(paired) and np.ptp(paired) > 0):
            return paired, paired
        noise = self.value - other.value + paired - paired.mean()
        return noise - self.bias - self.unseen, noise + other.bias + self.unseen


def estimates(part: Resampler, sample: Array, level: float, seed: int) -> list[Estimate | Undefined]:
    """Every metric of a part, from its resamples (resamples, metrics).

    On few rows a metric such as ECE is higher than in the population: noise of a bin's gap g adds to |g|. Resampling
    adds noise once more. The bias is at most 1 + √2 times the mean of the resamples less the value. This is exact for
    g = 0: E|s·Z| against E|√2·s·Z| − E|s·Z|. If labels drawn from the probabilities give such a value as well, all of
    it may be bias.
    """
    points = part.point()
    if not isinstance(part, SummaryResampler | ProbsResampler):
        return [p if isinstance(p, Undefined) else Estimate(p, v) for p, v in zip(points, sample.T, strict=True)]
    drawn = _if_calibrated(part, seed) if any(metric.metric.bias == "calibrated" for metric in part.metrics) else None
    made: list[Estimate | Undefined] = []
    for place, (metric, value) in enumerate(zip(part.metrics, points, strict=True)):
        values = sample[:, place]
        if isinstance(value, Undefined) or metric.metric.bias == "none" or np.isnan(values).all():
            made.append(value if isinstance(value, Undefined) else Estimate(value, values))
            continue
        bias = (1 + math.sqrt(2)) * max(0.0, float(np.nanmean(values)) - value)
        if drawn is not None and metric.metric.bias == "calibrated":
            chance = float(np.nanquantile(drawn[:, place], (1 + level) / 2))
            bias = max(bias, value) if value <= chance else bias
        made.append(Estimate(value, values, bias, UNSEEN / part.n))
    return made


def _if_calibrated(part: SummaryResampler | ProbsResampler, seed: int) -> Array:
    stream = np.random.default_rng([seed, CALIBRATED])
    return np.array([part.calibrated(stream) for _ in range(CALIBRATED)])


def _interval_of_noise(values: Array, level: float) -> tuple[float, float]:
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
