"""Tables: cells with their unrounded numbers, and a builder of tables from rows.

    table(frame.where(split="test").summarise(over=["data_seed"]), "Results",
          index=(Index("method", keep=True), Index("members", "k"), "calibrated"),
          columns=metrics("accuracy", "nll", "ece"))

Cells are formatted when a table is written. Cells that are compared with each other have the same number of decimals.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from nescio.analysis.significance import MIN_RUNS, Verdict, compare_with_best
from nescio.errors import BadInput
from nescio.report.format import count_in_words, interval_columns, join_names
from nescio.report.frame import Frame, repetitions_of
from nescio.report.labels import calibration_label, direction_of, metric_label, metric_legend
from nescio.rows import Row

TIE_MARK = "*"  # mark after the rank of a model that is not significantly different from the best
MISSING = "–"  # text of an empty label or cell
MAX_SOURCES = 12  # maximum numbers of values and of keys listed per cell
COUNT_COLUMNS = ("models", "of models")  # columns of `table_from_records` that contain counts
REPETITIONS = {  # column of repetitions → its noun, and the plural
    "data_seed": ("seed", "seeds"),
    "init_seed": ("network", "networks"),
    "draw": ("sample of references", "samples of references"),
}
Formatter = Callable[[float], str]
Key = tuple[Any, ...]  # values of the index columns


# ---- number formats


@dataclass(frozen=True)
class NumberFormat:
    """A format specification with a scale and a unit; zero has no sign."""

    spec: str = ".4f"
    scale: float = 1.0
    unit: str = ""

    def __call__(self, value: float) -> str:
        text = f"{self.scale * value:{self.spec}}"
        return (text.lstrip("+-") if not text.strip("+-0.,") else text) + self.unit


COUNT = NumberFormat(",.0f")


def decimals(digits: int, *, sign: bool = False) -> NumberFormat:
    """Format as 0.123, or as +0.123 with `sign`."""
    return NumberFormat(f"{'+' if sign else ''}.{digits}f")


def percents(digits: int = 1, *, sign: bool = False) -> NumberFormat:
    """Format a share as 12.3 %, or as +12.3 % with `sign`."""
    return NumberFormat(f"{'+' if sign else ''}.{digits}f", 100, " %")


def fit_decimals(values: Iterable[float]) -> NumberFormat:
    """Format with three or four significant digits of the largest value."""
    top = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if top == 0 or 0.01 <= top < 10:
        return decimals(4)
    power = math.floor(math.log10(top))
    return decimals(max(0, 4 - power) if power > 0 else min(10, 2 - power))


# ---- tables


@dataclass(frozen=True)
class Cell:
    """One number with its spread, interval and rank, or a text. `best` cells are printed bold."""

    value: float | None = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    best: bool = False
    rank: int | None = None
    text: str | None = None
    format: Formatter = NumberFormat()
    over: str | None = None  # column of the repetitions that `value` averages
    values: tuple[float, ...] = ()  # values of the repetitions
    keys: tuple[str, ...] = ()  # keys of the evaluations behind the value
    tests: tuple[str, ...] = ()  # tests that decide on `best`

    @property
    def origin(self) -> str:
        """The averaged values and the keys of their evaluations; empty without keys."""
        if not self.keys:
            return ""
        keys = f"{'keys' if len(self.keys) > 1 else 'key'} {_shorten_list(self.keys)}"
        if len(self.values) < 2:
            return keys
        noun = f"{self.over.replace('_', ' ')}s" if self.over else "values"
        return f"{len(self.values):,} {noun}: {_shorten_list([self.format(value) for value in self.values])}; {keys}"

    @property
    def value_text(self) -> str:
        """The value or text, after the rank if there is one."""
        text = self.text if self.text is not None else MISSING if self.value is None else self.format(self.value)
        return text if self.rank is None else f"#{self.rank}{TIE_MARK if self.best else ''} {text}"

    @property
    def spread_text(self) -> str:
        """± spread, or an empty text."""
        return "" if self.spread is None else f"± {self.format(self.spread).lstrip('+')}"

    @property
    def interval_text(self) -> str:
        """[low, high], or an empty text."""
        return "" if self.low is None or self.high is None else f"[{self.format(self.low)}, {self.format(self.high)}]"

    def __str__(self) -> str:
        return " ".join(text for text in (self.value_text, self.spread_text, self.interval_text) if text)


def _shorten_list(texts: Sequence[str]) -> str:
    """Join the first MAX_SOURCES texts, and count the others."""
    omitted = len(texts) - MAX_SOURCES
    return ", ".join([*texts[:MAX_SOURCES], *([f"{omitted:,} more"] if omitted > 0 else [])])


TableRow = tuple[tuple[str, ...], tuple[Cell | None, ...]]  # labels, cells


@dataclass(frozen=True)
class Table:
    """Rows of labels and cells; None is a cell that was not measured."""

    title: str
    index: tuple[str, ...]  # titles of the label columns
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    note: str = ""
    legend: tuple[tuple[str, str], ...] = ()  # (metric, its description)

    def __bool__(self) -> bool:
        return bool(self.rows)

    def select(self, *columns: str) -> Table:
        """Return the table with these columns; unknown names are ignored."""
        kept = [self.columns.index(column) for column in columns if column in self.columns]
        rows = tuple((labels, tuple(cells[number] for number in kept)) for labels, cells in self.rows)
        return replace(self, columns=tuple(self.columns[number] for number in kept), rows=rows)

    def head(self, n: int) -> Table:
        """Return the table with its first n rows."""
        return replace(self, rows=self.rows[:n])

    def cells(self) -> dict[tuple[tuple[str, ...], str], Cell]:
        """Map (labels of a row, column) to each measured cell."""
        return {
            (labels, column): cell
            for labels, cells in self.rows
            for column, cell in zip(self.columns, cells, strict=True)
            if cell is not None
        }


# ---- the builder


@dataclass(frozen=True)
class Index:
    """A column of the input rows whose values label the rows of a table."""

    name: str
    title: str = ""
    format: Callable[[Any], str] | None = None
    keep: bool = False  # keep the labels even if all rows have the same value

    def label(self, value: object) -> str:
        """Format one value."""
        return self.format(value) if self.format else index_label(self.name, value)


@dataclass(frozen=True)
class Column:
    """A column of cells: the input rows that it shows, and their field. A text field makes text cells."""

    title: str
    field: str = "value"
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # conditions of Frame.where
    better: str | None = (
        None  # higher, lower or neither (default: by the metric of the rows, else by the title's arrow)
    )
    format: Formatter | None = None
    metric: str | None = None  # metric to describe in the legend


def metrics(*names: str, titles: Mapping[str, str] | None = None, format: Formatter | None = None) -> list[Column]:
    """Columns of registered metrics with their arrows and descriptions; `titles` replace their labels."""
    titles = titles or {}
    return [
        Column(titles.get(name, metric_label(name)), "value", {"metric": name}, None, format, name) for name in names
    ]


def index_label(column: str, value: object) -> str:
    """Format a value of an input column as a label."""
    if column == "metric":
        return metric_label(str(value))
    if column == "calibrated":
        return calibration_label(value)
    return MISSING if value is None else f"{value:g}" if isinstance(value, float) else str(value)


Bold = Literal["best", "change", "none"]


def table(
    rows: Iterable[Row],
    title: str = "",
    *,
    index: Sequence[str | Index] = ("measure",),
    columns: str | Sequence[Column] = "metric",
    note: str = "",
    format: Formatter | None = None,
    bold: Bold = "best",
    compared: Callable[[Row], bool] = lambda row: True,
    compare_within: Sequence[str] = (),
    spread: bool = True,
) -> Table:
    """Build a table with one row per value of `index` and one cell per column, in the order of the input rows.

    index    input columns that label the rows; except for the first, those with a single value are left out
    columns  an input column with one table column per value, or Columns; columns without cells are left out
    format   number format (default: decimals that fit the cells that are compared)
    bold     best cell of each comparison, every change for the better, or none
    compared        whether a row is compared
    compare_within  input columns; only cells with equal values of these are compared
    spread   whether to show spreads and intervals
    Input rows may contain spread, low, high, n, and rank with best and tests, which then decide on bold cells. Of means
    over repetitions, bold marks the best and what is not significantly different from it (`compare_with_best`, with
    the column `noise` of the rows); the note then names the repetitions and the test.
    """
    frame = Frame(rows)
    labels = [Index(name) if isinstance(name, str) else name for name in index]
    all_columns = _columns(frame, columns) if isinstance(columns, str) else list(columns)
    names = [label.name for label in labels]
    sources = _sources(frame, names, all_columns)
    by_column = columns == "metric" or not isinstance(columns, str)
    cells = _compared(sources, by_column, compare_within, _CellStyle(format, bold, compared, spread))
    varying = Frame(row for row in frame if compared(row))
    indices = [label for n, label in enumerate(labels) if n == 0 or label.keep or len(varying.unique(label.name)) > 1]
    filled_columns = [head for head in all_columns if any((key, head.title) in cells for key in sources)]
    return Table(
        title,
        tuple(label.title or label.name for label in indices),
        tuple(head.title for head in filled_columns),
        tuple(
            (
                tuple(label.label(key[names.index(label.name)]) for label in indices),
                tuple(cells.get((key, head.title)) for head in filled_columns),
            )
            for key, row in sources.items()
            if row
        ),
        ". ".join(filter(None, (note, *_repetition_notes(cells.values(), bold)))),
        metric_legend(m for m in frame.unique("metric") if m) if isinstance(columns, str) else _legend(filled_columns),
    )


CellSources = dict[str, tuple[Column, Row]]  # title of a column → the input row of its cell


@dataclass(frozen=True)
class _CellStyle:
    """Number format, and choice of bold cells, compared rows and spreads."""

    format: Formatter | None
    bold: Bold
    compared: Callable[[Row], bool]
    spread: bool


def _columns(frame: Frame, name: str) -> list[Column]:
    """One column per value of an input column."""
    return [Column(index_label(name, value), where={name: value}) for value in frame.unique(name)]


def _legend(columns: Iterable[Column]) -> tuple[tuple[str, str], ...]:
    titles = {column.metric: column.title for column in columns if column.metric}
    return metric_legend(titles, {metric: title for metric, title in titles.items() if title != metric_label(metric)})


def _sources(frame: Frame, names: Sequence[str], columns: Iterable[Column]) -> dict[Key, CellSources]:
    """Map index values to the input rows of their cells; two rows for one cell are an error."""
    sources: dict[Key, CellSources] = {key: {} for key, _ in frame.group_by(*names)}
    for column in columns:
        for row in frame.where(**column.where):
            key = tuple(row.get(name) for name in names)
            if column.title in sources[key]:
                labels = ", ".join(f"{name} {value}" for name, value in zip(names, key, strict=True))
                raise BadInput(
                    f"Two rows have {labels} and {column.title}; add a column in which they differ to index."
                )
            if row.get(column.field) is not None:
                sources[key][column.title] = column, row
    return sources


def _compared(
    sources: Mapping[Key, CellSources], by_column: bool, compare_within: Sequence[str], style: _CellStyle
) -> dict[tuple[Key, str], Cell]:
    """The cells, made in groups that have the same decimals and one best."""
    groups: dict[Any, list[tuple[Key, Column, Row]]] = {}
    for key, cells in sources.items():
        for column, row in cells.values():
            group = column.title if by_column else None, row.get("metric"), *(row.get(name) for name in compare_within)
            groups.setdefault(group, []).append((key, column, row))
    return {
        (key, column.title): cell
        for members in groups.values()
        for (key, column, _), cell in zip(members, _cells([member[1:] for member in members], style), strict=True)
    }


def _cells(members: Sequence[tuple[Column, Row]], style: _CellStyle) -> list[Cell]:
    """The cells of rows that are compared with each other."""
    first, row = members[0]
    if isinstance(row[first.field], str):
        return [Cell(text=row[column.field], best=bool(row.get("best"))) for column, row in members]
    format = first.format or style.format or fit_decimals(row[column.field] for column, row in members)
    arrow = {"↑": "higher", "↓": "lower"}.get(first.title[-1:], "neither")
    direction = first.better or (direction_of(row["metric"]) if row.get("metric") else arrow)
    best = _best([row[column.field] for column, row in members if style.compared(row)], format, direction)
    verdict = _verdict([member for member in members if style.compared(member[1])], direction)
    cells = []
    for column, row in members:
        cell = _cell(row, column, format, style.spread)
        if style.bold == "change":
            cells.append(replace(cell, best=_improves(cell, direction)))
        elif style.bold == "best" and "best" not in row and verdict:
            is_best = style.compared(row) and _repeated_values(column, row) in verdict.equals
            cells.append(replace(cell, best=is_best, tests=verdict.tests))
        elif style.bold == "best" and "best" not in row:
            cells.append(replace(cell, best=cell.value_text == best and style.compared(row)))
        else:
            cells.append(cell)
    return cells


def _cell(row: Row, column: Column, format: Formatter, spread: bool) -> Cell:
    if column.field != "value":
        low, high = (row.get(end) if spread else None for end in interval_columns(column.field))
        return Cell(row[column.field], low=low, high=high, format=format)
    spreads: Row = {name: row.get(name) for name in ("spread", "low", "high")} if spread else {}
    ranks: Row = {}
    if "best" in row:
        ranks = {"best": bool(row["best"]), "rank": row.get("rank"), "tests": tuple(row.get("tests") or ())}
    keys = tuple(row.get("keys") or filter(None, [row.get("key")]))
    values = tuple(row.get("values") or ())
    return Cell(
        row["value"], n=row.get("n"), format=format, over=row.get("over"), values=values, keys=keys, **spreads, **ranks
    )


Repeated = tuple[tuple[Any, ...], tuple[float, ...]]  # repetitions and their values


def _repeated_values(column: Column, row: Row) -> Repeated | None:
    """Repetitions behind a mean and their values; None without repetitions."""
    return (row["repeats"], row["values"]) if column.field == "value" and row.get("repeats") else None


def _verdict(members: Sequence[tuple[Column, Row]], direction: str) -> Verdict[Repeated] | None:
    """The best means by a test over repetitions; None without a test. Cells with the same values are one line."""
    rows = {runs: row for column, row in members if (runs := _repeated_values(column, row))}
    if len(rows) < 2 or direction not in ("higher", "lower"):
        return None
    lines = {runs: repetitions_of(row) for runs, row in rows.items()}
    noise = {runs: row["noise"] for runs, row in rows.items() if row.get("noise") is not None}
    verdict = compare_with_best(lines, direction, noise=noise if len(noise) == len(lines) else None)
    return verdict if verdict.tests else None


def _repetition_notes(cells: Iterable[Cell], bold: Bold) -> list[str]:
    """Sentences on the repetitions behind the means, and on bold cells."""
    averaged = [cell for cell in cells if cell.over and cell.value is not None]
    tests = list(dict.fromkeys(test for cell in averaged for test in cell.tests))
    counts: dict[tuple[str, str], set[int]] = {}
    for cell in averaged:
        counts.setdefault(REPETITIONS.get(str(cell.over), ("value", "values")), set()).add(len(cell.values))
    repeated = {nouns: sizes for nouns, sizes in counts.items() if max(sizes) > 1}
    noun = next(iter(repeated))[1] if len(repeated) == 1 else "repetitions"
    notes = [f"One {unit}{'' if tests else ': no spread and no test'}" for unit, _ in counts if not repeated]
    if repeated:
        spread = any(cell.spread is not None for cell in averaged)
        texts = [f"{_count_range(sizes)} {plural}" for (_, plural), sizes in repeated.items()]
        notes = [f"Mean{' ± standard deviation' if spread else ''} over {' or '.join(texts)}"]
    if bold != "best" or not any(cell.best for cell in averaged):
        return notes
    if tests:
        test = f"{join_names(tests)}{f' over {noun}' if repeated else ''}, 5 %, Holm's adjustment in every column"
        return [*notes, f"Bold: the best, and what is not significantly different from it ({test})"]
    test_note = f"; fewer than {count_in_words(MIN_RUNS)} {noun} allow no test" if repeated else ""
    return [*notes, f"Bold: the best{test_note}"]


def _count_range(counts: Collection[int]) -> str:
    """Write counts as three, two or three, or two to five."""
    low, high = min(counts), max(counts)
    return (" or " if high - low == 1 else " to ").join(map(count_in_words, dict.fromkeys((low, high))))


def _improves(cell: Cell, direction: str) -> bool:
    """Whether a change is for the better and visible as printed."""
    sign = {"higher": 1, "lower": -1}.get(direction, 0)
    return sign * (cell.value or 0) > 0 and any(digit in "123456789" for digit in cell.value_text)


def _best(values: Sequence[float], format: Formatter, direction: str) -> str | None:
    """The best value as printed, so that equal texts are equally bold; None if there is no choice."""
    texts = {format(value): value for value in values}
    if direction not in ("higher", "lower") or len(texts) < 2:
        return None
    return (max if direction == "higher" else min)(texts, key=lambda text: texts[text])


def table_from_records(
    records: Sequence[Row],
    title: str,
    *index: str,
    format: Formatter | None = None,
    formats: Mapping[str, Formatter] | None = None,
    note: str = "",
    changes: bool = False,
    compare_within: Sequence[str] = (),
    explain: Sequence[str] = (),
) -> Table:
    """Build a table of dictionaries, one per row, whose keys are the columns, except for those in `index`.

    records  may contain the `interval_columns` of a column
    format   number format; `formats` are those of single columns
    changes  bold marks a change for the better; otherwise an arrow in a title decides which value is best
    compare_within  keys; only rows with equal values of these are compared
    explain  metrics to describe in the legend
    """
    presets = dict.fromkeys(COUNT_COLUMNS, COUNT) | dict(formats or {})
    better = {name: "neither" if name in presets else "higher" for row in records for name in row} if changes else {}
    names = dict.fromkeys(name for row in records for name in row if name not in index)
    interval_ends = {end for name in names for end in interval_columns(name)}
    columns = [
        Column(name, name, better=better.get(name), format=presets.get(name, format))
        for name in names
        if name not in interval_ends
    ]
    labels = [Index(name, keep=True) for name in index]
    bold: Bold = "change" if changes else "best"
    result = table(records, title, index=labels, columns=columns, note=note, bold=bold, compare_within=compare_within)
    return replace(result, legend=metric_legend(explain))


def drop_repeated_legends(tables: Iterable[Table], seen: set[str] | None = None) -> list[Table]:
    """Return the tables with each metric described only in the first table that shows it; `seen` is updated."""
    seen = set() if seen is None else seen
    result = []
    for table in tables:
        new_entries = tuple(entry for entry in table.legend if entry[0] not in seen)
        seen.update(name for name, _ in new_entries)
        result.append(replace(table, legend=new_entries))
    return result
