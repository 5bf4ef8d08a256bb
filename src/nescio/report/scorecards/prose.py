"""The English of scorecards and comparisons: titles, captions, and one line of verdict per question."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nescio.analysis.significance import best_measure
from nescio.errors import Undefined
from nescio.metrics import auroc
from nescio.report.format import format_interval, format_number, format_percent, join_names
from nescio.report.frame import Frame
from nescio.report.labels import DEFAULT_MEASURE, UNNAMED_SPLITS, measure_sort_key, ood_label
from nescio.report.scorecards.questions import (
    GALLERY,
    HUMAN,
    MISCLASSIFICATION,
    MIXTURE,
    OOD,
    RETRIEVAL,
    default_measure,
    in_distribution_splits,
    model_name,
    plain_rows,
    question_of,
    without_members,
)
from nescio.report.tables import TIE_MARK
from nescio.rows import Row

if TYPE_CHECKING:
    from nescio.analysis.results import Comparison, Scorecard

ESSENTIALS = "Main metrics"
SUMMARY = "Summary of the models"
COMPARISON = "Comparison of the models"
ALL_VALUES = "All values with intervals"
DIFFERENCES = "Differences from the best model"
DIFFERENCES_NOTE = "Each model minus the best one, on the same resamples"
GAPS = "Not computed"
UNRELIABLE = "calibrated (unreliable)"  # column of calibrated numbers if the calibration has a warning
NOT_COMPARED = "the models were not compared; `nescio compare` tests the differences"
ALL_COMPARED = "All metrics, intervals and differences: --all. Charts: --output DIR."
MAX_NAMES = 4  # models or measures named in a sentence
CHANCE = (0.45, 0.55)  # AUROCs between these are close to chance
POSITIVES = {  # question → its positive rows
    MISCLASSIFICATION: "Positive rows: misclassified",
    OOD: "Positive rows: out-of-distribution",
    MIXTURE: "Positive rows: misclassified or out-of-distribution",
    RETRIEVAL: "Positive rows: those whose nearest other row has another label",
    GALLERY: "These scores compare each row with all others. Do not compare them with scores of single images",
    HUMAN: "The uncertainty should be higher where the annotators disagree more",
}
CAPTIONS = {  # kind of figure → title, caption
    "risk": (
        "Risk–coverage curve",
        "The selective risk is the error rate of the predictions that are kept; the coverage is their share. "
        "Predictions are kept in order of confidence. Lower is better. Risks at very low coverages may be outside.",
    ),
    "reliability": (
        "Reliability diagram",
        "Accuracy against mean confidence in each bin. The dot size is the number of rows. Dots below the diagonal are "
        "overconfident, dots above it underconfident.",
    ),
    "corp": (
        "Reliability diagram without bins (CORP)",
        "Isotonic fit of accuracy against confidence. A calibrated model stays inside the band at nine of ten "
        "confidences.",
    ),
    "cost": (
        "Cost curve",
        "A prediction that is wrong or out-of-distribution costs 1; abstaining costs the value on the axis. The "
        "threshold is the best one at every cost. Lower is better.",
    ),
    "histogram": (
        "Uncertainty of right, wrong and out-of-distribution predictions",
        "Less overlap means better detection. The outermost bins include all values beyond them.",
    ),
    "models": ("Risk–coverage curves", "Lower is better. If curves cross, the better model depends on the coverage."),
    "intervals": (
        "Values with intervals",
        "The accent colour marks models that are not significantly different from the best.",
    ),
}


def resampling_note(comparison: Comparison, *, intervals: bool = False) -> str:
    """Return the note of a table of ranks."""
    cells = f"#rank value [{100 * comparison.level:g} % interval]" if intervals else "#rank value"
    counts = f"{comparison.resamples:,} paired resamples, n = {comparison.n:,}. " if comparison.resamples else ""
    return f"{counts}{cells}; {TIE_MARK} after the rank: not significantly different from the best"


# ---- one model


def scorecard_verdicts(card: Scorecard) -> list[str]:
    """Return one line per question that the scorecard answers, numbers first."""
    raw = plain_rows(card.rows)
    measure, splits = default_measure(raw), in_distribution_splits(raw)

    def find(metric: str, test: Callable[[Row], bool]) -> Row | None:
        return next((row for row in raw if row["metric"] == metric and test(row)), None)

    def ranks(row: Row) -> bool:
        return question_of(row, splits) == MISCLASSIFICATION and row.get("measure") == measure

    lines = []
    accuracy = find("accuracy", lambda row: row.get("split") in splits)
    if accuracy:
        count = f", n = {int(accuracy['n']):,}" if accuracy.get("n") is not None else ""
        lines.append(f"Accuracy {_estimate(accuracy, format_percent)}{count}.")
    if ranked := find("auroc", ranks):
        risk = find("selective_risk@0.8", ranks)
        kept = f"; accuracy {format_percent(1 - risk['value'])} at 80 % coverage" if risk else ""
        lines.append(f"{MISCLASSIFICATION} by `{measure}`: AUROC {_estimate(ranked)}{_chance(ranked['value'])}{kept}.")
    lines += _calibration_verdicts(card, accuracy)
    for row in without_members(raw):
        if row["metric"] == "auroc" and question_of(row, splits) == OOD and row.get("measure") == measure:
            name = ood_label(row["split"])
            lines.append(f"{OOD} of {name} by `{measure}`: AUROC {_estimate(row)}{_chance(row['value'])}.")
    return lines


def _three_digits(value: float) -> str:
    return format_number(value, 3)


def _estimate(row: Row, format: Callable[[float], str] = _three_digits) -> str:
    """Format a value with its interval if it has one."""
    return format_interval(row["value"], row.get("low"), row.get("high"), format)


def _chance(value: float) -> str:
    low, high = CHANCE
    return "" if value >= high else ", close to chance" if value > low else ", worse than chance"


def _calibration_verdicts(card: Scorecard, accuracy: Row | None) -> list[str]:
    """Return ECE, mean confidence, and the effect of the calibration with its warning."""
    errors = Frame(card.rows).where(metric="ece", subgroup=None)
    raw, calibrated = errors.where(calibrated=(False, None)).rows, errors.where(calibrated=bool).rows
    texts = [f"ECE {_estimate(raw[0])}"] if raw else []
    confidence = mean_confidence(card)
    if confidence is not None and accuracy:
        gap = 100 * (confidence - accuracy["value"])
        side = f"{abs(gap):.1f} points {'above' if gap > 0 else 'below'} accuracy"
        texts.append(
            f"mean confidence {format_percent(confidence)}, {side if abs(gap) >= 0.05 else 'equal to accuracy'}"
        )
    lines = [f"Calibration: {'; '.join(texts)}."] if texts else []
    if raw and calibrated:
        temperature = Frame(card.rows).where(metric="temperature").first("value")
        name = "vector scaling" if temperature is None else f"temperature scaling (T = {temperature:.3g})"
        before, after = raw[0]["value"], calibrated[0]["value"]
        effect = "" if after < before else ", no improvement"
        lines.append(f"After {name}: ECE {_three_digits(after)} instead of {_three_digits(before)}{effect}.")
        lines += [card.calibration_warning] if card.calibration_warning else []
    return lines


def mean_confidence(card: Scorecard) -> float | None:
    """Return the mean confidence, from the bins of the reliability diagram."""
    curve = card.curves.get("reliability", {}).get("raw")
    if curve is None:
        return None
    count, confidence, _ = curve
    total = float(sum(count))
    return sum(float(n) * float(p) for n, p in zip(count, confidence, strict=True) if n) / total if total else None


def best_measures(card: Scorecard) -> list[str]:
    """Return the best measure for misclassifications and for each OOD set, with its equals."""
    if card.raw is None:
        return []
    u, wrong, ood = card.raw.uncertainty, card.raw.wrong, card.raw.ood
    lines = [] if wrong is None else _best_measure(MISCLASSIFICATION.lower(), u, wrong)
    for split in dict.fromkeys(split for sets in ood.values() for split in sets):
        names = [name for name, sets in ood.items() if split in sets and name in u]
        if names:
            scores = {name: np.concatenate([u[name], ood[name][split]]) for name in names}
            positive = np.arange(len(scores[names[0]])) >= len(u[names[0]])
            lines += _best_measure(f"{OOD} of {ood_label(split)}", scores, positive)
    return lines


def _best_measure(task: str, scores: Mapping[str, Any], positive: Any) -> list[str]:
    """The best measure, those that are not significantly different, and the baseline if it is not among them."""
    if len(scores) < 2:
        return []
    try:
        best = best_measure(scores, positive)
    except Undefined:
        return []
    equals = [f"`{name}`" for name in sorted(best.equals, key=measure_sort_key) if name != best.name]
    rest = (
        f"not significantly different: {limit_names(equals, MAX_NAMES)}"
        if equals
        else "significantly better than all others"
    )
    if DEFAULT_MEASURE in scores and DEFAULT_MEASURE not in best.equals:
        rest += f"; baseline `{DEFAULT_MEASURE}`: {_three_digits(auroc(scores[DEFAULT_MEASURE], positive))}"
    return [f"Best measure for {task}: `{best.name}`, AUROC {_three_digits(best.auroc)}; {rest}."]


# ---- several models


def models_verdicts(
    cards: Sequence[Scorecard], comparison: Comparison | None = None, incomparable: str = ""
) -> list[str]:
    """Return the verdicts of a comparison, or the reason for which there is none."""
    if len(cards) < 2:
        return []
    return (
        comparison_verdicts(comparison) if comparison is not None else [f"No verdict: {incomparable or NOT_COMPARED}."]
    )


def comparison_verdicts(comparison: Comparison, limit: int | None = None) -> list[str]:
    """Return the verdict over all metrics, and those of accuracy and AUROC; `limit` models are named in each."""
    frame = Frame(comparison.rows).where(best=(True, False))
    if len({model_name(row) for row in frame}) < 2:
        return []
    in_distribution = frame.where(split=UNNAMED_SPLITS)
    accuracy, ranking = in_distribution.where(metric="accuracy"), in_distribution.where(metric="auroc")
    lines = [_metric_verdict("Accuracy", accuracy, format_percent, limit)] if accuracy else []
    lines += [_metric_verdict(f"{MISCLASSIFICATION} AUROC", ranking, _three_digits, limit)] if ranking else []
    for (split,), rows in frame.where(metric="auroc").without(split=UNNAMED_SPLITS).group_by("split"):
        lines.append(_metric_verdict(f"{OOD} AUROC on {ood_label(split)}", rows, _three_digits, limit))
    return [_overall_verdict(frame, limit), *lines]


def _metric_verdict(label: str, rows: Frame, format: Callable[[float], str], limit: int | None) -> str:
    """The best models by one metric, and those that are significantly worse."""
    ranked = sorted(rows, key=lambda row: row["rank"])
    best = [f"{model_name(row)} {format(row['value'])}" for row in ranked if row["best"]]
    worse = [model_name(row) for row in ranked if not row["best"]]
    ties = ", not significantly different" if len(best) > 1 else ""
    rest = f"; significantly worse: {limit_names(worse, limit)}" if worse else ""
    return f"{label}: best {limit_names(best, limit)}{ties}{rest}."


def _overall_verdict(frame: Frame, limit: int | None) -> str:
    """Which models are in the best group of how many metrics."""
    models = list(dict.fromkeys(map(model_name, frame)))
    winners = [
        [model_name(row) for row in rows if row["best"]]
        for _, rows in frame.group_by("metric", "measure", "split", "calibrated")
    ]
    wins = {name: sum(name in best for best in winners) for name in models}
    always = [name for name in models if wins[name] == len(winners)]
    top = max(models, key=lambda name: wins[name])
    by = f"by all {len(winners)} metrics" if len(winners) > 1 else "by the one metric"
    if len(always) == len(models):
        return f"Verdict: no significant differences between {limit_names(models, limit)} {by}."
    if len(always) > 1:
        return f"Verdict: {limit_names(always, limit)} are in the best group {by}."
    if always:
        return f"Verdict: {top} is in the best group {by}, alone in {winners.count([top])}."
    return f"Verdict: no model is in the best group {by}; {top} is in that of {wins[top]}."


def limit_names(names: Sequence[str], limit: int | None) -> str:
    """Join the first names, and count the others (None: all names)."""
    if limit is None or len(names) <= limit + 1:
        return join_names(names)
    return join_names([*names[:limit], f"{len(names) - limit} more"])


# ---- further input


def missing_options(reasons: Iterable[str]) -> list[str]:
    """Return the options of files that the reasons for missing numbers mention."""
    mentioned = {name for reason in reasons for name in re.findall(r"\b(val|ood|train)\b", reason)}
    return [f"--{name}" for name in ("val", "ood", "train") if name in mentioned]


def further_options(reasons: Iterable[str]) -> str:
    """Return the sentence on options that add numbers or charts."""
    options = missing_options(reasons)
    return f"More numbers: {', '.join(['--all', *options])}. Charts: --output DIR."
