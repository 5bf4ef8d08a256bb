"""Shared parts of plans: fields and their checks, names of methods, fixed hyper-parameters, training budgets.

A deep ensemble has networks of plain training that share their hyper-parameters and differ in their initial seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from nescio.errors import BadInput
from nescio.identity import Validated
from nescio.options import option
from nescio.search import with_values
from nescio.specs import HyperParameter
from nescio.trials import Training, Trial, spectral_target

DEEP_ENSEMBLE = "deep-ensemble"
MEMBER = "erm"  # method of the networks of a deep ensemble
SEED_STRIDE = 1000  # step between initial seeds of an ensemble's networks; repeated trainings use the seeds between
MINIMA = {"seeds": 1, "trials": 1, "limit": 1, "seed": 0}  # field → smallest value
MAXIMA = {"seeds": SEED_STRIDE, "trials": 100_000, "ensemble_sizes": 1000}  # field → largest value
SPECTRAL = "spectral"  # not a field of hyper-parameters: the layers of every method can be bounded

# Networks of one budget are trained once per store, whichever benchmark trains them
SMALL = Training(lr=0.1, epochs=20, batch_size=64, schedule="cosine", warmup=2.0, weight_decay=5e-4, augment="shift")
# For images of CIFAR's size: `erm` reaches a clean accuracy of 0.920 (results/shift)
CIFAR = Training(
    lr=0.4, warmup=4.0, schedule="cosine", weight_decay=5e-4, nesterov=True, border="reflect", epochs=20, batch_size=512
)


def hparams_option(default: tuple[str, ...] = ()) -> Any:
    """The field of a plan for hyper-parameters of methods, METHOD.FIELD=VALUE."""
    return option(default, metavar="METHOD.FIELD=VALUE,…", unset="none", introduced=())


def networks_option(instead_of: str) -> Any:
    """The field of a plan for existing networks; `instead_of` names the fields about training."""
    return option((), instead_of=instead_of)


class NetworkPlan(Validated):
    """Checks of the fields that several plans have; a plan has some of them."""

    data: str
    methods: tuple[str, ...]

    def check(self) -> None:
        fields = vars(self)
        for name, minimum in MINIMA.items():
            if name in fields:
                self.require_min(minimum, name)
        for name, maximum in MAXIMA.items():
            value = fields.get(name, 0)
            if (largest := max(value, default=0) if isinstance(value, tuple) else value) > maximum:
                raise BadInput(f"Plan.{name} is {largest}: it must be at most {maximum:,}.")
        for text in fields.get("hparams", ()):
            HyperParameter.parse(text)
        preprocessing = fields.get("preprocessing")
        if preprocessing and preprocessing.set_fields and not fields["networks"]:
            raise BadInput(f"Preprocessing.{preprocessing.set_fields[0]} has no effect without existing networks.")
        accuracy = fields.get("reference_accuracy")
        if accuracy is not None and not 0 < accuracy <= 1:
            raise BadInput(f"Plan.reference_accuracy is {accuracy:g}: it must be above 0 and at most 1.")

    @property
    def trained(self) -> tuple[str, ...]:
        """The methods whose networks are trained."""
        return trained_methods(self.methods)

    def require_ensemble_sizes(self) -> None:
        """Refuse averages of one network."""
        if min(vars(self)["ensemble_sizes"], default=2) < 2:
            raise BadInput("Plan.ensemble_sizes must be at least 2: single networks are always evaluated.")


# ---- names of methods


def registered_methods(names: Iterable[str]) -> tuple[str, ...]:
    """The registered names of methods, and deep-ensemble, each once."""
    from nescio.methods import registry

    spelled = map(registry.canonical, names)
    return tuple(dict.fromkeys(name if name == DEEP_ENSEMBLE else registry[name].name for name in spelled))


def trained_methods(names: Sequence[str]) -> tuple[str, ...]:
    """The methods whose networks are trained; a deep ensemble has networks of plain training."""
    return tuple(dict.fromkeys(MEMBER if name == DEEP_ENSEMBLE else name for name in names))


def name_of_average(method: str, members: int) -> str:
    """The name of an average of networks with the same hyper-parameters."""
    return DEEP_ENSEMBLE if (method, members > 1) == (MEMBER, True) else method


# ---- fixed hyper-parameters


def refuse_hparams(texts: Iterable[str]) -> None:
    """Refuse unknown methods, fields and values, before any work."""
    from nescio.methods import registry as methods

    for text in texts:
        name = methods[HyperParameter.parse(text).method].name
        with_fixed_hparams(Trial(method=name, hparams=methods[name].hparams_class(), data="", backbone=""), [text])


def with_fixed_hparams(trial: Trial, texts: Iterable[str]) -> Trial:
    """The trial with the hyper-parameters that texts set for its method, and `spectral`, the bound of all layers."""
    settings = [setting for setting in map(HyperParameter.parse, texts) if setting.method == trial.method]
    bounds = [setting.value for setting in settings if setting.field == SPECTRAL]
    if len(bounds) > 1:
        raise BadInput(f"spectral of {trial.method} is given twice.")
    if bounds and hasattr(trial.hparams, "bound"):  # results have a column for one bound only
        raise BadInput(f"{trial.method} has a bound of its own: write {trial.method}.bound={bounds[0]}.")
    pairs = [(setting.field, setting.value) for setting in settings if setting.field != SPECTRAL]
    hparams = with_values(trial.hparams, pairs, trial.method)
    spectral = spectral_target(bounds[0], f"{trial.method}.{SPECTRAL}") if bounds else trial.spectral
    return replace(trial, hparams=hparams, spectral=spectral)
