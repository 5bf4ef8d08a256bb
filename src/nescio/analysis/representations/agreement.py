"""Agreement of reliability scores with downstream losses: rows of one candidate.

The rows contain scores of every test row (`measures.siblings`), losses of heads (`downstream`), and Kendall's τ between
them. Further rows contain the accuracy of the representation and the number of components of LL's mixtures.
Source: Park, Wang, Ardeshir and Azizan, Quantifying representation reliability, 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Unpack

import numpy as np

from nescio import metrics
from nescio.analysis.representations.downstream import DownstreamLosses, knn_accuracy, probe_accuracy
from nescio.analysis.representations.ranking import (
    DEFAULT_K,
    OPTIONS,
    Distance,
    ScoreOptions,
    agreements,
    chosen_components,
)
from nescio.arrays.types import Array, ArrayOrTensor
from nescio.errors import BadInput, Undefined
from nescio.identity import Validated
from nescio.measures import ComponentChoice
from nescio.measures.siblings import SiblingScores, Spaces, kind, member_densities, member_spaces
from nescio.options import option
from nescio.predictions import Predictions
from nescio.rows import Columns, RowBuilder, network_id

STAR = "*"  # suffix of a score of one member alone (Tables 8 and 9)
NEIGHBOURS, MEMBERS, COMPONENTS = "k", "M", "C"  # values of the column `sweep`
CHOSEN, HELD_OUT = "components", "held_out_likelihood"  # metrics: the number of LL's components, and why this one


@dataclass(frozen=True)
class SweepOptions(ScoreOptions):
    """Options of the scores that are compared with losses, and of the sweeps over k, M and C."""

    k: int = option(DEFAULT_K, group=OPTIONS)
    ks: tuple[int, ...] = option(
        (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000), "numbers of neighbours to compare in a sweep", group=OPTIONS
    )
    distances: tuple[Distance, ...] = option(
        ("cosine", "euclidean"), "distances of embeddings to compare", metavar="NAME,…", group=OPTIONS
    )
    scores: tuple[Literal["nc", "dist", "norm", "ll", "fv"], ...] = option(
        ("nc", "dist", "norm", "ll", "fv"), "reliability scores to compare; ll is slow", metavar="NAME,…", group=OPTIONS
    )

    def check(self) -> None:
        self.require_min(1, "k", "k_dist")
        require_some(self, "distances", "scores", "components")
        for name in ("ks", "components"):
            if (smallest := min(getattr(self, name), default=1)) < 1:
                raise BadInput(f"{name} contains {smallest}: it must be at least 1.")

    @property
    def swept(self) -> str:
        """The distance of the sweeps over k and M."""
        return "cosine" if "cosine" in self.distances else self.distances[0]


def require_some(plan: Validated, *names: str) -> None:
    """Refuse a plan with an empty list in one of these fields."""
    for name in names:
        if not getattr(plan, name):
            raise BadInput(f"{name} is empty: there is nothing to compare.")


def add_losses(losses: DownstreamLosses, results: RowBuilder, **columns: Unpack[Columns]) -> None:
    """Add the mean downstream losses over test rows."""
    for name, loss in losses.ensemble.items():
        results.add(name, loss.mean(), len(losses.index), **columns)


def add_accuracies(
    train: Predictions,
    test: Predictions,
    k: int,
    results: RowBuilder,
    put: Callable[[Array], ArrayOrTensor] = np.asarray,
) -> None:
    """Add the accuracies of one network's representation: a linear probe, and the nearest neighbours."""
    results.add("probe_accuracy", probe_accuracy(train, test, put), len(test))
    results.add("knn_accuracy", knn_accuracy(train, test, k), len(test), k=k)


def add_components(choice: ComponentChoice, references: int, results: RowBuilder, **columns: Unpack[Columns]) -> None:
    """Add the chosen number of components, and the mean log-likelihood for every number."""
    columns |= {"measure": "ll", "sweep": COMPONENTS}
    results.add(CHOSEN, choice.components, references, **columns)
    for count, value in choice.log_likelihoods.items():
        cell: Columns = {**columns, "components": count}
        results.add(HELD_OUT, value, references, **cell)


def add_rankings(
    scores: Sequence[Mapping[str, Array]],
    losses: Sequence[DownstreamLosses],
    results: RowBuilder,
    **columns: Unpack[Columns],
) -> None:
    """Add Kendall's τ between the order of the candidates by a score and by a loss, a mean over test rows (Table 3)."""
    with_scores = [number for number, u in enumerate(scores) if u]  # a collapsed candidate has no scores
    for name, loss, taus in agreements(
        [scores[number] for number in with_scores], [losses[number] for number in with_scores]
    ):
        columns |= {"measure": name}
        if isinstance(taus, Undefined):
            results.omit(taus, metric=f"ranking_{loss}", **columns)
        else:
            results.add(f"ranking_{loss}", taus.mean(), len(taus), **columns)


def evaluate(
    refs: Sequence[Sequence[Predictions]],
    tests: Sequence[Predictions],
    losses: DownstreamLosses,
    options: SweepOptions,
    results: RowBuilder,
    *,
    detailed: bool = True,
    seeds: Sequence[int] | None = None,
    **columns: Unpack[Columns],
) -> dict[tuple[str, int], dict[str, Array]]:
    """Add the results of one candidate; return (distance, draw) → score → u of every test row.

    refs      for every draw, the references of each member
    detailed  also add single members and the sweeps over k, M and C
    seeds     seeds of the members; None: 0, 1, …
    """
    columns |= {"members": len(tests)}
    add_losses(losses, results, **columns)
    scores: dict[tuple[str, int], dict[str, Array]] = {}
    for distance in options.distances:
        components = 0
        if "ll" in options.scores:
            choice = chosen_components(refs[0][0], options.components, distance)
            cell: Columns = {**columns, "distance": distance}
            add_components(choice, len(refs[0][0]), results, **cell)
            components = choice.components
        for draw, references in enumerate(refs):
            draw_columns: Columns = {**columns, "distance": distance, "draw": draw}
            candidate = _CandidateScores(options, components, losses, results, draw_columns)
            candidate.add_all(references, tests, seeds or range(len(tests)), detailed)
            scores[distance, draw] = candidate.scores
    return scores


@dataclass
class _CandidateScores:
    """Builder of the results of one candidate, one distance and one draw of references."""

    options: SweepOptions
    components: int  # number of components of LL's mixtures
    losses: DownstreamLosses
    results: RowBuilder
    columns: Columns
    scores: dict[str, Array] = field(default_factory=dict)  # score → u of every test row

    @property
    def distance(self) -> str:
        return str(self.columns["distance"])

    def add_all(
        self, refs: Sequence[Predictions], tests: Sequence[Predictions], seeds: Sequence[int], detailed: bool
    ) -> None:
        """Add main rows; if `detailed`, also those of single members and the sweeps."""
        options = self.options
        is_swept = detailed and self.distance == options.swept
        ks = [k for k in options.ks if k < len(refs[0])] if is_swept else []
        spaces = member_spaces(
            refs,
            tests,
            metric=self.distance,
            k_nc=sorted({options.k, *(ks if "nc" in options.scores else ())}),
            k_dist=sorted({options.k_dist, *(ks if "dist" in options.scores else ())}),
            components=self.components,
            similarity=options.similarity,
            seed=0,
        )
        if len(self.losses.index) != len(tests[0]):
            raise BadInput("The downstream heads and the scores are of different rows: index differs.")
        self.losses = self.losses.select(spaces.tests[0].index)
        all_member_scores = spaces.scores()
        for name in options.scores:
            self.main(name, all_member_scores)
        if detailed and len(tests) > 1:
            self.single_members(spaces, all_member_scores, seeds)
        if is_swept:
            self.sweeps(spaces, all_member_scores)
            if "ll" in self.scores and self.columns["draw"] == 0:
                self.components_sweep(refs, tests)

    def size(self, name: str) -> Columns:
        """The column with the neighbours of a score, or with the components of its mixtures."""
        sizes: dict[str, Columns] = {
            "nc": {"k": self.options.k},
            "dist": {"k": self.options.k_dist},
            "ll": {"components": self.components},
        }
        return sizes.get(name, {})

    def key(self, name: str) -> str:
        """The name of a score with its k, as in `SiblingScores`: nc → nc@100."""
        return f"{name}@{self.size(name)['k']}" if name in ("nc", "dist") else name

    def main(self, name: str, scores: SiblingScores) -> None:
        """τ of the scores at the paper's k with every loss: Tables 1 to 7."""
        try:
            u = scores[self.key(name)]
        except Undefined as reason:
            self.results.omit(reason, measure=name, **self.reason_columns)
            return
        self.scores[name] = u
        columns: Columns = {**self.columns, **self.size(name), "measure": name}
        self.results.add("mean", u.mean(), len(u), **columns)
        self.kendall(name, u, self.losses.ensemble, **self.size(name))

    def single_members(self, spaces: Spaces, all_member_scores: SiblingScores, seeds: Sequence[int]) -> None:
        """τ of every member's loss with the siblings' scores, and with its own scores: Tables 8 and 9."""
        for member, seed in enumerate(seeds):
            losses = {name: loss[member] for name, loss in self.losses.members.items()}
            of_member = spaces.scores([member])
            network = network_id({**self.results.facts, "members": 1, "init_seed": seed})
            for name in self.scores:
                columns: Columns = {"network": network, "members": 1, "init_seed": seed, **self.size(name)}
                self.kendall(name, all_member_scores[self.key(name)], losses, **columns)
                if self.key(name) in of_member.u:
                    self.kendall(name + STAR, of_member[self.key(name)], losses, **columns)

    def sweeps(self, spaces: Spaces, all_member_scores: SiblingScores) -> None:
        """τ of other k, and of the first m members, with the losses of all members: Figures 2, 4 and 5."""
        for name, u in all_member_scores.u.items():
            k = name.partition("@")[2]
            if k and kind(name) in self.scores and int(k) in self.options.ks:
                self.kendall(kind(name), u, self.losses.ensemble, sweep=NEIGHBOURS, k=int(k))
        for m in range(1, len(spaces.tests) + 1):
            first = spaces.scores(range(m), (self.options.k,))
            for name in self.scores:
                if self.key(name) in first.u:
                    columns: Columns = {"sweep": MEMBERS, "members": m, **self.size(name)}
                    self.kendall(name, first[self.key(name)], self.losses.ensemble, **columns)

    def components_sweep(self, refs: Sequence[Predictions], tests: Sequence[Predictions]) -> None:
        """τ of LL with mixtures of every number of components."""
        for count in self.options.components:
            if count <= len(refs[0]):
                u = member_densities(refs, tests, self.distance, count).mean(0)
                self.kendall("ll", u, self.losses.ensemble, sweep=COMPONENTS, components=count)

    def kendall(self, name: str, u: Array, losses: Mapping[str, Array], **columns: Unpack[Columns]) -> None:
        for loss, values in losses.items():
            try:
                tau = metrics.kendall(u, values)
            except Undefined as reason:
                self.results.omit(reason, measure=name, metric=f"kendall_{loss}", **self.reason_columns)
            else:
                cell: Columns = {**self.columns, **columns, "measure": name}
                self.results.add(f"kendall_{loss}", tau, len(u), **cell)

    @property
    def reason_columns(self) -> Columns:
        """The columns of a reason, without draw and distance, so that each reason is listed once."""
        return {"target": self.columns.get("target"), "members": self.columns["members"]}
