"""Predict with a trained network on a split of its data, and write a file for `nescio evaluate`.

KEY is the key that `nescio train` printed, or its first letters. `nescio runs` lists all keys. Methods without labels
return embeddings only. --probes adds two results that need the network itself: the norm of the Jacobian (score
`jacobian`) and test-time augmentation (variant `tta`).

With --shards, or with idle workers, the images are predicted in shards on several workers or machines. The file has the
same bytes for any number of shards.

examples:
  nescio predict 3f2a --split test --output test.npz
  nescio predict 3f2a --split out --output out.npz --probes
  nescio predict 3f2a --output test.npz --launcher ray --address 10.0.0.1:6379
  nescio evaluate test.npz --ood out=out.npz
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from nescio.api.results import status
from nescio.api.storage import SHARDS, StoreOptions, WorkerOptions, print_notes, working
from nescio.commands._output import say
from nescio.errors import BadInput
from nescio.options import REQUIRED, argument, nested, option
from nescio.predictions.subset import subset_note
from nescio.provenance import follow_up_command


@dataclass(frozen=True, kw_only=True)
class Options:
    key: str = argument("key of a trained network, or its first letters", metavar="KEY")
    split: Literal["test", "val", "out", "train"] = option(
        "test", "split of the data; out: test images of classes that were not trained"
    )
    training_data: str | None = option(None, unset="its path at training", kind="dataset")
    output: str = option(REQUIRED)
    limit: int | None = option(None, unset="all")
    seed: int = option(0)
    probes: bool = option(False, "add the Jacobian norm and test-time augmentation")
    compile: bool = option(False)
    shards: int | None = option(None, unset=SHARDS)
    storage: StoreOptions = nested(StoreOptions())
    worker_options: WorkerOptions = nested(WorkerOptions(workers=0), omit=("processes", "nodes"))


def run(options: Options) -> int:
    from nescio.datasets.image_set import ImageSet
    from nescio.datasets.names import dataset_name
    from nescio.networks.models import check_training_data, stored_network
    from nescio.networks.network import describe_preprocessing
    from nescio.predict import load_predictions, predict_step, probe_step, row_ranges

    context = options.storage.context()
    store, root = context.store, context.root
    key = store.find("train", options.key)
    data = () if options.training_data is None else (dataset_name(options.training_data),)
    network = stored_network(key, store, root, data)
    for name in data:
        check_training_data(network, name, root)
    trial = network.trial
    assert trial is not None
    images = ImageSet(trial.data, options.split, trial.classes, seed=trial.data_seed)
    whole = images.load(root)  # an empty split is refused before any work
    print_notes(whole.dataset)
    if options.limit is not None and options.limit < 1:
        raise BadInput(f"--limit must be at least 1, got {options.limit}.")
    images = replace(images, sample_size=options.limit, sample_seed=options.seed)
    status(" ".join(describe_preprocessing([network])))
    with working(options.storage, options.worker_options) as work:
        ranges = row_ranges(network, images, context, shards=options.shards, workers=work.launcher.workers)
        steps = [predict_step(network, images, root=root, compile=options.compile, ranges=ranges)]
        if options.probes:
            steps.append(probe_step([trial], [1.0], images, root))
        work.run_stage("predicting", steps)
    for failure in work.failures:
        status(f"nescio predict: {failure.name}: {failure.reason}")
    if work.failures:
        return 2 if all(failure.refused for failure in work.failures) else 1
    predictions, *probed = (load_predictions(step, store) for step in steps)
    for other in probed:
        predictions = predictions.replace(
            scores={**predictions.scores, **other.scores}, variants={**predictions.variants, **other.variants}
        )
    stamp = [subset_note(len(predictions), len(whole), "images", options.seed)] if len(predictions) < len(whole) else []
    predictions.replace(notes=(*predictions.notes, *stamp)).save(options.output)
    say(
        " ".join(
            [
                f"{options.output} contains the predictions of {key} for {len(predictions)} images ({options.split}).",
                *stamp,
            ]
        )
    )
    if predictions.logits is not None:
        say(f"Next: {follow_up_command('evaluate', options.output)}")
    return 0
