"""How a pretrained network sees an image: size, crop, interpolation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nescio.identity import tag


@tag("view")
@dataclass(frozen=True)
class View:
    """How an image becomes pixels. Models with equal views read one cache.

    center   the shorter side becomes `resize`, the middle `size` × `size` is kept
    squash   both sides become `resize`, the middle is kept
    border   the longer side becomes `resize`, the rest is filled with `fill`, the middle is kept
    trained  as `nescio train` looks at an image: the central square of `crop` of its shorter side
    """

    size: int
    resize: int
    mode: Literal["center", "squash", "border", "trained"] = "center"
    interpolation: str = "bicubic"
    fill: tuple[int, int, int] = (0, 0, 0)
    crop: float = 1.0
    channels: int = 3

    @property
    def bytes(self) -> int:
        """Of one image."""
        return self.size * self.size * self.channels

    def __str__(self) -> str:
        how = "" if self.mode == "trained" else f" of {self.resize}, {self.mode}, {self.interpolation}"
        return f"{self.size} × {self.size}{how}{', grey' if self.channels == 1 else ''}"
