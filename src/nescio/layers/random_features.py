"""A Gaussian process on features: random Fourier features of an RBF kernel, and the Laplace posterior of their weights.

Rows are features (n, d): of images, or of image locations in dense prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

MEAN_FIELD = math.pi / 8  # λ of Lu et al. 2020
AT_ONCE = 1 << 15  # maximum rows of one expansion, since a batch may have many locations
RIDGE = 1.0  # precision of the prior N(0, 1) of every weight


class RandomFeatureGP(nn.Module):
    """g(x) = Φ(x)·β with Φ(x) = √(2/D)·cos(W·x/ℓ + b), W ~ N(0, 1), b ~ U(0, 2π) (Rahimi & Recht 2007).

    Φ(x)·Φ(x′) approximates exp(−‖x − x′‖²/(2ℓ²)). The posterior of β has the covariance (I + Σ_i Φ_i Φ_iᵀ)⁻¹ for every
    class, by the Gaussian likelihood of SNGP's authors, so that all classes share one matrix.
    """

    frequencies: Tensor
    phases: Tensor
    lengthscale: Tensor
    precision: Tensor
    covariance: Tensor

    def __init__(self, inputs: int, outputs: int, count: int) -> None:
        super().__init__()
        self.weights = nn.Linear(count, outputs, bias=False)  # β
        self.register_buffer("frequencies", torch.randn(inputs, count))
        self.register_buffer("phases", 2 * math.pi * torch.rand(count))
        self.register_buffer("lengthscale", torch.ones(()))
        self.register_buffer("precision", RIDGE * torch.eye(count))
        self.register_buffer("covariance", torch.eye(count) / RIDGE)

    def expand(self, x: Tensor) -> Tensor:
        """Φ(x), (n, d) to (n, D), in float32: the cosine of a large number needs all digits."""
        with torch.autocast(x.device.type, enabled=False):
            waves = x.float() @ (self.frequencies / self.lengthscale) + self.phases
            return math.sqrt(2 / len(self.phases)) * torch.cos(waves)

    def mean(self, expanded: Tensor) -> Tensor:
        """(n, c) posterior means of the latent functions, given Φ."""
        with torch.autocast(expanded.device.type, enabled=False):
            return self.weights(expanded)

    def variance(self, expanded: Tensor) -> Tensor:
        """(n,) posterior variance of the latent functions, Φ Σ Φᵀ, given Φ."""
        with torch.autocast(expanded.device.type, enabled=False):
            return ((expanded @ self.covariance) * expanded).sum(1).clamp_min(0)

    def penalty(self) -> Tensor:
        """−log of the prior of β, up to a constant."""
        return 0.5 * RIDGE * self.weights.weight.square().sum()

    @torch.no_grad()
    def fit(self, rows: Iterable[Tensor]) -> None:
        """The exact precision I + Σ ΦᵀΦ over all rows, given in batches, and its inverse."""
        precision = RIDGE * torch.eye(len(self.phases), dtype=torch.float64, device=self.phases.device)
        for x in (chunk for batch in rows for chunk in batch.split(AT_ONCE)):
            expanded = self.expand(x).double()
            with torch.autocast(x.device.type, enabled=False):
                precision += expanded.T @ expanded
        self.precision.copy_(precision)
        self.covariance.copy_(torch.cholesky_inverse(torch.linalg.cholesky(precision)))


def mean_field(logits: Tensor, variance: Tensor, factor: float = MEAN_FIELD) -> Tensor:
    """z/√(1 + λ·σ²): logits (n, c) whose softmax approximates the mean softmax over N(z, σ²) (Lu et al. 2020)."""
    return logits / torch.sqrt(1 + factor * variance)[:, None]


def dempster_shafer(logits: Tensor) -> Tensor:
    """u = C/(C + Σ_c exp z_c), between 0 and 1: the lack of evidence in the logits (n, c) (SNGP, §4)."""
    classes = logits.shape[1]
    return torch.sigmoid(math.log(classes) - logits.float().logsumexp(1))
