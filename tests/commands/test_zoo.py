"""`nescio zoo`: many pretrained models on a person's images, compared."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nescio.api.zoo import ZooOptions as Options
from nescio.api.zoo import predictions
from nescio.cli import main
from nescio.errors import BadInput
from nescio.networks.exportable import exportable_network
from nescio.predictions import Predictions
from nescio.predictions.model_predictions import list_stored_predictions
from nescio.report.scorecards.tables import scorecard_tables
from nescio.rows import from_parquet
from nescio.work.steps import Context, Work
from nescio.work.store import Store
from tests.support.paths import page_of
from tests.support.zoo_help import N, answers, folder, images_at

pytest.importorskip("torch")
timm = pytest.importorskip("timm")
pytest_plugins = ("tests.support.zoo_fixtures",)
pytestmark = pytest.mark.usefixtures("offline")


def run(*words):
    return main(["zoo", *map(str, words), "--device", "cpu"])


def test_zoo__the_command_compares_models_and_writes_a_page(place, tmp_path, capsys):
    table = tmp_path / "results.csv"
    table.write_text("model,top1,img_size\ntest_resnet.r160_in1k,80.0,160\ntest_vit.r160_in1k,0.1,160\n")
    words = ["test_resnet", "test_vit", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w"]
    words += ["--store", tmp_path / "store", "--published", table]
    assert run(*words, "--output", tmp_path / "page") == 0
    out, err = capsys.readouterr()
    assert "test_resnet" in out and "test_vit" in out and (tmp_path / "page/index.html").is_file()
    (note,) = [line for line in err.splitlines() if line.startswith("note: test_resnet has top-1 0.00%")]
    assert "80.00%" in note and "12 images" in note
    assert "Not all" not in out
    assert "test_vit has top-1" not in err.split("note:", 1)[1]
    assert run(*words, "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    accuracy = {row["backbone"]: row["value"] for row in rows if row["metric"] == "accuracy" and not row["calibrated"]}
    assert accuracy.keys() == {"test_resnet", "test_vit"}
    published = {row["backbone"]: row["published_accuracy"] for row in rows if row.get("published_accuracy")}
    assert published == {"test_resnet": pytest.approx(0.8), "test_vit": pytest.approx(0.001)}


def test_zoo__the_page_of_one_model_has_its_scorecard(place, tmp_path, capsys):
    words = ["test_resnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w", "--store", tmp_path / "s"]
    assert run(*words, "--output", tmp_path / "page") == 0
    page = (tmp_path / "page" / "index.html").read_text()
    rows = from_parquet(tmp_path / "page" / "rows.parquet")
    for table in scorecard_tables([row for row in rows if row["metric"] in ("accuracy", "nll", "auroc", "aurc")]):
        assert f"<h3>{table.title}</h3>" in page
    assert 'data-figure="fig' not in page.replace('data-figure="fig2"', "")
    others = ["test_resnet", "test_vit", *words[1:], "--output", tmp_path / "two"]
    assert run(*others) == 0 and "Accuracy and calibration" not in (tmp_path / "two" / "index.html").read_text()


def test_zoo__the_command_goes_on_after_a_failure_and_ends_with_one(place, tmp_path, capsys):
    words = ["test_resnet", "test_byobnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w"]
    assert run(*words, "--store", tmp_path / "store", "--format", "json") == 1
    out, err = capsys.readouterr()
    assert {row["backbone"] for row in json.loads(out)} == {"test_resnet"}
    assert "failed: test_byobnet on val: The weights of test_byobnet" in err


def test_zoo__nothing_but_failures(place, tmp_path, capsys):
    assert run("test_byobnet", "--data", f"npz:{place / 'val.npz'}", "--store", tmp_path, "--format", "json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == [] and "failed: test_byobnet" in err


def test_zoo__all_means_the_models_whose_weights_are_there(place, tmp_path, capsys):
    words = [
        "--all-models",
        "--data",
        f"npz:{place / 'val.npz'}",
        "--weights",
        place / "w",
        "--store",
        tmp_path,
        "--format",
        "json",
    ]
    assert run(*words, "--no-pixel-cache") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["backbone"] for row in rows} == {"test_resnet", "test_vit", "test_efficientnet"}
    assert not list((tmp_path / "pixels").glob("[0-9a-f]*")), "forgotten when the last model was done"


def test_zoo__damaged_images_are_skipped_when_asked_for(place, tmp_path, capsys):
    images = dict(np.load(place / "val.npz"))
    images["blob"] = images["blob"].copy()
    images["blob"][images["offsets"][4] : images["offsets"][5]] = 0
    np.savez(tmp_path / "val.npz", **images)
    words = ["test_resnet", "test_vit", "--data", f"npz:{tmp_path / 'val.npz'}", "--weights", place / "w"]
    words += ["--store", tmp_path / "store", "--format", "json"]
    assert run(*words) == 1
    assert "Image 4 of val" in (err := capsys.readouterr().err) and "--skip-damaged" in err
    for _ in range(2):
        assert run(*words, "--skip-damaged") == 0
        out, err = capsys.readouterr()
        assert f"note: 1 of {N} images of val " in err
        assert {row["n"] for row in json.loads(out) if row["metric"] == "accuracy"} == {N - 1}
    assert "decoded" not in err and "images/s" not in err, "the second run finds all done"
    found = list_stored_predictions(Store(tmp_path / "store"))
    assert [each.load().index.tolist() for each in found] == 2 * [[row for row in range(N) if row != 4]]
    (whole,), _ = answers(place, Store(tmp_path / "whole"), "test_resnet")
    sound, whole = found[0].load(), whole.load()
    np.testing.assert_array_equal(sound.labels, np.delete(whole.labels, 4))
    np.testing.assert_allclose(sound.logits, np.delete(whole.logits, 4, 0), rtol=2e-3, atol=2e-3)


def test_zoo__all_without_any_weights_names_the_folder(place, tmp_path, capsys):
    (tmp_path / "none").mkdir()
    assert (
        run("--all-models", "--weights", tmp_path / "none", "--data", f"npz:{place / 'val.npz'}", "--store", tmp_path)
        == 2
    )
    assert "No pretrained model" in capsys.readouterr().err


def test_zoo__many_models_without_weights_are_one_line(place, tmp_path, capsys):
    assert run("test_*", "--data", f"npz:{place / 'val.npz'}", "--store", tmp_path, "--format", "json") == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("failed")]
    assert len(lines) == 1 and "The weights of test_" in lines[0]


def test_zoo__graded_detection_of_other_classes(place, tmp_path, capsys):
    other = folder(tmp_path / "animals", tuple("abcdefgh"), each=6)
    fixed = folder(tmp_path / "fixed", ("x", "y"), each=3)
    words = ["test_resnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w", "--store", tmp_path / "s"]
    words += [
        "--ood-data",
        f"folder:{other}",
        "--extra-ood",
        f"hard=folder:{fixed}",
        "--estimation-images",
        4,
        "--test-images",
        2,
        "--format",
        "json",
    ]
    assert run(*words) == 0
    rows = json.loads(capsys.readouterr().out)
    graded = [row for row in rows if row["benchmark"] == "cood" and row["metric"] == "auroc"]
    assert {0.0, 10.0} <= {row["severity"] for row in graded} and "hard" in {row["target"] for row in graded}


def test_zoo__out_classes_that_bear_names_of_trained_classes_are_left_out(place, tmp_path, capsys):
    """The images have numbers for classes; the model is of ImageNet-1k, so its names and WordNet ids are compared."""
    names = ("crane", "Fox_Squirrel", "n01443537", *(f"my {letter}" for letter in "abcdefgh"))
    other = folder(tmp_path / "animals", names, each=6)
    words = ["test_resnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w", "--store", tmp_path / "s"]
    words += ["--ood-data", f"folder:{other}", "--estimation-images", 4, "--test-images", 2]
    assert run(*words, "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["out_classes"] for row in rows if row.get("out_classes")} == {8}
    assert run(*words, "--output", tmp_path / "report") == 0
    page = (tmp_path / "report" / "cood" / "index.html").read_text()
    assert "3 of 11 " in page and "ImageNet-1k" in page
    assert "Fox_Squirrel, crane (the name of 2 classes), n01443537." in page


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--published", "nofile.csv"], "nofile.csv cannot be read as a table"),
        (["--ood-data", "OTHER", "--estimation-images", 0], "--estimation-images"),
        (["--ood-data", "OTHER", "--hierarchy", "nofile.txt"], "nofile.txt cannot be read"),
        (["--ood-data", "OTHER", "--hierarchy", "TREE"], "--data-names"),
        (
            ["--ood-data", "OTHER", "--hierarchy", "TREE", "--data-names", "IN"],
            "in-classes",
        ),
        (["--ood-data", "OTHER", "--data-names", "FEW"], "few.txt has 3 names"),
        (["--ood-data", "OTHER", "--data-names", "IN", "--ood-names", "FEW"], "has 8 classes: name every class"),
    ],
)
def test_zoo__options_are_checked_before_any_model_predicts(place, tmp_path, capsys, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    other = folder(tmp_path / "animals", tuple("abcdefgh"), each=2)
    (tmp_path / "tree.txt").write_text("a b\n")
    (tmp_path / "few.txt").write_text("x\ny\nz\n")
    (tmp_path / "in.txt").write_text("".join(f"n{y}\n" for y in range(1000)))
    names = {"OTHER": f"folder:{other}", "TREE": "tree.txt", "FEW": "few.txt", "IN": "in.txt"}
    monkeypatch.setattr("nescio.api.zoo.predictions", lambda *_: pytest.fail("a model predicts"))
    data = ["test_resnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w", "--store", tmp_path / "s"]
    assert run(*data, *(names.get(word, word) for word in words)) == 2
    assert sentence in capsys.readouterr().err


def test_zoo__grading_that_fails_has_no_page_and_no_link_to_one(place, tmp_path, capsys):
    other = folder(tmp_path / "animals", tuple("abcdefgh"), each=6)
    words = ["test_resnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w", "--store", tmp_path / "s"]
    assert run(*words, "--ood-data", f"folder:{other}", "--estimation-images", 8, "--test-images", 2) == 1
    told = capsys.readouterr()
    assert "10 images" in told.err and told.err.count("failed: ") == 1
    assert "nothing to show" not in told.out
    report = page_of(tmp_path / "s", "zoo")
    assert not (report / "cood").exists() and "cood/index.html" not in (report / "index.html").read_text()


def test_report__classes_above_or_below_are_left_out_by_names_of_ones_own(place, tmp_path, capsys):
    other = folder(tmp_path / "animals", tuple("abcdefgh"), each=6)
    (tmp_path / "tree.txt").write_text("n0 a\nn1 n2\n")
    (tmp_path / "in.txt").write_text("".join(f"n{y}\n" for y in range(1000)))
    words = ["test_resnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w", "--store", tmp_path / "s"]
    words += ["--ood-data", f"folder:{other}", "--estimation-images", 4, "--test-images", 2]
    words += ["--hierarchy", tmp_path / "tree.txt", "--data-names", tmp_path / "in.txt"]
    assert run(*words) == 0
    assert "1 of 8 " in " ".join(capsys.readouterr().out.split())
    known, new = (page_of(tmp_path / "s", "zoo") / name / "index.html" for name in ("", "cood"))
    assert 'href="cood/index.html"' in known.read_text() and 'href="../index.html"' in new.read_text()
    assert main(["report", str(tmp_path / "s"), "--only", "cood/models,fig6", "--output", str(tmp_path / "f")]) == 0


def test_zoo__files_that_are_no_images_are_counted(place, tmp_path, capsys):
    data = folder(tmp_path / "set", ("n01440764", "n01443537"), each=3)
    for name in ("notes.txt", "one.heic", "TWO.HEIC", ".hidden"):
        (data / "n01440764" / name).write_text("no image")
    words = ["test_resnet", "--data", f"folder:{data}", "--weights", place / "w", "--store", tmp_path / "s"]
    assert run(*words) == 0
    said = capsys.readouterr()
    assert "set: 3 files skipped: .heic, .txt." in said.err
    assert "3 files skipped: .heic, .txt." in (page_of(tmp_path / "s", "zoo") / "index.html").read_text()


def test_zoo__a_part_of_the_images_is_drawn_and_stamped(place, tmp_path, capsys):
    words = ["test_resnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w", "--limit", 7]
    drawn = {}
    for seed in (0, 1):
        store = tmp_path / str(seed)
        assert run(*words, "--store", store, "--seed", seed) == 0
        said = capsys.readouterr()
        stamp = f"A random sample: 7 of {N} images of val (seed {seed})."
        assert stamp in said.err and stamp in (page_of(store, "zoo") / "index.html").read_text()
        assert run(*words, "--store", store, "--seed", seed, "--format", "json") == 0
        assert {(row["limit"], row["seed"]) for row in json.loads(capsys.readouterr().out)} == {(7, seed)}
        drawn[seed] = list_stored_predictions(Store(store))[0].load().index.tolist()
    assert drawn[0] != drawn[1]


def test_zoo__a_look_at_a_few(place, tmp_path, capsys):
    words = ["test_resnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w", "--format", "json"]
    assert run(*words, "--store", tmp_path, "--limit", 5) == 0
    rows = json.loads(capsys.readouterr().out)
    assert max(row["n"] for row in rows) == 5
    labels = images_at(place).load().labels
    assert run(*words, "--store", tmp_path, "--classes", f"{labels[0]},{labels[3]},{labels[7]}") == 0
    (found,) = [each for each in list_stored_predictions(Store(tmp_path)) if each.facts["rows"] == 3] or [None]
    rows = json.loads(capsys.readouterr().out)
    assert max(row["n"] for row in rows) == 3 and found is None, "most rows count in the store's list"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["test_resnet"], "--data is required"),
        (["--data", "VAL"], "There is no model to predict with"),
        (["resnet51", "--data", "VAL"], "Did you mean"),
        (["test_resnet", "--data", "npz:nowhere.npz"], "There is nothing at"),
        (["test_resnet", "--data", "VAL", "--limit", "0"], "--limit must be at least 1, got 0"),
        (["test_resnet", "--data", "VAL", "--mc-samples", "-1"], "is -1: it must be at least 0"),
        (["test_resnet", "--data", "VAL", "--dropout", "1"], "dropout is 1"),
        (["test_resnet", "--data", "VAL", "--batch-size", "0"], "at least 1, got 0"),
        (
            ["test_resnet", "--data", "VAL", "--extra-ood", "x=digits"],
            "--extra-ood needs --ood-data",
        ),
        (["test_resnet", "--data", "VAL", "--data-names", "nosuch"], "--data-names has no effect without --ood-data"),
        (["test_resnet", "--data", "VAL", "--ood-data", "digits", "--data-names", "nosuch", "--dry-run"], "nosuch"),
        (["test_resnet", "--data", "VAL", "--classes="], "--classes is empty"),
        (["test_resnet", "--data", "VAL", "--ood-data", "digits", "--extra-ood", "x"], "--extra-ood: 'x'"),
        (
            ["test_resnet", "--data", "VAL", "--weights", "nowhere"],
            "no folder and no file of weights at nowhere",
        ),
        (
            ["test_resnet", "test_vit", "--data", "VAL", "--weights", "FILE"],
            "is one checkpoint, but 2 models are named",
        ),
        (["test_*", "--data", "digits"], "digits has 10 classes"),
        (
            ["test_resnet", "--data", "VAL", "--classes", "x"],
            "0-5,7",
        ),
        (
            ["test_resnet", "--data", "VAL", "--classes", "0-999999999"],
            "1,000,000",
        ),
    ],
)
def test_zoo__bad_words(place, tmp_path, capsys, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    names = {"VAL": f"npz:{place / 'val.npz'}", "FILE": str(place / "w/test_resnet.safetensors")}
    try:
        end = run(*(names.get(word, word) for word in words), "--store", tmp_path)
    except SystemExit as no:
        end = no.code
    err = " ".join(capsys.readouterr().err.split())
    assert end == 2 and sentence.lower() in err.lower()


def test_zoo__a_set_of_other_classes_is_a_failure_of_a_named_model(place, tmp_path, capsys):
    words = ["test_resnet", "--data", "digits", "--weights", place / "w", "--store", tmp_path, "--format", "json"]
    assert run(*words) == 1
    assert "digits has 10 classes" in capsys.readouterr().err


@pytest.mark.slow
def test_train__a_network_of_ones_own(tmp_path, capsys):
    """store:KEY: the same answers as `nescio predict` gives, from its own size, mean and deviation."""
    store = tmp_path / "store"
    assert main(["train", "--method", "erm", "--epochs", "1", "--store", str(store), "--device", "cpu"]) == 0
    key = capsys.readouterr().out.split()[0]
    to = tmp_path / "test.npz"
    assert main(["predict", key, "--output", str(to), "--store", str(store), "--device", "cpu"]) == 0
    assert run(f"store:{key[:6]}", "--data", "digits", "--store", store, "--format", "json") == 0
    (found,) = list_stored_predictions(Store(store), "digits")
    ours, theirs = found.load(), Predictions.load(to)
    assert found.model == f"store:{key}"
    np.testing.assert_array_equal(ours.labels, theirs.labels)
    np.testing.assert_allclose(ours.logits, theirs.logits, atol=5e-3, rtol=2e-3)


REAL, FILES = os.environ.get("NESCIO_DATA", ""), os.environ.get("NESCIO_WEIGHTS", "")


@pytest.mark.slow
@pytest.mark.skipif(not (Path(REAL) / "imagenet_val_2k.npz").is_file(), reason="NESCIO_DATA has no imagenet_val_2k.npz")
@pytest.mark.skipif(not list(Path(FILES or ".").glob("efficientnet-lite0*.pth")), reason="NESCIO_WEIGHTS has no Lite0")
def test_zoo__efficientnet_lite0_is_right_about_three_of_four_images(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NESCIO_WEIGHTS", FILES)
    data = f"npz:{Path(REAL) / 'imagenet_val_2k.npz'}"
    assert run("tf_efficientnet_lite0", "--data", data, "--store", tmp_path, "--format", "json") == 0
    (found,) = list_stored_predictions(Store(tmp_path))
    assert found.facts["accuracy"] == pytest.approx(0.75, abs=0.03)


def test_runs__a_fine_tuned_checkpoint_with_names_of_its_own(place, tmp_path, capsys):
    """A head of three classes, folders of any names, and their names in the exported file."""
    import torch

    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=3)
    torch.save(network.state_dict(), tmp_path / "flowers.pth")
    data = folder(tmp_path / "set", ("a rose", "some lilies", "tulips"), each=4)
    (tmp_path / "classes.txt").write_text("tulips=0\na rose=1\nsome lilies=2\n")
    (tmp_path / "names.txt").write_text("tulips\na rose\nsome lilies\n")
    name, store = f"test_resnet@{tmp_path / 'flowers.pth'}", str(tmp_path / "store")
    words = ["--data", f"folder:{data}", "--store", store, "--mc-samples", "0", "--format", "json", "--class-names"]
    for file in ("classes.txt", "names.txt"):
        assert main(["zoo", name, *words, str(tmp_path / file)]) == 0
        assert {row["backbone"] for row in json.loads(capsys.readouterr().out)} == {name}
    for about in (["--class-names", str(tmp_path / "names.txt")], ["--class-names", str(tmp_path / "classes.txt")]):
        goal = ["--threshold", "0.3", "--output", str(tmp_path / "flowers.pt2"), "--store", store, "--format", "json"]
        assert main(["export", name, *goal, *about]) == 0
        assert json.loads(capsys.readouterr().out)["names"] == ["tulips", "a rose", "some lilies"]
    assert exportable_network(f"zoo:{name}", Store(store)).facts["names"] == ["tulips", "a rose", "some lilies"]
    with pytest.raises(BadInput, match=r"two\.txt has 2 names"):
        (tmp_path / "two.txt").write_text("tulips\na rose\n")
        exportable_network(name, Store(store), classes=tmp_path / "two.txt")
    with pytest.raises(BadInput, match="all 3 classes"):
        (tmp_path / "two.txt").write_text("tulips=0\na rose=1\n")
        exportable_network(name, Store(store), classes=tmp_path / "two.txt")
    for dump in list_stored_predictions(Store(store)):
        held = dump.load()
        assert held.classes == 3 and held.labels.tolist() == [1] * 4 + [2] * 4 + [0] * 4
    (tmp_path / "some.txt").write_text("tulips=0\na rose=1\n")
    assert main(["zoo", name, *words, str(tmp_path / "some.txt")]) == 0
    assert "1 of 3 classes of set (some lilies)" in capsys.readouterr().err
    assert main(["zoo", name, *words[:-1]]) == 0, "as many classes, in their order"
    capsys.readouterr()
    assert main(["runs", "--store", store, "--format", "csv"]) == 0
    assert name in capsys.readouterr().out


def test_predictions__the_time_left_is_counted_from_before_the_first_model(place, tmp_path):
    told = []
    work = Work(Context(Store(tmp_path), device="cpu"), None, lambda *event: told.append(event))
    options = Options(models=("test_resnet", "test_vit"), weights=str(place / "w"), data=f"npz:{place / 'val.npz'}")
    predictions(options, work)
    assert [(done, total) for _, done, _, total, _, _ in told] == [(0, 2), (1, 2), (2, 2)]
    told.clear()
    predictions(replace(options, models=("test_resnet", "test_vit", "test_efficientnet")), work)
    counts = [(done, total, before) for _, done, _, total, _, before in told]
    assert counts[-2:] == [(2, 3, 2), (3, 3, 2)], "finished models took no time"


def test_zoo__a_dry_run_needs_neither_images_nor_weights(tmp_path, capsys):
    words = ["zoo", "resnet18", "--data", f"folder:{tmp_path / 'nowhere'}", "--limit", "700", "--dry-run"]
    assert main([*words, "--store", str(tmp_path / "store"), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "700" in said and "resnet18" in said and not (tmp_path / "store").exists()


def test_zoo__a_dry_run_names_every_step_and_what_is_finished(place, tmp_path, capsys):
    words = ["zoo", "test_resnet", "test_vit", "--weights", str(place / "w"), "--data", f"npz:{place / 'val.npz'}"]
    words += ["--device", "cpu", "--store", str(tmp_path / "store")]

    def stages():
        assert main([*words, "--dry-run"]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        return {line[0]: (line[1], line[2]) for line in lines if line and line[0] in ("decode", "predict", "evaluate")}

    before = stages()
    assert {finished for finished, _ in before.values()} == {"0"} and before["predict"] == ("0", "2")
    assert main([*words, "--format", "json"]) == 0
    capsys.readouterr()
    after = stages()
    assert after["predict"] == ("2", "0") and "decode" not in after
    evaluated, missing = after["evaluate"]
    # of each model, and of the best: there is no comparison by a metric that no model has
    assert 2 < int(evaluated) <= int(before["evaluate"][1]) and missing == "0"
