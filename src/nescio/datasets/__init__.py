"""Datasets: labelled images from the layouts in which they are published, and batches of them on a device."""

from nescio.datasets import binary, sources  # noqa: F401  (importing registers)
from nescio.datasets.base import Dataset, Images, Splits, load, registry, source, splits, stratified
from nescio.datasets.batches import AUGMENTATIONS, Batches

__all__ = [
    "AUGMENTATIONS",
    "Batches",
    "Dataset",
    "Images",
    "Splits",
    "load",
    "registry",
    "source",
    "splits",
    "stratified",
]
