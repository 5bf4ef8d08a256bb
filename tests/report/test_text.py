"""Texts hold every cell, and nothing is lost in escaping."""

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

from nescio.report.pages import render_page
from nescio.report.scorecards.questions import MISCLASSIFICATION, PREDICTIONS
from nescio.report.scorecards.stories import GAPS, scorecard_story
from nescio.report.scorecards.tables import COMPARISON, DIFFERENCES, scorecard_tables
from nescio.report.tables import Cell, Table, table
from nescio.report.text import format_records, json_text, latex, markdown, print_terminal, rows_csv, tables_csv
from nescio.rows import COLUMNS
from tests.support.samples import row, sample_card, sample_comparison


def printed(source: Any, width: int = 160) -> str:
    from rich.console import Console

    out = io.StringIO()
    print_terminal(source, Console(file=out, width=width))
    return out.getvalue()


def test_markdown__ranks_and_the_group_of_the_best_survive_in_every_form() -> None:
    comparison = sample_comparison()
    comparison.rows.append(row("accuracy", 0.5, split="other", method="tree", rank=None, best=None))
    story = scorecard_story([], comparison)
    plain, marked, tex, page = printed(story), markdown(story), latex(story), render_page(story)
    assert "#1* 0.9000 [" in plain and "#3 0.8000 [" in plain
    assert "* after the rank" in plain
    assert r"| **#2\* 0.8900 [0.8800, 0.9020]** | #3 0.8000 [" in marked and r"\* after the rank" in marked
    assert r"\textbf{\#2* 0.8900 [0.8800, 0.9020]} & \#3 0.8000 [" in tex and "* after the rank" in tex
    assert "<strong>#2* 0.8900</strong>" in page and "<td>#3 0.8000" in page and "* after the rank" in page
    assert "#None" not in plain + marked + tex + page


def test_markdown_tables_hold_the_cells_and_survive_marks_in_names() -> None:
    text = markdown(scorecard_tables(sample_card().rows))
    assert f"### {MISCLASSIFICATION}" in text and "| measure | AUROC ↑ | AURC ↓ |" in text
    assert "| max\\_logit | **0.7000** | 0.7000 |" in text
    odd = markdown(table([row("auroc", 0.5, "a|b*c")]))
    assert "| a\\|b\\*c | 0.5000 |" in odd
    widths = {line.replace("\\|", "").count("|") for line in odd.splitlines() if line.startswith("|")}
    assert widths == {3}
    assert markdown([]) == "" and latex([]) == ""


def test_latex_escapes_names_and_marks_the_best() -> None:
    text = latex(table([row("auroc", 0.5, "a_b&c%"), row("auroc", -0.7, "d")]))
    assert r"a\_b\&c\% & \textbf{0.5000} \\" in text and r"d & $-$0.7000 \\" in text
    assert r"AUROC $\uparrow$" in text and text.count(r"\begin{table}") == text.count(r"\end{table}") == 1
    everything = latex(scorecard_story([sample_card()]))
    assert all(mark not in everything for mark in "↑↓γ−")
    for line in everything.splitlines():
        assert line.count("{") - line.count(r"\{") == line.count("}") - line.count(r"\}")


def test_latex_names_a_group_once_and_has_a_column_for_each_label() -> None:
    cell = Cell(0.5)
    made = Table("T", ("method", "k"), ("x",), ((("a", "1"), (cell,)), (("a", "5"), (cell,)), (("b", "1"), (None,))))
    text = latex(made)
    assert r"\begin{tabular}{llr}" in text and "    a & 1 & 0.5000" in text and "     & 5 & 0.5000" in text
    assert text.count(r"\addlinespace") == 1 and "b & 1 & --" in text


def test_rows_csv__csv_gives_the_rows_back_in_full_precision() -> None:
    rows = [row("auroc", 1 / 3, "a,b", n=np.int64(7)), row("accuracy", np.float32(0.5), low=0.25, rank=1)]
    held = list(csv.DictReader(io.StringIO(rows_csv(rows))))
    assert list(held[0]) == [*(name for name in COLUMNS if name in held[0]), "rank"]
    assert float(held[0]["value"]) == 1 / 3 and held[0]["measure"] == "a,b" and held[0]["n"] == "7"
    assert held[0]["low"] == "" and held[1]["rank"] == "1"


def test_tables_csv__csv_of_tables_holds_numbers_and_texts() -> None:
    made = Table("T", ("a", "b"), ("x", "y"), ((("p", "q"), (Cell(1 / 3, spread=0.1), None)),))
    (line,) = csv.DictReader(io.StringIO(tables_csv([made])))
    assert float(line["value"]) == 1 / 3 and float(line["spread"]) == 0.1 and line["low"] == ""
    assert line["row"] == "p · q" and line["column"] == "x" and line["text"] == "0.3333 ± 0.1000"


def test_json_text__json_is_strict() -> None:
    rows = [
        row("auroc", math.nan, "a"),
        row("auroc", np.float64(0.5), low=-math.inf, n=np.int64(3), members=np.array([1, 2])),
    ]

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    back = json.loads(json_text({"files": [{"file": "ü.npz", "rows": rows}]}), parse_constant=refuse)
    assert back["files"][0]["rows"][0]["value"] is None and back["files"][0]["rows"][1]["n"] == 3
    assert back["files"][0]["rows"][1]["low"] is None and back["files"][0]["file"] == "ü.npz"
    assert json.loads(json_text(SimpleNamespace(rows=[{"value": 1.5}]))) == [{"value": 1.5}]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_print_terminal__terminal_shows_every_value_at_any_width(width: int) -> None:
    text = printed(scorecard_story([sample_card()]), width)
    assert max(map(len, text.splitlines())) <= width
    for made in scorecard_tables(sample_card().rows):
        assert all(str(cell) in text for cell in made.cells().values())
    assert GAPS in text and "…" not in text


def test_print_terminal__terminal_joins_labels_where_the_screen_is_narrow() -> None:
    lines = tuple(((name, "calibrated", "5"), (Cell(0.5),)) for name in ("soft-labels", "mc-dropout"))
    made = Table("T", ("algorithm", "calibration", "spectral norm"), ("AUC ↑",), lines)
    assert "algorithm     calibration" in printed(made, 80) and "soft-labels · calibrated · 5" in printed(made, 40)


def test_print_terminal__terminal_prints_names_as_they_are() -> None:
    assert "[bold]x[/nope]" in printed(table([row("auroc", 0.5, "[bold]x[/nope]")]), 80)


def test_print_terminal__terminal_names_the_models_and_says_what_they_know() -> None:
    text = printed(scorecard_story([sample_card(name="forest")], sample_comparison()), 100)
    assert text.startswith("forest\n3 of 400 rows") and "90.0 %, n = 400" in text  # warnings come first
    assert text.index(PREDICTIONS) < text.index(COMPARISON)
    assert f"{MISCLASSIFICATION}: calibrated" in text and DIFFERENCES in text


def test_text__reports_import_nothing_heavy_before_a_page_is_written() -> None:
    code = (
        "import sys, io, nescio.report.named_reports, nescio.report.studies, nescio.report.text as r;"
        "from rich.console import Console;"
        "rows = [{'metric': 'auroc', 'measure': 'a', 'value': 0.5, 'split': 'test'}];"
        "from nescio.report.scorecards.tables import scorecard_tables; t = scorecard_tables(rows);"
        "r.print_terminal(t, Console(file=io.StringIO())); r.markdown(t); r.latex(t); "
        "r.rows_csv(rows); r.json_text(rows);"
        "heavy = {'pandas', 'polars', 'altair', 'jinja2', 'vl_convert', 'torch', 'sklearn'} & set(sys.modules);"
        "assert not heavy and 'scipy.stats' not in sys.modules, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("form", ["table", "csv", "markdown", "latex"])
def test_format_records__grid_holds_every_text(form: str) -> None:
    rows = [{"name": "auroc", "sentence": "Chance of a pair."}, {"name": "e_aurc", "sentence": None, "better": "lower"}]
    text = format_records(rows, form)
    assert all(word in text.replace("\\_", "_") for word in ("name", "auroc", "e_aurc", "Chance of a pair.", "better"))
    assert text.endswith("\n") and "None" not in text


def test_tables_csv__a_spreadsheet_computes_nothing() -> None:
    formula = '=HYPERLINK("http://x","y")'
    text = rows_csv([{"method": formula, "metric": "+x", "value": -0.5, "measure": "-1.5"}])
    (held,) = csv.DictReader(io.StringIO(text))
    assert held["method"] == f"'{formula}" and held["metric"] == "'+x"
    assert held["value"] == "-0.5" and held["measure"] == "-1.5"  # numbers stay numbers
    table = Table("@title", ("model",), ("=head",), ((("-name",), (Cell(-0.25),)),))
    (cell,) = csv.DictReader(io.StringIO(tables_csv([table])))
    assert (cell["table"], cell["row"], cell["column"]) == ("'@title", "'-name", "'=head")
    assert cell["value"] == "-0.25" and cell["text"].startswith("-0.25")
    assert format_records([{"name": "=1+1"}], "csv") == "name\n'=1+1\n"
