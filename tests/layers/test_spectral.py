"""Spectral normalisation bounds what a layer does, as a reparameterisation, and leaves the rest alone."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from nescio import backbones
from nescio.errors import BadInput
from nescio.layers.spectral import (
    Bounded,
    layer_norms,
    operator_norm,
    operator_norms,
    set_exact_vectors,
    share_above_bound,
    spectral_normalize,
)

torch.set_num_threads(1)


def largest(weight):
    return float(torch.linalg.matrix_norm(weight.detach().flatten(1), 2))


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [(nn.Linear, (7, 5)), (nn.Conv2d, (3, 6, 3)), (nn.Conv1d, (2, 4, 3)), (nn.Conv2d, (8, 8, 3, 1, 0, 1, 8))],
)
def test_set_exact_vectors__a_weight_beyond_the_target_is_brought_to_it(kind, sizes):
    layer = kind(*sizes)
    layer.weight.data *= 50
    direction = layer.weight.detach().clone()
    spectral_normalize(layer, 2.0)
    set_exact_vectors(layer)
    assert largest(layer.weight) == pytest.approx(2.0, rel=1e-5)
    assert torch.allclose(layer.weight / layer.weight.norm(), direction / direction.norm(), atol=1e-6)


@pytest.mark.parametrize("shape", [(6, 27), (27, 6)])
def test_set_exact_vectors__a_settled_bound_holds_where_two_singular_values_are_close(shape):
    """There 200 power iterations left the weight 0.4 % beyond its bound."""
    left, _, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    layer = nn.Linear(*shape[::-1])
    layer.weight.data = left @ torch.diag(torch.tensor([8.0, 7.99, 7.98, 3.0, 2.0, 1.0])) @ right
    spectral_normalize(layer, 2.0)
    set_exact_vectors(layer)
    assert largest(layer.weight) == pytest.approx(2.0, rel=1e-5)


def test_set_exact_vectors__weights_that_are_not_finite_do_not_stop_the_settling():
    layer = nn.Linear(4, 4)
    spectral_normalize(layer, 2.0)
    layer.parametrizations.weight.original.data[0, 0] = float("nan")
    set_exact_vectors(layer)
    assert torch.isfinite(layer.parametrizations.weight[0].left).all()


def test_spectral_normalize__a_weight_inside_the_bound_stays_as_it_is():
    """torch's own parametrisation always divides by σ; this one only ever shrinks."""
    ours, theirs = nn.Linear(6, 6), nn.Linear(6, 6)
    theirs.load_state_dict(ours.state_dict())
    before = ours.weight.detach().clone()
    assert largest(before) < 3
    spectral_normalize(ours, 3.0)
    nn.utils.parametrizations.spectral_norm(theirs)
    assert torch.equal(ours.weight, before)
    assert not torch.allclose(theirs.weight, before)


def test_share_above_bound__the_share_of_layers_that_a_bound_holds_back():
    """0 where the bound does nothing, 1 where every layer would stretch further without it."""

    def share(target):
        network = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
        network[2].weight.data *= 20
        spectral_normalize(network, target).eval()
        set_exact_vectors(network)
        return share_above_bound(network)

    assert [share(target) for target in (1000.0, 3.0, 0.01)] == [0, pytest.approx(1 / 3), 1]
    assert share_above_bound(nn.Linear(6, 6)) is None


def test_set_exact_vectors__backward_sees_the_normalised_weights():
    layer = nn.Linear(4, 3, bias=False).double()
    layer.weight.data *= 20
    x = torch.randn(5, 4, dtype=torch.double)
    spectral_normalize(layer, 1.0).eval()
    layer.parametrizations.weight[0].double()
    set_exact_vectors(layer)
    raw = layer.parametrizations.weight.original

    def loss():
        return layer(x).square().sum()

    (gradient,) = torch.autograd.grad(loss(), raw)
    step = 1e-5
    for place in ((0, 0), (1, 2), (2, 3)):
        with torch.no_grad():
            raw[place] += step
            set_exact_vectors(layer)
            above = float(loss())
            raw[place] -= 2 * step
            set_exact_vectors(layer)
            below = float(loss())
            raw[place] += step
        assert float(gradient[place]) == pytest.approx((above - below) / (2 * step), rel=1e-3, abs=1e-6)
    # along the weight itself nothing can change: the direction counts, the length does not
    assert abs(float((gradient * raw.detach()).sum())) < 1e-6 * float(gradient.norm() * raw.detach().norm())


def test_spectral_normalize__a_network_that_bounds_all_its_layers_at_once_is_the_one_that_bounds_them_one_by_one():
    x = torch.randn(8, 3, 16, 16)
    net = backbones.build("resnet18", 3, 32)
    for parameter in net.parameters():
        parameter.data *= 1.5
    together = spectral_normalize(net, 0.5)
    alone = copy.deepcopy(together)
    alone._forward_pre_hooks.clear()
    for _ in range(2):  # two power iterations
        outputs = [each(x) for each in (together, alone)]
        assert torch.allclose(*outputs, rtol=1e-4, atol=1e-6)
    for output in outputs:
        output.square().sum().backward()
    for one, other in zip(together.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-3, atol=1e-5 * float(other.grad.abs().max()))
    assert not any(getattr(part, "ready", None) is not None for part in together.modules())


def test_layer_norms__batch_norm_is_bounded_by_its_scale_over_its_deviation():
    norm = nn.BatchNorm2d(4)
    norm.weight.data = torch.tensor([0.5, 3.0, 1.0, -8.0])
    norm.running_var = torch.tensor([1.0, 4.0, 0.01, 4.0])
    spectral_normalize(norm, 2.0)
    assert layer_norms(norm)[""] == pytest.approx(2.0, rel=1e-5)
    norm.running_var = torch.tensor([100.0] * 4)
    assert torch.equal(norm.weight, torch.tensor([0.5, 3.0, 1.0, -8.0]))  # now within the bound


def test_layer_norms__the_bound_holds_after_training_that_pulls_against_it():
    net = nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4))
    spectral_normalize(net, 0.7)
    x = torch.randn(32, 2, 6, 6)
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    for _ in range(40):
        optimizer.zero_grad()
        (-net(x).square().mean()).backward()  # bigger answers are better: every layer wants to stretch
        optimizer.step()
    set_exact_vectors(net)
    found = layer_norms(net)
    assert set(found) == {"0", "1", "4"}
    assert max(found.values()) <= 0.7 * (1 + 1e-5)
    assert max(found.values()) > 0.6  # it does pull
    assert largest(net[4].parametrizations.weight.original) > 0.7 * 1.02


@pytest.mark.parametrize(("name", "count"), [("test_resnet", 30), pytest.param("resnet18", 40, marks=pytest.mark.slow)])
def test_layer_norms__every_layer_of_a_resnet(name, count):
    net = spectral_normalize(backbones.build(name, 3, 32), 1.0)
    layers = [each for each in net.modules() if isinstance(each, (nn.Conv2d, nn.BatchNorm2d, nn.Linear))]
    assert len(layers) == count and all(parametrize.is_parametrized(each, "weight") for each in layers)
    set_exact_vectors(net)
    found = layer_norms(net)
    assert len(found) == count and max(found.values()) <= 1 + 1e-5


def test_layer_norms__weights_survive_saving_and_copying():
    net = spectral_normalize(nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)), 0.5)
    net(torch.randn(10, 5))
    again = spectral_normalize(nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)), 0.5)
    again.load_state_dict(net.state_dict())
    x = torch.randn(3, 5)
    for other in (again, copy.deepcopy(net)):
        assert torch.equal(net.eval()(x), other.eval()(x))
    twin = copy.deepcopy(net)
    twin[1].running_var.fill_(1e-4)  # a copy's bound follows the copy's own statistics
    assert layer_norms(twin)["1"] == pytest.approx(0.5, rel=1e-4)


def test_spectral_normalize__evaluation_does_not_move_the_power_iteration():
    layer = spectral_normalize(nn.Linear(9, 9), 0.1)
    held = layer.parametrizations.weight[0]
    assert isinstance(held, Bounded)
    layer.eval()
    before = held.left.clone()
    layer(torch.randn(2, 9))
    assert torch.equal(held.left, before)
    layer.train()
    layer(torch.randn(2, 9))
    assert not torch.equal(held.left, before)


@pytest.mark.parametrize("size", [(5, 5), (3, 8), (8, 3)])
@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 1), (1, 0)])
def test_operator_norm_is_that_of_the_dense_map(stride, padding, size):
    conv = nn.Conv2d(2, 3, 3, stride, padding, bias=False)
    dense = torch.autograd.functional.jacobian(lambda x: conv(x[None]).flatten(), torch.zeros(2, *size)).flatten(1)
    assert operator_norm(conv, size, steps=500) == pytest.approx(largest(dense), rel=1e-3)


def test_operator_norms_are_those_of_the_maps_that_reach_a_layer():
    """Height and width of each: by the width alone, 6 × 16 would count as 16 × 16."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.Conv2d(2, 2, 3, bias=False))
    found = operator_norms(net, torch.zeros(1, 1, 6, 16))
    for name, shape in {"0": (1, 6, 16), "2": (2, 3, 8)}.items():
        part = net.get_submodule(name)
        dense = torch.autograd.functional.jacobian(lambda x, part=part: part(x[None]).flatten(), torch.zeros(shape))
        assert found[name] == pytest.approx(largest(dense.flatten(1)), rel=3e-2)


def test_operator_norms__the_reshaped_kernel_is_not_the_map():
    conv = nn.Conv2d(1, 1, 3, padding=1, bias=False)
    conv.weight.data.fill_(1 / 3)
    net = nn.Sequential(conv)
    assert layer_norms(net)["0"] == pytest.approx(1.0)
    assert 2.5 < operator_norms(net, torch.zeros(1, 1, 16, 16))["0"] <= 3.0


@pytest.mark.parametrize("target", [0.0, -1.0, float("nan")])
def test_spectral_normalize__a_target_must_be_above_zero(target):
    with pytest.raises(BadInput, match="above 0"):
        spectral_normalize(nn.Linear(2, 2), target)
