"""Batches of training images, or of features of a frozen backbone, for every epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nescio import datasets
from nescio.datasets import Batches
from nescio.errors import BadInput
from nescio.identity import seed_for
from nescio.methods.base import Method
from nescio.runtime import Runtime, evaluating
from nescio.training.initial import start_key
from nescio.trials import Training, Trial
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Step
from nescio.work.store import Store
from nescio.work.versions import TRAIN as VERSION

FEATURES = "features"  # name of the stage that computes features of frozen backbones, and of the array in its files


FEATURE_BATCH = 256  # batch size for computing features


def usual_batch(rows: int, micro_batches: int = 1, task: str = "classification") -> int:
    """The default batch size: 256, or for fewer than 4096 rows the largest power of two up to a sixteenth of them; 8
    with label maps."""
    batch = Training().batch_size if task == "classification" else 8
    while batch > rows / 16 and batch > max(8, micro_batches):
        batch //= 2
    return batch


def check_batch(plan: Training, rows: int, world: int = 1) -> None:
    """Raise BadInput if a batch cannot be split into equal micro-batches, or if the rows do not fill one."""
    n_parts = plan.accumulate * world
    if plan.batch_size % n_parts:
        raise BadInput(f"A batch of {plan.batch_size} cannot be cut into {n_parts} equal parts.")
    if plan.batch_size // n_parts < 2:
        raise BadInput(f"A batch of {plan.batch_size} in {n_parts} part(s) is too small: batch-norm needs two rows.")
    if rows < plan.batch_size // plan.accumulate:
        raise BadInput(
            f"There are {rows} training rows, fewer than one batch of {plan.batch_size // plan.accumulate}; "
            "make the batch smaller."
        )


def check_views(plan: Training, views: int) -> None:
    """Raise BadInput if a method would compare equal views of an image."""
    if views > 1 and plan.augment == "none":
        raise BadInput(
            f"The method compares {views} views of an image, and without augmentation they are the same: "
            "set augment=full."
        )


@dataclass
class TrainingStream:
    """The training images of every epoch; they depend only on the seed, the epoch and the batch number."""

    images: datasets.Images
    dataset: datasets.Dataset
    plan: Training
    runtime: Runtime
    seed: int
    views: int

    def __post_init__(self) -> None:
        check_batch(self.plan, len(self.images.labels), self.runtime.world)
        check_views(self.plan, self.views)

    def __len__(self) -> int:
        """Micro-batches in an epoch; an incomplete last batch is omitted."""
        rows = self.plan.batch_size // self.plan.accumulate
        return len(self.images.labels) // self.plan.batch_size * self.plan.accumulate or len(self.images.labels) // rows

    def batches(self, **options: Any) -> Batches:
        return Batches(
            self.images, self.dataset, self.runtime.device, channels_last=self.runtime.channels_last, **options
        )

    def epoch(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        rows = self.plan.batch_size // self.plan.accumulate
        batches = self.batches(
            batch=rows,
            augment=self.plan.augment,
            border=self.plan.border,
            seed=seed_for(self.seed, epoch),
            shuffle=True,
            drop_last=True,
            views=self.views,
            rank=self.runtime.rank,
            world=self.runtime.world,
            start=start,
            stop=len(self),
        )
        return iter(batches)

    def unaugmented(self) -> Batches:
        """Every training row once, in random order, without augmentation."""
        return self.batches(batch=self.plan.batch_size, augment="none", seed=seed_for(self.seed, "plain"), shuffle=True)

    def sample(self, rows: int) -> Batches:
        """At least `rows` training rows, in whole batches."""
        return replace(self.unaugmented(), stop=math.ceil(rows / self.plan.batch_size))


@dataclass
class CachedStream(TrainingStream):
    """A stream of features (b, d) of a frozen backbone instead of images; cycles through a few augmented epochs."""

    files: list[Path]

    def epoch(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        from safetensors.torch import load

        device, size = self.runtime.device, self.plan.batch_size // self.plan.accumulate
        features = load(self.files[epoch % len(self.files)].read_bytes())[FEATURES].to(device)
        labels, index = (torch.from_numpy(array).to(device) for array in (self.images.labels, self.images.index))
        raw = np.random.PCG64(seed_for(self.seed, epoch)).random_raw(len(labels))
        order = torch.from_numpy(np.argsort(raw, kind="stable")).to(device)
        for number in range(start, len(self)):
            rows = order[number * size : (number + 1) * size][self.runtime.rank :: self.runtime.world]
            yield features[rows].float(), labels[rows].long(), index[rows]


def cached_features(trial: Trial, method: Method, stream: TrainingStream, store: Store) -> CachedStream:
    """Features of the training images, computed once for all trials that start from the same weights."""
    from safetensors.torch import save

    assert trial.start is not None
    plan, runtime = trial.training, stream.runtime
    names = [f"{number}.safetensors" for number in range(1 if plan.augment == "none" else method.frozen_epochs)]

    def make(step_folder: StepFolder, _: Context) -> None:
        for number, name in enumerate(names):
            seed = seed_for(FEATURES, number)
            batches = stream.batches(batch=FEATURE_BATCH, augment=plan.augment, border=plan.border, seed=seed)
            with evaluating(method), torch.no_grad(), runtime.autocast():
                rows = torch.cat([method.features(x).half().cpu() for x, _, _ in batches])
            step_folder.write(name, save({FEATURES: rows}))

    network_fields = {name: getattr(trial, name) for name in ("data", "classes", "data_seed", "backbone", "spectral")}
    feature_fields = {"augment": plan.augment, "border": plan.border, "precision": plan.precision, "epochs": len(names)}
    title = f"features of {trial.backbone}, frozen"
    parents = (stream.dataset.revision, start_key(trial.start))
    step = Step(title, FEATURES, network_fields | feature_fields, make, parents, VERSION)
    if runtime.rank == 0:
        step.run(Context(store), wait=True)
    runtime.share(None)  # the other processes wait for the files
    folder = step.verified(store)
    return CachedStream(**vars(stream), files=[folder / name for name in names])
