"""A scorecard of more rows than memory holds: shards are read once, one by one, and what they add to it is summed.

Means over rows and the gaps of ECE add up; ranking metrics are of counts of right and wrong rows by score
(`metrics.ScoreCounts`). What needs all rows at once is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nescio import measures
from nescio.analysis.bootstrap import scorecard_metrics
from nescio.analysis.evaluation_rows import labelled_in_distribution
from nescio.analysis.scorecard import OOD_ROWS, Scorecard, floored_note, member_count
from nescio.arrays.types import Array
from nescio.errors import BadInput, FaultyPlugin, Undefined
from nescio.measures import summary, top_k_outcomes
from nescio.metrics import ScoreCounts, ece_gaps
from nescio.predictions import Predictions
from nescio.rows import COLUMNS, Row

MEANS = ("accuracy", "nll", "brier")  # over rows: a shard adds its mean times its rows
AT_ONCE = "It needs all rows at once, and these are read in shards."
FITTED = "It is fitted on other rows, and scores of shards are of the answers alone."


@dataclass(frozen=True, eq=False)
class ShardScores:
    """What the rows of a shard add to the numbers of the whole dump; shards add up.

    sums     metric -> its mean over the rows, times their number
    gaps     metric -> (bins,) right answers minus confidence by bin of confidence
    counts   measure -> right and wrong rows by score; of out-of-distribution rows, all of them as wrong
    reasons  (measure, metric) -> why it is in none of these
    """

    n: int
    floored: int
    sums: dict[str, float]
    gaps: dict[str, Array]
    counts: dict[str, ScoreCounts]
    reasons: dict[tuple[str | None, str | None], str]
    faults: tuple[str, ...] = ()  # what outside measures did wrong

    @classmethod
    def of(cls, dump: Predictions, outside: bool = False) -> ShardScores:
        """Scores of one shard; of out-of-distribution rows, uncertainties only."""
        scores = cls(len(dump), 0, {}, {}, {}, {}) if outside else cls._of_answers(dump)
        wrong = np.ones(len(dump), bool) if outside else summary(dump).outcomes().wrong
        for name, of in _plain_measures(dump):
            try:
                scores.counts[name] = ScoreCounts.count(of(dump), wrong)
            except (Undefined, BadInput) as reason:  # one measure is lost, the others are not
                scores.reasons[name, None] = str(reason)
                if isinstance(reason, FaultyPlugin):
                    scores = replace(scores, faults=(*scores.faults, str(reason)))
        return scores

    @classmethod
    def _of_answers(cls, dump: Predictions) -> ShardScores:
        answers = summary(labelled_in_distribution(dump)).outcomes()
        scores = cls(answers.n, answers.floored, {}, {}, {}, {})
        for wanted in scorecard_metrics("predictions"):
            try:
                if wanted.metric.name in MEANS:
                    scores.sums[wanted.label] = wanted(answers) * answers.n
                elif wanted.metric.name == "ece":
                    scores.gaps[wanted.label] = ece_gaps(answers)
                elif wanted.metric.name == "top_k_ece":
                    scores.gaps[wanted.label] = ece_gaps(top_k_outcomes(dump, wanted.option("k")))
                else:
                    raise Undefined(AT_ONCE)
            except Undefined as reason:
                scores.reasons[None, wanted.label] = str(reason)
        return scores

    def __add__(self, other: ShardScores) -> ShardScores:
        return ShardScores(
            self.n + other.n,
            self.floored + other.floored,
            _added(self.sums, other.sums),
            _added(self.gaps, other.gaps),
            _added(self.counts, other.counts),
            self.reasons | other.reasons,
            (*self.faults, *other.faults),
        )

    def answers(self) -> Iterator[tuple[str, float]]:
        """(metric, value) of the answers."""
        yield from ((metric, total / self.n) for metric, total in self.sums.items())
        yield from ((metric, float(np.abs(gaps).sum() / self.n)) for metric, gaps in self.gaps.items())


def _added(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """What both have; what one shard lacks, the whole cannot have."""
    return {name: value + theirs[name] for name, value in ours.items() if name in theirs}


def _plain_measures(dump: Predictions) -> Iterator[tuple[str, Callable[[Predictions], Array]]]:
    for part in measures.registry.parts():
        if part.kind == "plain" and part.equivalent_to is None and (dump.draws != 1 or not part.needs_draws):
            yield part.name, part.compute
    for name in measures.score_names(dump):
        yield name, measures.find_measure(name, dump).compute


def scorecard_of_shards(
    shards: Iterable[Predictions],
    ood: Mapping[str, Iterable[Predictions]] | None = None,
    *,
    name: str = "",
    split: str = "test",
) -> Scorecard:
    """The scorecard of a dump that comes in shards, in the memory of one of them.

    ood  out-of-distribution shards by name; rows of `shards` that are not in-distribution are "ood_rows"
    """
    inside: ShardScores | None = None
    outside: dict[str, ShardScores] = {}
    members: int | None = None

    def add(label: str, dump: Predictions) -> None:
        scores = ShardScores.of(dump, outside=True)
        outside[label] = outside[label] + scores if label in outside else scores

    notes: list[str] = []
    for shard in shards:
        members, known = member_count(shard), shard
        notes += [note for note in shard.notes if note not in notes]
        if shard.in_distribution is not None and not shard.in_distribution.all():
            add(OOD_ROWS, shard.take(~shard.in_distribution))
            if not shard.in_distribution.any():
                continue
            known = shard.take(shard.in_distribution)
        scores = ShardScores.of(known)
        inside = scores if inside is None else inside + scores
    if inside is None:
        raise BadInput("Every row is of a class that was not in training; give this file as out-of-distribution rows.")
    for label, parts in (ood or {}).items():
        for part in parts:
            add(label, part)
    card = Scorecard(name, notes=notes)
    _fill(card, dict.fromkeys(COLUMNS) | {"calibrated": False, "members": members}, split, inside, outside)
    return card


def _fill(card: Scorecard, base: Row, split: str, inside: ShardScores, outside: Mapping[str, ShardScores]) -> None:
    """Writes rows, reasons and notes."""
    card.rows += [
        base | {"metric": metric, "value": value, "n": inside.n, "split": split} for metric, value in inside.answers()
    ]
    for (measure, metric), reason in inside.reasons.items():
        card.reasons.append({"measure": measure, "metric": metric, "split": split, "reason": reason})
    card.notes += dict.fromkeys(fault for scores in (inside, *outside.values()) for fault in scores.faults)
    for part in measures.registry.parts():
        if part.kind != "plain" and part.equivalent_to is None:
            card.reasons.append({"measure": part.name, "metric": None, "split": split, "reason": FITTED})
    off = 0.0
    for measure, counts in inside.counts.items():
        off = max(off, _rank(card, base | {"measure": measure, "split": split}, counts, "ranking"))
        for label, scores in outside.items():
            if measure in scores.counts:
                both = counts.against(scores.counts[measure])
                off = max(off, _rank(card, base | {"measure": measure, "split": label}, both, "detection"))
    if off:
        card.notes.append(
            "Scores of so many rows are distinguished by their first digits: no AUROC, AURC or AUGRC is off by more "
            f"than {off:.1g}."
        )
    if inside.floored:
        card.notes.append(floored_note(inside.floored, inside.n))


BOUNDED = ("auroc", "aurc", "augrc")  # metrics whose distance from the value of all rows is reported


def _rank(card: Scorecard, base: Row, counts: ScoreCounts, kind: str) -> float:
    """Writes the rows of one measure; returns how far they can be from those of the scores themselves."""
    order, off = counts.ranking(), 0.0
    for wanted in scorecard_metrics(kind):
        try:
            card.rows.append(base | {"metric": wanted.label, "value": wanted(order), "n": counts.n})
        except Undefined as reason:
            card.reasons.append(
                {name: base[name] for name in ("measure", "split")} | {"metric": wanted.label, "reason": str(reason)}
            )
        else:
            if wanted.metric.name in BOUNDED:
                off = max(off, counts.bound(wanted.metric.function, **wanted.options))
    return off
