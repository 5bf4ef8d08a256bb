"""Ranges of rows: predicted apart, on any launcher, and joined to the very dump that one pass gives."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from nescio.cli import main
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.methods import registry
from nescio.networks.models import find_network, network_of_trial
from nescio.predict import OutputSpec, even_ranges, load_predictions, predict_all, predict_step, row_ranges, steps
from nescio.predict import outputs as outputs_module
from nescio.predictions import Predictions
from nescio.trials import Training, Trial
from nescio.work.launchers import make_launcher
from nescio.work.steps import Context, Work
from nescio.work.store import Store
from tests.support.zoo_help import images_at

torch.set_num_threads(1)
pytest_plugins = ("tests.support.zoo_fixtures",)
IMAGES = ImageSet("digits", limit=150)
BATCH = 16


def network_of(method, backbone="mlp"):
    budget = Training(epochs=1, batch_size=256, augment="none")
    hparams = registry[method].hparams_class()
    return network_of_trial(Trial(method=method, hparams=hparams, data="digits", backbone=backbone, training=budget))


@pytest.fixture
def contexts(tmp_path):
    return [Context(Store(tmp_path / name), device="cpu") for name in ("whole", "shards")]


def files(step, store):
    """What a step made, but for the pace and the computer."""
    folder = step.folder(store)
    made = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    facts = json.loads(made.pop("facts.json"))
    assert facts.pop("images_per_second") > 0
    return {name: made[name] for name in made if name.startswith("predictions")}, facts


def steps_of(net, context, shards, images=IMAGES, **how):
    ranges = row_ranges(net, images, context, shards=shards, batch=BATCH)
    return ranges, predict_step(net, images, batch=BATCH, ranges=ranges, **how)


# ---- ranges


def test_even_ranges__ranges_are_even_and_never_cut_a_batch():
    for rows, count, batch in [(100, 4, 8), (100, 3, 7), (5, 9, 2), (1, 1, 512), (1024, 2, 512), (1025, 2, 512)]:
        ranges = even_ranges(rows, count, batch)
        assert len(ranges) == min(count, -(-rows // batch))
        assert [ranges[0].start, *(each.stop for each in ranges)] == [*(each.start for each in ranges), rows]
        assert all(each.start % batch == 0 for each in ranges)
        sizes = [-(-(each.stop - each.start) // batch) for each in ranges]
        assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


def test_row_ranges__how_many_ranges_follows_from_rows_and_workers(contexts, monkeypatch):
    net, context = network_of("erm"), contexts[0]

    def count(**how):
        return len(row_ranges(net, IMAGES, context, batch=BATCH, **how)) or 1

    assert count() == count(workers=8) == count(shards=1, workers=8) == 1  # 150 rows are too few
    monkeypatch.setattr(steps, "SHARD_MIN_ROWS", 40)
    assert [count(workers=workers) for workers in (0, 1, 2, 3, 50)] == [1, 1, 2, 3, 3]
    assert count(shards=4, workers=50) == 4 and count(shards=1000) == 10  # batches
    with pytest.raises(BadInput, match="shards"):
        count(shards=0)


# ---- the same to the last bit


@pytest.mark.parametrize(("method", "backbone"), [("erm", "mlp"), ("mc-dropout", "mlp"), ("erm", "conv")])
@pytest.mark.parametrize("shards", [3, 1000])
def test_row_ranges__joined_ranges_are_one_pass_to_the_last_bit(contexts, method, backbone, shards):
    whole, cut = contexts
    net = network_of(method, backbone)
    (_, one), (ranges, many) = steps_of(net, whole, 1), steps_of(net, cut, shards)
    assert len(ranges) == min(shards, 10) and many.key == one.key
    one.run(whole)
    many.run(cut)
    assert files(many, cut.store) == files(one, whole.store)
    assert cut.store.runs("shard") == []  # what is joined is not kept twice


def test_load_predictions__draws_do_not_depend_on_where_a_range_begins(contexts, monkeypatch):
    """With the seed of one pass set once and not for every batch, the same ranges give other draws."""
    whole, cut = contexts
    net, seed = network_of("mc-dropout"), outputs_module.seed_everything
    _, many = steps_of(net, cut, 3)
    many.run(cut)
    seen = []
    monkeypatch.setattr(outputs_module, "seed_everything", lambda given: seen or (seen.append(given), seed(given)))
    _, one = steps_of(net, whole, 1)
    one.run(whole)
    ours, theirs = (load_predictions(step, context.store).logits for step, context in ((many, cut), (one, whole)))
    assert np.array_equal(ours[:BATCH], theirs[:BATCH]) and not np.array_equal(ours, theirs)


def test_shards__a_whole_prediction_that_is_there_is_never_cut(contexts, monkeypatch):
    context = contexts[0]
    net = network_of("erm")
    steps_of(net, context, 1)[1].run(context)
    monkeypatch.setattr(steps, "predict_images", lambda *_: pytest.fail("it predicts again"))
    steps_of(net, context, 3)[1].run(context)
    assert not (context.store.root / "shard").exists()


# ---- kills, damage, failures


def dies(context, step, after):
    """Runs a step in a process of its own, since torch's threads do not survive a fork, that is killed in its n-th
    prediction."""
    process = multiprocessing.get_context("spawn").Process(target=killed, args=(context, step, after))
    process.start()
    process.join()
    return process.exitcode


def killed(context, step, after):
    done, real = [], steps.predict_images

    def outputs(*args):
        done.append(1)
        return os.kill(os.getpid(), signal.SIGKILL) if len(done) == after else real(*args)

    steps.predict_images = outputs
    step.run(context)


def test_shards__a_killed_range_is_resumed_alone(contexts, monkeypatch):
    whole, cut = contexts
    net = network_of("mc-dropout")
    (_, one), (_, many) = steps_of(net, whole, 1), steps_of(net, cut, 4)
    one.run(whole)
    many.parents[0].run(cut)
    assert dies(cut, many, 3) == -signal.SIGKILL
    assert [shard.finished(cut.store) for shard in many.shards] == [True, True, False, False]
    seen, real = [], steps.predict_images
    monkeypatch.setattr(steps, "predict_images", lambda *args: seen.append(args[-1]) or real(*args))
    many.run(cut)
    assert seen == [shard.config["rows"][0] for shard in many.shards[2:]]
    assert files(many, cut.store) == files(one, whole.store)
    assert {run.state for run in cut.store.runs()} == {"finished"}


def test_shards__a_damaged_range_is_made_again_alone(contexts, monkeypatch):
    whole, cut = contexts
    net = network_of("erm")
    (_, one), (_, many) = steps_of(net, whole, 1), steps_of(net, cut, 4)
    one.run(whole)
    for shard in many.shards:
        shard.run(cut)
    logits = many.shards[1].folder(cut.store) / "predictions" / "logits.npy"
    logits.write_bytes(logits.read_bytes()[:-1] + b"x")
    seen, real = [], steps.predict_images
    monkeypatch.setattr(steps, "predict_images", lambda *args: seen.append(args[-1]) or real(*args))
    many.run(cut)
    assert seen == [many.shards[1].config["rows"][0]]
    assert files(many, cut.store) == files(one, whole.store)


def test_row_ranges__ranges_of_another_division_go_with_the_whole(contexts):
    context = contexts[0]
    net = network_of("erm")
    steps_of(net, context, 5)[1].shards[0].run(context)
    steps_of(net, context, 2)[1].run(context)
    assert context.store.runs("shard") == []


def test_shards__a_range_that_fails_is_listed_and_the_whole_is_not_tried(contexts, monkeypatch):
    context = contexts[0]
    _, many = steps_of(network_of("erm"), context, 3)
    many.parents[0].run(context)
    real = steps.predict_images

    def outputs(*args):
        if args[-1]:
            raise BadInput("No.")
        return real(*args)

    monkeypatch.setattr(steps, "predict_images", outputs)
    work = Work(context, make_launcher("local", 0))
    assert work.run_stage("predicting", [many]) == []
    assert [failure.name for failure in work.failures] == [shard.title for shard in many.shards[1:]]
    assert all("rows" in failure.name and failure.reason == "No." for failure in work.failures)
    monkeypatch.setattr(steps, "predict_images", real)
    assert work.run_stage("predicting", [many]) == [many]


# ---- many networks, and the commands


def by_zoo(place, context, shards, **how):
    names = ["test_resnet", "test_vit"]
    pairs = [(find_network(name, context.store), images_at(place)) for name in names]
    output_spec = OutputSpec(("logits",), "float16", mc_samples=3, dropout=0.5, compared=True)
    return predict_all(pairs, context, output_spec, weights=place / "w", batch=2, shards=shards, **how)


@pytest.mark.usefixtures("offline")
def test_load_predictions__pretrained_networks_say_the_same_in_ranges(place, contexts):
    whole, cut = contexts
    seen, said = [], []
    one, many = (
        by_zoo(place, whole, 1),
        by_zoo(place, cut, 3, watch=lambda *counts: seen.append(counts), say=said.append),
    )
    assert one.failures == many.failures == [] and len(many.steps) == 2
    for ours, theirs in zip(many.steps, one.steps, strict=True):
        assert files(ours, cut.store) == files(theirs, whole.store)
    dump = load_predictions(many.steps[0], cut.store)
    assert dump.logits.dtype == np.float16 and "mc-dropout" in dump.variants
    assert seen[-1] == (8, 0, 8, 0) and len(said) == 2
    again = by_zoo(place, cut, 3, say=said.append)
    assert [step.key for step in again.steps] == [step.key for step in many.steps] and len(said) == 2
    assert not cut.store.runs("shard")


@pytest.mark.usefixtures("offline")
def test_predict_all__decoded_images_of_ranges_are_forgotten_too(place, contexts):
    context = contexts[0]
    assert by_zoo(place, context, 3, forget=True).failures == []
    assert not list((context.store.root / "pixels").iterdir())


@pytest.mark.usefixtures("offline")
def test_predict_all__a_network_whose_ranges_fail_is_one_failure_and_stops_no_other(place, contexts, monkeypatch):
    real = steps.predict_images

    def outputs(module, net, *args):
        if net.name == "test_vit":
            raise BadInput("It does not work.")
        return real(module, net, *args)

    monkeypatch.setattr(steps, "predict_images", outputs)
    seen = []
    many = by_zoo(place, contexts[0], 3, watch=lambda *counts: seen.append(counts))
    (failure,) = many.failures
    assert failure.name.startswith("test_vit on ") and failure.reason == "It does not work." and failure.refused
    assert len(many.steps) == 1 and seen[-1][0] == seen[-1][2] == 8


def test_train__the_command_writes_the_same_file_in_ranges(tmp_path, capsys):
    words = ["--method", "mc-dropout", "--data", "digits", "--backbone", "mlp", "--epochs", "1", "--device", "cpu"]
    assert main(["train", *words, "--store", str(tmp_path / "store")]) == 0
    key = capsys.readouterr().out.split()[0]
    for name, how in (("whole", ["--shards", "1"]), ("cut", ["--shards", "2"])):
        place = str(tmp_path / name)
        assert (
            main(["predict", key, "--store", str(tmp_path / "store"), "--device", "cpu", "--output", place, *how]) == 0
        )
        Store(tmp_path / "store").remove(Store(tmp_path / "store").runs("predict")[0])
    whole, cut = (Predictions.load(tmp_path / name) for name in ("whole", "cut"))
    for (name, ours), (_, theirs) in zip(whole.columns(), cut.columns(), strict=True):
        assert np.array_equal(ours, theirs), name
    assert main(["predict", key, "--store", str(tmp_path / "store"), "--output", "x.npz", "--shards", "0"]) == 2
    assert "shards must be" in capsys.readouterr().err
