"""Steps of `run all`: select and train the networks, predict every image set once, evaluate."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from functools import partial

from nescio import datasets, evaluations
from nescio.benchmarks import lineup
from nescio.benchmarks.all import NAME, VERSION, Plan
from nescio.benchmarks.all.leaderboard import line_of
from nescio.benchmarks.plans import DEEP_ENSEMBLE
from nescio.datasets.names import absolute_name
from nescio.errors import BadInput
from nescio.evaluations import Evaluation, Subject
from nescio.methods import registry as methods
from nescio.networks.groups import NetworkGroup
from nescio.report.studies import Study, read_study
from nescio.rows import Row, merge_networks
from nescio.trials import Trial
from nescio.work.steps import Work

# Settings that the studies of one leaderboard share
SAME = (
    *("data", "held_out_classes", "backbone", "near_ood", "far_ood", "downstream", "annotated"),
    *("corruptions", "severities", "limit", "seed"),
)


def compare(plan: Plan, work: Work) -> Plan:
    """Do what is missing in the store; return the plan with its methods and data by their registered names."""
    root = work.context.root
    all_methods = (*sorted(methods), *([DEEP_ENSEMBLE] if plan.ensemble_sizes else []))
    plan = lineup.with_registered_names(replace(plan, methods=plan.methods or all_methods), root)
    configured_evaluations = evaluations_of(plan)
    for name in (*plan.near_ood, *plan.far_ood, *plan.downstream, *plan.annotated):
        datasets.load(absolute_name(name), root, "all")  # a missing set is refused before hours of training
    earlier_study = read_comparable(plan) if plan.against else None
    if not plan.networks:
        groups = lineup.train(groups_of(plan, work), work, partial(refuse_impossible, plan, root))
    else:
        groups = lineup.existing(plan.networks, plan.data, plan.preprocessing, work)
    subjects = [Subject(group, plan.data, root, plan.limit, plan.seed) for group in groups]
    lineup.evaluate((NAME, VERSION), subjects, configured_evaluations, work)
    if earlier_study is not None:
        add_lines(earlier_study, plan, work)
    work.add_notes(*lineup.mark_undertrained(work.networks, plan.reference_accuracy))
    return plan


def read_comparable(plan: Plan) -> Study:
    """The finished study to compare with; refused unless both have the same budget and image sets."""
    path = str(plan.against)
    study = read_study(path)
    if study.benchmark != NAME or not study.plan:
        raise BadInput(f"{path} is not a study of `nescio run all` with its plan: name its folder.")
    earlier_settings, own_settings = settings_of(study.plan), settings_of(json.loads(json.dumps(asdict(plan))))
    different = [name for name in own_settings if earlier_settings.get(name) != own_settings[name]]
    if different:
        values = "; ".join(
            f"{name} is {earlier_settings.get(name)} there and {own_settings[name]} here" for name in different
        )
        raise BadInput(f"The numbers of {path} cannot be compared with these: {values}. Use the same settings.")
    return study


def settings_of(plan: Row) -> Row:
    """The settings that two studies must share, those of the training one by one."""
    shared = {name: plan.get(name) for name in SAME}
    return shared | {f"training.{name}": value for name, value in (plan.get("training") or {}).items()}


def add_lines(study: Study, plan: Plan, work: Work) -> None:
    """Add the lines of a finished study that this one does not have."""
    present_lines = {line_of(row) for row in work.rows}
    rows = [row for row in study.rows if line_of(row) not in present_lines]
    networks = {row["network"] for row in rows}

    def entries(stored: Sequence[Row]) -> list[Row]:
        return [entry for entry in stored if entry["network"] in networks]

    work.rows += rows
    work.networks = merge_networks([*work.networks, *entries(study.networks)])
    work.times = merge_networks([*work.times, *entries(study.times)])
    names = dict.fromkeys(str(row["method"]) for row in rows)
    work.add_notes(f"Read from {plan.against}: {', '.join(names)}." if names else f"{plan.against} adds no method.")


def refuse_impossible(plan: Plan, root: str | None) -> None:
    """Refuse, before any work, what no trial could do."""
    dataset = datasets.load(plan.data, root)
    classes = trained_classes(plan, root)
    rows = len(datasets.split_dataset(dataset, classes).train)
    lineup.refuse_training(dataset, (plan.backbone,), plan.training, rows)


def trained_classes(plan: Plan, root: str | None) -> tuple[int, ...] | None:
    """The classes that networks are trained on; None: all."""
    if not plan.held_out_classes:
        return None
    count = len(datasets.load(plan.data, root).classes)
    if count - plan.held_out_classes < 2:
        raise BadInput(
            f"{plan.data} has {count} classes: at least two must be trained, not {count - plan.held_out_classes}."
        )
    return tuple(range(count - plan.held_out_classes))


def groups_of(plan: Plan, work: Work) -> list[NetworkGroup]:
    """Single networks, then averages, of every method; the first seed of all methods comes first."""
    root, classes = work.context.root, trained_classes(plan, work.context.root)
    networks: Row = {"data": plan.data, "backbone": plan.backbone, "fixed": plan.hparams, "classes": classes}
    trial_of: Callable[..., Trial] = partial(lineup.plain_trial, training=plan.training, **networks)
    chosen = lineup.search(trial_of, plan.trained, plan.trials, plan.search_seed, work)

    def group(name: str, size: int, seed: int) -> NetworkGroup:
        number, hparams = chosen[name]
        trials = [trial_of(name, hparams=hparams, number=number, seed=seed, member=member) for member in range(size)]
        return lineup.average(trials, root, plan.training.augment)

    lines = lineup.lines(plan.methods, plan.ensemble_methods, plan.ensemble_sizes)
    return [group(name, size, seed) for seed in range(plan.seeds) for name, size in lines]


def evaluations_of(plan: Plan) -> list[Evaluation]:
    """The evaluations of the plan; a setting that the plan has by the same name takes its value."""
    settings: Row = {
        "near": tuple(map(absolute_name, plan.near_ood)),
        "far": tuple(map(absolute_name, plan.far_ood)),
        "downstream": tuple(map(absolute_name, plan.downstream)),
        "voted": tuple(map(absolute_name, plan.annotated)),
        "corruptions": plan.corruptions,
        "severities": plan.severities,
        "limit": plan.limit,
    }
    names = map(evaluations.registry.canonical, plan.evaluations or sorted(evaluations.registry))
    return [configured(evaluations.registry[name], settings) for name in names]


def configured(cls: type[Evaluation], settings: Row) -> Evaluation:
    names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: value for name, value in settings.items() if name in names and value not in (None, ())})
