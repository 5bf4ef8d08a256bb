"""Normalising flows: a density for every class that is learnt together with the network."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus


class RadialFlows(nn.Module):
    """log q(z | c) of c classes, each by radial flows in a row (Rezende & Mohamed 2015, eq. 14).

    A flow maps z to z + β·(z − z₀)/(a + r) with r = ‖z − z₀‖, a > 0 and β ≥ −a, so that it can be inverted; its
    determinant is (1 + βh)^(d−1)·(1 + βh + βh′r) with h = 1/(a + r), h′ = −h². The flows lead from z to a standard
    normal: log q(z) is the normal's log-density plus the log-determinants. In float64: densities reach far.
    """

    def __init__(self, classes: int, width: int, count: int) -> None:
        super().__init__()
        reach = 1 / math.sqrt(width)
        self.centres = nn.Parameter(torch.empty(classes, count, width).uniform_(-reach, reach))
        self.softness = nn.Parameter(torch.empty(classes, count, 1).uniform_(-reach, reach))  # a before softplus
        self.strength = nn.Parameter(torch.empty(classes, count, 1).uniform_(-reach, reach))  # β + a before softplus

    def forward(self, z: Tensor) -> Tensor:
        """(n, c) log-densities of rows (n, d)."""
        width = z.shape[1]
        z = z.double()[:, None]  # (n, c, d) after the first flow
        log_det = z.new_zeros(1, 1, 1)
        parameters = (self.centres, self.softness, self.strength)
        for centre, softness, strength in zip(*(values.double().unbind(1) for values in parameters), strict=True):
            a = softplus(softness)
            beta = softplus(strength) - a
            apart = z - centre
            r = apart.norm(dim=2, keepdim=True)
            h = 1 / (a + r)
            z = z + beta * h * apart
            log_det = log_det + (width - 1) * torch.log1p(beta * h) + torch.log1p(beta * h - beta * h.square() * r)
        normal = -0.5 * (z.square().sum(2) + width * math.log(2 * math.pi))
        return normal + log_det.squeeze(2)
