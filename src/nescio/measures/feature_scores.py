"""Post-hoc OOD scores of embeddings and logits, fitted on training rows.

All are computed in row blocks in float64. Products with axes or weights have the precision of the stored embeddings,
at least float32. Shared results (means and scatter of the reference, the last layer, distances, the residual) are
computed once and cached on the predictions. f is the embedding, f̂ = f/‖f‖, z the logits (their mean over draws),
ŷ = argmax z. For several networks see `over_members`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nescio.arrays.parallel import map_on_threads, one_blas_thread
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures._softmax_pass import mean_probs, summary
from nescio.measures._spec import cached, measure, registry
from nescio.measures.classifier import logits_of, recover_last_layer
from nescio.measures.gaussians import NearestMean, class_distances, mahalanobis, moments
from nescio.measures.logit_scores import distance_to_uniform
from nescio.measures.row_tools import (
    Fit,
    UnitRows,
    WithArrays,
    by_blocks,
    embeddings_of,
    exportable,
    float64_rows,
    product_dtype,
    row_blocks,
    rows_by_class,
    select_in_distribution,
)
from nescio.predictions import Predictions

BANK_ROWS = 1000  # minimum number of reference rows in the bank of `nnguide`
TINY = float(np.finfo(float).tiny)


def over_members(name: str, trains: Sequence[Predictions], tests: Sequence[Predictions], **options: Any) -> Array:
    """u (n,) of an ensemble: the mean score of its members, each fitted on its training rows.

    All tests have the same rows in the same order.
    """
    if len(trains) != len(tests) or not tests:
        raise BadInput(
            f"There are {len(trains)} training and {len(tests)} test predictions: give one of each per member."
        )
    if any(not np.array_equal(test.index, tests[0].index) for test in tests):
        raise BadInput("The members' test predictions have different rows or another order: align them first.")
    registered = registry[name]
    if registered.kind not in ("fitted", "plain"):
        raise BadInput(f"{name} cannot be averaged over members: it is not a score of a single network.")

    function = registered.function
    scores = [
        function(train, **options)(test) if registered.kind == "fitted" else function(test, **options)
        for train, test in zip(trains, tests, strict=True)
    ]
    return np.asarray(np.mean(scores, axis=0))


def energy_of(predictions: Predictions, name: str, classes: int | None = None) -> Array:
    """(n,) log Σ exp z, averaged over draws; raises an error for probabilities or another number of classes."""
    if predictions.logits is None or "energy" not in summary(predictions).u:
        raise Undefined(f"{name} needs unnormalised logits, but there are none.")
    if classes is not None and predictions.classes != classes:
        raise BadInput(
            f"logits has {predictions.classes} classes, the reference has {classes}: they must come from one network."
        )
    return -summary(predictions).u["energy"]


# ---- distances to classes


@measure("fitted", needs=("embeddings", "labels"), equivalent_to="mahalanobis")
def mds(train: Predictions) -> Fit:
    """`mahalanobis` under its name in OOD benchmarks. Lee et al. (2018)."""
    return mahalanobis(train)


@measure("fitted", needs=("embeddings", "labels"))
def mds_plus(train: Predictions) -> Fit:
    """Squared Mahalanobis distance to the nearest class mean, of unit-length embeddings.

    min_c (f̂ − μ_c)ᵀ Σ⁻¹ (f̂ − μ_c), with means and tied covariance of f̂. Müller & Hein (2025), Mahalanobis++.
    """
    rows_by_class(train, "mds_plus")
    return class_distances(train, unit=True)


@measure("fitted", needs=("embeddings", "labels"))
def rmds(train: Predictions) -> Fit:
    """Mahalanobis distance to the nearest class mean, minus that to the mean of all rows.

    min_c d_c(f) − d_0(f), d_0 with the mean and covariance of all rows. Ren et al. (2021).
    """
    rows_by_class(train, "rmds")
    return Relative(class_distances(train))


@measure("fitted", needs=("embeddings", "labels"))
def rmds_plus(train: Predictions) -> Fit:
    """`rmds` of unit-length embeddings. Müller & Hein (2025), relative Mahalanobis++."""
    rows_by_class(train, "rmds_plus")
    return Relative(class_distances(train, unit=True))


@dataclass(frozen=True, eq=False)
class Relative:
    """Squared distance to the nearest class mean minus that to the mean of all rows."""

    distances: NearestMean

    def __call__(self, predictions: Predictions) -> Array:
        to_class, to_mean = self.distances.squares(predictions)
        return np.asarray(to_class - to_mean)

    @property
    def arrays(self) -> dict[str, Array]:
        return self.distances.arrays

    def leave_one_out(self, train: Predictions) -> Array:
        """u of the fitted rows, each scored by a fit without that row.

        Without a row of N, q = aᵀΣ⁻¹a, a = x − μ, becomes k·q/(1 − k·q/N), k = N/(N − 1); see `NearestMean`.
        """
        rows = np.concatenate(self.distances.groups)
        n, to_mean = len(rows), np.array(self.distances.squares(train)[1])
        if n < 2:
            raise Undefined("Leave-one-out needs at least 2 reference rows.")
        k = n / (n - 1)
        to_mean[rows] *= k / np.maximum(1 - k * to_mean[rows] / n, np.finfo(float).eps)
        return np.asarray(self.distances.leave_one_out(train) - to_mean)


# ---- outside the principal space


@measure("fitted", needs=("embeddings", "logits"), example={"dims": 4})
def residual(train: Predictions, dims: int | None = None) -> Fit:
    """Length of the embedding outside the principal space of the training rows: ‖Rᵀ(f − o)‖.

    At o = −W⁺·b all logits are 0; the columns of R are eigenvectors of Σ (f − o)(f − o)ᵀ after the first `dims`
    (d/2, at most 1000). Wang et al. (2022).
    """
    return _fit_residual(train, dims)


@measure("fitted", needs=("embeddings", "logits"), example={"dims": 4})
def vim(train: Predictions, dims: int | None = None) -> Fit:
    """The residual as an additional logit, minus the energy: α·‖Rᵀ(f − o)‖ − log Σ_j exp z_j.

    α = mean of the largest logit over mean of the residual, on training rows. Wang et al. (2022), virtual-logit
    matching.
    """
    fitted = _fit_residual(train, dims)
    in_distribution = select_in_distribution(train, "vim")
    largest_logit = -summary(in_distribution).u["max_logit"]
    alpha = float(largest_logit.mean() / max(float(fitted(in_distribution).mean()), TINY))

    def uncertainty_of(test: Predictions) -> Array:
        return alpha * fitted(test) - energy_of(test, "vim")

    return exportable(uncertainty_of, len(fitted.origin), origin=fitted.origin, axes=fitted.axes, alpha=alpha)


@cached
def _fit_residual(train: Predictions, dims: int | None) -> Residual:
    layer, reference = recover_last_layer(train), moments(train)
    d = layer.weight.shape[1]
    dims = min(1000, d // 2) if dims is None else dims
    if not 0 < dims < d:
        raise BadInput(f"The principal space has {dims} dimensions; it must have from 1 to {d - 1}.")
    rcond = layer.rounding * max(layer.weight.shape)
    origin = np.linalg.lstsq(layer.weight, -layer.bias, rcond=rcond)[0]
    offset = reference.mean - origin
    with one_blas_thread():
        _, axes = np.linalg.eigh(reference.total + reference.n * np.outer(offset, offset))
    return Residual(origin, np.ascontiguousarray(axes[:, : d - dims]))


@dataclass(frozen=True, eq=False)
class Residual:
    """‖Rᵀ(f − o)‖: origin o (d,), axes R (d, d − dims)."""

    origin: Array
    axes: Array

    def __call__(self, predictions: Predictions) -> Array:
        return _residual_lengths(predictions, self)

    @property
    def arrays(self) -> dict[str, Array]:
        return {"origin": self.origin, "axes": self.axes, "width": np.array(len(self.origin))}


@cached
def _residual_lengths(predictions: Predictions, fitted: Residual) -> Array:
    dtype = product_dtype(predictions)
    axes = fitted.axes.astype(dtype)

    def score(f: Array, _: slice) -> Array:
        return np.asarray(np.linalg.norm((f - fitted.origin).astype(dtype) @ axes, axis=1), np.float64)

    return by_blocks(predictions, score, "residual", len(fitted.origin))


# ---- the last layer


@measure("fitted", needs=("embeddings", "logits"))
def fdbd(train: Predictions) -> Fit:
    """Minus the mean distance to the decision boundaries, relative to the distance from the training mean.

    −mean_{c≠ŷ} (z_ŷ − z_c)/‖w_ŷ − w_c‖ / ‖f − μ‖; a class with the logit −inf has no boundary. Liu & Qin (2024), fast
    decision boundary detector.
    """
    layer, mean = recover_last_layer(train), moments(train).mean
    w = layer.weight
    squares = (w**2).sum(1)
    weight_distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * w @ w.T, 0))
    same_boundary = weight_distances <= 1e-7 * np.sqrt(squares.max())  # the same class, or one with equal weights
    inverse = np.where(same_boundary, 0, 1 / np.where(same_boundary, 1, weight_distances))

    def uncertainty_of(test: Predictions) -> Array:
        energy_of(test, "fdbd", len(w))

        def score(f: Array, block: slice) -> Array:
            z = logits_of(test, block)
            predicted = z.argmax(1)
            gaps = z[np.arange(len(z)), predicted][:, None] - z
            finite = np.isfinite(gaps)
            means = np.vecdot(np.where(finite, gaps, 0), inverse[predicted]) / np.maximum(finite.sum(1) - 1, 1)
            return np.asarray(-means / np.maximum(np.linalg.norm(f - mean, axis=1), TINY))

        return by_blocks(test, score, "fdbd", len(mean))

    return exportable(uncertainty_of, len(mean), inverse=inverse, mean=mean)


@measure("fitted", needs=("embeddings", "logits"))
def nci(train: Predictions, alpha: float = 1e-3) -> Fit:
    """Neural-collapse score: minus the alignment of the embedding with the weights of its class, minus its length.

    −(w_ŷ·(f − μ)/‖f − μ‖ + α·‖f‖₁). Liu & Qin (2025); α is fixed.
    """
    layer, mean = recover_last_layer(train), moments(train).mean

    def uncertainty_of(test: Predictions) -> Array:
        energy_of(test, "nci", len(layer.weight))

        def score(f: Array, block: slice) -> Array:
            offsets = f - mean
            alignment = np.vecdot(layer.weight[logits_of(test, block).argmax(1)], offsets)
            return np.asarray(-alignment / np.maximum(np.linalg.norm(offsets, axis=1), TINY) - alpha * np.abs(f).sum(1))

        return by_blocks(test, score, "nci", len(mean))

    return exportable(uncertainty_of, len(mean), weight=layer.weight, mean=mean, alpha=alpha)


@measure("plain", needs=("embeddings", "logits"))
def gradnorm(predictions: Predictions) -> Array:
    """Minus the length of the last layer's gradient towards a uniform prediction: −‖f‖₁·Σ_j |p_j − 1/c|.

    Closed form, without a backward pass. Huang, Geng & Li (2021).
    """
    lengths = by_blocks(predictions, lambda f, _: np.abs(f).sum(1), "gradnorm")
    return np.asarray(-lengths * distance_to_uniform(predictions))


# ---- patterns and templates of classes


@measure("fitted", needs=("embeddings", "logits", "labels"))
def she(train: Predictions) -> Fit:
    """Minus the inner product with the mean embedding of the correctly predicted training rows of class ŷ.

    −f·S_ŷ; for a class without correct rows the score is 0. Zhang et al. (2023), simplified Hopfield
    energy.
    """
    embeddings, groups = rows_by_class(train, "she")
    predicted, labels = summary(train).predicted, train.labels
    assert labels is not None
    patterns = np.zeros((train.classes, embeddings.shape[1]))
    for rows in groups:
        correct_rows = rows[predicted[rows] == labels[rows]]
        for block in row_blocks(embeddings, len(correct_rows)):
            patterns[labels[rows[0]]] += float64_rows(embeddings, correct_rows[block]).sum(0) / len(correct_rows)

    def uncertainty_of(test: Predictions) -> Array:
        if test.logits is None:
            raise Undefined("she needs predicted classes, but there are no logits.")
        classes = summary(test).predicted
        return by_blocks(test, lambda f, block: -np.vecdot(f, patterns[classes[block]]), "she", patterns.shape[1])

    return exportable(uncertainty_of, patterns.shape[1], patterns=patterns)


@measure("fitted", needs=("logits",))
def kl_matching(train: Predictions) -> Fit:
    """Divergence from the most similar mean prediction of a class: min_c KL(p ‖ mean p of rows predicted as c).

    Hendrycks et al. (2022), KL matching.
    """
    if train.logits is None:
        raise Undefined("kl_matching compares probabilities, but the reference has none.")
    train = select_in_distribution(train, "kl_matching")
    predicted = summary(train).predicted
    sums, counts = np.zeros((train.classes, train.classes)), np.zeros(train.classes)
    for block in train.blocks(1024):
        np.add.at(sums, predicted[block], mean_probs(train, block))
        counts += np.bincount(predicted[block], minlength=train.classes)
    predicted_classes = counts > 0
    logs = np.log(np.maximum(sums[predicted_classes] / counts[predicted_classes, None], TINY)).T

    def uncertainty_of(test: Predictions) -> Array:
        if test.logits is None or test.classes != len(sums):
            raise Undefined(f"kl_matching needs probabilities of {len(sums)} classes, as in its reference.")

        def score(block: slice) -> Array:
            p = mean_probs(test, block)
            self_term = (p * np.log(np.maximum(p, TINY))).sum(1)
            return np.asarray(np.maximum(self_term - (p @ logs).max(1), 0))

        with one_blas_thread():
            return np.concatenate(map_on_threads(score, test.blocks(1024)))

    return exportable(uncertainty_of, 0, logs=logs)


# ---- similarity to confident rows


@measure("fitted", needs=("embeddings", "logits"), example={"k": 5})
def nnguide(train: Predictions, k: int = 100, share: float = 0.01, seed: int = 0) -> Fit:
    """Minus the energy times the similarity to confident training rows: −E·mean over the k largest of f̂·f̂_i·E_i.

    E = log Σ_j exp z_j. The f̂_i are a random `share` of the training rows, at least 1000 of them. Park et al. (2023).
    """
    train = select_in_distribution(train, "nnguide")
    embeddings, n = embeddings_of(train, "nnguide"), len(train)
    size = min(n, max(BANK_ROWS, k, round(share * n)))
    if k < 1 or not 0 < share <= 1:
        raise BadInput(f"nnguide needs k of at least 1 and a share above 0 and at most 1, got {k} and {share}.")
    rows = np.sort(np.random.default_rng(seed).choice(n, size, replace=False))
    bank = (UnitRows(embeddings)[rows] * energy_of(train, "nnguide")[rows][:, None]).T
    k = min(k, size)

    def uncertainty_of(test: Predictions) -> Array:
        energy, dtype = energy_of(test, "nnguide"), product_dtype(test)
        columns = bank.astype(dtype)

        def score(f: Array, block: slice) -> Array:
            similarities = f.astype(dtype) @ columns
            similarities.partition(size - k, axis=1)
            return np.asarray(-energy[block] * similarities[:, size - k :].mean(1, dtype=np.float64))

        return by_blocks(test, score, "nnguide", len(bank), unit=True)

    return exportable(uncertainty_of, len(bank), bank=bank, k=k)


# ---- confidence and familiarity at once


@measure("fitted", needs=("embeddings", "logits"))
def sirc(train: Predictions) -> WithArrays:
    """Softmax uncertainty, raised if the embedding is shorter than training rows: detects both errors and OOD.

    log(1 − max p) + log(1 + exp(−b·(S − a))), S = ‖f‖₁, a = μ − 3σ and b = 1/σ of S on training rows. Xia & Bouganis
    (2022).
    """

    def familiarity(predictions: Predictions) -> Array:
        return by_blocks(predictions, lambda f, _: np.abs(f).sum(1), "sirc")

    train = select_in_distribution(train, "sirc")
    reference = familiarity(train)
    sigma = float(reference.std())
    if sigma == 0:
        raise Undefined("sirc needs training rows that differ: their embeddings have the same length.")
    threshold = float(reference.mean()) - 3 * sigma

    def uncertainty_of(test: Predictions) -> Array:
        if "msp" not in summary(test).u:
            raise Undefined("sirc needs the confidence of every prediction, and there is none.")
        uncertainty = np.log(np.maximum(summary(test).u["msp"], TINY))
        return np.asarray(uncertainty + np.logaddexp(0, -(familiarity(test) - threshold) / sigma))

    return exportable(uncertainty_of, embeddings_of(train, "sirc").shape[1], start=threshold, sigma=sigma)
