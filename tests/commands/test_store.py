"""`nescio store prune` asks before it removes anything; `nescio store sync` copies finished work, despite failures."""

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


def test_store__a_dry_run_says_what_and_how_much_and_touches_nothing(store, capsys):
    code, out, _ = prune(capsys, store, "--dry-run")
    assert code == 0 and len(store.runs()) == 3
    assert "  train     2 pieces of work, 2.0 MB" in out.splitlines()
    assert "  in all    2 pieces of work, 2.0 MB" in out.splitlines()


def test_store__a_script_must_say_yes(store, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    code, _, err = prune(capsys, store)
    assert code == 2 and "--yes" in err and len(store.runs()) == 3
    code, out, _ = prune(capsys, store, "--yes")
    assert code == 0 and "Removed 2 pieces of work, 2.0 MB." in out
    assert [run.version for run in store.runs()] == [STAGES["train"]]
    code, out, _ = prune(capsys, store)
    assert code == 0 and "older versions" in out


@pytest.mark.parametrize(("answer", "left"), [("y", 1), ("yes", 1), ("", 3), ("no", 3)])
def test_store__a_person_is_asked(store, capsys, monkeypatch, answer, left):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda question: answer)
    assert prune(capsys, store)[0] == 0
    assert len(store.runs()) == left


def test_store__a_store_that_is_not_there_is_a_sentence(tmp_path, capsys):
    assert main(["store", "prune", "--store", str(tmp_path / "nowhere")]) == 2
    assert "There is no store" in capsys.readouterr().err


def test_store__damaged_work_is_named_and_stays(store, capsys):
    run = store.runs()[0]
    (run.folder / "config.json").write_text("{")
    code, out, err = prune(capsys, store, "--yes")
    assert code == 0 and run.key in err and run.key not in out and run.key in {left.key for left in store.runs()}


# ---- sync


@pytest.fixture
def stores(tmp_path):
    source = Store(tmp_path / "source")
    for stage, numbers in {"train": 2, "evaluate": 1}.items():
        for number in range(numbers):
            with source.work(stage, {"number": number}) as step_folder:
                step_folder.write("payload", b"x" * 100)
    return source, Store(tmp_path / "target")


def sync(capsys, *words):
    code = main(["store", "sync", *(str(word.root if isinstance(word, Store) else word) for word in words)])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_store__finished_work_is_copied_once(stores, capsys):
    source, target = stores
    assert sync(capsys, *stores) == (0, "Copied 3 of 3 finished steps; 0 were there.\n", "")
    assert [(run.stage, run.key) for run in target.runs()] == [(run.stage, run.key) for run in source.runs()]
    with target.work("train", {"number": 7}) as step_folder:
        step_folder.write("payload", b"own")
    assert sync(capsys, *stores)[1] == "Copied 0 of 3 finished steps; 3 were there.\n"
    assert sync(capsys, target, source)[1] == "Copied 1 of 4 finished steps; 3 were there.\n"


def test_store__stages_are_chosen(stores, capsys):
    _, target = stores
    assert sync(capsys, *stores, "--stages", "evaluate")[1].startswith("Copied 1 of 1 ")
    assert {run.stage for run in target.runs()} == {"evaluate"}
    code, _, err = sync(capsys, *stores, "--stages", "trian")
    assert code == 2 and "stage trian" in err


def test_store__what_cannot_be_copied_costs_itself_alone(stores, capsys):
    source, target = stores
    damaged = next(run for run in source.runs() if run.stage == "train")
    (damaged.folder / "payload").write_bytes(b"y" * 100)
    with target.work("evaluate", {"number": 0}):
        code, out, err = sync(capsys, *stores)
    assert code == 1 and out == "Copied 1 of 3 finished steps; 0 were there.\n"
    assert f"not copied: train/{damaged.key}: " in err and "payload changed" in err and "done by" in err
    assert len(err.splitlines()) == 2


def test_store__stores_that_are_not_there_or_the_same_are_sentences(stores, capsys, tmp_path):
    assert "There is no store" in sync(capsys, tmp_path / "nowhere", stores[1])[2]
    code, _, err = sync(capsys, stores[0], stores[0])
    assert code == 2 and "same store" in err
