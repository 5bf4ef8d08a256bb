"""Options of the functions that run steps: store, device, workers and launcher."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nescio.api.loggers import logger
from nescio.api.results import status
from nescio.errors import BadInput
from nescio.options import option, options_from
from nescio.progress import Stages
from nescio.work import launchers
from nescio.work.steps import Context, Work
from nescio.work.store import Store

if TYPE_CHECKING:
    from nescio.datasets import Dataset

MOST_PROCESSES = 10_000
# texts of --help for values that are not set
DATA = "$NESCIO_DATA, else ~/.cache/nescio/data"
WEIGHTS = "$NESCIO_WEIGHTS, then the hubs' caches, then the network"
SHARDS = "one per idle worker, each of 4,096 rows or more"


def check_device(device: str) -> None:
    if not re.fullmatch(r"auto|(cpu|cuda|mps|xpu)(:\d{1,3})?", device, re.ASCII):
        raise BadInput(f"device is {device!r}: give cpu, cuda, cuda:1 or auto.")


@dataclass(frozen=True)
class StoreOptions:
    """Options of the store, the folder of datasets and the device."""

    store: str = option("store")
    root: str | None = option(None, unset=DATA)
    device: str = option("auto")
    checkpoint_seconds: float = option(60.0)

    def __post_init__(self) -> None:
        check_device(self.device)
        if not 0 <= self.checkpoint_seconds < math.inf:
            raise BadInput(f"checkpoint_seconds is {self.checkpoint_seconds}: give a number of at least 0.")

    def context(self) -> Context:
        return Context(Store(self.store), self.root, self.device, self.checkpoint_seconds)


@dataclass(frozen=True)
class WorkerOptions:
    """Who does the work."""

    workers: int | None = option(None, unset="one per core, one on a GPU", group="storage")
    launcher: str = option("local", group="storage")
    processes: int = option(1, group="storage")
    nodes: int = option(1, group="storage")
    engine: dict[str, object] = options_from("launcher", launchers.launcher_class)  # options of the launcher itself

    def __post_init__(self) -> None:
        for name, value in (("processes", self.processes), ("nodes", self.nodes)):
            if not 1 <= value <= MOST_PROCESSES:
                raise BadInput(f"{name} must be at least 1 and at most {MOST_PROCESSES:,}, got {value}.")

    def count(self, device: str) -> int:
        """Number of worker processes."""
        if self.workers is not None:
            return self.workers
        gpu = device.startswith("cuda") or (device == "auto" and _has_gpu())
        return 1 if gpu else len(os.sched_getaffinity(0))

    def launch(self, workers: int) -> launchers.Launcher:
        launcher = launchers.make_launcher(self.launcher, workers, **self.engine)
        if self.nodes > 1 and not getattr(launcher, "many_nodes", False):
            raise BadInput(f"nodes={self.nodes} needs the launcher ray or slurm: {self.launcher} works on one machine.")
        return launcher

    def context(self, storage: StoreOptions) -> Context:
        return replace(storage.context(), processes=self.processes, nodes=self.nodes)


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:  # work without networks needs none
        return False
    return torch.cuda.is_available()


@contextmanager
def working(
    storage: StoreOptions, worker_options: WorkerOptions, log: str | None = None, facts: dict[str, object] | None = None
) -> Iterator[Work]:
    """A Work with its launcher, progress and log, all of which end with the block."""
    if storage.device.startswith("cuda") and worker_options.launcher == "local":  # other processes may use the GPU
        from nescio.runtime import need_gpu

        need_gpu()  # here, not in every step
    with (
        logger(log, facts or {}) as write,
        worker_options.launch(worker_options.count(storage.device)) as launcher,
        Stages(launcher.workers, write) as stages,
    ):
        yield Work(worker_options.context(storage), launcher, stages)


def print_notes(dataset: Dataset) -> None:
    """Print what was omitted when a dataset was read."""
    for note in dataset.notes:
        status(f"{dataset.name}: {note}")
