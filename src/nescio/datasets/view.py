"""The preprocessing of a pretrained network: size, crop and interpolation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from nescio.identity import added_field, tag


@tag("view")
@dataclass(frozen=True)
class View:
    """The preprocessing of an image. Models with equal views share one pixel cache.

    center   the shorter side becomes `resize`, the middle `size` × `size` is kept
    squash   both sides become `resize`, the middle is kept
    border   the longer side becomes `resize`, the rest is filled with `fill`, the middle is kept
    trained  as in `nescio train`: a central crop with the aspect ratio of the training images, of the share `crop`
    """

    size: int
    resize: int
    mode: Literal["center", "squash", "border", "trained"] = "center"
    interpolation: str = "bicubic"
    fill: tuple[int, int, int] = (0, 0, 0)
    crop: float = 1.0
    channels: int = 3
    height: int | None = added_field(None)  # height, if the pixels are not square; `size` is the width

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width)."""
        return self.height or self.size, self.size

    @property
    def bytes(self) -> int:
        """Of one image."""
        return math.prod(self.shape) * self.channels

    def __str__(self) -> str:
        how = "" if self.mode == "trained" else f" of {self.resize}, {self.mode}, {self.interpolation}"
        height, width = self.shape
        return f"{height} × {width}{how}{', grey' if self.channels == 1 else ''}"
