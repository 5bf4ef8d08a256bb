"""Which representations can be trusted, without labels? From unlabelled images to the paper's tables, resumable.

Methods × backbones × pre-training sets × M seeds → train → embed references, training and test images → the truth:
heads on frozen features, whose members' answers are averaged before they are judged → the scores of every sample of
references → Kendall's τ of every score with every loss → rows. What the rows say is told by `_reliability_reports`.
Source: Park, Wang, Ardeshir and Azizan, Quantifying representation reliability, 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio import metrics
from nescio.arrays.nearest import METRICS
from nescio.errors import BadInput, Undefined
from nescio.identity import seed_for, tag
from nescio.measures.siblings import SCORES, Scores, Similarity, Spaces, aligned, kind, rankings_agree, spaces_of
from nescio.predictions import Predictions
from nescio.protocols._evaluations import Evaluation, Job, Say, Study, do, read, record, table, writable
from nescio.protocols._networks import Place, damage_noted, dump, pace, runtime_of, train_key, trained
from nescio.protocols.cood import _npz
from nescio.rows import COLUMNS, Row
from nescio.trials import Training, Trial
from nescio.work.local import Crew, Task
from nescio.work.store import Store

NAME, VERSION = "reliability", 2
Array = NDArray[Any]
LOSSES = ("brier", "entropy", "variance")  # of the heads' answers: what a score should rank rows by
POINTS, TRUTH = "points.npz", "truth.npz"  # beside the rows of an evaluation: a number for every test row
STAR = "*"  # after a score of one member alone (Tables 8 and 9)


@tag("plan:reliability")
@dataclass(frozen=True)
class Plan:
    """What to compare, on what, with which budget."""

    settings: tuple[tuple[str, str], ...] = (("digits", "digits"),)  # (pre-training data, downstream data)
    methods: tuple[str, ...] = ("simclr", "byol", "moco")
    backbones: tuple[str, ...] = ("conv",)
    members: int = 10  # networks of each candidate, which differ in their seed …
    others: tuple[tuple[str, int], ...] = ()  # … but for these methods so many
    references: int = 5000  # images of the pre-training data …
    seeds: int = 5  # … and how often they are drawn anew
    k: int = 100  # neighbours of NC
    k_dist: int = 1  # neighbours of Dist
    ks: tuple[int, ...] = (
        1,
        2,
        5,
        10,
        20,
        50,
        100,
        200,
        500,
        1000,
    )  # of Figure 5, those below `references`
    distances: tuple[str, ...] = METRICS
    scores: tuple[str, ...] = SCORES
    components: int = 20  # of the mixtures of LL
    similarity: Similarity = "jaccard"
    tasks: str = "one-vs-one"  # downstream: every pair of classes, or multiclass
    training: Training = field(default_factory=Training)

    def check(self) -> None:
        for name in ("members", "references", "seeds", "k", "k_dist", "components"):
            if getattr(self, name) < 1:
                raise BadInput(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}.")
        if min(self.ks, default=1) < 1:
            raise BadInput(f"--ks holds {min(self.ks)}: a neighbourhood has at least one neighbour.")
        for method, count in self.others:
            if method not in self.methods or count < 1:
                raise BadInput(f"--members {method}={count}: name a method of --methods and at least one network.")
        for name, known in (("distances", METRICS), ("scores", SCORES)):
            asked = getattr(self, name)
            if not asked:
                raise BadInput(f"--{name} names none: there are {', '.join(known)}.")
            for word in asked:
                if word not in known:
                    raise BadInput(f"--{name} knows no {word!r}. There are: {', '.join(known)}.")
        for name, words in (("similarity", ("jaccard", "overlap")), ("tasks", ("one-vs-one", "multiclass"))):
            if getattr(self, name) not in words:
                raise BadInput(f"--{name} is {' or '.join(words)}, not {getattr(self, name)!r}.")
        if not (self.settings and self.methods and self.backbones):
            raise BadInput("There is nothing to train: name data, methods and backbones.")

    @property
    def swept(self) -> str:
        """The distance whose sweeps over k and M are kept."""
        return "cosine" if "cosine" in self.distances else self.distances[0]

    @property
    def sources(self) -> dict[str, list[str]]:
        """Pre-training data → its downstream data."""
        found: dict[str, list[str]] = {}
        for data, target in self.settings:
            found.setdefault(data, []).append(target)
        return found


PAPER = (
    *(("cifar10", "cifar10"), ("cifar100", "cifar100")),
    *(("tiny-imagenet", "cifar10"), ("tiny-imagenet", "cifar100"), ("tiny-imagenet", "stl10")),
)
PRESETS: dict[str, Plan] = {
    "small": Plan(
        members=3,
        references=500,
        k=20,
        training=Training(epochs=30, batch=64, augment="full", schedule="cosine"),
    ),
    # the paper's own, whose text leaves the budget of the pre-training open: it is ours
    "paper": Plan(
        settings=PAPER,
        backbones=("resnet18", "resnet50"),
        training=Training(epochs=200, batch=512, augment="full", schedule="cosine", warmup=10, decay=5e-4),
    ),
}


def run(plan: Plan, place: Place, workers: int, say: Say | None = None) -> Study:
    """Does what is missing in the store and returns the study."""
    plan.check()
    study, store = Study(plan), Store(place.store)
    _check_possible(plan, place, study)
    with Crew(workers) as crew:

        def watch(name: str) -> Any:
            return (lambda *counts: say(name, *counts)) if say else None

        alive = _members(study, plan, place, store, crew, watch("train and embed"))
        pairs = [(each, target) for each in alive for target in plan.sources[each.data]]
        truths = [_truth_job(each, target, plan.tasks, place) for each, target in pairs]
        do(study, truths, store, crew, watch("heads"))
        judged = [pair for pair, (evaluation, _) in zip(pairs, truths, strict=True) if evaluation.finished(store)]
        list(read(study, truths, store))
        asked = [Asked(*pair, *more) for pair in judged for more in _samples(plan)]
        scored = [_score_job(each, plan, place) for each in asked]
        do(study, scored, store, crew, watch("scores"))
        there = [each for each, (evaluation, _) in zip(asked, scored, strict=True) if evaluation.finished(store)]
        list(read(study, scored, store))
        ranked = [_rank_job(group, plan, place) for group in _rivals(there)]
        do(study, ranked, store, crew, watch("rankings"))
        list(read(study, ranked, store))
    record(study, store, NAME, VERSION)
    return study


def _samples(plan: Plan) -> list[tuple[str, int]]:
    return [(distance, seed) for distance in plan.distances for seed in range(plan.seeds)]


# ---- which networks


@dataclass(frozen=True)
class Candidate:
    """Siblings: networks of one method, one backbone and one pre-training set, each of its own seed."""

    trials: tuple[Trial, ...]

    @property
    def data(self) -> str:
        return self.trials[0].data

    @property
    def title(self) -> str:
        first = self.trials[0]
        return f"{first.method}, {first.backbone}, {first.data}"


def candidates(plan: Plan) -> list[Candidate]:
    """Pre-training sets × backbones × methods, each with its members; a member is its init seed."""
    from nescio.methods import registry as methods

    return [
        Candidate(
            tuple(
                Trial(
                    method=name,
                    recipe=methods[name].recipe_class(),
                    data=data,
                    backbone=backbone,
                    training=plan.training,
                    init_seed=member,
                )
                for member in range(dict(plan.others).get(name, plan.members))
            )
        )
        for data in plan.sources
        for backbone in plan.backbones
        for name in plan.methods
    ]


def _check_possible(plan: Plan, place: Place, study: Study) -> None:
    """Refuses, before any work, what no network could do, and notes what is less than was asked for."""
    from nescio import backbones, datasets
    from nescio.methods import registry as methods
    from nescio.training import check_batch, check_views

    for data, targets in plan.sources.items():
        source = datasets.load(data, place.root)
        rows = len(datasets.splits(source).train)
        if rows < plan.references:
            study.notes.append(
                f"{data} has {rows:,} training images, and all of them are references: samples of references do not "
                "differ."
            )
        if max(plan.k, plan.k_dist) > min(rows, plan.references):
            raise BadInput(
                f"k is {max(plan.k, plan.k_dist)}, but {data} has only {min(rows, plan.references)} references: choose "
                "a smaller k."
            )
        check_batch(plan.training, rows)
        for name in plan.backbones:
            backbones.build(name, source.channels, source.size)
        for target in targets:
            other = datasets.load(target, place.root)
            if other.channels != source.channels:
                raise BadInput(
                    f"{target} has images of {other.channels} channel(s), {data} of {source.channels}: a network that "
                    "learnt from the one cannot look at the other."
                )
            if len(other.classes) < 2:
                raise BadInput(f"{target} has one class only: there is nothing to tell apart downstream.")
    if taught := [name for name in plan.methods if methods[name].classifies]:
        raise BadInput(f"reliability compares what is learnt without labels, and {taught[0]} needs them: leave it out.")
    for name in plan.methods:
        check_views(plan.training, methods[name].views)


# ---- embeddings


@dataclass(frozen=True)
class Look:
    """Images that networks are asked about: those of a dataset, or references drawn from its training images."""

    data: str
    split: str  # "train" or "test"
    sample: int | None = None  # so many of those that the networks learnt from …
    seed: int = 0  # … drawn by this seed, the same for all networks


def looks_of(plan: Plan, data: str) -> list[Look]:
    """Everything that the networks of one pre-training set are asked about."""
    return [
        *(Look(data, "train", plan.references, seed) for seed in range(plan.seeds)),
        *(Look(target, split) for target in plan.sources[data] for split in ("train", "test")),
    ]


def images_of(look: Look, size: int, root: str | None) -> Any:
    """The images of a look at the size that a network learnt from, without a word on what was taught."""
    from nescio import datasets

    dataset = datasets.load(look.data, root)
    if look.sample is None:
        return resized(getattr(dataset, look.split), dataset.size, size)
    learnt = datasets.splits(dataset).train
    chosen = sample(len(learnt), min(look.sample, len(learnt)), seed_for("references", dataset.revision, look.seed))
    return replace(resized(learnt.take(chosen), dataset.size, size), taught=None)


def sample(rows: int, count: int, seed: int) -> Array:
    """(count,) of the rows, rising. By raw bits of PCG64, because NumPy may change its permutations."""
    return np.sort(np.argsort(np.random.PCG64(seed).random_raw(rows), kind="stable")[:count])


def resized(images: Any, size: int, wanted: int) -> Any:
    """The images at another size, so that what is in them is as large as what the network knows."""
    from nescio.datasets.base import Encoded, Images, Pixels

    if size == wanted:
        return images
    rows = np.arange(len(images))
    if isinstance(images.held, Encoded):
        held: Any = Encoded(images.sources(), wanted, images.held.crop)
    else:
        held = Pixels(partial(_interpolated, images, wanted))
    return Images(images.labels, images.index, held, rows, images.taught)


def _interpolated(images: Any, size: int) -> Array:
    import torch

    found = []
    for part in np.array_split(images.rows, max(1, len(images) // 1000)):
        x = torch.from_numpy(images.held.read(part)).permute(0, 3, 1, 2).float()
        x = torch.nn.functional.interpolate(x, (size, size), mode="bilinear", antialias=True, align_corners=False)
        found.append(x.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy())
    return np.concatenate(found)


def _asked(trial: Trial, look: Look, place: Place) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Recipe and parents of a dump."""
    from nescio import datasets

    recipe: dict[str, Any] = {"protocol": NAME, "split": look.split}
    if look.sample is not None:
        recipe |= {"references": look.sample, "seed": look.seed}
    return recipe, (train_key(trial, place), datasets.load(look.data, place.root).revision)


def look_key(trial: Trial, look: Look, place: Place) -> str:
    """Where the embeddings of a look by one network lie."""
    from nescio.predict import VERSION as PREDICT

    return Store(place.store).key("predict", *_asked(trial, look, place), PREDICT)


def _embed(trial: Trial, looks: Sequence[Look], place: Place) -> dict[str, Any]:
    """Trains one network and embeds what it is asked about; what is finished is left as it is."""
    from nescio import datasets
    from nescio.predict import DUMP, dump_of
    from nescio.predict import VERSION as PREDICT
    from nescio.training import load_method, train

    store, source = Store(place.store), datasets.load(trial.data, place.root)
    runtime = runtime_of(place)
    key = train(trial, store, runtime, root=place.root, checkpoint_seconds=place.checkpoint_seconds, wait=False)
    store.verify("train", key)
    # float32: neighbours are told apart by digits that bf16 does not have
    here, method = runtime.at("float32"), None
    for look in looks:
        with store.work("predict", *_asked(trial, look, place), PREDICT, wait=False) as part:
            if part is not None:
                method = method or load_method(key, trial, store, here, place.root)
                images = images_of(look, source.size, place.root)
                dump_of(method, images, source, here).save(part.folder / DUMP)
    return {"trial": f"{trial.method}, {trial.backbone}, {trial.data}, {trial.init_seed}", **pace(trial, place)}


def _embed_died(reason: str, trial: Trial, looks: Sequence[Look], place: Place) -> None:
    from nescio import datasets
    from nescio.training import VERSION as TRAIN

    store = Store(place.store)
    if not store.finished("train", train_key(trial, place)):
        store.fail("train", trial, reason, (datasets.load(trial.data, place.root).revision,), TRAIN)


def _members(study: Study, plan: Plan, place: Place, store: Store, crew: Crew, watch: Any) -> list[Candidate]:
    """Trains and embeds; the candidates that there are, with the members that did not fail."""
    asked = candidates(plan)
    looks = {data: looks_of(plan, data) for data in plan.sources}

    def finished(trial: Trial) -> bool:
        return all(store.finished("predict", look_key(trial, look, place)) for look in looks[trial.data])

    tasks = [
        Task(f"{each.title}, member {trial.init_seed}", _embed, (trial, looks[trial.data], place), _embed_died)
        for each in asked
        for trial in each.trials
        if not finished(trial)
    ]
    tasks.sort(key=lambda task: int(task.args[0].init_seed))  # first one of each: a stopped run has a fair start
    if tasks:
        writable(store)
        study.failures += crew.do(tasks, watch)
    alive = [Candidate(tuple(filter(finished, each.trials))) for each in asked]
    for each, whole in zip(alive, asked, strict=True):
        if len(each.trials) < len(whole.trials):
            study.notes.append(f"{whole.title}: {len(each.trials)} of {len(whole.trials)} members are there.")
    return [each for each in alive if each.trials]


# ---- the truth: what heads on frozen features say downstream


@dataclass(frozen=True, eq=False)
class Truth:
    """How much worse the downstream answers about every test row are; higher = less reliable, in the order of index."""

    index: Array  # (n,)
    losses: Mapping[str, Array]  # (n,) of the members' average: brier, entropy (nats), variance
    own: Mapping[str, Array]  # (m, n) of every member alone: brier, entropy

    def files(self) -> dict[str, bytes]:
        arrays = {f"losses/{name}": each for name, each in self.losses.items()}
        arrays |= {f"own/{name}": each for name, each in self.own.items()}
        return {TRUTH: _npz({"index": self.index, **arrays})}

    @staticmethod
    def load(folder: Any) -> Truth:
        held = _arrays(folder / TRUTH)
        of = {
            side: {n.partition("/")[2]: a for n, a in held.items() if n.startswith(side)} for side in ("losses", "own")
        }
        return Truth(held["index"], of["losses"], of["own"])


def truth_of(
    train: Sequence[Predictions],
    tests: Sequence[Predictions],
    tasks: str = "one-vs-one",
    device: Any = None,
    numbers: tuple[Any, Any] | None = None,
) -> Truth:
    """Optimal heads on the features of every member, and what they say of the test rows (Definition 1, appendix B).

    For each task the members' probabilities are averaged before Brier and entropy are taken; with one-vs-one tasks a
    row is averaged over the C − 1 pairs of its own class. `device`: a GPU of torch that solves the heads, if any.
    tasks = "regression" predicts `numbers`, (n,) or (n, t) for the rows of train[0] and of tests[0]; its loss is the
    squared error.
    """
    from nescio.heads import fit_heads, reliability_targets

    known, asked = (_on(device, aligned(side, what)) for side, what in ((train, "training"), (tests, "test")))
    labels, answers = (train[0].labels, tests[0].labels) if tasks != "regression" else numbers or (None, None)
    if (labels is None or answers is None) and tasks == "regression":
        raise Undefined("Regression needs the numbers that the heads are to predict, of training and of test rows.")
    if labels is None or answers is None:
        raise Undefined("Downstream performance needs the true class of every row, and there are no labels.")
    heads = fit_heads(known, labels, tasks=tasks)
    together = reliability_targets(heads, asked, answers)
    alone = [reliability_targets([head], [own], answers) for head, own in zip(heads, asked, strict=True)]
    return Truth(
        tests[0].index,
        {name: -each for name, each in together.items()},
        {name: -np.stack([each[name] for each in alone]) for name in alone[0]},
    )


def _on(device: Any, arrays: Sequence[Array]) -> Sequence[Any]:
    if device is None:
        return arrays
    import torch

    return [torch.tensor(np.asarray(each), device=device) for each in arrays]


SIDES = ("train", "test")


def _truth_evaluation(candidate: Candidate, target: str, tasks: str, place: Place) -> Evaluation:
    looks = [Look(target, split) for split in SIDES]
    parents = tuple(look_key(trial, look, place) for trial in candidate.trials for look in looks)
    return Evaluation(NAME, VERSION, {"kind": "heads", "tasks": tasks, "target": target}, parents)


def _truth_job(candidate: Candidate, target: str, tasks: str, place: Place) -> Job:
    about = (candidate, target, tasks, place)
    return _truth_evaluation(*about), Task(f"{candidate.title} → {target}, heads", _truth_task, about, _truth_died)


def _truth_task(candidate: Candidate, target: str, tasks: str, place: Place) -> None:
    """Heads for every member, and what they say; kept for every test row."""
    evaluation = _truth_evaluation(candidate, target, tasks, place)

    def make() -> dict[str, bytes]:
        train, tests = (_seen(candidate, Look(target, split), place) for split in SIDES)
        device = runtime_of(place).device
        truth = truth_of(train, tests, tasks, None if device.type == "cpu" else device)
        return table(truth_rows(truth, _facts(candidate, target, place))) | truth.files()

    with damage_noted(evaluation, place):
        evaluation.keep(Store(place.store), make)


def _truth_died(reason: str, candidate: Candidate, target: str, tasks: str, place: Place) -> None:
    _truth_evaluation(candidate, target, tasks, place).mark(Store(place.store), reason)


def _seen(candidate: Candidate, look: Look, place: Place) -> list[Predictions]:
    """A dump a member."""
    return [dump(look_key(trial, look, place), place) for trial in candidate.trials]


def _facts(candidate: Candidate, target: str, place: Place) -> Row:
    """The columns of a row that say which candidate this is and what it was asked about."""
    params = sum(trained(trial, place)["params"] for trial in candidate.trials)
    about = {"protocol": NAME, "version": VERSION, "params": params, "calibrated": False, "split": target}
    described = candidate.trials[0].describe() | {"trial": None, "data_seed": None, "init_seed": None}
    return described | about | {"members": len(candidate.trials)}


def _arrays(path: Any) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as held:
        return {name: held[name] for name in held.files}


def truth_rows(truth: Truth, facts: Row) -> list[Row]:
    """The means over test rows: how good the representation is downstream."""
    base = dict.fromkeys(COLUMNS) | facts | {"n": len(truth.index)}
    return [base | {"metric": name, "value": float(loss.mean())} for name, loss in truth.losses.items()]


# ---- one candidate's scores against the truth


def evaluate(
    refs: Sequence[Sequence[Predictions]],
    tests: Sequence[Predictions],
    truth: Truth,
    plan: Plan,
    facts: Row,
) -> tuple[list[Row], list[Row]]:
    """Rows and reasons of one candidate from dumps alone: refs hold, for every reference sample, a dump a member."""
    rows, reasons = truth_rows(truth, dict.fromkeys(COLUMNS) | facts), list[Row]()
    for distance in plan.distances:
        for seed, own in enumerate(refs):
            found, missing, _ = score(own, tests, truth, plan, distance, facts | {"data_seed": seed})
            rows += found
            reasons += [each for each in missing if each not in reasons]
    return rows, reasons


def score(
    refs: Sequence[Predictions],
    tests: Sequence[Predictions],
    truth: Truth,
    plan: Plan,
    distance: str,
    facts: Row,
    seeds: Sequence[int] | None = None,
) -> tuple[list[Row], list[Row], dict[str, Array]]:
    """Rows, reasons and the scores (n,) themselves, of one candidate, one distance and one sample of references.

    `seeds` are those of the members; 0, 1, … by default.
    """
    first = distance == plan.swept
    wanted, ks = {name: name in plan.scores for name in SCORES}, [k for k in plan.ks if k < len(refs[0])]
    spaces = spaces_of(
        refs,
        tests,
        metric=distance,
        k_nc=sorted({plan.k, *(ks if first and wanted["nc"] else ())}),
        k_dist=sorted({plan.k_dist, *(ks if first and wanted["dist"] else ())}),
        components=plan.components if wanted["ll"] else 0,
        similarity=plan.similarity,
        seed=0,
    )
    made = _Maker(plan, _ordered(truth, spaces), facts | {"group": distance, "members": len(tests)})
    whole = spaces.scores()
    for name in plan.scores:
        made.main(name, whole)
    if len(tests) > 1:
        made.alone(spaces, whole, seeds or range(len(tests)))
    if first:
        made.sweeps(spaces, whole)
    return made.rows, made.reasons, made.points


def _ordered(truth: Truth, spaces: Spaces) -> Truth:
    """The truth in the order of the test rows."""
    index = spaces.tests[0].index
    if np.array_equal(truth.index, index):
        return truth
    order = np.argsort(truth.index, kind="stable")
    places = order[np.searchsorted(truth.index, index, sorter=order).clip(max=len(order) - 1)]
    if len(index) != len(order) or not np.array_equal(truth.index[places], index):
        raise BadInput("The heads were asked about other rows than the scores: index differs.")
    return Truth(
        index,
        {name: loss[places] for name, loss in truth.losses.items()},
        {name: loss[:, places] for name, loss in truth.own.items()},
    )


@dataclass
class _Maker:
    """Makes the rows of one candidate, one distance and one sample of references."""

    plan: Plan
    truth: Truth
    facts: Row
    rows: list[Row] = field(default_factory=list)
    reasons: list[Row] = field(default_factory=list)
    points: dict[str, Array] = field(default_factory=dict)

    def key(self, name: str) -> str:
        """nc → nc@100, as `Scores` has it."""
        return {"nc": f"nc@{self.plan.k}", "dist": f"dist@{self.plan.k_dist}"}.get(name, name)

    def main(self, name: str, scores: Scores) -> None:
        """The score with the paper's k against every loss: Tables 1 to 7."""
        try:
            u = scores[self.key(name)]
        except Undefined as reason:
            self.because(name, str(reason))
            return
        self.points[name] = u
        self.row("mean", float(u.mean()), measure=name)
        self.kendall(name, u, self.truth.losses)

    def alone(self, spaces: Spaces, whole: Scores, seeds: Sequence[int]) -> None:
        """Every member's own losses against the siblings' scores, and against its own alone: Tables 8 and 9."""
        for member, seed in enumerate(seeds):
            losses = {name: each[member] for name, each in self.truth.own.items()}
            who = {"members": 1, "init_seed": seed}
            own = spaces.scores([member])
            for name in self.points:
                self.kendall(name, whole[self.key(name)], losses, **who)
                if self.key(name) in own.u:
                    self.kendall(name + STAR, own[self.key(name)], losses, **who)

    def sweeps(self, spaces: Spaces, whole: Scores) -> None:
        """Other k, and the first m members, against the losses of all members: Figures 2, 4 and 5."""
        for name, u in whole.u.items():
            if kind(name) in self.points and (k := name.partition("@")[2]) and int(k) in self.plan.ks:
                self.kendall(kind(name), u, self.truth.losses, group=f"k {k}")
        for m in range(1, len(spaces.tests) + 1):
            some = spaces.scores(range(m), (self.plan.k,))
            for name in self.points:
                if self.key(name) in some.u:
                    self.kendall(name, some[self.key(name)], self.truth.losses, group=f"M {m}", members=m)

    def kendall(self, name: str, u: Array, losses: Mapping[str, Array], **more: Any) -> None:
        for loss, values in losses.items():
            try:
                self.row(f"kendall_{loss}", metrics.kendall(u, values), measure=name, **more)
            except Undefined as reason:
                self.because(name, str(reason), f"kendall_{loss}")

    def row(self, metric: str, value: float, **more: Any) -> None:
        found = {"metric": metric, "value": value, "n": len(self.truth.index)}
        self.rows.append(dict.fromkeys(COLUMNS) | self.facts | found | more)

    def because(self, name: str, reason: str, metric: str | None = None) -> None:
        who = {key: self.facts.get(key) for key in ("method", "backbone", "split")}
        entry = who | {"measure": name, "metric": metric, "reason": reason}
        if entry not in self.reasons:
            self.reasons.append(entry)


@dataclass(frozen=True)
class Asked:
    """One candidate, one target, one distance, one sample of references."""

    candidate: Candidate
    target: str
    distance: str
    seed: int

    @property
    def title(self) -> str:
        return f"{self.candidate.title} → {self.target}, {self.distance}, references {self.seed}"


def _score_evaluation(asked: Asked, plan: Plan, place: Place) -> Evaluation:
    truth = _truth_evaluation(asked.candidate, asked.target, plan.tasks, place).key(Store(place.store))
    looks = (Look(asked.candidate.data, "train", plan.references, asked.seed), Look(asked.target, "test"))
    seen = [look_key(trial, look, place) for trial in asked.candidate.trials for look in looks]
    names = ("k", "k_dist", "scores", "components", "similarity")
    sweeps = list(plan.ks) if asked.distance == plan.swept else None
    recipe = {"kind": "scores", "target": asked.target, "distance": asked.distance, "seed": asked.seed, "ks": sweeps}
    recipe |= {name: getattr(plan, name) for name in names}
    return Evaluation(NAME, VERSION, recipe, (truth, *seen))


def _score_job(asked: Asked, plan: Plan, place: Place) -> Job:
    about = (asked, plan, place)
    return _score_evaluation(*about), Task(asked.title, _score_task, about, _score_died)


def _score_task(asked: Asked, plan: Plan, place: Place) -> None:
    evaluation, store = _score_evaluation(asked, plan, place), Store(place.store)

    def make() -> dict[str, bytes]:
        candidate, target = asked.candidate, asked.target
        refs = _seen(candidate, Look(candidate.data, "train", plan.references, asked.seed), place)
        tests = _seen(candidate, Look(target, "test"), place)
        facts = _facts(candidate, target, place) | {"data_seed": asked.seed}
        truth, seeds = _truth(asked, plan, place), [trial.init_seed for trial in candidate.trials]
        found, missing, points = score(refs, tests, truth, plan, asked.distance, facts, seeds)
        return table(found, missing) | {POINTS: _npz(points)}

    with damage_noted(evaluation, place):
        evaluation.keep(store, make)


def _score_died(reason: str, asked: Asked, plan: Plan, place: Place) -> None:
    _score_evaluation(asked, plan, place).mark(Store(place.store), reason)


def _truth(asked: Asked, plan: Plan, place: Place) -> Truth:
    evaluation, store = _truth_evaluation(asked.candidate, asked.target, plan.tasks, place), Store(place.store)
    store.verify("evaluate", evaluation.key(store))
    return Truth.load(evaluation.folder(store))


# ---- candidates against each other


def _rivals(asked: Sequence[Asked]) -> list[tuple[Asked, ...]]:
    """Those that differ in their method alone, two or more: the backbones among which Table 3 chooses."""
    groups: dict[tuple[Any, ...], list[Asked]] = {}
    for each in asked:
        first = each.candidate.trials[0]
        groups.setdefault((first.data, first.backbone, each.target, each.distance, each.seed), []).append(each)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def ranking_rows(
    points: Sequence[Mapping[str, Array]], truths: Sequence[Truth], facts: Row
) -> tuple[list[Row], list[Row]]:
    """Mean over test rows of Kendall's τ between the ranking of the candidates by a score and by a loss (Table 3)."""
    rows, reasons = list[Row](), list[Row]()
    there = [number for number, each in enumerate(points) if each]  # one that has collapsed has none
    points, truths = [points[number] for number in there], [truths[number] for number in there]
    if len(points) < 2:
        return rows, reasons
    for name in points[0]:
        if not all(name in each for each in points):
            continue
        u = np.stack([each[name] for each in points])
        for loss in LOSSES:
            if not all(loss in each.losses for each in truths):
                continue
            metric = f"ranking_{loss}"
            try:
                taus = rankings_agree(u, np.stack([each.losses[loss] for each in truths]))
            except Undefined as reason:
                reasons.append({"measure": name, "metric": metric, "reason": str(reason)})
                continue
            found = {"measure": name, "metric": metric, "value": float(taus.mean()), "n": len(taus)}
            rows.append(dict.fromkeys(COLUMNS) | facts | found)
    return rows, reasons


def _rank_evaluation(rivals: Sequence[Asked], plan: Plan, place: Place) -> Evaluation:
    store = Store(place.store)
    parents = tuple(_score_evaluation(each, plan, place).key(store) for each in rivals)
    return Evaluation(NAME, VERSION, {"kind": "ranking"}, parents)


def _rank_job(rivals: tuple[Asked, ...], plan: Plan, place: Place) -> Job:
    about = (rivals, plan, place)
    return _rank_evaluation(*about), Task(f"ranking of {rivals[0].title}", _rank_task, about, _rank_died)


def _rank_task(rivals: tuple[Asked, ...], plan: Plan, place: Place) -> None:
    evaluation, store = _rank_evaluation(rivals, plan, place), Store(place.store)

    def make() -> dict[str, bytes]:
        first, points = rivals[0], []
        for each in rivals:
            scored = _score_evaluation(each, plan, place)
            store.verify("evaluate", scored.key(store))
            points.append(_arrays(scored.folder(store) / POINTS))
        facts = _facts(first.candidate, first.target, place) | {"method": None, "params": None, "members": None}
        facts |= {"data_seed": first.seed, "group": first.distance}
        return table(*ranking_rows(points, [_truth(each, plan, place) for each in rivals], facts))

    with damage_noted(evaluation, place):
        evaluation.keep(store, make)


def _rank_died(reason: str, rivals: tuple[Asked, ...], plan: Plan, place: Place) -> None:
    _rank_evaluation(rivals, plan, place).mark(Store(place.store), reason)
