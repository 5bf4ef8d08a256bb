"""Graded detection of OOD classes, from easy to hard by the confidence of each model.

Source: Galil, Dabbah and El-Yaniv 2023, §4, appendices L and M; severities and groups are in `analysis.graded_ood`.
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
from nescio.benchmarks.cood.models import ClassNames, class_names, overlapping_classes, paired_predictions
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
CLASSES, ABOUT = "classes.npz", "about.json"  # beside the rows of one model: the classes of its groups, and notes
IMAGE_COLUMNS = ("index", "label", "answer")  # stored columns of the images of the hardest group
FACTS = ("input_size", "embedding_size")  # facts of a model that become rows
SETTINGS = (
    "estimation_images",
    "test_images",
    "severity_levels",
    "group_classes",
    "measures",
    "seed",
)  # that decide numbers
OVERLAP = "classes that overlap"  # heading of the options in help texts


@tag("plan:cood")
@dataclass(frozen=True)
class Plan(Validated):
    """The models that are graded, and how OOD classes are divided."""

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
                raise BadInput(f"{name} is fitted on reference rows or several networks: it cannot grade one network.")


@benchmark(NAME, version=VERSION, plan=Plan, reports="nescio.benchmarks.cood.reports", workers=0)
def cood(plan: Plan, work: Work) -> None:
    """OOD detection of pretrained models, from the easiest to the hardest OOD classes of each model.

    For every model and uncertainty measure, OOD classes are sorted by the mean confidence on their estimation images.
    A window of as many classes as the in-distribution data has slides over them. Eleven windows, 10 % apart, are the
    severities 0 to 10. The result is the AUROC of their test images against in-distribution images (Galil et al. 2023,
    §4 and appendix L).

    Name models by predictions files, one for in-distribution and one for OOD images (--pair). Or use the models that
    `nescio zoo` evaluated on both sets of a store (--data and --ood-data).

    A class needs --estimation-images + --test-images images (150 + 50). Choose smaller numbers for smaller sets. With
    --hierarchy, OOD classes that are classes of --data, above one or below one, are left out. Its lines are PARENT
    CHILD, as in ImageNet's wordnet.is_a.txt. Classes are named by folder (WordNet ids), --data-names and --ood-names.

    examples:
      nescio run cood --pair a=in.npz,out.npz --pair b=in-b.npz,out-b.npz --estimation-images 40 --test-images 20
      nescio run cood --pair resnet=val.npz,out.npz,imagenet-o=hard.npz
      nescio run cood --data imagenet:val --ood-data folder:imagenet21k --hierarchy wordnet.is_a.txt
      nescio run cood --data imagenet:val --ood-data folder:imagenet21k --extra-ood hard=folder:imagenet-o
    """
    pairs, notes = paired_predictions(plan, work)
    if plan.limit is not None:
        notes.append(subset_limit_note(plan.limit, plan.seed))
        pairs = [pair.sampled(plan.limit, plan.seed) for pair in pairs]
    work.add_notes(*notes)
    grade_models(plan, pairs, class_names(plan, work, pairs), work)


def grade_models(plan: Plan, pairs: Sequence[PairedPredictions], names: ClassNames | None, work: Work) -> None:
    """Grade models that are not graded yet, one step per model, and collect the rows of all.

    names  of the in-distribution and of the OOD classes, class 0 first. OOD classes that are also in-distribution are
           left out. With a hierarchy, so are those above or below one.
    """
    if not pairs:
        raise BadInput("There is no model to grade: name at least one pair of in- and out-of-distribution predictions.")
    models = [pair.model for pair in pairs]
    if duplicates := [model for model in models if models.count(model) > 1]:
        raise BadInput(f"Two pairs are named {duplicates[0]}: every model needs a name of its own.")
    for name in (name for pair in pairs for name in pair.extra_ood):
        if name.startswith(f"{SEVERITY} "):
            raise BadInput(f"A fixed out-set cannot be named {name!r}: that is the name of a group.")
    refused, notes = overlapping_classes(plan, names, pairs)
    work.add_notes(*notes)
    steps = work.evaluate("grade OOD classes", [_step(plan, pair, refused) for pair in pairs])
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
    parents = (pair.in_distribution.rows_key, pair.ood.rows_key, *(predictions.rows_key for _, predictions in others))
    make = partial(_make, plan=plan, pair=pair, refused=refused)
    return make_evaluation(NAME, VERSION, pair.model, config, parents, make)


def _make(
    step_folder: StepFolder, context: Context, plan: Plan, pair: PairedPredictions, refused: tuple[int, ...]
) -> Files:
    graded = GradedModel(dict(ABOUT_ROWS), model=pair.in_distribution, plan=plan, pair=pair)
    graded.grade(refused)
    notes = json.dumps({"notes": graded.notes}).encode()
    return files_of(graded) | {CLASSES: npz_bytes(graded.chosen), ABOUT: notes}


# ---- one model


@dataclass(kw_only=True)
class GradedModel(ModelRows):
    """Gathers the rows of one model, the classes of each of its groups, and notes about them."""

    reported: Sequence[str] = ("backbone", "method")
    plan: Plan
    pair: PairedPredictions
    notes: list[str] = field(default_factory=list)
    chosen: dict[str, Array] = field(default_factory=dict)

    def grade(self, refused: Sequence[int]) -> None:
        plan, inside = self.plan, in_distribution_rows(self.pair.in_distribution.load())
        outside = self._outside(self.pair.ood, inside)
        others = {name: self._outside(predictions, inside) for name, predictions in sorted(self.pair.extra_ood.items())}
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
                predictions, score = resolve_measure(inside, measure)
                u_in, u_out = measures.uncertainty(score, predictions), uncertainty_of(outside, measure)
            except Undefined as reason:
                self.omit(reason, measure=measure, split="out")
                continue
            if predictions.labels is not None and predictions.logits is not None:
                rank_rows({measure: u_in}, ~summary(predictions).outcomes().correct, ("auroc",), self)
            grades = grade_ood(u_in, u_out, division, window, plan.severity_levels)
            self._graded(grades, measure, len(u_in))
            for name, other in others.items():
                self._fixed(name, other, u_in, measure)
            if "hard.index" not in self.chosen:  # by the first measure
                self._hardest(division.test[grades.group(-1)].reshape(-1), outside)

    def _outside(self, predictions: ModelPredictions, inside: Predictions) -> Predictions:
        """The rows of OOD classes."""
        outside = predictions.load(ood=True)
        if outside.logits is not None and inside.logits is not None and outside.classes != inside.classes:
            raise BadInput(
                f"{predictions.path} has {outside.classes} classes, {self.model.path} has {inside.classes}: both must "
                "come from one model."
            )
        assert outside.in_distribution is not None  # loaded as outside
        if outside.in_distribution.all():
            raise BadInput(f"{predictions.path} marks every row as in_distribution.")
        return outside.take(~outside.in_distribution) if outside.in_distribution.any() else outside

    def _accuracy(self, inside: Predictions) -> None:
        if inside.labels is None or inside.logits is None:
            lacking = "labels" if inside.labels is None else "logits"
            reason = f"There are no {lacking}: no prediction is known to be right or wrong."
            self.omit(reason, metric="accuracy", split="test")
        else:
            self.add("accuracy", metrics.accuracy(summary(inside).outcomes()), len(inside))

    def _window(self, division: ClassSplit, in_classes: int) -> int:
        """Number of classes of a group; adds notes about it."""
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
        n = n_in + grades.window * self.plan.test_images
        top = 1.0 if measure == "msp" else 0.0  # the confidence if u is 0: a severity is a mean of 1 − u, or of −u
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
        """Add the AUROC of a set that is the same for all models."""
        try:
            u = uncertainty_of(outside, measure)
        except Undefined as reason:
            self.omit(reason, measure=measure, metric="auroc", split=name)
            return
        rank_sets({measure: u_in}, {measure: u}, ("auroc",), self, split="out", target=name, evaluation="ood")

    def _hardest(self, rows: Array, outside: Predictions) -> None:
        """Keep the predictions of the test images of the hardest group."""
        if outside.logits is not None and outside.labels is not None:
            answers = summary(outside).predicted[rows].astype(np.int32)
            images = (outside.index[rows], outside.labels[rows].astype(np.int32), answers)
            self.chosen |= {f"hard.{name}": values for name, values in zip(IMAGE_COLUMNS, images, strict=True)}
            self.chosen["hard.outputs"] = np.array(outside.classes)


def severity_columns(level: int, measure: str) -> Columns:
    return {"evaluation": "graded-ood", "split": "out", "severity": float(level), "measure": measure}


# ---- between models (appendix M.8)


def overlap(models: Sequence[Mapping[str, Array]], plan: Plan) -> list[Row]:
    """Rows without a model: how many classes are in any model's group (`union`), and in every one's (`intersection`).

    One of each for a measure and a severity, over the n models that have it.
    """
    rows = RowBuilder({**ABOUT_ROWS, "method": PRETRAINED, "network": None})
    for measure in plan.measures:
        graded = [model for model in models if f"order.{measure}" in model]
        for level in range(plan.severity_levels) if len(graded) > 1 else ():
            counts = shared_classes([_group(model, measure, level) for model in graded])
            for metric, shared in zip(("union", "intersection"), counts, strict=True):
                rows.add(metric, shared, len(graded), **severity_columns(level, measure))
    return rows.rows


def _group(model: Mapping[str, Array], measure: str, level: int) -> Array:
    """The classes of one model at a severity."""
    start = int(model["starts"][level])
    return model["classes"][model[f"order.{measure}"][start : start + int(model["window"])]]


def alike(models: Sequence[Mapping[str, Array]], plan: Plan, names: ClassNames | None = None) -> list[Row]:
    """Rows on all models: among their hardest images, those with the same prediction by most models (Fig. 27).

    The value is the number of models, of n, with this prediction.
    """
    graded = [model for model in models if "hard.index" in model]
    kinds = {model["hard.index"].dtype.kind for model in graded}
    if len(graded) < 2 or len(kinds) > 1:  # keys of text and of numbers cannot be joined
        return []
    images, labels, answers = (np.concatenate([model[f"hard.{name}"] for model in graded]) for name in IMAGE_COLUMNS)
    outputs = np.repeat([model["hard.outputs"] for model in graded], [len(model["hard.index"]) for model in graded])
    inside, outside = names or ((), ())
    rows = RowBuilder({**ABOUT_ROWS, "method": PRETRAINED, "network": None, "evaluation": "graded-ood", "split": "out"})
    for row, times in most_agreed_images(images, answers, plan.seed):
        answer = _named(answers[row], inside if len(inside) == outputs[row] else ())  # else of classes of its own
        image_class = _named(labels[row], outside)
        image: Columns = {"image": str(images[row]), "image_class": image_class, "predicted_class": answer}
        rows.add("agreeing_models", times, len(graded), **image)
    return rows.rows


def _named(number: int, names: Sequence[str]) -> str:
    return names[number] if 0 <= number < len(names) else str(number)
