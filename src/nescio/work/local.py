"""Many tasks on a few worker processes. A worker that fails or dies loses its task only."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from nescio.errors import BadInput
from nescio.work.launchers import Counts, Failure, Task, attempt, launcher, note_death
from nescio.work.store import reason_of

BLAS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
PATIENCE = 0.5  # seconds before trying again work that another sweep is doing


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
        queue, failures, done = _Queue(tasks), list[Failure](), 0
        if watch:
            watch(0, 0, len(tasks), None)
        for task, state, answer in self._answers(queue):
            if state == "busy":
                queue.later(task)
                continue
            done += 1
            if state == "died":
                failures.append(Failure(task.name, note_death(task, answer)))
            elif state != "done":
                failures.append(Failure(task.name, answer[0], state == "refused", answer[1]))
            if watch:
                watch(done, len(failures), len(tasks), answer if state == "done" else None)
        return failures

    def _answers(self, queue: _Queue) -> Iterator[tuple[Task, str, Any]]:
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


class _Queue:
    """Tasks in order; those that another sweep is doing come again after a while, behind the others."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.ready = deque(tasks)
        self.busy: deque[tuple[float, Task]] = deque()

    def __len__(self) -> int:
        return len(self.ready) + len(self.busy)

    def next(self) -> Task | None:
        if self.ready:
            return self.ready.popleft()
        return self.busy.popleft()[1] if self.busy and self.pause() == 0 else None

    def later(self, task: Task) -> None:
        self.busy.append((time.monotonic() + PATIENCE, task))

    def pause(self) -> float | None:
        """Seconds until a task can be tried again; None if no task waits."""
        if self.ready:
            return 0.0
        return max(0.0, self.busy[0][0] - time.monotonic()) if self.busy else None


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
    """Processes started inside share the cores: each counts on so many, and its BLAS on one, because code that needs
    more brings its own threads. What the user has set stays."""
    ours = {"NESCIO_THREADS": str(count)} | dict.fromkeys(BLAS, "1")
    ours = {name: value for name, value in ours.items() if name not in os.environ}
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
    try:
        import torch

        torch.set_num_threads(1)
    except ImportError:
        pass  # tasks without torch need none
    with suppress(EOFError, OSError):
        while True:
            pipe.send(_received(pipe))


def _end_with(parent: int) -> None:
    """Ends this process when its sweep was killed, though it is at work: what it does can be taken up again."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _received(pipe: Any) -> tuple[str, Any]:
    try:
        task = pipe.recv()
    except (EOFError, OSError):
        raise
    except Exception as error:  # a plug-in that cannot be imported here, say
        return "failed", (reason_of(error), type(error).__name__)
    return attempt(task)
