"""A small set of images with label maps: two rectangles on a ground, and a corner that is void."""

import numpy as np

VOID = 255
COLOURS = np.array([[60, 60, 60], [200, 80, 60], [60, 190, 90]])


def write_shapes(path, train=40, test=8, shape=(24, 40)):
    """npz:PATH of images whose pixels are of three classes."""
    rng, arrays = np.random.default_rng(0), {"void": np.array(VOID)}
    for part, n in (("train", train), ("test", test)):
        labels = np.zeros((n, *shape), np.uint8)
        for image in labels:
            for label in (1, 2):
                top, left = rng.integers(0, shape[0] - 12), rng.integers(0, shape[1] - 16)
                image[top : top + 12, left : left + 16] = label
        pixels = (COLOURS[labels] + rng.normal(0, 25, (*labels.shape, 3))).clip(0, 255).astype(np.uint8)
        labels[:, :6, :9] = VOID
        arrays |= {f"x_{part}": pixels, f"y_{part}": labels}
    np.savez(path, **arrays)
    return f"npz:{path}"
