"""Crops: is a small crop of an image more uncertain than the image?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from nescio import metrics
from nescio.datasets.changes import Crop
from nescio.datasets.image_set import ImageSet
from nescio.evaluations.base import Evaluation, Field, Headline, Outputs, Subject, evaluation
from nescio.evaluations.scoring import compute_scores
from nescio.rows import RowBuilder


@evaluation("crops", question="Is a crop of an image more uncertain than the image?")
@dataclass(frozen=True)
class Crops(Evaluation):
    """Share of test images whose random crop has a higher uncertainty (Kirchhof et al. 2023, section 4.3)."""

    fields: ClassVar[tuple[Field, ...]] = ("logits", "embeddings", "scores")
    headlines: ClassVar[tuple[Headline, ...]] = (Headline("crop_agreement", "higher", title="crop agreement"),)
    scores: tuple[str, ...] = ("native", "entropy", "msp", "norm")

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        images = subject.test_images
        return {"test": images, "crop": replace(images, change=Crop())}

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        whole = compute_scores(outputs["test"], self.scores, results)
        crop = compute_scores(outputs["crop"], whole)
        for name in (name for name in whole if name in crop):
            share = partial(metrics.crop_agreement, whole[name], crop[name])
            results.attempt("crop_agreement", share, len(whole[name]), measure=name)
