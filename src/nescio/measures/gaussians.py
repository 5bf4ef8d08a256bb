"""Uncertainty as distance to class means, or as low density under one Gaussian per class.

Everything is computed in float64, since covariances square the condition number of the data. Row blocks keep the
memory at components × d² for any number of rows. Threads share the blocks, classes or components. BLAS uses one
thread, because its threads would mostly wait for each other in narrow products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from nescio.arrays.parallel import blocks, map_on_threads, one_blas_thread
from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.measures._spec import cached, measure
from nescio.measures.covariances import Axes, Whitener, dense_whitener, squared_distances, whiteners_of
from nescio.measures.row_tools import (
    BLOCK_BYTES,
    Fit,
    add_scatter,
    by_blocks,
    embedding_rows,
    embeddings_of,
    float64_rows,
    log_sum_exp,
    mean_row,
    product_dtype,
    rows_by_class,
    scatter_within,
)
from nescio.predictions import Predictions

MAX_ARRAY_BYTES = 1 << 30  # maximum bytes of the whiteners in an exported file


@measure("fitted", needs=("embeddings", "labels"))
@one_blas_thread()
def gmm(train: Predictions, *, priors: bool = True, jitter: float = 0.0) -> Fit:
    """Minus the log-density under one Gaussian per true class: u = −log Σ_c λ_c·N(φ; μ_c, Σ_c).

    λ_c are the class shares of the reference, or 1/c with `priors=False`. Σ_c is the unbiased covariance plus
    `jitter` on the diagonal, the same for all classes and increased until every Σ_c can be factored. A class with
    one row uses the pooled covariance. Only in-distribution rows count. The Σ_c of few rows is stored by its axes
    (Woodbury's identity), which needs rows × d numbers instead of d × d.
    UIMNET §4 (on validation rows); DDU, Mukhoti et al. 2021 (on training rows).
    """
    embeddings, groups = rows_by_class(train, "gmm")
    counts = np.array([len(rows) for rows in groups])
    if counts.max() < 2:
        raise BadInput("Every class of the reference has only one row, which gives no covariance: give more rows.")
    d, means = embeddings.shape[1], np.stack(map_on_threads(partial(mean_row, embeddings), groups))
    pooled = np.empty(0)  # covariance of classes with one row
    if counts.min() == 1:
        pooled = scatter_within(embeddings, groups, means) / (counts.sum() - len(counts))

    def covariance(c: int) -> Whitener:
        rows, freedom = groups[c], counts[c] - 1
        if freedom == 0:
            return pooled
        if 2 * len(rows) <= d:  # two products with its axes cost less than one with d × d
            _, lengths, axes = np.linalg.svd(float64_rows(embeddings, rows) - means[c], full_matrices=False)
            return Axes(axes, lengths**2 / freedom)
        return np.asarray(add_scatter(np.zeros((d, d)), embeddings, rows, means[c]) / freedom)

    whiteners = whiteners_of(map_on_threads(covariance, range(len(groups))), jitter)
    shares = counts / counts.sum() if priors else np.full(len(counts), 1 / len(counts))
    return ClassDensity(means, whiteners, shares, groups=groups, priors=priors)


@measure("fitted", needs=("embeddings", "labels"))
def mahalanobis(train: Predictions, *, jitter: float = 0.0) -> Fit:
    """Squared Mahalanobis distance to the nearest class mean: u = min_c (φ − μ_c)ᵀ Σ⁻¹ (φ − μ_c).

    Σ = Σ_c Σ_{i in c} (φ_i − μ_c)(φ_i − μ_c)ᵀ/n is tied over the classes, plus `jitter`, increased until Σ can be
    factored. Rows with in_distribution = False are left out. Lee et al. 2018.
    """
    rows_by_class(train, "mahalanobis")  # raises an error for a reference without labels
    return class_distances(train, jitter=jitter)


@dataclass(frozen=True, eq=False)
class GaussianDensity:
    """u = −log Σ_k w_k·N(x; μ_k, Σ_k): means (k, d), weights (k,), and for every Σ_k its axes, or W_k (d, d) with
    Σ_k⁻¹ = W_kᵀ·W_k."""

    means: Array
    whiteners: Sequence[Whitener]
    weights: Array
    log_likelihoods: list[float] = field(default_factory=list)  # mean per row before every step of the fit

    def __call__(self, predictions: Predictions) -> Array:
        return by_blocks(predictions, lambda x, _: -log_sum_exp(self.joint(x)), "a density", self.means.shape[1])

    def joint(self, x: Array) -> Array:
        """log(w_k·N(x; μ_k, Σ_k)) of rows x (n, d), as (n, k)."""
        return np.stack([self.log_joint(x, k) for k in range(len(self.means))], axis=1)

    def log_joint(self, x: Array, k: int) -> Array:
        """log(w_k·N(x; μ_k, Σ_k)) of rows x (n, d), as (n,)."""
        square, log_det = squared_distances(x - self.means[k], self.whiteners[k])
        return np.asarray(log_weights(self.weights[k]) - 0.5 * (square + log_det + x.shape[1] * math.log(2 * math.pi)))


@dataclass(frozen=True, eq=False)
class ClassDensity(GaussianDensity):
    """One Gaussian per class, with the numbers of the rows that it was fitted to."""

    groups: Sequence[Array] = ()  # the rows of every class
    priors: bool = True

    @property
    def arrays(self) -> dict[str, Array]:
        """Means, whiteners (c, d, d) and log-weights with their normalisers, for an exported file."""
        classes, d = self.means.shape
        if 8 * classes * d * d > MAX_ARRAY_BYTES:
            raise BadInput(f"gmm of {classes} classes and {d} features is too large for a file: use mds or rmds.")
        matrices = [dense_whitener(whitener, d) for whitener in self.whiteners]
        log_dets = np.array([squared_distances(np.zeros((1, d)), whitener)[1] for whitener in self.whiteners])
        constants = log_weights(self.weights) - 0.5 * (log_dets + d * math.log(2 * math.pi))
        return {"means": self.means, "whiteners": np.stack(matrices), "constants": constants, "width": np.array(d)}

    @one_blas_thread()
    def leave_one_out(self, train: Predictions) -> Array:
        """u of the fitted rows, each under the density fitted without it; other rows are scored as usual.

        Without row i, class c of n rows has the mean μ − a/(n − 1), a = x_i − μ, and the scatter S − n/(n − 1)·aaᵀ.
        With s = aᵀS⁻¹a, k = n/(n − 1), r = 1 − k·s, the squared distance becomes (n − 2)·k²·s/r and log det Σ gains
        log r + d·log((n − 1)/(n − 2)) (the matrix determinant lemma and Sherman and Morrison's identity).
        """
        embeddings, d = embeddings_of(train, "a density", self.means.shape[1]), self.means.shape[1]
        u = self(train)
        n_rows = sum(len(rows) for rows in self.groups)

        def without_itself(c: int) -> None:
            rows, n = self.groups[c], len(self.groups[c])
            x = float64_rows(embeddings, rows)
            joint = self.joint(x)
            if self.priors:  # the reference has one row fewer
                joint += math.log(n_rows / (n_rows - 1))
            if n < 3:  # without row i the class has at most one row, and no covariance
                joint[:, c] = -np.inf
            else:
                square, log_det = squared_distances(x - self.means[c], self.whiteners[c])
                s, k = square / (n - 1), n / (n - 1)
                remainder = np.maximum(1 - k * s, d * np.finfo(float).eps)
                square = (n - 2) * k**2 * s / remainder
                log_det = log_det + np.log(remainder) + d * math.log((n - 1) / (n - 2))
                weight = (n - 1) / (n_rows - 1) if self.priors else self.weights[c]
                joint[:, c] = math.log(weight) - 0.5 * (square + log_det + d * math.log(2 * math.pi))
            if len(self.means) > 1 or n > 2:
                u[rows] = -log_sum_exp(joint)

        map_on_threads(without_itself, range(len(self.groups)))
        return u


@dataclass(frozen=True, eq=False)
class NearestMean:
    """u = min_c ‖W·(x − μ_c)‖²: means (c, d), whitener W with Σ⁻¹ = Wᵀ·W (d, d)."""

    means: Array
    whitener: Array
    groups: Sequence[Array]  # the rows of every class
    spread: Array  # (d,) variances of all rows along the whitened axes
    middle: Array  # (d,) mean of all rows
    unit: bool  # rows are normalised to unit length

    @one_blas_thread()
    def leave_one_out(self, train: Predictions) -> Array:
        """u of the fitted rows, each by means and covariance fitted without it.

        Without row i, N·Σ loses k·aaᵀ, k = n/(n − 1), a = x_i − μ: a square q(b) = bᵀΣ⁻¹b becomes
        (N − 1)/N·(q(b) + (bᵀΣ⁻¹a)²·k/N/r), r = 1 − k·q(a)/N, and the mean of its class becomes μ − a/(n − 1).
        """
        embeddings = embedding_rows(train, "mahalanobis", self.unit, self.means.shape[1])
        u, n_rows = np.array(self(train)), sum(len(rows) for rows in self.groups)
        for c, rows in enumerate(self.groups):
            if len(rows) < 2:
                continue
            k = len(rows) / (len(rows) - 1)
            for block in blocks(len(rows), max(1, BLOCK_BYTES // (8 * self.means.shape[1]))):
                x = float64_rows(embeddings, rows[block])
                whitened = (x - self.means[c]) @ self.whitener.T
                remainder = np.maximum(1 - k * (whitened**2).sum(1) / n_rows, np.finfo(float).eps)
                smallest = np.full(len(x), np.inf)
                for other_class, mean in enumerate(self.means):
                    differences = whitened * k if other_class == c else (x - mean) @ self.whitener.T
                    products = np.einsum("nd,nd->n", differences, whitened)
                    square = (differences**2).sum(1) + products**2 * k / n_rows / remainder
                    smallest = np.minimum(smallest, square * (n_rows - 1) / n_rows)
                u[rows[block]] = smallest
        return u

    def __call__(self, predictions: Predictions) -> Array:
        return self.squares(predictions)[0]

    @property
    def arrays(self) -> dict[str, Array]:
        """Arrays for an exported file."""
        centres = (self.means - self.middle) @ self.whitener.T
        arrays = {"whitener": self.whitener, "middle": self.middle, "centres": centres, "spread": self.spread}
        return arrays | {"unit": np.array(self.unit), "width": np.array(self.means.shape[1])}

    def squares(self, predictions: Predictions) -> tuple[Array, Array]:
        """Squared distances (n,) to the nearest class mean, and, under the covariance of all rows, to their mean."""
        return _nearest_squares(predictions, self)


@cached
def _nearest_squares(predictions: Predictions, fitted: NearestMean) -> tuple[Array, Array]:
    centres, dtype = (fitted.means - fitted.middle) @ fitted.whitener.T, product_dtype(predictions)
    lengths, columns = (centres**2).sum(1).astype(dtype), centres.T.astype(dtype)

    def score(x: Array, _: slice) -> Array:
        white = (x - fitted.middle) @ fitted.whitener.T
        nearest = np.argmin(lengths - 2 * white.astype(dtype) @ columns, axis=1)
        # The expanded square finds the nearest class, but is inaccurate for small distances.
        return np.stack([((white - centres[nearest]) ** 2).sum(1), white**2 @ (1 / fitted.spread)], axis=1)

    squares = by_blocks(predictions, score, "mahalanobis", fitted.means.shape[1], fitted.unit)
    squares.flags.writeable = False
    return squares[:, 0], squares[:, 1]


@dataclass(frozen=True, eq=False)
class ReferenceMoments:
    """Means and scatter of the embeddings of a reference; without labels all rows are one class."""

    groups: Sequence[Array]  # the rows of every class
    means: Array  # (k, d)
    within: Array  # (d, d) Σ_c Σ_{i in c} (φ_i − μ_c)(φ_i − μ_c)ᵀ

    @property
    def counts(self) -> Array:
        return np.array([len(rows) for rows in self.groups])

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> Array:
        return np.asarray(self.counts @ self.means / self.n)

    @property
    def total(self) -> Array:
        """(d, d) Σ_i (φ_i − μ)(φ_i − μ)ᵀ, μ the mean of all, as a sum of positive terms: without cancellation."""
        away = (self.means - self.mean) * np.sqrt(self.counts)[:, None]
        return np.asarray(self.within + away.T @ away)


@cached
@one_blas_thread()
def moments(train: Predictions, unit: bool = False) -> ReferenceMoments:
    """Moments of the in-distribution rows of a reference; `unit`: of unit-length rows."""
    embeddings = embedding_rows(train, "a covariance", unit)
    if train.labels is None:
        groups = [np.arange(len(train)) if train.in_distribution is None else np.flatnonzero(train.in_distribution)]
    else:
        _, groups = rows_by_class(train, "a covariance")
    means = np.stack(map_on_threads(partial(mean_row, embeddings), groups))
    return ReferenceMoments(groups, means, scatter_within(embeddings, groups, means))


@cached
@one_blas_thread()
def class_distances(train: Predictions, unit: bool = False, jitter: float = 0.0) -> NearestMean:
    """Squared distances to class means under one covariance, and to the mean of all."""
    reference = moments(train, unit)
    whitener = dense_whitener(whiteners_of([reference.within / reference.n], jitter)[0], reference.means.shape[1])
    # Rotated so that the covariance of all rows is diagonal too: one product gives both kinds of distance.
    variances, axes = np.linalg.eigh(whitener @ (reference.total / reference.n) @ whitener.T)
    return NearestMean(
        reference.means, axes.T @ whitener, reference.groups, np.maximum(variances, 1), reference.mean, unit
    )


def log_weights(weights: Array) -> Array:
    """log w; for w = 0 the log of the smallest normal number."""
    return np.asarray(np.log(np.maximum(weights, np.finfo(float).tiny)))
