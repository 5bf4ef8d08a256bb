"""Scores of a candidate against their definitions, the traps of neighbours and spaces, and the paper's two theorems."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import kendalltau

from nescio import measures
from nescio.errors import BadInput, Undefined
from nescio.measures.siblings import ALONE, NO_VARIANCE, member_spaces, rankings_agree, sibling_scores
from nescio.predictions import Predictions
from tests.support.reference import load

KS = (1, 2, 5, 10, 20)


def dumps(arrays, index=None):
    return [Predictions(embeddings=np.asarray(each), index=index) for each in arrays]


def siblings(m=4, r=60, n=25, d=6, noise=0.4, seed=0):
    """Members that see one scene, each through its own rotation, scale and noise: (references, tests)."""
    rng = np.random.default_rng(seed)
    scene = rng.normal(size=(r + n, d))
    members = [
        (scene @ rotation(rng, d) + noise * rng.normal(size=scene.shape)) * rng.uniform(0.5, 2) for _ in range(m)
    ]
    return [each[:r] for each in members], [each[r:] for each in members]


def rotation(rng, d):
    q, _ = np.linalg.qr(rng.normal(size=(d, d)))
    return q


def distance(a, b, metric):
    if metric == "euclidean":
        return np.sqrt(((a - b) ** 2).sum(-1))
    return 1 - (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def lists(refs, tests, metric):
    """(m, n, r) references from near to far, ties to the lower index."""
    return np.array(
        [
            np.argsort(distance(t[:, None], r[None], metric), axis=1, kind="stable")
            for r, t in zip(refs, tests, strict=True)
        ]
    )


def nc_by_sets(refs, tests, k, metric, similarity="jaccard"):
    found = lists(refs, tests, metric)[:, :, :k]
    values = []
    for row in range(found.shape[1]):
        sets = [set(member[row]) for member in found]
        sizes = [(len(a & b), len(a | b) if similarity == "jaccard" else k) for a, b in combinations(sets, 2)]
        values.append(np.mean([shared / size for shared, size in sizes]))
    return np.array(values)


# ---- every score is its definition


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("similarity", ["jaccard", "overlap"])
def test_sibling_scores__every_score_is_its_definition(metric, similarity):
    refs, tests = siblings()
    found = sibling_scores(
        dumps(refs),
        dumps(tests),
        metric=metric,
        k_nc=KS,
        k_dist=(1, 3),
        components=3,
        similarity=similarity,
        seed=5,
    )
    for k in KS:
        np.testing.assert_allclose(1 - found[f"nc@{k}"], nc_by_sets(refs, tests, k, metric, similarity), atol=1e-12)
    for k in (1, 3):
        away = [
            np.sort(distance(t[:, None], r[None], metric), axis=1)[:, :k].mean(1)
            for r, t in zip(refs, tests, strict=True)
        ]
        np.testing.assert_allclose(found[f"dist@{k}"], np.mean(away, axis=0), atol=1e-12)
    np.testing.assert_allclose(found["norm"], -np.mean([np.linalg.norm(t, axis=1) for t in tests], axis=0))
    space = np.array(tests)
    if metric == "cosine":
        space = space / np.linalg.norm(space, axis=2, keepdims=True)
    np.testing.assert_allclose(found["fv"], space.var(axis=0).sum(axis=1))
    mixture = measures.vmf_mixture if metric == "cosine" else measures.gaussian_mixture
    own = [mixture(r, 3, 5)(t) for r, t in zip(dumps(refs), dumps(tests), strict=True)]
    np.testing.assert_allclose(found["ll"], np.mean(own, axis=0))
    assert found.members == 4 and not found.reasons


def test_sibling_scores__the_original_code_gives_the_same_scores():
    ref = load("repreli_scores")
    sides = [[Predictions(embeddings=member) for member in ref[name]] for name in ("ref", "test")]
    for metric in ("cosine", "euclidean"):
        found = sibling_scores(*sides, metric=metric, k_nc=(1, 10, 100), k_dist=(1, 10, 100), components=0)
        for k in (1, 10, 100):
            np.testing.assert_allclose(found.reliability(f"nc@{k}"), ref[f"{metric}_NC_k{k}"], atol=1e-12)
            # equation (7) divides by M² where the code takes the mean over pairs
            m = found.members
            scaled = found.reliability(f"nc@{k}") * (m - 1) / (2 * m)
            np.testing.assert_allclose(scaled, ref[f"paper_scale_{metric}_NC_k{k}"], atol=1e-12)
            np.testing.assert_allclose(found.reliability(f"dist@{k}"), ref[f"{metric}_ens-AvgDist_k{k}"], atol=5e-6)
        np.testing.assert_allclose(found.reliability("norm"), ref["euclidean_ens-L2Norm"], rtol=1e-12)
        np.testing.assert_allclose(found.reliability("fv"), ref[f"{metric}_FV"], rtol=1e-9)


def test_sibling_scores__densities_rank_rows_as_the_original_mixture_does():
    """EM ends elsewhere from another start: the two rank the test rows alike, and no more can be asked."""
    ref = load("repreli_scores")
    sides = [[Predictions(embeddings=member) for member in ref[name]] for name in ("ref", "test")]
    found = sibling_scores(*sides, components=20)
    assert kendalltau(found.reliability("ll"), ref["cosine_ens-LL"]).statistic > 0.5


def test_sibling_scores__the_variance_is_the_sum_over_pairs_divided_by_m_squared():
    _, tests = siblings(m=5)
    found = sibling_scores(*map(dumps, siblings(m=5)), metric="euclidean", k_nc=(3,), components=0)
    pairs = sum(((a - b) ** 2).sum(1) for a, b in combinations(tests, 2))
    np.testing.assert_allclose(found["fv"], pairs / 25)


# ---- one pass for every k, every m, every member


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_member_spaces__sweeps_equal_what_is_computed_anew(metric):
    refs, tests = (dumps(side) for side in siblings(m=5))
    options = {"metric": metric, "k_nc": KS, "k_dist": (1, 4), "components": 2}
    spaces = member_spaces(refs, tests, **options)
    for m in (2, 3, 5):
        swept, anew = spaces.scores(range(m)), sibling_scores(refs[:m], tests[:m], **options)
        assert list(swept.u) == list(anew.u) and swept.members == m
        for name in anew.u:
            np.testing.assert_allclose(swept[name], anew[name], rtol=1e-12)
    for k in KS:
        alone = sibling_scores(refs, tests, metric=metric, k_nc=(k,), components=0)
        np.testing.assert_array_equal(spaces.scores()[f"nc@{k}"], alone[f"nc@{k}"])
        np.testing.assert_array_equal(spaces.scores(k_nc=(k,))[f"nc@{k}"], alone[f"nc@{k}"])
        assert [name for name in spaces.scores(k_nc=(k,)).u if name.startswith("nc")] == [f"nc@{k}"]


def test_member_spaces__neighbours_are_searched_once_for_every_member(monkeypatch):
    from nescio.measures import siblings as representations

    calls = []
    search = representations.nearest_rows
    monkeypatch.setattr(representations, "nearest_rows", lambda *args: calls.append(1) or search(*args))
    spaces = member_spaces(*map(dumps, siblings()), k_nc=KS, k_dist=KS, components=0)
    for m in range(1, 5):
        spaces.scores(range(m))
    assert len(calls) == 4


def test_member_spaces__one_member_of_several_is_what_it_would_be_alone():
    """The starred, non-ensemble variants of Tables 8 and 9."""
    refs, tests = (dumps(side) for side in siblings())
    spaces = member_spaces(refs, tests, k_nc=(5,), components=2)
    for member in range(4):
        own, alone = (
            spaces.scores([member]),
            sibling_scores(refs[member : member + 1], tests[member : member + 1], k_nc=(5,), components=2),
        )
        assert list(own.u) == list(alone.u) == ["dist@1", "norm", "ll"]
        for name in own.u:
            np.testing.assert_allclose(own[name], alone[name], rtol=1e-12)


# ---- what is missing has a reason


def test_sibling_scores__a_lone_model_has_distance_norm_and_density_and_the_reason_for_the_rest():
    refs, tests = (dumps(side[:1]) for side in siblings())
    found = sibling_scores(refs, tests, k_nc=(5, 10), components=2)
    assert sorted(found.u) == ["dist@1", "ll", "norm"]
    assert found.reasons == {"nc@5": ALONE, "nc@10": ALONE, "fv": NO_VARIANCE}
    with pytest.raises(Undefined, match="siblings"):
        found["nc@5"]
    with pytest.raises(Undefined, match="siblings"):
        found.reliability("fv")


def test_sibling_scores__members_of_other_widths_agree_on_neighbours_but_have_no_variance():
    refs, tests = siblings()
    wide = [np.hstack([side[1], np.zeros((len(side[1]), 2))]) for side in (refs, tests)]
    found = sibling_scores(dumps([refs[0], wide[0]]), dumps([tests[0], wide[1]]), k_nc=(5,), components=0)
    np.testing.assert_allclose(1 - found["nc@5"], nc_by_sets(refs[:2], tests[:2], 5, "cosine"), atol=1e-12)
    assert "[6, 8]" in found.reasons["fv"]


def test_sibling_scores__fewer_references_than_components_leave_the_density_out():
    refs, tests = (dumps(side) for side in siblings(r=12))
    found = sibling_scores(refs, tests, k_nc=(5,))
    assert list(found.reasons) == ["ll"] and re.search(r"\b20\b.*\b12\b", found.reasons["ll"])
    assert sibling_scores(refs, tests, k_nc=(5,), components=0).reasons == {"ll": "The mixture was omitted."}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"refs": 3}, "3 reference and 4 test"),
        ({"refs": 0}, "0 reference"),
        ({"similarity": "dice"}, "no similarity named 'dice'"),
        ({"metric": "manhattan"}, "no distance named 'manhattan'"),
        ({"k_nc": (61,)}, r"k is 61,.*but.*only 60 references"),
        ({"k_nc": (0,)}, r"k is.*0.*;.*at least 1"),
        ({"k_nc": ()}, r"at least 1"),
        ({"components": -1}, "components is -1"),
    ],
)
def test_sibling_scores__bad_input_is_said_in_a_sentence(change, words):
    refs, tests = (dumps(side) for side in siblings())
    options = {"k_nc": (5,), "components": 0} | {k: v for k, v in change.items() if k != "refs"}
    with pytest.raises(BadInput, match=words):
        sibling_scores(refs[: change.get("refs", 4)], tests, **options)


def test_sibling_scores__a_dump_without_embeddings_is_named():
    refs, tests = (dumps(side) for side in siblings())
    empty = Predictions(labels=np.zeros(60, int))
    with pytest.raises(Undefined, match=r"embeddings.*member 1"):
        sibling_scores([refs[0], empty], tests[:2], k_nc=(5,), components=0)
    with pytest.raises(Undefined, match="the reference"):
        sibling_scores([empty], tests[:1], k_nc=(5,), components=0)


# ---- traps


def test_sibling_scores__references_are_the_same_rows_for_all_members():
    """Another sample for one member makes agreement meaningless; another order of the same rows does no harm."""
    refs, tests = siblings()
    plain = sibling_scores(dumps(refs), dumps(tests), k_nc=(5,), components=2)
    order = np.random.default_rng(1).permutation(60)
    mixed = [*dumps(refs[:3]), Predictions(embeddings=refs[3][order], index=order)]
    turned = np.arange(25)[::-1]
    asked = [*dumps(tests[:2]), Predictions(embeddings=tests[2][turned], index=turned), *dumps(tests[3:])]
    joined = sibling_scores(mixed, asked, k_nc=(5,), components=2)
    for name in ("nc@5", "dist@1", "norm", "fv"):
        np.testing.assert_allclose(joined[name], plain[name], rtol=1e-12)
    other = [*dumps(refs[:3]), Predictions(embeddings=refs[3], index=np.arange(1, 61))]
    with pytest.raises(BadInput, match=r"reference.*member 3"):
        sibling_scores(other, dumps(tests), k_nc=(5,), components=0)


def test_member_spaces__ties_go_to_the_lower_index():
    """Eight copies of one reference at the border: all members must take the same of them."""
    rng = np.random.default_rng(0)
    twins = np.repeat(rng.normal(size=(4, 3)), 8, axis=0)
    refs = [twins @ rotation(rng, 3) for _ in range(3)]
    scene = rng.normal(size=(20, 3))
    found = sibling_scores(dumps(refs), dumps([scene] * 3), metric="euclidean", k_nc=(1, 5, 11), components=0)
    first = member_spaces(dumps(refs), dumps([scene] * 3), metric="euclidean", k_nc=(5,), components=0).neighbours
    assert all(sorted(row % 8) == [0, 1, 2, 3, 4] for row in first.reshape(-1, 5))
    np.testing.assert_allclose(1 - found["nc@5"], nc_by_sets(refs, [scene] * 3, 5, "euclidean"), atol=1e-12)


def test_member_spaces__more_references_than_sixteen_bits_can_count():
    """Row 70,000 is not row 4,464: with wrapped indices the two members would agree."""
    rng = np.random.default_rng(0)
    refs = rng.normal(size=(70_001, 2))
    other = refs.copy()
    low, high = 70_000 - 65_536, 70_000
    refs[high], refs[low] = (50, 50), (-50, -50)
    other[high], other[low] = (-50, -50), (50, 50)
    tests = np.array([[51.0, 51.0]])
    spaces = member_spaces(dumps([refs, other]), dumps([tests] * 2), metric="euclidean", k_nc=(1,), components=0)
    assert spaces.neighbours[:, 0, 0].tolist() == [high, low]
    assert spaces.scores()["nc@1"] == 1


def test_sibling_scores__the_metric_moves_distance_density_and_variance_but_never_the_norm():
    """Lengths mean nothing to the cosine: Dist, LL, FV and NC ignore them there, and the norm is always the raw one."""
    refs, tests = siblings()
    rng = np.random.default_rng(3)
    long = [[x * rng.uniform(0.1, 9, size=(len(x), 1)) for x in side] for side in (refs, tests)]
    options = {"k_nc": (5,), "components": 2}
    for metric, same in (("cosine", True), ("euclidean", False)):
        before = sibling_scores(dumps(refs), dumps(tests), metric=metric, **options)
        after = sibling_scores(*map(dumps, long), metric=metric, **options)
        for name in ("nc@5", "dist@1", "ll", "fv"):
            assert np.allclose(before[name], after[name], rtol=1e-6) == same, (metric, name)
        assert not np.allclose(before["norm"], after["norm"])


def test_sibling_scores__higher_is_less_reliable_for_every_score():
    """A row that every member sees among its references, and one that each sees somewhere else, far from all."""
    rng = np.random.default_rng(0)
    scene = rng.normal(size=(200, 8)) + 4 * np.eye(8)[rng.integers(8, size=200)]
    refs, tests = [], []
    for _ in range(4):
        refs.append(scene)
        known = 1.2 * scene[:1]  # long, and near
        tests.append(np.vstack([known, rng.normal(size=(1, 8)) * 0.5]))
    found = sibling_scores(dumps(refs), dumps(tests), k_nc=(10,), components=8)
    for name, u in found.u.items():
        assert u[1] > u[0], name


# ---- the theorems


def logistic(x, y, strength=1.0):
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, tol=1e-10, max_iter=10_000).fit(x, y)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_sibling_scores__theorem_1_rotated_spaces_vary_and_mean_the_same(metric):
    """Theorem 1: h₂ = A∘h₁. The variance of representations is as large as their space allows, and yet the optimal
    heads say the same, to which neighbourhood consistency answers with 1 and feature variance with its maximum."""
    rng = np.random.default_rng(0)
    scene = rng.normal(size=(150, 5)) + 2
    slope = scene @ rng.normal(size=5)
    labels = (slope > np.median(slope)).astype(int)
    turns = [np.eye(5), -np.eye(5)] * 2  # diametrically opposed: Var = (diameter / 2)²
    refs, tests = [scene[:100] @ a for a in turns], [scene[100:] @ a for a in turns]
    found = sibling_scores(dumps(refs), dumps(tests), metric=metric, k_nc=(1, 10, 50), components=0)
    size = np.linalg.norm(scene[100:], axis=1) if metric == "euclidean" else np.ones(50)
    np.testing.assert_allclose(found["fv"], size**2)  # ‖(z − (−z))/2‖², and no two points of that sphere are further
    for k in (1, 10, 50):
        np.testing.assert_array_equal(found.reliability(f"nc@{k}"), 1)
    said = [logistic(r, labels[:100]).predict_proba(t)[:, 1] for r, t in zip(refs, tests, strict=True)]
    assert np.var(said, axis=0).max() < 1e-12
    # … and so for rotations by any angle, up to rounding
    turns = [rotation(rng, 5) for _ in range(4)]
    refs, tests = [scene[:100] @ a for a in turns], [scene[100:] @ a for a in turns]
    found = sibling_scores(dumps(refs), dumps(tests), metric=metric, k_nc=(10,), components=0)
    np.testing.assert_array_equal(found.reliability("nc@10"), 1)
    assert found["fv"].min() > 0.05 * (size**2).min()
    said = [logistic(r, labels[:100]).predict_proba(t)[:, 1] for r, t in zip(refs, tests, strict=True)]
    assert np.var(said, axis=0).max() < 1e-10


def bound(epsilon, sigma, lipschitz):
    """Equation (6): Var_i(g_i∘h_i(x*)) ≤ (√2·L·ε + σ)²."""
    return (np.sqrt(2) * lipschitz * epsilon + sigma) ** 2


def test_siblings__theorem_2_bounds_the_variance_of_lipschitz_heads():
    """For every test row and every anchor: the variance of the heads' answers is below the bound, which says something:
    answers lie in [0, 1], whose variance is at most 1/4, and the best anchor's bound is far below that."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 8))
    scene = centres[rng.integers(6, size=460)] + 0.05 * rng.normal(size=(460, 8))
    labels = (scene[:, 0] > 0).astype(int)
    m, anchors = 5, slice(0, 400)
    spaces = [scene @ rotation(rng, 8) + 0.01 * rng.normal(size=scene.shape) for _ in range(m)]
    in_distribution = [rng.choice(400, 40, replace=False) for _ in range(m)]  # heads of few rows differ
    heads = [logistic(x[rows], labels[rows]) for x, rows in zip(spaces, in_distribution, strict=True)]
    # the slope of the sigmoid is at most 1/4 (Lemma 1 takes 1), so that a head's constant is ‖w‖/4
    lipschitz = max(np.linalg.norm(head.coef_) for head in heads) / 4
    said = np.array([head.predict_proba(x)[:, 1] for head, x in zip(heads, spaces, strict=True)])  # (m, rows)
    variance, sigma = said[:, 400:].var(axis=0), said[:, anchors].std(axis=0)
    epsilon = np.max([distance(x[400:, None], x[None, anchors], "euclidean") for x in spaces], axis=0)  # eq. (5)
    bounds = bound(epsilon, sigma, lipschitz)
    assert (variance[:, None] <= bounds).all()
    assert np.median(bounds.min(axis=1)) < 0.1 * 1 / 4
    # the distance cannot be left out
    assert (variance[:, None] > bound(0, sigma, lipschitz)).any()


def test_siblings__theorem_2_cannot_be_much_tighter():
    """Two members whose answers drift apart by L·ε each: the variance is (L·ε + σ)², the bound (√2·L·ε + σ)²."""
    for epsilon in (0.0, 0.01, 1.0):
        sigma, slope = 0.5, 2.0
        at_anchor = np.array([-sigma, sigma])
        at_test = at_anchor + slope * epsilon * np.array([-1, 1])
        assert np.isclose(np.var(at_anchor), sigma**2)
        assert np.isclose(np.var(at_test), (slope * epsilon + sigma) ** 2)
        assert np.var(at_test) <= bound(epsilon, sigma, slope) <= 2 * np.var(at_test)


def test_sibling_scores__theorem_2_says_why_consistent_neighbours_are_counted():
    """Rows that keep a near anchor in every space have a smaller bound, and NC is higher for them."""
    rng = np.random.default_rng(0)
    scene = rng.normal(size=(300, 6))
    steady = np.arange(60) < 30
    refs, tests = [], []
    for _ in range(4):
        turn = rotation(rng, 6)
        moved = scene[:60] + np.where(steady[:, None], 0.02, 1.0) * rng.normal(size=(60, 6))
        refs.append(scene @ turn)
        tests.append(moved @ turn)
    epsilon = np.max(
        [distance(t[:, None], r[None], "euclidean") for r, t in zip(refs, tests, strict=True)], axis=0
    ).min(axis=1)
    found = sibling_scores(dumps(refs), dumps(tests), metric="euclidean", k_nc=(10,), components=0)
    assert epsilon[steady].max() < epsilon[~steady].min()
    assert found.reliability("nc@10")[steady].mean() > found.reliability("nc@10")[~steady].mean() + 0.3


# ---- candidates against each other


def test_rankings_agree_as_kendall_says_row_by_row():
    rng = np.random.default_rng(0)
    u, loss = rng.integers(4, size=(2, 3, 200)).astype(float)
    brute = [kendalltau(u[:, row], loss[:, row]).statistic for row in range(200)]
    expected = [tau for tau in brute if not np.isnan(tau)]
    assert 0 < len(expected) < 200
    np.testing.assert_allclose(rankings_agree(u, loss), expected)


def test_rankings_agree__rankings_of_one_candidate_or_of_equal_ones_are_undefined():
    with pytest.raises(Undefined, match="two candidates"):
        rankings_agree(np.ones((1, 4)), np.ones((1, 4)))
    with pytest.raises(Undefined, match="ranked"):
        rankings_agree(np.ones((2, 4)), np.arange(8).reshape(2, 4))
    with pytest.raises(BadInput, match="both must be"):
        rankings_agree(np.ones((2, 4)), np.ones((2, 5)))
    assert rankings_agree([[0, 1], [1, 0]], [[0, 0], [1, 1]]).tolist() == [1, -1]


def test_siblings__no_torch_is_imported():
    code = "import sys, nescio.measures.siblings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
