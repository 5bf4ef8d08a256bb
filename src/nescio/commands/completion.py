"""Print a script for bash or zsh that completes commands, options, their choices and registered names.

bash  add `source <(nescio completion bash)` to ~/.bashrc
zsh   add `source <(nescio completion zsh)` to ~/.zshrc, after compinit

The script contains the names of methods, measures, metrics and benchmarks, those of plug-ins included. Print it again
after a new plug-in is installed.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

from nescio.commands import COMMANDS, parser_for
from nescio.commands._output import say
from nescio.commands.parsing import offers
from nescio.options import argument

NAMED = {  # an option or argument that takes names of parts → the room whose registry has them
    **dict.fromkeys(("measure", "measures"), "measures"),
    **dict.fromkeys(("method", "methods"), "methods"),
    "metrics": "metrics",
}
PARTS = ("measures", "methods", "metrics")  # commands whose argument is the name of a part
OFFERS = """\
_nescio_offers() {{ # what may stand at a place: "command option", "command --options", or "command " for its arguments
  case "$1" in
{cases}
  esac
}}
"""
CHOOSE = """\
    [[ -n $(_nescio_offers "$command $word --options") ]] && command="$command $word"
  done
  if [[ $current == -* ]]; then offers=$(_nescio_offers "$command --options")
  elif [[ $previous == -* ]]; then offers=$(_nescio_offers "$command $previous")
  else offers=$(_nescio_offers "$command "); fi
"""
FRONTS = {
    "bash": f"""\
_nescio() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command="" word offers before=""
  [[ $current == "=" ]] && current=""
  [[ $previous == "=" ]] && previous=${{COMP_WORDS[COMP_CWORD-2]}}
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
{CHOOSE}  [[ $current == *,* ]] && before="${{current%,*}},"
  COMPREPLY=($(compgen -P "$before" -W "$offers" -- "${{current##*,}}"))
}}
complete -o default -F _nescio nescio""",
    "zsh": f"""\
_nescio() {{
  local current=$words[CURRENT] previous=$words[CURRENT-1] command="" word offers
  [[ $current == --*=* ]] && previous=${{current%%=*}} current=${{current#*=}}
  for word in ${{offered[2,CURRENT-1]}}; do
{CHOOSE}  compset -P '*[,=]'
  if [[ -n $offers ]]; then compadd -- ${{=offers}}; else _files; fi
}}
compdef _nescio nescio""",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    shell: Literal["bash", "zsh"] = argument("bash or zsh", metavar="SHELL")


def run(options: Options) -> int:
    positions = {" ": list(COMMANDS), " --options": ["--help", "--version", "--plugin"]}
    for command in COMMANDS:
        positions |= _positions(f" {command}", _subcommands(parser_for(command))[command])
    cases = [
        f"    {shlex.quote(position)}) echo {shlex.quote(' '.join(offered))};;"
        for position, offered in positions.items()
    ]
    say(OFFERS.format(cases="\n".join(cases)) + FRONTS[options.shell])
    return 0


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands of a parser."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: below for action in inner for name, below in action.choices.items()}


def _positions(command: str, parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The completions: options of every command, values of each option, and arguments."""
    listed = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    positions = {
        f"{command} --options": [flag for action in listed for flag in action.option_strings if flag[1] == "-"]
    }
    for action in listed:
        offered = _completions(action, command.split()[-1])
        for flag in action.option_strings or [""]:
            positions |= {f"{command} {flag}": list(offered)} if offered else {}
    for name, below in _subcommands(parser).items():
        positions.setdefault(f"{command} ", []).append(name)
        positions |= _positions(f"{command} {name}", below)
    return positions


def _completions(action: argparse.Action, command: str) -> Sequence[str]:
    """The choices of an option or argument, or the names of the parts that it takes."""
    if choices := offers(action):
        return choices
    name = action.dest.split(".")[-1]
    room = command if command in PARTS and not action.option_strings else NAMED.get(name)
    if room is None or action.nargs == 0 or (room == "methods" and find_spec("torch") is None):
        return ()
    return sorted(import_module(f"nescio.{room}").registry)
