"""A benchmark from an outside package, in one short file: command, help, page, resume after a kill, named reports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from nescio.rows import from_parquet
from tests.support.paths import ROOT, page_of
from tests.support.waiting import until

SOURCE = '''
"""How does the mean of drawn numbers settle? A benchmark that needs no network."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial

import numpy as np

from nescio.identity import Validated, seed_for, tag
from nescio.options import option
from nescio.benchmarks.base import benchmark
from nescio.report.blocks import Figure, Made, Story
from nescio.report.charts import cloud_figure
from nescio.report.frame import Frame
from nescio.report.named_reports import report
from nescio.report.studies import Study, story_of
from nescio.report.tables import Head, Table, decimals, table
from nescio.rows import Row
from nescio.work.steps import Context, Files, Step, Work, evaluation_files, make_evaluation
from nescio.work.store import StepFolder


@tag("plan:settling")
@dataclass(frozen=True)
class Plan(Validated):
    """What is drawn, and how often."""

    sizes: tuple[int, ...] = option((10, 100, 1000), "how many numbers are averaged")
    seeds: int = option(3, "independent repetitions")
    pause: float = option(0.0, "seconds that each drawing takes")


def draw(step_folder: StepFolder, context: Context, size: int, seed: int, pause: float) -> Files:
    time.sleep(pause)
    numbers = np.random.default_rng(seed_for("settling", size, seed)).normal(size=size)
    return {"numbers.json": json.dumps(numbers.tolist()).encode()}


def judge(step_folder: StepFolder, context: Context, drawn: Step, size: int, seed: int) -> Files:
    numbers = json.loads((drawn.verified(context.store) / "numbers.json").read_text())
    about = {"benchmark": "settling", "version": 1, "method": "mean", "data_seed": seed, "level": float(size)}
    return evaluation_files([Row(about, metric="distance", value=abs(float(np.mean(numbers))), n=size)])


@benchmark("settling", version=1, plan=Plan)
def settling(plan: Plan, work: Work) -> None:
    """How far a mean is from what it estimates."""
    evaluations = []
    for size in plan.sizes:
        for seed in range(plan.seeds):
            name, config = f"{size} numbers, seed {seed}", {"size": size, "seed": seed}
            drawn = Step(name, "draw", config, partial(draw, pause=plan.pause, **config))
            make = partial(judge, drawn=drawn, **config)
            evaluations.append(make_evaluation("settling", 1, name, config, [drawn], make))
    work.evaluate("draw and judge", evaluations)


@report("settling/table")
def distances(frame: Frame) -> Table:
    means = frame.summarise(["level"], ["data_seed"])
    return table(means, "How far is the mean?", lines=("level",), heads=[Head("distance", form=decimals(3))])


@report("settling/figure", needs="two sizes or more")
def decay(frame: Frame) -> Made:
    points = [{"name": "mean", "numbers": row["level"], "distance": row["value"]} for row in frame]
    words = "The more numbers, the nearer."
    return Figure("decay", "How it settles", words, lambda: cloud_figure(points, "numbers", "distance"), points)


def first_look(study: Study) -> list[Table]:
    return [distances(study.frame)]


def story(study: Study) -> Story:
    sections = [("Distance", "How far is the mean?", [distances(study.frame), decay(study.frame)])]
    return story_of(study, "How does a mean settle?", ["Numbers were drawn and averaged."], sections)
'''


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """An installed package with one module and its entry point, where torch is not installed: it needs none."""
    place = tmp_path_factory.mktemp("site")
    (place / "torch.py").write_text("raise ImportError('not here')")
    (place / "settling.py").write_text(SOURCE)
    about = place / "settling-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: settling\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[nescio.benchmarks]\nsettling = settling\n")
    return place


def command(site, *words):
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT / "src")]), "COLUMNS": "100"}
    return [sys.executable, "-m", "nescio", *map(str, words)], env


def run(site, *words):
    line, env = command(site, *words)
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=240)


def test_it_is_short():
    lines = [line for line in SOURCE.splitlines() if line.strip()]
    assert len(lines) <= 80, len(lines)


def test_help_names_it_and_its_fields(site):
    assert "settling" in run(site, "run", "--help").stdout
    shown = run(site, "run", "settling", "--help").stdout
    assert "How far a mean is from what it estimates" in shown
    assert "--sizes" in shown and "how many numbers are averaged (default: 10,100,1000)" in " ".join(shown.split())


@pytest.mark.slow
def test_it_is_killed_resumed_and_reported(site, tmp_path):
    plain, store = tmp_path / "plain", tmp_path / "store"
    options = ["--sizes", "10,100", "--seeds", "2", "--workers", "2"]
    done = run(site, "run", "settling", *options, "--store", plain)
    assert done.returncode == 0, done.stderr
    assert "How far is the mean?" in done.stdout
    line, env = command(site, "run", "settling", *options, "--pause", "0.7", "--store", store)
    killed = subprocess.Popen(
        line, env=env, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(lambda: list(store.glob("evaluate/*[0-9a-f]")))
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    before = {path: path.stat().st_mtime_ns for path in store.glob("draw/????????????????/numbers.json")}
    assert 0 < len(before) < 4
    again = run(site, "run", "settling", *options, "--store", store)
    assert again.returncode == 0, again.stderr
    assert all(path.stat().st_mtime_ns == moment for path, moment in before.items()), "nothing was drawn twice"
    pages = [page_of(place, "settling") for place in (plain, store)]
    one, other = (from_parquet(page / "rows.parquet") for page in pages)
    assert one == other and len(one) == 4
    page = (pages[0] / "index.html").read_text()
    assert "How does a mean settle?" in page and "nescio run settling --sizes 10,100 --seeds 2" in page
    assert again.stdout.replace(str(store), str(plain)) == done.stdout


def test_its_reports_have_names(site, tmp_path):
    store = tmp_path / "store"
    assert run(site, "run", "settling", "--sizes", "10,100", "--seeds", "2", "--store", store).returncode == 0
    done = run(site, "report", store, "--only", "settling/table,figure", "--to", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (tmp_path / "out").rglob("*.*")}
    assert {"table.csv", "table.md", "figure.svg"} <= {name.split("settling-")[-1] for name in written}, written
