"""Changes of images: functions of the pixels and of each image's key alone, whatever the batch and the threads.

A change is a frozen dataclass with `apply`; it is a field of an image set, and so enters the key of every prediction.
A new kind of change is one class here, or in a file of its own, with a tag.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio.errors import BadInput
from nescio.identity import Checked, seed_for, tag

Array = NDArray[Any]


@tag("change")
@dataclass(frozen=True)
class Change(Checked, ABC):
    """What is done to images before a network sees them."""

    @abstractmethod
    def apply(self, pixels: Array, index: Array) -> Array:
        """The changed images (n, h, w, ch) uint8; `index` (n,) is the key of each, for changes that draw."""

    @property
    def condition(self) -> str:
        """What rows call it in their column `condition` …"""
        return type(self).__name__.lower()

    @property
    @abstractmethod
    def level(self) -> float:
        """… and how much of it there is, in their column `level`."""


@tag("rotation")
@dataclass(frozen=True)
class Rotation(Change):
    """Turned about the middle, counter-clockwise; what comes in is black."""

    degrees: float = 0.0

    def apply(self, pixels: Array, index: Array) -> Array:
        from PIL import Image

        if self.degrees % 360 == 0:
            return pixels
        turned = np.empty_like(pixels)
        for row, image in enumerate(pixels):
            for channel in range(image.shape[-1]):
                plane = Image.fromarray(np.ascontiguousarray(image[..., channel]))
                turned[row, ..., channel] = np.asarray(plane.rotate(self.degrees, Image.Resampling.BILINEAR))
        return turned

    @property
    def level(self) -> float:
        return self.degrees


@tag("crop")
@dataclass(frozen=True)
class Crop(Change):
    """A random part of each image, of a share of its sides between `least` and `most`, at full size (url.txt §4.3).

    The share and the place are drawn for each image from a stream keyed by its index and the seed.
    """

    least: float = 0.1
    most: float = 0.75
    seed: int = 0

    def check(self) -> None:
        if not 0 < self.least <= self.most <= 1:
            raise BadInput(f"A crop keeps a share between 0 and 1, from {self.least:g} to {self.most:g} does not fit.")

    def apply(self, pixels: Array, index: Array) -> Array:
        from PIL import Image

        height, width = pixels.shape[1:3]
        cropped = np.empty_like(pixels)
        for row, (image, key) in enumerate(zip(pixels, index.tolist(), strict=True)):
            bits = np.random.PCG64(seed_for("crop", key, self.seed)).random_raw(3)
            share, left, top = (bits >> np.uint64(11)) * 2.0**-53
            side = self.least + (self.most - self.least) * share
            box = (left * (1 - side) * width, top * (1 - side) * height)
            box = (*box, box[0] + side * width, box[1] + side * height)
            for channel in range(image.shape[-1]):
                plane = Image.fromarray(np.ascontiguousarray(image[..., channel]))
                part = plane.resize((width, height), Image.Resampling.BILINEAR, box=box)
                cropped[row, ..., channel] = np.asarray(part)
        return cropped

    @property
    def level(self) -> float:
        return self.most
