"""Measures that need the network, computed at prediction time from the function in use.

That function is f(x) = (1/K) Σ_k softmax(z_k(x) / T_k): one calibrated network, or an average of several. Temperature
and averaging change the probes, so they are computed anew for every selected group of members.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from nescio.methods.base import Method

EXACT_CLASSES = 16  # up to this number every row of the Jacobian is computed; above it is estimated, unless `exact`
HUTCHINSON = 16  # random directions of the estimate
PARALLEL_DIRECTIONS = 16  # directions whose gradients are in memory at once


def mean_probs(methods: Sequence[Method], x: Tensor) -> Tensor:
    """f(x), (b, c)."""
    return torch.stack([_probs(method, x) for method in methods]).mean(0)


def _probs(method: Method, x: Tensor) -> Tensor:
    logits = method(x).logits
    assert logits is not None
    return method.probs(logits)


def jacobian_norm(
    methods: Sequence[Method], x: Tensor, generator: torch.Generator | None = None, *, exact: bool = False
) -> Tensor:
    """‖∇ₓ f(x)‖² summed over all C softmax outputs, the squared Frobenius norm of the Jacobian (UIMNET §4).

    In evaluation mode rows are independent, so one backward pass gives one output's gradient for every row.
    Above EXACT_CLASSES outputs Hutchinson's estimate E‖vᵀJ‖² over random signs v replaces the C passes, unless `exact`.
    """
    x = x.detach().requires_grad_(True)
    with torch.no_grad(), _same_draws(x):
        p = _probs(methods[0], x)
    parts = _directions(p, generator, exact).split(PARALLEL_DIRECTIONS)
    total = x.new_zeros(len(x))
    for number, directions in enumerate(parts):
        last = number + 1 == len(parts)
        with nullcontext() if last else _same_draws(x):  # f must be one function for all directions
            total += _gradients(methods, x, directions).flatten(2).square().sum((0, 2))
    return total


def how_jacobian(classes: int, exact: bool = False) -> str:
    """Describe the computation of `jacobian_norm` for a number of classes."""
    return "exact" if exact or classes <= EXACT_CLASSES else f"estimated from {HUTCHINSON} random directions"


def _gradients(methods: Sequence[Method], x: Tensor, directions: Tensor) -> Tensor:
    """The gradient of f along every direction, (directions, b, …)."""
    total = x.new_zeros(len(directions), *x.shape)
    with torch.enable_grad():
        for method in methods:  # one after the other, so that only one graph is in memory
            p = _probs(method, x)
            for number, direction in enumerate(directions):
                last = number + 1 == len(directions)
                (gradient,) = torch.autograd.grad(p, x, direction / len(methods), retain_graph=not last)
                total[number] += gradient
    return total


def _directions(p: Tensor, generator: torch.Generator | None, exact: bool) -> Tensor:
    """Directions of the derivative of the outputs, (directions, b, c): each class, or random signs over √HUTCHINSON."""
    if exact or p.shape[1] <= EXACT_CLASSES:
        return torch.eye(p.shape[1], device=p.device, dtype=p.dtype)[:, None].expand(-1, len(p), -1)
    signs = torch.randint(0, 2, (HUTCHINSON, *p.shape), generator=generator, device=p.device)
    return (signs.to(p.dtype) * 2 - 1) / HUTCHINSON**0.5


def _same_draws(x: Tensor) -> AbstractContextManager[object]:
    """Restore the random state after the context, so that later code draws the same numbers."""
    return torch.random.fork_rng([x.device] if x.is_cuda else [])


def augmented_log_probs(methods: Sequence[Method], views: Sequence[Tensor]) -> Tensor:
    """log of the mean of f over augmented copies of an image, (b, c): the prediction of test-time augmentation (UIMNET
    §4).

    Its largest value gives −max_c of the mean (measure `tta`), which is not the mean of −max over the copies.
    """
    mean = torch.stack([mean_probs(methods, view) for view in views]).mean(0)
    return mean.clamp_min(torch.finfo(mean.dtype).tiny).log()
