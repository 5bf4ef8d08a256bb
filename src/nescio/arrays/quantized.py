"""Candidates for nearest rows from exact products of 8-bit integers, which some processors compute fast.

Unit rows are rotated at random, so that no entry is very large, and rounded to s·q with integers q in ±127.
With e the length of a row's rounding error, |a·b − s²·q_a·q_b| ≤ e_a + (1 + e_a)·e_b. Every row whose product
is within twice that bound of the largest is a candidate; the caller compares candidates in float64.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import combinations_with_replacement

import numpy as np

from nescio.arrays.parallel import blocks, map_on_threads, one_blas_thread, run_on_threads
from nescio.arrays.types import Array
from nescio.progress import track

TILE = 512  # rows and columns of a tile of products
LARGEST = 1 << 26  # maximum number of stored products
MOST = 256  # maximum mean number of candidates per row in a span; with more, most rows are equal
FASTER = 2.0  # required speed of integer products relative to float32
Product = Callable[[Array, Array], Array]


def candidate_pairs(unit: Array, rounding: float) -> tuple[Array, Array] | None:
    """Pairs (row, other row) among float32 rows of length one that contain every nearest other row.

    None if there are too many rows or candidates, or if the processor has no fast integer products.
    rounding: bound on the error of the rows' own products
    """
    spans = blocks(len(unit), TILE)
    if len(spans) * len(unit) > LARGEST:
        return None
    with _integer_product() as product:
        if product is None:
            return None
        rows, window = _quantize(unit, rounding)
        largest = _largest_products(rows, spans, product)
        threshold = largest.max(0) - window

        def candidates(number: int) -> tuple[Array, Array] | None:
            """Candidates in a span of rows, for the rows whose largest product with the span reaches the threshold."""
            candidate_rows, span = np.flatnonzero(largest[number] >= threshold), spans[number]
            if not len(candidate_rows):
                return candidate_rows, candidate_rows
            is_candidate = product(rows[candidate_rows], rows[span]) >= threshold[candidate_rows, None]
            if np.count_nonzero(is_candidate) > MOST * TILE:
                return None
            row, column = np.nonzero(is_candidate)
            different = candidate_rows[row] != span.start + column
            return candidate_rows[row][different], span.start + column[different]

        pairs = map_on_threads(candidates, range(len(spans)))
    span_pairs = [pair for pair in pairs if pair is not None]
    if len(span_pairs) < len(pairs):
        return None
    row, column = (np.concatenate(indices) for indices in zip(*span_pairs, strict=True))
    return row, column


def _largest_products(rows: Array, spans: Sequence[slice], product: Product) -> Array:
    """(spans, n) the largest product of each row with the other rows of each span."""
    largest = np.empty((len(spans), len(rows)), np.int32)
    tiles = list(combinations_with_replacement(range(len(spans)), 2))

    def work(first: int, step: int) -> None:
        worker_tiles = tiles[first::step]
        for a, b in track(worker_tiles, "neighbours") if first == 0 else worker_tiles:
            tile = product(rows[spans[a]], rows[spans[b]])
            if a == b:
                np.fill_diagonal(tile, np.iinfo(np.int32).min // 2)
            largest[a, spans[b]] = tile.max(0)
            largest[b, spans[a]] = tile.max(1)

    run_on_threads(work)
    return largest


def _quantize(unit: Array, rounding: float) -> tuple[Array, Array]:
    """Rotated rows (n, d) as int8, and (n,) the range below a row's largest product that contains its true largest."""
    n, d = unit.shape
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((d, d)))[0].astype(np.float32)
    rotated, rows, losses = unit @ rotation, np.empty((n, d), np.int8), np.empty(n)
    scale = float(max(rotated.max(), -rotated.min())) / 127
    for block in blocks(n, TILE):
        quantized = np.rint(rotated[block] / scale)
        rows[block] = quantized
        losses[block] = np.linalg.norm(rotated[block] - scale * quantized, axis=1)
    error = losses + (1 + losses) * losses.max() + rounding + 4 * np.sqrt(d) * (d + 8) * 2.0**-24  # of rotating
    return rows, np.ceil(2 * error / scale**2 + 1).astype(np.int32)


@contextmanager
def _integer_product() -> Iterator[Product | None]:
    """A function that computes a·bᵀ of int8 rows a and b as int32; None without PyTorch or a fast implementation."""
    if find_spec("torch") is None:
        yield None
        return
    import torch

    def product(a: Array, b: Array) -> Array:
        torch.set_num_threads(1)  # applies to the calling thread only
        return torch._int_mm(torch.from_numpy(a), torch.from_numpy(b).T).numpy()

    threads = torch.get_num_threads()
    try:
        yield product if _is_faster(product) else None
    finally:
        torch.set_num_threads(threads)


def _is_faster(product: Product) -> bool:
    """Whether integer products are correct and FASTER times as fast as float32."""
    integers = np.arange(TILE * TILE).reshape(TILE, TILE) % 251 - 125.0
    seconds = []
    with one_blas_thread():
        for dtype, multiply in ((np.float32, lambda a, b: a @ b.T), (np.int8, product)):
            x = integers.astype(dtype)
            for _ in range(3):
                start = time.perf_counter()
                try:
                    result = multiply(x, x)
                except RuntimeError:  # not implemented for this processor
                    return False
                seconds.append(time.perf_counter() - start)
    correct = np.array_equal(result, integers @ integers.T)
    return correct and FASTER * min(seconds[3:]) < min(seconds[:3])
