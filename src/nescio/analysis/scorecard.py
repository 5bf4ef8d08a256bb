"""Everything that can be said of one dump, and the reason beside whatever cannot be said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

import numpy as np

from nescio import measures, metrics
from nescio.analysis import calibration
from nescio.analysis.bootstrap import (
    ArraysResampler,
    MetricSpec,
    MixtureResampler,
    ProbsResampler,
    RankingResampler,
    Resampler,
    ShareResampler,
    SummaryResampler,
    mixture_metric,
    parse_metric,
    scorecard_metrics,
)
from nescio.analysis.notebook import Presented
from nescio.arrays.parallel import use_one_thread
from nescio.arrays.types import Array
from nescio.errors import BadInput, FaultyPlugin, Undefined, did_you_mean
from nescio.measures import Measure, mean_probs, prob_blocks, summary, top_k_outcomes
from nescio.predictions import Predictions
from nescio.progress import track
from nescio.rows import COLUMNS, Row
from nescio.specs import group_of

LARGE = 20_000_000  # above this many probabilities what is heavy costs more than all the rest
OOD_ROWS = "ood_rows"  # the split of rows with in_distribution = False
MOST_PROBS = 200_000_000  # above this many probabilities in all resamples their metrics have no interval
FEW_ROWS = 50  # validation rows for each parameter of a calibration: with fewer it is in doubt
REPR = ("accuracy", "nll", "ece", "temperature")  # what the text of a scorecard shows
SCALERS: dict[str, Callable[[Predictions], Callable[[Predictions], Predictions]]] = {
    "temperature": calibration.temperature,
    "vector": calibration.vector,
}


FEW_NUMBERS = 1_000_000  # in embeddings, up to which one thread is the fastest
FOLDS = 5  # of rows that are left out together, where a measure has no closed form for one


@dataclass(frozen=True)
class RowSource:
    """Cells of a scorecard, and what gives them again on a resample of the rows behind them.

    cell   the columns that they share: calibrated, group, split, measure
    sizes  how many rows; of in-distribution and out-of-distribution ones, how many of each
    part   the number of resamples → what a resample gives
    """

    cell: Row
    sizes: tuple[int, ...]
    part: Callable[[int], Resampler]

    @property
    def where(self) -> Row:
        """The columns of a reason."""
        return {"measure": self.cell["measure"], "split": self.cell["split"]}


@dataclass(repr=False)
class Scorecard(Presented):
    """Rows (the design's columns) and reasons (measure, metric, split, reason) of one dump."""

    name: str
    rows: list[Row] = field(default_factory=list)
    reasons: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what a reader should know beside the numbers
    drawn: dict[str, Any] = field(default_factory=dict)  # what the figures are made from
    sources: list[RowSource] = field(default_factory=list)  # what the intervals are made from
    doubt: str | None = None  # why calibrated numbers mean little, where they do
    choices: list[Any] = field(default_factory=list)  # `choose_scores`: which score to use

    def value(
        self, metric: str, measure: str | None = None, split: str | None = None, calibrated: bool = False
    ) -> float:
        """The one number in that cell, by any name of metric and measure; `Undefined` with the reason if absent."""
        if metric not in {row["metric"] for row in (*self.rows, *self.reasons)}:
            metric = parse_metric(metric).label
        if measure is not None and measure not in {row["measure"] for row in self.rows}:
            measure = measures.registry.canonical(measure)
        labels = {str(row["metric"]): None for row in self.rows if (row["measure"], row["subgroup"]) == (measure, None)}
        if metric not in labels and len(at := [label for label in labels if label.startswith(f"{metric}@")]) == 1:
            metric = at[0]
        for row in self.rows:
            if (row["metric"], row["measure"], row["calibrated"], row["subgroup"]) == (
                metric,
                measure,
                calibrated,
                None,
            ) and (split is None or row["split"] == split):
                return float(row["value"])
        for row in self.reasons:
            if row["metric"] in (metric, None) and row["measure"] in (measure, None):
                raise Undefined(row["reason"])
        there = f"{did_you_mean(metric, labels)} There are: {', '.join(labels)}." if labels else ""
        raise Undefined(f"There is no {metric} of {measure or 'the predictions'} on this scorecard.{there}")

    def __repr__(self) -> str:
        shown = [row for row in self.rows if row["subgroup"] is None and row["metric"] in REPR]
        kept = {(row["metric"], row["calibrated"]): row for row in reversed(shown)}
        cells = [
            f"{row['metric']}{' calibrated' if row['calibrated'] else ''} {row['value']:.4f}" for row in kept.values()
        ]
        lines = [f"Scorecard of {self.name or 'a model'}: {len(self.rows)} rows, {len(self.reasons)} reasons"]
        return "\n  ".join([*lines, ", ".join(reversed(cells)) or "nothing could be said", *self.notes[:3]])

    @cached_property
    def curves(self) -> dict[str, Any]:
        """Points of the risk–coverage curves, reliability diagrams and histograms, for the page."""
        from nescio.analysis.curves import curves_of

        return curves_of(self.drawn)


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
    heavy: bool = False,
    facts: Mapping[str, Any] | None = None,
    views: Sequence[Predictions] = (),
    siblings: Sequence[Predictions] = (),
    val_ood: Mapping[str, Predictions] | None = None,
    ood_share: float = metrics.DEFAULT_OOD_SHARE,
) -> Scorecard:
    """Every measure × every metric that applies to one dump.

    train        reference of the density and neighbour measures (`val` stands in when it is missing)
    val          fits the calibration, adding calibrated rows beside the raw ones, and sets the rejection threshold
    ood          out-of-distribution predictions by name; rows that are not in-distribution join them as "ood_rows"
    by           groups whose values get rows of their own, e.g. ("severity",)
    calibration  "temperature", "vector", or None for no calibrated rows
    only         names of the measures to take; None: all that there are
    classwise    class-wise ECE: True, False, or None for up to twenty million probabilities
    heavy        whether pnorm, gen and the like are also taken of more than twenty million probabilities; they
                 are where they are named, or `train` is given
    facts        columns that are the same in every row, e.g. {"method": "erm", "data_seed": 0}
    views        dumps of changed images, such as crops, by the same network, for scores that know the gallery …
    siblings     … and of the same images by sibling networks
    val_ood      out-of-distribution validation rows by name: a choice among scores may see them, no number here does
    ood_share    of out-of-distribution rows, in the mixtures that AURC and AUGRC under them are of

    Out-of-distribution sets named GROUP:NAME also get the means over their group, in rows of the split GROUP.
    """
    if calibration is not None and calibration not in SCALERS:
        raise BadInput(f"There is no calibration named {calibration!r}. There are: {', '.join(SCALERS)}.")
    predictions = _dump(predictions)
    train, val = (None if dump is None else _dump(dump) for dump in (train, val))
    outside = _outside(ood, split)
    known = predictions
    if predictions.in_distribution is not None and not predictions.in_distribution.all():
        outside[OOD_ROWS] = predictions.take(~predictions.in_distribution)
        if not predictions.in_distribution.any():
            raise BadInput(
                "Every row is of a class that was not in training; give this file as out-of-distribution rows."
            )
        known = predictions.take(predictions.in_distribution)
    val_outside = {label: _dump(dump, outside=True) for label, dump in (val_ood or {}).items()}
    for label, other in {"val": val, **val_outside, **outside}.items():
        if (
            other is not None
            and other.logits is not None
            and known.logits is not None
            and other.classes != known.classes
        ):
            raise BadInput(f"{label} has {other.classes} classes, the model has {known.classes}.")
    card = Scorecard(name, notes=_notes({"": predictions, "train": train, "val": val, **outside}))
    base = dict.fromkeys(COLUMNS) | {"calibrated": False, "members": member_count(known), **(facts or {})}
    maker = _Maker(known, card, base, split, train, val, classwise, only)
    maker.views, maker.siblings, maker.heavy = views, siblings, heavy
    maker.val_outside, maker.share = val_outside, ood_share
    with _few_threads(train, val):
        maker.whole(known, outside, everything=predictions)
    if calibration is not None:
        try:
            scale = SCALERS[calibration](_fit_on(known, val))
        except (Undefined, BadInput) as reason:  # a dump that cannot calibrate still says all the rest
            maker.because(None, "calibrated", split, str(reason))
        else:
            card.doubt = calibration_warning(scale, val, known.classes)
            card.notes += [card.doubt] if card.doubt else []
            maker.calibrated(scale)
            maker.whole(scale(known), {label: scale(p) for label, p in outside.items() if p.logits is not None})
    for group in by:
        maker.by_group(known, group)
    card.rows += _group_means(card.rows, outside)
    return card


def _few_threads(*dumps: Predictions | None) -> AbstractContextManager[None]:
    """One thread, where several would wait for each other longer than they work."""
    embeddings = [dump.embeddings for dump in dumps if dump is not None and dump.embeddings is not None]
    return use_one_thread() if 0 < sum(own.size for own in embeddings) < FEW_NUMBERS else nullcontext()


def _notes(dumps: Mapping[str, Predictions | None]) -> list[str]:
    """How the dumps were read, by the part that they play."""
    notes = [(role, note) for role, dump in dumps.items() if dump is not None for note in dump.notes]
    own = {note for role, note in notes if not role}
    return [f"{role}: {note}" if role else note for role, note in notes if not role or note not in own]


def _group_means(rows: Sequence[Row], outside: Mapping[str, Predictions]) -> list[Row]:
    """Means over the out-of-distribution sets of each group, which are called GROUP:NAME; all sets count alike."""
    groups: dict[str, list[str]] = {}
    for name in outside:
        if group := group_of(name):
            groups.setdefault(group, []).append(name)
    means = []
    for group, names in groups.items():
        cells: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            if row["split"] in names and row["subgroup"] is None:
                cells.setdefault((row["calibrated"], row["measure"], row["metric"]), []).append(row)
        means += [
            own[0]
            | {"split": group, "averaged": ", ".join(names), "low": None, "high": None}
            | {"value": float(np.mean([row["value"] for row in own])), "n": sum(row["n"] for row in own)}
            for own in cells.values()
            if len(own) == len(names)
        ]
    return means


def _outside(ood: Any, split: str) -> dict[str, Predictions]:
    """Out-of-distribution dumps by name, which must not be that of another split: it identifies their rows."""
    named = {"ood": ood} if ood is not None and not isinstance(ood, Mapping) else dict(ood or {})
    groups = {group_of(label) for label in named}
    for label in (*named, *groups):
        if label in (split, "val", OOD_ROWS) or (label in named and label in groups):
            raise BadInput(
                f"Out-of-distribution rows cannot be named {label!r}, which names others; give them another name."
            )
    return {label: _dump(dump, outside=True) for label, dump in named.items()}


def _dump(source: Any, outside: bool = False) -> Predictions:
    """Predictions as they are, or from a path or a dict of arrays."""
    return source if isinstance(source, Predictions) else Predictions.load(source, ood=outside)


def member_count(predictions: Predictions) -> int | None:
    """How many networks a dump speaks for."""
    if predictions.logits is None:
        return None
    return 1 if predictions.members is None else len(np.unique(predictions.members))


def _fit_on(known: Predictions, val: Predictions | None) -> Predictions:
    """The dump that a calibration is fitted on, or why there is none."""
    if val is None:
        raise Undefined("Calibration is fitted on a validation dump: give one with --val.")
    if known.logits is None:
        raise Undefined("There are no logits to calibrate.")
    if val.logits is None or val.labels is None:
        raise Undefined("The validation dump needs logits and labels to fit a calibration.")
    return val


def calibration_warning(scale: Any, val: Predictions | None, classes: int) -> str | None:
    """Why numbers under this calibration mean little, if they do."""
    if isinstance(scale, calibration.Temperature) and scale.note:
        return scale.note
    parameters = 1 if isinstance(scale, calibration.Temperature) else 2 * classes
    rows = 0 if val is None else len(val)
    if rows < FEW_ROWS * parameters:
        return f"The calibration is fitted on {rows} validation rows, which are few: calibrated numbers mean little."
    return None


class _Maker:
    """Fills one scorecard; knows which version (raw or calibrated) and group it is filling."""

    def __init__(
        self,
        known: Predictions,
        card: Scorecard,
        base: Row,
        split: str,
        train: Predictions | None,
        val: Predictions | None,
        classwise: bool | None,
        only: Sequence[str] | None,
    ) -> None:
        self.card, self.base, self.split, self.val, self.classwise = card, base, split, val, classwise
        self.only = None if only is None else [measures.find_measure(name, known).name for name in only]
        self.reference = train if train is not None else val
        self.learns = train is not None  # measures that take seconds are not for a first look
        self.held_out = val  # as it was given, before any calibration
        self.heavy = False
        self.views: Sequence[Predictions] = ()
        self.siblings: Sequence[Predictions] = ()
        self.val_outside: Mapping[str, Predictions] = {}
        self.share = metrics.DEFAULT_OOD_SHARE
        self.fitted: dict[str, Callable[[Predictions], Array]] = {}
        self.makers: dict[str, Callable[[Predictions], Any]] = {}  # of measures that were fitted on `val` itself
        self.crossed: Mapping[str, Array | ValueError] = {}  # u of `val` by those, fitted on other rows of it

    # -- writing

    def row(self, metric: str, value: float, n: int, measure: str | None = None, split: str | None = None) -> None:
        entry = {"measure": measure, "metric": metric, "value": float(value), "n": n, "split": split or self.split}
        self.card.rows.append(self.base | entry)

    def because(self, measure: str | None, metric: str | None, split: str, reason: str) -> None:
        entry = {"measure": measure, "metric": metric, "split": split, "reason": reason}
        if entry not in self.card.reasons:
            self.card.reasons.append(entry)

    def lost(self, measure: str, split: str, reason: ValueError) -> None:
        """The reason why a measure has no rows; also a note where the measure itself is at fault."""
        self.because(measure, None, split, str(reason))
        if isinstance(reason, FaultyPlugin):
            self.note(str(reason))

    def note(self, sentence: str) -> None:
        if sentence not in self.card.notes:
            self.card.notes.append(sentence)

    def ask(
        self, question: Callable[[], float], metric: str, n: int, measure: str | None = None, split: str = ""
    ) -> None:
        """A row, or the reason why there is none."""
        try:
            value = float(question())
        except Undefined as reason:
            self.because(measure, metric, split or self.split, str(reason))
            return
        if np.isfinite(value):
            self.row(metric, value, n, measure, split or self.split)
        else:
            self.because(measure, metric, split or self.split, f"The metric gave {value}, which is not a number.")

    def source(
        self,
        kind: Callable[..., Resampler],
        *given: Any,
        n: Sequence[int] | None = None,
        measure: str | None = None,
        split: str | None = None,
    ) -> None:
        """Notes what the rows just written are read off; `kind` makes it of what is given."""
        cell = {key: self.base[key] for key in ("calibrated", "subgroup")}
        cell |= {"split": split or self.split, "measure": measure}
        sizes = (len(given[0]),) if n is None else tuple(n)
        self.card.sources.append(RowSource(cell, sizes, partial(_part, kind, given)))

    # -- filling

    def calibrated(self, scale: Any) -> None:
        assert self.val is not None
        self.base = self.base | {"calibrated": True}
        if hasattr(scale, "temperature"):
            self.row("temperature", scale.temperature, len(self.val), split="val")
        self.val, self.val_outside = scale(self.val), {}  # a choice is made among raw scores

    def whole(
        self, known: Predictions, outside: Mapping[str, Predictions], everything: Predictions | None = None
    ) -> None:
        """All rows of one version. `everything` is given for the raw one: what cannot change is said once."""
        raw = everything is not None
        wrong = self.answers(known)
        retrieved = retrieval = None
        if everything is not None:
            retrieval, retrieved = self.retrieval(everything)
            for label, of_gallery in self.gallery(everything).items():
                self.r_auroc(label, of_gallery, retrieved, retrieval)
            if not outside:
                self.because(None, "detection", self.split, "Detection needs out-of-distribution rows: give --ood.")
        drawn = self.card.drawn.setdefault("calibrated" if not raw else "raw", {})
        drawn["wrong"], drawn["u"], drawn["out"], drawn["share"] = wrong, {}, {}, self.share
        drawn["val"] = self.validation()
        if wrong is not None and not (known.logits is None and known.confidence is None):
            drawn["answers"] = summary(known).outcomes()
        of_model = f" of {self.card.name}" if self.card.name else ""
        for label, of in track(list(self.measures(known, raw)), f"measures{of_model}", name=itemgetter(0)):
            u = self.values(of, known, label, self.split)
            if u is None:
                continue
            drawn["u"][label] = u
            if wrong is not None:
                self.ranking(u, wrong, "ranking", label, self.split)
            self.detection(of, label, u, outside, drawn)
            if raw and everything is not None:
                full = u if everything is known else self.values(of, everything, label, self.split)
                self.r_auroc(label, full, retrieved, retrieval)
            self.votes(known, label, u)
            self.crops(known, label, u)
        for metric in metrics.registry.parts():
            if "votes" in metric.kinds and known.annotations is None and raw:
                self.because(None, metric.name, self.split, "There are no annotations (human votes) in this dump.")

    def answers(self, known: Predictions) -> Array | None:
        """Rows about the answers themselves; returns which of them are wrong."""
        if not known.has_outcomes:
            lacking = "labels" if known.labels is None else "logits"
            self.because(
                None, "answers", self.split, f"There are no {lacking}: right and wrong answers cannot be told apart."
            )
            return None
        all_of = summary(known).outcomes()
        shown = scorecard_metrics("predictions")
        for metric in shown:
            if metric.metric.prepared:
                self.ask(partial(metric, all_of), metric.label, len(known))
            elif not metric.metric.classwise or self.wants_classwise(known, metric.label):
                self.ask(partial(_of_probs, metric, known), metric.label, len(known))
        n = (len(known),)
        self.source(SummaryResampler, all_of, [metric for metric in shown if metric.metric.prepared], n=n)
        if known.logits is not None:
            self.source(probs_resampler, known, None, [metric for metric in shown if not metric.metric.prepared], n=n)
        if all_of.floored and not self.base["calibrated"]:
            sentence = floored_note(all_of.floored, len(known))
            self.card.notes.append(sentence)
            self.because(None, "nll", self.split, sentence)
        return np.asarray(~all_of.correct)

    def wants_classwise(self, known: Predictions, metric: str) -> bool:
        if self.classwise is not None:
            return self.classwise
        small = not _large(known)
        if not small:
            reason = "Class-wise calibration is left out of large dumps: ask for it with --classwise."
            self.because(None, metric, self.split, reason)
        return small

    def measures(self, known: Predictions, raw: bool) -> Iterator[tuple[str, Callable[[Predictions], Array]]]:
        """(name, Predictions -> u) of every measure that this version changes: fitted ones know the raw logits only."""
        for part in measures.registry.parts():
            if raw and part.equivalent_to and self.only is None:
                self.because(
                    part.name, None, self.split, f"It ranks as {part.equivalent_to} does, and is reported by that name."
                )
            wanted = part.equivalent_to is None if self.only is None else part.name in self.only
            if not wanted or (not raw and (part.kind != "plain" or "logits" not in part.needs)):
                continue
            if part.slow and not (self.heavy or self.learns) and self.only is None and _large(known):
                reason = "It takes as long as all the rest of a large dump: ask for it with --all, or give --train."
                self.because(part.name, None, self.split, reason)
            elif part.kind == "plain":
                if known.draws == 1 and part.needs_draws:
                    self.because(part.name, None, self.split, "The model gives one draw a row; draws cannot disagree.")
                    continue
                yield part.name, part.compute
            elif part.trains and not self.learns and self.only is None:
                self.because(part.name, None, self.split, "It is trained for some seconds: give --train as well.")
            elif part.kind in ("fitted", "tuned"):
                if (fit := self.fit(part, known)) is not None:
                    yield part.name, partial(part.checked, fit)
            elif raw and part.kind == "ensemble":
                self.because(part.name, None, self.split, "It compares several networks: one dump holds one of them.")
        for name in measures.score_names(known) if raw else ():
            if self.only is None or name in self.only:
                yield name, measures.find_measure(name, known).function

    def fit(self, measure: Measure, known: Predictions) -> Callable[[Predictions], Array] | None:
        """The fitted measure, or None and a reason."""
        if measure.name not in self.fitted:
            reference = self.held_out if measure.kind == "tuned" else self.reference
            try:
                measure.check(known, but=("labels",))
                if reference is None and measure.kind == "tuned":
                    raise Undefined("It is fitted on rows that the network was not trained on: give --val.")
                if reference is None:
                    raise Undefined("It is fitted on reference rows: give --train or --val.")
                measure.check(reference)
                self.fitted[measure.name] = measure.fit(reference)
                if reference is self.held_out:
                    self.makers[measure.name] = measure.fit_checked
            except (Undefined, BadInput) as reason:
                self.lost(measure.name, self.split, reason)
                return None
        return self.fitted[measure.name]

    def on_val(self, measure: str, of: Callable[[Predictions], Array], val: Predictions) -> Array:
        """u of the validation rows, which set the threshold, by a measure that has not seen them."""
        if measure not in self.makers or self.held_out is None:
            return of(val)
        if measures.registry[measure].kind == "tuned":
            raise Undefined("It is fitted on --val itself, which cannot set its threshold too.")
        if measure not in self.crossed:
            fitted = {name: make for name, make in self.makers.items() if measures.registry[name].kind == "fitted"}
            self.crossed = cross_fitted_all(fitted, self.held_out)
        values = self.crossed[measure]
        if isinstance(values, Exception):
            raise values
        return values

    def values(self, of: Callable[[Predictions], Array], p: Predictions, measure: str, split: str) -> Array | None:
        try:
            return of(p)
        except (Undefined, BadInput) as reason:  # e.g. a zero-norm embedding: one measure is lost, the others are not
            self.lost(measure, split, reason)
        return None

    def ranking(
        self, u: Array, positive: Array, kind: str, measure: str, split: str, sizes: tuple[int, ...] | None = None
    ) -> None:
        order, arrays = metrics.Ranking(u, positive), (u, positive)
        shown = scorecard_metrics(kind)
        for metric in shown:
            given = (order,) if metric.metric.prepared else arrays
            self.ask(partial(metric, *given), metric.label, order.n, measure, split)
        n = sizes or (len(u),)
        prepared = [metric for metric in shown if metric.metric.prepared]
        self.source(RankingResampler, u, positive, prepared, n=n, measure=measure, split=split)
        if others := [metric for metric in shown if not metric.metric.prepared]:
            self.source(ArraysResampler, arrays, others, n=n, measure=measure, split=split)

    def detection(
        self,
        of: Callable[[Predictions], Array],
        measure: str,
        u: Array,
        outside: Mapping[str, Predictions],
        drawn: dict[str, Any],
    ) -> None:
        cut = None
        if self.val is None:
            self.because(
                None, "in_as_in", self.split, "The rejection threshold is set on a validation dump: give --val."
            )
        else:
            u_val = self.values(partial(self.on_val, measure, of), self.val, measure, "val")
            if u_val is not None:
                drawn["val"]["u"][measure] = u_val[drawn["val"]["known"]]
                cut = metrics.threshold(u_val)
                self.ask(partial(metrics.in_as_in, u, cut), "in_as_in", len(u), measure)
                self.source(ShareResampler, u <= cut, _plain("in_as_in"), measure=measure)
        for name, dump in outside.items():
            u_out = self.values(of, dump, measure, name)
            if u_out is None:
                continue
            drawn["out"].setdefault(measure, {})[name] = u_out
            self.mixture(u, drawn["wrong"], u_out, measure, name)
            out = np.repeat([False, True], [len(u), len(u_out)])
            self.ranking(np.concatenate([u, u_out]), out, "detection", measure, name, (len(u), len(u_out)))
            if cut is not None:
                self.ask(partial(metrics.out_as_out, u_out, cut), "out_as_out", len(u_out), measure, name)
                self.source(ShareResampler, u_out > cut, _plain("out_as_out"), measure=measure, split=name)

        for name, dump in self.val_outside.items():
            if (u_out := self.values(of, dump, measure, name)) is not None:
                drawn["val"]["out"].setdefault(measure, {})[name] = u_out

    def validation(self) -> dict[str, Any]:
        """Which validation rows are answered wrong, and places for the uncertainties of them and of those outside."""
        known: Any = slice(None) if self.val is None or not self.val.has_outcomes else summary(self.val).labelled
        wrong = None if self.val is None or not self.val.has_outcomes else summary(self.val).outcomes().wrong
        return {"u": {}, "out": {}, "known": known, "wrong": wrong}

    def mixture(self, u: Array, wrong: Array | None, u_out: Array, measure: str, split: str) -> None:
        """Rows on wrong answers and out-of-distribution rows together, at the stated share of the latter."""
        if wrong is None:
            return
        mixture = metrics.Mixture(u, wrong, u_out, self.share)
        order, shown = mixture.ranking(), scorecard_metrics("mixture")
        base, self.base = self.base, self.base | {"ood_share": self.share}
        for metric in shown:
            self.ask(partial(mixture_metric, metric, order), metric.label, len(u) + len(u_out), measure, split)
        self.base = base
        self.source(MixtureResampler, mixture, shown, n=(len(u), len(u_out)), measure=measure, split=split)

    def retrieval(self, p: Predictions) -> tuple[str | None, Array | None]:
        """The reason why retrieval cannot be judged, or which rows find their own class."""
        if p.embeddings is None or p.labels is None:
            lacking = "embeddings" if p.embeddings is None else "labels"
            reason = f"There are no {lacking} in this dump."
            self.because(None, "recall_at_1", self.split, reason)
            return reason, None
        try:
            retrieved = metrics.retrieved(p.embeddings, p.labels)
        except (Undefined, BadInput) as error:
            self.because(None, "recall_at_1", self.split, str(error))
            return str(error), None
        self.row("recall_at_1", float(np.mean(retrieved)), len(p))
        self.source(ShareResampler, retrieved, _plain("recall_at_1"))
        return None, retrieved

    def gallery(self, p: Predictions) -> Mapping[str, Array]:
        """u of the scores that compare each row with all others."""
        try:
            if not (self.views or self.siblings or p.views):
                raise Undefined("It compares views of an image, or sibling networks: give --views or --siblings.")
            scores = measures.gallery_scores(p, self.views, self.siblings)
            for name, lacking in scores.reasons.items():
                self.because(name, None, self.split, lacking)
            return scores.u
        except (Undefined, BadInput) as reason:
            for part in measures.registry.parts():
                if part.kind == "gallery":
                    self.because(part.name, None, self.split, str(reason))
            return {}

    def r_auroc(self, measure: str, u: Array | None, retrieved: Array | None, reason: str | None) -> None:
        """How well u knows which rows find their own class, or the reason why that is not known."""
        if retrieved is not None and u is not None:
            self.ask(partial(metrics.auroc, u, ~retrieved), "r_auroc", len(retrieved), measure)
            self.source(retrieval_resampler, u, retrieved, measure=measure)
        elif reason is not None:
            self.because(None, "r_auroc", self.split, reason)

    def votes(self, known: Predictions, measure: str, u: Array) -> None:
        if known.annotations is None:
            return
        voted = int(metrics.has_votes(known.annotations).sum())
        if voted < len(u):
            self.note(f"{len(u) - voted} of {len(u)} rows have no human votes and are left out of human_alignment.")
        self.ask(lambda: metrics.human_alignment(u, known.annotations), "human_alignment", voted, measure)
        self.source(ArraysResampler, (u, known.annotations), [_plain("human_alignment")], n=(len(u),), measure=measure)

    def crops(self, known: Predictions, measure: str, u: Array) -> None:
        pairs = crop_pairs(known)
        if pairs is None:
            return
        whole, crop = pairs
        if not len(crop):
            self.because(None, "crop_agreement", self.split, "No row of the group twin names another row of this dump.")
            return
        self.ask(lambda: metrics.crop_agreement(u[whole], u[crop]), "crop_agreement", len(crop), measure)
        self.source(ShareResampler, u[crop] > u[whole], _plain("crop_agreement"), measure=measure)

    def by_group(self, known: Predictions, group: str) -> None:
        if group not in known.groups:
            there = ", ".join(known.groups) or "none"
            hint = did_you_mean(group, known.groups)
            raise BadInput(f"There is no group named {group!r} in this dump.{hint} There are: {there}.")
        base, self.base = self.base, self.base | {"calibrated": False}
        for value in np.unique(known.groups[group]):
            part = known.take(known.groups[group] == value)
            self.base = self.base | {"subgroup": f"{group}={value}"}
            wrong = self.answers(part)
            for label, of in self.measures(part, raw=True):
                u = self.values(of, part, label, self.split)
                if u is not None and wrong is not None:
                    self.ranking(u, wrong, "ranking", label, self.split)
        self.base = base


def _large(dump: Predictions) -> bool:
    return dump.logits is not None and len(dump) * dump.classes > LARGE


def _part(kind: Callable[..., Resampler], given: Sequence[Any], resamples: int) -> Resampler:
    return kind(*given, resamples) if kind is probs_resampler else kind(*given)


def probs_resampler(dump: Predictions, rows: Any, wanted: Sequence[MetricSpec], resamples: int) -> Resampler:
    """Metrics that need the probabilities of all classes; Undefined where there are too many of them to resample."""
    if len(dump) * dump.classes * resamples > MOST_PROBS:
        raise Undefined("It needs all class probabilities of every resample, which are too many here.")
    assert dump.labels is not None
    rows = slice(None) if rows is None else rows
    return ProbsResampler(mean_probs(dump)[rows], dump.labels[rows], wanted)


def retrieval_resampler(u: Array, retrieved: Array) -> Resampler:
    """R-AUROC: how well u ranks the rows whose nearest other row has another label; neighbours stay as they are."""
    return RankingResampler(u, ~retrieved, [MetricSpec("r_auroc", metrics.registry["auroc"], {})])


def crop_pairs(dump: Predictions) -> tuple[Array, Array] | None:
    """(positions of whole images, of their crops): rows of the group `twin` name the index of the whole image."""
    twin = dump.groups.get("twin")
    if twin is None:
        return None
    at = {key: row for row, key in enumerate(dump.index.tolist())}
    named = zip(twin.tolist(), dump.index.tolist(), strict=True)
    pairs = [(at[whole], row) for row, (whole, own) in enumerate(named) if whole != own and whole in at]
    whole, crop = np.array(pairs, np.int64).reshape(-1, 2).T
    return whole, crop


def floored_note(floored: int, n: int) -> str:
    return (
        f"{floored} of {n} rows give their true class probability 0; "
        "their NLL uses the smallest normal number of float64 instead."
    )


def _of_probs(metric: MetricSpec, known: Predictions) -> float:
    """A metric of all class probabilities, in row blocks where it can take them."""
    of_blocks, of_top = metric.metric.of_blocks, metric.metric.of_top
    if of_blocks is not None:
        return of_blocks(prob_blocks(known), **metric.options)
    if of_top is not None:
        return of_top(top_k_outcomes(known, metric.option("k")))
    return metric(mean_probs(known), known.labels)


def cross_fitted(fit: Callable[[Predictions], Callable[[Predictions], Array]], rows: Predictions) -> Array:
    """A fitted measure of the rows that it is fitted on, each by the others: a threshold set on them keeps its promise.

    A density is surer of rows that it has seen, and one fitted on half of them is less sure than the whole one. So each
    row is left out alone, where the measure can do that in closed form; else a fifth of the rows at a time.
    """
    u = cross_fitted_all({"": fit}, rows)[""]
    if isinstance(u, ValueError):
        raise u
    return u


def cross_fitted_all(
    fits: Mapping[str, Callable[[Predictions], Callable[[Predictions], Array]]], rows: Predictions
) -> dict[str, Array | ValueError]:
    """The same of several measures, which share what they compute of each fifth; an error where one cannot be had."""
    u: dict[str, Array | ValueError] = {}
    waiting: dict[str, Array] = {}
    for name, fit in fits.items():
        fitted: Any = fit(rows)
        if hasattr(fitted, "leave_one_out"):
            u[name] = _or_error(fitted.leave_one_out, rows)
        else:
            waiting[name] = np.empty(len(rows))
    folds = min(FOLDS, len(rows)) if waiting else 0
    for fold in range(folds):
        at = np.arange(fold, len(rows), folds)
        own, others = rows.take(at), rows.take(np.setdiff1d(np.arange(len(rows)), at))
        for name in [name for name in waiting if name not in u]:
            values = _or_error(lambda fit, own, others: fit(others)(own), fits[name], own, others)
            if isinstance(values, ValueError):
                u[name] = values
            else:
                waiting[name][at] = values
    return {**waiting, **u}


def _or_error(work: Callable[..., Array], *given: Any) -> Array | ValueError:
    try:
        return work(*given)
    except (Undefined, BadInput) as reason:
        return reason


def _plain(name: str) -> MetricSpec:
    return MetricSpec(name, metrics.registry[name], {})
