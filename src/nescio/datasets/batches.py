"""Batches of images on a device. Small sets live there as uint8 and are augmented there, all images of a batch at once.

What an epoch shows is a function of the seed alone: the order of the rows and, for each batch, the draws of the
augmentation. Every process of several draws for the whole batch and keeps its own rows, so that their number does not
change what is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nescio.config import seed_for
from nescio.datasets.base import Dataset, Images
from nescio.errors import BadInput

AUGMENTATIONS = {
    "none": "as it is",
    "shift": "moved by up to an eighth of its size",
    "crop-flip": "moved, and mirrored half of the time",
    "full": "a random part, mirrored, recoloured, greyed and blurred: for contrastive methods",
}
WORKERS = 4  # processes that read images from the disk


@dataclass
class Batches:
    """Yields (images (b, ch, h, w) normalised, labels (b,), index (b,)); with two views images are (2, b, ch, h, w)."""

    images: Images
    dataset: Dataset
    device: torch.device
    batch: int = 256
    augment: str = "none"
    seed: int = 0
    shuffle: bool = False
    drop_last: bool = False
    views: int = 1
    rank: int = 0
    world: int = 1
    start: int = 0  # batches to leave out: they were seen before a restart
    stop: int | None = None
    channels_last: bool = False

    def __post_init__(self) -> None:
        if self.augment not in AUGMENTATIONS:
            raise BadInput(f"There is no augmentation named {self.augment!r}. There are: {', '.join(AUGMENTATIONS)}.")

    def __len__(self) -> int:
        n = len(self.images)
        count = n // self.batch if self.drop_last else math.ceil(n / self.batch)
        return min(count, self.stop) if self.stop is not None else count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        n = len(self.images)
        order = np.random.default_rng(self.seed % 2**63).permutation(n) if self.shuffle else np.arange(n)
        pixels = self._resident() if self.images.pixels is not None else self._stream(order)
        labels, index = (torch.from_numpy(np.asarray(a)).to(self.device) for a in (self.images.labels, self.images.index))
        places = torch.from_numpy(order).to(self.device)
        for number in range(self.start, len(self)):
            rows = places[number * self.batch : (number + 1) * self.batch]
            mine = self._mine(len(rows))
            raw = pixels[rows[mine]] if isinstance(pixels, Tensor) else next(pixels).to(self.device, non_blocking=True)
            draw = torch.Generator(self.device).manual_seed(seed_for(self.seed, number))
            shown = [self._show(raw, len(rows), mine, draw) for _ in range(self.views)]
            x = shown[0] if self.views == 1 else torch.stack(shown)
            yield x, labels[rows[mine]], index[rows[mine]]

    def _mine(self, count: int) -> slice:
        """This process's rows of a batch of `count`."""
        if self.world == 1:
            return slice(0, count)
        share = math.ceil(count / self.world)
        return slice(self.rank * share, min((self.rank + 1) * share, count))

    def _resident(self) -> Tensor:
        """All images on the device as uint8 (n, ch, h, w), sent there once."""
        held = self.images.held
        if self.device not in held:
            assert self.images.pixels is not None
            held[self.device] = torch.from_numpy(self.images.pixels).permute(0, 3, 1, 2).contiguous().to(self.device)
        return held[self.device]  # type: ignore[no-any-return]

    def _stream(self, order: Any) -> Iterator[Tensor]:
        """uint8 batches decoded by worker processes."""
        assert self.images.files is not None
        parts = []
        for number in range(self.start, len(self)):
            rows = order[number * self.batch : (number + 1) * self.batch]
            parts.append(rows[self._mine(len(rows))].tolist())
        cropped = self.augment in ("crop-flip", "full")
        reader = _Reader(self.images.files, self.dataset.size, self.seed if cropped else None)
        pin = self.device.type == "cuda"
        loader = torch.utils.data.DataLoader(
            reader, batch_sampler=parts, num_workers=WORKERS, pin_memory=pin, collate_fn=torch.stack
        )
        return iter(loader)

    def _show(self, raw: Tensor, count: int, mine: slice, draw: torch.Generator) -> Tensor:
        def random(*shape: int) -> Tensor:
            return torch.rand(count, *shape, generator=draw, device=self.device)[mine]

        cropped_before = self.images.files is not None
        if self.augment in ("shift", "crop-flip") and not cropped_before:
            raw = shift(raw, random(2), max(1, self.dataset.size // 8))
        x = raw.float() / 255
        if self.augment == "full":
            if not cropped_before:
                x = zoom(x, random(4))
            x = mirror(x, random())
            x = blur(grey(recolour(x, random(5)), random()), random(2))
        elif self.augment == "crop-flip":
            x = mirror(x, random())
        mean, std = (torch.tensor(v, device=x.device).view(1, -1, 1, 1) for v in (self.dataset.mean, self.dataset.std))
        x = (x - mean) / std
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last else x


class _Reader(torch.utils.data.Dataset[Tensor]):
    def __init__(self, files: Any, size: int, seed: int | None) -> None:
        self.files, self.size, self.seed = files, size, seed

    def __getitem__(self, row: int) -> Tensor:
        from nescio.datasets.decode import decode, random_crop

        path = str(self.files[row])
        if self.seed is None:
            pixels = decode(path, self.size)
        else:
            pixels = random_crop(path, self.size, np.random.default_rng(seed_for(self.seed, row)))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


# ---- augmentation: x is (b, ch, h, w), every image has its own draw in [0, 1)


def shift(x: Tensor, draw: Tensor, most: int) -> Tensor:
    """Moves each image by up to `most` pixels each way; what comes in is black. draw (b, 2)."""
    b, _, h, w = x.shape
    padded = torch.nn.functional.pad(x, (most,) * 4)
    top, left = (draw * (2 * most + 1)).long().clamp_max(2 * most).unbind(1)
    rows = (top[:, None] + torch.arange(h, device=x.device))[:, None, :, None]
    columns = (left[:, None] + torch.arange(w, device=x.device))[:, None, None, :]
    each = torch.arange(b, device=x.device)[:, None, None, None]
    channel = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
    return padded[each, channel, rows, columns]


def mirror(x: Tensor, draw: Tensor) -> Tensor:
    """Mirrors every second image, left and right. draw (b,)."""
    return torch.where((draw < 0.5)[:, None, None, None], x.flip(3), x)


def zoom(x: Tensor, draw: Tensor, least: float = 0.2) -> Tensor:
    """A random part of each image (area `least` to 1, 3:4 to 4:3) at full size. draw (b, 4)."""
    area = least + (1 - least) * draw[:, 0]
    ratio = torch.exp((2 * draw[:, 1] - 1) * math.log(4 / 3))
    w, h = (area * ratio).sqrt().clamp_max(1), (area / ratio).sqrt().clamp_max(1)
    across, down = (1 - w) * (2 * draw[:, 2] - 1), (1 - h) * (2 * draw[:, 3] - 1)
    zero = torch.zeros_like(w)
    theta = torch.stack([torch.stack([w, zero, across], 1), torch.stack([zero, h, down], 1)], 1)
    grid = torch.nn.functional.affine_grid(theta, list(x.shape), align_corners=False)
    return torch.nn.functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def recolour(x: Tensor, draw: Tensor, strength: float = 0.4, share: float = 0.8) -> Tensor:
    """Brightness, contrast and saturation by up to ± `strength`, hue by up to ± a tenth of a turn, for a `share` of the
    images. draw (b, 5)."""
    touched = (draw[:, 4] < share)[:, None, None, None]
    factors = 1 + strength * (2 * draw[:, :3] - 1)
    bright, contrast, saturation = (factor[:, None, None, None] for factor in factors.unbind(1))
    y = x * bright
    y = (y - y.mean((1, 2, 3), keepdim=True)) * contrast + y.mean((1, 2, 3), keepdim=True)
    if x.shape[1] == 3:
        light = luma(y)
        y = (y - light) * saturation + light
        y = turn_hue(y, 0.2 * math.pi * (2 * draw[:, 3] - 1))
    return torch.where(touched, y.clamp(0, 1), x)


def turn_hue(x: Tensor, angle: Tensor) -> Tensor:
    """Turns the colours of each image about the grey axis."""
    to_yiq = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]], device=x.device)
    c, s, one, zero = angle.cos(), angle.sin(), torch.ones_like(angle), torch.zeros_like(angle)
    turn = torch.stack([one, zero, zero, zero, c, -s, zero, s, c], 1).view(-1, 3, 3)
    matrix = torch.linalg.inv(to_yiq) @ turn @ to_yiq
    return torch.einsum("bij,bjhw->bihw", matrix, x)


def luma(x: Tensor) -> Tensor:
    weights = torch.tensor([0.299, 0.587, 0.114], device=x.device).view(1, 3, 1, 1)
    return (x * weights).sum(1, keepdim=True)


def grey(x: Tensor, draw: Tensor, share: float = 0.2) -> Tensor:
    """Takes the colour out of a `share` of the images. draw (b,)."""
    if x.shape[1] != 3:
        return x
    return torch.where((draw < share)[:, None, None, None], luma(x).expand_as(x), x)


def blur(x: Tensor, draw: Tensor, share: float = 0.5) -> Tensor:
    """Gaussian blur with σ from 0.1 to 2 pixels per 32 of size, for a `share` of the images. draw (b, 2)."""
    b, ch, h, w = x.shape
    reach = max(1, h // 16)
    sigma = (0.1 + 1.9 * draw[:, 0]) * h / 32
    at = torch.arange(-reach, reach + 1, device=x.device)
    kernel = torch.exp(-at.square() / (2 * sigma[:, None].square()))
    kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(ch, 0)
    y = torch.nn.functional.pad(x, (reach,) * 4, mode="reflect").reshape(1, b * ch, h + 2 * reach, w + 2 * reach)
    y = torch.nn.functional.conv2d(y, kernel[:, None, None, :], groups=b * ch)
    y = torch.nn.functional.conv2d(y, kernel[:, None, :, None], groups=b * ch).view(b, ch, h, w)
    return torch.where((draw[:, 1] < share)[:, None, None, None], y, x)


