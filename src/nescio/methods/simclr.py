"""SimCLR: match the other view of the same image."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from nescio.layers.contrastive import mlp, nt_xent
from nescio.methods._two_views import temperature_matters, view_evidence
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, SelfSupervised, first_batch, method
from nescio.search import choice, hparam, log_uniform


@dataclass(frozen=True)
class SimCLRHParams(BaseHParams):
    temperature: float = hparam(0.5, log_uniform(0.1, 1.0), "temperature τ; lower emphasises near negatives", above=0)
    width: int = hparam(128, choice(64, 128, 256), "outputs of the projection", at_least=2)


@method("simclr", SimCLRHParams)
class SimCLR(SelfSupervised[SimCLRHParams]):
    """Two views of every image of a batch go through the backbone φ and a projection g of two layers; each view must
    match its partner among the 2b − 1 others by the normalised temperature-scaled cross-entropy (NT-Xent)

        ℓ_i = −log [ exp(cos(z_i, z_i′)/τ) / Σ_{k≠i} exp(cos(z_i, z_k)/τ) ],   z = g(φ(x))

    (Chen et al. 2020, §2.1 and eq. 1; τ = 0.5 is theirs for images of CIFAR's size). The negatives are the rows that
    go through the network together: a batch split into micro-batches (`accumulate`, or several processes) has fewer of
    them.
    """

    paper = "Chen et al., A simple framework for contrastive learning of visual representations, ICML 2020"

    def __init__(self, hparams: SimCLRHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        d = self.features.num_features
        self.projection = mlp(d, d, hparams.width)

    def project(self, x: Tensor) -> Tensor:
        """z of first views, then of their partners: (2, b, ch, h, w) to (2b, width)."""
        return self.projection(self.features(x.flatten(0, 1)))  # type: ignore[no-any-return]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nt_xent(self.project(x), self.hparams.temperature)

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        trained, untrained = (network.project(x).chunk(2) for network in (self, start))  # type: ignore[operator, union-attr]
        return {
            **view_evidence(trained, untrained),
            "temperature acts": temperature_matters(self, x, y),
        }
