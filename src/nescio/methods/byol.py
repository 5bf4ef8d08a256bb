"""BYOL: predict a momentum copy's projection of the other view."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nescio.layers.contrastive import follow, mlp, momentum_copy, unit
from nescio.methods._two_views import distance, momentum_copy_lags, no_gradient, not_collapsed, views_found
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, SelfSupervised, first_batch, method
from nescio.search import choice, hparam


@dataclass(frozen=True)
class BYOLHParams(BaseHParams):
    momentum: float = hparam(0.99, choice(0.98, 0.99, 0.996), "τ, momentum of the target network", above=0, below=1)
    schedule: Literal["cosine", "constant"] = hparam("cosine", None, "schedule of τ; cosine raises it to 1")
    hidden: int = hparam(1024, choice(512, 1024, 4096), "hidden units of projection and predictor", at_least=1)
    width: int = hparam(256, None, "outputs of projection and predictor", at_least=2)


@method("byol", BYOLHParams)
class BYOL(SelfSupervised[BYOLHParams]):
    """An online network θ (backbone φ, projection g, predictor q) is trained to predict from one view the output of a
    target network ξ (φ, g) for the other view, in both directions and without negatives (Grill et al. 2020, eq. 2)

        L = ‖q̄(z_θ) − z̄′_ξ‖² + the same with the views exchanged,   v̄ = v/‖v‖,  ‖ū − v̄‖² = 2 − 2·cos(u, v)

    No gradient reaches the target; after every step ξ ← τξ + (1 − τ)θ, with τ rising from its base to 1 as
    1 − (1 − τ_base)·(cos(πk/K) + 1)/2 (eq. 1 and §3.2). Projection and predictor are two layers with batch-norm between
    them. The two views of a batch go through each network together, so batch-norm sees both.
    """

    paper = "Grill et al., Bootstrap your own latent: A new approach to self-supervised learning, NeurIPS 2020"

    def __init__(self, hparams: BYOLHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        self.projection = mlp(self.features.num_features, hparams.hidden, hparams.width)
        self.predictor = mlp(hparams.width, hparams.hidden, hparams.width)
        self.target = momentum_copy(self.online)

    @property
    def online(self) -> nn.Sequential:
        """The network whose moving average is the target."""
        return nn.Sequential(self.features, self.projection)

    def aim(self, x: Tensor) -> Tensor:
        """Outputs of the target network for each view."""
        with torch.no_grad():
            return self.target(x)  # type: ignore[no-any-return]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        views = x.flatten(0, 1)
        predicted, aims = self.predictor(self.online(views)), self.aim(views)
        cosines = (unit(predicted) * unit(aims.roll(len(aims) // 2, 0))).sum(1)  # with the target of the other view
        return 2 * (2 - 2 * cosines).mean()  # twice the mean over both views: the sum of both directions

    def after_step(self, done: float) -> None:
        follow(self.target, self.online, self.momentum_at(done))

    def momentum_at(self, done: float) -> float:
        base: float = self.hparams.momentum
        if self.hparams.schedule == "constant":
            return base
        return 1 - (1 - base) * (math.cos(math.pi * done) + 1) / 2

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        z, initial_z = (network.online(x.flatten(0, 1)) for network in (self, start))  # type: ignore[operator, union-attr]
        rotation = 1 - float((unit(self.predictor(z)) * unit(z)).sum(1).mean())
        relative_change = distance(self.predictor, start.predictor)  # type: ignore[arg-type]
        observed = f"it changed by {relative_change:.1%} of its norm and turns projections by 1 − cos = {rotation:.2f}"
        return {
            "views found": views_found(z.chunk(2), initial_z.chunk(2)),
            "not collapsed": not_collapsed(z),
            "target lags": momentum_copy_lags(self.target, self.online, start.target),  # type: ignore[arg-type]
            "target learns nothing": no_gradient(self, self.target, x, y),
            "predictor used": Evidence(observed, relative_change > 0.01 and rotation > 0.01),
        }
