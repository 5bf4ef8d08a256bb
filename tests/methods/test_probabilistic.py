"""Images as distributions, and InfoNCE: alive, dead when switched off, equal to their equations."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import spearmanr
from torch import nn
from torch.nn.functional import normalize

from nescio import datasets
from nescio.distributions.vmf_sampling import sample
from nescio.errors import BadInput
from nescio.layers.contrastive import info_nce
from nescio.layers.uncertainty_head import UncertaintyHead
from nescio.methods import NetworkSpec, _probabilistic, registry
from nescio.methods._probabilistic import Probabilistic
from nescio.methods.elk import ELK
from nescio.methods.hib import HIB
from nescio.methods.infonce import InfoNCE
from nescio.methods.mc_infonce import MCInfoNCE
from nescio.runtime import runtime_for
from nescio.search import draw
from nescio.testing import check_method
from nescio.testing.evidence import method_evidence, small_trial
from nescio.training import fit, initial_method, optimizer_of, weights_of
from nescio.trials import Training

torch.set_num_threads(1)
FIVE = ("infonce", "mc-infonce", "elk", "nivmf", "hib")
TINY = NetworkSpec("mlp", 1, 8, 3, rows=40)


def made(name, **fields):
    torch.manual_seed(0)
    return registry[name](registry[name].hparams_class(**fields), TINY).eval()


def distributions(n=6, d=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mean = normalize(torch.randn(n, d, generator=generator), dim=1)
    return mean, 5 + 40 * torch.rand(n, generator=generator)


# ---- alive, and switched off


@pytest.mark.slow
@pytest.mark.parametrize("name", FIVE)
def test_probabilistic__alive(name):
    assert len(check_method(name)) >= 9


def one_kappa(self, embeddings):
    return torch.full(embeddings.shape[:1], 0.01) + 0 * embeddings[:, 0]


def no_sampling(mean, kappa, draws):
    return mean.expand(draws, *mean.shape)


def deaf(self, mean, kappa):
    return ELK_SIMILARITIES(self, mean, torch.full_like(kappa, 64.0))


ELK_SIMILARITIES = ELK.similarities
SWITCHES = {
    "one κ for all": ("elk", UncertaintyHead, "forward", one_kappa, {"κ differs", "κ falls on blurred images"}),
    "no sampling": (
        "hib",
        _probabilistic,
        "sample",
        no_sampling,
        {"samples spread according to κ", "κ fits its image"},
    ),
    "a kernel without κ": ("elk", ELK, "similarities", deaf, {"κ fits its image"}),
}


@pytest.mark.parametrize("what", SWITCHES)
def test_probabilistic__switched_off_is_seen(monkeypatch, what):
    name, owner, attribute, change, dead = SWITCHES[what]
    monkeypatch.setattr(owner, attribute, change)
    trial, digits, here = small_trial(name, epochs=2), datasets.load("digits"), runtime_for("cpu")
    method, _ = fit(trial, digits, here, None, math.inf, None)
    seen = {each for each, evidence in method_evidence(method, trial, digits, here).items() if not evidence.passed}
    assert dead <= seen


def test_probabilistic__axes_that_do_not_learn_are_seen(monkeypatch):
    cls = registry["nivmf"]
    build = cls.__init__
    monkeypatch.setattr(cls, "__init__", lambda self, *a: (build(self, *a), self.log_k.requires_grad_(False))[0])
    trial, digits, here = small_trial("nivmf", epochs=2), datasets.load("digits"), runtime_for("cpu")
    method, _ = fit(trial, digits, here, None, math.inf, None)
    seen = method_evidence(method, trial, digits, here)
    assert not seen["axes differ"].passed and not seen["classes' concentrations learnt"].passed


# ---- losses are their equations


def test_sample__mc_infonce_averages_the_losses_of_samples():
    """The mean over many trainings' samples is that of one large sample, whatever the number of samples is."""
    mean, kappa = distributions()
    values = {}
    for samples in (1, 16):
        method = made("mc-infonce", t=8.0, samples=samples, average="losses")
        torch.manual_seed(1)
        values[samples] = torch.stack([method.distribution_loss(mean, kappa, None) for _ in range(400)])
    large = info_nce(sample(mean, kappa, 20000), 8.0).mean(1)
    error = large.std() / math.sqrt(len(large))
    for value in values.values():
        assert abs(value.mean() - large.mean()) < 4.5 * (value.std() / math.sqrt(len(value)) + error)


def test_probabilistic__the_mean_of_likelihoods_is_another_loss():
    mean, kappa = distributions()
    method = made("mc-infonce", t=8.0)
    torch.manual_seed(2)
    found = float(method.distribution_loss(mean, kappa, None))
    torch.manual_seed(2)
    each = info_nce(sample(mean, kappa, 16), 8.0)
    assert found == pytest.approx(float(-(-each).exp().mean(0).log().mean()), rel=1e-4)
    assert found < float(each.mean())


def test_probabilistic__only_likelihoods_identify_kappa():
    """In a world of known κ the mean of losses prefers any larger κ; that of likelihoods the true one."""
    for average, alive in (("likelihoods", True), ("losses", False)):
        torch.manual_seed(4)
        assert made("mc-infonce", average=average).identified(torch.zeros(1)).passed == alive


@pytest.mark.parametrize("repulsion", ["log p", "log 1-p"])
def test_probabilistic__hib_is_its_equation(repulsion):
    mean, kappa = distributions()
    y = torch.tensor([0, 1, 0, 2, 1, 0])
    method = made("hib", t=8.0, b=-2.0, repulsion=repulsion)
    torch.manual_seed(3)
    found = float(method.distribution_loss(mean, kappa, y))
    torch.manual_seed(3)
    s = sample(mean, kappa, 16)
    same, different = [], []
    for n in range(6):
        for m in range(6):
            p = float(torch.sigmoid(8 * (s[:, n] * s[:, m]).sum(-1) - 2).mean())
            if n != m and y[n] == y[m]:
                same.append(-math.log(p))
            elif n != m:
                different.append(math.log(p) if repulsion == "log p" else -math.log(1 - p))
    assert found == pytest.approx(sum(same) / len(same) + sum(different) / len(different), rel=1e-4)


def test_probabilistic__hib_without_a_pair_of_one_label_repels_only():
    mean, kappa = distributions()
    method = made("hib", t=8.0)
    torch.manual_seed(3)
    apart = method.distribution_loss(mean, kappa, torch.arange(6))
    assert torch.isfinite(apart) and apart < 0


def test_probabilistic__elk_and_nivmf_agree_where_a_class_has_one_concentration():
    """16 samples of a kernel that has a closed form: within standard errors of many."""
    mean, kappa = distributions(d=100)
    kappa = 20 * kappa
    elk, nivmf = made("elk", t=20.0), made("nivmf", t=20.0, samples=4000)
    nivmf.proxies.data.copy_(elk.proxies.data)
    with torch.no_grad():
        assert torch.allclose(nivmf.similarities(mean, kappa), elk.similarities(mean, kappa), atol=0.1)


# ---- what they say


@pytest.mark.parametrize("name", FIVE)
def test_probabilistic__drawn_hparams_build_and_speak(name):
    cls, x = registry[name], torch.randn(5, 1, 8, 8)
    for number in range(3):
        method = cls(draw(cls.hparams_class, number), TINY).eval()
        with torch.no_grad():
            said = method(x)
        assert tuple(said.scores) == cls.scores and said.embeddings.shape == (5, 100)
        assert (said.logits is not None) == cls.classifies == (name in ("elk", "nivmf"))
        if cls.classifies:
            assert said.logits.shape == (5, 1, 3)
    assert cls.views == (2 if "infonce" in name else 1)


def test_probabilistic__scores_are_one_over_kappa_and_minus_the_norm():
    x = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        elk, plain = made("elk"), made("infonce")
        assert torch.allclose(elk(x).scores["inverse_kappa"], 1 / elk.embed(x)[1])
        assert torch.allclose(plain(x).scores["norm"], -plain(x).embeddings.norm(dim=1))


@pytest.mark.parametrize(("kappa", "start"), [("high", 64.0), ("warm", 0.001), ("random", 1.4)])
def test_probabilistic__kappa_starts_where_the_hparams_says_and_keeps_it_on_disk(kappa, start):
    trial = replace(small_trial("hib"), hparams=registry["hib"].hparams_class(kappa=kappa))
    method = initial_method(trial, datasets.load("digits"), runtime_for("cpu"))
    x = torch.rand(20, 1, 8, 8)
    with torch.no_grad():
        assert float(method.embed(x)[1].mean()) == pytest.approx(start, rel=0.25)
    from safetensors.torch import load

    assert "uncertainty.scale" in load(weights_of(method))
    method.prepare([(10 * x, None, None)])  # a scale that came with weights stays
    with torch.no_grad():
        assert float(method.embed(x)[1].mean()) == pytest.approx(start, rel=0.25)


@pytest.mark.parametrize(("name", "field", "value"), [("elk", "t", 0.0), ("hib", "samples", 0), ("nivmf", "head", 0.0)])
def test_probabilistic__a_hparams_that_would_switch_its_method_off_is_refused(name, field, value):
    with pytest.raises(BadInput, match=field):
        registry[name].hparams_class(**{field: value})


def test_probabilistic__the_classes_are_what_they_seem():
    assert issubclass(MCInfoNCE, Probabilistic) and not issubclass(InfoNCE, Probabilistic)
    assert HIB.augment == InfoNCE.augment == "full" and not hasattr(made("elk"), "head")


# ---- AdamW does not drive every κ to the bound of its head


class Plane(nn.Linear):
    """Points of R²⁵⁶ as they are, at first."""

    num_features = 256

    def __init__(self):
        super().__init__(256, 256, bias=False)
        nn.init.eye_(self.weight)

    def forward(self, x):
        return super().forward(x.flatten(1))


class Clusters(NetworkSpec):
    def features(self):
        return Plane()


def kappa_after_adamw(**fields):
    """κ of 500 points, near and far from the centres of 100 classes, after a short training of ELK."""
    torch.manual_seed(0)
    method, centres = ELK(ELK.hparams_class(**fields), Clusters("mlp", 1, 16, 100)), torch.randn(100, 256)

    def points(n):
        y = torch.randint(0, 100, (n,))
        near = centres[y] + torch.empty(n, 1).uniform_(0.5, 3) * torch.randn(n, 256)
        return 20 * normalize(near, dim=1).view(n, 1, 16, 16), y

    method.prepare([(*points(64), None)])
    optimizer = optimizer_of(Training(optimizer="adamw", lr=2e-3), method, runtime_for("cpu"))
    for _ in range(120):
        optimizer.zero_grad()
        method.loss(*points(64)).backward()
        optimizer.step()
    with torch.no_grad():
        return method.embed(points(500)[0])[1]


@pytest.mark.slow
def test_elk__kappa_differs_after_adamw_but_not_with_a_flat_t_and_a_fast_head():
    low, high = kappa_after_adamw().quantile(torch.tensor([0.05, 0.95]))
    assert high > 1.05 * low and high < 1e4
    assert len(kappa_after_adamw(t=16.0, adaptive=1.0).unique()) == 1


@pytest.mark.parametrize(("optimizer", "factor"), [("sgd", 0.5), ("lamb", 0.5), ("adamw", 0.05)])
def test_probabilistic__the_head_learns_slower_under_adamw(optimizer, factor):
    plan = Training(optimizer=optimizer, lr=0.01)
    rest, head = optimizer_of(plan, made("elk", head=0.5, adaptive=0.1), runtime_for("cpu")).param_groups
    assert rest["lr"] == 0.01 and head["lr"] == pytest.approx(0.01 * factor)


# ---- a world in which κ is known


class Turn(nn.Linear):
    """Points of R⁸, turned: the length of a point tells how sure it is."""

    num_features = 8

    def __init__(self):
        super().__init__(8, 8, bias=False)
        nn.init.orthogonal_(self.weight)

    def forward(self, x):
        return super().forward(x.flatten(1))


class Sphere(NetworkSpec):
    def features(self):
        return Turn()


def views(b, t, tells=True):
    """Two latents of a positive pair, t apart, each seen through vMF noise of a κ of its own; and these κ."""
    first = normalize(torch.randn(b, 8), dim=1)
    latents = torch.stack([first, sample(first, torch.full((b,), t), 1)[0]])
    kappa = torch.empty(2, b).uniform_(math.log(4), math.log(256)).exp()
    seen = torch.stack([sample(latent, k, 1)[0] for latent, k in zip(latents, kappa, strict=True)])
    length = kappa.log() if tells else kappa.log()[:, torch.randperm(b)]
    return (seen * length[..., None]).view(2, b, 1, 2, 4), kappa


def recovered(tells, steps=140):
    torch.manual_seed(0)
    t, cls = 32.0, MCInfoNCE
    method = cls(cls.hparams_class(t=t, head=0.5), Sphere("mlp", 1, 4, 2))
    x, kappa = views(256, t, tells)
    method.prepare([(x[0], kappa, kappa)])
    groups = [{"params": each["params"], "lr": 3e-3 * each["rate"]} for each in method.parameter_groups()]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        method.loss(views(64, t, tells)[0], None).backward()
        optimizer.step()
        schedule.step()
    x, kappa = views(1000, t, tells)
    with torch.no_grad():
        found = method.embed(x.flatten(0, 1))[1]
    return spearmanr(found.numpy(), kappa.flatten().numpy())[0], found.median().item()


@pytest.mark.slow
def test_probabilistic__mc_infonce_recovers_kappa_of_a_known_world():
    rank, median = recovered(tells=True)
    assert rank > 0.9 and 10 < median < 100  # its true median is 32
    assert abs(recovered(tells=False)[0]) < 0.3  # lengths that tell nothing of κ
