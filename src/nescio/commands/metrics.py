"""The metrics that nescio knows, built in and plugged in: what each one means, and how to read it."""

from __future__ import annotations

from nescio.commands._output import PartOptions as Options
from nescio.commands._output import list_parts


def run(options: Options) -> int:
    from nescio.metrics import registry

    def facts(name: str) -> dict[str, str]:
        part = registry[name]
        return {"metric": name, "better": part.better, "kinds": ", ".join(part.kinds), "meaning": part.sentence}

    return list_parts(registry, facts, options.name, options.format)
