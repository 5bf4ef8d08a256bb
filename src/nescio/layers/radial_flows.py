"""Normalising flows: a density for every class, trained with the network."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus


class RadialFlows(nn.Module):
    """log q(z | c) of c classes, each by a sequence of radial flows (Rezende & Mohamed 2015, eq. 14).

    A flow maps z to z + β·(z − z₀)/(a + r) with r = ‖z − z₀‖, a > 0 and β ≥ −a, so that it can be inverted; its
    determinant is (1 + βh)^(d−1)·(1 + βh + βh′r) with h = 1/(a + r), h′ = −h². The flows map z to a standard
    normal: log q(z) is the normal's log-density plus the log-determinants. In float64, because densities vary widely.
    """

    def __init__(self, classes: int, width: int, count: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width)
        self.centres = nn.Parameter(torch.empty(classes, count, width).uniform_(-bound, bound))
        self.softness = nn.Parameter(torch.empty(classes, count, 1).uniform_(-bound, bound))  # a, before softplus
        self.strength = nn.Parameter(torch.empty(classes, count, 1).uniform_(-bound, bound))  # β + a, before softplus

    def forward(self, z: Tensor) -> Tensor:
        """(n, c) log-densities of rows (n, d)."""
        width = z.shape[1]
        z = z.double()[:, None]  # (n, c, d) after the first flow
        log_det = z.new_zeros(1, 1, 1)
        parameters = (self.centres, self.softness, self.strength)
        for centre, softness, strength in zip(*(values.double().unbind(1) for values in parameters), strict=True):
            a = softplus(softness)
            beta = softplus(strength) - a
            difference = z - centre
            r = difference.norm(dim=2, keepdim=True)
            h = 1 / (a + r)
            z = z + beta * h * difference
            log_det = log_det + (width - 1) * torch.log1p(beta * h) + torch.log1p(beta * h - beta * h.square() * r)
        normal = -0.5 * (z.square().sum(2) + width * math.log(2 * math.pi))
        return normal + log_det.squeeze(2)

    def plane(self) -> RadialFlows:
        """Flows with the same parameters in the first two dimensions, where densities can be integrated on a grid."""
        classes, count, _ = self.centres.shape
        flows = RadialFlows(classes, 2, count).to(self.centres.device)
        flows.load_state_dict(self.state_dict() | {"centres": self.centres[..., :2]})
        return flows


@torch.no_grad()
def masses(flows: RadialFlows, reach: float = 16.0, cells: int = 100, rounds: int = 8) -> Tensor:
    """(c,) integrals of two-dimensional densities over a grid, whose cells with mass are split into four."""
    size = 2 * reach / cells
    edge = torch.arange(cells, dtype=torch.float64, device=flows.centres.device) * size + size / 2 - reach
    centres = torch.cartesian_prod(edge, edge)
    quarters = torch.cartesian_prod(edge.new_tensor([-0.25, 0.25]), edge.new_tensor([-0.25, 0.25]))
    integrals = edge.new_zeros(len(flows.centres))
    for _ in range(rounds):
        mass = flows(centres).exp() * size**2
        refined = (mass > 1e-4).any(1)
        integrals += mass[~refined].sum(0)
        centres = (centres[refined][:, None] + size * quarters).flatten(0, 1)
        size /= 2
    return integrals + flows(centres).exp().sum(0) * size**2
