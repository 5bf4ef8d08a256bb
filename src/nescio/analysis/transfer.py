"""How well a network's embeddings and uncertainties transfer to other images: R@1, R-AUROC, and the score to use.

Source: Kirchhof, Mucsányi, Oh and Kasneci 2023 (URL), §3.1; the scores that know the gallery, and the rule that chooses
between them and the entropy, are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio import measures, metrics
from nescio.analysis.bootstrap import ResampledModel, SharePart, WantedMetric, interval, resample
from nescio.analysis.cards import retrieval_part
from nescio.errors import BadInput, Undefined
from nescio.measures.gallery import DOUBT, MARGIN, J, K, Search, search_rows
from nescio.predictions import Predictions
from nescio.rows import COLUMNS, Row

Array = NDArray[Any]
IMAGE, GALLERY = "image", "gallery"  # what a score sees, in the column `condition`
ENTROPY = "entropy"
RECALL = WantedMetric("recall_at_1", metrics.registry["recall_at_1"], {})
SAME = 0.8  # share of nearest neighbours with the same answer from which the images are of the network's own kind


@dataclass
class Transfer:
    """What one network makes of images that it was not trained on.

    rows         R@1, and the R-AUROC of every score, with intervals; `condition` says whether it sees the image or the
                 gallery. Without labels there are none.
    u            (n,) every score by name, higher = less sure
    sees         name of a score → image or gallery
    use, why     the score to use, which is chosen without labels, and a sentence on the reason
    """

    name: str
    index: Array
    u: dict[str, Array] = field(default_factory=dict)
    sees: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    use: str = MARGIN
    why: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def transfer(
    dump: Predictions,
    views: Sequence[Predictions] = (),
    siblings: Sequence[Predictions] = (),
    *,
    name: str = "",
    k: int = K,
    j: int = J,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    search: Search = search_rows,
) -> Transfer:
    """R@1 and the R-AUROC of every score that a dump has, and which score to use; see `Transfer`.

    views, siblings  dumps of changed images, such as crops, by the same network, and of the same images by siblings
    search           of nearest neighbours; see `nescio.measures.gallery`
    """
    if resamples < 0:
        raise BadInput(f"--bootstrap is a number of resamples, not {resamples}.")
    result = Transfer(name, dump.index, notes=list(dump.notes))
    known = measures.gallery_scores(dump, views, siblings, k=k, j=j, search=search)
    for score, sees, u in (*_image_scores(dump, result.reasons), *((s, GALLERY, u) for s, u in known.u.items())):
        result.u[score], result.sees[score] = u, sees
    result.use, result.why = choose_score(dump, known.nearest, result.u)
    if dump.labels is None:
        result.notes.append("There are no labels: R@1 and R-AUROC are not known, the scores are.")
    else:
        result.rows = _rows(result, dump.labels[known.nearest] == dump.labels, resamples, level, seed)
    return result


def choose_score(dump: Predictions, nearest: Array, u: Mapping[str, Array]) -> tuple[str, str]:
    """The score to use for these images and why, without labels.

    The entropy is about the network's own classes. It is used where these are what tells the images apart: where at
    least SAME of all rows get the answer that their nearest other row gets.
    """
    gallery = DOUBT if DOUBT in u else MARGIN
    if ENTROPY not in u:
        return gallery, "There are no logits, so that nothing is known of the network's own classes."
    answer = measures.summary(dump).predicted
    same = float(np.mean(answer[nearest] == answer))
    kind = "are of the kind that it learnt" if same >= SAME else "are unlike what it learnt"
    why = f"{same:.0%} of the images get the answer that their nearest neighbour gets: they {kind}."
    return (ENTROPY if same >= SAME else gallery), why


def _image_scores(dump: Predictions, reasons: dict[str, str]) -> Iterator[tuple[str, str, Array]]:
    """(name, image, u) of every measure that sees one image at a time, and of the dump's own scores."""
    names = [part.name for part in measures.registry.parts() if part.kind == "plain"]
    for name in (*names, *measures.scores_of(dump)):
        try:
            if dump.draws == 1 and name in ("mutual_information", "expected_entropy"):
                raise Undefined("The network gives one draw a row; draws cannot disagree.")
            yield name, IMAGE, measures.uncertainty(name, dump)
        except Undefined as reason:
            reasons[name] = str(reason)


def _rows(result: Transfer, right: Array, resamples: int, level: float, seed: int) -> list[Row]:
    """R@1 and R-AUROC with percentile intervals over images, whose neighbours stay as they are."""
    parts: list[ResampledModel] = [SharePart(right, RECALL)]
    parts += [retrieval_part(u, right) for u in result.u.values()]
    samples = resample(parts, len(right), resamples, seed)
    rows = []
    for score, part, sample in zip([None, *result.u], parts, samples, strict=True):
        (value,), (metric,) = part.point(), part.metrics
        if isinstance(value, Undefined):
            result.reasons[str(score)] = str(value)
            continue
        low, high = interval(sample[:, 0], level) if resamples else (None, None)
        cell = {"measure": score, "metric": metric.label, "value": value, "low": low, "high": high, "n": len(right)}
        rows.append(dict.fromkeys(COLUMNS) | cell | {"condition": result.sees.get(str(score)), "method": result.name})
    return rows
