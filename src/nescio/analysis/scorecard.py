"""Scorecard of one model: every measure × every metric that applies, and the reason for what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from nescio import measures, metrics
from nescio.analysis.calibration import SCALERS, calibration_warning
from nescio.analysis.measure_scores import MeasureScores
from nescio.analysis.results import Scorecard
from nescio.analysis.scorecard_builder import ScorecardBuilder
from nescio.arrays.parallel import use_one_thread
from nescio.errors import BadInput, Undefined
from nescio.predictions import Predictions
from nescio.rows import COLUMNS, Row
from nescio.specs import group_of

OOD_ROWS = "ood_rows"  # the split of rows with in_distribution = False
FEW_NUMBERS = 1_000_000  # in embeddings; up to this size one thread is the fastest
Source = Predictions | Mapping[str, Any] | str  # predictions, their arrays by name, or the path of a file


def scorecard(
    predictions: Predictions,
    train: Predictions | None = None,
    val: Predictions | None = None,
    ood: Mapping[str, Predictions] | Predictions | None = None,
    *,
    name: str = "",
    split: str = "test",
    by: Sequence[str] = (),
    calibration: str | None = "temperature",
    only: Sequence[str] | None = None,
    classwise: bool | None = None,
    slow: bool = False,
    facts: Mapping[str, Any] | None = None,
    views: Sequence[Predictions] = (),
    siblings: Sequence[Predictions] = (),
    val_ood: Mapping[str, Predictions] | None = None,
    ood_share: float = metrics.DEFAULT_OOD_SHARE,
) -> Scorecard:
    """Compute every measure × every metric that applies to one model's predictions.

    train        reference rows of the density and neighbour measures; `val` if missing
    val          validation rows: fit the calibration, which adds calibrated rows, and set the rejection threshold
    ood          out-of-distribution predictions by name; rows that are not in-distribution join them as "ood_rows"
    by           groups whose values get their own rows, such as ("severity",)
    calibration  "temperature", "vector", or None for no calibrated rows
    only         names of the measures; None: all
    classwise    class-wise ECE: True, False, or None for at most twenty million probabilities
    slow         compute slow measures, such as pnorm and gen, for more than twenty million probabilities too; they
                 are also computed if they are in `only` or if `train` is given
    facts        columns with the same value in every row, such as {"method": "erm", "data_seed": 0}
    views        predictions of changed images, such as crops, by the same network: for gallery scores
    siblings     predictions of the same images by sibling networks: for gallery scores
    val_ood      OOD validation rows by name: used by the choice of a score, not by any number here
    ood_share    share of OOD rows in the mixtures behind AURC and AUGRC of mixtures

    OOD sets named GROUP:NAME also give means over their group, in rows of the split GROUP.
    """
    if calibration is not None and calibration not in SCALERS:
        raise BadInput(f"There is no calibration named {calibration!r}. There are: {', '.join(SCALERS)}.")
    predictions = _load(predictions)
    train, val = (None if rows is None else _load(rows) for rows in (train, val))
    ood_sets, in_distribution = _ood_sets(ood, split), predictions
    if predictions.in_distribution is not None and not predictions.in_distribution.all():
        ood_sets[OOD_ROWS] = predictions.take(~predictions.in_distribution)
        if not predictions.in_distribution.any():
            raise BadInput("Every row is out-of-distribution; give these predictions as ood.")
        in_distribution = predictions.take(predictions.in_distribution)
    val_ood_sets = {label: _load(rows, ood=True) for label, rows in (val_ood or {}).items()}
    _check_classes(in_distribution, {"val": val, **val_ood_sets, **ood_sets})
    card = Scorecard(name, notes=_notes({"": predictions, "train": train, "val": val, **ood_sets}))
    columns = dict.fromkeys(COLUMNS) | {"calibrated": False, "members": member_count(in_distribution), **(facts or {})}
    names = None if only is None else [measures.find_measure(measure, in_distribution).name for measure in only]

    def omit(measure: str, reason: ValueError) -> None:
        card.add_failure(measure, split, reason)

    scores = MeasureScores(train, val, names, slow, omit)
    builder = ScorecardBuilder(card, columns, split, scores, val, val_ood_sets, views, siblings, classwise, ood_share)
    with _few_threads(train, val):
        builder.add_raw(in_distribution, ood_sets, predictions)
    if calibration is not None:
        try:
            fit_rows = _calibration_rows(in_distribution, val)
            scale = SCALERS[calibration](fit_rows)
        except (Undefined, BadInput) as reason:  # all other rows remain
            card.add_reason(None, "calibrated", split, str(reason))
        else:
            card.calibration_warning = calibration_warning(scale, fit_rows)
            card.notes += [card.calibration_warning] if card.calibration_warning else []
            builder.add_calibrated(scale, in_distribution, ood_sets)
    for group in by:
        builder.add_groups(in_distribution, group)
    card.rows += _group_means(card.rows, list(ood_sets))
    return card


def member_count(predictions: Predictions) -> int | None:
    """Number of networks behind the predictions; None without logits."""
    if predictions.logits is None:
        return None
    return 1 if predictions.members is None else len(np.unique(predictions.members))


def _few_threads(*references: Predictions | None) -> AbstractContextManager[None]:
    """One thread for small embeddings, where several would wait for each other longer than they work."""
    embeddings = [rows.embeddings for rows in references if rows is not None and rows.embeddings is not None]
    return use_one_thread() if 0 < sum(array.size for array in embeddings) < FEW_NUMBERS else nullcontext()


def _check_classes(in_distribution: Predictions, others: Mapping[str, Predictions | None]) -> None:
    for label, other in others.items():
        if other is None or other.logits is None or in_distribution.logits is None:
            continue
        if other.classes != in_distribution.classes:
            raise BadInput(f"{label} has {other.classes} classes, the model has {in_distribution.classes}.")


def _notes(by_role: Mapping[str, Predictions | None]) -> list[str]:
    """Notes on reading the predictions; notes of roles other than test begin with the role."""
    notes = [(role, note) for role, rows in by_role.items() if rows is not None for note in rows.notes]
    of_test = {note for role, note in notes if not role}
    return [f"{role}: {note}" if role else note for role, note in notes if not role or note not in of_test]


def _group_means(rows: Sequence[Row], ood_sets: Sequence[str]) -> list[Row]:
    """Unweighted means over the OOD sets of each group, whose names are GROUP:NAME."""
    groups: dict[str, list[str]] = {}
    for name in ood_sets:
        if group := group_of(name):
            groups.setdefault(group, []).append(name)
    means = []
    for group, names in groups.items():
        cells: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            if row["split"] in names and row["subgroup"] is None:
                cells.setdefault((row["calibrated"], row["measure"], row["metric"]), []).append(row)
        means += [
            of_sets[0]
            | {"split": group, "averaged": ", ".join(names), "low": None, "high": None}
            | {"value": float(np.mean([row["value"] for row in of_sets])), "n": sum(row["n"] for row in of_sets)}
            for of_sets in cells.values()
            if len(of_sets) == len(names)
        ]
    return means


def _ood_sets(ood: Mapping[str, Source] | Source | None, split: str) -> dict[str, Predictions]:
    """OOD predictions by name; a name must differ from those of other splits, because it identifies rows."""
    by_name = {"ood": ood} if ood is not None and not isinstance(ood, Mapping) else dict(ood or {})
    groups = {group_of(label) for label in by_name}
    for label in (*by_name, *groups):
        if label in (split, "val", OOD_ROWS) or (label in by_name and label in groups):
            raise BadInput(f"Out-of-distribution rows cannot be named {label!r}, a name in use: rename them.")
    return {label: _load(rows, ood=True) for label, rows in by_name.items()}


def _load(source: Source, ood: bool = False) -> Predictions:
    return source if isinstance(source, Predictions) else Predictions.load(source, ood=ood)


def _calibration_rows(in_distribution: Predictions, val: Predictions | None) -> Predictions:
    """The rows that a calibration is fitted on."""
    if val is None:
        raise Undefined("Calibration is fitted on validation rows: give val.")
    if in_distribution.logits is None:
        raise Undefined("There are no logits to calibrate.")
    if val.logits is None or val.labels is None:
        raise Undefined("The validation rows need logits and labels to fit a calibration.")
    return val
