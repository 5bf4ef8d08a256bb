"""Datasets of some classes of another dataset: a part of its classes, k shots of each, or two groups of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nescio.datasets.image_set import draw_rows
from nescio.datasets.images import Dataset, Images
from nescio.datasets.names import name_for_keys
from nescio.datasets.readers import DatasetRequest, dataset, load
from nescio.datasets.splits import stratified
from nescio.errors import BadInput
from nescio.identity import map_content, seed_for
from nescio.specs import DatasetName, SpecError, numbers, select, selections, write_numbers


def binary_spec(data: str, inside: tuple[int, ...], outside: tuple[int, ...]) -> str:
    """The dataset name under which `load` returns these classes as in (0) and out (1)."""
    classes = [",".join(map(str, group)) for group in (inside, outside)]
    return map_content(data, lambda name: select("binary", name, *classes))


def data_of(spec: str) -> str:
    """The data in a name of `binary_spec`."""
    return map_content(spec, lambda name: selections(name.removeprefix("binary:"), 2)[0])


def part_spec(data: str, classes: Sequence[int]) -> str:
    """The dataset name under which `load` returns a set whose test images are the images of these classes."""
    return map_content(data, lambda name: select("part", name, write_numbers(classes)))


def shots_spec(data: str, classes: Sequence[int], shots: int | None, seed: int) -> str:
    """The dataset name for `load` with `shots` training images of each of these classes; None: all."""
    words = write_numbers(classes), "all" if shots is None else str(shots), str(seed)
    return map_content(data, lambda name: select("shots", name, *words))


def load_whole(spec: str, root: str | Path | None) -> Dataset:
    """A dataset with its training images; without training images, all images are test images."""
    try:
        return load(spec, root)
    except BadInput:
        return load(spec, root, "all")


def in_size(spec: str, size: int, root: str | Path | None) -> str:
    """The name of a dataset with its image size, if its images are files that can be resized."""
    dataset = load_whole(spec, root)
    if dataset.test.backing.files is None or dataset.size == size or DatasetName.parse(spec).size:
        return spec
    return name_for_keys(f"{spec}@{size}", root)


def disjoint(dataset: Dataset) -> bool:
    """Whether no class has both training and test images."""
    return not set(dataset.train.labels.tolist()) & set(dataset.test.labels.tolist())


@dataset("binary", path=True, selectors=2)
def binary(request: DatasetRequest) -> Dataset:
    """binary:DATA#0,1,2#7,8: classes 0 to 2 of DATA as class 0, classes 7 and 8 as class 1; for the OOD oracle."""
    spec, *classes = selections(request.path, 2)
    inside, outside = map(numbers, classes)
    whole = load(spec, request.root)
    whole.check_classes(inside + outside)
    if twice := set(inside) & set(outside):
        raise BadInput(f"Class {min(twice)} is named twice: a class is in- or out-of-distribution, once.")

    def merge(images: Images) -> Images:
        kept = images.with_labels(inside + outside)
        return replace(kept, labels=np.isin(kept.labels, outside).astype(np.int64))

    revision = f"{seed_for(whole.revision, inside, outside):016x}"
    train, test = merge(whole.train), merge(whole.test)
    return Dataset(f"{whole.name}-in-out", train, test, ("in", "out"), whole.channels, whole.shape, revision)


@dataset("part", path=True, selectors=1)
def classes_of(request: DatasetRequest) -> Dataset:
    """part:DATA#7-9: a test set of classes 7 to 9 of DATA, of all their images if DATA is split by classes, otherwise
    of its test images."""
    spec, classes = selections(request.path, 1)
    whole = load_whole(spec, request.root)
    return _replace_images(whole, None, _pools(whole, numbers(classes))[1])


@dataset("shots", path=True, selectors=3)
def shots(request: DatasetRequest) -> Dataset:
    """shots:DATA#7-9#5#0: five training images (or all) of each of the classes 7 to 9, drawn by seed 0, and test images
    of the same classes: those of DATA, or half of its images if it is split by classes."""
    spec, listed, count, number = selections(request.path, 3)
    whole, classes = load_whole(spec, request.root), numbers(listed)
    try:
        most, seed = None if count == "all" else int(count), int(number)
    except ValueError:
        form = "shots:DATA#7-9#5#0, classes, images of each, and a seed"
        raise SpecError(request.path, 0, "images of each class and the seed are whole numbers", form) from None
    pool, test = _pools(whole, classes)
    if pool is None:
        first, second = stratified(test.labels, 0.5, seed_for("shots", whole.revision))
        pool, test = test.take(first), test.take(second)
    if most is not None:
        drawn = []
        for label in dict.fromkeys(classes):
            rows = np.flatnonzero(pool.labels == label)
            drawn.append(rows[draw_rows(len(rows), most, seed_for("shots", whole.revision, label, seed))])
        pool = pool.take(np.concatenate(drawn))
    return _replace_images(whole, pool, test)


def _pools(whole: Dataset, classes: Sequence[int]) -> tuple[Images | None, Images]:
    """Training and test images of the classes; for classes with images of one kind only, none and these."""
    whole.check_classes(classes)
    train, test = (images.with_labels(classes) for images in (whole.train, whole.test))
    if len(train) and len(test) and not disjoint(whole):
        return train, test
    if len(train) and len(test):
        raise BadInput(f"{whole.name} is divided by classes: name training classes or test classes, not both.")
    if not len(train) and not len(test):
        raise BadInput(f"{whole.name} has no image of the classes {write_numbers(classes)}.")
    return None, test if len(test) else train


def _replace_images(whole: Dataset, train: Images | None, test: Images) -> Dataset:
    """The dataset with these training and test images. No training image is held out for validation: k shots stay k."""
    train = test.take(np.empty(0, np.int64)) if train is None else train
    revision = f"{seed_for(whole.revision, train.index.tolist(), test.index.tolist()):016x}"
    return replace(whole, train=train, test=test, val=train, revision=revision, name=f"{whole.name} part")
