"""A frame filters, groups and averages rows; None is a value like any other."""

from __future__ import annotations

from statistics import stdev

import pytest

from nescio.report.frame import Frame

ROWS = [
    {"method": "b", "spectral": None, "seed": 0, "metric": "nll", "value": 1.0},
    {"method": "b", "spectral": None, "seed": 1, "metric": "nll", "value": 3.0},
    {"method": "b", "spectral": 5.0, "seed": 0, "metric": "nll", "value": 4.0, "low": 3.0, "high": 5.0},
    {"method": "a", "spectral": None, "seed": 0, "metric": "ece", "value": 0.1},
]


def test_frame__conditions_are_a_value_one_of_several_or_a_function() -> None:
    frame = Frame(ROWS)
    assert len(frame.where(spectral=None)) == 3 and len(frame.where(spectral=5.0)) == 1
    assert len(frame.where(spectral=(None, 5.0))) == 4 and len(frame.where(method={"a"})) == 1
    assert frame.where(value=lambda value: value > 2, method="b").column() == [3.0, 4.0]
    assert frame.where(low=None).column() == [1.0, 3.0, 0.1]  # a column that a row does not have is None
    assert frame.without(method="b", spectral=None).column() == [4.0, 0.1]


def test_frame__frames_do_not_change_rows_and_are_true_when_they_hold_some() -> None:
    frame = Frame(ROWS)
    changed = frame.with_column("value", lambda row: 0)
    assert frame.column() == [1.0, 3.0, 4.0, 0.1] and set(changed.column()) == {0}
    assert frame and not frame.where(method="c") and frame.where(method="c").first() is None
    assert list(Frame(frame)) == ROWS and ROWS[0]["value"] == 1.0


def test_frame__values_and_groups_come_in_order_of_first_appearance() -> None:
    frame = Frame(ROWS)
    assert frame.unique("method") == ["b", "a"] and frame.unique("spectral") == [None, 5.0]
    assert [(key, len(own)) for key, own in frame.group_by("method", "spectral")] == [
        (("b", None), 2),
        (("b", 5.0), 1),
        (("a", None), 1),
    ]


def test_frame__sorting_puts_none_first_and_keeps_equal_rows_in_order() -> None:
    frame = Frame(ROWS).sort("spectral", "method")
    assert frame.column() == [0.1, 1.0, 3.0, 4.0]
    assert Frame(ROWS).sort(lambda row: -row["value"]).column() == [4.0, 3.0, 1.0, 0.1]


def test_frame__a_summary_is_the_mean_and_the_sample_deviation_of_repetitions() -> None:
    first, second, third = Frame(ROWS).summarise(over=["seed"])
    assert first["value"] == 2.0 and first["spread"] == pytest.approx(stdev([1.0, 3.0])) and first["n"] == 2
    assert first["method"] == "b" and first["spectral"] is None and "seed" not in first
    assert second["spread"] is None and (second["low"], second["high"]) == (3.0, 5.0)  # one row keeps its interval
    assert first["low"] is None and third["metric"] == "ece"


def test_frame__rows_of_one_repetition_are_averaged_before_the_repetitions() -> None:
    rows = [{"net": 0, "value": 0.0}, {"net": 0, "value": 2.0}, {"net": 1, "value": 4.0}]
    (mean,) = Frame(rows).summarise([], over=["net"])
    assert mean["value"] == 2.5 and mean["n"] == 2 and mean["spread"] == pytest.approx(stdev([1.0, 4.0]))
    (plain,) = Frame(rows).summarise([])
    assert plain["value"] == 2.0 and plain["n"] == 3


def test_frame__correlation_is_spearmans_of_rows_that_have_both() -> None:
    rows = [{"a": 1, "b": 10}, {"a": 2, "b": 30}, {"a": 3, "b": 20}, {"a": 4, "b": 40}, {"a": 5, "b": None}, {"b": 0}]
    assert Frame(rows).correlation("a", "b") == pytest.approx(0.8)
    assert Frame(rows[:2]).correlation("a", "b") is None  # too few
    assert Frame(row | {"b": 1} for row in rows).correlation("a", "b") is None  # constant
