"""Time of mixtures and von Mises–Fisher constants, compared with SciPy's distributions and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from _table import best_of, show

from nescio import Predictions
from nescio.arrays.parallel import one_blas_thread
from nescio.distributions import von_mises_fisher
from nescio.measures import gaussian_mixture, gmm, mixtures, vmf_mixture

COMPONENTS = 20
STEPS = 10  # of EM: the ratio does not depend on it
TIMES = 15  # what is shown is a difference of two times
SPHERE, PLANE, TESTS = (5_000, 512), (20_000, 64), 4_000  # rows and features
CONSTANTS = 200_000


def clusters(n: int, d: int, noise: float) -> np.ndarray:
    """Overlapping clusters, so that EM does not converge at once."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(COMPONENTS, d)) / np.sqrt(d)
    return (centres[rng.integers(COMPONENTS, size=n)] + noise * rng.normal(size=(n, d))).astype(np.float32)


def at_its_fastest(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """A peer's minimum seconds with default BLAS threads or with one, which is faster on a busy machine."""
    usual, result = best_of(work, repeats)
    with one_blas_thread():
        single, _ = best_of(work, repeats)
    return min(usual, single), result


def start(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The initial means of vmf_mixture, so that both fits take the same steps."""
    first = vmf_mixture(Predictions(embeddings=x), COMPONENTS, iterations=0)
    return first.means, first.kappa, first.weights


def inverse_by_root(r: float, d: int) -> float:
    from scipy.optimize import brentq
    from scipy.special import ive

    guess = r * (d - r**2) / (1 - r**2)
    return float(brentq(lambda k: ive(d / 2, k) / ive(d / 2 - 1, k) - r, 0.8 * guess, 1.2 * guess, xtol=1e-10))


def scipy_mixture(x: np.ndarray, steps: int) -> tuple[float, float]:
    """Run EM with scipy.stats.vonmises_fisher and a root finder for κ; return seconds and mean log-likelihood."""
    from scipy.special import logsumexp
    from scipy.stats import vonmises_fisher

    means, kappa, weights = start(x)
    unit = x / np.linalg.norm(x.astype(np.float64), axis=1)[:, None]

    def fit() -> float:
        mu, k, w = means, kappa, weights
        likelihood = 0.0
        for step in range(steps):
            log_joint = np.stack([vonmises_fisher(m, c).logpdf(unit) for m, c in zip(mu, k, strict=True)], 1) + np.log(
                w
            )
            total = logsumexp(log_joint, axis=1)
            likelihood = total.mean()
            if step == steps - 1:
                break
            shares = np.exp(log_joint - total[:, None])
            sums, counts = shares.T @ unit, shares.sum(0)
            length = np.linalg.norm(sums, axis=1)
            mu, w = sums / length[:, None], counts / counts.sum()
            k = np.array([inverse_by_root(r, x.shape[1]) for r in length / counts])
        return float(likelihood)

    return at_its_fastest(fit, 1)


def vectorised_mixture(x: np.ndarray, steps: int) -> tuple[float, float]:
    """Run EM with one matrix product for all components, log C by `ive`, and the default BLAS threads."""
    from scipy.special import ive, logsumexp

    means, kappa, weights = start(x)
    d = x.shape[1]
    unit = x / np.linalg.norm(x.astype(np.float64), axis=1)[:, None]

    def fit() -> float:
        mu, k, w = means, kappa, weights
        likelihood = 0.0
        for step in range(steps):
            log_c = (d / 2 - 1) * np.log(k) - d / 2 * np.log(2 * np.pi) - np.log(ive(d / 2 - 1, k)) - k
            log_joint = unit @ (k[:, None] * mu).T + log_c + np.log(w)
            total = logsumexp(log_joint, axis=1)
            likelihood = total.mean()
            if step == steps - 1:
                break
            shares = np.exp(log_joint - total[:, None])
            sums, counts = shares.T @ unit, shares.sum(0)
            length = np.linalg.norm(sums, axis=1)
            mu, w = sums / length[:, None], counts / counts.sum()
            k = np.array([inverse_by_root(r, d) for r in length / counts])
        return float(likelihood)

    return at_its_fastest(fit, 2)


def sphere() -> list[dict[str, Any]]:
    x = clusters(*SPHERE, 0.2)
    predictions = Predictions(embeddings=x)
    total_seconds, model = best_of(lambda: vmf_mixture(predictions, COMPONENTS, iterations=STEPS, tolerance=0), TIMES)
    seeding, _ = best_of(lambda: vmf_mixture(predictions, COMPONENTS, iterations=0), TIMES)
    our_seconds = total_seconds - seeding
    rows = []
    for peer, run_peer in (("scipy.stats EM", scipy_mixture), ("NumPy EM, one product", vectorised_mixture)):
        seconds, likelihood = run_peer(x, STEPS)
        assert abs(likelihood - model.log_likelihoods[-1]) < 1e-7 * abs(likelihood)
        rows.append(
            {
                "work": f"vMF mixture, {COMPONENTS} × {SPHERE[0]:,} × {SPHERE[1]}, {STEPS} steps of EM",
                "peer": peer,
                "peer_s": seconds,
                "ours_s": our_seconds,
                "ratio": seconds / our_seconds,
                "target": 10.0 if peer.startswith("scipy") else None,
                "note": f"same start, same likelihood; first clustering {seeding:.2f} s apart",
            }
        )
    return rows


def constants() -> list[dict[str, Any]]:
    from scipy.special import ive

    d, kappa = 512, np.random.default_rng(0).uniform(50, 1000, CONSTANTS)
    v = d / 2 - 1
    peer_c, exact_c = best_of(lambda: v * np.log(kappa) - d / 2 * np.log(2 * np.pi) - np.log(ive(v, kappa)) - kappa, 1)
    peer_a, exact_a = best_of(lambda: ive(v + 1, kappa) / ive(v, kappa), 1)
    ours_c, log_c = best_of(lambda: von_mises_fisher.log_normalizer(kappa, d))
    ours_a, ratio = best_of(lambda: von_mises_fisher.mean_resultant(kappa, d))
    np.testing.assert_allclose(log_c, exact_c, rtol=1e-11, atol=1e-9)
    np.testing.assert_allclose(ratio, exact_a, rtol=1e-9)
    return [
        {
            "work": f"{name}, d {d}, {CONSTANTS:,} values",
            "peer": "scipy.special.ive",
            "peer_s": peer,
            "ours_s": our_seconds,
            "ratio": peer / our_seconds,
            "note": f"{CONSTANTS / 1e6 / our_seconds:.0f} M values/s; ive is 0 at κ ≤ 12 here",
        }
        for name, peer, our_seconds in (("log C", peer_c, ours_c), ("A", peer_a, ours_a))
    ]


def gaussians() -> list[dict[str, Any]]:
    from sklearn.mixture import GaussianMixture

    x = clusters(*PLANE, 0.3)
    predictions = Predictions(embeddings=x)
    our_seconds, model = best_of(lambda: gaussian_mixture(predictions, COMPONENTS, iterations=STEPS, tolerance=0), 2)
    start_model = gaussian_mixture(predictions, COMPONENTS, iterations=0)
    precisions = np.stack([w.T @ w for w in start_model.whiteners])
    peer = GaussianMixture(
        COMPONENTS,
        max_iter=STEPS,
        init_params="random",
        tol=0,
        weights_init=start_model.weights,
        means_init=start_model.means,
        precisions_init=precisions,
        reg_covar=mixtures.FLOOR * float(x.var(0).mean()),
    )
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds, _ = at_its_fastest(lambda: peer.fit(x.astype(np.float64)), 1)
    np.testing.assert_allclose(model(predictions), -peer.score_samples(x), atol=1e-3)
    rows = [
        {
            "work": f"Gaussian mixture, {COMPONENTS} × {PLANE[0]:,} × {PLANE[1]}, {STEPS} steps of EM",
            "peer": "scikit-learn",
            "peer_s": seconds,
            "ours_s": our_seconds,
            "ratio": seconds / our_seconds,
            "note": "same start and steps; ours with its first clustering",
        }
    ]
    labels = np.arange(len(x)) % 10
    fitted = gmm(Predictions(embeddings=x, labels=labels))
    our_seconds, u = best_of(lambda: fitted(predictions))
    seconds, peer_u = at_its_fastest(lambda: scipy_gmm(x, labels), 2)
    np.testing.assert_allclose(u, peer_u, rtol=1e-9)
    rows.append(
        {
            "work": f"gmm, 10 classes, {PLANE[0]:,} × {PLANE[1]}, scoring",
            "peer": "scipy.stats.multivariate_normal",
            "peer_s": seconds,
            "ours_s": our_seconds,
            "ratio": seconds / our_seconds,
            "note": "same values",
        }
    )
    return rows


def few_rows() -> list[dict[str, Any]]:
    """Time gmm on classes with far fewer rows than features, as on a scorecard of a network."""
    x, labels, jitter = clusters(760, 512, 0.3), np.arange(760) % 38, 1e-3
    train, unlabelled_test = Predictions(embeddings=x, labels=labels), Predictions(embeddings=clusters(TESTS, 512, 0.4))
    our_seconds, u = best_of(lambda: gmm(train, jitter=jitter)(unlabelled_test))
    seconds, peer_u = at_its_fastest(lambda: scipy_gmm(x, labels, unlabelled_test.embeddings, jitter), 1)
    np.testing.assert_allclose(u, peer_u, rtol=1e-9)
    return [
        {
            "work": f"gmm, 38 classes of 20 rows, d 512, fitting and scoring {TESTS:,} rows",
            "peer": "scipy.stats.multivariate_normal",
            "peer_s": seconds,
            "ours_s": our_seconds,
            "ratio": seconds / our_seconds,
            "note": "same values",
        }
    ]


def scipy_gmm(x: np.ndarray, labels: np.ndarray, test: Any = None, jitter: float = 0.0) -> np.ndarray:
    from scipy.special import logsumexp
    from scipy.stats import multivariate_normal

    x = x.astype(np.float64)
    test = x if test is None else test
    log_joint = []
    for c in np.unique(labels):
        class_rows = x[labels == c]
        normal = multivariate_normal(class_rows.mean(0), np.cov(class_rows.T) + jitter * np.eye(x.shape[1]))
        log_joint.append(np.log(len(class_rows) / len(x)) + normal.logpdf(test))
    return -logsumexp(log_joint, axis=0)


def run() -> list[dict[str, Any]]:
    return [*sphere(), *constants(), *gaussians(), *few_rows()]


if __name__ == "__main__":
    show(run())
