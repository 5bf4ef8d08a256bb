"""The only training loop: learning, kills, and several processes."""

import itertools
import logging
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

from nescio import training
from nescio.methods import registry
from nescio.runtime import evaluating, runtime_for
from nescio.training import (
    Diverged,
    load_method,
    train,
)
from nescio.trials import Training
from nescio.work.store import Store
from tests.support.trainings import QUICK, fitted, right, trial_of, weights

torch.set_num_threads(1)


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
def test_train__killed_and_resumed_is_bit_identical(tmp_path, method, backbone, optimizer):
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


def test_train__a_corrupted_checkpoint_is_not_used(tmp_path, caplog):
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


def test_train__a_loss_that_is_no_number_fails_the_trial(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(Diverged, match="smaller learning rate"):
        train(trial_of(training=replace(QUICK, lr=1e12)), store, runtime_for("cpu"))
    (run,) = store.runs()
    assert run.state == "failed" and "The loss became" in run.reason


def test_loop__seeds_do_what_their_names_say():
    def first(trial):
        return next(iter(fitted(replace(trial, training=replace(QUICK, epochs=1))).parameters()))

    base = first(trial_of())
    assert torch.equal(base, first(trial_of()))
    assert not torch.equal(base, first(trial_of(init_seed=1)))
    assert not torch.equal(base, first(trial_of(data_seed=1)))


@pytest.mark.fresh_process
def test_train__killed_fine_tuning_resumes_and_is_bit_identical(tmp_path):
    whole, broken, here = Store(tmp_path / "whole"), Store(tmp_path / "broken"), runtime_for("cpu", "float32")
    first = trial_of(init_seed=3)
    keys = {train(first, store, here) for store in (whole, broken)}
    tuned = trial_of("mc-dropout", start=f"store:{keys.pop()}")
    key = train(tuned, whole, here)
    assert kill_at(9, tuned, broken.root) == -signal.SIGKILL
    assert not broken.finished("train", key)
    assert train(tuned, broken, here, checkpoint_seconds=0.0) == key
    assert weights(broken, key) == weights(whole, key)


def test_load_method__bf16_works_on_a_cpu(warm, tmp_path):
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
def test_loop__a_compiled_network_learns_the_same():
    plain, compiled = (fitted(trial_of(training=replace(QUICK, epochs=2, compile=each))) for each in (False, True))
    assert compiled.features._compiled_call_impl is not None, "the network was not compiled"
    theirs = compiled.state_dict()
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-3, atol=1e-4, msg=name)


# ---- several processes


TWO = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")


def by_two(words, store):
    """The command as two processes under torchrun."""
    command = [sys.executable, "-W", "ignore", "-m", *TWO, "nescio", *words.split(), "--store", str(store)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def test_load_method__two_processes_are_as_good_as_one(tmp_path):
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
def test_loop__two_processes_learn_what_one_does(tmp_path):
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
def test_loop__with_batch_norm_two_processes_are_one_that_takes_the_same_parts(tmp_path, in_doubles):
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
def test_loop__with_every_method_two_processes_are_one_that_takes_the_same_parts(name, tmp_path, monkeypatch):
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
def test_load_method__two_processes_fail_together_go_on_together_and_find_finished_work(tmp_path):
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


def test_loop__parts_that_are_frozen_stay_so_after_an_evaluation():
    net = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Dropout()).train()
    net[0].eval()
    with evaluating(net):
        assert not any(part.training for part in net.modules())
    assert [part.training for part in net.modules()] == [True, False, True]
