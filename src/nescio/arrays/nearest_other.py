"""The nearest other row of every row, from symmetric tiles of products."""

from __future__ import annotations

import numpy as np

from nescio.arrays.nearest import SINGLE, Points, nearest_rows, pair_scores, prepare_points, score_margin
from nescio.arrays.parallel import blocks, map_on_threads, one_blas_thread, run_on_threads
from nescio.arrays.quantized import candidate_pairs
from nescio.arrays.types import Array
from nescio.progress import track

TILE = 512  # rows and columns of a symmetric tile
TILES_FROM = 8 * TILE  # minimum rows for symmetric tiles, which need half the products but some bookkeeping
INTEGERS_FROM = 1 << 39  # minimum multiplications for integer products, which import PyTorch


def nearest_other(points: Points) -> Array:
    """(n,) for every row the index of the nearest other row; equal rows with another index count."""
    n = len(points)
    if n < TILES_FROM:
        return (
            _nearest_among_duplicates(points)
            if points.repeats
            else nearest_rows(points, points, (1,), exclude_self=True)[:, 0]
        )
    if points.metric == "cosine" and n * n * points.d >= INTEGERS_FROM:
        margin = float(score_margin(points, points, np.arange(1), SINGLE)[0])
        if (pairs := candidate_pairs(points.search_rows, margin)) is not None:
            return _best_of_pairs(points, *pairs)
    best, second, best_row = _tiles(points)
    undecided = np.flatnonzero(best - second <= 2 * score_margin(points, points, np.arange(n), SINGLE))
    if len(undecided) > n // 8 and points.repeats:
        return _nearest_among_duplicates(points)
    if len(undecided):
        best_row[undecided] = nearest_rows(points, points, (1,), undecided, exclude_self=True)[:, 0]
    return best_row


def _best_of_pairs(points: Points, row: Array, column: Array) -> Array:
    """(n,) the nearest of each row among its candidates, by float64 scores; ties go to the lower index."""
    slices = blocks(len(row), max(1, len(row) // 64))
    score = np.concatenate(map_on_threads(lambda block: pair_scores(points, points, row[block], column[block]), slices))
    order = np.lexsort((column, -score, row))
    starts = np.flatnonzero(np.diff(row[order], prepend=-1))
    return np.asarray(column[order][starts])


def _nearest_among_duplicates(points: Points) -> Array:
    """`nearest_other` for many equal rows: searches only the first of equal rows."""
    i, first_equal = np.arange(len(points)), points.first_equal
    unique, group, size = np.unique(first_equal, return_inverse=True, return_counts=True)
    duplicates = np.argsort(first_equal, kind="stable")[np.cumsum(size) - size + np.minimum(size - 1, 1)]
    first_twin = np.where(first_equal == i, duplicates[group], first_equal)  # the first equal row with another index
    if len(unique) == 1:
        return first_twin
    nearest = unique[nearest_other(prepare_points(points.raw[unique], points.metric))][group]
    to_twin, to_other = pair_scores(points, points, i, first_twin), pair_scores(points, points, i, nearest)
    return np.where(
        (first_twin != i) & ((to_twin > to_other) | ((to_twin == to_other) & (first_twin < nearest))),
        first_twin,
        nearest,
    )


def _tiles(points: Points) -> tuple[Array, Array, Array]:
    """(best, second, best_row): the two highest float32 scores of every row with the others, and the row of the best.

    The score (less |a|²/2 when Euclidean) is symmetric, so every tile of products updates its rows and its columns.
    """
    spans = blocks(len(points), TILE)
    pairs = [(a, b) for a in range(len(spans)) for b in range(a, len(spans))]
    half_squares = points.half_squares.astype(np.float32)

    def work(i: int, workers: int) -> tuple[Array, Array, Array]:
        state = (
            np.full(len(points), -np.inf, np.float32),
            np.full(len(points), -np.inf, np.float32),
            np.zeros(len(points), np.intp),
        )
        buffer = np.empty(TILE * TILE, np.float32)
        worker_pairs = pairs[i::workers]
        for a, b in track(worker_pairs, "neighbours") if i == 0 else worker_pairs:
            tile_rows, tile_columns = spans[a], spans[b]
            height, width = tile_rows.stop - tile_rows.start, tile_columns.stop - tile_columns.start
            tile = buffer[: height * width].reshape(height, width)
            np.matmul(points.search_rows[tile_rows], points.search_rows[tile_columns].T, out=tile)
            if points.metric == "euclidean":
                tile -= half_squares[tile_rows][:, None]
                tile -= half_squares[tile_columns]
            if a == b:
                np.fill_diagonal(tile, -np.inf)
            else:
                _update_best(state, tile_columns.start, tile.T, tile_rows.start, tile.max(0))
            _update_best(state, tile_rows.start, tile, tile_columns.start, tile[np.arange(height), tile.argmax(1)])
        return state

    with one_blas_thread():
        (best, second, best_row), *other_states = run_on_threads(work)
    for other_best, other_second, other_row in other_states:
        second = np.maximum(np.minimum(best, other_best), np.maximum(second, other_second))
        best_row, best = np.where(other_best > best, other_row, best_row), np.maximum(best, other_best)
    if points.metric == "euclidean":
        best, second = best.astype(np.float64), second.astype(np.float64)
    return best, second, best_row


def _update_best(state: tuple[Array, Array, Array], start: int, tile: Array, offset: int, maxima: Array) -> None:
    """Update the two best scores of the rows from `start` on by a tile with the row maxima `top`."""
    best, second, best_row = (array[start : start + len(tile)] for array in state)
    improved = np.flatnonzero(maxima > second)
    if not len(improved):
        return
    block, row_numbers = tile[improved], np.arange(len(improved))
    column = block.argmax(1)
    highest = block[row_numbers, column]
    block[row_numbers, column] = -np.inf
    runner_up = block.max(1)
    old_best, old_second = best[improved], second[improved]
    is_new_best = highest > old_best
    second[improved] = np.where(is_new_best, np.maximum(old_best, runner_up), np.maximum(old_second, highest))
    best[improved] = np.maximum(old_best, highest)
    best_row[improved] = np.where(is_new_best, offset + column, best_row[improved])
