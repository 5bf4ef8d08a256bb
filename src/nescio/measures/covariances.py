"""Whiteners of covariances: inverse Cholesky factors, or the principal axes of covariances of few rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from nescio.arrays.parallel import map_on_threads
from nescio.arrays.types import Array
from nescio.errors import BadInput

FIRST_JITTER = 1e-12  # of the mean variance, if a covariance cannot be factored otherwise; then ten times more
SMALL_TRIANGLE = 64  # rows of a triangle that is inverted at once
NEAR = 1e-4  # share of a row's squared length below which the rest is computed without cancellation


@dataclass(frozen=True, eq=False)
class Axes:
    """A covariance of few rows: variances (r,) along orthonormal axes (r, d), and `rest` in every other direction."""

    axes: Array
    variances: Array
    rest: float = 0.0


Whitener: TypeAlias = Array | Axes  # W (d, d) with Σ⁻¹ = Wᵀ·W, or Σ by its axes


def dense_whitener(whitener: Whitener, d: int) -> Array:
    """W (d, d) with Σ⁻¹ = Wᵀ·W."""
    if not isinstance(whitener, Axes):
        return np.asarray(whitener)
    axes, rest = whitener.axes, 1 / math.sqrt(whitener.rest)
    return rest * np.eye(d) + (axes.T * (1 / np.sqrt(whitener.variances) - rest)) @ axes


def squared_distances(away: Array, whitener: Whitener) -> tuple[Array, float]:
    """aᵀ·Σ⁻¹·a of every row a, and log det Σ."""
    if not isinstance(whitener, Axes):
        white = away @ whitener.T
        return np.einsum("nd,nd->n", white, white), -2 * float(np.log(np.diagonal(whitener)).sum())
    along = away @ whitener.axes.T
    length = np.einsum("nd,nd->n", away, away)
    left = length - np.einsum("nr,nr->n", along, along)
    near = left < NEAR * length  # the difference has too few digits for rows that are nearly along the axes
    left[near] = ((away[near] - along[near] @ whitener.axes) ** 2).sum(1)
    others = away.shape[1] - len(whitener.axes)
    log_det = float(np.log(whitener.variances).sum()) + others * math.log(whitener.rest)
    return along**2 @ (1 / whitener.variances) + left / whitener.rest, log_det


def whiteners_of(covariances: Sequence[Whitener], jitter: float) -> list[Whitener]:
    """A whitener of every covariance, with the least jitter of a tenfold ladder at which all of them exist."""
    scale = float(np.mean([mean_variance(covariance) for covariance in covariances]))
    if not math.isfinite(scale):
        raise BadInput("embeddings is so large that its squares overflow; scale it down.")
    while True:
        try:
            return map_on_threads(partial(_whitener, jitter), covariances)
        except np.linalg.LinAlgError:
            jitter = max(10 * jitter, FIRST_JITTER * (scale if scale > 0 else 1.0))  # rounding may leave it below 0


def _whitener(jitter: float, covariance: Whitener) -> Whitener:
    """The inverse Cholesky factor of Σ + jitter·I, or its axes; LinAlgError if it is singular."""
    if isinstance(covariance, Axes):
        axes, variances = covariance.axes, covariance.variances
        if jitter == 0:
            raise np.linalg.LinAlgError
        if jitter <= _rounding(axes.shape[1]) * ((variances @ axes**2).max() + jitter):
            _factor((axes.T * variances) @ axes, jitter)  # undecided: check the pivots
        return Axes(axes, variances + jitter, jitter)
    return _lower_inverse(_factor(covariance, jitter))


def _lower_inverse(factor: Array) -> Array:
    """The inverse of a lower triangle (d, d), by halves: [[A, 0], [B, C]]⁻¹ = [[A⁻¹, 0], [−C⁻¹·B·A⁻¹, C⁻¹]].

    With NumPy only: importing scipy.linalg takes longer than scoring a small file.
    """
    d = len(factor)
    if d <= SMALL_TRIANGLE:
        return np.linalg.inv(factor.T).T  # an upper triangle is its own LU factor, so this is back-substitution
    first, last = slice(d // 2), slice(d // 2, d)
    inverse = np.zeros_like(factor)
    inverse[first, first], inverse[last, last] = (
        _lower_inverse(factor[first, first]),
        _lower_inverse(factor[last, last]),
    )
    inverse[last, first] = -inverse[last, last] @ (factor[last, first] @ inverse[first, first])
    return inverse


def _factor(covariance: Array, jitter: float) -> Array:
    """The Cholesky factor of Σ + jitter·I."""
    raised = covariance + jitter * np.eye(len(covariance))
    factor = np.linalg.cholesky(raised)
    # A pivot at the rounding error of its variance means that the matrix is singular.
    if (np.diagonal(factor) ** 2 <= _rounding(len(raised)) * np.diagonal(raised)).any():
        raise np.linalg.LinAlgError
    return factor


def _rounding(d: int) -> float:
    """Relative error that a pivot of a d × d matrix may have."""
    return d * float(np.finfo(float).eps)


def mean_variance(covariance: Whitener) -> float:
    if isinstance(covariance, Axes):
        return float(covariance.variances.sum() / covariance.axes.shape[1])
    return float(np.trace(covariance) / len(covariance))
