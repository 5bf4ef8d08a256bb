"""Predict with many pretrained models on your images, and compare their uncertainty.

MODEL is a timm name (resnet50, vit_base_patch16_224.augreg_in21k_ft_in1k), torchvision:NAME, store:KEY for a network of
`nescio train`, or a glob such as 'resnet*'. NAME@FILE is a model with another checkpoint. Every model has the
preprocessing of its published weights. A checkpoint has its own settings, or those of --input-size, --mean, --std,
--interpolation and --crop. Images are decoded once for all models with the same preprocessing.

Weights come from --weights, from the caches of the Hugging Face hub and of torch, or from the network. Finished work is
in the store: the same command again does only what is missing. A model that fails does not stop the others.

--class-names FILE names the classes of a fine-tuned checkpoint: one name per line, class 0 first. Lines NAME=CLASS map
folder names to classes. A model of ImageNet-1k accepts WordNet ids, ImageNet's class names and numbers.

With --ood-data, models also predict on images of other classes. Their detection is graded from easy to hard classes
(see `nescio run cood --help`).

examples:
  nescio zoo resnet50 vit_small_patch16_224 torchvision:vgg16 --data imagenet:/data/imagenet
  nescio zoo 'efficientnet*' --data imagenet:/data/imagenet --limit 5000
  nescio zoo --families vit --data imagenet:/data/imagenet --published results-imagenet.csv
  nescio zoo tf_efficientnet_lite0 --weights efficientnet-lite0.pth --data npz:val.npz
  nescio zoo resnet18@flowers.pth --class-names flowers.txt --data folder:/data/flowers
  nescio zoo resnet50 --data imagenet:/data/imagenet --ood-data folder:/data/imagenet21k --extra-ood imagenet-o=folder:o
  nescio zoo store:3f2a --data cifar10
"""

from __future__ import annotations

from dataclasses import dataclass

from nescio.api.dry_run import CostEstimate
from nescio.api.results import status
from nescio.api.zoo import ZooOptions, zoo
from nescio.benchmarks.base import page_name
from nescio.commands._output import TextOrJson, emit, report_folder
from nescio.commands._studies import emit_study, page_folder
from nescio.options import option


@dataclass(frozen=True, kw_only=True)
class Options(ZooOptions):
    output: str | None = option(None, unset="STORE/report/zoo-KEY", group="output")
    format: TextOrJson = option("text", group="output")


def run(options: Options) -> int:
    """Print the rows, or write one page per study, each with a link to the other."""
    result = zoo(options)
    if isinstance(result, CostEstimate):
        return emit(result, options.format)
    code = 0
    for line in result.failed:
        status(line)
    if options.format == "json":
        emit(result, options.format)
        for line in [line for one in result.results for line in one.failure_lines()]:
            status(line)
    elif result.results:
        studies = [one.study for one in result.results]
        folder = report_folder(options.output, options.storage.store, "report", page_name(studies[0], "zoo"))
        folder = page_folder(folder, studies[0])
        for one, path in result.pages(folder, page_folder(folder / "cood", studies[-1])):
            code = max(code, min(1, emit_study(one, path)))
        return code
    return result.exit_code
