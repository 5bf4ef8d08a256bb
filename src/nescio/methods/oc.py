"""Orthonormal certificates: linear maps trained to map the data to zero."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nescio.methods.base import BaseHParams, Batches, Evidence, Method, method
from nescio.methods.rnd import RND
from nescio.search import hparam, log_uniform, uniform


@dataclass(frozen=True)
class OCHParams(BaseHParams):
    width: float = hparam(0.25, uniform(0.1, 0.5), "k, certificates per feature", above=0, below=1)
    weight: float = hparam(1.0, None, "weight of the student's loss, which trains the student alone", above=0)
    orthogonality: float = hparam(0.3, log_uniform(0.03, 0.5), "weight of the orthogonality penalty", above=0)


class Zero(nn.Module):
    """A teacher whose output is 0 for every input."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros((), device=x.device)


@method("oc", OCHParams)
class OC(RND):
    """RND with a teacher that is 0 everywhere: k certificates map the data to zero. Σ_W ‖W Wᵀ − I‖² over all weight
    matrices of the student keeps them diverse and non-trivial (Tagasovska & Lopez-Paz 2019; UIMNET §3).

    There are fewer certificates than features: with equal numbers W could be a rotation, which maps no vector to zero.
    The penalty uses W Wᵀ if W has fewer rows than columns, else WᵀW, because only this product can be the identity.
    """

    hparams: OCHParams  # type: ignore[assignment]

    paper = "Tagasovska & Lopez-Paz, Single-model uncertainties for deep learning, NeurIPS 2019"

    def pair(self, inputs: int) -> tuple[nn.Module, nn.Module]:
        return nn.Linear(inputs, max(1, round(inputs * self.hparams.width)), bias=False), Zero()

    def penalty(self) -> Tensor | float:
        return self.hparams.orthogonality * self.disorder()

    def disorder(self) -> Tensor:
        """Σ_W ‖W Wᵀ − I‖² over all weight matrices of the student."""
        total = torch.zeros((), device=self.head.weight.device)
        for weight in self.student.parameters():
            if weight.dim() == 2:
                matrix = weight if weight.shape[0] <= weight.shape[1] else weight.mT
                total = total + (matrix @ matrix.mT - torch.eye(len(matrix), device=weight.device)).square().sum()
        return total

    def untrained_student(self, start: Method) -> nn.Module:
        """Orthonormal certificates in random directions."""
        weight = start.student.weight  # type: ignore[union-attr]
        certificates = nn.Linear(weight.shape[1], weight.shape[0], bias=False).to(weight.device)  # type: ignore[union-attr, index]
        certificates.weight.data.copy_(torch.linalg.qr(weight.mT).Q.mT)  # type: ignore[union-attr, operator]
        return certificates

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        initial, final = float(start.disorder()), float(self.disorder())  # type: ignore[operator]
        observed = f"‖WWᵀ − I‖² = {initial:.3g} at the start, {final:.3g} after"
        orthogonality = Evidence(observed, initial > 0 and final < 0.5 * initial)
        return super().evidence(batches, start) | {"orthogonality": orthogonality}
