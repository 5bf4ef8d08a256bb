"""Scores of the logits beyond the plain softmax ones, and the decomposition of uncertainty.

Entropies are of the mean over draws, like `entropy`; pnorm is a score of logits and is averaged over draws, like
`max_logit`. The probability of the most probable class is never subtracted from one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nescio.arrays.parallel import blocks, map_on_threads
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures._softmax_pass import BLOCK, mean_probs, settle, summary
from nescio.measures._spec import cached, measure
from nescio.metrics import aurc, complement_of
from nescio.predictions import Predictions

GAMMA, TOP = 0.1, 100  # exponent and number of classes of GEN
ALPHA, ORDER = 0.5, 2.0  # orders of the Rényi and the Tsallis entropy; equal orders would give equal rankings
P = 5.0  # order of the norm in pnorm
POWERS = tuple(range(1, 10))
TEMPERATURES = tuple(np.geomspace(0.1, 10, 21))


# ---- measures


@measure("plain", needs=("logits",), slow=True)
@cached
def pnorm(predictions: Predictions, p: float = P) -> Array:
    """Minus the largest centred logit divided by the p-norm of the centred logits, averaged over draws. Unlike the
    softmax it does not depend on the scale of the logits.

    −max_j (z_j − z̄)/‖z − z̄‖_p, and 0 where all logits are equal. Cattelan & Silva (2024), MaxLogit-pNorm; In the
    paper p = 5 is as good as a tuned p; `pnorm_tuned` tunes it.
    """
    if p <= 0:
        raise BadInput(f"p is {p}; it must be above 0.")
    return _map_blocks(predictions, lambda block: _pnorm(np.array(_logits(predictions)[block], np.float64), p))


@measure("plain", needs=("logits",), slow=True)
@cached
def gen(predictions: Predictions, gamma: float = GAMMA, top: int = TOP) -> Array:
    """Generalised entropy of the most probable classes: Σ_j p_j^γ·(1 − p_j)^γ over the `top` largest p_j.

    A small γ emphasises small probabilities. Liu, Lochman & Zach (2023), with their γ = 0.1 and 100 classes.
    """
    if top < 1 or gamma <= 0:
        raise BadInput(f"GEN needs at least one class and γ above 0, not {top} and {gamma}.")

    def of_rows(block: slice) -> Array:
        p, confidence, uncertainty = _probs(predictions, block)
        c = p.shape[1]
        n_other = min(top, c) - 1
        largest = np.partition(p, c - n_other, axis=1)[:, c - n_other :] if n_other else p[:, :0]
        return np.asarray(((largest * (1 - largest)) ** gamma).sum(1) + (confidence * uncertainty) ** gamma)

    return _map_blocks(predictions, of_rows)


@measure("plain", needs=("logits",))
def renyi(predictions: Predictions, alpha: float = ALPHA) -> Array:
    """Rényi entropy of order α, in nats: log(Σ_j p_j^α)/(1 − α); a small α emphasises small probabilities."""
    if alpha == ALPHA and predictions.logits is not None:
        return summary(predictions).u["renyi"]
    return np.asarray(np.log1p(_power_sum(predictions, alpha)) / (1 - alpha))


@measure("plain", needs=("logits",))
def tsallis(predictions: Predictions, alpha: float = ORDER) -> Array:
    """Tsallis entropy of order α: (1 − Σ_j p_j^α)/(α − 1); order 2 is the chance that two drawn classes differ.

    It gives the ranking of the Rényi entropy of equal order.
    """
    if alpha == ORDER and predictions.logits is not None:
        return summary(predictions).u["tsallis"]
    return np.asarray(_power_sum(predictions, alpha) / (1 - alpha))


@measure("plain", needs=("logits",), equivalent_to="tsallis")
def doctor(predictions: Predictions) -> Array:
    """Odds that two classes drawn from the probabilities differ: (1 − g)/g, g = Σ_j p_j².

    It gives the ranking of `tsallis` of order 2. Granese et al. (2021), D_α; their D_β gives that of `msp`.
    """
    uncertainty = tsallis(predictions)
    return np.asarray(uncertainty / (1 - uncertainty))


@cached
def _power_sum(predictions: Predictions, alpha: float) -> Array:
    """Σ_j p_j^α − 1, exact for confident rows too."""
    if alpha <= 0 or alpha == 1:
        raise BadInput(f"The order of an entropy is {alpha}; give one above 0; order 1 is `entropy`.")

    def of_rows(block: slice) -> Array:
        p, _, uncertainty = _probs(predictions, block)
        return np.asarray((p**alpha).sum(1) + np.expm1(alpha * np.log1p(-np.minimum(uncertainty, 1 - 1e-300))))

    return _map_blocks(predictions, of_rows)


@cached
def distance_to_uniform(predictions: Predictions) -> Array:
    """(n,) Σ_j |p_j − 1/c|."""
    uniform = 1 / predictions.classes
    return _map_blocks(predictions, lambda block: np.abs(mean_probs(predictions, block) - uniform).sum(1))


# ---- one pass over the rows


def _map_blocks(predictions: Predictions, of_rows: Callable[[slice], Array]) -> Array:
    """u (n,), read-only, from a function of row blocks."""
    slices = blocks(len(predictions), max(1, BLOCK // _logits(predictions).shape[2]))
    u = np.concatenate(map_on_threads(of_rows, slices))
    settle(u)
    u.flags.writeable = False
    return u


def _logits(predictions: Predictions) -> Array:
    if predictions.logits is None:
        raise Undefined("The score needs the logits or the probabilities of all classes, but there are none.")
    return predictions.logits


def _probs(predictions: Predictions, block: slice) -> tuple[Array, Array, Array]:
    """(p (b, c) with 0 for the most probable class, the confidence, one minus the confidence without cancellation)."""
    p = mean_probs(predictions, block)
    rows, predicted = np.arange(len(p)), p.argmax(1)
    confidence = p[rows, predicted]
    p[rows, predicted] = 0
    other_mass = p.sum(1)
    return p, confidence, complement_of(confidence, other_mass) if predictions.normalized else other_mass


def _pnorm(z: Array, power: float) -> Array:
    """Minus max/norm of centred logits (b, s, c), averaged over draws; −inf is omitted, z is overwritten."""
    masked = np.isneginf(z)
    if masked.any():
        z = np.where(masked, np.nan, z)
        z = np.nan_to_num(z - np.nanmean(z, axis=2, keepdims=True))
        z[masked] = 0
    else:
        z -= z.mean(2, keepdims=True)
    maximum = z.max(2)
    np.abs(z, out=z)
    scale = z.max(2)
    z /= np.where(scale > 0, scale, 1)[:, :, None]
    norm = (z**power).sum(2) ** (1 / power) * scale
    return np.asarray(-np.where(norm > 0, maximum / np.where(norm > 0, norm, 1), 0).mean(1))


# ---- decomposition of the uncertainty of several draws


@measure("plain", needs=("logits",), needs_draws=True)
def brier_aleatoric(predictions: Predictions) -> Array:
    """Mean uncertainty of the members, by the Brier score: mean_i (1 − Σ_j p_ij²)."""
    return decomposition(predictions)["brier"]["aleatoric"]


@measure("plain", needs=("logits",), needs_draws=True)
def brier_epistemic(predictions: Predictions) -> Array:
    """Distance of members from their mean, by the Brier score: mean_i Σ_j (p_ij − p̄_j)²."""
    return decomposition(predictions)["brier"]["epistemic"]


@measure("plain", needs=("logits",), needs_draws=True)
def zero_one_aleatoric(predictions: Predictions) -> Array:
    """Mean uncertainty of the members, by the zero-one score: mean_i (1 − max_j p_ij)."""
    return decomposition(predictions)["zero_one"]["aleatoric"]


@measure("plain", needs=("logits",), needs_draws=True)
def zero_one_epistemic(predictions: Predictions) -> Array:
    """Loss of predicting one class for all members, by the zero-one score: mean_i max_j p_ij − max_j p̄_j."""
    return decomposition(predictions)["zero_one"]["epistemic"]


@cached
def decomposition(predictions: Predictions) -> dict[str, dict[str, Array]]:
    """Total, aleatoric and epistemic uncertainty (n,) under the log, Brier and zero-one scores.

    total = G(p̄), aleatoric = mean_i G(p_i), epistemic = total − aleatoric ≥ 0, with G the entropy of the
    score: −Σ p log p, 1 − Σ p², 1 − max p. i runs over members, each with the mean of its draws, or over draws
    if there is at most one member. For one draw the epistemic uncertainty is 0. Hofman, Sale & Hüllermeier (2025).
    """
    n, logits = len(predictions), predictions.logits
    if logits is None:
        raise Undefined("The decomposition of uncertainty needs the probabilities of all classes, but there are none.")
    member_of_draw = np.zeros(predictions.draws) if predictions.members is None else predictions.members
    names = np.unique(member_of_draw)
    members = (
        [member_of_draw == name for name in names] if len(names) > 1 else [[draw] for draw in range(predictions.draws)]
    )
    scores: dict[str, Callable[[Array], Array]] = {
        "log": lambda p: -(p * np.log(np.maximum(p, np.finfo(float).tiny))).sum(1),
        "brier": lambda p: (p * (1 - p)).sum(1),
        "zero_one": lambda p: p.sum(1) - p.max(1),
    }
    out = {score: {block: np.zeros(n) for block in ("total", "aleatoric", "epistemic")} for score in scores}

    def decompose(block: slice) -> None:
        z = np.asarray(logits[block])
        member_probs = [
            mean_probs(Predictions(logits=z[:, draws], normalized=predictions.normalized)) for draws in members
        ]
        mean = np.mean(member_probs, axis=0)
        for score, entropy in scores.items():
            total, aleatoric = entropy(mean), np.mean([entropy(p) for p in member_probs], axis=0)
            out[score]["total"][block], out[score]["aleatoric"][block] = total, aleatoric
            out[score]["epistemic"][block] = np.maximum(total - aleatoric, 0) if len(members) > 1 else 0
        # These two avoid differences of large numbers: equal predictions of members give exactly 0.
        predicted = mean.argmax(1)[:, None]
        losses = [p.max(1) - np.take_along_axis(p, predicted, 1)[:, 0] for p in member_probs]
        out["zero_one"]["epistemic"][block] = np.mean(losses, axis=0)
        out["brier"]["epistemic"][block] = np.mean([((p - mean) ** 2).sum(1) for p in member_probs], axis=0)

    map_on_threads(decompose, blocks(n, max(1, BLOCK // predictions.classes)))
    return out


# ---- tuned on held-out rows


@dataclass(frozen=True)
class TunedScore:
    """The score with the best AURC on the rows that it was tuned on."""

    name: str
    option: float | None  # p, or the temperature; None if no option was better than `msp`
    aurc: float

    def __call__(self, predictions: Predictions) -> Array:
        if self.option is None:
            return summary(predictions).u["msp"]
        return pnorm(predictions, self.option) if self.name == "pnorm" else _msp_at(predictions, self.option)


@measure("tuned", needs=("logits", "labels"))
def pnorm_tuned(val: Predictions, powers: Sequence[float] = POWERS) -> TunedScore:
    """`pnorm` with the p of the lowest AURC on held-out rows, or `msp` if that has a lower AURC.

    Cattelan & Silva (2024).
    """
    return _tuned("pnorm", pnorm, powers, val)


@measure("tuned", needs=("logits", "labels"))
def msp_tuned(val: Predictions, temperatures: Sequence[float] = TEMPERATURES) -> TunedScore:
    """`msp` at the temperature of the lowest AURC on held-out rows, which may differ from the calibrated one."""
    return _tuned("msp", _msp_at, temperatures, val)


def _tuned(
    name: str, score: Callable[[Predictions, float], Array], options: Sequence[float], val: Predictions
) -> TunedScore:
    if val.labels is None or val.logits is None:
        raise Undefined(f"{name} needs held-out rows with logits and labels for tuning.")
    labelled = summary(val).labelled
    wrong = summary(val).outcomes().wrong
    best = TunedScore(name, None, aurc(summary(val).u["msp"][labelled], wrong))
    for option in options:
        candidate = aurc(score(val, option)[labelled], wrong)
        if candidate < best.aurc:
            best = TunedScore(name, float(option), candidate)
    return best


def _msp_at(predictions: Predictions, temperature: float) -> Array:
    """`msp` at a temperature: the logits divided by it."""
    if predictions.logits is None:
        raise Undefined("There are no logits to divide by a temperature.")
    u = np.empty(len(predictions))
    for block in predictions.blocks():
        rows = predictions.take(block)
        z = np.asarray(rows.logits, np.float64)
        with np.errstate(over="ignore"):  # very low logits become −inf, with probability 0
            z = (z - z.max(axis=2, keepdims=True)) / temperature
        if predictions.normalized:
            z -= np.logaddexp.reduce(z, axis=2, keepdims=True)
        u[block] = summary(Predictions(logits=z, normalized=predictions.normalized)).u["msp"]
    return u
