"""Networks asked for their embeddings of images: trained ones of a store, and pretrained ones by name.

store/embed/<key>/dump   Predictions of one network on one set of images: index, embeddings, and labels if any
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nescio.config import seed_for
from nescio.errors import BadInput
from nescio.pictures import Pictures
from nescio.predict import DUMP, Host
from nescio.predictions import Predictions
from nescio.progress import track
from nescio.runtime import Runtime, runtime, seed_everything
from nescio.store import Store
from nescio.zoo import pixels
from nescio.zoo.ask import Settings
from nescio.zoo.forward import Normal, _inputs, feed, usual_batch
from nescio.zoo.models import STORE, Model, build, find_weights, heads, model
from nescio.zoo.weights import checksum

STAGE, VERSION = "embed", 1
SIBLINGS = "siblings:"


@dataclass(frozen=True)
class Asking:
    """Where networks, data and weights are, and on what to run."""

    store: Store
    root: str | None = None
    weights: Path | None = None
    device: str = "auto"


def members_of(words: Sequence[str], store: Store) -> list[str]:
    """The networks that are meant; siblings:KEY is KEY and all finished ones that differ in their init seed alone."""
    found: list[str] = []
    for word in words:
        found += _siblings(word.removeprefix(SIBLINGS), store) if word.startswith(SIBLINGS) else [word]
    return list(dict.fromkeys(found))


def _siblings(start: str, store: Store) -> list[str]:
    from nescio.commands.predict import whole

    def but_seed(recipe: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in recipe.items() if name != "init_seed"}

    key = whole(start, store)
    runs = [each for each in store.runs() if each.stage == "train" and each.state == "finished"]
    own = next(each.recipe for each in runs if each.key == key)
    kin = [each for each in runs if but_seed(each.recipe) == but_seed(own)]
    return [f"{STORE}{each.key}" for each in sorted(kin, key=lambda each: int(each.recipe["init_seed"]))]


def embed(name: str, shown: Pictures, asking: Asking) -> Predictions:
    """The embeddings of one network, made once; float32, because neighbours are told apart by digits bf16 lacks."""
    store, here = asking.store, runtime(asking.device).at("float32")
    asked = model(name, store, asking.root)
    file = find_weights(asked, Settings(weights=asking.weights).place, store)
    recipe = {
        "model": asked.name,
        "weights": checksum(file),
        "view": asked.view,
        "mean": asked.mean,
        "std": asked.std,
        "rows": shown.images.rows,
        "labelled": shown.labelled,
    }
    with store.work(STAGE, recipe, (shown.images.revision,), VERSION) as part:
        if part is not None:
            held = pixels.cache(shown.images, asked.view, store)
            network, fitted = build(asked, file, store, here, asking.root)
            found = _embeddings(network, fitted, held, len(shown), here, seed_for(STAGE, asked.name))
            dump = Predictions(index=shown.images.index, labels=shown.labels, embeddings=found)
            dump.save(part.folder / DUMP)
    key = store.key(STAGE, recipe, (shown.images.revision,), VERSION)
    return Predictions.load(store.path(STAGE, key) / DUMP)


def _embeddings(network: Any, asked: Model, held: Path, n: int, here: Runtime, seed: int) -> Any:
    """(n, d): a method's own embeddings; of a pretrained classifier what its last layer is given."""
    if not asked.from_store and not heads(network, asked.classes):
        raise BadInput(f"{asked.name} has no last layer of {asked.classes} classes whose input could be taken.")
    seed_everything(seed)
    gathered, normal = Host(n), Normal(asked, here)
    batch = usual_batch(asked.view.size, here.device)
    with torch.inference_mode(), _inputs(network, asked.classes, not asked.from_store) as seen:
        for raw, count in track(feed(held, batch, here.device), asked.name, -(-n // batch)):
            x = normal(raw)
            if asked.from_store:
                found = network.method(x).embeddings
            else:
                network(x)
                found = seen()
            if found is None:
                raise BadInput(f"{asked.name} gives no embeddings.")
            gathered.take({"embeddings": found[:count].flatten(1)})
    arrays = gathered.arrays()
    if gathered.done != n:
        raise BadInput(f"{held} holds {gathered.done} images, and {n} were asked about.")
    return arrays["embeddings"]
