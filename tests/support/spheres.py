"""Points and means on the sphere."""

import numpy as np
import torch
from torch.nn.functional import normalize


def means(n, d, seed=0):
    return normalize(torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)), dim=1)


def sphere(n=200):
    """Points of the sphere of R³ and their share of its area."""
    x, weights = np.polynomial.legendre.leggauss(n)
    angle = (np.arange(2 * n) + 0.5) * np.pi / n
    z, angle = (each.ravel() for each in np.meshgrid(x, angle, indexing="ij"))
    ring = np.sqrt(1 - z**2)
    points = np.stack([ring * np.cos(angle), ring * np.sin(angle), z], 1)
    return torch.tensor(points), torch.tensor(np.repeat(weights, 2 * n) * np.pi / n)
