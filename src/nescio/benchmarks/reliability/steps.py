"""Steps of `reliability`: train, evaluate representations of every candidate, rank the candidates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from nescio import datasets
from nescio.analysis.representations.agreement import SweepOptions, add_rankings
from nescio.analysis.representations.candidates import common_member_count
from nescio.analysis.representations.downstream import DownstreamLosses
from nescio.benchmarks import lineup
from nescio.benchmarks.reliability import NAME, VERSION, Plan
from nescio.datasets.names import name_for_keys
from nescio.errors import BadInput
from nescio.evaluations import Subject
from nescio.evaluations.reliability import SCORES, Reliability, Representation
from nescio.identity import map_content
from nescio.methods import registry as methods
from nescio.networks.groups import NetworkGroup
from nescio.predictions.columns import from_npz
from nescio.rows import Row, RowBuilder
from nescio.training import check_views
from nescio.trials import Trial
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step, Work, files_of, make_evaluation


def compare(plan: Plan, work: Work) -> None:
    """Do what is missing in the store, and collect the results of all candidates."""
    root = work.context.root
    plan = by_content(plan, root)
    check_possible(plan, work)
    planned_groups = [lineup.average([trial], root) for trial in trials_of(plan)]
    groups = lineup.train(planned_groups, work)
    candidates = by_candidate(groups)
    for name, planned_networks in by_candidate(planned_groups).items():
        if len(candidates.get(name, ())) < len(planned_networks):
            work.add_notes(f"{name}: {len(candidates.get(name, ()))} of {len(planned_networks)} networks are there.")
    members, notes = common_member_count({name: len(networks) for name, networks in candidates.items()})
    work.add_notes(*notes)
    finished_steps: list[Step] = []
    for data, targets in plan.sources.items():
        trained = [Subject(group, data, root) for group in groups if group.columns["dataset"] == data]
        accuracies = [Representation(target, plan.k_accuracy) for target in targets]
        lineup.evaluate((NAME, VERSION), trained, accuracies, work)
        compared_ids = {id(group) for networks in candidates.values() for group in networks[:members]}
        siblings = [subject for subject in trained if id(subject.group) in compared_ids]
        finished_steps += lineup.evaluate(
            (NAME, VERSION), siblings, [evaluation_of(plan, target) for target in targets], work
        )
    work.evaluate("rank candidates", rank_steps(finished_steps))


def by_content(plan: Plan, root: str | None) -> Plan:
    """The plan with data and targets by their absolute names and contents."""

    def target(text: str) -> str:
        source, name = plan.divided(text)
        prefix = f"{name_for_keys(source, root)}=" if source else ""
        return map_content(name_for_keys(name, root), lambda name: f"{prefix}{name}")

    data = tuple(name_for_keys(name, root) for name in plan.pretraining_data)
    return replace(plan, pretraining_data=data, downstream=tuple(map(target, plan.downstream)))


# ---- networks


def trials_of(plan: Plan) -> list[Trial]:
    """Pre-training sets × backbones × methods; low seeds first, so that a stopped run has some of every candidate.

    The networks of a candidate share their division into training and validation images.
    """
    names = product(*map(dict.fromkeys, (plan.pretraining_data, plan.backbones, plan.methods)))
    trials = [lineup.plain_trial(name, data, backbone, plan.training) for data, backbone, name in names]
    counts = [dict(plan.method_seeds).get(trial.method, plan.seeds) for trial in trials]
    return [
        replace(trial, init_seed=seed)
        for seed in range(max(counts))
        for trial, count in zip(trials, counts, strict=True)
        if seed < count
    ]


def by_candidate(groups: Iterable[NetworkGroup]) -> dict[str, list[NetworkGroup]]:
    """Networks by method, backbone and pre-training data."""
    candidates: dict[str, list[NetworkGroup]] = {}
    for group in groups:
        name = ", ".join(str(group.columns[column]) for column in ("method", "backbone", "dataset"))
        candidates.setdefault(name, []).append(group)
    return candidates


def evaluation_of(plan: Plan, target: str) -> Reliability:
    """All scores, sweeps and draws of references, with heads on one target."""
    shared = {name: getattr(plan, name) for name in SweepOptions.__dataclass_fields__}
    return Reliability(
        **shared,
        target=target,
        references=plan.reference_size,
        draws=plan.reference_samples,
        images=None,
        tasks=plan.tasks,
        detailed=True,
    )


def check_possible(plan: Plan, work: Work) -> None:
    """Refuse impossible plans before any work; note data with too few images."""
    root, nearest = work.context.root, max(plan.k, plan.k_dist)
    for data, targets in plan.sources.items():
        source = datasets.load(data, root)
        work.add_notes(*(f"{data}: {note}" for note in source.notes))
        rows = len(datasets.split_dataset(source).train)
        if rows < plan.reference_size:
            work.add_notes(
                f"All {rows:,} training images of {data} are references: samples of references do not differ."
            )
        if nearest > (count := min(rows, plan.reference_size)):
            raise BadInput(f"k is {nearest}, but {data} has only {count} references: choose a smaller k.")
        lineup.refuse_training(source, plan.backbones, plan.training, rows)
        for target in targets:
            downstream = datasets.load(target, root)
            if downstream.channels != source.channels:
                raise BadInput(
                    f"{target} has images of {downstream.channels} channel(s), {data} of {source.channels}: "
                    "a network of one cannot predict the other."
                )
            if len(downstream.classes) < 2:
                raise BadInput(f"{target} has one class only: downstream heads need two or more.")
    for name in plan.methods:
        if methods[name].classifies:
            raise BadInput(f"reliability compares methods that need no labels, and {name} needs them: omit it.")
        check_views(plan.training, methods[name].views)


# ---- rankings of candidates


def rank_steps(evaluated: Iterable[Step]) -> list[Step]:
    """One step for the candidates that differ in their method alone, among which Table 3 chooses."""
    candidates: dict[tuple[str, ...], list[Step]] = {}
    for step in evaluated:
        columns, evaluation = step.config["columns"], step.config["evaluation"]
        key = columns["dataset"], columns["backbone"], evaluation.target
        candidates.setdefault(tuple(map(str, key)), []).append(step)
    return [rank_step(key, steps) for key, steps in candidates.items() if len(steps) > 1]


def rank_step(key: Sequence[str], steps: Sequence[Step]) -> Step:
    columns, evaluation = steps[0].config["columns"], steps[0].config["evaluation"]
    facts = {"benchmark": NAME, "version": VERSION, "target": evaluation.target, "evaluation": "ranking"}
    facts |= {name: columns[name] for name in ("dataset", "backbone")}
    make = partial(_make_ranking, steps=tuple(steps), facts=facts)
    return make_evaluation(NAME, VERSION, f"ranking, {', '.join(key)}", {"kind": "ranking"}, steps, make)


def _make_ranking(step_folder: StepFolder, context: Context, steps: Sequence[Step], facts: Row) -> Files:
    results = RowBuilder(facts, reported=("backbone", "target", "evaluation"))
    arrays = [from_npz(step.verified(context.store) / SCORES) for step in steps]
    losses = [DownstreamLosses.from_arrays(candidate) for candidate in arrays]
    evaluation = steps[0].config["evaluation"]
    for distance, draw in product(evaluation.distances, range(evaluation.draws)):
        prefix = f"{distance}/{draw}/"
        scores = [
            {name.removeprefix(prefix): u for name, u in candidate.items() if name.startswith(prefix)}
            for candidate in arrays
        ]
        add_rankings(scores, losses, results, distance=distance, draw=draw)
    return files_of(results)
