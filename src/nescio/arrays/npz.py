"""Named arrays as the bytes of one .npz file, and back."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from nescio.arrays.types import Array


def npz_bytes(arrays: Mapping[str, Array]) -> bytes:
    """The arrays as a compressed .npz file."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def read_npz(path: str | Path) -> dict[str, Array]:
    """The arrays of an .npz file."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}
