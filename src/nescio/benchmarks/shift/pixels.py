"""What `shift` does with segmentation (Postels et al. 2022, §4.2): every pixel is an answer, and answers are counted.

Train on clean images → count the pixels of clean and changed images → of every level, and of clean images and all
levels of one shift together: mIoU, and how well each score ranks right and wrong pixels → rows; and a few pictures.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from colorsys import hsv_to_rgb
from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import Unpack

import numpy as np
import torch

from nescio import datasets
from nescio.analysis.metric_specs import parse_metric
from nescio.analysis.pixels import PixelCounts
from nescio.arrays.types import Array
from nescio.benchmarks.shift import CORRUPTION, NAME, VERSION, Plan
from nescio.benchmarks.shift.steps import (
    CLEAN,
    EVALUATE,
    RANKING,
    Level,
    Predictor,
    ShiftRows,
    by_own_names,
    columns_of,
    existing,
    methods_behind,
    note_ends,
    plain_trial,
    split_of,
    train,
    with_clean,
)
from nescio.datasets import Batches
from nescio.datasets.corruptions import CORRUPTIONS, SEVERITIES, Corruption
from nescio.datasets.decode import thumbnail
from nescio.datasets.image_set import ImageSet, LoadedImages, Split
from nescio.datasets.scene_changes import shifts
from nescio.datasets.shifts import levels as folder_levels
from nescio.errors import BadInput
from nescio.files import read_list
from nescio.identity import seed_for
from nescio.methods import classifiers
from nescio.methods import registry as methods
from nescio.networks.models import build
from nescio.predict import count_step, load_counts, pixel_maps
from nescio.rows import Columns, Row
from nescio.runtime import Runtime, runtime_for
from nescio.specs import DatasetName
from nescio.training import build as build_method
from nescio.training import check_batch
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step, Work, files_of, make_evaluation

OWN, MEMBERS = "native", "mutual_information"
COUNTED = (OWN, "entropy", MEMBERS)  # scores of pixels, beside those of the methods
PREDICTED = ("miou", "accuracy")  # metrics of the predicted classes, which need no uncertainty
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


def compare(plan: Plan, work: Work) -> Plan:
    """Does what is missing in the store; returns the plan with its methods and data by their own names."""
    root = work.context.root
    plan = by_own_names(plan, root)
    if {*plan.methods} == {*classifiers()}:  # --methods all
        able = tuple(name for name in plan.methods if not methods[name].no_dense_reason)
        work.add_notes(
            f"Not among all methods, because they cannot segment: {', '.join(sorted({*plan.methods} - {*able}))}."
        )
        plan = replace(plan, methods=able)
    own = existing(plan, work) if plan.networks else []
    for member in (member for each in own for member in each.networks):
        if member.trial is None or member.trial.task != "segmentation":
            raise BadInput(f"{member.name} names one class an image: give networks that were trained to segment.")
    refuse(plan, methods_behind(own) if own else plan.trained, root)
    levels = levels_of(plan, root, split_of(plan, own, root))
    for images in levels.values():  # a folder that lacks a label map is named before any training
        images.load_revision(root)
    read = partial(refuse_unreadable, list(levels.values()), root)
    predictors = own or train(plan, dict.fromkeys(plan.trained, 0), work, before=read)
    steps = [evaluation_step(each, levels, plan.measures, root) for each in predictors]
    work.evaluate(EVALUATE, steps, before=read if own else None)
    note_ends(plan, work)
    if first := own or [each for each in predictors if each.facts["data_seed"] == 0]:
        for step in work.run_stage("pictures", [pictures_step(first, levels, root)]):
            work.pictures += read_list(step.verified(work.store) / PICTURES)
    return plan


# ---- the plan, checked before any work


def refuse(plan: Plan, names: Sequence[str], root: str | None) -> None:
    """Refuses, before any work, what cannot be done with pixels by the methods of these names."""
    if plan.ood:
        raise BadInput("Plan.ood has no effect on segmentation: OOD images are detected as wholes. Omit it.")
    if plan.corruption_files:
        raise BadInput(
            "Plan.corruption_files has no effect on segmentation: published files have no label maps. Omit it."
        )
    if plan.strengths > 1:
        raise BadInput("Plan.strengths must be 1 for segmentation: pixel counts have no NLL to choose a strength by.")
    known = [*COUNTED, *(score for name in names for score in methods[name].scores)]
    if strange := [name for name in plan.measures if name not in known]:
        raise BadInput(f"Pixels are not counted by {strange[0]}. They are by: {', '.join(dict.fromkeys(known))}.")
    if not plan.networks:
        dataset = datasets.load(plan.data, root)
        for name in plan.trained:
            build_method(plain_trial(plan, name, 0, 0, plan.task), dataset, rows=1)
        train = datasets.split_dataset(dataset, None, 0).train
        check_batch(plan.training, len(train))
        Batches(
            train, dataset, torch.device("cpu"), plan.training.batch_size, augment=plan.training.augment
        )  # can be made


def refuse_unreadable(sets: Sequence[ImageSet], root: str | None) -> None:
    """Refuses images and label maps that cannot be read: a damaged one is named before hours of training."""
    loaded = [images.load(root) for images in sets]
    dataset = loaded[0].dataset
    parts = [dataset.train, *filter(None, [dataset.val]), *(each.images for each in loaded)]
    for part in {id(part.backing): part for part in parts}.values():
        part.check_files()


def levels_of(plan: Plan, root: str | None, split: Split = "test") -> dict[Level, ImageSet]:
    """The clean test images, and every level of every shift."""
    levels = with_clean(plan, (), split)
    own = continuous(plan, levels[CLEAN], root)
    for name in plan.corruptions or own or CORRUPTIONS:
        if name not in (known := dict.fromkeys([*own, *CORRUPTIONS])):
            raise BadInput(f"{plan.data} has no shift named {name!r}. There are: {', '.join(known)}.")
        if name not in own:
            severities = plan.severities or SEVERITIES
            levels |= with_clean(plan, [Corruption(name, severity) for severity in severities], split)
            continue
        sets = list(own[name].items())
        if beyond := [number for number in plan.severities if not 1 <= number <= len(sets)]:
            raise BadInput(f"Plan.severities has {beyond[0]}, but {plan.data} has {len(sets)} levels of {name}.")
        levels |= dict(sets[number - 1] for number in plan.severities or range(1, len(sets) + 1))
    return levels


def continuous(plan: Plan, clean: ImageSet, root: str | None) -> dict[str, dict[Level, ImageSet]]:
    """The shifts that the data itself has, levels in order: those of the street scenes, or of folders."""
    kind = DatasetName.of(plan.data).kind
    if kind == "scenes":
        return {
            name: {(each.condition, each.level): replace(clean, change=each) for each in changes}
            for name, changes in shifts().items()
        }
    made: dict[str, dict[Level, ImageSet]] = {}
    if kind == "maps":
        for name, level, images in folder_levels(plan.data, root):
            made.setdefault(name, {})[name, level] = replace(
                images, split=clean.split, sample_size=clean.sample_size, sample_seed=clean.sample_seed
            )
    return made


# ---- rows


def evaluation_step(
    predictor: Predictor, levels: Mapping[Level, ImageSet], names: Sequence[str], root: str | None
) -> Step:
    """Counts the pixels of every level, and takes every metric of every level and of those of one shift together."""
    counts = {level: count_step(predictor.networks, images, root=root) for level, images in levels.items()}
    config = {"facts": predictor.facts, "measures": list(names), "levels": list(levels)}
    kinds = {name: CORRUPTION for (name, _), images in levels.items() if isinstance(images.change, Corruption)}
    make = partial(_evaluate, predictor=predictor, steps=counts, names=names, kinds=kinds)
    return make_evaluation(NAME, VERSION, predictor.title, config, list(counts.values()), make)


def _evaluate(
    step_folder: StepFolder,
    context: Context,
    predictor: Predictor,
    steps: Mapping[Level, Step],
    names: Sequence[str],
    kinds: Mapping[str, str],
) -> Files:
    rows = ShiftRows(columns_of((NAME, VERSION), predictor.facts, task="segmentation"))
    levels = {level: load_counts(step, context.store) for level, step in steps.items()}
    for (shift, severity), counts in levels.items():
        columns: Columns = {"shift": shift, "severity": severity, "shift_kind": kinds.get(shift)}
        add_rows(rows, counts, names, own_score(predictor), **columns)
    for shift in dict.fromkeys(name for name, _ in levels if name != CLEAN[0]):
        pooled = reduce(add, [counts for (name, _), counts in levels.items() if name in (CLEAN[0], shift)])
        columns = {"shift": shift, "shift_kind": kinds.get(shift)}
        add_rows(rows, pooled, names, own_score(predictor), **columns)
        if pooled.n:
            rows.add("bound", pooled.bound, pooled.n, **columns)
    rows.network(predictor, context)
    return files_of(rows)


def own_score(predictor: Predictor) -> str | None:
    """The score that is called native: of an average the mutual information, of a network its method's first."""
    first = predictor.networks[0].trial
    scores = [MEMBERS] if len(predictor.networks) > 1 else [*methods[first.method].scores] if first else []
    return scores[0] if scores else None


def add_rows(
    rows: ShiftRows, counts: PixelCounts, names: Sequence[str], own: str | None, **columns: Unpack[Columns]
) -> None:
    """mIoU and accuracy, and AUROC and rAULC of right against wrong pixels by every score."""
    if not counts.n:
        for metric in (*PREDICTED, *RANKING):
            rows.omit("No pixel has a label other than void.", metric=metric, **columns)
        return
    for metric in PREDICTED:
        rows.add(metric, getattr(counts, metric), counts.n, **columns)
    for name in names:
        score = str(own) if name == OWN else name
        if score in counts.infinite:
            rows.omit("Some pixels have scores that are not finite.", measure=name, **columns)
            continue
        if score not in counts.scores:
            rows.omit(f"{rows.facts['method']} has no such score of its pixels.", measure=name)
            continue
        ranked = counts.scores[score].ranking()
        for metric in RANKING:
            where: Columns = {**columns, "measure": name}
            rows.attempt(metric, partial(parse_metric(metric), ranked), counts.n, **where)


# ---- pictures


def pictures_step(predictors: Sequence[Predictor], levels: Mapping[Level, ImageSet], root: str | None) -> Step:
    """Keeps small pictures of a few images, clean and at the last level of a few shifts: image, labels, and of every
    predictor its answers and its uncertainty."""
    last = {condition: (condition, level) for condition, level in levels}  # the last level of each
    shown = {last[name]: replace(levels[last[name]], limit=PICTURED) for name in [*last][: 1 + SHIFTS]}
    images = [images.with_content_name(root) for images in shown.values()]
    config = {"step": "pictures", "facts": [each.facts for each in predictors], "images": images}
    parents = [member.parent(root) for each in predictors for member in each.networks]
    parents += [images.load_revision(root) for images in shown.values()]
    make = partial(_pictures, predictors=predictors, levels=shown)
    return make_evaluation(NAME, VERSION, "pictures", config, parents, make)


def _pictures(
    step_folder: StepFolder, context: Context, predictors: Sequence[Predictor], levels: Mapping[Level, ImageSet]
) -> Files:
    trial = predictors[0].networks[0].trial
    assert trial is not None, "networks that segment are trials"
    here = runtime_for(context.device).with_precision(trial.training.precision)
    loaded = {level: images.load(context.root, context.store) for level, images in levels.items()}
    made: list[Row] = []
    with here.threads(trial.training.threads):
        for level, shown in loaded.items():
            made += _images(level, shown)
        for predictor in predictors:
            made += _answers(predictor, loaded, context, here)
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


def _answers(predictor: Predictor, levels: Mapping[Level, LoadedImages], context: Context, here: Runtime) -> list[Row]:
    """Predicted classes, and uncertainties in greys that mean the same at every level."""
    built = [build(member, context.store, here, context.root) for member in predictor.networks]
    modules, score, maps = [module for module, _ in built], own_score(predictor) or "entropy", {}
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
    facts = predictor.facts | {"measure": score}
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
