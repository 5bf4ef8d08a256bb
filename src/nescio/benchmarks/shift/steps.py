"""Steps of `shift`, in the order of the paper (Postels et al. 2022, section 4.1).

Train on clean images, choose each method's strength by the validation NLL of the first seed, then evaluate shifts and
OOD sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nescio.analysis.selection import best_trials
from nescio.benchmarks import lineup
from nescio.benchmarks.plans import DEEP_ENSEMBLE, MEMBER
from nescio.benchmarks.shift import NAME, REACHED, VERSION, Plan
from nescio.datasets.corruptions import CORRUPTIONS, SEVERITIES
from nescio.datasets.image_set import ImageSet
from nescio.datasets.names import name_for_keys, same_images
from nescio.errors import BadInput
from nescio.evaluations import Evaluation, Subject
from nescio.evaluations.engine import output_spec
from nescio.evaluations.ood import OutOfDistribution
from nescio.evaluations.shift import CorruptionShift
from nescio.methods import registry as methods
from nescio.networks.groups import NetworkGroup
from nescio.predictions.subset import subset_limit_note
from nescio.trials import Trial
from nescio.work.steps import Work

CHOOSE = "choose strengths"  # stage
OUTPUTS = output_spec(("logits", "scores"), "float16")


def compare(plan: Plan, work: Work) -> Plan:
    """Do what is missing in the store; return the plan with its methods and data by their registered names."""
    root = work.context.root
    plan = lineup.with_registered_names(plan, root)
    existing = lineup.existing(plan.networks, plan.data, plan.preprocessing, work) if plan.networks else []
    lineup.refuse_measures(plan.measures, methods_of(existing) if existing else plan.trained, stored=("logits",))
    evaluations = evaluations_of(plan, root)
    if not existing:
        lineup.refuse_classification(NAME, plan.data, plan.trained, plan.hparams, plan.backbone, plan.training, root)
    groups = existing or lineup.train(groups_of(plan, choose_strengths(plan, work), root), work)
    lineup.evaluate((NAME, VERSION), subjects_of(plan, groups, root), evaluations, work)
    add_notes(plan, work)
    return plan


def evaluations_of(plan: Plan, root: str | None) -> list[Evaluation]:
    """Corruptions and OOD sets; BadInput for what does not exist."""
    corruptions, severities = plan.corruptions or tuple(CORRUPTIONS), plan.severities or tuple(SEVERITIES)
    shift = CorruptionShift(corruptions, severities, plan.measures, plan.corruption_files)
    shift.changes(plan.data, root)
    names = tuple(name_for_keys(name, root, "all") for name in plan.ood)
    for name in names:
        ImageSet(name, "all_ood").load_revision(root)
        if same_images(name, plan.data, root):
            raise BadInput(f"Plan.ood has {name}, which is the in-distribution set: name another set.")
    return [shift, *([OutOfDistribution(far=names, scores=plan.measures)] if names else [])]


def subjects_of(plan: Plan, groups: Sequence[NetworkGroup], root: str | None) -> list[Subject]:
    """The groups with the test images; all of them are evaluated on the same images."""
    subjects = [Subject(group, plan.data, root, plan.limit, plan.seed) for group in groups]
    trained_here = not plan.networks or any(subject.trained_here for subject in subjects)
    return [replace(subject, split="test" if trained_here else "test_or_all") for subject in subjects]


def methods_of(groups: Sequence[NetworkGroup]) -> list[str]:
    """The methods of networks that nescio trained."""
    return [trial.method for group in groups for trial in group.trials]


def add_notes(plan: Plan, work: Work) -> None:
    """Note which networks are undertrained, and that test images are a random sample."""
    work.add_notes(*lineup.mark_undertrained(work.networks, plan.reference_accuracy or REACHED.get(plan.data)))
    images = [row["n"] for row in work.rows if row["metric"] == "accuracy" and row["task"] == "classification"]
    if plan.limit is not None and plan.limit <= max(images, default=plan.limit):  # otherwise these are all images
        work.add_notes(subset_limit_note(plan.limit, plan.seed, "test images"))


# ---- networks


def plain_trial(plan: Plan, method: str, seed: int = 0, member: int = 0) -> Trial:
    return lineup.plain_trial(
        method, plan.data, plan.backbone, plan.training, seed=seed, member=member, fixed=plan.hparams, task=plan.task
    )


def groups_of(plan: Plan, numbers: Mapping[str, int], root: str | None) -> list[NetworkGroup]:
    """Single networks of every seed, then averages; ensembles of different seeds share no network.

    numbers  method → number of its strength; other methods were not trained
    """

    def group(method: str, size: int, seed: int) -> NetworkGroup:
        count = plan.strengths if methods[method].strength_hparam else 1  # weight decay is the plan's
        default_trials = [plain_trial(plan, method, seed, member) for member in range(size)]
        trials = [lineup.with_strength(trial, numbers[method], count, default=True) for trial in default_trials]
        return lineup.average(trials, root, plan.training.augment)

    ensemble_methods = {*plan.ensemble_methods, *([MEMBER] if DEEP_ENSEMBLE in plan.methods else [])}
    lines = [(name, 1) for name in numbers]
    lines += [(name, size) for size in sorted(plan.ensemble_sizes) for name in numbers if name in ensemble_methods]
    return [group(name, size, seed) for name, size in lines for seed in range(plan.seeds)]


def choose_strengths(plan: Plan, work: Work) -> dict[str, int]:
    """Method → number of the strength with the lowest NLL of validation images, under the first seed."""
    varied_methods = [name for name in plan.trained if plan.strengths > 1 and methods[name].strength_hparam]
    trials = [
        lineup.with_strength(plain_trial(plan, name), number, plan.strengths, default=True)
        for name in varied_methods
        for number in range(plan.strengths)
    ]
    work.evaluate(CHOOSE, [lineup.search_step(trial, work.context.root, OUTPUTS) for trial in trials])
    numbers = {name: 0 for name in plan.trained if work.is_dry_run or name not in varied_methods}
    if rows := [row for row in work.rows if row["split"] == "val" and row["metric"] == "nll"]:
        best = best_trials(rows, 1, by=("method",), trials=range(plan.strengths))
        work.add_notes(*best.notes)
        numbers |= {name: number for (name,), (number,) in best.items()}
    return {name: numbers[name] for name in plan.trained if name in numbers}
