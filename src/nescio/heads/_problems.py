"""The losses of linear heads on shared features: every pair of classes, and all classes at once.

Features come as `Rows`: rotated and scaled so that all heads have nearly round problems, with a constant as the last
feature, whose weight is the intercept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nescio._parallel import blocks
from nescio.heads._minimise import cast, each, like, namespace

CURVATURE = 1e-3  # p·(1 − p) of a typical row at the optimum: most pairs can nearly be separated
SAMPLE = 8  # rows per feature that the rotation is made from
SLAB = 4096  # rows that are transformed at once
ALIKE = 2  # classes share one array (on a GPU) if none has more than this many times the rows of another


@dataclass(frozen=True)
class Rows:
    """Features (n, k), k = d + 1, in the order of their class.

    Heads on them minimise ½·Σ_j penalty_j·w_j² + loss. With C the covariance within classes, C = Q·diag(e)·Qᵀ, and
    H = α + CURVATURE·(rows of a head)·e, rows are (x − mean)·Q/√H, and ½·α·‖w‖² becomes penalty = α/H: the Hessian is
    nearly the identity. The intercept has no penalty.
    """

    values: Any
    codes: Any  # (n,) class of a row, 0 … c − 1, rising
    penalty: Any  # (k,)
    mean: Any  # (d,) of the features as given
    turn: Any  # (d, d) Q/√H
    one: float  # the constant feature

    @cached_property
    def counts(self) -> Any:
        return np.bincount(self.codes)

    def cast(self, dtype: str) -> Rows:
        values, penalty = cast(self.values, dtype), cast(self.penalty, dtype)
        return Rows(values, self.codes, penalty, self.mean, self.turn, self.one)

    def heads(self, w: Any) -> tuple[Any, Any]:
        """Weights (h, d) and intercepts (h,) for the features as given."""
        w = cast(w, "float64")
        weights = w[:, :-1] @ self.turn.T
        return weights, w[:, -1] * self.one - weights @ self.mean


def rows(x: Any, codes: Any, per_head: float, penalty: float, dtype: str) -> Rows:
    """Features (n, d) with the class code of each row, made ready for heads that see about `per_head` rows each."""
    xp, (n, d) = namespace(x), x.shape
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    mean = _mean(x)
    sample = np.linspace(0, n - 1, min(n, SAMPLE * d)).astype(int)
    part = cast(x[order[sample]], "float64")
    centres = xp.stack([_mean(part[codes[sample] == c]) for c in np.unique(codes[sample])])
    part = part - centres[np.unique(codes[sample], return_inverse=True)[1]]
    spread, axes = xp.linalg.eigh(part.T @ part / len(part))
    curvature = penalty + CURVATURE * per_head * spread.clip(0)
    turn, one = axes / xp.sqrt(curvature), float((penalty + CURVATURE * per_head) ** -0.5)
    values = like(cast(x[:0], dtype), (n, d + 1))
    values[:, d] = one
    shift, turned = cast(mean, dtype), cast(turn, dtype)

    def transform(slab: slice) -> None:
        values[slab, :d] = (cast(x[order[slab]], dtype) - shift) @ turned

    each(blocks(n, SLAB), transform, xp)
    weights = cast(like(curvature, (d + 1,)), dtype)
    weights[:d] = cast(penalty / curvature, dtype)
    return Rows(values, codes, weights, mean, turn, one)


def _mean(x: Any) -> Any:
    """(d,) in float64, without a copy of x in float64."""
    xp = namespace(x)
    return x.mean(0, dtype=xp.float64)


class Pairs:
    """Heads between two classes each: loss Σ log(1 + e^−z), z = ±wᵀx the log-odds of a row's own class.

    All heads of one class share its rows, so that they take one product. A shelf holds the rows of one class (on a GPU:
    of several, filled up with zeros, which change nothing).
    """

    def __init__(self, rows: Rows, pairs: Any) -> None:
        self.rows, self.pairs, self.xp = rows, pairs, namespace(rows.values)
        self.h, k = len(pairs), rows.values.shape[1]
        self.shelves = [Shelf(classes, held, pairs) for classes, held in _shelves(rows)]
        self.gradient = like(rows.values, (2, self.h + 1, k))  # what the rows of either class give; last: of no head
        self.sums, self.largest = like(rows.values, (2, self.h + 1)), like(rows.values, (2, self.h + 1))

    def only(self, heads: Any) -> Pairs:
        return Pairs(self.rows, self.pairs[heads if self.xp is np else heads.cpu().numpy()])

    def aim(self, direction: Any) -> Any:
        direction = self._filled(direction)

        def product(shelf: Shelf) -> None:
            self.largest[shelf.side, shelf.heads] = shelf.aim(direction)

        each(self.shelves, product, self.xp)
        return self.xp.maximum(*self.largest)[: self.h]

    def slope(self, a: Any) -> Any:
        a = self._filled(a)

        def look(shelf: Shelf) -> None:
            self.sums[shelf.side, shelf.heads] = shelf.slope(a)

        each(self.shelves, look, self.xp)
        return (self.sums[0] + self.sums[1])[: self.h]

    def move(self, a: Any) -> Any:
        a = self._filled(a)

        def go(shelf: Shelf) -> None:
            self.gradient[shelf.side, shelf.heads] = shelf.move(a)

        each(self.shelves, go, self.xp)
        return (self.gradient[1] - self.gradient[0])[: self.h]

    def _filled(self, x: Any) -> Any:
        """With a last entry for places where a shelf has no head."""
        if self.xp is np:
            return x
        return self.xp.concatenate([x, x[:1] * 0])


class Shelf:
    """Rows (b, n, k) of b classes, with the heads (b, h) of each and half the log-odds (b, n, h) that they give."""

    def __init__(self, classes: Any, rows: Any, pairs: Any) -> None:
        self.rows, self.xp = rows, namespace(rows)
        found = [np.flatnonzero((pairs == c).any(1)) for c in classes]
        shape = len(classes), max(map(len, found))
        heads, sign = np.full(shape, len(pairs)), np.zeros((*shape, 1))
        for i, (c, own) in enumerate(zip(classes, found, strict=True)):
            heads[i, : len(own)] = own
            sign[i, : len(own), 0] = np.where(pairs[own, 0] == c, 0.5, -0.5)
        self.heads, self.side, self.sign = heads, (sign[..., 0] < 0).astype(int), sign.astype("float32")
        if self.xp is not np:
            to = rows.device
            self.heads, self.side, self.sign = (
                self.xp.as_tensor(v, device=to) for v in (self.heads, self.side, self.sign)
            )
        self.half, self.ahead, self.work = (like(rows, (*rows.shape[:2], shape[1])) for _ in range(3))

    def aim(self, direction: Any) -> Any:
        heads = direction[self.heads] * self.sign
        self.xp.matmul(self.rows, heads.swapaxes(1, 2), out=self.ahead)
        return 2 * self.xp.amax(self.xp.abs(self.ahead, out=self.work), 1)

    def slope(self, a: Any) -> Any:
        work = self._towards(a)
        work += self.half
        self.xp.tanh(work, out=work)
        work -= 1
        return self.xp.einsum("bnh,bnh->bh", work, self.ahead)

    def move(self, a: Any) -> Any:
        work = self._towards(a)
        self.half += work
        self.xp.tanh(self.half, out=work)  # σ(−z) = (1 − tanh(z/2))/2
        work *= -0.5
        work += 0.5
        return work.swapaxes(1, 2) @ self.rows

    def _towards(self, a: Any) -> Any:
        return self.xp.multiply(self.ahead, a[self.heads][:, None], out=self.work)


def _shelves(rows: Rows) -> list[tuple[Any, Any]]:
    """(classes, rows (b, n, k)): one class each, on a GPU as many together as have about as many rows."""
    ends = np.cumsum(rows.counts)
    if namespace(rows.values) is np:
        spans = zip(ends - rows.counts, ends, strict=True)
        return [([c], rows.values[None, low:high]) for c, (low, high) in enumerate(spans)]
    groups: list[list[int]] = []
    for c in np.argsort(-rows.counts, kind="stable"):
        if not groups or rows.counts[groups[-1][0]] > ALIKE * rows.counts[c]:
            groups.append([])
        groups[-1].append(int(c))
    shelves = []
    for group in groups:
        held = like(rows.values, (len(group), int(rows.counts[group[0]]), rows.values.shape[1]))
        for i, c in enumerate(group):
            held[i, : rows.counts[c]] = rows.values[ends[c] - rows.counts[c] : ends[c]]
        shelves.append((group, held))
    return shelves


class Softmax:
    """One head of all classes: loss −Σ log softmax(W·x) of a row's own class; W (c, k) is a flat row of w."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.xp, self.c = rows, namespace(rows.values), len(rows.counts)
        n = len(rows.values)
        self.logits, self.ahead = like(rows.values, (n, self.c)), like(rows.values, (n, self.c))
        self.parts = blocks(n, SLAB if self.xp is np else n)

    def only(self, heads: Any) -> Softmax:
        return self

    def aim(self, direction: Any) -> Any:
        weights = direction.reshape(self.c, -1).T

        def product(part: slice) -> None:
            self.ahead[part] = self.rows.values[part] @ weights

        each(self.parts, product, self.xp)
        return direction[:, 0] * 0 + abs(self.ahead).max()

    def slope(self, a: Any) -> Any:
        sums: list[Any] = []
        each(self.parts, lambda p: sums.append((self._excess(self.logits[p] + a * self.ahead[p], p) * self.ahead[p]).sum()), self.xp)
        return a * 0 + sum(sums)

    def move(self, a: Any) -> Any:
        gradients: list[Any] = []

        def go(part: slice) -> None:
            self.logits[part] += a * self.ahead[part]
            gradients.append(self._excess(self.logits[part], part).T @ self.rows.values[part])

        each(self.parts, go, self.xp)
        return sum(gradients).reshape(1, -1)

    def _excess(self, logits: Any, part: slice) -> Any:
        """Probabilities less one at the row's own class."""
        p = self.xp.exp(logits - self.xp.amax(logits, 1)[:, None])
        p /= p.sum(1)[:, None]
        p[np.arange(len(p)), self.rows.codes[part]] -= 1
        return p
