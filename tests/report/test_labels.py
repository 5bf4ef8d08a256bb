"""Names and numbers as people read them."""

from __future__ import annotations

import pytest

from nescio import metrics
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
    direction_of,
    group_reasons,
    measure_sort_key,
    metric_label,
    metric_legend,
)
from tests.support.samples import sample_card


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(-0.00001, 4, "0.0000"), (-0.5, 2, "-0.50"), (1234.5678, 1, "1234.6"), (0.0, 4, "0.0000")],
)
def test_numbers(value: float, digits: int, text: str) -> None:
    assert format_number(value, digits) == text


def test_shares_never_round_to_all_or_nothing() -> None:
    assert format_percent(0.931) == "93.1 %" and format_percent(1) == "100 %" and format_percent(0) == "0 %"
    assert (
        format_percent(0.9996) == "99.96 %"
        and format_percent(0.00001) == "0.001 %"
        and format_percent(1 - 1e-9) == "nearly 100 %"
    )


@pytest.mark.parametrize("name", list(metrics.registry))
def test_every_registered_metric_has_a_label_with_its_arrow(name: str) -> None:
    arrow = {"higher": "↑", "lower": "↓", "neither": ""}[metrics.registry[name].better]
    assert metric_label(name).endswith(arrow) and direction_of(name) == metrics.registry[name].better
    assert ("↑" in metric_label(name) or "↓" in metric_label(name)) == bool(arrow)


def test_a_metric_is_explained_once_by_its_own_docstring_whatever_its_parameters() -> None:
    sentence = metrics.registry["sac"].sentence
    assert metric_legend(["sac@0.9", "sac@0.95", "unknown"]) == (("SAC ↑", sentence),)
    assert metric_legend(["sac@0.9"], {"sac@0.9": "coverage"}) == (("coverage", sentence),)


def test_small_words() -> None:
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


def test_the_best_known_measures_come_first() -> None:
    assert sorted(("gmm", "own", "entropy", "msp"), key=measure_sort_key) == ["msp", "entropy", "gmm", "own"]


def test_each_reason_is_given_once() -> None:
    assert group_reasons(sample_card().reasons) == [
        ("energy, dempster_shafer", "The dump holds log-probabilities."),
        ("R@1", "No embeddings."),
    ]
    alike = [{"measure": m, "metric": None, "split": "test", "reason": f"{m} needs scores."} for m in ("energy", "gap")]
    assert group_reasons(alike) == [("energy, gap", "It needs scores.")]
    many = [{"measure": f"m{i}", "metric": "auroc", "split": "noise", "reason": "No."} for i in range(9)]
    where = {"members": 5, "shift": "sun", "severity": 75.0}
    entry = {"method": "erm", "measure": "density", "reason": "x"}
    assert group_reasons([entry | where]) == [("5 × erm: density on sun 75", "x")] and group_reasons([entry]) == [
        ("erm: density", "x")
    ]
    assert group_reasons(many) == [("AUROC of m0, m1, m2, m3, m4, m5 and 3 more on noise", "No.")]
