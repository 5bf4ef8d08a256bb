"""Evaluation of predictions: scorecards, comparisons, calibration, thresholds, choices and representations."""
