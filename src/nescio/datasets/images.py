"""Rows of labelled images, and datasets of training and test images."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets.pixels import ConcatBacking, EncodedImages, EvictedPixels, ImageFiles, Pixels
from nescio.errors import BadInput
from nescio.identity import to_json


@dataclass(frozen=True, eq=False)
class Images:
    """Rows of images with their labels."""

    labels: Array  # (n,) int64; of images with label maps all 0
    index: Array  # (n,) unique in the whole dataset
    backing: Pixels | EncodedImages | ConcatBacking = field(repr=False)  # shared by all subsets …
    rows: Array  # (n,) … and the rows of this subset
    in_distribution: Array | None = None  # (n,) False where the class is not in training
    annotations: Array | None = None  # (n, c) human votes
    groups: Mapping[str, Array] = field(default_factory=dict)  # (n,) each: domain, corruption, severity …
    maps: Pixels | ImageFiles | ConcatBacking | None = field(
        default=None, repr=False
    )  # (m, h, w, 1) a label for every pixel

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def pixels(self) -> Array:
        """(n, h, w, ch) uint8; files are read and decoded."""
        return self.backing.read(self.rows)

    def sources(self) -> Sequence[Any]:
        """Every image before resizing: a path, encoded bytes, or an array (h, w, ch)."""
        return [self.backing.source(row) for row in self.rows.tolist()]

    def source(self, row: int) -> Any:
        """One image before resizing."""
        return self.backing.source(int(self.rows[row]))

    def check_files(self) -> None:
        """Raises BadInput if a file of whole images or label maps cannot be read."""
        for backing in (self.backing, self.maps):
            frames = backing.encoded if isinstance(backing, Pixels) else backing
            if isinstance(frames, ImageFiles):
                frames.check()

    def label_maps(self, rows: Array | slice = slice(None)) -> Array:
        """(n, h, w) labels of every pixel of these images."""
        if self.maps is None:
            raise BadInput("These images have one label each and no label maps.")
        return self.maps.read(self.rows[rows])[..., 0]

    def take(self, rows: Array) -> Images:
        """The rows in the given order."""

        def some(array: Array | None) -> Array | None:
            return None if array is None else array[rows]

        groups = {name: values[rows] for name, values in self.groups.items()}
        return replace(
            self,
            labels=self.labels[rows],
            index=self.index[rows],
            rows=self.rows[rows],
            in_distribution=some(self.in_distribution),
            annotations=some(self.annotations),
            groups=groups,
        )

    def without_shared_backing(self) -> Images:
        """The same rows without decoding other rows of a backing that is evicted from memory."""
        if not (isinstance(self.backing, EvictedPixels) and isinstance(self.maps, EvictedPixels)):
            return self
        rows = self.rows.tolist()
        return replace(self, backing=self.backing.take(rows), maps=self.maps.take(rows), rows=np.arange(len(rows)))

    def select_classes(self, classes: Iterable[int]) -> Images:
        """The rows of these classes, renumbered 0, 1, … in the order given, marked as in training."""
        classes = list(classes)
        number = np.full(1 + max(int(self.labels.max(initial=0)), *classes, 0), -1)
        number[classes] = np.arange(len(classes))
        kept = self.take(np.flatnonzero(number[self.labels] >= 0))
        votes = kept.annotations
        return replace(
            kept,
            labels=number[kept.labels],
            in_distribution=np.ones(len(kept), bool),
            annotations=None if votes is None else votes[:, classes],
        )

    def select_ood(self, classes: Iterable[int]) -> Images:
        """The rows of these classes under their own labels, marked as not in training."""
        kept = self.take(np.flatnonzero(np.isin(self.labels, list(classes))))
        return replace(kept, in_distribution=np.zeros(len(kept), bool))


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
