"""The last layer of a network, recovered from its predictions: logits = W·embedding + b, by least squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nescio.arrays.parallel import blocks, map_on_threads, one_blas_thread, run_on_threads
from nescio.arrays.types import Array
from nescio.errors import Undefined
from nescio.measures._spec import cached
from nescio.measures.gaussians import moments
from nescio.measures.row_tools import MIN_BLOCK_ROWS, embeddings_of, float64_rows, select_in_distribution
from nescio.predictions import Predictions

RESIDUAL = 0.02  # maximum residual, as a share of the logits' standard deviation; half precision leaves 0.001


@dataclass(frozen=True, eq=False)
class LastLayer:
    """logits = weight·embedding + bias; `residual` is the error, as a share of the logits' standard deviation."""

    weight: Array  # (c, d)
    bias: Array  # (c,)
    residual: float
    rounding: float  # relative error with which logits and embeddings are stored


def recover_last_layer(train: Predictions) -> LastLayer:
    """W and b of the last layer, by least squares of the logits (their mean over draws) on the embeddings.

    Undefined if the residual shows that the embeddings are not the input of the last layer, or if there are too few
    rows. Directions in which embeddings do not vary have no weight.
    """
    layer = _fit_last_layer(train)
    if layer.residual > RESIDUAL:
        raise Undefined(
            "The embeddings are not the input of the last layer: a linear function of them misses the logits by "
            f"{100 * layer.residual:.3g} % of their spread. Save the embedding before the last layer."
        )
    return layer


@cached
@one_blas_thread()
def _fit_last_layer(train: Predictions) -> LastLayer:
    embeddings = embeddings_of(train, "the last layer")
    logits = train.logits
    if logits is None or train.normalized:
        raise Undefined("The last layer is recovered from logits, but the reference has none.")
    reference, train = moments(train), select_in_distribution(train, "the last layer")
    rounding = float(max(np.finfo(dtype).eps for dtype in (embeddings.dtype, logits.dtype)))
    values, axes = np.linalg.eigh(reference.total)
    informative = values > max(len(values) * np.finfo(float).eps, rounding**2) * values[-1]
    rank, n = int(informative.sum()), reference.n
    if n < rank + 2:
        raise Undefined(f"{n} reference rows are too few to recover the last layer of {rank} features: give more rows.")
    mean_logits = np.sum(map_on_threads(lambda block: logits_of(train, block).sum(0), train.blocks()), axis=0) / n
    if not np.isfinite(mean_logits).all():
        raise Undefined("Some logits of the reference are −inf, so that the last layer cannot be recovered from them.")
    cross, squares = _products(train, reference.mean, mean_logits)
    axes = axes[:, informative]
    weight = (axes * (1 / values[informative])) @ (axes.T @ cross)  # (d, c)
    residual_variance = max(squares - float(np.vdot(weight, cross)), 0.0) / (n - rank - 1)
    residual = float(np.sqrt(residual_variance / (squares / (n - 1)))) if squares > 0 else 0.0
    return LastLayer(np.ascontiguousarray(weight.T), mean_logits - reference.mean @ weight, residual, rounding)


def logits_of(predictions: Predictions, block: slice) -> Array:
    """(b, c) logits of these rows in float64, their mean over draws."""
    assert predictions.logits is not None
    return np.asarray(np.mean(predictions.logits[block], axis=1, dtype=np.float64))


@one_blas_thread()
def _products(train: Predictions, mean: Array, mean_logits: Array) -> tuple[Array, float]:
    """Σ (φ − mean)(z − middle)ᵀ (d, c), and Σ ‖z − middle‖²."""
    embeddings = train.embeddings
    assert embeddings is not None
    slices = blocks(len(train), max(len(mean), MIN_BLOCK_ROWS))

    def work(first: int, step: int) -> tuple[Array, float]:
        cross, squares = np.zeros((len(mean), len(mean_logits))), 0.0
        for block in slices[first::step]:
            z = logits_of(train, block) - mean_logits
            cross += (float64_rows(embeddings, block) - mean).T @ z
            squares += float(np.vdot(z, z))
        return cross, squares

    sums = run_on_threads(work)
    return np.asarray(sum(cross for cross, _ in sums)), sum(squares for _, squares in sums)
