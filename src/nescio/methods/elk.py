"""ELK: images and classes as distributions, compared by the expected likelihood kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nescio.distributions.von_mises_fisher import expected_likelihood
from nescio.layers.contrastive import unit
from nescio.methods._probabilistic import Probabilistic, ProbabilisticHParams
from nescio.methods._two_views import temperature_matters
from nescio.methods.base import Batches, Evidence, Method, NetworkSpec, Output, first_batch, method
from nescio.search import hparam, uniform


@dataclass(frozen=True)
class ELKHParams(ProbabilisticHParams):
    # For κ ≫ t·k_c logits differ by t·k_c·A_d(κ) times the difference of cosines. If t is too small, a larger κ lowers
    # every loss. With 100 classes, κ ended near 1e6 for t = 16 and near its start for 64. On digits, κ is lower for
    # blurred images for t = 48, but not always for 64.
    t: float = hparam(
        48.0, uniform(8.0, 64.0), "factor on the classes' concentrations, an inverse temperature", above=0
    )


@method("elk", ELKHParams)
class ELK(Probabilistic):
    """Expected likelihood kernel (Kirchhof et al. 2022; Shi & Jain 2019): an image is ζ = vMF(e, κ(e)), a class
    ρ_c = vMF(μ_c, t·k_c) with μ_c and k_c > 0 trained; the loss is the cross-entropy of elk_sim(ζ, ρ_c) (URL, eq. 3),

        elk_sim = log ∫ζρ_c = log C_d(κ) + log C_d(κ_c) − log C_d(‖κe + κ_cμ_c‖),

    which are its logits, one draw. Score: "inverse_kappa", 1/κ.
    """

    hparams: ELKHParams

    paper = "Kirchhof et al., A non-isotropic probabilistic take on proxy-based deep metric learning, ECCV 2022"

    def __init__(self, hparams: ELKHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        del self.head  # classes are distributions
        self.proxies = nn.Parameter(torch.randn(spec.classes, self.features.num_features))
        self.log_k = nn.Parameter(torch.zeros(self.concentrations()))

    def concentrations(self) -> tuple[int, ...]:
        """The shape of the tensor of the classes' concentrations."""
        return (self.spec.classes,)

    def similarities(self, mean: Tensor, kappa: Tensor) -> Tensor:
        """(b, c)"""
        return expected_likelihood(mean, kappa, unit(self.proxies), self.hparams.t * self.log_k.exp())  # type: ignore[no-any-return]

    def distribution_loss(self, mean: Tensor, kappa: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(mean.device.type, enabled=False):
            return cross_entropy(self.similarities(mean, kappa), y)

    def forward(self, x: Tensor) -> Output:
        embeddings = self.features(x)
        u = self.uncertainty(embeddings)
        with torch.autocast(x.device.type, enabled=False):
            logits = self.similarities(unit(embeddings), 1 / u)
        return Output(logits[:, None], embeddings, {"inverse_kappa": u})

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        movement = float((self.log_k - start.log_k).abs().max())  # type: ignore[operator]
        return {
            "classes' concentrations learnt": Evidence(f"log k moved by up to {movement:.2g}", movement > 1e-3),
            "temperature acts": temperature_matters(self, x, y, "t"),
            **self.kappa_evidence(x, y),
        }
