"""Choice of the model with the highest coverage at an accuracy, with the models that are not significantly worse."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field

from nescio import measures
from nescio.analysis.comparison import compare
from nescio.analysis.evaluation_rows import labelled_in_distribution, resolve_measure, shared_rows
from nescio.analysis.metric_specs import parse_metric
from nescio.analysis.results import Comparison
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures import summary
from nescio.metrics import Ranking, auroc
from nescio.predictions import Predictions
from nescio.predictions.model_predictions import ModelPredictions, check_comparable
from nescio.progress import track
from nescio.rows import Row

RESAMPLES = 1000


@dataclass(frozen=True)
class Requirement:
    """Requirement of a deployment: a minimum accuracy, a minimum coverage, or neither."""

    accuracy: float | None = None
    coverage: float | None = None

    def __post_init__(self) -> None:
        for name, share in asdict(self).items():
            if share is not None and not 0 < share <= 1:
                raise BadInput(f"{name} must be above 0 and at most 1, such as 0.9, got {share:g}.")
        if self.accuracy is not None and self.coverage is not None:
            raise BadInput("Give accuracy or coverage, not both: each determines the other.")

    @property
    def metric(self) -> str:
        if self.accuracy is not None:
            return f"sac@{self.accuracy!r}"
        return "auroc" if self.coverage is None else f"selective_risk@{self.coverage!r}"

    @property
    def sign(self) -> float:
        return 1.0 if self.coverage is None else -1.0


@dataclass
class ModelChoice:
    """The compared models, the best first, and the omitted ones with the reasons.

    closest  the model with the highest accuracy, if no model attains the required one
    """

    requirement: Requirement
    measure: str
    n: int  # number of images
    level: float
    candidates: int
    models: list[Row] = field(default_factory=list)
    omitted: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    closest: Row | None = None

    @property
    def attained(self) -> bool:
        return self.closest is None

    @property
    def group(self) -> list[str]:
        """The choice and the models that are not significantly worse."""
        return [line["model"] for line in self.models if line["best"]] if self.attained else []


def choose_model(
    models: Sequence[ModelPredictions],
    requirement: Requirement,
    excluded: Mapping[str, str] | None = None,
    *,
    measure: str = "msp",
    compare_top: int = 20,
    resamples: int | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> ModelChoice:
    """Choose the best model, with those that are not significantly worse.

    All models are evaluated on the rows that they share. The best of them are compared by a paired bootstrap. Of equal
    models, the one with fewer parameters is first.

    excluded     model → reason for its exclusion
    compare_top  number of models in the bootstrap
    resamples    None: enough for Holm's first step, at least 1,000
    """
    if compare_top < 1:
        raise BadInput(f"compare_top must be at least 1, got {compare_top}.")
    check_comparable(models)
    omitted = list((excluded or {}).items())
    allowed = {model.model: model for model in models if model.model not in dict(omitted)}
    predictions, score = _load_models(allowed.values(), measure, omitted)
    rows = shared_rows(predictions)
    values: dict[str, float] = {}
    further: dict[str, Row] = {}
    for name in track(list(predictions), "models"):
        try:
            ranking = _ranking(predictions[name], rows[name], score)
            values[name], further[name] = parse_metric(requirement.metric)(ranking), _further_metrics(ranking)
        except Undefined as reason:
            omitted.append((name, _missing_metric_reason(reason)))
    _require_models(values, omitted)
    params = {name: allowed[name].fact_as_number("params") for name in values}
    costs = {name: math.inf if count is None else count for name, count in params.items()}
    order = sorted(values, key=lambda name: (-requirement.sign * values[name], costs[name], name))
    best = order[:compare_top]
    result = ModelChoice(requirement, measure, len(rows[order[0]]), level, len(values), omitted=omitted)
    result.notes += dict.fromkeys(note for model in predictions.values() for note in model.notes)
    if requirement.accuracy is not None and values[order[0]] == 0:
        closest_name = max(order, key=lambda name: further[name]["reached"])
        accuracy, coverage = further[closest_name]["reached"]
        result.closest = {"model": closest_name, "accuracy": accuracy, "coverage": coverage}
    if resamples is None:
        resamples = max(RESAMPLES, math.ceil(2 * len(best) / (1 - level)) if 0 < level < 1 else 0)
    candidates = {name: predictions[name] for name in best}
    comparison = compare(
        candidates, measure=score, metrics=[requirement.metric], resamples=resamples, level=level, seed=seed
    )
    result.notes += [str(reason["reason"]) for reason in comparison.reasons]
    result.models = [_ranking_row(comparison, allowed[name], further[name]) for name in best]
    return result


def _load_models(
    models: Iterable[ModelPredictions], measure: str, omitted: list[tuple[str, str]]
) -> tuple[dict[str, Predictions], str]:
    """The predictions of every model, and the measure that decides on abstention."""
    predictions: dict[str, Predictions] = {}
    score = measure
    for model in models:
        try:
            predictions[model.model], score = resolve_measure(labelled_in_distribution(model.load()), measure)
        except Undefined as reason:
            omitted.append((model.model, _missing_metric_reason(reason)))
        except BadInput as error:
            raise BadInput(f"{model.model}: {error}") from None
    _require_models(predictions, omitted)
    return predictions, score


def _require_models(models: Mapping[str, object], omitted: Sequence[tuple[str, str]]) -> None:
    if not models:
        raise BadInput(f"No model is left to choose from: {count_reasons(omitted)}.")


def _ranking(predictions: Predictions, rows: Array, measure: str) -> Ranking:
    uncached = copy(predictions)  # so that its cached summary is freed: hundreds would fill the memory
    wrong = summary(uncached).outcomes(rows).wrong
    return Ranking(measures.uncertainty(measure, uncached)[rows], wrong)


def highest(ranking: Ranking) -> tuple[float, float]:
    """The highest accuracy that a threshold reaches, and the largest coverage with this accuracy."""
    shares = (ranking.ends - ranking.hits) / ranking.ends
    accuracy = float(shares.max())
    return accuracy, float(ranking.ends[shares == accuracy].max()) / ranking.n


def _further_metrics(ranking: Ranking) -> Row:
    """Further metrics of a model."""
    try:
        auroc_value = auroc(ranking)
    except Undefined:
        auroc_value = None
    return {"accuracy": ranking.negatives / ranking.n, "auroc": auroc_value, "reached": highest(ranking)}


def _ranking_row(comparison: Comparison, model: ModelPredictions, further: Row) -> Row:
    of_model = next(row for row in comparison.rows if row["method"] == model.model)
    no_difference = dict.fromkeys(("difference", "low", "high", "adjusted"))
    difference = next((entry for entry in comparison.differences if entry["model"] == model.model), no_difference)
    return {
        "model": model.model,
        "family": model.facts.get("family"),
        **{name: model.fact_as_number(name) for name in ("params", "input_size")},
        **{name: of_model[name] for name in ("value", "low", "high", "rank", "best")},
        "difference": difference["difference"],
        "difference_low": difference["low"],
        "difference_high": difference["high"],
        "p": difference["adjusted"],
        **{name: further[name] for name in ("accuracy", "auroc")},
    }


def _missing_metric_reason(reason: object) -> str:
    text = str(reason).removesuffix(".")
    return text[:1].lower() + text[1:]


def count_reasons(omitted: Sequence[tuple[str, str]]) -> str:
    """Number of omitted models by reason."""
    counts = Counter(why for _, why in omitted)
    return "; ".join(f"{times} × {why}" for why, times in counts.items())


def pareto_front(points: Iterable[tuple[float, float]], lower_x_is_better: bool = True) -> list[tuple[float, float]]:
    """Points that no other point dominates, in order of x; a higher y is better.

    A point is dominated by one that is at least as good in both and better in one. Equal points occur once.
    """
    best: list[tuple[float, float]] = []
    for x, y in sorted(set(points), key=lambda point: (point[0] if lower_x_is_better else -point[0], -point[1])):
        if not best or y > best[-1][1]:
            best.append((x, y))
    return sorted(best)
