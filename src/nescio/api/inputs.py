"""Predictions as functions and commands take them: FILE or NAME=FILE, predictions in memory, arrays, other names."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from nescio.arrays.types import Array
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

AT_ONCE = 1 << 28  # maximum size in bytes of a folder of shards that is read at once
MOST_SHARED = 0.1  # maximum share of common rows: an image may be in a dataset twice, overlapping splits are a mistake


@dataclass(frozen=True, eq=False)
class Named:
    """Predictions in memory with their name."""

    name: str
    predictions: Predictions


Source = str | Named  # a text FILE or NAME=FILE, or predictions in memory


def name_of(source: Source) -> str:
    """The name that was given, else the text itself."""
    return source.name if isinstance(source, Named) else assignment(source)[0] or source


def path_of(source: Source) -> str:
    """The text without its name; empty for predictions in memory."""
    return "" if isinstance(source, Named) else assignment(source)[1]


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Options for reading the predictions of a command."""

    map: tuple[str, ...] = option((), unset="standard names")
    logits: str | Array | None = option(None)
    probs: str | Array | None = option(None)
    labels: str | Array | None = option(None)
    limit: int | None = option(None, unset="all")
    store: str = option("store")

    def files(self, sources: Sequence[Source]) -> list[Source]:
        """The predictions that were named; single arrays are one of them."""
        arrays = {"logits": self.logits, "probs": self.probs, "labels": self.labels}
        arrays = {name: array for name, array in arrays.items() if array is not None}
        if sources and arrays:
            raise BadInput("logits, probs and labels replace FILE: omit FILE or these options.")
        if not sources and not arrays:
            raise BadInput("A FILE of predictions is required: name one, or give logits and labels.")
        if sources and all(path_of(s).lower().endswith(".npy") and Path(path_of(s)).is_file() for s in sources):
            texts = [path_of(source) for source in sources]
            raise BadInput(f"{texts[0]}: a .npy file contains one array without a name: {_array_option_hint(texts)}.")
        if sources:
            return [*sources]
        if all(isinstance(array, str) for array in arrays.values()):
            return [",".join(f"{field}:{path}" for field, path in arrays.items())]
        logits, probs, labels = (
            read_array(Path(array)) if isinstance(array, str) else array
            for array in (self.logits, self.probs, self.labels)
        )
        return [Named("predictions", Predictions(logits=logits, probs=probs, labels=labels))]

    def read(self, source: Source, seed: int = 0, *, ood: bool = False) -> Predictions:
        """The predictions of FILE or NAME=FILE, or the random subset of size `limit`."""
        path = path_of(source)
        if isinstance(source, Named):
            predictions = source.predictions
        elif location_of(ZOO, path):
            predictions = predictions_from_text(path, Store(self.store)).load(ood=ood)
        elif arrays := _arrays(path):
            predictions = Predictions.from_files(ood=ood, **arrays)
        else:
            predictions = Predictions.load(path, names=self._names() or None, ood=ood)
        return random_subset(predictions, self.limit, seed)

    def shards(self, source: Source, *, ood: bool = False) -> ShardFolder | None:
        """The folder of shards of an argument, if it is too large to be read at once."""
        if isinstance(source, Named):
            return None
        folder = ShardFolder(Path(path_of(source)), self._names() or None, ood)
        return folder if folder.files and folder.bytes > AT_ONCE else None

    def origin(self, source: Source) -> dict[str, object]:
        """Model, weights, preprocessing and checksum of the predictions; None if unknown."""
        if isinstance(source, Named) or _arrays(path_of(source)):
            name = source.name if isinstance(source, Named) else assignment(source)[0]
            return {"model": name or None, "weights": None, "predictions": None}
        predictions = predictions_from_text(path_of(source), Store(self.store))
        model = predictions.model if predictions.store is not None else assignment(source)[0] or None
        return {
            "model": model,
            "weights": predictions.weights,
            "predictions": predictions.key,
            **predictions.preprocessing,
            **predictions.source_facts,
        }

    def check_one_model(self, source: Source, others: Mapping[str, Source | None]) -> None:
        """Refuse predictions of different models of the store; `others` maps a field to its value."""
        model = path_of(source)
        for field, other in others.items():
            path = path_of(other or source)
            if model != path and location_of(ZOO, model) and location_of(ZOO, path):
                raise BadInput(f"{field} is {path}, and FILE is {model}: give rows of the same model.")

    def _names(self) -> dict[str, str]:
        return mapping(self.map, "FIELD=NAME", "map")


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
    sources: Sequence[Source], inputs: InputOptions, seed: int = 0, field: str = "ood"
) -> dict[str, Predictions]:
    """The out-of-distribution sets of NAME=FILE."""
    return {name: inputs.read(source, seed, ood=True) for name, source in parse_ood_files(sources, field).items()}


def parse_ood_files(sources: Sequence[Source], field: str = "ood") -> dict[str, Source]:
    """Name → NAME=FILE or predictions in memory."""
    named = {source.name: source for source in sources if isinstance(source, Named)}
    files = mapping([source for source in sources if isinstance(source, str)], "NAME=FILE", field)
    return {**files, **named}


def load_ood_of_models(
    sources: Sequence[Source], models: Sequence[str], inputs: InputOptions, seed: int
) -> dict[str, dict[str, Predictions]]:
    """Out-of-distribution set → model → its rows, of NAME=FILE with a file of every model, in their order."""
    by_name: dict[str, list[Source]] = {}
    for text in sources:
        for name, source in parse_ood_files([text]).items():
            by_name.setdefault(name, []).append(source)
    for name, files in by_name.items():
        if len(files) != len(models):
            raise BadInput(
                f"ood {name} has {len(files)} of {len(models)} files, one per model: write {name}=FILE for each, "
                f"in the order {', '.join(models)}."
            )
    return {
        name: {model: inputs.read(source, seed, ood=True) for model, source in zip(models, files, strict=True)}
        for name, files in by_name.items()
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
            raise BadInput(f"{other} and {one} contain the same rows: give different rows for each.")
        shared = 0 if other in models else shared_rows(rows, again)  # models are compared on rows that they share
        if shared > MOST_SHARED * min(len(rows), len(again)):
            raise BadInput(f"{other} and {one} have {shared:,} rows in common: use different rows.")
        if shared:
            notes.append(
                f"{other} and {one} have {shared:,} rows in common, which makes results on them too optimistic."
            )
    return tuple(notes)


def model_names(sources: Sequence[Source]) -> list[str]:
    """The given names; else the file names without suffix, if these differ; else the arguments."""
    pairs = [(s.name, s.name) if isinstance(s, Named) else assignment(s) for s in sources]
    stems = [name or (path if location_of(ZOO, path) else Path(path).stem) for name, path in pairs]
    names = stems if len(set(stems)) == len(stems) else [name or path for name, path in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadInput(f"{twice} is given twice: give each model a different name.")
    return names
