"""The choice of an uncertainty score: verdicts and one table."""

from __future__ import annotations

from nescio.analysis.score_choice import ScoreChoice
from nescio.measures import LOGIT_MEASURES, PORTABLE
from nescio.report.format import format_interval, format_number, join_names
from nescio.report.labels import metric_label, metric_legend
from nescio.report.tables import COUNT, Cell, Table, decimals

TITLE = "Choice of the uncertainty score"
TASKS = {
    "mistakes": "misclassification detection",
    "unknown": "OOD detection",
    "both": "misclassification and OOD detection",
}
EXPORTED = (*LOGIT_MEASURES, *PORTABLE)  # scores that an exported file computes
MAX_NAMES, MAX_ROWS = 4, 8  # scores of the best group in a sentence, and in the short table


def score_choice_verdicts(choice: ScoreChoice) -> list[str]:
    """Return the choice with its AUROC, the gain over the baseline, its equals, and the limits of the selection."""
    tuned = ", among scores tuned on OOD rows" if choice.ood_tuned else ""
    estimate = format_interval(choice.value, choice.low, choice.high)
    return [
        f"Score for {TASKS[choice.question]}{tuned}: `{choice.measure}`, AUROC {estimate} ({_evaluation(choice)}).",
        _gain(choice),
        *_equals(choice),
        *_selection(choice),
        *_export(choice),
    ]


def _evaluation(choice: ScoreChoice) -> str:
    """The rows behind the estimate."""
    if not choice.folds:
        return f"test rows n = {choice.n:,}, selected on {choice.chosen_by:,} validation rows"
    optimism = f"; {format_number(choice.naive, 3)} on the selection rows" if _is_optimistic(choice) else ""
    return f"{choice.folds} nested folds, n = {choice.n:,}{optimism}"


def _is_optimistic(choice: ScoreChoice) -> bool:
    return choice.naive > choice.value and format_number(choice.naive) != format_number(choice.value)


def _gain(choice: ScoreChoice) -> str:
    baseline = f"baseline `{choice.baseline}` (AUROC {format_number(choice.baseline_value, 3)})"
    if choice.measure == choice.baseline and abs(choice.gain) < 1e-12:
        return f"No score is better than the {baseline}, which is the choice."
    gain = format_interval(choice.gain, choice.gain_low, choice.gain_high)
    verdict = "significantly better than" if choice.beats_baseline else "not significantly different from"
    return f"Gain {gain}: {verdict} the {baseline}."


def _equals(choice: ScoreChoice) -> list[str]:
    names = [f"`{name}`" for name in choice.group[1:]]
    names = [*names[:MAX_NAMES], f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES + 1 else names
    return [f"Not significantly different on the selection rows: {join_names(names)}."] if names else []


def _selection(choice: ScoreChoice) -> list[str]:
    """Describe the use of out-of-distribution rows in the selection."""
    if choice.ood_validation:
        return ["Selected with OOD validation rows: compare it only with scores selected so too."]
    if choice.question == "mistakes":
        return []
    if choice.elsewhere is None:
        return ["The selection used the test OOD set: AUROC on other OOD sets may be lower."]
    sets = "" if choice.question == "unknown" else " of the OOD sets"
    return [
        f"The selection used the test OOD sets. Leave-one-set-out AUROC{sets}: {format_number(choice.elsewhere, 3)}."
    ]


def _export(choice: ScoreChoice) -> list[str]:
    """Which score can be exported with a threshold, and how."""
    names = [name for name in (choice.measure, *choice.areas) if name in EXPORTED]
    if not names:
        return []
    if choice.measure in EXPORTED:
        train = " --train FILE --score FILE" if choice.measure in PORTABLE else ""
        return [f"Set its threshold: `nescio threshold --measure {choice.measure}{train}`. Export: `nescio export`."]
    best = max(names, key=lambda name: choice.areas[name])
    area = format_number(choice.areas[best], 3)
    return [f"`{choice.measure}` cannot be exported. Best exportable score: `{best}` (AUROC {area}, selection rows)."]


def scores_table(choice: ScoreChoice, everything: bool = True) -> Table:
    """Return the scores by AUROC on the selection rows; without `everything` only the best group and the baseline."""
    order = sorted(choice.areas, key=lambda name: -choice.areas[name])
    kept = order if everything else [*choice.group[:MAX_ROWS], choice.baseline]
    rows = []
    for name in (name for name in order if name in kept):
        cells: list[Cell | None] = [Cell(choice.areas[name], best=name in choice.group, format=decimals(4))]
        if choice.folds:
            cells.append(Cell(float(choice.chosen.get(name, 0)), format=COUNT))
        rows.append(((f"{name} (baseline)" if name == choice.baseline else name,), tuple(cells)))
    auroc = metric_label("auroc")
    columns = (auroc, f"selected in folds (of {choice.folds})") if choice.folds else (auroc,)
    tuned = ", tuned on OOD rows" if choice.ood_tuned else ""
    note = (
        f"n = {choice.chosen_by:,} selection rows, on which the best score is overestimated; "
        f"scores compared: {len(order)}{tuned}; bold: not significantly different from the best"
    )
    return Table(
        f"{TITLE}: {TASKS[choice.question]}", ("score",), columns, tuple(rows), note, metric_legend(("auroc",))
    )
