"""`nescio transfer` of files, a checkpoint and a trained network; `nescio evaluate --views` has the same scores."""

import csv
import json

import numpy as np
import pytest

from nescio.cli import main
from nescio.measures import gallery_uncertainty
from nescio.metrics import r_auroc, recall_at_1
from nescio.predictions import Predictions
from tests.support.zoo_help import checkpoint, folder

MODEL = "test_byobnet.r160_in1k"
N = 120


def ask(capsys, *words):
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A dump and two views of it."""
    path = tmp_path_factory.mktemp("dumps")
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 10)
    own = rng.normal(size=(12, 6))[labels] + 0.6 * rng.normal(size=(N, 6))
    np.savez(path / "own.npz", embeddings=own, labels=labels % 4, logits=rng.normal(size=(N, 4)))
    for view in range(2):
        np.savez(path / f"view{view}.npz", embeddings=own + 0.3 * rng.normal(size=own.shape))
    return path


def value(rows, metric, measure=None):
    return next(row["value"] for row in rows if (row["metric"], row["measure"]) == (metric, measure))


def test_transfer__files(place, tmp_path, capsys):
    views = f"{place}/view0.npz,{place}/view1.npz"
    words = ("transfer", place / "own.npz", "--views", views, "--bootstrap", 50)
    code, out, _ = ask(
        capsys, *words, "--output", tmp_path / "page", "--row-scores", tmp_path / "u.csv", "--format", "json"
    )
    told = json.loads(out)
    dump, *seen = (Predictions.load(place / f"{name}.npz") for name in ("own", "view0", "view1"))
    doubt = gallery_uncertainty(dump, seen)
    assert code == 0 and told["recommended"] == "gallery_uncertainty"
    assert told["score_inputs"]["gallery_uncertainty"] == "gallery"
    assert value(told["rows"], "recall_at_1") == recall_at_1(dump.embeddings, dump.labels)
    assert value(told["rows"], "r_auroc", "gallery_uncertainty") == r_auroc(dump.embeddings, dump.labels, doubt)
    with (tmp_path / "u.csv").open() as file:
        assert np.allclose([float(row["u_gallery_uncertainty"]) for row in csv.DictReader(file)], doubt)
    assert "gallery_uncertainty" in (tmp_path / "page" / "index.html").read_text()
    code, out, _ = ask(capsys, *words)
    assert code == 0 and out.index("single images") < out.index("entropy") < out.index("gallery_margin")
    code, out, _ = ask(capsys, "evaluate", place / "own.npz", "--views", views, "--format", "json")
    assert value(json.loads(out)["files"][0]["rows"], "r_auroc", "gallery_uncertainty") == value(
        told["rows"], "r_auroc", "gallery_uncertainty"
    )
    code, out, _ = ask(capsys, "evaluate", place / "own.npz", "--views", views, "--all")
    assert "gallery_margin" in out


@pytest.mark.slow
def test_transfer__a_checkpoint_looks_at_images_and_their_crops(tmp_path, capsys):
    weights = checkpoint(tmp_path / "w.pth", MODEL)
    images = folder(tmp_path / "birds", tuple("abcdefgh"), each=3)
    words = ("transfer", f"{MODEL}@{weights}", "--data", f"folder:{images}", "--store", tmp_path / "store")
    code, out, err = ask(capsys, *words, "--crops", 1, "--k", 3, "--j", 4, "--bootstrap", 0, "--format", "json")
    told = json.loads(out)
    assert code == 0 and told["n"] == 24, err
    assert {"gallery_uncertainty", "entropy", "norm"} <= set(told["score_inputs"])
    _, out, _ = ask(capsys, *words, "--classes", "0-3", "--crops", 0, "--k", 3, "--j", 4, "--format", "json")
    few = json.loads(out)
    assert few["n"] == 12 and "gallery_uncertainty" not in few["score_inputs"]
    assert few["recommended"] == "gallery_margin"


def test_transfer__a_trained_network_knows_its_own_kind_of_images(tmp_path, capsys):
    """Digits 0 to 4 were learnt: on their test images the entropy is chosen, on the other digits it is not."""
    store = ("--store", tmp_path / "store", "--device", "cpu")
    _, out, _ = ask(capsys, "train", "--data", "digits", "--classes", "0-4", "--epochs", 8, *store)
    from nescio.work.store import Store

    (key,) = [run.key for run in Store(tmp_path / "store").runs() if run.stage == "train"]
    used = {}
    for classes in ("0-4", "5-9"):
        words = ("transfer", f"store:{key}", "--data", "digits", "--crops", 1, "--bootstrap", 0, "--format", "json")
        _, out, _ = ask(capsys, *words, *(("--classes", classes) if classes == "5-9" else ()), *store)
        used[classes] = json.loads(out)
    assert [used[classes]["recommended"] for classes in ("0-4", "5-9")] == ["entropy", "gallery_uncertainty"]
    assert used["0-4"]["n"] == 300 and used["5-9"]["n"] > 800


@pytest.mark.parametrize(
    "words, sentence",
    [
        (("resnet50",), "give --data"),
        (("{own}", "--data", "digits"), "omit one"),
        (("{own}", "--k", "0"), "k is 0"),
        (("{own}", "--bootstrap", "-1"), "resamples is -1"),
        (("{own}", "--bootstrap", str(10**12)), "from 0 to 1,000,000"),
        (("{own}", "--seed", "-1"), "seed is -1"),
        (("resnet50", "--data", "digits", "--views", "a.npz"), "--crops"),
    ],
)
def test_transfer__bad_input_is_a_sentence(place, capsys, words, sentence):
    code, out, err = ask(capsys, "transfer", *(word.format(own=place / "own.npz") for word in words))
    assert code == 2 and sentence in err and not out


def test_transfer__views_are_of_one_model(place, capsys):
    own = place / "own.npz"
    code, _, err = ask(capsys, "evaluate", own, f"b={place}/view0.npz", "--views", own)
    assert code == 2 and "--views" in err
