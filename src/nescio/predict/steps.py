"""Steps that predict: one network on one image set, or a range of its rows."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from nescio.arrays.parallel import blocks
from nescio.datasets.changes import Crop
from nescio.datasets.class_labels import align_labels, label_names
from nescio.datasets.image_set import ImageSet, LoadedImages
from nescio.datasets.names import same_images
from nescio.errors import BadInput
from nescio.files import read_json
from nescio.identity import seed_for
from nescio.methods.base import Method
from nescio.networks.forward import Classifier
from nescio.networks.models import build, count_parameters
from nescio.networks.network import Network, output_class_names
from nescio.predict.inputs import default_batch_size, with_view_of
from nescio.predict.outputs import OutputSpec, Predictor, arrays_on_disk, float32_array, predict_images
from nescio.predictions import Predictions
from nescio.predictions.files import save
from nescio.predictions.model_predictions import FACTS, PREDICTIONS, STAGE
from nescio.predictions.shards import concatenate
from nescio.runtime import Runtime, runtime_for
from nescio.work.locks import WORK
from nescio.work.step_folder import StepFolder
from nescio.work.steps import SHARD_OF, Context, Files, Step
from nescio.work.store import Store
from nescio.work.versions import PREDICT

SHARD = "shard"
SHARD_MIN_ROWS = 4096  # for automatic shards: starting a worker and building a network takes seconds
# float32 embeddings: bf16 has too few digits to order neighbours
EMBEDDINGS = OutputSpec(("embeddings",), precision="float32")


def predict_step(
    network: Network,
    images: ImageSet,
    *,
    root: str | Path | None = None,
    output_spec: OutputSpec = OutputSpec(),
    batch: int | None = None,
    compile: bool = False,
    ranges: Sequence[slice] = (),
    title: str = "",
    parent: Step | str | None = None,
) -> Step:
    """The step that predicts images; a network that is not trained yet is trained first.

    compile  whether to compile the network, which saves time on large sets only
    ranges   row ranges from `row_ranges`: each is predicted by a step of its own, and this step joins them; key and
             predictions are the same without them
    title    shown in progress (default: network and data)
    parent   `network.parent(root)`, if it is shared by several steps
    """
    if network.trial is not None and network.trial.task == "segmentation":
        raise BadInput(f"{network.name} predicts a class for every pixel: count its pixels with count_step instead.")
    images = with_view_of(images.with_content_name(root), network, root)
    config = {"images": images, "keeping": output_spec, **network.identity}
    parent = parent or network.parent(root)
    if not title:
        title = parent.title if isinstance(parent, Step) else f"{network.name} on {images.data}"
    parents = (parent, images.load_revision(root))
    make = partial(_predict, network=network, images=images, output_spec=output_spec, batch=batch, compile=compile)
    step = Step(title, STAGE, config, make, parents, PREDICT)
    if len(ranges) < 2:
        return step
    shards = tuple(_shard(step, partial(make, rows=rows), rows) for rows in ranges)
    return replace(step, make=partial(_join, shards=shards), shards=shards)


def _shard(step: Step, make: Callable[[StepFolder, Context], Files], rows: slice) -> Step:
    """The step for a range of rows of another step."""
    config = {SHARD_OF: step.key, "rows": [rows.start, rows.stop]}
    return Step(f"{step.title}, {describe_range(rows)}", SHARD, config, make, step.parents, PREDICT)


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
    """Ranges of the rows to predict, of whole batches: on a CPU, results are bit for bit the same as without ranges.

    shards   number of ranges, or fewer if there are fewer batches (default: one per worker, if a range has at least
             SHARD_MIN_ROWS rows)
    """
    if shards is not None and shards < 1:
        raise BadInput(f"shards must be at least 1, got {shards}.")
    if (shards or workers) <= 1:
        return []
    rows = len(with_network_labels(images.load(context.root, context.store), network, output_spec, context.root))
    batch = batch or default_batch_size(network, runtime_for(context.device))
    return even_ranges(rows, shards or min(workers, rows // SHARD_MIN_ROWS), batch)


def even_ranges(rows: int, count: int, batch: int) -> list[slice]:
    """At most `count` ranges of whole batches; only the last batch may be smaller."""
    batches = math.ceil(rows / batch)
    count = max(1, min(count, batches))
    bounds = [min(rows, batches * number // count * batch) for number in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def stored_predictions(
    network: Network, images: ImageSet, context: Context, output_spec: OutputSpec = OutputSpec()
) -> Predictions:
    """Predictions of a network for images, computed once and kept in the store."""
    step = predict_step(network, images, root=context.root, output_spec=output_spec)
    step.run(context, wait=True)
    return load_predictions(step, context.store)


def embed(networks: Sequence[Network], images: ImageSet, context: Context) -> list[Predictions]:
    """Embeddings of the same images, one Predictions per network, computed once and kept in the store."""
    embeddings = [stored_predictions(network, images, context, EMBEDDINGS) for network in networks]
    for network, predictions in zip(networks, embeddings, strict=True):
        if predictions.embeddings is None:
            raise BadInput(f"{network.name} has no embeddings: no last layer was found whose input could be taken.")
    return embeddings


def embed_crops(network: Network, images: ImageSet, count: int, context: Context) -> list[Predictions]:
    """Embeddings of `count` random crops of the same images, one Predictions per crop.

    A crop keeps 0.7 to 0.9 of an image's sides; smaller ones (0.5 to 0.75) do as well on the validation classes of CUB.
    """
    if count < 0:
        raise BadInput(f"The number of crops must be at least 0, got {count}.")
    crops = [replace(images, change=Crop(0.7, 0.9, seed)) for seed in range(count)]
    return [embed([network], cropped, context)[0] for cropped in crops]


def load_predictions(step: Step, store: Store) -> Predictions:
    """The predictions of a finished step, after their checksums are verified."""
    return Predictions.load(step.verified(store) / PREDICTIONS)


# ---- computing


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
    precision = output_spec.precision or (trial.training.precision if trial else "auto")
    runtime = runtime_for(context.device).with_precision(precision)
    loaded = with_network_labels(images.load(context.root, context.store), network, output_spec, context.root)
    if rows is not None:
        loaded = loaded.take(np.arange(rows.start, rows.stop))
    module, network = _last_built(network, context.store.root.absolute(), runtime, context.root, output_spec.dropout)
    if compile:
        (module.features if isinstance(module, Method) else module).compile()
    dropout = isinstance(module, Classifier) and module.repeat(output_spec.mc_samples)
    seed = seed_for("predict", network.identity["model"] if trial is None else network.arch, images)
    started = time.monotonic()
    make_array = arrays_on_disk(step_folder.path / WORK) if output_spec.dtype == "float16" else float32_array
    first = rows.start if rows else 0
    with runtime.threads(torch_threads(network)):
        predictions = predict_images(
            module, network, loaded, context.store, runtime, output_spec, seed, make_array, batch, first
        )
    seconds = time.monotonic() - started
    save(predictions, step_folder.path / PREDICTIONS, durable=False)  # the store flushes the files of a step
    facts = {
        "model": network.name,
        "data": images.data,
        "outside": images.split == "all_ood",
        "compared": output_spec.compared or None,
        "rows": len(loaded),
        "classes": network.classes,
        "params": count_parameters(module),
        "input_size": max(network.view.shape),
        "embedding_size": module.width if isinstance(module, Classifier) else None,
        "dropout": dropout,
        "weights": network.file.name if network.file else None,
        "weights_path": str(network.file.absolute()) if network.file else None,
        "class_names": None if images.split == "all_ood" else _class_names(network, loaded),
        "view": str(network.view),
        "mean": network.mean,
        "std": network.std,
        "accuracy": _accuracy(predictions),
        "images_per_second": round(len(loaded) / max(seconds, 1e-9), 1),
    }
    return _facts_file(facts)


def _facts_file(facts: Mapping[str, object]) -> Files:
    return {FACTS: json.dumps({name: fact for name, fact in facts.items() if fact is not None}).encode()}


def _join(step_folder: StepFolder, context: Context, shards: Sequence[Step]) -> Files:
    """Join the predictions of all ranges, field by field and block by block, in bounded memory."""
    folders = [shard.verified_or_rebuilt(context) for shard in shards]
    whole = concatenate([Predictions.load(folder / PREDICTIONS) for folder in folders])
    save(whole, step_folder.path / PREDICTIONS, durable=False)
    facts = [read_json(folder / FACTS) for folder in folders]
    seconds = sum(shard["rows"] / max(shard["images_per_second"], 1e-9) for shard in facts)
    speed = round(len(whole) / seconds, 1)
    return _facts_file(facts[0] | {"rows": len(whole), "accuracy": _accuracy(whole), "images_per_second": speed})


@lru_cache(maxsize=1)
def _last_built(
    network: Network, store: Path, runtime: Runtime, root: str | None, dropout: float | None
) -> tuple[Predictor, Network]:
    """The module of `build`, cached for the next image set of the same network."""
    return build(network, Store(store), runtime, root, dropout)


def torch_threads(network: Network) -> int | None:
    """Torch's CPU threads: as many as in training; None (all) for pretrained networks, which are large."""
    return None if network.trial is None else network.trial.training.threads


def with_network_labels(
    loaded: LoadedImages, network: Network, output_spec: OutputSpec, root: str | None
) -> LoadedImages:
    """The images with labels in the numbering of the network's classes.

    If only features are kept, or the set has other classes (a downstream set), its labels stay unchanged, and votes
    for classes of other networks are dropped.
    """
    trial, images = network.trial, loaded.set
    if images.split in ("all_ood", "out") or not loaded.labelled:
        without_votes = replace(loaded, images=replace(loaded.images, annotations=None))
        return without_votes if "logits" in output_spec.fields else loaded
    if trial is not None and images.classes == trial.classes and same_images(trial.data, images.data, root):
        return loaded
    if "logits" not in output_spec.fields:
        return replace(loaded, images=replace(loaded.images, in_distribution=None))
    try:
        return align_labels(loaded, network.classes, network.class_names, network.class_map)
    except BadInput:
        if trial is None:
            raise
        none = np.zeros(len(loaded), bool)
        return replace(loaded, images=replace(loaded.images, in_distribution=none, annotations=None))


def _class_names(network: Network, loaded: LoadedImages) -> list[str] | None:
    """A set's names for the classes of a pretrained network without class names; None unless it has all classes."""
    if network.trial is not None or not loaded.labelled or output_class_names(network) is not None:
        return None
    return label_names(loaded, network.classes, network.class_names, network.class_map)


def _accuracy(predictions: Predictions) -> float | None:
    """Top-1 accuracy; None if rows have no labels or labels of other classes."""
    logits, labels, in_distribution = predictions.logits, predictions.labels, predictions.in_distribution
    if logits is None or labels is None or (in_distribution is not None and not in_distribution.all()):
        return None
    correct = 0
    for rows in blocks(len(predictions), max(1, (1 << 24) // logits[:1].nbytes)):
        z = torch.from_numpy(np.asarray(logits[rows], np.float32))
        top = z[:, 0].argmax(-1) if z.shape[1] == 1 else z.softmax(-1).mean(1).argmax(-1)
        correct += int((top.numpy() == labels[rows]).sum())
    return correct / len(predictions)
