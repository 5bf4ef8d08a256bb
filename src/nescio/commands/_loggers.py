"""Loggers of training curves: TensorBoard, Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from nescio.errors import BadInput, did_you_mean, install
from nescio.specs import source

SCALARS = ("loss", "rate", "nll", "seconds", "images/s")


def logger(log: str | None, facts: dict[str, Any]) -> AbstractContextManager[Any]:
    """KIND:LOCATION as a context that gives a function of progress; None inside it without a log."""
    if log is None:
        return nullcontext()
    check_log(log)
    kind, path = source(log)
    try:
        return LOGGERS[kind](path, facts)
    except ImportError:
        raise BadInput(f"--log {kind} needs {kind}: {install(kind)}.") from None


def check_log(log: str | None) -> None:
    """Raises BadInput unless --log names a kind and a place."""
    kind, path = source(log or "")
    if log is not None and (kind not in LOGGERS or not path):
        raise BadInput(f"--log takes tensorboard:DIR or wandb:PROJECT, not {log!r}.{did_you_mean(kind, LOGGERS)}")


class _TensorBoard:
    def __init__(self, folder: str, facts: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(folder)
        self.writer.add_text("about", "\n".join(f"{name}: {value}  " for name, value in facts.items()))

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
    def __init__(self, project: str, facts: dict[str, Any]) -> None:
        import wandb

        self.run = wandb.init(project=project, config=facts)

    def __enter__(self) -> _Wandb:
        return self

    def __exit__(self, *_: Any) -> None:
        self.run.finish()

    def __call__(self, seen: dict[str, Any]) -> None:
        self.run.log({name: seen[name] for name in (*SCALARS, "trial") if name in seen}, step=seen["step"])


LOGGERS: dict[str, Callable[[str, dict[str, Any]], AbstractContextManager[Any]]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
}
