"""Scorecards and comparisons in a notebook: a short table, single charts, and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TypeVar

from nescio.analysis.results import Comparison, Scorecard
from nescio.errors import BadInput, Undefined
from nescio.report.blocks import Story
from nescio.report.charts.curves import histogram_chart, reliability_chart, risk_coverage_chart
from nescio.report.charts.lazy import alt
from nescio.report.charts.points import intervals_chart
from nescio.report.charts.style import Chart, on_paper
from nescio.report.pages import write_page
from nescio.report.scorecards.figures import interval_points, measures_of
from nescio.report.scorecards.stories import scorecard_story
from nescio.report.scorecards.tables import comparison_label, comparison_tables, essentials
from nescio.report.tables import MISSING, Table

T = TypeVar("T")
Result = Scorecard | Comparison
MAX_ROWS = 12  # maximum number of rows of a table in a notebook


def html(result: Result) -> str:
    """Return the verdicts and one short table as HTML."""
    tables = [essentials(result)] if isinstance(result, Scorecard) else comparison_tables(result)[:1]
    return summary_html(_story(result).lead, tables)


def summary_html(sentences: Sequence[str], tables: Sequence[Table]) -> str:
    """Return sentences and the first rows of tables as HTML."""
    return "".join(
        [f"<p>{'<br>'.join(map(escape, sentences))}</p>", *(_table(table.head(MAX_ROWS)) for table in tables)]
    )


def write(result: Result, folder: str | Path) -> Path:
    """Write the page of a result with its tables and rows, and return its path."""
    return write_page(_story(result), folder, rows=result.rows)


def _story(result: Result) -> Story:
    return scorecard_story([result]) if isinstance(result, Scorecard) else scorecard_story([], result)


def _table(table: Table) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in (*table.index, *table.columns))
    lines = [[*labels, *(MISSING if cell is None else str(cell) for cell in cells)] for labels, cells in table.rows]
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in line)}</tr>" for line in lines)
    return (
        f"<table><caption>{escape(table.note)}</caption><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
    )


# ---- charts


def plots(result: Result) -> CardPlots | ComparisonPlots:
    """Return the charts of a result."""
    return CardPlots(result) if isinstance(result, Scorecard) else ComparisonPlots(result)


class CardPlots:
    """The charts of one model."""

    def __init__(self, card: Scorecard) -> None:
        self.card = card

    def risk_coverage(self, measure: str | None = None) -> alt.Chart:
        """Risk–coverage curve of one measure, with the others in the background."""
        return _chart(risk_coverage_chart(_labelled(self.card.curves.get("risk_coverage")), self._measure(measure)))

    def reliability(self) -> alt.Chart:
        """Reliability diagram, raw and calibrated."""
        return _chart(reliability_chart(_labelled(self.card.curves.get("reliability"))))

    def histogram(self, measure: str | None = None) -> alt.Chart:
        """Uncertainty of right, wrong and out-of-distribution predictions."""
        return _chart(histogram_chart(_labelled(self.card.curves.get("histogram")), self._measure(measure)))

    def _measure(self, name: str | None) -> str | None:
        names = measures_of(self.card.curves)
        if name is not None and name not in names:
            raise BadInput(f"There is no measure named {name!r} on this scorecard. There are: {', '.join(names)}.")
        return name or next(iter(names), None)


def _labelled(curves: Mapping[str, T] | None) -> Mapping[str, T]:
    """Return the curves; raise for a scorecard without labels."""
    if not curves:
        raise Undefined("This scorecard has no labels: the chart needs them.")
    return curves


class ComparisonPlots:
    """The charts of several models."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def intervals(self, metric: str = "accuracy") -> alt.Chart:
        """Values of all models with intervals, by one metric."""
        rows = [row for row in self.comparison.rows if row["metric"] == metric]
        if not rows:
            names = ", ".join(dict.fromkeys(row["metric"] for row in self.comparison.rows))
            raise BadInput(f"The models are not compared by {metric!r}. There are: {names}.")
        return _chart(intervals_chart(interval_points(self.comparison), comparison_label(rows[0])))


def _chart(chart: Chart) -> alt.Chart:
    """Return the chart with fixed colours, since a notebook lacks the style sheet of the page."""
    fixed: alt.Chart = alt.Chart.from_dict(on_paper(chart))
    return fixed
