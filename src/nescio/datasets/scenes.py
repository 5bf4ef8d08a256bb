"""Rendered street scenes, with a label and an exact depth for every pixel; no files.

A scene is a function of (index, seed, height of the image) alone. `scene_layout` places the objects. Rays through the
pixels find the nearest surface, which is lit by sun (with shadows), sky and, in the dark, lamps. Light is computed
separately from surfaces, so that the sun can be moved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets.decode import IMAGENET_MEAN, IMAGENET_STD, on_threads
from nescio.datasets.images import Dataset, Images, Pixels
from nescio.datasets.readers import DatasetRequest, dataset
from nescio.datasets.scene_layout import (
    BUILDING,
    CLASSES,
    GRASS,
    GROUND,
    MARKING,
    PAVEMENT,
    ROAD,
    SKY,
    VOID,
    Parts,
    Street,
    street,
)
from nescio.errors import BadInput

VERSION = 1  # raised when pixels change
TRAIN, TEST = 400, 100  # scenes; those of index 0 to 399 are for training
LEAST = 32  # rows of the smallest image
FOCAL = 1.2  # focal length, in heights of the image
NEAR, DISTANT = 0.3, 1000.0  # metres: near plane, and distance of the sky
UP, SIDE, FRONT, ROUND = range(4)  # direction of a surface's normal: y, x, z, or its own
FIRST = len(GROUND) + 1  # materials: the four of the ground, the sky, then one for each part
CELL, ACROSS, AHEAD = 0.25, 20.0, 96.0  # shadow map: resolution and extent in metres
TILE = 256  # texels of the noise from which textures are taken


# ---- noise


@lru_cache(maxsize=1)
def noise() -> Array:
    """(TILE, TILE) periodic noise in −1 to 1: octaves from coarse to fine, each 0.8 times the last."""
    total = np.zeros((TILE, TILE), np.float32)
    for octave, size in enumerate((8, 16, 32, 64, 128, 256)):
        bits = np.random.PCG64(octave).random_raw(size * size).reshape(size, size)
        knots = (bits >> np.uint64(40)).astype(np.float32) / 2**23 - 1
        positions = np.arange(TILE) * size / TILE
        low, fraction = positions.astype(int), (positions % 1).astype(np.float32)
        fraction = fraction * fraction * (3 - 2 * fraction)
        rows = knots[low] * (1 - fraction[:, None]) + knots[(low + 1) % size] * fraction[:, None]
        total += (rows[:, low] * (1 - fraction) + rows[:, (low + 1) % size] * fraction) * 0.8**octave
    return np.clip(total / (2.5 * total.std()), -1, 1)


@lru_cache(maxsize=4)
def grain(count: int) -> Array:
    """(count,) standard normal numbers, by Box and Muller's formula: the noise of the camera."""
    bits = np.random.PCG64(99).random_raw(2 * count) >> np.uint64(40)
    radius, angle = (bits.astype(np.float32) + 0.5).reshape(2, count) * 2.0**-24
    return np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)


def texture(u: Array, v: Array, texels: float) -> Array:
    """The noise at positions in metres, with `texels` per metre."""
    row, column = ((axis * np.float32(texels)).astype(np.int32) & (TILE - 1) for axis in (u, v))
    return noise().take(row * TILE + column)


# ---- surfaces


@dataclass(frozen=True, eq=False)
class Scene:
    """A street as seen by the camera: (h, w) arrays, and the light on them."""

    index: int
    street: Street
    labels: Array  # uint8
    depth: Array  # float32, metres along the camera's axis; DISTANT: sky
    material: Array  # int16
    facing: Array  # uint8
    rays: tuple[Array, Array, Array]  # x (w,), y (h, 1), z (w,) for one metre of depth

    @cached_property
    def surface_points(self) -> tuple[Array, Array, Array]:
        """Position of each pixel's surface: x, y, z (h, w) in metres."""
        across, up, ahead = (self.depth * ray for ray in self.rays)
        return across + np.float32(self.street.across), up + np.float32(self.street.height), ahead

    @cached_property
    def _surface(self) -> tuple[Array, Array]:
        """Colour of the surfaces (h · w, 3), and the mask of windows that are lit at night."""
        x, y, z = self.surface_points
        parts = self.street.parts
        u, v = np.where(self.facing == SIDE, z, x), np.where(self.facing == UP, z, y)
        base = np.array([*self.street.ground, (0, 0, 0), *parts.colour], np.float32)
        rough = np.array([0.3, 0.4, 0.25, 0.8, 0, *parts.rough], np.float32)
        spots = texture(u, v, 12) + texture(v, u, 2.5) * 0.7
        spots *= rough.take(self.material) * 40 / (40 + self.depth)
        colour = base.take(self.material.ravel(), 0)
        colour *= np.maximum(1 + spots, 0.1).reshape(-1, 1)
        paved = np.flatnonzero(self.labels == PAVEMENT)
        joints = np.minimum(x.ravel()[paved] % 0.8, z.ravel()[paved] % 0.8) < 0.05
        colour[paved[joints]] *= 0.7
        panes, lit = self._windows(u.ravel(), v.ravel())
        colour[panes] = (0.07, 0.09, 0.12)
        return colour, lit

    def _windows(self, u: Array, v: Array) -> tuple[Array, Array]:
        """Mask of window pixels, and mask of the fifth that is lit at night."""
        walls = np.flatnonzero((self.labels == BUILDING) & (self.facing != UP))
        number = self.material.ravel()[walls] - FIRST
        storey = np.array(self.street.parts.storey, np.float32)[number]
        across, up = u[walls] / (0.8 * storey), v[walls] / storey
        pane = (np.abs(across % 1 - 0.5) < 0.28) & (np.abs(up % 1 - 0.55) < 0.27)
        which = across.astype(np.int32) * 7349 + up.astype(np.int32) * 9151 + number * 12347
        return walls[pane], walls[pane & (which % 5 == 0)]

    def image(self, altitude: float | None = None) -> Array:
        """The photograph, (h, w, 3) uint8, under the scene's own sun or one at another altitude in degrees."""
        altitude = self.street.sun if altitude is None else altitude
        sun, ambient, lamps = daylight(altitude)
        colour, lit = self._surface
        light = ambient * np.array([1, 0.75, 0.75, 0.75], np.float32).take(self.facing)[..., None]
        if sun.any():
            light += self._sunlit(altitude)[..., None] * sun
        if lamps:
            light += lamps * self._lamplight()[..., None] * LAMP
        seen = colour.reshape(light.shape) * light
        above = np.flatnonzero(self.labels == SKY)
        seen.reshape(-1, 3)[above] = self._sky(above, altitude)
        if lamps:
            seen.reshape(-1, 3)[lit] += lamps * WINDOW
        return self._photograph(seen)

    def _sunlit(self, altitude: float) -> Array:
        """(h, w) cosine of the sun's rays and each surface, 0 in the shadow."""
        across, up, ahead = direction = sunwards(altitude, self.street.azimuth)
        cosine = np.array([up, 0, -ahead, 0], np.float32).take(self.facing)
        np.copyto(cosine, -across * np.sign(self.rays[0]), where=self.facing == SIDE)
        curved = np.flatnonzero(self.facing == ROUND)
        number = self.material.ravel()[curved] - FIRST
        low, high = np.array(self.street.parts.low)[number], np.array(self.street.parts.high)[number]
        normal = np.stack([axis.ravel()[curved] for axis in self.surface_points], 1) - (low + high) / 2
        normal /= ((high - low) / 2) ** 2
        cosine.reshape(-1)[curved] = normal @ np.array(direction) / np.linalg.norm(normal, axis=1)
        return np.maximum(cosine, 0) * ~self._shadow(direction)

    def _shadow(self, direction: tuple[float, float, float]) -> Array:
        """(h, w) True where an object is between surface and sun.

        Each ray of the sun is identified by its point on the ground. A map over the ground contains the height at which
        the ray leaves the last object; lower points are in the shadow.
        """
        across, up, ahead = direction
        run_x, run_z = np.float32(across / up), np.float32(ahead / up)  # metres over the ground for one of height
        highest = _shadow_height(self.street.parts, run_x, run_z)
        x, y, z = self.surface_points
        rows, columns = highest.shape
        column = np.clip((x - y * run_x + ACROSS) / CELL, 0, columns - 1).astype(np.int32)
        row = np.clip((z - y * run_z) / CELL, 0, rows - 1).astype(np.int32)
        slack = np.array([0.05, *3 * [0.1 + 1.5 * CELL / np.hypot(run_x, run_z)]], np.float32)
        return y + slack.take(self.facing) < highest.take(row * columns + column)

    def _lamplight(self) -> Array:
        """(h, w) light of the street's lamps, which falls off with the square of the distance."""
        x, y, z = self.surface_points
        total = np.zeros(x.shape, np.float32)
        for at_x, at_y, at_z in self.street.lamps:
            total += 1 / ((x - at_x) ** 2 + (y - at_y) ** 2 + (z - at_z) ** 2 + 1)
        return total

    def _sky(self, pixels: Array, altitude: float) -> Array:
        """(n, 3) a sky that is paler towards the horizon, red there when the sun is low, and clouds."""
        sun, ambient, _ = daylight(altitude)
        row, column = np.divmod(pixels, len(self.rays[0]))
        up = np.clip(self.rays[1][row, 0] * 1.6, 0, 1)
        across = self.rays[0][column] / (0.15 + up) + self.index % 4096  # small enough that float32 keeps the fraction
        clouds = np.clip((texture(across, 1 / (0.15 + up), 24) + self.street.clouds - 0.4) * 3, 0, 1)[..., None]
        pale = ambient * 1.7 + sun * np.float32(0.25 * np.exp(-((altitude / 12) ** 2)))
        blue = ambient * np.array([0.55, 0.95, 1.7], np.float32)
        clear = pale + (blue - pale) * np.sqrt(up)[..., None]
        return clear + (ambient * 2.1 - clear) * clouds

    def _photograph(self, seen: Array) -> Array:
        """Light as recorded by a camera: blurred by a pixel, with noise and a gamma curve."""
        light = np.pad(seen * np.array(self.street.tint, np.float32), ((1, 1), (1, 1), (0, 0)), "edge")
        light = (light[:-2] + 4 * light[1:-1] + light[2:]) / 6
        light = (light[:, :-2] + 4 * light[:, 1:-1] + light[:, 2:]) / 6
        start = self.index * 7919 % light.size
        dots = grain(2 * light.size)[start : start + light.size].reshape(light.shape)
        light += dots * np.sqrt(4e-6 + 2e-4 * light)
        curve = np.sqrt(np.clip(light, 0, 1))
        return np.rint(255 * curve).astype(np.uint8)


def scene(index: int, height: int, seed: int = 0) -> Scene:
    """The scene of an index, rendered with `height` rows and twice as many columns."""
    layout = street(index, seed)
    rays = _rays(layout, height)
    labels, depth, material = _ground(layout, rays)
    facing = np.full(labels.shape, UP, np.uint8)
    _cast(layout, rays, labels, depth, material, facing)
    return Scene(index, layout, labels, depth, material, facing, rays)


def _rays(layout: Street, height: int) -> tuple[Array, Array, Array]:
    """x (w,), y (h, 1) and z (w,) of the rays through the pixels' middles, for one metre of depth."""
    width, focal = 2 * height, FOCAL * height
    right = ((np.arange(width) + 0.5 - width / 2) / focal).astype(np.float32)
    up = ((layout.horizon * height - np.arange(height) - 0.5) / focal).astype(np.float32)
    up[np.abs(up) < 1e-6] = 1e-6
    cos, sin = np.float32(np.cos(layout.yaw)), np.float32(np.sin(layout.yaw))
    across = right * cos + sin
    across[np.abs(across) < 1e-6] = 1e-6
    return across, up[:, None], cos - right * sin


def _ground(layout: Street, rays: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """Labels, depth and material of an empty street: sky above the horizon, and road, pavements and grass below."""
    shape = len(rays[1]), len(rays[0])
    depth = np.full(shape, DISTANT, np.float32)
    labels = np.full(shape, SKY, np.uint8)
    material = np.full(shape, len(GROUND), np.int16)
    below = rays[1][:, 0] < 0
    depth[below] = np.minimum(-layout.height / rays[1][below], DISTANT)
    z = depth[below] * rays[2]
    x = layout.across + depth[below] * rays[0] - layout.bend * z * z
    away = np.abs(x)
    lane = np.abs(x - np.round(x / layout.lane) * layout.lane) < 0.08
    solid = layout.solid & (away < layout.lane / 2)
    lines = lane & (away < layout.half - 0.4) & (solid | (z % 6 < 3))
    lines |= np.abs(away - layout.half + 0.25) < 0.07
    zebra = (np.abs(z - layout.crossing - 1.5) < 1.5) & (x % 1 < 0.5)
    kind = np.where(lines | zebra, MARKING, ROAD)
    kind = np.where(away > layout.half, np.where(away > layout.half + layout.pavement, GRASS, PAVEMENT), kind)
    labels[below] = material[below] = kind
    return labels, depth, material


def _slabs(low: Array, high: Array, start: Any, inverse: Any) -> tuple[Array, Array]:
    """(k, n) the t at which rays start + t / inverse enter and leave the slab between two planes, low and high (k,)."""
    first, second = ((plane[:, None] - start) * inverse for plane in (low, high))
    return np.minimum(first, second), np.maximum(first, second)


def _cast(
    layout: Street, rays: tuple[Array, Array, Array], labels: Array, depth: Array, material: Array, facing: Array
) -> None:
    """Draws every object where it is nearer than the current surface; only rays in its window are traced."""
    parts = layout.parts
    start = np.array([layout.across, layout.height, 0])
    low, high = ((np.array(ends) - start).astype(np.float32) for ends in (parts.low, parts.high))
    middle, radius = (low + high) / 2, (high - low) / 2
    dx, dy, dz = rays
    near_x, far_x = _slabs(low[:, 0], high[:, 0], 0, 1 / dx)
    near_y, far_y = _slabs(low[:, 1], high[:, 1], 0, 1 / dy[:, 0])
    near_z, far_z = _slabs(low[:, 2], high[:, 2], 0, 1 / dz)
    near, far = np.maximum(near_x, near_z), np.minimum(far_x, far_z)
    side = np.where(near_x > near_z, SIDE, FRONT).astype(np.uint8)
    for number, label in enumerate(parts.label):
        columns = _window((far[number] > near[number]) & (far[number] > NEAR))
        first, last = near[number, columns].min(initial=np.inf), far[number, columns].max(initial=0)
        rows = _window((far_y[number] > max(first, NEAR)) & (near_y[number] < last))
        if parts.round[number]:
            ray = dx[columns], dy[rows], dz[columns]
            reach, _, inside = _ellipsoid(ray, middle[number], radius[number])
            hit = inside > parts.ragged[number] * _boundary_noise(ray, middle[number])
            looks: Any = ROUND
        else:
            enter, top = near[number, columns], near_y[number, rows, None]
            reach = np.maximum(enter, top)
            hit = reach < np.minimum(far[number, columns], far_y[number, rows, None])
            looks = np.where(top > enter, UP, side[number, columns])
        hit &= (reach > NEAR) & (reach < depth[rows, columns])
        for image, value in ((depth, reach), (labels, label), (material, FIRST + number), (facing, looks)):
            np.copyto(image[rows, columns], value, where=hit, casting="unsafe")


def _boundary_noise(ray: tuple[Array, Array, Array], middle: Array) -> Array:
    """Non-negative noise that is fixed to the position of an ellipsoid: the minimum distance of a ray inside its
    outline."""
    return np.maximum(texture(ray[0] * middle[2] + 50, ray[1] * middle[2] + 50, 14) + 0.4, 0)


def _window(inside: Array) -> slice:
    """The first and last positions inside; 0 and 0 if there is none."""
    found = inside.nonzero()[0]
    return slice(found[0], found[-1] + 1) if len(found) else slice(0, 0)


def _ellipsoid(ray: Sequence[Any], middle: Sequence[Any], radius: Array) -> tuple[Array, Array, Array]:
    """Distances at which rays enter and leave an ellipsoid, and 1 − (distance of the ray from its centre)² in radii.

    In units of its radii it is a sphere: |ray · t − middle|² = 1. Rays and middle are x, y, z from the rays' start.
    """
    q = [axis / r for axis, r in zip(ray, radius, strict=True)]
    p = [axis / r for axis, r in zip(middle, radius, strict=True)]
    a = sum(axis * axis for axis in q)
    nearest = sum(axis * coordinate for axis, coordinate in zip(q, p, strict=True)) / a
    inside = 1 - sum(coordinate * coordinate for coordinate in p) + nearest * nearest * a
    half = np.sqrt(np.maximum(inside, 0) / a)
    return nearest - half, nearest + half, inside


# ---- light

SUN, SKYLIGHT, LAMP, WINDOW = np.array(
    [[1.2, 1.12, 1.02], [0.4, 0.44, 0.5], [2.4, 1.7, 0.9], [0.5, 0.38, 0.18]], np.float32
)
AIR = np.array([0.07, 0.13, 0.26], np.float32)  # absorption of red, green and blue light from the zenith


def daylight(altitude: float) -> tuple[Array, Array, float]:
    """Colour of the sun's rays and of the light from the sky (3,), and the brightness of lamps, from 0 to 1.

    The path through the air grows as 1/sin(altitude), and absorbs more blue light. The twilight constants are nescio's.
    """
    sine = np.sin(np.radians(max(altitude, 0.0)))
    through = np.exp(-AIR / np.float32(sine + 0.06)) * np.float32(np.clip(altitude / 2, 0, 1))
    sky = np.float32(10 ** np.interp(altitude, (-6, 0, 10, 30, 90), (-1.9, -0.85, -0.35, -0.1, 0)))
    return SUN * through, SKYLIGHT * sky, float(np.clip((4 - altitude) / 6, 0, 1))


def sunwards(altitude: float, azimuth: float) -> tuple[float, float, float]:
    """The direction of the sun: across, up, ahead."""
    angle = np.radians(max(altitude, 0.5))
    return float(np.cos(angle) * np.sin(azimuth)), float(np.sin(angle)), float(np.cos(angle) * np.cos(azimuth))


def _shadow_height(parts: Parts, run_x: float, run_z: float) -> Array:
    """(rows, columns) of the ground: height at which the sun's ray from there leaves the last object; 0: none."""
    x = (np.arange(-ACROSS, ACROSS, CELL) + CELL / 2).astype(np.float32)
    z = (np.arange(0, AHEAD, CELL) + CELL / 2).astype(np.float32)
    highest = np.zeros((len(z), len(x)), np.float32)
    low, high = np.array(parts.low, np.float32), np.array(parts.high, np.float32)
    middle, radius = (low + high) / 2, (high - low) / 2
    run_x, run_z = (run if abs(run) > 1e-6 else 1e-6 for run in (run_x, run_z))
    in_x, out_x = _slabs(low[:, 0], high[:, 0], x, 1 / run_x)
    in_z, out_z = _slabs(low[:, 2], high[:, 2], z, 1 / run_z)
    for number, (bottom, top) in enumerate(zip(low[:, 1], high[:, 1], strict=True)):
        columns = _window((out_x[number] > bottom) & (in_x[number] < top))
        rows = _window((out_z[number] > bottom) & (in_z[number] < top))
        if parts.round[number]:
            away = middle[number, 0] - x[columns], middle[number, 1], middle[number, 2] - z[rows, None]
            _, leave, inside = _ellipsoid((run_x, 1, run_z), away, radius[number])
            hit = inside > 0
        else:
            leave = np.minimum(np.minimum(out_x[number, columns], out_z[number, rows, None]), top)
            hit = leave > np.maximum(np.maximum(in_x[number, columns], in_z[number, rows, None]), bottom)
        window = highest[rows, columns]
        np.maximum(window, leave, out=window, where=hit)
    highest[[0, -1]] = highest[:, [0, -1]] = 0  # outside the map everything is lit by the sun
    return highest


# ---- the dataset


class Rendered:
    """Images and label maps of consecutive scenes, each rendered when it is first read."""

    def __init__(self, first: int, count: int, height: int) -> None:
        self.first, self.height = first, height
        self.images = np.zeros((count, height, 2 * height, 3), np.uint8)
        self.maps = np.zeros((count, height, 2 * height, 1), np.uint8)
        self._rendered = np.zeros(count, bool)

    def make(self, rows: Array) -> None:
        missing = np.unique(rows[~self._rendered[rows]])
        made = on_threads(self._render_row, missing.tolist(), (self.height, 2 * self.height, 4), "rendering scenes")
        self.images[missing], self.maps[missing], self._rendered[missing] = made[..., :3], made[..., 3:], True

    def _render_row(self, row: int) -> Array:
        seen = scene(self.first + row, self.height)
        return np.dstack([seen.image(), seen.labels])


class RenderedPixels(Pixels):
    """One of the two arrays of rendered scenes."""

    moments = IMAGENET_MEAN, IMAGENET_STD  # type: ignore[assignment]

    def __init__(self, scenes: Rendered, array: Array) -> None:
        super().__init__(self._render_all)
        self.scenes, self.buffer = scenes, array

    def _render_all(self) -> Array:
        self.scenes.make(np.arange(len(self.buffer)))
        return self.buffer

    def read(self, rows: Array) -> Array:
        self.scenes.make(rows)
        return self.buffer[rows]

    def source(self, row: int) -> Array:
        return self.read(np.array([row]))[0]


@dataset("scenes", size=256)
def scenes(request: DatasetRequest) -> Dataset:
    """Street scenes of SIZE rows and twice as many columns: 400 for training, 100 for testing, 11 classes and void."""
    height = request.size
    if height < LEAST:
        raise BadInput(f"scenes@{height} is too small for a street: it needs at least {LEAST} rows of pixels.")
    train, test = (_images(first, count, height) for first, count in ((0, TRAIN), (TRAIN, TEST)))
    revision = hashlib.sha256(f"scenes {VERSION} {height} {TRAIN} {TEST}".encode()).hexdigest()[:16]
    return Dataset("scenes", train, test, CLASSES, 3, (height, 2 * height), revision, void=VOID)


def _images(first: int, count: int, height: int) -> Images:
    made, rows = Rendered(first, count, height), np.arange(count)
    backing, maps = RenderedPixels(made, made.images), RenderedPixels(made, made.maps)
    return Images(np.zeros(count, np.int64), first + rows, backing, rows, maps=maps)
