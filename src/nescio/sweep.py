"""Many tasks on a few worker processes. A worker that fails or dies costs its task, never the others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from nescio.errors import BadInput
from nescio.store import Busy

PATIENCE = 0.5  # seconds before asking again for work that another sweep is doing


@dataclass(frozen=True)
class Task:
    """One call that a worker makes: a module-level function and plain arguments."""

    name: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    died: Callable[..., None] | None = None  # called with (reason, *args) when the worker dies over it


@dataclass(frozen=True)
class Failure:
    task: Task
    reason: str


Watch = Callable[[int, int, int], None]  # done, failed, all


def sweep(tasks: Sequence[Task], workers: int, watch: Watch | None = None) -> list[Failure]:
    """Does every task once and returns what failed and why. `workers` = 0 works in this process."""
    if workers < 0:
        raise BadInput(f"--workers is a number of processes, not {workers}.")
    if workers == 0:
        return _here(tasks, watch)
    waiting, failures, done = deque(tasks), [], 0
    crew = [_Worker() for _ in range(min(workers, len(tasks)))]
    try:
        while waiting or any(worker.task for worker in crew):
            for worker in crew:
                if worker.task is None and waiting:
                    worker.give(waiting.popleft())
            wait([handle for worker in crew if worker.task for handle in (worker.pipe, worker.process.sentinel)])
            for number, worker in enumerate(crew):
                answer = worker.answer()
                if answer is None:
                    continue
                task, (state, reason) = answer
                if state == "busy":
                    waiting.append(task)
                    if all(each.task is None for each in crew):
                        time.sleep(PATIENCE)
                    continue
                done += 1
                if state != "done":
                    failures.append(Failure(task, reason))
                if state == "died":
                    crew[number] = _Worker()
                    if task.died:
                        task.died(reason, *task.args)
                if watch:
                    watch(done, len(failures), len(tasks))
    finally:
        for worker in crew:
            worker.stop()
    return failures


def _here(tasks: Sequence[Task], watch: Watch | None) -> list[Failure]:
    failures = []
    for done, task in enumerate(tasks, start=1):
        state, reason = _try(task)
        while state == "busy":
            time.sleep(PATIENCE)
            state, reason = _try(task)
        if state != "done":
            failures.append(Failure(task, reason))
        if watch:
            watch(done, len(failures), len(tasks))
    return failures


def _try(task: Task) -> tuple[str, str]:
    try:
        task.call(*task.args)
    except Busy:
        return "busy", ""
    except Exception as error:  # any failure of one task must not stop the others; its reason is kept and shown
        lines = str(error).strip().splitlines()
        return "failed", lines[0] if lines else type(error).__name__
    return "done", ""


class _Worker:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.task: Task | None = None

    def give(self, task: Task) -> None:
        self.task = task
        self.pipe.send(task)

    def answer(self) -> tuple[Task, tuple[str, str]] | None:
        """What became of the task, if it ended."""
        if self.task is None:
            return None
        task = self.task
        try:
            if self.pipe.poll():
                said: tuple[str, str] = self.pipe.recv()
                self.task = None
                return task, said
        except (EOFError, OSError):
            pass  # it died; the next lines say how
        if self.process.is_alive() and not self.pipe.poll():
            return None
        self.process.join()
        self.task = None
        return task, ("died", _death(self.process.exitcode))

    def stop(self) -> None:
        if self.task is not None:
            self.process.terminate()
        self.pipe.close()
        self.process.join(timeout=10)
        if self.process.is_alive():
            self.process.kill()


def _death(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "The worker was killed; most often the machine had no memory left."
    if code is not None and code < 0:
        return f"The worker was ended by {signal.Signals(-code).name}."
    return f"The worker ended with exit code {code}."


def _serve(pipe: Any) -> None:
    """A worker's life: one task after the other, one thread each, so that results do not depend on how many work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    try:
        import torch

        torch.set_num_threads(1)
    except ImportError:
        pass  # tasks without torch need none
    while os.getppid() == parent:
        try:
            if pipe.poll(1.0):
                pipe.send(_try(pipe.recv()))
        except (EOFError, OSError):
            return
