"""Ranking metrics over shards: counts of right and wrong rows by score, as exactly as a fixed number of them allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.metrics._ranking import Ranking, as_classes, as_scores
from nescio.metrics._spec import registry

MAX_SCORES = 1 << 18  # maximum number of distinct scores
SIGN, LAST = np.uint64(1 << 63), np.uint64(1)


@dataclass(frozen=True, eq=False)
class ScoreCounts:
    """Numbers of correct and wrong rows per score. Counts of shards can be added, in any order.

    All scores are distinguished while no more than `most` of them are distinct: every ranking metric is exact then. Of
    more, the last binary digits are left out, as few as possible, and rows that agree in the others
    count as tied; `bound` limits the effect on a metric.

    keys    (g,)    rising: scores as whole numbers in the same order, without their last digits
    rows    (g, 2)  right and wrong rows
    digits  int     binary ones that are left out
    most    int     distinct scores that are kept
    """

    keys: Array
    rows: Array
    digits: int
    most: int

    @classmethod
    def count(cls, u: ArrayLike, wrong: ArrayLike, most: int | None = None) -> ScoreCounts:
        """Counts the rows of one shard."""
        most = MAX_SCORES if most is None else most
        scores, wrong = as_scores(u), as_classes(wrong, "wrong")
        if len(scores) != len(wrong):
            raise BadInput(f"u has {len(scores)} rows, wrong has {len(wrong)}: they must describe the same rows.")
        bits = (scores + 0.0).view(np.uint64)  # adding 0 turns −0 into +0
        keys = np.where(bits >= SIGN, ~bits, bits | SIGN)
        if np.asarray(u).dtype.itemsize > 4:
            order = np.argsort(keys)
            return cls._grouped(keys[order], np.stack([~wrong, wrong], axis=1)[order].astype(np.int64), 0, most)
        # The last digit of a former float32 is free: it stores the class, so that one sort is enough.
        packed = np.sort(keys & ~LAST | wrong)
        keys, wrong = packed & ~LAST, (packed & LAST).astype(np.int64)
        keys |= keys < SIGN  # as stored: the bits of negative numbers are inverted
        return cls._grouped(keys, np.stack([1 - wrong, wrong], axis=1), 0, most)

    @classmethod
    def _grouped(cls, keys: Array, rows: Array, digits: int, most: int) -> ScoreCounts:
        """Merge rising keys by dropping digits until at most `most` distinct keys remain."""
        if not len(keys):
            return cls(keys, rows, digits, most)
        bits = keys[1:] ^ keys[:-1]  # two keys remain distinct if the first digit in which they differ is kept
        if len(bits) >= most:
            digits = max(digits, int(np.partition(bits, len(bits) - most)[len(bits) - most]).bit_length())
        keys = keys >> np.uint64(digits) << np.uint64(digits)
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        sums = np.cumsum(rows, axis=0)[np.append(starts[1:], len(keys)) - 1]
        sums[1:] -= sums[:-1].copy()
        return cls(keys[starts], sums, digits, most)

    def __add__(self, other: ScoreCounts) -> ScoreCounts:
        digits = max(self.digits, other.digits)
        keys = np.concatenate([self.keys, other.keys]) >> np.uint64(digits) << np.uint64(digits)
        order = np.argsort(keys, kind="stable")  # which merges runs that are in order already
        most = min(self.most, other.most)
        return self._grouped(keys[order], np.concatenate([self.rows, other.rows])[order], digits, most)

    def against(self, others: ScoreCounts) -> ScoreCounts:
        """These rows as right ones and the others as wrong ones, for OOD detection."""
        ours = ScoreCounts(self.keys, self.rows.sum(1, keepdims=True) * [1, 0], self.digits, self.most)
        return ours + ScoreCounts(others.keys, others.rows.sum(1, keepdims=True) * [0, 1], others.digits, others.most)

    @property
    def n(self) -> int:
        return int(self.rows.sum())

    def ranking(self) -> Ranking:
        """The rows as far as their scores are distinguished, for every ranking metric."""
        bits = np.where(self.keys >= SIGN, self.keys ^ SIGN, ~self.keys)
        return Ranking.from_groups(bits.view(np.float64), self.rows.sum(axis=1), self.rows[:, 1])

    def bound(self, metric: Callable[..., float], **options: float) -> float:
        """Maximum difference of metric(counts.ranking()) from its value on the original scores.

        Inside a key whose scores may differ, the true order lies between all right rows first and all wrong rows first;
        the metric is taken at both ends, and the larger distance is the bound. 0 while no digit is left out.
        """
        certain = np.full(len(self.keys), self.digits == 0) | (self.rows.sum(axis=1) == 1)
        if certain.all():
            return 0.0
        values = metric(self.ranking(), **options)
        single = any(entry.function is metric and entry.splits_ties for entry in registry.parts())
        ends = [_ordered(self.rows, certain, wrong_first, rows) for wrong_first in (0, 1) for rows in {False, single}]
        return max(abs(metric(end, **options) - values) for end in ends)


def _ordered(counts: Array, certain: Array, wrong_first: int, single: bool) -> Ranking:
    """The ranking in which each group is split into its correct and its wrong rows.

    With `single`, every wrong row is a separate threshold.
    """
    first, then = counts.copy(), np.zeros_like(counts)
    first[~certain, 1 - wrong_first] = 0
    then[~certain] = (counts - first)[~certain]
    parts = np.stack([first, then], axis=1).reshape(-1, 2)
    if single:
        alone = np.repeat(~certain, 2) & (parts[:, 0] == 0) & (parts[:, 1] > 1)
        times = np.where(alone, parts[:, 1], 1)
        parts[alone, 1] = 1
        parts = np.repeat(parts, times, axis=0)
    return Ranking.from_groups(np.arange(len(parts)), parts.sum(axis=1), parts[:, 1])
