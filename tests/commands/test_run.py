"""`nescio run` takes a benchmark's options from its plan, does its steps and writes a page of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from dataclasses import dataclass, replace
from functools import partial

import pytest

from nescio.benchmarks import base
from nescio.cli import main
from nescio.errors import BadInput
from nescio.identity import Validated, tag
from nescio.options import command_of, nested, option
from nescio.report.blocks import Story
from nescio.rows import Row, from_parquet
from nescio.trials import Training
from nescio.work.launchers import launcher
from nescio.work.launchers import registry as launchers
from nescio.work.local import LocalWorkers
from nescio.work.steps import evaluation_files, make_evaluation
from tests.support.paths import page_of


@tag("plan:counting")
@dataclass(frozen=True)
class Plan(Validated):
    upto: int = option(3, "how far to count")
    bad: int | None = option(None, "a number that cannot be counted")
    training: Training = nested(Training(epochs=5))


PRESETS = {"short": Plan(), "long": Plan(upto=5, training=Training(epochs=50))}


def count(step_folder, context, number, bad, name):
    if number == bad:
        raise BadInput(f"{number} cannot be counted.")
    return evaluation_files([Row({"benchmark": name, "version": 1}, metric="number", value=float(number))])


def count_all(step_folder, context, number, bad, name, count=count):
    """Counts every number."""
    return count(step_folder, context, number, None, name)


def story(study):
    values = sorted(row["value"] for row in study.rows)
    return Story(f"{study.benchmark}: {values}", [f"Counted {len(values)}."], [])


def first_look(study):
    from nescio.report.tables import Cell, Table

    cells = tuple(Cell(row["value"]) for row in study.rows)
    return [Table(study.benchmark, ("what",), tuple(str(at) for at in range(len(cells))), ((("number",), cells),))]


def benchmark_of(name):
    def counting(plan, work):
        """Counts.

        100 % of the numbers, one after the other.
        """
        steps = []
        for number in range(plan.upto):
            make = partial(count, number=number, bad=plan.bad, name=name)
            steps.append(make_evaluation(name, 1, f"number {number}", {"number": number}, (), make))
        work.evaluate("count", steps)

    return counting


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.setattr(base, "BUILT_IN", ())
    monkeypatch.setattr(base, "registry", base._Benchmarks())
    for name in ("counting", "recounting"):
        base.benchmark(name, version=1, plan=Plan, presets=PRESETS, reports=__name__, workers=0)(benchmark_of(name))


def run(capsys, *words):
    code = main(["run", *map(str, words)])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_run__a_study_has_a_first_look_and_a_page_of_its_own(tmp_path, capsys):
    code, out, _ = run(capsys, "counting", "--store", tmp_path)
    assert code == 0 and "Counted 3." in out
    assert run(capsys, "recounting", "--upto", 2, "--store", tmp_path)[0] == 0
    pages = {name: (page_of(tmp_path, name) / "index.html").read_text() for name in ("counting", "recounting")}
    assert "counting: [0.0, 1.0, 2.0]" in pages["counting"]
    assert "recounting: [0.0, 1.0]" in pages["recounting"]
    assert run(capsys, "counting", "--store", tmp_path, "--output", tmp_path / "elsewhere")[0] == 0
    assert (tmp_path / "elsewhere" / "index.html").is_file()


def test_run__a_page_of_another_study_is_never_overwritten(tmp_path, capsys):
    place = tmp_path / "page"
    words = ["counting", "--store", tmp_path / "store", "--output", place]
    assert run(capsys, *words)[0] == 0
    first = (place / "index.html").read_text()
    assert "another study" not in run(capsys, *words)[2]  # the same one again
    for other in (["--upto", 2], []):
        words = ["counting" if other else "recounting", *words[1:], *other]
        code, out, err = run(capsys, *words)
        (beside,) = [folder for folder in tmp_path.glob("page-*") if str(folder) in err]
        assert code == 0 and str(beside / "index.html") in out
        assert (place / "index.html").read_text() == first != (beside / "index.html").read_text()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text(other := "another page")
    assert run(capsys, "counting", "--store", tmp_path / "store", "--output", tmp_path / "site")[0] == 0
    assert (tmp_path / "site" / "index.html").read_text() == other


def test_run__a_page_of_the_same_plan_that_failed_in_part_is_replaced(tmp_path, capsys, monkeypatch):
    words = ["counting", "--bad", 1, "--store", tmp_path / "store", "--output", tmp_path / "page"]
    assert run(capsys, *words)[0] == 1
    monkeypatch.setattr(sys.modules[__name__], "count", count_all)
    assert run(capsys, *words)[0] == 0
    assert "[0.0, 1.0, 2.0]" in (tmp_path / "page" / "index.html").read_text()


def test_run__rows_name_the_evaluation_that_they_are_from(tmp_path, capsys):
    keys = []
    for store in (tmp_path / "one", tmp_path / "two"):
        _, out, _ = run(capsys, "counting", "--format", "json", "--store", store)
        keys.append([row["key"] for row in json.loads(out)])
        for row in json.loads(out):
            assert from_parquet(store / "evaluate" / row["key"] / "rows.parquet")[0]["value"] == row["value"]
    assert keys[0] == keys[1] and len(set(keys[0])) == 3


def test_run__a_finished_study_is_neither_made_nor_drawn_again(tmp_path, capsys):
    assert run(capsys, "counting", "--store", tmp_path)[0] == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    code, out, err = run(capsys, "counting", "--store", tmp_path)
    assert code == 0 and "Counted 3." in out and err == ""
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


def test_run__json_is_alone_and_writes_no_page(tmp_path, capsys):
    code, out, _ = run(capsys, "counting", "--format", "json", "--store", tmp_path)
    assert code == 0 and [row["value"] for row in json.loads(out)] == [0.0, 1.0, 2.0]
    assert not (tmp_path / "report").exists()


def test_run__presets_and_options_reach_the_plan(tmp_path, capsys):
    _, out, _ = run(capsys, "counting", "--preset", "long", "--format", "json", "--store", tmp_path)
    assert len(json.loads(out)) == 5
    _, out, _ = run(capsys, "counting", "--preset", "long", "--upto", 4, "--format", "json", "--store", tmp_path)
    assert len(json.loads(out)) == 4
    code, _, err = run(capsys, "counting", "--preset", "lng", "--store", tmp_path)
    assert code == 2 and "Did you mean 'long'?" in err


def test_run__help_has_the_plan_and_what_every_run_takes(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for words, upto, epochs in (([], 3, 5), (["--preset", "long"], 5, 50)):
        with pytest.raises(SystemExit):
            main(["run", "counting", *words, "--help"])
        out = capsys.readouterr().out
        assert f"(default: {upto})" in out and f"(default: {epochs})" in out
    assert "100 % of the numbers" in out
    for name in [
        "preset",
        "store",
        "root",
        "device",
        "checkpoint-seconds",
        "workers",
        "launcher",
        "log",
        "output",
        "format",
    ]:
        assert f"--{name}" in out
    assert re.search(r"--workers N .*\(default: 0\)", out)
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "Counts" in capsys.readouterr().out


def test_run__what_fails_is_listed_and_does_not_stop_the_others(tmp_path, capsys):
    code, out, err = run(capsys, "counting", "--bad", 1, "--store", tmp_path)
    assert code == 1 and "Counted 2." in out
    assert "failed: number 1: 1 cannot be counted." in err
    code, out, err = run(capsys, "counting", "--bad", 0, "--upto", 1, "--store", tmp_path / "other")
    assert code == 2 and out == "" and "0 cannot be counted." in err  # nothing that was given can be used


def test_run__a_page_that_cannot_be_written_is_refused_before_any_work(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    place = tmp_path / "file" / "page"
    code, out, err = run(capsys, "counting", "--store", tmp_path / "store", "--output", place)
    assert code == 2 and out == "" and f"--output {place} cannot be written: {tmp_path / 'file'} is a file" in err
    assert not (tmp_path / "store").exists()
    if os.path.isdir("/proc"):  # where permissions promise what the file system does not keep
        code, out, err = run(capsys, "counting", "--store", tmp_path / "store", "--output", "/proc/nescio-page")
        assert code == 2 and "--output /proc/nescio-page " in err and not (tmp_path / "store").exists()


def test_run__a_page_that_cannot_be_written_is_a_failure_after_the_tables(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("nescio.commands.run.check_writable", lambda *_: None)  # it came in the way later
    (tmp_path / "file").write_text("in the way")
    code, out, err = run(capsys, "counting", "--store", tmp_path / "store", "--output", tmp_path / "file" / "page")
    assert code == 1 and "Counted 3." in out
    assert "failed: writing the report:" in err and f"{tmp_path / 'file'}" in err and "a folder: choose" in err


def test_run__another_launcher_is_an_option(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(launchers, "_parts", dict(launchers._parts))
    seen = []

    @launcher("noting")
    @dataclass
    class Noting(LocalWorkers):
        def __post_init__(self):
            seen.append(self.workers)
            self.workers = 0

    assert run(capsys, "counting", "--launcher", "noting", "--workers", 7, "--store", tmp_path)[0] == 0
    assert seen == [7]
    code, _, err = run(capsys, "counting", "--launcher", "slrum", "--store", tmp_path)
    assert code == 2 and "launcher named 'slrum'" in err


@pytest.mark.parametrize(
    "plan",
    [*PRESETS.values(), Plan(upto=4, bad=2), replace(PRESETS["long"], training=Training(lr=0.3, nesterov=True))],
)
def test_run__the_command_of_a_plan_runs_that_plan(plan, tmp_path, capsys, monkeypatch):
    plans, run = [], base.run
    short = Plan(upto=1)
    monkeypatch.setattr(base, "run", lambda benchmark, plan, work: run(benchmark, plans.append(plan) or short, work))
    words = shlex.split(command_of(plan, ("nescio", "run", "counting"), PRESETS))
    assert main([*words[1:], "--store", str(tmp_path)]) == 0
    assert plans == [plan]


def test_run__a_dry_run_refuses_a_file_as_store(tmp_path, capsys):
    (tmp_path / "store").write_text("mine")
    code, out, err = run(capsys, "counting", "--dry-run", "--store", tmp_path / "store")
    assert (code, out) == (2, "") and "is a file" in err and err.count("\n") == 1


def test_run__a_dry_run_counts_the_workers_of_its_launcher(tmp_path, capsys):
    for how, count in ((("--workers", 3), "three"), (("--launcher", "slurm", "--in-flight", 64), "64")):
        code, out, _ = run(capsys, "counting", "--dry-run", "--store", tmp_path / "store", *how)
        assert code == 0 and f"with {count} workers" in out


def test_run__a_dry_run_says_what_is_missing_and_does_nothing(tmp_path, capsys):
    code, out, err = run(capsys, "counting", "--dry-run", "--store", tmp_path / "store")
    assert code == 0 and err == "" and "3 steps are missing" in out and "3 figures" in out
    assert not (tmp_path / "store").exists()
    assert run(capsys, "counting", "--store", tmp_path / "store")[0] == 0
    before = sorted(tmp_path.rglob("*"))
    assert "Everything is finished." in run(capsys, "counting", "--dry-run", "--store", tmp_path / "store")[1]
    code, out, _ = run(capsys, "counting", "--upto", 5, "--dry-run", "--store", tmp_path / "store")
    assert code == 0 and "2 steps are missing" in out and "2 seen here" in out
    assert sorted(tmp_path.rglob("*")) == before
    (stage,) = json.loads(
        run(capsys, "counting", "--upto", 5, "--dry-run", "--format", "json", "--store", tmp_path / "store")[1]
    )
    assert (stage["stage"], stage["finished"], stage["missing"]) == ("evaluate", 3, 2) and stage["bytes"] > 0
