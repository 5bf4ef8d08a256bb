"""Inputs of networks: images under a network's view, in batches of normalised pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nescio.arrays.parallel import blocks
from nescio.datasets import Batches, pixel_cache
from nescio.datasets.feed import Normalizer, device_batches
from nescio.datasets.image_set import ImageSet, LoadedImages
from nescio.datasets.images import ConcatBacking
from nescio.networks.network import Network
from nescio.runtime import Runtime
from nescio.work.store import Store

PIXELS = {"cuda": 512 * 224 * 224, "cpu": 32 * 224 * 224}  # pixels of a batch, for pretrained networks
# Images of a batch, for trained networks: their images are small, and a GPU waits for kernel launches if they are few.
BATCH = {"cuda": 2048, "cpu": 512}
CPU_CACHE_BYTES = 256 << 20  # size of the cache of changed images; on a GPU, its memory / GPU_CACHE_SHARE
GPU_CACHE_SHARE = 16
_changed_images: dict[Any, Tensor] = {}  # cache of this process


def with_view_of(images: ImageSet, network: Network, root: str | Path | None = None) -> ImageSet:
    """The image set with the network's view, unless its images have that shape already."""
    if images.view is not None:
        return images
    if network.trial is not None:
        dataset = (replace(images, readable=False) if images.readable else images).load(root).dataset
        backing = dataset.train.backing if len(dataset.train) else dataset.test.backing
        crop = network.view.crop if backing.files is None else backing.files.crop
        if (
            network.view.shape == dataset.shape
            and crop == network.view.crop
            and dataset.channels == network.view.channels
        ):
            return images
    return replace(images, view=network.view)


def input_batches(
    network: Network, loaded: LoadedImages, store: Store | None, runtime: Runtime, batch: int
) -> Iterator[tuple[Tensor, int]]:
    """Batches of normalised pixels (b, ch, h, w), each with its number of images."""
    images, change = loaded.images, loaded.set.change
    # a CPU convolves images of published networks 1.4 times as fast with their channels last
    normalize = Normalizer(network.mean, network.std, runtime, runtime.channels_last or network.trial is None)
    if loaded.set.view is not None:
        assert store is not None, "pixels under a view are cached in a store"
        pixels = pixel_cache.cache_pixels(loaded, loaded.set.view, store)
        if change is None:
            for block, count in device_batches(pixels, batch, runtime.device):
                yield normalize(block), count
            return
        cached = np.load(pixels, mmap_mode="r")
    elif change is None and not isinstance(images.backing, ConcatBacking):
        for x, _, _ in Batches(images, network, runtime.device, batch=batch, channels_last=runtime.channels_last):
            yield x, len(x)
        return

    def pixels_of(rows: slice) -> Tensor:
        array = np.array(cached[rows]) if loaded.set.view is not None else images.backing.read(images.rows[rows])
        raw = torch.from_numpy(np.ascontiguousarray(array)).to(runtime.device)
        if change is None:
            return raw
        changed = change.apply(raw, torch.from_numpy(images.index[rows]).to(runtime.device))
        if change.stored and loaded.set.view is not None:
            viewed = [pixel_cache.decode_pixels(image, loaded.set.view) for image in changed.cpu().numpy()]
            changed = torch.from_numpy(np.stack(viewed)).to(runtime.device)
        return changed

    plain = map(pixels_of, blocks(len(loaded), batch))
    for raw in _cached_changes(loaded, runtime.device, batch, pixels_of) if change else plain:
        yield normalize(raw), len(raw)


def _cached_changes(
    loaded: LoadedImages, device: torch.device, batch: int, make: Callable[[slice], Tensor]
) -> Iterator[Tensor]:
    """Batches of changed images (b, h, w, ch), computed once per process while the cache has space.

    A full cache evicts nothing: each network reads all sets in order, so the oldest entries are needed first.
    """
    key = loaded.set, loaded.revision, loaded.rows, device
    if key in _changed_images:
        yield from _changed_images[key].split(batch)
        return
    if any(revision != loaded.revision for _, revision, *_ in _changed_images):  # another study
        _changed_images.clear()
    on_gpu = device.type == "cuda"
    space = torch.cuda.mem_get_info(device)[1] // GPU_CACHE_SHARE if on_gpu else CPU_CACHE_BYTES
    space -= sum(pixels.nbytes for pixels in _changed_images.values())
    batches: list[Tensor] = []
    for rows in blocks(len(loaded), batch):
        raw = make(rows)
        if raw[0].nbytes * len(loaded) <= space:
            batches.append(raw)
        yield raw
    if batches:
        _changed_images[key] = torch.cat(batches)


def free_memory() -> None:
    """Empty the caches of a device."""
    _changed_images.clear()
    torch.cuda.empty_cache()


def default_batch_size(network: Network, runtime: Runtime, shape: tuple[int, int] | None = None) -> int:
    """Number of images per batch that fits into memory and keeps the device busy.

    shape  (height, width) of the images (default: that of the network's view)
    """
    shape = shape or network.view.shape
    if network.trial is not None and max(shape) <= 64:
        return BATCH.get(runtime.device.type, BATCH["cuda"])
    return max(1, PIXELS.get(runtime.device.type, PIXELS["cuda"]) // math.prod(shape))
