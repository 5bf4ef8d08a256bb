"""Figures of scorecards: those with curves, with few enough points for the page."""

from __future__ import annotations

from nescio.report.scorecards.figures import (
    MIN_POINTS,
    interval_points,
    measures_of,
    models_panel,
    scorecard_panel,
    thin_curves,
)
from tests.support.samples import sample_card, sample_comparison


def test_scorecard_panel_has_the_figures_with_curves() -> None:
    curves = sample_card().curves
    keys = [figure.key for figure in scorecard_panel(curves, 3).figures]
    assert keys == ["risk-3", "reliability-3", "corp-3", "cost-3", "histogram-3"]
    assert [figure.kind for figure in scorecard_panel({"corp": curves["corp"]}, 0).figures] == ["corp"]
    assert not scorecard_panel({}, 0) and not models_panel({})


def test_scorecard_panel_figures_have_standard_titles() -> None:
    titles = [figure.title for figure in scorecard_panel(sample_card().curves, 0).figures]
    for term in ("Risk–coverage curve", "Reliability diagram", "Cost curve"):
        assert any(title.startswith(term) for title in titles), term


def test_thin_curves_of_many_models() -> None:
    curves = sample_card().curves
    assert len(thin_curves(curves, 1)["risk_coverage"]["msp"][0]) == 400
    coverage, risk = thin_curves(curves, 1000)["risk_coverage"]["msp"]
    assert len(coverage) == len(risk) == MIN_POINTS
    assert coverage[0] == curves["risk_coverage"]["msp"][0][0] and coverage[-1] == 1.0
    assert risk[-1] == curves["risk_coverage"]["msp"][1][-1]


def test_measures_of_curves_begin_with_the_default() -> None:
    assert measures_of({"risk_coverage": {"entropy": 0, "msp": 0, "optimal": 0}}) == ["msp", "entropy"]


def test_interval_points_leave_out_metrics_without_a_direction() -> None:
    comparison = sample_comparison()
    comparison.rows[0] = comparison.rows[0] | {"best": None}
    points = interval_points(comparison)
    assert len(points) == 8 and points[0]["model"] == "logistic"
    assert set(points[0]) == {"question", "model", "rank", "value", "low", "high", "best"}
