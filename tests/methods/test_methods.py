"""Every method learns, is alive, and is seen to be dead when its special part is switched off."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from nescio import datasets, training
from nescio.datasets import Batches
from nescio.errors import BadInput
from nescio.layers.entropies import of_draws
from nescio.methods import Method, NetworkSpec, registry
from nescio.methods.deep_ae import DeepAE
from nescio.methods.due import DUE
from nescio.methods.erm import ERM
from nescio.methods.evidence import accuracy_of
from nescio.methods.mc_dropout import MCDropout
from nescio.methods.mimo import MIMO
from nescio.methods.mixup import Mixup
from nescio.methods.oc import OC, Zero
from nescio.methods.rbf import RBF
from nescio.methods.rnd import RND, mlp
from nescio.methods.soft_labels import SoftLabels
from nescio.runtime import runtime_for
from nescio.search import draw
from nescio.testing import check_method
from nescio.testing.evidence import method_evidence, observe, small_trial
from nescio.training import fit
from nescio.trials import Training, Trial
from tests.support.reference import load, note

torch.set_num_threads(1)
TEN = ("deep-ae", "due", "erm", "mc-dropout", "mimo", "mixup", "oc", "rbf", "rnd", "soft-labels")


def test_methods__the_ten_algorithms_of_the_paper_are_there():
    assert set(TEN) <= set(registry)


@pytest.mark.parametrize("name", TEN)
def test_methods__alive(name):
    assert len(check_method(name)) >= 7


# ---- switched off: how, and which evidence must see it


def replace_after(cls, change):
    """An __init__ that changes the method once it is built."""
    old = cls.__init__

    def new(self, hparams, spec):
        old(self, hparams, spec)
        change(self)

    return new


def deceive(cls, **fields):
    """An __init__ that is told values which the hyper-parameters itself refuses."""
    old = cls.__init__

    def new(self, hparams, spec):
        hparams = replace(hparams)
        for name, value in fields.items():
            object.__setattr__(hparams, name, value)
        old(self, hparams, spec)

    return new


def without_dropout(self):
    for parent in list(self.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Dropout):
                setattr(parent, name, nn.Identity())


def no_student_loss(self, x, y):
    return nn.functional.cross_entropy(self.head(self.features(x)), y) + self.penalty()


def wide(self, inputs):
    return mlp(inputs, 2 * inputs, inputs, 2 * inputs, inputs), nn.Identity()


def fixed_points(self):
    self.gp.points.requires_grad_(False)


def fixed_posterior(self):
    self.gp.parts[1].requires_grad_(False)


BROKEN = [
    ("erm", "nothing learns", "learnt", ERM, "loss", lambda self, x, y: 0 * Method.loss(self, x, y)),
    ("mixup", "λ is always 1", "shares drawn", Mixup, "shares", lambda self, count: torch.ones(count)),
    ("mixup", "λ is always 1", "learnt between the examples", Mixup, "shares", lambda self, count: torch.ones(count)),
    ("soft-labels", "one-hot labels", "ceiling", SoftLabels, "loss", Method.loss),
    ("rbf", "plain logits", "fades", RBF, "kernels", lambda self, embeddings: self.head(embeddings)),
    ("rbf", "no scale", "confident", RBF, "__init__", deceive(RBF, scale=1.0)),
    ("rnd", "the student does not learn", "student learnt", RND, "loss", Method.loss),
    (
        "rnd",
        "the teacher learns too",
        "teacher frozen",
        RND,
        "__init__",
        replace_after(RND, lambda self: self.teacher.requires_grad_(True)),
    ),
    (
        "rnd",
        "the teacher says nothing",
        "student ≠ teacher on noise",
        RND,
        "distance",
        lambda _, e, *a: torch.ones(len(e)),
    ),
    ("oc", "no penalty", "orthogonality", OC, "penalty", lambda self: 0.0),
    ("oc", "the certificates do not learn", "student learnt", OC, "loss", no_student_loss),
    ("deep-ae", "no bottleneck", "bottleneck", DeepAE, "pair", wide),
    ("deep-ae", "the student does not learn", "student learnt", DeepAE, "loss", Method.loss),
    ("mc-dropout", "rate 0", "masks drawn", MCDropout, "__init__", deceive(MCDropout, dropout=0.0)),
    (
        "mc-dropout",
        "no dropout in the network",
        "masks drawn",
        MCDropout,
        "__init__",
        replace_after(MCDropout, without_dropout),
    ),
    ("mimo", "always the same image", "each head reads its own image", MIMO, "__init__", deceive(MIMO, repetition=1.0)),
    ("mimo", "one image", "each head reads its own image", MIMO, "__init__", deceive(MIMO, inputs=1)),
    ("due", "inducing points fixed", "inducing points moved", DUE, "__init__", replace_after(DUE, fixed_points)),
    ("due", "posterior fixed", "posterior left the prior", DUE, "__init__", replace_after(DUE, fixed_posterior)),
]


@pytest.mark.parametrize(
    ("name", "how", "what", "cls", "attribute", "broken"),
    BROKEN,
    ids=[f"{name}: {how} -> {what}" for name, how, what, *_ in BROKEN],
)
def test_methods__switched_off_is_seen(monkeypatch, name, how, what, cls, attribute, broken):
    monkeypatch.setattr(cls, attribute, broken)
    trial, here = small_trial(name, epochs=6), runtime_for("cpu")
    dataset = datasets.load("digits")
    method, _ = fit(trial, dataset, here, None, float("inf"), None)
    assert not method_evidence(method, trial, dataset, here)[what].passed


def test_methods__every_method_has_a_way_to_die():
    assert {name for name, *_ in BROKEN} == set(TEN)


def listen_to_neighbours(self, x):
    self.features.train()
    said = Method.forward(self, x)
    self.features.eval()
    return said


class Forgetful(ERM):
    """Keeps what it learnt where nobody saves it."""

    def finalize(self, batches):
        self.bonus = 1.0

    def forward(self, x):
        said = super().forward(x)
        said.logits = said.logits + getattr(self, "bonus", 0.0)
        return said


class Moody(ERM):
    """Depends on more than its seed."""

    mood = 0.0

    def loss(self, x, y):
        Moody.mood += 1e-3
        return super().loss(x, y) * (1 + Moody.mood)


class Contrary(ERM):
    """Learns to be wrong."""

    def loss(self, x, y):
        return -super().loss(x, y).clamp_max(50)


class Rash(RND):
    """Less sure near the data."""

    def forward(self, x):
        said = super().forward(x)
        said.scores["native"] = -said.scores["native"]
        return said


class OneVoice(MIMO):
    """All heads say what the first one says."""

    def head_logits(self, x):
        logits, embeddings = super().head_logits(x)
        return logits[:, :1].expand_as(logits), embeddings


class Neighbourly(ERM):
    forward = listen_to_neighbours


class Unbound(ERM):
    """Does not hear the spectral norm switch."""

    def __init__(self, hparams, spec):
        super().__init__(hparams, replace(spec, spectral=None))


@pytest.mark.parametrize(
    ("cls", "what"),
    [
        (Forgetful, "saved and reloaded"),
        (Moody, "same seed, same weights"),
        (Contrary, "learns"),
        (Rash, "noise above data"),
        (OneVoice, "draws differ"),
        (Neighbourly, "rows stand alone"),
        (Unbound, "spectral norm"),
    ],
)
def test_methods__a_broken_promise_is_seen(monkeypatch, cls, what):
    monkeypatch.setitem(registry._parts, "broken", cls)
    if cls is Forgetful:
        with pytest.raises(AssertionError, match=what):
            check_method("broken", epochs=2)
    else:  # nothing is observed, and trained, behind the broken promise
        assert not next(each.passed for name, each in observe(small_trial("broken", epochs=2)) if name == what)


# ---- what the hyper-parameters refuse, and what the search may draw


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("erm", "lr", 0.0),
        ("erm", "weight_decay", -1.0),
        ("mixup", "alpha", 0.0),
        ("mixup", "kept", 0),
        ("soft-labels", "most", 1.0),
        ("soft-labels", "most", 0.1),
        ("rbf", "scale", 0.0),
        ("rnd", "width", 0),
        ("oc", "orthogonality", 0.0),
        ("oc", "width", 1.0),
        ("deep-ae", "bottleneck", 1.0),
        ("mc-dropout", "dropout", 0.0),
        ("mc-dropout", "dropout", 1.0),
        ("mc-dropout", "mc_samples", 1),
        ("mc-dropout", "position", "nowhere"),
        ("mimo", "inputs", 1),
        ("mimo", "repetition", 1.0),
        ("due", "inducing", 0),
    ],
)
def test_methods__a_hparams_that_would_switch_its_method_off_is_refused(name, field, value):
    with pytest.raises(BadInput, match=field):
        registry[name].hparams_class(**{field: value})


@pytest.mark.parametrize("name", TEN)
def test_network_spec__drawn_hparams_build(name):
    for number in range(4):
        hparams = draw(registry[name].hparams_class, number)
        method = registry[name](hparams, NetworkSpec("mlp", 1, 8, 3, rows=10)).eval()
        with torch.no_grad():
            said = method(torch.randn(5, 1, 8, 8))
        assert said.logits.shape[0] == 5 and said.logits.shape[2] == 3
        assert said.embeddings.shape == (5, 100)


def test_network_spec__one_class_is_refused():
    with pytest.raises(BadInput, match="two classes"):
        ERM(ERM.hparams_class(), NetworkSpec("mlp", 1, 8, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", TEN)
def test_accuracy_of__learns_digits(name):
    plan = Training(epochs=20, batch_size=64, augment="shift")
    trial, dataset, here = replace(small_trial(name), training=plan), datasets.load("digits"), runtime_for("cpu")
    method, _ = fit(trial, dataset, here, None, float("inf"), None)
    test = datasets.split_dataset(dataset).test
    assert accuracy_of(method, Batches(test, dataset, here.device)) >= 0.95


# ---- meaning


def test_network_spec__mimo_repeats_whole_rows_and_sums_heads():
    torch.manual_seed(0)
    method = MIMO(MIMO.hparams_class(repetition=0.0), NetworkSpec("mlp", 1, 8, 3))
    seen = []
    method.head_logits = lambda x: (seen.append(x) or torch.zeros(len(x), 2, 3, requires_grad=True), None)
    x, y = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    assert float(method.loss(x, y).detach()) == pytest.approx(2 * np.log(3))  # two heads, each log 3
    first, second = seen[0][:, 0, 0, 0], seen[0][:, 1, 0, 0]
    assert sorted(first.tolist()) == sorted([*range(6)] * 2)  # every image twice: batch repetition
    assert (first != second).any()
    object.__setattr__(method.hparams, "repetition", 1.0)
    method.loss(x, y)
    assert torch.equal(seen[1][:, 0], seen[1][:, 1])


def test_network_spec__mimo_gives_the_same_image_to_all_heads_at_test_time():
    method = MIMO(MIMO.hparams_class(inputs=3), NetworkSpec("mlp", 1, 8, 4)).eval()
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(method(x).logits, method.head_logits(torch.cat([x, x, x], 1))[0])
    assert method(x).logits.shape == (2, 3, 4)


def test_network_spec__soft_targets():
    method = SoftLabels(SoftLabels.hparams_class(most=0.7), NetworkSpec("mlp", 1, 8, 4)).eval()
    x, y = torch.randn(3, 1, 8, 8), torch.tensor([0, 1, 3])
    log_p = method(x).logits[:, 0].log_softmax(1)
    by_hand = -sum(0.7 * log_p[i, y[i]] + sum(0.1 * log_p[i, c] for c in range(4) if c != y[i]) for i in range(3)) / 3
    assert float(method.loss(x, y).detach()) == pytest.approx(float(by_hand.detach()), rel=1e-5)
    assert torch.allclose(method(x).scores["native"], (log_p.exp().max(1).values - 0.7) ** 2)


def test_network_spec__mixup_score_is_the_criterion_it_names():
    method = Mixup(Mixup.hparams_class(kept=2), NetworkSpec("mlp", 1, 8, 3)).eval()
    x, bars, y = torch.randn(4, 1, 8, 8), torch.randn(2, 1, 8, 8), torch.eye(3)[:2]
    method.kept_x.copy_(bars)
    method.kept_y.copy_(y)
    method.kept_share.copy_(torch.tensor([0.3, 0.8]))

    def f(x):
        return method.head(method.features(x)).softmax(1)

    with torch.no_grad():
        terms = [
            (s * f(x) + (1 - s) * label - f(s * x + (1 - s) * bar)).square().sum(1)
            for s, bar, label in zip((0.3, 0.8), bars, y, strict=True)
        ]
        assert torch.allclose(method(x).scores["native"], sum(terms) / 2, atol=1e-6)
    assert "native" not in method(x.requires_grad_()).scores  # a probe that differentiates does not pay for it


def test_network_spec__rbf_reaches_confidence_and_fades():
    method = RBF(RBF.hparams_class(scale=10.0), NetworkSpec("mlp", 1, 8, 10)).eval()
    method.head.weight.data.zero_()
    method.head.bias.data.copy_(torch.tensor([0.0] + [9.0] * 9))
    p = method.probs(method.kernels(torch.zeros(1, 100))[:, None]).detach()
    assert p[0, 0] == pytest.approx(np.exp(10) / (np.exp(10) + 9), rel=1e-5)
    assert p[0, 0] > np.e / (np.e + 9)
    method.head.bias.data.fill_(50.0)
    assert torch.allclose(method.probs(method.kernels(torch.zeros(1, 100))[:, None]), torch.full((1, 10), 0.1))


def test_network_spec__students_do_not_touch_the_features():
    for name in ("rnd", "oc", "deep-ae"):
        method = registry[name](registry[name].hparams_class(), NetworkSpec("mlp", 1, 8, 3))
        method.distance(method.features(torch.randn(8, 1, 8, 8))).sum().backward()
        assert all(each.grad is None for each in method.features.parameters())
        assert all(each.grad is not None for each in method.student.parameters())
        assert not any(each.requires_grad for each in method.teacher.parameters())


@pytest.mark.parametrize("position", ["head", "activations"])
def test_network_spec__dropout_stays_on_and_batch_norm_off_at_test_time(position):
    method = MCDropout(
        MCDropout.hparams_class(dropout=0.5, position=position, mc_samples=4), NetworkSpec("conv", 1, 8, 3)
    ).eval()
    norm = next(layer for layer in method.modules() if isinstance(layer, nn.BatchNorm2d))
    before = norm.running_mean.clone()
    with torch.no_grad():
        output = method(torch.randn(6, 1, 8, 8))
    assert output.logits.shape == (6, 4, 3) and output.logits.std(1).min() > 0
    assert torch.equal(norm.running_mean, before)
    assert not any(layer.training for layer in method.modules())
    p = output.logits.softmax(-1)
    h = -(p * p.log()).sum(-1)
    mean = p.mean(1)
    assert torch.allclose(output.scores["jsd"], -(mean * mean.log()).sum(-1) - h.mean(1), atol=1e-6)


def test_of_draws__scores_of_draws_keep_the_digits_of_sure_answers():
    logits = 12 * torch.eye(3)[None, :1].expand(40, 8, 3) + torch.randn(40, 8, 3, generator=torch.manual_seed(0))
    p = logits.double().softmax(-1)
    exact = torch.special.entr(p.mean(1)).sum(1) - torch.special.entr(p).sum(2).mean(1)
    made = of_draws(logits)
    assert torch.allclose(made["jsd"].double(), exact, rtol=1e-6, atol=0) and made["jsd"].dtype == torch.float32
    assert torch.allclose(made["entropy"].double(), torch.special.entr(p.mean(1)).sum(1), rtol=1e-6, atol=0)


def test_network_spec__dropout_before_the_head_alone_leaves_the_features_as_they_are():
    """After all 17 activations of a ResNet-18 it cost seven points of accuracy; the papers see no loss."""
    torch.manual_seed(0)
    method = MCDropout(MCDropout.hparams_class(mc_samples=200), NetworkSpec("resnet18", 3, 8, 4)).eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        features, output = method.features(x), method(x)
        plain = method.head(features)
    assert method.dropouts == [method.before_head] and method.hparams.dropout == 0.1
    assert torch.allclose(output.embeddings, features, atol=1e-6)
    error = (output.logits.mean(1) - plain).abs() / (output.logits.std(1) / 200**0.5)
    assert error.max() < 5, "the draws lie around the answer of the whole network"


def widths(student):
    layers = [layer for layer in student if isinstance(layer, nn.Linear)]
    return [layers[0].in_features, *(layer.out_features for layer in layers)]


@pytest.mark.parametrize("features", [16, 64, 512, 2048])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_network_spec__the_middle_of_the_autoencoder_is_its_narrowest_layer(features, share):
    method = DeepAE(DeepAE.hparams_class(bottleneck=share), NetworkSpec("mlp", 1, 8, 3))
    student, _ = method.pair(features)
    first, hidden, middle, again, last = widths(student)
    assert (first, last) == (features, features) and hidden == again
    assert middle == round(share * min(features, hidden)) and middle < min(features, hidden)


def test_network_spec__a_bottleneck_wider_than_its_neighbours_is_none(monkeypatch):
    def wider_than_its_neighbours(self, inputs):
        return mlp(inputs, 8, 16, 8, inputs), nn.Identity()

    monkeypatch.setattr(DeepAE, "pair", wider_than_its_neighbours)
    method = DeepAE(DeepAE.hparams_class(), NetworkSpec("mlp", 1, 8, 3)).eval()
    with torch.no_grad():
        evidence = method.evidence([(torch.randn(8, 1, 8, 8), torch.zeros(8), torch.arange(8))], method)
    assert not evidence["bottleneck"].passed


@pytest.mark.parametrize(("inducing", "points"), [(None, 7), (20, 20)])
def test_network_spec__due_has_as_many_inducing_points_as_classes_unless_a_number_is_given(inducing, points):
    assert len(DUE(DUE.hparams_class(inducing=inducing), NetworkSpec("mlp", 1, 8, 7)).gp.points) == points
    assert len(DUE(DUE.hparams_class(), NetworkSpec("mlp", 1, 8, 7)).gp.points) == 7


def test_network_spec__due_says_the_log_of_the_mean_probability():
    method = DUE(DUE.hparams_class(test_samples=5000), NetworkSpec("mlp", 1, 8, 3, rows=10)).eval()
    x = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        said = method(x)
        latent = method.process(said.embeddings)
        drawn = torch.distributions.Normal(latent.mean, latent.variance.sqrt()).sample((200_000,))
        truth = drawn.softmax(-1).mean(0)
    assert torch.allclose(said.logits[:, 0].exp().sum(1), torch.ones(4), atol=1e-5)
    assert torch.allclose(said.logits[:, 0].exp(), truth, atol=0.03)
    assert torch.allclose(said.scores["variance"], latent.variance.mean(1))


def test_network_spec__due_starts_from_the_features_of_the_first_network():
    trial, dataset, here = small_trial("due"), datasets.load("digits"), runtime_for("cpu")
    from nescio.training import initial_method

    method = initial_method(trial, dataset, here)
    batches = Batches(datasets.split_dataset(dataset).train, dataset, here.device, batch=2000)
    with torch.no_grad():
        method.features.train()
        features = method.features(next(iter(batches))[0])
    reach = torch.cdist(method.gp.points, features).min(1).values.mean()
    between = torch.pdist(features[:500]).mean()
    assert reach < 0.6 * between  # every inducing point lies among the features
    lengths = method.gp.covar_module.base_kernel.lengthscale.flatten()
    assert len(lengths) == 10 and torch.allclose(lengths, between.expand(10), rtol=0.1)
    with pytest.raises(BadInput, match="inducing"):
        DUE(DUE.hparams_class(), NetworkSpec("mlp", 1, 8, 6)).prepare([(torch.randn(5, 1, 8, 8), None, None)])


# ---- reference values of the paper's own code


def stack(arrays, prefix):
    net = mlp(10, 16, 16, 16)
    for number in (0, 2, 4):
        net[number].weight.data = torch.from_numpy(arrays[f"{prefix}.{number}.weight"]).float()
        net[number].bias.data = torch.from_numpy(arrays[f"{prefix}.{number}.bias"]).float()
    return net


def test_network_spec__distances_against_the_original():
    """The paper's score is the squared norm, a sum over outputs; its code takes the mean. Ours is 16 times theirs."""
    arrays = load("uimnet_rnd_oc")
    assert "mean over outputs" in note("uimnet_rnd_oc")["check_note"]
    features = torch.from_numpy(arrays["features"])
    for name, cls, teacher in (("RND", RND, stack(arrays, "RND_tgt_network")), ("OC", OC, Zero())):
        method = cls(cls.hparams_class(), NetworkSpec("mlp", 1, 8, 3)).eval()
        method.scale = nn.Identity()  # the original does not normalise the features
        method.teacher, method.student = teacher, stack(arrays, f"{name}_net_network")
        if name == "OC":  # its weights were saved after 0.3 was added to break their orthogonality, the scores before
            method.student[0].weight.data -= 0.3
        with torch.no_grad():
            ours = method.distance(features).numpy()
        assert np.allclose(ours, 16 * arrays[name], rtol=1e-4)
        assert not np.allclose(ours, arrays[name], rtol=0.1)


def test_network_spec__the_orthogonality_penalty_is_not_always_zero():
    """The original walks over the children of its network, finds one Sequential without a weight, and returns 0."""
    report = note("uimnet_rnd_oc")["report"]
    assert report["OC imitator_penalty_ after breaking orthogonality"] == 0.0
    method = OC(OC.hparams_class(), NetworkSpec("mlp", 1, 8, 3))
    assert float(method.disorder()) > 0
    arrays = load("uimnet_rnd_oc")
    method.student = stack(arrays, "OC_net_network")
    w = arrays["OC_net_network.0.weight"]  # 16 × 10: WᵀW can be the identity, W Wᵀ cannot; the other two are orthogonal
    assert float(method.disorder()) == pytest.approx(np.square(w.T @ w - np.eye(10)).sum(), rel=1e-4)
    assert float(method.disorder()) > 100
    method.student[0].weight.data -= 0.3
    assert float(method.disorder()) < 1e-6


@pytest.mark.parametrize("position", ["head", "activations"])
def test_network_spec__batch_norm_under_dropout_keeps_the_statistics_of_training(position):
    """In training mode it would take those of the test batch, and adapt to whatever happened to the images."""
    hparams = replace(registry["mc-dropout"].hparams_class(), position=position)
    own = registry["mc-dropout"](hparams, NetworkSpec("conv", 1, 8, 10)).eval()
    modes: dict[type, set[bool]] = {}
    for part in own.modules():
        if isinstance(part, (nn.BatchNorm2d, nn.Dropout)):
            part.register_forward_hook(lambda part, *_: modes.setdefault(type(part), set()).add(part.training))
    own(torch.randn(16, 1, 8, 8))
    assert modes == {nn.BatchNorm2d: {False}, nn.Dropout: {True}}


@pytest.mark.parametrize("name", registry)
def test_methods__a_method_can_be_copied_between_two_steps(name):
    """Weights that are kept on the way are finished on a copy; graphs of a step cannot be copied."""
    cls = registry[name]
    plan = Training(batch_size=16, augment=cls.augment or "none")
    trial = Trial(method=name, hparams=cls.hparams_class(), data="digits", backbone="mlp", training=plan)
    method = training.initial_method(trial, datasets.load("digits"), runtime_for("cpu")).train()
    x = torch.randn(*((2,) if cls.views > 1 else ()), 16, 1, 8, 8)
    method.update(x, torch.arange(16) % 10, torch.Tensor.backward)
    copied = deepcopy(method).state_dict()
    assert all(torch.equal(copied[key], tensor) for key, tensor in method.state_dict().items())
