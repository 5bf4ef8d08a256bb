"""The search on a device gives the neighbours of the exact search, also where quick products cannot tell."""

import numpy as np
import pytest
import torch

from nescio import BadInput, Predictions
from nescio.measures import gallery_scores
from nescio.measures.gallery import search_rows
from nescio.networks import retrieval
from nescio.networks.retrieval import device_search, nearest_rows

CPU = torch.device("cpu")


def rounded_to_tf32(monkeypatch):
    """Products as a GPU gives them: every factor loses its last 13 bits."""

    def cut(x):
        return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)

    quick = torch.Tensor.__matmul__

    def product(a, b):
        return quick(cut(a), cut(b.T.contiguous()).T) if a.dtype == torch.float32 else quick(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", product)


@pytest.mark.parametrize("n, d, k", [(1500, 24, 1), (1500, 24, 20), (700, 2, 5), (40, 3, 20)])
def test_device_search__neighbours_are_those_of_the_exact_search(n, d, k, monkeypatch):
    rng = np.random.default_rng(n + k)
    gallery = rng.normal(size=(n, d)).astype(np.float32)
    gallery[7] = gallery[3]  # a tie
    view = gallery + 0.3 * rng.normal(size=(n, d)).astype(np.float32)
    rounded_to_tf32(monkeypatch)
    monkeypatch.setattr(retrieval, "ROWS", 512)
    for queries in (gallery, view):
        cuts = sorted({1, k})
        exact, found = search_rows(gallery, queries, cuts), device_search(CPU)(gallery, queries, cuts)
        assert np.array_equal(np.sort(exact), np.sort(found)) and np.array_equal(exact[:, 0], found[:, 0])


def test_device_search__rows_that_quick_products_leave_open_are_compared_with_all(monkeypatch):
    """Similarities of which hundreds are within tf32's error: without the second look neighbours are lost."""
    rng = np.random.default_rng(0)
    gallery = (1 + 0.01 * rng.normal(size=(600, 32))).astype(np.float32)
    exact = search_rows(gallery, gallery, (3,))
    rounded_to_tf32(monkeypatch)
    assert np.array_equal(np.sort(exact), np.sort(device_search(CPU)(gallery, gallery, (3,))))
    monkeypatch.setattr(retrieval, "MARGIN", -2.0)
    assert not np.array_equal(np.sort(exact), np.sort(device_search(CPU)(gallery, gallery, (3,))))


def test_device_search__scores_are_the_same_on_a_device():
    rng = np.random.default_rng(1)
    own = rng.normal(size=(200, 8)).astype(np.float32)
    dump, *views = (Predictions(embeddings=own + spread) for spread in (0, 0.1, -0.2))
    here, there = (gallery_scores(dump, views, **how) for how in ({}, {"search": device_search(CPU)}))
    assert all(np.array_equal(here[name], there[name]) for name in here.u)


def test_nearest_rows__what_cannot_be_searched_is_said():
    rows = torch.ones(4, 2)
    with pytest.raises(BadInput, match="4 rows, and k is 4"):
        nearest_rows(rows, rows, 4)
    rows[2] = 0
    with pytest.raises(BadInput, match="length zero"):
        nearest_rows(rows, rows)


@pytest.mark.gpu
def test_device_search__a_gpu_gives_the_same():
    rng = np.random.default_rng(2)
    gallery = rng.normal(size=(5000, 256)).astype(np.float32)
    exact = search_rows(gallery, gallery, (1, 20))
    found = device_search(torch.device("cuda"))(gallery, gallery, (1, 20))
    assert np.array_equal(np.sort(exact), np.sort(found)) and np.array_equal(exact[:, 0], found[:, 0])
