"""Launchers, which run tasks: `local` with worker processes of this machine, others in modules of their own.

A launcher is a dataclass with a number of workers, registered with `@launcher("name")`; other packages use the
entry-point group `nescio.launchers`. Its fields made with `nescio.options.option` become options of every command that
has `--launcher`.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

from nescio.errors import BadInput, describe_error
from nescio.registry import Registry
from nescio.work.store_errors import Busy, StoreError

BUILT_IN = ("local", "ray", "slurm")  # modules of this package
BLAS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
RETRY_SECONDS = 0.5  # before trying work again that another process is doing
PARENT = "NESCIO_PARENT"  # environment variable: the process ends with the process of this id


@dataclass(frozen=True)
class Task:
    """A call for a worker: a module-level function, picklable arguments, a picklable result."""

    name: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    on_death: Callable[..., None] | None = None  # called with (reason, *args) when its worker dies
    folder: Path | None = None  # STORE/stage/key of its result: two tasks with the same folder are the same work
    processes: int = 1  # number of cooperating processes per node
    nodes: int = 1  # number of nodes


class Outcome(NamedTuple):
    """How a task ended.

    status  done, busy, refused, failed, died; or the launcher's word for a state of its engine
    result  of the task; (reason, class of the error) if it was refused or failed; the reason if its worker died
    """

    status: str
    result: object = None


@dataclass(frozen=True)
class Failure:
    """A failed task and its reason."""

    name: str
    reason: str
    refused: bool = False  # invalid input: a retry would fail in the same way
    kind: str = ""  # class name of the error, for callers that treat one kind separately


ProgressCallback = Callable[[int, int, int, object], None]  # done, failed, all; result of the last finished task


class Launcher(Protocol):
    """Runs every task once and returns the failures. A task that raises Busy is tried again after the others."""

    workers: int  # how many tasks run at once

    def run(self, tasks: Sequence[Task], watch: ProgressCallback | None = None) -> list[Failure]: ...

    def __enter__(self) -> Launcher: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the workers."""


registry: Registry[Callable[..., Launcher]] = Registry("launcher")
L = TypeVar("L", bound=Callable[..., Any])


def launcher(name: str) -> Callable[[L], L]:
    """Registers a dataclass of a number of workers, and of its own options, as the launcher of this name."""

    def register(make: L) -> L:
        registry.add(name, make)
        return make

    return register


def run_task(task: Task) -> Outcome:
    """Run a task in this process."""
    try:
        return Outcome("done", task.call(*task.args))
    except Busy:
        return Outcome("busy")
    except Exception as error:  # the failure of one task must not stop the others
        return failed(error)


def run_pickled_task(packed: bytes) -> Outcome:
    """Run a pickled task in a worker."""
    try:
        task = pickle.loads(packed)
    except Exception as error:  # for example a plug-in that cannot be imported here
        return failed(error)
    return run_task(task)


def failed(error: Exception) -> Outcome:
    status = "refused" if isinstance(error, BadInput) else "failed"
    return Outcome(status, (describe_error(error), type(error).__name__))


def failure_of(task: Task, outcome: Outcome) -> Failure:
    """The failure of a refused or failed task, or of one whose worker died."""
    if outcome.status != "died":
        reason, kind = outcome.result if isinstance(outcome.result, tuple) else (str(outcome.result), "")
        return Failure(task.name, reason, outcome.status == "refused", kind)
    reason = str(outcome.result)
    try:
        if task.on_death:
            task.on_death(reason, *task.args)
    except StoreError as error:  # the caller gets the error
        reason = f"{reason} The failure could not be recorded: {error}"
    return Failure(task.name, reason)


# ---- shared by launchers


class Queue:
    """Tasks in order; busy tasks are tried again later, after the others."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.ready = deque(tasks)
        self.busy: deque[tuple[float, Task]] = deque()

    def __len__(self) -> int:
        return len(self.ready) + len(self.busy)

    def first(self) -> Task | None:
        """The task that `next` returns."""
        if self.ready:
            return self.ready[0]
        return self.busy[0][1] if self.busy and self.pause() == 0 else None

    def next(self) -> Task | None:
        if self.ready:
            return self.ready.popleft()
        return self.busy.popleft()[1] if self.busy and self.pause() == 0 else None

    def later(self, task: Task) -> None:
        self.busy.append((time.monotonic() + RETRY_SECONDS, task))

    def pause(self) -> float | None:
        """Seconds until a task can be run; None if the queue is empty."""
        if self.ready:
            return 0.0
        return max(0.0, self.busy[0][0] - time.monotonic()) if self.busy else None


def run_queue(
    tasks: Sequence[Task],
    outcomes: Callable[[Queue], Iterator[tuple[Task, Outcome]]],
    watch: ProgressCallback | None = None,
) -> list[Failure]:
    """Run all tasks and return the failures; a busy task goes back into the queue.

    outcomes  takes tasks from the queue and yields each with its outcome
    """
    queue, failures, done = Queue(tasks), list[Failure](), 0
    if watch:
        watch(0, 0, len(tasks), None)
    for task, outcome in outcomes(queue):
        if outcome.status == "busy":
            queue.later(task)
            continue
        done += 1
        succeeded = outcome.status == "done"
        if not succeeded:
            failures.append(failure_of(task, outcome))
        if watch:
            watch(done, len(failures), len(tasks), outcome.result if succeeded else None)
    return failures


def thread_environment(count: int) -> dict[str, str]:
    """Environment variables of a worker with `count` cores; BLAS uses one thread.

    Variables that the user has set stay unchanged.
    """
    ours = {"NESCIO_THREADS": str(count)} | dict.fromkeys(BLAS, "1")
    return {name: value for name, value in ours.items() if name not in os.environ}


def python_path() -> str:
    """PYTHONPATH of a worker, so that it can import the same plug-ins as this process."""
    folders = [folder for folder in sys.path if folder and not folder.startswith((sys.prefix, sys.base_prefix))]
    return os.pathsep.join(folders)


def end_with_parent(parent: int, signal_number: int = signal.SIGTERM) -> None:
    """End this process when its parent has died; its work can be resumed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal_number)

    threading.Thread(target=watch, daemon=True).start()


def describe_exit(code: int | None) -> str:
    """A description of how a process ended, from its exit code."""
    if code == -signal.SIGKILL:
        return "was killed; most often the machine had no memory left"
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def use_one_thread() -> None:
    """Make torch use one thread, so that results do not depend on the number of workers."""
    try:
        import torch
    except ImportError:  # torch is not installed
        return
    torch.set_num_threads(1)


# ---- by name


def launcher_class(name: str) -> Callable[..., Launcher]:
    """The launcher class of a name; its engine is imported only when it starts."""
    for module in BUILT_IN:
        import_module(f"nescio.work.{module}")  # importing registers
    return registry[name]


def make_launcher(name: str, workers: int, **options: object) -> Launcher:
    """A launcher by name, with a number of workers and its options."""
    return launcher_class(name)(workers, **options)
