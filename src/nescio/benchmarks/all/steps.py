"""What `run all` does: decide the networks, train them, predict every image set once, evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from nescio import datasets, evaluations
from nescio.benchmarks import lineup
from nescio.benchmarks.all import NAME, VERSION, Plan
from nescio.benchmarks.all.leaderboard import line_of
from nescio.benchmarks.checks import refuse_training
from nescio.benchmarks.deep_ensembles import DEEP_ENSEMBLE, own_names, trained_methods
from nescio.datasets.names import absolute_name, name_for_keys
from nescio.errors import BadInput
from nescio.evaluations import Evaluation, Subject
from nescio.identity import canonical
from nescio.methods import registry as methods
from nescio.networks.groups import NetworkGroup
from nescio.report.studies import read_study
from nescio.rows import merge_networks
from nescio.search import HParams
from nescio.trials import Trial
from nescio.work.steps import Work

# Settings that two studies must share before their lines stand in one leaderboard.
SAME = (
    *("data", "left_out", "backbone", "near", "far", "downstream", "human", "corruptions", "severities", "limit"),
    *("seed", "training"),
)


def compare(plan: Plan, work: Work) -> Plan:
    """Do what is missing in the store; return the plan with its methods and data by their registered names."""
    root = work.context.root
    plan = replace(
        plan,
        data=name_for_keys(plan.data, root, "test" if plan.networks else None),
        methods=own_names(plan.methods or (*sorted(methods), *([DEEP_ENSEMBLE] if plan.members else []))),
    )
    configured_evaluations = evaluations_of(plan)
    for name in (*plan.near, *plan.far, *plan.downstream, *plan.human):
        datasets.load(absolute_name(name), root, "all")  # a missing set is refused before hours of training
    if not plan.networks:
        groups = lineup.train(groups_of(plan, work), work, partial(refuse_impossible, plan, root))
    else:
        groups = lineup.existing(plan.networks, plan.data, plan.preprocessing, work)
    subjects = [Subject(each, plan.data, root, plan.limit, plan.seed) for each in groups]
    lineup.evaluate((NAME, VERSION), subjects, configured_evaluations, work)
    if plan.against:
        add_stored_lines(plan, work)
    work.add_notes(*lineup.mark_undertrained(work.networks, plan.reaches))
    return plan


def add_stored_lines(plan: Plan, work: Work) -> None:
    """Add the lines of a finished study that this one does not have, if both have the same budget and image sets."""
    path = str(plan.against)
    study = read_study(path)
    if study.benchmark != NAME or not study.plan:
        raise BadInput(f"{path} is not a study of `nescio run all` with its plan: name its folder.")
    mine = canonical(plan)
    different = [name for name in SAME if canonical(study.plan.get(name)) != mine.get(name)]
    if different:
        raise BadInput(
            f"{path} was made with another {', '.join(different)}: its numbers cannot be compared with these. "
            "Use the same settings, or train its methods again."
        )
    known = {line_of(row) for row in work.rows}
    rows = [row for row in study.rows if line_of(row) not in known]
    networks = {row["network"] for row in rows}
    work.rows += rows
    work.networks = merge_networks(
        [*work.networks, *(entry for entry in study.networks if entry["network"] in networks)]
    )
    work.times = merge_networks([*work.times, *(entry for entry in study.times if entry["network"] in networks)])
    names = dict.fromkeys(str(row["method"]) for row in rows)
    work.add_notes(f"Read from {path}: {', '.join(names)}." if names else f"{path} has no further methods.")


def refuse_impossible(plan: Plan, root: str | None) -> None:
    """Refuse, before any work, what no trial could do."""
    dataset = datasets.load(plan.data, root)
    classes = trained_classes(plan, root)
    rows = len(datasets.split_dataset(dataset, classes).train)
    refuse_training(dataset, (plan.backbone,), plan.training, rows)


def trained_classes(plan: Plan, root: str | None) -> tuple[int, ...] | None:
    """The classes that networks are trained on; None: all."""
    if not plan.left_out:
        return None
    count = len(datasets.load(plan.data, root).classes)
    if count - plan.left_out < 2:
        raise BadInput(f"{plan.data} has {count} classes: at least two must be trained, not {count - plan.left_out}.")
    return tuple(range(count - plan.left_out))


def groups_of(plan: Plan, work: Work) -> list[NetworkGroup]:
    """Single networks, then averages, of every method; the first seed of all methods comes first."""
    root = work.context.root
    classes = trained_classes(plan, root)

    def trial_of(name: str, hparams: HParams, number: int, seed: int = 0, member: int = 0) -> Trial:
        return lineup.plain_trial(
            name,
            plan.data,
            plan.backbone,
            plan.training,
            seed=seed,
            member=member,
            fixed=plan.hparams,
            hparams=hparams,
            classes=classes,
            number=number,
        )

    names = trained_methods(plan.methods)
    chosen = lineup.search(trial_of, names, plan.trials, plan.search_seed, work)

    def group(name: str, size: int, seed: int) -> NetworkGroup:
        number, hparams = chosen[name]
        trials = [trial_of(name, hparams, number, seed, member) for member in range(size)]
        return lineup.average(trials, root, plan.training.augment)

    lines = lineup.lines(plan.methods, plan.ensembled, plan.members)
    return [group(name, size, seed) for seed in range(plan.seeds) for name, size in lines]


def evaluations_of(plan: Plan) -> list[Evaluation]:
    """The evaluations of the plan; a setting that the plan has by the same name takes its value."""
    settings: dict[str, Any] = {
        "near": tuple(map(absolute_name, plan.near)),
        "far": tuple(map(absolute_name, plan.far)),
        "downstream": tuple(map(absolute_name, plan.downstream)),
        "voted": tuple(map(absolute_name, plan.human)),
        "corruptions": plan.corruptions,
        "severities": plan.severities,
        "limit": plan.limit,
    }
    return [configured(evaluations.registry[name], settings) for name in chosen_names(plan.evaluations)]


def chosen_names(names: Sequence[str]) -> list[str]:
    return [evaluations.registry.canonical(name) for name in names] or sorted(evaluations.registry)


def configured(cls: type[Evaluation], settings: dict[str, Any]) -> Evaluation:
    known = {each.name for each in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: value for name, value in settings.items() if name in known and value not in (None, ())})
