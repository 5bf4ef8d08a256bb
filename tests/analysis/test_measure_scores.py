"""Measures of a scorecard: faults of a user's own measures are named with their file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nescio import Predictions, measures, metrics, scorecard
from nescio.errors import Undefined
from nescio.measures import measure

FILE = Path(__file__).name


@pytest.fixture(autouse=True)
def _own_registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(measures.registry, "_parts", dict(measures.registry._parts))
    monkeypatch.setattr(metrics.registry, "_parts", dict(metrics.registry._parts))
    yield


@pytest.fixture
def rows() -> Predictions:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    return Predictions(labels=labels, logits=2 * np.eye(3)[labels] + rng.normal(size=(60, 3)))


def notes(rows: Predictions, name: str) -> list[str]:
    return [note for note in scorecard(rows).notes if name in note]


def test_measure_scores__applicable__an_alias_with_the_same_order_is_named_once(rows: Predictions) -> None:
    @measure(needs=("logits",), equivalent_to="msp")
    def squared_msp(predictions: Predictions) -> np.ndarray:
        return measures.uncertainty("msp", predictions) ** 2

    (note,) = notes(rows, "squared_msp")
    assert FILE in note and "msp" in note and "differently" not in note


@pytest.mark.parametrize(("other", "reason"), [("msp", "differently"), ("no_measure", "no_measure")])
def test_measure_scores__applicable__a_wrong_alias_is_a_fault(rows: Predictions, other: str, reason: str) -> None:
    @measure(needs=("logits",), equivalent_to=other)
    def wrong_alias(predictions: Predictions) -> np.ndarray:
        return np.arange(len(predictions), dtype=float)

    (note,) = notes(rows, "wrong_alias")
    assert FILE in note and reason in note


def test_measure_scores__applicable__an_alias_that_fails_is_a_fault(rows: Predictions) -> None:
    @measure(needs=("logits",), equivalent_to="msp")
    def failing_alias(predictions: Predictions) -> np.ndarray:
        raise ValueError("boom")

    (note,) = notes(rows, "failing_alias")
    assert FILE in note and "boom" in note


def test_measure_scores__scorecard__an_own_measure_without_numbers_is_named(rows: Predictions) -> None:
    @measure(needs=("logits",))
    def undefined_measure(predictions: Predictions) -> np.ndarray:
        raise Undefined("reason-1")

    @measure("gallery", needs=("logits",))
    def own_gallery(predictions: Predictions, views: object, siblings: object) -> np.ndarray:
        raise Undefined("Never.")

    (note,) = notes(rows, "undefined_measure")
    assert FILE in note and "reason-1" in note
    (note,) = notes(rows, "own_gallery")
    assert FILE in note


@pytest.mark.parametrize("value", ["text", float("nan")])
def test_metric__scorecard__an_own_metric_without_a_number_is_named(rows: Predictions, value: object) -> None:
    @metrics.metric("ranking", better="higher")
    def own_metric(u: np.ndarray, wrong: np.ndarray) -> object:
        return value

    (note,) = notes(rows, "own_metric")
    assert FILE in note
