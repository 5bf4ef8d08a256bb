"""Representation reliability: performance of linear heads on the tasks of a row.

Source: Park, Wang, Ardeshir and Azizan 2024, definition 1 and appendix B. Here, and only here, higher is *more*
reliable, as in the paper; minus it is an uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import numpy as np

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array, ArrayOrTensor
from nescio.errors import BadInput
from nescio.heads._minimise import cast, namespace
from nescio.heads._tasks import TASKS, Heads
from nescio.progress import track

BLOCK = 1 << 22  # predictions of all members per block


def fit_heads(
    members: Sequence[ArrayOrTensor],
    truth: ArrayOrTensor,
    *,
    tasks: str = "one-vs-one",
    penalty: float = 1.0,
    precision: str = "float64",
) -> list[Heads]:
    """The optimal heads of every member for one collection of tasks.

    members    m arrays (n, d), NumPy or torch: the frozen features of the same rows; d may differ
    truth      (n,) classes; for regression (n,) or (n, t) numbers
    tasks      "one-vs-one" (every pair of classes), "multiclass" or "regression"
    penalty    α of ½·α·‖w‖²; 1 is scikit-learn's C = 1
    precision  "float64": probabilities within 1e-4 of the optimum; "float32": within 2e-3, in a third of the time
    """
    if tasks not in TASKS:
        raise BadInput(f"tasks is {tasks!r}; it must be one of {', '.join(TASKS)}.")
    if precision not in ("float32", "float64"):
        raise BadInput(f"precision is {precision!r}; it must be float32 or float64.")
    if not isinstance(penalty, Real) or not (penalty > 0 and np.isfinite(penalty)):
        raise BadInput(
            f"penalty is {penalty!r}; it must be a number above 0, or classes that can be separated have no best head."
        )
    features = _checked_features(members, truth)
    return [TASKS[tasks].fit(x, truth, float(penalty), precision) for x in track(features, "heads")]


def reliability_targets(
    heads: Sequence[Heads], members: Sequence[ArrayOrTensor], truth: ArrayOrTensor
) -> dict[str, Array]:
    """Targets of reliability scores: the performance (n,) of each row, higher = more reliable.

    The mean over the tasks of a row (one-vs-one: the c − 1 pairs of its class) of a performance of the members' *mean*
    prediction. Heads on probabilities give minus the Brier score, minus the entropy (nats) and minus the variance over
    members; regression gives minus the squared error and minus the variance. One member has no variance.
    """
    features = _checked_features(members, truth)
    if len(heads) != len(features):
        raise BadInput(f"There are heads of {len(heads)} members and features of {len(features)}.")
    for i, (h, x) in enumerate(zip(heads, features, strict=True)):
        if h.weights.shape[1] != x.shape[1]:
            raise BadInput(f"members[{i}] has {x.shape[1]} features, its heads were fitted to {h.weights.shape[1]}.")
    truth = np.asarray(truth) if namespace(truth) is np else truth.cpu().numpy()
    performance_of = probability_performance if heads[0].probabilities else regression_performance
    one_row = heads[0].errors(features[0][:1], truth[:1]).size * len(heads)
    performances = []
    for block in blocks(len(truth), max(1, BLOCK // one_row)):
        errors = [h.errors(x[block], truth[block]) for h, x in zip(heads, features, strict=True)]
        performances.append(performance_of(np.stack(errors)))
    return {name: np.concatenate([block[name] for block in performances]) for name in performances[0]}


def probability_performance(wrong: ArrayOrTensor) -> dict[str, Array]:
    """Performance (n,) from the probabilities (m, n, t, c − 1) of the wrong classes of every task.

    With p the mean over the members, q = Σ p its sum over wrong classes and 1 − q the probability of the right class:
    brier = −(q² + Σ p²), entropy = (1 − q)·log(1 − q) + Σ p·log p, and variance = −(Var q + Σ Var p), the trace of the
    members' covariance (equations 17–20), each averaged over the t tasks. Probabilities of the right class are not
    taken: 1 − p of a confident head has no digits left.
    """
    wrong = np.asarray(wrong, np.float64)
    p = wrong.mean(0)
    q = p.sum(-1)
    performance = {
        "brier": -(q**2 + (p**2).sum(-1)),
        "entropy": _log_times(1 - q, np.log1p(-np.minimum(q, 1 - 1e-16))) + _log_times(p).sum(-1),
    }
    if len(wrong) > 1:
        performance["variance"] = -(wrong.sum(-1).var(0) + wrong.var(0).sum(-1))
    return {name: value.mean(-1) for name, value in performance.items()}


def regression_performance(errors: ArrayOrTensor) -> dict[str, Array]:
    """Performance (n,) from prediction less truth (m, n, t): −(mean miss)² and −variance over members, over t tasks."""
    errors = np.asarray(errors, np.float64)
    performance = {"squared_error": -(errors.mean(0) ** 2)}
    if len(errors) > 1:
        performance["variance"] = -errors.var(0)
    return {name: value.mean(-1) for name, value in performance.items()}


def _log_times(p: Array, log_p: Array | None = None) -> Array:
    """p·log p, 0 at p = 0."""
    return np.asarray(p * (np.log(np.where(p > 0, p, 1)) if log_p is None else log_p))


def _checked_features(members: Sequence[ArrayOrTensor], truth: ArrayOrTensor) -> list[ArrayOrTensor]:
    """The features of every member, as floats, checked."""
    if namespace(members) is not np or isinstance(members, np.ndarray):
        members = list(members) if getattr(members, "ndim", 0) == 3 else [members]
    if not len(members):
        raise BadInput("There are no members: give the features of at least one.")
    checked = []
    for i, x in enumerate(members):
        x = x if namespace(x) is not np else np.asarray(x)
        xp, name = namespace(x), f"members[{i}]"
        if x.ndim != 2 or 0 in x.shape:
            raise BadInput(f"{name} has shape {tuple(x.shape)}; it must be (n, d), the features of at least one row.")
        if len(x) != len(truth):
            raise BadInput(f"{name} has {len(x)} rows, truth has {len(truth)}: they must describe the same rows.")
        if xp is np and x.dtype.kind not in "fiub":
            raise BadInput(f"{name} has {x.dtype} values; features are real numbers.")
        if x.dtype not in (xp.float32, xp.float64):
            x = cast(x, "float64" if xp is np and x.dtype.kind in "iu" else "float32")
        bad = ~xp.isfinite(x).all(1)
        if bad.any():
            raise BadInput(f"{name} is not finite in row {int(xp.where(bad)[0][0])}.")
        checked.append(x)
    return checked
