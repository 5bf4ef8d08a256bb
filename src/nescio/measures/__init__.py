"""Measures: Predictions in, one number a row out, ALWAYS higher = less sure."""

from nescio.measures._density import ComponentChoice, choose_components, gaussian_mixture, gmm, mahalanobis, vmf_mixture
from nescio.measures._native import native, norm
from nescio.measures._neighbours import feature_variance, knn_distance, neighborhood_inconsistency
from nescio.measures._probes import jacobian, tta
from nescio.measures._softmax import (
    dempster_shafer,
    energy,
    entropy,
    expected_entropy,
    gap,
    largest,
    max_logit,
    mean_probs,
    mutual_information,
    prob_blocks,
    summary,
)
from nescio.measures._spec import SCORE, Measure, measure, named, registry, scores_of, uncertainty
from nescio.measures.gallery import gallery_consistency, gallery_doubt, gallery_margin, gallery_scores

__all__ = [
    "SCORE",
    "ComponentChoice",
    "Measure",
    "choose_components",
    "dempster_shafer",
    "energy",
    "entropy",
    "expected_entropy",
    "feature_variance",
    "gallery_consistency",
    "gallery_doubt",
    "gallery_margin",
    "gallery_scores",
    "gap",
    "gaussian_mixture",
    "gmm",
    "jacobian",
    "knn_distance",
    "largest",
    "mahalanobis",
    "max_logit",
    "mean_probs",
    "measure",
    "mutual_information",
    "named",
    "native",
    "neighborhood_inconsistency",
    "norm",
    "prob_blocks",
    "registry",
    "scores_of",
    "summary",
    "tta",
    "uncertainty",
    "vmf_mixture",
]
