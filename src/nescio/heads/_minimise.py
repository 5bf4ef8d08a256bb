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
LOOKS = 8  # at one direction, at most
TRUST = 0.5  # a slope this much flatter than at the start: from here the secant finds the bottom
REACH = 5.0  # furthest that one secant may go, in units of the last look
CAUTION = 4.0  # the first look lies no further than where some log-odds has moved by this: beyond, slopes say little
PATIENCE = 40  # steps that come no nearer: what is left is rounding, …
COARSE = 0.1  # … unless log-odds still move by more than this
LEAVE = 0.5  # share of the heads that still move, under which the others leave
CACHED = 1 << 19  # remembered numbers that are worked on at once
SERIAL = 1 << 19  # numbers below which a second thread costs more than it saves


class Problem(Protocol):
    """h heads of one kind; `a` and what is known of each head are (h,), directions and gradients (h, k)."""

    penalty: Any  # (k,) λ

    def aim(self, direction: Any) -> Any:
        """Takes up a direction, which is the product; how far it moves the log-odds of the row that it moves most."""

    def slope(self, a: Any) -> Any:
        """Derivative of each loss along its direction, at a times it."""

    def move(self, a: Any) -> None:
        """Goes there."""

    def gradient(self, part: slice) -> Any:
        """Of the loss of these heads, where they stand."""

    def only(self, keep: Any) -> Problem:
        """The heads to keep, standing at w = 0."""


def namespace(x: Any) -> Any:
    return sys.modules["torch"] if type(x).__module__.partition(".")[0] == "torch" else np


def cast(x: Any, dtype: str) -> Any:
    xp = namespace(x)
    return x.astype(dtype, copy=False) if xp is np else x.to(getattr(xp, dtype))


def like(x: Any, *shape: int) -> Any:
    """Zeros of that shape beside x, of its dtype."""
    return np.zeros(shape, x.dtype) if namespace(x) is np else x.new_zeros(shape)


def each(items: Sequence[Any], work: Callable[[Any], Any], numbers: Any) -> None:
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
    walk, best = Walk(problem, w), like(w, *w.shape)
    xp, h = namespace(w), len(w)
    left = xp.arange(h) if xp is np else xp.arange(h, device=w.device)
    lowest, age = like(w, h) + math.inf, like(w, h)
    settled = age > 0
    for _ in range(STEPS):
        moved, gain = walk.step()
        better = gain < 0.9 * lowest
        lowest, age = xp.where(better, gain, lowest), xp.where(better, 0.0, age + 1)
        settled = settled | (moved <= xp.where(age > PATIENCE, COARSE, tolerance))
        going = int((~settled).sum())
        if going <= LEAVE * len(settled):
            best[left[settled]] = walk.w[settled]
            if not going:
                return best
            keep = ~settled
            walk.only(keep)
            left, lowest, age, settled = left[keep], lowest[keep], age[keep], settled[keep]
    warnings.warn(f"{going} of {h} heads had not settled after {STEPS} steps.", stacklevel=4)
    best[left] = walk.w
    return best


class Walk:
    """Where the heads of a problem stand."""

    def __init__(self, problem: Problem, w: Any) -> None:
        self.problem, self.w, self.memory = problem, w + 0, Memory(w)
        self._stand()
        self.g = self.problem.gradient(slice(None)) + problem.penalty * w

    def _stand(self) -> None:
        self.direction = like(self.w, *self.w.shape)
        self.problem.aim(self.w)
        self.problem.move(like(self.w, len(self.w)) + 1)

    def only(self, keep: Any) -> None:
        self.problem, self.w, self.g = self.problem.only(keep), self.w[keep], self.g[keep]
        self.memory.only(keep)
        self._stand()

    def step(self) -> tuple[Any, Any]:
        """Moves all heads; the furthest that a log-odds of each went, and twice what the step should have gained."""
        w, g, direction, problem, memory = self.w, self.g, self.direction, self.problem, self.memory
        start, line, bend = (like(w, len(w)) for _ in range(3))  # slope at 0, and the penalty's part of it along a

        def plan(part: slice) -> None:
            d = direction[part] = memory.direction(g[part], part)
            start[part] = _dot(g[part], d)
            pulled = problem.penalty * d
            line[part], bend[part] = _dot(pulled, w[part]), _dot(pulled, d)

        def learn(part: slice) -> None:
            s = direction[part]
            s *= a[part, None]
            w[part] += s
            new = problem.gradient(part)
            new += problem.penalty * w[part]
            memory.add(s, new - g[part], part)
            g[part] = new

        parts = blocks(len(w), max(1, CACHED // (2 * MEMORY * w.shape[1])) if namespace(w) is np else len(w))
        each(parts, plan, memory.basis)
        longest = problem.aim(direction)
        guess = 1 / (longest / CAUTION).clip(min=1)
        a = _search(lambda a: problem.slope(a) + line + a * bend, start, guess)
        problem.move(a)
        each(parts, learn, memory.basis)
        memory.turn()
        return a * longest, -start


class Memory:
    """The last steps s of every head, what they did to its gradient, y, and the gradient: one basis for directions.

    A direction is a sum of what is remembered, so that the two loops of algorithm 7.4 need products of these alone,
    and the long vectors are read twice instead of 4·MEMORY times.
    """

    def __init__(self, w: Any) -> None:
        self.kept = self.at = 0
        self.basis = like(w, len(w), 2 * MEMORY + 1, w.shape[1])  # s and y in turn, the gradient last
        self.scale = cast(like(w, len(w)), "float64") + 1

    def only(self, keep: Any) -> None:
        self.basis, self.scale = self.basis[keep], self.scale[keep]

    def direction(self, g: Any, part: slice) -> Any:
        """−H·g with H the inverse Hessian that the remembered steps suggest."""
        basis, xp = self.basis[part], namespace(g)
        basis[:, -1] = g
        products = cast(basis @ basis.swapaxes(1, 2), "float64")
        newest = [2 * ((self.at - 1 - i) % MEMORY) for i in range(self.kept)]
        coefficients, steps = like(products, *products.shape[:2]), list[tuple[int, Any, Any]]()
        coefficients[:, -1] = -1
        for i in newest:
            sy, yy = products[:, i, i + 1], products[:, i + 1, i + 1]
            good = sy > 1e-7 * self.scale[part] * yy  # a step without curvature teaches nothing
            rho = xp.where(good, 1 / xp.where(good, sy, 1.0), 0.0)
            if not steps:
                self.scale[part] = xp.where(good, sy / xp.where(good, yy, 1.0), self.scale[part])
            steps.append((i, rho, rho * _dot(products[:, i], coefficients)))
            coefficients[:, i + 1] -= steps[-1][2]
        coefficients *= self.scale[part, None]
        for i, rho, part_of in reversed(steps):
            coefficients[:, i] += part_of - rho * _dot(products[:, i + 1], coefficients)
        return (cast(coefficients, str(basis.dtype).removeprefix("torch."))[:, None] @ basis)[:, 0]

    def add(self, s: Any, y: Any, part: slice) -> None:
        self.basis[part, 2 * self.at], self.basis[part, 2 * self.at + 1] = s, y

    def turn(self) -> None:
        self.at, self.kept = (self.at + 1) % MEMORY, min(self.kept + 1, MEMORY)


def _search(slope: Callable[[Any], Any], start: Any, a: Any) -> Any:
    """(h,) where convex functions of slope `start` < 0 at 0 are nearly flat, from a first guess a.

    Slopes rise along the way. A secant through the last point before the bottom and the newest one names the next.
    """
    xp, low, low_slope, high = namespace(a), 0 * a, start, 0 * a + math.inf
    down = seeking = start < 0
    for _ in range(LOOKS):
        here = slope(a)
        past, rise = here > 0, here - low_slope
        ahead = xp.where(rise > 0, -low_slope / xp.where(rise > 0, rise, 1.0), REACH)
        guess = xp.minimum(xp.minimum(low + (a - low) * ahead, REACH * a), high)
        low, low_slope, high = xp.where(past, low, a), xp.where(past, low_slope, here), xp.where(past, a, high)
        a = xp.where(seeking, guess, a)
        seeking = seeking & (abs(here) > TRUST * abs(start))
        if not seeking.any():
            break
    return xp.where(down, a, 0.0)


def _dot(a: Any, b: Any) -> Any:
    return namespace(a).einsum("hk,hk->h", a, b)
