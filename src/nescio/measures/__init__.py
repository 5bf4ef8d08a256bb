"""Measures: functions from predictions to one uncertainty per row, always higher = less confident."""

from nescio.measures._direct import (
    dempster_shafer,
    energy,
    entropy,
    expected_entropy,
    gap,
    jacobian,
    max_logit,
    msp,
    mutual_information,
    native,
    norm,
    tta,
)
from nescio.measures._neighbours import feature_variance, knn, knn_distance, neighborhood_inconsistency
from nescio.measures._portable import LOGIT_MEASURES, PORTABLE, FittedScore, fit, portable
from nescio.measures._softmax_pass import mean_probs, prob_blocks, summary, top_k_outcomes
from nescio.measures._spec import (
    SCORE,
    Measure,
    cached,
    canonical,
    find_measure,
    measure,
    registry,
    score_names,
    uncertainty,
)
from nescio.measures.classifier import LastLayer, recover_last_layer
from nescio.measures.feature_scores import (
    fdbd,
    gradnorm,
    kl_matching,
    mds,
    mds_plus,
    nci,
    nnguide,
    over_members,
    residual,
    rmds,
    rmds_plus,
    she,
    sirc,
    vim,
)
from nescio.measures.gallery import gallery_consistency, gallery_margin, gallery_scores, gallery_uncertainty
from nescio.measures.gaussians import gmm, mahalanobis
from nescio.measures.logit_scores import (
    brier_aleatoric,
    brier_epistemic,
    decomposition,
    doctor,
    gen,
    msp_tuned,
    pnorm,
    pnorm_tuned,
    renyi,
    tsallis,
    zero_one_aleatoric,
    zero_one_epistemic,
)
from nescio.measures.loss_ranking import LossOrder, loss_order
from nescio.measures.mixtures import ComponentChoice, choose_components, gaussian_mixture, vmf_mixture
from nescio.measures.shaping import ash, dice, react, scale
