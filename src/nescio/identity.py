"""Identity: what makes two pieces of work the same. Plain JSON of settings, and the seeds that follow from it.

Settings are frozen dataclasses. Each has a stable tag, so that moving or renaming its class changes no key. A field
that came after the class was first used is left out of the key while it holds the value that it was introduced with:

    @tag("training")
    @dataclass(frozen=True)
    class Training(Checked):
        rate: float = 0.1
        flat: float = added(0.0)                  # came later: work that was done before keeps its key
        border: str = added("reflect", introduced="black")   # its default changed since: new work has a new key

The introduced value is what old work was done with. It stands beside the field and never changes.
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
KIND = "kind"  # name under which plain JSON holds a dataclass's tag
C = TypeVar("C", bound=type)
_tags: dict[str, str] = {}  # tag → the class that has it, as module and name


# ---- tags and fields


def tag(name: str) -> Callable[[C], C]:
    """Gives a dataclass the name under which keys know it."""

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
    """Field → its name in keys and seeds: its own, or the `in_keys` that it has in the class or one of its bases."""
    names = {each.name: each.name for each in fields(cls)}
    for base in reversed(cls.__mro__):
        for each in vars(base).get("__dataclass_fields__", {}).values():
            if each.name in names:  # class variables are listed there too
                names[each.name] = each.metadata.get(IN_KEYS) or names[each.name]
    return names


def added_field(default: Any, *, introduced: Any = dataclasses.MISSING, **metadata: Any) -> Any:
    """A field that came after its class was first used: absent from keys while it holds its introduced value.

    introduced  the default when the field was added; name it when the default changes later
    """
    was = default if introduced is dataclasses.MISSING else introduced
    return field(default=default, metadata={INTRODUCED: was, **metadata})


# ---- names of content


class ContentName(str):
    """A text that names content by a path. Keys and seeds see `content`, a digest, and so do not depend on the path."""

    content: str

    def __new__(cls, name: str, content: str) -> ContentName:
        made = super().__new__(cls, name)
        made.content = content
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return str(self), self.content


def rename_content(name: str, change: Callable[[str], str]) -> str:
    """A name that contains another one, or is contained in it: the same change of its text and of its content."""
    made = change(str(name))
    return ContentName(made, change(name.content)) if isinstance(name, ContentName) else made


def content_names(value: Any) -> dict[str, ContentName]:
    """The names of content in a recipe, by the content that its canonical form has in their place."""
    if isinstance(value, ContentName):
        return {value.content: value}
    inner: Iterable[Any] = ()
    if isinstance(value, (tuple, list)):
        inner = value
    elif isinstance(value, Mapping):
        inner = value.values()
    elif is_dataclass(value) and not isinstance(value, type):
        inner = (getattr(value, each.name) for each in fields(value))
    return {content: name for item in inner for content, name in content_names(item).items()}


# ---- plain JSON and seeds


WORDS = {float: "a number", int: "a whole number", bool: "True or False", str: "a text"}
PLAIN = (str, int, bool)  # types whose values are as they must be: the common case, which a study meets a million times


def canonical(value: Any) -> Any:
    """The value as plain JSON; a dataclass becomes {"kind": its tag, its fields}."""
    if value is None or type(value) in PLAIN:
        return value
    if isinstance(value, ContentName):
        return value.content
    if isinstance(value, (bool, str)):
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
        return _plain_fields(value)
    cls = type(value)
    raise BadInput(
        f"A recipe cannot hold {cls.__module__}.{cls.__qualname__}: "
        "use numbers, texts, True, False, None, tuples and dataclasses."
    )


def _plain_fields(value: Any) -> dict[str, Any]:
    cls: type = type(value)
    plain: dict[str, Any] = {KIND: tag_of(cls)}
    for each in fields(cls):
        if each.name == KIND:
            raise BadInput(f"{cls.__qualname__} has a field named 'kind', which names the class: rename the field.")
        own = canonical(getattr(value, each.name))
        if INTRODUCED not in each.metadata or own != canonical(each.metadata[INTRODUCED]):
            former = each.metadata.get(VALUES_IN_KEYS)
            plain[names_in_keys(cls)[each.name]] = former.get(own, own) if former else own
    return plain


def to_json(value: Any) -> str:
    """Canonical JSON: sorted names, no spaces, floats by their shortest exact decimal."""
    return json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def seed_for(*parts: Any) -> int:
    """A 63-bit seed that is a function of the parts only: the top bits of sha256 of their canonical JSON."""
    digest = hashlib.sha256(to_json(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def values_of(cls: type, plain: Any) -> dict[str, Any]:
    """The fields of a dataclass's plain form. Absent ones have the value they were introduced with, not the default.

    A field too many, or one that is missing without an introduced value, would silently be another recipe: refused.
    """
    if not isinstance(plain, dict) or plain.get(KIND) != tag_of(cls):
        found = plain.get(KIND) if isinstance(plain, dict) else plain
        raise BadInput(f"A {tag_of(cls)} was expected, and {found!r} was found.")
    known = {names_in_keys(cls)[each.name]: each for each in fields(cls)}
    values = {name: value for name, value in plain.items() if name != KIND}
    if strange := sorted(values.keys() - known):
        raise BadInput(
            f"This {cls.__name__} has {', '.join(strange)}, which this version of nescio does not know: "
            "read it with the version that wrote it, or a newer one."
        )
    for name in known.keys() - values.keys():
        if INTRODUCED not in known[name].metadata:
            raise BadInput(f"This {cls.__name__} lacks {name}: it was not written by nescio, or was changed since.")
        values[name] = known[name].metadata[INTRODUCED]
    return {known[name].name: value for name, value in values.items()}


# ---- dataclasses that check themselves


class Validated:
    """A frozen dataclass whose values fit its annotations: 1 becomes 1.0 in a float field, a list a tuple."""

    def __post_init__(self) -> None:
        cls: type = type(self)
        if inspect.get_annotations(cls) and "__dataclass_fields__" not in vars(cls):
            name = f"{cls.__module__}.{cls.__qualname__}"
            raise BadInput(f"{name} has fields but is not a dataclass: put @dataclass(frozen=True) above it.")
        for name, hint in _hints(cls).items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, coerce(value, hint))
            except TypeError:
                raise BadInput(f"{cls.__name__}.{name} is {value!r}: it must be {describe_type(hint)}.") from None
        self.check()

    def check(self) -> None:
        """Raises BadInput when the values do not make sense together."""

    def require_min(self, minimum: float, *names: str, exclusive: bool = False) -> None:
        """Raises BadInput when one of the fields is set and is below `minimum` (or, with `exclusive`, equal to it)."""
        for name in names:
            value = getattr(self, name)
            if value is not None and (value < minimum or (exclusive and value == minimum)):
                bound = f"above {minimum:g}" if exclusive else f"at least {minimum:g}"
                raise BadInput(f"{type(self).__name__}.{name} is {value}: it must be {bound}.")


def describe_type(hint: Any) -> str:
    """What values of a type are, for people."""
    origin, parts = _form(hint)
    if hint is None or hint is type(None):
        return "none"
    if origin is typing.Literal:
        return " or ".join(map(str, parts))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(describe_type, parts))
    if origin is tuple:
        return f"a list, each {describe_type(parts[0])}"
    return WORDS.get(hint) or str(getattr(hint, "__name__", hint))


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {each.name: hints[each.name] for each in fields(cls)}


@cache
def _form(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(hint), typing.get_args(hint)


def coerce(value: Any, hint: Any) -> Any:
    """The value in the form that the annotation asks for; TypeError if it does not fit."""
    if hint is Any or (type(value) is hint and hint in PLAIN):
        return value
    origin, arguments = _form(hint)
    if origin in (types.UnionType, typing.Union):
        for kind in sorted(arguments, key=lambda kind: kind is not type(value)):  # its own type first
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
    elif isinstance(value, origin or hint):
        return value
    raise TypeError
