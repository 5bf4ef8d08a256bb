"""Dry runs: the steps of a run, which of them are finished, and the estimated cost of the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from nescio.files import read_json
from nescio.identity import canonical
from nescio.work.launchers import Failure
from nescio.work.step_folder import ENV
from nescio.work.steps import Step, Work
from nescio.work.store import Store
from nescio.work.store_errors import StoreError

Config = Mapping[str, Any]  # plain JSON
Kind = tuple[object, ...]  # identifies work with similar cost


@dataclass
class DryRun(Work):
    """Collects the steps of a benchmark without running them; the benchmark treats missing steps as failed."""

    steps: dict[str, Step] = field(default_factory=dict)  # by key, parents among them

    is_dry_run = True

    def run_groups(
        self,
        stage: str,
        groups: Iterable[Iterable[Step]],
        before: Callable[[], None] | None = None,
        after: Callable[[Sequence[Step]], None] | None = None,
    ) -> list[Step]:
        steps = list({step.key: step for group in groups for step in group}.values())
        finished = [step for step in steps if step.finished(self.store)]
        if before is not None and len(finished) < len(steps):
            before()
        for step in steps:
            self._gather(step)
        self.failures += [Failure(step.title, "it is not done yet.") for step in steps if step not in finished]
        return finished

    def will_exist(self, step: Step) -> bool:
        return True

    def _gather(self, step: Step) -> None:
        """Collect a step and its missing parents."""
        if step.key in self.steps:
            return
        self.steps[step.key] = step
        for parent in step._steps():
            if parent.finished(self.store) or not step.finished(self.store):
                self._gather(parent)


class Cost(NamedTuple):
    """Time and disk space of a step."""

    seconds: float
    bytes: float


@dataclass(frozen=True, eq=False)
class Expected(Step):
    """A step with an unknown key, because its weights were not read or its parents are missing."""

    cost: Cost | None = None  # None: unknown
    done: bool = False

    def finished(self, store: Store) -> bool:
        return self.done


@dataclass
class StageCost:
    """Numbers of finished and missing steps of a stage, and the cost of the missing ones.

    measured   steps with a cost measured on similar work of the store
    estimated  steps with an estimated cost
    """

    stage: str
    finished: int = 0
    measured: int = 0
    estimated: int = 0
    unknown: int = 0
    seconds: float = 0.0
    bytes: float = 0.0

    @property
    def missing(self) -> int:
        return self.measured + self.estimated + self.unknown


def costs(
    steps: Iterable[Step],
    store: Store,
    figures: Callable[[Step], Cost | None],
    processes: int = 1,
    workers: int = 1,
    *,
    clock: str = "seconds",
) -> list[StageCost]:
    """Costs of steps per stage: measured on the same kind of work in this store, else estimated by `figures`.

    clock      "seconds" or "processor_seconds": which measured time is used
    processes  number of processes per training, each in place of a worker; without a measured training of so many,
               the worker time of a single process is used
    """
    measured_costs, stages = _measured_costs(store, clock), dict[str, StageCost]()
    for step in steps:
        stage = stages.setdefault(step.stage, StageCost(step.stage))
        if step.finished(store):
            stage.finished += 1
            continue
        config = _plain(step.config)
        kinds = _kinds(step.stage, config, _network(step), 1)
        if step.distributed and processes > 1:
            kinds = _kinds(step.stage, config, _network(step), processes) + kinds
        if kind := next((kind for kind in kinds if kind in measured_costs), None):
            stage.measured += 1
            seconds, size = (median(column) for column in zip(*measured_costs[kind], strict=True))
            cost = Cost(seconds * _units(config) * (1 if kind[0] == 1 else workers), size * _sampled(config))
        elif (estimate := figures(step)) is not None:
            stage.estimated += 1
            cost = estimate
        else:
            stage.unknown += 1
            continue
        stage.seconds += cost.seconds
        stage.bytes += cost.bytes
    return list(stages.values())


def _measured_costs(store: Store, clock: str) -> Mapping[Kind, Sequence[Cost]]:
    """Kind of work → the cost of each finished step of that kind, per unit of work."""
    runs = [run for run in store.runs() if run.state == "finished"]
    trainings = {run.key: run.config for run in runs if run.stage == "train"}
    costs_by_kind = defaultdict(list)
    for run in runs:
        network = next((trainings[key] for key in run.parents if key in trainings), {})
        with suppress(
            StoreError, OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError
        ):  # damaged work is skipped
            env = read_json(run.folder / ENV)
            processes = env.get("processes", 1)  # of several, the store has the processor time of the first only
            units = _units(run.config)
            seconds = env.get(clock if processes == 1 else "seconds", env["seconds"]) / units
            size = sum(file["bytes"] for file in store.record(run.stage, run.key)["files"].values()) / _sampled(
                run.config
            )
            for kind in _kinds(run.stage, run.config, network, processes):
                costs_by_kind[kind].append(Cost(seconds, size))
    return costs_by_kind


def _kinds(stage: str, config: Config, network: Config, processes: int) -> list[Kind]:
    """Kinds of work with similar cost, the closest first: method and split may differ, network and data may not."""
    images, settings = (_first(entry) for entry in (config.get("images"), network or config.get("facts") or config))
    data = images.get("data") or settings.get("data") or settings.get("dataset")
    identity = (config.get("benchmark"), config.get("step"), config.get("model"), str(data), settings.get("backbone"))
    kind = (processes, stage, *identity, images.get("sample") is None)
    return [(*kind, settings.get("method"), images.get("split")), kind]


def _first(entry: Config | Sequence[Config] | None) -> Config:
    """An entry of a config; the first of several."""
    if isinstance(entry, Mapping):
        return entry
    return entry[0] if entry else {}


def _network(step: Step) -> Config:
    """The config of the trained network that a step uses; empty if there is none."""
    return next((_plain(parent.config) for parent in step._steps() if parent.stage == "train"), {})


def _units(config: Config) -> int:
    """Units of work: epochs times images of a sample."""
    return int((config.get("training") or {}).get("epochs", 1)) * _sampled(config)


def _sampled(config: Config) -> int:
    """Sample size of an image set; 1 if it is not sampled."""
    return int(_first(config.get("images")).get("sample") or 1)


def _plain(config: object) -> Config:
    plain = canonical(config)
    return plain if isinstance(plain, dict) else {}
