"""A network whose last layer is known: embeddings after a ReLU, logits = WEIGHT·embedding + BIAS."""

import math

import numpy as np

from nescio import Predictions

D, C = 8, 3
WEIGHT = 1.5 * np.eye(C, D) + np.random.default_rng(1).normal(size=(C, D)) / 2
BIAS = np.array([0.3, -0.2, 0.1])


def network(seed, n=60, shift=1.5):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % C
    f = np.maximum(rng.normal(size=(n, D)) + shift * np.maximum(WEIGHT[labels], 0), 0) + rng.uniform(0.01, 0.1, (n, D))
    return Predictions(labels=labels, embeddings=f, logits=f @ WEIGHT.T + BIAS)


TRAIN, TEST = network(0), network(1, 25, 0.5)
F, Z = TEST.embeddings, TEST.logits[:, 0]
FT, ZT, YT = TRAIN.embeddings, TRAIN.logits[:, 0], TRAIN.labels


def lse(z):
    return math.log(sum(math.exp(x) for x in z))
