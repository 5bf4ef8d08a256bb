"""Scores that know the gallery: against brute force, what is proved of them, and what they are for."""

from fractions import Fraction

import numpy as np
import pytest

from nescio import BadInput, Predictions, Undefined, stack
from nescio.measures import gallery_consistency, gallery_margin, gallery_scores, gallery_uncertainty
from nescio.metrics import auroc, retrieved
from nescio.testing import check_measure


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def dumps(*arrays):
    return [Predictions(embeddings=array) for array in arrays]


def brute_lists(gallery, queries, k):
    similar = unit(queries) @ unit(gallery).T
    np.fill_diagonal(similar, -np.inf)
    order = np.argsort(-similar, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(similar, order, 1)


def brute_consistency(own, spaces, k):
    lists = [set(row) for row in brute_lists(own, own, k)[0].tolist()]
    u = []
    for gallery, queries in spaces:
        others = [set(row) for row in brute_lists(gallery, queries, k)[0].tolist()]
        u.append([1 - len(a & b) / len(a | b) for a, b in zip(lists, others, strict=True)])
    return np.mean(u, axis=0)


@pytest.fixture
def world():
    """Own embeddings, two views of them, and a sibling, which lives in another space."""
    rng = np.random.default_rng(0)
    own = rng.normal(size=(90, 8))
    views = [own + rng.normal(size=own.shape) * spread for spread in (0.2, 0.6)]
    return own, views, rng.normal(size=(90, 5))


def test_gallery_consistency__consistency_is_the_mean_jaccard_with_every_view_and_sibling(world):
    own, views, sibling = world
    dump, one, two, other = dumps(own, *views, sibling)
    for k in (1, 7, 20):
        u = gallery_consistency(dump, [one, two], k=k)
        assert np.allclose(u, brute_consistency(own, [(own, view) for view in views], k), atol=1e-12)
        u = gallery_consistency(dump, [one], [other], k=k)
        assert np.allclose(u, brute_consistency(own, [(own, views[0]), (sibling, sibling)], k), atol=1e-12)


def test_gallery_scores__equal_mean_consistencies_tie_in_any_order_of_the_views():
    """1/3 + 1 and 2/3 + 2/3 are the same sum: ranks are of the exact means."""
    rng = np.random.default_rng(0)
    own, k = rng.normal(size=(200, 6)), 7
    views = [own + 0.3 * rng.normal(size=own.shape) for _ in range(3)]
    lists = [set(row) for row in brute_lists(own, own, k)[0].tolist()]
    seen = [[set(row) for row in brute_lists(own, view, k)[0].tolist()] for view in views]
    exact = [
        1 - sum(Fraction(len(a & other[row]), len(a | other[row])) for other in seen) / len(seen)
        for row, a in enumerate(lists)
    ]
    dump, *others = dumps(own, *views)
    scores = gallery_scores(dump, others, k=k, j=6)
    assert scores["gallery_consistency"].tolist() == [float(u) for u in exact]
    assert len(np.unique(scores["gallery_consistency"])) == len(set(exact))
    for order in ((2, 0, 1), (1, 2, 0), (2, 1, 0)):
        again = gallery_scores(dump, [others[place] for place in order], k=k, j=6)
        np.testing.assert_array_equal(again["gallery_uncertainty"], scores["gallery_uncertainty"])


def test_gallery_margin__margin_is_the_first_less_the_jth_similarity(world):
    own, _, _ = world
    for j in (2, 10, 50):
        similar = brute_lists(own, own, j)[1]
        assert np.allclose(gallery_margin(*dumps(own), j=j), -(similar[:, 0] - similar[:, -1]), atol=1e-12)


def test_gallery_scores__a_dump_may_hold_the_embeddings_of_its_views_as_variants(world):
    own, (view, other), _ = world
    whole = Predictions(embeddings=own, logits=np.zeros((len(own), 3)), variants={"view_0": view, "view_1": other})
    apart = gallery_scores(*dumps(own), dumps(view, other), k=5, j=6)
    for name, u in gallery_scores(whole, k=5, j=6).u.items():
        np.testing.assert_array_equal(u, apart[name])
    shuffled = whole.take(np.arange(len(own))[::-1])
    u = gallery_scores(shuffled, k=5, j=6)["gallery_consistency"]
    np.testing.assert_array_equal(u[::-1], apart["gallery_consistency"])
    assert stack(whole, whole).variants == {}  # they belong to single networks
    with pytest.raises(BadInput, match=r"embeddings.*view: name them view_0"):
        Predictions(embeddings=own, logits=np.zeros((len(own), 3)), variants={"crop": view})


def test_gallery_uncertainty_is_the_mean_rank_of_both_and_moves_with_each(world):
    own, views, _ = world
    dump, *seen = dumps(own, *views)
    scores = gallery_scores(dump, seen, k=9, j=4)
    parts = [scores[name] for name in ("gallery_consistency", "gallery_margin")]
    ranks = [(u[:, None] > u).sum(1) + (u[:, None] == u).sum(1) / 2 for u in parts]
    assert np.allclose(gallery_uncertainty(dump, seen, k=9, j=4), sum(ranks) / (2 * len(own)))
    assert 0 < scores["gallery_uncertainty"].min() < scores["gallery_uncertainty"].max() < 1


def test_gallery_consistency__equal_views_keep_every_neighbour_and_rows_are_joined_by_index(world):
    own, views, _ = world
    dump, view = dumps(own, views[1])
    assert np.all(gallery_consistency(dump, [dump, dump]) == 0)
    rows = np.random.default_rng(1).permutation(len(own))
    assert np.array_equal(gallery_consistency(dump, [view.take(rows)]), gallery_consistency(dump, [view]))
    assert gallery_consistency(dump, [view]).mean() > 0.1


def test_gallery_margin__within_half_its_margin_an_image_keeps_what_it_retrieves():
    """What is proved: moved by less than (s_1 − s_j)/2, it retrieves one of its j − 1 nearest."""
    rng = np.random.default_rng(2)
    own, j = unit(rng.normal(size=(300, 4))), 5
    margin = -gallery_margin(*dumps(own), j=j)
    moved = unit(own + rng.uniform(0, 0.3, (300, 1)) * rng.normal(size=own.shape))
    safe = 2 * np.linalg.norm(moved - own, axis=1) < margin
    before, after = brute_lists(own, own, j - 1)[0], brute_lists(own, moved, 1)[0]
    kept = (before == after).any(1)
    assert safe.sum() > 30 and kept[safe].all()
    assert not kept.all()  # beyond it, some do not


def test_gallery_scores__they_know_which_images_retrieve_another_class():
    """Classes far apart, and images between them that any change carries away; labels are only for judging."""
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(20), 15)
    hard = rng.random(300) < 0.4
    centres = unit(rng.normal(size=(20, 16)))
    spread = np.where(hard, 0.4, 0.1)[:, None]
    own = centres[labels] + spread * rng.normal(size=(300, 16))
    views = dumps(*(own + spread * rng.normal(size=own.shape) for _ in range(4)))
    dump = Predictions(embeddings=own, labels=labels)
    wrong = ~retrieved(own, labels)
    scores = gallery_scores(dump, views, k=10)
    assert all(auroc(u, wrong) > 0.75 for u in scores.u.values())
    assert np.array_equal(labels[scores.nearest] != labels, wrong)


@pytest.mark.parametrize("name", ["gallery_consistency", "gallery_margin", "gallery_uncertainty"])
def test_gallery__contracts(name):
    assert check_measure(name)


def test_gallery_scores__scores_for_which_the_gallery_is_large_enough_remain(world):
    own, views, _ = world
    dump, view = dumps(own, views[0])
    whole = gallery_scores(dump, [view], k=20, j=50)
    for k, j, there in ((90, 50, "gallery_margin"), (20, 90, "gallery_consistency")):
        few = gallery_scores(dump, [view], k=k, j=j)
        assert set(few.u) == {there} and "gallery_uncertainty" in few.reasons
        assert np.array_equal(few[there], whole[there]) and np.array_equal(few.nearest, whole.nearest)
    none = gallery_scores(dump, [view], k=90, j=90)
    assert not none.u and np.array_equal(none.nearest, whole.nearest)


def test_gallery_uncertainty__what_is_missing_is_said(world):
    own, views, _ = world
    dump, view = dumps(own, views[0])
    with pytest.raises(Undefined, match="sibling"):
        gallery_uncertainty(dump)
    with pytest.raises(Undefined, match="90 rows, and k is 90"):
        gallery_consistency(dump, [view], k=90)
    with pytest.raises(BadInput, match="j is 1"):
        gallery_margin(dump, j=1)
    with pytest.raises(BadInput, match="index differs"):
        gallery_consistency(dump, [view.take(np.arange(50))])
    with pytest.raises(Undefined, match="no embeddings"):
        gallery_margin(Predictions(labels=[0, 1]))
