"""The steps of UIMNET, in the order of the paper (§2–7): train, predict, calibrate, select, evaluate."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nescio import datasets, measures, metrics
from nescio.analysis import calibration
from nescio.analysis.ensembles import MEMBERS_GMM, average_members
from nescio.analysis.scorecard import scorecard
from nescio.benchmarks import lineup, model_search
from nescio.benchmarks.plans import DEEP_ENSEMBLE, MEMBER
from nescio.benchmarks.uimnet import NAME, SCORECARD, SEARCH, VERSION, Plan
from nescio.datasets.image_set import ImageSet, Split
from nescio.datasets.partition import RULE, Partition, class_means_of, imagenot, pixel_means
from nescio.datasets.subsets import binary_spec, data_of
from nescio.errors import BadInput
from nescio.files import read_json
from nescio.methods import classifiers
from nescio.methods import registry as methods
from nescio.networks.groups import NetworkGroup
from nescio.networks.models import network_of_trial
from nescio.predict import load_predictions, predict_step, probe_facts, probe_step
from nescio.rows import Row, RowBuilder
from nescio.search import HParams
from nescio.training import members_facts, pace, title_of
from nescio.trials import Trial
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step, Work, evaluation_files, files_of, make_evaluation
from nescio.work.store import Store
from nescio.work.store_errors import StoreError

SPLITS: tuple[Split, ...] = ("val", "test", "out")
DIVIDE, TRAIN, SCORE = "divide the classes", "train and predict", "calibrate, probe and evaluate"  # stages
CALIBRATION, PARTITION = "calibration.json", "partition.json"


def compare(plan: Plan, work: Work) -> Plan:
    """Do what is missing in the store; return the plan with its methods, data and classes."""
    plan = with_names(plan, work.context.root)
    root = work.context.root
    plan = with_classes(plan, work, partial(refuse_impossible, plan, root))
    check = partial(refuse_impossible, plan, root)
    work.add_notes(*(f"{plan.data}: {note}" for note in datasets.load(plan.data, root).notes))
    oracles = [oracle_step(trial, root) for trial in oracle_trials(plan)] if plan.oracle else []
    if plan.search == "optuna":
        work.run_stage(TRAIN, oracles, check)
        steps = suggested_steps(plan, work, check)
    else:
        steps = {trial: trial_step(trial, plan.ood_classes, root) for trial in trials_of(plan)}
        work.run_stage(TRAIN, [*steps.values(), *oracles], check)
    collected = set(work.collect(steps.values()))
    fits = {trial: read_calibration(step, work.store) for trial, step in steps.items() if step in collected}
    work.collect(oracles)
    groups = lineup.best_averages(steps, plan.ensemble_sizes, search_rows(work), work)
    selected = dict.fromkeys(trial for group in groups for trial in group.trials)
    work.add_notes(*uncalibrated_notes({trial: fits[trial].get("reason") for trial in selected if trial in fits}))
    if DEEP_ENSEMBLE in plan.methods:
        ensembles, more_fits = deep_ensembles(plan, groups, work, check)
        groups, fits = groups + ensembles, fits | more_fits
    temperatures = {trial: fit["temperature"] for trial, fit in fits.items()}
    lines = [line_step(group, temperatures, calibrated, plan, root) for group in groups for calibrated in (False, True)]
    evaluated = work.evaluate(SCORE, lines, check)
    if "jacobian" in plan.measures:
        work.add_notes(*_how_jacobian(evaluated, work.store))
    return plan


def search_rows(work: Work) -> list[Row]:
    return [row for row in work.rows if row["evaluation"] == SEARCH]


# ---- the plan, checked before any work


def with_names(plan: Plan, root: str | None) -> Plan:
    """The plan with registered names, each once; unknown names are refused."""
    plan = lineup.with_registered_names(replace(plan, methods=plan.methods or tuple(classifiers())), root)
    lineup.refuse_without_labels(plan.trained, NAME)
    lineup.refuse_measures(plan.measures, plan.trained)
    return replace(plan, measures=tuple(dict.fromkeys(plan.measures)))


def refuse_impossible(plan: Plan, root: str | None) -> None:
    """Refuse, before any work, what no trial could do."""
    dataset = datasets.load(plan.data, root)
    rows = len(datasets.split_dataset(dataset, plan.classes, 0, plan.ood_classes).train)
    lineup.refuse_training(dataset, plan.backbones, plan.training, rows)


# ---- in- and out-of-distribution classes (§2)

# Ten classes are too few for a tree to divide: its smaller side has two or three. The digits are divided by hand.
BY_HAND = {"digits": ((0, 1, 2, 3, 4, 5), (6, 7, 8, 9))}
Classes = tuple[int, ...]


def with_classes(plan: Plan, work: Work, check: Callable[[], None]) -> Plan:
    """The plan with its classes: as named, from a file, or by the Ward tree of class means."""
    classes, ood_classes = divide_classes(plan, work, check)
    return replace(plan, partition=None, classes=classes, ood_classes=ood_classes)


def divide_classes(plan: Plan, work: Work, check: Callable[[], None]) -> tuple[Classes, Classes]:
    """The in- and out-of-distribution classes of a plan; a reference network may have to be trained for them."""
    root, data = work.context.root, plan.data
    if plan.classes is not None:
        return plan.classes, named_ood_classes(datasets.load(data, root), plan.classes, plan.ood_classes)
    if plan.partition is not None:
        partition = Partition.load(plan.partition)
        partition.check(datasets.load(data, root))
    elif plan.partition_features is None and data in BY_HAND:
        return BY_HAND[data]
    else:
        step = partition_step(reference(plan), plan.partition_features or "reference", root)
        if not work.run_stage(DIVIDE, [step], check):
            if not work.is_dry_run:
                raise StoreError(f"The classes could not be divided: {work.failures[-1].reason}")
            classes = range(len(datasets.load(data, root).classes))
            half = max(2, len(classes) // 4)  # on ImageNet a quarter is in-distribution, and as many are not
            return tuple(classes[:half]), tuple(classes[half : 2 * half])
        partition = Partition.load(step.verified(work.store) / PARTITION)
    return partition.inside, partition.outside


def named_ood_classes(dataset: datasets.Dataset, classes: Classes, ood_classes: Classes | None) -> Classes:
    """The out-of-distribution classes: those that are named, else all that are not in-distribution."""
    datasets.split_dataset(dataset, classes, 0, ood_classes)  # refuses unknown classes
    remaining = ood_classes or tuple(sorted(set(range(len(dataset.classes))) - set(classes)))
    if not remaining:
        raise BadInput(
            f"All {len(dataset.classes)} classes of {dataset.name} are in-distribution: no class is left for OOD rows."
        )
    return remaining


def partition_step(reference: Trial, features: str, root: str | None) -> Step:
    """Divide the classes by their mean pixels, or by the features of a reference network of all classes."""
    if features == "pixels":
        source: Step | str = datasets.load(reference.data, root).revision
    else:
        images = ImageSet(reference.data, "train", seed=reference.data_seed)
        source = predict_step(network_of_trial(reference, root), images, root=root)
    config = {"step": "partition", "features": features, "rule": RULE}
    make = partial(_partition, data=reference.data, features=features, source=source)
    return make_evaluation(NAME, VERSION, "reference network", config, [source], make)


def _partition(step_folder: StepFolder, context: Context, data: str, features: str, source: Step | str) -> Files:
    dataset = datasets.load(data, context.root)
    if isinstance(source, str):
        means = pixel_means(dataset)
    else:
        means = class_means_of(load_predictions(source, context.store), dataset)
    return {PARTITION: imagenot(dataset, means, features).to_json().encode()}


def reference(plan: Plan) -> Trial:
    """An ERM network of all classes, whose features group similar classes."""
    return lineup.plain_trial(MEMBER, plan.data, plan.backbones[0], plan.training)


# ---- trials (§3)


Line = tuple[str, str, float | None]  # method, backbone, spectral bound: what is searched separately


def trials_of(plan: Plan) -> list[Trial]:
    """Methods × backbones × spectral bounds × trials × data seeds; trial 0 is the defaults, the others random draws."""
    drawn = lineup.random_trials(_hparam_classes(plan), partial(trial_of, plan), plan.trials, plan.search_seed)
    trials = [trial for several in drawn.values() for trial in with_seeds(plan, several)]
    # first every method's defaults: a stopped search has a fair table
    return sorted(trials, key=lambda trial: (trial.trial, trial.data_seed))


def suggested_steps(plan: Plan, work: Work, check: Callable[[], None]) -> dict[Trial, Step]:
    """Trials that Optuna suggests from the mean validation NLL over data seeds of those before."""
    steps: dict[Trial, Step] = {}

    def evaluate(trials: Sequence[Trial]) -> dict[Trial, Trial]:
        further = {trial: trial_step(trial, plan.ood_classes, work.context.root) for trial in with_seeds(plan, trials)}
        work.run_stage(TRAIN, further.values(), check)
        steps.update(further)
        return {trial: trial for trial in trials}

    def criterion(trial: Trial) -> float | None:
        values = [lineup.validation_nll(steps[seeded], work.store) for seeded in with_seeds(plan, [trial])]
        numbers = [value for value in values if value is not None]
        return -sum(numbers) / len(numbers) if len(numbers) == len(values) else None

    model_search.guided_search(
        _hparam_classes(plan), partial(trial_of, plan), evaluate, criterion, plan.trials, work, seed=plan.search_seed
    )
    return steps


def _hparam_classes(plan: Plan) -> dict[Line, type[HParams]]:
    return {
        (name, backbone, spectral): methods[name].hparams_class
        for backbone in plan.backbones
        for spectral in plan.spectral_bounds
        for name in plan.trained
    }


def trial_of(plan: Plan, line: Line, hparams: HParams, number: int) -> Trial:
    """A trial of the first data seed; its number seeds the initial weights."""
    method, backbone, spectral = line
    trial = lineup.plain_trial(
        method, plan.data, backbone, plan.training, hparams=hparams, classes=plan.classes, number=number
    )
    return replace(trial, training=plan.training, spectral=spectral, init_seed=number)


def with_seeds(plan: Plan, trials: Iterable[Trial]) -> list[Trial]:
    """Every trial under all data seeds."""
    return [replace(trial, data_seed=seed) for seed in range(plan.seeds) for trial in trials]


def images_of(trial: Trial, split: Split, ood_classes: tuple[int, ...] | None = None) -> ImageSet:
    """The images of a split, on which a trial is evaluated; `out` has the OOD classes."""
    return ImageSet(trial.data, split, trial.classes, ood_classes if split == "out" else None, trial.data_seed)


def prediction_steps(
    trial: Trial, ood_classes: tuple[int, ...] | None, root: str | None, splits: Sequence[Split] = SPLITS
) -> dict[str, Step]:
    network = network_of_trial(trial, root)
    return {split: predict_step(network, images_of(trial, split, ood_classes), root=root) for split in splits}


def trial_step(trial: Trial, ood_classes: tuple[int, ...] | None, root: str | None) -> Step:
    """Train one trial, predict its splits, and keep its temperature and the numbers of selection and its plot."""
    predictions = prediction_steps(trial, ood_classes, root)
    make = partial(_trial, trial=trial, predictions=predictions)
    return make_evaluation(
        NAME, VERSION, title_of(trial), {"step": "trial"}, list(predictions.values()), make, _summary
    )


def _trial(step_folder: StepFolder, context: Context, trial: Trial, predictions: Mapping[str, Step]) -> Files:
    val, test, out = (load_predictions(predictions[split], context.store) for split in SPLITS)
    results = results_of(lineup.average([trial], context.root), context, SEARCH)
    cards = [
        scorecard(val, split="val", calibration=None, only=(), facts=results.facts),
        scorecard(test, ood={"out": out}, calibration=None, only=("entropy",), facts=results.facts),
    ]
    selected = {("val", "nll"), ("test", "nll"), ("test", "accuracy"), ("out", "auroc")}
    rows = [row for card in cards for row in card.rows if (row["split"], row["metric"]) in selected]
    temperature, reason = calibration.temperature_or_reason(val)
    return evaluation_files(rows, networks=results.networks) | {
        CALIBRATION: json.dumps({"temperature": temperature, "reason": reason}).encode()
    }


def _summary(step: Step, context: Context) -> Row:
    """For progress: the speed of the training, and the validation NLL of a trial."""
    predicted: Any = step.parents[0]
    nll = lineup.validation_nll(step, context.store)
    return ({} if nll is None else {"trial": step.title, "nll": nll}) | pace(predicted.parents[0], context)


def results_of(group: NetworkGroup, context: Context, evaluation: str, **columns: object) -> RowBuilder:
    """The columns of all results of one network, or of an average of several, and its number of parameters."""
    about = {"benchmark": NAME, "version": VERSION, "evaluation": evaluation}
    return RowBuilder({**about, **members_facts(group.trials, context), **group.columns, **columns})


# ---- the oracle, which is trained on OOD classes too (§7)


def oracle_trials(plan: Plan) -> list[Trial]:
    """Networks that classify in- versus out-of-distribution images, one per data seed."""
    assert plan.classes is not None and plan.ood_classes is not None
    data = binary_spec(plan.data, plan.classes, plan.ood_classes)
    trial = lineup.plain_trial(MEMBER, data, plan.backbones[0], plan.training)
    return with_seeds(plan, [trial])


def oracle_step(trial: Trial, root: str | None) -> Step:
    predictions = prediction_steps(trial, None, root, ("val", "test"))
    title = f"oracle, {trial.backbone}, data seed {trial.data_seed}"
    make = partial(_oracle, trial=trial, predictions=predictions)
    return make_evaluation(NAME, VERSION, title, {"step": "oracle"}, list(predictions.values()), make, _summary)


def _oracle(step_folder: StepFolder, context: Context, trial: Trial, predictions: Mapping[str, Step]) -> Files:
    val, test = (load_predictions(step, context.store) for step in predictions.values())
    u_val, u = (measures.mean_probs(rows)[:, 1] for rows in (val, test))
    out_val, out = (np.asarray(rows.labels) == 1 for rows in (val, test))
    threshold = metrics.threshold(u_val[~out_val])
    numbers = {
        "auroc": (metrics.auroc(u, out), "out", len(u)),
        "in_as_in": (metrics.in_as_in(u[~out], threshold), "test", int((~out).sum())),
        "out_as_out": (metrics.out_as_out(u[out], threshold), "out", int(out.sum())),
    }
    group, columns = lineup.average([trial], context.root), {"method": "oracle", "dataset": data_of(trial.data)}
    results = results_of(group, context, SCORECARD, **columns)
    for metric, (value, split, n) in numbers.items():
        results.add(metric, value, n, split=split, measure="oracle")
    return files_of(results)


# ---- calibration, selection, ensembles (§3)


def read_calibration(step: Step, store: Store) -> Row:
    """The calibration of a trial: its temperature, or the reason why it has none."""
    return read_json(step.verified(store) / CALIBRATION)


def uncalibrated_notes(reasons: Mapping[Trial, str | None]) -> list[str]:
    """Sentences on the networks that keep the temperature 1, every reason once."""
    names: dict[str, set[str]] = {}
    for trial, reason in reasons.items():
        if reason is not None:
            names.setdefault(reason, set()).add(trial.method)
    return [
        f"Some networks of {', '.join(sorted(uncalibrated))} keep the temperature 1. {reason}"
        for reason, uncalibrated in names.items()
    ]


def deep_ensembles(
    plan: Plan, groups: Iterable[NetworkGroup], work: Work, check: Callable[[], None]
) -> tuple[list[NetworkGroup], dict[Trial, Row]]:
    """The best networks of plain training, each averaged with others that differ in the initial seed alone.

    Also returns the calibrations of the further networks.
    """
    root = work.context.root
    best = dict.fromkeys(group.trials[0] for group in groups if group.trials[0].method == MEMBER)
    ensembles = [lineup.deep_ensemble(trial, max(plan.ensemble_sizes), root) for trial in best]
    steps = {
        trial: trial_step(trial, plan.ood_classes, root) for ensemble in ensembles for trial in ensemble.trials[1:]
    }
    finished = {*work.run_stage(TRAIN, steps.values(), check)}
    fits = {trial: read_calibration(step, work.store) for trial, step in steps.items() if step in finished}
    complete = [group for group in ensembles if work.is_dry_run or all(trial in fits for trial in group.trials[1:])]
    return complete, fits


# ---- measures × metrics of every line of the tables (§4–6)


def line_step(
    group: NetworkGroup, temperatures: Mapping[Trial, float | None], calibrated: bool, plan: Plan, root: str | None
) -> Step:
    """Probe the average of the calibrated members, and take every measure and metric of it."""
    trials, first = tuple(group.trials), group.trials[0]
    scales = scales_of(trials, temperatures if calibrated else {})
    probes: dict[str, Step] = {
        split: probe_step(trials, scales, images_of(first, split, plan.ood_classes), root, exact=plan.exact_jacobian)
        for split in SPLITS
    }
    predictions = [prediction_steps(trial, plan.ood_classes, root) for trial in trials]
    title = group.title if len({trial.trial for trial in trials}) == 1 else f"{group.title} and others"
    config = {"step": "line", "calibrated": calibrated, "measures": plan.measures, "metrics": sorted(metrics.registry)}
    make = partial(
        _line,
        group=group,
        scales=scales,
        calibrated=calibrated,
        names=plan.measures,
        predictions=predictions,
        probes=probes,
    )
    parents = [*probes.values(), *(step for steps in predictions for step in steps.values())]
    return make_evaluation(NAME, VERSION, f"{title}, calibrated" if calibrated else title, config, parents, make)


def scales_of(trials: Iterable[Trial], temperatures: Mapping[Trial, float | None]) -> list[float]:
    """The divisor of each member's logits before the members are averaged; 1 without a temperature."""
    return [temperatures.get(trial) or 1.0 for trial in trials]


def _how_jacobian(lines: Sequence[Step], store: Store) -> list[str]:
    """Sentences on how the Jacobian's norm was computed in these lines."""
    probes = [parent for line in lines if isinstance(parent := line.parents[0], Step)]
    descriptions = sorted({str(probe_facts(step, store)["jacobian"]) for step in probes})
    return [f"The norm of the Jacobian (the measure jacobian) is {description}." for description in descriptions]


def _line(
    step_folder: StepFolder,
    context: Context,
    group: NetworkGroup,
    scales: Sequence[float],
    calibrated: bool,
    names: Sequence[str],
    predictions: Sequence[Mapping[str, Step]],
    probes: Mapping[str, Step],
) -> Files:
    members = [{split: load_predictions(step, context.store) for split, step in steps.items()} for steps in predictions]
    probed = {split: load_predictions(step, context.store) for split, step in probes.items()}
    average = average_members(members, scales, probed, with_gmm="gmm" in names)
    score_names = {MEMBERS_GMM if name == "gmm" and len(members) > 1 else name: name for name in names}
    available_scores = [
        name for name in score_names if name in measures.registry or name in measures.score_names(average["test"])
    ]
    results = results_of(group, context, SCORECARD, calibrated=calibrated)
    ood = {"out": average["out"]}
    card = scorecard(
        average["test"], val=average["val"], ood=ood, calibration=None, only=available_scores, facts=results.facts
    )
    rows = [row | {"measure": score_names.get(row["measure"], row["measure"])} for row in card.rows]
    missing_scores = [
        {"measure": name, "metric": None, "split": "test", "reason": f"There is no score named {name!r}."}
        for name in score_names
        if name not in available_scores
    ]
    reasons = [{"method": group.columns["method"], **reason} for reason in (*card.reasons, *missing_scores)]
    return evaluation_files(rows, reasons, results.networks)
