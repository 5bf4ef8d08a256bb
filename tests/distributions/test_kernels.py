"""Kernels between distributions, and the non-isotropic density: closed forms, integrals, large samples."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from nescio.distributions import non_isotropic
from nescio.distributions import von_mises_fisher as vmf
from nescio.distributions.vmf_sampling import sample


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


def test_the_kernel_is_the_integral_of_the_product():
    points, area = sphere(200)
    mean, kappa = means(4, 3), torch.tensor([0.5, 3.0, 10.0, 40.0], dtype=torch.float64)
    densities = vmf.log_density(points, mean, kappa).exp()
    integral = (densities * area[:, None]).T @ densities
    assert torch.allclose(vmf.expected_likelihood(mean, kappa, mean, kappa), integral.log(), atol=1e-8)


def test_the_kernel_is_the_mean_density_of_samples():
    torch.manual_seed(0)
    mean, kappa = means(3, 16), torch.tensor([5.0, 30.0, 100.0], dtype=torch.float64)
    others, other_kappas = means(2, 16, 1), torch.tensor([2.0, 8.0], dtype=torch.float64)
    closed = vmf.expected_likelihood(mean, kappa, others, other_kappas).exp()
    seen = vmf.log_density(sample(mean, kappa, 6000).flatten(0, 1), others, other_kappas).exp().view(6000, 3, 2)
    assert ((seen.mean(0) - closed).abs() < 4.5 * seen.std(0) / math.sqrt(6000)).all()


def test_arrays_and_tensors_agree_and_opposite_means_have_a_gradient():
    mean, kappa = means(3, 8), torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    tensors = vmf.expected_likelihood(mean, kappa, mean, kappa)
    arrays = vmf.expected_likelihood(*(each.numpy() for each in (mean, kappa, mean, kappa)))
    np.testing.assert_array_equal(tensors.numpy(), arrays)
    mean = mean.requires_grad_(True)
    vmf.expected_likelihood(mean, kappa, -mean.detach(), kappa).sum().backward()
    assert torch.isfinite(mean.grad).all()


# ---- the non-isotropic distribution


def test_its_density_integrates_to_one_and_the_approximation_does_not():
    points, area = sphere()
    mean = means(3, 3, 5)
    k = torch.tensor([[1.0, 2.0, 5.0], [8.0, 1.0, 3.0], [4.0, 4.0, 4.0]], dtype=torch.float64)
    exact, rough = (area @ non_isotropic.log_density(points, mean, k, exact).exp() for exact in (True, False))
    assert torch.allclose(exact, torch.ones(3, dtype=torch.float64), atol=1e-8)
    assert rough[1] > 1.5 and float(rough[2]) == pytest.approx(4.0)  # κ^(d − 2) where all axes are alike


def test_one_concentration_for_all_axes_is_the_plain_distribution():
    z, mean = means(5, 64), means(3, 64, 1)
    kappa = torch.tensor([0.7, 20.0, 900.0], dtype=torch.float64)
    plain = vmf.log_density(z, mean, kappa)
    assert torch.allclose(non_isotropic.log_density(z, mean, kappa[:, None].expand(3, 64)), plain, atol=1e-9)


def test_the_approximation_is_its_formula():
    z, mean, k = means(4, 6), means(2, 6, 1), 1 + torch.rand(2, 6, dtype=torch.float64)
    found = non_isotropic.log_density(z, mean, k, exact=False)
    for c in range(2):
        scaled = k[c] * mean[c]
        length = float(scaled.norm())
        for row in range(4):
            cosine = float(scaled @ z[row]) / length
            due = vmf.log_normalizer(length, 6) + length * cosine + float(k[c].log().sum()) - 2 * math.log(length)
            assert float(found[row, c]) == pytest.approx(due, rel=1e-9)


def test_the_sampled_kernel_tends_to_the_closed_form_where_there_is_one():
    torch.manual_seed(0)
    mean, kappa = means(3, 16), torch.tensor([10.0, 40.0, 100.0], dtype=torch.float64)
    others, wide = means(2, 16, 1), torch.tensor([3.0, 6.0], dtype=torch.float64)
    closed = vmf.expected_likelihood(mean, kappa, others, wide)
    found = non_isotropic.expected_likelihood(sample(mean, kappa, 6000), others, wide[:, None].expand(2, 16))
    assert torch.allclose(found, closed, atol=0.1)
