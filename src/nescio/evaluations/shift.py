"""Distribution shift: does uncertainty rank right and wrong predictions when images are corrupted or rotated?"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import ClassVar, Literal

import numpy as np

from nescio import measures
from nescio.analysis.metric_specs import parse_metric
from nescio.arrays.types import Array
from nescio.datasets.changes import Change, Rotation
from nescio.datasets.corruptions import CORRUPTIONS, SEVERITIES, Corruption
from nescio.datasets.image_set import ImageSet
from nescio.datasets.shifts import FURTHER, published_corruptions
from nescio.evaluations.base import Evaluation, Headline, Outputs, Subject, average_predictions, evaluation
from nescio.evaluations.scoring import compute_scores, rank_rows
from nescio.rows import Columns, RowBuilder

OUTCOMES, RANKING = ("accuracy", "nll", "ece"), ("auroc", "raulc")
CLEAN, ALL = "clean", "all"


class Shifted(Evaluation):
    """Test images, clean and changed. Rankings pool the clean set and all severities of one change."""

    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline("raulc", "higher", title="rAULC under shift", columns={"shift": ALL}),
    )
    dtype: ClassVar[Literal["float32", "float16"]] = "float16"  # there are many image sets
    scores: tuple[str, ...]

    @abstractmethod
    def changes(self, data: str, root: str | None) -> Iterable[Change]:
        """The changes of the images of a dataset; BadInput for unknown ones."""

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        subject.require_logits()
        clean = subject.test_images
        changes = self.changes(subject.data, subject.root)
        return {f"{CLEAN}/0": clean} | {
            f"{change.condition}/{change.level}": replace(clean, change=change) for change in changes
        }

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        wrong: dict[str, list[Array]] = {}
        scores: dict[str, list[dict[str, Array]]] = {}
        for name in outputs:
            shift, _, severity = name.rpartition("/")
            predictions = average_predictions(outputs.members(name))  # not kept: there are many sets
            outcomes = measures.summary(predictions).outcomes()
            level: Columns = {"split": "test", "shift": shift, "severity": float(severity)}
            for metric in OUTCOMES:
                results.attempt(metric, partial(parse_metric(metric), outcomes), outcomes.n, **level)
            computed = compute_scores(predictions, self.scores, results)
            rank_rows(computed, outcomes.wrong, RANKING, results, **level)
            wrong.setdefault(shift, []).append(outcomes.wrong)
            scores.setdefault(shift, []).append(computed)
        for shift in (name for name in wrong if name != CLEAN):
            parts = scores[CLEAN] + scores[shift]
            pooled = {name: np.concatenate([scored[name] for scored in parts]) for name in parts[0]}
            rank_rows(pooled, np.concatenate(wrong[CLEAN] + wrong[shift]), RANKING, results, split="test", shift=shift)
        for metric in RANKING:
            for score in scores[CLEAN][0]:
                rows = [
                    row
                    for row in results.rows
                    if (row["metric"], row["measure"], row["severity"]) == (metric, score, None)
                    and row["shift"] not in (CLEAN, ALL)
                ]
                if rows:
                    mean = fmean(row["value"] for row in rows)
                    results.add(metric, mean, rows[0]["n"], split="test", measure=score, shift=ALL)


@evaluation("shift", question="Does uncertainty rank right and wrong predictions of corrupted images?")
@dataclass(frozen=True)
class CorruptionShift(Shifted):
    """Fifteen corruptions at five severities (Hendrycks and Dietterich 2019; Postels et al. 2022)."""

    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    severities: tuple[int, ...] = tuple(SEVERITIES)
    scores: tuple[str, ...] = ("native", "entropy")
    files: str | None = None  # folder of published files, such as CIFAR-10-C; None: corruptions made here

    def changes(self, data: str, root: str | None) -> Iterable[Change]:
        names = [name for name in self.corruptions if self.files is None or name not in FURTHER]
        made_here = [Corruption(name, severity) for name in names for severity in self.severities]
        if self.files is None:
            return made_here
        return published_corruptions(self.files, data, self.corruptions, self.severities, root)


@evaluation("rotation", question="Does uncertainty rank right and wrong predictions of rotated images?")
@dataclass(frozen=True)
class RotationShift(Shifted):
    """Test images at several angles (Postels et al. 2022, section 4.2)."""

    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline("raulc", "higher", title="rAULC under rotation", columns={"shift": ALL}),
    )
    degrees: tuple[float, ...] = (30.0, 60.0, 90.0, 120.0, 150.0, 180.0)
    scores: tuple[str, ...] = ("native", "entropy")

    def changes(self, data: str, root: str | None) -> Iterable[Change]:
        return [Rotation(float(angle)) for angle in self.degrees]
