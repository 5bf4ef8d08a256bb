"""Numbers, shares and counts as text."""

from __future__ import annotations

import pytest

from nescio.report.format import (
    count_in_words,
    format_millions,
    format_number,
    format_percent,
    join_names,
    plural,
)
from nescio.report.labels import (
    dataset_label,
)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(-0.00001, 4, "0.0000"), (-0.5, 2, "-0.50"), (1234.5678, 1, "1234.6"), (0.0, 4, "0.0000")],
)
def test_format_number__numbers(value: float, digits: int, text: str) -> None:
    assert format_number(value, digits) == text


def test_format_percent__shares_never_round_to_all_or_nothing() -> None:
    assert format_percent(0.931) == "93.1 %" and format_percent(1) == "100 %" and format_percent(0) == "0 %"
    assert (
        format_percent(0.9996) == "99.96 %"
        and format_percent(0.00001) == "0.001 %"
        and format_percent(1 - 1e-9) == "nearly 100 %"
    )


def test_count_in_words__small_words() -> None:
    assert count_in_words(3) == "three" and count_in_words(1200) == "1,200"
    assert plural(1, "method") == "One method" and plural(22, "network") == "22 networks"
    assert (
        format_millions(25_557_032) == "25.6 M"
        and format_millions(90_000) == "0.09 M"
        and format_millions(None) == "unknown"
    )
    assert join_names(["a"]) == "a" and join_names(["a", "b", "c"]) == "a, b and c"
    assert dataset_label("npz:PATH/tiny.npz@32") == "tiny at 32 pixels" and dataset_label("digits") == "digits"
    assert dataset_label("maps:PATH/carla#sun/-5") == "carla, sun -5" and dataset_label("maps:PATH/town#1") == "town#1"
    assert dataset_label("npz:of@home/tiny.npz") == "tiny" and dataset_label("folder:a:b@c@64") == "a:b@c at 64 pixels"
