"""The only training loop."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from nescio import datasets
from nescio.cuda_graph import StepGraph
from nescio.datasets.names import content_name
from nescio.errors import BadInput
from nescio.identity import ContentName, seed_for
from nescio.layers.spectral import set_exact_vectors
from nescio.methods.base import Method, check_output
from nescio.methods.evidence import accuracy_of
from nescio.progress import EpochFacts
from nescio.rows import Row
from nescio.runtime import Runtime, evaluating, random_state, restore_random_state, seed_everything
from nescio.training.initial import build, take_weights, weights_of
from nescio.training.optimizers import OptimizerStep, WeightAverage, average_of, optimizer_of
from nescio.training.streams import TrainingStream, cached_features
from nescio.trials import Training, Trial
from nescio.work.step_folder import StepFolder, shutdown_requested
from nescio.work.store import Store
from nescio.work.store_errors import Interrupted

SCORED_ROWS = 5000  # maximum number of rows for the training accuracy
SCORED_MAPS = 64  # maximum number of label maps for the training accuracy
SAVE_AND_STOP = 2  # value of `due`: save a checkpoint and stop
CHECK_STEPS = 50  # optimizer steps between two checks of the loss, each of which waits for the device
CHECK_SECONDS = 5.0  # seconds between two checks, if steps are slow and progress is reported
Watch = Callable[[EpochFacts], None]


class Diverged(RuntimeError):
    """The loss or a weight is NaN or infinite."""


def kept_name(epoch: int | None) -> str:
    """The file name of the weights saved after an epoch."""
    return f"epoch-{epoch}.safetensors"


def fit(
    trial: Trial,
    dataset: datasets.Dataset,
    runtime: Runtime,
    step_folder: StepFolder | None,
    checkpoint_seconds: float,
    watch: Watch | None,
    store: Store | None = None,
) -> tuple[Method, Row]:
    """Train from the last checkpoint in `step_folder`, or from the start; return the method and facts about its
    training."""
    with runtime.threads(trial.training.threads):
        return _fit(trial, dataset, runtime, step_folder, checkpoint_seconds, watch, store)


def _fit(
    trial: Trial,
    dataset: datasets.Dataset,
    runtime: Runtime,
    step_folder: StepFolder | None,
    checkpoint_seconds: float,
    watch: Watch | None,
    store: Store | None,
) -> tuple[Method, Row]:
    plan, seed = trial.training, training_seed(trial, dataset)
    method, stream = begin(trial, dataset, runtime, seed, store)
    _check_forward(method, stream, runtime)
    if method.frozen_epochs:
        assert store is not None, "only a backbone with initial weights can be frozen"
        stream = cached_features(trial, method, stream, store)
    optimizer = optimizer_of(plan, method, runtime)
    average = average_of(method)
    if plan.compile:
        method.features.compile()
    step = OptimizerStep(plan, method, optimizer, runtime, average, len(stream))
    update: Callable[[Tensor, Tensor], Tensor] = partial(method.update, step=step)
    if step.can_be_recorded:
        update = StepGraph(method, step.backward, step.update_weights)
    seed_everything(seed_for(seed, "steps", runtime.rank))
    epoch, batch, kept = _resume(step_folder, method, optimizer, average, step, runtime, seed)
    buffers = [buffer for buffer in method.buffers() if buffer.is_floating_point()]
    method.train()
    started = saved = time.monotonic()
    last_check, images_seen, n_losses, losses = started, 0, 0, torch.zeros((), device=runtime.device)

    def report_loss() -> None:
        nonlocal n_losses, last_check
        last_check = time.monotonic()
        mean = _check_loss_value(losses, n_losses, epoch)
        losses.zero_()
        n_losses = 0
        if watch:
            pace = images_seen / (time.monotonic() - started)
            images_left = ((plan.epochs - epoch) * len(stream) - batch) * plan.batch_size / plan.accumulate / pace
            rate, done = optimizer.param_groups[0]["lr"], epoch + batch / len(stream)
            facts: EpochFacts = {"step": step.steps, "epoch": done, "epochs": plan.epochs, "loss": mean, "rate": rate}
            watch({**facts, "images/s": pace, "left": images_left})

    while epoch < plan.epochs:
        for x, y, _ in method.as_rows(stream.epoch(epoch, batch)):
            with runtime.autocast():
                loss = update(x, y)
            losses += loss.detach()
            images_seen += plan.batch_size // plan.accumulate
            batch, n_losses = batch + 1, n_losses + 1
            slow = watch is not None and time.monotonic() - last_check > CHECK_SECONDS
            if n_losses == CHECK_STEPS * plan.accumulate or slow:
                report_loss()
            if step.complete and (due := runtime.largest(_save_due(step_folder, saved, checkpoint_seconds))):
                runtime.mean(buffers)
                if step_folder is not None:
                    _save(step_folder, method, optimizer, average, step, epoch, batch, kept)
                if due == SAVE_AND_STOP:
                    raise Interrupted
                saved = time.monotonic()
        if n_losses:
            report_loss()
        runtime.mean(buffers)
        epoch, batch = epoch + 1, 0
        if epoch in trial.kept:
            state = random_state()
            kept[kept_name(epoch)] = weights_of(_finish(deepcopy(method), average, stream, seed))
            restore_random_state(state)
    seconds = time.monotonic() - started
    if not all(bool(weight.isfinite().all()) for weight in method.parameters()):  # the last losses are unchecked
        raise Diverged("Weights are not finite after the last step; a smaller learning rate may help.")
    _finish(method, average, stream, seed)
    if step_folder is not None:
        for name, content in kept.items():
            step_folder.write(name, content)
    trainable = sum(weight.numel() for weight in method.parameters() if weight.requires_grad)
    facts: Row = {"params": trainable, "seconds": seconds, "images": images_seen}
    if method.classifies:
        with evaluating(method), runtime.autocast():
            scored_rows = stream.sample(SCORED_MAPS if method.spec.dense else SCORED_ROWS)
            facts["train_accuracy"] = accuracy_of(method, method.as_rows(scored_rows))
    return method.eval(), facts | method.facts()


def _save_due(step_folder: StepFolder | None, saved: float, seconds: float) -> int:
    """SAVE_AND_STOP if this process got a signal to end, else 1 if a checkpoint of `step_folder` is due, else 0."""
    return (
        SAVE_AND_STOP
        if shutdown_requested.is_set()
        else int(step_folder is not None and step_folder.due(saved, seconds))
    )


def _finish(method: Method, average: WeightAverage | None, stream: TrainingStream, seed: int) -> Method:
    """The method after its last step: with averaged weights, exact spectral bounds and `finalize`."""
    if average is not None:
        average.copy_to(method)
    set_exact_vectors(method)
    seed_everything(seed_for(seed, "finalize"))
    with evaluating(method), stream.runtime.autocast():
        method.finalize(method.as_rows(stream.unaugmented()))
    return method  # type: ignore[no-any-return]


def initial_method(trial: Trial, dataset: datasets.Dataset, runtime: Runtime, store: Store | None = None) -> Method:
    """A trial's method before the first training step."""
    method, _ = begin(trial, dataset, runtime, training_seed(trial, dataset), store)
    return method.eval()  # type: ignore[no-any-return]


def training_seed(trial: Trial, dataset: datasets.Dataset) -> int:
    """The seed of all random numbers in training. It ignores fields that only change speed and memory, so that
    they do not change the order of images."""
    usual = Training()
    speed_fields = {name: getattr(usual, name) for name in ("accumulate", "precision", "compile", "threads")}
    data = trial.data if isinstance(trial.data, ContentName) else content_name(trial.data, dataset)
    return seed_for(
        "train", replace(trial, data=data, training=replace(trial.training, **speed_fields), kept=(), stop=None)
    )


def begin(
    trial: Trial, dataset: datasets.Dataset, runtime: Runtime, seed: int, store: Store | None = None
) -> tuple[Method, TrainingStream]:
    images = datasets.split_dataset(dataset, trial.classes, trial.data_seed).train
    method = build(trial, dataset, rows=len(images.labels))
    if trial.start is not None:
        if store is None:
            raise BadInput(f"This trial starts from {trial.start}: give the store that contains it.")
        method.on_start(take_weights(method, trial.start, store))
    method = runtime.to_device(method)  # type: ignore[assignment]
    stream = TrainingStream(images, dataset, trial.training, runtime, seed, method.views)
    seed_everything(seed_for(seed, "prepare"))
    # The runtime chooses the device; a method only receives batches.
    with evaluating(method), torch.no_grad(), runtime.autocast():
        method.prepare(method.as_rows(stream.unaugmented()))
        # Results of `prepare` may differ in the last bits between GPUs, and averaged gradients would not remove this.
        runtime.mean([tensor for tensor in method.state_dict().values() if tensor.is_floating_point()])
    return method, stream


@torch.no_grad()
def _check_forward(method: Method, stream: TrainingStream, runtime: Runtime) -> None:
    """Check the shapes of a method's outputs before the first step; restore all random generators.

    Failing forward passes and missing scores are allowed here, because some parts are fitted after training.
    """
    state, copy = random_state(), deepcopy(method).eval()
    try:
        with runtime.autocast():
            x, _, _ = next(iter(copy.as_rows(stream.sample(1))))
            output = copy(x[:2])
    except Exception:  # any exception of a user's method
        return
    finally:
        restore_random_state(state)
    check_output(method, output, None if method.spec.dense else len(x[:2]), finished=False)


def _check_loss_value(losses: Tensor, count: int, epoch: int) -> float:
    mean = float(losses) / count
    if not math.isfinite(mean):
        raise Diverged(f"The loss became {mean} in epoch {epoch + 1}; a smaller learning rate may help.")
    return mean


def _save(
    step_folder: StepFolder,
    method: Method,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
    step: OptimizerStep,
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
    step_folder: StepFolder | None,
    method: Method,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
    step: OptimizerStep,
    runtime: Runtime,
    seed: int,
) -> tuple[int, int, dict[str, bytes]]:
    """Restore all states; return (epoch, batch) to continue from, and the weights saved so far."""
    checkpoint = None if step_folder is None else step_folder.load_checkpoint()
    tensors = {} if checkpoint is None else checkpoint.tensors
    kept = {name: content for name, content in tensors.items() if isinstance(content, bytes)}
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
    else:  # only the state of the first process was saved
        seed_everything(seed_for(seed, "steps", runtime.rank, step.steps))
    return state["epoch"], state["batch"], kept
