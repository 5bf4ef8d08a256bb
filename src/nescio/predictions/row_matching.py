"""Find rows that two sets of predictions share, whatever their order and index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.predictions.outputs import CHECK_BYTES, Predictions


def same_rows(one: Predictions, other: Predictions) -> bool:
    """Whether two sets of predictions have the same rows, in any order and with any index, such as a copied file."""
    if len(one) != len(other):
        return False
    ours, theirs = dict(one.columns()), dict(other.columns())
    shared = [name for name in ours if name in theirs and name != "index" and ours[name].dtype.kind in "fiub"]
    if not any(ours[name].dtype.kind == "f" for name in shared):
        return False  # equal labels alone do not make equal rows
    if any(ours[name].shape != theirs[name].shape for name in shared):
        return False
    pairs = [_alike(ours[name], theirs[name]) for name in shared]
    digests = [np.sort(_digests(columns)) for columns in zip(*pairs, strict=True)]
    return np.array_equal(digests[0], digests[1])


def shared_rows(one: Predictions, other: Predictions) -> int:
    """Number of rows of the shorter predictions that the other has too, by logits or else embeddings.

    0 if these do not distinguish rows: more than 1 % are repeated, such as saturated or rounded ones.
    """
    for name in ("logits", "embeddings"):
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours is not None and theirs is not None and ours.shape[1:] == theirs.shape[1:]:
            short, long = sorted((_digests([column]) for column in _alike(ours, theirs)), key=len)
            repeated = any(len(np.unique(digests)) < 0.99 * len(digests) for digests in (short, long))
            return 0 if repeated else int(np.isin(short, long).sum())
    return 0


def _alike(one: Array, other: Array) -> tuple[Array, Array]:
    """Two columns in the lower of their precisions, so that a copy in half precision matches."""
    if one.dtype.kind != "f" or other.dtype.kind != "f":
        return one, other
    lower = min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
    with np.errstate(over="ignore"):
        return one.astype(lower, copy=False), other.astype(lower, copy=False)


def _digests(columns: Sequence[Array]) -> Array:
    """A number (n,) for the content of every row: products of its 64-bit words with random ones, modulo 2⁶⁴."""
    digests = np.zeros(len(columns[0]), np.uint64)
    for number, column in enumerate(columns):
        width = int(np.prod(column.shape[1:]))
        weights = np.random.PCG64(number).random_raw(width) | np.uint64(1)
        for block in blocks(len(column), max(1, CHECK_BYTES // (8 * max(1, width)))):
            values = np.ascontiguousarray(column[block], np.float64).reshape(-1, width) + 0.0  # -0.0 is 0.0
            digests[block] += (values.view(np.uint64) * weights).sum(1, dtype=np.uint64)
    return digests
