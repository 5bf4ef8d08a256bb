"""Classifiers of the URL study: heads, het-xl, losspred, losspred-order. Alive, dead when switched off, right."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import nn

from nescio import datasets, training
from nescio.backbones import MLP
from nescio.datasets import Batches
from nescio.errors import BadInput
from nescio.layers.entropies import entropy
from nescio.layers.uncertainty_head import UncertaintyHead
from nescio.methods import NetworkSpec, registry
from nescio.methods.base import first_batch
from nescio.methods.heads import ManyHeads
from nescio.methods.het_xl import HetXL
from nescio.methods.losspred import WARM, LossPred
from nescio.methods.losspred_order import LossPredOrder
from nescio.methods.mc_dropout import MCDropout
from nescio.runtime import runtime_for
from nescio.search import draw
from nescio.testing import check_method
from nescio.testing.evidence import method_evidence, small_trial
from nescio.training import FEATURES, fit, initial_method, load_method, train
from nescio.trials import Training
from nescio.work.store import Store
from tests.methods.test_methods import deceive, replace_after

torch.set_num_threads(1)
FOUR = ("heads", "het-xl", "losspred", "losspred-order")
SMALL = NetworkSpec("mlp", 1, 8, 3, rows=10)
HERE = runtime_for("cpu")
PLAN = Training(epochs=6, batch_size=64, augment="shift", schedule="cosine")


def held_out(method, trial):
    """Images that the method never saw, and their labels."""
    dataset = datasets.load(trial.data)
    return first_batch(Batches(datasets.split_dataset(dataset, trial.classes).test, dataset, HERE.device), 360)


@pytest.mark.parametrize("backbone", ["mlp", pytest.param("conv", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FOUR)
def test_transfer_methods__alive(name, backbone):
    epochs = {"losspred": 2, "heads": 6}.get(name, 4)
    assert len(check_method(name, backbone=backbone, epochs=epochs)) >= 8


# ---- switched off: how, and which evidence must see it


def one_scalar(self, embeddings, normals):
    """The noise of one number for all dimensions."""
    low, diagonal = self.factors(embeddings)
    return normals[..., :1] * low.mT.sum(1, keepdim=True) + normals[..., 1:2] * diagonal.sqrt()[:, None]


def alike(self):
    weight, bias = self.head.weight.data.view(10, -1), self.head.bias.data.view(10, -1)
    weight.copy_(weight[:1].expand_as(weight))
    bias.copy_(bias[:1].expand_as(bias))


def first_alone(self, x, y):
    return nn.functional.cross_entropy(self.logits(self.features(x))[:, 0], y)


BROKEN = [
    ("heads", "all start alike", "heads differ", ManyHeads, "__init__", replace_after(ManyHeads, alike)),
    ("heads", "one learns", "every head learnt", ManyHeads, "loss", first_alone),
    ("het-xl", "no noise", "covariance acts", HetXL, "noises", lambda self, e, normals: 0 * normals[..., 1:]),
    ("het-xl", "one number for all dimensions", "noise follows Σ", HetXL, "noises", one_scalar),
    (
        "het-xl",
        "one covariance",
        "covariance differs",
        HetXL,
        "__init__",
        replace_after(HetXL, lambda self: nn.init.zeros_(self.covariance.weight).requires_grad_(False)),
    ),
    (
        "het-xl",
        "τ fixed",
        "temperature learnt",
        HetXL,
        "__init__",
        replace_after(HetXL, lambda self: self.log_tau.requires_grad_(False)),
    ),
    ("losspred", "λ is 0", "loss predicted", LossPred, "__init__", deceive(LossPred, weight=0.0)),
    ("losspred-order", "no order", "loss predicted", LossPredOrder, "ordered", lambda self, u, losses: 0 * u.sum()),
    ("losspred-order", "the opposite order", "loss predicted", LossPredOrder, "ordered", lambda self, u, ls: None),
]


@pytest.mark.parametrize(
    ("name", "how", "what", "owner", "attribute", "broken"),
    BROKEN,
    ids=[f"{name}: {how} -> {what}" for name, how, what, *_ in BROKEN],
)
def test_transfer_methods__switched_off_is_seen(monkeypatch, name, how, what, owner, attribute, broken):
    if how == "the opposite order":
        right = LossPredOrder.ordered
        broken = lambda self, u, losses: right(self, u, -losses)  # noqa: E731
    monkeypatch.setattr(owner, attribute, broken)
    trial, dataset = small_trial(name, backbone="mlp", epochs=3), datasets.load("digits")
    method, _ = fit(trial, dataset, HERE, None, float("inf"), None)
    assert not method_evidence(method, trial, dataset, HERE)[what].passed


def test_transfer_methods__every_method_has_a_way_to_die():
    assert {name for name, *_ in BROKEN} == set(FOUR)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("heads", "heads", 1),
        ("het-xl", "rank", 0),
        ("het-xl", "samples", 0),
        ("losspred", "weight", 0.0),
        ("losspred-order", "margin", 0.0),
        ("losspred-order", "cached", 0),
    ],
)
def test_transfer_methods__a_hparams_that_would_switch_its_method_off_is_refused(name, field, value):
    with pytest.raises(BadInput, match=field):
        registry[name].hparams_class(**{field: value})


@pytest.mark.parametrize("name", FOUR)
def test_transfer_methods__drawn_hparams_build(name):
    for number in range(3):
        method = registry[name](draw(registry[name].hparams_class, number), SMALL).eval()
        with torch.no_grad():
            said = method(torch.randn(5, 1, 8, 8))
        assert said.logits.shape == (5, 10 if name == "heads" else 1, 3) and said.embeddings.shape == (5, 100)
        assert tuple(said.scores) == method.scores and all(u.shape == (5,) for u in said.scores.values())


# ---- heads


@torch.no_grad()
def test_many_heads__heads_learn_the_cross_entropy_of_their_mean_probability():
    method, x, y = (
        ManyHeads(ManyHeads.hparams_class(heads=4), SMALL),
        torch.randn(6, 1, 8, 8),
        torch.tensor([0, 1, 2, 0, 1, 2]),
    )
    p = method(x).logits.softmax(-1)
    assert float(method.loss(x, y)) == pytest.approx(float(-p.mean(1)[range(6), y].log().mean()), rel=1e-5)
    apart = float(-p[range(6), :, y].log().mean())
    assert float(method.loss(x, y)) < apart  # Jensen: the mean of the heads' own losses is another one


@torch.no_grad()
@pytest.mark.parametrize("cls", [ManyHeads, MCDropout])
def test_entropy__jsd_and_entropy_are_of_the_draws(cls):
    method = cls(cls.hparams_class(), SMALL).eval()
    method.temperature = 0.1  # as calibrated, and so that draws differ
    said = method(torch.randn(7, 1, 8, 8))
    p = (said.logits / 0.1).softmax(-1)
    assert torch.allclose(said.scores["entropy"], entropy(p.mean(1)))
    mean = p.mean(1, keepdim=True)
    divergence = (p * (p / mean).log()).sum(-1).mean(1)  # mean Kullback–Leibler divergence from the mean
    assert torch.allclose(said.scores["jsd"], divergence, atol=1e-5) and float(divergence.min()) > 1e-4
    assert cls.scores == (("entropy", "jsd") if cls is ManyHeads else ("jsd", "entropy"))


# ---- het-xl


@pytest.mark.parametrize("rank", [1, 3])
@torch.no_grad()
def test_het_xl__noise_has_the_covariance_whose_determinant_is_the_score(rank):
    torch.manual_seed(rank)
    method = HetXL(HetXL.hparams_class(rank=rank), SMALL).eval()
    embeddings = torch.randn(2, 100)
    low, diagonal = method.factors(embeddings)
    sigma = low @ low.mT + torch.diag_embed(diagonal)
    assert torch.allclose(method.log_det(embeddings), torch.logdet(sigma.double()).float(), rtol=1e-4)
    noise = method.noises(embeddings, torch.randn(2, 40_000, rank + 100))
    for drawn, wanted in zip(noise, sigma, strict=True):
        error = (torch.cov(drawn.T) - wanted).abs().max() / wanted.diagonal().max()
        beside = wanted - wanted.diagonal().diag()
        assert error < 0.03 and beside.abs().max() > 0.05


def test_het_xl_is_the_mean_softmax_over_noises():
    method, x = HetXL(HetXL.hparams_class(rank=2), SMALL).eval(), torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        method.log_tau.fill_(0.7)
        embeddings = method.features(x)
        noise = method.noises(embeddings, method.noise.expand(4, -1, -1))
        p = (method.head(embeddings[:, None] + noise) / np.exp(0.7)).softmax(-1).mean(1)
        said = method(x)
    assert torch.allclose(said.logits[:, 0].exp(), p, atol=1e-6)
    assert torch.allclose(said.scores["entropy"], entropy(p), atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(method(x[:1]).logits, said.logits[:1], atol=1e-6)  # not by its neighbours


# ---- losspred


def test_transfer_methods__the_head_has_three_hidden_layers_of_1024():
    count = lambda d: sum(weight.numel() for weight in UncertaintyHead(d).parameters())  # noqa: E731
    assert round(count(2048) / 1e6, 1) == 4.2 and round(count(512) / 1e6, 1) == 2.6  # URL, §C.7


def test_loss_pred__losspred_is_equation_8():
    method, x, y = LossPred(LossPred.hparams_class(weight=0.3), SMALL), torch.randn(6, 1, 8, 8), torch.arange(6) % 3
    said = method(x)
    losses = -said.logits[:, 0].log_softmax(1)[range(6), y]
    by_hand = losses.mean() + 0.3 * (said.scores["loss"] - losses).square().mean()
    assert method.loss(x, y).item() == pytest.approx(by_hand.item(), rel=1e-5)
    method.loss(x, y).backward()  # the square reaches the features, and the classifier only by its own loss
    own = torch.autograd.grad(losses.mean(), method.head.weight)[0]
    assert torch.allclose(method.head.weight.grad, own, atol=1e-6)


def test_loss_pred__a_warm_start_is_kept_with_the_weights():
    trial = replace(small_trial("losspred", backbone="mlp"), hparams=LossPred.hparams_class(warm=True))
    start = initial_method(trial, datasets.load("digits"), HERE)
    x, _ = held_out(start, trial)
    with torch.no_grad():
        assert float(start(x).scores["loss"].mean()) == pytest.approx(WARM, rel=0.05)
        other = registry["losspred"](trial.hparams, start.spec).eval()
        other.load_state_dict(start.state_dict())
        assert torch.equal(other(x).scores["loss"], start(x).scores["loss"])


def test_first_batch__losspred_predicts_losses_of_images_that_it_never_saw():
    trial = replace(small_trial("losspred", backbone="conv"), training=replace(PLAN, epochs=4))
    method, _ = fit(trial, datasets.load("digits"), HERE, None, float("inf"), None)
    with torch.no_grad():
        assert method.correlation(*held_out(method, trial)) > 0.5


# ---- losspred-order


def test_loss_pred_order__pairs_of_neighbours_are_ordered_by_their_losses():
    method = LossPredOrder(LossPredOrder.hparams_class(margin=0.1), SMALL)
    u, losses = torch.tensor([2.0, 1.0, 2.0, 1.0, 1.0, 1.05, 9.0]), torch.tensor([5.0, 4.0, 4.0, 5.0, 1.0, 2.0, 0.0])
    # right by more than the margin: 0; wrong by 1: 1.1; right by half a margin: 0.05; the odd one is left out
    assert float(method.ordered(u, losses)) == pytest.approx((0 + 1.1 + 0.05) / 3, rel=1e-5)


def test_loss_pred_order__the_order_gives_the_features_no_gradient():
    method, x, y = LossPredOrder(LossPredOrder.hparams_class(), SMALL), torch.randn(6, 1, 8, 8), torch.arange(6) % 3
    method.loss(x, y).backward()
    got = [parameter.grad.clone() for parameter in method.features.parameters()]
    method.zero_grad()
    method.losses(method.features(x), y).mean().backward()
    assert all(torch.equal(a, b.grad) for a, b in zip(got, method.features.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in method.uncertainty.parameters())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A store with a trained classifier, its key, its trial, and a trial that starts from it."""
    store = Store(tmp_path_factory.mktemp("store"))
    first = replace(small_trial("erm", backbone="mlp"), training=PLAN)
    key = train(first, store, HERE)
    hparams = LossPredOrder.hparams_class(cached=2)
    budget = Training(optimizer="adamw", lr=1e-3, epochs=20, batch_size=64, augment="shift", schedule="cosine")
    second = replace(first, method="losspred-order", hparams=hparams, training=budget, start=f"store:{key}")
    return store, key, first, second


@pytest.fixture
def started(trained, tmp_path):
    """A copy for each test, which may add to it."""
    store, *others = trained
    shutil.copytree(store.root, tmp_path / "store")
    return Store(tmp_path / "store"), *others


def counted(shown, forward):
    """The same forward that notes how many rows went through."""

    def counting(self, x):
        shown.append(len(x))
        return forward(self, x)

    return counting


def kept(store):
    return sorted(store.root.glob(f"{FEATURES}/*/*.safetensors"))


def test_first_batch__what_it_starts_from_stays_and_the_order_is_learnt(started):
    store, key, first, second = started
    before = load_method(key, first, store, HERE)
    method = load_method(train(second, store, HERE), second, store, HERE)
    old, new = before.state_dict(), method.state_dict()
    assert all(torch.equal(old[name], new[name]) for name in old)  # classifier and batch-norm statistics too
    x, y = held_out(method, second)
    with torch.no_grad():
        assert method.correlation(x, y) > 0.5
        assert torch.equal(method(x).logits, before(x).logits)


def test_transfer_methods__features_are_computed_once_for_all_trials(started, monkeypatch):
    store, _, _, second = started
    train(replace(second, training=replace(second.training, epochs=2)), store, HERE)
    shown = []
    monkeypatch.setattr(MLP, "forward", counted(shown, MLP.forward))
    again = replace(second, training=replace(second.training, epochs=3, lr=2e-3))
    train(again, store, HERE)
    rows = len(datasets.split_dataset(datasets.load("digits")).train)
    first, second_file = (load(path.read_bytes())[FEATURES] for path in kept(store))
    assert first.shape == (rows, 100) and not torch.equal(first, second_file)  # two augmented epochs
    passes = sum(shown) / rows  # `prepare` and the training accuracy look at images; three epochs of training do not
    assert passes <= 1.5
    plain = replace(second, training=replace(second.training, epochs=1, augment="none"))
    train(plain, store, HERE)
    assert len(kept(store)) == 3  # without augmentation all epochs are the same


def test_transfer_methods__every_epoch_shows_every_row_of_its_turn_once(started):
    store, _, _, second = started
    dataset = datasets.load("digits")
    method, stream = training.loop.begin(second, dataset, HERE, 7, store)
    cached = training.streams.cached_features(second, method, stream, store)
    files = [load(path.read_bytes())[FEATURES].float() for path in cached.files]
    orders = []
    for epoch in range(3):
        x, y, index = (torch.cat(parts) for parts in zip(*cached.epoch(epoch, 0), strict=True))
        place = torch.from_numpy(np.argsort(stream.images.index))[
            torch.searchsorted(torch.from_numpy(np.sort(stream.images.index)), index)
        ]
        assert len(place.unique()) == len(place) == len(cached) * 64
        assert torch.equal(x, files[epoch % 2][place])
        assert torch.equal(y, torch.from_numpy(stream.images.labels)[place].long())
        orders.append(place)
    assert not torch.equal(orders[0], orders[2])
    late = next(iter(cached.epoch(1, 5)))[2]
    assert torch.equal(late, list(cached.epoch(1, 0))[5][2])  # resumed in the middle


def test_first_batch__a_classifier_of_other_classes_learns_on_the_frozen_features(started):
    store, key, first, second = started
    five = replace(second, classes=(0, 1, 2, 3, 4))
    method = load_method(train(five, store, HERE), five, store, HERE)
    before = load_method(key, first, store, HERE).features.state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in method.features.state_dict().items())
    x, y = held_out(method, five)
    with torch.no_grad():
        assert float((method(x).logits[:, 0].argmax(1) == y).float().mean()) > 0.85
