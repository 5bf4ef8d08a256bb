"""An evaluation of an installed package, in one short file: its question is on the page of `nescio run all`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytest.importorskip("torch")

TWO_BEST = """
from dataclasses import dataclass
from typing import ClassVar

from nescio import measures
from nescio.evaluations import Evaluation, Headline, evaluation


@evaluation("two-best", question="Do the two most likely classes share the probability?")
@dataclass(frozen=True)
class TwoBest(Evaluation):
    headlines: ClassVar = (Headline("small_gap", "higher", by_score=False, title="small gaps"),)
    level: float = 0.5

    def image_sets(self, subject):
        subject.require_logits()
        return {"test": subject.test_images}

    def measure(self, outputs, subject, results):
        gap = measures.uncertainty("gap", outputs["test"])
        results.add("small_gap", float((gap < self.level).mean()), len(gap))
"""
WORDS = (
    "--methods erm,mixup,simclr --backbone mlp --seeds 1 --ensemble-sizes none --epochs 1 --batch-size 128 --workers 0"
)


def install(folder: Path) -> Path:
    """A package `two_best` with its entry point, as an installer leaves it."""
    about = folder / "two_best-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "two_best.py").write_text(TWO_BEST)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: two-best\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[nescio.evaluations]\ntwo-best = two_best\n")
    return folder


def run(site: Path, store: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT / "src")])}
    line = [sys.executable, "-m", "nescio", "run", "all", *WORDS.split(), "--store", str(store), *words]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=240)


def test_outside_evaluation__it_is_short() -> None:
    assert len([line for line in TWO_BEST.splitlines() if line.strip()]) <= 60


def test_outside_evaluation__it_is_on_the_page_with_rows_of_every_network_that_it_applies_to(tmp_path: Path) -> None:
    site, store = install(tmp_path / "site"), tmp_path / "store"
    chosen = ("--evaluations", "two-best,calibration")
    done = run(site, store, *chosen)
    assert done.returncode == 0, done.stderr
    (page,) = (store / "report").glob("*/index.html")
    assert "small gaps" in page.read_text(), "the leaderboard has its column"
    printed = json.loads(run(site, store, *chosen, "--format", "json").stdout)
    rows = [row for row in printed if row["evaluation"] == "two-best"]
    assert {(row["method"], row["metric"]) for row in rows} == {("erm", "small_gap"), ("mixup", "small_gap")}
    assert all(0 <= row["value"] <= 1 and row["n"] > 100 for row in rows)


def test_outside_evaluation__all_evaluations_of_a_plan_have_it_among_them(tmp_path: Path) -> None:
    done = run(install(tmp_path / "site"), tmp_path / "store", "--dry-run", "--format", "json")
    assert done.returncode == 0, done.stderr
    without = run(tmp_path, tmp_path / "store", "--dry-run", "--format", "json")
    missing = [
        next(stage["missing"] for stage in json.loads(printed.stdout) if stage["stage"] == "evaluate")
        for printed in (done, without)
    ]
    assert missing[0] == missing[1] + 2, "erm and mixup have one more each; simclr predicts no classes"
