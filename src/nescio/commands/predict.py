"""Predictions of a trained network on a split of its data, as a file for `nescio evaluate`.

KEY is what `nescio train` printed, or its first letters; `nescio runs` lists all. Methods that learn without labels
give embeddings alone. --probes adds what needs the classifier's network itself: the norm of the Jacobian (score
`jacobian`) and test-time augmentation (variant `tta`).

With --shards, or where several workers wait for work, the images are cut into ranges that are predicted one by one, on
as many workers or machines as there are. A killed range is resumed alone, and the file is the same to the last bit.

examples:
  nescio predict 3f2a --split test --to test.npz
  nescio predict 3f2a --split out --to out.npz --probes
  nescio predict 3f2a --to test.npz --launcher ray --address 10.0.0.1:6379        on all nodes of a cluster
  nescio evaluate test.npz --ood out=out.npz
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Literal

from nescio.commands._inputs import limit_option, own_data_option
from nescio.commands._output import say
from nescio.commands._work import StoreOptions, WorkerOptions, shards_option, tell_notes, working
from nescio.errors import BadInput
from nescio.options import REQUIRED, argument, nested, option
from nescio.predictions.subset import subset_note
from nescio.provenance import follow_up_command


@dataclass(frozen=True, kw_only=True)
class Options:
    key: str = argument("of a trained network, or its first letters", metavar="KEY")
    split: Literal["test", "val", "out", "train"] = option(
        "test", "out: test images of classes that were not in training"
    )
    data: str | None = own_data_option()
    to: str = option(REQUIRED, ".npz or .safetensors file, or a folder", metavar="FILE")
    limit: int | None = limit_option("images")
    seed: int = option(0, "of --limit")
    probes: bool = option(False, "Jacobian and test-time augmentation as well")
    compile: bool = option(False, "torch.compile the network: worth it on large sets")
    shards: int | None = shards_option()
    place: StoreOptions = nested(StoreOptions())
    crew: WorkerOptions = nested(WorkerOptions(workers=0), omit=("processes", "nodes"))


def run(options: Options) -> int:
    from nescio.datasets.images import ImageSet, set_name
    from nescio.networks.models import check_training_data, describe_preprocessing, stored_network
    from nescio.predict import load_predictions, predict_step, probe_step, row_ranges

    context = options.place.context()
    store, root = context.store, context.root
    key = store.find("train", options.key)
    data = () if options.data is None else (set_name(options.data),)
    network = stored_network(key, store, root, data)
    for name in data:
        check_training_data(network, name, root)
    trial = network.trial
    assert trial is not None
    images = ImageSet(trial.data, options.split, trial.classes, seed=trial.data_seed)
    whole = images.load(root)  # an empty split is refused before any work
    tell_notes(whole.dataset)
    if options.limit is not None and options.limit < 1:
        raise BadInput(f"--limit is a number of images from 1 on, not {options.limit}.")
    images = replace(images, sample=options.limit, sample_seed=options.seed)
    print(*describe_preprocessing([network]), file=sys.stderr, flush=True)
    with working(options.place, options.crew) as work:
        ranges = row_ranges(network, images, context, shards=options.shards, workers=work.launcher.workers)
        steps = [predict_step(network, images, root=root, compile=options.compile, ranges=ranges)]
        if options.probes:
            steps.append(probe_step([trial], [1.0], images, root))
        work.run_stage("predicting", steps)
    for failure in work.failures:
        print(f"nescio predict: {failure.name}: {failure.reason}", file=sys.stderr)
    if work.failures:
        return 2 if all(failure.refused for failure in work.failures) else 1
    dump, *probed = (load_predictions(step, store) for step in steps)
    for other in probed:
        dump = dump.replace(scores={**dump.scores, **other.scores}, variants={**dump.variants, **other.variants})
    stamp = [subset_note(len(dump), len(whole), "images", options.seed)] if len(dump) < len(whole) else []
    dump.replace(notes=(*dump.notes, *stamp)).save(options.to)
    say(" ".join([f"{options.to} holds the predictions of {key} for {len(dump)} images ({options.split}).", *stamp]))
    if dump.logits is not None:
        say(f"Next: {follow_up_command('evaluate', options.to)}")
    return 0
