"""Rows in; tables, figures and one offline page out: rows → Frame → table and figure specifications → files.

Nothing here imports Altair, Jinja2, pandas or torch before a page or a figure is written.
"""

from nescio.report.blocks import Block, Choice, Figure, Fold, Gallery, Made, Panel, Prose, Section, Story, Terms
from nescio.report.frame import Frame
from nescio.report.pages import page, write
from nescio.report.scorecards import (
    card_story,
    card_tables,
    headline,
    overview,
    rows_of,
    short_comparison,
    short_story,
    verdict,
)
from nescio.report.tables import COUNT, Cell, Column, Form, Head, Table, decimals, metrics, percents, table
from nescio.report.text import grid, json_text, latex, markdown, rows_csv, tables_csv, terminal

__all__ = [
    "COUNT",
    "Block",
    "Cell",
    "Choice",
    "Column",
    "Figure",
    "Fold",
    "Form",
    "Frame",
    "Gallery",
    "Head",
    "Made",
    "Panel",
    "Prose",
    "Section",
    "Story",
    "Table",
    "Terms",
    "card_story",
    "card_tables",
    "decimals",
    "grid",
    "headline",
    "json_text",
    "latex",
    "markdown",
    "metrics",
    "overview",
    "page",
    "percents",
    "rows_csv",
    "rows_of",
    "short_comparison",
    "short_story",
    "table",
    "tables_csv",
    "terminal",
    "verdict",
    "write",
]
