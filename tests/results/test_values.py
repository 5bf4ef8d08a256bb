"""The values of the results are those that were measured: their digests were made before their columns were typed."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from nescio.report.studies import read_study

RESULTS = Path(__file__).parents[2] / "results"
FACTS = ("train_accuracy", "strength", "at_bound", "rows_per_feature", "own_augmentation", "stopped_epoch")
FACTS += ("epoch_seconds", "inference_ms")
# folder → digests of its results and of the facts about its networks
DIGESTS = {
    "lite": ("412365c5286c1192", "e3b0c44298fc1c14"),
    "posthoc": ("a8340fab6f127491", "f0f08c02f4c547b4"),
    "reliability": ("e602d83424d3219d", "e3b0c44298fc1c14"),
    "scenes/full": ("f7a5b2bbe84f0df8", "cf59f7110b9596b2"),
    "scenes": ("8dd05f3561efc9a6", "bcdb469fb02e41f8"),
    "sensitivity/fashion-mnist": ("3a164b3f4ef1a6a5", "428af5b2b37a562d"),
    "sensitivity/mnist": ("0bb2ba4e73ab166a", "6b5b15e51bd4cdcd"),
    "sensitivity": ("6b7dfc4e2e04ecec", "6c27559b63f45d2e"),
    "shift/augmented": ("1bf497ca25501d51", "829636fe4f95d268"),
    "shift/digits/augmented": ("3460ecb5a85ffc20", "bf45d7a636b73476"),
    "shift/digits": ("72025bdc2746dbe5", "7b66c89b7c488660"),
    "shift": ("af0088cd05c30e27", "c444006fd9873342"),
    "uimnet": ("30f6868ac2f20b9f", "e3b0c44298fc1c14"),
    "url": ("e0dcabfd225203a0", "4a166e25c39ce1d0"),
    "url/scratch": ("70c44197a85fe03f", "346a00bacd305a91"),
}


def digest(values: Any) -> str:
    return sha256("\n".join(sorted(map(repr, values))).encode()).hexdigest()[:16]


def results(folder: Path) -> list[tuple[Any, ...]]:
    columns = ("metric", "measure", "method", "value", "n")
    return [tuple(row[name] for name in columns) for row in read_study(folder).rows]


def facts(folder: Path) -> set[tuple[Any, ...]]:
    study = read_study(folder)
    networks = [*study.networks, *study.times]
    known = {
        (name, entry["method"], float(entry[name])) for entry in networks for name in FACTS if entry[name] is not None
    }
    chosen = [entry for entry in networks if entry["chosen_by"]]
    return known | {
        (criterion, entry["method"], entry["chosen_measure"])
        for entry in chosen
        for criterion in entry["chosen_by"].split(", ")
    }


@pytest.mark.parametrize("name", DIGESTS)
def test_values_are_those_that_were_measured(name):
    assert (digest(results(RESULTS / name)), digest(facts(RESULTS / name))) == DIGESTS[name]


def test_values__digests_of_all_results():
    assert {*DIGESTS} == {str(path.parent.relative_to(RESULTS)) for path in RESULTS.rglob("rows.parquet")}
