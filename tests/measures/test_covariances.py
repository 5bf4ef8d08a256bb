"""Whiteners and the inverse of a triangle."""

import numpy as np
import pytest

from nescio import Predictions
from nescio.measures import (
    covariances,
    gmm,
    mahalanobis,
)


def dump(embeddings, labels=None, **more):
    return Predictions(embeddings=embeddings, labels=labels, **more)


@pytest.mark.parametrize("fit", [gmm, mahalanobis])
def test_whiteners_of__embeddings_that_do_not_vary_end(fit):
    """However their variance is rounded, below zero too."""
    for value in (0.1, 1e3, -7.7e-5):
        same = dump(np.full((60, 4), value, np.float32), np.arange(60) % 3)
        assert np.isfinite(fit(same)(same)).all()
    whitener = covariances.whiteners_of([-5e-18 * np.eye(3)], 0.0)[0]
    assert np.isfinite(whitener).all()


@pytest.mark.parametrize("d", [1, 5, 64, 65, 200])
def test_lower_inverse__the_inverse_of_a_triangle(d):
    """Features of scales that differ by ten orders: back-substitution keeps the digits of every entry."""
    rng = np.random.default_rng(d)
    x = rng.normal(size=(3 * d, d)) * 10.0 ** rng.uniform(-5, 5, d)
    factor = np.linalg.cholesky(x.T @ x)
    inverse = covariances._lower_inverse(factor)
    scale = np.sqrt(np.diagonal(x.T @ x))
    np.testing.assert_allclose((factor / scale[:, None]) @ (inverse * scale), np.eye(d), atol=1e-10)
    assert not np.triu(inverse, 1).any()
