"""Registry of measures and of their properties in reports."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial, wraps
from inspect import signature
from typing import Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.types import Array
from nescio.errors import BadInput, FaultyPlugin, Undefined
from nescio.predictions import Predictions
from nescio.registry import Registry, is_plugin_code, plugin_fault, source_file

Kind = Literal[
    "plain",  # f(predictions) -> u (n,)
    "fitted",  # f(reference, **options) -> (f(predictions) -> u)
    "ensemble",  # f(references, tests) -> u, both lists with one Predictions per member
    "gallery",  # f(predictions, views, siblings) -> u; the other rows are the gallery
    "tuned",  # f(labelled rows that the network was not trained on, **options) -> (f(predictions) -> u)
]
ENSEMBLES = "An ensemble is not a measure: `nescio.stack` combines the predictions of its networks."
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")
FIELDS = [registered.name for registered in fields(Predictions)]


class Traits(TypedDict, total=False):
    """Optional properties of a measure."""

    example: Mapping[str, Any]  # options for test data of 120 rows, 4 classes and 6 features, if the defaults need more
    fallback: str  # a field that can replace missing required fields
    equivalent_to: str  # the measure with the same ranking, under which reports show it
    needs_draws: bool  # it needs several draws
    slow: bool  # as slow as all other measures together: skipped for large predictions unless requested
    trains: bool  # it trains a network: skipped unless requested
    scorecard_options: Callable[[int], Mapping[str, Any]]  # number of reference rows → options on a scorecard


@dataclass(frozen=True)
class Measure:
    """One registered measure. Higher u always means less confident."""

    name: str
    function: Callable[..., Any]
    kind: Kind
    needs: tuple[str, ...]  # required fields of Predictions
    example: Mapping[str, Any] = field(default_factory=dict)  # this and all other fields: see Traits
    fallback: str | None = None
    equivalent_to: str | None = None
    needs_draws: bool = False
    slow: bool = False
    trains: bool = False
    scorecard_options: Callable[[int], Mapping[str, Any]] | None = None

    @property
    def sentence(self) -> str:
        return (self.function.__doc__ or "").strip().split("\n")[0]

    def check(self, predictions: Predictions, but: Sequence[str] = ()) -> None:
        """Raise Undefined if the predictions lack a field that the measure needs, except those in `but`."""
        if self.fallback is not None and getattr(predictions, self.fallback) is not None:
            return
        for name in self.needs:
            value = getattr(predictions, name)
            if name not in but and (value is None or (isinstance(value, Mapping) and not value)):
                raise Undefined(f"{self.name} needs {name}, but the predictions contain none.")

    def compute(self, predictions: Predictions) -> Array:
        """u (n,) of a plain measure; Undefined if the predictions lack a field."""
        self.check(predictions)
        return self.checked(self.function, predictions)

    def checked(self, score: Callable[[Predictions], ArrayLike], predictions: Predictions) -> Array:
        """u (n,) by this measure or its fitted form; FaultyPart unless the measure returns one number per row."""
        with self._naming_faults():
            u = np.asarray(score(predictions))
        if u.shape != (len(predictions),) or u.dtype.kind not in "fiub":
            is_number = u.dtype.kind in "fiub"
            form = f"shape {u.shape} of {u.dtype}" if is_number else type(u.item() if u.ndim == 0 else u).__name__
            raise FaultyPlugin(
                f"The measure {self.name} ({source_file(self.function)}) returns {form} for {len(predictions)} rows: "
                "it must give one number per row."
            )
        if not (finite := np.isfinite(u)).all():
            row = int(np.argmin(finite))
            if not is_plugin_code(self.function):
                raise Undefined(f"{self.name} overflows in row {row}: its logits or embeddings are too large.")
            raise FaultyPlugin(
                f"The measure {self.name} ({source_file(self.function)}) returns {u[row]} in row {row}: it must give "
                "one finite number per row."
            )
        return u

    def fit(self, rows: Predictions) -> Any:
        """A measure fitted or tuned on these rows, with the options of a scorecard."""
        with self._naming_faults():
            return self.function(rows, **({} if self.scorecard_options is None else self.scorecard_options(len(rows))))

    def fit_checked(self, rows: Predictions) -> Callable[[Predictions], Array]:
        """Fit the measure; check its numbers unless it offers leave_one_out."""
        fitted = self.fit(rows)
        return fitted if hasattr(fitted, "leave_one_out") else partial(self.checked, fitted)

    @contextmanager
    def _naming_faults(self) -> Iterator[None]:
        """Turn errors of plug-in code into one that names the measure and its file; `checked` reports overflows."""
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                yield
        except (Undefined, MemoryError):
            raise
        except Exception as error:  # plug-in code can raise any error
            if not is_plugin_code(self.function):
                raise
            raise plugin_fault("measure", self.name, self.function, error) from error


registry: Registry[Measure] = Registry(
    "measure",
    aliases={
        "msp": ("msp", "mcp", "max_prob", "max_softmax", "max_softmax_probability", "softmax_response"),
        "max_logit": ("mls", "max_logit_score"),
        "energy": ("ebo", "energy_score"),
        "gap": ("margin", "softmax_margin", "confidence_margin"),
        "entropy": ("predictive_entropy", "softmax_entropy", "pe"),
        "mutual_information": ("mi", "bald"),
        "mahalanobis": ("maha", "mahalanobis_distance"),
        "mds_plus": ("mds+", "mahalanobis++"),
        "rmds": ("rmd", "relative_mahalanobis"),
        "rmds_plus": ("rmds+", "rmd++", "relative_mahalanobis++"),
        "kl_matching": ("klm",),
        "knn": ("deep_knn",),
        "gen": ("generalized_entropy",),
        "dempster_shafer": ("ds", "vacuity"),
    },
    others={
        "ddu": "DDU is a method (--method ddu); its density on training rows is the measure 'gmm'.",
        "deep_ensemble": ENSEMBLES,
        "deep_ensembles": ENSEMBLES,
        **dict.fromkeys(("odin", "openmax", "rankfeat", "gram", "godin", "vra", "ash_b", "ash_p", "she_react"), ""),
        **dict.fromkeys(("expected_energy", "variance", "predictive_variance", "jsd", "logit_norm"), ""),
    },
)


def measure(
    kind: Kind = "plain", *, needs: tuple[str, ...], name: str | None = None, **traits: Unpack[Traits]
) -> Callable[[F], F]:
    """Register a function of Predictions that needs these fields as a measure, and return it unchanged."""
    for field_name in needs:
        if field_name not in FIELDS:
            raise BadInput(f"A measure cannot need {field_name!r}. There are: {', '.join(FIELDS)}.")

    def register(function: F) -> F:
        if kind not in get_args(Kind):
            subject = f"The measure {name or function.__name__} ({source_file(function)})"
            raise BadInput(f"{subject} is of the kind {kind!r}: the kinds are {', '.join(get_args(Kind))}.")
        label = name or function.__name__
        registry.add(label, Measure(label, function, kind, needs, **traits))
        return function

    return register


def cached(function: Callable[Concatenate[Predictions, P], T]) -> Callable[Concatenate[Predictions, P], T]:
    """Cache the results of a function on its predictions, by its hashable options, so that measures share them."""
    parameters = signature(function)

    @wraps(function)
    def look_up(predictions: Predictions, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound = parameters.bind(predictions, *args, **kwargs)
        bound.apply_defaults()
        key = (function, *list(bound.arguments.values())[1:])
        results: dict[Hashable, T] = vars(predictions).setdefault("_results", {})
        if key not in results:
            results[key] = function(predictions, *args, **kwargs)
        return results[key]

    return look_up


# ---- measures of predictions by name

SCORE = "scores/"


def score_names(predictions: Predictions) -> list[str]:
    """Names of the scores in predictions that belong to no registered measure."""
    return [
        _called(score) for score in predictions.scores if score not in registry or "scores" not in registry[score].needs
    ]


def _called(score: str) -> str:
    """The reported name of a score: such as `logdet`, or `scores/entropy` if a measure has the same name."""
    return f"{SCORE}{score}" if score in registry else score


def find_measure(name: str, predictions: Predictions) -> Measure:
    """A registered measure, or a score in the predictions by name; `scores/NAME` is always the score."""
    score = name.removeprefix(SCORE)
    if name in registry:
        return registry[name]
    if score in predictions.scores:
        return Measure(_called(score), partial(stored_score, score, " in these predictions"), "plain", ("scores",))
    if score != name:
        available = ", ".join(f"{SCORE}{name}" for name in predictions.scores) or "none"
        raise BadInput(f"There is no score named {score!r} in these predictions. There are: {available}.")
    return registry[name]  # raises the error


def canonical(name: str, predictions: Predictions) -> str:
    """The registered name of a measure, or the name of a score, for any spelling or alias."""
    return name if name in predictions.scores or name.startswith(SCORE) else registry.canonical(name)


def uncertainty(name: str, predictions: Predictions) -> Array:
    """u (n,) by the name of a plain measure, or of a score in the predictions."""
    measure = find_measure(name, predictions)
    if measure.kind != "plain":
        names = ", ".join(sorted(registered.name for registered in registry.parts() if registered.kind == "plain"))
        reason = (
            "must be fitted first" if measure.kind in ("fitted", "tuned") else "needs more than one set of predictions"
        )
        raise BadInput(f"The measure {name!r} {reason}; take one of {names}.")
    return measure.compute(predictions)


def stored_score(name: str, ending: str, predictions: Predictions) -> Array:
    """A score in the predictions, read-only; `ending` completes the error if there is none."""
    if name not in predictions.scores:
        raise Undefined(f"There is no score named {name}{ending}.")
    score = np.asarray(predictions.scores[name], np.float64).view()
    score.flags.writeable = False
    return score
