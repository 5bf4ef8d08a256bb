"""The options of Ray's launcher, which need no Ray. What it does on a cluster: tests/cluster/test_ray.py."""

import subprocess
import sys

import pytest

from nescio.cli import main
from nescio.errors import BadInput
from nescio.work.launchers import make_launcher

RUN = ("run", "uimnet", "--data", "digits", "--methods", "erm", "--trials", "1", "--seeds", "1")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cpus": 1.5}, "cpus of a step"),
        ({"gpus": -1.0}, "gpus of a step"),
        ({"retries": -1}, "retries"),
        ({"in_flight": 0}, "in_flight"),
    ],
)
def test_make_launcher__what_ray_cannot_give_is_refused_before_it_starts(options, sentence):
    with pytest.raises(BadInput) as error:
        make_launcher("ray", 1, **options)
    assert sentence in str(error.value)


def test_ray__its_options_are_those_of_every_command_that_names_it(capsys):
    for command in (RUN, ("zoo", "resnet18", "--data", "digits"), ("train", "--ensemble-size", "2")):
        with pytest.raises(SystemExit):
            main([*command, "--launcher", "ray", "--help"])
        text = capsys.readouterr().out
        assert all(word in text for word in ("--address", "--cpus", "--gpus", "--retries", "--in-flight"))
        assert main([*command, "--in-flight", "3"]) == 2  # the local launcher has none
        assert "There is no option --in-flight" in capsys.readouterr().err
        assert main([*command, "--launcher", "ray", "--cpus", "many"]) == 2
        assert "is a number, not 'many'." in capsys.readouterr().err


def test_ray__without_ray_one_sentence_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it fails
    assert main([*RUN, "--launcher", "ray", "--store", str(tmp_path / "store")]) == 2
    assert "pip install 'nescio[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_ray__an_engine_is_imported_only_when_it_is_named():
    code = "import sys; from nescio.work.launchers import make_launcher as make; make('local', 0); make('ray', 1)\n"
    code += "sys.exit(bool({'ray', 'submitit'} & {*sys.modules}))"
    subprocess.run([sys.executable, "-c", code], check=True)
