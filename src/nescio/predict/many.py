"""Predictions of many networks on many image sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nescio.datasets import pixel_cache
from nescio.datasets.image_set import ImageSet
from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.files import read_json
from nescio.networks.models import with_weights
from nescio.networks.network import Network
from nescio.predict.outputs import OutputSpec
from nescio.predict.steps import predict_step, row_ranges, with_network_labels
from nescio.predictions.model_predictions import FACTS
from nescio.progress import track
from nescio.report.labels import dataset_label
from nescio.work.launchers import Failure, Launcher, Outcome, Task, failure_of, make_launcher, run_task
from nescio.work.steps import Context, Step, Work

DOWNLOADS = 4  # files of weights that are located at once


class ManyPredictions(NamedTuple):
    """Finished steps of many networks and image sets, in the order of the pairs, and the failures."""

    steps: list[Step]
    failures: list[Failure]


@dataclass(frozen=True)
class _Pair:
    """A network with weights, the images to predict, and the step that predicts them."""

    network: Network
    images: ImageSet
    step: Step
    ranges: Sequence[slice]


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
    shards    number of row ranges per prediction, each a step (default: as many as keep every worker busy)
    forget    whether to remove decoded pixels after the last network of a view; networks are then grouped by view
    say       called with a sentence per new prediction
    watch     called with the numbers of steps done, failed, in all, and finished by an earlier run
    """
    for name, value in (("batch_size", batch), ("shards", shards)):
        if value is not None and value < 1:
            raise BadInput(f"{name} must be at least 1, got {value}.")
    launcher = launcher or make_launcher("local", 0)
    workers = max(1, launcher.workers // max(1, len(pairs)))

    def plan(network: Network, images: ImageSet, title: str) -> _Pair:
        ranges = row_ranges(network, images, context, output_spec, shards=shards, workers=workers, batch=batch)
        step = predict_step(
            network, images, root=context.root, output_spec=output_spec, batch=batch, ranges=ranges, title=title
        )
        return _Pair(network, images, replace(step, summary=_summary), ranges)

    def count(_: str, done: int, failed: int, total: int, summary: object, before: int) -> None:
        if say and isinstance(summary, dict) and summary:
            say(summary["sentence"])
        if watch:
            watch(done, failed, total, before)

    planned, failures = dict[int, _Pair](), dict[int, Failure]()
    groups: dict[tuple[ImageSet, View] | None, list[_Pair]] = {}
    located = _locate_weights([network for network, _ in pairs], weights)
    for number, (network, images) in enumerate(pairs):
        title = f"{network.name} on {dataset_label(images.data)}"
        task, outcome = Task(title, plan, (located[network].result, images, title)), located[network]
        if outcome.status == "done":
            outcome = run_task(task)
        if isinstance(outcome.result, _Pair):
            planned[number] = pair = outcome.result
            groups.setdefault((images, pair.network.view) if forget else None, []).append(pair)
        else:
            failures[number] = failure_of(task, outcome)
    work = Work(context, launcher, count)

    def forget_pixels(steps: Sequence[Step]) -> None:
        if forget and any(step.finished(context.store) for step in steps):
            _forget_pixels(next(pair for pair in planned.values() if pair.step in steps), context, output_spec)

    work.run_groups("predicting", [[pair.step for pair in group] for group in groups.values()], after=forget_pixels)
    reasons = {failure.name: failure for failure in reversed(work.failures)}
    for number, pair in planned.items():
        if pair.step.finished(context.store):
            continue
        failure = next(reasons[step.title] for step in (pair.step, *pair.step.shards) if step.title in reasons)
        if failure.kind == pixel_cache.UnreadableImages.__name__:
            failure = replace(failure, reason=f"{failure.reason} With skip_damaged such images are left out.")
        failures[number] = replace(failure, name=pair.step.title)
    steps = [pair.step for number, pair in planned.items() if number not in failures]
    return ManyPredictions(steps, [failures[number] for number in sorted(failures)])


def _locate_weights(networks: Sequence[Network], weights: Path | None) -> dict[Network, Outcome]:
    """Network → outcome of `with_weights`; several files are downloaded at once."""
    tasks = {network: Task(network.name, with_weights, (network, weights)) for network in networks}
    with ThreadPoolExecutor(DOWNLOADS) as pool:
        results = track(pool.map(run_task, tasks.values()), "locating weights", len(tasks))
        return dict(zip(tasks, results, strict=True))


def _forget_pixels(pair: _Pair, context: Context, output_spec: OutputSpec) -> None:
    """Remove the decoded images, which networks of the same view share."""
    images = pair.images.load(context.root, context.store)
    loaded = with_network_labels(images, pair.network, output_spec, context.root)
    for rows in pair.ranges or [slice(0, len(loaded))]:
        cached = loaded.take(np.arange(rows.start, rows.stop))
        pixel_cache.remove_cached_pixels(cached, pair.network.view, context.store)


def _summary(step: Step, context: Context) -> dict[str, object]:
    """A sentence about finished predictions."""
    facts = read_json(step.folder(context.store) / FACTS)
    accuracy = f", top-1 {facts['accuracy']:.4f}" if "accuracy" in facts else ""
    speed = f"{facts['images_per_second']:,.0f} images/s"
    rows = f"{facts['rows']:,} images of {dataset_label(facts['data'])}"
    return {"sentence": f"{facts['model']}: {rows}{accuracy}, {speed}."}
