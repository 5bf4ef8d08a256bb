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

PAGE = ROOT / "docs" / "add-a-benchmark.md"
SOURCE = PAGE.read_text("utf-8").partition("```python\n")[2].partition("```")[0]


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


def test_outside_benchmark__it_is_short():
    lines = [line for line in SOURCE.splitlines() if line.strip()]
    assert len(lines) <= 80, len(lines)


def test_outside_benchmark__help_names_it_and_its_fields(site):
    assert "settling" in run(site, "run", "--help").stdout
    shown = run(site, "run", "settling", "--help").stdout
    assert "How far a mean" in shown
    assert "--sizes" in shown and "are averaged (default: 10,100,1000)" in " ".join(shown.split())


@pytest.mark.slow
def test_outside_benchmark__it_is_killed_resumed_and_reported(site, tmp_path):
    plain, store = tmp_path / "plain", tmp_path / "store"
    options = ["--sizes", "10,100", "--seeds", "2", "--workers", "2"]
    done = run(site, "run", "settling", *options, "--store", plain)
    assert done.returncode == 0, done.stderr
    assert "the mean?" in done.stdout
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
    assert "a mean settle?" in page and "nescio run settling --sizes 10,100 --seeds 2" in page
    assert again.stdout.replace(str(store), str(plain)) == done.stdout


def test_outside_benchmark__its_reports_have_names(site, tmp_path):
    store = tmp_path / "store"
    assert run(site, "run", "settling", "--sizes", "10,100", "--seeds", "2", "--store", store).returncode == 0
    done = run(site, "report", store, "--only", "settling/table,figure", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (tmp_path / "out").rglob("*.*")}
    assert {"table.csv", "table.md", "figure.svg"} <= {name.split("settling-")[-1] for name in written}, written
