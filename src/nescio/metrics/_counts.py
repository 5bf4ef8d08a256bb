"""Ranking metrics of more rows than memory holds: counts of right and wrong rows per order-preserving key of u."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nescio.arrays.parallel import blocks
from nescio.errors import BadInput
from nescio.metrics._ranking import Array, Ranking, as_classes

KEYS = 1 << 16
BLOCK = 1 << 18  # rows at once: the keys of a block stay in cache
HIGH = 1 if sys.byteorder == "little" else 0  # which 16-bit half of a float32 holds sign, exponent and first digits
SINGLE_ROW_METRICS = ("aupr", "sac")  # these also depend on whether equal classes in one key are tied


@dataclass(frozen=True, eq=False)
class Counts:
    """How many right and wrong rows have each key, in constant memory; shards of a dataset add up.

    The key of a float16 score is its 16 bits: exact. The key of any other score is the upper 16 bits of it as float32
    (8 digits of 2): rows that share a key count as tied, and `bound` says how far that can move a metric. A second
    pass with `split=first.crowded()` tells all float32 values inside the most crowded keys apart.

    half   bool            float16 scores
    exact  bool            no score was rounded to float32
    split  (k,)            upper halves whose lower halves are counted too
    table  (65536, 2)      right and wrong rows by upper half
    fine   (k, 65536, 2)   right and wrong rows of split keys by lower half

    Counts of the raw bits are kept and put in order only when they are read, which keeps the pass over rows short.
    """

    half: bool
    exact: bool
    split: Array
    table: Array
    fine: Array

    @classmethod
    def of(cls, u: Any, wrong: Any, split: Any = ()) -> Counts:
        """Counts the rows of one shard; give all shards the same dtype and the same `split`."""
        u, wrong, split = np.asarray(u), as_classes(wrong, "wrong"), np.unique(np.asarray(split, np.uint16))
        if u.dtype.kind not in "fiub" or u.ndim != 1:
            raise BadInput(f"u has shape {u.shape} and dtype {u.dtype}; give one real number per row, shape (n,).")
        if len(u) != len(wrong):
            raise BadInput(f"u has {len(u)} rows, wrong has {len(wrong)}: they must describe the same rows.")
        native = u.dtype.newbyteorder("=")
        half = native == np.float16
        if half and len(split):
            raise BadInput("float16 scores are counted exactly by 16 bits; leave split out.")
        table, fine = np.zeros(2 * KEYS, np.int64), np.zeros(2 * KEYS * len(split), np.int64)
        slots = np.empty(min(BLOCK, len(u)), np.int64)
        for rows in blocks(len(u), BLOCK):
            upper, lower = _halves(u[rows])
            slot = slots[: len(upper)]
            np.multiply(upper, 2, out=slot, dtype=np.int64, casting="unsafe")
            slot += wrong[rows]
            table += np.bincount(slot, minlength=2 * KEYS)
            if len(split):
                at = np.minimum(np.searchsorted(split, upper), len(split) - 1)
                rows_in = np.flatnonzero(split[at] == upper)
                np.add.at(fine, (at[rows_in] * KEYS + lower[rows_in]) * 2 + wrong[rows][rows_in], 1)
        exact = bool(half or native == np.float32)
        counts = cls(bool(half), exact, split, table.reshape(KEYS, 2), fine.reshape(len(split), KEYS, 2))
        counts._check_finite()
        return counts

    def _check_finite(self) -> None:
        exponent = 0x7C00 if self.half else 0x7F80
        bad = int(self.table[(np.arange(KEYS) & exponent) == exponent].sum())
        if bad:
            raise BadInput(f"u is NaN, infinite or beyond float32 in {bad} rows; every row needs a finite number.")

    def __add__(self, other: Counts) -> Counts:
        if not isinstance(other, Counts):
            return NotImplemented
        if self.half != other.half:
            raise BadInput("float16 counts and float32 counts have different keys; count all shards in one dtype.")
        if not np.array_equal(self.split, other.split):
            raise BadInput("The counts split different keys; count all shards with the same split.")
        both = self.exact and other.exact
        return Counts(self.half, both, self.split, self.table + other.table, self.fine + other.fine)

    def __radd__(self, other: int) -> Counts:
        if other != 0:  # sum() starts at 0
            return NotImplemented
        return self

    def merge(self, *others: Counts) -> Counts:
        """The counts of all shards together."""
        return sum(others, self)

    @property
    def n(self) -> int:
        return int(self.table.sum())

    def ranking(self) -> Ranking:
        """The rows as far as their keys tell them apart, for every ranking metric."""
        values, counts, _ = self._groups
        return Ranking.from_groups(values, counts.sum(axis=1), counts[:, 1])

    def crowded(self, keys: int = 16) -> Array:
        """The keys in which most pairs of a right and a wrong row are taken as tied: those worth a `split`."""
        pairs = self.table[:, 0].astype(float) * self.table[:, 1]
        pairs[self.split] = 0
        order = np.argsort(-pairs, kind="stable")[:keys]
        return np.union1d(self.split, order[pairs[order] > 0].astype(np.uint16))

    @property
    def shared(self) -> float:
        """Share of the rows in keys that hold right and wrong rows whose scores may differ: 0 means exact AUROC."""
        _, counts, sure = self._groups
        return float(counts[~sure & (counts > 0).all(axis=1)].sum() / self.n)

    def bound(self, metric: Callable[..., float], **options: Any) -> float:
        """How far metric(counts.ranking()) can be from its value on the scores themselves.

        Inside a key whose scores may differ, the true order lies between all right rows first and all wrong rows first;
        the metric is taken at both ends, and the larger distance is the bound. 0 for float16 scores.
        """
        _, counts, sure = self._groups
        return bound_of(counts, sure, self.ranking(), metric, **options)

    @cached_property
    def _groups(self) -> tuple[Array, Array, Array]:
        """values (g,) rising, counts (g, 2), and whether all rows of the group have that very score (g,)."""
        coarse = self.table.copy()
        coarse[self.split] = 0
        keys = np.flatnonzero(coarse[:, 0] | coarse[:, 1])
        if self.half:
            values = keys.astype(np.uint16).view(np.float16).astype(np.float64)
        else:
            values = (keys.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        counts, sure = coarse[keys], np.full(len(keys), self.half)
        if len(self.split):
            key, lower = np.nonzero(self.fine[:, :, 0] | self.fine[:, :, 1])
            bits = self.split[key].astype(np.uint32) << 16 | lower.astype(np.uint32)
            values = np.concatenate([values, bits.view(np.float32)])
            counts = np.concatenate([counts, self.fine[key, lower]])
            sure = np.concatenate([sure, np.full(len(key), self.exact)])
        if not len(values):
            raise BadInput("There are no rows: at least one is needed.")
        values, group = np.unique(values, return_inverse=True)  # −0 equals +0
        merged, unsure = np.zeros((len(values), 2), np.int64), np.zeros(len(values), bool)
        np.add.at(merged, group, counts)
        np.logical_or.at(unsure, group, ~sure)
        return values, merged, ~unsure | (merged.sum(axis=1) == 1)


def _halves(u: Array) -> tuple[Array, Array]:
    """Upper and lower 16 bits of each score; for float16 the upper half is all there is."""
    if u.dtype.newbyteorder("=") == np.float16:
        bits = np.ascontiguousarray(u, np.float16).view(np.uint16)
        return bits, bits
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is refused
        halves = np.ascontiguousarray(u, np.float32).view(np.uint16)
    return halves[HIGH::2], halves[1 - HIGH :: 2]


def bound_of(counts: Array, sure: Array, ranking: Ranking, metric: Callable[..., float], **options: Any) -> float:
    """How far a metric of groups (g, 2), of which some are sure to be ties, can be from its value on the scores."""
    if sure.all():
        return 0.0
    middle = metric(ranking, **options)
    single = getattr(metric, "__name__", "") in SINGLE_ROW_METRICS
    ends = [_ordered(counts, sure, wrong_first, rows) for wrong_first in (0, 1) for rows in {False, single}]
    return max(abs(metric(end, **options) - middle) for end in ends)


def _ordered(counts: Array, sure: Array, wrong_first: int, single: bool) -> Ranking:
    """The ranking in which an unsure group becomes its right and its wrong rows, one after the other.

    With `single` its wrong rows come one by one, each a threshold of its own.
    """
    first, then = counts.copy(), np.zeros_like(counts)
    first[~sure, 1 - wrong_first] = 0
    then[~sure] = (counts - first)[~sure]
    parts = np.stack([first, then], axis=1).reshape(-1, 2)
    if single:
        alone = np.repeat(~sure, 2) & (parts[:, 0] == 0) & (parts[:, 1] > 1)
        times = np.where(alone, parts[:, 1], 1)
        parts[alone, 1] = 1
        parts = np.repeat(parts, times, axis=0)
    return Ranking.from_groups(np.arange(len(parts)), parts.sum(axis=1), parts[:, 1])
