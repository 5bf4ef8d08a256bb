"""Ranking metrics over shards: counts of right and wrong rows by score, as exactly as a fixed number of them allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nescio.errors import BadInput
from nescio.metrics._counts import bound_of
from nescio.metrics._ranking import Array, Ranking, as_classes, as_scores

MOST = 1 << 18  # distinct scores that are kept
SIGN = np.uint64(1 << 63)


@dataclass(frozen=True, eq=False)
class ScoreCounts:
    """How many right and wrong rows have each score; shards add up, and their order and sizes do not matter.

    All scores are distinguished while no more than a quarter of a million of them are distinct: every ranking metric
    is exact then. Of more, the last binary digits are left out, as few as possible, and rows that agree in the others
    count as tied; `bound` says how far that can move a metric.

    keys    (g,)    rising: scores as whole numbers in the same order, without their last digits
    rows    (g, 2)  right and wrong rows
    digits  int     binary ones that are left out
    """

    keys: Array
    rows: Array
    digits: int

    @classmethod
    def of(cls, u: Any, wrong: Any) -> ScoreCounts:
        """Counts the rows of one shard."""
        scores, wrong = as_scores(u), as_classes(wrong, "wrong")
        if len(scores) != len(wrong):
            raise BadInput(f"u has {len(scores)} rows, wrong has {len(wrong)}: they must describe the same rows.")
        bits = (scores + 0.0).view(np.uint64)  # adding 0 turns −0 into +0
        keys = np.where(bits >= SIGN, ~bits, bits | SIGN)
        order = np.argsort(keys)
        return cls._grouped(keys[order], np.stack([~wrong, wrong], axis=1)[order].astype(np.int64), 0)

    @classmethod
    def _grouped(cls, keys: Array, rows: Array, digits: int) -> ScoreCounts:
        """Of rising keys, some of which may be equal: as many digits of them as there is room for."""
        apart = keys[1:] ^ keys[:-1]  # two keys stay two as long as the first digit in which they differ is kept
        if len(apart) >= MOST:
            digits = max(digits, int(np.partition(apart, len(apart) - MOST)[len(apart) - MOST]).bit_length())
        keys = keys >> np.uint64(digits) << np.uint64(digits)
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        return cls(keys[starts], np.add.reduceat(rows, starts, axis=0), digits)

    def __add__(self, other: ScoreCounts) -> ScoreCounts:
        digits = max(self.digits, other.digits)
        keys = np.concatenate([self.keys, other.keys]) >> np.uint64(digits) << np.uint64(digits)
        order = np.argsort(keys, kind="stable")  # which merges runs that are in order already
        return self._grouped(keys[order], np.concatenate([self.rows, other.rows])[order], digits)

    def against(self, others: ScoreCounts) -> ScoreCounts:
        """All of these rows as right ones and all of the others as wrong ones: for detection."""
        ours = ScoreCounts(self.keys, self.rows.sum(1, keepdims=True) * [1, 0], self.digits)
        return ours + ScoreCounts(others.keys, others.rows.sum(1, keepdims=True) * [0, 1], others.digits)

    @property
    def n(self) -> int:
        return int(self.rows.sum())

    def ranking(self) -> Ranking:
        """The rows as far as their scores are distinguished, for every ranking metric."""
        bits = np.where(self.keys >= SIGN, self.keys ^ SIGN, ~self.keys)
        return Ranking.from_groups(bits.view(np.float64), self.rows.sum(axis=1), self.rows[:, 1])

    def bound(self, metric: Callable[..., float], **options: Any) -> float:
        """How far metric(counts.ranking()) can be from its value on the scores themselves; see `Counts.bound`."""
        sure = np.full(len(self.keys), self.digits == 0) | (self.rows.sum(axis=1) == 1)
        return bound_of(self.rows, sure, self.ranking(), metric, **options)
