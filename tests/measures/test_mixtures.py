"""Mixtures without labels: definitions, closed forms, stored values, extremes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau, multivariate_normal

from nescio import BadInput, Predictions
from nescio.distributions import von_mises_fisher
from nescio.measures import (
    choose_components,
    gaussian_mixture,
    gmm,
    mixtures,
    vmf_mixture,
)
from nescio.measures.mixtures import SphereDensity
from tests.support.reference import load, note


def dump(embeddings, labels=None, **more):
    return Predictions(embeddings=embeddings, labels=labels, **more)


def blobs(seed=0, n=120, d=4, classes=3, spread=1.0):
    """Rows around random centres, each class with a covariance of its own."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % classes)
    centres, shapes = 4 * rng.normal(size=(classes, d)), spread * rng.normal(size=(classes, d, d)) / d**0.5
    return centres[labels] + np.einsum("nij,nj->ni", shapes[labels], rng.normal(size=(n, d))), labels


def directions(seed=0, n=400, d=8, classes=4, kappa=40.0):
    from scipy.stats import vonmises_fisher

    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, d))
    centres /= np.linalg.norm(centres, axis=1)[:, None]
    labels = np.arange(n) % classes
    rows = [vonmises_fisher(c, kappa).rvs((labels == k).sum(), random_state=rng) for k, c in enumerate(centres)]
    x = np.empty((n, d))
    for k in range(classes):
        x[labels == k] = rows[k]
    return x * rng.uniform(0.1, 10, size=(n, 1)), centres


def clusters(count, metric, n=400, d=6, seed=0):
    """Rows around `count` orthogonal directions, or around the corners of a large simplex."""
    rng = np.random.default_rng(seed)
    centres = np.eye(d)[:count] * (1 if metric == "cosine" else 20)
    x = centres[np.arange(n) % count] + rng.normal(size=(n, d)) * (0.15 if metric == "cosine" else 1.0)
    return dump(x)


def test_gmm_equals_the_stored_mixture_with_its_sign_turned():
    stored = load("uimnet_measures")
    labels, test = stored["train_labels"], dump(stored["features"])
    used = (labels > 0) | (np.arange(len(labels)) < 30)  # the stored fit saw 30 of the 40 rows of class 0
    train = dump(stored["train_features"], labels, in_distribution=used)
    np.testing.assert_array_equal(np.bincount(labels[used]), stored["MoG_counts"])
    for jitter in (0.0, 0.01):
        fitted = gmm(train, jitter=jitter)
        np.testing.assert_allclose(fitted.means, stored[f"MoG_means_eps{jitter}"], rtol=1e-12)
        covariances = np.linalg.inv(np.swapaxes(fitted.whiteners, 1, 2) @ fitted.whiteners)
        np.testing.assert_allclose(covariances, stored[f"MoG_covs_eps{jitter}"], rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(fitted.weights, stored["MoG_counts"] / stored["MoG_counts"].sum())
        # The original returns +log p, high for in-domain rows: the opposite of its other measures.
        np.testing.assert_allclose(fitted(test), -stored[f"MoG_eps{jitter}"], rtol=1e-9)
    assert "opposite" in note("uimnet_measures")["cross_check"]["MoG sign"]


def test_gaussian_mixture_of_one_component_is_the_normal_distribution():
    x, _ = blobs(n=300, classes=1)
    u = gaussian_mixture(dump(x), components=1)(dump(x))
    expected = multivariate_normal(x.mean(0), np.cov(x.T, bias=True)).logpdf(x)
    np.testing.assert_allclose(u, -expected, rtol=1e-4, atol=1e-3)


def test_gaussian_mixture_finds_what_scikit_learn_finds():
    from sklearn.mixture import GaussianMixture

    x, _ = blobs(seed=5, n=600, d=3, classes=4, spread=0.5)
    fitted = gaussian_mixture(dump(x), components=4, tolerance=1e-9, iterations=500)
    peer = GaussianMixture(4, tol=1e-9, max_iter=500, n_init=5, random_state=0).fit(x)
    np.testing.assert_allclose(fitted(dump(x)), -peer.score_samples(x), atol=1e-2)
    np.testing.assert_allclose(np.sort(fitted.weights), np.sort(peer.weights_), atol=1e-3)


def test_gaussian_mixture_likelihood_never_falls_when_the_rows_suffice():
    x = np.random.default_rng(0).standard_t(3, size=(500, 3))
    likelihoods = gaussian_mixture(dump(x), components=5, tolerance=1e-7).log_likelihoods
    assert len(likelihoods) > 5
    assert np.diff(likelihoods).min() > -1e-7


def test_gaussian_mixture_integrates_to_one():
    x = np.random.default_rng(0).normal(size=(200, 2)) * [1, 3] + [5, 0]
    axis = np.linspace(-30, 30, 601)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    u = gaussian_mixture(dump(x), components=3)(dump(grid))
    assert np.exp(-u).sum() * 0.1**2 == pytest.approx(1, abs=1e-6)


def test_gaussian_mixture_with_too_few_rows_stays_sane():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 40))
    new, far = rng.normal(size=(60, 40)), 3 * rng.normal(size=(60, 40))
    u_new, u_far = (gaussian_mixture(dump(x), components=20)(dump(rows)) for rows in (new, far))
    # The truth for new rows is ½·d·(log 2π + 1) ≈ 57 nats; a bare maximum of likelihood is millions away.
    assert u_new.mean() < 120 and np.isfinite(u_far).all()
    assert u_new.max() < u_far.min()


def test_gaussian_mixture__stored_euclidean_likelihoods_are_degenerate_and_ours_are_not():
    stored = load("repreli_scores")
    shapes = note("repreli_scores")["info"]["gmm_cov_shape"]
    assert shapes == [5, 20, 64, 64]
    theirs = np.stack([stored[f"euclidean_LL_m{m}"] for m in range(5)])
    # 500 rows over 20 components leave 25 for a 64 × 64 covariance: singular, so that every test row is millions of
    # nats away and every training row belongs to one component entirely.
    counts = stored["gmm_weights"] * 500
    np.testing.assert_allclose(counts, np.rint(counts), atol=1e-6)
    assert np.median(counts) < 64
    assert theirs.max() < -1e6
    np.testing.assert_allclose(stored["euclidean_ens-LL"], theirs.mean(0))
    for m in range(2):
        u = gaussian_mixture(dump(stored["ref"][m]))(dump(stored["test"][m]))
        assert u.min() > 50 and u.max() < 400
        assert abs(-u - theirs[m]).min() > 1e6
        # Means of two k-means starts: as many, of the same scale.
        assert stored["gmm_means"][m].shape == (20, 64)


def test_vmf_mixture_of_one_component_is_the_maximum_likelihood_estimate():
    x, _ = directions(classes=1)
    unit = x / np.linalg.norm(x, axis=1)[:, None]
    mean = unit.mean(0)
    r = np.linalg.norm(mean)
    fitted = vmf_mixture(dump(x), components=1)
    assert fitted.kappa[0] == pytest.approx(von_mises_fisher.inverse_mean_resultant(r, 8), rel=1e-12)
    expected = von_mises_fisher.log_density(unit, mean[None] / r, fitted.kappa)[:, 0]
    np.testing.assert_allclose(fitted(dump(x)), -expected, rtol=1e-12)


def test_vmf_mixture_recovers_what_was_planted():
    x, centres = directions(n=4000, kappa=60.0)
    fitted = vmf_mixture(dump(x), components=4)
    match = centres @ fitted.means.T
    assert (match.max(1) > 0.995).all() and len(set(match.argmax(1))) == 4
    np.testing.assert_allclose(fitted.kappa, 60, rtol=0.08)
    np.testing.assert_allclose(fitted.weights, 0.25, atol=0.02)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(1, 12), st.sampled_from([0.5, 10.0, 1e4]))
def test_vmf_mixture_likelihood_never_falls(seed, d, components, kappa):
    x, _ = directions(seed, 60, d, 3, kappa)
    likelihoods = np.array(vmf_mixture(dump(x), components, seed, tolerance=1e-12).log_likelihoods)
    assert (np.diff(likelihoods) > -1e-9 * np.maximum(1, np.abs(likelihoods[1:]))).all()


def test_sphere_density__vmf_mixture_is_better_than_with_the_usual_concentration():
    """The last step's κ maximises: moving any κ lowers the likelihood of the rows."""
    x, _ = directions(kappa=5.0)
    fitted = vmf_mixture(dump(x), components=3, tolerance=1e-13, iterations=2000)
    best = -fitted(dump(x)).mean()
    for k in range(3):
        for factor in (0.98, 1.02):
            kappa = fitted.kappa.copy()
            kappa[k] *= factor
            assert -SphereDensity(fitted.means, kappa, fitted.weights)(dump(x)).mean() < best


def test_vmf_mixture_integrates_to_one_on_the_circle():
    x, _ = directions(d=2)
    angle = np.linspace(0, 2 * np.pi, 5000, endpoint=False)
    u = vmf_mixture(dump(x), components=5)(dump(np.stack([np.cos(angle), np.sin(angle)], 1)))
    assert np.exp(-u).mean() * 2 * np.pi == pytest.approx(1, rel=1e-9)


def test_vmf_mixture_ignores_lengths():
    x, _ = directions()
    fitted = vmf_mixture(dump(x))
    np.testing.assert_allclose(fitted(dump(1e4 * x)), fitted(dump(x)), rtol=1e-12)


def test_vmf_mixture_of_repeated_rows_stays_finite():
    x = np.repeat(np.eye(4)[:3], 10, axis=0)
    fitted = vmf_mixture(dump(x), components=5)
    u = fitted(dump(np.concatenate([np.eye(4), -np.eye(4)])))
    assert np.isfinite(u).all() and np.isfinite(fitted.kappa).all()
    assert u[:3].max() < u[3:].min()


def test_sphere_density__stored_cosine_likelihoods_are_ours_up_to_the_measure_of_the_sphere():
    stored = load("repreli_scores")
    log_area = note("repreli_scores")["cross_check"][
        "LL repo minus exact Lebesgue logpdf: mean,std,min,max, log sphere area"
    ][4]
    assert log_area == pytest.approx(-von_mises_fisher.log_normalizer(0.0, 64), rel=1e-12)
    theirs = np.stack([stored[f"cosine_LL_m{m}"] for m in range(5)])
    np.testing.assert_allclose(stored["cosine_ens-LL"], theirs.mean(0))
    for m in range(5):
        means, kappa, weights = (stored[f"movmf_{name}"][m] for name in ("centers", "kappa", "weights"))
        exact = -SphereDensity(means, kappa, weights)(dump(stored["test"][m]))
        np.testing.assert_allclose(exact, stored["x_movmf_exact_logpdf"][m], rtol=1e-12)
        # Theirs is the density relative to the uniform one, with an approximate normaliser.
        np.testing.assert_allclose(theirs[m] - exact, log_area, atol=0.07)
        assert kendalltau(theirs[m], exact).statistic > 0.997
        # A mixture depends on its start: two of ours agree at τ ≈ 0.4 with each other, and as much with theirs, and
        # describe the reference equally well.
        ref = dump(stored["ref"][m])
        ours = vmf_mixture(ref)
        assert ours(ref).mean() < SphereDensity(means, kappa, weights)(ref).mean() + 0.5
        assert kendalltau(-theirs[m], ours(dump(stored["test"][m]))).statistic > 0.3


def test_gaussian_mixture__the_first_clustering_may_look_at_a_sample(monkeypatch):
    x, _ = directions()
    monkeypatch.setattr(mixtures, "SEED_ROWS", 100)
    fitted = vmf_mixture(dump(x), components=4)
    np.testing.assert_allclose(fitted.weights, 0.25, atol=0.05)
    assert gaussian_mixture(dump(x), components=4)(dump(x)).shape == (400,)


@pytest.mark.parametrize("fit", [gaussian_mixture, vmf_mixture])
def test_mixtures__a_seed_decides_everything(fit):
    x, _ = directions(kappa=2.0)
    one, again, other = (fit(dump(x), 6, seed)(dump(x)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)


@pytest.mark.parametrize("fit", [gaussian_mixture, vmf_mixture])
def test_mixtures__as_many_components_as_rows(fit):
    x = np.random.default_rng(0).normal(size=(5, 3))
    assert np.isfinite(fit(dump(x), 5)(dump(x))).all()
    assert np.isfinite(fit(dump(np.ones((4, 3))), 3)(dump(x))).all()


@pytest.mark.parametrize("fit", [gaussian_mixture, vmf_mixture])
@pytest.mark.parametrize(("components", "words"), [(6, "6 components .* 5"), (0, "at least 1")])
def test_mixtures__components_must_fit_the_rows(fit, components, words):
    with pytest.raises(BadInput, match=words):
        fit(dump(np.random.default_rng(0).normal(size=(5, 3))), components)


def test_vmf_mixture__zero_embeddings_have_no_direction():
    x, _ = directions(n=50)
    fitted = vmf_mixture(dump(x), 2)
    x[37] = 0
    with pytest.raises(BadInput, match=r"only.*row 37"):
        vmf_mixture(dump(x), 2)
    with pytest.raises(BadInput, match=r"only.*row 37"):
        fitted(dump(x))
    with pytest.raises(BadInput, match="one feature"):
        vmf_mixture(dump(x[:, :1]), 2)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_choose_components__the_number_of_clusters_is_found_by_held_out_likelihood(metric, count):
    ref = clusters(count, metric)
    choice = choose_components(ref, (12, 6, 3, 1), metric=metric)
    assert choice.components == count
    assert list(choice.log_likelihoods) == [1, 3, 6, 12]
    # the likelihood of the rows themselves goes on rising: it chooses nothing
    fit = vmf_mixture if metric == "cosine" else gaussian_mixture
    assert fit(ref, 12)(ref).mean() < fit(ref, count)(ref).mean()


def test_choose_components__the_order_of_candidates_does_not_matter():
    ref = clusters(3, "cosine", n=200)
    assert choose_components(ref, (6, 3, 1)) == choose_components(ref, (1, 3, 6))


def test_choose_components__nothing_to_choose_from():
    with pytest.raises(BadInput, match="at least one"):
        choose_components(clusters(3, "cosine"), ())
    with pytest.raises(BadInput):
        choose_components(clusters(3, "cosine", n=12), (9,))
