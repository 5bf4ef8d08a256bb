"""The question that a row answers depends on its metric, its split and its measure."""

from __future__ import annotations

import pytest

from nescio.analysis.results import Scorecard
from nescio.report.scorecards.questions import (
    GALLERY,
    HUMAN,
    MISCLASSIFICATION,
    MIXTURE,
    OOD,
    OTHER,
    PREDICTIONS,
    RETRIEVAL,
    default_measure,
    in_distribution_splits,
    model_name,
    plain_rows,
    question_of,
    unique_names,
)
from tests.support.samples import row, sample_rows


@pytest.mark.parametrize(
    ("metric", "measure", "split", "question"),
    [
        ("ece", None, "test", PREDICTIONS),
        ("sac@0.95", "msp", "test", MISCLASSIFICATION),
        ("auroc", "msp", "sea", OOD),
        ("in_as_in", "msp", "test", OOD),
        ("scod_augrc", "msp", "sea", MIXTURE),
        ("r_auroc", "msp", "test", RETRIEVAL),
        ("r_auroc", "gallery_margin", "test", GALLERY),
        ("human_alignment", "msp", "test", HUMAN),
        ("unregistered", "msp", "test", OTHER),
    ],
)
def test_question_of_a_row(metric: str, measure: str | None, split: str, question: str) -> None:
    assert question_of(row(metric, 0.5, measure, split=split)) == question


def test_in_distribution_splits_are_those_with_metrics_of_predictions() -> None:
    rows = [row("accuracy", 0.9, split="held out"), row("auroc", 0.8, "msp", split="sea")]
    assert in_distribution_splits(rows) == {None, "", "test", "held out"}


def test_default_measure_is_msp_if_it_is_ranked() -> None:
    assert default_measure(sample_rows()) == "msp"
    assert default_measure([row("auroc", 0.8, "norm")]) == "norm" and default_measure([]) is None


def test_plain_rows_are_raw_and_of_whole_splits() -> None:
    rows = [row("ece", 0.1), row("ece", 0.1, calibrated=True), row("ece", 0.1, subgroup="x")]
    assert plain_rows(rows) == rows[:1]


def test_unique_names_number_repeated_ones() -> None:
    assert unique_names([Scorecard("a"), Scorecard("a"), Scorecard("")]) == ["a", "a (2)", "model 3"]


def test_model_name_is_the_first_column_with_a_value() -> None:
    assert model_name({"method": "erm"}) == "erm" and model_name({"method": "erm", "model": "m"}) == "m"
    assert model_name({}) == "–"
