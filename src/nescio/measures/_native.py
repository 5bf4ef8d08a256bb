"""Uncertainties that the network gives directly: the length of its embedding, or its native score."""

from __future__ import annotations

import numpy as np

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import Undefined
from nescio.measures._spec import measure
from nescio.predictions import Predictions

BLOCK_VALUES = 1 << 20


@measure("plain", needs=("embeddings",))
def norm(predictions: Predictions) -> Array:
    """Minus the length of the raw embedding: −‖e‖; short embeddings are less confident (URL §4.1, Fig. 11)."""
    if predictions.embeddings is None:
        raise Undefined("There are no embeddings, and norm is their length.")
    embeddings = predictions.embeddings
    u = np.empty(len(embeddings))
    for block in blocks(len(embeddings), max(1, BLOCK_VALUES // embeddings.shape[1])):
        u[block] = -np.linalg.norm(np.asarray(embeddings[block], np.float64), axis=1)
    return u


@measure("plain", needs=("scores",))
def native(predictions: Predictions) -> Array:
    """Native score of the method, stored as scores["native"]; higher = less confident."""
    if "native" not in predictions.scores:
        raise Undefined("There is no score named native: this method has no native score.")
    return read_only(np.asarray(predictions.scores["native"], np.float64))


def read_only(array: Array) -> Array:
    """A read-only view, which protects the arrays of the predictions."""
    view = array.view()
    view.flags.writeable = False
    return view
