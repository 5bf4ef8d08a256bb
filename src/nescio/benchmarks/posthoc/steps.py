"""Steps of `posthoc`: select and train the networks, and compute every score of their saved outputs."""

from __future__ import annotations

from dataclasses import replace

from nescio import datasets
from nescio.benchmarks import lineup
from nescio.benchmarks.plans import DEEP_ENSEMBLE, MEMBER, registered_methods, trained_methods
from nescio.benchmarks.posthoc import MISTAKES, NAME, TRANSFORMERS, VERSION, Plan
from nescio.datasets.image_set import ImageSet
from nescio.datasets.names import absolute_name, name_for_keys
from nescio.errors import BadInput
from nescio.evaluations import Subject
from nescio.evaluations.posthoc import PostHoc
from nescio.networks.families import architecture
from nescio.networks.groups import NetworkGroup
from nescio.predictions.subset import subset_limit_note
from nescio.rows import Row
from nescio.specs import method_on
from nescio.trials import Training
from nescio.work.steps import Work


def compare(plan: Plan, work: Work) -> Plan:
    """Do what is missing in the store; return the plan with its data by its registered name."""
    root = work.context.root
    plan = replace(plan, data=name_for_keys(plan.data, root, "test" if plan.networks else None))
    if plan.networks:
        groups = lineup.existing(plan.networks, plan.data, plan.preprocessing, work)
    else:
        refuse_impossible(plan, root)
        groups = lineup.train(groups_of(plan, root), work)
    subjects = [Subject(group, plan.data, root, plan.limit, plan.seed) for group in groups]
    lineup.evaluate((NAME, VERSION), subjects, [evaluation_of(plan, root)], work)
    for row in work.rows:
        row |= {"evaluation": question_of(row), "split": "test"}
    work.add_notes(subset_limit_note(plan.limit, plan.seed, "images of the test set and of each other set"))
    return plan


# ---- networks


def training_of(plan: Plan, backbone: str) -> Training:
    """The training budget of a backbone; transformers have their own."""
    training = plan.training
    if architecture(backbone) in TRANSFORMERS:
        training = replace(training, optimizer="adamw", nesterov=False, clip=1.0, epochs=plan.transformer_epochs)
        training = replace(training, lr=plan.transformer_lr, weight_decay=plan.transformer_weight_decay)
    return training


def refuse_impossible(plan: Plan, root: str | None) -> None:
    """Refuse, before any work, what no trial could do."""
    for pair in plan.train_networks:
        method, backbone = method_on(pair)
        names = trained_methods(registered_methods([method]))
        lineup.refuse_classification(NAME, plan.data, names, (), backbone, training_of(plan, backbone), root)
    classes = len(datasets.load(plan.data, root).classes)
    if plan.held_out_classes > classes - 2:
        raise BadInput(f"Plan.held_out_classes must be at most {classes - 2}: {plan.data} has {classes} classes.")


def groups_of(plan: Plan, root: str | None) -> list[NetworkGroup]:
    """Every single network and every ensemble, under every seed."""
    count = len(datasets.load(plan.data, root).classes) - plan.held_out_classes
    classes = tuple(range(count)) if plan.held_out_classes else None

    def group(pair: str, seed: int) -> NetworkGroup:
        name, backbone = method_on(pair)
        (method,) = registered_methods([name])
        size = plan.ensemble_size if method == DEEP_ENSEMBLE else 1
        trained, training = MEMBER if method == DEEP_ENSEMBLE else method, training_of(plan, backbone)
        trials = [
            lineup.plain_trial(trained, plan.data, backbone, training, seed=seed, member=member, classes=classes)
            for member in range(size)
        ]
        return lineup.average(trials, root)

    return [group(pair, seed) for pair in plan.train_networks for seed in range(plan.seeds)]


# ---- evaluation


def evaluation_of(plan: Plan, root: str | None) -> PostHoc:
    near, far = (
        tuple(ImageSet(absolute_name(name), "all_ood").with_content_name(root).data for name in names)
        for names in (plan.near_ood, plan.far_ood)
    )
    return PostHoc(near=near, far=far, fit_images=plan.fit_images, sampled_ood=True)


def question_of(row: Row) -> str:
    """The question that a result of the evaluation belongs to."""
    if row["split"] == "test":
        return MISTAKES if row["measure"] else "classification"
    return f"{row['split']}-ood"
