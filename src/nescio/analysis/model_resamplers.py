"""Resamplers of one model's metrics on rows that it shares with others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nescio import measures
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
