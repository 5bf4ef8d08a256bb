"""Functions of `nescio` against commands: the same parameters, defaults and numbers; errors that speak Python."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest

import nescio
from nescio.analysis.sample import sample_predictions
from nescio.api.calls import options_class, signature_of
from nescio.benchmarks.selective.reports import UNTESTED
from nescio.cli import main
from nescio.errors import BadInput
from nescio.options import REQUIRED, leaves
from nescio.report.text import json_text
from tests.support.api_stub import STUB, stub

FUNCTIONS = sorted(nescio._FUNCTIONS)
OUTPUT = {"output", "format", "all"}  # what only commands have


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    for name, predictions in sample_predictions().items():
        predictions.save(folder / f"{name}.npz")
    test = sample_predictions()["test"]
    test.replace(logits=test.logits / 2 + np.eye(8, dtype="float32")[test.labels]).save(folder / "other.npz")
    return folder


@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls__parameters_are_the_options_of_the_command(name):
    options = import_module(f"nescio.commands.{name}").Options
    of_command = {leaf.key: leaf.default for leaf in leaves(options)}
    parameters = inspect.signature(getattr(nescio, name)).parameters
    assert of_command.keys() - parameters.keys() <= OUTPUT and parameters.keys() <= of_command.keys()
    for key, parameter in parameters.items():
        default = REQUIRED if parameter.default is inspect.Parameter.empty else parameter.default
        assert default == of_command[key] or (name, key) == ("calibrate", "output")


def plain(capsys, *words):
    main([*map(str, words), "--format", "json"])
    return json.loads(capsys.readouterr().out)


def test_calls__evaluate_gives_the_numbers_of_the_command(files, capsys):
    words = ("--val", files / "val.npz", "--ood", f"u={files / 'unknown.npz'}", "--bootstrap", 50)
    (command,) = plain(capsys, "evaluate", files / "test.npz", *words)["files"]
    result = nescio.evaluate(files / "test.npz", val=files / "val.npz", ood={"u": files / "unknown.npz"}, bootstrap=50)
    compare_rows(command["rows"], result[0].rows)
    assert len(result.to_pandas()) == len(result.rows) == len(result[0].rows)


def test_calls__predictions_in_memory_give_the_numbers_of_their_files(files):
    read = {name: nescio.Predictions.load(files / f"{name}.npz") for name in ("test", "val", "unknown")}
    by_file = nescio.evaluate(files / "test.npz", val=files / "val.npz", ood={"u": files / "unknown.npz"})
    by_object = nescio.evaluate(read["test"], val=read["val"], ood={"u": read["unknown"]})
    compare_rows(by_file[0].rows, by_object[0].rows)
    arrays = nescio.evaluate(logits=read["test"].logits, labels=read["test"].labels)
    assert arrays[0].value("accuracy") == by_file[0].value("accuracy")


def compare_rows(first, second):
    names = ("metric", "measure", "split", "calibrated", "low", "high", "value")
    assert [[row.get(name) for name in names] for row in first] == [[row.get(name) for name in names] for row in second]


def test_calls__compare_gives_the_numbers_of_the_command(files, capsys):
    words = (f"a={files / 'test.npz'}", f"b={files / 'other.npz'}", "--bootstrap", 50, "--metrics", "auroc,nll")
    command = plain(capsys, "compare", *words)
    models = {"a": files / "test.npz", "b": files / "other.npz"}
    result = nescio.compare(models, bootstrap=50, metrics=["auroc", "nll"])
    compare_rows(command["rows"], result.rows)
    assert command["verdict"] == result.sentences()


def test_calls__threshold_and_calibrate_give_the_numbers_of_the_command(files, capsys, tmp_path):
    command = plain(capsys, "threshold", files / "test.npz", "--risk", 0.05, "--val", files / "val.npz")
    result = nescio.threshold(files / "test.npz", risk=0.05, val=files / "val.npz")
    assert command["threshold"] == result.threshold and result.attainable
    assert json.loads(result.save(tmp_path / "rule.json").read_text())["threshold"] == result.threshold
    words = ("--val", files / "val.npz", "--output", tmp_path / "calibrated.npz")
    command = plain(capsys, "calibrate", files / "test.npz", *words)
    result = nescio.calibrate(files / "test.npz", val=files / "val.npz")
    assert command["temperature"] == result.temperature and command["after"] == result.after
    assert nescio.evaluate(result.predictions)[0].value("nll") == pytest.approx(result.after["nll"])


def test_calls__transfer_and_choose_give_the_numbers_of_the_command(files, capsys):
    command = plain(capsys, "transfer", files / "test.npz", "--bootstrap", 20)
    result = nescio.transfer(files / "test.npz", bootstrap=20)
    compare_rows(command["rows"], result.rows)
    assert command["recommended"] == result.recommended
    models = (f"a={files / 'test.npz'}", f"b={files / 'other.npz'}")
    command = plain(capsys, "choose", *models, "--accuracy", 0.95, "--bootstrap", 50)
    result = nescio.choose(models, accuracy=0.95, bootstrap=50)
    assert command["choice"] == result.name and command["value"] == result.models[0]["value"]


def test_calls__rank_gives_the_numbers_of_the_command(tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 4))
    for name in ("a0", "a1", "b0", "b1"):
        np.save(tmp_path / f"{name}.npy", (rows + rng.normal(size=rows.shape)).astype("float32"))
    files = {name: [tmp_path / f"{name}{seed}.npy" for seed in (0, 1)] for name in "ab"}
    words = [f"{name}={','.join(map(str, members))}" for name, members in files.items()]
    command = plain(capsys, "rank", *words, "--bootstrap", 20, "--k", 5)
    result = nescio.rank(files, bootstrap=20, k=5)
    assert command["group"] == result.plain()["group"] and command["candidates"][0]["scores"]
    assert command["candidates"] == json.loads(json_text(result.plain()["candidates"]))


@pytest.mark.parametrize("files_of_study", [("a", "b"), ("b", "c"), ("a", "c")])
def test_calls__models_in_other_orders_and_of_fewer_rows_are_compared(files_of_study, tmp_path):
    rng, test = np.random.default_rng(0), sample_predictions()["test"]
    noise = rng.normal(size=test.logits.shape)
    other = test.replace(logits=(test.logits / 2 + 0.5 * noise).astype("float32"))
    test.save(tmp_path / "a.npz")
    other.take(rng.permutation(len(test))).save(tmp_path / "b.npz")
    test.take(np.sort(rng.permutation(len(test))[:300])).save(tmp_path / "c.npz")
    names = [str(tmp_path / f"{name}.npz") for name in files_of_study]
    result = nescio.run("selective", files=names, store=tmp_path / "store", workers=0)
    assert any(row["metric"] == "difference" for row in result.rows) and not result.failures
    assert UNTESTED not in result.sentences()


def test_calls__results_have_frames_html_and_a_page(files, tmp_path, monkeypatch):
    result = nescio.compare({"a": files / "test.npz", "b": files / "other.npz"}, bootstrap=20)
    assert len(result.to_pandas()) == len(result.rows) and "<table>" in result._repr_html_()
    assert result.report(tmp_path / "page").is_file() and (tmp_path / "page" / "rows.csv").exists
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(BadInput, match="pip install polars"):
        result.to_polars()
    for other in (nescio.evaluate(files / "test.npz"), nescio.transfer(files / "test.npz", bootstrap=0)):
        assert "<p>" in other._repr_html_() and other.report(tmp_path / type(other).__name__).is_file()


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda file: nescio.threshold(file), ("risk", "coverage")),
        (lambda file: nescio.threshold(file, risk="low"), ("risk", "low")),
        (lambda file: nescio.threshold(file, risk=[0.1]), ("risk",)),
        (lambda file: nescio.threshold(file, risk=0.1, guarantee="ltx"), ("guarantee", "ltt")),
        (lambda file: nescio.evaluate(file, ood_share=3), ("ood_share", "3")),
        (lambda file: nescio.evaluate(file, ood="svhn.npz"), ("ood", "svhn.npz")),
        (lambda file: nescio.evaluate(file, val=file), ("val",)),
        (lambda file: nescio.transfer(file, data="digits"), ("data",)),
        (lambda file: nescio.zoo("resnet18", data="digits", extra_ood={"a": "digits"}), ("extra_ood", "ood_data")),
        (lambda file: nescio.run("uimnet", preset="smal"), ("smal", "small")),
    ],
)
def test_calls__errors_name_parameters(call, names, files):
    with pytest.raises(BadInput) as error:
        call(files / "test.npz")
    assert all(name in str(error.value) for name in names) and "--" not in str(error.value)


@pytest.mark.parametrize(
    "call",
    [lambda: nescio.compare("a.npz", foo=1), lambda: nescio.calibrate("a.npz"), lambda: nescio.run("all", foo=1)],
)
def test_calls__unknown_and_missing_parameters_are_type_errors(call):
    with pytest.raises(TypeError):
        call()


def test_calls__a_benchmark_runs_with_the_options_of_its_plan(tmp_path):
    store = tmp_path / "store"
    plan = {"data": "digits", "methods": "erm", "backbones": "mlp", "seeds": 1, "trials": 1, "epochs": 1}
    cost = nescio.run("uimnet", store=store, workers=0, dry_run=True, **plan)
    assert cost.rows and "missing" in cost.rows[0]


def test_calls__the_stub_has_the_types_of_all_functions():
    assert declarations(STUB.read_text()) == declarations(stub()), "run `make docs`"


def declarations(text):
    """The imported names of a file, and all else."""
    nodes = ast.parse(text).body
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names = {(node.module, alias.name, alias.asname) for node in imports for alias in node.names}
    return names, [ast.dump(node) for node in nodes if node not in imports]


def test_calls__import_is_light():
    code = "import nescio, sys; print(sorted({'torch', 'pandas', 'numpy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_signature_of__signatures_are_those_of_the_options():
    for name in FUNCTIONS:
        function = getattr(import_module(f"nescio.api.{nescio._FUNCTIONS[name]}"), name)
        assert inspect.signature(getattr(nescio, name)) == signature_of(options_class(function))
