"""Progress of long computations on stderr: a bar on a terminal, a line every ten seconds elsewhere.

A worker process sends its progress to the process that started it (`relay_to`), which displays it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import timedelta
from typing import Any, TypedDict, TypeVar

from nescio.errors import visible

T = TypeVar("T")
BAR_DELAY = 2.0  # seconds before the bar of a loop appears
LINE_INTERVAL = 10.0  # seconds between two lines if stderr is not a terminal
Relay = Callable[[str, str], None]  # called with a task and its state
_relay: list[Relay] = []  # set in a worker: sends progress to the process that started it
_stages: list[Stages] = []  # active stages of this process, innermost last
_last_line: list[float] = []  # time of the last line of this process, or of its start


class Bar:
    """A progress bar on a terminal: a title, a bar, and a state formatted at every refresh."""

    def __init__(self, title: str, state: object = "", *, total: float | None = None, persistent: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
        self.bar = Progress(
            *columns, console=Console(file=getattr(sys.stderr, "unfiltered", sys.stderr)), transient=not persistent
        )
        self.task = self.bar.add_task(visible(title), total=total, state=state)
        self.bar.start()

    def move(self, done: float, total: float | None = None, state: str | None = None) -> None:
        self.bar.update(self.task, completed=done, total=total)
        if state is not None:
            self.bar.update(self.task, state=state)

    def close(self) -> None:
        self.bar.stop()


def begin() -> None:
    """Start the clock of a command: its first line appears after LINE_INTERVAL seconds."""
    _last_line[:] = [time.monotonic()]


def relay_to(relay: Relay) -> None:
    """Send the progress of this worker process to the process that started it."""
    _relay[:] = [relay]


def show(task: str, state: str) -> None:
    """Show the progress of a worker's task next to the bar of its stage, or as a line without a terminal."""
    with_bar = next((stages for stages in reversed(_stages) if stages.bar is not None), None)
    if with_bar is not None:
        with_bar.task_state = f"{task}: {state}"
    elif not sys.stderr.isatty():
        running = next((f"{stages.stage}: {stages}; " for stages in reversed(_stages) if stages.running), "")
        print(f"{running}{task}: {state}", file=sys.stderr, flush=True)


class Progress:
    """Progress of one task: a bar after `delay` seconds; without a terminal, a line every ten seconds."""

    def __init__(self, task: str, delay: float = BAR_DELAY) -> None:
        self.task, self.started, self.delay = task, time.monotonic(), delay
        self.bar: Bar | None = None
        _last_line[:] = _last_line or [self.started]

    def __call__(self, done: float, total: float | None, state: str) -> None:
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if _relay or not terminal or any(stages.bar for stages in _stages):
            if done and now - _last_line[0] >= (BAR_DELAY if terminal else LINE_INTERVAL):
                _last_line[0] = now
                (_relay or [show])[0](self.task, state)
        elif now - self.started >= self.delay:
            self.bar = self.bar or Bar(self.task, total=total)
            self.bar.move(done, total, state)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def track(
    items: Iterable[T],
    title: str,
    total: int | None = None,
    *,
    images: Callable[[T], int] | None = None,
    name: Callable[[T], str] | None = None,
) -> Iterator[T]:
    """Yield the items; after two seconds, show how many are done and the time left.

    images  function item → number of images: images are counted instead of items, and `total` is a number of images
    name    function item → name
    """
    if total is None and images is None:
        total = len(items) if isinstance(items, Sized) else None
    progress, done = Progress(title), 0
    try:
        for item in items:
            state = _counted(done, total, time.monotonic() - progress.started, images is not None)
            progress(done, total, f"{name(item)}, {state}" if name is not None else state)
            yield item
            done += 1 if images is None else images(item)
    finally:
        progress.close()


def _counted(done: int, total: int | None, elapsed: float, images: bool = False) -> str:
    count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
    facts = [f"{count} images", f"{done / max(elapsed, 1e-9):,.0f} images/s"] if images else [count]
    if total is not None and done:
        facts.append(f"{_whole_seconds(elapsed * (total - done) / done)} left")
    return ", ".join(facts)


EpochFacts = TypedDict(
    "EpochFacts",
    {"step": int, "epoch": float, "epochs": int, "loss": float, "rate": float, "images/s": float, "left": float},
    total=False,
)


class EpochProgress:
    """Progress of one training: epochs, loss, images per second and the time left."""

    def __init__(self, task: str, *, silent: bool = False) -> None:
        self.progress = None if silent else Progress(task, delay=0)

    def __enter__(self) -> EpochProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.close()

    def __call__(self, facts: EpochFacts) -> None:
        if self.progress is not None:
            speed = f"{facts['images/s']:,.0f} images/s, {_whole_seconds(facts['left'])} left"
            state = f"epoch {facts['epoch']:.1f} of {facts['epochs']}, loss {facts['loss']:.3f}, {speed}"
            self.progress(facts["epoch"], facts["epochs"], state)


class Stages:
    """Progress of the stages of a study, with images per second and the time left.

    workers  number of tasks that run at once
    log      called with the summary of every finished trial
    """

    def __init__(self, workers: int, log: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.workers, self.log, self.trials = max(1, workers), log, 0
        self.stage = ""
        self.done, self.last = -1, 0.0
        self.task_state = ""  # the latest progress that a worker sent
        self.seen: set[str] = set()  # names of the stages so far
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
        """Update the counts of a stage.

        before  number of tasks in `done` that were finished in an earlier run
        """
        now = time.monotonic()
        if stage != self.stage or done <= self.done:
            self.close()
            self.first = stage not in self.seen  # a search repeats its stages, with fewer lines
            self.seen.add(stage)
            self.stage, self.images, self.seconds, self.task_state = stage, 0, 0.0, ""
            self.last = 0.0 if self.first else self.last
        if done == before:
            self.started = now
        self.done, self.failed, self.total, self.before = done, failed, total, before
        new, missing = done - before, total - before
        running = min(self.workers - 1, missing - new)  # on average half finished
        self.end = self.started + (now - self.started) * missing / (new + running / 2) if new else None
        if summary:
            self.images += summary.get("images", 0)
            self.seconds += summary.get("seconds", 0.0)
            if self.log and "trial" in summary:
                self.trials += 1
                self.log({"step": self.trials, **summary})
        if sys.stderr.isatty():
            self.bar = self.bar or Bar(stage, self, total=total, persistent=True)
            self.bar.move(done)
        elif (done == total and self.first) or now - self.last >= LINE_INTERVAL:
            self.last = now
            print(f"{stage}: {self}", file=sys.stderr, flush=True)

    @property
    def running(self) -> bool:
        """Whether a stage has begun and is not finished."""
        return bool(self.stage) and self.done < self.total

    def __str__(self) -> str:
        facts = [f"{self.done} of {self.total}"]
        if self.before:
            facts.append(f"{self.before} finished before")
        if self.failed:
            facts.append(f"{self.failed} failed")
        if self.seconds:
            facts.append(f"{min(self.workers, self.total) * self.images / self.seconds:,.0f} images/s")
        if self.end is not None and self.done < self.total:
            facts.append(f"{_whole_seconds(self.end - time.monotonic())} left")
        return ", ".join(facts) + (f"; {self.task_state}" if self.task_state else "")


def _whole_seconds(seconds: float) -> timedelta:
    """The duration in whole seconds, formatted as 0:02:07."""
    return timedelta(seconds=max(0, round(seconds)))
