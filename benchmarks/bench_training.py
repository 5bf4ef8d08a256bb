"""Images per second of training and of prediction, compared with bare PyTorch loops.

On a GPU: CIFAR-size ResNet-18 for every method, against a DataLoader loop in float32 and a resident loop in bf16, and
prediction of ResNet-50 at 224 pixels. On a CPU: ResNet-18, compared with a bare loop with equally many threads.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn

from nescio import backbones, datasets
from nescio.datasets.builders import dataset_from_arrays
from nescio.datasets.image_set import ImageSet, LoadedImages
from nescio.datasets.view import View
from nescio.methods import classifiers
from nescio.methods import registry as methods
from nescio.methods.base import NetworkSpec
from nescio.networks.network import Network
from nescio.predict import predict_images
from nescio.runtime import Runtime, runtime_for
from nescio.training import fit
from nescio.trials import Training, Trial

GPU = torch.cuda.is_available()
ROWS, BATCH = (50_000, 512) if GPU else (320, 64)
EPOCHS = 4 if GPU else 3


def data(rows: int = ROWS, size: int = 32) -> datasets.Dataset:
    rng = np.random.default_rng(0)
    parts = [(rng.integers(0, 256, (n, size, size, 3), dtype=np.uint8), rng.integers(0, 10, n)) for n in (rows, 100)]
    return dataset_from_arrays("synthetic", *parts, [str(i) for i in range(10)])


def ours(name: str, dataset: datasets.Dataset, runtime: Runtime, **plan: Any) -> float:
    """Images per second of `fit` between its first and its last check of the loss."""
    training = Training(epochs=EPOCHS, batch_size=BATCH, lr=0.01, **plan)
    hparams = methods[name].hparams_class()
    trial = Trial(method=name, hparams=hparams, data="synthetic", backbone="resnet18", training=training)
    stamps: list[tuple[float, int]] = []

    def watch(event: dict[str, Any]) -> None:
        stamps.append((time.perf_counter(), event["step"] * BATCH))

    fit(trial, dataset, runtime, None, 1e9, watch)
    (start, first_step), (end, last_step) = stamps[0], stamps[-1]
    return (last_step - first_step) / (end - start)


def bare(dataset: datasets.Dataset, runtime: Runtime, compile: bool = False) -> float:
    """A resident loop without nescio: crop, flip, ResNet-18, SGD."""
    pixels = torch.from_numpy(np.array(dataset.train.pixels)).permute(0, 3, 1, 2).contiguous().to(runtime.device)
    labels = torch.from_numpy(dataset.train.labels).to(runtime.device)
    net = nn.Sequential(backbones.build("resnet18", 3, 32), nn.Linear(512, 10))
    net = runtime.to_device(net).train()
    if compile:
        net.compile()
    optimizer = torch.optim.SGD(net.parameters(), 0.01, 0.9, weight_decay=1e-4, fused=GPU)
    steps = EPOCHS * len(labels) // BATCH
    start = 0.0
    warm_up = steps // 4 if GPU else 2
    for step in range(steps):
        if step == warm_up:
            _wait()
            start = time.perf_counter()
        rows = torch.randint(0, len(labels), (BATCH,), device=runtime.device)
        x = pixels[rows].float().div_(255).sub_(0.5).div_(0.25)
        x = torch.nn.functional.pad(x, (4, 4, 4, 4))[..., 2:34, 3:35]
        if runtime.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with runtime.autocast():
            loss = nn.functional.cross_entropy(net(x), labels[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    _wait()
    return (steps - warm_up) * BATCH / (time.perf_counter() - start)


def ordinary(dataset: datasets.Dataset, runtime: Runtime) -> float:
    """A typical loop: DataLoader with worker processes, float32, no channels-last."""
    pixels = torch.from_numpy(np.array(dataset.train.pixels)).permute(0, 3, 1, 2).float() / 255
    tensors = torch.utils.data.TensorDataset(pixels, torch.from_numpy(dataset.train.labels))
    loader = torch.utils.data.DataLoader(tensors, BATCH, shuffle=True, num_workers=8, pin_memory=True, drop_last=True)
    net = nn.Sequential(backbones.build("resnet18", 3, 32), nn.Linear(512, 10)).to(runtime.device).train()
    optimizer = torch.optim.SGD(net.parameters(), 0.01, 0.9)
    for epoch in range(2):
        if epoch == 1:
            _wait()
            start = time.perf_counter()
        for x, y in loader:
            x, y = x.to(runtime.device, non_blocking=True), y.to(runtime.device, non_blocking=True)
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    _wait()
    return len(loader) * BATCH / (time.perf_counter() - start)


def prediction(runtime: Runtime, compile: bool, rows: int = 16_384, batch: int = 512) -> tuple[float, float]:
    """(bare forward, predict_images) images per second: ResNet-50, 224 pixels, resident input."""
    dataset = data(rows, 224)
    spec = NetworkSpec("resnet50", 3, 224, 1000)
    method: Any = runtime.to_device(methods["erm"](methods["erm"].hparams_class(), spec)).eval()
    if compile:
        method.features.compile()
    images = dataset.train
    network = Network("resnet50", View(224, 224, "trained", "bilinear"), dataset.mean, dataset.std, 1000)
    images_on_device = LoadedImages(ImageSet("made", "train"), dataset, images)
    predict_images(method, network, images_on_device, None, runtime, batch=batch)  # warm
    _wait()
    start = time.perf_counter()
    predict_images(method, network, images_on_device, None, runtime, batch=batch)
    our_rate = len(images) / (time.perf_counter() - start)
    x = torch.randn(batch, 3, 224, 224, device=runtime.device).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode(), runtime.autocast():
        for step in range(3 + 32):
            if step == 3:
                _wait()
                start = time.perf_counter()
            method(x)
        _wait()
    return 32 * batch / (time.perf_counter() - start), our_rate


def _wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def _row(work: str, peer: str, peer_rate: float, our_rate: float, target: str, note: str = "") -> dict[str, Any]:
    images = {"peer_s": f"{peer_rate:,.0f}/s", "ours_s": f"{our_rate:,.0f}/s", "ratio": our_rate / peer_rate}
    return {"work": work, "peer": peer, **images, "target": target, "note": note}


def on_cpu() -> list[dict[str, Any]]:
    """Measure on a CPU, with equally many threads for nescio and the peer."""
    runtime, dataset, rows = runtime_for(), data(), []
    for threads in sorted({1, torch.get_num_threads()}):
        with runtime.threads(threads):
            baseline = bare(dataset, runtime)
        our_rate = ours("erm", dataset, runtime, augment="crop-flip", threads=threads)
        note = f"CPU, threads of both: {threads}"
        rows.append(_row("train ResNet-18, 32 px", "bare resident loop", baseline, our_rate, "≥ 0.9 ×", note))
    return rows


def run(every_method: bool = True) -> list[dict[str, Any]]:
    if not GPU:
        return on_cpu()
    runtime, dataset = runtime_for(), data()
    device = torch.cuda.get_device_name()
    baseline = bare(dataset, runtime)
    erm = ours("erm", dataset, runtime, augment="crop-flip")
    rows = [_row("train ResNet-18, 32 px", "bare resident loop", baseline, erm, "≥ 45,000/s", device)]
    rows.append(_row("train ResNet-18, 32 px", "DataLoader, float32", ordinary(dataset, runtime), erm, "", device))
    compiled = ours("erm", dataset, runtime, augment="crop-flip", compile=True)
    rows.append(_row("the same, compiled", "bare, compiled", bare(dataset, runtime, True), compiled, ""))
    if every_method:
        for name in classifiers():  # bench_ssl measures the other methods
            if name != "erm":
                target = "stated" if name in ("due", "mimo") else "≥ 0.5 × ERM"
                rows.append(
                    _row(f"train {name}", "erm", erm, ours(name, dataset, runtime, augment="crop-flip"), target)
                )
    for compile in (False, True):
        peer_rate, our_rate = prediction(runtime, compile)
        name = "predict ResNet-50, 224 px" + (", compiled" if compile else "")
        rows.append(_row(name, "bare forward", peer_rate, our_rate, "≥ 0.85 ×", device))
    return rows


if __name__ == "__main__":
    from _table import show

    show(run())
