"""A small immutable table over rows: filter, group, average.

It has no dependency: rows are at most 10⁵ dictionaries, machines that train have no polars, and in rows None is a value
(a spectral norm of None is switched off), so that None must equal None in every filter and group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from nescio.errors import Undefined
from nescio.rows import Row

SOURCES = ("over", "values", "keys")  # of a summary: its repetitions, their values, the evaluations behind them
SEEN = ("value", "spread", "low", "high", "n", "key", *SOURCES)  # what was measured; all other columns say of what


class Frame:
    """Rows in order. Every method returns a new frame; the rows themselves are shared and never changed."""

    __slots__ = ("rows",)

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.rows: tuple[Row, ...] = rows.rows if isinstance(rows, Frame) else tuple(dict(row) for row in rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Frame({len(self)} rows)"

    def where(self, **conditions: Any) -> Frame:
        """Rows whose columns equal a value, are one of a set or tuple, or satisfy a function."""
        tests = {name: _test(wanted) for name, wanted in conditions.items()}
        return _frame(row for row in self if all(test(row.get(name)) for name, test in tests.items()))

    def without(self, **conditions: Any) -> Frame:
        """Rows that do not satisfy all of the conditions."""
        tests = {name: _test(wanted) for name, wanted in conditions.items()}
        return _frame(row for row in self if not all(test(row.get(name)) for name, test in tests.items()))

    def values(self, column: str) -> list[Any]:
        """What a column holds, each value once, in order of first appearance."""
        return list(dict.fromkeys(row.get(column) for row in self))

    def column(self, name: str = "value") -> list[Any]:
        """One column of every row."""
        return [row.get(name) for row in self]

    def one(self, column: str = "value") -> Any:
        """A column of the first row; None where there are no rows."""
        return self.rows[0].get(column) if self.rows else None

    def by(self, *columns: str) -> Iterator[tuple[tuple[Any, ...], Frame]]:
        """(values of the columns, their rows), in order of first appearance."""
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in self:
            groups.setdefault(tuple(row.get(name) for name in columns), []).append(row)
        return ((key, _frame(rows)) for key, rows in groups.items())

    def mean(self, column: str = "value") -> float:
        return fmean(self.column(column))

    def correlation(self, a: str, b: str) -> float | None:
        """Spearman's ρ of two columns over rows that have both; None of fewer than three, or where one is constant."""
        from nescio.metrics import spearman

        both = self.where(**{name: lambda value: value is not None for name in (a, b)})
        try:
            return spearman(both.column(a), both.column(b)) if len(both) > 2 else None
        except Undefined:
            return None

    def sort(self, *keys: str | Callable[[Row], Any], reverse: bool = False) -> Frame:
        """Rows in the order of columns (None first) or of functions of a row; equal rows keep their order."""

        def place(row: Row) -> list[Any]:
            return [_none_first(row.get(key)) if isinstance(key, str) else key(row) for key in keys]

        return _frame(sorted(self, key=place, reverse=reverse))

    def with_column(self, name: str, of: Callable[[Row], Any]) -> Frame:
        """A further column, or another content of one."""
        return _frame(row | {name: of(row)} for row in self)

    def summarise(self, by: Sequence[str] | None = None, over: Sequence[str] = ()) -> Frame:
        """One row per group: mean `value`, sample standard deviation `spread` (None for one), how many (`n`), SOURCES.

        by    columns of a group (default: every column that says of what a row is, except those of `over`)
        over  repetitions such as data_seed: rows that share them are averaged first, then the repetitions
        """
        by = [name for name in self._identity() if name not in over] if by is None else by
        return _frame(dict(zip(by, key, strict=True)) | _summary(group, over) for key, group in self.by(*by))

    def _identity(self) -> list[str]:
        return [name for name in dict.fromkeys(name for row in self for name in row) if name not in SEEN]


def _frame(rows: Iterable[Row]) -> Frame:
    frame = Frame()
    frame.rows = tuple(rows)
    return frame


def _test(wanted: Any) -> Callable[[Any], bool]:
    if callable(wanted):
        return lambda value: bool(wanted(value))
    if isinstance(wanted, (set, frozenset, tuple, list)):
        return lambda value: value in wanted
    return lambda value: bool(value == wanted)


def _none_first(value: Any) -> tuple[bool, Any]:
    return (False, 0) if value is None else (True, value)


def _summary(group: Frame, over: Sequence[str]) -> Row:
    values = [part.mean() for _, part in group.by(*over)] if over else group.column()
    mean, more = fmean(values), len(values) - 1
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / more) if more else None
    low, high = (group.one("low"), group.one("high")) if len(group) == 1 else (None, None)  # of a mean: unknown
    keys = tuple(dict.fromkeys(key for row in group for key in row.get("keys") or [row.get("key")] if key))
    sources = {"over": over[0] if over else None, "values": tuple(values), "keys": keys}
    return {"value": mean, "spread": spread, "low": low, "high": high, "n": len(values)} | sources
