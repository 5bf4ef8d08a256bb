"""Readers of datasets by name, and the folders in which datasets are searched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Literal

from nescio.datasets.builders import regular
from nescio.datasets.images import Dataset
from nescio.errors import BadInput
from nescio.registry import Registry, source_file
from nescio.specs import DatasetName

RequiredImages = Literal["both", "test", "all"]


@dataclass(frozen=True)
class DatasetRequest:
    """A request for a dataset, parsed from `NAME:PATH@SIZE`, and the folder of datasets.

    `required` both: training and test images; test: test images, and a reader may leave out the training images; all:
    every labelled image, and a reader may call them all test images.
    """

    root: Path | None = None
    path: str = ""
    size: int = 0
    required: RequiredImages = "both"


@dataclass(frozen=True)
class Reader:
    """A reader of one kind of dataset."""

    name: str
    read: Callable[[DatasetRequest], Dataset]
    path: bool | None  # whether a path must follow the name; None: it may
    size: int | None  # usual size of its images in pixels where another one can be chosen
    selectors: int = 0  # for a set made from another one: number of selections after its name, each after a #


class _Readers(Registry[Reader]):
    """Readers by name; the suffix of `NAME:PATH@SIZE` is unchanged."""

    def canonical(self, name: str) -> str:
        kind = DatasetName.parse(name).kind
        if kind not in self and Path(os.path.expanduser(name)).exists():
            return name  # a folder of that name is not read as the dataset of which it is an alias
        return super().canonical(kind) + name[len(kind) :]


registry: Registry[Reader] = _Readers(
    "dataset",
    aliases={
        "cars196": ("stanford_cars",),
        "cub200": ("cub", "cub_200_2011"),
        "fashion-mnist": ("fmnist",),
        "imagenet": ("imagenet-1k", "imagenet1k", "ilsvrc2012", "in1k"),
        "sop": ("stanford_online_products",),
        "tiny-imagenet": ("tiny_imagenet_200",),
    },
    others=dict.fromkeys(
        ("svhn", "kmnist", "emnist", "qmnist", "lsun", "places365", "textures", "dtd", "inaturalist", "cifar10c"), ""
    )
    | dict.fromkeys(("cifar10.1", "cifar100c", "imagenet-o", "imagenet-c", "imagenet-r", "imagenet-v2", "stl"), ""),
)


def dataset(
    name: str, *, path: bool | None = False, size: int | None = None, selectors: int = 0
) -> Callable[[Callable[[DatasetRequest], Dataset]], Callable[[DatasetRequest], Dataset]]:
    """Register a function as the reader of one dataset."""

    def add(read: Callable[[DatasetRequest], Dataset]) -> Callable[[DatasetRequest], Dataset]:
        try:
            signature(read).bind(None)
        except TypeError:
            raise BadInput(
                f"The dataset {name} ({source_file(read)}): its function must take one argument, the request."
            ) from None
        registry.add(name, Reader(name, read, path, size, selectors))
        return read

    return add


def load(spec: str, root: str | Path | None = None, required: RequiredImages = "both") -> Dataset:
    """A dataset by name (`digits`, `cifar10` …) or by path (`folder:PATH`, `npz:PATH`); `@SIZE` resizes image files.

    Named sets are searched in `root`, else under $NESCIO_DATA, else under ~/.cache/nescio/data. A process reads a
    dataset once. With `required` test or all, for models that only predict, a set may lack training images.
    """
    where = None if root is None else str(Path(os.path.expanduser(root)).absolute())
    loaded = _load(spec, where, os.environ.get("NESCIO_DATA"), os.getcwd(), required)
    if required == "both" and not len(loaded.train):
        raise BadInput(f"{spec} has no training images.")
    return loaded


@lru_cache(maxsize=4)
def _load(
    spec: str, root: str | None, data_folder: str | None, working_folder: str, required: RequiredImages
) -> Dataset:
    """`data_folder` and `working_folder` are part of the cache key, because the result depends on them."""
    name, path, size = DatasetName.parse(spec)
    if any("\ud800" <= letter <= "\udfff" for letter in spec):
        raise BadInput(f"{spec!r} is not UTF-8, and keys and pages contain the name of the data: rename the folder.")
    reader = _reader(spec, name)
    name = reader.name
    if reader.path and not path:
        raise BadInput(f"{spec!r} has no path: write {name}:PATH.")
    if path is not None and reader.path is False:
        raise BadInput(f"{spec!r}: {name} takes no path; set NESCIO_DATA to the folder that contains it.")
    if size is not None and (reader.size is None or len(size) > 4 or int(size) < 1):
        what = "cannot be resized" if reader.size is None else "have from 1 to 9999 pixels a side"
        raise BadInput(f"{spec!r}: the images of {name} {what}.")
    loaded = reader.read(
        DatasetRequest(Path(root) if root else None, path or "", int(size or reader.size or 0), required)
    )
    if not isinstance(loaded, Dataset):
        raise BadInput(
            f"The dataset {name} ({source_file(reader.read)}): its function returns {type(loaded).__name__}, not a "
            "Dataset: end it with return dataset_from_arrays(…)."
        )
    return loaded


def _reader(spec: str, name: str) -> Reader:
    """The reader of a set; for an existing file or folder without a prefix, the error names the right prefix."""
    path = Path(os.path.expanduser(spec))
    if not spec or name in registry or not path.exists():
        return registry[name]
    if path.suffix == ".npz":
        raise BadInput(f"{spec!r} is a file: write npz:{spec}.")
    if path.is_dir():
        raise BadInput(f"{spec!r} is a folder: write folder:{spec}, or images:{spec} for images without labels.")
    raise BadInput(f"{spec!r} is a file, and images are read from folder:PATH or npz:FILE.")


def data_folders(root: str | Path | None) -> list[Path]:
    """Folders in which datasets are searched."""
    if root is not None:
        return [Path(root)]
    named = os.environ.get("NESCIO_DATA")
    return [*([Path(os.path.expanduser(named))] if named else []), Path(os.path.expanduser("~/.cache/nescio/data"))]


def requested_path(request: DatasetRequest) -> Path:
    """The file or folder of a path, relative to the current folder or a folder of datasets."""
    tried = [Path(os.path.expanduser(request.path)), *(path / request.path for path in data_folders(request.root))]
    for path in tried:
        if path.exists():
            return path.resolve()
    raise BadInput(f"There is nothing at {', nor at '.join(map(str, dict.fromkeys(tried)))}.")


def find_folder(
    request: DatasetRequest,
    name: str,
    folders: Iterable[str],
    required_files: Sequence[str],
    published: str,
    endings: Sequence[str] = ("",),
) -> Path:
    """The requested path, else the first folder with all required files."""
    if request.path:
        return requested_path(request)
    searched = [data_folder / folder for data_folder in data_folders(request.root) for folder in folders]
    for folder in searched:
        if all(any((folder / f"{file}{ending}").exists() for ending in endings) for file in required_files):
            for file in required_files:
                for ending in endings:
                    regular(folder / f"{file}{ending}")
            return folder
    also = f" (or with {' or '.join(endings[1:])})" if len(endings) > 1 else ""
    raise BadInput(
        f"{name} was not found: searched {', '.join(map(str, searched))} for {', '.join(required_files)}{also}. "
        f"It is published at {published}: unpack it there, or set NESCIO_DATA to the folder that contains it."
    )
