"""accuracy, nll, brier and the checks of (probs, labels)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import softmax

from nescio import BadInput, Undefined
from nescio.metrics import accuracy, brier, nll, outcomes
from tests.support.reference import load


@st.composite
def tied(draw):
    """(probs, labels) with few distinct values, so that classes tie within a row and zeros are common."""
    n, c = draw(st.integers(1, 12)), draw(st.integers(2, 6))
    votes = draw(hnp.arrays(np.int64, (n, c), elements=st.integers(0, 3)))
    votes[votes.sum(1) == 0] = 1
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, c - 1)))
    return votes / votes.sum(1, keepdims=True), labels


@given(tied(), st.integers(1, 6))
def test_accuracy_is_membership_in_the_first_k_of_a_stable_order(case, k):
    probs, labels = case
    if k > probs.shape[1]:
        with pytest.raises(Undefined, match="no top"):
            accuracy(probs, labels, k=k)
        return
    order = np.argsort(-probs, axis=1, kind="stable")[:, :k]
    assert accuracy(probs, labels, k=k) == np.mean([y in row for row, y in zip(order, labels, strict=True)])


@given(tied())
def test_brier_and_nll_by_definition(case):
    probs, labels = case
    one_hot = np.eye(probs.shape[1])[labels]
    assert brier(probs, labels) == pytest.approx(((probs - one_hot) ** 2).sum(1).mean(), abs=1e-14)
    own = probs[np.arange(len(labels)), labels]
    expected = -np.log(np.where(own == 0, np.finfo(np.float64).tiny, own)).mean()
    assert nll(probs, labels) == pytest.approx(expected, rel=1e-14)
    assert outcomes(probs, labels).floored == (own == 0).sum()


@given(tied())
def test_accuracy__wrong_and_accuracy_agree(case):
    probs, labels = case
    a = outcomes(probs, labels)
    assert accuracy(a) == a.correct.mean() == pytest.approx(1 - a.wrong.mean())
    assert (a.predicted == probs.argmax(1)).all()
    assert (a.correct == (a.rank == 0)).all()


@given(tied())
def test_outcomes__prepared_answers_give_the_same(case):
    probs, labels = case
    a = outcomes(probs, labels)
    for metric in (accuracy, nll, brier):
        assert metric(a) == metric(probs, labels)
    half = a.take(np.arange(a.n) % 2 == 0)
    assert nll(half) == pytest.approx(nll(probs[::2], labels[::2]), rel=1e-14)
    assert half.floored == outcomes(probs[::2], labels[::2]).floored


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_outcomes__a_zero_is_the_smallest_normal_number_of_float64_whatever_the_dtype(dtype):
    probs = np.array([[0, 1], [0.5, 0.5]], dtype)
    a = outcomes(probs, [0, 0])
    assert a.log_loss[0] == pytest.approx(-np.log(np.finfo(np.float64).tiny), rel=1e-12)
    assert a.floored == 1


def test_outcomes__uncertainty_of_a_saturated_float32_row_comes_from_the_other_classes():
    probs = np.array([[1.0, 1e-12, 3e-12], [1.0, 1e-12, 1e-12], [0.6, 0.4, 0.0]], np.float32)
    a = outcomes(probs, [0, 0, 0])
    np.testing.assert_allclose(a.uncertainty[:2], [4e-12, 2e-12], rtol=1e-6)
    assert a.uncertainty[2] == 1 - np.float64(np.float32(0.6))


def test_nll__equal_to_scikit_learn():
    from sklearn.metrics import log_loss, top_k_accuracy_score

    rng = np.random.default_rng(0)
    probs = softmax(rng.normal(size=(500, 7)) * 2, axis=1)
    labels = rng.integers(7, size=500)
    assert nll(probs, labels) == pytest.approx(log_loss(labels, probs, labels=np.arange(7)), rel=1e-12)
    for k in (1, 2, 5):
        assert accuracy(probs, labels, k=k) == top_k_accuracy_score(labels, probs, k=k, labels=np.arange(7))


def test_brier__closed_forms():
    labels = np.arange(4)
    uniform, certain = np.full((4, 4), 0.25), np.eye(4)
    assert nll(uniform, labels) == pytest.approx(np.log(4))
    assert brier(uniform, labels) == pytest.approx(0.75)
    assert accuracy(uniform, labels) == 0.25  # ties go to the lower class
    assert (nll(certain, labels), brier(certain, labels), accuracy(certain, labels)) == (0, 0, 1)
    assert brier(certain, (labels + 1) % 4) == 2
    assert accuracy([[0.2, 0.8]], [1]) == 1  # one row, plain lists


def test_nll__uimnet_accuracy_and_nll():
    r = load("uimnet_ece")
    probs, labels = softmax(r["logits"], axis=1), r["labels"]
    assert accuracy(probs, labels) == pytest.approx(r["acc1"], abs=1e-7)  # a float32 mean there
    assert accuracy(probs, labels) == pytest.approx(r["fused_ACC@1"], abs=1e-12)
    assert accuracy(probs, labels, k=5) == pytest.approx(r["acc5"], abs=1e-7)
    assert accuracy(probs, labels, k=5) == pytest.approx(r["fused_ACC@5"], abs=1e-12)  # one process: truly top 5
    assert nll(probs, labels) == pytest.approx(r["nll"], rel=1e-12)
    assert nll(probs, labels) == pytest.approx(r["fused_NLL"], rel=1e-7)  # summed in float32 there


GOOD = np.full((3, 2), 0.5)


@pytest.mark.parametrize(
    ("probs", "labels", "sentence"),
    [
        (GOOD, None, "labels is missing"),
        (GOOD[0], [0], "probs has shape"),
        (GOOD, [[0], [1], [0]], "labels has shape"),
        (GOOD, [0, 1], "labels has 2 rows, probs has 3"),
        (np.ones((3, 1)), [0, 0, 0], "one class only"),
        (np.ones((0, 2)), [], "no rows"),
        (GOOD, [0, 1, 2], "labels contains 2 in row 2"),
        (GOOD, [0, -1, 0], "labels contains -1 in row 1"),
        (GOOD, [0, 0.5, 0], r"labels.*row 1"),
        (GOOD, ["a", "b", "a"], "labels must be numbers, got <U1"),
        ([[0.5, 0.5], [1.0]], [0, 1], "different lengths"),
        ([[0.5, 0.5], [0.5, 0.5], [0.5, 0.51]], [0, 1, 0], "row 2 is off by 0.01"),
        (np.array([[0.5, 0.5], [1.5, -0.5]]), [0, 1], r"negative.*row 1"),
        (np.array([[0.5, 0.5], [np.nan, 0.5]]), [0, 1], r"finite.*row 1"),
        (np.array([[np.inf, 0.5], [0.5, 0.5]]), [0, 1], r"finite.*row 0"),
    ],
)
def test_nll__bad_input_is_one_sentence(probs, labels, sentence):
    with pytest.raises(BadInput, match=sentence):
        nll(probs, labels)


def test_nll__half_precision_may_be_off_by_one_percent():
    probs = np.array([[0.5, 0.505]])
    with pytest.raises(BadInput, match=r"row 0 is off by 0\.005"):
        nll(probs, [0])
    assert nll(probs.astype(np.float16), [0]) == pytest.approx(np.log(2), rel=1e-3)


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_accuracy__bad_k(k):
    with pytest.raises(BadInput, match="k is"):
        accuracy(GOOD, [0, 0, 0], k=k)


def test_outcomes__prepared_answers_have_their_labels():
    with pytest.raises(BadInput, match="leave labels out"):
        nll(outcomes(GOOD, [0, 0, 0]), [0, 0, 0])


def test_outcomes__blocks_do_not_show(monkeypatch):
    from nescio.metrics import _outcomes

    rng = np.random.default_rng(0)
    probs, labels = softmax(rng.normal(size=(50, 5)), axis=1), rng.integers(5, size=50)
    whole = outcomes(probs, labels)
    monkeypatch.setattr(_outcomes, "BLOCK", 15)
    blocked = outcomes(probs, labels)
    for name in ("predicted", "correct", "confidence", "uncertainty", "log_loss", "brier", "rank", "zero"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(blocked, name))
    probs[40, 0] += 1
    with pytest.raises(BadInput, match="row 40"):
        outcomes(probs, labels)


@pytest.mark.parametrize("k", ["x", "1", None, 1.5, 0, -1, np.nan, np.inf, True, np.True_, [1], np.array([1])])
def test_accuracy__an_odd_k_is_one_sentence(k):
    with pytest.raises(BadInput, match=r"k is .*whole number from 1"):
        accuracy([[0.5, 0.5]], [0], k=k)


def test_accuracy__a_whole_k_of_any_type_is_taken():
    probs = [[0.6, 0.4], [0.6, 0.4]]
    assert [accuracy(probs, [0, 1], k=k) for k in (1, 1.0, np.int8(1), np.float32(2))] == [0.5, 0.5, 0.5, 1]
