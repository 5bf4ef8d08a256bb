"""Checks and normalises user input for the fields of Predictions, with notes on every change."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.checks import (
    CACHE_VALUES,
    as_array,
    check_finite,
    check_not_truncated,
    cube,
    dtype_name,
    floats,
    integers,
    numbers,
    release_pages,
)
from nescio.arrays.parallel import blocks, run_on_threads
from nescio.arrays.types import Array
from nescio.errors import BadInput

SINGLE_LABEL = "nescio evaluates single-label classification, where every row has one class"
LOG_SLACK = 2e-2  # tolerance of probabilities after rounded logarithms or a softmax
MOST_OFF = 0.5  # maximum distance of a rounded row's sum from one
MOST_VOTES = 1e15  # maximum number of votes for one class of one row
DECIMALS = 6  # maximum number of decimals of rounded probabilities


# ---- one field each


def booleans(name: str, value: ArrayLike) -> Array:
    array = numbers(name, value)
    if array.ndim != 1:
        raise BadInput(f"{name} has shape {array.shape}: it must be (n,), one True or False per row.")
    if array.dtype != bool and not ((array == 0) | (array == 1)).all():
        raise BadInput(f"{name} must be True and False, or 1 and 0.")
    return array.astype(bool, copy=False)


def yes_or_no(name: str, value: ArrayLike) -> bool:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
        raise BadInput(f"{name} must be True or False.")
    return bool(array.item())


def votes(value: ArrayLike) -> Array:
    array = numbers("annotations", value)
    if array.ndim != 2 or array.shape[1] == 0:
        raise BadInput(f"annotations has shape {array.shape}: it must be (n, classes), the votes for each class.")
    check_finite("annotations", array)
    too_many = np.zeros_like(array, bool) if array.dtype == np.float16 else array > MOST_VOTES  # float16 ends at 65504
    for is_invalid, problem in ((array < 0, "a negative number of votes"), (too_many, "more votes than can be added")):
        if is_invalid.any():
            raise BadInput(f"annotations has {problem} in row {int(np.argmax(is_invalid.any(1)))}.")
    return array


def shares(name: str, value: ArrayLike) -> Array:
    """Numbers from 0 to 1, (n,)."""
    array = floats(name, value)
    if array.ndim != 1:
        raise BadInput(f"{name} has shape {array.shape}: it must be (n,), one number per row.")
    is_invalid = ~((array >= 0) & (array <= 1))
    if is_invalid.any():
        row = int(np.argmax(is_invalid))
        percent = bool(((array >= 0) & (array <= 100)).all()) and float(np.median(array)) > 1
        advice = "; divide percentages by 100" if percent else ""
        raise BadInput(f"{name} contains {array[row]} in row {row}: it must be between 0 and 1{advice}.")
    return array


def tags(name: str, value: ArrayLike) -> Array:
    array = text(name, as_array(name, value))
    if array.ndim != 1 or array.dtype.kind not in "fiubU":
        raise BadInput(
            f"{name} has shape {array.shape} of {dtype_name(array)}: it must be (n,), one number or one text per row."
        )
    check_finite(name, array)
    return array


def keys(value: ArrayLike) -> Array:
    array = text("index", as_array("index", value))
    if array.ndim != 1 or array.dtype.kind not in "iufU":
        raise BadInput(
            f"index has shape {array.shape} of {dtype_name(array)}: it must be (n,), one integer or text per row."
        )
    return array if array.dtype.kind == "U" else integers("index", array)


def text(name: str, array: Array) -> Array:
    """Bytes and Python strings as NumPy text; anything else unchanged."""
    try:
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
        if array.dtype.kind == "T" or (array.dtype.kind == "O" and all(isinstance(item, str) for item in array.flat)):
            array = array.astype(str)
    except UnicodeError:
        raise BadInput(f"{name} contains invalid Unicode: save it again.") from None
    if array.dtype.kind == "U" and array.dtype.itemsize:
        points = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        if (points > 0x10FFFF).any() or (points >> 11 == 0xD800 >> 11).any():  # no character, or half of one
            raise BadInput(f"{name} contains invalid Unicode: save it again.")
    return array


def named_arrays(field: str, mapping: object) -> Iterator[tuple[str, ArrayLike]]:
    """(name, value) of a mapping field whose names every file format can store."""
    if mapping is None:
        return
    if not isinstance(mapping, Mapping):
        raise BadInput(f"{field} must be a mapping from a name to an array.")
    for name, value in mapping.items():
        if not (isinstance(name, str) and name.strip() and name.isprintable()):
            raise BadInput(f"{field} has the name {name!r}: a name must be a text that can be printed.")
        yield name, value


def texts(name: str, value: ArrayLike) -> tuple[str, ...]:
    """Texts that are no rows: names of classes, notes."""
    array = text(name, as_array(name, list(value) if isinstance(value, tuple) else value))
    if array.ndim != 1 or (array.size and array.dtype.kind != "U"):
        raise BadInput(f"{name} must be a list of texts.")
    return tuple(array.tolist())


def sentences(value: ArrayLike) -> tuple[str, ...]:
    """Notes, with control characters replaced by spaces."""
    return tuple("".join(c if c.isprintable() else " " for c in note) for note in texts("notes", value))


# ---- classes


@dataclass(frozen=True)
class ClassIds:
    """Class numbers of labels and predicted classes, and the class names if given."""

    labels: Array | None
    predicted: Array | None
    names: tuple[str, ...] | None
    notes: tuple[str, ...] = ()


def class_ids(
    labels: Array | None, predicted: Array | None, class_names: ArrayLike | None, classes: int, all_ood: bool
) -> ClassIds:
    """Class numbers; names are numbered by their position in `class_names`, else in sorted order.

    labels, predicted  as `classes_given` returns them
    classes      number of classes in the logits, 0 without logits
    all_ood      all rows are out-of-distribution, so that their labels need not be classes of the logits
    """
    fields = {"labels": labels, "predicted": predicted}
    arrays = {name: array for name, array in fields.items() if array is not None}
    names = None if class_names is None else _class_names(class_names, classes)
    texts = [array for array in arrays.values() if array.dtype.kind == "U"]
    if not texts:
        return ClassIds(arrays.get("labels"), arrays.get("predicted"), names)
    if len(texts) < len(arrays):
        raise BadInput("labels and predicted must both be class names, or both be numbers.")
    present = np.unique(np.concatenate(texts))
    notes = _similar_names_notes([*present.tolist(), *(names or ())])
    if names is None and not all_ood:
        if classes and len(present) != classes:
            raise BadInput(
                f"labels names {len(present)} classes, logits has {classes}: give class numbers, or the names of all "
                "classes in the order of the logits as class_names."
            )
        names = tuple(present.tolist())
        notes += (f"Classes are numbered by the sorted names in labels: from {names[0]} (0) to {names[-1]}.",)
    known_names = np.array(names or (), str)
    # An unknown name gets a number after all classes of the logits.
    order = np.concatenate([known_names, present[~np.isin(present, known_names)]])
    sorter = np.argsort(order, kind="stable")
    numbered = {name: sorter[np.searchsorted(order, array, sorter=sorter)] for name, array in arrays.items()}
    return ClassIds(numbered.get("labels"), numbered.get("predicted"), names, notes)


def _similar_names_notes(names: Sequence[str]) -> tuple[str, ...]:
    """A note on two class names that differ only in case, Unicode form or surrounding space."""
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(unicodedata.normalize("NFKC", name).casefold().strip(), name)
        if other != name:
            return (f"The classes {other!a} and {name!a} are different, although their names are similar.",)
    return ()


def classes_given(name: str, value: ArrayLike | None) -> Array | None:
    """Class numbers as int64, or class names as text."""
    if value is None:
        return None
    array = text(name, as_array(name, value))
    if array.ndim == 2 and array.dtype.kind in "fiub":
        raise BadInput(f"{name} has shape {array.shape}: it must be (n,), because {SINGLE_LABEL}, not multi-label.")
    if array.dtype.kind == "f" and array.ndim == 1 and np.isfinite(array).all() and (array % 1 != 0).any():
        row = int(np.argmax(array % 1 != 0))
        raise BadInput(
            f"{name} contains {array[row]} in row {row}, which is not a whole number: {SINGLE_LABEL}, not regression."
        )
    if array.dtype.kind != "U":
        return integers(name, array)
    if array.ndim != 1:
        raise BadInput(f"{name} has shape {array.shape}: it must be (n,), one class per row.")
    empty = np.char.strip(array) == ""
    if empty.any():
        raise BadInput(f"{name} has no class in row {int(np.argmax(empty))}: fill it or leave the row out.")
    if broken := [row for row, word in enumerate(array.tolist()) if "\0" in word]:
        raise BadInput(f"{name} has a NUL character in row {broken[0]}: correct that row.")
    if all(re.fullmatch(r"\s*[+-]?\d{1,18}(\.0*)?\s*", word, re.ASCII) for word in array.tolist()):
        return np.array([int(word.partition(".")[0]) for word in array.tolist()])
    return array


def _class_names(value: ArrayLike, classes: int) -> tuple[str, ...]:
    names = texts("class_names", value)
    raw = value if isinstance(value, (list, tuple)) else names  # NumPy drops a NUL character at the end
    if broken := [number for number, name in enumerate(raw) if "\0" in str(name)]:
        raise BadInput(f"class_names has a NUL character in the name of class {broken[0]}: correct that name.")
    if len(set(names)) < len(names):
        raise BadInput("class_names contains a name twice: class names must be unique.")
    if classes and len(names) != classes:
        raise BadInput(f"class_names has {len(names)} names, logits has {classes} classes: give one per class.")
    return names


# ---- logits and probabilities


@dataclass(frozen=True)
class Scores:
    """Logits or log-probabilities (n, s, c), and notes on how they were read."""

    logits: Array | None
    normalized: bool
    notes: tuple[str, ...] = ()


def scores(logits: ArrayLike | None, probs: ArrayLike | None, normalized: bool) -> Scores:
    """Logits unchanged, probabilities as logs; if both are given, the logits, whose softmax the probs must be."""
    notes: list[str] = []
    if logits is None and probs is None:
        return Scores(None, normalized)
    if probs is not None:
        logs, rounded = _log_of_probs(_two_columns("probs", probs, notes))
        if logits is None:
            return Scores(logs, True, (*notes, *rounded))
        notes = []
    assert logits is not None
    table = cube("logits", _two_columns("logits", logits, notes), masks=True)
    if normalized:
        _check_normalized(table)
    elif _look_like_probs(table):
        notes.append("The logits look like probabilities, since no row is negative and every row sums to one.")
    if probs is not None:
        _check_softmax(table, logs)
    return Scores(table, normalized, tuple(notes))


def _two_columns(name: str, value: ArrayLike, notes: list[str]) -> ArrayLike:
    """One column of a binary classifier as two: the probability of class 1, or its logit against class 0."""
    array = as_array(name, value)
    if array.ndim not in (1, 2) or array.shape[1:] not in ((), (1,)) or array.dtype.kind not in "fiub":
        return value
    column = array.reshape(-1).astype(np.float64)
    check_finite(name, column)
    if name == "probs":
        shares("probs", column)
    notes.append(f"The one column of {name} is taken as that of class 1 of a binary classifier.")
    return np.stack([1 - column if name == "probs" else np.zeros(len(column)), column], axis=1)


def _log_of_probs(value: ArrayLike) -> tuple[Array, list[str]]:
    """log p as (n, s, c), -inf for zeros, float32 for half precision, and a note if rounded rows were rescaled."""
    probs = cube("probs", value)
    half = probs.dtype == np.float16
    slack = 1e-2 if half else 1e-3
    logs = np.empty(probs.shape, np.float32 if half else probs.dtype)
    parts = blocks(len(probs), max(1, CACHE_VALUES // (probs.shape[1] * probs.shape[2])))

    def work(worker: int, workers: int) -> float:
        worst = 0.0
        for block in parts[worker::workers]:
            p = probs[block]
            if p.min() < 0:
                row = block.start + int(np.argwhere(p < 0)[0][0])
                raise BadInput(f"probs has a negative probability in row {row}: name unnormalised scores logits.")
            with np.errstate(divide="ignore", over="ignore"):
                worst = max(worst, float(np.abs(p.sum(-1, dtype=logs.dtype) - 1).max()))
                np.log(p, out=logs[block], dtype=logs.dtype)
            release_pages(p)
        return worst

    if max(run_on_threads(work, None if len(parts) > 8 else 1)) <= slack:
        return logs, []
    decimals, worst = _explained_by_rounding(probs, slack)
    logs -= np.log(np.exp(logs, dtype=np.float64).sum(-1, keepdims=True)).astype(logs.dtype)
    note = f"The probabilities are rounded to {decimals} decimals and their sums are up to {worst:.2g} off one: "
    return logs, [note + "every row was divided by its sum."]


def _explained_by_rounding(probs: Array, slack: float) -> tuple[int, float]:
    """(decimals, largest distance of a sum from one), or BadInput at the first row that rounding does not explain.

    A rounded number is off by half a unit of its last decimal at most, and a zero was never rounded up.
    """
    decimals = _decimals(probs)
    half_unit = 0.0 if decimals is None else 0.5 * 10.0**-decimals * (1 + 1e-6)
    excess = probs.sum(-1, dtype=np.float64) - 1
    allowed = np.where(excess > 0, np.count_nonzero(probs, axis=-1), probs.shape[-1]) * half_unit
    gap = (np.abs(excess) > np.maximum(slack, np.minimum(allowed, MOST_OFF))).any(-1)
    if gap.any() or decimals is None:
        row = int(np.argmax(gap))
        percents = np.allclose(probs.sum(-1, dtype=np.float64), 100, rtol=0.02)
        advice = "divide percentages by 100" if percents else "name unnormalised scores logits"
        raise BadInput(
            f"probs must sum to one in every row, and row {row} is off by {np.abs(excess[row]).max():.3g}: {advice}."
        )
    return decimals, float(np.abs(excess).max())


def _decimals(probs: Array) -> int | None:
    """The number of decimals of all numbers, if at most DECIMALS."""
    with np.errstate(over="ignore"):
        for decimals in range(1, DECIMALS + 1):
            scaled = probs.astype(np.float64) * 10**decimals
            exact = np.maximum(np.abs(scaled), 1) * np.finfo(probs.dtype).eps
            if (np.abs(scaled - np.rint(scaled)) <= exact).all():
                return decimals
    return None


def _check_normalized(logs: Array) -> None:
    parts = blocks(len(logs), max(1, CACHE_VALUES // (logs.shape[1] * logs.shape[2])))

    def work(worker: int, workers: int) -> None:
        for block in parts[worker::workers]:
            check_not_truncated(logs)
            with np.errstate(over="ignore"):
                gap = np.abs(np.exp(logs[block], dtype=np.float64).sum(-1) - 1).max(-1)
            release_pages(logs[block])
            if (gap > LOG_SLACK).any():
                row = int(np.argmax(gap > LOG_SLACK))
                raise BadInput(
                    f"the probabilities of row {block.start + row}, given as logarithms, sum to one ± {gap[row]:.3g}: "
                    "give unnormalised scores as logits with normalized = False."
                )

    run_on_threads(work, None if len(parts) > 8 else 1)


def _look_like_probs(logits: Array) -> bool:
    """Whether no logit is negative and every row sums to one; the first block decides for most files."""
    for block in blocks(len(logits), max(1, CACHE_VALUES // (logits.shape[1] * logits.shape[2]))):
        z = logits[block]
        if z.min() < 0 or z.max() > 1 + LOG_SLACK or (np.abs(z.sum(-1, dtype=np.float64) - 1) > LOG_SLACK).any():
            return False
        release_pages(z)
    return True


def _check_softmax(logits: Array, logs: Array) -> None:
    """Refuse probabilities, given as logs, that are not the softmax of the logits."""
    n, draws, classes = logits.shape
    if len(logs) != n or logs.shape[2] != classes or logs.shape[1] not in (1, draws):
        raise BadInput(f"logits has shape {logits.shape} and probs {logs.shape}: give one of them.")
    for block in blocks(n, max(1, CACHE_VALUES // (draws * classes))):
        z = logits[block].astype(np.float64)
        p = np.exp(z - z.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        if logs.shape[1] < draws:
            p = p.mean(1, keepdims=True)
        mismatch = (np.abs(p - np.exp(logs[block])) > LOG_SLACK).any((1, 2))
        if mismatch.any():
            row = block.start + int(np.argmax(mismatch))
            raise BadInput(f"probs is not the softmax of logits, first in row {row}: give one of them.")
