"""Tables say what the rows say, in the right order, with the best values marked and nothing lost in escaping."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nescio
from nescio import metrics, report
from nescio.report import Cell, Table
from nescio.report.cells import (
    COLUMNS,
    DETECTION,
    HUMAN,
    OTHER,
    RANKING,
    RETRIEVAL,
    label,
    number,
    of_hundred,
    percent,
)

MEASURES = ("largest", "entropy", "max_logit")
RANKED = ("auroc", "aurc", "sac@0.95", "selective_risk@0.8")


def row(metric: str, value: float, measure: str | None = None, **more: Any) -> dict[str, Any]:
    base = dict.fromkeys(COLUMNS) | {"calibrated": False, "split": "test", "n": 400}
    return base | {"metric": metric, "value": value, "measure": measure} | more


def sample_rows() -> list[dict[str, Any]]:
    rows = []
    for calibrated in (False, True):
        for metric, value in {
            "accuracy": 0.9,
            "nll": 0.4 - 0.1 * calibrated,
            "brier": 0.2,
            "ece": 0.08 - 0.05 * calibrated,
        }.items():
            rows.append(row(metric, value, calibrated=calibrated))
        for at, measure in enumerate(MEASURES):
            for metric in RANKED:
                rows.append(row(metric, 0.5 + 0.1 * at + 0.01 * calibrated, measure, calibrated=calibrated))
            rows.append(row("in_as_in", 0.95, measure, calibrated=calibrated))
            for split in ("letters", "noise"):
                for metric in ("auroc", "aupr", "fpr_at_tpr@0.95", "out_as_out"):
                    rows.append(row(metric, 0.6 + 0.1 * at, measure, split=split, calibrated=calibrated))
    rows.append(row("temperature", 1.75, calibrated=True, split="val"))
    rows.append(row("recall_at_1", 0.85))
    rows += [row("r_auroc", 0.7, measure) for measure in MEASURES]
    rows += [row("human_alignment", 0.3, measure) for measure in MEASURES]
    return rows


def sample_card(seed: int = 0, n: int = 400, name: str = "digits-svm") -> SimpleNamespace:
    """A card as the scorecard makes it: rows, reasons, notes, and curves of simulated scores."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(n) < 0.1
    u = {m: np.clip(rng.beta(1, 6, n) + wrong * rng.beta(2, 4, n), 0, 1) * (1 + at) for at, m in enumerate(MEASURES)}
    out = {
        m: {s: np.clip(rng.beta(3, 4, n), 0, 1) * (1 + at) for s in ("letters", "noise")}
        for at, m in enumerate(MEASURES)
    }
    probs = np.column_stack([1 - u["largest"] / 2, u["largest"] / 2])
    labels = wrong.astype(int)
    answers = metrics.answers(probs, labels)
    softer = metrics.answers(np.column_stack([0.02 + 0.96 * probs[:, 0], 0.02 + 0.96 * probs[:, 1]]), labels)
    drawn = {
        "raw": {"wrong": wrong, "u": u, "out": out, "answers": answers},
        "calibrated": {"wrong": wrong, "u": u, "out": {}, "answers": softer},
    }
    reasons = [
        {"measure": "energy", "metric": None, "split": "test", "reason": "The dump holds log-probabilities."},
        {"measure": "dempster_shafer", "metric": None, "split": "test", "reason": "The dump holds log-probabilities."},
        {"measure": None, "metric": "recall_at_1", "split": "test", "reason": "There are no embeddings in this dump."},
    ]
    notes = ["3 of 400 rows give their true class probability 0."]
    return SimpleNamespace(name=name, rows=sample_rows(), reasons=reasons, notes=notes, curves=report.curves_of(drawn))


def sample_comparison() -> SimpleNamespace:
    rows, differences = [], []
    for metric, measure, values in (
        ("accuracy", None, (0.9, 0.89, 0.8)),
        ("auroc", "largest", (0.91, 0.88, 0.87)),
        ("aurc", "largest", (0.02, 0.021, 0.05)),
    ):
        for rank, (model, value) in enumerate(zip(("forest", "logistic", "tree"), values, strict=True), start=1):
            interval = {"low": value - 0.01, "high": value + 0.012}
            rows.append(row(metric, value, measure, method=model, rank=rank, best=rank < 3, **interval))
            if rank > 1:
                found = {
                    "model": model,
                    "best": "forest",
                    "measure": measure,
                    "metric": metric,
                    "p": 0.2,
                    "adjusted": 0.4,
                }
                differences.append(found | {"difference": value - values[0], "low": -0.03, "high": 0.01})
    return SimpleNamespace(rows=rows, differences=differences, reasons=[], n=400, resamples=1000, level=0.95)


def find(tables: list[Table], title: str) -> Table:
    return next(table for table in tables if table.title == title)


def cells(table: Table) -> dict[tuple[str, str], Cell | None]:
    return {(line, head): cell for line, held in table.lines for head, cell in zip(table.heads, held, strict=True)}


# ---- which table says what


def test_questions_come_in_the_order_in_which_a_reader_asks_them() -> None:
    titles = [table.title for table in report.tables(sample_rows()) if not table.more]
    assert titles == [
        "How good are the answers",
        "Does it know when it is wrong",
        "Does it notice what it was never taught: letters",
        "Does it notice what it was never taught: noise",
        "Do its embeddings find their kind",
        "Does it doubt where people doubt",
    ]


def test_every_row_is_in_exactly_one_place_and_the_share_accepted_stands_beside_each_out_domain_set() -> None:
    rows = sample_rows()
    shown = sum(cell is not None for table in report.tables(rows) for _, line in table.lines for cell in line)
    in_notes = 2  # temperature and R@1 are one figure for the model: they stand in notes
    repeated = sum(r["metric"] == "in_as_in" for r in rows)  # once for each of the two sets
    assert shown == len(rows) - in_notes + repeated
    table = find(report.tables(rows), f"{DETECTION}: noise")
    assert table.heads == ("AUROC ↑", "AUPR ↑", "FPR@0.95 ↓", "out as out ↑", "in as in ↑")


def test_raw_and_calibrated_answers_stand_side_by_side() -> None:
    table = report.tables(sample_rows())[0]
    assert table.heads == ("raw", "calibrated")
    held = cells(table)
    assert held["NLL ↓", "raw"] == Cell("0.4000", 0.4, False)
    assert held["NLL ↓", "calibrated"].text == "0.3000" and held["NLL ↓", "calibrated"].best  # type: ignore[union-attr]
    assert not held["accuracy ↑", "raw"].best  # type: ignore[union-attr]  # equal: nothing to choose
    assert "temperature 1.75" in table.note and "400 rows" in table.note


def test_the_calibrated_ranking_is_a_second_look_after_the_raw_one() -> None:
    titles = [(table.title, table.more) for table in report.tables(sample_rows()) if table.title.startswith(RANKING)]
    assert titles == [(RANKING, False), (f"{RANKING}: calibrated", True)]


def test_best_follows_the_direction_of_the_metric() -> None:
    held = cells(find(report.tables(sample_rows()), RANKING))
    best = {head: line for (line, head), cell in held.items() if cell and cell.best}
    assert best == {"AUROC ↑": "max_logit", "AURC ↓": "largest", "SAC@0.95 ↑": "max_logit", "risk@0.8 ↓": "largest"}


def test_values_that_print_alike_are_equally_bold_and_a_constant_column_has_no_best() -> None:
    near = [row("auroc", 0.90000001, "a"), row("auroc", 0.9, "b"), row("auroc", 0.7, "c")]
    assert [cell.best for _, (cell,) in report.pivot(near).lines if cell] == [True, True, False]
    same = [row("auroc", 0.9, "a"), row("auroc", 0.9, "b")]
    assert not any(cell.best for _, (cell,) in report.pivot(same).lines if cell)


def test_a_metric_is_explained_once_where_it_is_first_seen_by_its_own_docstring() -> None:
    tables = report.tables(sample_rows())
    names = [name for table in tables for name, _ in table.legend]
    assert len(names) == len(set(names))
    assert dict(find(tables, RANKING).legend)["AUROC ↑"] == metrics.registry["auroc"].sentence
    assert dict(find(tables, RETRIEVAL).legend)["R@1 ↑"] == metrics.registry["recall_at_1"].sentence


@pytest.mark.parametrize("name", list(metrics.registry))
def test_every_registered_metric_has_a_label_with_its_arrow_and_a_place(name: str) -> None:
    part = metrics.registry[name]
    assert {"higher": "↑", "lower": "↓"}.get(part.better, name[-1:]) == label(name)[-1:] or part.better == "neither"
    assert report.tables([row(name, 0.5, "largest")])[0].lines


def test_a_metric_that_nobody_registered_is_still_shown_without_an_arrow() -> None:
    (table,) = report.tables([row("own_thing", 0.25, "largest"), row("own_thing", 0.75, "entropy")])
    assert table.title == OTHER and table.heads == ("own thing",) and not any(c.best for _, (c,) in table.lines if c)


def test_a_split_with_answers_is_familiar_whatever_its_name() -> None:
    rows = [row("accuracy", 0.9, split="held out"), row("auroc", 0.8, "largest", split="held out")]
    assert [table.title for table in report.tables(rows)] == ["How good are the answers", RANKING]


def test_groups_have_tables_of_their_own() -> None:
    rows = [row("auroc", 0.8, "largest"), row("auroc", 0.7, "largest", group="severity=5")]
    assert [table.title for table in report.tables(rows)] == [RANKING, f"{RANKING}: severity=5"]


def test_the_best_known_measures_come_first() -> None:
    rows = [row("auroc", 0.8, name) for name in ("gmm", "own", "entropy", "largest")]
    assert [line for line, _ in report.tables(rows)[0].lines] == ["largest", "entropy", "gmm", "own"]


def test_rows_of_several_models_are_told_apart_by_what_differs() -> None:
    rows = [row("auroc", 0.8, "largest", method="erm", trial=0), row("auroc", 0.7, "largest", method="mcd", trial=0)]
    assert [line for line, _ in report.tables(rows)[0].lines] == ["erm · largest", "mcd · largest"]


def test_two_rows_for_one_cell_are_an_error_not_an_overwrite() -> None:
    with pytest.raises(nescio.BadInput, match="tells them apart"):
        report.pivot([row("auroc", 0.8, "largest"), row("auroc", 0.7, "largest")])


def test_nothing_measured_is_no_table() -> None:
    assert report.tables([]) == [] and report.markdown([]) == "" and report.latex([]) == ""
    alone = report.tables([row("human_alignment", 0.2, "largest")])
    assert [table.title for table in alone] == [HUMAN]


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(-0.00001, 4, "0.0000"), (-0.5, 2, "-0.50"), (1234.5678, 1, "1234.6"), (0.0, 4, "0.0000")],
)
def test_numbers(value: float, digits: int, text: str) -> None:
    assert number(value, digits) == text


@pytest.mark.parametrize(
    ("top", "text"),
    [
        (0.93125, "0.9313"),
        (1.0, "1.0000"),
        (12.345678, "12.346"),
        (3e-5, "0.0000300"),
        (51234.5, "51234"),
        (0.0, "0.0000"),
    ],
)
def test_digits_fit_the_size_of_the_values(top: float, text: str) -> None:
    (_, (cell,)) = report.pivot([row("aurc", top, "a")]).lines[0]
    assert cell is not None and cell.text == text


# ---- sentences


def test_shares_never_round_to_all_or_nothing() -> None:
    assert percent(0.931) == "93.1 %" and percent(1) == "100 %" and percent(0) == "0 %"
    assert percent(0.9996) == "99.96 %" and percent(0.00001) == "0.001 %" and percent(1 - 1e-9) == "nearly 100 %"
    assert (
        of_hundred(0.914) == "91 of 100"
        and of_hundred(0.999) == "more than 99 of 100"
        and of_hundred(1) == "100 of 100"
    )
    assert of_hundred(0.001) == "less than 1 of 100"


def test_headline_says_in_plain_words_what_the_rows_say() -> None:
    card = sample_card()
    said = report.headline(card)
    assert said[0] == "It is right in 90.0 % of 400 answers."
    assert said[1].startswith(
        "When it is wrong, it is less sure than when it is right in 50 of 100 comparisons, little"
    )
    assert said[2] == "Abstaining on the 20 % it is least sure of brings accuracy to 50.0 %."
    count, confidence, _ = card.curves["reliability"]["raw"]
    assert percent(float(np.average(confidence, weights=count))) in said[3]
    assert said[4].startswith("On “letters”, which it was never taught") and "60 of 100" in said[4]
    assert len(said) == 6


def test_headline_is_silent_about_what_was_not_measured() -> None:
    assert report.headline(SimpleNamespace(rows=[], curves={})) == []
    only = SimpleNamespace(rows=[row("auroc", 0.8, "norm")])
    assert report.headline(only) == [
        "When it is wrong, it is less sure than when it is right in 80 of 100 comparisons."
    ]


def test_each_reason_is_given_once() -> None:
    assert report.grouped(sample_card().reasons) == [
        ("energy, dempster_shafer", "The dump holds log-probabilities."),
        ("R@1", "There are no embeddings in this dump."),
    ]
    alike = [{"measure": m, "metric": None, "split": "test", "reason": f"{m} needs scores."} for m in ("energy", "gap")]
    assert report.grouped(alike) == [("energy, gap", "It needs scores.")]
    many = [{"measure": f"m{i}", "metric": "auroc", "split": "noise", "reason": "No."} for i in range(9)]
    assert report.grouped(many) == [("AUROC of m0, m1, m2, m3, m4, m5 and 3 more on noise", "No.")]


# ---- several models


def test_summary_has_one_line_a_model_and_marks_the_best() -> None:
    a, b = sample_card(name="a"), sample_card(name="a")
    b.rows = [r | {"value": r["value"] * 0.9} for r in b.rows]
    table = report.summary([a, b])
    assert [line for line, _ in table.lines] == ["a", "a (2)"]
    held = cells(table)
    assert held["a", "accuracy ↑"].best and held["a (2)", "NLL ↓"].best  # type: ignore[union-attr]
    assert "AUROC ↑ noise" in table.heads and "largest" in table.note
    assert held["a", "NLL ↓"].text == "0.4000"  # type: ignore[union-attr]  # the raw figure


def test_comparison_shows_intervals_and_the_group_that_cannot_be_told_from_the_best() -> None:
    values, differences = report.tables(sample_comparison())
    held = cells(values)
    assert held["accuracy ↑", "logistic"] == Cell("#2* 0.8900 [0.8800, 0.9020]", 0.89, True)
    assert held["accuracy ↑", "tree"] == Cell("#3 0.8000 [0.7900, 0.8120]", 0.8, False)
    assert "1,000 paired resamples of 400 shared rows" in values.note and "95 %" in values.note
    assert cells(differences)["AUROC ↑ · largest: tree − forest", "difference"].text == "-0.0400"  # type: ignore[union-attr]


def test_ranks_and_the_group_of_the_best_survive_in_every_form(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from rich.console import Console

    comparison = sample_comparison()
    comparison.rows.append(row("accuracy", 0.5, split="other", method="tree", rank=None, best=None))
    plain = io.StringIO()
    report.terminal([], Console(file=plain, width=160), comparison=comparison)
    assert "#1* 0.9000 [" in plain.getvalue() and "#3 0.8000 [" in plain.getvalue()
    assert "* after the rank: cannot be told from the best" in plain.getvalue()
    marked = report.markdown([], comparison)
    assert r"| **#2\* 0.8900 [0.8800, 0.9020]** | #3 0.8000 [" in marked and r"\* after the rank" in marked
    tex = report.latex([], comparison)
    assert r"\textbf{\#2* 0.8900 [0.8800, 0.9020]} & \#3 0.8000 [" in tex and "* after the rank" in tex
    page = report.write(tmp_path, [], comparison).read_text()
    assert "<strong>#2* 0.8900</strong>" in page and "<td>#3 0.8000" in page and "* after the rank" in page
    assert "#None" not in plain.getvalue() + marked + tex + page


def test_overview_names_the_best_and_who_cannot_be_told_from_it() -> None:
    cards = [sample_card(name="forest"), sample_card(name="logistic"), sample_card(name="tree")]
    for card, less in zip(cards, (0, 0.05, 0.2), strict=True):
        card.rows = [r | {"value": r["value"] - less} for r in card.rows]
    assert report.overview(cards) == [
        "Right most often: forest, in 90.0 % of answers.",
        "Knows best when it is wrong: forest, less sure then in 50 of 100 comparisons.",
    ]
    said = report.overview(cards, sample_comparison())
    assert said[0] == "Right most often: forest, in 90.0 % of answers; logistic cannot be told from it."
    clear = sample_comparison()
    clear.rows = [r | {"best": r["rank"] == 1} for r in clear.rows]
    assert report.overview(cards, clear)[0].endswith("; the others are behind, beyond chance.")
    assert report.overview(cards[:1]) == []
    assert report.overview([cards[0], cards[0]])[0].startswith("Right most often: forest and forest (2), in 90.0 %")


# ---- texts


def test_markdown_tables_hold_the_cells_and_survive_marks_in_names() -> None:
    text = report.markdown(sample_card())
    assert "### Does it know when it is wrong" in text and "| measure | AUROC ↑ | AURC ↓ |" in text
    assert "| max\\_logit | **0.7000** | 0.7000 |" in text
    assert "- **energy, dempster\\_shafer**: The dump holds log-probabilities." in text
    assert "3 of 400 rows" in text
    odd = report.markdown([row("auroc", 0.5, "a|b*c")])
    assert "| a\\|b\\*c | 0.5000 |" in odd
    widths = {line.replace("\\|", "").count("|") for line in odd.splitlines() if line.startswith("|")}
    assert widths == {3}


def test_latex_escapes_names_and_marks_the_best() -> None:
    text = report.latex([row("auroc", 0.5, "a_b&c%"), row("auroc", -0.7, "d")])
    assert r"a\_b\&c\% & \textbf{0.5000} \\" in text and r"d & $-$0.7000 \\" in text
    assert r"AUROC $\uparrow$" in text and text.count(r"\begin{table}") == text.count(r"\end{table}") == 1
    everything = report.latex(sample_card())
    assert all(mark not in everything for mark in "↑↓γ−")
    for line in everything.splitlines():
        assert line.count("{") - line.count(r"\{") == line.count("}") - line.count(r"\}")


def test_csv_gives_the_rows_back_in_full_precision() -> None:
    rows = [row("auroc", 1 / 3, "a,b", n=np.int64(7)), row("accuracy", np.float32(0.5), rank=1)]
    held = list(csv.DictReader(io.StringIO(report.csv_text(rows))))
    assert list(held[0]) == [*COLUMNS, "rank"]
    assert float(held[0]["value"]) == 1 / 3 and held[0]["measure"] == "a,b" and held[0]["n"] == "7"
    assert held[0]["low"] == "" and held[1]["rank"] == "1"


def test_json_is_strict() -> None:
    rows = [
        row("auroc", math.nan, "a"),
        row("auroc", np.float64(0.5), low=-math.inf, n=np.int64(3), members=np.array([1, 2])),
    ]

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    back = json.loads(report.json_text({"files": [{"file": "ü.npz", "rows": rows}]}), parse_constant=refuse)
    assert back["files"][0]["rows"][0]["value"] is None and back["files"][0]["rows"][1]["n"] == 3
    assert back["files"][0]["rows"][1]["low"] is None and back["files"][0]["file"] == "ü.npz"
    assert json.loads(report.json_text(SimpleNamespace(rows=[{"value": 1.5}]))) == [{"value": 1.5}]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_terminal_shows_every_value_at_any_width(width: int) -> None:
    from rich.console import Console

    out = io.StringIO()
    report.terminal(sample_card(), Console(file=out, width=width))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for table in report.tables(sample_card()):
        for _, line in table.lines:
            assert all(cell is None or cell.text in text for cell in line)
    assert "What could not be said" in text and "…" not in text


def test_terminal_prints_names_as_they_are() -> None:
    from rich.console import Console

    out = io.StringIO()
    report.terminal([row("auroc", 0.5, "[bold]x[/nope]")], Console(file=out, width=80))
    assert "[bold]x[/nope]" in out.getvalue()


def test_tables_need_neither_pandas_nor_altair() -> None:
    code = (
        "import sys, io, nescio.report as r; from rich.console import Console;"
        "rows = [{'metric': 'auroc', 'measure': 'a', 'value': 0.5, 'split': 'test'}];"
        "r.terminal(rows, Console(file=io.StringIO())); r.markdown(rows); r.latex(rows);"
        "r.csv_text(rows); r.json_text(rows);"
        "heavy = {'pandas', 'altair', 'vl_convert', 'torch', 'sklearn', 'numba'} & set(sys.modules);"
        "assert not heavy and 'scipy.stats' not in sys.modules, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- whole documents


def test_several_cards_and_their_comparison_make_one_document() -> None:
    cards = [sample_card(name="forest"), sample_card(name="tree")]
    text = report.markdown(cards, sample_comparison())
    places = [text.index(f"## {title}") for title in ("The models side by side", "forest", "tree", "Which differences")]
    assert places == sorted(places)
    assert text.count("- **AUROC ↑**:") == 1  # explained once in the whole document
    assert text.count("It is right in 90.0 % of 400 answers.") == 2
    assert "## " not in report.markdown(sample_card()).replace("### ", "")
    only = report.markdown([], sample_comparison())
    assert only == report.markdown(sample_comparison()) and "0.8900 [0.8800, 0.9020]" in only
    assert "forest: How good are the answers" in report.latex(cards)


def test_csv_of_several_cards_tells_them_apart() -> None:
    cards = [sample_card(name="a"), sample_card(name="b")]
    held = list(csv.DictReader(io.StringIO(report.csv_text(cards))))
    assert len(held) == 2 * len(sample_rows()) and {line["file"] for line in held} == {"a", "b"}
    compared = list(csv.DictReader(io.StringIO(report.csv_text([], sample_comparison()))))
    assert {line["method"] for line in compared} == {"forest", "logistic", "tree"} and compared[0]["rank"] == "1"


def test_intervals_are_shown_where_there_are_some() -> None:
    (table,) = report.tables([row("auroc", 0.8, "largest", low=0.75, high=0.85), row("auroc", 0.7, "entropy")])
    assert [cell.text for _, (cell,) in table.lines if cell] == ["0.8000 [0.7500, 0.8500]", "0.7000"]
    assert table.lines[0][1][0].best  # type: ignore[union-attr]


def test_terminal_names_the_models_and_says_what_they_know() -> None:
    from rich.console import Console

    out = io.StringIO()
    report.terminal([sample_card(name="forest")], Console(file=out, width=100), comparison=sample_comparison())
    text = out.getvalue()
    assert text.startswith("forest\nIt is right in 90.0 % of 400 answers.")
    assert text.index("How good are the answers") < text.index("Which differences are real")
    assert f"{RANKING}: calibrated" in text and "How far from the best" in text
    short = io.StringIO()
    report.terminal([sample_card()], Console(file=short, width=100), comparison=sample_comparison(), more=False)
    assert f"{RANKING}: calibrated" not in short.getvalue() and "How far from the best" not in short.getvalue()


@pytest.mark.parametrize("form", ["table", "csv", "markdown", "latex"])
def test_grid_holds_every_text(form: str) -> None:
    rows = [{"name": "auroc", "sentence": "Chance of a pair."}, {"name": "e_aurc", "sentence": None, "better": "lower"}]
    text = report.grid(rows, form)
    assert all(word in text.replace("\\_", "_") for word in ("name", "auroc", "e_aurc", "Chance of a pair.", "better"))
    assert text.endswith("\n") and "None" not in text
