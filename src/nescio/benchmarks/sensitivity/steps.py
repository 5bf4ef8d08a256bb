"""Steps of `sensitivity`: train every strength, evaluate rotated images."""

from __future__ import annotations

from itertools import product

from nescio.benchmarks import lineup
from nescio.benchmarks.plans import DEEP_ENSEMBLE, MEMBER
from nescio.benchmarks.sensitivity import NAME, VERSION, Plan
from nescio.evaluations import Subject
from nescio.evaluations.shift import RotationShift
from nescio.networks.groups import NetworkGroup
from nescio.work.steps import Work


def compare(plan: Plan, work: Work) -> Plan:
    """Do what is missing in the store; return the plan with its methods and data by their registered names."""
    root = work.context.root
    plan = lineup.with_registered_names(plan, root)
    lineup.refuse_fixed_strengths(plan.trained, plan.hparams)
    lineup.refuse_measures(plan.measures, plan.trained, stored=("logits",))
    lineup.refuse_classification(NAME, plan.data, plan.trained, plan.hparams, plan.backbone, plan.training, root)
    groups = lineup.train(groups_of(plan, root), work)
    subjects = [Subject(group, plan.data, root) for group in groups]
    lineup.evaluate((NAME, VERSION), subjects, [RotationShift(plan.degrees, plan.measures)], work)
    return plan


def groups_of(plan: Plan, root: str | None) -> list[NetworkGroup]:
    """Every strength of every method and seed, as one network or a deep ensemble; `trial` is the strength's number."""

    def group(seed: int, name: str, number: int) -> NetworkGroup:
        method, size = (MEMBER, plan.ensemble_size) if name == DEEP_ENSEMBLE else (name, 1)
        budget = (method, plan.data, plan.backbone, plan.training)
        members = [lineup.plain_trial(*budget, seed=seed, member=n, fixed=plan.hparams) for n in range(size)]
        return lineup.average([lineup.with_strength(trial, number, plan.strengths) for trial in members], root)

    return [group(*line) for line in product(range(plan.seeds), plan.methods, range(plan.strengths))]
