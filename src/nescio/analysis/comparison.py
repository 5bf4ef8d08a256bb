"""Which model is best, how sure that is, and which models cannot be told from it: a paired bootstrap over rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nescio import measures as _measures
from nescio.analysis.bootstrap import (
    ArraysResampler,
    Estimate,
    MetricSpec,
    MixtureResampler,
    RankingResampler,
    Resampler,
    ShareResampler,
    SummaryResampler,
    applicable_metrics,
    applies_to_one_model,
    check_resampling,
    estimates,
    interval,
    parse_metric,
    resample,
    scorecard_metrics,
)
from nescio.analysis.notebook import Presented
from nescio.analysis.scorecard import Scorecard, crop_pairs, probs_resampler, retrieval_resampler
from nescio.analysis.significance import bootstrap_p_value, holm_adjusted, not_rejected
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures import summary
from nescio.metrics import DEFAULT_OOD_SHARE, Mixture, retrieved
from nescio.predictions import Predictions, join
from nescio.rows import COLUMNS

__all__ = ["Comparison", "Interval", "add_intervals", "bootstrap", "compare", "interval"]

CELL = ("calibrated", "subgroup", "split", "measure", "metric")  # columns that tell rows of one scorecard apart
OUTSIDE = {"detection", "mixture"}  # kinds of metrics of in-distribution and out-of-distribution rows together


@dataclass(repr=False)
class Comparison(Presented):
    """Models side by side on the same rows.

    rows         one per model and metric: the design's columns (the model is `method`), `rank` and `best`. Ranks are
                 competition ranks, 1 + the number of strictly better models, so equals share a rank. `best` is True in
                 the group that cannot be told from the best by point estimate. Both are None for a metric without a
                 better direction. `split` names the out-of-distribution set; None: in-distribution rows alone.
    reasons      dicts `method, measure, metric, split, reason`: what is absent, and what was left out of an interval
    differences  dicts `model, best, measure, metric, split, difference, low, high, p, adjusted`: model − best on the
                 same resamples, its percentile interval, the two-sided bootstrap p-value and Holm's adjustment of it
                 over the comparisons of this metric
    ood_share    of out-of-distribution rows, in the mixtures that AURC and AUGRC under them are of
    """

    models: tuple[str, ...]
    n: int
    resamples: int
    level: float
    seed: int
    ood_share: float = DEFAULT_OOD_SHARE
    rows: list[dict[str, Any]] = field(default_factory=list)
    reasons: list[dict[str, Any]] = field(default_factory=list)
    differences: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # how the models' predictions were read

    def __repr__(self) -> str:
        lines = [f"Comparison of {', '.join(self.models)} on {self.n} rows, {self.resamples} resamples"]
        for metric in ("accuracy", "nll", "ece", "auroc"):
            rows = [row for row in self.rows if row["metric"] == metric and row["split"] is None]
            best = [f"{row['method']} {row['value']:.4f}" for row in rows if row["best"]]
            others = [f"{row['method']} {row['value']:.4f}" for row in rows if not row["best"]]
            lines += [f"{metric}: {' = '.join(best)}{' | ' if others else ''}{', '.join(others)}"] if rows else []
        return "\n  ".join(lines)


@dataclass(frozen=True)
class Interval:
    """A percentile interval, None when the metric was undefined on more than half of the resamples, and that number."""

    low: float | None
    high: float | None
    undefined: int


def compare(
    models: Mapping[str, Predictions] | Sequence[Predictions],
    *,
    measure: str = "msp",
    metrics: Iterable[str] | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    ood: Mapping[str, Mapping[str, Predictions] | Sequence[Predictions]] | None = None,
    ood_share: float = DEFAULT_OOD_SHARE,
) -> Comparison:
    """Compares models on the rows that they share, by a paired bootstrap over those rows.

    A resample draws n of the n joined rows with replacement, the same for every model. A model is told from the best
    when the p-value of their difference, 2·min((1 + #{d ≤ 0}), (1 + #{d ≥ 0}))/(resamples + 1), passes Holm's
    step-down test at 1 − level over the m − 1 comparisons with the best. Efron & Tibshirani, An Introduction to the
    Bootstrap, 1993, §13.3; Davison & Hinkley, Bootstrap Methods, 1997, §4.2; Holm 1979.

    Intervals are percentiles of the resamples. ECE, MCB, DSC and their kin are higher on few rows than in the
    population: their intervals, of the population's value, reach as far down as that bias may (see `estimates`).

    `models`: by name, or a sequence whose models are called "0", "1" and so on.
    `metrics`: names such as auroc, sac@0.95, accuracy@5; every one that applies unless given.
    Rows that are not in-distribution are left out.
    `ood`: of every out-of-distribution set, by name, the predictions of each model, as `models` has them. They are
    joined and drawn by themselves, the same rows for every model. `ood_share`: see Comparison.
    """
    check_resampling(resamples, level, seed)
    models = _named(models)
    measure = _measures.canonical(measure, next(iter(models.values())))
    outside = {name: _outside(name, dumps, models) for name, dumps in (ood or {}).items()}
    every = _wanted(metrics, bool(outside))
    wanted = [metric for metric in every if applies_to_one_model(metric.metric)]
    rows = shared_rows(models)
    n = len(next(iter(rows.values())))
    result = Comparison(tuple(models), n, resamples, level, seed, ood_share)
    result.notes += [f"{name}: {note}" for name, dump in models.items() for note in dump.notes]

    own = {name: _parts(dump, rows[name], measure, wanted, resamples) for name, dump in models.items()}
    _compare_parts(result, own, n, wanted, measure)
    both = [metric for metric in every if OUTSIDE & set(metric.metric.kinds)]
    for split, dumps in outside.items():
        parts = {
            name: _outside_parts(dump, rows[name], dumps[name], measure, both, ood_share)
            for name, dump in models.items()
        }
        _compare_parts(result, parts, (n, len(next(iter(dumps.values())))), both, measure, split)
    return result


def _compare_parts(
    result: Comparison,
    models: Mapping[str, Iterable[Resampler | Absent]],
    n: int | tuple[int, int],
    wanted: Sequence[MetricSpec],
    measure: str,
    split: str | None = None,
) -> None:
    """Adds what the parts of the models say of these metrics, and why some say nothing."""
    parts: list[Resampler] = []
    owners: list[str] = []
    absent: dict[tuple[str, str], list[str]] = {}  # (metric, reason) → models
    for name, own in models.items():
        for part in own:
            if isinstance(part, Absent):
                for metric in part.metrics:
                    absent.setdefault((metric.label, part.reason), []).append(name)
            elif part.metrics:
                parts.append(part)
                owners.append(name)

    for (label, why), names in absent.items():
        metric = parse_metric(label)
        if len(names) == len(models) > 1:  # said once
            result.reasons.append(_reason(None, metric, _of(metric, measure), why, split))
        else:
            cell = metric, _of(metric, measure)
            result.reasons += [_reason(name, *cell, f"Model {name!r}: {why}", split) for name in names]

    samples = resample(parts, n, result.resamples, result.seed)
    found = [estimates(*each, result.level, result.seed) for each in zip(parts, samples, strict=True)]
    for metric in wanted:
        numbers: dict[str, Estimate] = {}
        for part, owner, known in zip(parts, owners, found, strict=True):
            estimate = next((e for m, e in zip(part.metrics, known, strict=True) if m.label == metric.label), None)
            if isinstance(estimate, Undefined):
                why = f"Model {owner!r}: {estimate}"
                result.reasons.append(_reason(owner, metric, _of(metric, measure), why, split))
            elif estimate is not None:
                numbers[owner] = estimate
        add_verdict(result, metric, _of(metric, measure), numbers, split, int(np.sum(n)))


@dataclass(frozen=True)
class Absent:
    """Metrics that a model cannot be judged by, and why."""

    metrics: Sequence[MetricSpec]
    reason: str


def _parts(
    predictions: Predictions, rows: Array, measure: str, wanted: Sequence[MetricSpec], resamples: int
) -> Iterator[Resampler | Absent]:
    """What the wanted metrics of one model are read off, at these rows."""
    answers = summary(predictions).outcomes(rows)
    own = [metric for metric in wanted if "predictions" in metric.metric.kinds]
    whole = [metric for metric in own if not metric.metric.prepared]
    yield SummaryResampler(answers, [metric for metric in own if metric.metric.prepared])
    if whole and predictions.logits is None:
        yield Absent(whole, "There are no probabilities of all classes in this dump.")
    elif whole:
        try:
            yield probs_resampler(predictions, rows, whole, resamples)
        except Undefined as why:
            yield Absent(whole, str(why))
    yield from _measured_parts(predictions, rows, measure, answers.wrong, [m for m in wanted if m not in own])


def _outside_parts(
    predictions: Predictions,
    rows: Array,
    outside: Predictions,
    measure: str,
    wanted: Sequence[MetricSpec],
    share: float,
) -> Iterator[Resampler | Absent]:
    """What the wanted metrics of one model and one out-of-distribution set are read off."""
    try:
        u, u_out = _measures.uncertainty(measure, predictions)[rows], _measures.uncertainty(measure, outside)
    except Undefined as why:
        yield Absent(wanted, str(why))
        return
    flags = np.repeat([False, True], [len(u), len(u_out)])
    mixture = Mixture(u, summary(predictions).outcomes(rows).wrong, u_out, share)
    yield RankingResampler(np.concatenate([u, u_out]), flags, [m for m in wanted if "detection" in m.metric.kinds])
    yield MixtureResampler(mixture, [m for m in wanted if "mixture" in m.metric.kinds])


def _measured_parts(
    predictions: Predictions, rows: Array, measure: str, wrong: Array, wanted: Sequence[MetricSpec]
) -> Iterator[Resampler | Absent]:
    """The parts that need a measure, or embeddings."""

    def of(kind: str, prepared: bool = False) -> list[MetricSpec]:
        return [m for m in wanted if kind in m.metric.kinds and m.metric.prepared == prepared]

    hits, lacking = _neighbours(predictions) if of("retrieval") or of("retrieval-ranking") else (None, "")
    if hits is None:
        yield Absent([*of("retrieval"), *of("retrieval-ranking")], lacking)
    else:
        yield from (ShareResampler(hits[rows], metric) for metric in of("retrieval"))
    try:
        u = _measures.uncertainty(measure, predictions)
    except Undefined as why:
        yield Absent([metric for metric in wanted if metric.by_measure], str(why))
        return
    yield RankingResampler(u[rows], wrong, of("ranking", prepared=True))
    yield ArraysResampler((u[rows], wrong), of("ranking"))
    if predictions.annotations is None:
        yield Absent(of("votes"), "There are no annotations (human votes) in this dump.")
    else:
        yield ArraysResampler((u[rows], predictions.annotations[rows]), of("votes"))
    if hits is not None:
        yield from (retrieval_resampler(u[rows], hits[rows]) for _ in of("retrieval-ranking"))
    if of("pairs"):
        yield from _crop_part(predictions, u, rows, of("pairs"))


def _crop_part(
    predictions: Predictions, u: Array, rows: Array, metrics: Sequence[MetricSpec]
) -> Iterator[Resampler | Absent]:
    pairs = crop_pairs(predictions)
    if pairs is None:
        yield Absent(metrics, "There is no group twin, which names the whole image of a crop, in this dump.")
        return
    whole, crop = pairs
    flags = np.full(len(u), np.nan)
    flags[crop] = u[crop] > u[whole]
    yield from (ShareResampler(flags[rows], metric) for metric in metrics)


def _neighbours(predictions: Predictions) -> tuple[Array | None, str]:
    """(which rows find their own class, why that is not known)"""
    if predictions.embeddings is None or predictions.labels is None:
        return None, f"There are no {'embeddings' if predictions.embeddings is None else 'labels'} in this dump."
    try:
        return retrieved(predictions.embeddings, predictions.labels), ""
    except (Undefined, BadInput) as error:
        return None, str(error)


def bootstrap(
    predictions: Predictions,
    *,
    measures: Sequence[str] = ("msp",),
    metrics: Iterable[str] | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[tuple[str | None, str], Interval]:
    """Intervals of one model's metrics by (measure, metric); the measure is None for metrics of answers.

    The resamples are those of `compare`. A metric that is undefined on the rows, or a measure that the dump cannot
    give, is left out.
    """
    check_resampling(resamples, level, seed)
    rows, wanted = shared_rows({"": predictions})[""], _wanted(metrics)
    owners: list[str | None] = []
    parts: list[Resampler] = []
    for measure in measures:
        for part in _parts(predictions, rows, measure, wanted, resamples):
            if isinstance(part, Absent) or not part.metrics:
                continue
            owner = measure if part.metrics[0].by_measure else None
            if owner is not None or measure == measures[0]:  # metrics of the answers are the same for all measures
                owners.append(owner)
                parts.append(part)
    intervals = _intervals(parts, len(rows), resamples, level, seed)
    return {(owner, label): of for owner, own in zip(owners, intervals, strict=True) for label, of in own.items()}


def add_intervals(card: Scorecard, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> None:
    """Fills low and high of a scorecard's rows: raw and calibrated, of groups and out-of-distribution sets too.

    In-distribution and out-of-distribution rows are drawn apart. What was fitted (calibration, densities, thresholds,
    neighbours) stays as it is: intervals are about the rows that are judged.
    """
    check_resampling(resamples, level, seed)
    cells = {tuple(row[key] for key in CELL): row for row in card.rows}
    for sizes in dict.fromkeys(source.sizes for source in card.sources):
        sources, parts = [], []
        for source in card.sources:
            if source.sizes == sizes:
                try:
                    parts.append(source.part(resamples))
                    sources.append(source)
                except Undefined as reason:
                    card.reasons.append({**source.where, "metric": None, "reason": f"The interval: {reason}"})
        intervals = _intervals(parts, sizes if len(sizes) > 1 else sizes[0], resamples, level, seed)
        for source, own in zip(sources, intervals, strict=True):
            for label, of in own.items():
                if row := cells.get(tuple((source.cell | {"metric": label})[key] for key in CELL)):
                    _fill(card, row, of, resamples)


def _fill(card: Scorecard, row: dict[str, Any], of: Interval, resamples: int) -> None:
    row["low"], row["high"] = of.low, of.high
    if of.undefined:
        reason = {"reason": f"The interval: {_left_out(of, resamples)}"}
        card.reasons.append({key: row[key] for key in ("measure", "metric", "split")} | reason)


def _intervals(
    parts: Sequence[Resampler], n: int | Sequence[int], resamples: int, level: float, seed: int
) -> list[dict[str, Interval]]:
    """The interval of every metric of each part that is defined on the rows themselves."""
    return [
        {
            metric.label: _interval(estimate, level)
            for metric, estimate in zip(part.metrics, estimates(part, sample, level, seed), strict=True)
            if isinstance(estimate, Estimate)
        }
        for part, sample in zip(parts, resample(parts, n, resamples, seed), strict=True)
    ]


def _interval(estimate: Estimate, level: float) -> Interval:
    undefined = int(np.isnan(estimate.values).sum())
    low, high = (None, None) if undefined > len(estimate.values) / 2 else estimate.limits(level)
    return Interval(low, high, undefined)


def _left_out(of: Interval, resamples: int) -> str:
    rest = "so it has no interval" if of.low is None else "which its interval leaves out"
    return f"undefined on {of.undefined} of {resamples} resamples, {rest}."


# ---- the rows


def shared_rows(models: Mapping[str, Predictions]) -> dict[str, Array]:
    """The positions, in every model's own arrays, of the in-distribution rows that all models hold, in one order."""
    light = []
    for name, predictions in models.items():
        if not predictions.has_outcomes and predictions.labels is None:
            raise BadInput(f"{_model(name)} has no labels; right and wrong answers cannot be told apart without them.")
        if not predictions.has_outcomes:
            raise BadInput(f"{_model(name)} has neither logits nor probs; there are no answers to compare.")
        facts = {"row": np.arange(len(predictions)), **_true_classes(predictions)}
        light.append(Predictions(index=predictions.index, in_distribution=predictions.in_distribution, groups=facts))
    shared = join(*light)
    first_name, first = next(iter(models)), shared[0]
    in_distribution = np.ones(len(first), bool)
    for name, dump in zip(models, shared, strict=True):
        if dump.in_distribution is not None:
            in_distribution &= dump.in_distribution
        labels = dump.groups.get("label"), first.groups.get("label")
        if labels[0] is None or labels[1] is None or labels[0].dtype.kind != labels[1].dtype.kind:
            continue
        differ = np.flatnonzero(labels[0] != labels[1])
        if len(differ):
            raise BadInput(
                f"{_model(name)} and {_model(first_name).lower()} have different labels in {len(differ)} shared rows, "
                f"first at index {first.index[differ[0]]}; the same index must mean the same image."
            )
    if not in_distribution.any():
        raise BadInput("No shared row is in-distribution; answers to the others cannot be right or wrong.")
    return {name: dump.groups["row"][in_distribution] for name, dump in zip(models, shared, strict=True)}


def _outside(name: str, dumps: Any, models: Mapping[str, Predictions]) -> dict[str, Predictions]:
    """The predictions of every model on one out-of-distribution set, on the rows that all of them hold."""
    given = dict(zip(models, dumps, strict=False)) if isinstance(dumps, Sequence) else dict(dumps)
    if given.keys() != models.keys() or len(dumps) != len(models):
        raise BadInput(f"The set {name!r} has {len(dumps)} dumps for {len(models)} models: give one of each model.")
    return dict(zip(models, join(*(given[model] for model in models)), strict=True))


def _true_classes(predictions: Predictions) -> dict[str, Array]:
    """The true classes, by name where names are known: two files may number the same names differently."""
    if predictions.labels is None:
        return {}
    names = predictions.class_names
    if names is None or predictions.labels.max() >= len(names) or predictions.labels.min() < 0:
        return {"label": predictions.labels}
    return {"label": np.array(names, str)[predictions.labels]}


# ---- the judgement


def add_verdict(
    result: Comparison,
    metric: MetricSpec,
    measure: str | None,
    numbers: Mapping[str, Estimate],
    split: str | None = None,
    n: int | None = None,
) -> None:
    """Adds the rows and the differences of one metric, on the shared rows or on n rows of a split."""
    if not numbers:
        return
    sign = {"higher": 1.0, "lower": -1.0, "neither": 0.0}[metric.metric.better]
    # the first named of equal models is the best
    best = max(numbers, key=lambda name: sign * numbers[name].value)
    group = set(numbers)
    if sign and len(numbers) > 1:
        cell = {"measure": measure, "metric": metric.label, "split": split}
        differences = [_difference(result, cell, name, best, numbers) for name in numbers if name != best]
        adjusted = holm_adjusted({difference["model"]: difference["p"] for difference in differences})
        group = {best, *not_rejected(adjusted, 1 - result.level)}
        result.differences += [difference | {"adjusted": adjusted[difference["model"]]} for difference in differences]
        _warn_if_blunt(result, metric, measure, len(differences), split)
    for name, estimate in numbers.items():
        value, of = estimate.value, _interval(estimate, result.level)
        if of.undefined:
            why = f"Model {name!r}: {_left_out(of, result.resamples)}"
            result.reasons.append(_reason(name, metric, measure, why, split))
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row.update(method=name, split=split, measure=measure, metric=metric.label, value=value, n=n or result.n)
        row.update(low=of.low, high=of.high)
        if "mixture" in metric.metric.kinds:
            row.update(ood_share=result.ood_share)
        row["rank"] = 1 + sum(sign * other.value > sign * value for other in numbers.values()) if sign else None
        row["best"] = name in group if sign else None
        result.rows.append(row)


def _difference(
    result: Comparison,
    cell: Mapping[str, str | None],
    name: str,
    best: str,
    numbers: Mapping[str, Estimate],
) -> dict[str, Any]:
    lows, highs = numbers[name].less(numbers[best])
    low = high = p = None
    if len(lows) >= result.resamples / 2:
        low, high = interval(lows, result.level)[0], interval(highs, result.level)[1]
        p = bootstrap_p_value(lows, highs)
    return {
        "model": name,
        "best": best,
        **cell,
        "difference": numbers[name].value - numbers[best].value,
        "low": low,
        "high": high,
        "p": p,
        "adjusted": None,
    }


def _warn_if_blunt(
    result: Comparison, metric: MetricSpec, measure: str | None, comparisons: int, split: str | None
) -> None:
    """Says so when no p-value can be small enough for Holm's first step."""
    needed = math.ceil(2 * comparisons / (1 - result.level)) - 1
    if result.resamples < needed:
        why = (
            f"With {comparisons + 1} models, {result.resamples} resamples can tell no model from the best; "
            f"take at least {needed}."
        )
        result.reasons.append(_reason(None, metric, measure, why, split))


# ---- small parts


def _wanted(metrics: Iterable[str] | None, outside: bool = False) -> list[MetricSpec]:
    """The metrics of these names, or all that a scorecard shows of a model's own rows, and of those outside."""
    known = applicable_metrics() + (scorecard_metrics("mixture") if outside else [])
    if metrics is None:
        return known
    names = [metrics] if isinstance(metrics, str) else list(dict.fromkeys(metrics))
    if not names:
        raise BadInput("No metric is named; omit metrics to get all that apply.")
    wanted = [parse_metric(name) for name in names]
    for metric in wanted:
        if not applies_to_one_model(metric.metric) and not (outside and "mixture" in metric.metric.kinds):
            why = (
                "needs out-of-distribution rows"
                if "mixture" in metric.metric.kinds
                else "is not one of a model's own rows"
            )
            names = [other.label for other in known]
            raise BadInput(f"The metric {metric.label!r} {why}; there are {', '.join(names)}.")
    return wanted


def _named(models: Any) -> dict[str, Predictions]:
    if not isinstance(models, Mapping):
        if isinstance(models, Predictions | str) or not isinstance(models, Iterable):
            raise BadInput(
                f"models is one {type(models).__name__}; give several Predictions, as a list or as a dict by name."
            )
        models = {str(place): predictions for place, predictions in enumerate(models)}
    if not models:
        raise BadInput("There is nothing to compare: give at least one model.")
    for name, model in models.items():
        if not isinstance(model, Predictions):
            raise BadInput(
                f"Model {name!r} is of type {type(model).__name__}; give Predictions (Predictions.load reads a file)."
            )
    return dict(models)


def _of(metric: MetricSpec, measure: str) -> str | None:
    return measure if metric.by_measure else None


def _model(name: str) -> str:
    return f"Model {name!r}" if name else "The model"


def _reason(
    method: str | None, metric: MetricSpec, measure: str | None, why: str, split: str | None = None
) -> dict[str, Any]:
    return {"method": method, "measure": measure, "metric": metric.label, "split": split, "reason": why}
