"""The non-isotropic von Mises–Fisher distribution: another concentration along every axis (Kirchhof et al. 2022).

K is diagonal and positive, μ of length one. z has the distribution if Kz/‖Kz‖ is von Mises–Fisher around Kμ/‖Kμ‖ with
concentration ‖Kμ‖. The sphere's map z → Kz/‖Kz‖ stretches areas by det K/‖Kz‖^d, so that

    log f(z) = log C_d(‖Kμ‖) + ‖Kμ‖·cos(Kμ, Kz) + Σ_i log K_i − d·log ‖Kz‖

integrates to one; K = κ·1 is the von Mises–Fisher distribution itself.
"""

from __future__ import annotations

import math
from typing import Any

from nescio.distributions.von_mises_fisher import log_normalizer


def log_density(z: Any, mean: Any, k: Any) -> Any:
    """Log-density of unit rows z (n, d) under m distributions, mean (m, d) and diagonals k (m, d), as (n, m).

    Tensors or arrays. Norms and products of Kz are matrix products: nothing of n·m·d numbers is made.
    """
    d = z.shape[-1]
    squares = k**2
    length = (squares * mean**2).sum(-1) ** 0.5  # ‖Kμ‖
    stretch = (z**2) @ squares.T  # ‖Kz‖²
    cosines = (z @ (squares * mean).T) / (length * stretch**0.5)
    # as one sum: its terms are of the size of d, what is left of them is not
    return log_normalizer(length, d) + length * cosines + (_log(k).sum(-1) - d / 2 * _log(stretch))


def expected_likelihood(samples: Any, mean: Any, k: Any) -> Any:
    """Log of ∫ f·g of n distributions, of which samples (s, n, d) are given, and m non-isotropic ones, as (n, m).

    There is no closed form: log of the mean over samples of g(z), z ~ f.
    """
    s, n, d = samples.shape
    densities = log_density(samples.reshape(s * n, d), mean, k).reshape(s, n, -1)
    most = densities.max(0) if not hasattr(densities, "amax") else densities.amax(0)
    return most + _log(_exp(densities - most).mean(0))
