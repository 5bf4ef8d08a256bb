"""MCInfoNCE: InfoNCE over samples of embeddings, which trains their concentration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nescio.distributions.vmf_sampling import sample
from nescio.layers.contrastive import info_nce, unit
from nescio.methods._probabilistic import Probabilistic, SamplingHParams
from nescio.methods._two_views import temperature_matters, view_evidence
from nescio.methods.base import Batches, Evidence, Method, SelfSupervised, first_batch, method
from nescio.search import hparam

WORLD = 256  # number of simulated pairs of views with known κ


@dataclass(frozen=True)
class MCInfoNCEHParams(SamplingHParams):
    # similar embeddings repel each other less for small κ, so κ must not decrease before they separate
    head: float = hparam(0.03, None, "multiplies the learning rate of the head for κ", above=0)
    adaptive: float = hparam(0.2, None, "additional factor for the optimizer adamw", introduced=1.0, above=0)
    average: Literal["losses", "likelihoods"] = hparam(
        "likelihoods", None, "averaged quantity: likelihoods, which identify κ, or losses, as printed in URL"
    )


@method("mc-infonce", MCInfoNCEHParams)
class MCInfoNCE(Probabilistic, SelfSupervised):
    """Two random crops of every image, each a distribution vMF(e, κ(e)); InfoNCE of one sample of every crop, averaged
    over 16 samples as likelihoods, −log 1/16·Σ_i exp(−loss_i) (Kirchhof et al. 2023). Score: "inverse_kappa", 1/κ.

    URL, eq. 2, prints the mean of losses. Its attraction is −t·A(κ₁)·A(κ₂)·e₁ᵀe₂: it never favours a small κ if
    views agree, so only the growth rates of κ rank images. Only likelihoods identify κ.
    """

    hparams: MCInfoNCEHParams

    paper = "Kirchhof et al., Probabilistic contrastive learning recovers the correct aleatoric uncertainty, ICML 2023"

    high = 4  # A_d(4d) ≈ 0.88

    def distribution_loss(self, mean: Tensor, kappa: Tensor, y: Tensor) -> Tensor:
        losses = info_nce(self.draw_samples(mean, kappa), self.hparams.t)  # (samples, b)
        if self.hparams.average == "losses":
            return losses.mean()
        return math.log(len(losses)) - (-losses).logsumexp(0).mean()

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        trained, untrained = (network.features(x.flatten(0, 1)).chunk(2) for network in (self, start))
        return {
            **view_evidence(trained, untrained),
            "temperature acts": temperature_matters(self, x, y, "t"),
            "κ differs": self.kappa_differs(self.embed(x.flatten(0, 1))[1]),
            "κ is identified": self.identified(y),
            **self.sampling_evidence(x),
        }

    def identified(self, y: Tensor) -> Evidence:
        """Check that the loss is lowest at the true κ, on simulated views. Latents of two views have a known
        similarity, and each view adds noise with its own κ, from d/4 to 8d."""
        d, generator = self.features.num_features, torch.Generator().manual_seed(0)
        latent = unit(torch.randn(WORLD, d, generator=generator).to(y.device))
        latents = torch.cat([latent, sample(latent, latent.new_full((WORLD,), self.hparams.t), 1)[0]])
        kappa = d * 4 ** (2.5 * torch.rand(2 * WORLD, generator=generator) - 1).to(latent)
        mean = sample(latents, kappa, 1)[0]
        loss = float(self.distribution_loss(mean, kappa, y))
        kappas = {"8κ": 8 * kappa, "κ/8": kappa / 8, "κ of other images": kappa.roll(1)}
        values = {name: float(self.distribution_loss(mean, wrong, y)) for name, wrong in kappas.items()}
        observed = ", ".join(f"with {name} {value:.3f}" for name, value in values.items())
        return Evidence(f"loss {loss:.3f} at the true κ of simulated views, {observed}", loss < min(values.values()))
