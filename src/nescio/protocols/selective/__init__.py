"""Which pretrained models know when they are wrong? Selective prediction over dumps of many models (Galil et al. 2023).

One dump a model → temperature fitted on a stratified tenth of its rows (5,000 of 50,000) → raw and calibrated answers
judged on the same other rows, ranked by the largest probability, by entropy, and by the entropy of MC-dropout's mean →
rows. What the rows say across models is told by `_selective_reports`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio import metrics
from nescio.analysis import calibrate
from nescio.analysis.bootstrap import asked
from nescio.analysis.thresholds import divided
from nescio.errors import BadInput, Undefined
from nescio.identity import seed_for, tag
from nescio.measures._softmax import summary
from nescio.metrics._selective import TENTHS
from nescio.predictions import Predictions
from nescio.predictions.entries import Entry
from nescio.protocols._evaluations import Evaluation, Job, Say, Study, do, read, record, table
from nescio.rows import COLUMNS, Row
from nescio.work.local import Crew, Task
from nescio.work.store import Store

Array = NDArray[Any]
NAME, VERSION = "selective", 3
MC_DROPOUT = "mc-dropout"  # the variant of a dump, and the κ that is the entropy of it
OF_SOFTMAX = ("largest", "entropy")
MEASURES = (*OF_SOFTMAX, MC_DROPOUT)
ANSWERS = ("accuracy", "accuracy@5", "nll", "brier", "ece")
FACTS = ("input_size", "embedding_size", "published_accuracy")
SHARE = 10  # one row in ten fits the temperature …
FEWEST = 50  # … unless that is fewer than these, whose temperature is off by a sixth: then all are judged, uncalibrated
NO_ECE = "An entropy is no probability, so it is not calibrated or miscalibrated; the ECE is that of the largest one."
NO_DROPOUT = "The dump holds no answers under dropout: the model has none, or it was left out when predicting."
NO_TEMPERATURE = (
    "The rows that fit it are all answered right, or no better than chance: no temperature is best for them."
)
TOO_FEW = (
    f"The temperature is fitted on a tenth of the rows; a tenth of these is fewer than {FEWEST}, which say too little."
)


@tag("plan:selective")
@dataclass(frozen=True)
class Plan:
    """What is asked of every model."""

    fit_rows: int = 5000  # at most; a tenth of the rows when there are fewer than ten times as many
    seed: int = 0  # of the stratified division into rows that fit the temperature and rows that are judged
    measures: tuple[str, ...] = MEASURES
    accuracies: tuple[float, ...] = (0.90, 0.95, 0.99)  # of the coverage under an accuracy constraint (SAC)
    risks: tuple[float, ...] = (0.5, 0.8)  # coverages whose selective risk has a row of its own
    over: tuple[float, ...] = TENTHS  # coverages of AURC_C
    curve: tuple[float, ...] = tuple(round(0.05 * step, 2) for step in range(1, 21))  # of the risk–coverage curve

    def check(self) -> None:
        if self.fit_rows < FEWEST:
            raise BadInput(f"A temperature is fitted on at least {FEWEST} rows, not {self.fit_rows}.")
        for name in self.measures:
            if name not in MEASURES:
                raise BadInput(f"There is no κ named {name!r} here. There are: {', '.join(MEASURES)}.")
        for share in (*self.accuracies, *self.risks, *self.over, *self.curve):
            if not 0 < share <= 1:
                raise BadInput(f"Accuracies and coverages lie above 0 and up to 1; {share:g} does not.")

    @property
    def ranking(self) -> tuple[str, ...]:
        """Names of the metrics of a ranking, as rows spell them."""
        shares = [f"sac@{share:g}" for share in self.accuracies]
        return ("auroc", "aurc", "e_aurc", *shares, *(f"selective_risk@{share:g}" for share in self.risks))


def run(plan: Plan, entries: Sequence[Entry], store: Store, workers: int = 0, say: Say | None = None) -> Study:
    """Judges every model whose rows are not in the store yet, and returns the study of all of them."""
    plan.check()
    one_set(entries)
    study = Study(plan)
    jobs = [_job(plan, each, store) for each in entries]
    with Crew(workers) as crew:
        do(study, jobs, store, crew, (lambda *counts: say("judging the answers", *counts[:3])) if say else None)
    list(read(study, jobs, store))
    if study.rows:
        record(study, store, NAME, VERSION)
    return study


def one_set(entries: Sequence[Entry]) -> None:
    if not entries:
        raise BadInput("There is no model to judge: predict with some first, or name files of predictions.")
    if len(sets := sorted({each.data for each in entries})) > 1:
        raise BadInput(f"Models are compared on one set of images, and these are of {', '.join(sets)}: name one.")
    twice = [name for name, times in Counter(each.model for each in entries).items() if times > 1]
    if twice:
        raise BadInput(f"The model {twice[0]} is given twice; give each dump a name of its own.")


# ---- one model's rows, kept in the store


def _evaluation(plan: Plan, entry: Entry) -> Evaluation:
    facts = {name: entry.facts.get(name) for name in ("params", *FACTS)}
    recipe = {"kind": "model", "model": entry.model, "data": entry.data, "facts": facts, "plan": plan}
    return Evaluation(NAME, VERSION, recipe, (entry.key,))


def _job(plan: Plan, entry: Entry, store: Store) -> Job:
    return _evaluation(plan, entry), Task(entry.model, _task, (plan, entry, str(store.root)), _died)


def _task(plan: Plan, entry: Entry, root: str) -> None:
    def make() -> dict[str, bytes]:
        return table(*rows_of(plan, entry))

    _evaluation(plan, entry).keep(Store(root), make)


def _died(reason: str, plan: Plan, entry: Entry, root: str) -> None:
    _evaluation(plan, entry).mark(Store(root), reason)


# ---- what is said of one model


def rows_of(plan: Plan, entry: Entry) -> tuple[list[Row], list[Row]]:
    """(rows, reasons) of one model: raw and calibrated answers, on the rows that did not fit the temperature."""
    dump = answerable(entry.dump())
    facts = {name: entry.facts.get(name) for name in ("params", *FACTS)}
    base = {"protocol": NAME, "version": VERSION, "dataset": entry.data, "backbone": entry.model}
    base |= {"params": facts.pop("params"), "method": "pretrained", "members": 1, "calibrated": False, "split": "test"}
    maker = _Maker(plan, dict.fromkeys(COLUMNS) | base)
    fit, test = division(dump, plan)
    for name, value in facts.items():
        if value is not None:
            maker.row(name, float(np.max(value)), len(dump))  # of (3, 224, 224) the side
    maker.version(dump, test, OF_SOFTMAX)
    if MC_DROPOUT in plan.measures:
        maker.dropout(dump, test)
    try:
        scale = fitted(dump, fit)
    except Undefined as reason:
        maker.because(None, "calibrated", str(reason))
    else:
        maker.base["calibrated"] = True
        maker.row("temperature", scale.temperature, len(fit), split="val")
        maker.version(scale(dump), test, OF_SOFTMAX)
    return maker.rows, maker.reasons


def answerable(dump: Predictions) -> Predictions:
    """The rows of classes that were taught; BadInput where answers cannot be judged."""
    if dump.labels is None or dump.logits is None:
        lacking = "labels" if dump.labels is None else "logits and no probs"
        raise BadInput(f"The dump has no {lacking}: right and wrong answers cannot be told.")
    if dump.taught is None or dump.taught.all():
        return dump
    if not dump.taught.any():
        raise BadInput("Every row is of a class that was not taught: no answer can be right.")
    return dump.take(dump.taught)


def division(dump: Predictions, plan: Plan) -> tuple[Array, Array]:
    """(rows that fit the temperature, rows that are judged), the first a stratified tenth, up to `fit_rows`.

    Galil et al. 2023, appendix I: 5,000 of 50,000.
    """
    wanted = min(plan.fit_rows, len(dump) // SHARE)
    return divided(dump, wanted if wanted >= FEWEST else 0, seed_for(NAME, "division", plan.seed))


def fitted(dump: Predictions, fit: Array) -> calibrate.Temperature:
    """The temperature of these rows; Undefined where they ask for none."""
    if len(fit) < FEWEST:
        raise Undefined(TOO_FEW)
    scale = calibrate.temperature(dump.take(fit))
    if scale.at_edge:
        raise Undefined(NO_TEMPERATURE)
    return scale


def under_dropout(dump: Predictions) -> Predictions:
    """The dump whose answers are the mean of the softmaxes under dropout."""
    if MC_DROPOUT not in dump.variants:
        raise Undefined(NO_DROPOUT)
    logs = dump.variants[MC_DROPOUT][:, None]
    return Predictions(index=dump.index, labels=dump.labels, taught=dump.taught, logits=logs, normalized=True)


class _Maker:
    """Gathers the rows of one model; knows which version (raw or calibrated) it is at."""

    def __init__(self, plan: Plan, base: Row) -> None:
        self.plan, self.base = plan, base
        self.rows: list[Row] = []
        self.reasons: list[Row] = []

    def row(self, metric: str, value: float, n: int, measure: str | None = None, **more: Any) -> None:
        self.rows.append(self.base | {"metric": metric, "value": float(value), "n": n, "measure": measure} | more)

    def because(self, measure: str | None, metric: str | None, reason: str) -> None:
        found = {"method": self.base["backbone"], "measure": measure, "metric": metric, "split": "test"}
        self.reasons.append(found | {"reason": reason})

    def ask(self, metric: str, prepared: Any, n: int, measure: str | None = None) -> None:
        """A row, or the reason why there is none."""
        try:
            self.row(metric, asked(metric)(prepared), n, measure)
        except Undefined as reason:
            self.because(measure, metric, str(reason))

    def version(self, dump: Predictions, test: Array, names: Sequence[str]) -> None:
        """The answers of these rows, and how each κ ranks them."""
        held = summary(dump)
        answers = held.answers(test)
        for metric in ANSWERS:
            self.ask(metric, answers, answers.n)
        for name in names:
            if name in self.plan.measures:
                self.ranking(name, held.u[name][test], answers.wrong)
        if "entropy" in self.plan.measures and not self.base["calibrated"]:
            self.reasons.append({"measure": "entropy", "metric": "ece", "split": "test", "reason": NO_ECE})

    def dropout(self, dump: Predictions, test: Array) -> None:
        """MC-dropout's own accuracy, and how the entropy of its mean ranks its answers (appendix K)."""
        try:
            held = summary(under_dropout(dump))
        except Undefined as reason:
            self.reasons.append({"measure": MC_DROPOUT, "metric": None, "split": "test", "reason": str(reason)})
            return
        answers = held.answers(test)
        self.ask("accuracy", answers, answers.n, MC_DROPOUT)
        self.ranking(MC_DROPOUT, held.u["entropy"][test], answers.wrong)

    def ranking(self, measure: str, u: Array, wrong: Array) -> None:
        ranked = metrics.Ranking(u, wrong)
        for metric in self.plan.ranking:
            self.ask(metric, ranked, ranked.n, measure)
        self.row("aurc_over", metrics.aurc_over(ranked, coverages=self.plan.over), ranked.n, measure)
        for share in self.plan.curve:
            risk = metrics.selective_risk(ranked, coverage=share)
            self.row("selective_risk", risk, ranked.n, measure, group=f"{share:g}")


def judged(dump: Predictions, measure: str) -> tuple[Predictions, str]:
    """The dump whose answers a κ ranks, and the measure of it that is that κ."""
    return (under_dropout(dump), "entropy") if measure == MC_DROPOUT else (dump, measure)
