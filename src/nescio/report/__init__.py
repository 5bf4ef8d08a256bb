"""Rows in; tables, figures and one offline HTML page out."""

from nescio.report.cells import Cell, Table, grouped, headline, overview, pivot, summary, tables
from nescio.report.charts import (
    curves_of,
    histogram_figure,
    intervals_figure,
    models_figure,
    reliability_figure,
    risk_coverage_figure,
)
from nescio.report.pages import page, write
from nescio.report.text import csv_text, grid, json_text, latex, markdown, terminal

__all__ = [
    "Cell",
    "Table",
    "csv_text",
    "curves_of",
    "grid",
    "grouped",
    "headline",
    "histogram_figure",
    "intervals_figure",
    "json_text",
    "latex",
    "markdown",
    "models_figure",
    "overview",
    "page",
    "pivot",
    "reliability_figure",
    "risk_coverage_figure",
    "summary",
    "tables",
    "terminal",
    "write",
]
