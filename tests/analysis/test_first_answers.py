"""Files that hold the first answer of a model only: what needs no more is said, and the rest has a reason."""

import numpy as np
import pytest

from nescio import Predictions, Undefined, metrics
from nescio.analysis.bootstrap import add_intervals, bootstrap
from nescio.analysis.comparison import compare
from nescio.analysis.scorecard import scorecard
from nescio.analysis.thresholds import guarantee_threshold

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(400, 5)) * 2
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
LABELS = np.array([RNG.choice(5, p=p) for p in PROBS])
WHOLE = Predictions(logits=LOGITS, labels=LABELS)
FIRST = Predictions(labels=LABELS, predicted=PROBS.argmax(1), confidence=PROBS.max(1))
BARE = Predictions(correct=PROBS.argmax(1) == LABELS, confidence=PROBS.max(1))


@pytest.mark.parametrize("dump", [FIRST, BARE], ids=["label, pred, conf", "correct, conf"])
def test_add_intervals__what_needs_no_more_is_as_if_all_were_known(dump):
    card, all_of = scorecard(dump), scorecard(WHOLE)
    for metric in ("accuracy", "ece"):
        assert card.value(metric) == pytest.approx(all_of.value(metric), rel=1e-9)
    for metric in ("auroc", "aurc", "augrc", "sac@0.9", "fpr_at_tpr@0.95", "e_aurc"):
        assert card.value(metric, "msp") == pytest.approx(all_of.value(metric, "msp"), rel=1e-9)
    for metric, measure, words in (
        ("nll", None, "NLL needs the probabilities of all classes"),
        ("brier", None, "needs the probabilities of all classes"),
        ("accuracy@5", None, "there is no top 5"),
        ("classwise_ece", None, "no probabilities"),
        ("auroc", "entropy", "entropy needs"),
        ("calibrated", None, "validation"),
    ):
        with pytest.raises(Undefined, match=words):
            card.value(metric, measure)
    assert set(card.curves) == {"reliability", "risk_coverage", "histogram", "corp"}
    add_intervals(card, resamples=20)
    assert next(row for row in card.rows if row["metric"] == "ece")["low"] is not None


def test_scorecard__out_of_distribution_rows_by_their_confidence():
    card = scorecard(
        FIRST, ood={"far": Predictions(confidence=PROBS.max(1) / 2, in_distribution=False)}, val=FIRST.take(slice(50))
    )
    assert card.value("auroc", "msp", split="far") > 0.9


def test_bootstrap__models_are_compared_by_their_first_answers():
    found = compare({"whole": WHOLE, "first": FIRST, "bare": BARE}, resamples=50)
    for metric in ("accuracy", "ece", "auroc", "augrc"):
        rows = [row for row in found.rows if row["metric"] == metric]
        assert (
            len(rows) == 3 and len({round(row["value"], 9) for row in rows}) == 1 and all(row["best"] for row in rows)
        )
    assert [row["method"] for row in found.rows if row["metric"] == "nll"] == ["whole"]
    assert any("'first'" in reason["reason"] and reason["metric"] == "nll" for reason in found.reasons)
    assert (None, "accuracy") in bootstrap(BARE, resamples=20)


def test_compare__two_files_that_number_the_same_names_differently_are_compared():
    names = np.array(["ant", "bee", "cat", "dog", "eel"])
    one = Predictions(labels=names[LABELS], predicted=names[PROBS.argmax(1)], confidence=PROBS.max(1))
    other = Predictions(logits=LOGITS[:, ::-1], labels=names[LABELS], class_names=names[::-1])
    found = compare({"one": one, "other": other}, metrics=["accuracy"], resamples=20)
    assert len({row["value"] for row in found.rows}) == 1


def test_guarantee_threshold__a_threshold_on_the_confidence():
    for dump in (FIRST, BARE):
        found, whole = guarantee_threshold(dump, risk=0.3), guarantee_threshold(WHOLE, risk=0.3)
        assert found.guarantee.accepted == whole.guarantee.accepted > 0


def test_scorecard__answers_without_confidence_are_counted():
    card = scorecard(Predictions(labels=LABELS, predicted=PROBS.argmax(1)))
    assert card.value("accuracy") == pytest.approx(metrics.accuracy(PROBS, LABELS))
    with pytest.raises(Undefined, match="confidence"):
        card.value("ece")
