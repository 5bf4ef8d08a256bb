"""The kinds of metrics: each prepares its arrays from predictions, and their resamples.

One table serves scorecards, comparisons and bootstrap intervals. A new kind is one function:

    @metric_kind("margin", "f(u, labels)", reads="uncertainty")
    def _margin(rows, metrics):
        labels = rows.predictions.labels
        yield PreparedMetrics(metrics, len(rows.u), lambda spec: spec(rows.u, labels), …)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Literal

import numpy as np

from nescio import metrics
from nescio.analysis.metric_specs import MetricSpec, at_scorecard_values, scorecard_metrics
from nescio.analysis.resamplers import (
    ArraysResampler,
    MixtureResampler,
    ProbsResampler,
    RankingResampler,
    Resampler,
    ShareResampler,
    SummaryResampler,
    mixture_metric,
)
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures import cached, mean_probs, prob_blocks, summary, top_k_outcomes
from nescio.metrics import Metric, Mixture, Ranking
from nescio.predictions import Predictions
from nescio.rows import Row

MAX_PROBS = 200_000_000  # maximum number of probabilities in all resamples; above, metrics have no interval
Reads = Literal["predictions", "uncertainty", "ood"]


class NotApplicable(Undefined):
    """Metrics that a scorecard omits silently, because they are irrelevant or the reason is already listed."""


@dataclass(frozen=True, eq=False)
class EvaluatedRows:
    """The rows of one model that metrics read.

    predictions  all rows of its file
    positions    (n,) the evaluated rows among them; None: all
    wrong        (n,) True for misclassified rows; None without labels
    u_all        (N,) uncertainty of all rows of the file by one measure
    u_ood        (m,) uncertainty of one OOD set
    threshold    rejection threshold on the uncertainty, or the reason why there is none
    ood_share    share of OOD rows in mixtures
    """

    predictions: Predictions
    positions: Array | None = None
    wrong: Array | None = None
    u_all: Array | None = None
    u_ood: Array | None = None
    threshold: float | Undefined = field(default_factory=lambda: NotApplicable("There is no rejection threshold."))
    ood_share: float = metrics.DEFAULT_OOD_SHARE

    @property
    def u(self) -> Array:
        """u (n,) of the evaluated rows."""
        assert self.u_all is not None
        return self.select(self.u_all)

    def select(self, rows: Array) -> Array:
        """The entries of the evaluated rows."""
        return rows if self.positions is None else rows[self.positions]


@dataclass(frozen=True, eq=False)
class PreparedMetrics:
    """Metrics of one kind on the rows of one model.

    n          rows behind the values
    value      metric → its value; raises Undefined
    resampler  number of resamples → the same metrics on resamples; raises Undefined
    sizes      sizes of the sets of rows that are drawn separately; n unless given
    columns    further columns of the rows of a table
    note       sentence for the reader
    """

    metrics: Sequence[MetricSpec]
    n: int
    value: Callable[[MetricSpec], float]
    resampler: Callable[[int], Resampler]
    sizes: tuple[int, ...] = ()
    columns: Row = field(default_factory=dict)
    note: str | None = None

    @property
    def drawn_sizes(self) -> tuple[int, ...]:
        return self.sizes or (self.n,)


Prepare = Callable[[EvaluatedRows, Sequence[MetricSpec]], Iterator[PreparedMetrics]]


@dataclass(frozen=True)
class MetricKind:
    """A kind of metrics.

    prepare          generator of prepared metrics; raises Undefined with the reason why there are none
    reads            predictions alone, also an uncertainty of the same rows, or also an OOD set
    needs_threshold  reads a rejection threshold, which comes from validation rows
    whole_file       compares each row with all rows of the file, OOD ones too; calibration does not change the values
    by_group         is also computed for groups of rows
    """

    name: str
    prepare: Prepare
    reads: Reads
    needs_threshold: bool = False
    whole_file: bool = False
    by_group: bool = False

    def metrics(self) -> list[MetricSpec]:
        """Registered metrics of this kind at their scorecard values."""
        return scorecard_metrics(self.name)


KINDS: dict[str, MetricKind] = {}  # kinds in the order of a scorecard


def metric_kind(
    name: str,
    signature: str,
    reads: Reads,
    *,
    needs_threshold: bool = False,
    whole_file: bool = False,
    by_group: bool = False,
) -> Callable[[Prepare], Prepare]:
    """Register how metrics of a kind are prepared; `signature` documents the arrays that they read."""

    def register(prepare: Prepare) -> Prepare:
        metrics.KINDS.setdefault(name, signature)
        KINDS[name] = MetricKind(name, prepare, reads, needs_threshold, whole_file, by_group)
        return prepare

    return register


def kinds_of(spec: MetricSpec) -> list[MetricKind]:
    """The kinds of a metric in the table."""
    return [KINDS[kind] for kind in spec.metric.kinds if kind in KINDS]


def reads_uncertainty(spec: MetricSpec) -> bool:
    """Whether the metric depends on a measure of uncertainty."""
    return any(kind.reads != "predictions" for kind in kinds_of(spec))


def applies_to_one_model(metric: Metric) -> bool:
    """Whether the in-distribution rows of one model are enough for the metric."""
    kinds = [KINDS[kind] for kind in metric.kinds if kind in KINDS]
    return any(kind.reads != "ood" and not kind.needs_threshold for kind in kinds)


def applicable_metrics() -> list[MetricSpec]:
    """Every registered metric of one model's in-distribution rows at its scorecard values."""
    return [
        spec
        for metric in metrics.registry.parts()
        if applies_to_one_model(metric)
        for spec in at_scorecard_values(metric)
    ]


# ---- predictions


@metric_kind("predictions", "f(probs, labels)", reads="predictions", by_group=True)
def _prepare_predictions(rows: EvaluatedRows, specs: Sequence[MetricSpec]) -> Iterator[PreparedMetrics]:
    predictions = rows.predictions
    if not predictions.has_outcomes:
        missing_field = "labels" if predictions.labels is None else "logits"
        raise Undefined(f"There are no {missing_field}: predictions cannot be compared with labels.")
    outcomes = summary(predictions).outcomes(rows.positions)
    prepared = [spec for spec in specs if spec.metric.prepared]
    array_specs = [spec for spec in specs if not spec.metric.prepared]
    if prepared:
        yield PreparedMetrics(
            prepared, outcomes.n, lambda spec: spec(outcomes), lambda _: SummaryResampler(outcomes, prepared)
        )
    if array_specs:
        yield PreparedMetrics(
            array_specs,
            outcomes.n,
            partial(_metric_of_probs, predictions),
            partial(_probs_resampler, predictions, rows.positions, array_specs),
        )


def _metric_of_probs(predictions: Predictions, spec: MetricSpec) -> float:
    """A metric of all class probabilities, in blocks of rows if the metric has a form for blocks."""
    of_blocks, of_top = spec.metric.of_blocks, spec.metric.of_top
    if of_blocks is not None:
        return of_blocks(prob_blocks(predictions), **spec.options)
    if of_top is not None:
        return of_top(top_k_outcomes(predictions, int(spec.option("k"))))
    return spec(mean_probs(predictions), predictions.labels)


def _probs_resampler(
    predictions: Predictions, positions: Array | None, specs: Sequence[MetricSpec], resamples: int
) -> ProbsResampler:
    if predictions.logits is None or predictions.labels is None:
        raise Undefined("There are no probabilities of all classes.")
    if len(predictions) * predictions.classes * resamples > MAX_PROBS:
        raise Undefined("It needs all class probabilities of every resample, which are too many here.")
    rows = slice(None) if positions is None else positions
    return ProbsResampler(mean_probs(predictions)[rows], predictions.labels[rows], specs)


# ---- retrieval


@metric_kind("retrieval", "f(embeddings, labels)", reads="predictions", whole_file=True)
def _prepare_retrieval(rows: EvaluatedRows, specs: Sequence[MetricSpec]) -> Iterator[PreparedMetrics]:
    retrieved = rows.select(retrieved_rows(rows.predictions))
    for spec in specs:
        yield _share(spec, retrieved, lambda _: float(np.mean(retrieved)))


@cached
def retrieved_rows(predictions: Predictions) -> Array:
    """(N,) whether the nearest other row has the same label; Undefined without embeddings or labels."""
    embeddings, labels = predictions.embeddings, predictions.labels
    if embeddings is None or labels is None:
        raise Undefined(f"There are no {'embeddings' if embeddings is None else 'labels'}.")
    try:
        return metrics.retrieved(embeddings, labels)
    except BadInput as error:
        raise Undefined(str(error)) from None


def _share(spec: MetricSpec, flags: Array, value: Callable[[MetricSpec], float]) -> PreparedMetrics:
    return PreparedMetrics([spec], len(flags), value, lambda _: ShareResampler(flags, spec))


# ---- uncertainty of the same rows


@metric_kind("ranking", "f(u, wrong)", reads="uncertainty", by_group=True)
def _prepare_ranking(rows: EvaluatedRows, specs: Sequence[MetricSpec]) -> Iterator[PreparedMetrics]:
    if rows.wrong is None:
        raise NotApplicable("There are no labels.")
    yield from _rankings(rows.u, rows.wrong, specs)


def _rankings(
    u: Array, positive: Array, specs: Sequence[MetricSpec], sizes: tuple[int, ...] = ()
) -> Iterator[PreparedMetrics]:
    prepared = [spec for spec in specs if spec.metric.prepared]
    array_specs = [spec for spec in specs if not spec.metric.prepared]
    ranking = cache(lambda: Ranking(u, positive))
    if prepared:
        yield PreparedMetrics(
            prepared, len(u), lambda spec: spec(ranking()), lambda _: RankingResampler(u, positive, prepared), sizes
        )
    if array_specs:
        yield PreparedMetrics(
            array_specs,
            len(u),
            lambda spec: spec(u, positive),
            lambda _: ArraysResampler((u, positive), array_specs),
            sizes,
        )


@metric_kind("acceptance", "f(u, threshold)", reads="uncertainty", needs_threshold=True)
def _prepare_acceptance(rows: EvaluatedRows, specs: Sequence[MetricSpec]) -> Iterator[PreparedMetrics]:
    if isinstance(rows.threshold, Undefined):
        raise rows.threshold
    u, threshold = rows.u, rows.threshold
    for spec in specs:
        yield _share(spec, u <= threshold, lambda spec: spec(u, threshold))


# ---- uncertainty of OOD rows too


@metric_kind("mixture", "f(u, wrong, u_ood)", reads="ood")
def _prepare_mixture(rows: EvaluatedRows, specs: Sequence[MetricSpec]) -> Iterator[PreparedMetrics]:
    if rows.wrong is None:
        raise NotApplicable("There are no labels.")
    u, u_ood = rows.u, _u_ood(rows)
    mixture = Mixture(u, rows.wrong, u_ood, rows.ood_share)
    ranking, sizes = cache(mixture.ranking), (len(u), len(u_ood))
    yield PreparedMetrics(
        specs,
        sum(sizes),
        lambda spec: mixture_metric(spec, ranking()),
        lambda _: MixtureResampler(mixture, specs),
        sizes,
        {"ood_share": rows.ood_share},
    )


@metric_kind("detection", "f(u, ood)", reads="ood")
def _prepare_detection(rows: EvaluatedRows, specs: Sequence[MetricSpec]) -> Iterator[PreparedMetrics]:
    u, u_ood = rows.u, _u_ood(rows)
    is_ood = np.repeat([False, True], [len(u), len(u_ood)])
    yield from _rankings(np.concatenate([u, u_ood]), is_ood, specs, (len(u), len(u_ood)))


@metric_kind("rejection", "f(u_ood, threshold)", reads="ood", needs_threshold=True)
def _prepare_rejection(rows: EvaluatedRows, specs: Sequence[MetricSpec]) -> Iterator[PreparedMetrics]:
    if isinstance(rows.threshold, Undefined):
        raise NotApplicable(str(rows.threshold))  # the kind "acceptance" lists the reason
    u_ood, threshold = _u_ood(rows), rows.threshold
    for spec in specs:
        yield _share(spec, u_ood > threshold, lambda spec: spec(u_ood, threshold))


def _u_ood(rows: EvaluatedRows) -> Array:
    assert rows.u_ood is not None
    return rows.u_ood


# ---- uncertainty compared with votes, crops and neighbours


@metric_kind("retrieval-ranking", "f(embeddings, labels, u)", reads="uncertainty", whole_file=True)
def _prepare_retrieval_ranking(rows: EvaluatedRows, specs: Sequence[MetricSpec]) -> Iterator[PreparedMetrics]:
    u, retrieved = rows.u, rows.select(retrieved_rows(rows.predictions))
    yield PreparedMetrics(
        specs, len(u), lambda _: metrics.auroc(u, ~retrieved), lambda _: retrieval_resampler(u, retrieved)
    )


def retrieval_resampler(u: Array, retrieved: Array) -> RankingResampler:
    """R-AUROC, the AUROC of u against rows whose nearest other row has another label; neighbours stay fixed."""
    return RankingResampler(u, ~retrieved, [MetricSpec("r_auroc", metrics.registry["auroc"], {})])


@metric_kind("votes", "f(u, annotations)", reads="uncertainty")
def _prepare_votes(rows: EvaluatedRows, specs: Sequence[MetricSpec]) -> Iterator[PreparedMetrics]:
    if rows.predictions.annotations is None:
        raise Undefined("There are no annotations (human votes).")
    u, votes = rows.u, rows.select(rows.predictions.annotations)
    with_votes = int(metrics.has_votes(votes).sum())
    missing_count = len(u) - with_votes
    yield PreparedMetrics(
        specs,
        with_votes,
        lambda spec: spec(u, votes),
        lambda _: ArraysResampler((u, votes), specs),
        (len(u),),
        note=f"{missing_count} of {len(u)} rows have no human votes: human_alignment omits them."
        if missing_count
        else None,
    )


@metric_kind("crops", "f(u, u_cropped)", reads="uncertainty")
def _prepare_crops(rows: EvaluatedRows, specs: Sequence[MetricSpec]) -> Iterator[PreparedMetrics]:
    image, crop = _crop_pairs(rows.predictions)
    u = rows.u_all
    assert u is not None
    higher = np.full(len(u), np.nan)
    higher[crop] = u[crop] > u[image]
    flags = higher[crop] if rows.positions is None else higher[rows.positions]
    for spec in specs:
        yield PreparedMetrics(
            [spec],
            len(crop),
            lambda spec: spec(u[image], u[crop]),
            partial(_share_resampler, flags, spec),
            (len(flags),),
        )


def _share_resampler(flags: Array, spec: MetricSpec, resamples: int) -> ShareResampler:
    return ShareResampler(flags, spec)


def _crop_pairs(predictions: Predictions) -> tuple[Array, Array]:
    """(positions of uncropped images, of their crops); the group `twin` of a crop is the index of its image."""
    twin = predictions.groups.get("twin")
    if twin is None:
        raise NotApplicable("There is no group twin, which contains the index of each crop's image.")
    position = {key: row for row, key in enumerate(predictions.index.tolist())}
    keys = zip(twin.tolist(), predictions.index.tolist(), strict=True)
    pairs = [(position[image], row) for row, (image, key) in enumerate(keys) if image != key and image in position]
    if not pairs:
        raise Undefined("No row's group twin is the index of another row.")
    image, crop = np.array(pairs, np.int64).reshape(-1, 2).T
    return image, crop
