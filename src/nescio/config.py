"""What a model is made from: trials, recipes with their search ranges, the training budget, and seeds.

Everything here is a frozen dataclass that `canonical` turns into plain JSON. Two equal objects have equal JSON, and so
one key in the store; any field that differs makes another key.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import random
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal, Protocol, TypeVar

from nescio.errors import BadInput

# ---- plain JSON and seeds


def canonical(value: Any) -> Any:
    """The value as plain JSON; a dataclass becomes {"kind": its qualified name, every field}."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        if not math.isfinite(value):
            raise BadInput(f"{float(value)} cannot stand in a recipe: it must be a finite number.")
        return float(value)
    if isinstance(value, (tuple, list)):
        return [canonical(item) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise BadInput("A mapping in a recipe must have texts as names.")
        return {name: canonical(item) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        plain = {each.name: canonical(getattr(value, each.name)) for each in fields(value)}
        if "kind" in plain:
            raise BadInput(f"{_kind(type(value))} has a field named 'kind', which names the class: rename the field.")
        return {"kind": _kind(type(value)), **plain}
    raise BadInput(
        f"A recipe cannot hold {_kind(type(value))}: use numbers, texts, True, False, None, tuples and dataclasses."
    )


def to_json(value: Any) -> str:
    """Canonical JSON: sorted names, no spaces, floats by their shortest exact decimal."""
    return json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def seed_for(*parts: Any) -> int:
    """A 63-bit seed that is a function of the parts only: the top bits of sha256 of their canonical JSON."""
    digest = hashlib.sha256(to_json(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _kind(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


# ---- search ranges


class Search(Protocol):
    """A range of one field; `rng` needs random() only, `trial` is an Optuna trial."""

    def draw(self, rng: random.Random) -> Any: ...

    def suggest(self, trial: Any, name: str) -> Any: ...


def _short(x: float) -> float:
    """Six digits: readable in tables, and the last bit of this machine's exp() does not move the store's key."""
    return float(f"{x:.6g}")


@dataclass(frozen=True)
class Uniform:
    """A number between low and high, every one as likely."""

    low: float
    high: float

    def draw(self, rng: random.Random) -> float:
        return _short(self.low + (self.high - self.low) * rng.random())

    def suggest(self, trial: Any, name: str) -> float:
        return float(trial.suggest_float(name, self.low, self.high))


@dataclass(frozen=True)
class LogUniform:
    """A positive number between low and high whose logarithm is uniform."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise BadInput(f"log_uniform({self.low}, {self.high}): the range needs 0 < low < high.")

    def draw(self, rng: random.Random) -> float:
        return _short(self.low * (self.high / self.low) ** rng.random())

    def suggest(self, trial: Any, name: str) -> float:
        return float(trial.suggest_float(name, self.low, self.high, log=True))


@dataclass(frozen=True)
class Integers:
    """A whole number from low to high, both included."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return self.low + int(rng.random() * (self.high - self.low + 1))

    def suggest(self, trial: Any, name: str) -> int:
        return int(trial.suggest_int(name, self.low, self.high))


@dataclass(frozen=True)
class Choice:
    """One of the values, every one as likely."""

    values: tuple[Any, ...]

    def draw(self, rng: random.Random) -> Any:
        return self.values[int(rng.random() * len(self.values))]

    def suggest(self, trial: Any, name: str) -> Any:
        named = {str(value): value for value in self.values}  # Optuna keeps texts and numbers, not tuples
        return named[trial.suggest_categorical(name, list(named))]


uniform, log_uniform, integers = Uniform, LogUniform, Integers


def choice(*values: Any) -> Choice:
    return Choice(values)


# ---- recipes


def hparam(default: Any, search: Search | None = None, help: str = "") -> Any:
    """A field of a recipe: its default, where a search may look, and one sentence for people."""
    return field(default=default, metadata={"search": search, "help": help})


class Checked:
    """A frozen dataclass whose values fit its annotations: 1 becomes 1.0 in a float field, a list a tuple."""

    def __post_init__(self) -> None:
        cls: type = type(self)
        if inspect.get_annotations(cls) and "__dataclass_fields__" not in vars(cls):
            raise BadInput(f"{_kind(cls)} has fields but is no dataclass: put @dataclass(frozen=True) above it.")
        for name, hint in _hints(cls).items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, _fit(value, hint))
            except TypeError:
                wanted = str(getattr(hint, "__name__", hint) if isinstance(hint, type) else hint)
                raise BadInput(
                    f"{cls.__name__}.{name} is {value!r}: it must be {wanted.replace('typing.', '')}."
                ) from None
        self.check()

    def check(self) -> None:
        """Raises BadInput when the values do not make sense together."""

    def need(self, least: float, *names: str, above: bool = False) -> None:
        """Raises BadInput when one of the fields is given and is below `least` (or, with `above`, equal to it)."""
        for name in names:
            value = getattr(self, name)
            if value is not None and (value < least or (above and value == least)):
                bound = f"above {least:g}" if above else f"at least {least:g}"
                raise BadInput(f"{type(self).__name__}.{name} is {value}: it must be {bound}.")


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {each.name: hints[each.name] for each in fields(cls)}


def _fit(value: Any, hint: Any) -> Any:
    """The value in the form that the annotation asks for; TypeError if it does not fit."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        for each in sorted(arguments, key=lambda kind: kind is not type(value)):  # its own type first
            try:
                return _fit(value, each)
            except TypeError:
                continue
    elif origin is Literal:
        if any(value == each and type(value) is type(each) for each in arguments):
            return value
    elif hint is float:
        if isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    elif hint is int:
        if isinstance(value, Integral) and not isinstance(value, bool):
            return int(value)
    elif hint is tuple or origin is tuple:
        if isinstance(value, (tuple, list)):
            kinds = arguments or (Any, ...)
            kinds = kinds[:1] * len(value) if kinds[-1] is ... else kinds
            if len(kinds) == len(value):
                return tuple(_fit(item, kind) for item, kind in zip(value, kinds, strict=True))
    elif isinstance(value, origin or hint):
        return value
    raise TypeError


@dataclass(frozen=True)
class Recipe(Checked):
    """What one method can be told: the base of a frozen dataclass beside each method, every field with a default."""


R = TypeVar("R")


def searched(recipe: type) -> dict[str, Search]:
    """The fields that a search may move, with their ranges."""
    return {each.name: each.metadata["search"] for each in fields(recipe) if each.metadata.get("search") is not None}


def draw(recipe: type[R], trial: int, seed: int = 0) -> R:
    """Trial 0 is the defaults; any other draws each searched field from a stream of its own.

    A new field therefore does not move the draws of the others. random.Random is used because its random() is
    promised to stay the same in later versions, which NumPy's generators are not.
    """
    default = recipe()
    if trial == 0:
        return default
    drawn = {
        name: search.draw(random.Random(seed_for("hparam", recipe.__qualname__, name, trial, seed)))
        for name, search in searched(recipe).items()
    }
    return replace(default, **drawn)  # type: ignore[type-var]


def suggest(recipe: type[R], trial: Any) -> R:
    """The searched fields as an Optuna trial suggests them."""
    return recipe(**{name: search.suggest(trial, name) for name, search in searched(recipe).items()})


# ---- trials


@dataclass(frozen=True)
class Training(Checked):
    """The budget; the defaults are those of UIMNET, "Optimization": SGD, 100 epochs, batch 256, rate ÷ 10 every 30."""

    optimizer: Literal["sgd", "adamw", "lamb"] = "sgd"
    rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    decay: float = 1e-4
    epochs: int = 100
    batch: int = 256
    schedule: Literal["step", "cosine", "constant"] = "step"
    every: int = 30  # step: rate × factor after so many epochs
    factor: float = 0.1
    warmup: float = 0.0  # epochs over which the rate rises from 0
    accumulate: int = 1  # parts into which a batch is cut, to need less memory
    clip: float | None = None  # largest norm of the gradient
    augment: Literal["none", "shift", "crop-flip", "full"] = "crop-flip"
    precision: Literal["auto", "float32", "bf16"] = "auto"
    compile: bool = False

    def check(self) -> None:
        self.need(0, "rate", "factor", "clip", above=True)
        self.need(1, "epochs", "batch", "every", "accumulate")
        self.need(0, "momentum", "decay", "warmup")


@dataclass(frozen=True, kw_only=True)
class Trial(Checked):
    """One network to train: method, data, backbone, budget and seeds."""

    method: str
    recipe: Recipe
    data: str
    backbone: str
    training: Training = Training()
    classes: tuple[int, ...] | None = None  # labels that are in-domain, in their new order; None: all
    spectral: float | None = None  # target norm of spectral normalisation; None: off
    trial: int = 0
    data_seed: int = 0
    init_seed: int = 0

    def check(self) -> None:
        self.need(0, "spectral", above=True)
        self.need(0, "trial", "data_seed", "init_seed")
        if self.classes is not None and len(set(self.classes)) != max(1, len(self.classes)):
            raise BadInput("Trial.classes must name at least one class, and none twice.")

    def describe(self) -> dict[str, Any]:
        """The columns of a row that say which network this is."""
        return {
            "dataset": self.data,
            "backbone": self.backbone,
            "spectral": self.spectral,
            "method": self.method,
            "trial": self.trial,
            "data_seed": self.data_seed,
            "init_seed": self.init_seed,
        }


def from_json(text: str, recipe_of: Callable[[str], type[Recipe]]) -> Trial:
    """The trial that `to_json` wrote; recipe_of(method name) is that method's recipe class."""
    return from_plain(json.loads(text), recipe_of)


def from_plain(plain: Any, recipe_of: Callable[[str], type[Recipe]]) -> Trial:
    """The trial whose `canonical` form this is."""
    values = _values(Trial, plain)
    recipe = recipe_of(values["method"])
    values["recipe"] = recipe(**_values(recipe, values["recipe"]))
    values["training"] = Training(**_values(Training, values["training"]))
    return Trial(**values)


def _values(cls: type, plain: Any) -> dict[str, Any]:
    """The fields of a dataclass's plain form. A field too many or too few would silently be another trial."""
    if not isinstance(plain, dict) or plain.get("kind") != _kind(cls):
        found = plain.get("kind") if isinstance(plain, dict) else plain
        raise BadInput(f"A {_kind(cls)} was expected, and {found!r} was found.")
    values = {name: value for name, value in plain.items() if name != "kind"}
    names = {each.name for each in fields(cls)}
    if names != values.keys():
        odd = ", ".join(sorted(names ^ values.keys()))
        raise BadInput(f"This {cls.__name__} was written by another version of nescio: it differs in {odd}.")
    return values
