"""Checkpoints of one's own are shown images as their files and the options say, and their names and weights travel."""

import argparse
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nescio.benchmarks import posthoc, shift, url
from nescio.cli import main
from nescio.datasets.image_set import ImageSet
from nescio.datasets.pixel_cache import decode_pixels
from nescio.errors import BadInput
from nescio.networks.export import export, load
from nescio.networks.exportable import exportable_network
from nescio.networks.models import build_classifier, find_network
from nescio.networks.network import describe_preprocessing, with_preprocessing
from nescio.networks.preprocessing import Preprocessing, read_class_names, read_preprocessing
from nescio.networks.threshold_file import read_rule
from nescio.predict import OutputSpec, predict_all
from nescio.predictions.model_predictions import predictions_from_store
from nescio.work.steps import Context
from nescio.work.store import Store
from tests.support.zoo_help import checkpoint, encoded, folder, picture

torch = pytest.importorskip("torch")
timm = pytest.importorskip("timm")
pytest_plugins = ("tests.support.zoo_fixtures",)
pytestmark = pytest.mark.usefixtures("offline")
SMALL, STORE = "test_resnet", Store("no-store")
CLASSES = ("lily", "rose", "tulip")


def mine(path, **entries):
    """A checkpoint of three classes, with entries beside its tensors."""
    torch.manual_seed(0)
    torch.save({"state_dict": timm.create_model(SMALL, num_classes=3).state_dict(), **entries}, path)
    return f"{SMALL}@{path}"


# ---- what a file states


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({}, {}),
        ({"args": argparse.Namespace(img_size=64, mean=None, interpolation="", lr=0.1)}, {"input_size": 64}),
        ({"args": {"input_size": (3, 160, 160), "crop_pct": 1}}, {"input_size": 160, "crop": 1.0}),
        ({"preprocessing": {"mean": 0.5, "std": [0.2] * 3, "crop": 0.9}}, {"mean": 0.5, "std": 0.2, "crop": 0.9}),
        ({"pretrained_cfg": {"input_size": [3, 96, 96]}, "args": {"img_size": 64}}, {"input_size": 96}),
        ({"pretrained_cfg": json.dumps({"interpolation": "bicubic"})}, {"interpolation": "bicubic"}),
        ({"hyper_parameters": {"interpolation": "InterpolationMode.NEAREST"}}, {"interpolation": "nearest"}),
        ({"args": "no JSON", "preprocessing": 3, "epoch": 7}, {}),
    ],
)  # fmt: skip
def test_read_preprocessing__what_a_checkpoint_states(content, found):
    found |= {name: (found[name],) * times for name, times in (("mean", 1), ("std", 3)) if name in found}
    assert read_preprocessing(content, "a.pth") == Preprocessing(**found)


@pytest.mark.parametrize(
    "entry",
    [{"input_size": (3, 64, 96)}, {"mean": "grey"}, {"std": [0.0, 1, 1]}, {"interpolation": "random"}, {"crop_pct": 2}],
)
def test_read_preprocessing__a_statement_that_cannot_be_is_refused_by_the_name_of_the_file(entry):
    with pytest.raises(BadInput, match=r"a\.pth"):
        read_preprocessing({"args": entry}, "a.pth")


def test_read_class_names__names_of_classes():
    names = ("a", "b")
    for content in ({"classes": ["a", "b"]}, {"class_names": '["a", "b"]'}, {"class_to_idx": {"b": 1, "a": 0}}):
        assert read_class_names(content) == names
    for content in ({"classes": 2}, {"classes": ["a", "a"]}, {"classes": [1, 2]}, {"class_to_idx": {"b": 1}}, {}):
        assert read_class_names(content) is None


# ---- networks


def test_preprocessing__options_then_size_of_the_data_then_the_file_then_published(tmp_path):
    name = mine(tmp_path / "a.pth", args={"img_size": 64, "mean": [0.1] * 3}, classes=list(CLASSES))
    published, own = find_network(SMALL, STORE), find_network(name, STORE)
    assert (own.view.size, own.mean, own.std, own.class_names) == (64, (0.1,) * 3, published.std, CLASSES)
    assert own.view.resize == int(64 * published.view.resize / published.view.size)
    (sized,) = with_preprocessing([own], Preprocessing(), "folder:photos@32")
    assert (sized.view.size, sized.mean) == (32, (0.1,) * 3)
    look = Preprocessing(input_size=48, mean=(0.2,), std=(0.3,), interpolation="nearest", crop=0.5)
    told, other = with_preprocessing([own, published], look, "folder:photos@32")
    assert (told.view.size, told.view.resize, told.view.interpolation) == (48, 96, "nearest")
    assert (told.mean, told.std) == ((0.2,) * 3, (0.3,) * 3) and other == published
    assert told.identity != own.identity
    line, _ = describe_preprocessing([told, other])
    assert "48 × 48 of 96" in line and "0.2 0.2 0.2" in line and "from options" in line
    with pytest.raises(BadInput, match="input_size"):
        with_preprocessing([published], look)
    assert with_preprocessing([published], Preprocessing(), "folder:photos@32") == [published]


def test_find_network__metadata_of_safetensors(tmp_path):
    from safetensors.torch import load_file, save_file

    file = checkpoint(tmp_path / "a.safetensors", SMALL, num_classes=3)
    about = {"pretrained_cfg": json.dumps({"input_size": [3, 80, 80]}), "label_names": json.dumps(CLASSES)}
    save_file(load_file(file), file, metadata=about)
    own = find_network(f"{SMALL}@{file}", STORE)
    assert own.view.size == 80 and own.class_names == CLASSES


def test_build_classifier__a_transformer_is_built_for_its_size(tmp_path):
    """Its positions are of one size: a checkpoint of another one did not fit."""
    net = timm.create_model("test_vit", num_classes=3, img_size=96)
    torch.save({"state_dict": net.state_dict(), "args": {"img_size": 96}}, tmp_path / "a.pth")
    own = find_network(f"test_vit@{tmp_path / 'a.pth'}", STORE)
    built, _ = build_classifier(own)
    x = torch.rand(1, 3, 96, 96)
    with torch.inference_mode():
        torch.testing.assert_close(built.eval()(x), net.eval()(x))


@pytest.mark.parametrize("plan", [shift.Plan, url.Plan, posthoc.Plan])
def test_preprocessing__plans_take_a_preprocessing_of_networks_alone(plan):
    look = Preprocessing(input_size=64)
    assert plan(networks=("resnet18@a.pth",), preprocessing=look).preprocessing == look
    with pytest.raises(BadInput, match="input_size"):
        plan(preprocessing=look)


# ---- from the images to the exported file


@pytest.fixture
def predicted(tmp_path):
    """A store with predictions under a preprocessing of their own, by a checkpoint without names of classes."""
    data = folder(tmp_path / "set", CLASSES, each=4)
    mine(tmp_path / "a.pth")
    look = Preprocessing(input_size=48, mean=(0.5,), std=(0.25,), crop=0.75)
    (own,) = with_preprocessing([find_network(f"{SMALL}@{tmp_path / 'a.pth'}", STORE)], look)
    store = Store(tmp_path / "store")
    output_spec = OutputSpec(("logits",), "float32", compared=True, precision="float32", mc_samples=0)
    many = predict_all([(own, ImageSet(f"folder:{data}", "test_or_all"))], Context(store, device="cpu"), output_spec)
    assert not many.failures
    return store, own, predictions_from_store(store, many.steps[0].key)


def test_threshold__weights_names_and_preprocessing_travel_to_the_exported_file(predicted, tmp_path, capsys):
    store, own, _ = predicted
    assert main(["threshold", f"zoo:{own.name}", "--risk", "0.99", "--store", str(store.root), "--format", "json"]) == 0
    promise = json.loads(capsys.readouterr().out)
    assert (promise["names"], promise["weights_path"]) == (list(CLASSES), str(tmp_path / "a.pth"))
    assert promise["mean"] == [0.5] * 3 and promise["view"]["size"] == 48
    (tmp_path / "p.json").write_text(json.dumps(promise))
    found = exportable_network(f"zoo:{own.name}", store)
    read_rule(str(tmp_path / "p.json"))[1].check(found)
    assert (found.mean, found.shape, found.facts["names"]) == ((0.5,) * 3, (48, 48), list(CLASSES))
    with pytest.raises(BadInput, match="another mean"):
        read_rule(str(tmp_path / "p.json"))[1].check(replace(found, facts={**found.facts, "mean": [0.1] * 3}))
    with (tmp_path / "a.pth").open("ab") as file:
        file.write(b"more")
    with pytest.raises(BadInput):
        exportable_network(f"zoo:{own.name}", store)


def test_exportable_network__predictions_know_the_file_of_a_published_name(predicted, tmp_path):
    """Weights that `zoo --weights` used are found again; `export` looked in the hubs alone."""
    store, _, _ = predicted
    checkpoint(tmp_path / "w" / f"{SMALL}.pth", SMALL)
    images = ImageSet(f"folder:{folder(tmp_path / 'numbers', ('3', '7'), each=1)}", "test_or_all")
    named = replace(find_network(SMALL, STORE), class_map=(("3", 3), ("7", 7)))
    output_spec = OutputSpec(("logits",), "float32", compared=True, precision="float32", mc_samples=0)
    many = predict_all([(named, images)], Context(store, device="cpu"), output_spec, weights=tmp_path / "w")
    assert not many.failures
    assert exportable_network(f"zoo:{SMALL}", store).digest == predictions_from_store(store, many.steps[0].key).weights


def test_load__the_script_of_the_documentation_predicts_an_image_file(predicted, tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    store, own, _ = predicted
    rule, _ = read_rule("0.1")
    made = export(exportable_network(f"zoo:{own.name}", store), rule, tmp_path / "a.onnx")
    text = (Path(__file__).parents[2] / "docs" / "export.md").read_text("utf-8")
    (script,) = re.findall(r"```python\n(import json, sys.*?)```", text, re.DOTALL)
    assert len(script.splitlines()) <= 13
    (tmp_path / "image.jpg").write_bytes(encoded(picture(np.random.default_rng(3), (90, 120))))
    files = [str(made.path), str(tmp_path / "image.jpg")]
    said = subprocess.run([sys.executable, "-c", script, *files], capture_output=True, text=True, check=True).stdout
    pixels = decode_pixels(files[1], own.view).transpose(2, 0, 1)[None]
    outputs = load(made.path)[0](pixels)
    probability, name = float(outputs["probability"][0]), CLASSES[int(outputs["class"][0])]
    assert said.startswith(f"{name}: probability {probability:.3f}") and "abstains" in said
