"""`--plugin FILE.py`: parts of one's own without a package, in this process and in its workers."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.support.paths import ROOT

MEASURE = """
import numpy as np
from nescio.measures import measure

@measure("plain", needs=("logits",))
def my_constant(predictions):
    \"\"\"The same for every row.\"\"\"
    return np.ones(len(predictions))
"""
METHOD = """
from nescio.methods import Method, method

@method("my-erm")
class MyERM(Method):
    \"\"\"Cross-entropy under another name.\"\"\"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_measure.py").write_text(MEASURE)
    (tmp_path / "my_method.py").write_text(METHOD)
    (tmp_path / "broken_part.py").write_text("1 / 0")
    (tmp_path / "old_part.py").write_text("from nescio import gone")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "json.py").write_text("")
    labels = np.arange(30) % 3
    np.savez(tmp_path / "preds.npz", labels=labels, logits=np.eye(3)[labels] + np.arange(90).reshape(30, 3) % 7)
    return tmp_path


def nescio(folder, *words):
    env = {name: value for name, value in os.environ.items() if name != "NESCIO_PLUGINS"}
    env["PYTHONPATH"] = str(ROOT / "src")
    command = [sys.executable, "-W", "ignore", "-m", "nescio", *words]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=240)


def test_plugin__a_measure_stands_on_the_scorecard(folder):
    for words in (["--plugin", "my_measure.py", "evaluate"], ["evaluate", "--plugin", "my_measure.py"]):
        done = nescio(folder, *words, "preds.npz", "--format", "json")
        assert done.returncode == 0 and "my_constant" in done.stdout, done.stderr
    assert "my_constant" not in nescio(folder, "evaluate", "preds.npz", "--format", "json").stdout


def test_plugin__the_dataset_of_the_guide_is_trained_on(folder, warm):
    text = (ROOT / "docs" / "data.md").read_text("utf-8").partition("## A dataset of your own format")[2]
    (folder / "mine.py").write_text(text.partition("```python\n")[2].partition("```")[0])
    pixels, labels = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 2
    (folder / "photos").mkdir()
    for part, rows in (("train", slice(40)), ("test", slice(40, 60))):
        np.save(folder / "photos" / f"{part}.npy", pixels[rows])
        np.save(folder / "photos" / f"{part}-labels.npy", labels[rows])
    words = "train --method erm --backbone mlp --epochs 1 --plugin mine.py --data"
    code, command = warm.run(*words.split(), "arrays:photos", cwd=folder)
    assert code == 0 and "is finished" in command.out, command.err
    code, missing = warm.run(*words.split(), "arrays:nowhere", cwd=folder)
    assert code == 2 and "at nowhere" in missing.err


def test_plugin__a_method_is_trained_by_workers(folder, warm):
    words = (
        "run uimnet --methods my-erm --backbones mlp --spectral-bounds none --trials 1 --seeds 1 --epochs 1 --no-oracle"
    )
    words += " --workers 1 --measures entropy"
    code, command = warm.run("--plugin", "my_method.py", *words.split(), cwd=folder)
    assert code == 0 and "my-erm" in command.out, command.err


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("nowhere.py", "--plugin nowhere.py: there is no such file"),
        ("preds.npz", "--plugin takes a Python file"),
        ("other/json.py", "There is a module named json already"),
        ("broken_part.py", "cannot be imported (ZeroDivisionError"),
        ("old_part.py", "cannot be imported (ImportError: cannot import name 'gone' from 'nescio'"),
    ],
)
def test_plugin__what_cannot_be_used_is_a_sentence(folder, file, sentence):
    done = nescio(folder, "--plugin", file, "metrics")
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr


FAULTY = """
import numpy as np
from nescio.measures import measure

@measure(needs=("logits",))
def short(predictions):
    return np.zeros(3)

@measure(needs=("logits",))
def crashing(predictions):
    return 1 // 0

@measure(needs=("logits",))
def nan_measure(predictions):
    return np.full(len(predictions), np.nan)

@measure("fitted", needs=("logits",))
def unfit(reference):
    return reference.nothing

@measure("fitted", needs=("logits",))
def late(reference):
    return lambda predictions: np.zeros(2)[len(predictions)]
"""


def test_plugin__measures_that_fail_are_named_with_file_and_reason(folder):
    (folder / "faulty.py").write_text(FAULTY)
    labels = np.arange(40) % 3
    np.savez(folder / "val.npz", labels=labels, logits=np.eye(3)[labels] * 2 + np.arange(120).reshape(40, 3) % 5)
    done = nescio(folder, "evaluate", "--plugin", "faulty.py", "preds.npz", "--val", "val.npz")
    assert done.returncode == 0, done.stderr
    reasons = {
        "short": "(3,)",
        "crashing": "ZeroDivisionError",
        "nan_measure": "nan",
        "unfit": "",
        "late": "IndexError",
    }
    for name, reason in reasons.items():
        assert f"{name} (faulty.py)" in " ".join(done.stdout.split()) and reason in done.stdout, name
    done = nescio(folder, "compare", "--plugin", "faulty.py", "preds.npz", "other=val.npz", "--measure", "crashing")
    assert done.returncode == 2 and "crashing (faulty.py)" in done.stderr and "Traceback" not in done.stderr


READER = """
import json
from nescio.predictions.readers import reader

@reader(".json")
def read_json(path, names):
    \"\"\"Fields of predictions as lists in a JSON object.\"\"\"
    return names.select(json.loads(path.read_text()))
"""


def test_plugin__reader_of_a_plugin_adds_a_file_format(folder):
    (folder / "json_reader.py").write_text(READER)
    arrays = dict(np.load(folder / "preds.npz"))
    (folder / "preds.json").write_text(json.dumps({name: array.tolist() for name, array in arrays.items()}))
    expected = nescio(folder, "evaluate", "preds.npz", "--format", "json")
    done = nescio(folder, "evaluate", "--plugin", "json_reader.py", "preds.json", "--format", "json")
    assert done.returncode == 0, done.stderr
    values = [[row["value"] for row in json.loads(text)["files"][0]["rows"]] for text in (expected.stdout, done.stdout)]
    assert values[0] == values[1]
    unknown = nescio(folder, "evaluate", "preds.json")
    assert unknown.returncode == 2 and ".json" in unknown.stderr and ".npz" in unknown.stderr
