"""ImageNot: a split of the classes of a dataset into in- and out-of-distribution, by visual similarity.

Features of a reference model → mean of every class → Ward tree → two equally large sets of classes (UIMNET §2). The
paper takes the 266 classes to the left of the root of ImageNet's tree, and the first 266 to the right. Left and right
of a tree are arbitrary, so the rule here, for any matrix of class means, is:

    in-distribution      the smaller child of the root; of two equally large ones that with the smallest class number
    out-of-distribution  the first equally many leaves of the other child, in dendrogram order

Dendrogram order is that of `scipy.cluster.hierarchy.leaves_list`: at every node the child that was merged at the lower
height comes first, a single class before a merged one, and of two single classes that with the smaller number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.files import read_json, write_file
from nescio.predictions import Predictions
from nescio.progress import track

if TYPE_CHECKING:
    from nescio.datasets import Dataset

RULE = 1  # version of the rule above; increased by every change that moves a class
KIND = "nescio.partition"  # type field of a saved partition
BLOCK_VALUES = 1 << 24  # features are summed in blocks of about this many numbers


# ---- the rule


@dataclass(frozen=True)
class Partition:
    """In- and out-of-distribution classes, with the tree that they come from.

    inside   class numbers, ascending
    outside  as many others, ascending
    linkage  (C − 1, 4): the tree as SciPy writes it: two children, height, number of classes
    order    class numbers in dendrogram order
    """

    inside: tuple[int, ...]
    outside: tuple[int, ...]
    linkage: Array = field(compare=False, repr=False)
    order: tuple[int, ...] = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)
    dataset: str = ""
    revision: str = ""
    features: str = ""

    def save(self, path: str | Path) -> Path:
        """Write the partition as JSON, with its dataset and features."""
        return write_file(path, self.to_json() + "\n")

    def to_json(self) -> str:
        names = ("dataset", "revision", "features", "inside", "outside", "classes", "order")
        values = {"kind": KIND, "rule": RULE, **{name: getattr(self, name) for name in names}}
        values["linkage"] = self.linkage.tolist()
        lines = (f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
        return "{\n" + ",\n".join(lines) + "\n}"

    @staticmethod
    def load(path: str | Path) -> Partition:
        """Read a file of `save`, and check that its sides follow from its tree by the rule."""
        try:
            content = read_json(path)
        except FileNotFoundError:
            raise BadInput(f"There is no partition {path}: make one with `nescio imagenot`.") from None
        except ValueError:
            raise BadInput(f"{path} is not JSON: a partition is a file that `nescio imagenot` wrote.") from None
        if content.get("kind") != KIND:
            raise BadInput(f"{path} is not a partition: it is not a file that `nescio imagenot` wrote.")
        if content.get("rule") != RULE:
            raise BadInput(f"{path} was made by rule {content.get('rule')}; this version of nescio uses rule {RULE}.")
        names = [entry.name for entry in fields(Partition)]
        if missing := [name for name in names if name not in content]:
            raise BadInput(f"{path} has no {missing[0]}: make it again with `nescio imagenot`.")
        values = {name: tuple(value) if isinstance(value := content[name], list) else value for name in names}
        try:
            values["linkage"] = np.asarray(content["linkage"], np.float64)
            loaded = Partition(**values)
            _check_tree(loaded.linkage)
            sides = _sides(loaded.linkage)
        except (ValueError, TypeError, IndexError):
            raise BadInput(f"The tree in {path} is damaged: make it again with `nescio imagenot`.") from None
        if (loaded.order, loaded.inside, loaded.outside) != sides:
            raise BadInput(f"The classes in {path} do not follow from its tree by the rule: make it again.")
        if len(loaded.classes) != len(loaded.order):
            raise BadInput(f"{path} names {len(loaded.classes)} classes and its tree has {len(loaded.order)}.")
        return loaded

    def check(self, dataset: Dataset) -> None:
        """Raise BadInput if the partition is of other data."""
        if (self.revision, self.classes) != (dataset.revision, dataset.classes):
            raise BadInput(
                f"The partition is of {self.dataset or 'unnamed data'}, revision {self.revision or 'unknown'}, "
                f"and the data is {dataset.name}, revision {dataset.revision}: make it again with `nescio imagenot`."
            )


def partition(means: ArrayLike, classes: Sequence[str] | None = None) -> Partition:
    """In- and out-of-distribution classes of class means (C, d), by the rule of this module (UIMNET §2).

    Ward's tree repeatedly merges the two sets of classes whose union adds least to the sum of squares within sets:
    ‖m_A − m_B‖² · |A||B| / (|A| + |B|), every class counting as one. The partition is invariant to rotating,
    translating and scaling the features. Class numbers break three kinds of ties: equally large children of the root,
    equally good merges, and a cut between two single sisters, of which the smaller number is out-of-distribution.

    classes  names of the classes; their numbers unless given
    """
    from scipy.cluster.hierarchy import linkage

    means = np.asarray(means)
    if means.ndim != 2 or means.dtype.kind not in "fiub" or not means.shape[1]:
        raise BadInput(f"means has shape {means.shape}: it must be numbers, (classes, features).")
    if len(means) < 2:
        raise BadInput(f"A partition needs at least two classes, and means has {len(means)}.")
    means = means.astype(np.float64)
    if (bad := ~np.isfinite(means).all(1)).any():
        raise BadInput(f"The mean of class {int(np.argmax(bad))} is not finite: correct its features.")
    names = tuple(map(str, range(len(means)))) if classes is None else tuple(map(str, classes))
    if len(names) != len(means):
        raise BadInput(
            f"There are {len(names)} names and {len(means)} class means: they must describe the same classes."
        )
    tree = linkage(means, "ward")
    order, inside, outside = _sides(tree)
    return Partition(inside, outside, tree, order, names)


def _sides(tree: Array) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(order, inside, outside) of a tree."""
    from scipy.cluster.hierarchy import leaves_list

    order = tuple(int(leaf) for leaf in leaves_list(tree))
    left = int(tree[-1, 0])
    cut = 1 if left < len(order) else int(tree[left - len(order), 3])
    small, large = sorted((order[:cut], order[cut:]), key=lambda side: (len(side), min(side)))
    return order, tuple(sorted(small)), tuple(sorted(large[: len(small)]))


def _check_tree(tree: Array) -> None:
    """Raise ValueError unless every class and every merge but the last is merged exactly once, after its creation.

    SciPy does not check the children in a tree of one merge, and would read memory outside the tree.
    """
    n = len(tree) + 1
    if n < 2 or tree.shape != (n - 1, 4) or not np.isfinite(tree).all():
        raise ValueError
    children, parents = tree[:, :2], n + np.arange(n - 1)[:, None]
    if not np.array_equal(np.sort(children, axis=None), np.arange(2 * n - 2)) or not (children < parents).all():
        raise ValueError
    sizes = np.r_[np.ones(n), tree[:, 3]]
    if not np.array_equal(sizes[children.astype(np.int64)].sum(1), tree[:, 3]):
        raise ValueError


def imagenot(dataset: Dataset, means: ArrayLike, features: str) -> Partition:
    """The partition of a dataset from its class means; `features` describes what they are means of."""
    classes = partition(means, dataset.classes)
    return replace(classes, dataset=dataset.name, revision=dataset.revision, features=features)


# ---- class means, of a reference model's features of the training images


def class_means(features: ArrayLike, labels: ArrayLike, classes: int | None = None) -> Array:
    """Mean feature vector of every class, (C, d): m_c = 1/n_c Σ_{i: y_i = c} φ(x_i), summed in float64.

    features  (n, …); what follows the first axis is flattened
    labels    (n,) from 0 to C − 1; every class has a row
    classes   C; one more than the largest label unless given
    """
    features, labels = np.asarray(features), np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise BadInput(f"labels has shape {labels.shape} of {labels.dtype}: it must be (n,), one class number per row.")
    if len(features) != len(labels):
        raise BadInput(
            f"features has {len(features)} rows, labels has {len(labels)}: they must describe the same rows."
        )
    rows = _row_blocks(len(labels), int(np.prod(features.shape[1:])))
    pairs = ((features[block], labels[block]) for block in rows)
    return _means(pairs, int(labels.max()) + 1 if classes is None else classes)


def _row_blocks(n: int, width: int) -> list[slice]:
    return blocks(n, max(1, BLOCK_VALUES // max(1, width)))


def _means(pairs: Iterable[tuple[Array, Array]], classes: int) -> Array:
    """Class means of blocks of (features, labels)."""
    sums, counts = np.zeros((classes, 0)), np.zeros(classes, np.int64)
    for features, labels in pairs:
        if labels.min() < 0 or labels.max() >= classes:
            raise BadInput(
                f"A label is {labels.min() if labels.min() < 0 else labels.max()}: classes run from 0 to {classes - 1}."
            )
        flat = features.reshape(len(features), -1)
        order = np.argsort(labels, kind="stable")
        present, starts = np.unique(labels[order], return_index=True)
        sums = sums if sums.shape[1] else np.zeros((classes, flat.shape[1]))
        sums[present] += np.add.reduceat(flat[order], starts, axis=0, dtype=np.float64)
        counts += np.bincount(labels, minlength=classes)
    if not counts.all():
        raise BadInput(f"Class {int(np.argmin(counts > 0))} has no row: every class needs one, or it has no mean.")
    return np.asarray(sums / counts[:, None])


def pixel_means(dataset: Dataset) -> Array:
    """Mean training image of every class, pixels from 0 to 1; needs no model."""
    rows = _row_blocks(len(dataset.train), dataset.size**2 * dataset.channels)
    subsets = (dataset.train.take(np.arange(block.start, block.stop)) for block in track(rows, "pixels"))
    return _means(((subset.pixels, subset.labels) for subset in subsets), len(dataset.classes)) / 255


def class_means_of(predictions: Predictions, dataset: Dataset) -> Array:
    """Class means of the embeddings of a reference network, whose predictions have the labels of the dataset."""
    embeddings, labels, classes = predictions.embeddings, predictions.labels, len(dataset.classes)
    if embeddings is None or labels is None:
        missing = "embeddings" if embeddings is None else "labels"
        raise BadInput(f"The predictions have no {missing}: class means need embeddings (n, d) and labels (n,).")
    if int(labels.max()) >= classes:
        raise BadInput(
            f"The predictions have label {labels.max()}, {dataset.name} has {classes} classes: are they of other data?"
        )
    return class_means(embeddings, labels, classes)
