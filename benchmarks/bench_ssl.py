"""Images per second of SimCLR, BYOL and MoCo, compared with the bare forward and backward pass of two views.

On a GPU: ResNet-18, 32 pixels, batch 512, bf16. On a CPU: the small convolutional network. An image counts once,
although two views of it are processed. The augmentation of two views and each of its steps are timed alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from bench_training import data
from torch import nn

from nescio import backbones, datasets
from nescio.datasets import Batches
from nescio.datasets import batches as steps
from nescio.methods import registry as methods
from nescio.runtime import Runtime, runtime_for
from nescio.training import fit
from nescio.trials import Training, Trial

GPU = torch.cuda.is_available()
BACKBONE, ROWS, BATCH, EPOCHS = ("resnet18", 50_000, 512, 4) if GPU else ("conv", 256, 32, 3)
THREE = ("simclr", "byol", "moco")


def seconds(work: Callable[[], Any], repeats: int = 20, warm_up: int = 5) -> float:
    """Mean seconds per call over several calls, after warm-up calls."""
    for call in range(warm_up + repeats):
        if call == warm_up:
            _wait()
            start = time.perf_counter()
        work()
    _wait()
    return (time.perf_counter() - start) / repeats


def bare(runtime: Runtime) -> float:
    """Seconds of forward, backward and SGD step on two views of a prepared batch."""
    features = backbones.build(BACKBONE, 3, 32)
    net = runtime.to_device(nn.Sequential(features, nn.Linear(features.num_features, 128)))
    x = torch.randn(2 * BATCH, 3, 32, 32, device=runtime.device)
    x = x.contiguous(memory_format=torch.channels_last) if runtime.channels_last else x
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), 0.01, 0.9, weight_decay=1e-4, fused=GPU)

    def step() -> None:
        with runtime.autocast():
            loss = net(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return seconds(step)


def ours(name: str, dataset: datasets.Dataset, runtime: Runtime) -> float:
    """Seconds per step of `fit`, including augmentation, between the ends of the first and the last epoch."""
    training = Training(epochs=EPOCHS, batch_size=BATCH, lr=0.01, augment="full")
    hparams = methods[name].hparams_class()
    trial = Trial(method=name, hparams=hparams, data="synthetic", backbone=BACKBONE, training=training)
    stamps: list[tuple[float, int]] = []
    fit(trial, dataset, runtime, None, 1e9, lambda facts: stamps.append((time.perf_counter(), facts["step"])))
    (start, first_step), (end, last_step) = stamps[0], stamps[-1]
    return (end - start) / (last_step - first_step)


def augmentation(dataset: datasets.Dataset, runtime: Runtime) -> float:
    """Seconds for two views of a batch, from uint8 on the device to images ready for the network."""
    batch_images = Batches(
        dataset.train,
        dataset,
        runtime.device,
        batch=BATCH,
        augment="full",
        shuffle=True,
        drop_last=True,
        views=2,
        channels_last=runtime.channels_last,
    )

    def epoch() -> None:
        for _ in batch_images:
            pass

    return seconds(epoch, 2, 1) / len(batch_images)


def each_step(runtime: Runtime) -> dict[str, float]:
    """Seconds of every step of the augmentation, on two views of a batch."""
    x, draw = (
        torch.rand(2 * BATCH, 3, 32, 32, device=runtime.device),
        torch.rand(2 * BATCH, steps.DRAWS).to(runtime.device),
    )
    work = {
        "crop": lambda: steps.zoom(x, draw[:, steps.PLACE], 0.2),
        "mirror": lambda: steps.mirror(x, draw[:, steps.MIRROR]),
        "colour": lambda: steps.recolour(x, draw[:, steps.COLOUR]),
        "grey": lambda: steps.grey(x, draw[:, steps.GREY]),
        "blur": lambda: steps.blur(x, draw[:, steps.BLUR]),
    }
    return {name: seconds(step_work) for name, step_work in work.items()}


def run() -> list[dict[str, Any]]:
    runtime, dataset = runtime_for(), data(ROWS)
    device = torch.cuda.get_device_name() if GPU else "CPU, one thread for both"
    with runtime.threads(1):  # like trials on a CPU
        step, views = bare(runtime), augmentation(dataset, runtime)
        step_times = ", ".join(f"{name} {1e3 * step_seconds:.2f}" for name, step_seconds in each_step(runtime).items())
    rows = [_row(f"two views of {BATCH}, augmented", f"bare step, {BACKBONE}", step, views, f"ms: {step_times}")]
    rows += [
        _row(f"train {name}", "bare step of two views", step, ours(name, dataset, runtime), device) for name in THREE
    ]
    return rows


def _row(work: str, peer: str, peer_rate: float, our_rate: float, note: str) -> dict[str, Any]:
    images = {
        "peer_s": f"{BATCH / peer_rate:,.0f}/s",
        "ours_s": f"{BATCH / our_rate:,.0f}/s",
        "ratio": peer_rate / our_rate,
    }
    return {"work": work, "peer": peer, **images, "target": "", "note": note}


def _wait() -> None:
    if GPU:
        torch.cuda.synchronize()


if __name__ == "__main__":
    from _table import show

    show(run())
