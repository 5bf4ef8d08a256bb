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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets import imagenet
from nescio.datasets.base import Dataset, Images, Joined, Wanted, load, registry, splits
from nescio.datasets.changes import Change
from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.identity import ContentName, Validated, rename_content, seed_for, tag
from nescio.specs import DatasetName, select, selections, split_severity
from nescio.work.store import Store

Split = Literal["train", "val", "test", "out", "learnt", "given", "outside"]


@tag("image-set")
@dataclass(frozen=True)
class ImageSet(Validated):
    """Everything that decides which pixels are shown, in which order, under which labels.

    split  train    the training images but for the tenth that is held out
           val      that tenth
           learnt   both together; of a set without training images, all of it
           test     the test images
           out      test images of the classes that are not in-distribution
           given    the test images; of a set that is not divided, all of it: for networks trained elsewhere
           outside  every labelled image of a set whose classes are all out-of-distribution
    """

    data: str  # a dataset: digits, cifar10, folder:PATH, npz:PATH@32, images:PATH …
    split: Split = "test"
    classes: tuple[int, ...] | None = None  # in-distribution classes in their new order; None: all, as they are
    outside: tuple[int, ...] | None = None  # out-of-distribution classes; None: all others
    seed: int = 0  # of the division into train and val
    only: tuple[int, ...] | None = None  # only rows of these labels
    limit: int | None = None  # at most so many rows, evenly spaced over the classes
    sample: int | None = None  # at most so many rows, drawn …
    sample_seed: int = 0  # … by this seed, the same for all networks
    readable: bool = False  # only images that can be read
    view: View | None = None  # how a pretrained network sees an image; None: as the dataset has it
    change: Change | None = None  # a corruption, a rotation, a crop

    def check(self) -> None:
        for name in ("limit", "sample"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"--{name} is a number of images from 1 on, not {value}.")

    def load(self, root: str | Path | None = None, store: Store | None = None) -> LoadedImages:
        """The rows; no image is decoded, but to find those that can be read, which a store remembers."""
        where = None if root is None else str(root)
        rows = replace(self, readable=False, view=None, change=None)  # which rows these are depends on none of them
        loaded = _loaded(rows, where, os.environ.get("NESCIO_DATA"), os.getcwd())
        if self.readable:
            from nescio.datasets.views import readable

            if store is None:
                raise BadInput("Which images can be read is kept in a store: name one.")
            loaded, _ = readable(loaded, store)
        return replace(loaded, set=self)

    def named(self, root: str | Path | None = None) -> ImageSet:
        """The same set by its absolute name, with a digest of its content for keys and seeds."""
        if registry[DatasetName.of(self.data).kind].words:
            return replace(self, data=named(self.data, root))
        dataset = replace(self, readable=False).load(root).dataset
        return replace(self, data=content_name(absolute(str(self.data)), dataset))

    def load_revision(self, root: str | Path | None = None) -> str:
        """The checksum of the data that the set is taken from."""
        return replace(self, readable=False).load(root).revision


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
        """Whether every image has a label that means something; label maps are none."""
        return self.dataset.labelled and self.images.maps is None

    @property
    def labels(self) -> Array:
        return self.images.labels

    @property
    def index(self) -> Array:
        return self.images.index

    @property
    def rows(self) -> str:
        """A digest of which images these are, whatever description led to them."""
        word = f"{self.images.index.tolist()}".encode()
        return hashlib.sha256(word).hexdigest()[:16]

    def source(self, row: int) -> Any:
        """One image as it came: a path, encoded bytes, or an array (h, w, ch)."""
        return self.images.source(row)

    def take(self, rows: Array) -> LoadedImages:
        return replace(self, images=self.images.take(rows))


@lru_cache(maxsize=16)
def _loaded(images: ImageSet, root: str | None, named: str | None, here: str) -> LoadedImages:
    """`named` and `here` are not used, but what is found depends on them: they belong into the key of the cache."""
    dataset, rows = _rows_of_split(images, root)
    if images.only is not None:
        rows = _only(rows, images.only, dataset)
    if images.limit is not None and images.limit < len(rows):
        order = np.argsort(rows.labels, kind="stable")
        places = (2 * np.arange(images.limit) + 1) * len(rows) // (2 * images.limit)
        rows = rows.take(np.sort(order[places]))
    if images.sample is not None and dataset.clean is not None:
        drawn = _loaded(replace(images, data=dataset.clean), root, named, here)
        rows = _same(rows, drawn, dataset.name)
    elif images.sample is not None and images.sample < len(rows):
        chosen = draw(len(rows), images.sample, seed_for("references", dataset.revision, images.sample_seed))
        rows = rows.take(chosen)
    if not len(rows):
        why = ": every class is in-distribution" if images.split == "out" else ""
        raise BadInput(f"The split {images.split!r} of {dataset.name} is empty{why}.")
    some = images.limit is not None or images.sample is not None
    return LoadedImages(images, dataset, rows.alone() if some else rows)


def _same(rows: Images, drawn: LoadedImages, name: str) -> Images:
    """The images of a level of a shift that were drawn of the clean set: levels then differ by the shift alone."""
    at = {index: row for row, index in enumerate(rows.index.tolist())}
    for row, index in enumerate(drawn.index.tolist()):
        if index not in at:
            missing = Path(drawn.source(row)).name
            raise BadInput(f"{name} lacks {missing}, which was drawn of the clean images: all levels show the same.")
    return rows.take(np.array([at[index] for index in drawn.index.tolist()]))


def _rows_of_split(images: ImageSet, root: str | None) -> tuple[Dataset, Images]:
    if images.split == "outside":
        dataset = load(images.data, root, "all")
        rows = _joined([part for part in (dataset.train, dataset.test) if len(part)])
        return dataset, replace(rows, in_distribution=np.zeros(len(rows), bool))
    if images.split == "given":
        dataset = load(images.data, root, "test")
        return dataset, dataset.test
    try:
        dataset = load(images.data, root)
    except BadInput:
        if images.split in ("val", "out"):
            raise
        dataset = load(images.data, root, "test")  # without training images
        return dataset, dataset.test
    if images.split == "learnt" and images.classes is None:
        return dataset, dataset.train
    divided = splits(dataset, images.classes, images.seed, images.outside)
    if images.split == "learnt":
        return dataset, _joined([divided.train, divided.val])
    rows = getattr(divided, images.split)
    return dataset, rows


def _joined(parts: Sequence[Images]) -> Images:
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("labels", "index", "rows", "in_distribution", "annotations")
        if all(getattr(part, name) is not None for part in parts)
    }
    shared = [name for name in first.groups if all(name in part.groups for part in parts)]
    groups = {name: np.concatenate([part.groups[name] for part in parts]) for name in shared}
    if all(part.backing is first.backing for part in parts):  # training and validation images of one set
        return Images(**columns, groups=groups, backing=first.backing, maps=first.maps)
    columns["rows"] = np.arange(len(columns["labels"]))
    maps = None if first.maps is None else Joined([replace(part, backing=part.maps) for part in parts])
    return Images(**columns, groups=groups, backing=Joined(parts), maps=maps)


def _only(images: Images, labels: Iterable[int], dataset: Dataset) -> Images:
    for label in labels:
        if not 0 <= label < len(dataset.classes):
            raise BadInput(f"{dataset.name} has no class {label}: they run from 0 to {len(dataset.classes) - 1}.")
    return images.take(np.flatnonzero(np.isin(images.labels, list(labels))))


def draw(rows: int, count: int, seed: int) -> Array:
    """(count,) of the rows, rising. By raw bits of PCG64, because NumPy may change its permutations."""
    return np.sort(np.argsort(np.random.PCG64(seed).random_raw(rows), kind="stable")[:count])


# ---- names of sets


def is_set(spec: str) -> bool:
    """digits, folder:PATH … and not a folder on the disk."""
    return DatasetName.of(spec).kind in registry


def set_name(spec: str) -> str:
    """The dataset that a person means: a name with its path made absolute; a plain folder is a set without labels."""
    if not is_set(spec) and Path(os.path.expanduser(spec)).is_dir():
        return f"images:{Path(os.path.expanduser(spec)).resolve()}"
    return absolute(spec)


def absolute(data: str) -> str:
    """A dataset's registered name, its path absolute: one set has one name, whatever its spelling or the folder."""
    data = registry.canonical(data)
    name = DatasetName.of(data)
    if name.path is None:
        return data
    path, level = split_severity(name.path) if name.kind == "maps" else (name.path, "")
    place = Path(os.path.expanduser(path))
    return name.at(f"{place.resolve()}{f'#{level}' if level else ''}") if place.exists() else data


def content_name(data: str, dataset: Dataset) -> str:
    """The name of a loaded set for keys: a path is replaced by a digest of what lies there."""
    kind, path, size = DatasetName.of(data)
    if path is None:
        return data
    if registry[kind].path is None:  # a published set in a folder of one's own: its revision is in keys as well
        return ContentName(data, kind + (f"@{size}" if size else ""))
    return ContentName(data, f"{kind}:content-{dataset.content}")


def named(data: str, root: str | Path | None = None, wanted: Wanted | None = None) -> str:
    """A dataset's absolute name that keys and seeds know by its content; one without a path stays as it is.

    wanted  see `load`; None: the first that the set has of training and test images, test images, and all images
    """
    kind, path, _ = DatasetName.of(data)
    if isinstance(data, ContentName) or path is None or kind not in registry:
        return data
    if words := registry[kind].words:
        inner, *rest = selections(path, words)
        return rename_content(named(inner, root, wanted), lambda name: select(kind, name, *rest))
    data = absolute(data)
    return content_name(data, _first_loaded(data, root) if wanted is None else load(data, root, wanted))


def named_if_there(data: str, root: str | Path | None = None, wanted: Wanted | None = None) -> str:
    """The same; the absolute name alone of a set that is not on this machine, of which a store may hold predictions."""
    try:
        return named(data, root, wanted)
    except BadInput:
        return absolute(data)


def _first_loaded(data: str, root: str | Path | None) -> Dataset:
    try:
        return load(data, root)
    except BadInput as error:
        for wanted in ("test", "all"):
            with suppress(BadInput):
                return load(data, root, wanted)  # type: ignore[arg-type]
        raise error


def same_images(one: str, other: str, root: str | Path | None = None) -> bool:
    """Whether two names are of the same images and labels: by their revisions, wherever they lie, whatever the size."""
    if one == other:
        return True
    size, there = DatasetName.of(one).size, DatasetName.of(other)
    if there.path is not None and there.size != size and registry[there.kind].size is not None:
        other = there._replace(size=size).at(there.path)
    try:
        return load(one, root).revision == load(other, root).revision
    except BadInput:  # without training images, say
        return False


# ---- labels in the numbering of a network


def numbered(
    images: LoadedImages, classes: int, names: Sequence[str] | None = None, class_map: Sequence[tuple[str, int]] = ()
) -> LoadedImages:
    """The images with labels in the numbering of a network of so many classes; rows of other classes are left out.

    By a class map (name of a set's class, the network's label), where one is given; by the names of the network's
    classes, where they are known and fit the set's; by ImageNet's WordNet ids or class names; by the numbers that are
    the set's names; else the set must have as many classes as the network, in its order.
    """
    number = _numbers(images.classes, classes, names, dict(class_map))
    if number is None:
        raise BadInput(
            f"{images.name} has {len(images.classes)} classes and the model {classes}: {_known(classes, names)}, and "
            f"here are {_some(images.classes)}.{_strangers(images.classes, classes, names)} Give it a set of its own "
            "classes, or say how they are numbered (`nescio zoo --classes FILE`); `nescio transfer` judges a "
            "network on classes that it never learnt."
        )
    kept = images.take(np.flatnonzero(number[images.labels] >= 0))
    if not len(kept):
        listed = f"--classes names {_some(list(dict(class_map)))}" if class_map else _known(classes, names)
        raise BadInput(f"No image of {images.name} is of a class that the model knows: {listed}.")
    votes = kept.images.annotations
    if votes is not None:
        known = np.flatnonzero(number >= 0)
        votes, own = np.zeros((len(kept), classes)), votes
        votes[:, number[known]] = own[:, known]
    return replace(kept, images=replace(kept.images, labels=number[kept.labels], annotations=votes))


def names_of_labels(
    images: LoadedImages, classes: int, names: Sequence[str] | None = None, class_map: Sequence[tuple[str, int]] = ()
) -> list[str] | None:
    """The set's names of a network's labels 0, 1, …, as `numbered` numbers them; None where one has no name, or two."""
    number = _numbers(images.classes, classes, names, dict(class_map))
    if number is None or sorted(number[number >= 0].tolist()) != list(range(classes)):
        return None
    return [images.classes[place] for place in np.argsort(number)[-classes:].tolist()]


def _numbers(
    names: Sequence[str], classes: int, known: Sequence[str] | None, class_map: Mapping[str, int]
) -> Array | None:
    """(c,) the network's label of every class of the set, −1 where it has none; None if they do not fit together."""
    if class_map:
        return np.array([class_map.get(name, -1) for name in names])
    some = set(names) <= set(known or ()) and not all(name.isdigit() for name in names)  # numbers are no names
    if known is not None and (set(known) <= set(names) or some):
        return _places(names, known)
    if len(names) == classes and set(names) == set(map(str, range(classes))):
        return np.array([int(name) for name in names])  # folders named by numbers are sorted as texts
    if classes == imagenet.CLASSES:
        if all(len(name) == 9 and name[0] == "n" and name[1:].isdigit() for name in names):
            found = _places(names, imagenet.wordnet_ids())
            return found if (found >= 0).all() else None
        numbers = [imagenet.by_name().get(imagenet.plain(name), ()) for name in names]
        if all(len(own) == 1 for own in numbers):  # a name of two classes says nothing
            return np.array([own[0] for own in numbers])
    return np.arange(classes) if len(names) == classes else None


def _strangers(names: Sequence[str], classes: int, known: Sequence[str] | None) -> str:
    """The classes of a set that the model lacks, where it has others of them; a sentence that begins with a space."""
    if known is not None:
        lacking = [name for name in names if name not in known]
    elif classes == imagenet.CLASSES:
        ids = set(imagenet.wordnet_ids())
        lacking = [name for name in names if name not in ids and imagenet.plain(name) not in imagenet.by_name()]
    else:
        lacking = []
    return f" The model has no class {_some(lacking)}." if 0 < len(lacking) < len(names) else ""


def _known(classes: int, names: Sequence[str] | None) -> str:
    """Which names of classes a network knows, in words."""
    if names is not None:
        return f"it knows the classes {_some(names)}"
    numbers = f"the numbers 0 to {classes - 1}"
    if classes != imagenet.CLASSES:
        return f"it knows {numbers}"
    return f"it knows ImageNet's WordNet ids (n01440764 …), its class names (tench, goldfish …) and {numbers}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _places(names: Sequence[str], among: Sequence[str]) -> Array:
    at = {name: place for place, name in enumerate(among)}
    return np.array([at.get(name, -1) for name in names])


# ---- rows of dumps and their images


def rows_by_key(index: Array, images: LoadedImages, every: int) -> Array:
    """(n,) which of the images each row of a dump is, by its key; `every` rows had the file that they come from.

    Keys are the set's own index, or names of image files where they are texts. Where keys do not meet, as many images
    as rows are taken in order: the file then numbers its rows from 0.
    """
    if index.dtype.kind == "U":
        return _rows_by_name(index, images)
    own = images.index
    order = np.argsort(own, kind="stable")
    found = order[np.searchsorted(own, index, sorter=order).clip(max=len(own) - 1)]
    if np.array_equal(own[found], index):
        return np.asarray(found)
    if len(images) == every and index.min() >= 0 and index.max() < every:
        return index
    missing = index[own[found] != index]
    raise BadInput(
        f"{images.name} has no image of index {missing[0]}, and {len(images)} images for {every} rows: give the "
        "images that the embeddings are of."
    )


def _rows_by_name(index: Array, images: LoadedImages) -> Array:
    rows: dict[str, int] = {}
    for row in range(len(images)):
        source = images.source(row)
        if not isinstance(source, str):
            raise BadInput(f"The rows are called by names such as {index[0]!r}, and {images.name} has no files.")
        for word in (source, Path(source).name, Path(source).stem):
            rows.setdefault(word, row)
    for name in index.tolist():
        if name not in rows:
            raise BadInput(f"{images.name} has no image called {name!r}.")
    return np.array([rows[name] for name in index.tolist()])
