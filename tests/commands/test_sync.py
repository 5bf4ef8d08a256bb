"""`nescio store sync` copies what another store has finished, says how much, and goes on where something fails."""

import pytest

from nescio.cli import main
from nescio.work.store import Store


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


def test_finished_work_is_copied_once(stores, capsys):
    source, target = stores
    assert sync(capsys, *stores) == (0, "Copied 3 of 3 finished steps; 0 were there.\n", "")
    assert [(run.stage, run.key) for run in target.runs()] == [(run.stage, run.key) for run in source.runs()]
    with target.work("train", {"number": 7}) as step_folder:
        step_folder.write("payload", b"own")
    assert sync(capsys, *stores)[1] == "Copied 0 of 3 finished steps; 3 were there.\n"
    assert sync(capsys, target, source)[1] == "Copied 1 of 4 finished steps; 3 were there.\n"


def test_stages_are_chosen(stores, capsys):
    _, target = stores
    assert sync(capsys, *stores, "--stages", "evaluate")[1].startswith("Copied 1 of 1 ")
    assert {run.stage for run in target.runs()} == {"evaluate"}
    code, _, err = sync(capsys, *stores, "--stages", "trian")
    assert code == 2 and "stage trian" in err


def test_what_cannot_be_copied_costs_itself_alone(stores, capsys):
    source, target = stores
    damaged = next(run for run in source.runs() if run.stage == "train")
    (damaged.folder / "payload").write_bytes(b"y" * 100)
    with target.work("evaluate", {"number": 0}):
        code, out, err = sync(capsys, *stores)
    assert code == 1 and out == "Copied 1 of 3 finished steps; 0 were there.\n"
    assert f"not copied: train/{damaged.key}: " in err and "payload changed" in err and "done by" in err
    assert len(err.splitlines()) == 2


def test_stores_that_are_not_there_or_the_same_are_sentences(stores, capsys, tmp_path):
    assert "There is no store" in sync(capsys, tmp_path / "nowhere", stores[1])[2]
    code, _, err = sync(capsys, stores[0], stores[0])
    assert code == 2 and "same store" in err
