"""Stories of scorecards: verdicts first, every table and figure once, a short form for one screen."""

from __future__ import annotations

import csv
import io

from rich.console import Console

from nescio.analysis.results import Scorecard
from nescio.report.blocks import Figure, figures_of, tables_of, walk_blocks
from nescio.report.scorecards.questions import PREDICTIONS
from nescio.report.scorecards.stories import GAPS, all_rows, scorecard_story, short_comparison, short_story
from nescio.report.scorecards.tables import COMPARISON, SUMMARY, scorecard_tables
from nescio.report.tables import Table
from nescio.report.text import latex, markdown, print_terminal, rows_csv
from tests.support.samples import sample_card, sample_comparison, sample_rows


def test_short_story_fits_a_screen_and_begins_with_the_notes() -> None:
    card = sample_card()
    card.reasons.append({"measure": None, "metric": "in_as_in", "split": "test", "reason": "val is required"})
    card.reasons.append({"measure": None, "metric": "predictions", "split": "test", "reason": "NO LABELS"})
    console = Console(width=100, record=True, file=io.StringIO())
    print_terminal(short_story([card]), console)
    text = console.export_text()
    assert len(text.splitlines()) <= 40
    assert text.index("3 of 400") < text.index("90.0 %")
    page = markdown(scorecard_story([card]))
    assert page.index("3 of 400") < page.index("90.0 %") and page.count("3 of 400") == 1
    for expected in ("90.0 %", "AUROC ↑", "ECE ↓", "calibrated", "--val", "--all", "NO LABELS"):
        assert expected in text, expected
    several = short_story([card, sample_card(name="b")], sample_comparison())
    assert [table.title for table in tables_of(several)] == [SUMMARY]


def test_short_comparison_of_40_models_fits_a_screen() -> None:
    comparison = sample_comparison()
    first = [row for row in comparison.rows if row["method"] == "forest"]
    names = [f"vit_base_patch16_224.model_{number}_in21k_ft_in1k" for number in range(40)]
    comparison.rows = [r | {"model": name, "rank": rank} for rank, name in enumerate(names, start=1) for r in first]
    console = Console(width=80, record=True, file=io.StringIO())
    print_terminal(short_comparison(comparison), console)
    lines = console.export_text().splitlines()
    assert len(lines) <= 40 and any("Verdict" in line for line in lines[:6]) and "--all" in " ".join(lines[-3:])


def test_scorecard_story_of_several_models_is_one_document() -> None:
    cards = [sample_card(name="forest"), sample_card(name="tree")]
    story = scorecard_story(cards, sample_comparison())
    assert [section.title for section in story.sections] == [SUMMARY, COMPARISON, "forest", "tree"]
    text = markdown(story)
    positions = [text.index(f"\n## {section.title}\n") for section in story.sections]
    assert positions == sorted(positions)
    assert text.count("- **AUROC ↑**:") == 1  # described once
    assert text.count("Accuracy 90.0 %, n = 400.") == 2
    assert f"forest: {PREDICTIONS}" in latex(story)
    only = scorecard_story([], sample_comparison(), "Compared")
    assert only.title == "Compared" and "0.8900 [0.8800, 0.9020]" in markdown(only)


def test_scorecard_story_has_the_figures_with_curves() -> None:
    card = sample_card()
    keys = [figure.key for figure in figures_of(scorecard_story([card]))]
    assert keys == ["risk-0", "reliability-0", "corp-0", "cost-0", "histogram-0"]
    both = scorecard_story([card, sample_card()], sample_comparison())
    assert {figure.key for figure in figures_of(both)} >= {"models", "intervals", "risk-0", "histogram-1"}
    empty = Scorecard("none")
    assert not list(walk_blocks(scorecard_story([empty])))
    assert not any(isinstance(block, Figure | Table) for block in walk_blocks(scorecard_story([empty, empty])))


def test_scorecard_story_has_all_tables_gaps_and_notes() -> None:
    card = sample_card()
    story = scorecard_story([card])
    assert tables_of(story) == scorecard_tables(card.rows)
    text = markdown(story)
    assert f"### {GAPS}" in text and "- **energy, dempster\\_shafer**: " in text and "3 of 400" in text


def test_all_rows_name_the_scorecard() -> None:
    cards = [sample_card(name="a"), sample_card(name="b")]
    lines = list(csv.DictReader(io.StringIO(rows_csv(all_rows(cards)))))
    assert len(lines) == 2 * len(sample_rows()) and {line["file"] for line in lines} == {"a", "b"}
    compared = list(csv.DictReader(io.StringIO(rows_csv(all_rows([], sample_comparison())))))
    assert {line["method"] for line in compared} == {"forest", "logistic", "tree"} and compared[0]["rank"] == "1"
