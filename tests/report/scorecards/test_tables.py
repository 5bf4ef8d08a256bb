"""Tables of scorecards and comparisons: which rows are in which table, in order, with the best bold."""

from __future__ import annotations

import pytest

from nescio import metrics
from nescio.report.blocks import Details
from nescio.report.scorecards.questions import (
    HUMAN,
    MISCLASSIFICATION,
    OOD,
    OTHER,
    PREDICTIONS,
    RETRIEVAL,
)
from nescio.report.scorecards.tables import (
    UNRELIABLE,
    comparison_tables,
    essentials,
    scorecard_blocks,
    scorecard_tables,
    short_comparison_table,
    summary,
)
from nescio.report.tables import Cell, Table
from tests.support.samples import row, sample_card, sample_comparison, sample_rows


def find(tables: list[Table], title: str) -> Table:
    return next(table for table in tables if table.title == title)


def cells(table: Table) -> dict[tuple[str, str], Cell]:
    """Cells by the last label of their row and their column."""
    return {(labels[-1], column): cell for (labels, column), cell in table.cells().items()}


def test_scorecard_blocks_are_in_the_order_of_the_questions() -> None:
    titles = [block.title for block in scorecard_blocks(sample_rows()) if isinstance(block, Table)]
    assert titles == [PREDICTIONS, MISCLASSIFICATION, f"{OOD}: letters", f"{OOD}: noise", RETRIEVAL, HUMAN]


def test_scorecard_tables_contain_every_row_once_and_accepted_shares_per_ood_set() -> None:
    rows = sample_rows()
    count = sum(len(table.cells()) for table in scorecard_tables(rows))
    in_notes = 2  # temperature and R@1
    repeated = sum(r["metric"] == "in_as_in" for r in rows)  # once per OOD set
    assert count == len(rows) - in_notes + repeated
    table = find(scorecard_tables(rows), f"{OOD}: noise")
    assert table.columns == ("AUROC ↑", "AUPR ↑", "FPR@0.95 ↓", "OutAsOut ↑", "InAsIn ↑")


def test_scorecard_tables_of_predictions_have_raw_and_calibrated_columns() -> None:
    table = scorecard_tables(sample_rows())[0]
    assert table.columns == ("raw", "calibrated") and table.index == ("metric",)
    values = cells(table)
    assert str(values["NLL ↓", "raw"]) == "0.4000" and values["NLL ↓", "raw"].value == 0.4
    assert not values["NLL ↓", "raw"].best
    assert str(values["NLL ↓", "calibrated"]) == "0.3000" and values["NLL ↓", "calibrated"].best
    assert not values["accuracy ↑", "raw"].best  # equal values
    assert "1.75" in table.note and "400" in table.note


def test_scorecard_blocks_collapse_calibrated_rankings() -> None:
    blocks = [block for block in scorecard_blocks(sample_rows()) if block.title.startswith(MISCLASSIFICATION)]  # type: ignore[union-attr]
    assert [(type(block), block.title) for block in blocks] == [  # type: ignore[union-attr]
        (Table, MISCLASSIFICATION),
        (Details, f"{MISCLASSIFICATION}: calibrated"),
    ]


def test_scorecard_tables__scorecard_blocks_mark_unreliable_calibrations() -> None:
    tables = scorecard_tables(sample_rows(), "few rows")
    assert tables[0].columns == ("raw", UNRELIABLE)
    assert f"{MISCLASSIFICATION}: {UNRELIABLE}" in {table.title for table in tables}
    card = sample_card()
    card.calibration_warning = "few rows"
    assert essentials(card).columns == ("raw", UNRELIABLE)


def test_scorecard_tables_mark_the_best_by_the_direction_of_the_metric() -> None:
    values = cells(find(scorecard_tables(sample_rows()), MISCLASSIFICATION))
    best = {column: label for (label, column), cell in values.items() if cell.best}
    assert best == {"AUROC ↑": "max_logit", "AURC ↓": "msp", "SAC@0.95 ↑": "max_logit", "risk@0.8 ↓": "msp"}


def test_scorecard_tables_describe_each_metric_once() -> None:
    tables = scorecard_tables(sample_rows())
    names = [name for table in tables for name, _ in table.legend]
    assert len(names) == len(set(names))
    assert dict(find(tables, MISCLASSIFICATION).legend)["AUROC ↑"] == metrics.registry["auroc"].sentence
    assert dict(find(tables, RETRIEVAL).legend)["R@1 ↑"] == metrics.registry["recall_at_1"].sentence


@pytest.mark.parametrize("name", list(metrics.registry))
def test_scorecard_tables_show_every_registered_metric(name: str) -> None:
    assert scorecard_tables([row(name, 0.5, "msp")])[0].rows


def test_scorecard_tables_show_unregistered_metrics_without_an_arrow() -> None:
    (table,) = scorecard_tables([row("own_thing", 0.25, "msp"), row("own_thing", 0.75, "entropy")])
    assert table.title == OTHER and table.columns == ("own thing",)
    assert not any(cell.best for cell in table.cells().values())


def test_scorecard_tables_of_another_split_with_labels() -> None:
    rows = [row("accuracy", 0.9, split="held out"), row("auroc", 0.8, "msp", split="held out")]
    assert [table.title for table in scorecard_tables(rows)] == [PREDICTIONS, MISCLASSIFICATION]


def test_scorecard_blocks_collapse_subgroups() -> None:
    rows = [row("auroc", 0.8, "msp"), row("auroc", 0.7, "msp", subgroup="severity=5")]
    assert [table.title for table in scorecard_tables(rows)] == [MISCLASSIFICATION, f"{MISCLASSIFICATION}: severity=5"]
    assert isinstance(scorecard_blocks(rows)[1], Details)


def test_scorecard_tables_order_measures() -> None:
    rows = [row("auroc", 0.8, name) for name in ("gmm", "own", "entropy", "msp")]
    assert [labels for labels, _ in scorecard_tables(rows)[0].rows] == [("msp",), ("entropy",), ("gmm",), ("own",)]


def test_scorecard_tables_label_rows_by_the_columns_in_which_models_differ() -> None:
    rows = [row("auroc", 0.8, "msp", method="erm", trial=0), row("auroc", 0.7, "msp", method="mcd", trial=0)]
    (table,) = scorecard_tables(rows)
    assert [labels for labels, _ in table.rows] == [("erm", "msp"), ("mcd", "msp")]


def test_scorecard_tables_without_rows() -> None:
    assert scorecard_tables([]) == []
    assert [table.title for table in scorecard_tables([row("human_alignment", 0.2, "msp")])] == [HUMAN]


def test_summary_has_one_row_per_model_and_marks_the_best() -> None:
    a, b = sample_card(name="a"), sample_card(name="a")
    b.rows = [r | {"value": r["value"] * 0.9} for r in b.rows]
    table = summary([a, b])
    assert [labels for labels, _ in table.rows] == [("a",), ("a (2)",)]
    values = cells(table)
    assert values["a", "accuracy ↑"].best and values["a (2)", "NLL ↓"].best
    assert "AUROC ↑ noise" in table.columns and "msp" in table.note
    assert str(values["a", "NLL ↓"]) == "0.4000"  # raw


def test_comparison_tables_show_ranks_intervals_and_differences() -> None:
    values, differences = comparison_tables(sample_comparison())
    shown = cells(values)
    assert (
        str(shown["accuracy ↑", "logistic"]) == "#2* 0.8900 [0.8800, 0.9020]" and shown["accuracy ↑", "logistic"].best
    )
    assert str(shown["accuracy ↑", "tree"]) == "#3 0.8000 [0.7900, 0.8120]" and not shown["accuracy ↑", "tree"].best
    assert all(text in values.note for text in ("1,000", "400", "95 %"))
    label = ("AUROC ↑ · msp", "tree − forest")
    assert str(differences.cells()[label, "difference"]) == "-0.0400"


def test_short_comparison_table_has_the_best_models_by_mean_rank() -> None:
    table, more = short_comparison_table(sample_comparison())
    assert [labels for labels, _ in table.rows] == [("forest",), ("logistic",), ("tree",)] and more == 0
    assert str(table.cells()[("tree",), "accuracy ↑"]) == "#3 0.8000"
