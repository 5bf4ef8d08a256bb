"""Labels of metrics, measures and reasons."""

from __future__ import annotations

import pytest

from nescio import metrics
from nescio.report.labels import (
    direction_of,
    group_reasons,
    measure_sort_key,
    metric_label,
    metric_legend,
)
from tests.support.samples import sample_card


@pytest.mark.parametrize("name", list(metrics.registry))
def test_metric_label__every_registered_metric_has_a_label_with_its_arrow(name: str) -> None:
    arrow = {"higher": "↑", "lower": "↓", "neither": ""}[metrics.registry[name].better]
    assert metric_label(name).endswith(arrow) and direction_of(name) == metrics.registry[name].better
    assert ("↑" in metric_label(name) or "↓" in metric_label(name)) == bool(arrow)


def test_metric_legend__a_metric_is_explained_once_by_its_own_docstring_whatever_its_parameters() -> None:
    sentence = metrics.registry["sac"].sentence
    assert metric_legend(["sac@0.9", "sac@0.95", "unknown"]) == (("SAC ↑", sentence),)
    assert metric_legend(["sac@0.9"], {"sac@0.9": "coverage"}) == (("coverage", sentence),)


def test_labels__the_best_known_measures_come_first() -> None:
    assert sorted(("gmm", "own", "entropy", "msp"), key=measure_sort_key) == ["msp", "entropy", "gmm", "own"]


def test_group_reasons__each_reason_is_given_once() -> None:
    assert group_reasons(sample_card().reasons) == [
        ("energy, dempster_shafer", "The file contains log-probabilities."),
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
