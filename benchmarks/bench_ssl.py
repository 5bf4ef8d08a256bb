"""Images per second of SimCLR, BYOL and MoCo, against the bare forward and backward pass of two views.

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


def seconds(work: Callable[[], Any], times: int = 20, warm: int = 5) -> float:
    """Of one call, the mean over several, after a few that do not count."""
    for call in range(warm + times):
        if call == warm:
            _wait()
            start = time.perf_counter()
        work()
    _wait()
    return (time.perf_counter() - start) / times


def bare(place: Runtime) -> float:
    """Seconds of forward, backward and SGD step on two views of a batch that lies there ready."""
    features = backbones.build(BACKBONE, 3, 32)
    net = place.to_device(nn.Sequential(features, nn.Linear(features.num_features, 128)))
    x = torch.randn(2 * BATCH, 3, 32, 32, device=place.device)
    x = x.contiguous(memory_format=torch.channels_last) if place.channels_last else x
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), 0.01, 0.9, weight_decay=1e-4, fused=GPU)

    def step() -> None:
        with place.autocast():
            loss = net(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return seconds(step)


def ours(name: str, dataset: datasets.Dataset, place: Runtime) -> float:
    """Seconds of a step of `fit`, augmentation and all, between the first and the last epoch's end."""
    training = Training(epochs=EPOCHS, batch_size=BATCH, lr=0.01, augment="full")
    hparams = methods[name].hparams_class()
    trial = Trial(method=name, hparams=hparams, data="synthetic", backbone=BACKBONE, training=training)
    stamps: list[tuple[float, int]] = []
    fit(trial, dataset, place, None, 1e9, lambda seen: stamps.append((time.perf_counter(), seen["step"])))
    (start, first), (end, last) = stamps[0], stamps[-1]
    return (end - start) / (last - first)


def augmentation(dataset: datasets.Dataset, place: Runtime) -> float:
    """Seconds for two views of a batch, from uint8 on the device to images ready for the network."""
    shown = Batches(
        dataset.train,
        dataset,
        place.device,
        batch=BATCH,
        augment="full",
        shuffle=True,
        drop_last=True,
        views=2,
        channels_last=place.channels_last,
    )

    def epoch() -> None:
        for _ in shown:
            pass

    return seconds(epoch, 2, 1) / len(shown)


def each_step(place: Runtime) -> dict[str, float]:
    """Seconds of every step of the augmentation, on two views of a batch."""
    x, draw = torch.rand(2 * BATCH, 3, 32, 32, device=place.device), torch.rand(2 * BATCH, steps.DRAWS).to(place.device)
    work = {
        "crop": lambda: steps.zoom(x, draw[:, steps.PLACE], 0.2),
        "mirror": lambda: steps.mirror(x, draw[:, steps.MIRROR]),
        "colour": lambda: steps.recolour(x, draw[:, steps.COLOUR]),
        "grey": lambda: steps.grey(x, draw[:, steps.GREY]),
        "blur": lambda: steps.blur(x, draw[:, steps.BLUR]),
    }
    return {name: seconds(each) for name, each in work.items()}


def run() -> list[dict[str, Any]]:
    place, dataset = runtime_for(), data(ROWS)
    where = torch.cuda.get_device_name() if GPU else "CPU, one thread for both"
    with place.threads(1):  # as trials compute on a CPU
        step, views = bare(place), augmentation(dataset, place)
        parts = ", ".join(f"{name} {1e3 * each:.2f}" for name, each in each_step(place).items())
    rows = [_row(f"two views of {BATCH}, augmented", f"bare step, {BACKBONE}", step, views, f"ms: {parts}")]
    rows += [_row(f"train {name}", "bare step of two views", step, ours(name, dataset, place), where) for name in THREE]
    return rows


def _row(work: str, peer: str, theirs: float, mine: float, note: str) -> dict[str, Any]:
    seen = {"peer_s": f"{BATCH / theirs:,.0f}/s", "ours_s": f"{BATCH / mine:,.0f}/s", "ratio": theirs / mine}
    return {"work": work, "peer": peer, **seen, "target": "", "note": note}


def _wait() -> None:
    if GPU:
        torch.cuda.synchronize()


if __name__ == "__main__":
    from _table import show

    show(run())
