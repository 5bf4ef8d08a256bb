"""Optimizers, learning-rate schedules, clipping and weight averages."""

from dataclasses import replace

import pytest
import torch

from nescio import datasets
from nescio.methods import registry
from nescio.methods.erm import ERM
from nescio.runtime import runtime_for
from nescio.training import (
    build,
    initial_method,
    optimizer_of,
    rate_at,
)
from nescio.trials import Training
from tests.support.trainings import QUICK, fitted, right, trial_of

torch.set_num_threads(1)


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.1), ("adamw", 0.003), ("lamb", 0.02)])
def test_optimizers_learn(optimizer, rate):
    plan = replace(QUICK, optimizer=optimizer, lr=rate, epochs=8, batch_size=64)
    assert right(fitted(trial_of(training=plan))) > 0.9


@pytest.mark.parametrize("decay", [0.0, 0.02])
def test_optimizer_of__lamb_moves_every_layer_by_a_share_of_its_own_length(decay):
    """You et al. 2020, algorithm 2, with and without weight decay."""
    plan = Training(optimizer="lamb", lr=0.01, weight_decay=decay)
    method = build(trial_of(training=plan), datasets.load("digits"), 0)
    optimizer = optimizer_of(plan, method, runtime_for("cpu"))
    before = [weight.detach().clone() for weight in method.parameters()]
    for weight in method.parameters():
        weight.grad = 1e-3 * torch.randn_like(weight)
    optimizer.step()
    for old, weight in zip(before, method.parameters(), strict=True):
        step = weight.grad / (weight.grad.abs() + 1e-6) + decay * old  # the first step: m/√v is the sign
        torch.testing.assert_close(weight.detach(), old - 0.01 * old.norm() / step.norm() * step, rtol=1e-4, atol=1e-6)


def test_rate_at__rates_of_the_schedules():
    step = Training(schedule="step", step_epochs=30, step_factor=0.1, epochs=100)
    assert [rate_at(step, e) for e in (0, 29.99, 30, 60, 99)] == pytest.approx([1, 1, 0.1, 0.01, 0.001])
    cosine = Training(schedule="cosine", epochs=100)
    assert [rate_at(cosine, e) for e in (0, 50, 100)] == pytest.approx([1, 0.5, 0])
    warm = Training(schedule="cosine", epochs=105, warmup=5)
    assert [rate_at(warm, e) for e in (0, 2.5, 5, 55, 105)] == pytest.approx([0, 0.5, 1, 0.5, 0], abs=1e-8)
    url = Training(schedule="cosine", epochs=32, warmup_flat=1, warmup=5, warmup_from=0.1)  # URL, appendix B
    shares = [rate_at(url, e) for e in (0, 0.99, 1, 3.5, 6, 19, 32)]
    assert shares == pytest.approx([0.1, 0.1, 0.1, 0.55, 1, 0.5, 0], abs=1e-6)
    assert [rate_at(Training(warmup_flat=2, warmup_from=0.3), e) for e in (1.99, 2)] == [0.3, 1]
    constant = Training(schedule="constant", warmup=2)
    assert [rate_at(constant, e) for e in (1, 2, 99)] == pytest.approx([0.5, 1, 1])


def test_optimizers__the_rate_that_is_used_is_the_stated_one():
    seen = []
    plan = Training(epochs=4, batch_size=128, augment="none", schedule="step", step_epochs=2, lr=0.2)
    hparams = ERM.hparams_class(lr=0.5)
    fitted(trial_of(training=plan, hparams=hparams), lambda each: seen.append((each["epoch"], each["rate"])))
    assert [epoch for epoch, _ in seen] == pytest.approx([1, 2, 3, 4])
    assert [rate for _, rate in seen] == pytest.approx([0.1, 0.1, 0.01, 0.01])


def test_optimizer_of__groups_have_their_own_rate_and_decay():
    method = registry["due"](registry["due"].hparams_class(lr=2.0, weight_decay=3.0), _setting())
    network, process, posterior = optimizer_of(
        Training(lr=0.1, weight_decay=1e-4), method, runtime_for("cpu")
    ).param_groups
    assert (network["lr"], network["weight_decay"]) == pytest.approx((0.2, 3e-4))
    assert (process["lr"], process["weight_decay"]) == pytest.approx((0.2, 0))
    assert posterior["lr"] == pytest.approx(2.0)
    counted = sum(len(each["params"]) for each in (network, process, posterior))
    assert counted == len([each for each in method.parameters() if each.requires_grad])


def _setting():
    from nescio.methods import NetworkSpec

    return NetworkSpec("mlp", 1, 8, 3)


def test_initial_method__clipping_bounds_the_step():
    plan = replace(QUICK, epochs=1, batch_size=1024, momentum=0.0, weight_decay=0.0, lr=1.0, clip=1e-3)
    trial = trial_of(training=plan)
    start = initial_method(trial, datasets.load("digits"), runtime_for("cpu"))
    method = fitted(trial)
    pairs = zip(start.parameters(), method.parameters(), strict=True)
    moved = torch.cat([(a - b).flatten() for a, b in pairs]).norm()
    assert float(moved.detach()) == pytest.approx(1e-3, rel=1e-3)


def test_initial_method__moving_average_of_the_weights(monkeypatch):
    """A method that asks for it predicts with the average of its weights over the steps."""
    trial = trial_of(training=replace(QUICK, epochs=2))
    history = []

    def update(self, x, y, step):
        loss = self.loss(x, y)
        step(loss)
        history.append(self.head.weight.detach().clone())
        return loss

    monkeypatch.setattr(ERM, "update", update)
    plain = fitted(trial)
    by_hand = initial_method(trial, datasets.load("digits"), runtime_for("cpu")).head.weight.detach().clone()
    for each in history:
        by_hand = 0.8 * by_hand + 0.2 * each
    monkeypatch.setattr(ERM, "ema", 0.8)
    averaged = fitted(trial)
    assert torch.allclose(averaged.head.weight, by_hand, atol=1e-6)
    assert not torch.allclose(averaged.head.weight, plain.head.weight, atol=1e-4)
