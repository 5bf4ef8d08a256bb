"""Batches of images on a device. Small sets are stored and augmented there as uint8, all images of a batch at once.

The seed alone decides an epoch: the order of rows and, for each batch, the random numbers of each image. They are drawn
on the CPU, so that all devices get the same images. Each process draws for the whole batch and keeps its own rows, so
the number of processes changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nescio.arrays.parallel import thread_count
from nescio.arrays.types import Array
from nescio.datasets.changes import axis_map
from nescio.datasets.decode import decode
from nescio.datasets.images import Dataset, EncodedImages, ImageFiles, Images, Pixels
from nescio.errors import BadInput
from nescio.identity import seed_for

AUGMENTATIONS = {
    "none": "as it is",
    "shift": "moved by up to an eighth of its size",
    "crop-flip": "moved (above 64 pixels: a random crop of at least 8 % of it), and mirrored half of the time; with "
    "label maps: scaled by 0.5 to 2, moved and mirrored together with them",
    "full": "a random crop of at least 20 %, mirrored, recoloured, greyed and blurred: for contrastive methods",
}
SMALL = 64  # up to this size a crop shifts the image, above it a crop cuts a window
WORKERS = 16  # processes, at most, that read images from the disk
SCALES = 0.5, 2.0  # scale factors of images with label maps
Loaded: TypeAlias = tuple[Tensor, Tensor | None]  # uint8 images and label maps
DRAWS = 13  # numbers in [0, 1) for each image
PLACE, MIRROR, COLOUR, GREY, BLUR = slice(0, 4), 4, slice(5, 10), 10, slice(11, 13)  # positions by purpose


@dataclass
class Batches:
    """Yields (images (b, ch, h, w), normalised, labels (b,), index (b,)); several views are (views, b, ch, h, w).

    Label maps are labels (b, h, w), and an augmentation transforms both.
    Its length is that of the whole epoch; `start` skips the batches before a restart.
    """

    images: Images
    dataset: Dataset
    device: torch.device
    batch: int = 256
    augment: str = "none"
    border: str = "black"  # border of a shifted image: black, or reflect
    seed: int = 0
    shuffle: bool = False
    drop_last: bool = False
    views: int = 1
    rank: int = 0
    world: int = 1
    start: int = 0
    stop: int | None = None
    channels_last: bool = False

    def __post_init__(self) -> None:
        if self.augment not in AUGMENTATIONS:
            raise BadInput(f"There is no augmentation named {self.augment!r}. There are: {', '.join(AUGMENTATIONS)}.")
        if self.images.maps is not None and (self.views > 1 or self.augment not in ("none", "crop-flip")):
            what = f"{self.views} views" if self.views > 1 else self.augment
            raise BadInput(f"Images with label maps are augmented by none or crop-flip in one view, not by {what}.")
        if self.batch < 1:
            raise BadInput(f"batch is {self.batch}: a batch needs at least 1 image.")

    def __len__(self) -> int:
        n = len(self.images)
        count = n // self.batch if self.drop_last else math.ceil(n / self.batch)
        return min(count, self.stop) if self.stop is not None else count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        order = self._order()
        labels, index = torch.from_numpy(np.stack([self.images.labels[order], self.images.index[order]])).to(
            self.device
        )
        moments = torch.tensor([self.dataset.mean, self.dataset.std], device=self.device)
        mean, std = moments[:, None, :, None, None]
        backing = self.images.backing
        raws = self._stream(order) if isinstance(backing, EncodedImages) else self._resident(backing, order)
        for number, (raw, maps) in zip(range(self.start, len(self)), raws, strict=True):
            mine = self._mine(number)
            y = labels[mine] if maps is None else maps
            raw = raw.expand(self.views, -1, -1, -1, -1).flatten(0, 1)
            raw = raw.permute(0, 3, 1, 2)  # (views·b, ch, h, w); its memory stays (…, h, w, ch)
            draws = None if self.augment == "none" else self._draws(number).to(self.device, non_blocking=True)
            with torch.autocast(self.device.type, enabled=False):  # all views at once
                if maps is not None and draws is not None:
                    raw, y = framed(raw, maps, draws[0], self.dataset.void, self.border)
                    draws = None
                x = self._augment(raw, None if draws is None else draws.flatten(0, 1), mean, std)
            if self.views > 1:
                x = x.unflatten(0, (self.views, mine.stop - mine.start))
            yield x, y.long(), index[mine]

    def _order(self) -> Array:
        """Rows of `images` in the order of the epoch. Uses raw bits, because NumPy may change its permutations."""
        n = len(self.images)
        return np.argsort(np.random.PCG64(self.seed).random_raw(n), kind="stable") if self.shuffle else np.arange(n)

    def _mine(self, number: int) -> slice:
        """This process's shard of a batch, as positions in the order."""
        first, end = number * self.batch, min((number + 1) * self.batch, len(self.images))
        share = math.ceil((end - first) / self.world)
        return slice(min(first + self.rank * share, end), min(first + (self.rank + 1) * share, end))

    def _draws(self, number: int) -> Tensor:
        """The draws of this process's images, (views, b, DRAWS)."""
        first, mine = number * self.batch, self._mine(number)
        count = min(self.batch, len(self.images) - first)
        generator = torch.Generator().manual_seed(seed_for(self.seed, number))
        draws = torch.rand(self.views, count, DRAWS, generator=generator)
        return draws[:, mine.start - first : mine.stop - first]

    @property
    def _least(self) -> float | None:
        """The smallest share of an image's area that a crop keeps; None without crops."""
        if self.augment == "full":
            return 0.2
        return 0.08 if self.augment == "crop-flip" and self.dataset.size > SMALL else None

    def _augment(self, raw: Tensor, draw: Tensor | None, mean: Tensor, std: Tensor) -> Tensor:
        """The augmented and normalised images."""
        x, peak = raw, 255.0
        streamed = isinstance(self.images.backing, EncodedImages)
        if draw is not None:
            if self._least is None:
                x = shift(x, draw[:, PLACE], max(1, self.dataset.size // 8), self.border)
            elif not streamed:  # streamed images were cropped from the file at full resolution
                x, peak = zoom(x.float() / peak, draw[:, PLACE], self._least), 1.0
            if self.augment != "shift":
                x = mirror(x, draw[:, MIRROR])
            if self.augment == "full":
                x, peak = x.float() / peak, 1.0
                x = blur(grey(recolour(x, draw[:, COLOUR]), draw[:, GREY]), draw[:, BLUR])
        x = torch.addcmul(-mean / std, x, 1 / (peak * std))
        return x.contiguous(memory_format=torch.channels_last if self.channels_last else torch.contiguous_format)

    def _resident(self, backing: Pixels, order: Array) -> Iterator[Loaded]:
        """uint8 batches (1, b, h, w, ch) of images on the device, and their label maps (b, h, w) if there are any."""
        pixels, rows = backing.on(self.device), torch.from_numpy(self.images.rows[order]).to(self.device)
        maps = self.images.maps.on(self.device) if isinstance(self.images.maps, Pixels) else None
        for number in range(self.start, len(self)):
            mine = rows[self._mine(number)]
            yield pixels[mine][None], None if maps is None else maps[mine][..., 0]

    def _stream(self, order: Array) -> Iterator[Loaded]:
        """The same from worker processes, the images as (views or 1, b, h, w, ch)."""
        numbers = range(self.start, len(self))
        loader = torch.utils.data.DataLoader(
            _Reader(self, order),
            sampler=numbers,  # type: ignore[arg-type]
            batch_size=None,
            num_workers=min(WORKERS, max(1, thread_count() // self.world), len(numbers)),
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # the global one belongs to the method: a restart must not change its draws
        )
        for loaded in loader:
            if isinstance(loaded, BadInput):
                raise loaded
            raw, maps = loaded
            maps = None if maps is None else maps.to(self.device, non_blocking=True)
            yield raw.to(self.device, non_blocking=True), maps


class _Reader(torch.utils.data.Dataset[Any]):
    """Decodes whole batches, by number."""

    def __init__(self, batches: Batches, order: Array) -> None:
        self.batches, self.order = batches, order

    def __getitem__(self, number: int) -> Loaded | BadInput:
        batches, backing, maps = self.batches, self.batches.images.backing, self.batches.images.maps
        assert isinstance(backing, EncodedImages)
        rows = batches.images.rows[self.order[batches._mine(number)]]
        try:
            if isinstance(backing, ImageFiles) and isinstance(maps, ImageFiles):
                images, labels = (np.stack([files.one(row) for row in rows]) for files in (backing, maps))
                return torch.from_numpy(images[None]), torch.from_numpy(labels[..., 0])
            views: list[list[list[float] | None]] = [[None] * len(rows)]
            if batches._least is not None:
                views = [random_box(draw[:, PLACE], batches._least).tolist() for draw in batches._draws(number)]
            sources = [backing.source(row) for row in rows]
            out = np.empty((len(views), len(sources), backing.size, backing.size, 3), np.uint8)
            for boxes, view in zip(views, out, strict=True):
                for row, (source, box) in enumerate(zip(sources, boxes, strict=True)):
                    view[row] = decode(source, backing.size, backing.crop, box)
        except BadInput as error:  # passed as a value: exceptions raised in a worker arrive as tracebacks
            return error
        return torch.from_numpy(out), None


# ---- augmentation: x is (b, ch, h, w), every image has its own draws in [0, 1)


def shift(x: Tensor, draw: Tensor, most: int, border: str = "black") -> Tensor:
    """Shift each image by up to `most` pixels in each direction; the border is black or a reflection. draw (b, ≥ 2)."""
    b, _, h, w = x.shape
    top, left = (draw[:, :2] * (2 * most + 1)).long().clamp_max(2 * most).unbind(1)
    rows = (top[:, None] + torch.arange(h, device=x.device))[:, :, None]
    columns = (left[:, None] + torch.arange(w, device=x.device))[:, None, :]
    if border == "reflect":
        source, rows, columns = x, _reflected(rows - most, h), _reflected(columns - most, w)
    else:
        source = F.pad(x, (most,) * 4)
    images = torch.arange(b, device=x.device)[:, None, None]
    return source.permute(0, 2, 3, 1)[images, rows, columns].permute(0, 3, 1, 2)


def _reflected(position: Tensor, size: int) -> Tensor:
    """Positions, those beyond an edge mirrored at it."""
    return (size - 1) - ((size - 1) - position.abs()).abs()


def mirror(x: Tensor, draw: Tensor) -> Tensor:
    """Mirror half of the images, left and right. draw (b,)."""
    return torch.where(_per_image(draw < 0.5), x.flip(3), x)


def framed(x: Tensor, y: Tensor, draw: Tensor, void: int | None, border: str = "black") -> tuple[Tensor, Tensor]:
    """Images and their label maps (b, h, w), scaled, shifted and mirrored together, at their own size.

    The border is void; without a void label images are only enlarged. draw (b, MIRROR + 1 or more).
    """
    least, most = SCALES if void is not None else (1.0, SCALES[1])
    side = 1 / (least * (most / least) ** draw[:, 0])  # size of the visible window, as a share of the image's
    shift = (1 - side)[:, None] * (2 * draw[:, 2:4] - 1)
    across = torch.where(draw[:, MIRROR] < 0.5, -side, side)
    grid = F.affine_grid(axis_map(across, side, shift[:, 0], shift[:, 1]), list(x.shape), align_corners=False)
    mode = "reflection" if border == "reflect" else "zeros"
    moved = F.grid_sample(x.float(), grid, padding_mode=mode, align_corners=False)
    beyond = void or 0  # labels are sampled as distances from void, which is 0 beyond the edge
    labels = F.grid_sample(y[:, None].float() - beyond, grid, mode="nearest", align_corners=False) + beyond
    return moved, labels[:, 0].round()


def random_box(draw: Tensor, least: float) -> Tensor:
    """A random part of each image, of an area from `least` to 1 and sides from 3:4 to 4:3, if it fits: (b, 4), the
    shares (left, top, right, bottom). draw (b, 4)."""
    area = least + (1 - least) * draw[:, 0]
    ratio = torch.exp((2 * draw[:, 1] - 1) * math.log(4 / 3))
    sides = torch.stack([area * ratio, area / ratio], 1).sqrt().clamp_max(1)
    corner = (1 - sides) * draw[:, 2:4]
    return torch.cat([corner, corner + sides], 1)


def zoom(x: Tensor, draw: Tensor, least: float) -> Tensor:
    """A random crop of each image, resized to full size. draw (b, 4)."""
    left, top, right, bottom = random_box(draw, least).unbind(1)
    theta = axis_map(right - left, bottom - top, left + right - 1, top + bottom - 1)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def recolour(x: Tensor, draw: Tensor, strength: float = 0.4, share: float = 0.8) -> Tensor:
    """Brightness, contrast and saturation by up to ± `strength`, hue by up to ± a tenth of a turn, for a `share` of the
    images; without colours only the first two. draw (b, 5)."""
    bright, contrast, saturation = (_per_image(factor) for factor in (1 + strength * (2 * draw[:, :3] - 1)).unbind(1))
    y = x * bright
    y = torch.lerp(y.mean((1, 2, 3), keepdim=True), y, contrast)
    if x.shape[1] == 3:
        y = torch.lerp(luma(y), y, saturation)
        y = turn_hue(y, 0.2 * math.pi * (2 * draw[:, 3] - 1))
    return torch.where(_per_image(draw[:, 4] < share), y.clamp(0, 1), x)


# Lightness and two axes of colour (NTSC); grey lies on the first axis alone, because the other rows sum to 0.
YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


def turn_hue(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate the colours of each image about the grey axis."""
    there, back = (torch.tensor(matrix, dtype=x.dtype, device=x.device) for matrix in (YIQ, np.linalg.inv(YIQ)))
    c, s, one, zero = angle.cos(), angle.sin(), torch.ones_like(angle), torch.zeros_like(angle)
    turn = torch.stack([one, zero, zero, zero, c, -s, zero, s, c], 1).view(-1, 3, 3)
    return torch.einsum("bij,bjhw->bihw", back @ turn @ there, x)


def luma(x: Tensor) -> Tensor:
    """Lightness, (b, 1, h, w)."""
    red, green, blue = (x[:, channel : channel + 1] for channel in range(3))
    return 0.299 * red + 0.587 * green + 0.114 * blue


def grey(x: Tensor, draw: Tensor, share: float = 0.2) -> Tensor:
    """Convert a `share` of the images to grey. draw (b,)."""
    return torch.where(_per_image(draw < share), luma(x), x) if x.shape[1] == 3 else x


def blur(x: Tensor, draw: Tensor, share: float = 0.5) -> Tensor:
    """Gaussian blur of a `share` of the images, σ from 0.1 to 2 pixels, or to a 32nd of the size. draw (b, 2)."""
    b, ch, h, w = x.shape
    most = min(2.0, h / 32)
    reach = math.ceil(2.5 * most)
    sigma = 0.1 + (most - 0.1) * draw[:, :1]
    offsets = torch.arange(-reach, reach + 1, device=x.device)
    kernel = torch.exp(-offsets.square() / (2 * sigma.square()))
    kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(ch, 0)[:, None, :, None]
    y = F.pad(x, (reach,) * 4, mode="reflect").reshape(1, b * ch, h + 2 * reach, w + 2 * reach)
    y = F.conv2d(F.conv2d(y, kernel, groups=b * ch), kernel.transpose(2, 3), groups=b * ch).view(b, ch, h, w)
    return torch.where(_per_image(draw[:, 1] < share), y, x)


def _per_image(values: Tensor) -> Tensor:
    """One value per image, (b,), against its pixels."""
    return values[:, None, None, None]
