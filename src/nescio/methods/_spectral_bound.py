"""What methods share whose own hyper-parameter is the bound of the spectral norm."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch.nn.utils import parametrize

from nescio.layers.spectral import stretches
from nescio.methods.base import SPECTRAL, Evidence, Learning, Method, Setting
from nescio.search import hparam

SLACK = 1.001  # rounding of weights, and nothing else: the bound of a trained network is exact


@dataclass(frozen=True)
class SpectralRecipe(Learning):
    bound: float = hparam(3.0, SPECTRAL, "target of the spectral norm; the smaller, the stronger")

    def check(self) -> None:
        super().check()
        self.need(0, "bound", above=True)


def bounded(setting: Setting, recipe: SpectralRecipe) -> Setting:
    """The setting with the recipe's bound, unless it names one itself (`--spectral`)."""
    return setting if setting.spectral else replace(setting, spectral=recipe.bound)


def bound_holds(method: Method) -> Evidence:
    """Is every layer of the features bounded, by singular values of the weights that are really used?"""
    found, target = stretches(method.features), method.setting.spectral
    count = sum(parametrize.is_parametrized(method.features.get_submodule(name), "weight") for name in found)
    largest = max(found.values(), default=0.0)
    seen = f"largest singular value {largest:.3f}, target {target}, {count} of {len(found)} layers"
    return Evidence(seen, target is not None and 0 < count == len(found) and largest <= SLACK * target)
