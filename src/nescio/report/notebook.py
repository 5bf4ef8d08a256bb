"""Scorecards and comparisons in a notebook: a short table, charts that stand alone, a page."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from nescio.analysis.results import Comparison, Scorecard
from nescio.errors import BadInput, Undefined
from nescio.report.charts import histogram_chart, intervals_chart, on_paper, reliability_chart, risk_coverage_chart
from nescio.report.pages import write_page
from nescio.report.scorecards import (
    comparison_label,
    comparison_tables,
    essentials,
    interval_points,
    measures_of,
    scorecard_story,
)
from nescio.report.tables import MISSING, Table

Result = Scorecard | Comparison
MOST_LINES = 12  # of a table in a notebook


def html(result: Result) -> str:
    """The sentences and one short table."""
    story = _story(result)
    tables = [essentials(result)] if isinstance(result, Scorecard) else comparison_tables(result)[:1]
    return "".join([f"<p>{escape(' '.join(story.lead))}</p>", *(_table(table.head(MOST_LINES)) for table in tables)])


def write(result: Result, folder: str | Path) -> Path:
    """The page of one result, with its tables and rows."""
    return write_page(_story(result), folder, rows=result.rows)


def _story(result: Result) -> Any:
    return scorecard_story([result]) if isinstance(result, Scorecard) else scorecard_story([], result)


def _table(table: Table) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in (*table.index, *table.columns))
    lines = [[*labels, *(MISSING if cell is None else str(cell) for cell in cells)] for labels, cells in table.rows]
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in line)}</tr>" for line in lines)
    return f"<table><caption>{escape(table.note)}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


# ---- charts


def plots(result: Result) -> CardPlots | ComparisonPlots:
    return CardPlots(result) if isinstance(result, Scorecard) else ComparisonPlots(result)


class CardPlots:
    """The charts of one model."""

    def __init__(self, card: Scorecard) -> None:
        self.card = card

    def risk_coverage(self, measure: str | None = None) -> Any:
        """The share of wrong answers among the surest, by one measure; the others stand behind it."""
        return _chart(risk_coverage_chart(self._curves("risk_coverage"), self._measure(measure)))

    def reliability(self) -> Any:
        """How often it is right against how sure it is, raw and calibrated."""
        return _chart(reliability_chart(self._curves("reliability")))

    def histogram(self, measure: str | None = None) -> Any:
        """How unsure it is where it is right, where it is wrong, and out of distribution."""
        return _chart(histogram_chart(self._curves("histogram"), self._measure(measure)))

    def _curves(self, kind: str) -> Any:
        curves = self.card.curves.get(kind)
        if not curves:
            raise Undefined("There are no labelled answers to draw on this scorecard.")
        return curves

    def _measure(self, name: str | None) -> str | None:
        known = measures_of(self.card.curves)
        if name is not None and name not in known:
            raise BadInput(f"There is no measure named {name!r} on this scorecard. There are: {', '.join(known)}.")
        return name or next(iter(known), None)


class ComparisonPlots:
    """The charts of several models."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def intervals(self, metric: str = "accuracy") -> Any:
        """Every model's value with its interval, by one metric."""
        rows = [row for row in self.comparison.rows if row["metric"] == metric]
        if not rows:
            known = ", ".join(dict.fromkeys(row["metric"] for row in self.comparison.rows))
            raise BadInput(f"The models are not compared by {metric!r}. There are: {known}.")
        return _chart(intervals_chart(interval_points(self.comparison), comparison_label(rows[0])))


def _chart(chart: Any) -> Any:
    """The chart with colours of its own, since a notebook has not the page's style sheet."""
    import altair

    return altair.Chart.from_dict(on_paper(chart))
