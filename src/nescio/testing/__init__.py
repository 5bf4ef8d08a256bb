"""Contracts that every registered part keeps, and that a plug-in can run on its own parts."""

from nescio.testing.contracts import check_measure, check_method, check_metric

__all__ = ["check_measure", "check_method", "check_metric"]
