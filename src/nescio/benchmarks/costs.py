"""Estimated costs of steps if a store has no finished step of their kind.

If epochs are short, one is run on this machine and measured. Otherwise the operations of a network are counted
(multiply and add are two), and divided by measured operations per second (docs/performance.md). Other steps have
constants that were measured on one core.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from nescio import backbones, datasets
from nescio.datasets.image_set import ImageSet
from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.networks.network import Network
from nescio.predict import OutputSpec
from nescio.rows import Row
from nescio.runtime import runtime_for
from nescio.training import fit
from nescio.trials import Trial
from nescio.work.dry_run import Cost, Expected
from nescio.work.steps import Context, Step

SHORT = 3.0  # estimated seconds of an epoch, up to which one epoch is measured
PREDICTION, EVALUATION = 0.06, 0.08  # fixed seconds of a step on one core
FILE_READING, SCORING = 0.006, 2e-5  # seconds per file that an evaluation reads; per row and measure
LOGIT_EVALUATION = 1.2e-7  # seconds per logit of a pretrained network, raw and calibrated
RESAMPLES, COMPARISON = 1000, 3e-9  # resamples of a comparison of models; seconds per row, model and resample
INTERVAL = 5e-8  # seconds per row and resample for intervals of one model
LOADING, DECODING = 0.4, 0.0055  # seconds per pretrained network; per image of 500 × 375
STORY = 3.0  # seconds per page with charts
RESAMPLING = 1e-7  # seconds per row, measure and resample
VIEWS = 8  # number of augmented copies of an image for probes
EXACT = 16  # number of classes up to which probes compute the whole Jacobian
BACKWARD = 3  # cost of a training step in forward passes: one forward, and a backward pass that costs two
PACES = {  # method → training speed relative to plain training
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
    """Measured speed of one worker: ResNet-18 trained at 32 pixels, and a ResNet predicting at 224, images/s."""

    name: str
    trained: float
    predicted: float
    predictor: str

    @property
    def training(self) -> float:
        """Training operations per second."""
        return self.trained * BACKWARD * arithmetic("resnet18", 3, (32, 32)).operations

    @property
    def predicting(self) -> float:
        return self.predicted * arithmetic(self.predictor, 3, (224, 224)).operations


H200 = Machine("one H200, bf16", 47_678, 15_509, "resnet50")
CORE = Machine("one core", 23, 14, "resnet18")


@dataclass(frozen=True)
class Arithmetic:
    """Operations of a backbone per image, and its numbers of weights and features."""

    operations: int
    params: int
    width: int


@lru_cache(maxsize=256)
def arithmetic(name: str, channels: int, shape: tuple[int, int], dense: bool = False) -> Arithmetic:
    """Count the operations, without memory and without computing anything."""
    with torch.device("meta"), torch.no_grad():
        network = backbones.build(name, channels, shape, dense=dense).eval()
        with FlopCounterMode(display=False) as counter:
            network(torch.empty(1, channels, *shape))
    return Arithmetic(int(counter.get_total_flops()), backbones.parameters(network), network.num_features)


def training_seconds(machine: Machine, network: Arithmetic, images: float, method: str = "erm") -> float:
    """Seconds of training on a number of images, counted once per epoch."""
    return images * BACKWARD * network.operations / machine.training / PACES.get(method, 1.0)


def predicting_seconds(machine: Machine, network: Arithmetic, images: float) -> float:
    return images * network.operations / machine.predicting


def machine_of(device: str) -> Machine:
    return H200 if runtime_for(device).device.type == "cuda" else CORE


def clock_of(device: str) -> str:
    """The clock of finished work: processor time on a CPU, which other processes do not lengthen."""
    return "seconds" if runtime_for(device).device.type == "cuda" else "processor_seconds"


def estimated(step: Step, context: Context) -> Cost | None:
    """The cost of a step; None for networks that timm does not have, and for unknown stages."""
    if isinstance(step, Expected):
        return step.cost
    if isinstance(step.config, Trial):
        return _training(step.config, context)
    config = step.config if isinstance(step.config, dict) else {}
    if step.stage == "evaluate":
        return _evaluation_cost(step, context)
    if "probes" in config:
        return _probing(step, context)
    images, output_spec = config.get("images"), config.get("keeping")
    if not isinstance(images, ImageSet) or not isinstance(output_spec, OutputSpec):
        return None
    trial = next((parent.config for parent in step.parents if isinstance(parent, Step)), None)
    image_set = images.load(context.root, context.store)
    classes = len(image_set.dataset.classes)
    try:
        if isinstance(trial, Trial):
            classes = len(trial.classes or datasets.load(trial.data, context.root).classes)
            network = _network(trial, datasets.load(trial.data, context.root))
        else:
            assert images.view is not None, "networks that were trained elsewhere have a view"
            network = arithmetic(config["model"], images.view.channels, images.view.shape)
    except BadInput:
        return None
    width = classes * ("logits" in output_spec.fields) + network.width * ("embeddings" in output_spec.fields)
    size = len(image_set) * width * (2 if output_spec.dtype == "float16" else 4)
    return Cost(PREDICTION + predicting_seconds(machine_of(context.device), network, len(image_set)), size)


# ---- pretrained networks


def pretrained_prediction(network: Network, images: int, output_spec: OutputSpec, device: str) -> Cost | None:
    """Cost of a prediction by a pretrained network; None for networks that timm does not have."""
    name = network.trial.backbone if network.trial else network.arch
    try:
        arithmetic_of_view = arithmetic(name, network.view.channels, network.view.shape)
    except BadInput:
        return None
    width = network.classes + arithmetic_of_view.width * ("embeddings" in output_spec.fields)
    seconds = LOADING + predicting_seconds(machine_of(device), arithmetic_of_view, images)
    return Cost(seconds, images * width * (2 if output_spec.dtype == "float16" else 4))


def decoding(images: int, view: View) -> Cost:
    """Cost of preprocessing images for a view."""
    return Cost(images * DECODING, images * view.bytes)


def evaluating(images: int, classes: int) -> Cost:
    """Cost of the evaluation of a pretrained network's predictions."""
    return Cost(EVALUATION + images * (classes * LOGIT_EVALUATION + 2 * RESAMPLES * INTERVAL), 20_000)


def comparing(images: int, models: int) -> Cost:
    """Cost of a paired bootstrap of models, by one metric."""
    return Cost(EVALUATION + images * models * RESAMPLES * COMPARISON, 20_000)


# ---- networks that are trained here


def _training(trial: Trial, context: Context) -> Cost:
    dataset = datasets.load(trial.data, context.root)
    network = _network(trial, dataset)
    images = len(datasets.split_dataset(dataset, trial.classes, trial.data_seed).train)
    epoch = training_seconds(machine_of(context.device), network, images, trial.method)
    start = 0.0
    if epoch < SHORT and trial.start is None and trial.stop is None:
        start, epoch = _epoch(trial, context)
    return Cost(start + epoch * trial.training.epochs, 4 * network.params)


_epochs: dict[object, tuple[float, float]] = {}


def _epoch(trial: Trial, context: Context) -> tuple[float, float]:
    """Seconds of a training outside of its epochs, and of one epoch, which is run and discarded."""
    kind = (*(getattr(trial, name) for name in ("method", "backbone", "spectral", "data", "task")), context.device)
    kind = (*kind, len(trial.classes or ()), trial.training.batch_size)
    if not _epochs:
        _epochs[()] = _train_once(trial, context)  # the first training of a process takes seconds more
    if kind not in _epochs:
        _epochs[kind] = _train_once(trial, context)
    return _epochs[kind]


def _train_once(trial: Trial, context: Context) -> tuple[float, float]:
    short = replace(trial, kept=(), training=replace(trial.training, epochs=1))
    runtime = runtime_for(context.device).with_precision(trial.training.precision)
    start_time, start_processor_time = time.monotonic(), time.process_time()
    try:
        _, facts = fit(short, datasets.load(trial.data, context.root), runtime, None, math.inf, None, context.store)
    except (BadInput, RuntimeError):  # the training itself states the reason
        return 0.0, 0.0
    seconds, share = time.monotonic() - start_time, 1.0
    if runtime.device.type == "cpu":  # time of other processes does not count
        share = min(1.0, (time.process_time() - start_processor_time) / seconds)
    return share * (seconds - facts["seconds"]), share * facts["seconds"]


def waking() -> float:
    """Additional seconds of the first measured training of the process."""
    first, *others = _epochs.values() or [(0.0, 0.0)]
    return max(0.0, sum(first) - sum(others[0])) if others else 0.0


def _evaluation_cost(step: Step, context: Context) -> Cost:
    """Cost of reading predictions, and of every row, measure and resample."""
    config = step.config
    prediction_steps = [parent for parent in step.parents if isinstance(parent, Step) and "images" in _config(parent)]
    rows = sum(_count(parent.config["images"], context) for parent in prediction_steps)
    names = max(1, len(config.get("measures") or ()))
    scoring_seconds = rows * names * (SCORING + RESAMPLING * (config.get("bootstrap") or 0))
    return Cost(EVALUATION + FILE_READING * len(prediction_steps) + scoring_seconds, 20_000)


def _probing(step: Step, context: Context) -> Cost | None:
    """Cost of a backward pass per class and a few views of every image, for each member."""
    trials = [parent.config for parent in step.parents if isinstance(parent, Step) and isinstance(parent.config, Trial)]
    if not trials:
        return None
    dataset = datasets.load(trials[0].data, context.root)
    classes = min(len(trials[0].classes or dataset.classes), EXACT)
    trained = len(datasets.split_dataset(dataset, trials[0].classes, trials[0].data_seed).train)
    image_seconds = (_training(trials[0], context).seconds / trials[0].training.epochs) / max(1, trained)
    images = _count(step.config["images"], context)
    return Cost(PREDICTION + images * len(trials) * image_seconds * (classes + VIEWS / BACKWARD), 4 * images * classes)


def _config(step: Step) -> Row:
    return step.config if isinstance(step.config, dict) else {}


@lru_cache(maxsize=4096)
def _rows_of(images: ImageSet, root: str | None) -> int:
    return len(images.load(root))


def _count(images: object, context: Context) -> int:
    """Number of images of a set, or of several; a change of images has no effect on it."""
    if isinstance(images, (list, tuple)):
        return sum(_count(each, context) for each in images)
    return _rows_of(replace(images, change=None, view=None), context.root) if isinstance(images, ImageSet) else 0


def _network(trial: Trial, dataset: datasets.Dataset) -> Arithmetic:
    return arithmetic(trial.backbone, dataset.channels, dataset.shape, trial.task == "segmentation")
