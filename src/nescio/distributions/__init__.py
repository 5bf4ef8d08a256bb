"""Distributions, written once over the array namespace: NumPy arrays and torch tensors take the same road."""

from nescio.distributions import von_mises_fisher

__all__ = ["von_mises_fisher"]
