"""Networks of a protocol, through the store: trained and asked once, by key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nescio.predictions import Predictions
from nescio.protocols._evaluations import Evaluation
from nescio.trials import Trial
from nescio.work.store import Damaged, Store, StoreError


@dataclass(frozen=True)
class Place:
    """Where a run works: the store, the data, the device."""

    store: str
    root: str | None = None
    device: str = "auto"
    checkpoint_seconds: float = 60.0


def runtime_of(place: Place) -> Any:
    from nescio.runtime import runtime

    return runtime(place.device)


def train_key(trial: Trial, place: Place) -> str:
    from nescio import datasets

    return _key_of(trial, datasets.load(trial.data, place.root), place.store)


@lru_cache(maxsize=100_000)
def _key_of(trial: Trial, dataset: Any, store: str) -> str:
    from nescio.training import key_of

    return key_of(trial, dataset, Store(store))


def dump_key(trial: Trial, split: str, outside: Sequence[int] | None, place: Place) -> str:
    from nescio.predict import predict_key

    return predict_key(train_key(trial, place), split, outside, Store(place.store))


def dump(key: str, place: Place) -> Predictions:
    """Predictions of the store, byte for byte as they were written."""
    from nescio.predict import load_dump

    Store(place.store).verify("predict", key)
    return load_dump(key, Store(place.store))


def train_and_predict(
    trial: Trial, splits: Sequence[str], outside: Sequence[int] | None, place: Place
) -> dict[str, Predictions]:
    """Dumps of a trial; torch's device is not touched if they are there."""
    from nescio.predict import predict
    from nescio.training import train

    store = Store(place.store)
    keys = {split: dump_key(trial, split, outside, place) for split in splits}
    missing = [split for split, key in keys.items() if not store.finished("predict", key)]
    if missing:
        runtime = runtime_of(place)
        key = train(trial, store, runtime, root=place.root, checkpoint_seconds=place.checkpoint_seconds, wait=False)
        store.verify("train", key)
        for split in missing:
            predict(key, trial, split, store, runtime, outside=outside, root=place.root)
    return {split: dump(key, place) for split, key in keys.items()}


def trained(trial: Trial, place: Place) -> dict[str, Any]:
    """What training found out: params, seconds and images."""
    folder = Store(place.store).path("train", train_key(trial, place))
    return dict(json.loads((folder / "facts.json").read_text()))


def pace(trial: Trial, place: Place) -> dict[str, Any]:
    """What those who watch want to know of a trained network."""
    facts = trained(trial, place)
    images, seconds = facts["images"], max(facts["seconds"], 1e-9)
    return {"images": images, "seconds": seconds, "images/s": images / seconds}


@contextmanager
def damage_noted(evaluation: Evaluation, place: Place) -> Iterator[None]:
    """Finished work that turns out to be damaged has no failure.json of its own: what needs it says so."""
    try:
        yield
    except Damaged as error:
        with suppress(StoreError):  # the first error is the one to raise
            evaluation.mark(Store(place.store), str(error))
        raise
