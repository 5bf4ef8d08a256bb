"""Losspred-order: a head trained on frozen features to rank images by their loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from nescio.layers.uncertainty_head import UncertaintyHead
from nescio.methods.base import BaseHParams, Batches, method
from nescio.methods.losspred import LossPred
from nescio.search import hparam


@dataclass(frozen=True)
class LossPredOrderHParams(BaseHParams):
    """Hyper-parameters with the authors' values, which were not searched."""

    margin: float = hparam(0.1, None, "margin between the predictions of two images", above=0)
    width: int = hparam(512, None, "units per hidden layer of the loss head", at_least=1)
    depth: int = hparam(2, None, "number of hidden layers of the loss head", at_least=1)
    cached: int = hparam(4, None, "augmented epochs whose features are computed once and cycled through", at_least=1)


@method("losspred-order", LossPredOrderHParams)
class LossPredOrder(LossPred):
    """Pretrained visual uncertainties (Kirchhof et al. 2024): a head u on detached features is trained to rank
    the classifier's losses ℓ. Successive rows of a batch form pairs, and each pair costs

        max(0, m − s·(u₁ − u₂)),   s = 1 if ℓ₁ > ℓ₂ else −1.

    A trial that starts from trained weights freezes backbone and classifier: the features of `cached` augmented epochs
    are computed once and stored, and training the head on them takes minutes. If the initial
    weights have no classifier for these classes, it is trained too, by cross-entropy. From random weights the whole
    network is trained by cross-entropy, without a gradient from the head. Score: "loss", u(x); only its order is
    meaningful.
    """

    hparams: LossPredOrderHParams  # type: ignore[assignment]

    paper = "Kirchhof et al., Pretrained visual uncertainties, 2024"
    no_dense_reason = "it is trained on features of whole images that are computed once"

    def predictor(self, inputs: int) -> UncertaintyHead:
        return UncertaintyHead(inputs, self.hparams.width, self.hparams.depth)

    def prepare(self, batches: Batches) -> None:
        """Do nothing: initial predictions are those of random weights."""

    def on_start(self, new: list[str]) -> None:
        self.frozen_epochs = self.hparams.cached
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name in new or name.startswith("uncertainty."))

    def train(self, mode: bool = True) -> LossPredOrder:
        super().train(mode)
        self.features.train(mode and not self.frozen_epochs)  # frozen layers do not update batch-norm statistics
        return self

    def ordered(self, predicted: Tensor, losses: Tensor) -> Tensor:
        """The mean cost of pairs (0, 1), (2, 3) …"""
        pairs = slice(0, len(losses) // 2 * 2)
        first_of_pair, second_of_pair = predicted[pairs].view(-1, 2).unbind(1)
        sign = (losses[pairs].view(-1, 2).diff(dim=1)[:, 0] < 0).to(predicted) * 2 - 1
        return (self.hparams.margin - sign * (first_of_pair - second_of_pair)).clamp_min(0).mean()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        embeddings = x if self.frozen_epochs else self.features(x)
        losses = self.losses(embeddings, y)
        ordered = self.ordered(self.uncertainty(embeddings.detach()), losses.detach())
        return ordered + losses.mean() if self.head.weight.requires_grad else ordered
