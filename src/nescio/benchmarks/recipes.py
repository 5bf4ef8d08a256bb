"""Hyper-parameters that a plan fixes, METHOD.FIELD=VALUE: the option --hparams."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from nescio.errors import BadInput
from nescio.options import option
from nescio.search import with_values
from nescio.specs import HyperParameter
from nescio.trials import Trial, spectral_target

SPECTRAL = "spectral"  # not a field of the hyper-parameters: every method can be bounded


def fixed_option(default: tuple[str, ...] = ()) -> Any:
    return option(default, metavar="METHOD.FIELD=VALUE,…", unset="none", introduced=())


def check_fixed(words: Iterable[str]) -> None:
    """Refuses words of another form."""
    for word in words:
        HyperParameter.parse(word)


def refuse_fixed(words: Iterable[str]) -> None:
    """Refuses unknown methods, fields and values before any work."""
    from nescio.methods import registry as methods

    for word in words:
        name = methods[HyperParameter.parse(word).method].name
        with_fixed(Trial(method=name, hparams=methods[name].hparams_class(), data="", backbone=""), [word])


def with_fixed(trial: Trial, words: Iterable[str]) -> Trial:
    """The trial with the hyper-parameters that texts set for its method, and `spectral`, the bound of all layers."""
    own = [setting for setting in map(HyperParameter.parse, words) if setting.method == trial.method]
    bounds = [setting.value for setting in own if setting.field == SPECTRAL]
    if len(bounds) > 1:
        raise BadInput(f"spectral of {trial.method} is given twice.")
    if bounds and hasattr(trial.hparams, "bound"):  # it would hide the hyper-parameters', and rows would name that one
        raise BadInput(f"{trial.method} has a bound of its own: write {trial.method}.bound={bounds[0]}.")
    pairs = [(setting.field, setting.value) for setting in own if setting.field != SPECTRAL]
    hparams = with_values(trial.hparams, pairs, trial.method)
    spectral = spectral_target(bounds[0], f"{trial.method}.{SPECTRAL}") if bounds else trial.spectral
    return replace(trial, hparams=hparams, spectral=spectral)
