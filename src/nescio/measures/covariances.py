"""Whiteners of covariances: inverse Cholesky factors, or principal axes for covariances of few rows."""

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

FIRST_JITTER = 1e-12  # first jitter as a share of the mean variance; raised tenfold until the factoring succeeds
SMALL_TRIANGLE = 64  # maximum rows of a triangle that is inverted in one call
NEAR = 1e-4  # share of a row's squared length below which the remainder is computed without cancellation


@dataclass(frozen=True, eq=False)
class Axes:
    """A covariance of few rows: variances (r,) along orthonormal axes (r, d), and `rest` along all other directions."""

    axes: Array
    variances: Array
    rest: float = 0.0


Whitener: TypeAlias = Array | Axes  # W (d, d) with Σ⁻¹ = Wᵀ·W, or Σ by its axes


def dense_whitener(whitener: Whitener, d: int) -> Array:
    """W (d, d) with Σ⁻¹ = Wᵀ·W."""
    if not isinstance(whitener, Axes):
        return np.asarray(whitener)
    axes, other_variance = whitener.axes, 1 / math.sqrt(whitener.rest)
    return other_variance * np.eye(d) + (axes.T * (1 / np.sqrt(whitener.variances) - other_variance)) @ axes


def squared_distances(differences: Array, whitener: Whitener) -> tuple[Array, float]:
    """aᵀ·Σ⁻¹·a of every row a, and log det Σ."""
    if not isinstance(whitener, Axes):
        whitened = differences @ whitener.T
        return np.einsum("nd,nd->n", whitened, whitened), -2 * float(np.log(np.diagonal(whitener)).sum())
    coordinates = differences @ whitener.axes.T
    length = np.einsum("nd,nd->n", differences, differences)
    remainder = length - np.einsum("nr,nr->n", coordinates, coordinates)
    imprecise = remainder < NEAR * length  # for rows nearly along the axes the difference cancels
    remainder[imprecise] = ((differences[imprecise] - coordinates[imprecise] @ whitener.axes) ** 2).sum(1)
    n_other = differences.shape[1] - len(whitener.axes)
    log_det = float(np.log(whitener.variances).sum()) + n_other * math.log(whitener.rest)
    return coordinates**2 @ (1 / whitener.variances) + remainder / whitener.rest, log_det


def whiteners_of(covariances: Sequence[Whitener], jitter: float) -> list[Whitener]:
    """A whitener of every covariance, with the least jitter of a tenfold ladder at which all of them exist."""
    scale = float(np.mean([mean_variance(covariance) for covariance in covariances]))
    if not math.isfinite(scale):
        raise BadInput("embeddings is so large that its squares overflow; scale it down.")
    while True:
        try:
            return map_on_threads(partial(_whitener, jitter), covariances)
        except np.linalg.LinAlgError:
            jitter = max(10 * jitter, FIRST_JITTER * (scale if scale > 0 else 1.0))  # rounding may make it negative


def _whitener(jitter: float, covariance: Whitener) -> Whitener:
    """The inverse Cholesky factor of Σ + jitter·I, or its axes; LinAlgError if it is singular."""
    if isinstance(covariance, Axes):
        axes, variances = covariance.axes, covariance.variances
        if jitter == 0:
            raise np.linalg.LinAlgError
        if jitter <= _rounding(axes.shape[1]) * ((variances @ axes**2).max() + jitter):
            _factor((axes.T * variances) @ axes, jitter)  # too close to decide: check the pivots
        return Axes(axes, variances + jitter, jitter)
    return _lower_inverse(_factor(covariance, jitter))


def _lower_inverse(factor: Array) -> Array:
    """The inverse of a lower triangle (d, d), by halves: [[A, 0], [B, C]]⁻¹ = [[A⁻¹, 0], [−C⁻¹·B·A⁻¹, C⁻¹]].

    With NumPy only: importing scipy.linalg takes longer than scoring a small file.
    """
    d = len(factor)
    if d <= SMALL_TRIANGLE:
        return np.linalg.inv(factor.T).T  # an upper triangle is its own LU factor, so this is back-substitution
    upper, lower = slice(d // 2), slice(d // 2, d)
    inverse = np.zeros_like(factor)
    inverse[upper, upper], inverse[lower, lower] = (
        _lower_inverse(factor[upper, upper]),
        _lower_inverse(factor[lower, lower]),
    )
    inverse[lower, upper] = -inverse[lower, lower] @ (factor[lower, upper] @ inverse[upper, upper])
    return inverse


def _factor(covariance: Array, jitter: float) -> Array:
    """The Cholesky factor of Σ + jitter·I."""
    jittered = covariance + jitter * np.eye(len(covariance))
    factor = np.linalg.cholesky(jittered)
    # A pivot at the rounding error of its variance means that the matrix is singular.
    if (np.diagonal(factor) ** 2 <= _rounding(len(jittered)) * np.diagonal(jittered)).any():
        raise np.linalg.LinAlgError
    return factor


def _rounding(d: int) -> float:
    """Relative error that a pivot of a d × d matrix may have."""
    return d * float(np.finfo(float).eps)


def mean_variance(covariance: Whitener) -> float:
    if isinstance(covariance, Axes):
        return float(covariance.variances.sum() / covariance.axes.shape[1])
    return float(np.trace(covariance) / len(covariance))
