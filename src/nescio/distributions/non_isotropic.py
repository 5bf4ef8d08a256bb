"""The non-isotropic von Mises–Fisher distribution: another concentration along every axis (Kirchhof et al. 2022).

K is diagonal and positive, μ of length one. z has the distribution if Kz/‖Kz‖ is von Mises–Fisher around Kμ/‖Kμ‖ with
concentration ‖Kμ‖. The sphere's map z → Kz/‖Kz‖ stretches areas by det K/‖Kz‖^d, so that

    log f(z) = log C_d(‖Kμ‖) + ‖Kμ‖·cos(Kμ, Kz) + Σ_i log K_i − d·log ‖Kz‖

integrates to one; K = κ·1 is the von Mises–Fisher distribution itself. For tensors; torch is never imported here.
"""

from __future__ import annotations

import math

from nescio.arrays.types import ArrayOrTensor
from nescio.distributions.von_mises_fisher import log_normalizer


def log_density(z: ArrayOrTensor, mean: ArrayOrTensor, k: ArrayOrTensor, exact: bool = True) -> ArrayOrTensor:
    """Log-density of unit rows z (n, d) under m distributions, mean (m, d) and diagonals k (m, d), as (n, m).

    Norms and products of Kz are matrix products: nothing of n·m·d numbers is made. Where not `exact`, the approximation
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
    """Log of ∫ f·g of n distributions, of which samples (s, n, d) are given, and m non-isotropic ones, as (n, m).

    It has no closed form: the log of the mean of g(z) over samples z of f.
    """
    densities = log_density(samples.flatten(0, 1), mean, k, exact).unflatten(0, samples.shape[:2])
    return densities.logsumexp(0) - math.log(len(samples))
