"""Radial flows: true densities, true determinants, and the stored values of Pyro's."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from nescio.layers.radial_flows import RadialFlows, masses
from tests.support.reference import load


def strong(width, classes=3, count=6):
    """Flows that bend space: parameters far from those they start with."""
    torch.manual_seed(1)
    flows = RadialFlows(classes, width, count)
    for parameter in flows.parameters():
        parameter.data.normal_(std=2.0)
    return flows


@pytest.mark.parametrize("make", [lambda: RadialFlows(4, 2, 6), lambda: strong(2), lambda: strong(5).plane()])
def test_masses__densities_integrate_to_one(make):
    assert torch.allclose(masses(make()), torch.ones(1, dtype=torch.float64), atol=5e-3)


def test_masses_add_up_what_is_there():
    class Half(RadialFlows):
        def forward(self, z):
            return super().forward(z) - np.log(2)

    assert torch.allclose(masses(Half(2, 2, 3)), torch.full((2,), 0.5, dtype=torch.float64), atol=5e-3)


def test_radial_flows__log_determinants_are_those_of_the_map():
    """q(z) is the normal density of f(z) times |det ∂f/∂z|: f is rebuilt here, its Jacobian taken by autograd."""
    flows = strong(3, classes=1, count=4)

    def f(z):
        for centre, a, b in zip(flows.centres[0], flows.softness[0], flows.strength[0], strict=True):
            a, b = (torch.nn.functional.softplus(value.double()) for value in (a, b))
            apart = z - centre.double()
            z = z + (b - a) * apart / (a + apart.norm())
        return z

    for z in torch.randn(5, 3, dtype=torch.float64):
        determinant = torch.autograd.functional.jacobian(f, z).det().abs()
        density = multivariate_normal(np.zeros(3)).logpdf(f(z).detach().numpy()) + float(determinant.log())
        assert float(flows(z[None]).detach()) == pytest.approx(density, rel=1e-9)


def test_radial_flows__pyros_flows_give_the_same_densities():
    stored = {name: torch.from_numpy(np.asarray(array)) for name, array in load("postnet_dirichlet").items()}
    classes, count, width = stored["x0"].shape
    flows = RadialFlows(classes, width, count).double()
    flows.load_state_dict(
        {"centres": stored["x0"], "softness": stored["alpha_prime"], "strength": stored["beta_prime"]}
    )
    assert torch.allclose(flows(stored["latent_after_bn"]), stored["log_q"], atol=1e-10)
