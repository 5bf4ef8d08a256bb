"""Predictions: what one model says about one split, and the files that hold it."""

from nescio.predictions.dump import Predictions, join, stack

__all__ = ["Predictions", "join", "stack"]
