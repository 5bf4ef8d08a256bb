"""A trained score that predicts from embeddings which of two rows has the larger loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from nescio.arrays.parallel import one_blas_thread
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures._softmax_pass import summary
from nescio.measures._spec import measure
from nescio.measures.row_tools import by_blocks, embeddings_of, float64_rows
from nescio.predictions import Predictions
from nescio.progress import track

WIDTH, MARGIN, SLOPE, FLOOR = 512, 0.1, 0.01, 1e-6  # hidden units, margin of the cost, slope of LeakyReLU, minimum u
BETAS, DECAY, EPSILON = (0.8, 0.95), 1e-4, 1e-8  # betas, weight decay and epsilon of AdamW
WARM_UP = 0.05  # share of the steps with a rising learning rate
HELD_OUT = 5  # every fifth row is held out for selecting the best step
SELECTIONS = 10  # number of evaluations on the held-out rows
MIN_ROWS, LEAST_WRONG = 100, 0.001  # minimum number of rows and minimum share of wrong predictions


@dataclass(frozen=True, eq=False)
class LossOrder:
    """u = softplus of a network with two hidden layers on the embedding; only its order is meaningful."""

    shift: Array  # (d,) mean of the training embeddings
    scale: Array  # (d,) reciprocal standard deviation of the training embeddings
    layers: Sequence[Array]  # W₁ (d, 512), b₁, W₂ (512, 512), b₂, W₃ (512, 1), b₃

    def __call__(self, predictions: Predictions) -> Array:
        def score(x: Array, _: slice) -> Array:
            return _forward(self.layers, (x - self.shift) * self.scale)[-1]

        return by_blocks(predictions, score, "loss_order", len(self.shift))

    def save(self, path: str | Path) -> Path:
        """Write an .npz file."""
        target = Path(path)
        if target.suffix != ".npz":
            raise BadInput(f"{target} ends in {target.suffix or 'nothing'}; a loss order is kept as .npz.")
        layers = {f"layer{number}": layer for number, layer in enumerate(self.layers)}
        np.savez(target, allow_pickle=False, shift=self.shift, scale=self.scale, **layers)
        return target

    @staticmethod
    def load(path: str | Path) -> LossOrder:
        """Read what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            return LossOrder(arrays["shift"], arrays["scale"], [arrays[f"layer{number}"] for number in range(6)])
        except (OSError, ValueError, KeyError) as error:
            raise BadInput(f"{path} contains no loss order that nescio wrote.") from error


@measure("tuned", needs=("embeddings", "logits", "labels"), example={"steps": 100}, trains=True)
def loss_order(
    rows: Predictions, *, steps: int = 600, batch: int = 256, rate: float = 1e-3, seed: int = 0
) -> LossOrder:
    """A small network on the embedding, trained on held-out rows to predict which of two has the larger loss.

    Rows of a batch are paired, and a pair with losses ℓ costs max(0, 0.1 − s·(u₁ − u₂)), s = 1 if ℓ₁ > ℓ₂ else −1. Two
    hidden layers of 512, AdamW, a rate that rises and then falls by a cosine; the best step is selected
    on a fifth of the rows. Rows with a loss of almost 0 raise an error: give rows that the network was not trained on.
    Kirchhof et al. (2024), pretrained visual uncertainties, without their augmented images.
    """
    embeddings = embeddings_of(rows, "loss_order")
    if rows.logits is None or rows.labels is None:
        raise Undefined("loss_order is trained on losses, which need logits and labels.")
    if steps < 1 or batch < 2 or rate <= 0:
        raise BadInput(
            f"loss_order needs steps of at least 1, batch of at least 2 and rate above 0, got {steps}, {batch}, {rate}."
        )
    labelled, outcomes = np.flatnonzero(summary(rows).labelled), summary(rows).outcomes()
    if len(labelled) < MIN_ROWS:
        raise Undefined(f"loss_order needs {MIN_ROWS} labelled rows or more, got {len(labelled)}.")
    if outcomes.wrong.mean() < LEAST_WRONG:
        raise Undefined(
            f"{100 * (1 - outcomes.wrong.mean()):.4g} % of the predictions are right: training reduced the loss to 0, "
            "so its order means nothing. Fit loss_order on rows that the network was not trained on."
        )
    x = float64_rows(embeddings, labelled)
    shift, deviation = x.mean(0), x.std(0)
    scale = np.where(deviation > 0, 1 / np.where(deviation > 0, deviation, 1), 0)
    x = ((x - shift) * scale).astype(np.float32)
    layers = _learn(x, outcomes.log_loss, steps, batch, rate, np.random.default_rng(seed))
    return LossOrder(shift, scale, [layer.astype(np.float64) for layer in layers])


@one_blas_thread()
def _learn(x: Array, losses: Array, steps: int, batch: int, rate: float, rng: np.random.Generator) -> list[Array]:
    """The layers, float32, of the step with the lowest cost on the held-out rows."""
    order = rng.permutation(len(x))
    held_out, training_rows = order[::HELD_OUT], np.delete(order, np.s_[::HELD_OUT])
    sizes = (x.shape[1], WIDTH, WIDTH, 1)
    layers: list[Array] = []
    for inputs, outputs in pairwise(sizes):
        layers += [rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs)), np.zeros(outputs)]
    layers = [layer.astype(np.float32) for layer in layers]
    means, squares = ([np.zeros_like(layer) for layer in layers] for _ in range(2))
    best_layers, lowest_cost = layers, np.inf
    rate *= float(np.sqrt(batch / 256))
    for step in track(range(1, steps + 1), "loss order"):
        rows = rng.choice(training_rows, min(batch, len(training_rows)) // 2 * 2, replace=False)
        gradients = _gradients(layers, x[rows], losses[rows])
        scheduled = rate * min(1, step / (WARM_UP * steps)) * 0.5 * (1 + np.cos(np.pi * step / steps))
        layers = [_adam(*arrays, step, scheduled) for arrays in zip(layers, gradients, means, squares, strict=True)]
        if step % max(1, steps // SELECTIONS) == 0:
            cost = _cost(_forward(layers, x[held_out])[-1], losses[held_out])[0]
            best_layers, lowest_cost = (layers, cost) if cost < lowest_cost else (best_layers, lowest_cost)
    return best_layers


def _adam(layer: Array, gradient: Array, first_moment: Array, second_moment: Array, step: int, rate: float) -> Array:
    """One step of AdamW; the moments are changed in place."""
    for moment, value, beta in ((first_moment, gradient, BETAS[0]), (second_moment, gradient**2, BETAS[1])):
        moment *= beta
        moment += (1 - beta) * value
    size = np.sqrt(second_moment / (1 - BETAS[1] ** step)) + EPSILON
    decayed = layer * np.float32(1 - rate * DECAY)
    return np.asarray(decayed - np.float32(rate / (1 - BETAS[0] ** step)) * first_moment / size, np.float32)


def _forward(layers: Sequence[Array], x: Array) -> list[Array]:
    """Both hidden layers (n, 512), the output of the last layer (n,), and u (n,)."""
    w1, b1, w2, b2, w3, b3 = layers
    h1 = x @ w1 + b1
    h1 = np.where(h1 > 0, h1, SLOPE * h1)
    h2 = h1 @ w2 + b2
    h2 = np.where(h2 > 0, h2, SLOPE * h2)
    raw = (h2 @ w3 + b3)[:, 0]
    return [h1, h2, raw, np.logaddexp(0, raw) + FLOOR]


def _cost(u: Array, losses: Array) -> tuple[float, Array]:
    """Mean cost of the pairs (0, 1), (2, 3) …, and its gradient with respect to u (n,)."""
    pairs = len(u) // 2
    a, b = u[: 2 * pairs].reshape(-1, 2).T
    sign = np.where(losses[0 : 2 * pairs : 2] > losses[1 : 2 * pairs : 2], 1.0, -1.0)
    cost = MARGIN - sign * (a - b)
    by_u = np.zeros_like(u)
    by_u[0 : 2 * pairs : 2] = -sign * (cost > 0) / pairs
    by_u[1 : 2 * pairs : 2] = sign * (cost > 0) / pairs
    return float(np.maximum(cost, 0).mean()), by_u


def _gradients(layers: Sequence[Array], x: Array, losses: Array) -> list[Array]:
    """Gradients of the mean cost of pairs with respect to every layer."""
    _, _, w2, _, w3, _ = layers
    h1, h2, raw, u = _forward(layers, x)
    by_last = (_cost(u, losses)[1] / (1 + np.exp(-raw)))[:, None].astype(x.dtype)
    by_h2 = by_last @ w3.T * np.where(h2 > 0, np.float32(1), np.float32(SLOPE))
    by_h1 = by_h2 @ w2.T * np.where(h1 > 0, np.float32(1), np.float32(SLOPE))
    return [x.T @ by_h1, by_h1.sum(0), h1.T @ by_h2, by_h2.sum(0), h2.T @ by_last, by_last.sum(0)]
