"""Metrics: pure functions of arrays that evaluate predictions and uncertainties."""

from nescio.metrics._alignment import crop_agreement, has_votes, human_alignment, kendall, ranks, spearman
from nescio.metrics._calibration import (
    bins_of,
    classwise_ece,
    classwise_ece_from_blocks,
    ece,
    ece_gaps,
    reliability_curve,
)
from nescio.metrics._corp import (
    CorpCurve,
    classwise_mcb,
    corp,
    corp_band,
    corp_curve,
    dsc,
    isotonic,
    mcb,
    top_k,
    top_k_ece,
    top_k_mcb,
    unc,
)
from nescio.metrics._detection import in_as_in, out_as_out, threshold
from nescio.metrics._float16_counts import Float16Counts
from nescio.metrics._outcomes import Outcomes, accuracy, brier, complement_of, label_ranks, nll, outcomes, top_outcomes
from nescio.metrics._ranking import Ranking, as_scores, as_share, aupr, auroc, fpr_at_tpr, gamma, ranking, row_count
from nescio.metrics._retrieval import r_auroc, recall_at_1, retrieved
from nescio.metrics._scod import (
    ABSTENTION_PRICES,
    DEFAULT_OOD_SHARE,
    Mixture,
    cost_curve,
    scod_augrc,
    scod_aurc,
    scod_cost,
)
from nescio.metrics._score_counts import MAX_SCORES, ScoreCounts
from nescio.metrics._segmentation import class_ious, mean_iou, miou
from nescio.metrics._selective import (
    TENTHS,
    augrc,
    aulc,
    aurc,
    aurc_over,
    e_aurc,
    naurc,
    raulc,
    risk_coverage,
    sac,
    selective_risk,
)
from nescio.metrics._spec import KINDS, Metric, metric, registry
