"""Reliability scores of rows, and the ranking of representations on the same unlabelled rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

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
from nescio.analysis.representations.downstream import LOSSES, DownstreamLosses, candidate_losses, has_labels
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
from nescio.rows import Row

Distance = Literal["cosine", "euclidean"]
DEFAULT_K = 100  # number of neighbours of NC, as in the paper
REFERENCES_PER_NEIGHBOUR = 20  # ratio of references to neighbours, if there are few references
COMPONENTS = (1, 2, 5, 10, 20, 50)  # numbers of components of LL's mixture, selected by held-out likelihood
ROUNDING = 1e-12  # maximum rounding error of a distance
OPTIONS = "scores"  # heading of the options in help texts


@dataclass(frozen=True)
class ScoreOptions(Validated):
    """Options of scores that all commands share."""

    k_dist: int = option(1, group=OPTIONS)
    similarity: Similarity = option("jaccard", group=OPTIONS)
    components: tuple[int, ...] = option(COMPONENTS, group=OPTIONS)


@dataclass(frozen=True)
class RowScoreOptions(ScoreOptions):
    """Options of the scores of rows, as in `nescio rank`."""

    split: int | None = option(
        None, name="split-references", unset="two halves, each scored against the other", group="references"
    )
    k: int | None = option(None, unset="100, or a twentieth of few references", group=OPTIONS)
    distance: Distance = option("cosine", group=OPTIONS)
    seed: int = option(0, group=OPTIONS)

    def check(self) -> None:
        if not self.components or min(self.components) < (0 if len(self.components) == 1 else 1):
            raise BadInput("components must be whole numbers of at least 1, or 0 alone for no LL.")
        for name, minimum in (("k", 1), ("k_dist", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise BadInput(f"{name} must be at least {minimum}, got {value}.")


def default_k(references: int) -> int:
    """Default k: 100 as in the paper, or a twentieth of the references if there are fewer than 2,000."""
    return min(DEFAULT_K, math.ceil(references / REFERENCES_PER_NEIGHBOUR))


def chance_nc(k: int, references: int, similarity: str) -> float:
    """Approximate NC of unrelated members, whose neighbours agree only by chance."""
    return k / references if similarity == "overlap" else k / (2 * references - k)


def neighbours(rows: EvaluationRows, scoring: RowScoreOptions) -> int:
    """Return k of NC; refuse values of k above the number of references."""
    k = default_k(rows.references) if scoring.k is None else scoring.k
    for name, value in (("k", k), ("k_dist", scoring.k_dist)):
        if value > rows.references:
            raise BadInput(
                f"{name} is {value}, but there are only {rows.references} references: choose a smaller one, or give "
                "more of them."
            )
    return k


# ---- scores of one candidate


def chosen_components(refs: Predictions, components: Sequence[int], distance: Distance) -> ComponentChoice:
    """Choose the number of components by held-out likelihood, among those with enough references."""
    possible = [count for count in components if 2 * count <= len(refs)]  # a mixture is fitted on two thirds of them
    if len(possible) < 2:
        return ComponentChoice(min(components), {})
    return choose_components(refs, possible, metric=distance)


def score_candidate(
    candidate: Candidate, rows: EvaluationRows, k: int, scoring: RowScoreOptions
) -> tuple[SiblingScores, ComponentChoice]:
    """Scores of a candidate in the order of the keys, and the number of components of its mixtures.

    This number is chosen on the references of the first member, in the first of two splits.
    """
    if scoring.distance == "cosine":
        _check_lengths(candidate)
    if candidate.refs is not None:
        splits = [(candidate.refs, rows.keys)]
    else:
        splits = [([member.select(refs) for member in candidate.tests], keys) for refs, keys in rows.splits]
    choice = chosen_components(splits[0][0][0], scoring.components, scoring.distance)

    def scores(refs: Sequence[Predictions], keys: Array) -> SiblingScores:
        try:
            return sibling_scores(
                refs,
                [member.select(keys) for member in candidate.tests],
                metric=scoring.distance,
                k_nc=(k,),
                k_dist=(scoring.k_dist,),
                components=choice.components,
                similarity=scoring.similarity,
                seed=scoring.seed,
            )
        except BadInput as error:
            raise BadInput(f"{candidate.name}: {error}") from None

    of_splits = [scores(*split) for split in splits]
    keys = np.concatenate([split.index for split in of_splits])
    by_key = np.argsort(keys, kind="stable")
    order = by_key[np.searchsorted(keys, rows.keys, sorter=by_key)]
    names = [name for name in of_splits[0].u if all(name in split.u for split in of_splits)]
    reasons = {name: reason for split in of_splits for name, reason in split.reasons.items()}
    u = {name: np.concatenate([split.u[name] for split in of_splits])[order] for name in names}
    return SiblingScores(rows.keys, u, reasons, candidate.members), choice


def _check_lengths(candidate: Candidate) -> None:
    for role, of_members in (("row", candidate.tests), ("reference", candidate.refs or ())):
        for position, member in enumerate(of_members):
            zero = np.flatnonzero(~np.asarray(member.embeddings).any(1))
            if len(zero):
                raise BadInput(
                    f"The embedding of the {role} of index {member.index[zero[0]]} by member {position} of "
                    f"{candidate.name} has length zero and no cosine: omit this row, or use the "
                    "Euclidean distance."
                )


def self_neighbour_warnings(scores: SiblingScores) -> list[str]:
    """Warning if rows equal a reference: they may be their own neighbours."""
    count = int((scores.u["dist@1"] < ROUNDING).sum()) if "dist@1" in scores.u else 0
    if not count:
        return []
    return [f"{count:,} rows equal a reference: if they are among the references, their NC is too high."]


def paper_value(name: str, u: Array) -> Array:
    """A score with the paper's sign: NC, distance, length, log-likelihood or variance; SCORES has its direction."""
    return 1 - u if kind(name) == "nc" else -u if kind(name) in ("norm", "ll") else u


def in_paper_order(names: Iterable[str]) -> list[str]:
    """Names of scores in the paper's order."""
    return sorted(dict.fromkeys(names), key=lambda name: list(SCORES).index(kind(name)))


def score_columns(scores: SiblingScores) -> dict[str, Array]:
    """Columns of a file: index, nc (higher = more reliable), and every score as u_NAME (higher = less reliable)."""
    u = {kind(name): scores.u[name] for name in in_paper_order(scores.u)}
    nc = {"nc": 1 - u["nc"]} if "nc" in u else {}
    return {"index": scores.index, **nc} | {f"u_{name}": values for name, values in u.items()}


RESAMPLES = 1000
QUANTITIES: dict[str, Quantity] = {
    **SCORES,
    "first": Quantity("first", "higher", "share of rows on which the candidate has the highest NC, ties shared"),
    "place": Quantity("mean place", "lower", "mean rank over rows by NC; ties have the mean of their ranks"),
    **LOSSES,
}


def score_title(name: str) -> str:
    """Title of a score with its direction: nc@100 → NC@100 ↑."""
    quantity = QUANTITIES[kind(name)]
    return f"{quantity.word}{name.removeprefix(kind(name))} {'↑' if quantity.better == 'higher' else '↓'}"


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
    scoring: RowScoreOptions
    downstream_tasks: str
    comparison: Comparison
    scores: dict[str, SiblingScores]
    choices: dict[str, ComponentChoice]  # chosen components of LL's mixtures
    losses: dict[str, DownstreamLosses] = field(default_factory=dict)
    agreement: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def nc(self) -> str:
        return f"nc@{self.k}"

    @property
    def names(self) -> list[str]:
        return [candidate.name for candidate in self.candidates]

    @property
    def group(self) -> list[str]:
        """The best candidate by NC, and those that are not significantly worse."""
        return [name for name in self.names if (row := self.row(name, self.nc)) is not None and row["best"]]

    def row(self, name: str, metric: str) -> Row | None:
        return next((r for r in self.comparison.rows if (r["method"], r["metric"]) == (name, metric)), None)

    def difference(self, name: str) -> Row | None:
        """The difference of a candidate's NC from the best."""
        differences = self.comparison.differences
        return next((d for d in differences if (d["model"], d["metric"]) == (name, self.nc)), None)

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(str(row["metric"]) for row in self.comparison.rows))

    @property
    def chance(self) -> float:
        """Expected NC of unrelated members."""
        return chance_nc(self.k, self.rows.references, self.scoring.similarity)

    def nc_of(self, name: str) -> Array | None:
        """(n,) NC of every row of a candidate; None without siblings."""
        u = self.scores[name].u.get(self.nc)
        return None if u is None else 1 - u

    def rows_by_nc(self, name: str, count: int, *, most: bool = False) -> Array:
        """Positions of the least or most reliable rows; the first of equal ones."""
        nc = self.nc_of(name)
        return np.array([], int) if nc is None else np.argsort(-nc if most else nc, kind="stable")[:count]


def rank_candidates(
    candidates: Sequence[Candidate],
    scoring: RowScoreOptions | None = None,
    *,
    labels: bool = True,
    tasks: str = "one-vs-one",
    resamples: int | None = None,
    level: float = 0.95,
) -> CandidateRanking:
    """Score every candidate on the rows that all of them have, and rank them by mean NC.

    A resample draws the same rows for all candidates, as in `compare`. Candidates of different sizes are compared by
    the number of members that all of them have (`common_member_count`).

    labels     also compute the losses of downstream heads if there are labels
    resamples  None: enough for Holm's first step, at least 1,000
    """
    scoring = scoring or RowScoreOptions()
    if resamples is None:
        resamples = max(RESAMPLES, math.ceil(2 * len(candidates) / (1 - level)) if 0 < level < 1 else 0)
    check_resampling(resamples, level, scoring.seed)
    names = [candidate.name for candidate in candidates]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"Two candidates have the name {duplicates[0]!r}: give them different names.")
    members, unequal = common_member_count({candidate.name: candidate.members for candidate in candidates})
    candidates = [candidate.first(members) for candidate in candidates]
    rows = evaluation_rows(candidates, scoring.split, scoring.seed)
    k = neighbours(rows, scoring)
    results = {
        candidate.name: score_candidate(candidate, rows, k, scoring) for candidate in track(candidates, "candidates")
    }
    scores = {name: of_candidate for name, (of_candidate, _) in results.items()}
    choices = {name: choice for name, (_, choice) in results.items()}
    if not any(of_candidate.u for of_candidate in scores.values()):
        raise BadInput("There are no candidates to rank. " + next(iter(scores[names[0]].reasons.values())))
    widths = [width for candidate in candidates for width in candidate.features]
    backbones = [backbone for candidate in candidates for backbone in candidate.backbones]
    notes = [*unequal, *_notes(rows, scores, k), *layer_warnings(widths, backbones)]
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
    notes = [*rows.notes, *(f"{name}: {note}" for name, u in scores.items() for note in self_neighbour_warnings(u))]
    notes += [
        f"{name} is not ranked. {next(iter(of_candidate.reasons.values()))}"
        for name, of_candidate in scores.items()
        if not of_candidate.u
    ]
    if k == rows.references:
        notes.append(f"All references are among the {k} nearest, so NC is always 1: lower k.")
    return notes


def _losses(
    candidates: Sequence[Candidate], rows: EvaluationRows, tasks: str, notes: list[str]
) -> dict[str, DownstreamLosses]:
    """Losses of every candidate; if heads cannot be trained, add a note and return none."""
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
    """Metric → candidate → (n,) values."""
    quantities = {
        name: {
            candidate: paper_value(name, of_candidate.u[name])
            for candidate, of_candidate in scores.items()
            if name in of_candidate.u
        }
        for name in in_paper_order(name for of_candidate in scores.values() for name in of_candidate.u)
    }
    if len(with_nc := list(quantities.get(nc, {}))) > 1:
        ranks, first = row_ranks(np.stack([scores[candidate].u[nc] for candidate in with_nc]))
        quantities |= {"first": dict(zip(with_nc, first, strict=True)), "place": dict(zip(with_nc, ranks, strict=True))}
    for loss in LOSSES:
        if values := {
            candidate: of_candidate.ensemble[loss]
            for candidate, of_candidate in losses.items()
            if loss in of_candidate.ensemble
        }:
            quantities[loss] = values
    return quantities


def row_ranks(u: Array) -> tuple[Array, Array]:
    """(c, n) rank of each candidate in every row, with mean ranks of ties; and (c,) its share of first ranks."""
    below, equal = ((u[None] < u[:, None]).sum(1), (u[None] == u[:, None]).sum(1))
    lowest = u == u.min(0)
    return 1 + below + (equal - 1) / 2, lowest / lowest.sum(0)


def _add_means(comparison: Comparison, quantities: Mapping[str, Mapping[str, Array]]) -> None:
    """Add rows and differences of the means of all quantities, on the same resamples."""
    values = np.stack([row for of_candidates in quantities.values() for row in of_candidates.values()])
    n = values.shape[1]
    samples = np.empty((comparison.resamples, len(values)))
    for number in track(range(comparison.resamples), "resamples"):
        samples[number] = values @ draw_counts(n, comparison.seed, number) / n
    columns = iter(samples.T)
    for name, of_candidates in quantities.items():
        quantity = QUANTITIES[kind(name)]
        metric = Metric(quantity.word, _mean, ("other",), quantity.better, False)  # type: ignore[arg-type]
        means = {candidate: Estimate(float(row.mean()), next(columns)) for candidate, row in of_candidates.items()}
        add_verdict(comparison, MetricSpec(name, metric, {}), None, means)


def _mean() -> None:
    """Mean over rows."""


# ---- Table 3: agreement of the rankings by scores and by downstream losses


def agreements(
    u: Sequence[Mapping[str, Array]], losses: Sequence[DownstreamLosses]
) -> Iterator[tuple[str, str, Array | Undefined]]:
    """(score, loss, Kendall's τ per row) between the order of candidates by each score and by each loss.

    u  score → (n,) of each candidate; the result has a reason instead of τ if no row has a ranking
    """
    if len(u) < 2:
        return
    for name in (name for name in u[0] if all(name in of_candidate for of_candidate in u)):
        for loss in (loss for loss in LOSSES if all(loss in of_candidate.ensemble for of_candidate in losses)):
            try:
                taus = rankings_agree(
                    np.stack([of_candidate[name] for of_candidate in u]),
                    np.stack([of_candidate.ensemble[loss] for of_candidate in losses]),
                )
                yield name, loss, taus
            except Undefined as reason:
                yield name, loss, reason


def _table_3(
    scores: Mapping[str, SiblingScores], losses: Mapping[str, DownstreamLosses], comparison: Comparison
) -> list[Row]:
    """Rows of Table 3: means of the agreements over rows, with intervals."""
    # all scores rank the same candidates: those with siblings if there are at least two, else all with scores
    with_scores = [name for name in losses if scores[name].u]
    siblings = [name for name in with_scores if scores[name].members > 1]
    with_rankings = siblings if len(siblings) > 1 else with_scores
    u = [{score: scores[name].u[score] for score in in_paper_order(scores[name].u)} for name in with_rankings]
    losses_of_candidates = [losses[name] for name in with_rankings]
    entries = []
    for score, loss, taus in agreements(u, losses_of_candidates):
        if isinstance(taus, Undefined):
            continue
        n = len(taus)
        resampled = [taus @ draw_counts(n, comparison.seed, number) / n for number in range(comparison.resamples)]
        low, high = interval(np.array(resampled), comparison.level)
        average = _average(
            [of_candidate[score].mean() for of_candidate in u],
            [of_candidate.ensemble[loss].mean() for of_candidate in losses_of_candidates],
        )
        entries.append(
            {"score": score, "loss": loss, "tau": float(taus.mean()), "low": low, "high": high, "n": n}
            | {"average": average, "candidates": with_rankings}
        )
    return entries


def _average(u: Sequence[float], losses: Sequence[float]) -> float | None:
    """τ between the order by mean score and by mean loss."""
    try:
        return kendall(np.array(u), np.array(losses))
    except Undefined:
        return None


# ---- for files


def ranking_table(ranked: CandidateRanking) -> dict[str, list[object]]:
    """Table with one line per candidate and row: candidate, index, nc, u_…, place by NC, loss_…; None if missing."""
    columns = {name: _columns(ranked, name) for name in ranked.names}
    n = len(ranked.rows.keys)
    table: dict[str, list[object]] = {"candidate": [name for name in columns for _ in range(n)]}
    for column in dict.fromkeys(column for of_candidate in columns.values() for column in of_candidate):
        values = [
            of_candidate[column].tolist() if column in of_candidate else [None] * n for of_candidate in columns.values()
        ]
        table[column] = [value for of_candidate in values for value in of_candidate]
    return table


def ranking_arrays(ranked: CandidateRanking) -> dict[str, Array]:
    """The arrays index and CANDIDATE/COLUMN."""
    columns = {f"{name}/{column}": u for name in ranked.names for column, u in _columns(ranked, name).items()}
    return {"index": ranked.rows.keys} | {name: u for name, u in columns.items() if not name.endswith("/index")}


def _columns(ranked: CandidateRanking, name: str) -> dict[str, Array]:
    columns = score_columns(ranked.scores[name])
    with_nc = [candidate for candidate, scores in ranked.scores.items() if ranked.nc in scores.u]
    if len(with_nc) > 1 and name in with_nc:
        ranks, _ = row_ranks(np.stack([ranked.scores[candidate].u[ranked.nc] for candidate in with_nc]))
        columns["place"] = ranks[with_nc.index(name)]
    if name in ranked.losses:
        columns |= {f"loss_{loss}": values for loss, values in ranked.losses[name].ensemble.items()}
    return columns
