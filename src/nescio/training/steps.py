"""The steps that train networks: a trial in, weights and facts in the store out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from nescio import datasets
from nescio.datasets.names import name_for_keys
from nescio.files import read_json
from nescio.identity import ContentName
from nescio.methods.base import Method
from nescio.progress import EpochProgress
from nescio.rows import Row
from nescio.runtime import Runtime, leave, runtime_for
from nescio.specs import FILE, source
from nescio.training.initial import STAGE, WEIGHTS, build, start_key, weights_of
from nescio.training.loop import Watch, fit, kept_name
from nescio.trials import Trial
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step
from nescio.work.store import Store
from nescio.work.versions import TRAIN as VERSION

FACTS = "facts.json"


def train_step(trial: Trial, root: str | Path | None = None) -> Step:
    """The step that trains a trial; its key is a function of the trial, the data's revision and the initial weights."""
    trial = named_trial(trial, root)
    if trial.stop is not None:
        full = train_step(replace(trial, stop=None), root)
        return Step(
            title_of(trial), STAGE, trial, partial(_kept_weights, trial=trial, full=full), (full,), VERSION, pace
        )
    revision = datasets.load(trial.data, root).revision
    start_keys = () if trial.start is None else (start_key(trial.start),)
    make, parents = partial(_train, trial=trial), (revision, *start_keys)
    return Step(title_of(trial), STAGE, trial, make, parents, VERSION, pace, distributed=True)


def named_trial(trial: Trial, root: str | Path | None = None) -> Trial:
    """The trial with content names of its data and its checkpoint, for keys and seeds."""
    start = trial.start
    if start is not None and source(start)[0] == FILE and not isinstance(start, ContentName):
        start = ContentName(start, f"{FILE}:{start_key(start)}")
    return replace(trial, data=name_for_keys(trial.data, root), start=start)


def title_of(trial: Trial) -> str:
    """The title of a trial in progress displays and failures."""
    bound = f", spectral {trial.spectral:g}" if trial.spectral else ""
    default_seeds = (0, trial.data_seed, trial.trial)  # already in the title
    init = "" if trial.init_seed in default_seeds else f", initial seed {trial.init_seed}"
    end = f", epoch {trial.stop}" if trial.stop else ""
    return f"{trial.method}, {trial.backbone}{bound}, trial {trial.trial}, data seed {trial.data_seed}{init}{end}"


def _train(step_folder: StepFolder | None, context: Context, trial: Trial) -> Files:
    """Train in one or several processes; only the first has the step folder."""
    runtime = runtime_for(context.device).with_precision(trial.training.precision)
    dataset = datasets.load(trial.data, context.root)
    with EpochProgress(title_of(trial), silent=runtime.rank > 0) as watch:
        method, facts = fit(trial, dataset, runtime, step_folder, context.checkpoint_seconds, watch, context.store)
    leave()
    return {WEIGHTS: weights_of(method), FACTS: json.dumps(facts).encode()}


def _kept_weights(step_folder: StepFolder, context: Context, trial: Trial, full: Step) -> Files:
    """The weights after an intermediate epoch that a trial saves."""
    facts = facts_of(full, context.store)
    facts.pop("train_accuracy", None)  # measured after the last epoch only
    content = (full.verified_or_rebuilt(context) / kept_name(trial.stop)).read_bytes()
    return {WEIGHTS: content, FACTS: json.dumps(facts).encode()}


def train(
    trial: Trial,
    store: Store,
    runtime: Runtime,
    *,
    root: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    watch: Watch | None = None,
) -> str:
    """Train one trial unless it is finished, from its last checkpoint; return its key.

    Under torchrun only the first process writes to the store; the others only compute.
    """
    trial = named_trial(trial, root)
    step, runtime = train_step(trial, root), runtime.with_precision(trial.training.precision)
    dataset = datasets.load(trial.data, root)
    if runtime.rank > 0:
        if runtime.share(None):
            fit(trial, dataset, runtime, None, checkpoint_seconds, None, store)
        return step.key

    trained = False

    def make(step_folder: StepFolder, _: Context) -> Files:
        nonlocal trained
        trained = runtime.share(True)
        method, facts = fit(trial, dataset, runtime, step_folder, checkpoint_seconds, watch, store)
        return {WEIGHTS: weights_of(method), FACTS: json.dumps(facts).encode()}

    replace(step, make=make).run(Context(store, None if root is None else str(root)), wait=True)
    if not trained:  # finished before, or by another process
        runtime.share(False)
    return step.key


def facts_of(step: Step, store: Store) -> Row:
    """Facts about a trained network: params, seconds, images and training accuracy."""
    return read_json(step.folder(store) / FACTS)


def members_facts(trials: Sequence[Trial], context: Context) -> Row:
    """The columns of a row that identify a network, or an average of networks."""
    params = sum(facts_of(train_step(trial, context.root), context.store)["params"] for trial in trials)
    facts = trials[0].describe() | {"params": params, "members": len(trials)}
    return facts if len(trials) == 1 else facts | {"trial": None, "init_seed": None}


def pace(step: Step, context: Context) -> dict[str, float]:
    """Images, seconds and images per second of a trained network, for progress."""
    facts = facts_of(step, context.store)
    images, seconds = facts["images"], max(facts["seconds"], 1e-9)
    return {"images": images, "seconds": seconds, "images/s": images / seconds}


def load_method(key: str, trial: Trial, store: Store, runtime: Runtime, root: str | Path | None = None) -> Method:
    """The trained method of a trial, ready to predict, with exactly the stored weights."""
    from safetensors.torch import load

    store.verify(STAGE, key)
    method = build(trial, datasets.load(trial.data, root), rows=0)
    method.load_state_dict(load((store.path(STAGE, key) / WEIGHTS).read_bytes()))
    return runtime.to_device(method).eval()  # type: ignore[return-value]
