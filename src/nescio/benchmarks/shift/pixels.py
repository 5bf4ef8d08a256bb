"""`shift` for segmentation (Postels et al. 2022, section 4.2): pixels are counted, not stored.

Train on clean images, evaluate every level of every shift, and draw a few pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from nescio import datasets
from nescio.benchmarks import lineup
from nescio.benchmarks.shift import NAME, VERSION, Plan
from nescio.benchmarks.shift.pictures import PICTURES, pictures_step
from nescio.benchmarks.shift.steps import add_notes, groups_of, methods_of, plain_trial, subjects_of
from nescio.datasets import Batches
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.evaluations.base import NATIVE
from nescio.evaluations.segmentation_shift import MUTUAL_INFORMATION, SegmentationShift
from nescio.files import read_list
from nescio.methods import classifiers
from nescio.methods import registry as methods
from nescio.training import build, check_batch
from nescio.work.steps import Work

COUNTED = (NATIVE, "entropy", MUTUAL_INFORMATION)  # scores of pixels, beside those of the methods


def compare(plan: Plan, work: Work) -> Plan:
    """Run the steps that are missing in the store; return the plan with registered names of methods and data."""
    root = work.context.root
    plan = lineup.with_registered_names(plan, root)
    if {*plan.methods} == {*classifiers()}:  # --methods all
        segmenting = tuple(name for name in plan.methods if not methods[name].no_dense_reason)
        skipped_methods = sorted({*plan.methods} - {*segmenting})
        work.add_notes(f"Not among all methods, because they cannot segment: {', '.join(skipped_methods)}.")
        plan = replace(plan, methods=segmenting)
    existing_networks = lineup.existing(plan.networks, plan.data, plan.preprocessing, work) if plan.networks else []
    for network in (network for group in existing_networks for network in group.networks):
        if network.trial is None or network.trial.task != "segmentation":
            raise BadInput(f"{network.name} predicts one class per image: use networks trained to segment.")
    refuse(plan, methods_of(existing_networks) if existing_networks else plan.trained, root)
    evaluation = SegmentationShift(plan.corruptions, plan.severities, plan.measures)
    groups = existing_networks or groups_of(plan, dict.fromkeys(plan.trained, 0), root)
    levels = evaluation.levels(subjects_of(plan, groups, root)[0].test_images, root)
    for images in levels.values():  # folders without a label map are refused before any training
        images.load_revision(root)
    check_images = partial(refuse_unreadable, list(levels.values()), root)
    groups = existing_networks or lineup.train(groups, work, before=check_images)
    subjects = subjects_of(plan, groups, root)
    lineup.evaluate((NAME, VERSION), subjects, [evaluation], work, before=check_images if existing_networks else None)
    add_notes(plan, work)
    if picture_groups := existing_networks or [group for group in groups if group.columns["data_seed"] == 0]:
        for step in work.run_stage("pictures", [pictures_step(picture_groups, levels, root)]):
            work.pictures += read_list(step.verified(work.store) / PICTURES)
    return plan


def refuse(plan: Plan, names: Sequence[str], root: str | None) -> None:
    """Refuse, before any work, options that have no meaning for segmentation."""
    if plan.ood:
        raise BadInput("Plan.ood has no effect on segmentation: OOD detection scores whole images. Omit it.")
    if plan.corruption_files:
        raise BadInput(
            "Plan.corruption_files has no effect on segmentation: published files have no label maps. Omit it."
        )
    if plan.strengths > 1:
        raise BadInput("Plan.strengths must be 1 for segmentation: pixel counts have no NLL to choose a strength by.")
    counted = dict.fromkeys([*COUNTED, *(score for name in names for score in methods[name].scores)])
    if unknown := [name for name in plan.measures if name not in counted]:
        raise BadInput(f"Pixels are not counted by {unknown[0]}. They are by: {', '.join(counted)}.")
    if not plan.networks:
        dataset = datasets.load(plan.data, root)
        for name in plan.trained:
            build(plain_trial(plan, name), dataset, rows=1)
        train, training = datasets.split_dataset(dataset, None, 0).train, plan.training
        check_batch(training, len(train))
        Batches(train, dataset, torch.device("cpu"), training.batch_size, augment=training.augment)  # or BadInput


def refuse_unreadable(sets: Sequence[ImageSet], root: str | None) -> None:
    """Refuse unreadable images and label maps, before hours of training."""
    loaded_sets = [images.load(root) for images in sets]
    dataset = loaded_sets[0].dataset
    splits = [dataset.train, *filter(None, [dataset.val]), *(loaded.images for loaded in loaded_sets)]
    for images in {id(images.backing): images for images in splits}.values():
        images.check_files()
