"""Predictions with the name of their model and facts about it, from a store or from files."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nescio.errors import BadInput, describe_error, did_you_mean
from nescio.files import parse_json, read_small
from nescio.identity import ContentName, canonical
from nescio.predictions import Predictions
from nescio.predictions.files import MANIFEST, check_format, near_file
from nescio.predictions.subset import random_subset
from nescio.specs import ZOO, assignment, location_of
from nescio.work.store import Store
from nescio.work.store_errors import Corrupted, StoreError

STAGE, PREDICTIONS, FACTS = "predict", "predictions", "facts.json"
UNNAMED = "predictions"  # the dataset of a file that does not name one


@dataclass(frozen=True)
class ModelPredictions:
    """One model's predictions on one image set: their path, and facts about the model."""

    model: str  # a timm name, torchvision:NAME, store:KEY, or a name given by the user
    data: str  # dataset, e.g. imagenet:PATH, npz:PATH, folder:PATH
    facts: Mapping[str, Any] = field(hash=False)  # params, input_size, embedding_size, dropout, classes, rows …
    path: Path  # the predictions: any file or folder that Predictions.load reads
    key: str  # changes with the predictions
    store: Store | None = field(default=None, compare=False, repr=False)  # the store that contains it under that key
    sample: tuple[int, int] | None = None  # a random sample: number of rows and seed

    def load(self, ood: bool = False) -> Predictions:
        """The predictions; StoreError if those of a store are not byte for byte as written."""
        if self.store is not None:
            self.store.verify(STAGE, self.key)
        predictions = Predictions.load(self.path, ood=ood)
        return predictions if self.sample is None else random_subset(predictions, *self.sample)

    def sampled(self, rows: int | None, seed: int) -> ModelPredictions:
        """The same, loaded as a random sample of rows; None: all rows."""
        return self if rows is None else replace(self, sample=(rows, seed))

    @property
    def is_ood(self) -> bool:
        """Whether the images are of other classes than those in training."""
        return bool(self.facts.get("outside", False))

    @property
    def rows_key(self) -> str:
        """A key that changes with the predictions or with the sample."""
        return self.key if self.sample is None else "{}, {} rows by seed {}".format(self.key, *self.sample)

    @property
    def weights(self) -> str | None:
        """The checksum of the model's weights, or the key of its training; None for files outside of a store."""
        if self.store is None:
            return None
        parents = self.store.record(STAGE, self.key)["parents"]
        return str(parents[0]) if parents else None

    @property
    def preprocessing(self) -> dict[str, object]:
        """Preprocessing of the images: view, mean and std; empty for files outside of a store."""
        config = {} if self.store is None else self.store.record(STAGE, self.key)["config"]
        view = dict(config.get("images", {}).get("view") or {})
        view.pop("kind", None)
        rest = {key: self.facts.get(key, config[key]) for key in ("mean", "std") if key in config}
        return ({"view": view} if view else {}) | rest

    @property
    def source_facts(self) -> dict[str, object]:
        """Path of the model's weights and its class names, if the store has them."""
        facts = {"weights_path": self.facts.get("weights_path"), "names": self.facts.get("class_names")}
        return {name: fact for name, fact in facts.items() if fact is not None}

    def fact_as_number(self, fact: str) -> float | None:
        """A fact as a number; for the shape of an image (channels, height, width), the larger side."""
        value = self.facts.get(fact)
        if isinstance(value, (list, tuple)):
            value = max(value, default=None)
        return None if value is None else float(value)


def list_stored_predictions(
    store: Store, data: str | None = None, ood: bool | None = None, damaged: list[str] | None = None
) -> list[ModelPredictions]:
    """The predictions of a store that were made to compare models, by model; the largest per image set.

    data     only this dataset, by its absolute name, or by its content if predictions name it otherwise
    outside  only of out-of-distribution sets (True), or only of in-distribution ones (False)
    damaged  gets a sentence on each damaged entry, which is then left out; None: it raises
    """
    entries = [(entry, moment) for entry, moment in _compared(store, damaged) if ood in (None, entry.is_ood)]
    contents = {canonical(data), *(canonical(entry.data) for entry, _ in entries if entry.data == data)}
    chosen: dict[tuple[str, str, bool], tuple[tuple[int, int], ModelPredictions]] = {}
    for entry, moment in entries:
        content = canonical(entry.data)
        if data is not None and content not in contents:
            continue
        if data is not None:
            entry = replace(entry, data=ContentName(data, content))
        identity, rank = (entry.model, content, entry.is_ood), (int(entry.facts.get("rows", 0)), moment)
        if identity not in chosen or rank > chosen[identity][0]:
            chosen[identity] = rank, entry
    return [chosen[identity][1] for identity in sorted(chosen)]


def predictions_from_store(store: Store, key: str) -> ModelPredictions:
    """The finished predictions under one key."""
    folder = store.path(STAGE, key)
    try:
        content = read_small(folder / FACTS)
        if hashlib.sha256(content).hexdigest() != store.record(STAGE, key)["files"][FACTS]["sha256"]:
            raise ValueError("the facts are not what was written")
        facts = parse_json(content, FACTS)
        data = str(facts.pop("data"))
        for digest, name in store.names(STAGE, key).items():
            if store.record(STAGE, key)["config"]["images"]["data"] == digest:
                data = ContentName(name, digest)
        return ModelPredictions(facts.pop("model"), data, facts, folder / PREDICTIONS, key, store)
    except PermissionError as error:
        raise StoreError(describe_error(error)) from None
    except (OSError, ValueError, TypeError, KeyError, Corrupted):
        raise BadInput(f"{folder} is damaged: remove this folder and run again.") from None


def predictions_from_file(
    path: str | os.PathLike[str], model: str | None = None, data: str = UNNAMED
) -> ModelPredictions:
    """Predictions from a file or folder; the model is named after the file unless given."""
    source = Path(path)
    if not source.exists():
        raise BadInput(f"There is no file or folder of predictions at {source}.{near_file(source)}")
    check_format(source)  # before every byte of it is read for the checksum
    return ModelPredictions(model or source.stem, data, {}, source, _checksum(source))


def collect_predictions(
    files: Sequence[str], store: Store, data: str | None = None, damaged: list[str] | None = None
) -> list[ModelPredictions]:
    """Files of predictions, FILE or NAME=FILE to name the model; without files, the in-distribution ones of a store.

    data     only of this dataset of the store, by its absolute name
    damaged  gets a sentence on each damaged entry of the store, which is then left out; None: it raises
    """
    if files and data and not all(location_of(ZOO, text) for text in files):
        raise BadInput("data names a set of a store, and files are given: omit one of them.")
    if files:
        return [predictions_from_text(text, store, data) for text in files]
    if not store.root.is_dir():
        raise BadInput(f"There is no store at {store.root}: name files of predictions, or run `nescio zoo` first.")
    if entries := list_stored_predictions(store, data, ood=False, damaged=damaged):
        return entries
    if damaged:
        raise BadInput(damaged[0])
    others = {entry.data for entry in list_stored_predictions(store, ood=False, damaged=[])} if data else set()
    suffix = f" on {data}" if data else ""
    advice = f"it contains some with {_data_options(sorted(others))}" if others else "`nescio zoo` makes them"
    raise BadInput(f"The store {store.root} contains no predictions{suffix} to compare: {advice}.")


def predictions_from_text(text: str, store: Store, data: str | None = None) -> ModelPredictions:
    """FILE, NAME=FILE, or zoo:NAME for the in-distribution predictions of a model in the store, on a set if named."""
    if model := location_of(ZOO, text):
        return _stored_model(model, store, data)
    name, path = assignment(text)
    return predictions_from_file(path, name or None)


def _stored_model(model: str, store: Store, data: str | None = None) -> ModelPredictions:
    damaged: list[str] = []
    entries = list_stored_predictions(store, data, ood=False, damaged=damaged) if store.root.is_dir() else []
    matches = [entry for entry in entries if entry.model == model]
    if len(matches) == 1:
        return matches[0]
    if matches:
        sets, paths = [entry.data for entry in matches], " or ".join(str(entry.path) for entry in matches)
        raise BadInput(
            f"The store {store.root} contains predictions of {model} on {', '.join(sets)}: add {_data_options(sets)} "
            f"where the command takes it, or name one of {paths}."
        )
    if damaged:  # the requested predictions may be among them
        raise BadInput(damaged[0])
    names = sorted({entry.model for entry in entries})
    choices = f"there are {', '.join(names)}" if names else "`nescio zoo` makes some"
    suffix = f" on {data}" if data else ""
    raise BadInput(
        f"The store {store.root} contains no predictions of {model!r}{suffix}: {choices}.{did_you_mean(model, names)}"
    )


def _data_options(sets: Sequence[str]) -> str:
    return " or ".join(f"--data {shlex.quote(data)}" for data in sets)


def check_comparable(entries: Sequence[ModelPredictions]) -> None:
    """Raise BadInput unless there are models, all on one image set, with distinct names."""
    if not entries:
        raise BadInput("There is no model to compare: predict with some first, or name files of predictions.")
    sets = sorted({canonical(entry.data): entry.data for entry in entries}.values())
    if len(sets) > 1:
        only_files = all(entry.store is None for entry in entries)
        advice = "give files of one of them" if only_files else f"add {_data_options(sets)}"
        raise BadInput(f"Models are compared on one set of images, and these are of {', '.join(sets)}: {advice}.")
    model, count = Counter(entry.model for entry in entries).most_common(1)[0]
    if count > 1:
        raise BadInput(f"The model {model} is given twice; give each set of predictions a different name.")


def _compared(store: Store, damaged: list[str] | None) -> Iterator[tuple[ModelPredictions, int]]:
    """Predictions whose facts mark them as made to compare models, and when each was finished."""
    for folder in store.folders(STAGE):
        if re.fullmatch("[0-9a-f]{16}", folder.name):
            try:
                if not os.path.lexists(folder / FACTS) and FACTS not in store.record(STAGE, folder.name)["files"]:
                    continue
                predictions = predictions_from_store(store, folder.name)
            except (BadInput, Corrupted, KeyError, TypeError) as error:
                reason = str(error) if isinstance(error, (BadInput, Corrupted)) else f"{folder} is damaged."
                if damaged is None:
                    raise BadInput(reason) from None
                damaged.append(reason)
                continue
            if predictions.facts.get("compared"):
                yield predictions, folder.stat().st_mtime_ns


def _checksum(path: Path) -> str:
    """The checksum of a file, or of a folder's manifest, which contains the checksums of all arrays."""
    if path.is_dir():
        if not (path / MANIFEST).is_file():
            raise BadInput(f"{path} has no {MANIFEST}, so it is not a finished predictions folder.")
        return hashlib.sha256(read_small(path / MANIFEST)).hexdigest()[:16]
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()[:16]
