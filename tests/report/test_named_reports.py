"""Reports have names that carry their benchmark; a bare name will do where it is unambiguous."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nescio.errors import BadInput
from nescio.registry import Registry
from nescio.report import named_reports as room
from nescio.report.blocks import Blocks, Details, Figure
from nescio.report.charts.levels import levels_chart
from nescio.report.frame import Frame
from nescio.report.named_reports import Report, find_report, report, report_names, run_reports, write_reports
from nescio.report.studies import Study
from nescio.report.tables import Table, table

ROWS = [{"metric": "auroc", "measure": name, "value": value} for name, value in (("a", 0.5), ("b", 0.7))]


def study(benchmark: str, rows: list[dict[str, Any]] = ROWS) -> Study:
    return Study(benchmark=benchmark, version=1, rows=rows)


def lines(key: str) -> Figure:
    return Figure(key, "Lines", "words", lambda: levels_chart({"a": {"x": 0.5}, "b": {"x": 0.7}}, "AUROC"))


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[Report]]:
    fresh: Registry[Report] = Registry("report")
    fresh._plugged = True
    monkeypatch.setattr(room, "registry", fresh)

    @report("one/table1", needs="two measures")
    def first(frame: Frame) -> Table | None:
        return table(frame, "T") if len(frame) > 1 else None

    @report("two/table1")
    def second(frame: Frame) -> Blocks:
        return [Details("more", [table(frame, "U")])]

    @report("two/fig5")
    def drawn(frame: Frame) -> Blocks:
        return [lines("p"), lines("q")]

    yield fresh


def test_find_report__a_full_name_or_an_unambiguous_bare_one_finds_a_report() -> None:
    assert find_report("one/table1").name == "one/table1" and find_report("fig5").benchmark == "two"
    assert find_report("table1", ["one"]).name == "one/table1" and find_report("table1", ["two"]).short_name == "table1"
    assert report_names("two") == ["table1", "fig5"]


def test_find_report__an_ambiguous_name_lists_its_candidates() -> None:
    with pytest.raises(BadInput, match="one/table1 or two/table1"):
        find_report("table1")


def test_report__an_unknown_name_says_what_there_is_and_who_has_it() -> None:
    with pytest.raises(BadInput, match=r"no report named 'fig5'. Benchmark two has one.*There are: table1"):
        find_report("fig5", ["one"])
    with pytest.raises(BadInput, match=r"two; .* of one"):
        find_report("two/fig5", ["one"])
    with pytest.raises(BadInput, match="Did you mean 'one/table1'"):
        find_report("one/tabel1")
    with pytest.raises(BadInput, match="three"):
        find_report("table1", ["three"])
    with pytest.raises(BadInput, match="two reports named 'one/table1'"):
        report("one/table1")(lambda frame: None)


def test_run_reports__a_report_reads_the_study_of_its_own_benchmark_and_says_what_it_lacks() -> None:
    made = run_reports([study("one", ROWS[:1]), study("two")], ["one/table1", "two/table1"])
    (empty, blocks), (_, others) = made.items()
    assert (
        blocks == []
        and empty.empty_reason.startswith("one/table1 ")
        and "two measures" in empty.empty_reason
        and len(others) == 1
    )
    with pytest.raises(BadInput, match="one/table1 or two/table1"):
        run_reports([study("one"), study("two")], ["table1"])


def test_write_reports__tables_and_figures_are_files_under_their_names(tmp_path: Path) -> None:
    files = write_reports(run_reports([study("two")], ["table1", "fig5"]), tmp_path)
    names = [
        "table1.md",
        "table1.tex",
        "table1.csv",
        "fig5-p.svg",
        "fig5-p-points.csv",
        "fig5-q.svg",
        "fig5-q-points.csv",
    ]
    assert [file.name for file in files] == names
    assert "| b | **0.7000** |" in (tmp_path / "table1.md").read_text()
    with (tmp_path / "table1.csv").open() as file:
        assert [float(line["value"]) for line in csv.DictReader(file)] == [0.5, 0.7]
    assert (tmp_path / "fig5-p.svg").read_text().startswith("<svg")
    assert "a,x,0.5" in (tmp_path / "fig5-p-points.csv").read_text()


def test_write_reports__files_of_two_benchmarks_do_not_overwrite_each_other(tmp_path: Path) -> None:
    made = run_reports([study("one"), study("two")], ["one/table1", "two/table1"])
    assert {file.name for file in write_reports(made, tmp_path)} == {
        f"{benchmark}-table1.{ending}" for benchmark in ("one", "two") for ending in ("md", "tex", "csv")
    }
