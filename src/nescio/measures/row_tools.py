"""Float64 blocks of embeddings on threads, rows by class, and their means and scatter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nescio.arrays.parallel import blocks, map_on_threads, one_blas_thread, run_on_threads
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures._spec import cached
from nescio.predictions import Predictions

Fit = Callable[[Predictions], Array]  # a fitted measure
BlockScore = Callable[[Array, slice], Array]  # (float64 embeddings (b, d), their rows) → u (b,)
Rows = slice | Array  # selection of rows: a slice, indices or a mask
BLOCK_BYTES = 1 << 21  # bytes of float64 rows in a thread's block
MIN_BLOCK_ROWS = 512  # minimum rows of a block, since every product reads d × d numbers


def row_blocks(embeddings: Embeddings, n: int | None = None) -> list[slice]:
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


class UnitRows:
    """Unit-length rows of embeddings, computed on access."""

    def __init__(self, embeddings: Array) -> None:
        self.embeddings, self.shape = embeddings, embeddings.shape

    def __len__(self) -> int:
        return len(self.embeddings)

    def __getitem__(self, rows: Rows) -> Array:
        x = float64_rows(self.embeddings, rows)
        length = np.linalg.norm(x, axis=1)
        if not length.all():
            row = np.arange(len(self))[rows][np.argmin(length)]
            raise BadInput(f"embeddings has only zeros in row {row}: it has no direction; omit it.")
        return np.asarray(x / length[:, None])


Embeddings = Array | UnitRows


def float64_rows(embeddings: Embeddings, rows: Rows) -> Array:
    return np.asarray(embeddings[rows], np.float64)


def embedding_rows(predictions: Predictions, name: str, unit: bool, d: int | None = None) -> Embeddings:
    embeddings = embeddings_of(predictions, name, d)
    return UnitRows(embeddings) if unit else embeddings


def by_blocks(
    predictions: Predictions, score: BlockScore, name: str, d: int | None = None, unit: bool = False
) -> Array:
    """u (n,) of all rows, block by block on the threads; `unit`: of unit-length embeddings."""
    embeddings = embedding_rows(predictions, name, unit, d)
    with one_blas_thread():
        scores = map_on_threads(lambda block: score(float64_rows(embeddings, block), block), row_blocks(embeddings))
    return np.concatenate(scores)


@dataclass(frozen=True, eq=False)
class WithArrays:
    """A fitted score, and the arrays that an exported file needs to compute it."""

    score: Fit
    arrays: Mapping[str, Array]

    def __call__(self, predictions: Predictions) -> Array:
        return self.score(predictions)


def exportable(score: Fit, width: int, **arrays: Array | float) -> WithArrays:
    """A fitted score that can be exported; `width` is its number of features (0 if it uses no embeddings)."""
    return WithArrays(score, {name: np.asarray(x) for name, x in (arrays | {"width": width}).items()})


def product_dtype(predictions: Predictions) -> type[np.floating]:
    """The dtype of products that keep the precision of the embeddings: float32, or float64 for float64 embeddings."""
    embeddings = predictions.embeddings
    return np.float32 if embeddings is not None and embeddings.dtype.itemsize <= 4 else np.float64


def select_in_distribution(train: Predictions, name: str) -> Predictions:
    """The in-distribution rows of a reference, cached; the reference itself if all rows are."""
    rows = train.in_distribution
    if rows is None or rows.all():
        return train
    if not rows.any():
        raise Undefined(f"Every row of the reference has in_distribution = False, so {name} has no rows to fit.")
    return _in_distribution_rows(train)


@cached
def _in_distribution_rows(train: Predictions) -> Predictions:
    assert train.in_distribution is not None
    return train.take(train.in_distribution)


def rows_by_class(train: Predictions, name: str) -> tuple[Array, list[Array]]:
    """The embeddings, and the row numbers of every training class."""
    embeddings = embeddings_of(train, name)
    if train.labels is None:
        raise Undefined(f"The reference has no labels, and {name} needs the true class of every row.")
    rows = np.arange(len(embeddings)) if train.in_distribution is None else np.flatnonzero(train.in_distribution)
    if not len(rows):
        raise Undefined(f"Every row of the reference has in_distribution = False, so {name} has no class to fit.")
    order = np.argsort(train.labels[rows], kind="stable")
    _, starts = np.unique(train.labels[rows][order], return_index=True)
    return embeddings, np.split(rows[order], starts[1:])


def mean_row(embeddings: Embeddings, rows: Array) -> Array:
    total = np.zeros(embeddings.shape[1])
    for block in row_blocks(embeddings, len(rows)):
        total += float64_rows(embeddings, rows[block]).sum(0)
    return total / len(rows)


def add_scatter(scatter: Array, embeddings: Embeddings, rows: Array, mean: Array) -> Array:
    for block in row_blocks(embeddings, len(rows)):
        differences = float64_rows(embeddings, rows[block]) - mean
        scatter += differences.T @ differences
    return scatter


def scatter_within(embeddings: Embeddings, groups: Sequence[Array], means: Array) -> Array:
    """Σ_c Σ_{i in c} (φ_i − μ_c)(φ_i − μ_c)ᵀ, in blocks of at least d rows, as partial sums are d × d."""
    rows, d = np.concatenate(groups), embeddings.shape[1]
    group_of_row = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    slices = blocks(len(rows), max(d, BLOCK_BYTES // (8 * d)))

    def work(worker: int, workers: int) -> Array:
        scatter = np.zeros((d, d))
        for block in slices[worker::workers]:
            differences = float64_rows(embeddings, rows[block]) - means[group_of_row[block]]
            scatter += differences.T @ differences
        return scatter

    return np.asarray(sum(run_on_threads(work)))


def log_sum_exp(joint: Array) -> Array:
    """log Σ_k exp of every row; the array is overwritten."""
    top = joint.max(1)
    joint -= top[:, None]
    np.exp(joint, out=joint)
    return np.asarray(np.log(joint.sum(1)) + top)
