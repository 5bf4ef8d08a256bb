"""Progress of long work, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import timedelta
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE = 2.0  # seconds of silence before the bar of a loop appears
PAUSE = 30.0  # seconds between two lines where there is no terminal


class Bar:
    """One line of a terminal: what is done, how far it is, and a text that is made anew whenever it is drawn."""

    def __init__(self, what: str, state: Any = "", *, total: float | None = None, stays: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
        self.bar = Progress(*columns, console=Console(stderr=True), transient=not stays)
        self.task = self.bar.add_task(what, total=total, state=state)
        self.bar.start()

    def move(self, done: float, **changes: Any) -> None:
        self.bar.update(self.task, completed=done, **changes)

    def close(self) -> None:
        self.bar.stop()


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yields the items; draws a bar once the work has taken two seconds and someone is watching."""
    if not sys.stderr.isatty():
        yield from items
        return
    if total is None:
        total = len(items) if isinstance(items, Sized) else None
    start, bar = time.monotonic(), None
    try:
        for done, item in enumerate(items):
            passed = time.monotonic() - start
            if bar is None and passed > PATIENCE:
                bar = Bar(what, total=total)
            if bar is not None:
                bar.move(done, state=_counted(done, total, passed))
            yield item
    finally:
        if bar is not None:
            bar.close()


def _counted(done: int, total: int | None, passed: float) -> str:
    if total is None or not done:
        return f"{done}" if total is None else f"{done} of {total}"
    return f"{done} of {total}, {_left(passed * (total - done) / done)} left"


class EpochBar:
    """Epochs, loss, images a second and the time left of one training; nothing where there is no terminal."""

    def __init__(self, what: str, *, silent: bool = False) -> None:
        self.bar = Bar(what) if sys.stderr.isatty() and not silent else None

    def __enter__(self) -> EpochBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, seen: dict[str, Any]) -> None:
        if self.bar is not None:
            pace = f"{seen['images/s']:,.0f} images/s, {_left(seen['left'])} left"
            state = f"epoch {seen['epoch']:.1f} of {seen['epochs']}, loss {seen['loss']:.3f}, {pace}"
            self.bar.move(seen["epoch"], total=seen["epochs"], state=state)


class Stages:
    """Progress of the stages of a study, with pace and time left.

    workers  how many tasks are done at once
    log      is called with the summary of every finished trial
    """

    def __init__(self, workers: int, log: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.workers, self.log, self.trials = max(1, workers), log, 0
        self.stage = ""
        self.bar: Bar | None = None

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def __call__(self, stage: str, done: int, failed: int, total: int, summary: dict[str, Any] | None = None) -> None:
        now = time.monotonic()
        if done == 0 or stage != self.stage:
            self.close()
            self.stage, self.began, self.last, self.images, self.seconds = stage, now, 0.0, 0, 0.0
        self.done, self.failed, self.total = done, failed, total
        half = min(self.workers - 1, total - done)  # the others are on their way: half of it, on average
        self.end = self.began + (now - self.began) * total / (done + half / 2) if done else None
        if summary:
            self._count(summary)
        if sys.stderr.isatty():
            self.bar = self.bar or Bar(stage, self, total=total, stays=True)
            self.bar.move(done)
        elif done == total or now - self.last > PAUSE:
            self.last = now
            print(f"{stage}: {self}", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        words = [f"{self.done} of {self.total}"]
        if self.failed:
            words.append(f"{self.failed} failed")
        if self.seconds:
            words.append(f"{min(self.workers, self.total) * self.images / self.seconds:,.0f} images/s")
        if self.end is not None and self.done < self.total:
            words.append(f"{_left(self.end - time.monotonic())} left")
        return ", ".join(words)

    def _count(self, summary: dict[str, Any]) -> None:
        self.images, self.seconds = self.images + summary.get("images", 0), self.seconds + summary.get("seconds", 0.0)
        if self.log and "trial" in summary:
            self.trials += 1
            self.log({"step": self.trials, **summary})


def _left(seconds: float) -> timedelta:
    """Whole seconds, as 0:02:07."""
    return timedelta(seconds=max(0, round(seconds)))
