"""Command-line options that are the fields of a dataclass: name, type, default, help and check are declared once.

    @dataclass(frozen=True)
    class Plan(Checked):
        epochs: int = option(20, "passes over the training rows")              # --epochs 30
        measures: tuple[str, ...] = option(("entropy",), "of uncertainty")     # --measures entropy,gap
        inside: tuple[int, ...] | None = option(None, "in-distribution classes", name="in")     # --in 0-5,7
        training: Training = Training()                                        # its fields are options as well

    add_options(parser, Plan, presets)
    plan = options_of(parser.parse_args(), Plan, presets)
    command_of(plan, ("nescio", "run", "mine"), presets)       # the command that gives this plan again

The option is the field's name with hyphens. The annotation is its type: int, float, str, bool (a flag, `--no-x` where
the default is True), Literal (choices), T | None (the word none is None), tuple[T, ...]
(separated by commas; whole numbers also as ranges, 0-5,7). Texts follow the grammar of nescio.specs.
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

from nescio.errors import BadInput, did_you_mean
from nescio.identity import IN_KEYS, INTRODUCED
from nescio.registry import canonical_name, is_registered
from nescio.specs import SpecError, assignments, items, numbers, write_items

REQUIRED = MISSING  # the default of an option that must be given
PRESET = "preset"
# --x a,b | --x a,b or --x a b | --x n=a,m=b or --x n=a --x m=b | --x a --x b, each taken whole
Style = Literal["commas", "words", "repeats", "whole"]
T = TypeVar("T")
_SPEC = "option"  # name in a field's metadata
_OMIT = "omit"
_OPTIONS_FROM = "brought"


# ---- declaring


@dataclass(frozen=True)
class Spec:
    """What an option's field says beyond its name, type and default."""

    help: str
    name: str | None = None
    metavar: str | None = None
    choices: Sequence[str] | None = None
    parse: Callable[[str], Any] | None = None
    write: Callable[[Any], str] | None = None
    group: str | None = None
    unset: str | None = None
    style: Style = "commas"
    switches: Mapping[str, str] | None = None
    before: tuple[str, ...] = ()
    positional: bool = False
    selects: bool = False
    part: str = ""
    instead_of: str = ""


def option(default: Any, help: str = "", *, introduced: Any = MISSING, in_keys: str = "", **how: Any) -> Any:
    """A field that is an option; REQUIRED as the default for one that must be given.

    name        of the option (default: the field's)
    metavar     what --help writes for the value
    choices     the allowed texts (of each element of a tuple)
    parse       text → value, where the annotation does not tell; raises ValueError, or BadInput with its own sentence
    write       value → text, its inverse
    group       heading under which --help lists it (default: the name of the nested field it belongs to)
    unset       what --help names as the default where that is None or empty, such as "all"
    style       of a tuple, which is separated by commas and whose option may be repeated: "commas"; "words", which
                takes several words after one option as well; "repeats", of NAME=VALUE where a value may hold commas;
                "whole", which is only repeated, because every value has commas of its own
    switches    value → help: every value is a flag of its own, such as --json and --csv for a field `format`
    before      names that the option had before: they work, and --help does not list them
    selects     given without --preset, it starts from the first preset that has its value
    part        kind of the registered parts that it names: other spellings and aliases become their names
    instead_of  names of fields, separated by spaces, that have no effect beside it: giving both is refused
    introduced  see nescio.identity.added_field
    in_keys     see nescio.identity.names_in_keys
    """
    metadata = {_SPEC: Spec(help, **how), IN_KEYS: in_keys}
    if introduced is not MISSING:
        return field(default=default, metadata={**metadata, INTRODUCED: introduced})
    return field(default=default, metadata=metadata)


def argument(help: str, *, default: Any = REQUIRED, **how: Any) -> Any:
    """A field that is a positional argument; a tuple takes one or more, or any number where it has a default."""
    return field(default=default, metadata={_SPEC: Spec(help, positional=True, **how)})


def nested(default: Any, *, omit: Sequence[str] = (), introduced: Any = MISSING) -> Any:
    """A field that holds a dataclass whose fields are options, but for those to omit."""
    later = {} if introduced is MISSING else {INTRODUCED: introduced}
    return field(default=default, metadata={_OMIT: tuple(omit), **later})


def options_from(by: str, classes: Callable[[str], Any]) -> Any:
    """A field for the options that the value of another option brings along: name → value, of those that are given.

    by       the field of that option, which stands before this one
    classes  its value → the dataclass of the options
    """
    return field(default_factory=dict, metadata={_OPTIONS_FROM: (by, classes)})


@dataclass(frozen=True)
class _Leaf:
    """One option: where its value lies in the dataclass, its type and what was declared."""

    path: tuple[str, ...]
    hint: Any
    default: Any
    spec: Spec

    @property
    def dest(self) -> str:
        return ".".join(self.path)

    @property
    def flag(self) -> str:
        """What people type; of a positional argument, what --help calls it."""
        if self.spec.positional:
            return self.spec.metavar or self.path[-1].upper()
        return f"--{self.spec.name or self.path[-1].replace('_', '-')}"

    @property
    def inverse(self) -> str:
        return f"--no-{self.flag[2:]}"

    @property
    def many(self) -> bool:
        """Whether it takes several words of the command line."""
        return _is_tuple(self.hint) and (self.spec.positional or self.spec.style != "commas")

    def value(self, holder: Any) -> Any:
        for name in self.path:
            holder = getattr(holder, name)
        return holder


def _leaves(
    cls: type,
    holder: Any = None,
    path: tuple[str, ...] = (),
    group: str | None = None,
    chosen: Callable[[_Leaf], str | None] = lambda leaf: None,
) -> Iterator[_Leaf]:
    """The options of a class, the nested ones included, and those that a chosen value brings along.

    holder  an instance that has their defaults
    chosen  the value that was given for an option, if any
    """
    hints = typing.get_type_hints(cls)
    known: dict[str, _Leaf] = {}
    for entry in fields(cls):
        here, hint = (*path, entry.name), hints[entry.name]
        default = _default(entry) if holder is None else getattr(holder, entry.name)
        if spec := entry.metadata.get(_SPEC):
            known[entry.name] = _Leaf(here, hint, default, spec if spec.group else replace(spec, group=group))
            yield known[entry.name]
        elif _OPTIONS_FROM in entry.metadata:
            by, classes = entry.metadata[_OPTIONS_FROM]
            name = chosen(known[by]) or known[by].default
            inner = _leaves(classes(name), None, here, name)
            yield from (leaf for leaf in inner if len(leaf.path) == len(here) + 1)
        elif isinstance(hint, type) and is_dataclass(hint):
            omit = entry.metadata.get(_OMIT, ())
            inner = _leaves(hint, None if default is MISSING else default, here, entry.name, chosen)
            yield from (leaf for leaf in inner if leaf.path[len(here)] not in omit)


def _default(entry: Field[Any]) -> Any:
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


# ---- the parser


def add_options(
    parser: argparse.ArgumentParser,
    cls: type[T],
    presets: Mapping[str, T] | None = None,
    *,
    start: T | None = None,
    words: Sequence[str] = (),
) -> None:
    """Adds the options of a dataclass; --help names every default, or that of each preset where they differ.

    presets  name → instance; the first is where a command without --preset starts
    start    an instance whose values are the defaults, in place of the fields' own
    words    of the command line: what they choose may bring options of its own
    """
    if presets:
        first, *others = presets
        names = ", ".join([f"{first} (default)", *others])
        selecting = "".join(f"; with {leaf.flag}, the first that has it" for leaf in _leaves(cls) if leaf.spec.selects)
        help = f"where the other options start from: {names}{selecting}"
        preset = parser.add_argument(f"--{PRESET}", metavar="NAME", help=help)
        _offer(preset, list(presets))
    groups: dict[str | None, Any] = {None: parser}
    for leaf in _leaves(cls, start, chosen=lambda leaf: _given(words, leaf.flag)):
        if leaf.spec.group not in groups:
            groups[leaf.spec.group] = parser.add_argument_group(leaf.spec.group)
        _add(groups[leaf.spec.group], leaf, presets or {})


def _given(words: Sequence[str], flag: str) -> str | None:
    """The last value that the words give an option: --x VALUE or --x=VALUE."""
    text = None
    for number, word in enumerate(words):
        if word == flag and number + 1 < len(words):
            text = words[number + 1]
        elif word.startswith(f"{flag}="):
            text = word.partition("=")[2]
    return text


def _add(group: Any, leaf: _Leaf, presets: Mapping[str, Any]) -> None:
    starts = {name: leaf.value(plan) for name, plan in presets.items()} or {"default": leaf.default}
    how: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(leaf, starts)}
    if leaf.spec.switches:
        exclusive = group.add_mutually_exclusive_group()
        for value, help in leaf.spec.switches.items():
            how["help"] = help.replace("%", "%%")
            exclusive.add_argument(f"--{value}", dest=leaf.dest, action="store_const", const=value, **how)
    elif leaf.hint is bool:
        flag = {"dest": leaf.dest, "action": "store_const", **how}
        if False in starts.values():
            group.add_argument(leaf.flag, const=True, **flag)
        if True in starts.values():
            group.add_argument(leaf.inverse, const=False, **flag | {"help": f"without {how['help']}"})
    elif leaf.spec.positional:
        required = leaf.default is REQUIRED
        nargs = ("+" if required else "*") if leaf.many else (None if required else "?")
        _offer(group.add_argument(leaf.dest, metavar=leaf.flag, nargs=nargs, **how), _choices(leaf))
    else:
        how |= {"metavar": _metavar(leaf), "required": leaf.default is REQUIRED and not presets}
        if _is_tuple(leaf.hint) and leaf.spec.parse is None:
            how |= {"nargs": "*", "action": "extend"} if leaf.spec.style == "words" else {"action": "append"}
        action = group.add_argument(leaf.flag, dest=leaf.dest, **how)
        action.part = leaf.spec.part
        _offer(action, _choices(leaf))
        for name in leaf.spec.before:
            group.add_argument(f"--{name}", dest=leaf.dest, **how | {"help": argparse.SUPPRESS})


def _offer(action: argparse.Action, words: Sequence[str]) -> None:
    """Notes the words that an option takes; argparse's own `choices` would refuse others in its own sentence."""
    action.offers = words  # type: ignore[attr-defined]


def names_part(action: argparse.Action, word: str) -> bool:
    """Whether an option takes parts of a kind, and the word is the name of one."""
    kind = getattr(action, "part", "")
    return bool(kind and action.option_strings) and is_registered(kind, word)


def offers(action: argparse.Action) -> Sequence[str]:
    """The words that an option or argument of a parser takes, as far as they are known."""
    return getattr(action, "offers", ())


def _metavar(leaf: _Leaf) -> str:
    if leaf.spec.metavar:
        return leaf.spec.metavar
    choices = _choices(leaf)
    return f"{{{','.join(choices)}}}" if choices else leaf.path[-1].replace("_", "-").upper()


def _help(leaf: _Leaf, starts: Mapping[str, Any]) -> str:
    words = {name: _shown(leaf, value) for name, value in starts.items() if value is not REQUIRED}
    if len(set(words.values())) == 1:
        words = {"default": next(iter(words.values()))}
    default = ", ".join(f"{name}: {word}" for name, word in words.items())
    return (f"{leaf.spec.help} ({default})" if default else leaf.spec.help).strip().replace("%", "%%")


def _shown(leaf: _Leaf, value: Any) -> str:
    """A value as --help names it."""
    if value is None or value == ():
        return leaf.spec.unset or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if leaf.spec.write is None and isinstance(value, tuple):
        return ",".join("none" if item is None else _shown(leaf, item) for item in value)
    return f"{value:g}" if isinstance(value, float) and leaf.spec.write is None else _text(leaf, value)


# ---- from words to an instance


def options_of(
    args: argparse.Namespace, cls: type[T], presets: Mapping[str, T] | None = None, *, start: T | None = None
) -> T:
    """The instance that was given on the command line; what was not given keeps the preset's value, or the default."""
    leaves = list(_leaves(cls, chosen=lambda leaf: getattr(args, leaf.dest, None)))
    given = {leaf.path: _read(leaf, getattr(args, leaf.dest)) for leaf in leaves if hasattr(args, leaf.dest)}
    _refuse_empty([leaf for leaf in leaves if not given.get(leaf.path, True)], given, presets or {})
    _refuse_idle([leaf for leaf in leaves if leaf.path in given])
    try:
        return _built(cls, _preset(args, cls, presets, given) if presets else start, given)
    except BadInput as error:
        raise BadInput(_by_flag(str(error), leaves)) from None


def _refuse_empty(falsy: Sequence[_Leaf], values: Mapping[tuple[str, ...], Any], presets: Mapping[str, Any]) -> None:
    """Refuses an empty text, and an empty list unless a preset has it or it replaces a default by what `unset` says."""
    for leaf in falsy:
        starts = [leaf.value(plan) for plan in presets.values()] or [leaf.default]
        replaces = any(starts) and (() in starts or (leaf.spec.unset is not None and None not in starts))
        if values[leaf.path] == "" or (values[leaf.path] == () and not replaces):
            raise BadInput(f"{leaf.flag} is empty: give a value, or leave it out.")


def _refuse_idle(given: Sequence[_Leaf]) -> None:
    """Refuses an option that has no effect beside another one."""
    for leaf in given:
        if idle := [other.flag for other in given if other.path[0] in leaf.spec.instead_of.split()]:
            raise BadInput(f"{idle[0]} has no effect beside {leaf.flag}: leave one of them out.")


def _by_flag(sentence: str, leaves: Sequence[_Leaf]) -> str:
    """A sentence about CLASS.FIELD in the words of the command line."""
    flags = {leaf.path[-1]: leaf.flag for leaf in leaves}
    return re.sub(r"^[A-Z]\w*\.(\w+)(?= is )", lambda found: flags.get(found[1], found[0]), sentence)


def _preset(args: argparse.Namespace, cls: type[T], presets: Mapping[str, T], given: Mapping[Any, Any]) -> T:
    if args.preset is None:
        choosing = [leaf for leaf in _leaves(cls) if leaf.spec.selects and leaf.path in given]
        fitting = [plan for plan in presets.values() if all(leaf.value(plan) == given[leaf.path] for leaf in choosing)]
        return next(iter([*fitting, *presets.values()]))
    if args.preset not in presets:
        raise BadInput(
            f"There is no preset named {args.preset!r}.{did_you_mean(args.preset, presets)} "
            f"There are: {', '.join(presets)}."
        )
    return presets[args.preset]


def _built(cls: type[T], start: T | None, given: Mapping[tuple[str, ...], Any]) -> T:
    """An instance with the given values, by their paths; the others are those of `start`, or the defaults."""
    values: dict[str, Any] = {path[0]: value for path, value in given.items() if len(path) == 1}
    inner = {path[0] for path in given if len(path) > 1}
    hints = typing.get_type_hints(cls)
    for entry in fields(cls):  # type: ignore[arg-type]
        if entry.name in inner:
            below = {path[1:]: value for path, value in given.items() if path[0] == entry.name}
            if _OPTIONS_FROM in entry.metadata:
                values[entry.name] = {name: value for (name,), value in below.items()}
                continue
            holder = _default(entry) if start is None else getattr(start, entry.name)
            values[entry.name] = _built(hints[entry.name], None if holder is MISSING else holder, below)
    return cls(**values) if start is None else replace(start, **values)  # type: ignore[type-var]


def _read(leaf: _Leaf, given: Any) -> Any:
    """The value of what argparse found: a text, a list of texts, or the constant of a flag."""
    if isinstance(given, list) and (leaf.spec.positional or leaf.spec.style in ("repeats", "whole")):
        item = typing.get_args(_without_none(leaf.hint))[0]
        split = leaf.spec.style == "repeats" and not leaf.spec.positional
        texts = [pair for text in given for pair in assignments(text)] if split else given
        return tuple(_parsed(leaf, text, item) for text in texts)
    if isinstance(given, list):
        values = [_parsed(leaf, text, leaf.hint) for text in given]
        return None if values[-1:] == [None] else tuple(item for value in values for item in value or ())
    return given if leaf.spec.switches or isinstance(given, bool) else _parsed(leaf, given, leaf.hint)


def _parsed(leaf: _Leaf, text: str, hint: Any) -> Any:
    choices = _choices(leaf)
    try:
        if text == leaf.spec.unset == "none" and _is_tuple(hint):
            return ()
        if leaf.spec.parse and not _means_none(text, hint, choices):
            return leaf.spec.parse(text)
        return _canonical(leaf.spec.part, _value(text, hint, choices))
    except SpecError as error:
        raise error.of(leaf.flag) from None
    except BadInput:
        raise
    except ValueError:
        wanted = _alternatives(choices) if choices else _kind(hint)
        raise BadInput(f"{leaf.flag} is {wanted}, not {text!r}.{did_you_mean(text, choices)}") from None


def _canonical(kind: str, value: Any) -> Any:
    """Names of registered parts of a kind as they are registered; anything else as it is."""
    if not kind or value is None:
        return value
    return (
        tuple(canonical_name(kind, name) for name in value) if isinstance(value, tuple) else canonical_name(kind, value)
    )


def _value(text: str, hint: Any, choices: Sequence[str]) -> Any:
    """The text as a value of the annotated type; ValueError where it cannot be."""
    if _means_none(text, hint, choices):
        return None
    hint = _without_none(hint)
    if _is_tuple(hint):
        item = typing.get_args(hint)[0]
        if item is int:
            return numbers(text, "whole numbers")
        return tuple(_value(word, item, choices) for word in items(text)) if text else ()
    if typing.get_origin(hint) is Literal:
        return {str(value): value for value in typing.get_args(hint)}[_chosen(text, choices)]
    if hint in (int, float):
        return hint(text)
    return _chosen(text, choices) if choices else text


def _means_none(text: str, hint: Any, choices: Sequence[str]) -> bool:
    return text in ("none", "off") and text not in choices and types.NoneType in typing.get_args(hint)


def _chosen(text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise ValueError(text)
    return text


def _choices(leaf: _Leaf) -> Sequence[str]:
    """The texts that are allowed, of an element where it is a tuple; empty: any."""
    hint = _without_none(leaf.hint)
    hint = _without_none(typing.get_args(hint)[0]) if _is_tuple(hint) else hint
    if leaf.spec.choices is not None:
        return leaf.spec.choices
    return [str(value) for value in typing.get_args(hint)] if typing.get_origin(hint) is Literal else []


def _without_none(hint: Any) -> Any:
    """T of T | None."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    (kind,) = (kind for kind in typing.get_args(hint) if kind is not types.NoneType)
    return kind


def _is_tuple(hint: Any) -> bool:
    return typing.get_origin(_without_none(hint)) is tuple


def _kind(hint: Any) -> str:
    """What a value of this type is called in a sentence."""
    kind = _without_none(hint)
    if _is_tuple(kind):
        lists = {int: "a list of whole numbers such as 1,5", float: "a list of numbers such as 0.5,1"}
        words = lists.get(_without_none(typing.get_args(kind)[0]), "a list")
    else:
        words = {int: "a whole number", float: "a number"}.get(kind, "a text")
    return f"{words}, or none" if types.NoneType in typing.get_args(hint) else words


def _alternatives(choices: Sequence[str]) -> str:
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last


# ---- from an instance to words


def at_least(plan: Any, least: int, *names: str) -> None:
    """Refuses options of a plan that are given and below a number."""
    for name in names:
        value = getattr(plan, name)
        if value is not None and value < least:
            raise BadInput(f"--{name.replace('_', '-')} must be at least {least}, not {value}.")


def command_of(plan: Any, words: Sequence[str], presets: Mapping[str, Any] | None = None) -> str:
    """The shell command that gives this instance again: what differs from the defaults, or from the nearest preset."""
    if not presets:
        return shlex.join([*words, *_words(plan, None)])
    first = next(iter(presets))
    choosing = [leaf for leaf in _leaves(type(plan)) if leaf.spec.selects]

    def way(name: str, preset: Any) -> list[str]:
        unnamed = name == first and all(leaf.value(plan) == leaf.value(preset) for leaf in choosing)
        return ([] if unnamed else [f"--{PRESET}", name]) + _words(plan, preset)

    return shlex.join([*words, *min((way(name, preset) for name, preset in presets.items()), key=len)])


def _words(plan: Any, start: Any) -> list[str]:
    positional: list[str] = []
    named: list[str] = []
    for leaf in _leaves(type(plan)):
        value = leaf.value(plan)
        if value != (leaf.default if start is None else leaf.value(start)):
            words = positional if leaf.spec.positional else named
            words += _written(leaf, value)
    return positional + named


def _written(leaf: _Leaf, value: Any) -> list[str]:
    if leaf.spec.switches:
        return [f"--{value}"]
    if isinstance(value, bool):
        return [leaf.flag if value else leaf.inverse]
    listed = leaf.spec.style == "words" and not leaf.spec.positional  # every word is a list of its own
    texts = [_text(leaf, (item,) if listed else item) for item in value] if leaf.many else [_text(leaf, value)]
    if leaf.spec.positional:
        return texts
    if leaf.many and leaf.spec.style == "words":
        return [leaf.flag, *texts]
    return [word for text in texts for word in ([f"{leaf.flag}={text}"] if text[:1] == "-" else [leaf.flag, text])]


def _text(leaf: _Leaf, value: Any) -> str:
    if value is None:
        return "none"
    if leaf.spec.write:
        return leaf.spec.write(value)
    if isinstance(value, tuple):
        texts = [_text(leaf, item) for item in value]
        return write_items(texts) if all(isinstance(item, str) for item in value) else ",".join(texts)
    return repr(value) if isinstance(value, float) else str(value)


def instance_of(cls: type[T], plain: Mapping[str, Any]) -> T:
    """The instance whose `dataclasses.asdict`, perhaps written as JSON and read again, this is.

    A field that it lacks has the value it was introduced with, not today's default. Refused are a field that it lacks
    and that was there from the start, and one that the class lacks.
    """
    hints, known = typing.get_type_hints(cls), {entry.name: entry for entry in fields(cls)}  # type: ignore[arg-type]
    if strange := sorted(plain.keys() - known):
        raise BadInput(f"A {cls.__name__} has no {', '.join(strange)}: it was written by another version of nescio.")
    values = {name: entry.metadata[INTRODUCED] for name, entry in known.items() if INTRODUCED in entry.metadata}
    if missing := sorted(known.keys() - values.keys() - plain.keys()):
        raise BadInput(f"This {cls.__name__} lacks {', '.join(missing)}: it was written by another version of nescio.")
    for name, value in plain.items():
        inner = is_dataclass(hints[name]) and isinstance(value, Mapping)
        values[name] = instance_of(hints[name], value) if inner else tuple(value) if isinstance(value, list) else value
    return cls(**values)
