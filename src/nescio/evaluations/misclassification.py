"""Misclassification detection: is a wrong prediction more uncertain than a right one?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from nescio import measures
from nescio.analysis.metric_specs import parse_metric
from nescio.datasets.image_set import ImageSet
from nescio.evaluations.base import Evaluation, Headline, Inapplicable, Outputs, Subject, evaluation
from nescio.evaluations.scoring import SCORES, compute_scores, rank_rows
from nescio.rows import Columns, RowBuilder

METRICS = ("auroc", "aurc", "augrc", "sac@0.95", "selective_risk@0.8")


@evaluation("misclassification", question="Is a wrong prediction more uncertain than a right one?")
@dataclass(frozen=True)
class Misclassification(Evaluation):
    """AUROC, AURC, AUGRC, coverage at an accuracy of 95 % and risk at a coverage of 80 %, for every score."""

    headlines: ClassVar[tuple[Headline, ...]] = (Headline("auroc", "higher", title="misclassification AUROC"),)
    scores: tuple[str, ...] = SCORES
    metrics: tuple[str, ...] = METRICS  # of predictions, such as accuracy, or of scores
    split: str | None = None  # column of all results

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        subject.require_logits()
        return {"test": subject.test_images}

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        predictions = outputs["test"]
        if predictions.logits is None or not predictions.has_outcomes:
            raise Inapplicable("There are no predicted classes and labels that could be compared.")
        outcomes = measures.summary(predictions).outcomes()
        specs = [parse_metric(name) for name in self.metrics]
        columns: Columns = {"split": self.split} if self.split else {}
        for spec in specs:
            if not spec.ranks:
                results.attempt(spec.label, partial(spec, outcomes), outcomes.n, **columns)
        ranking = [spec.label for spec in specs if spec.ranks]
        rank_rows(compute_scores(predictions, self.scores, results), outcomes.wrong, ranking, results, **columns)
