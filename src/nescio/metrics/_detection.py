"""Thresholds set on in-distribution validation rows: shares of rows accepted and rejected."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from nescio.errors import BadInput
from nescio.metrics._ranking import as_scores
from nescio.metrics._spec import metric


@metric("other", better="neither")
def threshold(u_val: ArrayLike, level: float = 0.95) -> float:
    """The interpolated `level` quantile of u on in-distribution validation rows.

    Source: Belghazi and Lopez-Paz 2021 (UIMNET), §5.
    """
    scores = as_scores(u_val, "u_val")
    share = _number(level)
    if not 0 <= share <= 1:
        raise BadInput(f"level is {level}; it must be a number from 0 to 1.")
    return float(np.quantile(scores, share))


@metric("threshold", "acceptance", better="higher")
def in_as_in(u: ArrayLike, threshold: float) -> float:
    """Share of in-distribution rows that are accepted as such: u ≤ threshold.

    Source: Belghazi and Lopez-Paz 2021 (UIMNET), §5.
    """
    return float(np.mean(as_scores(u) <= _finite(threshold)))


@metric("threshold", "rejection", better="higher")
def out_as_out(u: ArrayLike, threshold: float) -> float:
    """Share of out-of-distribution rows that are rejected: u > threshold.

    Source: Belghazi and Lopez-Paz 2021 (UIMNET), §5.
    """
    return float(np.mean(as_scores(u) > _finite(threshold)))


def _finite(threshold: float) -> float:
    value = _number(threshold)
    if not math.isfinite(value):
        raise BadInput(f"threshold is {threshold}; it must be a finite number.")
    return value


def _number(value: Any) -> float:
    """NaN if the value is not a single number."""
    try:
        return math.nan if isinstance(value, str | bytes) or np.ndim(value) else float(value)
    except (ValueError, TypeError, OverflowError):
        return math.nan
