"""The layout of a street scene: a road with pavements, and boxes and ellipsoids in metres beside and on it.

Coordinates follow the road: x to the right, y up, z ahead; the camera is at z = 0. The road bends: its middle lies at
x = bend · z², and everything along it is moved with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from nescio.arrays.types import Array
from nescio.identity import seed_for

T = TypeVar("T")
Colour = tuple[float, ...]
Range = tuple[float, float]

CLASSES = (
    "road",
    "marking",
    "pavement",
    "grass",
    "building",
    "vegetation",
    "pole",
    "sign",
    "person",
    "car",
    "sky",
)
ROAD, MARKING, PAVEMENT, GRASS, BUILDING, VEGETATION, POLE, SIGN, PERSON, CAR, SKY = range(len(CLASSES))
VOID = 255  # the bonnet of the camera's car, and bins: objects without a class
GROUND = (ROAD, MARKING, PAVEMENT, GRASS)  # the first materials, in the order of their labels
FAR = 140.0  # metres; maximum distance of objects


class Draws:
    """Random numbers of one scene, from raw bits of PCG64: NumPy may change its distributions, but not these."""

    def __init__(self, *key: Any) -> None:
        self._bits = np.random.PCG64(seed_for("scene", *key))

    def __call__(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * (self._bits.random_raw() >> 11) * 2.0**-53

    def many(self, *shape: int) -> Array:
        """Numbers from 0 to 1, float32."""
        return ((self._bits.random_raw(int(np.prod(shape))) >> 40) * 2.0**-24).astype(np.float32).reshape(shape)

    def chance(self, share: float) -> bool:
        return self() < share

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self() * len(options))]

    def grey(self, low: float, high: float, tint: float = 0.0) -> Colour:
        """A random grey between two limits, with each channel changed by up to the share `tint`."""
        value = self(low, high)
        return tuple(value * (1 + self(-tint, tint)) for _ in range(3))


@dataclass
class Parts:
    """Boxes, and ellipsoids that fill a box; a list for each column."""

    low: list[tuple[float, float, float]] = field(default_factory=list)  # metres
    high: list[tuple[float, float, float]] = field(default_factory=list)
    label: list[int] = field(default_factory=list)
    colour: list[Colour] = field(default_factory=list)  # reflected share of the light, by channel
    rough: list[float] = field(default_factory=list)  # contrast of the texture
    round: list[bool] = field(default_factory=list)  # an ellipsoid
    ragged: list[float] = field(default_factory=list)  # how far holes reach from its outline inwards
    storey: list[float] = field(default_factory=list)  # metres from window to window; 0: none

    def add(
        self,
        label: int,
        colour: Colour,
        x: Range,
        y: Range,
        z: Range,
        *,
        rough: float = 0.1,
        round: bool = False,
        ragged: float = 0.0,
        storey: float = 0.0,
    ) -> None:
        low, high = zip(x, y, z, strict=True)
        values = (low, high, label, colour, rough, round, ragged, storey)
        for column, value in zip(vars(self).values(), values, strict=True):
            column.append(value)


@dataclass(frozen=True)
class Street:
    """One scene without its light: camera, road, objects, and the position of its sun."""

    height: float  # height of the camera, metres
    across: float  # lateral position of the camera on the road
    yaw: float  # radians that it looks to the right of the road
    horizon: float  # share of the image above it
    bend: float  # curvature of the road, 1/metres
    half: float  # width from the middle of the road to the kerb
    lane: float  # width
    solid: bool  # whether the middle line is solid
    pavement: float  # width
    crossing: float  # distance of a zebra crossing
    sun: float  # altitude, degrees
    azimuth: float  # radians from the direction of the road
    clouds: float  # share of the sky
    tint: Colour  # exposure and white balance
    ground: tuple[Colour, ...]  # colours of road, marking, pavement and grass
    lamps: tuple[tuple[float, float, float], ...]  # places of the lights
    parts: Parts


def street(index: int, seed: int = 0) -> Street:
    """The scene of an index: the same for every size of the image."""
    draw, parts = Draws(seed, index), Parts()
    lane, lanes, pavement = draw(2.9, 3.5), draw.pick((1, 1, 2)), draw(2.0, 4.0)
    parking = draw.chance(0.6)
    half, bend = lane * lanes + (2.3 if parking else 0.4), draw(-1, 1) ** 3 * 2e-3
    crossing = draw(8, 30) if draw.chance(0.5) else FAR
    along = _Along(draw, parts, half, pavement, bend)
    across = lane * (lanes - 0.5) + draw(-0.4, 0.4)
    _bonnet(draw, parts, across)
    for side in (-1, 1):
        along.buildings(side)
        along.greens(side)
        along.signs(side)
        along.people(side)
        if parking:
            along.parked(side)
    lamps = along.lamps(draw.pick((-1, 1)))
    along.traffic(lane, lanes)
    along.crossing_people(crossing)
    return Street(
        height=draw(1.35, 1.7),
        across=across,
        yaw=draw(-0.1, 0.1),
        horizon=draw(0.4, 0.5),
        bend=bend,
        half=half,
        lane=lane,
        solid=draw.chance(0.3),
        pavement=pavement,
        crossing=crossing,
        sun=draw(40, 75),
        azimuth=draw(-np.pi, np.pi),
        clouds=draw(0.0, 0.7),
        tint=draw.grey(0.75, 1.15, 0.05),
        ground=(
            draw.grey(0.08, 0.22, 0.03),
            draw.grey(0.5, 0.8, 0.05),
            draw.grey(0.2, 0.45, 0.1),
            (draw(0.08, 0.16), draw(0.17, 0.28), draw(0.04, 0.08)),
        ),
        lamps=tuple(lamps),
        parts=parts,
    )


def _bonnet(draw: Draws, parts: Parts, across: float) -> None:
    top = draw(0.92, 1.02)
    parts.add(VOID, draw.grey(0.03, 0.3), (across - 0.9, across + 0.9), (0.3, top), (0.5, 1.9), rough=0, round=True)


@dataclass(frozen=True)
class _Along:
    """Places objects along the road; `side` is −1 on the left and 1 on the right."""

    draw: Draws
    parts: Parts
    half: float
    pavement: float
    bend: float

    def x(self, side: int, away: float, z: float) -> float:
        """The position `away` metres from the kerb."""
        return side * (self.half + away) + self.bend * z * z

    def put(
        self, label: int, colour: Colour, x: float, y: Range, z: float, wide: float, deep: float, **how: Any
    ) -> None:
        """A box or ellipsoid of `wide` × `deep` metres centred at (x, z)."""
        self.parts.add(label, colour, (x - wide / 2, x + wide / 2), y, (z - deep / 2, z + deep / 2), **how)

    def buildings(self, side: int) -> None:
        draw, z, yard = self.draw, self.draw(-8, 4), self.draw(0, 5) * self.draw.chance(0.6)
        while z < FAR:
            length, deep, storey = draw(7, 20), draw(8, 14), draw(2.6, 3.6)
            if draw.chance(0.82):
                walls = draw.pick(((0.45, 0.2, 0.14), (0.5, 0.42, 0.28), (0.4, 0.4, 0.42), (0.55, 0.5, 0.45)))
                shade = draw(0.5, 1.2)
                colour = tuple(shade * channel * draw(0.85, 1.15) for channel in walls)
                x, tall = self.x(side, self.pavement + yard, z + length / 2), storey * int(draw(2, 6)) + 0.6
                span = (min(x, x + side * deep), max(x, x + side * deep))
                self.parts.add(BUILDING, colour, span, (0, tall), (z, z + length), rough=0.25, storey=storey)
            z += length + draw(0, 6) * draw.chance(0.3)

    def greens(self, side: int) -> None:
        draw, z = self.draw, self.draw(4, 14)
        share, away = draw(0.1, 0.9), draw.pick((0.7, self.pavement + 1.5))
        while z < 0.7 * FAR:
            leaves = (draw(0.05, 0.14), draw(0.12, 0.24), draw(0.03, 0.07))
            if draw.chance(share):
                self.tree(self.x(side, away + draw(-0.2, 0.4), z), z, leaves)
            elif draw.chance(0.25):
                x, tall = self.x(side, self.pavement + 0.6, z), draw(0.8, 1.8)
                self.put(VEGETATION, leaves, x, (0, tall), z, 0.9, draw(3, 7), rough=0.7)
            z += draw(6, 13)

    def tree(self, x: float, z: float, leaves: Colour) -> None:
        draw = self.draw
        trunk, tall = draw(1.8, 3.2), draw(2.5, 5.0)
        self.put(VEGETATION, draw.grey(0.08, 0.16, 0.2), x, (0, trunk + 1), z, 0.28, 0.28, rough=0.4)
        for _ in range(3):
            wide, low = draw(1.8, 3.6), trunk + draw(-0.3, 0.4 * tall)
            position, top = x + draw(-0.8, 0.8), low + draw(0.5, 0.9) * tall
            self.put(
                VEGETATION,
                leaves,
                position,
                (low, top),
                z + draw(-0.6, 0.6),
                wide,
                wide,
                rough=0.9,
                round=True,
                ragged=1,
            )

    def lamps(self, side: int) -> list[tuple[float, float, float]]:
        draw, tall, colour = self.draw, self.draw(5.5, 8), self.draw.grey(0.1, 0.4)
        places, z = [], draw(5, 18)
        while z < 0.8 * FAR:
            x = self.x(side, 0.4, z)
            arm = sorted((x, x - side * 1.8))
            self.put(POLE, colour, x, (0, tall), z, 0.2, 0.2)
            self.parts.add(POLE, colour, (arm[0], arm[1]), (tall - 0.12, tall), (z - 0.06, z + 0.06))
            places.append((x - side * 1.7, tall - 0.2, z))
            z += draw(16, 26)
        return places

    def signs(self, side: int) -> None:
        draw = self.draw
        for _ in range(int(draw(0, 4))):
            z, low, wide = draw(6, 40), draw(1.9, 2.6), draw(0.6, 1.0)
            x = self.x(side, 0.5, z)
            face = draw.pick(((0.6, 0.04, 0.04), (0.04, 0.12, 0.55), (0.75, 0.6, 0.05), (0.65, 0.65, 0.65)))
            self.put(POLE, draw.grey(0.25, 0.4), x, (0, low + wide), z, 0.09, 0.09)
            plate = {"rough": 0.05, "round": draw.chance(0.6)}
            self.put(SIGN, face, x, (low, low + wide), z - 0.12, wide, 0.08, **plate)
            if draw.chance(0.3):  # a traffic light or an additional plate
                self.put(SIGN, draw.grey(0.02, 0.7), x, (low - 0.5, low - 0.04), z - 0.12, 0.5 * wide, 0.08)

    def people(self, side: int) -> None:
        for _ in range(int(self.draw(0, 7))):
            z = self.draw(4.5, 35)
            self.person(self.x(side, self.draw(0.5, self.pavement - 0.4), z), z)
        if self.draw.chance(0.3):  # a bin
            z = self.draw(6, 25)
            self.put(VOID, self.draw.grey(0.03, 0.3, 0.5), self.x(side, 0.5, z), (0, self.draw(0.8, 1.2)), z, 0.6, 0.6)

    def crossing_people(self, crossing: float) -> None:
        for _ in range(int(self.draw(0, 3)) if crossing < FAR else 0):
            z = crossing + self.draw(0.5, 2.5)
            self.person(self.draw(-self.half, self.half) + self.bend * z * z, z)

    def person(self, x: float, z: float) -> None:
        draw, tall = self.draw, self.draw(1.45, 1.9)
        shirt, legs = (tuple(draw(0.03, 0.5) for _ in range(3)) for _ in range(2))
        stride, skin = draw(0.05, 0.22), draw(0.12, 0.45)
        self.put(PERSON, (skin, 0.75 * skin, 0.6 * skin), x, (0.86 * tall, tall), z, 0.2, 0.22, rough=0.05, round=True)
        self.put(PERSON, shirt, x, (0.42 * tall, 0.88 * tall), z, 0.5, 0.34, rough=0.2, round=True)
        for foot in (-stride, stride):
            self.put(PERSON, legs, x + foot, (0, 0.52 * tall), z, 0.15, 0.18, rough=0.2)

    def parked(self, side: int) -> None:
        draw, z = self.draw, self.draw(6, 14)
        share = draw(0, 0.9)
        while z < 70:
            if draw.chance(share):
                self.car(self.x(side, -1.0, z), z, ahead=side > 0)
            z += draw(6, 8)

    def traffic(self, lane: float, lanes: int) -> None:
        draw = self.draw
        for number in range(-lanes, lanes):
            z = draw(9, 40) if number >= 0 else draw(6, 30)
            while z < 90:
                self.car((number + 0.5) * lane + draw(-0.3, 0.3) + self.bend * z * z, z, ahead=number >= 0)
                z += draw(12, 70)

    def car(self, x: float, z: float, ahead: bool) -> None:
        """A car driving ahead shows red lights, an oncoming one white lights."""
        draw = self.draw
        paint = draw.pick((draw.grey(0.02, 0.08), draw.grey(0.4, 0.7), tuple(draw(0.02, 0.5) for _ in range(3))))
        glass = draw.grey(0.03, 0.1, 0.2)
        van = draw.chance(0.2)
        wide, long, tall = (2.1, draw(5, 8), draw(2.1, 3.2)) if van else (1.8, draw(3.8, 4.7), draw(1.4, 1.6))
        waist, cabin = (0.62 * tall, long) if van else (0.9, 0.55 * long)
        self.put(CAR, paint, x, (0.28, waist), z, wide, long, rough=0.06)
        self.put(CAR, paint if van else glass, x, (waist, tall - 0.06), z, 0.88 * wide, cabin, rough=0.06)
        self.put(CAR, paint, x, (tall - 0.06, tall), z, 0.88 * wide, 0.9 * cabin, rough=0.06)
        for axle in (-0.33, 0.33):
            self.put(CAR, (0.02, 0.02, 0.02), x, (0, 0.62), z + axle * long, wide - 0.02, 0.6, rough=0.05)
        light, end = (0.5, 0.02, 0.02) if ahead else (0.8, 0.8, 0.75), z - long / 2 - 0.02
        for lamp in (-0.38, 0.38):
            self.put(CAR, light, x + lamp * wide, (waist - 0.25, waist - 0.08), end, 0.28, 0.04, rough=0)
