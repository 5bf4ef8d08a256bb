"""Cells keep numbers; the builder decides decimals, the best, labels and legends from the rows."""

from __future__ import annotations

import pytest

import nescio
from nescio import metrics as registered
from nescio.report.frame import Frame
from nescio.report.tables import (
    COUNT,
    Cell,
    Column,
    Index,
    NumberFormat,
    Table,
    decimals,
    metrics,
    percents,
    table,
    table_from_records,
)
from tests.support.samples import row


def best(made: Table) -> list[bool]:
    return [cell.best for cell in made.cells().values()]


# ---- cells


def test_cell__a_cell_is_printed_with_what_surrounds_it() -> None:
    assert str(Cell(0.25)) == "0.2500" and str(Cell(0.25, spread=0.01, format=decimals(2))) == "0.25 ± 0.01"
    assert str(Cell(0.5, low=0.4, high=0.6, format=percents())) == "50.0 % [40.0 %, 60.0 %]"
    assert str(Cell(0.9, rank=2, best=True)) == "#2* 0.9000" and str(Cell(0.9, rank=3)) == "#3 0.9000"
    assert str(Cell(text="resnet50")) == "resnet50" and str(Cell(text="resnet50", value=0.5)) == "resnet50"


def test_cell__a_cell_leads_to_its_repetitions_and_to_the_evaluations_behind_it() -> None:
    rows = [
        row("accuracy", 0.25 + 0.5 * seed, method="erm", data_seed=seed, init_seed=init, key=f"{seed}a")
        for seed in (0, 1)
        for init in (0, 1)
    ]
    (cell,) = (
        table(Frame(rows).summarise(["method"], over=["data_seed"]), index=("method",), columns=[Column("x")])
        .cells()
        .values()
    )
    assert cell.origin == "2 data seeds: 0.2500, 0.7500; keys 0a, 1a"
    assert Cell(0.25, keys=("0a",)).origin == "key 0a" and Cell(0.25).origin == ""
    many = Cell(0.0, values=(0.5,) * 20, keys=("a",), format=decimals(1)).origin
    assert many == f"20 values: {'0.5, ' * 12}8 more; key a"


def test_number_format__numbers_have_the_form_of_their_cell() -> None:
    assert COUNT(1234567) == "1,234,567" and NumberFormat(".4g")(0.000123456) == "0.0001235"
    assert percents(1, sign=True)(0.123) == "+12.3 %" and percents(1, sign=True)(-0.5) == "-50.0 %"
    assert decimals(2)(-0.001) == "0.00" and percents(1, sign=True)(-0.0001) == "0.0 %"  # a zero has no sign


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
def test_table__digits_fit_the_size_of_the_values(top: float, text: str) -> None:
    (cell,) = table([row("aurc", top, "a")]).cells().values()
    assert str(cell) == text and cell.value == top


# ---- lines and heads


def test_index__lines_are_labelled_by_tuples_and_constant_columns_are_left_out() -> None:
    rows = [row("nll", v, "x", method=m, members=1, spectral=s) for v, m, s in ((1, "a", None), (2, "a", 5.0))]
    lines = ("method", Index("members", "k"), Index("spectral", "norm"))
    made = table(rows, "T", index=lines)
    assert made.index == ("method", "norm") and [labels for labels, _ in made.rows] == [("a", "–"), ("a", "5")]
    kept = table(rows, "T", index=("method", Index("members", "k", str, keep=True), "spectral"))
    assert kept.index == ("method", "k", "spectral") and kept.rows[0][0] == ("a", "1", "–")


def test_metrics__heads_are_metrics_with_arrows_sentences_and_other_names() -> None:
    rows = [row("accuracy", 0.5, "a"), row("accuracy@5", 0.9, "a"), row("ece", 0.1, "a")]
    made = table(rows, columns=metrics("accuracy", "accuracy@5", "ece", "nll", titles={"accuracy": "ACC@1 ↑"}))
    assert made.columns == ("ACC@1 ↑", "accuracy@5 ↑", "ECE ↓")  # nll was not measured
    assert dict(made.legend)["ACC@1 ↑"] == registered.registry["accuracy"].sentence and len(made.legend) == 2


def test_column__a_wide_row_is_a_line_and_its_texts_are_words() -> None:
    rows = [
        {"family": "vit", "models": 1200, "rho": -0.5, "best": "vit_b"},
        {"family": "cnn", "models": 3, "rho": None},
    ]
    heads = [Column("models", "models", format=COUNT), Column("ρ", "rho", format=decimals(2)), Column("name", "best")]
    made = table(rows, index=("family",), columns=heads)
    assert [[None if c is None else str(c) for c in cells] for _, cells in made.rows] == [
        ["1,200", "-0.50", "vit_b"],
        ["3", None, None],
    ]
    assert made.cells()[("vit",), "models"].value == 1200 and made.legend == ()


def test_table__two_rows_for_one_cell_are_an_error_not_an_overwrite() -> None:
    with pytest.raises(nescio.BadInput, match="to index"):
        table([row("auroc", 0.8, "msp"), row("auroc", 0.7, "msp")])


def test_table__a_table_can_be_narrowed() -> None:
    made = table([row("auroc", 0.8, "a"), row("aurc", 0.1, "a"), row("auroc", 0.7, "b")])
    assert made.select("AURC ↓", "nowhere").columns == ("AURC ↓",) and len(made.head(1).rows) == 1
    assert made and not table([])


# ---- bold


def test_table__best_follows_the_direction_of_the_metric() -> None:
    rows = [row(metric, value, name) for metric in ("auroc", "nll") for name, value in (("a", 0.2), ("b", 0.7))]
    cells = table(rows).cells()
    assert {key for key, cell in cells.items() if cell.best} == {(("b",), "AUROC ↑"), (("a",), "NLL ↓")}
    assert not any(best(table(rows, bold="none")))


def test_table__values_that_print_alike_are_equally_bold_and_a_constant_column_has_no_best() -> None:
    near = [row("auroc", 0.90000001, "a"), row("auroc", 0.9, "b"), row("auroc", 0.7, "c")]
    assert best(table(near)) == [True, True, False]
    assert not any(best(table([row("auroc", 0.9, "a"), row("auroc", 0.9, "b")])))
    assert not any(best(table([row("own_thing", 0.1, "a"), row("own_thing", 0.2, "b")])))  # no known direction


def test_table__rows_that_do_not_take_part_are_never_the_best() -> None:
    rows = [row("auroc", v, "x", method=m) for m, v in (("a", 0.5), ("b", 0.6), ("oracle", 0.99))]
    assert best(table(rows, index=("method",), compared=lambda own: own["method"] != "oracle")) == [False, True, False]


def test_table__cells_are_compared_within_equal_values() -> None:
    rows = [
        row("auroc", v, s, method=m) for m, s, v in (("a", "x", 0.1), ("a", "y", 0.2), ("b", "x", 0.8), ("b", "y", 0.7))
    ]
    assert best(table(rows, index=("method", "measure"))) == [False, False, True, False]
    assert best(table(rows, index=("method", "measure"), compare_within=("method",))) == [False, True, True, False]


def test_percents__a_change_is_bold_when_it_is_for_the_better_and_can_be_seen() -> None:
    rows = [row("ece", v, str(at)) for at, v in enumerate((-0.5, 0.5, -0.0001))]
    made = table(rows, format=percents(1, sign=True), bold="change")
    assert best(made) == [True, False, False] and [str(cell) for cell in made.cells().values()][2] == "0.0 %"


def test_table__rows_that_say_who_is_best_are_believed() -> None:
    rows = [row("auroc", 0.9, "a", rank=1, best=True), row("auroc", 0.89, "b", rank=2, best=True)]
    assert [str(cell) for cell in table(rows).cells().values()] == ["#1* 0.9000", "#2* 0.8900"]


def test_table__spreads_and_intervals_are_shown_unless_they_are_not_wanted() -> None:
    rows = [row("auroc", 0.8, "msp", low=0.75, high=0.85), row("auroc", 0.7, "entropy")]
    assert [str(cell) for cell in table(rows).cells().values()] == ["0.8000 [0.7500, 0.8500]", "0.7000"]
    assert [str(cell) for cell in table(rows, spread=False).cells().values()] == ["0.8000", "0.7000"]
    assert best(table(rows)) == [True, False]


def test_column__an_arrow_says_which_is_better_where_no_metric_does() -> None:
    rows = [{"model": "a", "cost ↓": 1.0, "gain ↑": 1.0, "other": 1.0}, {"model": "b", "cost ↓": 2.0, "gain ↑": 2.0}]
    rows[1]["other"] = 2.0
    made = table(rows, index=("model",), columns=[Column(name, name) for name in ("cost ↓", "gain ↑", "other")])
    assert best(made) == [True, False, False, False, True, False]


def test_column__words_are_bold_where_their_row_says_so() -> None:
    rows = [{"by": "nc", "takes": "moco", "best": True}, {"by": "fv", "takes": "byol"}]
    assert best(table(rows, index=("by",), columns=[Column("method", "takes")])) == [True, False]


def test_table_from_records__a_wide_table_has_a_line_per_dictionary_and_a_head_per_key() -> None:
    rows = [{"model": "a", "models": 1200, "gain ↑": 0.5, "cost": 3.0}, {"model": "b", "models": 2, "gain ↑": 0.25}]
    made = table_from_records(
        rows, "Title", "model", format=decimals(2), formats={"cost": COUNT}, note="Note", explain=("auroc",)
    )
    assert made.index == ("model",) and made.columns == ("models", "gain ↑", "cost") and made.note == "Note"
    assert [[cell and str(cell) for cell in cells] for _, cells in made.rows] == [
        ["1,200", "0.50", "3"],
        ["2", "0.25", None],
    ]
    assert [key for key, cell in made.cells().items() if cell.best] == [(("a",), "gain ↑")] and len(made.legend) == 1


def test_table_from_records__changes_of_a_wide_table_are_bold_where_they_are_for_the_better() -> None:
    rows = [{"regime": "x", "models": 3, "mean": 0.1}, {"regime": "y", "models": 4, "mean": -0.1}]
    made = table_from_records(rows, "", "regime", format=percents(sign=True), changes=True)
    assert [key for key, cell in made.cells().items() if cell.best] == [(("x",), "mean")]
