"""SNGP: a random-feature Gaussian process on smooth features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nescio.layers.entropies import entropy
from nescio.layers.random_features import RIDGE, RandomFeatureGP, dempster_shafer, mean_field
from nescio.layers.spectral import bound_holds
from nescio.methods._spectral_bound import SpectralHParams, bound_acts, bounded
from nescio.methods.base import SPECTRAL, Batches, Evidence, Method, NetworkSpec, Output, first_batch, method
from nescio.methods.evidence import noise_images
from nescio.search import choice, hparam

PAIRED = 4096  # maximum number of rows from whose distances the lengthscale is estimated


@dataclass(frozen=True)
class SNGPHParams(SpectralHParams):
    bound: float = hparam(6.0, SPECTRAL, "target of the spectral norm; smaller values regularise", above=0)
    width: int = hparam(1024, choice(512, 1024, 2048), "D, random features", at_least=1)
    # Φ has length one, unlike plain features, so β needs larger steps to reach the same logits.
    output: float = hparam(10.0, None, "multiplies the learning rate of the process's weights β", above=0)


@method("sngp", SNGPHParams)
class SNGP(Method[SNGPHParams]):
    """Spectral-normalised Gaussian process (Liu et al. 2020): logits z = Φ(φ(x))·β in D random Fourier features of an
    RBF kernel, Φ = √(2/D)·cos(W·φ/ℓ + b) (eq. 6), trained as the maximum a posteriori, −log f(x)_y + ‖β‖²/(2n) (eq. 8).
    After training one pass over the training set gives the exact precision I + Σ_i Φ_iᵀΦ_i of β's Laplace posterior,
    the same for all classes (the Gaussian likelihood of the authors' code). ℓ is the mean distance between features
    of the initial network.

    The logits are mean-field logits z/√(1 + (π/8)·Φ Σ Φᵀ). Scores of these logits: "dempster_shafer", C/(C + Σ_c exp
    z_c), and "entropy" of the softmax. The authors' bound of 6, for images of CIFAR's size, applies to
    the convolution itself. Here it applies to the reshaped kernel, which is looser (`nescio.layers.spectral`).
    """

    paper = "Liu et al., Simple and principled uncertainty estimation with deterministic deep learning, NeurIPS 2020"
    cuda_graph_safe = True
    scores = ("dempster_shafer", "entropy")
    strength_hparam, strength_direction = "bound", "smaller"
    rises_far_from_data = True

    def __init__(self, hparams: SNGPHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, bounded(spec, hparams))
        del self.head
        self.gp = RandomFeatureGP(self.features.num_features, spec.classes, hparams.width)

    def prepare(self, batches: Batches) -> None:
        self.features.train()  # batch-norm must scale as in the first step, or all kernels are 0
        features = self.features(first_batch(batches)[0]).float()
        self.features.eval()
        sample = features[:: -(-len(features) // PAIRED)]  # limits the number of locations
        self.gp.lengthscale.copy_(torch.pdist(sample).mean().clamp_min(1e-6))

    def separate_factors(self) -> list[tuple[Iterable[Tensor], dict[str, float]]]:
        """The prior already regularises β, so weight decay applies to the network alone."""
        return [([self.gp.weights.weight], {"rate": self.hparams.lr * self.hparams.output, "decay": 0.0})]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.gp.mean(self.gp.expand(self.features(x)))
        return cross_entropy(logits, y) + self.gp.penalty() / max(1, self.rows)

    @torch.no_grad()
    def finalize(self, batches: Batches) -> None:
        self.gp.fit(self.features(x) for x, _, _ in batches)

    def forward(self, x: Tensor) -> Output:
        embeddings = self.features(x)
        expanded = self.gp.expand(embeddings)
        logits = mean_field(self.gp.mean(expanded), self.gp.variance(expanded))
        uncertainty = entropy(self.probs(logits[:, None]))
        return Output(logits[:, None], embeddings, {"dempster_shafer": dempster_shafer(logits), "entropy": uncertainty})

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, _ = first_batch(batches)
        n_rows = float((self.gp.precision.diagonal() - RIDGE).sum())  # the number of rows: |Φ| = 1
        noise = noise_images(x)
        expanded = [self.gp.expand(self.features(images)) for images in (x, noise)]
        on_images, on_noise = (float(self.gp.variance(features).mean()) for features in expanded)
        logits = self(noise).logits
        assert logits is not None
        shrunk = 1 - float(logits.abs().mean() / self.gp.mean(expanded[1]).abs().mean())
        observed = f"by {n_rows:.0f} rows of Φ; the training set has {self.rows}"
        variances = f"{on_images:.3g} on training images, {on_noise:.3g} on noise"
        return {
            "layers are bounded": Evidence(*bound_holds(self.features, self.spec.spectral)),
            "bound acts": bound_acts(self),
            "precision changed": Evidence(observed, n_rows > max(1, self.rows) / 2),
            "mean-field logits": Evidence(f"on noise {shrunk:.2%} smaller than the posterior mean", shrunk > 1e-4),
            "variance away from the data": Evidence(variances, on_noise > 1.5 * on_images),
        }
