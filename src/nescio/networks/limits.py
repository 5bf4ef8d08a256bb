"""Limits of size and family for the choice of a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nescio.errors import BadInput
from nescio.networks.families import is_in_family
from nescio.predictions.model_predictions import ModelPredictions
from nescio.report.format import format_millions

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}


@dataclass(frozen=True)
class Limits:
    """Maximum number of parameters, maximum input size, and allowed families; None and () are no limits."""

    params: int | None = None
    size: int | None = None
    families: tuple[str, ...] = ()

    def refused(self, models: Sequence[ModelPredictions]) -> dict[str, str]:
        """Model → reason, for the models that exceed the limits."""
        return {model.model: why for model in models if (why := self._exceeded_limit(model))}

    def _exceeded_limit(self, model: ModelPredictions) -> str | None:
        limits = (
            (self.params, model.fact_as_number("params"), "parameters", format_millions),
            (self.size, model.fact_as_number("input_size"), "input size", lambda n: f"{n:g} pixels"),
        )
        for most, fact, what, text in limits:
            if most is not None and fact is None:
                return f"{what} not known (--facts names a table that has them)"
            if most is not None and fact is not None and fact > most:
                return f"{what} above {text(most)}"
        if self.families and not any(is_in_family(model.model, family) for family in self.families):
            return f"not of the family {' or '.join(family.strip() for family in self.families)}"
        return None


def parse_parameter_count(text: str) -> int:
    """30M → 30,000,000."""
    word = text.strip().upper().replace(",", "").replace("_", "")
    unit = word[-1:] if word[-1:] in UNITS and not word[-1:].isdigit() else ""
    try:
        number = float(word.removesuffix(unit)) * UNITS[unit]
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise BadInput(f"max_params must be a number such as 30M or 1.2B, got {text!r}.")
    return round(number)
