"""Tables as Markdown, LaTeX and rich; the rows themselves as CSV and strict JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nescio.report._tables import COLUMNS, Cell, Table, parts, unique_names

if TYPE_CHECKING:
    from rich.console import Console


def said(sentence: str, escape: Callable[[str], str], code: str) -> str:
    """A docstring's sentence in another language: what stands between backticks is code."""
    parts = sentence.split("`")
    return "".join(code.format(escape(part)) if at % 2 else escape(part) for at, part in enumerate(parts))


def markdown(source: Any, comparison: Any = None) -> str:
    """Tables as Markdown: a scorecard, a list of them, a comparison, tidy rows, one Table or several."""
    blocks = []
    for part in parts(source, comparison):
        blocks += [f"## {_md(part.title)}"] if part.title else []
        blocks += [_md(" ".join(part.sentences))] if part.sentences else []
        for table in part.tables:
            blocks += [f"### {_md(table.title)}"] if table.title else []
            blocks += [f"*{_md(table.note)}*"] if table.note else []
            lines = [_md_line([*map(_md, table.split(table.corner)), *map(_md, table.heads)])]
            lines += ["|" + " --- |" * table.labels + " ---: |" * len(table.heads)]
            lines += [_md_line([*map(_md, table.split(name)), *map(_md_cell, cells)]) for name, cells in table.lines]
            blocks.append("\n".join(lines))
            terms = [f"- **{_md(name)}**: {said(sentence, _md, '`{}`')}" for name, sentence in table.legend]
            blocks += ["\n".join(terms)] if terms else []
        blocks += ["\n".join(f"- {_md(note)}" for note in part.notes)] if part.notes else []
        terms = [f"- **{_md(what)}**: {_md(reason)}" for what, reason in part.missing]
        blocks += ["### What could not be said", "\n".join(terms)] if terms else []
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _md(text: str) -> str:
    for mark in "\\`*_[]|<>":
        text = text.replace(mark, "\\" + mark)
    return text.replace("\n", " ")


def _md_line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _md_cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    text = cell.text.replace("*", "\\*")
    return f"**{text}**" if cell.best else text


TEX = {
    "\\": r"\textbackslash{}",
    **{mark: "\\" + mark for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{"↑": r"$\uparrow$", "↓": r"$\downarrow$", "−": "$-$", "·": r"$\cdot$", "×": r"$\times$"},
    **{"γ": r"$\gamma$", "τ": r"$\tau$", "ρ": r"$\rho$", "κ": r"$\kappa$", "Σ": r"$\Sigma$", "√": r"$\surd$"},
    **{
        "±": r"$\pm$",
        "→": r"$\to$",
        "≤": r"$\leq$",
        "≥": r"$\geq$",
        "∞": r"$\infty$",
        "–": "--",
        "—": "---",
        "…": r"\ldots{}",
    },
}


TEX_CODE = r"\texttt{{{}}}"


def _tex(text: str) -> str:
    return "".join(TEX.get(mark, mark) for mark in text.replace("\n", " "))


def latex(source: Any, comparison: Any = None) -> str:
    """Tables as LaTeX (booktabs): best values bold, arrows in the heads, the metrics' sentences in the caption."""
    blocks = []
    for part in parts(source, comparison):
        for table in part.tables:
            title = ": ".join(_tex(text) for text in (part.title, table.title) if text)
            title += f" ({_tex(table.note)})" if table.note else ""
            words = [f"{_tex(name)}: {said(sentence, _tex, TEX_CODE)}" for name, sentence in table.legend]
            lines = [r"\begin{table}", r"  \centering", f"  \\caption{{{' '.join([f'{title}.', *words])}}}"]
            lines += [f"  \\begin{{tabular}}{{{'l' * table.labels}{'r' * len(table.heads)}}}", r"    \toprule"]
            heads = map(_tex, (*table.split(table.corner), *table.heads))
            lines += ["    " + " & ".join(heads) + r" \\", r"    \midrule"]
            above = ""
            for name, cells in table.lines:
                first, *rest = table.split(name)
                if rest and above and first != above:
                    lines.append(r"    \addlinespace")
                shown = "" if rest and first == above else first  # a group says its name once
                above = first
                lines.append("    " + " & ".join([*map(_tex, (shown, *rest)), *map(_tex_cell, cells)]) + r" \\")
            lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _tex_cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    text = _tex(cell.text).replace("-", "$-$")
    return f"\\textbf{{{text}}}" if cell.best else text


def csv_text(source: Any, comparison: Any = None) -> str:
    """The rows themselves as CSV with the design's columns first, numbers in full precision, nothing for None.

    Rows of several scorecards are told apart by a last column `file`.
    """
    rows = []
    if isinstance(source, Sequence) and all(hasattr(card, "rows") for card in source):
        for name, card in zip(unique_names(source), source, strict=True):
            rows += [{**row, "file": name} for row in card.rows]
    else:
        rows += getattr(source, "rows", source)
    rows += [] if comparison is None else comparison.rows
    columns = [*COLUMNS, *dict.fromkeys(key for row in rows for key in row if key not in COLUMNS)]
    return _csv([columns, *([row.get(column) for column in columns] for row in rows)])


def tables_csv(tables: Iterable[Table]) -> str:
    """The cells of tables as CSV, one line each: table, line, column, the number, and the text as it is printed."""
    lines: list[Sequence[Any]] = [("table", "line", "column", "value", "text")]
    for table in tables:
        for name, cells in table.lines:
            pairs = zip(table.heads, cells, strict=True)
            lines += [(table.title, name, head, cell.value, cell.text) for head, cell in pairs if cell is not None]
    return _csv(lines)


def _csv(lines: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows(["" if value is None else plain(value) for value in line] for line in lines)
    return out.getvalue()


def json_text(value: Any, indent: int | None = 2) -> str:
    """Strict JSON of rows, or of anything made of them: no NaN and no Infinity (they become null)."""
    return json.dumps(plain(getattr(value, "rows", value)), indent=indent, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Python's own numbers, texts, lists and dicts; null for what JSON cannot say."""
    if isinstance(value, Mapping):
        return {str(key): plain(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(held) for held in value]
    if hasattr(value, "tolist"):  # NumPy arrays and numbers
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def terminal(source: Any, console: Console | None = None, *, comparison: Any = None, more: bool = True) -> None:
    """Prints the tables with rich; a table wider than the terminal goes on below itself.

    `more`: also the second looks: rankings after calibration, groups, differences from the best.
    """
    from rich.console import Console
    from rich.text import Text

    console = console or Console()
    for part in parts(source, comparison):
        if part.title:
            console.print(Text(part.title, style="bold underline"))
        if part.sentences:
            console.print(Text(" ".join(part.sentences)))
        console.print("\n" if part.title or part.sentences else "", end="")
        for table in part.tables:
            if table.more and not more:
                continue
            if table.title:
                console.print(Text(table.title, style="bold"))
            if table.note:
                console.print(Text(table.note, style="dim"))
            for piece in _fitting(table, console.width):
                console.print(_rich(piece))
            console.print(_terms(table.legend) if table.legend else "", end="")
            console.print()
        for note in part.notes:
            console.print(Text(f"{note}\n", style="dim"))
        if part.missing:
            console.print(Text("What could not be said", style="bold"))
            console.print(_terms(part.missing), end="")
            console.print()


def grid(rows: Sequence[Mapping[str, Any]], form: str = "table") -> str:
    """Plain rows of texts as a table for people, CSV, Markdown or LaTeX."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    lines = [["" if row.get(head) is None else str(row[head]) for head in heads] for row in rows]
    if form == "csv":
        return _csv([heads, *lines])
    if form == "markdown":
        marked = [_md_line(list(map(_md, line))) for line in (heads, *lines)]
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
    with console.capture() as held:
        console.print(shown)
    return held.get()


def _terms(terms: Sequence[tuple[str, str]]) -> Any:
    """Names on the left, what is said of them on the right."""
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable.grid(padding=(0, 2, 0, 1))
    shown.add_column(ratio=1, max_width=28)
    shown.add_column(ratio=3)
    for name, sentence in terms:
        shown.add_row(Text(name, "bold dim"), Text(sentence, "dim"))
    return shown


def _rich(table: Table) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, header_style="bold")
    shown.add_column(Text(table.corner), no_wrap=True)
    for head in table.heads:
        shown.add_column(Text(head), justify="right", no_wrap=True)
    for name, cells in table.lines:
        texts = [Text("–", style="dim") if c is None else Text(c.text, "bold green" if c.best else "") for c in cells]
        shown.add_row(Text(name), *texts)
    return shown


def _fitting(table: Table, width: int) -> list[Table]:
    """The table cut into groups of columns that fit a width, each with the names of the lines."""
    names = max(len(text) for text in (table.corner, *(name for name, _ in table.lines)))
    widths = [
        max(len(head), *(len(cells[at].text) if cells[at] else 1 for _, cells in table.lines))  # type: ignore[union-attr]
        for at, head in enumerate(table.heads)
    ]
    parts: list[list[int]] = [[]]
    used = names + 2
    for at, own in enumerate(widths):
        if parts[-1] and used + own + 3 > width:
            parts.append([])
            used = names + 2
        parts[-1].append(at)
        used += own + 3
    return [
        Table(
            table.title,
            table.corner,
            tuple(table.heads[at] for at in part),
            tuple((name, tuple(cells[at] for at in part)) for name, cells in table.lines),
        )
        for part in parts
    ]
