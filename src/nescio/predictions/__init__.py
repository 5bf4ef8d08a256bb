"""Predictions: what one network predicts for the images of one split, and the files that contain them."""

from nescio.predictions.combine import join, same_rows, shared_rows, stack
from nescio.predictions.outputs import Predictions

__all__ = ["Predictions", "join", "same_rows", "shared_rows", "stack"]
