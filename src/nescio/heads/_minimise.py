"""A batched L-BFGS for many small convex problems.

A problem is one head: k numbers w that minimise ½·Σ_j λ_j·w_j² + loss(w). The loss depends on the features only through
products with w. A search direction therefore costs one product, each point along it none, and the gradient one more.
Converged heads are removed from the batch.

Source: Nocedal and Wright, *Numerical Optimization*, algorithm 7.4. The line search uses slopes only, which is enough
for convex functions.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol, TypeVar

import numpy as np

from nescio.arrays.parallel import blocks, run_on_threads
from nescio.arrays.types import ArrayOrTensor

T = TypeVar("T")
MEMORY = 6  # number of stored steps
STEPS = 2_000
MAX_EVALUATIONS = 8  # maximum slope evaluations per direction
FLATNESS = 0.5  # the line search ends at this fraction of the initial slope
MAX_STRETCH = 5.0  # maximum length of a secant step, relative to the last one
MAX_FIRST_STEP = 4.0  # maximum change of a log-odds at the first point of a line search
PATIENCE = 40  # steps without progress before a head counts as converged, …
COARSE_TOLERANCE = 0.1  # … unless its log-odds still change by more than this
ACTIVE_SHARE = 0.5  # share of active heads below which converged ones are removed
BLOCK_VALUES = 1 << 19  # stored numbers per block
SERIAL = 1 << 19  # numbers below which a second thread costs more than it saves


class Problem(Protocol):
    """h heads of one kind. Step sizes `a` and other numbers per head are (h,), directions and gradients (h, k)."""

    penalty: ArrayOrTensor  # (k,) λ

    def set_direction(self, direction: ArrayOrTensor) -> ArrayOrTensor:
        """Set the search direction; return the largest change of a log-odds per unit step."""

    def slope(self, a: ArrayOrTensor) -> ArrayOrTensor:
        """Derivative of each loss along its direction, at step size a."""

    def step(self, a: ArrayOrTensor) -> None:
        """Move by step size a along the direction."""

    def gradient(self, block: slice) -> ArrayOrTensor:
        """Gradient of the loss of these heads at their current weights."""

    def subset(self, keep: ArrayOrTensor) -> Problem:
        """The problem with the heads to keep, at w = 0."""


def namespace(x: ArrayOrTensor) -> ModuleType:
    return sys.modules["torch"] if type(x).__module__.partition(".")[0] == "torch" else np


def cast(x: ArrayOrTensor, dtype: str) -> ArrayOrTensor:
    xp = namespace(x)
    return x.astype(dtype, copy=False) if xp is np else x.to(getattr(xp, dtype))


def zeros_like(x: ArrayOrTensor, *shape: int) -> ArrayOrTensor:
    """Zeros of this shape, with the dtype and device of x."""
    return np.zeros(shape, x.dtype) if namespace(x) is np else x.new_zeros(shape)


def for_each(items: Sequence[T], work: Callable[[T], object], numbers: ArrayOrTensor) -> None:
    """Run work(item) for all items, on threads if NumPy has enough numbers."""
    if namespace(numbers) is not np or numbers.size < SERIAL:
        for item in items:
            work(item)
    else:
        run_on_threads(lambda i, workers: [work(item) for item in items[i::workers]])


def minimise(problem: Problem, w: ArrayOrTensor, tolerance: float) -> ArrayOrTensor:
    """(h, k) the optimal heads from the start w. A head converges when a step changes log-odds within the tolerance.

    The distance to the optimum can exceed the last step: choose a tolerance ten times smaller.
    """
    state, best = LBFGSState(problem, w), zeros_like(w, *w.shape)
    xp, h = namespace(w), len(w)
    active = xp.arange(h) if xp is np else xp.arange(h, device=w.device)
    smallest_gain, stalled_steps = zeros_like(w, h) + math.inf, zeros_like(w, h)
    converged = stalled_steps > 0
    for _ in range(STEPS):
        change, gain = state.step()
        better = gain < 0.9 * smallest_gain
        smallest_gain, stalled_steps = xp.where(better, gain, smallest_gain), xp.where(better, 0.0, stalled_steps + 1)
        converged = converged | (change <= xp.where(stalled_steps > PATIENCE, COARSE_TOLERANCE, tolerance))
        remaining = int((~converged).sum())
        if remaining <= ACTIVE_SHARE * len(converged):
            best[active[converged]] = state.w[converged]
            if not remaining:
                return best
            keep = ~converged
            state.subset(keep)
            active, converged = active[keep], converged[keep]
            smallest_gain, stalled_steps = smallest_gain[keep], stalled_steps[keep]
    warnings.warn(f"{remaining} of {h} heads had not converged after {STEPS} steps.", stacklevel=4)
    best[active] = state.w
    return best


class LBFGSState:
    """Weights, gradients and search directions of all active heads."""

    def __init__(self, problem: Problem, w: ArrayOrTensor) -> None:
        self.problem, self.w, self.memory = problem, w + 0, Memory(w)
        self._reset()
        self.g = self.problem.gradient(slice(None)) + problem.penalty * w

    def _reset(self) -> None:
        self.direction = zeros_like(self.w, *self.w.shape)
        self.problem.set_direction(self.w)
        self.problem.step(zeros_like(self.w, len(self.w)) + 1)

    def subset(self, keep: ArrayOrTensor) -> None:
        self.problem, self.w, self.g = self.problem.subset(keep), self.w[keep], self.g[keep]
        self.memory.subset(keep)
        self._reset()

    def step(self) -> tuple[ArrayOrTensor, ArrayOrTensor]:
        """Step all heads; return each head's largest change of a log-odds, and twice its predicted decrease."""
        w, g, direction, problem, memory = self.w, self.g, self.direction, self.problem, self.memory
        start_slope, penalty_slope, penalty_curvature = (zeros_like(w, len(w)) for _ in range(3))

        def prepare(block: slice) -> None:
            d = direction[block] = memory.direction(g[block], block)
            start_slope[block] = _dot(g[block], d)
            penalty_gradient = problem.penalty * d
            penalty_slope[block], penalty_curvature[block] = _dot(penalty_gradient, w[block]), _dot(penalty_gradient, d)

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
        largest_change = problem.set_direction(direction)
        guess = 1 / (largest_change / MAX_FIRST_STEP).clip(min=1)
        a = _search(lambda a: problem.slope(a) + penalty_slope + a * penalty_curvature, start_slope, guess)
        problem.step(a)
        for_each(row_blocks, update, memory.basis)
        memory.advance()
        return a * largest_change, -start_slope


class Memory:
    """The last steps s of every head, the changes y of its gradient, and the gradient: the basis of directions.

    A direction is a sum of stored vectors, so the two loops of algorithm 7.4 need only their products. The long vectors
    are read twice instead of 4·MEMORY times.
    """

    def __init__(self, w: ArrayOrTensor) -> None:
        self.size = self.cursor = 0
        self.basis = zeros_like(w, len(w), 2 * MEMORY + 1, w.shape[1])  # s and y in turn, the gradient last
        self.scale = cast(zeros_like(w, len(w)), "float64") + 1

    def subset(self, keep: ArrayOrTensor) -> None:
        self.basis, self.scale = self.basis[keep], self.scale[keep]

    def direction(self, g: ArrayOrTensor, block: slice) -> ArrayOrTensor:
        """−H·g with H the inverse Hessian estimated from the stored steps."""
        basis, xp = self.basis[block], namespace(g)
        basis[:, -1] = g
        products = cast(basis @ basis.swapaxes(1, 2), "float64")
        newest = [2 * ((self.cursor - 1 - i) % MEMORY) for i in range(self.size)]
        coefficients, steps = zeros_like(products, *products.shape[:2]), list[tuple[int, Any, Any]]()
        coefficients[:, -1] = -1
        for i in newest:
            sy, yy = products[:, i, i + 1], products[:, i + 1, i + 1]
            curved = sy > 1e-7 * self.scale[block] * yy  # a step without curvature is skipped
            rho = xp.where(curved, 1 / xp.where(curved, sy, 1.0), 0.0)
            if not steps:
                self.scale[block] = xp.where(curved, sy / xp.where(curved, yy, 1.0), self.scale[block])
            steps.append((i, rho, rho * _dot(products[:, i], coefficients)))
            coefficients[:, i + 1] -= steps[-1][2]
        coefficients *= self.scale[block, None]
        for i, rho, first_loop in reversed(steps):
            coefficients[:, i] += first_loop - rho * _dot(products[:, i + 1], coefficients)
        return (cast(coefficients, str(basis.dtype).removeprefix("torch."))[:, None] @ basis)[:, 0]

    def add(self, s: ArrayOrTensor, y: ArrayOrTensor, block: slice) -> None:
        self.basis[block, 2 * self.cursor], self.basis[block, 2 * self.cursor + 1] = s, y

    def advance(self) -> None:
        self.cursor, self.size = (self.cursor + 1) % MEMORY, min(self.size + 1, MEMORY)


def _search(slope: Callable[[ArrayOrTensor], ArrayOrTensor], start: ArrayOrTensor, a: ArrayOrTensor) -> ArrayOrTensor:
    """(h,) step sizes at which convex functions with slope `start` < 0 at 0 are nearly flat, from a first guess a.

    Slopes rise along the way. A secant through the last point before the minimum and the newest point gives the next.
    """
    xp, low, low_slope, high = namespace(a), 0 * a, start, 0 * a + math.inf
    descends = searching = start < 0
    for _ in range(MAX_EVALUATIONS):
        slope_now = slope(a)
        beyond_minimum, rise = slope_now > 0, slope_now - low_slope
        secant_step = xp.where(rise > 0, -low_slope / xp.where(rise > 0, rise, 1.0), MAX_STRETCH)
        guess = xp.minimum(xp.minimum(low + (a - low) * secant_step, MAX_STRETCH * a), high)
        low_slope = xp.where(beyond_minimum, low_slope, slope_now)
        low, high = xp.where(beyond_minimum, low, a), xp.where(beyond_minimum, a, high)
        a = xp.where(searching, guess, a)
        searching = searching & (abs(slope_now) > FLATNESS * abs(start))
        if not searching.any():
            break
    return xp.where(descends, a, 0.0)


def _dot(a: ArrayOrTensor, b: ArrayOrTensor) -> ArrayOrTensor:
    return namespace(a).einsum("hk,hk->h", a, b)
