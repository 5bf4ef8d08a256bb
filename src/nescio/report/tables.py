"""Tables: cells that keep their numbers, and one builder from rows to lines of cells.

    table(frame.where(split="test").summarise(over=["data_seed"]), "Results",
          lines=(Column("method", keep=True), Column("members", "k"), "calibrated"),
          heads=metrics("accuracy", "nll", "ece"))

Texts are made when a table is written: a cell says how its number is written (`form`), and cells that are compared with
each other share their decimals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nescio.errors import BadInput
from nescio.report.frame import Frame
from nescio.report.words import better, label, legend, stage
from nescio.rows import Row

TIED = "*"  # after the rank of a model that cannot be told from the best: plain text has no bold
NOTHING = "–"  # in place of a label or a cell that there is not
MOST_SOURCES = 12  # values, and keys, that a cell lists
COUNTED = ("models", "of models")  # heads of wide tables that are numbers of things
Writer = Callable[[float], str]


# ---- how numbers are written


@dataclass(frozen=True)
class Form:
    """A format specification, after a scale and before a unit; a zero has no sign."""

    spec: str = ".4f"
    scale: float = 1.0
    unit: str = ""

    def __call__(self, value: float) -> str:
        text = f"{self.scale * value:{self.spec}}"
        return (text.lstrip("+-") if not text.strip("+-0.,") else text) + self.unit


COUNT = Form(",.0f")


def decimals(digits: int, *, sign: bool = False) -> Form:
    """0.123; with `sign` a change: +0.123."""
    return Form(f"{'+' if sign else ''}.{digits}f")


def percents(digits: int = 1, *, sign: bool = False) -> Form:
    """12.3 % of a share; with `sign` a change: +12.3 %."""
    return Form(f"{'+' if sign else ''}.{digits}f", 100, " %")


def fitting(values: Iterable[float]) -> Form:
    """Decimals that show three or four significant digits of the largest value."""
    top = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if top == 0 or 0.01 <= top < 10:
        return decimals(4)
    power = math.floor(math.log10(top))
    return decimals(max(0, 4 - power) if power > 0 else min(10, 2 - power))


# ---- the model


@dataclass(frozen=True)
class Cell:
    """One number and what surrounds it; or words, as `text`. Bold when it is the best of those it is compared with."""

    value: float | None = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    best: bool = False
    rank: int | None = None
    text: str | None = None
    form: Writer = Form()
    over: str | None = None  # the repetitions that a mean is over, by their column
    values: tuple[float, ...] = ()  # of the repetitions
    keys: tuple[str, ...] = ()  # of the evaluations behind it

    @property
    def source(self) -> str:
        """The values that a mean is over, and the keys of the evaluations behind it; nothing where none is known."""
        if not self.keys:
            return ""
        keys = f"{'keys' if len(self.keys) > 1 else 'key'} {_first(self.keys)}"
        if len(self.values) < 2:
            return keys
        what = f"{self.over.replace('_', ' ')}s" if self.over else "values"
        return f"{len(self.values):,} {what}: {_first([self.form(value) for value in self.values])}; {keys}"

    @property
    def head(self) -> str:
        """The number (or the words) alone, with its rank if it has one."""
        text = self.text if self.text is not None else NOTHING if self.value is None else self.form(self.value)
        return text if self.rank is None else f"#{self.rank}{TIED if self.best else ''} {text}"

    @property
    def around(self) -> str:
        """± spread, or nothing."""
        return "" if self.spread is None else f"± {self.form(self.spread).lstrip('+')}"

    @property
    def interval(self) -> str:
        """[low, high], or nothing."""
        return "" if self.low is None or self.high is None else f"[{self.form(self.low)}, {self.form(self.high)}]"

    def __str__(self) -> str:
        return " ".join(part for part in (self.head, self.around, self.interval) if part)


def _first(texts: Sequence[str]) -> str:
    """The first texts, and how many more there are."""
    more = len(texts) - MOST_SOURCES
    return ", ".join([*texts[:MOST_SOURCES], *([f"{more:,} more"] if more > 0 else [])])


Line = tuple[tuple[str, ...], tuple[Cell | None, ...]]  # labels, cells


@dataclass(frozen=True)
class Table:
    """Lines of cells under heads; a cell that is None was not measured."""

    title: str
    corner: tuple[str, ...]  # what the label columns are called
    heads: tuple[str, ...]
    lines: tuple[Line, ...]
    note: str = ""
    legend: tuple[tuple[str, str], ...] = ()  # (name of a metric, its sentence)

    def __bool__(self) -> bool:
        return bool(self.lines)

    def only(self, *heads: str) -> Table:
        """The table with these columns, as far as it has them."""
        kept = [self.heads.index(head) for head in heads if head in self.heads]
        lines = tuple((labels, tuple(cells[at] for at in kept)) for labels, cells in self.lines)
        return replace(self, heads=tuple(self.heads[at] for at in kept), lines=lines)

    def top(self, most: int) -> Table:
        """The first lines of the table."""
        return replace(self, lines=self.lines[:most])

    def cells(self) -> dict[tuple[tuple[str, ...], str], Cell]:
        """(labels of a line, head) → cell, for every cell that there is."""
        return {
            (labels, head): cell
            for labels, cells in self.lines
            for head, cell in zip(self.heads, cells, strict=True)
            if cell is not None
        }


# ---- the builder


@dataclass(frozen=True)
class Column:
    """A column of the rows that labels lines: what it is called, how a value is written, whether it always stands."""

    name: str
    title: str = ""
    word: Callable[[Any], str] | None = None
    keep: bool = False  # even where all lines share one value

    def label(self, value: Any) -> str:
        return self.word(value) if self.word else word(self.name, value)


@dataclass(frozen=True)
class Head:
    """One column of cells: which rows it shows, and which of their columns; a text there makes cells of words."""

    title: str
    of: str = "value"
    where: Mapping[str, Any] = field(default_factory=dict)  # conditions of Frame.where
    better: str | None = None  # higher, lower or neither (default: that of the rows' metric, else as its arrow says)
    form: Writer | None = None
    metric: str | None = None  # explained in the legend


def metrics(*names: str, titles: Mapping[str, str] | None = None, form: Writer | None = None) -> list[Head]:
    """Heads of registered metrics, with their arrows, directions and sentences; `titles` are other names."""
    named = titles or {}
    return [Head(named.get(name, label(name)), where={"metric": name}, form=form, metric=name) for name in names]


def word(column: str, value: Any) -> str:
    """A value of a column of rows as a label."""
    if column == "metric":
        return label(str(value))
    if column == "calibrated":
        return stage(value)
    return NOTHING if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def table(
    rows: Iterable[Row],
    title: str = "",
    *,
    lines: Sequence[str | Column] = ("measure",),
    heads: str | Sequence[Head] = "metric",
    note: str = "",
    form: Writer | None = None,
    mark: Mark = "best",
    ranked: Callable[[Row], bool] = lambda row: True,
    within: Sequence[str] = (),
    around: bool = True,
) -> Table:
    """A table with one line for each value of `lines` and one column for each of `heads`, in order of the rows.

    lines   columns that label a line; those in which no two lines differ are left out, except the first
    heads   a column, each of whose values is a head; or heads. A head without any cell is left out
    form    how numbers are written (default: decimals that fit the cells compared with each other)
    mark    bold: the best of the cells that are compared; or every change for the better; or none
    ranked  rows that take part in the comparison
    within  columns: only cells of equal values there are compared with each other
    around  whether spreads and intervals are shown
    Rows may hold spread, low, high, n, and rank with best (then that is bold).
    """
    frame = Frame(rows)
    columns = [Column(name) if isinstance(name, str) else name for name in lines]
    shown = _heads(frame, heads) if isinstance(heads, str) else list(heads)
    names = [column.name for column in columns]
    places = _places(frame, names, shown)
    by_head = heads == "metric" or not isinstance(heads, str)
    cells = _compared(places, by_head, within, _Marking(form, mark, ranked, around))
    varying = Frame(row for row in frame if ranked(row))
    kept = [c for at, c in enumerate(columns) if at == 0 or c.keep or len(varying.values(c.name)) > 1]
    used = [head for head in shown if any((key, head.title) in cells for key in places)]
    return Table(
        title,
        tuple(column.title or column.name for column in kept),
        tuple(head.title for head in used),
        tuple(
            (
                tuple(column.label(key[names.index(column.name)]) for column in kept),
                tuple(cells.get((key, head.title)) for head in used),
            )
            for key, place in places.items()
            if place
        ),
        note,
        legend(m for m in frame.values("metric") if m) if isinstance(heads, str) else _legend(used),
    )


Mark = Literal["best", "change", "none"]
Place = dict[str, tuple[Head, Row]]  # title of a head → the row that stands there


@dataclass(frozen=True)
class _Marking:
    """How cells are written and marked."""

    form: Writer | None
    mark: Mark
    ranked: Callable[[Row], bool]
    around: bool


def _heads(frame: Frame, column: str) -> list[Head]:
    """One head for each value of a column."""
    return [Head(word(column, value), where={column: value}) for value in frame.values(column)]


def _legend(heads: Iterable[Head]) -> tuple[tuple[str, str], ...]:
    named = {head.metric: head.title for head in heads if head.metric}
    return legend(named, {metric: title for metric, title in named.items() if title != label(metric)})


def _places(frame: Frame, names: Sequence[str], heads: Iterable[Head]) -> dict[tuple[Any, ...], Place]:
    """Values of the label columns → what stands in that line; refuses two rows for one cell."""
    places: dict[tuple[Any, ...], Place] = {key: {} for key, _ in frame.by(*names)}
    for head in heads:
        for row in frame.where(**head.where):
            key = tuple(row.get(name) for name in names)
            if head.title in places[key]:
                about = ", ".join(f"{name} {value}" for name, value in zip(names, key, strict=True))
                raise BadInput(f"Two rows are both {about} with {head.title}; name a column in which they differ.")
            if row.get(head.of) is not None:
                places[key][head.title] = head, row
    return places


def _compared(
    places: Mapping[tuple[Any, ...], Place], by_head: bool, within: Sequence[str], marking: _Marking
) -> dict[tuple[tuple[Any, ...], str], Cell]:
    """The cells, in groups that share their decimals and have one best."""
    groups: dict[Any, list[tuple[tuple[Any, ...], Head, Row]]] = {}
    for key, place in places.items():
        for head, row in place.values():
            alike = head.title if by_head else None, row.get("metric"), *(row.get(name) for name in within)
            groups.setdefault(alike, []).append((key, head, row))
    return {
        (key, head.title): cell
        for members in groups.values()
        for (key, head, _), cell in zip(members, _cells([member[1:] for member in members], marking), strict=True)
    }


def _cells(members: Sequence[tuple[Head, Row]], marking: _Marking) -> list[Cell]:
    """The cells of rows that are compared with each other."""
    first, row = members[0]
    if isinstance(row[first.of], str):
        return [Cell(text=row[head.of], best=bool(row.get("best"))) for head, row in members]
    write = first.form or marking.form or fitting(row[head.of] for head, row in members)
    arrow = {"↑": "higher", "↓": "lower"}.get(first.title[-1:], "neither")
    direction = first.better or (better(row["metric"]) if row.get("metric") else arrow)
    best = _best([row[head.of] for head, row in members if marking.ranked(row)], write, direction)
    made = []
    for head, row in members:
        cell = _cell(row, head, write, marking.around)
        if marking.mark == "change":
            made.append(replace(cell, best=_improves(cell, direction)))
        elif marking.mark == "best" and "best" not in row:
            made.append(replace(cell, best=cell.head == best and marking.ranked(row)))
        else:
            made.append(cell)
    return made


def _cell(row: Row, head: Head, write: Writer, around: bool) -> Cell:
    if head.of != "value":
        return Cell(row[head.of], form=write)
    facts: Row = {name: row.get(name) for name in ("spread", "low", "high")} if around else {}
    ranks: Row = {"best": bool(row["best"]), "rank": row.get("rank")} if "best" in row else {}
    keys = tuple(row.get("keys") or filter(None, [row.get("key")]))
    sources: Row = {"over": row.get("over"), "values": tuple(row.get("values") or ()), "keys": keys}
    return Cell(row["value"], n=row.get("n"), form=write, **facts, **ranks, **sources)


def _improves(cell: Cell, direction: str) -> bool:
    """Whether a change is for the better, and can be seen as it is written."""
    sign = {"higher": 1, "lower": -1}.get(direction, 0)
    return sign * (cell.value or 0) > 0 and any(mark in "123456789" for mark in cell.head)


def _best(values: Sequence[float], write: Writer, direction: str) -> str | None:
    """The best value as it is written, so that equal texts are equally bold; None when there is nothing to choose."""
    texts = {write(value): value for value in values}
    if direction not in ("higher", "lower") or len(texts) < 2:
        return None
    return (max if direction == "higher" else min)(texts, key=lambda text: texts[text])


def wide(
    rows: Sequence[Row],
    title: str,
    *corner: str,
    form: Writer | None = None,
    forms: Mapping[str, Writer] | None = None,
    note: str = "",
    changes: bool = False,
    within: Sequence[str] = (),
    explain: Sequence[str] = (),
) -> Table:
    """A table of dictionaries, one per line, whose keys are the heads, but for those of the `corner`.

    form     of numbers; `forms` are those of some heads, and counts have their own
    changes  bold marks a change for the better; else an arrow in a head tells which value of a column is bold
    within   columns: only lines of equal values there are compared with each other
    explain  metrics whose sentences stand below
    """
    own = dict.fromkeys(COUNTED, COUNT) | dict(forms or {})
    better = {name: "neither" if name in own else "higher" for row in rows for name in row} if changes else {}
    names = dict.fromkeys(name for row in rows for name in row if name not in corner)
    heads = [Head(name, name, better=better.get(name), form=own.get(name, form)) for name in names]
    lines = [Column(name, keep=True) for name in corner]
    made = table(rows, title, lines=lines, heads=heads, note=note, mark="change" if changes else "best", within=within)
    return replace(made, legend=legend(explain))


def explained_once(tables: Iterable[Table], known: set[str] | None = None) -> list[Table]:
    """The tables with every metric explained where it is first seen; `known` are those explained before."""
    known = set() if known is None else known
    result = []
    for made in tables:
        fresh = tuple(entry for entry in made.legend if entry[0] not in known)
        known.update(name for name, _ in fresh)
        result.append(replace(made, legend=fresh))
    return result
