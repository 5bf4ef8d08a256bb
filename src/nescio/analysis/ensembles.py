"""What an average of networks says, from the dumps of its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nescio import measures
from nescio.analysis import calibration
from nescio.analysis.cross_fitting import cross_fitted
from nescio.predictions import Predictions, stack

MEMBERS_GMM = "gmm of members"  # a score of ensembles


def average_members(
    members: Sequence[Mapping[str, Predictions]],
    temperatures: Sequence[float],
    probes: Mapping[str, Predictions],
    with_gmm: bool,
) -> dict[str, Predictions]:
    """The dumps of an average of members, by split, with its probes.

    An ensemble's native score is the Jensen–Shannon divergence of its members (UIMNET §4). Members' features live in
    spaces of their own, so an ensemble's GMM score is the mean of its members' scores, each fitted on its `val` rows.
    """
    whole = {}
    for split in probes:
        dumps = [
            member[split] if temperature == 1 else calibration.Temperature(temperature)(member[split])
            for member, temperature in zip(members, temperatures, strict=True)
        ]
        average = stack(dumps) if len(dumps) > 1 else dumps[0]
        scores = dict(probes[split].scores)
        if len(dumps) > 1:
            scores["native"] = measures.mutual_information(average)
            if with_gmm:
                scores[MEMBERS_GMM] = np.mean([_gmm(member["val"], member[split]) for member in members], axis=0)
        whole[split] = average.replace(scores=scores, variants=probes[split].variants)
    return whole


def _gmm(val: Predictions, dump: Predictions) -> Any:
    """Fitted on validation rows; their own scores, which set the threshold, are those of mixtures of the others."""
    return cross_fitted(measures.gmm, val) if dump is val else measures.gmm(val)(dump)
