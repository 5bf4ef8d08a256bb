"""MIMO: one network with several input images and several predictions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, Output, first_batch, method
from nescio.search import choice, hparam, uniform


@dataclass(frozen=True)
class MIMOHParams(BaseHParams):
    inputs: int = hparam(2, choice(2, 3), "T, number of input images and of heads", at_least=2)
    repetition: float = hparam(0.5, uniform(0.0, 0.7), "ρ, share of rows with T equal images", at_least=0, below=1)
    repeats: int = hparam(2, None, "uses of an image in one step, each with other partners", at_least=1)


@method("mimo", MIMOHParams)
class MIMO(Method[MIMOHParams]):
    """A network of T images stacked on channels with T heads; the loss is the sum of the heads' cross-entropies on T
    random images, and at test time all T inputs are the same image (Havasi et al. 2021; UIMNET §3).

    With probability ρ all T images of a row are equal (input repetition); each image is used `repeats` times in a step
    (batch repetition). The heads' predictions are T draws.
    """

    paper = "Havasi et al., Training independent subnetworks for robust prediction, ICLR 2021"
    no_dense_reason = "its input consists of several whole images"

    def __init__(self, hparams: MIMOHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, replace(spec, channels=spec.channels * hparams.inputs))
        self.head = nn.Linear(self.features.num_features, spec.classes * hparams.inputs)

    def head_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Stacked images (b, T·ch, h, w) to logits (b, T, c) and embeddings."""
        embeddings = self.features(x)
        return self.head(embeddings).unflatten(1, (self.hparams.inputs, self.spec.classes)), embeddings

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        rows = torch.arange(len(x), device=x.device).repeat(self.hparams.repeats)
        first_rows = rows[torch.randperm(len(rows), device=x.device)]
        repeated = torch.rand(len(rows), device=x.device) < self.hparams.repetition
        columns = [first_rows]
        for _ in range(self.hparams.inputs - 1):
            columns.append(torch.where(repeated, first_rows, first_rows[torch.randperm(len(rows), device=x.device)]))
        logits, _ = self.head_logits(torch.cat([x[column] for column in columns], 1))
        targets = torch.stack([y[column] for column in columns], 1)
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) * self.hparams.inputs

    def forward(self, x: Tensor) -> Output:
        logits, embeddings = self.head_logits(torch.cat([x] * self.hparams.inputs, 1))
        return Output(logits, embeddings)

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        partner, partner_labels = torch.flip(x, [0]), torch.flip(y, [0])
        rows = y != partner_labels
        same_image, other_image = [], []
        for head in range(self.hparams.inputs):
            images = [x if position == head else partner for position in range(self.hparams.inputs)]
            predicted = self.head_logits(torch.cat(images, 1))[0][rows, head].argmax(1)
            same_image.append(float((predicted == y[rows]).float().mean()))
            other_image.append(float((predicted == partner_labels[rows]).float().mean()))
        gap = min(a - b for a, b in zip(same_image, other_image, strict=True))
        same_share, other_share = min(same_image), max(other_image)
        observed = f"given different images, a head predicts its own in {same_share:.0%}, another in {other_share:.0%}"
        return {"each head reads its own image": Evidence(observed, len(same_image) > 1 and gap > 0.2)}
