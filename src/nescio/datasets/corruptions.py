"""The fifteen common corruptions × five severities, batched, on CPU and GPU (Hendrycks and Dietterich 2019).

The constants are those of their CIFAR version below 100 pixels, and of their ImageNet version above. The corrupted
image is a function of (its pixels, its key, corruption, severity, seed) alone. Frost is drawn, not photographed: six
procedural pictures of equal brightness and roughness replace their six photographs. Motion blur follows ImageMagick's
one-sided line of Gaussian weights; JPEG is Pillow's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nescio.datasets.changes import Change
from nescio.errors import BadInput, did_you_mean
from nescio.identity import seed_for, tag
from nescio.registry import by_alias

if TYPE_CHECKING:
    from torch import Tensor

LARGE = 100  # smallest size in pixels for the constants of the ImageNet version
# number of values per block: fits a core's cache and bounds a GPU's memory
CHUNK = {"cpu": 1 << 19, "cuda": 1 << 22}

# corruption → (constants of the CIFAR version, of the ImageNet version), severities 1 to 5
# Source: hendrycks/robustness, make_cifar_c.py and make_imagenet_c.py
CONSTANTS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    # σ added to x ∈ [0, 1]
    "gaussian_noise": ((0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)),
    # Poisson(x·c)/c
    "shot_noise": ((500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
    # share of the values set to 0 or 1
    "impulse_noise": ((0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27)),
    # radius of the disk, blur of its edge
    "defocus_blur": (
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    # Gaussian σ before and after, reach of local swaps, rounds
    "glass_blur": (
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    # radius and σ along a line
    "motion_blur": (
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    ),
    # end (excluded) and step of the zooms
    "zoom_blur": (
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    ),
    # mean and σ of the flakes, zoom, threshold, motion radius and σ, weight of x
    "snow": (
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    ),
    # weight of x, weight of the frost
    "frost": (
        ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    ),
    # strength and decay of a plasma fractal
    "fog": (
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    ),
    # added to the value of HSV
    "brightness": ((0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5)),
    # factor about the mean of each channel
    "contrast": ((0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05)),
    # displacement, its smoothing, corner shift of an affine map; shares of the size (244 in the ImageNet version)
    "elastic_transform": (
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
    ),
    # share of the size that is left
    "pixelate": ((0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25)),
    # quality
    "jpeg_compression": ((80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
}
CORRUPTIONS = tuple(CONSTANTS)
ALIASES = by_alias(
    {
        "defocus_blur": ("defocus",),
        "glass_blur": ("glass", "frosted_glass_blur"),
        "motion_blur": ("motion",),
        "zoom_blur": ("zoom",),
        "impulse_noise": ("salt_and_pepper",),
        "elastic_transform": ("elastic",),
        "pixelate": ("pixelation", "pixelated"),
        "jpeg_compression": ("jpeg", "jpg"),
    }
)
SEVERITIES = (1, 2, 3, 4, 5)
ON_CPU = ("jpeg_compression",)  # even for images on a GPU


class NamedCorruption(Change):
    """A corruption with a name, at a severity from 1 to 5."""

    name: str
    severity: int

    def check(self) -> None:
        if self.severity not in SEVERITIES:
            raise BadInput(f"A corruption has a severity from 1 to 5, not {self.severity}.")

    @property
    def condition(self) -> str:
        return self.name

    @property
    def level(self) -> float:
        return float(self.severity)


@tag("corruption-3")
@dataclass(frozen=True)
class Corruption(NamedCorruption):
    """One of the fifteen corruptions."""

    name: str = "gaussian_noise"
    severity: int = 1
    seed: int = 0

    def check(self) -> None:
        if self.name not in CONSTANTS:
            hint = did_you_mean(self.name, CONSTANTS)
            raise BadInput(f"There is no corruption named {self.name!r}.{hint} There are: {', '.join(CONSTANTS)}.")
        super().check()

    def apply(self, pixels: Tensor, index: Tensor) -> Tensor:
        """The corrupted images (n, h, w, ch) uint8."""
        _check_images(pixels, index)
        if not len(pixels):
            return pixels
        from nescio.datasets.corruption_filters import ANGLES

        if self.name in ON_CPU and pixels.is_cuda:
            return self.apply(pixels.cpu(), index.cpu()).to(pixels.device)
        constants = CONSTANTS[self.name][max(pixels.shape[1:3]) >= LARGE][self.severity - 1]
        seed = seed_for("corruption", self.name, self.severity, self.seed)
        if self.name in ANGLES:  # images with equal shifts are neighbours, so that they are copied in one block
            order = ANGLES[self.name](index, seed).argsort()
            moved = self._in_parts(pixels.index_select(0, order), index[order], seed, constants)
            return moved.index_select(0, order.argsort())  # for bytes four times as fast as indexing
        return self._in_parts(pixels, index, seed, constants)

    def _in_parts(self, pixels: Tensor, index: Tensor, seed: int, constants: Any) -> Tensor:
        import torch

        from nescio.datasets.corruption_filters import FILTERS

        rows = max(1, CHUNK[pixels.device.type] // pixels[0].numel())

        def work(block: Tensor, keys: Tensor) -> Tensor:
            with torch.autocast(pixels.device.type, enabled=False):
                return FILTERS[self.name](block.contiguous(), keys, seed, constants)

        parts = pixels.split(rows), index.split(rows)
        # Pillow's share is small for small images, so threads would wait for the interpreter lock
        alone = pixels.is_cuda or len(parts[0]) == 1 or (self.name in ON_CPU and max(pixels.shape[1:3]) < LARGE)
        return torch.cat(list(map(work, *parts)) if alone else _on_threads(work, parts))


def _check_images(pixels: Tensor, index: Tensor) -> None:
    import torch

    if pixels.ndim != 4 or pixels.shape[3] not in (1, 3) or pixels.dtype != torch.uint8:
        raise BadInput(
            f"Corruptions take uint8 images (n, h, w, ch) of one or three channels, not {pixels.dtype} of shape "
            f"{tuple(pixels.shape)}."
        )
    if len(index) != len(pixels):
        raise BadInput(f"{len(pixels)} images need as many keys, and there are {len(index)}.")


def _on_threads(
    work: Callable[[Tensor, Tensor], Tensor], parts: tuple[Sequence[Tensor], Sequence[Tensor]]
) -> list[Tensor]:
    """Process blocks in parallel, one thread each; sharing every small operation among threads is slower."""
    import torch

    count = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, *parts))
    finally:
        torch.set_num_threads(count)  # the worker's setting also applied to later threads
