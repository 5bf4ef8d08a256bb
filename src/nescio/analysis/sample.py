"""Sample predictions: a real classifier of handwritten digits, trained in a second without torch."""

from __future__ import annotations

import numpy as np

from nescio.predictions import Predictions

IN_DISTRIBUTION = 8  # number of trained digits, 0 to 7; 8 and 9 are out-of-distribution
WIDTH = 96  # number of random features of the classifier
SPLITS = {"train": 0.5, "val": 0.2, "test": 0.3}  # shares of the images of digits 0 to 7


def sample_predictions(seed: int = 0) -> dict[str, Predictions]:
    """Predictions `train`, `val`, `test` and `unknown` of a logistic regression on random features of 8×8 images.

    The regression is trained on few noisy images of the digits 0 to 7, so that it makes errors to analyse. The split
    `unknown` contains the digits 8 and 9.
    """
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(seed)
    pixels, digits = load_digits(return_X_y=True)
    pixels = pixels / 16 + rng.normal(0, 0.18, pixels.shape)
    turn = rng.normal(0, 1 / 8, (pixels.shape[1], WIDTH))
    features = np.maximum(pixels @ turn + rng.uniform(-0.3, 0.3, WIDTH), 0)
    in_distribution = rng.permutation(np.flatnonzero(digits < IN_DISTRIBUTION))
    ends = np.cumsum([round(share * len(in_distribution)) for share in SPLITS.values()])[:-1]
    rows = dict(zip(SPLITS, np.split(in_distribution, ends), strict=True))
    model = LogisticRegression(C=30.0, max_iter=1000).fit(features[rows["train"]], digits[rows["train"]])

    def predict(positions: np.ndarray, ood: bool) -> Predictions:
        logits = features[positions] @ model.coef_.T + model.intercept_
        return Predictions(
            index=positions,
            labels=digits[positions],
            in_distribution=np.zeros(len(positions), bool) if ood else None,
            logits=logits.astype(np.float32),
            embeddings=features[positions].astype(np.float32),
        )

    splits = {name: predict(np.sort(positions), ood=False) for name, positions in rows.items()}
    return splits | {"unknown": predict(np.flatnonzero(digits >= IN_DISTRIBUTION), ood=True)}
