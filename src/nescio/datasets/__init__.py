"""Datasets: labelled images from the layouts in which they are published, and batches of them on a device."""

from typing import TYPE_CHECKING, Any

from nescio.datasets import binary, dense, retrieval, scenes, sources  # noqa: F401  (importing registers)
from nescio.datasets.base import (
    Dataset,
    Images,
    Request,
    Splits,
    encoded,
    load,
    place_of,
    registry,
    resident,
    source,
    splits,
    stratified,
)

if TYPE_CHECKING:
    from nescio.datasets.batches import AUGMENTATIONS, Batches

__all__ = [
    "AUGMENTATIONS",
    "Batches",
    "Dataset",
    "Images",
    "Request",
    "Splits",
    "encoded",
    "load",
    "place_of",
    "registry",
    "resident",
    "source",
    "splits",
    "stratified",
]


def __getattr__(name: str) -> Any:
    """Batches need torch; processes that only decode images do without it."""
    if name in ("AUGMENTATIONS", "Batches"):
        from nescio.datasets import batches

        return getattr(batches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
