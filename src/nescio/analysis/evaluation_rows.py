"""Which answers of a dump are judged, and by which uncertainty: the plain softmax, or the mean under dropout."""

from __future__ import annotations

from nescio import measures
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.predictions import Predictions

MC_DROPOUT = "mc-dropout"  # a variant of dumps, and the uncertainty that is the entropy of it
NO_DROPOUT = "The dump holds no answers under dropout: the model has none, or it was omitted when predicting."


def labelled_in_distribution(dump: Predictions) -> Predictions:
    """The rows of classes that were in training; BadInput where answers cannot be judged."""
    if not dump.has_outcomes:
        lacking = "labels" if dump.labels is None else "logits and no probs"
        raise BadInput(f"The dump has no {lacking}: right and wrong answers cannot be told apart.")
    if dump.in_distribution is None or dump.in_distribution.all():
        return dump
    if not dump.in_distribution.any():
        raise BadInput("Every row is of a class that was not in training: no answer can be right.")
    return dump.take(dump.in_distribution)


def in_distribution_rows(dump: Predictions) -> Predictions:
    """The rows of classes that the model can answer; all where the dump does not mark them."""
    known = dump.in_distribution if dump.labels is None or dump.logits is None else measures.summary(dump).labelled
    if known is None or known.all():
        return dump
    if not known.any():
        raise BadInput(
            "Every row of the in-distribution data is of a class that was not in training; is it the other file?"
        )
    return dump.take(known)


def dropout_mean(dump: Predictions) -> Predictions:
    """The dump whose answers are the mean of the softmaxes under dropout."""
    if MC_DROPOUT not in dump.variants:
        raise Undefined(NO_DROPOUT)
    logs = dump.variants[MC_DROPOUT][:, None]
    return Predictions(
        index=dump.index, labels=dump.labels, in_distribution=dump.in_distribution, logits=logs, normalized=True
    )


def resolve_measure(dump: Predictions, measure: str) -> tuple[Predictions, str]:
    """The dump whose answers an uncertainty ranks, and the measure of it that is that uncertainty."""
    return (dropout_mean(dump), "entropy") if measure == MC_DROPOUT else (dump, measures.canonical(measure, dump))


def uncertainty_of(dump: Predictions, measure: str) -> Array:
    """u (n,) by the name of a measure that needs one dump only; mc-dropout is the entropy of the mean under dropout."""
    dump, name = resolve_measure(dump, measure)
    return measures.uncertainty(name, dump)
