"""MCInfoNCE: InfoNCE of samples, so that the spread of an embedding is learnt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from nescio.layers.contrastive import info_nce
from nescio.methods._probabilistic import Probabilistic, SamplingRecipe
from nescio.methods._two_views import not_collapsed, temperature_acts, views_found
from nescio.methods.base import Batches, Evidence, Method, SelfSupervised, first_batch, method
from nescio.search import hparam


@dataclass(frozen=True)
class MCInfoNCERecipe(SamplingRecipe):
    # embeddings that are still alike repel each other less when κ falls: it must not fall before they part
    head: float = hparam(0.03, None, "multiplies the learning rate of the head for κ")
    average: Literal["losses", "likelihoods"] = hparam(
        "losses",
        None,
        "over samples: of losses as in URL, or of likelihoods, which identifies κ",
    )


@method("mc-infonce", MCInfoNCERecipe)
class MCInfoNCE(Probabilistic, SelfSupervised):
    """Two random crops of every image, each a distribution vMF(e, κ(e)); InfoNCE of one sample of every crop, averaged
    over 16 samples (Kirchhof et al. 2023; URL, eq. 2). Score: "inverse_kappa", 1/κ.

    The mean of losses attracts by −t·A(κ₁)·A(κ₂)·e₁ᵀe₂: it never asks for a small κ where views agree at all, and how
    κ ranks images is left to how fast it grows. The mean of likelihoods, −log 1/16·Σ_i exp(−loss_i), is that of the
    first paper: there κ is identified.
    """

    paper = "Kirchhof et al., Probabilistic contrastive learning recovers the correct aleatoric uncertainty, ICML 2023"

    high = 4  # A_d(4d) ≈ 0.88

    def compared(self, mean: Tensor, kappa: Tensor, y: Tensor) -> Tensor:
        losses = info_nce(self.sampled(mean, kappa), self.recipe.t)  # (samples, b)
        if self.recipe.average == "losses":
            return losses.mean()
        return math.log(len(losses)) - (-losses).logsumexp(0).mean()

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        now, then = (each.features(x.flatten(0, 1)).chunk(2) for each in (self, start))
        return {
            "views found": views_found(now, then),
            "not collapsed": not_collapsed(now[0]),
            "temperature acts": temperature_acts(self, x, y, "t"),
            **self.kappa_evidence(x, y),
            **self.sampling_evidence(x),
        }
