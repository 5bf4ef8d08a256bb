"""Command-line options that are the fields of a dataclass: name, type, default, help and check are declared once.

    @dataclass(frozen=True)
    class Plan(Checked):
        epochs: int = option(20)                                      # --epochs 30; help of nescio.option_help
        pairs: tuple[str, ...] = option((), "pairs of predictions")   # --pairs a,b
        inside: tuple[int, ...] | None = option(None, name="classes") # --classes 0-5,7
        training: Training = nested(Training())                       # its fields are options as well

    add_options(parser, Plan, presets)                                # of nescio.commands.parsing
    plan = options_of(parser.parse_args(), Plan, presets)
    command_of(plan, ("nescio", "run", "mine"), presets)              # the command that gives this plan again

The option is the field's name with hyphens. The annotation is its type: int, float, str, bool (a flag, `--no-x` if the
default is True), Literal (choices), T | None (the text none is None), tuple[T, ...] (separated by commas; whole numbers
also as ranges, 0-5,7). Texts follow the grammar of nescio.specs.
"""

from __future__ import annotations

import argparse
import re
import shlex
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

from nescio.errors import BadInput, Undefined, did_you_mean
from nescio.identity import IN_KEYS, INTRODUCED
from nescio.option_help import HELP
from nescio.registry import canonical_name
from nescio.specs import SpecError, assignments, items, numbers, write_items

REQUIRED = MISSING  # the default of an option that must be set
PRESET = "preset"
# --x a,b | --x n=a,m=b or --x n=a --x m=b | --x a --x b, each taken whole
Style = Literal["commas", "repeats", "whole"]
T = TypeVar("T")
_SPEC = "option"  # name in a field's metadata
_OMIT = "omit"
_OPTIONS_FROM = "options_from"


# ---- declaring


@dataclass(frozen=True)
class Spec:
    """Declaration of an option beyond its name, type and default."""

    help: str
    name: str | None = None
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None
    write: Callable[[Any], str] | None = None
    group: str | None = None
    unset: str | None = None
    style: Style = "commas"
    positional: bool = False
    selects: bool = False
    kind: str = ""
    instead_of: str = ""


def option(default: Any, help: str = "", *, introduced: Any = MISSING, in_keys: str = "", **settings: Any) -> Any:
    """Declare a field that is an option; REQUIRED is the default of one that must be set.

    help        noun phrase or imperative (default: that of nescio.option_help, which all commands share)
    name        of the option (default: the field's)
    metavar     placeholder of the value in --help
    parse       text → value, if the annotation is not enough; raises ValueError, or BadInput
    write       value → text, its inverse
    group       heading in --help (default: the name of the nested field that contains it)
    unset       text that --help shows as the default if that is None or empty, such as "all"
    style       of a tuple, whose texts are separated by commas and whose option may be repeated: "commas"; "repeats",
                of NAME=VALUE if a value may contain commas; "whole", which is only repeated
    selects     without --preset, it selects the first preset that has its value
    kind        kind of the registered entries that it names: aliases become registered names
    instead_of  fields, separated by spaces, that have no effect beside it: setting both is refused
    introduced  see nescio.identity.added
    in_keys     see nescio.identity.names_in_keys
    """
    metadata = {_SPEC: Spec(help, **settings), IN_KEYS: in_keys}
    if introduced is not MISSING:
        return field(default=default, metadata={**metadata, INTRODUCED: introduced})
    return field(default=default, metadata=metadata)


def argument(help: str, *, default: Any = REQUIRED, **settings: Any) -> Any:
    """Declare a field that is a positional argument; a tuple takes several."""
    return field(default=default, metadata={_SPEC: Spec(help, positional=True, **settings)})


def nested(default: Any, *, omit: Sequence[str] = (), introduced: Any = MISSING) -> Any:
    """Declare a field that is a dataclass whose fields are options, except those to omit."""
    later = {} if introduced is MISSING else {INTRODUCED: introduced}
    return field(default=default, metadata={_OMIT: tuple(omit), **later})


def options_from(by: str, classes: Callable[[str], Any]) -> Any:
    """Declare a field for extra options that another option's value selects, such as a launcher's: name → value.

    by       field of that option, declared before this one
    classes  its value → the dataclass of the extra options
    """
    return field(default_factory=dict, metadata={_OPTIONS_FROM: (by, classes)})


@dataclass(frozen=True)
class Leaf:
    """One option: the path of its value in the dataclass, its type and its declaration."""

    path: tuple[str, ...]
    hint: Any
    default: Any
    spec: Spec

    @property
    def dest(self) -> str:
        return ".".join(self.path)

    @property
    def flag(self) -> str:
        """The option as it is typed; of a positional argument, its name in --help."""
        if self.spec.positional:
            return self.spec.metavar or self.path[-1].upper()
        return f"--{self.spec.name or self.path[-1].replace('_', '-')}"

    @property
    def inverse(self) -> str:
        return f"--no-{self.flag[2:]}"

    @property
    def key(self) -> str:
        """The option's key in a file of options."""
        return self.path[-1] if self.spec.positional else self.flag[2:].replace("-", "_")

    @property
    def help(self) -> str:
        return self.spec.help or HELP.get(self.flag[2:], ("", ""))[1]

    @property
    def metavar(self) -> str:
        if self.spec.metavar or self.choices:
            return self.spec.metavar or f"{{{','.join(self.choices)}}}"
        return HELP.get(self.flag[2:], ("", ""))[0] or self.flag.removeprefix("--").upper()

    @property
    def choices(self) -> Sequence[str]:
        """The valid values, of an element if it is a tuple; empty if any value is valid."""
        hint = without_none(self.hint)
        hint = without_none(typing.get_args(hint)[0]) if is_tuple(hint) else hint
        return [str(value) for value in typing.get_args(hint)] if typing.get_origin(hint) is Literal else []

    @property
    def expected(self) -> str:
        """The valid values, for messages."""
        if self.choices:
            *others, last = self.choices
            return f"{', '.join(others)} or {last}" if others else last
        kind = without_none(self.hint)
        if is_tuple(kind):
            lists: dict[object, str] = {
                int: "a list of whole numbers such as 1,5",
                float: "a list of numbers such as 0.5,1",
            }
            expected = lists.get(without_none(typing.get_args(kind)[0]), "a list")
        else:
            texts: dict[object, str] = {int: "a whole number", float: "a number"}
            expected = texts.get(kind, "a text")
        return f"{expected}, or none" if types.NoneType in typing.get_args(self.hint) else expected

    @property
    def many(self) -> bool:
        """Whether it takes several command-line arguments."""
        return is_tuple(self.hint) and (self.spec.positional or self.spec.style != "commas")

    def value(self, holder: object) -> object:
        for name in self.path:
            holder = getattr(holder, name)
        return holder

    def read(self, text: str, hint: object = None) -> Any:
        """The value that a text sets; BadInput with the option's name if it is of another type."""
        hint = hint or self.hint
        try:
            if text == self.spec.unset == "none" and is_tuple(hint):
                return ()
            if self.spec.parse and not _means_none(text, hint, self.choices):
                return self.spec.parse(text)
            return _registered(self.spec.kind, _value(text, hint, self.choices))
        except SpecError as error:
            raise error.with_option(self.flag) from None
        except BadInput:
            raise
        except ValueError:
            raise BadInput(f"{self.flag} is {self.expected}, not {text!r}.{did_you_mean(text, self.choices)}") from None

    def read_texts(self, texts: Sequence[str]) -> object:
        """The value that several texts set together, of an option that is a list or may be repeated."""
        if self.spec.positional or self.spec.style != "commas":
            item = typing.get_args(without_none(self.hint))[0]
            split = self.spec.style == "repeats" and not self.spec.positional
            return tuple(self.read(pair, item) for text in texts for pair in (assignments(text) if split else [text]))
        values = [self.read(text) for text in texts]
        return None if values[-1:] == [None] else tuple(item for value in values for item in value or ())

    def write(self, value: object) -> str:
        """The text that `read` takes for this value."""
        if value is None:
            return "none"
        if self.spec.write:
            return self.spec.write(value)
        if isinstance(value, tuple):
            texts = [self.write(item) for item in value]
            return write_items(texts) if all(isinstance(item, str) for item in value) else ",".join(texts)
        return repr(value) if isinstance(value, float) else str(value)


def leaves(
    cls: type,
    holder: object = None,
    path: tuple[str, ...] = (),
    group: str | None = None,
    chosen: Callable[[Leaf], str | None] = lambda leaf: None,
) -> Iterator[Leaf]:
    """The options of a class, the nested ones included, and those that a chosen value brings along.

    holder  an instance with their defaults
    chosen  the value that an option is set to, if any
    """
    hints = typing.get_type_hints(cls)
    declared: dict[str, Leaf] = {}
    for entry in fields(cls):
        below, hint = (*path, entry.name), hints[entry.name]
        default = _default(entry) if holder is None else getattr(holder, entry.name)
        if spec := entry.metadata.get(_SPEC):
            declared[entry.name] = Leaf(below, hint, default, spec if spec.group else replace(spec, group=group))
            yield declared[entry.name]
        elif _OPTIONS_FROM in entry.metadata:
            by, classes = entry.metadata[_OPTIONS_FROM]
            name = chosen(declared[by]) or declared[by].default
            inner = leaves(classes(name), None, below, name)
            yield from (leaf for leaf in inner if len(leaf.path) == len(below) + 1)
        elif isinstance(hint, type) and is_dataclass(hint):
            omit = entry.metadata.get(_OMIT, ())
            inner = leaves(hint, None if default is MISSING else default, below, entry.name, chosen)
            yield from (leaf for leaf in inner if leaf.path[len(below)] not in omit)


def _default(entry: Field[object]) -> object:
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


# ---- from words to an instance


@dataclass(frozen=True)
class FromFile:
    """A value that a file of options sets."""

    value: Any


def options_of(
    args: argparse.Namespace, cls: type[T], presets: Mapping[str, T] | None = None, *, start: T | None = None
) -> T:
    """The instance that command line and file set; everything else has the preset's value, or the default."""

    def chosen(leaf: Leaf) -> str | None:
        value = getattr(args, leaf.dest, None)
        return value.value if isinstance(value, FromFile) else value

    all_leaves = [leaf for leaf in leaves(cls, chosen=chosen) if hasattr(args, leaf.dest)]
    values = {leaf.path: _read(leaf, getattr(args, leaf.dest)) for leaf in all_leaves}
    by_key = {leaf.key: values[leaf.path] for leaf in all_leaves}
    begin = preset_of(cls, presets, args.preset, by_key) if presets else start
    all_leaves = list(leaves(cls, begin, chosen=chosen))
    if missing := [leaf for leaf in all_leaves if leaf.default is REQUIRED and leaf.path not in values]:
        raise BadInput(f"{missing[0].flag} is required.")
    typed = [leaf for leaf in all_leaves if not isinstance(getattr(args, leaf.dest, FromFile(None)), FromFile)]
    _refuse_empty([leaf for leaf in typed if not values[leaf.path]], values, presets or {})
    changed = [leaf for leaf in all_leaves if leaf.path in values and values[leaf.path] != leaf.default]
    refuse_idle([*typed, *(leaf for leaf in changed if leaf not in typed)], lambda leaf: leaf.flag)
    try:
        return build(cls, begin, values)
    except BadInput as error:
        raise named_by_option(error, all_leaves) from None


def named_by_option(error: BadInput | Undefined, all_leaves: Sequence[Leaf]) -> BadInput | Undefined:
    """An error about fields with the names of their options."""
    text = with_flags(str(error), all_leaves)
    if text == str(error):
        return error
    return Undefined(text) if isinstance(error, Undefined) else BadInput(text)


def with_flags(text: str, all_leaves: Sequence[Leaf]) -> str:
    """A library's sentence with options in place of fields: `FIELD is …`, `give A or B`, `set FIELD=VALUE`.

    `give the map A=B,C=D` becomes `give --map A=B,C=D`, where A and C are fields of a file.
    """
    flags = {name: leaf.flag for leaf in all_leaves for name in (leaf.path[-1], leaf.key) if not leaf.spec.positional}
    if not flags:
        return text
    field = rf"(?:[A-Z]\w*\.)?\b({'|'.join(sorted(flags, key=len, reverse=True))})\b"

    def assigned(match: re.Match[str]) -> str:
        return f"--map {match[1]}" if match[1] else f"{match[2] or ''}{flags[match[3]]} "

    text = re.sub(rf"(?:--|\bthe )?\bmap (\w+=\S+)|\b([Ss]et )?{field}=(?=\w)", assigned, text)
    named, end = rf"{field}(?:(?: and | or |, ){field})*", r"(?![\w/`'-]|\.\w)"
    verb = r"\b(?:[Gg]ive|[Oo]mit)(?: both)? "
    named_fields = rf"^{named}(?=[ :])|{verb}{named}{end}|[A-Z]\w*\.{field}|(?<![\w./`'-]){field}{end}"

    def renamed(match: re.Match[str]) -> str:
        text_found = match[0]
        prose = match.start() and not re.match(verb, text_found) and "_" not in text_found and "." not in text_found
        return text_found if prose else re.sub(field, lambda name: flags[name[1]], text_found)

    return re.sub(named_fields, renamed, text)


def _refuse_empty(
    empty: Sequence[Leaf], values: Mapping[tuple[str, ...], object], presets: Mapping[str, object]
) -> None:
    """Refuse an empty text, and an empty list unless a preset has it or it replaces a default by `unset`."""
    for leaf in empty:
        starts = [leaf.value(plan) for plan in presets.values()] or [leaf.default]
        replaces = any(starts) and (() in starts or (leaf.spec.unset is not None and None not in starts))
        if values[leaf.path] == "" or (values[leaf.path] == () and not replaces):
            raise BadInput(f"{leaf.flag} is empty: give a value, or leave it out.")


def refuse_idle(changed: Sequence[Leaf], name: Callable[[Leaf], str]) -> None:
    """Refuse an option that has no effect beside another one."""
    for leaf in changed:
        if idle := [name(other) for other in changed if other.path[0] in leaf.spec.instead_of.split()]:
            raise BadInput(f"{idle[0]} has no effect beside {name(leaf)}: leave one of them out.")


def preset_of(cls: type[T], presets: Mapping[str, T], name: str | None, values: Mapping[str, object]) -> T | None:
    """The preset of a name; without a name, the first one with the values that select a preset.

    values  by the keys of options
    """
    if name is None:
        choosing = [leaf for leaf in leaves(cls) if leaf.spec.selects and leaf.key in values]
        fitting = [plan for plan in presets.values() if all(leaf.value(plan) == values[leaf.key] for leaf in choosing)]
        return next(iter([*fitting, *presets.values()]), None)
    if name not in presets:
        near = did_you_mean(name, presets)
        raise BadInput(f"There is no preset {name!r}.{near} There are: {', '.join(presets)}.")
    return presets[name]


def build(cls: type[T], start: T | None, values_by_path: Mapping[tuple[str, ...], object]) -> T:
    """An instance with values by their paths; the others are those of `start`, or the defaults."""
    values = {path[0]: value for path, value in values_by_path.items() if len(path) == 1}
    inner = {path[0] for path in values_by_path if len(path) > 1}
    hints = typing.get_type_hints(cls)
    for entry in fields(cls):  # type: ignore[arg-type]
        if entry.name in inner:
            below = {path[1:]: value for path, value in values_by_path.items() if path[0] == entry.name}
            if _OPTIONS_FROM in entry.metadata:
                values[entry.name] = {name: value for (name,), value in below.items()}
                continue
            holder = _default(entry) if start is None else getattr(start, entry.name)
            values[entry.name] = build(hints[entry.name], None if holder is MISSING else holder, below)
    return cls(**values) if start is None else replace(start, **values)  # type: ignore[type-var]


def _read(leaf: Leaf, parsed: object) -> object:
    """The value of what argparse returns: a text, a list of texts, or the constant of a flag."""
    if isinstance(parsed, FromFile):
        return parsed.value
    if isinstance(parsed, list):
        return leaf.read_texts(parsed)
    return leaf.read(parsed) if isinstance(parsed, str) else parsed


def _registered(kind: str, value: object) -> object:
    """Names of registered parts of a kind as they are registered; anything else unchanged."""
    if kind and isinstance(value, tuple):
        return tuple(canonical_name(kind, name) for name in value)
    return canonical_name(kind, value) if kind and isinstance(value, str) else value


def _value(text: str, hint: object, choices: Sequence[str]) -> object:
    """The text as a value of the annotated type; ValueError if it is of another type."""
    if _means_none(text, hint, choices):
        return None
    hint = without_none(hint)
    if is_tuple(hint):
        item = typing.get_args(hint)[0]
        if item is int:
            return numbers(text, "whole numbers")
        return tuple(_value(word, item, choices) for word in items(text)) if text else ()
    if choices and text not in choices:
        raise ValueError(text)
    if typing.get_origin(hint) is Literal:
        return {str(value): value for value in typing.get_args(hint)}[text]
    return hint(text) if hint in (int, float) else text


def _means_none(text: str, hint: object, choices: Sequence[str]) -> bool:
    return text in ("none", "off") and text not in choices and types.NoneType in typing.get_args(hint)


def without_none(hint: object) -> object:
    """T of T | None; of several types the first, which command lines and files can set."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    return next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)


def is_tuple(hint: object) -> bool:
    return typing.get_origin(without_none(hint)) is tuple


def type_name(hint: object) -> str:
    """The name of an option's type for tables; T and T | None have the same."""
    hint = without_none(hint)
    if is_tuple(hint):
        return f"list of {type_name(typing.get_args(hint)[0])}"
    return "choice" if typing.get_origin(hint) is Literal else str(getattr(hint, "__name__", hint))


# ---- from an instance to words


def nearest_preset(plan: object, presets: Mapping[str, object]) -> str:
    """The preset from which the fewest options differ."""
    all_leaves = list(leaves(type(plan)))
    return min(presets, key=lambda name: sum(leaf.value(plan) != leaf.value(presets[name]) for leaf in all_leaves))


def command_of(plan: object, argv: Sequence[str], presets: Mapping[str, object] | None = None) -> str:
    """The shell command that gives this instance again: the options that differ from the nearest preset, or default."""
    if not presets:
        return shlex.join([*argv, *_argv(plan, None)])
    first = next(iter(presets))
    choosing = [leaf for leaf in leaves(type(plan)) if leaf.spec.selects]

    def argv_of_preset(name: str, preset: object) -> list[str]:
        unnamed = name == first and all(leaf.value(plan) == leaf.value(preset) for leaf in choosing)
        return ([] if unnamed else [f"--{PRESET}", name]) + _argv(plan, preset)

    return shlex.join([*argv, *min((argv_of_preset(name, preset) for name, preset in presets.items()), key=len)])


def _argv(plan: object, start: object) -> list[str]:
    positional: list[str] = []
    named: list[str] = []
    for leaf in leaves(type(plan)):
        value = leaf.value(plan)
        if value != (leaf.default if start is None else leaf.value(start)):
            argv = positional if leaf.spec.positional else named
            argv += _written(leaf, value)
    return positional + named


def _written(leaf: Leaf, value: object) -> list[str]:
    if isinstance(value, bool):
        return [leaf.flag if value else leaf.inverse]
    texts = (
        [leaf.write(item) for item in value]
        if isinstance(value, tuple) and leaf.many and value
        else [leaf.write(value)]
    )
    if leaf.spec.positional:
        return texts
    return [
        word for text in texts for word in ([f"{leaf.flag}={text}"] if text[:1] in ("-", "") else [leaf.flag, text])
    ]


def instance_of(cls: type[T], plain: Mapping[str, object]) -> T:
    """The instance whose `dataclasses.asdict`, perhaps written as JSON and read again, this is.

    A field that it lacks has the value it was introduced with, not today's default. A field that it lacks and that was
    there from the start is refused, and so is a field that the class lacks.
    """
    hints, declared = typing.get_type_hints(cls), {entry.name: entry for entry in fields(cls)}  # type: ignore[arg-type]
    if strange := sorted(plain.keys() - declared):
        raise BadInput(f"A {cls.__name__} has no {', '.join(strange)}: it was written by another version of nescio.")
    values = {name: entry.metadata[INTRODUCED] for name, entry in declared.items() if INTRODUCED in entry.metadata}
    if missing := sorted(declared.keys() - values.keys() - plain.keys()):
        raise BadInput(f"This {cls.__name__} lacks {', '.join(missing)}: it was written by another version of nescio.")
    for name, value in plain.items():
        if is_dataclass(hints[name]) and isinstance(value, Mapping):
            value = instance_of(hints[name], value)
        values[name] = tuple(value) if isinstance(value, list) else value
    return cls(**values)
