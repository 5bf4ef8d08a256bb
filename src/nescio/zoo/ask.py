"""Models asked about sets: one dump a model and set in the store, made once, however often it is asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nescio.config import seed_for
from nescio.errors import BadInput
from nescio.runtime import Runtime
from nescio.store import WORK, Store
from nescio.sweep import Crew, Failure, Task
from nescio.zoo import pixels
from nescio.zoo.data import Labelled, numbered
from nescio.zoo.entries import DUMP, FACTS, STAGE, Entry, entry
from nescio.zoo.forward import PASSES, answer
from nescio.zoo.models import Model, build, find_weights, heads, parameters
from nescio.zoo.weights import checksum

VERSION = 2  # of what prediction does; a change that moves numbers raises it
Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How models are asked."""

    passes: int = PASSES  # with dropout on; 0: none
    drop: float | None = None  # dropout before the head of timm models, which build without; None: what the model has
    embeddings: bool = False
    batch: int | None = None
    weights: Path | None = None  # a file, or a folder of files named by models; None: $NESCIO_WEIGHTS, then the hubs
    root: str | Path | None = None  # of datasets

    def __post_init__(self) -> None:
        if self.passes < 0:
            raise BadInput(f"--passes is a number of passes from 0 on, not {self.passes}.")
        if self.drop is not None and not 0 <= self.drop < 1:
            raise BadInput(f"--drop is a share from 0 to below 1, not {self.drop:g}.")
        if self.batch is not None and self.batch < 1:
            raise BadInput(f"--batch is a number of images from 1 on, not {self.batch}.")

    @property
    def place(self) -> Path | None:
        """Where weights are looked for before the hubs."""
        named = os.environ.get("NESCIO_WEIGHTS")
        return self.weights or (Path(named).expanduser() if named else None)


@dataclass(frozen=True, eq=False)
class Question:
    """One model and one set."""

    model: Model
    images: Labelled  # in the model's numbering
    file: Path  # its weights …
    weights: str  # … and their checksum
    settings: Settings
    precision: str

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the numbers depend on, but for the set's revision."""
        return {
            "model": self.model.name,
            "weights": self.weights,
            "view": self.model.view,
            "mean": self.model.mean,
            "std": self.model.std,
            "rows": self.images.rows,
            "outside": self.images.outside,
            "passes": self.settings.passes,
            "drop": self.settings.drop,
            "embeddings": self.settings.embeddings,
            "precision": self.precision,
        }

    def key(self, store: Store) -> str:
        return store.key(STAGE, self.recipe, parents=(self.images.revision,), version=VERSION)


@dataclass
class Answers:
    """What came of asking: the entries, in the order of the models, and what failed."""

    entries: list[Entry] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


def question(model: Model, images: Labelled, store: Store, here: Runtime, settings: Settings) -> Question:
    """What is to be asked; the weights must be there, and the classes must fit."""
    fitting = numbered(images, model.classes, model.taught)
    file = find_weights(model, settings.place, store)
    return Question(model, fitting, file, checksum(file), settings, here.precision)


def ask(asked: Question, store: Store, here: Runtime, say: Say | None = None) -> None:
    """Predicts unless the dump is there; raises Busy while another process does it."""
    model, images, settings = asked.model, asked.images, asked.settings
    with store.work(STAGE, asked.recipe, (images.revision,), VERSION, wait=False) as part:
        if part is None:
            return
        try:
            held = pixels.cache(images, model.view, store, say)
        except pixels.Damaged as error:
            raise BadInput(f"{error} With --skip-damaged such images are left out.") from None
        network, fitted = build(model, asked.file, store, here, settings.root, settings.drop)
        found = answer(
            network,
            fitted,
            held,
            images,
            here,
            part.folder / WORK,
            passes=settings.passes,
            embeddings=settings.embeddings,
            batch=settings.batch,
            seed=seed_for("zoo", model.name, asked.weights),
        )
        last = heads(network, model.classes)
        width = getattr(last[0], "in_features", None) or getattr(last[0], "in_channels", None) if last else None
        facts = {
            "model": model.name,
            "data": images.spec,
            "outside": images.outside,
            "rows": len(images),
            "classes": model.classes,
            "params": parameters(network),
            "input_size": model.view.size,
            "embedding_size": width,
            "dropout": found.dropout,
            "weights": asked.file.name,
            "view": str(model.view),
            "mean": fitted.mean,
            "std": fitted.std,
            "accuracy": found.accuracy,
            "images_per_second": round(found.rate, 1),
        }
        found.dump.save(part.folder / DUMP)
        part.write(FACTS, json.dumps({name: fact for name, fact in facts.items() if fact is not None}).encode())
        if say:
            right = "" if found.accuracy is None else f", top-1 {found.accuracy:.4f}"
            say(f"{model.name}: {len(images):,} images of {images.name}{right}, {found.rate:,.0f} images/s.")


def ask_all(
    asked: Sequence[tuple[Model, Labelled]],
    store: Store,
    here: Runtime,
    settings: Settings,
    *,
    forget: bool = False,
    say: Say | None = None,
    watch: Callable[[int, int, int], None] | None = None,
) -> Answers:
    """Every model about its images. A model that fails costs its own answers, never the others'.

    Models with one view follow each other, so that the pixels they share can be forgotten after the last of them.
    """
    answers, found, done = Answers(), dict[int, str](), 0

    def one(number: int, shown: list[Question]) -> None:
        this = question(*asked[number], store, here, settings)
        ask(this, store, here, say)
        found[number] = this.key(store)
        shown.append(this)

    groups: dict[Any, list[int]] = {}
    for number, (model, images) in enumerate(asked):
        groups.setdefault((id(images), model.view), []).append(number)
    for group in groups.values():
        shown: list[Question] = []
        with Crew(0) as crew:
            answers.failures += crew.do([Task(_words(*asked[number]), one, (number, shown)) for number in group])
        if forget and shown:
            pixels.forget(shown[0].images, shown[0].model.view, store)
        done += len(group)
        if watch:
            watch(done, len(answers.failures), len(asked))
    for number, key in sorted(found.items()):
        answers.entries.append(replace(entry(store, key), data=asked[number][1].spec))
    return answers


def _words(model: Model, images: Labelled) -> str:
    return f"{model.name} on {images.name}"
