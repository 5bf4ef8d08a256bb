"""Agreement of reliability scores with downstream losses: rows of one candidate.

The rows contain scores of every test row (`measures.siblings`), losses of heads (`downstream`), and Kendall's τ between
them. Further rows contain the accuracy of the representation and the number of components of LL's mixtures.
Source: Park, Wang, Ardeshir and Azizan, Quantifying representation reliability, 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from nescio import metrics
from nescio.analysis.representations.downstream import DownstreamLosses, knn_accuracy, probe_accuracy
from nescio.analysis.representations.ranking import agreements
from nescio.analysis.representations.row_scores import DEFAULT_K, OPTIONS, Distance, ScoreOptions, chosen_components
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.identity import Validated
from nescio.measures import ComponentChoice
from nescio.measures.siblings import SiblingScores, Spaces, kind, member_densities, member_spaces
from nescio.options import option
from nescio.predictions import Predictions
from nescio.rows import COLUMNS, Row

STAR = "*"  # after a score of one member alone (Tables 8 and 9)
NEIGHBOURS, MEMBERS, COMPONENTS = "k", "M", "C"  # column `sweep`: of neighbours, of networks, of components
CHOSEN, HELD_OUT = "components", "held_out_likelihood"  # metrics: the number of LL's components, and why this one


@dataclass(frozen=True)
class SweepOptions(ScoreOptions):
    """Options of scores that are compared with losses, and of the sweeps over k, M and C."""

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


def truth_rows(losses: DownstreamLosses, facts: Row) -> list[Row]:
    """Rows with the mean downstream losses over test rows."""
    base = dict.fromkeys(COLUMNS) | facts | {"n": len(losses.index)}
    return [base | {"metric": name, "value": float(loss.mean())} for name, loss in losses.ensemble.items()]


def accuracy_rows(
    train: Predictions, test: Predictions, k: int, facts: Row, put: Callable[[Array], Any] = np.asarray
) -> list[Row]:
    """Rows with the accuracy of one network's representation."""
    base = dict.fromkeys(COLUMNS) | facts | {"n": len(test)}
    return [
        base | {"metric": "probe_accuracy", "value": probe_accuracy(train, test, put)},
        base | {"metric": "knn_accuracy", "value": knn_accuracy(train, test, k), "k": k},
    ]


def component_rows(choice: ComponentChoice, facts: Row) -> list[Row]:
    """Rows with the chosen number of components and the mean log-likelihood of every number."""
    base = dict.fromkeys(COLUMNS) | facts | {"measure": "ll", "sweep": COMPONENTS}
    sweep = [
        base | {"metric": HELD_OUT, "components": count, "value": value}
        for count, value in choice.log_likelihoods.items()
    ]
    return [base | {"metric": CHOSEN, "value": choice.components}, *sweep]


def ranking_rows(
    points: Sequence[Mapping[str, Array]], losses: Sequence[DownstreamLosses], facts: Row
) -> tuple[list[Row], list[Row]]:
    """Mean over test rows of Kendall's τ between the order of the candidates by a score and by a loss (Table 3)."""
    rows, reasons = list[Row](), list[Row]()
    scored = [number for number, u in enumerate(points) if u]  # a collapsed candidate has none
    for name, loss, taus in agreements([points[number] for number in scored], [losses[number] for number in scored]):
        cell = {"measure": name, "metric": f"ranking_{loss}"}
        if isinstance(taus, Undefined):
            reasons.append(cell | {"reason": str(taus)})
        else:
            rows.append(dict.fromkeys(COLUMNS) | facts | cell | {"value": float(taus.mean()), "n": len(taus)})
    return rows, reasons


def evaluate(
    refs: Sequence[Sequence[Predictions]],
    tests: Sequence[Predictions],
    losses: DownstreamLosses,
    plan: SweepOptions,
    facts: Row,
) -> tuple[list[Row], list[Row]]:
    """Rows and reasons of one candidate; refs contain, for every draw, the references of each member."""
    rows, reasons = truth_rows(losses, facts), list[Row]()
    for distance in plan.distances:
        components = 0
        if "ll" in plan.scores:
            choice = chosen_components(refs[0][0], plan.components, distance)
            rows += component_rows(choice, facts | {"distance": distance, "n": len(refs[0][0])})
            components = choice.components
        for draw, of_draw in enumerate(refs):
            columns = facts | {"draw": draw}
            more, missing, _ = score(of_draw, tests, losses, plan, distance, columns, components=components)
            rows += more
            reasons += [reason for reason in missing if reason not in reasons]
    return rows, reasons


def score(
    refs: Sequence[Predictions],
    tests: Sequence[Predictions],
    losses: DownstreamLosses,
    plan: SweepOptions,
    distance: str,
    facts: Row,
    *,
    components: int,
    seeds: Sequence[int] | None = None,
) -> tuple[list[Row], list[Row], dict[str, Array]]:
    """Rows, reasons and scores (n,) of one candidate, one distance and one draw of references.

    components  number of components of LL's mixtures
    seeds       seeds of the members; None: 0, 1, …
    """
    ks = [k for k in plan.ks if k < len(refs[0])] if distance == plan.swept else []
    spaces = member_spaces(
        refs,
        tests,
        metric=distance,
        k_nc=sorted({plan.k, *(ks if "nc" in plan.scores else ())}),
        k_dist=sorted({plan.k_dist, *(ks if "dist" in plan.scores else ())}),
        components=components,
        similarity=plan.similarity,
        seed=0,
    )
    if len(losses.index) != len(tests[0]):
        raise BadInput("The downstream heads and the scores are of different rows: index differs.")
    losses = losses.select(spaces.tests[0].index)
    builder = _ScoreRows(plan, components, losses, facts | {"distance": distance, "members": len(tests)})
    whole = spaces.scores()
    for name in plan.scores:
        builder.main(name, whole)
    if len(tests) > 1:
        builder.alone(spaces, whole, seeds or range(len(tests)))
    if distance == plan.swept:
        builder.sweeps(spaces, whole)
        if "ll" in builder.points and facts["draw"] == 0:
            builder.components_sweep(refs, tests)
    return builder.rows, builder.reasons, builder.points


@dataclass
class _ScoreRows:
    """Gathers the rows of one candidate, one distance and one sample of references."""

    plan: SweepOptions
    components: int
    losses: DownstreamLosses
    facts: Row
    rows: list[Row] = field(default_factory=list)
    reasons: list[Row] = field(default_factory=list)
    points: dict[str, Array] = field(default_factory=dict)

    def size(self, name: str) -> dict[str, int]:
        """The column with the neighbours of a score, or with the components of its mixtures."""
        sizes = {"nc": {"k": self.plan.k}, "dist": {"k": self.plan.k_dist}, "ll": {"components": self.components}}
        return sizes.get(name, {})

    def key(self, name: str) -> str:
        """nc → nc@100, as `SiblingScores` has it."""
        return f"{name}@{self.size(name)['k']}" if name in ("nc", "dist") else name

    def main(self, name: str, scores: SiblingScores) -> None:
        """The score with the paper's k against every loss: Tables 1 to 7."""
        try:
            u = scores[self.key(name)]
        except Undefined as reason:
            self.omit(name, None, reason)
            return
        self.points[name] = u
        self.row("mean", float(u.mean()), measure=name, **self.size(name))
        self.kendall(name, u, self.losses.ensemble, **self.size(name))

    def alone(self, spaces: Spaces, whole: SiblingScores, seeds: Sequence[int]) -> None:
        """Every member's own losses against the siblings' scores, and against its own alone: Tables 8 and 9."""
        for member, seed in enumerate(seeds):
            losses = {name: loss[member] for name, loss in self.losses.members.items()}
            of_member = spaces.scores([member])
            for name in self.points:
                columns = {"members": 1, "init_seed": seed, **self.size(name)}
                self.kendall(name, whole[self.key(name)], losses, **columns)
                if self.key(name) in of_member.u:
                    self.kendall(name + STAR, of_member[self.key(name)], losses, **columns)

    def sweeps(self, spaces: Spaces, whole: SiblingScores) -> None:
        """Other k, and the first m members, against the losses of all members: Figures 2, 4 and 5."""
        for name, u in whole.u.items():
            k = name.partition("@")[2]
            if k and kind(name) in self.points and int(k) in self.plan.ks:
                self.kendall(kind(name), u, self.losses.ensemble, sweep=NEIGHBOURS, k=int(k))
        for m in range(1, len(spaces.tests) + 1):
            some = spaces.scores(range(m), (self.plan.k,))
            for name in self.points:
                if self.key(name) in some.u:
                    columns = {"sweep": MEMBERS, "members": m, **self.size(name)}
                    self.kendall(name, some[self.key(name)], self.losses.ensemble, **columns)

    def components_sweep(self, refs: Sequence[Predictions], tests: Sequence[Predictions]) -> None:
        """LL by mixtures of every number of components."""
        for count in self.plan.components:
            if count <= len(refs[0]):
                u = member_densities(refs, tests, self.facts["distance"], count).mean(0)
                self.kendall("ll", u, self.losses.ensemble, sweep=COMPONENTS, components=count)

    def kendall(self, name: str, u: Array, losses: Mapping[str, Array], **columns: Any) -> None:
        for loss, values in losses.items():
            try:
                self.row(f"kendall_{loss}", metrics.kendall(u, values), measure=name, **columns)
            except Undefined as reason:
                self.omit(name, f"kendall_{loss}", reason)

    def row(self, metric: str, value: float, **columns: Any) -> None:
        number = {"metric": metric, "value": value, "n": len(self.losses.index)}
        self.rows.append(dict.fromkeys(COLUMNS) | self.facts | number | columns)

    def omit(self, name: str, metric: str | None, reason: Undefined) -> None:
        """Notes why there is no row."""
        columns = {column: self.facts.get(column) for column in ("method", "backbone", "target")}
        entry = columns | {"measure": name, "metric": metric, "reason": str(reason)}
        if entry not in self.reasons:
            self.reasons.append(entry)
