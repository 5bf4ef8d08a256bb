"""Reports of scorecards and comparisons: questions, tables, figures, prose, and stories of all of them."""

from nescio.report.scorecards.figures import interval_points, measures_of
from nescio.report.scorecards.prose import best_measures, comparison_verdicts, scorecard_verdicts
from nescio.report.scorecards.questions import HEADLINE_METRICS
from nescio.report.scorecards.stories import all_rows, scorecard_story, short_comparison, short_story
from nescio.report.scorecards.tables import (
    comparison_label,
    comparison_tables,
    essentials,
    scorecard_blocks,
    scorecard_tables,
    summary,
)

__all__ = [
    "HEADLINE_METRICS",
    "all_rows",
    "best_measures",
    "comparison_label",
    "comparison_tables",
    "comparison_verdicts",
    "essentials",
    "interval_points",
    "measures_of",
    "scorecard_blocks",
    "scorecard_story",
    "scorecard_tables",
    "scorecard_verdicts",
    "short_comparison",
    "short_story",
    "summary",
]
