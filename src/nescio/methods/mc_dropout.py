"""MC-dropout: predictions of one network under many dropout masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nescio.layers.entropies import of_draws
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, Output, first_batch, method
from nescio.search import choice, hparam, uniform

ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.Hardswish, nn.Mish, nn.Tanh)


@dataclass(frozen=True)
class MCDropoutHParams(BaseHParams):
    dropout: float = hparam(0.1, uniform(0.05, 0.25), "dropout rate", in_keys="drop", above=0, below=1)
    position: Literal["head", "activations"] = hparam(
        "head",
        choice("head", "activations"),
        "position of dropout: before the head only, or also after every activation",
        in_keys="place",
    )
    mc_samples: int = hparam(10, None, "K, number of MC-dropout samples", in_keys="passes", at_least=2)


@method("mc-dropout", MCDropoutHParams)
class MCDropout(Method[MCDropoutHParams]):
    """ERM with dropout before the head, or also after every activation, that is active at test time: K passes are K
    draws (Gal & Ghahramani 2016; UIMNET §3). Batch-norm stays in evaluation mode. Embeddings are the mean over passes.

    The default position is that of timm's dropout, with the rates of URL §B.11. After all activations of a ResNet-18
    the same rate drops many more units.

    Scores: "jsd" (UIMNET §4), the Jensen–Shannon divergence of the passes, H(mean p) − mean H(p), which is the mutual
    information of prediction and mask; and "entropy" of the mean (URL §4.1 uses both).
    """

    paper = "Gal & Ghahramani, Dropout as a Bayesian approximation, ICML 2016"
    cuda_graph_safe = True
    scores = ("jsd", "entropy")

    def __init__(self, hparams: MCDropoutHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        self.dropouts: list[nn.Dropout] = []
        if hparams.position == "activations":
            self.thin_activations()
        self.before_head = self.dropout()

    def thin_activations(self) -> None:
        """Insert dropout after every activation of the built network, because a constructor's option may have no
        effect."""
        for parent in list(self.features.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, ACTIVATIONS) or type(child).__module__.startswith("timm.layers.activations"):
                    setattr(parent, name, nn.Sequential(child, self.dropout()))

    def dropout(self) -> nn.Dropout:
        self.dropouts.append(nn.Dropout(self.hparams.dropout))
        return self.dropouts[-1]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.before_head(self.features(x))), y)

    def forward(self, x: Tensor) -> Output:
        for layer in self.dropouts:
            layer.train()
        passes = self.hparams.mc_samples
        n_feature_passes = passes if self.hparams.position == "activations" else 1  # else passes share features
        embeddings = torch.stack([self.features(x) for _ in range(n_feature_passes)])
        logits = self.head(self.before_head(embeddings.expand(passes, -1, -1))).transpose(0, 1)
        for layer in self.dropouts:
            layer.train(self.training)
        return Output(logits, embeddings.mean(0), of_draws(logits / self.temperature))

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, _ = first_batch(batches)
        shares: dict[nn.Module, float] = {}  # layer → share of active units dropped in its last pass

        def count(layer: nn.Module, inputs: tuple[Tensor], outputs: Tensor) -> None:
            active = inputs[0] != 0
            shares[layer] = float((active & (outputs == 0)).sum() / active.sum().clamp_min(1))

        hooks = [layer.register_forward_hook(count) for layer in self.dropouts]
        self(x)
        for hook in hooks:
            hook.remove()
        lowest = min((shares.get(layer, 0.0) for layer in self.dropouts), default=0.0)
        n_active = sum(share > 0 for share in shares.values())
        observed = f"{n_active} of {len(self.dropouts)} layers drop at least {lowest:.1%} of their units"
        return {
            "masks drawn": Evidence(
                f"{observed} (rate {self.hparams.dropout:.1%})", lowest > 0.5 * self.hparams.dropout > 0
            )
        }
