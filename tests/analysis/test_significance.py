"""The best measure and its equals: areas and covariances are those of the definition, and the test keeps its level."""

import numpy as np
import pytest
from scipy.stats import norm, ttest_ind, ttest_rel

from nescio import Undefined, metrics
from nescio.analysis.significance import (
    PAIRED,
    WELCH,
    area_interval,
    best_measure,
    bootstrap_p_value,
    compare_with_best,
    delong_components,
    holm_adjusted,
    not_rejected,
)
from nescio.report.format import describe_best


def test_delong_components__placements_average_to_the_auroc_ties_counted_half():
    rng = np.random.default_rng(0)
    u, positive = rng.integers(0, 6, 80), rng.random(80) < 0.4
    placed = delong_components(u[~positive], {"": u[positive]}, {"": 1.0})
    above, below = placed.above[""], placed.below
    assert above.mean() == pytest.approx(metrics.auroc(u, positive)) == pytest.approx(below.mean())
    assert placed.area == pytest.approx(above.mean())
    brute = [np.mean((u[~positive] < value) + 0.5 * (u[~positive] == value)) for value in u[positive]]
    np.testing.assert_allclose(above, brute)


def test_area_interval__kinds_of_positive_rows_are_a_weighted_mean_with_the_variance_of_its_samples():
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


def test_best_measure__a_measure_is_rarely_told_from_one_that_is_as_good():
    """Two measures with the same noise: at 95 %, about one data set in twenty tells them apart."""
    rng, told = np.random.default_rng(1), 0
    for _ in range(400):
        wrong = rng.random(200) < 0.3
        measures = {name: wrong + rng.normal(size=200) for name in "ab"}
        told += len(best_measure(measures, wrong).equals) == 1
    assert 0.02 <= told / 400 <= 0.09


def test_best_measure__a_better_measure_is_told_from_worse_ones_and_a_copy_is_not():
    rng = np.random.default_rng(2)
    wrong = rng.random(600) < 0.3
    good = 2 * wrong + rng.normal(size=600)
    measures = {"noise": rng.normal(size=600), "good": good, "again": 3 * good + 1, "constant": np.zeros(600)}
    best = best_measure(measures, wrong)
    assert best.name == "good" and set(best.equals) == {"good", "again"}
    assert best.auroc == pytest.approx(metrics.auroc(good, wrong))


def test_best_measure__too_few_errors_are_undefined():
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


# ---- the best line

RNG = np.random.default_rng(0)
LUCK = RNG.normal(0.8, 0.05, 6)  # of the runs, which all lines share
GAINS = {"a": 0.02, "b": 0.0, "c": 0.016}
LINES = {name: dict(enumerate(LUCK + gain + RNG.normal(0, 0.004, 6))) for name, gain in GAINS.items()}


def values(name: str) -> list[float]:
    return list(LINES[name].values())


def apart(lines: dict[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    """The lines, with runs that no two of them share."""
    return {
        name: {10 * number + run: value for run, value in runs.items()}
        for number, (name, runs) in enumerate(lines.items())
    }


def test_compare_with_best__common_runs_are_compared_by_scipys_paired_t_test() -> None:
    verdict = compare_with_best(LINES)
    differences = {row["model"]: row for row in verdict.differences}
    assert verdict.tests == (PAIRED,) and verdict.best == "a" and set(differences) == {"b", "c"}
    for name, row in differences.items():
        expected = ttest_rel(values(name), values("a"))
        assert row["p"] == pytest.approx(expected.pvalue)
        assert (row["low"], row["high"]) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert differences["b"]["adjusted"] == pytest.approx(2 * differences["b"]["p"])
    assert verdict.equals == {name for name in LINES if name == "a" or differences[name]["adjusted"] > 0.05}
    assert "c" in describe_best(list(differences.values())).rstrip(".").split()
    low, high = differences["b"]["low"], differences["b"]["high"]
    ahead = -differences["b"]["difference"]
    two = {name: LINES[name] for name in "ab"}
    assert f"+{ahead:.3f} [{-high:.3f}, {-low:.3f}]" in describe_best(compare_with_best(two).differences)
    (row,) = compare_with_best(two, "lower").differences
    assert (row["best"], row["model"]) == ("b", "a") and row["difference"] > 0


def test_compare_with_best__equals_are_what_a_paired_test_does_not_separate() -> None:
    near = {seed: 0.9 + 0.01 * seed for seed in range(5)}
    noisy = {seed: value + (-1) ** seed * 0.03 for seed, value in near.items()}
    far = {seed: value - 0.2 - 0.001 * seed for seed, value in near.items()}
    assert compare_with_best({"a": near, "b": noisy, "c": far}).equals == {"a", "b"}
    assert compare_with_best({"a": near, "c": far}, "lower").equals == {"c"}


def test_compare_with_best__holm_marks_lines_that_single_tests_would_not() -> None:
    """One p-value of 0.03 is significant alone, and not among four comparisons."""
    rng = np.random.default_rng(5)
    lines = {"best": dict(enumerate(rng.normal(1, 0.01, 5)))}
    for number in range(40):
        lines[f"{number}"] = {run: value - abs(rng.normal(0.02, 0.02)) for run, value in lines["best"].items()}
    verdict = compare_with_best(lines)
    alone = {
        name
        for name in lines
        if name != "best" and ttest_rel([*lines["best"].values()], [*lines[name].values()]).pvalue >= 0.05
    }
    assert verdict.equals > {"best", *alone}


def test_compare_with_best__runs_that_are_not_shared_are_compared_by_scipys_welch_test() -> None:
    lines = {name: LINES[name] for name in "ab"}
    verdict = compare_with_best(apart(lines))
    (row,) = verdict.differences
    expected = ttest_ind(values("b"), values("a"), equal_var=False)
    assert verdict.tests == (WELCH,) and row["p"] == pytest.approx(expected.pvalue)
    assert row["p"] > compare_with_best(lines).differences[0]["p"]
    (noisy,) = compare_with_best(apart(lines), noise=dict.fromkeys(lines, 0.01)).differences
    assert noisy["p"] > row["p"]


def test_compare_with_best__one_run_is_tested_by_the_noise_of_its_images_or_not_at_all() -> None:
    lines = {"a": {0: 0.8}, "b": {0: 0.7}}
    verdict = compare_with_best(lines)
    (row,) = verdict.differences
    assert row["difference"] == pytest.approx(-0.1) and row["p"] is row["low"] is row["adjusted"] is None
    assert verdict.tests == () and verdict.equals == {"a"}
    assert compare_with_best(lines, noise={"a": 0.0, "b": 0.0}).tests == ()
    (row,) = compare_with_best(lines, noise={"a": 0.0008, "b": 0.0008}).differences
    assert row["p"] == pytest.approx(2 * norm.sf(0.1 / 0.04))


def test_compare_with_best__two_common_runs_are_too_few_for_a_test() -> None:
    two = {"a": {0: 1.0, 1: 2.0}, "b": {0: 1.2, 1: 2.9}}  # p = 0.36: a test of two would mark nearly every line
    assert compare_with_best(two).equals == {"b"}


def test_compare_with_best__one_network_is_compared_by_the_test_of_its_images() -> None:
    lines = {"a": {0: 0.8}, "b": {0: 0.7}, "c": {0: 0.6}}
    p = {"b": 0.03, "c": 0.001}
    verdict = compare_with_best(lines, images=("test of images", lambda line, best: (None, None, p[line])))
    assert verdict.tests == ("test of images",) and verdict.equals == {"a"}
    p["b"] = 0.06
    assert compare_with_best(lines, images=("test", lambda line, best: (None, None, p[line]))).equals == {"a", "b"}


def test_compare_with_best__equal_runs_have_p_1() -> None:
    runs = {0: 0.5, 1: 0.6, 2: 0.7}
    (row,) = compare_with_best({"a": runs, "b": dict(runs)}).differences
    assert row["p"] == 1.0


def test_compare_with_best__a_single_run_has_the_variance_of_the_others() -> None:
    """Without the variance of the other lines, one lucky network would differ significantly from the best."""
    lines = {"a": {0: 0.60, 1: 0.64}, "b": {0: 0.55, 1: 0.59}, "c": {0: 0.56}}
    images = dict.fromkeys(lines, 1e-6)
    (row,) = [row for row in compare_with_best(lines, noise=images).differences if row["model"] == "c"]
    assert row["p"] > 0.05
    (alone,) = compare_with_best({"a": {0: 0.62}, "c": {0: 0.56}}, noise=images).differences
    assert alone["p"] < 0.001  # the variance of images alone: no line has two runs
