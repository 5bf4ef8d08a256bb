"""Labels of a dataset in the class order of a network, and rows of prediction files by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets import imagenet
from nescio.datasets.image_set import LoadedImages
from nescio.errors import BadInput


def align_labels(
    images: LoadedImages, classes: int, names: Sequence[str] | None = None, class_map: Sequence[tuple[str, int]] = ()
) -> LoadedImages:
    """Images with labels in the class order of a network with `classes` classes; omits rows of other classes.

    The first match decides: a class map (name of a set's class, the network's label); the names of the network's
    classes; ImageNet's WordNet ids or class names; numbers as names of the set's classes. Otherwise the set must have
    as many classes as the network, in its order.
    """
    number = _label_numbers(images.classes, classes, names, dict(class_map))
    if number is None:
        raise BadInput(
            f"{images.name} has {len(images.classes)} classes ({_first_names(images.classes)}); the model {classes} "
            f"({_describe_classes(classes, names)}).{_missing_classes(images.classes, classes, names)} Give images of "
            "the model's classes or a class map (`nescio zoo --classes FILE`). For other classes: `nescio transfer`."
        )
    kept = images.take(np.flatnonzero(number[images.labels] >= 0))
    if not len(kept):
        listed = (
            f"--classes names {_first_names(list(dict(class_map)))}" if class_map else _describe_classes(classes, names)
        )
        raise BadInput(f"No image of {images.name} is of a class of the model: {listed}.")
    votes = kept.images.annotations
    if votes is not None:
        mapped = np.flatnonzero(number >= 0)
        votes, former_votes = np.zeros((len(kept), classes)), votes
        votes[:, number[mapped]] = former_votes[:, mapped]
    return replace(kept, images=replace(kept.images, labels=number[kept.labels], annotations=votes))


def label_names(
    images: LoadedImages, classes: int, names: Sequence[str] | None = None, class_map: Sequence[tuple[str, int]] = ()
) -> list[str] | None:
    """The set's names of a network's labels 0, 1, …; None if a label has no name or two."""
    number = _label_numbers(images.classes, classes, names, dict(class_map))
    if number is None or sorted(number[number >= 0].tolist()) != list(range(classes)):
        return None
    return [images.classes[position] for position in np.argsort(number)[-classes:].tolist()]


def _label_numbers(
    names: Sequence[str], classes: int, class_names: Sequence[str] | None, class_map: Mapping[str, int]
) -> Array | None:
    """(c,) the network's label of every class of the set, −1 if it has none; None if the classes do not match."""
    if class_map:
        return np.array([class_map.get(name, -1) for name in names])
    some = set(names) <= set(class_names or ()) and not all(name.isdigit() for name in names)  # numbers are no names
    if class_names is not None and (set(class_names) <= set(names) or some):
        return _positions(names, class_names)
    if len(names) == classes and set(names) == set(map(str, range(classes))):
        return np.array([int(name) for name in names])  # folders named by numbers are sorted as texts
    if classes == imagenet.CLASSES:
        if all(len(name) == 9 and name[0] == "n" and name[1:].isdigit() for name in names):
            positions = _positions(names, imagenet.wordnet_ids())
            return positions if (positions >= 0).all() else None
        numbers = [imagenet.classes_by_name().get(imagenet.plain(name), ()) for name in names]
        if all(len(labels) == 1 for labels in numbers):  # a name of two classes is ambiguous
            return np.array([labels[0] for labels in numbers])
    return np.arange(classes) if len(names) == classes else None


def _missing_classes(names: Sequence[str], classes: int, class_names: Sequence[str] | None) -> str:
    """A sentence on the classes of a set that the model lacks, with a leading space; "" if it lacks all or none."""
    if class_names is not None:
        lacking = [name for name in names if name not in class_names]
    elif classes == imagenet.CLASSES:
        ids = set(imagenet.wordnet_ids())
        lacking = [name for name in names if name not in ids and imagenet.plain(name) not in imagenet.classes_by_name()]
    else:
        lacking = []
    return f" The model has no class {_first_names(lacking)}." if 0 < len(lacking) < len(names) else ""


def _describe_classes(classes: int, names: Sequence[str] | None) -> str:
    """The class names that a network accepts, as a phrase."""
    if names is not None:
        return f"its classes are {_first_names(names)}"
    numbers = f"the numbers 0 to {classes - 1}"
    if classes != imagenet.CLASSES:
        return f"its classes are {numbers}"
    return f"its classes are ImageNet's WordNet ids (n01440764 …), its class names (tench, goldfish …) and {numbers}"


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _positions(names: Sequence[str], among: Sequence[str]) -> Array:
    at = {name: place for place, name in enumerate(among)}
    return np.array([at.get(name, -1) for name in names])


def rows_by_key(index: Array, images: LoadedImages, every: int) -> Array:
    """(n,) the image of each row of a predictions file, by key; the whole file has `every` rows.

    Keys are indices of the set, or names of image files if they are texts. If no key matches, images are taken in
    order, one per row; the file then numbers its rows from 0.
    """
    if index.dtype.kind == "U":
        return _rows_by_name(index, images)
    keys = images.index
    order = np.argsort(keys, kind="stable")
    rows = order[np.searchsorted(keys, index, sorter=order).clip(max=len(keys) - 1)]
    if np.array_equal(keys[rows], index):
        return np.asarray(rows)
    if len(images) == every and index.min() >= 0 and index.max() < every:
        return index
    missing = index[keys[rows] != index]
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
