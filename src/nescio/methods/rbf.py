"""RBF: predictions that become uniform far from the data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, Output, first_batch, method
from nescio.search import hparam, log_uniform, uniform

STEEPEST = 1 / math.sqrt(2)  # |z| with the steepest slope of exp(−z²)


@dataclass(frozen=True)
class RBFHParams(BaseHParams):
    # The gradient of a·exp(−z²) is up to 0.86·a times that of z, so steps are smaller than for plain logits.
    lr: float = hparam(0.3, log_uniform(0.1, 1.0), "factor on the budget's learning rate", above=0)
    scale: float = hparam(10.0, uniform(5.0, 20.0), "a, the largest logit", above=0)


@method("rbf", RBFHParams)
class RBF(Method[RBFHParams]):
    """The logits z become a·exp(−z²): as ‖z‖ grows the softmax tends to 1/C (Broomhead & Lowe 1988; UIMNET §3).

    Without the scale a the values lie in (0, 1] and no softmax could exceed e/(e + C − 1). It is fixed: a trained scale
    falls to 0 early in training and stays there. z starts where the kernel is steepest, because the gradient vanishes
    at z = 0 and far away.
    """

    paper = "Broomhead & Lowe, Multivariable functional interpolation and adaptive networks, 1988"

    def __init__(self, hparams: RBFHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        nn.init.constant_(self.head.bias, STEEPEST)

    def kernels(self, embeddings: Tensor) -> Tensor:
        with torch.autocast(embeddings.device.type, enabled=False):
            z = nn.functional.linear(embeddings.float(), self.head.weight.float(), self.head.bias.float())
            return self.hparams.scale * torch.exp(-z.square())

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.kernels(self.features(x)), y)

    def forward(self, x: Tensor) -> Output:
        embeddings = self.features(x)
        return Output(self.kernels(embeddings)[:, None], embeddings)

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, _ = first_batch(batches)
        output = self(x)
        classes = self.spec.classes
        confident = float(self.probs(output.logits).max(1).values.mean())
        limit = math.e / (math.e + classes - 1)
        distant = self.probs(self.kernels(1e4 * output.embeddings)[:, None])
        # rows far from the data have p = 1/C unless some z is exactly zero
        uniform = float((distant.max(1).values < 1 / classes + 0.01).float().mean())
        observed = f"p = {confident:.2f} on training images; without a scale at most {limit:.2f}"
        return {
            "fades": Evidence(f"{uniform:.0%} of features scaled by 10⁴ get the uniform prediction", uniform > 0.9),
            "confident": Evidence(observed, confident > limit),
        }
