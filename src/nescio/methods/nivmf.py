"""nivMF: ELK with a separate concentration of the classes along every axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from nescio.distributions.non_isotropic import expected_likelihood
from nescio.layers.contrastive import unit
from nescio.methods._probabilistic import SamplingHParams
from nescio.methods.base import Batches, Evidence, Method, first_batch, method
from nescio.methods.elk import ELK, ELKHParams
from nescio.search import hparam, uniform


@dataclass(frozen=True)
class NivMFHParams(ELKHParams, SamplingHParams):
    t: float = hparam(
        64.0, uniform(8.0, 64.0), "factor on the classes' concentrations, an inverse temperature", above=0
    )
    # at the full learning rate all κ stay at the head's bound (SGD on digits)
    head: float = hparam(0.1, None, "multiplies the learning rate of the head for κ", above=0)
    density: Literal["exact", "approximate"] = hparam("exact", None, "class densities: normalised or approximate")


@method("nivmf", NivMFHParams)
class NivMF(ELK):
    """ELK in which a class is a non-isotropic von Mises–Fisher distribution with mean μ_c and a diagonal K_c = t·k_c,
    both trained (Kirchhof et al. 2022; URL, eq. 4). Its kernel with the image's vMF(e, κ) has no closed form: the log
    of the mean of the class's density over 16 samples of the image, one draw. Score: "inverse_kappa", 1/κ.
    """

    hparams: NivMFHParams

    def concentrations(self) -> tuple[int, ...]:
        return tuple(self.proxies.shape)

    def similarities(self, mean: Tensor, kappa: Tensor) -> Tensor:
        k, exact = self.hparams.t * self.log_k.exp(), self.hparams.density == "exact"
        return expected_likelihood(self.draw_samples(mean, kappa), unit(self.proxies), k, exact)  # type: ignore[no-any-return]

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, _ = first_batch(batches)
        spread = float(self.log_k.std(1).mean())
        axes = Evidence(f"log k has a spread of {spread:.2g} between the axes of a class", spread > 1e-3)
        return super().evidence(batches, start) | {"axes differ": axes, **self.sampling_evidence(x)}
