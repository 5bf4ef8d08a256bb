"""The methods that nescio knows, built in and plugged in: what each one does, its paper, and what it can be told.

The search ranges are where `nescio run` looks; trial 0 is always the defaults. A classifier gives logits; a method of
the kind `features` learns without labels, gives embeddings alone and stands in no comparison of classifiers.
"""

from __future__ import annotations

import argparse
import inspect
from dataclasses import fields
from typing import Any

from nescio.commands._output import add_format, json_of, say


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show one of them whole, with its formula and source")
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    from nescio.methods import registry
    from nescio.report import grid

    names = [args.name] if args.name else sorted(registry)
    found = [_facts(name, registry[name]) for name in names]
    if args.format == "json":
        say(json_of(found[0] if args.name else found))
    elif args.name:
        if args.format == "table":
            say(f"{args.name} ({found[0]['kind']}): {found[0]['paper']}\n\n{found[0]['meaning']}\n")
        say(grid(found[0]["recipe"], args.format))
    else:
        rows = [
            {
                "method": facts["method"],
                "kind": facts["kind"],
                "settings": ", ".join(f"{each['setting']}={each['default']}" for each in facts["recipe"]),
                "paper": facts["paper"],
            }
            for facts in found
        ]
        say(grid(rows, args.format))
        if args.format == "table":
            say("`nescio methods NAME` shows one whole, with its search ranges.")
    return 0


def _facts(name: str, method: Any) -> dict[str, Any]:
    return {
        "method": name,
        "kind": "classifier" if method.classifies else "features",
        "paper": method.paper,
        "meaning": inspect.getdoc(method) or "",
        "recipe": [
            {
                "setting": each.name,
                "default": each.default,
                "search": _range(each.metadata.get("search")),
                "meaning": each.metadata.get("help", ""),
            }
            for each in fields(method.recipe_class)
        ],
    }


def _range(search: Any) -> str:
    if search is None:
        return "fixed"
    if hasattr(search, "values"):
        return " or ".join(map(str, search.values))
    kind = {"LogUniform": ", log-uniform", "Uniform": ", uniform", "Integers": ""}.get(type(search).__name__, "")
    return f"{search.low:g} to {search.high:g}{kind}"
