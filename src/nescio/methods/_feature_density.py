"""Base class of methods that fit a Gaussian to the features of every class."""

from __future__ import annotations

import torch
from torch import Tensor

from nescio.layers.class_gaussians import ClassGaussians
from nescio.layers.entropies import entropy
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, Output
from nescio.methods.evidence import noise_images


class FeatureDensity(Method):
    """A classifier with a full-covariance Gaussian per true class, fitted to the features after training.

    Scores: "density", −log Σ_c π_c N(φ(x); μ_c, Σ_c) with the class shares π_c of the training set, for epistemic
    uncertainty; "entropy" of the softmax, for aleatoric uncertainty.
    """

    scores = ("density", "entropy")
    rises_far_from_data = True

    def __init__(self, hparams: BaseHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        self.gaussians = ClassGaussians(spec.classes, self.features.num_features)

    @torch.no_grad()
    def finalize(self, batches: Batches) -> None:
        self.gaussians.fit((self.features(x), y) for x, y, _ in batches)

    def facts(self) -> dict[str, float]:
        """rows_a_feature: training rows of the smallest class for each feature. Below 1 its covariance is singular, and
        its density mainly measures the distance to the span of the class's rows."""
        shares = self.gaussians.log_shares.exp()
        smallest = float(shares[shares > 0].min()) * self.rows
        return super().facts() | {"rows_a_feature": smallest / self.features.num_features}

    def density_score(self, embeddings: Tensor) -> Tensor:
        """−log of the density of features, (b,), in float32: float16 cannot represent it."""
        return -self.gaussians(embeddings).float()

    def forward(self, x: Tensor) -> Output:
        output = super().forward(x)
        assert output.logits is not None and output.embeddings is not None
        density = self.density_score(output.embeddings)
        output.scores = {"density": density, "entropy": entropy(self.probs(output.logits))}
        return output

    def own_gaussians(self, x: Tensor, y: Tensor) -> Evidence:
        """Check that the likeliest Gaussian of an image is that of its class."""
        share = float((self.gaussians.log_joint(self.features(x)).argmax(1) == y).float().mean())
        observed = f"the likeliest Gaussian is that of the image's class for {share:.0%} of training images"
        return Evidence(observed, share > 0.2 + 0.8 / self.spec.classes)  # a fifth of the interval from chance to 100 %

    def density_rises(self, x: Tensor, start: Method) -> Evidence:
        """Check that the Gaussians were fitted and separate training images from noise."""
        moved = float((self.gaussians.means - start.gaussians.means).norm(dim=1).mean())
        near, far = (float(self.density_score(self.features(images)).median()) for images in (x, noise_images(x)))
        observed = f"median −log density {near:.3g} on training images, {far:.3g} on noise; means moved by {moved:.3g}"
        return Evidence(observed, moved > 1e-3 and far > near + 1)
