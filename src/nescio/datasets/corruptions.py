"""The fifteen common corruptions × five severities, batched, on CPU and GPU (Hendrycks and Dietterich 2019).

The constants are those of their CIFAR version below 100 pixels, and of their ImageNet version above. What an image
becomes is a function of (its pixels, its key, corruption, severity, seed) alone. Frost is drawn, not photographed:
procedural crystals of the same weight stand for their six photographs. Motion blur follows ImageMagick's one-sided line
of Gaussian weights; JPEG is Pillow's.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nescio.arrays.parallel import threads
from nescio.datasets.changes import Change, normals, uniforms
from nescio.errors import BadInput
from nescio.identity import seed_for, tag

if TYPE_CHECKING:
    from torch import Tensor

LARGE = 100  # pixels from which on the constants of the ImageNet version hold
CHUNK = 1 << 26  # numbers that are worked on at once, so that memory stays bounded

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
SEVERITIES = (1, 2, 3, 4, 5)


@tag("corruption")
@dataclass(frozen=True)
class Corruption(Change):
    """One of the fifteen corruptions at a severity from 1 to 5."""

    name: str = "gaussian_noise"
    severity: int = 1
    seed: int = 0

    def check(self) -> None:
        if self.name not in CONSTANTS:
            raise BadInput(f"There is no corruption named {self.name!r}. There are: {', '.join(CONSTANTS)}.")
        if self.severity not in SEVERITIES:
            raise BadInput(f"A corruption has a severity from 1 to 5, not {self.severity}.")

    @property
    def condition(self) -> str:
        return self.name

    @property
    def level(self) -> float:
        return float(self.severity)

    def apply(self, pixels: Tensor, index: Tensor) -> Tensor:
        """The corrupted images (n, h, w, ch) uint8."""
        import torch

        if not len(pixels):
            return pixels
        constants = CONSTANTS[self.name][max(pixels.shape[1:3]) >= LARGE][self.severity - 1]
        seed = seed_for("corruption", self.name, self.severity, self.seed)
        rows = max(1, CHUNK // (pixels[0].numel() * 16))
        parts = zip(pixels.split(rows), index.split(rows), strict=True)
        with torch.autocast(pixels.device.type, enabled=False):
            return torch.cat([_WORK[self.name](part, keys, seed, constants) for part, keys in parts])


def _unit(pixels: Tensor) -> Tensor:
    """(n, ch, h, w) from 0 to 1."""
    return pixels.permute(0, 3, 1, 2).float() / 255


def _bytes(x: Tensor) -> Tensor:
    """(n, h, w, ch) uint8; values are cut off below, as the published files do."""
    return (x.clamp(0, 1) * 255).byte().permute(0, 2, 3, 1).contiguous()


def _like(x: Tensor, index: Tensor, seed: int, draw: Callable[[Tensor, int, int], Tensor]) -> Tensor:
    """A random number for every value of x."""
    return draw(index, x[0].numel(), seed).view(x.shape)


# ---- noise


def _gaussian_noise(pixels: Tensor, index: Tensor, seed: int, sigma: float) -> Tensor:
    x = _unit(pixels)
    return _bytes(x + sigma * _like(x, index, seed, normals))


def _shot_noise(pixels: Tensor, index: Tensor, seed: int, rate: float) -> Tensor:
    import torch

    table, width = _poisson(rate)
    levels = pixels.permute(0, 3, 1, 2).long()
    u = _like(levels, index, seed, uniforms).double()
    counts = torch.searchsorted(table.to(pixels.device), (levels + u).contiguous()) - levels * width
    return _bytes(counts.float() / rate)


@lru_cache(maxsize=16)
def _poisson(rate: float) -> tuple[Tensor, int]:
    """level + CDF of Poisson(level/255·rate) for the 256 levels, one rising array; how many counts each level has.

    An image has 256 levels only: a search in their CDFs draws exactly.
    """
    import torch
    from scipy.special import pdtr

    width = int(rate + 12 * math.sqrt(rate) + 20)
    means = np.arange(256)[:, None] / 255 * rate
    cdf = pdtr(np.arange(width), means)
    cdf[:, -1] = 1.0
    return torch.from_numpy((np.arange(256)[:, None] + cdf).reshape(-1)), width


def _impulse_noise(pixels: Tensor, index: Tensor, seed: int, share: float) -> Tensor:
    import torch

    x = _unit(pixels)
    u = _like(x, index, seed, uniforms)
    x = torch.where(u < share / 2, torch.zeros_like(x), x)
    return _bytes(torch.where(u > 1 - share / 2, torch.ones_like(x), x))


# ---- blur


def _filtered(x: Tensor, kernel: Tensor) -> Tensor:
    """Each channel by one kernel (k, k); edges are mirrored without repeating the edge itself."""
    from torch.nn import functional as F

    n, ch, h, w = x.shape
    top, left = kernel.shape[0] // 2, kernel.shape[1] // 2
    padded = F.pad(x, (left, left, top, top), mode="reflect").reshape(n * ch, 1, h + 2 * top, w + 2 * left)
    return F.conv2d(padded, kernel.to(x)[None, None]).view(n, ch, h, w)


def _gaussian_kernel(sigma: float, reach: int) -> Tensor:
    import torch

    at = torch.arange(-reach, reach + 1, dtype=torch.float64)
    kernel = torch.exp(-(at**2) / (2 * max(sigma, 1e-6) ** 2))
    return kernel / kernel.sum()


def _smoothed(x: Tensor, sigma: float) -> Tensor:
    """Gaussian blur, four deviations wide."""
    kernel = _gaussian_kernel(sigma, min(int(4 * sigma + 0.5), min(x.shape[-2:]) - 1))
    return _filtered(_filtered(x, kernel[:, None]), kernel[None]) if len(kernel) > 1 else x


def _defocus_blur(pixels: Tensor, index: Tensor, seed: int, constants: tuple[float, float]) -> Tensor:
    return _bytes(_filtered(_unit(pixels), _disk(*constants)))


@lru_cache(maxsize=16)
def _disk(radius: float, blur: float) -> Tensor:
    """A disk whose edge is blurred; trimmed where it is nothing."""
    import torch

    reach = 8 if radius <= 8 else int(radius)
    at = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disk = (at[:, None] ** 2 + at**2 <= radius**2).double()
    edge = _gaussian_kernel(blur, 1 if radius <= 8 else 2)
    kernel = _filtered(_filtered((disk / disk.sum())[None, None], edge[:, None]), edge[None])[0, 0]
    used = int((kernel.amax(0) > 0).nonzero().flatten()[0])
    return kernel[used : len(kernel) - used, used : len(kernel) - used]


def _glass_blur(pixels: Tensor, index: Tensor, seed: int, constants: tuple[float, int, int]) -> Tensor:
    """Every pixel becomes one of its neighbours, some rounds in a row, between two blurs.

    The published script means to swap neighbours, but NumPy's views make it copy one onto the other; so does this.
    """
    import torch

    sigma, reach, rounds = constants
    x = _smoothed(_unit(pixels), sigma)
    n, ch, h, w = x.shape
    line, column = torch.arange(h, device=x.device)[:, None], torch.arange(w, device=x.device)
    for number in range(rounds):
        draws = uniforms(index, 2 * h * w, seed + number).view(n, 2, h, w)
        moves = (draws * 2 * reach).long().clamp_max(2 * reach - 1) - reach
        places = (line + moves[:, 0]).clamp(0, h - 1) * w + (column + moves[:, 1]).clamp(0, w - 1)
        inside = (line > reach) & (line <= h - reach) & (column > reach) & (column <= w - reach)
        places = torch.where(inside, places, line * w + column)
        x = x.flatten(2).gather(2, places.view(n, 1, h * w).expand(n, ch, h * w)).view(x.shape)
    return _bytes(_smoothed(x, sigma))


def _motion_blur(pixels: Tensor, index: Tensor, seed: int, constants: tuple[int, float]) -> Tensor:
    angle = (uniforms(index, 1, seed)[:, 0] - 0.5) * (math.pi / 2)
    return _bytes(_along(_unit(pixels), *constants, angle))


def _along(x: Tensor, radius: int, sigma: float, angle: Tensor) -> Tensor:
    """Every image blurred along a line at its own angle, by one-sided Gaussian weights; the edges go on."""
    import torch

    n, ch, h, w = x.shape
    at = torch.arange(2 * radius + 1, dtype=torch.float64)
    weights = torch.exp(-(at**2) / (2 * sigma**2))
    weights = (weights / weights.sum()).to(x)
    lines, columns = torch.arange(h, device=x.device), torch.arange(w, device=x.device)
    flat, total = x.reshape(n, ch, h * w), torch.zeros_like(x)
    for step, weight in enumerate(weights):
        down = (step * angle.sin()).round().long()
        across = (step * angle.cos()).round().long()
        line = (lines + down[:, None]).clamp(0, h - 1)
        column = (columns + across[:, None]).clamp(0, w - 1)
        places = (line[:, :, None] * w + column[:, None]).view(n, 1, h * w).expand(n, ch, h * w)
        total += weight * flat.gather(2, places).view(n, ch, h, w)
    return total


def _zoomed(x: Tensor, factor: float) -> Tensor:
    """The middle of the images, enlarged."""
    import torch
    from torch.nn import functional as F

    theta = torch.tensor([[1 / factor, 0, 0], [0, 1 / factor, 0]], device=x.device).expand(len(x), 2, 3)
    grid = F.affine_grid(theta, list(x.shape), align_corners=True)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=True)


def _zoom_blur(pixels: Tensor, index: Tensor, seed: int, constants: tuple[float, float]) -> Tensor:
    end, step = constants
    x = _unit(pixels)
    factors = np.arange(1, end, step).tolist()
    return _bytes((x + sum(_zoomed(x, factor) for factor in factors)) / (len(factors) + 1))


# ---- weather


def _snow(pixels: Tensor, index: Tensor, seed: int, constants: tuple[float, ...]) -> Tensor:
    import torch

    mean, spread, zoom, threshold, radius, sigma, weight = constants
    x = _unit(pixels)
    n, _, h, w = x.shape
    flakes = (mean + spread * normals(index, h * w, seed)).view(n, 1, h, w)
    flakes = _zoomed(flakes, zoom)
    flakes = torch.where(flakes < threshold, torch.zeros_like(flakes), flakes).clamp(0, 1)
    angle = -math.radians(135) + uniforms(index, 1, seed + 1)[:, 0] * (math.pi / 2)
    flakes = _along(flakes, int(radius), sigma, angle)
    x = weight * x + (1 - weight) * torch.maximum(x, _grey(x) * 1.5 + 0.5)
    return _bytes(x + flakes + flakes.rot90(2, (2, 3)))


def _grey(x: Tensor) -> Tensor:
    if x.shape[1] == 1:
        return x
    red, green, blue = x[:, :1], x[:, 1:2], x[:, 2:3]
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _frost(pixels: Tensor, index: Tensor, seed: int, constants: tuple[float, float]) -> Tensor:
    own, ice = constants
    x = _unit(pixels)
    return _bytes(own * x + ice * _crystals(x, index, seed))


def _crystals(x: Tensor, index: Tensor, seed: int) -> Tensor:
    """Procedural frost: thin bright needles between the cells of scattered points, on a cloudy bluish ground."""
    import torch

    n, ch, h, w = x.shape
    points = 24
    place = uniforms(index, 2 * points, seed).view(n, points, 2)
    down, across = torch.linspace(0, 1, h, device=x.device), torch.linspace(0, 1, w, device=x.device)
    away = (down[:, None, None] - place[:, None, None, :, 0]) ** 2 + (across[:, None] - place[:, None, None, :, 1]) ** 2
    nearest = away.sqrt().topk(2, largest=False).values
    needles = torch.exp(-((nearest[..., 1] - nearest[..., 0]) * 22))
    cloud = _plasma(index, max(h, w), 2.2, seed + 1)[:, :h, :w]
    ice = (0.35 + 0.3 * cloud + 0.45 * needles).clamp(0, 1)[:, None]
    tint = torch.tensor([0.86, 0.94, 1.0], device=x.device)[:, None, None] if ch == 3 else 1.0
    return ice * tint


def _fog(pixels: Tensor, index: Tensor, seed: int, constants: tuple[float, float]) -> Tensor:
    strength, decay = constants
    x = _unit(pixels)
    h, w = x.shape[-2:]
    peak = x.flatten(1).amax(1)[:, None, None, None]
    mist = _plasma(index, max(h, w), decay, seed)[:, None, :h, :w]
    return _bytes((x + strength * mist) * peak / (peak + strength))


def _plasma(index: Tensor, size: int, decay: float, seed: int) -> Tensor:
    """(n, m, m) clouds from 0 to 1, m the next power of two: the diamond–square fractal on a torus."""
    import torch

    m = 1 << max(1, (size - 1).bit_length())
    draws = uniforms(index, m * m, seed).view(-1, m, m) * 2 - 1
    cloud = torch.zeros_like(draws)
    step, wobble = m, 100.0
    while step >= 2:
        half = step // 2
        corners = cloud[:, ::step, ::step]
        squares = corners + corners.roll(-1, 1)
        squares = (squares + squares.roll(-1, 2)) / 4
        cloud[:, half::step, half::step] = squares + wobble * draws[:, half::step, half::step]
        middles = cloud[:, half::step, half::step]
        beside = middles + middles.roll(1, 1) + corners + corners.roll(-1, 2)
        cloud[:, ::step, half::step] = beside / 4 + wobble * draws[:, ::step, half::step]
        below = middles + middles.roll(1, 2) + corners + corners.roll(-1, 1)
        cloud[:, half::step, ::step] = below / 4 + wobble * draws[:, half::step, ::step]
        step, wobble = half, wobble / decay
    cloud = cloud - cloud.flatten(1).amin(1)[:, None, None]
    return cloud / cloud.flatten(1).amax(1)[:, None, None]


def _brightness(pixels: Tensor, index: Tensor, seed: int, more: float) -> Tensor:
    import torch

    x = _unit(pixels)
    value = x.amax(1, keepdim=True)
    lifted = (value + more).clamp(0, 1)
    # colours of one hue and saturation are multiples of each other; black becomes grey
    return _bytes(torch.where(value > 0, x / value.clamp_min(1e-6) * lifted, lifted))


# ---- digital


def _contrast(pixels: Tensor, index: Tensor, seed: int, factor: float) -> Tensor:
    x = _unit(pixels)
    mean = x.mean((2, 3), keepdim=True)
    return _bytes((x - mean) * factor + mean)


def _elastic_transform(pixels: Tensor, index: Tensor, seed: int, constants: tuple[float, float, float]) -> Tensor:
    import torch
    from torch.nn import functional as F

    x = _unit(pixels)
    n, _, h, w = x.shape
    size = 244 if max(h, w) >= LARGE else max(h, w)
    strength, smooth, corner = (constant * size for constant in constants)
    # an affine map that moves three points around the middle by up to `corner` pixels
    third = min(h, w) // 3
    centre = torch.tensor([w / 2, h / 2], device=x.device)
    before = torch.stack([centre + third, centre + torch.tensor([third, -third], device=x.device), centre - third])
    after = before + corner * (2 * uniforms(index, 6, seed).view(n, 3, 2) - 1)
    ones = torch.ones(n, 3, 1, device=x.device)
    affine = torch.linalg.solve(torch.cat([after, ones], 2).double(), before.double().expand(n, 3, 2)).float()
    down, across = torch.meshgrid(
        torch.arange(h, device=x.device).float(), torch.arange(w, device=x.device).float(), indexing="ij"
    )
    places = torch.stack([across, down, torch.ones_like(down)], -1).view(1, h * w, 3) @ affine
    places = places.view(n, h, w, 2)
    if strength:
        noise = (2 * uniforms(index, 2 * h * w, seed + 1) - 1).view(n, 2, h, w)
        places = places + strength * _smoothed(noise, smooth).permute(0, 2, 3, 1)
    grid = (2 * places + 1) / torch.tensor([w, h], device=x.device) - 1
    return _bytes(F.grid_sample(x, grid, padding_mode="reflection", align_corners=False))


def _pixelate(pixels: Tensor, index: Tensor, seed: int, share: float) -> Tensor:
    h, w = pixels.shape[1:3]
    small = int(h * share), int(w * share)
    x = pixels.permute(0, 3, 1, 2).float()
    for goal, start in ((small, (h, w)), ((h, w), small)):  # across first, halves rounded up, as Pillow does
        x = (x @ _box(start[1], goal[1]).to(x).T + 0.5).floor()
        x = (_box(start[0], goal[0]).to(x) @ x + 0.5).floor()
    return x.clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous()


@lru_cache(maxsize=64)
def _box(start: int, goal: int) -> Tensor:
    """(goal, start) weights of Pillow's box filter."""
    import torch

    scale = start / goal
    reach = 0.5 * max(scale, 1.0)
    weights = np.zeros((goal, start), np.float64)
    for row in range(goal):
        centre = (row + 0.5) * scale
        first, last = max(0, int(centre - reach + 0.5)), min(start, int(centre + reach + 0.5))
        at = (np.arange(first, last) - centre + 0.5) / max(scale, 1.0)
        weights[row, first:last] = (at > -0.5) & (at <= 0.5)
        weights[row] /= weights[row].sum()
    return torch.from_numpy(weights)


def _jpeg_compression(pixels: Tensor, index: Tensor, seed: int, quality: int) -> Tensor:
    import torch
    from PIL import Image

    def again(image: Any) -> Any:
        grey = image.shape[-1] == 1
        file = io.BytesIO()
        Image.fromarray(image[..., 0] if grey else image).save(file, "JPEG", quality=quality)
        found = np.asarray(Image.open(file))
        return found[..., None] if grey else found

    with ThreadPoolExecutor(threads()) as pool:
        return torch.from_numpy(np.stack(list(pool.map(again, pixels.cpu().numpy())))).to(pixels.device)


_WORK: dict[str, Callable[[Tensor, Tensor, int, Any], Tensor]] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "defocus_blur": _defocus_blur,
    "glass_blur": _glass_blur,
    "motion_blur": _motion_blur,
    "zoom_blur": _zoom_blur,
    "snow": _snow,
    "frost": _frost,
    "fog": _fog,
    "brightness": _brightness,
    "contrast": _contrast,
    "elastic_transform": _elastic_transform,
    "pixelate": _pixelate,
    "jpeg_compression": _jpeg_compression,
}
