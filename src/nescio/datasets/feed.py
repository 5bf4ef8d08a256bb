"""Batches of cached pixels on a device, read ahead by threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nescio.arrays.parallel import blocks
from nescio.errors import BadInput
from nescio.runtime import Runtime

BUFFERS, READERS = 3, 4  # batches that wait to be copied; threads that read one of them


class Normalizer:
    """uint8 (b, h, w, ch) to the normalised input of a network, (b, ch, h, w): (x / 255 − mean) / std."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], runtime: Runtime, channels_last: bool) -> None:
        centre, spread = torch.tensor([list(mean), list(std)], device=runtime.device)[:, None, :, None, None]
        self.scale, self.shift = 1 / (255 * spread), -centre / spread
        self.layout = torch.channels_last if channels_last else torch.contiguous_format

    def __call__(self, raw: Tensor) -> Tensor:
        with torch.autocast(raw.device.type, enabled=False):
            x = torch.addcmul(self.shift, raw.permute(0, 3, 1, 2), self.scale)
        return x.contiguous(memory_format=self.layout)


def device_batches(pixels: Path, batch: int, device: torch.device) -> Iterator[tuple[Tensor, int]]:
    """Batches of a file of pixels, uint8 (b, h, w, ch), on the device, and how many images of each count: on a GPU all
    are of one size, because it looks for its fastest kernels again whenever the size changes."""
    array = np.load(pixels, mmap_mode="r")
    if device.type == "cuda":
        yield from _ahead(pixels, array, batch, DeviceCopies(device))
        return
    for rows in blocks(len(array), batch):
        # a copy: torch takes no memory that it may not write to
        yield torch.from_numpy(np.array(array[rows])), rows.stop - rows.start


class DeviceCopies:
    """Copies from pinned memory to a GPU on a separate stream, while the GPU computes."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)

    def room(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)

    def send(self, buffer: Tensor) -> tuple[Tensor, Any]:
        """The copy, for which later work waits, and an event: after it the buffer may be filled again."""
        compute_stream = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            raw = buffer.to(self.device, non_blocking=True)
            copied = self.stream.record_event()
        compute_stream.wait_event(copied)
        raw.record_stream(compute_stream)
        return raw, copied


def _ahead(pixels: Path, array: Any, batch: int, copies: Any) -> Iterator[tuple[Tensor, int]]:
    """A thread fills buffers while the network computes on the previous ones."""
    ready: SimpleQueue[Any] = SimpleQueue()  # (buffer, images in it), (None, None) at the end, (None, what went wrong)
    free: SimpleQueue[Any] = SimpleQueue()  # (buffer, event of its last copy), (None, None) at the end
    for _ in range(BUFFERS):
        free.put((copies.room(batch, *array.shape[1:]), None))

    def read() -> None:
        try:
            with pixels.open("rb") as file, ThreadPoolExecutor(READERS) as pool:
                for rows in blocks(len(array), batch):
                    buffer, copied = free.get()
                    if buffer is None:
                        return
                    if copied is not None:
                        copied.synchronize()
                    _read(file.fileno(), array, rows, buffer, pool)
                    ready.put((buffer, rows.stop - rows.start))
            ready.put((None, None))
        except BaseException as error:  # raised again in the consumer
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


def _read(file: int, array: Any, rows: slice, buffer: Tensor, pool: ThreadPoolExecutor) -> None:
    """Rows of the array into the buffer. Reading is faster than touching a mapping page by page."""
    width = int(np.prod(array.shape[1:]))
    room = memoryview(buffer.numpy().reshape(-1))[: (rows.stop - rows.start) * width]  # type: ignore[arg-type]
    start = array.offset + rows.start * width

    def read_piece(piece: slice) -> None:
        offset = piece.start
        while offset < piece.stop:
            got = os.preadv(file, [room[offset : piece.stop]], start + offset)
            if not got:
                raise BadInput("The file of pixels is cut short: remove its folder and run again.")
            offset += got

    list(pool.map(read_piece, blocks(len(room), -(-len(room) // READERS))))
