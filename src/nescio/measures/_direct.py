"""Measures without parameters: of one pass over the softmax, of the embedding, and computed by the network itself."""

from __future__ import annotations

import numpy as np

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import Undefined
from nescio.measures._softmax_pass import summary
from nescio.measures._spec import measure, stored_score
from nescio.predictions import Predictions

BLOCK_VALUES = 1 << 20


# ---- softmax and logits


@measure("plain", needs=("logits",), fallback="confidence")
def msp(predictions: Predictions) -> Array:
    """One minus the probability of the most probable class.

    1 - max_j p_j of the mean over draws, from the sum of the other classes: confident rows keep their order.
    Hendrycks & Gimpel (2017); UIMNET, §4.
    """
    return _measure(predictions, "msp")


@measure("plain", needs=("logits",))
def gap(predictions: Predictions) -> Array:
    """One minus the margin between the two most probable classes: 1 - (p₁ - p₂). UIMNET, §4.

    From (1 - p₁) + p₂, each without cancellation: confident rows keep their order.
    """
    return _measure(predictions, "gap")


@measure("plain", needs=("logits",))
def entropy(predictions: Predictions) -> Array:
    """Entropy of the mean over draws, in nats: -Σ_j p_j log p_j."""
    return _measure(predictions, "entropy")


@measure("plain", needs=("logits",))
def max_logit(predictions: Predictions) -> Array:
    """Minus the largest logit, averaged over draws. Undefined for probabilities."""
    return _measure(predictions, "max_logit")


@measure("plain", needs=("logits",))
def energy(predictions: Predictions) -> Array:
    """Minus the log-sum-exp of the logits, averaged over draws. Undefined for probabilities.

    -log Σ_j exp z_j, Liu et al. (2020).
    """
    return _measure(predictions, "energy")


@measure("plain", needs=("logits",), needs_draws=True)
def mutual_information(predictions: Predictions) -> Array:
    """Disagreement of the draws: entropy of their mean minus their mean entropy, in nats (Jensen–Shannon divergence).

    H(mean_i p_i) - mean_i H(p_i). i runs over draws if there is at most one member, else over members, each with
    the mean of its draws. Exactly 0 for one draw.
    """
    return _measure(predictions, "mutual_information")


@measure("plain", needs=("logits",), needs_draws=True)
def expected_entropy(predictions: Predictions) -> Array:
    """Mean over draws of their entropies, in nats: mean_i H(p_i)."""
    return _measure(predictions, "expected_entropy")


@measure("plain", needs=("logits",))
def dempster_shafer(predictions: Predictions) -> Array:
    """Share of evidence for no class, averaged over draws. Undefined for probabilities.

    c / (c + Σ_j exp z_j), Sensoy et al. (2018) with exp as evidence.
    """
    return _measure(predictions, "dempster_shafer")


def _measure(predictions: Predictions, name: str) -> Array:
    u = summary(predictions).u
    if name not in u and predictions.logits is None:
        raise Undefined(f"{name} needs the probabilities of all classes, but only predicted classes are available.")
    if name not in u:
        raise Undefined(f"{name} needs logits, but only probabilities are available.")
    return u[name]


# ---- embedding


@measure("plain", needs=("embeddings",))
def norm(predictions: Predictions) -> Array:
    """Minus the length of the raw embedding: −‖e‖; short embeddings are less confident (URL §4.1, Fig. 11)."""
    if predictions.embeddings is None:
        raise Undefined("norm is the length of the embeddings, and there are none.")
    embeddings = predictions.embeddings
    slices = blocks(len(embeddings), max(1, BLOCK_VALUES // embeddings.shape[1]))
    return np.concatenate([-np.linalg.norm(np.asarray(embeddings[block], np.float64), axis=1) for block in slices])


# ---- computed by the network


@measure("plain", needs=("scores",))
def native(predictions: Predictions) -> Array:
    """Native score of the method, stored as scores["native"]; higher = less confident."""
    return stored_score("native", ": this method has no native score", predictions)


@measure("plain", needs=("scores",))
def jacobian(predictions: Predictions) -> Array:
    """Sensitivity of the prediction to the image: ‖∇ₓ f(x)‖² over all softmax outputs.

    It needs the network, so it is computed when predicting and stored as scores["jacobian"] (UIMNET §4).
    """
    return stored_score("jacobian", ": the network computes it when it predicts", predictions)


@measure("plain", needs=("variants",))
def tta(predictions: Predictions) -> Array:
    """Uncertainty of the prediction averaged over augmented copies of the image: −max of the mean probability.

    The log of the mean is computed when predicting and stored as variants["tta"] (test-time augmentation, UIMNET §4).
    """
    if "tta" not in predictions.variants:
        raise Undefined("There is no variant named tta: augmented copies are predicted together with the images.")
    return np.asarray(-np.exp(np.asarray(predictions.variants["tta"], np.float64)).max(1))
