"""Blocks and stories: what is empty goes, what is long folds, what is explained is explained once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nescio.report.blocks import (
    LONG,
    Definitions,
    Details,
    Figure,
    Panel,
    Section,
    Story,
    Tabs,
    collapse_tables,
    figures_of,
    flatten,
    sections_of,
    tables_of,
    without_figures,
)
from nescio.report.tables import Cell, Table

TABLE = Table("T", ("a",), ("x",), ((("p",), (Cell(0.5),)),), legend=(("AUROC ↑", "Chance."),))
EMPTY = Table("E", ("a",), (), ())


def nothing() -> None:
    return None


def figure(key: str) -> Figure:
    return Figure(key, key, "words", nothing)


def test_flatten__what_is_empty_is_left_out_wherever_it_lies() -> None:
    assert flatten([None, EMPTY, [TABLE, [None, figure("f")]], Definitions([]), Details("f", [EMPTY]), Panel([])]) == [
        TABLE,
        figure("f"),
    ]
    (choice,) = flatten([Tabs("menu", {"one": [EMPTY], "two": [EMPTY, TABLE]})])
    assert choice == Tabs("menu", {"two": [TABLE]})
    assert sections_of([("a", "A", [None, EMPTY]), ("b", "B", [TABLE], "words")])[0].link == "b"


def test_sections_of__long_tables_and_menus_of_them_are_folded() -> None:
    long = replace(TABLE, title="long", rows=TABLE.rows * (LONG + 1), legend=())
    (section,) = sections_of([("a", "A", [TABLE, long, Tabs("Measure", {"one": [long], "two": [TABLE]})])])
    first, second, third = section.blocks
    assert isinstance(first, Table) and second == Details("long", [long])
    assert isinstance(third, Details) and isinstance(third.blocks[0], Tabs)


def test_tables_of__every_metric_is_explained_where_it_is_first_seen() -> None:
    sections = sections_of([("a", "A", [Details("f", [TABLE])]), ("b", "B", [TABLE, Tabs("m", {"x": [TABLE]})])])
    first, *others = [table for section in sections for table in tables_of(section.blocks)]
    assert first.legend == TABLE.legend and [table.legend for table in others] == [(), ()]


def test_figure__a_repeated_figure_key_is_an_error_that_names_it() -> None:
    inside = Tabs("menu", {"one": [Details("fold", [figure("heat")])]})
    with pytest.raises(ValueError, match="'heat'"):
        Story("t", [], [Section("a", "A", [figure("heat")]), Section("b", "B", [inside])])
    assert len(figures_of(Story("t", [], [Section("a", "A", [figure("heat"), Panel([figure("other")])])]))) == 2


def test_figures_of__figures_can_be_taken_out_of_everything() -> None:
    blocks = [figure("a"), Panel([figure("b")]), Details("fold", [figure("c"), TABLE]), Tabs("m", {"x": [figure("d")]})]
    story = without_figures(Story("t", [], [Section("s", "S", blocks), Section("f", "F", [figure("e")])]), "Why.")
    assert figures_of(story) == [] and tables_of(story) == [TABLE] and story.footer == ("Why.",)
    assert [section.title for section in story.sections] == ["S"] and len(story.sections[0].blocks) == 1


def test_figure__tables_may_stand_behind_their_figures() -> None:
    assert collapse_tables([figure("a"), TABLE]) == [figure("a"), Details("T", [TABLE])]
