"""List the uncertainty measures, plug-ins included; NAME shows one with its formula and source."""

from __future__ import annotations

from nescio.api.results import Records
from nescio.commands._output import ListOptions as Options
from nescio.commands._output import print_entry

__all__ = ["Options", "run"]


def run(options: Options) -> Records | int:
    from nescio.measures import registry

    if options.name:
        return print_entry(registry[options.name].name, registry[options.name].function)
    return Records(
        [
            {"measure": name, "kind": measure.kind, "needs": ", ".join(measure.needs), "meaning": measure.sentence}
            for name, measure in registry.items()
        ]
    )
