"""Rows of labelled images, datasets of them, and their pixels: arrays in memory, or files decoded on reading."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets import decode
from nescio.datasets.decode import Source
from nescio.errors import BadInput
from nescio.identity import to_json

if TYPE_CHECKING:  # processes that only decode images do without torch
    import torch

SAMPLE_BYTES = 32 << 20  # size of the sample for mean and deviation
KEPT = 4  # cached files: images and label maps of two levels of a shift
COLUMNS = ("labels", "index", "rows", "in_distribution", "annotations")  # fields of Images with an entry for every row


# ---- pixels


class Pixels:
    """uint8 images (m, h, w, ch) in memory. All subsets share them: decoded on first use, sent to a device once."""

    def __init__(self, make: Callable[[], Array], files: EncodedImages | None = None) -> None:
        self._make = make
        self.files = files  # encoded sources of the pixels
        self._copies: dict[torch.device, torch.Tensor] = {}

    @cached_property
    def array(self) -> Array:
        # torch does not take memory that it may not write to, such as the bytes of a file.
        return np.require(self._make(), np.uint8, ["C", "W"])

    def read(self, rows: Array) -> Array:
        return self.array[rows]

    def source(self, row: int) -> Source:
        """One image before decoding: a path, encoded bytes, or an array (h, w, ch)."""
        return self.array[row] if self.files is None else self.files.source(row)

    def on(self, device: torch.device) -> torch.Tensor:
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

    def __init__(self, sources: Sequence[str] | Sequence[bytes], size: int, crop: float) -> None:
        # An array of bytes instead of a million objects: worker processes share its memory.
        self._are_paths = len(sources) > 0 and isinstance(sources[0], str)
        self._sources = np.array([os.fsencode(source) for source in sources]) if self._are_paths else sources
        self.size, self.crop = size, crop

    @property
    def files(self) -> EncodedImages:
        return self

    def source(self, row: int) -> Source:
        """The path or the encoded bytes of one image."""
        return os.fsdecode(self._sources[row]) if self._are_paths else self._sources[row]

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(h, w, ch) of the decoded images."""
        return self.size, self.size, 3

    def one(self, row: int) -> Array:
        """One decoded image (h, w, ch)."""
        return decode.decode(self.source(row), self.size, self.crop)

    def read(self, rows: Iterable[int]) -> Array:
        return decode.on_threads(self.one, list(rows), self.image_shape)

    def in_memory(self) -> Pixels:
        """The same images, decoded once on first use."""
        return Pixels(partial(self.read, range(len(self))), self)


class ImageFiles(EncodedImages):
    """Whole image files of one shape (height, width), or label maps where a table gives the class of every value."""

    def __init__(
        self, paths: Sequence[str], shape: tuple[int, int], goal: tuple[int, int], table: Array | None = None
    ) -> None:
        super().__init__(paths, max(goal), 1.0)
        self.shape, self.goal, self.table = shape, goal, table

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return *self.goal, 3 if self.table is None else 1

    def one(self, row: int) -> Array:
        """One image (h, w, ch), scaled to the goal."""
        if self.table is None:
            return decode.frame(self.source(row), self.shape, self.goal)
        return decode.label_map(self.source(row), self.shape, self.goal, self.table)

    def take(self, rows: Iterable[int]) -> ImageFiles:
        return ImageFiles([str(self.source(row)) for row in rows], self.shape, self.goal, self.table)

    def check(self) -> None:
        """Raise BadInput for unreadable files: read every label map, and the first and last bytes of every image."""

        def check_file(row: int) -> Array:
            if self.table is None:
                decode.check_head(self.source(row), self.shape)
            else:
                self.one(row)
            return np.empty(0)  # nothing is kept

        decode.on_threads(check_file, range(len(self)), (0,), "checking files")


_decoded: deque[EvictedPixels] = deque()


class EvictedPixels(Pixels):
    """Decoded files, of which only the most recent sets stay in memory. Levels of a shift are read one after the other,
    so they need not fit into memory together."""

    def __init__(self, frames: ImageFiles) -> None:
        super().__init__(partial(frames.read, range(len(frames))), frames)
        self.frames = frames

    @cached_property
    def array(self) -> Array:
        pixels = super().array
        _decoded.append(self)
        while len(_decoded) > KEPT:
            _decoded.popleft().forget()
        return pixels

    def forget(self) -> None:
        self.__dict__.pop("array", None)
        self._copies.clear()

    def take(self, rows: Iterable[int]) -> EvictedPixels:
        """Some of the files: the others are then not decoded with them."""
        return EvictedPixels(self.frames.take(rows))


class ConcatBacking:
    """The concatenated images of several sets."""

    files = None

    def __init__(self, subsets: Sequence[Images]) -> None:
        self.subsets = subsets
        self.starts = np.cumsum([0, *(len(subset) for subset in subsets)])

    def source(self, row: int) -> Source:
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.subsets[number].source(row - int(self.starts[number]))

    def read(self, rows: Array) -> Array:
        numbers = np.searchsorted(self.starts, rows, side="right") - 1
        order, pixels = [], []
        for number, subset in enumerate(self.subsets):
            positions = np.flatnonzero(numbers == number)
            if len(positions):
                order.append(positions)
                pixels.append(subset.backing.read(subset.rows[rows[positions] - self.starts[number]]))
        return np.concatenate(pixels)[np.argsort(np.concatenate(order))]


Backing: TypeAlias = Pixels | EncodedImages | ConcatBacking


# ---- rows


@dataclass(frozen=True, eq=False)
class Images:
    """Rows of images with their labels."""

    labels: Array  # (n,) int64; of images with label maps all 0
    index: Array  # (n,) unique in the whole dataset
    backing: Backing = field(repr=False)  # shared by all subsets …
    rows: Array  # (n,) … and the rows of this subset
    in_distribution: Array | None = None  # (n,) False where the class is not in training
    annotations: Array | None = None  # (n, c) human votes
    groups: Mapping[str, Array] = field(default_factory=dict)  # (n,) each: domain, corruption, severity …
    maps: Backing | None = field(default=None, repr=False)  # (m, h, w, 1) a label for every pixel

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def pixels(self) -> Array:
        """(n, h, w, ch) uint8; files are read and decoded."""
        return self.backing.read(self.rows)

    def source(self, row: int) -> Source:
        """One image before resizing: a path, encoded bytes, or an array (h, w, ch)."""
        return self.backing.source(int(self.rows[row]))

    def check_files(self) -> None:
        """Raise BadInput if a file of whole images or label maps cannot be read."""
        for backing in (self.backing, self.maps):
            if backing is not None and isinstance(backing.files, ImageFiles):
                backing.files.check()

    def label_maps(self, rows: Array | slice = slice(None)) -> Array:
        """(n, h, w) labels of every pixel of these images."""
        if self.maps is None:
            raise BadInput("These images have one label each and no label maps.")
        return self.maps.read(self.rows[rows])[..., 0]

    def take(self, rows: Array) -> Images:
        """The rows in the given order."""
        columns = {name: column[rows] for name in COLUMNS if (column := getattr(self, name)) is not None}
        return replace(self, **columns, groups={name: values[rows] for name, values in self.groups.items()})

    def with_labels(self, labels: Iterable[int]) -> Images:
        """The rows of these labels."""
        return self.take(np.flatnonzero(np.isin(self.labels, list(labels))))

    def select_classes(self, classes: Sequence[int]) -> Images:
        """The rows of these classes, renumbered 0, 1, … in the order given, marked as in training."""
        number = np.full(1 + max(int(self.labels.max(initial=0)), *classes, 0), -1)
        number[list(classes)] = np.arange(len(classes))
        kept = self.take(np.flatnonzero(number[self.labels] >= 0))
        votes = None if kept.annotations is None else kept.annotations[:, classes]
        return replace(kept, labels=number[kept.labels], in_distribution=np.ones(len(kept), bool), annotations=votes)

    def without_shared_backing(self) -> Images:
        """The same rows without decoding other rows of a backing that is evicted from memory."""
        if not (isinstance(self.backing, EvictedPixels) and isinstance(self.maps, EvictedPixels)):
            return self
        rows = self.rows.tolist()
        return replace(self, backing=self.backing.take(rows), maps=self.maps.take(rows), rows=np.arange(len(rows)))


def concat_images(subsets: Sequence[Images]) -> Images:
    """The rows of several subsets, in order."""
    first = subsets[0]
    if len(subsets) == 1:
        return first
    columns = {
        name: np.concatenate([getattr(subset, name) for subset in subsets])
        for name in COLUMNS
        if all(getattr(subset, name) is not None for subset in subsets)
    }
    shared = [name for name in first.groups if all(name in subset.groups for subset in subsets)]
    groups = {name: np.concatenate([subset.groups[name] for subset in subsets]) for name in shared}
    if all(subset.backing is first.backing for subset in subsets):  # training and validation images of one set
        return Images(**columns, groups=groups, backing=first.backing, maps=first.maps)
    columns["rows"] = np.arange(len(columns["labels"]))
    maps = None if first.maps is None else ConcatBacking([replace(subset, backing=subset.maps) for subset in subsets])
    return Images(**columns, groups=groups, backing=ConcatBacking(subsets), maps=maps)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images of one source, pinned by a revision."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    channels: int
    shape: tuple[int, int]  # (height, width) of its images
    revision: str  # checksum of labels and images
    labelled: bool = True  # False: the labels mean nothing
    void: int | None = None  # the label of ignored pixels in label maps
    val: Images | None = None  # its own validation set; None: a tenth of the training images is held out
    notes: tuple[str, ...] = ()  # messages about omitted files
    clean: str | None = None  # for a level of a shift, the name of the unshifted set

    @cached_property
    def content(self) -> str:
        """A digest of a user's dataset: revision, class names, void, votes and groups."""
        digest = hashlib.sha256(to_json([self.revision, self.classes, self.void, self.labelled]).encode())
        for subset in (self.train, self.test):
            votes = subset.annotations
            digest.update(b"" if votes is None else f"{votes.shape} {votes.tolist()}".encode())
            for name, values in sorted(subset.groups.items()):
                digest.update(f"{name} {values.tolist()}".encode())
        return digest.hexdigest()[:16]

    @property
    def size(self) -> int:
        """Length of the longer side in pixels."""
        return max(self.shape)

    @property
    def mean(self) -> tuple[float, ...]:
        return self.train.backing.moments[0]

    @property
    def std(self) -> tuple[float, ...]:
        return self.train.backing.moments[1]

    def check_classes(self, labels: Iterable[int]) -> None:
        """Raise BadInput unless all labels are of classes of the dataset."""
        for label in labels:
            if not 0 <= label < len(self.classes):
                raise BadInput(
                    f"{self.name} has no class {label}: its classes are numbered from 0 to {len(self.classes) - 1}."
                )
