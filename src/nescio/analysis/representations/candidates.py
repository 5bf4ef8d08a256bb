"""Candidates: the embeddings of sibling networks, read from files, and which rows are references of which."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.identity import seed_for
from nescio.predictions.combine import join
from nescio.predictions.files import naming_file, read_array
from nescio.predictions.outputs import Predictions, check_same_keys

MOST = 5000  # references, as in the paper, where they are a part of the rows


@dataclass(frozen=True, eq=False)
class Candidate:
    """A name and the embeddings of its members, one dump per member, of the same rows in the same order."""

    name: str
    tests: Sequence[Predictions]
    refs: Sequence[Predictions] | None = None  # None: a part of the test rows
    train: Sequence[Predictions] | None = None  # labelled rows for downstream heads
    backbones: tuple[str, ...] = ()  # of the members, as far as they are known

    @property
    def members(self) -> int:
        return len(self.tests)

    @property
    def features(self) -> list[int]:
        """d of the members, every number once."""
        return sorted({int(np.asarray(dump.embeddings).shape[1]) for dump in self.tests})

    def first(self, members: int) -> Candidate:
        """The first members alone."""
        refs, train = (None if dumps is None else dumps[:members] for dumps in (self.refs, self.train))
        return replace(self, tests=self.tests[:members], refs=refs, train=train)


# ---- what makes a comparison unfair


def common_member_count(counts: Mapping[str, int]) -> tuple[int, list[str]]:
    """By how many members candidates are compared, the fewest of any that has siblings, and what to say of it.

    FV is a population variance, (M − 1)/M of the unbiased one, and answers averaged over more networks have the lower
    Brier score: at unequal M a candidate would win or lose by its M.
    """
    members = min((count for count in counts.values() if count > 1), default=1)
    more = [f"{name} has {count}" for name, count in counts.items() if count > members]
    if not more:
        return members, []
    return members, [
        f"Candidates are compared by their first {members} networks each, because variances and losses depend on how "
        f"many there are: {', '.join(more)}."
    ]


def layer_warnings(widths: Iterable[int], backbones: Iterable[str]) -> list[str]:
    """A warning where candidates differ in width or backbone, so that their layers are not alike."""
    wide, built = sorted(set(widths)), sorted(set(backbones))
    differ = [f"width ({', '.join(map(str, wide))} features)"] if len(wide) > 1 else []
    differ += [f"backbone ({', '.join(built)})"] if len(built) > 1 else []
    if not differ:
        return []
    return [
        f"The candidates differ in {' and '.join(differ)}: consistency does not compare layers of different depth or "
        "width. An early layer may be the most consistent and tell classes apart worst: check with labels before "
        "trusting one over another."
    ]


# ---- reading embeddings


def load_members(files: Sequence[str | Path]) -> list[Predictions]:
    """Embeddings of the same rows, one file per member; rows come in the order of the first."""
    places = [os.path.realpath(os.path.expanduser(file)) for file in files]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise BadInput(f"{files[number]} is given twice: a model always agrees with itself.")
    return align_members([load_embeddings(file) for file in files], [str(file) for file in files])


def load_embeddings(file: str | Path) -> Predictions:
    """Index, embeddings and labels of a file, without the rest."""
    dump = _array(Path(file)) if str(file).lower().endswith(".npy") else Predictions.load(file)
    if dump.embeddings is None:
        fields = ", ".join(name for name, _ in dump.columns() if name != "index")
        raise BadInput(f"{file} holds no embeddings (n, d), only {fields}: NC and its kin compare representations.")
    return Predictions(index=dump.index, labels=dump.labels, embeddings=dump.embeddings)


def _array(path: Path) -> Predictions:
    """A .npy file holds one array without a name, which here can only be the embeddings."""
    with naming_file(path, "read"):
        return Predictions(embeddings=read_array(path))


def align_members(dumps: Sequence[Predictions], names: Sequence[str]) -> list[Predictions]:
    """The dumps with their rows in the order of the first; all must hold the same rows, and each its own numbers."""
    first, ordered = dumps[0], [dumps[0]]
    for dump, name in zip(dumps[1:], names[1:], strict=True):
        dump = _in_order_of(first, dump, names[0], name)
        for other, other_name in zip(ordered, names, strict=False):
            if _same(dump, other):
                raise BadInput(f"{name} and {other_name} hold the same embeddings: a model always agrees with itself.")
        if dump.labels is not None and first.labels is not None and not np.array_equal(dump.labels, first.labels):
            row = int(np.argmax(dump.labels != first.labels))
            raise BadInput(f"{name} and {names[0]} have different labels at index {first.index[row]}.")
        ordered.append(dump)
    return ordered


def _in_order_of(first: Predictions, dump: Predictions, first_name: str, name: str) -> Predictions:
    check_same_keys(first.index, dump.index)
    if np.array_equal(dump.index, first.index):
        return dump
    odd = np.setxor1d(dump.index, first.index)
    if len(odd):
        raise BadInput(
            f"{name} holds other rows than {first_name}: {len(odd)} are in one of them only, index {odd[0]} first. "
            "Members must describe the same images."
        )
    return dump.select(first.index)


def _same(one: Predictions, other: Predictions) -> bool:
    a, b = np.asarray(one.embeddings), np.asarray(other.embeddings)
    return a.shape == b.shape and np.array_equal(a[:16], b[:16]) and np.array_equal(a, b)


# ---- which rows are references, which are judged


class ReferenceSplit(NamedTuple):
    """Keys of some references, and of the rows that are judged against them."""

    references: Array
    judged: Array


@dataclass(frozen=True, eq=False)
class EvaluationRows:
    """The rows that get a score, and against which references."""

    keys: Array  # (n,)
    parts: Sequence[ReferenceSplit]  # for candidates without references of their own
    references: int  # the fewest that any row is judged against
    notes: tuple[str, ...] = ()


def split_references(keys: Array, split: int | None, seed: int) -> list[ReferenceSplit]:
    """Some of the rows as references of the others; or two halves, at most 5,000 of each the references of the other.

    Which rows these are depends on their keys and the seed, not on their order. By raw bits of PCG64, because NumPy may
    change its permutations.
    """
    n, keys = len(keys), np.sort(keys)
    order = keys[np.argsort(np.random.PCG64(seed_for("references", seed)).random_raw(n), kind="stable")]
    if split is not None:
        if not 0 < split < n:
            raise BadInput(
                f"split_references is {split}, and there are {n} rows: it must leave some of them to be judged."
            )
        return [ReferenceSplit(order[:split], order[split:])]
    if n < 4:
        raise BadInput(f"There are only {n} rows: give references apart, or more rows.")
    count = min(MOST, n // 2)
    first, second = order[: n // 2], order[n // 2 :]
    return [ReferenceSplit(first[:count], second), ReferenceSplit(second[:count], first)]


def shared_keys(candidates: Sequence[Candidate]) -> Array:
    """Keys of the test rows that all candidates hold, in the order of the first."""
    first = candidates[0]
    for candidate in candidates[1:]:
        if (candidate.tests[0].index.dtype.kind == "U") != (first.tests[0].index.dtype.kind == "U"):
            raise BadInput(
                f"The index of {candidate.name} and that of {first.name} are of two kinds, text and numbers."
            )
    return join([Predictions(index=candidate.tests[0].index, in_distribution=True) for candidate in candidates])[
        0
    ].index


def evaluation_rows(candidates: Sequence[Candidate], split: int | None = None, seed: int = 0) -> EvaluationRows:
    """The rows of all candidates; where references are a part of them, the same part for all."""
    keys, parts = shared_keys(candidates), list[ReferenceSplit]()
    notes = list(dict.fromkeys(note for candidate in candidates for note in candidate.tests[0].notes))
    lost = max(len(candidate.tests[0]) for candidate in candidates) - len(keys)
    if lost:
        notes.append(f"{len(keys):,} rows are judged, which all candidates hold; up to {lost:,} rows of one are not.")
    apart = [candidate.refs[0].index for candidate in candidates if candidate.refs is not None]
    if len(apart) < len(candidates):
        parts = split_references(keys, split, seed)
        keys = keys[np.isin(keys, np.concatenate([part.judged for part in parts]))]
    elif split is not None:
        raise BadInput("split_references takes references from the rows, and references are given apart: drop one.")
    if apart and (parts or any(not np.array_equal(np.sort(index), np.sort(apart[0])) for index in apart)):
        notes.append("The candidates were judged against different references: compare their NC with care.")
    counts = [len(index) for index in (*apart, *(part.references for part in parts))]
    return EvaluationRows(keys, parts, min(counts), tuple(notes))
