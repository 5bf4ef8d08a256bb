"""Collections of downstream tasks, and the optimal linear heads of one member for them.

A member is one embedding function; its frozen features (n, d) are a NumPy array or a torch tensor (on any device). All
heads of a collection are solved together. Each has the penalty ½·α·‖w‖² and an intercept without one: α = 1 is
scikit-learn's C = 1. Without a penalty a pair of classes that can be separated has no optimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import numpy as np

from nescio.arrays.parallel import blocks, one_blas_thread
from nescio.arrays.types import Array, ArrayOrTensor
from nescio.errors import BadInput
from nescio.heads import _problems
from nescio.heads._minimise import MEMORY, Problem, cast, minimise, namespace, zeros_like

TOLERANCE = {"float32": 2e-4, "float64": 5e-6}  # of log-odds: at most a tenth of the allowed error of probabilities
MEMORY_BYTES = 1 << 30  # maximum bytes of stored steps


class Heads(Protocol):
    """The heads of one member."""

    probabilities: ClassVar[bool]  # errors are probabilities, not numbers

    @property
    def weights(self) -> ArrayOrTensor:
        """(h, d)"""

    def errors(self, x: ArrayOrTensor, truth: ArrayOrTensor) -> Array:
        """(n, t, …) errors of the t tasks of a row."""


@dataclass(frozen=True)
class OneVsOne:
    """A head for every pair of classes, c·(c − 1)/2 logistic regressions of two classes each; the default collection.

    min_w ½·α·‖w‖² + Σ_i log(1 + exp(−y_i·(wᵀx_i + b))).  Source: Park et al. 2024, §4.1.
    """

    classes: Array  # (c,)
    pairs: Array  # (h, 2) positions in classes; a head's log-odds are those of the first
    weights: ArrayOrTensor  # (h, d)
    intercepts: ArrayOrTensor  # (h,)
    probabilities: ClassVar[bool] = True

    @classmethod
    def fit(cls, x: ArrayOrTensor, truth: ArrayOrTensor, penalty: float, precision: str) -> OneVsOne:
        classes, codes, counts = _classes(truth)
        c = len(classes)
        pairs = np.stack(np.triu_indices(c, 1), 1)
        rows = _problems.rows(x, codes, 2 * len(codes) / c, penalty, precision)
        w = zeros_like(rows.values, len(pairs), rows.values.shape[1])
        w[:, -1] = _to_namespace_of(np.log(counts[pairs[:, 0]] / counts[pairs[:, 1]]) / rows.constant, w)
        heads_per_block = max(1, MEMORY_BYTES // (2 * MEMORY * w[0].nbytes))
        for block in blocks(len(pairs), heads_per_block):
            w[block] = _solve(rows, partial(_problems.Pairs, pairs=pairs[block]), w[block], precision)
        return cls(classes, pairs, *rows.heads(w))

    def errors(self, x: ArrayOrTensor, truth: ArrayOrTensor) -> Array:
        """(n, c − 1, 1) probability that each head of a row's class gives to the other class."""
        codes = _class_codes(truth, self.classes)
        result = np.empty((len(codes), len(self.classes) - 1, 1))
        for c in np.unique(codes):
            head_numbers, rows = np.flatnonzero((self.pairs == c).any(1)), np.flatnonzero(codes == c)
            sign = _to_namespace_of(np.where(self.pairs[head_numbers, 0] == c, 1.0, -1.0), self.weights)
            log_odds = (cast(x[rows], "float64") @ self.weights[head_numbers].T + self.intercepts[head_numbers]) * sign
            result[rows, :, 0] = _numpy(_other_class_probability(log_odds))
        return result


@dataclass(frozen=True)
class Multiclass:
    """One head for all classes: softmax regression, min_W ½·α·‖W‖² − Σ_i log softmax(W·x_i + b)_{y_i}.

    Two classes have W = ±w/2 there, at half the penalty of the one w of a logistic regression; as in scikit-learn they
    get that regression's, so that both collections agree.
    """

    classes: Array  # (c,)
    weights: ArrayOrTensor  # (c, d)
    intercepts: ArrayOrTensor  # (c,)
    probabilities: ClassVar[bool] = True

    @classmethod
    def fit(cls, x: ArrayOrTensor, truth: ArrayOrTensor, penalty: float, precision: str) -> Multiclass:
        classes, codes, _ = _classes(truth)
        penalty *= 2 if len(classes) == 2 else 1
        rows = _problems.rows(x, codes, len(codes), penalty, precision)
        w = zeros_like(rows.values, 1, len(classes) * rows.values.shape[1])
        w = _solve(rows, _problems.Softmax, w, precision)
        return cls(classes, *rows.heads(w.reshape(len(classes), -1)))

    def errors(self, x: ArrayOrTensor, truth: ArrayOrTensor) -> Array:
        """(n, 1, c − 1) probabilities of the wrong classes."""
        codes, c = _class_codes(truth, self.classes), len(self.classes)
        logits = _numpy(cast(x, "float64") @ self.weights.T + self.intercepts)
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        return np.asarray(p[np.arange(c) != codes[:, None]].reshape(-1, 1, c - 1))


@dataclass(frozen=True)
class Regression:
    """A head for every number to be predicted: ridge regression, min_w ½·α·‖w‖² + ½·Σ_i (wᵀx_i + b − y_i)²."""

    weights: ArrayOrTensor  # (t, d)
    intercepts: ArrayOrTensor  # (t,)
    probabilities: ClassVar[bool] = False

    @classmethod
    def fit(cls, x: ArrayOrTensor, truth: ArrayOrTensor, penalty: float, precision: str) -> Regression:
        xp, y = namespace(x), _to_namespace_of(_numbers(truth), x)
        x = cast(x, "float64")
        mean, level = x.mean(0), y.mean(0)
        x, y = x - mean, y - level
        n, d = x.shape
        if n < d:  # the same by the n × n matrix of products
            weights = xp.linalg.solve(x @ x.T + penalty * _to_namespace_of(np.eye(n), x), y).T @ x
        else:
            weights = xp.linalg.solve(x.T @ x + penalty * _to_namespace_of(np.eye(d), x), x.T @ y).T
        return cls(weights, level - weights @ mean)

    def errors(self, x: ArrayOrTensor, truth: ArrayOrTensor) -> Array:
        """(n, t) prediction less truth."""
        y = _numbers(truth)
        if y.shape[1] != len(self.weights):
            raise BadInput(f"truth has {y.shape[1]} numbers per row, the heads were fitted to {len(self.weights)}.")
        return np.asarray(_numpy(cast(x, "float64") @ self.weights.T + self.intercepts) - y)


TASKS: dict[str, type[OneVsOne] | type[Multiclass] | type[Regression]] = {
    "one-vs-one": OneVsOne,
    "multiclass": Multiclass,
    "regression": Regression,
}


def _solve(
    rows: _problems.Rows, problem: Callable[[_problems.Rows], Problem], w: ArrayOrTensor, precision: str
) -> ArrayOrTensor:
    """Solve in float32 first, then, if requested, in float64."""
    with one_blas_thread():
        for dtype in ("float32", "float64")[: 1 + (precision == "float64")]:
            w = minimise(problem(rows.cast(dtype)), cast(w, dtype), TOLERANCE[dtype])
    return w


def _other_class_probability(log_odds: ArrayOrTensor) -> ArrayOrTensor:
    """σ(−z), exact even if tiny, so that confident rows do not tie."""
    xp = namespace(log_odds)
    return xp.exp(-xp.logaddexp(log_odds, log_odds * 0))


def _classes(truth: ArrayOrTensor) -> tuple[Array, Array, Array]:
    classes, codes, counts = np.unique(_labels(truth), return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise BadInput(f"All rows are of class {classes[0]}; heads need rows of at least two classes.")
    return classes, codes, counts


def _class_codes(truth: ArrayOrTensor, classes: Array) -> Array:
    labels = _labels(truth)
    codes = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    unknown = classes[codes] != labels
    if unknown.any():
        row = int(np.flatnonzero(unknown)[0])
        raise BadInput(f"truth is {labels[row]} in row {row}, a class without a head.")
    return codes


def _labels(truth: ArrayOrTensor) -> Array:
    labels = _numpy(truth)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(f"truth has shape {labels.shape} of {labels.dtype}; it must be (n,), one whole number per row.")
    return labels


def _numbers(truth: ArrayOrTensor) -> Array:
    """(n, t)"""
    numbers = _numpy(truth)
    if numbers.ndim not in (1, 2) or numbers.dtype.kind not in "fiu" or not np.isfinite(numbers).all():
        raise BadInput("truth must be finite numbers, (n,) or (n, tasks), for regression heads.")
    return numbers.reshape(len(numbers), -1).astype(np.float64)


def _numpy(x: ArrayOrTensor) -> Array:
    return np.asarray(x if namespace(x) is np else x.detach().cpu().numpy())


def _to_namespace_of(x: Array, other: ArrayOrTensor) -> ArrayOrTensor:
    """A NumPy array in the namespace and on the device of the other."""
    xp = namespace(other)
    return x if xp is np else xp.as_tensor(x, device=other.device)
