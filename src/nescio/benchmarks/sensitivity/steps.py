"""Steps of `sensitivity`: train every strength, evaluate rotated images."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from nescio.benchmarks import lineup
from nescio.benchmarks.checks import refuse_classification, refuse_measures
from nescio.benchmarks.deep_ensembles import DEEP_ENSEMBLE, MEMBER, own_names, trained_methods
from nescio.benchmarks.sensitivity import NAME, VERSION, Plan
from nescio.datasets.names import name_for_keys
from nescio.evaluations import Subject
from nescio.evaluations.shift import RotationShift
from nescio.networks.groups import NetworkGroup
from nescio.work.steps import Work


def compare(plan: Plan, work: Work) -> Plan:
    """Do what is missing in the store; return the plan with its methods and data by their registered names."""
    root = work.context.root
    plan = replace(plan, data=name_for_keys(plan.data, root), methods=own_names(plan.methods))
    trained = trained_methods(plan.methods)
    lineup.refuse_fixed_strengths(trained, plan.hparams)
    refuse_measures(plan.measures, trained, kept=("logits",))
    refuse_classification(NAME, plan.data, trained, plan.hparams, plan.backbone, plan.training, root)
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
