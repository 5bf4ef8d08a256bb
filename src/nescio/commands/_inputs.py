"""Predictions as commands take them: FILE or NAME=FILE, fields under other names or in files of their own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from nescio.errors import BadInput
from nescio.options import option
from nescio.predictions import Predictions, same_rows, shared_rows
from nescio.predictions.files import read_array
from nescio.predictions.model_predictions import predictions_from_text
from nescio.predictions.names import is_field
from nescio.predictions.shards import ShardFolder
from nescio.predictions.subset import random_subset
from nescio.specs import ZOO, assignment, location_of, mapping, sources
from nescio.work.store import Store

AT_ONCE = (
    1 << 28
)  # maximum size in bytes of a folder of shards that is read at once; larger ones are read shard by shard
MOST_SHARED = 0.1  # of the rows of two parts: an image may be in a dataset twice, a split that overlaps is a mistake


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Options for reading the predictions of a command."""

    map: tuple[str, ...] = option((), unset="standard names")
    logits: str | None = option(None)
    probs: str | None = option(None)
    labels: str | None = option(None)
    limit: int | None = option(None, unset="all")
    store: str = option("store")

    def files(self, texts: Sequence[str]) -> list[str]:
        """The files that were named, those of single arrays as one of them."""
        arrays = {"logits": self.logits, "probs": self.probs, "labels": self.labels}
        everything = [f"{field}:{path}" for field, path in arrays.items() if path is not None]
        if texts and everything:
            raise BadInput("--logits, --probs and --labels replace FILE: omit FILE or these options.")
        if not texts and not everything:
            raise BadInput("A FILE of predictions is required, or --logits and --labels. See --help.")
        if texts and all(Path(text).suffix.lower() == ".npy" and Path(text).is_file() for text in texts):
            raise BadInput(f"{texts[0]}: a .npy file contains one array without a name: {_array_option_hint(texts)}.")
        return [*texts] or [",".join(everything)]

    def read(self, text: str, seed: int = 0, *, ood: bool = False) -> Predictions:
        """The predictions of FILE or NAME=FILE, or the random subset of size --limit."""
        path = assignment(text)[1]
        if location_of(ZOO, path):
            predictions = predictions_from_text(path, Store(self.store)).load(ood=ood)
        elif arrays := _arrays(path):
            predictions = Predictions.from_files(ood=ood, **arrays)
        else:
            predictions = Predictions.load(path, names=self._names() or None, ood=ood)
        return random_subset(predictions, self.limit, seed)

    def shards(self, text: str, *, ood: bool = False) -> ShardFolder | None:
        """The folder of shards of an argument, if it is too large to be read at once."""
        folder = ShardFolder(Path(assignment(text)[1]), self._names() or None, ood)
        return folder if folder.files and folder.bytes > AT_ONCE else None

    def origin(self, text: str) -> dict[str, Any]:
        """Model, weights, preprocessing and checksum of the predictions; None if unknown."""
        name, path = assignment(text)
        if _arrays(path):
            return {"model": name or None, "weights": None, "predictions": None}
        predictions = predictions_from_text(path, Store(self.store))
        model = predictions.model if predictions.store is not None else name or None
        return {
            "model": model,
            "weights": predictions.weights,
            "predictions": predictions.key,
            **predictions.preprocessing,
            **predictions.source_facts,
        }

    def check_one_model(self, text: str, others: Mapping[str, str | None]) -> None:
        """Refuse predictions of different models of the store; `others` maps a flag to its argument."""
        model = assignment(text)[1]
        for flag, other in others.items():
            path = assignment(other or model)[1]
            if model != path and location_of(ZOO, model) and location_of(ZOO, path):
                raise BadInput(f"{flag} is {path}, and FILE is {model}: give rows of the same model.")

    def _names(self) -> dict[str, str]:
        return mapping(self.map, "FIELD=NAME", "--map")


def _array_option_hint(texts: Sequence[str]) -> str:
    """The options that read .npy files, by field."""
    options = {"--labels": "LABELS.npy"}
    for text in texts:
        array = np.asarray(read_array(Path(text)))
        if array.ndim == 1 and array.dtype.kind in "iuUSb":
            options["--labels"] = text
        elif array.ndim >= 2 and array.dtype.kind == "f":
            sums = array.sum(-1, dtype=np.float64)
            shares = array.size and array.min() >= 0 and np.allclose(sums, 1, atol=1e-2)
            options["--probs" if shares else "--logits"] = text
    if len(options) == 1:
        options["--logits"] = texts[0] if options["--labels"] != texts[0] else "LOGITS.npy"
    return "write " + " ".join(f"{flag} {shlex.quote(text)}" for flag, text in sorted(options.items(), reverse=True))


def _arrays(path: str) -> dict[str, str]:
    """Field → file of logits:a.npy,labels:b.npy; empty if the argument is a file."""
    files = sources(path)
    return files if all(map(is_field, files)) else {}


def load_ood_sets(
    texts: Sequence[str], inputs: InputOptions, seed: int = 0, flag: str = "--ood"
) -> dict[str, Predictions]:
    """The out-of-distribution sets of --ood NAME=FILE."""
    return {name: inputs.read(path, seed, ood=True) for name, path in parse_ood_files(texts, flag).items()}


def parse_ood_files(texts: Sequence[str], flag: str = "--ood") -> dict[str, str]:
    """Name → file of --ood NAME=FILE."""
    return mapping(texts, "NAME=FILE", flag)


def load_ood_of_models(
    texts: Sequence[str], models: Sequence[str], inputs: InputOptions, seed: int
) -> dict[str, dict[str, Predictions]]:
    """Out-of-distribution set → model → its rows, of --ood NAME=FILE with a file of every model, in their order."""
    places: dict[str, list[str]] = {}
    for text in texts:
        for name, path in parse_ood_files([text]).items():
            places.setdefault(name, []).append(path)
    for name, files in places.items():
        if len(files) != len(models):
            raise BadInput(
                f"--ood {name} has {len(files)} of {len(models)} files, one per model: write {name}=FILE for each, "
                f"in the order {', '.join(models)}."
            )
    return {
        name: {model: inputs.read(path, seed, ood=True) for model, path in zip(models, files, strict=True)}
        for name, files in places.items()
    }


def check_apart(
    models: Mapping[str, Predictions], others: Mapping[str, Predictions | None] | None = None
) -> tuple[str, ...]:
    """Refuse the same rows in two inputs: rows used for fitting must not be used for evaluation.

    Files that share more than a tenth of their rows are refused too; smaller overlaps become notes.
    """
    everything = {
        **models,
        **{name: predictions for name, predictions in (others or {}).items() if predictions is not None},
    }
    notes = []
    for (one, rows), (other, again) in combinations(everything.items(), 2):
        if same_rows(rows, again):
            if other in models:
                raise BadInput(f"{one} and {other} contain the same predictions: give files of different models.")
            raise BadInput(f"{one} and {other} contain the same rows: give different rows for each.")
        shared = 0 if other in models else shared_rows(rows, again)  # models are compared on rows that they share
        if shared > MOST_SHARED * min(len(rows), len(again)):
            raise BadInput(f"{one} and {other} have {shared:,} rows in common: use different rows.")
        if shared:
            notes.append(
                f"{one} and {other} have {shared:,} rows in common, which makes results on them too optimistic."
            )
    return tuple(notes)


def model_names(texts: Sequence[str]) -> list[str]:
    """The given names; else the file names without suffix, if these differ; else the arguments."""
    pairs = [assignment(text) for text in texts]
    stems = [name or (path if location_of(ZOO, path) else Path(path).stem) for name, path in pairs]
    names = stems if len(set(stems)) == len(stems) else [name or path for name, path in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadInput(f"{twice} is given twice: give each model a different name.")
    return names
