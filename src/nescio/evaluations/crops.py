"""Crops: is a small crop of an image more uncertain than the image?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from nescio import metrics
from nescio.arrays.nearest import nearest_rows, prepare_points
from nescio.arrays.types import Array
from nescio.datasets.changes import Crop
from nescio.datasets.image_set import ImageSet
from nescio.evaluations.base import Evaluation, Field, Headline, Outputs, Subject, TargetSet, evaluation, named_images
from nescio.evaluations.scoring import compute_scores
from nescio.evaluations.transfer import add_retrieval, embeddings_of
from nescio.rows import RowBuilder

OWN_IMAGE = "own-image"  # evaluation of results about retrieval by crops


@evaluation("crops", question="Is a crop of an image more uncertain than the image?")
@dataclass(frozen=True)
class Crops(Evaluation):
    """Share of test images whose random crop has a higher uncertainty (Kirchhof et al. 2023, section 4.3)."""

    fields: ClassVar[tuple[Field, ...]] = ("logits", "embeddings", "scores")
    headlines: ClassVar[tuple[Headline, ...]] = (Headline("crop_agreement", "higher", title="crop agreement"),)
    scores: tuple[str, ...] = ("native", "entropy", "msp", "norm")
    sets: tuple[TargetSet, ...] = ()  # instead of the test images
    retrieval: bool = False  # whether the nearest image of a crop is its own, in results of "own-image"
    bootstrap: int = 0  # resamples for intervals of retrieval

    def target_sets(self, subject: Subject) -> tuple[TargetSet, ...]:
        return self.sets or (TargetSet(subject.test_images),)

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        whole = named_images(self.target_sets(subject))
        return whole | {f"{name}/crop": replace(images, change=Crop()) for name, images in whole.items()}

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        for target in self.target_sets(subject):
            image, crop = outputs[target.name], outputs[f"{target.name}/crop"]
            scores = compute_scores(image, self.scores, results)
            crop_scores = compute_scores(crop, scores)
            for name in (name for name in scores if name in crop_scores):
                share = partial(metrics.crop_agreement, scores[name], crop_scores[name])
                results.attempt("crop_agreement", share, len(scores[name]), measure=name, **target.columns)
            if self.retrieval:
                hits = find_own_images(embeddings_of(image), embeddings_of(crop))
                add_retrieval(crop_scores, hits, self.bootstrap, results, evaluation=OWN_IMAGE, **target.columns)


def find_own_images(images: Array, crops: Array) -> Array:
    """(n,) whether the nearest image of a crop is the one that it was cut from (Kirchhof et al. 2023, A.6)."""
    nonzero, hits = images.any(1) & crops.any(1), np.zeros(len(images), bool)
    if nonzero.any():
        references = prepare_points(images[nonzero], "cosine")
        neighbours = nearest_rows(references, prepare_points(crops[nonzero], "cosine", like=references), (1,))[:, 0]
        hits[nonzero] = neighbours == np.arange(len(neighbours))
    return hits
