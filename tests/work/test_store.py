"""The store under real faults: killed processes, races, dead owners, full and read-only disks, flipped bits."""

import contextlib
import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import nescio.work.locks
import nescio.work.step_folder
import nescio.work.store
import nescio.work.store_errors
from nescio.errors import BadInput
from nescio.identity import tag
from nescio.predictions.model_predictions import predictions_from_text
from nescio.search import HParams, hparam, uniform
from nescio.trials import Training, Trial
from nescio.work.locks import this_machine
from nescio.work.step_folder import read_checkpoint
from nescio.work.store import Store
from nescio.work.store_errors import Busy, LockLost, StoreError
from tests.support import fake_zoo
from tests.support.disks import disk_of


@tag("recipe:toy of the store")
@dataclasses.dataclass(frozen=True)
class Toy(HParams):
    rate: float = hparam(0.1, uniform(0, 1))


TRIAL = Trial(method="toy", hparams=Toy(), data="digits", backbone="mlp", training=Training(epochs=3))
# Another value for every field of a trial: a field without one here fails the test.
OTHER = {
    "method": "erm", "hparams": Toy(rate=0.2), "data": "cifar10", "backbone": "conv",
    "training": Training(epochs=4), "classes": (0, 1), "spectral": 5.0, "trial": 1, "data_seed": 1, "init_seed": 1,
    "start": "store:0123456789abcdef", "task": "segmentation", "kept": (1,), "stop": 1,
}  # fmt: skip


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def do(store, config="r", content=b"payload", **more):
    """Finishes one piece of work; False if it was finished already."""
    with store.work("train", config, **more) as step_folder:
        if step_folder is not None:
            step_folder.write("sub/weights", content)
    return step_folder is not None


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def child(body, store, **more):
    """A process that runs `body` with a store, stops at stop() until it is killed, and says so on stdout."""
    code = """
        import os, sys, time
        sys.path.insert(0, {here!r})
        import numpy as np
        import nescio.work.step_folder
        import nescio.work.store
        from nescio.work.store import Store
        from nescio.work.store_errors import Busy
        store = Store({root!r})
        def stop(*_, **__):
            print("here", flush=True)
            time.sleep(60)
            os._exit(3)
    """
    code = textwrap.dedent(code).format(here=str(Path(nescio.work.store.__file__).parents[2]), root=str(store.root))
    return subprocess.Popen(
        [sys.executable, "-c", code + textwrap.dedent(body)], stdout=subprocess.PIPE, text=True, **more
    )


def kill_at_stop(process):
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()


# ---- keys


def test_store__every_field_of_a_trial_and_of_its_budget_changes_the_key(store):
    assert OTHER.keys() == {each.name for each in dataclasses.fields(Trial)}
    keys = {store.key("train", TRIAL)}
    for name, value in OTHER.items():
        kept = {"kept": OTHER["kept"]} if name == "stop" else {}  # a training stops at an epoch that it keeps
        keys.add(store.key("train", dataclasses.replace(TRIAL, **{name: value} | kept)))
    assert len(keys) == 1 + len(OTHER)

    first = Training(epochs=3, warmup_from=0.5)  # a rate that starts flat starts above 0
    keys = {store.key("train", dataclasses.replace(TRIAL, training=first))}
    words = {"optimizer": "lamb", "schedule": "cosine", "augment": "none", "precision": "bf16", "clip": 2.0}
    words |= {"warmup_from": 0.25, "border": "reflect"}
    for each in dataclasses.fields(Training):
        value = getattr(first, each.name)
        other = words[each.name] if each.name in words else not value if isinstance(value, bool) else value + 1
        training = dataclasses.replace(first, **{each.name: other})
        keys.add(store.key("train", dataclasses.replace(TRIAL, training=training)))
    assert len(keys) == 1 + len(dataclasses.fields(Training))


def test_store__stage_parents_and_version_change_the_key_and_the_environment_does_not(store, monkeypatch):
    key = store.key("train", TRIAL)
    others = [
        store.key("predict", TRIAL),
        store.key("train", TRIAL, parents=[key]),
        store.key("train", TRIAL, version=2),
    ]
    assert len({key, *others}) == 4 and all(len(each) == 16 for each in others)
    assert store.key("x", 1, parents=("a", "b")) != store.key("x", 1, parents=("b", "a"))
    monkeypatch.setattr(nescio.work.step_folder, "environment", lambda: {"packages": {"torch": "99"}})
    assert store.key("train", TRIAL) == key
    with store.work("train", TRIAL) as step_folder:
        step_folder.env["device"] = "abacus"
    env = json.loads((store.path("train", key) / "env.json").read_text())
    assert env["packages"] == {"torch": "99"} and env["device"] == "abacus" and env["seconds"] >= 0


def test_store__a_stage_is_a_plain_name(store):
    with pytest.raises(BadInput, match="stage"):
        store.path("../train", "0" * 16)


# ---- finishing


def test_store__finished_work_is_done_once(store):
    assert do(store, TRIAL) is True
    assert do(store, TRIAL) is False
    folder = store.path("train", store.key("train", TRIAL))
    assert files(folder) == ["config.json", "env.json", "sub/weights"]
    assert not folder.with_name(f"{folder.name}.part").exists()
    store.verify("train", folder.name)
    config = store.record("train", folder.name)
    assert config["config"]["training"]["epochs"] == 3 and config["files"]["sub/weights"]["bytes"] == 7


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "add", "config", "other config"])
def test_store__verify_finds_damage(store, damage):
    do(store)
    key = store.key("train", "r")
    weights, config = store.path("train", key) / "sub/weights", store.path("train", key) / "config.json"
    if damage == "flip":
        weights.write_bytes(b"paylobd")
    elif damage == "cut":
        weights.write_bytes(b"payloa")
    elif damage == "remove":
        weights.unlink()
    elif damage == "add":
        (weights.parent / "more").write_bytes(b"")
    elif damage == "config":
        config.write_bytes(config.read_bytes()[:-9])
    else:
        config.write_text(config.read_text().replace('"r"', '"s"'))
    with pytest.raises(StoreError, match="run again"):
        store.verify("train", key)


@pytest.mark.parametrize("name", ["../x", "/x", "config.json", ".work/lock.9", "env.json", "", "a/../../x"])
def test_store__payload_names_stay_inside(store, name):
    with pytest.raises(BadInput, match="named"), store.work("train", 1) as step_folder:
        step_folder.write(name, b"")


# ---- failures


def test_store__a_failure_is_remembered_and_tried_again(store):
    with pytest.raises(ZeroDivisionError), store.work("train", {"r": 1}) as step_folder:
        step_folder.write("half", b"x")
        step_folder.save_checkpoint({"w": np.arange(3)}, {"epoch": 1})
        _ = 1 / 0
    (run,) = store.runs()
    assert (run.state, run.reason, run.config) == ("failed", "ZeroDivisionError: division by zero", {"r": 1})
    assert "1 / 0" in (run.folder / "traceback.txt").read_text()
    with store.work("train", {"r": 1}, wait=False) as step_folder:
        assert "half" not in files(step_folder.path)
        assert step_folder.load_checkpoint().meta == {"epoch": 1}
        assert store.runs()[0].state == "running"
        step_folder.write("whole", b"x")
    (run,) = store.runs()
    assert (run.state, run.reason, files(run.folder)) == (
        "finished", "", ["config.json", "env.json", "whole"],
    )  # fmt: skip


def test_store__waiting_for_other_work_is_no_failure(store):
    plant(store)
    with pytest.raises(Busy), store.work("predict", "p"), store.work("train", "r", wait=False):
        pass
    assert [(run.stage, run.state) for run in store.runs()] == [("predict", "stopped"), ("train", "running")]


def test_store__an_interruption_is_no_failure(store):
    with pytest.raises(KeyboardInterrupt), store.work("train", "r"):
        raise KeyboardInterrupt
    assert store.runs()[0].state == "stopped"
    assert do(store, wait=False)


def test_store__a_launcher_notes_the_failure_of_a_killed_worker(store):
    process = child('with store.work("train", "r") as step_folder: stop()', store)
    assert process.stdout.readline() == "here\n"
    store.fail("train", "r", "it still runs: nothing is noted.")
    assert store.runs()[0].state == "running"
    process.kill()
    process.communicate()
    assert store.runs()[0].state == "stopped"
    store.fail("train", "r", "The worker was killed: too little memory.")
    assert (store.runs()[0].state, store.runs()[0].reason) == ("failed", "The worker was killed: too little memory.")
    assert do(store)
    store.fail("train", "r", "too late")
    assert store.runs()[0].state == "finished"


# ---- SIGKILL

TRAIN = """
def train(store, save=lambda step: None, steps=6):
    with store.work("train", "r") as part:
        if part is None:
            return
        state = part.load_checkpoint()
        w, step = (state.tensors["w"], state.meta["step"]) if state else (np.ones(20000), 0)
        begun = step
        while step < steps:
            w, step = np.sqrt(w + step), step + 1
            part.save_checkpoint({"w": w, "rng": b"state"}, {"step": step})
            save(step)
        part.write("weights", w.tobytes())
        part.write("more/weights", w.tobytes())
    return begun
"""
# Where a process is killed: the line that puts stop() there.
PLACES = {
    "inside the payload": (
        "open_ = nescio.work.store.Path.write_bytes\n"
        "def half(self, data):\n"
        "    if self.name != 'weights': return open_(self, data)\n"
        "    open_(self, data[:len(data) // 2]); stop()\n"
        "nescio.work.store.Path.write_bytes = half"
    ),
    "inside a checkpoint": (
        "fsync, seen = os.fsync, []\n"
        "def half(fd):\n"
        "    if os.readlink(f'/proc/self/fd/{fd}').endswith('safetensors.new'):\n"
        "        seen.append(fd)\n"
        "        if len(seen) == 3: os.ftruncate(fd, os.fstat(fd).st_size // 2); stop()\n"
        "    fsync(fd)\n"
        "os.fsync = half"
    ),
    "before a checkpoint takes its name": (
        "move, seen = os.replace, []\n"
        "def late(a, b):\n"
        "    seen.append(a) if 'safetensors' in str(a) else None\n"
        "    stop() if len(seen) == 3 else move(a, b)\n"
        "os.replace = late"
    ),
    "after a checkpoint": "def save(step):\n    if step == 3: stop()",
    "while config.json is written": (
        "write = nescio.work.step_folder.write_durably\n"
        "def half(path, content):\n"
        "    if path.name == 'env.json': path.write_bytes(content[:9]); stop()\n"
        "    write(path, content)\n"
        "nescio.work.step_folder.write_durably = half"
    ),
    "between fsync and rename": "os.rename = stop",
    "after the rename": "move = os.rename\nos.rename = lambda a, b: (move(a, b), stop())",
}


def undisturbed(tmp_path, steps=6):
    space = {"np": np}
    exec(TRAIN, space)
    clean = Store(tmp_path / "clean")
    assert space["train"](clean, steps=steps) == 0
    return space["train"], (clean.path("train", clean.key("train", "r")) / "weights").read_bytes()


@pytest.mark.parametrize("place", PLACES)
def test_store__a_kill_leaves_nothing_half_written_and_the_next_owner_finishes(store, tmp_path, place):
    train, expected = undisturbed(tmp_path)
    key = store.key("train", "r")
    kill_at_stop(child(TRAIN + "save = lambda step: None\n" + PLACES[place] + "\ntrain(store, save)", store))
    ended = place == "after the rename"
    assert store.finished("train", key) == ended
    assert store.runs()[0].state == ("finished" if ended else "stopped")
    start = time.monotonic()
    begun = train(store)
    assert time.monotonic() - start < 5  # a dead owner on this machine needs no patience
    at = {"inside a checkpoint": 2, "before a checkpoint takes its name": 2, "after a checkpoint": 3}
    assert begun == (None if ended else at.get(place, 6))  # it went on from the last whole checkpoint
    store.verify("train", key)
    folder = store.path("train", key)
    assert files(folder) == ["config.json", "env.json", "more/weights", "weights"]
    assert (folder / "weights").read_bytes() == expected
    assert [each.name for each in folder.parent.iterdir()] == [key]


def test_store__ten_kills_at_random_moments(store, tmp_path):
    _, expected = undisturbed(tmp_path, steps=30)
    slow, rng = "\nprint('up', flush=True)\ntrain(store, lambda step: time.sleep(0.02), steps=30)", random.Random(0)
    for _ in range(10):
        process = child(TRAIN + slow, store)
        assert process.stdout.readline() == "up\n"
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.communicate()
        assert [run.state for run in store.runs()] in ([], ["stopped"])
    process = child(TRAIN + slow, store)
    process.communicate()
    key = store.key("train", "r")
    store.verify("train", key)
    assert process.returncode == 0 and (store.path("train", key) / "weights").read_bytes() == expected


# ---- locks


def test_store__many_processes_share_the_work_and_do_nothing_twice(store, tmp_path):
    body = """
        todo = list(range(12))
        np.random.default_rng(os.getpid()).shuffle(todo)
        while todo:
            for i in list(todo):
                try:
                    with store.work("train", {"i": i}, wait=False) as part:
                        if part is not None:
                            with open(os.environ["LOG"], "a") as file: file.write(f"{i}\\n")
                            time.sleep(0.02)
                            part.write("x", b"%d" % i)
                    todo.remove(i)
                except Busy:
                    pass
    """
    log = tmp_path / "log"
    processes = [child(body, store, env={**os.environ, "LOG": str(log)}) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    for process in processes:
        process.stdout.close()
    assert sorted(map(int, log.read_text().split())) == list(range(12))
    assert [run.state for run in store.runs()] == ["finished"] * 12


def test_store__the_second_of_two_waits_and_gets_the_finished_work(store, monkeypatch):
    body = 'with store.work("train", "r") as step_folder:\n    print("here", flush=True)\n    sys.stdin.readline()'
    first = child(body, store, stdin=subprocess.PIPE)
    assert first.stdout.readline() == "here\n"
    with pytest.raises(Busy, match=rf"process {first.pid} on"), store.work("train", "r", wait=False):
        raise AssertionError("two owners")
    assert store.runs()[0].owner.startswith(f"process {first.pid} ")
    monkeypatch.setattr(nescio.work.locks.time, "sleep", lambda _: first.poll() is None and first.communicate("\n"))
    with store.work("train", "r") as step_folder:  # the first pause of the waiter lets the owner finish
        assert step_folder is None
    assert first.returncode == 0


def test_store__a_waiter_takes_over_when_the_owner_dies(store):
    first = child('with store.work("train", "r") as step_folder: stop()', store)
    assert first.stdout.readline() == "here\n"
    threading.Timer(0.3, lambda: (first.kill(), first.communicate())).start()
    assert do(store) is True


def test_store__a_zombie_is_dead(store):
    first = child('with store.work("train", "r") as step_folder: stop()', store)
    assert first.stdout.readline() == "here\n"
    first.kill()  # and not waited for: its number still exists
    deadline = time.monotonic() + 5
    while nescio.work.locks.start_time(first.pid) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(first.pid, 0)
    assert do(store, wait=False)
    first.communicate()


def plant(store, **changes):
    """A lock as another owner would leave it; by default of this very process."""
    folder = store.path("train", store.key("train", "r")).with_suffix(".part") / ".work"
    folder.mkdir(parents=True)
    me = {
        **nescio.work.locks.this_machine(),
        "pid": os.getpid(),
        "start": nescio.work.locks.start_time(os.getpid()),
        "token": "x",
    }
    lock = folder / "lock.1"
    lock.write_text(json.dumps({**me, **changes}))
    return lock


def busy(store):
    try:
        with store.work("train", "r", wait=False):
            return False
    except Busy:
        return True


def test_store__a_process_that_got_the_number_of_a_dead_owner_is_not_the_owner(store):
    assert nescio.work.locks.start_time(os.getpid()) > 0
    lock = plant(store)
    assert busy(store)
    owner = json.loads(lock.read_text())
    lock.write_text(json.dumps({**owner, "start": owner["start"] - 1}))
    assert not busy(store)


@pytest.mark.parametrize("where", [{"host": "elsewhere"}, {"space": "another container"}, {"boot": "before"}])
def test_store__an_owner_elsewhere_lives_as_long_as_its_heart_beats(store, where, monkeypatch):
    lock = plant(store, **where, pid=2**22 + 1)  # no such process here, which says nothing about there
    monkeypatch.setattr(time, "time", lambda: 1e10)  # nor does this machine's clock
    assert busy(store)
    os.utime(lock, (0, lock.stat().st_mtime - 50))
    assert busy(store)
    os.utime(lock, (0, lock.stat().st_mtime - 20))
    assert not busy(store)


def test_store__a_lock_that_is_dated_ahead_lives_by_its_heartbeat_and_not_until_its_date(store, monkeypatch):
    silence, now = nescio.work.locks.SILENCE, 1000.0
    monkeypatch.setattr(nescio.work.locks.time, "monotonic", lambda: now)
    lock = plant(store, host="elsewhere")
    tomorrow = time.time() + 86400
    os.utime(lock, (tomorrow, tomorrow))
    for beat in range(1, 5):  # it beats, so it lives for longer than the silence
        assert busy(store)
        now += silence / 2
        os.utime(lock, (tomorrow, tomorrow + beat))
    assert busy(store)
    now += silence - 1
    assert busy(store)
    now += 2
    assert not busy(store)


def test_store__a_waiter_takes_over_a_silent_lock_that_is_dated_ahead(store, monkeypatch):
    monkeypatch.setattr(nescio.work.locks, "SILENCE", 0.3)
    lock = plant(store, host="elsewhere")
    os.utime(lock, (time.time() + 86400,) * 2)
    with store.work("train", "r") as step_folder:
        assert step_folder is not None


def test_store__a_title_is_kept_and_is_no_part_of_the_key(store):
    with store.work("evaluate", "r", title="erm, seed 0"):
        assert [(run.state, run.title) for run in store.runs()] == [("running", "erm, seed 0")]
    (run,) = store.runs()
    assert (run.state, run.title, run.key) == ("finished", "erm, seed 0", store.key("evaluate", "r"))
    store.verify("evaluate", run.key)
    store.fail("evaluate", "other", "killed", title="mixup, seed 0")
    assert {run.title: run.state for run in store.runs()} == {"erm, seed 0": "finished", "mixup, seed 0": "failed"}


def test_store__the_heart_beats(store, monkeypatch):
    monkeypatch.setattr(nescio.work.locks, "BEAT", 0.02)
    with store.work("train", "r") as step_folder:
        lock = step_folder.path / ".work" / "lock.1"
        os.utime(lock, (0, 0))
        deadline = time.monotonic() + 5
        while lock.stat().st_mtime == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_store__one_of_many_takes_over(store, monkeypatch):
    plant(store, pid=2**22 + 1)
    owners, gate, waiters, sleep = [], threading.Barrier(8), set(), time.sleep
    everyone = threading.Event()

    def pause(seconds):
        waiters.add(threading.get_ident())
        if len(waiters) == 7:
            everyone.set()
        sleep(0.005)

    monkeypatch.setattr(nescio.work.locks.time, "sleep", pause)

    def contend():
        gate.wait()
        with store.work("train", "r") as step_folder:
            if step_folder is not None:
                owners.append(step_folder)
                assert everyone.wait(60)

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(owners) == 1


def test_store__a_slow_one_does_not_take_over_from_a_fast_one(store, monkeypatch):
    plant(store, pid=2**22 + 1)
    write = Path.write_bytes

    def overtaken(path, content):  # both have seen the dead owner's lock; the other one is faster
        monkeypatch.setattr(Path, "write_bytes", write)
        fast.enter_context(store.work("train", "r"))
        return write(path, content)

    with contextlib.ExitStack() as fast:
        monkeypatch.setattr(Path, "write_bytes", overtaken)
        assert busy(store)


def test_store__an_owner_that_was_held_for_dead_gives_up(store):
    key = store.key("train", "r")
    with pytest.raises(LockLost), store.work("train", "r") as late:
        lock = late.path / ".work" / "lock.1"
        lock.write_text(json.dumps({**late.lock.owner, "host": "elsewhere"}))  # so that nobody can look at the process
        os.utime(lock, (0, 0))
        with store.work("train", "r", wait=False) as step_folder:
            step_folder.write("x", b"new")
            for attempt in (lambda: late.write("x", b"old"), lambda: late.save_checkpoint({}, {})):
                with pytest.raises(LockLost):
                    attempt()
        late.write("x", b"old")
    assert (store.path("train", key) / "x").read_bytes() == b"new"
    assert [run.state for run in store.runs()] == ["finished"]
    store.verify("train", key)


def test_store__work_that_finishes_while_the_lock_is_taken_is_not_done_again(store, monkeypatch):
    link = os.link

    def finish_first(*paths):
        monkeypatch.setattr(os, "link", link)
        assert do(store)
        Path(paths[0]).parent.mkdir(parents=True, exist_ok=True)
        Path(paths[0]).write_text("{}")
        link(*paths)

    monkeypatch.setattr(os, "link", finish_first)
    assert do(store) is False
    assert len(store.runs()) == 1 and store.runs()[0].state == "finished"


# ---- checkpoints


def test_store__a_checkpoint_comes_back_as_it_was(store):
    saved = {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "one": np.array(2.5),
        "none": np.zeros((0, 3), np.int64),
        "flags": np.array([True, False]),
        "half": np.ones(3, np.float16)[::-1],
        "random state": b"\x00\xff\x80",
        "empty": b"",
    }
    with store.work("train", "r") as step_folder:
        assert step_folder.load_checkpoint() is None
        step_folder.save_checkpoint({"matrix": np.zeros(9)}, {"step": 0})
        step_folder.save_checkpoint(saved, {"step": 7, "name": "ü", "losses": [0.1, None]})
        tensors, meta = step_folder.load_checkpoint()
    assert meta == {"step": 7, "name": "ü", "losses": [0.1, None]}
    assert tensors.keys() == saved.keys()
    for name, value in saved.items():
        if isinstance(value, bytes):
            assert tensors[name] == value
        else:
            np.testing.assert_array_equal(tensors[name], value, strict=True)


def test_read_checkpoint__a_damaged_checkpoint_is_never_used(store, caplog):
    with store.work("train", "r") as step_folder:
        step_folder.save_checkpoint({"w": np.arange(40.0), "rng": b"abc"}, {"step": 1})
        path = step_folder.path / ".work" / "checkpoint.safetensors"
        whole = path.read_bytes()
        for at in range(len(whole)):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert read_checkpoint(path) is None, f"a flipped bit in byte {at} went unseen"
        for length in (0, 7, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            assert read_checkpoint(path) is None
        caplog.clear()
        assert step_folder.load_checkpoint() is None
        assert len(caplog.messages) == 1 and "from the beginning" in caplog.text
        path.write_bytes(whole)
        assert step_folder.load_checkpoint().meta == {"step": 1}


# ---- disks


def test_store__a_file_in_place_of_the_store(tmp_path):
    (tmp_path / "store").write_text("a file")
    with (
        pytest.raises(StoreError, match="has the name"),
        Store(tmp_path / "store").work("t", 1),
    ):
        pass


@pytest.mark.parametrize("code, words", [(errno.EROFS, "read-only"), (errno.EACCES, "may not write")])
def test_store__a_read_only_store(store, monkeypatch, code, words):
    do(store)

    def refuse(path, *_, **__):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StoreError, match=words), store.work("train", "new"):
        pass
    assert do(store) is False  # what is finished can be read
    assert [run.state for run in store.runs()] == ["finished"]
    store.verify("train", store.key("train", "r"))


@pytest.mark.parametrize("during", ["payload", "checkpoint", "finish"])
def test_store__a_full_disk_fails_the_trial_and_keeps_the_last_checkpoint(store, monkeypatch, during):
    fsync, full = os.fsync, []

    def fill(handle):
        if full:
            full.clear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", fill)
    error = OSError if during == "payload" else StoreError
    with pytest.raises(error, match=r"disk is full|No space"), store.work("train", "r") as step_folder:
        step_folder.save_checkpoint({"w": np.zeros(3)}, {"step": 1})
        full.append(True)
        if during == "payload":
            os.fsync(0)
        elif during == "checkpoint":
            step_folder.save_checkpoint({"w": np.ones(3)}, {"step": 2})
    (run,) = store.runs()
    assert run.state == "failed" and "disk is full: make room" in run.reason
    with store.work("train", "r") as step_folder:
        assert step_folder.load_checkpoint().meta == {"step": 1}
    assert store.runs()[0].state == "finished"


def test_store__a_disk_that_is_really_full(tmp_path):
    with disk_of(tmp_path / "disk", "256k") as disk:
        store = Store(disk / "store")
        with pytest.raises(StoreError, match="disk is full"), store.work("train", "r") as step_folder:
            step_folder.save_checkpoint({"w": np.zeros(1000)}, {"step": 1})
            step_folder.save_checkpoint({"w": np.zeros(100_000)}, {"step": 2})
        assert "disk is full" in store.runs()[0].reason
        assert do(store, "small") is True
        with pytest.raises(StoreError, match="disk is full"):
            do(store, "large", bytes(10**6))
        with store.work("train", "r") as step_folder:
            assert step_folder.load_checkpoint().meta == {"step": 1}
        assert sorted(run.state for run in store.runs()) == ["failed", "finished", "finished"]


# ---- many hosts


def no_links(*paths):
    raise PermissionError(errno.EPERM, "Operation not permitted", *map(str, paths))


def test_store__a_file_system_without_hard_links_has_one_owner_as_well(store, monkeypatch):
    monkeypatch.setattr(os, "link", no_links)
    with store.work("train", "r") as step_folder:
        assert busy(store) and step_folder.lock.is_owned()
        assert files(step_folder.path / ".work") == ["lock.1"]
    assert do(store) is False
    plant(Store(store.root / "other"), pid=2**22 + 1)
    assert do(Store(store.root / "other"))  # a dead owner's work is taken over


def test_store__a_lock_without_content_is_of_an_owner_elsewhere(store, monkeypatch):
    """Its owner was killed between making and filling it."""
    plant(store).write_text("")
    assert busy(store)
    monkeypatch.setattr(nescio.work.locks, "SILENCE", 0.0)
    assert not busy(store)


def test_store__a_link_whose_answer_was_lost_is_ours(store, monkeypatch):
    link = os.link

    def twice(*paths):  # the server made it, the network lost the answer, and the client asked again
        link(*paths)
        link(*paths)

    monkeypatch.setattr(os, "link", twice)
    assert do(store, wait=False)


@pytest.mark.parametrize("links", ["links", "no links"])
def test_store__two_hosts_at_once_do_nothing_twice(store, tmp_path, links):
    """Neither can look at the other's processes: heartbeats alone tell that the other lives."""
    body = """
        import platform, random
        host, links = os.environ["HOST"], os.environ["LINKS"]
        platform.node = lambda: host
        nescio.work.locks.BEAT = 0.02
        def refuse(*_): raise OSError(95, "Operation not supported")
        if links == "no links": os.link = refuse
        print("here", flush=True)
        left = list(range(12))
        random.Random(host).shuffle(left)
        while left:
            number = left.pop(0)
            try:
                with store.work("train", number, wait=False) as part:
                    if part is not None:
                        with open(os.environ["LOG"], "a") as log: log.write(f"{number} {host}\\n")
                        time.sleep(0.02)
            except Busy:
                left.append(number)
                time.sleep(0.01)
    """
    log = tmp_path / "log"
    hosts = [
        child(body, store, env={**os.environ, "LOG": str(log), "HOST": host, "LINKS": links}) for host in ("a", "b")
    ]
    for host in hosts:
        out, _ = host.communicate()
        assert (host.returncode, out) == (0, "here\n")
    lines = [line.split() for line in log.read_text().splitlines()]
    assert sorted(int(number) for number, _ in lines) == list(range(12))
    assert [run.state for run in store.runs()] == ["finished"] * 12


def test_store__a_store_that_becomes_read_only_is_one_sentence_and_the_next_goes_on(store, monkeypatch):
    def refuse(path, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with (
        pytest.raises(StoreError, match=r"system is read-only: .*\.$"),
        store.work("train", "r") as step_folder,
    ):
        step_folder.save_checkpoint({"w": np.zeros(3)}, {"step": 1})
        with monkeypatch.context() as patch:
            for name in ("replace", "rename", "unlink", "remove"):
                patch.setattr(os, name, refuse)
            try:
                step_folder.save_checkpoint({"w": np.ones(3)}, {"step": 2})
            finally:
                step_folder.lock.release()
                assert step_folder.lock.is_owned()  # it could not be removed
    with store.work("train", "r", wait=False) as step_folder:
        assert step_folder.load_checkpoint().meta == {"step": 1}


def test_store__a_file_that_may_not_grow_fails_the_trial_and_keeps_the_last_checkpoint(store):
    body = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with store.work("train", "r") as part:
            part.save_checkpoint({"w": np.zeros(1000)}, {"step": 1})
            try:
                part.save_checkpoint({"w": np.zeros(100_000)}, {"step": 2})
            except nescio.work.store_errors.StoreError as error:
                print(error, flush=True)
                raise SystemExit(1)
    """
    process = child(body, store)
    out, _ = process.communicate()
    assert process.returncode == 1 and len(out.splitlines()) == 1 and "File too large" in out
    with store.work("train", "r", wait=False) as step_folder:
        assert step_folder.load_checkpoint().meta == {"step": 1}


# ---- two users


@contextlib.contextmanager
def user(number, group, umask):
    before = os.umask(umask)
    os.setegid(group)
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.umask(before)


@pytest.fixture
def shared(monkeypatch):
    """A store in a folder that everybody may write to."""
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o777)
        yield Store(Path(place) / "store")


def test_store__users_whose_umask_shuts_the_other_out_are_told_and_nothing_is_lost(shared):
    with user(60001, 60000, 0o077):
        assert do(shared, content=b"first")
    with user(60002, 60000, 0o077):
        for attempt in (lambda: do(shared), lambda: do(shared, "new"), lambda: shared.finished("train", "0" * 16)):
            with pytest.raises(StoreError, match=r"you may not (read|write).*permissions\.$"):
                attempt()
    for path in [shared.root, *shared.root.rglob("*")]:  # chmod -R g+rwX
        path.chmod(path.stat().st_mode | (0o070 if path.is_dir() else 0o060))
    with user(60002, 60000, 0o007):
        assert do(shared) is False and do(shared, "new")
        shared.verify("train", shared.key("train", "r"))


def test_store__what_another_user_may_not_read_is_neither_damaged_nor_absent(shared):
    """“Remove this folder” would cost finished work; “no predictions” and “empty” are not so."""
    dump = fake_zoo.answers(0, 200)
    with user(60001, 60000, 0o022):
        fake_zoo.keep(shared, "resnet18", "digits", dump, False)
    (folder,) = shared.folders("predict")
    with user(60002, 60000, 0o022):
        assert (
            len(predictions_from_text("zoo:resnet18", shared).load()) == 200
        )  # it may be read, and nothing is written
    files = [folder / name for name in ("facts.json", "predictions/logits.npy", "config.json")]
    for place in (*files, shared.root / "predict"):
        mode = place.stat().st_mode
        place.chmod(0o300 if place.is_dir() else 0)
        nescio.work.store._verified.clear()
        with user(60002, 60000, 0o022):
            with pytest.raises(StoreError, match=f"{place}: you may not"):
                predictions_from_text("zoo:resnet18", shared).load()
            if place.is_dir():
                with pytest.raises(StoreError, match="you may not"):
                    shared.runs()
        place.chmod(mode)


def test_store__users_of_one_group_share_the_work(shared):
    with user(60001, 60000, 0o002), contextlib.suppress(RuntimeError), shared.work("train", "r") as step_folder:
        step_folder.save_checkpoint({"w": np.zeros(3)}, {"step": 1})
        step_folder.write("half", b"half")
        raise RuntimeError("it fails")
    with user(60002, 60000, 0o007), shared.work("train", "r") as step_folder:
        assert step_folder.load_checkpoint().meta == {"step": 1}
    with user(60001, 60000, 0o002):
        shared.verify("train", shared.key("train", "r"))


# ---- copies


def test_store__finished_work_comes_over_byte_for_byte_and_is_never_overwritten(store, tmp_path):
    other = Store(tmp_path / "other")
    key = store.key("train", "r")
    do(store)
    assert other.receive(store, "train", key) is True
    for name in files(store.path("train", key)):
        assert (other.path("train", key) / name).read_bytes() == (store.path("train", key) / name).read_bytes()
    other.verify("train", key)
    assert do(other) is False and files(other.root) == files(store.root)
    (other.path("train", key) / "env.json").write_text("its own")
    assert other.receive(store, "train", key) is False
    assert (other.path("train", key) / "env.json").read_text() == "its own"


def test_store__damaged_work_does_not_come_over(store, tmp_path):
    key = store.key("train", "r")
    do(store)
    (store.path("train", key) / "sub" / "weights").write_bytes(b"payloaD")
    with pytest.raises(StoreError, match="changed"):
        Store(tmp_path / "other").receive(store, "train", key)
    assert not (tmp_path / "other").exists()


def test_store__an_interrupted_copy_goes_on_and_what_stood_there_half_made_goes(store, tmp_path, monkeypatch):
    other, key, copy = Store(tmp_path / "other"), store.key("train", "r"), shutil.copyfile
    with store.work("train", "r") as step_folder:
        for name in ("a", "b", "c"):
            step_folder.write(name, name.encode() * 1000)
    with contextlib.suppress(RuntimeError), other.work("train", "r") as step_folder:
        step_folder.write("half", b"half")
        raise RuntimeError("it failed there")
    copied = []

    def interrupted(source, target):
        if len(copied) == 2:
            Path(target).write_bytes(b"b" * 10)
            raise KeyboardInterrupt
        copied.append(Path(source).name)
        return copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        other.receive(store, "train", key)
    assert copied == ["a", "b"] and not other.finished("train", key)
    monkeypatch.setattr(shutil, "copyfile", lambda *paths: (copied.append(Path(paths[0]).name), copy(*paths)))
    assert other.receive(store, "train", key)
    assert copied[2:] == ["c", "config.json", "env.json"]  # those that lay there whole are not copied again
    assert files(other.path("train", key)) == files(store.path("train", key))


def test_store__a_copy_that_arrives_damaged_is_refused(store, tmp_path, monkeypatch):
    other, key = Store(tmp_path / "other"), store.key("train", "r")
    do(store)
    monkeypatch.setattr(shutil, "copyfile", lambda source, target: Path(target).write_bytes(b"noise"))
    with pytest.raises(StoreError, match="was read from"):
        other.receive(store, "train", key)
    monkeypatch.undo()
    assert not other.finished("train", key) and other.receive(store, "train", key)


def test_store__work_that_is_going_on_is_left_to_its_owner(store, tmp_path):
    other = Store(tmp_path / "other")
    do(store)
    with other.work("train", "r") as step_folder:
        with pytest.raises(Busy):
            other.receive(store, "train", step_folder.key)
        step_folder.write("its", b"own")
    assert files(other.path("train", step_folder.key)) == ["config.json", "env.json", "its"]


ODD = [b"", b"null", b"[1]", b"{}", b"[" * 100_000, b"\xff", b'{"pid": 1e999}']


@pytest.mark.parametrize("pid", [None, 0, -1, 1, True, "7", 7.5, 10**30, [1]])
def test_this_machine__a_lock_without_a_real_process_is_taken_over(store, pid):
    folder = store.path("train", store.key("train", {})).with_suffix(".part") / ".work"
    folder.mkdir(parents=True)
    owner = {**this_machine(), "pid": pid, "start": None if pid in (None, 7.5) else 5}
    (folder / "lock.1").write_text(json.dumps(owner))
    assert store.runs()[0].state == "stopped"
    with store.work("train", {}, wait=False) as step_folder:
        step_folder.write("a", b"x")
    assert store.runs()[0].state == "finished"


@pytest.mark.parametrize("name", ["config.json", "failure.json", ".work/lock.1"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "big", *range(len(ODD))])
def test_store__odd_files_of_an_entry_do_not_stop_the_others(store, name, kind):
    with store.work("train", {}) as step_folder:
        step_folder.write("a", b"x")
    place = store.path("train", "0" * 16).with_suffix(".part") / name
    place.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "folder":
        place.mkdir()
    elif kind == "big":
        with place.open("wb") as file:
            file.truncate(1 << 34)
    else:
        place.write_bytes(ODD[kind])
    assert sorted(run.key for run in store.runs()) == sorted(["0" * 16, store.key("train", {})])


def test_store__recipes_of_other_types_are_listed(store):
    for number, odd in enumerate([{"parents": 7}, {"config": [1]}, {"config": "r"}, {"version": "x"}, {"title": []}]):
        place = store.path("train", f"{number:016x}")
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps({"stage": "train", **odd}))
    assert all(isinstance(run.config, dict) and isinstance(run.parents, tuple) for run in store.runs())
    assert len(store.runs()) == 5


def test_store__work_is_never_done_through_a_link(store, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter").write_text("dear")
    part = store.path("train", store.key("train", {})).with_suffix(".part")
    part.parent.mkdir(parents=True)
    part.symlink_to(mine)
    with pytest.raises(StoreError, match="symbolic link"), store.work("train", {}):
        pass
    assert (mine / "letter").read_text() == "dear"
