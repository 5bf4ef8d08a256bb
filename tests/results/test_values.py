"""The values of the results are those that were measured: their digests were made before their columns were typed."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from nescio.rows import from_parquet

RESULTS = Path(__file__).parents[2] / "results"
FACTS = ("train_accuracy", "strength", "at_bound", "rows_a_feature", "own_augmentation", "stopped", "epoch_seconds")
FACTS += ("inference_ms", "chosen")  # about a network; a fact counts once
# folder → digests of its results and of the facts about its networks
DIGESTS = {
    "lite": ("412365c5286c1192", "e3b0c44298fc1c14"),
    "posthoc": ("a8340fab6f127491", "f0f08c02f4c547b4"),
    "reliability": ("e602d83424d3219d", "e3b0c44298fc1c14"),
    "scenes/full": ("f7a5b2bbe84f0df8", "cf59f7110b9596b2"),
    "scenes": ("8dd05f3561efc9a6", "12cf3c71bd6e2e5b"),
    "sensitivity/fashion-mnist": ("3a164b3f4ef1a6a5", "f86e137a144c22e3"),
    "sensitivity/mnist": ("0bb2ba4e73ab166a", "6e5e97521e7c123b"),
    "sensitivity": ("6b7dfc4e2e04ecec", "0301d7ae348bb940"),
    "shift/augmented": ("1bf497ca25501d51", "829636fe4f95d268"),
    "shift/digits/augmented": ("3460ecb5a85ffc20", "bf45d7a636b73476"),
    "shift/digits": ("72025bdc2746dbe5", "5b52943933046a86"),
    "shift": ("af0088cd05c30e27", "d8e8e00163c9f49b"),
    "uimnet": ("30f6868ac2f20b9f", "e3b0c44298fc1c14"),
    "url": ("e0dcabfd225203a0", "efa4ea9e03d81572"),
    "url/scratch": ("70c44197a85fe03f", "f85dd22906bdc8d3"),
}


def digest(values: Any) -> str:
    return sha256("\n".join(sorted(map(repr, values))).encode()).hexdigest()[:16]


def results(folder: Path) -> list[tuple[Any, ...]]:
    rows = from_parquet(folder / "rows.parquet")
    return [
        (row["metric"], row["measure"], row["method"], row["value"], row["n"])
        for row in rows
        if row["metric"] not in FACTS
    ]


def facts(folder: Path) -> set[tuple[Any, ...]]:
    rows = from_parquet(folder / "rows.parquet")
    return {(row["metric"], row["method"], row["value"]) for row in rows if row["metric"] in FACTS}


@pytest.mark.parametrize(
    "name", sorted(str(path.parent.relative_to(RESULTS)) for path in RESULTS.rglob("rows.parquet"))
)
def test_values_are_those_that_were_measured(name):
    assert (digest(results(RESULTS / name)), digest(facts(RESULTS / name))) == DIGESTS[name]
