"""Cross-fitted scores: each row is scored by a measure that was fitted without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.predictions import Predictions

FOLDS = 5  # of rows that are left out together, if a measure has no closed form for one row
Score = Callable[[Predictions], Array]
Fit = Callable[[Predictions], Score]


@runtime_checkable
class LeavesOneOut(Protocol):
    """A fitted measure with a closed form for the scores of its reference rows, each without itself."""

    def leave_one_out(self, rows: Predictions) -> Array: ...


def cross_fitted(fit: Fit, rows: Predictions) -> Array:
    """Scores of the rows that a measure is fitted on, each by the other rows.

    A density is higher at rows that it was fitted on, so a threshold from their own scores accepts too few new rows. A
    density fitted on half of the rows is lower everywhere. Therefore each row is left out alone if the measure has a
    closed form for it, else a fifth of the rows at a time.
    """
    u = cross_fitted_all({"": fit}, rows)[""]
    if isinstance(u, ValueError):
        raise u
    return u


def cross_fitted_all(fits: Mapping[str, Fit], rows: Predictions) -> dict[str, Array | ValueError]:
    """Cross-fitted scores of several measures, which share the work on each fold; an error if a measure has none."""
    u: dict[str, Array | ValueError] = {}
    by_folds: dict[str, Array] = {}
    for name, fit in fits.items():
        fitted = fit(rows)
        if isinstance(fitted, LeavesOneOut):
            u[name] = _scores_or_error(fitted.leave_one_out, rows)
        else:
            by_folds[name] = np.empty(len(rows))
    folds = min(FOLDS, len(rows)) if by_folds else 0
    for fold in range(folds):
        positions = np.arange(fold, len(rows), folds)
        left_out, others = rows.take(positions), rows.take(np.setdiff1d(np.arange(len(rows)), positions))
        for name in [name for name in by_folds if name not in u]:
            values = _scores_or_error(partial(_fit_and_score, fits[name], others), left_out)
            if isinstance(values, ValueError):
                u[name] = values
            else:
                by_folds[name][positions] = values
    return {**by_folds, **u}


def _fit_and_score(fit: Fit, others: Predictions, left_out: Predictions) -> Array:
    return fit(others)(left_out)


def _scores_or_error(score: Score, rows: Predictions) -> Array | ValueError:
    try:
        return score(rows)
    except (Undefined, BadInput) as reason:
        return reason
