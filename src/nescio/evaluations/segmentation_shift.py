"""Shift of segmentation: does uncertainty rank right and wrong pixels? (Postels et al. 2022, section 4.2.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, ClassVar, Unpack

from nescio.analysis.metric_specs import parse_metric
from nescio.datasets.corruptions import CORRUPTIONS, SEVERITIES, Corruption
from nescio.datasets.image_set import ImageSet
from nescio.datasets.scene_changes import shifts
from nescio.datasets.shifts import levels as folder_levels
from nescio.errors import BadInput
from nescio.evaluations.base import NATIVE, Evaluation, Field, Inapplicable, Outputs, Subject, evaluation
from nescio.evaluations.shift import CLEAN, RANKING
from nescio.rows import Columns, RowBuilder
from nescio.specs import DatasetName
from nescio.work.steps import Step

if TYPE_CHECKING:
    from nescio.analysis.pixels import PixelCounts
    from nescio.networks.groups import NetworkGroup

MUTUAL_INFORMATION = "mutual_information"
PREDICTED = ("miou", "accuracy")  # metrics of the predicted classes, which need no uncertainty
CORRUPTION = "corruption"  # shift_kind of a corruption: data has shifts of the same names
Level = tuple[str, float]  # name of the shift, and its severity


@evaluation("segmentation-shift", question="Does uncertainty rank right and wrong pixels of shifted scenes?")
@dataclass(frozen=True)
class SegmentationShift(Evaluation):
    """mIoU, accuracy, AUROC and rAULC of pixels, by level and pooled over clean images and all levels of a shift."""

    fields: ClassVar[tuple[Field, ...]] = ()
    corruptions: tuple[str, ...] = ()  # none: the shifts of the data, or all corruptions if it has none
    severities: tuple[int, ...] = ()  # none: all levels
    scores: tuple[str, ...] = (NATIVE, "entropy")

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        if any(trial.task != "segmentation" for trial in subject.group.trials) or not subject.group.trials:
            raise Inapplicable("The network predicts one class per image, not per pixel.")
        levels = self.levels(subject.test_images, subject.root)
        return {f"{shift}/{severity}": images for (shift, severity), images in levels.items()}

    def prediction_steps(self, subject: Subject, images: ImageSet) -> Sequence[Step]:
        from nescio.predict import count_step

        return (count_step(subject.group.networks, images, root=subject.root),)

    def levels(self, clean: ImageSet, root: str | None) -> dict[Level, ImageSet]:
        """The clean images, and every level of every shift."""
        continuous = continuous_shifts(clean, root)
        levels: dict[Level, ImageSet] = {(CLEAN, 0.0): clean}
        for name in self.corruptions or continuous or CORRUPTIONS:
            if name not in (available := dict.fromkeys([*continuous, *CORRUPTIONS])):
                raise BadInput(f"{clean.data} has no shift named {name!r}. There are: {', '.join(available)}.")
            if name not in continuous:
                changes = [Corruption(name, severity) for severity in self.severities or SEVERITIES]
                levels |= {(name, change.level): replace(clean, change=change) for change in changes}
                continue
            sets = list(continuous[name].items())
            if beyond := [number for number in self.severities if not 1 <= number <= len(sets)]:
                raise BadInput(f"Plan.severities has {beyond[0]}, but {clean.data} has {len(sets)} levels of {name}.")
            levels |= dict(sets[number - 1] for number in self.severities or range(1, len(sets) + 1))
        return levels

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        from nescio.predict import load_counts

        counts = {name: load_counts(step, outputs.context.store) for name, (step,) in outputs.steps.items()}
        pooled: dict[str, list[PixelCounts]] = {}
        kinds: dict[str, str | None] = {}
        for name, level_counts in counts.items():
            shift, _, severity = name.rpartition("/")
            kinds[shift] = CORRUPTION if isinstance(outputs.sets[name].change, Corruption) else None
            pooled.setdefault(shift, []).append(level_counts)
            columns: Columns = {"split": "test", "shift": shift, "severity": float(severity)}
            columns["shift_kind"] = kinds[shift]
            self.add_rows(level_counts, subject.group, results, **columns)
        for shift in (name for name in pooled if name != CLEAN):
            total = reduce(add, pooled[CLEAN] + pooled[shift])
            columns = {"split": "test", "shift": shift, "shift_kind": kinds[shift]}
            self.add_rows(total, subject.group, results, **columns)
            if total.n:
                results.add("bound", total.bound, total.n, **columns)

    def add_rows(
        self, counts: PixelCounts, group: NetworkGroup, results: RowBuilder, **columns: Unpack[Columns]
    ) -> None:
        """mIoU and accuracy, and AUROC and rAULC of right and wrong pixels by every score."""
        if not counts.n:
            for metric in (*PREDICTED, *RANKING):
                results.omit("No pixel has a label other than void.", metric=metric, **columns)
            return
        for metric in PREDICTED:
            results.add(metric, getattr(counts, metric), counts.n, **columns)
        for name in self.scores:
            score = str(native_score(group)) if name == NATIVE else name
            if score in counts.infinite:
                results.omit("Some pixels have scores that are not finite.", measure=name, **columns)
                continue
            if score not in counts.scores:
                results.omit(f"{results.facts['method']} has no such score of its pixels.", measure=name)
                continue
            ranking, ranked = counts.scores[score].ranking(), Columns(**{**columns, "measure": name})
            for metric in RANKING:
                results.attempt(metric, partial(parse_metric(metric), ranking), counts.n, **ranked)


def continuous_shifts(clean: ImageSet, root: str | None) -> dict[str, dict[Level, ImageSet]]:
    """The shifts of the data itself, levels in order: those of the street scenes, or of folders."""
    kind = DatasetName.parse(clean.data).kind
    if kind == "scenes":
        return {
            name: {(change.condition, change.level): replace(clean, change=change) for change in changes}
            for name, changes in shifts().items()
        }
    sets: dict[str, dict[Level, ImageSet]] = {}
    if kind == "maps":
        for name, level, images in folder_levels(clean.data, root):
            sets.setdefault(name, {})[name, level] = replace(
                images, split=clean.split, sample_size=clean.sample_size, sample_seed=clean.sample_seed
            )
    return sets


def native_score(group: NetworkGroup) -> str | None:
    """The native score: the mutual information of an average, the first score of a single network's method."""
    from nescio.methods import registry

    if len(group.networks) > 1:
        return MUTUAL_INFORMATION
    scores = registry[group.trial.method].scores if group.trial else ()
    return next(iter(scores), None)
