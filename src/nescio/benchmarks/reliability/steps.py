"""What `reliability` does: train → embed → heads, the truth → scores → their τ with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from nescio import datasets
from nescio.analysis.representations import agreement
from nescio.analysis.representations.candidates import common_member_count
from nescio.analysis.representations.downstream import DownstreamLosses, downstream_losses
from nescio.analysis.representations.row_scores import chosen_components
from nescio.benchmarks.checks import refuse_training
from nescio.benchmarks.reliability import NAME, VERSION, Plan
from nescio.datasets.image_set import ImageSet
from nescio.datasets.names import name_for_keys
from nescio.errors import BadInput
from nescio.identity import rename_content
from nescio.methods import registry as methods
from nescio.networks.models import network_of_trial
from nescio.predict import EMBEDDINGS, load_predictions, predict_step
from nescio.predictions import Predictions
from nescio.predictions.columns import from_npz, to_npz
from nescio.rows import Row, network_id
from nescio.runtime import runtime_for
from nescio.training import check_views, members_facts, train_step
from nescio.trials import Trial
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step, Work, evaluation_files, make_evaluation
from nescio.work.store import Store

POINTS, TRUTH = "points.npz", "truth.npz"  # beside the rows of an evaluation: a number for every test row


def compare(plan: Plan, work: Work) -> None:
    """Does what is missing in the store, and takes the rows of all."""
    plan = by_content(plan, work.context.root)
    check_possible(plan, work)
    alive, embedded = embed(plan, work)
    networks = [network for question in _questions(alive, plan) for network in question.networks]
    work.evaluate("accuracy", [accuracy_step(network, plan, embedded) for network in networks])
    members, notes = common_member_count({own.title: len(own.trials) for own in alive})
    work.add_notes(*notes)
    questions = _questions([Siblings(own.trials[:members]) for own in alive], plan)
    truths = {truth_step(question, plan, embedded): question for question in questions}
    judged = work.evaluate("heads", truths)
    questions = [
        replace(question, distance=distance, sample=sample)
        for step, question in truths.items()
        if step in judged or work.is_dry_run
        for distance, sample in product(plan.distances, range(plan.reference_samples))
    ]
    if "ll" in plan.scores:
        work.evaluate("components", [components_step(question, plan, embedded) for question in questions])
    scores = {score_step(question, plan, embedded): question for question in questions}
    scored = work.evaluate("scores", scores)
    rivals: dict[tuple[Any, ...], list[Question]] = {}
    for step, question in scores.items():
        if step in scored or work.is_dry_run:
            rivals.setdefault(question.rivals, []).append(question)
    work.evaluate("rankings", [rank_step(group, plan, embedded) for group in rivals.values() if len(group) > 1])


def by_content(plan: Plan, root: str | None) -> Plan:
    """The plan with data and targets by their absolute names and contents."""

    def target(text: str) -> str:
        source, name = plan.divided(text)
        before = f"{name_for_keys(source, root)}=" if source else ""
        return rename_content(name_for_keys(name, root), lambda name: f"{before}{name}")

    data = tuple(name_for_keys(name, root) for name in plan.pretraining_data)
    return replace(plan, pretraining_data=data, downstream=tuple(map(target, plan.downstream)))


def _questions(candidates: Iterable[Siblings], plan: Plan) -> list[Question]:
    return [Question(siblings, target) for siblings in candidates for target in plan.sources[siblings.first.data]]


# ---- which networks, which images


@dataclass(frozen=True)
class Siblings:
    """Networks of one method, one backbone and one pre-training set, each of its own init seed."""

    trials: tuple[Trial, ...]

    @property
    def first(self) -> Trial:
        return self.trials[0]

    @property
    def title(self) -> str:
        return f"{self.first.method}, {self.first.backbone}, {self.first.data}"


def siblings_of(plan: Plan) -> list[Siblings]:
    """Pre-training sets × backbones × methods, each with its members."""
    candidates = []
    for data, backbone, name in product(*map(dict.fromkeys, (plan.pretraining_data, plan.backbones, plan.methods))):
        config = methods[name].hparams_class()
        trial = Trial(method=name, hparams=config, data=data, backbone=backbone, training=plan.training)
        count = dict(plan.method_seeds).get(name, plan.seeds)
        candidates.append(Siblings(tuple(replace(trial, init_seed=member) for member in range(count))))
    return candidates


def references(plan: Plan, data: str, sample: int) -> ImageSet:
    """Images that the networks learnt from, drawn by the number of the sample, the same for all networks."""
    return ImageSet(data, "train", sample_size=plan.reference_size, sample_seed=sample)


def downstream_sets(target: str) -> tuple[ImageSet, ImageSet]:
    """Images that heads learn from, and those that they are judged on."""
    return ImageSet(target, "train_val"), ImageSet(target, "test")


def image_sets(plan: Plan, data: str) -> list[ImageSet]:
    """Everything that the networks of one pre-training set embed."""
    targets = [images for target in plan.sources[data] for images in downstream_sets(target)]
    return [*(references(plan, data, sample) for sample in range(plan.reference_samples)), *targets]


def check_possible(plan: Plan, work: Work) -> None:
    """Refuses, before any work, what no network could do, and notes what is less than the plan says."""
    root, nearest = work.context.root, max(plan.k, plan.k_dist)
    for data, targets in plan.sources.items():
        source = datasets.load(data, root)
        work.add_notes(*(f"{data}: {note}" for note in source.notes))
        rows = len(datasets.split_dataset(source).train)
        if rows < plan.reference_size:
            few = f"{data} has {rows:,} training images, and all of them are references"
            work.add_notes(f"{few}: samples of references do not differ.")
        if nearest > (count := min(rows, plan.reference_size)):
            raise BadInput(f"k is {nearest}, but {data} has only {count} references: choose a smaller k.")
        refuse_training(source, plan.backbones, plan.training, rows)
        for target in targets:
            other = datasets.load(target, root)
            if other.channels != source.channels:
                raise BadInput(
                    f"{target} has images of {other.channels} channel(s), {data} of {source.channels}: a network that "
                    "learnt from the one cannot look at the other."
                )
            if len(other.classes) < 2:
                raise BadInput(f"{target} has one class only: downstream heads need two or more.")
    for name in plan.methods:
        if methods[name].classifies:
            raise BadInput(f"reliability compares what is learnt without labels, and {name} needs them: omit it.")
        check_views(plan.training, methods[name].views)


# ---- the steps


HEADS, REPRESENTATION = "heads", "representation"  # evaluations of networks alone
Embedded = Mapping[tuple[Trial, ImageSet], Step]  # the steps that embed images by the networks of trials
Dumps = Mapping[str, Sequence[Step]]  # refs, train or tests → one embedding step per member


def embedding_steps(plan: Plan, trials: Iterable[Trial], root: str | None) -> dict[tuple[Trial, ImageSet], Step]:
    """One step per network and image set."""
    return {
        (trial, images): _titled(
            predict_step(network_of_trial(trial, root), images, root=root, output_spec=EMBEDDINGS), trial
        )
        for trial in trials
        for images in image_sets(plan, trial.data)
    }


def _titled(step: Step, trial: Trial) -> Step:
    return replace(step, title=f"{Siblings((trial,)).title}, member {trial.init_seed}")


def embed(plan: Plan, work: Work) -> tuple[list[Siblings], Embedded]:
    """Trains and embeds; the candidates that there are, with the members that did not fail."""
    wanted, root = siblings_of(plan), work.context.root
    # members of low seeds first: a stopped run has some of every candidate
    trials = sorted((trial for own in wanted for trial in own.trials), key=lambda trial: trial.init_seed)
    training = {trial: _titled(train_step(trial, root), trial) for trial in trials}
    work.run_stage("train", training.values())
    steps = embedding_steps(plan, trials, root)
    work.run_stage("embed", [step for (trial, _), step in steps.items() if work.will_exist(training[trial])])
    missing = {trial for (trial, _), step in steps.items() if not work.will_exist(step)}
    alive = [Siblings(tuple(trial for trial in own.trials if trial not in missing)) for own in wanted]
    for own, whole in zip(alive, wanted, strict=True):
        if len(own.trials) < len(whole.trials):
            work.add_notes(f"{whole.title}: {len(own.trials)} of {len(whole.trials)} members are there.")
    return [own for own in alive if own.trials], steps


@dataclass(frozen=True)
class Question:
    """One candidate, one target; of its scores also one distance and one sample of references."""

    siblings: Siblings
    target: str
    distance: str = ""
    sample: int = 0

    @property
    def title(self) -> str:
        against = f", {self.distance}, references {self.sample}" if self.distance else ""
        return f"{self.siblings.title} → {self.target}{against}"

    @property
    def rivals(self) -> tuple[Any, ...]:
        """Candidates among which Table 3 chooses have this in common: they differ in their method alone."""
        first = self.siblings.first
        return first.data, first.backbone, self.target, self.distance, self.sample

    @property
    def networks(self) -> list[Question]:
        """The same question to every member alone."""
        return [replace(self, siblings=Siblings((trial,))) for trial in self.siblings.trials]

    def dumps(self, plan: Plan, embedded: Embedded, *roles: str) -> Dumps:
        """The steps that embed references (refs), what heads learn from (train) or are judged on (tests)."""
        train, tests = downstream_sets(self.target)
        images = {"refs": references(plan, self.siblings.first.data, self.sample), "train": train, "tests": tests}
        return {role: [embedded[trial, images[role]] for trial in self.siblings.trials] for role in roles}

    def facts(self, context: Context) -> Row:
        """The columns of a row that say which candidate this is and what it is judged on."""
        facts = {"benchmark": NAME, "version": VERSION, "calibrated": False, "target": self.target}
        nothing = dict.fromkeys(("trial", "data_seed", "init_seed"))
        return members_facts(self.siblings.trials, context) | facts | nothing

    def files(self, evaluation: str, rows: Sequence[Row], reasons: Sequence[Row] = ()) -> Files:
        """The files of an evaluation, each row with its network."""
        named = [row | {"evaluation": evaluation, "network": network_id(row)} for row in rows]
        return evaluation_files(named, reasons, named if evaluation in (HEADS, REPRESENTATION) else ())


def _step(
    kind: str, question: Question, make: Callable[..., Files], dumps: Dumps, before: Sequence[Step] = (), **config: Any
) -> Step:
    """An evaluation of the dumps of a question; `before` are evaluations that it needs."""
    config |= {"kind": kind, "target": question.target, "distance": question.distance, "sample": question.sample}
    parents = [*before, *(step for steps in dumps.values() for step in steps)]
    make = partial(make, question=question, dumps=dumps)
    return make_evaluation(NAME, VERSION, f"{question.title}, {kind}", config, parents, make)


def truth_step(question: Question, plan: Plan, embedded: Embedded) -> Step:
    """Heads for every member, and their losses on every test row."""
    question = replace(question, distance="", sample=0)
    dumps = question.dumps(plan, embedded, "train", "tests")
    return _step("heads", question, partial(_make_truth, tasks=plan.tasks), dumps, tasks=plan.tasks)


def _make_truth(step_folder: StepFolder, context: Context, question: Question, dumps: Dumps, tasks: str) -> Files:
    train, tests = _load(dumps, context, "train", "tests")
    losses = downstream_losses(train, tests, tasks, runtime_for(context.device).put)
    rows = agreement.truth_rows(losses, question.facts(context))
    return {**question.files(HEADS, rows), TRUTH: to_npz(losses.arrays())}


def _load(dumps: Dumps, context: Context, *roles: str) -> list[list[Predictions]]:
    """Of each role the embeddings of every member."""
    return [[load_predictions(step, context.store) for step in dumps[role]] for role in roles]


def accuracy_step(network: Question, plan: Plan, embedded: Embedded) -> Step:
    """How good the representation of one network is: a linear probe, and votes of the nearest neighbours."""
    dumps = network.dumps(plan, embedded, "train", "tests")
    return _step("accuracy", network, partial(_make_accuracy, k=plan.k_accuracy), dumps, k=plan.k_accuracy)


def _make_accuracy(step_folder: StepFolder, context: Context, question: Question, dumps: Dumps, k: int) -> Files:
    (train,), (test,) = _load(dumps, context, "train", "tests")
    facts = question.facts(context) | {"init_seed": question.siblings.first.init_seed}
    rows = agreement.accuracy_rows(train, test, k, facts, runtime_for(context.device).put)
    return question.files(REPRESENTATION, rows)


def components_step(question: Question, plan: Plan, embedded: Embedded) -> Step:
    """How many components the mixtures of a candidate have: chosen on the references of its first network."""
    question = replace(question, target=question.siblings.first.data, sample=0)  # for all targets and samples
    dumps = question.networks[0].dumps(plan, embedded, "refs")
    make = partial(_make_components, components=plan.components)
    return _step("components", question, make, dumps, components=plan.components)


def _make_components(
    step_folder: StepFolder, context: Context, question: Question, dumps: Dumps, components: Sequence[int]
) -> Files:
    ((refs,),) = _load(dumps, context, "refs")
    choice = chosen_components(refs, components, "euclidean" if question.distance == "euclidean" else "cosine")
    facts = question.facts(context) | {"distance": question.distance, "n": len(refs)}
    return question.files("components", agreement.component_rows(choice, facts))


def score_step(question: Question, plan: Plan, embedded: Embedded) -> Step:
    """The scores of one candidate against one sample of references, and their τ with the truth."""
    truth = truth_step(question, plan, embedded)
    choice = [components_step(question, plan, embedded)] if "ll" in plan.scores else []
    names = ("k", "k_dist", "scores", "components", "similarity")
    config = {name: getattr(plan, name) for name in names}
    config |= {"ks": plan.ks if question.distance == plan.swept else None}
    make = partial(_make_scores, plan=plan, truth=truth, choice=choice)
    return _step("scores", question, make, question.dumps(plan, embedded, "refs", "tests"), [truth, *choice], **config)


def _make_scores(
    step_folder: StepFolder,
    context: Context,
    question: Question,
    dumps: Dumps,
    plan: Plan,
    truth: Step,
    choice: Sequence[Step],
) -> Files:
    refs, tests = _load(dumps, context, "refs", "tests")
    losses, facts = _truth(truth, context.store), question.facts(context) | {"draw": question.sample}
    seeds = [trial.init_seed for trial in question.siblings.trials]
    counts = [row for step in choice for row in step.rows(context.store)[0]]
    components = next((int(row["value"]) for row in counts if row["metric"] == agreement.CHOSEN), 0)
    rows, reasons, points = agreement.score(
        refs, tests, losses, plan, question.distance, facts, seeds=seeds, components=components
    )
    return {**question.files("agreement", rows, reasons), POINTS: to_npz(points)}


def _truth(step: Step, store: Store) -> DownstreamLosses:
    return DownstreamLosses.from_arrays(from_npz(step.verified(store) / TRUTH))


def rank_step(rivals: Sequence[Question], plan: Plan, embedded: Embedded) -> Step:
    """Candidates that differ in their method against each other."""
    scores = tuple(score_step(question, plan, embedded) for question in rivals)
    truths = tuple(truth_step(question, plan, embedded) for question in rivals)
    make = partial(_make_ranking, question=rivals[0], scores=scores, truths=truths)
    return make_evaluation(NAME, VERSION, f"ranking of {scores[0].title}", {"kind": "ranking"}, scores, make)


def _make_ranking(
    step_folder: StepFolder, context: Context, question: Question, scores: Sequence[Step], truths: Sequence[Step]
) -> Files:
    store = context.store
    points = [from_npz(step.verified(store) / POINTS) for step in scores]
    of_all = {"method": None, "members": None}
    facts = question.facts(context) | of_all | {"draw": question.sample, "distance": question.distance}
    rows = agreement.ranking_rows(points, [_truth(step, store) for step in truths], facts)
    return question.files("ranking", *rows)
