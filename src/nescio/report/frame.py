"""A small immutable table over rows: filter, group, average.

It has no dependency. Rows are at most 10⁵ dictionaries, and training machines may lack polars. None is a value that
equals None in every filter and group: a spectral norm of None is a norm that is switched off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from nescio.errors import Undefined
from nescio.rows import FACTS, IDENTITY, Row

SOURCE_COLUMNS = ("over", "repeats", "values", "keys")  # of a mean: repetitions, number, values, evaluation keys
MEASURED_COLUMNS = ("value", "spread", "low", "high", "n", "key", *SOURCE_COLUMNS)  # results; others identify the row


class Frame:
    """Rows in order. Methods return new frames, which share the rows; rows are never changed."""

    __slots__ = ("rows",)

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows: tuple[Row, ...] = rows.rows if isinstance(rows, Frame) else tuple(dict(row) for row in rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Frame({len(self)} rows)"

    def where(self, **conditions: Any) -> Frame:
        """Keep the rows whose columns equal a value, are in a set or sequence, or satisfy a function."""
        tests = {name: _test(condition) for name, condition in conditions.items()}
        return _frame(row for row in self if all(test(row.get(name)) for name, test in tests.items()))

    def without(self, **conditions: Any) -> Frame:
        """Drop the rows that satisfy all conditions."""
        tests = {name: _test(condition) for name, condition in conditions.items()}
        return _frame(row for row in self if not all(test(row.get(name)) for name, test in tests.items()))

    def unique(self, column: str) -> list[Any]:
        """Return the values of a column, each once, in order of first appearance."""
        return list(dict.fromkeys(row.get(column) for row in self))

    def column(self, name: str = "value") -> list[Any]:
        """Return one column of every row."""
        return [row.get(name) for row in self]

    def first(self, column: str = "value") -> Any:
        """Return a column of the first row, or None without rows."""
        return self.rows[0].get(column) if self.rows else None

    def group_by(self, *columns: str) -> Iterator[tuple[tuple[Any, ...], Frame]]:
        """Yield (values of the columns, their rows), in order of first appearance."""
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in self:
            groups.setdefault(tuple(row.get(name) for name in columns), []).append(row)
        return ((key, _frame(rows)) for key, rows in groups.items())

    def facts(self, *names: str) -> Frame:
        """Facts about the networks of the rows: one row for every network and fact, named by `metric`."""
        return _frame(
            dict(zip(IDENTITY, network, strict=True)) | values | {"metric": name, "value": values[name]}
            for network, rows in self.group_by(*IDENTITY)
            for values in [{fact: rows.first(fact) for fact in FACTS}]
            for name in names
            if values[name] is not None
        )

    def mean(self, column: str = "value") -> float:
        """Return the mean of a column."""
        return fmean(self.column(column))

    def means_by(self, column: str) -> dict[Any, float]:
        """Return the mean of the rows of each value of a column."""
        return {value: rows.mean() for (value,), rows in self.group_by(column)}

    def correlation(self, x: str, y: str) -> float | None:
        """Spearman's ρ of two columns over rows with both; None for fewer than 3 rows or a constant column."""
        from nescio.metrics import spearman

        complete_rows = self.where(**{name: lambda value: value is not None for name in (x, y)})
        try:
            return spearman(complete_rows.column(x), complete_rows.column(y)) if len(complete_rows) > 2 else None
        except Undefined:
            return None

    def sort(self, *keys: str | Callable[[Row], Any], reverse: bool = False) -> Frame:
        """Sort by columns (None first) or by functions of a row; the sort is stable."""

        def sort_key(row: Row) -> list[object]:
            return [_none_first(row.get(key)) if isinstance(key, str) else key(row) for key in keys]

        return _frame(sorted(self, key=sort_key, reverse=reverse))

    def with_column(self, name: str, compute: Callable[[Row], Any]) -> Frame:
        """Add or replace a column, computed from each row."""
        return _frame(row | {name: compute(row)} for row in self)

    def summarise(self, by: Sequence[str] | None = None, over: Sequence[str] = ()) -> Frame:
        """Return one row per group: mean `value`, standard deviation `spread` (None of one), `n`, SOURCE_COLUMNS.

        by    columns of a group (default: all columns but MEASURED_COLUMNS and those of `over`)
        over  repetitions such as data_seed; rows that share them are averaged first, then the repetitions
        """
        by = [name for name in self._identity() if name not in over] if by is None else by
        return _frame(dict(zip(by, key, strict=True)) | _summary(group, over) for key, group in self.group_by(*by))

    def _identity(self) -> list[str]:
        return [name for name in dict.fromkeys(name for row in self for name in row) if name not in MEASURED_COLUMNS]


def repetitions_of(row: Row) -> dict[Any, float]:
    """Repetition → value, of a mean of `Frame.summarise`."""
    return dict(zip(row["repeats"], row["values"], strict=True))


def _frame(rows: Iterable[Row]) -> Frame:
    frame = Frame()
    frame.rows = tuple(rows)
    return frame


def _test(condition: object) -> Callable[[object], bool]:
    if callable(condition):
        return lambda value: bool(condition(value))
    if isinstance(condition, (set, frozenset, tuple, list)):
        return lambda value: value in condition
    return lambda value: bool(value == condition)


def _none_first(value: object) -> tuple[bool, object]:
    return (False, 0) if value is None else (True, value)


def _summary(group: Frame, over: Sequence[str]) -> Row:
    repetitions = {key if len(over) > 1 else key[0]: rows.mean() for key, rows in group.group_by(*over)} if over else {}
    values = list(repetitions.values()) if over else group.column()
    mean, degrees = fmean(values), len(values) - 1
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / degrees) if degrees else None
    low, high = (group.first("low"), group.first("high")) if len(group) == 1 else (None, None)  # unknown for a mean
    keys = tuple(dict.fromkeys(key for row in group for key in row.get("keys") or [row.get("key")] if key))
    sources = {"over": over[0] if over else None, "repeats": tuple(repetitions), "values": tuple(values), "keys": keys}
    return {"value": mean, "spread": spread, "low": low, "high": high, "n": len(values)} | sources
