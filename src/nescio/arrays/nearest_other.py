"""The nearest other row of every row: one product serves both of its rows."""

from __future__ import annotations

import numpy as np

from nescio.arrays.nearest import SINGLE, Points, nearest_rows, pair_scores, prepare_points, score_margin
from nescio.arrays.parallel import blocks, map_on_threads, one_blas_thread, run_on_threads
from nescio.arrays.quantized import candidate_pairs
from nescio.arrays.types import Array
from nescio.progress import track

TILE = 512  # rows and columns of a symmetric tile
TILES_FROM = 8 * TILE  # rows from which symmetric tiles, at half the products, are worth their bookkeeping
INTEGERS_FROM = 1 << 39  # multiplications from which integer products are worth importing PyTorch


def nearest_other(these: Points) -> Array:
    """(n,) for every row the index of the nearest other row, the query left out by its index."""
    n = len(these)
    if n < TILES_FROM:
        return (
            _nearest_among_duplicates(these) if these.repeats else nearest_rows(these, these, (1,), others=True)[:, 0]
        )
    if these.metric == "cosine" and n * n * these.d >= INTEGERS_FROM:
        margin = float(score_margin(these, these, np.arange(1), SINGLE)[0])
        if (pairs := candidate_pairs(these.search_rows, margin)) is not None:
            return _best_of_pairs(these, *pairs)
    best, second, best_row = _tiles(these)
    unsure = np.flatnonzero(best - second <= 2 * score_margin(these, these, np.arange(n), SINGLE))
    if len(unsure) > n // 8 and these.repeats:
        return _nearest_among_duplicates(these)
    if len(unsure):
        best_row[unsure] = nearest_rows(these, these, (1,), unsure, others=True)[:, 0]
    return best_row


def _best_of_pairs(these: Points, row: Array, column: Array) -> Array:
    """(n,) the nearest of each row among its candidates, by float64 scores; ties go to the lower index."""
    parts = blocks(len(row), max(1, len(row) // 64))
    score = np.concatenate(map_on_threads(lambda block: pair_scores(these, these, row[block], column[block]), parts))
    order = np.lexsort((column, -score, row))
    first = np.flatnonzero(np.diff(row[order], prepend=-1))
    return np.asarray(column[order][first])


def _nearest_among_duplicates(these: Points) -> Array:
    """`nearest_other` for many equal rows: searches only the first of equal rows."""
    i, first_equal = np.arange(len(these)), these.first_equal
    first, kind, size = np.unique(first_equal, return_inverse=True, return_counts=True)
    second = np.argsort(first_equal, kind="stable")[np.cumsum(size) - size + np.minimum(size - 1, 1)]
    first_twin = np.where(first_equal == i, second[kind], first_equal)  # the first equal row that is another
    if len(first) == 1:
        return first_twin
    far = first[nearest_other(prepare_points(these.raw[first], these.metric))][kind]
    to_twin, to_far = pair_scores(these, these, i, first_twin), pair_scores(these, these, i, far)
    return np.where(
        (first_twin != i) & ((to_twin > to_far) | ((to_twin == to_far) & (first_twin < far))), first_twin, far
    )


def _tiles(these: Points) -> tuple[Array, Array, Array]:
    """(best, second, best_row): the two highest float32 scores of every row with the others, and the row of the best.

    The score (less |a|²/2 when Euclidean) is symmetric, so one tile of products serves its rows and its columns.
    """
    spans = blocks(len(these), TILE)
    pairs = [(a, b) for a in range(len(spans)) for b in range(a, len(spans))]
    half_squares = these.half_squares.astype(np.float32)

    def work(i: int, workers: int) -> tuple[Array, Array, Array]:
        state = (
            np.full(len(these), -np.inf, np.float32),
            np.full(len(these), -np.inf, np.float32),
            np.zeros(len(these), np.intp),
        )
        room = np.empty(TILE * TILE, np.float32)
        mine = pairs[i::workers]
        for a, b in track(mine, "neighbours") if i == 0 else mine:
            down, across = spans[a], spans[b]
            height, width = down.stop - down.start, across.stop - across.start
            tile = room[: height * width].reshape(height, width)
            np.matmul(these.search_rows[down], these.search_rows[across].T, out=tile)
            if these.metric == "euclidean":
                tile -= half_squares[down][:, None]
                tile -= half_squares[across]
            if a == b:
                np.fill_diagonal(tile, -np.inf)
            else:
                _update_best(state, across.start, tile.T, down.start, tile.max(0))
            _update_best(state, down.start, tile, across.start, tile[np.arange(height), tile.argmax(1)])
        return state

    with one_blas_thread():
        (best, second, best_row), *more = run_on_threads(work)
    for other_best, other_second, other_row in more:
        second = np.maximum(np.minimum(best, other_best), np.maximum(second, other_second))
        best_row, best = np.where(other_best > best, other_row, best_row), np.maximum(best, other_best)
    if these.metric == "euclidean":
        best, second = best.astype(np.float64), second.astype(np.float64)
    return best, second, best_row


def _update_best(state: tuple[Array, Array, Array], start: int, tile: Array, offset: int, top: Array) -> None:
    """Updates the two best scores of the rows from `start` on by a tile with the row maxima `top`."""
    best, second, best_row = (array[start : start + len(tile)] for array in state)
    up = np.flatnonzero(top > second)
    if not len(up):
        return
    block, line = tile[up], np.arange(len(up))
    first = block.argmax(1)
    highest = block[line, first]
    block[line, first] = -np.inf
    next_ = block.max(1)
    old, older = best[up], second[up]
    newer = highest > old
    second[up] = np.where(newer, np.maximum(old, next_), np.maximum(older, highest))
    best[up] = np.maximum(old, highest)
    best_row[up] = np.where(newer, offset + first, best_row[up])
