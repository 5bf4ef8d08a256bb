"""Write the tables and the page of a finished study from its rows; torch is not needed.

SOURCE is the store of `nescio run`, or a file rows.parquet of a report, with plan.json in the same folder. Every study
of a store gets a page, and --study selects some by key. Several studies of one benchmark are joined to one page. Other
formats print the newest study. SOURCE is only read.

--only uimnet/table2 writes one table or figure. The bare name is enough if it is unique. A table is written as NAME.md,
NAME.tex and NAME.csv (one line per cell). A figure is written as NAME.svg, with its data in NAME-points.csv.

Exit code: 0 done, 1 nothing to show for --only or a damaged study was left out, 2 bad input.

examples:
  nescio report store
  nescio report results/uimnet/rows.parquet --output page
  nescio report monday/rows.parquet tuesday/rows.parquet --output both
  nescio report store --study 3b76,4ca4 --output both
  nescio report store --only selective/table1,fig5,fig6 --output figures
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nescio.api.results import ApiResult, status
from nescio.api.studies import BenchmarkResult
from nescio.commands._output import Format, emit, report_folder, say
from nescio.errors import BadInput
from nescio.options import argument, option
from nescio.report.blocks import tables_of
from nescio.report.tables import Table
from nescio.report.text import print_terminal, tables_csv
from nescio.rows import Row

if TYPE_CHECKING:
    from nescio.report.studies import Study
    from nescio.work.store import Run


FOLDER = "nescio-report"  # default output folder: a SOURCE is only read


@dataclass(frozen=True, kw_only=True)
class Options:
    source: tuple[str, ...] = argument("stores, or Parquet files of rows", metavar="SOURCE")
    output: str | None = option(None, unset="nescio-report/BENCHMARK-KEY; with --only, nescio-report")
    only: tuple[str, ...] = option((), "tables and figures by name", metavar="NAME,…", unset="all, as a page")
    study: tuple[str, ...] = option(
        (), "studies of the store by key", metavar="KEY,…", unset="all; with --only, the newest of every benchmark"
    )
    format: Format = option("table", group="output")


def run(options: Options) -> int:
    from nescio.benchmarks.base import page_name
    from nescio.report.studies import joined

    sources, keys = [Path(source) for source in options.source], options.study or (None,)
    if len(sources) > 1 and options.study:
        raise BadInput("--study chooses within one store: give one SOURCE, or omit it.")
    whole = not (options.study or options.only) and options.format == "table"
    if whole and len(sources) == 1 and not _is_rows_file(sources[0]):
        return _report_all(sources[0], options)
    damaged: list[Exception] = []
    if options.only and len(sources) == len(keys) == 1:
        studies = _studies(sources[0], keys[0], damaged)
    else:
        studies = [joined([_newest_study(source, key, damaged) for source in sources for key in keys])]
    for sentence in dict.fromkeys(map(str, damaged)):
        status(f"left out: {sentence}")
    with _explain_missing_columns(sources):
        if options.only:
            code = _report_selection(studies, report_folder(options.output, ".", FOLDER), options)
        else:
            code = _report_study(studies[0], report_folder(options.output, ".", FOLDER, page_name(studies[0])), options)
    return max(code, 1 if damaged else 0)


@contextmanager
def _explain_missing_columns(sources: Sequence[Path]) -> Iterator[None]:
    """Explain missing columns of rows and plans that another program may have written.

    Studies of stores are byte for byte as nescio wrote them: an error there is a bug of nescio, and is not hidden.
    """
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        if not any(map(_is_rows_file, sources)):
            raise
        names = ", ".join(map(str, sources))
        raise BadInput(
            f"{names} cannot be shown: its rows or its plan lack what nescio writes ({type(error).__name__}: {error})."
        ) from error


def _report_all(source: Path, options: Options) -> int:
    """Write the page of every study of a store, newest first; return 1 if one cannot be read."""
    from nescio.benchmarks.base import page_name

    runs, damaged = _runs(source, None), list[Exception]()
    for run in runs:
        study = _first_readable(source, [run], damaged)
        if study is None:
            status(f"left out: {damaged[-1]}")
            continue
        if len(runs) > 1:
            reports = "".join(f", made on {entry.date} with `{entry.command}`" for entry in study.provenance)
            say(f"# {study.benchmark} {run.key}{reports}\n")
        folder = report_folder(None, options.output or ".", *(() if options.output else (FOLDER,)), page_name(study))
        _report_study(study, Path(options.output) if options.output and len(runs) == 1 else folder, options)
    if len(damaged) == len(runs):
        raise damaged[0]
    return 1 if damaged else 0


def _report_study(study: Study, folder: Path, options: Options) -> int:
    """Write a study's page and print a summary, or print its rows or tables in another format."""
    result = StudyTables(study)
    page = result.report(folder) if options.output or options.format == "table" else None
    emit(result, options.format)
    if options.format == "table":
        say(f"Wrote the page to {page}, and all tables and rows to the same folder.")
    return 0


def _report_selection(studies: Sequence[Study], folder: Path, options: Options) -> int:
    """Write selected tables and figures to a folder, or print them in another format."""
    from nescio.benchmarks.base import named_reports
    from nescio.report.named_reports import write_reports

    reports = named_reports(studies, [name.strip() for name in options.only])
    for report, blocks in reports.items():
        if not blocks:
            status(report.empty_reason)
    files = write_reports(reports, folder) if options.output or options.format == "table" else []
    emit(SelectedTables([table for blocks in reports.values() for table in tables_of(blocks)]), options.format)
    if files and options.format == "table":
        say(f"Wrote to {folder}: {', '.join(file.name for file in files)}.")
    return 0 if any(reports.values()) else 1


class StudyTables(BenchmarkResult):
    """A finished study, whose rows are as they were written."""

    @property
    def rows(self) -> list[Row]:  # type: ignore[override]
        return self.study.rows


@dataclass(repr=False)
class SelectedTables(ApiResult):
    """Selected tables and figures of studies."""

    selected: list[Table]

    def tables(self, brief: bool = True) -> list[Table]:
        return self.selected

    def text(self, format: str) -> str:
        return tables_csv(self.selected) if format == "csv" else super().text(format)

    def show(self, brief: bool = True) -> None:
        print_terminal(self.selected)

    def plain(self) -> object:
        return [
            {
                "table": table.title,
                "lines": [
                    dict(zip(table.index, labels, strict=True))
                    | {head: cell and cell.value for head, cell in zip(table.columns, cells, strict=True)}
                    for labels, cells in table.rows
                ],
            }
            for table in self.selected
        ]


def _newest_study(source: Path, key: str | None, damaged: list[Exception]) -> Study:
    """The newest study of a store, or that of a file of rows; errors of unreadable studies are added to `damaged`."""
    if _is_rows_file(source):
        return _from_file(source)
    runs = _runs(source, key)
    if len(runs) > 1 and key is None:
        others = ", ".join(f"{run.key} ({run.config.get('benchmark')})" for run in runs[1:6])
        others += f" and {len(runs) - 6} more, which `nescio runs` lists" if len(runs) > 6 else ""
        status(f"This is the newest of {len(runs)} studies; --study names the others: {others}.")
    study = _first_readable(source, runs if key is None else runs[:1], damaged)
    if study is None:
        raise damaged[0]
    return study


def _studies(source: Path, key: str | None, damaged: list[Exception]) -> list[Study]:
    """The newest study of each benchmark in a store, the newest first, or that of a file of rows."""
    if _is_rows_file(source):
        return [_from_file(source)]
    runs: dict[str, list[Run]] = {}
    for run in _runs(source, key):
        runs.setdefault(str(run.config.get("benchmark")), []).append(run)
    studies = [
        study
        for same_benchmark in runs.values()
        if (study := _first_readable(source, same_benchmark, damaged)) is not None
    ]
    if not studies:
        raise damaged[0]
    return studies


def _first_readable(source: Path, runs: Sequence[Run], damaged: list[Exception]) -> Study | None:
    """The first study that can be read."""
    from nescio.benchmarks.base import read_kept
    from nescio.work.store import Store
    from nescio.work.store_errors import StoreError

    for run in runs:
        try:
            return read_kept(Store(source), run)
        except (StoreError, BadInput) as error:
            damaged.append(error)
    return None


def _from_file(source: Path) -> Study:
    from nescio.report.studies import read_study

    return read_study(source)


def _is_rows_file(source: Path) -> bool:
    if not source.exists():
        raise BadInput(f"There is no store and no file of rows at {source}.")
    return source.is_file() or (source / "rows.parquet").is_file()


def _runs(source: Path, key: str | None) -> list[Run]:
    """The finished studies of a store whose key begins so, the newest first."""
    from nescio.benchmarks.base import kept
    from nescio.work.store import Store

    runs = kept(Store(source))
    if not runs:
        raise BadInput(f"{source} contains no study: `nescio run BENCHMARK --store {source}` creates or finishes one.")
    chosen = [run for run in runs if key is None or run.key.startswith(key)]
    if not chosen:
        raise BadInput(f"{source} contains no study {key}. There are, newest first: {', '.join(r.key for r in runs)}.")
    return chosen
