"""Slips in parts of one's own: a sentence that names the part and its file, and says what to write."""

from pathlib import Path

import numpy as np
import pytest

from nescio import datasets
from nescio.analysis.scorecard import scorecard
from nescio.cli import main
from nescio.errors import BadInput
from nescio.measures import measure
from nescio.measures import registry as measures
from nescio.metrics import registry as metrics
from nescio.metrics._spec import metric
from nescio.predictions import Predictions

HERE = Path(__file__).name


@pytest.fixture
def forget():
    """Takes parts out of their registries again: registry and name."""
    added = []
    yield lambda registry, name: added.append((registry, name))
    for registry, name in added:
        registry._parts.pop(name, None)


def refused(match, work):
    with pytest.raises(BadInput, match=match) as no:
        work()
    assert HERE in str(no.value)


def test_registry__outputs_are_checked_before_the_first_step_and_nothing_moves(monkeypatch):
    torch = pytest.importorskip("torch")
    from nescio import training
    from nescio.methods import registry
    from nescio.methods.base import Output
    from nescio.methods.erm import ERM
    from nescio.runtime import runtime_for
    from nescio.trials import Training, Trial

    budget = Training(epochs=1, batch_size=64)
    trial, digits = (
        Trial(method="erm", hparams=registry["erm"].hparams_class(), data="digits", backbone="mlp", training=budget),
        datasets.load("digits"),
    )
    weights = [training.weights_of(training.fit(trial, digits, runtime_for("cpu"), None, 60.0, None)[0])]
    with monkeypatch.context() as patch:
        patch.setattr(training.loop, "_check_forward", lambda *_: None)
        weights.append(training.weights_of(training.fit(trial, digits, runtime_for("cpu"), None, 60.0, None)[0]))
    assert weights[0] == weights[1]

    def forward(self, x):
        features = self.features(x)
        return Output(torch.zeros(len(x), 10), features)

    def update(self, *_, **__):
        raise AssertionError("a step was taken")

    monkeypatch.setattr(ERM, "forward", forward)
    monkeypatch.setattr(ERM, "update", update)
    with pytest.raises(BadInput, match=r"erm .*logits\[:, None\]"):
        training.fit(trial, digits, runtime_for("cpu"), None, 60.0, None)


def test_registry__outputs_of_a_method():
    torch = pytest.importorskip("torch")
    from nescio.methods.base import Method, Output, check_output

    class Mine(Method):
        name = "mine"
        scores = ("doubt",)

    method = Mine.__new__(Mine)
    logits, embeddings, doubt = torch.zeros(8, 1, 3), torch.zeros(8, 5), torch.zeros(8)
    check_output(method, Output(logits, embeddings, {"doubt": doubt}), 8)
    for output, cure in (
        (logits, "Tensor, not an Output"),
        (Output(None, embeddings), "classifies = False"),
        (Output(logits[:, 0], embeddings), r"logits\[:, None\]"),
        (Output(logits[:4], embeddings[:4], {"doubt": doubt[:4]}), "4 rows for 8 images"),
        (Output(logits, embeddings[:4]), "embeddings of 4 rows"),
        (Output(logits, embeddings, {"other": doubt}), "other, .* doubt"),
        (Output(logits, embeddings), "scores none"),
        (Output(logits, embeddings, {"doubt": doubt[:, None]}), r"doubt\.squeeze\(1\)"),
        (Output(logits, embeddings, {"doubt": torch.zeros(8, 5)}), r"shape \(8, 5\)"),
    ):
        refused(rf"method mine .*{cure}", lambda output=output: check_output(method, output, 8))


def test_registry__losses_of_a_method():
    torch = pytest.importorskip("torch")
    from nescio.methods.base import Method, check_loss

    class Mine(Method):
        name = "mine"

    method, weights = Mine.__new__(Mine), torch.ones(8, requires_grad=True)
    check_loss(method, weights.mean())
    for loss, cure in ((weights * 2, r"\(8,\), .* \.mean\(\)"), (torch.ones(()), "no detach"), (0.5, "float")):
        refused(rf"method mine .*{cure}", lambda loss=loss: check_loss(method, loss))


def test_registry__training_refuses_a_loss_of_many_numbers(monkeypatch):
    pytest.importorskip("torch")
    from nescio import training
    from nescio.methods import registry
    from nescio.methods.erm import ERM
    from nescio.runtime import runtime_for
    from nescio.trials import Training, Trial

    budget = Training(epochs=1, batch_size=64)
    trial = Trial(method="erm", hparams=registry["erm"].hparams_class(), data="digits", backbone="mlp", training=budget)
    monkeypatch.setattr(ERM, "loss", lambda self, x, y: self.head(self.features(x)).logsumexp(-1))
    with pytest.raises(BadInput, match=r"erm .*\.mean\(\)"):
        training.fit(trial, datasets.load("digits"), runtime_for("cpu"), None, 60.0, None)


@pytest.mark.parametrize("command", ["verify", "train"])
def test_registry__commands_refuse_logits_without_draws(command, tmp_path, monkeypatch, capsys, forget):
    pytest.importorskip("torch")
    from nescio.methods import Method, method, registry
    from nescio.methods.base import Output

    forget(registry, "no-draws")

    @method("no-draws")
    class NoDraws(Method):
        def forward(self, x):
            embeddings = self.features(x)
            return Output(self.head(embeddings), embeddings)

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8)
    labels = np.arange(40) % 2
    np.savez(tmp_path / "a.npz", x_train=pixels, y_train=labels, x_test=pixels[:20], y_test=labels[:20])
    monkeypatch.chdir(tmp_path)
    words = ["no-draws"] if command == "verify" else ["--method", "no-draws", "--workers", "0", "--device", "cpu"]
    code = main([command, *words, "--data", "npz:a.npz", "--backbone", "mlp", "--epochs", "2"])
    err = capsys.readouterr().err
    assert code in (1, 2) and "no-draws" in err and HERE in err and "logits[:, None]" in err


def test_measure__a_measure_of_the_wrong_length(forget):
    forget(measures, "halved")

    @measure("plain", needs=("logits",))
    def halved(predictions):
        """Half of the rows."""
        return np.zeros(len(predictions) // 2)

    dump = Predictions(logits=np.random.default_rng(0).normal(size=(40, 3)), labels=np.arange(40) % 3)
    refused(r"measure halved .* shape \(20,\) .* 40 rows", lambda: measures["halved"].compute(dump))
    reasons = [row["reason"] for row in scorecard(dump).reasons if row["measure"] == "halved"]
    assert any("halved" in reason and HERE in reason for reason in reasons)


def test_measure__a_fitted_measure_of_the_wrong_length(forget):
    forget(measures, "first-fit")

    @measure("fitted", needs=("logits",), name="first-fit")
    def first(train):
        """The first row alone."""
        return lambda predictions: np.zeros(1)

    rng = np.random.default_rng(0)
    dump, train = (Predictions(logits=rng.normal(size=(40, 3)), labels=np.arange(40) % 3) for _ in range(2))
    reasons = [row["reason"] for row in scorecard(dump, train).reasons if row["measure"] == "first-fit"]
    assert any("first-fit" in reason and HERE in reason for reason in reasons)


def test_registry__words_of_the_decorators(forget):
    forget(metrics, "rank")
    refused("metric rank .*better='low'.*'lower'", lambda: metric("ranking", better="low", name="rank")(refused))
    refused("metric rank .*kind 'rank'.*ranking", lambda: metric("rank", better="lower", name="rank")(refused))
    refused("measure refused .*kind 'plane'.*plain", lambda: measure("plane", needs=("logits",))(refused))


def test_registry__a_source_that_returns_nothing(forget):
    forget(datasets.registry, "forgetful")

    @datasets.dataset("forgetful")
    def forgetful(request):
        """Nothing."""

    refused("dataset forgetful .*NoneType, not a Dataset", lambda: datasets.load("forgetful"))


def test_registry__a_source_without_a_request():
    def no_request():
        return datasets.load("digits")

    refused("dataset lonely .*one argument", lambda: datasets.dataset("lonely")(no_request))
