"""Neighbour measures against brute force, the papers' set definition, and others' values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from nescio import BadInput, Predictions, Undefined
from nescio.arrays import nearest as _nearest
from nescio.measures._neighbours import consistency, feature_variance, knn_distance, neighborhood_inconsistency
from tests.support.reference import load, note


def dumps(stack, index=None):
    return [Predictions(embeddings=e, index=index) for e in stack]


def brute_sets(ref, test, k, metric):
    ref, test = ref.astype(np.float64), test.astype(np.float64)
    if metric == "cosine":
        ref, test = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (ref, test))
    away = np.array([((row - ref) ** 2).sum(1) for row in test])
    return [set(row[:k]) for row in np.argsort(away, axis=1, kind="stable")]


def brute_inconsistency(refs, tests, k, metric):
    sets = [brute_sets(r, t, k, metric) for r, t in zip(refs, tests, strict=True)]
    m = len(sets)
    pairs = [(a, b) for b in range(m) for a in range(b)]
    return np.array(
        [1 - np.mean([len(sets[a][i] & sets[b][i]) / len(sets[a][i] | sets[b][i]) for a, b in pairs])
         for i in range(len(tests[0]))]
    )  # fmt: skip


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_neighborhood_inconsistency__inconsistency_equals_set_definition(metric, dtype):
    rng = np.random.default_rng(0)
    refs, tests = rng.standard_normal((4, 130, 24)).astype(dtype), rng.standard_normal((4, 37, 24)).astype(dtype)
    ks = [100, 1, 13, 130]
    u = neighborhood_inconsistency(dumps(refs), dumps(tests), k=ks, metric=metric)
    assert u.shape == (4, 37)
    for row, k in zip(u, ks, strict=True):
        assert np.allclose(row, brute_inconsistency(refs, tests, k, metric), atol=1e-15)
        assert np.array_equal(row, neighborhood_inconsistency(dumps(refs), dumps(tests), k=k, metric=metric))
    assert np.all(u[3] == 0)  # all references: every set is the same


@given(st.integers(2, 4), st.integers(1, 30), st.integers(1, 8), st.data())
def test_neighborhood_inconsistency__inconsistency_with_ties(m, n_refs, n, data):
    """Whole numbers on a small grid: distances tie, and the lower index is the nearer."""
    whole = st.integers(-1, 1)

    def grid(rows):
        return np.array(data.draw(st.lists(whole, min_size=m * rows * 2, max_size=m * rows * 2))).reshape(m, rows, 2)

    refs, tests = grid(n_refs), grid(n)
    k = data.draw(st.integers(1, n_refs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_nearest, "CROWD", data.draw(st.sampled_from([0, 64])))
        u = neighborhood_inconsistency(dumps(refs), dumps(tests), k=k, metric="euclidean")
    assert np.allclose(u, brute_inconsistency(refs, tests, k, "euclidean"), atol=1e-15)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_knn_distance__distances_to_many_are_those_of_pairs(metric, monkeypatch):
    """One product or pair by pair: rows that stand far from the origin and near each other, some of them equal."""
    rng = np.random.default_rng(0)
    x = 100 + np.concatenate([rng.normal(size=(150, 8)), 1e-6 * rng.normal(size=(50, 8))])
    refs, tests = dumps([x, np.concatenate([x[::4], x[::4] + 1e-9, x[:50] - 90])])
    found = {}
    for pair in (0, 10**9):
        monkeypatch.setattr(_nearest, "PAIR", pair)
        found[pair] = knn_distance(refs, [1, 20, 200], metric)(tests)
    assert np.all(found[0] >= 0)
    assert np.allclose(found[0], found[10**9], rtol=1e-9, atol=1e-15)
    assert np.array_equal(found[0][0] == 0, found[10**9][0] == 0)


def test_neighborhood_inconsistency__agreement_and_strangers():
    rng = np.random.default_rng(1)
    refs, tests = rng.standard_normal((300, 16)), rng.standard_normal((50, 16))
    turn = np.linalg.qr(rng.standard_normal((16, 16)))[0]
    same = neighborhood_inconsistency(dumps([refs, 3 * refs @ turn]), dumps([tests, 5 * tests @ turn]), k=10)
    assert np.all(same == 0)  # a rotated and stretched space has the same neighbourhoods
    strangers = neighborhood_inconsistency(
        dumps([refs, rng.standard_normal((300, 9))]), dumps([tests, rng.standard_normal((50, 9))]), k=10
    )
    assert strangers.mean() > 0.9


def test_feature_variance__members_are_joined_on_index():
    rng = np.random.default_rng(2)
    refs, tests = rng.standard_normal((3, 40, 5)), rng.standard_normal((3, 20, 5))
    expected = neighborhood_inconsistency(dumps(refs), dumps(tests), k=7)
    spread = feature_variance(dumps(tests))
    r, t = rng.permutation(40), rng.permutation(20)
    mixed_refs = [*dumps(refs[:2]), Predictions(embeddings=refs[2][r], index=r)]
    mixed_tests = [*dumps(tests[:1]), Predictions(embeddings=tests[1][t], index=t), *dumps(tests[2:])]
    assert np.array_equal(neighborhood_inconsistency(mixed_refs, mixed_tests, k=7), expected)
    assert np.array_equal(feature_variance(mixed_tests), spread)


def test_neighborhood_inconsistency__more_than_sixteen_bits_of_references():
    rng = np.random.default_rng(3)
    n = 66_000
    refs = rng.standard_normal((2, n, 2)).astype(np.float32)
    tests = refs[:, -30:]
    u = neighborhood_inconsistency(dumps(refs), dumps(tests), k=1, metric="euclidean")
    assert np.all(u == 0)  # each test row finds itself, behind 65,535, in both members


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_knn_distance_equals_scikit_learn(metric):
    rng = np.random.default_rng(4)
    ref, test = rng.standard_normal((90, 11)), rng.standard_normal((31, 11))
    away = NearestNeighbors(n_neighbors=90, metric=metric, algorithm="brute").fit(ref).kneighbors(test)[0]
    fit = knn_distance(Predictions(embeddings=ref), k=(5, 1, 90, 5), metric=metric)
    u = fit(Predictions(embeddings=test))
    assert u.shape == (4, 31) and np.array_equal(u[0], u[3])
    for row, k in zip(u, (5, 1, 90, 5), strict=True):
        assert np.allclose(row, away[:, :k].mean(1), atol=1e-12)
    assert np.allclose(
        knn_distance(Predictions(embeddings=ref), 5, metric)(Predictions(embeddings=test)), u[0], atol=1e-15
    )


def test_knn_distance_of_known_rows_is_zero():
    rng = np.random.default_rng(5)
    ref = Predictions(embeddings=rng.standard_normal((50, 8)).astype(np.float32))
    assert np.all(knn_distance(ref, metric="euclidean")(ref) == 0)
    assert np.all(np.abs(knn_distance(ref)(ref)) < 1e-15)


def test_knn_distance_far_is_unsure():
    rng = np.random.default_rng(6)
    ref = Predictions(embeddings=rng.standard_normal((200, 8)))
    near = knn_distance(ref, 10, "euclidean")(Predictions(embeddings=rng.standard_normal((50, 8))))
    far = knn_distance(ref, 10, "euclidean")(Predictions(embeddings=rng.standard_normal((50, 8)) + 9))
    assert near.max() < far.min()


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_feature_variance_is_the_population_variance(metric):
    tests = np.random.default_rng(7).standard_normal((5, 23, 6)).astype(np.float32)
    x = tests.astype(np.float64)
    if metric == "cosine":
        x /= np.linalg.norm(x, axis=2, keepdims=True)
    expected = ((x - x.mean(0)) ** 2).mean(0).sum(1)
    assert np.allclose(feature_variance(dumps(tests), metric), expected, atol=1e-14)
    assert np.allclose(feature_variance(dumps([tests[0], tests[0]]), metric), 0, atol=1e-14)
    unbiased = ((x - x.mean(0)) ** 2).sum(0).sum(1) / 4
    assert np.allclose(feature_variance(dumps(tests), metric, unbiased=True), unbiased, atol=1e-14)


def test_feature_variance__the_unbiased_variance_does_not_depend_on_the_number_of_members():
    tests = np.random.default_rng(7).standard_normal((12, 4000, 4))
    population, unbiased = (
        [feature_variance(dumps(tests[:m]), "euclidean", unbiased=how).mean() for m in (2, 4, 12)]
        for how in (False, True)
    )
    assert np.allclose(unbiased, 4, rtol=0.02)  # four dimensions of variance one
    assert np.allclose(population, np.multiply(4, [1 / 2, 3 / 4, 11 / 12]), rtol=0.02)


def test_knn_distance__half_precision_on_disk(tmp_path):
    x = np.random.default_rng(8).standard_normal((60, 8)).astype(np.float16)
    np.save(tmp_path / "x.npy", x)
    mapped = Predictions(embeddings=np.load(tmp_path / "x.npy", mmap_mode="r"))
    plain = Predictions(embeddings=x.astype(np.float64))
    assert np.array_equal(knn_distance(mapped, 3)(mapped), knn_distance(plain, 3)(plain))


def test_feature_variance__reference_scores():
    """Their larger score is the more reliable: ours is minus theirs, or one minus NC. (Their LL_* are densities.)"""
    ref, said = load("repreli_scores"), note("repreli_scores")
    refs, tests = dumps(ref["ref"]), dumps(ref["test"])
    m = len(refs)
    ks = (1, 10, 100)
    keys = {"ref", "test"}
    for metric in ("cosine", "euclidean"):
        u = neighborhood_inconsistency(refs, tests, ks, metric)
        overlap = neighborhood_inconsistency(refs, tests, ks, metric, similarity="overlap")
        away = [knn_distance(r, ks, metric)(t) for r, t in zip(refs, tests, strict=True)]
        for place, k in enumerate(ks):
            assert np.allclose(1 - u[place], ref[f"{metric}_NC_k{k}"], atol=1e-14)
            assert np.allclose(1 - u[place], ref[f"x_{metric}_NC_jaccard_perpair_k{k}"], atol=1e-14)
            assert np.allclose(1 - overlap[place], ref[f"x_{metric}_NC_overlap_perpair_k{k}"], atol=1e-14)
            # Equation (7) divides by M²: a constant factor, the same ranking, but not a share that can reach 1.
            printed = ref[f"paper_scale_{metric}_NC_k{k}"]
            assert np.allclose((1 - u[place]) * (m - 1) / (2 * m), printed, atol=1e-14)
            assert not np.allclose(1 - u[place], printed)
            assert "code: mean over the M(M-1)/2 pairs" in said["scaling"]
            keys |= {f"{metric}_NC_k{k}", f"paper_scale_{metric}_NC_k{k}", f"{metric}_ens-AvgDist_k{k}"}
            keys |= {f"x_{metric}_NC_{how}_perpair_k{k}" for how in ("jaccard", "overlap")}
            for member in range(m):  # theirs were computed in float32
                keys.add(f"{metric}_AvgDist_k{k}_m{member}")
                assert np.allclose(-away[member][place], ref[f"{metric}_AvgDist_k{k}_m{member}"], rtol=1e-6, atol=1e-6)
            mean = np.mean([a[place] for a in away], axis=0)
            assert np.allclose(-mean, ref[f"{metric}_ens-AvgDist_k{k}"], rtol=1e-6, atol=1e-6)
        assert np.allclose(-feature_variance(tests, metric), ref[f"{metric}_FV"], rtol=1e-12)
        keys.add(f"{metric}_FV")
    lengths = [np.linalg.norm(x.astype(np.float64), axis=1) for x in ref["test"]]
    for member, length in enumerate(lengths):
        assert np.allclose(length, ref[f"euclidean_L2Norm_m{member}"], rtol=1e-12)
        keys.add(f"euclidean_L2Norm_m{member}")
    assert np.allclose(np.mean(lengths, axis=0), ref["euclidean_ens-L2Norm"], rtol=1e-12)
    keys.add("euclidean_ens-L2Norm")
    mixtures = {key for key in ref if "LL" in key or "mm" in key or "movmf" in key}  # asserted with the densities
    assert keys | mixtures == set(ref)


def test_consistency__reference_jaccard_by_hand():
    ref = load("repreli_jaccard_hand")
    sets, n = ref["sets"], int(ref["sets"].max()) + 1
    pairs = [(0, 1), (0, 2), (1, 2)]
    for similarity, keys in (("jaccard", ("pairwise_jaccard", "hand")), ("overlap", ("overlap_over_k",))):
        for key in keys:
            ours = [consistency(sets[list(pair), None], [4], n, similarity)[0, 0] for pair in pairs]
            assert np.allclose(ours, ref[key], atol=1e-15)
    assert consistency(sets[:, None], [4], n)[0, 0] == pytest.approx(float(ref["mean"]), abs=1e-12)


@pytest.mark.parametrize("similarity", ["jaccard", "overlap"])
def test_consistency__any_order_of_members_gives_the_same_bits(similarity):
    rng = np.random.default_rng(0)
    lists = np.array([[rng.choice(40, 13, replace=False) for _ in range(200)] for _ in range(7)])
    first = consistency(lists, [5, 13], 40, similarity)
    for _ in range(5):
        np.testing.assert_array_equal(consistency(lists[rng.permutation(7)], [5, 13], 40, similarity), first)


def test_consistency__rows_of_equal_consistency_tie_whatever_fractions_it_is_the_mean_of():
    """Sets of three that share 0, 1, 2 or 3 rows have Jaccard similarities 0, 1/5, 1/2 and 1."""
    chain = [[0, 1, 2], [0, 1, 3], [0, 1, 4], [0, 1, 5]]  # six pairs of 1/2
    halves = [[0, 1, 2], [0, 1, 2], [0, 1, 2], [3, 4, 5]]  # three pairs of 1 and three of 0
    fifths = [[0, 1, 2], [0, 3, 4], [0, 5, 6], [1, 3, 5]]  # six pairs of 1/5, whose sum depends on the order
    mixed = [[0, 1, 2], [0, 1, 2], [3, 4, 0], [3, 4, 0]]  # 1, 1 and four pairs of 1/5: 2.8 in any order
    lists = np.array([chain, halves, fifths, mixed]).transpose(1, 0, 2)
    half, also_half, fifth, rest = consistency(lists, [3], 7)[0]
    assert half == also_half == 0.5 and fifth == 0.2
    assert rest == pytest.approx(2.8 / 6, abs=1e-12)
    assert consistency(lists[[3, 1, 0, 2]], [3], 7)[0].tolist() == [half, also_half, fifth, rest]


def test_neighborhood_inconsistency__kendall_does_not_depend_on_the_order_of_members():
    from nescio.metrics import kendall

    rng = np.random.default_rng(1)
    refs, tests = rng.standard_normal((6, 30, 3)), rng.standard_normal((6, 400, 3))
    other = rng.standard_normal(400)
    taus = set()
    for _ in range(4):
        order = rng.permutation(6)
        u = neighborhood_inconsistency(dumps(refs[order]), dumps(tests[order]), k=3)
        taus.add(kendall(u, other))
    assert len(taus) == 1


def test_feature_variance__undefined_and_bad_input():
    x, y = np.eye(6), np.eye(6) + 1
    one, two = Predictions(embeddings=x), Predictions(embeddings=y)
    none = Predictions(labels=np.arange(6))
    zero = Predictions(embeddings=np.vstack([x[:3], 0 * x[:1], x[4:]]))
    for bad, message in [
        (lambda: neighborhood_inconsistency([one], [one], k=2), "least two members"),
        (lambda: neighborhood_inconsistency([], [], k=2), "least two members"),
        (lambda: feature_variance([one]), "least two members"),
        (
            lambda: neighborhood_inconsistency([one, none], [one, two], k=2),
            r"embeddings.*member 1",
        ),
        (lambda: feature_variance([none, one]), r"embeddings.*member 0"),
        (lambda: knn_distance(none), "the reference"),
        (lambda: knn_distance(one)(none), "the test predictions"),
    ]:
        with pytest.raises(Undefined, match=message):
            bad()
    other = Predictions(embeddings=x, index=np.arange(1, 7))
    wide = Predictions(embeddings=np.ones((6, 7)))
    for bad, message in [
        (lambda: neighborhood_inconsistency([one, two], [one]), "2 reference and 1 test"),
        (
            lambda: neighborhood_inconsistency([one, other], [one, two], k=2),
            r"reference.*member 1",
        ),
        (
            lambda: neighborhood_inconsistency([one, two], [one, one.take(range(5))], k=2),
            r"test.*member 1",
        ),
        (
            lambda: neighborhood_inconsistency([one, two], [one, wide], k=2),
            r"test.*member 1 has 7 features",
        ),
        (lambda: neighborhood_inconsistency([one, two], [one, two]), r"k is 100,.*but.*only 6 references"),
        (
            lambda: neighborhood_inconsistency([one, two], [one, two], 2, similarity="dice"),
            "no similarity named 'dice'",
        ),
        (
            lambda: neighborhood_inconsistency([one, zero], [one, two], 2),
            r"embeddings of member 1.*length.*row 3",
        ),
        (lambda: feature_variance([one, zero]), r"embeddings of member 1.*length.*row 3"),
        (lambda: feature_variance([one, wide]), "\\[6, 7\\] features"),
        (lambda: feature_variance([one, two], "dot"), "no distance named 'dot'"),
        (lambda: knn_distance(one, 7), r"k is 7,.*but.*only 6"),
        (lambda: knn_distance(one, 0), "k is 0"),
        (lambda: knn_distance(one, 1.5), "k is 1.5"),
        (lambda: knn_distance(one, ()), "k is \\(\\)"),
        (lambda: knn_distance(one, metric="l1"), "no distance named 'l1'"),
        (lambda: knn_distance(zero), r"reference.*row 3"),
        (lambda: knn_distance(one)(wide), "7 features"),
    ]:
        with pytest.raises(BadInput, match=message):
            bad()
