"""Selective prediction against its definitions, its closed forms and the originals' values."""

from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nescio import BadInput, Undefined
from nescio.metrics import (
    Ranking,
    augrc,
    aulc,
    aurc,
    aurc_over,
    auroc,
    brier,
    e_aurc,
    ece,
    nll,
    outcomes,
    raulc,
    risk_coverage,
    sac,
    selective_risk,
)
from nescio.metrics._ranking import row_count
from tests.support.reference import load, note

TIED = st.sampled_from([-2.0, -0.5, -0.0, 0.0, 0.5, 3.0])


def rows(largest):
    return st.lists(st.tuples(TIED, st.booleans()), min_size=1, max_size=largest).map(
        lambda pairs: (np.array([u for u, _ in pairs]), np.array([w for _, w in pairs]))
    )


def errors_by_rows(u, wrong):
    """Expected errors among the i surest rows: all surer groups, and an even share of the group that is cut."""
    expected = []
    for i in range(1, len(u) + 1):
        t = sorted(u)[i - 1]
        share = Fraction(i - int((u < t).sum()), int((u == t).sum()))
        expected.append(int(wrong[u < t].sum()) + share * int(wrong[u == t].sum()))
    return expected


def brute_aurc(u, wrong):
    return float(sum(e / i for i, e in enumerate(errors_by_rows(u, wrong), 1)) / len(u))


@settings(max_examples=40)
@given(rows(6))
def test_risk_coverage__ties_are_averaged_over_all_orders(case):
    """Every order of the rows, sorted stably: the mean over orders is what nescio reports for each of them."""
    u, wrong = case
    curves = []
    for order in map(list, permutations(range(len(u)))):
        kept = wrong[order][np.argsort(u[order], kind="stable")]
        curves.append(np.cumsum(kept) / np.arange(1, len(u) + 1))
    coverage, risk = risk_coverage(u, wrong)
    assert risk == pytest.approx(np.mean(curves, axis=0), abs=1e-12)
    assert coverage.tolist() == [i / len(u) for i in range(1, len(u) + 1)]
    assert aurc(u, wrong) == pytest.approx(np.mean(curves), abs=1e-12)


@given(rows(40))
def test_augrc__areas_are_means_over_the_steps(case):
    u, wrong = case
    n, errors = len(u), errors_by_rows(u, wrong)
    assert aurc(u, wrong) == pytest.approx(brute_aurc(u, wrong), abs=1e-14)
    assert augrc(u, wrong) == float(sum(errors) / n**2)
    best = brute_aurc(wrong * (1 + np.arange(n)), wrong)
    assert e_aurc(u, wrong) == pytest.approx(brute_aurc(u, wrong) - best, abs=1e-14)
    coverage, risk = risk_coverage(u, wrong)
    assert risk == pytest.approx([float(e / i) for i, e in enumerate(errors, 1)], abs=1e-14)
    assert coverage.shape == risk.shape == (n,) and coverage[-1] == 1 and risk[-1] == pytest.approx(wrong.mean())


@given(rows(40))
def test_raulc__lift(case):
    u, wrong = case
    if wrong.all():
        for metric in (aulc, raulc):
            with pytest.raises(Undefined):
                metric(u, wrong)
        return
    lift = (1 - risk_coverage(u, wrong)[1]) / (1 - wrong.mean())
    assert aulc(u, wrong) == pytest.approx(lift.mean() - 1, abs=1e-12)
    if not wrong.any():
        assert aulc(u, wrong) == 0.0
        with pytest.raises(Undefined):
            raulc(u, wrong)
        return
    assert raulc(u, wrong) == pytest.approx(aulc(u, wrong) / aulc(wrong, wrong), abs=1e-12)
    r = wrong.mean()
    identity = (r - aurc(u, wrong)) / (r - aurc(wrong, wrong))
    assert raulc(u, wrong) == pytest.approx(identity, abs=1e-10)
    assert e_aurc(u, wrong) == pytest.approx(aurc(u, wrong) - aurc(wrong, wrong), abs=1e-15)


DECIMALS = st.sampled_from([0.05, 0.1, 0.3, 0.5, 0.55, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0, 1e-5])


@given(rows(40), DECIMALS)
def test_selective_risk_reads_the_curve(case, coverage):
    u, wrong = case
    i = -(-Fraction(str(coverage)) * len(u) // 1)
    assert selective_risk(u, wrong, coverage) == float(errors_by_rows(u, wrong)[i - 1] / i)


@given(rows(40))
def test_selective_risk_at_its_own_coverages_is_the_curve(case):
    """i/n as a float means the row i, also where its decimal text lies above i/n (5/7)."""
    u, wrong = case
    coverage, risk = risk_coverage(u, wrong)
    assert [selective_risk(u, wrong, c) for c in coverage] == pytest.approx(risk, abs=1e-14)
    assert aurc_over(u, wrong, coverage) == pytest.approx(aurc(u, wrong), abs=1e-13)


@given(rows(40), st.lists(DECIMALS, min_size=1, max_size=5))
def test_selective_risk__aurc_over_is_the_mean_of_selective_risks(case, coverages):
    u, wrong = case
    mean = np.mean([selective_risk(u, wrong, c) for c in coverages])
    assert aurc_over(u, wrong, coverages) == pytest.approx(mean, abs=1e-15)


def brute_sac(u, wrong, accuracy):
    reached = [0.0]
    for t in set(u):
        kept = u <= t
        if Fraction(int((~wrong[kept]).sum()), int(kept.sum())) >= Fraction(str(accuracy)):
            reached.append(kept.mean())
    return max(reached)


@given(rows(40), DECIMALS | st.just(0.0) | st.sampled_from([1 / 3, 2 / 3, 5 / 7, 0.1 + 0.2]))
def test_sac_is_the_largest_coverage_that_a_threshold_reaches(case, accuracy):
    u, wrong = case
    assert sac(u, wrong, accuracy) == pytest.approx(brute_sac(u, wrong, accuracy), abs=1e-15)


def test_sac_compares_whole_numbers():
    # 9 of 10 is 0.9 and 69 of 100 is 0.69, although 0.69·100 and 1 − 0.31 are not whole in floats
    for digits in range(1, 100):
        wrong = np.arange(100) >= digits
        assert sac(np.zeros(100), wrong, digits / 100) == 1.0
        assert sac(np.zeros(100), wrong, (digits + 1) / 100) == 0.0
    wrong = np.zeros(10**6, bool)
    wrong[-1] = True
    r = Ranking(np.zeros(10**6), wrong)
    assert sac(r, accuracy=0.999999) == 1.0 and sac(r, accuracy="0.99999900000000000001") == 0.0


def test_sac__a_mistake_at_the_start_does_not_end_sac():
    wrong = np.arange(1000) == 0
    assert sac(np.arange(1000), wrong, 0.99) == 1.0
    assert sac(np.arange(1000), ~wrong, 0.99) == 0.001


@pytest.mark.parametrize("n", [1, 2, 50, 1000])
def test_augrc__all_right_and_all_wrong(n):
    u = np.random.default_rng(n).normal(size=n)
    right, wrong = np.zeros(n, bool), np.ones(n, bool)
    for metric in (aurc, augrc, e_aurc, selective_risk, aurc_over):
        assert metric(u, right) == 0.0
    assert aurc(u, wrong) == selective_risk(u, wrong) == aurc_over(u, wrong) == 1.0
    assert e_aurc(u, wrong) == 0.0
    assert augrc(u, wrong) == (n + 1) / (2 * n)
    assert sac(u, right) == 1.0 and sac(u, wrong) == 0.0
    assert aulc(u, right) == 0.0
    for metric, mistakes in ((aulc, wrong), (raulc, wrong), (raulc, right)):
        with pytest.raises(Undefined):
            metric(u, mistakes)


@given(st.integers(1, 300), st.integers(1, 300))
def test_raulc__constant_and_perfect_scores_are_exact(rights, wrongs):
    wrong = np.arange(rights + wrongs) >= rights
    n, r = rights + wrongs, wrongs / (rights + wrongs)
    assert raulc(np.full(n, 7.5), wrong) == 0.0
    assert aulc(np.full(n, 7.5), wrong) == 0.0
    assert aurc(np.full(n, 7.5), wrong) == r
    assert np.all(risk_coverage(np.full(n, 7.5), wrong)[1] == pytest.approx(r))
    assert raulc(np.arange(n), wrong) == raulc(wrong, wrong) == 1.0
    assert e_aurc(np.arange(n), wrong) == e_aurc(wrong, wrong) == 0.0


def test_augrc_follows_from_auroc_and_the_error_rate():
    """Σᵢ Eᵢ counts for every error the rows that are not surer: AUGRC = r·(1 − r)·(1 − AUROC) + r²/2 + r/(2n)."""
    rng = np.random.default_rng(3)
    u, wrong = rng.integers(0, 50, 900), rng.random(900) < 0.2
    r = wrong.mean()
    expected = r * (1 - r) * (1 - auroc(u, wrong)) + r * r / 2 + r / (2 * 900)
    assert augrc(u, wrong) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("n", [10**5, 10**6])
def test_risk_coverage__large_inputs_lose_no_digits(n):
    rng = np.random.default_rng(n)
    u = rng.random(n)
    wrong = rng.random(n) < u
    for scores in (u, np.round(u, 3), np.round(u, 5)):
        risk = risk_coverage(scores, wrong)[1]
        assert aurc(scores, wrong) == pytest.approx(risk.mean(), abs=1e-14)
    kept = np.cumsum(wrong[np.argsort(u)]) / np.arange(1, n + 1)
    assert aurc(u, wrong) == pytest.approx(kept.mean(), abs=1e-14)


# ---- values of the papers and of their authors' code


class Case:
    """Reference arrays that remember which of them were looked at."""

    def __init__(self, name):
        self.arrays, self.seen = load(name), set()

    def __getitem__(self, key):
        self.seen.add(key)
        value = self.arrays[key]
        return value if value.ndim else float(value)

    def finish(self):
        assert self.seen == set(self.arrays)


def answers_of(confidence, right):
    """Answers known by confidence and rightness only: all that ECE reads."""
    anything = outcomes(np.full((len(right), 2), 0.5), np.zeros(len(right), int))
    return replace(anything, correct=right, confidence=confidence, uncertainty=1 - confidence)


GALIL_TARGETS = ((90, 0.9), (95, 0.95), (99, 0.99))


def check_ece(case, expected_equal):
    """Guo's ECE over bins (lo, hi]; MCE, the largest gap, is not ours and never below the mean gap."""
    ours = ece(answers_of(case["confidence"], case["correct"] == 1))
    for library in ("x_tm_ece15", "x_netcal_ece15"):
        assert ours == pytest.approx(case[library], abs=1e-12)
    for original, digits in (("galil", 1e-12), ("galil32", 1e-6)):
        assert (ours == pytest.approx(case[f"{original}_ece15"], abs=digits)) == expected_equal
        assert case[f"{original}_mce15"] > case[f"{original}_ece15"]


def test_ece__galil_all_correct():
    case = Case("galil_all_correct")
    u, wrong = -case["confidence"], case["correct"] == 0
    check_ece(case, expected_equal=True)
    with pytest.raises(Undefined):  # the original says NaN and TorchMetrics 0: there is no wrong row to rank
        auroc(u, wrong)
    assert np.isnan([case["galil_auroc"], case["galil32_auroc"], case["x_sk_auroc"]]).all()
    assert case["x_tm_auroc"] == 0.0
    for original in ("galil", "galil32"):
        assert aurc(u, wrong) == case[f"{original}_aurc"] == 0
        assert e_aurc(u, wrong) == case[f"{original}_eaurc"] == 0
        for percent, accuracy in GALIL_TARGETS:  # the original finds no violation and returns 0 instead of all
            assert sac(u, wrong, accuracy) == 1.0
            assert case[f"{original}_sac{percent}_start200"] == case[f"{original}_sac{percent}_start0"] == 0.0
    assert aurc(u, wrong) == case["x_np_aurc_stable"]
    assert aurc(u, wrong) - e_aurc(u, wrong) == case["x_np_aurc_opt_finite"]
    case.finish()


def test_ece__galil_all_wrong():
    case = Case("galil_all_wrong")
    u, wrong = -case["confidence"], case["correct"] == 0
    check_ece(case, expected_equal=True)
    with pytest.raises(Undefined):
        auroc(u, wrong)
    assert np.isnan([case["galil_auroc"], case["galil32_auroc"], case["x_sk_auroc"]]).all()
    assert case["x_tm_auroc"] == 0.0
    for original in ("galil", "galil32"):
        assert aurc(u, wrong) == case[f"{original}_aurc"] == 1
        # the original's optimum r + (1 − r)·ln(1 − r) takes the logarithm of 0; the empirical one is 1
        assert np.isnan(case[f"{original}_eaurc"]) and e_aurc(u, wrong) == 0
        for percent, accuracy in GALIL_TARGETS:
            for start in (0, 200):
                assert sac(u, wrong, accuracy) == case[f"{original}_sac{percent}_start{start}"] == 0
    assert aurc(u, wrong) == case["x_np_aurc_stable"]
    assert aurc(u, wrong) - e_aurc(u, wrong) == case["x_np_aurc_opt_finite"]
    case.finish()


def bracket(u, wrong, metric):
    """The metric with right rows first, and with wrong rows first, inside each tie group."""
    ranks = 2.0 * np.unique(u, return_inverse=True)[1]
    return sorted([metric(ranks + wrong, wrong), metric(ranks - wrong, wrong)])


@pytest.mark.parametrize("name", ["galil_bin_edges", "galil_ties"])
def test_ece__galil_with_ties(name):
    case = Case(name)
    u, wrong = -case["confidence"], case["correct"] == 0
    check_ece(case, expected_equal=name == "galil_ties")  # the original drops confidence 0, which lies on an edge
    assert auroc(u, wrong) == pytest.approx(case["x_sk_auroc"], abs=1e-12)
    assert auroc(u, wrong) == pytest.approx(case["x_tm_auroc"], abs=1e-7)  # TorchMetrics works in float32
    assert aurc(u, wrong) == pytest.approx(brute_aurc(u, wrong), abs=1e-14)
    optimum = case["x_np_aurc_opt_finite"]
    assert aurc(u, wrong) - e_aurc(u, wrong) == pytest.approx(optimum, abs=1e-14)
    # An unstable (original) or a stable sort (numpy) depends on the order of tied rows: another value in the bracket.
    for metric, keys in ((auroc, ["galil_auroc", "galil32_auroc"]), (aurc, ["galil_aurc", "galil32_aurc"])):
        low, high = bracket(u, wrong, metric)
        for key in keys:
            assert low <= case[key] <= high and metric(u, wrong) != pytest.approx(case[key], abs=1e-5)
    low, high = bracket(u, wrong, aurc)
    stable = case["x_np_aurc_stable"]
    assert low <= stable <= high and aurc(u, wrong) != pytest.approx(stable, abs=1e-5)
    r = wrong.mean()
    for original in ("galil", "galil32"):
        # the original subtracts the limit of the optimum for many rows, from its own order-dependent AURC
        limit = r + (1 - r) * np.log(1 - r)
        assert case[f"{original}_eaurc"] == pytest.approx(case[f"{original}_aurc"] - limit, abs=1e-7)
        assert e_aurc(u, wrong) != pytest.approx(case[f"{original}_eaurc"], abs=1e-5)
        for percent, accuracy in GALIL_TARGETS:
            ours = sac(u, wrong, accuracy)
            start0, start200 = (case[f"{original}_sac{percent}_start{start}"] for start in (0, 200))
            if name == "galil_bin_edges":  # every threshold keeps as many wrong as right; 24 rows have no row 200
                assert ours == start0 == 0 and np.isnan(start200)
            else:  # the original cuts inside a tie group, at the first violation, and divides by n + 1
                assert ours == brute_sac(u, wrong, accuracy)
                assert ours != pytest.approx(start0, abs=1e-3) and start0 == start200
    case.finish()


def test_sac__galil_sac_start_index():
    case = Case("galil_sac_startindex")
    u, wrong = -case["confidence"], case["correct"] == 0
    assert risk_coverage(u, wrong)[1] == pytest.approx(1 - case["cummean_accuracy"], abs=1e-12)
    for percent, accuracy in GALIL_TARGETS:
        ours = sac(u, wrong, accuracy)
        assert ours == case[f"max_coverage_acc{percent}"]
        for start in (0, 1, 50, 200):
            theirs = case[f"sac{percent}_start{start}"]
            # The surest row is wrong: a start before the accuracy has recovered ends the search at once. A later start
            # finds the same rows and divides them by n + 1.
            assert ours != theirs and theirs in (0.0, pytest.approx((ours * 1000) / 1001, abs=1e-12))
    case.finish()


def many(risk, perfect=False, n=10**9):
    """A ranking of very many rows: one tie group, or every error last."""
    wrong = round(risk * n)
    if perfect:
        return Ranking.from_groups([0, 1], [n - wrong, wrong], [0, wrong])
    return Ranking.from_groups([0], [n], [wrong])


def test_ranking__investment_example():
    """Model A: 95 % right, always 0.95 sure. Model B: 40 % right, 0.6 sure when right and 0.4 when wrong."""
    case = Case("closed_galil_examples")
    for model, (accuracy, auroc_exact) in {"A": (0.95, 0.5), "B": (0.4, 1.0)}.items():
        probs, labels = case[f"{model}_probs"], case[f"{model}_labels"]
        u, wrong = -case[f"{model}_confidence"], case[f"{model}_correct"] == 0
        assert np.array_equal(probs.argmax(axis=1) != labels, wrong)
        assert 1 - wrong.mean() == pytest.approx(case[f"{model}_exact_acc"]) == accuracy
        assert auroc(u, wrong) == case[f"{model}_exact_auroc"] == auroc_exact
        for value, keys in ((nll, ("nll", "exact_nll")), (brier, ("brier", "exact_brier")), (ece, ("ece15_galil",))):
            for key in keys:
                assert value(probs, labels) == pytest.approx(case[f"{model}_{key}"], abs=1e-12)
        assert ece(probs, labels) == pytest.approx(case[f"{model}_exact_ece"], abs=1e-12)
        optimum = case[f"{model}_aurc_optimal_finite"]
        assert aurc(u, wrong) - e_aurc(u, wrong) == pytest.approx(optimum, abs=1e-13)
        # the exact AURC is that of endlessly many rows
        limit = case[f"{model}_exact_aurc_limit"]
        assert aurc(many(1 - accuracy, perfect=model == "B")) == pytest.approx(limit, abs=1e-8)
    u, wrong = -case["A_confidence"], case["A_correct"] == 0
    assert aurc(u, wrong) == 0.05  # the average over orders; each single order of the original is off
    for metric, key in ((aurc, "A_aurc_galil"), (auroc, "A_auroc_galil")):
        values = case[key]
        assert abs(values.mean() - metric(u, wrong)) < 4 * values.std() / np.sqrt(len(values))
        assert np.mean(values == metric(u, wrong)) < 0.05
    u, wrong = -case["B_confidence"], case["B_correct"] == 0
    assert aurc(u, wrong) == pytest.approx(case["B_aurc_galil"][0], abs=1e-12) == pytest.approx(0.2338, abs=5e-5)
    assert auroc(u, wrong) == case["B_auroc_galil"][0]
    assert aurc(many(0.6, perfect=True)) == pytest.approx(0.2335, abs=5e-5)
    paper = note("closed_galil_examples")["report"]["B"]["paper"]["aurc"]
    assert paper == 0.12 and abs(aurc(u, wrong) - paper) > 0.1  # 0.12 is not the area under that curve

    for model, risk in (("A", 0.9), ("B", 0.5)):
        assert case[f"eaurc_{model}_risk"] == risk
        r = many(risk)
        assert aurc(r) == case[f"eaurc_{model}_aurc_assumed_random_order"] == risk
        exact = case[f"eaurc_{model}_exact_eaurc"]
        assert e_aurc(r) == pytest.approx(exact, abs=1e-8)
        assert exact == pytest.approx(case[f"eaurc_{model}_galil_EAURC_calc"], abs=1e-12)
        assert aurc(many(risk, perfect=True)) == pytest.approx(case[f"eaurc_{model}_exact_aurc_star"], abs=1e-8)
        # the paper lets the best risk rise linearly, to r²/2; it is (c − a)/c
        assert case[f"eaurc_{model}_paper_aurc_star"] == pytest.approx(risk**2 / 2)
        assert aurc(many(risk, perfect=True)) != pytest.approx(case[f"eaurc_{model}_paper_aurc_star"], abs=0.02)
        assert e_aurc(r) != pytest.approx(case[f"eaurc_{model}_paper_eaurc"], abs=0.02)
    assert e_aurc(many(0.9)) == pytest.approx(0.2303, abs=5e-5)
    assert e_aurc(many(0.5)) == pytest.approx(0.3466, abs=5e-5)  # so that A is preferred, and not B as the paper says
    case.finish()


def test_sac__investment_example_sac():
    """No threshold separates the rows of A; B keeps exactly its right answers. The original cuts inside the ties."""
    case, original = load("closed_galil_examples"), note("closed_galil_examples")["sac_code"]
    for accuracy in (0.96, 0.99):
        for model, exact in (("A", 0.0), ("B", 0.4)):
            ours = sac(-case[f"{model}_confidence"], case[f"{model}_correct"] == 0, accuracy)
            assert ours == exact != original[f"{model}_sac{accuracy}"]


def test_aulc__pract_aulc():
    """Postels et al.'s lift areas; under ties theirs depend on the order of the rows."""
    case = Case("pract_aulc")
    for name in ("random", "ties", "const", "all_correct", "all_wrong", "perfect", "worst", "n4"):
        u, wrong = case[f"{name}_unc"], ~case[f"{name}_correct"]
        theirs = {key: case[f"{name}_{key}"] for key in ("aulc", "aulc_opt", "raulc", "auroc", "x_aulc_numpy_stable")}
        if name == "all_wrong":  # no right answer: lift divides by 0
            assert all(np.isnan(value) for value in theirs.values())
            for metric in (aulc, raulc, auroc):
                with pytest.raises(Undefined):
                    metric(u, wrong)
            continue
        assert aulc(wrong, wrong) == pytest.approx(theirs["aulc_opt"], abs=1e-12)
        if name == "all_correct":
            assert aulc(u, wrong) == theirs["aulc"] == theirs["x_aulc_numpy_stable"] == 0
            assert np.isnan([theirs["raulc"], theirs["auroc"]]).all()
            for metric in (raulc, auroc):
                with pytest.raises(Undefined):
                    metric(u, wrong)
            continue
        assert auroc(u, wrong) == pytest.approx(theirs["auroc"], abs=1e-12)
        equal = name not in ("ties", "const")
        assert (aulc(u, wrong) == pytest.approx(theirs["aulc"], abs=1e-12)) == equal
        assert (aulc(u, wrong) == pytest.approx(theirs["x_aulc_numpy_stable"], abs=1e-12)) == equal
        assert (raulc(u, wrong) == pytest.approx(theirs["raulc"], abs=1e-12)) == equal
        if not equal:  # right rows first and wrong rows first inside each tie group
            high, low = case[f"{name}_raulc_extreme_orders"]
            assert bracket(u, wrong, raulc) == pytest.approx([low, high], abs=1e-12)
            assert low < raulc(u, wrong) < high and low < theirs["raulc"] < high
    assert raulc(case["const_unc"], ~case["const_correct"]) == 0.0
    u, wrong = case["n4_unc"], ~case["n4_correct"]
    assert (1 - risk_coverage(u, wrong)[1]) / 0.5 == pytest.approx(case["n4_lift"])
    assert [aulc(u, wrong), aulc(wrong, wrong), raulc(u, wrong)] == pytest.approx(case["n4_hand"], abs=1e-12)
    case.finish()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: selective_risk([1, 2], [0, 1], 0), "coverage is 0"),
        (lambda: selective_risk([1, 2], [0, 1], 1.01), "coverage is 1.01"),
        (lambda: selective_risk([1, 2], [0, 1], np.nan), "coverage is nan"),
        (lambda: selective_risk([1, 2], [0, 1], None), "coverage is None"),
        (lambda: aurc_over([1, 2], [0, 1], []), "coverages is empty"),
        (lambda: aurc_over([1, 2], [0, 1], [0.5, -1]), "coverage is -1"),
        (lambda: sac([1, 2], [0, 1], 95), "accuracy is 95"),
        (lambda: sac([1, 2], [0, 1], "1/0"), "accuracy is 1/0"),
        (lambda: aurc([1, np.nan], [0, 1]), r"u.*row 1"),
        (lambda: risk_coverage([1], [0, 1]), "u has 1 rows, wrong has 2"),
    ],
)
def test_selective_risk__bad_input_is_told_in_a_sentence(call, words):
    with pytest.raises(BadInput, match=words):
        call()


def test_row_count__computed_coverages_mean_the_rows_of_the_decimal():
    for n in [*range(1, 200), 1000, 4999, 50_000, 10**7]:
        for steps in (5, 10, 20, 100):
            meant = [-(-i * n // steps) for i in range(1, steps + 1)]
            rising = np.linspace(1 / steps, 1, steps)
            for computed in (rising, np.linspace(1, 1 / steps, steps)[::-1], np.linspace(0, 1, steps + 1)[1:]):
                assert [row_count(c, n, "coverage") for c in computed] == meant
            assert [row_count(f"{i}/{steps}", n, "coverage") for i in range(1, steps + 1)] == meant
    u, wrong = np.arange(10), np.arange(10) == 3
    assert 0.30000000000000004 in np.linspace(0.1, 1, 10)
    assert selective_risk(u, wrong, 0.30000000000000004) == 0 and selective_risk(u, wrong, 0.31) == 1 / 4
    assert aurc_over(u, wrong, np.linspace(0.1, 1, 10)) == aurc_over(u, wrong)


def test_row_count__a_coverage_above_nothing_keeps_a_row_and_decimals_are_exact():
    assert row_count(1e-17, 10, "coverage") == row_count(5e-324, 10**7, "coverage") == 1 and row_count(0, 10, "c") == 0
    assert (
        row_count(0.3000001, 10, "c") == 4 and row_count(0.30000000001, 10, "c") == 4 and row_count(0.3, 11, "c") == 4
    )
    assert all(row_count(i / n, n, "c") == i for n in (3, 7, 49, 10**7 + 19) for i in range(1, min(n, 1000)))


def test_aurc_over__coverages_that_are_one_number_are_refused():
    with pytest.raises(BadInput, match="give several shares"):
        aurc_over([1, 2], [0, 1], 0.5)
