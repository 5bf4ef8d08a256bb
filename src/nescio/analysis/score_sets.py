"""Uncertainties and errors behind a scorecard: what curves and the choice of a score read."""

from __future__ import annotations

from dataclasses import dataclass, field

from nescio.arrays.types import Array
from nescio.metrics import DEFAULT_OOD_SHARE, Outcomes

ByMeasure = dict[str, Array]  # measure → (n,)
BySet = dict[str, ByMeasure]  # measure → OOD set → (m,)


@dataclass
class ValidationScores:
    """Uncertainties of the validation rows that have labels, and of OOD validation sets."""

    uncertainty: ByMeasure = field(default_factory=dict)
    ood: BySet = field(default_factory=dict)
    wrong: Array | None = None


@dataclass
class ScoreSet:
    """Uncertainties of one version of a scorecard, raw or calibrated.

    wrong      (n,) which in-distribution rows are misclassified; None without labels
    outcomes   predictions against labels; None if neither logits nor a confidence is known
    ood_share  share of OOD rows in mixtures
    """

    uncertainty: ByMeasure = field(default_factory=dict)
    ood: BySet = field(default_factory=dict)
    wrong: Array | None = None
    outcomes: Outcomes | None = None
    ood_share: float = DEFAULT_OOD_SHARE
    val: ValidationScores = field(default_factory=ValidationScores)
