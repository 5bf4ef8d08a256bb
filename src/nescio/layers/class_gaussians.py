"""One Gaussian per class, fitted to the features of rows with true labels."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from nescio.errors import BadInput

FIRST_JITTER = 1e-12  # relative to the mean variance; raised tenfold until every covariance can be factored


class ClassGaussians(nn.Module):
    """log Σ_c π_c N(x; μ_c, Σ_c) with full covariances; π_c are the class shares of the rows that it was fitted to.

    In float64: the whitened coordinates of nearly singular covariances are small differences of large numbers. Rows are
    features (n, d): of images, or of image locations in dense prediction.
    """

    means: Tensor
    whiteners: Tensor
    log_dets: Tensor
    log_shares: Tensor

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        double = torch.float64
        self.register_buffer("means", torch.zeros(classes, width, dtype=double))
        self.register_buffer("whiteners", torch.eye(width, dtype=double).repeat(classes, 1, 1))  # W, Σ⁻¹ = Wᵀ·W
        self.register_buffer("log_dets", torch.zeros(classes, dtype=double))
        self.register_buffer("log_shares", torch.full((classes,), -math.log(classes), dtype=double))

    @torch.no_grad()
    def fit(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Fit to batches of (rows (b, d), labels (b,)) in one pass. A class of fewer than two rows uses the pooled
        covariance; a class without rows gets a share of 0."""
        classes, width = self.means.shape
        counts, sums, squares = self.means.new_zeros(classes), self.means * 0, self.whiteners * 0
        for rows, labels in batches:
            rows = rows.double()
            for c in labels.unique().tolist():
                class_rows = rows[labels == c]
                counts[c] += len(class_rows)
                sums[c] += class_rows.sum(0)
                squares[c] += class_rows.T @ class_rows
        means = sums / counts.clamp_min(1)[:, None]
        scatters = squares - counts[:, None, None] * means[:, :, None] * means[:, None, :]
        pooled = scatters.sum(0) / (counts.sum() - (counts > 0).sum()).clamp_min(1)
        own_covariances = scatters / (counts - 1).clamp_min(1)[:, None, None]
        factors = factor(torch.where((counts > 1)[:, None, None], own_covariances, pooled))
        identity = torch.eye(width, dtype=means.dtype, device=means.device)
        self.means.copy_(means)
        self.whiteners.copy_(torch.linalg.solve_triangular(factors, identity.expand_as(factors), upper=False))
        self.log_dets.copy_(2 * factors.diagonal(dim1=1, dim2=2).log().sum(1))
        self.log_shares.copy_((counts / counts.sum()).log())

    def log_joint(self, x: Tensor) -> Tensor:
        """(n, c) log π_c + log N(x; μ_c, Σ_c) of rows (n, d)."""
        x, width = x.double(), x.shape[1]
        distances = [
            ((x - mean) @ whitener.T).square().sum(1) for mean, whitener in zip(self.means, self.whiteners, strict=True)
        ]
        return self.log_shares - 0.5 * (torch.stack(distances, 1) + self.log_dets + width * math.log(2 * math.pi))

    def forward(self, x: Tensor) -> Tensor:
        """(n,) log-density of rows (n, d)."""
        return self.log_joint(x).logsumexp(1)


def factor(covariances: Tensor) -> Tensor:
    """Cholesky factors of covariances (c, d, d), with the least common jitter at which all of them exist."""
    if not bool(covariances.isfinite().all()):  # jitter cannot repair these
        raise BadInput("Features are not finite, so no Gaussian can be fitted: a smaller learning rate may help.")
    variance = float(covariances.diagonal(dim1=1, dim2=2).mean())
    variance = variance if variance > 0 else 1.0  # rounding may make the variance of constant features negative
    identity = torch.eye(covariances.shape[1], dtype=covariances.dtype, device=covariances.device)
    jitter = 0.0
    while True:
        try:
            return torch.linalg.cholesky(covariances + jitter * identity)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            jitter = max(10 * jitter, FIRST_JITTER * variance)
