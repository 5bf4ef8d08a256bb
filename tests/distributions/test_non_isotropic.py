"""The non-isotropic density and its kernel: closed forms, integrals, large samples."""

import math

import pytest
import torch

from nescio.distributions import non_isotropic
from nescio.distributions import von_mises_fisher as vmf
from nescio.distributions.vmf_sampling import sample
from tests.support.spheres import means, sphere

# ---- the non-isotropic distribution


def test_log_density__its_density_integrates_to_one_and_the_approximation_does_not():
    points, area = sphere()
    mean = means(3, 3, 5)
    k = torch.tensor([[1.0, 2.0, 5.0], [8.0, 1.0, 3.0], [4.0, 4.0, 4.0]], dtype=torch.float64)
    exact, rough = (area @ non_isotropic.log_density(points, mean, k, exact).exp() for exact in (True, False))
    assert torch.allclose(exact, torch.ones(3, dtype=torch.float64), atol=1e-8)
    assert rough[1] > 1.5 and float(rough[2]) == pytest.approx(4.0)  # κ^(d − 2) where all axes are alike


def test_log_density__one_concentration_for_all_axes_is_the_plain_distribution():
    z, mean = means(5, 64), means(3, 64, 1)
    kappa = torch.tensor([0.7, 20.0, 900.0], dtype=torch.float64)
    plain = vmf.log_density(z, mean, kappa)
    assert torch.allclose(non_isotropic.log_density(z, mean, kappa[:, None].expand(3, 64)), plain, atol=1e-9)


def test_log_density__the_approximation_is_its_formula():
    z, mean, k = means(4, 6), means(2, 6, 1), 1 + torch.rand(2, 6, dtype=torch.float64)
    found = non_isotropic.log_density(z, mean, k, exact=False)
    for c in range(2):
        scaled = k[c] * mean[c]
        length = float(scaled.norm())
        for row in range(4):
            cosine = float(scaled @ z[row]) / length
            due = vmf.log_normalizer(length, 6) + length * cosine + float(k[c].log().sum()) - 2 * math.log(length)
            assert float(found[row, c]) == pytest.approx(due, rel=1e-9)


def test_expected_likelihood__the_sampled_kernel_tends_to_the_closed_form_where_there_is_one():
    torch.manual_seed(0)
    mean, kappa = means(3, 16), torch.tensor([10.0, 40.0, 100.0], dtype=torch.float64)
    others, wide = means(2, 16, 1), torch.tensor([3.0, 6.0], dtype=torch.float64)
    closed = vmf.expected_likelihood(mean, kappa, others, wide)
    found = non_isotropic.expected_likelihood(sample(mean, kappa, 6000), others, wide[:, None].expand(2, 16))
    assert torch.allclose(found, closed, atol=0.1)
