"""What `sensitivity` does: train every strength, evaluate rotated images."""

from __future__ import annotations

from dataclasses import replace

from nescio.benchmarks import lineup
from nescio.benchmarks.checks import refuse_classification, refuse_measures
from nescio.benchmarks.deep_ensembles import DEEP_ENSEMBLE, MEMBER, own_names, trained_methods
from nescio.benchmarks.sensitivity import NAME, VERSION, Plan
from nescio.datasets.names import name_for_keys
from nescio.errors import BadInput
from nescio.evaluations import Subject
from nescio.evaluations.shift import RotationShift
from nescio.methods import registry as methods
from nescio.methods.base import Method
from nescio.networks.groups import NetworkGroup
from nescio.search import searched
from nescio.specs import HyperParameter
from nescio.trials import Trial
from nescio.work.steps import Work


def compare(plan: Plan, work: Work) -> Plan:
    """Do what is missing in the store; return the plan with its methods and data by their registered names."""
    root = work.context.root
    plan = replace(plan, data=name_for_keys(plan.data, root), methods=own_names(plan.methods))
    trained = trained_methods(plan.methods)
    refuse_fixed_strengths(plan, trained)
    refuse_measures(plan.measures, trained, kept=("logits",))
    refuse_classification(NAME, plan.data, trained, plan.hparams, plan.backbone, plan.training, root)
    groups = lineup.train(groups_of(plan, root), work)
    evaluation = RotationShift(plan.degrees, plan.measures)
    lineup.evaluate((NAME, VERSION), [Subject(group, plan.data, root) for group in groups], [evaluation], work)
    return plan


def refuse_fixed_strengths(plan: Plan, trained: tuple[str, ...]) -> None:
    """Refuse methods without a strength that could be varied, and strengths that the plan fixes."""
    if fixed := [name for name in trained if not _can_vary(methods[name])]:
        raise BadInput(f"{fixed[0]} has no regularisation strength that could be varied, and no weight decay either.")
    for word in plan.hparams:
        name, field, _ = HyperParameter.parse(word)
        if name in methods and (method := methods[name]).name in trained and field == method.varied_hparam():
            raise BadInput(f"Plan.hparams has {word}, but {field} is the strength of {name} that is varied. Omit it.")


def _can_vary(method: type[Method]) -> bool:
    return method.strength_hparam is not None or method.varied_hparam() in searched(method.hparams_class)


def plain_trial(plan: Plan, method: str, seed: int = 0, member: int = 0) -> Trial:
    return lineup.plain_trial(
        method, plan.data, plan.backbone, plan.training, seed=seed, member=member, fixed=plan.hparams
    )


def groups_of(plan: Plan, root: str | None) -> list[NetworkGroup]:
    """Every strength of every method and seed, as one network or a deep ensemble; `trial` is the strength's number."""

    def group(name: str, seed: int, number: int) -> NetworkGroup:
        method, size = (MEMBER, plan.ensemble_size) if name == DEEP_ENSEMBLE else (name, 1)
        plain = [plain_trial(plan, method, seed, member) for member in range(size)]
        return lineup.average([lineup.with_strength(trial, number, plan.strengths) for trial in plain], root)

    return [
        group(name, seed, number)
        for seed in range(plan.seeds)
        for name in plan.methods
        for number in range(plan.strengths)
    ]
