"""Reliability of representations: which embeddings can be trusted, without labels?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from nescio.analysis.representations.agreement import SweepOptions, score, truth_rows
from nescio.analysis.representations.downstream import downstream_losses
from nescio.analysis.representations.row_scores import default_k
from nescio.datasets.image_set import ImageSet
from nescio.evaluations.base import Evaluation, Field, Headline, Inapplicable, Outputs, Subject, evaluation
from nescio.rows import RowBuilder

REFERENCES, TRAIN, TEST = "references", "train", "test"


@evaluation("reliability", question="Do embeddings that siblings agree on serve better downstream?")
@dataclass(frozen=True)
class Reliability(Evaluation):
    """Kendall's τ between scores of embeddings and the losses of heads on frozen features (Park et al. 2024): the
    neighbourhood consistency of siblings (NC), and its rivals distance, norm and feature variance."""

    fields: ClassVar[tuple[Field, ...]] = ("embeddings",)
    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline("kendall_brier", "higher", by_score=False, title="τ of NC and Brier score", columns={"measure": "nc"}),
    )
    siblings: ClassVar[bool] = True
    references: int = 2000
    images: int = 5000  # training images of the heads, and test images, at most
    scores: tuple[Literal["nc", "dist", "norm", "fv"], ...] = ("nc", "dist", "norm", "fv")

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        if len(subject.group.networks) < 2:
            raise Inapplicable("Neighbourhood consistency compares siblings: train with two seeds or more.")
        if not subject.trained_here:
            raise Inapplicable("The training images are not known for networks that were trained elsewhere.")
        train = ImageSet(subject.data, "train_val", subject.classes, limit=self.images)
        references = ImageSet(subject.data, "train_val", subject.classes, sample_size=self.references)
        return {REFERENCES: references, TRAIN: train, TEST: replace(subject.test_images, limit=self.images)}

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        from nescio.runtime import runtime_for

        references, train, tests = (outputs.members(name) for name in (REFERENCES, TRAIN, TEST))
        if any(member.embeddings is None for member in tests):
            raise Inapplicable("The network gives no embeddings: it has no last layer whose input could be taken.")
        losses = downstream_losses(train, tests, "one-vs-one", runtime_for(outputs.context.device).put)
        plan = SweepOptions(k=default_k(len(references[0])), ks=(), distances=("cosine",), scores=self.scores)
        facts = {**results.facts, "draw": 0, "members": len(tests)}
        rows, reasons, _ = score(references, tests, losses, plan, "cosine", facts, components=0)
        rows = [row for row in rows if row["init_seed"] is None and row["sweep"] is None]
        # in the line of single networks: no predictions are averaged
        results.rows += [{**row, "members": None} for row in truth_rows(losses, facts) + rows]
        for entry in reasons:
            results.omit(entry["reason"], measure=entry.get("measure"), metric=entry.get("metric"))
