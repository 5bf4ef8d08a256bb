"""Datasets: labelled images from the layouts in which they are published, and batches of them on a device."""

from typing import TYPE_CHECKING, Any

from nescio.datasets import dense, image_folders, npz, retrieval, scenes, standard, subsets  # noqa: F401 (they register)
from nescio.datasets.builders import dataset_from_arrays, dataset_from_files
from nescio.datasets.images import Dataset, Images
from nescio.datasets.readers import DatasetRequest, dataset, load, registry, requested_path
from nescio.datasets.splits import Splits, split_dataset, stratified

if TYPE_CHECKING:
    from nescio.datasets.batches import AUGMENTATIONS, Batches

__all__ = [
    "AUGMENTATIONS",
    "Batches",
    "Dataset",
    "DatasetRequest",
    "Images",
    "Splits",
    "dataset",
    "dataset_from_arrays",
    "dataset_from_files",
    "load",
    "registry",
    "requested_path",
    "split_dataset",
    "stratified",
]


def __getattr__(name: str) -> Any:
    """Import batches, and with them torch, on first use: processes that only decode images do without torch."""
    if name in ("AUGMENTATIONS", "Batches"):
        from nescio.datasets import batches

        return getattr(batches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
