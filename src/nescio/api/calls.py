"""Functions of options as functions of keyword parameters: names, defaults and checks are those of the options.

    evaluate = with_parameters(nescio.api.evaluation.evaluate)
    evaluate("test.npz", ood={"svhn": "svhn.npz"})    # of EvaluateOptions: files and ood

A text is read as on the command line. Paths, arrays, `Predictions`, lists, and mappings of names to these are accepted
where an option takes such texts.
"""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TypeVar

import numpy as np

from nescio.api.inputs import Named
from nescio.errors import BadInput
from nescio.options import REQUIRED, Leaf, build, is_tuple, leaves, refuse_idle, without_none
from nescio.predictions import Predictions
from nescio.specs import SpecError, write_assignment, write_items

T = TypeVar("T")
R = TypeVar("R")


def with_parameters(function: Callable[[T], R]) -> Callable[..., R]:
    """The function of one instance of options as a function of these options."""
    options = options_class(function)
    signature = signature_of(options, function.__name__)

    @wraps(function)
    def call(*arguments: object, **parameters: object) -> R:
        chosen = parameters.get
        extra = {leaf.key for leaf in leaves(options, chosen=lambda leaf: _text_or_none(chosen(leaf.key)))}
        more = {name: parameters.pop(name) for name in extra & parameters.keys() - signature.parameters.keys()}
        try:
            bound = signature.bind(*arguments, **parameters).arguments
        except TypeError as error:
            raise TypeError(f"{function.__name__}(): {error}") from None
        return function(options_from(options, bound | more))

    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {}
    return call


def options_class(function: Callable[[T], R]) -> type[T]:
    """The class of a function's only parameter."""
    hints = typing.get_type_hints(function)
    options: type[T] = hints[next(iter(inspect.signature(function).parameters))]
    return options


def signature_of(options: type, name: str = "") -> inspect.Signature:
    """The parameters of the options of a class: arguments by position, all others by keyword."""
    parameters = []
    for leaf in leaves(options):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if leaf.spec.positional else inspect.Parameter.KEYWORD_ONLY
        default = inspect.Parameter.empty if leaf.default is REQUIRED else leaf.default
        parameters.append(inspect.Parameter(leaf.key, kind, default=default, annotation=leaf.hint))
    return inspect.Signature(sorted(parameters, key=lambda parameter: parameter.kind))


def options_from(options: type[T], parameters: Mapping[str, object], start: T | None = None) -> T:
    """The instance of a class of options with these parameters; the others have their defaults.

    start  an instance with the defaults, in place of the class's
    """
    every = list(leaves(options, start, chosen=lambda leaf: _text_or_none(parameters.get(leaf.key))))
    by_name = {leaf.key: leaf for leaf in every}
    defaults = {leaf.path: leaf.default for leaf in every}
    values = {by_name[name].path: read_parameter(by_name[name], value) for name, value in parameters.items()}
    values = {path: value for path, value in values.items() if isinstance(value, np.ndarray) or value != defaults[path]}
    refuse_idle([leaf for leaf in every if leaf.path in values], lambda leaf: leaf.key)
    return build(options, start, values)


def read_parameter(leaf: Leaf, value: object) -> object:
    """The value of an option for a value of Python; BadInput names the parameter."""
    try:
        return _read(leaf, value)
    except SpecError as error:
        raise error.with_option(leaf.key) from None
    except BadInput as error:
        raise BadInput(str(error).replace(leaf.flag, leaf.key)) from None


def _read(leaf: Leaf, value: object) -> object:
    if value is None or value is leaf.default:
        return value
    if isinstance(value, Mapping):
        if leaf.spec.style == "whole":
            value = {name: write_items(map(str, _items(listed))) for name, listed in value.items()}
        value = tuple(_named(str(name), item) for name, listed in value.items() for item in _items(listed))
    if not is_tuple(leaf.hint):
        return _item(leaf, value, leaf.hint)
    if isinstance(value, str) and not leaf.spec.positional:
        return leaf.read_texts([value])
    item_hint = typing.get_args(without_none(leaf.hint))[0]
    items = _items(value)
    if any(isinstance(item, Predictions) for item in items):
        names = ["predictions"] if len(items) == 1 else [str(number) for number in range(len(items))]
        items = [
            Named(name, item) if isinstance(item, Predictions) else item
            for name, item in zip(names, items, strict=True)
        ]
    return tuple(_item(leaf, item, item_hint) for item in items)


def _items(value: object) -> list[object]:
    """The elements of a list; any other value is one element."""
    if isinstance(value, str | os.PathLike | Predictions | Named) or not isinstance(value, Iterable):
        return [value]
    return list(value)


def _named(name: str, value: object) -> object:
    """NAME=VALUE of a mapping's entry; predictions with their name."""
    return Named(name, value) if isinstance(value, Predictions) else write_assignment(name, str(value))


def _item(leaf: Leaf, value: object, hint: object) -> object:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return leaf.read(value, hint)
    if isinstance(value, Predictions):
        value = Named("predictions", value)
    kinds = typing.get_args(hint) or (hint,)
    if isinstance(value, Named | np.ndarray) and not ({Named, np.ndarray} & {typing.get_origin(k) or k for k in kinds}):
        raise BadInput(f"{leaf.key} takes no {type(value).__name__}.")
    if isinstance(value, bool) and bool not in kinds:
        raise BadInput(f"{leaf.key} is {leaf.expected}, not {value}.")
    if isinstance(value, int | np.integer) and float in kinds:
        return float(value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is not None and leaf.spec.parse is None and not _has_type(value, kinds):
        raise BadInput(f"{leaf.key} is {leaf.expected}, not {value!r}.")
    return value


def _has_type(value: object, kinds: Sequence[object]) -> bool:
    origins = [typing.get_origin(kind) or kind for kind in kinds]
    return any(isinstance(kind, type) and isinstance(value, kind) for kind in origins)


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
