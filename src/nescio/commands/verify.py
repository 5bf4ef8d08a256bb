"""Check on trained weights that a method's distinctive part has an effect.

Each method is trained on a small task. Its evidence includes: the loss falls, accuracy is above chance, and the same
seed gives the same weights. Saved and reloaded networks predict the same, for any batch. Spectral normalisation bounds
every layer. Each method adds evidence of its own. The exit code is 1 if anything has no effect.

examples:
  nescio verify
  nescio verify due mimo --epochs 10
  nescio verify erm --data cifar10 --backbone resnet18 --epochs 2 --spectral-check 5
"""

from __future__ import annotations

from dataclasses import dataclass

from nescio.api.verification import VerifyOptions
from nescio.api.verification import verify as run
from nescio.commands._output import Format
from nescio.options import option

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(VerifyOptions):
    format: Format = option("table", group="output")
