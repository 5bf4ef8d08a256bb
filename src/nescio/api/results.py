"""Results of the functions of the API: rows with data frames, tables, a page, and terminal output."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from nescio.analysis.results import ResultRows, use_renderer
from nescio.rows import Row

if TYPE_CHECKING:
    from nescio.report.blocks import Block, Story
    from nescio.report.tables import Table

use_renderer(lambda: import_module("nescio.report.notebook"))


class ApiResult(ResultRows):
    """Rows of one function with its sentences, tables, page and JSON.

    exit_code  of the command that prints it: 0 done, 1 not attained or failed, 2 refused
    """

    exit_code = 0

    @property
    def contents(self) -> Sequence[object]:
        """The results with reasons and notes."""
        return [self]

    def sentences(self) -> list[str]:
        """The verdicts, which stand before the tables."""
        return []

    def tables(self, brief: bool = True) -> Sequence[Table]:
        """The tables below the verdicts; those of the terminal if `brief`."""
        return []

    def story(self) -> Story:
        """The page."""
        from nescio.report.blocks import Section, Story

        return Story("", self.sentences(), [Section("", "", list(self.tables(brief=False)))])

    def document(self) -> Story | Sequence[Block] | Sequence[Table]:
        """What Markdown and LaTeX contain."""
        return self.tables(brief=False)

    def plain(self) -> object:
        """The value for JSON."""
        return self.rows

    def text(self, format: str) -> str:
        """The rows as CSV, or the document as Markdown or LaTeX."""
        from nescio.report.text import latex, markdown, rows_csv

        if format == "csv":
            return rows_csv(self.rows)
        return (markdown if format == "markdown" else latex)(self.document())

    def show(self, brief: bool = True) -> None:
        """Print the verdicts and tables; notes go to stderr."""
        from rich.text import Text

        from nescio.report.text import make_console, print_terminal

        console = make_console()
        console.print(Text(" ".join(self.sentences())), end="\n\n")
        print_terminal(self.tables(brief), console)
        for note in getattr(self, "notes", ()):
            status(note)

    def report(self, folder: str | Path) -> Path:
        """Write the page with its tables and rows; return the path of the page."""
        from nescio.report.pages import write_page

        return write_page(self.story(), folder, rows=self.rows)

    def _repr_html_(self) -> str:
        from nescio.report.notebook import summary_html

        return summary_html(self.sentences(), self.tables()[:1])


@dataclass(repr=False)
class Records(ApiResult):
    """Rows of texts.

    lines  the rows for the terminal, if they differ
    end    a sentence below them
    """

    rows: list[Row]
    lines: list[dict[str, str]] | None = None
    end: str = ""

    def text(self, format: str) -> str:
        from nescio.report.text import format_records

        return format_records(self.rows, format)

    def show(self, brief: bool = True) -> None:
        from nescio.report.text import format_records

        print(format_records(self.rows if self.lines is None else self.lines), end="")
        if self.end:
            print(self.end)


def status(line: str) -> None:
    """Print a line about the progress or the input to stderr."""
    print(line, file=sys.stderr, flush=True)


def check_row_scores(file: str | None) -> None:
    """Refuse, before any work, an ending that no writer of row scores has."""
    if file is not None:
        from nescio.predictions.columns import writable_suffix

        writable_suffix(file)
