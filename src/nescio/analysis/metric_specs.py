"""Metrics with their parameters, as tables name them: `auroc`, `sac@0.95`, `accuracy@5`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

from nescio.errors import BadInput, Undefined
from nescio.metrics import Metric, registry
from nescio.registry import is_plugin_code, plugin_fault
from nescio.specs import parameter


@dataclass(frozen=True)
class MetricSpec:
    """A metric with its parameter: the label is its name in tables."""

    label: str
    metric: Metric
    options: Mapping[str, Any]

    @property
    def ranks(self) -> bool:
        """Whether the function's arguments are (u, wrong)."""
        return "ranking" in self.metric.kinds

    def option(self, name: str) -> float:
        """The parameter's value, or its default."""
        value: float = self.options.get(name, signature(self.metric.function).parameters[name].default)
        return value

    def __call__(self, *arrays: object) -> float:
        try:
            return float(self.metric.function(*arrays, **self.options))
        except (Undefined, MemoryError):
            raise
        except Exception as error:  # a plug-in may raise any error
            if not is_plugin_code(self.metric.function):
                raise
            raise plugin_fault("metric", self.label, self.metric.function, error) from error


def parse_metric(label: str) -> MetricSpec:
    """The metric with this label, such as sac@0.95; aliases are accepted."""
    label = registry.canonical(label)
    name, value = parameter(label)
    _, sign, text = label.partition("@")
    name = registry.canonical(name)
    label = f"{name}{sign}{text}"
    metric = registry[name]
    if value is None:
        return MetricSpec(label, metric, {})
    keys = list(metric.values) or [
        key
        for key, parameter in signature(metric.function).parameters.items()
        if isinstance(parameter.default, int | float) and parameter.kind is not Parameter.VAR_KEYWORD
    ]
    if not keys:
        raise BadInput(f"The metric {name!r} takes no parameter, but {label!r} has one: write {name!r}.")
    return MetricSpec(label, metric, {keys[0]: value})


def at_scorecard_values(metric: Metric) -> list[MetricSpec]:
    """The metric at each of its scorecard values, such as sac@0.9 and sac@0.95."""
    if not metric.values:
        return [MetricSpec(metric.name, metric, {})]
    ((option, values),) = metric.values.items()
    return [
        MetricSpec(
            metric.name if (metric.name, value) == ("accuracy", 1) else f"{metric.name}@{value:g}",
            metric,
            {option: value},
        )
        for value in values
    ]


def scorecard_metrics(kind: str) -> list[MetricSpec]:
    """All metrics of this kind at their scorecard values."""
    return [spec for metric in registry.parts() if kind in metric.kinds for spec in at_scorecard_values(metric)]
