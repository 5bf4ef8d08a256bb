"""Curves are what the metrics say, with few points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nescio import metrics
from nescio.analysis.curves import ScoreSet, corp_points, curves_of


def test_curves_of__points_equal_the_metrics() -> None:
    rng = np.random.default_rng(1)
    wrong, u = rng.random(1000) < 0.2, rng.normal(size=1000)
    probs = rng.dirichlet(np.ones(3), 1000)
    answers = metrics.outcomes(probs, rng.integers(0, 3, 1000))
    out = {"entropy": {"noise": u + 1}}
    curves = curves_of(ScoreSet({"entropy": u}, out, wrong, answers, ood_share=0.3))
    costs = curves["cost"]()
    prices, cost = costs["entropy"]["noise"]
    at = prices.tolist().index(0.4)
    assert cost[at] == pytest.approx(metrics.scod_cost(u, wrong, u + 1, price=0.4, share=0.3))
    assert (cost <= costs["random"][""][1] + 1e-12).all() and (cost >= costs["optimal"][""][1] - 1e-12).all()
    assert corp_points(curves["corp"])["raw"]["calibrated"][-1] == metrics.corp_curve(answers).calibrated[-1]
    coverage, risk = metrics.risk_coverage(u, wrong)
    seen, seen_risk = curves["risk_coverage"]["entropy"]
    assert len(seen) <= 400 and seen[-1] == 1 and seen[0] == coverage[0]
    assert set(zip(seen, seen_risk, strict=True)) <= set(zip(coverage, risk, strict=True))
    best_at, best = curves["risk_coverage"]["optimal"]
    every, lowest = metrics.risk_coverage(wrong.astype(float), wrong)
    # a perfect score is 0 for right and 1 for wrong; its ties among the wrong are averaged to the same line
    assert np.allclose(best, lowest[np.searchsorted(every, best_at - 1e-12)])
    assert np.allclose(curves["risk_coverage"]["random"][1], wrong.mean())
    bins = metrics.reliability_curve(answers)
    assert np.array_equal(curves["reliability"]["raw"][0], bins.count) and "calibrated" not in curves["reliability"]
    histogram = curves["histogram"]["entropy"]
    assert histogram["right"].sum() == (~wrong).sum() and histogram["wrong"].sum() == wrong.sum()
    assert histogram["out"]["noise"].sum() == 1000 and len(histogram["edges"]) == len(histogram["right"]) + 1


@pytest.mark.parametrize("u", [np.zeros(50), np.r_[np.zeros(49), 1.0], np.r_[np.zeros(49), 1e300]], ids=str)
def test_curves_of__histograms_of_constant_and_extreme_scores(u: Any) -> None:
    held = curves_of(ScoreSet({"x": u}, wrong=np.arange(50) < 5))["histogram"]["x"]
    assert held["right"].sum() == 45 and held["wrong"].sum() == 5 and (np.diff(held["edges"]) > 0).all()


def test_curves_of__empty_without_labels() -> None:
    assert curves_of(None) == {}
    assert curves_of(ScoreSet({"norm": np.ones(3)})) == {}
