"""The sentences of verdicts: one table of templates per kind of result, and the functions that fill them.

Numbers come first. Every function returns the sentences that apply, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nescio.analysis.model_choice import ModelChoice, Requirement, count_reasons
from nescio.analysis.score_choice import ScoreChoice
from nescio.analysis.significance import best_measure
from nescio.analysis.transfer import GALLERY, IMAGE, TransferResult
from nescio.arrays.types import Array
from nescio.errors import Undefined
from nescio.measures import LOGIT_MEASURES, PORTABLE
from nescio.metrics import auroc
from nescio.report.format import format_interval, format_millions, format_number, format_percent, join_names
from nescio.report.frame import Frame
from nescio.report.labels import DEFAULT_MEASURE, UNNAMED_SPLITS, dataset_label, measure_sort_key, ood_label
from nescio.report.scorecards.questions import (
    MISCLASSIFICATION,
    OOD,
    default_measure,
    in_distribution_splits,
    model_name,
    plain_rows,
    question_of,
    without_members,
)
from nescio.rows import Row

if TYPE_CHECKING:
    from nescio.analysis.results import Comparison, Scorecard

MAX_NAMES = 4  # maximum number of models or measures named in a sentence
CHANCE = (0.45, 0.55)  # AUROCs between these are close to chance
R_CHANCE = 0.5  # R-AUROC of a random score
FEW_ROWS = 2  # training rows of a class for each feature, below which its Gaussian is nearly singular
EXPORTED = (*LOGIT_MEASURES, *PORTABLE)  # scores that an exported file computes
TASKS = {
    "mistakes": "misclassification detection",
    "unknown": "OOD detection",
    "both": "misclassification and OOD detection",
}
TRANSFER_TITLES = {IMAGE: "Scores of single images", GALLERY: "Gallery scores"}

TIED = "Not significantly different: {names}."
WORSE = "All others are significantly worse."
SCORECARD = {
    "accuracy": "Accuracy {value}{count}.",
    "detection": "{task} by `{measure}`: AUROC {value}{chance}{kept}.",
    "calibration": "Calibration: {errors}.",
    "calibrated": "After {method}: ECE {after} instead of {before}{effect}.",
    "best": "Best measure for {task}: `{measure}`, AUROC {value}; {rest}.",
}
COMPARISON = {
    "none": "No verdict: {reason}.",
    "not compared": "the models were not compared; `nescio compare` tests the differences",
    "metric": "{label}: best {best}{ties}{worse}.",
    "equal": "Verdict: no significant differences between {names} {by}.",
    "several": "Verdict: {names} are in the best group {by}.",
    "one": "Verdict: {names} is in the best group {by}, alone in {alone}.",
    "mixed": "Verdict: no model is in the best group {by}; {names} is in that of {wins}.",
}
SCORE_CHOICE = {
    "score": "Score for {task}{tuned}: `{measure}`, AUROC {value} ({rows}).",
    "test rows": "test rows n = {n:,}, selected on {selecting:,} validation rows",
    "folds": "{folds} nested folds, n = {n:,}{optimism}",
    "baseline": "No score is better than the {baseline}, which is the choice.",
    "gain": "Gain {gain}: {verdict} the {baseline}.",
    "equals": "Not significantly different on the selection rows: {names}.",
    "OOD validation": "Selected with OOD validation rows: compare it only with scores selected so too.",
    "one OOD set": "The selection used the test OOD set: AUROC on other OOD sets may be lower.",
    "OOD sets": "The selection used the test OOD sets. Leave-one-set-out AUROC{sets}: {value}.",
    "threshold": "Set its threshold: `nescio threshold --measure {measure}{train}`. Export: `nescio export`.",
    "exportable": "`{measure}` cannot be exported. Best exportable score: `{best}` (AUROC {value}, selection rows).",
}
MODEL_CHOICE = {
    "none": "No model has an accuracy of {accuracy:g} % at any coverage; closest: {model} with {value} at {coverage} "
    "coverage.",
    "model": "Choose {model}{size}: {metric} {value}, n = {n:,}.",
    "smallest": "Smallest of these: {model} ({size} parameters).",
    "compared": "Compared: the {compared} best of {candidates} models (--compare-top).",
    "omitted": "Omitted: {reasons}.",
}
TRANSFER = {
    "recall": "R@1 {value}, n = {n:,}.",
    "score": "Recommended score: {measure} ({kind} score){value}. {reason}",
    "best": "Best score on these labels: {measure}, R-AUROC {value}. It is not recommended, because the best of many "
    "scores is overestimated on the images that selected it.",
    "chance": "{title}: all worse than chance, R-AUROC {low} to {high}.",
}
SINGULAR = (
    "{data}: the smallest class has {rows} training rows for each feature, so that the class Gaussians of {methods} "
    "{singular}: their densities measure little more than the distance of a row to the span of a class's rows"
)


def three_digits(value: float) -> str:
    """Format with three decimals."""
    return format_number(value, 3)


def limit_names(names: Sequence[str], limit: int | None) -> str:
    """Join the first names, and count the others (None: all names)."""
    if limit is None or len(names) <= limit + 1:
        return join_names(names)
    return join_names([*names[:limit], f"{len(names) - limit} more"])


def ties_sentence(tied: Sequence[str]) -> str:
    """Return the sentence about the models that are not significantly different from the best."""
    return TIED.format(names=", ".join(tied)) if tied else WORSE


def _estimate(row: Row, format: Callable[[float], str] = three_digits) -> str:
    """Format a value with its interval if it has one."""
    return format_interval(row["value"], row.get("low"), row.get("high"), format)


# ---- one model


def scorecard_verdicts(card: Scorecard) -> list[str]:
    """Return one line per question that the scorecard answers, numbers first."""
    raw = plain_rows(card.rows)
    measure, splits = default_measure(raw), in_distribution_splits(raw)
    measure_rows = [row for row in raw if row.get("measure") == measure]
    mistakes = {row["metric"]: row for row in reversed(measure_rows) if question_of(row, splits) == MISCLASSIFICATION}
    accuracy = next((row for row in raw if row["metric"] == "accuracy" and row.get("split") in splits), None)

    def detection(task: str, row: Row, kept: str = "") -> str:
        value = row["value"]
        chance = "" if value >= CHANCE[1] else ", close to chance" if value > CHANCE[0] else ", worse than chance"
        return SCORECARD["detection"].format(task=task, measure=measure, value=_estimate(row), chance=chance, kept=kept)

    lines = []
    if accuracy:
        count = f", n = {int(accuracy['n']):,}" if accuracy.get("n") is not None else ""
        lines.append(SCORECARD["accuracy"].format(value=_estimate(accuracy, format_percent), count=count))
    if "auroc" in mistakes:
        risk = mistakes.get("selective_risk@0.8")
        kept = f"; accuracy {format_percent(1 - risk['value'])} at 80 % coverage" if risk else ""
        lines.append(detection(MISCLASSIFICATION, mistakes["auroc"], kept))
    lines += _calibration_verdicts(card, accuracy)
    for row in without_members(measure_rows):
        if row["metric"] == "auroc" and question_of(row, splits) == OOD:
            lines.append(detection(f"{OOD} of {ood_label(row['split'])}", row))
    return lines


def _calibration_verdicts(card: Scorecard, accuracy: Row | None) -> list[str]:
    """Return ECE, mean confidence, and the effect of the calibration with its warning."""
    errors = Frame(card.rows).where(metric="ece", subgroup=None)
    raw, calibrated = errors.where(calibrated=(False, None)).rows, errors.where(calibrated=bool).rows
    texts = [f"ECE {_estimate(raw[0])}"] if raw else []
    confidence = mean_confidence(card)
    if confidence is not None and accuracy:
        gap = 100 * (confidence - accuracy["value"])
        comparison = f"{abs(gap):.1f} points {'above' if gap > 0 else 'below'} accuracy"
        comparison = comparison if abs(gap) >= 0.05 else "equal to accuracy"
        texts.append(f"mean confidence {format_percent(confidence)}, {comparison}")
    lines = [SCORECARD["calibration"].format(errors="; ".join(texts))] if texts else []
    if raw and calibrated:
        temperature = Frame(card.rows).where(metric="temperature").first("value")
        method = "vector scaling" if temperature is None else f"temperature scaling (T = {temperature:.3g})"
        raw_ece, calibrated_ece = raw[0]["value"], calibrated[0]["value"]
        effect = "" if calibrated_ece < raw_ece else ", no improvement"
        raw_ece, calibrated_ece = three_digits(raw_ece), three_digits(calibrated_ece)
        lines.append(SCORECARD["calibrated"].format(method=method, after=calibrated_ece, before=raw_ece, effect=effect))
        lines += [card.calibration_warning] if card.calibration_warning else []
    return lines


def mean_confidence(card: Scorecard) -> float | None:
    """Return the mean confidence, from the bins of the reliability diagram."""
    curve = card.curves.get("reliability", {}).get("raw")
    if curve is None:
        return None
    count, confidence, _ = map(np.asarray, curve)
    bins = count > 0
    return float(np.average(confidence[bins], weights=count[bins])) if bins.any() else None


def best_measures(card: Scorecard) -> list[str]:
    """Return the best measure for misclassifications and for each OOD set, with its equals."""
    if card.raw is None:
        return []
    uncertainty, wrong, ood = card.raw.uncertainty, card.raw.wrong, card.raw.ood
    lines = [] if wrong is None else _best_measure(MISCLASSIFICATION.lower(), uncertainty, wrong)
    for split in dict.fromkeys(split for sets in ood.values() for split in sets):
        names = [name for name, sets in ood.items() if split in sets and name in uncertainty]
        if names:
            scores = {name: np.concatenate([uncertainty[name], ood[name][split]]) for name in names}
            positive = np.arange(len(scores[names[0]])) >= len(uncertainty[names[0]])
            lines += _best_measure(f"{OOD} of {ood_label(split)}", scores, positive)
    return lines


def _best_measure(task: str, scores: Mapping[str, Array], positive: Array) -> list[str]:
    """The best measure, those that are not significantly different, and the baseline if it is not among them."""
    try:
        best = best_measure(scores, positive) if len(scores) > 1 else None
    except Undefined:
        best = None
    if best is None:
        return []
    equals = [f"`{name}`" for name in sorted(best.equals, key=measure_sort_key) if name != best.name]
    ties = f"not significantly different: {limit_names(equals, MAX_NAMES)}" if equals else ""
    comparison = ties or "significantly better than all others"
    if DEFAULT_MEASURE in scores and DEFAULT_MEASURE not in best.equals:
        comparison += f"; baseline `{DEFAULT_MEASURE}`: {three_digits(auroc(scores[DEFAULT_MEASURE], positive))}"
    return [SCORECARD["best"].format(task=task, measure=best.name, value=three_digits(best.auroc), rest=comparison)]


# ---- several models


def models_verdicts(
    cards: Sequence[Scorecard], comparison: Comparison | None = None, incomparable: str = ""
) -> list[str]:
    """Return the verdicts of a comparison, or the reason for which there is none."""
    if len(cards) < 2:
        return []
    if comparison is None:
        return [COMPARISON["none"].format(reason=incomparable or COMPARISON["not compared"])]
    return comparison_verdicts(comparison)


def comparison_verdicts(comparison: Comparison, limit: int | None = None) -> list[str]:
    """Return the verdict over all metrics, and those of accuracy and AUROC; `limit` models are named in each."""
    frame = Frame(comparison.rows).where(best=(True, False))
    if len({model_name(row) for row in frame}) < 2:
        return []
    in_distribution = frame.where(split=UNNAMED_SPLITS)
    compared_metrics: list[tuple[str, Frame, Callable[[float], str]]]
    compared_metrics = [("Accuracy", in_distribution.where(metric="accuracy"), format_percent)]
    compared_metrics.append((f"{MISCLASSIFICATION} AUROC", in_distribution.where(metric="auroc"), three_digits))
    for (split,), rows in frame.where(metric="auroc").without(split=UNNAMED_SPLITS).group_by("split"):
        compared_metrics.append((f"{OOD} AUROC on {ood_label(split)}", rows, three_digits))
    lines = [_metric_verdict(label, rows, format, limit) for label, rows, format in compared_metrics if rows]
    return [_overall_verdict(frame, limit), *lines]


def _metric_verdict(label: str, rows: Frame, format: Callable[[float], str], limit: int | None) -> str:
    """The best models by one metric, and those that are significantly worse."""
    sorted_rows = sorted(rows, key=lambda row: row["rank"])
    best = [f"{model_name(row)} {format(row['value'])}" for row in sorted_rows if row["best"]]
    worse_names = [model_name(row) for row in sorted_rows if not row["best"]]
    ties = ", not significantly different" if len(best) > 1 else ""
    worse = f"; significantly worse: {limit_names(worse_names, limit)}" if worse_names else ""
    return COMPARISON["metric"].format(label=label, best=limit_names(best, limit), ties=ties, worse=worse)


def _overall_verdict(frame: Frame, limit: int | None) -> str:
    """Which models are in the best group of how many metrics."""
    models = list(dict.fromkeys(map(model_name, frame)))
    winners = [
        [model_name(row) for row in rows if row["best"]]
        for _, rows in frame.group_by("metric", "measure", "split", "calibrated")
    ]
    win_counts = {name: sum(name in best for best in winners) for name in models}
    leaders = [name for name in models if win_counts[name] == len(winners)]
    winner = max(models, key=lambda name: win_counts[name])
    template = "equal" if len(leaders) == len(models) else "several" if leaders[1:] else "one" if leaders else "mixed"
    return COMPARISON[template].format(
        names=limit_names(leaders, limit) if leaders[1:] else winner,
        by=f"by all {len(winners)} metrics" if len(winners) > 1 else "by the one metric",
        alone=winners.count([winner]),
        wins=win_counts[winner],
    )


# ---- the choice of a score


def score_choice_verdicts(choice: ScoreChoice) -> list[str]:
    """Return the choice with its AUROC, the gain over the baseline, its equals, and the limits of the selection."""
    templates, digits = SCORE_CHOICE, three_digits
    optimistic = choice.naive > choice.value and format_number(choice.naive) != format_number(choice.value)
    rows = templates["folds" if choice.folds else "test rows"].format(
        n=choice.n,
        selecting=choice.chosen_by,
        folds=choice.folds,
        optimism=f"; {digits(choice.naive)} on the selection rows" if optimistic else "",
    )
    first = templates["score"].format(
        task=TASKS[choice.question],
        tuned=", among scores tuned on OOD rows" if choice.ood_tuned else "",
        measure=choice.measure,
        value=format_interval(choice.value, choice.low, choice.high),
        rows=rows,
    )
    is_baseline = choice.measure == choice.baseline and abs(choice.gain) < 1e-12
    gain = templates["baseline" if is_baseline else "gain"].format(
        gain=format_interval(choice.gain, choice.gain_low, choice.gain_high),
        verdict="significantly better than" if choice.beats_baseline else "not significantly different from",
        baseline=f"baseline `{choice.baseline}` (AUROC {digits(choice.baseline_value)})",
    )
    names = [f"`{name}`" for name in choice.group[1:]]
    equals = [templates["equals"].format(names=limit_names(names, MAX_NAMES))] if names else []
    return [first, gain, *equals, *_selection(choice), *_export(choice)]


def _selection(choice: ScoreChoice) -> list[str]:
    """Describe the use of out-of-distribution rows in the selection."""
    if choice.ood_validation:
        return [SCORE_CHOICE["OOD validation"]]
    if choice.question == "mistakes":
        return []
    if choice.elsewhere is None:
        return [SCORE_CHOICE["one OOD set"]]
    sets = "" if choice.question == "unknown" else " of the OOD sets"
    return [SCORE_CHOICE["OOD sets"].format(sets=sets, value=three_digits(choice.elsewhere))]


def _export(choice: ScoreChoice) -> list[str]:
    """Which score can be exported with a threshold, and how."""
    if choice.measure in EXPORTED:
        train = " --train FILE --score FILE" if choice.measure in PORTABLE else ""
        return [SCORE_CHOICE["threshold"].format(measure=choice.measure, train=train)]
    best = max((name for name in choice.areas if name in EXPORTED), key=lambda name: choice.areas[name], default=None)
    if best is None:
        return []
    value = three_digits(choice.areas[best])
    return [SCORE_CHOICE["exportable"].format(measure=choice.measure, best=best, value=value)]


# ---- the choice of a model


def choice_sentences(choice: ModelChoice) -> list[str]:
    """Return the chosen model with its value, the models that are not significantly different, and what is missing."""
    requirement, closest, say = choice.requirement, choice.closest, MODEL_CHOICE
    sentences = []
    if closest is not None and requirement.accuracy is not None:
        value, coverage = format_percent(closest["accuracy"]), format_percent(closest["coverage"])
        accuracy = 100 * requirement.accuracy
        sentences = [say["none"].format(accuracy=accuracy, model=closest["model"], value=value, coverage=coverage)]
    else:
        best, *other_models = choice.models
        size = f" ({format_millions(best['params'])} parameters)" if best["params"] else ""
        value = _estimate(best, format_percent)
        metric = requirement_label(requirement)
        sentences = [say["model"].format(model=best["model"], size=size, metric=metric, value=value, n=choice.n)]
        equals = [line for line in other_models if line["best"]]
        sentences += [ties_sentence([line["model"] for line in equals])] if other_models else []
        models_with_size = [line for line in (best, *equals) if line["params"]]
        smallest = min(models_with_size, key=lambda line: line["params"], default=best)
        if smallest is not best:
            sentences.append(say["smallest"].format(model=smallest["model"], size=format_millions(smallest["params"])))
        if other_models and choice.candidates > len(choice.models):
            sentences.append(say["compared"].format(compared=len(choice.models), candidates=choice.candidates))
    return sentences + ([say["omitted"].format(reasons=count_reasons(choice.omitted))] if choice.omitted else [])


def requirement_label(required: Requirement) -> str:
    """Return the metric of a requirement."""
    if required.accuracy is not None:
        return f"coverage at {100 * required.accuracy:g} % accuracy"
    return "AUROC" if required.coverage is None else f"error rate at {100 * required.coverage:g} % coverage"


# ---- transfer, and Gaussians


def transfer_sentences(result: TransferResult) -> list[str]:
    """Return recall at 1, and the recommended score with its R-AUROC."""
    frame = Frame(result.rows)
    r_auroc_rows = frame.where(metric="r_auroc")
    sentences = [
        TRANSFER["recall"].format(value=_estimate(row, format_percent), n=row["n"])
        for row in frame.where(metric="recall_at_1")
    ]
    if not result.recommended:
        return [*sentences, result.recommendation_reason]
    value = r_auroc_rows.where(measure=result.recommended).first("value")
    sentences.append(
        TRANSFER["score"].format(
            measure=result.recommended,
            kind=result.score_inputs[result.recommended],
            value="" if value is None else f", R-AUROC {three_digits(value)}",
            reason=result.recommendation_reason,
        )
    )
    best = max(r_auroc_rows, key=lambda row: float(row["value"]), default=None)
    if value is not None and best is not None and best["value"] > value:
        sentences.append(TRANSFER["best"].format(measure=best["measure"], value=three_digits(best["value"])))
    for kind, title in TRANSFER_TITLES.items():
        values = r_auroc_rows.where(score_input=kind).column()
        if values and max(values) < R_CHANCE:
            low, high = three_digits(min(values)), three_digits(max(values))
            sentences.append(TRANSFER["chance"].format(title=title, low=low, high=high))
    return sentences


def singular_gaussians(frame: Frame) -> list[str]:
    """Return a sentence per dataset whose classes have so few training rows that Gaussians are nearly singular."""
    scarce = frame.facts("rows_per_feature").where(value=lambda rows: rows < FEW_ROWS)
    sentences = []
    for (data,), networks in scarce.group_by("dataset"):
        fewest = min(networks.column("value"))
        singular = "are singular" if fewest < 1 else "are nearly singular"
        methods, rows = join_names(networks.unique("method")), format_number(fewest, 2)
        sentences.append(SINGULAR.format(data=dataset_label(data), rows=rows, methods=methods, singular=singular))
    return sentences
