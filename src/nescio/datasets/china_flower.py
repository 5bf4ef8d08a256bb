"""Crops of two photographs: real images that contain no class of any other dataset."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets import decode
from nescio.datasets.builders import dataset_from_arrays
from nescio.datasets.images import Dataset
from nescio.datasets.readers import DatasetRequest, dataset
from nescio.errors import BadInput

NAMES = ("china", "flower")
SIZE, CROPS = 32, 500  # pixels of an image, and images of each photograph


@dataset("china-flower")
def china_flower(request: DatasetRequest) -> Dataset:
    """Scikit-learn's two photographs in 1,000 crops of 32 × 32 pixels, all of them test images: a far
    out-of-distribution set that needs no download."""
    crops = [_crops(_photograph(name), CROPS) for name in NAMES]
    labels = np.repeat(np.arange(len(NAMES)), CROPS)
    nothing = np.zeros((0, SIZE, SIZE, 3), np.uint8), np.zeros(0, np.int64)
    return dataset_from_arrays("china-flower", nothing, (np.concatenate(crops), labels), NAMES)


def _photograph(name: str) -> Array:
    """(h, w, 3) pixels, from the package's own file."""
    spec = find_spec("sklearn")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / "datasets" / "images" / f"{name}.jpg"
        if file.is_file():
            return np.asarray(decode.rgb(str(file)))
    raise BadInput(f"Scikit-learn's photograph {name}.jpg is missing: install scikit-learn again.")


def _crops(photograph: Array, count: int) -> Array:
    """(count, SIZE, SIZE, 3) crops on an even grid, twice as wide as kept, averaged over 2 × 2 pixels."""
    side = 2 * SIZE
    rows = int(np.ceil(np.sqrt(count)))
    tops = np.linspace(0, photograph.shape[0] - side, rows).astype(int)
    lefts = np.linspace(0, photograph.shape[1] - side, rows).astype(int)
    places = [(top, left) for top in tops for left in lefts][:count]
    wide = np.stack([photograph[top : top + side, left : left + side] for top, left in places])
    mean = wide.reshape(count, SIZE, 2, SIZE, 2, 3).mean((2, 4))
    return np.asarray(np.round(mean), np.uint8)
