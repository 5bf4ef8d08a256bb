"""Labelled images that models are asked about, as they came, with their labels in the numbering of the model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio import datasets
from nescio.errors import BadInput
from nescio.zoo.entries import spec_of

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Labelled:
    """Images in their original encoding, and their labels."""

    spec: str  # the dataset, its path made absolute
    name: str
    revision: str
    classes: tuple[str, ...]
    labels: Array  # (n,) in the numbering of `classes`, or of a model once `numbered`
    index: Array  # (n,) unique in the whole dataset
    parts: tuple[datasets.Images, ...]  # the whole set …
    at: Array  # (n,) … of which these rows are here
    outside: bool = False  # whether its classes were not in the models' training
    rows: str = "all"  # which rows these are

    def __len__(self) -> int:
        return len(self.labels)

    def source(self, row: int) -> Any:
        """One image as it came: a path, encoded bytes, or an array (h, w, ch)."""
        place = int(self.at[row])
        for part in self.parts:
            if place < len(part):
                return part.held.source(int(part.rows[place]))
            place -= len(part)
        raise IndexError(row)

    def take(self, rows: Array) -> Labelled:
        """Some of the rows, in order."""
        if len(rows) == len(self):
            return self
        at = self.at[rows]
        word = hashlib.sha256(np.ascontiguousarray(at, np.int64).tobytes()).hexdigest()[:16]
        return replace(self, labels=self.labels[rows], index=self.index[rows], at=at, rows=word)


def labelled(spec: str, root: str | Path | None = None, *, outside: bool = False, divided: bool = False) -> Labelled:
    """The test images of a set; every labelled image of one that is `outside`.

    `divided`: only what `nescio train` leaves for testing, where a set has no test images of its own.
    """
    found = datasets.load(spec, root, "all" if outside else "both" if divided else "test")
    parts = (found.train, found.test) if outside and len(found.train) else (found.test,)
    labels, index = (np.concatenate([getattr(part, name) for part in parts]) for name in ("labels", "index"))
    return Labelled(
        spec_of(spec), found.name, found.revision, found.classes, labels, index, parts, np.arange(len(labels)), outside
    )


def chosen(images: Labelled, classes: Sequence[int] | None = None, limit: int | None = None) -> Labelled:
    """The rows of some classes, and of those at most `limit`: evenly spaced in the order of the classes, so that every
    class keeps its share."""
    if classes is not None:
        for label in classes:
            if not 0 <= label < len(images.classes):
                raise BadInput(f"{images.name} has no class {label}: they run from 0 to {len(images.classes) - 1}.")
        images = images.take(np.flatnonzero(np.isin(images.labels, list(classes))))
        if not len(images):
            raise BadInput(f"{images.name} has no images of the classes that --classes names.")
    if limit is not None:
        if limit < 1:
            raise BadInput(f"--limit is a number of images from 1 on, not {limit}.")
        if limit < len(images):
            order = np.argsort(images.labels, kind="stable")
            places = (2 * np.arange(limit) + 1) * len(images) // (2 * limit)
            images = images.take(np.sort(order[places]))
    return images


def numbered(images: Labelled, classes: int, taught: Sequence[str] | None = None) -> Labelled:
    """The images with labels in the numbering of a model of so many classes; rows of other classes are left out.

    By the names of the classes that the model was taught, where they are known and the set's are among them; by
    ImageNet's WordNet ids; by the numbers that are the set's names; else the set must have as many classes as the
    model, in its order.
    """
    if images.outside:
        return images
    number = _numbers(images.classes, classes, taught)
    if number is None:
        raise BadInput(
            f"{images.name} has {len(images.classes)} classes and the model {classes}: ask it about a set of its own "
            "classes, or give the set with --out."
        )
    kept = images.take(np.flatnonzero(number[images.labels] >= 0))
    if not len(kept):
        raise BadInput(f"No image of {images.name} is of a class that the model was taught.")
    return replace(kept, labels=number[kept.labels])


def _numbers(names: Sequence[str], classes: int, taught: Sequence[str] | None) -> Array | None:
    """(c,) the model's label of every class of the set, −1 where it has none; None if they do not fit together."""
    if taught is not None and set(taught) <= set(names):
        return _places(names, taught)
    if len(names) == classes and set(names) == set(map(str, range(classes))):
        return np.array([int(name) for name in names])  # folders named by numbers are sorted as texts
    if classes == IMAGENET and all(len(name) == 9 and name[0] == "n" and name[1:].isdigit() for name in names):
        found = _places(names, _imagenet())
        return found if (found >= 0).all() else None
    return np.arange(classes) if len(names) == classes else None


IMAGENET = 1000


def _imagenet() -> Sequence[str]:
    """The WordNet ids of ImageNet-1k, in order."""
    from timm.data.imagenet_info import ImageNetInfo

    names: Callable[[], Sequence[str]] = ImageNetInfo("imagenet-1k").label_names
    return names()


def _places(names: Sequence[str], among: Sequence[str]) -> Array:
    at = {name: place for place, name in enumerate(among)}
    return np.array([at.get(name, -1) for name in names])
