"""The random-feature Gaussian process against its kernel, its closed form, and the stored values of others."""

import math

import numpy as np
import pytest
import torch

from nescio.layers.random_features import MEAN_FIELD, RandomFeatureGP, dempster_shafer, mean_field
from tests.support.reference import load


def test_random_feature_gp__products_of_random_features_are_the_kernel():
    torch.manual_seed(0)
    gp, x = RandomFeatureGP(3, 4, 2_000), torch.randn(6, 3)
    gp.lengthscale.fill_(1.7)
    expanded = gp.expand(x)
    kernel = torch.exp(-torch.cdist(x, x).square() / (2 * 1.7**2))
    assert torch.allclose(expanded @ expanded.T, kernel, atol=0.08)


def test_random_feature_gp__the_posterior_is_exact_whatever_the_batches():
    torch.manual_seed(0)
    gp = RandomFeatureGP(5, 3, 64)
    x = torch.randn(90, 5)
    assert torch.equal(gp.precision, torch.eye(64))
    gp.fit(x.split(7))
    expanded = gp.expand(x).double()
    truth = torch.eye(64) + expanded.T @ expanded
    assert torch.allclose(gp.precision.double(), truth, atol=1e-5)
    assert torch.allclose(gp.covariance.double(), truth.inverse(), atol=1e-6)
    again = gp.precision.clone()
    gp.fit(x.split(90))
    assert torch.allclose(gp.precision, again, atol=1e-5)
    # of a Gaussian process: k(x, x) − k(x, X)·(K + I)⁻¹·k(X, x)
    new = gp.expand(torch.randn(8, 5)).double()
    cross = new @ expanded.T
    by_kernel = (new @ new.T - cross @ torch.linalg.solve(expanded @ expanded.T + torch.eye(90), cross.T)).diagonal()
    assert torch.allclose(gp.variance(new.float()).double(), by_kernel, atol=1e-5)


def test_random_feature_gp__variance_falls_at_the_data_and_returns_to_the_prior_far_away():
    torch.manual_seed(0)
    gp = RandomFeatureGP(2, 2, 512)
    gp.fit([torch.randn(500, 2)])
    near, far = gp.variance(gp.expand(torch.zeros(1, 2))), gp.variance(gp.expand(torch.full((1, 2), 40.0)))
    assert near < 0.05 and far > 0.5


def test_mean_field__precision_covariance_and_mean_field_logits_of_the_original():
    """The original omits the factor √(2/D) of the features; all else must agree."""
    stored = {name: torch.from_numpy(np.asarray(array)) for name, array in load("pract_sngp_sum").items()}
    count = stored["W_random"].shape[1]
    gp = RandomFeatureGP(stored["W_random"].shape[0], stored["beta"].shape[1], count)
    gp.frequencies.copy_(stored["W_random"])
    gp.phases.copy_(stored["b_random"])
    gp.lengthscale.copy_(stored["kernel_scale"].sqrt())
    gp.weights.weight.data.copy_(stored["beta"].T)
    gp.fit(stored["x_train"].split(50))
    unscaled = (gp.precision.double() - torch.eye(count)) * count / 2
    assert torch.allclose(unscaled, stored["x_precision"] - torch.eye(count), atol=1e-3)
    with torch.no_grad():
        expanded = gp.expand(stored["x_test"])
        assert torch.allclose(gp.mean(expanded) * math.sqrt(count / 2), stored["logits"], atol=1e-5)
        # with the original's precision and unscaled features the layer gives the original's variances and logits
        gp.covariance.copy_(stored["x_precision"].inverse())
        variance = gp.variance(expanded * math.sqrt(count / 2))
    assert torch.allclose(variance.double(), stored["x_covariance"].diagonal(), atol=1e-5)
    ours = mean_field(stored["logits"].double(), stored["x_covariance"].diagonal())
    assert torch.allclose(ours, stored["x_mean_field_logits"], atol=1e-5)
    assert float(stored["mean_field_factor"]) == pytest.approx(MEAN_FIELD)


def test_mean_field_logits_approximate_the_mean_of_the_softmax():
    torch.manual_seed(0)
    z, variance = torch.tensor([[1.5]]), torch.tensor([2.0])
    mean = torch.sigmoid(z[0, 0] + variance.sqrt() * torch.randn(200_000)).mean()  # against a second logit fixed at 0
    assert torch.sigmoid(mean_field(z, variance))[0, 0] == pytest.approx(float(mean), abs=0.01)
    assert torch.sigmoid(z)[0, 0] > mean + 0.05


def test_dempster_shafer_is_a_share_that_falls_with_the_evidence():
    z = torch.tensor([[0.0, 0.0, 0.0], [10.0, -3.0, 0.0], [-10.0, -10.0, -10.0], [200.0, 0.0, 0.0]])
    u = dempster_shafer(z)
    assert torch.allclose(u, 3 / (3 + z.double().exp().sum(1)).float(), atol=1e-7)
    assert u[0] == 0.5 and ((u >= 0) & (u <= 1)).all() and u[2] > u[0] > u[1] > u[3]
