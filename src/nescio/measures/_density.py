"""Uncertainty as a low density of the embedding among those of a reference set.

Everything is computed in float64, since covariances square the condition of the data, and in row blocks, so that
memory grows with the model (components × d²) and not with the rows. Blocks, classes or components go to the threads;
BLAS stays at one, since its own threads wait for each other on products as narrow as these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from nescio.arrays.parallel import blocks, one_blas_thread, share, threads
from nescio.arrays.types import Array
from nescio.distributions import von_mises_fisher
from nescio.errors import BadInput, Undefined
from nescio.measures._spec import cached, measure
from nescio.predictions import Predictions
from nescio.progress import track

Fit = Callable[[Predictions], Array]
Item = TypeVar("Item")
Result = TypeVar("Result")
BLOCK_BYTES = 1 << 21  # float64 rows that a thread works on at once
LEAST_ROWS = 512  # … or so many, where they are wide: a product reads d × d numbers for every block
KEEP_BYTES = 1 << 28  # float64 rows kept between the passes of a fit; larger references are converted again
FIRST_JITTER = 1e-12  # of the mean variance, where a covariance cannot be factored without; then ten times more
FLOOR = 1e-6  # of the mean variance, added to every covariance of an unsupervised mixture against collapse
BORROWED = 2  # a covariance rests on at least this many rows per feature, borrowed where they are missing
SMALL_TRIANGLE = 64  # rows of a triangle that is inverted at once
SEED_ROWS = 4096  # rows that an initial clustering looks at
SEED_ROUNDS = 10
FOLDS = 3  # of the references, each of which judges mixtures of the others
MOST_ARRAYS = 1 << 30  # bytes of the whiteners in an exported file
NEAR = 1e-4  # of a row's squared length: less than this left of it is computed without a difference of large numbers
CLOSEST = 1 - 1e-6  # mean resultant at most: rows that repeat must not make a component infinitely sure


# ---- class-conditional Gaussians, with labels


@measure("fitted", needs=("embeddings", "labels"))
@one_blas_thread()
def gmm(train: Predictions, *, priors: bool = True, jitter: float = 0.0) -> Fit:
    """Minus the log-density of a Gaussian for every true class: u = −log Σ_c λ_c·N(φ; μ_c, Σ_c).

    λ_c are the class shares of the reference, or 1/c with `priors=False`. Σ_c is the unbiased covariance plus
    `jitter` on the diagonal, the same for all classes and increased until every Σ_c can be factored. A class with
    one row has no covariance and takes the pooled one. Only in-distribution rows count. The Σ_c of few rows is
    kept by its axes (Woodbury's identity), which takes rows × d for each of them instead of d × d.
    UIMNET §4 (on validation rows); DDU, Mukhoti et al. 2021 (on training rows).
    """
    embeddings, groups = _classes_of(train, "gmm")
    counts = np.array([len(rows) for rows in groups])
    if counts.max() < 2:
        raise BadInput("Every class of the reference has one row only, so gmm finds no covariance; give more rows.")
    d, means = embeddings.shape[1], np.stack(_each(partial(_mean, embeddings), groups))
    pooled = _scatter_within(embeddings, groups, means) / (counts.sum() - len(counts)) if counts.min() == 1 else None

    def covariance(c: int) -> Any:
        rows, freedom = groups[c], counts[c] - 1
        if freedom == 0:
            return pooled
        if 2 * len(rows) <= d:  # one product with its axes and one back cost less than one with d × d
            _, lengths, axes = np.linalg.svd(_doubles(embeddings, rows) - means[c], full_matrices=False)
            return Axes(axes, lengths**2 / freedom)
        return _add_scatter(np.zeros((d, d)), embeddings, rows, means[c]) / freedom

    whiteners = _whiteners(_each(covariance, range(len(groups))), jitter)
    shares = counts / counts.sum() if priors else np.full(len(counts), 1 / len(counts))
    return ClassDensity(means, whiteners, shares, groups=groups, priors=priors)


@measure("fitted", needs=("embeddings", "labels"))
def mahalanobis(train: Predictions, *, jitter: float = 0.0) -> Fit:
    """Squared Mahalanobis distance to the nearest class mean: u = min_c (φ − μ_c)ᵀ Σ⁻¹ (φ − μ_c).

    Σ = Σ_c Σ_{i in c} (φ_i − μ_c)(φ_i − μ_c)ᵀ/n is tied over the classes, plus `jitter`, increased until Σ can be
    factored. Rows with in_distribution = False are left out. Lee et al. 2018.
    """
    _classes_of(train, "mahalanobis")  # refuses a reference without labels
    return class_distances(train, jitter=jitter)


@dataclass(frozen=True, eq=False)
class Axes:
    """A covariance of few rows: variances (r,) along orthonormal axes (r, d), and `rest` in every other direction."""

    axes: Array
    variances: Array
    rest: float = 0.0


@dataclass(frozen=True, eq=False)
class GaussianDensity:
    """u = −log Σ_k w_k·N(x; μ_k, Σ_k): means (k, d), weights (k,), and for every Σ_k its axes, or W_k (d, d) with
    Σ_k⁻¹ = W_kᵀ·W_k."""

    means: Array
    whiteners: Sequence[Any]
    weights: Array
    log_likelihoods: list[float] = field(default_factory=list)  # mean per row, before every step of the fit

    @one_blas_thread()
    def __call__(self, predictions: Predictions) -> Array:
        embeddings = _embeddings(predictions, "a density", self.means.shape[1])

        def score(part: slice) -> Array:
            x = _doubles(embeddings, part)
            return -_log_sum_exp(np.stack([self.log_joint(x, k) for k in range(len(self.means))], axis=1))

        return np.concatenate(_each(score, _parts(embeddings)))

    def log_joint(self, x: Array, k: int) -> Array:
        """log(w_k·N(x; μ_k, Σ_k)) of rows x (n, d), as (n,)."""
        square, log_det = _squares(x - self.means[k], self.whiteners[k])
        return np.asarray(_log(self.weights[k]) - 0.5 * (square + log_det + x.shape[1] * math.log(2 * math.pi)))


@dataclass(frozen=True, eq=False)
class ClassDensity(GaussianDensity):
    """A Gaussian for every class, which remembers the rows that it was fitted on."""

    groups: Sequence[Array] = ()  # the rows of every class
    priors: bool = True

    @property
    def arrays(self) -> dict[str, Array]:
        """Means, whiteners (c, d, d) and log-weights with their normalisers, for an exported file."""
        classes, d = self.means.shape
        if 8 * classes * d * d > MOST_ARRAYS:
            raise BadInput(f"gmm of {classes} classes and {d} features is too large for a file: use mds or rmds.")
        whole = [_dense(whitener, d) for whitener in self.whiteners]
        log_dets = np.array([_squares(np.zeros((1, d)), whitener)[1] for whitener in self.whiteners])
        constants = _log(self.weights) - 0.5 * (log_dets + d * math.log(2 * math.pi))
        return {"means": self.means, "whiteners": np.stack(whole), "constants": constants, "width": np.array(d)}

    @one_blas_thread()
    def leave_one_out(self, train: Predictions) -> Array:
        """u of the rows that it was fitted on, each by the density of all others; of rows left out, as of new ones.

        Without row i, class c of n rows has the mean μ − a/(n − 1), a = x_i − μ, and the scatter S − n/(n − 1)·aaᵀ.
        With s = aᵀS⁻¹a, k = n/(n − 1), r = 1 − k·s, the square becomes (n − 2)·k²·s/r and log det Σ gains
        log r + d·log((n − 1)/(n − 2)) (the matrix determinant lemma and Sherman and Morrison's identity).
        """
        embeddings, d = _embeddings(train, "a density", self.means.shape[1]), self.means.shape[1]
        u = self(train)
        total = sum(len(rows) for rows in self.groups)

        def without_itself(c: int) -> None:
            rows, n = self.groups[c], len(self.groups[c])
            x = _doubles(embeddings, rows)
            joint = np.stack([self.log_joint(x, other) for other in range(len(self.means))], axis=1)
            if self.priors:  # one row less in all
                joint += math.log(total / (total - 1))
            if n < 3:  # nothing, or one row without a covariance, is left of its class
                joint[:, c] = -np.inf
            else:
                square, log_det = _squares(x - self.means[c], self.whiteners[c])
                s, k = square / (n - 1), n / (n - 1)
                rest = np.maximum(1 - k * s, d * np.finfo(float).eps)
                square = (n - 2) * k**2 * s / rest
                log_det = log_det + np.log(rest) + d * math.log((n - 1) / (n - 2))
                weight = (n - 1) / (total - 1) if self.priors else self.weights[c]
                joint[:, c] = math.log(weight) - 0.5 * (square + log_det + d * math.log(2 * math.pi))
            if len(self.means) > 1 or n > 2:
                u[rows] = -_log_sum_exp(joint)

        _each(without_itself, range(len(self.groups)))
        return u


def _dense(whitener: Any, d: int) -> Array:
    """W (d, d) with Σ⁻¹ = Wᵀ·W."""
    if not isinstance(whitener, Axes):
        return np.asarray(whitener)
    axes, rest = whitener.axes, 1 / math.sqrt(whitener.rest)
    return rest * np.eye(d) + (axes.T * (1 / np.sqrt(whitener.variances) - rest)) @ axes


def _squares(away: Array, whitener: Any) -> tuple[Array, float]:
    """aᵀ·Σ⁻¹·a of every row a, and log det Σ."""
    if not isinstance(whitener, Axes):
        white = away @ whitener.T
        return np.einsum("nd,nd->n", white, white), -2 * float(np.log(np.diagonal(whitener)).sum())
    along = away @ whitener.axes.T
    length = np.einsum("nd,nd->n", away, away)
    left = length - np.einsum("nr,nr->n", along, along)
    near = left < NEAR * length  # the difference has too few digits for rows that are nearly along the axes
    left[near] = ((away[near] - along[near] @ whitener.axes) ** 2).sum(1)
    others = away.shape[1] - len(whitener.axes)
    log_det = float(np.log(whitener.variances).sum()) + others * math.log(whitener.rest)
    return along**2 @ (1 / whitener.variances) + left / whitener.rest, log_det


@dataclass(frozen=True, eq=False)
class NearestMean:
    """u = min_c ‖W·(x − μ_c)‖²: means (c, d), whitener W with Σ⁻¹ = Wᵀ·W (d, d)."""

    means: Array
    whitener: Array
    groups: Sequence[Array]  # the rows of every class
    spread: Array  # (d,) variances of all rows along the whitened axes …
    middle: Array  # (d,) … about their mean
    unit: bool  # rows are taken at length one

    @one_blas_thread()
    def leave_one_out(self, train: Predictions) -> Array:
        """u of the rows that it was fitted on, each by the mean and the covariance of all others.

        Without row i, N·Σ loses k·aaᵀ, k = n/(n − 1), a = x_i − μ: a square q(b) = bᵀΣ⁻¹b becomes
        (N − 1)/N·(q(b) + (bᵀΣ⁻¹a)²·k/N/r), r = 1 − k·q(a)/N, and its own class mean moves to μ − a/(n − 1).
        """
        embeddings = _rows_of(train, "mahalanobis", self.unit, self.means.shape[1])
        u, total = np.array(self(train)), sum(len(rows) for rows in self.groups)
        for c, rows in enumerate(self.groups):
            if len(rows) < 2:
                continue
            k = len(rows) / (len(rows) - 1)
            for part in blocks(len(rows), max(1, BLOCK_BYTES // (8 * self.means.shape[1]))):
                x = _doubles(embeddings, rows[part])
                own = (x - self.means[c]) @ self.whitener.T
                rest = np.maximum(1 - k * (own**2).sum(1) / total, np.finfo(float).eps)
                best = np.full(len(x), np.inf)
                for other, mean in enumerate(self.means):
                    away = own * k if other == c else (x - mean) @ self.whitener.T
                    along = np.einsum("nd,nd->n", away, own)
                    square = (away**2).sum(1) + along**2 * k / total / rest
                    best = np.minimum(best, square * (total - 1) / total)
                u[rows[part]] = best
        return u

    def __call__(self, predictions: Predictions) -> Array:
        return self.squares(predictions)[0]

    @property
    def arrays(self) -> dict[str, Array]:
        """What an exported file needs."""
        centres = (self.means - self.middle) @ self.whitener.T
        whole = {"unit": np.array(self.unit), "width": np.array(self.means.shape[1])}
        return {"whitener": self.whitener, "middle": self.middle, "centres": centres, "spread": self.spread, **whole}

    def squares(self, predictions: Predictions) -> tuple[Array, Array]:
        """Squared distances (n,) to the nearest class mean, and to the mean of all by the covariance of all."""
        return cached(predictions, self, lambda: self._squares(predictions))

    @one_blas_thread()
    def _squares(self, predictions: Predictions) -> tuple[Array, Array]:
        embeddings = _rows_of(predictions, "mahalanobis", self.unit, self.means.shape[1])
        centres, dtype = (self.means - self.middle) @ self.whitener.T, stored_type(predictions)
        lengths, columns = (centres**2).sum(1).astype(dtype), centres.T.astype(dtype)

        def score(part: slice) -> tuple[Array, Array]:
            white = (_doubles(embeddings, part) - self.middle) @ self.whitener.T
            nearest = np.argmin(lengths - 2 * white.astype(dtype) @ columns, axis=1)
            # The expanded square is good for finding the class, not for a small distance to it.
            return ((white - centres[nearest]) ** 2).sum(1), white**2 @ (1 / self.spread)

        nearest, whole = (np.concatenate(each) for each in zip(*_each(score, _parts(embeddings)), strict=True))
        nearest.flags.writeable = whole.flags.writeable = False
        return nearest, whole


@dataclass(frozen=True, eq=False)
class ReferenceMoments:
    """Means and scatter of the embeddings of a reference; without labels all rows are one class."""

    groups: Sequence[Array]  # the rows of every class
    means: Array  # (k, d)
    within: Array  # (d, d) Σ_c Σ_{i in c} (φ_i − μ_c)(φ_i − μ_c)ᵀ

    @property
    def counts(self) -> Array:
        return np.array([len(rows) for rows in self.groups])

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> Array:
        return np.asarray(self.counts @ self.means / self.n)

    @property
    def total(self) -> Array:
        """(d, d) Σ_i (φ_i − μ)(φ_i − μ)ᵀ, μ the mean of all: a sum, so that no digits are lost."""
        away = (self.means - self.mean) * np.sqrt(self.counts)[:, None]
        return np.asarray(self.within + away.T @ away)


def moments(train: Predictions, name: str, unit: bool = False) -> ReferenceMoments:
    """Moments of the in-distribution rows of a reference, computed once; `unit`: of rows at length one."""
    return cached(train, ("moments", unit), lambda: _moments(train, name, unit))


@one_blas_thread()
def _moments(train: Predictions, name: str, unit: bool) -> ReferenceMoments:
    embeddings = _rows_of(train, name, unit)
    if train.labels is None:
        groups = [np.arange(len(train)) if train.in_distribution is None else np.flatnonzero(train.in_distribution)]
    else:
        _, groups = _classes_of(train, name)
    means = np.stack(_each(partial(_mean, embeddings), groups))
    return ReferenceMoments(groups, means, _scatter_within(embeddings, groups, means))


def class_distances(train: Predictions, unit: bool = False, jitter: float = 0.0) -> NearestMean:
    """Squared distances to class means under one covariance, and to the mean of all: fitted once a reference."""
    return cached(train, ("class distances", unit, jitter), lambda: _class_distances(train, unit, jitter))


@one_blas_thread()
def _class_distances(train: Predictions, unit: bool, jitter: float) -> NearestMean:
    known = moments(train, "mahalanobis", unit)
    whitener = _whiteners([known.within / known.n], jitter)[0]
    # Turned so that the covariance of all rows is a diagonal too: one product gives both kinds of distance.
    spread, axes = np.linalg.eigh(whitener @ (known.total / known.n) @ whitener.T)
    return NearestMean(known.means, axes.T @ whitener, known.groups, np.maximum(spread, 1), known.mean, unit)


# ---- mixtures without labels


@measure("fitted", needs=("embeddings",), example={"components": 4})
@one_blas_thread()
def gaussian_mixture(
    ref: Predictions, components: int = 20, seed: int = 0, *, iterations: int = 100, tolerance: float = 1e-4
) -> Fit:
    """Minus the log-density of a full-covariance Gaussian mixture fitted to the raw embeddings by EM.

    Where a component holds fewer than 2·d rows its covariance is not determined: it borrows the missing rows from
    the pooled covariance within components, which in turn borrows from a sphere of the same variance when the whole
    reference has fewer. With enough rows this is plain maximum likelihood. It ends when the mean log-likelihood of
    a row changes by less than `tolerance`. Ardeshir & Azizan 2022, as LL in the reliability paper (Euclidean).
    """
    embeddings = _embeddings(ref, "gaussian_mixture")
    components = _whole_components(components, len(embeddings))
    rows = _Rows(embeddings)
    sample = _sample(rows, seed)
    centres, nearest = _cluster(sample, components, seed)
    counts = np.bincount(nearest, minlength=components)
    spread = (sample - centres[nearest]).T @ (sample - centres[nearest])
    spread = _borrow(spread, len(sample), _sphere_of(spread / len(sample)))
    whiteners = _whiteners([spread], FLOOR * _mean_variance(spread)) * components
    model = GaussianDensity(centres, whiteners, counts / counts.sum())
    for _ in track(range(iterations), "fitting a Gaussian mixture"):
        sums, likelihood = _gaussian_sums(model, rows)
        model.log_likelihoods.append(likelihood)
        if _settled(model.log_likelihoods, tolerance):
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
    inverted to rounding error). It ends when the mean log-likelihood of a row rises by less than `tolerance`.
    LL of the reliability paper (cosine).
    """
    embeddings = _embeddings(ref, "vmf_mixture")
    components = _whole_components(components, len(embeddings))
    if embeddings.shape[1] < 2:
        raise BadInput("embeddings has one feature; directions on a sphere need at least two.")
    rows = _Rows(embeddings, sphere=True)
    sample = _sample(rows, seed)
    _, nearest = _cluster(sample, components, seed, sphere=True)
    hard = np.eye(components)[nearest]
    model = _sphere_model(hard.T @ sample, hard.sum(0), [])

    def expect(number: int) -> tuple[Array, Array, float]:
        x = rows[number]
        belongs, total = _responsibilities(model.log_joint(x))
        return belongs.T @ x, belongs.sum(0), total

    for _ in track(range(iterations), "fitting a von Mises–Fisher mixture"):
        sums, counts, likelihoods = zip(*_each(expect, range(len(rows))), strict=True)
        model.log_likelihoods.append(sum(likelihoods) / len(embeddings))
        if _settled(model.log_likelihoods, tolerance):
            break
        model = _sphere_model(np.sum(sums, axis=0), np.sum(counts, axis=0), model.log_likelihoods)
    return model


@dataclass(frozen=True)
class ComponentChoice:
    """How many components a mixture should have, and the mean held-out log-likelihood of a row by every candidate."""

    components: int
    log_likelihoods: Mapping[int, float]


def choose_components(
    ref: Predictions, candidates: Sequence[int], seed: int = 0, *, metric: Literal["cosine", "euclidean"] = "cosine"
) -> ComponentChoice:
    """The fewest components whose held-out likelihood is within one standard error of the best, over FOLDS folds.

    Every reference row is judged by a mixture of the other folds: von Mises–Fisher for cosine, Gaussian for Euclidean.
    The standard error is that of the difference to the best, row by row.
    """
    if not candidates:
        raise BadInput("There is no number of components to choose from: name at least one.")
    fit: Any = vmf_mixture if metric == "cosine" else gaussian_mixture
    n = len(_embeddings(ref, "a mixture"))
    fold = np.random.default_rng(seed).permutation(n) % FOLDS
    held_out = {count: np.empty(n) for count in sorted(set(candidates))}
    for number in range(FOLDS):
        own, others = ref.take(fold == number), ref.take(fold != number)
        for count, values in held_out.items():
            values[fold == number] = -fit(others, count, seed)(own)
    means = {count: float(values.mean()) for count, values in held_out.items()}
    best = held_out[max(means, key=lambda count: means[count])]
    behind = {count: best - values for count, values in held_out.items()}
    enough = [count for count, lost in behind.items() if lost.mean() <= lost.std() / math.sqrt(n)]
    return ComponentChoice(enough[0], means)


@dataclass(frozen=True, eq=False)
class SphereDensity:
    """u = −log Σ_k w_k·vMF(x; μ_k, κ_k) of directions x: means (k, d) of unit length, kappa (k,), weights (k,)."""

    means: Array
    kappa: Array
    weights: Array
    log_likelihoods: list[float] = field(default_factory=list)  # mean per row, before every step of the fit

    def __post_init__(self) -> None:
        constants = von_mises_fisher.log_normalizer(self.kappa, self.means.shape[1]) + _log(self.weights)
        object.__setattr__(self, "_constants", constants)
        object.__setattr__(self, "_pull", self.kappa[:, None] * self.means)

    @one_blas_thread()
    def __call__(self, predictions: Predictions) -> Array:
        embeddings = _embeddings(predictions, "vmf_mixture", self.means.shape[1])

        def score(part: slice) -> Array:
            return -_log_sum_exp(self.log_joint(_unit(_doubles(embeddings, part), part.start)))

        return np.concatenate(_each(score, _parts(embeddings)))

    def log_joint(self, x: Array) -> Array:
        """log(w_k·vMF(x; μ_k, κ_k)) of unit rows x (n, d), as (n, k)."""
        joint: Array = (self._pull @ x.T).T  # type: ignore[attr-defined]  # faster than x @ pullᵀ, and so are its sums
        joint += self._constants  # type: ignore[attr-defined]
        return joint


def _sphere_model(sums: Array, counts: Array, history: list[float]) -> SphereDensity:
    """The maximum-likelihood mixture given, for every component, the sum of its rows and their number."""
    length = np.linalg.norm(sums, axis=1)
    resultant = np.minimum(length / np.maximum(counts, np.finfo(float).tiny), CLOSEST)
    means = sums / np.maximum(length, np.finfo(float).tiny)[:, None]
    kappa = von_mises_fisher.inverse_mean_resultant(resultant, sums.shape[1])
    return SphereDensity(means, kappa, counts / counts.sum(), history)


def _gaussian_sums(model: GaussianDensity, rows: _Rows) -> tuple[tuple[Array, Array, Array], float]:
    """Of every component its rows, their sum and scatter about its mean; and the mean log-likelihood of a row."""
    components, d = model.means.shape
    counts, shifts = np.zeros(components), np.zeros((components, d))
    scatters, likelihood = np.zeros((components, d, d)), 0.0

    def gather(k: int) -> None:
        owned = np.flatnonzero(belongs[:, k] > np.finfo(float).eps)  # most rows belong to one component entirely
        weight = belongs[owned, k]
        away = x[owned] - model.means[k]
        counts[k] += weight.sum()
        shifts[k] += weight @ away
        away *= np.sqrt(weight)[:, None]
        scatters[k] += away.T @ away

    for number in range(len(rows)):
        x = rows[number]
        joint = _each(partial(model.log_joint, x), range(components))
        belongs, total = _responsibilities(np.stack(joint, axis=1))
        likelihood += total
        _each(gather, range(components))
    return (counts, shifts, scatters), likelihood / rows.n


def _gaussian_model(model: GaussianDensity, counts: Array, shifts: Array, scatters: Array) -> GaussianDensity:
    """The likeliest mixture by these sums, which are overwritten."""
    components, n = len(counts), counts.sum()
    shifts /= np.maximum(counts, np.finfo(float).tiny)[:, None]
    for k in range(components):
        scatters[k] -= counts[k] * np.outer(shifts[k], shifts[k])
    pooled = scatters.sum(0)
    pooled = _borrow(pooled, n, _sphere_of(pooled / n))
    for k in range(components):
        scatters[k] = _borrow(scatters[k], counts[k], pooled)
    whiteners = _whiteners([*scatters], FLOOR * _mean_variance(pooled))
    return GaussianDensity(model.means + shifts, whiteners, counts / n, model.log_likelihoods)


def _borrow(scatter: Array, count: float, other: Array) -> Array:
    """The covariance of `count` rows, topped up to BORROWED·d rows with another covariance."""
    missing = max(0.0, BORROWED * len(scatter) - count)
    return np.asarray((scatter + missing * other) / (count + missing))


def _sphere_of(covariance: Array) -> Array:
    """The same variance in every direction."""
    return np.asarray(np.eye(len(covariance)) * _mean_variance(covariance))


def _settled(likelihoods: list[float], tolerance: float) -> bool:
    return len(likelihoods) > 1 and abs(likelihoods[-1] - likelihoods[-2]) < tolerance


# ---- a first clustering


def _sample(rows: _Rows, seed: int) -> Array:
    """At most SEED_ROWS rows, drawn without replacement."""
    if rows.n <= SEED_ROWS:
        return np.concatenate([rows[number] for number in range(len(rows))])
    return rows.take(np.sort(np.random.default_rng(seed).choice(rows.n, SEED_ROWS, replace=False)))


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
        else:  # fewer different rows than components
            candidates = rng.integers(len(x), size=1)
        after = np.minimum(closest[:, None], distances(x[candidates]))
        best = int(np.argmin(after.sum(0)))
        chosen.append(int(candidates[best]))
        closest = after[:, best]
    centres = x[chosen]
    nearest = np.argmin(distances(centres), axis=1)
    for _ in range(SEED_ROUNDS):
        hard = np.eye(components)[nearest]
        counts = hard.sum(0)
        sums = hard.T @ x
        lengths = np.linalg.norm(sums, axis=1) if sphere else counts
        usable = (counts > 0) & (lengths > 0)
        centres = np.where(usable[:, None], sums / np.where(usable, lengths, 1)[:, None], centres)
        last, nearest = nearest, np.argmin(distances(centres), axis=1)
        if np.array_equal(last, nearest):
            break
    return centres, nearest


# ---- rows and matrices


class _Rows:
    """Float64 row blocks of the embeddings, optionally on the unit sphere; kept between passes when they are few."""

    def __init__(self, embeddings: Array, sphere: bool = False) -> None:
        self.embeddings, self.sphere, self.n = embeddings, sphere, len(embeddings)
        self.parts = _parts(embeddings)
        self.kept: list[Array] | None = None
        if 8 * embeddings.size <= KEEP_BYTES:
            self.kept = _each(self._made, self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, number: int) -> Array:
        return self.kept[number] if self.kept is not None else self._made(self.parts[number])

    def _made(self, part: slice) -> Array:
        x = _doubles(self.embeddings, part)
        return _unit(x, part.start) if self.sphere else x

    def take(self, rows: Array) -> Array:
        x = _doubles(self.embeddings, rows)
        return _unit(x, rows) if self.sphere else x


def _each(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """[work(item) for item in items], spread over the threads."""
    waiting = list(items)

    def run(worker: int, workers: int) -> list[Result]:
        return [work(item) for item in waiting[worker::workers]]

    done = share(run, min(threads(), len(waiting)))
    return [done[number % len(done)][number // len(done)] for number in range(len(waiting))]


def _embeddings(predictions: Predictions, name: str, d: int | None = None) -> Array:
    if predictions.embeddings is None:
        raise Undefined(f"There are no embeddings, and {name} is a function of them.")
    width = predictions.embeddings.shape[1]
    if d is not None and width != d:
        raise BadInput(f"embeddings has {width} features, the reference has {d}: they must come from one network.")
    return predictions.embeddings


def in_distribution_part(train: Predictions, name: str) -> Predictions:
    """The in-distribution rows of a reference; made once, and the reference itself if these are all."""
    if train.in_distribution is None or train.in_distribution.all():
        return train
    if not train.in_distribution.any():
        raise Undefined(f"Every row of the reference has in_distribution = False, so {name} has nothing to fit.")
    return cached(train, "in_distribution", lambda: train.take(train.in_distribution))


class _Directions:
    """Rows of embeddings at length one, made when they are read."""

    def __init__(self, embeddings: Array) -> None:
        self.embeddings, self.shape = embeddings, embeddings.shape

    def __len__(self) -> int:
        return len(self.embeddings)

    def __getitem__(self, rows: Any) -> Array:
        names = rows.start or 0 if isinstance(rows, slice) else rows
        return _unit(_doubles(self.embeddings, rows), names)


def _rows_of(predictions: Predictions, name: str, unit: bool, d: int | None = None) -> Any:
    embeddings = _embeddings(predictions, name, d)
    return _Directions(embeddings) if unit else embeddings


def _classes_of(train: Predictions, name: str) -> tuple[Array, list[Array]]:
    """The embeddings, and for every class of the training the numbers of its rows."""
    embeddings = _embeddings(train, name)
    if train.labels is None:
        raise Undefined(f"The reference has no labels, and {name} needs the true class of every row.")
    rows = np.arange(len(embeddings)) if train.in_distribution is None else np.flatnonzero(train.in_distribution)
    if not len(rows):
        raise Undefined(f"Every row of the reference has in_distribution = False, so {name} has no class to fit.")
    order = np.argsort(train.labels[rows], kind="stable")
    _, starts = np.unique(train.labels[rows][order], return_index=True)
    return embeddings, np.split(rows[order], starts[1:])


def _mean(embeddings: Array, rows: Array) -> Array:
    total = np.zeros(embeddings.shape[1])
    for part in _parts(embeddings, len(rows)):
        total += _doubles(embeddings, rows[part]).sum(0)
    return total / len(rows)


def _add_scatter(scatter: Array, embeddings: Array, rows: Array, mean: Array) -> Array:
    for part in _parts(embeddings, len(rows)):
        away = _doubles(embeddings, rows[part]) - mean
        scatter += away.T @ away
    return scatter


def _scatter_within(embeddings: Array, groups: Sequence[Array], means: Array) -> Array:
    """Σ_c Σ_{i in c} (φ_i − μ_c)(φ_i − μ_c)ᵀ, d rows or more at a time, since a sum is d × d."""
    rows, d = np.concatenate(groups), embeddings.shape[1]
    of = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    parts = blocks(len(rows), max(d, BLOCK_BYTES // (8 * d)))

    def part(worker: int, workers: int) -> Array:
        scatter = np.zeros((d, d))
        for part in parts[worker::workers]:
            away = _doubles(embeddings, rows[part]) - means[of[part]]
            scatter += away.T @ away
        return scatter

    return np.asarray(sum(share(part)))


def _whiteners(covariances: Sequence[Any], jitter: float) -> list[Any]:
    """A whitener of every covariance, with the least jitter of a tenfold ladder at which all of them exist."""
    scale = float(np.mean([_mean_variance(covariance) for covariance in covariances]))
    if not math.isfinite(scale):
        raise BadInput("embeddings is so large that its squares overflow; scale it down.")
    while True:
        try:
            return _each(partial(_whitener, jitter), covariances)
        except np.linalg.LinAlgError:
            jitter = max(10 * jitter, FIRST_JITTER * (scale if scale > 0 else 1.0))  # rounding may leave it below 0


def _whitener(jitter: float, covariance: Any) -> Any:
    """The inverse Cholesky factor of Σ + jitter·I, or its axes; LinAlgError where it is singular."""
    if isinstance(covariance, Axes):
        axes, variances = covariance.axes, covariance.variances
        if jitter == 0:
            raise np.linalg.LinAlgError
        if jitter <= _rounding(axes.shape[1]) * ((variances @ axes**2).max() + jitter):
            _factor((axes.T * variances) @ axes, jitter)  # too close to call: the pivots decide
        return Axes(axes, variances + jitter, jitter)
    return _lower_inverse(_factor(covariance, jitter))


def _lower_inverse(factor: Array) -> Array:
    """The inverse of a lower triangle (d, d), by halves: [[A, 0], [B, C]]⁻¹ = [[A⁻¹, 0], [−C⁻¹·B·A⁻¹, C⁻¹]].

    By NumPy alone: importing scipy.linalg takes longer than the answer about a small file.
    """
    d = len(factor)
    if d <= SMALL_TRIANGLE:
        return np.linalg.inv(factor.T).T  # an upper triangle is its own LU factor: what is done is back-substitution
    first, last = slice(d // 2), slice(d // 2, d)
    inverse = np.zeros_like(factor)
    inverse[first, first], inverse[last, last] = (
        _lower_inverse(factor[first, first]),
        _lower_inverse(factor[last, last]),
    )
    inverse[last, first] = -inverse[last, last] @ (factor[last, first] @ inverse[first, first])
    return inverse


def _factor(covariance: Array, jitter: float) -> Array:
    """The Cholesky factor of Σ + jitter·I."""
    raised = covariance + jitter * np.eye(len(covariance))
    factor = np.linalg.cholesky(raised)
    # A pivot at rounding error of its own variance is a singular matrix that got through by luck.
    if (np.diagonal(factor) ** 2 <= _rounding(len(raised)) * np.diagonal(raised)).any():
        raise np.linalg.LinAlgError
    return factor


def _rounding(d: int) -> float:
    """Relative error that a pivot of a d × d matrix may have."""
    return d * float(np.finfo(float).eps)


def _mean_variance(covariance: Any) -> float:
    if isinstance(covariance, Axes):
        return float(covariance.variances.sum() / covariance.axes.shape[1])
    return float(np.trace(covariance) / len(covariance))


def _parts(embeddings: Array, n: int | None = None) -> list[slice]:
    rows = max(LEAST_ROWS, BLOCK_BYTES // (8 * embeddings.shape[1]))
    return blocks(len(embeddings) if n is None else n, rows)


def stored_type(dump: Predictions) -> Any:
    """The precision of products that add no error to that of the embeddings: float32, or float64 where they have it."""
    return np.float32 if dump.embeddings is not None and dump.embeddings.dtype.itemsize <= 4 else np.float64


def _doubles(embeddings: Array, rows: Any) -> Array:
    return np.asarray(embeddings[rows], np.float64)


def _unit(x: Array, names: Any) -> Array:
    """The rows at unit length; `names` are their numbers, or the first of them."""
    length = np.linalg.norm(x, axis=1)
    if not length.all():
        at = int(np.argmin(length))
        row = names[at] if isinstance(names, np.ndarray) else names + at
        raise BadInput(f"embeddings has only zeros in row {row}: it has no direction on the sphere; leave it out.")
    return np.asarray(x / length[:, None])


def _whole_components(components: int, n: int) -> int:
    if components < 1 or int(components) != components:
        raise BadInput(f"components is {components}; a mixture has a whole number of them, at least 1.")
    if components > n:
        raise BadInput(f"A mixture of {components} components needs as many rows; the reference has {n}.")
    return int(components)


def _log(weights: Array) -> Array:
    """log w, a weight of zero as the log of the smallest normal number."""
    return np.asarray(np.log(np.maximum(weights, np.finfo(float).tiny)))


def _log_sum_exp(joint: Array) -> Array:
    """log Σ_k exp of every row; the array is overwritten."""
    top = joint.max(1)
    joint -= top[:, None]
    np.exp(joint, out=joint)
    return np.asarray(np.log(joint.sum(1)) + top)


def _responsibilities(joint: Array) -> tuple[Array, float]:
    """Posterior shares of the components, in place of the log-joint, and the summed log-likelihood."""
    total = _log_sum_exp(joint)
    joint /= joint.sum(1)[:, None]
    return joint, float(total.sum())
