"""Lines against the best over repeated runs: SciPy's t-tests, and what too few runs allow."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm, ttest_ind, ttest_rel

from nescio.analysis.repeated import paired_runs, unpaired_runs
from nescio.report.words import lead_of_best

RNG = np.random.default_rng(0)
LUCK = RNG.normal(0.8, 0.05, 6)  # of the runs, which all lines share
GAINS = {"a": 0.02, "b": 0.0, "c": 0.016}
LINES = {name: dict(enumerate(LUCK + gain + RNG.normal(0, 0.004, 6))) for name, gain in GAINS.items()}


def values(name: str) -> list[float]:
    return list(LINES[name].values())


def test_runs_are_pairs() -> None:
    differences = {row["model"]: row for row in paired_runs(LINES)}
    assert set(differences) == {"b", "c"} and {row["best"] for row in differences.values()} == {"a"}
    for name, row in differences.items():
        expected = ttest_rel(values(name), values("a"))
        assert row["p"] == pytest.approx(expected.pvalue)
        assert (row["low"], row["high"]) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert differences["b"]["adjusted"] == pytest.approx(2 * differences["b"]["p"])
    assert lead_of_best(list(differences.values())) == "It cannot be told from c."
    low, high = differences["b"]["low"], differences["b"]["high"]
    ahead = -differences["b"]["difference"]
    two = {name: LINES[name] for name in "ab"}
    sentence = f"The difference to the next, b, is +{ahead:.3f} [{-high:.3f}, {-low:.3f}]."
    assert lead_of_best(paired_runs(two)) == sentence
    (row,) = paired_runs(two, "lower")
    assert (row["best"], row["model"]) == ("b", "a") and row["difference"] > 0


def test_runs_that_are_no_pairs_are_less_sure() -> None:
    lines = {name: LINES[name] for name in "ab"}
    (row,) = unpaired_runs(lines, dict.fromkeys(lines, 0.0))
    expected = ttest_ind(values("b"), values("a"), equal_var=False)
    assert row["p"] == pytest.approx(expected.pvalue) and row["p"] > paired_runs(lines)[0]["p"]
    (noisy,) = unpaired_runs(lines, dict.fromkeys(lines, 0.01))
    assert noisy["p"] > row["p"]


def test_one_run_has_the_noise_of_its_images_or_none() -> None:
    lines = {"a": {0: 0.8}, "b": {0: 0.7}}
    (row,) = paired_runs(lines)
    assert row["difference"] == pytest.approx(-0.1) and row["p"] is row["low"] is row["adjusted"] is None
    assert lead_of_best([row]) == "It cannot be told from b."
    (row,) = unpaired_runs(lines, {"a": 0.0, "b": 0.0})
    assert row["p"] is None
    (row,) = unpaired_runs(lines, {"a": 0.0008, "b": 0.0008})
    assert row["p"] == pytest.approx(2 * norm.sf(0.1 / 0.04))


def test_equal_runs_are_alike() -> None:
    (row,) = paired_runs({"a": {0: 0.5, 1: 0.6}, "b": {0: 0.5, 1: 0.6}})
    assert row["p"] == 1.0


def test_a_line_of_one_run_varies_as_the_others_do():
    """One lucky or unlucky network is no proof: without the spread of the others it would be told from the best."""
    lines = {"a": {0: 0.60, 1: 0.64}, "b": {0: 0.55, 1: 0.59}, "c": {0: 0.56}}
    images = dict.fromkeys(lines, 1e-6)
    (row,) = [row for row in unpaired_runs(lines, images) if row["model"] == "c"]
    assert row["p"] > 0.05
    (alone,) = unpaired_runs({"a": {0: 0.62}, "c": {0: 0.56}}, images)
    assert alone["p"] < 0.001  # of images alone: no run says how much networks differ
