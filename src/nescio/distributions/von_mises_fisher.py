"""The von Mises–Fisher distribution on the unit sphere of R^d: density C_d(κ)·exp(κ·μᵀx), ‖μ‖ = ‖x‖ = 1.

Every function takes NumPy arrays, torch tensors or numbers, computes in float64 and returns the dtype of its input
(half precision: float32). This module does not import torch.

With v = d/2 − 1, t = √(v² + κ²) and p = v/t, Debye's uniform expansion (Olver, *Asymptotics and Special Functions*,
ch. 10 §7) reads

    log I_v(κ) = t + v·log(κ/(v + t)) − ½·log(2πt) + L(p),

where L is a polynomial in p for every fixed d. Putting the expansion into Bessel's equation gives its derivative g = L′
as a series Σ g_k(p)/vᵏ:

    g₁ = (1 − 5p²)/8,   g_{k+1} = ½·[(q·g_k)′ + q·Σ_{i+j=k} g_i·g_j],   q = p² − p⁴.

The series is accurate only for large v. A small v is therefore raised by integer steps, and the exact three-term
recurrence, which is stable downwards, leads back to v.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from nescio.arrays.types import Array, ArrayOrTensor
from nescio.errors import BadInput

Function: TypeAlias = Callable[[ArrayOrTensor, int, ModuleType], ArrayOrTensor]  # of values, d, numpy or torch

LOWEST_ORDER = 15  # minimum order at which 12 terms give log C and A to rounding error
TERMS = 12
NEGLIGIBLE = 1e-16  # smaller terms of g, and all after them, are omitted
CHUNK = 1 << 13  # values per chunk, so that temporaries fit the cache
STEPS = 50  # maximum steps of the inverse, which needs 4 to 8
TINY, LARGEST = 1e-24, 1e150  # minimum squared concentration; maximum concentration with a finite square


def log_normalizer(kappa: ArrayOrTensor, d: int) -> ArrayOrTensor:
    """Log of the factor that makes the density integrate to one over the sphere's surface measure.

    log C_d(κ) = v·log κ − (d/2)·log 2π − log I_v(κ),  v = d/2 − 1;  at κ = 0 minus the log of the sphere's area.
    For tensors the gradient −A_d(κ) is differentiable to any order.
    """
    return _apply(_log_normalizer, kappa, d)


def mean_resultant(kappa: ArrayOrTensor, d: int) -> ArrayOrTensor:
    """Length of the mean vector, E[μᵀx] = A_d(κ) = I_{d/2}(κ)/I_{d/2−1}(κ), from 0 at κ = 0 towards 1."""
    return _apply(_mean_resultant, kappa, d)


def inverse_mean_resultant(r: ArrayOrTensor, d: int) -> ArrayOrTensor:
    """The concentration κ at which A_d(κ) = r: the maximum-likelihood estimate from a mean of length r.

    Amos' bound A(κ) ≥ κ/(a + √(κ² + b²)), a = (d − 1)/2, b = (d + 1)/2, has a closed inverse that is exact at both
    ends; the error between them is nearly constant in log κ and is removed by the secant method. r = 1 gives
    infinity. No gradient flows through this function.
    """
    return _apply(_inverse_mean_resultant, r, d)


def log_density(x: ArrayOrTensor, mean: ArrayOrTensor, kappa: ArrayOrTensor) -> ArrayOrTensor:
    """Log-density of unit rows x (n, d) under m distributions, mean (m, d) and kappa (m,), as (n, m).

    log f(x) = log C_d(κ) + κ·μᵀx, with respect to the surface measure of the sphere.
    """
    xp = _namespace(x)
    x, dtype = _double(x, xp)
    mean, _ = _double(mean, xp)
    kappa, _ = _double(kappa, xp)
    return _back((x @ mean.T) * kappa + log_normalizer(kappa, int(x.shape[-1])), dtype, xp)


def expected_likelihood(
    mean: ArrayOrTensor, kappa: ArrayOrTensor, others: ArrayOrTensor, other_kappas: ArrayOrTensor
) -> ArrayOrTensor:
    """Log of the expected-likelihood kernel ∫ f·g of n distributions, mean (n, d), kappa (n,), and m others, as (n, m).

    log C_d(κ) + log C_d(κ′) − log C_d(‖κμ + κ′μ′‖): the expected likelihood of a sample of one under the other
    (Jebara & Kondor 2003).
    """
    xp, d = _namespace(mean), int(mean.shape[-1])
    mean, dtype = _double(mean, xp)
    (others, _), (k, _), (m, _) = _double(others, xp), _double(kappa, xp), _double(other_kappas, xp)
    k, m = k[:, None], m[None]
    # ‖κμ + κ′μ′‖² = (κ − κ′)² + 2κκ′·(1 + cos), clipped above 0, where the root is differentiable
    squared = (k - m) ** 2 + 2 * k * m * (1 + mean @ others.T).clip(0)
    joint = log_normalizer(squared.clip(TINY) ** 0.5, d)
    return _back(log_normalizer(k, d) + log_normalizer(m, d) - joint, dtype, xp)


# ---- formulas, on float64 arrays of NumPy or torch


@lru_cache(maxsize=1)
def _slopes() -> list[Array]:
    """g_1 … g_TERMS as coefficients of ascending powers of p."""
    from numpy.polynomial import polynomial as poly

    q = np.array([0.0, 0.0, 1.0, 0.0, -1.0])
    g = [np.array([1.0, 0.0, -5.0]) / 8]
    for k in range(1, TERMS):
        squares = [poly.polymul(g[i], g[k - 2 - i]) for i in range(k - 1)]
        g.append(poly.polyadd(poly.polyder(poly.polymul(q, g[-1])), poly.polymul(q, sum(squares, np.zeros(1)))) / 2)
    return g


@lru_cache(maxsize=256)
def _series(d: int) -> tuple[float, int, list[float], list[float]]:
    """Order of the expansion, number of steps down to v, and the coefficients of L and of g, highest power first."""
    if not isinstance(d, int) or d < 2:
        raise BadInput(f"The sphere of R^d needs a whole d of at least 2; d is {d}.")
    v = d / 2 - 1
    steps = max(0, math.ceil(LOWEST_ORDER - v))
    order = v + steps
    total: Array = np.zeros(1)
    grid = np.linspace(0, 1, 65)
    for k, slope in enumerate(_slopes(), start=1):
        term = slope / order**k
        if np.abs(np.polynomial.polynomial.polyval(grid, term)).max() < NEGLIGIBLE:
            break
        total = np.polynomial.polynomial.polyadd(total, term)
    level = np.polynomial.polynomial.polyint(total)
    return order, steps, level[::-1].tolist(), total[::-1].tolist()


def _polynomial(coefficients: list[float], p: ArrayOrTensor) -> ArrayOrTensor:
    value = coefficients[0] * p + coefficients[1]
    for c in coefficients[2:]:
        value = value * p + c
    return value


def _high_resultant(
    kappa: ArrayOrTensor, t: ArrayOrTensor, p: ArrayOrTensor, order: float, derivative: list[float]
) -> ArrayOrTensor:
    """A at a high order: minus the derivative of the expansion of log C, without cancellation."""
    return kappa / (order + t) - kappa * (p / order) ** 2 * (0.5 + p * _polynomial(derivative, p))


def _log_normalizer(kappa: ArrayOrTensor, d: int, xp: ModuleType) -> ArrayOrTensor:
    order, steps, level, slope = _series(d)
    t = xp.sqrt(order**2 + kappa**2)
    p = order / t
    value = order * xp.log(order + t) - t + 0.5 * xp.log(2 * math.pi * t) - _polynomial(level, p)
    if steps:
        # v·log κ − log I_v is that of v + 1 less log(κ/A_v), and κ/A_v = 2(v + 1) + κ·A_{v+1}.
        ratio, product = _high_resultant(kappa, t, p, order, slope), 1.0
        for step in range(steps):
            denominator = 2 * (order - step) + kappa * ratio
            ratio, product = kappa / denominator, product * denominator
        value = value - xp.log(product)
    return value - (d / 2) * math.log(2 * math.pi)


def _mean_resultant(kappa: ArrayOrTensor, d: int, xp: ModuleType) -> ArrayOrTensor:
    order, steps, _, slope = _series(d)
    t = xp.sqrt(order**2 + kappa**2)
    ratio = _high_resultant(kappa, t, order / t, order, slope)
    for step in range(steps):
        ratio = kappa / (2 * (order - step) + kappa * ratio)
    return ratio


def _resultant_slope(kappa: ArrayOrTensor, d: int, xp: ModuleType) -> ArrayOrTensor:
    """A′(κ): the derivatives of the expansion and of the recurrence, without cancellation."""
    order, steps, _, slope = _series(d)
    t = xp.sqrt(order**2 + kappa**2)
    p = order / t
    value, powers = _polynomial(slope, p), range(len(slope) - 1, 0, -1)
    second_derivative = _polynomial([0.0, *(n * c for n, c in zip(powers, slope, strict=False))], p)
    curvature = p * (1 - p**2) * (p + p**2 * (3 * value + p * second_derivative))
    resultant_slope = p / (order + t) + (curvature - p**2 * (0.5 + p * value)) / order**2
    ratio = _high_resultant(kappa, t, p, order, slope) if steps else 0.0
    for step in range(steps):
        denominator = 2 * (order - step) + kappa * ratio
        ratio, resultant_slope = kappa / denominator, (2 * (order - step) - kappa**2 * resultant_slope) / denominator**2
    return resultant_slope


def _inverse_mean_resultant(r: ArrayOrTensor, d: int, xp: ModuleType) -> ArrayOrTensor:
    a, b = (d - 1) / 2, (d + 1) / 2

    def log_bound(r: ArrayOrTensor) -> ArrayOrTensor:
        complement = (1 - r) * (1 + r)
        return xp.log(r * (a + xp.sqrt((a * r) ** 2 + b**2 * complement)) / complement)

    interior = (r > 0) & (r < 1)
    target = log_bound(xp.where(interior, r, 0.5))
    x, error = target, target - log_bound(_mean_resultant(xp.exp(target), d, xp))
    step, log_slope = error, xp.ones_like(error)
    for _ in range(STEPS):
        x = x + step
        previous_error, error = error, target - log_bound(_mean_resultant(xp.exp(x), d, xp))
        # The slope of log_bound(A) in log κ is near 1 everywhere; the secant's slope is used unless rounding spoils it.
        slope = (previous_error - error) / xp.where(step == 0, 1.0, step)
        log_slope = xp.where((slope > 0.5) & (slope < 2), slope, log_slope)
        step = xp.where(abs(error) < abs(previous_error), error / log_slope, 0.0)
        if not (abs(step) > 1e-15).any():
            break
    kappa = xp.exp(x + step)
    return xp.where(interior, kappa, xp.where(r >= 1, math.inf, xp.where(r == 0, 0.0, math.nan)))


# ---- conversion to and from NumPy and torch


def _namespace(x: ArrayOrTensor) -> ModuleType:
    return sys.modules["torch"] if type(x).__module__.partition(".")[0] == "torch" else np


def _double(x: ArrayOrTensor, xp: ModuleType) -> tuple[ArrayOrTensor, ArrayOrTensor]:
    """x in float64, and the dtype of the result."""
    if xp is np:
        x = np.asarray(x)
        dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
        return x.astype(np.float64, copy=False), np.promote_types(dtype, np.float32)
    dtype = x.dtype if x.dtype in (xp.float32, xp.float64) else xp.float32 if x.is_floating_point() else xp.float64
    return x.to(xp.float64), dtype


def _back(value: ArrayOrTensor, dtype: ArrayOrTensor, xp: ModuleType) -> ArrayOrTensor:
    return value.astype(dtype, copy=False) if xp is np else value.to(dtype)


def _apply(function: Function, x: ArrayOrTensor, d: int) -> ArrayOrTensor:
    d = int(d) if float(d).is_integer() else d
    xp = _namespace(x)
    values, dtype = _double(x, xp)
    if xp is np:
        _check_range(values, 1.0 if function is _inverse_mean_resultant else LARGEST)
    elif function is not _inverse_mean_resultant and values.requires_grad:
        return _back(_differentiable()[function](values, d), dtype, xp)
    elif function is _inverse_mean_resultant:
        values = values.detach()
    with np.errstate(invalid="ignore"):
        result = _back(_chunked(function, values, d, xp), dtype, xp)
    return result if result.ndim or hasattr(x, "dtype") else float(result)


def _chunked(function: Function, x: ArrayOrTensor, d: int, xp: ModuleType) -> ArrayOrTensor:
    """Apply the function to chunks that fit the cache; on a GPU to all values at once."""
    size = math.prod(x.shape)
    if size <= CHUNK or (xp is not np and x.device.type != "cpu"):
        return function(x, d, xp)
    flattened = x.reshape(-1)
    pieces = [function(flattened[start : start + CHUNK], d, xp) for start in range(0, size, CHUNK)]
    return xp.concatenate(pieces).reshape(x.shape)


def _check_range(values: ArrayOrTensor, maximum: float) -> None:
    invalid = ~((values >= 0) & (values <= maximum))
    if invalid.any():
        name = "mean resultant length" if maximum == 1 else "concentration"
        raise BadInput(f"A {name} is at most {maximum:g} and at least 0; {values[invalid].flat[0]:g} is not.")


@lru_cache(maxsize=1)
def _differentiable() -> dict[Function, Callable[[ArrayOrTensor, int], ArrayOrTensor]]:
    """log C and A as torch functions with gradients −A and A′; only κ is stored for the backward pass."""
    torch = sys.modules["torch"]

    class Smooth(torch.autograd.Function):  # type: ignore[misc, name-defined]
        generate_vmap_rule = True
        value: Function

        @classmethod
        def forward(cls, kappa: ArrayOrTensor, d: int) -> ArrayOrTensor:
            return _chunked(cls.value, kappa, d, torch)

        @staticmethod
        def setup_context(ctx: Any, inputs: ArrayOrTensor, output: ArrayOrTensor) -> None:
            kappa, ctx.d = inputs
            ctx.save_for_backward(kappa)

    class MeanResultant(Smooth):
        value = staticmethod(_mean_resultant)

        @staticmethod
        def backward(ctx: Any, gradient: ArrayOrTensor) -> ArrayOrTensor:
            return gradient * _chunked(_resultant_slope, ctx.saved_tensors[0], ctx.d, torch), None

    class LogNormalizer(Smooth):
        value = staticmethod(_log_normalizer)

        @staticmethod
        def backward(ctx: Any, gradient: ArrayOrTensor) -> ArrayOrTensor:
            return -gradient * MeanResultant.apply(ctx.saved_tensors[0], ctx.d), None

    return {_mean_resultant: MeanResultant.apply, _log_normalizer: LogNormalizer.apply}
