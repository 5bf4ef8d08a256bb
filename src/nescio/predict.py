"""A trained method and a split in, Predictions out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nescio import datasets, probes
from nescio.config import Trial, seed_for
from nescio.datasets import Batches
from nescio.errors import BadInput
from nescio.methods.base import Method, registry
from nescio.predictions import Predictions
from nescio.runtime import Runtime, evaluating, seed_everything
from nescio.store import Store
from nescio.training import load_method

VERSION = 1  # of what prediction does; a change that moves numbers raises it
DUMP = "dump"  # the folder of Predictions inside an entry of the store
SPLITS = ("val", "test", "out")
BATCH = 512
PROBE_PIXELS = 128 * 64**2  # of a batch of probes: they go backward through the network, which keeps every layer
VIEWS = 8  # augmented copies of an image that test-time augmentation averages


def predict_key(key: str, split: str, outside: Sequence[int] | None, store: Store) -> str:
    """Where the dump of a trained trial on a split lies."""
    return store.key("predict", _asked(split, outside), parents=(key,), version=VERSION)


def predict(
    key: str,
    trial: Trial,
    split: str,
    store: Store,
    runtime: Runtime,
    *,
    outside: Sequence[int] | None = None,
    root: str | Path | None = None,
    wait: bool = True,
    compile: bool = False,
) -> str:
    """What a trained trial says about one split, in the store; returns the dump's key.

    `outside` names the classes of the split `out`; None: all that are not in-domain. The precision is the trial's.
    `compile` only saves time on large sets; what is in the store already is not predicted again.
    """
    with store.work("predict", _asked(split, outside), parents=(key,), version=VERSION, wait=wait) as part:
        if part is not None:
            dataset, runtime = datasets.load(trial.data, root), runtime.at(trial.training.precision)
            method = load_method(key, trial, store, runtime, root)
            if compile:
                method.features.compile()
            images = split_of(dataset, trial, split, outside)
            dump_of(method, images, dataset, runtime, seed=seed_for(key, split)).save(part.folder / DUMP)
    return predict_key(key, split, outside, store)


def _asked(split: str, outside: Sequence[int] | None) -> dict[str, Any]:
    return {"split": split, "outside": list(outside)} if split == "out" and outside is not None else {"split": split}


def _probed(split: str, outside: Sequence[int] | None, temperatures: Sequence[float]) -> dict[str, Any]:
    asked = {"temperatures": [float(f"{t:.6g}") for t in temperatures], "probes": ["jacobian", "tta", "native"]}
    return {**_asked(split, outside), **asked}


def probe_key(
    keys: Sequence[str], temperatures: Sequence[float], split: str, outside: Sequence[int] | None, store: Store
) -> str:
    """Where the probes of an average of members lie."""
    return store.key("predict", _probed(split, outside, temperatures), parents=tuple(keys), version=VERSION)


def probe(
    members: Sequence[tuple[str, Trial]],
    temperatures: Sequence[float],
    split: str,
    store: Store,
    runtime: Runtime,
    *,
    outside: Sequence[int] | None = None,
    root: str | Path | None = None,
    wait: bool = True,
) -> str:
    """Jacobian, test-time augmentation and native score of an average of calibrated members, in the store."""
    if mute := [trial.method for _, trial in members if not registry[trial.method].classifies]:
        raise BadInput(f"{mute[0]} gives features and no answers, so it has no Jacobian and no test-time augmentation.")
    recipe, keys = _probed(split, outside, temperatures), tuple(key for key, _ in members)
    with store.work("predict", recipe, parents=keys, version=VERSION, wait=wait) as part:
        if part is not None:
            _, trial = members[0]
            dataset, runtime = datasets.load(trial.data, root), runtime.at(trial.training.precision)
            methods = [load_method(key, each, store, runtime, root) for key, each in members]
            for method, temperature in zip(methods, recipe["temperatures"], strict=True):
                method.temperature = temperature
            images = split_of(dataset, trial, split, outside)
            found = probed(methods, images, dataset, runtime, trial.training.augment, seed_for(*keys, split))
            found.save(part.folder / DUMP)
    return probe_key(keys, temperatures, split, outside, store)


def load_dump(key: str, store: Store) -> Predictions:
    return Predictions.load(store.path("predict", key) / DUMP)


def split_of(
    dataset: datasets.Dataset, trial: Trial, split: str, outside: Sequence[int] | None = None
) -> datasets.Images:
    """The images of a split as a trial sees them."""
    others = None if outside is None else tuple(outside)
    images: datasets.Images = getattr(datasets.splits(dataset, trial.classes, trial.data_seed, others), split)
    if not len(images):
        raise BadInput(f"The split {split!r} of {dataset.name} is empty: every class is in-domain in this trial.")
    return images


def dump_of(
    method: Method,
    images: datasets.Images,
    dataset: datasets.Dataset,
    runtime: Runtime,
    *,
    seed: int = 0,
    batch: int = BATCH,
) -> Predictions:
    """Logits, embeddings and native scores of every image."""
    seed_everything(seed)
    held = Host(len(images))
    with evaluating(method), torch.inference_mode():
        for x, _, _ in Batches(images, dataset, runtime.device, batch=batch, channels_last=runtime.channels_last):
            with runtime.autocast():
                output = method(x)
            held.take({"logits": output.logits, "embeddings": output.embeddings, **output.scores})
    arrays = held.arrays()
    return Predictions(
        index=images.index,
        labels=images.labels,
        taught=images.taught,
        logits=arrays.pop("logits", None),
        embeddings=arrays.pop("embeddings", None),
        scores=arrays,
        normalized=method.normalized,
    )


def _float32(name: str, shape: tuple[int, ...]) -> Any:
    return np.empty(shape, np.float32)


class Host:
    """Gathers batches of tensors as arrays. Copies from a GPU run behind its work, so that it never waits.

    `make(name, shape)` gives the array for all rows: in memory and float32, or a file and float16, say.
    """

    def __init__(self, rows: int, make: Callable[[str, tuple[int, ...]], Any] = _float32) -> None:
        self.rows, self.make, self.done = rows, make, 0
        self.held: dict[str, Any] = {}
        self.behind: deque[tuple[dict[str, Tensor], Any]] = deque()

    def take(self, tensors: Mapping[str, Tensor | None]) -> None:
        copies, event = {}, None
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            if name not in self.held:
                self.held[name] = self.make(name, (self.rows, *tensor.shape[1:]))
            tensor = tensor.to(torch.float16 if self.held[name].dtype == np.float16 else torch.float32)
            if tensor.is_cuda:
                room = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                copies[name] = room.copy_(tensor, non_blocking=True)
                event = torch.cuda.Event()
                event.record()
            else:
                copies[name] = tensor
        self.behind.append((copies, event))
        while len(self.behind) > 2:
            self._land()

    def _land(self) -> None:
        copies, event = self.behind.popleft()
        if event is not None:
            event.synchronize()
        count = 0
        for name, tensor in copies.items():
            count = len(tensor)
            self.held[name][self.done : self.done + count] = tensor.numpy()
        self.done += count

    def arrays(self) -> dict[str, Any]:
        while self.behind:
            self._land()
        return self.held


def probed(
    methods: Sequence[Method],
    images: datasets.Images,
    dataset: datasets.Dataset,
    runtime: Runtime,
    augment: str,
    seed: int,
) -> Predictions:
    """Scores `jacobian` and `native` and the variant `tta` of the average of the members, without logits."""
    seed_everything(seed)
    generator = torch.Generator(runtime.device).manual_seed(seed % 2**63)
    held = Host(len(images))
    augment = augment if augment != "none" else "shift"

    def batches(**options: Any) -> Batches:
        rows = min(128, max(1, PROBE_PIXELS // dataset.size**2))
        return Batches(images, dataset, runtime.device, batch=rows, channels_last=runtime.channels_last, **options)

    for method in methods:
        method.eval()
    copies = batches(augment=augment, views=VIEWS, seed=seed)
    for (x, _, _), (views, _, _) in zip(batches(), copies, strict=True):
        # float32: the gradients of confident softmaxes vanish in bf16
        found = {"jacobian": probes.jacobian_norm(methods, x.float(), generator)}
        with torch.inference_mode(), runtime.autocast():
            found["tta"] = probes.augmented_log_probs(methods, list(views))
            if len(methods) == 1 and (native := methods[0](x).scores.get("native")) is not None:
                found["native"] = native
        held.take(found)
    arrays = held.arrays()
    tta = arrays.pop("tta")
    return Predictions(
        index=images.index, labels=images.labels, taught=images.taught, variants={"tta": tta}, scores=arrays
    )
