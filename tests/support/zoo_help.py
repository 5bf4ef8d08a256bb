"""Small sets and random weights for the tests of pretrained networks; nothing here needs the internet."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

N = 12  # images of the set `place`
SHAPES = ((90, 120), (200, 170), (64, 64), (300, 180), (161, 240), (31, 47))


def picture(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    """A smooth random image: resizing it in another way changes its pixels by little, not by everything."""
    h, w = shape
    coarse = rng.integers(0, 256, (h // 8 + 2, w // 8 + 2, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((w, h), Image.Resampling.BICUBIC)


def encoded(image: Any, kind: str = "JPEG") -> bytes:
    held = io.BytesIO()
    image.save(held, kind, quality=90)
    return held.getvalue()


def pack(path: Path, n: int = 24, classes: int = 1000, word: str = "val", seed: int = 0) -> Path:
    """n encoded images of several shapes, labels spread over the classes, all of one split."""
    rng = np.random.default_rng(seed)
    images = [encoded(picture(rng, SHAPES[i % len(SHAPES)])) for i in range(n)]
    labels = (np.arange(n) * classes // n).astype(np.int64)
    labels[-1] = classes - 1  # so that the labels tell how many classes there are
    offsets = np.cumsum([0, *map(len, images)])
    blob = np.frombuffer(b"".join(images), np.uint8)
    np.savez(path, blob=blob, offsets=offsets, y=labels, split=np.array([word] * n))
    return path


def folder(path: Path, names: tuple[str, ...], each: int = 2, seed: int = 0) -> Path:
    """path/NAME/0.jpg …"""
    rng = np.random.default_rng(seed)
    for name in names:
        (path / name).mkdir(parents=True)
        for number in range(each):
            (path / name / f"{number}.jpg").write_bytes(encoded(picture(rng, SHAPES[number % len(SHAPES)])))
    return path


def checkpoint(path: Path, name: str, seed: int = 0, **options: Any) -> Path:
    """Random weights of a timm model in a file."""
    import timm
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    network = timm.create_model(name, **options)
    state = {key: value.contiguous() for key, value in network.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


# ---- what the tests of predictions share


def images_at(place: Path, **options: Any) -> Any:
    """The image set of `place`, as pretrained networks see it."""
    from nescio.datasets.image_set import ImageSet
    from nescio.datasets.names import absolute_name

    return ImageSet(absolute_name(f"npz:{place / 'val.npz'}"), **({"split": "test_or_all"} | options))


def answers(place: Path, store: Any, *names: str, images: Any = None, weights: Path | None = None, **how: Any) -> Any:
    """(models' dumps, failures) of networks on a set; `how` are fields of OutputSpec, and `batch`."""
    from nescio.networks.models import find_network
    from nescio.predict import OutputSpec, predict_all
    from nescio.predictions.model_predictions import predictions_from_store
    from nescio.work.steps import Context

    batch = how.pop("batch", None)
    output_spec = OutputSpec(**{"fields": ("logits",), "dtype": "float16", "mc_samples": 30, "compared": True} | how)
    shown = images if isinstance(images, list) else [images or images_at(place)]
    pairs = [(find_network(name, store), one) for name in names for one in shown]
    context = Context(store, device="cpu")
    many = predict_all(pairs, context, output_spec, weights=weights or place / "w", batch=batch)
    return [predictions_from_store(store, step.key) for step in many.steps], many.failures
