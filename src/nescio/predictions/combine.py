"""Combine predictions of several networks: a deep ensemble, or the rows that all of them have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.predictions.outputs import VIEW, Predictions, check_same_keys


def stack(*members: Predictions | Iterable[Predictions]) -> Predictions:
    """A deep ensemble: the draws of all networks with their member numbers, joined on index.

    Call stack(a, b) or stack([a, b]).

    The members must have the same rows and labels. Logits are concatenated along draws; variants are averaged as
    probabilities; embeddings and scores belong to single networks and are left out.
    """
    members = _several(members, "stack")
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
                "Some members hold logits and others log-probabilities: give all as probs, or all as logits."
            )
    aligned = [first]
    for number, member in enumerate(members[1:], start=1):
        check_same_keys(first.index, member.index)
        if not np.array_equal(member.index, first.index):
            if not np.array_equal(np.sort(member.index), np.sort(first.index)):
                raise BadInput(f"Member {number} holds other rows than member 0: their index sets must be equal.")
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
    predictions = _several(predictions, "join")
    first, *others = predictions
    if all(np.array_equal(other.index, first.index) for other in others):
        return predictions
    common = first.index
    for other in others:
        check_same_keys(first.index, other.index)
        common = common[np.isin(common, other.index)]
    if not len(common):
        raise BadInput("The files have no row in common: their index fields never meet.")
    return tuple(one.select(common) for one in predictions)


def _several(arguments: Sequence[Any], what: str) -> tuple[Predictions, ...]:
    """Predictions given as separate arguments or as one list."""
    if len(arguments) == 1 and isinstance(arguments[0], Iterable) and not isinstance(arguments[0], Predictions):
        arguments = tuple(arguments[0])
    if not arguments:
        raise BadInput(f"There is nothing to {what}: give at least one Predictions.")
    for argument in arguments:
        if not isinstance(argument, Predictions):
            raise BadInput(f"Only Predictions can be given to {what}, not {type(argument).__name__}.")
    return tuple(arguments)


def _log_mean(logs: Sequence[Array]) -> Array:
    """log of the mean of the probabilities whose logs are given."""
    total = np.asarray(logs[0], np.float64)
    for other in logs[1:]:
        total = np.logaddexp(total, other)
    return np.asarray(total - np.log(len(logs)))
