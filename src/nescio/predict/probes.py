"""Scores that need the networks themselves: Jacobian norm and test-time augmentation of calibrated ensembles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from nescio import probes
from nescio.datasets import Batches
from nescio.datasets.image_set import ImageSet, LoadedImages
from nescio.errors import BadInput
from nescio.files import read_json
from nescio.identity import seed_for
from nescio.methods.base import Method, Output
from nescio.predict.outputs import SCORES, VARIANTS, OutputBuffer, OutputSpec, as_predictions, selected_tensors
from nescio.predictions import Predictions
from nescio.predictions.model_predictions import PREDICTIONS, STAGE
from nescio.runtime import Runtime, runtime_for, seed_everything
from nescio.training import load_method, train_step
from nescio.trials import Trial
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step
from nescio.work.store import Store
from nescio.work.versions import PREDICT

PROBES = "probes.json"
BATCH_PIXELS = 128 * 64**2  # pixels of a batch: the backward pass keeps the activations of every layer
AUGMENTED_COPIES = 8  # augmented copies per image that test-time augmentation averages


def probe_step(
    trials: Sequence[Trial],
    temperatures: Sequence[float],
    images: ImageSet,
    root: str | Path | None = None,
    *,
    exact: bool = False,
) -> Step:
    """The step that computes Jacobian norm, test-time augmentation and native score of an ensemble.

    temperatures  calibration temperature of each member
    exact         whether to compute the whole Jacobian, one backward pass per class, for more than 16 classes too
    """
    if (images.data, images.view, images.change) != (trials[0].data, None, None):
        raise BadInput(f"Probes need unchanged images of {trials[0].data}: omit view and change.")
    images = images.with_content_name(root)
    rounded = [float(f"{temperature:.6g}") for temperature in temperatures]
    config = {"images": images, "temperatures": rounded, "probes": ["jacobian", "tta", "native"], "exact": exact}
    steps = tuple(train_step(trial, root) for trial in trials)
    make = partial(_probe, trials=tuple(trials), temperatures=rounded, images=images, exact=exact)
    return Step(f"probes of {steps[0].title}", STAGE, config, make, (*steps, images.load_revision(root)), PREDICT)


def probe_facts(step: Step, store: Store) -> dict[str, str]:
    """Facts on the probes of a finished step, such as {"jacobian": "exact"}."""
    return read_json(step.folder(store) / PROBES)


def _probe(
    step_folder: StepFolder,
    context: Context,
    trials: Sequence[Trial],
    temperatures: Sequence[float],
    images: ImageSet,
    exact: bool,
) -> Files:
    runtime = runtime_for(context.device).with_precision(trials[0].training.precision)
    steps = [train_step(trial, context.root) for trial in trials]
    members = [
        load_method(step.key, trial, context.store, runtime, context.root)
        for step, trial in zip(steps, trials, strict=True)
    ]
    if featurizers := [member.name for member in members if not member.classifies]:
        raise BadInput(f"{featurizers[0]} has no class predictions, which Jacobian and test-time augmentation need.")
    for member, temperature in zip(members, temperatures, strict=True):
        member.temperature = temperature
    loaded = images.load(context.root, context.store)
    seed = seed_for(*(step.key for step in steps), images)
    with runtime.threads(trials[0].training.threads):
        predictions = probe_images(members, loaded, runtime, trials[0].training.augment, seed, exact)
    predictions.save(step_folder.path / PREDICTIONS)
    facts = {"jacobian": probes.how_jacobian(members[0].spec.classes, exact)}
    return {PROBES: json.dumps(facts).encode()}


def probe_images(
    members: Sequence[Method], loaded: LoadedImages, runtime: Runtime, augment: str, seed: int, exact: bool = False
) -> Predictions:
    """Scores `jacobian` and `native` and the variant `tta` of the members' average, without logits."""
    seed_everything(seed)
    generator = torch.Generator(runtime.device).manual_seed(seed % 2**63)
    dataset, buffer = loaded.dataset, OutputBuffer(len(loaded))
    for member in members:
        member.eval()
    rows = min(128, max(1, BATCH_PIXELS // (dataset.shape[0] * dataset.shape[1])))
    batches = Batches(loaded.images, dataset, runtime.device, batch=rows, channels_last=runtime.channels_last)
    augment = augment if augment != "none" else "shift"
    copies = replace(batches, augment=augment, views=AUGMENTED_COPIES, seed=seed)
    for (x, _, _), (augmented, _, _) in zip(batches, copies, strict=True):
        # float32: the gradients of confident softmaxes vanish in bf16
        tensors = {f"{SCORES}jacobian": probes.jacobian_norm(members, x.float(), generator, exact=exact)}
        with torch.inference_mode(), runtime.autocast():
            tensors[f"{VARIANTS}tta"] = probes.augmented_log_probs(members, list(augmented))
            if len(members) == 1:
                scores = Output(scores=members[0](x).scores)
                tensors |= selected_tensors(scores, OutputSpec(("scores",)))
        buffer.add(tensors)
    return as_predictions(loaded, buffer.arrays(), False)
