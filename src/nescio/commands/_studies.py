"""Studies: pages, summaries and exit codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from nescio.api.results import status
from nescio.api.studies import BenchmarkResult
from nescio.commands._output import json_of, say
from nescio.errors import BadInput, describe_error
from nescio.files import read_list, write_file
from nescio.report.studies import Study
from nescio.rows import COLUMNS


def emit_study(result: BenchmarkResult, folder: Path | None) -> int:
    """Print a summary and write the page, or print the rows as JSON without a folder; list the failures."""
    code, failures = result.exit_code, result.failure_lines()
    if folder is None:
        say(json_of(result.plain()))
        for note in result.notes:
            status(note)
    elif result.study.rows:
        try:
            _show(result, folder)
        except BrokenPipeError:  # the reader closed the pipe; the page is written
            raise
        except OSError as error:
            code = code or 1
            failures.append(f"failed: writing the report: {describe_error(error, folder)}")
    for line in failures:
        status(line)
    return code


def page_folder(folder: Path, study: Study) -> Path:
    """The folder for a study's page, or a sibling folder if it contains the page of another study."""
    from nescio.report.studies import read_study
    from nescio.report.text import json_text

    if not study.rows or not (folder / "index.html").is_file():
        return folder
    try:
        before = read_study(folder)
    except (BadInput, OSError):  # not a page of nescio
        before = None
    if before is not None and before.benchmark == study.benchmark and before.plan == json.loads(json_text(study.plan)):
        rows = {tuple(map(row.get, COLUMNS)) for row in study.rows}
        if before.failures or all(tuple(map(row.get, COLUMNS)) in rows for row in before.rows):
            return folder
    beside = folder.with_name(f"{folder.absolute().name}-{study.key[:8]}")
    status(f"{folder} has the page of another study, which stays: this page is in {beside}.")
    return beside


def _show(result: BenchmarkResult, folder: Path) -> None:
    """Write the page, then print a summary, so that a closed pipe does not prevent the page."""
    page, mark = folder / "index.html", folder / ".made"
    fingerprint = _fingerprint(result.study, result.links)
    lead = _lead_of(page, mark, fingerprint)
    try:
        if lead is None:
            mark.unlink(missing_ok=True)  # a page that is being written is not a page
            page = result.report(folder)
            write_file(mark, json.dumps([fingerprint, result.sentences()]))
        else:
            result.lead = lead  # the whole story takes seconds
    finally:  # print even if the page cannot be written
        result.show()
    say(f"\nThe page is {page}; tables and rows are in the same folder.")


def _lead_of(page: Path, mark: Path, fingerprint: str) -> list[str] | None:
    """The first sentences of an existing page that is up to date; None if it must be written."""
    try:
        before, lead = read_list(mark)
    except (OSError, ValueError, TypeError):
        return None
    return list(lead) if page.is_file() and before == fingerprint else None


def _fingerprint(study: Study, links: Mapping[str, str]) -> str:
    """Digest of a page's inputs: the study, and the code that writes the page."""
    import nescio
    from nescio.report.pages import can_draw
    from nescio.report.studies import files

    source = Path(nescio.__file__).parent
    code = [
        (str(path), path.stat().st_mtime_ns)
        for room in ("report", "benchmarks")
        for path in sorted((source / room).rglob("*"))
        if path.suffix in (".py", ".html", ".css", ".js")
    ]
    return sha256(
        repr((code, can_draw(), nescio.__version__, study.key or files(study), study.times, {**links})).encode()
    ).hexdigest()
