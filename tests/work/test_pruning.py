"""Old work goes, today's stays, and work that is going on is never touched."""

import os
import shutil

import pytest

from nescio.work import pruning
from nescio.work.pruning import old_work, prune
from nescio.work.store import REMOVED, Store
from nescio.work.versions import STAGES

TODAY = {"train": STAGES["train"], "predict": STAGES["predict"], "evaluate": 3, "study": 3}
BENCHMARKS = {"mine": 3}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def add(store, stage, version, number=0, fail=False, **config):
    """Finished or failed work; its key."""
    config = {"number": number, **config}
    try:
        with store.work(stage, config, version=version) as step_folder:
            step_folder.write("weights", b"x" * 1000)
            if fail:
                raise OSError("it failed")
    except OSError:
        assert fail
    return store.key(stage, config, version=version)


def keys(store):
    return {run.key for run in store.runs()}


def test_old_work__work_below_todays_version_goes_and_todays_stays(store):
    kept, gone = set(), set()
    for stage, version in TODAY.items():
        config = {"benchmark": "mine"} if stage in ("evaluate", "study") else {}
        kept.add(add(store, stage, version, **config))
        kept.add(add(store, stage, version, 1, fail=True, **config))
        gone.add(add(store, stage, version - 1, **config))
        gone.add(add(store, stage, version - 1, 1, fail=True, **config))
    old = old_work(store, BENCHMARKS)
    assert {work.run.key for work in old} == gone
    assert all(work.bytes >= 1000 for work in old)
    assert prune(store, old) == old
    assert keys(store) == kept
    assert not old_work(store, BENCHMARKS)
    for run in store.runs():
        if run.state == "finished":
            store.verify(run.stage, run.key)


def test_prune__stages_that_are_gone_go_and_unknown_ones_stay(store):
    add(store, "zoo", 99)
    other = add(store, "someone-elses", 1)
    foreign = add(store, "evaluate", 1, benchmark="of another package")
    prune(store, old_work(store, BENCHMARKS))
    assert keys(store) == {other, foreign}


def test_old_work__running_work_is_never_touched(store):
    with store.work("train", {"number": 5}, version=1) as step_folder:
        step_folder.write("half", b"y")
        assert not old_work(store, BENCHMARKS)
    (run,) = store.runs()
    assert run.state == "finished" and (run.folder / "half").read_bytes() == b"y"


def test_old_work__work_that_was_taken_up_since_it_was_listed_stays(store):
    key = add(store, "train", 1, fail=True)
    old = old_work(store, BENCHMARKS)
    with store.work("train", {"number": 0}, version=1) as step_folder:
        assert prune(store, old) == []
        step_folder.write("weights", b"z")
    assert store.finished("train", key)


def test_old_work__stopped_work_of_a_dead_owner_goes(store):
    pid = os.fork()
    if pid == 0:
        with store.work("train", {"number": 7}, version=1) as step_folder:
            step_folder.write("half", b"y")
            os._exit(0)
    os.waitpid(pid, 0)
    (run,) = store.runs()
    assert run.state == "stopped"
    prune(store, old_work(store, BENCHMARKS))
    assert not keys(store) and not [path for path in store.root.rglob("*") if path.is_file()]


def test_prune__a_kill_while_removing_leaves_nothing_half_finished(store, monkeypatch):
    add(store, "train", 1)
    old = old_work(store, BENCHMARKS)

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", lambda path, **how: None if not path.exists() else killed())
    with pytest.raises(KeyboardInterrupt):
        prune(store, old)
    monkeypatch.undo()
    assert not keys(store) and len(list(store.root.glob(f"*/{REMOVED}*"))) == 1
    prune(store, [])
    assert not list(store.root.glob(f"*/{REMOVED}*"))


def test_pruning__a_store_is_looked_after_without_torch():
    import subprocess
    import sys

    code = f"import sys, {pruning.__name__}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
