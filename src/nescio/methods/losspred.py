"""Losspred: a second head predicts the classifier's loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nescio.layers.uncertainty_head import UncertaintyHead
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, Output, first_batch, method
from nescio.metrics import spearman
from nescio.search import choice, hparam, uniform

WARM = 0.001  # predicted loss at the start of the paper's warmed-up trainings
ROWS = 1024  # number of training images in the evidence
RELATED = 0.3  # minimum rank correlation of predictions and losses


@dataclass(frozen=True)
class LossPredHParams(BaseHParams):
    """Search ranges of URL, appendix B.9."""

    weight: float = hparam(0.5, uniform(0.01, 0.99), "λ of the squared error of the predicted loss", above=0)
    warm: bool = hparam(False, choice(False, True), "start with predictions of 0.001, not of random weights")


@method("losspred", LossPredHParams)
class LossPred(Method[LossPredHParams]):
    """A classifier and, on the same embeddings, a head u of three hidden layers that predicts its loss (Yoo & Kweon
    2019; URL, eq. 8),

        ℓ(x, y) + λ·(u(x) − ℓ(x, y))²,   ℓ(x, y) = −log f(x)_y, detached in the square.

    The square trains the embeddings too. Score: "loss", u(x).
    """

    paper = "Yoo & Kweon, Learning loss for active learning, CVPR 2019"
    scores = ("loss",)

    def __init__(self, hparams: LossPredHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        self.uncertainty = self.predictor(self.features.num_features)

    def predictor(self, inputs: int) -> UncertaintyHead:
        """The head that predicts the loss."""
        return UncertaintyHead(inputs)

    def prepare(self, batches: Batches) -> None:
        if self.hparams.warm and self.uncertainty.scale == 1:  # a scale from initial weights stays
            self.uncertainty.start_at(WARM, self.features(first_batch(batches)[0]))

    def losses(self, embeddings: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of each row, (b,)."""
        return cross_entropy(self.head(embeddings).float(), y, reduction="none")

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        embeddings = self.features(x)
        losses = self.losses(embeddings, y)
        return losses.mean() + self.hparams.weight * (self.uncertainty(embeddings) - losses.detach()).square().mean()

    def forward(self, x: Tensor) -> Output:
        embeddings = self.features(x)
        return Output(self.head(embeddings)[:, None], embeddings, {"loss": self.uncertainty(embeddings)})

    def correlation(self, x: Tensor, y: Tensor) -> float:
        """Spearman's ρ of predicted and actual losses."""
        embeddings = self.features(x)
        predicted, losses = self.uncertainty(embeddings), self.losses(embeddings, y)
        return spearman(predicted.double().cpu().numpy(), losses.double().cpu().numpy())

    @torch.no_grad()
    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        rho = self.correlation(*first_batch(batches, ROWS))
        observed = f"rank correlation {rho:.2f} of predicted and actual losses on training images"
        return {"loss predicted": Evidence(observed, rho > RELATED)}
