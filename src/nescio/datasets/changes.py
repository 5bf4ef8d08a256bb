"""Changes of images: functions of the pixels and of each image's key alone, whatever the batch and the threads.

A change is a frozen dataclass with `apply`; it is a field of an image set, and so enters the key of every prediction.
A new kind of change is one class with a tag, in this module or another file.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from nescio.errors import BadInput
from nescio.identity import Validated, seed_for, tag

if TYPE_CHECKING:  # processes that only decode images do without torch
    import torch
    from torch import Tensor

ZENITH = 90.0  # altitude of the sun over images that are not shifted, degrees
TABLES, ROWS, PLACES = 6, 32, 4096  # tables of random numbers: 2³⁰ combinations of rows


@tag("change")
@dataclass(frozen=True)
class Change(Validated, ABC):
    """A change of images before prediction: a corruption, rotation or crop."""

    moves: ClassVar[bool] = False  # whether pixels move, so that label maps no longer match
    stored: ClassVar[bool] = False  # whether the changed images are read from files, before the network's preprocessing

    @abstractmethod
    def apply(self, pixels: Tensor, index: Tensor) -> Tensor:
        """The changed images (n, h, w, ch) uint8; `index` (n,) int64 is the key of each, for changes that draw."""

    @property
    @abstractmethod
    def condition(self) -> str:
        """Value of the column `condition` in rows of results."""

    @property
    @abstractmethod
    def level(self) -> float:
        """Value of the column `level` in rows of results."""


@tag("rotation")
@dataclass(frozen=True)
class Rotation(Change):
    """Rotation about the centre, counter-clockwise; uncovered corners are black."""

    degrees: float = 0.0

    condition = "rotation"
    moves = True

    @property
    def level(self) -> float:
        return self.degrees

    def apply(self, pixels: Tensor, index: Tensor) -> Tensor:
        import torch

        if self.degrees % 360 == 0:
            return pixels
        height, width = pixels.shape[1:3]
        angle = math.radians(self.degrees)
        cos, sin = math.cos(angle), math.sin(angle)
        turn = torch.tensor([[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]])
        return sampled(pixels, turn.expand(len(pixels), 2, 3), "zeros")


@tag("crop")
@dataclass(frozen=True)
class Crop(Change):
    """A random crop of each image, with sides of `least` to `most` of the image's, resized to full size.

    Size and position are drawn for each image from a stream keyed by its index and the seed (url.txt §4.3).
    """

    least: float = 0.1
    most: float = 0.75
    seed: int = 0

    condition = "crop"
    moves = True

    def check(self) -> None:
        if not 0 < self.least <= self.most <= 1:
            raise BadInput(f"Crop keeps {self.least:g} to {self.most:g} of a side: it must be 0 < least ≤ most ≤ 1.")

    @property
    def level(self) -> float:
        return self.most

    def apply(self, pixels: Tensor, index: Tensor) -> Tensor:
        import torch

        share, across, down = uniforms(index, 3, seed_for("crop", self.seed)).unbind(1)
        side = self.least + (self.most - self.least) * share
        shift = (1 - side)[:, None] * (2 * torch.stack([across, down], 1) - 1)
        return sampled(pixels, axis_map(side, side, shift[:, 0], shift[:, 1]), "border")


def axis_map(scale_x: Tensor, scale_y: Tensor, shift_x: Tensor, shift_y: Tensor) -> Tensor:
    """(n, 2, 3) the affine maps that scale and shift both axes."""
    import torch

    zero = torch.zeros_like(scale_x)
    return torch.stack([scale_x, zero, shift_x, zero, scale_y, shift_y], 1).view(-1, 2, 3)


def sampled(pixels: Tensor, theta: Tensor, border: str) -> Tensor:
    """The images (n, h, w, ch) uint8 under affine maps theta (n, 2, 3) of the square from −1 to 1, bilinearly."""
    from torch.nn import functional as F

    x = pixels.permute(0, 3, 1, 2).float()
    grid = F.affine_grid(theta.to(x), list(x.shape), align_corners=False)
    sampled = F.grid_sample(x, grid, padding_mode=border, align_corners=False)
    return sampled.round().clamp(0, 255).byte().permute(0, 2, 3, 1)


# ---- random numbers that are functions of (image, position, seed)


def uniforms(index: Tensor, count: int, seed: int) -> Tensor:
    """(n, count) numbers in (0, 1), a function of each image's key, the position and the seed alone, on any device.

    The finaliser of SplitMix64 (Steele, Lea and Flood 2014) over key and position: integer overflow is equal on all
    devices.
    """
    import torch

    position = torch.arange(count, device=index.device, dtype=torch.int64)
    z = _mixed(index.long() + _wrapped(seed))[:, None] + position * _wrapped(0x9E3779B97F4A7C15)
    bits = _mixed(z) >> 40 & 0xFFFFFF  # 24 bits: every one is a float32
    return (bits.float() + 0.5) * 2.0**-24


def bits(index: Tensor, count: int, seed: int) -> Tensor:
    """(n, count) int16, uniform: as `uniforms`, but fast enough for one number per pixel value.

    Tabulation hashing (Zobrist 1970): SplitMix64 of key, seed and block of positions selects one row of each table. The
    exclusive or of these rows is the block.
    """
    import torch

    width = min(count, PLACES)
    block = torch.arange(-(-count // PLACES), device=index.device) * _wrapped(0x9E3779B97F4A7C15)
    keys = _mixed(_mixed(index.long() + _wrapped(seed))[:, None] + block).flatten()
    mixed = torch.zeros(len(keys), width, dtype=torch.int16, device=index.device)
    for number, table in enumerate(_tables(width, index.device)):
        mixed ^= table.index_select(0, keys >> 5 * number & ROWS - 1)
    return mixed.view(len(index), -1)[:, :count]


@lru_cache(maxsize=16)
def _tables(width: int, device: torch.device) -> Tensor:
    """(TABLES, ROWS, width) int16."""
    import torch

    with torch.inference_mode(False):
        numbers = _mixed(torch.arange(TABLES * ROWS * PLACES)).view(TABLES, ROWS, PLACES)
        return (numbers >> 48).short()[..., :width].contiguous().to(device)


def looked_up(table: Tensor, places: Tensor) -> Tensor:
    """table[places], in the shape of `places`, which may be int32."""
    return table.index_select(0, places.reshape(-1)).view(places.shape)


def unsigned(numbers: Tensor) -> Tensor:
    """int16 as int32 from 0 to 65,535."""
    return numbers.int() + (1 << 15)


def normals(index: Tensor, count: int, seed: int) -> Tensor:
    """(n, count) standard normal numbers: 65,536 quantiles."""
    return looked_up(quantiles(index.device), unsigned(bits(index, count, seed)))


@lru_cache(maxsize=4)
def quantiles(device: torch.device) -> Tensor:
    """(65536,) of the standard normal distribution."""
    import torch
    from scipy.special import ndtri

    with torch.inference_mode(False):
        return torch.from_numpy(ndtri((np.arange(1 << 16) + 0.5) / (1 << 16)).astype(np.float32)).to(device)


def _mixed(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * _wrapped(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _wrapped(0x94D049BB133111EB)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Logical shift right."""
    return z >> bits & (1 << 64 - bits) - 1


def _wrapped(number: int) -> int:
    """A 64-bit number as a signed one."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number
