"""What dumps say: scorecards, comparisons, calibration, thresholds, rankings. Functions of Predictions."""
