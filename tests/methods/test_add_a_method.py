"""The page that shows how to add a method is run as it stands: as an outside package with an entry point."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest

from tests.support.paths import ROOT, page_of

pytest.importorskip("torch")
from tests.support.warm import Warm

PAGE = ROOT / "docs" / "add-a-method.md"
FILES = dict(re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL))
MODULE = "nescio_logit_norm"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The package, installed the way the page says, apart from everything else."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name, text in FILES.items():
        (source / name).write_text(text, "utf-8")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", str(site)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(source)], capture_output=True, text=True
    )
    if done.returncode:  # no pip or no setuptools here: what an install would leave behind, by hand
        (site / f"{MODULE}.py").write_text(FILES[f"{MODULE}.py"], "utf-8")
        about = site / f"{MODULE}-1.0.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[nescio.methods]\nlogit-norm = {MODULE}\n")
    return site


@pytest.fixture(scope="module")
def nescio(site, tmp_path_factory):
    server = Warm(tmp_path_factory.mktemp("warm"), path=[site])
    yield server
    server.close()


def test_add_a_method__the_page_shows_a_package():
    assert set(FILES) == {f"{MODULE}.py", "pyproject.toml", "test_logit_norm.py"}
    code = [line for line in FILES[f"{MODULE}.py"].splitlines() if line.strip()]
    assert len(code) <= 32


def test_add_a_method__nescio_finds_it(nescio):
    code, command = nescio.run("methods", "logit-norm", "--format", "json")
    assert code == 0, command.err
    facts = json.loads(command.out)
    assert facts["paper"].startswith("Wei et al.") and [each["setting"] for each in facts["hparams"]] == [
        "lr",
        "weight_decay",
        "tau",
    ]
    code, command = nescio.run("methods", "--format", "json")
    assert {"logit-norm", "erm", "due"} <= {each["method"] for each in json.loads(command.out)}


def test_add_a_method__it_is_alive(nescio):
    code, command = nescio.run("verify", "logit-norm", "--backbone", "mlp", "--epochs", "4", "--format", "json")
    assert code == 0, command.out + command.err
    seen = {each["evidence"]: each["passed"] for each in json.loads(command.out)}
    assert seen["one length"] and all(seen.values()) and len(seen) >= 6


def test_add_a_method__its_evidence_fails_when_it_is_switched_off(site):
    """As the page advises: with plain logits everything else still holds, and the evidence does not."""
    code = f"""
import torch, {MODULE}
from nescio.testing.evidence import observe, small_trial
from nescio.testing import check_method
torch.set_num_threads(1)
assert len(check_method("logit-norm", backbone="mlp", epochs=2)) >= 6
{MODULE}.LogitNorm.directed = lambda self, z: z
dead = [what for what, each in observe(small_trial("logit-norm", backbone="mlp", epochs=2)) if not each.passed]
assert dead == ["one length"], dead
"""
    path = f"{site}:{ROOT / 'src'}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_add_a_method__it_goes_through_the_whole_benchmark(nescio, tmp_path):
    words = "run uimnet --classes 0-5 --methods logit-norm,erm --backbones mlp --spectral-bounds none --trials 2"
    words += " --seeds 1 --epochs 2"
    code, command = nescio.run(
        *words.split(), "--seeds", "1", "--epochs", "2", "--no-oracle", "--workers", "0", "--store", tmp_path / "store"
    )
    assert code == 0, command.err
    text = (page_of(tmp_path / "store", "uimnet") / "tables.md").read_text()
    assert "| logit-norm | 1 | calibrated |" in text and "| logit-norm | 2 |" in text
    assert "Two methods" in command.out.replace("\n", " ")


def test_add_a_method__the_commands_of_the_page_are_commands(nescio):
    (block,) = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line) for line in block.splitlines()]
    assert {words[0] for words in lines} == {"pip", "nescio"}
    for command in sorted({words[1] for words in lines if words[0] == "nescio"}):
        assert nescio.run(command, "--help")[0] == 0
