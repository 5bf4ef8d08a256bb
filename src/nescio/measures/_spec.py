"""What the registry knows of a measure, beside the function itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from nescio.registry import Registry

Kind = Literal[
    "plain",  # f(predictions) -> u (n,)
    "fitted",  # f(reference, **options) -> (f(predictions) -> u)
    "ensemble",  # f(…lists of Predictions, one per member…) -> u
]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Measure:
    """One registered measure. u is ALWAYS higher = less sure."""

    name: str
    function: Callable[..., Any]
    kind: Kind
    needs: tuple[str, ...]  # fields of Predictions that it reads

    @property
    def sentence(self) -> str:
        return (self.function.__doc__ or "").strip().split("\n")[0]


registry: Registry[Measure] = Registry("measure")


def measure(kind: Kind = "plain", *, needs: tuple[str, ...], name: str | None = None) -> Callable[[F], F]:
    """Registers a function on Predictions as a measure and returns it unchanged."""

    def register(function: F) -> F:
        label = name or function.__name__
        registry.add(label, Measure(label, function, kind, needs))
        return function

    return register
