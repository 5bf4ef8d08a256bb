"""The only training loop: what it learns, that it can be killed, and that many processes are as good as one."""

import itertools
import json
import logging
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from nescio import datasets, training
from nescio.datasets import Batches
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.methods import registry
from nescio.methods.erm import ERM
from nescio.methods.evidence import accuracy_of
from nescio.networks.models import network_of_trial
from nescio.predict import predict_step
from nescio.runtime import evaluating, runtime_for
from nescio.training import (
    WEIGHTS,
    Diverged,
    build,
    fit,
    initial_method,
    load_method,
    optimizer_of,
    rate_at,
    take_weights,
    train,
    train_step,
)
from nescio.trials import Training, Trial
from nescio.work.launchers import Task
from nescio.work.local import LocalWorkers
from nescio.work.steps import Context
from nescio.work.store import Store

torch.set_num_threads(1)
QUICK = Training(epochs=3, batch_size=128, augment="none", lr=0.1)


def trial_of(method="erm", backbone="mlp", training=QUICK, hparams=None, data="digits", **more):
    made = hparams or registry[method].hparams_class()
    return Trial(method=method, hparams=made, data=data, backbone=backbone, training=training, **more)


def fitted(trial, watch=None):
    method, _ = fit(trial, datasets.load(trial.data), runtime_for("cpu"), None, math.inf, watch)
    return method


def right(method, split="test"):
    dataset = datasets.load("digits")
    images = getattr(datasets.split_dataset(dataset), split)
    return accuracy_of(method, Batches(images, dataset, torch.device("cpu")))


def weights(store, key):
    return (store.path("train", key) / WEIGHTS).read_bytes()


# ---- killed and resumed


def kill_at(number, trial, root):
    """How a child of this process ends that is killed behind its training step of that number."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        act, numbers = training.optimizers.OptimizerStep.__call__, itertools.count(1)

        def step(self, loss):
            act(self, loss)
            if next(numbers) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        training.optimizers.OptimizerStep.__call__ = step
        train(trial, Store(root), runtime_for("cpu", "float32"), checkpoint_seconds=0.0)
    finally:
        os._exit(1)


@pytest.mark.parametrize(
    ("method", "backbone", "optimizer"),
    [("mc-dropout", "conv", "sgd"), pytest.param("due", "mlp", "adamw", marks=pytest.mark.slow)],
)
@pytest.mark.fresh_process
def test_killed_and_resumed_is_bit_identical(tmp_path, method, backbone, optimizer):
    rate = 0.1 if optimizer == "sgd" else 0.003
    plan = replace(QUICK, optimizer=optimizer, lr=rate, augment="shift", accumulate=2, schedule="cosine")
    trial = trial_of(method, backbone, plan, spectral=2.0)
    whole, broken = Store(tmp_path / "whole"), Store(tmp_path / "broken")
    key = train(trial, whole, runtime_for("cpu", "float32"))
    steps = random.Random(method).sample(range(2, 24), 2)  # of 2 × 8 × 3 calls, then of what is left
    for step in steps:
        assert kill_at(step, trial, broken.root) == -signal.SIGKILL
    (left,) = broken.runs()
    assert left.state == "stopped" and not broken.finished("train", key)
    assert train(trial, broken, runtime_for("cpu", "float32"), checkpoint_seconds=0.0) == key
    assert weights(broken, key) == weights(whole, key)
    broken.verify("train", key)


def test_a_finished_trial_is_not_trained_again(tmp_path, monkeypatch):
    store, here = Store(tmp_path), runtime_for("cpu")
    key = train(trial_of(), store, here)
    monkeypatch.setattr("nescio.training.steps.fit", lambda *_: pytest.fail("it trained again"))
    assert train(trial_of(), store, here) == key


def test_a_corrupted_checkpoint_is_not_used(tmp_path, caplog):
    trial, here = trial_of("mixup"), runtime_for("cpu")
    whole, store = Store(tmp_path / "whole"), Store(tmp_path / "store")
    key = train(trial, whole, here)

    def stop(seen):
        if seen["epoch"] >= 2:
            raise InterruptedError("enough")

    with pytest.raises(InterruptedError):
        train(trial, store, here, checkpoint_seconds=0.0, watch=stop)
    (checkpoint,) = store.root.glob("train/*.part/.work/checkpoint.safetensors")
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    checkpoint.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert train(trial, store, here) == key
    assert len([each for each in caplog.records if "damaged" in each.message]) == 1
    assert weights(store, key) == weights(whole, key)


def test_a_loss_that_is_no_number_fails_the_trial(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(Diverged, match="smaller learning rate"):
        train(trial_of(training=replace(QUICK, lr=1e12)), store, runtime_for("cpu"))
    (run,) = store.runs()
    assert run.state == "failed" and "The loss became" in run.reason


def test_reloaded_weights_are_the_trained_ones(tmp_path):
    trial, store, here = trial_of(), Store(tmp_path), runtime_for("cpu")
    loaded = load_method(train(trial, store, here), trial, store, here)
    trained = fitted(trial)
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), trained.state_dict().values(), strict=True)
    )
    facts = json.loads((store.path("train", train(trial, store, here)) / "facts.json").read_text())
    assert facts["params"] == 64 * 100 + 100 + 2 * (100 * 100 + 100) + 1010
    assert facts["images"] == 3 * (1078 // 128) * 128
    assert facts["train_accuracy"] == pytest.approx(right(loaded, "train"), abs=1e-9)  # all rows: there are few


def test_seeds_do_what_their_names_say():
    def first(trial):
        return next(iter(fitted(replace(trial, training=replace(QUICK, epochs=1))).parameters()))

    base = first(trial_of())
    assert torch.equal(base, first(trial_of()))
    assert not torch.equal(base, first(trial_of(init_seed=1)))
    assert not torch.equal(base, first(trial_of(data_seed=1)))


# ---- fine-tuning


def test_a_trial_that_starts_from_another_begins_with_its_backbone(tmp_path):
    store, here, dataset = Store(tmp_path), runtime_for("cpu"), datasets.load("digits")
    key = train(trial_of(classes=(0, 1, 2, 3, 4)), store, here)
    first = load_method(key, trial_of(classes=(0, 1, 2, 3, 4)), store, here)
    plain, tuned = trial_of(init_seed=1), trial_of(init_seed=1, start=f"store:{key}")
    begun = initial_method(tuned, dataset, here, store)
    ours, theirs = begun.features.state_dict(), first.features.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    fresh = initial_method(plain, dataset, here)
    assert torch.equal(begun.head.weight, fresh.head.weight)  # ten classes: the head of five is not taken
    assert not torch.equal(begun.features[1].weight, fresh.features[1].weight)
    assert train_step(tuned).key != train_step(plain).key
    other = train(trial_of(classes=(0, 1, 2, 3, 4), init_seed=5), store, here)
    assert train_step(replace(tuned, start=f"store:{other}")).key != train_step(tuned).key
    assert right(load_method(train(tuned, store, here), tuned, store, here)) > 0.4


def test_a_head_that_fits_is_taken_with_its_backbone(tmp_path):
    store, here = Store(tmp_path), runtime_for("cpu")
    key = train(trial_of(), store, here)
    method = build(trial_of("soft-labels"), datasets.load("digits"), rows=0)
    assert take_weights(method, f"store:{key}", store) == []
    assert torch.equal(method.head.weight, load_method(key, trial_of(), store, here).head.weight)


def test_a_trial_starts_from_a_checkpoint_of_the_whole_or_of_the_bare_backbone(tmp_path):
    from safetensors.torch import save_file

    store, here, dataset = Store(tmp_path), runtime_for("cpu"), datasets.load("digits")
    source = initial_method(trial_of(init_seed=7), dataset, here)
    torch.save({"state_dict": source.state_dict()}, tmp_path / "whole.pth")
    save_file(source.features.state_dict(), tmp_path / "bare.safetensors")
    for name in ("whole.pth", "bare.safetensors"):
        begun = initial_method(trial_of(start=f"file:{tmp_path / name}"), dataset, here, store)
        assert torch.equal(begun.features[1].weight, source.features[1].weight)
    before = train_step(trial_of(start=f"file:{tmp_path / 'bare.safetensors'}")).key
    save_file(initial_method(trial_of(), dataset, here).features.state_dict(), tmp_path / "bare.safetensors")
    assert train_step(trial_of(start=f"file:{tmp_path / 'bare.safetensors'}")).key != before  # other weights, other key


def test_what_a_trial_cannot_start_from_is_one_sentence(tmp_path):
    store, here = Store(tmp_path), runtime_for("cpu")
    torch.save(build(trial_of(backbone="conv"), datasets.load("digits"), 0).state_dict(), tmp_path / "conv.pth")
    for start, sentence in (
        (f"file:{tmp_path / 'conv.pth'}", r"conv.pth does not fit this backbone: it lacks features\..*of \d+ tensors"),
        (f"file:{tmp_path / 'none.pth'}", "store:KEY, or file:PATH"),
        ("elsewhere", "'elsewhere'.*store:KEY, or file:PATH"),
        ("store:0123456789abcdef", "There is no trained network 0123456789abcdef"),
    ):
        with pytest.raises(BadInput, match=sentence):
            train(trial_of(start=start), store, here)


@pytest.mark.fresh_process
def test_killed_fine_tuning_resumes_and_is_bit_identical(tmp_path):
    whole, broken, here = Store(tmp_path / "whole"), Store(tmp_path / "broken"), runtime_for("cpu", "float32")
    first = trial_of(init_seed=3)
    keys = {train(first, store, here) for store in (whole, broken)}
    tuned = trial_of("mc-dropout", start=f"store:{keys.pop()}")
    key = train(tuned, whole, here)
    assert kill_at(9, tuned, broken.root) == -signal.SIGKILL
    assert not broken.finished("train", key)
    assert train(tuned, broken, here, checkpoint_seconds=0.0) == key
    assert weights(broken, key) == weights(whole, key)


def test_the_command_starts_from_a_trained_network(warm, tmp_path):
    budget = "--backbone mlp --augment none --epochs 1 --batch-size 128 --device cpu"
    words = ["train", *budget.split(), "--store", tmp_path]
    assert warm.run(*words)[0] == 0
    (run,) = Store(tmp_path).runs()
    code, command = warm.run(*words, "--start", f"store:{run.key}", "--init-seed", "1")
    assert code == 0, command.err
    tuned = next(each for each in Store(tmp_path).runs() if each.key != run.key)
    assert tuned.config["start"] == f"store:{run.key}" and tuned.state == "finished"
    code, failed = warm.run(*words, "--start", "store:ffff")
    assert code == 2 and "ffff" in failed.err and len(failed.err.splitlines()) == 1


# ---- budget


def test_parts_of_a_batch_are_the_batch():
    """Without batch-norm and random draws a batch in two parts gives the same step."""
    whole, parts = (fitted(trial_of(training=replace(QUICK, accumulate=count))) for count in (1, 2))
    different = fitted(trial_of(training=replace(QUICK, batch_size=64)))
    for name, tensor in whole.state_dict().items():
        assert torch.allclose(tensor, parts.state_dict()[name], atol=1e-4)
    assert not torch.allclose(whole.head.weight, different.head.weight, atol=1e-2)


# ---- weights on the way


def test_weights_that_are_kept_on_the_way_change_nothing_and_can_be_taken(tmp_path):
    """Those of sngp are finished as the last ones are, though training goes on after them."""
    store, here = Store(tmp_path), runtime_for("cpu")
    plain = trial_of("sngp", training=replace(QUICK, augment="shift"))
    kept = replace(plain, kept=(1, 2))
    assert weights(store, train(plain, store, here)) == weights(store, train(kept, store, here))
    found = {}
    for epoch in (1, 2):
        step = train_step(replace(kept, stop=epoch))
        step.run(Context(store, device="cpu"))
        found[epoch] = load_method(step.key, replace(kept, stop=epoch), store, here)
        assert found[epoch].gp.precision.trace() > 1.1 * len(found[epoch].gp.precision)  # finalised
    assert not torch.equal(found[1].gp.weights.weight, found[2].gp.weights.weight)
    assert right(found[1]) < right(load_method(train_step(kept).key, kept, store, here))
    with pytest.raises(BadInput, match=r"Trial\.kept .* Trial\.stop"):
        replace(plain, kept=(3,))


def test_a_killed_trial_still_has_the_weights_that_it_kept_before(tmp_path):
    trial = trial_of(kept=(1,))
    one, other, here = Store(tmp_path / "one"), Store(tmp_path / "other"), runtime_for("cpu")
    key = train(trial, one, here)

    def stop(seen):
        if seen["epoch"] > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(trial, other, here, checkpoint_seconds=0.0, watch=stop)
    assert train(trial, other, here) == key
    files = [store.path("train", key) / "epoch-1.safetensors" for store in (one, other)]
    assert files[0].read_bytes() == files[1].read_bytes() != weights(one, key)


def test_bounded_layers_start_from_weights_that_were_learnt_without_bounds(tmp_path):
    store, here, digits = Store(tmp_path), runtime_for("cpu"), datasets.load("digits")
    plain = trial_of(backbone="conv")
    key = train(plain, store, here)
    images = next(iter(Batches(digits.test, digits, here.device)))[0]
    found = {None: load_method(key, plain, store, here)}
    for bound in (100.0, 0.5):
        found[bound] = build(trial_of("sngp", "conv", hparams=registry["sngp"].hparams_class(bound=bound)), digits, 0)
        take_weights(found[bound], f"store:{key}", store)
    with torch.no_grad():
        free, wide, narrow = (each.eval().features(images) for each in found.values())
    assert torch.allclose(wide, free, atol=1e-5) and not torch.allclose(narrow, free, atol=1e-2)


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.1), ("adamw", 0.003), ("lamb", 0.02)])
def test_optimizers_learn(optimizer, rate):
    plan = replace(QUICK, optimizer=optimizer, lr=rate, epochs=8, batch_size=64)
    assert right(fitted(trial_of(training=plan))) > 0.9


@pytest.mark.parametrize("decay", [0.0, 0.02])
def test_lamb_moves_every_layer_by_a_share_of_its_own_length(decay):
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


def test_bf16_works_on_a_cpu(warm, tmp_path):
    plan = replace(QUICK, precision="bf16", epochs=5, batch_size=64)
    budget = "--backbone mlp --augment none --epochs 5 --batch-size 64 --precision bf16 --device cpu"
    words = ["train", *budget.split(), "--store", tmp_path]
    # AMX is announced, and missing, in sandboxes
    code, command = warm.run(*words, ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16")
    assert code == 0, command.err
    (run,) = Store(tmp_path).runs()
    method = load_method(run.key, trial_of(training=plan), Store(tmp_path), runtime_for("cpu"))
    assert right(method) > 0.85
    assert all(each.dtype == torch.float32 for each in method.parameters())
    assert not torch.equal(
        method.head.weight, fitted(trial_of(training=replace(plan, precision="float32"))).head.weight
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile builds with g++ on a CPU")
def test_a_compiled_network_learns_the_same():
    plain, compiled = (fitted(trial_of(training=replace(QUICK, epochs=2, compile=each))) for each in (False, True))
    assert compiled.features._compiled_call_impl is not None, "the network was not compiled"
    theirs = compiled.state_dict()
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-3, atol=1e-4, msg=name)


def test_rates_of_the_schedules():
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


def test_the_rate_that_is_used_is_the_stated_one():
    seen = []
    plan = Training(epochs=4, batch_size=128, augment="none", schedule="step", step_epochs=2, lr=0.2)
    hparams = ERM.hparams_class(lr=0.5)
    fitted(trial_of(training=plan, hparams=hparams), lambda each: seen.append((each["epoch"], each["rate"])))
    assert [epoch for epoch, _ in seen] == pytest.approx([1, 2, 3, 4])
    assert [rate for _, rate in seen] == pytest.approx([0.1, 0.1, 0.01, 0.01])


def test_groups_have_their_own_rate_and_decay():
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


def test_clipping_bounds_the_step():
    plan = replace(QUICK, epochs=1, batch_size=1024, momentum=0.0, weight_decay=0.0, lr=1.0, clip=1e-3)
    trial = trial_of(training=plan)
    start = initial_method(trial, datasets.load("digits"), runtime_for("cpu"))
    method = fitted(trial)
    pairs = zip(start.parameters(), method.parameters(), strict=True)
    moved = torch.cat([(a - b).flatten() for a, b in pairs]).norm()
    assert float(moved.detach()) == pytest.approx(1e-3, rel=1e-3)


def test_moving_average_of_the_weights(monkeypatch):
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


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (replace(QUICK, batch_size=4096), "fewer than one batch"),
        (replace(QUICK, batch_size=100, accumulate=3), "equal parts"),
    ],
)
def test_impossible_batches_are_sentences(plan, sentence):
    with pytest.raises(BadInput, match=sentence):
        fitted(trial_of(training=plan))


# ---- several processes


TWO = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")


def by_two(words, store):
    """The command as two processes under torchrun."""
    command = [sys.executable, "-W", "ignore", "-m", *TWO, "nescio", *words.split(), "--store", str(store)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def test_two_processes_are_as_good_as_one(tmp_path):
    words = "train --backbone mlp --augment none --epochs 3 --batch-size 128 --device cpu --checkpoint-seconds 0"
    done = by_two(words, tmp_path / "two")
    assert done.returncode == 0, done.stderr
    (run,) = Store(tmp_path / "two").runs()
    assert run.state == "finished" and done.stdout.count("is finished") == 1
    here, trial = runtime_for("cpu"), trial_of()
    key = train(trial, Store(tmp_path / "one"), here)
    assert run.key == key  # how many processes work is not part of what is made
    one, two = (load_method(key, trial, Store(tmp_path / name), here) for name in ("one", "two"))
    for name, tensor in one.state_dict().items():
        assert torch.allclose(tensor, two.state_dict()[name], atol=1e-3)
    assert right(one) == pytest.approx(right(two), abs=0.01)


def fitted_by_two(trials, folder):
    """The methods that two processes train together, each of them a child of this one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(2):
        if child := os.fork():
            children.append(child)
            continue
        code = 1
        try:
            os.environ |= {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            for number, trial in enumerate(trials):
                torch.save(fitted(trial).state_dict(), folder / f"{number}.{rank}")
            code = 0
        finally:
            os._exit(code)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    return [[torch.load(folder / f"{number}.{rank}") for rank in range(2)] for number in range(len(trials))]


RISING = Training(epochs=1, batch_size=128, augment="none", lr=0.3, warmup=0.5, schedule="cosine", clip=1.0)


def farthest(state, method):
    own = dict(method.named_parameters())
    return max(float((state[name] - tensor.detach()).abs().max()) for name, tensor in own.items())


@pytest.mark.fresh_process
def test_two_processes_learn_what_one_does(tmp_path):
    """Batch, rate, warm-up, clipping and augmentation are those of the plan, however many processes share a batch:
    without batch-norm nothing but the order of sums differs, whether a process takes its share at once or in parts."""
    shifted = replace(RISING, augment="shift")
    trials = [trial_of(training=replace(shifted, accumulate=parts)) for parts in (1, 2)]
    one, in_parts = map(fitted, trials)
    for (first, second), alone in zip(fitted_by_two(trials, tmp_path), (one, in_parts), strict=True):
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert farthest(first, alone) < 1e-5
    assert farthest(one.state_dict(), fitted(trial_of(training=replace(shifted, lr=0.15)))) > 1e-2


@pytest.fixture
def in_doubles():
    """ReLU and pools turn differences of one rounding into large ones, here and there: in float64 next to never."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.fresh_process
def test_with_batch_norm_two_processes_are_one_that_takes_the_same_parts(tmp_path, in_doubles):
    x, y = np.random.default_rng(0).integers(0, 256, (1280, 8, 8), dtype=np.uint8), np.arange(1280) % 10
    # Noise: where images have areas of one colour, roundings decide which of a pool's equal values is the largest.
    np.savez(tmp_path / "noise.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    data = f"npz:{tmp_path / 'noise.npz'}"
    plans = [replace(RISING, accumulate=parts) for parts in (1, 2, 4)]
    trials = [trial_of(backbone="conv", training=plan, data=data) for plan in plans]
    whole, halves, quarters = map(fitted, trials)
    (two, other), (two_in_parts, _) = fitted_by_two(trials[:2], tmp_path)
    assert all(torch.equal(two[name], other[name]) for name in two)
    assert farthest(two, halves) < 1e-12 and farthest(two_in_parts, quarters) < 1e-12
    assert farthest(two, whole) > 1e-3  # batch-norm sees half of a batch at a time


def same_parts(stream, epoch, start):
    """Batches of an epoch in the parts that several processes take, for each of them or for one that takes all; what is
    drawn for a part depends on nothing else."""
    plan, here = stream.plan, stream.runtime
    parts = here.world if here.world > 1 else plan.accumulate
    how = {"augment": plan.augment, "seed": epoch, "shuffle": True, "views": stream.views, "world": parts}
    for number in range(len(stream.images.labels) // plan.batch_size):
        for part in [here.rank] if here.world > 1 else range(parts):
            for shown in stream.batches(batch=plan.batch_size, rank=part, start=number, stop=number + 1, **how):
                torch.manual_seed(100 * number + part)
                yield shown


TAKES_ALL = {"duq": "sums", "moco": "queue"}  # methods whose state follows the rows of all processes
STATE = {**TAKES_ALL, "sngp": "gp.precision", "postnet": "counts"}
FAST = ("duq", "moco", "postnet")


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in registry],
)
@pytest.mark.fresh_process
def test_with_every_method_two_processes_are_one_that_takes_the_same_parts(name, tmp_path, monkeypatch):
    monkeypatch.setattr(training.streams.TrainingStream, "epoch", same_parts)
    plan = Training(epochs=1, batch_size=128, augment=registry[name].augment or "none", lr=0.05)
    trial = trial_of(name, training=plan)
    ((two, other),) = fitted_by_two([trial], tmp_path)
    assert all(torch.equal(two[key], other[key]) for key in two)
    one = fitted(trial if name in TAKES_ALL else replace(trial, training=replace(plan, accumulate=2)))
    assert farthest(two, one) < 1e-5
    if state := STATE.get(name):
        torch.testing.assert_close(two[state], one.state_dict()[state], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_two_processes_fail_together_go_on_together_and_find_finished_work(tmp_path):
    words = "train --method mc-dropout --backbone conv --epochs 5 --batch-size 64 --augment shift --device cpu"
    failed = by_two(f"{words} --lr 1e12", tmp_path)
    assert failed.returncode != 0
    (run,) = Store(tmp_path).runs()
    assert run.state == "failed" and "The loss became" in run.reason
    trial, store = trial_of("mc-dropout", "conv", Training(epochs=5, batch_size=64, augment="shift")), Store(tmp_path)

    def stop(seen):
        if seen["epoch"] >= 2:
            raise InterruptedError("enough")

    with pytest.raises(InterruptedError):  # one process begins …
        train(trial, store, runtime_for("cpu"), checkpoint_seconds=0.0, watch=stop)
    for said in ("is finished", "was finished before"):  # … two go on
        done = by_two(words, tmp_path)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    key = next(run.key for run in store.runs() if run.state == "finished")
    assert right(load_method(key, trial, store, runtime_for("cpu"))) > 0.8


def test_the_precision_of_a_trial_is_the_one_that_trains(monkeypatch, tmp_path):
    seen = []

    def look(trial, dataset, runtime, *_):
        seen.append(runtime.precision)
        raise Diverged("Seen enough.")

    monkeypatch.setattr("nescio.training.steps.fit", look)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    for precision in ("float32", "bf16"):
        with pytest.raises(Diverged):
            train(trial_of(training=replace(QUICK, precision=precision)), Store(tmp_path), runtime_for("cpu"))
    assert seen == ["float32", "bf16"]


def test_networks_of_one_seed_start_alike():
    def start(method, spectral):
        return build(trial_of(method, spectral=spectral), datasets.load("digits"), rows=100)

    erm, mixup, bounded = start("erm", None), start("mixup", None), start("erm", 5.0)
    assert torch.equal(erm.features[1].weight, mixup.features[1].weight)
    assert torch.equal(erm.head.weight, bounded.head.weight)


# ---- same key, same numbers


def run_steps(steps, context):
    for step in steps:
        step.run(context, wait=True)


def test_a_worker_and_a_process_of_many_threads_give_the_same_bits(tmp_path):
    """Each trains erm and rnd, and predicts with them."""
    trials = [trial_of(name, "conv", Training(epochs=2, batch_size=128, augment="shift")) for name in ("erm", "rnd")]
    pairs = [
        (train_step(trial), predict_step(network_of_trial(trial), ImageSet("digits", limit=100))) for trial in trials
    ]
    theirs, ours = Store(tmp_path / "worker"), Store(tmp_path / "here")
    steps = [step for pair in pairs for step in pair]
    with LocalWorkers(1) as workers:
        assert workers.run([Task("all", run_steps, (steps, Context(theirs, device="cpu")))]) == []
    torch.set_num_threads(2)
    try:
        run_steps(steps, Context(ours, device="cpu"))
        assert torch.get_num_threads() == 2, "what was set before is set again"
    finally:
        torch.set_num_threads(1)
    for training_step, prediction in pairs:
        files = (
            (training_step, WEIGHTS),
            (prediction, "predictions/logits.npy"),
            (prediction, "predictions/embeddings.npy"),
        )
        for step, name in files:
            one, two = ((step.folder(store) / name).read_bytes() for store in (ours, theirs))
            assert one == two, step.name


def test_the_number_of_threads_is_part_of_the_key_and_shows_the_same_images():
    one, two = trial_of(), trial_of(training=replace(QUICK, threads=2))
    assert train_step(one).key != train_step(two).key
    assert all(
        torch.allclose(a, b, atol=1e-3) for a, b in zip(fitted(one).parameters(), fitted(two).parameters(), strict=True)
    )


def test_threads_of_a_gpu_and_of_pretrained_networks_are_left_alone():
    torch.set_num_threads(2)
    try:
        for here, count in ((runtime_for("cpu"), None), (replace(runtime_for("cpu"), device=torch.device("cuda")), 1)):
            with here.threads(count):
                assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_parts_that_are_frozen_stay_so_after_an_evaluation():
    net = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Dropout()).train()
    net[0].eval()
    with evaluating(net):
        assert not any(part.training for part in net.modules())
    assert [part.training for part in net.modules()] == [True, False, True]
