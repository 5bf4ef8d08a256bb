"""Options and output of the commands that run steps: store, workers, and the end of a study."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nescio.commands._loggers import logger
from nescio.commands._output import json_of, say
from nescio.errors import BadInput, describe_error
from nescio.files import read_list, write_file
from nescio.options import option, options_from
from nescio.progress import Stages
from nescio.rows import COLUMNS
from nescio.work import launchers
from nescio.work.steps import Context, Work
from nescio.work.store import Store

if TYPE_CHECKING:
    from nescio.datasets import Dataset
    from nescio.report.studies import Study

MOST_PROCESSES = 10_000
# texts of --help for values that are not set
DATA = "$NESCIO_DATA, else ~/.cache/nescio/data"
WEIGHTS = "$NESCIO_WEIGHTS, then the hubs' caches, then the network"
SHARDS = "one per idle worker, each of 4,096 rows or more"


def check_device(device: str) -> None:
    if not re.fullmatch(r"auto|(cpu|cuda|mps|xpu)(:\d{1,3})?", device, re.ASCII):
        raise BadInput(f"--device is {device!r}: give cpu, cuda, cuda:1 or auto.")


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
            raise BadInput(f"--checkpoint-seconds is {self.checkpoint_seconds}: give a number of at least 0.")

    def context(self) -> Context:
        return Context(Store(self.store), self.root, self.device, self.checkpoint_seconds)


@dataclass(frozen=True)
class WorkerOptions:
    """Who does the work."""

    workers: int | None = option(None, unset="one per core, one on a GPU", group="storage")
    launcher: str = option("local", group="storage")
    processes: int = option(1, group="storage")
    nodes: int = option(1, group="storage")
    engine: dict[str, Any] = options_from("launcher", launchers.launcher_class)  # options of the launcher itself

    def __post_init__(self) -> None:
        for name, value in (("--processes", self.processes), ("--nodes", self.nodes)):
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
            raise BadInput(f"--nodes {self.nodes} needs --launcher ray or slurm: {self.launcher} works on one machine.")
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
    storage: StoreOptions, crew: WorkerOptions, log: str | None = None, facts: dict[str, Any] | None = None
) -> Iterator[Work]:
    """A Work with its launcher, progress and log, all of which end with the block."""
    if storage.device.startswith("cuda") and crew.launcher == "local":  # other processes may use the GPU
        from nescio.runtime import need_gpu

        need_gpu()  # here, not in every step
    with (
        logger(log, facts or {}) as write,
        crew.launch(crew.count(storage.device)) as launcher,
        Stages(launcher.workers, write) as stages,
    ):
        yield Work(crew.context(storage), launcher, stages)


def print_notes(dataset: Dataset) -> None:
    """Print what was omitted when a dataset was read."""
    for note in dataset.notes:
        print(f"{dataset.name}: {note}", file=sys.stderr, flush=True)


# ---- the end of a study


def end(study: Study, folder: Path | None, others: Mapping[str, str] | None = None) -> int:
    """Print a summary and write the page, or print the rows as JSON if there is no folder; list the failures.

    others  pages that this one links to: address → name
    Returns 2 if nothing that was given could be used, 1 if something failed.
    """
    failed = [f"{failure.name}: {failure.reason}" for failure in study.failures]
    if folder is None:
        say(json_of(study.frame.rows))
        for note in study.notes:
            print(note, file=sys.stderr)
    elif study.rows:
        try:
            show(study, folder, others)
        except BrokenPipeError:  # who reads has read enough; the page is written
            raise
        except OSError as error:
            failed.append(f"writing the report: {describe_error(error, folder)}")
    if not study.rows and not failed:
        failed.append("; ".join(study.notes) or "The study has no result: no network and no rows fit its plan.")
    for line, times in Counter(failed).items():
        print(f"failed{f' {times} times' if times > 1 else ''}: {line}", file=sys.stderr)
    if study.failures and not study.rows and all(failure.refused for failure in study.failures):
        return 2
    return 1 if failed else 0


def page_folder(folder: Path, study: Study) -> Path:
    """The folder for a study's page, or a sibling folder if it contains the page of another study."""
    from nescio.report.studies import read_study
    from nescio.report.text import json_text

    if not study.rows or not (folder / "index.html").is_file():
        return folder
    try:
        before = read_study(folder)
    except (BadInput, OSError):  # not a page of nescio
        before = None
    if before is not None and before.benchmark == study.benchmark and before.plan == json.loads(json_text(study.plan)):
        rows = {tuple(map(row.get, COLUMNS)) for row in study.rows}
        if before.failures or all(tuple(map(row.get, COLUMNS)) in rows for row in before.rows):
            return folder
    beside = folder.with_name(f"{folder.absolute().name}-{study.key[:8]}")
    print(f"{folder} has the page of another study, which stays: this page is in {beside}.", file=sys.stderr)
    return beside


def show(study: Study, folder: Path, others: Mapping[str, str] | None = None) -> None:
    """Write the page, then print a summary, so that a closed pipe does not prevent the page."""
    from nescio.benchmarks.base import registry
    from nescio.report.blocks import Story
    from nescio.report.studies import print_story, write_story

    benchmark, page, mark = registry[study.benchmark], folder / "index.html", folder / ".made"
    fingerprint = _fingerprint(study, others)
    lead = _lead_of(page, mark, fingerprint)
    story = Story("", lead, []) if lead is not None else benchmark.story(study)  # all of it takes seconds
    try:
        if lead is None:
            mark.unlink(missing_ok=True)  # a page that is being written is not a page
            page = write_story(study, story, folder, others)
            write_file(mark, json.dumps([fingerprint, list(story.lead)]))
    finally:  # print even if the page cannot be written
        print_story(study, story, benchmark.first_look(study))
    say(f"\nThe page is {page}; tables and rows are in the same folder.")


def _lead_of(page: Path, mark: Path, fingerprint: str) -> list[str] | None:
    """The first sentences of an existing page that is up to date; None if it must be written."""
    try:
        before, lead = read_list(mark)
    except (OSError, ValueError, TypeError):
        return None
    return list(lead) if page.is_file() and before == fingerprint else None


def _fingerprint(study: Study, others: Mapping[str, str] | None) -> str:
    """Digest of a page's inputs: the study, and the code that writes the page."""
    import nescio
    from nescio.report.pages import can_draw
    from nescio.report.studies import files

    source = Path(nescio.__file__).parent
    code = [
        (str(path), path.stat().st_mtime_ns)
        for room in ("report", "benchmarks")
        for path in sorted((source / room).rglob("*"))
        if path.suffix in (".py", ".html", ".css", ".js")
    ]
    return sha256(
        repr((code, can_draw(), nescio.__version__, study.key or files(study), study.times, others)).encode()
    ).hexdigest()
