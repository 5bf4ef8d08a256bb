"""Scorecard of one model: every measure × every metric that applies, and the reasons for missing values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from nescio import measures, metrics
from nescio.analysis.calibration import SCALERS, Temperature, Vector, calibration_warning
from nescio.analysis.curves import ScoreSet, ValidationScores
from nescio.analysis.measure_scores import MeasureScores, Score, is_large
from nescio.analysis.metric_kinds import KINDS, EvaluatedRows, MetricKind, NotApplicable, PreparedMetrics
from nescio.analysis.metric_specs import MetricSpec
from nescio.analysis.results import RowSource, Scorecard
from nescio.arrays.parallel import use_one_thread
from nescio.arrays.types import Array
from nescio.errors import BadInput, FaultyPlugin, Undefined, did_you_mean
from nescio.measures import Measure, summary
from nescio.predictions import Predictions
from nescio.progress import track
from nescio.registry import source_file
from nescio.rows import COLUMNS, Row
from nescio.specs import group_of


@dataclass
class ScorecardCell:
    """The columns that a group of scorecard rows shares."""

    columns: Row
    split: str
    measure: str | None = None

    @property
    def identity(self) -> Row:
        """The columns that identify the rows, except the metric."""
        columns = {name: self.columns[name] for name in ("calibrated", "subgroup")}
        return columns | {"split": self.split, "measure": self.measure}


@dataclass
class ScorecardBuilder:
    """Fills one scorecard.

    columns    columns that are the same in every row
    val        validation rows, which set the rejection threshold; calibrated ones for calibrated rows
    val_ood    OOD validation sets
    classwise  class-wise metrics: True, False, or None for predictions that are not large
    """

    card: Scorecard
    columns: Row
    split: str
    scores: MeasureScores
    val: Predictions | None
    val_ood: Mapping[str, Predictions] = field(default_factory=dict)
    views: Sequence[Predictions] = ()
    siblings: Sequence[Predictions] = ()
    classwise: bool | None = None
    ood_share: float = metrics.DEFAULT_OOD_SHARE

    # ---- groups of rows

    def add_raw(self, in_distribution: Predictions, ood: Mapping[str, Predictions], everything: Predictions) -> None:
        """Add all rows of the raw predictions; `everything` also contains rows of other classes."""
        cell = ScorecardCell(self.columns, self.split)
        rows = self._add_predictions(in_distribution, cell)
        self._add_kinds([kind for kind in _model_kinds() if kind.whole_file], EvaluatedRows(everything), cell)
        self._add_gallery(everything, cell)
        if not ood:
            self.card.add_reason(None, "detection", self.split, "Detection needs out-of-distribution rows: give ood.")
        self.card.raw = self._add_measures(rows, ood, cell, everything)

    def add_calibrated(
        self, scale: Temperature | Vector, in_distribution: Predictions, ood: Mapping[str, Predictions]
    ) -> None:
        """Add rows of calibrated predictions."""
        assert self.val is not None
        cell = ScorecardCell(self.columns | {"calibrated": True}, self.split)
        if isinstance(scale, Temperature):
            row = {"measure": None, "metric": "temperature", "value": scale.temperature, "n": len(self.val)}
            self.card.rows.append(cell.columns | row | {"split": "val"})
        calibrated = replace(self, val=scale(self.val), val_ood={})  # scores are chosen among raw ones
        rows = calibrated._add_predictions(scale(in_distribution), cell)
        scaled = {name: scale(p) for name, p in ood.items() if p.logits is not None}
        self.card.calibrated = calibrated._add_measures(rows, scaled, cell, None)

    def add_groups(self, in_distribution: Predictions, group: str) -> None:
        """Add rows for every value of a group."""
        if group not in in_distribution.groups:
            names = ", ".join(in_distribution.groups) or "none"
            hint = did_you_mean(group, in_distribution.groups)
            raise BadInput(f"There is no group named {group!r}.{hint} There are: {names}.")
        kinds = [kind for kind in KINDS.values() if kind.by_group and kind.reads == "uncertainty"]
        for value in np.unique(in_distribution.groups[group]):
            cell = ScorecardCell(self.columns | {"subgroup": f"{group}={value}"}, self.split)
            rows = self._add_predictions(
                in_distribution.take(in_distribution.groups[group] == value), cell, grouped=True
            )
            for measure, score in self.scores.applicable(rows.predictions, raw=True):
                u = self._score(score, rows.predictions, measure, self.split)
                if u is not None:
                    self._add_kinds(kinds, replace(rows, u_all=u), replace(cell, measure=measure))

    # ---- kinds of rows

    def _add_predictions(
        self, in_distribution: Predictions, cell: ScorecardCell, grouped: bool = False
    ) -> EvaluatedRows:
        """Add the metrics of predictions alone; return the evaluated rows."""
        kinds = [kind for kind in _model_kinds() if not kind.whole_file and (kind.by_group or not grouped)]
        self._add_kinds(kinds, EvaluatedRows(in_distribution), cell)
        if not in_distribution.has_outcomes:
            return EvaluatedRows(in_distribution, ood_share=self.ood_share)
        outcomes = summary(in_distribution).outcomes()
        if outcomes.floored and not cell.columns["calibrated"]:
            self.card.notes.append(floored_note(outcomes.floored, len(in_distribution)))
            self.card.add_reason(None, "nll", self.split, self.card.notes[-1])
        return EvaluatedRows(in_distribution, wrong=np.asarray(~outcomes.correct), ood_share=self.ood_share)

    def _add_gallery(self, everything: Predictions, cell: ScorecardCell) -> None:
        """Add R-AUROC of the scores that compare each row with all others."""
        kinds = [kind for kind in KINDS.values() if kind.whole_file and kind.reads == "uncertainty"]
        for measure, u in self._gallery_scores(everything).items():
            self._add_kinds(kinds, EvaluatedRows(everything, u_all=u), replace(cell, measure=measure))

    def _gallery_scores(self, everything: Predictions) -> Mapping[str, Array]:
        gallery = [measure for measure in measures.registry.parts() if measure.kind == "gallery"]
        try:
            if not (self.views or self.siblings or everything.views):
                raise Undefined("This score compares views of an image, or sibling networks: give views or siblings.")
            scores = measures.gallery_scores(everything, self.views, self.siblings)
        except (Undefined, BadInput) as reason:
            for measure in gallery:
                self.card.add_failure(measure.name, self.split, reason)
            return {}
        for name, reason_text in scores.reasons.items():
            self.card.add_reason(name, None, self.split, reason_text)
        others = [measure for measure in gallery if measure.name not in {*scores.u, *scores.reasons}]
        u = {m.name: self._score(partial(self._gallery_score, m), everything, m.name, self.split) for m in others}
        return {**scores.u, **{name: values for name, values in u.items() if values is not None}}

    def _gallery_score(self, measure: Measure, everything: Predictions) -> Array:
        return measure.checked(lambda rows: measure.function(rows, self.views, self.siblings), everything)

    def _add_measures(
        self, rows: EvaluatedRows, ood: Mapping[str, Predictions], cell: ScorecardCell, everything: Predictions | None
    ) -> ScoreSet:
        """Add the metrics of every measure; return the scores for curves and choices."""
        in_distribution, raw = rows.predictions, everything is not None
        scores = ScoreSet(wrong=rows.wrong, ood_share=self.ood_share)
        if rows.wrong is not None and not (in_distribution.logits is None and in_distribution.confidence is None):
            scores.outcomes = summary(in_distribution).outcomes()
        labelled = slice(None) if self.val is None or not self.val.has_outcomes else summary(self.val).labelled
        scores.val = ValidationScores(
            wrong=None if self.val is None or not self.val.has_outcomes else summary(self.val).outcomes().wrong
        )
        model = f" of {self.card.name}" if self.card.name else ""
        applicable = list(self.scores.applicable(in_distribution, raw))
        for measure, score in track(applicable, f"measures{model}", name=itemgetter(0)):
            u = self._score(score, in_distribution, measure, self.split)
            if u is None:
                continue
            scores.uncertainty[measure] = u
            u_val = self._validation_score(measure, score)
            if isinstance(u_val, Undefined):
                threshold: float | Undefined = u_val
            else:
                scores.val.uncertainty[measure] = u_val[labelled]
                threshold = metrics.threshold(u_val)
            whole_file = None
            if everything is not None:
                u_all = u if everything is in_distribution else self._score(score, everything, measure, self.split)
                whole_file = None if u_all is None else EvaluatedRows(everything, u_all=u_all)
            u_ood = self._ood_scores(score, measure, ood)
            if u_ood:
                scores.ood[measure] = u_ood
            measured = replace(rows, u_all=u, threshold=threshold)
            self._add_measure(measured, whole_file, u_ood, replace(cell, measure=measure))
            if u_val_ood := self._ood_scores(score, measure, self.val_ood):
                scores.val.ood[measure] = u_val_ood
        return scores

    def _add_measure(
        self,
        rows: EvaluatedRows,
        whole_file: EvaluatedRows | None,
        u_ood: Mapping[str, Array],
        cell: ScorecardCell,
    ) -> None:
        """Add the metrics of one measure in the order of the table; those with OOD rows once per OOD set."""
        kinds = [kind for kind in KINDS.values() if kind.reads != "predictions"]
        for reads, group in groupby(kinds, key=lambda kind: kind.reads):
            of_group = list(group)
            if reads == "ood":
                for name, u in u_ood.items():
                    self._add_kinds(of_group, replace(rows, u_ood=u), replace(cell, split=name))
                continue
            for kind in of_group:
                kind_rows = whole_file if kind.whole_file else rows
                if kind_rows is not None:
                    self._add_kinds([kind], kind_rows, cell)

    def _validation_score(self, measure: str, score: Score) -> Array | Undefined:
        if self.val is None:
            return Undefined("The rejection threshold is set on validation rows: give val.")
        u = self._score(partial(self.scores.of_validation, measure, score), self.val, measure, "val")
        return NotApplicable("The validation rows have no scores.") if u is None else u

    def _ood_scores(self, score: Score, measure: str, sets: Mapping[str, Predictions]) -> dict[str, Array]:
        u = {name: self._score(score, predictions, measure, name) for name, predictions in sets.items()}
        return {name: values for name, values in u.items() if values is not None}

    def _score(self, score: Score, predictions: Predictions, measure: str, split: str) -> Array | None:
        try:
            return score(predictions)
        except (Undefined, BadInput) as reason:  # such as a zero-norm embedding: other measures are unaffected
            self.card.add_failure(measure, split, reason)
        return None

    # ---- rows

    def _add_kinds(self, kinds: Sequence[MetricKind], rows: EvaluatedRows, cell: ScorecardCell) -> None:
        """Add the values of all metrics of these kinds, or the reason why there are none."""
        for kind in kinds:
            specs = [spec for spec in kind.metrics() if self._includes(spec, rows.predictions)]
            if not specs:
                continue
            try:
                prepared = list(kind.prepare(rows, specs))
            except NotApplicable:
                continue
            except Undefined as reason:
                metric = specs[0].label if len(specs) == 1 else kind.name
                self.card.add_reason(None, metric, self.split, str(reason))
                continue
            sources = {spec.label: source for source in prepared for spec in source.metrics}
            for spec in specs:
                self._add_value(sources[spec.label], spec, cell)
            for source in prepared:
                if source.note:
                    self.card.add_note(source.note)
                labels = [spec.label for spec in source.metrics]
                self.card.sources.append(RowSource(cell.identity, labels, source.drawn_sizes, source.resampler))

    def _includes(self, spec: MetricSpec, predictions: Predictions) -> bool:
        if not spec.metric.classwise or self.classwise or not predictions.has_outcomes:
            return True
        if self.classwise is None and is_large(predictions):
            reason = "Class-wise calibration is skipped for large predictions: ask for it with classwise=True."
            self.card.add_reason(None, spec.label, self.split, reason)
            return False
        return self.classwise is None

    def _add_value(self, source: PreparedMetrics, spec: MetricSpec, cell: ScorecardCell) -> None:
        try:
            value = float(source.value(spec))
        except (Undefined, FaultyPlugin) as reason:
            self.card.add_reason(cell.measure, spec.label, cell.split, str(reason))
            if isinstance(reason, FaultyPlugin):
                self.card.add_note(str(reason))
            return
        if not np.isfinite(value):
            metric = f"The metric {spec.label} ({source_file(spec.metric.function)})"
            self.card.add_reason(cell.measure, spec.label, cell.split, f"{metric} gave {value}, which is not a number.")
            self.card.add_note(f"{metric} gave a value that is not a finite number.")
            return
        row = {"measure": cell.measure, "metric": spec.label, "value": value, "n": source.n, "split": cell.split}
        self.card.rows.append(cell.columns | source.columns | row)


def _model_kinds() -> list[MetricKind]:
    return [kind for kind in KINDS.values() if kind.reads == "predictions"]


def floored_note(floored: int, n: int) -> str:
    """The note about labels of probability 0."""
    return (
        f"{floored} of {n} rows give their true class probability 0: NLL uses float64's smallest normal number there."
    )


OOD_ROWS = "ood_rows"  # the split of rows with in_distribution = False
FEW_NUMBERS = 1_000_000  # size of embeddings up to which one thread is the fastest
Source = Predictions | Mapping[str, Any] | str  # predictions, their arrays by name, or the path of a file


def scorecard(
    predictions: Predictions,
    train: Predictions | None = None,
    val: Predictions | None = None,
    ood: Mapping[str, Predictions] | Predictions | None = None,
    *,
    name: str = "",
    split: str = "test",
    by: Sequence[str] = (),
    calibration: str | None = "temperature",
    only: Sequence[str] | None = None,
    classwise: bool | None = None,
    slow: bool = False,
    facts: Mapping[str, object] | None = None,
    views: Sequence[Predictions] = (),
    siblings: Sequence[Predictions] = (),
    val_ood: Mapping[str, Predictions] | None = None,
    ood_share: float = metrics.DEFAULT_OOD_SHARE,
) -> Scorecard:
    """Compute every measure × every metric that applies to one model's predictions.

    train        reference rows of the density and neighbour measures; `val` if missing
    val          validation rows: fit the calibration, which adds calibrated rows, and set the rejection threshold
    ood          out-of-distribution predictions by name; rows that are not in-distribution join them as "ood_rows"
    by           groups whose values get their own rows, such as ("severity",)
    calibration  "temperature", "vector", or None for no calibrated rows
    only         names of the measures; None: all
    classwise    class-wise ECE: True, False, or None for at most twenty million probabilities
    slow         compute slow measures, such as pnorm and gen, for more than twenty million probabilities too; they
                 are also computed if they are in `only` or if `train` is given
    facts        columns with the same value in every row, such as {"method": "erm", "data_seed": 0}
    views        predictions of changed images, such as crops, by the same network: for gallery scores
    siblings     predictions of the same images by sibling networks: for gallery scores
    val_ood      OOD validation rows by name: used by the choice of a score, not by any number here
    ood_share    share of OOD rows in the mixtures behind AURC and AUGRC of mixtures

    OOD sets named GROUP:NAME also give means over their group, in rows of the split GROUP.
    """
    if calibration is not None and calibration not in SCALERS:
        raise BadInput(f"There is no calibration named {calibration!r}. There are: {', '.join(SCALERS)}.")
    predictions = _load(predictions)
    train, val = (None if rows is None else _load(rows) for rows in (train, val))
    ood_sets, in_distribution = _ood_sets(ood, split), predictions
    if predictions.in_distribution is not None and not predictions.in_distribution.all():
        ood_sets[OOD_ROWS] = predictions.take(~predictions.in_distribution)
        if not predictions.in_distribution.any():
            raise BadInput("Every row is out-of-distribution; give these predictions as ood.")
        in_distribution = predictions.take(predictions.in_distribution)
    val_ood_sets = {label: _load(rows, ood=True) for label, rows in (val_ood or {}).items()}
    _check_classes(in_distribution, {"val": val, **val_ood_sets, **ood_sets})
    card = Scorecard(name, notes=_notes({"": predictions, "train": train, "val": val, **ood_sets}))
    columns = dict.fromkeys(COLUMNS) | {"calibrated": False, "members": member_count(in_distribution), **(facts or {})}
    names = None if only is None else [measures.find_measure(measure, in_distribution).name for measure in only]

    def omit(measure: str, reason: ValueError) -> None:
        card.add_failure(measure, split, reason)

    scores = MeasureScores(train, val, names, slow, omit)
    builder = ScorecardBuilder(card, columns, split, scores, val, val_ood_sets, views, siblings, classwise, ood_share)
    with _few_threads(train, val):
        builder.add_raw(in_distribution, ood_sets, predictions)
    if calibration is not None:
        try:
            fit_rows = _calibration_rows(in_distribution, val)
            scale = SCALERS[calibration](fit_rows)
        except (Undefined, BadInput) as reason:  # the scorecard keeps its other rows
            card.add_reason(None, "calibrated", split, str(reason))
        else:
            card.calibration_warning = calibration_warning(scale, fit_rows)
            card.notes += [card.calibration_warning] if card.calibration_warning else []
            builder.add_calibrated(scale, in_distribution, ood_sets)
    for group in by:
        builder.add_groups(in_distribution, group)
    card.rows += _group_means(card.rows, list(ood_sets))
    return card


def member_count(predictions: Predictions) -> int | None:
    """Number of networks behind the predictions; None without logits."""
    if predictions.logits is None:
        return None
    return 1 if predictions.members is None else len(np.unique(predictions.members))


def _few_threads(*references: Predictions | None) -> AbstractContextManager[None]:
    """Use one thread for small embeddings, for which several threads are slower."""
    embeddings = [rows.embeddings for rows in references if rows is not None and rows.embeddings is not None]
    return use_one_thread() if 0 < sum(array.size for array in embeddings) < FEW_NUMBERS else nullcontext()


def _check_classes(in_distribution: Predictions, others: Mapping[str, Predictions | None]) -> None:
    for label, other in others.items():
        if other is None or other.logits is None or in_distribution.logits is None:
            continue
        if other.classes != in_distribution.classes:
            raise BadInput(f"{label} has {other.classes} classes, the model has {in_distribution.classes}.")


def _notes(by_role: Mapping[str, Predictions | None]) -> list[str]:
    """Notes on reading the predictions; notes of roles other than test begin with the role."""
    notes = [(role, note) for role, rows in by_role.items() if rows is not None for note in rows.notes]
    of_test = {note for role, note in notes if not role}
    return [f"{role}: {note}" if role else note for role, note in notes if not role or note not in of_test]


def _group_means(rows: Sequence[Row], ood_sets: Sequence[str]) -> list[Row]:
    """Unweighted means over the OOD sets of each group, whose names are GROUP:NAME."""
    groups: dict[str, list[str]] = {}
    for name in ood_sets:
        if group := group_of(name):
            groups.setdefault(group, []).append(name)
    means = []
    for group, names in groups.items():
        cells: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            if row["split"] in names and row["subgroup"] is None:
                cells.setdefault((row["calibrated"], row["measure"], row["metric"]), []).append(row)
        means += [
            of_sets[0]
            | {"split": group, "averaged": ", ".join(names), "low": None, "high": None}
            | {"value": float(np.mean([row["value"] for row in of_sets])), "n": sum(row["n"] for row in of_sets)}
            for of_sets in cells.values()
            if len(of_sets) == len(names)
        ]
    return means


def _ood_sets(ood: Mapping[str, Source] | Source | None, split: str) -> dict[str, Predictions]:
    """OOD predictions by name; a name must differ from those of other splits, because it identifies rows."""
    by_name = {"ood": ood} if ood is not None and not isinstance(ood, Mapping) else dict(ood or {})
    groups = {group_of(label) for label in by_name}
    for label in (*by_name, *groups):
        if label in (split, "val", OOD_ROWS) or (label in by_name and label in groups):
            raise BadInput(f"Out-of-distribution rows cannot be named {label!r}, a name in use: rename them.")
    return {label: _load(rows, ood=True) for label, rows in by_name.items()}


def _load(source: Source, ood: bool = False) -> Predictions:
    return source if isinstance(source, Predictions) else Predictions.load(source, ood=ood)


def _calibration_rows(in_distribution: Predictions, val: Predictions | None) -> Predictions:
    """The rows that a calibration is fitted on."""
    if val is None:
        raise Undefined("Calibration is fitted on validation rows: give val.")
    if in_distribution.logits is None:
        raise Undefined("There are no logits to calibrate.")
    if val.logits is None or val.labels is None:
        raise Undefined("The validation rows need logits and labels to fit a calibration.")
    return val
