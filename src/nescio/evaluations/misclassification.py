"""Misclassification detection: is a wrong prediction more uncertain than a right one?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nescio import measures
from nescio.datasets.image_set import ImageSet
from nescio.evaluations.base import Evaluation, Headline, Outputs, Subject, evaluation
from nescio.evaluations.scoring import SCORES, compute_scores, rank_rows
from nescio.rows import RowBuilder

METRICS = ("auroc", "aurc", "augrc", "sac@0.95", "selective_risk@0.8")


@evaluation("misclassification", question="Is a wrong prediction more uncertain than a right one?")
@dataclass(frozen=True)
class Misclassification(Evaluation):
    """AUROC, AURC, AUGRC, coverage at an accuracy of 95 % and risk at a coverage of 80 %, for every score."""

    headlines: ClassVar[tuple[Headline, ...]] = (Headline("auroc", "higher", title="misclassification AUROC"),)
    scores: tuple[str, ...] = SCORES

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        subject.require_logits()
        return {"test": subject.test_images}

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        wrong = measures.summary(outputs["test"]).outcomes().wrong
        rank_rows(compute_scores(outputs["test"], self.scores, results), wrong, METRICS, results)
