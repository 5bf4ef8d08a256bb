"""The model to deploy: the one that answers most while an accuracy is kept, and those that are as good as it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import Any

from nescio import measures
from nescio.analysis.comparison import compare
from nescio.analysis.evaluation_rows import labelled_in_distribution, resolve_measure
from nescio.analysis.metric_specs import parse_metric
from nescio.analysis.results import Comparison
from nescio.analysis.shared_rows import shared_rows
from nescio.errors import BadInput, Undefined
from nescio.measures import summary
from nescio.metrics import Ranking, auroc
from nescio.predictions import Predictions
from nescio.predictions.model_predictions import ModelPredictions, check_comparable
from nescio.progress import track

RESAMPLES = 1000


@dataclass(frozen=True)
class Requirement:
    """What a model is wanted for: an accuracy to keep, a coverage to give, or neither."""

    accuracy: float | None = None
    coverage: float | None = None

    def __post_init__(self) -> None:
        for name, share in asdict(self).items():
            if share is not None and not 0 < share <= 1:
                raise BadInput(f"{name} is a share above 0 and up to 1, such as 0.9, not {share:g}.")
        if self.accuracy is not None and self.coverage is not None:
            raise BadInput("Give accuracy or coverage, not both: the one decides what the other can be.")

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
    """The models that were compared, the best first, and what was left out and why."""

    requirement: Requirement
    measure: str
    n: int  # images
    level: float
    candidates: int
    models: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    closest: dict[str, Any] | None = None  # where no model attains the accuracy

    @property
    def attained(self) -> bool:
        return self.closest is None

    @property
    def group(self) -> list[str]:
        """The choice and those that cannot be told from it."""
        return [line["model"] for line in self.models if line["best"]] if self.attained else []


def choose_model(
    models: Sequence[ModelPredictions],
    requirement: Requirement,
    refused: Mapping[str, str] | None = None,
    *,
    measure: str = "msp",
    among: int = 20,
    resamples: int | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> ModelChoice:
    """The best of the models, and the group that cannot be told from it.

    Every model is judged on the rows that all candidates share; the `among` best go into `compare`'s paired bootstrap.
    Of equal models the one with fewer parameters comes first.

    refused    models that are no candidates, and why
    resamples  None takes enough of them for Holm's first step among so many models, and at least a thousand
    """
    if among < 1:
        raise BadInput(f"compare_top is a number of models, at least 1, not {among}.")
    check_comparable(models)
    left = list((refused or {}).items())
    allowed = {model.model: model for model in models if model.model not in dict(left)}
    dumps, own = _dumps(allowed.values(), measure, left)
    rows = shared_rows(dumps)
    values: dict[str, float] = {}
    sides: dict[str, dict[str, Any]] = {}
    for name in track(list(dumps), "models"):
        try:
            ranking = _ranking(dumps[name], rows[name], own)
            values[name], sides[name] = parse_metric(requirement.metric)(ranking), _sides(ranking)
        except Undefined as why:
            left.append((name, _reason(why)))
    _some_left(values, left)
    order = sorted(values, key=lambda name: (-requirement.sign * values[name], *_cost(allowed[name])))
    best = order[:among]
    chosen = ModelChoice(requirement, measure, len(rows[order[0]]), level, len(values), left_out=left)
    chosen.notes += dict.fromkeys(note for dump in dumps.values() for note in dump.notes)
    if requirement.accuracy is not None and values[order[0]] == 0:
        near = max(order, key=lambda name: sides[name]["reached"])
        accuracy, coverage = sides[near]["reached"]
        chosen.closest = {"model": near, "accuracy": accuracy, "coverage": coverage}
    if resamples is None:
        resamples = max(RESAMPLES, math.ceil(2 * len(best) / (1 - level)) if 0 < level < 1 else 0)
    shown = {name: dumps[name] for name in best}
    compared = compare(shown, measure=own, metrics=[requirement.metric], resamples=resamples, level=level, seed=seed)
    chosen.notes += [str(reason["reason"]) for reason in compared.reasons]
    chosen.models = [_line(compared, allowed[name], sides[name]) for name in best]
    return chosen


def _dumps(models: Any, measure: str, left: list[tuple[str, str]]) -> tuple[dict[str, Predictions], str]:
    """The predictions of every model, and the measure of them that withholds answers."""
    dumps: dict[str, Predictions] = {}
    own = measure
    for model in models:
        try:
            dumps[model.model], own = resolve_measure(labelled_in_distribution(model.load()), measure)
        except Undefined as why:
            left.append((model.model, _reason(why)))
        except BadInput as error:
            raise BadInput(f"{model.model}: {error}") from None
    _some_left(dumps, left)
    return dumps, own


def _some_left(models: Mapping[str, Any], left: Sequence[tuple[str, str]]) -> None:
    if not models:
        raise BadInput(f"No model is left to choose from: {count_reasons(left)}.")


def _ranking(dump: Predictions, rows: Any, measure: str) -> Ranking:
    light = copy(dump)  # its summary goes with it: hundreds of them would fill the memory
    wrong = summary(light).outcomes(rows).wrong
    return Ranking(measures.uncertainty(measure, light)[rows], wrong)


def highest(ranking: Ranking) -> tuple[float, float]:
    """The highest accuracy that a threshold reaches, and the largest coverage at which it does."""
    shares = (ranking.ends - ranking.hits) / ranking.ends
    top = float(shares.max())
    return top, float(ranking.ends[shares == top].max()) / ranking.n


def _cost(model: ModelPredictions) -> tuple[float, str]:
    params = model.fact_as_number("params")
    return (math.inf if params is None else params, model.model)


def _sides(ranking: Ranking) -> dict[str, Any]:
    """What else a reader wants to know of a model."""
    try:
        notices = auroc(ranking)
    except Undefined:
        notices = None
    return {"accuracy": ranking.negatives / ranking.n, "auroc": notices, "reached": highest(ranking)}


def _line(compared: Comparison, model: ModelPredictions, sides: Mapping[str, Any]) -> dict[str, Any]:
    own = next(row for row in compared.rows if row["method"] == model.model)
    none = dict.fromkeys(("difference", "low", "high", "adjusted"))
    away = next((entry for entry in compared.differences if entry["model"] == model.model), none)
    return {
        "model": model.model,
        "family": model.facts.get("family"),
        **{name: model.fact_as_number(name) for name in ("params", "input_size")},
        **{name: own[name] for name in ("value", "low", "high", "rank", "best")},
        "difference": away["difference"],
        "difference_low": away["low"],
        "difference_high": away["high"],
        "p": away["adjusted"],
        **{name: sides[name] for name in ("accuracy", "auroc")},
    }


def _reason(why: object) -> str:
    text = str(why).removesuffix(".")
    return text[:1].lower() + text[1:]


def count_reasons(left: Sequence[tuple[str, str]]) -> str:
    """How many models were left out for each reason."""
    counts = Counter(why for _, why in left)
    return "; ".join(f"{times} × {why}" for why, times in counts.items())


def pareto_front(points: Iterable[tuple[float, float]], less: bool = True) -> list[tuple[float, float]]:
    """The points that no other one beats: in x, which is better lower (`less`) or higher, and in y, better higher.

    A point is beaten by one that is at least as good in both and better in one. In order of x, equal points once.
    """
    best: list[tuple[float, float]] = []
    for x, y in sorted(set(points), key=lambda point: (point[0] if less else -point[0], -point[1])):
        if not best or y > best[-1][1]:
            best.append((x, y))
    return sorted(best)
