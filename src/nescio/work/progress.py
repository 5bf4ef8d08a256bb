"""Progress of long work, on stderr: a bar on a terminal, a line every ten seconds elsewhere.

What a worker process says of its task is shown by the process that started it (`relay`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import timedelta
from typing import Any, TypeVar

from nescio.errors import visible

T = TypeVar("T")
PATIENCE = 2.0  # seconds of silence before the bar of a loop appears
PAUSE = 10.0  # seconds between two lines where there is no terminal
Relay = Callable[[str, str], None]  # what is worked on; how far it is
_relay: list[Relay] = []  # of a worker: gives its progress to the process that started it
_stages: list[Stages] = []  # those of this process, the innermost last
_spoke: list[float] = []  # when this process wrote its last line, or began


class Bar:
    """One line of a terminal: what is done, how far it is, and a text that is made anew whenever it is drawn."""

    def __init__(self, what: str, state: Any = "", *, total: float | None = None, stays: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
        self.bar = Progress(
            *columns, console=Console(file=getattr(sys.stderr, "unfiltered", sys.stderr)), transient=not stays
        )
        self.task = self.bar.add_task(visible(what), total=total, state=state)
        self.bar.start()

    def move(self, done: float, **changes: Any) -> None:
        self.bar.update(self.task, completed=done, **changes)

    def close(self) -> None:
        self.bar.stop()


def begin() -> None:
    """Begins a command: its first line comes after ten seconds of silence."""
    _spoke[:] = [time.monotonic()]


def relay_to(relay: Relay) -> None:
    """Gives the progress of this process, a worker, to the one that started it."""
    _relay[:] = [relay]


def show(what: str, state: str) -> None:
    """Shows what a worker says of its task: beside the bar of its stage, or as a line every ten seconds."""
    stages = next((each for each in reversed(_stages) if each.bar is not None), None)
    if stages is not None:
        stages.inside = f"{what}: {state}"
    elif not sys.stderr.isatty():
        running = next((f"{each.stage}: {each}; " for each in reversed(_stages) if each.running), "")
        print(f"{running}{what}: {state}", file=sys.stderr, flush=True)


class Progress:
    """Progress of one piece of work: a bar after two seconds; without a terminal, a line every ten seconds."""

    def __init__(self, what: str, patience: float = PATIENCE) -> None:
        self.what, self.began, self.patience = what, time.monotonic(), patience
        self.bar: Bar | None = None
        _spoke[:] = _spoke or [self.began]

    def __call__(self, done: float, total: float | None, state: str) -> None:
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if _relay or not terminal or any(stages.bar for stages in _stages):
            if done and now - _spoke[0] >= (PATIENCE if terminal else PAUSE):
                _spoke[0] = now
                (_relay or [show])[0](self.what, state)
        elif now - self.began >= self.patience:
            self.bar = self.bar or Bar(self.what, total=total)
            self.bar.move(done, total=total, state=state)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def track(
    items: Iterable[T],
    what: str,
    total: int | None = None,
    *,
    images: Callable[[T], int] | None = None,
    name: Callable[[T], str] | None = None,
) -> Iterator[T]:
    """Yields the items, and shows how many are done and the time left once they have taken two seconds.

    images  how many images an item holds: they are counted in place of items, with their pace, and `total` is of them
    name    what an item is called
    """
    if total is None and images is None:
        total = len(items) if isinstance(items, Sized) else None
    progress, done = Progress(what), 0
    try:
        for item in items:
            state = _counted(done, total, time.monotonic() - progress.began, images is not None)
            progress(done, total, f"{name(item)}, {state}" if name is not None else state)
            yield item
            done += 1 if images is None else images(item)
    finally:
        progress.close()


def _counted(done: int, total: int | None, passed: float, images: bool = False) -> str:
    words = [f"{done:,}" if total is None else f"{done:,} of {total:,}"]
    if images:
        words = [f"{words[0]} images", f"{done / max(passed, 1e-9):,.0f} images/s"]
    if total is not None and done:
        words.append(f"{_left(passed * (total - done) / done)} left")
    return ", ".join(words)


class EpochProgress:
    """Epochs, loss, images a second and the time left of one training."""

    def __init__(self, what: str, *, silent: bool = False) -> None:
        self.progress = None if silent else Progress(what, patience=0)

    def __enter__(self) -> EpochProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.close()

    def __call__(self, seen: dict[str, Any]) -> None:
        if self.progress is not None:
            pace = f"{seen['images/s']:,.0f} images/s, {_left(seen['left'])} left"
            state = f"epoch {seen['epoch']:.1f} of {seen['epochs']}, loss {seen['loss']:.3f}, {pace}"
            self.progress(seen["epoch"], seen["epochs"], state)


class Stages:
    """Progress of the stages of a study, with pace and time left.

    workers  how many tasks are done at once
    log      is called with the summary of every finished trial
    """

    def __init__(self, workers: int, log: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.workers, self.log, self.trials = max(1, workers), log, 0
        self.stage = ""
        self.done, self.last = -1, 0.0
        self.inside = ""  # what a worker says of its task
        self.known: set[str] = set()  # stages that there were
        self.bar: Bar | None = None

    def __enter__(self) -> Stages:
        _stages.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _stages.remove(self)
        self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def __call__(
        self, stage: str, done: int, failed: int, total: int, summary: dict[str, Any] | None = None, before: int = 0
    ) -> None:
        """Counts what is done of a stage.

        before  tasks that an earlier run finished, among those that are done: they took no time
        """
        now = time.monotonic()
        if stage != self.stage or done <= self.done:
            self.close()
            self.first = stage not in self.known  # a search comes back to its stages, with fewer lines
            self.known.add(stage)
            self.stage, self.images, self.seconds, self.inside = stage, 0, 0.0, ""
            self.last = 0.0 if self.first else self.last
        if done == before:
            self.began = now
        self.done, self.failed, self.total, self.before = done, failed, total, before
        made, missing = done - before, total - before
        half = min(self.workers - 1, missing - made)  # the others are on their way: half of it, on average
        self.end = self.began + (now - self.began) * missing / (made + half / 2) if made else None
        if summary:
            self._count(summary)
        if sys.stderr.isatty():
            self.bar = self.bar or Bar(stage, self, total=total, stays=True)
            self.bar.move(done)
        elif (done == total and self.first) or now - self.last >= PAUSE:
            self.last = now
            print(f"{stage}: {self}", file=sys.stderr, flush=True)

    @property
    def running(self) -> bool:
        """Whether a stage has begun and is not finished."""
        return bool(self.stage) and self.done < self.total

    def __str__(self) -> str:
        words = [f"{self.done} of {self.total}"]
        if self.before:
            words.append(f"{self.before} finished before")
        if self.failed:
            words.append(f"{self.failed} failed")
        if self.seconds:
            words.append(f"{min(self.workers, self.total) * self.images / self.seconds:,.0f} images/s")
        if self.end is not None and self.done < self.total:
            words.append(f"{_left(self.end - time.monotonic())} left")
        return ", ".join(words) + (f"; {self.inside}" if self.inside else "")

    def _count(self, summary: dict[str, Any]) -> None:
        self.images, self.seconds = self.images + summary.get("images", 0), self.seconds + summary.get("seconds", 0.0)
        if self.log and "trial" in summary:
            self.trials += 1
            self.log({"step": self.trials, **summary})


def _left(seconds: float) -> timedelta:
    """Whole seconds, as 0:02:07."""
    return timedelta(seconds=max(0, round(seconds)))
