"""Samples of the von Mises–Fisher distribution: their moments, their gradients, and that rows stand alone."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch.nn.functional import normalize

from nescio.distributions.vmf_sampling import _tilt, sample
from nescio.distributions.von_mises_fisher import mean_resultant

GRID = [(d, kappa) for d in (8, 128, 2048) for kappa in (1.0, 10.0, 100.0, 1e3, 1e4)]


def world(n, d, kappa, dtype=torch.float64):
    torch.manual_seed(d + int(kappa))
    mean = normalize(torch.randn(1, d, dtype=torch.float64), dim=1).to(dtype).expand(n, d)
    return mean, torch.full((n,), kappa, dtype=dtype, requires_grad=True)


def slope(kappa, d):
    """A′(κ), the variance of w."""
    k = torch.tensor(kappa, dtype=torch.float64, requires_grad=True)
    return float(torch.autograd.grad(mean_resultant(k, d), k)[0])


@pytest.mark.parametrize(("d", "kappa"), [(2, 1e-3), (2, 50.0), (3, 5.0), *GRID, (512, 1e6)])
def test_sample__moments_and_their_gradient_in_kappa(d, kappa):
    mean, k = world(500, d, kappa)
    samples = sample(mean, k, 4)
    w = (samples * mean).sum(-1)
    variance = slope(kappa, d)
    assert (samples.norm(dim=-1) - 1).abs().max() < 1e-9
    assert abs(float(w.detach().mean()) - mean_resultant(kappa, d)) < 4.5 * math.sqrt(variance / w.numel())
    assert float(w.detach().var()) == pytest.approx(variance, rel=0.2)
    (gradient,) = torch.autograd.grad(w.sum(), k)
    each = gradient / 4
    assert abs(float(each.mean()) - variance) < 4.5 * float(each.std()) / math.sqrt(len(each)) + 1e-4 * variance


@pytest.mark.parametrize("d", [2, 3, 15])
def test_sample__float32_means_give_samples_of_length_one_in_few_dimensions(d):
    torch.manual_seed(0)
    mean = normalize(torch.randn(2000, d), dim=1)  # of length one to 1e-7
    samples = sample(mean, torch.full((2000,), 5.0), 20)
    assert (samples.norm(dim=-1) - 1).abs().max() < 3e-7
    assert float((samples * mean).sum(-1).mean()) == pytest.approx(mean_resultant(5.0, d), abs=0.01)


def test_sample__the_directions_across_are_uniform():
    mean, k = world(4000, 8, 20.0)
    across = sample(mean, k, 1)[0].detach()
    across = across - (across * mean).sum(-1, keepdim=True) * mean
    across = normalize(across, dim=1)
    cross = across.T @ across / len(across)
    expected = (torch.eye(8, dtype=torch.float64) - mean[0][:, None] * mean[0]) / 7
    assert (cross - expected).abs().max() < 0.02 and across.mean(0).norm() < 0.06


def test_sample__gradients_of_a_quadratic_form_are_those_of_its_closed_form():
    """E[ssᵀ] = A/κ·1 + (1 − d·A/κ)·μμᵀ."""
    d = 8
    torch.manual_seed(0)
    raw, a = torch.randn(1, d, dtype=torch.float64, requires_grad=True), torch.randn(d, dtype=torch.float64)
    k = torch.tensor([10.0], dtype=torch.float64, requires_grad=True)
    seen = []
    for _ in range(12):
        value = (sample(normalize(raw, dim=1), k, 1000) @ a).square().mean()
        seen.append(torch.cat([each.flatten() for each in torch.autograd.grad(value, [raw, k])]))
    ratio = mean_resultant(k, d)
    closed = ratio / k * (a @ a) + (1 - d * ratio / k) * (normalize(raw, dim=1) @ a).square()
    due = torch.cat([each.flatten() for each in torch.autograd.grad(closed.sum(), [raw, k])])
    found = torch.stack(seen)
    assert ((found.mean(0) - due).abs() < 4.5 * found.std(0) / math.sqrt(len(found))).all()


@pytest.mark.parametrize(("d", "kappa"), [(2, 0.5), (3, 20.0), (8, 1.0), (64, 300.0)])
def test_tilt__w_moves_along_its_distribution_function(d, kappa):
    def log_p(theta, k):
        return k * (math.cos(theta) - 1) + (d - 2) * math.log(max(math.sin(theta), 1e-300))

    def share(theta, k):
        mode = max(np.linspace(1e-3, math.pi - 1e-3, 2001), key=lambda at: log_p(at, k))
        top = log_p(mode, k)
        parts = [
            quad(lambda at: math.exp(log_p(at, k) - top), low, high, epsabs=1e-13, epsrel=1e-12, limit=200)[0]
            for low, high in ((0, theta), (theta, math.pi))
        ]
        return parts[0] / sum(parts), math.exp(log_p(theta, k) - top) / sum(parts)

    angles = {2: (0.4, 1.2, 2.5), 3: (0.1, 0.3, 0.6), 8: (0.8, 1.4, 2.2), 64: (0.3, 0.44, 0.6)}[d]
    below = torch.tensor([1 - math.cos(theta) for theta in angles], dtype=torch.float64)
    tilt = _tilt(below, torch.full_like(below, kappa), d)
    for theta, found in zip(angles, tilt.tolist(), strict=True):
        step = 1e-3 * kappa
        change = (share(theta, kappa + step)[0] - share(theta, kappa - step)[0]) / (2 * step)
        assert found == pytest.approx(math.sin(theta) * change / share(theta, kappa)[1], rel=1e-4)


def test_sample__a_row_does_not_depend_on_its_neighbours():
    mean = normalize(torch.randn(6, 20, generator=torch.Generator().manual_seed(0)), dim=1)
    kappa = torch.tensor([1.0, 5, 20, 80, 300, 1e3])
    found = []
    for others in (1.0, 1e4):
        torch.manual_seed(3)
        found.append(sample(mean, torch.cat([kappa[:3], torch.full((3,), others)]), 50)[:, :3])
    assert torch.equal(*found)


def test_sample__dtype_and_no_gradient_where_none_is_wanted():
    mean, k = world(5, 32, 10.0, torch.float32)
    samples = sample(mean, k.detach(), 3)
    assert samples.shape == (3, 5, 32) and samples.dtype == torch.float32 and not samples.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "d"), [(1, 3), (3, 16), (5, 64)])
def test_sample__means_that_were_drawn_from_the_same_seed_do_no_harm(n, d, dtype):
    """The first random numbers would lie along them, and have no direction across."""
    torch.manual_seed(0)
    mean = normalize(torch.randn(n, d, dtype=dtype), dim=1)
    torch.manual_seed(0)
    samples = sample(mean, torch.full((n,), 20.0, dtype=dtype), 3)
    assert (samples.norm(dim=-1) - 1).abs().max() < 1e-5
