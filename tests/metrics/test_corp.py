"""Reliability without bins against loops and scikit-learn's isotonic regression."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.isotonic import IsotonicRegression

from nescio import BadInput, Undefined
from nescio.metrics import (
    classwise_mcb,
    corp,
    corp_band,
    corp_curve,
    dsc,
    ece,
    mcb,
    top_k_ece,
    top_k_mcb,
    unc,
)


def case(seed=0, n=300, c=6, sharper=1.0):
    rng = np.random.default_rng(seed)
    probs = softmax(2 * rng.normal(size=(n, c)), axis=1)
    labels = np.array([rng.choice(c, p=row) for row in probs])
    return softmax(sharper * np.log(probs), axis=1), labels


def tied(seed=0):
    """Confidences with many ties, and whether each is right."""
    rng = np.random.default_rng(seed)
    x = rng.random(300).round(2)
    return x, (rng.random(300) < x**2).astype(float)


def by_pooling(x, y):
    """Pool adjacent violators, one pair at a time."""
    pools = [[y[x == value].mean(), (x == value).sum(), 1] for value in np.unique(x)]
    at = 0
    while at + 1 < len(pools):
        (a, n, size), (b, m, more) = pools[at : at + 2]
        if a >= b:
            pools[at : at + 2] = [[(a * n + b * m) / (n + m), n + m, size + more]]
            at = max(at - 1, 0)
        else:
            at += 1
    return np.repeat([pool[0] for pool in pools], [pool[2] for pool in pools])


@pytest.mark.parametrize("seed", range(5))
def test_corp_curve__the_diagram_is_that_of_sklearn_and_of_pooling_by_hand(seed):
    x, y = tied(seed)
    curve = corp(x, y)
    np.testing.assert_allclose(curve.calibrated, by_pooling(x, y), atol=1e-12)
    again = IsotonicRegression().fit(x, y).predict(curve.confidence)
    np.testing.assert_allclose(curve.calibrated, again, atol=1e-12)
    assert (np.diff(curve.calibrated) >= 0).all() and curve.count.sum() == len(y)
    probs, labels = case(seed)
    own = corp(probs.max(1), probs.argmax(1) == labels)
    np.testing.assert_array_equal(corp_curve(probs, labels).calibrated, own.calibrated)


@pytest.mark.parametrize("seed", range(5))
def test_unc__the_parts_sum_to_the_brier_score_of_being_right(seed):
    probs, labels = case(seed)
    x, y = probs.max(1), (probs.argmax(1) == labels).astype(float)
    q = IsotonicRegression().fit_transform(x, y)
    score, calibrated, base = np.mean((x - y) ** 2), np.mean((q - y) ** 2), np.mean((y.mean() - y) ** 2)
    assert mcb(probs, labels) == pytest.approx(score - calibrated, abs=1e-12)
    assert dsc(probs, labels) == pytest.approx(base - calibrated, abs=1e-12)
    assert unc(probs, labels) == pytest.approx(base, abs=1e-12)
    assert mcb(probs, labels) - dsc(probs, labels) + unc(probs, labels) == pytest.approx(score, abs=1e-12)


def test_corp__only_the_order_of_confidence_bounds_what_calibration_can_reach():
    """A rising map of the confidence changes MCB and nothing else; its own isotonic fit has none left."""
    probs, labels = case(n=2000)
    x, right = probs.max(1), probs.argmax(1) == labels
    curve, mapped = corp(x, right), corp(x**3, right)
    assert mapped.mcb > curve.mcb + 0.01 and mapped.dsc == pytest.approx(curve.dsc) and mapped.unc == curve.unc
    q = IsotonicRegression().fit_transform(x, right.astype(float))
    assert corp(q, right).mcb == pytest.approx(0, abs=1e-12)


def test_mcb__sharper_answers_are_less_calibrated():
    assert mcb(*case(n=2000, sharper=3.0)) > 3 * mcb(*case(n=2000))


@pytest.mark.parametrize("seed", range(3))
def test_classwise_mcb__classwise_is_the_mean_over_classes(seed):
    probs, labels = case(seed)
    parts = []
    for j in range(probs.shape[1]):
        y = (labels == j).astype(float)
        q = IsotonicRegression().fit_transform(probs[:, j], y)
        parts.append(np.mean((probs[:, j] - y) ** 2) - np.mean((q - y) ** 2))
    assert classwise_mcb(probs, labels) == pytest.approx(np.mean(parts), abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_mcb__top_k_sums_the_largest_probabilities(k):
    probs, labels = case()
    order = np.argsort(-probs, axis=1, kind="stable")[:, :k]
    x = np.array([row[own].sum() for row, own in zip(probs, order, strict=True)])
    y = np.array([label in own for label, own in zip(labels, order, strict=True)], float)
    gaps = [abs((y - x)[(x > i / 15) & (x <= (i + 1) / 15)].sum()) for i in range(15)]
    assert top_k_ece(probs, labels, k) == pytest.approx(sum(gaps) / len(y), abs=1e-12)
    q = IsotonicRegression().fit_transform(x, y)
    assert top_k_mcb(probs, labels, k) == pytest.approx(np.mean((x - y) ** 2) - np.mean((q - y) ** 2), abs=1e-9)
    if k == 1:
        assert top_k_ece(probs, labels, 1) == pytest.approx(ece(probs, labels), abs=1e-12)


def test_top_k_mcb__more_classes_than_there_are():
    probs, labels = case()
    with pytest.raises(Undefined, match="no top 7"):
        top_k_mcb(probs, labels, 7)
    assert top_k_ece(probs, labels, 6) == pytest.approx(0, abs=1e-12)


def test_corp_band__a_calibrated_diagram_stays_in_its_consistency_band_and_a_sharpened_one_leaves_it():
    rng = np.random.default_rng(0)
    inside = []
    for seed in range(20):
        x = rng.random(400).round(2)
        curve = corp(x, rng.random(400) < x)
        low, high = corp_band(curve, level=0.9, resamples=100, seed=seed)
        inside.append(((curve.calibrated >= low - 1e-12) & (curve.calibrated <= high + 1e-12)).mean())
    assert 0.85 <= np.mean(inside) <= 0.97
    skewed = corp(x, rng.random(400) < x**3)
    low, high = corp_band(skewed)
    assert ((skewed.calibrated < low) | (skewed.calibrated > high)).mean() > 0.4


def test_corp_band__a_confidence_band_follows_the_diagram():
    rng = np.random.default_rng(1)
    x = rng.random(2000).round(2)
    curve = corp(x, rng.random(2000) < x**3)
    low, high = corp_band(curve, kind="confidence")
    assert ((x_ := curve.confidence) ** 3 >= low - 0.02).mean() > 0.8 and (x_**3 <= high + 0.02).mean() > 0.8
    at = np.array([0, 50, 100])
    np.testing.assert_array_equal(corp_band(curve, at, "confidence")[0], low[at])
    with pytest.raises(BadInput, match="kind"):
        corp_band(curve, kind="other")
    with pytest.raises(BadInput, match="level"):
        corp_band(curve, level=2)
