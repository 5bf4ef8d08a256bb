"""Transfer of a network's embeddings and uncertainties to other images: R@1, R-AUROC, recommended score.

Source: Kirchhof, Mucsányi, Oh and Kasneci 2023 (URL), §3.1. The gallery scores, and the rule that chooses between them
and the entropy, are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nescio import measures, metrics
from nescio.analysis.bootstrap import check_resampling, interval, resample
from nescio.analysis.metric_kinds import retrieval_resampler
from nescio.analysis.metric_specs import MetricSpec
from nescio.analysis.resamplers import Resampler, ShareResampler
from nescio.arrays.types import Array
from nescio.errors import Undefined
from nescio.measures.gallery import CONSISTENCY, MARGIN, UNCERTAINTY, J, K, Search, search_rows
from nescio.predictions import Predictions
from nescio.rows import COLUMNS, Row

IMAGE, GALLERY = "image", "gallery"  # input of a score, in the column `score_input`
ENTROPY = "entropy"
RECALL = MetricSpec("recall_at_1", metrics.registry["recall_at_1"], {})
DISTINCT = 0.55  # share of neighbours of the same set above which two sets differ, plus two standard errors
OVERLAPPING = 0.4  # share of such neighbours below which two sets overlap
MIN_ROWS = 20  # minimum rows of each set; with fewer, no share differs significantly from one half
MAX_ROWS = 2000  # maximum rows of each set in the two-sample test


@dataclass
class TransferResult:
    """Result of `transfer` for one network.

    rows         R@1, and the R-AUROC of every score, with intervals; `score_input`: the image or
                 the gallery. Without labels there are none.
    u            (n,) values of every score by name, higher = less confident
    score_inputs score → image or gallery
    recommended  score to use, chosen without labels, with recommendation_reason
    """

    name: str
    index: Array
    u: dict[str, Array] = field(default_factory=dict)
    score_inputs: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    recommended: str = ""
    recommendation_reason: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def transfer(
    predictions: Predictions,
    views: Sequence[Predictions] = (),
    siblings: Sequence[Predictions] = (),
    *,
    reference: Predictions | None = None,
    name: str = "",
    k: int = K,
    j: int = J,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    search: Search = search_rows,
) -> TransferResult:
    """Compute R@1, the R-AUROC of every score, and which score to use.

    views, siblings  predictions of changed images, such as crops, and of the same images by sibling networks
    reference        embeddings of images like the training images, preferably held-out ones
    search           of nearest neighbours; see `nescio.measures.gallery`
    """
    check_resampling(resamples, level, seed, minimum=0)
    result = TransferResult(name, predictions.index, notes=list(predictions.notes))
    gallery = measures.gallery_scores(predictions, views, siblings, k=k, j=j, search=search)
    for score, score_input, u in (
        *_image_scores(predictions, result.reasons),
        *((s, GALLERY, u) for s, u in gallery.u.items()),
    ):
        result.u[score], result.score_inputs[score] = u, score_input
    result.reasons |= gallery.reasons
    result.notes += list(
        dict.fromkeys(
            gallery.reasons[score]
            for score in (MARGIN, CONSISTENCY)
            if len(predictions) <= max(k, j) and score in gallery.reasons
        )
    )
    result.recommended, result.recommendation_reason = choose_score(predictions, result.u, reference, search)
    if predictions.labels is None:
        result.notes.append("There are no labels, so there is no R@1 and no R-AUROC.")
    else:
        result.rows = _rows(result, predictions.labels[gallery.nearest] == predictions.labels, resamples, level, seed)
    return result


def choose_score(
    predictions: Predictions, u: Mapping[str, Array], reference: Predictions | None = None, search: Search = search_rows
) -> tuple[str, str]:
    """The score to use for these images and the reason, without labels.

    The entropy is about the classes of the network. It is used if the images do not differ from `reference`, which are
    images like the training images.
    """
    gallery = next((name for name in (UNCERTAINTY, MARGIN, CONSISTENCY) if name in u), None)
    if gallery is None:
        remaining = ENTROPY if ENTROPY in u else next(iter(u), "")
        return remaining, "The gallery is too small for the scores that compare an image with it."
    if ENTROPY not in u:
        return gallery, "There are no logits to compute the entropy of."
    if reference is None:
        return gallery, "There is no reference: the images are assumed to show other classes than the network's."
    try:
        share = same_set_share(predictions, reference, search)
    except Undefined as reason:
        return gallery, f"{reason} The images are assumed to show other classes than the network's."
    rows = 2 * min(len(predictions), len(reference), MAX_ROWS)
    finding = f"{share:.0%} of the images and references have a nearest neighbour of the same set (50% by chance):"
    if share >= DISTINCT + rows**-0.5:
        return gallery, f"{finding} the images differ from the reference, in their classes or by a shift."
    if share < OVERLAPPING:
        return ENTROPY, f"{finding} images and reference overlap, so that some images may be in both."
    return ENTROPY, f"{finding} the images do not differ clearly from the reference."


def same_set_share(first: Predictions, second: Predictions, search: Search = search_rows, seed: int = 0) -> float:
    """Share of rows whose nearest other row is of the same set, with equally many rows of both: 0.5 by chance.

    Source: the two-sample test of Schilling 1986 with one neighbour.
    """
    embeddings = [predictions.embeddings for predictions in (first, second) if predictions.embeddings is not None]
    if len(embeddings) < 2:
        raise Undefined("Two sets are compared by their embeddings, and one of them has none.")
    if embeddings[0].shape[1:] != embeddings[1].shape[1:]:
        widths = [array.shape[-1] for array in embeddings]
        raise Undefined(
            f"Embeddings of {widths[0]} and {widths[1]} features cannot be compared: they are from two networks."
        )
    count = min(len(first), len(second), MAX_ROWS)
    if count < MIN_ROWS:
        raise Undefined(f"At least {MIN_ROWS} rows of each set are needed to compare two sets, got {count}.")
    samples = [rows[np.sort(np.random.default_rng(seed).permutation(len(rows))[:count])] for rows in embeddings]
    mixture, which_set = np.concatenate(samples), np.repeat([0, 1], count)
    return float(np.mean(which_set[search(mixture, mixture, (1,))[:, 0]] == which_set))


def _image_scores(predictions: Predictions, reasons: dict[str, str]) -> Iterator[tuple[str, str, Array]]:
    """Yield (name, input, u) of every measure of single images, and of the scores in the predictions."""
    names = [measure.name for measure in measures.registry.parts() if measure.kind == "plain"]
    for name in (*names, *measures.score_names(predictions)):
        try:
            u = measures.uncertainty(name, predictions)
            if u.min() == u.max():
                raise Undefined("The score is the same for every image.")
            yield name, IMAGE, u
        except Undefined as reason:
            reasons[name] = str(reason)


def _rows(result: TransferResult, retrieved: Array, resamples: int, level: float, seed: int) -> list[Row]:
    """R@1 and R-AUROC with percentile intervals over images; neighbours stay fixed."""
    resamplers: list[Resampler] = [ShareResampler(retrieved, RECALL)]
    resamplers += [retrieval_resampler(u, retrieved) for u in result.u.values()]
    samples = resample(resamplers, len(retrieved), resamples, seed)
    rows = []
    for score, resampler, sample in zip([None, *result.u], resamplers, samples, strict=True):
        (value,), (metric,) = resampler.point(), resampler.metrics
        if isinstance(value, Undefined):
            result.reasons[str(score)] = str(value)
            continue
        low, high = interval(sample[:, 0], level) if resamples else (None, None)
        cell = {"measure": score, "metric": metric.label, "value": value, "low": low, "high": high, "n": len(retrieved)}
        rows.append(
            dict.fromkeys(COLUMNS) | cell | {"score_input": result.score_inputs.get(str(score)), "method": result.name}
        )
    return rows
