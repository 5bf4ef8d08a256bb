"""Graded OOD detection: other classes from the easiest to the hardest for each network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Unpack

import numpy as np

from nescio.analysis.graded_ood import OODGrades, grade_ood, split_ood_classes, window_size
from nescio.datasets.image_set import ImageSet
from nescio.evaluations.base import Evaluation, Headline, Inapplicable, Outputs, Subject, evaluation
from nescio.evaluations.ood import other_classes
from nescio.evaluations.scoring import compute_scores
from nescio.rows import Columns, RowBuilder

FEWEST_CLASSES, FEWEST_IMAGES = 4, 8


@evaluation("graded-ood", question="How hard must other classes be before they are no longer detected?")
@dataclass(frozen=True)
class GradedOOD(Evaluation):
    """AUROC of groups of other classes, sorted by the confidence of the network itself (Galil et al. 2023).

    Three quarters of the images of a class set its severity, the others are detected.
    """

    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline("auroc", "higher", title="AUROC of the hardest other classes", columns={"severity": 10.0}),
    )
    near: tuple[str, ...] = ()
    far: tuple[str, ...] = ()
    scores: tuple[str, ...] = ("native", "entropy", "msp")
    groups: int = 11

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        subject.require_logits()
        sets = other_classes(subject, self.near, self.far)
        graded = {name: images for name, images in sets.items() if class_counts(images, subject.root) is not None}
        if not graded:
            raise Inapplicable(
                f"No out-of-distribution set has {FEWEST_CLASSES} classes with {FEWEST_IMAGES} images each."
            )
        return {"test": subject.test_images} | graded

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        in_scores = compute_scores(outputs["test"], self.scores, results)
        in_classes = len(np.unique(np.asarray(outputs["test"].labels)))
        for name in (name for name in outputs if name != "test"):
            group, _, target = name.partition(":")
            predictions = outputs[name]
            labels = np.asarray(predictions.labels)
            fewest = int(np.unique(labels, return_counts=True)[1].min())
            test = max(2, fewest // 4)
            division = split_ood_classes(labels, predictions.index, fewest - test, test)
            window = window_size(None, in_classes, len(division.classes))
            ood_scores = compute_scores(predictions, in_scores)
            for score in (score for score in in_scores if score in ood_scores):
                grades = grade_ood(in_scores[score], ood_scores[score], division, window, self.groups)
                columns: Columns = {"split": group, "target": target, "measure": score}
                add_grades(grades, len(in_scores[score]) + window * test, results, **columns)


def add_grades(grades: OODGrades, count: int, results: RowBuilder, **columns: Unpack[Columns]) -> None:
    """Add the AUROC of every severity."""
    for severity, value in enumerate(grades.aurocs):
        columns["severity"] = float(severity)
        results.add("auroc", value, count, **columns)


def class_counts(images: ImageSet, root: str | None) -> Sequence[int] | None:
    """Images of each class; None if there are too few classes or images to grade."""
    loaded = images.load(root)
    if not loaded.labelled:
        return None
    counts = np.unique(loaded.labels, return_counts=True)[1]
    enough = len(counts) >= FEWEST_CLASSES and counts.min() >= FEWEST_IMAGES
    return counts.tolist() if enough else None
