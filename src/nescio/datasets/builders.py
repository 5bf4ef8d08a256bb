"""Datasets from arrays or image files, with their revision: a checksum of labels and images."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets import decode
from nescio.datasets.images import Dataset, EncodedImages, Images, Pixels
from nescio.errors import BadInput

P = TypeVar("P", str, Path)
T = TypeVar("T")
MOST_CLASSES = 1_000_000
ImagesAndLabels: TypeAlias = tuple[Any, Array]  # (an array, paths or encoded images; their labels)


def dataset_from_arrays(
    name: str, train: ImagesAndLabels, test: ImagesAndLabels, classes: Iterable[str] | None = None
) -> Dataset:
    """A dataset of two arrays of uint8 images, (n, h, w) or (n, h, w, ch), and their labels. Default class names are
    numbers. Labels of shape (n, h, w) are label maps."""
    arrays = [_check_pixels(f"The {word} images of {name}", pixels) for word, (pixels, _) in _by_word(train, test)]
    subsets = list(zip(arrays, (train[1], test[1]), strict=True))
    shape, test_shape = (pixels.shape[1:] for pixels in arrays)
    if shape != test_shape:
        raise BadInput(f"{name} has training images of shape {shape} and test images of {test_shape}.")
    _check_labels(name, subsets, shape[:2])
    digest = hashlib.sha256()
    for pixels, labels in subsets:
        digest.update(f"{pixels.shape} {labels.tolist() if labels.ndim == 1 else labels.shape}".encode())
        if labels.ndim > 1:
            digest.update(np.ascontiguousarray(labels, np.uint8).tobytes())
        digest.update(memoryview(np.ascontiguousarray(pixels)))  # type: ignore[arg-type]
    backings = [Pixels(partial(np.asarray, pixels)) for pixels in arrays]
    return _build(name, backings, subsets, classes, shape, digest.hexdigest())


def _by_word(train: T, test: T) -> zip[tuple[str, T]]:
    """The two subsets of a dataset with the words for them in messages."""
    return zip(("training", "test"), (train, test), strict=True)


def _check_pixels(what: str, pixels: Array) -> Array:
    """uint8 images (n, h, w, ch) of such images, or of images (n, h, w)."""
    if pixels.dtype != np.uint8:
        cure = "they must be uint8, from 0 to 255"
        if pixels.dtype.kind in "iuf" and pixels.size and 0 <= pixels.min() <= pixels.max() <= 255:
            unit = pixels.dtype.kind == "f" and pixels.max() <= 1
            rounded = ".round()" if pixels.dtype.kind == "f" else ""
            cure += f": save {'(255 * x)' if unit else 'x'}{rounded}.astype(np.uint8)"
        raise BadInput(f"{what} are {pixels.dtype}; {cure}.")
    if pixels.ndim not in (3, 4):
        cure = "it must be (n, height, width) or (n, height, width, channels)"
    elif pixels.ndim == 4 and pixels.shape[3] not in (1, 3):
        cure = "the last axis must be 1 or 3 channels: keep 1 or 3 of them, as x[..., :3]"
        if pixels.shape[1] in (1, 3):
            cure = "the last axis must be the channels, which come first: save x.transpose(0, 2, 3, 1)"
    elif 0 in pixels.shape[1:]:
        cure = "images need at least 1 pixel"
    else:
        return pixels if pixels.ndim == 4 else pixels[..., None]
    raise BadInput(f"{what} have shape {pixels.shape}; {cure}.")


def dataset_from_files(
    name: str,
    train: ImagesAndLabels,
    test: ImagesAndLabels,
    classes: Iterable[str] | None,
    size: int,
    crop: float = decode.CROP,
) -> Dataset:
    """A dataset of image files, or of encoded images in memory, and their labels.

    Sets that fit into memory are decoded once on first use; the others are read on every access. The revision
    is taken over the encoded bytes, so that it needs no decoding. For sets larger than memory it covers names and
    lengths of the files, without their root folder.
    """
    subsets = [train, test]
    _check_labels(name, subsets, (size, size))
    fits = sum(len(sources) for sources, _ in subsets) * size * size * 3 <= decode.RESIDENT_BYTES
    digest = hashlib.sha256(f"{size} {crop}".encode())
    files = [] if fits else [entry for sources, _ in subsets for entry in sources if isinstance(entry, str)]
    above = os.path.commonpath([os.path.dirname(end(files)) for end in (min, max)]) if files else ""
    for sources, labels in subsets:
        digest.update(f"{len(sources)} {labels.tolist()}".encode())
        for entry in sources:
            checked = checksum_content(entry, fits, above)
            digest.update(len(checked).to_bytes(8, "little"))
            digest.update(checked)
    encoded = [EncodedImages(sources, size, crop) for sources, _ in subsets]
    backings = [images.in_memory() if fits else images for images in encoded]
    return _build(name, backings, subsets, classes, (size, size, 3), digest.hexdigest())


def checksum_content(entry: str | bytes, whole: bool, above: str = "") -> bytes:
    """Content of a checksum: the bytes of an image, or the class folder, name and length of a file.

    above  the folder of all images, whose name is no class
    """
    if isinstance(entry, bytes):
        return entry
    try:
        size = os.stat(regular(entry)).st_size
        if not whole:
            parts = Path(entry).parts[-1:] if os.path.dirname(entry) == above else Path(entry).parts[-2:]
            return f"{'/'.join(parts)} {size}".encode(errors="surrogateescape")
        with open(entry, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadInput(f"{entry} cannot be read: {error.strerror}.") from None


def checksum(path: str | Path) -> str:
    """The first digits of a file's sha256; cached in the process until the file changes."""
    try:
        state = os.stat(regular(os.fspath(path)))
        return _checksum(os.fspath(path), state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None


@cache
def _checksum(path: str, size: int, changed: int) -> str:
    """`size` and `changed` are part of the cache key."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def regular(path: P) -> P:
    """The path of a file or a folder: reading a pipe would never end."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise BadInput(f"{path} is not a regular file.")
    return path


def _check_labels(name: str, subsets: Sequence[ImagesAndLabels], shape: tuple[int, ...]) -> None:
    for word, (images, labels) in _by_word(*subsets):
        if (labels.ndim != 1 and labels.shape[1:] != shape) or labels.dtype.kind not in "iu":
            raise BadInput(
                f"The {word} labels of {name} have shape {labels.shape} and kind {labels.dtype}; "
                "they must be whole numbers, one for each image or one for each of its pixels."
            )
        if len(images) != len(labels):
            raise BadInput(f"{name} has {len(images)} {word} images and {len(labels)} {word} labels.")
        if labels.ndim == 3 and (labels.max(initial=0) > 255 or labels.min(initial=0) < 0):
            raise BadInput(f"The {word} label maps of {name} contain labels outside 0 to 255.")
        if not len(labels) and word == "test":
            raise BadInput(f"{name} has no test images.")


def _build(
    name: str,
    backings: Sequence[Pixels | EncodedImages],
    subsets: Sequence[ImagesAndLabels],
    classes: Iterable[str] | None,
    shape: tuple[int, ...],
    digest: str,
) -> Dataset:
    """The dataset of images of shape (h, w, ch); default class names are the numbers up to the largest label."""
    most = max((int(labels.max()) for _, labels in subsets if labels.size), default=0)
    if classes is None and most >= MOST_CLASSES:
        raise BadInput(f"{name} has the label {most}: classes are numbered from 0, and below {MOST_CLASSES}.")
    names = tuple(map(str, range(most + 1))) if classes is None else tuple(classes)
    built: list[Images] = []
    for (word, (_, labels)), backing in zip(_by_word(*subsets), backings, strict=True):
        maps = None
        if labels.ndim == 3:
            maps = Pixels(partial(np.asarray, labels.astype(np.uint8)[..., None]))
            labels = np.zeros(len(labels), np.int64)
        if labels.min(initial=0) < 0 or labels.max(initial=0) >= len(names):
            raise BadInput(f"{name} has {word} labels outside 0 to {len(names) - 1}.")
        rows = np.arange(len(labels))
        start = len(built[0]) if built else 0
        built.append(Images(labels.astype(np.int64), start + rows, backing, rows, maps=maps))
    height, width, channels = shape
    return Dataset(name, built[0], built[1], names, channels, (height, width), digest[:16])
