"""Outputs of a network for every image of a set, gathered as Predictions."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from nescio.datasets.image_set import LoadedImages
from nescio.errors import BadInput
from nescio.identity import IN_KEYS, Validated, seed_for, tag
from nescio.methods.base import Method, Output, check_output
from nescio.networks.forward import Classifier, Segmenter
from nescio.networks.network import Network
from nescio.predict.inputs import default_batch_size, free_memory, input_batches
from nescio.predictions import Predictions
from nescio.progress import track
from nescio.runtime import Runtime, evaluating, seed_everything
from nescio.work.store import Store

SCORES, VARIANTS = "scores/", "variants/"  # prefixes of the names of arrays
LARGEST = float(np.finfo(np.float16).max)
MakeArray = Callable[[str, tuple[int, ...]], np.ndarray]  # (name, shape) → an array for all rows
Predictor = Method | Classifier | Segmenter  # a module from images to Output


@tag("keeping")
@dataclass(frozen=True)
class OutputSpec(Validated):
    """Which outputs a predictions file contains, and how they are computed."""

    fields: tuple[Literal["logits", "embeddings", "scores"], ...] = ("logits", "embeddings", "scores")
    dtype: Literal["float32", "float16"] = "float32"
    # forward passes with dropout on, for pretrained networks that contain dropout
    mc_samples: int = field(default=0, metadata={IN_KEYS: "passes"})
    # dropout rate before the head of timm's networks, which are built without dropout
    dropout: float | None = field(default=None, metadata={IN_KEYS: "drop"})
    precision: Literal["auto", "float32", "bf16"] | None = None  # None: that of the trial
    compared: bool = False  # made to compare models: `predictions.model_predictions` lists it

    def check(self) -> None:
        self.require_min(0, "mc_samples")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise BadInput(f"OutputSpec.dropout is {self.dropout:g}: it must be at least 0 and below 1.")


def float32_array(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """An empty float32 array in memory."""
    return np.empty(shape, np.float32)


def predict_images(
    module: Predictor,
    network: Network,
    loaded: LoadedImages,
    store: Store | None,
    runtime: Runtime,
    output_spec: OutputSpec = OutputSpec(),
    seed: int = 0,
    make_array: MakeArray = float32_array,
    batch: int | None = None,
    first: int = 0,
) -> Predictions:
    """Predictions of a module for every image; a batch that exceeds the device's memory is halved.

    first  index of the first image in the whole set, if these images are a range of it
    """
    batch = batch or default_batch_size(network, runtime)
    while True:
        try:
            return _outputs(module, network, loaded, store, runtime, output_spec, seed, make_array, first, batch)
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
            batch //= 2
        free_memory()


def _outputs(
    module: Predictor,
    network: Network,
    loaded: LoadedImages,
    store: Store | None,
    runtime: Runtime,
    output_spec: OutputSpec,
    seed: int,
    make_array: MakeArray,
    first: int,
    batch: int,
) -> Predictions:
    buffer = OutputBuffer(len(loaded), make_array)
    limit = LARGEST if output_spec.dtype == "float16" else math.inf
    finite = torch.zeros((), dtype=torch.int64, device=runtime.device)
    done = 0
    # one autocast context for all batches: it then casts the weights once
    with evaluating(module), torch.inference_mode(), runtime.autocast():
        batches = input_batches(network, loaded, store, runtime, batch)
        for x, count in track(batches, network.name, len(loaded), images=itemgetter(1)):
            seed_everything(seed_for(seed, first + done))  # random numbers do not depend on earlier images
            output = module(x)
            if isinstance(module, Method):
                check_output(module, output, len(x))
            tensors = {name: tensor[:count] for name, tensor in selected_tensors(output, output_spec).items()}
            if "logits" in tensors:
                finite += torch.isfinite(tensors["logits"]).flatten(1).all(1).sum()
            scores = {name: tensor for name, tensor in tensors.items() if name.startswith(SCORES)}
            buffer.add(scores | {name: t.clamp(-limit, limit) for name, t in tensors.items() if name not in scores})
            done += count
        arrays = buffer.arrays()
        if "logits" in arrays and int(finite) < done:
            raise BadInput(f"The logits of {network.name} are not finite for {done - int(finite)} of {done} images.")
    if done != len(loaded):
        raise BadInput(f"The pixels of {loaded.name} contain {done} images; {len(loaded)} were expected.")
    return as_predictions(loaded, arrays, module.normalized)


def selected_tensors(output: Output, output_spec: OutputSpec) -> dict[str, Tensor]:
    """The tensors of an output that a predictions file contains, by name; the first score is also the native one."""
    tensors: dict[str, Tensor] = {}
    if "logits" in output_spec.fields and output.logits is not None:
        tensors["logits"] = output.logits
        tensors |= {f"{VARIANTS}{name}": tensor for name, tensor in output.variants.items()}
    if "embeddings" in output_spec.fields and output.embeddings is not None:
        tensors["embeddings"] = output.embeddings.flatten(1)
    if "scores" in output_spec.fields and output.scores:
        native = next(iter(output.scores.values()))
        tensors |= {f"{SCORES}{name}": tensor for name, tensor in ({"native": native} | output.scores).items()}
    return tensors


def as_predictions(loaded: LoadedImages, arrays: Mapping[str, np.ndarray], normalized: bool) -> Predictions:
    """Predictions from arrays by name and the labels of the images."""
    images = loaded.images

    def with_prefix(prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

    return Predictions(
        index=images.index,
        labels=images.labels if loaded.labelled else None,
        in_distribution=images.in_distribution if loaded.labelled else None,
        logits=arrays.get("logits"),
        variants=with_prefix(VARIANTS),
        embeddings=arrays.get("embeddings"),
        scores=with_prefix(SCORES),
        annotations=images.annotations,
        groups=dict(images.groups),
        normalized=normalized and "logits" in arrays,
    )


def arrays_on_disk(folder: Path) -> MakeArray:
    """Makes arrays in files of a folder, so that memory does not grow: float32 for scores, float16 otherwise."""

    def make(name: str, shape: tuple[int, ...]) -> np.ndarray:
        dtype = np.float32 if name.startswith(SCORES) else np.float16  # log-densities exceed float16
        return np.lib.format.open_memmap(folder / name.replace("/", "-"), "w+", dtype, shape)

    return make


class OutputBuffer:
    """Gathers batches of tensors as arrays. Copies from a GPU are asynchronous, so that it never waits.

    make_array  makes an array for all rows, for example in memory as float32 or in a file as float16
    """

    def __init__(self, rows: int, make_array: MakeArray = float32_array) -> None:
        self.rows, self.make_array, self.done = rows, make_array, 0
        self.gathered: dict[str, np.ndarray] = {}
        self.pending: deque[tuple[dict[str, Tensor], torch.cuda.Event | None]] = deque()

    def add(self, tensors: Mapping[str, Tensor | None]) -> None:
        """Append the rows of a batch."""
        copies: dict[str, Tensor] = {}
        event: torch.cuda.Event | None = None
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            if name not in self.gathered:
                self.gathered[name] = self.make_array(name, (self.rows, *tensor.shape[1:]))
            tensor = tensor.to(torch.float16 if self.gathered[name].dtype == np.float16 else torch.float32)
            if tensor.is_cuda:
                pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                copies[name] = pinned.copy_(tensor, non_blocking=True)
                event = torch.cuda.Event()
                event.record()
            else:
                copies[name] = tensor
        self.pending.append((copies, event))
        while len(self.pending) > 2:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        copies, event = self.pending.popleft()
        if event is not None:
            event.synchronize()
        count = 0
        for name, tensor in copies.items():
            count = len(tensor)
            self.gathered[name][self.done : self.done + count] = tensor.numpy()
        self.done += count

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name, after all copies are finished."""
        while self.pending:
            self._finish_oldest()
        return self.gathered
