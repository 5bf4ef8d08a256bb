"""Studies: pages, summaries and exit codes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from nescio.commands._output import json_of, say
from nescio.errors import BadInput, describe_error
from nescio.files import read_list, write_file
from nescio.report.studies import Study
from nescio.rows import COLUMNS


def end(study: Study, folder: Path | None, others: Mapping[str, str] | None = None) -> int:
    """Print a summary and write the page, or print the rows as JSON if there is no folder; list the failures.

    others  pages that this one links to: address → name
    Returns 2 if nothing that was given could be used, 1 if something failed.
    """
    failed = [f"{failure.name}: {failure.reason}" for failure in study.failures]
    if folder is None:
        say(json_of(study.frame.rows))
        for note in study.notes:
            print(note, file=sys.stderr)
    elif study.rows:
        try:
            show(study, folder, others)
        except BrokenPipeError:  # who reads has read enough; the page is written
            raise
        except OSError as error:
            failed.append(f"writing the report: {describe_error(error, folder)}")
    if not study.rows and not failed:
        failed.append("; ".join(study.notes) or "The study has no result: no network and no rows fit its plan.")
    for line, times in Counter(failed).items():
        print(f"failed{f' {times} times' if times > 1 else ''}: {line}", file=sys.stderr)
    if study.failures and not study.rows and all(failure.refused for failure in study.failures):
        return 2
    return 1 if failed else 0


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
    print(f"{folder} has the page of another study, which stays: this page is in {beside}.", file=sys.stderr)
    return beside


def show(study: Study, folder: Path, others: Mapping[str, str] | None = None) -> None:
    """Write the page, then print a summary, so that a closed pipe does not prevent the page."""
    from nescio.benchmarks.base import registry
    from nescio.report.blocks import Story
    from nescio.report.studies import print_story, write_story

    benchmark, page, mark = registry[study.benchmark], folder / "index.html", folder / ".made"
    fingerprint = _fingerprint(study, others)
    lead = _lead_of(page, mark, fingerprint)
    story = Story("", lead, []) if lead is not None else benchmark.story(study)  # all of it takes seconds
    try:
        if lead is None:
            mark.unlink(missing_ok=True)  # a page that is being written is not a page
            page = write_story(study, story, folder, others)
            write_file(mark, json.dumps([fingerprint, list(story.lead)]))
    finally:  # print even if the page cannot be written
        print_story(study, story, benchmark.first_look(study))
    say(f"\nThe page is {page}; tables and rows are in the same folder.")


def _lead_of(page: Path, mark: Path, fingerprint: str) -> list[str] | None:
    """The first sentences of an existing page that is up to date; None if it must be written."""
    try:
        before, lead = read_list(mark)
    except (OSError, ValueError, TypeError):
        return None
    return list(lead) if page.is_file() and before == fingerprint else None


def _fingerprint(study: Study, others: Mapping[str, str] | None) -> str:
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
        repr((code, can_draw(), nescio.__version__, study.key or files(study), study.times, others)).encode()
    ).hexdigest()
