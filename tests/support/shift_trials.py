"""Trials of shift and sensitivity, one tuple for each group of networks; levels of segmentation."""

from nescio.benchmarks.sensitivity.steps import groups_of as sensitivity_groups
from nescio.benchmarks.shift.steps import groups_of as shift_groups
from nescio.datasets.image_set import ImageSet
from nescio.evaluations.segmentation_shift import SegmentationShift


def shift_trials(plan, numbers):
    return [tuple(group.trials) for group in shift_groups(plan, numbers, None)]


def sensitivity_trials(plan):
    return [tuple(group.trials) for group in sensitivity_groups(plan, None)]


def levels_of(plan):
    clean = ImageSet(plan.data, sample_size=plan.limit, sample_seed=plan.seed)
    return SegmentationShift(plan.corruptions, plan.severities).levels(clean, None)
