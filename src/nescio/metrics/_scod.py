"""Selective classification with out-of-distribution rows (SCOD): accepting such a row is a failure.

The share π of out-of-distribution rows is given, not that of the test set. With n in-distribution rows and m
out-of-distribution rows, the former count m·(1 − π) times and the latter n·π times, in lowest terms. Copies are tied.
At π = m/(n + m) every row counts once, and the values are those of all rows together. Source: Xia & Bouganis 2022.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.metrics._ranking import Ranking, as_classes, as_scores, as_share, ranking
from nescio.metrics._selective import augrc, aurc
from nescio.metrics._spec import metric

DEFAULT_OOD_SHARE = 0.5  # default share of out-of-distribution rows
ABSTENTION_PRICES = tuple(i / 25 for i in range(1, 26))  # costs of an abstention in cost curves
MOST_ROWS = 1 << 62  # maximum number of rows with copies


class Mixture:
    """In-distribution and out-of-distribution rows in order of u, mixed at a given share of the latter.

    u (n,), wrong (n,), u_out (m,)
    """

    def __init__(self, u: ArrayLike, wrong: ArrayLike, u_out: ArrayLike, share: float = DEFAULT_OOD_SHARE) -> None:
        u_id, u_ood, self._wrong = as_scores(u), as_scores(u_out, "u_out"), as_classes(wrong, "wrong")
        if len(u_id) != len(self._wrong):
            raise BadInput(f"u has {len(u_id)} rows, wrong has {len(self._wrong)}: they must describe the same rows.")
        share_fraction = as_share(share, "share")
        if not 0 < share_fraction < 1:
            raise BadInput(f"share is {share}; a mixture needs rows of both kinds, a share above 0 and below 1.")
        self.n, self.m = len(u_id), len(u_ood)
        self._in_copies, self._out_copies = (
            self.m * (1 - share_fraction) / (self.n * share_fraction)
        ).as_integer_ratio()
        if self.n * self._in_copies + self.m * self._out_copies >= MOST_ROWS:
            raise BadInput(f"share is {share}; this number of rows needs fewer digits, such as {float(share):.2f}.")
        self._values, group = np.unique(np.concatenate([u_id, u_ood]), return_inverse=True)
        self._inside, self._outside = group[: self.n], group[self.n :]

    def ranking(self, counts: ArrayLike | None = None) -> Ranking:
        """Right predictions against failures; `counts` (n + m,) are the multiplicities of the rows, 1 by default."""
        counts = np.ones(self.n + self.m) if counts is None else np.asarray(counts)
        in_counts, others = counts[: self.n], counts[self.n :]
        outside = self._count(self._outside, others) * self._out_copies
        rows = self._count(self._inside, in_counts) * self._in_copies
        errors = self._count(self._inside, in_counts * self._wrong) * self._in_copies
        return Ranking.from_groups(self._values, rows + outside, errors + outside)

    def _count(self, groups: Array, counts: Array) -> Array:
        return np.bincount(groups, counts, len(self._values)).astype(np.int64)


def cost_curve(
    u: ArrayLike | Ranking, wrong: ArrayLike | None = None, prices: ArrayLike = ABSTENTION_PRICES
) -> tuple[Array, Array]:
    """(prices, costs): cost per row at the best threshold, for every price of abstaining.

    An accepted failure costs 1, a rejected row costs d:
    min over thresholds of P(accepted and a failure) + d·P(rejected). Chow 1970. Accepting all or nothing costs the
    smaller of d and the share of failures.
    """
    r = ranking(u, wrong, "wrong")
    prices = np.asarray(prices, np.float64)
    if prices.ndim != 1 or not ((prices >= 0) & (prices <= 1)).all():
        raise BadInput("prices must be numbers from 0 to 1: the cost of abstaining, if a failure costs 1.")
    failed, withheld = np.append(0, r.hits) / r.n, 1 - np.append(0, r.ends) / r.n
    return prices, np.array([float((failed + price * withheld).min()) for price in prices])


def _cost(r: Ranking, price: float = 0.1) -> float:
    return float(cost_curve(r, prices=[float(as_share(price, "price"))])[1][0])


@metric("mixture", better="lower", of_ranking=aurc)
def scod_aurc(u: ArrayLike, wrong: ArrayLike, u_out: ArrayLike, share: float = DEFAULT_OOD_SHARE) -> float:
    """AURC with out-of-distribution rows as failures, at a given share of them.

    (1/N)·Σᵢ Eᵢ/i over the N rows of the mixture, E counting wrong predictions and out-of-distribution rows.
    """
    return aurc(Mixture(u, wrong, u_out, share).ranking())


@metric("mixture", better="lower", of_ranking=augrc)
def scod_augrc(u: ArrayLike, wrong: ArrayLike, u_out: ArrayLike, share: float = DEFAULT_OOD_SHARE) -> float:
    """AUGRC with out-of-distribution rows as failures, at a given share of them.

    (1/N)·Σᵢ Eᵢ/N over the N rows of the mixture, E counting wrong predictions and out-of-distribution rows.
    """
    return augrc(Mixture(u, wrong, u_out, share).ranking())


@metric("mixture", better="lower", values={"price": (0.1, 0.3)}, of_ranking=_cost)
def scod_cost(
    u: ArrayLike, wrong: ArrayLike, u_out: ArrayLike, price: float = 0.1, share: float = DEFAULT_OOD_SHARE
) -> float:
    """Cost per row at the best threshold: 1 for an accepted failure, `price` for a rejected row.

    min over thresholds of P(accepted and a failure) + price·P(rejected), at a given share of out-of-distribution rows.
    """
    return _cost(Mixture(u, wrong, u_out, share).ranking(), price)
