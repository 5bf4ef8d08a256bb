"""Differentiable samples of the von Mises–Fisher distribution, on tensors of any device.

A sample is s = w·μ + √(1 − w²)·v: v is a uniform direction at right angles to μ, and w has the density
∝ exp(κw)·(1 − w²)^((d − 3)/2), drawn by rejection (Ulrich 1984, Wood 1994). This module does not import torch: its
tensors imply an imported torch.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import Any

import numpy as np

from nescio.arrays.types import ArrayOrTensor
from nescio.distributions.von_mises_fisher import mean_resultant

TRIES = 4  # proposals per round; each is accepted with probability of at least 0.66
NODES = 40  # nodes of the quadrature
REACH = 12.0  # standard deviations of the angle beyond which the density is negligible
NARROW = 16  # dimensions below which float64 is used, because random vectors may be nearly parallel to μ


def sample(mean: ArrayOrTensor, kappa: ArrayOrTensor, draws: int) -> ArrayOrTensor:
    """Draw samples (draws, n, d) of every distribution, with unit-length mean (n, d) and kappa (n,).

    Differentiable in both. A sample turns with μ by the smallest rotation, ds = w·dμ − √(1 − w²)·μ·(vᵀdμ), and w moves
    with κ along its distribution function F, dw/dκ = −∂_κF(w; κ)/f(w; κ) (implicit reparameterisation, Figurnov et al.
    2018): the gradient of a mean over samples has no bias.
    """
    return _samples().apply(mean, kappa, draws)


@lru_cache(maxsize=1)
def _samples() -> ArrayOrTensor:
    """The samples as a torch function whose backward pass stores the samples and a few numbers per sample."""
    torch = sys.modules["torch"]

    class Samples(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, mean: ArrayOrTensor, kappa: ArrayOrTensor, draws: int) -> ArrayOrTensor:
            d, dtype = mean.shape[-1], mean.dtype
            precision = torch.float64 if d < NARROW else torch.promote_types(dtype, torch.float32)
            k, mu = kappa.double().expand(draws, *kappa.shape), mean.to(precision)
            torch.rand(3, device=mean.device)  # avoids samples equal to means drawn with the same seed
            s = torch.randn(draws, *mean.shape, dtype=precision, device=mean.device)
            if d < NARROW:
                mu = torch.nn.functional.normalize(mu, dim=1)  # a float32 row has length one to 1e-7 only
                s -= torch.einsum("snd,nd->sn", s, mu)[..., None] * mu
            complement = _rejection(k, d)  # after s, because the number of random draws depends on all rows
            tilt = _tilt(complement, k, d) if ctx.needs_input_grad[1] else None
            w, radius = (1 - complement).to(precision), (complement * (2 - complement)).sqrt().to(precision)
            radial_part = torch.einsum("snd,nd->sn", s, mu)
            tangential_part = radius / (torch.linalg.vector_norm(s, dim=-1).square() - radial_part.square()).sqrt()
            s.mul_(tangential_part[..., None]).addcmul_((w - tangential_part * radial_part)[..., None], mu)
            ctx.save_for_backward(s, mu, w, radius, tilt)
            return s.to(dtype)

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, gradient: ArrayOrTensor) -> ArrayOrTensor:
            s, mu, w, radius, tilt = ctx.saved_tensors
            g = gradient.to(s.dtype)
            radial_part = torch.einsum("snd,nd->sn", g, mu)
            rotation = torch.einsum("sn,snd->nd", w, g) - torch.einsum("sn,snd->nd", radial_part, s)
            rotation += (radial_part * w).sum(0)[:, None] * mu
            if tilt is None:
                return rotation.to(gradient.dtype), None, None
            tangential_part = torch.einsum("snd,snd->sn", g, s) - w * radial_part  # the gradient along √(1 − w²)·v
            return rotation.to(gradient.dtype), (tilt * (radial_part - w * tangential_part / radius**2)).sum(0), None

    return Samples


def _rejection(kappa: ArrayOrTensor, d: int) -> ArrayOrTensor:
    """1 − w with w = (1 − (1 + b)β)/(1 − (1 − b)β), β ~ Beta((d − 1)/2, (d − 1)/2), accepted as Wood (1994) does.

    All rows get new proposals while one of them needs it, so that draws do not depend on other rows.
    """
    torch = sys.modules["torch"]
    shape = torch.full((), (d - 1) / 2, dtype=torch.float64, device=kappa.device)
    beta = torch.distributions.Beta(shape, shape, validate_args=False)
    b = (d - 1) / (2 * kappa + (4 * kappa**2 + (d - 1) ** 2).sqrt())
    peak = 2 * b / (1 + b)  # 1 − x₀, x₀ = (1 − b)/(1 + b) the proposals' mode
    complement, pending = torch.empty_like(kappa), torch.ones_like(kappa, dtype=torch.bool)
    while bool(pending.any()):
        betas = beta.sample((TRIES, *kappa.shape))
        proposals = 2 * b * betas / (1 - (1 - b) * betas)
        margin = kappa * (peak - proposals) + (d - 1) * ((peak + (1 - peak) * proposals) / (peak * (2 - peak))).log()
        accepted = margin >= torch.rand_like(margin).log()
        first_accepted = accepted.int().argmax(0, keepdim=True)
        complement = torch.where(pending & accepted.any(0), proposals.gather(0, first_accepted)[0], complement)
        pending = pending & ~accepted.any(0)
    return complement


def _tilt(complement: ArrayOrTensor, kappa: ArrayOrTensor, d: int) -> ArrayOrTensor:
    """dw/dκ at fixed F(w; κ), by Gauss–Legendre quadrature over the angle θ = arccos w from θ outwards.

    With p(θ) ∝ exp(κ·cos θ)·sin^(d−2) θ: dw/dκ = sin θ·∫ |cos u − A_d(κ)|·p(u)/p(θ) du over u < θ where w is above its
    mean A, over u > θ where it is below. The two integrals are equal, and this choice avoids cancellation.
    """
    torch = sys.modules["torch"]
    nodes, weights = (torch.as_tensor(values, device=complement.device) for values in _quadrature())
    theta = 2 * (complement / 2).sqrt().clamp(max=1).asin()
    w, mean = 1 - complement, mean_resultant(kappa, d)
    width = REACH / (d - 2 + kappa * mean).clamp_min(1e-12).sqrt()
    above_mean = w > mean
    interval = torch.where(above_mean, -torch.minimum(theta, width), torch.minimum(math.pi - theta, width))[..., None]
    u = theta[..., None] + interval * nodes
    log_ratio = kappa[..., None] * (u.cos() - w[..., None]) + (d - 2) * (u.sin() / theta.sin()[..., None]).log()
    integrand = (u.cos() - mean[..., None]).abs() * log_ratio.exp()
    return theta.sin() * (integrand @ weights) * interval[..., 0].abs()


@lru_cache(maxsize=1)
def _quadrature() -> tuple[ArrayOrTensor, ArrayOrTensor]:
    """Nodes and weights on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return (nodes + 1) / 2, weights / 2
