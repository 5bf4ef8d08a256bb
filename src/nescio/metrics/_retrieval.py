"""Retrieval metrics: is the nearest other embedding of the same class, and does u predict it?"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.metrics._ranking import auroc
from nescio.metrics._spec import metric as metric_


def retrieved(embeddings: ArrayLike, labels: ArrayLike, metric: str = "cosine") -> Array:
    """(n,) whether the nearest other row has the same label.

    The query itself is excluded by index, but not its duplicates; ties in distance go to the lower index.
    """
    from nescio.arrays.nearest import prepare_points
    from nescio.arrays.nearest_other import nearest_other

    these = prepare_points(embeddings, metric)
    classes = np.asarray(labels)
    if classes.ndim != 1:
        raise BadInput(f"labels has shape {classes.shape}; it must be (n,), one class per row.")
    if len(classes) != len(these):
        raise BadInput(
            f"labels has {len(classes)} rows, embeddings has {len(these)}: they must describe the same rows."
        )
    if classes.dtype.kind == "f" and not np.isfinite(classes).all():
        raise BadInput(f"labels is not a number in row {int(np.flatnonzero(~np.isfinite(classes))[0])}.")
    if len(these) < 2:
        raise Undefined("Recall@1 is undefined: a single row has no other to be compared with.")
    return np.asarray(classes[nearest_other(these)] == classes)


@metric_("retrieval", better="higher")
def recall_at_1(embeddings: ArrayLike, labels: ArrayLike, metric: str = "cosine") -> float:
    """Share of rows whose nearest other row has the same label.

    R@1 = (1/n)·Σᵢ [labels of argmin_{j≠i} distance(i, j) = labels of i], ties in distance to the lower j.
    Distances are 1 − cos (or Euclidean), decided in float64. Source: Kirchhof et al. 2023 (URL), §3.
    """
    return float(np.mean(retrieved(embeddings, labels, metric)))


@metric_("retrieval-ranking", better="higher")
def r_auroc(embeddings: ArrayLike, labels: ArrayLike, u: ArrayLike, metric: str = "cosine") -> float:
    """AUROC of u for the rows whose nearest other row has another label.

    R-AUROC = AUROC(u, nearest other row is of another class), ties counted half.
    Source: Kirchhof et al. 2023 (URL), §3.1.
    """
    right = retrieved(embeddings, labels, metric)
    if np.shape(u) != right.shape:
        raise BadInput(f"u has shape {np.shape(u)}, embeddings has {len(right)} rows: give one number per row.")
    if right.all() or not right.any():
        kind = "the same label" if right.all() else "another label"
        raise Undefined(f"R-AUROC is undefined: the nearest other row has {kind} in every row.")
    return auroc(u, ~right)
