"""Export a network to one file that predicts and abstains, for ONNX Runtime (.onnx) or torch.export (.pt2).

MODEL is a timm name, torchvision:NAME, store:KEY for a network of `nescio train`, or zoo:NAME for a model of `nescio
zoo` with the weights of that run. The file takes uint8 images (n, channels, size, size) and includes the normalisation.
It returns `class`, `probability` (calibrated), `uncertainty` and `abstain` (uncertainty above the threshold). Its
metadata (key `nescio`) describe resizing, cropping, class names and the guarantee.

The threshold is a number, or the file that `nescio threshold --format json` wrote. That file also sets measure,
temperature and fitted score, and is refused for another model. The written file is checked against the network.

examples:
  nescio threshold zoo:resnet50.a1_in1k --risk 0.05 --fit-temperature --format json > guarantee.json
  nescio export zoo:resnet50.a1_in1k --threshold guarantee.json
  nescio export tf_efficientnet_lite0 --weights weights/ --threshold 0.2 --temperature 1.1 --output lite0.pt2
  nescio export store:3f2a --threshold guarantee.json --output digits.onnx
  nescio export resnet18@flowers.pth --threshold 0.2 --class-names flowers.txt
  nescio export store:3f2a --threshold 1.7 --loss-order head.npz
"""

from __future__ import annotations

from dataclasses import dataclass

from nescio.api.export import ExportOptions
from nescio.api.export import export as run
from nescio.commands._output import TextOrJson
from nescio.options import option

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(ExportOptions):
    format: TextOrJson = option("text")
