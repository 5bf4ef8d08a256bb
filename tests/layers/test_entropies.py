"""Entropies along any axis, and of draws, against SciPy."""

import numpy as np
import torch
from scipy.stats import entropy as expected

from nescio.layers.entropies import entropy, jensen_shannon


def test_entropy_is_scipys_along_any_axis():
    p = torch.randn(3, 4, 5).double().softmax(1)
    p[0, :, 0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(entropy(p, 1), expected(p, axis=1), rtol=1e-12)
    np.testing.assert_allclose(entropy(p.mT), expected(p, axis=1), rtol=1e-12)
    assert entropy(p, 1)[0, 0] == 0


def test_jensen_shannon__draws_disagree_by_the_entropy_of_their_mean_beyond_their_own():
    p = torch.randn(6, 4, 5).double().softmax(2)
    p[0] = p[0, :1]
    wanted = expected(p.mean(1), axis=1) - expected(p, axis=2).mean(1)
    np.testing.assert_allclose(jensen_shannon(p), wanted, atol=1e-12)
    assert (jensen_shannon(p) >= 0).all()
