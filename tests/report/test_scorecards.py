"""Tables of scorecards say what the rows say, in the right order; sentences and stories of one model and of several."""

from __future__ import annotations

import csv
import io
from types import SimpleNamespace

import numpy as np
import pytest

from nescio import metrics, report
from nescio.report.blocks import Details, Figure, figures_of, tables_of, walk_blocks
from nescio.report.format import format_percent
from nescio.report.scorecards import (
    DETECTION,
    HUMAN,
    LEAST_POINTS,
    OTHER,
    RANKING,
    RETRIEVAL,
    card_blocks,
    comparison_tables,
    measures_of,
    rejection,
    summary,
    thinned,
)
from nescio.report.tables import Cell, Table
from tests.support.samples import row, sample_card, sample_comparison, sample_rows


def find(tables: list[Table], title: str) -> Table:
    return next(table for table in tables if table.title == title)


def cells(table: Table) -> dict[tuple[str, str], Cell]:
    """By the last label of a line."""
    return {(labels[-1], head): cell for (labels, head), cell in table.cells().items()}


# ---- which table says what


def test_questions_come_in_the_order_in_which_a_reader_asks_them() -> None:
    titles = [block.title for block in card_blocks(sample_rows()) if isinstance(block, Table)]
    assert titles == [
        "How good are the answers",
        "Does it know when it is wrong",
        "Does it notice what is out of distribution: letters",
        "Does it notice what is out of distribution: noise",
        "Do its embeddings find their kind",
        "Does it doubt where people doubt",
    ]


def test_every_row_is_in_exactly_one_place_and_the_share_accepted_stands_beside_each_other_set() -> None:
    rows = sample_rows()
    shown = sum(len(table.cells()) for table in report.card_tables(rows))
    in_notes = 2  # temperature and R@1 are one figure for the model: they stand in notes
    repeated = sum(r["metric"] == "in_as_in" for r in rows)  # once for each of the two sets
    assert shown == len(rows) - in_notes + repeated
    table = find(report.card_tables(rows), f"{DETECTION}: noise")
    assert table.columns == ("AUROC ↑", "AUPR ↑", "FPR@0.95 ↓", "out as out ↑", "in as in ↑")


def test_raw_and_calibrated_answers_stand_side_by_side() -> None:
    table = report.card_tables(sample_rows())[0]
    assert table.columns == ("raw", "calibrated") and table.index == ("metric",)
    held = cells(table)
    assert str(held["NLL ↓", "raw"]) == "0.4000" and held["NLL ↓", "raw"].value == 0.4
    assert not held["NLL ↓", "raw"].best
    assert str(held["NLL ↓", "calibrated"]) == "0.3000" and held["NLL ↓", "calibrated"].best
    assert not held["accuracy ↑", "raw"].best  # equal: nothing to choose
    assert "temperature 1.75" in table.note and "400 rows" in table.note


def test_the_calibrated_ranking_is_a_second_look_after_the_raw_one() -> None:
    blocks = [block for block in card_blocks(sample_rows()) if block.title.startswith(RANKING)]  # type: ignore[union-attr]
    assert [(type(block), block.title) for block in blocks] == [  # type: ignore[union-attr]
        (Table, RANKING),
        (Details, f"{RANKING}: calibrated"),
    ]


def test_best_follows_the_direction_of_the_metric() -> None:
    held = cells(find(report.card_tables(sample_rows()), RANKING))
    best = {head: line for (line, head), cell in held.items() if cell.best}
    assert best == {"AUROC ↑": "max_logit", "AURC ↓": "msp", "SAC@0.95 ↑": "max_logit", "risk@0.8 ↓": "msp"}


def test_a_metric_is_explained_once_where_it_is_first_seen_by_its_own_docstring() -> None:
    tables = report.card_tables(sample_rows())
    names = [name for table in tables for name, _ in table.legend]
    assert len(names) == len(set(names))
    assert dict(find(tables, RANKING).legend)["AUROC ↑"] == metrics.registry["auroc"].sentence
    assert dict(find(tables, RETRIEVAL).legend)["R@1 ↑"] == metrics.registry["recall_at_1"].sentence


@pytest.mark.parametrize("name", list(metrics.registry))
def test_every_registered_metric_has_a_place(name: str) -> None:
    assert report.card_tables([row(name, 0.5, "msp")])[0].rows


def test_a_metric_that_nobody_registered_is_still_shown_without_an_arrow() -> None:
    (table,) = report.card_tables([row("own_thing", 0.25, "msp"), row("own_thing", 0.75, "entropy")])
    assert table.title == OTHER and table.columns == ("own thing",)
    assert not any(cell.best for cell in table.cells().values())


def test_a_split_with_answers_is_in_distribution_whatever_its_name() -> None:
    rows = [row("accuracy", 0.9, split="held out"), row("auroc", 0.8, "msp", split="held out")]
    assert [table.title for table in report.card_tables(rows)] == ["How good are the answers", RANKING]


def test_groups_have_tables_of_their_own() -> None:
    rows = [row("auroc", 0.8, "msp"), row("auroc", 0.7, "msp", group="severity=5")]
    assert [table.title for table in report.card_tables(rows)] == [RANKING, f"{RANKING}: severity=5"]
    assert isinstance(card_blocks(rows)[1], Details)


def test_the_best_known_measures_come_first() -> None:
    rows = [row("auroc", 0.8, name) for name in ("gmm", "own", "entropy", "msp")]
    names = [labels for labels, _ in report.card_tables(rows)[0].rows]
    assert names == [("msp",), ("entropy",), ("gmm",), ("own",)]


def test_rows_of_several_models_are_told_apart_by_what_differs() -> None:
    rows = [row("auroc", 0.8, "msp", method="erm", trial=0), row("auroc", 0.7, "msp", method="mcd", trial=0)]
    (table,) = report.card_tables(rows)
    assert [labels for labels, _ in table.rows] == [("erm", "msp"), ("mcd", "msp")]


def test_nothing_measured_is_no_table() -> None:
    assert report.card_tables([]) == []
    alone = report.card_tables([row("human_alignment", 0.2, "msp")])
    assert [table.title for table in alone] == [HUMAN]


# ---- sentences


def test_headline_says_in_plain_words_what_the_rows_say() -> None:
    card = sample_card()
    said = report.headline(card)
    assert said[0] == "It is right in 90.0 % of 400 answers."
    assert said[1].startswith(
        "A wrong prediction gets a lower confidence than a right one in 50 of 100 pairs (AUROC 0.5000), hardly"
    )
    assert said[2] == "Abstaining on the 20 % it is least sure of brings accuracy to 50.0 %."
    count, confidence, _ = card.curves["reliability"]["raw"]
    assert format_percent(float(np.average(confidence, weights=count))) in said[3]
    assert said[4] == "Temperature scaling (T = 1.75) lowers the ECE from 0.0800 to 0.0300."
    assert said[5].startswith("On “letters”, which is out of distribution") and "60 of 100" in said[5]
    assert len(said) == 7


def test_a_calibration_that_does_not_help_or_means_little_says_so() -> None:
    card = sample_card()
    card.rows = [r | {"value": 0.09} if r["metric"] == "ece" and r["calibrated"] else r for r in card.rows]
    card.calibration_warning = "The calibration is fitted on 20 validation rows, which are few."
    said = report.headline(card)
    assert "Temperature scaling (T = 1.75) does not lower the ECE (0.0800 before, 0.0900 after)." in said
    assert card.calibration_warning in said
    tables = tables_of(report.card_story([card]))
    assert tables[0].columns == ("raw", "calibrated (in doubt)")
    assert f"{RANKING}: calibrated (in doubt)" in {table.title for table in tables}
    assert tables_of(report.short_story([card]))[0].columns == ("raw", "calibrated (in doubt)")


def test_headline_is_silent_about_what_was_not_measured() -> None:
    assert report.headline(SimpleNamespace(rows=[], curves={})) == []
    only = SimpleNamespace(rows=[row("auroc", 0.8, "norm")])
    assert report.headline(only) == [
        "A wrong prediction gets a lower confidence than a right one in 80 of 100 pairs (AUROC 0.8000)."
    ]


# ---- several models


def test_summary_has_one_line_per_model_and_marks_the_best() -> None:
    a, b = sample_card(name="a"), sample_card(name="a")
    b.rows = [r | {"value": r["value"] * 0.9} for r in b.rows]
    table = summary([a, b])
    assert [labels for labels, _ in table.rows] == [("a",), ("a (2)",)]
    held = cells(table)
    assert held["a", "accuracy ↑"].best and held["a (2)", "NLL ↓"].best
    assert "AUROC ↑ noise" in table.columns and "msp" in table.note
    assert str(held["a", "NLL ↓"]) == "0.4000"  # the raw figure


def test_comparison_shows_intervals_and_the_group_that_cannot_be_told_from_the_best() -> None:
    values, differences = comparison_tables(sample_comparison())
    held = cells(values)
    assert str(held["accuracy ↑", "logistic"]) == "#2* 0.8900 [0.8800, 0.9020]" and held["accuracy ↑", "logistic"].best
    assert str(held["accuracy ↑", "tree"]) == "#3 0.8000 [0.7900, 0.8120]" and not held["accuracy ↑", "tree"].best
    assert "1,000 paired resamples of 400 shared rows" in values.note and "95 %" in values.note
    line = ("AUROC ↑ · msp", "tree − forest")
    assert str(differences.cells()[line, "difference"]) == "-0.0400"


def test_no_winner_is_named_without_a_test() -> None:
    cards = [sample_card(name="forest"), sample_card(name="logistic"), sample_card(name="tree")]
    for card, less in zip(cards, (0, 0.05, 0.2), strict=True):
        card.rows = [r | {"value": r["value"] - less} for r in card.rows]
    (said,) = report.overview(cards)
    assert said.startswith("No winner is named: the models were not compared")
    (said,) = report.overview(cards, incomparable="They share no rows.")
    assert said == "No winner is named: They share no rows."
    assert report.overview(cards[:1]) == []
    assert report.overview(cards, sample_comparison())[1] == (
        "Right most often: forest (90.0 %) and logistic (89.0 %) cannot be told apart; tree is behind."
    )


def test_a_comparison_begins_with_a_verdict() -> None:
    comparison = sample_comparison()
    assert report.verdict(comparison)[0] == (
        "Verdict: by 3 metrics forest and logistic are never behind, and cannot be told apart by all of them."
    )
    comparison.rows = [r | {"best": r["rank"] == 1} for r in comparison.rows]
    said = report.verdict(comparison)
    assert said[1] == "Right most often: forest (90.0 %) is best; logistic and tree are behind, beyond chance."
    assert said[0] == "Verdict: by 3 metrics forest is never behind, and ahead of all others in 3."
    comparison.rows = [r | {"best": True} for r in comparison.rows]
    assert report.verdict(comparison)[0] == "Verdict: by 3 metrics forest, logistic and tree cannot be told apart."
    best = {"accuracy": "forest", "auroc": "tree", "aurc": "tree"}
    comparison.rows = [r | {"best": r["method"] == best[r["metric"]]} for r in comparison.rows]
    assert report.verdict(comparison)[0] == ("Verdict: by 3 metrics no model is always among the best; tree is in 2.")
    comparison.rows = comparison.rows[:1]
    assert report.verdict(comparison) == []


def test_the_best_measure_is_named_with_its_equals() -> None:
    rng = np.random.default_rng(0)
    wrong = rng.random(400) < 0.3
    good = wrong + rng.normal(size=400)
    drawn = {"raw": {"wrong": wrong, "u": {"msp": good + 1e-3 * rng.normal(size=400), "entropy": good, "gap": -good}}}
    (said,) = rejection(SimpleNamespace(drawn=drawn))
    assert (
        said.startswith("Best at rejecting wrong answers: `")
        and "not significantly different: `" in said
        and "gap" not in said
    )
    (said,) = rejection(SimpleNamespace(drawn={"raw": {"wrong": wrong, "u": {"msp": good, "gap": -good}}}))
    assert said.endswith(", significantly better than the others.")
    assert rejection(SimpleNamespace(drawn={"raw": {"wrong": wrong & False, "u": {"a": good, "b": good}}})) == []


def test_the_best_measure_for_every_set_stands_beside_the_baseline() -> None:
    rng = np.random.default_rng(0)
    u, out = rng.normal(size=400), rng.normal(size=300)
    drawn = {"u": {"msp": u, "vim": u}, "out": {"msp": {"sea": out}, "vim": {"sea": out + 2}}, "wrong": None}
    (said,) = rejection(SimpleNamespace(drawn={"raw": drawn}))
    assert said.startswith("Best at rejecting “sea”: `vim` (AUROC 0.9") and "the baseline `msp` has 0.5" in said
    page = report.render_page(report.Story("scores", [said], []))
    assert "<code>vim</code>" in page and "<code>msp</code>" in page and "`vim" not in page


def test_the_short_story_holds_the_essentials_and_fits_a_screen() -> None:
    from rich.console import Console

    card = sample_card()
    card.reasons.append({"measure": None, "metric": "in_as_in", "split": "test", "reason": "Give --val."})
    card.reasons.append({"measure": None, "metric": "predictions", "split": "test", "reason": "There are no labels."})
    console = Console(width=100, record=True, file=io.StringIO())
    report.print_terminal(report.short_story([card]), console)
    text = console.export_text()
    assert len(text.splitlines()) <= 40
    assert text.index("3 of 400 rows give") < text.index("It is right"), "what spoils numbers stands before them"
    page = report.markdown(report.card_story([card]))
    assert page.index("3 of 400 rows give") < page.index("It is right") and page.count("3 of 400 rows give") == 1
    for words in (
        "90.0 %",
        "AUROC ↑",
        "ECE ↓",
        "calibrated",
        "More with --val; see --all",
        "There are no labels.",
    ):
        assert words in text or words.capitalize() in text, words
    several = report.short_story([card, sample_card(name="b")], sample_comparison())
    assert [table.title for table in tables_of(several)] == ["The models side by side"]


def test_a_comparison_of_many_models_fits_a_screen() -> None:
    """Six models took 549 lines, and the verdict was the last of them."""
    from rich.console import Console

    comparison = sample_comparison()
    first = [row for row in comparison.rows if row["method"] == "forest"]
    names = [f"vit_base_patch16_224.model_{number}_in21k_ft_in1k" for number in range(40)]
    comparison.rows = [r | {"model": name, "rank": 1 + at} for at, name in enumerate(names) for r in first]
    console = Console(width=80, record=True, file=io.StringIO())
    report.print_terminal(report.short_comparison(comparison), console)
    lines = console.export_text().splitlines()
    assert len(lines) <= 40 and any("Verdict" in line for line in lines[:6]) and "--all" in lines[-2]


# ---- stories


def test_several_cards_and_their_comparison_make_one_document() -> None:
    cards = [sample_card(name="forest"), sample_card(name="tree")]
    story = report.card_story(cards, sample_comparison())
    assert [section.title for section in story.sections] == [
        "The models side by side",
        "Which differences are real",
        "forest",
        "tree",
    ]
    text = report.markdown(story)
    places = [text.index(f"\n## {section.title}\n") for section in story.sections]
    assert places == sorted(places)
    assert text.count("- **AUROC ↑**:") == 1  # explained once in the whole document
    assert text.count("It is right in 90.0 % of 400 answers.") == 2
    assert "forest: How good are the answers" in report.latex(story)
    only = report.card_story([], sample_comparison(), "Compared")
    assert only.title == "Compared" and "0.8900 [0.8800, 0.9020]" in report.markdown(only)


def test_a_story_has_the_figures_that_there_are() -> None:
    card = sample_card()
    assert [figure.key for figure in figures_of(report.card_story([card]))] == [
        "risk-0",
        "reliability-0",
        "corp-0",
        "cost-0",
        "histogram-0",
    ]
    both = report.card_story([card, sample_card()], sample_comparison())
    assert {figure.key for figure in figures_of(both)} >= {"models", "intervals", "risk-0", "histogram-1"}
    bare = SimpleNamespace(rows=[], reasons=[], notes=[], curves={}, name="none")
    assert not list(walk_blocks(report.card_story([bare])))
    assert not any(isinstance(block, Figure | Table) for block in walk_blocks(report.card_story([bare, bare])))


def test_figures_bear_the_names_that_the_field_knows() -> None:
    titles = [figure.title for figure in figures_of(report.card_story([sample_card(), sample_card()]))]
    for term in ("Reliability diagram", "Risk–coverage curve:", "Risk–coverage curves:"):
        assert any(title.startswith(term) for title in titles), term
    assert "temperature scaling with temperature 1.75" in report.card_tables(sample_rows())[0].note


def test_what_could_not_be_said_and_notes_are_part_of_the_story() -> None:
    text = report.markdown(report.card_story([sample_card()]))
    assert "- **energy, dempster\\_shafer**: The dump holds log-probabilities." in text and "3 of 400 rows" in text


def test_rows_of_several_cards_are_told_apart() -> None:
    cards = [sample_card(name="a"), sample_card(name="b")]
    held = list(csv.DictReader(io.StringIO(report.rows_csv(report.rows_of(cards)))))
    assert len(held) == 2 * len(sample_rows()) and {line["file"] for line in held} == {"a", "b"}
    compared = list(csv.DictReader(io.StringIO(report.rows_csv(report.rows_of([], sample_comparison())))))
    assert {line["method"] for line in compared} == {"forest", "logistic", "tree"} and compared[0]["rank"] == "1"


def test_many_models_share_the_points_of_the_page() -> None:
    curves = sample_card().curves
    assert len(thinned(curves, 1)["risk_coverage"]["msp"][0]) == 400
    coverage, risk = thinned(curves, 1000)["risk_coverage"]["msp"]
    assert len(coverage) == len(risk) == LEAST_POINTS
    assert coverage[0] == curves["risk_coverage"]["msp"][0][0] and coverage[-1] == 1.0
    assert risk[-1] == curves["risk_coverage"]["msp"][1][-1]


def test_the_default_measure_is_shown_first() -> None:
    assert measures_of({"risk_coverage": {"entropy": 0, "msp": 0, "optimal": 0}}) == ["msp", "entropy"]


def test_every_table_of_a_card_is_in_its_story() -> None:
    card = sample_card()
    assert tables_of(report.card_story([card])) == report.card_tables(card.rows)
