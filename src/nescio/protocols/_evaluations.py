"""What protocols share: a study, and evaluations, which are small files in the store made once from finished work."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from nescio.rows import Row, from_parquet, to_parquet
from nescio.work.local import Crew, Failure, Task, Watch
from nescio.work.store import Store, StoreError, reason_of

ROWS, REASONS = "rows.parquet", "reasons.json"
Say = Callable[[str, int, int, int, Any], None]  # stage, done, failed, all; what the task done just now returned


@dataclass
class Study:
    """What came out: rows, reasons, failures."""

    plan: Any
    rows: list[Row] = field(default_factory=list)
    reasons: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Evaluation:
    """Files that are a function of a recipe and of the finished work it is made from."""

    protocol: str
    version: int
    recipe: Mapping[str, Any]
    parents: tuple[str, ...]  # keys of what it is made from

    def _asked(self) -> tuple[str, dict[str, Any], tuple[str, ...], int]:
        return "evaluate", {"protocol": self.protocol, **self.recipe}, self.parents, self.version

    def key(self, store: Store) -> str:
        return store.key(*self._asked())

    def folder(self, store: Store) -> Path:
        return store.path("evaluate", self.key(store))

    def finished(self, store: Store) -> bool:
        return store.finished("evaluate", self.key(store))

    def keep(self, store: Store, make: Callable[[], Mapping[str, bytes]]) -> None:
        """Makes the files unless they are there; raises Busy while another process makes them."""
        with store.work(*self._asked(), wait=False) as part:
            if part is not None:
                for name, content in make().items():
                    part.write(name, content)

    def mark(self, store: Store, reason: str) -> None:
        """Notes why it is not there."""
        stage, recipe, parents, version = self._asked()
        store.fail(stage, recipe, reason, parents, version)

    def load(self, store: Store) -> tuple[list[Row], list[Row]]:
        """Rows and reasons, checked byte for byte."""
        store.verify("evaluate", self.key(store))
        folder = self.folder(store)
        return from_parquet(folder / ROWS), json.loads((folder / REASONS).read_text())


def table(rows: Sequence[Row], reasons: Sequence[Row] = ()) -> dict[str, bytes]:
    """The files of an evaluation that has rows."""
    return {ROWS: to_parquet(rows), REASONS: json.dumps(list(reasons)).encode()}


Job = tuple[Evaluation, Task]  # what is to be there, and the task that makes it


def do(study: Study, jobs: Sequence[Job], store: Store, crew: Crew, watch: Watch | None) -> None:
    """Does the jobs that are not finished; what failed stands in the study."""
    missing = [task for evaluation, task in jobs if not evaluation.finished(store)]
    if missing:
        writable(store)
        study.failures += crew.do(missing, watch)


def read(study: Study, jobs: Sequence[Job], store: Store) -> Iterator[Evaluation]:
    """Takes the rows of finished jobs into the study; gives the evaluations that were read."""
    for evaluation, task in jobs:
        if not evaluation.finished(store):
            continue
        try:
            rows, reasons = evaluation.load(store)
        except StoreError as error:
            study.failures.append(Failure(task, str(error)))
            continue
        study.rows += rows
        study.reasons += [each for each in reasons if each not in study.reasons]
        yield evaluation


def writable(store: Store) -> None:
    """Raises StoreError before hours of work that could not be kept."""
    try:
        store.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=store.root) as file:
            file.write(b"room for a sentence")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(reason_of(OSError(error.errno, error.strerror), store.root)) from error


def record(study: Study, store: Store, protocol: str, version: int) -> None:
    """Keeps the study in the store, so that it can be told again without its networks."""
    from nescio.report.studies import files

    held = files(study)
    recipe = {"protocol": protocol, "plan": study.plan, "content": [sha256(each).hexdigest() for each in held.values()]}
    try:
        with store.work("study", recipe, version=version) as part:
            if part is not None:
                for name, content in held.items():
                    part.write(name, content)
    except StoreError as error:  # the tables can still be shown
        study.failures.append(Failure(Task("keeping the study", record, ()), str(error)))
