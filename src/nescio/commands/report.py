"""The tables and the page of a study again, from its rows alone: nothing is trained, and torch is not needed.

SOURCE is the store of `nescio run`, or a file rows.parquet that a report holds (with plan.json beside it, if it is
there). A store may hold several studies: the newest is taken, unless --study names another, or several. Studies of one
protocol, in one store or in several, are joined: one page, whose tables hold the lines of all.

Tables and figures have names that carry their protocol: --only uimnet/table2 writes that one; the bare name is enough
where one protocol alone has it. A table is NAME.md, NAME.tex and NAME.csv (one line per cell); a figure is NAME.svg,
and what it shows NAME-points.csv, its columns called as the axes.

Exit code: 0 fine; 1 everything that --only names is empty, and the reason is printed; 2 bad input.

examples:
  nescio report store
  nescio report results/uimnet/rows.parquet --to page
  nescio report monday/rows.parquet tuesday/rows.parquet --to both
  nescio report store --study 3b76,4ca4 --to both
  nescio report store --only selective/table1,fig5,fig6 --to figures
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nescio.commands._output import formats, json_of, say
from nescio.errors import BadInput
from nescio.options import argument, option

if TYPE_CHECKING:
    from nescio.report.studies import Study
    from nescio.report.tables import Table
    from nescio.work.store import Run


@dataclass(frozen=True, kw_only=True)
class Options:
    source: tuple[str, ...] = argument("stores, or Parquet files of rows", metavar="SOURCE")
    to: str | None = option(
        None,
        "write the page, tables and rows there",
        metavar="DIR",
        unset="SOURCE/report, of a store PROTOCOL below it",
    )
    only: tuple[str, ...] = option(
        (), "tables and figures by name, comma-separated", metavar="NAMES", unset="all of them, as a page"
    )
    study: tuple[str, ...] = option(
        (), "which of the store, by key", metavar="KEYS", unset="the newest; with --only, of every protocol"
    )
    format: str = formats()


def run(options: Options) -> int:
    from nescio.report.studies import joined

    sources, keys = [Path(source) for source in options.source], options.study or (None,)
    if len(sources) > 1 and options.study:
        raise BadInput("--study chooses within one store: give one SOURCE, or omit it.")
    if len(sources) * len(keys) > 1 and not options.to and options.format == "table":
        raise BadInput("Several studies are joined into a new report: say where it shall lie, with --to DIR.")
    if options.only and len(sources) == len(keys) == 1:
        studies = _studies(sources[0], keys[0])
    else:
        studies = [joined([_newest(source, key) for source in sources for key in keys])]
    beside = (sources[0] if sources[0].is_dir() else sources[0].parent) / "report"
    if options.only:
        return _only(studies, Path(options.to or beside), options)
    if not _alone(sources[0]):
        beside /= studies[0].protocol
    _whole(studies[0], Path(options.to or beside), options)
    return 0


def _whole(study: Study, folder: Path, options: Options) -> None:
    """A study's page in a folder and the first look on the terminal, or its rows or tables in another form."""
    from nescio.protocols.base import registry
    from nescio.report.blocks import tables_of
    from nescio.report.studies import print_story, write_story
    from nescio.report.text import latex, markdown, rows_csv

    protocol = registry[study.protocol]
    story = protocol.story(study)
    if options.to or options.format == "table":
        page = write_story(study, story, folder)
    if options.format == "table":
        print_story(study, story, protocol.first_look(study))
        say(f"The page is {page}; all tables and rows lie beside it.")
    elif options.format == "json":
        say(json_of(study.rows))
    elif options.format == "csv":
        say(rows_csv(study.rows))
    else:
        say((markdown if options.format == "markdown" else latex)(tables_of(story)))


def _only(studies: Sequence[Study], folder: Path, options: Options) -> int:
    """Single tables and figures: written to a folder, or printed alone in another form."""
    from nescio.protocols.base import named_reports
    from nescio.report.blocks import tables_of
    from nescio.report.named import write_named
    from nescio.report.text import latex, markdown, tables_csv, terminal

    made = named_reports(studies, [name.strip() for name in options.only])
    for report, blocks in made.items():
        if not blocks:
            print(report.lacking, file=sys.stderr)
    tables = [table for blocks in made.values() for table in tables_of(blocks)]
    files = write_named(made, folder) if options.to or options.format == "table" else []
    if options.format == "table":
        terminal(tables)
        if files:
            say(f"Written to {folder}: {', '.join(file.name for file in files)}.")
    elif options.format == "json":
        say(json_of([{"table": table.title, "lines": _lines(table)} for table in tables]))
    else:
        say({"markdown": markdown, "latex": latex, "csv": tables_csv}[options.format](tables))
    return 0 if any(made.values()) else 1


def _lines(table: Table) -> list[dict[str, Any]]:
    return [
        dict(zip(table.corner, labels, strict=True))
        | {head: None if cell is None else cell.value for head, cell in zip(table.heads, cells, strict=True)}
        for labels, cells in table.lines
    ]


def _newest(source: Path, key: str | None) -> Study:
    """The newest study of a store, or that of a file of rows."""
    if _alone(source):
        return _from_file(source)
    runs = _runs(source, key)
    if len(runs) > 1 and key is None:
        others = ", ".join(f"{run.key} ({run.recipe.get('protocol')})" for run in runs[1:6])
        others += f" and {len(runs) - 6} more, which `nescio runs` lists" if len(runs) > 6 else ""
        print(f"This is the newest of {len(runs)} studies; --study names the others: {others}.", file=sys.stderr)
    return _from_store(source, runs[0])


def _studies(source: Path, key: str | None) -> list[Study]:
    """The newest study of each protocol in a store, the newest first, or that of a file of rows."""
    if _alone(source):
        return [_from_file(source)]
    newest: dict[str, Run] = {}
    for run in _runs(source, key):
        newest.setdefault(str(run.recipe.get("protocol")), run)
    return [_from_store(source, run) for run in newest.values()]


def _from_file(source: Path) -> Study:
    from nescio.protocols.base import upgraded
    from nescio.report.studies import read_study

    return upgraded(read_study(source))


def _from_store(source: Path, run: Run) -> Study:
    from nescio.protocols.base import read_kept
    from nescio.work.store import Store

    return read_kept(Store(source), run)


def _alone(source: Path) -> bool:
    if not source.exists():
        raise BadInput(f"There is no store and no file of rows at {source}.")
    return source.is_file() or (source / "rows.parquet").is_file()


def _runs(source: Path, key: str | None) -> list[Run]:
    """The finished studies of a store whose key begins so, the newest first."""
    from nescio.protocols.base import kept
    from nescio.work.store import Store

    runs = kept(Store(source))
    if not runs:
        raise BadInput(f"{source} holds no study: `nescio run PROTOCOL --store {source}` makes or finishes one.")
    chosen = [run for run in runs if key is None or run.key.startswith(key)]
    if not chosen:
        raise BadInput(f"{source} holds no study {key}. There are, newest first: {', '.join(r.key for r in runs)}.")
    return chosen
