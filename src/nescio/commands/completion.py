"""Print a script for bash, zsh or tcsh that completes commands, options, their choices and registered names.

bash  add `source <(nescio completion bash)` to ~/.bashrc
zsh   add `source <(nescio completion zsh)` to ~/.zshrc, after compinit
tcsh  write it to a file, and add `source FILE` to ~/.tcshrc

The script contains the names of methods, measures, metrics and benchmarks, those of plug-ins included. Print it again
after a new plug-in is installed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

from nescio.commands import COMMANDS, Overview, add_command
from nescio.commands._output import say
from nescio.commands.parsing import Parser, offers
from nescio.options import argument

REGISTRIES = {  # an option or argument that takes names → the room whose registry has them
    **dict.fromkeys(("measure", "measures"), "measures"),
    **dict.fromkeys(("method", "methods"), "methods"),
    "metrics": "metrics",
}
LISTS = ("measures", "methods", "metrics")  # commands whose argument is a registered name


@dataclass(frozen=True, kw_only=True)
class Options:
    shell: Literal["bash", "zsh", "tcsh"] = argument("bash, zsh or tcsh", metavar="SHELL")


def run(options: Options) -> int:
    import shtab

    parser = Overview(prog="nescio", usage="nescio COMMAND …")
    parser.add_argument("--version", action="store_true", help="show the version")
    parser.add_argument("--plugin", metavar="FILE", help="file that adds your parts")
    commands = parser.add_subparsers(dest="_command", parser_class=Parser)
    for name, sentence in COMMANDS.items():
        add_command(commands, name, help=sentence)
    for command, below in _parsers(parser):
        below.description = (below.description or "").partition("\n")[0]  # zsh shows one line of each command
        for action in below._actions:
            if names := _names(action, command):
                action.choices = list(names)
            elif re.search("FILE|DIR|PATH|SOURCE", str(action.metavar)):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    say(shtab.complete(parser, shell=options.shell))
    return 0


def _parsers(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser and those of its commands, with their names."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, below in action.choices.items():
                yield from _parsers(below, command)


def _names(action: argparse.Action, command: str) -> Sequence[str]:
    """The choices of an option or argument, or the registered names that it takes."""
    if choices := offers(action):
        return choices
    name = action.dest.split(".")[-1]
    room = command if command in LISTS and not action.option_strings else REGISTRIES.get(name)
    if room is None or action.nargs == 0 or (room == "methods" and find_spec("torch") is None):
        return ()
    return sorted(import_module(f"nescio.{room}").registry)
