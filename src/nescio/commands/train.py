"""Train one network, and save it in the store under a key that depends on all options.

A finished network is reported at once, and a killed training continues from its last checkpoint. --processes N uses N
GPUs or cores, and --launcher other machines (or: torchrun -m nescio train …). --ensemble-size K trains K networks with
different initial seeds. One that fails does not stop the others.

examples:
  nescio train --method erm --data digits --backbone conv --epochs 20
  nescio train --method mc-dropout --data cifar10 --backbone resnet18 --hparams dropout=0.2,mc_samples=20
  nescio train --method due --data digits --classes 0-5 --spectral-bound 5 --log tensorboard:logs
  nescio train --method ddu --task segmentation --data scenes --backbone conv --epochs 20
  nescio train --method losspred-order --data digits --backbone conv --start store:KEY --optimizer adamw --lr 1e-3
  nescio train --method simclr --data cifar10 --backbone resnet18 --batch-size 512 --schedule cosine --ensemble-size 10
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from nescio.api.loggers import check_log, logger
from nescio.api.results import status
from nescio.api.storage import StoreOptions, WorkerOptions, print_notes, working
from nescio.commands._output import say
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
DEFAULT = "default"  # the method's own bound


@dataclass(frozen=True, kw_only=True)
class Options:
    method: str = option("erm", kind="method")
    hparams: tuple[str, ...] = option(())
    trial: int = option(0, "hyper-parameter setting; 0: default, others: drawn from the search ranges", metavar="N")
    task: Literal["classification", "segmentation"] = option("classification")
    data: str = option("digits", kind="dataset")
    classes: tuple[int, ...] | None = option(None, unset="all")
    backbone: str = option("conv")
    spectral_bound: str = option(DEFAULT, "bound of each layer's spectral norm, or none", metavar="BOUND")
    start: str | None = option(None)
    data_seed: int = option(0, "seed of the split into training and validation images", metavar="S")
    init_seed: int = option(0, "seed of the initial weights", metavar="S")
    ensemble_size: int = option(1)
    batch_size: int | None = option(None, unset=f"{USUAL}, fewer for small datasets; segmentation: 8", group=BUDGET)
    augment: Literal["none", "shift", "crop-flip", "full"] | None = option(
        None, unset="crop-flip; shift for greyscale images; full for methods that compare views", group=BUDGET
    )
    training: Training = nested(TRAINING, omit=("batch_size", "augment"))
    log: str | None = option(None)
    worker_options: WorkerOptions = nested(WorkerOptions())
    storage: StoreOptions = nested(StoreOptions())


def run(options: Options) -> int:
    from nescio.progress import EpochFacts, EpochProgress
    from nescio.runtime import leave, runtime_for
    from nescio.training import Diverged, train, train_step
    from nescio.work.store_errors import Busy, StoreError

    check_log(options.log)
    trial = trial_of(options)
    worker_options = options.worker_options
    if (
        options.ensemble_size != 1
        or worker_options.launcher != "local"
        or worker_options.processes != 1
        or worker_options.nodes != 1
    ):
        return _launch_members(trial, options)
    context = options.storage.context()
    current, step = runtime_for(context.device), train_step(trial, context.root)
    finished_before = step.finished(context.store)
    facts = {**trial.describe(), "key": step.key}
    silent = finished_before or current.rank > 0
    try:
        with logger(None if silent else options.log, facts) as log, EpochProgress(step.title, silent=silent) as bar:

            def watch(facts: EpochFacts) -> None:
                bar(facts)
                if log is not None:
                    log({**facts})

            seconds = context.checkpoint_seconds
            train(trial, context.store, current, root=context.root, checkpoint_seconds=seconds, watch=watch)
    except (Diverged, StoreError, Busy) as error:
        status(f"nescio train: {error} The trial is {step.key}.")
        return 1
    finally:
        leave()
    if current.rank == 0:
        say(_sentence(step, context.store, finished_before))
        say(_next(step, options))
    return 0


def _sentence(step: Step, store: Store, finished_before: bool) -> str:
    """A sentence on the result of a training."""
    from nescio.training import facts_of

    facts = facts_of(step, store)
    accuracy = f", training accuracy {facts['train_accuracy']:.4f}" if "train_accuracy" in facts else ""
    return (
        f"{step.key} {'was finished before' if finished_before else 'is finished'}{accuracy}, in {step.folder(store)}"
    )


def _next(step: Step, options: Options) -> str:
    """The command that follows a training; pixels have no file of predictions."""
    if options.task == "segmentation":
        argv = ["run", "shift", "--task", options.task, "--data", options.data, "--networks", f"store:{step.key}"]
    else:
        argv = ["predict", step.key, "--output", "test.npz"]
    storage, usual = options.storage, StoreOptions()
    pairs = [
        (name, getattr(storage, name)) for name in ("store", "root") if getattr(storage, name) != getattr(usual, name)
    ]
    argv += [word for name, value in pairs for word in (f"--{name}", str(value))]
    return f"Next: {follow_up_command(*argv)}"


def _launch_members(trial: Trial, options: Options) -> int:
    """A launcher trains networks that differ in their init seed; 1 when one of them failed."""
    from nescio.training import train_step

    if options.ensemble_size < 1:
        raise BadInput(f"--ensemble-size must be at least 1, got {options.ensemble_size}.")
    if options.log:
        raise BadInput(
            "--log is for one network, trained by this process: omit it with --ensemble-size and --processes."
        )
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise BadInput(
            "--ensemble-size and launchers start processes of their own: start the command without torchrun."
        )
    seeds = range(trial.init_seed, trial.init_seed + options.ensemble_size)
    members = [train_step(replace(trial, init_seed=seed), options.storage.root) for seed in seeds]
    members = [replace(step, title=f"init seed {seed}") for step, seed in zip(members, seeds, strict=True)]
    store = options.storage.context().store
    finished_before = {step.key for step in members if step.finished(store)}
    with working(options.storage, options.worker_options) as work:
        finished = work.run_stage("train", members)
    for step in finished:
        say(_sentence(step, store, step.key in finished_before))
    if finished:
        say(_next(finished[0], options))
    for failure in work.failures:
        status(f"nescio train: {failure.name}: {failure.reason}")
    return 1 if work.failures else 0


def trial_of(options: Options) -> Trial:
    """The trial that the options describe."""
    from nescio import datasets
    from nescio.datasets.names import name_for_keys
    from nescio.methods import registry
    from nescio.search import draw, with_values
    from nescio.training import check_batch, check_views, usual_batch

    method, data = registry[options.method], name_for_keys(options.data, options.storage.root)
    dataset = datasets.load(data, options.storage.root)
    print_notes(dataset)
    rows = len(datasets.split_dataset(dataset, options.classes, options.data_seed).train)
    if options.trial < 0:
        raise BadInput(f"--trial must be at least 0, got {options.trial}.")
    usual = usual_batch(rows, options.training.accumulate, options.task)
    batch = usual if options.batch_size is None else options.batch_size
    moved = dataset.channels == 1 and options.task == "classification"
    augment: Any = options.augment or method.augment or ("shift" if moved else "crop-flip")
    training = replace(options.training, batch_size=batch, augment=augment)
    check_batch(training, rows, options.worker_options.processes * options.worker_options.nodes)
    check_views(training, method.views)
    text = options.spectral_bound
    spectral = method.spectral_default if text == DEFAULT else spectral_target(text, "--spectral-bound")
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
