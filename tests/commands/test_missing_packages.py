"""Without torch, every command that needs it says so in one sentence with the command to install; others just work."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from nescio.errors import EXTRAS, install
from tests.support.paths import ROOT

BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
from nescio.cli import main
sys.exit(main({words!r}))
"""
TORCH = ("torch", "torchvision", "timm", "gpytorch")


def without(blocked, *words, **how):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    code = BLOCKER.format(blocked=tuple(blocked), words=[str(word) for word in words])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False, **how)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store that looks as if a network had been trained."""
    from nescio.work.store import Store

    root = tmp_path_factory.mktemp("store")
    with Store(root).work("train", {"method": "erm"}) as step_folder:
        step_folder.write("weights.safetensors", b"")
    return root


@pytest.mark.parametrize(
    "words",
    [
        ["train"],
        ["predict", "0a", "--output", "x.npz", "--store", "{store}"],
        ["methods"],
        ["verify"],
        ["demo", "--output", "{store}/demo"],
        ["zoo", "resnet18", "--data", "digits"],
        ["run", "uimnet", "--store", "{store}"],
        ["run", "reliability", "--store", "{store}"],
        ["rank", "resnet18", "--data", "digits"],
        ["export", "resnet18", "--threshold", "0.5"],
    ],
    ids=lambda words: " ".join(words[: 2 if words[0] == "run" else 1]),
)
def test_missing_packages__a_command_that_needs_torch_says_what_to_install(store, tmp_path, words):
    done = without(TORCH, *(word.format(store=store) for word in words), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    sentence = rf"nescio {words[0]} needs (torch|timm|torchvision): pip install 'nescio\[train\]' \(.*'\.\[train\]'\)\n"
    assert re.fullmatch(sentence, done.stderr)


def test_missing_packages__what_needs_no_torch_works_without(tmp_path):
    labels = np.arange(60) % 3
    file = tmp_path / "test.npz"
    np.savez(file, labels=labels, logits=np.eye(3)[labels] + np.random.default_rng(0).normal(size=(60, 3)))
    page = ["--output", tmp_path / "page"]
    for words in (
        ["evaluate", file],
        ["threshold", file, "--coverage", 0.5],
        ["metrics"],
        ["measures"],
        ["imagenot", "--data", "digits"],
        ["store", "prune", "--dry-run", "--store", tmp_path],
        ["report", ROOT / "results/uimnet/rows.parquet", *page],
        ["run", "--help"],
        ["train", "--help"],
    ):
        done = without(TORCH, *words, cwd=tmp_path)
        assert done.returncode == 0 and "needs" not in done.stderr, (words, done.stderr)


def test_missing_packages__other_packages_are_named_as_they_are_installed(tmp_path):
    done = without(("pyarrow",), "evaluate", tmp_path / "x.parquet")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    done = without(("rich",), "metrics")
    assert done.stderr.endswith(": pip install rich\n") and done.stderr.startswith("nescio metrics ")


def test_missing_packages__the_extra_train_runs_every_benchmark():
    """What the search of `nescio run url` imports is in it."""
    assert ("optuna", "train") in declared() and EXTRAS["optuna"] == "train"
    assert install("optuna").count("[train]") == 2 and install("rich") == "pip install rich"


def test_missing_packages__export_looks_for_its_packages_before_any_work(tmp_path):
    done = without(("onnxscript", "timm"), "export", "resnet18", "--threshold", "0.5", cwd=tmp_path)
    assert done.returncode == 2 and "onnxscript" in done.stderr and "[export]" in done.stderr


def test_missing_packages__an_error_of_our_own_imports_is_not_hidden():
    done = without(("nescio.metrics", "nescio"), "metrics")
    assert done.returncode == 1 and "Traceback" in done.stderr


def declared():
    """Package → extras that bring it, of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {"": project["dependencies"], **project["optional-dependencies"]}
    return {(re.match(r"[\w.-]+", line)[0].lower(), extra) for extra, lines in extras.items() for line in lines}


def test_extras__the_extras_are_those_of_the_project():
    names = {"PIL": "pillow", "huggingface_hub": "huggingface_hub"}
    for package, extra in EXTRAS.items():
        assert (names.get(package, package), extra) in declared()


def imported(tree):
    """The first names of the absolute imports of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


def test_missing_packages__what_is_imported_is_declared():
    distributions = {
        "PIL": "pillow",
        "sklearn": "scikit-learn",
        "vl_convert": "vl-convert-python",
        "markupsafe": "jinja2",
        "yaml": "pyyaml",
    }
    known = (
        {name.replace("_", "-") for name, _ in declared()} | set(sys.stdlib_module_names) | {"nescio", "-typeshed"}
    )  # _typeshed exists for type checkers only
    missing = set()
    for path in Path(ROOT / "src").rglob("*.py"):
        for module in imported(ast.parse(path.read_text())):
            name = distributions.get(module, module).replace("_", "-").lower()
            if name not in known and module not in sys.stdlib_module_names:
                missing.add(module)
    assert not missing
