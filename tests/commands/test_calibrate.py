"""`nescio calibrate`: a calibrated dump as a file, fitted on other rows, equal to what scikit-learn fits."""

import json

import numpy as np
import pytest
from scipy.special import softmax

from nescio import Predictions, metrics
from nescio.analysis import calibration
from nescio.cli import main
from nescio.work.store import Store
from tests.support.fake_zoo import keep


def model(seed, n=600, c=4, sharp=3.0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c))
    labels = np.array([rng.choice(c, p=row) for row in softmax(z, axis=1)])
    return Predictions(index=np.arange(n) + 10_000 * seed, labels=labels, logits=sharp * z, scores={"own": z[:, 0]})


@pytest.fixture
def files(tmp_path):
    return [str(model(seed).save(tmp_path / f"{name}.npz")) for seed, name in enumerate(("test", "val"))]


@pytest.mark.parametrize("method", ["temperature", "vector"])
@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_calibrate__the_file_holds_the_calibrated_rows_and_all_else(files, tmp_path, capsys, method, ending):
    test, val = files
    to = tmp_path / f"out.{ending}"
    assert (
        main(["calibrate", test, "--val", val, "--output", str(to), "--calibration", method, "--format", "json"]) == 0
    )
    said = json.loads(capsys.readouterr().out)
    written, expected = Predictions.load(to), getattr(calibration, method)(model(1))(model(0))
    np.testing.assert_allclose(written.logits, expected.logits, rtol=1e-6)
    np.testing.assert_array_equal(written.labels, expected.labels)
    np.testing.assert_array_equal(written.scores["own"], expected.scores["own"])
    assert said["after"]["nll"] < said["before"]["nll"] and said["after"]["mcb"] < said["before"]["mcb"]
    assert said["after"]["ece"] == pytest.approx(metrics.ece(softmax(written.logits[:, 0], axis=1), written.labels))
    if method == "temperature":
        assert said["temperature"] == pytest.approx(3, rel=0.1)
        assert (written.logits.argmax(-1) == model(0).logits.argmax(-1)).all()


def test_calibrate__logits_that_are_computed_when_read_are_written_whole(files, tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "HELD_BYTES", 0)
    test, val = files
    for ending in ("npz", "safetensors", "csv"):
        to = tmp_path / f"out.{ending}"
        assert main(["calibrate", test, "--val", val, "--output", str(to)]) == 0
        expected = calibration.temperature(model(1))(model(0))
        np.testing.assert_allclose(Predictions.load(to).logits, np.asarray(expected.logits), rtol=1e-5)


def test_calibrate__the_rows_that_it_is_fitted_on_are_refused(files, tmp_path, capsys):
    test, _ = files
    assert main(["calibrate", test, "--val", test, "--output", str(tmp_path / "out.npz")]) == 2
    assert "same rows" in capsys.readouterr().err and not (tmp_path / "out.npz").exists()


def test_calibrate__what_is_read_is_not_overwritten(files, capsys):
    test, val = files
    before = Predictions.load(test).logits.copy()
    assert main(["calibrate", test, "--val", val, "--output", test]) == 2
    assert "name another file" in capsys.readouterr().err
    np.testing.assert_array_equal(Predictions.load(test).logits, before)


def test_temperature__the_temperature_is_that_of_scikit_learn():
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Network(ClassifierMixin, BaseEstimator):
        """Features are logits."""

        def fit(self, x, y):
            self.classes_ = np.unique(y)
            return self

        def decision_function(self, x):
            return x

        def predict(self, x):
            return x.argmax(1)

    val, test = model(1), model(0)
    network = Network().fit(val.logits[:, 0], val.labels)
    theirs = CalibratedClassifierCV(FrozenEstimator(network), method="temperature").fit(val.logits[:, 0], val.labels)
    ours = calibration.temperature(val)(test)
    np.testing.assert_allclose(softmax(ours.logits[:, 0], axis=1), theirs.predict_proba(test.logits[:, 0]), atol=2e-4)


def test_calibrate__a_model_of_the_store_is_calibrated_and_no_other_models_rows_fit_it(files, tmp_path, capsys):
    store = Store(tmp_path / "store")
    for name, seed in (("resnet18", 0), ("vgg11", 2)):
        keep(store, name, "digits", model(seed), False)
    words = ["--output", str(tmp_path / "out.npz"), "--store", str(store.root)]
    assert main(["calibrate", "zoo:resnet18", "--val", files[1], *words]) == 0
    expected = calibration.temperature(model(1))(model(0))
    np.testing.assert_allclose(Predictions.load(tmp_path / "out.npz").logits, expected.logits, rtol=1e-5)
    capsys.readouterr()
    for command, flag, rest in (
        ("calibrate", "--val", words[:2]),
        ("threshold", "--val", ["--risk", "0.4"]),
        ("threshold", "--test", ["--risk", "0.4"]),
        ("evaluate", "--val", []),
    ):
        assert main([command, "zoo:resnet18", flag, "zoo:vgg11", *rest, *words[2:]]) == 2, command
        assert f"{flag} is zoo:vgg11, and FILE is zoo:resnet18" in capsys.readouterr().err
