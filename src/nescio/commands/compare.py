"""Compare models on the same rows: paired bootstrap intervals, ranks, and differences from the best model.

Rows are joined on `index`, and the rows that all files contain are compared. Every bootstrap resample has the same rows
for all models, so that differences are paired. --ood adds OOD detection, and selective prediction on a mixture of
in-distribution and OOD rows.

examples:
  nescio compare a.npz b.npz c.npz
  nescio compare small=a.npz large=b.npz --measure entropy --metrics auroc,aurc --bootstrap 5000
  nescio compare a.parquet b.parquet --map logits=predictions,labels=label_ids
  nescio compare a.npz b.npz --ood svhn=a_svhn.npz,svhn=b_svhn.npz
"""

from __future__ import annotations

from dataclasses import dataclass

from nescio.api.comparison import CompareOptions
from nescio.api.comparison import compare as run
from nescio.commands._output import PageOptions
from nescio.options import option

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions, CompareOptions):
    all: bool = option(False, group="output")
