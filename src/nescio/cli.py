"""The command `nescio`: runs one command of `nescio.commands`, and turns what goes wrong into a sentence.

Whatever takes time to import is imported inside of `main`, where Ctrl-C is no traceback.
"""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stderr, redirect_stdout

from nescio import TYPE_CHECKING
from nescio.errors import BadInput, Undefined, did_you_mean, install, printable, visible

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence
    from typing import NoReturn


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 success, 1 failed work, 2 bad input."""
    typed = list(sys.argv[1:] if argv is None else argv)
    argv_left = list(typed)
    plugins = _plugins(argv_left)
    command = next((word for word in argv_left if not word.startswith("-")), None)
    name = "nescio"
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # it was closed before the start
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    for size in ("COLUMNS", "LINES"):
        if not os.environ.get(size, "1").strip("0").isdecimal():  # a terminal without columns shows nothing
            del os.environ[size]
    if getattr(sys.stdout, "errors", "") in ("strict", "surrogateescape"):  # a terminal that lacks a character shows ?
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        from nescio.commands import COMMANDS
        from nescio.progress import begin
        from nescio.provenance import recorded_command as running
        from nescio.registry import add_plugin

        begin()
        name += f" {command}" if command in COMMANDS else ""
        for plugin in plugins:
            add_plugin(plugin)
        with running(typed), redirect_stdout(printable(sys.stdout)), redirect_stderr(printable(sys.stderr)):
            code = _run(command, argv_left)
        sys.stdout.flush()  # flush here, so that a closed pipe is no failure
        return code
    except (BadInput, Undefined) as error:
        print(visible(f"{name}: {error}"), file=sys.stderr)
        return 2
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "nescio"):
            raise
        print(f"{name} needs {package}: {install(package)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `nescio … | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = "" if error.filename is None else f": {error.filename}"
        print(visible(f"{name}: {error.strerror or error}{where}."), file=sys.stderr)
        return 2
    except RuntimeError as error:
        if type(error).__module__.partition(".")[0] != "nescio":
            raise
        print(visible(f"{name}: {error}"), file=sys.stderr)  # of the store or of a training: a sentence for people
        return 1
    except KeyboardInterrupt:
        print(f"{name}: stopped.", file=sys.stderr)
        return 130


def _plugins(argv_left: list[str]) -> list[str]:
    """Remove --plugin FILE from the arguments, at any position: every command has this option."""
    files = []
    while "--plugin" in argv_left[:-1]:
        position = argv_left.index("--plugin")
        files.append(argv_left[position + 1])
        del argv_left[position : position + 2]
    return files


def _run(command: str | None, argv_left: Sequence[str]) -> int:
    from nescio.commands import COMMANDS, parser_for
    from nescio.commands.config import ConfigFile
    from nescio.commands.parsing import last_value
    from nescio.options import named_by_option

    if command is not None and command not in COMMANDS:
        command_named = next((word for word in argv_left if word in COMMANDS), "") if command == "help" else ""
        hint = f" {command_named}" if command_named else ""
        raise BadInput(f"There is no command {command!r}.{did_you_mean(command, COMMANDS)} See `nescio{hint} --help`.")
    if empty := next((word for word in argv_left if word.startswith("-") and word.endswith("=--")), None):
        raise BadInput(f"{empty.removesuffix('=--')} has the value --, which is not a value: give another one.")
    path = last_value(argv_left, "--config")
    file = None if path is None else ConfigFile(path)
    parser = parser_for(command, [*(file.argv() if file else ()), *argv_left])
    args, unknown = parser.parse_known_args(argv_left)
    if unknown:
        _refuse(getattr(args, "_parser", parser), unknown[0])
    if not args._command:
        parser.print_help()
        return 2
    options = getattr(args._parser, "leaves", [])
    if file:
        file.apply(args, args._parser.prog.split()[1:], options)
    try:
        return int(args._run(args) or 0)
    except (BadInput, Undefined) as error:
        raise named_by_option(error, options) from None


def _refuse(parser: ArgumentParser, word: str) -> NoReturn:
    """Report the unknown word and suggest a similar one."""
    from nescio.commands.parsing import names_registered

    if not word.startswith("-"):
        flag = next((action.option_strings[0] for action in parser._actions if names_registered(action, word)), "")
        cure = f": write {flag} {word}" if flag else ""
        if word.endswith(".json") and any("--format" in action.option_strings for action in parser._actions):
            cure = f": --format json prints, so write --format json > {word}"
        raise BadInput(f"{word!r} is an unexpected argument{cure}. See `{parser.prog} --help`.")
    option = word.partition("=")[0]
    hint = did_you_mean(option, [text for action in parser._actions for text in action.option_strings])
    hint = _elsewhere(parser.prog.split()[-1]).get(option, hint)
    raise BadInput(f"There is no option {option}.{hint} See `{parser.prog} --help`.")


def _elsewhere(command: str) -> dict[str, str]:
    """Options of other commands → a sentence on what to use here; it begins with a space."""
    from importlib import import_module

    from nescio.commands import COMMANDS

    module = import_module(f"nescio.commands.{command}") if command in COMMANDS else None
    return {option: f" {sentence}" for option, sentence in getattr(module, "ELSEWHERE", {}).items()}


if __name__ == "__main__":
    raise SystemExit(main())
