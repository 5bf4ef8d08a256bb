"""Predictions: what one model says about one split, and the files that hold it."""

from nescio.predictions.outputs import Predictions, join, same_rows, shared_rows, stack

__all__ = ["Predictions", "join", "same_rows", "shared_rows", "stack"]
