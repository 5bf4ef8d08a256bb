"""Calibration on dumps: fit on validation rows, then map Predictions to Predictions.

    scale = temperature(val)
    calibrated = scale(test)

The calibrated logits are computed when they are read, so that a dump of many gigabytes needs no copy. Variants (other
log-probabilities of the same rows) stay as they are. A dump of log-probabilities gives log-probabilities again, scaled
and renormalised: log p carries no evidence beyond p, so `max_logit`, `energy` and `dempster_shafer` stay absent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._parallel import blocks, share, threads
from nescio.errors import BadInput, Undefined
from nescio.measures._softmax import half_padding
from nescio.predictions import Predictions
from nescio.progress import track

Array = NDArray[Any]
BLOCK = 1 << 16  # scores worked on together, by one thread
REACH = 1e4  # a temperature is sought within this factor of the scores' own spread
BIAS = 30.0  # bound on a class's bias, in nats


@dataclass(frozen=True)
class Temperature:
    """Divides the logits of every draw by one number."""

    temperature: float

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

    argmin_T -(1/n) Σ log mean_draws softmax(z/T)[label], by box-constrained L-BFGS on log T. Guo et al. (2017).
    """
    rows = _Rows(val)

    def loss(x: Array) -> tuple[float, Array]:
        beta = np.exp(-x[0])
        value, by_scale, _ = rows.loss(beta, np.float64(0.0))
        return value, np.array([-beta * by_scale.sum()])

    if rows.all_right():
        raise Undefined("Every validation answer is right: no temperature is best, a lower one is always likelier.")
    middle, reach = np.log(rows.spread()), np.log(REACH)
    best = _minimize(loss, np.array([middle]), [(middle - reach, middle + reach)])[0]
    if best > middle + 0.99 * reach:
        raise Undefined("The validation answers are no better than chance: no temperature is high enough for them.")
    return Temperature(float(np.exp(best)))


def vector(val: Predictions) -> Vector:
    """The scale and bias of each class that give the validation labels the highest likelihood.

    argmin_{w, b} -(1/n) Σ log mean_draws softmax(w ⊙ z + b)[label], by box-constrained L-BFGS from the best
    temperature; w ≥ 0. Guo et al. (2017), vector scaling.
    """
    rows = _Rows(val)
    c = val.classes
    missing = np.setdiff1d(np.arange(c), rows.labels)
    if len(missing):
        raise Undefined(f"The validation rows hold no label {missing[0]}, so its scale and bias cannot be fitted.")
    start = 1 / temperature(val).temperature

    def loss(x: Array) -> tuple[float, Array]:
        value, by_scale, by_bias = rows.loss(x[:c] * start, x[c:])
        return value, np.concatenate([by_scale * start, by_bias])

    bounds = [(0.0, REACH)] * c + [(-BIAS, BIAS)] * c
    best = _minimize(loss, np.concatenate([np.ones(c), np.zeros(c)]), bounds)
    return Vector(best[:c] * start, best[c:])


def _minimize(loss: Callable[[Array], tuple[float, Array]], start: Array, bounds: list[tuple[float, float]]) -> Array:
    from scipy.optimize import minimize

    options = {"maxiter": 500, "ftol": 1e-14, "gtol": 1e-9}
    solve: Callable[..., Any] = minimize
    return np.asarray(solve(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x)


class _Rows:
    """The labelled validation rows, and the likelihood of their labels with its exact gradient, in row blocks."""

    def __init__(self, val: Predictions) -> None:
        if val.logits is None:
            raise BadInput("The validation dump has no logits and no probs: there is nothing to calibrate.")
        if val.labels is None:
            raise BadInput("The validation dump has no labels: calibration is fitted to them.")
        known = np.ones(len(val), bool) if val.taught is None else val.taught
        if known.sum() < 2:
            raise BadInput(f"The validation dump has {known.sum()} labelled rows; calibration needs at least two.")
        self.logits, self.normalized, self.known = val.logits, val.normalized, known
        self.labels = val.labels[known]
        self.parts = [p for p in blocks(len(val), max(1, BLOCK // (val.draws * val.classes))) if known[p].any()]
        self.starts = np.concatenate([[0], np.cumsum([known[p].sum() for p in self.parts])])

    def block(self, number: int) -> tuple[Array, Array]:
        """(scores (b, s, c) in float64, labels (b,)) of one block."""
        part = self.parts[number]
        z = _scores(self.logits[part], self.normalized)[self.known[part]]
        return z, self.labels[self.starts[number] : self.starts[number + 1]]

    def all_right(self) -> bool:
        """Whether every draw puts the label alone on top."""
        for number in range(len(self.parts)):
            z, y = self.block(number)
            own = z[np.arange(len(y)), :, y]
            if np.count_nonzero(z >= own[:, :, None]) > own.size:
                return False
        return True

    def spread(self) -> float:
        """Mean standard deviation of a row's scores: the unit in which a temperature is sought."""
        total = sum(float(self.block(number)[0].std(-1).mean(1).sum()) for number in range(len(self.parts)))
        if total == 0:
            raise Undefined("All classes have the same logit in every validation row: no temperature changes anything.")
        return total / len(self.labels)

    def loss(self, scale: Any, bias: Any) -> tuple[float, Array, Array]:
        """(mean NLL, its gradient by the scale of each class, by the bias of each class).

        L = -log mean_t p_t[y], so dL/dz_tj = w_t (p_tj - [j = y]), with w_t the share of draw t in Σ_t p_t[y].
        """

        def work(first: int, step: int) -> tuple[float, Array, Array]:
            value, by_scale, by_bias = 0.0, np.zeros(self.logits.shape[2]), np.zeros(self.logits.shape[2])
            mine = range(first, len(self.parts), step)
            for number in track(mine, "calibration", len(mine)) if first == 0 else mine:
                z, y = self.block(number)
                r = np.arange(len(y))
                p = z * scale
                p += bias
                p -= p.max(-1, keepdims=True)
                own = p[r, :, y]
                np.exp(p, out=p)
                whole = p.sum(-1)
                own -= np.log(whole)
                together = np.logaddexp.reduce(own, axis=1)
                value -= float((together - np.log(own.shape[1])).sum())
                weight = np.exp(own - together[:, None])
                p *= (weight / whole)[:, :, None]
                p[r, :, y] -= weight
                by_bias += p.sum((0, 1))
                by_scale += np.einsum("bsc,bsc->c", p, z)
            return value, by_scale, by_bias

        sums = share(work, min(threads(), len(self.parts)))
        n = len(self.labels)
        return sum(s[0] for s in sums) / n, sum(s[1] for s in sums) / n, sum(s[2] for s in sums) / n


# ---- scaled when read


class Scaled:
    """logits · scale + bias, (n, s, c) in float64, computed for the rows that are read."""

    dtype = np.dtype(np.float64)
    ndim = 3

    def __init__(self, logits: Any, scale: Any, bias: Any, normalized: bool) -> None:
        self.logits, self.scale, self.bias, self.normalized = logits, scale, bias, normalized
        self.shape = logits.shape

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> Array:
        rows, *rest = key if isinstance(key, tuple) else (key,)
        if rows is None or rows is Ellipsis:
            return np.asarray(np.asarray(self)[key])
        if np.ndim(rows) == 0 and not isinstance(rows, slice):
            return np.asarray(self[int(rows) : int(rows) + 1 or None][0][tuple(rest)])
        values = self._rows(np.asarray(self.logits[rows]))
        kept = slice(None) if isinstance(rows, slice) else np.arange(len(values))
        return np.asarray(values[(kept, *rest)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or self.dtype, copy=False)

    def _rows(self, logits: Array) -> Array:
        z = _scores(logits, self.normalized)
        scaled = z * self.scale
        scaled += self.bias
        if self.normalized:
            scaled -= scaled.max(-1, keepdims=True)
            scaled -= np.log(np.exp(scaled).sum(-1, keepdims=True))
        if np.ndim(self.scale) == 0:
            _keep_first(z, scaled)
        return np.asarray(scaled)


def _scaled(predictions: Predictions, scale: Any, bias: Any) -> Predictions:
    if predictions.logits is None:
        raise BadInput("There are no logits and no probs to calibrate.")
    # Not through the constructor, whose checks would read every row: a scaled dump is as sound as the dump itself.
    calibrated = object.__new__(Predictions)
    for field in fields(predictions):
        object.__setattr__(calibrated, field.name, getattr(predictions, field.name))
    object.__setattr__(calibrated, "logits", Scaled(predictions.logits, scale, bias, predictions.normalized))
    return calibrated


def _scores(logits: Array, normalized: bool) -> Array:
    """The stored scores (b, s, c) in float64; a zero of half-precision `probs` as the most that rounds to zero."""
    z: Array = logits.astype(np.float64)
    if normalized and logits.dtype == np.float32:
        for draw in range(z.shape[1]):
            padding = half_padding(logits[:, draw])
            if padding is not None:
                z[:, draw][padding] = np.log(2.0**-25)
    return z


def _keep_first(z: Array, scaled: Array) -> None:
    """A temperature never changes a draw's answer: where rounding made its two best classes equal, parts them."""
    first, now = z.argmax(-1), scaled.argmax(-1)
    moved = first != now
    if moved.any():
        at = (*np.nonzero(moved), first[moved])
        scaled[at] = np.nextafter(scaled[at], np.inf)
