"""Options, progress and results that the commands which run studies share."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args, get_type_hints

from nescio.commands._output import json_of, say
from nescio.errors import BadInput
from nescio.trials import Training
from nescio.work.store import reason_of


def numbers(text: str, what: str = "class numbers") -> tuple[int, ...]:
    """0-5,7 → (0, 1, 2, 3, 4, 5, 7)."""
    found: list[int] = []
    try:
        for word in text.split(","):
            first, dash, last = word.partition("-")
            found += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        raise BadInput(f"{text!r} is not a list of {what} such as 0-5,7.") from None
    return tuple(found)


def targets(text: str) -> tuple[float | None, ...]:
    """none,5 → (None, 5.0)."""
    try:
        return tuple(None if word in ("none", "off") else float(word) for word in text.split(","))
    except ValueError:
        raise BadInput(f"{text!r} is not a list of spectral norm targets such as none,5.") from None


def add_budget(parser: argparse.ArgumentParser, starts: Mapping[str, Training], **special: str) -> None:
    """The options of a training's budget; --help names what each starts from, `special` where that is not one value."""
    kinds = get_type_hints(Training)

    def start(name: str) -> str:
        words = {preset: _word(getattr(training, name)) for preset, training in starts.items()}
        if len(set(words.values())) == 1:
            return f"default: {next(iter(words.values()))}"
        return ", ".join(f"{preset}: {word}" for preset, word in words.items())

    def add(group: Any, name: str, meaning: str, **more: Any) -> None:
        help = f"{meaning} ({special.get(name) or start(name)})"
        group.add_argument(f"--{name}", default=None, help=help, **more)

    budget = parser.add_argument_group("budget")
    add(budget, "epochs", "times that every training row is seen", type=int)
    add(budget, "batch", "rows of a step", type=int)
    add(budget, "rate", "learning rate", type=float)
    add(budget, "momentum", "of SGD", type=float)
    add(budget, "decay", "weight decay", type=float)
    add(budget, "optimizer", "what moves the weights", choices=get_args(kinds["optimizer"]))
    add(budget, "schedule", "of the rate", choices=get_args(kinds["schedule"]))
    add(budget, "every", "step: rate ÷ 10 every E epochs", type=int, metavar="E")
    add(budget, "warmup", "epochs over which the rate rises", type=float, metavar="E")
    add(budget, "clip", "largest norm of the gradient", type=float)
    add(budget, "augment", "what is done to training images", choices=get_args(kinds["augment"]))
    speed = parser.add_argument_group("speed and memory")
    add(speed, "accumulate", "parts of a batch, one after the other", type=int, metavar="A")
    add(speed, "precision", "auto: bf16 on a GPU, float32 elsewhere", choices=get_args(kinds["precision"]))
    add(speed, "compile", "compile the network with torch.compile", action="store_true")


def _word(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", False: "off", True: "on"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def budget_of(args: argparse.Namespace) -> dict[str, Any]:
    """What was said of the budget, by the names of Training's fields."""
    said = {each.name: getattr(args, each.name, None) for each in fields(Training)}
    return {name: value for name, value in said.items() if value is not None}


def add_log(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--log", metavar="KIND:PLACE", help=f"tensorboard:DIR or wandb:PROJECT: {what} (default: none)")


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
    """Progress of stages, with pace and time left: a bar on a terminal, a line now and then elsewhere.

    `log` hears of every finished trial.
    """

    def __init__(self, workers: int, log: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.workers, self.log, self.trials = max(1, workers), log, 0
        self.stage = ""
        self.bar: Any = None

    def __call__(self, stage: str, done: int, failed: int, total: int, found: dict[str, Any] | None = None) -> None:
        now = time.monotonic()
        if done == 0 or stage != self.stage:
            self.close()
            self.stage, self.began, self.last, self.images, self.seconds = stage, now, 0.0, 0, 0.0
        self.done, self.failed, self.total = done, failed, total
        half = min(self.workers - 1, total - done)  # the others are on their way: half of it, on average
        self.end = self.began + (now - self.began) * total / (done + half / 2) if done else None
        if found:
            self._count(found)
        if sys.stderr.isatty():
            self._draw()
        elif done == total or now - self.last > 30:
            self.last = now
            print(f"{stage}: {self}", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        words = [f"{self.done} of {self.total}"]
        if self.failed:
            words.append(f"{self.failed} failed")
        if self.seconds:
            words.append(f"{min(self.workers, self.total) * self.images / self.seconds:,.0f} images/s")
        if self.end is not None and self.done < self.total:
            words.append(f"{left(self.end - time.monotonic())} left")
        return ", ".join(words)

    def _count(self, found: dict[str, Any]) -> None:
        self.images, self.seconds = self.images + found["images"], self.seconds + found["seconds"]
        if self.log and "trial" in found:
            self.trials += 1
            self.log({"step": self.trials, **found})

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        if self.bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
            self.bar = Progress(*columns, console=Console(stderr=True))
            self.task = self.bar.add_task(self.stage, total=self.total, state=self)  # asked anew whenever it is drawn
            self.bar.start()
        self.bar.update(self.task, completed=self.done)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def left(seconds: float) -> timedelta:
    """Whole seconds, as 0:02:07."""
    return timedelta(seconds=max(0, round(seconds)))


def workers_of(args: argparse.Namespace) -> int:
    if args.workers is not None:
        return int(args.workers)
    import torch

    gpu = args.device.startswith("cuda") or (args.device == "auto" and torch.cuda.is_available())
    return 1 if gpu else len(os.sched_getaffinity(0))


def show(study: Any, folder: Path, others: Mapping[str, str] | None = None) -> int:
    """Prints the tables, writes the report, lists what failed; 1 when something did.

    others  pages that this one leads to: address → name
    """
    from nescio.report.studies import files, print_study, write_study

    print_study(study)
    page, made = folder / "index.html", folder / ".made"
    fingerprint = _fingerprint(files(study), others)
    failed = [f"{failure.task.name}: {failure.reason}" for failure in study.failures]
    try:
        if not (page.is_file() and made.is_file() and made.read_text() == fingerprint):
            made.unlink(missing_ok=True)  # a page that is being written is not a page
            page = write_study(study, folder, others)
            made.write_text(fingerprint)
        say(f"\nThe page is {page}; tables and rows lie beside it.")
    except OSError as error:
        failed.append(f"writing the report: {reason_of(error, folder)}")
    for line, times in Counter(failed).items():
        print(f"failed{f' {times} times' if times > 1 else ''}: {line}", file=sys.stderr)
    return 1 if failed else 0


def end(study: Any, folder: Path | None) -> int:
    """Shows the study, or prints its rows as JSON where there is no folder; lists what failed.

    2 where what was given can be used for no model, 1 where something failed.
    """
    if study.rows and folder is not None:
        return show(study, folder)
    if folder is None:
        say(json_of(study.rows))
    for failure in study.failures:
        print(f"failed: {failure.task.name}: {failure.reason}", file=sys.stderr)
    if study.failures and not study.rows and all(failure.refused for failure in study.failures):
        return 2
    return 1 if study.failures else 0


def _fingerprint(held: dict[str, bytes], others: Mapping[str, str] | None) -> str:
    """What a page is made of: the study, and the code that writes it. Drawing the same page again takes seconds."""
    import nescio
    from nescio.report.studies import drawable

    source = Path(nescio.__file__).parent
    code = [
        (each.name, each.stat().st_mtime_ns) for name in ("report", "protocols") for each in source.glob(f"{name}/*.py")
    ]
    return sha256(repr((sorted(code), drawable(), nescio.__version__, held, others)).encode()).hexdigest()
