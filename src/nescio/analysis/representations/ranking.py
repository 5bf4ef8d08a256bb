"""Which representation to trust: candidates, each some sibling networks, scored on the same unlabelled rows and ranked.

A candidate is the embeddings of its members: of test rows, and of references, which lie apart or are a part of the
test rows. Siblings are networks of one algorithm and other seeds; where there are two or more, neighbourhood
consistency (NC) says how far they agree about a row. Every number is a mean over rows, so that one paired bootstrap
judges all of them.
Source: Park, Wang, Ardeshir and Azizan 2024, §4.3 (ranking, Table 3) and §4.4 (why a lone model needs siblings).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from nescio.analysis.bootstrap import Estimate, check_resampling, draw_counts, interval
from nescio.analysis.comparison import add_verdict
from nescio.analysis.metric_specs import MetricSpec
from nescio.analysis.representations.candidates import (
    Candidate,
    EvaluationRows,
    common_member_count,
    evaluation_rows,
    layer_warnings,
)
from nescio.analysis.representations.downstream import LOSSES, DownstreamLosses, concat_losses, downstream_losses
from nescio.analysis.results import Comparison
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.identity import Validated
from nescio.measures import ComponentChoice, choose_components
from nescio.measures.siblings import SCORES, Quantity, SiblingScores, Similarity, kind, rankings_agree, sibling_scores
from nescio.metrics import Metric, kendall
from nescio.options import option
from nescio.predictions import Predictions
from nescio.progress import track

K = 100  # neighbours of NC …
SHARE = 20  # … or one for so many references, where there are fewer than K · SHARE
RESAMPLES = 1000
COMPONENTS = (1, 2, 5, 10, 20, 50)  # of LL's mixture, among which held-out likelihood chooses
SAME = 1e-12  # a distance that is rounding
QUANTITIES: dict[str, Quantity] = {
    **SCORES,
    "first": Quantity("first", "higher", "share of the rows on which it has the highest NC, ties shared"),
    "place": Quantity(
        "mean place", "lower", "its place by NC, row by row, on average; ties get the mean of their places"
    ),
    **LOSSES,
}
GROUP = "scores"  # heading of options


@dataclass(frozen=True)
class Scoring(Validated):
    """How rows are scored; the options of `nescio reliability` and `nescio rank`."""

    split: int | None = option(
        None, name="split-references", unset="two halves, each scored against the other", group="references"
    )
    k: int | None = option(None, unset="100, or a twentieth of few references", group=GROUP)
    k_dist: int = option(1, group=GROUP)
    distance: Literal["cosine", "euclidean"] = option("cosine", group=GROUP)
    similarity: Similarity = option("jaccard", group=GROUP)
    components: tuple[int, ...] = option(COMPONENTS, group=GROUP)
    seed: int = option(0, group=GROUP)

    def check(self) -> None:
        if not self.components or min(self.components) < (0 if len(self.components) == 1 else 1):
            raise BadInput("components are whole numbers from 1 on, or 0 alone for no LL.")
        for name, least in (("k", 1), ("k_dist", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise BadInput(f"{name} is {value}; it must be a whole number from {least} on.")


def default_k(references: int) -> int:
    """100 as in the paper, or a twentieth of the references where there are fewer than 2,000."""
    return min(K, math.ceil(references / SHARE))


def chance_nc(k: int, references: int, similarity: str) -> float:
    """About the NC of members that have nothing to do with each other: their neighbours meet by chance."""
    return k / references if similarity == "overlap" else k / (2 * references - k)


def neighbours(rows: EvaluationRows, scoring: Scoring) -> int:
    """k of NC; no k may be larger than the number of references."""
    k = default_k(rows.references) if scoring.k is None else scoring.k
    for name, value in (("k", k), ("k-dist", scoring.k_dist)):
        if value > rows.references:
            raise BadInput(
                f"{name} is {value}, but there are only {rows.references} references: choose a smaller one, or give "
                "more of them."
            )
    return k


# ---- the scores of one candidate


def chosen_components(refs: Predictions, components: Sequence[int], distance: Any) -> ComponentChoice:
    """The choice by held-out likelihood, among the numbers for which there are references; none if there is but one."""
    possible = [count for count in components if 2 * count <= len(refs)]  # a mixture sees two thirds of them
    if len(possible) < 2:
        return ComponentChoice(min(components), {})
    return choose_components(refs, possible, metric=distance)


def score_candidate(
    candidate: Candidate, rows: EvaluationRows, k: int, scoring: Scoring
) -> tuple[SiblingScores, ComponentChoice]:
    """The scores of a candidate, in the order of the keys, and the components of its mixtures.

    How many these are is chosen on the references of its first member; of two halves, on those of the first.
    """
    if scoring.distance == "cosine":
        _check_lengths(candidate)
    if candidate.refs is not None:
        parts = [(candidate.refs, rows.keys)]
    else:
        parts = [([dump.select(refs) for dump in candidate.tests], keys) for refs, keys in rows.parts]
    choice = chosen_components(parts[0][0][0], scoring.components, scoring.distance)

    def scores(refs: Sequence[Predictions], keys: Array) -> SiblingScores:
        try:
            return sibling_scores(
                refs,
                [dump.select(keys) for dump in candidate.tests],
                metric=scoring.distance,
                k_nc=(k,),
                k_dist=(scoring.k_dist,),
                components=choice.components,
                similarity=scoring.similarity,
                seed=scoring.seed,
            )
        except BadInput as error:
            raise BadInput(f"{candidate.name}: {error}" if candidate.name else str(error)) from None

    own = [scores(*part) for part in parts]
    keys = np.concatenate([part.index for part in own])
    by_key = np.argsort(keys, kind="stable")
    order = by_key[np.searchsorted(keys, rows.keys, sorter=by_key)]
    names = [name for name in own[0].u if all(name in part.u for part in own)]
    reasons = {name: reason for part in own for name, reason in part.reasons.items()}
    u = {name: np.concatenate([part.u[name] for part in own])[order] for name in names}
    return SiblingScores(rows.keys, u, reasons, candidate.members), choice


def _check_lengths(candidate: Candidate) -> None:
    for what, dumps in (("row", candidate.tests), ("reference", candidate.refs or ())):
        for member, dump in enumerate(dumps):
            zero = np.flatnonzero(~np.asarray(dump.embeddings).any(1))
            if len(zero):
                raise BadInput(
                    f"The embedding of the {what} of index {dump.index[zero[0]]} by member {member} of "
                    f"{candidate.name or 'the models'} has length zero, so that it has no cosine: omit that row, or "
                    "take the Euclidean distance."
                )


def self_neighbour_warnings(scores: SiblingScores) -> list[str]:
    """A warning where rows lie on a reference: they may be their own neighbours."""
    count = int((scores.u["dist@1"] < SAME).sum()) if "dist@1" in scores.u else 0
    if not count:
        return []
    return [f"{count:,} rows lie on a reference: if they are among the references, their NC looks better than it is."]


def paper_value(name: str, u: Array) -> Array:
    """A score as the paper has it: NC, distance, length, log-likelihood, variance; SCORES says which way is better."""
    return 1 - u if kind(name) == "nc" else -u if kind(name) in ("norm", "ll") else u


def score_title(name: str) -> str:
    """nc@100 → NC@100 ↑."""
    quantity = QUANTITIES[kind(name)]
    return f"{quantity.word}{name.removeprefix(kind(name))} {'↑' if quantity.better == 'higher' else '↓'}"


def in_paper_order(names: Iterable[str]) -> list[str]:
    """Names of scores in the paper's order."""
    return sorted(dict.fromkeys(names), key=lambda name: list(SCORES).index(kind(name)))


def score_columns(scores: SiblingScores) -> dict[str, Array]:
    """For a file: index, nc (higher = more reliable), and every score as u_NAME, higher = less reliable."""
    u = {kind(name): scores.u[name] for name in in_paper_order(scores.u)}
    nc = {"nc": 1 - u["nc"]} if "nc" in u else {}
    return {"index": scores.index, **nc} | {f"u_{name}": values for name, values in u.items()}


@dataclass(frozen=True, eq=False)
class RowScores:
    """The rows of one candidate with two members or more, and how far each can be trusted."""

    candidate: Candidate
    scores: SiblingScores
    rows: EvaluationRows
    k: int
    scoring: Scoring
    choice: ComponentChoice  # of LL's mixtures

    @property
    def nc(self) -> Array:
        """(n,) higher = more reliable."""
        return 1 - self.scores[f"nc@{self.k}"]

    @property
    def chance(self) -> float:
        return chance_nc(self.k, self.rows.references, self.scoring.similarity)

    def least(self, count: int) -> Array:
        """Rows from the least reliable on; of equal ones the first."""
        return np.argsort(self.nc, kind="stable")[:count]

    def most(self, count: int) -> Array:
        return np.argsort(-self.nc, kind="stable")[:count]

    @property
    def names(self) -> list[str]:
        return in_paper_order(self.scores.u)

    @property
    def notes(self) -> list[str]:
        return [*self.rows.notes, *self_neighbour_warnings(self.scores)]


def score_rows(candidate: Candidate, scoring: Scoring | None = None) -> RowScores:
    """The scores of every row of one candidate."""
    scoring = scoring or Scoring()
    rows = evaluation_rows([candidate], scoring.split, scoring.seed)
    k = neighbours(rows, scoring)
    scores, choice = score_candidate(candidate, rows, k, scoring)
    if not scores.u:
        raise BadInput(next(iter(scores.reasons.values())))
    return RowScores(candidate, scores, rows, k, scoring, choice)


# ---- downstream


def candidate_losses(candidate: Candidate, rows: EvaluationRows, tasks: str) -> DownstreamLosses:
    """Losses of optimal heads on the candidate's features, in the order of the keys.

    The heads learn from the labelled rows of `train`, else from the references that are a part of the rows: the heads
    that judge one half learn from the other.
    """

    def losses(train: Sequence[Predictions], keys: Array) -> DownstreamLosses:
        return downstream_losses(train, [dump.select(keys) for dump in candidate.tests], tasks)

    if candidate.train is not None:
        return losses(candidate.train, rows.keys)
    if candidate.refs is not None:
        raise Undefined(f"{candidate.name} has no labelled rows from which downstream heads could learn.")
    return concat_losses(
        [losses([dump.select(refs) for dump in candidate.tests], keys) for refs, keys in rows.parts], rows.keys
    )


def has_labels(candidates: Sequence[Candidate]) -> bool:
    """Whether heads can learn and be judged for all of them."""
    return all(
        candidate.tests[0].labels is not None
        and (candidate.refs is None if candidate.train is None else candidate.train[0].labels is not None)
        for candidate in candidates
    )


# ---- the ranking


@dataclass
class CandidateRanking:
    """Candidates in the order of their NC, the most reliable first, those without NC last.

    comparison  rows, one per candidate and quantity: method, metric, value, low, high, rank, best. Metrics: the scores
                as the paper has them, first and place by NC, losses of heads
    agreement   dicts `score, loss, tau, low, high, n, average, candidates`: Table 3, and τ of the order on average
    """

    candidates: list[Candidate]
    rows: EvaluationRows
    k: int
    scoring: Scoring
    tasks: str
    comparison: Comparison
    scores: dict[str, SiblingScores]
    choices: dict[str, ComponentChoice]  # of LL's mixtures
    losses: dict[str, DownstreamLosses] = field(default_factory=dict)
    agreement: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def nc(self) -> str:
        return f"nc@{self.k}"

    @property
    def names(self) -> list[str]:
        return [candidate.name for candidate in self.candidates]

    @property
    def group(self) -> list[str]:
        """The best by NC and those that cannot be told from it."""
        return [name for name in self.names if (row := self.row(name, self.nc)) is not None and row["best"]]

    def row(self, name: str, metric: str) -> dict[str, Any] | None:
        return next((r for r in self.comparison.rows if (r["method"], r["metric"]) == (name, metric)), None)

    def difference(self, name: str) -> dict[str, Any] | None:
        """How far its NC is from the best one's."""
        differences = self.comparison.differences
        return next((d for d in differences if (d["model"], d["metric"]) == (name, self.nc)), None)

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(str(row["metric"]) for row in self.comparison.rows))


def rank_candidates(
    candidates: Sequence[Candidate],
    scoring: Scoring | None = None,
    *,
    labels: bool = True,
    tasks: str = "one-vs-one",
    resamples: int | None = None,
    level: float = 0.95,
) -> CandidateRanking:
    """Scores every candidate on the rows that all of them hold, and ranks them by mean NC.

    A resample draws the same rows for all, so that a difference between two candidates is judged without the noise
    that they share; the group that cannot be told from the best is `compare`'s. `labels`: compare with the losses of
    downstream heads where there are labels. Candidates of unequal M are compared by the members that all of them have
    (`common_member_count`). `resamples` None: 1,000, or more where Holm's first step needs them.
    """
    scoring = scoring or Scoring()
    if resamples is None:
        resamples = max(RESAMPLES, math.ceil(2 * len(candidates) / (1 - level)) if 0 < level < 1 else 0)
    check_resampling(resamples, level, scoring.seed)
    names = [candidate.name for candidate in candidates]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"Two candidates are called {twice[0]!r}: give them names, NAME=….")
    members, unequal = common_member_count({candidate.name: candidate.members for candidate in candidates})
    candidates = [candidate.first(members) for candidate in candidates]
    rows = evaluation_rows(candidates, scoring.split, scoring.seed)
    k = neighbours(rows, scoring)
    made = {
        candidate.name: score_candidate(candidate, rows, k, scoring) for candidate in track(candidates, "candidates")
    }
    scores, choices = {name: own for name, (own, _) in made.items()}, {name: own for name, (_, own) in made.items()}
    if not any(own.u for own in scores.values()):
        raise BadInput("There is nothing to rank. " + next(iter(scores[names[0]].reasons.values())))
    notes = [*unequal, *_notes(rows, scores, k), *_layers(candidates)]
    losses = _losses(candidates, rows, tasks, notes) if labels and has_labels(candidates) else {}
    comparison = Comparison(tuple(names), len(rows.keys), resamples, level, scoring.seed)
    _add_means(comparison, _quantities(scores, losses, f"nc@{k}"))
    notes += dict.fromkeys(str(entry["reason"]) for entry in comparison.reasons)
    agreement = _table_3(scores, losses, comparison)
    ranked = CandidateRanking(
        list(candidates), rows, k, scoring, tasks, comparison, scores, choices, losses, agreement, notes
    )
    order = {name: row["rank"] for name in names if (row := ranked.row(name, ranked.nc)) is not None}
    ranked.candidates.sort(key=lambda candidate: order.get(candidate.name, math.inf))
    return ranked


def _notes(rows: EvaluationRows, scores: Mapping[str, SiblingScores], k: int) -> list[str]:
    notes = [*rows.notes, *(f"{name}: {note}" for name, own in scores.items() for note in self_neighbour_warnings(own))]
    notes += [f"{name} is not ranked. {next(iter(own.reasons.values()))}" for name, own in scores.items() if not own.u]
    if k == rows.references:
        notes.append(f"Every reference is one of the {k} nearest, so that NC is 1 whatever the models say: lower --k.")
    return notes


def _layers(candidates: Sequence[Candidate]) -> list[str]:
    return layer_warnings(
        (width for candidate in candidates for width in candidate.features),
        (backbone for candidate in candidates for backbone in candidate.backbones),
    )


def _losses(
    candidates: Sequence[Candidate], rows: EvaluationRows, tasks: str, notes: list[str]
) -> dict[str, DownstreamLosses]:
    """Of every candidate; none, and a note, where heads cannot learn from parts of the rows."""
    first, *others = candidates
    labels = first.tests[0].select(rows.keys).labels
    for other in others:
        differ = np.flatnonzero(np.asarray(other.tests[0].select(rows.keys).labels) != np.asarray(labels))
        if len(differ):
            raise BadInput(
                f"{other.name} and {first.name} have different labels in {len(differ)} shared rows, first at index "
                f"{rows.keys[differ[0]]}; the same index must mean the same image."
            )
    try:
        return {
            candidate.name: candidate_losses(candidate, rows, tasks)
            for candidate in track(candidates, "downstream heads")
        }
    except BadInput as reason:
        if any(candidate.train is not None for candidate in candidates):
            raise
        notes.append(f"There is no comparison with downstream heads. {reason}")
        return {}


def _quantities(
    scores: Mapping[str, SiblingScores], losses: Mapping[str, DownstreamLosses], nc: str
) -> dict[str, dict[str, Array]]:
    """Metric → candidate → a number for every row."""
    quantities = {
        name: {who: paper_value(name, own.u[name]) for who, own in scores.items() if name in own.u}
        for name in in_paper_order(name for own in scores.values() for name in own.u)
    }
    if len(rivals := list(quantities.get(nc, {}))) > 1:
        places, first = row_places(np.stack([scores[who].u[nc] for who in rivals]))
        quantities |= {"first": dict(zip(rivals, first, strict=True)), "place": dict(zip(rivals, places, strict=True))}
    for loss in LOSSES:
        if values := {who: own.together[loss] for who, own in losses.items() if loss in own.together}:
            quantities[loss] = values
    return quantities


def row_places(u: Array) -> tuple[Array, Array]:
    """(c, n) in every row the place of each candidate, ties at the mean of their places; and its share of the first."""
    below, equal = ((u[None] < u[:, None]).sum(1), (u[None] == u[:, None]).sum(1))
    least = u == u.min(0)
    return 1 + below + (equal - 1) / 2, least / least.sum(0)


def _add_means(comparison: Comparison, quantities: Mapping[str, Mapping[str, Array]]) -> None:
    """Adds rows and differences of the means of all quantities, on the same resamples."""
    values = np.stack([row for own in quantities.values() for row in own.values()])
    n = values.shape[1]
    samples = np.empty((comparison.resamples, len(values)))
    for number in track(range(comparison.resamples), "resamples"):
        samples[number] = values @ draw_counts(n, comparison.seed, number) / n
    columns = iter(samples.T)
    for name, own in quantities.items():
        quantity = QUANTITIES[kind(name)]
        metric = Metric(quantity.word, _mean, ("other",), quantity.better, False)  # type: ignore[arg-type]
        means = {who: Estimate(float(row.mean()), next(columns)) for who, row in own.items()}
        add_verdict(comparison, MetricSpec(name, metric, {}), None, means)


def _mean() -> None:
    """A mean over rows."""


# ---- Table 3: does a score rank the candidates as downstream heads do?


def agreements(
    u: Sequence[Mapping[str, Array]], losses: Sequence[DownstreamLosses]
) -> Iterator[tuple[str, str, Array | Undefined]]:
    """(score, loss, Kendall's τ per row) between the candidates' order by each score and by each loss that all have.

    u  of each candidate, score → (n,). In place of τ the reason, where no row has a ranking.
    """
    if len(u) < 2:
        return
    for name in (name for name in u[0] if all(name in own for own in u)):
        for loss in (loss for loss in LOSSES if all(loss in own.together for own in losses)):
            try:
                taus = rankings_agree(
                    np.stack([own[name] for own in u]), np.stack([own.together[loss] for own in losses])
                )
                yield name, loss, taus
            except Undefined as reason:
                yield name, loss, reason


def _table_3(
    scores: Mapping[str, SiblingScores], losses: Mapping[str, DownstreamLosses], comparison: Comparison
) -> list[dict[str, Any]]:
    """Means over rows of the agreements, with their intervals."""
    # all scores rank the same candidates: those with siblings, unless there are too few of them
    there = [name for name in losses if scores[name].u]
    siblings = [name for name in there if scores[name].members > 1]
    who = siblings if len(siblings) > 1 else there
    u = [{score: scores[name].u[score] for score in in_paper_order(scores[name].u)} for name in who]
    own_losses = [losses[name] for name in who]
    entries = []
    for score, loss, taus in agreements(u, own_losses):
        if isinstance(taus, Undefined):
            continue
        n = len(taus)
        again = [taus @ draw_counts(n, comparison.seed, number) / n for number in range(comparison.resamples)]
        low, high = interval(np.array(again), comparison.level)
        average = _average([own[score].mean() for own in u], [own.together[loss].mean() for own in own_losses])
        entries.append(
            {"score": score, "loss": loss, "tau": float(taus.mean()), "low": low, "high": high, "n": n}
            | {"average": average, "candidates": who}
        )
    return entries


def _average(u: Sequence[float], losses: Sequence[float]) -> float | None:
    """τ between the order by mean score and by mean loss."""
    try:
        return kendall(np.array(u), np.array(losses))
    except Undefined:
        return None


# ---- for files


def ranking_table(ranked: CandidateRanking) -> dict[str, list[Any]]:
    """One line per candidate and row: candidate, index, nc, u_…, place by NC in this row, loss_…; None where absent."""
    every = [_columns(ranked, name) for name in ranked.names]
    names = list(dict.fromkeys(name for columns in every for name in columns))
    n = len(ranked.rows.keys)
    table: dict[str, list[Any]] = {"candidate": [name for name in ranked.names for _ in range(n)]}
    for name in names:
        table[name] = [value for own in every for value in (own[name].tolist() if name in own else [None] * n)]
    return table


def ranking_arrays(ranked: CandidateRanking) -> dict[str, Array]:
    """index, and CANDIDATE/COLUMN of everything that a candidate has."""
    arrays = {"index": ranked.rows.keys}
    for name in ranked.names:
        columns = _columns(ranked, name)
        arrays |= {f"{name}/{column}": values for column, values in columns.items() if column != "index"}
    return arrays


def _columns(ranked: CandidateRanking, name: str) -> dict[str, Array]:
    columns = score_columns(ranked.scores[name])
    rivals = [who for who, own in ranked.scores.items() if ranked.nc in own.u]
    if len(rivals) > 1 and name in rivals:
        places, _ = row_places(np.stack([ranked.scores[who].u[ranked.nc] for who in rivals]))
        columns["place"] = places[rivals.index(name)]
    if name in ranked.losses:
        columns |= {f"loss_{loss}": values for loss, values in ranked.losses[name].together.items()}
    return columns
