"""Time and memory of segmentation metrics over a thousand million pixels, without a peer."""

from __future__ import annotations

import resource
import time
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from nescio.analysis.pixels import PixelCounts

PIXELS, CLASSES, VOID = 1_000_000_000, 19, 255
IMAGE = (1024, 2048)  # image size of Cityscapes; 477 images have PIXELS pixels


def image(seed: int, dtype: Any) -> tuple[Any, Any, Any]:
    """Label, prediction and score of every pixel of one image; a tenth of the pixels is void, a quarter wrong."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, CLASSES, IMAGE, np.uint8)
    wrong = rng.random(IMAGE, np.float32) < 0.25
    score = (rng.random(IMAGE, np.float32) + 0.3 * wrong).astype(dtype)
    predicted = np.where(wrong, (truth + 1) % CLASSES, truth).astype(np.uint8)
    truth[rng.random(IMAGE, np.float32) < 0.1] = VOID
    return truth, predicted, score


def peak() -> float:
    """Peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def all_metrics(dtype: Any) -> dict[str, Any]:
    images = [image(seed, dtype) for seed in range(4)]  # reused, because generating them takes longer than counting
    count = -(-PIXELS // (IMAGE[0] * IMAGE[1]))
    before, start = peak(), time.perf_counter()
    repeated_images = (images[number % len(images)] for number in range(count))
    counts = reduce(add, (PixelCounts.from_maps(t, p, {"u": u}, CLASSES, VOID) for t, p, u in repeated_images))
    rows, _ = counts.rows()
    seconds = time.perf_counter() - start
    values = {row["metric"]: row["value"] for row in rows}
    summary = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
    pixels = count * IMAGE[0] * IMAGE[1]
    return {
        "work": f"mIoU, accuracy, AUROC, rAULC, AURC; {pixels:.1e} pixels {np.dtype(dtype).name}",
        "peer": "",
        "peer_s": None,
        "ours_s": seconds,
        "ratio": None,
        "target": "bounded memory",
        "note": f"{pixels / seconds / 1e6:.0f} M pixels/s; peak {peak():.0f} MiB, {peak() - before:.0f} of them by "
        f"counting; {summary}; bound {counts.bound:.0e}",
    }


def run() -> list[dict[str, Any]]:
    return [all_metrics(dtype) for dtype in (np.float16, np.float32)]


if __name__ == "__main__":
    from _table import show

    show(run())
