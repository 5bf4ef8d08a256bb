"""Ranking metrics beyond memory: counts of right and wrong rows by float16 score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.metrics._ranking import Ranking, as_classes

KEYS = 1 << 16
BLOCK = 1 << 18  # rows per block: the keys of a block stay in cache
EXPONENT = 0x7C00  # all of these bits are set in NaN and in infinities alone


@dataclass(frozen=True, eq=False)
class Float16Counts:
    """Numbers of right and wrong rows by float16 score, in constant memory; shards of a dataset add up.

    table  (65536, 2)  right and wrong rows by the 16 bits of their score

    Counts of the raw bits are kept and put in order only when they are read, which keeps the pass over rows short.
    """

    table: Array

    @classmethod
    def count(cls, u: ArrayLike, wrong: ArrayLike) -> Float16Counts:
        """Counts the rows of one shard."""
        u, wrong = np.asarray(u), as_classes(wrong, "wrong")
        if u.dtype.newbyteorder("=") != np.float16 or u.ndim != 1:
            raise BadInput(f"u has shape {u.shape} and dtype {u.dtype}; give one float16 number per row, shape (n,).")
        if len(u) != len(wrong):
            raise BadInput(f"u has {len(u)} rows, wrong has {len(wrong)}: they must describe the same rows.")
        counts = np.zeros(2 * KEYS, np.int64)
        slots = np.empty(min(BLOCK, len(u)), np.int64)
        for rows in blocks(len(u), BLOCK):
            bits = np.ascontiguousarray(u[rows], np.float16).view(np.uint16)
            slot = slots[: len(bits)]
            np.multiply(bits, 2, out=slot, dtype=np.int64, casting="unsafe")
            slot += wrong[rows]
            counts += np.bincount(slot, minlength=2 * KEYS)
        table = counts.reshape(KEYS, 2)
        if bad := int(table[(np.arange(KEYS) & EXPONENT) == EXPONENT].sum()):
            raise BadInput(f"u is NaN or infinite in {bad} rows; every row needs a finite number.")
        return cls(table)

    def __add__(self, other: Float16Counts) -> Float16Counts:
        return Float16Counts(self.table + other.table) if isinstance(other, Float16Counts) else NotImplemented

    @property
    def n(self) -> int:
        return int(self.table.sum())

    def ranking(self) -> Ranking:
        """The rows, for every ranking metric."""
        keys = np.flatnonzero(self.table.any(axis=1))
        scores = keys.astype(np.uint16).view(np.float16).astype(np.float64)
        values, group = np.unique(scores, return_inverse=True)  # −0 equals +0
        rows = np.zeros((len(values), 2), np.int64)
        np.add.at(rows, group, self.table[keys])
        return Ranking.from_groups(values, rows.sum(axis=1), rows[:, 1])

    def bound(self, metric: Callable[..., float], **options: float) -> float:
        """Maximum error of metric(counts.ranking()): 0, because all scores are distinguished."""
        return 0.0
