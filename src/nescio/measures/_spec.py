"""What the registry knows of a measure, beside the function itself."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import BadInput, FaultyPlugin, Undefined
from nescio.predictions import Predictions
from nescio.registry import Registry, is_plugin_code, source_file

Kind = Literal[
    "plain",  # f(predictions) -> u (n,)
    "fitted",  # f(reference, **options) -> (f(predictions) -> u)
    "ensemble",  # f(…lists of Predictions, one per member…) -> u
    "gallery",  # f(predictions, views, siblings) -> u; the other rows are the gallery
    "tuned",  # f(labelled rows that the network was not trained on, **options) -> (f(predictions) -> u)
]
ENSEMBLES = "An ensemble is no measure: `nescio.stack` joins the predictions of its networks into one."
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
FIELDS = [registered.name for registered in fields(Predictions)]


@dataclass(frozen=True)
class Measure:
    """One registered measure. u is ALWAYS higher = less sure."""

    name: str
    function: Callable[..., Any]
    kind: Kind
    needs: tuple[str, ...]  # fields of Predictions that it reads: without them it is not called
    example: Mapping[str, Any] = field(default_factory=dict)  # options for the few rows of the contract
    fallback: str | None = None  # a field that it can do with where those are missing
    equivalent_to: str | None = None  # the measure that ranks every dump as this one does: reports hold that one alone
    needs_draws: bool = False  # it says something of several draws only
    slow: bool = False  # it takes as long as all light ones together: left out of large dumps unless it is wanted
    trains: bool = False  # it has a training loop of its own: left out of a first look
    scorecard_options: Callable[[int], Mapping[str, Any]] | None = (
        None  # the number of reference rows → options on a scorecard
    )

    @property
    def sentence(self) -> str:
        return (self.function.__doc__ or "").strip().split("\n")[0]

    def check(self, dump: Predictions, but: Sequence[str] = ()) -> None:
        """Raises Undefined where the dump lacks a field that the measure needs, unless it is one of `but`."""
        if self.fallback is not None and getattr(dump, self.fallback) is not None:
            return
        for name in self.needs:
            value = getattr(dump, name)
            if name not in but and (value is None or (isinstance(value, Mapping) and not value)):
                raise Undefined(f"{self.name} needs {name}, and there are none in this dump.")

    def compute(self, dump: Predictions) -> Array:
        """u (n,) of a plain measure; Undefined where the dump lacks what it needs."""
        self.check(dump)
        return self.checked(self.function, dump)

    def checked(self, score: Callable[[Predictions], Any], dump: Predictions) -> Array:
        """u (n,) by this measure, or by what it fitted; BadInput where it is not one number per row."""
        with self._naming_faults():
            u = np.asarray(score(dump))
        if u.shape != (len(dump),) or u.dtype.kind not in "fiub":
            what = (
                f"shape {u.shape} of {u.dtype}"
                if u.dtype.kind in "fiub"
                else type(u.item() if u.ndim == 0 else u).__name__
            )
            raise FaultyPlugin(
                f"The measure {self.name} ({source_file(self.function)}) returns {what} for {len(dump)} rows: it must "
                "give one number per row."
            )
        if is_plugin_code(self.function) and not (finite := np.isfinite(u)).all():
            row = int(np.argmin(finite))
            raise FaultyPlugin(
                f"The measure {self.name} ({source_file(self.function)}) returns {u[row]} in row {row}: it must give "
                "one finite number per row."
            )
        return u

    def fit(self, rows: Predictions) -> Any:
        """A fitted or tuned measure of these rows, as a scorecard shows it."""
        with self._naming_faults():
            return self.function(rows, **({} if self.scorecard_options is None else self.scorecard_options(len(rows))))

    def fit_checked(self, rows: Predictions) -> Callable[[Predictions], Array]:
        """`fit`, with checked numbers unless it can leave rows out itself."""
        fitted = self.fit(rows)
        return fitted if hasattr(fitted, "leave_one_out") else partial(self.checked, fitted)

    @contextmanager
    def _naming_faults(self) -> Iterator[None]:
        """Turns what the code of another package or file raises into a sentence that names the measure and its file."""
        try:
            yield
        except (Undefined, MemoryError):
            raise
        except Exception as error:  # another's code can raise anything
            if not is_plugin_code(self.function):
                raise
            reason = str(error) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
            where = f"The measure {self.name} ({source_file(self.function)})"
            raise FaultyPlugin(f"{where} fails: {reason.rstrip('.')}.") from error


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
    kind: Kind = "plain",
    *,
    needs: tuple[str, ...],
    name: str | None = None,
    example: Mapping[str, Any] | None = None,
    fallback: str | None = None,
    equivalent_to: str | None = None,
    needs_draws: bool = False,
    slow: bool = False,
    trains: bool = False,
    scorecard_options: Callable[[int], Mapping[str, Any]] | None = None,
) -> Callable[[F], F]:
    """Registers a function on Predictions as a measure and returns it unchanged.

    needs     fields of Predictions without which it is not called; unknown ones are refused
    example   options with which it works on 120 rows, 4 classes and 6 features, where its defaults do not
    fallback  a field that it can do with where those are missing
    alias     the measure that ranks every dump as this one does: reports hold that one alone
    several   it says something of several draws only
    heavy     it takes as long as all light ones together: left out of large dumps unless it is wanted
    trained   it has a training loop of its own: left out of a first look
    shown     the number of reference rows → its options on a scorecard, where these are not its defaults
    """
    for field_name in needs:
        if field_name not in FIELDS:
            raise BadInput(f"A measure cannot need {field_name!r}. There are: {', '.join(FIELDS)}.")

    def register(function: F) -> F:
        if kind not in get_args(Kind):
            where = f"The measure {name or function.__name__} ({source_file(function)})"
            raise BadInput(f"{where} is of the kind {kind!r}: the kinds are {', '.join(get_args(Kind))}.")
        label = name or function.__name__
        registered = Measure(
            label,
            function,
            kind,
            needs,
            dict(example or {}),
            fallback,
            equivalent_to,
            needs_draws,
            slow,
            trains,
            scorecard_options,
        )
        registry.add(label, registered)
        return function

    return register


def cached(dump: Predictions, key: Hashable, make: Callable[[], T]) -> T:
    """What `make` gives, computed once for a dump and kept on it as long as it lives: measures share their work."""
    cache: dict[Hashable, Any] | None = getattr(dump, "_kept", None)
    if cache is None:
        cache = {}
        object.__setattr__(dump, "_kept", cache)
    if key not in cache:
        cache[key] = make()
    value: T = cache[key]
    return value


# ---- measures of a dump by name

SCORE = "scores/"


def score_names(dump: Predictions) -> list[str]:
    """The scores of a dump that no registered measure reads, as `named` calls them."""
    return [_called(score) for score in dump.scores if score not in registry or "scores" not in registry[score].needs]


def _called(score: str) -> str:
    """`logdet`, or `scores/entropy` where a measure has its name."""
    return f"{SCORE}{score}" if score in registry else score


def find_measure(name: str, dump: Predictions) -> Measure:
    """A registered measure, or a score of the dump by its name; `scores/NAME` is always the score."""
    score = name.removeprefix(SCORE)
    if name in registry:
        return registry[name]
    if score in dump.scores:
        return Measure(_called(score), partial(_score, score), "plain", ("scores",))
    if score != name:
        there = ", ".join(f"{SCORE}{name}" for name in dump.scores) or "none"
        raise BadInput(f"There is no score named {score!r} in this dump. There are: {there}.")
    return registry[name]  # which refuses it


def canonical(name: str, dump: Predictions) -> str:
    """The name of a measure or of a score of the dump, for any spelling or alias of it."""
    return name if name in dump.scores or name.startswith(SCORE) else registry.canonical(name)


def uncertainty(name: str, dump: Predictions) -> Array:
    """u (n,) of the rows of a dump by the name of a measure that needs nothing else, or of a score of the dump."""
    measure = find_measure(name, dump)
    if measure.kind != "plain":
        names = ", ".join(sorted(registered.name for registered in registry.parts() if registered.kind == "plain"))
        why = (
            "must be fitted first" if measure.kind in ("fitted", "tuned") else "needs more than one set of predictions"
        )
        raise BadInput(f"The measure {name!r} {why}; take one of {names}.")
    return measure.compute(dump)


def _score(name: str, dump: Predictions) -> Any:
    if name not in dump.scores:
        raise Undefined(f"There is no score named {name!r} in this dump.")
    return np.asarray(dump.scores[name], np.float64)
