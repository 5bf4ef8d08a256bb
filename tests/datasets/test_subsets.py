"""Datasets of some classes of another dataset."""

import numpy as np

from nescio import datasets
from nescio.datasets import load
from tests.support.published_layouts import fresh  # noqa: F401  (used by every test)


def test_subsets__in_and_out_as_two_classes():
    whole, found = load("digits"), load(datasets.subsets.binary_spec("digits", (3, 1), (7,)))
    assert found.classes == ("in", "out") and found.revision != whole.revision
    rows = np.flatnonzero(np.isin(whole.train.labels, (1, 3, 7)))
    assert np.array_equal(found.train.pixels, whole.train.pixels[rows])
    assert np.array_equal(found.train.labels, (whole.train.labels[rows] == 7).astype(int))


def test_subsets__a_path_with_a_number_sign_can_be_divided(tmp_path):
    x, y = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8), np.arange(20) % 4
    np.savez(tmp_path / "run #3.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    whole = f"npz:{tmp_path / 'run #3.npz'}"
    spec = datasets.subsets.binary_spec(whole, (0, 1), (3,))
    assert datasets.subsets.data_of(spec) == whole
    assert np.bincount(load(spec).train.labels).tolist() == [10, 5]
