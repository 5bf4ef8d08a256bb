"""A random sample of the rows: seeded, the same for every model, and noted."""

import numpy as np
import pytest

from nescio import BadInput, Predictions
from nescio.predictions.subset import random_subset


@pytest.mark.parametrize("text", [False, True])
def test_random_subset__models_of_the_same_rows_keep_the_same_part_in_whatever_order(text):
    rng = np.random.default_rng(0)
    keys = np.array([f"image {key}" for key in range(500)]) if text else rng.permutation(5000)[:500]
    one = Predictions(index=keys, scores={"u": rng.random(500)})
    other = Predictions(index=keys, scores={"u": rng.random(500)}).take(rng.permutation(500))
    part = random_subset(one, 120, seed=4)
    assert len(part) == 120 and set(part.index) == set(random_subset(other, 120, seed=4).index)
    assert set(part.index) != set(random_subset(one, 120, seed=5).index)
    assert part.notes == ("A random sample: 120 of 500 rows (seed 4).",)
    assert (np.diff(np.flatnonzero(np.isin(keys, part.index))) > 0).all() and part.scores["u"][0] in one.scores["u"]


def test_random_subset__every_row_has_the_same_chance():
    dump = Predictions(scores={"u": np.zeros(40)})
    taken = np.zeros(40)
    for seed in range(2000):
        taken[random_subset(dump, 10, seed).index] += 1
    assert np.abs(taken / 2000 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 2000)


def test_random_subset__all_rows_are_no_part():
    dump = Predictions(scores={"u": np.zeros(4)})
    assert random_subset(dump, 4) is dump and random_subset(dump, 9) is dump
    with pytest.raises(BadInput, match="at least 1"):
        random_subset(dump, 0)
