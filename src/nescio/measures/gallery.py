"""Scores of an image in retrieval from a gallery: all other rows of its predictions.

These scores use all rows and no labels.

Proved: if an embedding e of length one becomes e′, every cosine changes by at most δ = ‖e′ − e‖. If the first
similarity is more than 2δ above the j-th, e′ retrieves one of the j − 1 nearest rows of e. Only
observed: images with stable neighbours and a large margin usually have a nearest row of their class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np

from nescio.arrays.nearest import distances, nearest_rows, prepare_points
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures._neighbours import align_members
from nescio.measures._spec import measure
from nescio.measures.row_tools import embeddings_of
from nescio.metrics import ranks
from nescio.predictions import Predictions

Search = Callable[[Array, Array, Sequence[int]], Array]
K = 20  # number of neighbours compared between views
J = 50  # rank of the neighbour that the margin compares with the nearest; K and J: tuned on classes of CUB-200-2011
MARGIN, CONSISTENCY, UNCERTAINTY = "gallery_margin", "gallery_consistency", "gallery_uncertainty"


def search_rows(gallery: Array, queries: Array, cuts: Sequence[int]) -> Array:
    """(n, cuts[-1]) the rows of the gallery nearest to every query by cosine; query i never finds row i.

    For every cut k, rising, the first k of a row are its k nearest, as a set.
    """
    gallery_points = prepare_points(gallery)
    return nearest_rows(
        gallery_points,
        gallery_points if queries is gallery else prepare_points(queries, like=gallery_points),
        cuts,
        exclude_self=True,
    )


@measure("gallery", needs=("embeddings",), example={"j": 5})
def gallery_margin(predictions: Predictions, j: int = J) -> Array:
    """Minus the difference of the cosines of the nearest and the j-th nearest other row.

    u(x) = −(s_1 − s_j), with s_1 ≥ s_2 ≥ … the cosines of x and the other rows.
    """
    return gallery_scores(predictions, j=j)[MARGIN]


@measure("gallery", needs=("embeddings",), example={"k": 5})
def gallery_consistency(
    predictions: Predictions, views: Sequence[Predictions] = (), siblings: Sequence[Predictions] = (), k: int = K
) -> Array:
    """Share of an image's k nearest other rows that change in another view or a sibling network.

    u(x) = 1 − mean over v of |A ∩ A_v| / |A ∪ A_v|, with A the k nearest rows of x. `views` are embeddings of changed
    images by the same network, with A_v the nearest rows of `predictions`. `siblings` are embeddings of the same images
    by other networks, with A_v the nearest rows of the sibling.
    """
    return gallery_scores(predictions, views, siblings, k=k)[CONSISTENCY]


@measure("gallery", needs=("embeddings",), example={"k": 5, "j": 5})
def gallery_uncertainty(
    predictions: Predictions,
    views: Sequence[Predictions] = (),
    siblings: Sequence[Predictions] = (),
    k: int = K,
    j: int = J,
) -> Array:
    """Mean rank, from 0 to 1, of an image's gallery consistency and gallery margin.

    u(x) = (rank of gallery_consistency + rank of gallery_margin) / 2, ranks among the rows and divided by their number.
    Their errors differ: consistency measures how far an embedding moves, the margin how far it may move.
    """
    return gallery_scores(predictions, views, siblings, k=k, j=j)[UNCERTAINTY]


@dataclass(frozen=True, eq=False)
class GalleryScores:
    """Gallery scores u (n,) by name, the row (n,) that each row retrieves, and the reasons for missing scores."""

    u: Mapping[str, Array]
    nearest: Array
    reasons: Mapping[str, str]

    def __getitem__(self, name: str) -> Array:
        if name not in self.u:
            raise Undefined(self.reasons[name])
        return self.u[name]


def gallery_scores(
    predictions: Predictions,
    views: Sequence[Predictions] = (),
    siblings: Sequence[Predictions] = (),
    *,
    k: int = K,
    j: int = J,
    search: Search = search_rows,
) -> GalleryScores:
    """All gallery scores, from one neighbour search, and one per view or sibling.

    Views in the predictions come first. Without views and siblings only the margin is defined. The margin needs more
    than j rows, the consistency more than k. `search` may run on another device.
    """
    views = [*predictions.views, *views]
    others = [*views, *siblings]
    embeddings, *rows = (
        align_members([predictions, *others], "gallery") if others else [embeddings_of(predictions, "the predictions")]
    )
    n, reasons = len(predictions), dict[str, str]()
    if n < 2 or k < 1 or j < 2:
        raise BadInput(f"The gallery has {n} rows, k is {k} and j is {j}: it needs 2 rows, k at least 1, j at least 2.")
    if n <= j:
        reasons[MARGIN] = f"The gallery has {n} rows, and j is {j}: the margin needs more than j rows."
    if not others:
        reasons[CONSISTENCY] = "The consistency compares images with their views: give views, or sibling networks."
    elif n <= k:
        reasons[CONSISTENCY] = f"The gallery has {n} rows, and k is {k}: the consistency needs more than k rows."
    if reasons:
        reasons[UNCERTAINTY] = reasons.get(CONSISTENCY, reasons.get(MARGIN, ""))
    nearest = search(
        embeddings, embeddings, sorted({1, *(() if MARGIN in reasons else (j - 1, j)), *(() if n <= k else (k,))})
    )
    gallery_points, u = prepare_points(embeddings), dict[str, Array]()
    if MARGIN not in reasons:
        u[MARGIN] = -np.diff(distances(gallery_points, gallery_points, nearest[:, [0, j - 1]]))[:, 0]
    if CONSISTENCY not in reasons:
        spaces = [(embeddings, view) for view in rows[: len(views)]] + [
            (sibling, sibling) for sibling in rows[len(views) :]
        ]
        u[CONSISTENCY] = jaccard_distances(
            [_intersection_sizes(nearest[:, :k], search(*space, (k,))) for space in spaces], k
        )
    if not reasons:
        u[UNCERTAINTY] = 0.5 + (ranks(u[CONSISTENCY]) + ranks(u[MARGIN])) / (2 * n)
    return GalleryScores(u, nearest[:, 0], reasons)


def _intersection_sizes(a: Array, b: Array) -> Array:
    """(n,) |A ∩ B| for the rows of two (n, k) lists without repeated entries in a row."""
    merged = np.sort(np.concatenate([a, b], axis=1), axis=1)
    return np.asarray(np.count_nonzero(merged[:, 1:] == merged[:, :-1], axis=1))


def jaccard_distances(shared_sizes: Sequence[Array], k: int) -> Array:
    """(n,) 1 − mean over v of |A ∩ A_v| / |A ∪ A_v|, all sets of size k, from the sizes (n,) of the intersections.

    Sums integers over one denominator, so that equal means are exactly equal in any order of v.
    """
    unit = lcm(*range(k, 2 * k + 1))  # all possible values of |A ∪ A_v|
    distance = np.array([unit - unit // (2 * k - size) * size for size in range(k + 1)], object)
    total = np.sum([distance[size] for size in shared_sizes], axis=0)
    return np.asarray(total / (unit * len(shared_sizes)), np.float64)
