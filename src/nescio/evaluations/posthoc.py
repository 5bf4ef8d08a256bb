"""Post-hoc scores: everything that follows from saved outputs of training, validation, test and other images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from nescio import datasets, measures
from nescio.analysis.results import Scorecard
from nescio.analysis.score_choice import question_rows
from nescio.analysis.scorecard import scorecard
from nescio.analysis.significance import best_by_delong
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.evaluations.base import Evaluation, Field, Outputs, Subject, evaluation
from nescio.evaluations.ood import other_classes
from nescio.identity import canonical
from nescio.predictions import Predictions, stack
from nescio.rows import Columns, RowBuilder

TEST = "test"
OUTCOMES = ("accuracy", "ece", "nll")
RANKING = ("auroc", "aurc", "e_aurc", "naurc", "augrc", "fpr_at_tpr@0.95", "scod_aurc")
AMONG_BEST = "among_best"  # 1: not significantly different from the best score, 0: significantly worse
SLOW = ("gaussian_mixture", "vmf_mixture", "knn_distance")  # scores of representations


@evaluation("posthoc", question="Which score of saved outputs finds mistakes, and which other classes?", version=2)
@dataclass(frozen=True)
class PostHoc(Evaluation):
    """Every registered score of saved outputs: how it ranks mistakes and other classes, and which scores are best.

    Splits: `test` for mistakes, `near` and `far` for means over sets and mixtures of them; `target` is one set.
    """

    fields: ClassVar[tuple[Field, ...]] = ("logits", "embeddings")
    dtype: ClassVar[Literal["float32", "float16"]] = "float16"
    near: tuple[str, ...] = ()
    far: tuple[str, ...] = ()
    fit_images: int | None = 10_000  # training images, at most; None: all
    sampled_ood: bool = False  # a random sample of each OOD set, as large as that of the test images

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        subject.require_logits()
        sets = {TEST: subject.test_images}
        if subject.trained_here:
            sets = {"train": replace(subject.train_images, limit=self.fit_images), "val": subject.val_images, **sets}
        else:
            with suppress(BadInput):  # without training images
                datasets.load(subject.data, subject.root)
                sets = {"train": ImageSet(subject.data, "train_val", limit=self.fit_images), **sets}
        ood_sets = other_classes(subject, self.near, self.far)
        if self.sampled_ood:
            ood_sets = {
                name: replace(images, limit=None, sample_size=subject.limit, sample_seed=subject.seed)
                for name, images in ood_sets.items()
            }
        return sets | {canonical(name): images for name, images in ood_sets.items()}

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        members = {
            name: [predictions.replace(scores={}) for predictions in outputs.members(name)]  # no scores of methods
            for name in outputs
        }
        networks = range(len(subject.group.networks))
        cards = [scores_of({name: predictions[n] for name, predictions in members.items()}) for n in networks]
        card = cards[0] if len(cards) == 1 else scores_of(average_scores(members, cards))
        for row in card.rows:
            if row["metric"] in OUTCOMES or (row["measure"] and row["metric"] in RANKING):
                columns: Columns = {**columns_of(row["split"], row["measure"]), "ood_share": row["ood_share"]}
                results.add(row["metric"], row["value"], row["n"], **columns)
        missing = set(score_names()) - {row["measure"] for row in results.rows}
        reasons = [entry for entry in cards[0].reasons if entry["metric"] is None and entry["measure"] in missing]
        for entry in reasons + [entry for entry in card.reasons if entry["metric"] in (*OUTCOMES, *RANKING)]:
            results.omit(entry["reason"], measure=entry["measure"], metric=entry["metric"])
        for split in dict.fromkeys([TEST, *(name.partition(":")[0] for name in outputs if ":" in name)]):
            add_best(card, split, results)


def score_names() -> list[str]:
    """The registered measures of one set of predictions."""
    entries = [entry for entry in measures.registry.parts() if entry.kind in ("plain", "fitted", "tuned")]
    return [entry.name for entry in entries if entry.equivalent_to is None and entry.name not in SLOW]


def scores_of(predictions: Mapping[str, Predictions]) -> Scorecard:
    """Every score of the predictions of one network, or of an average of several."""
    ood = {name: rows for name, rows in predictions.items() if ":" in name}
    names = [*score_names(), *measures.score_names(predictions[TEST])]
    train, val = predictions.get("train"), predictions.get("val")
    return scorecard(predictions[TEST], train, val, ood, calibration=None, only=names, classwise=False)


def average_scores(members: Mapping[str, Sequence[Predictions]], cards: Sequence[Scorecard]) -> dict[str, Predictions]:
    """The averaged predictions; scores that need embeddings are means over members."""
    score_sets = [card.raw for card in cards if card.raw is not None]
    embedded = [entry.name for entry in measures.registry.parts() if "embeddings" in entry.needs]
    names = [name for name in embedded if all(name in scores.uncertainty for scores in score_sets)]
    averages = {split: stack(list(predictions)) for split, predictions in members.items()}
    for split in averages.keys() - {"train", "val"}:
        scores = {
            name: [u.uncertainty[name] if split == TEST else u.ood[name][split] for u in score_sets] for name in names
        }
        averages[split] = averages[split].replace(
            scores={name: np.mean(values, axis=0) for name, values in scores.items()}
        )
    return averages


def columns_of(split: str, measure: str | None) -> Columns:
    """The columns of a row of the scorecard: the split, the OOD set, the score, and the rows that it was fitted on."""
    name = measure.removeprefix(measures.SCORE) if measure else None
    kind = measures.registry[name].kind if name and name in measures.registry else ""
    group, _, target = split.partition(":")
    fitted_on = {"fitted": "train", "tuned": "val"}.get(kind)
    return {"split": group, "target": target or None, "measure": name, "fitted_on": fitted_on}


def add_best(card: Scorecard, split: str, results: RowBuilder) -> None:
    """Add which scores do not differ significantly from the best: DeLong's paired test over rows, Holm's adjustment."""
    scores = card.raw
    if scores is None:
        return
    sets = [name for name in next(iter(scores.ood.values()), {}) if name.startswith(f"{split}:")]
    ood = {name: {score: u[name] for score, u in scores.ood.items() if name in u} for name in sets}
    rows = question_rows("unknown" if sets else "mistakes", scores.uncertainty, scores.wrong, ood)
    if rows.smallest < 2:
        results.omit("Fewer than two rows of a kind: scores cannot be compared.", split=split, metric=AMONG_BEST)
        return
    best = best_by_delong({name: rows.components(name) for name in rows.names}).equals
    for name in rows.names:
        results.add(AMONG_BEST, name in best, rows.n, **columns_of(split, name))
