"""Rows in; tables, figures and one offline page out: rows → Frame → table and figure specifications → files.

Nothing here imports Altair, Jinja2, pandas or torch before a page or a figure is written.
"""

from nescio.report.blocks import (
    Block,
    Blocks,
    Definitions,
    Details,
    Figure,
    Gallery,
    Panel,
    Prose,
    Section,
    Story,
    Tabs,
)
from nescio.report.frame import Frame
from nescio.report.pages import render_page, write_page
from nescio.report.scorecards import (
    all_rows,
    comparison_verdicts,
    scorecard_story,
    scorecard_tables,
    scorecard_verdicts,
    short_comparison,
    short_story,
)
from nescio.report.tables import COUNT, Cell, Column, Index, NumberFormat, Table, decimals, metrics, percents, table
from nescio.report.text import format_records, json_text, latex, markdown, print_terminal, rows_csv, tables_csv

__all__ = [
    "COUNT",
    "Block",
    "Blocks",
    "Cell",
    "Column",
    "Definitions",
    "Details",
    "Figure",
    "Frame",
    "Gallery",
    "Index",
    "NumberFormat",
    "Panel",
    "Prose",
    "Section",
    "Story",
    "Table",
    "Tabs",
    "all_rows",
    "comparison_verdicts",
    "decimals",
    "format_records",
    "json_text",
    "latex",
    "markdown",
    "metrics",
    "percents",
    "print_terminal",
    "render_page",
    "rows_csv",
    "scorecard_story",
    "scorecard_tables",
    "scorecard_verdicts",
    "short_comparison",
    "short_story",
    "table",
    "tables_csv",
    "write_page",
]
