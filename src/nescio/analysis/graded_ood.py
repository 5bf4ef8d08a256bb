"""Split of OOD classes into estimation and test images, and their severity levels.

Source: Galil, Dabbah and El-Yaniv 2023, §4 and appendix L.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.identity import seed_for
from nescio.metrics import as_scores

# ---- split into estimation and test images


@dataclass(frozen=True, eq=False)
class ClassSplit:
    """OOD classes and their images: k classes, each with e images for estimation and t for test."""

    classes: Array  # (k,) class ids in rising order
    estimation: Array  # (k, e) rows
    test: Array  # (k, t) rows
    scarce: int = 0  # number of classes with too few images


def split_ood_classes(
    labels: ArrayLike,
    index: ArrayLike,
    estimation: int = 150,
    test: int = 50,
    seed: int = 0,
    excluded: Iterable[int] = (),
) -> ClassSplit:
    """Select estimation and test images of every class with enough images.

    Every image gets a pseudorandom number that depends only on its key in `index` and the seed. The lowest numbers of a
    class are for estimation, the next ones for test. The split is the same for all models with the same images.
    """
    classes, position, counts = _count_unique(np.asarray(labels))
    bits = max(1, int(len(classes) - 1).bit_length())
    key = position.astype(np.uint64) << np.uint64(64 - bits)
    key |= key_bits(np.asarray(index), seed) >> np.uint64(bits)
    order = np.argsort(key)
    required = estimation + test
    enough, allowed = counts >= required, ~np.isin(classes, list(excluded))
    selected = enough & allowed
    if not selected.any():
        raise BadInput(_scarcity_reason(counts[allowed], required, estimation, test))
    starts = (np.cumsum(counts) - counts)[selected]
    rows = order[starts[:, None] + np.arange(required)]
    return ClassSplit(classes[selected], rows[:, :estimation], rows[:, estimation:], int((allowed & ~enough).sum()))


def _count_unique(labels: Array) -> tuple[Array, Array, Array]:
    """np.unique with inverse and counts, without a sort for small class ids."""
    low, high = int(labels.min()), int(labels.max())
    if high - low > 10 * len(labels):
        return np.unique(labels, return_inverse=True, return_counts=True)
    counts = np.bincount(labels - low)
    present = np.flatnonzero(counts)
    position = np.cumsum(counts > 0) - 1
    return present + low, position[labels - low], counts[present]


def _scarcity_reason(counts: Array, required: int, estimation: int, test: int) -> str:
    if not len(counts):
        return "No OOD class is left: every one is an in-distribution class, or above or below one in the hierarchy."
    largest = int(counts.max())
    problem = f"No OOD class has {required} images ({estimation} to estimate its severity, {test} to test)"
    if largest < 2:
        return f"{problem}: no class has two, and at least one of each kind is needed."
    share = min(max(1, round(largest * estimation / required)), largest - 1)
    example = f"estimation_images={share}, test_images={largest - share}"
    return f"{problem}; the largest has {largest}. Take fewer, for instance {example}."


def key_bits(index: Array, seed: int) -> Array:
    """(n,) pseudorandom 64-bit numbers that depend on each key and the seed only."""
    if index.dtype.kind == "U":
        padded = index.astype(f"U{-(-index.dtype.itemsize // 8) * 2}", order="C")  # 64 bits per two letters
        bits = np.zeros(len(index), np.uint64)
        for letters in padded.view(np.uint64).reshape(len(index), -1).T:  # zeros pad short texts and are skipped
            bits = np.where(letters == 0, bits, mix_bits(bits + letters))
    else:
        bits = index.astype(np.int64).view(np.uint64)
    return mix_bits(bits ^ np.uint64(seed_for("cood", "division", seed)))


def mix_bits(z: Array) -> Array:
    """Finaliser of SplitMix64 (Steele, Lea and Flood 2014), a bijection in which every bit affects every other."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


# ---- severities, windows, AUROCs


@dataclass(frozen=True, eq=False)
class OODGrades:
    """OOD classes in order of severity and their severity levels, for one model and one measure."""

    order: Array  # (k,) positions in ClassSplit.classes, the easiest class first
    severity: Array  # (k,) severity of every class, in the order of ClassSplit.classes
    window: int  # number of classes of a level
    starts: Array  # (g,) start of each level in `order`
    severities: Array  # (g,) severity of each level
    aurocs: tuple[float, ...]  # AUROC of OOD against in-distribution rows at each level

    def group(self, level: int) -> Array:
        """Positions in ClassSplit.classes of the classes at a level."""
        start = int(self.starts[level])
        return self.order[start : start + self.window]


def class_severities(u: ArrayLike, estimation: Array) -> Array:
    """(k,) mean confidence, −u, over the estimation images (k, e) of each class: s(y|f, κ) of appendix L.2.

    The sum is divided by the number of estimation images, not by all images of the class.
    """
    return np.asarray(-np.asarray(u)[estimation].mean(axis=1))


def window_severities(severity: Array, window: int) -> Array:
    """(k − window + 1,) mean severity of every window of neighbours, by one cumulative sum; `severity` is sorted."""
    total = np.concatenate([[0.0], np.cumsum(severity)])
    return np.asarray((total[window:] - total[:-window]) / window)


def severity_windows(windows: int, severities: int = 11) -> list[int]:
    """Window of each severity level: round(i·(G − 1)/10) of G windows, the percentiles 0, 10 … 100."""
    return [round(i * (windows - 1) / (severities - 1)) for i in range(severities)]


def grade_ood(u_in: ArrayLike, u_out: ArrayLike, division: ClassSplit, window: int, severities: int = 11) -> OODGrades:
    """Severity levels of one model and one measure with their AUROCs; u_in (m,), u_out (n,).

    Windows of a sorted list are sorted by their means. In-distribution rows are sorted once. The rank of an OOD row
    among them is its number of won pairs, so a level is a difference of cumulative sums.
    """
    u_in, u_out = np.sort(as_scores(u_in, "u_in")), as_scores(u_out, "u_out")
    severity = class_severities(u_out, division.estimation)
    order = np.argsort(severity, kind="stable")  # ties are in order of class ids
    means = window_severities(severity[order], window)
    starts = np.array(severity_windows(len(means), severities))
    cumulative_wins = np.concatenate([[0], np.cumsum(_count_won_pairs_twice(u_in, u_out[division.test])[order])])
    pairs = 2 * len(u_in) * window * division.test.shape[1]
    aurocs = tuple(int(cumulative_wins[start + window] - cumulative_wins[start]) / pairs for start in starts)
    return OODGrades(order, severity, window, starts, means[starts], aurocs)


def _count_won_pairs_twice(u_in: Array, u_out: Array) -> Array:
    """(k,) twice the pairs in which an OOD row (k, t) has the higher u, ties counted half; `u_in` is sorted."""
    flat = u_out.reshape(-1)
    order = np.argsort(flat)  # searching sorted values is several times faster
    sorted_u = flat[order]
    below = np.searchsorted(u_in, sorted_u)
    tied = u_in[np.minimum(below, len(u_in) - 1)] == sorted_u
    doubled_wins = np.empty(len(flat), np.int64)
    doubled_wins[order] = 2 * below
    doubled_wins[order[tied]] = below[tied] + np.searchsorted(u_in, sorted_u[tied], side="right")
    return np.asarray(doubled_wins.reshape(u_out.shape).sum(axis=1))


def window_size(window: int | None, classes: int, ood_classes: int) -> int:
    """Number of classes of a level; None: as many as the in-distribution data has (Galil et al. 2023).

    If there are not more OOD classes than that, one window would contain all, so half of the OOD classes are used.
    """
    if ood_classes < 2:
        raise BadInput("Only 1 OOD class is left; severity levels need at least 2.")
    if window is None:
        return classes if classes < ood_classes else ood_classes // 2
    if window > ood_classes:
        raise BadInput(f"window is {window}, more than the {ood_classes} OOD classes that are left.")
    return window


# ---- between models (appendix M.8, Fig. 27)


def shared_classes(groups: Sequence[Array]) -> tuple[int, int]:
    """Number of classes in any group, and in all groups; a group contains a class at most once."""
    _, counts = np.unique(np.concatenate(groups), return_counts=True)
    return len(counts), int((counts == len(groups)).sum())


def most_agreed_images(images: Array, predicted: Array, seed: int, limit: int = 10) -> list[tuple[int, int]]:
    """Images with the same predicted class by most models: (one of their rows, number of models), at least 2 models.

    images, predicted  (n,) key of the image of each row, and the class that one model predicts
    """
    keys = key_bits(images, seed)
    _, rows, counts = np.unique(mix_bits(keys + predicted.astype(np.uint64)), return_index=True, return_counts=True)
    order = np.lexsort((keys[rows], -counts))[:limit]
    return [(int(rows[position]), int(counts[position])) for position in order if counts[position] > 1]
