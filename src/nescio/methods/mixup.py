"""Mixup: learn between the examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nescio.config import hparam, uniform
from nescio.methods.base import Batches, Evidence, Learning, Method, Output, Setting, first_batch, method


@dataclass(frozen=True)
class MixupRecipe(Learning):
    alpha: float = hparam(0.3, uniform(0.1, 1.0), "of Beta(α, α), from which the mixing share λ is drawn")
    kept: int = hparam(16, None, "training examples kept for the native score")

    def check(self) -> None:
        super().check()
        self.need(0, "alpha", above=True)
        self.need(1, "kept")


@method("mixup", MixupRecipe)
class Mixup(Method):
    """Learns from λx_i + (1−λ)x_j with label λy_i + (1−λ)y_j, λ ~ Beta(α, α) (Zhang et al. 2018; UIMNET §3).

    Native score (UIMNET §4): how much an image breaks the Mixup criterion against kept examples (x̄_k, ȳ_k),
    (1/K) Σ_k ‖λ f(x) + (1−λ) ȳ_k − f(λx + (1−λ)x̄_k)‖², with one λ_k ~ Beta(α, α) fixed for each of them.
    """

    paper = "Zhang et al., mixup: Beyond empirical risk minimization, ICLR 2018"
    kept_x: Tensor
    kept_y: Tensor
    kept_share: Tensor

    def __init__(self, recipe: Any, setting: Setting) -> None:
        super().__init__(recipe, setting)
        shape = (recipe.kept, setting.channels, setting.size, setting.size)
        self.register_buffer("kept_x", torch.zeros(shape))
        self.register_buffer("kept_y", torch.zeros(recipe.kept, setting.classes))
        self.register_buffer("kept_share", torch.zeros(recipe.kept))

    def prepare(self, batches: Batches) -> None:
        x, y = first_batch(batches, self.recipe.kept)
        self.kept_x.copy_(x)
        self.kept_y.copy_(nn.functional.one_hot(y, self.setting.classes))
        self.kept_share.copy_(self.shares(len(x), x.device))

    def shares(self, count: int, device: torch.device) -> Tensor:
        alpha = torch.full((count,), self.recipe.alpha)
        return torch.distributions.Beta(alpha, alpha).sample().to(device)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        share = self.shares(1, x.device)[0]
        other = torch.randperm(len(x), device=x.device)
        logits = self.head(self.features(share * x + (1 - share) * x[other]))
        cross_entropy = nn.functional.cross_entropy
        return share * cross_entropy(logits, y) + (1 - share) * cross_entropy(logits, y[other])

    def forward(self, x: Tensor) -> Output:
        said = super().forward(x)
        assert said.logits is not None
        if not torch.is_grad_enabled():  # probes differentiate the answer and do not want this score
            said.scores["native"] = self.violation(x, self.probs(said.logits))
        return said

    def violation(self, x: Tensor, own: Tensor) -> Tensor:
        total = torch.zeros(len(x), device=x.device)
        for share, example, label in zip(self.kept_share, self.kept_x, self.kept_y, strict=True):
            mixed = self.probs(self.head(self.features(share * x + (1 - share) * example))[:, None])
            total += (share * own + (1 - share) * label - mixed).square().sum(1)
        return total / len(self.kept_x)

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        half = torch.flip(x, [0])
        other = torch.flip(y, [0])
        mixed = self.probs(self.head(self.features(0.5 * x + 0.5 * half))[:, None])
        rows = torch.arange(len(x), device=x.device)
        both = torch.minimum(mixed[rows, y], mixed[rows, other])[y != other].mean()
        inside = ((self.kept_share > 0.01) & (self.kept_share < 0.99)).float().mean()
        return {
            "shares drawn": Evidence(f"{inside:.0%} of λ lie strictly between the examples", bool(inside > 0.3)),
            "between": Evidence(f"half of each of two classes: both get p ≥ {both:.2f} on average", bool(both > 0.15)),
        }
