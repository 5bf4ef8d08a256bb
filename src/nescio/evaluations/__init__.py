"""Evaluations: classes that compute rows of results from networks and data. A benchmark is networks × evaluations."""

from nescio.evaluations import (
    activity,
    calibration,
    cost,
    crops,
    few_shot,
    graded_ood,
    human,
    misclassification,
    mixtures,
    ood,
    posthoc,
    reliability,
    segmentation_shift,
    shift,
    transfer,
)
from nescio.evaluations.base import (
    Evaluation,
    Headline,
    Inapplicable,
    Outputs,
    Subject,
    TargetSet,
    average_predictions,
    evaluation,
    registry,
)

BUILT_IN = (
    calibration,
    misclassification,
    ood,
    graded_ood,
    shift,
    segmentation_shift,
    transfer,
    mixtures,
    crops,
    human,
    few_shot,
    reliability,
    posthoc,
    cost,
    activity,
)  # importing them registers them

__all__ = [
    "BUILT_IN",
    "Evaluation",
    "Headline",
    "Inapplicable",
    "Outputs",
    "Subject",
    "TargetSet",
    "average_predictions",
    "evaluation",
    "registry",
]
