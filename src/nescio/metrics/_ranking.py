"""Ranking metrics: does u rank positive rows (wrong or out-of-distribution) above the others? All share one sort."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.metrics._outcomes import as_array
from nescio.metrics._spec import metric

ROUNDING = Fraction(1, 2**51)  # error of a sum of shares: four float64 steps below 1
INT64_ROWS = 1 << 31  # maximum rows for which twice the number of pairs fits into 64 bits
CACHED = 1 << 12  # tie groups per block: a dozen temporaries of this length stay in cache
SERIES = 64  # smallest argument at which the series of the harmonic numbers is exact to the last bit
HARMONIC = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, SERIES + 1))])


class Ranking:
    """Rows by rising u, the most confident first, as tie groups: no threshold separates rows of equal u.

    values (g,)  the u of each tie group, rising
    ends   (g,)  number of rows up to and with the group
    hits   (g,)  number of positive rows among those
    """

    values: Array
    ends: Array
    hits: Array

    def __init__(self, u: ArrayLike, positive: ArrayLike, name: str = "positive") -> None:
        scores, positive = as_scores(u), as_classes(positive, name)
        if len(scores) != len(positive):
            raise BadInput(f"u has {len(scores)} rows, {name} has {len(positive)}: they must describe the same rows.")
        values, positive = _sort(scores, positive)
        last = np.flatnonzero(np.append(values[1:] != values[:-1], True))
        self.values, self.hits = values[last], np.cumsum(positive, out=positive)[last]
        self.ends = np.add(last, 1, out=last)

    @classmethod
    def from_groups(cls, values: ArrayLike, counts: ArrayLike, hits: ArrayLike) -> Ranking:
        """A ranking from its tie groups: rising values, rows and positive rows of each group."""
        values, counts, hits = np.asarray(values), np.asarray(counts, np.int64), np.asarray(hits, np.int64)
        if not (values.ndim == 1 and values.shape == counts.shape == hits.shape):
            raise BadInput(
                "values, counts and hits must be one-dimensional and of one length: one entry per tie group."
            )
        if np.any(values[1:] <= values[:-1]):
            raise BadInput("values must rise: give every tie group its own value, the smallest first.")
        if np.any((hits < 0) | (hits > counts)):
            raise BadInput("hits must lie between 0 and counts in every tie group.")
        full = counts > 0
        if not full.any():
            raise BadInput("There are no rows: at least one is needed.")
        self = cls.__new__(cls)
        self.values, self.ends, self.hits = values[full], np.cumsum(counts[full]), np.cumsum(hits[full])
        return self

    @property
    def n(self) -> int:
        return int(self.ends[-1])

    @property
    def positives(self) -> int:
        return int(self.hits[-1])

    @property
    def negatives(self) -> int:
        return self.n - self.positives

    @cached_property
    def sizes(self) -> Array:
        """(g,) rows of each group."""
        return _steps(self.ends)

    @cached_property
    def inside(self) -> Array:
        """(g,) positive rows of each group."""
        return _steps(self.hits)

    @cached_property
    def runs(self) -> tuple[Array, Array]:
        """(ends, hits) with neighbouring groups merged if all their rows are positive, or all are negative.

        Pairs and expectations do not change by this, and there are far fewer runs than rows. All perfect rankings of
        the same rows become the same two runs, so that floating-point sums over them are equal to the last bit.
        """
        kind = (self.inside > 0).view(np.int8) + (self.inside == self.sizes)  # 0 none positive, 1 mixed, 2 all positive
        last = np.flatnonzero(np.append((kind[1:] != kind[:-1]) | (kind[1:] == 1), True))
        return self.ends[last], self.hits[last]

    @cached_property
    def pairs(self) -> tuple[int, int, int]:
        """Pairs of a positive and a negative row in which the positive has the higher u, the same, the lower u."""
        ends, hits = self.runs
        inside = _steps(hits)
        tied = _steps(ends) - inside
        higher, equal = self._dot(inside, ends - hits - tied), self._dot(inside, tied)
        return higher, equal, self.positives * self.negatives - higher - equal

    @cached_property
    def total_hits(self) -> Fraction:
        """Σᵢ E(positives among the i most confident rows), exact; inside a tie group the expectation grows linearly."""
        ends, hits = self.runs
        sizes, inside = _steps(ends), _steps(hits)
        return Fraction(2 * self._dot(sizes, hits - inside) + self._dot(inside, sizes + 1), 2)

    @cached_property
    def total_share(self) -> float:
        """Σᵢ E(positives among the i most confident rows) / i."""
        return total_share(*self.runs)

    @cached_property
    def best_total_share(self) -> float:
        """`total_share` with every positive row last."""
        if self.positives == 0 or self.negatives == 0:
            return float(self.positives)
        return total_share(np.array([self.negatives, self.n]), np.array([0, self.positives]))

    def _dot(self, a: Array, b: Array) -> int:
        return int(np.dot(a, b) if self.n < INT64_ROWS else np.dot(a.astype(object), b.astype(object)))


def ranking(u: ArrayLike | Ranking, positive: ArrayLike | None = None, name: str = "positive") -> Ranking:
    """Sort (u, positive) once; a prepared Ranking passes through."""
    if isinstance(u, Ranking):
        if positive is not None:
            raise BadInput(f"u is a prepared Ranking with its positive rows; leave {name} out.")
        return u
    if positive is None:
        raise BadInput(f"{name} is missing: give one truth value per row of u (wrong, or out).")
    return Ranking(u, positive, name)


def as_scores(u: ArrayLike, name: str = "u") -> Array:
    """(n,) finite float64; u of any real dtype that float64 can represent."""
    scores = as_array(u, name)
    if scores.dtype.kind not in "fiub":
        raise BadInput(f"{name} has dtype {scores.dtype}; give one real number per row.")
    if scores.ndim != 1:
        raise BadInput(f"{name} has shape {scores.shape}; give one number per row, shape (n,).")
    if len(scores) == 0:
        raise BadInput(f"{name} is empty: at least one row is needed.")
    exact = scores.astype(np.float64, copy=False)
    if scores.dtype.kind in "iu" and scores.dtype.itemsize == 8 and np.abs(exact).max() > 2**53:
        raise BadInput(f"{name} contains whole numbers beyond 2**53, which float64 cannot represent; give their ranks.")
    if not np.isfinite(exact).all():
        row = int(np.flatnonzero(~np.isfinite(exact))[0])
        raise BadInput(f"{name} is {exact[row]} in row {row}; every row needs a finite number.")
    return exact


def as_classes(positive: ArrayLike, name: str = "positive") -> Array:
    """(n,) booleans, from booleans or from numbers that are 0 or 1."""
    classes = as_array(positive, name)
    if classes.ndim != 1:
        raise BadInput(f"{name} has shape {classes.shape}; give one truth value per row, shape (n,).")
    if classes.dtype == bool:
        return classes
    if classes.dtype.kind not in "fiu" or not np.isin(classes, (0, 1)).all():
        raise BadInput(f"{name} must be booleans (or 0 and 1), one per row.")
    return classes.astype(bool)


def _sort(u: Array, positive: Array) -> tuple[Array, Array]:
    """(u, positive) by rising u. Sorting integers that carry the class in their lowest bit is several times faster than
    sorting positions and gathering. The sign bit makes room for the class, so negative values are sorted separately."""
    packed = (u + 0.0).view(np.uint64)  # adding 0 turns −0 into +0
    packed <<= np.uint64(1)
    packed |= positive
    below = u < 0
    negatives = int(np.count_nonzero(below))
    if negatives:
        packed = np.concatenate([np.sort(packed[below])[::-1], np.sort(packed[~below])])
    else:
        packed.sort()
    positive = (packed & np.uint64(1)).view(np.int64)
    packed >>= np.uint64(1)
    values = packed.view(np.float64)
    values[:negatives] *= -1
    return values, positive


def _steps(totals: Array) -> Array:
    """Differences of successive entries of a cumulative sum."""
    steps = totals.copy()
    steps[1:] -= totals[:-1]
    return steps


def total_share(ends: Array, hits: Array) -> float:
    """Σᵢ E(positives among the i most confident rows) / i from the cumulative counts of tie groups.

    A group from row a to row b with e positives before it and rate p inside adds
    Σ_{i=a+1}^{b} (e + (i − a)·p)/i = (e − a·p)·(H_b − H_a) + (b − a)·p.
    """
    rate, edges, before = _steps(hits) / _steps(ends), np.append(0, ends), np.append(0, hits)
    terms = []
    for i in blocks(len(rate), CACHED):
        a, e = edges[i], before[i]
        terms.append((e - a * rate[i]) @ harmonic_gaps(edges[i.start : i.stop + 1]))
    return math.fsum(terms) + float(hits[-1])


def harmonic_gaps(edges: Array) -> Array:
    """H_b − H_a = Σ_{i=a+1}^{b} 1/i between rising edges, without cancellation: a table for small i, then the series
    H_x = ln x + γ + 1/(2x) − 1/(12x²) + 1/(120x⁴) − 1/(252x⁶) + …"""
    x = np.maximum(edges, SERIES).astype(np.float64)
    y = 1 / x
    z = y * y
    gaps: Array = np.log1p(np.diff(x) / x[:-1]) + np.diff(y / 2 - z * (1 / 12 - z * (1 / 120 - z / 252)))
    if edges[0] < SERIES:
        gaps += np.diff(HARMONIC[np.minimum(edges, SERIES)])
    return gaps


def as_share(value: float | str, name: str) -> Fraction:
    """A share between 0 and 1 read as its decimal text: 0.9 is 9/10."""
    try:
        share = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not 0 <= share <= 1:
        raise BadInput(f"{name} is {value}; it must be a number from 0 to 1.")
    return share


def row_count(value: float | str, n: int, name: str) -> int:
    """ceil(value·n) without float error: a decimal is parsed from its text, and a value that rounds to i/n gives i.

    A computed share, such as 0.30000000000000004 from np.linspace(0.1, 1, 10), therefore keeps the same rows as 0.3.
    """
    rows = as_share(value, name) * n
    nearest = round(rows)
    return nearest if nearest and abs(rows - nearest) <= ROUNDING * n else math.ceil(rows)


def _require_both_classes(r: Ranking, name: str) -> Ranking:
    if r.positives == 0 or r.negatives == 0:
        kind = "negative" if r.positives == 0 else "positive"
        raise Undefined(f"{name} is undefined: all rows are {kind}, and it compares positive with negative rows.")
    return r


@metric("ranking", "detection", better="higher", prepared=True, bounded=True)
def auroc(u: ArrayLike | Ranking, positive: ArrayLike | None = None) -> float:
    """Chance that a positive row has a higher u than a negative one, ties counted half.

    AUROC = (pairs with the positive higher + ½·tied pairs) / all pairs, counted in whole numbers.
    Source: Galil, Dabbah and El-Yaniv 2023, §2.1, equation (1).
    """
    higher, equal, lower = _require_both_classes(ranking(u, positive), "AUROC").pairs
    return (2 * higher + equal) / (2 * (higher + equal + lower))


@metric("ranking", "detection", better="higher", prepared=True, splits_ties=True)
def aupr(u: ArrayLike | Ranking, positive: ArrayLike | None = None) -> float:
    """Average precision of flagging the rows of highest u: precision at each threshold, weighted by the recall it adds.

    AP = Σ_t (R_t − R_{t−1})·P_t over the distinct values of u from the highest down; no interpolation.
    """
    r = ranking(u, positive)
    if r.positives == 0:
        raise Undefined("AUPR is undefined: there is no positive row to find.")
    groups = np.flatnonzero(r.inside)  # recall grows only where there are positive rows
    hits = r.inside[groups]
    flagged, recalled = r.n - (r.ends[groups] - r.sizes[groups]), r.positives - (r.hits[groups] - hits)
    return float(np.sum(hits * (recalled / flagged)) / r.positives)


@metric("ranking", "detection", better="lower", prepared=True, values={"tpr": (0.95,)})
def fpr_at_tpr(u: ArrayLike | Ranking, positive: ArrayLike | None = None, tpr: float = 0.95) -> float:
    """Share of negative rows that are flagged by the highest threshold that flags a share `tpr` of the positive ones.

    Flagged means u ≥ t with t one of the values of u; t is the highest that reaches the TPR, nothing is interpolated.
    """
    r = _require_both_classes(ranking(u, positive), "FPR at TPR")
    unflagged = r.positives - row_count(tpr, r.positives, "tpr")
    group = int(np.searchsorted(r.hits, unflagged, side="right"))  # groups below the threshold
    below = int(r.ends[group - 1] - r.hits[group - 1]) if group else 0
    return (r.negatives - below) / r.negatives


@metric("ranking", "detection", better="higher", prepared=True)
def gamma(u: ArrayLike | Ranking, wrong: ArrayLike | None = None) -> float:
    """Goodman and Kruskal's rank correlation of u and being wrong: +1 when wrong rows always have the higher u.

    γ = (c − d)/(c + d) over the c pairs in right order and the d pairs in wrong order; pairs tied in u do not count,
    so that γ = 2·AUROC − 1 only without ties. Source: Galil et al. 2023, §2 and appendix D.
    """
    concordant, _, discordant = ranking(u, wrong, "wrong").pairs
    if concordant + discordant == 0:
        raise Undefined("γ is undefined: no wrong row differs in u from a right one.")
    return (concordant - discordant) / (concordant + discordant)
