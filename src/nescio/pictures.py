"""Images by the name of a set or by a folder: to ask networks about, to draw references from, and to show."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio import datasets
from nescio.config import seed_for
from nescio.datasets import decode
from nescio.datasets.base import encoded
from nescio.datasets.sources import ENDINGS
from nescio.errors import BadInput
from nescio.zoo.data import Labelled, labelled
from nescio.zoo.entries import spec_of

Array = NDArray[Any]
SIDE = 96  # pixels of a thumbnail's longer side, at most
SIZE = 224  # at which a folder's images stand in memory; networks and thumbnails are made from the files themselves


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images in their original encoding, and whether their labels mean anything."""

    images: Labelled
    labelled: bool

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labels(self) -> Array | None:
        return self.images.labels if self.labelled else None


def is_set(spec: str) -> bool:
    """digits, folder:PATH … and not a folder on the disk."""
    return spec.partition(":")[0].partition("@")[0] in datasets.registry


def pictures(spec: str, root: str | Path | None = None, *, divided: bool = False) -> Pictures:
    """The test images of a set, or every image below a folder, by name, without labels.

    `divided`: where a set has no test images of its own, only what `nescio train` leaves for testing.
    """
    if not is_set(spec) and Path(spec).expanduser().is_dir():
        return Pictures(_folder(Path(spec).expanduser().resolve()), False)
    if divided:
        try:
            return Pictures(labelled(spec, root, divided=True), True)
        except BadInput:  # it may be without training images
            pass
    return Pictures(labelled(spec, root), True)


def training(spec: str, root: str | Path | None, count: int | None = None, seed: int = 0) -> Pictures:
    """The images of a set that networks learn from, or `count` of them, drawn by the seed; all of one without such.

    The draw is that of protocol `reliability`: the same images for all networks.
    """
    from nescio.protocols.reliability import sample

    if not is_set(spec) and Path(spec).expanduser().is_dir():
        whole, known = pictures(spec, root).images, False
    else:
        whole, known = _learnt(spec, root), True
    if count is None or count >= len(whole):
        return Pictures(whole, known)
    if count < 1:
        raise BadInput(f"The number of references is {count}; it must be at least 1.")
    some = whole.take(sample(len(whole), count, seed_for("references", whole.revision, seed)))
    return Pictures(replace(some, rows=f"{whole.rows} {some.rows}"), known)  # test rows may have these numbers too


def _learnt(spec: str, root: str | Path | None) -> Labelled:
    try:
        found = datasets.load(spec, root)
    except BadInput:
        return labelled(spec, root)
    try:
        images = datasets.splits(found).train
    except BadInput:  # a class of one image cannot be divided
        images = found.train
    rows = np.arange(len(images))
    return Labelled(
        spec_of(spec),
        found.name,
        found.revision,
        found.classes,
        images.labels,
        images.index,
        (images,),
        rows,
        rows=f"training {len(rows)}",
    )


def _folder(place: Path) -> Labelled:
    files = sorted(_files(place))
    if not files:
        raise BadInput(f"{place} holds no images ({', '.join(ENDINGS)}).")
    none: tuple[list[str], Array] = [], np.zeros(0, np.int64)
    found = encoded(place.name, none, (files, np.zeros(len(files), np.int64)), ["image"], SIZE)
    rows = np.arange(len(files))
    return Labelled(
        str(place),
        found.name,
        found.revision,
        found.classes,
        found.test.labels,
        rows,
        (found.test,),
        rows,
        outside=True,
    )


def _files(place: Path) -> Iterator[str]:
    for folder, inner, files in os.walk(place, followlinks=True):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        yield from (
            os.path.join(folder, file) for file in files if file.lower().endswith(ENDINGS) and not file.startswith(".")
        )


# ---- rows and their images


def places_of(index: Array, shown: Pictures, every: int) -> Array:
    """(n,) which of the images each row of embeddings is, by its key; `every` rows had the file that they come from.

    Keys are the set's own index, or names of image files where they are texts. Where keys do not meet, as many images
    as rows are taken in order: the file then numbers its rows from 0.
    """
    if index.dtype.kind == "U":
        return _named(index, shown)
    own = shown.images.index
    order = np.argsort(own, kind="stable")
    found = order[np.searchsorted(own, index, sorter=order).clip(max=len(own) - 1)]
    if np.array_equal(own[found], index):
        return np.asarray(found)
    if len(shown) == every and index.min() >= 0 and index.max() < every:
        return index
    missing = index[own[found] != index]
    raise BadInput(
        f"{shown.images.name} has no image of index {missing[0]}, and {len(shown)} images for {every} rows: give the "
        "images that the embeddings are of."
    )


def _named(index: Array, shown: Pictures) -> Array:
    at: dict[str, int] = {}
    for row in range(len(shown)):
        source = shown.images.source(row)
        if not isinstance(source, str):
            raise BadInput(f"The rows are called by names such as {index[0]!r}, and {shown.images.name} has no files.")
        at |= {word: row for word in (source, Path(source).name, Path(source).stem) if word not in at}
    for name in index.tolist():
        if name not in at:
            raise BadInput(f"{shown.images.name} has no image called {name!r}.")
    return np.array([at[name] for name in index.tolist()])


def thumbnail(source: Any, side: int = SIDE) -> bytes:
    """A small PNG of an image: a path, encoded bytes, or an array; images that are small already stay as they are."""
    image = decode._rgb(source)
    if max(image.size) > side:
        image.thumbnail((side, side))
    held = io.BytesIO()
    image.save(held, "PNG", optimize=True)
    return held.getvalue()
