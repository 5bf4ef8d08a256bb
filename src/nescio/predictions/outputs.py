"""Predictions of one model on one split, the interface between training and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.checks import LARGEST_SQUARED, check_not_truncated, dtype_name, integers, matrix, vector
from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.predictions import inputs

MOST_CLASSES = 100_000
CHECK_BYTES = 1 << 24  # predictions are read in blocks of about this size
VIEW = "view"  # prefix of variants that are embeddings
NOT_ROWS = ("members", "class_names", "notes", "normalized")  # the fields without an entry per row


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Predictions:
    """Predictions of one model for every row of one split.

    Letters: n rows, s draws, c classes, d features. Every field but `index` may be missing.

    index        (n,)       join key across models; the row number unless given
    labels       (n,)       true class numbers of the split's dataset
    in_distribution (n,)    False if the class was not in training; or one value for all rows
    logits       (n, s, c)  unnormalised scores of s draws; (n, c) is taken as one draw; -inf is a probability of 0
    members      (s,)       which network a draw came from
    variants     (n, c)     other predictive log-probabilities by name, e.g. "tta"; view_0 …: embeddings (n, d) of crops
    embeddings   (n, d)
    scores       (n,)       native and probe uncertainties by name, higher = less confident
    annotations  (n, c)     human votes
    groups       (n,)       domain, corruption, severity, twin of a crop … by name
    predicted    (n,)       the predicted class               \
    correct      (n,)       whether the prediction is right    } of models without logits
    confidence   (n,)       its probability                   /
    class_names  (c,)       names of the classes in their order; labels given as names are numbered by them
    notes                   notes for users on how these fields were read
    normalized              True when `logits` are log-probabilities: given as `probs`, or declared

    `probs` may be given instead of `logits`: rows that sum to one, kept as log-probabilities. Of both the logits are
    kept, if the probs are their softmax. One column, (n,) or (n, 1), is that of class 1 of a binary classifier.
    Arrays are not copied, including memory-mapped ones. Whole numbers become floats if a field needs floats. Foreign
    byte orders become native.
    """

    index: Array
    labels: Array | None
    in_distribution: Array | None
    logits: Array | None
    members: Array | None
    variants: Mapping[str, Array]
    embeddings: Array | None
    scores: Mapping[str, Array]
    annotations: Array | None
    groups: Mapping[str, Array]
    predicted: Array | None
    correct: Array | None
    confidence: Array | None
    class_names: tuple[str, ...] | None
    notes: tuple[str, ...]
    normalized: bool

    def __init__(
        self,
        *unnamed: object,
        index: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        in_distribution: ArrayLike | None = None,
        logits: ArrayLike | None = None,
        probs: ArrayLike | None = None,
        members: ArrayLike | None = None,
        variants: Mapping[str, ArrayLike] | None = None,
        embeddings: ArrayLike | None = None,
        scores: Mapping[str, ArrayLike] | None = None,
        annotations: ArrayLike | None = None,
        groups: Mapping[str, ArrayLike] | None = None,
        predicted: ArrayLike | None = None,
        correct: ArrayLike | None = None,
        confidence: ArrayLike | None = None,
        class_names: ArrayLike | None = None,
        notes: ArrayLike = (),
        normalized: bool = False,
    ) -> None:
        if unnamed:
            raise BadInput("The fields of Predictions have names: write Predictions(logits=…, labels=…).")
        values = isinstance(in_distribution, (bool, np.bool_))
        flags = None if in_distribution is None or values else inputs.booleans("in_distribution", in_distribution)
        # Labels come first: those of another task explain why its outputs are no probabilities.
        labels, predicted = inputs.classes_given("labels", labels), inputs.classes_given("predicted", predicted)
        scores_given = inputs.scores(logits, probs, inputs.yes_or_no("normalized", normalized))
        classes = 0 if scores_given.logits is None else int(scores_given.logits.shape[2])
        if classes > MOST_CLASSES:
            raise BadInput(f"there are {classes:,} classes, and predictions may have {MOST_CLASSES:,}: give fewer.")
        all_outside = in_distribution is not None and not np.any(in_distribution if flags is None else flags)
        ids = inputs.class_ids(labels, predicted, class_names, classes, all_outside)
        known_notes = (*inputs.sentences(notes), *scores_given.notes, *ids.notes)
        self._set_fields(
            {
                "index": None if index is None else inputs.keys(index),
                "labels": ids.labels,
                "in_distribution": flags,
                "logits": scores_given.logits,
                "members": None if members is None else integers("members", members),
                "variants": _checked_mapping(
                    "variants", variants, partial(matrix, masks=True, largest=LARGEST_SQUARED)
                ),
                "embeddings": None if embeddings is None else matrix("embeddings", embeddings, largest=LARGEST_SQUARED),
                "scores": _checked_mapping("scores", scores, vector),
                "annotations": None if annotations is None else inputs.votes(annotations),
                "groups": _checked_mapping("groups", groups, inputs.tags),
                "predicted": ids.predicted,
                "correct": None if correct is None else inputs.booleans("correct", correct),
                "confidence": None if confidence is None else inputs.shares("confidence", confidence),
                "class_names": ids.names,
                "notes": tuple(dict.fromkeys(known_notes)),
                "normalized": scores_given.normalized,
            }
        )
        n = self._common_length()
        if index is None:
            object.__setattr__(self, "index", np.arange(n))
        if values:
            object.__setattr__(self, "in_distribution", np.full(n, bool(in_distribution)))
        if index is not None:
            self._check_unique()
        self._check_classes()
        self._check_answers()

    def _set_fields(self, values: Mapping[str, object]) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _common_length(self) -> int:
        columns = dict(self.columns())
        if not columns:
            raise BadInput("The predictions are empty: give at least labels, logits or probs, embeddings or scores.")
        # The message compares the field with the one that users think of as the rows.
        reference = "logits" if "logits" in columns else next(iter(columns))
        n = len(columns[reference])
        for name, array in columns.items():
            if len(array) != n:
                raise BadInput(f"{name} has {len(array)} rows, {reference} has {n}: they must describe the same rows.")
        if n == 0:
            raise BadInput("There are no rows: at least one is needed.")
        return n

    def _check_unique(self) -> None:
        ordered = self.index
        if not (ordered[1:] > ordered[:-1]).all():
            ordered = np.sort(self.index)
        repeated = ordered[1:] == ordered[:-1]
        if repeated.any():
            first = ordered[1:][repeated][0]
            raise BadInput(f"index contains {first} more than once: keys of rows must be unique.")

    def _check_classes(self) -> None:
        c, views = self.classes, [f"variants/{name}" for name in self.variants if name.startswith(VIEW)]
        if self.logits is None:
            if self.members is not None:
                raise BadInput("members names the network that a draw came from, but there are no logits.")
            return
        if self.members is not None and len(self.members) != self.draws:
            raise BadInput(
                f"members has {len(self.members)} entries, logits has {self.draws} draws: one per draw is needed."
            )
        if c < 2:
            raise BadInput("There is one class only: at least two are needed.")
        for name, array in self.columns():
            if name.startswith(("variants/", "annotations")) and array.shape[1] != c and name not in views:
                hint = f" (embeddings of a view: name them {VIEW}_0)" if name.startswith("variants/") else ""
                raise BadInput(
                    f"{name} has {array.shape[1]} classes, logits has {c}: they must have the same classes{hint}."
                )
        if self.labels is not None:
            bad = (self.labels < 0) | (self.labels >= c)
            if self.in_distribution is not None:
                bad &= self.in_distribution
            if bad.any():
                row = int(np.argmax(bad))
                raise BadInput(
                    f"labels contains {self.labels[row]} in row {row}, but the classes are 0 to {c - 1}: correct it, "
                    "or mark rows of classes that were not in training with in_distribution = False."
                )

    def _check_answers(self) -> None:
        if self.predicted is None:
            return
        if self.labels is None and self.correct is None:
            raise BadInput("predicted cannot be evaluated without labels: give labels, or correct.")
        if self.labels is None or self.correct is None:
            return
        differ = self.correct != (self.predicted == self.labels)
        if self.in_distribution is not None:
            differ &= self.in_distribution
        if differ.any():
            row = int(np.argmax(differ))
            raise BadInput(
                f"correct is {self.correct[row]} in row {row}, where predicted is {self.predicted[row]} and the label "
                f"is {self.labels[row]}: give one of correct and predicted."
            )

    def columns(self) -> Iterator[tuple[str, Array]]:
        """(name, array) of everything that has one entry per row; mappings as `scores/NAME`."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Mapping):
                for key, array in value.items():
                    yield f"{field.name}/{key}", array
            elif value is not None and field.name not in NOT_ROWS:
                yield field.name, value

    def flat(self) -> dict[str, Array]:
        """Key → array of all fields, except `normalized`."""
        flat = dict(self.columns())
        if self.members is not None:
            flat["members"] = self.members
        if self.class_names is not None:
            flat["class_names"] = np.array(self.class_names, str)
        if self.notes:
            flat["notes"] = np.array(self.notes, str)
        return flat

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name} {'×'.join(map(str, array.shape))}" for name, array in self.columns())
        return f"Predictions({inside}{', log-probabilities' if self.normalized else ''})"

    @property
    def draws(self) -> int:
        return 0 if self.logits is None else int(self.logits.shape[1])

    @property
    def classes(self) -> int:
        return 0 if self.logits is None else int(self.logits.shape[2])

    @property
    def correctness(self) -> Array | None:
        """(n,) whether the predicted classes are right, without logits; None if unknown."""
        if self.correct is not None:
            return self.correct
        if self.predicted is None or self.labels is None:
            return None
        return np.asarray(self.predicted == self.labels)

    @property
    def has_outcomes(self) -> bool:
        """Whether right and wrong predictions can be distinguished."""
        return self.correctness is not None or (self.labels is not None and self.logits is not None)

    def blocks(self, size: int | None = None) -> list[slice]:
        """Row slices small enough to work on at once."""
        width = max(1, self.draws * self.classes)
        return blocks(len(self), size or max(1, CHECK_BYTES // (4 * width)))

    @property
    def views(self) -> list[Predictions]:
        """The predictions of the same network on changed images whose embeddings are among the variants."""
        views = [array for name, array in self.variants.items() if name.startswith(VIEW)]
        return [Predictions(index=self.index, embeddings=array) for array in views]

    def replace(self, **changes: Any) -> Predictions:
        """The same with other fields; new `probs` take the place of the logits."""
        kept = {field.name: getattr(self, field.name) for field in fields(self)}
        if changes.get("probs") is not None:
            kept["logits"] = None
        return Predictions(**{**kept, **changes})

    def take(self, rows: ArrayLike | slice) -> Predictions:
        """The rows at these positions (numbers, a mask or a slice), in this order."""
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            if rows.dtype != bool and rows.dtype.kind not in "iu" and rows.size:
                raise BadInput(f"rows has dtype {dtype_name(rows)}: give positions, a mask or a slice.")
            if rows.dtype == bool and rows.shape != (len(self),):
                raise BadInput(f"The mask has shape {rows.shape}, there are {len(self)} rows: they must fit.")
            rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.intp, copy=False).reshape(-1)
            is_invalid = (rows < -len(self)) | (rows >= len(self))
            if is_invalid.any():
                raise BadInput(f"There is no row {rows[is_invalid][0]}: there are {len(self)} rows, counted from 0.")

        for _, column in self.columns():
            check_not_truncated(column)

        def cut(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {key: array[rows] for key, array in value.items()}
            return None if value is None else value[rows]

        # Rows of checked fields need no second check of every number: only the keys can go wrong.
        taken = object.__new__(Predictions)
        taken._set_fields({f.name: cut(getattr(self, f.name)) for f in fields(self) if f.name not in NOT_ROWS})
        taken._set_fields({name: getattr(self, name) for name in NOT_ROWS})
        taken._common_length()
        taken._check_unique()
        return taken

    def select(self, index: ArrayLike) -> Predictions:
        """The rows with these keys, in this order."""
        keys = inputs.keys(np.atleast_1d(index))
        if not len(keys):
            raise BadInput("No keys are given: name at least one row.")
        check_same_keys(self.index, keys)
        order = np.argsort(self.index, kind="stable")
        positions = np.searchsorted(self.index, keys, sorter=order)
        rows = order[np.minimum(positions, len(order) - 1)]
        missing = self.index[rows] != keys
        if missing.any():
            raise BadInput(
                f"index has no row {keys[missing][0]}: {int(missing.sum())} of the {len(keys)} requested are missing."
            )
        return self.take(rows)

    def save(self, path: str | Path) -> Path:
        """Write a folder, .npz, .safetensors, .parquet or .csv, by the suffix of the name."""
        from nescio.predictions.files import save

        return save(self, path)

    @staticmethod
    def load(
        source: str | Path | Mapping[str, object], *, names: Mapping[str, str] | None = None, ood: bool = False
    ) -> Predictions:
        """Read what `save` writes, a .pt file of tensors, or a dict of arrays.

        names    field -> the name that it has in the file, e.g. {"logits": "predictions", "labels": "label_ids"};
                 other names that are no fields are then passed over
        ood      every row is of a class that was not in training, unless the file has `in_distribution`
        """
        from nescio.predictions.files import load

        return load(source, names=names, ood=ood)

    @staticmethod
    def from_files(*, ood: bool = False, **paths: str | Path | Mapping[str, str | Path]) -> Predictions:
        """One .npy, .npz or .pt file of one array per field: from_files(logits="a.npy", labels="b.npy").

        `scores`, `variants` and `groups` are mappings from a name to a path.
        """
        from nescio.predictions.files import from_files

        return from_files(paths, ood=ood)


def check_same_keys(one: Array, other: Array) -> None:
    """Refuse keys of two kinds."""
    if (one.dtype.kind == "U") != (other.dtype.kind == "U"):
        raise BadInput("One index is text and the other numbers: rows can only be joined on keys of one kind.")


def _checked_mapping(field: str, mapping: object, check: Callable[[str, ArrayLike], Array]) -> dict[str, Array]:
    """A mapping field, every array of it checked."""
    return {name: check(f"{field}/{name}", value) for name, value in inputs.named_arrays(field, mapping)}
