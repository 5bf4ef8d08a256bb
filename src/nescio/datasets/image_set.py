"""Image sets: a description that decides pixels completely, and so is part of the key of every prediction.

ImageSet("cifar10")                                             its test images
ImageSet("cifar10", change=Rotation(40))                        … turned by 40 degrees
ImageSet("digits", split="out", classes=(0, 1, 2), seed=1)      test images of classes that a network never saw
ImageSet("imagenet:/data/imagenet", limit=5000, view=view)      … as a pretrained network sees them
ImageSet("images:/data/photos")                                 every image below a folder, without labels
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets.changes import Change
from nescio.datasets.decode import Source
from nescio.datasets.images import Dataset, Images, concat_images
from nescio.datasets.names import absolute_name, content_name, name_for_keys
from nescio.datasets.readers import load, registry
from nescio.datasets.splits import split_dataset
from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.identity import IN_KEYS, VALUES_IN_KEYS, Validated, canonical, seed_for, tag
from nescio.specs import DatasetName
from nescio.work.store import Store

Split = Literal["train", "val", "test", "out", "train_val", "test_or_all", "all_ood"]
FORMER_SPLITS = {"train_val": "learnt", "test_or_all": "given", "all_ood": "outside"}  # in keys and seeds


@tag("image-set")
@dataclass(frozen=True)
class ImageSet(Validated):
    """The images of a dataset to predict: which rows, in which order, with which labels and pixels.

    split  train        the training images without the tenth that is held out for validation
           val          that tenth
           train_val    both; all images of a dataset without training images
           test         the test images
           out          the test images of out-of-distribution classes
           test_or_all  the test images; all images of a dataset without a division
           all_ood      all labelled images of a dataset whose classes are all out-of-distribution
    """

    data: str  # a dataset: digits, cifar10, folder:PATH, npz:PATH@32, images:PATH …
    split: Split = field(default="test", metadata={VALUES_IN_KEYS: FORMER_SPLITS})
    classes: tuple[int, ...] | None = None  # in-distribution classes in their new order; None: all, as they are
    # out-of-distribution classes; None: all others
    ood_classes: tuple[int, ...] | None = field(default=None, metadata={IN_KEYS: "outside"})
    seed: int = 0  # seed of the split into train and val
    labels: tuple[int, ...] | None = field(default=None, metadata={IN_KEYS: "only"})  # rows of these labels; None: all
    limit: int | None = None  # maximum number of rows, evenly spaced over the classes
    sample_size: int | None = field(default=None, metadata={IN_KEYS: "sample"})  # size of a random sample of rows
    sample_seed: int = 0  # seed of the sample, the same for all networks
    readable: bool = False  # leave out images that cannot be read
    view: View | None = None  # preprocessing of a pretrained network; None: the dataset's
    change: Change | None = None  # a corruption, a rotation, a crop

    def check(self) -> None:
        for name in ("limit", "sample_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"{name} must be at least 1, got {value}.")

    def load(self, root: str | Path | None = None, store: Store | None = None) -> LoadedImages:
        """The rows. Images are decoded only to find the readable ones, which a store caches."""
        where = None if root is None else str(root)
        loaded = _loaded(self._all_rows, where, os.environ.get("NESCIO_DATA"), os.getcwd())
        if self.readable:
            from nescio.datasets.pixel_cache import readable_images

            if store is None:
                raise BadInput("A store keeps the list of readable images, and none is given: set `store`.")
            loaded, _ = readable_images(loaded, store)
        return loaded if loaded.set is self else replace(loaded, set=self)

    @cached_property
    def _all_rows(self) -> ImageSet:
        """The set without the fields that select no rows."""
        return replace(self, readable=False, view=None, change=None)

    def with_content_name(self, root: str | Path | None = None) -> ImageSet:
        """The same set by its absolute name, with a digest of its content for keys and seeds."""
        if registry[DatasetName.parse(self.data).kind].selectors:
            return replace(self, data=name_for_keys(self.data, root))
        name = content_name(absolute_name(str(self.data)), self._all_rows.load(root).dataset)
        unchanged = name == self.data and canonical(name) == canonical(self.data)
        return self if unchanged else replace(self, data=name)

    def load_revision(self, root: str | Path | None = None) -> str:
        """The checksum of the data that the set is taken from."""
        return self._all_rows.load(root).revision


@dataclass(frozen=True, eq=False)
class LoadedImages:
    """The rows of an image set, their images in the original encoding."""

    set: ImageSet
    dataset: Dataset
    images: Images

    def __len__(self) -> int:
        return len(self.images)

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def revision(self) -> str:
        return self.dataset.revision

    @property
    def classes(self) -> tuple[str, ...]:
        return self.dataset.classes

    @property
    def labelled(self) -> bool:
        """Whether every image has a meaningful label; label maps do not count."""
        return self.dataset.labelled and self.images.maps is None

    @property
    def labels(self) -> Array:
        return self.images.labels

    @property
    def index(self) -> Array:
        return self.images.index

    @property
    def rows(self) -> str:
        """A digest of the selected images, independent of their description."""
        return hashlib.sha256(f"{self.images.index.tolist()}".encode()).hexdigest()[:16]

    def source(self, row: int) -> Source:
        """One image as it came: a path, encoded bytes, or an array (h, w, ch)."""
        return self.images.source(row)

    def take(self, rows: Array) -> LoadedImages:
        return replace(self, images=self.images.take(rows))


@lru_cache(maxsize=16)
def _loaded(images: ImageSet, root: str | None, data_folder: str | None, working_folder: str) -> LoadedImages:
    """The rows of an image set; `data_folder` and `working_folder` are part of the key of this cache."""
    dataset, rows = _rows_of_split(images, root)
    if images.labels is not None:
        dataset.check_classes(images.labels)
        rows = rows.with_labels(images.labels)
    if images.limit is not None and images.limit < len(rows):
        order = np.argsort(rows.labels, kind="stable")
        places = (2 * np.arange(images.limit) + 1) * len(rows) // (2 * images.limit)
        rows = rows.take(np.sort(order[places]))
    if images.sample_size is not None and dataset.clean is not None:
        drawn = _loaded(replace(images, data=dataset.clean), root, data_folder, working_folder)
        rows = _matching_rows(rows, drawn, dataset.name)
    elif images.sample_size is not None and images.sample_size < len(rows):
        chosen = draw_rows(len(rows), images.sample_size, seed_for("references", dataset.revision, images.sample_seed))
        rows = rows.take(chosen)
    if not len(rows):
        why = ": every class is in-distribution" if images.split == "out" else ""
        raise BadInput(f"The split {images.split!r} of {dataset.name} is empty{why}.")
    some = images.limit is not None or images.sample_size is not None
    return LoadedImages(images, dataset, rows.without_shared_backing() if some else rows)


def _matching_rows(rows: Images, drawn: LoadedImages, name: str) -> Images:
    """The images of a level of a shift whose clean images were sampled, so that levels differ by the shift alone."""
    row_of = {index: row for row, index in enumerate(rows.index.tolist())}
    for row, index in enumerate(drawn.index.tolist()):
        if index not in row_of:
            missing = Path(drawn.source(row)).name
            raise BadInput(f"{name} lacks {missing}, which is in the sample of clean images: levels must match it.")
    return rows.take(np.array([row_of[index] for index in drawn.index.tolist()]))


def _rows_of_split(images: ImageSet, root: str | None) -> tuple[Dataset, Images]:
    if images.split == "all_ood":
        dataset = load(images.data, root, "all")
        rows = concat_images([subset for subset in (dataset.train, dataset.test) if len(subset)])
        return dataset, replace(rows, in_distribution=np.zeros(len(rows), bool))
    if images.split == "test_or_all":
        dataset = load(images.data, root, "test")
        return dataset, dataset.test
    try:
        dataset = load(images.data, root)
    except BadInput:
        if images.split in ("val", "out"):
            raise
        dataset = load(images.data, root, "test")  # without training images
        return dataset, dataset.test
    if images.split == "train_val" and images.classes is None:
        return dataset, dataset.train
    divided = split_dataset(dataset, images.classes, images.seed, images.ood_classes)
    if images.split == "train_val":
        return dataset, concat_images([divided.train, divided.val])
    return dataset, getattr(divided, images.split)


def draw_rows(rows: int, count: int, seed: int) -> Array:
    """(count,) sampled rows, ascending. Uses raw bits of PCG64, because NumPy may change its permutations."""
    return np.sort(np.argsort(np.random.PCG64(seed).random_raw(rows), kind="stable")[:count])
