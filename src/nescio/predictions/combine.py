"""Rows of several predictions: a deep ensemble, common rows by index, and equal rows regardless of their index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.predictions.outputs import CHECK_BYTES, VIEW, Predictions, check_same_keys


def stack(*members: Predictions | Iterable[Predictions]) -> Predictions:
    """A deep ensemble: the draws of all networks with their member numbers, joined on index.

    Call stack(a, b) or stack([a, b]).

    The members must have the same rows and labels. Logits are concatenated along draws; variants are averaged as
    probabilities; embeddings and scores belong to single networks and are left out.
    """
    members = _as_members(members, "stack")
    first = members[0]
    for number, member in enumerate(members):
        if member.logits is None:
            raise BadInput(f"Member {number} has no logits: only logits can be stacked.")
        if member.classes != first.classes:
            raise BadInput(
                f"Member {number} has {member.classes} classes, member 0 has {first.classes}: make them equal."
            )
        if member.normalized != first.normalized:
            raise BadInput(
                "Some members have logits and others log-probabilities: give all as probs, or all as logits."
            )
    aligned = [first]
    for number, member in enumerate(members[1:], start=1):
        check_same_keys(first.index, member.index)
        if not np.array_equal(member.index, first.index):
            if not np.array_equal(np.sort(member.index), np.sort(first.index)):
                raise BadInput(f"Member {number} has other rows than member 0: their index sets must be equal.")
            member = member.select(first.index)
        for field in ("labels", "in_distribution"):
            ours, theirs = getattr(first, field), getattr(member, field)
            if (ours is None) != (theirs is None) or (ours is not None and not np.array_equal(ours, theirs)):
                raise BadInput(f"Member {number} has other {field} than member 0: they must be equal.")
        aligned.append(member)
    names: list[Array] = []
    offset = 0
    for member in aligned:
        draw_members = np.zeros(member.draws, np.int64) if member.members is None else member.members
        distinct, draw_members = np.unique(draw_members, return_inverse=True)
        names.append(draw_members + offset)
        offset += len(distinct)
    shared = sorted(set.intersection(*(set(member.variants) for member in aligned)))
    shared = [name for name in shared if not name.startswith(VIEW)]
    return Predictions(
        index=first.index,
        labels=first.labels,
        in_distribution=first.in_distribution,
        logits=np.concatenate([np.asarray(member.logits) for member in aligned], axis=1),
        members=np.concatenate(names),
        variants={name: _log_mean([member.variants[name] for member in aligned]) for name in shared},
        annotations=first.annotations,
        groups=first.groups,
        class_names=first.class_names,
        notes=tuple(note for member in aligned for note in member.notes),
        normalized=first.normalized,
    )


def join(*predictions: Predictions | Iterable[Predictions]) -> tuple[Predictions, ...]:
    """The common rows of all predictions, in the order of the first; join(a, b) or join([a, b])."""
    predictions = _as_members(predictions, "join")
    first, *others = predictions
    if all(np.array_equal(other.index, first.index) for other in others):
        return predictions
    common = first.index
    for other in others:
        check_same_keys(first.index, other.index)
        common = common[np.isin(common, other.index)]
    if not len(common):
        raise BadInput("The predictions have no row in common: their index fields share no key.")
    return tuple(one.select(common) for one in predictions)


def _as_members(arguments: Sequence[Predictions | Iterable[Predictions]], action: str) -> tuple[Predictions, ...]:
    """Predictions given as separate arguments or as one list."""
    alone = arguments[0] if len(arguments) == 1 else None
    members = tuple(alone if isinstance(alone, Iterable) and not isinstance(alone, Predictions) else arguments)
    if not members:
        raise BadInput(f"There is nothing to {action}: give at least one Predictions.")
    predictions = []
    for member in members:
        if not isinstance(member, Predictions):
            raise BadInput(f"Only Predictions can be given to {action}, not {type(member).__name__}.")
        predictions.append(member)
    return tuple(predictions)


def _log_mean(logs: Sequence[Array]) -> Array:
    """log of the mean of the probabilities whose logs are given."""
    total = np.asarray(logs[0], np.float64)
    for other in logs[1:]:
        total = np.logaddexp(total, other)
    return np.asarray(total - np.log(len(logs)))


# ---- equal rows


def same_rows(one: Predictions, other: Predictions) -> bool:
    """Whether two sets of predictions have the same rows, in any order and with any index, such as a copied file."""
    if len(one) != len(other):
        return False
    first, second = dict(one.columns()), dict(other.columns())
    shared = [name for name in first if name in second and name != "index" and first[name].dtype.kind in "fiub"]
    if not any(first[name].dtype.kind == "f" for name in shared):
        return False  # equal labels alone do not make equal rows
    if any(first[name].shape != second[name].shape for name in shared):
        return False
    pairs = [_at_common_precision(first[name], second[name]) for name in shared]
    digests = [np.sort(_digests(columns)) for columns in zip(*pairs, strict=True)]
    return np.array_equal(digests[0], digests[1])


def shared_rows(one: Predictions, other: Predictions) -> int:
    """Number of rows of the shorter predictions that the other has too, by logits or else embeddings.

    0 if these do not distinguish rows: more than 1 % are repeated, such as saturated or rounded ones.
    """
    for name in ("logits", "embeddings"):
        first, second = getattr(one, name), getattr(other, name)
        if first is not None and second is not None and first.shape[1:] == second.shape[1:]:
            short, long = sorted((_digests([column]) for column in _at_common_precision(first, second)), key=len)
            repeated = any(len(np.unique(digests)) < 0.99 * len(digests) for digests in (short, long))
            return 0 if repeated else int(np.isin(short, long).sum())
    return 0


def _at_common_precision(one: Array, other: Array) -> tuple[Array, Array]:
    """Two columns in the lower of their precisions, so that a copy in half precision matches."""
    if one.dtype.kind != "f" or other.dtype.kind != "f":
        return one, other
    lower = min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
    with np.errstate(over="ignore"):
        return one.astype(lower, copy=False), other.astype(lower, copy=False)


def _digests(columns: Sequence[Array]) -> Array:
    """A number (n,) for the content of every row: products of its 64-bit words with random ones, modulo 2⁶⁴."""
    digests = np.zeros(len(columns[0]), np.uint64)
    for number, column in enumerate(columns):
        width = int(np.prod(column.shape[1:]))
        weights = np.random.PCG64(number).random_raw(width) | np.uint64(1)
        for block in blocks(len(column), max(1, CHECK_BYTES // (8 * max(1, width)))):
            values = np.ascontiguousarray(column[block], np.float64).reshape(-1, width) + 0.0  # -0.0 is 0.0
            digests[block] += (values.view(np.uint64) * weights).sum(1, dtype=np.uint64)
    return digests
