"""Who watches a training: a bar on a terminal, TensorBoard, Weights & Biases."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from nescio.commands._study import left
from nescio.errors import BadInput

SCALARS = ("loss", "rate", "nll", "seconds", "images/s")


@contextmanager
def watching(what: str, log: str | None, about: dict[str, Any], silent: bool = False) -> Iterator[Any]:
    """A function that training calls with its progress; everything is closed at the end."""
    with ExitStack() as stack:
        parts = () if silent else (_bar(what), logger(log, about))
        watchers = [stack.enter_context(each) for each in parts if each is not None]

        def watch(seen: dict[str, Any]) -> None:
            for each in watchers:
                each(seen)

        yield watch


def _bar(what: str) -> Any:
    return _Bar(what) if sys.stderr.isatty() else None


class _Bar:
    """Epochs, loss, images a second and the time left, on stderr."""

    def __init__(self, what: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task(what, total=None, state="")

    def __enter__(self) -> _Bar:
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def __call__(self, seen: dict[str, Any]) -> None:
        pace = f"{seen['images/s']:,.0f} images/s, {left(seen['left'])} left"
        state = f"epoch {seen['epoch']:.1f} of {seen['epochs']}, loss {seen['loss']:.3f}, {pace}"
        self.bar.update(self.task, total=seen["epochs"], completed=seen["epoch"], state=state)


def logger(log: str | None, about: dict[str, Any]) -> Any:
    """KIND:PLACE as a context that gives a function of progress; None without one."""
    if log is None:
        return None
    kind, _, place = log.partition(":")
    if kind not in LOGGERS or not place:
        raise BadInput(f"--log takes tensorboard:DIR or wandb:PROJECT, not {log!r}.")
    try:
        return LOGGERS[kind](place, about)
    except ImportError:
        raise BadInput(f"--log {kind} needs the package {kind}: pip install {kind}.") from None


class _TensorBoard:
    def __init__(self, folder: str, about: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(folder)
        self.writer.add_text("about", "\n".join(f"{name}: {value}  " for name, value in about.items()))

    def __enter__(self) -> _TensorBoard:
        return self

    def __exit__(self, *_: Any) -> None:
        self.writer.close()

    def __call__(self, seen: dict[str, Any]) -> None:
        for name in SCALARS:
            if name in seen:
                self.writer.add_scalar(name, seen[name], seen["step"])
        if "trial" in seen:
            self.writer.add_text("trial", seen["trial"], seen["step"])


class _Wandb:
    def __init__(self, project: str, about: dict[str, Any]) -> None:
        import wandb

        self.run = wandb.init(project=project, config=about)

    def __enter__(self) -> _Wandb:
        return self

    def __exit__(self, *_: Any) -> None:
        self.run.finish()

    def __call__(self, seen: dict[str, Any]) -> None:
        self.run.log({name: seen[name] for name in (*SCALARS, "trial") if name in seen}, step=seen["step"])


LOGGERS = {"tensorboard": _TensorBoard, "wandb": _Wandb}
