"""The measures that nescio knows, built in and plugged in: what each one means, and how to read it."""

from __future__ import annotations

from dataclasses import dataclass

from nescio.commands._output import formats, list_parts
from nescio.options import argument


@dataclass(frozen=True, kw_only=True)
class Options:
    name: str | None = argument("show one of them whole, with its formula and source", default=None, metavar="NAME")
    format: str = formats()


def run(options: Options) -> int:
    from nescio.measures import registry

    def facts(name: str) -> dict[str, str]:
        part = registry[name]
        return {"measure": name, "kind": part.kind, "needs": ", ".join(part.needs), "meaning": part.sentence}

    return list_parts(registry, facts, options.name, options.format)
