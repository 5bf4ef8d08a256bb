"""The losses of linear heads on shared features: every pair of classes, and all classes at once.

Features come as `Rows`: rotated and scaled so that all heads have nearly round problems, with a constant as the last
feature, whose weight is the intercept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nescio.arrays.parallel import blocks
from nescio.arrays.types import ArrayOrTensor
from nescio.heads._minimise import cast, for_each, namespace, zeros_like

CURVATURE = 1e-3  # p·(1 − p) of a row at the optimum, on average over pairs of classes that can nearly be separated
SAMPLE = 8  # rows per feature for estimating the covariance
MAX_LENGTH_RATIO = 3  # times the median length: longer rows are left out of the covariance
SLAB = 4096  # rows per block
MAX_SIZE_RATIO = 2  # on a GPU, classes share one array if none has more than this many times the rows of another


@dataclass(frozen=True)
class Rows:
    """Features (n, k), k = d + 1, in the order of their classes, for heads with the penalty ½·Σ_j penalty_j·w_j².

    With the covariance within classes Q·diag(e)·Qᵀ and H = α + CURVATURE·(rows of a head)·e, rows are
    (x − centre)·Q/√H, so that ½·α·‖w‖² becomes penalty = α/H and the Hessian of every head is nearly the
    identity. The shift has no cost, because the intercept has no penalty.
    """

    values: ArrayOrTensor
    codes: ArrayOrTensor  # (n,) class of a row, 0 … c − 1, rising
    penalty: ArrayOrTensor  # (k,)
    centre: ArrayOrTensor  # (d,) of the features as given
    rotation: ArrayOrTensor  # (d, d) Q/√H
    constant: float  # the constant feature

    @cached_property
    def counts(self) -> ArrayOrTensor:
        """(c,) rows of each class."""
        return np.bincount(self.codes)

    def cast(self, dtype: str) -> Rows:
        return replace(self, values=cast(self.values, dtype), penalty=cast(self.penalty, dtype))

    def heads(self, w: ArrayOrTensor) -> tuple[ArrayOrTensor, ArrayOrTensor]:
        """Weights (h, d) and intercepts (h,) for the features as given."""
        w = cast(w, "float64")
        weights = w[:, :-1] @ self.rotation.T
        return weights, w[:, -1] * self.constant - weights @ self.centre


def rows(x: ArrayOrTensor, codes: ArrayOrTensor, per_head: float, penalty: float, dtype: str) -> Rows:
    """Features (n, d) with the class of each row, prepared for heads with about `per_head` rows each."""
    xp, (n, d) = namespace(x), x.shape
    order = np.argsort(codes, kind="stable")
    sample = order[np.linspace(0, n - 1, min(n, SAMPLE * d)).astype(int)]
    centre, covariance = _robust_moments(cast(x[sample], "float64"), codes[sample])
    spread, axes = xp.linalg.eigh(covariance)
    curvature = penalty + CURVATURE * per_head * spread.clip(min=0)
    rotation, constant = axes / xp.sqrt(curvature), (penalty + CURVATURE * per_head) ** -0.5
    values = zeros_like(cast(x[:0], dtype), n, d + 1)
    values[:, d] = constant
    rotated = cast(rotation, dtype)

    def transform(slab: slice) -> None:
        values[slab, :d] = cast(x[order[slab]] - centre, dtype) @ rotated

    for_each(blocks(n, SLAB), transform, values)
    weights = zeros_like(values, d + 1)
    weights[:d] = penalty / curvature
    return Rows(values, codes[order], weights, centre, rotation, constant)


def _robust_moments(x: ArrayOrTensor, codes: ArrayOrTensor) -> tuple[ArrayOrTensor, ArrayOrTensor]:
    """Mean (d,) of rows and covariance (d, d) within classes, without rows much longer than the others.

    Rows far from all class borders have no curvature, and a few of them would dominate the covariance.
    """
    xp = namespace(x)
    centred = x - _median(x)
    length = xp.sqrt((centred * centred).sum(1))
    usual = length <= MAX_LENGTH_RATIO * _median(length)
    block, codes = x[usual], codes[usual if xp is np else usual.cpu().numpy()]
    mean = block.mean(0)
    for c in np.unique(codes):
        class_rows = np.flatnonzero(codes == c)
        block[class_rows] -= block[class_rows].mean(0)
    return mean, block.T @ block / len(block)


def _median(x: ArrayOrTensor) -> ArrayOrTensor:
    """Median over rows."""
    return np.median(x, 0) if namespace(x) is np else x.median(0).values


class Pairs:
    """Heads between two classes each: loss Σ log(1 + e^−z), z = ±wᵀx the log-odds of a row's class.

    All heads of one class share its rows and therefore one product.
    """

    def __init__(self, rows: Rows, pairs: ArrayOrTensor) -> None:
        self.rows, self.pairs, self.penalty = rows, pairs, rows.penalty
        self.caches = [LogitsCache(classes, padded_rows, pairs) for classes, padded_rows in _class_groups(rows)]
        # By position of the class in the pair; the last entry is for no head.
        self.class_sums, self.class_gradients = (
            zeros_like(rows.values, 2, len(pairs) + 1),
            zeros_like(rows.values, 2, len(pairs) + 1, len(self.penalty)),
        )

    def subset(self, keep: ArrayOrTensor) -> Pairs:
        return Pairs(self.rows, self.pairs[keep if namespace(keep) is np else keep.cpu().numpy()])

    def set_direction(self, direction: ArrayOrTensor) -> ArrayOrTensor:
        return namespace(direction).maximum(
            *self._collect_classes(self.class_sums, LogitsCache.set_direction, direction)
        )[:-1]

    def slope(self, a: ArrayOrTensor) -> ArrayOrTensor:
        return self._collect_classes(self.class_sums, LogitsCache.slope, a).sum(0)[:-1]

    def step(self, a: ArrayOrTensor) -> None:
        self._collect_classes(self.class_gradients, LogitsCache.step, a)

    def gradient(self, block: slice) -> ArrayOrTensor:
        first, second = self.class_gradients[:, :-1]
        return second[block] - first[block]

    def _collect_classes(self, entries: ArrayOrTensor, contribution: ArrayOrTensor, x: ArrayOrTensor) -> ArrayOrTensor:
        """Fill in every class's contribution to the entries of its heads."""
        if namespace(x) is not np:
            x = namespace(x).concatenate([x, 0 * x[:1]])

        def contribute(cache: LogitsCache) -> None:
            entries[cache.position, cache.heads] = contribution(cache, x)

        for_each(self.caches, contribute, self.rows.values)
        return entries


class LogitsCache:
    """Rows (b, n, k) of b classes, the heads (b, h) of each, and half of their log-odds (b, n, h).

    On a GPU several classes share one cache, padded with rows of zeros and with no heads.
    """

    def __init__(self, classes: ArrayOrTensor, rows: ArrayOrTensor, pairs: ArrayOrTensor) -> None:
        self.rows, self.xp = rows, namespace(rows)
        heads_of_class = [np.flatnonzero((pairs == c).any(1)) for c in classes]
        heads = np.full((len(classes), max(map(len, heads_of_class))), len(pairs))
        position = np.zeros_like(heads)
        for i, (c, head_numbers) in enumerate(zip(classes, heads_of_class, strict=True)):
            heads[i, : len(head_numbers)], position[i, : len(head_numbers)] = head_numbers, pairs[head_numbers, 1] == c
        self.heads, self.position = (
            v if self.xp is np else self.xp.as_tensor(v, device=rows.device) for v in (heads, position)
        )
        self.sign = zeros_like(rows, *heads.shape, 1) + 0.5
        self.sign[self.position == 1] = -0.5
        self.half_logits, self.half_change, self.buffer = (
            zeros_like(rows, *rows.shape[:2], heads.shape[1]) for _ in range(3)
        )

    def set_direction(self, direction: ArrayOrTensor) -> ArrayOrTensor:
        heads = direction[self.heads] * self.sign
        self.xp.matmul(self.rows, heads.swapaxes(1, 2), out=self.half_change)
        return 2 * self.xp.amax(self.xp.abs(self.half_change, out=self.buffer), 1)

    def slope(self, a: ArrayOrTensor) -> ArrayOrTensor:
        buffer = self._half_change_of_step(a)
        buffer += self.half_logits
        self.xp.tanh(buffer, out=buffer)
        buffer -= 1
        return self.xp.einsum("bnh,bnh->bh", buffer, self.half_change)

    def step(self, a: ArrayOrTensor) -> ArrayOrTensor:
        buffer = self._half_change_of_step(a)
        self.half_logits += buffer
        self.xp.tanh(self.half_logits, out=buffer)  # σ(−z) = (1 − tanh(z/2))/2
        buffer *= -0.5
        buffer += 0.5
        return buffer.swapaxes(1, 2) @ self.rows

    def _half_change_of_step(self, a: ArrayOrTensor) -> ArrayOrTensor:
        return self.xp.multiply(self.half_change, a[self.heads][:, None], out=self.buffer)


def _class_groups(rows: Rows) -> list[tuple[ArrayOrTensor, ArrayOrTensor]]:
    """(classes, their rows (b, n, k)): one class each; on a GPU classes of similar size together."""
    ends = np.cumsum(rows.counts)
    class_values = [rows.values[end - count : end] for end, count in zip(ends, rows.counts, strict=True)]
    if namespace(rows.values) is np:
        return [([c], values[None]) for c, values in enumerate(class_values)]
    groups: list[list[int]] = []
    for c in np.argsort(-rows.counts, kind="stable").tolist():
        if not groups or rows.counts[groups[-1][0]] > MAX_SIZE_RATIO * rows.counts[c]:
            groups.append([])
        groups[-1].append(c)
    caches = []
    for group in groups:
        padded_rows = zeros_like(rows.values, len(group), len(class_values[group[0]]), len(rows.penalty))
        for i, c in enumerate(group):
            padded_rows[i, : len(class_values[c])] = class_values[c]
        caches.append((group, padded_rows))
    return caches


class Softmax:
    """One head of all classes: loss −Σ log softmax(W·x) of a row's class; W (c, k) is a flat row of w."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.xp, c = rows, namespace(rows.values), len(rows.counts)
        self.penalty = self.xp.concatenate([rows.penalty] * c)
        self.logits, self.logit_change = (zeros_like(rows.values, len(rows.values), c) for _ in range(2))
        self.row_blocks = blocks(len(rows.values), SLAB)

    def subset(self, keep: ArrayOrTensor) -> Softmax:
        return self  # a single head: nothing to select

    def set_direction(self, direction: ArrayOrTensor) -> ArrayOrTensor:
        weights = direction.reshape(-1, self.rows.values.shape[1]).T

        def block_change(block: slice) -> ArrayOrTensor:
            self.logit_change[block] = self.rows.values[block] @ weights
            return abs(self.logit_change[block]).max()

        return self._map_blocks(block_change).max()[None]

    def slope(self, a: ArrayOrTensor) -> ArrayOrTensor:
        def block_slope(block: slice) -> ArrayOrTensor:
            change = self.logit_change[block]
            return (self._residuals(self.logits[block] + a * change, block) * change).sum()

        return self._map_blocks(block_slope).sum()[None]

    def step(self, a: ArrayOrTensor) -> None:
        def move_block(block: slice) -> ArrayOrTensor:
            self.logits[block] += a * self.logit_change[block]
            return self._residuals(self.logits[block], block).T @ self.rows.values[block]

        self.gradient_sum = self._map_blocks(move_block).sum(0).reshape(1, -1)

    def gradient(self, block: slice) -> ArrayOrTensor:
        return self.gradient_sum + 0

    def _map_blocks(self, work: Callable[[slice], ArrayOrTensor]) -> ArrayOrTensor:
        """The results of work(block) for all blocks of rows."""
        results = [None] * len(self.row_blocks)

        def run(i: int) -> None:
            results[i] = work(self.row_blocks[i])

        for_each(range(len(self.row_blocks)), run, self.rows.values)
        return self.xp.stack(results)

    def _residuals(self, logits: ArrayOrTensor, block: slice) -> ArrayOrTensor:
        """Probabilities minus the one-hot label."""
        p = self.xp.exp(logits - self.xp.amax(logits, 1)[:, None])
        p /= p.sum(1)[:, None]
        p[np.arange(len(p)), self.rows.codes[block]] -= 1
        return p
