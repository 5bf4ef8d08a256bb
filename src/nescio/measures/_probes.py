"""Measures that the network computes when it predicts."""

from __future__ import annotations

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import Undefined
from nescio.measures._native import read_only
from nescio.measures._spec import measure
from nescio.predictions import Predictions


@measure("plain", needs=("scores",))
def jacobian(predictions: Predictions) -> Array:
    """Sensitivity of the prediction to the image: ‖∇ₓ f(x)‖² over all softmax outputs.

    It needs the network, so it is computed when predicting and stored as scores["jacobian"] (UIMNET §4).
    """
    if "jacobian" not in predictions.scores:
        raise Undefined("There is no score named jacobian: the network computes it when it predicts.")
    return read_only(np.asarray(predictions.scores["jacobian"]))


@measure("plain", needs=("variants",))
def tta(predictions: Predictions) -> Array:
    """Uncertainty of the prediction averaged over augmented copies of the image: −max of the mean probability.

    The log of the mean is computed when predicting and stored as variants["tta"] (test-time augmentation, UIMNET §4).
    """
    if "tta" not in predictions.variants:
        raise Undefined("There is no variant named tta: the network predicts augmented copies when it predicts.")
    return np.asarray(-np.exp(np.asarray(predictions.variants["tta"], np.float64)).max(1))
