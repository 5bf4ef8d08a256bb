"""Evaluate saved predictions: accuracy, calibration, misclassification detection and OOD detection.

FILE is a .npz, .safetensors, .parquet, .csv or .pt file, or a folder, of a single-label classifier. It contains
`labels` (n,) and one of these: `logits` (n, classes) or (n, draws, classes), `probs`, or `correct` with `confidence`.
Optional fields are `embeddings` (n, d), `annotations`, `scores/NAME`, `groups/NAME` and `variants/view_0`. A CSV file
has the columns label, logit_0 … or prob_0 …, and u_NAME, or one column per class name. --map renames fields.

logits:a.npy,labels:b.npy combines single arrays into one FILE. A folder of files with some rows each and their `index`
is one FILE as well. Above 256 MB it is read file by file, and metrics that need all rows at once are left out.

Segmentation: --labels, --predictions and --score-maps are folders of maps, matched by file name.

examples:
  nescio evaluate preds.npz
  nescio evaluate test.npz --val val.npz --ood svhn=svhn.npz,noise=noise.npz
  nescio evaluate test.npz --ood near:cifar100=a.npz,far:mnist=b.npz,far:cub=c.npz --ood-share 0.2
  nescio evaluate test.npz --train train.npz --val val.npz --choose mistakes      choose the best score
  nescio evaluate test.npz --views crop0.npz,crop1.npz        retrieval with gallery scores
  nescio evaluate small=a.npz large=b.npz --output out        one page for both: out/index.html
  nescio evaluate hf.npz --map logits=predictions,labels=label_ids
  nescio evaluate --logits logits.npy --labels labels.npy --all
  nescio evaluate --labels truth --predictions predicted --score-maps entropy=maps --ignore-label 255
  nescio evaluate preds.npz --format json | jq '.files[0].rows[] | select(.metric == "auroc")'
"""

from __future__ import annotations

from dataclasses import dataclass

from nescio.api.evaluation import EvaluateOptions
from nescio.api.evaluation import evaluate as run
from nescio.commands._output import PageOptions
from nescio.options import option

__all__ = ["ELSEWHERE", "Options", "run"]

_EVERY = "evaluate shows every measure, the commonest first (--all: all of them)"
ELSEWHERE = dict.fromkeys(  # options of other commands → what to use
    ("--measure", "--measures"), f"{_EVERY}; `nescio compare FILE --measure NAME` shows one."
)


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions, EvaluateOptions):
    all: bool = option(False, group="output")
