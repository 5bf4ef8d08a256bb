"""Reports by name: single tables and figures of a benchmark, such as uimnet/table2.

@report("uimnet/table2", needs="rows of the test split")
def table_2(frame: Frame) -> Made:
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
    """A function from rows to blocks (none where the rows do not hold what it shows), under its benchmark's name."""

    name: str
    function: Callable[[Frame], Blocks]
    needs: str = ""  # what the rows must hold, after the words "it needs"

    @property
    def benchmark(self) -> str:
        return self.name.partition("/")[0]

    @property
    def bare(self) -> str:
        return self.name.partition("/")[2]

    @property
    def lacking(self) -> str:
        """Why it is empty, in one sentence."""
        return f"{self.name} is empty: it needs {self.needs or 'rows that these are not'}."

    def blocks(self, frame: Frame) -> list[Block]:
        return flatten([self.function(frame)])


registry: Registry[Report] = Registry("report")


def report(name: str, *, needs: str = "") -> Callable[[F], F]:
    """Registers a function of a Frame as the report BENCHMARK/NAME and returns it unchanged."""

    def register(function: F) -> F:
        registry.add(name, Report(name, function, needs))
        return function

    return register


def report_names(benchmark: str) -> list[str]:
    """The bare names of a benchmark's reports."""
    return [part.bare for part in registry.parts() if part.benchmark == benchmark]


def find_report(name: str, benchmarks: Sequence[str] | None = None) -> Report:
    """A report by its full name, or by its bare name where only one of the benchmarks has one (default: of all)."""
    wanted = [part for part in registry.parts() if benchmarks is None or part.benchmark in benchmarks]
    if "/" in name:
        report = registry[name]
        if report not in wanted:
            raise BadInput(
                f"{name} needs a study of benchmark {report.benchmark}; these are of {', '.join(benchmarks or ())}."
            )
        return report
    candidates = [part for part in wanted if part.bare == name]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise BadInput(f"There are several reports named {name}: say {' or '.join(part.name for part in candidates)}.")
    if not wanted:
        raise BadInput(f"The tables of {', '.join(benchmarks or ())} have no names; omit only.")
    other = next((part.benchmark for part in registry.parts() if part.bare == name), None)
    known = list(dict.fromkeys(part.bare for part in wanted))
    hint = f" Benchmark {other} has one: `nescio run {other}` makes a study of it." if other else ""
    hint = hint or did_you_mean(name, known)
    raise BadInput(f"There is no report named {name!r}.{hint} There are: {', '.join(known)}.")


def run_reports(studies: Sequence[Study], names: Sequence[str]) -> dict[Report, list[Block]]:
    """What the named reports show of these studies, at most one study per benchmark."""
    of = {study.benchmark: study for study in reversed(studies)}
    reports = dict.fromkeys(find_report(name, list(of)) for name in names)
    return {report: report.blocks(of[report.benchmark].frame) for report in reports}


def write_reports(made: Mapping[Report, Sequence[Block]], folder: str | Path) -> list[Path]:
    """Writes tables as NAME.md, .tex and .csv, figures as NAME.svg with their points in NAME-points.csv; which files.

    Of several figures, each has its own name behind it, such as fig1-fog-auroc.svg. Reports of two benchmarks that
    share a bare name are written as BENCHMARK-NAME.
    """
    folder, written = Path(folder), []
    shared = Counter(report.bare for report in made)
    for report, blocks in made.items():
        name = report.bare if shared[report.bare] == 1 else f"{report.benchmark}-{report.bare}"
        for file, text in _texts(name, blocks).items():
            written.append(write_file(folder / file, text))
    return written


def _texts(name: str, blocks: Sequence[Block]) -> dict[str, str]:
    tables, figures, texts = tables_of(blocks), figures_of(blocks), dict[str, str]()
    if tables:
        texts = {f"{name}.md": markdown(tables), f"{name}.tex": latex(tables), f"{name}.csv": tables_csv(tables)}
    for figure in figures:
        key = figure.key.removeprefix(f"{name}-")
        own = f"{name}-{key}" if len(figures) > 1 else name
        texts[f"{own}.svg"], texts[f"{own}-points.csv"] = render_figure(figure)
    return texts
