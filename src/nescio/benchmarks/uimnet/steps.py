"""What UIMNET does, in the order of the paper (§2–7): train, predict, calibrate, select, every measure and metric."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from nescio import datasets, measures, metrics
from nescio.analysis import calibration
from nescio.analysis.ensembles import MEMBERS_GMM, average_members
from nescio.analysis.scorecard import scorecard
from nescio.analysis.selection import best_trials
from nescio.benchmarks.checks import refuse_measures, refuse_training, refuse_without_labels
from nescio.benchmarks.classes import divided
from nescio.benchmarks.deep_ensembles import APART, DEEP_ENSEMBLE, MEMBER, name_of_average, own_names
from nescio.benchmarks.uimnet import NAME, SCORECARD, SEARCH, VERSION, Plan
from nescio.datasets.binary import binary_spec, data_of
from nescio.datasets.image_set import ImageSet
from nescio.datasets.names import name_for_keys
from nescio.files import read_json
from nescio.methods import classifiers
from nescio.methods import registry as methods
from nescio.networks.models import network_of_trial
from nescio.predict import load_predictions, predict_step, probe_facts, probe_step
from nescio.rows import Row, RowBuilder
from nescio.search import HParams, draw, guided
from nescio.training import members_facts, pace, title_of
from nescio.trials import Trial
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step, Work, evaluation_files, files_of, make_evaluation
from nescio.work.store import Store
from nescio.work.store_errors import StoreError

SPLITS = ("val", "test", "out")
TRAIN, SCORE = "train and predict", "calibrate, probe and evaluate"  # stages
CALIBRATION = "calibration.json"


def compare(plan: Plan, work: Work) -> Plan:
    """Does what is missing in the store; returns the plan with its methods and classes named."""
    plan = replace(_named(plan), data=name_for_keys(plan.data, work.context.root))
    plan = _divided(plan, work)
    root, before = work.context.root, partial(refuse_impossible, plan, work.context.root)
    work.add_notes(*(f"{plan.data}: {note}" for note in datasets.load(plan.data, root).notes))
    oracles = [oracle_step(trial, root) for trial in oracle_trials(plan)] if plan.oracle else []
    if plan.search == "optuna":
        work.run_stage(TRAIN, oracles, before)
        steps = guided_steps(plan, work, before)
    else:
        steps = {trial: trial_step(trial, plan.ood_classes, root) for trial in trials_of(plan)}
        work.run_stage(TRAIN, [*steps.values(), *oracles], before)
    taken = set(work.collect(steps.values()))
    fitted = {trial: _calibrated(step, work.store) for trial, step in steps.items() if step in taken}
    work.collect(oracles)
    temperatures = {trial: own["temperature"] for trial, own in fitted.items()}
    ensembles = select(plan, temperatures, work)
    if work.is_dry_run and len(taken) < len(steps):
        ensembles = stand_ins(plan, steps)
    selected = dict.fromkeys(trial for ensemble in ensembles for trial in ensemble.trials)
    work.add_notes(*_uncalibrated({trial: fitted[trial].get("reason") for trial in selected if trial in fitted}))
    if DEEP_ENSEMBLE in plan.methods:
        ensembles += deep_ensembles(plan, ensembles, work, before)
    lines = [line_step(ensemble, calibrated, plan, root) for ensemble in ensembles for calibrated in (False, True)]
    evaluated = work.evaluate(SCORE, lines, before)
    if "jacobian" in plan.measures:
        work.add_notes(*_how_jacobian(evaluated, work.store))
    return plan


# ---- the plan, checked before any work


def _named(plan: Plan) -> Plan:
    """The plan with every method and measure by its own name, each once; unknown names are refused here."""
    plan = replace(plan, methods=own_names(plan.methods or classifiers()))
    refuse_without_labels(plan.trained, NAME)
    refuse_measures(plan.measures, plan.trained)
    return replace(plan, measures=tuple(dict.fromkeys(plan.measures)))


def refuse_impossible(plan: Plan, root: str | None) -> None:
    """Refuses, before any work, what no trial could do."""
    dataset = datasets.load(plan.data, root)
    rows = len(datasets.split_dataset(dataset, plan.classes, 0, plan.ood_classes).train)
    refuse_training(dataset, plan.backbones, plan.training, rows)


# ---- in- and out-of-distribution classes (§2)


def _divided(plan: Plan, work: Work) -> Plan:
    """The plan with its classes: those that it names, those of a file, or by the Ward tree of class means."""
    before = partial(refuse_impossible, plan, work.context.root)
    inside, outside = divided(plan, reference(plan), (NAME, VERSION), work, before)
    return replace(plan, partition=None, classes=inside, ood_classes=outside)


def reference(plan: Plan) -> Trial:
    """An ERM network of all classes, whose features decide which classes look alike."""
    return _erm(plan, plan.data)


# ---- trials (§3)


Line = tuple[str, str, float | None]  # method, backbone, spectral norm: what is searched on its own


def trials_of(plan: Plan) -> list[Trial]:
    """Methods × backbones × spectral norm × trials × data seeds; trial 0 is the defaults, the others random draws."""

    def hparam_sets(number: int) -> dict[Line, HParams]:
        return {line: draw(hparams, number, plan.search_seed) for line, hparams in _searched(plan).items()}

    # first every method's defaults: a stopped sweep has a fair table
    return [trial for number in range(plan.trials) for trial in _round(plan, number, hparam_sets(number))]


def guided_steps(plan: Plan, work: Work, before: Callable[[], None]) -> dict[Trial, Step]:
    """Trials that Optuna suggests from the mean validation NLL of those before, which are trained on the way.

    Everything is seeded and results do not change, so a second run suggests the same trials and finds them finished.
    """
    every: dict[Trial, Step] = {}

    def mean_nll(number: int, hparam_sets: Mapping[Line, HParams]) -> dict[Line, float | None]:
        steps = {t: trial_step(t, plan.ood_classes, work.context.root) for t in _round(plan, number, hparam_sets)}
        work.run_stage(TRAIN, steps.values(), before)
        every.update(steps)
        return {line: _mean([_nll(steps[t], work.store) for t in steps if _line_of(t) == line]) for line in hparam_sets}

    guided(_searched(plan), plan.trials, mean_nll, plan.search_seed)
    return every


def _searched(plan: Plan) -> dict[Line, type[HParams]]:
    return {
        (name, backbone, spectral): methods[name].hparams_class
        for backbone in plan.backbones
        for spectral in plan.spectral_bounds
        for name in plan.trained
    }


def _line_of(trial: Trial) -> Line:
    return trial.method, trial.backbone, trial.spectral


def _mean(values: Sequence[float | None]) -> float | None:
    """None where one of the values is missing."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if len(numbers) == len(values) else None


def _round(plan: Plan, number: int, hparam_sets: Mapping[Line, HParams]) -> list[Trial]:
    """The trials of one number: every line × every data seed."""
    shared: Row = {"data": plan.data, "classes": plan.classes, "training": plan.training}
    shared |= {"trial": number, "init_seed": number}
    return [
        Trial(method=method, hparams=hparams, backbone=backbone, spectral=spectral, data_seed=seed, **shared)
        for seed in range(plan.seeds)
        for (method, backbone, spectral), hparams in hparam_sets.items()
    ]


def _erm(plan: Plan, data: str, data_seed: int = 0) -> Trial:
    hparams, backbone = methods["erm"].hparams_class(), plan.backbones[0]
    return Trial(
        method="erm", hparams=hparams, data=data, backbone=backbone, training=plan.training, data_seed=data_seed
    )


def images_of(trial: Trial, split: Any, outside: tuple[int, ...] | None = None) -> ImageSet:
    """The images that a trial is evaluated on; `outside` are the classes of the split `out`."""
    return ImageSet(trial.data, split, trial.classes, outside if split == "out" else None, trial.data_seed)


def dump_steps(
    trial: Trial, outside: tuple[int, ...] | None, root: str | None, splits: Sequence[str] = SPLITS
) -> dict[str, Step]:
    network = network_of_trial(trial, root)
    return {split: predict_step(network, images_of(trial, split, outside), root=root) for split in splits}


def trial_step(trial: Trial, outside: tuple[int, ...] | None, root: str | None) -> Step:
    """Trains one trial, predicts its splits, and keeps what selection, calibration and the NLL-versus-AUC plot need."""
    dumps = dump_steps(trial, outside, root)
    make = partial(_trial, trial=trial, dumps=dumps)
    return make_evaluation(NAME, VERSION, title_of(trial), {"step": "trial"}, list(dumps.values()), make, _summary)


def _trial(step_folder: StepFolder, context: Context, trial: Trial, dumps: Mapping[str, Step]) -> Files:
    val, test, out = (load_predictions(dumps[split], context.store) for split in SPLITS)
    facts, network = _facts([trial], context, SEARCH)
    cards = [
        scorecard(val, split="val", calibration=None, only=(), facts=facts),
        scorecard(test, ood={"out": out}, calibration=None, only=("entropy",), facts=facts),
    ]
    kept = {("val", "nll"), ("test", "nll"), ("test", "accuracy"), ("out", "auroc")}
    rows = [row for card in cards for row in card.rows if (row["split"], row["metric"]) in kept]
    temperature, reason = calibration.temperature_or_reason(val)
    return evaluation_files(rows, networks=[network]) | {
        CALIBRATION: json.dumps({"temperature": temperature, "reason": reason}).encode()
    }


def _summary(step: Step, context: Context) -> dict[str, Any]:
    """For those who watch: what the network of this step took, and the validation NLL of a trial."""
    predicted: Any = step.parents[0]
    nll = _nll(step, context.store)
    return ({} if nll is None else {"trial": step.title, "nll": nll}) | pace(predicted.parents[0], context)


def _nll(step: Step, store: Store) -> float | None:
    """The validation NLL of a trial; None where it failed."""
    try:
        rows, _ = step.rows(store) if step.finished(store) else ([], [])
    except StoreError:  # damaged: the study says so when it takes its rows
        return None
    return next((float(row["value"]) for row in rows if (row["split"], row["metric"]) == ("val", "nll")), None)


def _facts(members: Sequence[Trial], context: Context, evaluation: str = SCORECARD, **more: Any) -> tuple[Row, Row]:
    """The columns that name the network, or the average of networks; and the entry in the table of networks."""
    about = {"benchmark": NAME, "version": VERSION, "evaluation": evaluation}
    builder = RowBuilder({**about, **members_facts(members, context), **more})
    return builder.facts, builder.networks[0]


# ---- the oracle, which is trained on what is outside (§7)


def oracle_trials(plan: Plan) -> list[Trial]:
    """Networks that learn in versus out, one per data seed."""
    assert plan.classes is not None and plan.ood_classes is not None
    data = binary_spec(plan.data, plan.classes, plan.ood_classes)
    return [_erm(plan, data, seed) for seed in range(plan.seeds)]


def oracle_step(trial: Trial, root: str | None) -> Step:
    dumps = dump_steps(trial, None, root, ("val", "test"))
    title = f"oracle, {trial.backbone}, data seed {trial.data_seed}"
    make = partial(_oracle, trial=trial, dumps=dumps)
    return make_evaluation(NAME, VERSION, title, {"step": "oracle"}, list(dumps.values()), make, _summary)


def _oracle(step_folder: StepFolder, context: Context, trial: Trial, dumps: Mapping[str, Step]) -> Files:
    val, test = (load_predictions(step, context.store) for step in dumps.values())
    u_val, u = (measures.mean_probs(dump)[:, 1] for dump in (val, test))
    out_val, out = (np.asarray(dump.labels) == 1 for dump in (val, test))
    cut = metrics.threshold(u_val[~out_val])
    numbers = {
        "auroc": (metrics.auroc(u, out), "out", len(u)),
        "in_as_in": (metrics.in_as_in(u[~out], cut), "test", int((~out).sum())),
        "out_as_out": (metrics.out_as_out(u[out], cut), "out", int(out.sum())),
    }
    facts, network = _facts([trial], context, method="oracle", dataset=data_of(trial.data))
    rows = RowBuilder(facts, networks=[network])
    for metric, (value, split, n) in numbers.items():
        rows.add(metric, value, n, split=split, measure="oracle")
    return files_of(rows)


# ---- calibration, selection, ensembles (§3)


def _calibrated(step: Step, store: Store) -> dict[str, Any]:
    """The `calibration` of a trial: its temperature, and the reason where there is none."""
    return read_json(step.verified(store) / CALIBRATION)


def _uncalibrated(reasons: Mapping[Trial, str | None]) -> list[str]:
    """Sentences on the networks that keep the temperature 1, every reason once."""
    names: dict[str, set[str]] = {}
    for trial, reason in reasons.items():
        if reason is not None:
            names.setdefault(reason, set()).add(trial.method)
    return [f"Some networks of {', '.join(sorted(own))} keep the temperature 1. {why}" for why, own in names.items()]


@dataclass(frozen=True)
class Ensemble:
    """The members that stand in one line of a table, for one data seed; one alone is an ensemble of one."""

    trials: tuple[Trial, ...]  # best first
    temperatures: tuple[float | None, ...]  # of each one's own `calibration`

    @property
    def first(self) -> Trial:
        return self.trials[0]

    @property
    def method(self) -> str:
        """What a line is called; networks of other trials are an average of that name too."""
        alike = len({trial.trial for trial in self.trials}) == 1
        return name_of_average(self.first.method, len(self.trials)) if alike else self.first.method

    def scales(self, calibrated: bool) -> list[float]:
        """By what each member's logits are divided before the members are averaged."""
        return [1.0 if t is None or not calibrated else t for t in self.temperatures]


def select(plan: Plan, temperatures: Mapping[Trial, float | None], work: Work) -> list[Ensemble]:
    """The best k trials of each method, backbone and spectral norm by mean validation NLL over data seeds.

    temperatures  of the trials that there are
    """
    rows = [row for row in work.rows if row["evaluation"] == SEARCH]
    by_number = {(*_line_of(trial), trial.trial, trial.data_seed): trial for trial in temperatures}
    ensembles: dict[Ensemble, None] = {}  # each once: where trials failed, the best five may be the best one
    for k in sorted({min(k, plan.trials) for k in plan.ensemble_sizes}) if rows else ():
        best = best_trials(rows, k, seeds=range(plan.seeds), trials=range(plan.trials))
        work.add_notes(*best.notes)
        for line, numbers in best.items():
            for seed in range(plan.seeds):
                trials = tuple(by_number[*line, number, seed] for number in numbers)
                ensembles[Ensemble(trials, tuple(temperatures[trial] for trial in trials))] = None
    if max(plan.ensemble_sizes) > plan.trials:
        work.add_notes(f"With {plan.trials} trials per method, ensembles have up to {plan.trials} members.")
    return list(ensembles)


def stand_ins(plan: Plan, steps: Mapping[Trial, Step]) -> list[Ensemble]:
    """As many ensembles as will be selected, of the first trials."""
    by_number = {(*_line_of(trial), trial.trial, trial.data_seed): trial for trial in steps}
    lines = list(dict.fromkeys(map(_line_of, steps)))
    chosen = [
        tuple(by_number[*line, number, seed] for number in range(k))
        for k in sorted({min(k, plan.trials) for k in plan.ensemble_sizes})
        for line in lines
        for seed in range(plan.seeds)
    ]
    return [Ensemble(trials, (None,) * len(trials)) for trials in chosen]


def deep_ensembles(plan: Plan, ensembles: Sequence[Ensemble], work: Work, before: Callable[[], None]) -> list[Ensemble]:
    """The best networks of plain training, each averaged with others that differ in the initial seed alone."""
    best = {each.first: each.temperatures[0] for each in ensembles if each.first.method == MEMBER}
    others = {
        trial: [
            replace(trial, init_seed=trial.init_seed + member * APART) for member in range(1, max(plan.ensemble_sizes))
        ]
        for trial in best
    }
    steps = {each: trial_step(each, plan.ood_classes, work.context.root) for more in others.values() for each in more}
    done = {*work.run_stage(TRAIN, steps.values(), before)}
    fitted = {each: _calibrated(step, work.store)["temperature"] for each, step in steps.items() if step in done}
    if work.is_dry_run:
        fitted = dict.fromkeys(steps) | fitted
    return [
        Ensemble((trial, *more), (best[trial], *(fitted[each] for each in more)))
        for trial, more in others.items()
        if all(each in fitted for each in more)
    ]


# ---- measures × metrics of every line of the tables (§4–6)


def line_step(ensemble: Ensemble, calibrated: bool, plan: Plan, root: str | None) -> Step:
    """Probes the average of the calibrated members, and takes every measure and metric of it."""
    trials, scales = ensemble.trials, ensemble.scales(calibrated)
    shown = {split: images_of(ensemble.first, split, plan.ood_classes) for split in SPLITS}
    exact = plan.exact_jacobian
    probes = {split: probe_step(trials, scales, images, root, exact=exact) for split, images in shown.items()}
    dumps = [dump_steps(trial, plan.ood_classes, root) for trial in trials]
    title = title_of(ensemble.first)
    if len(trials) > 1:
        title = f"{len(trials)} × {title}{'' if ensemble.method == DEEP_ENSEMBLE else ' and others'}"
    hparams = {"step": "line", "calibrated": calibrated, "measures": plan.measures, "metrics": sorted(metrics.registry)}
    make = partial(_line, ensemble=ensemble, calibrated=calibrated, names=plan.measures, dumps=dumps, probes=probes)
    parents = [*probes.values(), *(step for steps in dumps for step in steps.values())]
    return make_evaluation(NAME, VERSION, f"{title}, calibrated" if calibrated else title, hparams, parents, make)


def _how_jacobian(lines: Sequence[Step], store: Store) -> list[str]:
    """Sentences on how the Jacobian's norm was computed in these lines."""
    probes = [parent for line in lines if isinstance(parent := line.parents[0], Step)]
    how = sorted({str(probe_facts(step, store)["jacobian"]) for step in probes})
    return [f"The norm of the Jacobian (the measure jacobian) is {words}." for words in how]


def _line(
    step_folder: StepFolder,
    context: Context,
    ensemble: Ensemble,
    calibrated: bool,
    names: Sequence[str],
    dumps: Sequence[Mapping[str, Step]],
    probes: Mapping[str, Step],
) -> Files:
    members = [{split: load_predictions(step, context.store) for split, step in steps.items()} for steps in dumps]
    probed = {split: load_predictions(step, context.store) for split, step in probes.items()}
    whole = average_members(members, ensemble.scales(calibrated), probed, with_gmm="gmm" in names)
    wanted = {MEMBERS_GMM if name == "gmm" and len(members) > 1 else name: name for name in names}
    there = [name for name in wanted if name in measures.registry or name in measures.score_names(whole["test"])]
    facts, network = _facts(ensemble.trials, context, method=ensemble.method)
    facts |= {"calibrated": calibrated}
    sides = {"out": whole["out"]}
    card = scorecard(whole["test"], val=whole["val"], ood=sides, calibration=None, only=there, facts=facts)
    rows = [row | {"measure": wanted.get(row["measure"], row["measure"])} for row in card.rows]
    absent = [
        {"measure": name, "metric": None, "split": "test", "reason": f"There is no score named {name!r}."}
        for name in wanted
        if name not in there
    ]
    reasons = [{"method": ensemble.method, **reason} for reason in (*card.reasons, *absent)]
    return evaluation_files(rows, reasons, [network])
