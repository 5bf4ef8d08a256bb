"""One file that abstains: what it answers is what the network, the measures and the threshold say."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nescio import Predictions, datasets, measures
from nescio.analysis.calibration import Temperature
from nescio.cli import main
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.networks.abstaining import AbstainingClassifier, AbstentionRule, ExportableNetwork, calibrated_predictions
from nescio.networks.export import WRITERS, NotExportable, export, load
from nescio.networks.exportable import SplitClassifier, exportable_network
from nescio.networks.fitted_scores import MeanSoftmax, ScoreNetwork, logit_score
from nescio.networks.models import stored_network
from nescio.networks.threshold_file import ThresholdFile, read_rule
from nescio.predict import stored_predictions
from nescio.work.steps import Context
from nescio.work.store import Store

torch.set_num_threads(1)
try:
    import onnx  # noqa: F401
    import onnxruntime
    import onnxscript  # noqa: F401

    missing = False
except ImportError:
    missing = True
needs_onnx = pytest.mark.skipif(missing, reason="onnx, onnxscript and onnxruntime are not installed: nescio[export]")
ENDINGS = [pytest.param("onnx", marks=needs_onnx), "pt2"]


class Pixels(nn.Module):
    """Logits are the pixels themselves, times a number: what comes out is known."""

    def __init__(self, times=1.0, draws=0):
        super().__init__()
        self.times, self.draws = times, draws

    def forward(self, x):
        z = x.flatten(1) * self.times
        return torch.stack([z * (1 + 0.5 * draw) for draw in range(self.draws)], 1) if self.draws else z


def pixels(times=1.0, draws=0, classes=9):
    """A classifier of 3 × 3 images whose nine pixels, 0 to 255, are the logits."""
    return ExportableNetwork(Pixels(times, draws), mean=(0.0,), std=(1 / 255,), shape=(3, 3), classes=classes)


def images_of(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 1, 3, 3), dtype=np.uint8)


def sure_images(n):
    """One bright pixel before others that are far below it: logits from unsure to saturated."""
    rng = np.random.default_rng(0)
    dark = (rng.random((n, 9)) * rng.integers(15, 250, (n, 1))).astype(np.uint8)
    dark[np.arange(n), rng.integers(0, 9, n)] = 255
    return dark.reshape(n, 1, 3, 3)


def wanted(images, rule, times=1.0, draws=0):
    """u (n,), probability and class by nescio's own measures, in float64."""
    z = images.reshape(len(images), -1).astype(np.float64) * times
    if draws:
        z = np.stack([z * (1 + 0.5 * draw) for draw in range(draws)], 1)
    dump = Temperature(rule.temperature)(Predictions(logits=z))
    summary = measures.summary(dump)
    return summary.u[rule.measure], summary.confidence, summary.predicted


# ---- the arithmetic


@pytest.mark.parametrize("measure", ["msp", "entropy"])
@pytest.mark.parametrize("draws", [0, 3])
def test_calibrated_predictions__saturated_answers_keep_their_order(measure, draws):
    """Plain float32 gives a probability of one and an uncertainty of zero to most of these rows."""
    images = sure_images(500)
    z = images.reshape(500, -1) * 0.35
    logits = torch.from_numpy(z).float()
    stacked = torch.stack([logits * (1 + 0.5 * draw) for draw in range(draws)], 1) if draws else logits
    _, _, doubt, entropy = calibrated_predictions(stacked, 1.3)
    plain = 1 - torch.softmax(logits / 1.3, -1).amax(-1)
    u, _, _ = wanted(images, AbstentionRule(0.5, 1.3, measure), 0.35, draws)
    found = (doubt if measure == "msp" else entropy).double().numpy()
    assert (plain == 0).sum() > 50 and u.min() < 1e-20
    np.testing.assert_allclose(found, u, rtol=3e-5)
    order = np.argsort(u)
    apart = np.diff(u[order]) > 1e-4 * u[order][1:]
    assert (np.diff(found[order])[apart] > 0).all()


def test_calibrated_predictions__the_answer_of_two_equal_logits_and_of_two_that_rounding_would_tie():
    top, probability, doubt, _ = calibrated_predictions(torch.tensor([[1.0, 1.0, 0.0]]), 1.0)
    assert (
        top == 0
        and probability[0] == pytest.approx(np.e / (2 * np.e + 1))
        and doubt[0] == pytest.approx((np.e + 1) / (2 * np.e + 1))
    )
    close = torch.tensor([[1000.0, 1000.0001, 0.0]])
    assert calibrated_predictions(close, 50.0)[0] == 1


def test_calibrated_predictions__uniform_answers_and_one_class_of_certainty():
    _, probability, doubt, entropy = calibrated_predictions(torch.zeros(1, 1000))
    assert probability[0] == pytest.approx(0.001) and doubt[0] == pytest.approx(0.999)
    assert entropy[0] == pytest.approx(np.log(1000), rel=1e-6)
    _, probability, doubt, entropy = calibrated_predictions(torch.tensor([[500.0, 0.0]]))
    assert probability[0] == 1 and doubt[0] == 0 and entropy[0] == 0  # e^-500 is below every float32


def test_abstaining_classifier__the_threshold_itself_is_answered():
    """A threshold is the u of a row; it must not be rounded to below that row."""
    for value in (0.1, 0.3, 1e-7, 0.123456789012345):
        assert np.float32(AbstainingClassifier(pixels(), AbstentionRule(value)).threshold) >= value
        assert AbstainingClassifier(pixels(), AbstentionRule(value)).threshold == pytest.approx(value, rel=2e-7)


# ---- files


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("measure", "draws"), [("entropy", 0), ("msp", 2)])
def test_load__the_file_says_what_the_measures_say(tmp_path, ending, measure, draws):
    images = images_of(300)
    rule = AbstentionRule(0.0, 2.0, measure)
    u, probability, predicted = wanted(images, rule, 0.05, draws)
    rule = AbstentionRule(float(np.sort(u)[200]), 2.0, measure)  # one of the rows lies on it
    made = export(pixels(0.05, draws), rule, tmp_path / f"file.{ending}")
    assert made.checked
    run, about = load(made.path)
    assert about == made.metadata and about["threshold"] == rule.threshold and about["measure"] == measure
    for rows in (0, 1, 2, 7, 300):
        said = run(images[:rows])
        assert [said[name].shape for name in ("class", "probability", "uncertainty", "abstain")] == [(rows,)] * 4
        np.testing.assert_array_equal(said["class"], predicted[:rows])
        np.testing.assert_allclose(said["probability"], probability[:rows], atol=1e-6)
        np.testing.assert_allclose(said["uncertainty"], u[:rows], rtol=1e-5)
        sure = np.abs(u[:rows] / rule.threshold - 1) > 1e-5  # float32 cannot tell the others
        np.testing.assert_array_equal(said["abstain"][sure], (u[:rows] > rule.threshold)[sure])
    assert said["abstain"].sum() == pytest.approx(99, abs=1)


@pytest.mark.parametrize("ending", ENDINGS)
def test_load__saturation_survives_the_file(tmp_path, ending):
    images = sure_images(200)
    rule = AbstentionRule(1e-20, 1.0, "entropy")
    run, _ = load(export(pixels(0.3), rule, tmp_path / f"file.{ending}").path)
    u, _, _ = wanted(images, rule, 0.3)
    said = run(images)
    np.testing.assert_allclose(said["uncertainty"], u, rtol=3e-5)
    assert (said["probability"] == 1).sum() > 20 and u.min() < 1e-20 < u.max()
    np.testing.assert_array_equal(said["abstain"], u > 1e-20)


class Broken(nn.Module):
    def forward(self, x):
        return x.flatten(1) / x.mean((1, 2, 3), keepdim=True)[:, :, 0, 0]


@pytest.mark.parametrize("ending", ENDINGS)
def test_load__what_is_no_number_abstains(tmp_path, ending):
    broken = ExportableNetwork(Broken(), (0.0,), (1 / 255,), (3, 3), 9)
    run, _ = load(export(broken, AbstentionRule(0.88), tmp_path / f"file.{ending}").path)
    images = images_of(3)
    images[1] = 0  # 0/0
    assert run(images)["abstain"].tolist() == [False, True, False]


@needs_onnx
def test_load__one_file_with_names_and_metadata_that_refuses_other_images(tmp_path):
    made = export(pixels(), AbstentionRule(0.5), tmp_path / "deep" / "file.onnx")
    assert [each.name for each in made.path.parent.iterdir()] == ["file.onnx"]
    session = onnxruntime.InferenceSession(str(made.path))
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape) == ("images", "tensor(uint8)", ["n", 1, 3, 3])
    assert [each.name for each in session.get_outputs()] == ["class", "probability", "uncertainty", "abstain"]
    held = json.loads(session.get_modelmeta().custom_metadata_map["nescio"])
    assert "uint8" in held["input"] and "0 to 255" in held["input"] and held["classes"] == 9
    run, _ = load(made.path)
    with pytest.raises(Exception, match="uint8"):
        run(images_of(2).astype(np.float32) / 255)
    with pytest.raises(Exception, match="dimension"):
        run(np.zeros((2, 1, 4, 4), np.uint8))


@needs_onnx
def test_export__reading_a_file_writes_nothing_into_the_home_folder(tmp_path):
    """Releases of onnxruntime from 2026 on write an identifier there when they are imported, and send it."""
    made, home = export(pixels(), AbstentionRule(0.5), tmp_path / "file.onnx"), tmp_path / "home"
    home.mkdir()
    env = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"} | {"HOME": str(home)}
    code = "import sys; from nescio.networks.export import load; load(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(made.path)], env=env, check=True)
    assert not list(home.rglob("*"))


class Attention(nn.Module):
    """Attention over five dimensions, by timm's switch fused or written out."""

    fused_attn = True

    def forward(self, x):
        q = x.flatten(2)[:, None, None].transpose(3, 4)  # (n, 1, 1, 9, 1)
        if self.fused_attn:
            return nn.functional.scaled_dot_product_attention(q, q, q).flatten(1)
        return ((q @ q.transpose(3, 4)).softmax(-1) @ q).flatten(1)


@needs_onnx
def test_load__attention_of_five_dimensions_is_written_out(tmp_path):
    network = Attention()
    classifier = ExportableNetwork(network, mean=(0.0,), std=(1.0,), shape=(3, 3), classes=9)
    images = torch.from_numpy(images_of(5))
    with torch.no_grad():
        said = network(images / 255).softmax(-1).amax(1)
    run, _ = load(export(classifier, AbstentionRule(0.5), tmp_path / "file.onnx").path)
    assert np.allclose(run(images.numpy())["probability"], said, atol=1e-5)


def test_load__images_that_are_no_squares(tmp_path):
    """The file of a network that was trained on 6 × 10 pixels takes those."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 6, 10), np.uint8), np.arange(60) % 3
    np.savez(tmp_path / "set.npz", x_train=images, y_train=labels, x_test=images[:9], y_test=labels[:9])
    words = [
        "--data",
        f"npz:{tmp_path / 'set.npz'}",
        "--backbone",
        "mlp",
        "--epochs",
        "1",
        "--augment",
        "none",
    ]
    assert main(["train", "--method", "erm", *words, "--store", str(tmp_path / "store")]) == 0
    store = Store(tmp_path / "store")
    key = next(run.key for run in store.runs() if run.state == "finished")
    run, about = load(
        export(exportable_network(f"store:{key}", store), AbstentionRule(0.5), tmp_path / "file.pt2").path
    )
    assert "shape (n, 1, 6, 10)" in about["input"] and about["view"]["height"] == 6
    found = stored_predictions(
        stored_network(key, store), ImageSet(f"npz:{tmp_path / 'set.npz'}"), Context(store, device="cpu")
    )
    answers = run(images[:9, None])
    assert np.allclose(answers["probability"], measures.summary(found).confidence, atol=1e-5)


class Drawing(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x.flatten(1), 0.5, training=True)


class Branching(nn.Module):
    def forward(self, x):
        return x.flatten(1) if x.sum().item() > 3.7 else -x.flatten(1)


def test_export__draws_cannot_be_exported(tmp_path):
    drawing = ExportableNetwork(Drawing(), (0.0,), (1.0,), (3, 3), 9)
    with pytest.raises(BadInput, match="without draws"):
        export(drawing, AbstentionRule(0.5), tmp_path / "file.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ENDINGS)
def test_export__a_network_that_cannot_be_traced_is_a_sentence_and_leaves_no_file(tmp_path, capfd, ending):
    with pytest.raises(NotExportable, match="data-dependent") as said:
        export(
            ExportableNetwork(Branching(), (0.0,), (1.0,), (3, 3), 9), AbstentionRule(0.5), tmp_path / f"file.{ending}"
        )
    assert "\n" not in str(said.value) and not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


class Silent(nn.Module):
    def forward(self, x):
        return None


@pytest.mark.parametrize(("network", "classes"), [(Silent(), 9), (Pixels(), 10)])
def test_export__what_does_not_answer_with_classes_is_refused(tmp_path, network, classes):
    with pytest.raises(BadInput, match=f"each of {classes} classes"):
        export(ExportableNetwork(network, (0.0,), (1.0,), (3, 3), classes), AbstentionRule(0.5), tmp_path / "file.pt2")


@pytest.mark.parametrize("name", ["mimo", "mixup", "oc"])
def test_load__methods_with_draws_or_scores_of_their_own(tmp_path, name):
    """Several fixed draws are averaged; scores that only a dump has room for do not stand in the way."""
    from nescio.methods import registry
    from nescio.search import draw
    from nescio.training import build
    from nescio.trials import Trial

    class Logits(nn.Module):
        def __init__(self, method):
            super().__init__()
            self.method = method

        def forward(self, x):
            return self.method(x).logits

    digits = datasets.load("digits")
    trial = Trial(method=name, hparams=draw(registry[name].hparams_class, 0), data="digits", backbone="mlp")
    method = build(trial, digits, rows=100).eval()
    classifier = ExportableNetwork(Logits(method), digits.mean, digits.std, (8, 8), 10)
    run, _ = load(export(classifier, AbstentionRule(0.88, 1.5), tmp_path / "file.pt2").path)
    pixels = digits.test.pixels[:20].transpose(0, 3, 1, 2)
    with torch.no_grad():
        x = (torch.from_numpy(pixels).float() / 255 - digits.mean[0]) / digits.std[0]
        probs = torch.softmax(method(x).logits / 1.5, -1).mean(1).numpy()
    said = run(pixels)
    np.testing.assert_allclose(said["probability"], probs.max(1), atol=1e-6)
    np.testing.assert_array_equal(said["class"], probs.argmax(1))
    np.testing.assert_array_equal(said["abstain"], 1 - probs.max(1) > 0.88)


def test_export__a_file_that_answers_otherwise_is_not_kept(tmp_path, monkeypatch):
    real = WRITERS[".pt2"]

    def spoil(module, images, file, about):
        real(AbstainingClassifier(pixels(0.05), module.rule), images, file, about)

    monkeypatch.setitem(WRITERS, ".pt2", spoil)
    with pytest.raises(NotExportable, match="from the network"):
        export(pixels(0.02), AbstentionRule(0.5), tmp_path / "file.pt2")
    assert not list(tmp_path.iterdir())


def test_load__without_the_packages_a_sentence_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("nescio.networks.export.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"nescio\[export\].*pt2"):
        export(pixels(), AbstentionRule(0.5), tmp_path / "file.onnx")
    with pytest.raises(BadInput, match="no file"):
        load(tmp_path / "file.onnx")


@pytest.mark.parametrize("measure", ["mutual_information", "native", "mc-dropout", "nonsense"])
def test_export__measures_that_need_more_than_one_answer_are_refused(measure):
    with pytest.raises(BadInput, match="without draws"):
        AbstentionRule(0.5, 1.0, measure)


@pytest.mark.parametrize(("threshold", "temperature"), [(np.nan, 1.0), (np.inf, 1.0), (0.5, 0.0), (0.5, np.nan)])
def test_abstention_rule__bad_rules(threshold, temperature):
    with pytest.raises(BadInput):
        AbstentionRule(threshold, temperature)


def test_threshold_file__rules_from_files(tmp_path):
    promise = {"threshold": 0.25, "temperature": 1.5, "measure": "entropy", "risk": 0.05, "delta": 0.05, "classes": 4}
    file = tmp_path / "promise.json"
    file.write_text(json.dumps(promise))
    rule, held = read_rule(str(file))
    assert rule == AbstentionRule(0.25, 1.5, "entropy")
    assert held == ThresholdFile(classes=4, terms={"risk": 0.05, "delta": 0.05})
    assert read_rule("0.2") == (AbstentionRule(0.2), ThresholdFile()) and read_rule("0.2", 3.0, "entropy")[
        0
    ] == AbstentionRule(0.2, 3.0, "entropy")
    assert read_rule(str(file), 1.5, "entropy")[0] == rule
    for options, word in (({"temperature": 2.0}, "temperature"), ({"measure": "msp"}, "measure")):
        with pytest.raises(BadInput, match=word):
            read_rule(str(file), **options)
    for text, word in (
        ("{", "not what"),
        ("[1]", "not what"),
        (json.dumps(promise | {"threshold": None}), "attainable"),
        (json.dumps(promise | {"threshold": "0.2"}), "not what"),
        (json.dumps(promise | {"temperature": None}), "not what"),
        (json.dumps(promise | {"model": 5}), "not what"),
        ("[" * 100_000, "not what"),
    ):
        file.write_text(text)
        with pytest.raises(BadInput, match=word):
            read_rule(str(file))
    with pytest.raises(BadInput, match="neither a number"):
        read_rule("missing.json")


@pytest.mark.parametrize(
    "odd", [{"n": -1}, {"errors": 11}, {"errors": 0.5}, {"accepted": 21}, {"accepted": "10"}, {"predictions": [1]}]
)
def test_read_rule__a_promise_of_counts_that_cannot_be_is_refused(tmp_path, odd):
    promise = {"threshold": 0.25, "temperature": 1.5, "measure": "entropy", "errors": 2, "accepted": 10, "n": 20}
    (tmp_path / "promise.json").write_text(json.dumps(promise))
    assert read_rule(str(tmp_path / "promise.json"))[0] == AbstentionRule(0.25, 1.5, "entropy")
    (tmp_path / "promise.json").write_text(json.dumps(promise | odd))
    with pytest.raises(BadInput):
        read_rule(str(tmp_path / "promise.json"))


@pytest.mark.parametrize(
    ("promise", "sentence"),
    [
        (ThresholdFile(), None),
        (ThresholdFile("net", "abc"), None),
        (ThresholdFile("another name of it", "abc"), None),
        (ThresholdFile("net", "xyz"), "other weights of it"),
        (ThresholdFile("vit", "xyz"), "for vit, another"),
        (ThresholdFile("net"), None),
        (ThresholdFile("vit"), "model vit, and net"),
        (ThresholdFile(classes=4), "of 4 classes; net has 9"),
        (ThresholdFile("net", "abc", preprocessing={"view": {"size": 3}}), None),
        (ThresholdFile("net", "abc", preprocessing={"view": {"size": 4}}), "another view"),
    ],
)
def test_threshold_file__a_promise_holds_for_the_model_that_it_was_made_for(promise, sentence):
    about = {"model": "net", "view": {"size": 3, "resize": None}}
    classifier = replace(pixels(), digest="abc", facts=about)
    if sentence is None:
        promise.check(classifier)
    else:
        with pytest.raises(BadInput, match=sentence):
            promise.check(classifier)


def test_load__a_file_of_torch_refuses_images_that_are_not_bytes(tmp_path):
    """Images from 0 to 1, given to a network that divides by 255, are the commonest silent error."""
    read, _ = load(export(pixels(), AbstentionRule(0.5), tmp_path / "x.pt2").path)
    assert read(images_of(2))["class"].shape == (2,)
    with pytest.raises(Exception, match="dtype"):
        read(images_of(2).astype(np.float32) / 255)


# ---- real networks, by the command


def say(capsys, *words):
    try:
        code = main([str(word) for word in words])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A store with a network that learnt the digits 0 to 5, and what it says about the test images."""
    folder = tmp_path_factory.mktemp("trained")
    words = ["--backbone", "conv", "--epochs", "3", "--classes", "0-5", "--store", str(folder / "store")]
    assert main(["train", "--method", "erm", *words]) == 0
    key = next(run.key for run in Store(folder / "store").runs() if run.state == "finished")
    for split in ("test", "val"):
        to = str(folder / f"{split}.npz")
        assert main(["predict", key, "--split", split, "--output", to, "--store", str(folder / "store")]) == 0
    return folder, key


@pytest.mark.parametrize("ending", ENDINGS)
def test_load__from_the_promise_to_the_file(trained, capsys, tmp_path, ending):
    folder, key = trained
    promise, file = tmp_path / "promise.json", tmp_path / f"digits.{ending}"
    asked = ["--coverage", 0.6, "--measure", "entropy", "--val", folder / "val.npz", "--format", "json"]
    code, out, _ = say(capsys, "threshold", folder / "test.npz", *asked)
    promise.write_text(out)
    code, out, err = say(
        capsys, "export", f"store:{key[:6]}", "--threshold", promise, "--output", file, "--store", folder / "store"
    )
    assert code == 0 and err == "" and "Checked: the file gives" in out and "entropy >" in out
    run, about = load(file)
    held = json.loads(promise.read_text())
    assert about["promise"]["bound"] == held["bound"] and about["names"] == list("012345")
    dump = Predictions.load(folder / "test.npz")
    u = measures.entropy(Temperature(held["temperature"])(dump))
    test = datasets.split_dataset(datasets.load("digits"), (0, 1, 2, 3, 4, 5)).test
    said = run(test.pixels.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(test.index, dump.index)
    np.testing.assert_array_equal(said["class"], dump.logits[:, 0].argmax(1))
    np.testing.assert_allclose(said["uncertainty"], u, rtol=1e-3, atol=1e-6)
    sure = np.abs(u - held["threshold"]) > 1e-4
    np.testing.assert_array_equal(said["abstain"][sure], (u > held["threshold"])[sure])
    assert 1 - said["abstain"].mean() == pytest.approx(held["coverage"], abs=0.01)


def loss_order(d, seed=0):
    """A learned score whose layers are drawn."""
    rng = np.random.default_rng(seed)
    shapes = [(d, 512), (512,), (512, 512), (512,), (512, 1), (1,)]
    return measures.LossOrder(rng.random(d), 1 + rng.random(d), [rng.normal(0, 0.05, shape) for shape in shapes])


def blobs(n, seed, relu=False):
    """Embeddings (n, 12) about five class means, and the logits of a linear layer."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 5
    embeddings = 3 * np.random.default_rng(9).normal(size=(5, 12))[labels] + rng.normal(size=(n, 12)) + 1
    embeddings = np.maximum(embeddings, 0) if relu else embeddings
    weight = np.random.default_rng(8).normal(size=(12, 5))
    return Predictions(embeddings=embeddings, logits=embeddings @ weight + 0.5, labels=labels)


@pytest.mark.parametrize("measure", measures.PORTABLE)
def test_score_network__a_fitted_score_as_a_network_is_the_one_of_the_library(measure, tmp_path):
    relu = measure in ("react", "ash", "scale", "dice")
    train, test = blobs(400, 0, relu), blobs(60, 1, relu)
    fitted = measures.fit(measure, train)
    digest = measures.portable(measure, fitted).save(tmp_path / "score.safetensors")
    score = measures.FittedScore.load(tmp_path / "score.safetensors", digest)
    with torch.no_grad():
        found = ScoreNetwork(score)(torch.tensor(test.embeddings), torch.tensor(test.logits)).numpy()
    u = fitted(test)
    np.testing.assert_allclose(found, u, rtol=1e-3, atol=1e-3 * np.ptp(u))
    assert np.ptp(u) > 0
    with pytest.raises(BadInput, match=r"score\.safetensors .* fitted score"):
        measures.FittedScore.load(tmp_path / "score.safetensors", "0" * 64)


@pytest.mark.parametrize("measure", measures.LOGIT_MEASURES)
@pytest.mark.parametrize(("draws", "temperature"), [(1, 1.0), (3, 1.7)])
def test_logit_score__a_score_of_logits_is_the_one_of_the_library(measure, draws, temperature):
    logits = 4 * np.random.default_rng(0).normal(size=(200, draws, 6)) * np.geomspace(0.01, 8, 200)[:, None, None]
    u = measures.uncertainty(measure, Temperature(temperature)(Predictions(logits=logits)))
    z = torch.tensor(logits[:, 0] if draws == 1 else logits)
    found = logit_score(measure, MeanSoftmax(z, temperature), z, temperature).double().numpy()
    np.testing.assert_allclose(found, u, rtol=1e-4, atol=1e-6)


def test_score_network__classes_without_a_logit_have_no_boundary():
    train, test = blobs(400, 0), blobs(20, 1)
    logits = np.array(test.logits)
    logits[:10, 0, 1] = -np.inf
    fitted = measures.fit("fdbd", train)
    u = fitted(test.replace(logits=logits))
    network = ScoreNetwork(measures.portable("fdbd", fitted))
    found = network(torch.tensor(test.embeddings), torch.tensor(logits[:, 0])).numpy()
    np.testing.assert_allclose(found, u, rtol=1e-3)


def test_score_network__few_rows_of_many_features_have_whole_whiteners():
    """Class Gaussians that are kept by their axes."""
    train, test = blobs(20, 0), blobs(30, 1)
    fitted = measures.fit("gmm", train)
    found = ScoreNetwork(measures.portable("gmm", fitted))(torch.tensor(test.embeddings), torch.tensor(test.logits))
    u = fitted(test)
    np.testing.assert_allclose(found.numpy(), u, rtol=1e-2)


def test_export__what_cannot_be_a_file_or_is_none_is_refused(tmp_path):
    with pytest.raises(BadInput, match="vmf_mixture"):
        measures.portable("vmf_mixture", None)
    with pytest.raises(BadInput, match="entropy"):
        measures.fit("entropy", blobs(400, 0))
    (tmp_path / "x.safetensors").write_bytes(b"no")
    with pytest.raises(BadInput, match=r"x\.safetensors"):
        measures.FittedScore.load(tmp_path / "x.safetensors")


@pytest.mark.parametrize(("measure", "ending"), [pytest.param("nnguide", "onnx", marks=needs_onnx), ("rmds", "pt2")])
def test_load__a_score_fitted_to_training_rows_goes_from_threshold_to_the_file(
    trained, capsys, tmp_path, measure, ending
):
    folder, key = trained
    promise, file, fitted = tmp_path / "promise.json", tmp_path / f"digits.{ending}", tmp_path / "score.safetensors"
    asked = [
        "--coverage",
        0.6,
        "--measure",
        measure,
        "--train",
        folder / "val.npz",
        "--save-measure",
        fitted,
        "--format",
        "json",
    ]
    asked += ["--temperature", 2.5]
    code, out, _ = say(capsys, "threshold", folder / "test.npz", *asked)
    assert code == 0
    promise.write_text(out)
    words = ["--threshold", promise, "--output", file, "--store", folder / "store"]
    code, out, err = say(capsys, "export", f"store:{key[:6]}", *words)
    assert code == 0 and err == "" and f"{measure} >" in out
    test = datasets.split_dataset(datasets.load("digits"), (0, 1, 2, 3, 4, 5)).test
    said = load(file)[0](test.pixels.transpose(0, 3, 1, 2))
    u = measures.fit(measure, Predictions.load(folder / "val.npz"))(Predictions.load(folder / "test.npz"))
    np.testing.assert_allclose(said["uncertainty"], u, rtol=1e-3, atol=1e-3 * np.ptp(u))
    calibrated = Temperature(2.5)(Predictions.load(folder / "test.npz"))
    np.testing.assert_allclose(said["probability"], measures.summary(calibrated).confidence, atol=1e-4)
    assert 1 - said["abstain"].mean() == pytest.approx(json.loads(promise.read_text())["coverage"], abs=0.02)
    fitted.write_bytes(b"other")
    code, _, err = say(capsys, "export", f"store:{key[:6]}", *words)
    assert code == 2 and "score.safetensors" in err


def test_export__a_fitted_measure_without_training_rows_names_the_option(trained, capsys):
    folder, _ = trained
    code, _, err = say(capsys, "threshold", folder / "test.npz", "--coverage", 0.6, "--measure", "nnguide")
    assert code == 2 and f"{shlex.quote(str(folder / 'test.npz'))} --coverage 0.6 --measure nnguide --train FILE" in err
    words = ("--coverage", 0.6, "--measure", "nnguide", "--train", folder / "val.npz", "--format", "json")
    code, out, err = say(capsys, "threshold", folder / "test.npz", *words)
    assert code == 0 and json.loads(out) and "--format json --save-measure nnguide.safetensors" in err


@pytest.mark.parametrize("ending", ENDINGS)
def test_load__a_learned_score_is_part_of_the_file(trained, capsys, tmp_path, ending):
    folder, key = trained
    dump, head, file = Predictions.load(folder / "test.npz"), tmp_path / "head.npz", tmp_path / f"digits.{ending}"
    order = loss_order(dump.embeddings.shape[1])
    order.save(head)
    u = order(dump)
    middle = float(np.median(u))
    words = ["--threshold", middle, "--loss-order", head, "--output", file, "--store", folder / "store"]
    code, out, err = say(capsys, "export", f"store:{key[:6]}", *words)
    assert code == 0 and err == "" and "loss_order >" in out
    run, about = load(file)
    said = run(datasets.split_dataset(datasets.load("digits"), (0, 1, 2, 3, 4, 5)).test.pixels.transpose(0, 3, 1, 2))
    assert about["measure"] == "loss_order" and np.ptp(u) > 1e-3
    np.testing.assert_allclose(said["uncertainty"], u, rtol=1e-4)
    np.testing.assert_array_equal(said["class"], dump.logits[:, 0].argmax(1))
    sure = np.abs(u - middle) > 1e-4
    np.testing.assert_array_equal(said["abstain"][sure], (u > middle)[sure])


def test_split_classifier__a_network_from_elsewhere_is_divided_before_its_last_layer(tmp_path):
    plain = nn.Sequential(nn.Flatten(), nn.Linear(9, 5), nn.ReLU(), nn.Linear(5, 9)).eval()
    x = torch.rand(4, 1, 3, 3)
    with torch.no_grad():
        logits, embeddings = plain(x), plain[:3](x)
        divided = SplitClassifier(plain, 9)(x)
    assert torch.equal(divided[0], logits) and torch.equal(divided[1], embeddings)
    with pytest.raises(BadInput, match="linear last layer"):
        SplitClassifier(nn.Sequential(nn.Flatten(), nn.ReLU()), 9)


def test_export__a_learned_score_of_other_embeddings_is_refused(tmp_path):
    network = SplitClassifier(nn.Sequential(nn.Flatten(), nn.Linear(9, 5), nn.ReLU(), nn.Linear(5, 9)), 9).eval()
    classifier = ExportableNetwork(network, (0.0,), (1.0,), (3, 3), 9, score=loss_order(6))
    with pytest.raises(BadInput, match="of 6 features"):
        export(classifier, AbstentionRule(0.5, 1.0, "loss_order"), tmp_path / "file.pt2")
    for given, measure in ((loss_order(5), "msp"), (None, "loss_order")):
        with pytest.raises(BadInput, match="loss_order"):
            export(replace(classifier, score=given), AbstentionRule(0.5, 1.0, measure), tmp_path / "file.pt2")


def test_export__a_promise_of_another_model_is_refused(trained, capsys, tmp_path):
    """The file names no model, so NAME=FILE does; one without a name is said to be unchecked."""
    folder, key = trained
    promise, words = tmp_path / "promise.json", ["--store", folder / "store", "--output", tmp_path / "digits.pt2"]
    for name, code, sentence in (
        (f"store:{key[:8]}=", 0, ""),
        ("", 0, "does not name its model"),
        ("store:0123=", 2, "model store:0123"),
    ):
        _, out, _ = say(capsys, "threshold", f"{name}{folder / 'test.npz'}", "--coverage", 0.6, "--format", "json")
        promise.write_text(out)
        found, out, err = say(capsys, "export", f"store:{key}", "--threshold", promise, *words)
        assert found == code and sentence in out + err and ("does not name" in out) == (not name)


def test_export__a_flipped_bit_of_stored_weights_is_a_sentence(trained, capsys, tmp_path):
    folder, key = trained
    copy = shutil.copytree(folder / "store", tmp_path / "store")
    file = copy / "train" / key / "weights.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x40
    file.write_bytes(content)
    words = ["--threshold", 0.3, "--store", copy, "--output", tmp_path / "f.pt2"]
    code, _, err = say(capsys, "export", f"store:{key}", *words)
    assert code != 0 and "weights.safetensors changed" in err and not (tmp_path / "f.pt2").exists()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Small timm networks with random weights, as files that a person might have."""
    import timm
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("weights")
    for name in ("test_resnet", "test_vit"):
        torch.manual_seed(0)
        network = timm.create_model(name)
        save_file(network.state_dict(), folder / f"{name}.safetensors")
    return folder


@needs_onnx
@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_load__timm_in_onnxruntime_equals_timm_in_torch(checkpoints, capsys, tmp_path, monkeypatch, name):
    import timm

    monkeypatch.chdir(tmp_path)
    words = ["--threshold", 0.9985, "--temperature", 0.7, "--weights", checkpoints, "--format", "json"]
    code, out, _ = say(capsys, "export", name, *words)
    about = json.loads(out)
    assert code == 0 and about["checked"] and about["file"] == f"{name}.onnx" and about["view"]["size"] == 160
    network = timm.create_model(name, checkpoint_path=str(checkpoints / f"{name}.safetensors")).eval()
    cfg = network.pretrained_cfg
    mean, std = (torch.tensor(cfg[each])[:, None, None] for each in ("mean", "std"))
    run, _ = load(f"{name}.onnx")
    rng = np.random.default_rng(0)
    for rows in (1, 2, 5):
        images = rng.integers(0, 256, (rows, 3, 160, 160), dtype=np.uint8)
        with torch.no_grad():
            probs = torch.softmax(network((torch.from_numpy(images).float() / 255 - mean) / std) / 0.7, 1).numpy()
        said = run(images)
        np.testing.assert_array_equal(said["class"], probs.argmax(1))
        np.testing.assert_allclose(said["probability"], probs.max(1), atol=1e-5)
        np.testing.assert_allclose(said["uncertainty"], 1 - probs.max(1), atol=1e-5)
        np.testing.assert_array_equal(said["abstain"], 1 - probs.max(1) > 0.9985)


def test_train__sampling_methods_of_the_store_are_refused(tmp_path, capsys):
    words = ["--backbone", "mlp", "--epochs", "1", "--hparams", "mc_samples=2", "--store", str(tmp_path)]
    assert main(["train", "--method", "mc-dropout", *words]) == 0
    key = next(run.key for run in Store(tmp_path).runs() if run.state == "finished")
    capsys.readouterr()
    code, _, err = say(
        capsys, "export", f"store:{key}", "--threshold", 0.3, "--output", tmp_path / "a.pt2", "--store", tmp_path
    )
    assert code == 2 and "without draws" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("test_resnet",), "--threshold"),
        (("test_resnot", "--threshold", "0.3"), "test_resnot"),
        (("test_resnet", "--threshold", "0.3", "--output", "x.onnx", "--file-format", "pt2"), "omit one of them"),
        (("test_resnet", "--threshold", "0.3", "--output", "x.tflite"), "--output ends in .tflite"),
        (("test_resnet", "--threshold=-0.5"), "between 0 and 0.999: the file would always abstain"),
        (("test_resnet", "--threshold", "1"), "between 0 and 0.999: the file would never abstain"),
        (
            ("test_resnet", "--threshold", "7", "--measure", "entropy"),
            "between 0 and 6.908: the file would never abstain",
        ),
        (("test_resnet", "--threshold", "high"), "neither a number"),
        (("test_resnet", "--threshold", "0.3", "--measure", "jacobian"), "jacobian"),
        (("test_resnet", "--threshold", "0.3", "--temperature", "-1"), "temperature"),
        (("test_resnet", "--threshold", "0.3", "--weights", "nowhere"), "nowhere"),
        (("test_resnet", "--threshold", "other.json"), "1000"),
        (("store:abc", "--threshold", "0.3"), "abc"),
    ],
)
def test_export__bad_input_is_one_sentence(checkpoints, capsys, tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.json").write_text(
        json.dumps({"threshold": 0.1, "temperature": 1.0, "measure": "msp", "classes": 10})
    )
    if "--weights" not in words:
        monkeypatch.setenv("NESCIO_WEIGHTS", str(checkpoints))
    code, out, err = say(capsys, "export", *words)
    assert code == 2 and out == "" and sentence in err and len(err.strip().splitlines()) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["other.json"]


def test_export__help_comes_without_torch():
    code = (
        "import sys; from nescio.cli import main\n"
        "try: main(['export', '--help'])\nfinally: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False" and "uint8" in done.stdout


@pytest.mark.slow
@needs_onnx
def test_load__a_published_network_on_real_images(tmp_path):
    """EfficientNet-Lite0: the file abstains where the measures on the zoo's dump of the same images do."""
    from nescio.datasets import pixel_cache
    from nescio.datasets.image_set import ImageSet
    from nescio.networks.exportable import exportable_network
    from nescio.networks.models import find_network, with_weights
    from nescio.predict import OutputSpec, stored_predictions
    from nescio.work.steps import Context

    images = Path(os.environ.get("NESCIO_DATA", "")) / "imagenet_val_2k.npz"
    weights = Path(os.environ.get("NESCIO_WEIGHTS", ""))
    if not images.is_file() or not list(weights.glob("*efficientnet*lite0*")):
        pytest.skip("NESCIO_DATA has no imagenet_val_2k.npz, or NESCIO_WEIGHTS no efficientnet-lite0")
    store = Store(tmp_path / "store")
    model = with_weights(find_network("tf_efficientnet_lite0", store), weights)
    few = ImageSet(f"npz:{images}", split="test_or_all", limit=40)
    plain = stored_predictions(
        model, few, Context(store, device="cpu"), OutputSpec(("logits",), "float16", precision="float32")
    )
    dump = Temperature(1.2)(plain)
    u = measures.msp(dump)
    rule = AbstentionRule(float(np.median(u)), 1.2)
    made = export(exportable_network(model.name, store, weights=weights), rule, tmp_path / "lite0.onnx")
    held = np.load(pixel_cache.cache_pixels(few.load(), model.view, store))
    said = load(made.path)[0](np.ascontiguousarray(held.transpose(0, 3, 1, 2)))
    np.testing.assert_array_equal(said["class"], np.asarray(dump.logits)[:, 0].argmax(1))
    np.testing.assert_allclose(said["uncertainty"], u, rtol=0.02)  # the dump is in half precision
    sure = np.abs(u / rule.threshold - 1) > 0.02
    np.testing.assert_array_equal(said["abstain"][sure], (u > rule.threshold)[sure])
    assert np.mean(said["class"] == plain.labels) > 0.5
