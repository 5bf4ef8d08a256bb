"""Evidence on trained weights that a method works, for `nescio verify` and `testing.check_method`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nescio import datasets
from nescio.arrays.nearest import nearest_rows, prepare_points
from nescio.datasets import Batches, Dataset, Images
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.layers.spectral import bound_holds, layer_norms, operator_norms, share_above_bound
from nescio.methods.base import Evidence, Method, check_output, first_batch, registry
from nescio.methods.evidence import accuracy_of, gradient_of, noise_images
from nescio.metrics import auroc
from nescio.networks.forward import Segmenter
from nescio.networks.models import network_of_trial
from nescio.predict import count_pixels, predict_images
from nescio.runtime import Runtime, runtime_for, seed_everything
from nescio.search import HParams
from nescio.training import fit, initial_method, load_method, train, usual_batch
from nescio.trials import Training, Trial
from nescio.work.store import Store

ROWS = 64  # rows of a batch, and images of the cheap checks
NEIGHBOURS = 2000  # maximum number of training images among which neighbours are searched
EPOCHS = {True: 6, False: 12}  # number for methods with and without class predictions; the latter learn more slowly
MORE_EPOCHS = {"mlp": 1}  # additional epochs of backbones without batch-norm, which learn more slowly


def small_trial(
    name: str,
    *,
    data: str = "digits",
    backbone: str = "conv",
    epochs: int | None = None,
    hparams: HParams | None = None,
    root: str | Path | None = None,
    task: Any = "classification",
) -> Trial:
    """A small task for the checks of a method."""
    cls = registry[name]
    name = registry.canonical(name)
    epochs = EPOCHS[cls.classifies] + MORE_EPOCHS.get(backbone, 0) if epochs is None else epochs
    if epochs < 2:
        raise BadInput(f"{epochs} epochs are too few to see a loss fall: at least 2 are needed.")
    rows = len(datasets.split_dataset(datasets.load(data, root)).train)
    augment: Any = cls.augment or "none"
    batch = min(ROWS, rows) if task == "classification" else usual_batch(rows, task=task)
    plan = Training(epochs=epochs, batch_size=batch, augment=augment, schedule="cosine", precision="float32")
    return Trial(
        method=name, hparams=hparams or cls.hparams_class(), data=data, backbone=backbone, training=plan, task=task
    )


def observe(trial: Trial, *, spectral: float = 1.0, root: str | Path | None = None) -> Iterator[tuple[str, Evidence]]:
    """Train a trial on the CPU and yield the name and the result of each check."""
    dataset, runtime = datasets.load(trial.data, root), runtime_for("cpu", trial.training.precision)
    losses: dict[int, list[float]] = {}

    def watch(seen: dict[str, Any]) -> None:
        losses.setdefault(int(seen["epoch"] - 1e-9), []).append(seen["loss"])

    method, _ = fit(trial, dataset, runtime, None, float("inf"), watch)
    first, last = (sum(losses[epoch]) / len(losses[epoch]) for epoch in (min(losses), max(losses)))
    yield "loss falls", Evidence(f"{first:.3g} in the first epoch, {last:.3g} in the last", last < first)
    yield from _general(method, trial, dataset, runtime)
    yield from method_evidence(method, trial, dataset, runtime).items()
    yield from _reproducible(trial, dataset, runtime, root)
    yield "spectral norm", _bounded(replace(trial, spectral=spectral), dataset, runtime)


def method_evidence(method: Method, trial: Trial, dataset: Dataset, runtime: Runtime) -> dict[str, Evidence]:
    """Evidence that the distinctive part of a method has an effect, compared with the untrained method."""
    start = initial_method(trial, dataset, runtime)
    images = _batches(trial, dataset, runtime)
    if method.views > 1:
        images = replace(images, views=method.views, augment=trial.training.augment)
    with torch.no_grad():
        evidence = method.eval().evidence(method.as_rows(images), start)
    if method.strength_hparam is not None and method.strength_direction == "larger":  # the weight of a term of the loss
        evidence["strength acts"] = _strength_acts(method, method.strength_hparam, method.as_rows(images))
    return evidence


def _strength_acts(method: Method, name: str, batches: Any) -> Evidence:
    """Whether twice the regularisation strength changes the gradient of the features."""
    x, y = first_batch(batches)

    def gradient_with(factor: float) -> Tensor:
        changed = deepcopy(method)
        losses: list[Tensor] = []
        object.__setattr__(changed.hparams, name, factor * getattr(method.hparams, name))  # the copy's own
        seed_everything(0)
        changed.update(x, y, losses.append)
        return gradient_of(losses[0], changed.features)

    gradient, doubled = gradient_with(1.0), gradient_with(2.0)
    change = float((doubled - gradient).norm() / gradient.norm())
    return Evidence(f"twice the {name} changes the features' gradient by {change:.2g} of its length", change > 1e-7)


def _batches(trial: Trial, dataset: Dataset, runtime: Runtime) -> Batches:
    """Training images in random order."""
    rows = 256 if trial.task == "classification" else trial.training.batch_size
    return Batches(_training_images(trial, dataset), dataset, runtime.device, batch=rows, shuffle=True)


def _training_images(trial: Trial, dataset: Dataset) -> Images:
    return datasets.split_dataset(dataset, trial.classes, trial.data_seed).train


@torch.no_grad()  # only while the generator runs: the caller's gradients stay on
def _general(method: Method, trial: Trial, dataset: Dataset, runtime: Runtime) -> Iterator[tuple[str, Evidence]]:
    x, _ = first_batch(_batches(trial, dataset, runtime), trial.training.batch_size if method.spec.dense else ROWS)
    check_output(method, method(x), None if method.spec.dense else len(x))
    yield "learns", (_classifies_well if method.classifies else _groups_well)(method, trial, dataset, runtime)
    noise = noise_images(x)
    beside_images, beside_noise = _outputs(method, torch.cat([x, x.flip(0)])), _outputs(method, torch.cat([x, noise]))
    change = max(float((a - b)[: len(a) // 2].abs().max()) for a, b in zip(beside_images, beside_noise, strict=True))
    observed = f"with noise instead of images in the same batch, a prediction changes by {change:.1g}"
    yield "rows stand alone", Evidence(observed, change < 1e-4)
    output = method(x)
    if output.logits is not None and output.logits.shape[1] > 1:
        p = output.logits.float().softmax(-1)
        spread = float((p - p.mean(1, keepdim=True)).abs().max())
        yield "draws differ", Evidence(f"{p.shape[1]} draws, p changes by up to {spread:.3f}", spread > 1e-3)
    if method.scores:
        names = ", ".join(output.scores) or "none"
        yield "scores", Evidence(f"{names}, as declared by the class", tuple(output.scores) == method.scores)
    if output.scores and method.rises_far_from_data:
        scores = [next(iter(answer.scores.values())) for answer in (output, method(noise))]
        u = torch.cat([score.double().view(len(x), -1).mean(1) for score in scores])  # means over image locations
        area = auroc(u.numpy(), torch.arange(2 * len(x)).ge(len(x)).numpy())
        observed = f"in {area:.0%} of pairs noise gets a higher native score than a training image"
        yield "noise above data", Evidence(observed, area > 0.9)


def _classifies_well(method: Method, trial: Trial, dataset: Dataset, runtime: Runtime) -> Evidence:
    accuracy, chance = accuracy_of(method, method.as_rows(_batches(trial, dataset, runtime))), 1 / method.spec.classes
    rows = "locations in training images" if method.spec.dense else "training images"
    return Evidence(f"right on {accuracy:.0%} of {rows}, by chance {chance:.0%}", accuracy > 2 * chance)


def _groups_well(method: Method, trial: Trial, dataset: Dataset, runtime: Runtime) -> Evidence:
    """For methods without class predictions: whether the nearest neighbour of an augmented image is of its class."""
    images = _training_images(trial, dataset)
    images = images.take(np.arange(len(images))[:: -(-len(images) // NEIGHBOURS)])

    def share_found(network: Method) -> float:
        plain, changed = (
            _embeddings(network, Batches(images, dataset, runtime.device, augment=augment, seed=1))
            for augment in ("none", trial.training.augment)
        )
        reference = prepare_points(plain, "euclidean")
        first = nearest_rows(reference, prepare_points(changed, "euclidean", like=reference), (1,), exclude_self=True)[
            :, 0
        ]
        return float(np.mean(images.labels[first] == images.labels))

    initial, final = share_found(initial_method(trial, dataset, runtime)), share_found(method)
    observed = f"the image nearest to a changed one is of its class in {final:.0%}, before training in {initial:.0%}"
    return Evidence(observed, final > 1.1 * initial and final > 2 / method.spec.classes)


def _embeddings(method: Method, batches: Batches) -> Any:
    outputs = [method(x).embeddings for x, _, _ in batches]
    return torch.cat([embeddings for embeddings in outputs if embeddings is not None]).numpy()


def _outputs(method: Method, x: Tensor) -> list[Tensor]:
    """All outputs, with the same random numbers for any images."""
    seed_everything(0)
    output = method(torch.zeros(x.shape).copy_(x))  # one memory layout: dropout draws along the memory
    tensors = (output.logits, output.embeddings, *output.scores.values())
    return [tensor.float() for tensor in tensors if tensor is not None]


def _reproducible(
    trial: Trial, dataset: Dataset, runtime: Runtime, root: str | Path | None
) -> Iterator[tuple[str, Evidence]]:
    """Whether one epoch in memory and one through a store give equal weights and predictions."""
    short = replace(trial, training=replace(trial.training, epochs=1))
    direct, _ = fit(short, dataset, runtime, None, float("inf"), None)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        loaded = load_method(train(short, store, runtime, root=root), short, store, runtime, root)
    tensors, repeated = direct.state_dict(), loaded.state_dict()
    differ = [name for name in tensors if not torch.equal(tensors[name], repeated[name])]
    observed = (
        f"{len(differ)} of {len(tensors)} tensors differ between two runs"
        if differ
        else f"{len(tensors)} tensors, bit for bit"
    )
    yield "same seed, same weights", Evidence(observed, not differ)
    images = ImageSet(trial.data, "val", trial.classes, seed=trial.data_seed).load(root)
    network = network_of_trial(trial, root)
    if trial.task == "segmentation":
        u, v = (count_pixels([Segmenter(module)], network, images, None, runtime) for module in (direct, loaded))
        same = u.rows() == v.rows()
        observed = f"{'the same' if same else 'other'} predictions for {u.n} pixels"
        yield "saved and reloaded", Evidence(observed, same and np.array_equal(u.confusion, v.confusion))
        return
    a, b = (predict_images(module, network, images, None, runtime, seed=1) for module in (direct, loaded))
    pairs = {"logits": (a.logits, b.logits), "embeddings": (a.embeddings, b.embeddings)}
    pairs |= {name: (a.scores[name], b.scores.get(name)) for name in a.scores}
    differing = [name for name, (u, v) in pairs.items() if u is not None and (v is None or (u != v).any())]
    observed = f"{' and '.join(differing)} differ" if differing else f"the same predictions for {len(images)} images"
    yield "saved and reloaded", Evidence(observed, not differing)


def _bounded(trial: Trial, dataset: Dataset, runtime: Runtime) -> Evidence:
    """Whether the weights in use of all feature layers have singular values within the bound."""
    assert trial.spectral is not None
    method, _ = fit(
        replace(trial, training=replace(trial.training, epochs=2)), dataset, runtime, None, float("inf"), None
    )
    if not layer_norms(method.features):
        return Evidence("the features have no layer that it bounds", False)
    x, _ = first_batch(_batches(trial, dataset, runtime), 1)
    maps = operator_norms(method.features, x.repeat(1, method.spec.channels // x.shape[1], 1, 1))
    addition = f"; as maps of images convolutions reach {max(maps.values()):.2f}" if maps else ""
    observed, is_within = bound_holds(method.features, trial.spectral)
    share = share_above_bound(method.features) or 0.0
    return Evidence(f"{observed}, {share:.0%} of them limited by it{addition}", is_within and share > 0)
