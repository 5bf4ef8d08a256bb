"""In- and out-of-distribution classes of a dataset: as named, from a file, or by the Ward tree of class means."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nescio import datasets
from nescio.datasets.images import ImageSet
from nescio.datasets.partition import RULE, Partition, dump_means, imagenot, pixel_means
from nescio.errors import BadInput
from nescio.networks.models import trained
from nescio.predict import load_dump, predict_step
from nescio.trials import Trial
from nescio.work.steps import Context, Files, Step, Work, evaluation
from nescio.work.store import Part, StoreError

# Ten classes are too few for a tree to divide: its smaller side has two or three. The digits are divided by hand.
BY_HAND = {"digits": ((0, 1, 2, 3, 4, 5), (6, 7, 8, 9))}
STAGE, PARTITION = "divide the classes", "partition.json"
Classes = tuple[int, ...]


def divided(
    reference: Trial,
    inside: Classes | None,
    outside: Classes | None,
    *,
    file: str | None,
    features: str | None,
    protocol: tuple[str, int],
    work: Work,
    before: Callable[[], None],
) -> tuple[Classes, Classes]:
    """The in- and out-of-distribution classes of the data of a reference network.

    file      both, as `nescio imagenot` wrote them
    features  of the Ward tree, reference or pixels; None: those of the reference network, unless divided by hand
    protocol  name and version, of the step that divides
    before    refuses, before that step, what could not be done
    """
    root, data = work.context.root, reference.data
    if inside is not None:
        return inside, _others(datasets.load(data, root), inside, outside)
    if file is not None:
        partition = Partition.load(file)
        partition.check(datasets.load(data, root))
    elif features is None and data in BY_HAND:
        return BY_HAND[data]
    else:
        step = partition_step(protocol, reference, features or "reference", root)
        if not work.do(STAGE, [step], before):
            raise StoreError(f"The classes could not be divided: {work.failures[-1].reason}")
        partition = Partition.load(step.verified(work.store) / PARTITION)
    return partition.inside, partition.outside


def _others(dataset: datasets.Dataset, inside: Classes, outside: Classes | None) -> Classes:
    """The out-of-distribution classes: those that are named, else all that are not in-distribution."""
    datasets.splits(dataset, inside, 0, outside)  # refuses classes that there are not
    others = outside or tuple(sorted(set(range(len(dataset.classes))) - set(inside)))
    if not others:
        raise BadInput(
            f"All {len(dataset.classes)} classes of {dataset.name} are in-distribution: no class is left to be outside."
        )
    return others


def partition_step(protocol: tuple[str, int], reference: Trial, features: str, root: str | None) -> Step:
    """Divides the classes by their mean pixels, or by the features of a reference network of all classes."""
    data = reference.data
    if features == "pixels":
        source: Step | str = datasets.load(data, root).revision
    else:
        images = ImageSet(data, "train", seed=reference.data_seed)
        source = predict_step(trained(reference, root), images, root=root)
    recipe = {"step": "partition", "features": features, "rule": RULE}
    make = partial(_partition, data=data, features=features, source=source)
    return evaluation(*protocol, "reference network", recipe, [source], make)


def _partition(part: Part, context: Context, data: str, features: str, source: Step | str) -> Files:
    dataset = datasets.load(data, context.root)
    dump = None if isinstance(source, str) else load_dump(source, context.store)
    means = pixel_means(dataset) if dump is None else dump_means(dump, dataset)
    return {PARTITION: imagenot(dataset, means, features).to_json().encode()}
