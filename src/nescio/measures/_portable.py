"""Fitted scores as small files, from which exported networks compute them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.files import parse_json
from nescio.measures._spec import registry
from nescio.predictions import Predictions

LOGIT_MEASURES = (  # measures that an exported file computes from its logits alone
    *("msp", "entropy", "energy", "max_logit", "gap", "gen", "renyi", "tsallis", "dempster_shafer", "pnorm"),
)
PORTABLE = (
    *("mahalanobis", "mds", "mds_plus", "rmds", "rmds_plus", "gmm", "residual", "vim", "fdbd", "nci", "nnguide"),
    *("knn", "knn_distance", "she", "kl_matching", "sirc", "react", "ash", "scale", "dice"),
)
META = "score"  # the key of the file's metadata


@dataclass(frozen=True, eq=False)
class FittedScore:
    """A measure of PORTABLE with its fitted arrays, such as class means or a bank of reference rows."""

    measure: str
    arrays: Mapping[str, Array]

    @property
    def width(self) -> int:
        """The number of features of an embedding; 0 if the score uses no embeddings."""
        return int(self.arrays["width"])

    @property
    def contents(self) -> str:
        """The names and shapes of the arrays, as text."""
        shapes = (f"{name} {' × '.join(map(str, x.shape))}" for name, x in self.arrays.items() if x.ndim)
        return ", ".join(shapes)

    def save(self, path: str | Path) -> str:
        """Write a .safetensors file and return its SHA-256."""
        from safetensors.numpy import save

        target = Path(path)
        if target.suffix != ".safetensors":
            raise BadInput(f"{target} ends in {target.suffix or 'nothing'}; a fitted score is kept as .safetensors.")
        arrays = {name: np.array(x, np.float64, order="C") for name, x in self.arrays.items()}
        content = save(arrays, {META: json.dumps({"measure": self.measure})})
        target.write_bytes(content)
        return sha256(content).hexdigest()

    @staticmethod
    def load(path: str | Path, digest: str | None = None) -> FittedScore:
        """Read what `save` wrote; refuse a file whose SHA-256 is not `digest`."""
        from safetensors import safe_open

        try:
            if digest is not None and sha256(Path(path).read_bytes()).hexdigest() != digest:
                raise BadInput(f"{path} is not the fitted score that the threshold was set with.")
            with safe_open(str(path), "numpy") as file:
                measure = parse_json((file.metadata() or {})[META], str(path))["measure"]
                score = FittedScore(measure, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
            if measure not in PORTABLE or score.width < 0:
                raise ValueError(f"unknown measure {measure!r}")
            return score
        except BadInput:
            raise
        except Exception as error:  # the reader raises errors of many types
            raise BadInput(f"{path} contains no fitted score that nescio wrote.") from error


def portable(measure: str, fitted: Any) -> FittedScore:
    """A fitted measure as arrays."""
    if measure not in PORTABLE:
        raise BadInput(f"The measure {measure!r} cannot be exported. Fitted ones that can: {', '.join(PORTABLE)}.")
    return FittedScore(measure, fitted.arrays)


def fit(measure: str, train: Predictions) -> Any:
    """Fit the measure to reference rows, as scorecards do."""
    registered = registry[measure]
    if registered.kind != "fitted":
        raise BadInput(f"The measure {measure!r} is not fitted to reference rows: leave them out.")
    registered.check(train)
    try:
        return registered.fit(train)
    except Undefined as error:
        raise BadInput(f"The measure {measure!r} cannot be fitted: {error}") from error
