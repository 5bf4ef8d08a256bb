"""Contracts of metrics, measures and methods, built in or plugged in.

`check_metric("auroc")`, `check_measure("entropy")` and `check_method("erm")` return the evidence as sentences.
They raise AssertionError if a requirement is not satisfied. A plug-in's own tests need one line each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures import Measure, summary
from nescio.measures import registry as measures
from nescio.metrics import Metric, Ranking, outcomes
from nescio.metrics import registry as metrics
from nescio.predictions import Predictions
from nescio.registry import Registry

Value = Callable[..., float]  # a metric


def check_metric(name: str | Callable[..., object]) -> list[str]:
    """Check that a registered metric, given by name or function, satisfies the contract of its kinds."""
    name = _name(name, metrics)
    entry = metrics[name]
    require(bool(entry.sentence), f"{name} has no docstring: one sentence must say what it means.")
    evidence = ["its docstring is a sentence"]
    for kind in entry.kinds:
        require(kind in METRIC_CHECKS, f"{name} is of the kind {kind!r}, for which there is no check.")
        for check in METRIC_CHECKS[kind]:
            for options in _options(entry.values):
                check(name, lambda *args, options=options: entry.function(*args, **options))
            evidence.append(f"{kind}: {(check.__doc__ or '').strip()}")
    return evidence


def check_measure(name: str | Callable[..., object]) -> list[str]:
    """Check that a registered measure, given by name or function, satisfies the contract of its kind."""
    name = _name(name, measures)
    measure = measures[name]
    require(bool(measure.sentence), f"{name} has no docstring: one sentence must say what it means.")
    evidence = []
    for check in MEASURE_CHECKS[measure.kind]:
        check(measure)
        evidence.append((check.__doc__ or "").strip())
    return evidence


def check_method(name: str, *, spectral: float = 1.0, root: str | None = None, **task: Any) -> list[str]:
    """Trains a registered method on a small task (`data`, `backbone`, `epochs`, `hparams`) and checks that it works.

    The loss must decrease. Predictions must be the same after saving and loading, and must not depend on other rows.
    The same seed must give the same weights, and draws must differ. With spectral normalisation, no layer exceeds the
    bound. Noise must have a higher native score than data if the method claims so. The method's evidence must pass.
    """
    from nescio.testing.evidence import observe, small_trial  # torch is imported only if needed

    checks = dict(observe(small_trial(name, root=root, **task), spectral=spectral, root=root))
    dead = [f"{check}: {evidence.observed}" for check, evidence in checks.items() if not evidence.passed]
    require(not dead, f"{name} fails checks. {'; '.join(dead)}.")
    return [f"{check}: {evidence.observed}" for check, evidence in checks.items()]


def _name(function: str | Callable[..., object], registry: Registry[Metric] | Registry[Measure]) -> str:
    """The registered name of a function or an entry."""
    if isinstance(function, str):
        return function
    for name, entry in registry.items():
        if function in (entry, entry.function):
            return name
    raise BadInput(
        f"{getattr(function, '__name__', function)} is not registered as a {registry.kind}: decorate it first."
    )


def require(condition: bool, sentence: str) -> None:
    """An assertion that python -O does not remove."""
    if not condition:
        raise AssertionError(sentence)


# ---- metrics


def _options(values: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    return [{option: value} for option, values in values.items() for value in values] or [{}]


def _sign(name: str) -> int:
    """1 if higher values are better, -1 if lower ones are, 0 if neither."""
    return {"higher": 1, "lower": -1, "neither": 0}[metrics[name].better]


def _tied_case(seed: int, n: int = 200) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    u = np.round(rng.normal(size=n), 1)
    return u, rng.random(n) < 1 / (1 + np.exp(-u))


def _equal(a: ArrayLike, b: ArrayLike) -> bool:
    return bool(np.allclose(a, b, rtol=1e-12, atol=1e-12))


def _check_shuffled(name: str, f: Value, *arrays: Array, seed: int = 0) -> None:
    """Require the same value for shuffled rows of the arrays."""
    rows = np.random.default_rng(seed).permutation(len(arrays[0]))
    same = _equal(f(*arrays), f(*(array[rows] for array in arrays)))
    require(same, f"{name} changes when the rows are shuffled.")


def check_row_order(name: str, f: Value) -> None:
    """the order of the rows does not matter, tied rows included."""
    for seed in range(5):
        _check_shuffled(name, f, *_tied_case(seed), seed=seed)


def check_monotone_maps(name: str, f: Value) -> None:
    """a strictly increasing map of u changes nothing; nothing is guessed from the range of u."""
    for seed in range(5):
        u, positive = _tied_case(seed)
        for mapped in (40 * u - 400, np.exp(u), u**3):
            require(_equal(f(u, positive), f(mapped, positive)), f"{name} changes under a monotone map of u.")


def check_direction(name: str, f: Value) -> None:
    """a perfect ranking beats a random one, which beats the worst, in the direction the metric claims."""
    positive = np.random.default_rng(0).random(300) < 0.3
    noise = np.random.default_rng(1).normal(size=300)
    perfect, random, worst = (f(u, positive) for u in (positive + 0.0, noise, -(positive + 0.0)))
    if sign := _sign(name):
        require(sign * perfect >= sign * random >= sign * worst, f"{name} does not prefer the better ranking.")
        require(sign * perfect > sign * worst, f"{name} is not better for the best ranking than for the worst.")


def check_edge_cases(name: str, f: Value) -> None:
    """all correct, all wrong, one row and constant scores give a finite number or Undefined."""
    cases = [(np.arange(5.0), np.zeros(5, bool)), (np.arange(5.0), np.ones(5, bool))]
    cases += [(np.zeros(1), np.zeros(1, bool)), (np.zeros(1), np.ones(1, bool)), (np.zeros(6), np.arange(6) < 2)]
    for u, positive in cases:
        _check_finite_or_undefined(name, lambda u=u, positive=positive: f(u, positive))  # type: ignore[misc]
    for malformed in (np.array([0.0, np.nan]), np.array([0.0, np.inf])):
        _check_raises(name, lambda malformed=malformed: f(malformed, np.array([True, False])))  # type: ignore[misc]
    _check_raises(name, lambda: f(np.arange(3.0), np.array([True, False])))


def check_prepared_ranking(name: str, f: Value) -> None:
    """a prepared Ranking gives the same number as the arrays."""
    if metrics[name].prepared:
        u, positive = _tied_case(7)
        require(_equal(f(u, positive), f(Ranking(u, positive))), f"{name} of a prepared Ranking differs.")


def _random_probs(seed: int = 0, n: int = 240, c: int = 5) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(n, c))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return p, np.array([rng.choice(c, p=row) for row in p])


def check_outcome_metric(name: str, f: Value) -> None:
    """row order does not matter, correct predictions beat uniform ones, prepared Outcomes give the same number."""
    p, y = _random_probs()
    _check_shuffled(name, f, p, y)
    truth, wrong, sign = np.eye(5)[y], np.eye(5)[(y + 1) % 5], _sign(name)
    require(sign * f(truth, y) >= sign * f(wrong, y), f"{name} is not better for correct predictions.")
    if metrics[name].prepared:
        require(_equal(f(p, y), f(outcomes(p, y))), f"{name} of prepared Outcomes differs.")
    _check_finite_or_undefined(name, lambda: f(p[:1], y[:1]))
    _check_raises(name, lambda: f(p, y[1:]))
    _check_raises(name, lambda: f(p * 2, y))
    _check_raises(name, lambda: f(p, y + 5))


def check_mixture_metric(name: str, f: Value) -> None:
    """row order and monotone maps change nothing, failures last are best, malformed rows are refused."""
    u, wrong = _tied_case(0)
    u_out = np.round(np.random.default_rng(1).normal(1, 1, 90), 1)
    value = f(u, wrong, u_out)
    _check_shuffled(name, lambda *inside: f(*inside, u_out), u, wrong)
    _check_shuffled(name, lambda outside: f(u, wrong, outside), u_out)
    require(_equal(value, f(np.exp(u), wrong, np.exp(u_out))), f"{name} changes under a monotone map of u.")
    sign = _sign(name)
    perfect, worst = f(wrong + 0.0, wrong, np.ones(90)), f(1 - wrong, wrong, np.zeros(90))
    require(sign * perfect >= sign * value >= sign * worst, f"{name} does not prefer the better ranking.")
    for malformed in (np.array([np.nan]), np.array([])):
        _check_raises(name, lambda malformed=malformed: f(u, wrong, malformed))  # type: ignore[misc]
    _check_raises(name, lambda: f(u[1:], wrong, u_out))


def check_threshold_metric(name: str, f: Value) -> None:
    """a share between 0 and 1 that moves one way with the threshold."""
    u = np.random.default_rng(0).normal(size=101)
    shares = np.array([f(u, t) for t in np.sort(u)])
    require(bool(((shares >= 0) & (shares <= 1)).all()), f"{name} is not between 0 and 1.")
    steps = np.diff(shares)
    require(bool((steps >= 0).all() or (steps <= 0).all()), f"{name} is not monotone in the threshold.")


def check_retrieval_metric(name: str, f: Value) -> None:
    """separate classes are found, row order does not matter, a twin of another class is never the row itself."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 30)
    far = np.eye(8)[y] * 10 + rng.normal(size=(120, 8))
    near = np.eye(8)[y] + rng.normal(size=(120, 8))
    u = (rng.random(120),) if "retrieval-ranking" in metrics[name].kinds else ()
    _check_finite_or_undefined(name, lambda: f(far, y, *u))
    _check_shuffled(name, f, near, y, *u)
    if not u:
        require(f(far, y) >= f(near, y), f"{name} does not prefer separate classes.")
        twins, labels = np.repeat(near[:20], 2, 0), np.arange(40)
        require(f(twins, labels) == 0, f"{name} lets a row find itself.")


def check_pair_metric(name: str, f: Value) -> None:
    """shuffling both sides together changes nothing; agreement beats disagreement."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=80)
    b = a + rng.normal(size=80)
    if "votes" in metrics[name].kinds:
        b = rng.dirichlet(np.ones(4) * 0.5, size=80) * 50
        a = -(b / b.sum(1, keepdims=True) * np.log(b / b.sum(1, keepdims=True))).sum(1) + 0.01 * a
    _check_shuffled(name, f, a, b)
    require(f(a, b) > f(a[::-1].copy(), b) - 1, f"{name} is out of its range.")
    _check_raises(name, lambda: f(a[1:], b))


def check_segmentation_metric(name: str, f: Value) -> None:
    """a perfect map scores best and void pixels do not count."""
    labels = np.random.default_rng(0).integers(0, 3, size=(4, 8, 8))
    other = (labels + 1) % 3
    require(f(labels, labels, 3) > f(other, labels, 3), f"{name} does not prefer the perfect map.")


def check_curve_metric(name: str, f: Callable[..., tuple[Array, Array]]) -> None:
    """one point per row, coverage increasing to 1, row order irrelevant."""
    u, positive = _tied_case(3)
    coverage, risk = f(u, positive)
    require(coverage.shape == risk.shape == u.shape, f"{name} is not one point per row.")
    require(coverage[-1] == 1 and bool((np.diff(coverage) > 0).all()), f"{name} does not rise to full coverage.")
    _check_shuffled(name, lambda *arrays: f(*arrays)[1], u, positive)


def _check_finite_or_undefined(name: str, call: Callable[[], object]) -> None:
    try:
        value = call()
    except Undefined as reason:
        require(bool(str(reason)), f"{name} is undefined without a sentence.")
        return
    require(isinstance(value, float) and math.isfinite(value), f"{name} returns {value!r} instead of a finite float.")


def _check_raises(name: str, call: Callable[[], object]) -> None:
    try:
        value = call()
    except ValueError as reason:
        require(bool(str(reason)) and "\n" not in str(reason), f"{name} refuses without a sentence.")
        return
    raise AssertionError(f"{name} accepts malformed input and returns {value!r}.")


_RANKED = (check_row_order, check_monotone_maps, check_direction, check_edge_cases, check_prepared_ranking)
METRIC_CHECKS: dict[str, tuple[Callable[[str, Callable[..., Any]], None], ...]] = {
    "ranking": _RANKED,
    "detection": _RANKED,
    "predictions": (check_outcome_metric,),
    "mixture": (check_mixture_metric,),
    "threshold": (check_threshold_metric,),
    "retrieval": (check_retrieval_metric,),
    "retrieval-ranking": (check_retrieval_metric,),
    "votes": (check_pair_metric,),
    "pairs": (check_pair_metric,),
    "segmentation": (check_segmentation_metric,),
    "curve": (check_curve_metric,),
    **dict.fromkeys(("acceptance", "rejection", "crops"), ()),  # beside "threshold" and "pairs"
    "other": (),  # checked by separate tests
}


# ---- measures


def _model(seed: int = 0, n: int = 120, draws: int = 3, scale: float = 3.0) -> Predictions:
    """Small predictions of four classes: logits, embeddings that carry the class, a native score."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 4
    logits = scale * np.eye(4)[labels][:, None] + rng.normal(size=(n, draws, 4))
    embeddings = 6 * np.eye(6)[labels] + rng.normal(size=(n, 6))
    scores = {"native": rng.random(n), "jacobian": rng.random(n)}
    tta = np.log(rng.dirichlet(np.ones(4), size=n))
    return Predictions(labels=labels, logits=logits, embeddings=embeddings, scores=scores, variants={"tta": tta})


def _with_example(measure: Measure) -> Callable[..., Any]:
    """The measure with the options that it names for so few rows."""
    return partial(measure.function, **measure.example)


def _checked_rows(name: str, f: Callable[[Predictions], Array], predictions: Predictions, tolerance: float) -> Array:
    """Values of a measure, after a check that they are one finite number per row that follows a shuffled row."""
    u, n = f(predictions), len(predictions)
    require(u.shape == (n,) and bool(np.isfinite(u).all()), f"{name} is not one finite number per row.")
    rows = np.random.default_rng(1).permutation(n)
    same = np.allclose(u[rows], f(predictions.take(rows)), rtol=tolerance, atol=tolerance)
    require(same, f"{name} depends on the order of the rows.")
    return u


def check_shape_and_order(measure: Measure) -> None:
    """one finite number per row, and shuffled rows give shuffled numbers."""
    _checked_rows(measure.name, _with_example(measure), _model(), 1e-12)


def check_missing_fields(measure: Measure) -> None:
    """missing required fields are named in the error."""
    name, f, needs = measure.name, _with_example(measure), measure.needs
    unknown = set(needs) - {"logits", "embeddings", "scores", "variants", "labels", "annotations", "groups", "members"}
    require(not unknown, f"{name} needs {', '.join(sorted(unknown))}, which no Predictions has.")
    try:
        f(Predictions(labels=[0, 1]))
    except Undefined as reason:
        require(bool(str(reason)), f"{name} is undefined without a sentence.")
        return
    raise AssertionError(f"{name} returns values without {' or '.join(needs)}.")


def check_saturated_logits(measure: Measure) -> None:
    """finite on saturated float32 and on half-precision logits."""
    name, f = measure.name, _with_example(measure)
    if "logits" in measure.needs:
        for logits in (
            np.array([[90, -90, 0], [200, -200, 0]], np.float32),
            np.array([[60000, -60000, 0], [1, 0, 0]], np.float16),
        ):
            predictions = Predictions(logits=logits, embeddings=np.ones((2, 3)))
            require(bool(np.isfinite(f(predictions)).all()), f"{name} is not finite on {logits.dtype}.")


def check_sign(measure: Measure) -> None:
    """higher = less confident: blurred predictions have higher values than sharp ones."""
    name, f, needs = measure.name, _with_example(measure), measure.needs
    if "logits" in needs:
        sharp, blurred = _model(scale=9.0), _model(scale=0.5)
        require(f(blurred).mean() > f(sharp).mean(), f"{name} is lower if the model is less confident.")
    if needs == ("embeddings",):
        short = _model()
        assert short.embeddings is not None
        shrunk = short.replace(embeddings=short.embeddings * 0.1)
        require(f(shrunk).mean() >= f(short).mean(), f"{name} is lower for fading embeddings.")


def _network(seed: int = 0, n: int = 240, is_far: bool = False) -> Predictions:
    """Predictions of a network of four classes: non-negative embeddings, logits linear in them; a sixth is uncertain.

    far  rows without the features of any class
    """
    rng = np.random.default_rng(seed)
    weight = np.eye(4, 6) - [0, 0, 0, 0, 0.4, 0.5]
    labels = rng.integers(0, 4, size=n)
    length = np.where(np.arange(n) % 6 == 0, 0.5, 6.0)[:, None]
    means = np.broadcast_to([0, 0, 0, 0, 4.0, 4.0], (n, 6)) if is_far else length * np.eye(6)[labels]
    embeddings = np.abs(means + rng.normal(size=(n, 6)) / 2)
    return Predictions(labels=labels, embeddings=embeddings, logits=embeddings @ weight.T + 0.1)


def check_far_noise(measure: Measure) -> None:
    """rows far from the reference get higher values than rows like it; shuffled rows give shuffled numbers."""
    name, fit = measure.name, _with_example(measure)
    if "logits" in measure.needs:
        train, test, far = _network(0), _network(1), _network(2, is_far=True)
    else:
        train, test = _model(0), _model(1)
        noise = -5 - 10 * np.abs(np.random.default_rng(2).normal(size=(len(test), 6)))
        far = test.replace(embeddings=noise)
    score = fit(train)
    u = _checked_rows(name, score, test, 1e-9)
    require(score(far).min() > np.median(u), f"{name} does not rise away from its reference.")


def check_tuned_score(measure: Measure) -> None:
    """fitted on some rows, it is higher for misclassified rows of others; shuffled rows give shuffled numbers."""
    name, fit = measure.name, _with_example(measure)
    test = _network(1)
    u, wrong = _checked_rows(name, fit(_network(0)), test, 1e-9), summary(test).outcomes().wrong
    require(u[wrong].mean() > u[~wrong].mean(), f"{name} is not higher for misclassified rows.")


def check_disagreement(measure: Measure) -> None:
    """members that agree get lower values than members that do not."""
    name, f = measure.name, _with_example(measure)
    equal_members = [_model(0), _model(0)]
    unlike = [_model(0), _model(0).replace(embeddings=np.random.default_rng(5).normal(size=(120, 6)))]
    agree, differ = (f(*_members(measure, members)) for members in (equal_members, unlike))
    require(agree.shape == (120,) and bool((agree <= 1e-12).all()), f"{name} of equal members is not 0.")
    require(differ.mean() > 0.1, f"{name} is not higher if members disagree.")


def check_isolated_noise(measure: Measure) -> None:
    """rows among rows of their kind get lower values than noise, shuffled rows give shuffled numbers."""
    name, f = measure.name, _with_example(measure)
    rng = np.random.default_rng(3)
    noise = np.arange(120) % 2 == 1
    kind = rng.normal(size=(15, 6))[np.arange(120) // 8]
    embeddings = np.where(noise[:, None], rng.normal(size=(120, 6)), 4 * kind + rng.normal(size=(120, 6)) / 10)
    predictions = Predictions(embeddings=embeddings)
    views = [Predictions(embeddings=embeddings + rng.normal(size=(120, 6)) / 2) for _ in range(3)]
    options = {"views": views} if "views" in signature(measure.function).parameters else {}
    u = f(predictions, **options)
    require(u.shape == (120,) and bool(np.isfinite(u).all()), f"{name} is not one finite number per row.")
    require(u[noise].mean() > u[~noise].mean(), f"{name} is more confident on noise than on rows of a cluster.")
    rows = rng.permutation(120)
    options = {role: [view.take(rows) for view in members] for role, members in options.items()}
    require(
        np.allclose(u[rows], f(predictions.take(rows), **options), atol=1e-9),
        f"{name} depends on the order of the rows.",
    )


def _members(measure: Measure, members: list[Predictions]) -> list[list[Predictions]]:
    """Predictions of all members, for every required argument: test rows, or reference and test rows."""
    arguments = signature(measure.function).parameters.values()
    return [
        members for argument in arguments if argument.default is argument.empty and argument.name not in measure.example
    ]


MEASURE_CHECKS: dict[str, tuple[Callable[[Measure], None], ...]] = {
    "plain": (check_shape_and_order, check_missing_fields, check_saturated_logits, check_sign),
    "fitted": (check_far_noise,),
    "tuned": (check_tuned_score,),
    "ensemble": (check_disagreement,),
    "gallery": (check_isolated_noise,),
}
