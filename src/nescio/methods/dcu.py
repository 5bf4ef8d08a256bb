"""DCU: contrastive pretraining, joint training with a classifier, then class Gaussians."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nescio.layers.contrastive import mlp, nt_xent
from nescio.methods._feature_density import FeatureDensity
from nescio.methods._two_views import temperature_matters, view_evidence
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, first_batch, method
from nescio.methods.evidence import gradient_of
from nescio.search import choice, hparam, log_uniform, uniform


@dataclass(frozen=True)
class DCUHParams(BaseHParams):
    weight: float = hparam(1.0, log_uniform(0.1, 10.0), "λ of the contrastive loss; larger values regularise", above=0)
    pretraining: float = hparam(
        0.5, uniform(0.2, 0.8), "share of the training that uses only the contrastive loss", above=0, below=1
    )
    temperature: float = hparam(0.5, log_uniform(0.1, 1.0), "temperature τ; lower: emphasis on near negatives", above=0)
    width: int = hparam(128, choice(64, 128, 256), "number of outputs of the projection", at_least=2)


@method("dcu", DCUHParams)
class DCU(FeatureDensity):
    """Deep contrastive uncertainty (Winkens et al. 2020): SimCLR's loss on two views of every image, first alone, then
    together with the classifier's, λ·NT-Xent(g(φ(x))) − log f(x)_y, so that the features distinguish
    single images; then a Gaussian for every class on the features of its training images. During pretraining the head
    is trained on detached features, so that joint training starts with a trained head.

    Scores: "density", −log Σ_c π_c N(φ(x); μ_c, Σ_c), and "entropy" of the softmax.
    """

    hparams: DCUHParams

    paper = "Winkens et al., Contrastive training for improved out-of-distribution detection, 2020"
    cuda_graph_safe = True
    strength_hparam = "weight"
    views = 2
    augment = "full"
    no_dense_reason = "it compares views of whole images"
    done: Tensor
    steps: Tensor

    def __init__(self, hparams: DCUHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        d = self.features.num_features
        self.projection = mlp(d, d, hparams.width)
        self.register_buffer("done", torch.zeros(()))  # completed share of the training steps
        self.register_buffer("steps", torch.zeros(2))  # number of steps in pretraining, and in joint training

    def after_step(self, done: float) -> None:
        self.steps[int(done > self.hparams.pretraining)] += 1
        self.done.fill_(done)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        embeddings = self.features(x.flatten(0, 1))
        contrast = nt_xent(self.projection(embeddings), self.hparams.temperature)
        joint = (self.done >= self.hparams.pretraining).to(embeddings)  # a branch would wait for the device
        logits = self.head(torch.lerp(embeddings.detach(), embeddings, joint))
        return self.hparams.weight * contrast + cross_entropy(logits, y.repeat(2))

    def project(self, x: Tensor) -> Tensor:
        """z of first views, then of their partners: (2, b, ch, h, w) to (2b, width)."""
        return self.projection(self.features(x.flatten(0, 1)))

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        trained, untrained = (network.project(x).chunk(2) for network in (self, start))
        n_alone, n_joint = self.steps.tolist()
        first, second = deepcopy(self), deepcopy(self)
        first.done.zero_()
        with torch.enable_grad():
            alone, joint = (gradient_of(network.loss(x, y), network.features) for network in (first, second))
        difference = float((joint - alone).norm() / joint.norm())
        phases = (
            f"{n_alone:.0f} steps of pretraining, {n_joint:.0f} joint ones, whose gradients differ by {difference:.1%}"
        )
        return {
            **view_evidence(trained, untrained),
            "temperature acts": temperature_matters(self, x, y),
            "two phases": Evidence(phases, min(n_alone, n_joint) > 0 and difference > 1e-3),
            "Gaussians of classes": self.own_gaussians(x[0], y),
            "density away from the data": self.density_rises(x[0], start),
        }
