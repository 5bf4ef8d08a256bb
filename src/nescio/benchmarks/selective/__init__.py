"""Selective prediction: misclassification detection by many pretrained models (Galil et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from nescio import metrics
from nescio.analysis.bootstrap import bootstrap
from nescio.analysis.calibration import Temperature, temperature_or_reason
from nescio.analysis.comparison import compare
from nescio.analysis.evaluation_rows import MC_DROPOUT, dropout_mean, labelled_in_distribution
from nescio.analysis.thresholds import stratified_split
from nescio.arrays.types import Array
from nescio.benchmarks.base import benchmark
from nescio.benchmarks.pretrained import USUAL, ModelRows, config_of
from nescio.errors import BadInput, Undefined
from nescio.evaluations.scoring import ACCURACIES, add_outcomes, rank_rows
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

NAME, VERSION = "selective", 6
SCORECARD = "scorecard"  # name of the evaluation of one model
DIFFERENCE, ADJUSTED = (
    "difference",
    "adjusted_p",
)  # metrics of a model compared with the best (`reference`) by a metric (`criterion`)
RESAMPLES = 1000  # resamples for intervals of ECE and of coverages
AMONG = 10  # number of best models by a metric, the first of which is tested against the others
OF_SOFTMAX = ("msp", "entropy")
MEASURES = (*OF_SOFTMAX, MC_DROPOUT)
PROBABILITIES = ("nll", "brier", "ece")
FACTS_OF_ROWS = {"benchmark": NAME, "version": VERSION, "evaluation": SCORECARD}
FACTS = ("input_size", "embedding_size", "published_accuracy")
SETTINGS = ("measures", "fit_rows", "seed", "accuracies", "risks", "over", "curve")  # fields that determine results
TENTH = 10  # one row in ten fits the temperature
FEWEST = 50  # minimum number of rows that fit a temperature; with 50 its relative error is 1/6
NO_ECE = "An entropy is not a probability, so it has no ECE; see the ECE of msp."
TOO_FEW = f"The temperature is fitted on a tenth of the rows; a tenth of these is fewer than {FEWEST}: too few."


@tag("plan:selective")
@dataclass(frozen=True)
class Plan(Validated):
    """The evaluated models, and the settings."""

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
                raise BadInput(f"Accuracies and coverages must be above 0 and at most 1, got {share:g}.")

    @property
    def ranking(self) -> tuple[str, ...]:
        """Metrics of a ranking, as in the column `metric`."""
        shares = [f"sac@{share:g}" for share in self.accuracies]
        return ("auroc", "aurc", "e_aurc", *shares, *(f"selective_risk@{share:g}" for share in self.risks))


@benchmark(NAME, version=VERSION, plan=Plan, reports="nescio.benchmarks.selective.reports", workers=0)
def selective(plan: Plan, work: Work) -> None:
    """Selective prediction of many pretrained models on the same labelled images.

    Name predictions files of the same images (FILE, or NAME=FILE to name the model), or use the models that
    `nescio zoo` kept in a store. A temperature is fitted on a tenth of each model's rows, at most 5,000. The other rows
    give accuracy, ECE, AUROC and the coverage at an accuracy, raw and calibrated. Models are compared by correlations,
    training regimes, families and Pareto fronts (Galil et al. 2023).

    The family and training regime of a model follow from its timm name. Set the sizes of other models with --facts.
    `nescio report STORE --only NAMES` writes single tables or figures.

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
    evaluate_models(plan, [model.sampled(plan.limit, plan.seed) for model in models], work)


def evaluate_models(plan: Plan, models: Sequence[ModelPredictions], work: Work) -> None:
    """Evaluate models that are not in the store yet, compare the best, and collect the rows of all."""
    check_comparable(models)
    work.evaluate("evaluate models", [_step(plan, model) for model in models])
    predictions = {model.model: model for model in models}
    leading = {metric: best_models(plan, metric, work.rows) for metric in winners(plan)}
    work.evaluate(
        "compare the best",
        [
            _best_step(plan, metric, [predictions[name] for name in best])
            for metric, best in leading.items()
            if len(best) > 1
        ],
    )


def _step(plan: Plan, model: ModelPredictions) -> Step:
    config = {"kind": "model"} | config_of(model, FACTS, plan, SETTINGS)
    return make_evaluation(
        NAME, VERSION, model.model, config, (model.rows_key,), partial(_make, plan=plan, model=model)
    )


def _make(step_folder: StepFolder, context: Context, plan: Plan, model: ModelPredictions) -> Files:
    return files_of(rows_of(plan, model))


# ---- comparison of the best models


def winners(plan: Plan) -> tuple[str, ...]:
    """The metrics by which a page names a best model."""
    ranked = ("auroc", f"sac@{max(plan.accuracies):g}") if plan.accuracies else ("auroc",)
    return ("accuracy", *(ranked if USUAL in plan.measures else ()))


def best_models(plan: Plan, metric: str, rows: Sequence[Row]) -> list[str]:
    """The AMONG best models by a metric of their raw predictions."""
    criteria = {"metric": metric, "calibrated": False, "evaluation": SCORECARD}
    metric_rows = [row for row in rows if criteria.items() <= row.items() and row["measure"] in (None, USUAL)]
    return [row["backbone"] for row in sorted(metric_rows, key=lambda row: (-row["value"], row["backbone"]))[:AMONG]]


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
    """Difference of every other model to the best on the same images, with Holm's p-value: a paired bootstrap."""
    predictions = {model.model: labelled_in_distribution(model.load()) for model in models}
    if metric not in ACCURACIES:  # accuracies are of all rows, because a temperature does not change them
        predictions = {
            name: model_predictions.take(temperature_split(model_predictions, plan)[1])
            for name, model_predictions in predictions.items()
        }
    compared = compare(predictions, measure=USUAL, metrics=[metric])
    verdicts = []
    for difference in compared.differences:
        candidate = next(model for model in models if model.model == difference["model"])
        facts = {"benchmark": NAME, "version": VERSION, "evaluation": "comparison"}
        results = ModelRows(facts, model=candidate)
        columns: Columns = {"criterion": metric, "reference": difference["best"]}
        interval: Columns = {**columns, "low": difference["low"], "high": difference["high"]}
        results.add(DIFFERENCE, difference["difference"], compared.n, **interval)
        if difference["adjusted"] is not None:
            results.add(ADJUSTED, difference["adjusted"], compared.n, **columns)
        verdicts.append(results)
    return verdicts


# ---- one model


def rows_of(plan: Plan, model: ModelPredictions) -> ScoredModel:
    """Results of one model, raw and calibrated, on the rows that did not fit the temperature."""
    predictions = labelled_in_distribution(model.load())
    results = ScoredModel(dict(FACTS_OF_ROWS), model=model, plan=plan)
    fit, test = temperature_split(predictions, plan)
    results.describe_model(*FACTS)
    results.add_all(predictions, test, calibrated=False)
    if MC_DROPOUT in plan.measures:
        results.add_dropout(predictions, test)
    temperature, reason = temperature_or_reason(predictions.take(fit)) if len(fit) else (None, TOO_FEW)
    if temperature is None:
        results.omit(reason, metric="calibrated", method=model.model)
    else:
        results.add("temperature", temperature, len(fit), split="val", calibrated=True)
        results.add_all(Temperature(temperature)(predictions), test, calibrated=True)
    return results


def temperature_split(predictions: Predictions, plan: Plan) -> tuple[Array, Array]:
    """(rows that fit the temperature, evaluated rows), the first a stratified tenth, up to `fit_rows`.

    Galil et al. 2023, appendix I: 5,000 of 50,000.
    """
    count = min(plan.fit_rows, len(predictions) // TENTH)
    return stratified_split(predictions, count if count >= FEWEST else 0, seed_for(NAME, "division", plan.seed))


@dataclass(kw_only=True)
class ScoredModel(ModelRows):
    """Gathers the results of one model, raw and then calibrated."""

    plan: Plan

    def add_all(self, predictions: Predictions, test: Array, *, calibrated: bool) -> None:
        """Accuracy of all rows; probabilities and rankings of the test rows."""
        scores = summary(predictions)
        outcomes = scores.outcomes(test)
        all_outcomes = scores.outcomes(np.arange(len(predictions)))
        add_outcomes(all_outcomes, ACCURACIES, self, intervals=True, calibrated=calibrated)
        add_outcomes(outcomes, PROBABILITIES, self, calibrated=calibrated)
        for name in OF_SOFTMAX:
            if name in self.plan.measures:
                self.add_ranking(name, scores.u[name][test], outcomes.wrong, calibrated)
        self.add_intervals(predictions.take(test), calibrated)
        if "entropy" in self.plan.measures and not calibrated:
            self.omit(NO_ECE, measure="entropy", metric="ece", shared=True)

    def add_intervals(self, predictions: Predictions, calibrated: bool) -> None:
        """95 % intervals of ECE, and of the coverages at an accuracy by msp, from a bootstrap over rows."""
        coverages = [f"sac@{share:g}" for share in self.plan.accuracies] if USUAL in self.plan.measures else []
        intervals = bootstrap(
            predictions, measures=(USUAL,), metrics=["ece", *coverages], resamples=RESAMPLES, seed=self.plan.seed
        )
        for row in self.rows:
            interval = intervals.get((row["measure"], row["metric"]))
            if interval and row["calibrated"] == calibrated and row["low"] is None:
                row["low"], row["high"] = interval.low, interval.high

    def add_dropout(self, predictions: Predictions, test: Array) -> None:
        """Accuracy under MC-dropout, and how the entropy of its mean ranks its predictions (appendix K)."""
        try:
            scores = summary(dropout_mean(predictions))
        except Undefined as reason:
            self.omit(reason, measure=MC_DROPOUT, shared=True)
            return
        all_outcomes = scores.outcomes(np.arange(len(predictions)))
        add_outcomes(all_outcomes, ("accuracy",), self, intervals=True, measure=MC_DROPOUT)
        self.add_ranking(MC_DROPOUT, scores.u["entropy"][test], scores.outcomes(test).wrong, False)

    def add_ranking(self, measure: str, u: Array, wrong: Array, calibrated: bool) -> None:
        rank_rows({measure: u}, wrong, self.plan.ranking, self, intervals=True, calibrated=calibrated)
        ranking = metrics.Ranking(u, wrong)
        columns: Columns = {"measure": measure, "calibrated": calibrated}
        self.add("aurc_over", metrics.aurc_over(ranking, coverages=self.plan.over), ranking.n, **columns)
        for share in self.plan.curve:
            risk = metrics.selective_risk(ranking, coverage=share)
            point: Columns = {**columns, "evaluation": "risk-coverage", "coverage": share}
            self.add("selective_risk", risk, ranking.n, **point)

    def omit(self, reason: object, *, shared: bool = False, **columns: Any) -> None:
        """Note why results are missing: of this model or, if `shared`, of every model."""
        super().omit(reason, **columns | {"method": None if shared else self.model.model})
