"""Transfer: are embeddings of classes that were not trained, and their uncertainty, of use for retrieval?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import ClassVar, Unpack

import numpy as np

from nescio import metrics
from nescio.analysis.bootstrap import interval, resample
from nescio.analysis.metric_kinds import retrieval_resampler
from nescio.analysis.metric_specs import parse_metric
from nescio.analysis.resamplers import Resampler, ShareResampler
from nescio.arrays.types import Array
from nescio.datasets.changes import Crop
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput, Undefined
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
from nescio.measures import gallery_scores
from nescio.predictions import Predictions
from nescio.rows import Columns, RowBuilder

LEFT_OUT, MEAN, DOWNSTREAM = "left out", "mean", "downstream"
RECALL, R_AUROC = "recall_at_1", "r_auroc"
TIED_SHARE = "tied_share"  # metric: share of images with the most frequent value of a score, if above 0.5
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


def new_class_sets(subject: Subject, downstream: Sequence[str], limit: int | None) -> tuple[TargetSet, ...]:
    return tuple(
        TargetSet(images, DOWNSTREAM, name) for name, images in new_classes(subject, downstream, limit).items()
    )


def embeddings_of(predictions: Predictions) -> Array:
    if predictions.embeddings is None:
        raise Inapplicable("The network gives no embeddings: it has no last layer whose input could be taken.")
    return np.asarray(predictions.embeddings)


def find_neighbours(embeddings: Array, labels: Array, results: RowBuilder, **columns: Unpack[Columns]) -> Array:
    """(n,) whether the nearest other image has the same label (R@1); False for embeddings of length zero."""
    nonzero, hits = embeddings.any(1), np.zeros(len(labels), bool)
    if nonzero.sum() > 1:
        hits[nonzero] = metrics.retrieved(embeddings[nonzero], labels[nonzero])
    if zeros := int((~nonzero).sum()):
        reason = f"{zeros} of {len(labels)} embeddings have length zero, and so no neighbour: they count as wrong."
        results.omit(reason, metric=RECALL, **columns)
    return hits


def add_retrieval(
    scores: Mapping[str, Array], hits: Array, bootstrap: int, results: RowBuilder, **columns: Unpack[Columns]
) -> None:
    """Add R@1, and R-AUROC of every score; intervals over resampled images, with their neighbours as they are."""
    share = ShareResampler(hits, parse_metric(RECALL))
    areas: dict[str, Resampler] = {name: retrieval_resampler(values, hits) for name, values in scores.items()}
    samples = resample([share, *areas.values()], len(hits), bootstrap, 0) if bootstrap else None
    for index, (name, resampler) in enumerate([(None, share), *areas.items()]):
        metric, (value,) = R_AUROC if name else RECALL, resampler.point()
        if isinstance(value, Undefined):
            results.omit(value, metric=metric, measure=name, **columns)
            continue
        low, high = (None, None) if samples is None else interval(samples[index])
        numbers: Columns = {**columns, "measure": name, "low": low, "high": high}
        results.add(metric, value, len(hits), **numbers)


@evaluation("transfer", question="Do embeddings of new classes retrieve their class, and are wrong ones uncertain?")
@dataclass(frozen=True)
class Transfer(Evaluation):
    """R@1 and R-AUROC of classes that were not trained (Kirchhof et al. 2023), with scores of the gallery."""

    fields: ClassVar[tuple[Field, ...]] = ("logits", "embeddings", "scores")
    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline(R_AUROC, "higher", title="transfer R-AUROC", columns={"target": MEAN}),
        Headline(RECALL, "higher", by_score=False, title="transfer R@1", columns={"target": MEAN}),
    )
    downstream: tuple[str, ...] = ()
    limit: int | None = 10_000
    scores: tuple[str, ...] = SCORES
    sets: tuple[TargetSet, ...] = ()  # instead of `downstream`, without means over targets
    bootstrap: int = 0  # resamples for intervals
    gallery: bool = True  # with the score that reads the gallery, which needs a second view of every image

    def target_sets(self, subject: Subject) -> tuple[TargetSet, ...]:
        return self.sets or new_class_sets(subject, self.downstream, self.limit)

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        sets = named_images(self.target_sets(subject))
        views = {f"{name}/view": replace(images, change=VIEW) for name, images in sets.items()} if self.gallery else {}
        return sets | views

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        for target in self.target_sets(subject):
            predictions, columns = outputs[target.name], target.columns
            embeddings = embeddings_of(predictions)
            hits = find_neighbours(embeddings, np.asarray(predictions.labels), results, **columns)
            scores = compute_scores(predictions, self.scores, results)
            if self.gallery:
                try:
                    scores |= gallery_scores(predictions, [outputs[f"{target.name}/view"]]).u
                except (BadInput, Undefined) as reason:
                    results.omit(reason, measure="gallery_uncertainty", **columns)
            add_retrieval(scores, hits, self.bootstrap, results, **columns)
            for name, values in scores.items():
                share = np.unique(values, return_counts=True)[1].max() / len(values)
                if share > 0.5:
                    results.add(TIED_SHARE, share, len(values), measure=name, **columns)
        if not self.sets:
            add_means(results)


def add_means(results: RowBuilder) -> None:
    """Add the mean over targets of R@1, and of R-AUROC by every score."""
    measured = [row for row in results.rows if row["metric"] in (RECALL, R_AUROC)]
    for metric, measure in dict.fromkeys((row["metric"], row["measure"]) for row in measured):
        rows = [row for row in measured if (row["metric"], row["measure"]) == (metric, measure)]
        mean, count = fmean(row["value"] for row in rows), sum(row["n"] for row in rows)
        results.add(metric, mean, count, split=rows[0]["split"], target=MEAN, measure=measure)
