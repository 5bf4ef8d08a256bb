"""Scorecard of more rows than fit into memory: shards are read one by one, and their contributions are summed.

Means over rows and the gaps of ECE add up. Ranking metrics are computed from counts of correct and wrong rows by score
(`metrics.ScoreCounts`). Metrics that need all rows at once are omitted, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from nescio import measures, metrics
from nescio.analysis.evaluation_rows import labelled_in_distribution
from nescio.analysis.measure_scores import Score
from nescio.analysis.metric_kinds import KINDS
from nescio.analysis.metric_specs import MetricSpec
from nescio.analysis.results import Scorecard
from nescio.analysis.scorecard import OOD_ROWS, floored_note, member_count
from nescio.arrays.types import Array
from nescio.errors import BadInput, FaultyPlugin, Undefined
from nescio.measures import summary, top_k_outcomes
from nescio.metrics import Outcomes, ScoreCounts
from nescio.predictions import Predictions
from nescio.rows import COLUMNS, Row

ALL_ROWS = "The metric needs all rows at once, and the rows are read in shards."
FITTED = "The measure is fitted on other rows; scorecards of shards contain measures of the predictions alone."
A = TypeVar("A", float, Array, ScoreCounts)


@dataclass(frozen=True, eq=False)
class ShardScores:
    """Contributions of one shard to the metrics of all rows; add them with +.

    sums     metric → its mean over the rows, times their number
    gaps     metric → (bins,) sum of correct − confidence in every bin of confidence
    counts   measure → counts of correct and wrong rows by score; OOD rows count as wrong
    reasons  (measure, metric) → reason why it is missing
    faults   errors of plug-in measures
    """

    n: int
    floored: int
    sums: dict[str, float]
    gaps: dict[str, Array]
    counts: dict[str, ScoreCounts]
    reasons: dict[tuple[str | None, str | None], str]
    faults: tuple[str, ...] = ()

    @classmethod
    def from_predictions(cls, rows: Predictions, ood: bool = False) -> ShardScores:
        """Contributions of one shard; of OOD rows, uncertainties only."""
        scores = cls(len(rows), 0, {}, {}, {}, {}) if ood else cls._from_outcomes(rows)
        wrong = np.ones(len(rows), bool) if ood else summary(rows).outcomes().wrong
        for name, score in _plain_measures(rows):
            try:
                scores.counts[name] = ScoreCounts.count(score(rows), wrong)
            except (Undefined, BadInput) as reason:  # other measures are unaffected
                scores.reasons[name, None] = str(reason)
                if isinstance(reason, FaultyPlugin):
                    scores = replace(scores, faults=(*scores.faults, str(reason)))
        return scores

    @classmethod
    def _from_outcomes(cls, rows: Predictions) -> ShardScores:
        outcomes = summary(labelled_in_distribution(rows)).outcomes()
        scores = cls(outcomes.n, outcomes.floored, {}, {}, {}, {})
        for spec in KINDS["predictions"].metrics():
            try:
                if spec.metric.row_values is not None:
                    scores.sums[spec.label] = spec(outcomes) * outcomes.n
                else:
                    scores.gaps[spec.label] = _bin_gaps(spec, rows, outcomes)
            except Undefined as reason:
                scores.reasons[None, spec.label] = str(reason)
        return scores

    def __add__(self, other: ShardScores) -> ShardScores:
        return ShardScores(
            self.n + other.n,
            self.floored + other.floored,
            _sum(self.sums, other.sums),
            _sum(self.gaps, other.gaps),
            _sum(self.counts, other.counts),
            self.reasons | other.reasons,
            (*self.faults, *other.faults),
        )

    def values(self) -> Iterator[tuple[str, float]]:
        """(metric, value) of the metrics of predictions."""
        yield from ((metric, total / self.n) for metric, total in self.sums.items())
        yield from ((metric, float(np.abs(gaps).sum() / self.n)) for metric, gaps in self.gaps.items())


def _bin_gaps(spec: MetricSpec, rows: Predictions, outcomes: Outcomes) -> Array:
    """(bins,) sum of correct − confidence in every bin; Undefined for metrics that need all rows at once."""
    metric, options, of_top = spec.metric, spec.options, spec.metric.of_top
    if of_top is not None:  # a metric that treats the k most probable classes as one
        metric, options = next(entry for entry in metrics.registry.parts() if entry.function is of_top), {}
    if metric.row_bins is None:
        raise Undefined(ALL_ROWS)
    if of_top is not None:
        outcomes = top_k_outcomes(rows, int(spec.option("k")))
    metric.function(outcomes, **options)  # raises Undefined without confidences
    bins = metric.row_bins(outcomes, **options)
    if bins is None:
        raise Undefined(ALL_ROWS)
    return np.bincount(bins[0], outcomes.correct - outcomes.confidence, bins[1])


def _sum(first: Mapping[str, A], second: Mapping[str, A]) -> dict[str, A]:
    """Sums of the metrics of both shards; a metric that one shard lacks is omitted."""
    return {name: value + second[name] for name, value in first.items() if name in second}


def _plain_measures(rows: Predictions) -> Iterator[tuple[str, Score]]:
    for measure in measures.registry.parts():
        if measure.kind == "plain" and measure.equivalent_to is None and (rows.draws != 1 or not measure.needs_draws):
            yield measure.name, measure.compute
    for name in measures.score_names(rows):
        yield name, measures.find_measure(name, rows).compute


def scorecard_of_shards(
    shards: Iterable[Predictions],
    ood: Mapping[str, Iterable[Predictions]] | None = None,
    *,
    name: str = "",
    split: str = "test",
) -> Scorecard:
    """Scorecard of predictions in shards, with only one shard in memory.

    ood  OOD shards by name; rows of `shards` that are not in-distribution are "ood_rows"
    """
    total: ShardScores | None = None
    ood_sets: dict[str, ShardScores] = {}
    members: int | None = None

    def add_ood(label: str, rows: Predictions) -> None:
        scores = ShardScores.from_predictions(rows, ood=True)
        ood_sets[label] = ood_sets[label] + scores if label in ood_sets else scores

    notes: list[str] = []
    for shard in shards:
        members, in_distribution = member_count(shard), shard
        notes += [note for note in shard.notes if note not in notes]
        if shard.in_distribution is not None and not shard.in_distribution.all():
            add_ood(OOD_ROWS, shard.take(~shard.in_distribution))
            if not shard.in_distribution.any():
                continue
            in_distribution = shard.take(shard.in_distribution)
        scores = ShardScores.from_predictions(in_distribution)
        total = scores if total is None else total + scores
    if total is None:
        raise BadInput("Every row is out-of-distribution; give these predictions as ood.")
    for label, ood_shards in (ood or {}).items():
        for shard in ood_shards:
            add_ood(label, shard)
    card = Scorecard(name, notes=notes)
    _add_rows(card, dict.fromkeys(COLUMNS) | {"calibrated": False, "members": members}, split, total, ood_sets)
    return card


def _add_rows(
    card: Scorecard, columns: Row, split: str, total: ShardScores, ood_sets: Mapping[str, ShardScores]
) -> None:
    """Add rows, reasons and notes."""
    card.rows += [
        columns | {"metric": metric, "value": value, "n": total.n, "split": split} for metric, value in total.values()
    ]
    for (name, metric), reason in total.reasons.items():
        card.reasons.append({"measure": name, "metric": metric, "split": split, "reason": reason})
    card.notes += dict.fromkeys(fault for scores in (total, *ood_sets.values()) for fault in scores.faults)
    for measure in measures.registry.parts():
        if measure.kind != "plain" and measure.equivalent_to is None:
            card.reasons.append({"measure": measure.name, "metric": None, "split": split, "reason": FITTED})
    error = 0.0
    for name, counts in total.counts.items():
        error = max(error, _add_ranking(card, columns | {"measure": name, "split": split}, counts, "ranking"))
        for label, scores in ood_sets.items():
            if name in scores.counts:
                ood_counts = counts.against(scores.counts[name])
                error = max(
                    error, _add_ranking(card, columns | {"measure": name, "split": label}, ood_counts, "detection")
                )
    if error:
        card.notes.append(
            f"Scores are rounded to their leading digits: AUROC, AURC and AUGRC are exact to {error:.1g}."
        )
    if total.floored:
        card.notes.append(floored_note(total.floored, total.n))


def _add_ranking(card: Scorecard, columns: Row, counts: ScoreCounts, kind: str) -> float:
    """Add the rows of one measure; return the largest rounding error of a bounded metric."""
    ranking, error = counts.ranking(), 0.0
    for spec in KINDS[kind].metrics():
        try:
            card.rows.append(columns | {"metric": spec.label, "value": spec(ranking), "n": counts.n})
        except Undefined as reason:
            cell = {"measure": columns["measure"], "split": columns["split"]}
            card.reasons.append(cell | {"metric": spec.label, "reason": str(reason)})
        else:
            if spec.metric.bounded:
                error = max(error, counts.bound(spec.metric.function, **spec.options))
    return error
