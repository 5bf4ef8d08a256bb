"""Heads: an ensemble of classifiers on one backbone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import nll_loss

from nescio.layers.entropies import of_draws
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, Output, first_batch, method
from nescio.search import hparam


@dataclass(frozen=True)
class HeadsHParams(BaseHParams):
    heads: int = hparam(10, None, "M, number of classifiers on one backbone", at_least=2)


@method("heads", HeadsHParams)
class ManyHeads(Method[HeadsHParams]):
    """M linear classifiers on the features of one backbone; the loss is the cross-entropy of their mean probability,
    −log (1/M) Σ_m f_m(x)_y (Lee et al. 2015; URL §B.10, where it is named Ensemble). The heads' predictions are M
    draws. For separate networks train a deep ensemble (`nescio train --ensemble-size 10`).

    Scores: "entropy" of the mean, and "jsd", the Jensen–Shannon divergence of the heads, H(mean f) − mean H(f).
    """

    paper = "Lee et al., Why M heads are better than one: training a diverse ensemble of deep networks, 2015"
    scores = ("entropy", "jsd")

    def __init__(self, hparams: HeadsHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        self.head = nn.Linear(self.features.num_features, spec.classes * hparams.heads)

    def logits(self, embeddings: Tensor) -> Tensor:
        """(b, d) to (b, M, c)."""
        return self.head(embeddings).float().unflatten(1, (self.hparams.heads, self.spec.classes))  # type: ignore[no-any-return]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        log_p = self.logits(self.features(x)).log_softmax(2)
        return nll_loss(log_p.logsumexp(1) - math.log(self.hparams.heads), y)

    def forward(self, x: Tensor) -> Output:
        embeddings = self.features(x)
        logits = self.logits(embeddings)
        scores = of_draws(logits / self.temperature)
        return Output(logits, embeddings, {name: scores[name] for name in self.scores})

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        p = self.logits(self.features(x)).softmax(-1)
        distance = float((p - p.mean(1, keepdim=True)).abs().sum(-1).mean() / 2)
        accuracies = (p.argmax(2) == y[:, None]).float().mean(0)
        worst, chance = float(accuracies.min()), 1 / self.spec.classes
        return {
            "heads differ": Evidence(f"a head's probabilities differ from the mean by {distance:.2%}", distance > 1e-3),
            "every head learnt": Evidence(f"the worst has {worst:.0%} training accuracy", worst > 2 * chance),
        }
