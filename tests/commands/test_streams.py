"""Terminals that lack characters, and pipes that nobody reads to the end."""

import json
import os
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

from nescio.cli import main
from nescio.predictions import Predictions


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    for seed, name in enumerate(("test", "val")):
        Predictions(
            index=[f"→{seed}-{row}" for row in range(60)],
            labels=labels,
            logits=2 * np.eye(3)[labels] + rng.normal(size=(60, 3)),
            embeddings=rng.normal(size=(60, 4)),
        ).save(folder / f"{name}.npz")
    return folder


COMMANDS = ["calibrate test.npz --val val.npz --output a.npz", "transfer test.npz --bootstrap 5", "evaluate test.npz"]


def ask(words, place, encoding, **how):
    code = "import sys; from nescio.cli import main; sys.exit(main())"
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", code, *words.split()]
    return subprocess.run(command, capture_output=True, cwd=place, env=environment, check=False, **how)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words.split()[0])
def test_streams__a_terminal_that_lacks_characters(place, words, encoding):
    done = ask(words, place, encoding)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    assert "?" in done.stdout.decode(encoding)


def test_streams__json_is_the_same_on_any_terminal(place):
    words = "rank mine=test.npz,other.npz --components 0 --format json"
    other = Predictions.load(place / "test.npz")
    noise = np.random.default_rng(1).normal(size=(60, 4))
    Predictions(index=other.index, embeddings=noise).save(place / "other.npz")
    said = {encoding: ask(words, place, encoding).stdout.decode(encoding) for encoding in ("ascii", "utf-8")}
    assert json.loads(said["ascii"]) == json.loads(said["utf-8"]) and "→" in said["utf-8"]


def test_streams__a_pipe_that_is_closed_early_costs_no_page(place):
    code = "import sys; from nescio.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, *["run", "selective", "test.npz", "--measures", "msp", "--output", "page"]]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, cwd=place, check=False)
    os.close(writer)
    assert done.returncode == 0 and b"failed" not in done.stderr and (place / "page/index.html").is_file()


@pytest.mark.parametrize("module", ["argparse", "numpy", "nescio.commands.evaluate"])
def test_streams__ctrl_c_during_imports_is_no_traceback(place, module):
    """Ctrl-C comes where a module is imported: nothing heavy is, before `main` can say that it was stopped."""
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted)\n"
        "from nescio.cli import main\n"
        "sys.exit(main(['evaluate', 'test.npz']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=place, text=True, check=False)
    assert done.returncode == 130 and done.stderr.rstrip().endswith("stopped.") and "Traceback" not in done.stderr


def test_streams__public_names_are_there_and_load_nothing_before_they_are_used():
    code = (
        "import sys, nescio\n"
        "assert 'numpy' not in sys.modules and set(nescio.__all__) <= set(dir(nescio))\n"
        "from nescio import *\n"
        "print(scorecard.__name__, Predictions.__name__, issubclass(BadInput, ValueError), hasattr(nescio, 'nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["scorecard", "Predictions", "True", "False"]


def test_streams__a_closed_stdout_and_a_terminal_without_columns(place):
    words = shlex.join([sys.executable, "-m", "nescio", "evaluate", "test.npz"])
    closed = subprocess.run(f"{words} >&-", shell=True, cwd=place, capture_output=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, b"")
    for columns in ("0", "-3", "\u00b2", "x"):
        environment = os.environ | {"COLUMNS": columns}
        done = subprocess.run(words, shell=True, cwd=place, capture_output=True, check=False, env=environment)
        assert done.returncode == 0 and len(done.stdout) > 500, columns


@pytest.mark.parametrize("mark", ["\x1b[2J", "\x07", "\u202e", "\u200f", "\r"])
def test_evaluate__what_a_terminal_would_obey_is_written_as_its_code(place, mark, capsys, monkeypatch):
    monkeypatch.chdir(place)
    shutil.copy("test.npz", f"a{mark}b.npz")
    assert main(["evaluate", f"a{mark}b.npz"]) == 0 and main(["evaluate", f"no{mark}.npz"]) == 2
    said = capsys.readouterr()
    assert mark not in said.out and mark not in said.err
    assert mark.encode("unicode_escape").decode() in said.err


def test_evaluate__a_value_of_two_hyphens_is_named(capsys):
    assert main(["evaluate", "test.npz", "--device=--"]) == 2
    assert "--device" in capsys.readouterr().err
