"""Metrics: pure functions of arrays that say how good answers and uncertainties are."""

from nescio.metrics._alignment import crop_agreement, has_votes, human_alignment, kendall, ranks, spearman
from nescio.metrics._answers import Answers, accuracy, answers, brier, nll, places, top_answers, without_cancellation
from nescio.metrics._calibration import bins_of, classwise_ece, classwise_ece_of_blocks, ece, reliability_curve
from nescio.metrics._counts import Counts
from nescio.metrics._detection import in_as_in, out_as_out, threshold
from nescio.metrics._ranking import Ranking, as_scores, as_share, aupr, auroc, fpr_at_tpr, gamma, ranking, rows_for
from nescio.metrics._retrieval import r_auroc, recall_at_1, retrieved
from nescio.metrics._segmentation import miou
from nescio.metrics._selective import (
    TENTHS,
    augrc,
    aulc,
    aurc,
    aurc_over,
    e_aurc,
    raulc,
    risk_coverage,
    sac,
    selective_risk,
)
from nescio.metrics._spec import Metric, metric, registry

__all__ = [
    "TENTHS",
    "Answers",
    "Counts",
    "Metric",
    "Ranking",
    "accuracy",
    "answers",
    "as_scores",
    "as_share",
    "augrc",
    "aulc",
    "aupr",
    "aurc",
    "aurc_over",
    "auroc",
    "bins_of",
    "brier",
    "classwise_ece",
    "classwise_ece_of_blocks",
    "crop_agreement",
    "e_aurc",
    "ece",
    "fpr_at_tpr",
    "gamma",
    "has_votes",
    "human_alignment",
    "in_as_in",
    "kendall",
    "metric",
    "miou",
    "nll",
    "out_as_out",
    "places",
    "r_auroc",
    "ranking",
    "ranks",
    "raulc",
    "recall_at_1",
    "registry",
    "reliability_curve",
    "retrieved",
    "risk_coverage",
    "rows_for",
    "sac",
    "selective_risk",
    "spearman",
    "threshold",
    "top_answers",
    "without_cancellation",
]
