"""MC-dropout: the same question to many thinned networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nescio.config import hparam, uniform
from nescio.methods.base import Batches, Evidence, Learning, Method, Output, Setting, first_batch, method

ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Hardswish)


@dataclass(frozen=True)
class MCDropoutRecipe(Learning):
    drop: float = hparam(0.1, uniform(0.05, 0.25), "share of units that every pass leaves out")
    passes: int = hparam(10, None, "K, passes at test time")


@method("mc-dropout", MCDropoutRecipe)
class MCDropout(Method):
    """ERM with dropout after every activation and before the head, left on at test time: K passes are K draws
    (Gal & Ghahramani 2016; UIMNET §3). Batch-norm stays in evaluation mode. Embeddings are the mean over passes.

    Native score (UIMNET §4): the Jensen–Shannon divergence of the passes, H(mean p) − mean H(p).
    """

    paper = "Gal & Ghahramani, Dropout as a Bayesian approximation, ICML 2016"

    def __init__(self, recipe: Any, setting: Setting) -> None:
        super().__init__(recipe, setting)
        self.dropouts: list[nn.Dropout] = []
        for parent in list(self.features.modules()):  # the network exists: a constructor's dropout option may do nothing
            for name, child in list(parent.named_children()):
                if isinstance(child, ACTIVATIONS):
                    setattr(parent, name, nn.Sequential(child, self.dropout()))
        self.before_head = self.dropout()

    def dropout(self) -> nn.Dropout:
        self.dropouts.append(nn.Dropout(self.recipe.drop))
        return self.dropouts[-1]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.before_head(self.features(x))), y)

    def forward(self, x: Tensor) -> Output:
        for each in self.dropouts:
            each.train()
        embeddings = [self.features(x) for _ in range(self.recipe.passes)]
        logits = torch.stack([self.head(self.before_head(each)) for each in embeddings], 1)
        for each in self.dropouts:
            each.train(self.training)
        p = torch.softmax(logits.float() / self.temperature, -1)
        native = entropy(p.mean(1)) - entropy(p).mean(1)
        return Output(logits, torch.stack(embeddings).mean(0), {"native": native.clamp_min(0)})

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, _ = first_batch(batches)
        logits = self(x).logits
        assert logits is not None
        spread = float(torch.softmax(logits, -1).std(1).max())
        dropped = self.before_head.train()(torch.ones(10_000)).eq(0).float().mean()
        return {
            "draws differ": Evidence(f"p moves by up to {spread:.3f} between passes", spread > 1e-4),
            "masks drawn": Evidence(f"{len(self.dropouts)} layers leave out {dropped:.1%} of units", bool(dropped > 0)),
        }


def entropy(p: Tensor) -> Tensor:
    """−Σ p log p along the last axis, in nats."""
    return torch.special.entr(p).sum(-1)
