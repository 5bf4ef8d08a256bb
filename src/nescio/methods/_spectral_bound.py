"""Base class of methods with the bound of the spectral norm as a hyper-parameter."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nescio.methods.base import SPECTRAL, BaseHParams, NetworkSpec
from nescio.search import hparam


@dataclass(frozen=True)
class SpectralHParams(BaseHParams):
    bound: float = hparam(3.0, SPECTRAL, "target of the spectral norm; a smaller one regularises more")

    def check(self) -> None:
        super().check()
        self.require_min(0, "bound", exclusive=True)


def bounded(spec: NetworkSpec, hparams: SpectralHParams) -> NetworkSpec:
    """The setting with the hyper-parameters' bound, unless it names one itself (`--spectral`)."""
    return spec if spec.spectral else replace(spec, spectral=hparams.bound)
