"""The best measure and its equals: areas and covariances are those of the definition, and the test keeps its level."""

import numpy as np
import pytest

from nescio import Undefined, metrics
from nescio.analysis.delong import best_ranking, interval, placements


def test_placements_average_to_the_auroc_ties_counted_half():
    rng = np.random.default_rng(0)
    u, positive = rng.integers(0, 6, 80), rng.random(80) < 0.4
    placed = placements(u[~positive], {"": u[positive]}, {"": 1.0})
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
        return placements(rng.normal(size=150), {"few": rng.normal(1, 1, 20), "many": rng.normal(2, 1, 80)}, weights)

    placed = sample()
    assert placed.area == pytest.approx(0.7 * placed.above["few"].mean() + 0.3 * placed.above["many"].mean())
    assert placed.below.mean() == pytest.approx(placed.area)
    many = [sample() for _ in range(400)]
    assert np.std([one.area for one in many]) == pytest.approx(np.mean([one.variance for one in many]) ** 0.5, rel=0.1)
    true = np.mean([one.area for one in many])
    inside = [low <= true <= high for low, high in (interval([one]) for one in many)]
    assert 0.9 <= np.mean(inside) <= 0.98


def test_a_measure_is_rarely_told_from_one_that_is_as_good():
    """Two measures with the same noise: at 95 %, about one data set in twenty tells them apart."""
    rng, told = np.random.default_rng(1), 0
    for _ in range(400):
        wrong = rng.random(200) < 0.3
        measures = {name: wrong + rng.normal(size=200) for name in "ab"}
        told += len(best_ranking(measures, wrong).equals) == 1
    assert 0.02 <= told / 400 <= 0.09


def test_a_better_measure_is_told_from_worse_ones_and_a_copy_is_not():
    rng = np.random.default_rng(2)
    wrong = rng.random(600) < 0.3
    good = 2 * wrong + rng.normal(size=600)
    measures = {"noise": rng.normal(size=600), "good": good, "again": 3 * good + 1, "constant": np.zeros(600)}
    best = best_ranking(measures, wrong)
    assert best.name == "good" and set(best.equals) == {"good", "again"}
    assert best.auroc == pytest.approx(metrics.auroc(good, wrong))


def test_too_few_errors_are_undefined():
    with pytest.raises(Undefined):
        best_ranking({"a": np.arange(5.0), "b": np.arange(5.0)}, [True, False, False, False, False])
