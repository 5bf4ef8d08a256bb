"""What `shift` does, in the order of the paper (Postels et al. 2022, §4.1), and what `sensitivity` shares with it.

Train on clean images → choose each method's strength by its validation NLL in run 0 → predict clean and changed
images → of every set, and of clean images and all levels of one change together: how well each measure ranks right and
wrong answers → rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Literal, Unpack

import numpy as np

from nescio import datasets, measures, metrics
from nescio.analysis.metric_specs import parse_metric
from nescio.analysis.selection import best_trials
from nescio.arrays.types import Array
from nescio.benchmarks.checks import refuse_measures, refuse_training, refuse_without_labels
from nescio.benchmarks.deep_ensembles import APART, DEEP_ENSEMBLE, MEMBER, name_of_average, own_names, trained_methods
from nescio.benchmarks.recipes import refuse_fixed, with_fixed
from nescio.benchmarks.shift import NAME, REACHED, VERSION, Plan
from nescio.datasets.changes import Change
from nescio.datasets.corruptions import CORRUPTIONS, SEVERITIES, Corruption
from nescio.datasets.image_set import ImageSet, Split
from nescio.datasets.names import name_for_keys, same_images
from nescio.datasets.shifts import FURTHER, PublishedCorruption, published_corruptions
from nescio.errors import BadInput, Undefined
from nescio.methods import registry as methods
from nescio.networks.models import find_network, network_of_trial, with_weights
from nescio.networks.network import Network
from nescio.networks.preprocessed import describe_preprocessing, with_preprocessing
from nescio.predict import OutputSpec, load_predictions, predict_step
from nescio.predictions import Predictions, stack
from nescio.predictions.subset import subset_limit_note
from nescio.report.frame import Frame
from nescio.rows import Columns, Row, RowBuilder
from nescio.training import check_compiled, facts_of, title_of, train_step
from nescio.trials import Trial
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step, Work, files_of, make_evaluation
from nescio.work.store import Store

Level = tuple[str, float]  # what was changed, and how much
Task = Literal["classification", "segmentation"]
CLEAN: Level = ("clean", 0.0)
KEEPING = OutputSpec(fields=("logits", "scores"), dtype="float16")
ANSWERS, RANKING = ("accuracy", "ece", "nll"), ("auroc", "raulc")
TRAIN, CHOOSE, EVALUATE = "train", "choose strengths", "predict and evaluate"  # stages
OUT_ROWS = 10_000  # images of each out-of-distribution set, at most
FAR = 0.05  # below the training accuracy that plain training reaches: undertrained


def compare(plan: Plan, work: Work) -> Plan:
    """Does what is missing in the store; returns the plan with its methods and data by their own names."""
    root = work.context.root
    plan = by_own_names(plan, root)
    own = existing(plan, work) if plan.networks else []
    refuse_measures(plan.measures, methods_behind(own) if own else plan.trained, kept=("logits",))
    levels, out = levels_of(plan, root, split_of(plan, own, root)), out_sets(plan, root)
    if not own:
        refuse_impossible(NAME, plan, root)
    predictors = own or train(plan, chosen(plan, work), work)
    steps = [evaluation_step((NAME, VERSION), each, levels, out, plan.measures, root) for each in predictors]
    work.evaluate(EVALUATE, steps)
    note_ends(plan, work)
    return plan


def note_ends(plan: Plan, work: Work) -> None:
    """Says which networks are undertrained, by what they were compared, and that test images are a random part."""
    reaches = plan.reference_accuracy or REACHED.get(plan.data)
    learnt = [entry for entry in work.networks if "train_accuracy" in entry]
    plain = [entry["train_accuracy"] for entry in learnt if (entry["method"], entry["members"]) == ("erm", 1)]
    if reaches is None and not plain and learnt:
        work.add_notes(
            "What plain training can reach on these images is not known, and erm is not among the methods: no network "
            "is marked as undertrained. Set reference_accuracy to a training accuracy."
        )
    if reaches is None and plain:
        reaches = median(plain)  # not the best: chance would make the others, erm's own too, look undertrained
        work.add_notes(
            "What plain training can reach on these images is not known: networks are compared with erm, whose "
            f"training accuracy is {reaches:.3f} here (the median of its networks). Set reference_accuracy to compare "
            "with another."
        )
    work.add_notes(*mark_undertrained(work.networks, reaches))
    images = [row["n"] for row in work.rows if row["metric"] == "accuracy" and row["task"] == "classification"]
    if plan.limit is not None and plan.limit <= max(images, default=plan.limit):  # else they are all of them
        work.add_notes(subset_limit_note(plan.limit, plan.seed, "test images"))


def by_own_names(plan: Plan, root: str | None = None) -> Plan:
    data = name_for_keys(plan.data, root, "test" if plan.networks else None)
    return replace(plan, data=data, methods=own_names(plan.methods))


# ---- the plan, checked before any work


def refuse_impossible(benchmark: str, plan: Any, root: str | None) -> None:
    """Refuses, before any work, what no trial could do."""
    refuse_without_labels(trained_methods(plan.methods), benchmark)
    refuse_fixed(plan.hparams)
    dataset = datasets.load(plan.data, root)
    if dataset.train.maps is not None:
        raise BadInput(f"{plan.data} has a label for every pixel: set task to segmentation.")
    if len(dataset.classes) < 2:
        raise BadInput(f"{plan.data} has one class, {dataset.classes[0]}: a classifier needs at least two.")
    for name in trained_methods(plan.methods):
        check_compiled(plan.training, name)
    refuse_training(dataset, [plan.backbone], plan.training, len(datasets.split_dataset(dataset, None, 0).train))


def levels_of(plan: Plan, root: str | None, split: Split = "test") -> dict[Level, ImageSet]:
    """The clean test images, and every corruption at every severity."""
    changes = made_here(plan) if plan.corruption_files is None else published(plan, plan.corruption_files, root)
    return with_clean(plan, changes, split)


def split_of(plan: Plan, predictors: Sequence[Predictor], root: str | None) -> Split:
    """Which images are judged: the test images, if a network learnt from this data; for networks that were trained
    elsewhere, all images of a set that is not divided."""
    trials = [each.trial for predictor in predictors for each in predictor.networks]
    learnt = any(trial is not None and same_images(trial.data, plan.data, root) for trial in trials)
    return "test" if learnt or not plan.networks else "test_or_all"


def made_here(plan: Plan) -> list[Corruption]:
    severities = plan.severities or SEVERITIES
    return [Corruption(name, severity) for name in plan.corruptions or CORRUPTIONS for severity in severities]


def published(plan: Plan, path: str, root: str | None) -> list[PublishedCorruption]:
    ours = tuple(name for name in plan.corruptions if name not in FURTHER)
    made_here(replace(plan, corruptions=ours))  # refuses unknown ones
    return published_corruptions(path, plan.data, plan.corruptions or CORRUPTIONS, plan.severities or SEVERITIES, root)


def with_clean(plan: Plan, changes: Iterable[Change], split: Split = "test") -> dict[Level, ImageSet]:
    """The clean test images, and the same under each change."""
    clean = ImageSet(plan.data, split, sample_size=plan.limit, sample_seed=plan.seed)
    return {CLEAN: clean} | {(each.condition, each.level): replace(clean, change=each) for each in changes}


def out_sets(plan: Plan, root: str | None) -> dict[str, ImageSet]:
    """Sets of other classes, each of which is there."""
    names = [name_for_keys(name, root, "all") for name in plan.ood]
    sets = {name: ImageSet(name, "all_ood", limit=OUT_ROWS) for name in names}
    for name, images in sets.items():
        images.load_revision(root)
        if same_images(name, plan.data, root):
            raise BadInput(f"Plan.ood has {name}, which is the in-distribution set: name another set.")
    return sets


# ---- trials


def with_strength(trial: Trial, number: int, count: int, own: bool = False) -> Trial:
    """The trial at one of `count` strengths of its method, the weakest first; as it is where there is one.

    own  the trial's own strength stands in place of the nearest of them: a search must not miss a method's default
    """
    if count == 1:
        return trial
    method = methods[trial.method]
    values = list(method.strength_grid(count))
    if own and (known := strength_of(trial)):
        values[min(range(count), key=lambda at: abs(math.log(values[at] / known)))] = known
    value = values[number]
    if method.strength_hparam == "spectral":
        return replace(trial, trial=number, spectral=value)
    return replace(trial, trial=number, hparams=replace(trial.hparams, **{method.varied_hparam(): value}))


def strength_of(trial: Trial) -> float | None:
    """The strength of a trial's regularisation; None where its recipe has none."""
    name = methods[trial.method].varied_hparam()
    return trial.spectral if name == "spectral" else getattr(trial.hparams, name, None)


def plain_trial(plan: Any, method: str, run: int, init_seed: int, task: Task = "classification") -> Trial:
    """A method in one run, at its defaults but for what the plan says of it. A method that compares views of an image
    has augmentations of its own."""
    own: Any = methods[method].augment or plan.training.augment
    trial = Trial(
        method=method,
        hparams=methods[method].hparams_class(),
        data=plan.data,
        backbone=plan.backbone,
        training=replace(plan.training, augment=own),
        spectral=methods[method].spectral_default,
        data_seed=run,
        init_seed=init_seed,
        task=task,
    )
    return with_fixed(trial, plan.hparams)


def trials_of(plan: Plan, numbers: Mapping[str, int]) -> list[tuple[Trial, ...]]:
    """The members of every line of the tables in every run: single networks first, then ensembles, which are disjoint.

    numbers  which strength each method has; methods that are not there were not trained
    """

    def members(method: str, run: int, size: int) -> tuple[Trial, ...]:
        plain = [plain_trial(plan, method, run, init_seed(run, member), plan.task) for member in range(size)]
        count = plan.strengths if methods[method].strength_hparam else 1  # weight decay is as the plan says
        return tuple(with_strength(trial, numbers[method], count, own=True) for trial in plain)

    further = (*plan.ensemble_methods, *([MEMBER] if DEEP_ENSEMBLE in plan.methods else []))
    averaged = [name for name in numbers if name in further]
    lines = [(name, 1) for name in numbers] + [
        (name, size) for size in sorted(plan.ensemble_sizes) for name in averaged
    ]
    return [members(name, run, size) for name, size in lines for run in range(plan.seeds)]


def init_seed(run: int, member: int) -> int:
    """Of the initial weights of a run's network, or of a member of its ensemble; more runs and members keep theirs."""
    return run + member * APART


# ---- strengths


def chosen(plan: Plan, work: Work) -> dict[str, int]:
    """Method → number of its strength: the one with the lowest NLL of validation images in run 0."""
    tried = [name for name in plan.trained if plan.strengths > 1 and methods[name].strength_hparam]
    steps = [
        strength_step(with_strength(plain_trial(plan, name, 0, 0), number, plan.strengths, own=True), work.context.root)
        for name in tried
        for number in range(plan.strengths)
    ]
    work.evaluate(CHOOSE, steps)
    numbers = {name: 0 for name in plan.trained if work.is_dry_run or name not in tried}
    if rows := [row for row in work.rows if row["split"] == "val" and row["metric"] == "nll"]:
        best = best_trials(rows, 1, by=("method",), trials=range(plan.strengths))
        work.add_notes(*best.notes)
        numbers |= {name: number for (name,), (number,) in best.items()}
    return {name: numbers[name] for name in plan.trained if name in numbers}


def strength_step(trial: Trial, root: str | None) -> Step:
    """Trains one strength in run 0 and keeps the NLL of its validation images."""
    images = ImageSet(trial.data, "val", seed=trial.data_seed)
    dump = predict_step(network_of_trial(trial, root), images, root=root, output_spec=KEEPING)
    make = partial(_strength, trial=trial, dump=dump)
    return make_evaluation(NAME, VERSION, title_of(trial), {"step": "strength"}, [dump], make)


def _strength(step_folder: StepFolder, context: Context, trial: Trial, dump: Step) -> Files:
    rows = RowBuilder(columns_of((NAME, VERSION), trial.describe() | {"members": 1}, "search", split="val"))
    answers = measures.summary(load_predictions(dump, context.store)).outcomes()
    rows.add("nll", metrics.nll(answers), answers.n)
    rows.describe(strength=float(strength_of(trial) or 0))
    return files_of(rows)


# ---- who predicts


@dataclass(frozen=True)
class Predictor:
    """One network, or several whose answers are averaged; `facts` are the columns that name it."""

    networks: tuple[Network, ...]
    facts: Row
    own_views: bool = False  # trained with augmentations of their method's own, which are not the plan's

    @property
    def title(self) -> str:
        first = self.networks[0]
        title = title_of(first.trial) if first.trial else first.name
        return title if len(self.networks) == 1 else f"{len(self.networks)} × {title}"


def average(trials: Sequence[Trial], root: str | None, augment: str | None = None) -> Predictor:
    """What the networks of these trials say together; one alone is an ensemble of one.

    augment  the augmentation of the plan, to say which networks have another
    """
    facts = trials[0].describe() | {"members": len(trials)}
    facts["method"] = name_of_average(trials[0].method, len(trials))
    own_views = augment is not None and trials[0].training.augment != augment
    return Predictor(tuple(network_of_trial(trial, root) for trial in trials), facts, own_views)


def existing(plan: Plan, work: Work) -> list[Predictor]:
    """Networks that exist already."""
    root = work.context.root
    found = [with_weights(find_network(name, work.store, root, (plan.data,))) for name in plan.networks]
    found = with_preprocessing(found, plan.preprocessing, plan.data)
    work.add_notes(*describe_preprocessing(found))
    for name, each in zip(plan.networks, found, strict=True):
        if each.trial and not same_images(each.trial.data, plan.data, root):
            refuse_other_classes(name, each.trial, plan.data, root)
    common = {"dataset": plan.data, "members": 1}
    facts = [
        each.trial.describe() | common if each.trial else common | {"method": "pretrained", "backbone": each.name}
        for each in found
    ]
    lines = [(own["method"], own["backbone"]) for own in facts]
    for name, own, line in zip(plan.networks, facts, lines, strict=True):
        if lines.count(line) > 1:  # runs of one line would be averaged, and these are networks of one's own
            own["method"] = f"{own['method']} {name}"
    return [Predictor((each,), own) for each, own in zip(found, facts, strict=True)]


def methods_behind(predictors: Sequence[Predictor]) -> list[str]:
    """The methods of networks that nescio trained."""
    return [each.trial.method for predictor in predictors for each in predictor.networks if each.trial]


def refuse_other_classes(name: str, trial: Trial, data: str, root: str | None) -> None:
    """Refuses a network whose classes are not those of the data: its answers could not be judged."""
    sets = (datasets.load(trial.data, root), datasets.load(data, root, "test"))  # which may have no training images
    own, wanted = ([str(name) for name in each.classes] for each in sets)
    own = own if trial.classes is None else [own[label] for label in trial.classes]
    if own != wanted:
        raise BadInput(
            f"{name} learnt {trial.data}, whose classes ({', '.join(own[:3])} …) are not those of {data} "
            f"({', '.join(wanted[:3])} …)."
        )


def train(
    plan: Plan, numbers: Mapping[str, int], work: Work, before: Callable[[], None] | None = None
) -> list[Predictor]:
    """Trains every network; returns the lines of the tables whose networks all learnt. `numbers`: see `trials_of`.

    before  see `Work.do`
    """
    root, trials = work.context.root, trials_of(plan, numbers)
    work.run_stage(TRAIN, [train_step(trial, root) for members in trials for trial in members], before)
    there = [all(work.will_exist(train_step(trial, root)) for trial in members) for members in trials]
    augment = plan.training.augment
    return [average(members, root, augment) for members, done in zip(trials, there, strict=True) if done]


# ---- rows of each


def evaluation_step(
    about: tuple[str, int],
    predictor: Predictor,
    levels: Mapping[Level, ImageSet],
    out: Mapping[str, ImageSet],
    names: Sequence[str],
    root: str | None,
) -> Step:
    """Predicts every set, and takes every metric of every set and of the sets of one change together.

    about  name and version of the benchmark
    names  of the measures of uncertainty
    """
    # one network after the other: the last one that was built is kept
    made = [
        {
            images: predict_step(each, images, root=root, output_spec=KEEPING)
            for images in (*levels.values(), *out.values())
        }
        for each in predictor.networks
    ]
    dumps = {level: [steps[images] for steps in made] for level, images in levels.items()}
    outs = {name: [steps[images] for steps in made] for name, images in out.items()}
    config: dict[str, Any] = {"facts": predictor.facts, "measures": list(names)}
    config |= {"levels": list(levels), "out": list(out)}
    config |= {"own_views": True} if predictor.own_views else {}
    make = partial(_evaluate, about=about, predictor=predictor, dumps=dumps, outs=outs, names=names)
    return make_evaluation(*about, predictor.title, config, [step for steps in made for step in steps.values()], make)


def _evaluate(
    step_folder: StepFolder,
    context: Context,
    about: tuple[str, int],
    predictor: Predictor,
    dumps: Mapping[Level, Sequence[Step]],
    outs: Mapping[str, Sequence[Step]],
    names: Sequence[str],
) -> Files:
    rows = ShiftRows(columns_of(about, predictor.facts))
    levels = {level: Outcome.of(steps, names, context.store) for level, steps in dumps.items()}
    for (shift, severity), each in levels.items():
        rows.outcomes(each, shift=shift, severity=severity)
        rows.ranking(each, names, shift=shift, severity=severity)
    for change in dict.fromkeys(shift for shift, _ in levels if shift != CLEAN[0]):
        pooled = [each for (shift, _), each in levels.items() if shift in (CLEAN[0], change)]
        rows.ranking(pool(pooled), names, shift=change)
    for target, steps in outs.items():
        out = Outcome.of(steps, names, context.store)
        rows.detection(levels[CLEAN], out, names, target)
    rows.network(predictor, context)
    return files_of(rows)


def columns_of(
    about: tuple[str, int], facts: Row, evaluation: str = "shift", split: str = "test", task: Task = "classification"
) -> Row:
    """The columns that all results of one predictor have."""
    columns = {"benchmark": about[0], "version": about[1], "task": task, "evaluation": evaluation, "split": split}
    return columns | facts


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a predictor answers about one set of images, where that can be judged, and its uncertainty by measure."""

    outcomes: metrics.Outcomes | None
    wrong: Array
    u: Mapping[str, Array]
    missing: Mapping[str, str]  # measures that it cannot have, and why

    @classmethod
    def of(cls, steps: Sequence[Step], names: Sequence[str], store: Store) -> Outcome:
        dump = averaged([load_predictions(step, store) for step in steps])
        u, missing = {}, {}
        for name in names:
            try:
                u[name] = measures.uncertainty(name, dump)
            except (Undefined, BadInput) as reason:
                missing[name] = str(reason)
        judged = dump.has_outcomes and (dump.in_distribution is None or bool(dump.in_distribution.all()))
        answers = measures.summary(dump).outcomes() if judged else None
        return cls(answers, np.empty(0, bool) if answers is None else answers.wrong, u, missing)


def averaged(dumps: Sequence[Predictions]) -> Predictions:
    """The dump of an average of members, whose native score is their mutual information; of one, its own."""
    if len(dumps) == 1:
        return dumps[0]
    whole = stack(dumps)
    return whole.replace(scores={"native": measures.mutual_information(whole)})


def pool(parts: Sequence[Outcome]) -> Outcome:
    """Several sets as one, for rankings."""
    u = {name: np.concatenate([part.u[name] for part in parts]) for name in parts[0].u}
    return Outcome(None, np.concatenate([part.wrong for part in parts]), u, parts[0].missing)


@dataclass
class ShiftRows(RowBuilder):
    """Gathers the results of one predictor."""

    reported: Sequence[str] = ("method", "members")

    def outcomes(self, outcome: Outcome, **columns: Unpack[Columns]) -> None:
        """Accuracy, ECE and NLL."""
        if (outcomes := outcome.outcomes) is None:
            raise BadInput("The test images have no labels that the network knows: right and wrong cannot be told.")
        for metric in ANSWERS:
            self.attempt(metric, partial(parse_metric(metric), outcomes), outcomes.n, **columns)

    def ranking(self, outcome: Outcome, names: Sequence[str], **columns: Unpack[Columns]) -> None:
        """AUROC and rAULC of right against wrong predictions, by every measure."""
        for name in names:
            if name in outcome.missing:
                self.omit(outcome.missing[name], measure=name)
                continue
            columns["measure"] = name
            if ranked := self.ranked(outcome.u[name], outcome.wrong, **columns):
                for metric in RANKING:
                    self.attempt(metric, partial(parse_metric(metric), ranked), ranked.n, **columns)

    def ranked(self, u: Array, positive: Array, **columns: Unpack[Columns]) -> metrics.Ranking | None:
        """Rows in order of a measure; None, with its reason, if the measure is not finite."""
        try:
            return metrics.Ranking(u, positive)
        except BadInput as error:
            self.omit(error, **columns)
            return None

    def network(self, predictor: Predictor, context: Context) -> None:
        """The lowest training accuracy of its networks, and the strength of their regularisation."""
        trials = [each.trial for each in predictor.networks if each.trial]
        facts = [facts_of(train_step(trial, context.root), context.store) for trial in trials]

        def values(name: str) -> list[float]:
            return [each[name] for each in facts if name in each]

        self.describe(
            train_accuracy=min(values("train_accuracy"), default=None),
            strength=strength_of(trials[0]) if trials else None,
            own_augmentation=predictor.own_views or None,
            at_bound=float(np.mean(bound)) if (bound := values("at_bound")) else None,
            rows_per_feature=float(np.mean(rows)) if (rows := values("rows_a_feature")) else None,
        )

    def detection(self, clean: Outcome, out: Outcome, names: Sequence[str], target: str) -> None:
        """AUROC of images of another set against clean ones."""
        where: Columns = {
            "evaluation": "ood",
            "split": "out",
            "target": target,
            "shift": CLEAN[0],
            "severity": CLEAN[1],
        }
        for name in (name for name in names if name in clean.u and name in out.u):
            u = np.concatenate([clean.u[name], out.u[name]])
            stranger = np.repeat([False, True], [len(clean.u[name]), len(out.u[name])])
            own: Columns = {**where, "measure": name}
            if ranked := self.ranked(u, stranger, **own):
                self.attempt("auroc", partial(parse_metric("auroc"), ranked), ranked.n, **own)


# ---- networks that did not learn


def mark_undertrained(networks: Sequence[Row], reaches: float | None) -> list[str]:
    """Mark networks whose training accuracy is far below that of plain training; return warnings."""
    if reaches is None:
        return []
    low = [entry for entry in networks if entry.get("train_accuracy", reaches) < reaches - FAR]
    for entry in low:
        entry["undertrained"] = True
    lowest = Frame(low).sort("train_accuracy", reverse=True)
    accuracies = {entry["method"]: entry["train_accuracy"] for entry in lowest}
    return [
        f"Warning: {method} is undertrained: its training accuracy is as low as {accuracies[method]:.3f}, and plain "
        f"training reaches {reaches:.3g} on these images. Its rows are no findings about the method."
        for method in dict.fromkeys(entry["method"] for entry in low)
    ]
