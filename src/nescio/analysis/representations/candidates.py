"""Candidates: embeddings of sibling networks from files, and the split into references and evaluated rows."""

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

MAX_REFERENCES = 5000  # maximum number of references among the rows, as in the paper


@dataclass(frozen=True, eq=False)
class Candidate:
    """A name and the embeddings of its members, of the same rows in the same order."""

    name: str
    tests: Sequence[Predictions]
    refs: Sequence[Predictions] | None = None  # None: a subset of the test rows
    train: Sequence[Predictions] | None = None  # labelled rows for downstream heads
    backbones: tuple[str, ...] = ()  # known backbones of the members

    @property
    def members(self) -> int:
        return len(self.tests)

    @property
    def features(self) -> list[int]:
        """Distinct widths of the members' embeddings."""
        return sorted({int(np.asarray(member.embeddings).shape[1]) for member in self.tests})

    def first(self, members: int) -> Candidate:
        """The candidate with only its first members."""
        refs, train = (None if rows is None else rows[:members] for rows in (self.refs, self.train))
        return replace(self, tests=self.tests[:members], refs=refs, train=train)


# ---- fair comparison


def common_member_count(counts: Mapping[str, int]) -> tuple[int, list[str]]:
    """Number of members for the comparison, the smallest of any candidate with siblings, and notes about it.

    FV is a population variance, (M − 1)/M of the unbiased one, and an average over more networks has a lower Brier
    score. Candidates with different M would differ by M alone.
    """
    members = min((count for count in counts.values() if count > 1), default=1)
    larger = [f"{name} has {count}" for name, count in counts.items() if count > members]
    if not larger:
        return members, []
    return members, [
        f"Candidates are compared by their first {members} networks each, because variances and losses depend on how "
        f"many there are: {', '.join(larger)}."
    ]


def layer_warnings(widths: Iterable[int], backbones: Iterable[str]) -> list[str]:
    """Warning if candidates differ in width or backbone."""
    distinct_widths, distinct_backbones = sorted(set(widths)), sorted(set(backbones))
    differences = [f"width ({', '.join(map(str, distinct_widths))} features)"] if len(distinct_widths) > 1 else []
    differences += [f"backbone ({', '.join(distinct_backbones)})"] if len(distinct_backbones) > 1 else []
    if not differences:
        return []
    return [
        f"The candidates differ in {' and '.join(differences)}: consistency does not compare layers of different depth "
        "or width. An early layer may be the most consistent and separate the classes worst: check with labels before "
        "selecting one."
    ]


# ---- reading embeddings


def load_members(files: Sequence[str | Path]) -> list[Predictions]:
    """Embeddings of the same rows, one file per member; rows come in the order of the first."""
    paths = [os.path.realpath(os.path.expanduser(file)) for file in files]
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise BadInput(f"{files[number]} is given twice: a model always agrees with itself.")
    return align_members([load_embeddings(file) for file in files], [str(file) for file in files])


def load_embeddings(file: str | Path) -> Predictions:
    """Index, embeddings and labels of a file; other fields are not read."""
    if str(file).lower().endswith(".npy"):  # one unnamed array: the embeddings
        with naming_file(Path(file), "read"):
            member = Predictions(embeddings=read_array(Path(file)))
    else:
        member = Predictions.load(file)
    if member.embeddings is None:
        fields = ", ".join(name for name, _ in member.columns() if name != "index")
        raise BadInput(f"{file} contains no embeddings (n, d), only {fields}; scores of representations need them.")
    return Predictions(index=member.index, labels=member.labels, embeddings=member.embeddings)


def align_members(members: Sequence[Predictions], names: Sequence[str]) -> list[Predictions]:
    """Members with rows in the order of the first member; all must have the same rows and different embeddings."""
    first, ordered = members[0], [members[0]]
    for member, name in zip(members[1:], names[1:], strict=True):
        member = _align_rows(first, member, names[0], name)
        for other, other_name in zip(ordered, names, strict=False):
            if _same_embeddings(member, other):
                raise BadInput(f"{name} and {other_name} have the same embeddings: a model always agrees with itself.")
        if member.labels is not None and first.labels is not None and not np.array_equal(member.labels, first.labels):
            row = int(np.argmax(member.labels != first.labels))
            raise BadInput(f"{name} and {names[0]} have different labels at index {first.index[row]}.")
        ordered.append(member)
    return ordered


def _align_rows(first: Predictions, member: Predictions, first_name: str, name: str) -> Predictions:
    check_same_keys(first.index, member.index)
    if np.array_equal(member.index, first.index):
        return member
    unshared = np.setxor1d(member.index, first.index)
    if len(unshared):
        raise BadInput(
            f"{name} has other rows than {first_name}: {len(unshared)} are in only one of them, the first at index "
            f"{unshared[0]}. Members must describe the same images."
        )
    return member.select(first.index)


def _same_embeddings(first: Predictions, second: Predictions) -> bool:
    a, b = np.asarray(first.embeddings), np.asarray(second.embeddings)
    return a.shape == b.shape and np.array_equal(a[:16], b[:16]) and np.array_equal(a, b)


# ---- references and evaluated rows


class ReferenceSplit(NamedTuple):
    """Keys of references, and of the rows that are scored against them."""

    references: Array
    evaluated: Array


@dataclass(frozen=True, eq=False)
class EvaluationRows:
    """The scored rows and their references."""

    keys: Array  # (n,) keys of the evaluated rows
    splits: Sequence[ReferenceSplit]  # splits for candidates without separate references
    references: int  # minimum number of references of a row
    notes: tuple[str, ...] = ()


def split_references(keys: Array, split: int | None, seed: int) -> list[ReferenceSplit]:
    """Split rows into references and scored rows, or into halves that are references of each other (at most 5,000).

    The split depends on the keys and the seed, not on the order of rows. It uses raw bits of PCG64, because NumPy may
    change its permutations.
    """
    n, keys = len(keys), np.sort(keys)
    order = keys[np.argsort(np.random.PCG64(seed_for("references", seed)).random_raw(n), kind="stable")]
    if split is not None:
        if not 0 < split < n:
            raise BadInput(f"split_references is {split}, and there are {n} rows: it must leave some rows to score.")
        return [ReferenceSplit(order[:split], order[split:])]
    if n < 4:
        raise BadInput(f"There are only {n} rows: pass separate references, or more rows.")
    count = min(MAX_REFERENCES, n // 2)
    first, second = order[: n // 2], order[n // 2 :]
    return [ReferenceSplit(first[:count], second), ReferenceSplit(second[:count], first)]


def shared_keys(candidates: Sequence[Candidate]) -> Array:
    """Keys of the test rows that all candidates have, in the order of the first."""
    first = candidates[0]
    for candidate in candidates[1:]:
        if (candidate.tests[0].index.dtype.kind == "U") != (first.tests[0].index.dtype.kind == "U"):
            raise BadInput(
                f"The index of {candidate.name} and that of {first.name} have different types, text and numbers."
            )
    return join([Predictions(index=candidate.tests[0].index, in_distribution=True) for candidate in candidates])[
        0
    ].index


def evaluation_rows(candidates: Sequence[Candidate], split: int | None = None, seed: int = 0) -> EvaluationRows:
    """The rows that all candidates share, with the same references for all candidates without separate ones."""
    keys, splits = shared_keys(candidates), list[ReferenceSplit]()
    notes = list(dict.fromkeys(note for candidate in candidates for note in candidate.tests[0].notes))
    omitted = max(len(candidate.tests[0]) for candidate in candidates) - len(keys)
    if omitted:
        notes.append(
            f"{len(keys):,} rows that all candidates have are scored; up to {omitted:,} of a candidate are omitted."
        )
    separate_references = [candidate.refs[0].index for candidate in candidates if candidate.refs is not None]
    if len(separate_references) < len(candidates):
        splits = split_references(keys, split, seed)
        keys = keys[np.isin(keys, np.concatenate([split.evaluated for split in splits]))]
    elif split is not None:
        raise BadInput(
            "split_references takes references from the rows, but separate references were passed; omit one."
        )
    if separate_references and (
        splits
        or any(not np.array_equal(np.sort(index), np.sort(separate_references[0])) for index in separate_references)
    ):
        notes.append("The candidates were scored against different references: their NC is not strictly comparable.")
    counts = [len(index) for index in (*separate_references, *(split.references for split in splits))]
    return EvaluationRows(keys, splits, min(counts), tuple(notes))
