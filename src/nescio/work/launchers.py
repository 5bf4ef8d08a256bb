"""Launchers: what runs tasks. `local` is worker processes of this machine; another one is a file of its own.

A launcher registers itself with `@launcher("name")`, by the entry-point group `nescio.launchers` when it comes with
another package, and is then what `--launcher name` means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeVar

from nescio.errors import BadInput
from nescio.registry import Registry
from nescio.work.store import Busy, StoreError, reason_of


@dataclass(frozen=True)
class Task:
    """One call that a worker makes: a function of a module, plain arguments, a plain answer."""

    name: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    died: Callable[..., None] | None = None  # called with (reason, *args) when the worker dies over it


@dataclass(frozen=True)
class Failure:
    """A task that was not done, and why."""

    name: str
    reason: str
    refused: bool = False  # what was given cannot be used: another try would end the same
    kind: str = ""  # class name of the error, for those who treat one kind apart


Counts = Callable[[int, int, int, Any], None]  # done, failed, all; what the task returned that was done just now


class Launcher(Protocol):
    """Runs every task once and returns what failed. A task that raises Busy is tried again later, behind the others."""

    def run(self, tasks: Sequence[Task], watch: Counts | None = None) -> list[Failure]: ...

    def __enter__(self) -> Launcher: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Ends the workers."""


registry: Registry[Callable[[int], Launcher]] = Registry("launcher")
L = TypeVar("L", bound=Callable[..., Any])


def launcher(name: str) -> Callable[[L], L]:
    """Registers a class (or function) of a number of workers as the launcher of this name."""

    def register(make: L) -> L:
        registry.add(name, make)
        return make

    return register


def attempt(task: Task) -> tuple[str, Any]:
    """What becomes of a task here: done and its answer; busy; refused or failed, with reason and class of the error."""
    try:
        return "done", task.call(*task.args)
    except Busy:
        return "busy", ""
    except BadInput as error:
        return "refused", (reason_of(error), type(error).__name__)
    except Exception as error:  # any failure of one task must not stop the others; its reason is kept and shown
        return "failed", (reason_of(error), type(error).__name__)


def note_death(task: Task, reason: str) -> str:
    """The reason of a worker's death, after the task's own `died` wrote it down."""
    try:
        if task.died:
            task.died(reason, *task.args)
    except StoreError as error:  # the caller still learns of it
        return f"{reason} It could not be noted: {error}"
    return reason


def start(name: str, workers: int) -> Launcher:
    """The launcher of a name, with so many workers."""
    import nescio.work.local  # noqa: F401  (importing registers)

    return registry[name](workers)
