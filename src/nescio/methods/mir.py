"""MIR: features from which the image can be reconstructed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from nescio.methods._feature_density import FeatureDensity
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, first_batch, method
from nescio.search import choice, hparam, log_uniform

COARSEST = 4  # width and height of the decoder's first map
DECODER_RATE = 0.05  # factor on the network's learning rate


@dataclass(frozen=True)
class MIRHParams(BaseHParams):
    weight: float = hparam(
        1.0, log_uniform(0.01, 100.0), "λ of the reconstruction error; larger values regularise", above=0
    )
    width: int = hparam(64, choice(32, 64, 128), "channels of the decoder", at_least=1)


def decoder(
    inputs: int, channels: int, shape: tuple[int, int], width: int, grid: tuple[int, int] | None = None
) -> nn.Sequential:
    """Features (b, inputs), or their maps (b, inputs, *grid), to images (b, channels, *shape): a coarse grid that is
    repeatedly doubled and smoothed up to the full size."""
    coarsest, sizes = COARSEST if grid is None else max(grid), [shape]
    while max(sizes[0]) > coarsest:
        sizes.insert(0, (-(-sizes[0][0] // 2), -(-sizes[0][1] // 2)))
    layers: list[nn.Module] = [nn.Conv2d(inputs, width, 1)]
    if grid is None:
        height, grid_width = sizes[0]
        layers = [nn.Linear(inputs, width * height * grid_width), nn.Unflatten(1, (width, height, grid_width))]
    layers += [nn.BatchNorm2d(width), nn.ReLU()]
    for size in sizes[1:]:
        layers += [nn.Upsample(size), nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, channels, 1))


@method("mir", MIRHParams)
class MIR(FeatureDensity):
    """Maximally informative representations (Postels et al. 2020): beside the classifier a decoder g reconstructs the
    image from the features, −log f(x)_y + λ·‖g(φ(x)) − x‖²/pixels, so that the features retain information that
    classification does not need. After training every class gets a Gaussian on the features of its training images.

    Scores: "density", −log Σ_c π_c N(φ(x); μ_c, Σ_c), and "entropy" of the softmax.
    """

    hparams: MIRHParams

    paper = "Postels et al., The hidden uncertainty in a neural network's activations, 2020"
    cuda_graph_safe = True
    strength_hparam = "weight"

    def __init__(self, hparams: MIRHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        grid = self.features.grid(spec.shape) if spec.dense else None
        self.decoder = decoder(self.features.num_features, spec.channels, spec.shape, hparams.width, grid)

    def separate_factors(self) -> list[tuple[Iterable[Tensor], dict[str, float]]]:
        """A squared error has larger gradients than a cross-entropy, so the decoder has a small learning rate. No
        learning rate depends on λ, so that a comparison of λ does not compare learning rates."""
        return [(self.decoder.parameters(), {"rate": self.hparams.lr * DECODER_RATE / self.hparams.weight})]

    def reconstructed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features, and the squared error of their decoded images; maps are decoded as a whole."""
        if not self.spec.dense:
            embeddings = self.features(x)
            return embeddings, mse_loss(self.decoder(embeddings).float(), x)
        maps = self.features.maps(x)
        return self.features.rows(maps, x), mse_loss(self.decoder(maps).float(), x[:, : self.spec.channels])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        embeddings, error = self.reconstructed(x)
        return cross_entropy(self.head(embeddings), y) + self.hparams.weight * error

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        error, initial_error = (float(network.reconstructed(x)[1]) for network in (self, start))
        images = x[:, : self.spec.channels]
        mean = float(mse_loss(images.mean(0, keepdim=True).expand_as(images), images))
        observed = f"error {initial_error:.3g} before training, {error:.3g} after; error of the mean image {mean:.3g}"
        return {
            "reconstructs": Evidence(observed, error < min(initial_error, mean)),
            "Gaussians of classes": self.own_gaussians(x, y),
            "density away from the data": self.density_rises(x, start),
        }
