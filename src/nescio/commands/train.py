"""Trains one network and keeps it in the store, under a key that is a function of everything given here.

A finished one is reported at once. A killed one goes on from its last checkpoint when the same command is given again.
--processes N trains it with N processes, on as many GPUs, and --launcher elsewhere (or: torchrun -m nescio train …).
--ensemble-size K trains K networks that differ in their initial seed alone, on --workers processes; one that fails does
not stop the others.

examples:
  nescio train --method erm --data digits --backbone conv --epochs 20
  nescio train --method mc-dropout --data cifar10 --backbone resnet18 --hparams dropout=0.2,mc_samples=20
  nescio train --method due --data digits --classes 0-5 --spectral 5 --log tensorboard:logs
  nescio train --method ddu --task segmentation --data scenes --backbone conv --epochs 20
  nescio train --method losspred-order --data digits --backbone conv --start store:KEY --optimizer adamw --lr 1e-3
  nescio train --method simclr --data cifar10 --backbone resnet18 --batch-size 512 --schedule cosine --ensemble-size 10
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from nescio.commands._loggers import check_log, logger
from nescio.commands._output import say
from nescio.commands._work import StoreOptions, WorkerOptions, tell_notes, working
from nescio.errors import BadInput
from nescio.options import nested, option
from nescio.provenance import follow_up_command
from nescio.specs import mapping
from nescio.trials import BUDGET, Training, Trial, spectral_target

if TYPE_CHECKING:
    from nescio.work.steps import Step
    from nescio.work.store import Store

TRAINING = Training()
USUAL = TRAINING.batch_size
OWN = "own"


@dataclass(frozen=True, kw_only=True)
class Options:
    method: str = option("erm", "see `nescio methods`", part="method")
    hparams: tuple[str, ...] = option(
        (), "hyper-parameters of the method; see `nescio methods NAME`", style="words", metavar="FIELD=VALUE,…"
    )
    trial: int = option(0, "0: the method's defaults; others: drawn from its search ranges", metavar="T")
    task: Literal["classification", "segmentation"] = option(
        "classification", "one class for each image, or for each of its pixels: of data with label maps"
    )
    data: str = option("digits", "digits, cifar10, folder:PATH, npz:PATH …", part="dataset")
    classes: tuple[int, ...] | None = option(None, "in-distribution classes, as 0-5,7", metavar="LIST", unset="all")
    backbone: str = option(
        "conv", "mlp, conv, resnet18 or any timm name; resnet50:max has max-pooled features, vit_…:patch4 small patches"
    )
    spectral: str = option(
        OWN, "bounds how far a layer can stretch: a number, none, or own: the method's (due: 3)", metavar="TARGET"
    )
    start: str | None = option(
        None, "weights to start from: store:KEY of a trained network, or file:PATH of a checkpoint", metavar="WEIGHTS"
    )
    data_seed: int = option(0, "of the train/validation split", metavar="S")
    init_seed: int = option(0, "of the initial weights", metavar="S")
    members: int = option(1, "number of networks, of initial seeds S to S + K − 1", name="ensemble-size", metavar="K")
    batch_size: int | None = option(
        None,
        "images per batch",
        metavar="B",
        unset=f"{USUAL}; fewer than {16 * USUAL} training rows: a sixteenth; segmentation: 8",
        group=BUDGET,
    )
    augment: Literal["none", "shift", "crop-flip", "full"] | None = option(
        None,
        "augmentation of training images",
        unset="crop-flip; images of one channel, such as digits, which have no mirror image: shift; "
        "methods that compare views: full",
        group=BUDGET,
    )
    training: Training = nested(TRAINING, omit=("batch_size", "augment"))
    log: str | None = option(
        None, "tensorboard:DIR or wandb:PROJECT: loss, rate and pace of this training", metavar="KIND:PLACE"
    )
    crew: WorkerOptions = nested(WorkerOptions())
    place: StoreOptions = nested(StoreOptions())


def run(options: Options) -> int:
    from nescio.progress import EpochProgress
    from nescio.runtime import leave, runtime_for
    from nescio.training import Diverged, train, train_step
    from nescio.work.store import Busy, StoreError

    check_log(options.log)
    trial = trial_of(options)
    crew = options.crew
    if options.members != 1 or crew.launcher != "local" or crew.processes != 1 or crew.nodes != 1:
        return _launched(trial, options)
    context = options.place.context()
    here, step = runtime_for(context.device), train_step(trial, context.root)
    known = step.finished(context.store)
    about = {**trial.describe(), "key": step.key}
    silent = known or here.rank > 0
    try:
        with logger(None if silent else options.log, about) as log, EpochProgress(step.title, silent=silent) as bar:

            def watch(seen: dict[str, Any]) -> None:
                bar(seen)
                if log is not None:
                    log(seen)

            seconds = context.checkpoint_seconds
            train(trial, context.store, here, root=context.root, checkpoint_seconds=seconds, watch=watch)
    except (Diverged, StoreError, Busy) as error:
        print(f"nescio train: {error} The trial is {step.key}.", file=sys.stderr)
        return 1
    finally:
        leave()
    if here.rank == 0:
        say(_sentence(step, context.store, known))
        say(_next(step, options))
    return 0


def _sentence(step: Step, store: Store, known: bool) -> str:
    """What came of a training."""
    from nescio.training import facts_of

    facts = facts_of(step, store)
    accuracy = f", training accuracy {facts['train_accuracy']:.4f}" if "train_accuracy" in facts else ""
    return f"{step.key} {'was finished before' if known else 'is finished'}{accuracy}, in {step.folder(store)}"


def _next(step: Step, options: Options) -> str:
    """The command that follows a training; pixels have no file of predictions."""
    if options.task == "segmentation":
        words = ["run", "shift", "--task", options.task, "--data", options.data, "--networks", f"store:{step.key}"]
    else:
        words = ["predict", step.key, "--to", "test.npz"]
    place, usual = options.place, StoreOptions()
    named = [(name, getattr(place, name)) for name in ("store", "root") if getattr(place, name) != getattr(usual, name)]
    words += [word for name, value in named for word in (f"--{name}", str(value))]
    return f"Next: {follow_up_command(*words)}"


def _launched(trial: Trial, options: Options) -> int:
    """A launcher trains networks that differ in their init seed; 1 when one of them failed."""
    from nescio.training import train_step

    if options.members < 1:
        raise BadInput(f"--ensemble-size is a number from 1 on, not {options.members}.")
    if options.log:
        raise BadInput(
            "--log is for one network, trained by this process: omit it with --ensemble-size and --processes."
        )
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise BadInput(
            "--ensemble-size and launchers start processes of their own: start the command without torchrun."
        )
    seeds = range(trial.init_seed, trial.init_seed + options.members)
    members = [train_step(replace(trial, init_seed=seed), options.place.root) for seed in seeds]
    members = [replace(step, title=f"init seed {seed}") for step, seed in zip(members, seeds, strict=True)]
    store = options.place.context().store
    known = {step.key for step in members if step.finished(store)}
    with working(options.place, options.crew) as work:
        finished = work.run_stage("train", members)
    for step in finished:
        say(_sentence(step, store, step.key in known))
    if finished:
        say(_next(finished[0], options))
    for failure in work.failures:
        print(f"nescio train: {failure.name}: {failure.reason}", file=sys.stderr)
    return 1 if work.failures else 0


def trial_of(options: Options) -> Trial:
    """The trial that the options describe."""
    from nescio import datasets
    from nescio.datasets.images import named
    from nescio.methods import registry
    from nescio.search import draw, with_values
    from nescio.training import check_batch, check_views, usual_batch

    method, data = registry[options.method], named(options.data, options.place.root)
    dataset = datasets.load(data, options.place.root)
    tell_notes(dataset)
    rows = len(datasets.splits(dataset, options.classes, options.data_seed).train)
    if options.trial < 0:
        raise BadInput(f"--trial is a number from 0 on, not {options.trial}.")
    usual = usual_batch(rows, options.training.accumulate, options.task)
    batch = usual if options.batch_size is None else options.batch_size
    moved = dataset.channels == 1 and options.task == "classification"
    augment: Any = options.augment or method.augment or ("shift" if moved else "crop-flip")
    training = replace(options.training, batch_size=batch, augment=augment)
    check_batch(training, rows, options.crew.processes * options.crew.nodes)
    check_views(training, method.views)
    own = options.spectral == OWN
    spectral = method.spectral_default if own else spectral_target(options.spectral, "--spectral")
    return Trial(
        method=options.method,
        hparams=with_values(
            draw(method.hparams_class, options.trial),
            mapping(options.hparams, "FIELD=VALUE", "--hparams").items(),
            options.method,
        ),
        data=data,
        classes=options.classes,
        backbone=options.backbone,
        spectral=spectral,
        training=training,
        trial=options.trial,
        data_seed=options.data_seed,
        init_seed=options.init_seed,
        start=options.start,
        task=options.task,
    )
