"""Random network distillation: a student is trained to match a random teacher on the data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, Output, first_batch, method
from nescio.methods.evidence import noise_images
from nescio.search import choice, hparam


@dataclass(frozen=True)
class RNDHParams(BaseHParams):
    width: int = hparam(128, choice(64, 128, 256), "hidden units and outputs of student and teacher", at_least=1)
    weight: float = hparam(1.0, None, "weight of the student's loss, which trains the student alone", above=0)


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@method("rnd", RNDHParams)
class RND(Method[RNDHParams]):
    """An ERM predictor with a student w_s that is trained to match a fixed random teacher w_t on its features φ(x), by
    ‖w_s(φ(x)) − w_t(φ(x))‖² (Burda et al. 2018; UIMNET §3). The features are detached: only the student is trained by
    it.

    Native score (UIMNET §4): that distance, because the student is not trained far from the data.
    Both networks get features normalised by running mean and variance, which fixes the scale of the distance.
    """

    paper = "Burda et al., Exploration by random network distillation, ICLR 2019"
    rises_far_from_data = True

    def __init__(self, hparams: RNDHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        self.scale = nn.BatchNorm1d(self.features.num_features, affine=False)
        self.student, self.teacher = self.pair(self.features.num_features)
        self.teacher.requires_grad_(False)

    def pair(self, inputs: int) -> tuple[nn.Module, nn.Module]:
        """A student and a teacher for these features."""
        width = self.hparams.width
        return mlp(inputs, width, width, width), mlp(inputs, width, width)

    def distance(self, embeddings: Tensor, student: nn.Module | None = None) -> Tensor:
        """‖w_s(φ) − w_t(φ)‖² of detached features, (b,)."""
        with torch.autocast(embeddings.device.type, enabled=False):
            scaled = self.scale(embeddings.detach().float())
            return ((student or self.student)(scaled) - self.teacher(scaled)).square().sum(1)

    @property
    def outputs(self) -> int:
        return list(self.student.parameters())[-1].shape[0]

    def penalty(self) -> Tensor | float:
        """An additional penalty on the student."""
        return 0.0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        embeddings = self.features(x)
        distance = self.distance(embeddings).mean() / self.outputs
        return nn.functional.cross_entropy(self.head(embeddings), y) + self.hparams.weight * (distance + self.penalty())

    def forward(self, x: Tensor) -> Output:
        output = super().forward(x)
        assert output.embeddings is not None
        output.scores["native"] = self.distance(output.embeddings)
        return output

    def untrained_student(self, start: Method) -> nn.Module:
        """An untrained student for comparison."""
        return start.student  # type: ignore[return-value]

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, _ = first_batch(batches)
        embeddings = self.features(x)
        on_images, on_noise = (float(self.distance(e).mean()) for e in (embeddings, self.features(noise_images(x))))
        untrained = float(self.distance(embeddings, self.untrained_student(start)).mean())
        training = f"distance on images: {untrained:.3g} for an untrained student, {on_images:.3g} for the trained one"
        pairs = list(zip(self.teacher.parameters(), start.teacher.parameters(), strict=True))  # type: ignore[union-attr]
        teacher_unchanged = all(torch.equal(a, b) for a, b in pairs)
        observed = f"{on_images:.3g} on training images, {on_noise:.3g} on noise"
        return {
            "student learnt": Evidence(training, on_images < 0.5 * untrained),
            "student ≠ teacher on noise": Evidence(observed, on_noise > 2 * on_images),
            "teacher frozen": Evidence("as at the start" if teacher_unchanged else "it moved", teacher_unchanged),
        }
