"""ece, classwise_ece and the reliability curve."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from nescio import BadInput, Predictions
from nescio.measures._softmax_pass import prob_blocks, summary
from nescio.metrics import classwise_ece, ece, reliability_curve
from nescio.metrics._calibration import bin_index, bins_of, classwise_ece_from_blocks
from tests.metrics.test_outcomes import tied
from tests.support.reference import load


def by_definition(confidence, right, bins):
    """Guo et al. (2017), one bin at a time."""
    total = 0.0
    for i in range(bins):
        inside = (confidence > i / bins) & (confidence <= (i + 1) / bins) | ((i == 0) & (confidence == 0))
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


@given(tied(), st.integers(1, 20))
def test_ece_by_definition(case, bins):
    probs, labels = case
    expected = by_definition(probs.max(1), probs.argmax(1) == labels, bins)
    assert ece(probs, labels, bins=bins) == pytest.approx(expected, abs=1e-13)


@given(tied(), st.integers(1, 20))
def test_calibration__mass_bins_by_definition(case, bins):
    probs, labels = case
    confidence, right = probs.max(1), probs.argmax(1) == labels
    expected = 0.0
    for rows in np.array_split(np.argsort(confidence, kind="stable"), bins):
        if len(rows):
            expected += len(rows) / len(labels) * abs(right[rows].mean() - confidence[rows].mean())
    assert ece(probs, labels, bins=bins, scheme="mass") == pytest.approx(expected, abs=1e-13)


@given(tied(), st.integers(1, 20))
def test_classwise_ece_by_definition(case, bins):
    probs, labels = case
    c = probs.shape[1]
    expected = np.mean([by_definition(probs[:, j], labels == j, bins) for j in range(c)])
    assert classwise_ece(probs, labels, bins=bins) == pytest.approx(expected, abs=1e-13)


@given(tied(), st.integers(1, 20))
def test_ece__the_curve_sums_to_the_ece(case, bins):
    probs, labels = case
    curve = reliability_curve(probs, labels, bins=bins)
    assert curve.count.sum() == len(labels) and (curve.count > 0).all()
    total = (curve.count / len(labels) * np.abs(curve.accuracy - curve.confidence)).sum()
    assert total == pytest.approx(ece(probs, labels, bins=bins), abs=1e-13)
    assert ((curve.confidence > curve.low - 1e-12) & (curve.confidence <= curve.high + 1e-12)).all()


@pytest.mark.parametrize("edge", range(1, 11))
def test_reliability_curve__a_confidence_on_an_edge_belongs_below_it(edge):
    """Two rows, on the edge and just above it; only in one bin do their gaps cancel."""
    top = edge / 10
    c = 20
    probs = np.full((2, c), (1 - top) / (c - 1))
    probs[:, 0] = top
    if edge < 10:
        probs[1, 0] = np.nextafter(top, 1)
    curve = reliability_curve(probs, [0, 1], bins=10)
    np.testing.assert_allclose(curve.high, [top] if edge == 10 else [top, (edge + 1) / 10])


def test_reliability_curve__certainty_is_in_the_last_bin_and_zero_in_the_first():
    probs, labels = np.eye(3)[[0, 1, 2, 0]], np.array([0, 1, 2, 1])
    assert ece(probs, labels) == 0.25
    assert reliability_curve(probs, labels).high == [1.0]
    # Class 0 has p = 0 in two rows, none of them labelled 0: no gap.
    assert classwise_ece(probs, labels) == pytest.approx((0.25 + 0.25 + 0) / 3)


def test_calibration__mass_is_not_width():
    probs = np.array([[0.95, 0.05], [0.94, 0.06], [0.93, 0.07], [0.55, 0.45]])
    labels = [0, 1, 0, 1]
    assert ece(probs, labels, bins=2) == pytest.approx(abs((0.95 + 0.94 + 0.93 + 0.55) - 2) / 4)
    low, high = abs(0.55 + 0.93 - 1), abs(0.94 + 0.95 - 1)
    assert ece(probs, labels, bins=2, scheme="mass") == pytest.approx((low + high) / 4)


def test_calibration__uimnet():
    r = load("uimnet_ece")
    probs, labels = softmax(r["logits"], axis=1), r["labels"]
    ours = ece(probs, labels)
    assert ours == pytest.approx(r["ece15"], abs=1e-7)  # float32 sums there
    assert ours == pytest.approx(r["fused_ECE"], abs=1e-7)
    assert ours == pytest.approx(r["x_torchmetrics_ece15"], abs=1e-6)
    assert ours != pytest.approx(r["ece15"] / 15, rel=0.5)  # the paper's printed factor 1/B is not there
    dump = Predictions(logits=r["logits"], labels=labels)
    assert ece(summary(dump).outcomes()) == pytest.approx(ours, abs=1e-14)


def test_calibration__equal_to_torchmetrics_away_from_certainty():
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("torchmetrics.functional.classification")
    rng = np.random.default_rng(0)
    probs, labels = softmax(rng.normal(size=(2000, 5)) * 1.5, axis=1), rng.integers(5, size=2000)
    theirs = functional.multiclass_calibration_error(torch.tensor(probs), torch.tensor(labels), 5, n_bins=15)
    assert ece(probs, labels) == pytest.approx(float(theirs), abs=1e-6)


@given(tied(), st.sampled_from([np.float64, np.float32]), st.sampled_from([4, 5, 10, 15, 20]))
def test_calibration__probabilities_kept_as_logarithms_stay_in_their_bins(case, dtype, bins):
    """3/5 must not leave the bin (8/15, 9/15] by going through its logarithm."""
    probs, labels = case
    probs = probs.astype(dtype)
    dump = Predictions(probs=probs, labels=labels)
    assert ece(summary(dump).outcomes(), bins=bins) == pytest.approx(ece(probs, labels, bins=bins), abs=1e-6)


def test_bin_index__logarithms_in_float16_move_few_rows_to_another_bin():
    """Only what may have been on an edge before it was rounded, a step of float16 or two, goes back to it."""
    rng = np.random.default_rng(0)
    logs = log_softmax(rng.normal(size=(20_000, 10)) * 2, axis=1)
    labels = rng.integers(10, size=len(logs))
    dump = summary(Predictions(logits=logs.astype(np.float16), labels=labels, normalized=True)).outcomes()
    moved = bins_of(dump, 15, "width") != bin_index(dump.confidence, 15)
    assert 0 < moved.mean() < 0.01
    assert ece(dump) == pytest.approx(ece(np.exp(logs), labels), abs=2e-4)


def test_classwise_ece_from_blocks__classwise_ece_of_a_dump_in_blocks():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(40_000, 2, 4)), rng.integers(4, size=40_000)
    dump = Predictions(logits=logits, labels=labels)
    expected = classwise_ece(softmax(logits, axis=2).mean(1), labels)
    assert classwise_ece_from_blocks(prob_blocks(dump)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("bins", [0, -3, 2.5, True])
@pytest.mark.parametrize("metric", [ece, classwise_ece, reliability_curve])
def test_calibration__bad_bins(metric, bins):
    with pytest.raises(BadInput, match="bins is"):
        metric([[0.5, 0.5]], [0], bins=bins)


def test_classwise_ece_from_blocks__bad_scheme_and_no_rows():
    with pytest.raises(BadInput, match="'width' or 'mass'"):
        ece([[0.5, 0.5]], [0], scheme="equal")
    with pytest.raises(BadInput, match="no rows"):
        classwise_ece_from_blocks([])


@pytest.mark.parametrize("bins", ["x", "15", None, 1.5, 0, -3, np.nan, np.inf, True, [15]])
@pytest.mark.parametrize("function", [ece, classwise_ece, reliability_curve])
def test_calibration__odd_bins_are_one_sentence(function, bins):
    with pytest.raises(BadInput, match=r"bins is .*whole number from 1"):
        function([[0.5, 0.5]], [0], bins=bins)


def test_reliability_curve__whole_bins_of_any_type_are_taken():
    probs, labels = [[0.6, 0.4], [0.9, 0.1]], [0, 1]
    for scheme in ("width", "mass"):
        assert ece(probs, labels, bins=5.0, scheme=scheme) == ece(probs, labels, bins=5, scheme=scheme)
    assert classwise_ece(probs, labels, bins=5.0) == classwise_ece(probs, labels, bins=np.int8(5))
    assert len(reliability_curve(probs, labels, bins=5.0).count) == 2
