"""Rows of predictions that are evaluated, and the uncertainty by name: a measure, or the entropy under MC dropout."""

from __future__ import annotations

from nescio import measures
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.predictions import Predictions

MC_DROPOUT = "mc-dropout"  # a variant of predictions, and the uncertainty that is its entropy
NO_DROPOUT = "There are no predictions under dropout: the model has no dropout, or predicting omitted it."


def labelled_in_distribution(predictions: Predictions) -> Predictions:
    """The in-distribution rows of predictions with outcomes; BadInput if there are none."""
    if not predictions.has_outcomes:
        missing = "labels" if predictions.labels is None else "logits and no probs"
        raise BadInput(f"There are no {missing}: predictions cannot be compared with labels.")
    if predictions.in_distribution is None or predictions.in_distribution.all():
        return predictions
    if not predictions.in_distribution.any():
        raise BadInput("Every row is out-of-distribution: no prediction can be right.")
    return predictions.take(predictions.in_distribution)


def in_distribution_rows(predictions: Predictions) -> Predictions:
    """The rows of classes that the model can predict; all rows if these are not marked."""
    if predictions.labels is None or predictions.logits is None:
        in_distribution = predictions.in_distribution
    else:
        in_distribution = measures.summary(predictions).labelled
    if in_distribution is None or in_distribution.all():
        return predictions
    if not in_distribution.any():
        raise BadInput("Every row of the in-distribution data is of another class: check that it is not the OOD file.")
    return predictions.take(in_distribution)


def dropout_mean(predictions: Predictions) -> Predictions:
    """The predictions of the mean softmax under dropout."""
    if MC_DROPOUT not in predictions.variants:
        raise Undefined(NO_DROPOUT)
    return Predictions(
        index=predictions.index,
        labels=predictions.labels,
        in_distribution=predictions.in_distribution,
        logits=predictions.variants[MC_DROPOUT][:, None],
        normalized=True,
    )


def resolve_measure(predictions: Predictions, measure: str) -> tuple[Predictions, str]:
    """The predictions that an uncertainty ranks, and the name of its measure on them."""
    if measure == MC_DROPOUT:
        return dropout_mean(predictions), "entropy"
    return predictions, measures.canonical(measure, predictions)


def uncertainty_of(predictions: Predictions, measure: str) -> Array:
    """u (n,) by the name of a measure that needs one model's predictions only, or by mc-dropout."""
    predictions, name = resolve_measure(predictions, measure)
    return measures.uncertainty(name, predictions)
