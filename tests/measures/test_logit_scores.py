"""Scores of logits beyond the softmax, against plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nescio import BadInput, Predictions, Undefined, measures, scorecard
from nescio.measures.logit_scores import TunedScore, msp_tuned
from nescio.metrics import aurc

LOGITS = arrays(
    np.float64, st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(2, 7)), elements=st.floats(-9, 9)
)


def probs_of(row):
    """Mean over draws, by loops."""
    total = [0.0] * len(row[0])
    for draw in row:
        e = [math.exp(z - max(draw)) for z in draw]
        total = [t + x / sum(e) / len(row) for t, x in zip(total, e, strict=True)]
    return total


def pnorm_loop(row, p):
    values = []
    for draw in row:
        centred = [z - sum(draw) / len(draw) for z in draw]
        norm = sum(abs(z) ** p for z in centred) ** (1 / p)
        values.append(max(centred) / norm if norm > 1e-12 else 0.0)
    return -sum(values) / len(values)


def gen_loop(p, gamma, top):
    return sum((q * (1 - q)) ** gamma for q in sorted(p)[::-1][:top])


@given(LOGITS)
def test_tsallis__entropies_are_their_definitions(z):
    dump = Predictions(logits=z.copy())
    ps = [probs_of(row) for row in z]
    close = {"rtol": 1e-7, "atol": 1e-8}
    np.testing.assert_allclose(measures.renyi(dump), [2 * math.log(sum(q**0.5 for q in p)) for p in ps], **close)
    np.testing.assert_allclose(measures.tsallis(dump), [1 - sum(q * q for q in p) for p in ps], **close)
    np.testing.assert_allclose(measures.tsallis(dump, 3.0), [(1 - sum(q**3 for q in p)) / 2 for p in ps], **close)
    np.testing.assert_allclose(measures.doctor(dump), [1 / sum(q * q for q in p) - 1 for p in ps], **close)
    np.testing.assert_array_equal(dump.logits, z)  # nothing was written into the dump


@given(LOGITS, st.integers(1, 8))
def test_gen_and_pnorm_are_their_definitions(z, top):
    dump = Predictions(logits=z)
    ps = [probs_of(row) for row in z]
    # where p is 1 to rounding, a loop over p has lost 1 − p
    sure = np.array([max(p) > 1 - 1e-6 for p in ps])
    np.testing.assert_allclose(
        measures.gen(dump, top=top)[~sure], np.array([gen_loop(p, 0.1, top) for p in ps])[~sure], rtol=1e-6
    )
    spread = np.ptp(z, axis=2).min(1) > 1e-3
    np.testing.assert_allclose(
        measures.pnorm(dump)[spread], np.array([pnorm_loop(row, 5) for row in z])[spread], rtol=1e-9
    )
    np.testing.assert_allclose(
        measures.pnorm(dump, 2)[spread], np.array([pnorm_loop(row, 2) for row in z])[spread], rtol=1e-9
    )


def test_logit_scores__confident_rows_keep_their_order():
    margins = np.linspace(30, 60, 7)
    dump = Predictions(logits=np.stack([margins, np.zeros(7), np.zeros(7) - 1], axis=1))
    for name in ("gen", "renyi", "tsallis", "doctor"):
        assert (np.diff(getattr(measures, name)(dump)) < 0).all(), name


def test_pnorm_does_not_know_the_scale_of_the_logits():
    z = np.random.default_rng(0).normal(size=(40, 9))
    u = measures.pnorm(Predictions(logits=z))
    np.testing.assert_allclose(measures.pnorm(Predictions(logits=7 * z + 3)), u, rtol=1e-12)
    assert measures.pnorm(Predictions(logits=np.ones((2, 3)))).tolist() == [0, 0]
    masked = np.where(np.arange(9) == 4, -np.inf, z)
    np.testing.assert_allclose(
        measures.pnorm(Predictions(logits=masked)), measures.pnorm(Predictions(logits=np.delete(z, 4, 1))), rtol=1e-12
    )


def test_logit_scores__probabilities_will_do_where_they_say_enough():
    z = np.random.default_rng(0).normal(size=(30, 5))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    for name in ("gen", "renyi", "tsallis", "pnorm"):
        f = getattr(measures, name)
        np.testing.assert_allclose(f(Predictions(probs=p)), f(Predictions(logits=z)), rtol=1e-6)


def test_logit_scores__an_alias_ranks_as_its_measure_and_is_reported_once():
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=300)
    embeddings = 2 * np.eye(4)[labels] + rng.normal(size=(300, 4))
    dump = Predictions(labels=labels, logits=embeddings, embeddings=embeddings)
    for name, part in measures.registry.items():
        if part.equivalent_to:
            u, v = (
                f(dump) if part.kind == "plain" else f(dump)(dump)
                for f in (part.function, measures.registry[part.equivalent_to].function)
            )
            np.testing.assert_array_equal(np.argsort(u, kind="stable"), np.argsort(v, kind="stable"), err_msg=name)
    card = scorecard(dump, train=dump)
    shown = {row["measure"] for row in card.rows}
    assert {"tsallis", "mahalanobis"} <= shown and not {"doctor", "mds"} & shown
    reasons = {row["measure"]: row["reason"] for row in card.reasons}
    assert "tsallis" in reasons["doctor"] and "mahalanobis" in reasons["mds"]
    assert "doctor" in {row["measure"] for row in scorecard(dump, only=["doctor"]).rows}


def test_renyi__orders_and_powers_are_checked():
    dump = Predictions(logits=np.eye(3))
    for wrong in (
        lambda: measures.renyi(dump, 1.0),
        lambda: measures.gen(dump, top=0),
        lambda: measures.pnorm(dump, 0),
    ):
        with pytest.raises(BadInput):
            wrong()
    with pytest.raises(Undefined):
        measures.gen(Predictions(labels=[0, 1]))


# ---- parts


def entropies(p):
    return {
        "log": -sum(q * math.log(q) for q in p if q),
        "brier": 1 - sum(q * q for q in p),
        "zero_one": 1 - max(p),
    }


@given(LOGITS)
def test_decomposition__the_parts_are_their_definitions(z):
    parts = measures.decomposition(Predictions(logits=z))
    for row, draws in enumerate(z):
        members = [entropies(probs_of([draw])) for draw in draws]
        whole = entropies(probs_of(draws))
        for score in whole:
            own = sum(member[score] for member in members) / len(members)
            assert parts[score]["total"][row] == pytest.approx(whole[score], abs=1e-9)
            assert parts[score]["aleatoric"][row] == pytest.approx(own, abs=1e-9)
            assert parts[score]["epistemic"][row] == pytest.approx(max(whole[score] - own, 0), abs=1e-9)


def test_decomposition__the_log_parts_are_the_measures_that_were_there():
    dump = Predictions(logits=np.random.default_rng(0).normal(size=(20, 3, 4)))
    parts = measures.decomposition(dump)["log"]
    for part, name in (("total", "entropy"), ("aleatoric", "expected_entropy"), ("epistemic", "mutual_information")):
        np.testing.assert_allclose(parts[part], getattr(measures, name)(dump), atol=1e-12)


def test_zero_one_epistemic__draws_of_one_member_are_averaged_before_members_are_compared():
    z = np.random.default_rng(0).normal(size=(20, 4, 3))
    grouped = measures.brier_epistemic(Predictions(logits=z, members=[0, 0, 1, 1]))
    p = np.exp(z) / np.exp(z).sum(2, keepdims=True)
    members = [p[:, :2].mean(1), p[:, 2:].mean(1)]
    np.testing.assert_allclose(grouped, ((members[0] - members[1]) ** 2).sum(1) / 4, atol=1e-12)
    assert (measures.zero_one_epistemic(Predictions(logits=z[:, :1])) == 0).all()


def test_zero_one_epistemic__members_that_agree_on_the_answer_lose_exactly_nothing():
    z = np.random.default_rng(0).normal(size=(50, 3, 4))
    z[:, :, 2] += 9
    assert (measures.zero_one_epistemic(Predictions(logits=z)) == 0).all()


# ---- tuned


def broken(seed, n=2000):
    """A network whose surest predictions are wrong: the scale of its logits says nothing."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(5, size=n)
    z = 3 * np.eye(5)[labels] + 1.5 * rng.normal(size=(n, 5))
    wrong = z.argmax(1) != labels
    return Predictions(labels=labels, logits=z * np.where(wrong, 8, rng.uniform(0.2, 2, n))[:, None])


def test_pnorm_tuned__pnorm_repairs_a_broken_confidence_and_falls_back_where_nothing_is_broken():
    val, test = broken(0), broken(1)
    wrong = test.logits[:, 0].argmax(1) != test.labels
    tuned = measures.pnorm_tuned(val)
    assert tuned.option in range(1, 10)
    assert aurc(tuned(test), wrong) < 0.7 * aurc(measures.msp(test), wrong)
    rng = np.random.default_rng(0)
    z = rng.normal(size=(3000, 3)) * rng.uniform(0.1, 6, size=(3000, 1))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    honest = Predictions(logits=z, labels=[rng.choice(3, p=row) for row in p])
    fitted = measures.pnorm_tuned(honest)
    assert fitted.option is None
    np.testing.assert_array_equal(fitted(honest), measures.msp(honest))


def test_msp_tuned__the_tuned_temperature_is_the_best_of_those_offered():
    val = broken(0)
    tuned = measures.msp_tuned(val, temperatures=(0.5, 4.0))
    wrong = val.logits[:, 0].argmax(1) != val.labels
    at = {t: aurc(measures.msp(val.replace(logits=val.logits / t)), wrong) for t in (0.5, 1.0, 4.0)}
    best = min(at, key=at.get)
    assert tuned.aurc == pytest.approx(at[best]) and (tuned.option or 1.0) == best


def test_logit_scores__tuned_scores_need_held_out_rows_and_set_no_threshold_on_them():
    val, test = broken(0, 300), broken(1, 300)
    without = scorecard(test)
    assert any(r["measure"] == "pnorm_tuned" and "val" in r["reason"] for r in without.reasons)
    card = scorecard(test, val=val)
    assert {"pnorm_tuned", "msp_tuned"} <= {row["measure"] for row in card.rows if row["metric"] == "auroc"}
    assert not [r for r in card.rows if r["measure"] == "pnorm_tuned" and r["metric"] == "in_as_in"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1.0, 1e300, 1.2e307])
def test_tuned_score__tuning_of_huge_logits(scale):
    """Divided by a temperature they would overflow; what they say is that the largest logit takes all."""
    labels = np.arange(40) % 4
    logits = 3 * np.eye(4)[labels] + np.random.default_rng(7).normal(size=(40, 4))
    at_a_tenth = TunedScore("msp", 0.1, 0.0)
    u = at_a_tenth(Predictions(labels=labels, logits=logits * scale))
    np.testing.assert_allclose(u, at_a_tenth(Predictions(labels=labels, logits=logits * min(scale, 1e9))))
    assert msp_tuned(Predictions(labels=labels, logits=logits * scale)).aurc <= 1
