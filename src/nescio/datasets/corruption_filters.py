"""Filters of the fifteen common corruptions on batches of uint8 images (n, h, w, ch)."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nescio.arrays.types import Array
from nescio.datasets.changes import bits, looked_up, normals, quantiles, uniforms, unsigned
from nescio.datasets.corruptions import LARGE
from nescio.identity import seed_for


def _bytes(x: Tensor) -> Tensor:
    """Values from 0 to 255 as uint8. Values are truncated, as in the published files, after adding 0.001 against
    rounding errors of sums."""
    return (x + 1e-3).clamp_(0, 255).byte()


def _by_pixel(pixels: Tensor) -> Tensor:
    """(h·w, ch, n) from 0 to 255: one operation on a pixel position of all images reads contiguous memory."""
    n, h, w, ch = pixels.shape
    return pixels.view(n, -1).t().contiguous().float().view(h * w, ch, n)


def _by_image(x: Tensor, like: Tensor) -> Tensor:
    """Back to the shape of the images."""
    return x.view(-1, x.shape[-1]).t().contiguous().view(like.shape)


# ---- noise


def _gaussian_noise(pixels: Tensor, index: Tensor, seed: int, sigma: float) -> Tensor:
    draws = unsigned(bits(index, pixels[0].numel(), seed)).view(pixels.shape)
    return looked_up(_whole_noise(sigma, pixels.device), draws).add_(pixels).clamp_(0, 255).byte()


@lru_cache(maxsize=16)
def _whole_noise(sigma: float, device: torch.device) -> Tensor:
    """(65536,) int16: truncated quantiles of the noise; pixels are integers, so their sum needs no truncation."""
    with torch.inference_mode(False):
        return (255 * sigma * quantiles(device)).floor().short()


def _shot_noise(pixels: Tensor, index: Tensor, seed: int, rate: float) -> Tensor:
    draws = unsigned(bits(index, pixels[0].numel(), seed)).view(pixels.shape)
    return looked_up(_poisson(rate, pixels.device), draws.add_(pixels, alpha=1 << 16))


@lru_cache(maxsize=16)
def _poisson(rate: float, device: torch.device) -> Tensor:
    """(256 · 65536,) uint8: for each level of a pixel, 65,536 quantiles of Poisson(level/255·rate), as pixels."""
    from scipy.special import pdtr

    counts = np.arange(int(rate + 12 * math.sqrt(rate) + 20))
    values = np.minimum(counts * 255 / rate + 1e-3, 255).astype(np.uint8)
    ends = np.rint(pdtr(counts, np.arange(256)[:, None] / 255 * rate) * (1 << 16)).astype(np.int64)
    ends[:, -1] = 1 << 16
    with torch.inference_mode(False):
        return torch.from_numpy(np.concatenate([np.repeat(values, np.diff(row, prepend=0)) for row in ends])).to(device)


def _impulse_noise(pixels: Tensor, index: Tensor, seed: int, share: float) -> Tensor:
    draws = bits(index, pixels[0].numel(), seed).view(pixels.shape)
    few = round(share / 2 * (1 << 16))
    white = (draws >= (1 << 15) - few).byte().neg_()  # 255 where it is true
    return (pixels * (draws >= few - (1 << 15))).bitwise_or_(white)


# ---- blur: images are (n, h, w, ch) float, from 0 to 255


def _filtered(x: Tensor, kernel: Array, inside: Inside) -> Tensor:
    """Each channel by one kernel (k, l), tap by tap."""
    h, w = x.shape[1:3]
    places = [
        inside(torch.arange(-(taps // 2), size + taps // 2, device=x.device), size)
        for size, taps in zip((h, w), kernel.shape, strict=True)
    ]
    padded = x.index_select(1, places[0]).index_select(2, places[1])
    total = torch.zeros_like(x)
    for (line, column), weight in np.ndenumerate(kernel):
        if weight > 1e-7:
            total.add_(padded[:, line : line + h, column : column + w], alpha=float(weight))
    return total


# maps positions beyond the edges of a line to the positions inside that are repeated there
Inside = Callable[["Tensor", int], "Tensor"]


def _mirrored(places: Tensor, size: int) -> Tensor:
    """c b | a b c | b a, as OpenCV's filters."""
    if size == 1:
        return places * 0
    return (size - 1) - ((size - 1) - places.remainder(2 * (size - 1))).abs()


def _reflected(places: Tensor, size: int) -> Tensor:
    """b a | a b c | c b"""
    places = places.remainder(2 * size)
    return places.minimum(2 * size - 1 - places)


def _repeated(places: Tensor, size: int) -> Tensor:
    """a a | a b c | c c, as scikit-image's Gaussian."""
    return places.clamp(0, size - 1)


def _gaussian_kernel(sigma: float, reach: int) -> Array:
    kernel = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * max(sigma, 1e-6) ** 2))
    return kernel / kernel.sum()


def _smoothed(x: Tensor, sigma: float, width: int, inside: Inside) -> Tensor:
    """Gaussian blur; the kernel extends `width` deviations to each side, but not beyond the images."""
    kernel = _gaussian_kernel(sigma, min(int(width * sigma + 0.5), min(x.shape[1:3]) - 1))
    return _filtered(_filtered(x, kernel[:, None], inside), kernel[None], inside) if len(kernel) > 1 else x


def _defocus_blur(pixels: Tensor, index: Tensor, seed: int, constants: tuple[float, float]) -> Tensor:
    return _bytes(_filtered(pixels.float(), _disk(*constants), _mirrored))


@lru_cache(maxsize=16)
def _disk(radius: float, blur: float) -> Array:
    """A disk with a blurred edge, without its rows and columns of zeros."""
    from scipy.ndimage import correlate1d

    reach = 8 if radius <= 8 else int(radius)
    offsets = np.arange(-reach, reach + 1)
    disk = (offsets[:, None] ** 2 + offsets**2 <= radius**2).astype(np.float64)
    edge = _gaussian_kernel(blur, 1 if radius <= 8 else 2)
    kernel = correlate1d(correlate1d(disk / disk.sum(), edge, 0, mode="mirror"), edge, 1, mode="mirror")
    used = int(np.flatnonzero(kernel.max(0) > 1e-7)[0])
    return kernel[used : len(kernel) - used, used : len(kernel) - used]


def _glass_blur(pixels: Tensor, index: Tensor, seed: int, constants: tuple[float, int, int]) -> Tensor:
    """Replaces every pixel by one of its neighbours, in several rounds, between two blurs.

    The published script means to swap neighbours, but NumPy's views make it copy one onto the other, the last pixel
    first; this function does the same.
    """
    sigma, reach, rounds = constants
    x = _bytes(_smoothed(pixels.float(), sigma, 4, _repeated))
    n, h, w, ch = x.shape
    line, column = torch.arange(h, device=x.device)[:, None], torch.arange(w, device=x.device)
    start = torch.arange(n, device=x.device)[:, None, None] * (h * w)
    inside = (line > reach) & (line <= h - reach) & (column > reach) & (column <= w - reach)
    for number in range(rounds):
        draws = bits(index, 2 * h * w, seed_for("round", number, seed))
        moves = (unsigned(draws) * (2 * reach) >> 16).view(n, 2, h, w) - reach
        places = (line + moves[:, 0]).clamp_(0, h - 1) * w + (column + moves[:, 1]).clamp_(0, w - 1)
        places = (start + torch.where(inside, places, line * w + column)).view(-1)
        if reach > 1:  # a neighbour may be a copy already
            places = _final_sources(places)
        x = x.view(n * h * w, ch).index_select(0, places).view(x.shape)
    return _bytes(_smoothed(x.float(), sigma, 4, _repeated))


def _final_sources(places: Tensor) -> Tensor:
    """Final source of each value if value i is copied from places[i], sequentially from the last.

    A later position was copied before, so its own source is used.
    """
    rows = torch.arange(len(places), device=places.device)
    end = torch.where(places > rows, places, rows)
    while not torch.equal(further := end[end], end):
        end = further
    return places[end]


def _motion_blur(pixels: Tensor, index: Tensor, seed: int, constants: tuple[int, float]) -> Tensor:
    return _bytes(_blur_along_angle(pixels.float(), *constants, _angle_of_blur(index, seed)))


def _angle_of_blur(index: Tensor, seed: int) -> Tensor:
    return (uniforms(index, 1, seed)[:, 0] - 0.5) * (math.pi / 2)


def _blur_along_angle(x: Tensor, radius: int, sigma: float, angle: Tensor) -> Tensor:
    """Blurs every image along a line at its own angle, by one-sided Gaussian weights; edges are repeated. Neighbours
    that move alike at a step are moved in one piece."""
    h, w = x.shape[1:3]
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights = weights[weights > 1e-5 * weights.sum()]
    weights /= weights.sum()
    steps = steps[: len(weights)]
    turned = angle.double().cpu().numpy()[:, None]
    down = np.rint(steps * np.sin(turned)).astype(np.int64)  # (n, steps)
    across = np.rint(steps * np.cos(turned)).astype(np.int64)
    (top, bottom), (left, right) = (down.min(), down.max()), (across.min(), across.max())
    padded, total = _with_edges(x, -top, bottom, -left, right), torch.zeros_like(x)
    for step, weight in enumerate(weights.tolist()):
        moves = np.stack([down[:, step] - top, across[:, step] - left], 1)
        starts = np.flatnonzero(np.any(np.diff(moves, axis=0, prepend=-1), axis=1)).tolist()
        for start, end in pairwise([*starts, len(x)]):
            line, column = moves[start].tolist()
            total[start:end].add_(padded[start:end, line : line + h, column : column + w], alpha=weight)
    return total


def _with_edges(x: Tensor, above: int, below: int, left: int, right: int) -> Tensor:
    """The images with repeated edges, copied by slices, which is faster than by index."""
    n, h, w, ch = x.shape
    padded = x.new_empty(n, above + h + below, left + w + right, ch)
    middle = padded[:, above : above + h]
    middle[:, :, :left], middle[:, :, left : left + w], middle[:, :, left + w :] = x[:, :, :1], x, x[:, :, -1:]
    padded[:, :above], padded[:, above + h :] = middle[:, :1], middle[:, -1:]
    return padded


def _zoom_blur(pixels: Tensor, index: Tensor, seed: int, constants: tuple[float, float]) -> Tensor:
    n, h, w, ch = pixels.shape
    factors = 1.0, *np.arange(1, *constants).tolist()
    x = _by_pixel(pixels)
    if max(h, w) < LARGE:
        x = _weighted_lines(x, *_zooms(h, w, factors))
    else:  # one map for all zooms would be too large
        whole: Any = sum(_zoomed(x.view(h, w, ch * n), factor) for factor in factors)
        x = whole / len(factors)
    return _by_image(_bytes(x.view(h * w, ch, n)), pixels)


def _weighted_lines(x: Tensor, places: Array, weights: Array, axis: int = 0) -> Tensor:
    """Weighted sums of k lines of x along an axis: places and weights (k, q), q lines instead of those of x."""
    shape = [-1 if number == axis else 1 for number in range(x.ndim)]
    total: Any = 0
    for position, weight in zip(torch.from_numpy(places).to(x.device), torch.from_numpy(weights).to(x), strict=True):
        total = total + x.index_select(axis, position).mul_(weight.view(shape))
    return total


def _zoomed(x: Tensor, factor: float) -> Tensor:
    """The middle of the images (h, w, …), enlarged bilinearly."""
    h, w = x.shape[:2]
    return _weighted_lines(_weighted_lines(x, *_sparse(_zoom(h, factor))), *_sparse(_zoom(w, factor)), axis=1)


@lru_cache(maxsize=16)
def _zooms(h: int, w: int, factors: tuple[float, ...]) -> tuple[Array, Array]:
    """Places and weights (k, h·w) of the mean of an image's middle, enlarged by each factor."""
    from scipy.sparse import csr_array, kron

    return _sparse(csr_array(sum(kron(_zoom(h, factor), _zoom(w, factor)) for factor in factors)) / len(factors))


def _zoom(size: int, factor: float) -> Any:
    """The sparse matrix (size, size) that enlarges the middle of a line, bilinearly.

    As published: whole pixels are cropped, the line's ends stay aligned, and surplus pixels are cropped after zooming.
    """
    from scipy.sparse import csr_array

    kept = math.ceil(size / factor)
    if kept == 1:
        return csr_array((np.ones(size), (np.arange(size), np.full(size, (size - 1) // 2))), (size, size))
    enlarged = round(kept * factor)
    position = (size - kept) // 2 + (np.arange(size) + (enlarged - size) // 2) * ((kept - 1) / (enlarged - 1))
    low = np.minimum(np.floor(position).astype(int), size - 2)
    values = np.concatenate([1 - (position - low), position - low])
    return csr_array((values, (np.tile(np.arange(size), 2), np.concatenate([low, low + 1]))), (size, size))


def _sparse(weights: Any) -> tuple[Array, Array]:
    """Column positions and weights (k, q) of a sparse matrix (q, p); k is the maximum number of values per row."""
    counts = np.diff(weights.indptr)
    at = np.arange(counts.max())[:, None]
    used, place = at < counts, np.minimum(weights.indptr[:-1] + at, len(weights.data) - 1)
    return np.where(used, weights.indices[place], 0).astype(np.int64), np.where(used, weights.data[place], 0.0)


# ---- weather


def _snow(pixels: Tensor, index: Tensor, seed: int, constants: tuple[float, ...]) -> Tensor:
    mean, spread, zoom, threshold, radius, sigma, weight = constants
    n, h, w, _ = pixels.shape
    flakes = (mean + spread * normals(index, h * w, seed)).t().contiguous().view(h, w, n)
    flakes = _zoomed(flakes, zoom).view(h * w, n).t()
    flakes = torch.where(flakes < threshold, 0, flakes).clamp_(0, 1).mul_(255).contiguous().view(n, h, w, 1)
    flakes = _blur_along_angle(flakes, int(radius), sigma, _angle_of_snow(index, seed))
    x = pixels.float()
    pale = torch.maximum(x, _grey(x) * 1.5 + 127.5)
    return _bytes(torch.lerp(pale, x, weight) + (flakes + flakes.rot90(2, (1, 2))))


def _angle_of_snow(index: Tensor, seed: int) -> Tensor:
    return -math.radians(135) + uniforms(index, 1, seed + 1)[:, 0] * (math.pi / 2)


def _grey(x: Tensor) -> Tensor:
    if x.shape[-1] == 1:
        return x
    return 0.299 * x[..., :1] + 0.587 * x[..., 1:2] + 0.114 * x[..., 2:3]


def _frost(pixels: Tensor, index: Tensor, seed: int, constants: tuple[float, float]) -> Tensor:
    """A crop of one of six frost pictures, drawn for each image."""
    image_weight, weight = constants
    h, w, ch = pixels.shape[1:]
    pictures = _ice(h, w, seed, pixels.device).unfold(1, h, 1).unfold(2, w, 1)
    draws = uniforms(index, 3, seed) * torch.tensor(pictures.shape[:3], device=pixels.device)
    ice = pictures[tuple(draws.long().unbind(1))][..., None]
    tint = torch.tensor([0.86, 0.94, 1.0], device=pixels.device) if ch == 3 else 1.0
    return _bytes(image_weight * pixels + weight * ice * tint)


@lru_cache(maxsize=8)
def _ice(h: int, w: int, seed: int, device: torch.device) -> Tensor:
    """(6, 2h, 2w) procedural frost from 0 to 255: bright needles between the cells of scattered points, on clouds.

    Computed on the CPU for equal pixels on every device; large pictures are drawn at 512 pixels.
    """
    from scipy.spatial import cKDTree
    from torch.nn import functional as F

    # needle spacing as in the photographs, which are scaled to a fifth for small images
    points = 96 if max(h, w) < LARGE else 1200
    numbers, side = torch.arange(6), min(2 * max(h, w), 512)
    scattered = uniforms(numbers, 2 * points, seed).view(6, points, 2).numpy()
    position = np.stack(np.meshgrid(*[np.linspace(0, 1, side)] * 2, indexing="ij"), -1)
    nearest = np.stack([cKDTree(seeds).query(position, 2)[0] for seeds in scattered])
    needles = torch.from_numpy(np.exp(-4.5 * math.sqrt(points) * (nearest[..., 1] - nearest[..., 0]))).float()
    with torch.inference_mode(False):
        ice = (0.35 + 0.3 * _plasma(numbers, side, 1.48, seed)[:, :side, :side] + 0.45 * needles).clamp(0, 1)
        return F.interpolate(255 * ice[:, None], (2 * h, 2 * w), mode="bilinear")[:, 0].to(device)


def _fog(pixels: Tensor, index: Tensor, seed: int, constants: tuple[float, float]) -> Tensor:
    strength, decay = constants
    h, w = pixels.shape[1:3]
    peak = pixels.flatten(1).amax(1).float()[:, None, None, None]
    mist = _plasma(index, max(h, w), decay, seed)[:, :h, :w, None]
    return _bytes((pixels + 255 * strength * mist) * (peak / (peak + 255 * strength)))


def _plasma(index: Tensor, size: int, decay: float, seed: int) -> Tensor:
    """(n, m, m) clouds from 0 to 1, m the next power of two: the diamond–square fractal on a torus."""
    m = 1 << max(1, (size - 1).bit_length())
    draws = bits(index, m * m, seed).view(-1, m, m) * 2.0**-15
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
        step, wobble = half, wobble / decay**2  # the published displacement is smoothed twice
    cloud = cloud - cloud.flatten(1).amin(1)[:, None, None]
    return cloud / cloud.flatten(1).amax(1)[:, None, None]


def _brightness(pixels: Tensor, index: Tensor, seed: int, more: float) -> Tensor:
    x = _by_pixel(pixels)
    value = x.amax(1, keepdim=True)
    lifted = (value + 255 * more).clamp_(0, 255)
    # colours of equal hue and saturation are multiples of each other; black becomes grey
    black = value == 0
    return _by_image(_bytes(x * (lifted / value.clamp_min(1)) + lifted * black), pixels)


# ---- digital


def _contrast(pixels: Tensor, index: Tensor, seed: int, factor: float) -> Tensor:
    x = _by_pixel(pixels)
    return _by_image(_bytes(x * factor + (1 - factor) * x.mean(0)), pixels)


def _elastic_transform(pixels: Tensor, index: Tensor, seed: int, constants: tuple[float, float, float]) -> Tensor:
    from torch.nn import functional as F

    n, h, w, _ = pixels.shape
    device = pixels.device
    size = 244 if max(h, w) >= LARGE else max(h, w)
    strength, smooth, corner = (constant * size for constant in constants)
    # an affine map that moves three points around the middle by up to `corner` pixels
    third = min(h, w) // 3
    centre = torch.tensor([w / 2, h / 2], device=device)
    before = torch.stack([centre + third, centre + torch.tensor([third, -third], device=device), centre - third])
    after = before + corner * (2 * uniforms(index, 6, seed).view(n, 3, 2) - 1)
    ones = torch.ones(n, 3, 1, device=device)
    affine = torch.linalg.solve(torch.cat([after, ones], 2).double(), before.double().expand(n, 3, 2))
    down, across = torch.meshgrid(
        torch.arange(h, device=device).float(), torch.arange(w, device=device).float(), indexing="ij"
    )
    places = torch.stack([across, down, torch.ones_like(down)], -1)
    # float64: a GPU may round float32 products to three digits
    moved = (places.view(1, h * w, 3).double() @ affine).view(n, h, w, 2).float()
    # mirrored as by OpenCV, without repeating the edge; a side of one pixel stays
    grid = 2 * moved / torch.tensor([max(w - 1, 1), max(h - 1, 1)], device=device) - 1
    x = F.grid_sample(pixels.permute(0, 3, 1, 2).float(), grid, padding_mode="reflection", align_corners=True)
    if strength:  # interpolated a second time, as published
        noise = (bits(index, 2 * h * w, seed + 1) * 2.0**-15).view(n, h, w, 2)
        pulled = places[..., :2] + strength * _smoothed(noise, smooth, 3, _reflected)
        grid = (2 * pulled + 1) / torch.tensor([w, h], device=device) - 1
        x = F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)
    return _bytes(x).permute(0, 2, 3, 1)


def _pixelate(pixels: Tensor, index: Tensor, seed: int, share: float) -> Tensor:
    n, h, w, ch = pixels.shape
    small = max(1, int(h * share)), max(1, int(w * share))
    x = _by_pixel(pixels).view(h, w, ch * n)
    for goal, start in ((small, (h, w)), ((h, w), small)):  # across first, halves rounded up, as Pillow does
        x = (_weighted_lines(x, *_box(start[1], goal[1]), axis=1) + 0.5).floor_()
        x = (_weighted_lines(x, *_box(start[0], goal[0])) + 0.5).floor_()
    return _by_image(x.clamp_(0, 255).byte().view(h * w, ch, n), pixels)


@lru_cache(maxsize=64)
def _box(start: int, goal: int) -> tuple[Array, Array]:
    """Places and weights (k, goal) of Pillow's box filter."""
    from scipy.sparse import csr_array

    scale = start / goal
    reach = 0.5 * max(scale, 1.0)
    weights = np.zeros((goal, start), np.float64)
    for row in range(goal):
        centre = (row + 0.5) * scale
        first, last = max(0, int(centre - reach + 0.5)), min(start, int(centre + reach + 0.5))
        position = (np.arange(first, last) - centre + 0.5) / max(scale, 1.0)
        weights[row, first:last] = (position > -0.5) & (position <= 0.5)
        weights[row] /= weights[row].sum()
    return _sparse(csr_array(weights))


def _jpeg_compression(pixels: Tensor, index: Tensor, seed: int, quality: int) -> Tensor:
    """By Pillow, image by image; rows are read from and written to one tall image, because transposing arrays is
    slow."""
    from PIL import Image
    from PIL.JpegImagePlugin import JpegImageFile

    n, h, w, ch = pixels.shape
    tall = Image.fromarray(pixels.numpy().reshape((n * h, w) if ch == 1 else (n * h, w, ch)))
    result = Image.new(tall.mode, tall.size)
    for top in range(0, n * h, h):
        file = io.BytesIO()
        tall.crop((0, top, w, top + h)).save(file, "JPEG", quality=quality)
        file.seek(0)
        result.paste(JpegImageFile(file), (0, top))
    return torch.from_numpy(np.array(result).reshape(pixels.shape))


FILTERS: dict[str, Callable[[Tensor, Tensor, int, Any], Tensor]] = {
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
ANGLES: dict[str, Callable[[Tensor, int], Tensor]] = {"motion_blur": _angle_of_blur, "snow": _angle_of_snow}
