"""Selection of evaluated rows: in-distribution rows of one model, or rows that several models share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nescio import measures
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.predictions import Predictions, join

MC_DROPOUT = "mc-dropout"  # a variant of predictions, and the uncertainty measure that is its entropy
NO_DROPOUT = "There are no predictions under dropout: the model has no dropout, or predicting omitted it."


def labelled_in_distribution(predictions: Predictions) -> Predictions:
    """The in-distribution rows of predictions that can be compared with labels; BadInput if there are none."""
    if not predictions.has_outcomes:
        missing_field = "labels" if predictions.labels is None else "logits and no probs"
        raise BadInput(f"There are no {missing_field}: predictions cannot be compared with labels.")
    if predictions.in_distribution is None or predictions.in_distribution.all():
        return predictions
    if not predictions.in_distribution.any():
        raise BadInput("Every row is out-of-distribution: no prediction can be right.")
    return predictions.take(predictions.in_distribution)


def in_distribution_rows(predictions: Predictions) -> Predictions:
    """The in-distribution rows; all rows if none is marked."""
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
    """The predictions that a measure ranks, and the registered name of the measure."""
    if measure == MC_DROPOUT:
        return dropout_mean(predictions), "entropy"
    return predictions, measures.canonical(measure, predictions)


def uncertainty_of(predictions: Predictions, measure: str) -> Array:
    """u (n,) of a measure that needs one model's predictions only, or of mc-dropout."""
    predictions, name = resolve_measure(predictions, measure)
    return measures.uncertainty(name, predictions)


Models = Mapping[str, Predictions] | Sequence[Predictions]


def named_models(models: Models) -> dict[str, Predictions]:
    """Models by name; those of a sequence are named "0", "1" and so on."""
    if not isinstance(models, Mapping):
        if isinstance(models, Predictions | str) or not isinstance(models, Iterable):
            raise BadInput(
                f"models is one {type(models).__name__}; give several Predictions, as a list or as a dict by name."
            )
        models = {str(position): predictions for position, predictions in enumerate(models)}
    if not models:
        raise BadInput("There is nothing to compare: give at least one model.")
    for name, model in models.items():
        if not isinstance(model, Predictions):
            raise BadInput(
                f"Model {name!r} is of type {type(model).__name__}; give Predictions (Predictions.load reads a file)."
            )
    return dict(models)


def shared_rows(models: Mapping[str, Predictions]) -> dict[str, Array]:
    """Positions, in the arrays of each model, of the in-distribution rows that all models have, in one order."""
    keyed = []
    for name, predictions in models.items():
        if not predictions.has_outcomes:
            missing_field = "labels" if predictions.labels is None else "logits and no probs"
            raise BadInput(f"{_title(name)} has no {missing_field}: there are no predictions to compare with labels.")
        facts = {"row": np.arange(len(predictions)), **_true_classes(predictions)}
        keyed.append(Predictions(index=predictions.index, in_distribution=predictions.in_distribution, groups=facts))
    shared_keyed = join(*keyed)
    first_name, first = next(iter(models)), shared_keyed[0]
    in_distribution = np.ones(len(first), bool)
    for name, rows in zip(models, shared_keyed, strict=True):
        if rows.in_distribution is not None:
            in_distribution &= rows.in_distribution
        labels, first_labels = rows.groups.get("label"), first.groups.get("label")
        if labels is None or first_labels is None or labels.dtype.kind != first_labels.dtype.kind:
            continue
        differ = np.flatnonzero(labels != first_labels)
        if len(differ):
            raise BadInput(
                f"{_title(name)} and {_title(first_name).lower()} have different labels in {len(differ)} shared rows, "
                f"first at index {first.index[differ[0]]}; the same index must mean the same image."
            )
    if not in_distribution.any():
        raise BadInput("No shared row is in-distribution, so no prediction can be right or wrong.")
    return {name: rows.groups["row"][in_distribution] for name, rows in zip(models, shared_keyed, strict=True)}


def shared_ood_rows(name: str, ood_set: Models, models: Mapping[str, Predictions]) -> dict[str, Predictions]:
    """Predictions of every model on one OOD set, on the rows that all of them have."""
    by_model = dict(ood_set) if isinstance(ood_set, Mapping) else dict(zip(models, ood_set, strict=False))
    if by_model.keys() != models.keys() or len(ood_set) != len(models):
        raise BadInput(
            f"The set {name!r} has {len(ood_set)} predictions for {len(models)} models: give one of each model."
        )
    return dict(zip(models, join(*(by_model[model] for model in models)), strict=True))


def _true_classes(predictions: Predictions) -> dict[str, Array]:
    """True classes, by name if names are known: two files may number the same names differently."""
    if predictions.labels is None:
        return {}
    names = predictions.class_names
    if names is None or predictions.labels.max() >= len(names) or predictions.labels.min() < 0:
        return {"label": predictions.labels}
    return {"label": np.array(names, str)[predictions.labels]}


def _title(name: str) -> str:
    return f"Model {name!r}" if name else "The model"
