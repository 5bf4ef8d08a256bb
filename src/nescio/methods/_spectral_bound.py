"""Base class of methods with the bound of the spectral norm as a hyper-parameter."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nescio.layers.spectral import share_above_bound
from nescio.methods.base import SPECTRAL, BaseHParams, Evidence, Method, NetworkSpec
from nescio.search import hparam


@dataclass(frozen=True)
class SpectralHParams(BaseHParams):
    bound: float = hparam(3.0, SPECTRAL, "target of the spectral norm; smaller values regularise", above=0)


def bounded(spec: NetworkSpec, hparams: SpectralHParams) -> NetworkSpec:
    """The specification with the bound of the hyper-parameters, unless it has a target."""
    return spec if spec.spectral else replace(spec, spectral=hparams.bound)


def bound_acts(method: Method[SpectralHParams]) -> Evidence:
    """Check that the bound has an effect. The default bound always passes, because small backbones stay below it."""
    share = share_above_bound(method.features) or 0.0
    observed = f"{share:.0%} of layers would exceed the bound without it"
    if not share:
        observed += ": it has no effect on this network; choose a smaller one"
    return Evidence(observed, share > 0 or method.spec.spectral == type(method.hparams)().bound)
