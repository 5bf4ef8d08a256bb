"""Steps: pieces of work with a key, parents and a function that makes their files; and the thing that runs them.

A step's key follows from its stage, recipe, parents and version. Whether it is finished, failed, damaged or being made
elsewhere follows from the store. A benchmark yields steps; a launcher runs them; neither knows the other.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nescio.errors import describe_error
from nescio.files import read_list
from nescio.identity import ContentName, content_names
from nescio.rows import NETWORK_TYPES, Row, RowBuilder, from_parquet, merge_networks, to_parquet
from nescio.work.launchers import Failure, Launcher, Task
from nescio.work.step_folder import StepFolder
from nescio.work.store import Run, Store, key_of
from nescio.work.store_errors import Busy, Corrupted, StoreError
from nescio.work.team import clear, make_distributed

ROWS, REASONS = "rows.parquet", "reasons.json"
NETWORKS, TIMES = "networks.parquet", "times.parquet"  # facts about networks; measured times of them
BUILT = ("rows", "reasons", "networks", "times")  # of a RowBuilder
TRAIN = "train"  # the stage of networks …
PACE = ("images", "seconds", "images/s")  # … and what their summary says of the time that they took
SHARD_OF = "of"  # in the recipe of a shard: the key of the step that it is a part of
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Context:
    """Where steps work: the store, the folder of datasets, the device."""

    store: Store
    root: str | None = None
    device: str = "auto"
    checkpoint_seconds: float = 60.0
    processes: int = 1  # of a step that several can make together, on each of …
    nodes: int = 1  # … so many nodes

    @property
    def alone(self) -> Context:
        """The same for each of the processes that make a step together."""
        return replace(self, processes=1, nodes=1)


@dataclass(frozen=True, eq=False)
class Step:
    """Files that are a function of a recipe and of finished work.

    make(part, context) writes into `part`, or returns the files to write; it must be a function of a module, or a
    partial of one, because a worker imports it.
    """

    title: str  # what progress and failures call it
    stage: str  # the folder of the store: train, predict, evaluate …
    config: Any
    make: Callable[[StepFolder, Context], Files | None] = field(repr=False)
    parents: tuple[Step | str, ...] = ()  # steps, which are made first, and revisions of data
    version: int = 1
    summary: Callable[[Step, Context], dict[str, Any]] | None = None  # of finished work, for those who watch
    shards: tuple[Step, ...] = ()  # made first, put together by `make`, then removed: no key depends on them
    distributed: bool = False  # several processes can call `make` at once (torch.distributed), the first with the part

    @cached_property
    def key(self) -> str:
        return key_of(self.stage, self.config, self._parent_keys, self.version)

    @cached_property
    def names(self) -> dict[str, ContentName]:
        """The names of the content that this step and those before it are made from, by that content."""
        found = content_names(self.config)
        for parent in self._steps():
            found = parent.names | found
        return found

    def update_names(self, store: Store) -> None:
        """Remembers where the content of finished work is today."""
        if names := content_names(self.config):
            with suppress(StoreError):  # damaged: whoever uses it says so
                store.update_names(self.stage, self.key, names)

    @property
    def _parent_keys(self) -> tuple[str, ...]:
        return tuple(parent if isinstance(parent, str) else parent.key for parent in self.parents)

    def folder(self, store: Store) -> Path:
        return store.path(self.stage, self.key)

    def finished(self, store: Store) -> bool:
        return store.finished(self.stage, self.key)

    def verified(self, store: Store) -> Path:
        """The folder of finished work, byte for byte as it was written; Damaged if it is not."""
        store.verify(self.stage, self.key)
        return self.folder(store)

    def verified_or_rebuilt(self, context: Context) -> Path:
        """The folder of finished work; what is damaged is made again."""
        try:
            return self.verified(context.store)
        except Corrupted:
            context.store.remove(Run(self.stage, self.key, "finished", self.folder(context.store), {}))
            self.run(context, wait=True)
            return self.verified(context.store)

    def run(self, context: Context, *, wait: bool = False) -> None:
        """Makes what is missing, the parents first. Raises Busy while another process makes it, unless it waits."""
        if self.finished(context.store):
            self.update_names(context.store)
            return self._remove_shards(context.store)
        elsewhere: Busy | None = None
        for needed in self._steps():
            try:
                needed.run(context, wait=wait)
            except Busy as error:  # another process makes it, and this one what is left meanwhile
                elsewhere = error
        if elsewhere is not None:
            raise elsewhere
        try:
            with context.store.work(
                self.stage, self.config, self._parent_keys, self.version, wait=wait, title=self.title
            ) as step_folder:
                if step_folder is not None:
                    for name, content in self._made(step_folder, context).items():
                        step_folder.write(name, content)
        except Corrupted as error:  # finished work that turns out to be damaged has no note of its own
            with suppress(StoreError):  # the first error is the one to raise
                self.fail(context.store, str(error))
            raise
        if self.distributed:
            clear(self.folder(context.store))
        self._remove_shards(context.store)

    def _made(self, step_folder: StepFolder, context: Context) -> Files:
        """The files that are to be written; those of several processes are."""
        if self.distributed and context.processes * context.nodes > 1:
            make_distributed(self.make, step_folder, context.alone, context.processes, context.nodes)
            return {}
        return self.make(step_folder, context) or {}

    def team(self, context: Context) -> tuple[int, int]:
        """Processes on a node, and nodes, that this or what it needs first is to be made by."""
        if self.finished(context.store):
            return 1, 1
        if self.distributed or any(step.team(context) != (1, 1) for step in self._steps()):
            return context.processes, context.nodes
        return 1, 1

    def _remove_shards(self, store: Store) -> None:
        """Removes every shard of this step, those of another division too: the whole is there."""
        for stage in {shard.stage for shard in self.shards}:
            for run in store.runs(stage):
                if run.config.get(SHARD_OF) == self.key:
                    with suppress(Busy, StoreError):  # another process still makes it, or the store is read-only
                        store.remove(run)

    def fail(self, store: Store, reason: str) -> None:
        """Notes why this is not there, unless it is finished or going on."""
        store.fail(self.stage, self.config, reason, self._parent_keys, self.version, self.title)

    def record_death(self, store: Store, reason: str) -> None:
        """Notes the death of a worker where it happened: at the first step of the chain that is not finished, and that
        no other process is making."""
        for parent in self._steps():
            if not parent.finished(store) and not parent._going_on(store):
                return parent.record_death(store, reason)
        self.fail(store, reason)

    def _going_on(self, store: Store) -> bool:
        """Whether another process is making this, or what it needs first."""
        if self.finished(store):
            return False
        return store.in_progress(self.stage, self.key) or any(parent._going_on(store) for parent in self._steps())

    def failure_reason(self, store: Store) -> str | None:
        """The reason that the store has for this or for what it needs; None if it has none."""
        for parent in self._steps():
            if reason := parent.failure_reason(store):
                return reason
        return None if self.finished(store) else store.failure(self.stage, self.key)

    def _steps(self) -> list[Step]:
        """The steps that are made before this one."""
        return [*(parent for parent in self.parents if isinstance(parent, Step)), *self.shards]

    def _ancestors(self) -> Iterator[Step]:
        """All that is made before this one."""
        for step in self._steps():
            yield step
            yield from step._ancestors()

    def rows(self, store: Store) -> tuple[list[Row], list[Row]]:
        """Rows and reasons of a finished evaluation, checked byte for byte, with the names that content has today."""
        folder = self.verified(store)
        return self._named(from_parquet(folder / ROWS, verified=True)), self._named(read_list(folder / REASONS))

    def networks(self, store: Store) -> list[Row]:
        """Facts about the networks of a finished evaluation."""
        return self._facts(store, NETWORKS)

    def times(self, store: Store) -> list[Row]:
        """Measured times of the networks of a finished evaluation; most have none."""
        return self._facts(store, TIMES)

    def _facts(self, store: Store, name: str) -> list[Row]:
        file = self.folder(store) / name
        if not file.is_file():
            return []
        return self._named(from_parquet(file, verified=True, types=NETWORK_TYPES, needed=("network",)))

    def _named(self, rows: list[Row]) -> list[Row]:
        if not self.names:
            return rows
        return [{key: self.names.get(cell, cell) for key, cell in row.items()} for row in rows]


def evaluation_files(
    rows: Sequence[Row],
    reasons: Sequence[Row] = (),
    networks: Sequence[Row] = (),
    times: Sequence[Row] = (),
) -> dict[str, bytes]:
    """The files of an evaluation: its rows, the reasons for missing ones, facts about networks and measured times."""
    facts = {
        name: to_parquet(_by_content(merge_networks(entries)), NETWORK_TYPES)
        for name, entries in {NETWORKS: networks, TIMES: times}.items()
        if entries
    }
    return {ROWS: to_parquet(_by_content(rows)), REASONS: json.dumps(_by_content(reasons)).encode(), **facts}


def files_of(*builders: RowBuilder) -> dict[str, bytes]:
    """The files of an evaluation with the contents of these builders."""
    contents = ([entry for each in builders for entry in getattr(each, name)] for name in BUILT)
    return evaluation_files(*contents)


def _by_content(rows: Sequence[Row]) -> list[Row]:
    """Rows with content in place of its names, so that they are equal wherever it is."""
    return [{key: cell.content if isinstance(cell, ContentName) else cell for key, cell in row.items()} for row in rows]


def make_evaluation(
    benchmark: str,
    version: int,
    title: str,
    config: Mapping[str, Any],
    parents: Sequence[Step | str],
    make: Callable[[StepFolder, Context], Files],
    summary: Callable[[Step, Context], dict[str, Any]] | None = None,
) -> Step:
    """A step of a benchmark that turns finished work into rows and other small files."""
    return Step(title, "evaluate", {"benchmark": benchmark, **config}, make, tuple(parents), version, summary)


# ---- running


# stage, done, failed, all; the summary of the step done just now; how many an earlier run finished
Watch = Callable[[str, int, int, int, Any, int], None]


@dataclass
class Work:
    """Runs a benchmark's steps, and gathers its rows, reasons, failures and notes."""

    context: Context
    launcher: Launcher
    watch: Watch | None = None
    rows: list[Row] = field(default_factory=list)
    reasons: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pictures: list[Row] = field(default_factory=list)  # for the page: see report.studies.Study
    networks: list[Row] = field(default_factory=list)  # facts about networks
    times: list[Row] = field(default_factory=list)  # measured times of networks, which differ between runs

    @property
    def store(self) -> Store:
        return self.context.store

    is_dry_run = False  # nothing is done: steps that results choose are those of stand-ins

    def run_stage(self, stage: str, steps: Iterable[Step], before: Callable[[], None] | None = None) -> list[Step]:
        """Runs the steps that are not finished, each once, and returns those that are finished then.

        before  called if anything is missing, before any work: it refuses what could not be done
        """
        steps = list({step.key: step for step in steps}.values())
        missing = [step for step in steps if not step.finished(self.store)]
        for step in steps:
            if step not in missing:
                step.update_names(self.store)
        if missing:
            if before is not None:
                before()
            check_writable(self.store)
            self._launch(f"{stage}, rows in shards", [shard for step in missing for shard in step.shards])
            whole = [step for step in missing if all(shard.finished(self.store) for shard in step.shards)]
            self._launch(stage, whole, len(steps) - len(missing))
        return [step for step in steps if step.finished(self.store)]

    def _launch(self, stage: str, steps: Sequence[Step], before: int = 0) -> None:
        """Gives the steps that are not finished to the launcher.

        before  further steps of the stage, which are finished
        """
        missing = [step for step in steps if not step.finished(self.store)]
        if not missing:
            return
        before += len(steps) - len(missing)

        def say(done: int, failed: int, total: int, summary: Any) -> None:
            if self.watch:
                self.watch(stage, before + done, failed, before + total, summary, before)

        longest_first = sorted(missing, key=lambda step: -len(step._steps()))  # begun last, they would keep all waiting
        tasks = [self._task(step) for step in longest_first]
        place = {step.title: number for number, step in reversed(list(enumerate(missing)))}
        failures = sorted(self.launcher.run(tasks, say), key=lambda failure: place[failure.name])
        if failures:
            check_writable(self.store)  # one sentence where nothing can be kept any more, not one for each step
        self.failures += [*failures, *self._lost(missing, {failure.name for failure in failures})]

    def _task(self, step: Step) -> Task:
        several = self.context.processes * self.context.nodes > 1
        team = step.team(self.context) if several else (1, 1)
        return Task(step.title, _run, (step, self.context), _record_death, step.folder(self.store), *team)

    def _lost(self, steps: Sequence[Step], failed: set[str]) -> list[Failure]:
        """Steps that a worker says are done and that are not here: it has another store of the same name."""
        for folder in {step.folder(self.store).parent for step in steps}:
            with suppress(OSError):
                os.listdir(folder)  # only then does a network file system show what other machines made
        reason = f"It was done on another machine, and is not in {self.store.root}: all nodes need one file system."
        lost = [step for step in steps if step.title not in failed and not step.finished(self.store)]
        return [Failure(step.title, reason) for step in lost]

    def will_exist(self, step: Step) -> bool:
        """Whether later steps can be built on this one."""
        return step.finished(self.store)

    def collect(self, steps: Iterable[Step]) -> list[Step]:
        """Takes the rows and reasons of finished evaluations; returns those that could be read."""
        taken = []
        for step in steps:
            if not step.finished(self.store):
                continue
            try:
                rows, reasons = step.rows(self.store)
                self.networks = merge_networks([*self.networks, *step.networks(self.store)])
                self.times = merge_networks([*self.times, *step.times(self.store)])
            except StoreError as error:
                self.failures.append(Failure(step.title, str(error)))
                continue
            self.rows += [row | {"key": step.key} for row in rows]
            self.reasons += [reason for reason in reasons if reason not in self.reasons]
            taken.append(step)
        return taken

    def evaluate(self, stage: str, steps: Iterable[Step], before: Callable[[], None] | None = None) -> list[Step]:
        """Runs evaluations and takes their rows; returns those that could be read."""
        return self.collect(self.run_stage(stage, steps, before))

    def add_notes(self, *sentences: str) -> None:
        """Keeps what to know beside the numbers, each sentence once."""
        self.notes += [text for text in dict.fromkeys(sentences) if text not in self.notes]


def _run(step: Step, context: Context) -> dict[str, Any]:
    """What a worker does with one step; the pace of a training that was finished before is not of this run."""
    needed = (each for each in (step, *step._ancestors()) if each.stage == TRAIN)
    trains = any(not each.finished(context.store) for each in needed)
    step.run(context)
    summary = step.summary(step, context) if step.summary else {}
    return summary if trains else {name: fact for name, fact in summary.items() if name not in PACE}


def _record_death(reason: str, step: Step, context: Context) -> None:
    step.record_death(context.store, reason)


def check_writable(store: Store) -> None:
    """Raises StoreError before hours of work that could not be kept."""
    try:
        store.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=store.root) as file:
            file.write(b"room for a sentence")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(describe_error(OSError(error.errno, error.strerror), store.root)) from error
