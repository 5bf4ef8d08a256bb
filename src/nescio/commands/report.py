"""The tables and the page of a study again, from its rows alone: nothing is trained, and torch is not needed.

SOURCE is the store of `nescio run`, or a file rows.parquet that a report holds (with plan.json beside it, if it is
there). A store may hold several studies: the newest is taken, unless --study names another, or several. Studies of one
protocol, in one store or in several, are joined: one page, whose tables hold the lines of all.

A study of pretrained models or of representations has a name for each of its tables and figures, the paper's own
(table1, fig5): --only writes those that are named, each from the newest study that has one of that name. A table is
NAME.md, NAME.tex and NAME.csv (one line a cell); a figure is NAME.svg, and what it shows NAME-points.csv, its columns
called as the axes.

Exit code: 0 fine; 1 all that --only names is empty, and the reason is said; 2 bad input.

examples:
  nescio report store
  nescio report results/uimnet/rows.parquet --to page
  nescio report monday/rows.parquet tuesday/rows.parquet --to both
  nescio report store --study 3b76,4ca4 --to both
  nescio report store --only table1,fig5,fig6 --to figures
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nescio.commands._output import formats, json_of, say
from nescio.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Options:
    source: tuple[str, ...] = argument("stores, or Parquet files of rows", metavar="SOURCE")
    to: str | None = option(
        None, "write the page, tables and rows there", metavar="DIR", unset="SOURCE/report/PROTOCOL, of one SOURCE"
    )
    only: tuple[str, ...] = option(
        (), "tables and figures by name, such as uimnet/table2", metavar="NAMES", unset="all of them, as a page"
    )
    study: tuple[str, ...] = option(
        (),
        "which of the store, by their keys",
        metavar="KEYS",
        unset="the newest; with --only, of every protocol",
    )
    format: str = formats()


def run(options: Options) -> int:
    from nescio import report
    from nescio.report.studies import joined, print_study, read_study, story_of, tables_of, write_study

    sources = [Path(source) for source in options.source]
    keys = [key for key in (options.study or "").split(",") if key] or [None]
    if len(sources) > 1 and options.study:
        raise BadInput("--study chooses within one store: give one SOURCE, or leave it out.")
    if len(sources) * len(keys) > 1 and not options.to and options.format == "table":
        raise BadInput("Several studies are joined into a new report: say where it shall lie, with --to DIR.")
    beside = sources[0] if sources[0].is_dir() else sources[0].parent
    if options.only and len(sources) == len(keys) == 1:
        studies = [read_study(place) for place in _studies(sources[0], keys[0])]
    else:
        studies = [joined([read_study(_newest(source, key)) for source in sources for key in keys])]
    if options.only:
        return _only(studies, options.only.split(","), Path(options.to or beside / "report"), options)
    held = studies[0]
    page = write_study(held, options.to or beside / "report") if options.to or options.format == "table" else None
    if options.format == "table":
        print_study(held)
        say(f"The page is {page}; all tables and rows lie beside it.")
    elif options.format == "json":
        say(json_of(held.rows))
    elif options.format == "csv":
        say(report.csv_text(held.rows))
    else:
        say({"markdown": report.markdown, "latex": report.latex}[options.format](list(tables_of(story_of(held)))))
    return 0


def _only(studies: Sequence[Any], names: list[str], folder: Path, options: Options) -> int:
    """Single tables and figures: written to a folder, or printed alone in the form that was asked for."""
    from nescio import report
    from nescio.report.studies import lacking, named, within, write_named
    from nescio.report.text import tables_csv

    first, *others = studies
    found = named(first, list(dict.fromkeys(name.strip() for name in names)), *others)
    for name, blocks in found.items():
        if not blocks:
            print(lacking(name, *studies), file=sys.stderr)
    tables = [table for blocks in found.values() for table in within(blocks)]
    if options.to or options.format == "table":
        files = write_named(found, folder)
    if options.format == "table":
        report.terminal(tables)
        if files:
            say(f"Written to {folder}: {', '.join(file.name for file in files)}.")
    elif options.format == "json":
        say(json_of([{"table": t.title, "lines": [_line(t, *line) for line in t.lines]} for t in tables]))
    else:
        forms: dict[str, Callable[[Any], str]] = {"markdown": report.markdown, "latex": report.latex}
        say((forms | {"csv": tables_csv})[options.format](tables))
    return 0 if any(found.values()) else 1


def _line(table: Any, name: str, cells: Any) -> dict[str, Any]:
    values = {head: None if cell is None else cell.value for head, cell in zip(table.heads, cells, strict=True)}
    return {table.corner: name, **values}


def _newest(source: Path, key: str | None) -> Path:
    """The folder of a study in a store, or the file itself."""
    if _alone(source):
        return source
    chosen = _runs(source, key)
    if len(chosen) > 1 and key is None:
        others = ", ".join(_words(each) for each in chosen[1:6])
        print(f"This is the newest of {len(chosen)} studies; --study tells the others: {others}.", file=sys.stderr)
    return Path(chosen[0].folder)


def _studies(source: Path, key: str | None) -> list[Path]:
    """The folders of a store's newest study of each protocol, the newest first, or the file itself."""
    if _alone(source):
        return [source]
    newest: dict[str, Path] = {}
    for each in _runs(source, key):
        newest.setdefault(str(each.recipe.get("protocol")), Path(each.folder))
    return list(newest.values())


def _alone(source: Path) -> bool:
    if not source.exists():
        raise BadInput(f"There is no store and no file of rows at {source}.")
    return source.is_file() or (source / "rows.parquet").is_file()


def _runs(source: Path, key: str | None) -> list[Any]:
    """The finished studies of a store whose key begins so, the newest first."""
    from nescio.work.store import Store

    runs = [each for each in Store(source).runs() if (each.stage, each.state) == ("study", "finished")]
    if not runs:
        raise BadInput(f"{source} holds no study: `nescio run PROTOCOL --store {source}` makes or finishes one.")
    runs.sort(key=_moment, reverse=True)
    chosen = [each for each in runs if key is None or each.key.startswith(key)]
    if not chosen:
        raise BadInput(f"{source} holds no study {key}. There are, newest first: {', '.join(r.key for r in runs)}.")
    return chosen


def _moment(each: Any) -> tuple[str, int]:
    """When a study began, to the second as it is written down; of one second, the folder that was filled last."""
    filled = each.folder.stat().st_mtime_ns
    try:
        return str(json.loads((each.folder / "env.json").read_text("utf-8"))["started"]), filled
    except (OSError, ValueError, KeyError):
        return "", filled


def _words(each: Any) -> str:
    plan, protocol = each.recipe.get("plan", {}), each.recipe.get("protocol")
    if protocol != "uimnet":
        return f"{each.key} ({protocol})"
    return f"{each.key} ({plan.get('data')}, {len(plan.get('methods', ()))} methods, {plan.get('trials')} trials)"
