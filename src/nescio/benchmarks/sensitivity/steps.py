"""What `sensitivity` does: the steps of `shift`, for every strength, with turned images in place of corrupted ones."""

from __future__ import annotations

from dataclasses import replace

from nescio.benchmarks.checks import refuse_measures
from nescio.benchmarks.deep_ensembles import DEEP_ENSEMBLE, MEMBER, own_names, trained_methods
from nescio.benchmarks.sensitivity import NAME, VERSION, Plan
from nescio.benchmarks.shift.steps import (
    CLEAN,
    EVALUATE,
    Level,
    average,
    evaluation_step,
    init_seed,
    plain_trial,
    refuse_impossible,
    with_strength,
)
from nescio.datasets.changes import Rotation
from nescio.datasets.image_set import ImageSet
from nescio.datasets.names import name_for_keys
from nescio.errors import BadInput
from nescio.methods import registry as methods
from nescio.methods.base import Method
from nescio.search import searched
from nescio.specs import HyperParameter
from nescio.trials import Trial
from nescio.work.steps import Work


def compare(plan: Plan, work: Work) -> Plan:
    """Does what is missing in the store; returns the plan with its methods and data by their own names."""
    root = work.context.root
    plan = replace(plan, data=name_for_keys(plan.data, root), methods=own_names(plan.methods))
    trained = trained_methods(plan.methods)
    if fixed := [name for name in trained if not _can_vary(methods[name])]:
        raise BadInput(f"{fixed[0]} has no regularisation strength that could be varied, and no weight decay either.")
    for word in plan.hparams:
        name, field, _ = HyperParameter.of(word)
        if name in methods and (method := methods[name]).name in trained and field == method.varied_hparam():
            raise BadInput(f"Plan.hparams has {word}, but {field} is the strength of {name} that is varied. Omit it.")
    refuse_measures(plan.measures, trained, kept=("logits",))
    refuse_impossible(NAME, plan, root)
    levels, trials = levels_of(plan), trials_of(plan)
    about = NAME, VERSION
    steps = [evaluation_step(about, average(members, root), levels, {}, plan.measures, root) for members in trials]
    work.evaluate(f"train, {EVALUATE}", steps)
    return plan


def _can_vary(method: type[Method]) -> bool:
    return method.strength_hparam is not None or method.varied_hparam() in searched(method.hparams_class)


def levels_of(plan: Plan) -> dict[Level, ImageSet]:
    """The test images as they are, and turned."""
    clean = ImageSet(plan.data)
    changes = [Rotation(float(degrees)) for degrees in plan.degrees]
    return {CLEAN: clean} | {(each.condition, each.level): replace(clean, change=each) for each in changes}


def trials_of(plan: Plan) -> list[tuple[Trial, ...]]:
    """Every strength of every method in every run, one network or the members of a deep ensemble; `trial` counts
    strengths from the weakest on."""

    def members(name: str, run: int, number: int) -> tuple[Trial, ...]:
        deep = name == DEEP_ENSEMBLE
        seeds = [init_seed(run, member) for member in range(plan.ensemble_size if deep else 1)]
        plain = [plain_trial(plan, MEMBER if deep else name, run, seed) for seed in seeds]
        return tuple(with_strength(trial, number, plan.strengths) for trial in plain)

    return [
        members(name, run, number)
        for run in range(plan.seeds)
        for name in plan.methods
        for number in range(plan.strengths)
    ]
