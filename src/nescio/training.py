"""The only training loop: a Trial in, weights in the store out."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nescio import datasets
from nescio.checkpoints import check_frame, read_weights
from nescio.cuda_graph import StepGraph
from nescio.datasets import Batches
from nescio.datasets.names import content_name, name_for_keys
from nescio.errors import BadInput
from nescio.files import read_json
from nescio.identity import ContentName, seed_for
from nescio.layers.spectral import settle
from nescio.methods import registry as methods
from nescio.methods.base import Method, NetworkSpec, accuracy_of, check_loss, check_output
from nescio.progress import EpochProgress
from nescio.runtime import Runtime, evaluating, leave, random_state, restore_random_state, runtime_for, seed_everything
from nescio.specs import FILE, STORE, SpecError, source
from nescio.trials import Training, Trial
from nescio.work.step_folder import StepFolder, shutdown_requested
from nescio.work.steps import Context, Files, Step
from nescio.work.store import Store
from nescio.work.store_errors import Interrupted
from nescio.work.versions import TRAIN as VERSION

STAGE, WEIGHTS, FACTS = "train", "weights.safetensors", "facts.json"
FEATURES = "features"  # the stage of features of frozen backbones, and their name in its files
JUDGED = 5000  # training rows, at most, on which the training accuracy is measured …
JUDGED_MAPS = 64  # … and training images with label maps, whose every location is a row
CACHED = 256  # images of a batch whose features are computed to be kept
ENDING = 2  # due: save a checkpoint and end
LOOK = 50  # optimiser steps between two looks at the loss: looking waits for the device …
LOOK_SECONDS = 5.0  # … or seconds, where steps are slow and somebody watches
Watch = Callable[[dict[str, Any]], None]


class Diverged(RuntimeError):
    """The loss, or a weight, stopped being a number."""


def train_step(trial: Trial, root: str | Path | None = None) -> Step:
    """The step that trains a trial; its key is a function of the trial, the data's revision and what it starts from."""
    trial = named_trial(trial, root)
    if trial.stop is not None:
        whole = train_step(replace(trial, stop=None), root)
        return Step(title_of(trial), STAGE, trial, partial(_stopped, trial=trial, whole=whole), (whole,), VERSION, pace)
    revision = datasets.load(trial.data, root).revision
    start = () if trial.start is None else (start_key(trial.start),)
    make, parents = partial(_train, trial=trial), (revision, *start)
    return Step(title_of(trial), STAGE, trial, make, parents, VERSION, pace, distributed=True)


def named_trial(trial: Trial, root: str | Path | None = None) -> Trial:
    """The trial whose key and seeds know its data, and the file that it starts from, by their content."""
    start = trial.start
    if start is not None and source(start)[0] == FILE and not isinstance(start, ContentName):
        start = ContentName(start, f"{FILE}:{start_key(start)}")
    return replace(trial, data=name_for_keys(trial.data, root), start=start)


def title_of(trial: Trial) -> str:
    """What progress and failures call a trial."""
    bound = f", spectral {trial.spectral:g}" if trial.spectral else ""
    usual = (0, trial.data_seed, trial.trial)  # numbers that say it already
    init = "" if trial.init_seed in usual else f", initial seed {trial.init_seed}"
    end = f", epoch {trial.stop}" if trial.stop else ""
    return f"{trial.method}, {trial.backbone}{bound}, trial {trial.trial}, data seed {trial.data_seed}{init}{end}"


def _train(step_folder: StepFolder | None, context: Context, trial: Trial) -> Files:
    """Several processes train together; the first has the part."""
    here = runtime_for(context.device).at(trial.training.precision)
    dataset = datasets.load(trial.data, context.root)
    with EpochProgress(title_of(trial), silent=here.rank > 0) as watch:
        method, facts = fit(trial, dataset, here, step_folder, context.checkpoint_seconds, watch, context.store)
    leave()
    return {WEIGHTS: weights_of(method), FACTS: json.dumps(facts).encode()}


def _stopped(step_folder: StepFolder, context: Context, trial: Trial, whole: Step) -> Files:
    """The weights after one of the epochs that a trial keeps."""
    facts = facts_of(whole, context.store)
    facts.pop("train_accuracy", None)  # of the last epoch
    content = (whole.verified_or_rebuilt(context) / kept_name(trial.stop)).read_bytes()
    return {WEIGHTS: content, FACTS: json.dumps(facts).encode()}


def kept_name(epoch: int | None) -> str:
    """The file of the weights that are kept after an epoch."""
    return f"epoch-{epoch}.safetensors"


def train(
    trial: Trial,
    store: Store,
    here: Runtime,
    *,
    root: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    watch: Watch | None = None,
) -> str:
    """Trains one trial unless it is finished, going on from its last checkpoint; returns its key.

    Under torchrun the first process owns the store; the others only compute.
    """
    trial = named_trial(trial, root)
    step, here = train_step(trial, root), here.at(trial.training.precision)
    dataset = datasets.load(trial.data, root)
    if here.rank > 0:
        if here.share(None):
            fit(trial, dataset, here, None, checkpoint_seconds, None, store)
        return step.key

    made = False

    def make(step_folder: StepFolder, _: Context) -> Files:
        nonlocal made
        made = here.share(True)
        method, facts = fit(trial, dataset, here, step_folder, checkpoint_seconds, watch, store)
        return {WEIGHTS: weights_of(method), FACTS: json.dumps(facts).encode()}

    replace(step, make=make).run(Context(store, None if root is None else str(root)), wait=True)
    if not made:  # it was finished before, or by another process
        here.share(False)
    return step.key


def facts_of(step: Step, store: Store) -> dict[str, Any]:
    """What training found out: params, seconds, images, and the accuracy on training rows."""
    return read_json(step.folder(store) / FACTS)


def members_facts(trials: Sequence[Trial], context: Context) -> dict[str, Any]:
    """The columns of a row that name a network, or an average of networks."""
    params = sum(facts_of(train_step(trial, context.root), context.store)["params"] for trial in trials)
    facts = trials[0].describe() | {"params": params, "members": len(trials)}
    return facts if len(trials) == 1 else facts | {"trial": None, "init_seed": None}


def pace(step: Step, context: Context) -> dict[str, Any]:
    """Images, seconds and images per second of a trained network, for progress."""
    facts = facts_of(step, context.store)
    images, seconds = facts["images"], max(facts["seconds"], 1e-9)
    return {"images": images, "seconds": seconds, "images/s": images / seconds}


def load_method(key: str, trial: Trial, store: Store, here: Runtime, root: str | Path | None = None) -> Method:
    """The trained method of a trial, ready to predict; its weights are those that were written, byte for byte."""
    from safetensors.torch import load

    store.verify(STAGE, key)
    method = build(trial, datasets.load(trial.data, root), rows=0)
    method.load_state_dict(load((store.path(STAGE, key) / WEIGHTS).read_bytes()))
    return here.place(method).eval()  # type: ignore[return-value]


# ---- where weights start from

DENSE = "features.backbone."  # before the names of a dense backbone's weights
UNBOUNDED, POWER = ".parametrizations.weight.original", ".parametrizations.weight.0."  # in names of spectral bounds


def start_key(start: str) -> str:
    """What the key of a fine-tuned trial follows from: the first trial's key, or the checkpoint's checksum."""
    if isinstance(start, ContentName):
        return source(start.content)[1]
    kind, place = source(start)
    if kind == STORE:
        return place
    path = Path(os.path.expanduser(place))
    if kind != FILE or not path.is_file():
        raise SpecError(start, 0, "this is no trained network and no checkpoint", "store:KEY, or file:PATH")
    check_frame(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _start_weights(start: str, store: Store) -> dict[str, Tensor]:
    """The weights that a trial starts from, by name."""
    from safetensors.torch import load

    kind, key = source(start)
    if kind == STORE:
        if not store.finished(STAGE, key):
            raise BadInput(f"There is no trained network {key} in {store.root} to start from.")
        store.verify(STAGE, key)
        return load((store.path(STAGE, key) / WEIGHTS).read_bytes())
    return read_weights(Path(os.path.expanduser(key)))


def take_weights(method: Method, start: str, store: Store) -> list[str]:
    """Gives the backbone the weights that it starts from, by name; returns the names of tensors that stay new.

    A checkpoint of a bare backbone has no prefix `features.`; heads of another shape are left new. A backbone with
    spectral bounds takes weights that were learnt without.
    """
    state = _start_weights(start, store)
    own = method.state_dict()
    if not any(name.startswith("features.") for name in state):
        state = {f"features.{name}": tensor for name, tensor in state.items()}
    if method.spec.dense and not any(name.startswith(DENSE) for name in state):  # of a classifier
        state = {name.replace("features.", DENSE, 1): tensor for name, tensor in state.items()}
    if unbounded := any(UNBOUNDED in name for name in own) and not any(UNBOUNDED in name for name in state):
        inside = {name.replace(UNBOUNDED, ".weight"): name for name in own}
        state = {inside.get(name, name): tensor for name, tensor in state.items()}
    fitting = {name: tensor for name, tensor in state.items() if name in own and own[name].shape == tensor.shape}
    wanted = [name for name in own if name.startswith("features.") and not (unbounded and POWER in name)]
    missing = [name for name in wanted if name not in fitting]
    if missing:
        raise BadInput(
            f"{start} does not fit this backbone: it lacks {missing[0]}, or has it in another shape "
            f"({len(missing)} of {len(wanted)} tensors)."
        )
    method.load_state_dict(own | fitting)
    if unbounded:
        settle(method)
    return [name for name in own if name not in fitting]


def build(trial: Trial, dataset: datasets.Dataset, rows: int) -> Method:
    """A trial's method with the initial weights that its init seed gives."""
    dense = trial.task == "segmentation"
    if dense and (trial.classes is not None or dataset.train.maps is None):
        what = "a choice of classes" if trial.classes is not None else f"{dataset.name}, which has no label maps"
        raise BadInput(f"Segmentation learns every class of a set with label maps; it cannot learn from {what}.")
    if dataset.train.maps is not None and not dense:
        raise BadInput(f"{dataset.name} has a label for every pixel: say --task segmentation.")
    check_compiled(trial.training, trial.method)
    classes = len(trial.classes) if trial.classes is not None else len(dataset.classes)
    # without the method: networks of one seed start alike, whatever method trains them (UIMNET §1)
    seed_everything(seed_for("init", trial.backbone, trial.init_seed))
    spec = NetworkSpec(
        trial.backbone, dataset.channels, dataset.shape, classes, trial.spectral, rows, dense, dataset.void
    )
    return methods[trial.method](trial.hparams, spec)


def weights_of(method: nn.Module) -> bytes:
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in method.state_dict().items()})


def fit(
    trial: Trial,
    dataset: datasets.Dataset,
    runtime: Runtime,
    step_folder: Any,
    checkpoint_seconds: float,
    watch: Watch | None,
    store: Store | None = None,
) -> tuple[Method, dict[str, Any]]:
    """Trains from the last checkpoint of `part`, or from the start; returns the method and what it cost."""
    with runtime.threads(trial.training.threads):
        return _fit(trial, dataset, runtime, step_folder, checkpoint_seconds, watch, store)


def _fit(
    trial: Trial,
    dataset: datasets.Dataset,
    runtime: Runtime,
    step_folder: Any,
    checkpoint_seconds: float,
    watch: Watch | None,
    store: Store | None,
) -> tuple[Method, dict[str, Any]]:
    plan, seed = trial.training, _seed(trial, dataset)
    method, stream = _begin(trial, dataset, runtime, seed, store)
    _check_forward(method, stream, runtime)
    if method.frozen_epochs:
        assert store is not None, "only what starts from other weights is frozen"
        stream = _cached(trial, method, stream, store)
    optimizer = optimizer_of(plan, method, runtime)
    average = _average(method)
    if plan.compile:
        method.features.compile()
    step = _Step(plan, method, optimizer, runtime, average, len(stream))
    update: Callable[[Tensor, Tensor], Tensor] = partial(method.update, step=step)
    if step.can_be_recorded:
        update = StepGraph(method, step.backward, step.move)
    seed_everything(seed_for(seed, "steps", runtime.rank))
    epoch, batch, kept = _resume(step_folder, method, optimizer, average, step, runtime, seed)
    buffers = [buffer for buffer in method.buffers() if buffer.is_floating_point()]
    method.train()
    started = saved = time.monotonic()
    looked, seen, since, losses = started, 0, 0, torch.zeros((), device=runtime.device)

    def look() -> None:
        nonlocal since, looked
        looked = time.monotonic()
        mean = _look(losses, since, epoch)
        losses.zero_()
        since = 0
        if watch:
            pace = seen / (time.monotonic() - started)
            left = ((plan.epochs - epoch) * len(stream) - batch) * plan.batch_size / plan.accumulate / pace
            done = {"step": step.steps, "epoch": epoch + batch / len(stream), "epochs": plan.epochs}
            watch({**done, "loss": mean, "rate": optimizer.param_groups[0]["lr"], "images/s": pace, "left": left})

    while epoch < plan.epochs:
        for x, y, _ in method.as_rows(stream.epoch(epoch, batch)):
            with runtime.autocast():
                loss = update(x, y)
            losses += loss.detach()
            seen += plan.batch_size // plan.accumulate
            batch, since = batch + 1, since + 1
            slow = watch is not None and time.monotonic() - looked > LOOK_SECONDS
            if since == LOOK * plan.accumulate or slow:
                look()
            if step.whole and (due := runtime.largest(_due(step_folder, saved, checkpoint_seconds))):
                runtime.mean(buffers)
                if step_folder is not None:
                    _save(step_folder, method, optimizer, average, step, epoch, batch, kept)
                if due == ENDING:
                    raise Interrupted
                saved = time.monotonic()
        if since:
            look()
        runtime.mean(buffers)
        epoch, batch = epoch + 1, 0
        if epoch in trial.kept:
            state = random_state()
            kept[kept_name(epoch)] = weights_of(_finished(deepcopy(method), average, stream, seed))
            restore_random_state(state)
    seconds = time.monotonic() - started
    if not all(bool(weight.isfinite().all()) for weight in method.parameters()):  # the last steps had no look at a loss
        raise Diverged("Weights are not finite after the last step; a smaller learning rate may help.")
    _finished(method, average, stream, seed)
    for name, content in kept.items() if step_folder is not None else ():
        step_folder.write(name, content)
    learnt = sum(weight.numel() for weight in method.parameters() if weight.requires_grad)
    facts: dict[str, Any] = {"params": learnt, "seconds": seconds, "images": seen}
    if method.classifies:
        with evaluating(method), runtime.autocast():
            some = stream.some(JUDGED_MAPS if method.spec.dense else JUDGED)
            facts["train_accuracy"] = accuracy_of(method, method.as_rows(some))
    return method.eval(), facts | method.facts()


def _due(step_folder: Any, saved: float, seconds: float) -> int:
    """ENDING when this process is to end, else 1 when it is time to save a checkpoint of `part`, else 0."""
    return ENDING if shutdown_requested.is_set() else int(step_folder is not None and step_folder.due(saved, seconds))


def _finished(method: Any, average: _Average | None, stream: _Stream, seed: int) -> Method:
    """The method after what follows its last step: the average of its weights, bounds that hold, `finalize`."""
    if average is not None:
        average.copy_to(method)
    settle(method)
    seed_everything(seed_for(seed, "finalize"))
    with evaluating(method), stream.runtime.autocast():
        method.finalize(method.as_rows(stream.plain()))
    return method  # type: ignore[no-any-return]


def start_of(trial: Trial, dataset: datasets.Dataset, runtime: Runtime, store: Store | None = None) -> Method:
    """A trial's method as it is before the first step."""
    method, _ = _begin(trial, dataset, runtime, _seed(trial, dataset), store)
    return method.eval()  # type: ignore[no-any-return]


def _seed(trial: Trial, dataset: datasets.Dataset) -> int:
    """Of everything random in training. What only changes speed and memory shows the same images in the same order."""
    usual = Training()
    speed = {name: getattr(usual, name) for name in ("accumulate", "precision", "compile", "threads")}
    data = trial.data if isinstance(trial.data, ContentName) else content_name(trial.data, dataset)
    return seed_for("train", replace(trial, data=data, training=replace(trial.training, **speed), kept=(), stop=None))


def _begin(
    trial: Trial, dataset: datasets.Dataset, runtime: Runtime, seed: int, store: Store | None = None
) -> tuple[Any, _Stream]:
    images = datasets.split_dataset(dataset, trial.classes, trial.data_seed).train
    method: Any = build(trial, dataset, rows=len(images.labels))
    if trial.start is not None:
        if store is None:
            raise BadInput(f"This trial starts from {trial.start}: give the store in which that is looked for.")
        method.on_start(take_weights(method, trial.start, store))
    method = runtime.place(method)
    stream = _Stream(images, dataset, trial.training, runtime, seed, method.views)
    seed_everything(seed_for(seed, "prepare"))
    # The data flows on the device that the runtime chose; a method sees only batches.
    with evaluating(method), torch.no_grad(), runtime.autocast():
        method.prepare(method.as_rows(stream.plain()))
        # Several GPUs may differ in the last bits of what `prepare` saw, and gradients alone would never join them.
        runtime.mean([tensor for tensor in method.state_dict().values() if tensor.is_floating_point()])
    return method, stream


@torch.no_grad()
def _check_forward(method: Method, stream: _Stream, runtime: Runtime) -> None:
    """Refuses outputs of other shapes than a method promises before the first step; nothing random moves.

    What is fitted at the end of training may be missing yet: a forward pass that fails is left for then, and so are
    the names of scores.
    """
    state, copy = random_state(), deepcopy(method).eval()
    try:
        with runtime.autocast():
            x, _, _ = next(iter(copy.as_rows(stream.some(1))))
            output = copy(x[:2])
    except Exception:  # anything that a method of one's own raises
        return
    finally:
        restore_random_state(state)
    check_output(method, output, None if method.spec.dense else len(x[:2]), finished=False)


def optimizer_of(plan: Training, method: Method, runtime: Runtime) -> torch.optim.Optimizer:
    """SGD with momentum, AdamW or LAMB; a parameter group's own `rate` and `decay` multiply the plan's, and `adaptive`
    the rate of AdamW, whose steps have the rate's length however small gradients are."""
    groups: list[dict[str, Any]] = []
    for group in method.parameter_groups():
        rate, decay = plan.lr * group.get("rate", 1.0), plan.weight_decay * group.get("decay", 1.0)
        rate *= group.get("adaptive", 1.0) if plan.optimizer == "adamw" else 1.0
        groups.append({"params": group["params"], "lr": rate, "weight_decay": decay})
    if plan.optimizer == "sgd":
        fused = runtime.device.type == "cuda"
        return torch.optim.SGD(groups, plan.lr, plan.momentum, nesterov=plan.nesterov, fused=fused)
    if plan.optimizer == "adamw":
        return torch.optim.AdamW(groups, plan.lr, fused=runtime.device.type == "cuda")
    from timm.optim.lamb import Lamb

    # the share of a layer's own length whatever the decay; timm clips all gradients at a norm of 1 too
    return Lamb(groups, plan.lr, always_adapt=True)


def rate_at(plan: Training, epochs: float) -> float:
    """The share of the full learning rate after so many epochs."""
    risen = plan.warmup_flat + plan.warmup
    if epochs < risen:
        done = max(0.0, epochs - plan.warmup_flat + 1e-8) / plan.warmup if plan.warmup else 0.0
        return plan.warmup_from + (1 - plan.warmup_from) * done
    if plan.schedule == "step":
        return plan.step_factor ** int(epochs / plan.step_epochs + 1e-9)
    if plan.schedule == "cosine":
        done = (epochs - risen) / max(plan.epochs - risen, 1e-8)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return 1.0


def usual_batch(rows: int, parts: int = 1, task: str = "classification") -> int:
    """256, or for fewer than 4096 rows the largest power of two that is at most a sixteenth of them; of images with
    label maps, which hold many rows each, 8."""
    batch = Training().batch_size if task == "classification" else 8
    while batch > rows / 16 and batch > max(8, parts):
        batch //= 2
    return batch


def check_compiled(plan: Training, method: str) -> None:
    """Raises BadInput when a method that cannot be compiled should be."""
    if plan.compile and (reason := methods[method].no_compile_reason):
        raise BadInput(f"The method {method} cannot be compiled: {reason}. Omit --compile.")


def check_batch(plan: Training, rows: int, world: int = 1) -> None:
    """Raises BadInput when a batch cannot be cut into its parts, or the rows do not fill one part."""
    parts = plan.accumulate * world
    if plan.batch_size % parts:
        raise BadInput(f"A batch of {plan.batch_size} cannot be cut into {parts} equal parts.")
    if plan.batch_size // parts < 2:
        raise BadInput(f"A batch of {plan.batch_size} in {parts} part(s) is too small: batch-norm needs two rows.")
    if rows < plan.batch_size // plan.accumulate:
        raise BadInput(
            f"There are {rows} training rows, fewer than one batch of {plan.batch_size // plan.accumulate}; "
            "make the batch smaller."
        )


def check_views(plan: Training, views: int) -> None:
    """Raises BadInput when the views of an image that a method compares would all be the same."""
    if views > 1 and plan.augment == "none":
        raise BadInput(
            f"The method compares {views} views of an image, and without augmentation they are the same: "
            "say --augment full."
        )


class _Step:
    """Backward, and when a batch is whole: average over processes, clip, set the rate, move the weights."""

    def __init__(
        self,
        plan: Training,
        method: Method,
        optimizer: torch.optim.Optimizer,
        runtime: Runtime,
        average: _Average | None,
        batches: int,
    ) -> None:
        self.plan, self.optimizer, self.runtime, self.average = plan, optimizer, runtime, average
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.base = [group["lr"] for group in optimizer.param_groups]
        self.method = method
        self.per_epoch = max(1, batches // plan.accumulate)
        self.steps = self.pending = 0

    @property
    def whole(self) -> bool:
        return self.pending == 0

    @property
    def can_be_recorded(self) -> bool:
        """Whether every batch goes through the same kernels of this one GPU, and nobody else changes them."""
        own = vars(type(self.method)).get("cuda_graph_safe", False)  # not what a parent class says of itself
        alone = self.runtime.world == self.plan.accumulate == 1 and self.runtime.device.type == "cuda"
        return own and alone and not (self.plan.compile or self.method.spec.dense or self.method.frozen_epochs)

    def __call__(self, loss: Tensor) -> None:
        check_loss(self.method, loss)
        self.backward(loss)
        self.pending = (self.pending + 1) % self.plan.accumulate
        if self.whole:
            self.move()
            self.optimizer.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def move(self) -> None:
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if self.plan.accumulate > 1:  # only now: a method that limits the gradient of a row sees it as it is
            torch._foreach_div_(gradients, self.plan.accumulate)
        self.runtime.mean(gradients)
        if self.plan.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.plan.clip)
        share = rate_at(self.plan, self.steps / self.per_epoch)
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            group["lr"] = base * share
        self.optimizer.step()
        self.steps += 1
        self.method.after_step(min(1.0, self.steps / (self.per_epoch * self.plan.epochs)))
        if self.average is not None:
            self.average.follow(self.method)


class _Average:
    """A moving average of the weights, for methods that predict with it."""

    def __init__(self, method: Method, decay: float) -> None:
        self.decay = decay
        self.state = {name: tensor.detach().clone() for name, tensor in method.state_dict().items()}

    @torch.no_grad()
    def follow(self, method: Method) -> None:
        for name, tensor in method.state_dict().items():
            if tensor.is_floating_point():
                self.state[name].lerp_(tensor, 1 - self.decay)
            else:
                self.state[name].copy_(tensor)

    def copy_to(self, method: Method) -> None:
        method.load_state_dict(self.state)


def _average(method: Method) -> _Average | None:
    return None if method.ema is None else _Average(method, method.ema)


@dataclass
class _Stream:
    """The training images of every epoch, as a function of the seed, the epoch and the batch number alone."""

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
        """Parts of batches in an epoch; an incomplete last batch is omitted."""
        rows = self.plan.batch_size // self.plan.accumulate
        return len(self.images.labels) // self.plan.batch_size * self.plan.accumulate or len(self.images.labels) // rows

    def batches(self, **options: Any) -> Batches:
        return Batches(
            self.images, self.dataset, self.runtime.device, channels_last=self.runtime.channels_last, **options
        )

    def epoch(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        rows = self.plan.batch_size // self.plan.accumulate
        shown = self.batches(
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
        return iter(shown)

    def plain(self) -> Batches:
        """Every training row once, in random order, without augmentation."""
        return self.batches(batch=self.plan.batch_size, augment="none", seed=seed_for(self.seed, "plain"), shuffle=True)

    def some(self, rows: int) -> Batches:
        """So many of the same, or a few more."""
        return replace(self.plain(), stop=math.ceil(rows / self.plan.batch_size))


@dataclass
class _CachedStream(_Stream):
    """The same with features (b, d) of a frozen backbone for images: a few augmented epochs of them take turns."""

    files: list[Path]

    def epoch(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        from safetensors.torch import load

        device, size = self.runtime.device, self.plan.batch_size // self.plan.accumulate
        features = load(self.files[epoch % len(self.files)].read_bytes())[FEATURES].to(device)
        labels, index = (torch.from_numpy(each).to(device) for each in (self.images.labels, self.images.index))
        raw = np.random.PCG64(seed_for(self.seed, epoch)).random_raw(len(labels))
        order = torch.from_numpy(np.argsort(raw, kind="stable")).to(device)
        for number in range(start, len(self)):
            rows = order[number * size : (number + 1) * size][self.runtime.rank :: self.runtime.world]
            yield features[rows].float(), labels[rows].long(), index[rows]


def _cached(trial: Trial, method: Method, stream: _Stream, store: Store) -> _CachedStream:
    """Features of the training images, computed once for all trials that start from the same weights."""
    from safetensors.torch import save

    assert trial.start is not None
    plan, runtime = trial.training, stream.runtime
    names = [f"{number}.safetensors" for number in range(1 if plan.augment == "none" else method.frozen_epochs)]

    def make(step_folder: StepFolder, _: Context) -> None:
        for number, name in enumerate(names):
            seed = seed_for(FEATURES, number)
            shown = stream.batches(batch=CACHED, augment=plan.augment, border=plan.border, seed=seed)
            with evaluating(method), torch.no_grad(), runtime.autocast():
                rows = torch.cat([method.features(x).half().cpu() for x, _, _ in shown])
            step_folder.write(name, save({FEATURES: rows}))

    of = {name: getattr(trial, name) for name in ("data", "classes", "data_seed", "backbone", "spectral")}
    how = {"augment": plan.augment, "border": plan.border, "precision": plan.precision, "epochs": len(names)}
    title = f"features of {trial.backbone}, frozen"
    parents = (stream.dataset.revision, start_key(trial.start))
    step = Step(title, FEATURES, of | how, make, parents, VERSION)
    if runtime.rank == 0:
        step.run(Context(store), wait=True)
    runtime.share(None)  # the other processes wait for the files
    folder = step.verified(store)
    return _CachedStream(**vars(stream), files=[folder / name for name in names])


def _look(losses: Tensor, count: int, epoch: int) -> float:
    mean = float(losses) / count
    if not math.isfinite(mean):
        raise Diverged(f"The loss became {mean} in epoch {epoch + 1}; a smaller learning rate may help.")
    return mean


def _save(
    step_folder: Any,
    method: Any,
    optimizer: Any,
    average: _Average | None,
    step: _Step,
    epoch: int,
    batch: int,
    kept: dict[str, bytes],
) -> None:
    state = {
        "method": method.state_dict(),
        "optimizer": optimizer.state_dict(),
        "average": None if average is None else average.state,
        "random": random_state(),
        "steps": step.steps,
        "epoch": epoch,
        "batch": batch,
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    step_folder.save_checkpoint({"state": buffer.getvalue(), **kept}, {"epoch": epoch, "batch": batch})


def _resume(
    step_folder: Any, method: Any, optimizer: Any, average: _Average | None, step: _Step, runtime: Runtime, seed: int
) -> tuple[int, int, dict[str, bytes]]:
    """(epoch, batch) to go on from, with every state as it was, and the weights that were kept so far."""
    checkpoint = None if step_folder is None else step_folder.load_checkpoint()
    kept = {} if checkpoint is None else dict(checkpoint.tensors)
    written = runtime.share(kept.pop("state", None))
    if written is None:
        return 0, 0, kept
    state = torch.load(io.BytesIO(written), map_location=runtime.device, weights_only=True)
    method.load_state_dict(state["method"])
    optimizer.load_state_dict(state["optimizer"])
    if average is not None:
        average.state = state["average"]
    step.steps = state["steps"]
    if runtime.rank == 0:
        restore_random_state(state["random"])
    else:  # only the first process's state was saved
        seed_everything(seed_for(seed, "steps", runtime.rank, step.steps))
    return state["epoch"], state["batch"], kept
