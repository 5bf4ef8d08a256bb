"""Measures that were taken from the network when it predicted."""

from __future__ import annotations

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import Undefined
from nescio.measures._native import read_only
from nescio.measures._spec import measure
from nescio.predictions import Predictions


@measure("plain", needs=("scores",))
def jacobian(predictions: Predictions) -> Array:
    """How much the answer moves with the image: ‖∇ₓ f(x)‖² over all softmax outputs.

    The network is needed for it, so it is taken at predict time and kept as scores["jacobian"] (UIMNET §4).
    """
    if "jacobian" not in predictions.scores:
        raise Undefined("There is no score named jacobian: it is taken from the network when it predicts.")
    return read_only(np.asarray(predictions.scores["jacobian"]))


@measure("plain", needs=("variants",))
def tta(predictions: Predictions) -> Array:
    """Doubt of the answer averaged over augmented copies of the image: −max of the mean probability.

    The log of the mean is taken at predict time and kept as variants["tta"] (test-time augmentation, UIMNET §4).
    """
    if "tta" not in predictions.variants:
        raise Undefined("There is no variant named tta: augmented copies are predicted with the network at hand.")
    return np.asarray(-np.exp(np.asarray(predictions.variants["tta"], np.float64)).max(1))
