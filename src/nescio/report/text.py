"""Stories and tables as Markdown, LaTeX and terminal text; rows and cells as CSV and strict JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nescio.predictions.formats.csv import escaped
from nescio.report.blocks import Block, Definitions, Prose, Section, Story, walk
from nescio.report.tables import MISSING, Cell, Table
from nescio.rows import COLUMNS, without_empty

if TYPE_CHECKING:
    from rich.console import Console

Source = Story | Table | Iterable[Block]
JOINT = " · "  # between the labels of a line where they share a column
SIGNED = re.compile(r"[+\-][\d.,e+\- %±\[\]]*")  # a number with its spread, interval or percent sign: no formula


def render_code(sentence: str, escape: Callable[[str], str], code: str) -> str:
    """A sentence in another language; what stands between backticks is code there."""
    parts = sentence.split("`")
    return "".join(code.format(escape(part)) if at % 2 else escape(part) for at, part in enumerate(parts))


def _sections(source: Source) -> Iterator[Section]:
    """The parts of a document; the first of a story's is its title and lead."""
    if isinstance(source, Story):
        yield Section("", source.title, [Prose(source.lead, lead=True)])
        yield from source.sections
    else:
        yield Section("", "", [source] if isinstance(source, Table) else list(source))


def _flow(section: Section) -> list[Block]:
    """What of a section can be written: all blocks one after the other, its words first."""
    return list(walk([Prose([section.intro] if section.intro else []), *section.blocks]))


# ---- Markdown


def markdown(source: Source) -> str:
    """A story, tables or one table as Markdown."""
    parts: list[str] = []
    for section in _sections(source):
        parts += [f"## {_md(section.title)}"] if section.title else []
        for block in _flow(section):
            if isinstance(block, Prose):
                parts += [render_code(" ".join(block.sentences), _md, "`{}`")] if block.sentences else []
            elif isinstance(block, Table):
                parts += _md_table(block, section.title)
            elif isinstance(block, Definitions):
                parts += [f"### {_md(block.title)}"] if block.title else []
                parts.append("\n".join(f"- **{_md(name)}**: {_md(sentence)}" for name, sentence in block.entries))
    return "\n\n".join(parts) + "\n" if parts else ""


def _md_table(table: Table, heading: str) -> list[str]:
    parts = [f"### {_md(table.title)}"] if table.title not in ("", heading) else []
    parts += [f"*{_md(table.note)}*"] if table.note else []
    lines = [_md_line(map(_md, (*table.index, *table.columns)))]
    lines += ["|" + " --- |" * len(table.index) + " ---: |" * len(table.columns)]
    lines += [_md_line([*map(_md, labels), *map(_md_cell, cells)]) for labels, cells in table.rows]
    parts.append("\n".join(lines))
    terms = [f"- **{_md(name)}**: {render_code(sentence, _md, '`{}`')}" for name, sentence in table.legend]
    return [*parts, "\n".join(terms)] if terms else parts


def _md(text: str) -> str:
    for mark in "\\`*_[]|<>":
        text = text.replace(mark, "\\" + mark)
    return text.replace("\n", " ")


def _md_line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


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
    """Tables as LaTeX (booktabs): best values bold, arrows in the heads, the metrics' sentences in the caption."""
    parts = []
    for section in _sections(source):
        for block in _flow(section):
            if isinstance(block, Table):
                parts.append(_tex_table(block, section.title if section.model else ""))
    return "\n\n".join(parts) + "\n" if parts else ""


def _tex_table(table: Table, model: str) -> str:
    title = ": ".join(_tex(text) for text in (model, table.title) if text)
    title += f" ({_tex(table.note)})" if table.note else ""
    words = [f"{_tex(name)}: {render_code(sentence, _tex, TEX_CODE)}" for name, sentence in table.legend]
    lines = [r"\begin{table}", r"  \centering", f"  \\caption{{{' '.join([f'{title}.', *words])}}}"]
    lines += [f"  \\begin{{tabular}}{{{'l' * len(table.index)}{'r' * len(table.columns)}}}", r"    \toprule"]
    lines += ["    " + " & ".join(map(_tex, (*table.index, *table.columns))) + r" \\", r"    \midrule"]
    above = ""
    for (first, *rest), cells in table.rows:
        if rest and above and first != above:
            lines.append(r"    \addlinespace")
        shown = "" if rest and first == above else first  # a group has its name once
        above = first
        lines.append("    " + " & ".join([*map(_tex, (shown, *rest)), *map(_tex_cell, cells)]) + r" \\")
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}"])


def _tex(text: str) -> str:
    return "".join(TEX.get(mark, mark) for mark in text.replace("\n", " "))


def _tex_cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    text = _tex(str(cell)) if cell.text is not None else _tex(str(cell)).replace("-", "$-$")
    return f"\\textbf{{{text}}}" if cell.best else text


# ---- CSV and JSON


def rows_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV without empty columns: the known ones first, numbers in full precision, nothing for None."""
    rows = without_empty(rows)
    columns = [*COLUMNS, *dict.fromkeys(key for row in rows for key in row if key not in COLUMNS)]
    columns = [name for name in columns if any(name in row for row in rows)] or list(COLUMNS)
    return _csv([columns, *([row.get(column) for column in columns] for row in rows)])


def tables_csv(tables: Iterable[Table]) -> str:
    """The cells of tables as CSV, one line each: where it stands, its numbers, and the text as it is printed."""
    lines: list[Sequence[Any]] = [("table", "line", "column", "value", "spread", "low", "high", "n", "text")]
    for table in tables:
        for (labels, head), cell in table.cells().items():
            numbers = (cell.value, cell.spread, cell.low, cell.high, cell.n)
            lines.append((table.title, JOINT.join(labels), head, *numbers, str(cell)))
    return _csv(lines)


def _csv(lines: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([_csv_cell(value) for value in line] for line in lines)
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    """Nothing for None; a text that a spreadsheet would compute gets a quote in front, unless it is a number."""
    value = "" if value is None else to_plain(value)
    return escaped(value) if isinstance(value, str) and not SIGNED.fullmatch(value) else value


def json_text(value: Any, indent: int | None = 2) -> str:
    """Strict JSON of rows, or of anything made of them: no NaN and no Infinity (they become null)."""
    return json.dumps(to_plain(getattr(value, "rows", value)), indent=indent, ensure_ascii=False, allow_nan=False)


def to_plain(value: Any) -> Any:
    """Python's own numbers, texts, lists and dicts; null for what JSON cannot hold."""
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
    """Prints a story, tables or one table with rich; a table wider than the terminal goes on below itself."""
    from rich.text import Text

    console = console or make_console()
    for section in _sections(source):
        if section.title:
            console.print(Text(section.title, style="bold underline"))
        for block in _flow(section):
            if isinstance(block, Prose) and block.sentences:
                console.print(Text(" ".join(block.sentences), "" if block.lead else "dim"), end="\n\n")
            elif isinstance(block, Table):
                _print_table(block, section.title, console)
            elif isinstance(block, Definitions):
                console.print(Text(block.title, style="bold") if block.title else "", end="\n" if block.title else "")
                console.print(_terms(block.entries))


def make_console() -> Console:
    """The terminal; a reader that stops reading (`| head -1`) is a BrokenPipeError here, as of any other output."""
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Screen()


def _print_table(table: Table, heading: str, console: Console) -> None:
    from rich.text import Text

    if table.title not in ("", heading):
        console.print(Text(table.title, style="bold"))
    if table.note:
        console.print(Text(table.note, style="dim"))
    for piece in _pieces(table, console.width):
        console.print(_rich(piece))
    console.print(_terms(table.legend) if table.legend else "", end="")
    console.print()


def _pieces(table: Table, width: int) -> list[Table]:
    """The table cut into groups of columns that fit a width, each with the labels of the lines."""
    labels = _widths(table.index, [labels for labels, _ in table.rows])
    cells = _widths(table.columns, [[MISSING if cell is None else str(cell) for cell in own] for _, own in table.rows])
    if sum(labels) + 3 * len(labels) + max(cells, default=0) > width:  # a narrow screen: labels share a column
        table = _one_label(table)
        labels = _widths(table.index, [labels for labels, _ in table.rows])
    first = sum(labels) + 3 * len(labels) - 1
    groups: list[list[str]] = [[]]
    used = first
    for head, own in zip(table.columns, cells, strict=True):
        if groups[-1] and used + own + 3 > width:
            groups.append([])
            used = first
        groups[-1].append(head)
        used += own + 3
    return [table.select(*group) for group in groups]


def fit_width(table: Table, width: int | None = None) -> Table:
    """The table with the columns that fit the terminal, its first ones."""
    return next(iter(_pieces(table, width or make_console().width)))


def _widths(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(heads, *lines, strict=True)]


def _one_label(table: Table) -> Table:
    lines = tuple(((JOINT.join(labels),), cells) for labels, cells in table.rows)
    return replace(table, index=(JOINT.join(table.index),), rows=lines)


def _rich(table: Table) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, header_style="bold")
    for name in table.index:
        shown.add_column(Text(name), no_wrap=True)
    for head in table.columns:
        shown.add_column(Text(head), justify="right", no_wrap=True)
    for labels, cells in table.rows:
        texts = [
            Text(MISSING, style="dim") if cell is None else Text(str(cell), "bold green" if cell.best else "")
            for cell in cells
        ]
        shown.add_row(*map(Text, labels), *texts)
    return shown


def _terms(terms: Sequence[tuple[str, str]]) -> Any:
    """Names on the left, their sentences on the right."""
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable.grid(padding=(0, 2, 0, 1))
    shown.add_column(ratio=1, max_width=28)
    shown.add_column(ratio=3)
    for name, sentence in terms:
        shown.add_row(Text(name, "bold dim"), Text(sentence, "dim"))
    return shown


def format_records(rows: Sequence[Mapping[str, Any]], form: str = "table") -> str:
    """Plain rows of texts as a table for people, CSV, Markdown or LaTeX."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    lines = [["" if row.get(head) is None else str(row[head]) for head in heads] for row in rows]
    if form == "csv":
        return _csv([heads, *lines])
    if form == "markdown":
        marked = [_md_line(map(_md, line)) for line in (heads, *lines)]
        return "\n".join([marked[0], "|" + " --- |" * len(heads), *marked[1:]]) + "\n"
    if form == "latex":
        marked = [" & ".join(map(_tex, line)) + r" \\" for line in (heads, *lines)]
        body = [f"\\begin{{tabular}}{{{'l' * len(heads)}}}", r"\toprule", marked[0], r"\midrule", *marked[1:]]
        return "\n".join([*body, r"\bottomrule", r"\end{tabular}"]) + "\n"
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for at, head in enumerate(heads):
        shown.add_column(Text(head), no_wrap=at == 0)
    for line in lines:
        shown.add_row(*map(Text, line))
    console = Console()
    with console.capture() as captured:
        console.print(shown)
    return captured.get()
