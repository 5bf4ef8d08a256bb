"""Layers and losses of methods trained on two views of an image: projections, NT-Xent, momentum copies."""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

N = TypeVar("N", bound=nn.Module)


def mlp(inputs: int, hidden: int, outputs: int, norm: bool = True) -> nn.Sequential:
    """Two linear layers with an optional batch-norm and a ReLU between them."""
    activation = [nn.BatchNorm1d(hidden), nn.ReLU()] if norm else [nn.ReLU()]
    return nn.Sequential(nn.Linear(inputs, hidden, bias=not norm), *activation, nn.Linear(hidden, outputs))


def unit(z: Tensor) -> Tensor:
    """Normalize rows to unit length in float32, for any precision of the network."""
    return normalize(z.float(), dim=1)


def nt_xent(z: Tensor, temperature: float) -> Tensor:
    """The NT-Xent loss of matching views among all others; rows i and i + b are two views of one image.

    (1/2b) Σ_i −log [ exp(cos(z_i, z_i′)/τ) / Σ_{k≠i} exp(cos(z_i, z_k)/τ) ], i′ the partner of i (Chen et al. 2020,
    eq. 1). The denominator includes the partner but not the row itself. z (2b, d).
    """
    with torch.autocast(z.device.type, enabled=False):
        z = unit(z)
        cosines = z @ z.T / temperature
        cosines = cosines.masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), -torch.inf)
        partner = torch.arange(len(z), device=z.device).roll(len(z) // 2)
        return cross_entropy(cosines, partner)


def info_nce(z: Tensor, t: float, partners: bool = False) -> Tensor:
    """The InfoNCE loss of two views against other images; rows i and i + b are views of one image.

    −t·e₁ᵀe₂ + log Σ_{e⁻} exp(t·e₁ᵀe⁻) + log Σ_{e⁻} exp(t·e₂ᵀe⁻), e⁻ all rows but the two
    (URL, eq. 1), for every image: z (…, 2b, d) of unit rows to (…, b). With `partners`, both sums include the other
    view and the first term counts twice: 2·NT-Xent at t = 1/τ.
    """
    b = z.shape[-2] // 2
    with torch.autocast(z.device.type, enabled=False):
        products = t * (z @ z.mT)
        positive = products.diagonal(b, -2, -1)
        excluded = torch.eye(b if not partners else 2 * b, dtype=torch.bool, device=z.device)
        sums = products.masked_fill(excluded if partners else excluded.repeat(2, 2), -torch.inf).logsumexp(-1)
        return sums.unflatten(-1, (2, b)).sum(-2) - (1 + partners) * positive


# ---- momentum copies


def momentum_copy(network: N) -> N:
    """A copy of a network whose weights get no gradient."""
    return deepcopy(network).requires_grad_(False)


@torch.no_grad()
def follow(copy: nn.Module, network: nn.Module, momentum: float) -> None:
    """Update all weights of a copy: ξ ← m·ξ + (1 − m)·θ. Batch-norm statistics are not averaged."""
    torch._foreach_lerp_(list(copy.parameters()), list(network.parameters()), 1 - momentum)


def of_all_processes(rows: Tensor) -> Tensor:
    """The rows of all processes, in the same order on each."""
    if not dist.is_initialized():
        return rows
    gathered = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, rows.contiguous())
    return torch.cat(gathered)
