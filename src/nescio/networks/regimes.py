"""Training regimes of pretrained networks, and counterparts: the same network without that regime.

`regimes.csv` contains (model, counterpart, regime, teacher) by timm's names; a model without a counterpart is listed
for its teacher. `aliases.csv` contains other names of the same weights: timm's old names without tags, and names
without a tag for timm's default weights. Source of the regimes: Galil et al. 2023, §3 and appendices H and M.3.

    distillation               trained on a teacher's predictions, also in pretraining (MIIL's ImageNet-21k)
    pruning with distillation  the unpruned network is the teacher
    pruning                    without a teacher
    adversarial                AdvProp, (ensemble) adversarial training
    pretraining                on ImageNet-21k (22k), then ImageNet-1k
    semi-supervised            Noisy Student; SSL and SWSL ResNets: extra images without human labels
    weakly supervised          hashtags of Instagram (WSL)

The counterpart of an EfficientNet is the best one trained with augmentation only: RandAugment for b5, b7 and
b8, AutoAugment for the others.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nescio.networks import families

DISTILLATION, PRUNING_DISTILLED = "distillation", "pruning with distillation"
REGIMES = (
    DISTILLATION,
    PRUNING_DISTILLED,
    "pruning",
    "pretraining",
    "semi-supervised",
    "weakly supervised",
    "adversarial",
)
PLACES = ("hf_hub:", "hf-hub:", "timm/")  # origins of weights, as prefixes of names


@dataclass(frozen=True)
class RegimePair:
    """A model, the same network without its regime, and its teacher."""

    model: str
    counterpart: str | None
    regime: str
    teacher: str | None

    @property
    def own_teacher(self) -> bool:
        """Whether its teacher is its counterpart."""
        return self.teacher is not None and self.teacher == self.counterpart


@cache
def regime_table() -> tuple[RegimePair, ...]:
    """All models with a known regime."""
    return tuple(
        RegimePair(row["model"], row["counterpart"] or None, row["regime"], row["teacher"] or None)
        for row in _rows("regimes.csv")
    )


def pairs(models: Iterable[str]) -> list[RegimePair]:
    """The table's entries for these models, with the models' names.

    A counterpart or teacher that is not among the models is None; an entry with neither is omitted.
    """
    names: dict[str, str] = {}
    for name in models:
        names.setdefault(timm_name(name), name)
    present = []
    for pair in regime_table():
        if pair.model in names:
            counterpart, teacher = (names.get(other) if other else None for other in (pair.counterpart, pair.teacher))
            if counterpart or teacher:
                present.append(RegimePair(names[pair.model], counterpart, pair.regime, teacher))
    return present


def counterparts(models: Iterable[str]) -> dict[str, dict[str, str]]:
    """Regime → {model: the same network without the regime}."""
    others: dict[str, dict[str, str]] = {kind: {} for kind in REGIMES}
    for pair in pairs(models):
        if pair.counterpart:
            others[pair.regime][pair.model] = pair.counterpart
    return {kind: models_of_kind for kind, models_of_kind in others.items() if models_of_kind}


def regime(model: str) -> str | None:
    """The training regime of a model; None if it is not in the table."""
    return _regimes().get(timm_name(model))


def distilled(model: str) -> bool:
    """Whether a model was trained on a teacher's predictions, by its name or by the table."""
    return families.distilled(model) or regime(model) in (DISTILLATION, PRUNING_DISTILLED)


@cache
def _regimes() -> dict[str, str]:
    return {pair.model: pair.regime for pair in regime_table()}


def timm_name(name: str) -> str:
    """timm's name with its tag, for names of the table and their aliases; any other name as it is."""
    bare = name.strip()
    while prefix := next((start for start in PLACES if bare.startswith(start)), None):
        bare = bare[len(prefix) :]
    return _aliases().get(bare, bare)


@cache
def _aliases() -> dict[str, str]:
    return {row["alias"]: row["model"] for row in _rows("aliases.csv")}


def _rows(name: str) -> list[dict[str, str]]:
    with (Path(__file__).parent / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
