"""`nescio verify` shows the evidence, and its exit code says whether anything is dead."""

import json
import subprocess
import sys

import pytest
import torch

from nescio import testing
from nescio.cli import main
from nescio.methods import Evidence, registry
from nescio.methods.erm import ERM

torch.set_num_threads(1)


class Dead(ERM):
    """Its special part does nothing, and its own evidence says so."""

    def evidence(self, batches, start):
        return {"special part": Evidence("it does nothing", False)}


@pytest.fixture
def dead(monkeypatch):
    monkeypatch.setitem(registry._parts, "dead", Dead)


def test_verify__alive(capsys):
    assert main(["verify", "erm", "--epochs", "2"]) == 0
    said = capsys.readouterr().out
    assert "all passed" in said and "✗" not in said
    assert said.count("✓") >= 7
    for what in ("loss falls", "same seed", "saved and", "spectral norm", "learnt"):
        assert what in said


def test_verify__dead(capsys, dead):
    assert main(["verify", "dead", "--epochs", "2"]) == 1
    said = capsys.readouterr().out
    assert "✗" in said and "it does nothing" in said and "1 failed" in said


def test_verify__json_holds_every_observation(capsys, dead):
    assert (
        main(["verify", "dead", "--epochs", "2", "--backbone", "mlp", "--spectral-check", "0.5", "--format", "json"])
        == 1
    )
    rows = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in rows} == {"dead"}
    (special,) = (row for row in rows if row["evidence"] == "special part")
    assert special["passed"] is False
    (bound,) = (row for row in rows if row["evidence"] == "spectral norm")
    assert bound["passed"] and "target 0.5" in bound["observed"] and "3 of 3 layers" in bound["observed"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "no method named 'nothing'"),
        (["erm", "--spectral-check", "0"], "above 0"),
        (["erm", "--epochs", "1"], "at least 2"),
        (["erm", "--data", "nowhere"], "no dataset named"),
        (["erm", "--backbone", "nonet"], "no backbone named"),
    ],
)
def test_verify__bad_input_is_one_sentence(capsys, words, sentence):
    assert main(["verify", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said and len(said.strip().splitlines()) == 1


def test_check_method_raises_with_what_was_seen(dead):
    with pytest.raises(AssertionError, match=r"dead.*special part"):
        testing.check_method("dead", epochs=2)


def test_verify__contracts_leave_torch_alone_until_a_method_is_checked():
    code = "import sys, nescio.testing; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
