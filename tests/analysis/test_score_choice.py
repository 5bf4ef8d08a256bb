"""The choice among scores: what it chooses, and that its figure is not flattered by the choice."""

from dataclasses import replace

import numpy as np
import pytest

from nescio import BadInput, Predictions, Undefined, metrics
from nescio.analysis.score_choice import QuestionRows, choose_among, choose_scores, question_rows
from nescio.analysis.scorecard import scorecard
from nescio.report.choices import scores_table
from nescio.report.verdicts import score_choice_verdicts


def rows_of(scores, wrong):
    return question_rows("mistakes", scores, wrong, {})


def noise(rng, n=150, scores=30):
    """Scores that know nothing: whatever is chosen is worth 0.5."""
    return {f"s{at}": rng.normal(size=n) for at in range(scores)}, rng.random(n) < 0.3


def test_choose_among__the_nested_figure_is_unbiased_where_the_naive_one_is_optimistic():
    rng = np.random.default_rng(0)
    choices = []
    for seed in range(40):
        scores, wrong = noise(rng)
        choices.append(choose_among("mistakes", list(scores), rows_of(scores, wrong), seed=seed))
    naive, honest = (np.array([getattr(choice, name) for choice in choices]) for name in ("naive", "value"))
    error = honest.std() / np.sqrt(len(honest))
    assert naive.mean() > 0.58
    assert abs(honest.mean() - 0.5) < 3 * error < 0.05
    covered = [choice.low <= 0.5 <= choice.high for choice in choices]
    assert np.mean(covered) >= 0.9
    assert np.mean([choice.beats_baseline for choice in choices]) <= 0.15


def test_choose_among__validation_rows_choose_and_test_rows_judge():
    rng = np.random.default_rng(1)
    values = []
    for seed in range(40):
        (scores, wrong), (val, val_wrong) = noise(rng), noise(rng)
        choice = choose_among("mistakes", list(scores), rows_of(scores, wrong), rows_of(val, val_wrong), seed=seed)
        assert choice.folds == 0 and choice.measure == max(val, key=lambda name: metrics.auroc(val[name], val_wrong))
        assert choice.value == pytest.approx(metrics.auroc(scores[choice.measure], wrong))
        values.append(choice.value)
    assert abs(np.mean(values) - 0.5) < 0.03


def test_choose_among__a_score_that_is_better_is_chosen_and_beats_the_baseline():
    rng = np.random.default_rng(2)
    wrong = rng.random(800) < 0.3
    truth = wrong + 0.0
    scores = {"other": truth + rng.normal(size=800), "best": 2 * truth + rng.normal(size=800)}
    scores |= {"msp": truth + rng.normal(size=800), "copy": 3 * scores["best"]}
    choice = choose_among("mistakes", list(scores), rows_of(scores, wrong))
    assert choice.measure == "best" and set(choice.group) == {"best", "copy"} and choice.beats_baseline
    assert choice.baseline_value == pytest.approx(metrics.auroc(scores["msp"], wrong), abs=0.02)
    assert choice.value == pytest.approx(metrics.auroc(scores["best"], wrong), abs=0.02)
    assert choice.gain == pytest.approx(choice.value - choice.baseline_value)
    assert sum(choice.chosen.values()) == choice.folds == 25
    said = " ".join(score_choice_verdicts(choice))
    assert said.index("`best`") < said.index("`msp`") < said.index("`copy`")
    same = replace(choice, naive=choice.value + 1e-9)  # equal as printed
    lower = replace(choice, naive=choice.value - 0.01)
    assert all(f"{c.naive:.3f} on the" not in score_choice_verdicts(c)[0] for c in (same, lower))


def test_choose_among__where_nothing_is_better_the_sentence_says_so():
    rng = np.random.default_rng(3)
    wrong = rng.random(300) < 0.3
    largest = wrong + rng.normal(size=300)
    choice = choose_among("mistakes", ["msp", "twice"], rows_of({"twice": 2 * largest, "msp": largest}, wrong))
    assert choice.measure == "msp" and not choice.beats_baseline
    assert "`msp`" in score_choice_verdicts(choice)[1] and "Gain" not in score_choice_verdicts(choice)[1]


def test_question_rows__the_area_of_unknown_rows_is_the_mean_over_sets_and_of_both_that_of_the_mixture():
    rng = np.random.default_rng(4)
    u, wrong = {"a": rng.normal(size=200)}, rng.random(200) < 0.3
    outside = {"near": {"a": rng.normal(0.5, 1, 50)}, "far": {"a": rng.normal(2, 1, 400)}}
    unknown = question_rows("unknown", u, wrong, outside).components("a").area
    each = [
        metrics.auroc(np.concatenate([u["a"], own["a"]]), np.arange(200 + len(own["a"])) >= 200)
        for own in outside.values()
    ]
    assert unknown == pytest.approx(np.mean(each))
    one = {"far": outside["far"]}
    both = question_rows("both", u, wrong, one, share=0.2).components("a").area
    assert both == pytest.approx(metrics.auroc(metrics.Mixture(u["a"], wrong, one["far"]["a"], 0.2).ranking()))


def test_choose_among__sets_that_had_no_say():
    """Each set has a score of its own: chosen by the other set, that score is useless."""
    rng = np.random.default_rng(5)
    u = {name: rng.normal(size=200) for name in ("msp", "sees_x", "sees_y")}
    outside = {kind: {name: rng.normal(3 * (name == f"sees_{kind}"), 1, 100) for name in u} for kind in ("x", "y")}
    choice = choose_among("unknown", list(u), question_rows("unknown", u, None, outside))
    assert choice.value > 0.7 and choice.elsewhere == pytest.approx(0.5, abs=0.1)
    assert "Leave-one-set-out" in " ".join(score_choice_verdicts(choice))


def dump(seed, n=300, shift=0.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    logits = (2.0 - shift) * np.eye(4)[labels] + rng.normal(size=(n, 4))
    scores = {"guess": rng.random(n), "cheat": shift + rng.normal(scale=0.1, size=n)}
    return Predictions(labels=labels, logits=logits, scores=scores, index=np.arange(n) + 1000 * seed)


@pytest.fixture(scope="module")
def card():
    only = ("msp", "entropy", "guess", "cheat")
    ood = {"far": dump(3, shift=1.5).replace(labels=None), "near": dump(4, shift=1.0).replace(labels=None)}
    val_ood = {"other": dump(5, shift=1.2).replace(labels=None)}
    return scorecard(dump(1), val=dump(2), ood=ood, val_ood=val_ood, only=only, calibration=None)


def test_choose_scores__validation_rows_of_a_card_answer_what_they_can(card):
    (mistakes,) = choose_scores(card, "mistakes")
    assert mistakes.folds == 0 and mistakes.chosen_by == 300 and not mistakes.ood_validation
    (unknown,) = choose_scores(card, "unknown")
    assert unknown.measure == "cheat" and unknown.folds == 0 and unknown.ood_validation
    assert "validation rows" in " ".join(score_choice_verdicts(unknown))
    card.raw.val.ood.clear()
    (nested,) = choose_scores(card, "both", share=0.3)
    assert nested.folds == 25 and not nested.ood_validation and nested.elsewhere is not None
    assert f"{nested.elsewhere:.3f}" in " ".join(score_choice_verdicts(nested))


def test_choose_scores__scores_tuned_on_unknown_rows_are_never_mixed_with_the_others(card):
    plain, tuned = choose_scores(card, "unknown", ood_tuned=["cheat"])
    assert plain.measure != "cheat" and "cheat" not in plain.areas and not plain.ood_tuned
    assert tuned.measure == "cheat" and set(tuned.areas) == {"cheat"} and tuned.ood_tuned
    assert "tuned" in score_choice_verdicts(tuned)[0]
    with pytest.raises(BadInput, match="no score 'none'"):
        choose_scores(card, "unknown", ood_tuned=["none"])


def test_choose_among__the_short_table_holds_the_best_and_the_baseline():
    rng = np.random.default_rng(6)
    wrong = rng.random(400) < 0.3
    scores = {
        "msp": rng.normal(size=400),
        "good": wrong + rng.normal(size=400),
        "bad": rng.normal(size=400) - wrong,
    }
    choice = choose_among("mistakes", list(scores), rows_of(scores, wrong))
    assert [labels[0] for labels, _ in scores_table(choice, everything=False).rows] == ["good", "msp (baseline)"]
    assert len(scores_table(choice).rows) == 3


def test_question_rows__what_a_question_needs():
    u = {"a": np.arange(9.0)}
    with pytest.raises(Undefined, match="no labels"):
        question_rows("mistakes", u, None, {})
    with pytest.raises(Undefined, match="ood"):
        question_rows("unknown", u, None, {})
    with pytest.raises(BadInput, match="no question"):
        question_rows("all", u, None, {})
    with pytest.raises(Undefined, match="4 rows"):
        choose_among("mistakes", ["a"], rows_of(u, np.arange(9) < 1))
    with pytest.raises(Undefined, match="No score"):
        choose_among("mistakes", [], QuestionRows({}, {}, {}))
