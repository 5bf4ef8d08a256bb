"""Reader of .npz files: arrays of images, or encoded images end to end, with votes and groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets import decode
from nescio.datasets.builders import dataset_from_arrays, dataset_from_files
from nescio.datasets.images import Dataset, Images
from nescio.datasets.readers import DatasetRequest, dataset, requested_path
from nescio.errors import BadInput
from nescio.predictions import files
from nescio.predictions.inputs import votes as check_votes


@dataset("npz", path=True, size=0)
def npz(request: DatasetRequest) -> Dataset:
    """npz:PATH: arrays x_train, y_train, x_test, y_test (uint8 images); or encoded images end to end in `blob`, cut at
    `offsets`, with labels `y` and the words train and test (or val) in `split`, which npz:PATH@SIZE resizes. `classes`
    may contain the class names. Beside arrays of images there may be human votes, annotations_test (n, c), and groups,
    groups/NAME_test (n,), likewise for train; y_* of shape (n, height, width) are label maps, whose label `void` is
    ignored."""
    path = requested_path(request)
    with files.naming_file(path, "read"):
        arrays = files.read_named_arrays(path)
        _check_arrays(arrays)
        names = arrays.get("classes", arrays.get("wnids"))
        classes = _named_by_labels(arrays) if names is None else _class_names(names)
        if {"blob", "offsets", "y", "split"} <= arrays.keys():
            return _pack(path.stem, arrays, classes, request)
        if not {"x_test", "y_test"} <= arrays.keys():
            raise BadInput(
                f"it contains {', '.join(arrays) or 'nothing'}; x_train, y_train, x_test, y_test were expected, "
                "or blob, offsets, y, split."
            )
        if request.size:
            raise BadInput("it contains images as arrays, which cannot be resized: leave the size out.")
        images, labels = test = arrays["x_test"], arrays["y_test"]
        train = images[:0], labels[:0]
        if {"x_train", "y_train"} <= arrays.keys():
            train = arrays["x_train"], arrays["y_train"]
        return _with_extras(dataset_from_arrays(path.stem, train, test, classes), arrays)


def _class_names(names: Array) -> list[str]:
    """The names of the classes, one text for each."""
    if names.dtype.kind != "U" or names.ndim != 1:
        raise BadInput(
            f"the names of its classes have shape {names.shape} of {names.dtype}: save one text for each class, as "
            "classes=np.array(['cat', 'dog'])."
        )
    class_names: list[str] = names.tolist()
    if len(set(class_names)) < len(class_names):
        twice = next(word for word in class_names if class_names.count(word) > 1)
        raise BadInput(f"its classes contain the name {twice!r} twice: give every class another name.")
    return class_names


def _named_by_labels(arrays: Mapping[str, Array]) -> list[str] | None:
    """Numbers as class names of label maps, except `void`."""
    labels = [arrays[name] for name in ("y_train", "y_test") if name in arrays]
    if "void" not in arrays or not labels:
        return None
    most = max(int(array[array != arrays["void"]].max(initial=0)) for array in labels)
    return [str(label) for label in range(most + 1)]


def _check_arrays(arrays: Mapping[str, Array]) -> None:
    for name, array in arrays.items():
        if name == "void" and (array.ndim or array.dtype.kind not in "iu"):
            raise BadInput(f"void has shape {array.shape} of {array.dtype}: it must be one whole number.")
        if name != "void" and not array.ndim:
            raise BadInput(f"{name} is a single value: it must have one per row.")


def _with_extras(dataset: Dataset, arrays: Mapping[str, Array]) -> Dataset:
    """The dataset with the votes and groups in an npz file."""
    subsets = {}
    for word in ("train", "test"):
        images: Images = getattr(dataset, word)
        votes = arrays.get(f"annotations_{word}")
        if votes is not None:
            check_votes(votes)
        groups = {
            name.removeprefix("groups/").removesuffix(f"_{word}"): values
            for name, values in arrays.items()
            if name.startswith("groups/") and name.endswith(f"_{word}")
        }
        for name, values in (({} if votes is None else {"annotations": votes}) | groups).items():
            if len(values) != len(images):
                raise BadInput(f"{name}_{word} has {len(values)} rows, and there are {len(images)} {word} images.")
        if votes is not None and votes.shape[1] != len(dataset.classes):
            raise BadInput(
                f"annotations_{word} has votes for {votes.shape[1]} classes, and there are {len(dataset.classes)}."
            )
        subsets[word] = replace(images, annotations=votes, groups=groups)
    void = int(arrays["void"]) if "void" in arrays else None
    return replace(dataset, **subsets, void=void)


def _pack(name: str, arrays: dict[str, Array], classes: list[str] | None, request: DatasetRequest) -> Dataset:
    """Encoded images end to end in `blob`."""
    blob, cut, labels, splits = (arrays[key] for key in ("blob", "offsets", "y", "split"))
    if not len(cut) - 1 == len(labels) == len(splits):
        raise BadInput(
            f"offsets cuts {len(cut) - 1} images, y has {len(labels)} rows, split {len(splits)}: make them equal."
        )
    if cut.dtype.kind not in "iu" or splits.dtype.kind != "U" or max(blob.ndim, cut.ndim, splits.ndim) > 1:
        raise BadInput("offsets must be whole numbers, split the words train and test, and each one axis.")
    if blob.dtype != np.uint8 or cut[0] < 0 or (np.diff(cut) <= 0).any() or cut[-1] > len(blob):
        raise BadInput("offsets must rise and stay inside blob, which must be uint8.")
    images = [blob[start:end].tobytes() for start, end in pairwise(cut.tolist())]
    held_out = "test" if (splits == "test").any() else "val"
    rows = [np.flatnonzero(splits == word) for word in ("train", held_out)]
    if request.required == "all":
        rows = [rows[0][:0], np.arange(len(labels))]
    train, test = (([images[row] for row in subset], labels[subset]) for subset in rows)
    first = next(iter(train[0] + test[0]), None)
    size = request.size or (min(decode.rgb(first).size) if first else 1)
    return dataset_from_files(name, train, test, classes, size, crop=1.0)  # small images are used whole
