"""The non-isotropic von Mises–Fisher distribution: one concentration per axis (Kirchhof et al. 2022).

K is diagonal and positive, μ of length one. z has the distribution if Kz/‖Kz‖ is von Mises–Fisher around Kμ/‖Kμ‖ with
concentration ‖Kμ‖. The map z → Kz/‖Kz‖ of the sphere scales areas by det K/‖Kz‖^d, so that

    log f(z) = log C_d(‖Kμ‖) + ‖Kμ‖·cos(Kμ, Kz) + Σ_i log K_i − d·log ‖Kz‖

integrates to one; K = κ·1 is the von Mises–Fisher distribution itself.
All functions take tensors; this module does not import torch.
"""

from __future__ import annotations

import math

from nescio.arrays.types import ArrayOrTensor
from nescio.distributions.von_mises_fisher import log_normalizer


def log_density(z: ArrayOrTensor, mean: ArrayOrTensor, k: ArrayOrTensor, exact: bool = True) -> ArrayOrTensor:
    """Log-density of unit rows z (n, d) under m distributions, mean (m, d) and diagonals k (m, d), as (n, m).

    Norms and products of Kz are matrix products: no array has n·m·d numbers. `exact=False` is the approximation
    log C_d(‖Kμ‖) + ‖Kμ‖·cos(Kμ, z) + Σ_i log K_i − 2·log ‖Kμ‖, which does not integrate to one and has the same
    concentration along all axes.
    """
    d, squares = z.shape[-1], k**2
    length = (squares * mean**2).sum(-1).sqrt()  # ‖Kμ‖
    log_c, log_det = log_normalizer(length, d), k.log().sum(-1)
    if not exact:
        return log_c + z @ (k * mean).T + (log_det - 2 * length.log())
    stretch = (z**2) @ squares.T  # ‖Kz‖²
    return log_c + z @ (squares * mean).T * stretch.rsqrt() + (log_det - d / 2 * stretch.log())


def expected_likelihood(
    samples: ArrayOrTensor, mean: ArrayOrTensor, k: ArrayOrTensor, exact: bool = True
) -> ArrayOrTensor:
    """Log of ∫ f·g of n distributions, given by samples (s, n, d), and m non-isotropic ones, as (n, m).

    Without a closed form: the log of the mean of g(z) over samples z of f.
    """
    densities = log_density(samples.flatten(0, 1), mean, k, exact).unflatten(0, samples.shape[:2])
    return densities.logsumexp(0) - math.log(len(samples))
