"""Reports by name: single tables and figures of a benchmark, such as uimnet/table2.

@report("uimnet/table2", needs="rows of the test split")
def table_2(frame: Frame) -> Blocks:
    return table(frame.where(split="test", measure=None), "In-distribution results", …)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nescio.errors import BadInput, did_you_mean
from nescio.files import write_file
from nescio.registry import Registry
from nescio.report.blocks import Block, Blocks, figures_of, flatten, tables_of
from nescio.report.frame import Frame
from nescio.report.pages import render_figure
from nescio.report.studies import Study
from nescio.report.text import latex, markdown, tables_csv

F = TypeVar("F", bound=Callable[..., Blocks])


@dataclass(frozen=True)
class Report:
    """A function from rows to blocks, named BENCHMARK/NAME; rows without its data give no blocks."""

    name: str
    function: Callable[[Frame], Blocks]
    needs: str = ""  # rows that it needs, as a noun phrase

    @property
    def benchmark(self) -> str:
        """The benchmark of the name."""
        return self.name.partition("/")[0]

    @property
    def short_name(self) -> str:
        """The name without the benchmark."""
        return self.name.partition("/")[2]

    @property
    def empty_reason(self) -> str:
        """Message about an empty report."""
        return f"{self.name} is empty: it needs {self.needs or 'other rows'}."

    def blocks(self, frame: Frame) -> list[Block]:
        """Build the blocks of rows."""
        return flatten([self.function(frame)])


registry: Registry[Report] = Registry("report")


def report(name: str, *, needs: str = "") -> Callable[[F], F]:
    """Register a function of a Frame as the report BENCHMARK/NAME and return it unchanged."""

    def register(function: F) -> F:
        registry.add(name, Report(name, function, needs))
        return function

    return register


def report_names(benchmark: str) -> list[str]:
    """Return the short names of a benchmark's reports."""
    return [entry.short_name for entry in registry.parts() if entry.benchmark == benchmark]


def find_report(name: str, benchmarks: Sequence[str] | None = None) -> Report:
    """Return a report by its full name, or by a short name that only one of the benchmarks has (default: all)."""
    reports = [entry for entry in registry.parts() if benchmarks is None or entry.benchmark in benchmarks]
    if "/" in name:
        report = registry[name]
        if report not in reports:
            raise BadInput(
                f"{name} needs a study of benchmark {report.benchmark}; these are of {', '.join(benchmarks or ())}."
            )
        return report
    candidates = [entry for entry in reports if entry.short_name == name]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise BadInput(
            f"There are several reports named {name}: write {' or '.join(entry.name for entry in candidates)}."
        )
    if not reports:
        raise BadInput(f"The tables of {', '.join(benchmarks or ())} have no names; omit only.")
    owner = next((entry.benchmark for entry in registry.parts() if entry.short_name == name), None)
    names = list(dict.fromkeys(entry.short_name for entry in reports))
    hint = f" Benchmark {owner} has one: `nescio run {owner}` makes a study of it." if owner else ""
    hint = hint or did_you_mean(name, names)
    raise BadInput(f"There is no report named {name!r}.{hint} There are: {', '.join(names)}.")


def run_reports(studies: Sequence[Study], names: Sequence[str]) -> dict[Report, list[Block]]:
    """Build the named reports of these studies, at most one study per benchmark."""
    by_benchmark = {study.benchmark: study for study in reversed(studies)}
    reports = dict.fromkeys(find_report(name, list(by_benchmark)) for name in names)
    return {report: report.blocks(by_benchmark[report.benchmark].frame) for report in reports}


def write_reports(built: Mapping[Report, Sequence[Block]], folder: str | Path) -> list[Path]:
    """Write tables as NAME.md, .tex and .csv, figures as NAME.svg and NAME-points.csv; return the paths.

    Several figures of a report have their keys after its name, such as fig1-fog-auroc.svg. Reports of two benchmarks
    with one short name are written as BENCHMARK-NAME.
    """
    folder, written = Path(folder), []
    name_counts = Counter(report.short_name for report in built)
    for report, blocks in built.items():
        name = report.short_name if name_counts[report.short_name] == 1 else f"{report.benchmark}-{report.short_name}"
        for file, text in _texts(name, blocks).items():
            written.append(write_file(folder / file, text))
    return written


def _texts(name: str, blocks: Sequence[Block]) -> dict[str, str]:
    tables, figures, texts = tables_of(blocks), figures_of(blocks), dict[str, str]()
    if tables:
        texts = {f"{name}.md": markdown(tables), f"{name}.tex": latex(tables), f"{name}.csv": tables_csv(tables)}
    for figure in figures:
        key = figure.key.removeprefix(f"{name}-")
        file_name = f"{name}-{key}" if len(figures) > 1 else name
        texts[f"{file_name}.svg"], texts[f"{file_name}-points.csv"] = render_figure(figure)
    return texts
