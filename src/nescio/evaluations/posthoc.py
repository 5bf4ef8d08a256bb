"""Post-hoc scores: everything that follows from saved outputs of training, validation, test and other images."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

from nescio import measures
from nescio.analysis.scorecard import scorecard
from nescio.datasets.image_set import ImageSet
from nescio.evaluations.base import Evaluation, Field, Inapplicable, Outputs, Subject, evaluation
from nescio.evaluations.ood import other_classes
from nescio.rows import RowBuilder

METRICS = ("auroc", "fpr_at_tpr@0.95", "aurc", "augrc")
SLOW = ("gaussian_mixture", "vmf_mixture", "knn_distance")  # scores of representations


@evaluation("posthoc", question="Which score of saved outputs finds mistakes, and which finds other classes?")
@dataclass(frozen=True)
class PostHoc(Evaluation):
    """AUROC, FPR, AURC and AUGRC of every registered score, fitted on training images where it needs that."""

    fields: ClassVar[tuple[Field, ...]] = ("logits", "embeddings", "scores")
    near: tuple[str, ...] = ()
    far: tuple[str, ...] = ()
    fitted_rows: int = 10_000  # training images, at most

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        subject.require_logits()
        if len(subject.group.networks) > 1:
            raise Inapplicable("Scores of features are those of single networks: see the members of the ensemble.")
        sets = {"test": subject.test_images}
        with suppress(Inapplicable):  # networks from elsewhere: scores that are fitted are missing, with a reason
            train = replace(subject.train_images, limit=self.fitted_rows)
            sets = {"train": train, "val": subject.val_images, **sets}
        return sets | other_classes(subject, self.near, self.far)

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        others = {name: outputs[name] for name in outputs if name not in ("train", "val", "test")}
        names = [*score_names(), *measures.score_names(outputs["test"])]
        train, val = outputs.get("train"), outputs.get("val")
        card = scorecard(outputs["test"], train, val, others, calibration=None, only=names, classwise=False)
        for row in card.rows:
            if row["metric"] in METRICS and row["measure"] is not None:
                split, _, target = row["split"].partition(":")
                measure = row["measure"].removeprefix(measures.SCORE)
                kind = measures.registry[measure].kind if measure in measures.registry else ""
                results.add(
                    row["metric"],
                    row["value"],
                    row["n"],
                    split=split,
                    target=target or None,
                    measure=measure,
                    fitted_on={"fitted": "train", "tuned": "val"}.get(kind),
                )
        for entry in card.reasons:
            if entry["metric"] is None and entry["measure"] is not None:
                results.omit(entry["reason"], measure=entry["measure"])


def score_names() -> list[str]:
    """The registered measures of one set of predictions."""
    parts = [part for part in measures.registry.parts() if part.kind in ("plain", "fitted", "tuned")]
    return [part.name for part in parts if part.equivalent_to is None and part.name not in SLOW]
