"""Soft labels: targets below one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nescio.methods.base import BaseHParams, Batches, Evidence, Method, Output, first_batch, method
from nescio.search import hparam, uniform


@dataclass(frozen=True)
class SoftLabelsHParams(BaseHParams):
    most: float = hparam(0.9, uniform(0.8, 0.99), "ℓ_max, the target of the true class", above=0.5, below=1)


@method("soft-labels", SoftLabelsHParams)
class SoftLabels(Method[SoftLabelsHParams]):
    """The one of a one-hot label becomes ℓ_max < 1 and every zero ℓ_min = (1 − ℓ_max)/(C − 1) (UIMNET §3).

    Native score (UIMNET §4): (s₍₁₎ − ℓ_max)², so that a maximum softmax probability above ℓ_max is also uncertain.
    """

    paper = "Szegedy et al., Rethinking the Inception architecture, CVPR 2016"

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        classes, target_of_class = self.spec.classes, self.hparams.most
        target = torch.full((len(y), classes), (1 - target_of_class) / (classes - 1), device=y.device)
        target.scatter_(1, y[:, None], target_of_class)
        return nn.functional.cross_entropy(self.head(self.features(x)), target)

    def forward(self, x: Tensor) -> Output:
        output = super().forward(x)
        assert output.logits is not None
        output.scores["native"] = (self.probs(output.logits).max(1).values - self.hparams.most).square()
        return output

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, _ = first_batch(batches)
        logits = self(x).logits
        assert logits is not None
        largest = float(self.probs(logits).max(1).values.median())
        target = self.hparams.most
        observed = f"the largest softmax is {largest:.3f} on the median training image, ℓ_max is {target:.3f}"
        return {"ceiling": Evidence(observed, target < 1 and largest < (1 + target) / 2)}
