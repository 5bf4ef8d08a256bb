"""The expected-likelihood kernel of von Mises–Fisher distributions: integrals and large samples."""

import math

import numpy as np
import torch

from nescio.distributions import von_mises_fisher as vmf
from nescio.distributions.vmf_sampling import sample
from tests.support.spheres import means, sphere


def test_expected_likelihood__the_kernel_is_the_integral_of_the_product():
    points, area = sphere(200)
    mean, kappa = means(4, 3), torch.tensor([0.5, 3.0, 10.0, 40.0], dtype=torch.float64)
    densities = vmf.log_density(points, mean, kappa).exp()
    integral = (densities * area[:, None]).T @ densities
    assert torch.allclose(vmf.expected_likelihood(mean, kappa, mean, kappa), integral.log(), atol=1e-8)


def test_sample__the_kernel_is_the_mean_density_of_samples():
    torch.manual_seed(0)
    mean, kappa = means(3, 16), torch.tensor([5.0, 30.0, 100.0], dtype=torch.float64)
    others, other_kappas = means(2, 16, 1), torch.tensor([2.0, 8.0], dtype=torch.float64)
    closed = vmf.expected_likelihood(mean, kappa, others, other_kappas).exp()
    seen = vmf.log_density(sample(mean, kappa, 6000).flatten(0, 1), others, other_kappas).exp().view(6000, 3, 2)
    assert ((seen.mean(0) - closed).abs() < 4.5 * seen.std(0) / math.sqrt(6000)).all()


def test_expected_likelihood__arrays_and_tensors_agree_and_opposite_means_have_a_gradient():
    mean, kappa = means(3, 8), torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    tensors = vmf.expected_likelihood(mean, kappa, mean, kappa)
    arrays = vmf.expected_likelihood(*(each.numpy() for each in (mean, kappa, mean, kappa)))
    np.testing.assert_array_equal(tensors.numpy(), arrays)
    mean = mean.requires_grad_(True)
    vmf.expected_likelihood(mean, kappa, -mean.detach(), kappa).sum().backward()
    assert torch.isfinite(mean.grad).all()
