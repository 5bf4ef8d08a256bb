"""How out-of-distribution classes are divided and graded: functions of labels and uncertainties.

Source: Galil, Dabbah and El-Yaniv 2023, §4 and appendix L.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.identity import seed_for
from nescio.metrics import as_scores

# ---- the division: which images estimate, and which test


@dataclass(frozen=True, eq=False)
class ClassSplit:
    """The out-classes that take part, and their images; k classes, e images for estimation and t for test of each."""

    classes: Array  # (k,) class ids, rising
    estimation: Array  # (k, e) rows
    test: Array  # (k, t) rows
    scarce: int = 0  # classes that have too few images


def split_ood_classes(
    labels: Any, index: Any, estimation: int = 150, test: int = 50, seed: int = 0, refused: Iterable[int] = ()
) -> ClassSplit:
    """Takes `estimation` and `test` images of every class that has so many, whatever their order in the dump.

    Every image draws a number, a function of its key in `index` and the seed alone; the lowest of a class estimate, the
    next ones test, the rest are not used. So all models, and all dumps that hold the same images, are divided alike.
    """
    classes, place, counts = _counted(np.asarray(labels))
    bits = max(1, int(len(classes) - 1).bit_length())
    key = place.astype(np.uint64) << np.uint64(64 - bits)
    key |= key_bits(np.asarray(index), seed) >> np.uint64(bits)
    order = np.argsort(key)
    need = estimation + test
    enough, allowed = counts >= need, ~np.isin(classes, list(refused))
    kept = enough & allowed
    if not kept.any():
        raise BadInput(_too_few(counts[allowed], need, estimation, test))
    starts = (np.cumsum(counts) - counts)[kept]
    rows = order[starts[:, None] + np.arange(need)]
    return ClassSplit(classes[kept], rows[:, :estimation], rows[:, estimation:], int((allowed & ~enough).sum()))


def _counted(labels: Array) -> tuple[Array, Array, Array]:
    """np.unique with places and counts; class ids are small numbers almost always, and need no sort then."""
    low, high = int(labels.min()), int(labels.max())
    if high - low > 10 * len(labels):
        return np.unique(labels, return_inverse=True, return_counts=True)
    counts = np.bincount(labels - low)
    present = np.flatnonzero(counts)
    place = np.cumsum(counts > 0) - 1
    return present + low, place[labels - low], counts[present]


def _too_few(counts: Array, need: int, estimation: int, test: int) -> str:
    if not len(counts):
        return "No out-class is left: every one is an in-class, or above or below one in the hierarchy."
    most = int(counts.max())
    lacking = f"No out-class has {need} images ({estimation} to estimate its severity, {test} to test)"
    if most < 2:
        return f"{lacking}: none has two, and one of each is needed at least."
    share = min(max(1, round(most * estimation / need)), most - 1)
    return f"{lacking}; the largest has {most}. Take fewer, for instance --estimation {share} --test {most - share}."


def key_bits(index: Array, seed: int) -> Array:
    """(n,) 64-bit numbers that look random: a function of each key and the seed alone."""
    if index.dtype.kind == "U":
        even = index.astype(f"U{-(-index.dtype.itemsize // 8) * 2}", order="C")  # two letters make 64 bits
        bits = np.zeros(len(index), np.uint64)
        for letters in even.view(np.uint64).reshape(len(index), -1).T:  # zeros fill up short texts, and must not count
            bits = np.where(letters == 0, bits, mix_bits(bits + letters))
    else:
        bits = index.astype(np.int64).view(np.uint64)
    return mix_bits(bits ^ np.uint64(seed_for("cood", "division", seed)))


def mix_bits(z: Array) -> Array:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): one-to-one, and every bit moves every other."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


# ---- the grades: severities, windows, AUROCs


@dataclass(frozen=True, eq=False)
class OODGrades:
    """The out-classes in order of severity, and the groups among them, for one model and one measure."""

    order: Array  # (k,) positions in Division.classes, the easiest class first
    severity: Array  # (k,) of every class, in order of Division.classes
    window: int  # classes of a group
    starts: Array  # (g,) where each group begins in `order`
    severities: Array  # (g,) of the groups
    aurocs: tuple[float, ...]  # of in against out, one per group

    def group(self, level: int) -> Array:
        """Positions in Division.classes of the group at a level."""
        start = int(self.starts[level])
        return self.order[start : start + self.window]


def class_severities(u: Any, estimation: Array) -> Array:
    """(k,) mean confidence, −u, over the estimation images (k, e) of each class: s(y|f, κ) of appendix L.2.

    The sum is divided by the number of estimation images, not by all images of the class.
    """
    return np.asarray(-np.asarray(u)[estimation].mean(axis=1))


def window_severities(severity: Array, window: int) -> Array:
    """(k − window + 1,) mean severity of every window of neighbours, by one cumulative sum; `severity` is sorted."""
    total = np.concatenate([[0.0], np.cumsum(severity)])
    return np.asarray((total[window:] - total[:-window]) / window)


def severity_windows(windows: int, severities: int = 11) -> list[int]:
    """Which window each severity takes: round(i·(G − 1)/10) of G windows, the percentiles 0, 10 … 100."""
    return [round(i * (windows - 1) / (severities - 1)) for i in range(severities)]


def grade_ood(u_in: Any, u_out: Any, division: ClassSplit, window: int, severities: int = 11) -> OODGrades:
    """Severity groups of one model and one measure, and the AUROC of each; u_in (m,), u_out (n,).

    Windows of a sorted list are sorted by their means. The in-distribution rows are sorted once: an out-row's place
    among them is how many pairs it wins, so that a class is one whole number and a group a difference of cumulative
    sums.
    """
    u_in, u_out = np.sort(as_scores(u_in, "u_in")), as_scores(u_out, "u_out")
    severity = class_severities(u_out, division.estimation)
    order = np.argsort(severity, kind="stable")  # classes stand in order of their ids, so that ties do
    means = window_severities(severity[order], window)
    starts = np.array(severity_windows(len(means), severities))
    won = np.concatenate([[0], np.cumsum(_won_twice(u_in, u_out[division.test])[order])])
    pairs = 2 * len(u_in) * window * division.test.shape[1]
    aurocs = tuple(int(won[at + window] - won[at]) / pairs for at in starts)
    return OODGrades(order, severity, window, starts, means[starts], aurocs)


def _won_twice(u_in: Array, u_out: Array) -> Array:
    """(k,) twice the pairs in which an out-row (k, t) has the higher u, ties counted half; `u_in` is sorted."""
    flat = u_out.reshape(-1)
    order = np.argsort(flat)  # places that rise are found several times faster
    rising = flat[order]
    below = np.searchsorted(u_in, rising)
    tied = u_in[np.minimum(below, len(u_in) - 1)] == rising
    twice = np.empty(len(flat), np.int64)
    twice[order] = 2 * below
    twice[order[tied]] = below[tied] + np.searchsorted(u_in, rising[tied], side="right")
    return np.asarray(twice.reshape(u_out.shape).sum(axis=1))


def window_size(wanted: int | None, inside: int, outside: int) -> int:
    """Classes of a group: those wanted, else as many as the in-distribution data has (Galil et al. 2023).

    Where there are no more out-classes than that, one window would be all: then half of the out-classes.
    """
    if outside < 2:
        raise BadInput("One out-class is left: with a single one there is nothing to grade.")
    if wanted is None:
        return inside if inside < outside else outside // 2
    if wanted > outside:
        raise BadInput(f"window is {wanted}, more than the {outside} out-classes that are left.")
    return wanted


# ---- between models (appendix M.8, Fig. 27)


def shared_classes(groups: Sequence[Array]) -> tuple[int, int]:
    """How many classes some group holds, and how many every one holds; a group holds a class once."""
    _, times = np.unique(np.concatenate(groups), return_counts=True)
    return len(times), int((times == len(groups)).sum())


def most_agreed_images(images: Array, answers: Array, seed: int, most: int = 10) -> list[tuple[int, int]]:
    """The images that were answered alike most often: (one of their rows, how often), at least twice.

    images, answers (n,): the key of a row's image, and what one model says of it
    """
    keys = key_bits(images, seed)
    _, rows, times = np.unique(mix_bits(keys + answers.astype(np.uint64)), return_index=True, return_counts=True)
    order = np.lexsort((keys[rows], -times))[:most]
    return [(int(rows[at]), int(times[at])) for at in order if times[at] > 1]
