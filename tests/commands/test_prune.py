"""`nescio store prune` says what and how much before it removes anything, and asks where someone can answer."""

import io
import sys

import pytest

from nescio.benchmarks import base
from nescio.cli import main
from nescio.work.store import Store
from nescio.work.versions import STAGES


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Two pieces of old work, one of today's."""
    monkeypatch.setattr(base, "BUILT_IN", ())
    made = Store(tmp_path / "store")
    for number, version in enumerate((1, 2, STAGES["train"])):
        with made.work("train", {"number": number}, version=version) as step_folder:
            step_folder.write("weights", b"x" * 1_000_000)
    return made


def prune(capsys, store, *words):
    code = main(["store", "prune", "--store", str(store.root), *words])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_a_dry_run_says_what_and_how_much_and_touches_nothing(store, capsys):
    code, out, _ = prune(capsys, store, "--dry-run")
    assert code == 0 and len(store.runs()) == 3
    assert "  train     2 pieces of work, 2.0 MB" in out.splitlines()
    assert "  in all    2 pieces of work, 2.0 MB" in out.splitlines()


def test_a_script_must_say_yes(store, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    code, _, err = prune(capsys, store)
    assert code == 2 and "--yes" in err and len(store.runs()) == 3
    code, out, _ = prune(capsys, store, "--yes")
    assert code == 0 and "Removed 2 pieces of work, 2.0 MB." in out
    assert [run.version for run in store.runs()] == [STAGES["train"]]
    code, out, _ = prune(capsys, store)
    assert code == 0 and "older versions" in out


@pytest.mark.parametrize(("answer", "left"), [("y", 1), ("yes", 1), ("", 3), ("no", 3)])
def test_a_person_is_asked(store, capsys, monkeypatch, answer, left):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda question: answer)
    assert prune(capsys, store)[0] == 0
    assert len(store.runs()) == left


def test_a_store_that_is_not_there_is_a_sentence(tmp_path, capsys):
    assert main(["store", "prune", "--store", str(tmp_path / "nowhere")]) == 2
    assert "There is no store" in capsys.readouterr().err


def test_damaged_work_is_named_and_stays(store, capsys):
    run = store.runs()[0]
    (run.folder / "config.json").write_text("{")
    code, out, err = prune(capsys, store, "--yes")
    assert code == 0 and run.key in err and run.key not in out and run.key in {left.key for left in store.runs()}
