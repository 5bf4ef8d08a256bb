"""List the training methods, plug-ins included; NAME shows one with its paper and hyper-parameters.

The search ranges are those of `nescio run`, whose trial 0 has the defaults. A method of the kind `features` is trained
without labels and returns embeddings only.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from nescio.commands._output import ListOptions as Options
from nescio.commands._output import json_of, say

if TYPE_CHECKING:
    from nescio.methods.base import Method
    from nescio.search import HParams, LogUniform, OneOf, Uniform


def run(options: Options) -> int:
    from nescio.methods import registry
    from nescio.report.text import format_records

    names = [registry[options.name].name] if options.name else sorted(registry)
    methods = [_facts(name, registry[name]) for name in names]
    if options.format == "json":
        say(json_of(methods[0] if options.name else methods))
    elif options.name:
        if options.format == "table":
            say(f"{names[0]} ({methods[0]['kind']}): {methods[0]['paper']}\n\n{methods[0]['meaning']}\n")
        say(format_records(methods[0]["hparams"], options.format))
    else:
        rows = [
            {
                "method": facts["method"],
                "kind": facts["kind"],
                "settings": ", ".join(f"{entry['setting']}={entry['default']}" for entry in facts["hparams"]),
                "paper": facts["paper"],
            }
            for facts in methods
        ]
        say(format_records(rows, options.format))
        if options.format == "table":
            say("`nescio methods NAME` shows all of one method, with its search ranges.")
    return 0


def _facts(name: str, method: type[Method[HParams]]) -> dict[str, Any]:
    return {
        "method": name,
        "kind": "classifier" if method.classifies else "features",
        "paper": method.paper,
        "meaning": inspect.getdoc(method) or "",
        "hparams": [
            {
                "setting": entry.name,
                "default": entry.default,
                "search": _range(entry.metadata.get("search")),
                "meaning": entry.metadata.get("help", ""),
            }
            for entry in fields(method.hparams_class)
        ],
    }


def _range(search: Uniform | LogUniform | OneOf | None) -> str:
    from nescio.search import LogUniform, OneOf, Uniform

    if search is None:
        return "fixed"
    if isinstance(search, OneOf):
        return " or ".join(map(str, search.values))
    drawn = {Uniform: ", uniform", LogUniform: ", log-uniform"}.get(type(search), "")
    return f"{search.low:g} to {search.high:g}{drawn}"
