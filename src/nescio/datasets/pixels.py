"""Pixels of images: arrays in memory, files that are decoded on reading, and concatenations of both."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets import decode

if TYPE_CHECKING:
    from nescio.datasets.images import Images

SAMPLE_BYTES = 32 << 20  # size of the sample for mean and deviation


KEPT = 4  # cached files: images and label maps of two levels of a shift


class Pixels:
    """uint8 images (m, h, w, ch) in memory. All subsets share them: decoded on first use, sent to a device once."""

    def __init__(self, make: Callable[[], Array], dataset_from_files: EncodedImages | None = None) -> None:
        self._make = make
        self.encoded = dataset_from_files  # encoded sources of the pixels
        self._copies: dict[Any, Any] = {}

    @cached_property
    def array(self) -> Array:
        # torch does not take memory that it may not write to, such as the bytes of a file.
        return np.require(self._make(), np.uint8, ["C", "W"])

    def read(self, rows: Array) -> Array:
        return self.array[rows]

    def source(self, row: int) -> Any:
        """One image as it came: a path, encoded bytes, or an array (h, w, ch)."""
        return self.array[row] if self.encoded is None else self.encoded.source(row)

    def on(self, device: Any) -> Any:
        """All images as a tensor on a device; on the CPU it is the same memory."""
        import torch

        if device not in self._copies:
            with torch.inference_mode(False):  # tensors sent for prediction are used again in training
                self._copies[device] = torch.from_numpy(self.array).to(device)
        return self._copies[device]

    @cached_property
    def moments(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of every channel, pixels from 0 to 1, of evenly spaced images."""
        sample = self.array[:: -(-self.array.nbytes // SAMPLE_BYTES) or 1]
        values = np.arange(256) / 255
        means, deviations = [], []
        for channel in np.moveaxis(sample, 3, 0):
            share = np.bincount(channel.ravel(), minlength=256) / channel.size
            mean = share @ values
            means.append(float(f"{mean:.4g}"))
            deviations.append(float(f"{max(np.sqrt(share @ (values - mean) ** 2), 1e-3):.4g}"))
        return tuple(means), tuple(deviations)


class EncodedImages:
    """Image files, or encoded images in memory, that are decoded on every read."""

    moments = decode.IMAGENET_MEAN, decode.IMAGENET_STD

    def __init__(self, sources: Sequence[Any], size: int, crop: float) -> None:
        # An array of bytes instead of a million objects: worker processes share its memory.
        self._are_paths = len(sources) > 0 and isinstance(sources[0], str)
        self._sources = np.array([os.fsencode(dataset) for dataset in sources]) if self._are_paths else sources
        self.size, self.crop = size, crop

    def source(self, row: int) -> Any:
        """The path or the encoded bytes of one image."""
        return os.fsdecode(self._sources[row]) if self._are_paths else self._sources[row]

    def __len__(self) -> int:
        return len(self._sources)

    def read(self, rows: Iterable[int]) -> Array:
        return decode.decode_all([self.source(row) for row in rows], self.size, self.crop)


class ImageFiles(EncodedImages):
    """Whole image files of one shape (height, width), or label maps where a table gives the class of every value."""

    def __init__(
        self, paths: Sequence[str], shape: tuple[int, int], goal: tuple[int, int], table: Array | None = None
    ) -> None:
        super().__init__(paths, max(goal), 1.0)
        self.shape, self.goal, self.table = shape, goal, table

    def one(self, row: int) -> Array:
        """(h, w, ch), scaled to the goal."""
        if self.table is None:
            return decode.frame(self.source(row), self.shape, self.goal)
        return decode.label_map(self.source(row), self.shape, self.goal, self.table)

    def read(self, rows: Iterable[int]) -> Array:
        return decode.on_threads(self.one, list(rows), (*self.goal, 3 if self.table is None else 1))

    def take(self, rows: Iterable[int]) -> ImageFiles:
        """Some of the files."""
        return ImageFiles([self.source(row) for row in rows], self.shape, self.goal, self.table)

    def check(self) -> None:
        """Raises BadInput for unreadable files: reads every label map, and the first and last bytes of every image."""

        def look(row: int) -> Array:
            if self.table is None:
                decode.check_head(self.source(row), self.shape)
            else:
                self.one(row)
            return np.empty(0)  # nothing is kept

        decode.on_threads(look, range(len(self)), (0,), "looking at files")


_decoded: deque[EvictedPixels] = deque()


class EvictedPixels(Pixels):
    """Decoded files, of which only the most recent sets stay in memory. Levels of a shift are read one after the other,
    so they need not fit into memory together."""

    def __init__(self, frames: ImageFiles) -> None:
        super().__init__(partial(frames.read, range(len(frames))), frames)
        self.frames = frames

    @cached_property
    def array(self) -> Array:
        made = super().array
        _decoded.append(self)
        while len(_decoded) > KEPT:
            _decoded.popleft().forget()
        return made

    def forget(self) -> None:
        self.__dict__.pop("array", None)
        self._copies.clear()

    def take(self, rows: Iterable[int]) -> EvictedPixels:
        """Some of the files: the others are then not decoded with them."""
        return EvictedPixels(self.frames.take(rows))


class ConcatBacking:
    """The concatenated images of several sets."""

    def __init__(self, parts: Sequence[Images]) -> None:
        self.parts = parts
        self.starts = np.cumsum([0, *(len(part) for part in parts)])

    def source(self, row: int) -> Any:
        part = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.parts[part].source(row - int(self.starts[part]))

    def read(self, rows: Array) -> Array:
        whose = np.searchsorted(self.starts, rows, side="right") - 1
        order, pixels = [], []
        for number, component in enumerate(self.parts):
            positions = np.flatnonzero(whose == number)
            if len(positions):
                order.append(positions)
                pixels.append(component.backing.read(component.rows[rows[positions] - self.starts[number]]))
        return np.concatenate(pixels)[np.argsort(np.concatenate(order))]
