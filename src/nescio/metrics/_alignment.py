"""Agreement of two numbers per row: u and an error, u and human votes, u of an image and of its crop."""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.metrics._outcomes import as_array
from nescio.metrics._ranking import as_scores
from nescio.metrics._spec import metric

ROUNDING = 1e-12  # entropies of votes that are nearer than this are equal; rounding moves them by less than 1e-14


@metric("pairs", better="higher")
def kendall(a: ArrayLike, b: ArrayLike) -> float:
    """Rank correlation by pairs of rows: pairs in the same order minus pairs in opposite order, normalised.

    τ-b = (c − d) / √((pairs not tied in a)·(pairs not tied in b)), with c concordant and d discordant pairs.
    """
    a, b = _checked_pair(a, b, "Kendall's τ")
    order = np.lexsort((b, a))
    place_a, place_b = (np.unique(x, return_inverse=True)[1][order] for x in (a, b))
    tied_a, tied_b = _tied_pairs(place_a), _tied_pairs(place_b)
    joint = _tied_pairs(place_a * len(a) + place_b)
    pairs = len(a) * (len(a) - 1) // 2
    balance = pairs - tied_a - tied_b + joint - 2 * _inversions(place_b)
    return balance / sqrt((pairs - tied_a) * (pairs - tied_b))


@metric("pairs", better="higher")
def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Linear correlation of the ranks of a and b, tied rows sharing the mean of their ranks.

    ρ = Σ r_a·r_b / √(Σ r_a²·Σ r_b²) over centred ranks.
    """
    a, b = _checked_pair(a, b, "Spearman's ρ")
    r, s = ranks(a), ranks(b)
    return float(np.clip(np.dot(r, s) / np.sqrt(np.dot(r, r) * np.dot(s, s)), -1, 1))


@metric("votes", better="higher")
def human_alignment(u: ArrayLike, annotations: ArrayLike) -> float:
    """Spearman's ρ between u and the disagreement of human votes on a row.

    Disagreement is the entropy −Σ_c p_c·log p_c (nats) of p = votes / their sum. Equal entropies tie, also those of
    different votes: (1, 1, 2, 6) and (0, 3, 3, 4). Rows without votes are left out. Source: Kirchhof et al. 2023 (URL),
    §4.6.
    """
    votes, u = _votes(annotations), as_scores(u)
    if len(u) != len(votes):
        raise BadInput(f"u has {len(u)} rows, annotations has {len(votes)}: they must describe the same rows.")
    counted = has_votes(votes)
    if not counted.any():
        raise Undefined("No row has human votes.")
    return spearman(u[counted], vote_entropy(votes[counted]))


@metric("pairs", "crops", better="higher")
def crop_agreement(u: ArrayLike, u_cropped: ArrayLike) -> float:
    """Share of images whose cropped version has a strictly higher u; ties count as failures.

    (1/n)·Σᵢ [u_cropped,i > u_i]. Source: Kirchhof et al. 2023 (URL), §4.6.
    """
    a, b = as_scores(u), as_scores(u_cropped, "u_cropped")
    if len(a) != len(b):
        raise BadInput(f"u has {len(a)} rows, u_cropped has {len(b)}: they must describe the same images.")
    return float(np.mean(b > a))


def has_votes(annotations: ArrayLike) -> Array:
    """(n,) whether a row of the votes (n, c) has any."""
    return np.asarray(_votes(annotations).any(1))


def vote_entropy(annotations: ArrayLike) -> Array:
    """(n,) entropy in nats of the normalised votes (n, c) of every row; entropies equal up to rounding are equal."""
    votes = np.sort(_votes(annotations), axis=1)
    total = votes.sum(1, keepdims=True)
    if not total.all():
        raise BadInput(f"annotations has no votes in row {int(np.flatnonzero(total == 0)[0])}.")
    p = votes / total
    values, group = np.unique(-(p * np.log(np.where(p > 0, p, 1))).sum(1), return_inverse=True)
    starts_group = np.append(True, np.diff(values) > ROUNDING)  # gaps, not rounded values: no two neighbours are split
    return np.asarray(values[starts_group][np.cumsum(starts_group) - 1][group])


def _votes(annotations: ArrayLike) -> Array:
    """The votes (n, c) as float64, all of them finite and none negative."""
    votes = as_array(annotations, "annotations")
    if votes.ndim != 2 or votes.dtype.kind not in "fiub":
        raise BadInput(
            f"annotations has shape {votes.shape} of {votes.dtype}; it must be (n, classes), votes as numbers."
        )
    votes = votes.astype(np.float64)
    if not np.isfinite(votes).all() or (votes < 0).any():
        row = int(np.flatnonzero(~np.isfinite(votes).all(1) | (votes < 0).any(1))[0])
        raise BadInput(f"annotations has a vote that is negative or not finite in row {row}.")
    return votes


def _checked_pair(a: ArrayLike, b: ArrayLike, what: str) -> tuple[Array, Array]:
    a, b = as_scores(a, "the first argument"), as_scores(b, "the second argument")
    if len(a) != len(b):
        raise BadInput(f"The two arguments have {len(a)} and {len(b)} rows: they must describe the same rows.")
    for position, values in (("first", a), ("second", b)):
        if values.min() == values.max():
            raise Undefined(f"{what} is undefined: the {position} argument has the same value in every row.")
    return a, b


def ranks(values: Array) -> Array:
    """(n,) ranks less their mean, tied rows sharing the mean of their ranks."""
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2 - (len(values) + 1) / 2)[group])


def _tied_pairs(places: Array) -> int:
    counts = np.unique(places, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def _inversions(x: Array) -> int:
    """Number of pairs in falling order, for whole numbers of at least 0, in O(n·log² n).

    Bit by bit from the highest: among rows that share all higher bits, every 1 before a 0 is such a pair.
    """
    total = 0
    for bit in reversed(range(int(x.max()).bit_length())):
        higher, one = x >> (bit + 1), (x >> bit) & 1
        before = np.cumsum(one) - one
        total += int((before - before[np.searchsorted(higher, higher)])[one == 0].sum())
        x = x[np.argsort(x >> bit, kind="stable")]
    return total
