"""Selective prediction: errors among accepted rows, the most confident first.

Letters: n rows, e of them wrong, r = e/n; Eᵢ is the expected number of errors among the i most confident rows. Rows of
equal u are in random order. Inside a tie group Eᵢ therefore grows linearly, and the order of the input has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.metrics._ranking import CACHED, Ranking, as_share, ranking, row_count
from nescio.metrics._spec import metric

TENTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@metric("curve", better="neither", prepared=True)
def risk_coverage(u: ArrayLike | Ranking, wrong: ArrayLike | None = None) -> tuple[Array, Array]:
    """Share of errors among accepted rows at every coverage, the most confident first.

    (coverage, risk), both (n,): i/n and Eᵢ/i for i = 1 … n. Source: Galil et al. 2023, §2.
    """
    r = ranking(u, wrong, "wrong")
    accepted = np.arange(1, r.n + 1)
    tied = len(r.ends) < r.n
    errors = np.interp(accepted, np.append(0, r.ends), np.append(0, r.hits)) if tied else r.hits
    return accepted / r.n, errors / accepted


@metric("ranking", better="lower", prepared=True, bounded=True)
def aurc(u: ArrayLike | Ranking, wrong: ArrayLike | None = None) -> float:
    """Area under the risk–coverage curve: the mean selective risk over all coverages.

    AURC = (1/n)·Σᵢ Eᵢ/i, a mean over steps and no trapezoid. Source: Galil et al. 2023, §2 (Geifman et al. 2018).
    """
    r = ranking(u, wrong, "wrong")
    return r.total_share / r.n


@metric("ranking", better="lower", prepared=True)
def e_aurc(u: ArrayLike | Ranking, wrong: ArrayLike | None = None) -> float:
    """AURC beyond that of the best possible order of the same rows.

    E-AURC = AURC − AURC*, AURC* = (1/n)·Σ_{i>n−e} (i − (n − e))/i, the value of an order with every error last; its
    limit for many rows is r + (1 − r)·ln(1 − r). The r²/2 of Galil et al. 2023, appendix C, is not that area.
    """
    r = ranking(u, wrong, "wrong")
    return (r.total_share - r.best_total_share) / r.n


@metric("ranking", better="lower", prepared=True)
def naurc(u: ArrayLike | Ranking, wrong: ArrayLike | None = None) -> float:
    """AURC, rescaled to 0 for the best possible order and 1 for a random one, to compare models of any accuracy.

    NAURC = (AURC − AURC*)/(r − AURC*) = 1 − rAULC. Source: Cattelan & Silva 2024.
    """
    r = ranking(u, wrong, "wrong")
    _require_both_outcomes(r, "NAURC")
    return (r.total_share - r.best_total_share) / (r.positives - r.best_total_share)


@metric("ranking", better="lower", prepared=True, bounded=True)
def augrc(u: ArrayLike | Ranking, wrong: ArrayLike | None = None) -> float:
    """Area under the generalised risk–coverage curve: the mean share of all rows that are kept and wrong.

    AUGRC = (1/n)·Σᵢ Eᵢ/n, counted in whole numbers. Source: Traub et al. 2024.
    """
    r = ranking(u, wrong, "wrong")
    return float(r.total_hits / r.n**2)


@metric("ranking", better="lower", prepared=True, values={"coverage": (0.8,)})
def selective_risk(u: ArrayLike | Ranking, wrong: ArrayLike | None = None, coverage: float = 0.8) -> float:
    """Share of errors among the most confident `coverage` of the rows.

    Eᵢ/i at i = ceil(coverage·n), with the coverage read as its decimal text. Source: Galil et al. 2023, §2.
    """
    r = ranking(u, wrong, "wrong")
    accepted = row_count(coverage, r.n, "coverage")
    if accepted == 0:
        raise BadInput("coverage is 0, which accepts no row; give a share above 0.")
    group = int(np.searchsorted(r.ends, accepted))
    size, errors, end = int(r.sizes[group]), int(r.inside[group]), int(r.ends[group])
    before, into = int(r.hits[group]) - errors, accepted - (end - size)
    return (before * size + into * errors) / (size * accepted)


@metric("ranking", better="lower", prepared=True)
def aurc_over(u: ArrayLike | Ranking, wrong: ArrayLike | None = None, coverages: Iterable[float] = TENTHS) -> float:
    """Mean selective risk over the coverages that matter (default: every tenth).

    AURC_C = (1/|C|)·Σ_{c∈C} selective risk at c. Source: Galil et al. 2023, §2.
    """
    r = ranking(u, wrong, "wrong")
    try:
        every = list(coverages)
    except TypeError:
        raise BadInput(f"coverages is {coverages}; give several shares, such as [0.5, 0.8].") from None
    risks = [selective_risk(r, coverage=coverage) for coverage in every]
    if not risks:
        raise BadInput("coverages is empty; give at least one share above 0.")
    return sum(risks) / len(risks)


@metric("ranking", better="higher", prepared=True, values={"accuracy": (0.9, 0.95, 0.99)}, splits_ties=True)
def sac(u: ArrayLike | Ranking, wrong: ArrayLike | None = None, accuracy: float = 0.95) -> float:
    """Largest coverage with this accuracy of accepted rows (coverage for a selective accuracy constraint).

    max of i/n over ends of tie groups, the only coverages that a threshold can reach, with 1 − Eᵢ/i ≥ accuracy; the
    accuracy is read as its decimal text and compared in whole numbers. Never reached is 0.
    Source: Galil et al. 2023, §2.
    """
    r = ranking(u, wrong, "wrong")
    required = as_share(accuracy, "accuracy")
    rounding = 1e-15 * r.n  # floats only leave out what is clearly short; whole numbers decide
    for block in reversed(blocks(len(r.ends), CACHED)):
        accepted, right = r.ends[block], r.ends[block] - r.hits[block]
        for group in np.flatnonzero(right - float(required) * accepted >= -rounding)[::-1]:
            if int(right[group]) * required.denominator >= required.numerator * int(accepted[group]):
                return int(accepted[group]) / r.n
    return 0.0


@metric("ranking", better="higher", prepared=True)
def aulc(u: ArrayLike | Ranking, wrong: ArrayLike | None = None) -> float:
    """Area under the lift curve: mean ratio of selective accuracy to overall accuracy, minus 1.

    AULC = (1/n)·Σᵢ (1 − Eᵢ/i)/(1 − r) − 1 = (r − AURC)/(1 − r). Source: Postels et al. 2022, §4.
    """
    r = ranking(u, wrong, "wrong")
    if r.negatives == 0:
        raise Undefined(
            "AULC is undefined: no prediction is right, and lift is relative to the share of right predictions."
        )
    return (r.positives - r.total_share) / r.negatives


@metric("ranking", better="higher", prepared=True)
def raulc(u: ArrayLike | Ranking, wrong: ArrayLike | None = None) -> float:
    """Area under the lift curve relative to that of the best possible order: 1 is perfect, 0 is chance.

    rAULC = AULC/AULC* = (r − AURC)/(r − AURC*). Source: Postels et al. 2022, §4.
    """
    r = ranking(u, wrong, "wrong")
    _require_both_outcomes(r, "rAULC")
    return (r.positives - r.total_share) / (r.positives - r.best_total_share)


def _require_both_outcomes(r: Ranking, name: str) -> None:
    if r.positives == 0 or r.negatives == 0:
        every = "right" if r.positives == 0 else "wrong"
        raise Undefined(f"{name} is undefined: all predictions are {every}, so no order is better than another.")
