"""Which pretrained models know when they are wrong? Selective prediction over dumps of models (Galil et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np

from nescio import metrics
from nescio.analysis import significance
from nescio.analysis.calibration import Temperature, temperature_or_reason
from nescio.analysis.comparison import compare
from nescio.analysis.evaluation_rows import MC_DROPOUT, dropout_mean, labelled_in_distribution
from nescio.analysis.metric_specs import parse_metric
from nescio.analysis.thresholds import stratified_split
from nescio.arrays.types import Array
from nescio.benchmarks.base import benchmark
from nescio.benchmarks.pretrained import USUAL, ModelRows, config_of
from nescio.errors import BadInput, Undefined
from nescio.identity import Validated, seed_for, tag
from nescio.measures import summary
from nescio.options import argument, option
from nescio.predictions import Predictions
from nescio.predictions.model_predictions import ModelPredictions, check_comparable, collect_predictions
from nescio.predictions.subset import subset_limit_note
from nescio.rows import Columns, Row
from nescio.work.launchers import Failure
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step, Work, evaluation_files, files_of, make_evaluation

NAME, VERSION = "selective", 5
SCORECARD = "scorecard"  # evaluation of one model
DIFFERENCE, ADJUSTED = "difference", "adjusted_p"  # of a model to the best (`reference`) by a metric (`criterion`)
AMONG = 10  # models, the best by a metric, that are tested against the first of them
OF_SOFTMAX = ("msp", "entropy")
MEASURES = (*OF_SOFTMAX, MC_DROPOUT)
RIGHT = ("accuracy", "accuracy@5")  # which a temperature does not change: of all rows, as everywhere else
ANSWERS = ("nll", "brier", "ece")
FACTS = ("input_size", "embedding_size", "published_accuracy")
SETTINGS = ("measures", "fit_rows", "seed", "accuracies", "risks", "over", "curve")  # that decide numbers
SHARE = 10  # one row in ten fits the temperature …
FEWEST = 50  # … unless that is fewer than these, whose temperature is off by a sixth: then all are judged, uncalibrated
NO_ECE = "An entropy is not a probability, so it is not calibrated or miscalibrated; the ECE is that of the largest."
TOO_FEW = f"The temperature is fitted on a tenth of the rows; a tenth of these is fewer than {FEWEST}: too few."


@tag("plan:selective")
@dataclass(frozen=True)
class Plan(Validated):
    """Which models are judged, and how."""

    files: tuple[str, ...] = argument("predictions of each model, or those of --store", default=(), metavar="FILE")
    data: str | None = option(None, unset="the only set in the store", group="models", kind="dataset")
    facts: str | None = option(None, group="models")
    measures: tuple[str, ...] = option(MEASURES, kind="measure")
    fit_rows: int = option(5000)
    limit: int | None = option(None, unset="all", introduced=None)
    seed: int = option(0)
    accuracies: tuple[float, ...] = (0.90, 0.95, 0.99)  # of the coverage under an accuracy constraint (SAC)
    risks: tuple[float, ...] = (0.5, 0.8)  # coverages whose selective risk has a row of its own
    over: tuple[float, ...] = metrics.TENTHS  # coverages of AURC_C
    curve: tuple[float, ...] = tuple(round(0.05 * step, 2) for step in range(1, 21))  # of the risk–coverage curve

    def check(self) -> None:
        if self.fit_rows < FEWEST:
            raise BadInput(f"A temperature is fitted on at least {FEWEST} rows, not {self.fit_rows}.")
        self.require_min(1, "limit")
        for name in self.measures:
            if name not in MEASURES:
                raise BadInput(f"There is no measure named {name!r} here. There are: {', '.join(MEASURES)}.")
        for share in (*self.accuracies, *self.risks, *self.over, *self.curve):
            if not 0 < share <= 1:
                raise BadInput(f"Accuracies and coverages lie above 0 and up to 1; {share:g} does not.")

    @property
    def ranking(self) -> tuple[str, ...]:
        """Names of the metrics of a ranking, as rows spell them."""
        shares = [f"sac@{share:g}" for share in self.accuracies]
        return ("auroc", "aurc", "e_aurc", *shares, *(f"selective_risk@{share:g}" for share in self.risks))


@benchmark(NAME, version=VERSION, plan=Plan, reports="nescio.benchmarks.selective.reports", workers=0)
def selective(plan: Plan, work: Work) -> None:
    """Which models know when they are wrong: what many models say of the same labelled images, compared.

    The models are files of predictions on the same images (FILE, or NAME=FILE to name the model), or what `nescio zoo`
    kept in a store. A temperature is fitted on a tenth of each model's rows, at most 5,000; the others judge its
    answers, raw and calibrated: accuracy, ECE, AUROC, coverage at an accuracy. Across models: correlations, training
    regimes, families, Pareto fronts (Galil et al. 2023; `nescio report STORE --only NAMES` writes one table or figure).

    Models with timm's names are known by family and training regime; --facts has the sizes of files' models.

    examples:
      nescio run selective vit.npz resnet50=r50.npz --facts results-imagenet.csv
      nescio run selective --store store --data imagenet:PATH
      nescio run selective *.npz --measures msp,entropy --output page
    """
    from nescio.datasets.names import name_for_keys_if_present
    from nescio.networks.published import with_facts

    data = name_for_keys_if_present(plan.data, work.context.root, "test") if plan.data else None
    damaged: list[str] = []
    models = with_facts(collect_predictions(plan.files, work.store, data, damaged), plan.facts)
    work.failures += [Failure("reading the store", reason) for reason in damaged]
    if plan.limit is not None:
        work.add_notes(subset_limit_note(plan.limit, plan.seed))
    judge(plan, [model.sampled(plan.limit, plan.seed) for model in models], work)


def judge(plan: Plan, models: Sequence[ModelPredictions], work: Work) -> None:
    """Judges every model whose rows are not in the store yet, and takes the rows of all."""
    check_comparable(models)
    work.evaluate("judging the answers", [_step(plan, model) for model in models])
    dumps = {model.model: model for model in models}
    leading = {wanted: best_models(plan, wanted, work.rows) for wanted in winners(plan)}
    work.evaluate(
        "comparing the best",
        [_best_step(plan, wanted, [dumps[name] for name in best]) for wanted, best in leading.items() if len(best) > 1],
    )


def _step(plan: Plan, model: ModelPredictions) -> Step:
    config = {"kind": "model"} | config_of(model, FACTS, plan, SETTINGS)
    return make_evaluation(
        NAME, VERSION, model.model, config, (model.rows_key,), partial(_make, plan=plan, model=model)
    )


def _make(step_folder: StepFolder, context: Context, plan: Plan, model: ModelPredictions) -> Files:
    return files_of(rows_of(plan, model))


def share_interval(share: float, rows: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of rows."""
    z = NormalDist().inv_cdf(0.975)
    middle = (share + z * z / (2 * rows)) / (1 + z * z / rows)
    reach = z / (1 + z * z / rows) * math.sqrt(share * (1 - share) / rows + (z / (2 * rows)) ** 2)
    return max(0.0, middle - reach), min(1.0, middle + reach)


# ---- the best of them


def winners(plan: Plan) -> tuple[str, ...]:
    """The metrics by which a best model is named: those of the first sentences of a page."""
    ranked = ("auroc", f"sac@{max(plan.accuracies):g}") if plan.accuracies else ("auroc",)
    return ("accuracy", *(ranked if USUAL in plan.measures else ()))


def best_models(plan: Plan, metric: str, rows: Sequence[Row]) -> list[str]:
    """The AMONG best models by a metric of their raw answers."""
    usual = {"metric": metric, "calibrated": False, "evaluation": SCORECARD}
    own = [row for row in rows if usual.items() <= row.items() and row["measure"] in (None, USUAL)]
    return [row["backbone"] for row in sorted(own, key=lambda row: (-row["value"], row["backbone"]))[:AMONG]]


def _best_step(plan: Plan, metric: str, models: Sequence[ModelPredictions]) -> Step:
    config = {"kind": "best", "metric": metric, "models": [model.model for model in models]}
    config |= {name: getattr(plan, name) for name in ("fit_rows", "seed")}
    make = partial(_make_best, plan=plan, metric=metric, models=tuple(models))
    return make_evaluation(NAME, VERSION, f"the best by {metric}", config, [model.rows_key for model in models], make)


def _make_best(
    step_folder: StepFolder, context: Context, plan: Plan, metric: str, models: Sequence[ModelPredictions]
) -> Files:
    try:
        return files_of(*verdict_rows(plan, metric, models))
    except BadInput as error:  # they share no images
        reason = f"The best models could not be compared with each other: {error}"
        return evaluation_files([], [{"measure": None, "metric": metric, "split": "test", "reason": reason}])


def verdict_rows(plan: Plan, metric: str, models: Sequence[ModelPredictions]) -> list[ModelRows]:
    """How far every other model is from the best on the same images, and Holm's p-value: a paired bootstrap."""
    dumps = {model.model: labelled_in_distribution(model.load()) for model in models}
    if metric not in RIGHT:
        dumps = {name: dump.take(division(dump, plan)[1]) for name, dump in dumps.items()}
    compared = compare(dumps, measure=USUAL, metrics=[metric])
    verdicts = []
    for away in compared.differences:
        own = next(model for model in models if model.model == away["model"])
        facts = {"benchmark": NAME, "version": VERSION, "evaluation": "comparison"}
        made = ModelRows(facts, model=own)
        about: Columns = {"criterion": metric, "reference": away["best"]}
        interval: Columns = {**about, "low": away["low"], "high": away["high"]}
        made.add(DIFFERENCE, away["difference"], compared.n, **interval)
        if away["adjusted"] is not None:
            made.add(ADJUSTED, away["adjusted"], compared.n, **about)
        verdicts.append(made)
    return verdicts


# ---- one model


def rows_of(plan: Plan, model: ModelPredictions) -> JudgedModel:
    """Results of one model: raw and calibrated answers, on the rows that did not fit the temperature."""
    dump = labelled_in_distribution(model.load())
    facts = {"benchmark": NAME, "version": VERSION, "evaluation": SCORECARD}
    made = JudgedModel(facts, model=model, plan=plan)
    fit, test = division(dump, plan)
    made.known(*FACTS)
    made.answers(dump, test)
    if MC_DROPOUT in plan.measures:
        made.dropout(dump, test)
    temperature, reason = temperature_or_reason(dump.take(fit)) if len(fit) else (None, TOO_FEW)
    if temperature is None:
        made.because(None, "calibrated", str(reason))
    else:
        made.calibrated = True
        made.add("temperature", temperature, len(fit), split="val", calibrated=True)
        made.answers(Temperature(temperature)(dump), test)
    return made


def division(dump: Predictions, plan: Plan) -> tuple[Array, Array]:
    """(rows that fit the temperature, rows that are judged), the first a stratified tenth, up to `fit_rows`.

    Galil et al. 2023, appendix I: 5,000 of 50,000.
    """
    wanted = min(plan.fit_rows, len(dump) // SHARE)
    return stratified_split(dump, wanted if wanted >= FEWEST else 0, seed_for(NAME, "division", plan.seed))


@dataclass(kw_only=True)
class JudgedModel(ModelRows):
    """Gathers the rows of one model, raw and then calibrated."""

    reported: Sequence[str] = ()
    plan: Plan
    calibrated: bool = False

    def because(self, measure: str | None, metric: str | None, reason: str, *, shared: bool = False) -> None:
        """Why a row is missing, of this model or (`shared`) of every model alike."""
        self.omit(reason, measure=measure, metric=metric, method=None if shared else self.model.model)

    def try_row(
        self, metric: str, prepared: Any, measure: str | None = None, around: tuple[float, float] | None = None
    ) -> None:
        """A row, or the reason why there is none; `around`: its 95 % interval, which that of a share has anyway."""
        try:
            value = parse_metric(metric)(prepared)
        except Undefined as reason:
            self.because(measure, metric, str(reason))
        else:
            ends = share_interval(value, prepared.n) if metric in RIGHT else around
            low, high = ends or (None, None)
            self.add(metric, value, prepared.n, measure=measure, calibrated=self.calibrated, low=low, high=high)

    def answers(self, dump: Predictions, test: Array) -> None:
        """The answers of these rows, and how each measure of the softmax ranks them."""
        whole = summary(dump)
        answers = whole.outcomes(test)
        for metric in RIGHT:
            self.try_row(metric, whole.outcomes(np.arange(len(dump))))
        for metric in ANSWERS:
            self.try_row(metric, answers)
        for name in OF_SOFTMAX:
            if name in self.plan.measures:
                self.ranking(name, whole.u[name][test], answers.wrong)
        if "entropy" in self.plan.measures and not self.calibrated:
            self.because("entropy", "ece", NO_ECE, shared=True)

    def dropout(self, dump: Predictions, test: Array) -> None:
        """MC-dropout's own accuracy, and how the entropy of its mean ranks its answers (appendix K)."""
        try:
            whole = summary(dropout_mean(dump))
        except Undefined as reason:
            self.because(MC_DROPOUT, None, str(reason), shared=True)
            return
        answers = whole.outcomes(test)
        self.try_row("accuracy", whole.outcomes(np.arange(len(dump))), MC_DROPOUT)
        self.ranking(MC_DROPOUT, whole.u["entropy"][test], answers.wrong)

    def ranking(self, measure: str, u: Array, wrong: Array) -> None:
        ranked = metrics.Ranking(u, wrong)
        both = bool(wrong.any() and not wrong.all())
        around = (
            significance.area_interval([significance.delong_components(u[~wrong], {"": u[wrong]}, {"": 1.0})])
            if both
            else None
        )
        for metric in self.plan.ranking:
            self.try_row(metric, ranked, measure, around if metric == "auroc" else None)
        about: Columns = {"measure": measure, "calibrated": self.calibrated}
        self.add("aurc_over", metrics.aurc_over(ranked, coverages=self.plan.over), ranked.n, **about)
        for share in self.plan.curve:
            risk = metrics.selective_risk(ranked, coverage=share)
            point: Columns = {**about, "evaluation": "risk-coverage", "coverage": share}
            self.add("selective_risk", risk, ranked.n, **point)
