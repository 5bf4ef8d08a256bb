"""Tasks on worker processes of this machine; a worker that dies loses only its task."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

from nescio.errors import BadInput
from nescio.progress import relay_to, show
from nescio.work.launchers import (
    Failure,
    Outcome,
    ProgressCallback,
    Queue,
    Task,
    describe_exit,
    end_with_parent,
    launcher,
    run_pickled_task,
    run_queue,
    run_task,
    thread_environment,
    use_one_thread,
)
from nescio.work.team import CHECKPOINT_SECONDS, PLACES

log = logging.getLogger(__name__)
PROGRESS = "progress"  # status of a message about a running task


@launcher("local")
@dataclass
class LocalWorkers:
    """Worker processes that are reused, because starting one takes seconds; 0 workers run tasks in this process."""

    workers: int
    processes: list[_Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise BadInput(f"workers must be at least 0, got {self.workers}.")

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.processes:
            worker.stop()
        for worker in self.processes:
            worker.join()
        self.processes.clear()

    def run(self, tasks: Sequence[Task], watch: ProgressCallback | None = None) -> list[Failure]:
        """Run every task once and return the failures."""
        processes, cores = max((task.processes for task in tasks), default=1), len(os.sched_getaffinity(0))
        if processes > cores:
            log.warning("The %d processes of a training share the %d cores of this machine.", processes, cores)
        return run_queue(tasks, self._outcomes, watch)

    def _outcomes(self, queue: Queue) -> Iterator[tuple[Task, Outcome]]:
        """Every task with its outcome, as they finish."""
        while self.workers == 0 and queue:
            task = queue.next()
            if task is None:
                time.sleep(queue.pause() or 0)
            else:
                yield task, run_task(task)
        while queue or any(worker.task for worker in self.processes):
            while (places := self._free_processors(queue.first())) and (task := queue.next()):
                self._idle_worker().assign(task, places)
            at_work = [worker for worker in self.processes if worker.task]
            if not at_work:
                time.sleep(queue.pause() or 0)
                continue
            wait(
                [signal for w in at_work for signal in (w.pipe, w.process.sentinel)], queue.pause() if places else None
            )
            for worker in at_work:
                task = worker.task
                if task is not None and (outcome := worker.outcome()) is not None:
                    yield task, outcome

    def _free_processors(self, task: Task | None) -> list[int]:
        """Indices of free cores or GPUs, one per process of a task; empty if there are too few."""
        count = task.processes if task else 1
        busy = {place for worker in self.processes if worker.task for place in worker.places}
        free = [place for place in range(max(self.workers, count)) if place not in busy]
        return free[:count] if len(free) >= count else []

    def _idle_worker(self) -> _Worker:
        """A worker without a task, started if there is none; dead workers are dropped."""
        self.processes = [worker for worker in self.processes if worker.task or worker.process.is_alive()]
        for worker in self.processes:
            if not worker.task:
                return worker
        self.processes.append(_Worker(self.workers))
        return self.processes[-1]


class _Worker:
    def __init__(self, workers: int) -> None:
        # spawn: a forked process cannot use the GPU, and threads of torch do not survive a fork
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,), daemon=True)
        environment = thread_environment(max(1, len(os.sched_getaffinity(0)) // workers))
        os.environ.update(environment)  # the process inherits it
        try:
            self.process.start()
        finally:
            for name in environment:
                del os.environ[name]
        other.close()
        self.task: Task | None = None
        self.places: list[int] = []

    def assign(self, task: Task, places: list[int]) -> None:
        self.task, self.places = task, places
        with suppress(BrokenPipeError):  # the process died; `outcome` reports the reason
            self.pipe.send((",".join(map(str, places)), pickle.dumps(task)))

    def outcome(self) -> Outcome | None:
        """The outcome of the task if it has ended; the worker is then idle."""
        assert self.task is not None
        name = self.task.name
        try:
            while self.pipe.poll():
                status, result = self.pipe.recv()
                if status == PROGRESS:
                    title, state = result
                    show(title if name in title or title in name else f"{name}: {title}", state)
                    continue
                self.task = None
                return Outcome(status, result)
        except (EOFError, OSError):
            pass  # the process died; the next lines determine the reason
        else:
            if self.process.is_alive() or self.pipe.poll():
                return None
        self.process.join()
        self.task = None
        return Outcome("died", f"The worker {describe_exit(self.process.exitcode)}.")

    def stop(self) -> None:
        if self.task is not None:
            self.process.terminate()
        self.pipe.close()

    def join(self) -> None:
        """Wait for the worker, which ends the processes of its training first."""
        self.process.join(timeout=CHECKPOINT_SECONDS)
        if self.process.is_alive():
            self.process.kill()


def _serve(pipe: Connection) -> None:
    """Run tasks in a worker until its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(os.getppid())
    use_one_thread()
    relay_to(lambda *said: pipe.send((PROGRESS, said)))
    with suppress(EOFError, OSError):
        while True:
            os.environ[PLACES], packed = pipe.recv()
            pipe.send(run_pickled_task(packed))
