"""List the metrics, plug-ins included; NAME shows one with its formula and source."""

from __future__ import annotations

from nescio.commands._output import ListOptions as Options
from nescio.commands._output import print_registry


def run(options: Options) -> int:
    from nescio.metrics import registry

    def facts(name: str) -> dict[str, str]:
        metric = registry[name]
        return {"metric": name, "better": metric.better, "kinds": ", ".join(metric.kinds), "meaning": metric.sentence}

    return print_registry(registry, facts, options.name, options.format)
