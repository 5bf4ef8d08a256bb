"""Distances to class means and densities of class Gaussians: definitions, closed forms, stored values, extremes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from nescio import BadInput, Predictions, Undefined
from nescio.arrays.parallel import one_blas_thread, thread_count, use_one_thread
from nescio.measures import (
    gaussian_mixture,
    gmm,
    mahalanobis,
    mixtures,
    registry,
    row_tools,
    vmf_mixture,
)
from nescio.measures.covariances import Axes

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


def fit_all(x, labels):
    ref = dump(x, labels)
    return {
        "gmm": gmm(ref),
        "mahalanobis": mahalanobis(ref),
        "gaussian_mixture": gaussian_mixture(ref, 5),
        "vmf_mixture": vmf_mixture(ref, 5),
    }


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_gmm_is_its_definition(seed, d, classes, priors):
    x, labels = blobs(seed, 60, d, classes)
    x = np.concatenate([x, x[labels == 0]])  # class 0 twice as often: the shares differ
    labels = np.concatenate([labels, labels[labels == 0]]) * 7 - 3  # any whole numbers name classes
    test = 3 * np.random.default_rng(seed).normal(size=(20, d))
    u = gmm(dump(x, labels), priors=priors)(dump(test))
    np.testing.assert_allclose(u, plain_gmm(x, labels, test, priors), rtol=1e-7)


def test_gaussians__gmm_leaves_untaught_rows_out():
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
    with pytest.raises(BadInput, match="one row"):
        gmm(dump(x[:3], [0, 1, 2]))


@pytest.mark.parametrize("fit", [gmm, mahalanobis])
def test_gaussians__singular_covariances_get_jitter_and_still_rank(fit):
    x, labels = blobs(n=200, d=6)
    dead = np.concatenate([x, np.zeros((200, 2)), x[:, :1] + x[:, 1:2]], axis=1)  # constant and dependent features
    test = np.concatenate([dead[:50], 100 * np.random.default_rng(1).normal(size=(50, 9))])
    u = fit(dump(dead, labels))(dump(test))
    assert np.isfinite(u).all()
    assert u[:50].max() < u[50:].min()


@pytest.mark.parametrize("fit", [gmm, mahalanobis])
def test_gaussians__fewer_rows_than_features(fit):
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
    assert [isinstance(each, Axes) for each in fitted.whiteners] == [2 * count <= d, True, False]
    parts = []
    for c in range(3):
        rows = x[labels == c]
        normal = multivariate_normal(rows.mean(0), np.cov(rows.T) + 0.01 * np.eye(d))
        parts.append(np.log(len(rows) / len(x)) + normal.logpdf(test))
    np.testing.assert_allclose(fitted(dump(test)), -logsumexp(parts, axis=0), rtol=1e-8)


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


@pytest.mark.parametrize("name", ["gmm", "mahalanobis", "gaussian_mixture", "vmf_mixture"])
def test_vmf_mixture__every_density_is_registered_and_ranks_noise_above_the_data(name):
    assert registry[name].kind == "fitted" and "embeddings" in registry[name].needs
    x, labels = blobs(n=300, d=6, spread=0.3)
    fitted = fit_all(x, labels)[name]
    noise = 10 * np.random.default_rng(9).normal(size=(100, 6))
    new, out = fitted(dump(x[:100])), fitted(dump(noise))
    assert new.shape == (100,) and new.dtype == np.float64
    assert np.median(out) > np.quantile(new, 0.95)
    order = np.random.default_rng(0).permutation(100)
    np.testing.assert_allclose(fitted(dump(x[:100][order])), new[order], rtol=1e-12)


def test_vmf_mixture__blocks_threads_and_storage_change_nothing(monkeypatch):
    x, labels = blobs(n=400, d=6)
    x = x.astype(np.float16)
    usual = {name: fitted(dump(x)) for name, fitted in fit_all(x, labels).items()}
    monkeypatch.setattr(row_tools, "MIN_BLOCK_ROWS", 1)
    monkeypatch.setattr(row_tools, "BLOCK_BYTES", 8 * 6 * 33)  # 33 rows at a time …
    monkeypatch.setattr(mixtures, "KEEP_BYTES", 0)  # … converted again in every pass …
    monkeypatch.setenv("NESCIO_THREADS", "3")  # … by three threads, from double precision
    for name, fitted in fit_all(x.astype(np.float64), labels).items():
        np.testing.assert_allclose(fitted(dump(x.astype(np.float32))), usual[name], rtol=1e-7, err_msg=name)


@pytest.mark.parametrize("fit", FITTED)
def test_gaussians__absent_fields_are_undefined(fit):
    x, labels = blobs()
    with pytest.raises(Undefined, match="no embeddings"):
        fit(Predictions(labels=labels))
    fitted = fit(dump(x, labels))
    with pytest.raises(Undefined, match="no embeddings"):
        fitted(Predictions(labels=labels))
    with pytest.raises(BadInput, match="embeddings has 3 features, the reference has 4"):
        fitted(dump(x[:, :3]))


@pytest.mark.parametrize("fit", [gmm, mahalanobis])
def test_gaussians__class_conditional_measures_need_labels(fit):
    x, labels = blobs()
    with pytest.raises(Undefined, match="no labels"):
        fit(dump(x))
    with pytest.raises(Undefined, match="in_distribution = False"):
        fit(dump(x, labels, in_distribution=np.zeros(len(x), bool)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gaussians__embeddings_whose_squares_overflow():
    x, labels = blobs()
    with pytest.raises(BadInput, match="overflow"):
        gmm(dump(x * 1e200, labels))


def test_gaussians__little_work_starts_no_thread(monkeypatch):
    monkeypatch.setenv("NESCIO_THREADS", "3")
    with use_one_thread():
        assert thread_count() == 1
    assert thread_count() == 3
