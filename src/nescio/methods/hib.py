"""HIB: the probability that samples of two images match."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from nescio.methods._probabilistic import Probabilistic, SamplingHParams
from nescio.methods._two_views import not_collapsed, temperature_matters
from nescio.methods.base import Batches, Evidence, Method, first_batch, method
from nescio.search import hparam, uniform


@dataclass(frozen=True)
class HIBHParams(SamplingHParams):
    b: float = hparam(-4.0, uniform(-8.0, 8.0), "b, added to t times the cosine of two samples")
    repulsion: Literal["log p", "log 1-p"] = hparam(
        "log p", None, "loss of pairs with different labels: log p as in URL, or −log(1 − p) as in the original paper"
    )


@method("hib", HIBHParams)
class HIB(Probabilistic):
    """Hedged instance embeddings (Oh et al. 2019) on the sphere: two images match with probability p_nm = 1/16·Σ_i
    sigmoid(t·s_{n,i}ᵀs_{m,i} + b),   s_{n,i} ~ vMF(e_n, κ(e_n)),

    high for pairs of one label and low for others: −mean log p over the former + mean log p over the latter (URL,
    eq. 5, whose sum lacks the 1/16; no prior). No logits. Score: "inverse_kappa", 1/κ.
    """

    hparams: HIBHParams

    classifies = False
    augment = "full"
    paper = "Oh et al., Modeling uncertainty with hedged instance embeddings, ICLR 2019"

    def distribution_loss(self, mean: Tensor, kappa: Tensor, y: Tensor) -> Tensor:
        samples = self.draw_samples(mean, kappa)
        with torch.autocast(mean.device.type, enabled=False):
            scores = self.hparams.t * (samples @ samples.mT) + self.hparams.b  # (samples, b, b)
            log_p = log_mean(logsigmoid(scores))
            negative_loss = log_p if self.hparams.repulsion == "log p" else -log_mean(logsigmoid(-scores))
        same_label = y[:, None] == y
        return mean_where(negative_loss, ~same_label) - mean_where(log_p, same_label.fill_diagonal_(False))

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        return {
            "not collapsed": not_collapsed(self.features(x)),
            "temperature acts": temperature_matters(self, x, y, "t"),
            **self.kappa_evidence(x, y),
            **self.sampling_evidence(x),
        }


def log_mean(logs: Tensor) -> Tensor:
    """Log of the mean over samples, (s, …) to (…)."""
    return logs.logsumexp(0) - math.log(len(logs))


def mean_where(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values in the mask; 0 for an empty mask."""
    return (values * mask).sum() / mask.sum().clamp_min(1)
