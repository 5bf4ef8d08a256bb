"""The networks of a benchmark: trained ones, averages of several, and existing ones; and their evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, Literal, TypeVar

import numpy as np

from nescio import backbones, datasets, measures, metrics
from nescio.analysis.selection import Selection, best_trials
from nescio.benchmarks.plans import (
    DEEP_ENSEMBLE,
    MEMBER,
    SEED_STRIDE,
    NetworkPlan,
    name_of_average,
    refuse_hparams,
    registered_methods,
    with_fixed_hparams,
)
from nescio.datasets.image_set import ImageSet
from nescio.datasets.names import name_for_keys, same_images
from nescio.errors import BadInput
from nescio.evaluations import Evaluation, Subject
from nescio.evaluations.engine import plan_steps
from nescio.methods import registry as methods
from nescio.networks.groups import NetworkGroup
from nescio.networks.models import find_network, network_of_trial, with_weights
from nescio.networks.network import describe_preprocessing, with_preprocessing
from nescio.networks.preprocessing import Preprocessing
from nescio.predict import OutputSpec, load_predictions, predict_step
from nescio.rows import NetworkFacts, Row, RowBuilder, merge_networks
from nescio.search import HParams, draw, searched
from nescio.specs import HyperParameter
from nescio.training import check_batch, check_compiled, facts_of, title_of, train_step
from nescio.trials import Training, Trial
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step, Work, files_of, make_evaluation
from nescio.work.store import Store
from nescio.work.store_errors import StoreError

L = TypeVar("L", bound=Hashable)  # a line: what is searched separately
LINE = ("method", "backbone", "spectral")  # columns of what is searched separately
TRAIN, SEARCH, EVALUATE = "train", "search hyper-parameters", "predict and evaluate"  # stages
UNDERTRAINED_GAP = 0.05  # below the training accuracy of plain training
Task = Literal["classification", "segmentation"]


P = TypeVar("P", bound=NetworkPlan)


def with_registered_names(plan: P, root: str | None) -> P:
    """The plan with its methods and data by their registered names; existing networks may need test images alone."""
    data = name_for_keys(plan.data, root, "test" if getattr(plan, "networks", ()) else None)
    return replace(plan, data=data, methods=registered_methods(plan.methods))  # type: ignore[type-var]


def plain_trial(
    method: str,
    data: str,
    backbone: str,
    training: Training,
    *,
    seed: int = 0,
    member: int = 0,
    fixed: Iterable[str] = (),
    hparams: HParams | None = None,
    classes: tuple[int, ...] | None = None,
    number: int = 0,
    task: Task = "classification",
) -> Trial:
    """A method under one seed, with its defaults except the `fixed` hyper-parameters, METHOD.FIELD=VALUE.

    seed    of the validation images and the initial weights
    member  of an ensemble: other initial weights, the same validation images
    number  of the hyper-parameters

    A method that compares views of an image has augmentations of its own.
    """
    cls = methods[method]
    augment: Any = cls.augment or training.augment
    trial = Trial(
        method=method,
        hparams=hparams or cls.hparams_class(),
        data=data,
        backbone=backbone,
        training=replace(training, augment=augment),
        classes=classes,
        spectral=cls.spectral_default,
        trial=number,
        data_seed=seed,
        init_seed=seed + member * SEED_STRIDE,
        task=task,
    )
    return with_fixed_hparams(trial, fixed)


def average(trials: Sequence[Trial], root: str | None, augment: str | None = None) -> NetworkGroup:
    """The networks of these trials, averaged; one alone is a group of one.

    augment  the augmentation of the plan, to mark groups that have another

    An average of several hyper-parameters is no deep ensemble: it keeps the name of its method.
    """
    columns = columns_of(trials[0]) | {"members": len(trials)}
    if len({trial.trial for trial in trials}) > 1:
        columns |= {"trial": None, "init_seed": None}
    else:
        columns["method"] = name_of_average(trials[0].method, len(trials))
    differs = augment is not None and trials[0].training.augment != augment
    return NetworkGroup(tuple(network_of_trial(trial, root) for trial in trials), columns, differs)


def columns_of(trial: Trial) -> Row:
    """The columns of all results of one trained network."""
    return trial.describe() | {"members": 1, "task": trial.task}


def train(groups: Sequence[NetworkGroup], work: Work, before: Callable[[], None] | None = None) -> list[NetworkGroup]:
    """Train every network; return the groups whose networks are all trained."""
    root = work.context.root
    steps = {trial: train_step(trial, root) for group in groups for trial in group.trials}
    work.run_stage(TRAIN, steps.values(), before)
    return [group for group in groups if all(work.will_exist(steps[trial]) for trial in group.trials)]


def lines(names: Sequence[str], ensemble_names: Sequence[str], sizes: Sequence[int]) -> list[tuple[str, int]]:
    """(method, networks) of every line of a table: single networks first, then averages."""
    single = [(name, 1) for name in names if name != DEEP_ENSEMBLE]
    averaged = [*ensemble_names, *([MEMBER] if DEEP_ENSEMBLE in names else [])]
    return single + [(name, size) for size in sorted(sizes) for name in averaged]


def search(
    trial_of: Callable[..., Trial], names: Iterable[str], count: int, seed: int, work: Work
) -> dict[str, tuple[int, HParams]]:
    """Method → number and hyper-parameters with the lowest NLL of validation images, of `count` random draws.

    trial_of  (method, hparams=…, number=…) → the trial of the first seed

    Draw 0 has the defaults, and fields that methods share are drawn alike for all of them. A method that predicts no
    classes keeps its defaults.
    """
    chosen = {name: (0, methods[name].hparams_class()) for name in names}
    if count == 1:
        return chosen
    hparam_classes = {name: cls.hparams_class for name in chosen if (cls := methods[name]).classifies}

    def numbered(name: str, hparams: HParams, number: int) -> Trial:
        return trial_of(name, hparams=hparams, number=number)

    drawn = random_trials(hparam_classes, numbered, count, seed)
    steps = {trial: search_step(trial, work.context.root) for trials in drawn.values() for trial in trials}
    done = set(work.evaluate(SEARCH, steps.values()))
    for name, trials in drawn.items():
        nll = {trial: validation_nll(steps[trial], work.store) for trial in trials if steps[trial] in done}
        if values := {trial: value for trial, value in nll.items() if value is not None}:
            best = min(values, key=lambda trial: values[trial])
            chosen[name] = best.trial, best.hparams
    return chosen


def random_trials(
    hparam_classes: Mapping[L, type[HParams]], trial_of: Callable[[L, HParams, int], Trial], count: int, seed: int
) -> dict[L, list[Trial]]:
    """The trials of every line: number 0 has the defaults, the others are random draws.

    trial_of  (line, hyper-parameters, their number) → trial
    """
    return {
        line: [trial_of(line, draw(cls, number, seed), number) for number in range(count)]
        for line, cls in hparam_classes.items()
    }


def best_averages(trials: Iterable[Trial], sizes: Sequence[int], rows: Iterable[Row], work: Work) -> list[NetworkGroup]:
    """The best k trials of every line by the mean validation NLL over data seeds, for each size k and data seed.

    trials  of the search, with all numbers and data seeds
    rows    their validation NLL

    Each average is listed once: if trials failed, the best five may be the best one. Before the search has run, a dry
    run takes the first trials.
    """
    of_number = {(line_of(trial), trial.trial, trial.data_seed): trial for trial in trials}
    numbers = sorted({number for _, number, _ in of_number})
    seeds = sorted({seed for _, _, seed in of_number})
    values = [row for row in rows if (row["split"], row["metric"]) == ("val", "nll")]
    groups: dict[tuple[Trial, ...], None] = {}
    for size in sorted({min(size, len(numbers)) for size in sizes}):
        best = Selection()
        if work.is_dry_run and len(values) < len(of_number):
            best.update({line: numbers[:size] for line, *_ in of_number})
        elif values:
            best = best_trials(values, size, by=LINE, seeds=seeds, trials=numbers)
        work.add_notes(*best.notes)
        for line, best_numbers in best.items():
            for seed in seeds:
                groups[tuple(of_number[line, number, seed] for number in best_numbers)] = None
    if max(sizes) > len(numbers):
        work.add_notes(f"With {len(numbers)} trials per method, ensembles have up to {len(numbers)} members.")
    return [average(members, work.context.root) for members in groups]


def line_of(trial: Trial) -> tuple[str, str, float | None]:
    """The key of a separate search: method, backbone and spectral bound."""
    return trial.method, trial.backbone, trial.spectral


def validation_nll(step: Step, store: Store) -> float | None:
    """The validation NLL among the results of a step; None if it failed or is damaged."""
    try:
        rows, _ = step.rows(store) if step.finished(store) else ([], [])
    except StoreError:  # the study reports it when it collects the rows
        return None
    return next((float(row["value"]) for row in rows if (row["split"], row["metric"]) == ("val", "nll")), None)


def search_step(trial: Trial, root: str | None, spec: OutputSpec | None = None) -> Step:
    """Train one trial and keep the NLL of its validation images.

    spec  what is kept of the validation images (default: logits)
    """
    images = ImageSet(trial.data, "val", trial.classes, seed=trial.data_seed)
    spec = spec or OutputSpec(fields=("logits",), precision="float32")
    predictions = predict_step(network_of_trial(trial, root), images, root=root, output_spec=spec)
    make = partial(_validation_nll, trial=trial, predictions=predictions)
    return make_evaluation("search", 1, title_of(trial), {"criterion": "nll"}, [predictions], make)


def _validation_nll(step_folder: StepFolder, context: Context, trial: Trial, predictions: Step) -> Files:
    columns: Row = {"members": 1, "task": trial.task, "evaluation": "search", "split": "val", "criterion": "nll"}
    results = RowBuilder(trial.describe() | columns)
    outcomes = measures.summary(load_predictions(predictions, context.store)).outcomes()
    results.add("nll", metrics.nll(outcomes), outcomes.n)
    results.describe(strength=strength_of(trial))
    return files_of(results)


# ---- refusals before any work


def refuse_without_labels(names: Sequence[str], benchmark: str) -> None:
    """Refuse methods that do not classify."""
    if unlabelled := [name for name in names if not methods[name].classifies]:
        raise BadInput(
            f"{benchmark} compares classifiers, and {unlabelled[0]} learns features without labels: omit it."
        )


def refuse_measures(names: Sequence[str], method_names: Sequence[str], stored: Sequence[str] | None = None) -> None:
    """Refuse measures that neither nescio nor one of the methods has.

    stored  outputs that predictions files contain beside scores (default: all that a measure may need)
    """
    if not names:
        raise BadInput("Plan.measures is empty: name at least one measure, such as entropy.")
    scores = {"native", *(score for name in method_names for score in methods[name].scores)}
    for name in names:
        if name.removeprefix(measures.SCORE) in scores:
            continue
        measure = measures.registry[name]
        if stored is not None and (measure.kind != "plain" or not set(measure.needs) <= set(stored)):
            raise BadInput(
                f"The measure {name} needs more than {' and '.join(stored)} of the test images, and no more is stored "
                "for a corruption. Take one such as entropy, msp, max_logit or energy."
            )


def refuse_classification(
    benchmark: str,
    data: str,
    names: Sequence[str],
    fixed: Sequence[str],
    backbone: str,
    training: Training,
    root: str | None,
) -> None:
    """Refuse, before any work, classifiers that cannot be trained on these images.

    names  of the trained methods
    fixed  hyper-parameters, METHOD.FIELD=VALUE
    """
    refuse_without_labels(names, benchmark)
    refuse_hparams(fixed)
    dataset = datasets.load(data, root)
    if dataset.train.maps is not None:
        raise BadInput(f"{data} has a label for every pixel: set task to segmentation.")
    if len(dataset.classes) < 2:
        raise BadInput(f"{data} has one class, {dataset.classes[0]}: a classifier needs at least two.")
    for name in names:
        check_compiled(training, name)
    refuse_training(dataset, [backbone], training, len(datasets.split_dataset(dataset, None, 0).train))


def refuse_training(dataset: datasets.Dataset, names: Sequence[str], training: Training, rows: int) -> None:
    """Refuse backbones that do not fit the images, and batches larger than the training set."""
    for name in names:
        backbones.build(name, dataset.channels, dataset.shape)
    check_batch(training, rows)


# ---- evaluation


def evaluate(
    benchmark: tuple[str, int],
    subjects: Sequence[Subject],
    evaluations: Sequence[Evaluation],
    work: Work,
    before: Callable[[], None] | None = None,
) -> list[Step]:
    """Predict every image set once per network, evaluate, and collect results and facts about the networks.

    benchmark  its name and version, columns of all results
    before     see `Work.run_stage`

    Return the evaluations that are done; in a dry run, all of them.
    """
    planned = plan_steps(subjects, evaluations, work.context.root)
    work.reasons += [reason for reason in planned.reasons if reason not in work.reasons]
    done = work.evaluate(EVALUATE, planned.steps, before)
    describe_training([subject.group for subject in subjects], work)
    for row in work.rows:
        row |= {"benchmark": benchmark[0], "version": benchmark[1]}
    return planned.steps if work.is_dry_run else done


# ---- regularisation strengths


def with_strength(trial: Trial, number: int, count: int, default: bool = False) -> Trial:
    """The trial at one of `count` regularisation strengths of its method, the weakest first; unchanged if count is 1.

    default  the trial's strength replaces the nearest of them, so that a search does not miss a method's default
    """
    if count == 1:
        return trial
    method = methods[trial.method]
    values = list(method.strength_grid(count))
    if default and (strength := strength_of(trial)):
        values[min(range(count), key=lambda index: abs(math.log(values[index] / strength)))] = strength
    value = values[number]
    if method.strength_hparam == "spectral":
        return replace(trial, trial=number, spectral=value)
    return replace(trial, trial=number, hparams=replace(trial.hparams, **{method.varied_hparam(): value}))


def refuse_fixed_strengths(names: Sequence[str], fixed: Iterable[str]) -> None:
    """Refuse methods without a strength that could be varied, and strengths that hyper-parameters fix."""
    for name in names:
        method = methods[name]
        if method.strength_hparam is None and method.varied_hparam() not in searched(method.hparams_class):
            raise BadInput(f"{name} has no regularisation strength that could be varied, and no weight decay either.")
    for assignment in fixed:
        name, field, _ = HyperParameter.parse(assignment)
        if name in methods and methods[name].name in names and field == methods[name].varied_hparam():
            raise BadInput(
                f"Plan.hparams has {assignment}, but {field} is the strength of {name} that is varied. Omit it."
            )


def strength_of(trial: Trial) -> float | None:
    """The regularisation strength of a trial; None if its hyper-parameters have none."""
    name = methods[trial.method].varied_hparam()
    return trial.spectral if name == "spectral" else getattr(trial.hparams, name, None)


# ---- facts about networks


def describe_training(groups: Iterable[NetworkGroup], work: Work) -> None:
    """Add facts about the trained networks to the table of networks."""
    if not work.is_dry_run:
        described = list(work.networks)
        for group in groups:
            facts = RowBuilder(group.columns)
            facts.describe(**training_facts(group, work.context))
            described += facts.networks
        work.networks = merge_networks(described)


def training_facts(group: NetworkGroup, context: Context) -> NetworkFacts:
    """The lowest training accuracy of the networks, their strength, and facts about bounds and Gaussians."""
    facts = [facts_of(train_step(trial, context.root), context.store) for trial in group.trials]

    def values(name: str) -> list[float]:
        return [fact[name] for fact in facts if name in fact]

    def mean(name: str) -> float | None:
        return float(np.mean(values(name))) if values(name) else None

    return {
        "train_accuracy": min(values("train_accuracy"), default=None),
        "strength": strength_of(group.trial) if group.trial else None,
        "own_augmentation": group.own_augmentation or None,
        "at_bound": mean("at_bound"),
        "rows_per_feature": mean("rows_a_feature"),
    }


# ---- seeds and ensembles


def further_seeds(trial: Trial, seeds: int) -> list[Trial]:
    """The trial with the seeds after 0, not stopped."""
    return [replace(trial, data_seed=seed, init_seed=seed, stop=None) for seed in range(1, seeds)]


def deep_ensemble(trial: Trial, size: int, root: str | None) -> NetworkGroup:
    """The average of networks that differ from a trial in their initial weights alone."""
    members = [replace(trial, init_seed=trial.init_seed + number * SEED_STRIDE) for number in range(size)]
    return average(members, root)


# ---- existing networks


def existing(
    names: Sequence[str],
    data: str,
    preprocessing: Preprocessing,
    work: Work,
    *,
    further_data: Sequence[str] = (),
    same_classes: bool = True,
) -> list[NetworkGroup]:
    """Networks by name: timm's, torchvision's, checkpoints, and those of the store.

    further_data  further datasets that may be the training data of a network of the store
    same_classes  refuse a network of the store that was trained on other classes than those of the data
    """
    root = work.context.root
    networks = [with_weights(find_network(name, work.store, root, (data, *further_data))) for name in names]
    networks = with_preprocessing(networks, preprocessing, data)
    work.add_notes(*describe_preprocessing(networks))
    for name, network in zip(names, networks, strict=True):
        if same_classes and network.trial and not same_images(network.trial.data, data, root):
            refuse_other_classes(name, network.trial, data, root)
    common_columns: Row = {"dataset": data, "members": 1}
    columns = [
        columns_of(network.trial) | (common_columns if same_classes else {})
        if network.trial
        else common_columns | {"task": "classification", "method": "pretrained", "backbone": network.name}
        for network in networks
    ]
    line_names = [(line["method"], line["backbone"]) for line in columns]
    for name, line, pair in zip(names, columns, line_names, strict=True):
        if line_names.count(pair) > 1:  # seeds of one line would be averaged, and these are different networks
            line["method"] = f"{line['method']} {name}"
    return [NetworkGroup((network,), line) for network, line in zip(networks, columns, strict=True)]


def refuse_other_classes(name: str, trial: Trial, data: str, root: str | None) -> None:
    """Refuse a network whose classes are not those of the data."""
    first, second = datasets.load(trial.data, root), datasets.load(data, root, "test")
    trained_on, expected = ([str(label) for label in dataset.classes] for dataset in (first, second))
    trained_on = trained_on if trial.classes is None else [trained_on[label] for label in trial.classes]
    if trained_on != expected:
        raise BadInput(
            f"{name} was trained on {trial.data}, whose classes ({', '.join(trained_on[:3])} …) are not those of "
            f"{data} ({', '.join(expected[:3])} …)."
        )


# ---- undertrained networks


def mark_undertrained(networks: Sequence[Row], reference: float | None) -> list[str]:
    """Mark networks whose training accuracy is far below the reference; return warnings.

    reference  training accuracy of plain training (default: the median of the single networks of erm)
    """
    trained = [entry for entry in networks if entry.get("train_accuracy") is not None]
    accuracies = [entry["train_accuracy"] for entry in trained if (entry["method"], entry["members"]) == (MEMBER, 1)]
    notes = []
    if reference is None and accuracies:
        reference = median(accuracies)  # the best would make a method at chance look undertrained
        notes = [f"Reference accuracy: {reference:.3f}, the median training accuracy of {MEMBER}."]
    if reference is None:
        return ["No network is marked as undertrained: no reference accuracy is known."] if trained else []
    low = [entry for entry in trained if entry["train_accuracy"] < reference - UNDERTRAINED_GAP]
    for entry in low:
        entry["undertrained"] = True
    return notes + [
        f"Warning: {method} is undertrained: training accuracy "
        f"{min(entry['train_accuracy'] for entry in low if entry['method'] == method):.3f}, reference {reference:.3g}. "
        "Its results are not findings about the method."
        for method in dict.fromkeys(entry["method"] for entry in low)
    ]
