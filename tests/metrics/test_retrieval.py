"""Nearest other rows against float64 brute force, ties, duplicates, and the values of others' code."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from nescio import BadInput, Undefined
from nescio.arrays import nearest as _nearest
from nescio.arrays import nearest_other as _other
from nescio.arrays.nearest import distances, nearest_rows, prepare_points
from nescio.arrays.nearest_other import nearest_other
from nescio.metrics._retrieval import r_auroc, recall_at_1, retrieved
from tests.support.reference import load, note


def all_distances(a, b, metric):
    """The definition, pair by pair in float64: (n, n_refs)."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if metric == "cosine":
        a, b = (x / np.sqrt((x * x).sum(1))[:, None] for x in (a, b))
        return 1 - np.array([(row * b).sum(1) for row in a])
    return np.sqrt([((row - b) ** 2).sum(1) for row in a])


def brute_other(x, metric):
    away = all_distances(x, x, metric)
    np.fill_diagonal(away, np.inf)
    return away.argmin(1)  # the first of equals


@pytest.fixture(params=["blocks", "tiles"])
def road(request, monkeypatch):
    """Both ways to search: plain blocks, and symmetric tiles as on large inputs."""
    if request.param == "tiles":
        monkeypatch.setattr(_other, "TILE", 16)
        monkeypatch.setattr(_other, "TILES_FROM", 2)
    return request.param


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("d", [1, 3, 64, 300])
def test_retrieval__same_neighbours_as_float64_brute_force(road, metric, d):
    x = np.random.default_rng(d).standard_normal((157, d)).astype(np.float32)
    if metric == "cosine" and d == 1:
        return  # two points on a circle of dimension 0: everything ties
    assert np.array_equal(nearest_other(prepare_points(x, metric)), brute_other(x, metric))


def test_retrieval__large_input_takes_the_tiles_and_finds_the_same():
    x = np.random.default_rng(0).standard_normal((_other.TILES_FROM + 77, 8)).astype(np.float32)
    x[5::1000] = x[4]  # duplicates far apart
    unit = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    scores = unit @ unit.T
    np.fill_diagonal(scores, -np.inf)
    found = nearest_other(prepare_points(x))
    rows = np.arange(len(x))
    assert np.all(scores.max(1) - scores[rows, found] <= 1e-15)
    assert set(found[5::1000]) == {4} and found[4] == 5


def exact_nearness(q, x, metric):
    """Of whole numbers, without rounding: cos·|cos|·q² as a fraction, or −distance² as a whole number; (n, n_refs)."""
    q, x = q.astype(int), x.astype(int)
    dot = q @ x.T
    if metric == "cosine":
        return np.array([[Fraction(int(v * abs(v)), int(r @ r)) for v, r in zip(row, x, strict=True)] for row in dot])
    return 2 * dot - (x * x).sum(1) - (q * q).sum(1)[:, None]


@st.composite
def tied_rows(draw):
    """Rows from a short list, so that duplicates abound, in a few small whole numbers, so that distances tie."""
    d = draw(st.integers(1, 4))
    row = st.lists(st.integers(-2, 2), min_size=d, max_size=d).filter(any)
    pool = draw(st.lists(row, min_size=1, max_size=draw(st.sampled_from([8, 60]))))
    rows = draw(st.lists(st.sampled_from(pool), min_size=2, max_size=40))
    return np.array(rows, draw(st.sampled_from([np.float16, np.float32, np.float64, np.int64])))


@given(tied_rows(), st.sampled_from(["cosine", "euclidean"]), st.booleans(), st.booleans())
def test_retrieval__ties_go_to_the_lower_index(x, metric, tiles, crowds):
    with pytest.MonkeyPatch.context() as patch:
        if tiles:
            patch.setattr(_other, "TILE", 8)
            patch.setattr(_other, "TILES_FROM", 2)
        if crowds:
            patch.setattr(_nearest, "CROWD", 1)
        found = nearest_other(prepare_points(x, metric))
    nearness = exact_nearness(x, x, metric)
    for row, (mine, near) in enumerate(zip(found, nearness, strict=True)):
        assert mine == max((j for j in range(len(x)) if j != row), key=lambda j: (near[j], -j))


@given(tied_rows(), tied_rows(), st.sampled_from(["cosine", "euclidean"]), st.data())
def test_retrieval__k_nearest_sets_with_ties(x, q, metric, data):
    d = min(x.shape[1], q.shape[1])
    x, q = x[:, :d], q[:, :d]
    x, q = x[x.any(1)], q[q.any(1)]
    assume(len(x) and len(q))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(x)), min_size=1, max_size=4)))
    crowd = data.draw(st.sampled_from([0, 3, 64]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_nearest, "CROWD", crowd)
        refs = prepare_points(x, metric)
        queries = prepare_points(q, metric, like=refs)
        found = nearest_rows(refs, queries, cuts)
    order = [sorted(range(len(x)), key=lambda j, near=near: (-near[j], j)) for near in exact_nearness(q, x, metric)]
    for k in cuts:
        assert np.array_equal(np.sort(found[:, :k]), np.sort(np.array(order)[:, :k]))
    away = np.take_along_axis(all_distances(q, x, metric), found, 1)
    assert np.allclose(distances(refs, queries, found), away, atol=1e-12)


def test_retrieval__duplicates_tie_exactly_wherever_they_stand(road):
    """Equal rows can get unequal products from BLAS at block borders; the lower index must win all the same."""
    rng = np.random.default_rng(1)
    base = rng.standard_normal((9, 301)).astype(np.float32)
    x = base[rng.integers(0, 9, 200)]
    assert np.array_equal(nearest_other(prepare_points(x)), brute_other(x, "cosine"))


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_retrieval__a_network_that_says_one_thing(road, metric):
    same = np.full((500, 70), 0.3, np.float32)
    assert np.array_equal(nearest_other(prepare_points(same, metric)), [1] + [0] * 499)
    nearly = same + 1e-6 * np.random.default_rng(0).standard_normal(same.shape).astype(np.float32)
    found, away = nearest_other(prepare_points(nearly, metric)), all_distances(nearly, nearly, metric)
    np.fill_diagonal(away, np.inf)
    assert np.all(away[np.arange(500), found] <= away.min(1) * (1 + 1e-9) + 1e-15)


@pytest.mark.parametrize("factor", [1e-200, 1e-30, 1.0, 1e30, 1e200])
@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_retrieval__size_and_place_do_not_matter(factor, offset):
    x = np.random.default_rng(3).standard_normal((120, 20))
    assert np.array_equal(nearest_other(prepare_points(x * factor)), brute_other(x, "cosine"))
    if abs(np.log10(factor)) < 100:
        moved = (x + offset) * factor
        assert np.array_equal(nearest_other(prepare_points(moved, "euclidean")), brute_other(moved, "euclidean"))


def test_retrieval__one_far_row_does_not_disturb_the_others():
    x = np.random.default_rng(4).standard_normal((80, 6))
    x[7] *= 1e12
    assert np.array_equal(nearest_other(prepare_points(x, "euclidean")), brute_other(x, "euclidean"))
    refs = prepare_points(x[8:], "euclidean")
    q = np.vstack([x[:7], 1e25 * x[:1]])
    found = nearest_rows(refs, prepare_points(q, "euclidean", like=refs), (3,))
    order = np.argsort(all_distances(q, x[8:], "euclidean"), axis=1, kind="stable")[:, :3]
    assert np.array_equal(np.sort(found[:7]), np.sort(order[:7]))


def test_retrieval__result_does_not_depend_on_threads_or_blocks(monkeypatch):
    rng = np.random.default_rng(5)
    x = np.round(rng.standard_normal((700, 12)), 1).astype(np.float32)
    x[300:] = x[:400]
    monkeypatch.setattr(_nearest, "SERIAL", 0)
    results = []
    for workers, block in (("1", 1 << 22), ("3", 1 << 22), ("2", 700 * 64)):
        monkeypatch.setenv("NESCIO_THREADS", workers)
        monkeypatch.setattr(_nearest, "BLOCK", block)
        refs = prepare_points(x)
        results.append((nearest_other(refs), np.sort(nearest_rows(refs, refs, (17,)))))
    for other, sets in results[1:]:
        assert np.array_equal(other, results[0][0]) and np.array_equal(sets, results[0][1])


def test_retrieved__half_precision_and_files_on_disk(tmp_path):
    x = np.random.default_rng(6).standard_normal((150, 16)).astype(np.float16)
    np.save(tmp_path / "e.npy", x)
    mapped = np.load(tmp_path / "e.npy", mmap_mode="r")
    labels = np.arange(150) % 7
    assert np.array_equal(retrieved(mapped, labels), labels[brute_other(x, "cosine")] == labels)


def test_r_auroc__recall_is_a_share_and_r_auroc_ranks_wrong_above_right():
    rng = np.random.default_rng(7)
    x, labels, u = rng.standard_normal((200, 3)), rng.integers(0, 4, 200), rng.integers(0, 9, 200)
    right = labels[brute_other(x, "cosine")] == labels
    assert recall_at_1(x, labels) == right.mean()
    assert r_auroc(x, labels, u) == pytest.approx(roc_auc_score(~right, u), abs=1e-14)
    assert r_auroc(x, labels, np.zeros(200)) == 0.5
    assert recall_at_1(x, labels.astype(str)) == right.mean()


def test_recall_at_1__reference_recall():
    ref, said = load("url_recall_rauroc"), note("url_recall_rauroc")["report"]
    x, labels, u = ref["features"], ref["labels"], ref["unc"]
    right = retrieved(x, labels)
    for key in ("correct_faiss", "correct_matmul", "x_correct_sklearn"):
        assert np.array_equal(right, ref[key].astype(bool))
    assert recall_at_1(x, labels) == float(ref["recall_at_1"]) == said["recall_faiss"]
    assert r_auroc(x, labels, u) == pytest.approx(float(ref["x_rauroc_sklearn"]), abs=1e-14)
    assert r_auroc(x, labels, u) == pytest.approx(float(ref["rauroc"]), abs=1e-7)  # torchmetrics, float32


def test_r_auroc__reference_r_auroc_of_scores_on_other_scales():
    ref = load("url_recall_rauroc")
    names = ("unc_x40", "unc_x40_minus400", "unc_x1e-6", "unc_rounded")
    for name, (torchmetrics, sklearn) in zip(names, ref["rauroc_variants_tm_sk"], strict=True):
        ours = r_auroc(ref["features"], ref["labels"], ref[name])
        assert ours == pytest.approx(sklearn, abs=1e-14)
        if name == "unc_rounded":
            assert ours == pytest.approx(torchmetrics, abs=1e-7)
        else:  # it takes a sigmoid of scores outside [0, 1], which in float32 makes ties that are not there
            assert abs(ours - torchmetrics) > 1e-3


def test_recall_at_1__reference_duplicates_do_not_find_themselves():
    ref = load("url_recall_rauroc")
    # faiss and matmul took the second of the list, which is the query itself when its duplicate is listed first.
    assert np.array_equal(ref["dup_recall_faiss_matmul"], [0.5, 0.5])
    assert recall_at_1(ref["dup_features"], ref["dup_labels"]) == 0


def test_recall_at_1__undefined_and_bad_input():
    x, labels = np.eye(4), np.array([0, 0, 1, 1])
    with pytest.raises(Undefined, match="single row"):
        recall_at_1(x[:1], labels[:1])
    pairs = np.repeat(np.eye(2), 2, axis=0)
    with pytest.raises(Undefined, match="in every row"):
        r_auroc(pairs, labels, np.arange(4))
    with pytest.raises(Undefined, match="in every row"):
        r_auroc(pairs, [0, 1, 2, 3], np.arange(4))
    zero = x.copy()
    zero[2] = 0
    with pytest.raises(BadInput, match=r"length.*row 2"):
        recall_at_1(zero, labels)
    assert 0 <= recall_at_1(zero, labels, metric="euclidean") <= 1
    for bad, message in [
        (lambda: recall_at_1(x, labels[:3]), "labels has 3 rows, embeddings has 4"),
        (lambda: recall_at_1(x, x), "labels has shape"),
        (lambda: recall_at_1(x, [0, 0, 1, np.nan]), r"number.*row 3"),
        (lambda: recall_at_1(x[0], labels), "shape"),
        (lambda: recall_at_1(x[:0], labels[:0]), "no rows"),
        (lambda: recall_at_1(x * np.nan, labels), r"finite.*row 0"),
        (lambda: recall_at_1(x, labels, metric="manhattan"), "no distance named 'manhattan'"),
        (lambda: r_auroc(pairs, [0, 1, 1, 1], np.arange(3)), "u has shape"),
        (lambda: r_auroc(pairs, [0, 1, 1, 1], [0, 1, 2, np.nan]), r"u.*row 3"),
    ]:
        with pytest.raises(BadInput, match=message):
            bad()
