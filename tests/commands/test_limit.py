"""--limit N: a random sample of the rows, the same for the same seed, stamped on whatever is made of it."""

import json

import numpy as np
import pytest

from nescio.cli import main
from nescio.predictions import Predictions
from nescio.predictions.subset import random_subset

COMMANDS = {
    "choose": "choose a.npz b.npz --bootstrap 20",
    "rank": "rank mine=a.npz,b.npz --bootstrap 20 --components 0",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    labels = np.random.default_rng(0).integers(0, 4, 300)
    for seed, name in enumerate("ab"):
        rng = np.random.default_rng(seed)
        logits = 2 * np.eye(4)[labels] + rng.normal(size=(300, 4))
        Predictions(labels=labels, logits=logits, embeddings=rng.normal(size=(300, 5))).save(tmp_path / f"{name}.npz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_limit__a_part_of_the_rows_is_drawn_and_stamped(folder, capsys, command):
    words = COMMANDS[command].split()
    answers = {}
    for seed in ("0", "1"):
        assert main([*words, "--limit", "100", "--seed", seed, "--format", "json"]) == 0
        answers[seed] = json.loads(capsys.readouterr().out)
        assert answers[seed]["n"] == 100
        assert f"A random sample: 100 of 300 rows (seed {seed})." in answers[seed]["notes"]
    assert answers["0"] | {"notes": 0} != answers["1"] | {"notes": 0}, "another seed draws other rows"
    assert main([*words, "--limit", "100"]) == 0
    said = capsys.readouterr()
    assert "A random sample: 100 of 300 rows (seed 0)." in said.out + said.err
    assert main([*words, "--limit", "300", "--format", "json"]) == 0
    assert not any("random sample" in note for note in json.loads(capsys.readouterr().out)["notes"])
    assert main([*words, "--limit", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("benchmark", ["selective", "cood"])
def test_run__benchmarks_over_files_take_a_part_too(folder, capsys, benchmark):
    """Rows of the part equal those of files that hold nothing else; the whole is not taken for the part, nor back."""
    for name in "ab":
        dump = Predictions.load(folder / f"{name}.npz")
        for limit, seed in ((120, 0), (120, 7)):
            random_subset(dump, limit, seed).save(folder / f"{name}{seed}.npz")
    small = "--estimation-images 8 --test-images 8 --group-classes 2 --measures msp"
    every = "--measures msp"

    def rows(names, more=""):
        files = " ".join(f"{letter}={letter}{names}.npz" for letter in "ab")
        pairs = " ".join(f"--pair {letter}={letter}{names}.npz,o{names}.npz" for letter in "ab")
        words = f"run selective {files} {every}" if benchmark == "selective" else f"run cood {pairs} {small}"
        assert main([*words.split(), *more.split(), "--format", "json"]) == 0
        said = capsys.readouterr()
        return [row | {"key": None} for row in json.loads(said.out)], said.err

    whole = Predictions.load(folder / "a.npz")
    outside = Predictions(labels=whole.labels, logits=np.asarray(whole.logits)[::-1].copy())
    outside.save(folder / "o.npz")
    for seed in (0, 7):
        random_subset(outside, 120, seed).save(folder / f"o{seed}.npz")
    stamp = "A random sample: at most 120 rows of every file (seed {})."
    part, notes = rows("", "--limit 120")
    assert stamp.format(0) in notes and part == rows("0")[0]
    everything, notes = rows("")
    assert everything != part and "random sample" not in notes
    other, notes = rows("", "--limit 120 --seed 7")
    assert stamp.format(7) in notes and other == rows("7", "--seed 7")[0] and other != part
    words = ["a.npz"] if benchmark == "selective" else ["--pair", "a=a.npz,o.npz"]
    assert main(["run", benchmark, *words, "--limit", "0"]) == 2
    assert "--limit is 0" in capsys.readouterr().err


def test_limit__the_page_is_stamped_too_and_scores_lie_beside_it(folder, capsys):
    assert main([*COMMANDS["rank"].split(), "--limit", "100", "--output", "out", "--row-scores", "scores.csv"]) == 0
    assert "A random sample: 100 of 300 rows (seed 0)." in (folder / "out/index.html").read_text()
    said = capsys.readouterr().out
    assert "scores.csv" in said and "100 rows" in said and "out/index.html" in said
    assert (folder / "scores.csv").read_text().count("\n") == 101
