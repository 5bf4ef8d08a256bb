"""Distributions on the sphere. Closed forms take NumPy arrays and torch tensors; samples are tensors."""

from nescio.distributions import non_isotropic, vmf_sampling, von_mises_fisher

__all__ = ["non_isotropic", "vmf_sampling", "von_mises_fisher"]
