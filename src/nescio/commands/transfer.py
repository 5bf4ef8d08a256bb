"""Evaluate a network's embeddings on images of new classes (recall@1), and recommend an uncertainty score.

MODEL is a timm name or torchvision:NAME (with @FILE for other weights), store:KEY for a network of `nescio train`, or a
predictions file. The file has `embeddings` (n, d), and optionally `labels`, `logits` and `scores/NAME`. A network
predicts on --data, and on --crops random crops of every image.

R@1 is the share of images whose nearest neighbour has the same class. R-AUROC is the AUROC of a score for the other
images (Kirchhof et al. 2023). Scores of single images and scores of the gallery (all other images) are listed
separately. The recommendation needs no labels: the entropy if the images do not differ from --reference, else
gallery_uncertainty. It can be wrong for shifted images of the network's own classes and for mixtures of classes.

examples:
  nescio transfer resnet50 --data folder:photos
  nescio transfer vit_base_patch16_224@mine.safetensors --data folder:cars --classes 98-195 --output out
  nescio transfer store:3f2a --data cifar100 --siblings store:77b0,store:91c2 --row-scores scores.csv
  nescio transfer test.npz --views crop0.npz,crop1.npz --reference val.npz --format json
"""

from __future__ import annotations

from dataclasses import dataclass

from nescio.api.transfer import TransferOptions
from nescio.api.transfer import transfer as run
from nescio.commands._output import PageOptions

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions, TransferOptions):
    pass
