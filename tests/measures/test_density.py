"""Densities of embeddings: five-line definitions, closed forms, stored values, and the cases that break others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import kendalltau, multivariate_normal

from nescio import BadInput, Predictions, Undefined
from nescio.arrays.parallel import one_blas_thread, threads, use_one_thread
from nescio.distributions import von_mises_fisher
from nescio.measures import _density, choose_components, gaussian_mixture, gmm, mahalanobis, registry, vmf_mixture
from tests.support.reference import load, note

FITTED = (gmm, mahalanobis, gaussian_mixture, vmf_mixture)


def dump(embeddings, labels=None, **more):
    return Predictions(embeddings=embeddings, labels=labels, **more)


def blobs(seed=0, n=120, d=4, classes=3, spread=1.0):
    """Rows around random centres, each class with a covariance of its own."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % classes)
    centres, shapes = 4 * rng.normal(size=(classes, d)), spread * rng.normal(size=(classes, d, d)) / d**0.5
    return centres[labels] + np.einsum("nij,nj->ni", shapes[labels], rng.normal(size=(n, d))), labels


def plain_gmm(train, labels, test, priors=True):
    parts = []
    for c in np.unique(labels):
        rows = train[labels == c]
        share = len(rows) / len(train) if priors else 1 / len(np.unique(labels))
        parts.append(np.log(share) + multivariate_normal(rows.mean(0), np.cov(rows.T)).logpdf(test))
    return -logsumexp(parts, axis=0)


def plain_mahalanobis(train, labels, test):
    means = np.stack([train[labels == c].mean(0) for c in np.unique(labels)])
    away = train - means[np.searchsorted(np.unique(labels), labels)]
    inverse = np.linalg.inv(away.T @ away / len(train))
    return np.array([min((x - m) @ inverse @ (x - m) for m in means) for x in test])


# ---- gmm


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_gmm_is_its_definition(seed, d, classes, priors):
    x, labels = blobs(seed, 60, d, classes)
    x = np.concatenate([x, x[labels == 0]])  # class 0 twice as often: the shares differ
    labels = np.concatenate([labels, labels[labels == 0]]) * 7 - 3  # any whole numbers name classes
    test = 3 * np.random.default_rng(seed).normal(size=(20, d))
    u = gmm(dump(x, labels), priors=priors)(dump(test))
    np.testing.assert_allclose(u, plain_gmm(x, labels, test, priors), rtol=1e-7)


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


def test_gmm_leaves_untaught_rows_out():
    x, labels = blobs()
    in_distribution = np.arange(len(x)) % 5 > 0
    everything = dump(x, np.where(in_distribution, labels, 99), in_distribution=in_distribution)
    only = dump(x[in_distribution], labels[in_distribution])
    for fitted in (gmm, mahalanobis):
        np.testing.assert_array_equal(fitted(everything)(dump(x)), fitted(only)(dump(x)))


def test_gmm_of_a_class_with_one_row_takes_the_pooled_covariance():
    x, labels = blobs(classes=2)
    lonely = np.full((1, 4), 30.0)
    fitted = gmm(dump(np.concatenate([x, lonely]), np.append(labels, 2)))
    groups = [x[labels == c] for c in (0, 1)]
    pooled = sum((len(g) - 1) * np.cov(g.T) for g in groups) / sum(len(g) - 1 for g in groups)
    near = lonely + 0.1
    expected = np.log(1 / 121) + multivariate_normal(lonely[0], pooled).logpdf(near)
    np.testing.assert_allclose(fitted(dump(near)), -expected, rtol=1e-6)
    with pytest.raises(BadInput, match="one row only"):
        gmm(dump(x[:3], [0, 1, 2]))


@pytest.mark.parametrize("fit", [gmm, mahalanobis])
def test_singular_covariances_get_jitter_and_still_rank(fit):
    x, labels = blobs(n=200, d=6)
    dead = np.concatenate([x, np.zeros((200, 2)), x[:, :1] + x[:, 1:2]], axis=1)  # constant and dependent features
    test = np.concatenate([dead[:50], 100 * np.random.default_rng(1).normal(size=(50, 9))])
    u = fit(dump(dead, labels))(dump(test))
    assert np.isfinite(u).all()
    assert u[:50].max() < u[50:].min()


@pytest.mark.parametrize("fit", [gmm, mahalanobis])
def test_fewer_rows_than_features(fit):
    x, labels = blobs(n=30, d=50, classes=3)
    u = fit(dump(x, labels))(dump(np.concatenate([x, 50 + x])))
    assert np.isfinite(u).all() and u[:30].max() < u[30:].min()


@pytest.mark.parametrize("count", [2, 3, 11, 12, 13, 14, 23, 24, 25, 30])
def test_gmm_of_few_rows_is_the_plain_one(count):
    """By axes or by d × d, and for rows that were fitted, lie between those, or are new."""
    rng, d = np.random.default_rng(count), 24
    labels = np.repeat(np.arange(3), [count, 2, 60])  # with classes of very few and of enough rows
    x = rng.normal(size=(3, d))[labels] + rng.normal(size=(len(labels), d)) * rng.uniform(0.1, 3, d)
    test = np.concatenate([x, 3 * rng.normal(size=(20, d)), 0.7 * x[:1] + 0.3 * x[1:2]])
    fitted = gmm(dump(x, labels), jitter=0.01)
    assert [isinstance(each, _density.Axes) for each in fitted.whiteners] == [2 * count <= d, True, False]
    parts = []
    for c in range(3):
        rows = x[labels == c]
        normal = multivariate_normal(rows.mean(0), np.cov(rows.T) + 0.01 * np.eye(d))
        parts.append(np.log(len(rows) / len(x)) + normal.logpdf(test))
    np.testing.assert_allclose(fitted(dump(test)), -logsumexp(parts, axis=0), rtol=1e-8)


@pytest.mark.parametrize("fit", [gmm, mahalanobis])
def test_embeddings_that_do_not_vary_end(fit):
    """However their variance is rounded, below zero too."""
    for value in (0.1, 1e3, -7.7e-5):
        same = dump(np.full((60, 4), value, np.float32), np.arange(60) % 3)
        assert np.isfinite(fit(same)(same)).all()
    whitener = _density._whiteners([-5e-18 * np.eye(3)], 0.0)[0]
    assert np.isfinite(whitener).all()


def needed_jitter(covariances):
    """The rule by the letter: tenfold from 1e-12 of the mean variance, until every pivot stands out of its rounding."""
    d, jitter = len(covariances[0]), 1e-12 * np.mean([np.trace(each) / len(each) for each in covariances])
    while True:
        try:
            factors = [np.linalg.cholesky(each + jitter * np.eye(d)) for each in covariances]
            variances = [np.diagonal(each) + jitter for each in covariances]
            if all((np.diag(f) ** 2 > d * 2.0**-52 * v).all() for f, v in zip(factors, variances, strict=True)):
                return jitter
        except np.linalg.LinAlgError:
            pass
        jitter *= 10


@pytest.mark.parametrize("spread", [0.0, 0.7, 3.0])
@one_blas_thread()
def test_gmm_of_few_rows_takes_the_jitter_that_the_pivots_ask_for(spread):
    """Also where features or classes of very different variance make it a close call."""
    steps = set()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        d, classes = int(rng.integers(40, 160)), int(rng.integers(1, 9))
        labels = np.repeat(np.arange(classes), rng.integers(2, 20))
        scales = np.exp(spread * rng.normal(size=d)) * np.exp(2 * rng.normal(size=(classes, 1)))
        x = rng.normal(size=(len(labels), d)) * scales[labels]
        covariances = [np.cov(x[labels == c].T) for c in range(classes)]
        wanted = needed_jitter(covariances)
        assert all(each.rest == pytest.approx(wanted, rel=1e-6) for each in gmm(dump(x, labels)).whiteners)
        steps.add(round(np.log10(wanted / np.mean([np.diag(each).mean() for each in covariances]))))
    assert len(steps) > 1 or spread == 0  # it is not always the first


def test_gmm_of_few_rows_is_exact():
    """Σ + 1e-12·I of the mean variance is as good as singular: d × d in double precision keeps four digits of it."""
    from mpmath import mp, mpf

    rng, d, n = np.random.default_rng(0), 16, 6
    x = rng.normal(size=(n, d)) * np.exp(rng.normal(size=d))
    test = np.concatenate([3 * rng.normal(size=(3, d)), x[:2], x[:1] + 1e-5 * rng.normal(size=(1, d))])
    fitted = gmm(dump(x, np.zeros(n, int)))
    with mp.workdps(60):
        rows = mp.matrix(x.tolist())
        mean = [mp.fsum(rows[:, k]) / n for k in range(d)]
        away = mp.matrix(n, d)
        for i in range(n):
            for k in range(d):
                away[i, k] = rows[i, k] - mean[k]
        covariance = away.T * away / (n - 1) + mpf(fitted.whiteners[0].rest) * mp.eye(d)
        log_det = mp.log(mp.det(covariance))
        exact = []
        for row in test:
            a = mp.matrix([mpf(float(value)) - mean[k] for k, value in enumerate(row)])
            square = (a.T * mp.lu_solve(covariance, a))[0]
            exact.append(float((square + log_det + d * mp.log(2 * mp.pi)) / 2))
    np.testing.assert_allclose(fitted(dump(test)), exact, rtol=1e-9)


def test_gmm_covariances_of_different_scales_are_left_alone():
    """Features of scales 1e-9 and 1e9 are not singular: no jitter, and u only shifts by a constant."""
    x, labels = blobs(d=3)
    scale = np.array([1e-9, 1.0, 1e9])
    plain, scaled = gmm(dump(x, labels))(dump(x)), gmm(dump(x * scale, labels))(dump(x * scale))
    np.testing.assert_allclose(scaled - plain, np.log(scale).sum(), atol=1e-6)


# ---- mahalanobis


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4))
def test_mahalanobis_is_its_definition(seed, d, classes):
    x, labels = blobs(seed, 60, d, classes)
    test = 3 * np.random.default_rng(seed).normal(size=(20, d))
    np.testing.assert_allclose(mahalanobis(dump(x, labels))(dump(test)), plain_mahalanobis(x, labels, test), rtol=1e-6)


def test_mahalanobis_does_not_depend_on_the_coordinates():
    x, labels = blobs()
    turn, shift = np.random.default_rng(3).normal(size=(4, 4)), np.full(4, 1e3)
    u = mahalanobis(dump(x, labels))(dump(x))
    moved = mahalanobis(dump(x @ turn + shift, labels))(dump(x @ turn + shift))
    np.testing.assert_allclose(moved, u, rtol=1e-6)
    assert u.mean() == pytest.approx(4, rel=0.1)  # a chi-square with d degrees of freedom


# ---- Gaussian mixture


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


def test_stored_euclidean_likelihoods_are_degenerate_and_ours_are_not():
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


# ---- von Mises–Fisher mixture


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


def test_vmf_mixture_is_better_than_with_the_usual_concentration():
    """The last step's κ maximises: moving any κ lowers the likelihood of the rows."""
    x, _ = directions(kappa=5.0)
    fitted = vmf_mixture(dump(x), components=3, tolerance=1e-13, iterations=2000)
    best = -fitted(dump(x)).mean()
    for k in range(3):
        for factor in (0.98, 1.02):
            kappa = fitted.kappa.copy()
            kappa[k] *= factor
            assert -_density.SphereDensity(fitted.means, kappa, fitted.weights)(dump(x)).mean() < best


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


def test_stored_cosine_likelihoods_are_ours_up_to_the_measure_of_the_sphere():
    stored = load("repreli_scores")
    log_area = note("repreli_scores")["cross_check"][
        "LL repo minus exact Lebesgue logpdf: mean,std,min,max, log sphere area"
    ][4]
    assert log_area == pytest.approx(-von_mises_fisher.log_normalizer(0.0, 64), rel=1e-12)
    theirs = np.stack([stored[f"cosine_LL_m{m}"] for m in range(5)])
    np.testing.assert_allclose(stored["cosine_ens-LL"], theirs.mean(0))
    for m in range(5):
        means, kappa, weights = (stored[f"movmf_{name}"][m] for name in ("centers", "kappa", "weights"))
        exact = -_density.SphereDensity(means, kappa, weights)(dump(stored["test"][m]))
        np.testing.assert_allclose(exact, stored["x_movmf_exact_logpdf"][m], rtol=1e-12)
        # Theirs is the density relative to the uniform one, with an approximate normaliser.
        np.testing.assert_allclose(theirs[m] - exact, log_area, atol=0.07)
        assert kendalltau(theirs[m], exact).statistic > 0.997
        # A mixture depends on its start: two of ours agree at τ ≈ 0.4 with each other, and as much with theirs, and
        # describe the reference equally well.
        ref = dump(stored["ref"][m])
        ours = vmf_mixture(ref)
        assert ours(ref).mean() < _density.SphereDensity(means, kappa, weights)(ref).mean() + 0.5
        assert kendalltau(-theirs[m], ours(dump(stored["test"][m]))).statistic > 0.3


# ---- all of them


def fit_all(x, labels):
    ref = dump(x, labels)
    return {
        "gmm": gmm(ref),
        "mahalanobis": mahalanobis(ref),
        "gaussian_mixture": gaussian_mixture(ref, 5),
        "vmf_mixture": vmf_mixture(ref, 5),
    }


@pytest.mark.parametrize("name", ["gmm", "mahalanobis", "gaussian_mixture", "vmf_mixture"])
def test_every_density_is_registered_and_ranks_noise_above_the_data(name):
    assert registry[name].kind == "fitted" and "embeddings" in registry[name].needs
    x, labels = blobs(n=300, d=6, spread=0.3)
    fitted = fit_all(x, labels)[name]
    noise = 10 * np.random.default_rng(9).normal(size=(100, 6))
    new, out = fitted(dump(x[:100])), fitted(dump(noise))
    assert new.shape == (100,) and new.dtype == np.float64
    assert np.median(out) > np.quantile(new, 0.95)
    order = np.random.default_rng(0).permutation(100)
    np.testing.assert_allclose(fitted(dump(x[:100][order])), new[order], rtol=1e-12)


def test_blocks_threads_and_storage_change_nothing(monkeypatch):
    x, labels = blobs(n=400, d=6)
    x = x.astype(np.float16)
    usual = {name: fitted(dump(x)) for name, fitted in fit_all(x, labels).items()}
    monkeypatch.setattr(_density, "LEAST_ROWS", 1)
    monkeypatch.setattr(_density, "BLOCK_BYTES", 8 * 6 * 33)  # 33 rows at a time …
    monkeypatch.setattr(_density, "KEEP_BYTES", 0)  # … converted again in every pass …
    monkeypatch.setenv("NESCIO_THREADS", "3")  # … by three threads, from double precision
    for name, fitted in fit_all(x.astype(np.float64), labels).items():
        np.testing.assert_allclose(fitted(dump(x.astype(np.float32))), usual[name], rtol=1e-7, err_msg=name)


def test_the_first_clustering_may_look_at_a_sample(monkeypatch):
    x, _ = directions()
    monkeypatch.setattr(_density, "SEED_ROWS", 100)
    fitted = vmf_mixture(dump(x), components=4)
    np.testing.assert_allclose(fitted.weights, 0.25, atol=0.05)
    assert gaussian_mixture(dump(x), components=4)(dump(x)).shape == (400,)


@pytest.mark.parametrize("fit", [gaussian_mixture, vmf_mixture])
def test_a_seed_decides_everything(fit):
    x, _ = directions(kappa=2.0)
    one, again, other = (fit(dump(x), 6, seed)(dump(x)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)


@pytest.mark.parametrize("fit", [gaussian_mixture, vmf_mixture])
def test_as_many_components_as_rows(fit):
    x = np.random.default_rng(0).normal(size=(5, 3))
    assert np.isfinite(fit(dump(x), 5)(dump(x))).all()
    assert np.isfinite(fit(dump(np.ones((4, 3))), 3)(dump(x))).all()


@pytest.mark.parametrize("fit", FITTED)
def test_absent_fields_are_undefined(fit):
    x, labels = blobs()
    with pytest.raises(Undefined, match="no embeddings"):
        fit(Predictions(labels=labels))
    fitted = fit(dump(x, labels))
    with pytest.raises(Undefined, match="no embeddings"):
        fitted(Predictions(labels=labels))
    with pytest.raises(BadInput, match="embeddings has 3 features, the reference has 4"):
        fitted(dump(x[:, :3]))


@pytest.mark.parametrize("fit", [gmm, mahalanobis])
def test_class_conditional_measures_need_labels(fit):
    x, labels = blobs()
    with pytest.raises(Undefined, match="no labels"):
        fit(dump(x))
    with pytest.raises(Undefined, match="in_distribution = False"):
        fit(dump(x, labels, in_distribution=np.zeros(len(x), bool)))


@pytest.mark.parametrize("fit", [gaussian_mixture, vmf_mixture])
@pytest.mark.parametrize(("components", "words"), [(6, "needs as many rows; the reference has 5"), (0, "at least 1")])
def test_components_must_fit_the_rows(fit, components, words):
    with pytest.raises(BadInput, match=words):
        fit(dump(np.random.default_rng(0).normal(size=(5, 3))), components)


def test_zero_embeddings_have_no_direction():
    x, _ = directions(n=50)
    fitted = vmf_mixture(dump(x), 2)
    x[37] = 0
    with pytest.raises(BadInput, match="only zeros in row 37"):
        vmf_mixture(dump(x), 2)
    with pytest.raises(BadInput, match="only zeros in row 37"):
        fitted(dump(x))
    with pytest.raises(BadInput, match="one feature"):
        vmf_mixture(dump(x[:, :1]), 2)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_embeddings_whose_squares_overflow():
    x, labels = blobs()
    with pytest.raises(BadInput, match="overflow"):
        gmm(dump(x * 1e200, labels))


# ---- how many components


def clusters(count, metric, n=400, d=6, seed=0):
    """Rows around `count` orthogonal directions, or around the corners of a large simplex."""
    rng = np.random.default_rng(seed)
    centres = np.eye(d)[:count] * (1 if metric == "cosine" else 20)
    x = centres[np.arange(n) % count] + rng.normal(size=(n, d)) * (0.15 if metric == "cosine" else 1.0)
    return dump(x)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_the_number_of_clusters_is_found_by_held_out_likelihood(metric, count):
    ref = clusters(count, metric)
    choice = choose_components(ref, (12, 6, 3, 1), metric=metric)
    assert choice.components == count
    assert list(choice.log_likelihoods) == [1, 3, 6, 12]
    # the likelihood of the rows themselves goes on rising: it chooses nothing
    fit = vmf_mixture if metric == "cosine" else gaussian_mixture
    assert fit(ref, 12)(ref).mean() < fit(ref, count)(ref).mean()


def test_the_order_of_candidates_does_not_matter():
    ref = clusters(3, "cosine", n=200)
    assert choose_components(ref, (6, 3, 1)) == choose_components(ref, (1, 3, 6))


def test_nothing_to_choose_from():
    with pytest.raises(BadInput, match="name at least one"):
        choose_components(clusters(3, "cosine"), ())
    with pytest.raises(BadInput):
        choose_components(clusters(3, "cosine", n=12), (9,))


@pytest.mark.parametrize("d", [1, 5, 64, 65, 200])
def test_the_inverse_of_a_triangle(d):
    """Features of scales that differ by ten orders: back-substitution keeps the digits of every entry."""
    rng = np.random.default_rng(d)
    x = rng.normal(size=(3 * d, d)) * 10.0 ** rng.uniform(-5, 5, d)
    factor = np.linalg.cholesky(x.T @ x)
    inverse = _density._lower_inverse(factor)
    scale = np.sqrt(np.diagonal(x.T @ x))
    np.testing.assert_allclose((factor / scale[:, None]) @ (inverse * scale), np.eye(d), atol=1e-10)
    assert not np.triu(inverse, 1).any()


def test_little_work_starts_no_thread(monkeypatch):
    monkeypatch.setenv("NESCIO_THREADS", "3")
    with use_one_thread():
        assert threads() == 1
    assert threads() == 3
