"""Output formats of commands that print rows: terminal tables, JSON, CSV, Markdown, LaTeX."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from nescio.errors import BadInput
from nescio.options import argument, option
from nescio.rows import without_empty

Format = Literal["table", "json", "csv", "markdown", "latex"]
TextOrJson = Literal["text", "json"]


def emit(
    format: Format,
    *,
    table: Callable[[], object],
    plain: Callable[[], Any],
    rows: Callable[[], Any],
    story: Callable[[], Any],
    csv: Callable[[Any], str] | None = None,
) -> None:
    """Print a result in one of the formats; only what that format needs is computed.

    table  prints the tables for a terminal
    plain  value for JSON
    rows   rows for CSV
    story  blocks for Markdown and LaTeX
    csv    text of the rows (default: one line per row)
    """
    from nescio.report import text

    if format == "table":
        table()
    elif format == "json":
        say(json_of(plain()))
    elif format == "csv":
        say((csv or text.rows_csv)(rows()))
    else:
        say((text.markdown if format == "markdown" else text.latex)(story()))


def name_options(options: Any, *results: Any) -> None:
    """Replace the names of fields by those of options, in the reasons and notes of results."""
    from nescio.options import leaves, with_flags

    every = list(leaves(type(options)))
    for result in results:
        for entry in result.reasons:
            entry["reason"] = with_flags(entry["reason"], every)
        result.notes[:] = [with_flags(note, every) for note in result.notes]


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """The options of a command that lists the entries of a registry."""

    name: str | None = argument("name of one to show in full, with formula and source", default=None, metavar="NAME")
    format: Format = option("table", group="output")


def report_folder(output: str | None, base: str, *names: str) -> Path:
    """The folder of a report: --output, or a default folder below `base` that is no symbolic link."""
    if output:
        return Path(output)
    folder = Path(base)
    for name in names:
        folder /= name
        if folder.is_symlink():
            raise BadInput(f"{folder} is a symbolic link: name the folder to write to with --output.")
    return folder


def check_writable(folder: Path, flag: str) -> None:
    """Refuse a folder that cannot be created or written, before hours of work."""
    existing = next(above for above in (folder, *folder.absolute().parents) if above.exists())
    if not existing.is_dir():
        raise BadInput(f"{flag} {folder} cannot be written: {existing} is a file.")
    try:
        with TemporaryDirectory(dir=existing):  # permissions alone are not sufficient, for example in /proc
            pass
    except OSError:
        raise BadInput(f"{flag} {folder} cannot be written: {existing} may not be written to.") from None


def check_row_scores(file: str | None) -> None:
    """Refuse, before any work, an ending that no writer of row scores has."""
    if file is not None:
        from nescio.predictions.columns import writable_suffix

        writable_suffix(file)


def print_written_files(page: str | None, row_scores: str | None, rows: int) -> None:
    """Print which files were written."""
    if row_scores is not None:
        say(f"Wrote the scores of {rows:,} rows to {row_scores}.")
    if page is not None:
        say(f"Wrote the page to {Path(page) / 'index.html'}.")


UNITS = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3}


def size_text(size: float) -> str:
    """Bytes for people: 1.5 GB."""
    unit, scale = next((unit for unit in UNITS.items() if size >= unit[1]), ("bytes", 1))
    return f"{size / scale:.{int(scale > 1)}f} {unit}"


def say(text: str) -> None:
    print(text, end="" if text.endswith("\n") else "\n")


def json_of(value: Any) -> str:
    """JSON for stdout; rows of results are without the columns that are empty in all of them."""
    from nescio.report.text import json_text

    text = json_text(_without_empty_cells(getattr(value, "rows", value)))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # what the terminal lacks, as \u2192, is the same JSON
        text = json.dumps(json.loads(text), indent=2)
    return text


def _without_empty_cells(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_empty_cells(content) for name, content in value.items()}
    if isinstance(value, (list, tuple)) and all(isinstance(row, dict) and "metric" in row for row in value):
        return without_empty(value)
    return [_without_empty_cells(content) for content in value] if isinstance(value, (list, tuple)) else value


def print_findings(sentences: Sequence[str], tables: Sequence[Any], notes: Sequence[str] = ()) -> None:
    """Sentences and tables for people; notes go to stderr."""
    from rich.text import Text

    from nescio.report.text import make_console, print_terminal

    console = make_console()
    console.print(Text(" ".join(sentences)), end="\n\n")
    print_terminal(tables, console)
    for note in notes:
        print(note, file=sys.stderr)


def print_registry(registry: Any, facts: Callable[[str], dict[str, str]], name: str | None, format: str) -> int:
    """Print the entries of a registry, or one entry in full."""
    from nescio.report.text import format_records

    if name:
        entry = registry[name]
        function = entry.function
        say(f"{entry.name}{inspect.signature(function)}\n\n{inspect.getdoc(function)}")
        return 0
    rows = [facts(name) for name in registry]
    say(json_of(rows) if format == "json" else format_records(rows, format))
    return 0
