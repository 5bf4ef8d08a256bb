"""train, predict, runs and methods: what they print, what they keep, and their sentences when something is wrong."""

import argparse
import json
import re
import shlex
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from nescio.benchmarks.base import registry as benchmarks
from nescio.cli import main
from nescio.commands import train
from nescio.commands.parsing import add_options
from nescio.datasets import image_set, readers
from nescio.methods import registry
from nescio.predictions import Predictions
from nescio.training import usual_batch
from nescio.trials import Training, from_plain
from nescio.work.store import Store
from tests.support.waiting import until

torch.set_num_threads(1)
TRAIN = ["train", "--backbone", "mlp", "--epochs", "2"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with one network that learnt the digits 0 to 5."""
    root = str(tmp_path_factory.mktemp("store"))
    assert main([*TRAIN, "--method", "rnd", "--classes", "0-5", "--hparams", "width=32", "--store", root]) == 0
    return root


def key_in(root):
    return next(run.key for run in Store(root).runs() if run.stage == "train" and run.state == "finished")


def test_train_says_the_key_and_the_place(store, capsys):
    key = key_in(store)
    assert main([*TRAIN, "--method", "rnd", "--classes", "0-5", "--hparams", "width=32", "--store", store]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{key} was finished before") and str(Store(store).path("train", key)) in said.out
    assert said.err == ""


def test_train__a_bad_log_is_refused_of_a_finished_network_too(store, capsys):
    words = [*TRAIN, "--method", "rnd", "--classes", "0-5", "--hparams", "width=32", "--store", store]
    assert main([*words, "--log", "9-0"]) == 2
    assert "--log" in capsys.readouterr().err


def test_train__options_reach_the_trial(tmp_path):
    words = "--method mc-dropout --hparams dropout=0.2,mc_samples=3 --spectral-bound 5 --data-seed 1 --init-seed 2"
    words += " --batch-size 64 --lr 0.05"
    more = "--optimizer adamw --schedule cosine --warmup 1 --accumulate 2 --clip 1 --augment none --precision float32"
    assert main([*TRAIN, *words.split(), *more.split(), "--store", str(tmp_path)]) == 0
    plain = Store(tmp_path).record("train", key_in(tmp_path))["config"]
    trial = from_plain(plain, lambda name: registry[name].hparams_class)
    assert (trial.hparams.dropout, trial.hparams.mc_samples) == (0.2, 3)
    assert (trial.spectral, trial.data_seed, trial.init_seed, trial.classes) == (5.0, 1, 2, None)
    plan = trial.training
    assert (plan.optimizer, plan.schedule, plan.warmup, plan.accumulate) == ("adamw", "cosine", 1.0, 2)
    assert (plan.batch_size, plan.lr, plan.clip, plan.augment, plan.epochs) == (64, 0.05, 1.0, "none", 2)


def helped(cls, presets=None):
    """Field → help of its option."""
    parser = argparse.ArgumentParser()
    add_options(parser, cls, presets)
    return {action.dest.rpartition(".")[2]: action.help for action in parser._actions}


def test_add_options__train_and_run_have_one_budget_and_name_where_it_starts():
    budget = {entry.name for entry in fields(Training)}
    uimnet = benchmarks["uimnet"]
    trained, run = helped(train.Options), helped(uimnet.plan, uimnet.presets)
    assert budget <= trained.keys() & run.keys()
    for name in budget:
        assert trained[name].split(" (")[0] == run[name].split(" (")[0]
    starts = {"epochs": 100, "lr": 0.1, "weight_decay": 0.0001, "optimizer": "sgd", "warmup": 0, "clip": "none"}
    for name, value in {**starts, "step_epochs": 30, "precision": "auto", "accumulate": 1}.items():
        assert trained[name].endswith(f"(default: {value})")
    assert run["epochs"].endswith("(default: 20)") and run["lr"] == trained["lr"]


def test_train__due_has_its_own_spectral_norm_unless_another_is_given(tmp_path):
    for words, target in (([], 3.0), (["--spectral-bound", "none"], None), (["--spectral-bound", "5"], 5.0)):
        place = tmp_path / str(target)
        assert (
            main(["train", "--method", "due", "--backbone", "mlp", "--epochs", "1", *words, "--store", str(place)]) == 0
        )
        assert Store(place).record("train", key_in(place))["config"]["spectral"] == target


def test_usual_batch__the_usual_batch():
    assert [usual_batch(rows) for rows in (1_000_000, 4096, 4000, 1078, 100, 5)] == [256, 256, 128, 64, 8, 8]


def test_evaluate__predict_writes_a_file_to_evaluate(store, tmp_path, capsys):
    key = key_in(store)
    for split, rows in (("test", 361), ("val", 72), ("train", 650), ("out", 238)):
        file = tmp_path / f"{split}.npz"
        assert main(["predict", key[:6], "--split", split, "--store", store, "--output", str(file)]) == 0
        dump = Predictions.load(file)
        assert abs(len(dump) - rows) < 5 and dump.logits.shape[1:] == (1, 6)
        assert dump.in_distribution.all() if split != "out" else not dump.in_distribution.any()
        assert set(dump.scores) == {"native"}
    file = tmp_path / "probed.npz"
    assert main(["predict", key, "--probes", "--store", store, "--output", str(file)]) == 0
    dump = Predictions.load(file)
    assert set(dump.scores) == {"native", "jacobian"} and set(dump.variants) == {"tta"}
    assert np.allclose(np.exp(dump.variants["tta"]).sum(1), 1, atol=1e-4)
    capsys.readouterr()
    assert main(["evaluate", str(file), "--ood", f"out={tmp_path / 'out.npz'}", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["files"][0]["rows"]
    assert any(row["measure"] == "jacobian" for row in rows)


def test_predict_does_not_train_another_network_under_the_same_name(tmp_path, monkeypatch, capsys):
    """Where the data has changed, the key names another network: it was trained silently, and called by the old key."""
    monkeypatch.chdir(tmp_path)

    def write(seed):
        x, y = np.random.default_rng(seed).integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 3
        np.savez("set.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
        readers._load.cache_clear()
        image_set._loaded.cache_clear()

    write(0)
    words = ["train", "--data", "npz:set.npz", "--method", "erm", "--backbone", "mlp", "--epochs", "1"]
    assert main(words) == 0
    (run,) = Store("store").runs()
    write(1)
    assert main(["predict", run.key, "--output", "other.npz"]) == 2
    assert f"changed since {run.key}" in capsys.readouterr().err
    assert [one.key for one in Store("store").runs()] == [run.key] and not Path("other.npz").exists()
    write(0)
    assert main(["predict", run.key, "--output", "own.npz"]) == 0


def test_train__predict_takes_a_random_part_and_says_so(store, tmp_path, capsys):
    drawn = {}
    for seed in ("0", "1"):
        file = tmp_path / f"{seed}.npz"
        words = ["predict", key_in(store), "--store", store, "--output", str(file), "--limit", "20", "--seed", seed]
        assert main(words) == 0
        stamp = f"A random sample: 20 of 361 images (seed {seed})."
        assert stamp in capsys.readouterr().out
        found = Predictions.load(file)
        assert len(found) == 20 and stamp in found.notes
        drawn[seed] = found.index.tolist()
    assert drawn["0"] != drawn["1"]
    assert main([*words[:-3], "0"]) == 2
    err = capsys.readouterr().err
    assert "--limit " in err and "0" in err


def test_runs_lists_what_there_is_and_why_it_failed(tmp_path, capsys):
    place = ["--store", str(tmp_path)]
    assert main([*TRAIN, "--epochs", "1", *place]) == 0
    assert main([*TRAIN, "--lr", "1e12", *place]) == 1
    said = capsys.readouterr().err
    assert "The loss became" in said and len(said.strip().splitlines()) == 1
    assert main(["runs", *place, "--format", "json"]) == 0
    runs = json.loads(capsys.readouterr().out)
    assert sorted(run["state"] for run in runs) == ["failed", "finished"]
    assert all(run["method"] == "erm" and run["config"]["training"]["batch"] == 64 for run in runs)
    assert main(["runs", *place, "--failed", "--format", "json"]) == 0
    (failed,) = json.loads(capsys.readouterr().out)
    assert "The loss became" in failed["reason"]
    assert main(["runs", *place]) == 0
    said = capsys.readouterr().out
    assert failed["key"] in said and "1 finished, 1 failed" in said


def test_methods_lists_hparams_and_ranges(capsys):
    assert main(["methods"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in registry)
    assert main(["methods", "mixup"]) == 0
    said = capsys.readouterr().out
    assert "Zhang et al." in said and "Beta(α, α)" in said and "0.1 to 1" in said
    assert main(["methods", "--format", "json"]) == 0
    found = {each["method"]: each for each in json.loads(capsys.readouterr().out)}
    settings = {each["setting"]: each for each in found["mc-dropout"]["hparams"]}
    assert settings["dropout"]["default"] == 0.1 and settings["dropout"]["search"] == "0.05 to 0.25, uniform"
    assert all(each["meaning"] and each["paper"] for each in found.values())
    assert all(setting["meaning"] for each in found.values() for setting in each["hparams"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "--method", "mimmo"], "Did you mean 'mimo'"),
        (["train", "--method", "mimo", "--hparams", "dropout=1"], "no setting 'dropout'"),
        (["train", "--method", "mimo", "--hparams", "inputs"], "FIELD=VALUE"),
        (["train", "--method", "mimo", "--hparams", "inputs=two"], "mimo.inputs is 'two': it must be a whole number"),
        (["train", "--method", "mimo", "--hparams", "inputs=1"], "at least 2"),
        (["train", "--hparams", "lr=1,lr=2"], "twice"),
        (["train", "--lr", "0"], "above 0"),
        (["train", "--epochs", "0"], "at least 1"),
        (["train", "--spectral-bound", "much"], "--spectral-bound is a number"),
        (["train", "--spectral-bound", "-1"], "above 0"),
        (["train", "--classes", "0-x"], "'0-x'"),
        (["train", "--classes", "0-12"], "no class 10"),
        (["train", "--classes", "3"], "two classes"),
        (["train", "--data", "nowhere"], "no dataset named"),
        (["train", "--backbone", "nonet"], "no backbone named"),
        (["train", "--device", "abacus"], "--device is 'abacus'"),
        (["train", "--log", "paper"], "tensorboard:DIR or wandb:PROJECT"),
        (["train", "--trial", "-1"], "--trial"),
        (["methods", "nothing"], "no method named"),
    ],
)
def test_train__bad_input_is_one_sentence(tmp_path, capsys, words, sentence):
    place = [] if words[0] == "methods" else ["--store", str(tmp_path)]
    assert main([*words, *place]) == 2
    said = capsys.readouterr()
    assert sentence in said.err and len(said.err.strip().splitlines()) == 1 and said.out == ""


@pytest.mark.parametrize("words", [["train"], ["run", "sensitivity"]])
def test_train__a_missing_gpu_is_one_sentence_before_any_work(tmp_path, capsys, monkeypatch, words):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main([*words, "--device", "cuda", "--store", str(tmp_path / "store")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"nescio {words[0]}: ") and "GPU" in line and "--device cpu" in line
    assert not (tmp_path / "store").exists()


def test_runs__predict_and_runs_say_what_is_missing(store, tmp_path, capsys):
    assert main(["predict", "ffff", "--store", store, "--output", str(tmp_path / "x.npz")]) == 2
    assert "network ffff" in capsys.readouterr().err
    assert main(["runs", "--store", str(tmp_path / "nowhere")]) == 2
    assert "There is no store" in capsys.readouterr().err
    assert main([*TRAIN, "--epochs", "1", "--store", str(tmp_path)]) == 0
    words = [
        "predict",
        key_in(tmp_path),
        "--split",
        "out",
        "--store",
        str(tmp_path),
        "--output",
        str(tmp_path / "x.npz"),
    ]
    assert main(words) == 2
    assert "in-distribution" in capsys.readouterr().err
    assert not [run for run in Store(tmp_path).runs() if run.state == "failed"]


def test_train__a_logger_hears_loss_rate_and_pace(tmp_path, monkeypatch):
    from nescio.api import loggers

    heard = []

    class Ear:
        def __init__(self, place, about):
            heard.append((place, about["method"]))

        def __enter__(self):
            return lambda seen: heard.append(seen)

        def __exit__(self, *_):
            heard.append("closed")

    monkeypatch.setitem(loggers.LOGGERS, "tensorboard", Ear)
    assert main([*TRAIN, "--log", "tensorboard:here", "--store", str(tmp_path)]) == 0
    assert heard[0] == ("here", "erm") and heard[-1] == "closed"
    assert [each["epoch"] for each in heard[1:-1]] == pytest.approx([1, 2])
    assert all(each["images/s"] > 0 and each["left"] >= 0 and each["rate"] == 0.1 for each in heard[1:-1])
    assert [each["step"] for each in heard[1:-1]] == [16, 32]


def scalars(folder):
    """Name -> [(step, value)] of the event files in a folder."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard here")
    events = reader.EventAccumulator(str(folder)).Reload()
    return {name: [(each.step, each.value) for each in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_train__tensorboard_files_hold_the_loss(tmp_path):
    pytest.importorskip("tensorboard", reason="no tensorboard here")
    logs = tmp_path / "logs"
    assert main([*TRAIN, "--log", f"tensorboard:{logs}", "--store", str(tmp_path / "store")]) == 0
    held = scalars(logs)
    assert {name: [step for step, _ in each] for name, each in held.items()} == {
        "loss": [16, 32],
        "rate": [16, 32],
        "images/s": [16, 32],
    }
    (_, first), (_, last) = held["loss"]
    assert 0 < last < first and [value for _, value in held["rate"]] == pytest.approx([0.1, 0.1])


def test_train__tensorboard_files_of_a_study_hold_every_trial(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="no tensorboard here")
    monkeypatch.setattr("nescio.commands.run.emit_study", lambda *_: 0)  # no page: it takes seconds
    words = (
        "run uimnet --methods erm --backbones mlp --spectral-bounds none --trials 2 --seeds 1 --epochs 1 --measures gap"
    )
    place = ["--workers", "0", "--store", str(tmp_path / "store"), "--log", f"tensorboard:{tmp_path / 'logs'}"]
    assert main([*words.split(), *place]) == 0
    held = scalars(tmp_path / "logs")
    assert {name: [step for step, _ in each] for name, each in held.items()} == {
        "nll": [1, 2],
        "seconds": [1, 2],
        "images/s": [1, 2],
    }
    assert all(value > 0 for each in held.values() for _, value in each)


def test_train__wandb_files_hold_the_loss(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="no wandb here")
    for name, value in {"MODE": "offline", "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    for name in ("DIR", "CONFIG_DIR", "CACHE_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path))
    assert main([*TRAIN, "--log", "wandb:digits", "--store", str(tmp_path / "store")]) == 0
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")

    def losses():
        found = [float(each) for each in re.findall(rb"loss\x82\x01.([0-9.]+)", file.read_bytes())]
        return found if len(set(found)) >= 2 else []

    written = until(losses)  # a process of W&B writes, a little later
    assert written[0] > written[-1] > 0 and len(set(written)) == 2  # two epochs


def test_train__a_training_ends_with_its_accuracy_and_the_next_command(store, tmp_path, capsys, monkeypatch):
    """Each command names the one that follows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("NESCIO_PLUGINS", "")
    words = [*TRAIN, "--method", "rnd", "--classes", "0-5", "--hparams", "width=32", "--store", store]
    words += ["--plugin", "mine.py"]
    for command in ("train", "predict"):
        assert main(words) == 0
        said = capsys.readouterr().out
        assert command == "predict" or re.search(r"training accuracy 0\.\d{4}", said)
        words = shlex.split(said.partition("Next: nescio ")[2])
    assert words == ["evaluate", "test.npz", "--plugin", "mine.py"] and main([*words, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["files"][0]["rows"]
    assert len(rows) > 1 and all(any(row[name] is not None for row in rows) for name in rows[0])
