"""Exact nearest neighbours by blocked products: a float32 search, with close decisions in float64.

A float32 product of two rows has a bounded error. If the scores of the k-th and the (k+1)-th neighbour differ by more
than twice that bound, their order is certain. Otherwise the few rows near the k-th score are compared in float64,
pair by pair, independently of their positions: equal rows tie exactly, and ties go to the lower index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.checks import matrix
from nescio.arrays.parallel import blocks, one_blas_thread, run_on_threads, thread_count
from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.progress import track

METRICS = ("cosine", "euclidean")
BLOCK = 1 << 22  # entries of one block of products
CHOICE = 1 << 19  # entries of a block in one selection
SLAB = 1 << 17  # numbers in one conversion, so that they fit the cache
SURE = 2.5  # distance from the k-th score, in error margins, beyond which float32 decides
CROWD = 64  # maximum undecided neighbours of a row that are compared pair by pair
CROWDED = -1  # placeholder for the neighbours of a row above CROWD
PAIR = 16  # cost of comparing a pair, in entries of a product
NEAR, NEAR_COSINE = 1e-3, 1e-9  # squared distances below which rows are compared pair by pair
SERIAL = 1 << 27  # multiplications below which one thread is fastest
TINY = 1e-150  # rows with squared lengths outside TINY … 1/TINY are normalised before products
FAR = 1e18  # entries are clipped to this in the float32 search; float64 decides on such rows
SINGLE, DOUBLE = 2.0**-24, 2.0**-53  # unit roundoff


def unit(x: Array, name: str = "embeddings", start: int = 0) -> Array:
    """Normalize float64 rows to unit length without over- or underflow; `start` is the number of the first."""
    max_value = np.abs(x).max(1)
    if not max_value.all():
        row = start + int(np.flatnonzero(max_value == 0)[0])
        raise BadInput(f"{name} has length zero in row {row}, so that it has no cosine; omit that row.")
    x = x / max_value[:, None]
    return np.asarray(x / np.sqrt((x * x).sum(1))[:, None])


@dataclass(frozen=True)
class Points:
    """Embeddings prepared for one metric.

    Cosine: unit-length rows, score = a·b. Euclidean: (rows − shift)·scale (a power of two), score =
    a·b − |b|²/2 = (|a|² − distance²)/2. Higher scores are nearer.
    """

    raw: Array  # (n, d) original rows, in any precision, possibly on disk
    metric: str
    name: str
    shift: Array  # (d,)
    scale: float
    search_rows: Array  # (n, d) float32 rows for products
    square: Array  # (n,) squared lengths: of the raw rows (cosine), or of the rows in products (Euclidean)

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def d(self) -> int:
        return int(self.raw.shape[1])

    @cached_property
    def half_squares(self) -> Array:
        """(n,) numbers that are subtracted from products to get scores: half the squared lengths, or 0 for cosines."""
        return self.square / 2 if self.metric == "euclidean" else np.zeros(len(self))

    @cached_property
    def max_length(self) -> float:
        return float(np.sqrt(self.square.max()))

    @cached_property
    def max_value(self) -> float:
        """Largest scaled entry before the shift, which bounds the rounding error of the shift."""
        return (
            max(float(np.abs(self.raw[block]).max()) for block in blocks(len(self), max(1, SLAB // self.d)))
            * self.scale
        )

    @cached_property
    def first_equal(self) -> Array:
        """(n,) the index of the first bitwise equal row."""
        rows = np.ascontiguousarray(self.raw)
        keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * self.d))).ravel()
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        return np.asarray(first[inverse])

    @property
    def repeats(self) -> bool:
        """Whether at least every second row equals an earlier one."""
        return bool(2 * np.count_nonzero(self.first_equal == np.arange(len(self))) <= len(self))

    def float64(self, rows: Array | slice) -> Array:
        """Original rows in float64."""
        return np.asarray(self.raw[rows], np.float64)

    def centred(self, rows: Array | slice) -> Array:
        """float64 rows for products."""
        x = self.float64(rows)
        return unit(x) if self.metric == "cosine" else (x - self.shift) * self.scale


def prepare_points(
    embeddings: ArrayLike, metric: str = "cosine", name: str = "embeddings", like: Points | None = None
) -> Points:
    """Check and prepare embeddings; `like` provides shift and scale for a comparison with it."""
    if metric not in METRICS:
        raise BadInput(f"There is no distance named {metric!r}. There are: {', '.join(METRICS)}.")
    raw = matrix(name, embeddings)
    n, d = raw.shape
    if n == 0:
        raise BadInput(f"{name} has no rows: at least one is needed.")
    if like is not None and like.d != d:
        raise BadInput(f"{name} has {d} features, {like.name} has {like.d}: they must come from the same network.")
    slices = blocks(n, max(1, SLAB // d))
    shift, scale = np.zeros(d), 1.0
    if like is not None:
        shift, scale = like.shift, like.scale
    elif metric == "euclidean":
        shift = sum((np.asarray(raw[block], np.float64) / n).sum(0) for block in slices) + shift
        largest = max(float(np.abs(raw[block] - shift).max()) for block in slices)
        scale = float(2.0 ** -np.frexp(largest)[1]) if largest else 1.0
    search_rows, square = np.empty((n, d), np.float32), np.empty(n)

    def work(i: int, workers: int) -> None:
        for block in slices[i::workers]:
            x = np.asarray(raw[block], np.float64)
            if metric == "euclidean":
                x = (x - shift) * scale
            with np.errstate(over="ignore"):
                square[block] = (x * x).sum(1)
            if metric == "cosine" and not (square[block].min() > TINY and square[block].max() < 1 / TINY):
                search_rows[block] = unit(x, name, block.start)
            elif metric == "cosine":
                search_rows[block] = x / np.sqrt(square[block])[:, None]
            else:
                search_rows[block] = np.clip(x, -FAR, FAR)

    _run(work, n * d * 64)
    if metric == "cosine" and not (square.min() > TINY and square.max() < 1 / TINY):
        raw = unit(np.asarray(raw, np.float64))  # products would overflow or underflow
        square = (raw * raw).sum(1)
    return Points(raw, metric, name, shift, scale, search_rows, square)


def nearest_rows(
    refs: Points, queries: Points, cuts: Sequence[int], rows: Array | None = None, exclude_self: bool = False
) -> Array:
    """(n, cuts[-1]) indices of references: for every ascending cut k, the first k of a row are its k nearest, as a set.

    rows: numbers of the queries to search for. exclude_self: queries are the references, and none finds itself.
    """
    rows = np.arange(len(queries)) if rows is None else rows
    neighbours = np.empty((len(rows), cuts[-1]), np.intp)
    work_size = len(rows) * len(refs) * refs.d
    workers = thread_count() if work_size >= SERIAL else 1
    rounds = max(1, -(-len(rows) // (workers * int(np.clip(BLOCK // len(refs), 64, 1024)))))
    block_size = max(1, -(-len(rows) // (workers * rounds)))  # equal work for all workers
    slices = blocks(len(rows), block_size)
    half_squares = refs.half_squares.astype(np.float32)

    def work(i: int, workers: int) -> None:
        buffer = np.empty(min(block_size, len(rows)) * len(refs), np.float32)
        worker_blocks = slices[i::workers]
        for block in track(worker_blocks, "neighbours") if i == 0 else worker_blocks:
            query_rows = rows[block]
            scores = buffer[: len(query_rows) * len(refs)].reshape(len(query_rows), len(refs))
            np.matmul(queries.search_rows[query_rows], refs.search_rows.T, out=scores)
            if refs.metric == "euclidean":
                scores -= half_squares
            if exclude_self:
                scores[np.arange(len(query_rows)), query_rows] = -np.inf
            for chunk in blocks(len(query_rows), max(1, CHOICE // len(refs))):
                margin = score_margin(refs, queries, query_rows[chunk], SINGLE)
                neighbours[block][chunk] = _choose(
                    scores[chunk], margin, cuts, _TieBreaker(refs, queries, query_rows[chunk], exclude_self)
                )
            crowded = np.flatnonzero(neighbours[block, 0] == CROWDED)
            if len(crowded):
                neighbours[block][crowded] = _TieBreaker(
                    refs, queries, query_rows[crowded], exclude_self
                ).search_crowded_rows(cuts)

    _run(work, work_size, blas=True)
    return neighbours


def distances(refs: Points, queries: Points, neighbours: Array) -> Array:
    """(n, k) float64 distances from queries to the references with indices `neighbours` (n, k). Cosine: 1 − cos."""
    n, k = neighbours.shape
    out = np.empty((n, k))
    all_at_once = k * PAIR > len(refs) and refs.raw.size <= 8 * BLOCK
    centred_refs = refs.centred(slice(None)) if all_at_once else np.empty(0)
    slices = blocks(n, max(1, BLOCK // (4 * len(refs)) if all_at_once else SLAB // (k * refs.d)))

    def work(i: int, workers: int) -> None:
        for block in slices[i::workers]:
            query_rows = np.arange(n)[block]
            if all_at_once:
                out[block] = _TieBreaker(refs, queries, query_rows, False).exact_scores(neighbours[block], centred_refs)
            else:
                out[block] = pair_scores(refs, queries, query_rows.repeat(k), neighbours[block].ravel()).reshape(-1, k)

    _run(work, n * k * refs.d * 8, blas=all_at_once)
    if refs.metric == "cosine":
        return np.asarray(np.maximum(1 - np.sign(out) * np.sqrt(np.abs(out)), 0))
    return np.asarray(np.sqrt(-2 * out) / refs.scale)


# ---- close decisions in float64


def _run(work: Callable[[int, int], None], size: int, blas: bool = False) -> None:
    """Run on all threads, with one BLAS thread each; small work runs in the calling thread."""
    if size < SERIAL:
        work(0, 1)
        return
    with one_blas_thread() if blas else nullcontext():
        run_on_threads(work)


def score_margin(refs: Points, queries: Points, query_rows: Array, roundoff: float) -> Array:
    """(len(query_rows),) bound on the error of a computed score, for any order of summation.

    |fl(a·b) − a·b| ≤ d·roundoff·|a|·|b| to first order, and a few roundings more for the entries and for |b|²/2.
    """
    if refs.metric == "cosine":
        return np.full(len(query_rows), (refs.d + 8) * roundoff)
    span = np.sqrt(queries.square[query_rows]) + refs.max_length
    return np.asarray((refs.d + 8) * roundoff * span**2 + 8 * DOUBLE * np.sqrt(refs.d) * refs.max_value * span)


def pair_scores(refs: Points, queries: Points, i: Array, j: Array) -> Array:
    """float64 scores of the pairs (i, j), higher = nearer; equal rows have equal scores at any position.

    Cosine: cos·|cos| = ab·|ab| / (a²·b²), one rounding for integers, so that exact ties stay ties.
    Euclidean: −distance²/2, scaled.
    """
    out = np.empty(len(i))
    for block in blocks(len(i), max(1, SLAB // refs.d)):
        a, b = queries.float64(i[block]), refs.float64(j[block])
        if refs.metric == "cosine":
            dot = (a * b).sum(1)
            out[block] = dot * np.abs(dot) / (queries.square[i[block]] * refs.square[j[block]])
        else:
            a = (a - b) * refs.scale
            out[block] = (a * a).sum(1) / -2
    return out


@dataclass(frozen=True)
class _TieBreaker:
    """Decide in float64 the neighbours that float32 left undecided, for one block of queries."""

    refs: Points
    queries: Points
    query_rows: Array  # (b,) query numbers of the block
    exclude_self: bool

    def comparable(self, scores: Array, row: Array) -> Array:
        """Scores of rows of the block on the scale of `pair_scores`."""
        if self.refs.metric == "cosine":
            return scores * np.abs(scores)
        return np.asarray(scores - self.queries.half_squares[self.query_rows[row]])

    def pairs(self, row: Array, column: Array) -> Array:
        return pair_scores(self.refs, self.queries, self.query_rows[row], column)

    def exact_scores(self, neighbours: Array, centred_refs: Array) -> Array:
        """Scores of the neighbours of each query, by one product with all references, `centred_refs`.

        Rows so near that a difference of products cancels are compared pair by pair.
        """
        scores = self.queries.centred(self.query_rows) @ centred_refs.T - self.refs.half_squares
        out = np.take_along_axis(self.comparable(scores, np.arange(len(self.query_rows))[:, None]), neighbours, 1)
        if self.refs.metric == "cosine":
            imprecise = out > 1 - NEAR_COSINE
        else:
            imprecise = (
                -2 * out < NEAR * (np.sqrt(self.queries.square[self.query_rows]) + self.refs.max_length)[:, None] ** 2
            )
        row, rank = np.nonzero(imprecise)
        out[row, rank] = self.pairs(row, neighbours[row, rank])
        return out

    def search_crowded_rows(self, cuts: Sequence[int]) -> Array:
        """Neighbours of rows with very many candidates at almost equal distance, as of a collapsed network."""
        query_rows, n, first_equal = self.query_rows, len(self.refs), self.refs.first_equal
        scores = np.empty((len(query_rows), n))
        a = self.queries.centred(query_rows)
        for block in blocks(n, max(1, BLOCK // (4 * self.refs.d))):
            scores[:, block] = a @ self.refs.centred(block).T - self.refs.half_squares[block]
        if (first_equal != np.arange(n)).any():
            scores = scores[:, first_equal]
        if self.exclude_self:
            scores[np.arange(len(query_rows)), query_rows] = -np.inf
        thresholds = -np.sort(np.partition(-scores, cuts[-1] - 1)[:, : cuts[-1]])[:, np.array(cuts) - 1]
        tolerance = 4 * score_margin(self.refs, self.queries, query_rows, DOUBLE)
        undecided = np.zeros(scores.shape, bool)
        for t in thresholds.T:
            undecided |= np.abs(scores - t[:, None]) <= tolerance[:, None]
        scores = self.comparable(scores, np.arange(len(query_rows))[:, None])
        row, column = np.nonzero(undecided)
        key = row * n + first_equal[column]
        requested = np.zeros(scores.size, bool)
        requested[key] = True
        pairs = np.flatnonzero(requested)
        value = np.empty(scores.size)
        value[pairs] = pair_scores(self.refs, self.queries, query_rows[pairs // n], pairs % n)
        scores[row, column] = value[key]
        return _choose(scores, np.zeros(len(query_rows)), cuts, None)


def _choose(scores: Array, margin: Array, cuts: Sequence[int], tie_breaker: _TieBreaker | None) -> Array:
    """(b, cuts[-1]) columns: for every cut k the first k have the k highest exact scores; ties go to the lower column.

    scores (b, n) are off by at most `margin` (b,). An entry further than SURE margins from the k-th score is
    decided. The tie breaker decides on the others; rows with too many of them are returned as
    CROWDED. (Margin 0 and no tie breaker: the scores are exact.)
    """
    b, n = scores.shape
    k = cuts[-1]
    width = min(k + 1, n)
    top = np.sort(np.partition(scores, n - width)[:, n - width :])[:, ::-1].astype(np.float64)
    inside = top[:, np.array(cuts) - 1]
    next_best = np.full(inside.shape, -np.inf)
    inner_cuts = [cut_number for cut_number, cut in enumerate(cuts) if cut < n]
    next_best[:, inner_cuts] = top[:, [cuts[cut_number] for cut_number in inner_cuts]]
    unsure = inside - next_best <= 2 * margin[:, None]  # (b, cuts)
    is_undecided = unsure.any(1)
    undecided, decided = np.flatnonzero(is_undecided), np.flatnonzero(~is_undecided)
    chosen = np.empty((b, k), np.intp)

    with np.errstate(over="ignore"):  # for queries beyond the range of float32, all columns are undecided
        lowest = np.where(is_undecided, inside[:, -1] - SURE * margin, inside[:, -1]).astype(scores.dtype)
    lowest[undecided] = np.nextafter(lowest[undecided], -np.inf)
    candidates = np.flatnonzero(scores >= lowest[:, None])
    count = np.diff(np.searchsorted(candidates, np.arange(b + 1) * n))
    entry_undecided = np.repeat(is_undecided, count)
    certain = candidates[~entry_undecided].reshape(-1, k)
    columns = certain - (decided * n)[:, None]
    if len(cuts) > 1:
        columns, _ = _descending(columns, scores.ravel()[certain])
    chosen[decided] = columns
    if not len(undecided):
        return chosen

    # in descending order of scores; undecided entries near every cut are sorted by their exact scores
    entries, count = candidates[entry_undecided], count[undecided]
    occupied = np.arange(count.max()) < count[:, None]
    columns, value = np.zeros(occupied.shape, np.intp), np.full(occupied.shape, -np.inf, scores.dtype)
    columns[occupied], value[occupied] = entries - np.repeat(undecided * n, count), scores.ravel()[entries]
    columns, value = _descending(columns, value)
    inside, unsure, tolerance = inside[undecided], unsure[undecided], SURE * margin[undecided, None]
    border = np.zeros(occupied.shape, bool)
    for cut_number in np.flatnonzero(unsure.any(0)).tolist():
        # CROWD entries on one side suffice to see that a row is crowded
        near = (
            slice(None)
            if tie_breaker is None
            else slice(max(0, cuts[cut_number] - 1 - CROWD), cuts[cut_number] + CROWD)
        )
        border[:, near] |= (np.abs(value[:, near] - inside[:, cut_number, None]) <= tolerance) & unsure[
            :, cut_number, None
        ]
    if tie_breaker is not None:
        crowded = np.count_nonzero(border, axis=1) > CROWD
        if crowded.any():
            chosen[undecided[crowded]] = CROWDED
            undecided, columns, value, border = (rows[~crowded] for rows in (undecided, columns, value, border))
    row, rank = np.nonzero(border)
    query_rows = columns[row, rank]
    score = (
        value[row, rank].astype(np.float64) if tie_breaker is None else tie_breaker.pairs(undecided[row], query_rows)
    )
    run = np.cumsum((np.diff(row, prepend=-1) != 0) | (np.diff(rank, prepend=-1) != 1))
    columns[row, rank] = query_rows[np.lexsort((query_rows, -score, run))]  # ties go to the lower column
    chosen[undecided] = columns[:, :k]
    return chosen


def _descending(columns: Array, value: Array) -> tuple[Array, Array]:
    """Columns and values of every row, in descending order of values."""
    if value.dtype != np.float32:
        order = np.argsort(-value, axis=1)
        return np.take_along_axis(columns, order, axis=1), np.take_along_axis(value, order, axis=1)
    # sorting integers is several times faster: the ordered bits of a float, followed by its column
    keys = _in_order((-value).view(np.int32)).astype(np.int64) << 32 | columns
    keys.sort(axis=1)
    return keys & 0xFFFFFFFF, -_in_order((keys >> 32).astype(np.int32)).view(np.float32)


def _in_order(bits: Array) -> Array:
    """Convert float32 bits to int32 of the same order, or back."""
    return np.asarray(bits ^ ((bits >> 31) & 0x7FFFFFFF))
