"""Calibration: fit on validation rows, then map Predictions to Predictions.

    scale = temperature(val)
    calibrated = scale(test)

The calibrated logits of large predictions are computed when they are read, so that many gigabytes need no copy.
Variants (other log-probabilities of the same rows) are not changed. Log-probabilities are scaled and renormalised: they
have no scale, so `max_logit`, `energy` and `dempster_shafer` stay undefined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from nescio.arrays.checks import release_pages
from nescio.arrays.parallel import blocks, run_on_threads, thread_count
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.predictions import Predictions
from nescio.progress import track

BLOCK = 1 << 16  # scores per block of one thread
HELD_BYTES = 1 << 28  # maximum size of calibrated logits in memory; larger ones are computed when they are read
REACH = 1e3  # factor around the scores' spread for temperatures, and around the best temperature for class scales
LOG_TINY = float(np.log(np.finfo(np.float64).tiny))  # used as the logarithm of probability 0
MAX_BIAS = 30.0  # bound on a class's bias, in nats
MAX_STEPS, TOLERANCE = 100, 1e-12  # of the search for a temperature; tolerance of slope and step
STARTS = 25  # starting temperatures of the search, if rows have several draws

Factor: TypeAlias = np.float64 | Array  # one number for all classes, or one per class
Edge = Literal["right", "covered", "wrong", "chance", "beyond"]  # reason for a temperature at the edge of its range
EDGES: dict[Edge, str] = {
    "right": "Every validation prediction is right, so the lowest temperature is the likeliest",
    "covered": "Every validation row has a draw that is right, so the lowest temperature is the likeliest",
    "wrong": "Every validation prediction is wrong, so the highest temperature is the likeliest",
    "chance": "The validation predictions are no better than chance, so the highest temperature is the likeliest",
    "beyond": "The likeliest temperature is outside of the searched range",
}


@dataclass(frozen=True)
class Temperature:
    """Divides the logits of every draw by one number.

    edge  reason why the likelihood still rises at the edge of the searched range; None if it does not
    """

    temperature: float
    edge: Edge | None = None

    @property
    def at_edge(self) -> bool:
        return self.edge is not None

    @property
    def note(self) -> str | None:
        """Warning about a temperature at the edge of its range."""
        return None if self.edge is None else f"{EDGES[self.edge]}: calibrated numbers are unreliable."

    def __call__(self, predictions: Predictions) -> Predictions:
        return _scaled(predictions, np.float64(1 / self.temperature), np.float64(0.0))


@dataclass(frozen=True, eq=False)
class Vector:
    """Multiplies each class's logits by its own number and adds a bias."""

    scale: Array  # (c,)
    bias: Array  # (c,)

    def __call__(self, predictions: Predictions) -> Predictions:
        if predictions.logits is not None and predictions.classes != len(self.scale):
            raise BadInput(f"The scaling was fitted on {len(self.scale)} classes, logits has {predictions.classes}.")
        return _scaled(predictions, self.scale, self.bias)


def temperature(val: Predictions) -> Temperature:
    """The temperature that gives the validation labels the highest likelihood.

    argmin_T -(1/n) Σ log mean_draws softmax(z/T)[label], where its slope by log T is 0. Guo et al. (2017).
    The box is [1/1000, 1000] × the mean standard deviation of a row's logits. Several draws may give several minima:
    the search starts from each minimum of a grid, and the smallest wins. At an edge of the box, `edge` says why.
    """
    rows = _Rows(val)

    def loss(x: float) -> tuple[float, float]:
        beta = np.exp(-x)
        value, by_scale, _ = rows.loss(beta, np.float64(0.0))
        return value, float(-beta * by_scale.sum())

    def value(x: float) -> float:
        return loss(x)[0]

    log_center, log_range = np.log(rows.spread()), np.log(REACH)
    edges = (log_center - log_range, log_center + log_range)
    starts = (
        [log_center] if val.draws == 1 else _minima(value, np.linspace(*edges, STARTS))
    )  # one draw's loss is convex in 1/T
    ends = [_find_minimum(lambda x: loss(x)[1], float(start), edges) for start in starts]
    # Towards an edge the likelihood may be so flat that the search stops before it.
    best = min((*edges, *ends), key=value)
    return Temperature(float(np.exp(best)), rows.edge(best == edges[0]) if best in edges else None)


def temperature_or_reason(val: Predictions) -> tuple[float | None, str | None]:
    """The best temperature on validation rows; None and the reason if there is none."""
    try:
        fitted = temperature(val)
    except Undefined as reason:
        return None, str(reason)
    return (None, fitted.note) if fitted.at_edge else (fitted.temperature, None)


def _minima(value: Callable[[float], float], grid: Array) -> list[float]:
    """The points of a grid that are not higher than their neighbours."""
    values = np.array([np.inf, *map(value, grid), np.inf])
    return list(grid[(values[1:-1] <= values[:-2]) & (values[1:-1] <= values[2:])])


def vector(val: Predictions) -> Vector:
    """The scale and bias of each class that give the validation labels the highest likelihood.

    argmin_{w, b} -(1/n) Σ log mean_draws softmax(w ⊙ z + b)[label], by box-constrained L-BFGS from the best
    temperature; w ≥ 0. Guo et al. (2017), vector scaling.
    """
    rows = _Rows(val)
    c = val.classes
    absent_labels = np.setdiff1d(np.arange(c), rows.labels)
    if len(absent_labels):
        raise Undefined(
            f"The validation rows contain no label {absent_labels[0]}, so its scale and bias cannot be fitted."
        )
    fitted = temperature(val)
    if fitted.edge is not None:
        raise Undefined(f"{EDGES[fitted.edge]}: the classes have no best scale.")
    start = 1 / fitted.temperature

    def loss(x: Array) -> tuple[float, Array]:
        value, by_scale, by_bias = rows.loss(x[:c] * start, x[c:])
        return value, np.concatenate([by_scale * start, by_bias])

    bounds = [(0.0, REACH)] * c + [(-MAX_BIAS, MAX_BIAS)] * c
    best = _minimize(loss, np.concatenate([np.ones(c), np.zeros(c)]), bounds)
    return Vector(best[:c] * start, best[c:])


def _find_minimum(slope: Callable[[float], float], x: float, edges: tuple[float, float]) -> float:
    """Find the minimum downhill of x, or an edge, by doubling steps and the Illinois method (false position).

    Importing scipy.optimize takes longer than the search on a small file.
    """
    slope_x, step = slope(x), 0.25
    limit, direction = (edges[1], 1) if slope_x < 0 else (edges[0], -1)
    while True:  # until the slope turns between `x` and `end`
        end = min(max(x + direction * step, edges[0]), edges[1])
        slope_end = slope(end)
        if slope_end * direction >= 0:
            break
        if end == limit:
            return limit
        x, slope_x, step = end, slope_end, 2 * step
    for _ in range(MAX_STEPS):
        if abs(slope_end) <= TOLERANCE or abs(end - x) <= TOLERANCE:
            break
        middle = end - slope_end * (end - x) / (slope_end - slope_x)
        slope_middle = slope(middle)
        if slope_middle * slope_end < 0:
            x, slope_x = end, slope_end
        else:
            slope_x /= 2
        end, slope_end = middle, slope_middle
    return end


def _minimize(loss: Callable[[Array], tuple[float, Array]], start: Array, bounds: list[tuple[float, float]]) -> Array:
    from scipy.optimize import minimize

    options = {"maxiter": 500, "ftol": 1e-14, "gtol": 1e-9}
    solve: Callable[..., Any] = minimize
    return np.asarray(solve(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x)


class _Rows:
    """Likelihood of the labels of validation rows, with its exact gradient, in blocks of rows."""

    def __init__(self, val: Predictions) -> None:
        if val.logits is None:
            raise BadInput("The validation rows have no logits and no probs: there is nothing to calibrate.")
        if val.labels is None:
            raise BadInput("The validation rows have no labels: there is nothing to fit a calibration to.")
        labelled = np.ones(len(val), bool) if val.in_distribution is None else val.in_distribution
        if labelled.sum() < 2:
            raise BadInput(f"The validation rows have {labelled.sum()} labels; calibration needs at least 2.")
        self.logits, self.normalized, self.labelled = val.logits, val.normalized, labelled
        self.labels = val.labels[labelled]
        self.blocks = [p for p in blocks(len(val), max(1, BLOCK // (val.draws * val.classes))) if labelled[p].any()]
        self.starts = np.concatenate([[0], np.cumsum([labelled[p].sum() for p in self.blocks])])

    def block(self, number: int) -> tuple[Array, Array]:
        """(scores (b, s, c) in float64, labels (b,)) of one block."""
        rows = self.blocks[number]
        stored = self.logits[rows]
        z = stored.astype(np.float64)[self.labelled[rows]]
        release_pages(stored)
        return z, self.labels[self.starts[number] : self.starts[number + 1]]

    def spread(self) -> float:
        """Mean standard deviation of a row's scores, the unit of the searched temperatures."""
        with np.errstate(over="ignore"):
            total = sum(float(_finite_std(self.block(number)[0]).mean(1).sum()) for number in range(len(self.blocks)))
        if np.isinf(total):
            raise Undefined("The validation logits are so large that their squares overflow: no temperature is fitted.")
        if total == 0:
            raise Undefined("All classes have the same logit in every validation row: no temperature changes anything.")
        return total / len(self.labels)

    def edge(self, lowest: bool) -> Edge:
        """Reason why the likelihood rises up to the lowest or highest temperature of the range."""
        right = covered = 0
        for number in range(len(self.blocks)):
            z, y = self.block(number)
            top = z.max(-1, keepdims=True)
            p = np.exp(z - top)
            right += int(((p / p.sum(-1, keepdims=True)).mean(1).argmax(-1) == y).sum())
            covered += int((z[np.arange(len(y)), :, y] == top[..., 0]).any(1).sum())
        if not lowest:
            return "wrong" if right == 0 else "chance"
        n = len(self.labels)
        return "right" if right == n else "covered" if covered == n else "beyond"

    def loss(self, scale: Factor, bias: Factor) -> tuple[float, Array, Array]:
        """(mean NLL, its gradient by the scale of each class, by the bias of each class).

        L = -log mean_t p_t[y], so dL/dz_tj = w_t (p_tj - [j = y]), with w_t the share of draw t in Σ_t p_t[y].
        """

        def work(first: int, step: int) -> tuple[float, Array, Array]:
            value, by_scale, by_bias = 0.0, np.zeros(self.logits.shape[2]), np.zeros(self.logits.shape[2])
            block_numbers = range(first, len(self.blocks), step)
            for number in track(block_numbers, "calibration", len(block_numbers)) if first == 0 else block_numbers:
                z, y = self.block(number)
                r = np.arange(len(y))
                z, p = _scale_logits(z, scale)
                p += bias
                p -= p.max(-1, keepdims=True)
                logits_of_label = p[r, :, y]
                np.exp(p, out=p)
                totals = p.sum(-1)
                logits_of_label -= np.log(totals)
                # A label of probability 0 has the same loss under every scale, and no gradient.
                log_mean = np.maximum(np.logaddexp.reduce(logits_of_label, axis=1), LOG_TINY)
                value -= float((log_mean - np.log(logits_of_label.shape[1])).sum())
                weight = np.exp(logits_of_label - log_mean[:, None])
                p *= (weight / totals)[:, :, None]
                p[r, :, y] -= weight
                by_bias += p.sum((0, 1))
                by_scale += np.einsum("bsc,bsc->c", p, z)
            return value, by_scale, by_bias

        sums = run_on_threads(work, min(thread_count(), len(self.blocks)))
        n = len(self.labels)
        value, by_scale, by_bias = (np.sum(terms, axis=0) / n for terms in zip(*sums, strict=True))
        return float(value), by_scale, by_bias


# ---- logits that are scaled when they are read


class Scaled(np.lib.mixins.NDArrayOperatorsMixin):
    """logits · scale + bias, (n, s, c), computed for the rows that are read; other operations compute all rows."""

    ndim = 3

    def __init__(self, logits: Array, scale: Factor, bias: Factor, normalized: bool) -> None:
        self.logits, self.scale, self.bias, self.normalized = logits, scale, bias, normalized
        self.shape = logits.shape
        self.dtype: np.dtype[Any] = np.dtype(np.float64 if logits.dtype.itemsize > 4 else np.float32)
        self.size = int(np.prod(self.shape))
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> Array:
        rows, *other_keys = key if isinstance(key, tuple) else (key,)
        if rows is None or rows is Ellipsis:
            return np.asarray(np.asarray(self)[key])
        if np.ndim(rows) == 0 and not isinstance(rows, slice):
            return np.asarray(self[int(rows) : int(rows) + 1 or None][0][tuple(other_keys)])
        stored = np.asarray(self.logits[rows])
        values = self._rows(stored)
        release_pages(stored)
        row_selection = slice(None) if isinstance(rows, slice) else np.arange(len(values))
        return np.asarray(values[(row_selection, *other_keys)])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        result = np.empty(self.shape, dtype or self.dtype)
        row_blocks = blocks(len(self), max(1, BLOCK // (self.shape[1] * self.shape[2])))

        def work(first: int, step: int) -> None:
            for rows in row_blocks[first::step]:
                result[rows] = self[rows]

        run_on_threads(work, max(1, min(thread_count(), len(row_blocks))))
        return result

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = [np.asarray(value) if isinstance(value, Scaled) else value for value in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str) -> object:
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"Scaled logits have no attribute {name}.")
        return getattr(np.asarray(self), name)

    def _rows(self, logits: Array) -> Array:
        _, scaled = _scale_logits(logits.astype(np.float64), self.scale)
        scaled += self.bias
        if self.normalized:
            scaled -= scaled.max(-1, keepdims=True)
            scaled -= np.log(np.exp(scaled).sum(-1, keepdims=True))
        limit = float(np.finfo(self.dtype.type).max) / 2  # so that every number stays finite
        np.clip(scaled, -limit, limit, out=scaled, where=np.isfinite(scaled) | (scaled > 0))
        scaled = scaled.astype(self.dtype, copy=False)
        if np.ndim(self.scale) == 0:
            _keep_prediction(logits, scaled)
        return np.asarray(scaled)


def _scaled(predictions: Predictions, scale: Factor, bias: Factor) -> Predictions:
    if predictions.logits is None:
        raise BadInput("There are no logits and no probs to calibrate.")
    logits = Scaled(predictions.logits, scale, bias, predictions.normalized)
    # Skips the constructor, whose checks would read every row: scaling keeps them valid.
    calibrated = object.__new__(Predictions)
    for field in fields(predictions):
        object.__setattr__(calibrated, field.name, getattr(predictions, field.name))
    object.__setattr__(calibrated, "logits", np.asarray(logits) if logits.nbytes <= HELD_BYTES else logits)
    return calibrated


def _scale_logits(z: Array, scale: Factor) -> tuple[Array, Array]:
    """(z, z · scale); a class of probability 0 is -inf in the product and 0 in z."""
    masked = np.isneginf(z)
    if masked.any():
        z = np.where(masked, 0.0, z)
    with np.errstate(over="ignore"):
        scaled = z * scale
    scaled[masked] = -np.inf
    return z, scaled


def _finite_std(z: Array) -> Array:
    """Standard deviation over the classes that are not masked by -inf."""
    masked = np.isneginf(z)
    return np.asarray(np.std(np.where(masked, 0.0, z), axis=-1, where=~masked))


def _keep_prediction(z: Array, scaled: Array) -> None:
    """Keep each draw's predicted class: separate the two best classes if rounding made them equal."""
    predicted, scaled_predicted = z.argmax(-1), scaled.argmax(-1)
    changed = predicted != scaled_predicted
    if changed.any():
        best = (*np.nonzero(changed), predicted[changed])
        scaled[best] = np.nextafter(scaled[best], np.inf)


# ---- calibrations by name

SCALERS: dict[str, Callable[[Predictions], Temperature | Vector]] = {"temperature": temperature, "vector": vector}
FEW_ROWS = 50  # validation rows per parameter of a calibration; with fewer its numbers are unreliable


def calibration_warning(scale: Temperature | Vector, val: Predictions) -> str | None:
    """The reason why calibrated numbers are unreliable; None if they are reliable."""
    if isinstance(scale, Temperature):
        if scale.note:
            return scale.note
        parameters = 1
    else:
        parameters = 2 * len(scale.scale)
    if len(val) < FEW_ROWS * parameters:
        return f"The calibration is fitted on only {len(val)} validation rows: calibrated numbers are unreliable."
    return None
