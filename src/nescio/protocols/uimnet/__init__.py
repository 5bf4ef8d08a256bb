"""UIMNET: what classifiers know what they don't know? From data to the paper's tables, hands off and resumable.

Data seeds × trials × backbones × spectral norm → train → predict (validation, test-in, test-out) → calibrate on
validation → the best k by mean validation NLL → every measure × every metric → rows → tables (papers: UIMNET §2–8).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nescio import measures, metrics
from nescio.analysis import calibrate
from nescio.analysis.cards import cross_fitted, scorecard
from nescio.analysis.selection import best_trials
from nescio.errors import BadInput, Undefined
from nescio.identity import seed_for, tag
from nescio.predictions import Predictions, stack
from nescio.protocols._evaluations import Evaluation, Job, Say, Study, do, read, record, table
from nescio.protocols._networks import (
    Place,
    damage_noted,
    dump,
    dump_key,
    pace,
    runtime_of,
    train_and_predict,
    train_key,
    trained,
)
from nescio.rows import COLUMNS, Row
from nescio.search import Choice, Recipe, draw, searched, suggest
from nescio.trials import Training, Trial
from nescio.work.local import Crew, Task
from nescio.work.store import Store, StoreError

NAME, VERSION = "uimnet", 3
# Ten classes are too few for a tree to divide: its smaller side has two or three. The digits are divided by hand.
USUAL = {"digits": ((0, 1, 2, 3, 4, 5), (6, 7, 8, 9))}
SPLITS = ("val", "test", "out")


@tag("plan:uimnet")
@dataclass(frozen=True)
class Plan:
    """What to compare, on what, with which budget."""

    data: str = "digits"
    methods: tuple[str, ...] = ()
    backbones: tuple[str, ...] = ("conv",)
    spectral: tuple[float | None, ...] = (None, 5.0)
    trials: int = 3
    seeds: int = 2
    members: tuple[int, ...] = (1, 5)
    measures: tuple[str, ...] = ("largest", "gap", "entropy", "jacobian", "gmm", "tta", "native")
    training: Training = field(default_factory=Training)
    features: str | None = (
        None  # of the Ward tree: "reference", a network trained on all classes (default), or "pixels"
    )
    inside: tuple[int, ...] | None = None  # in-domain classes; None: by the Ward tree
    outside: tuple[int, ...] | None = None
    oracle: bool = True
    search: str = "random"  # or "optuna"
    search_seed: int = 0

    def check(self) -> None:
        for name, least in (("trials", 1), ("seeds", 1)):
            if getattr(self, name) < least:
                raise BadInput(f"--{name} must be at least {least}, not {getattr(self, name)}.")
        if self.search not in ("random", "optuna"):
            raise BadInput(f"--search is random or optuna, not {self.search!r}.")
        if min(self.members, default=0) < 1:
            raise BadInput("An ensemble has at least one member.")
        for name in self.measures:
            _ = measures.registry[name]  # an unknown name is better said now than after the training
        if not self.methods:
            raise BadInput(
                "There is no method to compare: name some with --methods, or all of them with --methods all."
            )


PRESETS: dict[str, Plan] = {
    "demo": Plan(
        trials=2,
        seeds=2,
        spectral=(None,),
        training=Training(epochs=15, batch=64, every=6, augment="shift"),
    ),
    "small": Plan(training=Training(epochs=20, batch=64, every=8, augment="shift")),
    # the paper's own: ImageNet, two sizes, ten trials, three data seeds, SGD, 100 epochs, batch 256, rate ÷ 10 every 30
    "paper": Plan(data="imagenet", backbones=("resnet18", "resnet50"), trials=10, seeds=3, training=Training()),
}


@dataclass(frozen=True)
class Group:
    """The members that stand in one line of a table, for one data seed."""

    trials: tuple[Trial, ...]  # best first
    data_seed: int
    temperatures: tuple[float | None, ...]  # that each one's own validation answers ask for; None: they ask for none

    @property
    def first(self) -> Trial:
        return self.trials[0]

    def scales(self, calibrated: bool) -> list[float]:
        """By what each member's logits are divided before the members are averaged."""
        return [1.0 if t is None or not calibrated else t for t in self.temperatures]


def run(plan: Plan, place: Place, workers: int, say: Say | None = None) -> Study:
    """Does what is missing in the store and returns the study."""
    plan.check()
    with Crew(workers) as crew:
        return _run(plan, place, crew, say)


def _run(plan: Plan, place: Place, crew: Crew, say: Say | None) -> Study:
    study, store = Study(plan), Store(place.store)

    def stage(name: str, jobs: Sequence[Job]) -> None:
        """Does the jobs that are not finished."""
        if not all(evaluation.finished(store) for evaluation, _ in jobs):
            _possible(study.plan, place)
        do(study, jobs, store, crew, (lambda *seen: say(name, *seen)) if say else None)

    def attempt(trials: Sequence[Trial], others: Sequence[Job] = ()) -> None:
        stage("train and predict", [*(_attempt(each, plan, place) for each in trials), *others])

    plan = study.plan = _with_outside(plan, place) if plan.inside is not None else _partitioned(plan, place, stage)
    oracles = [_oracle(each, place) for each in oracle_trials(plan)] if plan.oracle else []
    if plan.search == "optuna":
        attempt([], oracles)
        trials = _guided(plan, place, attempt)
    else:
        trials = trials_of(plan)
        attempt(trials, oracles)
    by_key = {_answers(each, plan.outside, place).key(store): each for each in trials}
    found = read(study, [_attempt(each, plan, place) for each in trials], store)
    alive = {by_key[each.key(store)]: _temperature(each, store) for each in found}
    list(read(study, oracles, store))
    groups = chosen(plan, alive, study)
    lines = [_line(group, calibrated, plan, place) for group in groups for calibrated in (False, True)]
    stage("calibrate, probe and evaluate", lines)
    list(read(study, lines, store))
    record(study, store, NAME, VERSION)
    return study


def _attempt(trial: Trial, plan: Plan, place: Place) -> Job:
    return _answers(trial, plan.outside, place), Task(
        title(trial), _trial_task, (trial, plan.outside, place), _trial_died
    )


def _oracle(trial: Trial, place: Place) -> Job:
    name = f"oracle, {trial.backbone}, data seed {trial.data_seed}"
    return _in_or_out(trial, place), Task(name, _oracle_task, (trial, place), _oracle_died)


def _line(group: Group, calibrated: bool, plan: Plan, place: Place) -> Job:
    size = len(group.trials)
    name = title(group.first) if size == 1 else f"{size} × {title(group.first)} and others"
    name += ", calibrated" if calibrated else ""
    return _scored(group, calibrated, plan, place), Task(
        name, _group_task, (group, calibrated, plan, place), _group_died
    )


def title(trial: Trial) -> str:
    bound = f", spectral {trial.spectral:g}" if trial.spectral else ""
    return f"{trial.method}, {trial.backbone}{bound}, trial {trial.trial}, data seed {trial.data_seed}"


# ---- which trials


Line = tuple[str, str, float | None]  # method, backbone, spectral norm: what is searched on its own


def trials_of(plan: Plan) -> list[Trial]:
    """Methods × backbones × spectral norm × trials × data seeds; trial 0 is the defaults, the others random draws."""
    from nescio.methods import registry as methods

    def recipe(line: Line, number: int) -> Recipe:
        return draw(methods[line[0]].recipe_class, number, plan.search_seed)

    # first every method's defaults: a stopped sweep has a fair table
    return [each for number in range(plan.trials) for each in _round(plan, number, recipe)]


def _round(plan: Plan, number: int, recipe: Callable[[Line, int], Recipe]) -> list[Trial]:
    """The trials of one number: every line × every data seed."""
    return [
        Trial(
            method=line[0],
            recipe=recipe(line, number),
            data=plan.data,
            classes=plan.inside,
            backbone=line[1],
            spectral=line[2],
            training=plan.training,
            trial=number,
            data_seed=seed,
            init_seed=number,
        )
        for seed in range(plan.seeds)
        for line in _lines(plan)
    ]


def _lines(plan: Plan) -> list[Line]:
    return [(name, b, spectral) for b in plan.backbones for spectral in plan.spectral for name in plan.methods]


STARTUP = 4  # trials before Optuna's model has its say; the usual ten would leave it nothing of the paper's ten


def _guided(plan: Plan, place: Place, attempt: Callable[[Sequence[Trial]], None]) -> list[Trial]:
    """Trials that Optuna suggests (TPE) from the mean validation NLL of those before; trial 0 is the defaults.

    Everything is seeded and results do not change, so a second run asks for the same trials and finds them finished.
    """
    import optuna

    from nescio.methods import registry as methods

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    studies = {}
    for line in _lines(plan):
        seed = seed_for("optuna", line, plan.search_seed) % 2**32
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
        studies[line] = optuna.create_study(direction="minimize", sampler=sampler)
        recipe_class = methods[line[0]].recipe_class
        defaults = {name: getattr(recipe_class(), name) for name in searched(recipe_class)}
        texts = {name for name, search in searched(recipe_class).items() if isinstance(search, Choice)}
        studies[line].enqueue_trial({k: str(v) if k in texts else v for k, v in defaults.items()})
    trials: list[Trial] = []
    for number in range(plan.trials):
        asked = {line: study.ask() for line, study in studies.items()}
        recipes = {line: suggest(methods[line[0]].recipe_class, each) for line, each in asked.items()}
        these = _round(plan, number, lambda line, _, recipes=recipes: recipes[line])  # type: ignore[misc]
        attempt(these)
        trials += these
        for line, each in asked.items():
            own = [t for t in these if (t.method, t.backbone, t.spectral) == line]
            values = [value for t in own if (value := _validation_nll(t, plan, place)) is not None]
            if len(values) == len(own):
                studies[line].tell(each, sum(values) / len(values))
            else:
                studies[line].tell(each, state=optuna.trial.TrialState.FAIL)
    return trials


def _validation_nll(trial: Trial, plan: Plan, place: Place) -> float | None:
    evaluation, store = _answers(trial, plan.outside, place), Store(place.store)
    if not evaluation.finished(store):
        return None
    try:
        rows, _ = evaluation.load(store)
    except StoreError:  # the study says so when it reads its rows
        return None
    return _nll_of(rows)


def _nll_of(rows: Sequence[Row]) -> float:
    return next(float(row["value"]) for row in rows if (row["split"], row["metric"]) == ("val", "nll"))


def reference(plan: Plan) -> Trial:
    """An ERM network of all classes, whose features say which classes look alike."""
    return _erm(plan, plan.data)


def oracle_trials(plan: Plan) -> list[Trial]:
    """Networks that are told what is outside: in versus out, one per data seed (UIMNET §7)."""
    from nescio.datasets.binary import binary_spec

    assert plan.inside is not None and plan.outside is not None
    data = binary_spec(plan.data, plan.inside, plan.outside)
    return [replace(_erm(plan, data), data_seed=seed) for seed in range(plan.seeds)]


def _erm(plan: Plan, data: str) -> Trial:
    from nescio.methods import registry as methods

    recipe = methods["erm"].recipe_class()
    return Trial(method="erm", recipe=recipe, data=data, backbone=plan.backbones[0], training=plan.training)


def _with_outside(plan: Plan, place: Place) -> Plan:
    """The plan with its out-domain classes named: all that are not in-domain, unless it says which."""
    from nescio import datasets

    dataset = datasets.load(plan.data, place.root)
    datasets.splits(dataset, plan.inside, 0, plan.outside)  # says what is wrong with them
    others = plan.outside or tuple(sorted(set(range(len(dataset.classes))) - set(plan.inside or ())))
    if not others:
        raise BadInput(
            f"All {len(dataset.classes)} classes of {plan.data} are in-domain: nothing is left to be outside."
        )
    return replace(plan, outside=others)


def _partitioned(plan: Plan, place: Place, stage: Callable[[str, Sequence[Job]], None]) -> Plan:
    """The plan with in-domain and out-domain classes by the Ward tree of class means (UIMNET §2)."""
    from nescio.datasets.partition import Partition

    if plan.features is None and plan.data in USUAL:
        inside, outside = USUAL[plan.data]
        return replace(plan, inside=inside, outside=outside)
    features = plan.features or "reference"
    if features not in ("reference", "pixels"):
        raise BadInput(f"--features is reference or pixels, not {features!r}.")
    trial = reference(plan)
    partition, store = _partition(trial, features, place), Store(place.store)
    task = Task("reference network", _partition_task, (trial, features, place), _partition_died)
    stage("divide the classes", [(partition, task)])
    if not partition.finished(store):
        raise StoreError(_why_not("The classes could not be divided", trial, partition.key(store), place))
    store.verify("evaluate", partition.key(store))
    found = Partition.load(partition.folder(store) / "partition.json")
    return replace(plan, inside=found.inside, outside=found.outside)


def _possible(plan: Plan, place: Place) -> None:
    """Refuses, before any work, what no trial could do."""
    from nescio import backbones, datasets
    from nescio.datasets import AUGMENTATIONS
    from nescio.methods import registry as methods
    from nescio.training import check_batch

    if mute := [name for name in plan.methods if not methods[name].classifies]:
        raise BadInput(f"uimnet compares classifiers, and {mute[0]} learns features without labels: leave it out.")
    dataset = datasets.load(plan.data, place.root)
    for name in plan.backbones:
        backbones.build(name, dataset.channels, dataset.size)
    for target in plan.spectral:
        if target is not None and target <= 0:
            raise BadInput(f"The spectral norm target must be above 0, not {target:g}.")
    if plan.training.augment not in AUGMENTATIONS:
        raise BadInput(f"There is no augmentation named {plan.training.augment!r}: {', '.join(AUGMENTATIONS)}.")
    if plan.inside is not None and len(plan.inside) < 2:
        raise BadInput("At least two classes must be in-domain: with one there is nothing to tell apart.")
    check_batch(plan.training, len(datasets.splits(dataset, plan.inside, 0, plan.outside).train))


def _why_not(what: str, trial: Trial, key: str, place: Place) -> str:
    """A sentence with the reason that the store has for work that is not there."""
    keys = {key, train_key(trial, place), dump_key(trial, "train", None, place)}
    reasons = [each.reason for each in Store(place.store).runs() if each.key in keys and each.state == "failed"]
    return f"{what}: {reasons[0]}" if reasons else f"{what}; `nescio runs` says more."


# ---- tasks: what a worker does; every one is resumable and skips what is finished


# ---- evaluations


def _evaluation(recipe: Mapping[str, Any], parents: Sequence[str]) -> Evaluation:
    return Evaluation(NAME, VERSION, recipe, tuple(parents))


def _died(reason: str, trial: Trial, evaluation: Evaluation, place: Place) -> None:
    """Marks a trial whose worker died over it as failed."""
    from nescio import datasets
    from nescio.training import VERSION as TRAIN

    store = Store(place.store)
    if store.finished("train", train_key(trial, place)):  # it was no more than asked
        evaluation.mark(store, reason)
    else:
        store.fail("train", trial, reason, (datasets.load(trial.data, place.root).revision,), TRAIN)


def _facts(*members: Trial, place: Place) -> Row:
    """The columns of a row that say which network, or which average of networks, this is."""
    params = sum(trained(each, place)["params"] for each in members)
    facts = {"protocol": NAME, "version": VERSION, "params": params, "members": len(members), **members[0].describe()}
    return facts if len(members) == 1 else facts | {"trial": None, "init_seed": None}


# -- the partition


def _partition(trial: Trial, features: str, place: Place) -> Evaluation:
    from nescio import datasets
    from nescio.datasets.partition import RULE

    if features == "pixels":
        source = datasets.load(trial.data, place.root).revision
    else:
        source = dump_key(trial, "train", None, place)
    return _evaluation({"kind": "partition", "features": features, "rule": RULE}, [source])


def _partition_task(trial: Trial, features: str, place: Place) -> None:
    """Divides the classes by the features of a reference network, which it trains, or by pixels."""
    from nescio import datasets
    from nescio.datasets.partition import class_means, imagenot, pixel_means

    evaluation, dataset = _partition(trial, features, place), datasets.load(trial.data, place.root)
    with damage_noted(evaluation, place):
        dump = None if features == "pixels" else train_and_predict(trial, ("train",), None, place)["train"]

    def make() -> dict[str, bytes]:
        if dump is None:
            means = pixel_means(dataset)
        else:
            assert dump.embeddings is not None and dump.labels is not None
            means = class_means(dump.embeddings, dump.labels)
        return {"partition.json": imagenot(dataset, means, features).to_json().encode()}

    evaluation.keep(Store(place.store), make)


def _partition_died(reason: str, trial: Trial, features: str, place: Place) -> None:
    if features == "pixels":
        _partition(trial, features, place).mark(Store(place.store), reason)
    else:
        _died(reason, trial, _partition(trial, features, place), place)


# -- trials


def _answers(trial: Trial, outside: Sequence[int] | None, place: Place) -> Evaluation:
    return _evaluation({"kind": "trial"}, [dump_key(trial, split, outside, place) for split in SPLITS])


def _trial_task(trial: Trial, outside: tuple[int, ...] | None, place: Place) -> dict[str, Any]:
    """Trains one trial, predicts its splits, and notes what selection, calibration and the NLL-versus-AUC plot need."""
    evaluation = _answers(trial, outside, place)
    with damage_noted(evaluation, place):
        dumps = train_and_predict(trial, SPLITS, outside, place)

    def make() -> dict[str, bytes]:
        rows, facts = [], {**_facts(trial, place=place), "calibrated": False}
        val = scorecard(dumps["val"], split="val", calibration=None, only=(), facts=facts)
        test = scorecard(dumps["test"], ood={"out": dumps["out"]}, calibration=None, only=("entropy",), facts=facts)
        wanted = {("val", "nll"), ("test", "nll"), ("test", "accuracy"), ("out", "auroc")}
        for row in val.rows + test.rows:
            if (row["split"], row["metric"]) in wanted:
                rows.append({**row, "group": "trial"})
        return table(rows) | {CALIBRATION: json.dumps({"temperature": calibration(dumps["val"])}).encode()}

    evaluation.keep(Store(place.store), make)
    rows, _ = evaluation.load(Store(place.store))
    return {"trial": title(trial), "nll": _nll_of(rows), **pace(trial, place)}


def _trial_died(reason: str, trial: Trial, outside: tuple[int, ...] | None, place: Place) -> None:
    _died(reason, trial, _answers(trial, outside, place), place)


CALIBRATION = "calibration.json"


def calibration(val: Predictions) -> float | None:
    """The temperature that validation answers ask for; None where they ask for none: all are right, or chance."""
    try:
        found = calibrate.temperature(val)
    except Undefined:
        return None
    return None if found.at_edge else found.temperature


def _temperature(answers: Evaluation, store: Store) -> float | None:
    """What `calibration` said of a trial."""
    found: float | None = json.loads((answers.folder(store) / CALIBRATION).read_text())["temperature"]
    return found


# -- the oracle


def _in_or_out(trial: Trial, place: Place) -> Evaluation:
    return _evaluation({"kind": "oracle"}, [dump_key(trial, split, None, place) for split in ("val", "test")])


def _oracle_task(trial: Trial, place: Place) -> dict[str, Any]:
    from nescio.datasets.binary import parts_of

    evaluation = _in_or_out(trial, place)
    with damage_noted(evaluation, place):
        dumps = train_and_predict(trial, ("val", "test"), None, place)

    def make() -> dict[str, bytes]:
        from nescio.measures._softmax import mean_probs

        u_val, u = (mean_probs(dumps[split])[:, 1] for split in ("val", "test"))
        out_val, out = (np.asarray(dumps[split].labels) == 1 for split in ("val", "test"))
        cut = metrics.threshold(u_val[~out_val])
        found = {
            "auroc": (metrics.auroc(u, out), "out", len(u)),
            "in_as_in": (metrics.in_as_in(u[~out], cut), "test", int((~out).sum())),
            "out_as_out": (metrics.out_as_out(u[out], cut), "out", int(out.sum())),
        }
        facts = {**_facts(trial, place=place), "method": "oracle", "dataset": parts_of(trial.data)[0]}
        base = dict.fromkeys(COLUMNS) | facts | {"calibrated": False, "measure": "oracle"}
        return table([base | {"metric": m, "value": v, "split": s, "n": n} for m, (v, s, n) in found.items()])

    evaluation.keep(Store(place.store), make)
    return pace(trial, place)


def _oracle_died(reason: str, trial: Trial, place: Place) -> None:
    _died(reason, trial, _in_or_out(trial, place), place)


# ---- selection, calibration, ensembles


def chosen(plan: Plan, alive: Mapping[Trial, float | None], study: Study) -> list[Group]:
    """The best k trials of each method, backbone and spectral norm by mean validation NLL over data seeds.

    `alive` holds the trials that there are, each with its temperature.
    """
    rows = [row | {"group": None} for row in study.rows if row["group"] == "trial"]
    by = {(t.method, t.backbone, t.spectral, t.trial, t.data_seed): t for t in alive}
    groups = []
    for k in sorted({min(k, plan.trials) for k in plan.members}):
        best = best_trials(rows, k, seeds=range(plan.seeds), trials=range(plan.trials)) if rows else {}
        study.notes += [note for note in getattr(best, "notes", ()) if note not in study.notes]
        for line, numbers in best.items():
            for seed in range(plan.seeds):
                members = tuple(by[*line, number, seed] for number in numbers)
                group = Group(members, seed, tuple(alive[each] for each in members))
                if group not in groups:  # where trials failed, the best five may be the best one
                    groups.append(group)
    if max(plan.members) > plan.trials:
        study.notes.append(f"With {plan.trials} trials a method, ensembles have up to {plan.trials} members.")
    if never := sorted({group.first.method for group in groups if None in group.temperatures}):
        study.notes.append(
            f"Some networks of {', '.join(never)} get every validation answer right (or none better than chance): no "
            "temperature is best for them, and they stay at 1."
        )
    return groups


def _scored(group: Group, calibrated: bool, plan: Plan, place: Place) -> Evaluation:
    parents = _probe_keys(group, calibrated, plan, place)
    parents += [dump_key(each, split, plan.outside, place) for each in group.trials for split in SPLITS]
    recipe = {"calibrated": calibrated, "measures": list(plan.measures), "metrics": sorted(metrics.registry)}
    return _evaluation({"kind": "group", **recipe}, parents)


def _probe_keys(group: Group, calibrated: bool, plan: Plan, place: Place) -> list[str]:
    from nescio.predict import probe_key

    keys, scales = [train_key(each, place) for each in group.trials], group.scales(calibrated)
    return [probe_key(keys, scales, split, plan.outside, Store(place.store)) for split in SPLITS]


def _probes(group: Group, calibrated: bool, plan: Plan, place: Place) -> dict[str, Predictions]:
    """Probes of the average of the calibrated members; no network is loaded if they are there."""
    from nescio.predict import probe

    store, scales = Store(place.store), group.scales(calibrated)
    keys = dict(zip(SPLITS, _probe_keys(group, calibrated, plan, place), strict=True))
    missing = [split for split, key in keys.items() if not store.finished("predict", key)]
    if missing:
        runtime, members = runtime_of(place), [(train_key(each, place), each) for each in group.trials]
        for key, _ in members:
            store.verify("train", key)
        for split in missing:
            probe(members, scales, split, store, runtime, outside=plan.outside, root=place.root)
    return {split: dump(key, place) for split, key in keys.items()}


def _group_task(group: Group, calibrated: bool, plan: Plan, place: Place) -> None:
    """Probes the average of the calibrated members, and takes every measure and metric of it."""
    evaluation = _scored(group, calibrated, plan, place)
    with damage_noted(evaluation, place):
        dumps = together(group, calibrated, _probes(group, calibrated, plan, place), plan, place)

    def make() -> dict[str, bytes]:
        facts = {**_facts(*group.trials, place=place), "calibrated": calibrated}

        def card_of(found: Mapping[str, Predictions], only: Sequence[str]) -> Any:
            ood = {"out": found["out"]}
            return scorecard(found["test"], None, found["val"], ood, calibration=None, only=only, facts=facts)

        alone = len(group.trials) == 1
        card = card_of(dumps, [name for name in plan.measures if name != "gmm" or alone])
        rows = card.rows
        if "gmm" in plan.measures and not alone:
            swapped = {split: dump.replace(scores={"native": dump.scores[GMM]}) for split, dump in dumps.items()}
            extra = card_of(swapped, ("native",))
            rows = rows + [{**row, "measure": "gmm"} for row in extra.rows if row["measure"] == "native"]
        return table(rows, [{"method": group.first.method, **each} for each in card.reasons])

    evaluation.keep(Store(place.store), make)


def _group_died(reason: str, group: Group, calibrated: bool, plan: Plan, place: Place) -> None:
    _scored(group, calibrated, plan, place).mark(Store(place.store), reason)


GMM = "gmm of members"


def together(
    group: Group, calibrated: bool, probes: Mapping[str, Predictions], plan: Plan, place: Place
) -> dict[str, Predictions]:
    """The dumps of an average of members, with its probes.

    An ensemble's native score is the Jensen–Shannon divergence of its members (UIMNET §4). Members' features live in
    spaces of their own, so an ensemble's GMM score is the mean of its members' scores.
    """
    held = [{s: dump(dump_key(t, s, plan.outside, place), place) for s in SPLITS} for t in group.trials]
    found = {}
    for split in SPLITS:
        dumps = [each[split] for each in held]
        scales = group.scales(calibrated)
        dumps = [d if t == 1 else calibrate.Temperature(t)(d) for t, d in zip(scales, dumps, strict=True)]
        both = stack(dumps) if len(dumps) > 1 else dumps[0]
        scores = dict(probes[split].scores)
        if len(dumps) > 1:
            scores["native"] = measures.mutual_information(both)
            if "gmm" in plan.measures:
                # fitted on validation rows: their own scores, which set the threshold, are those of mixtures of others
                own = [
                    cross_fitted(measures.gmm, each["val"])
                    if split == "val"
                    else measures.gmm(each["val"])(each[split])
                    for each in held
                ]
                scores[GMM] = np.mean(own, axis=0)
        found[split] = both.replace(scores=scores, variants=probes[split].variants)
    return found
