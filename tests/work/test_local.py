"""Local workers do every task once, whatever happens to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import nescio.work.launchers
from nescio import progress
from nescio.errors import BadInput
from nescio.work.launchers import BLAS, Queue, Task
from nescio.work.local import LocalWorkers
from nescio.work.store import Store
from nescio.work.store_errors import Busy, StoreError
from tests.support.waiting import alive, until

pytestmark = pytest.mark.usefixtures("light")


def sweep(tasks, workers, watch=None):
    with LocalWorkers(workers) as launcher:
        return launcher.run(tasks, watch)


def note(folder, name, text=""):
    with open(Path(folder) / name, "a") as file:
        file.write(text or f"{os.getpid()}\n")


def lines(folder, name):
    path = Path(folder) / name
    return path.read_text().splitlines() if path.exists() else []


def fail(text):
    raise RuntimeError(text)


def refuse(text):
    raise BadInput(text)


def die(signal_=signal.SIGKILL):
    os.kill(os.getpid(), signal_)


def leave(code):
    os._exit(code)


def occupied(folder, name, until):
    """Somebody else does this work until it was asked for a few times."""
    note(folder, name)
    if len(lines(folder, name)) < until:
        raise Busy("another process does it")


def died(reason, folder, name, *_):
    note(folder, name, f"{reason}\n")


def killed_with_note(folder, name):
    die()


def hours(folder, name):
    note(folder, name)
    time.sleep(60)


@pytest.mark.parametrize("workers", [0, 2])
def test_local_workers__every_task_is_done_once_and_a_failure_costs_its_own_task(tmp_path, workers):
    tasks = [Task(f"t{i}", note, (tmp_path, f"t{i}")) for i in range(6)]
    tasks.insert(1, Task("broken", fail, ("it broke\nTraceback of many lines",)))
    tasks.insert(3, Task("wrong", refuse, ("The labels are wrong.",)))
    seen = []
    failures = sweep(tasks, workers, lambda *counts: seen.append(counts))
    assert [len(lines(tmp_path, f"t{i}")) for i in range(6)] == [1] * 6
    found = {each.name: each.reason for each in failures}
    assert found == {"broken": "RuntimeError: it broke", "wrong": "The labels are wrong."}
    assert [done for done, *_ in seen] == list(range(9)) and seen[-1][:3] == (8, 2, 8)


@pytest.mark.parametrize("workers", [0, 2])
def test_local_workers__what_a_task_returns_reaches_the_watcher(workers):
    seen = []
    sweep([Task("two", divmod, (7, 3)), Task("none", divmod, (7, 0))], workers, lambda *each: seen.append(each))
    assert seen[0] == (0, 0, 2, None) and sorted(each[3] for each in seen if each[3]) == [(2, 1)]


def test_local_workers__a_worker_that_dies_is_replaced_and_its_task_is_marked(tmp_path):
    tasks = [
        Task("killed", killed_with_note, (tmp_path, "note"), died),
        Task("left", leave, (3,)),
        Task("ended", die, (signal.SIGTERM,)),
        *(Task(f"t{i}", note, (tmp_path, f"t{i}")) for i in range(3)),
    ]
    failures = sweep(tasks, 1)
    reasons = {failure.name: failure.reason for failure in failures}
    assert "killed" in reasons["killed"] and "memory" in reasons["killed"]
    assert "exit code 3" in reasons["left"] and "SIGTERM" in reasons["ended"]
    assert lines(tmp_path, "note") == [reasons["killed"]]
    assert all(len(lines(tmp_path, f"t{i}")) == 1 for i in range(3))


def cannot_note(reason, *_):
    raise StoreError("disk full.")


def test_local_workers__a_death_that_cannot_be_noted_is_told_all_the_same():
    (failure,) = sweep([Task("killed", die, (), cannot_note)], 1)
    assert "memory" in failure.reason and failure.reason.endswith("disk full.")


@pytest.mark.parametrize("workers", [0, 1])
def test_local_workers__what_another_sweep_does_is_asked_again_behind_the_others(tmp_path, workers, monkeypatch):
    monkeypatch.setattr(nescio.work.launchers, "RETRY_SECONDS", 0.1)
    tasks = [Task("busy", occupied, (tmp_path, "busy", 3)), Task("free", note, (tmp_path, "free"))]
    order = []
    begun = time.monotonic()
    with LocalWorkers(workers) as launcher:
        for task, state in _follow(launcher, tasks):
            order.append((task.name, state))
    assert order == [("busy", "busy"), ("free", "done"), ("busy", "busy"), ("busy", "done")]
    assert time.monotonic() - begun > 0.2


def _follow(launcher, tasks):
    queue = Queue(tasks)
    for task, outcome in launcher._outcomes(queue):
        yield task, outcome.status
        if outcome.status == "busy":
            queue.later(task)


def test_local_workers__a_free_worker_does_not_spin_while_work_is_done_elsewhere(tmp_path, monkeypatch):
    """A hundred questions a second would take the core away from those that train."""
    monkeypatch.setattr(nescio.work.launchers, "RETRY_SECONDS", 0.2)
    tasks = [Task("busy", occupied, (tmp_path, "busy", 4)), Task("long", time.sleep, (0.5,))]
    assert sweep(tasks, 2) == []
    assert len(lines(tmp_path, "busy")) == 4


def test_local_workers__workers_stay_for_the_next_round_and_one_that_died_in_between_is_replaced(tmp_path):
    with LocalWorkers(1) as launcher:
        launcher.run([Task("a", note, (tmp_path, "a"))])
        launcher.run([Task("b", note, (tmp_path, "b"))])
        (first,) = lines(tmp_path, "a")
        assert lines(tmp_path, "b") == [first]
        process = launcher.processes[0].process
        process.kill()
        process.join()
        assert launcher.run([Task("c", note, (tmp_path, "c"))]) == []
        assert lines(tmp_path, "c") != [first]
    assert not launcher.processes and not process.is_alive()


class Unknown:
    def __reduce__(self):
        return __import__, ("a_plug_in_that_is_not_there",)


def test_local_workers__what_a_worker_cannot_read_is_a_failure_not_the_end(tmp_path):
    tasks = [Task("odd", note, (Unknown(), "x")), Task("next", note, (tmp_path, "next"))]
    (failure,) = sweep(tasks, 1)
    assert failure.name == "odd" and "a_plug_in_that_is_not_there" in failure.reason
    assert len(lines(tmp_path, "next")) == 1


def test_local_workers__no_more_workers_than_tasks_and_none_without_any(tmp_path):
    with LocalWorkers(8) as launcher:
        assert launcher.run([]) == [] and launcher.processes == []
        launcher.run([Task("a", note, (tmp_path, "a"))])
        assert len(launcher.processes) == 1
    with pytest.raises(BadInput, match=r"workers.*-1"):
        LocalWorkers(-1)


def test_local_workers__workers_share_the_cores_unless_the_user_says_otherwise(tmp_path, monkeypatch):
    monkeypatch.delenv("NESCIO_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    sweep([Task("a", tell_threads, (tmp_path, "a"))], 2)
    monkeypatch.setenv("NESCIO_THREADS", "7")
    sweep([Task("b", tell_threads, (tmp_path, "b"))], 2)
    assert lines(tmp_path, "a") == [str(max(1, cores // 2))] and lines(tmp_path, "b") == ["7"]


def tell_threads(folder, name):
    note(folder, name, os.environ["NESCIO_THREADS"])


def test_local_workers__a_workers_blas_takes_one_core(tmp_path, monkeypatch):
    """Fifteen workers on sixteen cores, each with sixteen threads, once had a load of eighty."""
    for name in BLAS:
        monkeypatch.delenv(name, raising=False)
    sweep([Task("a", tell_blas, (tmp_path, "a"))], 2)
    assert lines(tmp_path, "a") == ["1"]
    assert not {*BLAS} & {*os.environ}
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    sweep([Task("b", tell_blas, (tmp_path, "b"))], 2)
    assert lines(tmp_path, "b") == [str(min(2, len(os.sched_getaffinity(0))))]


def tell_blas(folder, name):
    from threadpoolctl import threadpool_info

    note(folder, name, str(max(each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas")))


def test_local_workers__a_failure_of_the_store_is_one_sentence(tmp_path):
    (tmp_path / "store").write_text("a file")
    (failure,) = sweep([Task("t", begin, (tmp_path / "store",))], 0)
    assert failure.kind == "StoreError"


def begin(root):
    with Store(root).work("train", "r"):
        pass


def test_local__workers_end_with_their_sweep_however_it_ends(tmp_path):
    code = """
        import signal, sys
        sys.path[:0] = {path!r}
        from tests.work import test_local
        if __name__ == "__main__":
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
            test_local.sweep([test_local.Task("t", test_local.hours, ({folder!r}, "pid"))] * 2, 2)
    """
    code = textwrap.dedent(code).format(path=[str(tmp_path / "no-torch"), *sys.path], folder=str(tmp_path))
    (tmp_path / "main.py").write_text(code)
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen([sys.executable, tmp_path / "main.py"], stderr=subprocess.DEVNULL)
        until(lambda: len(lines(tmp_path, "pid")) == 2)
        workers = [int(each) for each in lines(tmp_path, "pid")]
        assert all(map(alive, workers))
        process.send_signal(ending)
        process.wait(timeout=30)
        until(lambda workers=workers: not any(map(alive, workers)))
        (tmp_path / "pid").unlink()


def count_slowly(times):
    for _ in progress.track([1] * times, "counting", times, images=int):
        time.sleep(0.1)


def test_local_workers__the_progress_of_a_worker_is_shown_by_its_parent(light, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_INTERVAL", 0.0)
    assert not sweep([Task("pause", shorten_pause, ()), Task("count", count_slowly, (3,))], 1)
    assert "counting: 2 of 3 images" in capsys.readouterr().err


def shorten_pause():
    progress.LINE_INTERVAL = 0.0
