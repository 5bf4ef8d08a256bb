"""What training and predicting take by the figures of docs/performance.md, where a store has seen none of it yet.

A network's arithmetic is counted (multiply and add are two), and divided by what nescio was seen to do in a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from nescio import backbones, datasets
from nescio.datasets.images import ImageSet
from nescio.errors import BadInput
from nescio.predict import Keeping
from nescio.runtime import runtime
from nescio.trials import Trial
from nescio.work.rehearsal import Cost
from nescio.work.steps import Context, Step

BACKWARD = 3  # a training step is a forward pass and a backward one, which is twice as long
PACES = {  # share of plain training's pace, by method
    "soft-labels": 0.9,
    "mc-dropout": 0.9,
    "deep-ae": 0.9,
    "rnd": 0.9,
    "mixup": 0.77,
    "rbf": 0.77,
    "oc": 0.77,
    "mimo": 0.69,
    "simclr": 0.62,
    "moco": 0.55,
    "due": 0.45,
    "byol": 0.44,
}


@dataclass(frozen=True)
class Machine:
    """What one worker was seen to do: ResNet-18 trained at 32 pixels, and a ResNet that predicts at 224, images/s."""

    name: str
    trained: float
    predicted: float
    predictor: str

    @property
    def training(self) -> float:
        """Operations a second."""
        return self.trained * BACKWARD * arithmetic("resnet18", 3, (32, 32)).operations

    @property
    def predicting(self) -> float:
        return self.predicted * arithmetic(self.predictor, 3, (224, 224)).operations


H200 = Machine("one H200, bf16", 47_678, 15_509, "resnet50")
CORE = Machine("one core", 23, 14, "resnet18")


@dataclass(frozen=True)
class Arithmetic:
    """Of one image through a backbone: operations; and how many weights and features it has."""

    operations: int
    params: int
    width: int


@lru_cache(maxsize=256)
def arithmetic(name: str, channels: int, shape: tuple[int, int], dense: bool = False) -> Arithmetic:
    """Counted without memory and without computing anything."""
    with torch.device("meta"), torch.no_grad():
        network = backbones.build(name, channels, shape, dense=dense).eval()
        with FlopCounterMode(display=False) as counter:
            network(torch.empty(1, channels, *shape))
    return Arithmetic(int(counter.get_total_flops()), backbones.parameters(network), network.num_features)


def training_seconds(machine: Machine, network: Arithmetic, images: float, method: str = "erm") -> float:
    """Of so many images, an image counted once in every epoch."""
    return images * BACKWARD * network.operations / machine.training / PACES.get(method, 1.0)


def predicting_seconds(machine: Machine, network: Arithmetic, images: float) -> float:
    return images * network.operations / machine.predicting


def machine_of(device: str) -> Machine:
    return H200 if runtime(device).device.type == "cuda" else CORE


def by_figures(step: Step, context: Context) -> Cost | None:
    """What training a network, or its prediction, takes; None for other steps, and for networks that are not timm's."""
    if isinstance(step.recipe, Trial):
        return _training(step.recipe, context)
    recipe = step.recipe if isinstance(step.recipe, dict) else {}
    images, keeping = recipe.get("images"), recipe.get("keeping")
    if not isinstance(images, ImageSet) or not isinstance(keeping, Keeping):
        return None
    trial = next((parent.recipe for parent in step.parents if isinstance(parent, Step)), None)
    loaded = images.load(context.root, context.store)
    classes = len(loaded.dataset.classes)
    try:
        if isinstance(trial, Trial):
            classes = len(trial.classes or datasets.load(trial.data, context.root).classes)
            network = _network(trial, datasets.load(trial.data, context.root))
        else:
            assert images.view is not None, "networks that were trained elsewhere see images under a view of theirs"
            network = arithmetic(recipe["model"], images.view.channels, images.view.shape)
    except BadInput:
        return None
    kept = classes * ("logits" in keeping.fields) + network.width * ("embeddings" in keeping.fields)
    size = len(loaded) * kept * (2 if keeping.dtype == "float16" else 4)
    return Cost(predicting_seconds(machine_of(context.device), network, len(loaded)), size)


def _training(trial: Trial, context: Context) -> Cost:
    dataset = datasets.load(trial.data, context.root)
    network = _network(trial, dataset)
    images = len(datasets.splits(dataset, trial.classes, trial.data_seed).train) * trial.training.epochs
    return Cost(training_seconds(machine_of(context.device), network, images, trial.method), 4 * network.params)


def _network(trial: Trial, dataset: datasets.Dataset) -> Arithmetic:
    return arithmetic(trial.backbone, dataset.channels, dataset.shape, trial.task == "segmentation")
