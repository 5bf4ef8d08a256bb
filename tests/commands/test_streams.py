"""Terminals that lack characters, and pipes that nobody reads to the end."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

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


COMMANDS = ["calibrate test.npz --val val.npz --to a.npz", "transfer test.npz --bootstrap 5", "evaluate test.npz"]


def ask(words, place, encoding, **how):
    code = "import sys; from nescio.cli import main; sys.exit(main())"
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", code, *words.split()]
    return subprocess.run(command, capture_output=True, cwd=place, env=environment, check=False, **how)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words.split()[0])
def test_a_terminal_that_lacks_characters(place, words, encoding):
    done = ask(words, place, encoding)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    assert "?" in done.stdout.decode(encoding)


def test_json_is_the_same_on_any_terminal(place):
    words = "reliability test.npz other.npz --components 0 --json"
    other = Predictions.load(place / "test.npz")
    noise = np.random.default_rng(1).normal(size=(60, 4))
    Predictions(index=other.index, embeddings=noise).save(place / "other.npz")
    said = {encoding: ask(words, place, encoding).stdout.decode(encoding) for encoding in ("ascii", "utf-8")}
    assert json.loads(said["ascii"]) == json.loads(said["utf-8"]) and "→" in said["utf-8"]


def test_a_pipe_that_is_closed_early_costs_no_page(place):
    code = "import sys; from nescio.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, *["run", "selective", "test.npz", "--measures", "largest", "--report", "page"]]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, cwd=place, check=False)
    os.close(writer)
    assert done.returncode == 0 and b"failed" not in done.stderr and (place / "page/index.html").is_file()
