"""Losses of downstream heads on frozen features by row, which reliability scores should predict.

Source: Park, Wang, Ardeshir and Azizan 2024, Definition 1 and appendix B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nescio.analysis.representations.candidates import Candidate, EvaluationRows
from nescio.arrays.nearest import nearest_rows, prepare_points
from nescio.arrays.types import Array, ArrayOrTensor
from nescio.errors import BadInput, Undefined
from nescio.heads import fit_heads, reliability_targets
from nescio.measures.siblings import Quantity, aligned_embeddings
from nescio.predictions import Predictions

LOSSES = {
    "brier": Quantity("Brier", "lower", "of downstream heads: squared error of the probabilities"),
    "entropy": Quantity("entropy", "lower", "of downstream heads, in nats"),
    "variance": Quantity("variance", "lower", "of downstream heads between siblings"),
}
ACCURACIES = {
    "probe_accuracy": Quantity(
        "linear probe", "higher", "share of test images that a linear head classifies correctly"
    ),
    "knn_accuracy": Quantity(
        "k-NN", "higher", "share of test images that a vote of the nearest training images classifies correctly"
    ),
}


@dataclass(frozen=True, eq=False)
class DownstreamLosses:
    """Losses of downstream heads on every test row, in the order of index; higher = less reliable.

    ensemble  (n,) of the average of the members: brier, entropy (nats), variance
    members   (m, n) of every member: brier, entropy
    """

    index: Array  # (n,) keys of the test rows
    ensemble: Mapping[str, Array]
    members: Mapping[str, Array]

    def arrays(self) -> dict[str, Array]:
        """All arrays of a file, by name."""
        ensemble = {f"ensemble/{name}": loss for name, loss in self.ensemble.items()}
        return {"index": self.index} | ensemble | {f"members/{name}": loss for name, loss in self.members.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> DownstreamLosses:
        def below(prefix: str) -> dict[str, Array]:
            return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}

        return cls(arrays["index"], below("ensemble/"), below("members/"))

    def select(self, keys: Array) -> DownstreamLosses:
        """These rows, in this order."""
        order = np.argsort(self.index, kind="stable")
        rows = order[np.searchsorted(self.index, keys, sorter=order).clip(max=len(order) - 1)]
        if not np.array_equal(self.index[rows], keys):
            raise BadInput("The downstream heads and the scores are of different rows: index differs.")
        ensemble = {name: loss[rows] for name, loss in self.ensemble.items()}
        return DownstreamLosses(keys, ensemble, {name: loss[:, rows] for name, loss in self.members.items()})


def concat_losses(parts: Sequence[DownstreamLosses], keys: Array) -> DownstreamLosses:
    """Concatenate the losses of several sets of rows, and order them by the keys."""
    first = parts[0]
    ensemble = {name: np.concatenate([losses.ensemble[name] for losses in parts]) for name in first.ensemble}
    members = {name: np.concatenate([losses.members[name] for losses in parts], axis=1) for name in first.members}
    return DownstreamLosses(np.concatenate([losses.index for losses in parts]), ensemble, members).select(keys)


def downstream_losses(
    train: Sequence[Predictions],
    tests: Sequence[Predictions],
    tasks: str = "one-vs-one",
    put: Callable[[Array], ArrayOrTensor] = np.asarray,
    numbers: tuple[Array, Array] | None = None,
) -> DownstreamLosses:
    """Fit optimal heads on the features of every member, and compute their losses on the test rows.

    For each task the members' probabilities are averaged before Brier and entropy are computed. With one-vs-one tasks a
    row is averaged over the C − 1 pairs with its class.

    put      function that moves features to the device where heads are solved, such as a GPU
    tasks    "regression" predicts `numbers` with the squared error as loss
    numbers  (n,) or (n, t) for the rows of train[0] and of tests[0]
    """
    train_features = [put(rows) for rows in aligned_embeddings(train, "training")]
    test_features = [put(rows) for rows in aligned_embeddings(tests, "test")]
    train_labels, test_labels = (train[0].labels, tests[0].labels) if tasks != "regression" else numbers or (None, None)
    if (train_labels is None or test_labels is None) and tasks == "regression":
        raise Undefined("Regression needs numbers for training and test rows.")
    if train_labels is None or test_labels is None:
        raise Undefined("Downstream losses need labels.")
    heads = fit_heads(train_features, train_labels, tasks=tasks)
    ensemble = reliability_targets(heads, test_features, test_labels)
    members = [
        reliability_targets([head], [rows], test_labels) for head, rows in zip(heads, test_features, strict=True)
    ]
    return DownstreamLosses(
        tests[0].index,
        {name: -performance for name, performance in ensemble.items()},
        {name: -np.stack([member[name] for member in members]) for name in members[0]},
    )


def probe_accuracy(train: Predictions, test: Predictions, put: Callable[[Array], ArrayOrTensor] = np.asarray) -> float:
    """Accuracy of a linear probe, softmax regression on the frozen features.

    Features are standardised by the training rows, because the penalty would otherwise favour features of large scale.
    """
    (features, labels), (rows, test_labels) = _labelled(train), _labelled(test)
    mean, deviation = features.mean(0), features.std(0)
    deviation[deviation == 0] = 1
    (head,) = fit_heads([put((features - mean) / deviation)], labels, tasks="multiclass")
    wrong = head.errors(put((rows - mean) / deviation), test_labels)[:, 0]
    return float((1 - wrong.sum(1) > wrong.max(1)).mean())


def knn_accuracy(train: Predictions, test: Predictions, k: int) -> float:
    """Accuracy of the vote of the k nearest training rows by cosine; ties go to the lower class."""
    (features, labels), (rows, test_labels) = _labelled(train), _labelled(test)
    reference = prepare_points(features, "cosine", "the training embeddings")
    neighbours = nearest_rows(
        reference, prepare_points(rows, "cosine", "the test embeddings", reference), (min(k, len(reference)),)
    )
    classes = np.unique(labels)
    votes = [np.count_nonzero(labels[neighbours] == label, axis=1) for label in classes]
    return float((classes[np.argmax(votes, axis=0)] == test_labels).mean())


def _labelled(predictions: Predictions) -> tuple[Array, Array]:
    if predictions.embeddings is None or predictions.labels is None:
        raise Undefined("The accuracy of a representation needs embeddings and labels.")
    return np.asarray(predictions.embeddings), np.asarray(predictions.labels)


# ---- candidates


def candidate_losses(candidate: Candidate, rows: EvaluationRows, tasks: str) -> DownstreamLosses:
    """Losses of optimal heads on the candidate's features, in the order of the keys.

    The heads are trained on the rows of `train`. Without these they are trained on the references of each split, so
    heads that are evaluated on one half are trained on the other.
    """

    def losses(train: Sequence[Predictions], keys: Array) -> DownstreamLosses:
        return downstream_losses(train, [predictions.select(keys) for predictions in candidate.tests], tasks)

    if candidate.train is not None:
        return losses(candidate.train, rows.keys)
    if candidate.refs is not None:
        raise Undefined(f"{candidate.name} has no labelled rows to train downstream heads.")
    return concat_losses(
        [losses([predictions.select(refs) for predictions in candidate.tests], keys) for refs, keys in rows.splits],
        rows.keys,
    )


def has_labels(candidates: Sequence[Candidate]) -> bool:
    """Whether heads can be trained and evaluated for all candidates."""
    return all(
        candidate.tests[0].labels is not None
        and (candidate.refs is None if candidate.train is None else candidate.train[0].labels is not None)
        for candidate in candidates
    )
