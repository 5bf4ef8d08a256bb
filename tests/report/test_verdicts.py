"""Verdicts contain the numbers of the rows, and the names of the models and measures that a test singles out."""

from __future__ import annotations

import numpy as np

from nescio.analysis.curves import ScoreSet
from nescio.analysis.results import Scorecard
from nescio.report.blocks import Story
from nescio.report.format import format_percent
from nescio.report.pages import render_page
from nescio.report.scorecards.stories import further_options, missing_options
from nescio.report.verdicts import best_measures, comparison_verdicts, limit_names, models_verdicts, scorecard_verdicts
from tests.support.samples import row, sample_card, sample_comparison


def test_scorecard_verdicts_have_one_line_per_question() -> None:
    card = sample_card()
    lines = scorecard_verdicts(card)
    assert len(lines) == 6
    numbers = [("90.0 %", "400"), ("msp", "0.500", "50.0 %"), ("0.080",), ("1.75", "0.030", "0.080")]
    numbers += [("letters", "0.600"), ("noise", "0.600")]
    for line, texts in zip(lines, numbers, strict=True):
        assert all(text in line for text in texts), line
    count, confidence, _ = card.curves["reliability"]["raw"]
    assert format_percent(float(np.average(confidence, weights=count))) in lines[2]


def test_scorecard_verdicts_show_intervals() -> None:
    rows = [row("accuracy", 0.926, low=0.9, high=0.95), row("auroc", 0.908, "msp", low=0.87, high=0.94)]
    accuracy, auroc = scorecard_verdicts(Scorecard("a", rows))
    assert "92.6 % [90.0 %, 95.0 %]" in accuracy and "0.908 [0.870, 0.940]" in auroc


def test_scorecard_verdicts_mention_chance() -> None:
    def mentions(value: float) -> bool:
        (line,) = scorecard_verdicts(Scorecard("a", [row("auroc", value, "msp")]))
        return "chance" in line

    assert [mentions(value) for value in (0.3, 0.5, 0.54, 0.6)] == [True, True, True, False]


def test_scorecard_verdicts_of_a_useless_calibration() -> None:
    card = sample_card()
    card.rows = [r | {"value": 0.09} if r["metric"] == "ece" and r["calibrated"] else r for r in card.rows]
    card.calibration_warning = "The calibration is fitted on 20 validation rows."
    lines = scorecard_verdicts(card)
    (line,) = (line for line in lines if "1.75" in line)
    assert "0.090" in line and "0.080" in line and "improvement" in line and card.calibration_warning in lines


def test_scorecard_verdicts_leave_out_what_was_not_measured() -> None:
    assert scorecard_verdicts(Scorecard("")) == []
    (line,) = scorecard_verdicts(Scorecard("", [row("auroc", 0.8, "norm")]))
    assert "norm" in line and "0.800" in line


def test_models_verdicts_name_no_winner_without_a_test() -> None:
    cards = [sample_card(name="forest"), sample_card(name="logistic")]
    (line,) = models_verdicts(cards)
    assert "forest" not in line and "nescio compare" in line
    (line,) = models_verdicts(cards, incomparable="NO ROWS")
    assert "NO ROWS" in line
    assert models_verdicts(cards[:1]) == []
    assert models_verdicts(cards, sample_comparison()) == comparison_verdicts(sample_comparison())


def test_comparison_verdicts_name_the_best_group() -> None:
    comparison = sample_comparison()
    overall, accuracy, auroc = comparison_verdicts(comparison)
    assert all(name in overall for name in ("forest", "logistic", "3")) and "tree" not in overall
    assert accuracy.index("forest 90.0 %") < accuracy.index("logistic 89.0 %") < accuracy.index("tree")
    assert "0.910" in auroc


def test_comparison_verdicts_of_one_winner_of_none_and_of_ties() -> None:
    comparison = sample_comparison()
    rows = comparison.rows
    comparison.rows = [r | {"best": r["rank"] == 1} for r in rows]
    overall, accuracy, _ = comparison_verdicts(comparison)
    assert "forest" in overall and "logistic" not in overall and overall.count("3") == 2
    assert accuracy.index("forest") < accuracy.index("worse") < accuracy.index("logistic and tree")
    comparison.rows = [r | {"best": True} for r in rows]
    assert "forest, logistic and tree" in comparison_verdicts(comparison)[0]
    best = {"accuracy": "forest", "auroc": "tree", "aurc": "tree"}
    comparison.rows = [r | {"best": r["method"] == best[r["metric"]]} for r in rows]
    overall = comparison_verdicts(comparison)[0]
    assert "tree" in overall and "2" in overall and "forest" not in overall
    comparison.rows = rows[:1]
    assert comparison_verdicts(comparison) == []


def test_best_measures_name_the_equals_of_the_best() -> None:
    rng = np.random.default_rng(0)
    wrong = rng.random(400) < 0.3
    good = wrong + rng.normal(size=400)
    u = {"msp": good + 1e-3 * rng.normal(size=400), "entropy": good, "gap": -good}
    (line,) = best_measures(Scorecard("", raw=ScoreSet(u, wrong=wrong)))
    assert "`msp`" in line and "`entropy`" in line and "gap" not in line
    (line,) = best_measures(Scorecard("", raw=ScoreSet({"msp": good, "gap": -good}, wrong=wrong)))
    assert "`msp`" in line and "gap" not in line
    undefined = ScoreSet({"a": good, "b": good}, wrong=wrong & False)
    assert best_measures(Scorecard("", raw=undefined)) == [] == best_measures(Scorecard(""))


def test_best_measures_compare_every_ood_set_with_the_baseline() -> None:
    rng = np.random.default_rng(0)
    u, ood = rng.normal(size=400), rng.normal(size=300)
    raw = ScoreSet({"msp": u, "vim": u}, {"msp": {"sea": ood}, "vim": {"sea": ood + 2}})
    (line,) = best_measures(Scorecard("", raw=raw))
    assert line.index("sea") < line.index("`vim`") < line.index("0.9") < line.index("`msp`: 0.5")
    page = render_page(Story("scores", [line], []))
    assert "<code>vim</code>" in page and "<code>msp</code>" in page and "`vim" not in page


def test_limit_names_counts_the_others() -> None:
    assert limit_names(list("abc"), None) == "a, b and c" == limit_names(list("abc"), 2)
    assert limit_names(list("abcd"), 2) == "a, b and 2 more"


def test_missing_options_are_those_of_the_reasons() -> None:
    assert missing_options(["val is required", "validation", "give --ood"]) == ["--val", "--ood"]
    assert "--train" in further_options(["train is required"]) and "--val" not in further_options([])
