"""Optimal linear heads on frozen features, solved together, and the reliability of each representation."""

from nescio.heads._reliability import (
    fit_heads,
    probability_performance,
    regression_performance,
    reliability_targets,
)
from nescio.heads._tasks import TASKS, Heads, Multiclass, OneVsOne, Regression

__all__ = [
    "TASKS",
    "Heads",
    "Multiclass",
    "OneVsOne",
    "Regression",
    "fit_heads",
    "probability_performance",
    "regression_performance",
    "reliability_targets",
]
