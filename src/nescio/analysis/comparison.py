"""Comparison of models on the same rows: a paired bootstrap with ranks and significant differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nescio import measures
from nescio.analysis.bootstrap import (
    Estimate,
    Interval,
    Missing,
    ModelResampler,
    check_resampling,
    estimates,
    interval,
    model_resamplers,
    one_model_specs,
    ood_kinds,
    ood_resamplers,
    resample,
)
from nescio.analysis.evaluation_rows import Models, named_models, shared_ood_rows, shared_rows
from nescio.analysis.metric_kinds import applies_to_one_model, kinds_of, reads_uncertainty
from nescio.analysis.metric_specs import MetricSpec, parse_metric
from nescio.analysis.results import Comparison
from nescio.analysis.significance import bootstrap_p_value, compare_with_best
from nescio.errors import Undefined
from nescio.metrics import DEFAULT_OOD_SHARE
from nescio.rows import COLUMNS, Row

SIGNS = {"higher": 1.0, "lower": -1.0, "neither": 0.0}


def compare(
    models: Models,
    *,
    measure: str = "msp",
    metrics: Iterable[str] | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    ood: Mapping[str, Models] | None = None,
    ood_share: float = DEFAULT_OOD_SHARE,
) -> Comparison:
    """Compare models on the rows that they share, by a paired bootstrap over those rows.

    models     by name, or a sequence whose models are named "0", "1" and so on; only in-distribution rows count
    measure    measure of uncertainty, for the metrics that need one
    metrics    names such as auroc, sac@0.95 and accuracy@5; None: all that apply
    ood        OOD set → predictions of every model on it, as in `models`
    ood_share  share of OOD rows in the mixtures behind AURC and AUGRC of mixtures

    A resample draws n of the n shared rows with replacement, the same for every model. Rows of an OOD set are drawn
    separately, again the same for every model. A model differs significantly from the best if the p-value of their
    difference, 2·min(1 + #{d ≤ 0}, 1 + #{d ≥ 0})/(resamples + 1), passes Holm's test at 1 − level over the m − 1
    comparisons with the best. Intervals are percentiles of the resamples. Those of ECE, MCB and DSC, which are higher
    on few rows than in the population, are extended by this bias (see `estimates`).

    Sources: Efron & Tibshirani 1993, §13.3; Davison & Hinkley 1997, §4.2; Holm 1979.
    """
    check_resampling(resamples, level, seed)
    models = named_models(models)
    measure = measures.canonical(measure, next(iter(models.values())))
    ood_sets = {name: shared_ood_rows(name, ood_set, models) for name, ood_set in (ood or {}).items()}
    specs = one_model_specs(metrics, with_ood=bool(ood_sets))
    positions = shared_rows(models)
    n = len(next(iter(positions.values())))
    result = Comparison(tuple(models), n, resamples, level, seed, ood_share)
    result.notes += [f"{name}: {note}" for name, model in models.items() for note in model.notes]

    one_model = [spec for spec in specs if applies_to_one_model(spec.metric)]
    resamplers = {
        name: model_resamplers(model, positions[name], measure, one_model, resamples) for name, model in models.items()
    }
    _compare(result, resamplers, n, one_model, measure)
    with_ood = [spec for spec in specs if any(kind in ood_kinds() for kind in kinds_of(spec))]
    for split, ood_set in ood_sets.items():
        resamplers = {
            name: ood_resamplers(model, positions[name], ood_set[name], measure, with_ood, ood_share, resamples)
            for name, model in models.items()
        }
        _compare(result, resamplers, (n, len(next(iter(ood_set.values())))), with_ood, measure, split)
    return result


def _compare(
    result: Comparison,
    resamplers: Mapping[str, Iterable[ModelResampler | Missing]],
    n: int | tuple[int, int],
    specs: Sequence[MetricSpec],
    measure: str,
    split: str | None = None,
) -> None:
    """Add rows, differences and reasons of these metrics."""
    entries: list[tuple[str, ModelResampler]] = []
    models_by_reason: dict[tuple[str, str], list[str]] = {}  # (metric, reason) → models
    for name, of_model in resamplers.items():
        for entry in of_model:
            if isinstance(entry, ModelResampler):
                entries.append((name, entry))
                continue
            for spec in entry.metrics:
                models_by_reason.setdefault((spec.label, entry.reason), []).append(name)
    for (label, reason), names in models_by_reason.items():
        spec = parse_metric(label)
        if len(names) == len(resamplers) > 1:  # once for all models
            _add_reason(result, None, spec, _cell_measure(spec, measure), reason, split)
            continue
        for name in names:
            _add_reason(result, name, spec, _cell_measure(spec, measure), f"Model {name!r}: {reason}", split)

    samples = resample([entry.resampler for _, entry in entries], n, result.resamples, result.seed)
    values = [
        estimates(entry.resampler, sample, result.level, result.seed)
        for (_, entry), sample in zip(entries, samples, strict=True)
    ]
    for spec in specs:
        numbers: dict[str, Estimate] = {}
        columns: Row = {}
        for (name, entry), of_entry in zip(entries, values, strict=True):
            labels = [other.label for other in entry.resampler.metrics]
            if spec.label not in labels:
                continue
            estimate = of_entry[labels.index(spec.label)]
            if isinstance(estimate, Undefined):
                reason = f"Model {name!r}: {estimate}"
                _add_reason(result, name, spec, _cell_measure(spec, measure), reason, split)
            else:
                numbers[name], columns = estimate, entry.columns
        add_verdict(result, spec, _cell_measure(spec, measure), numbers, split, int(np.sum(n)), columns)


def add_verdict(
    result: Comparison,
    spec: MetricSpec,
    measure: str | None,
    numbers: Mapping[str, Estimate],
    split: str | None = None,
    n: int | None = None,
    columns: Row | None = None,
) -> None:
    """Add the rows and differences of one metric, on the shared rows or on n rows of a split."""
    if not numbers:
        return
    sign = SIGNS[spec.metric.better]
    equals = set(numbers)
    if sign and len(numbers) > 1:
        cell = {"measure": measure, "metric": spec.label, "split": split}

        def bootstrap(name: str, best: str) -> tuple[float | None, float | None, float | None]:
            lows, highs = numbers[name].minus(numbers[best])
            if len(lows) < result.resamples / 2:
                return None, None, None
            low, high = interval(lows, result.level)[0], interval(highs, result.level)[1]
            return low, high, bootstrap_p_value(lows, highs)

        values = {name: {0: estimate.value} for name, estimate in numbers.items()}
        verdict = compare_with_best(
            values, spec.metric.better, images=("paired bootstrap", bootstrap), level=result.level
        )
        equals = verdict.equals | {row["model"] for row in verdict.differences if row["p"] is None}
        result.differences += [row | cell for row in verdict.differences]
        _warn_of_few_resamples(result, spec, measure, len(verdict.differences), split)
    for name, estimate in numbers.items():
        value, limits = estimate.value, Interval.from_estimate(estimate, result.level)
        if limits.undefined:
            reason = f"Model {name!r}: {limits.undefined_note(result.resamples)}"
            _add_reason(result, name, spec, measure, reason, split)
        row: Row = dict.fromkeys(COLUMNS) | (columns or {})
        row.update(method=name, split=split, measure=measure, metric=spec.label, value=value, n=n or result.n)
        row.update(low=limits.low, high=limits.high)
        row["rank"] = 1 + sum(sign * other.value > sign * value for other in numbers.values()) if sign else None
        row["best"] = name in equals if sign else None
        result.rows.append(row)


def _warn_of_few_resamples(
    result: Comparison, spec: MetricSpec, measure: str | None, comparisons: int, split: str | None
) -> None:
    """Add a reason if no p-value can be small enough for Holm's first step."""
    needed = math.ceil(2 * comparisons / (1 - result.level)) - 1
    if result.resamples < needed:
        reason = (
            f"With {comparisons + 1} models, {result.resamples} resamples are too few for a significant difference; "
            f"take at least {needed}."
        )
        _add_reason(result, None, spec, measure, reason, split)


def _cell_measure(spec: MetricSpec, measure: str) -> str | None:
    return measure if reads_uncertainty(spec) else None


def _add_reason(
    result: Comparison, method: str | None, spec: MetricSpec, measure: str | None, reason: str, split: str | None
) -> None:
    entry = {"method": method, "measure": measure, "metric": spec.label, "split": split, "reason": reason}
    result.reasons.append(entry)
