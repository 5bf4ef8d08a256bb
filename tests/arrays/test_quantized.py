"""Candidates by integer products contain every nearest row, and change no neighbour."""

from __future__ import annotations

import numpy as np
import pytest

from nescio.arrays import nearest, nearest_other, quantized

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _integers(monkeypatch):
    """Integer products of small inputs, however slow this processor computes them."""
    monkeypatch.setattr(quantized, "_is_faster", lambda product: True)
    monkeypatch.setattr(quantized, "TILE", 32)
    monkeypatch.setattr(nearest_other, "TILES_FROM", 1)
    monkeypatch.setattr(nearest_other, "INTEGERS_FROM", 1)


def clusters(rows, d, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, rows // 4, rows)
    return rng.normal(size=(rows // 4, d))[labels] + rng.normal(size=(rows, d))


SETS = {
    "clusters": clusters(200, 24),
    "float16": clusters(150, 8).astype(np.float16),
    "one large feature": clusters(130, 16) * np.r_[1e4, np.ones(15)],
    "sparse": np.maximum(clusters(170, 40) - 2, 0) + np.eye(40)[np.arange(170) % 40] * 1e-3,
    "pairs of equal rows": np.repeat(clusters(80, 12), 2, axis=0)[np.random.default_rng(1).permutation(160)],
    "opposite rows": np.concatenate([clusters(60, 5), -clusters(60, 5)]),
    "two features": clusters(100, 2),
}


@pytest.mark.parametrize("name", SETS)
def test_candidate_pairs__neighbours_are_those_of_float64(name):
    x = SETS[name].astype(np.float64)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    points = nearest.prepare_points(SETS[name])
    pairs = quantized.candidate_pairs(points.search_rows, 1e-5)
    assert pairs is not None and (pairs[0] != pairs[1]).all()
    assert set(enumerate(cosines.argmax(1).tolist())) <= set(zip(*(index.tolist() for index in pairs), strict=True))
    found = nearest_other.nearest_other(points)
    rows = np.arange(len(x))
    np.testing.assert_allclose(cosines[rows, found], cosines.max(1), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", SETS)
def test_nearest_other__neighbours_are_the_same_without_integers(name, monkeypatch):
    found = nearest_other.nearest_other(nearest.prepare_points(SETS[name]))
    monkeypatch.setattr(nearest_other, "INTEGERS_FROM", 1 << 62)
    np.testing.assert_array_equal(found, nearest_other.nearest_other(nearest.prepare_points(SETS[name])))


def test_candidate_pairs__equal_rows_and_many_rows_are_left_to_float32(monkeypatch):
    x = np.repeat(clusters(8, 6)[:2], 200, axis=0)
    monkeypatch.setattr(quantized, "MOST", 16)
    assert quantized.candidate_pairs(nearest.prepare_points(x).search_rows, 1e-5) is None
    np.testing.assert_array_equal(nearest_other.nearest_other(nearest.prepare_points(x))[:3], [1, 0, 0])
    monkeypatch.setattr(quantized, "LARGEST", 100)
    assert quantized.candidate_pairs(nearest.prepare_points(SETS["clusters"]).search_rows, 1e-5) is None


def test_candidate_pairs__without_torch_there_are_no_candidates(monkeypatch):
    monkeypatch.setattr(quantized, "find_spec", lambda name: None)
    assert quantized.candidate_pairs(nearest.prepare_points(SETS["clusters"]).search_rows, 1e-5) is None


def test_is_faster__a_wrong_or_missing_product_is_not_used(monkeypatch):
    monkeypatch.undo()

    def missing(a, b):
        raise RuntimeError("not implemented")

    assert not quantized._is_faster(missing)
    assert not quantized._is_faster(lambda a, b: np.zeros((len(a), len(b)), np.int32))
    assert not quantized._is_faster(lambda a, b: a.astype(np.float64) @ b.T.astype(np.float64))


def test_candidate_pairs__threads_of_torch_are_restored():
    import torch

    before = torch.get_num_threads()
    quantized.candidate_pairs(nearest.prepare_points(SETS["clusters"]).search_rows, 1e-5)
    assert torch.get_num_threads() == before
