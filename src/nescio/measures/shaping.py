"""Post-hoc scores that modify the embedding before the last layer: u = −log Σ_j exp z′_j.

They need non-negative features, as after a ReLU. W and b are recovered from the training rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nescio.arrays.parallel import map_on_threads
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures._spec import cached, measure
from nescio.measures.classifier import LastLayer, logits_of, recover_last_layer
from nescio.measures.feature_scores import energy_of
from nescio.measures.gaussians import moments
from nescio.measures.row_tools import (
    Fit,
    WithArrays,
    by_blocks,
    embeddings_of,
    exportable,
    log_sum_exp,
    product_dtype,
    row_blocks,
    select_in_distribution,
)
from nescio.predictions import Predictions

Shape = Callable[[Array], Array]


@measure("fitted", needs=("embeddings", "logits"))
def react(train: Predictions, quantile: float = 0.9) -> Fit:
    """Energy after features are clipped at a quantile of all training features: z′ = W·min(f, c) + b.

    Sun, Guo & Li (2021), with their 90 %.
    """
    layer = _layer(train, "react", quantile)
    embeddings = embeddings_of(select_in_distribution(train, "react"), "react")
    limit = float(np.quantile(np.asarray(embeddings), quantile))
    return _reread(layer.weight, layer.bias, lambda f: np.minimum(f, limit), "react", cut=limit)


@measure("fitted", needs=("embeddings", "logits"))
def ash(train: Predictions, quantile: float = 0.9) -> WithArrays:
    """Energy after the smaller features of a row are set to 0: those below the row's quantile.

    The others are multiplied by exp(s₁/s₂), with s₁ and s₂ the sums before and after. Djurisic et al. (2023), ASH-S.
    """
    layer = _layer(train, "ash", quantile)

    def shape(f: Array) -> Array:
        n_zeroed = f.shape[1] - _left(f.shape[1], quantile)
        row_sums = f.sum(1)
        f = np.where(f >= np.partition(f, n_zeroed, axis=1)[:, n_zeroed, None], f, 0)
        return np.asarray(f * np.exp(_ratio(row_sums, f.sum(1)))[:, None])

    return _reread(layer.weight, layer.bias, shape, "ash", left=_left(layer.weight.shape[1], quantile))


@measure("fitted", needs=("embeddings", "logits"))
def scale(train: Predictions, quantile: float = 0.85) -> Fit:
    """Energy after a row is multiplied by exp(s₁/s₂): the sum of its features over that of those above its quantile.

    W·f grows by the same factor, so no matrix product is needed: z′ = exp(s₁/s₂)·(z − b) + b. Xu et al. (2024).
    """
    layer = _layer(train, "scale", quantile)

    def uncertainty_of(test: Predictions) -> Array:
        _check(test, "scale")
        energy_of(test, "scale", len(layer.bias))

        def score(f: Array, block: slice) -> Array:
            n_smaller = f.shape[1] - _left(f.shape[1], quantile)
            largest_sum = np.partition(f, n_smaller, axis=1)[:, n_smaller:].sum(1)
            factor = np.exp(_ratio(f.sum(1), largest_sum))
            return -log_sum_exp(factor[:, None] * (logits_of(test, block) - layer.bias) + layer.bias)

        return by_blocks(test, score, "scale", layer.weight.shape[1])

    d = layer.weight.shape[1]
    return exportable(uncertainty_of, d, bias=layer.bias, left=_left(d, quantile))


@measure("fitted", needs=("embeddings", "logits"), example={"quantile": 0.8})
def dice(train: Predictions, quantile: float = 0.9) -> Fit:
    """Energy with the largest weights only: those above a quantile of the mean contributions w_cj·mean f_j.

    Sun & Li (2022), with their 90 %.
    """
    layer = _layer(train, "dice", quantile)
    contribution = layer.weight * moments(train).mean
    weight = np.where(contribution > np.quantile(contribution, quantile), layer.weight, 0)
    return _reread(weight, layer.bias, lambda f: f, "dice")


def _layer(train: Predictions, name: str, quantile: float) -> LastLayer:
    if not 0 < quantile < 1:
        raise BadInput(f"The quantile of {name} is {quantile}; it must be between 0 and 1.")
    _check(train, name)
    return recover_last_layer(train)


def _check(predictions: Predictions, name: str) -> None:
    """Raise an error for predictions without logits or with features below 0."""
    energy_of(predictions, name)
    if (lowest := _lowest_feature(predictions)) < 0:
        raise Undefined(f"{name} needs features of at least 0, as after a ReLU, and the lowest is {lowest:.3g}.")


@cached
def _lowest_feature(predictions: Predictions) -> float:
    embeddings = embeddings_of(predictions, "its features")
    return min(map_on_threads(lambda block: float(embeddings[block].min()), row_blocks(embeddings)))


def _reread(weight: Array, bias: Array, shape: Shape, name: str, **constants: float) -> WithArrays:
    """−log Σ_j exp of W·shape(f) + b; `constants` are the parameters of the shape."""

    def uncertainty_of(test: Predictions) -> Array:
        _check(test, name)
        dtype = product_dtype(test)
        columns = weight.T.astype(dtype)
        return by_blocks(test, lambda f, _: -log_sum_exp(shape(f).astype(dtype) @ columns + bias), name, len(columns))

    return exportable(uncertainty_of, weight.shape[1], weight=weight, bias=bias, **constants)


def _left(d: int, quantile: float) -> int:
    """The number of d features above the quantile."""
    return max(1, d - round(quantile * d))


def _ratio(all_features: Array, large_features: Array) -> Array:
    """s₁/s₂; 1 for a row of zeros."""
    return np.asarray(np.where(large_features > 0, all_features / np.where(large_features > 0, large_features, 1), 1))
