"""What heads on frozen features say downstream, row by row: the truth that scores without labels should predict.

Source: Park, Wang, Ardeshir and Azizan 2024, Definition 1 and appendix B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nescio.analysis.representations.candidates import Candidate, EvaluationRows
from nescio.arrays.nearest import nearest_rows, prepare_points
from nescio.arrays.types import Array
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
    "probe_accuracy": Quantity("linear probe", "higher", "share of test images that one linear head gets right"),
    "knn_accuracy": Quantity("k-NN", "higher", "share of test images whose nearest training images vote right"),
}


@dataclass(frozen=True, eq=False)
class DownstreamLosses:
    """How bad the downstream answers about every test row are; higher = less reliable, in the order of index."""

    index: Array  # (n,)
    together: Mapping[str, Array]  # (n,) of the members' average: brier, entropy (nats), variance
    alone: Mapping[str, Array]  # (m, n) of every member by itself: brier, entropy

    def arrays(self) -> dict[str, Array]:
        """Everything under flat names, for a file."""
        together = {f"together/{name}": loss for name, loss in self.together.items()}
        return {"index": self.index} | together | {f"alone/{name}": loss for name, loss in self.alone.items()}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> DownstreamLosses:
        def below(prefix: str) -> dict[str, Array]:
            return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}

        return cls(arrays["index"], below("together/"), below("alone/"))

    def select(self, keys: Array) -> DownstreamLosses:
        """These rows, in this order."""
        order = np.argsort(self.index, kind="stable")
        rows = order[np.searchsorted(self.index, keys, sorter=order).clip(max=len(order) - 1)]
        if not np.array_equal(self.index[rows], keys):
            raise BadInput("The downstream heads and the scores are of different rows: index differs.")
        together = {name: loss[rows] for name, loss in self.together.items()}
        return DownstreamLosses(keys, together, {name: loss[:, rows] for name, loss in self.alone.items()})


def concat_losses(parts: Sequence[DownstreamLosses], keys: Array) -> DownstreamLosses:
    """The losses of several sets of rows as one, in the order of the keys."""
    first = parts[0]
    together = {name: np.concatenate([part.together[name] for part in parts]) for name in first.together}
    alone = {name: np.concatenate([part.alone[name] for part in parts], axis=1) for name in first.alone}
    return DownstreamLosses(np.concatenate([part.index for part in parts]), together, alone).select(keys)


def downstream_losses(
    train: Sequence[Predictions],
    tests: Sequence[Predictions],
    tasks: str = "one-vs-one",
    place: Callable[[Array], Any] = np.asarray,
    numbers: tuple[Any, Any] | None = None,
) -> DownstreamLosses:
    """Optimal heads on the features of every member, and what they say of the test rows.

    For each task the members' probabilities are averaged before Brier and entropy are taken; with one-vs-one tasks a
    row is averaged over the C − 1 pairs of its own class. `place` puts features where heads are solved, such as a GPU.
    tasks = "regression" predicts `numbers`, (n,) or (n, t) for the rows of train[0] and of tests[0]; its loss is the
    squared error.
    """
    known = [place(rows) for rows in aligned_embeddings(train, "training")]
    unknown = [place(rows) for rows in aligned_embeddings(tests, "test")]
    truth, answers = (train[0].labels, tests[0].labels) if tasks != "regression" else numbers or (None, None)
    if (truth is None or answers is None) and tasks == "regression":
        raise Undefined("Regression needs the numbers that the heads are to predict, of training and of test rows.")
    if truth is None or answers is None:
        raise Undefined("Downstream performance needs the true class of every row, and there are no labels.")
    heads = fit_heads(known, truth, tasks=tasks)
    together = reliability_targets(heads, unknown, answers)
    alone = [reliability_targets([head], [rows], answers) for head, rows in zip(heads, unknown, strict=True)]
    return DownstreamLosses(
        tests[0].index,
        {name: -performance for name, performance in together.items()},
        {name: -np.stack([member[name] for member in alone]) for name in alone[0]},
    )


def probe_accuracy(train: Predictions, test: Predictions, place: Callable[[Array], Any] = np.asarray) -> float:
    """Share of test rows that a linear probe, softmax regression on the frozen features, gets right.

    Features are standardised by the training rows: the penalty of the regression would favour spaces of large scale.
    """
    (features, labels), (rows, answers) = _labelled(train), _labelled(test)
    mean, deviation = features.mean(0), features.std(0)
    deviation[deviation == 0] = 1
    (head,) = fit_heads([place((features - mean) / deviation)], labels, tasks="multiclass")
    wrong = head.misses(place((rows - mean) / deviation), answers)[:, 0]
    return float((1 - wrong.sum(1) > wrong.max(1)).mean())


def knn_accuracy(train: Predictions, test: Predictions, k: int) -> float:
    """Share of test rows whose k nearest training rows, by cosine, vote for their class; ties go to the lower class."""
    (features, labels), (rows, answers) = _labelled(train), _labelled(test)
    known = prepare_points(features, "cosine", "the training embeddings")
    near = nearest_rows(known, prepare_points(rows, "cosine", "the test embeddings", known), (min(k, len(known)),))
    classes = np.unique(labels)
    votes = [np.count_nonzero(labels[near] == label, axis=1) for label in classes]
    return float((classes[np.argmax(votes, axis=0)] == answers).mean())


def _labelled(dump: Predictions) -> tuple[Array, Array]:
    if dump.embeddings is None or dump.labels is None:
        raise Undefined("The accuracy of a representation needs embeddings and the true class of every row.")
    return np.asarray(dump.embeddings), np.asarray(dump.labels)


# ---- candidates


def candidate_losses(candidate: Candidate, rows: EvaluationRows, tasks: str) -> DownstreamLosses:
    """Losses of optimal heads on the candidate's features, in the order of the keys.

    The heads learn from the labelled rows of `train`, else from the references that are a part of the rows: the heads
    that judge one half learn from the other.
    """

    def losses(train: Sequence[Predictions], keys: Array) -> DownstreamLosses:
        return downstream_losses(train, [dump.select(keys) for dump in candidate.tests], tasks)

    if candidate.train is not None:
        return losses(candidate.train, rows.keys)
    if candidate.refs is not None:
        raise Undefined(f"{candidate.name} has no labelled rows from which downstream heads could learn.")
    return concat_losses(
        [losses([dump.select(refs) for dump in candidate.tests], keys) for refs, keys in rows.parts], rows.keys
    )


def has_labels(candidates: Sequence[Candidate]) -> bool:
    """Whether heads can learn and be judged for all of them."""
    return all(
        candidate.tests[0].labels is not None
        and (candidate.refs is None if candidate.train is None else candidate.train[0].labels is not None)
        for candidate in candidates
    )
