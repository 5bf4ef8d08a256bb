"""A resample's value is the metric of the rows written out as often as they were drawn; the rest is what follows."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nescio import BadInput, Predictions, Undefined, metrics
from nescio.analysis import bootstrap as boot
from nescio.analysis.bootstrap import add_intervals, bootstrap, interval
from nescio.analysis.comparison import compare
from nescio.analysis.metric_kinds import applicable_metrics
from nescio.analysis.metric_specs import MetricSpec, parse_metric
from nescio.analysis.resamplers import ProbsResampler, RankingResampler, SummaryResampler
from nescio.analysis.scorecard import scorecard
from nescio.analysis.significance import bootstrap_p_value
from nescio.cli import main
from nescio.measures import summary
from nescio.metrics import Metric
from nescio.report.verdicts import comparison_verdicts

RANKING = [each for each in applicable_metrics() if each.ranks]
ANSWERS = [each for each in applicable_metrics() if "predictions" in each.metric.kinds and each.metric.prepared]
MASS = MetricSpec("ece mass", metrics.registry["ece"], {"scheme": "mass"})


def or_nan(function, *arrays, **options):
    try:
        return function(*arrays, **options)
    except Undefined:
        return np.nan


@st.composite
def ranked(draw):
    n = draw(st.integers(1, 30))
    u = draw(st.lists(st.sampled_from([-1.5, -0.0, 0.0, 0.1, 0.25, 0.5, 2.0, 120.0]), min_size=n, max_size=n))
    wrong = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    drawn = draw(st.lists(st.integers(0, n - 1), min_size=n, max_size=n))
    return np.array(u), np.array(wrong), np.bincount(drawn, minlength=n)


@settings(max_examples=150)
@given(ranked())
@pytest.mark.parametrize("numba", [False, True])
def test_ranking_resampler__a_resampled_ranking_is_the_ranking_of_the_copied_rows(numba, case):
    u, wrong, counts = case
    part = RankingResampler(u, wrong, RANKING)
    if numba:
        pytest.importorskip("numba")
        part.accelerate()
    copied = np.repeat(np.arange(len(counts)), counts)
    for each, value in zip(RANKING, part.values(counts), strict=True):
        truth = or_nan(each.metric.function, u[copied], wrong[copied], **each.options)
        assert value == pytest.approx(truth, rel=1e-12, abs=1e-14, nan_ok=True), each.label


def test_comparison__every_ranking_metric_of_the_issue_is_resampled():
    names = {each.metric.name for each in RANKING}
    assert names >= {"auroc", "aupr", "fpr_at_tpr", "gamma", "aurc", "e_aurc", "augrc", "aulc", "raulc", "sac"}
    assert {each.label for each in ANSWERS} >= {"accuracy", "accuracy@5", "nll", "brier", "ece"}
    assert {"sac@0.95", "selective_risk@0.8"} <= {each.label for each in RANKING}


@settings(max_examples=100)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(2, 7))
def test_summary_resampler__resampled_answers_are_the_answers_of_the_copied_rows(seed, n, c):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(c, 0.3), n).round(1)  # tied confidences, some exactly 0, 1 or on an edge
    probs[:, -1] = np.abs(1 - probs[:, :-1].sum(1))
    probs = np.clip(probs, 0, 1)
    probs /= probs.sum(1, keepdims=True)
    labels = rng.integers(c, size=n)
    counts = boot.draw_counts(n, seed, 0)
    copied = np.repeat(np.arange(n), counts)
    wanted = [*ANSWERS, MASS, parse_metric("ece@7"), parse_metric("accuracy@2")]
    values = SummaryResampler(metrics.outcomes(probs, labels), wanted).values(counts)
    for each, value in zip(wanted, values, strict=True):
        truth = or_nan(each.metric.function, probs[copied], labels[copied], **each.options)
        assert value == pytest.approx(truth, rel=1e-12, abs=1e-14, nan_ok=True), each.label


def test_resample__numba_and_numpy_agree_on_many_rows_and_ties():
    pytest.importorskip("numba")
    rng = np.random.default_rng(5)
    n = 3000
    wrong = rng.random(n) < 0.3
    u = np.where(rng.random(n) < 0.5, (rng.normal(size=n) + wrong).round(1), rng.normal(size=n) + wrong)
    parts = [RankingResampler(u, wrong, RANKING)]
    (slow,) = boot.resample(parts, n, 20, 1, numba=False)
    assert parts[0].fast is None
    (fast,) = boot.resample(parts, n, 20, 1, numba=True)
    np.testing.assert_allclose(fast, slow, rtol=1e-11, atol=1e-14)
    whole = [each(metrics.Ranking(u, wrong)) for each in RANKING]
    np.testing.assert_allclose(parts[0].values(np.ones(n, int)), whole, rtol=1e-11)


def test_resample__auroc_of_resamples_is_scikit_learns():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(2)
    wrong = rng.random(400) < 0.3
    u = (rng.normal(size=400) + wrong).round(1)
    (values,) = boot.resample([RankingResampler(u, wrong, [parse_metric("auroc")])], 400, 8, 3)
    for number, (value,) in enumerate(values):
        weights = boot.draw_counts(400, 3, number)
        assert value == pytest.approx(roc_auc_score(wrong, u, sample_weight=weights), abs=1e-12)


# ---- drawing


def test_draw_counts__a_resample_draws_n_rows_with_replacement():
    counts = np.array([boot.draw_counts(50, 0, number) for number in range(4000)])
    assert (counts.sum(1) == 50).all()
    assert np.abs(counts.mean(0) - 1).max() < 0.08  # every row once on average
    assert counts.var() == pytest.approx(1 - 1 / 50, rel=0.02)  # of a multinomial
    assert np.cov(counts[:, 0], counts[:, 1])[0, 1] == pytest.approx(-1 / 50, abs=0.05)


def test_resample__streams_depend_on_seed_and_number_alone():
    assert (boot.draw_counts(99, 4, 2) == boot.draw_counts(99, 4, 2)).all()
    assert (boot.draw_counts(99, 4, 2) != boot.draw_counts(99, 4, 3)).any()
    assert (boot.draw_counts(99, 4, 2) != boot.draw_counts(99, 5, 2)).any()
    rng = np.random.default_rng(0)
    u, wrong = rng.normal(size=99), rng.random(99) < 0.4
    parts = [RankingResampler(u, wrong, RANKING)]
    (one,) = boot.resample(parts, 99, 25, 4, workers=1)
    for workers in (2, 3, 7):
        (many,) = boot.resample(parts, 99, 25, 4, workers=workers)
        assert np.array_equal(one, many, equal_nan=True)
    (fewer,) = boot.resample(parts, 99, 10, 4)
    assert np.array_equal(one[:10], fewer, equal_nan=True)


def test_interval__the_interval_is_the_middle_of_the_defined_resamples():
    values = np.append(np.arange(101.0), [np.nan] * 7)
    assert interval(values, 0.9) == pytest.approx((5, 95))
    with pytest.raises(Undefined, match="every resample"):
        interval(np.full(3, np.nan))


# ---- models


def model(seed, n=400, quality=2.0, index=None, labels=None, c=4, sharp=1.0, rows=0):
    rng = np.random.default_rng(100 + rows)
    truth = rng.integers(c, size=n) if labels is None else labels
    own = np.random.default_rng(seed)
    logits = sharp * (own.normal(size=(n, c)) + quality * np.eye(c)[truth])
    return Predictions(logits=logits, labels=truth, index=index)


def cell(result, method, metric):
    (row,) = (row for row in result.rows if (row["method"], row["metric"]) == (method, metric))
    return row


def test_compare__values_are_those_of_the_metrics_and_lie_inside_their_intervals():
    a = model(0)
    result = compare({"a": a, "b": model(1, quality=1)}, resamples=200)
    probs = np.exp(a.logits[:, 0]) / np.exp(a.logits[:, 0]).sum(1, keepdims=True)
    wrong = probs.argmax(1) != a.labels
    assert cell(result, "a", "accuracy")["value"] == 1 - wrong.mean()
    assert cell(result, "a", "nll")["value"] == pytest.approx(metrics.nll(probs, a.labels), rel=1e-6)
    assert cell(result, "a", "ece")["value"] == pytest.approx(metrics.ece(probs, a.labels), abs=1e-6)
    assert cell(result, "a", "auroc")["value"] == pytest.approx(metrics.auroc(1 - probs.max(1), wrong), abs=1e-9)
    for row in result.rows:
        assert row["n"] == 400
        if not {"ece", "mcb", "dsc"} & set(row["metric"].split("@")[0].split("_")):  # biased upwards on resamples
            assert row["low"] <= row["value"] <= row["high"], row["metric"]
    assert cell(result, "a", "auroc")["measure"] == "msp"
    assert cell(result, "a", "nll")["measure"] is None


def test_compare__the_interval_of_accuracy_is_as_wide_as_theory_says():
    result = compare({"a": model(0, n=2000)}, metrics=["accuracy"], resamples=2000)
    (row,) = result.rows
    width = 2 * 1.96 * np.sqrt(row["value"] * (1 - row["value"]) / 2000)
    assert row["high"] - row["low"] == pytest.approx(width, rel=0.08)
    assert (row["rank"], row["best"], result.differences) == (1, True, [])


def test_compare__same_seed_same_comparison_and_other_seed_another():
    models = {"a": model(0), "b": model(1)}
    one, two = compare(models, resamples=50), compare(models, resamples=50)
    assert (one.rows, one.differences, one.reasons) == (two.rows, two.differences, two.reasons)
    assert compare(models, resamples=50, seed=1).rows != one.rows


def test_compare__a_model_with_more_right_answers_is_told_from_a_worse_one_but_not_from_its_twin():
    good, poor = model(0, n=800), model(1, n=800, quality=0.5)
    result = compare({"poor": poor, "good": good, "twin": good}, metrics=["accuracy", "nll"], resamples=300)
    for metric in ("accuracy", "nll"):
        assert [cell(result, name, metric)["rank"] for name in ("poor", "good", "twin")] == [3, 1, 1]
        assert [cell(result, name, metric)["best"] for name in ("poor", "good", "twin")] == [False, True, True]
    twin = next(d for d in result.differences if d["model"] == "twin")
    assert (twin["best"], twin["difference"], twin["low"], twin["high"], twin["p"]) == ("good", 0, 0, 0, 1)
    far = next(d for d in result.differences if d["model"] == "poor")
    assert far["p"] == 2 / 301 and far["adjusted"] == 4 / 301
    assert far["low"] <= far["difference"] <= far["high"] < 0


def test_compare__pairing_tells_apart_what_separate_intervals_cannot():
    rng = np.random.default_rng(0)
    a = model(0, n=1500, quality=1.0)
    worse = np.array(a.logits[:, 0])
    spoiled = rng.choice(1500, 30, replace=False)
    worse[spoiled] = 5 * np.eye(4)[(np.asarray(a.labels)[spoiled] + 1) % 4]
    result = compare({"a": a, "spoiled": a.replace(logits=worse)}, metrics=["accuracy"], resamples=400)
    first, second = result.rows
    assert second["high"] > first["low"]  # the intervals overlap
    assert not second["best"]


def test_bootstrap_p_value__the_p_value_is_about_uniform_when_models_are_equally_good():
    rng = np.random.default_rng(0)
    small = 0
    for _ in range(120):
        a, b = rng.random((2, 150)) < 0.7
        right = [SummaryResampler(_answers_of(each), [parse_metric("accuracy")]) for each in (a, b)]
        one, two = boot.resample(right, 150, 199, 0, workers=1)
        small += bootstrap_p_value((one - two).ravel()) <= 0.1
    assert 3 <= small <= 24  # 12 expected


def _answers_of(right):
    probs = np.where(right[:, None], [0.9, 0.1], [0.1, 0.9])
    return metrics.outcomes(probs, np.zeros(len(right), int))


def test_compare__two_perfect_rankings_are_the_same_to_every_resample():
    labels = np.repeat([0, 1], [30, 30])
    predicted = np.where(np.arange(60) % 5 == 0, 1 - labels, labels)
    wrong = predicted != labels
    rng = np.random.default_rng(0)
    models = {}
    for name in "ab":
        margin = np.where(wrong, 1, 3) + rng.random(60).round(1)  # its own ties
        models[name] = Predictions(logits=np.eye(2)[predicted] * margin[:, None], labels=labels)
    result = compare(models, metrics=["auroc", "aurc", "e_aurc", "raulc"], resamples=100)
    assert all(each["p"] == 1 and each["difference"] == pytest.approx(0, abs=1e-12) for each in result.differences)
    assert all(row["best"] for row in result.rows)


def test_compare__direction_decides_who_is_best():
    result = compare({"a": model(0, quality=3), "b": model(1, quality=0.2)}, resamples=20)
    for row in result.rows:
        if row["metric"] in ("accuracy", "nll", "brier", "aurc"):
            assert row["rank"] == (1 if row["method"] == "a" else 2), row["metric"]


# ---- joining


def test_compare__rows_are_joined_on_index_whatever_their_order():
    a, b = model(0), model(1)
    whole = compare({"a": a, "b": b}, resamples=30)
    mixed = np.random.default_rng(0).permutation(400)
    shuffled = compare({"a": a, "b": b.take(mixed)}, resamples=30)
    assert [r["value"] for r in whole.rows] == pytest.approx([r["value"] for r in shuffled.rows])
    assert [r["low"] for r in whole.rows] == pytest.approx([r["low"] for r in shuffled.rows])
    part = compare({"a": a, "b": b.take(np.arange(100, 300))}, resamples=30)
    assert part.n == 200 and part.rows[0]["n"] == 200
    same = compare({"a": a.take(np.arange(100, 300)), "b": b.take(np.arange(100, 300))}, resamples=30)
    assert [r["value"] for r in part.rows] == [r["value"] for r in same.rows]


def test_compare__rows_that_were_not_taught_are_left_out():
    a, b = model(0), model(1)
    in_distribution = np.arange(400) < 350
    strange = np.where(in_distribution, a.labels, 9)
    marked = {
        name: each.replace(in_distribution=in_distribution, labels=strange) for name, each in {"a": a, "b": b}.items()
    }
    known = {name: each.take(in_distribution) for name, each in {"a": a, "b": b}.items()}
    one, two = compare(marked, resamples=30), compare(known, resamples=30)
    assert one.n == 350
    assert one.rows == two.rows
    with pytest.raises(BadInput, match="in-distribution"):
        compare({"a": a.replace(in_distribution=np.zeros(400, bool))})


def test_compare__a_measure_that_one_model_lacks_is_named_with_the_model():
    a, b = model(0), model(1)
    probs = np.exp(b.logits[:, 0]) / np.exp(b.logits[:, 0]).sum(1, keepdims=True)
    from_probs = Predictions(probs=probs, labels=b.labels)
    result = compare({"a": a, "b": from_probs}, measure="energy", metrics=["accuracy", "auroc"], resamples=50)
    assert [(row["method"], row["metric"]) for row in result.rows] == [
        ("a", "accuracy"),
        ("b", "accuracy"),
        ("a", "auroc"),
    ]
    (reason,) = result.reasons
    assert "'b'" in reason["reason"] and (reason["metric"], reason["measure"]) == ("auroc", "energy")


def test_compare__undefined_resamples_are_counted():
    labels = np.zeros(40, int)
    logits = np.tile([2.0, 0.0], (40, 1)) + np.random.default_rng(0).normal(scale=0.1, size=(40, 2))
    logits[3] = [0.0, 0.1]  # the only error: a resample misses it with probability about e^-1
    dump = Predictions(logits=logits, labels=labels)
    result = compare({"a": dump}, metrics=["auroc", "aurc"], resamples=400)
    (reason,) = result.reasons
    missed = sum(boot.draw_counts(40, 0, number)[3] == 0 for number in range(400))
    assert f"undefined on {missed} of 400" in reason["reason"] and 100 < missed < 200
    assert cell(result, "a", "auroc")["low"] is not None and cell(result, "a", "auroc")["n"] == 40

    right = Predictions(logits=np.delete(logits, 3, 0), labels=labels[1:])
    result = compare({"a": right}, metrics=["auroc", "accuracy"], resamples=20)
    assert [row["metric"] for row in result.rows] == ["accuracy"]
    (reason,) = result.reasons
    assert "'a'" in reason["reason"] and reason["metric"] == "auroc"


def test_compare__undefined_on_most_resamples_means_no_interval():
    dump = Predictions(logits=np.array([[1.0, 0], [0, 3.0]]), labels=np.array([0, 0]))
    result = compare({"a": dump, "b": dump}, metrics=["gamma"], resamples=300)
    # both rows must be drawn: half of the resamples
    undefined = sum(boot.draw_counts(2, 0, number).min() == 0 for number in range(300))
    for row in result.rows:
        assert (row["low"] is None) == (undefined > 150)
        assert row["value"] == -1
    assert all(f"{undefined} of 300" in reason["reason"] for reason in result.reasons)
    from nescio.analysis.comparison import add_verdict
    from nescio.analysis.results import Comparison

    rare = np.array([np.nan] * 6 + [0.5] * 4)
    made = Comparison(("a", "b"), 9, 10, 0.95, 0)
    numbers = {name: boot.Estimate(value, rare) for name, value in (("a", 0.5), ("b", 0.4))}
    add_verdict(made, parse_metric("gamma"), "msp", numbers)
    assert [row["low"] for row in made.rows] == [None, None]
    assert made.differences[0]["p"] is None and all(row["best"] for row in made.rows)
    assert any("no interval" in reason["reason"] for reason in made.reasons)


def test_compare__too_few_resamples_for_many_models_is_said():
    models = {str(i): model(i, n=60) for i in range(6)}
    result = compare(models, metrics=["accuracy"], resamples=100)
    assert any("take at least 199" in reason["reason"] for reason in result.reasons)
    assert not compare(models, metrics=["accuracy"], resamples=199).reasons


def test_compare__a_metric_of_all_class_probabilities_is_resampled_or_refused_with_a_reason(monkeypatch):
    a = model(0)
    result = compare({"a": a}, metrics=["accuracy", "classwise_ece"], resamples=50)
    assert [row["metric"] for row in result.rows] == ["accuracy", "classwise_ece"] and not result.reasons
    probs = np.exp(a.logits[:, 0]) / np.exp(a.logits[:, 0]).sum(1, keepdims=True)
    again = []
    for number in range(50):
        rows = np.repeat(np.arange(400), boot.draw_counts(400, 0, number))
        again.append(metrics.classwise_ece(probs[rows], a.labels[rows]))
    value = result.rows[1]["value"]
    noise = np.quantile(again, [0.025, 0.975]) - np.mean(again)
    bias = (1 + np.sqrt(2)) * (np.mean(again) - value)  # the labels are not those of the probabilities
    assert result.rows[1]["low"] == pytest.approx(max(0, value + noise[0] - bias - boot.ABSENT_ROWS / 400))
    assert result.rows[1]["high"] == pytest.approx(value + noise[1] + boot.ABSENT_ROWS / 400)
    monkeypatch.setattr("nescio.analysis.metric_kinds.MAX_PROBS", 400 * 4 * 50 - 1)
    result = compare({"a": a}, metrics=["accuracy", "classwise_ece"], resamples=50)
    assert [row["metric"] for row in result.rows] == ["accuracy"]
    assert [reason["metric"] for reason in result.reasons] == ["classwise_ece"]


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (lambda a: {}, {}, "at least one model"),
        (lambda a: {"a": a, "b": a.replace(labels=None)}, {}, "'b' has no labels"),
        (lambda a: {"a": a, "b": Predictions(labels=a.labels)}, {}, "'b' .* logits"),
        (lambda a: {"a": a, "b": a.replace(labels=1 - np.asarray(a.labels) % 2)}, {}, "different labels"),
        (lambda a: {"a": a, "b": a.replace(index=np.arange(400) + 1000)}, {}, "no row in common"),
        (lambda a: {"a": a}, {"metrics": ["aurocc"]}, "Did you mean 'auroc'"),
        (lambda a: {"a": a}, {"metrics": ["sac@most"]}, "sac@"),
        (lambda a: {"a": a}, {"metrics": ["auroc@0.5"]}, "takes no parameter"),
        (lambda a: {"a": a}, {"metrics": []}, "No metric is named"),
        (lambda a: {"a": a}, {"metrics": ["kendall"]}, "'kendall'"),
        (lambda a: {"a": a}, {"measure": "larges"}, "larges"),
        (lambda a: {"a": a}, {"measure": "gmm"}, "must be fitted first"),
        (lambda a: {"a": a}, {"resamples": 0}, "resamples is 0"),
        (lambda a: {"a": a}, {"resamples": 10**23}, "from 1 to 1,000,000"),
        (lambda a: {"a": a}, {"level": 95}, "between 0 and 1"),
        (lambda a: {"a": a}, {"seed": -1}, "seed is -1"),
    ],
)
def test_compare__bad_input_is_a_sentence(change, options, sentence):
    with pytest.raises(BadInput, match=sentence):
        compare(change(model(0)), **{"resamples": 5, **options})


# ---- one model


def test_compare__bootstrap_gives_the_intervals_of_compare():
    a = model(0)
    found = bootstrap(a, measures=["msp", "entropy"], resamples=60)
    for row in compare({"a": a}, resamples=60, measure="entropy").rows:
        of = found[row["measure"], row["metric"]]
        assert (of.low, of.high) == (row["low"], row["high"])
    assert ("msp", "auroc") in found and (None, "accuracy") in found


def test_bootstrap_leaves_out_what_the_dump_cannot_give():
    a = model(0)
    found = bootstrap(a, measures=["native", "msp"], metrics=["auroc"], resamples=10)
    assert list(found) == [("msp", "auroc")]


def test_scorecard__a_scorecard_says_what_its_intervals_leave_out():
    from nescio.analysis.scorecard import scorecard

    logits = np.tile([2.0, 0.0], (40, 1)) + np.random.default_rng(0).normal(scale=0.1, size=(40, 2))
    logits[3] = [0.0, 0.1]  # the only error
    card = scorecard(Predictions(logits=logits, labels=np.zeros(40, int)))
    add_intervals(card, resamples=50)
    missed = sum(boot.draw_counts(40, 0, number)[3] == 0 for number in range(50))
    said = [each for each in card.reasons if f"{missed} of 50 resamples" in each["reason"]]
    assert ("msp", "auroc") in {(each["measure"], each["metric"]) for each in said}


def test_scorecard__a_scorecard_gets_its_intervals():
    from nescio.analysis.scorecard import scorecard

    a, val = model(0), model(3)
    out = Predictions(logits=np.random.default_rng(0).normal(size=(50, 4)))
    card = scorecard(a, val=val, ood={"noise": out})
    before = [(row["measure"], row["metric"], row["value"]) for row in card.rows]
    add_intervals(card, resamples=60)
    assert before == [(row["measure"], row["metric"], row["value"]) for row in card.rows]
    found = bootstrap(a, measures=["msp"], resamples=60)
    checked = 0
    for row in card.rows:
        if row["split"] == "noise":
            assert row["low"] <= row["value"] <= row["high"]
        elif not row["calibrated"] and row["measure"] in (None, "msp") and (row["measure"], row["metric"]) in found:
            of = found[row["measure"], row["metric"]]
            assert (row["low"], row["high"]) == (pytest.approx(of.low), pytest.approx(of.high))
            checked += 1
    assert checked >= 15
    assert any(row["calibrated"] and row["metric"] == "nll" and row["low"] is not None for row in card.rows)


# ---- cost


def test_comparison__small_work_imports_neither_numba_nor_scikit_learn():
    code = (
        "import sys, numpy as np; from nescio import Predictions; from nescio.analysis.comparison import compare;"
        "r = np.random.default_rng(0); a = Predictions(logits=r.normal(size=(50, 3)), labels=r.integers(3, size=50));"
        "compare({'a': a, 'b': a}, resamples=20);"
        "bad = {'numba', 'torch', 'sklearn', 'pandas', 'altair', 'scipy.stats'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_resample__numba_is_used_only_above_its_stated_size(monkeypatch):
    pytest.importorskip("numba")
    rng = np.random.default_rng(0)
    u, wrong = rng.normal(size=200), rng.random(200) < 0.4
    few, many = (RankingResampler(u, wrong, RANKING) for _ in range(2))
    boot.resample([few], 200, 10, 0)
    monkeypatch.setattr(boot, "NUMBA_WORK", 1000)
    boot.resample([many], 200, 10, 0)
    assert few.fast is None and many.fast is not None
    monkeypatch.setattr(boot, "have_numba", lambda: False)
    without = RankingResampler(u, wrong, RANKING)
    boot.resample([without], 200, 10, 0)
    assert without.fast is None


def _small(seed):
    rng = np.random.default_rng(seed)
    return Predictions(logits=rng.normal(size=(40, 3)), labels=np.arange(40) % 3)


def test_compare__a_sequence_of_models_is_named_by_place():
    a, b = _small(0), _small(1)
    found = compare([a, b], metrics=["accuracy"], resamples=50)
    assert found.models == ("0", "1") and [row["method"] for row in found.rows] == ["0", "1"]
    assert found.rows == compare({"0": a, "1": b}, metrics=["accuracy"], resamples=50).rows


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        ([], "nothing to compare"),
        ({"a": [1, 2]}, "Model 'a' is of type list; give Predictions"),
        (["a.npz"], "Model '0' is of type str"),
        ("a.npz", "models is one str; give several"),
        (7, "models is one int"),
        (_small(0), "models is one Predictions"),
    ],
)
def test_compare__what_is_no_model_is_one_sentence(models, sentence):
    with pytest.raises(BadInput, match=sentence):
        compare(models)


def test_compare__what_a_scorecard_shows_of_a_model_is_compared():
    """Human alignment, retrieval, crops and class-wise ECE too, each with its interval."""
    from nescio.analysis.scorecard import scorecard

    rng, models = np.random.default_rng(0), {}
    votes = rng.integers(0, 5, (60, 3)) + 1
    for name in "ab":
        labels = rng.integers(0, 3, 60) if not models else models["a"].labels
        models[name] = Predictions(
            labels=labels,
            logits=np.eye(3)[labels] + rng.normal(size=(60, 3)),
            embeddings=rng.normal(size=(60, 4)) + 2 * np.eye(4)[labels],
            annotations=votes,
            groups={"twin": np.where(np.arange(60) % 2, np.arange(60) - 1, np.arange(60))},
        )
    result = compare(models, resamples=80)
    own = {row["metric"]: row for row in result.rows if row["method"] == "a"}
    card = scorecard(models["a"])
    shown = {row["metric"] for row in card.rows if row["split"] == "test"}
    assert shown - own.keys() == set() and {"human_alignment", "r_auroc", "crop_agreement", "classwise_ece"} <= shown
    for metric, row in own.items():
        assert row["value"] == pytest.approx(card.value(metric, row["measure"])), metric
        assert row["low"] < row["high"], metric
    add_intervals(card, resamples=80)
    by_largest = {row["metric"]: row for row in card.rows if row["measure"] in (None, "msp")}
    for metric in ("human_alignment", "recall_at_1", "r_auroc", "classwise_ece", "auroc"):
        assert by_largest[metric]["low"] == pytest.approx(own[metric]["low"]), metric
    assert all(row["low"] is not None for row in card.rows)


def test_compare__what_no_model_has_is_a_reason():
    result = compare([_small(0), _small(1)], resamples=50)
    reasons = {reason["metric"]: reason["reason"] for reason in result.reasons}
    assert "no annotations" in reasons["human_alignment"] and "no embeddings" in reasons["recall_at_1"]


def test_draw_counts__in_and_out_of_distribution_rows_are_drawn_apart():
    counts = boot.draw_counts((30, 30), 0, 5)
    assert counts[:30].sum() == counts[30:].sum() == 30
    assert (counts[:30] == boot.draw_counts(30, 0, 5)).all() and (counts[:30] != counts[30:]).any()


def test_compare__every_number_of_a_scorecard_has_an_interval():
    from nescio.analysis.scorecard import scorecard

    card = scorecard(
        model(0).replace(groups={"half": np.arange(400) % 2}),
        val=model(3),
        ood={"noise": Predictions(logits=np.random.default_rng(0).normal(size=(50, 4)))},
        by=["half"],
    )
    add_intervals(card, resamples=60)
    without = {(row["metric"], row["split"], row["subgroup"]) for row in card.rows if row["low"] is None}
    assert without == {("temperature", "val", None)}  # fitted, not judged
    half = next(row for row in card.rows if row["subgroup"] == "half=1" and row["metric"] == "accuracy")
    alone = compare({"a": model(0).take(np.arange(1, 400, 2))}, metrics=["accuracy"], resamples=60).rows[0]
    assert (half["low"], half["high"]) == (alone["low"], alone["high"])


# ---- out-of-distribution rows


def with_outside(seed, strength, spread, labels, order):
    """A model's own rows, and its rows of a set outside in an order of its own."""
    rng = np.random.default_rng(seed)
    own = Predictions(labels=labels, logits=strength * np.eye(4)[labels] + rng.normal(size=(len(labels), 4)))
    outside = spread * rng.normal(size=(len(order), 4))
    return own, Predictions(index=order, logits=outside[order], in_distribution=False)


@pytest.fixture(scope="module")
def sure_and_unsure():
    labels, rng = np.arange(200) % 4, np.random.default_rng(4)
    pairs = {
        "sure": with_outside(0, 4, 0.3, labels, rng.permutation(90)),
        "unsure": with_outside(1, 2, 1.5, labels, rng.permutation(90)),
    }
    return {name: own for name, (own, _) in pairs.items()}, {name: outside for name, (_, outside) in pairs.items()}


def test_compare__detection_and_mixtures_are_those_of_the_scorecards(sure_and_unsure):
    """Values and intervals equal what each model's own scorecard says; the rows on in-distribution rows stay."""
    models, outside = sure_and_unsure
    result = compare(models, resamples=60, seed=3, ood={"svhn": outside}, ood_share=0.2)
    seen = set()
    for name, dump in models.items():
        shown = outside[name].select(outside["sure"].index)  # the order in which they are joined
        card = scorecard(dump, ood={"svhn": shown}, ood_share=0.2)
        add_intervals(card, resamples=60, seed=3)
        cells = {row["metric"]: row for row in card.rows if (row["split"], row["measure"]) == ("svhn", "msp")}
        for row in result.rows:
            if row["method"] == name and row["split"] == "svhn":
                keys = ("value", "low", "high", "n", "ood_share", "measure")
                assert [row[key] for key in keys] == [cells[row["metric"]][key] for key in keys], row["metric"]
                seen.add(row["metric"])
    assert seen >= {"auroc", "aupr", "fpr_at_tpr@0.95", "scod_aurc", "scod_augrc", "scod_cost@0.1"}
    assert [row for row in result.rows if row["split"] is None] == compare(models, resamples=60, seed=3).rows


def test_compare__models_are_paired_on_the_rows_outside_too(sure_and_unsure):
    """A model beside itself, its rows outside in another order: no resample sees a difference."""
    models, outside = sure_and_unsure
    again = {"sure": models["sure"], "twin": models["sure"]}
    shuffled = outside["sure"].select(outside["sure"].index[::-1])
    result = compare(again, resamples=40, metrics=["auroc", "scod_aurc"], ood={"far": [outside["sure"], shuffled]})
    far = [each for each in result.differences if each["split"] == "far"]
    assert len(far) == 2 and all((each["low"], each["high"], each["p"]) == (0, 0, 1) for each in far)


def test_compare__outside_rows_have_a_verdict(sure_and_unsure):
    models, outside = sure_and_unsure
    result = compare(models, resamples=200, ood={"svhn": outside})
    best = {row["method"]: row["best"] for row in result.rows if (row["split"], row["metric"]) == ("svhn", "auroc")}
    assert best == {"sure": True, "unsure": False}
    assert any("svhn" in sentence and "sure" in sentence for sentence in comparison_verdicts(result))


def test_compare__every_model_needs_rows_outside(sure_and_unsure, tmp_path, monkeypatch, capsys):
    models, outside = sure_and_unsure
    with pytest.raises(BadInput, match="'svhn' has 1 "):
        compare(models, ood={"svhn": [outside["sure"]]})
    with pytest.raises(BadInput, match="'scod_aurc' needs out-of-distribution rows"):
        compare(models, metrics=["scod_aurc"])
    monkeypatch.chdir(tmp_path)
    for name in models:
        models[name].save(f"{name}.npz")
        outside[name].save(f"{name}_svhn.npz")
    words = ["compare", "sure.npz", "unsure.npz", "--bootstrap", "50", "--format", "json", "--ood"]
    assert main([*words, "svhn=sure_svhn.npz"]) == 2
    assert "svhn=FILE" in capsys.readouterr().err
    assert main([*words, "svhn=sure_svhn.npz,svhn=unsure_svhn.npz", "--metrics", "scod_augrc"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {(row["method"], row["split"]) for row in rows} == {("sure", "svhn"), ("unsure", "svhn")}


# ---- metrics that are higher on few rows than in the population


def three_classes(rng, n, sharpness):
    """Predictions whose logits are `sharpness` times those that the labels are drawn from."""
    logits = 2 * rng.normal(size=(n, 3))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probs.cumsum(1) < rng.random((n, 1))).sum(1)
    return Predictions(logits=sharpness * logits, labels=labels)


@pytest.mark.parametrize("metric", ["ece", "mcb"])
@pytest.mark.parametrize("sharpness", [1, 3])
def test_bootstrap__intervals_of_calibration_hold_the_value_of_the_population(metric, sharpness):
    """At least 0.9 of the draws: 16 of 20, of which fewer come once in 23 trials even at 0.9."""
    function = {"ece": metrics.ece, "mcb": metrics.mcb}[metric]
    many = three_classes(np.random.default_rng(99), 60_000, sharpness)
    true = 0.0 if sharpness == 1 else function(summary(many).outcomes())
    held = []
    for seed in range(20):
        rows = three_classes(np.random.default_rng(seed), 100, sharpness)
        of = bootstrap(rows, metrics=[metric], resamples=40, seed=seed)[None, metric]
        held.append(of.low <= true <= of.high)
    assert sum(held) >= 16


def test_compare__intervals_of_differences_in_ece_hold_that_of_the_population():
    many = three_classes(np.random.default_rng(99), 60_000, 3)
    true, held = metrics.ece(summary(many).outcomes()), []
    for seed in range(20):
        right = three_classes(np.random.default_rng(seed), 200, 1)
        sure = right.replace(logits=3 * right.logits)
        result = compare({"right": right, "sure": sure}, metrics=["ece"], resamples=40, seed=seed)
        (difference,) = result.differences
        sign = 1 if difference["model"] == "sure" else -1
        held.append(difference["low"] <= sign * true <= difference["high"])
    assert sum(held) >= 16


def test_compare__equal_predictions_differ_by_exactly_nothing():
    rows = three_classes(np.random.default_rng(0), 200, 1)
    (difference,) = compare({"one": rows, "two": rows}, metrics=["ece"], resamples=50).differences
    assert (difference["difference"], difference["low"], difference["high"], difference["p"]) == (0, 0, 0, 1)


def test_probs_resampler__labels_drawn_from_the_probabilities_are_of_every_class_as_often_as_it_is_probable():
    probs = np.tile([[0.2, 0.5, 0.3]], (20_000, 1))
    shares = []

    def share(probs, labels):
        shares.append(np.bincount(labels, minlength=3) / len(labels))
        return 0.0

    metric = Metric("share", share, ("predictions",), "lower", False, bias="calibrated")
    part = ProbsResampler(probs, np.zeros(20_000, int), [MetricSpec("share", metric, {})])
    part.calibrated(np.random.default_rng(0))
    np.testing.assert_allclose(shares[-1], probs[0], atol=0.015)
