"""Human votes: is uncertainty higher for images on which people disagree?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from nescio import metrics
from nescio.datasets.image_set import ImageSet
from nescio.evaluations.base import (
    Evaluation,
    Field,
    Headline,
    Inapplicable,
    Outputs,
    Subject,
    TargetSet,
    evaluation,
    named_images,
)
from nescio.evaluations.scoring import compute_scores
from nescio.rows import RowBuilder


@evaluation("human", question="Is an image uncertain about which people disagree?")
@dataclass(frozen=True)
class HumanAlignment(Evaluation):
    """Rank correlation of uncertainty with the entropy of human votes (Kirchhof et al. 2023, section 4.3)."""

    fields: ClassVar[tuple[Field, ...]] = ("logits", "embeddings", "scores")
    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline("human_alignment", "higher", title="alignment with human votes"),
    )
    voted: tuple[str, ...] = ()  # sets with several votes of every image
    limit: int | None = 10_000
    scores: tuple[str, ...] = ("native", "entropy", "msp", "norm")
    sets: tuple[TargetSet, ...] = ()  # instead of `voted`

    def target_sets(self, subject: Subject) -> tuple[TargetSet, ...]:
        if self.sets:
            return self.sets
        if self.voted:
            images = {name: ImageSet(name, "test_or_all", sample_size=self.limit) for name in self.voted}
            return tuple(TargetSet(image_set, "human", name) for name, image_set in images.items())
        if subject.test_images.load(subject.root).images.annotations is not None:
            return (TargetSet(subject.test_images, "human", "test"),)
        raise Inapplicable("The test images have no human votes: name a set that has, such as cifar10h.")

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        return named_images(self.target_sets(subject))

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        for target in self.target_sets(subject):
            predictions, votes = outputs[target.name], outputs.images(target.name).images.annotations
            if votes is None or len(votes) != len(predictions):
                results.omit("The images have no human votes.", **target.columns)
                continue
            for name, values in compute_scores(predictions, self.scores, results).items():
                alignment = partial(metrics.human_alignment, values, votes)
                results.attempt("human_alignment", alignment, len(values), **target.columns, measure=name)
