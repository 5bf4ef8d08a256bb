"""Transfer: are embeddings of classes that were not trained, and their uncertainty, of use for retrieval?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import ClassVar

import numpy as np

from nescio import metrics
from nescio.arrays.types import Array
from nescio.datasets.changes import Crop
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput, Undefined
from nescio.evaluations.base import Evaluation, Field, Headline, Inapplicable, Outputs, Subject, evaluation
from nescio.evaluations.scoring import compute_scores
from nescio.measures import gallery_scores
from nescio.predictions import Predictions
from nescio.rows import RowBuilder

LEFT_OUT, MEAN = "left out", "mean"
SCORES = ("native", "entropy", "msp", "norm")
VIEW = Crop(0.7, 0.9)


def new_classes(subject: Subject, downstream: Sequence[str], limit: int | None) -> dict[str, ImageSet]:
    """Target → images of classes that the networks were not trained on."""
    sets = {name: ImageSet(name, "all_ood", sample_size=limit) for name in downstream}
    if subject.left_out:
        sets[LEFT_OUT] = ImageSet(subject.data, "out", subject.classes)
    if not sets:
        raise Inapplicable("No downstream set was named, and every class of the data was trained.")
    return sets


def find_neighbours(predictions: Predictions) -> Array:
    """(n,) whether the nearest other image has the same label (R@1); embeddings of length zero have none."""
    if predictions.embeddings is None:
        raise Inapplicable("The network gives no embeddings: it has no last layer whose input could be taken.")
    embeddings, labels = np.asarray(predictions.embeddings), np.asarray(predictions.labels)
    usable, hits = embeddings.any(1), np.zeros(len(labels), bool)
    if usable.sum() > 1:
        hits[usable] = metrics.retrieved(embeddings[usable], labels[usable])
    return hits


@evaluation("transfer", question="Do embeddings of new classes retrieve their class, and are wrong ones uncertain?")
@dataclass(frozen=True)
class Transfer(Evaluation):
    """R@1 and R-AUROC of classes that were not trained (Kirchhof et al. 2023), with scores of the gallery."""

    fields: ClassVar[tuple[Field, ...]] = ("logits", "embeddings", "scores")
    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline("r_auroc", "higher", title="transfer R-AUROC", columns={"target": MEAN}),
        Headline("recall_at_1", "higher", by_score=False, title="transfer R@1", columns={"target": MEAN}),
    )
    downstream: tuple[str, ...] = ()
    limit: int | None = 10_000
    scores: tuple[str, ...] = SCORES

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        sets = new_classes(subject, self.downstream, self.limit)
        return sets | {f"{name}/view": replace(images, change=VIEW) for name, images in sets.items()}

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        for target in (name for name in outputs if not name.endswith("/view")):
            predictions = outputs[target]
            hits = find_neighbours(predictions)
            results.add("recall_at_1", hits.mean(), len(hits), split="downstream", target=target)
            scores = compute_scores(predictions, self.scores, results)
            try:
                gallery = gallery_scores(predictions, [outputs[f"{target}/view"]])
                scores |= gallery.u
            except (BadInput, Undefined) as reason:
                results.omit(reason, measure="gallery_uncertainty", target=target)
            for name, values in scores.items():
                area = partial(metrics.auroc, values, ~hits)
                results.attempt("r_auroc", area, len(hits), split="downstream", target=target, measure=name)
        add_means(results)


def add_means(results: RowBuilder) -> None:
    """Add the mean over targets of every metric and score."""
    for metric, measure in dict.fromkeys((row["metric"], row["measure"]) for row in results.rows):
        rows = [row for row in results.rows if (row["metric"], row["measure"]) == (metric, measure)]
        mean, count = fmean(row["value"] for row in rows), sum(row["n"] for row in rows)
        results.add(metric, mean, count, split="downstream", target=MEAN, measure=measure)
