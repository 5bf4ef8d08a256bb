"""Names in the options of benchmarks: other spellings and aliases become registered names."""

from __future__ import annotations

from nescio.registry import canonical
from nescio.specs import items

ALL = "all"
DEFAULT_MEASURES = ("native", "entropy")


def method_names(text: str) -> tuple[str, ...]:
    """The methods of an option; `all` means all methods that classify."""
    from nescio.methods import classifiers, registry

    return tuple(classifiers()) if text == ALL else tuple(map(registry.canonical, items(text)))


def corruption_names(text: str) -> tuple[str, ...]:
    """The corruptions of an option, or shifts of the data."""
    from nescio.datasets.corruptions import ALIASES, CORRUPTIONS
    from nescio.datasets.shifts import FURTHER

    registered = (*CORRUPTIONS, *FURTHER)
    return tuple(name if name in registered else canonical(name, registered, ALIASES) for name in items(text) if text)


def measure_names(text: str) -> tuple[str, ...]:
    """The measures of an option; the scores of methods keep their names."""
    from nescio.measures import registry
    from nescio.methods import registry as methods

    scores = {score for method in methods.parts() for score in method.scores}
    return tuple(name if name in scores else registry.canonical(name) for name in items(text) if text)
