"""DCS: the distance to the nearest trained centroid."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, Output, first_batch, method
from nescio.search import choice, hparam, log_uniform


@dataclass(frozen=True)
class DCSHParams(BaseHParams):
    weight: float = hparam(0.1, log_uniform(0.01, 1.0), "λ of the distance loss; larger values regularise", above=0)
    margin: float = hparam(4.0, log_uniform(1.0, 10.0), "minimum distance to centroids of other classes", above=0)
    width: int = hparam(32, choice(16, 32, 64), "number of dimensions of the centroids", at_least=1)
    # Squared distances of wide features have large gradients: at the network's learning rate the loss of a ResNet
    # diverges.
    output: float = hparam(0.02, None, "factor on the learning rate of h and of the centroids", above=0)


@method("dcs", DCSHParams)
class DCS(Method[DCSHParams]):
    """Distance-based confidence score, in the form of Postels et al. (2022, §3.2): one
    centroid e_c per class is trained with the network; h(φ(x)) is a linear map of the features. The logits
    are −‖h − e_c‖². The loss adds to their cross-entropy the distance loss of Mandelbaum & Weinshall (2017), with
    centroids instead of other images: ‖h − e_y‖² + mean_{c≠y} max(0, m − ‖h − e_c‖)², weighted by λ.

    Score "distance": min_c ‖h − e_c‖.
    """

    paper = "Mandelbaum & Weinshall, Distance-based confidence score for neural network classifiers, 2017"
    scores = ("distance",)
    strength_hparam = "weight"
    rises_far_from_data = True

    def __init__(self, hparams: DCSHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        self.head = nn.Linear(self.features.num_features, hparams.width)
        scale = hparams.margin / math.sqrt(2 * hparams.width)  # so that centroids start about a margin from each other
        self.centroids = nn.Parameter(scale * torch.randn(spec.classes, hparams.width))

    def separate_factors(self) -> list[tuple[Iterable[Tensor], dict[str, float]]]:
        return [([*self.head.parameters(), self.centroids], {"rate": self.hparams.lr * self.hparams.output})]

    def distances(self, embeddings: Tensor) -> Tensor:
        """(b, c) distances to the centroids, from differences: inner products are inaccurate for small
        distances."""
        with torch.autocast(embeddings.device.type, enabled=False):
            points = nn.functional.linear(embeddings.float(), self.head.weight, self.head.bias)
            return (points[:, None] - self.centroids).norm(dim=2)

    def distance_loss(self, distances: Tensor, y: Tensor) -> Tensor:
        """Distance loss: attract embeddings to their class's centroid, and repel them a margin from all others."""
        true_class = one_hot(y, self.spec.classes).bool()
        other_distances = (self.hparams.margin - distances[~true_class]).clamp_min(0).square()
        return distances[true_class].square().mean() + other_distances.mean()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        distances = self.distances(self.features(x))
        return cross_entropy(-distances.square(), y) + self.hparams.weight * self.distance_loss(distances, y)

    def forward(self, x: Tensor) -> Output:
        embeddings = self.features(x)
        distances = self.distances(embeddings)
        return Output(-distances.square()[:, None], embeddings, {"distance": distances.min(1).values})

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        movement = float((self.centroids - start.centroids).norm(dim=1).mean())
        distances = self.distances(self.features(x))
        true_class = one_hot(y, self.spec.classes).bool()
        to_own, to_others = float(distances[true_class].median()), float(distances[~true_class].median())
        between_centroids = float(torch.pdist(self.centroids).median())
        return {
            "centroids moved": Evidence(f"by {movement:.3g} on average", movement > 1e-2),
            "distance loss": Evidence(
                f"median distance {to_own:.3g} to the class's centroid, {to_others:.3g} to others, "
                f"{between_centroids:.3g} between centroids",
                2 * to_own < to_others,
            ),
        }
