"""Base class of methods that embed an image as a von Mises–Fisher distribution on the sphere (URL, appendix B)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from nescio.distributions.vmf_sampling import sample
from nescio.distributions.von_mises_fisher import mean_resultant
from nescio.layers.contrastive import unit
from nescio.layers.uncertainty_head import UncertaintyHead
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, Output, first_batch
from nescio.search import choice, hparam, uniform

WARM = 0.001  # κ at the start of the paper's warmed-up trainings


@dataclass(frozen=True)
class ProbabilisticHParams(BaseHParams):
    """Search ranges of URL, appendix B; the default start "high" and the head's learning rates are chosen by nescio."""

    t: float = hparam(16.0, uniform(8.0, 64.0), "inverse temperature", above=0)
    kappa: Literal["high", "random", "warm"] = hparam(
        "high",
        choice("high", "random", "warm"),
        "initial κ: high (near d), random (of random weights), or warm (0.001)",
    )
    head: float = hparam(1.0, None, "multiplies the learning rate of the head for κ", above=0)
    # Each step of AdamW changes log κ by hundreds of learning rates. Without the factor all κ reach the head's bound
    # within a hundred steps, and gradients vanish there.
    adaptive: float = hparam(0.03, None, "additional factor for the optimizer adamw", introduced=1.0, above=0)


@dataclass(frozen=True)
class SamplingHParams(ProbabilisticHParams):
    samples: int = hparam(16, None, "number of samples of every image's distribution", at_least=1)


class Probabilistic(Method[ProbabilisticHParams]):
    """An image is vMF(e, κ): e is its normalised embedding, and a head of three layers predicts κ = 1/u from it.

    For κ ≪ d samples are nearly independent of their mean, A_d(κ) ≈ κ/d, with small gradients of embeddings:
    from the paper's two starts, κ ≈ 1 and κ = 0.001, only optimizers that rescale gradients make progress.
    """

    scores = ("inverse_kappa",)
    high: ClassVar[int] = 1  # κ/d at the start "high": samples have a mean cosine A_d(d) ≈ 0.62 with their mean
    no_dense_reason = "it embeds whole images"

    def __init__(self, hparams: ProbabilisticHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        self.uncertainty = UncertaintyHead(self.features.num_features)

    def prepare(self, batches: Batches) -> None:
        if self.hparams.kappa != "random" and self.uncertainty.scale == 1:  # a scale from initial weights stays
            start = WARM if self.hparams.kappa == "warm" else self.high * self.features.num_features
            self.uncertainty.start_at(1 / start, self.features(first_batch(batches)[0]))

    def separate_factors(self) -> list[tuple[Iterable[Tensor], dict[str, float]]]:
        hparams = self.hparams
        return [(self.uncertainty.parameters(), {"rate": hparams.lr * hparams.head, "adaptive": hparams.adaptive})]

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Unit means (b, d) and concentrations (b,) in float32."""
        embeddings = self.features(x)
        return unit(embeddings), 1 / self.uncertainty(embeddings)

    def draw_samples(self, mean: Tensor, kappa: Tensor) -> Tensor:
        assert isinstance(self.hparams, SamplingHParams)
        return sample(mean, kappa, self.hparams.samples)  # type: ignore[no-any-return]

    @abstractmethod
    def distribution_loss(self, mean: Tensor, kappa: Tensor, y: Tensor) -> Tensor:
        """The loss of images' distributions; views of one image are b rows apart."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.distribution_loss(*self.embed(x.flatten(0, -4)), y)

    def forward(self, x: Tensor) -> Output:
        embeddings = self.features(x)
        return Output(embeddings=embeddings, scores={"inverse_kappa": self.uncertainty(embeddings)})

    # ---- evidence

    def kappa_evidence(self, x: Tensor, y: Tensor) -> dict[str, Evidence]:
        """Check κ on images and on their blurred copies."""
        labels = torch.cat([y, y])
        mean, kappa = self.embed(torch.cat([x, blur(x)]))
        loss, other_loss = (float(self.distribution_loss(mean, k, labels)) for k in (kappa, kappa.roll(len(x))))
        falling_share = float((kappa[len(x) :] < kappa[: len(x)]).float().mean())
        losses = f"loss {loss:.4f}; with κ of another image {other_loss:.4f}"
        return {
            "κ differs": self.kappa_differs(kappa),
            "κ fits its image": Evidence(losses, loss < other_loss),
            "κ falls on blurred images": Evidence(f"it is lower on {falling_share:.0%} of them", falling_share > 0.8),
        }

    def kappa_differs(self, kappa: Tensor) -> Evidence:
        lower, upper = kappa.quantile(torch.tensor([0.05, 0.95]).to(kappa)).tolist()
        return Evidence(f"κ is {lower:.3g} to {upper:.3g} in 90% of images", upper > 1.05 * lower)

    def sampling_evidence(self, x: Tensor) -> dict[str, Evidence]:
        mean, kappa = self.embed(x.flatten(0, -4))
        measured = float((self.draw_samples(mean, kappa) * mean).sum(-1).mean())
        expected = float(mean_resultant(kappa, mean.shape[1]).mean())
        observed = f"mean cosine of samples and means {measured:.3f}, A_d(κ) is {expected:.3f}"
        return {"samples spread according to κ": Evidence(observed, abs(measured - expected) < 0.05 * (1 - expected))}


def blur(x: Tensor) -> Tensor:
    """Replace every pixel by the mean of its neighbourhood, whose width is a third of the image."""
    radius = max(1, x.shape[-1] // 6)
    return avg_pool2d(x, 2 * radius + 1, 1, radius, count_include_pad=False)
