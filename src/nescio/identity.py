"""Identity of work: canonical JSON of settings, from which keys and seeds are computed.

Settings are frozen dataclasses. Each has a stable tag, so that moving or renaming its class changes no key. A field
added to a class in use is omitted from keys while it has the value that it was introduced with:

    @tag("training")
    @dataclass(frozen=True)
    class Training(Validated):
        rate: float = 0.1
        flat: float = added_field(0.0)                             # added later: old keys stay valid
        border: str = added_field("reflect", introduced="black")   # default changed since: new work has a new key

The introduced value is the one of old work. It never changes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal, TypeVar

from nescio.errors import BadInput

INTRODUCED = "introduced"  # name in a field's metadata
IN_KEYS = "in_keys"  # likewise: the name in keys and seeds of a field that was renamed
VALUES_IN_KEYS = "values_in_keys"  # likewise: value → former value, of values that were renamed
KIND = "kind"  # name of a dataclass's tag in plain JSON
C = TypeVar("C", bound=type)
_tags: dict[str, str] = {}  # tag → the class that has it, as module and name


# ---- tags and fields


def tag(name: str) -> Callable[[C], C]:
    """Set the name of a dataclass in keys."""

    def mark(cls: C) -> C:
        owner = f"{cls.__module__}.{cls.__qualname__}"
        if _tags.setdefault(name, owner) != owner:
            raise BadInput(f"Two classes have the tag {name!r}: {_tags[name]} and {owner}. Give one of them another.")
        cls.__tag__ = name  # type: ignore[attr-defined]
        return cls

    return mark


def tag_of(cls: type) -> str:
    """The tag of a dataclass; a subclass does not inherit it."""
    if "__tag__" not in vars(cls):
        raise BadInput(f'{cls.__module__}.{cls.__qualname__} has no tag: put @tag("…") above it, a name for good.')
    return str(vars(cls)["__tag__"])


def has_tag(cls: type) -> bool:
    return "__tag__" in vars(cls)


@cache
def names_in_keys(cls: type) -> dict[str, str]:
    """Field → its name in keys and seeds: its `in_keys` in the class or a base class, else the field's name."""
    names = {attribute.name: attribute.name for attribute in fields(cls)}
    for base in reversed(cls.__mro__):
        for attribute in vars(base).get("__dataclass_fields__", {}).values():
            if attribute.name in names:  # class variables are listed there too
                names[attribute.name] = attribute.metadata.get(IN_KEYS) or names[attribute.name]
    return names


def added_field(default: Any, *, introduced: Any = dataclasses.MISSING, **metadata: Any) -> Any:
    """A field added to a class in use: it is omitted from keys while it has its introduced value.

    introduced  the default when the field was added; required if the default changes later
    """
    initial = default if introduced is dataclasses.MISSING else introduced
    return field(default=default, metadata={INTRODUCED: initial, **metadata})


# ---- names of content


class ContentName(str):
    """A text that names content by a path. Keys and seeds use its digest `content`, not the path."""

    content: str

    def __new__(cls, name: str, content: str) -> ContentName:
        renamed = super().__new__(cls, name)
        renamed.content = content
        return renamed

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return str(self), self.content


def map_content(name: str, change: Callable[[str], str]) -> str:
    """Apply a change to a name, and to its content if it is a ContentName."""
    renamed = change(str(name))
    return ContentName(renamed, change(name.content)) if isinstance(name, ContentName) else renamed


PLAIN = (str, int, bool)  # plain types, checked first because they are by far the most common


def content_names(value: object) -> dict[str, ContentName]:
    """Content → its name, for all content names in a config."""
    if value is None or type(value) in PLAIN:
        return {}
    if isinstance(value, ContentName):
        return {value.content: value}
    inner: Iterable[object] = ()
    if isinstance(value, (tuple, list)):
        inner = value
    elif isinstance(value, Mapping):
        inner = value.values()
    elif is_dataclass(value) and not isinstance(value, type):
        inner = (getattr(value, attribute.name) for attribute in fields(value))
    return {content: name for item in inner for content, name in content_names(item).items()}


# ---- plain JSON and seeds


WORDS = {float: "a number", int: "a whole number", bool: "True or False", str: "a text"}


def canonical(value: object) -> Any:
    """The value as plain JSON; a dataclass becomes {"kind": its tag, its fields}."""
    if value is None or type(value) in PLAIN:
        return value
    if isinstance(value, ContentName):
        return value.content
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [canonical(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _plain_fields(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        if not math.isfinite(value):
            raise BadInput(f"{float(value)} is not allowed in a config: it must be a finite number.")
        return float(value)
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise BadInput("The keys of a mapping in a config must be texts.")
        return {name: canonical(item) for name, item in value.items()}
    cls = type(value)
    raise BadInput(
        f"A config cannot contain {cls.__module__}.{cls.__qualname__}: "
        "use numbers, texts, True, False, None, tuples and dataclasses."
    )


def _plain_fields(value: object) -> dict[str, object]:
    cls: type = type(value)
    plain: dict[str, object] = {KIND: tag_of(cls)}
    for attribute in fields(cls):
        if attribute.name == KIND:
            raise BadInput(f"{cls.__qualname__} has a field named 'kind', which names the class: rename the field.")
        plain_value = canonical(getattr(value, attribute.name))
        if INTRODUCED not in attribute.metadata or plain_value != canonical(attribute.metadata[INTRODUCED]):
            former = attribute.metadata.get(VALUES_IN_KEYS)
            plain[names_in_keys(cls)[attribute.name]] = former.get(plain_value, plain_value) if former else plain_value
    return plain


def to_json(value: object) -> str:
    """Canonical JSON: sorted names, no spaces, floats by their shortest exact decimal."""
    return json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def seed_for(*parts: object) -> int:
    """A 63-bit seed that depends only on the arguments: the top bits of sha256 of their canonical JSON."""
    digest = hashlib.sha256(to_json(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def values_of(cls: type, plain: object) -> dict[str, Any]:
    """The fields of a dataclass's plain form. Absent ones have the value they were introduced with, not the default.

    Raises BadInput for an unknown field, or a missing one without an introduced value.
    """
    if not isinstance(plain, dict) or plain.get(KIND) != tag_of(cls):
        kind = plain.get(KIND) if isinstance(plain, dict) else plain
        raise BadInput(f"A {tag_of(cls)} was expected, and {kind!r} was found.")
    attributes = {names_in_keys(cls)[attribute.name]: attribute for attribute in fields(cls)}
    values = {name: value for name, value in plain.items() if name != KIND}
    if unknown := sorted(values.keys() - attributes):
        raise BadInput(
            f"This {cls.__name__} has {', '.join(unknown)}, which are unknown to this version of nescio: "
            "read it with the version that wrote it, or a newer one."
        )
    for name in attributes.keys() - values.keys():
        if INTRODUCED not in attributes[name].metadata:
            raise BadInput(f"This {cls.__name__} lacks {name}: it was not written by nescio, or was changed since.")
        values[name] = attributes[name].metadata[INTRODUCED]
    return {attributes[name].name: value for name, value in values.items()}


# ---- validated dataclasses


class Validated:
    """A frozen dataclass that converts and checks its values: 1 becomes 1.0 in a float field, a list a tuple."""

    def __post_init__(self) -> None:
        cls: type = type(self)
        for name, hint in _hints(cls).items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, coerce(value, hint))
            except TypeError:
                raise BadInput(f"{cls.__name__}.{name} is {value!r}: it must be {describe_type(hint)}.") from None
        self.check()

    def check(self) -> None:
        """Raise BadInput if the values are not valid together."""

    def require_min(self, minimum: float, *names: str, exclusive: bool = False) -> None:
        """Raise BadInput if one of the fields is set and is below `minimum` (or, with `exclusive`, equal to it)."""
        for name in names:
            value = getattr(self, name)
            if value is not None and (value < minimum or (exclusive and value == minimum)):
                bound = f"above {minimum:g}" if exclusive else f"at least {minimum:g}"
                raise BadInput(f"{type(self).__name__}.{name} is {value}: it must be {bound}.")


def describe_type(hint: object) -> str:
    """A description of the values of a type."""
    origin, parts = _form(hint)
    if hint is None or hint is type(None):
        return "none"
    if origin is typing.Literal:
        return " or ".join(map(str, parts))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(describe_type, parts))
    if origin is tuple:
        return f"a list, each {describe_type(parts[0])}"
    return next((word for kind, word in WORDS.items() if kind is hint), str(getattr(hint, "__name__", hint)))


@cache
def _hints(cls: type) -> dict[str, object]:
    """Field → its type."""
    if inspect.get_annotations(cls) and "__dataclass_fields__" not in vars(cls):
        name = f"{cls.__module__}.{cls.__qualname__}"
        raise BadInput(f"{name} has fields but is not a dataclass: put @dataclass(frozen=True) above it.")
    hints = typing.get_type_hints(cls)
    return {attribute.name: hints[attribute.name] for attribute in fields(cls)}


@cache
def _form(hint: object) -> tuple[object, tuple[object, ...]]:
    return typing.get_origin(hint), typing.get_args(hint)


def coerce(value: object, hint: object) -> object:
    """The value converted to the annotated type; TypeError if that is impossible."""
    if hint is Any or (type(value) is hint and hint in PLAIN):
        return value
    origin, arguments = _form(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in arguments:
            return None
        for kind in sorted(arguments, key=lambda kind: kind is not type(value)):  # the exact type first
            try:
                return coerce(value, kind)
            except TypeError:
                continue
    elif origin is Literal:
        if any(value == option and type(value) is type(option) for option in arguments):
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
                return tuple(coerce(item, kind) for item, kind in zip(value, kinds, strict=True))
    elif isinstance(value, typing.cast(type, origin or hint)):
        return value
    raise TypeError
