"""Float64 blocks of embeddings on threads, rows by class, and their means and scatter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from nescio.arrays.parallel import blocks, run_on_threads, thread_count
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures._spec import cached
from nescio.predictions import Predictions

Item = TypeVar("Item")
Result = TypeVar("Result")
BLOCK_BYTES = 1 << 21  # float64 rows that a thread works on at once
MIN_BLOCK_ROWS = 512  # minimum rows of a block, because every product also reads d × d numbers


def map_on_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """[work(item) for item in items], spread over the threads."""
    waiting = list(items)

    def run(worker: int, workers: int) -> list[Result]:
        return [work(item) for item in waiting[worker::workers]]

    done = run_on_threads(run, min(thread_count(), len(waiting)))
    return [done[number % len(done)][number // len(done)] for number in range(len(waiting))]


def row_blocks(embeddings: Array, n: int | None = None) -> list[slice]:
    rows = max(MIN_BLOCK_ROWS, BLOCK_BYTES // (8 * embeddings.shape[1]))
    return blocks(len(embeddings) if n is None else n, rows)


def embeddings_of(predictions: Predictions, name: str, d: int | None = None) -> Array:
    """The embeddings; Undefined if there are none, BadInput if they do not have d features."""
    if predictions.embeddings is None:
        raise Undefined(f"There are no embeddings for {name}.")
    width = predictions.embeddings.shape[1]
    if d is not None and width != d:
        raise BadInput(f"embeddings has {width} features, the reference has {d}: they must come from one network.")
    return predictions.embeddings


def float64_rows(embeddings: Array, rows: Any) -> Array:
    return np.asarray(embeddings[rows], np.float64)


def unit_rows(x: Array, names: Any) -> Array:
    """The rows at unit length; `names` are their numbers, or the first number."""
    length = np.linalg.norm(x, axis=1)
    if not length.all():
        zero_row = int(np.argmin(length))
        row = names[zero_row] if isinstance(names, np.ndarray) else names + zero_row
        raise BadInput(f"embeddings has only zeros in row {row}: it has no direction; leave it out.")
    return np.asarray(x / length[:, None])


class UnitRows:
    """Unit-length rows of embeddings, computed when they are read."""

    def __init__(self, embeddings: Array) -> None:
        self.embeddings, self.shape = embeddings, embeddings.shape

    def __len__(self) -> int:
        return len(self.embeddings)

    def __getitem__(self, rows: Any) -> Array:
        names = rows.start or 0 if isinstance(rows, slice) else rows
        return unit_rows(float64_rows(self.embeddings, rows), names)


def embedding_rows(predictions: Predictions, name: str, unit: bool, d: int | None = None) -> Any:
    embeddings = embeddings_of(predictions, name, d)
    return UnitRows(embeddings) if unit else embeddings


def product_dtype(predictions: Predictions) -> Any:
    """The dtype of products that keep the precision of the embeddings: float32, or float64 for float64 embeddings."""
    return (
        np.float32 if predictions.embeddings is not None and predictions.embeddings.dtype.itemsize <= 4 else np.float64
    )


def select_in_distribution(train: Predictions, name: str) -> Predictions:
    """The in-distribution rows of a reference, cached; the reference itself if all rows are."""
    if train.in_distribution is None or train.in_distribution.all():
        return train
    if not train.in_distribution.any():
        raise Undefined(f"Every row of the reference has in_distribution = False, so {name} has nothing to fit.")
    return cached(train, "in_distribution", lambda: train.take(train.in_distribution))


def rows_by_class(train: Predictions, name: str) -> tuple[Array, list[Array]]:
    """The embeddings, and for every class of the training the numbers of its rows."""
    embeddings = embeddings_of(train, name)
    if train.labels is None:
        raise Undefined(f"The reference has no labels, and {name} needs the true class of every row.")
    rows = np.arange(len(embeddings)) if train.in_distribution is None else np.flatnonzero(train.in_distribution)
    if not len(rows):
        raise Undefined(f"Every row of the reference has in_distribution = False, so {name} has no class to fit.")
    order = np.argsort(train.labels[rows], kind="stable")
    _, starts = np.unique(train.labels[rows][order], return_index=True)
    return embeddings, np.split(rows[order], starts[1:])


def mean_row(embeddings: Array, rows: Array) -> Array:
    total = np.zeros(embeddings.shape[1])
    for block in row_blocks(embeddings, len(rows)):
        total += float64_rows(embeddings, rows[block]).sum(0)
    return total / len(rows)


def add_scatter(scatter: Array, embeddings: Array, rows: Array, mean: Array) -> Array:
    for block in row_blocks(embeddings, len(rows)):
        away = float64_rows(embeddings, rows[block]) - mean
        scatter += away.T @ away
    return scatter


def scatter_within(embeddings: Array, groups: Sequence[Array], means: Array) -> Array:
    """Σ_c Σ_{i in c} (φ_i − μ_c)(φ_i − μ_c)ᵀ, d rows or more at a time, since a sum is d × d."""
    rows, d = np.concatenate(groups), embeddings.shape[1]
    group_of_row = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    parts = blocks(len(rows), max(d, BLOCK_BYTES // (8 * d)))

    def block(worker: int, workers: int) -> Array:
        scatter = np.zeros((d, d))
        for block in parts[worker::workers]:
            away = float64_rows(embeddings, rows[block]) - means[group_of_row[block]]
            scatter += away.T @ away
        return scatter

    return np.asarray(sum(run_on_threads(block)))


def log_sum_exp(joint: Array) -> Array:
    """log Σ_k exp of every row; the array is overwritten."""
    top = joint.max(1)
    joint -= top[:, None]
    np.exp(joint, out=joint)
    return np.asarray(np.log(joint.sum(1)) + top)
