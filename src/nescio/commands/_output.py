"""What every command that prints rows offers: JSON, CSV, Markdown, LaTeX, or tables for people."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

FORMATS = {
    "table": "tables for people (the default)",
    "json": "strict JSON, alone on stdout",
    "csv": "long, tidy rows",
    "markdown": "Markdown tables",
    "latex": "LaTeX tables (booktabs)",
}


def add_format(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output").add_mutually_exclusive_group()
    for name, sentence in FORMATS.items():
        if name != "table":
            group.add_argument(f"--{name}", dest="format", action="store_const", const=name, help=sentence)
    parser.set_defaults(format="table")


def say(text: str) -> None:
    print(text, end="" if text.endswith("\n") else "\n")


def json_of(value: Any) -> str:
    from nescio.report import json_text

    return json_text(value)


def list_parts(registry: Any, facts: Callable[[str], dict[str, str]], args: argparse.Namespace) -> int:
    """Prints what a registry holds, or one part of it whole."""
    from nescio.report import grid

    if args.name:
        function = registry[args.name].function
        say(f"{args.name}{inspect.signature(function)}\n\n{inspect.getdoc(function)}")
        return 0
    rows = [facts(name) for name in registry]
    say(json_of(rows) if args.format == "json" else grid(rows, args.format))
    return 0
