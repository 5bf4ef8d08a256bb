"""A classifier that abstains, as a network: images in; class, probability, uncertainty and abstain out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.measures import LOGIT_MEASURES, PORTABLE, FittedScore, LossOrder
from nescio.measures.loss_ranking import FLOOR, SLOPE
from nescio.networks.fitted_scores import LOGIT_SCORES, MeanSoftmax, ScoreNetwork, logit_score

LOSS_ORDER = "loss_order"  # a score trained on embeddings
MEASURES = (*LOGIT_MEASURES, LOSS_ORDER, *PORTABLE)


@dataclass(frozen=True)
class AbstentionRule:
    """When to abstain: if the measure of the calibrated prediction is above the threshold."""

    threshold: float
    temperature: float = 1.0
    measure: str = "msp"

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise BadInput(
                f"An exported file measures {', '.join(MEASURES)}, not {self.measure}: it has one prediction per "
                "image, without draws and native scores."
            )
        if not (0 < self.temperature < math.inf):
            raise BadInput(f"The temperature is {self.temperature}; it must be a number above 0.")
        if not math.isfinite(self.threshold):
            raise BadInput(f"The threshold is {self.threshold}; it must be a finite number.")


@dataclass(frozen=True)
class ExportableNetwork:
    """A network with its preprocessing: normalised (b, ch, h, w) in, logits (b, c) or (b, s, c) out.

    With `score`, which was fitted to embeddings, the network outputs (logits, embeddings (b, d)).
    """

    network: nn.Module
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shape: tuple[int, int]  # (height, width) of its images
    classes: int
    digest: str = ""  # the checksum of its weights, or the key of its training
    facts: Mapping[str, Any] = field(default_factory=dict)  # added to the metadata
    score: LossOrder | FittedScore | None = None

    @property
    def channels(self) -> int:
        return len(self.mean)


class AbstainingClassifier(nn.Module):
    """uint8 images (n, ch, h, w) to (class (n,), probability (n,), uncertainty (n,), abstain (n,))."""

    def __init__(self, classifier: ExportableNetwork, rule: AbstentionRule) -> None:
        super().__init__()
        if _measured(classifier.score) != (rule.measure if rule.measure not in LOGIT_SCORES else None):
            raise BadInput(
                f"The measure is {rule.measure}, and the score is {_measured(classifier.score) or 'missing'}: give "
                "the file that was fitted for this measure, or none for measures of the logits."
            )
        self.network, self.rule = classifier.network, rule
        self.score: nn.Module | None = None
        if isinstance(classifier.score, LossOrder):
            self.score = OrderNetwork(classifier.score)
        elif classifier.score is not None:
            self.score = ScoreNetwork(classifier.score)
        mean, std = torch.tensor([classifier.mean, classifier.std])[:, None, :, None, None]
        self.register_buffer("shift", -mean / std)
        self.register_buffer("scale", 1 / (255 * std))
        # The threshold is a float64 uncertainty of a row: rounded down, it would reject that row.
        self.threshold = _not_below(rule.threshold)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # An ONNX file declares its input type; a torch.export file would accept floats.
        torch.ops.aten._assert_tensor_metadata.default(images, dtype=torch.uint8)
        # Images are often transposed views of (n, h, w, ch); a traced network expects one memory layout.
        images = images.clone(memory_format=torch.contiguous_format)
        output = self.network(torch.addcmul(self.shift, images, self.scale))  # type: ignore[arg-type]
        logits = output if self.score is None else output[0]
        temperature = self.rule.temperature
        softmax = MeanSoftmax(logits, temperature)
        if self.score is None:
            u = logit_score(self.rule.measure, softmax, logits, temperature)
        else:  # a fitted score uses uncalibrated logits, as when it was fitted
            u = self.score(output[1], logits)
        top, probability, u = (_one_dimension(output) for output in (softmax.top, softmax.probability, u))
        return top, probability, u, ~(u <= self.threshold)  # NaN abstains


class Standardize(nn.Module):
    """(x − shift)·scale."""

    def __init__(self, shift: Array | float, scale: Array | float) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor(shift))
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift) * self.scale  # type: ignore[no-any-return, operator]


def order_network(order: LossOrder) -> nn.Sequential:
    """A loss order as a network: embeddings (b, d) to u (b, 1), equal up to rounding."""
    layers: list[nn.Module] = [Standardize(order.shift, order.scale)]
    for weight, bias in zip(order.layers[::2], order.layers[1::2], strict=True):
        layer = nn.Linear(*weight.shape)
        layer.load_state_dict({"weight": torch.tensor(weight.T), "bias": torch.tensor(bias)})
        layers += [layer, nn.LeakyReLU(SLOPE)]
    return nn.Sequential(*layers[:-1], nn.Softplus(), Standardize(-FLOOR, 1.0))


class OrderNetwork(nn.Module):
    """A loss order as a network: u (b,) of embeddings; logits are ignored."""

    def __init__(self, order: LossOrder) -> None:
        super().__init__()
        self.width, self.layers = len(order.shift), order_network(order)

    def forward(self, embeddings: Tensor, logits: Tensor) -> Tensor:
        return self.layers(embeddings)[:, 0]


def _measured(score: LossOrder | FittedScore | None) -> str | None:
    """The measure of a score."""
    return LOSS_ORDER if isinstance(score, LossOrder) else None if score is None else score.measure


def calibrated_predictions(logits: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(class, probability, one minus it, entropy), each (n,), of the mean over draws of softmax(z/T)."""
    s = MeanSoftmax(logits, temperature)
    return s.top, s.probability, s.uncertainty, logit_score("entropy", s, logits, temperature)


def _one_dimension(x: Tensor) -> Tensor:
    """x (n,) with an explicit shape: ONNX Runtime returns (0, c) for the class sum of an empty batch."""
    return x[:, None].flatten()


def _not_below(value: float) -> float:
    """The smallest float32 that is not below a number."""
    near = np.float32(value)
    return float(near if near >= value else np.nextafter(near, np.float32(np.inf)))
