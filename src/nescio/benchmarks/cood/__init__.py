"""Graded class-out-of-distribution detection: out-classes from easy to hard for each model and its own confidence.

Source: Galil, Dabbah and El-Yaniv 2023, §4, appendices L and M; severities and groups are in `analysis.grading`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

import numpy as np

from nescio import measures, metrics
from nescio.analysis.evaluation_rows import MC_DROPOUT, in_distribution_rows, resolve_measure, uncertainty_of
from nescio.analysis.graded_ood import (
    ClassSplit,
    OODGrades,
    grade_ood,
    most_agreed_images,
    shared_classes,
    split_ood_classes,
    window_size,
)
from nescio.arrays.npz import npz_bytes, read_npz
from nescio.arrays.types import Array
from nescio.benchmarks.base import benchmark
from nescio.benchmarks.cood.models import ClassNames, class_names, overlapping_classes, paired_dumps
from nescio.benchmarks.pretrained import PRETRAINED, ModelRows, config_of
from nescio.errors import BadInput, Undefined
from nescio.evaluations.graded_ood import add_grades
from nescio.evaluations.scoring import rank_rows, rank_sets
from nescio.files import read_json
from nescio.identity import Validated, tag, to_json
from nescio.measures import summary
from nescio.options import option
from nescio.predictions import Predictions
from nescio.predictions.model_predictions import ModelPredictions
from nescio.predictions.pairs import PairedPredictions
from nescio.predictions.subset import subset_limit_note
from nescio.rows import Columns, Row, RowBuilder
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step, Work, files_of, make_evaluation

NAME, VERSION = "cood", 4
ABOUT_ROWS = {"benchmark": NAME, "version": VERSION, "evaluation": "misclassification"}
SEVERITY = "severity"  # metric: mean confidence on a group of out-classes, whose number is in the column `severity`
CLASSES, ABOUT = "classes.npz", "about.json"  # beside the rows of one model: which classes it got, and what to know
PICTURED = ("index", "label", "answer")  # what is kept of the images of a model's hardest group
FACTS = ("input_size", "embedding_size")  # of a model, as rows
SETTINGS = (
    "estimation_images",
    "test_images",
    "severity_levels",
    "group_classes",
    "measures",
    "seed",
)  # that decide numbers
OVERLAP = "classes that overlap"  # heading of options


@tag("plan:cood")
@dataclass(frozen=True)
class Plan(Validated):
    """Which models are graded, and how their out-classes are divided."""

    pair: tuple[str, ...] = option(
        (),
        "predictions of a model on in-distribution and OOD images; further files are fixed OOD sets",
        style="whole",
        metavar="NAME=IN,OOD[,SET=FILE]",
        unset="models of --store",
        group="models",
    )
    data: str | None = option(None, group="models", kind="dataset")
    ood_data: str | None = option(None, group="models", kind="dataset")
    extra_ood: tuple[str, ...] = option((), style="repeats", unset="none", group="models")
    estimation_images: int = option(150, group="grading")
    test_images: int = option(50, group="grading")
    severity_levels: int = option(11, "number of difficulty levels", metavar="N", group="grading")
    group_classes: int | None = option(
        None,
        "number of classes per difficulty level",
        metavar="N",
        unset="as many as are in-distribution, at most half of the OOD classes",
        group="grading",
    )
    measures: tuple[str, ...] = option(("msp", "entropy", MC_DROPOUT), group="grading", kind="measure")
    limit: int | None = option(None, unset="all", group="grading", introduced=None)
    seed: int = option(0, group="grading")
    hierarchy: str | None = option(None, group=OVERLAP)
    data_names: str | None = option(None, unset="the dataset's", group=OVERLAP)
    ood_names: str | None = option(None, unset="the dataset's", group=OVERLAP)

    def check(self) -> None:
        self.require_min(1, "estimation_images", "test_images", "group_classes", "limit")
        self.require_min(2, "severity_levels")
        self.require_min(0, "seed")
        if not self.measures:
            raise BadInput("Plan.measures is empty: name at least one measure.")
        for name in self.measures:
            if name != MC_DROPOUT and measures.registry[name].kind != "plain":
                raise BadInput(f"{name} is fitted on reference rows or several networks: it cannot grade one dump.")


@benchmark(NAME, version=VERSION, plan=Plan, reports="nescio.benchmarks.cood.reports", workers=0)
def cood(plan: Plan, work: Work) -> None:
    """Which models notice classes that were not in training, from the easiest to the hardest for each of them.

    For every model and every measure of uncertainty: out-classes are sorted by how sure the model is of them on
    estimation images; groups of as many classes as the in-distribution data has slide over them; eleven groups, 10 %
    apart, are the severities 0 to 10; each gives the AUROC of its test images against the in-distribution images (Galil
    et al. 2023, §4 and appendix L).

    Models are files of predictions, one about in-distribution images and one about images of other classes under class
    ids of their own (--pair), or those of a store that `nescio zoo` has evaluated on both sets (--data and --ood-data).

    A class takes part if it has --estimation-images + --test-images images (150 + 50). Smaller sets need smaller
    numbers. With --hierarchy, OOD classes that are classes of --data, above one or below one, are left out. Its lines
    are PARENT CHILD, as in ImageNet's wordnet.is_a.txt. Classes are named by folder (WordNet ids), --data-names and
    --ood-names.

    examples:
      nescio run cood --pair a=in.npz,out.npz --pair b=in-b.npz,out-b.npz --estimation-images 40 --test-images 20
      nescio run cood --pair resnet=val.npz,out.npz,imagenet-o=hard.npz
      nescio run cood --data imagenet:val --ood-data folder:imagenet21k --hierarchy wordnet.is_a.txt
      nescio run cood --data imagenet:val --ood-data folder:imagenet21k --extra-ood hard=folder:imagenet-o
    """
    pairs, notes = paired_dumps(plan, work)
    if plan.limit is not None:
        notes.append(subset_limit_note(plan.limit, plan.seed))
        pairs = [pair.sampled(plan.limit, plan.seed) for pair in pairs]
    work.add_notes(*notes)
    grade_models(plan, pairs, class_names(plan, work, pairs), work)


def grade_models(plan: Plan, pairs: Sequence[PairedPredictions], names: ClassNames | None, work: Work) -> None:
    """Grades what is not graded yet, one step per model, and takes the rows of all.

    names  of the in-classes and of the out-classes, class 0 first: out-classes that are in-classes are left out, and
           with a hierarchy those above or below one
    """
    if not pairs:
        raise BadInput("There is no model to grade: name at least one pair of in- and out-of-distribution predictions.")
    models = [pair.model for pair in pairs]
    if twice := [model for model in models if models.count(model) > 1]:
        raise BadInput(f"Two pairs are named {twice[0]}: every model needs a name of its own.")
    for name in (name for pair in pairs for name in pair.extra_ood):
        if name.startswith(f"{SEVERITY} "):
            raise BadInput(f"A fixed out-set cannot be named {name!r}: that is the name of a group.")
    refused, notes = overlapping_classes(plan, names, pairs)
    work.add_notes(*notes)
    steps = work.evaluate("grading the out-classes", [_step(plan, pair, refused) for pair in pairs])
    folders = [step.folder(work.store) for step in steps]
    for folder in folders:
        work.add_notes(*read_json(folder / ABOUT)["notes"])
    chosen = [read_npz(folder / CLASSES) for folder in folders]
    work.rows += overlap(chosen, plan) + alike(chosen, plan, names)


def _step(plan: Plan, pair: PairedPredictions, refused: tuple[int, ...]) -> Step:
    others = sorted(pair.extra_ood.items())
    config = config_of(pair.in_distribution, FACTS, plan, SETTINGS) | {
        "out": pair.ood.data,
        "others": [name for name, _ in others],
        "refused": sha256(to_json(refused).encode()).hexdigest()[:16],
    }
    parents = (pair.in_distribution.rows_key, pair.ood.rows_key, *(dump.rows_key for _, dump in others))
    make = partial(_make, plan=plan, pair=pair, refused=refused)
    return make_evaluation(NAME, VERSION, pair.model, config, parents, make)


def _make(
    step_folder: StepFolder, context: Context, plan: Plan, pair: PairedPredictions, refused: tuple[int, ...]
) -> Files:
    graded = GradedModel(dict(ABOUT_ROWS), model=pair.in_distribution, plan=plan, pair=pair)
    graded.grade(refused)
    about = json.dumps({"notes": graded.notes}).encode()
    return files_of(graded) | {CLASSES: npz_bytes(graded.chosen), ABOUT: about}


# ---- one model


def most_confident(measure: str) -> float:
    """The confidence where u is 0, so that a severity is a mean confidence: 1 − u of the largest softmax, else −u."""
    return 1.0 if measure == "msp" else 0.0


@dataclass(kw_only=True)
class GradedModel(ModelRows):
    """Gathers the rows of one model, which classes each of its groups holds, and what to know of them."""

    reported: Sequence[str] = ("backbone", "method")
    plan: Plan
    pair: PairedPredictions
    notes: list[str] = field(default_factory=list)
    chosen: dict[str, Array] = field(default_factory=dict)

    def grade(self, refused: Sequence[int]) -> None:
        plan, inside = self.plan, in_distribution_rows(self.pair.in_distribution.load())
        outside = self._outside(self.pair.ood, inside)
        others = {name: self._outside(dump, inside) for name, dump in sorted(self.pair.extra_ood.items())}
        self.describe_model(*FACTS)
        self._accuracy(inside)
        if outside.labels is None:
            raise BadInput(f"{self.pair.ood.path}: out-classes are graded by their labels, and there are none.")
        division = split_ood_classes(
            outside.labels, outside.index, plan.estimation_images, plan.test_images, plan.seed, refused
        )
        window = self._window(division, inside.classes if inside.labels is None else len(np.unique(inside.labels)))
        for measure in plan.measures:
            try:
                answered, own = resolve_measure(inside, measure)
                u_in, u_out = measures.uncertainty(own, answered), uncertainty_of(outside, measure)
            except Undefined as reason:
                self._because(measure, None, "out", reason)
                continue
            if answered.labels is not None and answered.logits is not None:
                rank_rows({measure: u_in}, ~summary(answered).outcomes().correct, ("auroc",), self)
            grades = grade_ood(u_in, u_out, division, window, plan.severity_levels)
            self._graded(grades, measure, len(u_in))
            for name, other in others.items():
                self._fixed(name, other, u_in, measure)
            if "hard.index" not in self.chosen:  # by the first measure
                self._hardest(division.test[grades.group(-1)].reshape(-1), outside)

    def _because(self, measure: str | None, metric: str | None, split: str, reason: object) -> None:
        self.omit(reason, measure=measure, metric=metric, split=split)

    def _outside(self, dump: ModelPredictions, inside: Predictions) -> Predictions:
        """The rows of classes that were not in training."""
        outside = dump.load(ood=True)
        if outside.logits is not None and inside.logits is not None and outside.classes != inside.classes:
            raise BadInput(
                f"{dump.path} answers with {outside.classes} classes, {self.model.path} with {inside.classes}: both "
                "must come from one model."
            )
        assert outside.in_distribution is not None  # loaded as outside
        if outside.in_distribution.all():
            raise BadInput(f"{dump.path} marks every row as of a class that was in training (in_distribution).")
        return outside.take(~outside.in_distribution) if outside.in_distribution.any() else outside

    def _accuracy(self, inside: Predictions) -> None:
        if inside.labels is None or inside.logits is None:
            lacking = "labels" if inside.labels is None else "logits"
            reason = f"There are no {lacking}: right and wrong answers cannot be told apart."
            self._because(None, "accuracy", "test", reason)
        else:
            self.add("accuracy", metrics.accuracy(summary(inside).outcomes()), len(inside))

    def _window(self, division: ClassSplit, in_classes: int) -> int:
        """Classes of a group, with what to know of them."""
        k, plan = len(division.classes), self.plan
        window = window_size(plan.group_classes, in_classes, k)
        if division.scarce:
            self.notes.append(
                f"{division.scarce:,} of {k + division.scarce:,} out-classes have fewer than "
                f"{plan.estimation_images + plan.test_images} images and are left out."
            )
        if plan.group_classes is None and window < in_classes:
            self.notes.append(
                f"There are {k:,} out-classes for {in_classes:,} in-classes: a group has {window:,} "
                f"{'class' if window == 1 else 'classes'}, half of the out-classes, so that the easiest and the "
                "hardest group share none (set by group_classes)."
            )
        if k - window + 1 < plan.severity_levels:
            self.notes.append(
                f"{k:,} out-classes have {k - window + 1} windows of {window:,}, fewer than the {plan.severity_levels} "
                "severities: some severities are the same group."
            )
        self.describe(out_classes=k, window=window)
        self.chosen = {"classes": division.classes.astype(np.int32), "window": np.array(window)}
        return window

    def _graded(self, grades: OODGrades, measure: str, n_in: int) -> None:
        n, top = n_in + grades.window * self.plan.test_images, most_confident(measure)
        add_grades(grades, n, self, evaluation="graded-ood", split="out", measure=measure)
        for level, severity in enumerate(grades.severities):
            count = grades.window * self.plan.estimation_images
            self.add(SEVERITY, severity + top, count, **severity_columns(level, measure))
        self.chosen |= {
            "starts": grades.starts,
            f"order.{measure}": grades.order.astype(np.int32),
            f"severity.{measure}": (grades.severity + top).astype(np.float32),
        }

    def _fixed(self, name: str, outside: Predictions, u_in: Array, measure: str) -> None:
        """A set that is the same for all models, beside the severities."""
        try:
            u = uncertainty_of(outside, measure)
        except Undefined as reason:
            self._because(measure, "auroc", name, reason)
            return
        rank_sets({measure: u_in}, {measure: u}, ("auroc",), self, split="out", target=name, evaluation="ood")

    def _hardest(self, at: Array, outside: Predictions) -> None:
        """What the model answers to the test images of its hardest group."""
        if outside.logits is not None and outside.labels is not None:
            answers = summary(outside).predicted[at].astype(np.int32)
            images = (outside.index[at], outside.labels[at].astype(np.int32), answers)
            self.chosen |= {f"hard.{of}": values for of, values in zip(PICTURED, images, strict=True)}
            self.chosen["hard.outputs"] = np.array(outside.classes)


def severity_columns(level: int, measure: str) -> Columns:
    return {"evaluation": "graded-ood", "split": "out", "severity": float(level), "measure": measure}


# ---- between models (appendix M.8)


def overlap(models: Sequence[Mapping[str, Array]], plan: Plan) -> list[Row]:
    """Rows without a model: how many classes any model's group holds (`union`), and every one's (`intersection`).

    One of each for a measure and a severity, over the n models that have it.
    """
    rows = RowBuilder({**ABOUT_ROWS, "method": PRETRAINED, "network": None})
    for measure in plan.measures:
        own = [model for model in models if f"order.{measure}" in model]
        for level in range(plan.severity_levels) if len(own) > 1 else ():
            counts = shared_classes([_group(model, measure, level) for model in own])
            for metric, shared in zip(("union", "intersection"), counts, strict=True):
                rows.add(metric, shared, len(own), **severity_columns(level, measure))
    return rows.rows


def _group(model: Mapping[str, Array], measure: str, level: int) -> Array:
    """The classes of one model at a severity."""
    start = int(model["starts"][level])
    return model["classes"][model[f"order.{measure}"][start : start + int(model["window"])]]


def alike(models: Sequence[Mapping[str, Array]], plan: Plan, names: ClassNames | None = None) -> list[Row]:
    """Rows without a model: the images to which most models give the same answer, among their hardest (Fig. 27).

    The value is how many of the n models give the answer.
    """
    own = [model for model in models if "hard.index" in model]
    kinds = {model["hard.index"].dtype.kind for model in own}
    if len(own) < 2 or len(kinds) > 1:  # keys of text and of numbers cannot be joined
        return []
    images, labels, answers = (np.concatenate([model[f"hard.{of}"] for model in own]) for of in PICTURED)
    outputs = np.repeat([model["hard.outputs"] for model in own], [len(model["hard.index"]) for model in own])
    inside, outside = names or ((), ())
    rows = RowBuilder({**ABOUT_ROWS, "method": PRETRAINED, "network": None, "evaluation": "graded-ood", "split": "out"})
    for at, times in most_agreed_images(images, answers, plan.seed):
        answer = _named(answers[at], inside if len(inside) == outputs[at] else ())  # else of classes of its own
        image_class = _named(labels[at], outside)
        image: Columns = {"image": str(images[at]), "image_class": image_class, "predicted_class": answer}
        rows.add("agreeing_models", times, len(own), **image)
    return rows.rows


def _named(number: int, names: Sequence[str]) -> str:
    return names[number] if 0 <= number < len(names) else str(number)
