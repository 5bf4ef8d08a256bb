"""Loggers of training curves: TensorBoard, Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from nescio.errors import BadInput, did_you_mean, install
from nescio.specs import source

Facts: TypeAlias = dict[str, Any]  # of a training, or its progress
SCALARS = ("loss", "rate", "nll", "seconds", "images/s")


def logger(log: str | None, facts: Facts) -> AbstractContextManager[Callable[[Facts], None] | None]:
    """KIND:LOCATION as a context that gives a function of progress; None inside it without a log."""
    if log is None:
        return nullcontext()
    check_log(log)
    kind, path = source(log)
    try:
        return LOGGERS[kind](path, facts)
    except ImportError:
        raise BadInput(f"log={kind} needs {kind}: {install(kind)}.") from None


def check_log(log: str | None) -> None:
    """Raise BadInput unless the log has a kind and a location."""
    kind, path = source(log or "")
    if log is not None and (kind not in LOGGERS or not path):
        raise BadInput(f"log takes tensorboard:DIR or wandb:PROJECT, not {log!r}.{did_you_mean(kind, LOGGERS)}")


class _TensorBoard:
    def __init__(self, folder: str, facts: Facts) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(folder)
        self.writer.add_text("about", "\n".join(f"{name}: {value}  " for name, value in facts.items()))

    def __enter__(self) -> _TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()

    def __call__(self, facts: Facts) -> None:
        for name in SCALARS:
            if name in facts:
                self.writer.add_scalar(name, facts[name], facts["step"])
        if "trial" in facts:
            self.writer.add_text("trial", facts["trial"], facts["step"])


class _Wandb:
    def __init__(self, project: str, facts: Facts) -> None:
        import wandb

        self.run = wandb.init(project=project, config=facts)

    def __enter__(self) -> _Wandb:
        return self

    def __exit__(self, *_: object) -> None:
        self.run.finish()

    def __call__(self, facts: Facts) -> None:
        self.run.log({name: facts[name] for name in (*SCALARS, "trial") if name in facts}, step=facts["step"])


LOGGERS: dict[str, Callable[[str, Facts], AbstractContextManager[Callable[[Facts], None]]]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
}
