"""Calibration: whether predictions with confidence p are right with probability p."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.metrics._outcomes import BLOCK, Outcomes, as_whole, checked, outcomes
from nescio.metrics._spec import metric


def _bins_of_equal_width(a: Outcomes, bins: int = 15, scheme: str = "width") -> tuple[Array, int] | None:
    """(bin of every row, number of bins); None for bins of equal mass, which depend on all rows."""
    return (bins_of(a, bins, scheme), bins) if scheme == "width" else None


@metric("predictions", better="lower", prepared=True, bias="calibrated", row_bins=_bins_of_equal_width)
def ece(
    probs: ArrayLike | Outcomes,
    labels: ArrayLike | None = None,
    bins: int = 15,
    scheme: Literal["width", "mass"] = "width",
) -> float:
    """Mean gap between confidence and accuracy over bins of confidence, each bin weighted by its rows.

    Σ_b |B_b|/n · |acc(B_b) - conf(B_b)|, Guo et al. (2017). Bins of equal width are (lo, hi] with edges i/bins in
    float64 and 0.0 in the first; bins of equal mass split the rows in stable confidence order like np.array_split.
    """
    a = outcomes(probs, labels)
    return float(np.abs(ece_gaps(a, bins, scheme)).sum() / a.n)


def ece_gaps(a: Outcomes, bins: int = 15, scheme: Literal["width", "mass"] = "width") -> Array:
    """(bins,) sums over bins of right predictions minus confidence. Bins of equal width add up over shards.

    ECE is the sum of their sizes, divided by the number of rows.
    """
    a, bins = require_confidence(a), _checked_bins(bins)
    return np.bincount(bins_of(a, bins, scheme), a.correct - a.confidence, bins)


def row_blocks(probs: Array, labels: Array) -> Iterator[tuple[Array, Array]]:
    """Checked (probs, labels) in row blocks."""
    for block in blocks(len(labels), max(1, BLOCK // probs.shape[1])):
        yield probs[block], labels[block]


def classwise_ece_from_blocks(parts: Iterable[tuple[Array, Array]], bins: int = 15) -> float:
    """`classwise_ece` of (probs, labels) that come in row blocks, already checked."""
    bins = _checked_bins(bins)
    gaps, n = np.zeros((0, bins)), 0
    for p, y in parts:
        c = p.shape[1]
        if not n:
            gaps = np.zeros((c, bins))
        n += len(y)
        p = p.astype(np.float64, copy=False)
        # At most `bins` classes of a row can exceed 1/bins: all others are in the first bin, found by subtraction.
        row, column = np.nonzero(p > 1 / bins)
        high = p[row, column]
        cell = column * bins + bin_index(high, bins)
        gaps -= np.bincount(cell, high, c * bins).reshape(c, bins)
        gaps[:, 0] -= p.sum(0) - np.bincount(column, high, c)
        label_bin = bin_index(p[np.arange(len(y)), y], bins)
        gaps += np.bincount(y * bins + label_bin, minlength=c * bins).reshape(c, bins)
    if not n:
        raise BadInput("There are no rows: at least one is needed.")
    return float(np.abs(gaps).sum() / (n * len(gaps)))


@metric("predictions", better="lower", classwise=True, of_blocks=classwise_ece_from_blocks, bias="calibrated")
def classwise_ece(probs: ArrayLike, labels: ArrayLike, bins: int = 15) -> float:
    """Mean over all classes of the ECE of that class's probability.

    (1/c) Σ_j Σ_b |B_bj|/n · |share of label j in B_bj - mean p_j in B_bj|, Kull et al. (2019); bins as in `ece`.
    """
    return classwise_ece_from_blocks(row_blocks(*checked(probs, labels)), bins)


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """One entry per bin of confidence; only bins with rows."""

    low: Array
    high: Array
    count: Array
    confidence: Array
    accuracy: Array


def reliability_curve(probs: ArrayLike | Outcomes, labels: ArrayLike | None = None, bins: int = 15) -> ReliabilityBins:
    """Count, mean confidence and accuracy in every bin of confidence with rows: the reliability diagram.

    Bins as in `ece`, so that Σ count/n · |accuracy - confidence| is the ECE.
    """
    a, bins = require_confidence(outcomes(probs, labels)), _checked_bins(bins)
    index = bins_of(a, bins, "width")
    count = np.bincount(index, minlength=bins)
    filled = np.flatnonzero(count)
    confidence = np.bincount(index, a.confidence, bins)[filled] / count[filled]
    accuracy = np.bincount(index, a.correct, bins)[filled] / count[filled]
    return ReliabilityBins(filled / bins, (filled + 1) / bins, count[filled], confidence, accuracy)


def require_confidence(a: Outcomes) -> Outcomes:
    """The outcomes; Undefined if their confidence is missing."""
    if np.isnan(a.confidence).any():
        raise Undefined("The confidence of the predictions is unknown.")
    return a


def bin_index(confidence: Array, bins: int) -> Array:
    """Which of the bins (0, 1/bins], (1/bins, 2/bins] … contains each confidence; 0.0 is in the first."""
    upper = np.arange(1, bins) / bins
    return np.searchsorted(upper, confidence, side="left")


def bins_of(a: Outcomes, bins: int, scheme: str) -> Array:
    bins = _checked_bins(bins)
    if scheme == "mass":
        index = np.empty(a.n, np.int64)
        for number, rows in enumerate(np.array_split(np.argsort(a.confidence, kind="stable"), bins)):
            index[rows] = number
        return index
    if scheme != "width":
        raise BadInput(f"scheme is {scheme!r}; it must be 'width' or 'mass'.")
    return bin_index(a.confidence if a.stored is None else _on_edges(a.confidence, bins, a.stored), bins)


def _on_edges(confidence: Array, bins: int, stored: np.dtype[np.floating]) -> Array:
    """Moves a probability back to an edge that it missed by rounding through the logarithm, as 3/5 may.

    The error is half a step of the probability and half a step of its logarithm; log and exp have float32 precision or
    better.
    """
    edge = np.rint(confidence * bins) / bins
    sizes = 1 - np.log(np.maximum(edge, 1 / bins))  # relative error of the probability, and error of its logarithm
    steps = np.finfo(stored).eps / 2 * sizes + 8 * np.finfo(np.promote_types(stored, np.float32)).eps
    is_near = np.abs(confidence - edge) <= steps * edge
    return np.where(is_near, edge.astype(stored).astype(np.float64), confidence)


def _checked_bins(bins: int) -> int:
    return as_whole(bins, "bins", 1)
