"""Measures that need the network: taken at predict time from the function that is really used.

That function is f(x) = (1/K) Σ_k softmax(z_k(x) / T_k): one calibrated network, or an average of several. Temperature
and averaging change what the probes say, so they are taken anew for every selected group of members.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nescio.methods.base import Method

EXACT_CLASSES = 16  # up to here every row of the Jacobian is taken, above it is estimated: as many passes at most
HUTCHINSON = 16  # random directions of the estimate


def mean_probs(methods: Sequence[Method], x: Tensor) -> Tensor:
    """f(x), (b, c)."""
    return torch.stack([_probs(each, x) for each in methods]).mean(0)


def _probs(method: Method, x: Tensor) -> Tensor:
    logits = method(x).logits
    assert logits is not None
    return method.probs(logits)


def jacobian_norm(methods: Sequence[Method], x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """‖∇ₓ f(x)‖² summed over all C softmax outputs, the squared Frobenius norm of the Jacobian (UIMNET §4).

    In evaluation mode rows do not touch each other, so one backward pass gives one output's gradient for every row.
    Above EXACT_CLASSES outputs Hutchinson's estimate E‖vᵀJ‖² over random signs v replaces the C passes.
    """
    x = x.detach().requires_grad_(True)
    gradient: Tensor | None = None  # of f along every direction, (directions, b, …)
    with torch.enable_grad():
        for method in methods:  # one after the other, so that only one graph is in memory
            p = _probs(method, x)
            if gradient is None:
                directions = _directions(p, generator)
                gradient = x.new_zeros(len(directions), *x.shape)
            for number, direction in enumerate(directions):
                last = number + 1 == len(directions)
                (found,) = torch.autograd.grad(p, x, direction / len(methods), retain_graph=not last)
                gradient[number] += found
    assert gradient is not None
    share = 1 if p.shape[1] <= EXACT_CLASSES else 1 / HUTCHINSON
    return gradient.flatten(2).square().sum(2).sum(0) * share


def _directions(p: Tensor, generator: torch.Generator | None) -> Tensor:
    """Along which outputs are differentiated, (directions, b, c): each class, or random signs."""
    if p.shape[1] <= EXACT_CLASSES:
        return torch.eye(p.shape[1], device=p.device, dtype=p.dtype)[:, None].expand(-1, len(p), -1)
    signs = torch.randint(0, 2, (HUTCHINSON, *p.shape), generator=generator, device=p.device)
    return signs.to(p.dtype) * 2 - 1


def augmented_log_probs(methods: Sequence[Method], views: Sequence[Tensor]) -> Tensor:
    """log of the mean of f over augmented copies of an image, (b, c): the answer of test-time augmentation (UIMNET §4).

    Its largest value gives −max_c of the mean (measure `tta`), which no mean of −max over the copies is.
    """
    mean = torch.stack([mean_probs(methods, view) for view in views]).mean(0)
    return mean.clamp_min(torch.finfo(mean.dtype).tiny).log()
