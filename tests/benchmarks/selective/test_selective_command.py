"""`nescio run selective`: many models' files of predictions, or what a store holds of them, compared."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nescio.benchmarks import selective
from nescio.cli import main
from nescio.predictions import Predictions
from nescio.predictions.model_predictions import predictions_from_file
from nescio.report.studies import read_study
from nescio.rows import without_empty
from nescio.work.store import Store
from tests.support import fake_zoo
from tests.support.fake_zoo import answers, keep
from tests.support.paths import page_of

NAMES = ("vgg11.tv_in1k", "vgg13.tv_in1k", "deit_tiny_patch16_224.fb_in1k", "deit_tiny_distilled_patch16_224.fb_in1k")


def run(*words: Any) -> int:
    return main(["run", "selective", *map(str, words)])


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for seed in range(len(NAMES)):
        answers(seed, 1000, dropout=seed == 0).save(tmp_path / f"{seed}.npz")
    return [f"{name}={tmp_path / str(seed)}.npz" for seed, name in enumerate(NAMES)]


def test_report__files_become_tables_and_a_page(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "facts.csv").write_text("model,param_count,img_size\nvgg11.tv_in1k,132.9,224\nvgg13.tv_in1k,133,224\n")
    store = tmp_path / "store"
    assert run(*files, "--facts", tmp_path / "facts.csv", "--store", store) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1,000 images" in out and all(name in out for name in NAMES)
    assert {"index.html", "rows.parquet", "tables.md"} <= {*os.listdir(page_of(store, "selective"))}
    rows = read_study(page_of(store, "selective")).frame
    sizes = {row["backbone"]: row.get("params") for row in rows}
    assert sizes == dict(zip(NAMES, (132_900_000, 133_000_000, None, None), strict=True))
    for name in ("table1", "agreement", "regimes", "pareto", "temperature", "fig5", "fig9", "fig13"):
        assert main(["report", str(store), "--only", name, "--output", str(tmp_path / "one")]) == 0, name


def test_plan__the_rows_are_those_of_the_benchmark(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*files[:2], "--measures", "entropy", "--seed", 3, "--store", tmp_path / "a", "--format", "json") == 0
    printed = json.loads(capsys.readouterr().out)
    entries = [predictions_from_file(*reversed(word.split("=", 1))) for word in files[:2]]
    plan = selective.Plan(measures=("entropy",), seed=3)
    study = fake_zoo.study(
        "selective", plan, Store(tmp_path / "b"), lambda work: selective.evaluate_models(plan, entries, work)
    )
    assert printed == without_empty(study.rows)
    assert not (tmp_path / "a" / "report").exists()


def test_run__models_of_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "store")
    for seed, name in enumerate(NAMES[:2]):
        keep(store, name, "digits", answers(seed, 1000), False)
        keep(store, name, "letters", answers(seed, 600), False)
    assert run("--store", store.root, "--data", "digits") == 0
    assert "1,000 images of digits" in " ".join(capsys.readouterr().out.split())
    assert run("--store", store.root) == 2
    assert "--data digits or --data letters" in capsys.readouterr().err


def test_run__bad_input_ends_with_2_and_names_it(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "bare.npz", logits=np.zeros((30, 4)))
    for words, sentence in (
        ([], "There is no store at"),
        ([tmp_path / "bare.npz"], "failed: bare: There are no labels"),
        ([tmp_path / "gone.npz"], "There is no file or folder of predictions at"),
        ([files[0], "--measures", "sureness"], "There is no measure named 'sureness'"),
        ([files[0], files[0]], "is given twice"),
        ([files[0], "--data", "digits"], "omit one of them"),
        ([files[0], "--facts", tmp_path / "bare.npz"], "cannot be read as a table"),
    ):
        assert run(*words, "--store", tmp_path / "store") == 2, sentence
        assert sentence in capsys.readouterr().err
    assert run(*files, tmp_path / "bare.npz", "--store", tmp_path / "store") == 1  # the others have their page
    assert (page_of(tmp_path / "store", "selective") / "index.html").is_file()


def test_run__a_study_without_rows_is_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`nescio report` would take it for the newest."""
    Predictions(logits=np.zeros((30, 4))).save(tmp_path / "bare.npz")
    assert run(tmp_path / "bare.npz", "--store", tmp_path / "store") == 2
    assert not [each for each in Store(tmp_path / "store").runs() if each.stage == "study"]


def test_store__fresh_work_is_not_called_old(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*files[:2], "--store", tmp_path / "store") == 0
    assert main(["store", "prune", "--store", str(tmp_path / "store"), "--dry-run"]) == 0
    assert "older versions" in capsys.readouterr().out
