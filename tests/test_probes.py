"""What the network alone can tell: the Jacobian of what it really says, and the mean over augmented copies."""

import numpy as np
import pytest
import torch
from torch import nn

from nescio import datasets, probes
from nescio.datasets import Batches
from nescio.datasets.image_set import ImageSet
from nescio.methods import Method, NetworkSpec, Output, registry
from nescio.networks.models import network_of_trial
from nescio.predict import load_predictions, predict_images, probe_facts, probe_images, probe_step
from nescio.runtime import runtime_for
from nescio.testing.evidence import small_trial
from nescio.work.steps import Context
from nescio.work.store import Store
from tests.support.reference import load, note

torch.set_num_threads(1)


class Tiny(Method):
    """A method around any network."""

    def __init__(self, net, temperature=1.0):
        nn.Module.__init__(self)
        self.net, self.temperature = net, temperature

    def forward(self, x):
        logits = self.net(x)
        return Output(logits if logits.dim() == 3 else logits[:, None])


def network(classes, seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, classes)).double()


def full_jacobian(methods, x):
    """‖∂f/∂x‖² row by row, by torch's own Jacobian."""

    def f(row):
        return torch.stack([torch.softmax(each.net(row[None]) / each.temperature, -1)[0] for each in methods]).mean(0)

    return torch.stack([torch.autograd.functional.jacobian(f, row).square().sum() for row in x])


@pytest.mark.parametrize("temperatures", [(1.0,), (2.5,), (0.5, 3.0)])
def test_jacobian_norm__jacobian_is_exact(temperatures):
    methods = [Tiny(network(5, seed), t) for seed, t in enumerate(temperatures)]
    x = torch.randn(7, 3, 2, 2, dtype=torch.double)
    assert torch.allclose(probes.jacobian_norm(methods, x).double(), full_jacobian(methods, x), rtol=1e-4)


def test_jacobian_norm__jacobian_of_an_average_is_not_the_average_of_jacobians():
    methods = [Tiny(network(4, 1)), Tiny(network(4, 2))]
    x = torch.randn(5, 3, 2, 2, dtype=torch.double)
    one, two, both = (probes.jacobian_norm(group, x) for group in (methods[:1], methods[1:], methods))
    assert not torch.allclose(both, (one + two) / 2, rtol=0.05)


def test_jacobian_norm__draws_are_averaged_before_the_gradient():
    net = network(6, 0)
    several = Tiny(lambda x: net(x).unflatten(1, (2, 3)))
    x = torch.randn(4, 3, 2, 2, dtype=torch.double)

    def f(row):
        return torch.softmax(net(row[None]).unflatten(1, (2, 3)), -1).mean(1)[0]

    truth = torch.stack([torch.autograd.functional.jacobian(f, row).square().sum() for row in x])
    assert torch.allclose(probes.jacobian_norm([several], x).double(), truth, rtol=1e-4)


def test_jacobian_norm__hutchinson_is_unbiased_for_many_classes(monkeypatch):
    methods = [Tiny(network(80, 0))]
    x = torch.randn(3, 3, 2, 2, dtype=torch.double)
    truth = full_jacobian(methods, x)
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr(probes, "HUTCHINSON", 1000)
    assert torch.allclose(probes.jacobian_norm(methods, x, generator).double(), truth, rtol=0.1)
    monkeypatch.setattr(probes, "EXACT_CLASSES", 100)
    assert torch.allclose(probes.jacobian_norm(methods, x).double(), truth, rtol=1e-4)


def test_jacobian_norm__jacobian_against_the_original():
    """The original takes the gradient of the *summed logits* and its mean over pixels; the paper's ∇f is of all C
    softmax outputs. From the stored Jacobian J of the logits at one image, ours must be ‖(diag p − p pᵀ) J‖²."""
    arrays = load("uimnet_measures")
    told = note("uimnet_measures")["cross_check"]
    logit_jacobian = arrays["x_full_jacobian_row0"].reshape(6, -1)
    original = np.square(logit_jacobian.sum(0)).mean()
    assert original == pytest.approx(arrays["Jacobian"][0], rel=1e-9)
    assert np.square(logit_jacobian).sum() == pytest.approx(told["frobenius_sum"], rel=1e-9)
    conv = nn.Conv2d(3, 10, 3).double()
    conv.weight.data, conv.bias.data = (torch.from_numpy(arrays[f"w_featurizer.c.{n}"]) for n in ("weight", "bias"))
    head = nn.Linear(10, 6).double()
    head.weight.data, head.bias.data = (torch.from_numpy(arrays[f"w_classifier.{n}"]) for n in ("weight", "bias"))
    x = torch.from_numpy(arrays["x"])
    net = next(
        each
        for padding in (0, 1)
        for act in (nn.ReLU(), nn.Tanh(), nn.Identity())
        if np.allclose(
            (each := _assembled(conv, padding, act, head))(x).detach().numpy(), arrays["logits"], rtol=1e-6, atol=1e-9
        )
    )
    p = np.exp(arrays["logits"][0]) / np.exp(arrays["logits"][0]).sum()
    truth = np.square((np.diag(p) - np.outer(p, p)) @ logit_jacobian).sum()
    ours = probes.jacobian_norm([Tiny(net)], x)
    assert float(ours[0]) == pytest.approx(truth, rel=1e-4)
    assert float(ours[0]) != pytest.approx(original, rel=0.1)


def _assembled(conv, padding, act, head):
    conv.padding = (padding, padding)
    return nn.Sequential(conv, act, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def test_jacobian_norm__the_summed_softmax_has_no_gradient_but_the_jacobian_has():
    net = network(5, 0)
    x = torch.randn(4, 3, 2, 2, dtype=torch.double, requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.softmax(net(x), -1).sum(), x)
    assert gradient.abs().max() < 1e-12
    assert probes.jacobian_norm([Tiny(net)], x).min() > 1e-6


def test_augmented_log_probs__augmentation_averages_probabilities():
    methods = [Tiny(network(4, 1)), Tiny(network(4, 2), 2.0)]
    views = [torch.randn(6, 3, 2, 2, dtype=torch.double) for _ in range(5)]
    with torch.no_grad():
        said = probes.augmented_log_probs(methods, views)
        p = torch.stack([torch.softmax(m.net(v) / m.temperature, -1) for m in methods for v in views])
    assert torch.allclose(said.exp().double(), p.mean(0), rtol=1e-5)
    assert (said.exp().max(1).values < p.max(2).values.mean(0) - 1e-4).any()  # −max of a mean is not a mean of −max
    certain = Tiny(lambda x: torch.tensor([[0.0, 500.0]]).expand(len(x), 2))
    assert torch.isfinite(probes.augmented_log_probs([certain], views[:1])).all()


def test_how_jacobian__the_exact_jacobian_of_many_classes():
    methods = [Tiny(network(80, 0)), Tiny(network(80, 1), 2.0)]
    x = torch.randn(3, 3, 2, 2, dtype=torch.double)
    truth = full_jacobian(methods, x)
    assert torch.allclose(probes.jacobian_norm(methods, x, exact=True).double(), truth, rtol=1e-4)
    estimate = probes.jacobian_norm(methods, x, torch.Generator().manual_seed(0)).double()
    assert not torch.allclose(estimate, truth, rtol=1e-2)
    assert probes.how_jacobian(80, exact=True) == probes.how_jacobian(16) == "exact"
    assert probes.how_jacobian(17) == "estimated from 16 random directions"


def test_jacobian_norm__all_directions_see_the_same_draws_and_the_next_call_sees_others():
    """Of a network that scales its logits by a random number, every row of the Jacobian is scaled by the same one."""
    net = network(40, 0)
    factors = []

    def random_scale(x):
        factors.append(1 + torch.rand(()).double())
        return net(x) * factors[-1]

    x = torch.randn(3, 3, 2, 2, dtype=torch.double)
    torch.manual_seed(0)
    first = probes.jacobian_norm([Tiny(random_scale)], x, exact=True)
    assert len(factors) > 2 and len(set(map(float, factors))) == 1
    truth = full_jacobian([Tiny(net, float(1 / factors[0]))], x)
    assert torch.allclose(first.double(), truth, rtol=1e-4)
    probes.jacobian_norm([Tiny(random_scale)], x, exact=True)
    assert factors[-1] != factors[0]


def test_probes__what_was_done_is_kept_beside_the_scores(tmp_path):
    trial = small_trial("erm", backbone="mlp", epochs=2)
    context, images = Context(Store(tmp_path), device="cpu"), ImageSet("digits", limit=20)
    steps = {exact: probe_step([trial], [1.0], images, exact=exact) for exact in (False, True)}
    assert steps[False].key != steps[True].key
    for step in steps.values():
        step.run(context, wait=True)
        assert probe_facts(step, context.store) == {"jacobian": "exact"}, "ten classes are never estimated"
    few, many = (load_predictions(step, context.store).scores["jacobian"] for step in steps.values())
    np.testing.assert_array_equal(few, many)


@pytest.mark.parametrize("name", ["due", "erm", "mc-dropout", "mimo", "mixup", "oc", "rbf", "rnd", "soft-labels"])
def test_probes__every_method_can_be_probed_after_it_has_predicted(name):
    cls, dataset, here = registry[name], datasets.load("digits"), runtime_for("cpu")
    torch.manual_seed(0)
    method = cls(cls.hparams_class(), NetworkSpec("mlp", 1, 8, 3, rows=10)).eval()
    shown = ImageSet("digits", classes=(0, 1, 2)).load().take(np.arange(150))  # two batches
    with torch.no_grad():
        method.prepare(Batches(shown.images, dataset, here.device, batch=100))
    predict_images(method, network_of_trial(small_trial(name, backbone="mlp")), shown, None, here)
    found = probe_images([method], shown, here, "shift", seed=0)
    assert found.scores["jacobian"].shape == (150,) and (found.scores["jacobian"] > 0).all()
    assert np.allclose(np.exp(found.variants["tta"]).sum(1), 1, atol=1e-4)
    assert ("native" in found.scores) == (name not in ("erm", "mimo", "rbf"))
    pair = probe_images([method, method], shown, here, "shift", seed=0)
    assert "native" not in pair.scores
    if name != "mc-dropout":
        assert np.allclose(pair.scores["jacobian"], found.scores["jacobian"], rtol=1e-3)


def test_jacobian_norm__probing_rows_does_not_depend_on_their_number():
    dataset, here = datasets.load("digits"), runtime_for("cpu")
    torch.manual_seed(0)
    method = registry["erm"](registry["erm"].hparams_class(), NetworkSpec("conv", 1, 8, 10)).eval()
    x = next(iter(Batches(dataset.test, dataset, here.device, batch=20)))[0]
    whole = probes.jacobian_norm([method], x)
    single = torch.cat([probes.jacobian_norm([method], row[None]) for row in x])
    assert torch.allclose(whole, single, rtol=1e-3, atol=1e-9)
