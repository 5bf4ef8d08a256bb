"""Predictions of many networks on many image sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nescio.datasets import pixel_cache
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.files import read_json
from nescio.networks.models import with_weights
from nescio.networks.network import Network
from nescio.predict.outputs import OutputSpec
from nescio.predict.steps import SHARD, describe_range, predict_step, row_ranges, with_network_labels
from nescio.predictions.model_predictions import FACTS, STAGE
from nescio.report.labels import dataset_label
from nescio.work.launchers import Failure, Launcher, Task, make_launcher
from nescio.work.steps import Context, Step
from nescio.work.store import Store, key_of


@dataclass
class ManyPredictions:
    """Finished steps of many networks and image sets, in the order of the pairs, and the failures."""

    steps: list[Step] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


def predict_all(
    pairs: Sequence[tuple[Network, ImageSet]],
    context: Context,
    output_spec: OutputSpec = OutputSpec(),
    *,
    launcher: Launcher | None = None,
    weights: Path | None = None,
    batch: int | None = None,
    shards: int | None = None,
    forget: bool = False,
    say: Callable[[str], None] | None = None,
    watch: Callable[[int, int, int, int], None] | None = None,
) -> ManyPredictions:
    """Predict the images of every pair; the failure of one pair does not stop the others.

    launcher  runs the predictions (default: this process)
    weights   a weights file, or a folder of files named by networks (default: $NESCIO_WEIGHTS, then the hubs)
    shards    number of row ranges per prediction, each a task (default: as many as keep every worker busy)
    forget    whether to remove decoded pixels after the last network of a view; networks are then grouped by view
    say       called with a sentence per new prediction
    watch     called with the numbers of tasks done, failed, in all, and finished by an earlier run
    """
    if batch is not None and batch < 1:
        raise BadInput(f"The batch size must be at least 1, got {batch}.")
    launcher = launcher or make_launcher("local", 0)
    workers = max(1, launcher.workers // max(1, len(pairs)))
    outcome, before, reused = ManyPredictions(), 0, 0
    finished: dict[int, Step] = {}
    groups: dict[Any, list[_Pair]] = {}
    for number, (network, images) in enumerate(pairs):
        ranges = _ranges(network, images, context, output_spec, shards, workers, batch)
        pair = _Pair(number, network, images, context, output_spec, weights, batch, ranges)
        groups.setdefault((images, network.view), []).append(pair)
    total = sum(1 + len(pair.ranges) for group in groups.values() for pair in group)

    def count(done: int, failed: int, _: int, result: tuple[int, Step | None, str | None] | None) -> None:
        nonlocal reused
        if result is not None:
            number, step, sentence = result
            if step is not None:
                finished[number] = step
            reused += sentence is None
            if sentence and say:
                say(sentence)
        if watch and (done or not before):
            watch(before + done, len(outcome.failures) + failed, total, reused)

    for group in groups.values() if forget else [[pair for same_view in groups.values() for pair in same_view]]:
        shard_tasks = [(pair, task) for pair in group for task in pair.shard_tasks()]
        failures = launcher.run([task for _, task in shard_tasks], count) if shard_tasks else ()
        by_task = {failure.name: failure for failure in failures}
        failed_pairs = {
            pair.number: replace(by_task[task.name], name=pair.title)
            for pair, task in shard_tasks
            if task.name in by_task
        }
        outcome.failures += failed_pairs.values()
        before += len(shard_tasks) + len(failed_pairs)
        tasks = [pair.task() for pair in group if pair.number not in failed_pairs]
        outcome.failures += launcher.run(tasks, count)
        before += len(tasks)
        if forget and any(pair.number in finished for pair in group):
            group[0].forget_pixels()
    outcome.steps = [finished[number] for number in sorted(finished)]
    return outcome


def _ranges(
    network: Network,
    images: ImageSet,
    context: Context,
    output_spec: OutputSpec,
    shards: int | None,
    workers: int,
    batch: int | None,
) -> tuple[slice, ...]:
    """The row ranges of a prediction; none if it is not divided, or if its task will fail."""
    try:
        ranges = row_ranges(network, images, context, output_spec, shards=shards, workers=workers, batch=batch)
    except BadInput:
        if shards is not None and shards < 1:
            raise
        return ()  # the set does not fit the network: its task reports the error, and the others continue
    return tuple(ranges) if len(ranges) > 1 else ()


@dataclass(frozen=True)
class _Pair:
    """A network and the images to predict, as sent to a worker."""

    number: int
    network: Network
    images: ImageSet
    context: Context
    output_spec: OutputSpec
    weights: Path | None
    batch: int | None
    ranges: tuple[slice, ...]

    @property
    def title(self) -> str:
        return f"{self.network.name} on {dataset_label(self.images.data)}"

    def task(self) -> Task:
        return Task(self.title, _predict_pair, (self,), folder=self._folder(STAGE))

    def shard_tasks(self) -> list[Task]:
        return [
            Task(
                f"{self.title}, {describe_range(rows)}",
                _predict_range,
                (self, number),
                folder=self._folder(SHARD, rows.start, rows.stop),
            )
            for number, rows in enumerate(self.ranges)
        ]

    def _folder(self, stage: str, *rows: int) -> Path:
        """A folder that identifies the task: the folder of its step requires the checksum of its weights."""
        preprocessing = [self.network.view, self.network.mean, self.network.std]
        pair = [self.number, self.network.name, *preprocessing, self.images, self.output_spec, str(self.weights)]
        return self.context.store.path(stage, key_of(stage, [*pair, self.batch, *rows]))

    def step(self) -> Step:
        return predict_step(
            with_weights(self.network, self.weights),
            self.images,
            root=self.context.root,
            output_spec=self.output_spec,
            batch=self.batch,
            ranges=self.ranges,
        )

    def forget_pixels(self) -> None:
        """Remove the decoded images, which networks of the same view share."""
        root, store = self.context.root, self.context.store
        loaded = with_network_labels(self.images.load(root, store), self.network, self.output_spec, root)
        for rows in self.ranges or [slice(0, len(loaded))]:
            pixel_cache.remove_cached_pixels(loaded.take(np.arange(rows.start, rows.stop)), self.network.view, store)


def _predict_pair(pair: _Pair) -> tuple[int, Step, str | None]:
    """Predict one pair in a worker; returns its number, its finished step and, if it is new, a sentence about it."""
    step, store = pair.step(), pair.context.store
    reused = step.finished(store)
    _run(step, pair.context)
    return pair.number, step, None if reused else _sentence(pair.network, step, store)


def _predict_range(pair: _Pair, shard: int) -> tuple[int, None, str | None]:
    """Predict one range of a pair in a worker, unless it or the whole is finished."""
    step, store = pair.step(), pair.context.store
    reused = step.finished(store) or step.shards[shard].finished(store)
    if not reused:
        _run(step.shards[shard], pair.context)
    return pair.number, None, None if reused else ""


def _run(step: Step, context: Context) -> None:
    try:
        step.run(context)
    except pixel_cache.UnreadableImages as error:
        raise BadInput(f"{error} With skip_damaged such images are left out.") from None


def _sentence(network: Network, step: Step, store: Store) -> str:
    facts = read_json(step.folder(store) / FACTS)
    accuracy = f", top-1 {facts['accuracy']:.4f}" if "accuracy" in facts else ""
    speed = f"{facts['images_per_second']:,.0f} images/s"
    return f"{network.name}: {facts['rows']:,} images of {dataset_label(facts['data'])}{accuracy}, {speed}."
