"""Metrics of predictions: probabilities against labels."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.metrics._spec import metric

BLOCK = 1 << 18  # probabilities per block: two megabytes in float64, which fit into the cache
TINY = float(np.finfo(np.float64).tiny)  # replaces a probability of 0 in a logarithm
CONFIDENT = 1 - 2.0**-10  # above this, 1 - p loses digits that the sum of the others keeps


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Predictions against labels, one number per row. Every prediction metric is a mean of these.

    predicted   (n,)  first most probable class
    correct     (n,)  predicted is the label
    confidence  (n,)  probability of the predicted class
    uncertainty       (n,)  1 - confidence, without cancellation
    log_loss    (n,)  -log p of the label, in nats
    brier       (n,)  sum over classes of (p - [class is the label])²
    rank        (n,)  classes that come before the label: more probable, or as probable with a lower index
    zero        (n,)  the label had probability 0, read as float64's smallest normal number in log_loss
    stored            dtype of the log-probabilities that `confidence` comes from; None if it is not from a logarithm

    `top_only`: the model gave predicted classes only. log_loss, brier and perhaps confidence are NaN then, and rank is
    0 for right predictions.
    """

    classes: int
    predicted: Array
    correct: Array
    confidence: Array
    uncertainty: Array
    log_loss: Array
    brier: Array
    rank: Array
    zero: Array
    stored: np.dtype[Any] | None = None

    @property
    def n(self) -> int:
        return len(self.correct)

    @property
    def top_only(self) -> bool:
        return self.classes == 0

    @property
    def wrong(self) -> Array:
        return ~self.correct

    @property
    def floored(self) -> int:
        """Rows whose label had probability 0."""
        return int(np.count_nonzero(self.zero))

    def take(self, rows: ArrayLike) -> Outcomes:
        """The outcomes of these rows."""
        cut = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name not in ("classes", "stored")}
        return Outcomes(classes=self.classes, stored=self.stored, **cut)


def outcomes(probs: ArrayLike | Outcomes, labels: ArrayLike | None = None) -> Outcomes:
    """Probabilities (n, c) against labels (n,), checked and reduced to one number per row; Outcomes pass through."""
    if isinstance(probs, Outcomes):
        if labels is not None:
            raise BadInput("Prepared outcomes contain their labels; leave labels out.")
        return probs
    probs, labels = checked(probs, labels)
    n, c = probs.shape
    confidence, uncertainty, log_loss, square = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    predicted, rank, zero = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, bool)
    for block in blocks(n, max(1, BLOCK // c)):
        p, y = probs[block].astype(np.float64), labels[block]
        r = np.arange(len(y))
        top = p.argmax(1)
        rank[block], predicted[block] = label_ranks(p, y, top), top
        label_probability = p[r, y]
        zero[block] = label_probability == 0
        log_loss[block] = -np.log(np.where(label_probability == 0, TINY, label_probability))
        p[r, y] = 0
        square[block] = (1 - label_probability) ** 2 + np.vecdot(p, p)
        p[r, y] = label_probability
        most = p[r, top]
        p[r, top] = 0
        confidence[block], uncertainty[block] = most, complement_of(most, p.sum(1))
    right = predicted == labels
    return Outcomes(c, predicted, right, confidence, uncertainty, log_loss, square, rank, zero)


def complement_of(largest: Array, others: Array) -> Array:
    """1 - the largest probability; if that rounds to 0, the sum of the others."""
    return np.where(largest < CONFIDENT, 1 - largest, others)


def label_ranks(scores: Array, labels: Array, top: Array) -> Array:
    """Number of classes before the label in scores (n, c), ties by lower index; `top` is the first argmax."""
    rank = np.zeros(len(labels), np.int64)
    wrong = np.flatnonzero(top != labels)
    if not len(wrong):
        return rank
    z, y = scores[wrong], labels[wrong]
    label_score = np.take_along_axis(z, y[:, None], 1)
    before = _count(z > label_score)
    tied = np.flatnonzero(_count(z >= label_score) - before > 1)
    if len(tied):
        lower = np.arange(z.shape[1]) < y[tied, None]
        before[tied] += _count((z[tied] == label_score[tied]) & lower)
    rank[wrong] = before
    return rank


def _count(flags: Array) -> Array:
    """Number of True values in each row, computed on packed bits."""
    bits: Array = np.bitwise_count(np.packbits(flags, axis=1))
    return np.asarray(bits.sum(1, dtype=np.int64))


# ---- metrics


def _in_top_k(a: Outcomes, k: float = 1) -> Array:
    """(n,) whether the label is among the k most probable classes; NaN if there are fewer classes."""
    return a.rank < k if k <= a.classes else np.full(a.n, np.nan)


@metric("predictions", better="higher", prepared=True, values={"k": (1, 5)}, row_values=_in_top_k)
def accuracy(probs: ArrayLike | Outcomes, labels: ArrayLike | None = None, k: int = 1) -> float:
    """Share of rows whose label is among the k most probable classes, ties broken by lower class index.

    (1/n) Σ [rank of the label < k]. ACC@k of UIMNET, §4.
    """
    a = outcomes(probs, labels)
    k = as_whole(k, "k", 1)
    if a.top_only and k > 1:
        raise Undefined(f"There are predicted classes only, so there is no top {k}.")
    if k > a.classes and not a.top_only:
        raise Undefined(f"There are {a.classes} classes, so there is no top {k}.")
    return float(np.count_nonzero(a.rank < k) / a.n)


@metric("predictions", better="lower", prepared=True, row_values=attrgetter("log_loss"))
def nll(probs: ArrayLike | Outcomes, labels: ArrayLike | None = None) -> float:
    """Mean negative log-likelihood of the label, in nats.

    -(1/n) Σ log p(label). A label of probability 0 counts as float64's smallest normal number, whatever the dtype.
    """
    return float(_of_all_classes(outcomes(probs, labels), "NLL").log_loss.mean())


@metric("predictions", better="lower", prepared=True, row_values=attrgetter("brier"))
def brier(probs: ArrayLike | Outcomes, labels: ArrayLike | None = None) -> float:
    """Mean squared distance between the probabilities and the one-hot label, summed over classes (0 to 2).

    (1/n) Σ_rows Σ_classes (p - [class is the label])². Brier (1950).
    """
    return float(_of_all_classes(outcomes(probs, labels), "The Brier score").brier.mean())


def _of_all_classes(a: Outcomes, metric: str) -> Outcomes:
    if a.top_only:
        raise Undefined(f"{metric} needs the probabilities of all classes, and there are predicted classes only.")
    return a


def top_outcomes(right: Array, confidence: Array | None, predicted: Array | None = None) -> Outcomes:
    """Outcomes from correctness and perhaps confidence alone."""
    missing = np.full(len(right), np.nan)
    known_confidence = missing if confidence is None else confidence.astype(np.float64)
    return Outcomes(
        classes=0,
        predicted=np.full(len(right), -1) if predicted is None else predicted,
        correct=right,
        confidence=known_confidence,
        uncertainty=1 - known_confidence,
        log_loss=missing,
        brier=missing,
        rank=np.where(right, 0, 1),
        zero=np.zeros(len(right), bool),
    )


# ---- checks


def checked(probs: ArrayLike, labels: ArrayLike | None) -> tuple[Array, Array]:
    """(probs (n, c) of a float type, labels (n,) int64), or BadInput."""
    if labels is None:
        raise BadInput("labels is missing: give one true class per row.")
    p, y = _array("probs", probs), _array("labels", labels)
    if p.ndim != 2:
        raise BadInput(f"probs has shape {p.shape}; it must be (n, classes), the mean over draws.")
    if y.ndim != 1:
        raise BadInput(f"labels has shape {y.shape}; it must be (n,), one class per row.")
    if len(p) != len(y):
        raise BadInput(f"labels has {len(y)} rows, probs has {len(p)}: they must describe the same rows.")
    n, c = p.shape
    if n == 0:
        raise BadInput("There are no rows: at least one is needed.")
    if c < 2:
        raise BadInput("probs has one class only; at least two are needed.")
    y = _class_ids(y, c)
    if p.dtype.kind != "f":
        p = p.astype(np.float64)
    slack = 1e-2 if p.dtype == np.float16 else 1e-3
    for rows in blocks(n, max(1, BLOCK // c)):
        block = p[rows]
        _refuse(~np.isfinite(block).all(1), "probs has a value that is not finite in row {row}.", rows.start)
        _refuse((block < 0).any(1), "probs has a negative probability in row {row}.", rows.start)
        gap = np.abs(block.sum(1, dtype=np.float64) - 1)
        if (gap > slack).any():
            row = int(np.argmax(gap > slack))
            raise BadInput(f"probs must sum to one in every row; row {rows.start + row} is off by {gap[row]:.3g}.")
    return p, y


def _refuse(bad: Array | np.bool_, sentence: str, first: int = 0) -> None:
    if bad.any():
        raise BadInput(sentence.format(row=first + int(np.argmax(bad))))


def as_array(value: ArrayLike, name: str) -> Array:
    """An array of any type; nested lists must be of one length."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError):
        raise BadInput(f"{name} has rows of different lengths, or is no array; give one block of numbers.") from None


def as_whole(value: Any, name: str, least: int | None = None) -> int:
    """A Python integer, from 3, 3.0 or a NumPy number, but not from a truth value or a text."""
    try:
        number = None if isinstance(value, bool | np.bool_) or np.ndim(value) or value != int(value) else int(value)
    except (ValueError, TypeError, OverflowError):
        number = None
    if number is None or (least is not None and number < least):
        start = "" if least is None else f" from {least}"
        raise BadInput(f"{name} is {value!s}; it must be a whole number{start}.")
    return number


def _array(name: str, value: ArrayLike) -> Array:
    array = as_array(value, name)
    if array.dtype.kind not in "fiub":
        raise BadInput(f"{name} must be numbers, got {array.dtype}.")
    return array


def _class_ids(labels: Array, classes: int) -> Array:
    if labels.dtype.kind == "f":
        is_whole = np.isfinite(labels) & (labels == np.rint(labels))
        _refuse(~is_whole, "labels is not a whole number in row {row}.")
    labels = labels.astype(np.int64)
    is_outside = (labels < 0) | (labels >= classes)
    if is_outside.any():
        row = int(np.argmax(is_outside))
        raise BadInput(
            f"labels contains {labels[row]} in row {row}, but probs has {classes} classes (0 to {classes - 1})."
        )
    return labels
