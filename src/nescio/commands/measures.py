"""List the uncertainty measures, plug-ins included; NAME shows one with its formula and source."""

from __future__ import annotations

from nescio.commands._output import ListOptions as Options
from nescio.commands._output import print_registry


def run(options: Options) -> int:
    from nescio.measures import registry

    def facts(name: str) -> dict[str, str]:
        measure = registry[name]
        return {"measure": name, "kind": measure.kind, "needs": ", ".join(measure.needs), "meaning": measure.sentence}

    return print_registry(registry, facts, options.name, options.format)
