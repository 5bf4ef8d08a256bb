"""Images per second of pretrained models over cached pixels, compared with the bare forward pass, and of decoding.

The second model of a group is timed, from the pixel file to float16 logits on disk: ResNet-50 at 224 pixels in bf16 on
a GPU, ResNet-18 on a CPU. The peer's input is on the device.
Decoding of 500 × 375 JPEGs is timed on one core and on all.
"""

from __future__ import annotations

import io
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from nescio.arrays.parallel import thread_count
from nescio.datasets import pixel_cache
from nescio.datasets.image_set import ImageSet
from nescio.datasets.view import View
from nescio.networks.models import find_network, with_weights
from nescio.predict import OutputSpec, predict_step
from nescio.predictions.model_predictions import predictions_from_store
from nescio.runtime import Runtime, runtime_for
from nescio.work.steps import Context
from nescio.work.store import Store

GPU = torch.cuda.is_available()
NAME = "resnet50.tv_in1k" if GPU else "resnet18.tv_in1k"
ROWS, BATCH = (40_000, 512) if GPU else (96, 32)
DECODED = 4096 if GPU else 512
KINDS = 64  # number of distinct images


def pictures(path: Path, rows: int) -> Path:
    """A pack of JPEGs of ImageNet's usual shape and length (about 100 kB)."""
    rng = np.random.default_rng(0)
    images = []
    for _ in range(KINDS):
        coarse = Image.fromarray(rng.integers(0, 256, (75, 100, 3), dtype=np.uint8)).resize((500, 375))
        noisy = np.asarray(coarse, np.int16) + rng.integers(-24, 25, (375, 500, 1))
        file = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        images.append(np.frombuffer(file.getvalue(), np.uint8))
    images = [images[row % KINDS] for row in range(rows)]
    labels = np.arange(rows) * 1000 // rows
    labels[-1] = 999
    offsets = np.cumsum([0, *map(len, images)])
    np.savez(path, blob=np.concatenate(images), offsets=offsets, y=labels, split=np.array(["val"] * rows))
    return path


def weights(folder: Path, seed: int) -> Path:
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    folder.mkdir()
    save_file(timm.create_model(NAME).state_dict(), folder / f"{NAME}.safetensors")
    return folder


def models(root: Path, runtime: Runtime) -> tuple[float, float, float]:
    """Images per second of (bare forward, second model of the group, second model with loading and saving)."""
    store = Store(root / "store")
    images = ImageSet(f"npz:{pictures(root / 'val.npz', ROWS)}", split="test_or_all")
    output_spec = OutputSpec(("logits",), "float16", mc_samples=30)
    for seed in range(2):
        network = with_weights(find_network(NAME, store), weights(root / f"w{seed}", seed))
        step = predict_step(network, images, output_spec=output_spec, batch=BATCH)
        start = time.perf_counter()
        step.run(Context(store, device=str(runtime.device)))
        total_rate = ROWS / (time.perf_counter() - start)
    return bare(runtime), float(predictions_from_store(store, step.key).facts["images_per_second"]), total_rate


def bare(runtime: Runtime) -> float:
    import timm

    network = runtime.to_device(timm.create_model(NAME)).eval()
    x = torch.rand(BATCH, 3, 224, 224, device=runtime.device)
    x = x.contiguous(memory_format=torch.channels_last) if runtime.channels_last else x
    steps = ROWS // BATCH
    with torch.inference_mode(), runtime.autocast():
        for step in range(3 + steps):
            if step == 3:
                wait()
                start = time.perf_counter()
            network(x)
        wait()
    return steps * BATCH / (time.perf_counter() - start)


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def decoding(root: Path, workers: int) -> float:
    images = ImageSet(f"npz:{pictures(root / f'{workers}.npz', DECODED)}", split="test_or_all").load()
    view = View(224, 256)
    file = root / f"{workers}.npy"
    np.lib.format.open_memmap(file, "w+", np.uint8, (DECODED, 224, 224, 3)).flush()
    blocks = pixel_cache.decoding_blocks(np.arange(DECODED))
    start = time.perf_counter()
    for _ in pixel_cache.decode_blocks(file, images.source, blocks, view, processes=True, workers=workers):
        pass
    return DECODED / (time.perf_counter() - start)


def row(work: str, peer: str, peer_rate: float, our_rate: float, target: str, note: str = "") -> dict[str, Any]:
    images = {"peer_s": f"{peer_rate:,.0f}/s", "ours_s": f"{our_rate:,.0f}/s", "ratio": our_rate / peer_rate}
    return {"work": work, "peer": peer, **images, "target": target, "note": note}


def run() -> list[dict[str, Any]]:
    runtime = runtime_for()
    device = torch.cuda.get_device_name() if GPU else f"CPU, {torch.get_num_threads()} threads"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        one_core, all_cores = (decoding(root, workers) for workers in (1, thread_count()))
        bare_rate, second_model, with_loading = models(root, runtime)
    target = "≥ 0.85 ×" if GPU else ""
    name = NAME.partition(".")[0]
    return [
        row(f"{name}, 224 px, {ROWS:,} images: second model", "bare forward", bare_rate, second_model, target, device),
        row("the same, with loading its weights and saving", "bare forward", bare_rate, with_loading, "", device),
        row(
            f"decode 500 × 375 to 224, {thread_count()} cores",
            "one core",
            one_core,
            all_cores,
            f"{thread_count()} ×",
            device,
        ),
    ]


if __name__ == "__main__":
    from _table import show

    show(run())
