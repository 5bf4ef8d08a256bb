"""The measures of a scorecard: which ones apply, fitted on reference rows, cross-fitted on validation rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from nescio import measures
from nescio.arrays.types import Array
from nescio.errors import BadInput, FaultyPlugin, Undefined
from nescio.measures import Measure
from nescio.metrics import spearman
from nescio.predictions import Predictions
from nescio.registry import is_plugin_code, source_file

FOLDS = 5  # folds of cross-fitting, if a measure has no closed form for one row
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
        left_out, remaining_rows = rows.take(positions), rows.take(np.setdiff1d(np.arange(len(rows)), positions))
        for name in [name for name in by_folds if name not in u]:
            values = _scores_or_error(partial(_fit_and_score, fits[name], remaining_rows), left_out)
            if isinstance(values, ValueError):
                u[name] = values
            else:
                by_folds[name][positions] = values
    return {**by_folds, **u}


def _fit_and_score(fit: Fit, remaining_rows: Predictions, left_out: Predictions) -> Array:
    return fit(remaining_rows)(left_out)


def _scores_or_error(score: Score, rows: Predictions) -> Array | ValueError:
    try:
        return score(rows)
    except (Undefined, BadInput) as reason:
        return reason


MIN_CORRELATION = 0.9999  # minimum Spearman correlation of equivalent measures, lowered by rounding
LARGE = 20_000_000  # number of probabilities above which slow measures take longer than all others together


class MeasureScores:
    """Measures as functions of predictions.

    train, val  reference rows of fitted measures: `train`, else `val`; tuned measures are fitted on `val`
    only        names of the measures; None: all that apply
    slow        include slow measures of large predictions
    omit        called with (measure, reason) for every measure that does not apply
    """

    def __init__(
        self,
        train: Predictions | None,
        val: Predictions | None,
        only: Sequence[str] | None,
        slow: bool,
        omit: Callable[[str, ValueError], None],
    ) -> None:
        self.val, self.only, self.slow, self._omit = val, only, slow, omit
        self.reference = train if train is not None else val
        self.has_train = train is not None  # required by measures that train for seconds
        self._fitted: dict[str, Score] = {}
        self._fits_on_val: dict[str, Fit] = {}  # measures whose reference rows are the validation rows
        self._cross_fitted: Mapping[str, Array | ValueError] = {}

    def applicable(self, rows: Predictions, raw: bool) -> Iterator[tuple[str, Score]]:
        """Yield (name, score) of every measure; for calibrated predictions, only measures of logits."""
        for measure in measures.registry.parts():
            name = measure.name
            if raw and measure.equivalent_to and self.only is None:
                self._omit(name, self._alias_reason(measure, measure.equivalent_to, rows))
            selected = measure.equivalent_to is None if self.only is None else name in self.only
            if not selected or (not raw and (measure.kind != "plain" or "logits" not in measure.needs)):
                continue
            if reason := self._omission_reason(measure, rows, raw):
                self._omit(name, Undefined(reason))
            elif measure.kind == "plain":
                yield name, measure.compute
            elif measure.kind in ("fitted", "tuned") and (fitted := self._fit(measure, rows)) is not None:
                yield name, partial(measure.checked, fitted)
        for name in measures.score_names(rows) if raw else ():
            if self.only is None or name in self.only:
                yield name, measures.find_measure(name, rows).function

    def _alias_reason(self, measure: Measure, alias_of: str, rows: Predictions) -> ValueError:
        """Reason for the omission of an alias; an error if a plug-in's alias orders rows differently."""
        reason = Undefined(f"Equivalent to {alias_of}; reported as it.")
        if not is_plugin_code(measure.function) or measure.kind != "plain":
            return reason
        alias = f"The measure {measure.name} ({source_file(measure.function)}) is declared equivalent to {alias_of}"
        if alias_of not in measures.registry:
            return FaultyPlugin(f"{alias}, and there is no measure of this name.")
        try:
            correlation = spearman(measure.compute(rows), measures.uncertainty(alias_of, rows))
        except Undefined:
            return reason
        except FaultyPlugin as fault:
            return fault
        if correlation >= MIN_CORRELATION:
            return reason
        return FaultyPlugin(f"{alias}, but orders rows differently: Spearman's correlation is {correlation:.3f}.")

    def _omission_reason(self, measure: Measure, rows: Predictions, raw: bool) -> str | None:
        if measure.slow and not (self.slow or self.has_train) and self.only is None and is_large(rows):
            return "Skipped for large predictions, as it doubles the run time: ask for all measures, or give train."
        if measure.kind == "plain" and rows.draws == 1 and measure.needs_draws:
            return "It needs several draws per row, and the model gives one."
        if measure.trains and not self.has_train and self.only is None:
            return "It trains for some seconds: give train."
        if measure.kind == "ensemble" and raw:
            return "It compares several networks, but a predictions file contains one."
        return None

    def _fit(self, measure: Measure, rows: Predictions) -> Score | None:
        """The fitted measure; if it cannot be fitted, add a reason and return None."""
        if measure.name not in self._fitted:
            reference = self.val if measure.kind == "tuned" else self.reference
            try:
                measure.check(rows, but=("labels",))
                if reference is None and measure.kind == "tuned":
                    raise Undefined("It is fitted on rows that the network was not trained on: give val.")
                if reference is None:
                    raise Undefined("It is fitted on reference rows: give train or val.")
                measure.check(reference)
                self._fitted[measure.name] = measure.fit(reference)
                if reference is self.val:
                    self._fits_on_val[measure.name] = measure.fit_checked
            except (Undefined, BadInput) as reason:
                self._omit(measure.name, reason)
                return None
        return self._fitted[measure.name]

    def of_validation(self, measure: str, score: Score, val: Predictions) -> Array:
        """Scores of the validation rows for the rejection threshold, cross-fitted if the measure is fitted on them."""
        if measure not in self._fits_on_val or self.val is None:
            return score(val)
        if measures.registry[measure].kind == "tuned":
            raise Undefined("It is fitted on val, which cannot also set its threshold.")
        if measure not in self._cross_fitted:
            fits = {name: fit for name, fit in self._fits_on_val.items() if measures.registry[name].kind == "fitted"}
            self._cross_fitted = cross_fitted_all(fits, self.val)
        values = self._cross_fitted[measure]
        if isinstance(values, Exception):
            raise values
        return values


def is_large(predictions: Predictions) -> bool:
    """Whether slow measures and class-wise metrics are skipped by default."""
    return predictions.logits is not None and len(predictions) * predictions.classes > LARGE
