"""Deterministic methods: alive, dead when switched off, equal to stored values, unsure far from the data."""

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Dirichlet
from torch.nn.functional import binary_cross_entropy, cross_entropy, mse_loss, one_hot

from nescio import datasets, training
from nescio.datasets import Batches
from nescio.errors import BadInput
from nescio.layers.class_gaussians import ClassGaussians
from nescio.layers.entropies import entropy
from nescio.layers.radial_flows import RadialFlows, masses
from nescio.methods import Method, NetworkSpec, dcu, ddu, registry, sngp
from nescio.methods._feature_density import FeatureDensity
from nescio.methods.base import method as registered
from nescio.methods.dcs import DCS
from nescio.methods.dcu import DCU
from nescio.methods.ddu import DDU
from nescio.methods.duq import DUQ, fixed_averages, one_against_rest
from nescio.methods.mir import MIR, decoder
from nescio.methods.postnet import PostNet, uncertain_cross_entropy
from nescio.methods.sngp import SNGP
from nescio.metrics import auroc
from nescio.runtime import runtime_for
from nescio.search import draw
from nescio.testing import check_method
from nescio.testing.evidence import method_evidence, small_trial
from nescio.training import fit, initial_method
from nescio.trials import Training, Trial
from tests.methods.test_methods import deceive, replace_after
from tests.support.reference import load
from tests.support.two_moons import moons, own_score

torch.set_num_threads(1)
SEVEN = ("dcs", "dcu", "ddu", "duq", "mir", "postnet", "sngp")
SMALL = NetworkSpec("mlp", 1, 8, 3, rows=10)


@pytest.mark.parametrize("backbone", ["conv", pytest.param("mlp", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SEVEN)
def test_deterministic__alive(name, backbone):
    assert len(check_method(name, backbone=backbone, epochs=6 if backbone == "conv" else 8)) >= 8


# ---- switched off: how, and which evidence must see it


def no_finalize(self, batches):
    pass


def no_bound(spec, hparams):
    return spec


def no_log_determinants(self, z):
    return -0.5 * (z.double()[:, None] - self.centres[:, 0]).square().sum(2)


def same_everywhere(self, log_densities):
    return 1 + 0 * log_densities


def one_kernel(self, placed):
    return -placed.square().mean((1, 2))[:, None].expand(-1, placed.shape[2])


def fit_alone(self, x, y, step):
    placed = self.class_embeddings(self.features(x))
    self.follow(placed, y)
    loss = one_against_rest(self.log_kernels(placed), y)
    step(loss)
    return loss


def from_detached(self, x):
    embeddings = self.features(x)
    return embeddings, mse_loss(self.decoder(embeddings.detach()), x)


def contrast_of_detached(self, x, y):
    embeddings = self.features(x.flatten(0, 1))
    contrast = dcu.nt_xent(self.projection(embeddings.detach()), self.hparams.temperature)
    return self.hparams.weight * contrast + cross_entropy(self.head(embeddings), y.repeat(2))


def joint_from_the_start(self, x, y):
    embeddings = self.features(x.flatten(0, 1))
    contrast = dcu.nt_xent(self.projection(embeddings), self.hparams.temperature)
    return self.hparams.weight * contrast + cross_entropy(self.head(embeddings), y.repeat(2))


def with_entropy(sign):
    def loss(self, x, y):
        alpha = self.alpha(self.log_densities(self.features(x)))
        entropy = Dirichlet(alpha, validate_args=False).entropy()
        return (uncertain_cross_entropy(alpha, y) + sign * self.hparams.entropy * entropy).mean().float()

    return loss


@torch.no_grad()
def one_batch(self, batches):
    self.gp.fit([self.features(next(iter(batches))[0])])


@torch.no_grad()
def of_other_labels(self, batches):
    self.gaussians.fit((self.features(x), y.roll(1)) for x, y, _ in batches)


BROKEN = [
    ("sngp", "posterior means for logits", "mean-field logits", sngp, "mean_field", lambda logits, variance: logits),
    ("sngp", "covariance of one batch", "precision changed", SNGP, "finalize", one_batch),
    ("ddu", "Gaussians of other labels", "Gaussians of classes", FeatureDensity, "finalize", of_other_labels),
    ("mir", "the features do not learn from the decoder", "strength acts", MIR, "reconstructed", from_detached),
    ("duq", "steps without the penalty", "strength acts", DUQ, "update", fit_alone),
    ("dcu", "the features do not learn from the contrast", "strength acts", DCU, "loss", contrast_of_detached),
    ("dcu", "joint from the start", "two phases", DCU, "loss", joint_from_the_start),
    ("postnet", "no entropy", "entropy is rewarded", PostNet, "loss", with_entropy(0)),
    ("postnet", "entropy is punished", "entropy is rewarded", PostNet, "loss", with_entropy(1)),
    ("sngp", "no covariance", "precision changed", SNGP, "finalize", no_finalize),
    ("sngp", "no covariance", "variance away from the data", SNGP, "finalize", no_finalize),
    ("sngp", "no spectral norm", "layers are bounded", sngp, "bounded", no_bound),
    ("ddu", "no Gaussians", "density away from the data", FeatureDensity, "finalize", no_finalize),
    ("ddu", "no spectral norm", "layers are bounded", ddu, "bounded", no_bound),
    ("mir", "no Gaussians", "density away from the data", FeatureDensity, "finalize", no_finalize),
    ("mir", "the decoder does not learn", "reconstructs", MIR, "loss", Method.loss),
    ("duq", "centroids stay", "centroids moved", DUQ, "follow", lambda self, placed, y: None),
    ("duq", "no penalty", "gradient penalty", DUQ, "penalty", lambda self, x, log_kernels: 0 * log_kernels.sum()),
    ("duq", "one kernel for all", "centroids separate", DUQ, "log_kernels", one_kernel),
    (
        "dcs",
        "centroids do not learn",
        "centroids moved",
        DCS,
        "__init__",
        replace_after(DCS, lambda self: self.centroids.requires_grad_(False)),
    ),
    ("dcs", "cross-entropy alone", "distance loss", DCS, "distance_loss", lambda self, distances, y: 0.0),
    (
        "postnet",
        "flows do not learn",
        "flows learnt",
        PostNet,
        "__init__",
        replace_after(PostNet, lambda self: self.flows.requires_grad_(False)),
    ),
    ("postnet", "no determinants", "densities integrate to 1", RadialFlows, "forward", no_log_determinants),
    ("postnet", "no evidence", "evidence falls away from the data", PostNet, "alpha", same_everywhere),
    ("dcu", "no contrastive loss", "temperature acts", dcu, "nt_xent", lambda z, temperature: 0 * z.sum()),
    ("dcu", "no pretraining", "two phases", DCU, "__init__", deceive(DCU, pretraining=0.0)),
    ("dcu", "no Gaussians", "density away from the data", FeatureDensity, "finalize", no_finalize),
]


@pytest.mark.parametrize(
    ("name", "how", "what", "owner", "attribute", "broken"),
    BROKEN,
    ids=[f"{name}: {how} -> {what}" for name, how, what, *_ in BROKEN],
)
def test_deterministic__switched_off_is_seen(monkeypatch, name, how, what, owner, attribute, broken):
    monkeypatch.setattr(owner, attribute, broken)
    trial, here, dataset = small_trial(name, epochs=4), runtime_for("cpu"), datasets.load("digits")
    method, _ = fit(trial, dataset, here, None, float("inf"), None)
    assert not method_evidence(method, trial, dataset, here)[what].passed


@pytest.mark.parametrize(("sign", "effect"), [(-1, "less"), (0, "the same"), (1, "more")])
def test_uncertain_cross_entropy__postnet_says_what_entropy_does_to_the_loss(monkeypatch, sign, effect):
    monkeypatch.setattr(PostNet, "loss", with_entropy(sign))
    trial, here, dataset = small_trial("postnet"), runtime_for("cpu"), datasets.load("digits")
    seen = method_evidence(initial_method(trial, dataset, here), trial, dataset, here)["entropy is rewarded"]
    assert seen.observed.endswith(f"more entropy, {effect} loss") and seen.passed == (sign < 0)


def test_deterministic__every_method_has_a_way_to_die():
    assert {name for name, *_ in BROKEN} == set(SEVEN)


# ---- what the hyper-parameters refuse, and what the search may draw


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("sngp", "bound", 0.0),
        ("sngp", "width", 0),
        ("ddu", "bound", 0.0),
        ("mir", "weight", 0.0),
        ("duq", "penalty", 0.0),
        ("duq", "momentum", 1.0),
        ("duq", "lengthscale", 0.0),
        ("dcs", "weight", 0.0),
        ("dcs", "margin", 0.0),
        ("dcu", "weight", 0.0),
        ("dcu", "pretraining", 1.0),
        ("dcu", "pretraining", 0.0),
        ("postnet", "entropy", 0.0),
        ("postnet", "latent", 0),
    ],
)
def test_deterministic__a_hparams_that_would_switch_its_method_off_is_refused(name, field, value):
    with pytest.raises(BadInput, match=field):
        registry[name].hparams_class(**{field: value})


@pytest.mark.parametrize("name", SEVEN)
def test_network_spec__drawn_hparams_build_for_images_of_any_shape(name):
    for number, shape in enumerate([(8, 8), (5, 12), (1, 2)]):
        method = registry[name](draw(registry[name].hparams_class, number), NetworkSpec("mlp", 2, shape, 3, rows=10))
        images = torch.randn(*([2] if method.views == 2 else []), 6, 2, *shape)
        assert torch.isfinite(method.loss(images, torch.arange(6) % 3))
        with torch.no_grad():
            output = method.eval()(torch.randn(5, 2, *shape))
        assert output.logits.shape == (5, 1, 3) and output.embeddings.shape == (5, 100)
        assert tuple(output.scores) == method.scores
        assert all(score.shape == (5,) and torch.isfinite(score).all() for score in output.scores.values())


@pytest.mark.parametrize("name", ["sngp", "ddu"])
def test_network_spec__the_bound_is_the_hparams_unless_the_setting_names_one(name):
    cls = registry[name]
    assert cls(cls.hparams_class(bound=0.7), SMALL).spec.spectral == 0.7
    named = NetworkSpec("mlp", 1, 8, 3, spectral=2.0)
    assert cls(cls.hparams_class(bound=0.7), named).spec.spectral == 2.0


# ---- two moons: less sure far from the data


@pytest.mark.parametrize(
    ("name", "seed"), [*((name, 0) for name in SEVEN), ("due", 0), pytest.param("due", 2, marks=pytest.mark.slow)]
)
def test_deterministic__two_moons_are_known_and_what_lies_around_them_is_not(name, seed):
    method, x, y, ring = moons(name, 200, seed=seed)
    with torch.no_grad():
        on, around = method(x), method(ring)
    assert float((method.probs(on.logits).argmax(1) == y).float().mean()) > 0.97
    score = torch.cat([own_score(each) for each in (on, around)]).double().numpy()
    assert auroc(score, np.arange(len(score)) >= len(x)) > 0.9


def test_deterministic__softmax_entropy_does_not_know_what_lies_around_the_moons():
    """Why the density is there: of the same network the entropy is lower far away than on the data."""
    method, x, _, ring = moons("ddu", 150)
    with torch.no_grad():
        on, around = method(x).scores["entropy"], method(ring).scores["entropy"]
    assert auroc(torch.cat([on, around]).double().numpy(), np.arange(900) >= 600) < 0.5


def test_deterministic__the_variance_of_due_is_low_on_other_digits_and_that_of_its_probabilities_high():
    """Why the second score is there: between classes labels pin the latent functions down."""
    data, here = datasets.load("digits"), runtime_for("cpu")
    plan = Training(lr=0.1, epochs=8, batch_size=64, schedule="cosine", warmup=1.0, augment="none")
    hparams = registry["due"].hparams_class()
    of = {"method": "due", "hparams": hparams, "data": "digits", "classes": tuple(range(8)), "backbone": "mlp"}
    trial = Trial(**of, spectral=3.0, training=plan)
    method, facts = fit(trial, data, here, None, 1e9, None)
    found = {name: [] for name in method.scores}
    with torch.no_grad():
        for x, _, _ in Batches(data.test, data, here.device):
            for name, score in method(x).scores.items():
                found[name].append(score)
    other = data.test.labels >= 8
    detected = {name: auroc(torch.cat(parts).double().numpy(), other) for name, parts in found.items()}
    assert facts["train_accuracy"] > 0.97
    assert detected["probability_variance"] > 0.85 and detected["variance"] < 0.4, detected


def test_deterministic__postnet_densities_of_two_moons_integrate_to_one_and_evidence_falls():
    method, x, _, ring = moons("postnet", latent=2)
    assert torch.allclose(masses(method.flows), torch.ones(2, dtype=torch.float64), atol=0.01)
    with torch.no_grad():
        on, around = (method.alpha(method.log_densities(method.features(rows))).sum(1) for rows in (x, ring))
    assert on.median() > 100 * around.median()
    assert around.median() < 10  # of 600 images: next to nothing above the prior's 2


# ---- meaning, and the values of others


def test_duq_kernels_and_centroids_are_those_of_the_original():
    stored = {name: torch.from_numpy(np.asarray(array)) for name, array in load("pract_duq").items()}
    width, classes, _ = stored["W"].shape
    hparams = DUQ.hparams_class(width=width, lengthscale=float(stored["length_scale"]), momentum=float(stored["gamma"]))
    method = DUQ(hparams, NetworkSpec("mlp", 1, 8, classes))
    method.weight = nn.Parameter(stored["W"])
    method.sums.copy_(stored["m"])
    method.counts.copy_(stored["n"])
    with torch.no_grad():
        placed = method.class_embeddings(stored["z"])
        log_kernels = method.log_kernels(placed)
    assert torch.allclose(placed, stored["emb"], atol=1e-6)
    assert torch.allclose(log_kernels.exp(), stored["x_kernel"], atol=1e-6)
    assert torch.allclose(-log_kernels.max(1).values, stored["uncertainty"], rtol=1e-4, atol=1e-5)
    method.follow(placed, stored["y_onehot"].argmax(1))
    method.after_step(0.5)
    assert torch.allclose(method.counts, stored["n_after_update"], atol=1e-5)
    assert torch.allclose(method.sums, stored["m_after_update"], atol=1e-6)


def test_one_against_rest__duq_learns_from_images_that_are_far_from_every_centroid():
    """Its loss is the cross-entropy of the kernels, summed over classes, and draws images near whose kernels are 0."""
    near = torch.tensor([[-0.5, -2.0, -9.0], [-3.0, -0.1, -1e-4]])
    y = torch.tensor([0, 2])
    expected = binary_cross_entropy(near.double().exp(), one_hot(y, 3).double(), reduction="sum") / len(y)
    assert float(one_against_rest(near.double(), y)) == pytest.approx(float(expected), rel=1e-9)
    apart = torch.tensor([1.0, 20.0, 400.0], requires_grad=True)  # distances, squared in the logarithm
    forces = [
        torch.autograd.grad(one_against_rest(-torch.stack([each.square(), each + 9])[None], torch.tensor([0])), apart)[
            0
        ]
        for each in apart
    ]
    pulls = [float(force.sum()) for force in forces]
    assert pulls[0] < pulls[1] and pulls[1] == pytest.approx(pulls[2]) and pulls[1] > 1  # to the centroid, and bounded
    touching = torch.zeros(1, 3, requires_grad=True)  # on the centroids of all classes
    one_against_rest(touching, torch.tensor([0])).backward()
    assert torch.isfinite(touching.grad).all()


def test_duq_starts_with_kernels_above_zero():
    """With weights as long as those of a plain layer every kernel would start near e⁻⁵⁰."""
    torch.manual_seed(0)
    method = DUQ(DUQ.hparams_class(), NetworkSpec("mlp", 1, 8, 10))
    log_kernels = method.log_kernels(method.class_embeddings(torch.randn(200, method.features.num_features)))
    assert -15 < float(log_kernels.detach().median()) < -1


def test_duq_keeps_its_batch_norm_out_of_the_penalty():
    """The penalty's few images leave the running averages as the whole batch makes them."""
    torch.manual_seed(0)
    whole, few = (DUQ(DUQ.hparams_class(penalized=share), NetworkSpec("conv", 1, 8, 3)) for share in (1.0, 0.25))
    few.load_state_dict(whole.state_dict())
    for method in (whole, few):
        method.losses(torch.linspace(-1, 1, 16 * 64).view(16, 1, 8, 8), torch.arange(16) % 3)
    averages = [{name: value for name, value in m.state_dict().items() if "running" in name} for m in (whole, few)]
    assert averages[0] and all(torch.equal(value, averages[1][name]) for name, value in averages[0].items())
    assert all(layer.momentum for layer in few.modules() if isinstance(layer, nn.BatchNorm2d))


@pytest.mark.parametrize("name", sorted(registry))
def test_deterministic__every_parameter_that_learns_is_in_one_group(name):
    method = registry[name](registry[name].hparams_class(), SMALL)
    held = [id(parameter) for group in method.parameter_groups() for parameter in group["params"]]
    assert sorted(held) == sorted({id(parameter) for parameter in method.parameters() if parameter.requires_grad})


def test_duq_penalises_a_share_of_the_batch():
    torch.manual_seed(0)
    whole, half = (DUQ(DUQ.hparams_class(penalized=share), SMALL).eval() for share in (1.0, 0.5))
    half.load_state_dict(whole.state_dict())
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 3
    loss, penalty, placed = half.losses(x, y)
    of_all, penalty_of_all, _ = whole.losses(x, y)
    weight = whole.hparams.penalty
    assert torch.allclose(loss - weight * penalty, of_all - weight * penalty_of_all) and len(placed) == 8
    assert torch.allclose(penalty, whole.losses(x[:4], y[:4])[1])
    assert not torch.allclose(penalty, whole.losses(x, y)[1])


def test_duq_penalises_two_images_at_least():
    """Batch-norm cannot take one; and its averages go on after an error."""
    method = DUQ(DUQ.hparams_class(penalized=0.01), NetworkSpec("conv", 1, 8, 3))
    assert float(method.losses(torch.randn(8, 1, 8, 8), torch.arange(8) % 3)[1].detach()) > 0
    with pytest.raises(ZeroDivisionError), fixed_averages(method.features):
        raise ZeroDivisionError
    assert all(layer.momentum for layer in method.modules() if isinstance(layer, nn.BatchNorm2d))


def test_duq_centroids_follow_whole_batches():
    """In parts, to need less memory, or not."""
    data = datasets.load("digits")
    plan = Training(lr=0.1, epochs=1, batch_size=64, augment="none", precision="float32")
    trial = Trial(method="duq", hparams=DUQ.hparams_class(), data="digits", backbone="mlp", training=plan)
    whole, parts = (
        fit(replace(trial, training=replace(plan, accumulate=count)), data, runtime_for("cpu"), None, 1e9, None)[0]
        for count in (1, 4)
    )
    assert torch.equal(whole.counts, parts.counts)
    assert torch.allclose(whole.sums, parts.sums, rtol=1e-4, atol=1e-4)


def test_duq_is_not_compiled():
    trial = Trial(
        method="duq", hparams=DUQ.hparams_class(), data="digits", backbone="mlp", training=Training(compile=True)
    )
    with pytest.raises(BadInput, match=r"duq cannot"):
        training.build(trial, datasets.load("digits"), rows=10)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_deterministic__features_that_are_not_finite_have_no_gaussians(value):
    rows = torch.randn(20, 3)
    rows[4, 1] = value
    with pytest.raises(BadInput, match="Features are not finite"):
        ClassGaussians(2, 3).fit([(rows, torch.arange(20) % 2)])


def test_duq__weights_that_are_not_finite_after_the_last_step_are_no_network(monkeypatch):
    """No loss was seen to be."""
    monkeypatch.setattr(DUQ, "after_step", lambda self, done: self.weight.data.fill_(math.nan) if done == 1 else None)
    plan = Training(lr=0.01, epochs=1, batch_size=256, augment="none", precision="float32")
    trial = Trial(method="duq", hparams=DUQ.hparams_class(), data="digits", backbone="mlp", training=plan)
    with pytest.raises(training.Diverged, match="not finite"):
        fit(trial, datasets.load("digits"), runtime_for("cpu"), None, 1e9, None)


def test_duq_penalty_is_two_sided():
    method = DUQ(DUQ.hparams_class(), SMALL)
    for slope, penalty in ((0.0, 1.0), (1.0, 0.0), (3.0, 4.0)):
        x = torch.zeros(4, 1, 8, 8, requires_grad=True)
        kernel = 1 + slope * x[:, 0, 0, 0]  # its gradient has the length `slope`
        assert float(method.penalty(x, kernel.log()[:, None]).detach()) == pytest.approx(penalty, abs=1e-6)


def test_uncertain_cross_entropy__postnet_dirichlet_and_loss_are_those_of_the_original():
    """The original sums over the batch; the mean is ours."""
    stored = {name: torch.from_numpy(np.asarray(array)) for name, array in load("postnet_dirichlet").items()}
    method = PostNet(PostNet.hparams_class(latent=5), NetworkSpec("mlp", 1, 8, 4)).double().eval()
    method.head = nn.Identity()
    with torch.no_grad():
        for name, values in (("running_mean", "bn_mean"), ("running_var", "bn_var")):
            getattr(method.norm, name).copy_(stored[values])
        method.norm.weight.copy_(stored["bn_weight"])
        method.norm.bias.copy_(stored["bn_bias"])
        method.counts.copy_(stored["N"])
        for name, values in (("centres", "x0"), ("softness", "alpha_prime"), ("strength", "beta_prime")):
            getattr(method.flows, name).copy_(stored[values])
        latent = method.norm(stored["z_in"])
        alpha = method.alpha(method.flows(latent))
    assert torch.allclose(latent, stored["latent_after_bn"], atol=1e-8)
    assert torch.allclose(alpha, stored["x_alpha"], rtol=1e-6)
    assert torch.allclose(alpha / alpha.sum(1, keepdim=True), stored["prob"], atol=1e-8)
    spread = torch.distributions.Dirichlet(alpha).entropy()
    loss = uncertain_cross_entropy(alpha, stored["labels"]).sum() - float(stored["regr"]) * spread.sum()
    assert float(loss) == pytest.approx(float(stored["uce_loss_sum"]), rel=1e-9)


def test_uncertain_cross_entropy_is_the_mean_over_the_dirichlet():
    torch.manual_seed(0)
    alpha = torch.tensor([[2.0, 5.0, 1.5]])
    drawn = torch.distributions.Dirichlet(alpha[0]).sample((200_000,))
    assert float(uncertain_cross_entropy(alpha, torch.tensor([2]))) == pytest.approx(
        -float(drawn[:, 2].log().mean()), rel=0.02
    )


def test_post_net__postnet_says_the_mean_of_its_dirichlet_and_the_density_of_its_answer():
    method = PostNet(PostNet.hparams_class(), SMALL).eval()
    x = torch.randn(7, 1, 8, 8)
    with torch.no_grad():
        output, log_q = method(x), method.log_densities(method.features(x))
    alpha = 1 + method.counts * log_q.exp()
    assert torch.allclose(output.logits[:, 0].softmax(1).double(), alpha / alpha.sum(1, keepdim=True), atol=1e-6)
    assert torch.allclose(output.logits[:, 0].double(), alpha.log(), rtol=1e-6)
    assert torch.allclose(output.scores["evidence"].double(), -log_q[torch.arange(7), alpha.argmax(1)], atol=1e-5)


@pytest.mark.parametrize("fewer", [0.0, 8.0, 12.0])
def test_post_net__postnet_tells_classes_apart_where_there_is_little_evidence(fewer, monkeypatch):
    """Logarithms of the mean itself, −log 10 and almost equal, would be tied in float16 and answer class 0."""
    method = PostNet(PostNet.hparams_class(), SMALL).eval()
    log_q = torch.tensor(list(permutations([0.0, -0.1, -0.2])), dtype=torch.float64) - fewer
    monkeypatch.setattr(method, "log_densities", lambda _: log_q)
    logits = method(torch.randn(6, 1, 8, 8)).logits[:, 0].half()
    assert torch.equal(logits.argmax(1), log_q.argmax(1)) and torch.equal(logits.argmin(1), log_q.argmin(1))


def test_entropy_is_exact_where_the_original_adds_to_the_logarithm():
    stored = load("pract_entropy_mi")
    assert np.allclose(entropy(torch.from_numpy(stored["probs"])), stored["x_entropy_exact"], atol=1e-6)
    draws = torch.from_numpy(stored["samples_B_C_S"]).transpose(1, 2)
    information = entropy(draws.mean(1)) - entropy(draws).mean(1)
    assert np.allclose(information, stored["x_mi_exact"], atol=1e-12)


def test_ddu__class_gaussians_are_fitted_to_training_features_with_true_labels():
    method = DDU(DDU.hparams_class(), SMALL).eval()
    x, y = torch.randn(90, 1, 8, 8), torch.arange(90) % 3
    method.finalize([(x[:50], y[:50], None), (x[50:], y[50:], None)])
    with torch.no_grad():
        features = method.features(x).double()
    for c in range(3):
        assert torch.allclose(method.gaussians.means[c], features[y == c].mean(0), atol=1e-9)
    assert torch.allclose(method.gaussians.log_shares.exp(), torch.full((3,), 1 / 3, dtype=torch.float64))


def test_sngp_scores_are_of_its_mean_field_logits():
    method = SNGP(SNGP.hparams_class(width=64), SMALL).eval()
    x = torch.randn(40, 1, 8, 8)
    method.finalize([(x, None, None)])
    with torch.no_grad():
        output = method(x)
        expanded = method.gp.expand(output.embeddings)
    z = method.gp.mean(expanded).detach() / (1 + math.pi / 8 * method.gp.variance(expanded)).sqrt()[:, None]
    assert torch.allclose(output.logits[:, 0], z, atol=1e-6)
    assert torch.allclose(output.scores["dempster_shafer"], 3 / (3 + z.exp().sum(1)), atol=1e-6)
    assert torch.allclose(output.scores["entropy"], entropy(z.softmax(1)), atol=1e-6)


@pytest.mark.parametrize("shape", [(32, 32), (17, 40), (1, 2), (96, 64)])
def test_decoder__the_decoder_makes_images_of_any_shape(shape):
    assert decoder(10, 3, shape, 8)(torch.randn(2, 10)).shape == (2, 3, *shape)


def test_dcs_scores_are_distances_to_the_nearest_centroid():
    method = DCS(DCS.hparams_class(), SMALL).eval()
    x = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        output = method(x)
        places = method.head(output.embeddings)
    by_hand = torch.tensor([[float((p - e).square().sum().sqrt()) for e in method.centroids.detach()] for p in places])
    assert torch.allclose(output.scores["distance"], by_hand.min(1).values, atol=1e-5)
    assert torch.equal(output.logits[:, 0].argmax(1), by_hand.argmin(1))
    y = torch.tensor([0, 1, 2, 0])
    terms = [
        by_hand[i, c] ** 2 if c == y[i] else max(0.0, 4.0 - by_hand[i, c]) ** 2 / 2 for i in range(4) for c in range(3)
    ]
    assert float(method.distance_loss(by_hand, y)) == pytest.approx(float(sum(terms)) / 4, rel=1e-5)


def test_dcu_pretrains_the_features_without_labels():
    method = DCU(DCU.hparams_class(), SMALL)
    x = torch.randn(2, 6, 1, 8, 8)

    def gradient(labels):
        method.zero_grad()
        method.loss(x, torch.tensor(labels)).backward()
        return method.features[1].weight.grad.clone(), method.head.weight.grad.clone()

    first, other = gradient([0, 1, 2, 0, 1, 2]), gradient([2, 2, 0, 1, 0, 0])
    assert torch.equal(first[0], other[0]) and not torch.equal(first[1], other[1])
    method.after_step(0.6)
    first, other = gradient([0, 1, 2, 0, 1, 2]), gradient([2, 2, 0, 1, 0, 0])
    assert not torch.allclose(first[0], other[0])


@pytest.mark.parametrize("weight", [0.01, 1.0, 100.0])
def test_network_spec__strengths_of_mir_do_not_change_how_fast_anything_learns(weight):
    """The step of the decoder, rate times λ times the gradient of its error, and the network's rate."""
    own = registry["mir"](replace(registry["mir"].hparams_class(), weight=weight), NetworkSpec("mlp", 1, 8, 10))
    network, branch = own.parameter_groups()
    assert network["rate"] == 1.0 and branch["rate"] * weight == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"strength_hparam": "nothere"}, "is 'nothere': name a field of MIRHParams"),
        ({"strength_hparam": "width"}, "range is log_uniform"),
        ({"strength_hparam": "weight", "strength_direction": "weaker"}, "is 'weaker': it is 'larger' or 'smaller'"),
    ],
)
def test_registered__a_strength_that_cannot_be_varied_is_refused_where_it_is_named(attributes, reason):
    with pytest.raises(BadInput, match=reason):
        registered("broken", registry["mir"].hparams_class)(type("Broken", (MIR,), attributes))
    assert "broken" not in registry


@pytest.mark.parametrize(("bound", "passed", "share"), [(1e9, False, 0.0), (0.5, True, 1.0)])
def test_ddu__a_bound_without_effect_is_seen(bound, passed, share):
    trial, dataset = small_trial("ddu", epochs=2, hparams=DDU.hparams_class(bound=bound)), datasets.load("digits")
    method, facts = fit(trial, dataset, runtime_for("cpu"), None, math.inf, None)
    seen = method_evidence(method, trial, dataset, runtime_for("cpu"))
    assert facts["at_bound"] == share
    assert seen["layers are bounded"].passed and seen["bound acts"].passed == passed
