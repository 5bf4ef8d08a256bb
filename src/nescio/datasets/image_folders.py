"""Readers of folders of image files: ImageNet, Tiny-ImageNet, folders of classes, and images without labels."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nescio.datasets.builders import ImagesAndLabels, dataset_from_files
from nescio.datasets.images import Dataset
from nescio.datasets.readers import DatasetRequest, dataset, find_folder, requested_path
from nescio.datasets.splits import stratified
from nescio.errors import BadInput
from nescio.files import read_text

ENDINGS = (".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
WNID = re.compile(r"n\d{8}")
SOLUTION = "LOC_val_solution.csv"


@dataset("tiny-imagenet", size=64)
def tiny_imagenet(request: DatasetRequest) -> Dataset:
    """Tiny-ImageNet: 200 classes of 64 × 64 pixels, ordered by their WordNet ids; its validation set is the test set,
    for the published test set has no labels."""
    files = ["wnids.txt", "words.txt", "val/val_annotations.txt", "val/images"]
    files += [] if request.required == "test" else ["train"]
    published = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    folders = ("tiny-imagenet-200", "tiny-imagenet/tiny-imagenet-200")
    folder = find_folder(request, "tiny-imagenet", folders, files, published)
    wnids = sorted(read_text(folder / "wnids.txt", errors="replace").split())
    number = {wnid: label for label, wnid in enumerate(wnids)}
    train = [] if request.required == "test" else _files_of(folder / "train", wnids, FolderWalk())
    notes = folder / "val/val_annotations.txt"
    test = []
    for line in sorted(read_text(notes, errors="replace").splitlines()):
        file, wnid, *_ = *line.split("\t"), ""
        if wnid not in number:
            raise BadInput(f"{notes} has the line {line!r}, which names no class of wnids.txt: fetch it again.")
        test.append((str(folder / "val/images" / file), number[wnid]))
    count = sum(entry.name.lower().endswith(ENDINGS) for entry in os.scandir(folder / "val/images"))
    if len(test) != count:
        raise BadInput(f"{notes} describes {len(test)} images, but {count} are there: fetch it again.")
    names_of = dict(
        line.split("\t", 1) for line in read_text(folder / "words.txt", errors="replace").splitlines() if "\t" in line
    )
    names = [names_of.get(wnid, wnid).split(",")[0] for wnid in wnids]
    return dataset_from_files("tiny-imagenet", _images_and_labels(train), _images_and_labels(test), names, request.size)


@dataset("imagenet", path=None, size=224)
def imagenet(request: DatasetRequest) -> Dataset:
    """ImageNet-1k: train/WNID/*.JPEG, and val/WNID/*.JPEG as the test set (or val/*.JPEG with LOC_val_solution.csv in
    a folder above it); classes ordered by their WordNet ids. imagenet:PATH names the folder of train and val,
    or the folder val itself."""
    published = "https://image-net.org (ILSVRC2012; sort the validation images into folders named by their WordNet id)"
    folders = ("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", ".")
    required = ["train", "val"] if request.required == "both" else ["val"]
    if not request.path:
        return _imagenet(find_folder(request, "imagenet", folders, required, published), request)
    folder = requested_path(request)
    inside = next((folder / name for name in (".", *folders) if (folder / name / "val").is_dir()), None)
    if inside is not None:
        return _imagenet(inside, request)
    if not any(WNID.fullmatch(name) for name in _folders(folder)):
        raise BadInput(f"{folder} has neither the folder val nor folders named by WordNet ids such as n01440764.")
    return _class_folders("imagenet", None, folder, request.size)


def _imagenet(folder: Path, request: DatasetRequest) -> Dataset:
    """Validation images in folders by class, or side by side with a table of their classes (Kaggle's layout)."""
    val = folder.resolve() / "val"
    table = next((above / SOLUTION for above in (val, *val.parents) if (above / SOLUTION).is_file()), None)
    if table is None or any(entry.is_dir() for entry in os.scandir(val)):
        return _divided("imagenet", folder, "val", request)
    lines = [line.split(",", 1) for line in read_text(table, errors="replace").splitlines()[1:] if "," in line]
    wnids = {name: rest.split()[0] for name, rest in lines if WNID.match(rest)}
    classes = sorted(set(wnids.values()))
    number = {wnid: label for label, wnid in enumerate(classes)}
    rows = [(str(val / f"{name}.JPEG"), number[wnid]) for name, wnid in sorted(wnids.items())]
    train = folder / "train" if request.required != "test" and (folder / "train").is_dir() else None
    files = _files_of(train, classes, FolderWalk()) if train else []
    return dataset_from_files("imagenet", _images_and_labels(files), _images_and_labels(rows), classes, request.size)


@dataset("folder", path=True, size=224)
def folder(request: DatasetRequest) -> Dataset:
    """folder:PATH: PATH/train/CLASS/*.jpg and PATH/test/CLASS/*.jpg (or val); or PATH/CLASS/*.jpg alone, of which a
    fixed, stratified fifth is then the test set. folder:PATH@SIZE for another size than 224 pixels."""
    folder = requested_path(request)
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder.")
    held_out = next((name for name in ("test", "val") if (folder / name).is_dir()), None)
    if (folder / "train").is_dir() or (held_out and request.required != "both"):
        if held_out is None:
            raise BadInput(f"{folder} has the folder train, but neither test nor val beside it.")
        return _divided(folder.name, folder, held_out, request)
    if request.required != "both":  # no training images: all of them are test images
        return _class_folders(folder.name, None, folder, request.size)
    classes, walk = _folders(folder), FolderWalk()
    rows = _files_of(folder, classes, walk)
    parts = stratified(np.array([label for _, label in rows]), 0.2, seed=0)
    train, test = (_images_and_labels([rows[row] for row in subset]) for subset in parts)
    return replace(dataset_from_files(folder.name, train, test, classes, request.size), notes=walk.notes)


def _divided(name: str, folder: Path, held_out: str, request: DatasetRequest) -> Dataset:
    """PATH/train beside PATH/test or PATH/val; without PATH/train if only test images are required or exist."""
    train = None if request.required == "test" or not (folder / "train").is_dir() else folder / "train"
    return _class_folders(name, train, folder / held_out, request.size)


def _folders(folder: Path) -> list[str]:
    """Class folders by name; hidden ones are not classes."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise BadInput(f"{folder} contains no folders: it needs one for each class, with its images.")
    return names


@dataclass
class FolderWalk:
    """The folders and the skipped files of a scan of a dataset."""

    folders: dict[tuple[int, int], str] = field(default_factory=dict)  # path by device and inode
    skipped: list[str] = field(default_factory=list)  # files that are no images by their endings

    @property
    def notes(self) -> tuple[str, ...]:
        """A note with the number of skipped files and their suffixes; () if there are none."""
        if not self.skipped:
            return ()
        endings = sorted({Path(name).suffix.lower() or "no ending" for name in self.skipped})
        count = len(self.skipped)
        return (f"{count:,} file{'s' * (count != 1)} skipped: {', '.join(endings)}.",)


def _files_of(folder: Path, classes: Sequence[str], walk: FolderWalk) -> list[tuple[str, int]]:
    """(path, label) of every image under the classes' folders, by class and then by name."""
    rows: list[tuple[str, int]] = []
    for label, name in enumerate(classes):
        if not (files := _images_below(folder / name, walk)):
            raise BadInput(f"{folder / name} contains no images ({', '.join(ENDINGS)}): every class needs some.")
        rows += [(file, label) for file in files]
    return rows


@dataset("images", path=True, size=224)
def images(request: DatasetRequest) -> Dataset:
    """images:PATH: every image below a folder, by name, without labels."""
    folder = requested_path(request)
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder.")
    walk = FolderWalk()
    files = sorted(_images_below(folder, walk))
    if not files:
        raise BadInput(f"{folder} contains no images ({', '.join(ENDINGS)}).")
    rows = _images_and_labels([(file, 0) for file in files])
    loaded = dataset_from_files(folder.name, _images_and_labels([]), rows, ["image"], request.size)
    return replace(loaded, labelled=False, notes=walk.notes)


def _images_below(path: str | Path, walk: FolderWalk) -> list[str]:
    """Every image file below a folder, in order, without hidden folders and files.

    Links are followed, but no folder is read twice: a link could form a cycle, or count images of another class or
    split twice.
    """
    status = os.stat(path)
    twin = walk.folders.setdefault((status.st_dev, status.st_ino), str(path))
    if twin != str(path):
        raise BadInput(f"{path} is the same folder as {twin}: remove the link, or its images would count twice.")
    above = Path(os.path.realpath(path))
    if os.path.islink(path) and above in Path(os.path.realpath(os.path.dirname(path))).parents:
        raise BadInput(f"{path} is a link to a folder that contains it: remove it.")
    with os.scandir(path) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    inner = sorted(entry.name for entry in visible if entry.is_dir())
    files = sorted(entry.name for entry in visible if not entry.is_dir())
    images = [os.path.join(path, name) for name in files if name.lower().endswith(ENDINGS)]
    walk.skipped += [name for name in files if not name.lower().endswith(ENDINGS)]
    return images + [image for name in inner for image in _images_below(os.path.join(path, name), walk)]


def _images_and_labels(rows: Sequence[tuple[str, int]]) -> ImagesAndLabels:
    return [path for path, _ in rows], np.array([label for _, label in rows], np.int64)


def _class_folders(name: str, train: Path | None, test: Path, size: int) -> Dataset:
    classes = _folders(test)
    odd = sorted(set(classes) ^ set(_folders(train))) if train else []
    if odd:
        raise BadInput(f"{train} and {test} must have the same classes, but {odd[0]} is in one of them only.")
    walk = FolderWalk()
    train_files = _images_and_labels(_files_of(train, classes, walk) if train else [])
    loaded = dataset_from_files(name, train_files, _images_and_labels(_files_of(test, classes, walk)), classes, size)
    return replace(loaded, notes=walk.notes)
