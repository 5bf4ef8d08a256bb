"""Shifted images that come as files: the published CIFAR-10-C and CIFAR-100-C, and levels of a folder of label maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets.builders import checksum
from nescio.datasets.corruptions import CORRUPTIONS, SEVERITIES, NamedCorruption
from nescio.datasets.dense import shift_levels
from nescio.datasets.image_set import ImageSet
from nescio.datasets.readers import DatasetRequest, load, requested_path
from nescio.errors import BadInput
from nescio.identity import ContentName, tag
from nescio.predictions import files
from nescio.predictions.formats.npy import map_npy
from nescio.specs import DatasetName, split_severity

if TYPE_CHECKING:
    from torch import Tensor


# additional corruptions of the published folders, meant for tuning
FURTHER = ("speckle_noise", "gaussian_blur", "spatter", "saturate")


@tag("published-corruption-2")
@dataclass(frozen=True)
class PublishedCorruption(NamedCorruption):
    """One severity of a published file of corrupted test images, in place of ours. Created by `published_corruptions`.

    path/name.npy contains the test set five times, severities 1 to 5 in order, (5n, h, w, ch) uint8.
    """

    path: str
    name: str
    severity: int
    revision: str  # checksum of the file
    first: int  # index of the first test image: 50,000 of CIFAR

    stored = True

    def apply(self, pixels: Tensor, index: Tensor) -> Tensor:
        """The rows of the file that show the same images."""
        import torch

        file = Path(self.path, f"{self.name}.npy")
        array = _read(file)
        if checksum(file) != self.revision:
            raise BadInput(f"{file} has changed since this run began: start the run again.")
        n = len(array) // len(SEVERITIES)
        rows = index.cpu().numpy() - self.first
        if len(rows) and (rows.min() < 0 or rows.max() >= n):
            raise BadInput(f"{self.path} contains corrupted test images only: select the test split.")
        return torch.from_numpy(array[(self.severity - 1) * n + rows]).to(pixels.device)


def published_corruptions(
    path: str | Path,
    data: str,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    root: str | Path | None = None,
) -> list[PublishedCorruption]:
    """The changes ImageSet(data, change=…) in a folder of published files, after a check of its labels."""
    published = requested_path(DatasetRequest(None if root is None else Path(root), str(path)))
    test = load(data, root).test
    labels, shape = _read(published / "labels.npy"), test.backing.read(test.rows[:1]).shape[1:]
    numbers = labels.dtype.kind in "iu" and labels.shape == (len(SEVERITIES) * len(test),)
    if not numbers or (labels.reshape(len(SEVERITIES), -1) != test.labels).any():
        raise BadInput(f"{published / 'labels.npy'} is not the labels of the test images of {data}, five times.")
    changes = []
    for name in corruptions:
        array = _read(published / f"{name}.npy")
        if array.shape != (len(labels), *shape) or array.dtype != np.uint8:
            raise BadInput(
                f"{published / name}.npy has {array.dtype} of shape {array.shape}; uint8 of {(len(labels), *shape)} is "
                f"expected: the test images of {data} at five severities."
            )
        revision, first = checksum(published / f"{name}.npy"), int(test.index[0])
        # the file's checksum is in keys, the folder is not
        folder = ContentName(str(published), "published")
        changes += [PublishedCorruption(folder, name, severity, revision, first) for severity in severities]
    return changes


def _read(path: Path) -> Array:
    """A memory-mapped .npy file."""
    with files.naming_file(path, "read"):
        return map_npy(path)


class Level(NamedTuple):
    """Images at one level of a shift."""

    condition: str
    level: float
    images: ImageSet


def levels(data: str, root: str | Path | None = None) -> list[Level]:
    """Every level of every shift of maps:PATH, in order of conditions and levels; empty for a level itself."""
    name = DatasetName.parse(data)
    if name.kind != "maps":
        raise BadInput(f"{data} has no folders of shifted images: maps:PATH has.")
    path, level = split_severity(name.path or "")
    if level:
        return []
    root_folder = requested_path(DatasetRequest(None if root is None else Path(root), path))
    return [
        Level(condition, level, ImageSet(name.with_path(f"{root_folder}#{folder}")))
        for condition, level, folder in shift_levels(root_folder)
    ]
