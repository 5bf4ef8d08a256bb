"""Encoded images to uint8 arrays."""

from __future__ import annotations

import ctypes
import io
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from nescio.arrays.parallel import thread_count
from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.progress import track

if TYPE_CHECKING:
    from PIL.Image import Image

Item = TypeVar("Item")
Source: TypeAlias = str | bytes | Array  # an image: a path, encoded bytes, or an array (h, w, ch)

RESIDENT_BYTES = 4 << 30  # datasets up to this size are decoded once and stay in memory
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ORIENTATION = 0x0112  # the EXIF tag
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # decoded without external programs
END_OF_JPEG = b"\xff\xd9"
DEPTH_OF_PNG = 24  # position of the bit depth in a PNG: after signature, length, type and size
CROP = 0.875  # central share of a large image that is used: 224 of 256


def decode(
    data: Source, size: int, crop: float = CROP, box: Sequence[float] | None = None, height: int | None = None
) -> NDArray[np.uint8]:
    """One image as RGB (size, size, 3): its central square, resized.

    The square is `crop` of the shorter side, or all of it in an image that is not larger than `size`; an image of just
    that size stays as it is. `box`, (left, top, right, bottom) as shares of the square, selects a cut of it. With a
    `height`, (height, size, 3) of the largest central cut of that shape, in place of the square.
    """
    from PIL import Image

    image, goal = rgb(data), (size, height or size)
    if box is None and image.size == goal:
        return np.array(image)
    whole: tuple[int, int] = image.size
    tight = 0 if whole[0] * goal[1] <= whole[1] * goal[0] else 1  # the side that limits the crop
    share = crop if whole[tight] > goal[tight] else 1.0
    sides = [whole[tight] * length / goal[tight] * share for length in goal]
    ends = (0.0, 0.0, 1.0, 1.0) if box is None else box
    cut = [
        min(max(0.0, (room - side) / 2 + side * end), room)
        for room, side, end in zip(whole * 2, sides * 2, ends, strict=True)
    ]
    return np.array(image.resize(goal, Image.Resampling.BILINEAR, box=cut))


def rgb(data: Source) -> Image:
    """One image as a Pillow image in colour."""
    from PIL import Image

    if isinstance(data, np.ndarray):
        return Image.fromarray(data[..., 0] if data.shape[-1] == 1 else data).convert("RGB")
    with opened(data) as file:
        return _eight_bits(_upright(file), _named(data)).convert("RGB")


def _named(data: str | bytes) -> str:
    return data if isinstance(data, str) else "An encoded image"


@contextmanager
def opened(data: str | bytes) -> Iterator[Image]:
    """The Pillow image of a path or of encoded bytes; raises every fault as one BadInput."""
    from PIL import Image

    what = _named(data)
    warnings.filterwarnings("ignore", module=r"PIL\.")  # the image can still be read
    _listen_to_libtiff()
    _libtiff.complains = False
    try:
        with Image.open(data if isinstance(data, str) else io.BytesIO(data), formats=FORMATS) as file:
            yield file
        if _libtiff.complains:
            raise ValueError("pixels of a damaged TIFF are unreliable")
    except (BadInput, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise BadInput(
            f"{what} is too large: it has more than {most / 1e6:.0f} million pixels, which could fill the memory. Make "
            "it smaller, or omit it."
        ) from error
    except Exception as error:  # a damaged file can fail in any way inside Pillow
        reason = getattr(error, "strerror", None) or "it is damaged, cut short, or no image"
        raise BadInput(f"{what} cannot be read: {reason}.") from error


_libtiff = threading.local()  # an error about the image that this thread reads


@cache
def _listen_to_libtiff() -> object:
    """libtiff prints errors and may continue with wrong pixels; this handler passes them to `opened` instead."""
    from PIL import _imaging

    def complain(module: bytes, message: bytes) -> None:
        _libtiff.complains = True

    handler = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)(complain)
    with suppress(AttributeError, OSError):  # a Pillow whose libtiff is out of reach: it prints
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(handler)
    return handler  # referenced, because libtiff calls it


def _upright(image: Image) -> Image:
    """The image rotated by the orientation in its EXIF data."""
    from PIL import ImageOps

    try:
        rotated = image.getexif().get(ORIENTATION, 1) != 1
    except Exception:  # damaged EXIF data of a readable image is ignored
        return image
    return ImageOps.exif_transpose(image) if rotated else image


def _eight_bits(image: Image, what: str) -> Image:
    """Grey images of 16 bits with their values divided by 257; Pillow would truncate them at 255."""
    from PIL import Image

    if image.mode != "F" and not image.mode.startswith("I"):
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise BadInput(f"{what} has numbers of 32 bits, whose white level is unknown: save it with 8 or 16 bits.")
    return Image.fromarray((values // 257).astype(np.uint8))


def on_threads(
    one: Callable[[Item], Array], items: Sequence[Item], shape: tuple[int, ...], what: str = "decoding images"
) -> NDArray[np.uint8]:
    """(n, *shape): a function of each item, on as many threads as there are cores."""
    out = np.empty((len(items), *shape), np.uint8)
    with ThreadPoolExecutor(thread_count()) as pool:
        for row, image in enumerate(track(pool.map(one, items), what, total=len(items))):
            out[row] = image
    return out


def frame(path: str, shape: tuple[int, int], goal: tuple[int, int]) -> NDArray[np.uint8]:
    """A whole image of this shape (height, width), scaled to another one: (h, w, 3)."""
    from PIL import Image

    image = rgb(path)
    _check_shape(path, image, shape)
    return np.array(image.resize(goal[::-1], Image.Resampling.BILINEAR))


def check_head(path: str, shape: tuple[int, int]) -> None:
    """Raise BadInput for a file that is no image of this shape, or is cut short. A JPEG with its end is not decoded."""
    with opened(path) as file:
        if file.getexif().get(ORIENTATION, 1) < 5:  # the others are rotated when they are decoded
            _check_shape(path, file, shape)
        with open(path, "rb") as end:
            end.seek(-len(END_OF_JPEG), os.SEEK_END)
            whole = file.format == "JPEG" and end.read() == END_OF_JPEG  # some cameras append more data
        if not whole:
            file.load()


@contextmanager
def opened_map(path: str) -> Iterator[Image]:
    """The Pillow image of a PNG that has a number for every pixel, as it was written.

    Pillow stretches grey values of 2 and 4 bits to 0 to 255, and programs that shrink PNGs rely on it. Class 3 and
    class 51 would then be the same.
    """
    with opened(path) as file:
        if file.format != "PNG":
            raise BadInput(f"{path} is a {file.format} file called .png: maps of pixels must be PNG files.")
        with open(path, "rb") as head:
            head.seek(DEPTH_OF_PNG)
            bits = head.read(1)[0]
        if bits < 8 and file.mode != "P":
            raise BadInput(
                f"{path} has {bits} bits per pixel, which programs read as 0 to {2**bits - 1} or stretch to 0 to 255: "
                "save it with 8 bits per pixel, as Image.fromarray(labels.astype(np.uint8)) does."
            )
        yield file


def label_map(path: str, shape: tuple[int, int], goal: tuple[int, int], table: Array) -> NDArray[np.uint8]:
    """A label map of this shape, scaled to another one by the nearest pixel: (h, w, 1). `table` (256,) is the class of
    every value in the file, −1 for values without a class."""
    from PIL import Image

    with opened_map(path) as file:
        if file.mode not in ("L", "P"):
            raise BadInput(
                f"{path} is no label map: it must have one number of 8 bits per pixel, as a grey or palette PNG."
            )
        _check_shape(path, file, shape)
        labels = table[np.asarray(file.resize(goal[::-1], Image.Resampling.NEAREST))]
    if labels.min() < 0:
        valid = np.flatnonzero(table >= 0)
        spans = np.split(valid, np.flatnonzero(np.diff(valid) > 1) + 1)
        listed = ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}–{span[-1]}" for span in spans)
        raise BadInput(f"{path} contains labels without a class: they must be among {listed}.")
    return labels.astype(np.uint8)[..., None]


def _check_shape(path: str, image: Image, shape: tuple[int, int]) -> None:
    if image.size[::-1] != shape:
        width, height = image.size
        raise BadInput(
            f"{path} has {height} × {width} pixels, and the first image {shape[0]} × {shape[1]}: images and label maps "
            "of a set must have one size."
        )


def thumbnail(source: Source, side: int = 96) -> bytes:
    """A PNG of an image, reduced to at most `side` pixels."""
    image = rgb(source)
    if max(image.size) > side:
        image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
