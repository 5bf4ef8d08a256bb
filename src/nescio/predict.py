"""Networks and images in, Predictions out: the only writer of dumps.

store/predict/<key>/dump        Predictions of one network on one image set
store/predict/<key>/facts.json  what to know of them: network, rows, accuracy, pace …
store/shard/<key>/              the same of a range of rows, until all ranges are there and are joined
store/count/<key>/              dense prediction: pixel counts in place of a dump of every pixel
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, reduce
from itertools import pairwise
from operator import add, itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nescio import probes
from nescio.analysis.pixels import PixelCounts
from nescio.arrays.parallel import blocks
from nescio.datasets import Batches, views
from nescio.datasets.base import Encoded, Joined, Pixels
from nescio.datasets.changes import Crop
from nescio.datasets.feed import Normal, feed
from nescio.datasets.images import ImageSet, LoadedImages, names_of_labels, numbered, same_images
from nescio.errors import BadInput
from nescio.files import read_json
from nescio.identity import IN_KEYS, Validated, seed_for, tag
from nescio.layers.entropies import entropy
from nescio.methods.base import Method, Output, check_output
from nescio.networks.forward import Classifier
from nescio.networks.models import Network, build, count_parameters, output_class_names, with_weights
from nescio.predictions import Predictions
from nescio.predictions.files import save
from nescio.predictions.shards import concatenate
from nescio.progress import track
from nescio.report.labels import dataset_label
from nescio.runtime import Runtime, evaluating, runtime_for, seed_everything
from nescio.training import load_method, train_step
from nescio.trials import Trial
from nescio.work.launchers import Failure, Launcher, Task, make_launcher
from nescio.work.steps import SHARD_OF, Context, Files, Step
from nescio.work.store import WORK, StepFolder, Store, key_of
from nescio.work.versions import COUNT as COUNT_VERSION
from nescio.work.versions import PREDICT as VERSION

STAGE, SHARD, COUNT = "predict", "shard", "count"
DUMP, FACTS, PROBES, COUNTS = "dump", "facts.json", "probes.json", "counts.npz"
PIXELS = {"cuda": 512 * 224 * 224, "cpu": 32 * 224 * 224}  # of a batch of a pretrained network
# images of a trained network, whose images are small: a GPU waits for its kernels to be launched where they are few
BATCH = {"cuda": 2048, "cpu": 512}
LEAST_ROWS = 4096  # of a shard, where their number is not given: the start of a worker and a network takes seconds
PROBE_PIXELS = 128 * 64**2  # of a batch of probes: they go backward through the network, which keeps every layer
VIEWS = 8  # augmented copies of an image that test-time augmentation averages
SCORES = "scores/"  # before the name of a score
LARGEST = float(np.finfo(np.float16).max)


@tag("keeping")
@dataclass(frozen=True)
class OutputSpec(Validated):
    """What a dump keeps, and how it is made."""

    fields: tuple[Literal["logits", "embeddings", "scores"], ...] = ("logits", "embeddings", "scores")
    dtype: Literal["float32", "float16"] = "float32"
    mc_samples: int = field(
        default=0, metadata={IN_KEYS: "passes"}
    )  # with dropout on, for pretrained networks that have it
    dropout: float | None = field(
        default=None, metadata={IN_KEYS: "drop"}
    )  # dropout before the head of timm's networks, which are built without
    precision: Literal["auto", "float32", "bf16"] | None = None  # None: that of the trial
    compared: bool = False  # made to compare models: `predictions.model_predictions` lists it

    def check(self) -> None:
        self.require_min(0, "mc_samples")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise BadInput(f"OutputSpec.dropout is {self.dropout:g}: it must be at least 0 and below 1.")


def predict_step(
    network: Network,
    images: ImageSet,
    *,
    root: str | Path | None = None,
    output_spec: OutputSpec = OutputSpec(),
    batch: int | None = None,
    compile: bool = False,
    ranges: Sequence[slice] = (),
) -> Step:
    """The step that writes what a network says about images; one that is not trained yet is trained first.

    compile  only saves time on large sets
    ranges   of rows, as `row_ranges` gives them: each is a step of its own, and this one joins them; its key and its
             dump are the same without them
    """
    if network.trial is not None and network.trial.task == "segmentation":
        raise BadInput(
            f"{network.name} gives an answer for every pixel: count them with count_step, a dump has no room."
        )
    images = with_view_of(images.named(root), network, root)
    config = {"images": images, "keeping": output_spec, **network.identity}
    title = f"{network.name} on {images.data}" if network.trial is None else train_step(network.trial, root).title
    parents = (network.parent(root), images.load_revision(root))
    make = partial(_predict, network=network, images=images, output_spec=output_spec, batch=batch, compile=compile)
    whole = Step(title, STAGE, config, make, parents, VERSION)
    if len(ranges) < 2:
        return whole
    shards = tuple(_shard(whole, partial(make, rows=rows), rows) for rows in ranges)
    return replace(whole, make=partial(_join, shards=shards), shards=shards)


def _shard(whole: Step, make: Callable[[StepFolder, Context], Files], rows: slice) -> Step:
    """The step that makes a range of rows of another one."""
    config = {SHARD_OF: whole.key, "rows": [rows.start, rows.stop]}
    title = f"{whole.title}, {describe_range(rows)}"
    return Step(title, SHARD, config, make, whole.parents, VERSION)


def describe_range(rows: slice) -> str:
    return f"rows {rows.start:,} to {rows.stop - 1:,}"


def row_ranges(
    network: Network,
    images: ImageSet,
    context: Context,
    output_spec: OutputSpec = OutputSpec(),
    *,
    shards: int | None = None,
    workers: int = 1,
    batch: int | None = None,
) -> list[slice]:
    """Ranges of the rows that a network predicts, as even as whole batches allow: a batch is never cut, and so every
    row is computed, on a CPU to the last bit, as without ranges.

    shards   how many ranges, or fewer where there are fewer batches; None: one for each worker …
    workers  … as long as a range has some thousands of rows
    """
    if shards is not None and shards < 1:
        raise BadInput(f"--shards is a number of ranges from 1 on, not {shards}.")
    if (shards or workers) <= 1:
        return []
    rows = len(_numbered(images.load(context.root, context.store), network, output_spec, context.root))
    batch = batch or default_batch_size(network, runtime_for(context.device))
    return even_ranges(rows, shards or min(workers, rows // LEAST_ROWS), batch)


def even_ranges(rows: int, count: int, batch: int) -> list[slice]:
    """So many ranges of whole batches, the last of which may be cut; fewer if there are fewer batches."""
    batches = math.ceil(rows / batch)
    count = max(1, min(count, batches))
    cuts = [min(rows, batches * number // count * batch) for number in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(cuts)]


def predict(
    network: Network, images: ImageSet, context: Context, output_spec: OutputSpec = OutputSpec()
) -> Predictions:
    """What a network says about images, made once and kept in the store."""
    step = predict_step(network, images, root=context.root, output_spec=output_spec)
    step.run(context, wait=True)
    return load_predictions(step, context.store)


# float32: bf16 has too few digits to order neighbours
EMBEDDINGS = OutputSpec(("embeddings",), precision="float32")


def embed(networks: Sequence[Network], images: ImageSet, context: Context) -> list[Predictions]:
    """The embeddings of the same images by several networks, one dump per network, made once and kept in the store."""
    dumps = [predict(network, images, context, EMBEDDINGS) for network in networks]
    for network, dump in zip(networks, dumps, strict=True):
        if dump.embeddings is None:
            raise BadInput(f"{network.name} gives no embeddings: it has no last layer whose input could be taken.")
    return dumps


def embed_crops(network: Network, images: ImageSet, count: int, context: Context) -> list[Predictions]:
    """The embeddings of random crops of the same images, one dump per crop: views for scores that know the gallery.

    A crop keeps 0.7 to 0.9 of an image's sides; smaller ones (0.5 to 0.75) do as well on the validation classes of CUB.
    """
    if count < 0:
        raise BadInput(f"--crops is a number of crops from 0 on, not {count}.")
    sets = [replace(images, change=Crop(0.7, 0.9, seed)) for seed in range(count)]
    return [embed([network], each, context)[0] for each in sets]


def load_predictions(step: Step, store: Store) -> Predictions:
    """The dump of a finished step, byte for byte as it was written."""
    return Predictions.load(step.verified(store) / DUMP)


def with_view_of(images: ImageSet, network: Network, root: str | Path | None = None) -> ImageSet:
    """The image set with the network's view, unless its images have that shape already."""
    if images.view is not None:
        return images
    if network.trial is not None:
        dataset = replace(images, readable=False).load(root).dataset
        own = dataset.train.backing if len(dataset.train) else dataset.test.backing
        encoded = own.encoded if isinstance(own, Pixels) else own
        crop = encoded.crop if isinstance(encoded, Encoded) else network.view.crop
        if (
            network.view.shape == dataset.shape
            and crop == network.view.crop
            and dataset.channels == network.view.channels
        ):
            return images
    return replace(images, view=network.view)


def _predict(
    step_folder: StepFolder,
    context: Context,
    network: Network,
    images: ImageSet,
    output_spec: OutputSpec,
    batch: int | None,
    compile: bool = False,
    rows: slice | None = None,
) -> Files:
    trial = network.trial
    here = runtime_for(context.device).at(output_spec.precision or (trial.training.precision if trial else "auto"))
    shown = _numbered(images.load(context.root, context.store), network, output_spec, context.root)
    if rows is not None:
        shown = shown.take(np.arange(rows.start, rows.stop))
    module, network = _last_built(network, context.store.root.absolute(), here, context.root, output_spec.dropout)
    if compile:
        (module.features if isinstance(module, Method) else module).compile()
    dropout = isinstance(module, Classifier) and module.repeat(output_spec.mc_samples)
    own = network.identity["model"] if trial is None else network.arch
    seed = seed_for("predict", own, images)
    started = time.monotonic()
    make = _scratch(step_folder.path / WORK) if output_spec.dtype == "float16" else _float32
    with here.threads(_threads(network)):
        dump = predict_images(
            module, network, shown, context.store, here, output_spec, seed, make, batch, rows.start if rows else 0
        )
    seconds = time.monotonic() - started
    save(dump, step_folder.path / DUMP, durable=False)  # the store flushes what a step leaves
    facts = {
        "model": network.name,
        "data": images.data,
        "outside": images.split == "outside",
        "compared": output_spec.compared or None,
        "rows": len(shown),
        "classes": network.classes,
        "params": count_parameters(module),
        "input_size": max(network.view.shape),
        "embedding_size": module.width if isinstance(module, Classifier) else None,
        "dropout": dropout,
        "weights": network.file.name if network.file else None,
        "weights_path": str(network.file.absolute()) if network.file else None,
        "class_names": None if images.split == "outside" else _class_names(network, shown),
        "view": str(network.view),
        "mean": network.mean,
        "std": network.std,
        "accuracy": _accuracy(dump),
        "images_per_second": round(len(shown) / max(seconds, 1e-9), 1),
    }
    return _facts_file(facts)


def _facts_file(facts: Mapping[str, Any]) -> Files:
    return {FACTS: json.dumps({name: fact for name, fact in facts.items() if fact is not None}).encode()}


def _join(step_folder: StepFolder, context: Context, shards: Sequence[Step]) -> Files:
    """Writes the dumps of all ranges as one, field by field and block by block, so that memory does not grow."""
    folders = [shard.verified_or_rebuilt(context) for shard in shards]
    dump = concatenate([Predictions.load(folder / DUMP) for folder in folders])
    save(dump, step_folder.path / DUMP, durable=False)
    facts = [read_json(folder / FACTS) for folder in folders]
    seconds = sum(own["rows"] / max(own["images_per_second"], 1e-9) for own in facts)
    whole = {"rows": len(dump), "accuracy": _accuracy(dump), "images_per_second": round(len(dump) / seconds, 1)}
    return _facts_file(facts[0] | whole)


@lru_cache(maxsize=1)
def _last_built(network: Network, store: Path, here: Runtime, root: str | None, drop: float | None) -> Any:
    """What `build` gives, kept until another network is wanted: a study shows one network many sets."""
    return build(network, Store(store), here, root, drop)


def _threads(network: Network) -> int | None:
    """Of torch on a CPU: those that a network was trained with. Pretrained ones, which are large, use all there are."""
    return None if network.trial is None else network.trial.training.threads


def _numbered(shown: LoadedImages, network: Network, output_spec: OutputSpec, root: str | None) -> LoadedImages:
    """The images with labels in the numbering of the network's answers.

    Where only features are kept, or the set has other classes (a downstream set), labels stay the set's own; votes
    for classes that the network does not have are left out.
    """
    trial, images = network.trial, shown.set
    if images.split in ("outside", "out") or not shown.labelled:
        return (
            replace(shown, images=replace(shown.images, annotations=None)) if "logits" in output_spec.fields else shown
        )
    if trial is not None and images.classes == trial.classes and same_images(trial.data, images.data, root):
        return shown
    if "logits" not in output_spec.fields:
        return replace(shown, images=replace(shown.images, in_distribution=None))
    try:
        return numbered(shown, network.classes, network.class_names, network.class_map)
    except BadInput:
        if trial is None:
            raise
        return replace(
            shown, images=replace(shown.images, in_distribution=np.zeros(len(shown), bool), annotations=None)
        )


def _class_names(network: Network, shown: LoadedImages) -> list[str] | None:
    """What a set calls the classes of a network from elsewhere that has no names of its own; None where it does not
    have all of them."""
    if network.trial is not None or not shown.labelled or output_class_names(network) is not None:
        return None
    return names_of_labels(shown, network.classes, network.class_names, network.class_map)


def _accuracy(dump: Predictions) -> float | None:
    """Share of right answers, of dumps whose labels are the network's own classes."""
    if (
        dump.logits is None
        or dump.labels is None
        or (dump.in_distribution is not None and not dump.in_distribution.all())
    ):
        return None
    right = 0
    for rows in blocks(len(dump), max(1, (1 << 24) // dump.logits[:1].nbytes)):
        z = torch.from_numpy(np.asarray(dump.logits[rows], np.float32))
        answer = z[:, 0].argmax(-1) if z.shape[1] == 1 else z.softmax(-1).mean(1).argmax(-1)
        right += int((answer.numpy() == dump.labels[rows]).sum())
    return right / len(dump)


# ---- many networks


@dataclass
class ManyPredictions:
    """What came of many networks on many image sets: finished steps, in the order of the pairs, and what failed."""

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
    """Every network on its images; one that fails does not stop the others.

    Networks of one view follow each other, so that the pixels they share can be forgotten after the last of them.

    launcher  who predicts (default: this process)
    weights   a file, or a folder of files named by networks (default: $NESCIO_WEIGHTS, then the hubs)
    shards    ranges of rows of each prediction, each a task; None: as many as keep every worker busy
    forget    removes decoded pixels when they are no longer needed
    """
    if batch is not None and batch < 1:
        raise BadInput(f"The batch size must be at least 1, got {batch}.")
    launcher = launcher or make_launcher("local", 0)
    workers = max(1, launcher.workers // max(1, len(pairs)))
    made, before, known = ManyPredictions(), 0, 0
    finished: dict[int, Step] = {}
    groups: dict[Any, list[_Pair]] = {}
    for number, (network, images) in enumerate(pairs):
        ranges = _ranges(network, images, context, output_spec, shards, workers, batch)
        pair = _Pair(number, network, images, context, output_spec, weights, batch, ranges)
        groups.setdefault((images, network.view), []).append(pair)
    total = sum(1 + len(pair.ranges) for group in groups.values() for pair in group)

    def count(done: int, failed: int, _: int, answer: tuple[int, Step | None, str | None] | None) -> None:
        nonlocal known
        if answer is not None:
            number, step, sentence = answer
            if step is not None:
                finished[number] = step
            known += sentence is None
            if sentence and say:
                say(sentence)
        if watch and (done or not before):
            watch(before + done, len(made.failures) + failed, total, known)

    for group in groups.values() if forget else [[pair for pairs_alike in groups.values() for pair in pairs_alike]]:
        parts = [(pair, task) for pair in group for task in pair.shard_tasks()]
        failures = {
            failure.name: failure for failure in (launcher.run([task for _, task in parts], count) if parts else ())
        }
        lost = {
            pair.number: replace(failures[task.name], name=pair.title) for pair, task in parts if task.name in failures
        }
        made.failures += lost.values()
        before += len(parts) + len(lost)
        tasks = [pair.task() for pair in group if pair.number not in lost]
        made.failures += launcher.run(tasks, count)
        before += len(tasks)
        if forget and any(pair.number in finished for pair in group):
            group[0].forget_pixels()
    made.steps = [finished[number] for number in sorted(finished)]
    return made


def _ranges(
    network: Network,
    images: ImageSet,
    context: Context,
    output_spec: OutputSpec,
    shards: int | None,
    workers: int,
    batch: int | None,
) -> tuple[slice, ...]:
    """The ranges of a prediction that is cut; none of one that is not, or that will be refused."""
    try:
        ranges = row_ranges(network, images, context, output_spec, shards=shards, workers=workers, batch=batch)
    except BadInput:
        if shards is not None and shards < 1:
            raise
        return ()  # the set does not fit the network: its task says so, and the others go on
    return tuple(ranges) if len(ranges) > 1 else ()


@dataclass(frozen=True)
class _Pair:
    """A network and the images that it predicts, for a worker."""

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
                (self, place),
                folder=self._folder(SHARD, rows.start, rows.stop),
            )
            for place, rows in enumerate(self.ranges)
        ]

    def _folder(self, stage: str, *rows: int) -> Path:
        """A folder of its own: that of its step is known once its weights are."""
        seen = [self.network.view, self.network.mean, self.network.std]
        about = [
            self.number,
            self.network.name,
            *seen,
            self.images,
            self.output_spec,
            str(self.weights),
            self.batch,
            *rows,
        ]
        return self.context.store.path(stage, key_of(stage, about))

    def step(self) -> Step:
        network = with_weights(self.network, self.weights)
        how = {"root": self.context.root, "output_spec": self.output_spec, "batch": self.batch, "ranges": self.ranges}
        return predict_step(network, self.images, **how)  # type: ignore[arg-type]

    def forget_pixels(self) -> None:
        """Removes the decoded images, which networks of the same view share."""
        context = self.context
        shown = _numbered(self.images.load(context.root, context.store), self.network, self.output_spec, context.root)
        for rows in self.ranges or [slice(0, len(shown))]:
            part = shown.take(np.arange(rows.start, rows.stop))
            views.forget(part, self.network.view, self.context.store)


def _predict_pair(pair: _Pair) -> tuple[int, Step, str | None]:
    """What a worker does with one pair: its number, its finished step, and what to say if that was not known."""
    step, store = pair.step(), pair.context.store
    known = step.finished(store)
    _run(step, pair.context)
    return pair.number, step, None if known else _sentence(pair.network, step, store)


def _predict_range(pair: _Pair, place: int) -> tuple[int, None, str | None]:
    """The same with one range of its rows, unless all of them are predicted."""
    step, store = pair.step(), pair.context.store
    known = step.finished(store) or step.shards[place].finished(store)
    if not known:
        _run(step.shards[place], pair.context)
    return pair.number, None, None if known else ""


def _run(step: Step, context: Context) -> None:
    try:
        step.run(context)
    except views.UnreadableImages as error:
        raise BadInput(f"{error} With --skip-damaged such images are left out.") from None


def _sentence(network: Network, step: Step, store: Store) -> str:
    facts = read_json(step.folder(store) / FACTS)
    right = f", top-1 {facts['accuracy']:.4f}" if "accuracy" in facts else ""
    pace = f"{facts['images_per_second']:,.0f} images/s"
    return f"{network.name}: {facts['rows']:,} images of {dataset_label(facts['data'])}{right}, {pace}."


# ---- pixels


def input_batches(
    network: Network, shown: LoadedImages, store: Store | None, here: Runtime, batch: int
) -> Iterator[tuple[Tensor, int]]:
    """Batches as the network wants them, (b, ch, h, w), and how many images of each count."""
    images, change = shown.images, shown.set.change
    normal = Normal(network.mean, network.std, here)
    if shown.set.view is not None:
        assert store is not None, "pixels under a view are kept in a store"
        pixels = views.cache(shown, shown.set.view, store)
        if change is None:
            for block, count in feed(pixels, batch, here.device):
                yield normal(block), count
            return
        cached = np.load(pixels, mmap_mode="r")
    elif change is None and not isinstance(images.backing, Joined):
        for x, _, _ in Batches(images, network, here.device, batch=batch, channels_last=here.channels_last):
            yield x, len(x)
        return

    def pixels_of(rows: slice) -> Tensor:
        array = np.array(cached[rows]) if shown.set.view is not None else images.backing.read(images.rows[rows])
        raw = torch.from_numpy(np.ascontiguousarray(array)).to(here.device)
        if change is None:
            return raw
        changed = change.apply(raw, torch.from_numpy(images.index[rows]).to(here.device))
        if change.stored and shown.set.view is not None:
            each = [views.pixels_of(image, shown.set.view) for image in changed.cpu().numpy()]
            changed = torch.from_numpy(np.stack(each)).to(here.device)
        return changed

    for raw in _changed(shown, here.device, batch, pixels_of) if change else map(pixels_of, blocks(len(shown), batch)):
        yield normal(raw), len(raw)


ROOM = 256 << 20  # bytes of changed pixels that a process keeps on a CPU; on a GPU …
SHARE = 16  # … one in so many of its bytes
_kept: dict[Any, Tensor] = {}


def _changed(
    shown: LoadedImages, device: torch.device, batch: int, make: Callable[[slice], Tensor]
) -> Iterator[Tensor]:
    """Batches of changed images (b, h, w, ch), computed once a process and not once a network, while there is room.

    What has no room is computed anew: to forget the oldest would keep nothing for the next network's round of all sets.
    """
    key = shown.set, shown.revision, shown.rows, device
    if key in _kept:
        yield from _kept[key].split(batch)
        return
    if any(revision != shown.revision for _, revision, *_ in _kept):  # another study
        _kept.clear()
    room = torch.cuda.mem_get_info(device)[1] // SHARE if device.type == "cuda" else ROOM
    room -= sum(pixels.nbytes for pixels in _kept.values())
    parts: list[Tensor] = []
    for rows in blocks(len(shown), batch):
        raw = make(rows)
        if raw[0].nbytes * len(shown) <= room:
            parts.append(raw)
        yield raw
    if parts:
        _kept[key] = torch.cat(parts)


def default_batch_size(network: Network, here: Runtime, shape: tuple[int, int] | None = None) -> int:
    """Images of a batch that fit into memory and keep the device busy.

    shape  of the images, where it is not that of the network's view
    """
    shape = shape or network.view.shape
    if network.trial is not None and max(shape) <= 64:
        return BATCH.get(here.device.type, BATCH["cuda"])
    return max(1, PIXELS.get(here.device.type, PIXELS["cuda"]) // math.prod(shape))


# ---- outputs


def predict_images(
    module: Any,
    network: Network,
    shown: LoadedImages,
    store: Store | None,
    here: Runtime,
    output_spec: OutputSpec = OutputSpec(),
    seed: int = 0,
    make: Callable[[str, tuple[int, ...]], Any] | None = None,
    batch: int | None = None,
    first: int = 0,
) -> Predictions:
    """What a module says about every image; a batch that does not fit into the device's memory is halved.

    first  the place of the first image among all, where these are a range of them
    """
    batch = batch or default_batch_size(network, here)
    while True:
        try:
            return _outputs(module, network, shown, store, here, output_spec, seed, make or _float32, first, batch)
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
            batch //= 2
        _make_room()


def _make_room() -> None:
    """Frees what a device keeps, once the batch that did not fit is forgotten."""
    _kept.clear()
    torch.cuda.empty_cache()


def _outputs(
    module: Any,
    network: Network,
    shown: LoadedImages,
    store: Store | None,
    here: Runtime,
    output_spec: OutputSpec,
    seed: int,
    make: Callable[[str, tuple[int, ...]], Any],
    first: int,
    batch: int,
) -> Predictions:
    host, limit = OutputBuffer(len(shown), make), LARGEST if output_spec.dtype == "float16" else math.inf
    finite = torch.zeros((), dtype=torch.int64, device=here.device)
    done = 0
    # one autocast around all batches: it then casts the weights once
    with evaluating(module), torch.inference_mode(), here.autocast():
        batches = input_batches(network, shown, store, here, batch)
        for x, count in track(batches, network.name, len(shown), images=itemgetter(1)):
            seed_everything(seed_for(seed, first + done))  # draws do not depend on what was shown before
            output = module(x)
            if isinstance(module, Method):
                check_output(module, output, len(x))
            tensors = {name: tensor[:count] for name, tensor in _tensors(output, output_spec).items()}
            if "logits" in tensors:
                finite += torch.isfinite(tensors["logits"]).flatten(1).all(1).sum()
            scores = {name: tensor for name, tensor in tensors.items() if name.startswith(SCORES)}
            host.take(scores | {name: t.clamp(-limit, limit) for name, t in tensors.items() if name not in scores})
            done += count
        arrays = host.arrays()
        if "logits" in arrays and int(finite) < done:
            raise BadInput(
                f"{network.name} gives numbers that are not finite for {done - int(finite)} of {done} images."
            )
    if done != len(shown):
        raise BadInput(f"The pixels of {shown.name} hold {done} images, and {len(shown)} were expected.")
    return _dump(shown, arrays, module.normalized)


def _tensors(output: Output, output_spec: OutputSpec) -> dict[str, Tensor]:
    """What a dump keeps of an output, by name; the first score is also the native one."""
    found: dict[str, Tensor] = {}
    if "logits" in output_spec.fields and output.logits is not None:
        found["logits"] = output.logits
        found |= {f"variants/{name}": tensor for name, tensor in output.variants.items()}
    if "embeddings" in output_spec.fields and output.embeddings is not None:
        found["embeddings"] = output.embeddings.flatten(1)
    if "scores" in output_spec.fields and output.scores:
        native = next(iter(output.scores.values()))
        found |= {f"{SCORES}{name}": tensor for name, tensor in ({"native": native} | output.scores).items()}
    return found


def _dump(shown: LoadedImages, arrays: Mapping[str, Any], normalized: bool) -> Predictions:
    images = shown.images

    def below(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

    return Predictions(
        index=images.index,
        labels=images.labels if shown.labelled else None,
        in_distribution=images.in_distribution if shown.labelled else None,
        logits=arrays.get("logits"),
        variants=below("variants/"),
        embeddings=arrays.get("embeddings"),
        scores=below(SCORES),
        annotations=images.annotations,
        groups=dict(images.groups),
        normalized=normalized and "logits" in arrays,
    )


def _float32(name: str, shape: tuple[int, ...]) -> Any:
    return np.empty(shape, np.float32)


def _scratch(folder: Path) -> Callable[[str, tuple[int, ...]], Any]:
    """Arrays in files of a folder, so that memory does not grow with the images; float16, but for scores."""

    def make(name: str, shape: tuple[int, ...]) -> Any:
        dtype = np.float32 if name.startswith(SCORES) else np.float16  # log-densities lie beyond float16
        return np.lib.format.open_memmap(folder / name.replace("/", "-"), "w+", dtype, shape)

    return make


class OutputBuffer:
    """Gathers batches of tensors as arrays. Copies from a GPU run behind its work, so that it never waits.

    `make(name, shape)` gives the array for all rows: in memory and float32, or a file and float16, say.
    """

    def __init__(self, rows: int, make: Callable[[str, tuple[int, ...]], Any] = _float32) -> None:
        self.rows, self.make, self.done = rows, make, 0
        self.gathered: dict[str, Any] = {}
        self.behind: deque[tuple[dict[str, Tensor], Any]] = deque()

    def take(self, tensors: Mapping[str, Tensor | None]) -> None:
        copies, event = {}, None
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            if name not in self.gathered:
                self.gathered[name] = self.make(name, (self.rows, *tensor.shape[1:]))
            tensor = tensor.to(torch.float16 if self.gathered[name].dtype == np.float16 else torch.float32)
            if tensor.is_cuda:
                room = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                copies[name] = room.copy_(tensor, non_blocking=True)
                event = torch.cuda.Event()
                event.record()
            else:
                copies[name] = tensor
        self.behind.append((copies, event))
        while len(self.behind) > 2:
            self._land()

    def _land(self) -> None:
        copies, event = self.behind.popleft()
        if event is not None:
            event.synchronize()
        count = 0
        for name, tensor in copies.items():
            count = len(tensor)
            self.gathered[name][self.done : self.done + count] = tensor.numpy()
        self.done += count

    def arrays(self) -> dict[str, Any]:
        while self.behind:
            self._land()
        return self.gathered


# ---- probes: what only the network itself can tell of an average of calibrated members


def probe_step(
    trials: Sequence[Trial],
    temperatures: Sequence[float],
    images: ImageSet,
    root: str | Path | None = None,
    *,
    exact: bool = False,
) -> Step:
    """The step that takes Jacobian, test-time augmentation and native score of an average of calibrated members.

    exact  the whole Jacobian, one backward pass per class, where it would be estimated above 16 classes
    """
    if (images.data, images.view, images.change) != (trials[0].data, None, None):
        raise BadInput(f"Probes are taken of images of {trials[0].data} as they are: leave out view and change.")
    images = images.named(root)
    rounded = [float(f"{temperature:.6g}") for temperature in temperatures]
    config = {"images": images, "temperatures": rounded, "probes": ["jacobian", "tta", "native"], "exact": exact}
    steps = tuple(train_step(trial, root) for trial in trials)
    make = partial(_probe, trials=tuple(trials), temperatures=rounded, images=images, exact=exact)
    return Step(f"probes of {steps[0].title}", STAGE, config, make, (*steps, images.load_revision(root)), VERSION)


def probe_facts(step: Step, store: Store) -> dict[str, Any]:
    """How the probes of a finished step were taken: {"jacobian": "exact"}, say."""
    return read_json(step.folder(store) / PROBES)


def _probe(
    step_folder: StepFolder,
    context: Context,
    trials: Sequence[Trial],
    temperatures: Sequence[float],
    images: ImageSet,
    exact: bool,
) -> Files:
    here = runtime_for(context.device).at(trials[0].training.precision)
    steps = [train_step(trial, context.root) for trial in trials]
    members = [
        load_method(step.key, trial, context.store, here, context.root)
        for step, trial in zip(steps, trials, strict=True)
    ]
    if mute := [member.name for member in members if not member.classifies]:
        raise BadInput(f"{mute[0]} gives features and no answers, so it has no Jacobian and no test-time augmentation.")
    for member, temperature in zip(members, temperatures, strict=True):
        member.temperature = temperature
    shown = images.load(context.root, context.store)
    seed = seed_for(*(step.key for step in steps), images)
    with here.threads(trials[0].training.threads):
        dump = probe_images(members, shown, here, trials[0].training.augment, seed, exact)
    dump.save(step_folder.path / DUMP)
    facts = {"jacobian": probes.how_jacobian(members[0].spec.classes, exact)}
    return {PROBES: json.dumps(facts).encode()}


def probe_images(
    members: Sequence[Method], shown: LoadedImages, here: Runtime, augment: str, seed: int, exact: bool = False
) -> Predictions:
    """Scores `jacobian` and `native` and the variant `tta` of the average of the members, without logits."""
    seed_everything(seed)
    generator = torch.Generator(here.device).manual_seed(seed % 2**63)
    dataset, host = shown.dataset, OutputBuffer(len(shown))
    augment = augment if augment != "none" else "shift"

    def batches(**options: Any) -> Batches:
        rows = min(128, max(1, PROBE_PIXELS // (dataset.shape[0] * dataset.shape[1])))
        channels_last = here.channels_last
        return Batches(shown.images, dataset, here.device, batch=rows, channels_last=channels_last, **options)

    for member in members:
        member.eval()
    copies = batches(augment=augment, views=VIEWS, seed=seed)
    for (x, _, _), (augmented, _, _) in zip(batches(), copies, strict=True):
        # float32: the gradients of confident softmaxes vanish in bf16
        found = {"scores/jacobian": probes.jacobian_norm(members, x.float(), generator, exact=exact)}
        with torch.inference_mode(), here.autocast():
            found["variants/tta"] = probes.augmented_log_probs(members, list(augmented))
            if len(members) == 1:
                scores = Output(scores=members[0](x).scores)
                found |= _tensors(scores, OutputSpec(("scores",)))
        host.take(found)
    return _dump(shown, host.arrays(), False)


# ---- dense prediction: label maps in, counts of pixels out


def count_step(network: Network | Sequence[Network], images: ImageSet, *, root: str | Path | None = None) -> Step:
    """The step that counts the pixels of a dense network's answers, or of an average of several; no pixel is dumped."""
    members = (network,) if isinstance(network, Network) else tuple(network)
    if not members:
        raise BadInput("An average needs at least one network.")
    for member in members:
        if member.trial is not None and member.trial.task != "segmentation":
            raise BadInput(f"{member.name} gives an answer for every image and none for a pixel: use predict_step.")
    if images.view is not None:
        raise BadInput("A label map belongs to the whole image: pixels are counted without a view.")
    if images.change is not None and images.change.moves:
        raise BadInput(
            f"The change {images.change.condition} moves what is seen, and label maps would stay where they were: "
            "choose a change that leaves every pixel in its place, such as a corruption."
        )
    images = images.named(root)
    make = partial(_count, members=members, images=images)
    title = f"{members[0].name}{f' and {len(members) - 1} more' if members[1:] else ''} on {images.data}"
    identity = members[0].identity if len(members) == 1 else {"members": [member.identity for member in members]}
    parents = (*(member.parent(root) for member in members), images.load_revision(root))
    return Step(title, COUNT, {"images": images, **identity}, make, parents, COUNT_VERSION)


def load_counts(step: Step, store: Store) -> PixelCounts:
    """The counts of a finished step."""
    return PixelCounts.load(step.verified(store) / COUNTS)


def _count(step_folder: StepFolder, context: Context, members: Sequence[Network], images: ImageSet) -> Files:
    first = members[0]
    here = runtime_for(context.device).at(first.trial.training.precision if first.trial else "auto")
    built = [build(member, context.store, here, context.root) for member in members]
    shown = images.load(context.root, context.store)
    modules, seed = [module for module, _ in built], seed_for("count", first.arch, images)
    with here.threads(_threads(first)):
        return {COUNTS: count_pixels(modules, built[0][1], shown, context.store, here, seed).save()}


def count_pixels(
    modules: Sequence[Any], network: Network, shown: LoadedImages, store: Store | None, here: Runtime, seed: int = 0
) -> PixelCounts:
    """Counts right and wrong pixels by score, and a confusion matrix, image by image in bounded memory.

    A module gives logits (b, s, c, h′, w′) and scores (b, h′, w′), of any resolution. Several modules are averaged; all
    see the images as `network` does. What is counted: see `pixel_predictions`.
    """
    maps = pixel_maps(modules, network, shown, store, here, seed)
    counts = reduce(add, (PixelCounts.of(*each, network.classes, shown.dataset.void) for each in maps))
    if wrong := counts.infinite.get("entropy"):  # of the probabilities: classes would be guesses
        raise BadInput(f"{network.name} gives numbers that are not finite for {wrong} of {counts.n} pixels.")
    return counts


def pixel_maps(
    modules: Sequence[Any], network: Network, shown: LoadedImages, store: Store | None, here: Runtime, seed: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]:
    """Label maps, classes and scores of every pixel, batch by batch, as `count_pixels` counts them; a batch that does
    not fit into the device's memory is halved."""
    seed_everything(seed)
    done = 0
    batch = default_batch_size(network, here, shown.dataset.shape)  # trained networks take images of any size
    batch = max(1, batch // 4)  # pixel-wise logits take as much room as the features
    while True:
        left = shown.take(np.arange(done, len(shown)))
        try:
            for maps in _pixel_maps(modules, network, left, store, here, batch):
                yield maps
                done += len(maps[0])
            return
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
            batch //= 2
        _make_room()


def _pixel_maps(
    modules: Sequence[Any], network: Network, shown: LoadedImages, store: Store | None, here: Runtime, batch: int
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]:
    done = 0
    with ExitStack() as modes, torch.inference_mode(), here.autocast():
        for module in modules:
            modes.enter_context(evaluating(module))
        batches = input_batches(network, shown, store, here, batch)
        for x, count in track(batches, network.name, len(shown), images=itemgetter(1)):
            truth = shown.images.label_maps(slice(done, done + count))
            called, scores = pixel_predictions([module(x) for module in modules], truth.shape[1:])
            arrays = {name: score[:count].float().cpu().numpy() for name, score in scores.items()}
            yield truth, called[:count].cpu().numpy(), arrays
            done += count


def pixel_predictions(outputs: Sequence[Output], shape: tuple[int, int]) -> tuple[Tensor, dict[str, Tensor]]:
    """Classes (b, h, w) of the mean softmax of all members' draws, and scores (b, h, w), at the labels' resolution.

    Logits are interpolated bilinearly, scores bicubically (Postels et al. 2022, §4.2). Scores: "entropy" of the mean
    softmax; where there are several members, or draws of one, their "mutual_information", H(mean p) − mean H(p); and of
    a single network its own.
    """
    means = [_mean_softmax(output, shape) for output in outputs]
    probs = torch.stack([mean for mean, _ in means]).mean(0)
    own = outputs[0].scores if len(outputs) == 1 else {}
    scores = {name: _resized(score[:, None], shape, "bicubic")[:, 0] for name, score in own.items()}
    scores["entropy"] = entropy(probs, 1)  # of the probabilities that are counted, though a method may have its own
    apart = [entropy(mean, 1) for mean, _ in means] if len(means) > 1 else [means[0][1]]
    if len(means) > 1 or _draws(outputs[0]) > 1:
        scores["mutual_information"] = (scores["entropy"] - torch.stack(apart).mean(0)).clamp_min(0)
    return probs.argmax(1), scores


def _draws(output: Output) -> int:
    if output.logits is None or output.logits.dim() != 5:
        raise BadInput("A dense network gives logits (b, s, c, h, w); this one does not.")
    return output.logits.shape[1]


def _mean_softmax(output: Output, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """(b, c, h, w) mean softmax of the draws and (b, h, w) mean of their entropies, one draw at a time to save room."""
    draws = _draws(output)
    assert output.logits is not None
    probs = of_draws = torch.zeros(())
    for logits in output.logits.unbind(1):
        p = _resized(logits, shape, "bilinear").softmax(1)
        probs, of_draws = probs.to(p) + p / draws, of_draws.to(p) + entropy(p, 1) / draws
    return probs, of_draws


def _resized(maps: Tensor, shape: tuple[int, int], mode: str) -> Tensor:
    """Maps (b, c, h′, w′) at another resolution, in float32."""
    if maps.shape[2:] == shape:
        return maps.float()
    return torch.nn.functional.interpolate(maps.float(), shape, mode=mode, align_corners=False)
