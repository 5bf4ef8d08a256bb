"""Colours of classes in pictures of label maps."""

from __future__ import annotations

from collections.abc import Sequence
from colorsys import hsv_to_rgb

import numpy as np

from nescio.arrays.types import Array

# Readers know the colours of Cityscapes; classes that touch in most images, such as road and sidewalk, differ much.
CITYSCAPES_COLOURS = {
    "road": (128, 64, 128), "sidewalk": (244, 35, 232), "pavement": (244, 35, 232), "building": (70, 70, 70),
    "wall": (102, 102, 156), "fence": (190, 153, 153), "pole": (153, 153, 153), "traffic light": (250, 170, 30),
    "traffic sign": (220, 220, 0), "sign": (220, 220, 0), "vegetation": (107, 142, 35), "tree": (107, 142, 35),
    "terrain": (152, 251, 152), "grass": (152, 251, 152), "sky": (70, 130, 180), "person": (220, 20, 60),
    "pedestrian": (220, 20, 60), "rider": (255, 0, 0), "bicyclist": (255, 0, 0), "car": (0, 0, 142),
    "truck": (0, 0, 70), "bus": (0, 60, 100), "train": (0, 80, 100), "motorcycle": (0, 0, 230),
    "bicycle": (119, 11, 32),
}  # fmt: skip


def class_colours(classes: Sequence[str]) -> Array:
    """(256, 3) one colour per class, that of Cityscapes if it has the name, and black for void."""
    table = np.zeros((256, 3), np.uint8)
    for label, name in enumerate(classes[: len(table) - 1]):
        hue = [round(255 * value) for value in hsv_to_rgb(0.618 * label % 1, 0.65, 0.95 - 0.3 * (label % 2))]
        colour = CITYSCAPES_COLOURS.get(name, hue)
        taken = (table[:label] == colour).all(1).any()  # by a synonym, such as tree and vegetation
        table[label] = hue if taken else colour
    return table
