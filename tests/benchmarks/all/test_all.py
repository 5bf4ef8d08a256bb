"""`nescio run all` on digits: rows of every evaluation, comparison with a finished study, and resuming."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from nescio.benchmarks.all import NAME, Plan
from nescio.benchmarks.all.reports import first_look, story
from nescio.benchmarks.all.steps import compare
from nescio.benchmarks.base import registry, run
from nescio.errors import BadInput
from nescio.report.blocks import figures_of, tables_of
from nescio.report.studies import Study, files
from nescio.trials import Training
from nescio.work.launchers import make_launcher
from nescio.work.steps import Context, Work
from nescio.work.store import Store

SHORT = Training(epochs=1, batch_size=128, augment="none")
EVALUATIONS = ("calibration", "misclassification", "ood", "rotation", "transfer", "few-shot", "cost")
PLAN = Plan(
    methods=("erm", "mc-dropout", "deep-ensemble"),
    backbone="mlp",
    seeds=2,
    ensemble_sizes=(2,),
    held_out_classes=4,
    far_ood=("china-flower",),
    evaluations=EVALUATIONS,
    reference_accuracy=0.1,
    training=SHORT,
)


def work_in(folder: Path) -> Work:
    return Work(Context(Store(folder)), make_launcher("local", 0))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Study]:
    folder = tmp_path_factory.mktemp("store")
    return folder, run(registry[NAME], PLAN, work_in(folder))


def test_all__every_evaluation_has_results_of_every_line(finished: tuple[Path, Study]) -> None:
    rows = finished[1].rows
    for name in EVALUATIONS:
        lines = {(row["method"], row["members"]) for row in rows if row["evaluation"] == name}
        assert lines == {("erm", 1), ("mc-dropout", 1), ("deep-ensemble", 2)}, name
    assert {row["benchmark"] for row in rows} == {NAME} and all(row["key"] for row in rows)
    assert {row["target"] for row in rows if row["evaluation"] == "ood"} >= {"left out"}


def test_story__first_look_and_story_hold_every_question(finished: tuple[Path, Study]) -> None:
    study = finished[1]
    board, best = first_look(study)
    assert len(board.rows) == 3 and len(best.rows) == 9
    page = story(study)
    titles = {table.title for table in tables_of(page)}
    assert {"Leaderboard", "Every question"} <= titles and len(figures_of(page)) > 8


def test_run__a_second_run_trains_and_predicts_nothing(finished: tuple[Path, Study]) -> None:
    folder, study = finished
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/*") if path.parent.name != "study"}
    again = run(registry[NAME], PLAN, work_in(folder))
    assert again.rows == study.rows
    after = {path: path.stat().st_mtime_ns for path in folder.glob("*/*") if path.parent.name != "study"}
    assert after == before


def save(study: Study, folder: Path) -> Path:
    folder.mkdir()
    for name, content in files(study).items():
        (folder / name).write_bytes(content)
    return folder


def test_compare__against_adds_the_lines_of_a_finished_study(finished: tuple[Path, Study], tmp_path: Path) -> None:
    from dataclasses import replace

    stored = save(finished[1], tmp_path / "stored")
    plan = replace(PLAN, methods=("mixup",), ensemble_sizes=(), against=str(stored))
    work = work_in(tmp_path / "store")
    compare(plan, work)
    assert {row["method"] for row in work.rows} == {"mixup", "erm", "mc-dropout", "deep-ensemble"}
    assert not any(trial["method"] == "erm" for trial in trained(tmp_path / "store"))


def trained(folder: Path) -> list[dict[str, object]]:
    import json

    return [json.loads(path.read_text())["config"] for path in folder.glob("train/*/config.json")]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"training": Training(epochs=2, batch_size=128, augment="none")}, "epochs"),
        ({"held_out_classes": 2}, "held_out_classes"),
    ],
)
def test_training__against_refuses_another_budget_before_training(
    change: dict[str, object], named: str, finished: tuple[Path, Study], tmp_path: Path
) -> None:
    from dataclasses import replace

    stored = save(finished[1], tmp_path / "stored")
    plan = replace(PLAN, methods=("mixup",), against=str(stored), **change)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=named):
        compare(plan, work_in(tmp_path / "store"))
    assert not trained(tmp_path / "store")


def test_compare__a_missing_image_set_is_refused_before_training(tmp_path: Path) -> None:
    from dataclasses import replace

    with pytest.raises(BadInput, match="nowhere"):
        compare(replace(PLAN, near_ood=("nowhere",)), work_in(tmp_path / "store"))
    assert not trained(tmp_path / "store")
