"""Predictions of an average of networks, from the predictions of its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nescio import measures
from nescio.analysis import calibration
from nescio.analysis.measure_scores import cross_fitted
from nescio.arrays.types import Array
from nescio.predictions import Predictions, stack

MEMBERS_GMM = "gmm of members"  # name of an ensemble's score


def average_members(
    members: Sequence[Mapping[str, Predictions]],
    temperatures: Sequence[float],
    probes: Mapping[str, Predictions],
    with_gmm: bool,
) -> dict[str, Predictions]:
    """Predictions of an average of members by split, with the scores of its probes.

    The native score of an ensemble is the Jensen–Shannon divergence of its members (UIMNET §4). The feature spaces of
    members differ, so the GMM score of an ensemble is the mean of its members' scores, each fitted on its `val` rows.
    """
    ensemble = {}
    for split in probes:
        scaled = [
            member[split] if temperature == 1 else calibration.Temperature(temperature)(member[split])
            for member, temperature in zip(members, temperatures, strict=True)
        ]
        average = stack(scaled) if len(scaled) > 1 else scaled[0]
        scores = dict(probes[split].scores)
        if len(scaled) > 1:
            scores["native"] = measures.mutual_information(average)
            if with_gmm:
                scores[MEMBERS_GMM] = np.mean([_gmm(member["val"], member[split]) for member in members], axis=0)
        ensemble[split] = average.replace(scores=scores, variants=probes[split].variants)
    return ensemble


def _gmm(val: Predictions, predictions: Predictions) -> Array:
    """Density score fitted on validation rows; validation rows are cross-fitted."""
    return cross_fitted(measures.gmm, val) if predictions is val else measures.gmm(val)(predictions)
