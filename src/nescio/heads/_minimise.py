"""Many small convex problems side by side: one L-BFGS whose every line is written for all of them at once.

A problem here is one head: k numbers w (the rows of an array (h, k)) that minimise ½·Σ_j λ_j·w_j² + loss(w), where
the loss sees the features through products with w alone. So a search along a direction costs one product; looking at
any point of it costs none. A head that has settled leaves, and the others go on without it.

Source: Nocedal and Wright, *Numerical Optimization*, algorithm 7.4; the search is theirs of §3.5 on slopes alone,
which is enough where every function is convex.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from nescio._parallel import blocks, share

MEMORY = 10  # steps that are remembered
STEPS = 2_000
LOOKS = 8  # at one direction, at most
TRUST = 0.5  # a slope this much flatter than at the start: from here the secant finds the bottom
REACH = 5.0  # furthest that one secant may go, in units of the last look
CAUTION = 4.0  # the first look lies no further than where some log-odds has moved by this: beyond, slopes say little
PATIENCE = 40  # steps without a better gradient: what is left is rounding
LEAVE = 0.7  # share of the heads that still move, under which the others are taken out
CACHED = 1 << 18  # numbers of the remembered steps that are worked on at once


class Problem(Protocol):
    """h heads of one kind; `a` and what is returned per head are (h,), directions and gradients (h, k)."""

    def aim(self, direction: Any) -> Any:
        """Takes up a direction, which is the product; how far it moves the log-odds of the row that it moves most."""

    def slope(self, a: Any) -> Any:
        """Derivative of each loss along its direction, at a times it."""

    def move(self, a: Any) -> Any:
        """Goes there; the gradient of the loss."""

    def only(self, heads: Any) -> Problem:
        """The same for some of the heads, at w = 0."""


def namespace(x: Any) -> Any:
    return sys.modules["torch"] if type(x).__module__.partition(".")[0] == "torch" else np


def cast(x: Any, dtype: str) -> Any:
    xp = namespace(x)
    return x.astype(dtype, copy=False) if xp is np else x.to(getattr(xp, dtype))


def like(x: Any, shape: tuple[int, ...]) -> Any:
    """Zeros of that shape beside x, of its dtype."""
    return np.zeros(shape, x.dtype) if namespace(x) is np else x.new_zeros(shape)


def each(items: Sequence[Any], work: Callable[[Any], Any], xp: Any) -> None:
    """work(item) for all, on threads where NumPy does the work."""
    if xp is not np or len(items) == 1:
        for item in items:
            work(item)
    else:
        share(lambda i, workers: [work(item) for item in items[i::workers]])


def minimise(problem: Problem, w: Any, penalty: Any, tolerance: float) -> Any:
    """(h, k) the heads, from the start w: settled when a step moves no row's log-odds by more than the tolerance.

    `penalty` (k,) is λ.
    """
    xp, result = namespace(w), w
    left = xp.arange(len(w), device=None if xp is np else w.device)
    problem.aim(w)
    g = problem.move(w[:, 0] * 0 + 1) + penalty * w
    memory, lowest, age = Memory(w, xp), w[:, 0] * 0 + math.inf, w[:, 0] * 0
    settled = age > 0
    direction, change = like(w, w.shape), like(w, w.shape)
    for _ in range(STEPS):
        start, line, bend = like(w, (len(w),)), like(w, (len(w),)), like(w, (len(w),))

        def plan(part: slice) -> None:
            d = direction[part] = memory.direction(g, part)
            start[part] = _dot(g[part], d)
            line[part] = _dot(penalty * w[part], d)
            bend[part] = _dot(penalty * d, d)

        def learn(part: slice) -> None:
            d = direction[part]
            d *= a[part, None]
            w[part] += d
            change[part] += penalty * w[part]
            change[part] -= g[part]
            g[part] += change[part]
            memory.add(d, change[part], part)

        parts = blocks(len(w), max(1, CACHED // (2 * MEMORY * w.shape[1])) if xp is np else len(w))
        each(parts, plan, xp)
        longest = problem.aim(direction)
        guess = 1 / xp.maximum(longest / CAUTION, 0 * longest + 1)
        a = _search(lambda a: problem.slope(a) + line + a * bend, start, guess, xp)
        a = xp.where(settled, 0 * a, a)
        change[:] = problem.move(a)
        each(parts, learn, xp)
        memory.turn()

        better = -start < 0.9 * lowest
        lowest, age = xp.where(better, -start, lowest), xp.where(better, 0 * age, age + 1)
        settled = settled | (a * longest <= tolerance) | (age > PATIENCE)
        going = int((~settled).sum())
        if going <= LEAVE * len(w):
            result[left[settled]] = w[settled]
            if not going:
                return result
            keep = ~settled
            left, w, g, lowest, age = left[keep], w[keep], g[keep], lowest[keep], age[keep]
            direction, change, settled = direction[keep], change[keep], settled[keep]
            memory.only(keep)
            problem = problem.only(keep)
            problem.aim(w)
            problem.move(lowest * 0 + 1)
    warnings.warn(f"{going} of {len(result)} heads had not settled after {STEPS} steps.", stacklevel=3)
    result[left] = w
    return result


class Memory:
    """The last steps s and what they did to the gradient, y, of every head."""

    def __init__(self, w: Any, xp: Any) -> None:
        h, k = w.shape
        self.xp, self.held, self.at = xp, 0, 0
        self.s, self.y = like(w, (MEMORY, h, k)), like(w, (MEMORY, h, k))
        self.rho = like(w, (MEMORY, h))  # 1/sᵀy, 0 where that is not positive: such a step teaches nothing
        self.scale = like(w, (h,)) + 1

    def direction(self, g: Any, part: slice) -> Any:
        """−H·g with H the inverse Hessian that the remembered steps suggest."""
        order = [(self.at - 1 - i) % MEMORY for i in range(self.held)]  # the newest first
        q, shares = -g[part], []
        for i in order:
            shares.append(self.rho[i, part] * _dot(self.s[i, part], q))
            q -= shares[-1][:, None] * self.y[i, part]
        q *= self.scale[part, None]
        for i, share_ in zip(reversed(order), reversed(shares), strict=True):
            q += (share_ - self.rho[i, part] * _dot(self.y[i, part], q))[:, None] * self.s[i, part]
        return q

    def add(self, s: Any, y: Any, part: slice) -> None:
        xp = self.xp
        self.s[self.at, part], self.y[self.at, part] = s, y
        sy, yy = _dot(s, y), _dot(y, y)
        good = sy > 1e-7 * yy * self.scale[part]
        self.rho[self.at, part] = xp.where(good, 1 / xp.where(good, sy, sy * 0 + 1), sy * 0)
        self.scale[part] = xp.where(good, sy / xp.where(good, yy, yy * 0 + 1), self.scale[part])

    def turn(self) -> None:
        self.at, self.held = (self.at + 1) % MEMORY, min(self.held + 1, MEMORY)

    def only(self, keep: Any) -> None:
        self.s, self.y, self.rho, self.scale = self.s[:, keep], self.y[:, keep], self.rho[:, keep], self.scale[keep]


def _search(slope: Callable[[Any], Any], start: Any, a: Any, xp: Any) -> Any:
    """(h,) step lengths at which convex functions of slope `start` < 0 at 0 are nearly flat, from a first guess a.

    The slope rises along the way. A secant through the last point before the bottom and the newest one names the next.
    """
    low, low_slope, high = 0 * a, start, 0 * a + math.inf
    seeking = start < 0
    for _ in range(LOOKS):
        here = slope(a)
        past = here > 0
        rise = here - low_slope
        ahead = xp.where(rise > 0, -low_slope / xp.where(rise > 0, rise, 0 * rise + 1), 0 * a + REACH)
        guess = xp.minimum(low + (a - low) * ahead, REACH * a)
        high = xp.where(past, a, high)
        low, low_slope = xp.where(past, low, a), xp.where(past, low_slope, here)
        a = xp.where(seeking, xp.minimum(guess, high), a)
        seeking = seeking & (abs(here) > TRUST * abs(start))
        if not seeking.any():
            break
    return xp.where(start < 0, a, 0 * a)


def _dot(a: Any, b: Any) -> Any:
    return namespace(a).einsum("hk,hk->h", a, b)
