"""Few-shot classification of new classes from frozen embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from nescio import metrics
from nescio.arrays.types import Array
from nescio.datasets.image_set import ImageSet
from nescio.evaluations.base import Evaluation, Field, Headline, Inapplicable, Outputs, Subject, evaluation
from nescio.evaluations.transfer import new_classes
from nescio.identity import seed_for
from nescio.rows import RowBuilder

DRAWS = 20  # random choices of the labelled images


@evaluation("few-shot", question="Are new classes classified from a few labelled images?")
@dataclass(frozen=True)
class FewShot(Evaluation):
    """Nearest class mean of k labelled embeddings (Snell et al. 2017): accuracy, and AUROC of wrong predictions by the
    margin between the two nearest class means. Means over random choices of the labelled images."""

    fields: ClassVar[tuple[Field, ...]] = ("embeddings", "logits", "scores")
    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline("accuracy", "higher", by_score=False, title="5-shot accuracy", columns={"shots": 5}),
    )
    downstream: tuple[str, ...] = ()
    shots: tuple[int, ...] = (1, 2, 5, 10)
    limit: int | None = 10_000

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        return dict(new_classes(subject, self.downstream, self.limit))

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        for target in outputs:
            predictions = outputs[target]
            if predictions.embeddings is None:
                raise Inapplicable("The network gives no embeddings: it has no last layer whose input could be taken.")
            embeddings, labels = np.asarray(predictions.embeddings, np.float64), np.asarray(predictions.labels)
            for shots in self.shots:
                draws = [classify_by_mean(embeddings, labels, shots, draw) for draw in range(DRAWS)]
                if any(draw is None for draw in draws):
                    results.omit(f"A class has no more than {shots} images.", target=target, metric="accuracy")
                    continue
                valid = [draw for draw in draws if draw is not None]
                rows = sum(len(wrong) for wrong, _ in valid)
                columns = {"split": "downstream", "target": target, "shots": shots}
                results.add("accuracy", 1 - float(np.mean([wrong.mean() for wrong, _ in valid])), rows, **columns)  # type: ignore[arg-type]
                with_errors = [(wrong, u) for wrong, u in valid if wrong.any() and not wrong.all()]
                if with_errors:
                    area = partial(np.mean, [metrics.auroc(u, wrong) for wrong, u in with_errors])
                    results.attempt("auroc", area, rows, measure="class_mean_margin", **columns)  # type: ignore[arg-type]


def classify_by_mean(embeddings: Array, labels: Array, shots: int, draw: int) -> tuple[Array, Array] | None:
    """(wrong, uncertainty) of the images that are not labelled; None if a class has no image beside the labelled ones.

    The uncertainty is the cosine with the second-nearest class mean minus that with the nearest one.
    """
    generator = np.random.Generator(np.random.PCG64(seed_for("few-shot", draw, shots)))
    normalised = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
    classes = np.unique(labels)
    labelled = np.zeros(len(labels), bool)
    for label in classes:
        rows = np.flatnonzero(labels == label)
        if len(rows) <= shots:
            return None
        labelled[rows[np.argsort(generator.random(len(rows)), kind="stable")[:shots]]] = True
    means = np.stack([normalised[labelled & (labels == label)].mean(0) for label in classes])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    cosines = normalised[~labelled] @ means.T
    order = np.sort(cosines, axis=1)
    return classes[cosines.argmax(1)] != labels[~labelled], order[:, -2] - order[:, -1]
