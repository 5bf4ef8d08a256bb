"""The parser of a dataclass of options: `add_options`, and the words that `nescio completion` offers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from nescio.errors import BadInput, did_you_mean
from nescio.options import PRESET, REQUIRED, Leaf, is_tuple, leaves
from nescio.registry import is_registered

T = TypeVar("T")
CONFIG = "config"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are BadInput, one sentence each."""

    leaves: list[Leaf]  # the options that it takes

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse an unknown command; suggest the nearest one."""
        if action.choices is not None and value not in action.choices:
            names, what = list(action.choices), str(action.metavar or "command").lower()
            raise BadInput(
                f"There is no {what} {value!r}.{did_you_mean(str(value), names)} There are: {', '.join(names)}."
            )

    def error(self, message: str) -> NoReturn:
        sentence = message[:1].upper() + message[1:].rstrip(".")
        raise BadInput(f"{sentence}. See `{self.prog} --help`.")


def add_options(
    parser: argparse.ArgumentParser,
    cls: type[T],
    presets: Mapping[str, T] | None = None,
    *,
    start: T | None = None,
    argv: Sequence[str] = (),
) -> None:
    """Add the options of a dataclass; --help shows the default values of the class, or of a preset.

    presets  name → instance; the first one has the defaults without --preset
    start    an instance whose values are the defaults, in place of the class's
    words    of the command line: --preset selects the defaults in --help, --launcher brings its options
    """
    if f"--{CONFIG}" not in parser._option_string_actions:
        parser.add_argument(f"--{CONFIG}", metavar="FILE", help="YAML file of options; the command line overrides it")
    if presets:
        name = last_value(argv, f"--{PRESET}") or _selected(argv, list(leaves(cls)), presets)
        start = presets.get(name, start)
        help = f"set of default values: {', '.join(presets)} (default: {name})"
        _offer(parser.add_argument(f"--{PRESET}", metavar="NAME", help=help), list(presets))
    every = list(leaves(cls, start, chosen=lambda leaf: last_value(argv, leaf.flag)))
    parser.leaves = [*getattr(parser, "leaves", ()), *every]  # type: ignore[attr-defined]
    groups: dict[str | None, Any] = {None: parser}
    for leaf in every:
        if leaf.spec.group not in groups:
            groups[leaf.spec.group] = parser.add_argument_group(leaf.spec.group)
        flags = {leaf.value(plan) for plan in (presets or {}).values()} if leaf.hint is bool else set()
        _add(groups[leaf.spec.group], leaf, flags)


def last_value(argv: Sequence[str], flag: str) -> str | None:
    """The last value that words set an option to: --x VALUE or --x=VALUE."""
    text = None
    for number, word in enumerate(argv):
        if word == flag and number + 1 < len(argv):
            text = argv[number + 1]
        elif word.startswith(f"{flag}="):
            text = word.partition("=")[2]
    return text


def _selected(argv: Sequence[str], every: Sequence[Leaf], presets: Mapping[str, object]) -> str:
    """The first preset with the values that select one."""
    chosen = {leaf: last_value(argv, leaf.flag) for leaf in every if leaf.spec.selects}
    fits = (
        name
        for name, plan in presets.items()
        if all(text in (None, leaf.write(leaf.value(plan))) for leaf, text in chosen.items())
    )
    return next(fits, next(iter(presets)))


def _add(group: argparse._ActionsContainer, leaf: Leaf, flags: set[object]) -> None:
    how: dict[str, Any] = {"dest": leaf.dest, "default": argparse.SUPPRESS, "help": _help(leaf)}
    if leaf.hint is bool:
        values = flags or {leaf.default}
        if False in values:
            group.add_argument(leaf.flag, action="store_const", const=True, **how)
        if True in values:
            how["help"] = f"do not {how['help']}"
            group.add_argument(leaf.inverse, action="store_const", const=False, **how)
    elif leaf.spec.positional:
        nargs = "*" if leaf.many else "?"
        action = group.add_argument(how.pop("dest"), metavar=leaf.metavar, nargs=nargs, **how)
        _offer(action, leaf.choices)
    else:
        listed = is_tuple(leaf.hint) and leaf.spec.parse is None
        action = group.add_argument(leaf.flag, metavar=leaf.metavar, action="append" if listed else "store", **how)
        action.kind = leaf.spec.kind  # type: ignore[attr-defined]
        _offer(action, leaf.choices)


def _offer(action: argparse.Action, argv: Sequence[str]) -> None:
    """Attach the valid values of an option. With argparse's `choices`, the error message would be argparse's."""
    action.offers = argv  # type: ignore[attr-defined]


def names_registered(action: argparse.Action, word: str) -> bool:
    """Whether an option takes parts of a kind, and the word is the name of one."""
    kind = getattr(action, "kind", "")
    return bool(kind and action.option_strings) and is_registered(kind, word)


def offers(action: argparse.Action) -> Sequence[str]:
    """The words that an option or argument of a parser takes, if they are known."""
    return getattr(action, "offers", ())


def _help(leaf: Leaf) -> str:
    text = "required" if leaf.default is REQUIRED else f"default: {_default_text(leaf, leaf.default)}"
    positional = leaf.spec.positional and leaf.default in (REQUIRED, (), None)
    if leaf.hint is bool or (positional and not leaf.spec.unset):
        return leaf.help.replace("%", "%%")
    return f"{leaf.help} ({text})".replace("%", "%%")


def _default_text(leaf: Leaf, value: object) -> str:
    """A value as --help shows it."""
    if value is None or value == ():
        return leaf.spec.unset or "none"
    if leaf.spec.write is None and isinstance(value, tuple):
        return ",".join("none" if item is None else _default_text(leaf, item) for item in value)
    return f"{value:g}" if isinstance(value, float) and leaf.spec.write is None else leaf.write(value)
