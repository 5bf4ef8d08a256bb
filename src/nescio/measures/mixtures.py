"""Uncertainty as low density under a mixture without labels: Gaussian, or von Mises–Fisher on the sphere."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from nescio.arrays.parallel import map_on_threads, one_blas_thread
from nescio.arrays.types import Array
from nescio.distributions import von_mises_fisher
from nescio.errors import BadInput
from nescio.measures._spec import measure
from nescio.measures.covariances import mean_variance, whiteners_of
from nescio.measures.gaussians import GaussianDensity, log_weights
from nescio.measures.row_tools import (
    Embeddings,
    Fit,
    UnitRows,
    by_blocks,
    embeddings_of,
    float64_rows,
    log_sum_exp,
    row_blocks,
)
from nescio.predictions import Predictions
from nescio.progress import track

KEEP_BYTES = 1 << 28  # maximum bytes of float64 rows cached between the passes of a fit
FLOOR = 1e-6  # share of the mean variance that is added to every covariance against collapse
BORROWED = 2  # minimum rows per feature for a covariance; missing rows come from the pooled one
SEED_ROWS = 4096  # rows of the initial clustering
SEED_ROUNDS = 10
FOLDS = 3  # folds of cross-validation
CLOSEST = 1 - 1e-6  # maximum mean resultant length, so that repeated rows do not give an infinite concentration


@measure("fitted", needs=("embeddings",), example={"components": 4})
@one_blas_thread()
def gaussian_mixture(
    ref: Predictions, components: int = 20, seed: int = 0, *, iterations: int = 100, tolerance: float = 1e-4
) -> Fit:
    """Minus the log-density of a full-covariance Gaussian mixture fitted to the raw embeddings by EM.

    The covariance of a component with fewer than 2·d rows is shrunk towards the pooled covariance within components.
    That one is shrunk towards a sphere of the same variance if the reference has fewer rows. With enough rows
    this is maximum likelihood. The fit ends when the mean log-likelihood of a row changes by less than `tolerance`.
    Ardeshir & Azizan 2022; LL of the reliability paper (Euclidean).
    """
    embeddings = embeddings_of(ref, "gaussian_mixture")
    components = _whole_components(components, len(embeddings))
    rows = _Rows(embeddings)
    sample = _sample(rows, seed)
    centres, nearest = _cluster(sample, components, seed)
    counts = np.bincount(nearest, minlength=components)
    covariance = (sample - centres[nearest]).T @ (sample - centres[nearest])
    covariance = _shrink_covariance(covariance, len(sample), _sphere_of(covariance / len(sample)))
    whiteners = whiteners_of([covariance], FLOOR * mean_variance(covariance)) * components
    model = GaussianDensity(centres, whiteners, counts / counts.sum())
    for _ in track(range(iterations), "fitting a Gaussian mixture"):
        sums, likelihood = _gaussian_sums(model, rows)
        model.log_likelihoods.append(likelihood)
        if _converged(model.log_likelihoods, tolerance):
            break
        model = _gaussian_model(model, *sums)
    return model


@measure("fitted", needs=("embeddings",), example={"components": 4})
@one_blas_thread()
def vmf_mixture(
    ref: Predictions, components: int = 20, seed: int = 0, *, iterations: int = 200, tolerance: float = 1e-5
) -> Fit:
    """Minus the log-density, on the unit sphere, of a von Mises–Fisher mixture fitted to directions by EM.

    u = −log Σ_k w_k·C_d(κ_k)·exp(κ_k·μ_kᵀx), x = e/‖e‖, with respect to the sphere's surface measure. κ is the exact
    maximum-likelihood value at every step, so that the likelihood never falls (Banerjee et al. 2005 with A_d
    inverted to rounding error). The fit ends when the mean log-likelihood of a row rises by less than `tolerance`.
    LL of the reliability paper (cosine).
    """
    embeddings = embeddings_of(ref, "vmf_mixture")
    components = _whole_components(components, len(embeddings))
    if embeddings.shape[1] < 2:
        raise BadInput("embeddings has one feature; directions on a sphere need at least two.")
    rows = _Rows(UnitRows(embeddings))
    sample = _sample(rows, seed)
    _, nearest = _cluster(sample, components, seed, sphere=True)
    one_hot = np.eye(components)[nearest]
    model = _sphere_model(one_hot.T @ sample, one_hot.sum(0), [])

    def expect(number: int) -> tuple[Array, Array, float]:
        x = rows[number]
        belongs, total = _responsibilities(model.log_joint(x))
        return belongs.T @ x, belongs.sum(0), total

    for _ in track(range(iterations), "fitting a von Mises–Fisher mixture"):
        sums, counts, likelihoods = zip(*map_on_threads(expect, range(len(rows))), strict=True)
        model.log_likelihoods.append(sum(likelihoods) / len(embeddings))
        if _converged(model.log_likelihoods, tolerance):
            break
        model = _sphere_model(np.sum(sums, axis=0), np.sum(counts, axis=0), model.log_likelihoods)
    return model


@dataclass(frozen=True)
class ComponentChoice:
    """The chosen number of components, and the mean held-out log-likelihood of a row for every candidate."""

    components: int
    log_likelihoods: Mapping[int, float]


def choose_components(
    ref: Predictions, candidates: Sequence[int], seed: int = 0, *, metric: Literal["cosine", "euclidean"] = "cosine"
) -> ComponentChoice:
    """The fewest components whose held-out likelihood is within one standard error of the best, over FOLDS folds.

    Every reference row is scored by a mixture of the other folds: von Mises–Fisher for cosine, Gaussian for Euclidean.
    The standard error is that of the row-wise differences to the best.
    """
    if not candidates:
        raise BadInput("candidates is empty: give at least one number of components.")
    fit_mixture: Callable[..., Fit] = vmf_mixture if metric == "cosine" else gaussian_mixture
    n = len(embeddings_of(ref, "a mixture"))
    fold = np.random.default_rng(seed).permutation(n) % FOLDS
    held_out = {count: np.empty(n) for count in sorted(set(candidates))}
    for number in range(FOLDS):
        held_out_rows, training_rows = ref.take(fold == number), ref.take(fold != number)
        for count, values in held_out.items():
            values[fold == number] = -fit_mixture(training_rows, count, seed)(held_out_rows)
    means = {count: float(values.mean()) for count, values in held_out.items()}
    best_likelihoods = held_out[max(means, key=lambda count: means[count])]
    deficits = {count: best_likelihoods - values for count, values in held_out.items()}
    sufficient = [count for count, deficit in deficits.items() if deficit.mean() <= deficit.std() / math.sqrt(n)]
    return ComponentChoice(sufficient[0], means)


@dataclass(frozen=True, eq=False)
class SphereDensity:
    """u = −log Σ_k w_k·vMF(x; μ_k, κ_k) of directions x: means (k, d) of unit length, kappa (k,), weights (k,)."""

    means: Array
    kappa: Array
    weights: Array
    log_likelihoods: list[float] = field(default_factory=list)  # mean per row, before every step of the fit

    def __post_init__(self) -> None:
        constants = von_mises_fisher.log_normalizer(self.kappa, self.means.shape[1]) + log_weights(self.weights)
        object.__setattr__(self, "_constants", constants)
        object.__setattr__(self, "_pull", self.kappa[:, None] * self.means)

    def __call__(self, predictions: Predictions) -> Array:
        d = self.means.shape[1]
        return by_blocks(predictions, lambda x, _: -log_sum_exp(self.log_joint(x)), "vmf_mixture", d, unit=True)

    def log_joint(self, x: Array) -> Array:
        """log(w_k·vMF(x; μ_k, κ_k)) of unit rows x (n, d), as (n, k)."""
        joint: Array = (self._pull @ x.T).T  # type: ignore[attr-defined]  # faster than x @ pullᵀ, and so are its sums
        joint += self._constants  # type: ignore[attr-defined]
        return joint


def _sphere_model(sums: Array, counts: Array, history: list[float]) -> SphereDensity:
    """The maximum-likelihood mixture for the sum and the number of every component's rows."""
    length = np.linalg.norm(sums, axis=1)
    resultant = np.minimum(length / np.maximum(counts, np.finfo(float).tiny), CLOSEST)
    means = sums / np.maximum(length, np.finfo(float).tiny)[:, None]
    kappa = von_mises_fisher.inverse_mean_resultant(resultant, sums.shape[1])
    return SphereDensity(means, kappa, counts / counts.sum(), history)


def _gaussian_sums(model: GaussianDensity, rows: _Rows) -> tuple[tuple[Array, Array, Array], float]:
    """The number, sum and scatter of every component's rows about its mean, and the mean log-likelihood of a row."""
    components, d = model.means.shape
    counts, shifts = np.zeros(components), np.zeros((components, d))
    scatters, likelihood = np.zeros((components, d, d)), 0.0

    def gather(k: int) -> None:
        member_rows = np.flatnonzero(belongs[:, k] > np.finfo(float).eps)  # most rows belong to a single component
        weight = belongs[member_rows, k]
        differences = x[member_rows] - model.means[k]
        counts[k] += weight.sum()
        shifts[k] += weight @ differences
        differences *= np.sqrt(weight)[:, None]
        scatters[k] += differences.T @ differences

    for number in range(len(rows)):
        x = rows[number]
        joint = map_on_threads(partial(model.log_joint, x), range(components))
        belongs, total = _responsibilities(np.stack(joint, axis=1))
        likelihood += total
        map_on_threads(gather, range(components))
    return (counts, shifts, scatters), likelihood / rows.n


def _gaussian_model(model: GaussianDensity, counts: Array, shifts: Array, scatters: Array) -> GaussianDensity:
    """The maximum-likelihood mixture for these sums, which are overwritten."""
    components, n = len(counts), counts.sum()
    shifts /= np.maximum(counts, np.finfo(float).tiny)[:, None]
    for k in range(components):
        scatters[k] -= counts[k] * np.outer(shifts[k], shifts[k])
    pooled = scatters.sum(0)
    pooled = _shrink_covariance(pooled, n, _sphere_of(pooled / n))
    for k in range(components):
        scatters[k] = _shrink_covariance(scatters[k], counts[k], pooled)
    whiteners = whiteners_of([*scatters], FLOOR * mean_variance(pooled))
    return GaussianDensity(model.means + shifts, whiteners, counts / n, model.log_likelihoods)


def _shrink_covariance(scatter: Array, count: float, target: Array) -> Array:
    """The covariance of `count` rows, shrunk towards `target` as if it had BORROWED·d rows."""
    n_missing = max(0.0, BORROWED * len(scatter) - count)
    return np.asarray((scatter + n_missing * target) / (count + n_missing))


def _sphere_of(covariance: Array) -> Array:
    """A covariance with the same variance in every direction."""
    return np.asarray(np.eye(len(covariance)) * mean_variance(covariance))


def _converged(likelihoods: list[float], tolerance: float) -> bool:
    return len(likelihoods) > 1 and abs(likelihoods[-1] - likelihoods[-2]) < tolerance


# ---- a first clustering


def _sample(rows: _Rows, seed: int) -> Array:
    """At most SEED_ROWS rows, drawn without replacement."""
    if rows.n <= SEED_ROWS:
        return np.concatenate([rows[number] for number in range(len(rows))])
    return float64_rows(rows.embeddings, np.sort(np.random.default_rng(seed).choice(rows.n, SEED_ROWS, replace=False)))


def _cluster(x: Array, components: int, seed: int, sphere: bool = False) -> tuple[Array, Array]:
    """k-means from a greedy k-means++ start: centres (k, d) and the nearest of each row (n,).

    On the sphere ‖x − c‖² = 2 − 2·cos, so the same steps are spherical k-means once the centres are normalised.
    """
    rng = np.random.default_rng(seed)
    squares = np.einsum("nd,nd->n", x, x)

    def distances(centres: Array) -> Array:
        return np.asarray(np.maximum(squares[:, None] - 2 * (x @ centres.T) + (centres**2).sum(1), 0))

    chosen = [int(rng.integers(len(x)))]
    closest = distances(x[chosen])[:, 0]
    tries = 2 + int(math.log(components))
    while len(chosen) < components:
        total = closest.sum()
        if total > 0:
            candidates = np.searchsorted(np.cumsum(closest), rng.random(tries) * total).clip(max=len(x) - 1)
        else:  # fewer distinct rows than components
            candidates = rng.integers(len(x), size=1)
        new_squares = np.minimum(closest[:, None], distances(x[candidates]))
        best = int(np.argmin(new_squares.sum(0)))
        chosen.append(int(candidates[best]))
        closest = new_squares[:, best]
    centres = x[chosen]
    nearest = np.argmin(distances(centres), axis=1)
    for _ in range(SEED_ROUNDS):
        one_hot = np.eye(components)[nearest]
        counts = one_hot.sum(0)
        sums = one_hot.T @ x
        lengths = np.linalg.norm(sums, axis=1) if sphere else counts
        nonempty = (counts > 0) & (lengths > 0)
        centres = np.where(nonempty[:, None], sums / np.where(nonempty, lengths, 1)[:, None], centres)
        previous, nearest = nearest, np.argmin(distances(centres), axis=1)
        if np.array_equal(previous, nearest):
            break
    return centres, nearest


class _Rows:
    """Float64 row blocks of embeddings, cached between passes if they are small."""

    def __init__(self, embeddings: Embeddings) -> None:
        self.embeddings, self.n = embeddings, len(embeddings)
        self.parts = row_blocks(embeddings)
        self.loaded: list[Array] = []
        if 8 * math.prod(embeddings.shape) <= KEEP_BYTES:
            self.loaded = map_on_threads(partial(float64_rows, embeddings), self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, number: int) -> Array:
        return self.loaded[number] if self.loaded else float64_rows(self.embeddings, self.parts[number])


def _whole_components(components: int, n: int) -> int:
    if components < 1 or int(components) != components:
        raise BadInput(f"components is {components}; it must be a whole number of at least 1.")
    if components > n:
        raise BadInput(f"A mixture of {components} components needs at least {components} rows; the reference has {n}.")
    return int(components)


def _responsibilities(joint: Array) -> tuple[Array, float]:
    """Replace the log-joint by posterior shares of the components; return them and the summed log-likelihood."""
    total = log_sum_exp(joint)
    joint /= joint.sum(1)[:, None]
    return joint, float(total.sum())
