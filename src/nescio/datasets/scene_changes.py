"""Changes of the street scenes at any strength, which keep all labels: darkness, fog and rain.

The index gives the scene, with the exact depth and label of every pixel; darkness and rain render it again.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets.changes import ZENITH, Change
from nescio.datasets.decode import on_threads
from nescio.datasets.scene_layout import MARKING, PAVEMENT, ROAD, Draws
from nescio.datasets.scenes import FOCAL, Scene, scene
from nescio.errors import BadInput
from nescio.identity import tag

if TYPE_CHECKING:
    from torch import Tensor

AIRLIGHT = np.array([205, 209, 214], np.float32)  # the colour of fog
WET = {ROAD: 1.0, MARKING: 0.8, PAVEMENT: 0.6}  # reflectance of each
DROPS, FADE = 0.12, 0.012  # share of the cells with a drop in the strongest rain; share over which a drop fades in


@tag("scene-change")
@dataclass(frozen=True)
class SceneChange(Change):
    """A change that depends on the geometry of the scene, so it applies to the images of `scenes` only."""

    @abstractmethod
    def changed(self, seen: Scene, image: Array) -> Array:
        """The image (h, w, 3) uint8 of a scene under the change."""

    def apply(self, pixels: Tensor, index: Tensor) -> Tensor:
        import torch

        array, keys = pixels.cpu().numpy(), index.tolist()

        def one(row: int) -> Array:
            clean = array[row]
            if clean.ndim != 3 or clean.shape[1] != 2 * clean.shape[0] or clean.shape[2] != 3:
                raise BadInput(self._changed_scene_message(keys[row]))
            seen = scene(keys[row], len(clean))
            if not np.array_equal(seen.image(), clean):
                raise BadInput(self._changed_scene_message(keys[row]))
            return self.changed(seen, clean)

        changed = on_threads(one, range(len(array)), array.shape[1:], f"rendering {self.condition}")
        return torch.from_numpy(changed).to(pixels.device)

    def _changed_scene_message(self, key: int) -> str:
        return (
            f"Image {key} is not scene {key} as it is rendered: {self.condition} can only be applied to the dataset "
            "`scenes`, at its own size."
        )


@tag("scene-darkness")
@dataclass(frozen=True)
class Darkness(SceneChange):
    """The sun at most at an altitude in degrees: long shadows and red light, then twilight, and night with lamps.

    Unchanged scenes have suns between 40 and 75 degrees, so an altitude of 90 changes nothing.
    """

    altitude: float = ZENITH

    condition = "darkness"

    def check(self) -> None:
        if not -90 <= self.altitude <= ZENITH:
            raise BadInput(f"The sun's altitude lies between −90 and 90 degrees; {self.altitude:g} does not.")

    @property
    def level(self) -> float:
        """Degrees between the zenith and the sun."""
        return ZENITH - self.altitude

    def changed(self, seen: Scene, image: Array) -> Array:
        return seen.image(self.altitude) if self.altitude < seen.street.sun else image


@tag("scene-fog")
@dataclass(frozen=True)
class Fog(SceneChange):
    """Fog by depth: I = J·t + A·(1 − t) with t = exp(−β·depth) (Koschmieder's law), β = `density` per metre."""

    density: float = 0.0

    condition = "fog"

    def check(self) -> None:
        self.require_min(0, "density")

    @property
    def level(self) -> float:
        return self.density

    def changed(self, seen: Scene, image: Array) -> Array:
        return image if self.density == 0 else np.rint(_veiled(image, seen.depth, self.density)).astype(np.uint8)


@tag("scene-rain-2")  # 2: drops fade in
@dataclass(frozen=True)
class Rain(SceneChange):
    """Rain from 0 to 1: a wet, darker ground with reflections, grey light, a veil, and streaks."""

    strength: float = 0.0
    seed: int = 0

    condition = "rain"

    def check(self) -> None:
        if not 0 <= self.strength <= 1:
            raise BadInput(f"The strength of rain lies between 0 and 1; {self.strength:g} does not.")

    @property
    def level(self) -> float:
        return self.strength

    def changed(self, seen: Scene, image: Array) -> Array:
        if self.strength == 0:
            return image
        wet = _wet(image.astype(np.float32), seen, self.strength)
        grey = wet.mean(2, keepdims=True)
        dull = (wet + 0.5 * self.strength * (grey - wet)) * np.float32(1 - 0.35 * self.strength)
        veiled = _veiled(dull, seen.depth, 0.012 * self.strength)
        streaks = _streaks(seen, self.strength, self.seed)[..., None]
        return np.rint(veiled + streaks * (225 - veiled)).astype(np.uint8)


def _veiled(image: Array, depth: Array, density: float) -> Array:
    """I = J·t + A·(1 − t), float32."""
    through = np.exp(-np.float32(density) * depth)[..., None]
    return image * through + AIRLIGHT * (1 - through)


def _wet(image: Array, seen: Scene, strength: float) -> Array:
    """The ground as a dark mirror, stronger at flat viewing angles (Schlick's formula for water).

    At depth z the ground of a camera at height H shows the point at depth D in the row horizon + f·H·(2/D − 1/z):
    the mirrored camera's view. D is that of the row for things infinitely far, mirrored at the horizon.
    """
    height, width = seen.depth.shape
    share = np.zeros(256, np.float32)
    share[list(WET)] = list(WET.values())
    ground = np.flatnonzero(share[seen.labels])
    row, column = np.divmod(ground, width)
    horizon = seen.street.horizon * height - 0.5
    reach = FOCAL * height * seen.street.height
    mirrored = np.clip(2 * horizon - row, 0, height - 1).astype(int)
    behind = np.maximum(seen.depth[mirrored, column], seen.depth.ravel()[ground])
    lines = np.clip(horizon + reach * (2 / behind - 1 / seen.depth.ravel()[ground]), 0, height - 1).astype(int)
    steep = seen.street.height / seen.depth.ravel()[ground]  # approximate sine of the viewing angle
    mirror = strength * share[seen.labels.ravel()[ground]] * (0.1 + 0.75 * np.clip(1 - steep, 0, 1) ** 5)
    flat = image.reshape(-1, 3).copy()
    dark = flat[ground] * np.float32(1 - 0.45 * strength)
    flat[ground] = dark + mirror[:, None] * (image[lines, column] - dark)
    return flat.reshape(image.shape)


def _streaks(seen: Scene, strength: float, seed: int) -> Array:
    """(h, w) share of each pixel covered by falling drops: near ones long and wide, far ones short and thin.

    The image is divided into slanted columns, and these into cells of a streak's length, from another start in each
    column; a drop falls through every cell whose random number is below the strength, fainter near that limit, so
    images change continuously.
    """
    height, width = seen.depth.shape
    draw = Draws("rain", seed, seen.index)
    slope = draw(-0.25, 0.25)
    down, across = np.mgrid[0:height, 0:width].astype(np.float32) / np.float32(height)
    total = np.zeros((height, width), np.float32)
    for long, wide in ((0.16, 0.006), (0.08, 0.003)):
        cells = draw.many(2 + round(1 / long), 4 + round(2.5 / wide))
        column = ((across + slope * down + 0.25) / wide).astype(int)
        numbers = cells[(down / long + cells[0, column]).astype(int), column]
        total += 0.4 * np.clip((DROPS * strength - numbers) / FADE, 0, 1)
    return strength * total


def shifts() -> dict[str, tuple[Change, ...]]:
    """The usual levels of every change of the scenes, weakest first."""
    return {
        "darkness": tuple(Darkness(degrees) for degrees in (40, 30, 20, 15, 10, 6, 3, 1, -1, -3, -5)),
        "fog": tuple(Fog(density) for density in (0.005, 0.01, 0.02, 0.03, 0.045, 0.065, 0.1, 0.15)),
        "rain": tuple(Rain(strength) for strength in (0.25, 0.5, 0.75, 1.0)),
    }
