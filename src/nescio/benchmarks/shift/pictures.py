"""Pictures of segmentation: image, labels, and the predicted classes and uncertainty of every line."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from colorsys import hsv_to_rgb
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from nescio.arrays.types import Array
from nescio.benchmarks.shift import NAME, VERSION
from nescio.datasets.decode import thumbnail
from nescio.datasets.image_set import ImageSet, LoadedImages
from nescio.evaluations.segmentation_shift import Level, native_score
from nescio.identity import seed_for
from nescio.networks.groups import NetworkGroup
from nescio.networks.models import build
from nescio.predict import pixel_maps
from nescio.rows import Row
from nescio.runtime import Runtime, runtime_for
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step, make_evaluation

PICTURES = "pictures.json"
# readers know them; classes that touch in most images, such as road and sidewalk, are far apart
CITYSCAPES_COLOURS = {
    "road": (128, 64, 128),
    "sidewalk": (244, 35, 232),
    "pavement": (244, 35, 232),
    "building": (70, 70, 70),
    "wall": (102, 102, 156),
    "fence": (190, 153, 153),
    "pole": (153, 153, 153),
    "traffic light": (250, 170, 30),
    "traffic sign": (220, 220, 0),
    "sign": (220, 220, 0),
    "vegetation": (107, 142, 35),
    "tree": (107, 142, 35),
    "terrain": (152, 251, 152),
    "grass": (152, 251, 152),
    "sky": (70, 130, 180),
    "person": (220, 20, 60),
    "pedestrian": (220, 20, 60),
    "rider": (255, 0, 0),
    "bicyclist": (255, 0, 0),
    "car": (0, 0, 142),
    "truck": (0, 0, 70),
    "bus": (0, 60, 100),
    "train": (0, 80, 100),
    "motorcycle": (0, 0, 230),
    "bicycle": (119, 11, 32),
}
PICTURED, SHIFTS, SIDE = 2, 3, 128  # images, shifts beside clean, and pixels of a picture's longer side
BAR = (1, 32)  # pixels of a bar in the colour of a class
GREYS = 8  # a map of uncertainty has one in so many of 256 greys: smaller files


def pictures_step(groups: Sequence[NetworkGroup], levels: Mapping[Level, ImageSet], root: str | None) -> Step:
    """Keeps small pictures of a few images, clean and at the last level of a few shifts: image, labels, and of every
    group its answers and its uncertainty."""
    last = {condition: (condition, level) for condition, level in levels}  # the last level of each
    shown = {last[name]: replace(levels[last[name]], limit=PICTURED) for name in [*last][: 1 + SHIFTS]}
    images = [images.with_content_name(root) for images in shown.values()]
    config = {"step": "pictures", "facts": [each.columns for each in groups], "images": images}
    parents = [member.parent(root) for each in groups for member in each.networks]
    parents += [images.load_revision(root) for images in shown.values()]
    make = partial(_pictures, groups=groups, levels=shown)
    return make_evaluation(NAME, VERSION, "pictures", config, parents, make)


def _pictures(
    step_folder: StepFolder, context: Context, groups: Sequence[NetworkGroup], levels: Mapping[Level, ImageSet]
) -> Files:
    trial = groups[0].networks[0].trial
    assert trial is not None, "networks that segment are trials"
    here = runtime_for(context.device).with_precision(trial.training.precision)
    loaded = {level: images.load(context.root, context.store) for level, images in levels.items()}
    made: list[Row] = []
    with here.threads(trial.training.threads):
        for level, shown in loaded.items():
            made += _images(level, shown)
        for group in groups:
            made += _answers(group, loaded, context, here)
    return {PICTURES: json.dumps(made).encode()}


def _images(level: Level, shown: LoadedImages) -> list[Row]:
    """The images themselves, and their labels."""
    images, change = shown.images, shown.set.change
    pixels = torch.from_numpy(np.ascontiguousarray(images.backing.read(images.rows)))
    if change is not None:
        pixels = change.apply(pixels, torch.from_numpy(images.index))
    table = colours(shown.classes)
    labels = _pictured(level, "labels", _thinned(table[images.label_maps()]))
    named = {"classes": _bars(table, shown)}
    return [*_pictured(level, "image", pixels.numpy()), *(row | named for row in labels)]


def _bars(table: Array, shown: LoadedImages) -> dict[str, str]:
    """Class → a flat picture of its colour, which a report draws beside its name; void last, where there is one."""
    void = shown.dataset.void
    names = dict(enumerate(shown.classes)) | ({} if void is None else {void: "void"})
    return {name: b64encode(thumbnail(np.full((*BAR, 3), table[label]))).decode() for label, name in names.items()}


def _answers(group: NetworkGroup, levels: Mapping[Level, LoadedImages], context: Context, here: Runtime) -> list[Row]:
    """Predicted classes, and uncertainties in greys that mean the same at every level."""
    built = [build(member, context.store, here, context.root) for member in group.networks]
    modules, score, maps = [module for module, _ in built], native_score(group) or "entropy", {}
    for level, shown in levels.items():
        batches = [*pixel_maps(modules, built[0][1], shown, context.store, here, seed_for("pictures", level))]
        truth, called = (np.concatenate(parts) for parts in list(zip(*batches, strict=True))[:2])
        u = np.concatenate([scores[score] for _, _, scores in batches])
        known = truth != shown.dataset.void
        right = [float(own.mean()) if len(own) else None for own in map(np.extract, known, truth == called)]
        maps[level] = called, u, right
    every = np.concatenate([u[np.isfinite(u)] for _, u, _ in maps.values()])
    low, high = np.percentile(every, (1, 99)) if len(every) else (0.0, 1.0)
    table, made = colours(next(iter(levels.values())).classes), []
    facts = group.columns | {"measure": score}
    for level, (called, u, right) in maps.items():
        u = np.nan_to_num(u, nan=high, posinf=high, neginf=low)
        grey = (255 / GREYS * ((u - low) / max(high - low, 1e-12)).clip(0, 1)).astype(np.uint8) * GREYS
        answers = _pictured(level, "prediction", _thinned(table[called]))
        made += [facts | row | {"value": value} for row, value in zip(answers, right, strict=True)]
        made += [facts | row for row in _pictured(level, "uncertainty", _thinned(np.stack([grey] * 3, -1)))]
    return made


def _pictured(level: Level, shows: str, arrays: Array) -> list[Row]:
    """One row for each array (h, w, 3)."""
    return [
        {"shift": level[0], "severity": level[1], "image": number, "shows": shows}
        | {"png": b64encode(thumbnail(array, SIDE)).decode()}
        for number, array in enumerate(arrays, start=1)
    ]


def _thinned(maps: Array) -> Array:
    """Maps (n, h, w, 3) of which only some pixels are kept: colours of classes must not be mixed."""
    step = -(-max(maps.shape[1:3]) // SIDE)
    return maps[:, step // 2 :: step, step // 2 :: step]


def colours(classes: Sequence[str]) -> Array:
    """(256, 3) a colour for every class, that of Cityscapes where it has the name, and black for what is void."""
    table = np.zeros((256, 3), np.uint8)
    for label, name in enumerate(classes[: len(table) - 1]):
        own = [round(255 * part) for part in hsv_to_rgb(0.618 * label % 1, 0.65, 0.95 - 0.3 * (label % 2))]
        known = CITYSCAPES_COLOURS.get(name, own)
        taken = (table[:label] == known).all(1).any()  # by another word for it, such as tree and vegetation
        table[label] = own if taken else known
    return table
