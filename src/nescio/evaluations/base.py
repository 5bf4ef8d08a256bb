"""Base class of evaluations: the images they need, and the results they compute from their predictions.

    @evaluation("agreement", question="Do the two most likely classes share the probability?")
    @dataclass(frozen=True)
    class Agreement(Evaluation):
        headlines = (Headline("mean_gap", better="higher", by_score=False),)

        def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
            return {"test": subject.test_images}

        def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
            gap = measures.uncertainty("gap", outputs["test"])
            results.add("mean_gap", gap.mean(), len(gap))

Outside packages add evaluations by the entry-point group `nescio.evaluations`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, TypeVar

import numpy as np

from nescio import datasets, measures
from nescio.datasets.image_set import ImageSet, LoadedImages
from nescio.datasets.names import same_images
from nescio.errors import BadInput
from nescio.identity import Validated, canonical, has_tag, tag
from nescio.predictions import Predictions, stack
from nescio.registry import Registry
from nescio.rows import Row, RowBuilder
from nescio.work.steps import Context, Files, Step

if TYPE_CHECKING:  # networks need torch, and a report of stored results does not
    from nescio.networks.groups import NetworkGroup

Field = Literal["logits", "embeddings", "scores"]
ENTROPY, NATIVE = "entropy", "native"


class Inapplicable(Exception):
    """An evaluation does not apply to a network: one sentence says why."""


@dataclass(frozen=True)
class Headline:
    """The number of an evaluation that a leaderboard ranks by.

    by_score  it exists for every uncertainty score; a leaderboard takes the score of the method
    columns   columns of its row beside metric, measure and evaluation; all others may have any value
    """

    metric: str
    better: Literal["higher", "lower"]
    by_score: bool = True
    title: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict, hash=False)


class SetColumns(TypedDict):
    """The columns of results that name an image set."""

    split: str | None
    target: str | None


@tag("target-set")
@dataclass(frozen=True)
class TargetSet(Validated):
    """Images to evaluate, and the columns that name them in results."""

    images: ImageSet
    split: str | None = None
    target: str | None = None

    @property
    def name(self) -> str:
        """Name among the image sets of an evaluation; it has content instead of paths, because keys contain it."""
        return ":".join(str(canonical(column)) for column in (self.split, self.target) if column is not None) or "test"

    @property
    def columns(self) -> SetColumns:
        return {"split": self.split, "target": self.target}


def named_images(sets: Iterable[TargetSet]) -> dict[str, ImageSet]:
    return {each.name: each.images for each in sets}


@dataclass(frozen=True)
class Subject:
    """The subject of an evaluation: a group of networks and its data, and for some evaluations sibling groups.

    limit  size of a random sample of the images, drawn by `seed`
    split  of the evaluated images; None: test images, or all images for networks from elsewhere
    """

    group: NetworkGroup
    data: str
    root: str | None = None
    limit: int | None = None
    seed: int = 0
    split: Literal["test", "test_or_all"] | None = None

    @property
    def trained_here(self) -> bool:
        """Whether the networks were trained on this data."""
        trial = self.group.trial
        return trial is not None and same_images(trial.data, self.data, self.root)

    @property
    def classes(self) -> tuple[int, ...] | None:
        """The trained classes; None: all classes of the data."""
        trial = self.group.trial
        return trial.classes if trial is not None and self.trained_here else None

    @property
    def left_out(self) -> tuple[int, ...]:
        """The classes of the data that were not trained."""
        known = self.classes
        count = len(datasets.load(self.data, self.root).classes) if known is not None else 0
        return tuple(label for label in range(count) if label not in (known or ()))

    @property
    def test_images(self) -> ImageSet:
        """Test images of the trained classes; all images of a set that is not divided, for networks from elsewhere."""
        split = self.split or ("test" if self.trained_here else "test_or_all")
        return ImageSet(self.data, split, self.classes, sample_size=self.limit, sample_seed=self.seed)

    @property
    def val_images(self) -> ImageSet:
        """Validation images; Inapplicable for a network from elsewhere, of which no image is known to be held out."""
        trial = self.group.trial
        if trial is None or not self.trained_here:
            raise Inapplicable("No validation images are known for networks that were trained elsewhere.")
        return ImageSet(self.data, "val", self.classes, seed=trial.data_seed)

    @property
    def train_images(self) -> ImageSet:
        trial = self.group.trial
        if trial is None or not self.trained_here:
            raise Inapplicable("The training images are not known for networks that were trained elsewhere.")
        return ImageSet(self.data, "train", self.classes, seed=trial.data_seed)

    @property
    def classifies(self) -> bool:
        from nescio.methods import registry

        trial = self.group.trial
        return trial is None or registry[trial.method].classifies

    def require_logits(self) -> None:
        if not self.classifies:
            raise Inapplicable("The method learns features without labels and predicts no classes.")


@dataclass(frozen=True)
class Outputs(Mapping[str, Predictions]):
    """The predictions of a group of networks by the name of the image set; those of several networks are averaged."""

    steps: Mapping[str, Sequence[Step]]
    sets: Mapping[str, ImageSet]
    context: Context
    _loaded: dict[str, Predictions] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Predictions:
        if name not in self._loaded:
            self._loaded[name] = average_predictions(self.members(name))
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def members(self, name: str) -> list[Predictions]:
        """The predictions of every network."""
        from nescio.predict import load_predictions

        return [load_predictions(step, self.context.store) for step in self.steps[name]]

    def images(self, name: str) -> LoadedImages:
        return self.sets[name].load(self.context.root, self.context.store)


def average_predictions(members: Sequence[Predictions]) -> Predictions:
    """The predictions of an average of networks; of one, its own.

    The native score is the mutual information. Embeddings of networks are in spaces of their own: side by side, each of
    length one, their cosine is the mean of the members' cosines. They have the mean of the members' lengths.
    """
    if len(members) == 1:
        return members[0]
    stacked = stack(list(members))
    scores = {NATIVE: measures.mutual_information(stacked)} if stacked.logits is not None else {}
    if any(member.embeddings is None for member in members):
        return stacked.replace(scores=scores)
    embeddings = [np.asarray(member.embeddings, np.float64) for member in members]
    lengths = [np.linalg.norm(rows, axis=1, keepdims=True) for rows in embeddings]
    units = [
        np.divide(rows, length, where=length > 0, out=rows * 0)
        for rows, length in zip(embeddings, lengths, strict=True)
    ]
    concatenated = np.concatenate(units, axis=1) * np.mean(lengths, axis=0) / len(members) ** 0.5
    return stacked.replace(embeddings=concatenated.astype(np.float32), scores=scores)


class Evaluation(Validated, ABC):
    """One kind of evaluation. A subclass is a frozen dataclass; its fields are settings, and part of keys."""

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1  # raised by every change of numbers
    question: ClassVar[str] = ""
    fields: ClassVar[tuple[Field, ...]] = ("logits", "scores")  # required outputs of networks
    dtype: ClassVar[Literal["float32", "float16"]] = "float32"  # of predictions on disk; the most precise is kept
    headlines: ClassVar[tuple[Headline, ...]] = ()  # the first is the one of a single column
    siblings: ClassVar[bool] = False  # whether it evaluates networks that differ in their seeds alone together

    @abstractmethod
    def image_sets(self, subject: Subject) -> Mapping[str, ImageSet]:
        """The images whose predictions it reads, by name; Inapplicable if the subject cannot be evaluated."""

    def prediction_steps(self, subject: Subject, images: ImageSet) -> Sequence[Step] | None:
        """Steps that predict one image set; None: outputs of every network, shared with other evaluations."""
        return None

    @abstractmethod
    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> Files | None:
        """Add the results of one subject; return further files of the step, if there are any."""

    @property
    def title(self) -> str:
        """The title that distinguishes its step from other evaluations of the same networks."""
        return self.name

    @cached_property
    def settings(self) -> Row:
        """The fields of the evaluation as plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}  # type: ignore[attr-defined]


registry: Registry[type[Evaluation]] = Registry("evaluation")
E = TypeVar("E", bound=type[Evaluation])


def evaluation(name: str, *, question: str, version: int = 1) -> Callable[[E], E]:
    """Register a class as an evaluation.

    question  one sentence, the title of its table
    """

    def register(cls: E) -> E:
        if "__dataclass_fields__" not in vars(cls):
            raise BadInput(f"The evaluation {name} is not a dataclass: put @dataclass(frozen=True) above the class.")
        if missing := sorted(cls.__abstractmethods__):
            raise BadInput(f"The evaluation {name} has no method {missing[0]}: it needs image_sets and measure.")
        if not has_tag(cls):
            tag(f"evaluation:{name}")(cls)
        cls.name, cls.question, cls.version = name, question, version
        registry.add(name, cls)
        return cls

    return register
