"""InfoNCE: pull the two views of an image together and push other images away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from nescio.layers.contrastive import info_nce, unit
from nescio.methods._two_views import temperature_matters, view_evidence
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, Output, SelfSupervised, first_batch, method
from nescio.search import hparam, uniform


@dataclass(frozen=True)
class InfoNCEHParams(BaseHParams):
    t: float = hparam(16.0, uniform(8.0, 64.0), "inverse temperature", above=0)
    denominator: Literal["negatives", "all"] = hparam(
        "negatives", None, "rows in the sums: other images only, or also the other view (NT-Xent)"
    )


@method("infonce", InfoNCEHParams)
class InfoNCE(SelfSupervised[InfoNCEHParams]):
    """Two random crops of every image; for their unit-length embeddings e₁ and e₂, the loss is

        −t·e₁ᵀe₂ + log Σ_{e⁻} exp(t·e₁ᵀe⁻) + log Σ_{e⁻} exp(t·e₂ᵀe⁻),   e⁻ the views of other images

    (van den Oord et al. 2018, in the form of URL, eq. 1). There is no projection head. Score: "norm",
    −‖e‖ of the raw embedding, a heuristic that no loss trains.
    """

    paper = "van den Oord et al., Representation learning with contrastive predictive coding, 2018"
    scores = ("norm",)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = unit(self.features(x.flatten(0, 1)))
        return info_nce(z, self.hparams.t, self.hparams.denominator == "all").mean()

    def forward(self, x: Tensor) -> Output:
        embeddings = self.features(x)
        return Output(embeddings=embeddings, scores={"norm": -embeddings.float().norm(dim=1)})

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        trained, untrained = (network.features(x.flatten(0, 1)).chunk(2) for network in (self, start))
        return {
            **view_evidence(trained, untrained),
            "temperature acts": temperature_matters(self, x, y, "t"),
        }
