"""Which model is best, how sure that is, and which models cannot be told from it: a paired bootstrap over rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio import measures as _measures
from nescio.analysis.bootstrap import AnswerPart, Asked, Part, RankPart, applicable, asked, interval, resample
from nescio.errors import BadInput, Undefined
from nescio.measures._softmax import summary
from nescio.metrics import Answers
from nescio.metrics import registry as _metrics
from nescio.predictions import Predictions, join
from nescio.rows import COLUMNS

__all__ = ["Comparison", "Interval", "add_intervals", "bootstrap", "compare", "interval"]

Array = NDArray[Any]
ROUNDING = 1e-12  # a smaller difference between two models is the order of a sum


@dataclass
class Comparison:
    """Models side by side on the same rows.

    rows         one a model and metric: the design's columns (the model is `method`), `rank` and `best`. Ranks are
                 competition ranks, 1 + the number of strictly better models, so equals share a rank. `best` is True in
                 the group that cannot be told from the best by point estimate. Both are None for a metric without a
                 better direction.
    reasons      dicts `method, measure, metric, split, reason`: what is absent, and what was left out of an interval
    differences  dicts `model, best, measure, metric, difference, low, high, p, adjusted`: model − best on the same
                 resamples, its percentile interval, the two-sided bootstrap p-value and Holm's adjustment of it over
                 the comparisons of this metric
    """

    models: tuple[str, ...]
    n: int
    resamples: int
    level: float
    seed: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    reasons: list[dict[str, Any]] = field(default_factory=list)
    differences: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Interval:
    """A percentile interval, None when the metric was undefined on more than half of the resamples, and that number."""

    low: float | None
    high: float | None
    undefined: int


def compare(
    models: Mapping[str, Predictions] | Sequence[Predictions],
    *,
    measure: str = "largest",
    metrics: Iterable[str] | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compares models on the rows that they share, by a paired bootstrap over those rows.

    A resample draws n of the n joined rows with replacement, the same for every model. A model is told from the best
    when the p-value of their difference, 2·min((1 + #{d ≤ 0}), (1 + #{d ≥ 0}))/(resamples + 1), passes Holm's
    step-down test at 1 − level over the m − 1 comparisons with the best. Efron & Tibshirani, An Introduction to the
    Bootstrap, 1993, §13.3; Davison & Hinkley, Bootstrap Methods, 1997, §4.2; Holm 1979.

    Intervals are percentiles of the resamples. Those of ECE lie a little high, since copied rows make any model look
    less calibrated.

    `models`: by name, or a sequence whose models are called "0", "1" and so on.
    `metrics`: names such as auroc, sac@0.95, accuracy@5; every one that applies unless given. Rows of classes that were
    not taught are left out.
    """
    _check(resamples, level, seed)
    models = _named(models)
    wanted, refused = _wanted(metrics)
    rows = _joined(models)
    n = len(next(iter(rows.values())))
    result = Comparison(tuple(models), n, resamples, level, seed)
    for metric in refused:
        result.reasons.append(_reason(None, metric, None, _UNREPEATABLE))

    parts: list[Part] = []
    owners: list[str] = []
    for name, predictions in models.items():
        answers = summary(predictions).answers(rows[name])
        parts.append(AnswerPart(answers, [metric for metric in wanted if not metric.ranks]))
        owners.append(name)
        ranking = [metric for metric in wanted if metric.ranks]
        if not ranking:
            continue
        try:
            u = _measures.uncertainty(measure, predictions)[rows[name]]
        except Undefined as why:
            result.reasons += [_reason(name, metric, measure, f"Model {name!r}: {why}") for metric in ranking]
            continue
        parts.append(RankPart(u, answers.wrong, ranking))
        owners.append(name)

    points = [part.point() for part in parts]
    samples = resample(parts, n, resamples, seed)
    for metric in wanted:
        held: dict[str, tuple[float, Array]] = {}
        for part, owner, point, sample in zip(parts, owners, points, samples, strict=True):
            if metric not in part.asked:
                continue
            place = part.asked.index(metric)
            value = point[place]
            if isinstance(value, Undefined):
                result.reasons.append(_reason(owner, metric, _of(metric, measure), f"Model {owner!r}: {value}"))
            else:
                held[owner] = value, sample[:, place]
        _judge(result, metric, _of(metric, measure), held)
    return result


def bootstrap(
    predictions: Predictions,
    *,
    measures: Sequence[str] = ("largest",),
    metrics: Iterable[str] | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[tuple[str | None, str], Interval]:
    """Percentile intervals of one model's metrics by (measure, metric); the measure is None for metrics of answers.

    The resamples are those of `compare`. A metric that is undefined on the rows, or a measure that the dump cannot
    give, is left out.
    """
    _check(resamples, level, seed)
    rows = _joined({"": predictions})[""]
    held = {}
    for measure in measures:
        try:
            held[measure] = _measures.uncertainty(measure, predictions)[rows]
        except Undefined:
            continue
    return _intervals(summary(predictions).answers(rows), held, _wanted(metrics)[0], resamples, level, seed)


def add_intervals(card: Any, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> None:
    """Fills low and high of a scorecard's rows about answers and their ranking, raw and calibrated.

    Rows of out-domain splits and of groups have other rows behind them and stay without an interval.
    """
    _check(resamples, level, seed)
    for version, drawn in card.drawn.items():
        if drawn.get("answers") is None:
            continue
        outside = {name for sets in drawn["out"].values() for name in sets}
        found = _intervals(drawn["answers"], drawn["u"], applicable(), resamples, level, seed)
        for row in card.rows:
            mine = bool(row["calibrated"]) == (version == "calibrated") and row["group"] is None
            if mine and row["split"] not in outside and (row["measure"], row["metric"]) in found:
                of = found[row["measure"], row["metric"]]
                row["low"], row["high"] = of.low, of.high
                if of.undefined:
                    why = {"reason": f"The interval: {_left_out(of, resamples)}"}
                    card.reasons.append({key: row[key] for key in ("measure", "metric", "split")} | why)


def _intervals(
    answers: Answers, us: Mapping[str, Array], metrics: Sequence[Asked], resamples: int, level: float, seed: int
) -> dict[tuple[str | None, str], Interval]:
    ranking = [metric for metric in metrics if metric.ranks]
    parts: list[Part] = [AnswerPart(answers, [metric for metric in metrics if not metric.ranks])]
    parts += [RankPart(u, answers.wrong, ranking) for u in us.values()]
    samples = resample(parts, answers.n, resamples, seed)
    found = {}
    for measure, part, sample in zip([None, *us], parts, samples, strict=True):
        for metric, point, values in zip(part.asked, part.point(), sample.T, strict=True):
            if not isinstance(point, Undefined):
                found[measure, metric.label] = _interval(values, level)
    return found


def _interval(values: Array, level: float) -> Interval:
    undefined = int(np.isnan(values).sum())
    low, high = (None, None) if undefined > len(values) / 2 else interval(values, level)
    return Interval(low, high, undefined)


def _left_out(of: Interval, resamples: int) -> str:
    rest = "so it has no interval" if of.low is None else "which its interval leaves out"
    return f"undefined on {of.undefined} of {resamples} resamples, {rest}."


# ---- the rows


def _joined(models: Mapping[str, Predictions]) -> dict[str, Array]:
    """The positions, in every model's own arrays, of the taught rows that all models hold, in one order."""
    light = []
    for name, predictions in models.items():
        if not predictions.judged and predictions.labels is None:
            raise BadInput(f"{_model(name)} has no labels; right and wrong answers cannot be told apart without them.")
        if not predictions.judged:
            raise BadInput(f"{_model(name)} has neither logits nor probs; there are no answers to compare.")
        facts = {"row": np.arange(len(predictions)), **_true_classes(predictions)}
        light.append(Predictions(index=predictions.index, taught=predictions.taught, groups=facts))
    shared = join(*light)
    first_name, first = next(iter(models)), shared[0]
    taught = np.ones(len(first), bool)
    for name, each in zip(models, shared, strict=True):
        if each.taught is not None:
            taught &= each.taught
        labels = each.groups.get("label"), first.groups.get("label")
        if labels[0] is None or labels[1] is None or labels[0].dtype.kind != labels[1].dtype.kind:
            continue
        differ = np.flatnonzero(labels[0] != labels[1])
        if len(differ):
            raise BadInput(
                f"{_model(name)} and {_model(first_name).lower()} have different labels in {len(differ)} shared rows, "
                f"first at index {first.index[differ[0]]}; the same index must mean the same image."
            )
    if not taught.any():
        raise BadInput("No shared row is of a class that was taught; answers to the others cannot be right or wrong.")
    return {name: each.groups["row"][taught] for name, each in zip(models, shared, strict=True)}


def _true_classes(predictions: Predictions) -> dict[str, Array]:
    """The true classes, by name where names are known: two files may number the same names differently."""
    if predictions.labels is None:
        return {}
    names = predictions.class_names
    if names is None or predictions.labels.max() >= len(names) or predictions.labels.min() < 0:
        return {"label": predictions.labels}
    return {"label": np.array(names, str)[predictions.labels]}


# ---- the judgement


def _judge(result: Comparison, metric: Asked, measure: str | None, held: Mapping[str, tuple[float, Array]]) -> None:
    """Adds the rows and the differences of one metric."""
    if not held:
        return
    sign = {"higher": 1.0, "lower": -1.0, "neither": 0.0}[metric.metric.better]
    # the first named of equal models is the best
    best = max(held, key=lambda name: sign * held[name][0])
    group = set(held)
    if sign and len(held) > 1:
        found = [_difference(result, metric, measure, name, best, held) for name in held if name != best]
        group = {best} | {each["model"] for each in _holm(found, 1 - result.level)}
        result.differences += found
        _warn_if_blunt(result, metric, measure, len(found))
    for name, (value, sample) in held.items():
        of = _interval(sample, result.level)
        if of.undefined:
            why = f"Model {name!r}: {_left_out(of, result.resamples)}"
            result.reasons.append(_reason(name, metric, measure, why))
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row.update(method=name, measure=measure, metric=metric.label, value=value, low=of.low, high=of.high, n=result.n)
        row["rank"] = 1 + sum(sign * other > sign * value for other, _ in held.values()) if sign else None
        row["best"] = name in group if sign else None
        result.rows.append(row)


def _difference(
    result: Comparison,
    metric: Asked,
    measure: str | None,
    name: str,
    best: str,
    held: Mapping[str, tuple[float, Array]],
) -> dict[str, Any]:
    value, sample = held[name]
    top, top_sample = held[best]
    paired = sample - top_sample
    paired = paired[~np.isnan(paired)]
    low = high = p = None
    if len(paired) >= result.resamples / 2:
        low, high = interval(paired, result.level)
        p = two_sided(paired)
    return {
        "model": name,
        "best": best,
        "measure": measure,
        "metric": metric.label,
        "difference": value - top,
        "low": low,
        "high": high,
        "p": p,
        "adjusted": None,
    }


def two_sided(differences: Array) -> float:
    """Chance that resampled differences lie on the other side of 0, doubled; one is added for the sample itself."""
    below, above = int((differences <= ROUNDING).sum()), int((differences >= -ROUNDING).sum())
    return min(1.0, 2 * (1 + min(below, above)) / (len(differences) + 1))


def _holm(found: list[dict[str, Any]], error: float) -> list[dict[str, Any]]:
    """Fills `adjusted` by Holm's step-down rule and returns the comparisons that do not reach significance.

    adjusted_(i) = max_{j ≤ i} min(1, (m − j + 1)·p_(j)), p sorted upwards. A comparison without a p-value cannot be
    told apart and still counts among the m.
    """
    running = 0.0
    valued = sorted((each for each in found if each["p"] is not None), key=lambda each: float(each["p"]))
    for place, each in enumerate(valued):
        running = max(running, min(1.0, (len(found) - place) * each["p"]))
        each["adjusted"] = running
    return [each for each in found if each["adjusted"] is None or each["adjusted"] > error]


def _warn_if_blunt(result: Comparison, metric: Asked, measure: str | None, comparisons: int) -> None:
    """Says so when no p-value can be small enough for Holm's first step."""
    needed = math.ceil(2 * comparisons / (1 - result.level)) - 1
    if result.resamples < needed:
        why = (
            f"With {comparisons + 1} models, {result.resamples} resamples can tell no model from the best; "
            f"take at least {needed}."
        )
        result.reasons.append(_reason(None, metric, measure, why))


# ---- small parts

_UNREPEATABLE = "It needs every class probability of every resampled row, not a summary of each; it is not resampled."


def _wanted(metrics: Iterable[str] | None) -> tuple[list[Asked], list[Asked]]:
    """(those that counts of rows can give, those that they cannot)"""
    if metrics is None:
        return applicable(), _unrepeatable()
    names = [metrics] if isinstance(metrics, str) else list(dict.fromkeys(metrics))
    found = [asked(name) for name in names]
    if not found:
        raise BadInput("No metric is asked for; leave metrics out to get all that apply.")
    for metric in found:
        if not {"answers", "ranking"} & set(metric.metric.kinds):
            known = ", ".join(each.label for each in applicable())
            raise BadInput(f"The metric {metric.label!r} is not one of answers or of their ranking; there are {known}.")
    return [metric for metric in found if metric.repeats], [metric for metric in found if not metric.repeats]


def _unrepeatable() -> list[Asked]:
    """The metrics of answers and of rankings that a scorecard shows and no resample can give."""
    judged = [each for each in _metrics.parts() if {"answers", "ranking"} & set(each.kinds)]
    return [Asked(each.name, each, {}) for each in judged if not each.prepared and "curve" not in each.kinds]


def _named(models: Any) -> dict[str, Predictions]:
    if not isinstance(models, Mapping):
        if isinstance(models, Predictions | str) or not isinstance(models, Iterable):
            raise BadInput(
                f"models is one {type(models).__name__}; give several Predictions, as a list or as a dict by name."
            )
        models = {str(place): each for place, each in enumerate(models)}
    if not models:
        raise BadInput("There is nothing to compare: give at least one model.")
    for name, each in models.items():
        if not isinstance(each, Predictions):
            raise BadInput(
                f"Model {name!r} is of type {type(each).__name__}; give Predictions (Predictions.load reads a file)."
            )
    return dict(models)


def _check(resamples: int, level: float, seed: int) -> None:
    if resamples < 1 or resamples != int(resamples):
        raise BadInput(f"resamples is {resamples}; it must be a whole number of at least 1.")
    if not 0 < level < 1:
        raise BadInput(f"level is {level}; it must lie between 0 and 1, such as 0.95.")
    if seed < 0:
        raise BadInput(f"seed is {seed}; it must be 0 or more.")


def _of(metric: Asked, measure: str) -> str | None:
    return measure if metric.ranks else None


def _model(name: str) -> str:
    return f"Model {name!r}" if name else "The model"


def _reason(method: str | None, metric: Asked, measure: str | None, why: str) -> dict[str, Any]:
    return {"method": method, "measure": measure, "metric": metric.label, "split": None, "reason": why}
