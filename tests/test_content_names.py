"""Keys, seeds and draws follow the content of data, not its path: relative, absolute, moved and copied are the same."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from nescio import datasets, training
from nescio.cli import main
from nescio.datasets import decode
from nescio.datasets.image_set import ImageSet, _loaded
from nescio.datasets.names import name_for_keys, same_images
from nescio.datasets.readers import _load
from nescio.datasets.subsets import part_spec, shots_spec
from nescio.identity import ContentName, canonical, content_names, map_content, seed_for
from nescio.methods import registry as methods
from nescio.networks.models import network_of_trial
from nescio.predict import predict_step
from nescio.report.studies import ROWS
from nescio.rows import from_parquet
from nescio.trials import Training, Trial
from nescio.work.store import Store
from tests.support.zoo_help import folder

TRAIN, TEST, CLASSES = 60, 20, 4
BUDGET = ("--method", "erm", "--backbone", "mlp", "--epochs", "1", "--device", "cpu")


def write(path: Path, seed: int = 0, **more: Any) -> Path:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 256, (TRAIN + TEST, 8, 8), dtype=np.uint8), np.arange(TRAIN + TEST) % CLASSES
    path.parent.mkdir(exist_ok=True, parents=True)
    np.savez(path, x_train=x[:TRAIN], y_train=y[:TRAIN], x_test=x[TRAIN:], y_test=y[TRAIN:], **more)
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    _load.cache_clear()
    _loaded.cache_clear()
    return tmp_path


def spellings(here: Path, kind: str, name: str, size: str = "") -> list[str]:
    """Relative, absolute, copied under another name."""
    source, copy = here / name, here / "copies" / f"other-{name}"
    copy.parent.mkdir(exist_ok=True)
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, copy)
    return [f"{kind}:{place}{size}" for place in (name, source, copy, f"copies/other-{name}")]


def trial(data: str, **more: Any) -> Trial:
    budget = Training(epochs=1, batch_size=16)
    return Trial(
        method="erm", hparams=methods["erm"].hparams_class(), data=data, backbone="mlp", training=budget, **more
    )


def identity(data: str) -> tuple[Any, ...]:
    """Everything that a key or a draw follows from."""
    own, dataset = trial(data), datasets.load(data)
    images = ImageSet(data, "val", sample_size=5)
    step = predict_step(network_of_trial(own), images)
    return (
        training.train_step(own).key,
        training.loop.training_seed(own, dataset),
        step.key,
        seed_for(images.with_content_name()),
        images.load().index.tolist(),
        canonical(name_for_keys(data)),
    )


def test_content_names__one_set_has_one_identity_wherever_it_is(here: Path) -> None:
    write(here / "set.npz")
    write(here / "other.npz", seed=1)
    names = spellings(here, "npz", "set.npz")
    first, *others = [identity(name) for name in names]
    assert all(each == first for each in others)
    assert not set(map(str, first)) & set(map(str, identity("npz:other.npz"))) - {str(first[1]), str(first[4])}
    assert all(same_images(names[0], name) for name in names) and not same_images(names[0], "npz:other.npz")


@pytest.mark.parametrize("resident", [True, False])
def test_content_names__folders_too_decoded_into_memory_or_not(
    here: Path, monkeypatch: pytest.MonkeyPatch, resident: bool
) -> None:
    """Of sets that do not fit into memory the names of files are taken, and not that of the folder that holds them."""
    if not resident:
        monkeypatch.setattr(decode, "RESIDENT_BYTES", 0)
    folder(here / "birds", ("a", "b"), each=4)
    flat = here / "flat"
    flat.mkdir()
    for number, file in enumerate(sorted((here / "birds").rglob("*.*"))):
        shutil.copyfile(file, flat / f"{number}{file.suffix}")
    for kind, name in (("folder", "birds"), ("images", "flat")):
        contents = {canonical(name_for_keys(spec)) for spec in spellings(here, kind, name, "@16")}
        assert len(contents) == 1 and contents.pop().startswith(f"{kind}:content-")
    assert canonical(name_for_keys("folder:birds@16")) != canonical(name_for_keys("folder:birds@32"))
    assert same_images("folder:birds@16", f"folder:{here / 'birds'}@32")


def test_content_names__names_of_classes_votes_and_groups_are_content_and_built_in_names_stay(here: Path) -> None:
    votes = np.ones((TEST, CLASSES))
    kinds = [{}, {"classes": list("abcd")}, {"annotations_test": votes}, {"groups/site_test": np.arange(TEST)}]
    contents = [canonical(name_for_keys(f"npz:{write(here / f'{at}.npz', **more)}")) for at, more in enumerate(kinds)]
    assert len(set(contents)) == len(kinds)
    assert type(name_for_keys("digits")) is str and type(name_for_keys("part:digits#1-2")) is str
    assert canonical(ImageSet("digits").with_content_name()) == canonical(ImageSet("digits"))


def test_content_names__names_that_contain_a_name_contain_its_content(here: Path) -> None:
    write(here / "set.npz")
    own = name_for_keys("npz:set.npz")
    content = canonical(own)
    for made in (part_spec(own, (1, 2)), shots_spec(own, (1,), 2, 0)):
        assert str(here) in made and str(here) not in canonical(made) and content in canonical(made)
        assert canonical(name_for_keys(str(made))) == canonical(made)
    assert map_content("digits", str.upper) == "DIGITS" and type(map_content("digits", str.upper)) is str
    assert content_names({"a": [trial(own)], "b": (1, "x")}) == {content: own}
    assert isinstance(trial(own).data, ContentName)


def test_trial__a_file_that_a_trial_starts_from_is_known_by_its_content(here: Path) -> None:
    import torch

    torch.save({"weight": torch.zeros(2)}, here / "a.pt")
    shutil.copyfile(here / "a.pt", here / "b.pt")
    torch.save({"weight": torch.ones(2)}, here / "c.pt")
    keys = [training.train_step(trial("digits", start=f"file:{name}")).key for name in ("a.pt", here / "b.pt", "c.pt")]
    assert keys[0] == keys[1] != keys[2]


def ask(capsys: pytest.CaptureFixture[str], *words: Any) -> Any:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_content_names__transfer_judges_the_test_images_of_a_networks_own_set_in_every_spelling(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here / "set.npz")
    names = spellings(here, "npz", "set.npz")
    ask(capsys, "train", "--data", names[0], *BUDGET)
    (key,) = [run.key for run in Store("store").runs("train")]
    words = ("--crops", "0", "--bootstrap", "0", "--k", "2", "--j", "2", "--format", "json")
    for name in names:
        assert json.loads(ask(capsys, "transfer", f"store:{key}", "--data", name, *words))["n"] == TEST
        assert "was finished before" in ask(capsys, "train", "--data", name, *BUDGET)
    few = json.loads(ask(capsys, "transfer", f"store:{key}", "--data", names[1], "--classes", "0-1", *words))
    assert few["n"] == TEST // 2


def test_predict__finished_work_is_found_where_the_data_has_moved(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here / "set.npz")
    ask(capsys, "train", "--data", "npz:set.npz", *BUDGET)
    (key,) = [run.key for run in Store("store").runs("train")]
    os.rename("set.npz", "moved.npz")
    _load.cache_clear()
    _loaded.cache_clear()
    assert main(["predict", key, "--output", "test.npz"]) == 2
    assert f" at npz:{here / 'set.npz'}" in capsys.readouterr().err
    words = ("--crops", "0", "--bootstrap", "0", "--k", "2", "--j", "2", "--format", "json")
    assert json.loads(ask(capsys, "transfer", f"store:{key}", "--data", "npz:moved.npz", *words))["n"] == TEST
    assert "was finished before" in ask(capsys, "train", "--data", "npz:moved.npz", *BUDGET)
    ask(capsys, "predict", key, "--output", "test.npz")
    (run,) = json.loads(ask(capsys, "runs", "--format", "json"))[-1:]
    assert run["data"] == f"npz:{here / 'moved.npz'}" and str(here) not in json.dumps(run["config"])


def test_content_names__rows_of_a_study_are_the_same_but_for_the_name_of_moved_data(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here / "set.npz")
    words = (
        "--methods",
        "ddu",
        "--strengths",
        "2",
        "--seeds",
        "1",
        "--degrees",
        "60",
        "--epochs",
        "1",
        "--batch-size",
        "16",
        "--format",
        "json",
    )
    first = json.loads(ask(capsys, "run", "sensitivity", "--data", "npz:set.npz", *words, "--workers", "0"))
    before = {run.key for run in Store("store").runs() if run.stage != "study"}
    os.rename("set.npz", "moved.npz")
    _load.cache_clear()
    _loaded.cache_clear()
    second = json.loads(ask(capsys, "run", "sensitivity", "--data", "npz:moved.npz", *words, "--workers", "0"))
    assert {run.key for run in Store("store").runs() if run.stage != "study"} == before
    assert {row["dataset"] for row in second} == {f"npz:{here / 'moved.npz'}"}
    assert [row | {"dataset": None} for row in first] == [row | {"dataset": None} for row in second]
    kept = [row for file in Path("store/evaluate").glob(f"*/{ROWS}") for row in from_parquet(file)]
    assert {row["dataset"] for row in kept} == {canonical(name_for_keys("npz:moved.npz"))}


def test_content_names__shift_judges_a_trained_network_on_the_test_images_of_an_undivided_folder(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder(here / "birds", ("a", "b"), each=10)
    ask(capsys, "train", "--data", "folder:birds@16", *BUDGET, "--batch-size", "8")
    (key,) = [run.key for run in Store("store").runs("train")]
    words = ("--networks", f"store:{key}", "--corruptions", "brightness", "--severities", "1", "--format", "json")
    rows = json.loads(ask(capsys, "run", "shift", "--data", f"folder:{here / 'birds'}@16", *words, "--workers", "0"))
    assert {row["n"] for row in rows if row["metric"] == "accuracy"} == {4}


def test_train__moved_data_of_a_network_are_named_once(tmp_path, capsys):
    rng, labels = np.random.default_rng(0), np.arange(60) % 2
    pixels = rng.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    for name, x in (("own", pixels), ("other", 255 - pixels)):
        arrays = {"x_train": x[:40], "y_train": labels[:40], "x_test": x[40:], "y_test": labels[40:]}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    place, store = ["--store", str(tmp_path / "store")], Store(tmp_path / "store")
    words = ["--data", f"npz:{tmp_path / 'own.npz'}", "--backbone", "mlp", "--epochs", "1", "--device", "cpu"]
    assert main(["train", "--method", "erm", *words, *place]) == 0
    (key,) = [run.key for run in store.runs() if run.stage == "train"]
    (tmp_path / "own.npz").rename(tmp_path / "moved.npz")
    predict = ["predict", key, "--output", str(tmp_path / "p.npz"), *place]
    export = ["export", f"store:{key}", "--threshold", "0.5", "--output", str(tmp_path / "p.pt2"), *place]
    moved, other = f"npz:{tmp_path / 'moved.npz'}", f"npz:{tmp_path / 'other.npz'}"
    for command in (export, predict):
        _load.cache_clear()
        _loaded.cache_clear()
        capsys.readouterr()
        assert main(command) == 2
        assert f"nescio predict {key} --training-data" in capsys.readouterr().err
        assert main([*command, "--training-data", other]) == 2
    assert main([*export, "--training-data", moved]) == 0
    assert main([*predict, "--training-data", moved]) == 0
    assert main(predict) == 0  # the store knows the new path
    capsys.readouterr()
    assert main([*predict, "--training-data", other]) == 2
    assert "other.npz" in capsys.readouterr().err


def test_train__transfer_says_that_a_set_with_names_of_learnt_classes_is_taken_for_others(tmp_path, capsys):
    x, y = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 2
    arrays = {"x_train": x[:30], "y_train": y[:30], "x_test": x[30:], "y_test": y[30:]}
    np.savez(tmp_path / "own.npz", **arrays)
    np.savez(tmp_path / "subset.npz", **arrays | {"x_test": x[30:50], "y_test": y[30:50]})
    place = ["--store", str(tmp_path / "store"), "--device", "cpu"]
    own, subset = f"npz:{tmp_path / 'own.npz'}", f"npz:{tmp_path / 'subset.npz'}"
    assert main(["train", "--method", "erm", "--data", own, "--backbone", "mlp", "--epochs", "1", *place]) == 0
    (key,) = [run.key for run in Store(tmp_path / "store").runs() if run.stage == "train"]
    transfer = ["transfer", f"store:{key}", *place, "--crops", "0", "--bootstrap", "0", "--k", "2", "--j", "2"]
    capsys.readouterr()
    assert main([*transfer, "--data", own]) == 0
    assert f"zoo store:{key}" not in capsys.readouterr().err
    assert main([*transfer, "--data", subset]) == 0
    error = capsys.readouterr().err
    assert "2 of 2" in error and f"nescio zoo store:{key} --data" in error
