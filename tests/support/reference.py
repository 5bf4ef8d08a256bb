"""Values computed by other people's code on stored inputs; each note says which of them are mistakes."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(os.environ.get("NESCIO_REFERENCE") or Path(__file__).parents[1] / "reference")


def load(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


def note(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text())
