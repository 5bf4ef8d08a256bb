"""Output formats of commands that print rows: terminal tables, JSON, CSV, Markdown, LaTeX."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from nescio.api.results import ApiResult
from nescio.errors import BadInput
from nescio.options import Leaf, argument, option, with_flags
from nescio.rows import without_empty

Format = Literal["table", "json", "csv", "markdown", "latex"]
TextOrJson = Literal["text", "json"]


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """Options of the output of a command that may write a page."""

    output: str | None = option(None, unset="no page", group="output")
    format: Format = option("table", group="output")


def emit(result: ApiResult, format: str, *, output: str | None = None, brief: bool = True) -> int:
    """Print a result in one of the formats, and write its page if `output` names a folder; return the exit code."""
    page = result.report(output) if output else None
    if format == "json":
        say(json_of(result.plain()))
    elif format in ("csv", "markdown", "latex"):
        say(result.text(format))
    else:
        result.show(brief)
        if page:
            say(f"Wrote the page to {page}.")
    return result.exit_code


def name_options(result: ApiResult, leaves: Sequence[Leaf]) -> None:
    """Replace the names of fields by those of options, in the reasons and notes of a result."""
    for contained in result.contents:
        for entry in getattr(contained, "reasons", ()):
            if isinstance(entry, dict):
                entry["reason"] = with_flags(entry["reason"], leaves)
        notes = getattr(contained, "notes", None)
        if isinstance(notes, list):
            notes[:] = [with_flags(note, leaves) for note in notes]


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


def say(text: str) -> None:
    print(text, end="" if text.endswith("\n") else "\n")


def json_of(value: object) -> str:
    """JSON for stdout; rows of results are without the columns that are empty in all of them."""
    from nescio.report.text import json_text

    text = json_text(_without_empty_cells(getattr(value, "rows", value)))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # what the terminal lacks, as \u2192, is the same JSON
        text = json.dumps(json.loads(text), indent=2)
    return text


def _without_empty_cells(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_empty_cells(content) for name, content in value.items()}
    if isinstance(value, (list, tuple)) and all(isinstance(row, dict) and "metric" in row for row in value):
        return without_empty(value)
    return [_without_empty_cells(content) for content in value] if isinstance(value, (list, tuple)) else value


def print_entry(name: str, function: Callable[..., object]) -> int:
    """Print the signature and the documentation of a registered function."""
    say(f"{name}{inspect.signature(function)}\n\n{inspect.getdoc(function)}")
    return 0
