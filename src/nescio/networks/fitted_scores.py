"""Fitted scores as networks: embeddings (b, d) and logits (b, c) to u (b,), as `nescio.measures` computes them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from nescio.measures import FittedScore

TINY = float(np.finfo(np.float32).tiny)


class ScoreNetwork(nn.Module):
    """u of a fitted score; its arrays are buffers."""

    def __init__(self, score: FittedScore) -> None:
        super().__init__()
        self.measure, self.width = score.measure, score.width
        self.scalars = {name: x.item() for name, x in score.arrays.items() if not x.ndim}
        for name, x in score.arrays.items():
            if x.ndim:
                self.register_buffer(name, torch.tensor(np.asarray(x, np.float32)))

    def forward(self, embeddings: Tensor, logits: Tensor) -> Tensor:
        f, z = embeddings.float(), logits.float()
        z = z.mean(1) if z.dim() == 3 else z
        if self.measure in ("residual", "vim"):
            outside = ((f - self.origin) @ self.axes).square().sum(1).sqrt()
            return outside if self.measure == "residual" else self.scalars["alpha"] * outside - _energy(logits)
        if self.measure == "fdbd":
            return self._boundaries(f, z)
        if self.measure == "nci":
            away = f - self.mean
            along = (self.weight[z.argmax(1)] * away).sum(1)
            return -along / _length(away) - self.scalars["alpha"] * f.abs().sum(1)
        if self.measure == "nnguide":
            near = (normalize(f, dim=1) @ self.bank).topk(int(self.scalars["k"]), dim=1).values
            return -_energy(logits) * near.mean(1)
        return self._distance(f)

    def _distance(self, f: Tensor) -> Tensor:
        """Squared Mahalanobis distance to the nearest class mean; of rmds less that to the mean of all rows."""
        f = normalize(f, dim=1) if self.scalars["unit"] else f
        white = (f - self.middle) @ self.whitener.T
        nearest = (self.centres.square().sum(1) - 2 * white @ self.centres.T).argmin(1)
        distance = (white - self.centres[nearest]).square().sum(1)
        return distance - (white.square() / self.spread).sum(1) if self.measure.startswith("rmds") else distance

    def _boundaries(self, f: Tensor, z: Tensor) -> Tensor:
        gaps = z.amax(1, keepdim=True) - z
        inverse = self.inverse[z.argmax(1)]
        means = (gaps * inverse).sum(1) / max(z.shape[1] - 1, 1)
        return -means / _length(f - self.mean)


def _energy(logits: Tensor) -> Tensor:
    z = logits.float()
    return torch.logsumexp(z, -1).mean(1) if z.dim() == 3 else torch.logsumexp(z, -1)


def _length(x: Tensor) -> Tensor:
    return x.square().sum(1).sqrt().clamp_min(TINY)
