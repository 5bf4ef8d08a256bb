"""Which representations can be trusted, without labels?

Methods × backbones × pre-training sets × M seeds → train → embed references, training and test images → the truth:
heads on frozen features, whose members' answers are averaged before they are judged → the scores of every sample of
references → Kendall's τ of every score with every loss → rows.
Source: Park, Wang, Ardeshir and Azizan, Quantifying representation reliability, 2024.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nescio import metrics
from nescio.analysis.downstream import DownstreamLosses, downstream_losses
from nescio.analysis.ranking import agreements
from nescio.datasets.images import ImageSet
from nescio.errors import BadInput, Undefined
from nescio.identity import Checked
from nescio.measures.siblings import SiblingScores, Similarity, Spaces, kind, spaces_of
from nescio.options import nested, option, ranges
from nescio.predictions import Predictions
from nescio.predictions.columns import from_npz, to_npz
from nescio.protocols.base import protocol
from nescio.rows import COLUMNS, Row
from nescio.trials import Training, Trial
from nescio.work.steps import Context, Files, Step, Work, evaluation, table
from nescio.work.store import Part, Store

NAME, VERSION = "reliability", 3
Array = NDArray[Any]
POINTS, TRUTH = "points.npz", "truth.npz"  # beside the rows of an evaluation: a number for every test row
STAR = "*"  # after a score of one member alone (Tables 8 and 9)
NEIGHBOURS, MEMBERS = "k", "M"  # column `group` of rows that vary the number of neighbours, or of members
SCORING = "scores"  # heading of options


def _counts(text: str) -> tuple[tuple[str, int], ...]:
    """moco=3,byol=2 → ((moco, 3), (byol, 2))."""
    pairs = [word.partition("=")[::2] for word in text.split(",")]
    if any(not (name and count.isdecimal()) for name, count in pairs):
        raise BadInput(f"--members-of is numbers of networks such as moco=3,byol=2, not {text!r}.")
    return tuple((name, int(count)) for name, count in pairs)


@dataclass(frozen=True)
class Plan(Checked):
    """What to compare, on what, with which budget."""

    data: tuple[str, ...] = option(("digits",), "pre-training data", metavar="SETS")
    targets: tuple[str, ...] = option(
        (),
        "downstream data; tiny-imagenet=cifar10: of this pre-training set alone",
        metavar="SETS",
        unset="the pre-training data itself",
    )
    methods: tuple[str, ...] = option(("simclr", "byol", "moco"), "methods that learn without labels")
    backbones: tuple[str, ...] = option(("conv",), "small to large")
    members: int = option(10, "networks of each candidate, which differ in their seed", metavar="M")
    members_of: tuple[tuple[str, int], ...] = option(
        (),
        "of some methods another number of networks, such as moco=3,byol=2",
        metavar="METHOD=M",
        parse=_counts,
        write=lambda pairs: ",".join(f"{name}={count}" for name, count in pairs),
        unset="as many",
    )
    references: int = option(5000, "pre-training images that are references", metavar="N", group=SCORING)
    seeds: int = option(5, "samples of references", group=SCORING)
    k: int = option(100, "neighbours of NC, about 2 % of the references", group=SCORING)
    k_dist: int = option(1, "neighbours of Dist", metavar="K", group=SCORING)
    ks: tuple[int, ...] = option(
        (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
        "of the sweep over k, those below --references",
        parse=ranges,
        group=SCORING,
    )
    distances: tuple[Literal["cosine", "euclidean"], ...] = option(
        ("cosine", "euclidean"), "between embeddings; sweeps are of cosine", group=SCORING
    )
    scores: tuple[Literal["nc", "dist", "norm", "ll", "fv"], ...] = option(
        ("nc", "dist", "norm", "ll", "fv"), "which scores; ll takes most of the time", group=SCORING
    )
    components: int = option(20, "of LL's mixtures", metavar="C", group=SCORING)
    similarity: Similarity = option("jaccard", "of two neighbourhoods", group=SCORING)
    tasks: Literal["one-vs-one", "multiclass"] = option("one-vs-one", "what heads learn downstream", group=SCORING)
    training: Training = nested(Training())

    def check(self) -> None:
        for name in ("members", "references", "seeds", "k", "k_dist", "components"):
            if getattr(self, name) < 1:
                raise BadInput(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}.")
        if min(self.ks, default=1) < 1:
            raise BadInput(f"--ks holds {min(self.ks)}: a neighbourhood has at least one neighbour.")
        for method, count in self.members_of:
            if method not in self.methods or count < 1:
                raise BadInput(f"--members-of {method}={count}: name a method of --methods and at least one network.")
        for target in self.targets:
            source = target.rpartition("=")[0]
            if source and source not in self.data:
                raise BadInput(f"--targets {target}: {source} is not in --data; name targets of --data.")
        for name in ("data", "methods", "backbones", "distances", "scores"):
            if not getattr(self, name):
                raise BadInput(f"--{name} names none: there is nothing to compare.")

    @property
    def swept(self) -> str:
        """The distance whose sweeps over k and M are kept."""
        return "cosine" if "cosine" in self.distances else self.distances[0]

    @property
    def sources(self) -> dict[str, list[str]]:
        """Pre-training data → its downstream data."""
        pairs = [target.rpartition("=")[::2] for target in dict.fromkeys(self.targets)]
        shared = [target for source, target in pairs if not source]
        own = {data: [target for source, target in pairs if source == data] for data in self.data}
        return {data: own[data] or shared or [data] for data in self.data}


PRESETS: dict[str, Plan] = {
    "small": Plan(
        members=3, references=500, k=20, training=Training(epochs=30, batch=64, augment="full", schedule="cosine")
    ),
    # the paper's own, whose text leaves the budget of the pre-training open: it is ours
    "paper": Plan(
        data=("cifar10", "cifar100", "tiny-imagenet"),
        targets=("tiny-imagenet=cifar10", "tiny-imagenet=cifar100", "tiny-imagenet=stl10"),
        backbones=("resnet18", "resnet50"),
        training=Training(epochs=200, batch=512, augment="full", schedule="cosine", warmup=10, decay=5e-4),
    ),
}


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
    from nescio.methods import registry as methods

    candidates = []
    for data, backbone, name in product(*map(dict.fromkeys, (plan.data, plan.backbones, plan.methods))):
        recipe = methods[name].recipe_class()
        trial = Trial(method=name, recipe=recipe, data=data, backbone=backbone, training=plan.training)
        count = dict(plan.members_of).get(name, plan.members)
        candidates.append(Siblings(tuple(replace(trial, init_seed=member) for member in range(count))))
    return candidates


def references(plan: Plan, data: str, sample: int) -> ImageSet:
    """Images that the networks learnt from, drawn by the number of the sample, the same for all networks."""
    return ImageSet(data, "train", sample=plan.references, sample_seed=sample)


def downstream_sets(target: str) -> tuple[ImageSet, ImageSet]:
    """Images that heads learn from, and those that they are judged on."""
    return ImageSet(target, "learnt"), ImageSet(target, "test")


def image_sets(plan: Plan, data: str) -> list[ImageSet]:
    """Everything that the networks of one pre-training set embed."""
    targets = [images for target in plan.sources[data] for images in downstream_sets(target)]
    return [*(references(plan, data, sample) for sample in range(plan.seeds)), *targets]


def check_possible(plan: Plan, work: Work) -> None:
    """Refuses, before any work, what no network could do, and notes what is less than the plan says."""
    from nescio import backbones, datasets
    from nescio.methods import registry as methods
    from nescio.training import check_batch, check_views

    root, nearest = work.context.root, max(plan.k, plan.k_dist)
    for data, targets in plan.sources.items():
        source = datasets.load(data, root)
        rows = len(datasets.splits(source).train)
        if rows < plan.references:
            work.note(
                f"{data} has {rows:,} training images, and all of them are references: samples of references do not "
                "differ."
            )
        if nearest > (count := min(rows, plan.references)):
            raise BadInput(f"k is {nearest}, but {data} has only {count} references: choose a smaller k.")
        check_batch(plan.training, rows)
        for name in plan.backbones:
            backbones.build(name, source.channels, source.size)
        for target in targets:
            _check_target(source, datasets.load(target, root), data, target)
    for name in plan.methods:
        if methods[name].classifies:
            raise BadInput(f"reliability compares what is learnt without labels, and {name} needs them: omit it.")
        check_views(plan.training, methods[name].views)


def _check_target(source: Any, target: Any, data: str, name: str) -> None:
    if target.channels != source.channels:
        raise BadInput(
            f"{name} has images of {target.channels} channel(s), {data} of {source.channels}: a network that learnt "
            "from the one cannot look at the other."
        )
    if len(target.classes) < 2:
        raise BadInput(f"{name} has one class only: downstream heads need two or more.")


# ---- the steps


Embedded = Mapping[tuple[Trial, ImageSet], Step]  # the steps that embed images by the networks of trials


def embedding_steps(plan: Plan, trials: Iterable[Trial], root: str | None) -> dict[tuple[Trial, ImageSet], Step]:
    """One step per network and image set."""
    from nescio.networks.models import trained
    from nescio.predict import EMBEDDINGS, predict_step

    steps = {}
    for trial in trials:
        network = trained(trial, root)
        for images in image_sets(plan, trial.data):
            step = predict_step(network, images, root=root, keeping=EMBEDDINGS)
            steps[trial, images] = _titled(step, trial)
    return steps


def _titled(step: Step, trial: Trial) -> Step:
    return replace(step, title=f"{Siblings((trial,)).title}, member {trial.init_seed}")


def embed(plan: Plan, work: Work) -> tuple[list[Siblings], Embedded]:
    """Trains and embeds; the candidates that there are, with the members that did not fail."""
    from nescio.training import train_step

    wanted, root = siblings_of(plan), work.context.root
    # members of low seeds first: a stopped run has some of every candidate
    trials = sorted((trial for own in wanted for trial in own.trials), key=lambda trial: trial.init_seed)
    training = {trial: _titled(train_step(trial, root), trial) for trial in trials}
    work.do("train", training.values())
    steps = embedding_steps(plan, trials, root)
    work.do("embed", [step for (trial, _), step in steps.items() if training[trial].finished(work.store)])
    missing = {trial for (trial, _), step in steps.items() if not step.finished(work.store)}
    alive = [Siblings(tuple(trial for trial in own.trials if trial not in missing)) for own in wanted]
    for own, whole in zip(alive, wanted, strict=True):
        if len(own.trials) < len(whole.trials):
            work.note(f"{whole.title}: {len(own.trials)} of {len(whole.trials)} members are there.")
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
        return f"{self.siblings.title} → {self.target}"

    @property
    def rivals(self) -> tuple[Any, ...]:
        """Candidates among which Table 3 chooses have this in common: they differ in their method alone."""
        first = self.siblings.first
        return first.data, first.backbone, self.target, self.distance, self.sample

    def steps(self, images: ImageSet, embedded: Embedded) -> tuple[Step, ...]:
        """One embedding step per member."""
        return tuple(embedded[trial, images] for trial in self.siblings.trials)

    def facts(self, context: Context) -> Row:
        """The columns of a row that say which candidate this is and what it is judged on."""
        from nescio.training import facts_of, train_step

        trials = self.siblings.trials
        params = sum(facts_of(train_step(trial, context.root), context.store)["params"] for trial in trials)
        facts = {"protocol": NAME, "version": VERSION, "params": params, "calibrated": False, "target": self.target}
        described = self.siblings.first.describe() | {"trial": None, "data_seed": None, "init_seed": None}
        return described | facts | {"members": len(trials)}


def truth_step(question: Question, plan: Plan, embedded: Embedded) -> Step:
    """Heads for every member, and their losses on every test row."""
    train, tests = (question.steps(images, embedded) for images in downstream_sets(question.target))
    make = partial(_make_truth, question=question, tasks=plan.tasks, train=train, tests=tests)
    recipe = {"kind": "heads", "tasks": plan.tasks, "target": question.target}
    return evaluation(NAME, VERSION, f"{question.title}, heads", recipe, (*train, *tests), make)


def _make_truth(
    part: Part, context: Context, question: Question, tasks: str, train: Sequence[Step], tests: Sequence[Step]
) -> Files:
    import torch

    from nescio.runtime import runtime

    device = runtime(context.device).device
    place: Any = np.asarray if device.type == "cpu" else partial(torch.tensor, device=device)
    losses = downstream_losses(_dumps(train, context), _dumps(tests, context), tasks, place)
    return table(truth_rows(losses, question.facts(context))) | {TRUTH: to_npz(losses.arrays())}


def _dumps(steps: Sequence[Step], context: Context) -> list[Predictions]:
    from nescio.predict import load_dump

    return [load_dump(step, context.store) for step in steps]


def _truth(step: Step, store: Store) -> DownstreamLosses:
    return DownstreamLosses.of_arrays(from_npz(step.verified(store) / TRUTH))


def score_step(question: Question, plan: Plan, embedded: Embedded) -> Step:
    """The scores of one candidate against one sample of references, and their τ with the truth."""
    refs = question.steps(references(plan, question.siblings.first.data, question.sample), embedded)
    tests = question.steps(downstream_sets(question.target)[1], embedded)
    truth = truth_step(question, plan, embedded)
    names = ("k", "k_dist", "scores", "components", "similarity")
    recipe = {"kind": "scores", "target": question.target, "distance": question.distance, "sample": question.sample}
    recipe |= {name: getattr(plan, name) for name in names}
    recipe |= {"ks": plan.ks if question.distance == plan.swept else None}
    make = partial(_make_scores, question=question, plan=plan, refs=refs, tests=tests, truth=truth)
    title = f"{question.title}, {question.distance}, references {question.sample}"
    return evaluation(NAME, VERSION, title, recipe, (truth, *refs, *tests), make)


def _make_scores(
    part: Part,
    context: Context,
    question: Question,
    plan: Plan,
    refs: Sequence[Step],
    tests: Sequence[Step],
    truth: Step,
) -> Files:
    rows, reasons, points = score(
        _dumps(refs, context),
        _dumps(tests, context),
        _truth(truth, context.store),
        plan,
        question.distance,
        question.facts(context) | {"sample": question.sample},
        [trial.init_seed for trial in question.siblings.trials],
    )
    return table(rows, reasons) | {POINTS: to_npz(points)}


def rank_step(rivals: Sequence[Question], plan: Plan, embedded: Embedded) -> Step:
    """Candidates that differ in their method against each other."""
    scores = tuple(score_step(question, plan, embedded) for question in rivals)
    truths = tuple(truth_step(question, plan, embedded) for question in rivals)
    make = partial(_make_ranking, question=rivals[0], scores=scores, truths=truths)
    return evaluation(NAME, VERSION, f"ranking of {scores[0].title}", {"kind": "ranking"}, scores, make)


def _make_ranking(
    part: Part, context: Context, question: Question, scores: Sequence[Step], truths: Sequence[Step]
) -> Files:
    store = context.store
    points = [from_npz(step.verified(store) / POINTS) for step in scores]
    of_all = {"method": None, "params": None, "members": None}
    facts = question.facts(context) | of_all | {"sample": question.sample, "condition": question.distance}
    return table(*ranking_rows(points, [_truth(step, store) for step in truths], facts))


# ---- rows, from arrays alone


def truth_rows(losses: DownstreamLosses, facts: Row) -> list[Row]:
    """The means over test rows: how good the representation is downstream."""
    base = dict.fromkeys(COLUMNS) | facts | {"n": len(losses.index)}
    return [base | {"metric": name, "value": float(loss.mean())} for name, loss in losses.together.items()]


def ranking_rows(
    points: Sequence[Mapping[str, Array]], losses: Sequence[DownstreamLosses], facts: Row
) -> tuple[list[Row], list[Row]]:
    """Mean over test rows of Kendall's τ between the order of the candidates by a score and by a loss (Table 3)."""
    rows, reasons = list[Row](), list[Row]()
    there = [number for number, own in enumerate(points) if own]  # one that has collapsed has none
    for name, loss, taus in agreements([points[number] for number in there], [losses[number] for number in there]):
        about = {"measure": name, "metric": f"ranking_{loss}"}
        if isinstance(taus, Undefined):
            reasons.append(about | {"reason": str(taus)})
        else:
            rows.append(dict.fromkeys(COLUMNS) | facts | about | {"value": float(taus.mean()), "n": len(taus)})
    return rows, reasons


def evaluate(
    refs: Sequence[Sequence[Predictions]],
    tests: Sequence[Predictions],
    losses: DownstreamLosses,
    plan: Plan,
    facts: Row,
) -> tuple[list[Row], list[Row]]:
    """Rows and reasons of one candidate from dumps alone: refs hold, for every sample, one dump per member."""
    rows, reasons = truth_rows(losses, facts), list[Row]()
    for distance, (sample, own) in product(plan.distances, enumerate(refs)):
        more, missing, _ = score(own, tests, losses, plan, distance, facts | {"sample": sample})
        rows += more
        reasons += [reason for reason in missing if reason not in reasons]
    return rows, reasons


def score(
    refs: Sequence[Predictions],
    tests: Sequence[Predictions],
    losses: DownstreamLosses,
    plan: Plan,
    distance: str,
    facts: Row,
    seeds: Sequence[int] | None = None,
) -> tuple[list[Row], list[Row], dict[str, Array]]:
    """Rows, reasons and the scores (n,) themselves, of one candidate, one distance and one sample of references.

    `seeds` are those of the members; 0, 1, … by default.
    """
    ks = [k for k in plan.ks if k < len(refs[0])] if distance == plan.swept else []
    spaces = spaces_of(
        refs,
        tests,
        metric=distance,
        k_nc=sorted({plan.k, *(ks if "nc" in plan.scores else ())}),
        k_dist=sorted({plan.k_dist, *(ks if "dist" in plan.scores else ())}),
        components=plan.components if "ll" in plan.scores else 0,
        similarity=plan.similarity,
        seed=0,
    )
    if len(losses.index) != len(tests[0]):
        raise BadInput("The downstream heads and the scores are of different rows: index differs.")
    losses = losses.select(spaces.tests[0].index)
    made = _ScoreRows(plan, losses, facts | {"condition": distance, "members": len(tests)})
    whole = spaces.scores()
    for name in plan.scores:
        made.main(name, whole)
    if len(tests) > 1:
        made.alone(spaces, whole, seeds or range(len(tests)))
    if distance == plan.swept:
        made.sweeps(spaces, whole)
    return made.rows, made.reasons, made.points


@dataclass
class _ScoreRows:
    """Gathers the rows of one candidate, one distance and one sample of references."""

    plan: Plan
    losses: DownstreamLosses
    facts: Row
    rows: list[Row] = field(default_factory=list)
    reasons: list[Row] = field(default_factory=list)
    points: dict[str, Array] = field(default_factory=dict)

    def level(self, name: str) -> int | None:
        """Neighbours of a score."""
        return {"nc": self.plan.k, "dist": self.plan.k_dist}.get(name)

    def key(self, name: str) -> str:
        """nc → nc@100, as `SiblingScores` has it."""
        level = self.level(name)
        return name if level is None else f"{name}@{level}"

    def main(self, name: str, scores: SiblingScores) -> None:
        """The score with the paper's k against every loss: Tables 1 to 7."""
        try:
            u = scores[self.key(name)]
        except Undefined as reason:
            self.omit(name, None, reason)
            return
        self.points[name] = u
        self.row("mean", float(u.mean()), measure=name, level=self.level(name))
        self.kendall(name, u, self.losses.together, level=self.level(name))

    def alone(self, spaces: Spaces, whole: SiblingScores, seeds: Sequence[int]) -> None:
        """Every member's own losses against the siblings' scores, and against its own alone: Tables 8 and 9."""
        for member, seed in enumerate(seeds):
            losses = {name: loss[member] for name, loss in self.losses.alone.items()}
            own = spaces.scores([member])
            for name in self.points:
                about = {"members": 1, "init_seed": seed, "level": self.level(name)}
                self.kendall(name, whole[self.key(name)], losses, **about)
                if self.key(name) in own.u:
                    self.kendall(name + STAR, own[self.key(name)], losses, **about)

    def sweeps(self, spaces: Spaces, whole: SiblingScores) -> None:
        """Other k, and the first m members, against the losses of all members: Figures 2, 4 and 5."""
        for name, u in whole.u.items():
            k = name.partition("@")[2]
            if k and kind(name) in self.points and int(k) in self.plan.ks:
                self.kendall(kind(name), u, self.losses.together, group=NEIGHBOURS, level=int(k))
        for m in range(1, len(spaces.tests) + 1):
            some = spaces.scores(range(m), (self.plan.k,))
            for name in self.points:
                if self.key(name) in some.u:
                    about = {"group": MEMBERS, "members": m, "level": self.level(name)}
                    self.kendall(name, some[self.key(name)], self.losses.together, **about)

    def kendall(self, name: str, u: Array, losses: Mapping[str, Array], **about: Any) -> None:
        for loss, values in losses.items():
            try:
                self.row(f"kendall_{loss}", metrics.kendall(u, values), measure=name, **about)
            except Undefined as reason:
                self.omit(name, f"kendall_{loss}", reason)

    def row(self, metric: str, value: float, **about: Any) -> None:
        number = {"metric": metric, "value": value, "n": len(self.losses.index)}
        self.rows.append(dict.fromkeys(COLUMNS) | self.facts | number | about)

    def omit(self, name: str, metric: str | None, reason: Undefined) -> None:
        """Notes why there is no row."""
        about = {column: self.facts.get(column) for column in ("method", "backbone", "target")}
        entry = about | {"measure": name, "metric": metric, "reason": str(reason)}
        if entry not in self.reasons:
            self.reasons.append(entry)


# ---- older studies


def upgrade(rows: list[Row]) -> list[Row]:
    """Rows of version 2, whose split was the target, data_seed the sample, and group the distance, "k 10" or "M 2"."""
    distances = {row["group"] for row in rows}
    swept = "cosine" if "cosine" in distances or "euclidean" not in distances else "euclidean"
    return [row if row["target"] is not None else _upgraded(row, swept) for row in rows]


def _upgraded(row: Row, swept: str) -> Row:
    group, _, size = (row["group"] or "").partition(" ")
    columns = {"target": row["split"], "split": None, "sample": row["data_seed"], "data_seed": None}
    if not size:
        return row | columns | {"condition": row["group"], "group": None}
    level = float(size) if group == NEIGHBOURS else None
    return row | columns | {"condition": swept, "group": group, "level": level}


# ---- the protocol


@protocol(NAME, version=VERSION, plan=Plan, presets=PRESETS, reports=f"{__name__}.reports", upgrade=upgrade)
def reliability(plan: Plan, work: Work) -> None:
    """Which representations can be trusted, before their purpose is known.

    Networks learn without labels (SimCLR, BYOL, MoCo), several seeds of each. Every test image gets scores from their
    embeddings alone: neighbourhood consistency (NC), distance to the references (Dist), length (Norm), density (LL) and
    variance between the networks (FV). Then labels come in: heads on the frozen features, one for every pair of
    classes, say how well each image does downstream, and Kendall's τ how well each score predicts that (Park et al.
    2024).

    Downstream data is the pre-training data itself, or another set of images with as many channels (--targets); its
    images are brought to the size that the networks know. Everything finished lies in the store: run the same command
    again and only what is missing is done.

    examples:
      nescio run reliability
      nescio run reliability --data digits --methods simclr,moco --members 3 --epochs 5 --workers 2
      nescio run reliability --data cifar10 --backbones resnet18 --members 5 --references 5000 --k 100 --batch 512
      nescio run reliability --data npz:tiny_imagenet_100.npz@32 --targets npz:cifar100_small.npz --backbones resnet18
      nescio run reliability --preset paper          CIFAR-10, CIFAR-100, Tiny-ImageNet → three sets, two sizes, M = 10
    """
    check_possible(plan, work)
    alive, embedded = embed(plan, work)
    questions = [Question(siblings, target) for siblings in alive for target in plan.sources[siblings.first.data]]
    truths = {truth_step(question, plan, embedded): question for question in questions}
    judged = work.evaluate("heads", truths)
    questions = [
        replace(question, distance=distance, sample=sample)
        for step, question in truths.items()
        if step in judged
        for distance, sample in product(plan.distances, range(plan.seeds))
    ]
    scores = {score_step(question, plan, embedded): question for question in questions}
    scored = work.evaluate("scores", scores)
    rivals: dict[tuple[Any, ...], list[Question]] = {}
    for step, question in scores.items():
        if step in scored:
            rivals.setdefault(question.rivals, []).append(question)
    work.evaluate("rankings", [rank_step(group, plan, embedded) for group in rivals.values() if len(group) > 1])
