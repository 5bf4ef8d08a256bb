"""In- and out-of-distribution classes of a dataset: as named, from a file, or by the Ward tree of class means."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nescio import datasets
from nescio.datasets.image_set import ImageSet
from nescio.datasets.partition import RULE, Partition, class_means_of, imagenot, pixel_means
from nescio.errors import BadInput
from nescio.networks.models import network_of_trial
from nescio.predict import load_predictions, predict_step
from nescio.trials import Trial
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step, Work, make_evaluation
from nescio.work.store_errors import StoreError

if TYPE_CHECKING:
    from nescio.benchmarks.uimnet import Plan

# Ten classes are too few for a tree to divide: its smaller side has two or three. The digits are divided by hand.
BY_HAND = {"digits": ((0, 1, 2, 3, 4, 5), (6, 7, 8, 9))}
STAGE, PARTITION = "divide the classes", "partition.json"
Classes = tuple[int, ...]


def divided(
    plan: Plan, reference: Trial, benchmark: tuple[str, int], work: Work, before: Callable[[], None]
) -> tuple[Classes, Classes]:
    """The in- and out-of-distribution classes that a plan means, by the features of a reference network if it must.

    benchmark  name and version, of the step that divides
    before    refuses, before that step, what could not be done
    """
    root, data = work.context.root, plan.data
    if plan.classes is not None:
        return plan.classes, _others(datasets.load(data, root), plan.classes, plan.ood_classes)
    if plan.partition is not None:
        partition = Partition.load(plan.partition)
        partition.check(datasets.load(data, root))
    elif plan.partition_features is None and data in BY_HAND:
        return BY_HAND[data]
    else:
        step = partition_step(benchmark, reference, plan.partition_features or "reference", root)
        if not work.run_stage(STAGE, [step], before):
            if work.is_dry_run:
                return _stand_in(datasets.load(data, root))
            raise StoreError(f"The classes could not be divided: {work.failures[-1].reason}")
        partition = Partition.load(step.verified(work.store) / PARTITION)
    return partition.inside, partition.outside


def _stand_in(dataset: datasets.Dataset) -> tuple[Classes, Classes]:
    """As many classes as a tree is likely to give: on ImageNet a quarter is in-distribution, and as many are not."""
    number = len(dataset.classes)
    half = max(2, number // 4)
    return tuple(range(half)), tuple(range(half, min(2 * half, number)))


def _others(dataset: datasets.Dataset, inside: Classes, outside: Classes | None) -> Classes:
    """The out-of-distribution classes: those that are named, else all that are not in-distribution."""
    datasets.split_dataset(dataset, inside, 0, outside)  # refuses unknown classes
    others = outside or tuple(sorted(set(range(len(dataset.classes))) - set(inside)))
    if not others:
        raise BadInput(
            f"All {len(dataset.classes)} classes of {dataset.name} are in-distribution: no class is left to be outside."
        )
    return others


def partition_step(benchmark: tuple[str, int], reference: Trial, features: str, root: str | None) -> Step:
    """Divides the classes by their mean pixels, or by the features of a reference network of all classes."""
    data = reference.data
    if features == "pixels":
        source: Step | str = datasets.load(data, root).revision
    else:
        images = ImageSet(data, "train", seed=reference.data_seed)
        source = predict_step(network_of_trial(reference, root), images, root=root)
    config = {"step": "partition", "features": features, "rule": RULE}
    make = partial(_partition, data=data, features=features, source=source)
    return make_evaluation(*benchmark, "reference network", config, [source], make)


def _partition(step_folder: StepFolder, context: Context, data: str, features: str, source: Step | str) -> Files:
    dataset = datasets.load(data, context.root)
    dump = None if isinstance(source, str) else load_predictions(source, context.store)
    means = pixel_means(dataset) if dump is None else class_means_of(dump, dataset)
    return {PARTITION: imagenot(dataset, means, features).to_json().encode()}
