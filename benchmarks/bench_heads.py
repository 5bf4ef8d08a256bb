"""Time of all one-vs-one heads of one member, compared with scikit-learn's logistic regression for each head."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from _table import best_of, show

from nescio.arrays.parallel import one_blas_thread
from nescio.heads import OneVsOne, fit_heads

CLASSES, ROWS, D, TESTS = 100, 500, 512, 2_000  # ROWS per class: a head is trained on twice as many
SAMPLE = 40  # number of heads on which the peer is timed
LIMITS, TARGETS = {"float32": 2e-3, "float64": 1e-4}, {"float32": 20.0, "float64": 7.0}


def network(rng: Any, y: Any) -> Any:
    """Embeddings like pooled features: few latent dimensions, a falling spectrum, no negative values, a large mean."""
    latent = 64
    spectrum = np.arange(1, latent + 1) ** -0.7
    causes = (0.5 * rng.normal(size=(CLASSES, latent))[y] + rng.normal(size=(len(y), latent))) * spectrum
    mixing, total = rng.normal(size=(latent, D)), 0.0
    for _ in range(4):
        latents = causes + 0.3 * spectrum * rng.normal(size=causes.shape)
        total = total + np.maximum(latents @ mixing + 0.3 * rng.normal(size=(len(y), D)), 0)
    return (total / 4).astype(np.float32)


def clusters(rng: Any, y: Any) -> Any:
    """Spherical clusters: the easiest case for an optimiser without a preconditioner."""
    centres = 4 * rng.normal(size=(CLASSES, D)) / D**0.5
    return (centres[y] + rng.normal(size=(len(y), D))).astype(np.float32)


def probabilities(weights: Any, intercepts: Any, x: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * (x.astype(np.float64) @ weights.T + intercepts)))


def peer(x: Any, y: Any, pairs: Any, tests: Any) -> tuple[float, Any]:
    """Mean seconds per head, each the minimum of two runs, and the heads' probabilities for the tests."""
    from sklearn.linear_model import LogisticRegression

    total, probabilities_of_heads = 0.0, []
    with one_blas_thread():
        for i, j in pairs:
            rows = np.isin(y, (i, j))
            pair_rows, is_first = x[rows], y[rows] == i
            seconds, head = best_of(lambda: LogisticRegression(tol=1e-8, max_iter=100_000).fit(pair_rows, is_first), 2)  # noqa: B023
            total += seconds
            probabilities_of_heads.append(head.predict_proba(tests)[:, 1])
    return total / len(pairs), np.stack(probabilities_of_heads, 1)


def optimum(x: Any, is_first: Any) -> Any:
    """Weights and intercept by Newton's method, to machine precision."""
    x, weights = np.column_stack([x, np.ones(len(x))]).astype(np.float64), np.zeros(x.shape[1] + 1)
    penalty = np.append(np.ones(x.shape[1] - 1), 0.0)

    def loss(weights: Any) -> float:
        logit = x @ weights
        return float(np.logaddexp(0, logit).sum() - is_first @ logit + (penalty * weights**2).sum() / 2)

    for _ in range(100):
        p = 0.5 * (1 + np.tanh(x @ weights / 2))
        gradient = x.T @ (p - is_first) + penalty * weights
        step = np.linalg.solve((x.T * (p * (1 - p))) @ x + np.diag(penalty), gradient)
        if np.abs(gradient).max() < 1e-9:
            return weights
        share = 1.0
        while share > 1e-4 and loss(weights - share * step) > loss(weights):
            share /= 2
        weights = weights - share * step
    raise AssertionError("Newton's method did not converge.")


def on_gpu(x: Any, y: Any, precision: str) -> tuple[float, OneVsOne] | None:
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    device_rows = torch.as_tensor(x, device="cuda")

    def fit() -> OneVsOne:
        (heads,) = fit_heads([device_rows], y, precision=precision)
        assert isinstance(heads, OneVsOne)
        return OneVsOne(heads.classes, heads.pairs, heads.weights.cpu().numpy(), heads.intercepts.cpu().numpy())

    fit()
    return best_of(fit)


def run() -> list[dict[str, Any]]:
    rows = []
    for make in (network, clusters):
        rng = np.random.default_rng(0)
        y = np.concatenate([np.repeat(np.arange(CLASSES), ROWS), rng.integers(CLASSES, size=TESTS)])
        x = make(rng, y)
        x, y, tests = x[:-TESTS], y[:-TESTS], x[-TESTS:]
        pairs = np.stack(np.triu_indices(CLASSES, 1), 1)
        sample = np.sort(rng.choice(len(pairs), SAMPLE, replace=False))
        problems = [(np.isin(y, pair), y == pair[0]) for pair in pairs[sample]]
        optima = np.stack([optimum(x[rows], first[rows]) for rows, first in problems])
        exact_p = probabilities(optima[:, :-1], optima[:, -1], tests)
        # In float32 the peer stops before convergence, so both are compared with its float64 version.
        peers = {p: peer(x.astype(p), y, pairs[sample], tests.astype(p)) for p in LIMITS}
        peer_seconds = peers["float64"][0] * len(pairs)
        for precision, limit in LIMITS.items():
            solvers = {"two cores": best_of(lambda x=x, y=y, p=precision: fit_heads([x], y, precision=p)[0])}
            if (gpu := on_gpu(x, y, precision)) is not None:
                solvers["GPU"] = gpu
            seconds_per_head, peer_p = peers[precision]
            for device, (seconds, heads) in solvers.items():
                error = np.abs(probabilities(heads.weights[sample], heads.intercepts[sample], tests) - exact_p).max()
                assert error < limit, (make.__name__, precision, device, error)
                rows.append(
                    {
                        "work": f"{len(pairs):,} heads, {2 * ROWS:,} × {D}, {make.__name__}, {precision}, {device}",
                        "peer": f"scikit-learn, float64, BLAS at 1, tol 1e-8 ({SAMPLE} heads, scaled)",
                        "peer_s": peer_seconds,
                        "ours_s": seconds,
                        "ratio": peer_seconds / seconds,
                        "target": TARGETS[precision],
                        "note": f"off the optimum by ≤ {error:.0e} in probability; scikit-learn in {precision}: "
                        f"{seconds_per_head * len(pairs):.0f} s, off by {np.abs(peer_p - exact_p).max():.0e}",
                    }
                )
    return rows


if __name__ == "__main__":
    start = time.perf_counter()
    show(run())
    print(f"{time.perf_counter() - start:.0f} s")
