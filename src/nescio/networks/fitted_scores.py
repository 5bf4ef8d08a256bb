"""Scores as networks, as `nescio.measures` computes them: of logits (b, c) or (b, s, c), and fitted to embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from nescio.measures import FittedScore
from nescio.measures.logit_scores import GAMMA, TOP, P

TINY = float(np.finfo(np.float32).tiny)


class ScoreNetwork(nn.Module):
    """A fitted score as a network: uncertainties u (b,)."""

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
        if self.measure in ("knn", "knn_distance"):
            near = (normalize(f, dim=1) @ self.bank).topk(int(self.scalars["k"]), dim=1).values
            return 1 - near.mean(1) if self.measure == "knn_distance" else 2 - 2 * near[:, -1]
        if self.measure == "gmm":
            white = (f[None] - self.means[:, None]) @ self.whiteners.transpose(1, 2)
            return -torch.logsumexp(self.constants[:, None] - white.square().sum(2) / 2, 0)
        if self.measure == "she":
            return -(f * self.patterns[MeanSoftmax(logits).top]).sum(1)
        if self.measure == "kl_matching":
            p = MeanSoftmax(logits).probs
            return ((p * p.clamp_min(TINY).log()).sum(1) - (p @ self.logs).amax(1)).clamp_min(0)
        if self.measure == "sirc":
            familiar = (f.abs().sum(1) - self.scalars["start"]) / self.scalars["sigma"]
            return MeanSoftmax(logits).uncertainty.clamp_min(TINY).log() + softplus(-familiar)
        if self.measure in ("react", "dice", "ash", "scale"):
            return -torch.logsumexp(self._shaped(f, z), -1)
        return self._distance(f)

    def _distance(self, f: Tensor) -> Tensor:
        """Squared Mahalanobis distance to the nearest class mean; for rmds, minus that to the mean of all rows."""
        f = normalize(f, dim=1) if self.scalars["unit"] else f
        white = (f - self.middle) @ self.whitener.T
        nearest = (self.centres.square().sum(1) - 2 * white @ self.centres.T).argmin(1)
        distance = (white - self.centres[nearest]).square().sum(1)
        return distance - (white.square() / self.spread).sum(1) if self.measure.startswith("rmds") else distance

    def _boundaries(self, f: Tensor, z: Tensor) -> Tensor:
        """A class with the logit −inf has no boundary."""
        there = z > -math.inf
        gaps = torch.where(there, z.amax(1, keepdim=True) - z, 0.0)
        inverse = self.inverse[z.argmax(1)]
        means = (gaps * inverse).sum(1) / (there.sum(1) - 1).clamp_min(1)
        return -means / _length(f - self.mean)

    def _shaped(self, f: Tensor, z: Tensor) -> Tensor:
        """Logits (b, c) of shaped features."""
        if self.measure in ("react", "dice"):
            f = f.clamp_max(self.scalars["cut"]) if self.measure == "react" else f
        else:
            largest = f.topk(int(self.scalars["left"]), dim=1).values
            if self.measure == "scale":
                factor = _exp_ratio(f.sum(1), largest.sum(1))
                return factor * (z - self.bias) + self.bias
            kept = torch.where(f >= largest[:, -1:], f, 0.0)
            f = kept * _exp_ratio(f.sum(1), kept.sum(1))
        return f @ self.weight.T + self.bias


def _exp_ratio(before: Tensor, after: Tensor) -> Tensor:
    """exp(s₁/s₂) (b, 1), with the ratio 1 if a row has only zeros."""
    return torch.where(after > 0, before / torch.where(after > 0, after, 1.0), 1.0).exp()[:, None]


def _energy(logits: Tensor) -> Tensor:
    return _mean_of_draws(torch.logsumexp(logits.float(), -1))


def _mean_of_draws(x: Tensor) -> Tensor:
    return x.mean(1) if x.dim() == 2 else x


def _length(x: Tensor) -> Tensor:
    return x.square().sum(1).sqrt().clamp_min(TINY)


# ---- scores of logits


class MeanSoftmax:
    """The mean over draws of softmax(z/T) (b, c); of the top class (b,): number, probability, and one minus that.

    The uncertainty is the sum of the other probabilities, never 1 − p: its relative error in float32 is about 1e-6,
    also for a probability of almost 1.
    """

    def __init__(self, logits: Tensor, temperature: float = 1.0) -> None:
        z = logits.float()
        z = z[:, None] if z.dim() == 2 else z
        self.probs = torch.softmax((z - z.amax(-1, keepdim=True)) / temperature, -1).mean(1)
        # of one draw by its logits: rounding must not change the prediction
        self.top = z[:, 0].argmax(-1) if z.shape[1] == 1 else self.probs.argmax(-1)
        first = torch.arange(self.probs.shape[1], device=self.probs.device) == self.top[:, None]
        self.others = torch.where(first, 0.0, self.probs)
        self.uncertainty = self.others.sum(1)
        self.probability = torch.where(first, self.probs, 0.0).sum(1)


def log_one_plus(x: Tensor) -> Tensor:
    """log(1 + x) without log1p, which ONNX lacks and would replace by an inaccurate log(1 + x)."""
    small = x * (1 - x * (1 / 2 - x * (1 / 3 - x / 4)))
    return torch.where(x.abs() < 0.01, small, (1 + x).clamp_min(TINY).log())


def _entropy(s: MeanSoftmax, z: Tensor) -> Tensor:
    return -(s.others * s.others.clamp_min(TINY).log()).sum(1) - s.probability * log_one_plus(-s.uncertainty)


def _generalized(s: MeanSoftmax, z: Tensor) -> Tensor:
    rest = s.others.topk(min(TOP, s.others.shape[1]) - 1, dim=1).values
    return ((rest * (1 - rest)) ** GAMMA).sum(1) + (s.probability * s.uncertainty) ** GAMMA


def _renyi(s: MeanSoftmax, z: Tensor) -> Tensor:
    return 2 * log_one_plus(s.others.sqrt().sum(1) - s.uncertainty / (1 + s.probability.sqrt()))


def _tsallis(s: MeanSoftmax, z: Tensor) -> Tensor:
    return s.uncertainty * (2 - s.uncertainty) - s.others.square().sum(1)


def _vacuity(s: MeanSoftmax, z: Tensor) -> Tensor:
    return _mean_of_draws(torch.sigmoid(math.log(z.shape[-1]) - torch.logsumexp(z, -1)))


def _pnorm(s: MeanSoftmax, z: Tensor) -> Tensor:
    z = z - z.mean(-1, keepdim=True)
    scale = z.abs().amax(-1)
    whole = torch.where(scale > 0, scale, 1.0)
    norm = ((z.abs() / whole[..., None]) ** P).sum(-1) ** (1 / P)
    return _mean_of_draws(torch.where(scale > 0, -z.amax(-1) / (norm.clamp_min(TINY) * whole), 0.0))


LOGIT_SCORES: dict[str, Callable[[MeanSoftmax, Tensor], Tensor]] = {
    "msp": lambda s, z: s.uncertainty,
    "entropy": _entropy,
    "energy": lambda s, z: -_energy(z),
    "max_logit": lambda s, z: -_mean_of_draws(z.amax(-1)),
    "gap": lambda s, z: s.uncertainty + s.others.amax(1),
    "gen": _generalized,
    "renyi": _renyi,
    "tsallis": _tsallis,
    "dempster_shafer": _vacuity,
    "pnorm": _pnorm,
}


def logit_score(measure: str, s: MeanSoftmax, logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Uncertainties u (b,) of logits divided by a temperature; `s` is their softmax."""
    return LOGIT_SCORES[measure](s, logits.float() / temperature)
