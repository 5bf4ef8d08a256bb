"""Choose the model to deploy: the most accepted predictions at the accuracy that you need, under your limits.

The models are predictions files on the same images: FILE, NAME=FILE, or zoo:NAME from the store. Without files, all
models that `nescio zoo` has predicted with are compared. Three requirements are possible.

  --accuracy A  the largest coverage at which the accepted predictions have accuracy A
  --coverage C  the fewest errors among the share C of predictions with the lowest uncertainty
  neither       the highest AUROC of misclassification detection

Rows are joined on `index`. A paired bootstrap gives intervals, and the models that are not significantly different from
the best.

Exit code: 0 chosen, 1 no model reaches the accuracy (in JSON "choice" is null), 2 bad input.

examples:
  nescio choose --accuracy 0.99 --max-params 30M
  nescio choose --store store --data imagenet:PATH --coverage 0.8 --families vit --max-input-size 224
  nescio choose vit.npz resnet=r50.npz --accuracy 0.95 --measure entropy --format json
  nescio choose *.npz --facts results-imagenet.csv --max-params 30M
"""

from __future__ import annotations

from dataclasses import dataclass

from nescio.api.choice import ChooseOptions
from nescio.api.choice import choose as run
from nescio.commands._output import Format
from nescio.options import option

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(ChooseOptions):
    format: Format = option("table", group="output")
