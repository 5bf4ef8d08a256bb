"""DDU: class Gaussians on smooth features."""

from __future__ import annotations

from dataclasses import dataclass

from nescio.layers.spectral import bound_holds
from nescio.methods._feature_density import FeatureDensity
from nescio.methods._spectral_bound import SpectralHParams, bound_acts, bounded
from nescio.methods.base import Batches, Evidence, Method, NetworkSpec, first_batch, method


@dataclass(frozen=True)
class DDUHParams(SpectralHParams):
    """The only hyper-parameter is the bound of the spectral norm."""


@method("ddu", DDUHParams)
class DDU(FeatureDensity):
    """Deep deterministic uncertainty (Mukhoti et al. 2021): plain training with spectrally normalised features, so that
    distances survive, then a Gaussian with full covariance for every class, fitted to the features of the training set
    with its true labels (Algorithm 1).

    Scores: "density", −log q(φ(x)) = −log Σ_c π_c N(φ(x); μ_c, Σ_c), for epistemic uncertainty;
    "entropy" of the softmax, for aleatoric uncertainty. The authors' bound of 3 applies to the convolution
    itself and not to batch-norm. Here it applies to the reshaped kernel, which is looser, and to batch-norm
    (`nescio.layers.spectral`).
    """

    hparams: DDUHParams

    paper = "Mukhoti et al., Deep deterministic uncertainty: a new simple baseline, CVPR 2023"
    cuda_graph_safe = True
    strength_hparam, strength_direction = "bound", "smaller"

    def __init__(self, hparams: DDUHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, bounded(spec, hparams))

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        return {
            "layers are bounded": Evidence(*bound_holds(self.features, self.spec.spectral)),
            "bound acts": bound_acts(self),
            "Gaussians of classes": self.own_gaussians(x, y),
            "density away from the data": self.density_rises(x, start),
        }
