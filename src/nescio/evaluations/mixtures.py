"""Mixtures: retrieval and uncertainty among equally many images of new and of trained classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nescio.datasets.image_set import ImageSet, draw_rows
from nescio.evaluations.base import Evaluation, Field, Headline, Outputs, Subject, TargetSet, evaluation, named_images
from nescio.evaluations.scoring import compute_scores, rank_sets
from nescio.evaluations.transfer import (
    R_AUROC,
    SCORES,
    add_means,
    add_retrieval,
    embeddings_of,
    find_neighbours,
    new_class_sets,
)
from nescio.identity import seed_for
from nescio.rows import RowBuilder

TRAINED = "trained classes"  # image set
UPSTREAM, OUT, MIXED = "upstream", "out", "mixed"  # splits: trained classes, new classes, both
QUANTILES = tuple(number / 20 for number in range(1, 20))


@evaluation("mixtures", question="Do embeddings and uncertainty keep their use among images of trained classes?")
@dataclass(frozen=True)
class Mixtures(Evaluation):
    """AUROC of new against trained classes, R@1 and R-AUROC of both together, and quantiles of the lengths of
    embeddings (Kirchhof et al. 2023, C.4 and C.5)."""

    fields: ClassVar[tuple[Field, ...]] = ("logits", "embeddings", "scores")
    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline(R_AUROC, "higher", title="mixture R-AUROC", columns={"split": MIXED, "target": "mean"}),
    )
    downstream: tuple[str, ...] = ()
    limit: int | None = 10_000
    scores: tuple[str, ...] = SCORES
    sets: tuple[TargetSet, ...] = ()  # instead of `downstream`, without means over targets
    bootstrap: int = 0  # resamples for intervals

    def target_sets(self, subject: Subject) -> tuple[TargetSet, ...]:
        return self.sets or new_class_sets(subject, self.downstream, self.limit)

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        return {TRAINED: subject.test_images} | named_images(self.target_sets(subject))

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        trained_scores = compute_scores(outputs[TRAINED], self.scores, results)
        for target in self.target_sets(subject):
            predictions = outputs[TRAINED], outputs[target.name]
            count = min(map(len, predictions))
            sampled_rows = [
                draw_rows(len(side_predictions), count, seed_for("url mixture", target.target))
                for side_predictions in predictions
            ]
            new_scores = compute_scores(predictions[1], trained_scores)
            trained = {name: trained_scores[name][sampled_rows[0]] for name in new_scores}
            new = {name: values[sampled_rows[1]] for name, values in new_scores.items()}
            rank_sets(trained, new, ("auroc",), results, split=OUT, target=target.target)
            embeddings = [
                embeddings_of(side_predictions)[rows]
                for side_predictions, rows in zip(predictions, sampled_rows, strict=True)
            ]
            labels = [  # different for the two sets
                2 * np.asarray(side_predictions.labels)[rows] + i
                for i, (side_predictions, rows) in enumerate(zip(predictions, sampled_rows, strict=True))
            ]
            hits = find_neighbours(
                np.concatenate(embeddings), np.concatenate(labels), results, split=MIXED, target=target.target
            )
            mixture = {name: np.concatenate([trained[name], new[name]]) for name in new}
            add_retrieval(mixture, hits, self.bootstrap, results, split=MIXED, target=target.target)
            for split, side_predictions in zip((UPSTREAM, OUT), embeddings, strict=True):
                lengths = np.linalg.norm(side_predictions.astype(np.float64), axis=1)
                for quantile, value in zip(QUANTILES, np.quantile(lengths, QUANTILES), strict=True):
                    results.add("length", value, count, target=target.target, split=split, quantile=quantile)
        if not self.sets:
            add_means(results)
