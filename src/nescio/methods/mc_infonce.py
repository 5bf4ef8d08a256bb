"""MCInfoNCE: InfoNCE of samples, so that the spread of an embedding is learnt."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from nescio.layers.contrastive import info_nce
from nescio.methods._probabilistic import Probabilistic, SamplingRecipe
from nescio.methods._two_views import not_collapsed, temperature_acts, views_found
from nescio.methods.base import Batches, Evidence, Method, SelfSupervised, first_batch, method


@dataclass(frozen=True)
class MCInfoNCERecipe(SamplingRecipe):
    pass


@method("mc-infonce", MCInfoNCERecipe)
class MCInfoNCE(Probabilistic, SelfSupervised):
    """Two random crops of every image, each a distribution vMF(e, κ(e)); InfoNCE of one sample of every crop, averaged over
    16 samples (Kirchhof et al. 2023; URL, eq. 2). The average is of losses, not a log-mean-exp of likelihoods, which
    would be another loss for every number of samples. Score: "inverse_kappa", 1/κ.
    """

    paper = "Kirchhof et al., Probabilistic contrastive learning recovers the correct aleatoric uncertainty, ICML 2023"

    def compared(self, mean: Tensor, kappa: Tensor, y: Tensor) -> Tensor:
        return info_nce(self.sampled(mean, kappa), self.recipe.t)

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
