"""Pages of the results: their tables follow from the rows, and they share one copy of the chart library."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from nescio.benchmarks.base import story_of
from nescio.report.blocks import without_figures
from nescio.report.pages import render_page
from nescio.report.studies import read_study
from tests.support.paths import ROOT

RESULTS = ROOT / "results"
PAGES = sorted(RESULTS.rglob("index.html"))


def page_cells(page: str) -> list[list[str]]:
    """The texts of all cells with values, by table."""
    tables = re.findall(r"<table.*?</table>", page, re.DOTALL)
    return [
        [unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in re.findall(r"<td.*?</td>", table, re.DOTALL)]
        for table in tables
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.parent.relative_to(RESULTS)))
def test_render_page__page_tables_follow_from_the_rows(path: Path) -> None:
    page = render_page(without_figures(story_of(read_study(path.parent)), ""))
    cells = page_cells(page)
    assert sum(map(len, cells)) > 20
    assert cells == page_cells(path.read_text("utf-8"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.parent.relative_to(RESULTS)))
def test_pages_share_the_chart_library(path: Path) -> None:
    (source,) = re.findall(r'<script src="([^"]+)">', path.read_text("utf-8"))
    assert (path.parent / source).resolve() == RESULTS / "charts.js"


def test_pages__results_stay_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 12e6
    assert not [*RESULTS.rglob("tables.*")]
