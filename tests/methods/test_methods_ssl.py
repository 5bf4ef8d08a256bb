"""SimCLR, BYOL and MoCo: losses by hand, no label anywhere, alive, and seen to be dead when a part is switched off."""

import json
import math
import subprocess
import sys
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from nescio import datasets
from nescio.cli import main
from nescio.datasets.builders import dataset_from_arrays
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.layers import contrastive
from nescio.layers.contrastive import follow, mlp, momentum_copy, nt_xent, of_all_processes, unit
from nescio.methods import NetworkSpec, SelfSupervised, classifiers, registry
from nescio.methods._two_views import momentum_copy_lags, nearer_share, not_collapsed
from nescio.methods.byol import BYOL
from nescio.methods.moco import MoCo
from nescio.methods.simclr import SimCLR
from nescio.networks import models
from nescio.predict import predict_images
from nescio.predictions import Predictions
from nescio.runtime import runtime_for
from nescio.search import draw
from nescio.testing import check_method
from nescio.testing.evidence import method_evidence, observe, small_trial
from nescio.training import WEIGHTS, fit, initial_method, load_method, steps, train
from nescio.trials import Training, Trial
from nescio.work.store import Store

torch.set_num_threads(1)
THREE = ("simclr", "byol", "moco")
SMALL = {"simclr": {}, "byol": {"hidden": 128}, "moco": {}}  # smaller than usual, to be quick
TINY = NetworkSpec("mlp", 1, 8, 3, rows=40)


def small(name, **fields):
    return registry[name].hparams_class(**SMALL[name] | fields)


def made(name, spec=TINY, **fields):
    torch.manual_seed(0)
    return registry[name](small(name, **fields), spec)


def trained(name, epochs=1, dataset=None, **fields):
    trial = small_trial(name, epochs=2, hparams=small(name, **fields))
    trial = replace(trial, training=replace(trial.training, epochs=epochs))
    dataset, here = dataset or datasets.load("digits"), runtime_for("cpu")
    method, _ = fit(trial, dataset, here, None, math.inf, None)
    return method, trial, dataset, here


def views(b=6, seed=0):
    return torch.randn(2, b, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


# ---- losses, by hand


def by_hand(z, temperature):
    """Every view looks for its partner among all views but itself."""
    z, total = z.double(), 0.0
    half = len(z) // 2
    for i in range(len(z)):
        e = {k: math.exp(float(cosine_similarity(z[i], z[k], 0)) / temperature) for k in range(len(z)) if k != i}
        total -= math.log(e[(i + half) % len(z)] / sum(e.values()))
    return total / len(z)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_nt_xent_is_its_definition(temperature):
    z = 3 * torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
    assert float(nt_xent(z, temperature)) == pytest.approx(by_hand(z, temperature), rel=1e-5)
    assert float(nt_xent(7 * z, temperature)) == pytest.approx(
        by_hand(z, temperature), rel=1e-5
    )  # lengths do not count


def test_methods_ssl__a_view_never_meets_itself_and_its_partner_stands_in_the_denominator():
    """Where all are alike the loss is the log of how many stand there: 2b − 1, and not 2b, nor 2b − 2."""
    for b in (2, 5):
        assert float(nt_xent(torch.ones(2 * b, 3), 0.5)) == pytest.approx(math.log(2 * b - 1))
    z = torch.eye(4).repeat(2, 1)  # each view is its partner, and at right angles to the others
    e = math.exp(1 / 0.5)
    assert float(nt_xent(z, 0.5)) == pytest.approx(-math.log(e / (e + 6)))
    z.requires_grad_(True)
    nt_xent(z, 0.5).backward()
    assert torch.isfinite(z.grad).all()


def test_methods_ssl__parts_of_a_batch_have_fewer_negatives():
    z = torch.ones(16, 3)
    parts = [torch.cat([z[a : a + 4], z[8 + a : 12 + a]]) for a in (0, 4)]
    assert sum(float(nt_xent(part, 0.5)) for part in parts) / 2 == pytest.approx(math.log(7))
    assert float(nt_xent(z, 0.5)) == pytest.approx(math.log(15))


def test_methods_ssl__simclr_pairs_the_two_views_of_an_image():
    method, x = made("simclr").eval(), views()
    z = torch.cat([method.projection(method.features(x[0])), method.projection(method.features(x[1]))])
    assert method.loss(x, None).item() == pytest.approx(by_hand(z.detach(), 0.5), rel=1e-4)
    assert method.loss(x, None).item() != pytest.approx(method.loss(views(seed=3), None).item())


def test_methods_ssl__byol_is_the_distance_to_the_targets_other_view_both_ways():
    method, x = made("byol").eval(), views()
    nn.init.normal_(method.target[1][-1].weight)  # a target that says something else
    said = [unit(method.predictor(method.projection(method.features(each)))) for each in x]
    aims = [unit(method.target(each)) for each in x]
    both = [(said[0] - aims[1]).square().sum(1).mean(), (said[1] - aims[0]).square().sum(1).mean()]
    assert method.loss(x, None).item() == pytest.approx(sum(both).item(), rel=1e-5)


def test_methods_ssl__moco_looks_for_the_key_among_itself_and_the_queue():
    method, x = made("moco", queue=7, temperature=0.3).eval(), views()
    nn.init.normal_(method.key[1][-1].weight)
    q = unit(method.projection(method.features(x[0]))).double()
    k, queue = unit(method.key(x[1])).double(), method.queue.double()
    total = 0.0
    for i in range(len(q)):
        positive = math.exp((q[i] @ k[i]).item() / 0.3)
        total -= math.log(positive / (positive + sum(math.exp((q[i] @ each).item() / 0.3) for each in queue)))
    assert method.loss(x, None).item() == pytest.approx(total / len(q), rel=1e-5)


# ---- momentum copies


def test_momentum_copy__a_momentum_copy_is_a_moving_average_of_weights_alone():
    net = mlp(3, 4, 2)
    slow = momentum_copy(net)
    first = [weight.clone() for weight in net.parameters()]
    assert all(torch.equal(a, b) and a is not b for a, b in zip(slow.parameters(), net.parameters(), strict=True))
    for weight in net.parameters():
        nn.init.normal_(weight)
    net[1].running_mean.fill_(5.0)
    for _ in range(3):
        follow(slow, net, 0.9)
    for then, now, copied in zip(first, net.parameters(), slow.parameters(), strict=True):
        assert torch.allclose(copied, 0.9**3 * then + (1 - 0.9**3) * now, atol=1e-6)
        assert not copied.requires_grad and now.requires_grad
    assert slow[1].running_mean.eq(0).all()
    follow(slow, net, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(slow.parameters(), net.parameters(), strict=True))


def test_methods_ssl__the_targets_momentum_rises_to_one_as_a_cosine():
    method = made("byol", momentum=0.9)
    assert [method.momentum_at(done) for done in (0.0, 0.5, 1.0)] == pytest.approx([0.9, 0.95, 1.0])
    assert method.momentum_at(1 / 3) == pytest.approx(1 - 0.1 * (math.cos(math.pi / 3) + 1) / 2)
    constant = made("byol", momentum=0.9, schedule="constant")
    assert [constant.momentum_at(done) for done in (0.0, 0.5, 1.0)] == [0.9] * 3


@pytest.mark.parametrize(("name", "copied"), [("byol", "target"), ("moco", "key")])
def test_methods_ssl__the_copy_moves_once_a_step_after_the_weights(monkeypatch, name, copied):
    """Parts of a batch move nothing; `done` runs from the first step's share to 1."""
    seen = []
    cls = registry[name]
    old = cls.after_step
    monkeypatch.setattr(cls, "after_step", lambda self, done: (seen.append(done), old(self, done)))
    trial = small_trial(name, epochs=2, hparams=small(name))
    trial = replace(trial, backbone="mlp", training=replace(trial.training, accumulate=2, batch_size=128))
    method, _ = fit(trial, datasets.load("digits"), runtime_for("cpu"), None, math.inf, None)
    assert seen == pytest.approx([(i + 1) / 16 for i in range(16)])  # two epochs of eight whole batches
    assert not any(weight.requires_grad for weight in getattr(method, copied).parameters())
    learn = {id(weight) for group in method.parameter_groups() for weight in group["params"]}
    assert not learn & {id(weight) for weight in getattr(method, copied).parameters()}


def test_methods_ssl__spectral_normalisation_reaches_the_copies():
    method = made("moco", replace(TINY, spectral=0.5))
    bound = [torch.linalg.matrix_norm(layer.weight, 2) for layer in method.key[0] if isinstance(layer, nn.Linear)]
    assert len(bound) == 3 and max(bound) < 0.55
    before = [weight.clone() for weight in method.key.parameters()]
    for weight in method.query.parameters():
        weight.data.add_(1.0)
    method.after_step(0.5)
    assert all((now - then).abs().max() > 1e-3 for now, then in zip(method.key.parameters(), before, strict=True))


# ---- the queue


def test_methods_ssl__the_oldest_keys_leave_the_queue():
    method, rows = made("moco", replace(TINY, rows=0), queue=10), torch.randn(43, 128)
    expected = deque(method.queue.clone(), maxlen=10)
    at = 0
    for b in (4, 4, 7, 10, 3, 15):
        method.push(rows[at : at + b])
        expected.extend(rows[at : at + b])
        at += b
        start = int(method.pushed) % 10
        assert torch.equal(method.queue.roll(-start, 0), torch.stack(list(expected)))
    # of a batch longer than the queue the last keys stay
    assert int(method.pushed) == 4 + 4 + 7 + 10 + 3 + 10


def test_methods_ssl__after_a_training_the_queue_holds_the_last_keys(monkeypatch):
    pushed = []
    push = MoCo.push
    monkeypatch.setattr(MoCo, "push", lambda self, keys: (pushed.append(keys.clone()), push(self, keys)))
    method, trial, _, _ = trained("moco", queue=150)
    start = pushed[:-16]  # the epoch has 16 batches of 64; before them the queue was filled
    assert sum(map(len, start)) >= 150
    assert int(method.pushed) == 16 * trial.training.batch_size == 1024
    last = torch.cat(pushed)[-150:]
    assert torch.equal(method.queue.roll(-(1024 % 150), 0), last)
    assert torch.allclose(method.queue.norm(dim=1), torch.ones(150), atol=1e-5)


def test_methods_ssl__a_queue_longer_than_half_the_training_rows_is_not_used_whole():
    method = made("moco", replace(TINY, rows=40), queue=100)
    assert method.queue.shape == (100, 128) and method.negatives.shape == (20, 128)
    tail = method.queue[20:].clone()
    batches = [(torch.randn(9, 1, 8, 8), None, None), (torch.randn(1, 1, 8, 8), None, None)]
    before = method.queue.clone()
    method.prepare(batches)
    assert int(method.pushed) == 0 and torch.equal(method.queue[20:], tail)
    assert (method.queue[:20] != before[:20]).any(1).all()
    method.negatives.fill_(0.5)  # it is a part of the queue, not a copy
    assert (method.queue[:20] == 0.5).all()


# ---- no labels, no answers


@pytest.mark.parametrize("name", THREE)
def test_methods_ssl__labels_do_not_matter(monkeypatch, name):
    whole, _, digits, _ = trained(name)
    parts = datasets.split_dataset(digits)
    labels = np.random.default_rng(0).permutation(parts.train.labels)
    assert (labels != parts.train.labels).mean() > 0.5
    shuffled = replace(parts, train=replace(parts.train, labels=labels))
    monkeypatch.setattr(datasets, "split_dataset", lambda *_, **__: shuffled)
    other, *_ = trained(name)
    ours, theirs = whole.state_dict(), other.state_dict()
    assert all(torch.equal(ours[each], theirs[each]) for each in ours)


@pytest.mark.parametrize("name", THREE)
def test_methods_ssl__embeddings_are_the_raw_features_and_there_are_no_logits(name):
    method, trial, _, here = trained(name)
    x = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        said = method(x)
        assert said.logits is None and said.scores == {} and torch.equal(said.embeddings, method.features(x))
    assert not hasattr(method, "head") and said.embeddings.shape == (5, method.features.num_features)
    dump = predict_images(method, models.network_of_trial(trial), ImageSet("digits", "val").load(), None, here)
    assert dump.logits is None and dump.embeddings.shape == (len(dump), 64) and dump.labels is not None


def test_network_spec__images_without_classes_are_enough():
    """One class is no class: nothing to tell apart, and views all the same."""
    rng = np.random.default_rng(0)
    pixels, zeros = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8), np.zeros(40, np.int64)
    method, *_ = trained(
        "simclr",
        dataset=dataset_from_arrays("plain", (np.tile(pixels, (4, 1, 1)), np.zeros(160, np.int64)), (pixels, zeros)),
    )
    assert method.spec.classes == 1
    with pytest.raises(BadInput, match="two classes"):
        registry["erm"](registry["erm"].hparams_class(), NetworkSpec("mlp", 1, 8, 1))


def test_methods_ssl__networks_of_one_seed_start_alike():
    digits, here = datasets.load("digits"), runtime_for("cpu")
    first = [initial_method(small_trial(name), digits, here).features.state_dict() for name in ("erm", *THREE)]
    for other in first[1:]:
        assert all(torch.equal(first[0][each], other[each]) for each in other if "weight" in each)


# ---- alive, and switched off


@pytest.mark.parametrize("name", THREE)
def test_methods_ssl__alive(name):
    slow = {"hidden": 512, "momentum": 0.95} if name == "byol" else {}  # the slowest of the three on this task
    said = " ".join(check_method(name, epochs=12 if slow else 4, hparams=small(name, **slow)))
    assert "learns: the image nearest" in said and "loss falls" in said


def deceive(cls, **fields):
    """An __init__ that is told values which the hyper-parameters itself refuses."""
    old = cls.__init__

    def new(self, hparams, spec):
        hparams = replace(hparams)
        for name, value in fields.items():
            object.__setattr__(hparams, name, value)
        old(self, hparams, spec)

    return new


def after(cls, change):
    """An __init__ that changes the method once it is built."""
    old = cls.__init__

    def new(self, hparams, spec):
        old(self, hparams, spec)
        change(self)

    return new


def without_predictor(self):
    self.predictor = nn.Identity()


def no_predictor_in_the_loss(self, x, y):
    z, aims = self.online(x.flatten(0, 1)), self.aim(x.flip(0).flatten(0, 1))
    return (2 - 2 * cosine_similarity(z, aims)).mean()


def attraction_alone(self, x, y):
    a, b = self.project(x).chunk(2)
    return 1 - cosine_similarity(a, b).mean()


def learning(network):
    return lambda self: getattr(self, network).requires_grad_(True)


def keys_with_gradient(self, x):
    return unit(self.key(x))


BROKEN = [
    ("simclr", "nothing learns", "views found", "loss", lambda self, x, y: 0 * nt_xent(self.project(x), 0.5)),
    ("simclr", "no negatives", "not collapsed", "loss", attraction_alone),
    ("simclr", "τ is not used", "temperature acts", "loss", lambda self, x, y: nt_xent(self.project(x), 0.5)),
    ("byol", "the target never moves", "target lags", "__init__", deceive(BYOL, momentum=1.0)),
    ("byol", "no slow copy", "target lags", "__init__", deceive(BYOL, momentum=0.0, schedule="constant")),
    ("byol", "the target learns", "target learns nothing", "__init__", after(BYOL, learning("target"))),
    ("byol", "no stop-gradient", "target learns nothing", "aim", lambda self, x: self.target(x)),
    ("byol", "no predictor", "predictor used", "__init__", after(BYOL, without_predictor)),
    ("byol", "predictor left out", "predictor used", "loss", no_predictor_in_the_loss),
    ("moco", "the queue stands still", "queue replaced", "push", lambda self, keys: None),
    ("moco", "the key encoder never moves", "key encoder lags", "__init__", deceive(MoCo, momentum=1.0)),
    ("moco", "no slow copy", "key encoder lags", "__init__", deceive(MoCo, momentum=0.0)),
    ("moco", "the key encoder learns", "key encoder learns nothing", "keys", keys_with_gradient),
    ("moco", "nothing learns", "views found", "contrast", lambda self, x, keys: 0 * self.query(x).sum()),
]


@pytest.mark.parametrize(
    ("name", "how", "what", "attribute", "broken"),
    BROKEN,
    ids=[f"{name}: {how} -> {what}" for name, how, what, *_ in BROKEN],
)
def test_methods_ssl__switched_off_is_seen(monkeypatch, name, how, what, attribute, broken):
    monkeypatch.setattr(registry[name], attribute, broken)
    if (attribute, how) == ("push", "the queue stands still"):
        monkeypatch.setattr(MoCo, "prepare", lambda self, batches: None)  # it would wait for a full queue
    found = method_evidence(*trained(name, epochs=3))
    assert not found[what].passed, found[what].observed


def test_methods_ssl__without_predictor_and_stop_gradient_everything_collapses(monkeypatch):
    """The online network as its own target, which learns from that side too: one answer for all images is best."""
    monkeypatch.setattr(BYOL, "__init__", after(BYOL, without_predictor))
    monkeypatch.setattr(BYOL, "aim", lambda self, x: self.online(x))
    found = method_evidence(*trained("byol", epochs=3))
    assert not found["not collapsed"].passed and not found["predictor used"].passed


def test_methods_ssl__features_that_learn_nothing_are_seen(monkeypatch):
    monkeypatch.setattr(SimCLR, "loss", lambda self, x, y: 0 * self.project(x).sum())
    seen = dict(observe(small_trial("simclr", epochs=2)))
    assert not seen["learns"].passed and not seen["loss falls"].passed


def test_not_collapsed__every_piece_of_evidence_can_fail():
    """Those that no switch above reaches are seen here, on made-up rows."""
    rows = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    assert not_collapsed(rows).passed and not not_collapsed(rows[:1].expand(50, 8) + 1e-4 * rows).passed
    assert not not_collapsed(torch.outer(rows[:, 0], rows[0])).passed  # one direction, both ways
    assert nearer_share(rows, rows + 0.01) == 1 and nearer_share(rows, -rows) == 0
    assert abs(nearer_share(rows, rows.flip(0)) - 0.5) < 0.2
    assert nearer_share(torch.ones(9, 2), torch.ones(9, 2)) == 0  # a tie is not nearer
    here, there = mlp(3, 4, 2), mlp(3, 4, 2)
    for share, alive in ((0.0, False), (0.3, True), (1.0, False)):
        copied = momentum_copy(here)
        follow(copied, there, 1 - share)
        found = momentum_copy_lags(copied, there, here)
        assert found.passed == alive and f"{share:.1%}" in found.observed


# ---- what the hyper-parameters refuse, and what the search may draw


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("simclr", "temperature", 0.0),
        ("simclr", "width", 1),
        ("byol", "momentum", 0.0),
        ("byol", "momentum", 1.0),
        ("byol", "schedule", "linear"),
        ("byol", "hidden", 0),
        ("moco", "temperature", -1.0),
        ("moco", "momentum", 1.0),
        ("moco", "queue", 0),
    ],
)
def test_methods_ssl__a_hparams_that_would_switch_its_method_off_is_refused(name, field, value):
    with pytest.raises(BadInput, match=field):
        registry[name].hparams_class(**{field: value})


@pytest.mark.parametrize("name", THREE)
def test_methods_ssl__drawn_hparams_build(name):
    for number in range(3):
        method = registry[name](draw(registry[name].hparams_class, number), TINY)
        assert math.isfinite(method.loss(views(), None).item())


# ---- killed, resumed, in several processes


@pytest.mark.parametrize("name", ["byol", "moco"])
def test_methods_ssl__stopped_and_resumed_is_bit_identical(tmp_path, name):
    """Target, key encoder, queue and its place are in the checkpoint, between two parts of an epoch too."""
    plan = Training(epochs=2, batch_size=128, augment="full", accumulate=2, schedule="cosine")
    hparams = small(name, queue=300) if name == "moco" else small(name, hidden=32)
    trial = Trial(method=name, hparams=hparams, data="digits", backbone="mlp", training=plan)
    whole, broken, here = Store(tmp_path / "whole"), Store(tmp_path / "broken"), runtime_for("cpu", "float32")
    key = train(trial, whole, here)
    steps = iter([5, 3])
    cls = registry[name]
    moved = cls.after_step

    def fall(self, done):
        moved(self, done)
        fall.left -= 1
        if fall.left == 0:
            raise InterruptedError("enough")

    for fall.left in steps:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(InterruptedError):
            patch.setattr(cls, "after_step", fall)
            train(trial, broken, here, checkpoint_seconds=0.0)
    assert train(trial, broken, here, checkpoint_seconds=0.0) == key
    ours, theirs = ((store.path("train", key) / WEIGHTS).read_bytes() for store in (whole, broken))
    assert ours == theirs


def test_methods_ssl__alone_a_process_has_only_its_own_rows():
    rows = torch.randn(3, 2)
    assert of_all_processes(rows) is rows


def test_methods_ssl__the_rows_of_several_processes_come_in_one_order(monkeypatch):
    def gather(parts, rows):
        for number, part in enumerate(parts):
            part.copy_(rows + number)

    monkeypatch.setattr(contrastive.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(contrastive.dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(contrastive.dist, "all_gather", gather)
    rows = torch.arange(4.0).view(2, 2)
    assert torch.equal(of_all_processes(rows), torch.cat([rows, rows + 1, rows + 2]))


@pytest.mark.slow
def test_methods_ssl__two_processes_share_one_queue(tmp_path):
    """Without batch-norm a row does not feel the others: two processes make what one does, queue and all."""
    words = "-m torch.distributed.run --standalone --nproc-per-node 2 -m nescio train --method moco --backbone mlp"
    words += (
        f" --hparams queue=200 --epochs 2 --batch-size 128 --device cpu --precision float32 --store {tmp_path / 'two'}"
    )
    done = subprocess.run([sys.executable, *words.split()], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    plan = Training(epochs=2, batch_size=128, augment="full", precision="float32")
    trial = Trial(method="moco", hparams=small("moco", queue=200), data="digits", backbone="mlp", training=plan)
    here = runtime_for("cpu")
    key = train(trial, Store(tmp_path / "one"), here)
    one, two = (load_method(key, trial, Store(tmp_path / name), here).state_dict() for name in ("one", "two"))
    assert int(one["pushed"]) == int(two["pushed"]) == 2 * 8 * 128
    assert all(torch.allclose(one[name], two[name], atol=1e-3) for name in one)


# ---- commands


TRAIN = ["train", "--backbone", "mlp", "--epochs", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with an ensemble of three."""
    root = str(tmp_path_factory.mktemp("store"))
    assert main([*TRAIN, "--method", "simclr", "--ensemble-size", "3", "--workers", "0", "--store", root]) == 0
    return root


def hparam_sets(root):
    found = Store(root)
    return [found.record("train", run.key)["config"] for run in found.runs() if run.stage == "train"]


def test_methods_ssl__an_ensemble_is_one_command(store, capsys):
    plain = hparam_sets(store)
    assert sorted(each["init_seed"] for each in plain) == [0, 1, 2]
    assert len({json.dumps({**each, "init_seed": 0}, sort_keys=True) for each in plain}) == 1
    assert {each["training"]["augment"] for each in plain} == {"full"}  # nobody said so: the method's own
    assert main([*TRAIN, "--method", "simclr", "--ensemble-size", "3", "--workers", "0", "--store", store]) == 0
    said = capsys.readouterr()
    assert said.out.count("was finished before") == 3 and "failed" not in said.err
    assert main([*TRAIN, "--method", "simclr", "--init-seed", "2", "--store", store]) == 0  # a member is a plain trial
    assert "was finished before" in capsys.readouterr().out


def test_methods_ssl__a_member_that_fails_costs_itself_alone_and_is_tried_again(tmp_path, monkeypatch, capsys):
    act = steps.fit

    def fit_or_fall(trial, *rest):
        if trial.init_seed == 1:
            raise RuntimeError("no luck")
        return act(trial, *rest)

    words = [*TRAIN, "--ensemble-size", "3", "--workers", "0", "--store", str(tmp_path)]
    monkeypatch.setattr(steps, "fit", fit_or_fall)
    assert main(words) == 1
    said = capsys.readouterr()
    assert said.out.count("is finished") == 2 and "init seed 1: " in said.err and "no luck" in said.err
    assert sorted(run.state for run in Store(tmp_path).runs()) == ["failed", "finished", "finished"]
    monkeypatch.undo()
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.count("was finished before") == 2 and said.count(" is finished") == 1


@pytest.mark.slow
def test_methods_ssl__members_on_workers_are_those_of_one_process(store, tmp_path):
    words = [*TRAIN, "--method", "simclr", "--ensemble-size", "2", "--workers", "2", "--store", str(tmp_path)]
    assert main(words) == 0
    for run in Store(tmp_path).runs():
        ours, theirs = (Store(root).path("train", run.key) / WEIGHTS for root in (tmp_path, store))
        assert ours.read_bytes() == theirs.read_bytes()


def test_predict_writes_embeddings_alone(store, tmp_path, capsys):
    key, file = next(run.key for run in Store(store).runs() if run.stage == "train"), tmp_path / "test.npz"
    assert main(["predict", key, "--store", store, "--output", str(file), "--device", "cpu"]) == 0
    dump = Predictions.load(file)
    assert dump.logits is None and dump.embeddings.shape == (599, 100) and len(dump.labels) == 599
    capsys.readouterr()
    assert main(["evaluate", str(file), "--format", "json"]) == 0
    metrics = {row["metric"] for row in json.loads(capsys.readouterr().out)["files"][0]["rows"]}
    assert "recall_at_1" in metrics and "accuracy" not in metrics
    assert main(["predict", key, "--store", store, "--output", str(file), "--probes"]) == 2
    assert "class predictions" in capsys.readouterr().err


def test_classifiers__methods_are_listed_with_their_kind(capsys):
    assert main(["methods", "--format", "json"]) == 0
    kinds = {each["method"]: each["kind"] for each in json.loads(capsys.readouterr().out)}
    assert all(kinds[name] == "features" for name in THREE) and kinds["erm"] == "classifier"
    assert {name for name, kind in kinds.items() if kind == "classifier"} == set(classifiers())
    assert all(issubclass(registry[name], SelfSupervised) for name in THREE)
    assert main(["methods", "simclr"]) == 0
    said = capsys.readouterr().out
    assert "simclr (features)" in said and "NT-Xent" in said


def test_classifiers__uimnet_is_about_classifiers(tmp_path, capsys):
    assert main(["run", "uimnet", "--methods", "erm,byol", "--store", str(tmp_path), "--workers", "0"]) == 2
    said = capsys.readouterr().err
    assert "uimnet compares classifiers, and byol" in said
    assert not set(THREE) & set(classifiers()) and len(classifiers()) >= 10


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--method", "simclr", "--augment", "none"], "2 views of an image"),
        (["--method", "moco", "--augment", "none", "--ensemble-size", "2"], "2 views of an image"),
        (["--ensemble-size", "0"], "ensemble-size"),
        (["--ensemble-size", "2", "--log", "tensorboard:x"], "--log"),
        (["--ensemble-size", "2", "--workers", "-1"], "--workers"),
        (["--ensemble-size", "2", "--batch-size", "5000"], "5000"),
    ],
)
def test_methods_ssl__bad_input_is_one_sentence(tmp_path, capsys, words, sentence):
    assert main([*TRAIN, *words, "--store", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert sentence in said.err and len(said.err.strip().splitlines()) == 1 and said.out == ""
    assert not Store(tmp_path).runs()


def test_methods_ssl__members_do_not_mix_with_torchrun(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([*TRAIN, "--ensemble-size", "2", "--store", str(tmp_path)]) == 2
    assert "without torchrun" in capsys.readouterr().err
