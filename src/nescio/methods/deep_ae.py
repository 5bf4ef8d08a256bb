"""DeepAE: features that a narrow network can restore are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from nescio.methods.base import Batches, Evidence, Method, method
from nescio.methods.rnd import RND, RNDRecipe, mlp
from nescio.search import hparam, uniform


@dataclass(frozen=True)
class DeepAERecipe(RNDRecipe):
    bottleneck: float = hparam(0.125, uniform(0.05, 0.5), "width of the narrowest layer, as a share of the features")

    def check(self) -> None:
        super().check()
        self.need(0, "bottleneck", above=True)
        self.below(1, "bottleneck")


@method("deep-ae", DeepAERecipe)
class DeepAE(RND):
    """RND whose teacher is the identity: the student restores φ(x) through a bottleneck
    (Vincent et al. 2010; UIMNET §3).

    Native score (UIMNET §4): ‖w_s(φ(x)) − φ(x)‖², what the bottleneck could not carry.
    """

    paper = "Vincent et al., Stacked denoising autoencoders, JMLR 2010"

    def pair(self, inputs: int) -> tuple[nn.Module, nn.Module]:
        narrow = max(1, round(inputs * self.recipe.bottleneck))
        return mlp(inputs, self.recipe.width, narrow, self.recipe.width, inputs), nn.Identity()

    def evidence(self, batches: Batches, start: Method) -> dict[str, Any]:
        wide = self.features.num_features
        narrow = min(len(weight) for weight in self.student.parameters())
        seen = f"{narrow} of {wide} dimensions pass"
        return {**super().evidence(batches, start), "bottleneck": Evidence(seen, narrow < wide)}
