"""Scores that modify the embedding before the last layer: each against a plain loop."""

import math

import numpy as np
import pytest

from nescio import BadInput, Predictions, Undefined, measures
from tests.support.linear_network import BIAS, FT, TEST, TRAIN, WEIGHT, D, F, Z, lse


def shaped(rows):
    return [-lse(WEIGHT @ f + BIAS) for f in rows]


def test_react():
    cut = np.quantile(FT, 0.9)
    np.testing.assert_allclose(measures.react(TRAIN)(TEST), shaped(np.minimum(f, cut) for f in F), rtol=1e-7)


def test_scale():
    k = D - round(0.85 * D)
    rows = [f * math.exp(sum(f) / sum(sorted(f)[-k:])) for f in F]
    np.testing.assert_allclose(measures.scale(TRAIN)(TEST), shaped(rows), rtol=1e-7)


@pytest.mark.parametrize("quantile", [0.5, 0.9])
def test_ash(quantile):
    rows = []
    for f in F:
        kept = sorted(f)[-(D - round(quantile * D)) :]
        pruned = np.array([v if v in kept else 0 for v in f])
        rows.append(pruned * math.exp(sum(f) / sum(kept)))
    np.testing.assert_allclose(measures.ash(TRAIN, quantile)(TEST), shaped(rows), rtol=1e-7)


def test_dice():
    contribution = WEIGHT * FT.mean(0)
    weight = np.where(contribution > np.quantile(contribution, 0.9), WEIGHT, 0)
    np.testing.assert_allclose(measures.dice(TRAIN)(TEST), [-lse(weight @ f + BIAS) for f in F], rtol=1e-7)


@pytest.mark.parametrize("name", ["react", "scale", "ash", "dice"])
def test_shaping_refuses_features_below_zero(name):
    below = Predictions(embeddings=F - 1, logits=Z)
    with pytest.raises(Undefined, match="0,"):
        getattr(measures, name)(TRAIN)(below)
    with pytest.raises(BadInput, match="between 0 and 1"):
        getattr(measures, name)(TRAIN, quantile=1.5)
