"""Reliability scores of the rows of one candidate: neighbourhood consistency (NC) and its rivals.

Source: Park, Wang, Ardeshir and Azizan 2024, §3.3 and §4.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nescio.analysis.representations.candidates import Candidate, EvaluationRows, evaluation_rows
from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.identity import Validated
from nescio.measures import ComponentChoice, choose_components
from nescio.measures.siblings import SCORES, SiblingScores, Similarity, kind, sibling_scores
from nescio.options import option
from nescio.predictions import Predictions

Distance = Literal["cosine", "euclidean"]
DEFAULT_K = 100  # neighbours of NC, as in the paper
REFERENCES_PER_NEIGHBOUR = 20  # of fewer references one neighbour per so many
COMPONENTS = (1, 2, 5, 10, 20, 50)  # of LL's mixture, among which held-out likelihood selects
ROUNDING = 1e-12  # a smaller distance is a rounding error
OPTIONS = "scores"  # heading of options


@dataclass(frozen=True)
class ScoreOptions(Validated):
    """Options of scores that all commands share."""

    k_dist: int = option(1, group=OPTIONS)
    similarity: Similarity = option("jaccard", group=OPTIONS)
    components: tuple[int, ...] = option(COMPONENTS, group=OPTIONS)


@dataclass(frozen=True)
class RowScoreOptions(ScoreOptions):
    """Options of the scores of rows, as in `nescio reliability` and `nescio rank`."""

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
    """100 as in the paper, or a twentieth of the references where there are fewer than 2,000."""
    return min(DEFAULT_K, math.ceil(references / REFERENCES_PER_NEIGHBOUR))


def chance_nc(k: int, references: int, similarity: str) -> float:
    """About the NC of members that have nothing to do with each other: their neighbours meet by chance."""
    return k / references if similarity == "overlap" else k / (2 * references - k)


def neighbours(rows: EvaluationRows, scoring: RowScoreOptions) -> int:
    """k of NC; no k may be larger than the number of references."""
    k = default_k(rows.references) if scoring.k is None else scoring.k
    for name, value in (("k", k), ("k-dist", scoring.k_dist)):
        if value > rows.references:
            raise BadInput(
                f"{name} is {value}, but there are only {rows.references} references: choose a smaller one, or give "
                "more of them."
            )
    return k


# ---- scores of one candidate


def chosen_components(refs: Predictions, components: Sequence[int], distance: Distance) -> ComponentChoice:
    """The choice by held-out likelihood, among the numbers for which there are references; none if there is but one."""
    possible = [count for count in components if 2 * count <= len(refs)]  # a mixture sees two thirds of them
    if len(possible) < 2:
        return ComponentChoice(min(components), {})
    return choose_components(refs, possible, metric=distance)


def score_candidate(
    candidate: Candidate, rows: EvaluationRows, k: int, scoring: RowScoreOptions
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
    count = int((scores.u["dist@1"] < ROUNDING).sum()) if "dist@1" in scores.u else 0
    if not count:
        return []
    return [f"{count:,} rows lie on a reference: if they are among the references, their NC looks better than it is."]


def paper_value(name: str, u: Array) -> Array:
    """A score as the paper has it: NC, distance, length, log-likelihood, variance; SCORES says which way is better."""
    return 1 - u if kind(name) == "nc" else -u if kind(name) in ("norm", "ll") else u


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
    scoring: RowScoreOptions
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


def score_rows(candidate: Candidate, scoring: RowScoreOptions | None = None) -> RowScores:
    """The scores of every row of one candidate."""
    scoring = scoring or RowScoreOptions()
    rows = evaluation_rows([candidate], scoring.split, scoring.seed)
    k = neighbours(rows, scoring)
    scores, choice = score_candidate(candidate, rows, k, scoring)
    if not scores.u:
        raise BadInput(next(iter(scores.reasons.values())))
    return RowScores(candidate, scores, rows, k, scoring, choice)
