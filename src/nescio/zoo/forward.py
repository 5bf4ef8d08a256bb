"""A network over cached pixels: its logits, and the mean of passes with dropout on, without ever waiting for a disk."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nescio._parallel import blocks
from nescio.errors import BadInput
from nescio.predict import Host
from nescio.predictions import Predictions
from nescio.progress import track
from nescio.runtime import Runtime, seed_everything
from nescio.zoo.data import Labelled
from nescio.zoo.models import Model, heads

PASSES = 30  # with dropout on (selective.txt, appendix K)
MC_DROPOUT = "mc-dropout"
PIXELS = {"cuda": 512 * 224 * 224, "cpu": 32 * 224 * 224}  # of a batch
BUFFERS, READERS = 3, 4  # batches that wait to be copied; threads that read one of them
LARGEST = float(np.finfo(np.float16).max)


@dataclass
class Answer:
    dump: Predictions
    accuracy: float | None  # of sets inside
    rate: float  # images a second
    dropout: bool  # whether the network has dropout that can be left on


def usual_batch(size: int, device: torch.device) -> int:
    return max(1, PIXELS.get(device.type, PIXELS["cuda"]) // size**2)


def answer(
    network: nn.Module,
    model: Model,
    pixels: Path,
    images: Labelled,
    here: Runtime,
    scratch: Path,
    *,
    passes: int = PASSES,
    embeddings: bool = False,
    batch: int | None = None,
    seed: int = 0,
) -> Answer:
    """What a network says about every image. The arrays lie in files of the folder `scratch` until they are saved."""
    batch = batch or usual_batch(model.view.size, here.device)
    if here.precision == "bf16":
        for head in heads(network, model.classes):
            _exact(head)
    while True:
        try:
            return _answer(network, model, pixels, images, here, scratch, passes, embeddings, batch, seed)
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
            batch //= 2
        torch.cuda.empty_cache()


def _answer(
    network: nn.Module,
    model: Model,
    pixels: Path,
    images: Labelled,
    here: Runtime,
    scratch: Path,
    passes: int,
    embeddings: bool,
    batch: int,
    seed: int,
) -> Answer:
    seed_everything(seed)
    held = Host(len(images), lambda name, shape: np.lib.format.open_memmap(scratch / name, "w+", np.float16, shape))
    layers = dropouts(network) if passes else []
    ask = Ask(network, layers, passes)
    normal = Normal(model, here)
    labels = torch.from_numpy(images.labels).to(here.device)
    right, sound = torch.zeros((2,), dtype=torch.int64, device=here.device)
    done, started = 0, time.monotonic()
    # one autocast around all batches: it then casts the weights once
    with torch.inference_mode(), here.autocast(), _inputs(network, model.classes, embeddings) as seen:
        for raw, count in track(feed(pixels, batch, here.device), model.name, math.ceil(len(images) / batch)):
            made = {**ask(normal(raw)), "embeddings": seen()}
            found = {name: each[:count] for name, each in made.items() if each is not None}
            logits = found["logits"]
            if logits.shape[-1] != model.classes:
                raise BadInput(f"{model.name} gives {logits.shape[-1]} numbers for {model.classes} classes.")
            right += (logits.softmax(-1).mean(1).argmax(-1) == labels[done : done + count]).sum()
            sound += torch.isfinite(logits).all(-1).all(-1).sum()
            held.take({name: each.clamp(-LARGEST, LARGEST) for name, each in found.items()})
            done += count
        arrays = held.arrays()
        if int(sound) < done:
            raise BadInput(f"{model.name} gives numbers that are not finite for {done - int(sound)} of {done} images.")
    seconds = time.monotonic() - started
    if done != len(images):
        raise BadInput(f"{pixels} holds {done} images, and {len(images)} were asked about.")
    dump = Predictions(
        index=images.index,
        labels=images.labels,
        taught=not images.outside,
        logits=arrays["logits"],
        variants={MC_DROPOUT: arrays[MC_DROPOUT]} if MC_DROPOUT in arrays else {},
        embeddings=arrays.get("embeddings"),
    )
    accuracy = None if images.outside else int(right) / done
    return Answer(dump, accuracy, done / max(seconds, 1e-9), bool(layers))


# ---- pixels on the device


class Normal:
    """uint8 (b, h, w, ch) to the numbers that a model wants, (b, ch, h, w): (x / 255 − mean) / std."""

    def __init__(self, model: Model, here: Runtime) -> None:
        mean, std = torch.tensor([model.mean, model.std], device=here.device)[:, None, :, None, None]
        self.scale, self.shift = 1 / (255 * std), -mean / std
        self.layout = torch.channels_last if here.channels_last else torch.contiguous_format

    def __call__(self, raw: Tensor) -> Tensor:
        with torch.autocast(raw.device.type, enabled=False):
            x = torch.addcmul(self.shift, raw.permute(0, 3, 1, 2), self.scale)
        return x.contiguous(memory_format=self.layout)


def feed(pixels: Path, batch: int, device: torch.device) -> Iterator[tuple[Tensor, int]]:
    """Batches of a file of pixels, uint8 (b, h, w, ch), on the device, and how many images of each count: on a GPU all
    are of one size, because it looks for its fastest kernels again whenever the size changes."""
    held = np.load(pixels, mmap_mode="r")
    if device.type == "cuda":
        yield from _ahead(pixels, held, batch, Copies(device))
        return
    for rows in blocks(len(held), batch):
        # a copy: torch takes no memory that it may not write to
        yield torch.from_numpy(np.array(held[rows])), rows.stop - rows.start


class Copies:
    """From pinned memory to a GPU, on a stream of their own, beside its work."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)

    def room(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)

    def send(self, buffer: Tensor) -> tuple[Tensor, Any]:
        """The copy, for which later work waits, and an event: after it the buffer may be filled again."""
        here = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            raw = buffer.to(self.device, non_blocking=True)
            copied = self.stream.record_event()
        here.wait_event(copied)
        raw.record_stream(here)
        return raw, copied


def _ahead(pixels: Path, held: Any, batch: int, copies: Any) -> Iterator[tuple[Tensor, int]]:
    """A thread fills buffers while the network works on what was in the last ones."""
    ready: SimpleQueue[Any] = SimpleQueue()  # (buffer, images in it), (None, None) at the end, (None, what went wrong)
    free: SimpleQueue[Any] = SimpleQueue()  # (buffer, event of its last copy), (None, None) when nobody wants more
    for _ in range(BUFFERS):
        free.put((copies.room(batch, *held.shape[1:]), None))

    def read() -> None:
        try:
            with pixels.open("rb") as file, ThreadPoolExecutor(READERS) as pool:
                for rows in blocks(len(held), batch):
                    buffer, copied = free.get()
                    if buffer is None:
                        return
                    if copied is not None:
                        copied.synchronize()
                    _read(file.fileno(), held, rows, buffer, pool)
                    ready.put((buffer, rows.stop - rows.start))
            ready.put((None, None))
        except BaseException as error:  # goes on where it is waited for
            ready.put((None, error))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while True:
            buffer, count = ready.get()
            if buffer is None:
                if count is not None:
                    raise count
                return
            raw, copied = copies.send(buffer)
            free.put((buffer, copied))
            yield raw, count
    finally:
        free.put((None, None))
        reader.join()


def _read(file: int, held: Any, rows: slice, buffer: Tensor, pool: ThreadPoolExecutor) -> None:
    """Rows of the array into the buffer. Reading is faster than touching a mapping page by page."""
    width = int(np.prod(held.shape[1:]))
    room = memoryview(buffer.numpy().reshape(-1))[: (rows.stop - rows.start) * width]  # type: ignore[arg-type]
    start = held.offset + rows.start * width

    def part(piece: slice) -> None:
        at = piece.start
        while at < piece.stop:
            got = os.preadv(file, [room[at : piece.stop]], start + at)
            if not got:
                raise BadInput("The file of pixels is cut short: remove its folder and run again.")
            at += got

    list(pool.map(part, blocks(len(room), -(-len(room) // READERS))))


# ---- networks


def _exact(head: nn.Module) -> None:
    """The last layer in float32: bf16 keeps three digits, and confidences would be tied."""
    plain = head.forward

    def forward(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            made: Tensor = plain(x.float())
        return made

    head.forward = forward


@contextmanager
def _inputs(network: nn.Module, classes: int, wanted: bool) -> Iterator[Callable[[], Tensor | None]]:
    """What the last layer was given for a batch, as embeddings (b, d): the first time, before any dropout is on."""
    first: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        if not first:
            first.append(given[0])

    found = heads(network, classes) if wanted else []
    hook = found[0].register_forward_pre_hook(keep) if found else None
    try:
        yield lambda: _flat(first.pop()) if first else None
    finally:
        if hook is not None:
            hook.remove()


def _flat(x: Tensor) -> Tensor:
    return x.mean((2, 3)) if x.dim() == 4 else x


def dropouts(network: nn.Module) -> list[nn.Module]:
    """The modules whose own `training` flag turns dropout on: dropout layers, and modules that ask their flag when they
    call dropout as a function (timm's `drop_rate`, fused attention)."""
    found = []
    for module in network.modules():
        rates = [getattr(module, "drop_rate", 0), getattr(getattr(module, "attn_drop", None), "p", 0)]
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rates.append(module.p)
        if isinstance(module, nn.MultiheadAttention):
            rates.append(module.dropout)
        if any(isinstance(rate, (int, float)) and rate > 0 for rate in rates):
            found.append(module)
    return found


@contextmanager
def dropping(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Dropout on, and nothing else: batch-norm stays in evaluation mode."""
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


Part = Callable[[Any], Any]


class Ask:
    """Logits (b, s, c) of images, and the log of the mean softmax of passes with dropout on (b, c), if there is any.

    Where all dropout comes after the features, only what follows them is done again in every pass.
    """

    def __init__(self, network: nn.Module, layers: Sequence[nn.Module], passes: int) -> None:
        self.network, self.layers, self.passes = network, layers, passes
        self.parts: tuple[Part, Part] | None = None if layers and passes else (_same, network)

    def __call__(self, x: Tensor) -> dict[str, Tensor | None]:
        if self.parts is None:
            self.parts = _divided(self.network, self.layers, x)
        body, head = self.parts
        features = body(x)
        logits = _logits(head(features))
        if not self.layers or not self.passes or logits.shape[1] > 1:  # several draws: its method drops by itself
            return {"logits": logits}
        with dropping(self.layers):
            total = _logits(head(features))[:, 0].log_softmax(-1)
            for _ in range(self.passes - 1):
                total = torch.logaddexp(total, _logits(head(features))[:, 0].log_softmax(-1))
        return {"logits": logits, MC_DROPOUT: total - math.log(self.passes)}


def _same(x: Any) -> Any:
    return x


def _logits(made: Any) -> Tensor:
    if not isinstance(made, Tensor) or made.dim() not in (2, 3):
        raise BadInput(f"The network gives {type(made).__name__} instead of one row of logits for each image.")
    return (made[:, None] if made.dim() == 2 else made).float()


def _divided(network: nn.Module, layers: Sequence[nn.Module], x: Tensor) -> tuple[Part, Part]:
    """The part before any dropout and the part after, each tried on these images; else nothing and the whole."""
    plain = network(x)
    for body, head in _halves(network):
        with dropping(layers):
            once, again = body(x), body(x)
        if isinstance(once, Tensor) and torch.equal(once, again) and torch.equal(head(once), plain):
            return body, head
    return _same, network


def _halves(network: Any) -> Iterator[tuple[Part, Part]]:
    """Features and head of timm's models; all but the last child, and the last child, of others."""
    if hasattr(network, "forward_features") and hasattr(network, "forward_head"):
        yield network.forward_features, network.forward_head
        return
    children = list(network.children())
    if children:
        last = children[-1]

        def body(x: Tensor) -> Any:
            given: list[Any] = []
            hook = last.register_forward_pre_hook(lambda _, args: given.append(args[0]))
            network(x)
            hook.remove()
            return given[0] if len(given) == 1 else None

        yield body, last
