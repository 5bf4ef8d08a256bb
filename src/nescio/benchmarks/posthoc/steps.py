"""What `posthoc` does: train → predict training, validation, test and other images → every score → rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from nescio import datasets, measures
from nescio.analysis.results import Scorecard
from nescio.analysis.score_choice import question_rows
from nescio.analysis.scorecard import scorecard
from nescio.analysis.significance import best_by_delong
from nescio.benchmarks import lineup
from nescio.benchmarks.checks import refuse_classification
from nescio.benchmarks.deep_ensembles import DEEP_ENSEMBLE, MEMBER, own_names, trained_methods
from nescio.benchmarks.posthoc import AMONG_BEST, FAR, METRICS, MISTAKES, NAME, NEAR, TRANSFORMERS, VERSION, Plan
from nescio.datasets.image_set import ImageSet
from nescio.datasets.names import absolute_name, name_for_keys, same_images
from nescio.errors import BadInput
from nescio.identity import canonical
from nescio.networks.families import architecture
from nescio.networks.groups import NetworkGroup
from nescio.networks.network import Network
from nescio.predict import OutputSpec, load_predictions, predict_step
from nescio.predictions import Predictions, stack
from nescio.predictions.subset import subset_limit_note
from nescio.rows import Columns, RowBuilder
from nescio.specs import method_on
from nescio.trials import Training, Trial
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step, Work, files_of, make_evaluation

KEEPING = OutputSpec(fields=("logits", "embeddings"), dtype="float16")
OTHERS = ("gaussian_mixture", "vmf_mixture", "knn_distance")  # scores of representations, and slow at many rows
TEST = "test"


def compare(plan: Plan, work: Work) -> Plan:
    """Does what is missing in the store; returns the plan with its data by its own name."""
    root = work.context.root
    plan = replace(plan, data=name_for_keys(plan.data, work.context.root, "test" if plan.networks else None))
    if plan.networks:
        groups = lineup.existing(plan.networks, plan.data, plan.preprocessing, work)
    else:
        refuse_impossible(plan, root)
        groups = lineup.train([lineup.average(trials, root) for trials in trials_of(plan, root)], work)
    work.evaluate(lineup.EVALUATE, [evaluation_step(plan, group, root) for group in groups])
    lineup.describe_training(groups, work)
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
    """Refuses, before any work, what no trial could do."""
    for pair in plan.train_networks:
        method, backbone = method_on(pair)
        names = trained_methods(own_names([method]))
        refuse_classification(NAME, plan.data, names, (), backbone, training_of(plan, backbone), root)
    classes = len(datasets.load(plan.data, root).classes)
    if plan.held_out_classes > classes - 2:
        raise BadInput(f"Plan.held_out_classes must be at most {classes - 2}: {plan.data} has {classes} classes.")


def trials_of(plan: Plan, root: str | None) -> list[tuple[Trial, ...]]:
    """The members of every line of the tables in every run; one alone is a single network."""
    known = range(len(datasets.load(plan.data, root).classes) - plan.held_out_classes)

    def members(pair: str, run: int) -> tuple[Trial, ...]:
        method, backbone = method_on(pair)
        (name,) = own_names([method])
        size = plan.ensemble_size if name == DEEP_ENSEMBLE else 1
        trained, training = MEMBER if name == DEEP_ENSEMBLE else name, training_of(plan, backbone)
        classes = tuple(known) if plan.held_out_classes else None
        return tuple(
            lineup.plain_trial(trained, plan.data, backbone, training, seed=run, member=member, classes=classes)
            for member in range(size)
        )

    return [members(pair, run) for pair in plan.train_networks for run in range(plan.seeds)]


# ---- images


def own_images(plan: Plan, network: Network, root: str | None) -> dict[str, ImageSet]:
    """Training, validation and test images; of a network from elsewhere no image is known to be held out."""
    trial = network.trial
    if trial is not None and same_images(trial.data, plan.data, root):
        train, val = (ImageSet(plan.data, split, trial.classes, seed=trial.data_seed) for split in ("train", "val"))
        test = ImageSet(plan.data, classes=trial.classes, sample_size=plan.limit, sample_seed=plan.seed)
        return {"train": replace(train, limit=plan.fit_images), "val": val, TEST: test}
    sets = {TEST: ImageSet(plan.data, "test_or_all", sample_size=plan.limit, sample_seed=plan.seed)}
    try:
        datasets.load(plan.data, root)
    except BadInput:  # without training images
        return sets
    return {"train": ImageSet(plan.data, "train_val", limit=plan.fit_images), **sets}


def other_images(plan: Plan, network: Network, root: str | None) -> dict[str, ImageSet]:
    """near:SET or far:SET, where SET is the set's name in keys → out-of-distribution images."""
    pairs = [(NEAR, name) for name in plan.near_ood] + [(FAR, name) for name in plan.far_ood]
    named_sets = [(group, ImageSet(absolute_name(name), "all_ood").with_content_name(root)) for group, name in pairs]
    sets = {f"{group}:{canonical(images.data)}": images for group, images in named_sets}
    trial = network.trial
    if trial is not None and trial.classes is not None and same_images(trial.data, plan.data, root):
        sets[f"{NEAR}:left out"] = ImageSet(plan.data, "out", classes=trial.classes)
    return {name: replace(images, sample_size=plan.limit, sample_seed=plan.seed) for name, images in sets.items()}


# ---- rows


def evaluation_step(plan: Plan, predictor: NetworkGroup, root: str | None) -> Step:
    """Predicts every set by every member, and takes every score of every set."""
    others = other_images(plan, predictor.networks[0], root)
    sets = own_images(plan, predictor.networks[0], root) | others
    dumps = [
        {name: predict_step(each, images, root=root, output_spec=KEEPING) for name, images in sets.items()}
        for each in predictor.networks
    ]
    config = {"facts": predictor.columns, "sets": list(sets)}
    make = partial(_evaluate, predictor=predictor, dumps=dumps, others=list(others))
    return make_evaluation(
        NAME, VERSION, predictor.title, config, [step for own in dumps for step in own.values()], make
    )


def _evaluate(
    step_folder: StepFolder,
    context: Context,
    predictor: NetworkGroup,
    dumps: Sequence[Mapping[str, Step]],
    others: Sequence[str],
) -> Files:
    shared = {"benchmark": NAME, "version": VERSION, "split": "test"}
    made = RowBuilder(shared | predictor.columns, reported=("method", "members"))
    members = [{name: load_predictions(step, context.store) for name, step in own.items()} for own in dumps]
    cards = [card_of(own, others) for own in members]
    card = cards[0] if len(cards) == 1 else card_of(ensemble(members, cards), others)
    for row in card.rows:
        if row["metric"] in METRICS:
            where: Columns = {**columns(row["split"], row["measure"]), "ood_share": row["ood_share"]}
            made.add(row["metric"], row["value"], row["n"], **where)
    lacking = set(score_names()) - {row["measure"] for row in made.rows}
    reasons = [entry for entry in cards[0].reasons if entry["metric"] is None and entry["measure"] in lacking]
    for entry in reasons + [entry for entry in card.reasons if entry["metric"] in METRICS]:
        made.omit(entry["reason"], measure=entry["measure"], metric=entry["metric"])
    for group in (MISTAKES, *dict.fromkeys(name.partition(":")[0] for name in others)):
        best_group(made, card, group)
    return files_of(made)


def columns(split: str, measure: str | None) -> Columns:
    """The columns of a number on a scorecard: its question, the out-of-distribution set, the score and its rows."""
    name = measure.removeprefix(measures.SCORE) if measure else None
    kind = measures.registry[name].kind if name and name in measures.registry else ""
    group, _, target = split.partition(":")
    if split == TEST:
        group = MISTAKES if measure else "classification"
    fitted = {"fitted": "train", "tuned": "val"}.get(kind)
    return {"measure": name, "evaluation": group, "target": target or None, "fitted_on": fitted}


def score_names() -> list[str]:
    """The measures of one dump that are compared."""
    parts = [part for part in measures.registry.parts() if part.kind in ("plain", "fitted", "tuned")]
    return [part.name for part in parts if part.equivalent_to is None and part.name not in OTHERS]


def card_of(dumps: Mapping[str, Predictions], others: Sequence[str]) -> Scorecard:
    """Every score of one dump; an ensemble's has scores of its own beside those of its answers."""
    known, outside = (dumps.get("train"), dumps.get("val")), {name: dumps[name] for name in others}
    only = [*score_names(), *measures.score_names(dumps[TEST])]
    return scorecard(dumps[TEST], *known, outside, calibration=None, only=only, classwise=False)


def ensemble(members: Sequence[Mapping[str, Predictions]], cards: Sequence[Scorecard]) -> dict[str, Predictions]:
    """The averaged answers; with scores that need embeddings, which are means of the members' own."""
    raw = [card.raw for card in cards if card.raw is not None]
    whole = {name: stack([own[name] for own in members]) for name in members[0]}
    featured = [part.name for part in measures.registry.parts() if "embeddings" in part.needs]
    names = [name for name in featured if all(name in scores.uncertainty for scores in raw)]
    for split, dump in whole.items():
        u = {
            name: [scores.uncertainty[name] if split == TEST else scores.ood[name][split] for scores in raw]
            for name in names
            if split not in ("train", "val")
        }
        whole[split] = dump.replace(scores={name: np.mean(own, axis=0) for name, own in u.items()})
    return whole


def best_group(made: RowBuilder, card: Scorecard, group: str) -> None:
    """Which scores cannot be told from the best of a question: DeLong's paired test over rows, Holm's adjustment."""
    raw = card.raw
    assert raw is not None
    sets = [name for name in next(iter(raw.ood.values()), {}) if name.startswith(f"{group}:")]
    outside = {each: {name: own[each] for name, own in raw.ood.items() if each in own} for each in sets}
    rows = question_rows("unknown" if sets else "mistakes", raw.uncertainty, raw.wrong, outside)
    if rows.smallest < 2:
        made.omit("Fewer than two rows of a kind: no score can be told from another.", metric=AMONG_BEST)
        return
    equals = best_by_delong({name: rows.components(name) for name in rows.names}).equals
    for name in rows.names:
        made.add(AMONG_BEST, name in equals, rows.n, **columns(f"{group}:" if sets else TEST, name))
