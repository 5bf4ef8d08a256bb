"""Stories and tables as Markdown, LaTeX and terminal text; rows and cells as CSV and strict JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nescio.predictions.formats.csv import escaped
from nescio.report.blocks import Block, Definitions, Prose, Section, Story, walk
from nescio.report.tables import MISSING, Cell, Table
from nescio.rows import COLUMNS, Row, without_empty

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

Source = Story | Table | Iterable[Block]
JOINT = " · "  # between labels in one column
SIGNED = re.compile(r"[+\-][\d.,e+\- %±\[\]]*")  # a number with its spread, interval or percent sign, not a formula


def render_code(sentence: str, escape: Callable[[str], str], code: str) -> str:
    """Escape a sentence; text between backticks is formatted with `code`."""
    texts = sentence.split("`")
    return "".join(code.format(escape(text)) if number % 2 else escape(text) for number, text in enumerate(texts))


def _sections(source: Source) -> Iterator[Section]:
    """The sections of a document; the first one of a story is its title and lead."""
    if isinstance(source, Story):
        yield Section("", source.title, [Prose(source.lead, lead=True)])
        yield from source.sections
    else:
        yield Section("", "", [source] if isinstance(source, Table) else list(source))


def _blocks(section: Section) -> list[Block]:
    """The blocks of a section one after the other, its intro first."""
    return list(walk([Prose([section.intro] if section.intro else []), *section.blocks]))


# ---- Markdown


def markdown(source: Source) -> str:
    """Write a story, tables or one table as Markdown."""
    texts: list[str] = []
    for section in _sections(source):
        texts += [f"## {_md(section.title)}"] if section.title else []
        for block in _blocks(section):
            if isinstance(block, Prose) and block.sentences:
                separator = "  \n" if block.lead else " "
                texts.append(separator.join(render_code(sentence, _md, "`{}`") for sentence in block.sentences))
            elif isinstance(block, Table):
                texts += _md_table(block, section.title)
            elif isinstance(block, Definitions):
                texts += [f"### {_md(block.title)}"] if block.title else []
                texts.append(_md_definitions(block.entries))
    return "\n\n".join(texts) + "\n" if texts else ""


def _md_table(table: Table, section: str) -> list[str]:
    texts = [f"### {_md(table.title)}"] if table.title not in ("", section) else []
    texts += [f"*{_md(table.note)}*"] if table.note else []
    lines = [[*map(_md, labels), *map(_md_cell, cells)] for labels, cells in table.rows]
    texts.append(_md_grid((*table.index, *table.columns), lines, len(table.index)))
    return [*texts, *([_md_definitions(table.legend)] if table.legend else [])]


def _md_grid(titles: Sequence[str], lines: Iterable[Sequence[str]], left: int) -> str:
    """A table of escaped cells; all but the first `left` columns are aligned right."""
    rule = [" --- "] * left + [" ---: "] * (len(titles) - left)
    rows = [f"| {' | '.join(texts)} |" for texts in ([*map(_md, titles)], *lines)]
    return "\n".join([rows[0], f"|{'|'.join(rule)}|", *rows[1:]])


def _md_definitions(entries: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- **{_md(name)}**: {render_code(sentence, _md, '`{}`')}" for name, sentence in entries)


def _md(text: str) -> str:
    for mark in "\\`*_[]|<>":
        text = text.replace(mark, "\\" + mark)
    return text.replace("\n", " ")


def _md_cell(cell: Cell | None) -> str:
    if cell is None:
        return MISSING
    text = _md(cell.text) if cell.text is not None else str(cell).replace("*", "\\*")
    return f"**{text}**" if cell.best else text


# ---- LaTeX


TEX = {
    "\\": r"\textbackslash{}",
    **{mark: "\\" + mark for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{"↑": r"$\uparrow$", "↓": r"$\downarrow$", "−": "$-$", "·": r"$\cdot$", "×": r"$\times$"},
    **{"γ": r"$\gamma$", "τ": r"$\tau$", "ρ": r"$\rho$", "κ": r"$\kappa$", "Σ": r"$\Sigma$", "√": r"$\surd$"},
    **{"±": r"$\pm$", "→": r"$\to$", "≤": r"$\leq$", "≥": r"$\geq$", "∞": r"$\infty$"},
    **{"–": "--", "—": "---", "…": r"\ldots{}"},
}
TEX_CODE = r"\texttt{{{}}}"


def latex(source: Source) -> str:
    """Write tables as LaTeX (booktabs), with best values bold and descriptions of metrics in the captions."""
    texts = []
    for section in _sections(source):
        for block in _blocks(section):
            if isinstance(block, Table):
                texts.append(_tex_table(block, section.title if section.model else ""))
    return "\n\n".join(texts) + "\n" if texts else ""


def _tex_table(table: Table, model: str) -> str:
    title = ": ".join(_tex(text) for text in (model, table.title) if text)
    title += f" ({_tex(table.note)})" if table.note else ""
    legend = [f"{_tex(name)}: {render_code(sentence, _tex, TEX_CODE)}" for name, sentence in table.legend]
    lines, previous = list[str](), ""
    for (first_label, *other_labels), cells in table.rows:
        if other_labels and previous and first_label != previous:
            lines.append(r"\addlinespace")
        label = "" if other_labels and first_label == previous else first_label  # the label of a group is printed once
        previous = first_label
        lines.append(_tex_line([*map(_tex, (label, *other_labels)), *map(_tex_cell, cells)]))
    grid = _tex_grid((*table.index, *table.columns), lines, len(table.index), "  ")
    head = [r"\begin{table}", r"  \centering", f"  \\caption{{{' '.join([f'{title}.', *legend])}}}"]
    return "\n".join([*head, *grid, r"\end{table}"])


def _tex_grid(titles: Sequence[str], lines: Sequence[str], left: int, indent: str = "") -> list[str]:
    """The lines of a tabular; all but the first `left` columns are aligned right."""
    body = [r"\toprule", _tex_line(map(_tex, titles)), r"\midrule", *lines, r"\bottomrule"]
    begin = f"\\begin{{tabular}}{{{'l' * left}{'r' * (len(titles) - left)}}}"
    return [indent + begin, *(f"{indent}  {line}" for line in body), indent + r"\end{tabular}"]


def _tex_line(texts: Iterable[str]) -> str:
    return " & ".join(texts) + r" \\"


def _tex(text: str) -> str:
    return "".join(TEX.get(mark, mark) for mark in text.replace("\n", " "))


def _tex_cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    text = _tex(str(cell)) if cell.text is not None else _tex(str(cell)).replace("-", "$-$")
    return f"\\textbf{{{text}}}" if cell.best else text


# ---- CSV and JSON


def rows_csv(rows: Sequence[Row]) -> str:
    """Write rows as CSV in full precision, without empty columns; the standard columns come first."""
    rows = without_empty(rows)
    columns = [*COLUMNS, *dict.fromkeys(key for row in rows for key in row if key not in COLUMNS)]
    columns = [name for name in columns if any(name in row for row in rows)] or list(COLUMNS)
    return _csv([columns, *([row.get(column) for column in columns] for row in rows)])


def tables_csv(tables: Iterable[Table]) -> str:
    """Write the cells of tables as CSV, one per line: position, numbers, and printed text."""
    lines: list[Sequence[object]] = [("table", "row", "column", "value", "spread", "low", "high", "n", "text")]
    for table in tables:
        for (labels, column), cell in table.cells().items():
            numbers = (cell.value, cell.spread, cell.low, cell.high, cell.n)
            lines.append((table.title, JOINT.join(labels), column, *numbers, str(cell)))
    return _csv(lines)


def _csv(lines: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([_csv_cell(value) for value in line] for line in lines)
    return out.getvalue()


def _csv_cell(value: object) -> object:
    """Empty for None; a text that a spreadsheet would compute gets a quote in front."""
    value = "" if value is None else to_plain(value)
    return escaped(value) if isinstance(value, str) and not SIGNED.fullmatch(value) else value


def json_text(value: object, indent: int | None = 2) -> str:
    """Write rows, or anything made of them, as strict JSON; NaN and infinity become null."""
    return json.dumps(to_plain(getattr(value, "rows", value)), indent=indent, ensure_ascii=False, allow_nan=False)


def to_plain(value: object) -> object:
    """Convert to the types of JSON; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(content) for key, content in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(content) for content in value]
    if hasattr(value, "tolist"):  # NumPy arrays and numbers
        return to_plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


# ---- the terminal


def print_terminal(source: Source, console: Console | None = None) -> None:
    """Print a story, tables or one table with rich; columns that do not fit the terminal follow below."""
    from rich.text import Text

    console = console or make_console()
    for section in _sections(source):
        if section.title:
            console.print(Text(section.title, style="bold underline"))
        for block in _blocks(section):
            if isinstance(block, Prose) and block.sentences:
                separator, style = ("\n", "") if block.lead else (" ", "dim")
                console.print(Text(separator.join(block.sentences), style), end="\n\n")
            elif isinstance(block, Table):
                _print_table(block, section.title, console)
            elif isinstance(block, Definitions):
                console.print(Text(block.title, style="bold") if block.title else "", end="\n" if block.title else "")
                console.print(_definitions(block.entries))


def make_console() -> Console:
    """Return a console that raises BrokenPipeError if the reader closes the pipe, as with `| head -1`."""
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Screen()


def _print_table(table: Table, section: str, console: Console) -> None:
    from rich.text import Text

    if table.title not in ("", section):
        console.print(Text(table.title, style="bold"))
    if table.note:
        console.print(Text(table.note, style="dim"))
    for columns_table in _split_columns(table, console.width):
        console.print(_rich(columns_table))
    console.print(_definitions(table.legend) if table.legend else "", end="")
    console.print()


def _split_columns(table: Table, width: int) -> list[Table]:
    """Split the table into groups of columns that fit a width, each with the labels."""
    cells = _widths(
        table.columns, [[MISSING if cell is None else str(cell) for cell in cells] for _, cells in table.rows]
    )
    labels = _widths(table.index, [labels for labels, _ in table.rows])
    if sum(labels) + 3 * len(labels) + max(cells, default=0) > width:  # a narrow terminal
        table = _join_labels(table)
        labels = _widths(table.index, [labels for labels, _ in table.rows])
    label_width = sum(labels) + 3 * len(labels) - 1
    groups: list[list[str]] = [[]]
    width_so_far = label_width
    for column, cell_width in zip(table.columns, cells, strict=True):
        if groups[-1] and width_so_far + cell_width + 3 > width:
            groups.append([])
            width_so_far = label_width
        groups[-1].append(column)
        width_so_far += cell_width + 3
    return [table.select(*group) for group in groups]


def fit_width(table: Table, width: int | None = None) -> Table:
    """Return the table with the first columns, as many as fit the terminal."""
    return _split_columns(table, width or make_console().width)[0]


def _widths(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(titles, *lines, strict=True)]


def _join_labels(table: Table) -> Table:
    rows = tuple(((JOINT.join(labels),), cells) for labels, cells in table.rows)
    return replace(table, index=(JOINT.join(table.index),), rows=rows)


def _rich(table: Table) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    rich_table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, header_style="bold")
    for name in table.index:
        rich_table.add_column(Text(name), no_wrap=True)
    for column in table.columns:
        rich_table.add_column(Text(column), justify="right", no_wrap=True)
    for labels, cells in table.rows:
        texts = [
            Text(MISSING, style="dim") if cell is None else Text(str(cell), "bold green" if cell.best else "")
            for cell in cells
        ]
        rich_table.add_row(*map(Text, labels), *texts)
    return rich_table


def _definitions(entries: Sequence[tuple[str, str]]) -> RichTable:
    """Names on the left, their sentences on the right."""
    from rich.table import Table as RichTable
    from rich.text import Text

    rich_table = RichTable.grid(padding=(0, 2, 0, 1))
    rich_table.add_column(ratio=1, max_width=28)
    rich_table.add_column(ratio=3)
    for name, sentence in entries:
        rich_table.add_row(Text(name, "bold dim"), Text(sentence, "dim"))
    return rich_table


def format_records(records: Sequence[Row], format: str = "table") -> str:
    """Write records of texts as a table: aligned text, CSV, Markdown or LaTeX."""
    columns = list(dict.fromkeys(key for record in records for key in record))
    lines = [["" if record.get(column) is None else str(record[column]) for column in columns] for record in records]
    if format == "csv":
        return _csv([columns, *lines])
    if format == "markdown":
        return _md_grid(columns, [[*map(_md, line)] for line in lines], len(columns)) + "\n"
    if format == "latex":
        return "\n".join(_tex_grid(columns, [_tex_line(map(_tex, line)) for line in lines], len(columns))) + "\n"
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    rich_table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        rich_table.add_column(Text(column), no_wrap=number == 0)
    for line in lines:
        rich_table.add_row(*map(Text, line))
    console = Console()
    with console.capture() as captured:
        console.print(rich_table)
    return captured.get()
