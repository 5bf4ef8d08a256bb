"""R@1 and R-AUROC by their definitions."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from nescio.arrays.types import Array


def recall_by_loops(embeddings: Array, labels: Array, u: Array) -> tuple[float, float]:
    """(R@1, R-AUROC) by plain loops: the query is omitted by its index, ties in u count half."""
    unit = np.asarray(embeddings, np.float64)
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    right = []
    for i in range(len(unit)):
        others = [j for j in range(len(unit)) if j != i]
        right.append(labels[max(others, key=lambda j: (round(float(unit[i] @ unit[j]), 12), -j))] == labels[i])
    count = range(len(unit))
    pairs = [(u[i] > u[j]) + 0.5 * (u[i] == u[j]) for i in count for j in count if right[j] > right[i]]
    return fmean(right), fmean(pairs)
