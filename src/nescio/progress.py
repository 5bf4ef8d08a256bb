"""Progress of long work, on stderr, and only when it is long and someone is watching."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE = 2.0  # seconds of silence before a bar appears


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yields the items; draws a bar on stderr once the work has taken two seconds."""
    if total is None:
        total = len(items) if isinstance(items, Sized) else None
    if not sys.stderr.isatty():
        yield from items
        return
    start, bar, task = time.monotonic(), None, None
    try:
        for done, item in enumerate(items):
            if bar is None and time.monotonic() - start > PATIENCE:
                bar, task = _bar(what, total)
            if bar is not None:
                bar.update(task, completed=done)
            yield item
    finally:
        if bar is not None:
            bar.stop()


def _bar(what: str, total: int | None) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(what, total=total)
    bar.start()
    return bar, task
