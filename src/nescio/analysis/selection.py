"""Selection of the best trials from rows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from nescio.errors import BadInput

Row = Mapping[str, Any]
Group = tuple[Any, ...]


class Selection(dict[Group, list[Any]]):
    """Group → its best trials, best first; `notes` lists omitted trials and incomplete groups.

    A group without a complete trial is missing, and a note states this.
    """

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []


def best_trials(
    rows: Iterable[Row],
    k: int,
    metric: str = "nll",
    split: str = "val",
    by: Sequence[str] = ("method", "backbone", "spectral"),
    *,
    member: Sequence[str] = ("trial",),
    calibrated: bool = False,
    seeds: Iterable[Hashable] | None = None,
    trials: Iterable[Hashable] | None = None,
) -> Selection:
    """Select the k best trials of every group by the mean of a validation metric over data seeds.

    score(trial) = 1/|S| Σ_{s ∈ S} metric(trial, data seed s), compared within one value of the columns `by`. The
    registry of metrics defines whether low or high is better. Only trials with a value for every data seed are
    compared. Of equal scores the lower trial number is first. (UIMNET §3, "Ensembles of
    predictors".)

    member      columns that identify candidates; the result has values of one column, or tuples of several
    calibrated  use calibrated rows
    seeds       data seeds that a trial must have; None: all in these rows
    trials      candidates that every group should have; those without rows are reported too
    """
    if k < 1:
        raise BadInput(f"k is {k}: choose at least one trial.")
    sign = _sign(metric)
    scores = _scores(rows, metric, split, tuple(by), tuple(member), calibrated)
    if not scores:
        raise BadInput(f"There is nothing to select from: no row has the {metric} of a single model on {split}.")
    data_seeds = {seed for candidates in scores.values() for values in candidates.values() for seed in values}
    required = sorted(data_seeds if seeds is None else set(seeds), key=_rank)
    required_trials = set() if trials is None else set(trials)
    selection = Selection()
    for group in sorted(scores, key=_rank):
        candidates, label = scores[group], _label(by, group)
        means: dict[Hashable, float] = {}
        for candidate in sorted(candidates.keys() | required_trials, key=_rank):
            values = candidates.get(candidate, {})
            missing_seeds = [seed for seed in required if not math.isfinite(values.get(seed, math.nan))]
            if missing_seeds:
                missing_text = ", ".join(map(str, missing_seeds))
                selection.notes.append(
                    f"{label}: {_label(member, candidate)} is omitted, because it has no {metric} on {split} "
                    f"for data seed{'s' if len(missing_seeds) > 1 else ''} {missing_text}."
                )
            else:
                # An exact sum, so that the selection does not depend on the order of the rows.
                means[candidate] = math.fsum(values[seed] for seed in required) / len(required)
        best = sorted(means, key=lambda candidate: (sign * means[candidate], _rank(candidate)))[:k]
        if best:
            selection[group] = best
        if len(best) < k:
            consequence = "all of them are selected" if best else "the group is omitted"
            selection.notes.append(f"{label}: of the best {k} only {len(best)} can be compared; {consequence}.")
    return selection


def _sign(metric: str) -> int:
    """1 if lower is better, -1 if higher is better."""
    from nescio.metrics import registry

    better = registry[metric.partition("@")[0]].better
    if better == "neither":
        raise BadInput(f"Neither a high nor a low {metric} is better: trials cannot be selected by it.")
    return 1 if better == "lower" else -1


def _scores(
    rows: Iterable[Row], metric: str, split: str, by: tuple[str, ...], member: tuple[str, ...], calibrated: bool
) -> dict[Group, dict[Hashable, dict[Hashable, float]]]:
    """group → candidate → data seed → value; NaN if the row has none."""
    scores: dict[Group, dict[Hashable, dict[Hashable, float]]] = {}
    for row in rows:
        if row["metric"] != metric or row["split"] != split or bool(_value(row, "calibrated")) != calibrated:
            continue
        if _value(row, "members") not in (None, 1):
            continue  # an ensemble of trials
        group = tuple(_value(row, column) for column in by)
        names = tuple(_value(row, column) for column in member)
        candidate = names[0] if len(names) == 1 else names
        seed, number = _value(row, "data_seed"), row.get("value")
        values = scores.setdefault(group, {}).setdefault(candidate, {})
        if seed in values:
            raise BadInput(
                f"{_label(by, group)}: {_label(member, candidate)}, data seed {seed} has two rows with the {metric} on "
                f"{split}: name the column in which they differ in `by` or in `member`."
            )
        values[seed] = math.nan if number is None else float(number)
    return scores


def _value(row: Row, column: str) -> Hashable:
    """The entry of a table file: NaN of an empty cell as None, and 1.0 as 1."""
    value = row.get(column)
    if isinstance(value, float) and column != "value":
        return None if math.isnan(value) else int(value) if value.is_integer() and column != "spectral" else value
    return value


def _rank(value: Hashable) -> tuple[Hashable, ...]:
    """Sort key of None, a number, a text, or a tuple of these."""
    if isinstance(value, tuple):
        return tuple(_rank(part) for part in value)
    return (0,) if value is None else (2, value) if isinstance(value, str) else (1, value)


def _label(columns: Sequence[str], values: Hashable) -> str:
    values = values if isinstance(values, tuple) else (values,)
    pairs = zip(columns, values, strict=True)
    return ", ".join(f"no {column}" if value is None else f"{column} {value}" for column, value in pairs)
