"""Mixup: training on convex combinations of examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nescio.errors import BadInput
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, Output, first_batch, method
from nescio.search import hparam, uniform


@dataclass(frozen=True)
class MixupHParams(BaseHParams):
    alpha: float = hparam(0.3, uniform(0.1, 1.0), "α of Beta(α, α), the distribution of the mixing weight λ", above=0)
    kept: int = hparam(16, None, "training examples kept for the native score", at_least=1)


@method("mixup", MixupHParams)
class Mixup(Method[MixupHParams]):
    """Training on λx_i + (1−λ)x_j with label λy_i + (1−λ)y_j, λ ~ Beta(α, α) (Zhang et al. 2018; UIMNET §3).

    Native score (UIMNET §4): violation of the Mixup criterion against stored examples (x̄_k, ȳ_k),
    (1/K) Σ_k ‖λ f(x) + (1−λ) ȳ_k − f(λx + (1−λ)x̄_k)‖², with one λ_k ~ Beta(α, α) fixed for each of them.
    """

    paper = "Zhang et al., mixup: Beyond empirical risk minimization, ICLR 2018"
    no_dense_reason = "it mixes whole images and their labels"
    kept_x: Tensor
    kept_y: Tensor
    kept_share: Tensor
    drawn: Tensor

    def __init__(self, hparams: MixupHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        shape = (hparams.kept, spec.channels, *spec.shape)
        self.register_buffer("kept_x", torch.zeros(shape))
        self.register_buffer("kept_y", torch.zeros(hparams.kept, spec.classes))
        self.register_buffer("kept_share", torch.zeros(hparams.kept))
        self.register_buffer("drawn", torch.zeros(2))  # number of steps, and of steps with 0.01 < λ < 0.99

    def prepare(self, batches: Batches) -> None:
        x, y = first_batch(batches, self.hparams.kept)
        if len(x) < self.hparams.kept:
            raise BadInput(f"There are {len(x)} training rows, fewer than kept = {self.hparams.kept}.")
        self.kept_x.copy_(x)
        self.kept_y.copy_(nn.functional.one_hot(y, self.spec.classes))
        self.kept_share.copy_(self.shares(len(x)))

    def shares(self, count: int) -> Tensor:
        alpha = torch.full((count,), self.hparams.alpha)
        return torch.distributions.Beta(alpha, alpha).sample()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        share = float(self.shares(1)[0])
        self.drawn += torch.tensor([1.0, float(0.01 < share < 0.99)]).to(x.device, non_blocking=True)
        partner = torch.randperm(len(x), device=x.device)
        logits = self.head(self.features(share * x + (1 - share) * x[partner]))
        cross_entropy = nn.functional.cross_entropy
        return share * cross_entropy(logits, y) + (1 - share) * cross_entropy(logits, y[partner])

    def forward(self, x: Tensor) -> Output:
        output = super().forward(x)
        assert output.logits is not None
        if not torch.is_grad_enabled():  # probes differentiate the prediction and do not need this score
            output.scores["native"] = self.violation(x, self.probs(output.logits))
        return output

    def violation(self, x: Tensor, true_class: Tensor) -> Tensor:
        total = torch.zeros(len(x), device=x.device)
        for share, example, label in zip(self.kept_share, self.kept_x, self.kept_y, strict=True):
            mixed = self.probs(self.head(self.features(share * x + (1 - share) * example))[:, None])
            total += (share * true_class + (1 - share) * label - mixed).square().sum(1)
        return total / len(self.kept_x)

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        rows = y != y.flip(0)
        mixed = self.probs(self.head(self.features(0.5 * x + 0.5 * x.flip(0)))[:, None])
        labels = nn.functional.one_hot(y, self.spec.classes).float()
        violation = float((0.5 * labels + 0.5 * labels.flip(0) - mixed)[rows].square().sum(1).mean())
        steps, n_mixed = self.drawn.tolist()
        interpolation = f"‖(y_i + y_j)/2 − f((x_i + x_j)/2)‖² = {violation:.2f}; a one-hot prediction would give 0.50"
        mixing = f"λ was not almost 0 or 1 in {n_mixed:.0f} of {steps:.0f} steps"
        return {
            "shares drawn": Evidence(mixing, n_mixed > 0.1 * steps),
            "learnt between the examples": Evidence(interpolation, violation < 0.27),
        }
