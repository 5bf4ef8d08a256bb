"""Training, validation, test and OOD images of a dataset. A split is a function of the data's revision and a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets.images import Dataset, Images
from nescio.errors import BadInput
from nescio.identity import seed_for

VALIDATION = 0.1  # share of the training set that is held out (UIMNET §2)


@dataclass(frozen=True, eq=False)
class Splits:
    """Images for training, validation, test and OOD detection."""

    train: Images
    val: Images
    test: Images
    out: Images


def stratified(labels: Array, share: float, seed: int) -> tuple[Array, Array]:
    """(rest, share) of the rows, in order. Takes the rounded share of every class: at least one row, and at most all
    but one.

    Every row gets a random number, and the rows with the lowest numbers of each class are taken. The draws are raw bits
    of PCG64: NumPy may change its permutations from one version to the next, but not these.
    """
    _, kind, counts = np.unique(labels, return_inverse=True, return_counts=True)
    quota = np.minimum(np.maximum(np.rint(share * counts), 1), counts - 1)
    order = np.lexsort((np.random.PCG64(seed).random_raw(len(labels)), kind))
    rank = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = rank < quota[kind]
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


@lru_cache(maxsize=8)
def split_dataset(
    dataset: Dataset, classes: tuple[int, ...] | None = None, seed: int = 0, ood_classes: tuple[int, ...] | None = None
) -> Splits:
    """90/10 train and validation of the in-distribution classes, the test set, and the test images of other classes.

    Which training rows are held out depends on the data's revision and the seed alone, so that no choice of classes
    makes a validation row of one study a training row of another.

    classes      in-distribution classes in their new order; None: all
    ood_classes  out-of-distribution classes; None: all others
    """
    every = range(len(dataset.classes))
    inside = classes if classes is not None else tuple(every)
    others = ood_classes if ood_classes is not None else tuple(label for label in every if label not in set(inside))
    dataset.check_classes((*inside, *others))
    if not inside:
        raise BadInput(f"No class of {dataset.name} is in-distribution: name at least one.")
    named = sorted((*inside, *others))
    twice = [label for label, after in pairwise(named) if label == after]
    if twice:
        raise BadInput(f"Class {twice[0]} is named twice: a class is in- or out-of-distribution, once.")
    if dataset.val is not None:
        train, val = dataset.train.select_classes(inside), dataset.val.select_classes(inside)
    else:
        rest, tenth = stratified(dataset.train.labels, VALIDATION, seed_for("split", dataset.revision, seed))
        train, val = (dataset.train.take(rows).select_classes(inside) for rows in (rest, tenth))
    missing = sorted(set(range(len(inside))) - set(val.labels.tolist()))
    if missing and dataset.train.maps is None:  # with label maps, an image may contain any class
        name = dataset.classes[inside[missing[0]]]
        raise BadInput(
            f"Class {name} of {dataset.name} has fewer than two training images: one of them must be held out."
        )
    out = dataset.test.with_labels(others)
    out = replace(out, in_distribution=np.zeros(len(out), bool))
    return Splits(train, val, dataset.test.select_classes(inside), out)
