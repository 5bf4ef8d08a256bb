"""Reliability without bins: isotonic regression of correctness on confidence, and its decomposition of the Brier score.

CORP: Dimitriadis, Gneiting & Jordan, Stable reliability diagrams for probabilistic classifiers, PNAS 2021.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.metrics._calibration import ece, require_confidence, row_blocks
from nescio.metrics._outcomes import Outcomes, as_whole, checked, outcomes, top_outcomes
from nescio.metrics._ranking import Ranking
from nescio.metrics._spec import metric

LEVEL, RESAMPLES = 0.9, 200  # level of a diagram's band, and number of its resamples
RUNS = 12  # number of vectorised passes that pool falling runs


@dataclass(frozen=True, eq=False)
class CorpCurve:
    """One entry per distinct confidence, rising.

    confidence  (g,)  p, as claimed
    count       (g,)  rows
    share       (g,)  of these rows that are right
    calibrated  (g,)  q, calibrated confidence: the rising function of p nearest to the shares

    With y = 1 for a right prediction and S the mean of (· − y)², S(p) = mcb − dsc + unc.
    """

    confidence: Array
    count: Array
    share: Array

    @cached_property
    def calibrated(self) -> Array:
        return isotonic(self.share, self.count)

    @property
    def mcb(self) -> float:
        """Miscalibration S(p) − S(q) ≥ 0."""
        p, q, y = self.confidence, self.calibrated, self.share
        return float(np.maximum(self._mean((p - q) * (p + q - 2 * y)), 0))

    @property
    def dsc(self) -> float:
        """Discrimination S(ȳ) − S(q) ≥ 0."""
        return self._mean((self.calibrated - self._mean(self.share)) ** 2)

    @property
    def unc(self) -> float:
        """Uncertainty S(ȳ) = ȳ·(1 − ȳ)."""
        mean = self._mean(self.share)
        return mean * (1 - mean)

    def _mean(self, values: Array) -> float:
        return float(
            (values * self.count).sum() / self.count.sum()
        )  # without BLAS, whose threads would cost more than this sum


def isotonic(values: Array, weights: Array) -> Array:
    """The rising sequence nearest to `values` by weighted squares: pool adjacent violators.

    Without scipy.optimize, whose import takes longer than a small file. Falling runs are pooled together a few times,
    which leaves little to the pass from left to right.
    """
    masses = np.asarray(weights, float)
    pools = np.stack([np.asarray(values, float) * masses, masses, np.ones(len(masses))])  # sums, masses, sizes
    for _ in range(RUNS):
        means = pools[0] / pools[1]
        pools = np.add.reduceat(pools, np.flatnonzero(np.append(True, means[1:] > means[:-1])), axis=1)
    kept: list[tuple[float, float, float]] = []
    for total, mass, size in pools.T.tolist():
        while kept and kept[-1][0] * mass >= total * kept[-1][1]:  # the previous pool is not lower: merge it
            before = kept.pop()
            total, mass, size = total + before[0], mass + before[1], size + before[2]
        kept.append((total, mass, size))
    sums, masses, sizes = np.array(kept).T
    return np.repeat(sums / masses, sizes.astype(int))


def corp(confidence: ArrayLike, right: ArrayLike) -> CorpCurve:
    """The bin-free reliability diagram of confidences (n,) and truth values (n,)."""
    groups = Ranking(confidence, right)
    return CorpCurve(groups.values, groups.sizes, groups.inside / groups.sizes)


def corp_curve(probs: ArrayLike | Outcomes, labels: ArrayLike | None = None) -> CorpCurve:
    """The bin-free reliability diagram: accuracy against confidence."""
    return _corp_of_outcomes(require_confidence(outcomes(probs, labels)))


@lru_cache(maxsize=1)  # three successive metrics use one curve
def _corp_of_outcomes(a: Outcomes) -> CorpCurve:
    return corp(a.confidence, a.correct)


def corp_band(
    curve: CorpCurve,
    entries: Array | slice = slice(None),
    kind: Literal["consistency", "confidence"] = "consistency",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Array, Array]:
    """(low, high) of a diagram, at the entries `at`, pointwise.

    consistency  range of the diagram if every confidence were right, around the diagonal
    confidence   range of the diagram if the calibrated confidences were right

    Labels are drawn again, confidences stay. Dimitriadis, Gneiting & Jordan 2021, uncertainty quantification.
    """
    if kind not in ("consistency", "confidence"):
        raise BadInput(f"kind is {kind!r}; it must be 'consistency' or 'confidence'.")
    if not 0 < level < 1:
        raise BadInput(f"level is {level}; it must be between 0 and 1, such as 0.9.")
    rng = np.random.default_rng(seed)
    chance = np.clip(curve.confidence if kind == "consistency" else curve.calibrated, 0, 1)
    drawn = np.stack(
        [isotonic(rng.binomial(curve.count, chance) / curve.count, curve.count)[entries] for _ in range(resamples)]
    )
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


# ---- metrics


@metric("predictions", better="lower", prepared=True, bias="calibrated")
def mcb(probs: ArrayLike | Outcomes, labels: ArrayLike | None = None) -> float:
    """Miscalibration without bins: excess Brier score of the confidence over its calibrated version.

    MCB = S(p) − S(q), S the mean of (· − right)² and q the isotonic regression of being right on the confidence p.
    MCB − DSC + UNC is that Brier score.
    """
    return corp_curve(probs, labels).mcb


@metric("predictions", better="higher", prepared=True, bias="positive")
def dsc(probs: ArrayLike | Outcomes, labels: ArrayLike | None = None) -> float:
    """Discrimination: reduction of the Brier score below the base rate by the calibrated confidence.

    DSC = S(ȳ) − S(q), with the letters of `mcb`.
    """
    return corp_curve(probs, labels).dsc


@metric("predictions", better="neither", prepared=True)
def unc(probs: ArrayLike | Outcomes, labels: ArrayLike | None = None) -> float:
    """Uncertainty of being right, whatever the confidence: ȳ·(1 − ȳ) of the accuracy ȳ.

    UNC = S(ȳ), with the letters of `mcb`.
    """
    return corp_curve(probs, labels).unc


@metric("predictions", better="lower", classwise=True, bias="calibrated")
def classwise_mcb(probs: ArrayLike, labels: ArrayLike) -> float:
    """Mean over all classes of the miscalibration (MCB) of that class's probability.

    (1/c) Σ_j MCB of p_j against [label is j].
    """
    probs, labels = checked(probs, labels)
    return float(np.mean([corp(column, labels == label).mcb for label, column in enumerate(probs.T)]))


def top_k(parts: Iterable[tuple[Array, Array]], k: int) -> Outcomes:
    """Outcomes of the k most probable classes, from row blocks (probs, labels): right if the label is among them, with
    their summed probability as confidence."""
    k = as_whole(k, "k", 1)
    right, confidence = [], []
    for probs, labels in parts:
        c = probs.shape[1]
        if k > c:
            raise Undefined(f"There are {c} classes, so there is no top {k}.")
        right.append(outcomes(probs, labels).rank < k)
        top = np.partition(probs, c - k, axis=1)[:, c - k :]
        confidence.append(np.minimum(top.sum(1, dtype=np.float64), 1.0))
    return top_outcomes(np.concatenate(right), np.concatenate(confidence))


@metric("predictions", better="lower", values={"k": (5,)}, of_top=ece, bias="calibrated")
def top_k_ece(probs: ArrayLike, labels: ArrayLike, k: int = 5) -> float:
    """ECE of the k most probable classes together: top-k accuracy against their summed probability.

    `ece` with the bins of confidence Σ_{j ≤ k} p_(j).
    """
    return ece(top_k(row_blocks(*checked(probs, labels)), k))


@metric("predictions", better="lower", values={"k": (5,)}, of_top=mcb, bias="calibrated")
def top_k_mcb(probs: ArrayLike, labels: ArrayLike, k: int = 5) -> float:
    """Miscalibration (MCB) of the k most probable classes together, as in `top_k_ece`."""
    return mcb(top_k(row_blocks(*checked(probs, labels)), k))
