"""One pass over predictions for all softmax measures and outcomes.

Everything is computed in float64, whatever the predictions are stored in. A float32 softmax gives thousands of
confident rows the same probability, which ranking metrics count as ties. Row blocks fit the cache and run on threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nescio.arrays.checks import check_not_truncated, release_pages
from nescio.arrays.parallel import blocks, run_on_threads, thread_count
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures._spec import cached
from nescio.metrics import Outcomes, complement_of, label_ranks, registry, top_k, top_outcomes
from nescio.predictions import Predictions
from nescio.progress import track

BLOCK = 1 << 16  # probabilities in one block: half a megabyte in float64, so that two buffers fit the cache
PASS_BLOCK = 1 << 18  # scores in one block of the pass; smaller blocks wait for Python's lock, larger ones for memory
SAFE = 300.0  # exp(z) and its square stay in range for |z| up to this; beyond it the maximum is subtracted first
TINY = float(np.finfo(np.float64).tiny)
LOWEST = -1000.0  # exp of this is 0: replaces a score of -inf, because 0 · -inf is NaN
OF_SCORES = ("max_logit", "energy", "dempster_shafer")
OF_PROBS = ("msp", "gap", "entropy", "mutual_information", "expected_entropy", "renyi", "tsallis")
LEADING = int(max(registry["top_k_ece"].values["k"]))  # most probable classes whose probabilities the pass keeps


@dataclass(frozen=True, eq=False)
class Summary:
    """Results of one pass over predictions.

    u        measure name → (n,), higher = less confident
    labelled    (n,) the row has a label among the model's classes
    leading  (n, LEADING or fewer) the largest probabilities of every row, falling
    """

    u: Mapping[str, Array]
    labelled: Array
    leading: Array
    predicted: Array
    confidence: Array
    _outcomes: Outcomes | None

    def outcomes(self, rows: Array | None = None) -> Outcomes:
        """Outcomes of the selected rows (indices or a mask), by default of all labelled rows."""
        if self._outcomes is None:
            raise Undefined("There are no labels, so predictions cannot be evaluated.")
        rows = self.labelled if rows is None else rows
        if not self.labelled[rows].all():
            raise BadInput("Some selected rows have a label that is not among the model's classes: omit them.")
        selection = self._outcomes if rows is self.labelled and self.labelled.all() else self._outcomes.take(rows)
        if not selection.n:
            raise Undefined("No row has a label among the model's classes.")
        return selection


def _top_only(predictions: Predictions) -> Summary:
    """Summary of predicted classes and their confidence, without logits."""
    n, correct, confidence = len(predictions), predictions.correctness, predictions.confidence
    if correct is None and confidence is None:
        raise Undefined("There are no logits and no probs, so there is no softmax.")
    u = {} if confidence is None else {"msp": 1 - confidence.astype(np.float64)}
    in_distribution = np.ones(n, bool) if predictions.in_distribution is None else predictions.in_distribution
    labelled = in_distribution & (correct is not None)
    top = top_outcomes(np.zeros(n, bool) if correct is None else correct & labelled, confidence, predictions.predicted)
    leading = top.confidence[:, None]
    return Summary(u, labelled, leading, top.predicted, top.confidence, None if correct is None else top)


@cached
def summary(predictions: Predictions) -> Summary:
    """One pass over the predictions, cached on them."""
    if predictions.logits is None:
        return _top_only(predictions)
    for _, column in predictions.columns():
        check_not_truncated(column)
    n, c = len(predictions), predictions.classes
    out = _Columns(predictions)
    slices = blocks(n, max(1, PASS_BLOCK // (c * out.draws)))
    workers = min(thread_count(), len(slices))

    def work(first: int, step: int) -> None:
        buffers = _Buffers(min(n, slices[0].stop), c)
        worker_blocks = slices[first::step]
        for block in track(worker_blocks, "softmax") if first == 0 else worker_blocks:
            check_not_truncated(predictions.logits)  # type: ignore[arg-type]
            z = stored = np.asarray(predictions.logits[block])  # type: ignore[index]
            if z.dtype == np.float16:  # exact, and float32 is searched many times faster
                z = z.astype(np.float32)
            if out.one:
                _one_draw(z[:, 0], block, out, buffers)
            else:
                _many_draws(z, block, out, buffers)
            release_pages(stored)

    run_on_threads(work, workers)
    if out.one:
        _finish_one_draw(out)
    return out.summary()


class _Columns:
    """The (n,) results of the pass, and the format of the predictions."""

    def __init__(self, predictions: Predictions) -> None:
        n, s, c = len(predictions), predictions.draws, predictions.classes
        assert predictions.logits is not None
        self.dtype = predictions.logits.dtype
        self.classes, self.draws, self.normalized = c, s, predictions.normalized
        self.one = s == 1 and not self.normalized
        if self.one:
            self.raw = _ExpSums(np.empty(n, np.int64), *(np.empty(n) for _ in _ExpSums._fields[1:]))
        self.u = {name: np.zeros(n) for name in OF_PROBS + (() if self.normalized else OF_SCORES)}
        self.predicted, self.confidence = np.empty(n, np.int64), np.empty(n)
        self.leading = np.empty((n, min(LEADING, c)))
        self.labels, self.labelled = predictions.labels, np.zeros(n, bool)
        if self.labels is not None:
            self.labelled = (self.labels >= 0) & (self.labels < c)
            if predictions.in_distribution is not None:
                self.labelled &= predictions.in_distribution
            self.labels = np.where(self.labelled, self.labels, 0)
            self.log_loss, self.brier = np.empty(n), np.empty(n)
            self.rank, self.zero = np.empty(n, np.int64), np.zeros(n, bool)
        # Draws grouped by member if a member has several draws.
        members = np.zeros(s, int) if predictions.members is None else predictions.members
        names = np.unique(members)
        self.members = [np.flatnonzero(members == name) for name in names] if len(names) > 1 else [np.arange(s)]
        self.grouped = len(names) > 1 and len(names) < s
        self.uneven = self.grouped and len({len(group) for group in self.members}) > 1

    def summary(self) -> Summary:
        for name in OF_PROBS:
            settle(self.u[name])
        self.leading[:, 0] = self.confidence
        for array in (*self.u.values(), self.leading, self.predicted, self.confidence):
            array.flags.writeable = False
        row_outcomes = None
        if self.labels is not None:
            row_outcomes = Outcomes(
                classes=self.classes,
                predicted=self.predicted,
                correct=(self.predicted == self.labels) & self.labelled,
                confidence=self.confidence,
                uncertainty=self.u["msp"],
                log_loss=self.log_loss,
                brier=self.brier,
                rank=self.rank,
                zero=self.zero,
                stored=np.dtype(self.dtype) if self.normalized and self.dtype.kind == "f" else None,
            )
        return Summary(self.u, self.labelled, self.leading, self.predicted, self.confidence, row_outcomes)


class _Buffers:
    """Buffers that one thread reuses: allocating arrays of this size costs more than the arithmetic."""

    def __init__(self, rows: int, classes: int) -> None:
        self.z = np.empty((rows, classes))
        self.e = np.empty((rows, classes))
        self.scores = np.empty((rows, classes), np.float32)
        self.rows = np.arange(rows)
        self.ones = np.ones(classes)
        self._more: dict[str, Array] = {}

    def more(self, name: str, rows: int) -> Array:
        if name not in self._more:
            self._more[name] = np.empty_like(self.z)
        return self._more[name][:rows]


class _ExpSums(NamedTuple):
    """Sums over the classes in one draw of b rows, without the largest score m of each row (Σ')."""

    predicted: Array  # first argmax of the scores
    top_score: Array  # m
    base: Array  # m - shift; exponentials are of z - shift
    max_exp: Array  # exp(m - shift)
    other_exps: Array  # Σ' exp(z - shift)
    dots: Array  # Σ' exp(z - shift)·(z - shift)
    squares: Array  # Σ' exp(z - shift)²
    roots: Array  # Σ' exp(z - shift)^½


def _exps(scores: Array, buffers: _Buffers) -> _ExpSums:
    """The exponentials of a draw (b, c), stored in buffers.e, with 0 at the largest score.

    The shift is 0 unless exp(z) would overflow or underflow, which saves a pass over the block. Computes exp(z/2) and
    squares it, which gives the sum of roots at a third of the cost of roots.
    """
    b = len(scores)
    r = buffers.rows[:b]
    z, e = buffers.z[:b], buffers.e[:b]
    predicted = scores.argmax(1)
    np.copyto(z, scores)
    top = base = z[r, predicted]
    extreme = np.abs(top) > SAFE
    if extreme.any():
        shift = np.where(extreme, top, 0.0)
        base = top - shift
        with np.errstate(over="ignore"):
            np.subtract(z, shift[:, None], out=z)
        np.maximum(z, LOWEST, out=z, where=extreme[:, None])
    z *= 0.5
    np.exp(z, out=e)
    unit = e[r, predicted] ** 2
    e[r, predicted] = 0
    roots = np.vecdot(e, buffers.ones)
    np.multiply(e, e, out=e)
    return _ExpSums(predicted, top, base, unit, np.vecdot(e, buffers.ones), 2 * _dots(e, z), np.vecdot(e, e), roots)


def _dots(e: Array, z: Array) -> Array:
    """Σ exp(z)·z over the last axis, where a masked class (-inf) counts as 0; z may be changed."""
    with np.errstate(invalid="ignore"):
        dots: Array = np.vecdot(e, z)
    if np.isnan(dots).any():
        np.maximum(z, LOWEST, out=z)
        dots = np.vecdot(e, z)
    return dots


class _Softmax(NamedTuple):
    """Softmax quantities from the sums of a draw. With r = Σ' exp(z - m), the largest p is 1/(1 + r), and

    log Σ exp z = m + log(1 + r),   H = log(1 + r) + Σ' exp(z - m)(m - z)/(1 + r):

    sums of positive terms, which are accurate for any small r.
    """

    confidence: Array
    uncertainty: Array
    log_total: Array
    log_sum: Array
    entropy: Array


def _softmax(x: _ExpSums) -> _Softmax:
    odds = x.other_exps / x.max_exp
    total = 1 + odds
    log_total = np.log1p(odds)
    mean_gap = np.maximum(x.base * odds - x.dots / x.max_exp, 0)
    return _Softmax(1 / total, odds / total, log_total, x.top_score + log_total, log_total + mean_gap / total)


def _one_draw(scores: Array, block: slice, out: _Columns, buffers: _Buffers) -> None:
    x = _exps(scores, buffers)
    for column, values in zip(out.raw, x, strict=True):
        column[block] = values
    if out.labels is not None:
        labels, row_numbers = out.labels[block], buffers.rows[: len(scores)]
        out.log_loss[block] = scores[row_numbers, labels]
        out.brier[block] = buffers.e[row_numbers, labels]
        out.rank[block] = label_ranks(scores, labels, x.predicted)
    e = buffers.e[: len(scores)]
    if scores.dtype != np.float32:
        _extract_largest(e, buffers, out.leading[block])
        return
    ordered = buffers.scores[: len(scores)]  # ordered like e, and searched twice as fast in float32
    np.copyto(ordered, scores)
    ordered[buffers.rows[: len(scores)], x.predicted] = -np.inf
    _extract_largest(ordered, buffers, out.leading[block], e, -np.inf)


def _extract_largest(
    ordered: Array, buffers: _Buffers, leading: Array, values: Array | None = None, lowest: float = 0.0
) -> None:
    """Write each row's largest values to `leading` from column 1; replace them by `lowest` in `ordered`.

    One search per value is many times faster than np.partition for a few values.
    """
    row_numbers, values = buffers.rows[: len(ordered)], ordered if values is None else values
    for column in range(1, leading.shape[1]):
        largest = ordered.argmax(1)
        leading[:, column] = values[row_numbers, largest]
        ordered[row_numbers, largest] = lowest


def _finish_one_draw(out: _Columns) -> None:
    """Compute measures from the sums, for all rows at once: block by block needs many calls on small arrays."""
    x = out.raw
    soft, u = _softmax(x), out.u
    scale = soft.confidence / x.max_exp
    out.leading[:, 1:] *= scale[:, None]  # the first column is the confidence, which is set later
    u["msp"] = soft.uncertainty
    u["gap"] = soft.uncertainty + out.leading[:, 1]
    u["entropy"] = u["expected_entropy"] = soft.entropy
    u["renyi"], u["tsallis"] = _power_entropies(np.sqrt(scale) * x.roots, scale**2 * x.squares, soft.uncertainty)
    _scores(u, slice(None), x.top_score, soft.log_sum, out.classes)
    out.predicted, out.confidence = x.predicted, soft.confidence
    if out.labels is not None:
        out.log_loss, out.zero = _floored(soft.log_total + (x.top_score - out.log_loss))
        out.brier = _brier(
            x.predicted == out.labels, soft.confidence, soft.uncertainty, out.brier * scale, x.squares * scale**2
        )


def _many_draws(scores: Array, block: slice, out: _Columns, buffers: _Buffers) -> None:
    b, s, c = scores.shape
    u = out.u
    row_numbers = buffers.rows[:b]
    mean, mixture = buffers.more("mean", b), buffers.more("mixture", b) if out.uneven else None
    labels = None if out.labels is None else out.labels[block]
    label_logs = np.empty((s, b))
    mean[:] = 0
    if mixture is not None:
        mixture[:] = 0
    draw_entropy, member_entropy = np.zeros(b), np.zeros(b)
    for group in out.members:
        member = buffers.more("member", b) if out.grouped else mean
        if out.grouped:
            member[:] = 0
        for draw in group:
            z = scores[:, draw]
            if out.normalized:
                e, draw_h = _probabilities_of_logs(z, buffers)
                log_sum = np.zeros(b)
            else:
                x = _exps(z, buffers)
                soft = _softmax(x)
                e, draw_h, log_sum = _normalized(x, soft, buffers), soft.entropy, soft.log_sum
                _scores(u, block, x.top_score, log_sum, c, 1 / s)
            draw_entropy += draw_h
            member += e
            if labels is not None:
                label_logs[draw] = z[row_numbers, labels] - log_sum
        if out.grouped:
            mean += member
            member /= len(group)
            member_entropy += _entropy(member, buffers)
            if mixture is not None:
                mixture += member
    mean /= s
    predicted = mean.argmax(1)
    confidence = mean[row_numbers, predicted]
    if mixture is not None:
        mixture /= len(out.members)
        mixture_entropy = _entropy(mixture, buffers)
    rank = None if labels is None else label_ranks(mean, labels, predicted)
    mean[row_numbers, predicted] = 0
    other_mass = mean.sum(1)
    uncertainty = complement_of(confidence, other_mass) if out.normalized else other_mass
    u["msp"][block] = uncertainty
    squares = np.vecdot(mean, mean)
    roots = np.sqrt(mean, out=buffers.e[:b]).sum(1)
    u["renyi"][block], u["tsallis"][block] = _power_entropies(roots, squares, uncertainty)
    u["entropy"][block] = h_mean = _entropy(mean, buffers) + _top_term(confidence, uncertainty)
    u["expected_entropy"][block] = draw_entropy / s
    if s > 1:
        total_entropy = mixture_entropy if mixture is not None else h_mean
        mean_entropy = member_entropy / len(out.members) if out.grouped else draw_entropy / s
        u["mutual_information"][block] = np.maximum(total_entropy - mean_entropy, 0)
    out.predicted[block], out.confidence[block] = predicted, confidence
    if labels is not None and rank is not None:
        out.log_loss[block], out.zero[block] = _floored(np.log(s) - np.logaddexp.reduce(label_logs, axis=0))
        out.brier[block] = _brier(predicted == labels, confidence, uncertainty, mean[row_numbers, labels], squares)
        out.rank[block] = rank
    _extract_largest(mean, buffers, out.leading[block])
    u["gap"][block] = uncertainty + out.leading[block, 1]


def _floored(log_loss: Array) -> tuple[Array, Array]:
    """(-log p, mask of p = 0), with float64's smallest normal number in place of p = 0."""
    zero = np.isinf(log_loss)
    return np.where(zero, -np.log(TINY), log_loss), zero


def _probabilities_of_logs(logs: Array, buffers: _Buffers) -> tuple[Array, Array]:
    """(probabilities, entropy) of log-probabilities, without normalising them again."""
    b = len(logs)
    z, e = buffers.z[:b], buffers.e[:b]
    np.copyto(z, logs)
    np.exp(z, out=e)
    row_numbers, predicted = buffers.rows[:b], z.argmax(1)
    confidence = e[row_numbers, predicted]
    e[row_numbers, predicted] = 0
    uncertainty = complement_of(confidence, e.sum(1))
    h = _top_term(confidence, uncertainty) - _dots(e, z)
    e[row_numbers, predicted] = confidence
    return e, np.maximum(h, 0)


def _normalized(x: _ExpSums, soft: _Softmax, buffers: _Buffers) -> Array:
    """The probabilities (b, c), in place of the exponentials."""
    e = buffers.e[: len(x.predicted)]
    e[buffers.rows[: len(x.predicted)], x.predicted] = x.max_exp
    e *= (soft.confidence / x.max_exp)[:, None]
    return e


def _scores(u: dict[str, Array], block: slice, largest: Array, log_sum: Array, c: int, weight: float = 1.0) -> None:
    u["max_logit"][block] -= weight * largest
    u["energy"][block] -= weight * log_sum
    with np.errstate(over="ignore"):
        u["dempster_shafer"][block] += weight / (1 + np.exp(log_sum - np.log(c)))


def _entropy(probs: Array, buffers: _Buffers) -> Array:
    """-Σ p log p over the last axis, with 0 log 0 = 0."""
    logs = buffers.z[: len(probs)]
    np.maximum(probs, TINY, out=logs)
    np.log(logs, out=logs)
    return np.asarray(-np.vecdot(probs, logs))


def _top_term(confidence: Array, uncertainty: Array) -> Array:
    """-p log p of the most probable class, exact when p is almost one."""
    return -confidence * np.log1p(-np.minimum(uncertainty, 1 - TINY))


def _power_entropies(roots: Array, squares: Array, uncertainty: Array) -> tuple[Array, Array]:
    """Rényi entropy of order ½ and Tsallis entropy of order 2, from Σ' √p and Σ' p² without the most probable class."""
    log_confidence = np.log1p(-np.minimum(uncertainty, 1 - TINY))
    return 2 * np.log1p(roots + np.expm1(log_confidence / 2)), -squares - np.expm1(2 * log_confidence)


def _brier(correct: Array, confidence: Array, uncertainty: Array, label_probability: Array, squares: Array) -> Array:
    """Σ (p - y)²; `squares` is Σ p² without the most probable class, so that confident correct rows stay accurate."""
    other_squares = np.maximum(squares - label_probability**2, 0)
    return np.where(correct, uncertainty**2 + squares, confidence**2 + other_squares + (1 - label_probability) ** 2)


def settle(u: Array) -> None:
    """Drop the last 9 of 53 bits in place, so that the order of a sum breaks no tie (Veltkamp's splitting)."""
    scaled = u * (2.0**9 + 1)
    u[:] = scaled - (scaled - u)


# ---- probabilities, for metrics that need all of them


def mean_probs(predictions: Predictions, rows: Array | slice = slice(None)) -> Array:
    """Mean over draws of the probabilities of these rows, (n, c) in float64."""
    if predictions.logits is None:
        raise Undefined("There are no logits and no probs, so there are no probabilities.")
    z = np.asarray(predictions.logits[rows])
    b, s, c = z.shape
    buffers = _Buffers(b, c)
    mean = np.zeros((b, c))
    for draw in range(s):
        if predictions.normalized:
            e, _ = _probabilities_of_logs(z[:, draw], buffers)
        else:
            x = _exps(z[:, draw], buffers)
            e = _normalized(x, _softmax(x), buffers)
        mean += e
    release_pages(z)
    mean /= s
    return mean


def prob_blocks(predictions: Predictions) -> Iterator[tuple[Array, Array]]:
    """(probabilities, labels) of the labelled rows, block by block."""
    if predictions.logits is None:
        raise Undefined("There are no logits and no probs, so there are no probabilities.")
    labelled, labels = summary(predictions).labelled, predictions.labels
    if labels is None:
        raise Undefined("There are no labels, so predictions cannot be evaluated.")
    for block in blocks(len(predictions), max(1, BLOCK // predictions.classes)):
        if labelled[block].any():
            yield mean_probs(predictions, block)[labelled[block]], labels[block][labelled[block]]


def top_k_outcomes(predictions: Predictions, k: int) -> Outcomes:
    """`metrics.top_k` of the labelled rows; for k up to LEADING the pass has computed them already."""
    if predictions.logits is None or not 1 <= k <= min(LEADING, predictions.classes):
        return top_k(prob_blocks(predictions), k)
    results = summary(predictions)
    other_mass = results.leading[results.labelled, :k].sum(1)
    return top_outcomes(results.outcomes().rank < k, np.minimum(other_mass, 1.0))
