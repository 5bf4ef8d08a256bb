"""Evaluations: classes that compute rows of results from networks and data. A benchmark is networks × evaluations."""

from nescio.evaluations import (  # noqa: F401  (importing registers)
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

__all__ = [
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
