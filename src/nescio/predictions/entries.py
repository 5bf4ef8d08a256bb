"""What pretrained models said about labelled sets: finished work of the store, or a person's own predictions."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nescio.errors import BadInput
from nescio.predictions import Predictions
from nescio.work.store import Store

STAGE = "zoo"
DUMP, FACTS = "dump", "facts.json"  # the payload of one model's work
OWN = "predictions"  # the dataset of a file that does not say which


@dataclass(frozen=True)
class Entry:
    """One model's answers to one labelled set."""

    model: str  # a timm name, torchvision:NAME, store:KEY, or a person's own name
    data: str  # dataset, e.g. imagenet:PATH, npz:PATH, folder:PATH
    facts: Mapping[str, Any] = field(hash=False)  # params, input_size, embedding_size, dropout, classes, rows …
    place: Path  # the dump: any file or folder that Predictions.load reads
    key: str  # changes when the dump changes

    def dump(self) -> Predictions:
        return Predictions.load(self.place)


def entries(store: Store, data: str | None = None, outside: bool | None = None) -> list[Entry]:
    """What the store's models said, sorted by model; of one model on one set, the answer to most rows.

    `data` asks for one set; `outside` for sets that were asked about as outside of training (True) or inside (False).
    """
    wanted = None if data is None else spec_of(data)
    chosen: dict[tuple[str, str, bool], tuple[tuple[int, int], Entry]] = {}
    for found, moment in _finished(store):
        side = bool(found.facts.get("outside", False))
        if (wanted is not None and found.data != wanted) or (outside is not None and side != outside):
            continue
        name, rank = (found.model, found.data, side), (int(found.facts.get("rows", 0)), moment)
        if name not in chosen or rank > chosen[name][0]:
            chosen[name] = rank, found
    return [chosen[name][1] for name in sorted(chosen)]


def entry(store: Store, key: str) -> Entry:
    """The finished work under one key."""
    folder = store.path(STAGE, key)
    try:
        facts = dict(json.loads((folder / FACTS).read_text("utf-8")))
        return Entry(facts.pop("model"), facts.pop("data"), facts, folder / DUMP, key)
    except (OSError, ValueError, TypeError, KeyError):
        raise BadInput(f"{folder} is damaged: remove this folder and run again.") from None


def entry_of_file(path: str | os.PathLike[str], model: str | None = None, data: str = OWN) -> Entry:
    """A person's own dump: .npz, .safetensors, .parquet, .csv or a folder; the model is named by the file."""
    place = Path(path)
    if not place.exists():
        raise BadInput(f"There is no file or folder of predictions at {place}.")
    return Entry(model or place.stem, data, {}, place, _checksum(place))


def spec_of(data: str) -> str:
    """A dataset's name with its path made absolute, so that one set has one name wherever it is named from."""
    match = re.fullmatch(r"([^:@]*):(.*?)((?:@\d+)?)", data, re.DOTALL)
    if match is None:
        return data
    name, path, size = match.groups()
    place = Path(path).expanduser()
    return f"{name}:{place.resolve()}{size}" if place.exists() else data


def _finished(store: Store) -> Iterator[tuple[Entry, int]]:
    """Entries, and when each was finished."""
    for folder in sorted((store.root / STAGE).glob("*")):
        if re.fullmatch("[0-9a-f]{16}", folder.name) and folder.is_dir():
            yield entry(store, folder.name), folder.stat().st_mtime_ns


def _checksum(place: Path) -> str:
    """Of a file's bytes; of a folder's recipe, which holds the checksum of every array."""
    file = place / "recipe.json" if place.is_dir() else place
    if not file.is_file():
        raise BadInput(f"{place} has no recipe.json, so it is not a finished dump.")
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()[:16]
