"""Small dumps to try nescio on: a real classifier of handwritten digits, made in a second, without torch."""

from __future__ import annotations

import numpy as np

from nescio.predictions import Predictions

KNOWN = 8  # digits 0 to 7 are learnt; 8 and 9 are out-of-distribution
WIDTH = 96  # random features of the classifier
SPLITS = {"train": 0.5, "val": 0.2, "test": 0.3}  # shares of the images of known digits


def sample_predictions(seed: int = 0) -> dict[str, Predictions]:
    """Dumps `train`, `val`, `test` and `unknown` of a logistic regression on random features of 8×8 images.

    It learns digits 0 to 7 from few noisy images, so that it errs often enough to be worth a look, and has never seen
    the digits 8 and 9 of `unknown`.
    """
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(seed)
    pixels, digits = load_digits(return_X_y=True)
    pixels = pixels / 16 + rng.normal(0, 0.18, pixels.shape)
    turn = rng.normal(0, 1 / 8, (pixels.shape[1], WIDTH))
    features = np.maximum(pixels @ turn + rng.uniform(-0.3, 0.3, WIDTH), 0)
    known = rng.permutation(np.flatnonzero(digits < KNOWN))
    ends = np.cumsum([round(share * len(known)) for share in SPLITS.values()])[:-1]
    rows = dict(zip(SPLITS, np.split(known, ends), strict=True))
    model = LogisticRegression(C=30.0, max_iter=1000).fit(features[rows["train"]], digits[rows["train"]])

    def dump(own: np.ndarray, inside: bool) -> Predictions:
        logits = features[own] @ model.coef_.T + model.intercept_
        return Predictions(
            index=own,
            labels=digits[own],
            in_distribution=None if inside else np.zeros(len(own), bool),
            logits=logits.astype(np.float32),
            embeddings=features[own].astype(np.float32),
        )

    dumps = {name: dump(np.sort(own), True) for name, own in rows.items()}
    return dumps | {"unknown": dump(np.flatnonzero(digits >= KNOWN), False)}
