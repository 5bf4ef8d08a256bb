"""A head that predicts the uncertainty of an embedding: three hidden layers (URL, §3.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

WIDTH, DEPTH = 1024, 3
FLOOR = 1e-6


class UncertaintyHead(nn.Module):
    """Embeddings (b, d) to u (b,) > 0: c·(softplus(MLP(e)) + 1e-6). The scale c is 1 until `start_at` sets it."""

    scale: Tensor

    def __init__(self, d: int, width: int = WIDTH, depth: int = DEPTH) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number in range(depth):
            layers += [nn.Linear(width if number else d, width), nn.LeakyReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))
        self.register_buffer("scale", torch.ones(()))  # a buffer, so that it is saved with the weights

    def forward(self, embeddings: Tensor) -> Tensor:
        return self.scale * (softplus(self.layers(embeddings).float().squeeze(-1)) + FLOOR)

    @torch.no_grad()
    def start_at(self, value: float, embeddings: Tensor) -> None:
        """Set the scale so that the mean of u over these embeddings is `value`."""
        self.scale.mul_(value / self(embeddings).mean())
