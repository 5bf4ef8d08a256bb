"""Hyper-parameters of methods: fields with a default and a search range, and how trials draw their values."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nescio.errors import BadInput, did_you_mean
from nescio.identity import Validated, names_in_keys, seed_for, tag
from nescio.specs import literal

if TYPE_CHECKING:
    from optuna import Trial as OptunaTrial

# ---- search ranges


class Search(Protocol):
    """A range of one field; `rng` needs random() only."""

    def draw(self, rng: random.Random) -> object: ...

    def suggest(self, trial: OptunaTrial, name: str) -> object: ...

    def beyond(self, value: float) -> Search | None: ...  # a wider range if the value is near a bound, otherwise None


def _short(x: float) -> float:
    """Round to six digits: readable in tables, and keys do not depend on the last bit of exp()."""
    return float(f"{x:.6g}")


NEAR = 0.05  # distance from a bound, as a share of the range, that counts as near


def _widened_range(low: float, high: float, value: float, least: float = -math.inf) -> tuple[float, float] | None:
    """The range, doubled at the bound near the value, but not below `least`; None if no bound is near."""
    width = high - low
    if value - low <= NEAR * width:
        return max(low - width, least), high
    return (low, high + width) if high - value <= NEAR * width else None


def _lower_limit(low: float) -> float:
    """The lowest value of an extended range: positive ranges stay positive."""
    return low / 2 if low > 0 else -math.inf


@tag("uniform")
@dataclass(frozen=True)
class Uniform:
    """A uniform random number between low and high."""

    low: float
    high: float

    def draw(self, rng: random.Random) -> float:
        return _short(self.low + (self.high - self.low) * rng.random())

    def suggest(self, trial: OptunaTrial, name: str) -> float:
        return float(trial.suggest_float(name, self.low, self.high))

    def beyond(self, value: float) -> Uniform | None:
        bounds = _widened_range(self.low, self.high, value, _lower_limit(self.low))
        return Uniform(*bounds) if bounds else None


@tag("log-uniform")
@dataclass(frozen=True)
class LogUniform:
    """A log-uniform random number between low and high."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise BadInput(f"log_uniform({self.low}, {self.high}): the range needs 0 < low < high.")

    def draw(self, rng: random.Random) -> float:
        return self.quantile(rng.random())

    def quantile(self, share: float) -> float:
        """The value at a share of the range in log space: 0 is low, 1 is high."""
        return _short(self.low * (self.high / self.low) ** share)

    def grid(self, count: int) -> tuple[float, ...]:
        """`count` values from low to high in equal ratios."""
        return tuple(self.quantile(number / max(1, count - 1)) for number in range(count))

    def suggest(self, trial: OptunaTrial, name: str) -> float:
        return float(trial.suggest_float(name, self.low, self.high, log=True))

    def beyond(self, value: float) -> LogUniform | None:
        bounds = _widened_range(*(math.log(each) for each in (self.low, self.high, value)))
        return LogUniform(*(_short(math.exp(bound)) for bound in bounds)) if bounds else None


@tag("integers")
@dataclass(frozen=True)
class Integers:
    """A uniform random integer from low to high, inclusive."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return self.low + int(rng.random() * (self.high - self.low + 1))

    def suggest(self, trial: OptunaTrial, name: str) -> int:
        return int(trial.suggest_int(name, self.low, self.high))

    def beyond(self, value: int) -> Integers | None:
        bounds = _widened_range(self.low, self.high, value, _lower_limit(self.low))
        return Integers(*(int(bound) for bound in bounds)) if bounds else None


@tag("choice")
@dataclass(frozen=True)
class OneOf:
    """One of the values, with equal probability."""

    values: tuple[Any, ...]

    def draw(self, rng: random.Random) -> object:
        return self.values[int(rng.random() * len(self.values))]

    def suggest(self, trial: OptunaTrial, name: str) -> object:
        named = {str(value): value for value in self.values}  # Optuna keeps texts and numbers, not tuples
        return named[trial.suggest_categorical(name, list(named))]

    def beyond(self, value: object) -> None:
        return None


uniform, log_uniform, integers = Uniform, LogUniform, Integers


def choice(*values: object) -> OneOf:
    return OneOf(values)


# ---- hyper-parameters


BOUNDS: dict[str, Callable[[float, float], bool]] = {"above": gt, "at_least": ge, "below": lt, "at_most": le}


def hparam(default: object, search: Search | None = None, help: str = "", **more: object) -> Any:
    """A field of the hyper-parameters: its default, its search range, and a description.

    above, at_least, below, at_most  bounds of its values; None is always allowed
    introduced  of a field added later, the value with which older trials were run
    in_keys     of a renamed field, its former name, which keys and draws keep
    """
    return field(default=default, metadata={"search": search, "help": help, **more})


@tag("recipe")  # in the keys and seeds of finished studies
@dataclass(frozen=True)
class HParams(Validated):
    """Hyper-parameters of one method: a frozen dataclass whose fields all have defaults."""

    def check(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            for bound, allows in BOUNDS.items():
                if bound in entry.metadata and value is not None and not allows(value, entry.metadata[bound]):
                    limits = f"{bound.replace('_', ' ')} {entry.metadata[bound]:g}"
                    raise BadInput(f"{type(self).__name__}.{entry.name} is {value}: it must be {limits}.")


R = TypeVar("R", bound=HParams)


def searched(hparams: type) -> dict[str, Search]:
    """The searched fields, with their ranges."""
    return {f.name: f.metadata["search"] for f in fields(hparams) if f.metadata.get("search") is not None}


def with_values(hparams: R, pairs: Iterable[tuple[str, str]], method: str) -> R:
    """The hyper-parameters with other values of some fields."""
    names = [entry.name for entry in fields(hparams)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, text in pairs:
        if name not in names:
            hint = did_you_mean(name, names)
            raise BadInput(f"The method {method} has no setting {name!r}.{hint} It has: {', '.join(names)}.")
        if name in values:
            raise BadInput(f"{name} of {method} is given twice.")
        values[name] = literal(text)
    try:
        return replace(hparams, **values)  # type: ignore[type-var]
    except BadInput as error:  # names the typed method
        raise BadInput(str(error).replace(f"{type(hparams).__name__}.", f"{method}.", 1)) from None


def draw(hparams: type[R], trial: int, seed: int = 0) -> R:
    """Trial 0 has the defaults; other trials draw each searched field from a separate stream.

    A new field therefore does not change the draws of the others. The stream has the field's name and not the method's:
    a field shared by methods, such as the learning rate, has equal draws for all, so trial n compares methods and not
    learning rates. random.Random is used because its random() is stable across Python versions; NumPy's generators are
    not.
    """
    default = hparams()
    if trial == 0:
        return default
    cls: type = hparams
    keys = names_in_keys(cls)
    drawn = {
        name: search.draw(random.Random(seed_for("hparam", keys[name], trial, seed)))
        for name, search in searched(hparams).items()
    }
    return replace(default, **drawn)  # type: ignore[type-var]


def suggest(hparams: type[R], trial: OptunaTrial, ranges: Mapping[str, Search] | None = None) -> R:
    """The searched fields as suggested by an Optuna trial, in their ranges or in given ones."""
    return hparams(**{name: search.suggest(trial, name) for name, search in (ranges or searched(hparams)).items()})


def extended(best: HParams, ranges: Mapping[str, Search]) -> dict[str, Search] | None:
    """The ranges, widened for fields with the best value near a bound; None if there is no such field."""
    wider = {}
    for name, search in ranges.items():
        if (widened := search.beyond(getattr(best, name))) is not None and _allowed(best, name, widened):
            wider[name] = widened
    return {**ranges, **wider} if wider else None


def _allowed(hparams: HParams, name: str, search: Search) -> bool:
    """Whether both bounds of a range are valid values."""
    try:
        return all(replace(hparams, **{name: bound}) is not None for bound in (search.low, search.high))  # type: ignore[attr-defined]
    except BadInput:
        return False


STARTUP = 4  # random rounds before Optuna's model is used; its default of ten equals UIMNET's number of rounds
L = TypeVar("L", bound=Hashable)


def guided(
    hparam_sets: Mapping[L, type[R]],
    rounds: int,
    evaluate: Callable[[int, Mapping[L, R]], Mapping[L, float | None]],
    seed: int = 0,
    more: int = 0,
) -> dict[L, Mapping[str, Search]]:
    """Run rounds of trials suggested by Optuna (TPE) from earlier results; round 0 has the defaults.

    hparam_sets  the class of hyper-parameters of all searched methods
    evaluate  round and hyper-parameters in, the number to minimise for each of them out; None if it failed
    more      additional rounds with a widened range, if the best value is near a bound
    returns   the final ranges
    """
    ranges: dict[L, Mapping[str, Search]] = {line: searched(hparams) for line, hparams in hparam_sets.items()}
    if rounds == 1 and not more:  # defaults only: Optuna is not needed
        evaluate(0, {line: hparams() for line, hparams in hparam_sets.items()})
        return ranges
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    studies = {}
    for line, hparams in hparam_sets.items():
        sampler = optuna.samplers.TPESampler(seed=seed_for("optuna", line, seed) % 2**32, n_startup_trials=STARTUP)
        studies[line] = optuna.create_study(direction="minimize", sampler=sampler)
        studies[line].enqueue_trial(_defaults(hparams))
    best: dict[L, tuple[float, R]] = {}
    lines = list(hparam_sets)
    for number in range(rounds + more):
        if number == rounds:
            wider = {line: extended(best[line][1], ranges[line]) for line in lines if line in best}
            lines = [line for line, extended_ranges in wider.items() if extended_ranges]
            ranges |= {line: extended_ranges for line, extended_ranges in wider.items() if extended_ranges}
        if not lines:
            break
        trials = {line: studies[line].ask() for line in lines}
        suggested = {line: suggest(hparam_sets[line], trial, ranges[line]) for line, trial in trials.items()}
        values = evaluate(number, suggested)
        for line, trial in trials.items():
            if (value := values[line]) is None:  # a failed trial
                studies[line].tell(trial, state=optuna.trial.TrialState.FAIL)
                continue
            studies[line].tell(trial, value)
            best[line] = min(
                best.get(line, (value, suggested[line])), (value, suggested[line]), key=lambda result: result[0]
            )
    return ranges


def _defaults(hparams: type) -> dict[str, object]:
    """The searched fields' defaults in Optuna's format: choices are texts."""
    default = hparams()
    values = {name: (getattr(default, name), search) for name, search in searched(hparams).items()}
    return {name: str(value) if isinstance(search, OneOf) else value for name, (value, search) in values.items()}
