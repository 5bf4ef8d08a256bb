"""What `url` does, in the order of the paper (Kirchhof et al. 2023, §3.2).

Pretrain → stop where validation classes are best → embed validation and test classes of every downstream set → search
hyper-parameters, chosen by validation classes → further seeds of the chosen ones → networks that learn from a few, or
all, other images of the test classes → rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any, TypeVar, Unpack

from nescio import datasets, measures
from nescio.benchmarks.checks import refuse_measures, refuse_training
from nescio.benchmarks.deep_ensembles import APART, DEEP_ENSEMBLE, MEMBER, own_names, trained_methods
from nescio.benchmarks.recipes import refuse_fixed, with_fixed
from nescio.benchmarks.url import Plan
from nescio.benchmarks.url.questions import TIED_SHARE, TRANSFER, Targets, evaluate_step
from nescio.datasets.image_set import ImageSet
from nescio.datasets.names import name_for_keys, same_images
from nescio.datasets.retrieval import disjoint, in_size, load_whole, part_spec, shots_spec
from nescio.errors import BadInput
from nescio.identity import rename_content
from nescio.methods import registry as methods
from nescio.networks.models import find_network, network_of_trial, with_weights
from nescio.networks.network import Network
from nescio.networks.preprocessed import describe_preprocessing, with_preprocessing
from nescio.predictions.subset import subset_limit_note
from nescio.report.format import shorten_names
from nescio.report.labels import dataset_label
from nescio.rows import NetworkFacts, Row, RowBuilder, merge_networks, network_id
from nescio.search import HParams, guided, searched
from nescio.specs import SpecError, class_lists, mapping, numbers, product
from nescio.training import train_step
from nescio.trials import Training, Trial
from nescio.work.steps import Step, Work

TRAIN, STOP, FEW = "train, embed and evaluate", "evaluate kept epochs", "learn a few labelled images"  # stages
CRITERIA = AREA, RECALL = "r_auroc", "recall_at_1"
CHECKPOINTS, FEW_SHOT, MANY_SHOT = "checkpoints", "few-shot", "many-shot"  # evaluations
SCORES = {"sngp": ("entropy",)}  # what the paper scores a method by, where that is not all of its own scores
PRETRAINED = "pretrained"  # method of networks that were trained elsewhere
Line = tuple[str, str]  # method, backbone
Judged = dict[str, tuple[float, str]]  # criterion → value, and the score that it is of; R-AUROC where it is defined
T = TypeVar("T")


@dataclass(frozen=True)
class Downstream:
    """One downstream set: its name in rows, its data, and the classes that choose and those that test."""

    name: str
    data: str
    val: tuple[int, ...]
    test: tuple[int, ...]

    def images(self, split: str, plan: Plan) -> ImageSet:
        return outside(self.data, getattr(self, split), plan)


def compare(plan: Plan, work: Work) -> Plan:
    """Does what is missing in the store; returns the plan with its methods and data by their own names."""
    root = work.context.root
    data = name_for_keys(plan.data, root, "test" if plan.networks else None)
    plan = replace(plan, data=data, methods=own_names(plan.methods))
    given = existing(plan, work)
    sets = [downstream(text, plan, root, given) for text in plan.downstream]
    if plan.limit is not None:
        work.add_notes(subset_limit_note(plan.limit, plan.seed, "images of each set"))
    refuse_measures(plan.measures, () if plan.networks else trained_methods(plan.methods))
    if plan.networks:
        work.add_notes(*describe_preprocessing(given))
        work.evaluate(TRAIN, [step_of(each, plan, sets, root) for each in given])
        for each in given:
            facts = (
                each.trial.describe()
                if each.trial
                else {"method": PRETRAINED, "backbone": each.name, "trial": 0, "data_seed": 0}
            )
            scores = own_scores(each.trial.method if each.trial else None)
            choose(work, "test", {"given": facts}, {"given": judged(work.rows, facts, scores[:1], "test", 0.0)})
        note_tied(work)
        return plan
    before = partial(refuse_impossible, plan, sets, root)
    chosen = search(plan, sets, work, before)
    seeds = {
        trial: [replace(trial, data_seed=seed, init_seed=seed, stop=None) for seed in range(1, plan.seeds)]
        for trial in chosen
    }
    ends = early_stopped([trial for own in seeds.values() for trial in own], plan, sets, work, before)
    work.evaluate(TRAIN, [step_of(network_of_trial(trial, root), plan, sets, root) for trial in ends.values()], before)
    best = [trial for trial, criteria in chosen.items() if CRITERIA[0] in criteria]
    if DEEP_ENSEMBLE in plan.methods:
        for trial in (trial for trial in best if trial.method == MEMBER):
            deep_ensembles([trial, *(ends[each] for each in seeds[trial])], plan, sets, work, before)
    few = [
        step
        for trial in best
        for first in [trial, *(ends[each] for each in seeds[trial])]
        for step in few_steps(first, plan, sets, root)
    ]
    many = many_steps(plan, sets, root) if plan.upper_bound else []
    work.evaluate(FEW, [*few, *many])
    note_tied(work)
    return plan


# ---- the plan, checked before any work


def existing(plan: Plan, work: Work) -> list[Network]:
    """The networks of the plan that are not trained here."""
    root = work.context.root
    known = (plan.data, *(name_for_keys(class_lists(text)[0], root) for text in plan.downstream))
    networks = [with_weights(find_network(name, work.store, root, known)) for name in plan.networks]
    return with_preprocessing(networks, plan.preprocessing, plan.data)


def downstream(text: str, plan: Plan, root: str | None, networks: Sequence[Network] = ()) -> Downstream:
    """A downstream set as it is written: DATA, DATA#TEST or DATA#VALIDATION#TEST."""
    data, words = class_lists(text)
    data, given = name_for_keys(data, root), [numbers(word) for word in words]
    if len(given) > 2:
        raise SpecError(text, text.find("#"), "there are more than two lists of classes", "DATA#VALIDATION#TEST")
    if given:
        val, test = (given[0] if len(given) == 2 else ()), given[-1]
    else:
        val, test = divided(data, plan, root, networks)
    if plan.trials > 1 and not val and not plan.networks:
        raise BadInput(
            f"{text} has no validation classes to choose hyper-parameters by: name some, or set trials to 1."
        )
    if overlap := set(val) & set(test):
        raise BadInput(f"Class {min(overlap)} of {text} is both a validation and a test class.")
    name = rename_content(data, lambda name: "#".join([name, *words]))
    return Downstream(name, data, val, test)


def divided(
    data: str, plan: Plan, root: str | None, networks: Sequence[Network] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(validation classes, test classes) of a set: its own division by classes, or the first and the other ones.

    networks  those that exist already: the classes that each learnt are omitted, in place of those of the plan
    """
    dataset = load_whole(data, root)
    train, test = (sorted(set(part.labels.tolist())) for part in (dataset.train, dataset.test))
    if train and disjoint(dataset):
        return tuple(train[len(train) // 2 :]), tuple(test)
    trained_on = [(each.trial.data, each.trial.classes) for each in networks if each.trial]
    if not plan.networks:
        trained_on = [(plan.data, plan.classes)]
    learnt = [
        set(test if classes is None else classes) for name, classes in trained_on if same_images(data, name, root)
    ]
    others = sorted(set(test).difference(*learnt))
    if test and not others:
        cure = (
            "name other downstream sets"
            if plan.networks
            else "set classes to some of them, and the others are downstream"
        )
        raise BadInput(f"All classes of {data} are learnt: {cure}.")
    choosing = round(plan.validation_share * len(others))
    return tuple(others[:choosing]), tuple(others[choosing:])


def refuse_impossible(plan: Plan, sets: Sequence[Downstream], root: str | None) -> None:
    refuse_fixed(plan.hparams)
    for backbone in plan.backbones:
        dataset = datasets.load(data_of(plan, backbone, root), root)
        rows = len(datasets.split_dataset(dataset, plan.classes, 0).train)
        for method in trained_methods(plan.methods):
            refuse_training(dataset, [backbone], budget(plan, method, backbone), rows)


# ---- trials


def data_of(plan: Plan, backbone: str, root: str | None) -> str:
    """The upstream set, in the size of a backbone's images."""
    if not plan.input_sizes:
        return plan.data
    return name_for_keys(f"{plan.data}@{plan.input_sizes[plan.backbones.index(backbone)]}", root)


def budget(plan: Plan, method: str, backbone: str) -> Training:
    """The budget, with the batches that a method has of its own."""
    own = mapping(plan.batches)
    if size := own.get(f"{method}/{backbone}", own.get(method)):
        parts, images = product(size)
        return replace(plan.training, batch_size=parts * images, accumulate=parts)
    return plan.training


def trial_of(plan: Plan, line: Line, hparams: HParams, number: int, seed: int = 0, root: str | None = None) -> Trial:
    method, backbone = line
    trial = Trial(
        method=method,
        hparams=hparams,
        data=data_of(plan, backbone, root),
        backbone=backbone,
        training=budget(plan, method, backbone),
        classes=plan.classes,
        spectral=methods[method].spectral_default,
        trial=number,
        data_seed=seed,
        init_seed=seed,
        start=plan.starts[plan.backbones.index(backbone)] if plan.starts else None,
    )
    return with_fixed(trial, plan.hparams)


def own_scores(method: str | None) -> tuple[str, ...]:
    """What a method is judged by: its own scores, else the entropy of its answers, or the length of its embeddings."""
    if method is None:
        return ("entropy",)
    if names := SCORES.get(method, methods[method].scores):
        return tuple(f"{measures.SCORE}{name}" if name in measures.registry else name for name in names)
    return ("entropy",) if methods[method].classifies else ("norm",)


def step_of(
    network: Network,
    plan: Plan,
    sets: Sequence[Downstream],
    root: str | None,
    others: Sequence[Network] = (),
) -> Step:
    """Everything that is measured of one pretrained network, or of an average of it and others."""
    splits = [split for split in ("val", "test") if any(getattr(each, split) for each in sets)]
    targets = Targets(
        upstream=ImageSet(plan.data, "test_or_all", sample_size=plan.limit, sample_seed=plan.seed)
        if network.trial is None
        else ImageSet(network.trial.data, "test", network.trial.classes, sample_size=plan.limit, sample_seed=plan.seed),
        downstream={
            (each.name, split): each.images(split, plan) for each in sets for split in splits if getattr(each, split)
        },
        human={name: human(name, plan, root) for name in (name_for_keys(name, root) for name in plan.annotated)},
    )
    names = own_scores(network.trial.method if network.trial else None)
    facts = {"method": DEEP_ENSEMBLE, "members": 1 + len(others)} if others else {}
    return evaluate_step(network, targets, (*names, *plan.measures), plan, root, facts, others)


def human(data: str, plan: Plan, root: str | None) -> ImageSet:
    """The test images of a set with human votes."""
    return outside(data, range(len(load_whole(data, root).classes)), plan)


def outside(data: str, classes: Sequence[int], plan: Plan) -> ImageSet:
    """Images of some classes of a set that no network learnt, or a random part of them."""
    return ImageSet(part_spec(data, classes), "all_ood", sample_size=plan.limit, sample_seed=plan.seed)


# ---- search (§3.2, appendix B)


def search(plan: Plan, sets: Sequence[Downstream], work: Work, before: Any) -> dict[Trial, list[str]]:
    """Trials that Optuna suggests from the validation R-AUROC of those before, all evaluated on the way; returns the
    chosen trial of every method and backbone with the criteria that chose it.

    Everything is seeded and results do not change, so a second run suggests the same trials and finds them finished.
    """
    lines = [(method, backbone) for backbone in plan.backbones for method in trained_methods(plan.methods)]
    results: dict[Trial, Judged | None] = {}
    root = work.context.root
    split = _judging(sets)

    def losses(number: int, hparam_sets: Mapping[Line, HParams]) -> dict[Line, float | None]:
        made = {line: trial_of(plan, line, hparams, number, root=root) for line, hparams in hparam_sets.items()}
        if split == "val":
            made = {line: replace(trial, kept=kept_epochs(plan)) for line, trial in made.items()}
        for trial in made.values():
            describe(work, trial.describe(), hparams=searched_words(trial.hparams))
        ends = early_stopped(made.values(), plan, sets, work, before)
        work.evaluate(
            TRAIN, [step_of(network_of_trial(trial, root), plan, sets, root) for trial in ends.values()], before
        )
        results.update({trial: validated(trial) for trial in ends.values()})
        found = {line: results[ends[trial]] for line, trial in made.items()}
        return {line: -best[AREA][0] if best and AREA in best else None for line, best in found.items()}

    def validated(trial: Trial) -> Judged | None:
        facts, scores = trial.describe(), own_scores(trial.method)
        best = judged(work.rows, facts, scores, "val", plan.min_recall) if split == "val" else None
        if plan.trials == 1 and (split == "test" or (best and AREA not in best)):  # nothing is chosen
            best = judged(work.rows, facts, scores[:1], "test", 0.0)
        return best

    hparam_sets = {line: methods[line[0]].hparams_class for line in lines}
    guided(hparam_sets, plan.trials, losses, plan.search_seed, plan.extension if plan.trials > 1 else 0)
    note_extended(plan, results, work)
    chosen: dict[Trial, list[str]] = {}
    if work.is_dry_run:
        return {
            next(trial for trial in results if (trial.method, trial.backbone) == line): [*CRITERIA] for line in lines
        }
    for line in lines:
        own = {trial: best for trial, best in results.items() if (trial.method, trial.backbone) == line}
        if not any(best and AREA in best for best in own.values()):
            work.add_notes(
                f"No network of {line[0]} with {line[1]} can be chosen by R-AUROC: R@1 of validation classes is below "
                f"{plan.min_recall:g}, or always right, so that it has no R-AUROC."
            )
        for criterion, trial in choose(work, split, {trial: trial.describe() for trial in own}, own).items():
            chosen.setdefault(trial, []).append(criterion)
    return chosen


def _judging(sets: Sequence[Downstream]) -> str:
    """The classes that choose; those that test where there is one trial, and nothing is chosen."""
    return "val" if all(each.val for each in sets) else "test"


def deep_ensembles(firsts: Sequence[Trial], plan: Plan, sets: Sequence[Downstream], work: Work, before: Any) -> None:
    """Averages of each chosen network of plain training with others that differ in the initial seed alone."""
    root, split = work.context.root, _judging(sets)
    steps = []
    for first in firsts:
        further = [
            replace(first, init_seed=first.init_seed + number * APART) for number in range(1, plan.ensemble_size)
        ]
        others = [network_of_trial(trial, root) for trial in further]
        steps.append(step_of(network_of_trial(first, root), plan, sets, root, others))
    work.evaluate(TRAIN, steps, before)
    facts = firsts[0].describe() | {"method": DEEP_ENSEMBLE, "members": plan.ensemble_size}
    choose(work, split, {"deep": facts}, {"deep": judged(work.rows, facts, own_scores(MEMBER), split, 0.0)})


def searched_words(hparams: HParams) -> str:
    """The hyper-parameters that a search may move."""
    values = {name: getattr(hparams, name) for name in searched(type(hparams))}
    texts = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in values.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items())


def kept_epochs(plan: Plan) -> tuple[int, ...]:
    """The epochs before the last at which a training may stop."""
    last = plan.training.epochs
    return tuple(sorted({round(last * number / plan.checkpoints) for number in range(1, plan.checkpoints)} - {0, last}))


def early_stopped(
    trials: Iterable[Trial], plan: Plan, sets: Sequence[Downstream], work: Work, before: Any
) -> dict[Trial, Trial]:
    """Every trial with those of its kept weights that have the best R-AUROC on validation classes; the last ones where
    none can be judged."""
    root = work.context.root
    ends = {trial: [*(replace(trial, stop=epoch) for epoch in trial.kept), trial] for trial in trials}
    several = {
        end: {"evaluation": CHECKPOINTS, "epoch": epoch_of(end)} for own in ends.values() if len(own) > 1 for end in own
    }
    work.evaluate(STOP, [val_step(end, plan, sets, root, facts) for end, facts in several.items()], before)

    def area(end: Trial) -> float:
        found = judged(work.rows, end.describe() | several[end], own_scores(end.method), "val", plan.min_recall)
        return found[AREA][0] if found and AREA in found else -1.0

    best = {trial: max(reversed(own), key=area) if len(own) > 1 else trial for trial, own in ends.items()}
    for trial, end in best.items():
        if trial.kept:
            describe(work, end.describe(), stopped_epoch=epoch_of(end))
    return best


def epoch_of(trial: Trial) -> int:
    """After how many epochs a trial's weights were taken."""
    return trial.stop or trial.training.epochs


def val_step(end: Trial, plan: Plan, sets: Sequence[Downstream], root: str | None, facts: Row) -> Step:
    """R@1 and R-AUROC on validation classes alone."""
    targets = Targets(downstream={(each.name, "val"): each.images("val", plan) for each in sets})
    return evaluate_step(network_of_trial(end, root), targets, own_scores(end.method), plan, root, facts)


def choose(work: Work, split: str, facts: Mapping[T, Row], results: Mapping[T, Judged | None]) -> dict[str, T]:
    """criterion → the best network by its results on a split, which is noted."""
    chosen: dict[str, T] = {}
    criteria: dict[T, list[str]] = {}
    for criterion in CRITERIA:
        known = {key: result[criterion] for key, result in results.items() if result and criterion in result}
        if known:
            best = chosen[criterion] = max(known, key=lambda key: known[key][0])
            criteria.setdefault(best, []).append(criterion)
    for key, names in criteria.items():
        _, measure = next(iter((results[key] or {}).values()))
        describe(work, facts[key], chosen_by=", ".join(names), chosen_measure=measure)
    return chosen


def describe(work: Work, network: Row, **facts: Unpack[NetworkFacts]) -> None:
    """Note facts about a network with these columns."""
    builder = RowBuilder({"members": 1, **network})
    builder.describe(**facts)
    work.networks = merge_networks([*work.networks, *builder.networks])


def judged(rows: Sequence[Row], facts: Row, scores: Sequence[str], split: str, least: float) -> Judged | None:
    """criterion → (mean over downstream sets, the score that it is of); None where R@1 is below `least`. Of several
    scores of a method the best one counts; R-AUROC is missing where all images, or none, of a set are right."""
    facts = {"evaluation": TRANSFER, **facts}
    own = [row for row in rows if row["split"] == split and row["target"]]
    own = [row for row in own if all(row[name] == value for name, value in facts.items())]
    recalls = [row["value"] for row in own if row["metric"] == RECALL]
    if not recalls or fmean(recalls) < least:
        return None
    areas = {name: [row["value"] for row in own if (row["metric"], row["measure"]) == (AREA, name)] for name in scores}
    means = {name: fmean(values) for name, values in areas.items() if len(values) == len(recalls)}
    measure = max(means, key=lambda name: means[name]) if means else scores[0]
    best = {AREA: (means[measure], measure)} if means else {}
    return best | {RECALL: (fmean(recalls), measure)}


def note_extended(plan: Plan, trials: Iterable[Trial], work: Work) -> None:
    extended = dict.fromkeys(f"{trial.method} ({trial.backbone})" for trial in trials if trial.trial >= plan.trials)
    if extended:
        work.add_notes(
            f"The best value lay at a bound of its range, and the range was extended: {', '.join(extended)}."
        )


def note_tied(work: Work) -> None:
    """Names the measures that do not differ between most images of a set."""
    same = [row for row in work.rows if row["metric"] == TIED_SHARE]
    for method, measure in dict.fromkeys((row["method"], row["measure"]) for row in same):
        own = [row for row in same if (row["method"], row["measure"]) == (method, measure)]
        sets = shorten_names((dataset_label(row["target"] or row["split"]) for row in own), limit=6)
        share = min(row["value"] for row in own)
        most = "all" if share == 1 else f"{share:.0%} or more"
        work.add_notes(f"{measure} of {method} has one value for {most} of the images of {sets}: it says nothing.")


# ---- labelled images of the test classes (§4.2, C.6)


def few_steps(first: Trial, plan: Plan, sets: Sequence[Downstream], root: str | None) -> list[Step]:
    """A chosen network that learns further from k images of each test class, and without any."""
    steps = []
    for each in sets if plan.shots else ():
        unseen = shots_spec(each.data, each.test, 0, first.data_seed)
        none = Targets(tests={(each.name, 0): ImageSet(unseen, "all_ood")})
        steps.append(shots_step(network_of_trial(first, root), none, FEW_SHOT, plan, root, 0))
        for shots in plan.shots:
            further = labelled(first, each, shots, plan, root, f"store:{train_step(first, root).key}")
            steps.append(shots_step(*further, FEW_SHOT, plan, root, shots))
    return steps


def many_steps(plan: Plan, sets: Sequence[Downstream], root: str | None) -> list[Step]:
    """The upper reference: networks of plain cross-entropy that learn the test classes themselves."""
    hparams = methods["erm"].hparams_class()
    return [
        shots_step(*labelled(first, each, None, plan, root, first.start), MANY_SHOT, plan, root)
        for each in sets
        for backbone in plan.backbones
        for seed in range(plan.seeds)
        for first in [trial_of(plan, ("erm", backbone), hparams, 0, seed, root)]
    ]


def labelled(
    first: Trial, each: Downstream, shots: int | None, plan: Plan, root: str | None, start: str | None
) -> tuple[Network, Targets]:
    """The network that learns further from labelled images of the test classes, and their other images."""
    size = datasets.load(first.data, root).size
    data = shots_spec(in_size(each.data, size, root), each.test, shots, first.data_seed)
    rows = len(datasets.load(data, root).train)
    batch = max(2, min(first.training.batch_size, rows))
    training = (
        first.training
        if batch == first.training.batch_size
        else replace(first.training, batch_size=batch, accumulate=1)
    )
    trial = replace(first, data=data, classes=each.test, training=training, start=start, kept=(), stop=None)
    return network_of_trial(trial, root), Targets(tests={(each.name, shots): ImageSet(data, "test", each.test)})


def shots_step(
    network: Network, targets: Targets, evaluated: str, plan: Plan, root: str | None, shots: int | None = None
) -> Step:
    trial = network.trial
    assert trial is not None
    names = (*own_scores(trial.method), *plan.measures)
    (target, _), *_ = targets.tests
    facts = trial.describe() | {"dataset": plan.data, "evaluation": evaluated, "shots": shots}
    return evaluate_step(network, targets, names, plan, root, facts | {"network": network_id(facts, evaluated, target)})
