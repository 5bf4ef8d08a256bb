"""Steps: work with a key, parents and a function that writes their files; and Work, which runs them.

The key of a step is a function of its stage, config, parents and version. The store determines whether it is finished,
failed, damaged or in progress. A benchmark defines steps, a launcher runs them.
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
BUILT = ("rows", "reasons", "networks", "times")  # attributes of a RowBuilder
TRAIN = "train"  # stage of trained networks
SPEED = ("images", "seconds", "images/s")  # facts about time in the summary of a training
SHARD_OF = "of"  # in the config of a shard: the key of the whole step
Files = Mapping[str, bytes]
Summary = Mapping[str, object]  # facts about finished work


@dataclass(frozen=True)
class Context:
    """Environment of steps: store, folder of datasets, device."""

    store: Store
    root: str | None = None
    device: str = "auto"
    checkpoint_seconds: float = 60.0
    processes: int = 1  # per node, for steps that several processes run together
    nodes: int = 1

    @property
    def alone(self) -> Context:
        """The context for one of several cooperating processes."""
        return replace(self, processes=1, nodes=1)


@dataclass(frozen=True, eq=False)
class Step:
    """Files that are a function of a config and of finished work.

    make(part, context) writes into `part`, or returns the files to write; it must be a function of a module, or a
    partial of one, because a worker imports it.
    """

    title: str  # in progress and failures
    stage: str  # the folder of the store: train, predict, evaluate …
    config: Any
    make: Callable[[StepFolder, Context], Files | None] = field(repr=False)
    parents: tuple[Step | str, ...] = ()  # steps, which run first, and revisions of data
    version: int = 1
    summary: Callable[[Step, Context], Summary] | None = None  # facts about finished work, for progress
    shards: tuple[Step, ...] = ()  # run first, joined by `make`, then removed; not in keys
    distributed: bool = False  # several processes can call `make` together (torch.distributed)

    @cached_property
    def key(self) -> str:
        return key_of(self.stage, self.config, self._parent_keys, self.version)

    @cached_property
    def names(self) -> dict[str, ContentName]:
        """Content → its name, for the inputs of this step and of its ancestors."""
        names_by_content = content_names(self.config)
        for parent in self._steps():
            names_by_content = parent.names | names_by_content
        return names_by_content

    def update_names(self, store: Store) -> None:
        """Store the current names of the content of finished work."""
        if names := content_names(self.config):
            with suppress(StoreError):  # damaged: its users report it
                store.update_names(self.stage, self.key, names)

    @property
    def _parent_keys(self) -> tuple[str, ...]:
        return tuple(parent if isinstance(parent, str) else parent.key for parent in self.parents)

    def folder(self, store: Store) -> Path:
        return store.path(self.stage, self.key)

    def finished(self, store: Store) -> bool:
        return store.finished(self.stage, self.key)

    def verified(self, store: Store) -> Path:
        """The folder of finished work, after its checksums are verified."""
        store.verify(self.stage, self.key)
        return self.folder(store)

    def verified_or_rebuilt(self, context: Context) -> Path:
        """The verified folder of finished work; damaged work is done again."""
        try:
            return self.verified(context.store)
        except Corrupted:
            context.store.remove(Run(self.stage, self.key, "finished", self.folder(context.store), {}))
            self.run(context, wait=True)
            return self.verified(context.store)

    def run(self, context: Context, *, wait: bool = False) -> None:
        """Run this step, missing parents first. Raise Busy while another process does, unless `wait`."""
        if self.finished(context.store):
            self.update_names(context.store)
            return self._remove_shards(context.store)
        elsewhere: Busy | None = None
        for needed in self._steps():
            try:
                needed.run(context, wait=wait)
            except Busy as error:  # run the other parents meanwhile
                elsewhere = error
        if elsewhere is not None:
            raise elsewhere
        try:
            with context.store.work(
                self.stage, self.config, self._parent_keys, self.version, wait=wait, title=self.title
            ) as step_folder:
                if step_folder is not None:
                    for name, content in self._files(step_folder, context).items():
                        step_folder.write(name, content)
        except Corrupted as error:  # damaged finished work has no failure of its own
            with suppress(StoreError):  # the first error is the one to raise
                self.fail(context.store, str(error))
            raise
        if self.distributed:
            clear(self.folder(context.store))
        self._remove_shards(context.store)

    def _files(self, step_folder: StepFolder, context: Context) -> Files:
        """The files to write; empty if several processes have written them."""
        if self.distributed and context.processes * context.nodes > 1:
            make_distributed(self.make, step_folder, context.alone, context.processes, context.nodes)
            return {}
        return self.make(step_folder, context) or {}

    def team(self, context: Context) -> tuple[int, int]:
        """Processes per node and nodes for this step or its missing parents."""
        if self.finished(context.store):
            return 1, 1
        if self.distributed or any(step.team(context) != (1, 1) for step in self._steps()):
            return context.processes, context.nodes
        return 1, 1

    def _remove_shards(self, store: Store) -> None:
        """Remove all shards of this step, because the whole is finished."""
        for stage in {shard.stage for shard in self.shards}:
            for run in store.runs(stage):
                if run.config.get(SHARD_OF) == self.key:
                    with suppress(Busy, StoreError):  # another process runs it, or the store is read-only
                        store.remove(run)

    def fail(self, store: Store, reason: str) -> None:
        """Record a failure, unless the step is finished or in progress."""
        store.fail(self.stage, self.config, reason, self._parent_keys, self.version, self.title)

    def record_death(self, store: Store, reason: str) -> None:
        """Record the death of a worker at the first ancestor that is neither finished nor in progress."""
        for parent in self._steps():
            if not parent.finished(store) and not parent._going_on(store):
                return parent.record_death(store, reason)
        self.fail(store, reason)

    def _going_on(self, store: Store) -> bool:
        """Whether another process runs this step or an ancestor."""
        if self.finished(store):
            return False
        return store.in_progress(self.stage, self.key) or any(parent._going_on(store) for parent in self._steps())

    def failure_reason(self, store: Store) -> str | None:
        """The recorded failure of this step or of an ancestor; None if there is none."""
        for parent in self._steps():
            if reason := parent.failure_reason(store):
                return reason
        return None if self.finished(store) else store.failure(self.stage, self.key)

    def _steps(self) -> list[Step]:
        """The steps that run before this one."""
        return [*(parent for parent in self.parents if isinstance(parent, Step)), *self.shards]

    def _ancestors(self) -> Iterator[Step]:
        """All ancestors of this step."""
        for step in self._steps():
            yield step
            yield from step._ancestors()

    def rows(self, store: Store) -> tuple[list[Row], list[Row]]:
        """Verified rows and reasons of a finished evaluation, with the current names of content."""
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
    """Rows with content digests instead of names, so that they do not depend on paths."""
    return [{key: cell.content if isinstance(cell, ContentName) else cell for key, cell in row.items()} for row in rows]


def make_evaluation(
    benchmark: str,
    version: int,
    title: str,
    config: Mapping[str, object],
    parents: Sequence[Step | str],
    make: Callable[[StepFolder, Context], Files],
    summary: Callable[[Step, Context], Summary] | None = None,
) -> Step:
    """A step that computes rows and other small files from finished work."""
    return Step(title, "evaluate", {"benchmark": benchmark, **config}, make, tuple(parents), version, summary)


# ---- running


# stage, done, failed, all; the summary of the step done just now; how many an earlier run finished
Watch = Callable[[str, int, int, int, Any, int], None]


@dataclass
class _StageProgress:
    """Counts of the steps and shards of a stage, over several calls of the launcher."""

    stage: str
    watch: Watch | None
    total: int
    before: int  # finished by an earlier run
    done: int
    failed: int = 0

    def report(self, done: int, failed: int, _: int, summary: object) -> None:
        if self.watch and (done or self.done == self.before):
            self.watch(self.stage, self.done + done, self.failed + failed, self.total, summary, self.before)


@dataclass
class Work:
    """Runs the steps of a benchmark and collects rows, reasons, failures and notes."""

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

    is_dry_run = False  # in a dry run, steps that depend on results are placeholders

    def run_stage(self, stage: str, steps: Iterable[Step], before: Callable[[], None] | None = None) -> list[Step]:
        """Run the missing steps, each once, and return the finished ones.

        before  called before any work if a step is missing; raises for impossible work
        """
        return self.run_groups(stage, [steps], before)

    def run_groups(
        self,
        stage: str,
        groups: Iterable[Iterable[Step]],
        before: Callable[[], None] | None = None,
        after: Callable[[Sequence[Step]], None] | None = None,
    ) -> list[Step]:
        """Run the missing steps, one group after another, and return the finished ones; see run_stage.

        after  called with each group once its steps are finished or failed
        """
        grouped = [list({step.key: step for step in group}.values()) for group in groups]
        steps = [step for group in grouped for step in group]
        missing = {step.key for step in steps if not step.finished(self.store)}
        for step in steps:
            if step.key not in missing:
                step.update_names(self.store)
        if missing:
            if before is not None:
                before()
            check_writable(self.store)
        units = [*steps, *(shard for step in steps if step.key in missing for shard in step.shards)]
        finished = sum(unit.finished(self.store) for unit in units)
        progress = _StageProgress(stage, self.watch, len(units), finished, finished)
        for group in grouped:
            unfinished = [step for step in group if step.key in missing]
            self._launch([shard for step in unfinished for shard in step.shards], progress)
            whole = [step for step in unfinished if all(shard.finished(self.store) for shard in step.shards)]
            progress.done += len(unfinished) - len(whole)
            self._launch(whole, progress)
            if after is not None:
                after(group)
        return [step for step in steps if step.finished(self.store)]

    def _launch(self, steps: Sequence[Step], progress: _StageProgress) -> None:
        """Run missing steps with the launcher."""
        missing = [step for step in steps if not step.finished(self.store)]
        if not missing:
            return
        longest_first = sorted(missing, key=lambda step: -len(step._steps()))  # started last, they would delay the end
        tasks = [self._task(step) for step in longest_first]
        position = {step.title: number for number, step in reversed(list(enumerate(missing)))}
        failures = sorted(self.launcher.run(tasks, progress.report), key=lambda failure: position[failure.name])
        progress.done += len(missing)
        progress.failed += len(failures)
        if failures:
            check_writable(self.store)  # one error if the store cannot be written, not one per step
        self.failures += [*failures, *self._lost(missing, {failure.name for failure in failures})]

    def _task(self, step: Step) -> Task:
        several = self.context.processes * self.context.nodes > 1
        team = step.team(self.context) if several else (1, 1)
        return Task(step.title, _run, (step, self.context), _record_death, step.folder(self.store), *team)

    def _lost(self, steps: Sequence[Step], failed: set[str]) -> list[Failure]:
        """Failures of steps reported done without files here: the worker wrote to another store."""
        for folder in {step.folder(self.store).parent for step in steps}:
            with suppress(OSError):
                os.listdir(folder)  # makes a network file system show the files of other machines
        reason = f"It was done on another machine, and is not in {self.store.root}: all nodes need one file system."
        lost = [step for step in steps if step.title not in failed and not step.finished(self.store)]
        return [Failure(step.title, reason) for step in lost]

    def will_exist(self, step: Step) -> bool:
        """Whether later steps can use this one."""
        return step.finished(self.store)

    def collect(self, steps: Iterable[Step]) -> list[Step]:
        """Collect rows and reasons of finished evaluations; return the readable evaluations."""
        collected, networks, times = [], list(self.networks), list(self.times)
        for step in steps:
            if not step.finished(self.store):
                continue
            try:
                rows, reasons = step.rows(self.store)
                networks += step.networks(self.store)
                times += step.times(self.store)
            except StoreError as error:
                self.failures.append(Failure(step.title, str(error)))
                continue
            for row in rows:
                row["key"] = step.key
            self.rows += rows
            self.reasons += [reason for reason in reasons if reason not in self.reasons]
            collected.append(step)
        self.networks, self.times = merge_networks(networks), merge_networks(times)
        return collected

    def evaluate(self, stage: str, steps: Iterable[Step], before: Callable[[], None] | None = None) -> list[Step]:
        """Run evaluations and collect their rows; return the readable evaluations."""
        return self.collect(self.run_stage(stage, steps, before))

    def add_notes(self, *sentences: str) -> None:
        """Add notes about the results, each sentence once."""
        self.notes += [text for text in dict.fromkeys(sentences) if text not in self.notes]


def _run(step: Step, context: Context) -> Summary:
    """Run one step in a worker; facts about time are dropped if its training was finished before."""
    needed = (ancestor for ancestor in (step, *step._ancestors()) if ancestor.stage == TRAIN)
    trains = any(not ancestor.finished(context.store) for ancestor in needed)
    step.run(context)
    summary = step.summary(step, context) if step.summary else {}
    return summary if trains else {name: fact for name, fact in summary.items() if name not in SPEED}


def _record_death(reason: str, step: Step, context: Context) -> None:
    step.record_death(context.store, reason)


def check_writable(store: Store) -> None:
    """Raise StoreError if the store cannot be written."""
    try:
        store.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=store.root) as file:
            file.write(b"room for a sentence")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(describe_error(OSError(error.errno, error.strerror), store.root)) from error
