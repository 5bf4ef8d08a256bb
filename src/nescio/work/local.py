"""Many tasks on a few worker processes. A worker that fails or dies loses its task only."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from nescio.errors import BadInput
from nescio.work.launchers import (
    Counts,
    Failure,
    Queue,
    Task,
    attempt,
    attempt_packed,
    follow,
    launcher,
    one_thread,
    threads,
)


@launcher("local")
@dataclass
class LocalWorkers:
    """Worker processes that stay for many rounds of tasks, since a start costs seconds; 0 works in this process."""

    workers: int
    processes: list[_Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise BadInput(f"--workers is a number of processes, not {self.workers}.")

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.processes:
            worker.stop()
        self.processes.clear()

    def run(self, tasks: Sequence[Task], watch: Counts | None = None) -> list[Failure]:
        """Does every task once and returns what failed and why."""
        return follow(tasks, self._answers, watch)

    def _answers(self, queue: Queue) -> Iterator[tuple[Task, str, Any]]:
        """(task, what became of it, why or what it returned), as they come; one put back into the queue comes again."""
        while self.workers == 0 and queue:
            task = queue.next()
            if task is None:
                time.sleep(queue.pause() or 0)
            else:
                yield task, *attempt(task)
        while queue or any(worker.task for worker in self.processes):
            for worker in self._idle(len(queue)):
                if (task := queue.next()) is not None:
                    worker.give(task)
            at_work = [worker for worker in self.processes if worker.task]
            if not at_work:
                time.sleep(queue.pause() or 0)
                continue
            free = len(at_work) < self.workers
            wait([signal for w in at_work for signal in (w.pipe, w.process.sentinel)], queue.pause() if free else None)
            for worker in at_work:
                if (answer := worker.answer()) is not None:
                    yield answer

    def _idle(self, wanted: int) -> list[_Worker]:
        """Workers without a task; those that died between two tasks are replaced."""
        self.processes = [worker for worker in self.processes if worker.task or worker.process.is_alive()]
        idle = [worker for worker in self.processes if not worker.task]
        for _ in range(min(self.workers - len(self.processes), wanted - len(idle))):
            self.processes.append(_Worker(self.workers))
            idle.append(self.processes[-1])
        return idle


class _Worker:
    def __init__(self, of: int) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,), daemon=True)
        with _threads(max(1, len(os.sched_getaffinity(0)) // of)):
            self.process.start()
        other.close()
        self.task: Task | None = None

    def give(self, task: Task) -> None:
        self.task = task
        with suppress(BrokenPipeError):  # it just died; `answer` reports how
            self.pipe.send(task)

    def answer(self) -> tuple[Task, str, Any] | None:
        """What became of the task, if it ended."""
        assert self.task is not None
        task = self.task
        try:
            if self.pipe.poll():
                state, result = self.pipe.recv()
                self.task = None
                return task, state, result
        except (EOFError, OSError):
            pass  # it died; the next lines say how
        else:
            if self.process.is_alive() or self.pipe.poll():
                return None
        self.process.join()
        self.task = None
        return task, "died", _death(self.process.exitcode)

    def stop(self) -> None:
        if self.task is not None:
            self.process.terminate()
        self.pipe.close()
        self.process.join(timeout=10)
        if self.process.is_alive():
            self.process.kill()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Processes started inside share the cores: each counts on so many."""
    ours = threads(count)
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


def _death(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "The worker was killed; most often the machine had no memory left."
    if code is not None and code < 0:
        return f"The worker was ended by {signal.Signals(-code).name}."
    return f"The worker ended with exit code {code}."


def _serve(pipe: Any) -> None:
    """A worker's life: one task after the other, on one thread of torch, so that no result depends on how many work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    one_thread()
    with suppress(EOFError, OSError):
        while True:
            pipe.send(attempt_packed(pipe.recv_bytes()))


def _end_with(parent: int) -> None:
    """Ends this process when its sweep was killed, though it is at work: what it does can be taken up again."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
