"""Steps that train: finished work, weights that are kept, precision and threads."""

import json
from dataclasses import replace

import pytest
import torch

from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.networks.models import network_of_trial
from nescio.predict import predict_step
from nescio.runtime import runtime_for
from nescio.training import (
    WEIGHTS,
    Diverged,
    load_method,
    train,
    train_step,
)
from nescio.trials import Training
from nescio.work.launchers import Task
from nescio.work.local import LocalWorkers
from nescio.work.steps import Context
from nescio.work.store import Store
from tests.support.trainings import QUICK, fitted, right, trial_of, weights

torch.set_num_threads(1)


def test_steps__a_finished_trial_is_not_trained_again(tmp_path, monkeypatch):
    store, here = Store(tmp_path), runtime_for("cpu")
    key = train(trial_of(), store, here)
    monkeypatch.setattr("nescio.training.steps.fit", lambda *_: pytest.fail("it trained again"))
    assert train(trial_of(), store, here) == key


def test_load_method__reloaded_weights_are_the_trained_ones(tmp_path):
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


def test_steps__the_command_starts_from_a_trained_network(warm, tmp_path):
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


# ---- weights on the way


def test_context__weights_that_are_kept_on_the_way_change_nothing_and_can_be_taken(tmp_path):
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


def test_steps__a_killed_trial_still_has_the_weights_that_it_kept_before(tmp_path):
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


def test_train__the_precision_of_a_trial_is_the_one_that_trains(monkeypatch, tmp_path):
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


# ---- same key, same numbers


def run_steps(steps, context):
    for step in steps:
        step.run(context, wait=True)


def test_context__a_worker_and_a_process_of_many_threads_give_the_same_bits(tmp_path):
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


def test_train_step__the_number_of_threads_is_part_of_the_key_and_shows_the_same_images():
    one, two = trial_of(), trial_of(training=replace(QUICK, threads=2))
    assert train_step(one).key != train_step(two).key
    assert all(
        torch.allclose(a, b, atol=1e-3) for a, b in zip(fitted(one).parameters(), fitted(two).parameters(), strict=True)
    )


def test_steps__threads_of_a_gpu_and_of_pretrained_networks_are_left_alone():
    torch.set_num_threads(2)
    try:
        for here, count in ((runtime_for("cpu"), None), (replace(runtime_for("cpu"), device=torch.device("cuda")), 1)):
            with here.threads(count):
                assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
