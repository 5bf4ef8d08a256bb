"""Split the classes of a labelled dataset into in- and out-of-distribution ones by visual similarity.

Ward's tree is built from the class means of a reference model's features. The smaller side of its root is
in-distribution, and equally many classes of the other side are out-of-distribution (UIMNET, section 2).

examples:
  nescio imagenot --data digits --output imagenot.json
  nescio imagenot --data folder:birds@224 --features resnet18 --weights resnet18.safetensors --output imagenot.json
  nescio imagenot --data cifar100 --features 3f9a0c21d4be7788 --store store --output imagenot.json
  nescio imagenot --data cifar100 --features train.npz --output imagenot.json
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from nescio.api.results import status
from nescio.api.storage import DATA, check_device, print_notes
from nescio.commands._output import TextOrJson, say
from nescio.errors import BadInput
from nescio.networks.preprocessing import Preprocessing
from nescio.options import REQUIRED, nested, option

if TYPE_CHECKING:
    from nescio.arrays.types import Array
    from nescio.datasets import Dataset
    from nescio.datasets.partition import Partition
    from nescio.predictions import Predictions


@dataclass(frozen=True, kw_only=True)
class Options:
    data: str = option(REQUIRED, kind="dataset")
    root: str | None = option(None, unset=DATA)
    features: str = option(
        "pixels",
        "features of the images: pixels; a timm model, with --weights; the key of a training, with --store; or a "
        "predictions file with embeddings and labels",
        metavar="WHAT",
    )
    weights: str | None = option(None)
    store: str | None = option(None)
    preprocessing: Preprocessing = nested(Preprocessing())
    device: str = option("auto")
    output: str | None = option(None)
    format: TextOrJson = option("text")


def run(options: Options) -> int:
    from nescio import datasets
    from nescio.datasets import partition as imagenot

    if options.weights and options.store:
        raise BadInput("Both --weights and --store are given: features come from a timm model or from a training.")
    if options.preprocessing.set_fields and not options.weights:
        flag = options.preprocessing.set_fields[0].replace("_", "-")
        raise BadInput(f"--{flag} is of a timm model with --weights, and none is named: omit it.")
    check_device(options.device)
    dataset = datasets.load(options.data, options.root)
    print_notes(dataset)
    means, features = _means(options, dataset)
    split = imagenot.imagenot(dataset, means, features)
    if options.output:
        split.save(options.output)
    if options.format == "json":
        say(split.to_json())
        return 0
    _show(split)
    if options.output:
        say(f"The partition is {options.output}.")
    return 0


def _means(options: Options, dataset: Dataset) -> tuple[Array, str]:
    """Class means, and what they are means of."""
    from nescio.datasets.partition import class_means_of, pixel_means
    from nescio.predictions import Predictions

    features = options.features
    if options.weights or options.store:
        kind = "timm model" if options.weights else "training"
        return class_means_of(_embeddings(options), dataset), f"{kind} {features}"
    if features == "pixels":
        return pixel_means(dataset), "pixels"
    if Path(features).exists():
        return class_means_of(Predictions.load(features), dataset), f"predictions {Path(features).name}"
    raise BadInput(
        f"--features {features}: there is no such file. If it is a timm model, name its weights with --weights; "
        "if it is the key of a training, name its store with --store; the images themselves are --features pixels."
    )


def _embeddings(options: Options) -> Predictions:
    """A network's embeddings of the training images. Nothing is stored for a pretrained network."""
    from nescio.datasets.image_set import ImageSet
    from nescio.networks.models import find_network, with_weights
    from nescio.networks.network import describe_preprocessing, with_preprocessing
    from nescio.predict import embed
    from nescio.work.steps import Context
    from nescio.work.store import Store

    with TemporaryDirectory() as folder:
        context = Context(Store(options.store or folder), options.root, options.device)
        name = f"store:{options.features}" if options.store else options.features
        model = find_network(name, context.store, options.root)
        model = with_weights(model, Path(options.weights) if options.weights else None)
        (model,) = with_preprocessing([model], options.preprocessing, options.data)
        for sentence in describe_preprocessing([model]):
            status(sentence)
        (predictions,) = embed([model], ImageSet(options.data, "train_val"), context)
        return predictions.replace(embeddings=np.array(predictions.embeddings))  # the folder goes


def _show(split: Partition) -> None:
    from itertools import zip_longest

    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{split.dataset}: classes by the Ward tree of {split.features}", title_justify="left")
    table.add_column(f"in-distribution ({len(split.inside)})", overflow="fold")
    table.add_column(f"out-of-distribution ({len(split.outside)})", overflow="fold")
    labels = ([_class_label(split, label) for label in side] for side in (split.inside, split.outside))
    for line in zip_longest(*labels, fillvalue=""):
        table.add_row(*line)
    console = Console(markup=False, highlight=False)
    console.print(table)
    unused = len(split.order) - len(split.inside) - len(split.outside)
    if unused:
        console.print(f"{unused} of {len(split.order)} classes are in neither set: both sets have the same size.")
    if len(split.inside) < 2:
        console.print(
            "With one in-distribution class there is nothing to classify: other features may give a more balanced tree."
        )


def _class_label(split: Partition, label: int) -> str:
    name = split.classes[label]
    return name if name == str(label) else f"{label}  {name}"
