"""Options and progress that the commands which train share."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from nescio.errors import BadInput


def numbers(text: str) -> tuple[int, ...]:
    """0-5,7 → (0, 1, 2, 3, 4, 5, 7)."""
    found: list[int] = []
    try:
        for word in text.split(","):
            first, dash, last = word.partition("-")
            found += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        raise BadInput(f"{text!r} is not a list of class numbers such as 0-5,7.") from None
    return tuple(found)


def targets(text: str) -> tuple[float | None, ...]:
    """none,5 → (None, 5.0)."""
    try:
        return tuple(None if word in ("none", "off") else float(word) for word in text.split(","))
    except ValueError:
        raise BadInput(f"{text!r} is not a list of spectral norm targets such as none,5.") from None


def add_place(parser: argparse.ArgumentParser) -> None:
    """Where the work is kept, where the data lies, on what it runs."""
    place = parser.add_argument_group("place")
    place.add_argument(
        "--store", default="store", help="folder of finished work; a second run does what is missing (default: store)"
    )
    place.add_argument("--root", help="folder of datasets (default: $NESCIO_DATA, else ~/.cache/nescio/data)")
    place.add_argument("--device", default="auto", help="cpu, cuda, or auto: the GPU if there is one (default)")
    place.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="least seconds between two checkpoints (default: 60)",
    )


class Lines:
    """Progress of stages: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self.stage, self.started, self.last = "", 0.0, 0.0
        self.bar: Any = None
        self.task: Any = None

    def __call__(self, stage: str, done: int, failed: int, total: int) -> None:
        now = time.monotonic()
        if stage != self.stage:
            self.close()
            self.stage, self.started, self.last = stage, now, 0.0
        if sys.stderr.isatty():
            self._draw(done, failed, total)
        elif done == total or now - self.last > 30:
            self.last = now
            trouble = f", {failed} failed" if failed else ""
            print(f"{stage}: {done} of {total}{trouble}", file=sys.stderr, flush=True)

    def _draw(self, done: int, failed: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        if self.bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
            self.bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
            self.task = self.bar.add_task(self.stage, total=total)
            self.bar.start()
        trouble = f" ({failed} failed)" if failed else ""
        self.bar.update(self.task, completed=done, description=f"{self.stage}{trouble}")

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
