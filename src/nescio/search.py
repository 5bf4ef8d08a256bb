"""Hyper-parameters: recipes whose fields carry their default and their search range, and how trials draw them."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar

from nescio.errors import BadInput
from nescio.identity import Checked, seed_for, tag

# ---- search ranges


class Search(Protocol):
    """A range of one field; `rng` needs random() only, `trial` is an Optuna trial."""

    def draw(self, rng: random.Random) -> Any: ...

    def suggest(self, trial: Any, name: str) -> Any: ...


def _short(x: float) -> float:
    """Six digits: readable in tables, and the last bit of this machine's exp() does not move the store's key."""
    return float(f"{x:.6g}")


@tag("uniform")
@dataclass(frozen=True)
class Uniform:
    """A number between low and high, every one as likely."""

    low: float
    high: float

    def draw(self, rng: random.Random) -> float:
        return _short(self.low + (self.high - self.low) * rng.random())

    def suggest(self, trial: Any, name: str) -> float:
        return float(trial.suggest_float(name, self.low, self.high))


@tag("log-uniform")
@dataclass(frozen=True)
class LogUniform:
    """A positive number between low and high whose logarithm is uniform."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise BadInput(f"log_uniform({self.low}, {self.high}): the range needs 0 < low < high.")

    def draw(self, rng: random.Random) -> float:
        return self.at(rng.random())

    def at(self, share: float) -> float:
        """The value so far along the way from low, 0, to high, 1."""
        return _short(self.low * (self.high / self.low) ** share)

    def grid(self, count: int) -> tuple[float, ...]:
        """So many values from low to high in equal ratios."""
        return tuple(self.at(number / max(1, count - 1)) for number in range(count))

    def suggest(self, trial: Any, name: str) -> float:
        return float(trial.suggest_float(name, self.low, self.high, log=True))


@tag("integers")
@dataclass(frozen=True)
class Integers:
    """A whole number from low to high, both included."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return self.low + int(rng.random() * (self.high - self.low + 1))

    def suggest(self, trial: Any, name: str) -> int:
        return int(trial.suggest_int(name, self.low, self.high))


@tag("choice")
@dataclass(frozen=True)
class OneOf:
    """One of the values, every one as likely."""

    values: tuple[Any, ...]

    def draw(self, rng: random.Random) -> Any:
        return self.values[int(rng.random() * len(self.values))]

    def suggest(self, trial: Any, name: str) -> Any:
        named = {str(value): value for value in self.values}  # Optuna keeps texts and numbers, not tuples
        return named[trial.suggest_categorical(name, list(named))]


uniform, log_uniform, integers = Uniform, LogUniform, Integers


def choice(*values: Any) -> OneOf:
    return OneOf(values)


# ---- recipes


def hparam(default: Any, search: Search | None = None, help: str = "", **later: Any) -> Any:
    """A field of a recipe: its default, where a search may look, and one sentence for people.

    A field that came after its recipe was first used names the value it was introduced with: `introduced=…`.
    """
    return field(default=default, metadata={"search": search, "help": help, **later})


@tag("recipe")
@dataclass(frozen=True)
class Recipe(Checked):
    """The hyper-parameters of one method: a frozen dataclass beside it, every field with a default."""


R = TypeVar("R")


def searched(recipe: type) -> dict[str, Search]:
    """The fields that a search may move, with their ranges."""
    return {f.name: f.metadata["search"] for f in fields(recipe) if f.metadata.get("search") is not None}


def draw(recipe: type[R], trial: int, seed: int = 0) -> R:
    """Trial 0 is the defaults; any other draws each searched field from a stream of its own.

    A new field therefore does not move the draws of the others. The stream has the field's name and not the method's:
    a field that methods share, such as the learning rate, is drawn alike for all of them, so that trial n compares
    methods and not learning rates. random.Random is used because its random() is promised to stay the same in later
    versions, which NumPy's generators are not.
    """
    default = recipe()
    if trial == 0:
        return default
    drawn = {
        name: search.draw(random.Random(seed_for("hparam", name, trial, seed)))
        for name, search in searched(recipe).items()
    }
    return replace(default, **drawn)  # type: ignore[type-var]


def suggest(recipe: type[R], trial: Any) -> R:
    """The searched fields as an Optuna trial suggests them."""
    return recipe(**{name: search.suggest(trial, name) for name, search in searched(recipe).items()})


STARTUP = 4  # rounds before Optuna's model decides; the usual ten would leave it nothing of UIMNET's ten
L = TypeVar("L", bound=Hashable)


def guided(
    recipes: Mapping[L, type[R]],
    rounds: int,
    evaluate: Callable[[int, Mapping[L, R]], Mapping[L, float | None]],
    seed: int = 0,
) -> None:
    """Rounds of trials that Optuna suggests (TPE) from the results of those before; round 0 is the defaults.

    recipes   the recipe class of everything that is searched, each on its own
    evaluate  round and recipes in, for each of them the number to make small out; None where it failed
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    studies = {}
    for line, recipe in recipes.items():
        sampler = optuna.samplers.TPESampler(seed=seed_for("optuna", line, seed) % 2**32, n_startup_trials=STARTUP)
        studies[line] = optuna.create_study(direction="minimize", sampler=sampler)
        studies[line].enqueue_trial(_defaults(recipe))
    for number in range(rounds):
        trials = {line: study.ask() for line, study in studies.items()}
        values = evaluate(number, {line: suggest(recipes[line], trial) for line, trial in trials.items()})
        for line, trial in trials.items():
            if (value := values[line]) is None:  # it says nothing, and stops nothing
                studies[line].tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                studies[line].tell(trial, value)


def _defaults(recipe: type) -> dict[str, Any]:
    """The searched fields' defaults as Optuna keeps them: choices are texts."""
    default = recipe()
    values = {name: (getattr(default, name), search) for name, search in searched(recipe).items()}
    return {name: str(value) if isinstance(search, OneOf) else value for name, (value, search) in values.items()}
