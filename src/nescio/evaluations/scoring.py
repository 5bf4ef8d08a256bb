"""Functions shared by evaluations: uncertainty scores of predictions, and ranking metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import NormalDist
from typing import Unpack

import numpy as np

from nescio import measures, metrics
from nescio.analysis import significance
from nescio.analysis.metric_specs import parse_metric
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.predictions import Predictions
from nescio.rows import Columns, RowBuilder

ACCURACIES = ("accuracy", "accuracy@5")
SCORES = ("native", "entropy", "msp", "max_logit", "energy")  # scores of logits, and the method's native score
METHOD_SCORES = "method scores"  # stands for all scores of the method in a list of scores


def compute_scores(
    predictions: Predictions, names: Iterable[str], results: RowBuilder | None = None
) -> dict[str, Array]:
    """Score → uncertainty of every row; `results` keeps the reasons for missing ones."""
    scores: dict[str, Array] = {}
    for name in dict.fromkeys(expand_scores(names, predictions)):
        try:
            scores[name] = measures.uncertainty(name, predictions)
        except (Undefined, BadInput) as reason:
            if results is not None:
                results.omit(reason, measure=name)
    return scores


def expand_scores(names: Iterable[str], predictions: Predictions) -> Iterator[str]:
    for name in names:
        yield from measures.score_names(predictions) if name == METHOD_SCORES else (name,)


def add_outcomes(
    outcomes: metrics.Outcomes,
    metric_names: Sequence[str],
    results: RowBuilder,
    intervals: bool = False,
    **columns: Unpack[Columns],
) -> None:
    """Add metrics of labels and probabilities.

    intervals  accuracies have Wilson's 95 % interval
    """
    for metric in metric_names:
        try:
            value = parse_metric(metric)(outcomes)
        except Undefined as reason:
            results.omit(reason, metric=metric, **columns)
            continue
        cell: Columns = {**columns}
        if intervals and metric in ACCURACIES:
            cell["low"], cell["high"] = share_interval(value, outcomes.n)
        results.add(metric, value, outcomes.n, **cell)


def share_interval(share: float, rows: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of rows."""
    z = NormalDist().inv_cdf(0.975)
    middle = (share + z * z / (2 * rows)) / (1 + z * z / rows)
    reach = z / (1 + z * z / rows) * math.sqrt(share * (1 - share) / rows + (z / (2 * rows)) ** 2)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def rank_rows(
    scores: Mapping[str, Array],
    positive: Array,
    metric_names: Sequence[str],
    results: RowBuilder,
    intervals: bool = False,
    **columns: Unpack[Columns],
) -> None:
    """Ranking metrics of every score: positive rows (wrong predictions, other classes) against the others.

    intervals  AUROC has the 95 % interval of DeLong
    """
    for name, values in scores.items():
        columns["measure"] = name
        try:
            ranking = metrics.Ranking(values, positive)
        except BadInput as reason:
            results.omit(reason, **columns)
            continue
        for metric in metric_names:
            limits: Columns = {}
            if intervals and metric == "auroc" and positive.any() and not positive.all():
                components = significance.delong_components(values[~positive], {"": values[positive]}, {"": 1.0})
                limits["low"], limits["high"] = significance.area_interval([components])
            cell: Columns = {**columns, **limits}
            results.attempt(metric, partial(parse_metric(metric), ranking), ranking.n, **cell)


def rank_sets(
    in_scores: Mapping[str, Array],
    ood_scores: Mapping[str, Array],
    metric_names: Sequence[str],
    results: RowBuilder,
    **columns: Unpack[Columns],
) -> None:
    """Ranking metrics of every score: the rows of one set against those of another."""
    for name in (name for name in in_scores if name in ood_scores):
        values = np.concatenate([in_scores[name], ood_scores[name]])
        positive = np.repeat([False, True], [len(in_scores[name]), len(ood_scores[name])])
        rank_rows({name: values}, positive, metric_names, results, **columns)
