"""How scores without labels agree with downstream performance: the rows of one candidate, from dumps alone.

Scores of every test row (`measures.siblings`), losses of heads that had labels (`analysis.downstream`), and Kendall's τ
between them; beside it how good the representation is, and how many components the mixtures of LL have.
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
        """The distance whose sweeps over k and M are kept."""
        return "cosine" if "cosine" in self.distances else self.distances[0]


def require_some(plan: Validated, *names: str) -> None:
    """Refuses a plan that names nothing where it must."""
    for name in names:
        if not getattr(plan, name):
            raise BadInput(f"{name} names none: there is nothing to compare.")


def truth_rows(losses: DownstreamLosses, facts: Row) -> list[Row]:
    """The means over test rows: how good the representation is downstream."""
    base = dict.fromkeys(COLUMNS) | facts | {"n": len(losses.index)}
    return [base | {"metric": name, "value": float(loss.mean())} for name, loss in losses.together.items()]


def accuracy_rows(
    train: Predictions, test: Predictions, k: int, facts: Row, place: Callable[[Array], Any] = np.asarray
) -> list[Row]:
    """How good the representation of one network is."""
    base = dict.fromkeys(COLUMNS) | facts | {"n": len(test)}
    return [
        base | {"metric": "probe_accuracy", "value": probe_accuracy(train, test, place)},
        base | {"metric": "knn_accuracy", "value": knn_accuracy(train, test, k), "k": k},
    ]


def component_rows(choice: ComponentChoice, facts: Row) -> list[Row]:
    """The number of components that was chosen, and the mean log-likelihood by which it was."""
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
    there = [number for number, own in enumerate(points) if own]  # one that has collapsed has none
    for name, loss, taus in agreements([points[number] for number in there], [losses[number] for number in there]):
        about = {"measure": name, "metric": f"ranking_{loss}"}
        if isinstance(taus, Undefined):
            reasons.append(about | {"reason": str(taus)})
        else:
            rows.append(dict.fromkeys(COLUMNS) | facts | about | {"value": float(taus.mean()), "n": len(taus)})
    return rows, reasons


def evaluate(
    refs: Sequence[Sequence[Predictions]],
    tests: Sequence[Predictions],
    losses: DownstreamLosses,
    plan: SweepOptions,
    facts: Row,
) -> tuple[list[Row], list[Row]]:
    """Rows and reasons of one candidate from dumps alone: refs hold, for every sample, one dump per member."""
    rows, reasons = truth_rows(losses, facts), list[Row]()
    for distance in plan.distances:
        components = 0
        if "ll" in plan.scores:
            choice = chosen_components(refs[0][0], plan.components, distance)
            rows += component_rows(choice, facts | {"distance": distance, "n": len(refs[0][0])})
            components = choice.components
        for sample, own in enumerate(refs):
            about = facts | {"draw": sample}
            more, missing, _ = score(own, tests, losses, plan, distance, about, components=components)
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
    """Rows, reasons and the scores (n,) themselves, of one candidate, one distance and one sample of references.

    `components` are those of LL's mixtures, `seeds` those of the members; 0, 1, … by default.
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
    made = _ScoreRows(plan, components, losses, facts | {"distance": distance, "members": len(tests)})
    whole = spaces.scores()
    for name in plan.scores:
        made.main(name, whole)
    if len(tests) > 1:
        made.alone(spaces, whole, seeds or range(len(tests)))
    if distance == plan.swept:
        made.sweeps(spaces, whole)
        if "ll" in made.points and facts["draw"] == 0:
            made.components_sweep(refs, tests)
    return made.rows, made.reasons, made.points


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
        self.kendall(name, u, self.losses.together, **self.size(name))

    def alone(self, spaces: Spaces, whole: SiblingScores, seeds: Sequence[int]) -> None:
        """Every member's own losses against the siblings' scores, and against its own alone: Tables 8 and 9."""
        for member, seed in enumerate(seeds):
            losses = {name: loss[member] for name, loss in self.losses.alone.items()}
            own = spaces.scores([member])
            for name in self.points:
                about = {"members": 1, "init_seed": seed, **self.size(name)}
                self.kendall(name, whole[self.key(name)], losses, **about)
                if self.key(name) in own.u:
                    self.kendall(name + STAR, own[self.key(name)], losses, **about)

    def sweeps(self, spaces: Spaces, whole: SiblingScores) -> None:
        """Other k, and the first m members, against the losses of all members: Figures 2, 4 and 5."""
        for name, u in whole.u.items():
            k = name.partition("@")[2]
            if k and kind(name) in self.points and int(k) in self.plan.ks:
                self.kendall(kind(name), u, self.losses.together, sweep=NEIGHBOURS, k=int(k))
        for m in range(1, len(spaces.tests) + 1):
            some = spaces.scores(range(m), (self.plan.k,))
            for name in self.points:
                if self.key(name) in some.u:
                    about = {"sweep": MEMBERS, "members": m, **self.size(name)}
                    self.kendall(name, some[self.key(name)], self.losses.together, **about)

    def components_sweep(self, refs: Sequence[Predictions], tests: Sequence[Predictions]) -> None:
        """LL by mixtures of every number of components."""
        for count in self.plan.components:
            if count <= len(refs[0]):
                u = member_densities(refs, tests, self.facts["distance"], count).mean(0)
                self.kendall("ll", u, self.losses.together, sweep=COMPONENTS, components=count)

    def kendall(self, name: str, u: Array, losses: Mapping[str, Array], **about: Any) -> None:
        for loss, values in losses.items():
            try:
                self.row(f"kendall_{loss}", metrics.kendall(u, values), measure=name, **about)
            except Undefined as reason:
                self.omit(name, f"kendall_{loss}", reason)

    def row(self, metric: str, value: float, **about: Any) -> None:
        number = {"metric": metric, "value": value, "n": len(self.losses.index)}
        self.rows.append(dict.fromkeys(COLUMNS) | self.facts | number | about)

    def omit(self, name: str, metric: str | None, reason: Undefined) -> None:
        """Notes why there is no row."""
        about = {column: self.facts.get(column) for column in ("method", "backbone", "target")}
        entry = about | {"measure": name, "metric": metric, "reason": str(reason)}
        if entry not in self.reasons:
            self.reasons.append(entry)
