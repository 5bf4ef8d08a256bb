"""Findings of `nescio rank` and `nescio reliability`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nescio.commands._output import Format, json_of, say


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


def print_findings(sentences: Sequence[str], tables: Sequence[Any], notes: Sequence[str] = ()) -> None:
    """Sentences and tables for people; notes go to stderr."""
    from rich.text import Text

    from nescio.report.text import make_console, print_terminal

    console = make_console()
    console.print(Text(" ".join(sentences)), end="\n\n")
    print_terminal(tables, console)
    for note in notes:
        print(note, file=sys.stderr)
