"""The metrics that nescio knows, built in and plugged in: what each one says, and how to read it."""

from __future__ import annotations

import argparse

from nescio.commands._output import add_format, list_parts


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="show one of them whole, with its formula and source")
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    from nescio.metrics import registry

    def facts(name: str) -> dict[str, str]:
        part = registry[name]
        return {"metric": name, "better": part.better, "asks": ", ".join(part.kinds), "meaning": part.sentence}

    return list_parts(registry, facts, args)
