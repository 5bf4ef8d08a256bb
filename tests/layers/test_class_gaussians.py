"""Class Gaussians in torch: scipy's densities, the numpy measure `gmm`, and covariances that cannot be factored."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from nescio.layers.class_gaussians import ClassGaussians, factor
from nescio.measures import gmm
from nescio.predictions import Predictions


@pytest.fixture
def world():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [60, 90, 150])
    mixing = rng.normal(size=(3, 4, 4))
    rows = np.stack([4 * label + mixing[label] @ rng.normal(size=4) for label in labels])
    order = rng.permutation(len(labels))
    return torch.from_numpy(rows[order]), torch.from_numpy(labels[order])


def fitted(rows, labels, classes=3, batch=32):
    gaussians = ClassGaussians(classes, rows.shape[1])
    gaussians.fit(zip(rows.split(batch), labels.split(batch), strict=True))
    return gaussians


def test_class_gaussians__density_is_the_mixture_of_class_gaussians_with_class_shares(world):
    rows, labels = world
    gaussians, points = fitted(rows, labels), torch.randn(20, 4, dtype=torch.float64)
    density = 0.0
    for c in range(3):
        own = rows[labels == c].numpy()
        density += len(own) / 300 * multivariate_normal(own.mean(0), np.cov(own.T)).pdf(points.numpy())
    assert np.allclose(gaussians(points).numpy(), np.log(density), rtol=1e-9)


def test_class_gaussians__it_is_the_measure_gmm_and_batches_do_not_matter(world):
    rows, labels = world
    points = torch.randn(20, 4, dtype=torch.float64)
    measured = gmm(Predictions(embeddings=rows.numpy(), labels=labels.numpy()))(Predictions(embeddings=points.numpy()))
    for batch in (1, 50, 300):
        assert np.allclose(-fitted(rows, labels, batch=batch)(points).numpy(), measured, rtol=1e-9)


def test_factor__singular_covariances_get_the_least_jitter_that_helps():
    good = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    assert torch.equal(factor(good), good)
    flat = torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))[None]
    lower = factor(flat)
    assert 0 < float((lower @ lower.mT - flat).abs().max()) < 1e-9


def test_factor__features_that_do_not_vary_end(monkeypatch):
    """Rounding left a variance of −5e-18 of a network whose units were all dead, and no jitter ever helped."""
    cholesky, calls = torch.linalg.cholesky, []

    def counted(matrix):
        calls.append(matrix)
        assert len(calls) < 40, "it goes on for ever"
        return cholesky(matrix)

    monkeypatch.setattr(torch.linalg, "cholesky", counted)
    below_zero = -5e-18 * torch.eye(3, dtype=torch.float64)[None]
    assert torch.isfinite(factor(below_zero)).all() and len(calls) > 1
    calls.clear()
    rows, labels = torch.full((60, 4), 0.1), torch.arange(60) % 3
    assert torch.isfinite(fitted(rows, labels)(rows)).all()


def test_class_gaussians__dead_features_and_small_classes_give_finite_densities():
    torch.manual_seed(0)
    rows, labels = torch.randn(40, 6), torch.arange(40) % 2
    rows[:, 5] = 0.0  # a dead unit
    rows, labels = torch.cat([rows, torch.randn(1, 6)]), torch.cat([labels, torch.tensor([2])])  # a class of one row
    gaussians = fitted(rows, labels, classes=4)  # and one without rows
    density = gaussians(torch.cat([rows, 50 * torch.randn(5, 6)]))
    assert torch.isfinite(density).all() and density[41:].max() < density[:40].min()
    assert gaussians.log_joint(rows)[:, 3].max() == -torch.inf


def test_class_gaussians__the_fit_is_saved():
    rows, labels = torch.randn(60, 3), torch.arange(60) % 3
    gaussians, other = fitted(rows, labels), ClassGaussians(3, 3)
    other.load_state_dict(gaussians.state_dict())
    assert torch.equal(gaussians(rows), other(rows))
