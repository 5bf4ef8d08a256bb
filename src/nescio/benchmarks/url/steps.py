"""Steps of `url`, in the order of the paper (Kirchhof et al. 2023, §3.2).

Pretrain → stop at the best validation epoch → embed validation and test classes of every downstream set → search
hyper-parameters by validation classes → further seeds of the chosen ones → networks trained further on a few, or all,
labelled images of the test classes → results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import fmean

from nescio import datasets, measures
from nescio.benchmarks import lineup, model_search
from nescio.benchmarks.plans import DEEP_ENSEMBLE, MEMBER, refuse_hparams
from nescio.benchmarks.url import NAME, VERSION, Plan
from nescio.datasets.image_set import ImageSet
from nescio.datasets.names import name_for_keys, same_images
from nescio.datasets.subsets import disjoint, in_size, load_whole, part_spec, shots_spec
from nescio.errors import BadInput
from nescio.evaluations import Evaluation, Subject, TargetSet
from nescio.evaluations.cost import NetworkCost
from nescio.evaluations.crops import Crops
from nescio.evaluations.engine import plan_steps
from nescio.evaluations.human import HumanAlignment
from nescio.evaluations.misclassification import Misclassification
from nescio.evaluations.mixtures import UPSTREAM, Mixtures
from nescio.evaluations.scoring import METHOD_SCORES
from nescio.evaluations.transfer import R_AUROC, RECALL, TIED_SHARE, Transfer
from nescio.identity import map_content
from nescio.methods import registry as methods
from nescio.networks.groups import NetworkGroup
from nescio.networks.models import network_of_trial
from nescio.predictions.subset import subset_limit_note
from nescio.report.format import shorten_names
from nescio.report.labels import dataset_label
from nescio.rows import Row, network_id
from nescio.search import HParams
from nescio.specs import SpecError, class_lists, mapping, numbers, product, write_numbers
from nescio.training import train_step
from nescio.trials import Training, Trial
from nescio.work.steps import Step, Work

TRAIN, STOP, FEW = "train, embed and evaluate", "evaluate checkpoints", "train on a few labelled images"  # stages
CRITERIA = R_AUROC, RECALL
TRANSFER, CHECKPOINTS, FEW_SHOT, MANY_SHOT = "transfer", "checkpoints", "few-shot", "many-shot"  # evaluations
SCORES = {"sngp": ("entropy",)}  # scores by which the paper ranks a method, if not all of its native scores
Line = tuple[str, str]  # method, backbone


@dataclass(frozen=True)
class Downstream:
    """One downstream set: its name in results, its data, and its validation and test classes."""

    name: str
    data: str
    val: tuple[int, ...]
    test: tuple[int, ...]

    def target(self, split: str, plan: Plan) -> TargetSet:
        return TargetSet(new_images(self.data, getattr(self, split), plan), split, self.name)


@dataclass(frozen=True)
class UrlStudy:
    """A plan with its downstream sets, and the work that runs it."""

    plan: Plan
    sets: Sequence[Downstream]
    work: Work

    @property
    def root(self) -> str | None:
        return self.work.context.root

    @property
    def before(self) -> Callable[[], None] | None:
        """The checks before the first training."""
        return None if self.plan.networks else partial(refuse_impossible, self.plan, self.root)

    @property
    def selection_split(self) -> str:
        """The classes that select; the test classes if there is one trial, and nothing is selected."""
        return "val" if all(downstream.val for downstream in self.sets) else "test"

    @cached_property
    def human(self) -> tuple[TargetSet, ...]:
        """The test images of sets with human votes."""
        names = [name_for_keys(name, self.root) for name in self.plan.annotated]
        counts = {name: len(load_whole(name, self.root).classes) for name in names}
        return tuple(
            TargetSet(new_images(name, range(count), self.plan), "human", name) for name, count in counts.items()
        )

    def targets(self, *splits: str) -> tuple[TargetSet, ...]:
        return tuple(
            downstream.target(split, self.plan)
            for downstream in self.sets
            for split in splits
            if getattr(downstream, split)
        )

    # ---- evaluations

    def evaluate(self, stage: str, subjects: Iterable[tuple[Subject, list[Evaluation]]]) -> None:
        """Train the networks of the subjects, and run the evaluations of each."""
        steps: list[Step] = []
        for subject, evaluations in subjects:
            planned = plan_steps([subject], evaluations, self.root)
            steps += planned.steps
            self.work.reasons += [reason for reason in planned.reasons if reason not in self.work.reasons]
        self.work.evaluate(stage, steps, self.before)

    def evaluate_pretrained(self, groups: Iterable[NetworkGroup]) -> None:
        subjects = [self.subject(group) for group in groups]
        self.evaluate(TRAIN, [(subject, self.evaluations(subject)) for subject in subjects])

    def subject(self, group: NetworkGroup) -> Subject:
        data = group.trial.data if group.trial else self.plan.data
        return Subject(group, data, self.root, self.plan.limit, self.plan.seed)

    def evaluations(self, subject: Subject) -> list[Evaluation]:
        """All evaluations of a pretrained network, or of an average of several."""
        upstream, test = TargetSet(subject.test_images, UPSTREAM), self.targets("test")
        scores, resamples = self.scores(subject.group), self.plan.bootstrap
        kinds: list[Evaluation] = [
            self.transfer(scores, upstream, *self.targets("val", "test"), *self.human),
            Crops(scores=scores, sets=(upstream, *test, *self.human), retrieval=True, bootstrap=resamples),
            Misclassification(scores=scores, metrics=("accuracy", "auroc"), split=UPSTREAM),
            Mixtures(scores=scores, sets=test, bootstrap=resamples),
            NetworkCost(),
        ]
        return [*kinds, HumanAlignment(scores=scores, sets=self.human)] if self.human else kinds

    def transfer(self, scores: tuple[str, ...], *sets: TargetSet) -> Transfer:
        return Transfer(scores=scores, sets=sets, bootstrap=self.plan.bootstrap, gallery=False)

    def scores(self, group: NetworkGroup) -> tuple[str, ...]:
        return (*ranking_scores(group.trial.method if group.trial else None), *self.plan.measures, METHOD_SCORES)

    # ---- what is selected

    def criterion_values(
        self, columns: Row, scores: Sequence[str], split: str, least: float = 0.0
    ) -> model_search.CriterionValues | None:
        return criterion_values(self.work.rows, columns, scores, split, least)

    def validated(self, trial: Trial) -> model_search.CriterionValues | None:
        """The criteria of a trial by validation classes; by test classes if nothing is selected."""
        columns, scores = lineup.columns_of(trial), ranking_scores(trial.method)
        values = None
        if self.selection_split == "val":
            values = self.criterion_values(columns, scores, "val", self.plan.min_recall)
        if self.plan.trials == 1 and (self.selection_split == "test" or (values and R_AUROC not in values)):
            values = self.criterion_values(columns, scores[:1], "test")
        return values

    def stop_early(self, trials: Iterable[Trial]) -> dict[Trial, Trial]:
        """Every trial at the epoch with the best R-AUROC of validation classes."""
        val = self.targets("val")

        def columns(end: Trial) -> Row:
            return lineup.columns_of(end) | {"evaluation": CHECKPOINTS, "epoch": model_search.epoch_of(end)}

        def evaluate(ends: Sequence[Trial]) -> None:
            groups = [NetworkGroup((network_of_trial(end, self.root),), columns(end)) for end in ends]
            kinds = [self.transfer((*ranking_scores(end.method), METHOD_SCORES), *val) for end in ends]
            self.evaluate(STOP, [(self.subject(group), [kind]) for group, kind in zip(groups, kinds, strict=True)])

        def area(end: Trial) -> float | None:
            scores = ranking_scores(end.method)
            values = self.criterion_values(columns(end), scores, "val", self.plan.min_recall)
            return values[R_AUROC][0] if values and R_AUROC in values else None

        return model_search.stop_early(trials, evaluate, area, self.work)

    def finish(self, trials: Sequence[Trial]) -> dict[Trial, Trial]:
        """Train and evaluate trials; trial → the same at the epoch where it stopped."""
        ends = self.stop_early(trials)
        self.evaluate_pretrained(lineup.average([end], self.root) for end in ends.values())
        return ends

    # ---- networks

    def run(self) -> None:
        """Search, further seeds, deep ensembles, and networks that are trained further."""
        chosen = self.search()
        seeds = {trial: lineup.further_seeds(trial, self.plan.seeds) for trial in chosen}
        ends = self.finish([trial for trials in seeds.values() for trial in trials])
        best = {
            trial: [trial, *(ends[further] for further in seeds[trial])]
            for trial, criteria in chosen.items()
            if R_AUROC in criteria
        }
        if DEEP_ENSEMBLE in self.plan.methods:
            for trial, trials in best.items():
                if trial.method == MEMBER:
                    self.evaluate_ensembles(trials)
        further = [*self.few_shot(trial for trials in best.values() for trial in trials), *self.many_shot()]
        self.evaluate(FEW, further)

    def search(self) -> dict[Trial, list[str]]:
        """The chosen trial of every method and backbone, with the criteria that chose it."""
        plan, root = self.plan, self.root
        lines = [(method, backbone) for backbone in plan.backbones for method in plan.trained]
        stops = model_search.checkpoint_epochs(plan.training, plan.checkpoints) if self.selection_split == "val" else ()

        def trial(line: Line, hparams: HParams, number: int) -> Trial:
            return replace(trial_of(plan, line, hparams, number, root=root), kept=stops)

        values: dict[Trial, model_search.CriterionValues | None] = {}

        def area(end: Trial) -> float | None:
            criteria = values[end] = self.validated(end)
            return criteria[R_AUROC][0] if criteria and R_AUROC in criteria else None

        hparams = {line: methods[line[0]].hparams_class for line in lines}
        extension = plan.extension if plan.trials > 1 else 0
        trials = model_search.guided_search(
            hparams, trial, self.finish, area, plan.trials, self.work, seed=plan.search_seed, extension=extension
        )
        if self.work.is_dry_run:
            return {candidates[0]: [*CRITERIA] for candidates in trials.values()}
        chosen: dict[Trial, list[str]] = {}
        for (method, backbone), candidates in trials.items():
            if not any(R_AUROC in (values[candidate] or {}) for candidate in candidates):
                self.work.add_notes(
                    f"No network of {method} with {backbone} can be chosen by R-AUROC: R@1 of validation classes is "
                    f"below {plan.min_recall:g}, or always right, so that it has no R-AUROC."
                )
            columns = {candidate: lineup.columns_of(candidate) for candidate in candidates}
            best = model_search.choose(columns, values, CRITERIA, self.work)
            for criterion, candidate in best.items():
                chosen.setdefault(candidate, []).append(criterion)
        return chosen

    def evaluate_ensembles(self, trials: Sequence[Trial]) -> None:
        """Averages of each network with others that differ in the initial weights alone."""
        groups = [lineup.deep_ensemble(trial, self.plan.ensemble_size, self.root) for trial in trials]
        self.evaluate_pretrained(groups)
        self.mark_chosen(groups[0], ranking_scores(MEMBER), self.selection_split)

    def mark_chosen(self, group: NetworkGroup, scores: Sequence[str], split: str) -> None:
        """Mark a network that was not selected among others, with its best score."""
        values = self.criterion_values(group.columns, scores, split)
        model_search.choose({0: group.columns}, {0: values}, CRITERIA, self.work)

    # ---- labelled images of the test classes (§4.2, C.6)

    def few_shot(self, trials: Iterable[Trial]) -> Iterator[tuple[Subject, list[Evaluation]]]:
        """Chosen networks that are trained further on k images of each test class, and without any."""
        for trial in trials if self.plan.shots else ():
            start = f"store:{train_step(trial, self.root).key}"
            for downstream in self.sets:
                unseen = shots_spec(downstream.data, downstream.test, 0, trial.data_seed)
                target = TargetSet(ImageSet(unseen, "all_ood"), "test", downstream.name)
                yield self.labelled(trial, target, FEW_SHOT, 0)
                for shots in self.plan.shots:
                    further, target = further_training(trial, downstream, shots, start, self.root)
                    yield self.labelled(further, target, FEW_SHOT, shots)

    def many_shot(self) -> Iterator[tuple[Subject, list[Evaluation]]]:
        """The upper bound: networks of plain cross-entropy that are trained on the test classes themselves."""
        for downstream in self.sets if self.plan.upper_bound else ():
            for backbone in self.plan.backbones:
                for seed in range(self.plan.seeds):
                    hparams = methods[MEMBER].hparams_class()
                    trial = trial_of(self.plan, (MEMBER, backbone), hparams, 0, seed, self.root)
                    further, target = further_training(trial, downstream, None, trial.start, self.root)
                    yield self.labelled(further, target, MANY_SHOT, None)

    def labelled(
        self, trial: Trial, target: TargetSet, evaluation: str, shots: int | None
    ) -> tuple[Subject, list[Evaluation]]:
        columns = lineup.columns_of(trial) | {"dataset": self.plan.data, "evaluation": evaluation, "shots": shots}
        columns["network"] = network_id(columns, evaluation, target.target)
        group = NetworkGroup((network_of_trial(trial, self.root),), columns)
        return self.subject(group), [self.transfer(self.scores(group), target)]


def compare(plan: Plan, work: Work) -> Plan:
    """Do what is missing in the store; return the plan with its methods and data by their registered names."""
    root = work.context.root
    plan = lineup.with_registered_names(plan, root)
    groups = existing(plan, work)
    sets = [downstream(text, plan, root, groups) for text in plan.downstream]
    if plan.limit is not None:
        work.add_notes(subset_limit_note(plan.limit, plan.seed, "images of each set"))
    lineup.refuse_measures(plan.measures, () if plan.networks else plan.trained)
    study = UrlStudy(plan, sets, work)
    if plan.networks:
        study.evaluate_pretrained(groups)
        for group in groups:
            scores = ranking_scores(group.trial.method if group.trial else None)
            study.mark_chosen(group, scores[:1], "test")
    else:
        study.run()
    note_tied(work)
    for row in work.rows:
        row |= {"benchmark": NAME, "version": VERSION}
    return plan


def criterion_values(
    rows: Iterable[Row], columns: Row, scores: Sequence[str], split: str, least: float = 0.0
) -> model_search.CriterionValues | None:
    """Criterion → (mean over downstream sets, the score that it is of); None if R@1 is below `least`.

    Of several scores the best one counts. R-AUROC is missing if all images, or none, of a set are right.
    """
    columns = {"evaluation": TRANSFER, **columns}
    rows = [row for row in rows if row["split"] == split and row["target"]]
    rows = [row for row in rows if all(row[name] == value for name, value in columns.items())]
    recalls = [row["value"] for row in rows if row["metric"] == RECALL]
    if not recalls or fmean(recalls) < least:
        return None
    areas = {
        name: [row["value"] for row in rows if (row["metric"], row["measure"]) == (R_AUROC, name)] for name in scores
    }
    means = {name: fmean(values) for name, values in areas.items() if len(values) == len(recalls)}
    measure = max(means, key=lambda name: means[name]) if means else scores[0]
    best = {R_AUROC: (means[measure], measure)} if means else {}
    return best | {RECALL: (fmean(recalls), measure)}


def note_tied(work: Work) -> None:
    """Name the scores that do not differ between most images of a set."""
    tied = [row for row in work.rows if row["metric"] == TIED_SHARE]
    for method, measure in dict.fromkeys((row["method"], row["measure"]) for row in tied):
        rows = [row for row in tied if (row["method"], row["measure"]) == (method, measure)]
        sets = shorten_names((dataset_label(row["target"] or row["split"]) for row in rows), limit=6)
        share = min(row["value"] for row in rows)
        share_text = "all" if share == 1 else f"{share:.0%} or more"
        work.add_notes(
            f"{measure} of {method} has one value for {share_text} of the images of {sets}: it ranks none of them."
        )


def ranking_scores(method: str | None) -> tuple[str, ...]:
    """The scores that a method is ranked by: its native ones, else the entropy, or the length of its embeddings."""
    if method is None:
        return ("entropy",)
    if names := SCORES.get(method, methods[method].scores):
        return tuple(f"{measures.SCORE}{name}" if name in measures.registry else name for name in names)
    return ("entropy",) if methods[method].classifies else ("norm",)


# ---- the plan, checked before any work


def existing(plan: Plan, work: Work) -> list[NetworkGroup]:
    """The networks of the plan that exist already."""
    names = [name_for_keys(class_lists(text)[0], work.context.root) for text in plan.downstream]
    groups = lineup.existing(plan.networks, plan.data, plan.preprocessing, work, further_data=names, same_classes=False)
    return [replace(group, columns={"trial": 0, "data_seed": 0} | group.columns) for group in groups]


def downstream(text: str, plan: Plan, root: str | None, groups: Sequence[NetworkGroup] = ()) -> Downstream:
    """A downstream set from DATA, DATA#TEST or DATA#VALIDATION#TEST."""
    data, texts = class_lists(text)
    data, class_texts = name_for_keys(data, root), [numbers(classes) for classes in texts]
    if len(class_texts) > 2:
        raise SpecError(text, text.find("#"), "there are more than two lists of classes", "DATA#VALIDATION#TEST")
    if class_texts:
        val, test = (class_texts[0] if len(class_texts) == 2 else ()), class_texts[-1]
        refuse_trained_classes(data, {*val, *test}, root, groups)
    else:
        val, test = divide_classes(data, plan, root, groups)
    if plan.trials > 1 and not val and not plan.networks:
        raise BadInput(
            f"{text} has no validation classes to choose hyper-parameters by: name some, or set trials to 1."
        )
    if overlap := set(val) & set(test):
        raise BadInput(f"Class {min(overlap)} of {text} is both a validation and a test class.")
    name = map_content(data, lambda name: "#".join([name, *texts]))
    return Downstream(name, data, val, test)


def refuse_trained_classes(data: str, classes: set[int], root: str | None, groups: Sequence[NetworkGroup]) -> None:
    """Refuse downstream classes that an existing network was trained on."""
    for group in groups:
        trial = group.trial
        if trial is None or not same_images(trial.data, data, root):
            continue
        all_classes = set(range(len(load_whole(data, root).classes)))
        trained = all_classes if trial.classes is None else set(trial.classes)
        if overlap := sorted(classes & trained):
            other_classes = write_numbers(sorted(all_classes - trained))
            advice = f"its other classes are {data}#{other_classes}" if other_classes else "name another downstream set"
            name = group.columns["method"]
            raise BadInput(f"Class {overlap[0]} of {data} is a class that a network ({name}) was trained on: {advice}.")


def divide_classes(
    data: str, plan: Plan, root: str | None, groups: Sequence[NetworkGroup] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(validation classes, test classes) of a set: its own division by classes, or the first and the other ones.

    groups  existing networks, whose classes are omitted instead of those of the plan
    """
    dataset = load_whole(data, root)
    train, test = (sorted(set(images.labels.tolist())) for images in (dataset.train, dataset.test))
    if train and disjoint(dataset):
        return tuple(train[len(train) // 2 :]), tuple(test)
    trained_on = [(group.trial.data, group.trial.classes) for group in groups if group.trial]
    if not plan.networks:
        trained_on = [(plan.data, plan.classes)]
    trained = [
        set(test if classes is None else classes) for name, classes in trained_on if same_images(data, name, root)
    ]
    new_classes = sorted(set(test).difference(*trained))
    if test and not new_classes:
        advice = (
            "name other downstream sets"
            if plan.networks
            else "set classes to some of them, and the others are downstream"
        )
        raise BadInput(f"All classes of {data} are trained: {advice}.")
    count = round(plan.validation_share * len(new_classes))
    return tuple(new_classes[:count]), tuple(new_classes[count:])


def refuse_impossible(plan: Plan, root: str | None) -> None:
    refuse_hparams(plan.hparams)
    for backbone in plan.backbones:
        dataset = datasets.load(data_of(plan, backbone, root), root)
        rows = len(datasets.split_dataset(dataset, plan.classes, 0).train)
        for method in plan.trained:
            lineup.refuse_training(dataset, [backbone], budget(plan, method, backbone), rows)


def new_images(data: str, classes: Sequence[int], plan: Plan) -> ImageSet:
    """Images of some classes of a set that no network was trained on, or a random sample of them."""
    return ImageSet(part_spec(data, classes), "all_ood", sample_size=plan.limit, sample_seed=plan.seed)


# ---- trials


def data_of(plan: Plan, backbone: str, root: str | None) -> str:
    """The upstream set, in the size of a backbone's images."""
    if not plan.input_sizes:
        return plan.data
    return name_for_keys(f"{plan.data}@{plan.input_sizes[plan.backbones.index(backbone)]}", root)


def budget(plan: Plan, method: str, backbone: str) -> Training:
    """The training budget, with the batches that the plan sets for a method."""
    sizes = mapping(plan.batches)
    if size := sizes.get(f"{method}/{backbone}", sizes.get(method)):
        blocks, images = product(size)
        return replace(plan.training, batch_size=blocks * images, accumulate=blocks)
    return plan.training


def trial_of(plan: Plan, line: Line, hparams: HParams, number: int, seed: int = 0, root: str | None = None) -> Trial:
    method, backbone = line
    trial = lineup.plain_trial(
        method,
        data_of(plan, backbone, root),
        backbone,
        plan.training,
        seed=seed,
        fixed=plan.hparams,
        hparams=hparams,
        classes=plan.classes,
        number=number,
    )
    start = plan.starts[plan.backbones.index(backbone)] if plan.starts else None
    return replace(trial, training=budget(plan, method, backbone), start=start)  # one augmentation for all methods


def further_training(
    trial: Trial, downstream: Downstream, shots: int | None, start: str | None, root: str | None
) -> tuple[Trial, TargetSet]:
    """The trial, trained further on labelled images of the test classes, and their other images.

    shots  images of each class; None: all that are not evaluated
    """
    size = datasets.load(trial.data, root).size
    data = shots_spec(in_size(downstream.data, size, root), downstream.test, shots, trial.data_seed)
    rows = len(datasets.load(data, root).train)
    batch, training = max(2, min(trial.training.batch_size, rows)), trial.training
    if batch != training.batch_size:
        training = replace(training, batch_size=batch, accumulate=1)
    further = replace(trial, data=data, classes=downstream.test, training=training, start=start, kept=(), stop=None)
    return further, TargetSet(ImageSet(data, "test", downstream.test), "test", downstream.name)
