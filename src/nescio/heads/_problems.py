"""The losses of linear heads on shared features: every pair of classes, and all classes at once.

Features come as `Rows`: turned and scaled so that all heads have nearly round problems, with a constant as the last
feature, whose weight is the intercept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from nescio.arrays.parallel import blocks
from nescio.arrays.types import ArrayOrTensor
from nescio.heads._minimise import cast, for_each, namespace, zeros_like

CURVATURE = 1e-3  # p·(1 − p) of a row at the optimum, on average over pairs of classes that can nearly be separated
SAMPLE = 8  # rows per feature that the covariance is taken from
MAX_LENGTH_RATIO = 3  # times the median length: longer rows are left out of the covariance
SLAB = 4096  # rows per block
MAX_SIZE_RATIO = 2  # on a GPU, classes share one array if none has more than this many times the rows of another


@dataclass(frozen=True)
class Rows:
    """Features (n, k), k = d + 1, in the order of their classes, for heads with the penalty ½·Σ_j penalty_j·w_j².

    With the covariance within classes Q·diag(e)·Qᵀ and H = α + CURVATURE·(rows of a head)·e, rows are
    (x − middle)·Q/√H, so that ½·α·‖w‖² becomes penalty = α/H and the Hessian of every head is nearly the
    identity. The shift has no cost, because the intercept has no penalty.
    """

    values: ArrayOrTensor
    codes: ArrayOrTensor  # (n,) class of a row, 0 … c − 1, rising
    penalty: ArrayOrTensor  # (k,)
    middle: ArrayOrTensor  # (d,) of the features as given
    turn: ArrayOrTensor  # (d, d) Q/√H
    one: float  # the constant feature

    @cached_property
    def counts(self) -> ArrayOrTensor:
        """(c,) rows of each class."""
        return np.bincount(self.codes)

    def cast(self, dtype: str) -> Rows:
        return replace(self, values=cast(self.values, dtype), penalty=cast(self.penalty, dtype))

    def heads(self, w: ArrayOrTensor) -> tuple[ArrayOrTensor, ArrayOrTensor]:
        """Weights (h, d) and intercepts (h,) for the features as given."""
        w = cast(w, "float64")
        weights = w[:, :-1] @ self.turn.T
        return weights, w[:, -1] * self.one - weights @ self.middle


def rows(x: ArrayOrTensor, codes: ArrayOrTensor, per_head: float, penalty: float, dtype: str) -> Rows:
    """Features (n, d) with the class of each row, prepared for heads with about `per_head` rows each."""
    xp, (n, d) = namespace(x), x.shape
    order = np.argsort(codes, kind="stable")
    sample = order[np.linspace(0, n - 1, min(n, SAMPLE * d)).astype(int)]
    middle, covariance = _robust_moments(cast(x[sample], "float64"), codes[sample])
    spread, axes = xp.linalg.eigh(covariance)
    curvature = penalty + CURVATURE * per_head * spread.clip(min=0)
    turn, constant = axes / xp.sqrt(curvature), (penalty + CURVATURE * per_head) ** -0.5
    values = zeros_like(cast(x[:0], dtype), n, d + 1)
    values[:, d] = constant
    turned = cast(turn, dtype)

    def transform(slab: slice) -> None:
        values[slab, :d] = cast(x[order[slab]] - middle, dtype) @ turned

    for_each(blocks(n, SLAB), transform, values)
    weights = zeros_like(values, d + 1)
    weights[:d] = penalty / curvature
    return Rows(values, codes[order], weights, middle, turn, constant)


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
        self.caches = [LogitsCache(classes, stacked, pairs) for classes, stacked in _class_groups(rows)]
        # Sums over the rows of the first and of the second class of a pair; the last entry is for no head.
        self.sums, self.sides = (
            zeros_like(rows.values, 2, len(pairs) + 1),
            zeros_like(rows.values, 2, len(pairs) + 1, len(self.penalty)),
        )

    def subset(self, keep: ArrayOrTensor) -> Pairs:
        return Pairs(self.rows, self.pairs[keep if namespace(keep) is np else keep.cpu().numpy()])

    def set_direction(self, direction: ArrayOrTensor) -> ArrayOrTensor:
        return namespace(direction).maximum(*self._collect(self.sums, LogitsCache.set_direction, direction))[:-1]

    def slope(self, a: ArrayOrTensor) -> ArrayOrTensor:
        return self._collect(self.sums, LogitsCache.slope, a).sum(0)[:-1]

    def step(self, a: ArrayOrTensor) -> None:
        self._collect(self.sides, LogitsCache.step, a)

    def gradient(self, block: slice) -> ArrayOrTensor:
        first, second = self.sides[:, :-1]
        return second[block] - first[block]

    def _collect(self, entries: ArrayOrTensor, contribution: ArrayOrTensor, x: ArrayOrTensor) -> ArrayOrTensor:
        """Fill in every class's contribution to the entries of its heads."""
        if namespace(x) is not np:
            x = namespace(x).concatenate([x, 0 * x[:1]])

        def contribute(cache: LogitsCache) -> None:
            entries[cache.side, cache.heads] = contribution(cache, x)

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
        side = np.zeros_like(heads)
        for i, (c, head_numbers) in enumerate(zip(classes, heads_of_class, strict=True)):
            heads[i, : len(head_numbers)], side[i, : len(head_numbers)] = head_numbers, pairs[head_numbers, 1] == c
        self.heads, self.side = (
            v if self.xp is np else self.xp.as_tensor(v, device=rows.device) for v in (heads, side)
        )
        self.sign = zeros_like(rows, *heads.shape, 1) + 0.5
        self.sign[self.side == 1] = -0.5
        self.half, self.ahead, self.work = (zeros_like(rows, *rows.shape[:2], heads.shape[1]) for _ in range(3))

    def set_direction(self, direction: ArrayOrTensor) -> ArrayOrTensor:
        heads = direction[self.heads] * self.sign
        self.xp.matmul(self.rows, heads.swapaxes(1, 2), out=self.ahead)
        return 2 * self.xp.amax(self.xp.abs(self.ahead, out=self.work), 1)

    def slope(self, a: ArrayOrTensor) -> ArrayOrTensor:
        work = self._towards(a)
        work += self.half
        self.xp.tanh(work, out=work)
        work -= 1
        return self.xp.einsum("bnh,bnh->bh", work, self.ahead)

    def step(self, a: ArrayOrTensor) -> ArrayOrTensor:
        work = self._towards(a)
        self.half += work
        self.xp.tanh(self.half, out=work)  # σ(−z) = (1 − tanh(z/2))/2
        work *= -0.5
        work += 0.5
        return work.swapaxes(1, 2) @ self.rows

    def _towards(self, a: ArrayOrTensor) -> ArrayOrTensor:
        return self.xp.multiply(self.ahead, a[self.heads][:, None], out=self.work)


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
        stacked = zeros_like(rows.values, len(group), len(class_values[group[0]]), len(rows.penalty))
        for i, c in enumerate(group):
            stacked[i, : len(class_values[c])] = class_values[c]
        caches.append((group, stacked))
    return caches


class Softmax:
    """One head of all classes: loss −Σ log softmax(W·x) of a row's class; W (c, k) is a flat row of w."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.xp, c = rows, namespace(rows.values), len(rows.counts)
        self.penalty = self.xp.concatenate([rows.penalty] * c)
        self.logits, self.ahead = (zeros_like(rows.values, len(rows.values), c) for _ in range(2))
        self.parts = blocks(len(rows.values), SLAB)

    def subset(self, keep: ArrayOrTensor) -> Softmax:
        return self  # a single head: nothing to select

    def set_direction(self, direction: ArrayOrTensor) -> ArrayOrTensor:
        weights = direction.reshape(-1, self.rows.values.shape[1]).T
        return self._over(lambda block: self._product(block, weights)).max()[None]

    def slope(self, a: ArrayOrTensor) -> ArrayOrTensor:
        def along(block: slice) -> ArrayOrTensor:
            return (self._excess(self.logits[block] + a * self.ahead[block], block) * self.ahead[block]).sum()

        return self._over(along).sum()[None]

    def step(self, a: ArrayOrTensor) -> None:
        def go(block: slice) -> ArrayOrTensor:
            self.logits[block] += a * self.ahead[block]
            return self._excess(self.logits[block], block).T @ self.rows.values[block]

        self.sum = self._over(go).sum(0).reshape(1, -1)

    def gradient(self, block: slice) -> ArrayOrTensor:
        return self.sum + 0

    def _product(self, block: slice, weights: ArrayOrTensor) -> ArrayOrTensor:
        self.ahead[block] = self.rows.values[block] @ weights
        return abs(self.ahead[block]).max()

    def _over(self, work: Any) -> ArrayOrTensor:
        """The results of work(block) for all blocks of rows."""
        results = [None] * len(self.parts)

        def run(i: int) -> None:
            results[i] = work(self.parts[i])

        for_each(range(len(self.parts)), run, self.rows.values)
        return self.xp.stack(results)

    def _excess(self, logits: ArrayOrTensor, block: slice) -> ArrayOrTensor:
        """Probabilities minus the one-hot label."""
        p = self.xp.exp(logits - self.xp.amax(logits, 1)[:, None])
        p /= p.sum(1)[:, None]
        p[np.arange(len(p)), self.rows.codes[block]] -= 1
        return p
