"""Reliability of representations: which embeddings can be trusted, without labels?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from nescio.analysis.representations.agreement import SweepOptions, add_accuracies, evaluate
from nescio.analysis.representations.downstream import downstream_losses
from nescio.analysis.representations.ranking import DEFAULT_K, Distance, default_k
from nescio.datasets.image_set import ImageSet
from nescio.datasets.names import same_images
from nescio.evaluations.base import Evaluation, Field, Headline, Inapplicable, Outputs, Subject, evaluation
from nescio.identity import tag
from nescio.predictions.columns import to_npz
from nescio.rows import Columns, RowBuilder
from nescio.work.steps import Files

REFERENCES, TRAIN, TEST = "references", "train", "test"
SCORES = "scores.npz"  # losses, and scores of every test row: DISTANCE/DRAW/SCORE


@evaluation("reliability", question="Do embeddings that siblings agree on serve better downstream?")
@dataclass(frozen=True)
class Reliability(Evaluation, SweepOptions):
    """Kendall's τ between scores of embeddings and the losses of heads on frozen features (Park et al. 2024): the
    neighbourhood consistency of siblings (NC), and its rivals distance, norm, feature variance and density.

    target    data of the heads; None: the data that the networks were trained on
    images    training images of the heads, and test images, at most
    detailed  also single networks and the sweeps over k, M and C; k is not reduced for few references
    """

    fields: ClassVar[tuple[Field, ...]] = ("embeddings",)
    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline("kendall_brier", "higher", by_score=False, title="τ of NC and Brier score", columns={"measure": "nc"}),
    )
    siblings: ClassVar[bool] = True
    k: int = DEFAULT_K
    ks: tuple[int, ...] = ()
    distances: tuple[Distance, ...] = ("cosine",)
    scores: tuple[Literal["nc", "dist", "norm", "ll", "fv"], ...] = ("nc", "dist", "norm", "fv")
    target: str | None = None
    references: int = 2000
    draws: int = 1
    images: int | None = 5000
    tasks: Literal["one-vs-one", "multiclass"] = "one-vs-one"
    detailed: bool = False

    @property
    def title(self) -> str:
        return f"{self.name} → {self.target}" if self.target else self.name

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        if len(subject.group.networks) < 2 and not self.detailed:
            raise Inapplicable("Neighbourhood consistency compares siblings: train with two seeds or more.")
        if not subject.trained_here:
            raise Inapplicable("The training images are not known for networks that were trained elsewhere.")
        return reference_sets(subject, self.references, self.draws) | head_sets(subject, self.target, self.images)

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> Files:
        from nescio.runtime import runtime_for

        train, tests = (outputs.members(name) for name in (TRAIN, TEST))
        refs = [outputs.members(name) for name in outputs if name.startswith(REFERENCES)]
        if any(member.embeddings is None for member in tests):
            raise Inapplicable("The network gives no embeddings: it has no last layer whose input could be taken.")
        losses = downstream_losses(train, tests, self.tasks, runtime_for(outputs.context.device).put)
        options = self if self.detailed else replace(self, k=min(self.k, default_k(len(refs[0][0]))))
        columns: Columns = {"target": self.target} if self.target else {}
        seeds = [trial.init_seed for trial in subject.group.trials]
        scores = evaluate(refs, tests, losses, options, results, detailed=self.detailed, seeds=seeds, **columns)
        if not self.detailed:  # in the line of single networks: no predictions are averaged
            results.rows = [{**row, "members": None} for row in results.rows]
        arrays = {
            f"{distance}/{draw}/{name}": u
            for (distance, draw), by_name in scores.items()
            for name, u in by_name.items()
        }
        return {SCORES: to_npz(losses.arrays() | arrays)}


@tag("evaluation:representation")
@dataclass(frozen=True)
class Representation(Evaluation):
    """Accuracies of a linear probe and of the nearest neighbours, on the embeddings of one network."""

    name: ClassVar[str] = "representation"
    question: ClassVar[str] = "How well do frozen embeddings separate classes?"
    fields: ClassVar[tuple[Field, ...]] = ("embeddings",)
    target: str | None = None
    k: int = 20

    @property
    def title(self) -> str:
        return f"{self.name} → {self.target}" if self.target else self.name

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        return head_sets(subject, self.target)

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        from nescio.runtime import runtime_for

        results.facts |= {"target": self.target}
        add_accuracies(outputs[TRAIN], outputs[TEST], self.k, results, runtime_for(outputs.context.device).put)


def reference_sets(subject: Subject, count: int, draws: int) -> dict[str, ImageSet]:
    """Draws of references: images that all networks were trained on, the same for all of them."""
    one_split = len({trial.data_seed for trial in subject.group.trials}) == 1
    split: Literal["train", "train_val"] = "train" if one_split else "train_val"
    return {
        f"{REFERENCES} {draw}": ImageSet(subject.data, split, subject.classes, sample_size=count, sample_seed=draw)
        for draw in range(draws)
    }


def head_sets(subject: Subject, target: str | None, limit: int | None = None) -> dict[str, ImageSet]:
    """Images that heads are trained on, and those that they are evaluated on."""
    data = target or subject.data
    classes = subject.classes if same_images(data, subject.data, subject.root) else None
    test = replace(subject.test_images, data=data, split="test", classes=classes, limit=limit)
    return {TRAIN: ImageSet(data, "train_val", classes, limit=limit), TEST: test}
