"""Studies are kept in files, read again, joined, and put into one story whatever their benchmark."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nescio.errors import BadInput
from nescio.report.blocks import Definitions, Figure, tables_of
from nescio.report.studies import Study, files, joined, manifest, print_story, read_study, story_of, write_story
from nescio.report.tables import table
from nescio.rows import COLUMNS, Row, to_parquet
from nescio.work.launchers import Failure
from tests.support.paths import ROOT


def row(**facts: Any) -> Row:
    base = {"benchmark": "own", "version": 2, "dataset": "npz:PATH/tiny.npz@32", "method": "a", "metric": "nll"}
    return dict.fromkeys(COLUMNS) | base | {"value": 0.5} | facts


def study_of(*rows: Row, **more: Any) -> Study:
    return Study(benchmark="own", version=2, rows=list(rows) or [row()], **more)


def kept(study: Study, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files(study).items():
        (folder / name).write_bytes(content)
    return folder


# ---- files


def test_files__a_study_survives_its_files(tmp_path: Path) -> None:
    study = study_of(
        row(),
        row(method="b", spectral=5.0),
        plan={"data": "digits", "members": [1, 5]},
        reasons=[{"metric": "ece", "reason": "No."}],
        failures=[Failure("train b", "No memory.", refused=True, kind="MemoryError")],
        notes=["A note."],
        packages={"torch": "2.11"},
        parts=[{"data": "digits"}],
    )
    assert read_study(kept(study, tmp_path)) == study == read_study(tmp_path / "rows.parquet")
    assert study.data == "tiny at 32 pixels" and len(study.frame) == 2


def test_read_study_of_published_results() -> None:
    for name in ("uimnet", "reliability"):
        study = read_study(ROOT / "results" / name)
        assert study.benchmark == name and study.plan and study.packages["torch"] and study.networks
        assert all(isinstance(failure, Failure) for failure in study.failures)


def test_read_study__what_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path) -> None:
    empty = tmp_path / "rows.parquet"
    empty.write_bytes(to_parquet([]))
    with pytest.raises(BadInput, match="no rows"):
        read_study(empty)
    empty.write_bytes(to_parquet([row()]))
    assert read_study(empty).plan == {}
    with pytest.raises(BadInput, match="not a plan"):
        read_study(with_files(tmp_path, {"plan.json": "{}"}))


def with_files(folder: Path, texts: dict[str, str]) -> Path:
    """A study whose further files are these, and whose manifest agrees with them."""
    content = {"rows.parquet": to_parquet([row()])} | {name: text.encode() for name, text in texts.items()}
    for name, data in (content | {"manifest.json": manifest(content)}).items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("name", ["rows.parquet", "plan.json", "pictures.json", "manifest.json"])
def test_files__a_file_that_was_changed_or_left_out_is_named(tmp_path: Path, name: str) -> None:
    kept(study_of(row(), pictures=[{"png": ""}], plan={"data": "digits"}), tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-9] + b"x" + content[-8:])
    with pytest.raises(BadInput, match=name):
        read_study(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises((BadInput, FileNotFoundError), match=name):
        read_study(tmp_path)


@pytest.mark.parametrize("field", ["plan", "packages", "reasons", "parts", "notes", "failures"])
@pytest.mark.parametrize("value", [7, [1], ["x"], [[[1], []]], [{"name": []}], {"a": 1}, None])
def test_read_study__odd_plans_are_refused_or_read(tmp_path: Path, field: str, value: object) -> None:
    about = {"plan": {}, "packages": {}, "failures": [], "notes": [], "reasons": [], "parts": []} | {field: value}
    with suppress(BadInput):
        study = read_study(with_files(tmp_path, {"plan.json": json.dumps(about)}))
        assert all(isinstance(reason, dict) for reason in [*study.reasons, *study.parts])
        assert {*study.failures} or not study.failures


@pytest.mark.parametrize("text", ["", "null", "{}", "[1]", "[" * 100_000, "\ufeff[]"])
def test_read_study__odd_pictures_are_refused_or_read(tmp_path: Path, text: str) -> None:
    with suppress(BadInput):
        assert read_study(with_files(tmp_path, {"pictures.json": text})).pictures == []


# ---- joining


def test_joined_studies_hold_every_row_once_and_the_plan_they_share() -> None:
    one = study_of(row(), plan={"data": "d", "trials": 3}, failures=[Failure("x", "y")], notes=["n"])
    two = study_of(row(), row(method="b"), plan={"data": "d", "trials": 7}, failures=[Failure("x", "y")], notes=["n"])
    both = joined([one, two])
    assert [r["method"] for r in both.rows] == ["a", "b"] and both.plan == {"data": "d"}
    assert len(both.failures) == len(both.notes) == 1 and [part["trials"] for part in both.parts] == [3, 7]
    assert joined([both, study_of(plan={"trials": 9})]).parts[-1] == {"trials": 9}
    assert joined([one]) is one


def test_joined__studies_of_other_budgets_say_so_when_they_are_joined() -> None:
    plans = [{"data": "digits", "limit": limit, "training": {"epochs": epochs, "rate": 0.1}} for limit, epochs in
             ((None, 20), (300, 15))]  # fmt: skip
    both = joined([study_of(plan=plan) for plan in plans])
    assert [note.partition(". ")[0].partition(" in ")[2] for note in both.notes] == [
        "--limit: None and 300",
        "--epochs: 20 and 15",
    ]
    assert not joined([study_of(plan=plans[0]), study_of(plan=plans[1] | {"data": "mnist"})]).notes


def test_joined__studies_that_differ_in_a_number_or_in_its_meaning_are_not_joined() -> None:
    with pytest.raises(BadInput, match=r"a, npz:PATH/tiny.npz@32, nll: 0\.5 and 0\.7"):
        joined([study_of(row(low=0.1)), study_of(row(value=0.7, low=0.2))])
    with pytest.raises(BadInput, match="version 3"):
        joined([study_of(), Study(benchmark="own", version=3, rows=[row(version=3)])])


# ---- stories


def test_story_of__every_story_ends_with_failures_gaps_and_how_it_was_made() -> None:
    study = study_of(
        failures=[Failure("train b", "No memory.")],
        reasons=[{"metric": "ece", "reason": "No."}],
        notes=["A note.", "Another."],
        packages={"nescio": "0.1", "torch": "2.11"},
    )
    sections = [("Who?", "Who is right?", [table(study.rows, "T", index=("method",)), None])]
    story = story_of(study, "Title", ["First."], sections)
    assert story.lead == ["First.", "One step failed: see below."]
    assert [section.title for section in story.sections] == ["Who is right?", "Failed steps", "Missing results"]
    assert story.sections[1].blocks == [Definitions([("train b", "No memory.")])]
    assert story.sections[2].blocks == [Definitions([("ECE", "No.")])] and story.sections[2].intro == "A note. Another."
    (made_by,) = story.footer
    assert made_by.startswith("Benchmark own, version 2. Page by nescio") and "nescio 0.1 and torch 2.11" in made_by
    plain = story_of(study_of(), "Title", [], [("Who?", "Who?", [None])])
    assert plain.sections == [] and plain.lead == [] and len(plain.footer) == 1


def test_story_of__a_story_refuses_two_figures_of_one_key() -> None:
    figure = Figure("same", "", "", lambda: None)
    with pytest.raises(ValueError, match="'same'"):
        story_of(study_of(), "Title", [], [("a", "A", [figure]), ("b", "B", [[figure]])])


def test_read_study__the_folder_of_a_study_can_be_read_again(tmp_path: Path) -> None:
    study = study_of(notes=["A note."])
    story = story_of(study, "Title", ["First."], [("a", "A", [table(study.rows, "T", index=("method",))])])
    page = write_story(study, story, tmp_path / "new", {"../other.html": "Other"})
    assert read_study(page.parent) == study and tables_of(story)[0].title == "T"
    assert "../other.html" in page.read_text() and "A note." in page.read_text()


def test_print_story__the_terminal_shows_what_was_done_a_few_tables_and_notes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = study_of(notes=["A note."])
    story = story_of(study, "Title", ["Something was done."], [])
    print_story(study, story, [table(study.rows, "T", index=("method",)), table([])])
    shown = capsys.readouterr().out
    assert shown.startswith("Something was done.") and "0.5000" in shown and "A note." in shown
    print_story(study, story, [table([])])
    assert "nothing to show" in capsys.readouterr().out
