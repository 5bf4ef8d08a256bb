"""What a run would do: its steps, which of them are finished, and what the others take. Nothing is done."""

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


@dataclass
class DryRun(Work):
    """Gathers the steps of a benchmark in place of running them; to the benchmark, what is not finished has failed."""

    steps: dict[str, Step] = field(default_factory=dict)  # by key, parents among them

    is_dry_run = True

    def run_stage(self, stage: str, steps: Iterable[Step], before: Callable[[], None] | None = None) -> list[Step]:
        steps = list({step.key: step for step in steps}.values())
        finished = [step for step in steps if step.finished(self.store)]
        if before is not None and len(finished) < len(steps):
            before()
        for step in steps:
            self._gather(step)
        self.failures += [Failure(step.title, "it is not done yet.") for step in steps if step not in finished]
        return finished

    def will_exist(self, step: Step) -> bool:
        return True  # it is to come

    def _gather(self, step: Step) -> None:
        """Keeps a step and what it needs; finished work needs nothing more."""
        if step.key in self.steps:
            return
        self.steps[step.key] = step
        for parent in step._steps():
            if parent.finished(self.store) or not step.finished(self.store):
                self._gather(parent)


class Cost(NamedTuple):
    """What a step takes."""

    seconds: float
    bytes: float


@dataclass(frozen=True, eq=False)
class Expected(Step):
    """A step whose key is not known before its parents are: its weights were not read, or its predictions not made."""

    cost: Cost | None = None  # None: not known
    done: bool = False

    def finished(self, store: Store) -> bool:
        return self.done


@dataclass
class StageCost:
    """The steps of one stage, and what those that are missing take: by the store's own work, by figures, or unknown."""

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
    places: int = 1,
    *,
    clock: str = "seconds",
) -> list[StageCost]:
    """What steps take, stage by stage: as the same kind of work took in this store, else as `figures` has it.

    clock      "seconds" or "processor_seconds": the time of finished work that counts
    processes  that train together, in the places of so many workers; where no such training was seen, one process is
               taken to need as much time of workers
    """
    seen, stages = _seen(store, clock), dict[str, StageCost]()
    for step in steps:
        stage = stages.setdefault(step.stage, StageCost(step.stage))
        if step.finished(store):
            stage.finished += 1
            continue
        config = _plain(step.config)
        kinds = _kinds(step.stage, config, _network(step), 1)
        if step.distributed and processes > 1:
            kinds = _kinds(step.stage, config, _network(step), processes) + kinds
        if kind := next((kind for kind in kinds if kind in seen), None):
            stage.measured += 1
            seconds, size = (median(each) for each in zip(*seen[kind], strict=True))
            cost = Cost(seconds * _units(config) * (1 if kind[0] == 1 else places), size * _sampled(config))
        elif (guess := figures(step)) is not None:
            stage.estimated += 1
            cost = guess
        else:
            stage.unknown += 1
            continue
        stage.seconds += cost.seconds
        stage.bytes += cost.bytes
    return list(stages.values())


def _seen(store: Store, clock: str) -> Mapping[tuple[Any, ...], Sequence[Cost]]:
    """Kind of work → what each finished piece of it took; of training, the seconds of an epoch."""
    runs = [run for run in store.runs() if run.state == "finished"]
    recipes = {run.key: run.config for run in runs if run.stage == "train"}
    seen = defaultdict(list)
    for run in runs:
        network = next((recipes[key] for key in run.parents if key in recipes), {})
        with suppress(
            StoreError, OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError
        ):  # what is damaged says nothing
            about = read_json(run.folder / ENV)
            processes = about.get("processes", 1)  # of several, the store has the processor time of the first alone
            units = _units(run.config)
            seconds = about.get(clock if processes == 1 else "seconds", about["seconds"]) / units
            size = sum(file["bytes"] for file in store.record(run.stage, run.key)["files"].values()) / _sampled(
                run.config
            )
            for kind in _kinds(run.stage, run.config, network, processes):
                seen[kind].append(Cost(seconds, size))
    return seen


def _kinds(stage: str, config: Mapping[str, Any], network: Mapping[str, Any], processes: int) -> list[tuple[Any, ...]]:
    """What work has to share to take as long, the closest first: method and split may differ, network and data not."""
    images, own = (_first(part) for part in (config.get("images"), network or config.get("facts") or config))
    data = images.get("data") or own.get("data") or own.get("dataset")
    of = (config.get("benchmark"), config.get("step"), config.get("model"), str(data), own.get("backbone"))
    kind = (processes, stage, *of, images.get("sample") is None)
    return [(*kind, own.get("method"), images.get("split")), kind]


def _first(part: Any) -> Mapping[str, Any]:
    """A part of a recipe; of several, as pictures have, the first."""
    return (part[0] if part else {}) if isinstance(part, list) else part or {}


def _network(step: Step) -> Mapping[str, Any]:
    """The recipe of the trained network that a step asks, if it asks one."""
    return next((_plain(parent.config) for parent in step._steps() if parent.stage == "train"), {})


def _units(config: Mapping[str, Any]) -> int:
    """What the time of work grows with: epochs, or the images of a sample."""
    return int((config.get("training") or {}).get("epochs", 1)) * _sampled(config)


def _sampled(config: Mapping[str, Any]) -> int:
    """Images of a sample; 1 of a whole set."""
    return int(_first(config.get("images")).get("sample") or 1)


def _plain(config: Any) -> Mapping[str, Any]:
    plain = canonical(config)
    return plain if isinstance(plain, dict) else {}
