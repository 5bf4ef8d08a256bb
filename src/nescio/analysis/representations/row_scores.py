"""Reliability scores of the rows of one candidate: neighbourhood consistency (NC) and its rivals.

Source: Park, Wang, Ardeshir and Azizan 2024, §3.3 and §4.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nescio.analysis.representations.candidates import Candidate, EvaluationRows
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
    """100 as in the paper, or a twentieth of the references if there are fewer than 2,000."""
    return min(DEFAULT_K, math.ceil(references / REFERENCES_PER_NEIGHBOUR))


def chance_nc(k: int, references: int, similarity: str) -> float:
    """Approximate NC of unrelated members, whose neighbours agree by chance."""
    return k / references if similarity == "overlap" else k / (2 * references - k)


def neighbours(rows: EvaluationRows, scoring: RowScoreOptions) -> int:
    """k of NC; no k may be larger than the number of references."""
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
    for what, of_members in (("row", candidate.tests), ("reference", candidate.refs or ())):
        for position, member in enumerate(of_members):
            zero = np.flatnonzero(~np.asarray(member.embeddings).any(1))
            if len(zero):
                raise BadInput(
                    f"The embedding of the {what} of index {member.index[zero[0]]} by member {position} of "
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
    """A score as the paper has it: NC, distance, length, log-likelihood, variance; SCORES has the better direction."""
    return 1 - u if kind(name) == "nc" else -u if kind(name) in ("norm", "ll") else u


def in_paper_order(names: Iterable[str]) -> list[str]:
    """Names of scores in the paper's order."""
    return sorted(dict.fromkeys(names), key=lambda name: list(SCORES).index(kind(name)))


def score_columns(scores: SiblingScores) -> dict[str, Array]:
    """Columns of a file: index, nc (higher = more reliable), and every score as u_NAME (higher = less reliable)."""
    u = {kind(name): scores.u[name] for name in in_paper_order(scores.u)}
    nc = {"nc": 1 - u["nc"]} if "nc" in u else {}
    return {"index": scores.index, **nc} | {f"u_{name}": values for name, values in u.items()}
