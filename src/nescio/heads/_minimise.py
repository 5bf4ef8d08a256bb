"""Many small convex problems side by side: one L-BFGS whose every line is written for all of them at once.

A problem is one head: k numbers w that minimise ½·Σ_j λ_j·w_j² + loss(w), where the loss sees the features through
products with w alone. So a direction costs one product, looking at any point along it costs none, and the gradient
there one more. Heads that have settled leave, and the others go on without them.

Source: Nocedal and Wright, *Numerical Optimization*, algorithm 7.4. The search along a direction looks at slopes
alone, which is enough where every function is convex.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from nescio.arrays.parallel import blocks, run_on_threads

MEMORY = 6  # steps that are remembered
STEPS = 2_000
MAX_EVALUATIONS = 8  # at one direction, at most
FLATNESS = 0.5  # a slope this much flatter than at the start: from here the secant finds the bottom
MAX_STRETCH = 5.0  # furthest that one secant may go, in units of the last look
MAX_FIRST_STEP = (
    4.0  # the first look lies no further than where some log-odds has moved by this: beyond, slopes say little
)
PATIENCE = 40  # steps that come no nearer: what is left is rounding, …
COARSE_TOLERANCE = 0.1  # … unless log-odds still move by more than this
ACTIVE_SHARE = 0.5  # share of the heads that still move, under which the others leave
BLOCK_VALUES = 1 << 19  # remembered numbers that are worked on at once
SERIAL = 1 << 19  # numbers below which a second thread costs more than it saves


class Problem(Protocol):
    """h heads of one kind; `a` and what is known of each head are (h,), directions and gradients (h, k)."""

    penalty: Any  # (k,) λ

    def set_direction(self, direction: Any) -> Any:
        """Takes up a direction, which is the product; how far it moves the log-odds of the row that it moves most."""

    def slope(self, a: Any) -> Any:
        """Derivative of each loss along its direction, at a times it."""

    def step(self, a: Any) -> None:
        """Goes there."""

    def gradient(self, block: slice) -> Any:
        """Of the loss of these heads, where they stand."""

    def subset(self, keep: Any) -> Problem:
        """The heads to keep, standing at w = 0."""


def namespace(x: Any) -> Any:
    return sys.modules["torch"] if type(x).__module__.partition(".")[0] == "torch" else np


def cast(x: Any, dtype: str) -> Any:
    xp = namespace(x)
    return x.astype(dtype, copy=False) if xp is np else x.to(getattr(xp, dtype))


def zeros_like(x: Any, *shape: int) -> Any:
    """Zeros of that shape beside x, of its dtype."""
    return np.zeros(shape, x.dtype) if namespace(x) is np else x.new_zeros(shape)


def for_each(items: Sequence[Any], work: Callable[[Any], Any], numbers: Any) -> None:
    """work(item) for all; on threads where NumPy has that many numbers to go through."""
    if namespace(numbers) is not np or numbers.size < SERIAL:
        for item in items:
            work(item)
    else:
        run_on_threads(lambda i, workers: [work(item) for item in items[i::workers]])


def minimise(problem: Problem, w: Any, tolerance: float) -> Any:
    """(h, k) the best heads, from the start w: settled when a step moves no row's log-odds by more than the tolerance.

    A slow head is further from its optimum than its last step is long: leave a margin of ten.
    """
    state, best = LBFGSState(problem, w), zeros_like(w, *w.shape)
    xp, h = namespace(w), len(w)
    left = xp.arange(h) if xp is np else xp.arange(h, device=w.device)
    lowest, age = zeros_like(w, h) + math.inf, zeros_like(w, h)
    settled = age > 0
    for _ in range(STEPS):
        moved, gain = state.step()
        better = gain < 0.9 * lowest
        lowest, age = xp.where(better, gain, lowest), xp.where(better, 0.0, age + 1)
        settled = settled | (moved <= xp.where(age > PATIENCE, COARSE_TOLERANCE, tolerance))
        going = int((~settled).sum())
        if going <= ACTIVE_SHARE * len(settled):
            best[left[settled]] = state.w[settled]
            if not going:
                return best
            keep = ~settled
            state.subset(keep)
            left, lowest, age, settled = left[keep], lowest[keep], age[keep], settled[keep]
    warnings.warn(f"{going} of {h} heads had not settled after {STEPS} steps.", stacklevel=4)
    best[left] = state.w
    return best


class LBFGSState:
    """Where the heads of a problem stand."""

    def __init__(self, problem: Problem, w: Any) -> None:
        self.problem, self.w, self.memory = problem, w + 0, Memory(w)
        self._reset()
        self.g = self.problem.gradient(slice(None)) + problem.penalty * w

    def _reset(self) -> None:
        self.direction = zeros_like(self.w, *self.w.shape)
        self.problem.set_direction(self.w)
        self.problem.step(zeros_like(self.w, len(self.w)) + 1)

    def subset(self, keep: Any) -> None:
        self.problem, self.w, self.g = self.problem.subset(keep), self.w[keep], self.g[keep]
        self.memory.subset(keep)
        self._reset()

    def step(self) -> tuple[Any, Any]:
        """Moves all heads; the furthest that a log-odds of each went, and twice what the step should have gained."""
        w, g, direction, problem, memory = self.w, self.g, self.direction, self.problem, self.memory
        start, line, bend = (
            zeros_like(w, len(w)) for _ in range(3)
        )  # slope at 0, and the penalty's part of it along a

        def prepare(block: slice) -> None:
            d = direction[block] = memory.direction(g[block], block)
            start[block] = _dot(g[block], d)
            pulled = problem.penalty * d
            line[block], bend[block] = _dot(pulled, w[block]), _dot(pulled, d)

        def update(block: slice) -> None:
            s = direction[block]
            s *= a[block, None]
            w[block] += s
            new = problem.gradient(block)
            new += problem.penalty * w[block]
            memory.add(s, new - g[block], block)
            g[block] = new

        row_blocks = blocks(len(w), max(1, BLOCK_VALUES // (2 * MEMORY * w.shape[1])) if namespace(w) is np else len(w))
        for_each(row_blocks, prepare, memory.basis)
        longest = problem.set_direction(direction)
        guess = 1 / (longest / MAX_FIRST_STEP).clip(min=1)
        a = _search(lambda a: problem.slope(a) + line + a * bend, start, guess)
        problem.step(a)
        for_each(row_blocks, update, memory.basis)
        memory.advance()
        return a * longest, -start


class Memory:
    """The last steps s of every head, what they did to its gradient, y, and the gradient: one basis for directions.

    A direction is a sum of what is remembered, so that the two loops of algorithm 7.4 need products of these alone,
    and the long vectors are read twice instead of 4·MEMORY times.
    """

    def __init__(self, w: Any) -> None:
        self.size = self.cursor = 0
        self.basis = zeros_like(w, len(w), 2 * MEMORY + 1, w.shape[1])  # s and y in turn, the gradient last
        self.scale = cast(zeros_like(w, len(w)), "float64") + 1

    def subset(self, keep: Any) -> None:
        self.basis, self.scale = self.basis[keep], self.scale[keep]

    def direction(self, g: Any, block: slice) -> Any:
        """−H·g with H the inverse Hessian that the remembered steps suggest."""
        basis, xp = self.basis[block], namespace(g)
        basis[:, -1] = g
        products = cast(basis @ basis.swapaxes(1, 2), "float64")
        newest = [2 * ((self.cursor - 1 - i) % MEMORY) for i in range(self.size)]
        coefficients, steps = zeros_like(products, *products.shape[:2]), list[tuple[int, Any, Any]]()
        coefficients[:, -1] = -1
        for i in newest:
            sy, yy = products[:, i, i + 1], products[:, i + 1, i + 1]
            curved = sy > 1e-7 * self.scale[block] * yy  # a step without curvature teaches nothing
            rho = xp.where(curved, 1 / xp.where(curved, sy, 1.0), 0.0)
            if not steps:
                self.scale[block] = xp.where(curved, sy / xp.where(curved, yy, 1.0), self.scale[block])
            steps.append((i, rho, rho * _dot(products[:, i], coefficients)))
            coefficients[:, i + 1] -= steps[-1][2]
        coefficients *= self.scale[block, None]
        for i, rho, first_loop in reversed(steps):
            coefficients[:, i] += first_loop - rho * _dot(products[:, i + 1], coefficients)
        return (cast(coefficients, str(basis.dtype).removeprefix("torch."))[:, None] @ basis)[:, 0]

    def add(self, s: Any, y: Any, block: slice) -> None:
        self.basis[block, 2 * self.cursor], self.basis[block, 2 * self.cursor + 1] = s, y

    def advance(self) -> None:
        self.cursor, self.size = (self.cursor + 1) % MEMORY, min(self.size + 1, MEMORY)


def _search(slope: Callable[[Any], Any], start: Any, a: Any) -> Any:
    """(h,) where convex functions of slope `start` < 0 at 0 are nearly flat, from a first guess a.

    Slopes rise along the way. A secant through the last point before the bottom and the newest one names the next.
    """
    xp, low, low_slope, high = namespace(a), 0 * a, start, 0 * a + math.inf
    down = seeking = start < 0
    for _ in range(MAX_EVALUATIONS):
        slope_now = slope(a)
        past, rise = slope_now > 0, slope_now - low_slope
        ahead = xp.where(rise > 0, -low_slope / xp.where(rise > 0, rise, 1.0), MAX_STRETCH)
        guess = xp.minimum(xp.minimum(low + (a - low) * ahead, MAX_STRETCH * a), high)
        low, low_slope, high = xp.where(past, low, a), xp.where(past, low_slope, slope_now), xp.where(past, a, high)
        a = xp.where(seeking, guess, a)
        seeking = seeking & (abs(slope_now) > FLATNESS * abs(start))
        if not seeking.any():
            break
    return xp.where(down, a, 0.0)


def _dot(a: Any, b: Any) -> Any:
    return namespace(a).einsum("hk,hk->h", a, b)
