"""The question that each row of a scorecard answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from nescio.report.labels import DEFAULT_MEASURE, UNNAMED_SPLITS, find_metric
from nescio.rows import Row
from nescio.specs import group_of

if TYPE_CHECKING:
    from nescio.analysis.results import Scorecard

Splits: TypeAlias = frozenset[str | None]
HEADLINE_METRICS = ("accuracy", "nll", "brier", "ece", "auroc", "aurc", "sac@0.95")  # metrics of a summary of models
ESSENTIAL_METRICS = (*HEADLINE_METRICS, "mcb", "naurc")  # metrics of the short report of one model

PREDICTIONS = "Accuracy and calibration"
MISCLASSIFICATION = "Misclassification detection"
OOD = "OOD detection"
MIXTURE = "Misclassification and OOD detection"
RETRIEVAL = "Retrieval by embeddings"
GALLERY = "Retrieval by embeddings, gallery scores"
HUMAN = "Agreement with human uncertainty"
OTHER = "Other metrics"
QUESTIONS = (PREDICTIONS, MISCLASSIFICATION, OOD, MIXTURE, RETRIEVAL, GALLERY, HUMAN, OTHER)
QUESTION_OF_KIND = {  # kinds of metrics that answer one question, in order of precedence
    "predictions": PREDICTIONS,
    "threshold": OOD,
    "mixture": MIXTURE,
    "ranking": MISCLASSIFICATION,
    "detection": MISCLASSIFICATION,
    "retrieval": RETRIEVAL,
    "retrieval-ranking": RETRIEVAL,
    "votes": HUMAN,
}


def in_distribution_splits(rows: Iterable[Row]) -> Splits:
    """Return the in-distribution splits: those without a name or with metrics of predictions."""
    return UNNAMED_SPLITS | {
        row.get("split") for row in rows if row["metric"] == "in_as_in" or "predictions" in _kinds(row["metric"])
    }


def question_of(row: Row, in_distribution: Splits = UNNAMED_SPLITS) -> str:
    """Return the question that a row answers; `in_distribution` are splits."""
    kinds = _kinds(row["metric"])
    question = next((question for kind, question in QUESTION_OF_KIND.items() if kind in kinds), OTHER)
    if question == MISCLASSIFICATION and row.get("split") not in in_distribution:
        return OOD
    if question == RETRIEVAL and measure_kind(row.get("measure")) == "gallery":
        return GALLERY
    return question


def _kinds(metric: str) -> Sequence[str]:
    registered = find_metric(metric)
    return registered.kinds if registered else ()


def measure_kind(measure: str | None) -> str | None:
    """Return the kind of a registered measure."""
    from nescio.measures import registry

    return registry[str(measure)].kind if measure in registry else None


def default_measure(rows: Iterable[Row]) -> str | None:
    """Return the measure that represents a model: msp if present, otherwise the first one with a ranking metric."""
    rows = list(rows)
    splits = in_distribution_splits(rows)
    ranked = [
        row["measure"]
        for row in rows
        if row.get("measure") is not None and question_of(row, splits) == MISCLASSIFICATION
    ]
    return DEFAULT_MEASURE if DEFAULT_MEASURE in ranked else next(iter(ranked), None)


def plain_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of raw predictions on whole splits."""
    return [row for row in rows if not row.get("calibrated") and row.get("subgroup") is None]


def without_members(rows: Iterable[Row]) -> list[Row]:
    """Leave out OOD sets that belong to a group, since the group has means."""
    return [row for row in rows if not group_of(str(row.get("split")))]


def unique_names(cards: Sequence[Scorecard]) -> list[str]:
    """Return the names of scorecards, with a number behind repeated ones."""
    names: list[str] = []
    for position, card in enumerate(cards, start=1):
        name = str(card.name or f"model {position}")
        names.append(name if name not in names else f"{name} ({position})")
    return names


def model_name(row: Row) -> str:
    """Return the model of a row of a comparison."""
    return next((str(row[key]) for key in ("model", "name", "file", "method") if row.get(key) is not None), "–")
