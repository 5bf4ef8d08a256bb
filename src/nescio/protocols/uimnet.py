"""UIMNET: what classifiers know what they don't know? From data to the paper's tables, hands off and resumable.

Data seeds × trials × backbones × spectral norm → train → predict (validation, test-in, test-out) → calibrate on
validation → the best k by mean validation NLL → every measure × every metric → rows → tables (papers: UIMNET §2–8).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np

from nescio import calibrate, measures, metrics
from nescio.config import Recipe, Training, Trial, draw, searched, seed_for, suggest
from nescio.errors import BadInput, Undefined
from nescio.predictions import Predictions, stack
from nescio.rows import COLUMNS, Row, from_parquet, to_parquet
from nescio.scorecard import scorecard
from nescio.select import best_trials
from nescio.store import Store
from nescio.sweep import Failure, Task, sweep

NAME, VERSION = "uimnet", 1
SPLITS = ("val", "test", "out")


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
    features: str = "reference"  # of the in/out partition: a reference network trained on all classes, or "pixels"
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

    @property
    def first(self) -> Trial:
        return self.trials[0]


@dataclass
class Place:
    """Where a run works: the store, the data, the device."""

    store: str
    root: str | None = None
    device: str = "auto"
    checkpoint_seconds: float = 60.0


@dataclass
class Study:
    """What came out: rows, reasons, failures."""

    plan: Plan
    rows: list[Row] = field(default_factory=list)
    reasons: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


Say = Callable[[str, int, int, int], None]  # stage, done, failed, all


def run(plan: Plan, place: Place, workers: int, say: Say | None = None) -> Study:
    """Does what is missing in the store and returns the study."""
    plan.check()
    study = Study(plan)

    def stage(name: str, tasks: Sequence[tuple[str, Task]]) -> None:
        """Does the tasks whose evaluation, under the given key, is not finished."""
        missing = [task for key, task in tasks if not Store(place.store).finished("evaluate", key)]
        watch = (lambda done, failed, n: say(name, done, failed, n)) if say else None
        study.failures += sweep(missing, workers, watch) if missing else []

    plan = study.plan = _with_outside(plan, place) if plan.inside is not None else _partitioned(plan, place, stage)
    oracles = oracle_trials(plan) if plan.oracle else []

    def attempt(trials: Sequence[Trial], others: Sequence[Trial] = ()) -> None:
        stage("train and predict", _tasks(trials, others, plan, place))

    if plan.search == "optuna":
        attempt([], oracles)
        trials = _guided(plan, place, attempt)
    else:
        trials = trials_of(plan)
        attempt(trials, oracles)
    alive = [each for each in trials if Store(place.store).finished("evaluate", trial_rows_key(each, plan, place))]
    for each in alive:
        study.rows += _load(trial_rows_key(each, plan, place), place)[0]
    for each in oracles:
        if Store(place.store).finished("evaluate", oracle_rows_key(each, place)):
            study.rows += _load(oracle_rows_key(each, place), place)[0]
    groups = chosen(plan, alive, study)
    lines = [(group, calibrated) for group in groups for calibrated in (False, True)]
    tasks = [
        (
            group_rows_key(group, calibrated, plan, place),
            Task(title(group.first), _group_task, (group, calibrated, plan, place)),
        )
        for group, calibrated in lines
    ]
    if uncalibrated := sorted(
        {t.method for g in groups for t in g.trials if _temperature(t, plan.outside, place) == 1.0}
    ):
        study.notes.append(
            f"Some networks of {', '.join(uncalibrated)} get every validation answer right (or none better than chance): no "
            "temperature is best for them, and they stay at 1."
        )
    stage("calibrate, probe and evaluate", tasks)
    for key, _ in tasks:
        if Store(place.store).finished("evaluate", key):
            rows, reasons = _load(key, place)
            study.rows += rows
            study.reasons += [each for each in reasons if each not in study.reasons]
    _record(study, place)
    return study


def _record(study: Study, place: Place) -> None:
    """Keeps the study in the store, so that it can be told again without its networks."""
    from nescio.report._study import files

    held = files(study)
    recipe = {"protocol": NAME, "plan": study.plan, "content": [sha256(each).hexdigest() for each in held.values()]}
    with Store(place.store).work("study", recipe, version=VERSION) as part:
        if part is not None:
            for name, content in held.items():
                part.write(name, content)


def _tasks(trials: Sequence[Trial], oracles: Sequence[Trial], plan: Plan, place: Place) -> list[tuple[str, Task]]:
    """(key of the evaluation that ends it, task) of every trial and oracle."""
    return [
        (trial_rows_key(t, plan, place), Task(title(t), _trial_task, (t, plan.outside, place), _died)) for t in trials
    ] + [(oracle_rows_key(t, place), Task("oracle", _oracle_task, (t, place), _died)) for t in oracles]


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


def _guided(plan: Plan, place: Place, attempt: Callable[[Sequence[Trial]], None]) -> list[Trial]:
    """Trials that Optuna suggests (TPE) from the mean validation NLL of those before; trial 0 is the defaults.

    Everything is seeded and results do not change, so a second run asks for the same trials and finds them finished.
    """
    import optuna

    from nescio.methods import registry as methods

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    studies = {}
    for line in _lines(plan):
        sampler = optuna.samplers.TPESampler(seed=seed_for("optuna", line, plan.search_seed) % 2**32)
        studies[line] = optuna.create_study(direction="minimize", sampler=sampler)
        recipe_class = methods[line[0]].recipe_class
        defaults = recipe_class()
        fields = {name: getattr(defaults, name) for name in searched(recipe_class)}
        studies[line].enqueue_trial({k: v if isinstance(v, int | float) else str(v) for k, v in fields.items()})
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
    key = trial_rows_key(trial, plan, place)
    if not Store(place.store).finished("evaluate", key):
        return None
    rows, _ = _load(key, place)
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

    if plan.outside is not None:
        return plan
    count = len(datasets.load(plan.data, place.root).classes)
    others = tuple(sorted(set(range(count)) - set(plan.inside or ())))
    if not others:
        raise BadInput(f"All {count} classes of {plan.data} are in-domain: nothing is left to be outside.")
    return replace(plan, outside=others)


def _partitioned(plan: Plan, place: Place, stage: Callable[..., None]) -> Plan:
    """The plan with in-domain and out-domain classes by the Ward tree of class means (UIMNET §2)."""
    from nescio import datasets
    from nescio.protocols.imagenot import class_means, imagenot, pixel_means

    dataset = datasets.load(plan.data, place.root)
    if plan.features == "pixels":
        means = pixel_means(dataset)
    elif plan.features == "reference":
        trial = reference(plan)
        stage(
            "reference network",
            [
                (
                    _evaluate_key({"reference": True}, (_train_key(trial, place),), place),
                    Task("reference", _reference_task, (trial, place), _died),
                )
            ],
        )
        dump = _dump(_predict_key(trial, "train", None, place), place)
        assert dump.embeddings is not None and dump.labels is not None
        means = class_means(dump.embeddings, dump.labels)
    else:
        raise BadInput(f"--features is reference or pixels, not {plan.features!r}.")
    found = imagenot(dataset, means, plan.features)
    return replace(plan, inside=found.inside, outside=found.outside)


# ---- tasks: what a worker does; every one is resumable and skips what is finished


def _runtime(place: Place) -> Any:
    from nescio.runtime import runtime

    return runtime(place.device)


def _train_key(trial: Trial, place: Place) -> str:
    from nescio import datasets
    from nescio.training import key_of

    return key_of(trial, datasets.load(trial.data, place.root), Store(place.store))


def _predict_key(trial: Trial, split: str, outside: Sequence[int] | None, place: Place) -> str:
    from nescio.predict import predict_key

    return predict_key(_train_key(trial, place), split, outside, Store(place.store))


def _dump(key: str, place: Place) -> Predictions:
    from nescio.predict import load_dump

    return load_dump(key, Store(place.store))


def _train_and_predict(
    trial: Trial, splits: Sequence[str], outside: Sequence[int] | None, place: Place
) -> dict[str, Predictions]:
    from nescio.predict import predict
    from nescio.training import train

    store, runtime = Store(place.store), _runtime(place)
    key = train(trial, store, runtime, root=place.root, checkpoint_seconds=place.checkpoint_seconds, wait=False)
    return {
        split: _dump(predict(key, trial, split, store, runtime, outside=outside, root=place.root), place)
        for split in splits
    }


def _died(reason: str, trial: Trial, *rest: Any) -> None:
    """Marks a trial whose worker died as failed; the last argument of every task is its place."""
    from nescio import datasets
    from nescio.training import VERSION as TRAIN

    place: Place = rest[-1]
    revision = datasets.load(trial.data, place.root).revision
    Store(place.store).fail("train", trial, reason, parents=(revision,), version=TRAIN)


def _evaluate_key(recipe: Mapping[str, Any], parents: Sequence[str], place: Place) -> str:
    return Store(place.store).key("evaluate", {"protocol": NAME, **recipe}, parents=tuple(parents), version=VERSION)


def _evaluate(
    recipe: Mapping[str, Any], parents: Sequence[str], place: Place, make: Callable[[], tuple[list[Row], list[Row]]]
) -> None:
    store = Store(place.store)
    with store.work(
        "evaluate", {"protocol": NAME, **recipe}, parents=tuple(parents), version=VERSION, wait=False
    ) as part:
        if part is not None:
            rows, reasons = make()
            part.write("rows.parquet", to_parquet(rows))
            part.write("reasons.json", json.dumps(reasons).encode())


def _load(key: str, place: Place) -> tuple[list[Row], list[Row]]:
    folder = Store(place.store).path("evaluate", key)
    return from_parquet(folder / "rows.parquet"), json.loads((folder / "reasons.json").read_text())


def _facts(trial: Trial, place: Place) -> Row:
    folder = Store(place.store).path("train", _train_key(trial, place))
    params = json.loads((folder / "facts.json").read_text())["params"]
    return {"protocol": NAME, "version": VERSION, "params": params, **trial.describe()}


def _reference_task(trial: Trial, place: Place) -> None:
    _train_and_predict(trial, ("train",), None, place)
    _evaluate({"reference": True}, (_train_key(trial, place),), place, lambda: ([], []))


def _trial_recipe(trial: Trial, plan_outside: Sequence[int] | None, place: Place) -> tuple[dict[str, Any], list[str]]:
    return {"trial": True}, [_predict_key(trial, split, plan_outside, place) for split in SPLITS]


def trial_rows_key(trial: Trial, plan: Plan, place: Place) -> str:
    return _evaluate_key(*_trial_recipe(trial, plan.outside, place), place)


def _trial_task(trial: Trial, outside: tuple[int, ...] | None, place: Place) -> None:
    """Trains one trial, predicts its splits, and notes what selection and the NLL-versus-AUC plot need."""
    dumps = _train_and_predict(trial, SPLITS, outside, place)

    def make() -> tuple[list[Row], list[Row]]:
        rows, facts = [], {**_facts(trial, place), "members": 1, "calibrated": False}
        val = scorecard(dumps["val"], split="val", calibration=None, only=(), facts=facts)
        test = scorecard(dumps["test"], ood={"out": dumps["out"]}, calibration=None, only=("entropy",), facts=facts)
        wanted = {("val", "nll"), ("test", "nll"), ("test", "accuracy"), ("out", "auroc")}
        for row in val.rows + test.rows:
            if (row["split"], row["metric"]) in wanted:
                rows.append({**row, "group": "trial"})
        return rows, []

    _evaluate(*_trial_recipe(trial, outside, place), place, make)


def _oracle_recipe(trial: Trial, place: Place) -> tuple[dict[str, Any], list[str]]:
    return {"oracle": True}, [_predict_key(trial, split, None, place) for split in ("val", "test")]


def oracle_rows_key(trial: Trial, place: Place) -> str:
    return _evaluate_key(*_oracle_recipe(trial, place), place)


def _oracle_task(trial: Trial, place: Place) -> None:
    dumps = _train_and_predict(trial, ("val", "test"), None, place)

    def make() -> tuple[list[Row], list[Row]]:
        from nescio.measures._softmax import mean_probs

        u_val, u = (mean_probs(dumps[split])[:, 1] for split in ("val", "test"))
        out_val, out = (np.asarray(dumps[split].labels) == 1 for split in ("val", "test"))
        cut = metrics.threshold(u_val[~out_val])
        found = {
            "auroc": (metrics.auroc(u, out), "out", len(u)),
            "in_as_in": (metrics.in_as_in(u[~out], cut), "test", int((~out).sum())),
            "out_as_out": (metrics.out_as_out(u[out], cut), "out", int(out.sum())),
        }
        facts = {**_facts(trial, place), "method": "oracle", "dataset": trial.data.partition(":")[2].partition("#")[0]}
        base = dict.fromkeys(COLUMNS) | facts | {"members": 1, "calibrated": False, "measure": "oracle"}
        return [base | {"metric": m, "value": v, "split": s, "n": n} for m, (v, s, n) in found.items()], []

    _evaluate(*_oracle_recipe(trial, place), place, make)


# ---- selection, calibration, ensembles


def chosen(plan: Plan, alive: Sequence[Trial], study: Study) -> list[Group]:
    """The best k trials of each method, backbone and spectral norm by mean validation NLL over data seeds."""
    rows = [row | {"group": None} for row in study.rows if row["group"] == "trial"]
    by = {(t.method, t.backbone, t.spectral, t.trial, t.data_seed): t for t in alive}
    groups = []
    for k in sorted({min(k, plan.trials) for k in plan.members}):
        best = best_trials(rows, k, seeds=range(plan.seeds), trials=range(plan.trials)) if rows else {}
        study.notes += [note for note in getattr(best, "notes", ()) if note not in study.notes]
        for line, numbers in best.items():
            for seed in range(plan.seeds):
                groups.append(Group(tuple(by[*line, number, seed] for number in numbers), seed))
    if max(plan.members) > plan.trials:
        study.notes.append(f"With {plan.trials} trials a method, ensembles have up to {plan.trials} members.")
    return groups


def _temperature(trial: Trial, outside: Sequence[int] | None, place: Place) -> float:
    key = _predict_key(trial, "val", outside, place)
    return _fitted(key, place.store)


@lru_cache(maxsize=10_000)
def _fitted(key: str, store: str) -> float:
    scale = calibration(_dump(key, Place(store)))
    return 1.0 if scale is None else float(scale.temperature)


def calibration(val: Predictions) -> Any:
    """The temperature that validation answers ask for; None where they ask for none: all are right, or chance."""
    try:
        return calibrate.temperature(val)
    except Undefined:
        return None


def _temperatures(group: Group, calibrated: bool, plan: Plan, place: Place) -> list[float]:
    """Every member is calibrated on its own validation answers before the members are averaged."""
    return [_temperature(each, plan.outside, place) if calibrated else 1.0 for each in group.trials]


def _group_recipe(group: Group, calibrated: bool, plan: Plan, place: Place) -> tuple[dict[str, Any], list[str]]:
    from nescio.predict import probe_key

    store, keys = Store(place.store), [_train_key(each, place) for each in group.trials]
    temperatures = _temperatures(group, calibrated, plan, place)
    parents = [probe_key(keys, temperatures, split, plan.outside, store) for split in SPLITS]
    parents += [_predict_key(each, split, plan.outside, place) for each in group.trials for split in SPLITS]
    recipe = {"calibrated": calibrated, "measures": list(plan.measures), "metrics": sorted(metrics.registry)}
    return recipe, parents


def group_rows_key(group: Group, calibrated: bool, plan: Plan, place: Place) -> str:
    return _evaluate_key(*_group_recipe(group, calibrated, plan, place), place)


def _group_task(group: Group, calibrated: bool, plan: Plan, place: Place) -> None:
    """Probes the average of the calibrated members, and takes every measure and metric of it."""
    from nescio.predict import probe

    store, runtime = Store(place.store), _runtime(place)
    members = [(_train_key(each, place), each) for each in group.trials]
    temperatures = _temperatures(group, calibrated, plan, place)
    probes = {
        split: _dump(probe(members, temperatures, split, store, runtime, outside=plan.outside, root=place.root), place)
        for split in SPLITS
    }

    def make() -> tuple[list[Row], list[Row]]:
        dumps = together(group, calibrated, probes, plan, place)
        facts = {**_facts(group.first, place), "members": len(group.trials), "calibrated": calibrated}
        if len(group.trials) > 1:
            facts |= {"trial": None, "init_seed": None}
        only = [name for name in plan.measures if name != "gmm" or len(group.trials) == 1]
        card = scorecard(
            dumps["test"], None, dumps["val"], {"out": dumps["out"]}, calibration=None, only=only, facts=facts
        )
        rows = card.rows
        if "gmm" in plan.measures and len(group.trials) > 1:
            swapped = {split: dump.replace(scores={"native": dump.scores[GMM]}) for split, dump in dumps.items()}
            extra = scorecard(
                swapped["test"],
                None,
                swapped["val"],
                {"out": swapped["out"]},
                calibration=None,
                only=("native",),
                facts=facts,
            )
            rows = rows + [{**row, "measure": "gmm"} for row in extra.rows if row["measure"] == "native"]
        return rows, [{"method": group.first.method, **each} for each in card.reasons]

    _evaluate(*_group_recipe(group, calibrated, plan, place), place, make)


GMM = "gmm of members"


def together(
    group: Group, calibrated: bool, probes: Mapping[str, Predictions], plan: Plan, place: Place
) -> dict[str, Predictions]:
    """The dumps of an average of members, with its probes.

    An ensemble's native score is the Jensen–Shannon divergence of its members (UIMNET §4). Members' features live in
    spaces of their own, so an ensemble's GMM score is the mean of its members' scores.
    """
    held = [{s: _dump(_predict_key(t, s, plan.outside, place), place) for s in SPLITS} for t in group.trials]
    found = {}
    for split in SPLITS:
        dumps = [each[split] for each in held]
        if calibrated:
            scales = [calibration(each["val"]) for each in held]
            dumps = [dump if scale is None else scale(dump) for scale, dump in zip(scales, dumps, strict=True)]
        both = stack(dumps) if len(dumps) > 1 else dumps[0]
        scores = dict(probes[split].scores)
        if len(dumps) > 1:
            scores["native"] = measures.mutual_information(both)
            if "gmm" in plan.measures:
                scores[GMM] = np.mean([measures.gmm(each["val"])(each[split]) for each in held], axis=0)
        found[split] = both.replace(scores=scores, variants=probes[split].variants)
    return found
