"""Pictures of segmentation: image, labels, and the predicted classes and uncertainty of every line."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from nescio.arrays.types import Array
from nescio.benchmarks.shift import NAME, VERSION
from nescio.datasets.class_colours import class_colours
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
IMAGES, SHIFTS, SIDE = 2, 3, 128  # numbers of images and of shifts, and pixels of a picture's longer side
BAR = (1, 32)  # pixels of a bar in the colour of a class
GREYS = 8  # difference between successive greys of uncertainty: fewer greys make smaller files


def pictures_step(groups: Sequence[NetworkGroup], levels: Mapping[Level, ImageSet], root: str | None) -> Step:
    """Draw a few images, clean and at the last level of a few shifts: image, labels, predictions and uncertainty."""
    last = {shift: (shift, severity) for shift, severity in levels}
    drawn = {last[shift]: replace(levels[last[shift]], limit=IMAGES) for shift in [*last][: 1 + SHIFTS]}
    identified_sets = [images.with_content_name(root) for images in drawn.values()]
    config = {"step": "pictures", "facts": [group.columns for group in groups], "images": identified_sets}
    parents = [network.parent(root) for group in groups for network in group.networks]
    parents += [images.load_revision(root) for images in drawn.values()]
    return make_evaluation(NAME, VERSION, "pictures", config, parents, partial(_draw, groups=groups, levels=drawn))


def _draw(
    step_folder: StepFolder, context: Context, groups: Sequence[NetworkGroup], levels: Mapping[Level, ImageSet]
) -> Files:
    trial = groups[0].trial
    assert trial is not None, "networks that segment are trials"
    runtime = runtime_for(context.device).with_precision(trial.training.precision)
    loaded = {level: images.load(context.root, context.store) for level, images in levels.items()}
    with runtime.threads(trial.training.threads):
        rows = [row for level, images in loaded.items() for row in _inputs(level, images)]
        rows += [row for group in groups for row in _outputs(group, loaded, context, runtime)]
    return {PICTURES: json.dumps(rows).encode()}


def _inputs(level: Level, loaded: LoadedImages) -> Iterator[Row]:
    """The images, and their labels with the colour of every class; void is last."""
    images, change, void = loaded.images, loaded.set.change, loaded.dataset.void
    pixels = torch.from_numpy(np.ascontiguousarray(images.backing.read(images.rows)))
    if change is not None:
        pixels = change.apply(pixels, torch.from_numpy(images.index))
    table, names = class_colours(loaded.classes), dict(enumerate(loaded.classes))
    names |= {} if void is None else {void: "void"}
    bars = {name: _encode(np.full((*BAR, 3), table[label])) for label, name in names.items()}
    yield from _rows(level, "image", pixels.numpy())
    for row in _rows(level, "labels", _subsample(table[images.label_maps()])):
        yield row | {"classes": bars}


def _outputs(
    group: NetworkGroup, levels: Mapping[Level, LoadedImages], context: Context, runtime: Runtime
) -> Iterator[Row]:
    """Predicted classes, and uncertainties in greys with one scale for all levels."""
    built = [build(network, context.store, runtime, context.root) for network in group.networks]
    modules, score, maps = [module for module, _ in built], native_score(group) or "entropy", {}
    for level, loaded in levels.items():
        batches = [*pixel_maps(modules, built[0][1], loaded, context.store, runtime, seed_for("pictures", level))]
        labels, classes = (np.concatenate(arrays) for arrays in list(zip(*batches, strict=True))[:2])
        correct = map(np.extract, labels != loaded.dataset.void, labels == classes)
        shares = [float(pixels.mean()) if len(pixels) else None for pixels in correct]
        maps[level] = classes, np.concatenate([scores[score] for _, _, scores in batches]), shares
    finite = np.concatenate([u[np.isfinite(u)] for _, u, _ in maps.values()])
    low, high = np.percentile(finite, (1, 99)) if len(finite) else (0.0, 1.0)
    table, columns = class_colours(next(iter(levels.values())).classes), group.columns | {"measure": score}
    for level, (classes, u, shares) in maps.items():
        u = np.nan_to_num(u, nan=high, posinf=high, neginf=low)
        grey = (255 / GREYS * ((u - low) / max(high - low, 1e-12)).clip(0, 1)).astype(np.uint8) * GREYS
        for row, share in zip(_rows(level, "prediction", _subsample(table[classes])), shares, strict=True):
            yield columns | row | {"value": share}
        for row in _rows(level, "uncertainty", _subsample(np.stack([grey] * 3, -1))):
            yield columns | row


def _rows(level: Level, shows: str, arrays: Array) -> list[Row]:
    """One row for each array (h, w, 3)."""
    columns = {"shift": level[0], "severity": level[1], "shows": shows}
    return [columns | {"image": number, "png": _encode(array, SIDE)} for number, array in enumerate(arrays, start=1)]


def _encode(array: Array, *side: int) -> str:
    return b64encode(thumbnail(array, *side)).decode()


def _subsample(maps: Array) -> Array:
    """Every nth pixel of maps (n, h, w, 3), since interpolation would mix the colours of classes."""
    step = -(-max(maps.shape[1:3]) // SIDE)
    return maps[:, step // 2 :: step, step // 2 :: step]
