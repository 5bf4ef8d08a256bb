"""Datasets from arrays or image files, with their revision: a checksum of labels and images."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets import decode
from nescio.datasets.images import Dataset, EncodedImages, Images, Pixels
from nescio.errors import BadInput

P = TypeVar("P", str, Path)


MOST_CLASSES = 1_000_000


ImagesAndLabels = tuple[Any, Array]  # images and their labels


def _bytes_of(pixels: Array) -> str:
    """Suggest how to convert images of another type to uint8, from their values."""
    if pixels.dtype.kind not in "iuf" or not pixels.size or not 0 <= pixels.min() <= pixels.max() <= 255:
        return ""
    unit = pixels.dtype.kind == "f" and pixels.max() <= 1
    return f": save {'(255 * x)' if unit else 'x'}{'.round()' * (pixels.dtype.kind == 'f')}.astype(np.uint8)"


def dataset_from_arrays(
    name: str, train: ImagesAndLabels, test: ImagesAndLabels, classes: Iterable[str] | None = None
) -> Dataset:
    """A dataset of two arrays of uint8 images, (n, h, w) or (n, h, w, ch), and their labels. Default class names are
    numbers. Labels of shape (n, h, w) are label maps."""
    parts: list[tuple[Array, Array]] = []
    for word, (pixels, labels) in (("training", train), ("test", test)):
        if pixels.dtype != np.uint8:
            raise BadInput(
                f"{name} holds {pixels.dtype} {word} images; they must be uint8, from 0 to 255{_bytes_of(pixels)}."
            )
        if pixels.ndim not in (3, 4):
            raise BadInput(
                f"The {word} images of {name} have shape {pixels.shape}; "
                "it must be (n, height, width) or (n, height, width, channels)."
            )
        parts.append((_with_channels(f"the {word} images of {name}", pixels), labels))
    (train_pixels, _), (test_pixels, _) = parts
    if train_pixels.shape[1:] != test_pixels.shape[1:]:
        raise BadInput(
            f"{name} has training images of shape {train_pixels.shape[1:]} and test images of {test_pixels.shape[1:]}."
        )
    _check_labels(name, parts, train_pixels.shape[1:3])
    digest = hashlib.sha256()
    for pixels, labels in parts:
        digest.update(f"{pixels.shape} {labels.tolist() if labels.ndim == 1 else labels.shape}".encode())
        if labels.ndim > 1:
            digest.update(np.ascontiguousarray(labels, np.uint8).tobytes())
        digest.update(memoryview(np.ascontiguousarray(pixels)))  # type: ignore[arg-type]
    backings = [Pixels(partial(np.asarray, pixels)) for pixels, _ in parts]
    height, width, channels = train_pixels.shape[1:]
    return _build(name, backings, parts, classes, channels, (height, width), digest)


def _with_channels(what: str, pixels: Array) -> Array:
    """(n, h, w, ch) of (n, h, w), or of the same with 1 or 3 channels last."""
    if pixels.ndim == 4 and pixels.shape[3] not in (1, 3):
        cure = "keep 1 or 3 of its channels, as x[..., :3]"
        if pixels.shape[1] in (1, 3):
            cure = "its channels come first, so save x.transpose(0, 2, 3, 1)"
        raise BadInput(f"{what} have shape {pixels.shape}, and the last axis must be 1 or 3 channels: {cure}.")
    if 0 in pixels.shape[1:]:
        raise BadInput(f"{what} have shape {pixels.shape}: images need at least 1 pixel.")
    return pixels if pixels.ndim == 4 else pixels[..., None]


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
    parts = [train, test]
    _check_labels(name, parts, (size, size))
    fits = sum(len(sources) for sources, _ in parts) * size * size * 3 <= decode.RESIDENT_BYTES
    digest = hashlib.sha256(f"{size} {crop}".encode())
    files = [] if fits else [entry for sources, _ in parts for entry in sources if isinstance(entry, str)]
    above = os.path.commonpath([os.path.dirname(end(files)) for end in (min, max)]) if files else ""
    for sources, labels in parts:
        digest.update(f"{len(sources)} {labels.tolist()}".encode())
        for entry in sources:
            checked = checksum_content(entry, fits, above)
            digest.update(len(checked).to_bytes(8, "little"))
            digest.update(checked)
    backings: list[Any] = [EncodedImages(sources, size, crop) for sources, _ in parts]
    if fits:
        backings = [
            Pixels(partial(file.read, range(len(sources))), file)
            for file, (sources, _) in zip(backings, parts, strict=True)
        ]
    return _build(name, backings, parts, classes, 3, (size, size), digest)


def checksum_content(entry: Any, whole: bool, above: str = "") -> Any:
    """Content of a checksum: the bytes of an image, or the class folder, name and length of a file.

    above  the folder of all images, whose name is no class
    """
    if not isinstance(entry, str):
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


def _build(
    name: str,
    backings: list[Any],
    parts: list[ImagesAndLabels],
    classes: Iterable[str] | None,
    channels: int,
    shape: tuple[int, int],
    digest: Any,
) -> Dataset:
    subsets: list[Images] = []
    start = 0
    names = tuple(classes) if classes is not None else _label_numbers(name, [labels for _, labels in parts])
    for word, store, (images, labels) in zip(("training", "test"), backings, parts, strict=True):
        if len(images) != len(labels):
            raise BadInput(f"{name} has {len(images)} {word} images and {len(labels)} {word} labels.")
        if not len(labels) and word == "test":
            raise BadInput(f"{name} has no test images.")
        maps = None
        if labels.ndim == 3:
            if labels.max(initial=0) > 255 or labels.min(initial=0) < 0:
                raise BadInput(f"The {word} label maps of {name} hold labels outside 0 to 255.")
            maps = Pixels(partial(np.asarray, labels.astype(np.uint8)[..., None]))
            labels = np.zeros(len(labels), np.int64)
        if labels.min(initial=0) < 0 or labels.max(initial=0) >= len(names):
            raise BadInput(f"{name} has {word} labels outside 0 to {len(names) - 1}.")
        rows = np.arange(len(labels))
        subsets.append(Images(labels.astype(np.int64), start + rows, store, rows, maps=maps))
        start += len(labels)
    return Dataset(name, subsets[0], subsets[1], names, channels, shape, digest.hexdigest()[:16])


def _check_labels(name: str, parts: Iterable[ImagesAndLabels], shape: tuple[int, ...]) -> None:
    for word, (_, labels) in zip(("training", "test"), parts, strict=True):
        if (labels.ndim != 1 and labels.shape[1:] != shape) or labels.dtype.kind not in "iu":
            raise BadInput(
                f"The {word} labels of {name} have shape {labels.shape} and kind {labels.dtype}; "
                "they must be whole numbers, one for each image or one for each of its pixels."
            )


def _label_numbers(name: str, labels: Sequence[Array]) -> tuple[str, ...]:
    """Default class names: numbers."""
    most = max((int(part.max()) for part in labels if part.size), default=0)
    if most >= MOST_CLASSES:
        raise BadInput(f"{name} has the label {most}: classes are numbered from 0, and below {MOST_CLASSES}.")
    return tuple(map(str, range(most + 1)))
