"""The best measure and its equals: areas and covariances are those of the definition, and the test keeps its level."""

import numpy as np
import pytest
from scipy.stats import norm, ttest_ind, ttest_rel

from nescio import Undefined, metrics
from nescio.analysis.significance import (
    area_interval,
    best_measure,
    bootstrap_p_value,
    delong_components,
    holm_adjusted,
    not_rejected,
    paired_t_tests,
    welch_t_tests,
)
from nescio.report.format import describe_best


def test_placements_average_to_the_auroc_ties_counted_half():
    rng = np.random.default_rng(0)
    u, positive = rng.integers(0, 6, 80), rng.random(80) < 0.4
    placed = delong_components(u[~positive], {"": u[positive]}, {"": 1.0})
    above, below = placed.above[""], placed.below
    assert above.mean() == pytest.approx(metrics.auroc(u, positive)) == pytest.approx(below.mean())
    assert placed.area == pytest.approx(above.mean())
    brute = [np.mean((u[~positive] < value) + 0.5 * (u[~positive] == value)) for value in u[positive]]
    np.testing.assert_allclose(above, brute)


def test_kinds_of_positive_rows_are_a_weighted_mean_with_the_variance_of_its_samples():
    """Drawn again and again, the area spreads as one sample says it does."""
    rng = np.random.default_rng(3)
    weights = {"few": 0.7, "many": 0.3}

    def sample():
        return delong_components(
            rng.normal(size=150), {"few": rng.normal(1, 1, 20), "many": rng.normal(2, 1, 80)}, weights
        )

    placed = sample()
    assert placed.area == pytest.approx(0.7 * placed.above["few"].mean() + 0.3 * placed.above["many"].mean())
    assert placed.below.mean() == pytest.approx(placed.area)
    many = [sample() for _ in range(400)]
    assert np.std([one.area for one in many]) == pytest.approx(np.mean([one.variance for one in many]) ** 0.5, rel=0.1)
    true = np.mean([one.area for one in many])
    inside = [low <= true <= high for low, high in (area_interval([one]) for one in many)]
    assert 0.9 <= np.mean(inside) <= 0.98


def test_a_measure_is_rarely_told_from_one_that_is_as_good():
    """Two measures with the same noise: at 95 %, about one data set in twenty tells them apart."""
    rng, told = np.random.default_rng(1), 0
    for _ in range(400):
        wrong = rng.random(200) < 0.3
        measures = {name: wrong + rng.normal(size=200) for name in "ab"}
        told += len(best_measure(measures, wrong).equals) == 1
    assert 0.02 <= told / 400 <= 0.09


def test_a_better_measure_is_told_from_worse_ones_and_a_copy_is_not():
    rng = np.random.default_rng(2)
    wrong = rng.random(600) < 0.3
    good = 2 * wrong + rng.normal(size=600)
    measures = {"noise": rng.normal(size=600), "good": good, "again": 3 * good + 1, "constant": np.zeros(600)}
    best = best_measure(measures, wrong)
    assert best.name == "good" and set(best.equals) == {"good", "again"}
    assert best.auroc == pytest.approx(metrics.auroc(good, wrong))


def test_too_few_errors_are_undefined():
    with pytest.raises(Undefined):
        best_measure({"a": np.arange(5.0), "b": np.arange(5.0)}, [True, False, False, False, False])


def test_holm_adjusted_counts_all_comparisons():
    adjusted = holm_adjusted(dict(zip("abcd", (0.03, 0.01, None, 0.5), strict=True)))
    assert list(adjusted) == ["b", "a", "d", "c"]
    assert adjusted == {"a": pytest.approx(0.09), "b": pytest.approx(0.04), "c": None, "d": 1.0}
    assert not_rejected(adjusted, 0.05) == ["a", "d", "c"]


def test_bootstrap_p_value_ignores_rounding():
    assert bootstrap_p_value(np.array([1e-17, 2e-17, -1e-18])) == 1
    assert bootstrap_p_value(np.full(99, 0.1)) == 2 / 100


# ---- t-tests over repeated runs

RNG = np.random.default_rng(0)
LUCK = RNG.normal(0.8, 0.05, 6)  # of the runs, which all lines share
GAINS = {"a": 0.02, "b": 0.0, "c": 0.016}
LINES = {name: dict(enumerate(LUCK + gain + RNG.normal(0, 0.004, 6))) for name, gain in GAINS.items()}


def values(name: str) -> list[float]:
    return list(LINES[name].values())


def test_paired_t_tests_equal_scipys() -> None:
    differences = {row["model"]: row for row in paired_t_tests(LINES)}
    assert set(differences) == {"b", "c"} and {row["best"] for row in differences.values()} == {"a"}
    for name, row in differences.items():
        expected = ttest_rel(values(name), values("a"))
        assert row["p"] == pytest.approx(expected.pvalue)
        assert (row["low"], row["high"]) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert differences["b"]["adjusted"] == pytest.approx(2 * differences["b"]["p"])
    assert "c" in describe_best(list(differences.values())).rstrip(".").split()
    low, high = differences["b"]["low"], differences["b"]["high"]
    ahead = -differences["b"]["difference"]
    two = {name: LINES[name] for name in "ab"}
    assert f"+{ahead:.3f} [{-high:.3f}, {-low:.3f}]" in describe_best(paired_t_tests(two))
    (row,) = paired_t_tests(two, "lower")
    assert (row["best"], row["model"]) == ("b", "a") and row["difference"] > 0


def test_welch_t_tests_equal_scipys_and_are_wider_than_paired_ones() -> None:
    lines = {name: LINES[name] for name in "ab"}
    (row,) = welch_t_tests(lines, dict.fromkeys(lines, 0.0))
    expected = ttest_ind(values("b"), values("a"), equal_var=False)
    assert row["p"] == pytest.approx(expected.pvalue) and row["p"] > paired_t_tests(lines)[0]["p"]
    (noisy,) = welch_t_tests(lines, dict.fromkeys(lines, 0.01))
    assert noisy["p"] > row["p"]


def test_t_tests_of_one_run_use_the_shared_variance_or_none() -> None:
    lines = {"a": {0: 0.8}, "b": {0: 0.7}}
    (row,) = paired_t_tests(lines)
    assert row["difference"] == pytest.approx(-0.1) and row["p"] is row["low"] is row["adjusted"] is None
    assert "b" in describe_best([row]).rstrip(".").split()
    (row,) = welch_t_tests(lines, {"a": 0.0, "b": 0.0})
    assert row["p"] is None
    (row,) = welch_t_tests(lines, {"a": 0.0008, "b": 0.0008})
    assert row["p"] == pytest.approx(2 * norm.sf(0.1 / 0.04))


def test_paired_t_tests_of_equal_runs_have_p_1() -> None:
    (row,) = paired_t_tests({"a": {0: 0.5, 1: 0.6}, "b": {0: 0.5, 1: 0.6}})
    assert row["p"] == 1.0


def test_welch_t_tests_give_a_single_run_the_variance_of_the_others():
    """Without the variance of the other lines, one lucky network would differ significantly from the best."""
    lines = {"a": {0: 0.60, 1: 0.64}, "b": {0: 0.55, 1: 0.59}, "c": {0: 0.56}}
    images = dict.fromkeys(lines, 1e-6)
    (row,) = [row for row in welch_t_tests(lines, images) if row["model"] == "c"]
    assert row["p"] > 0.05
    (alone,) = welch_t_tests({"a": {0: 0.62}, "c": {0: 0.56}}, images)
    assert alone["p"] < 0.001  # the variance of images alone: no line has two runs
