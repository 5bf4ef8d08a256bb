"""OOD detection: are images of other classes more uncertain than test images?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Literal

from nescio.datasets.image_set import ImageSet
from nescio.evaluations.base import Evaluation, Field, Headline, Inapplicable, Outputs, Subject, evaluation
from nescio.evaluations.scoring import SCORES, compute_scores, rank_sets
from nescio.identity import map_content
from nescio.rows import RowBuilder

METRICS = ("auroc", "fpr_at_tpr@0.95")
NEAR, FAR, LEFT_OUT = "near", "far", "left out"
MOST = 10_000  # maximum number of images of each set


def other_classes(subject: Subject, near: Sequence[str], far: Sequence[str]) -> dict[str, ImageSet]:
    """near:NAME or far:NAME → images of classes that the networks were not trained on."""
    sets: dict[str, ImageSet] = {}
    if subject.left_out:
        sets[f"{NEAR}:{LEFT_OUT}"] = ImageSet(subject.data, "out", subject.classes)
    for group, names in ((NEAR, near), (FAR, far)):
        prefix = f"{group}:"
        sets |= {map_content(name, prefix.__add__): ImageSet(name, "all_ood", limit=MOST) for name in names}
    return sets


@evaluation("ood", question="Are images of other classes more uncertain than test images?")
@dataclass(frozen=True)
class OutOfDistribution(Evaluation):
    """AUROC and FPR at a TPR of 95 % of near and far sets, by every score. Left-out classes are a near set."""

    fields: ClassVar[tuple[Field, ...]] = ("logits", "scores")
    dtype: ClassVar[Literal["float32", "float16"]] = "float16"
    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline("auroc", "higher", title="OOD AUROC", columns={"split": "mean", "target": None}),
    )
    near: tuple[str, ...] = ()
    far: tuple[str, ...] = ()
    scores: tuple[str, ...] = SCORES

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        subject.require_logits()
        sets = other_classes(subject, self.near, self.far)
        if not sets:
            raise Inapplicable("No out-of-distribution set was named, and every class of the data was trained.")
        return {"test": subject.test_images} | sets

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        in_scores = compute_scores(outputs["test"], self.scores, results)
        for name in outputs:
            group, _, target = name.partition(":")
            if target:
                ood_scores = compute_scores(outputs[name], in_scores)
                rank_sets(in_scores, ood_scores, METRICS, results, split=group, target=target)
        for score in in_scores:
            rows = [row for row in results.rows if row["measure"] == score and row["metric"] == "auroc"]
            if rows:
                count = sum(row["n"] for row in rows)
                results.add("auroc", fmean(row["value"] for row in rows), count, split="mean", measure=score)
