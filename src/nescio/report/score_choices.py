"""Which score to use, in sentences and one table."""

from __future__ import annotations

from nescio.analysis.score_choice import ScoreChoice
from nescio.measures import LOGIT_MEASURES, PORTABLE
from nescio.report.format import format_number, join_names, plural
from nescio.report.labels import metric_label, metric_legend
from nescio.report.tables import COUNT, Cell, Table, decimals

TITLE = "Which score to use"
AGAINST = {
    "mistakes": "reject wrong answers",
    "unknown": "reject rows that are out of distribution",
    "both": "reject wrong answers and rows that are out of distribution",
}
EXPORTED = (*LOGIT_MEASURES, *PORTABLE)  # scores that an exported file computes
MOST_NAMED, MOST_SHOWN = 4, 8  # scores of the best group in a sentence, and on the first screen


def choice_of_score(choice: ScoreChoice) -> list[str]:
    """The choice, what it is worth, whether it beats the baseline, and which others are as good."""
    tuned = ", of the scores that were tuned on out-of-distribution rows," if choice.ood_tuned else ""
    return [
        f"To {AGAINST[choice.question]}{tuned} use `{choice.measure}`: AUROC {format_number(choice.value)} "
        f"({format_number(choice.low)} to {format_number(choice.high)}), {_judged(choice)}.",
        _against_baseline(choice),
        *_equals(choice),
        *_reach(choice),
        *_exported(choice),
    ]


def _judged(choice: ScoreChoice) -> str:
    if not choice.folds:
        return f"on {choice.n:,} test rows; {choice.chosen_by:,} validation rows chose it"
    return (
        f"by {choice.folds} nested folds of {choice.n:,} rows, each fold judged by the score that the others chose"
        f"{_flattered(choice)}"
    )


def _flattered(choice: ScoreChoice) -> str:
    """The value on the rows that chose, if it is visibly higher."""
    if choice.naive <= choice.value or format_number(choice.naive) == format_number(choice.value):
        return ""
    return f"; its {format_number(choice.naive)} on the rows that chose it would flatter it"


def _exported(choice: ScoreChoice) -> list[str]:
    """Which score can be thresholded and exported, and how."""
    able = [name for name in (choice.measure, *choice.areas) if name in EXPORTED]
    if not able:
        return []
    if choice.measure in EXPORTED:
        train = " --train FILE --score FILE" if choice.measure in PORTABLE else ""
        return [f"`nescio threshold --measure {choice.measure}{train}` sets its threshold; `nescio export` takes it."]
    best = max(able, key=lambda name: choice.areas[name])
    area = format_number(choice.areas[best])
    return [
        f"`{choice.measure}` cannot be exported; of those that can, `{best}` is best (AUROC {area}, rows that chose)."
    ]


def _against_baseline(choice: ScoreChoice) -> str:
    plain = f"the plain baseline `{choice.baseline}` (AUROC {format_number(choice.baseline_value)})"
    if choice.measure == choice.baseline and abs(choice.gain) < 1e-12:
        return f"Nothing beat {plain}: it is the choice itself."
    gap = f"{format_number(choice.gain)} ({format_number(choice.gain_low)} to {format_number(choice.gain_high)})"
    if choice.beats_baseline:
        return f"It beat {plain} beyond chance, by {gap}."
    return f"Nothing beat {plain} beyond chance: the difference is {gap}."


def _equals(choice: ScoreChoice) -> list[str]:
    others = list(choice.group[1:])
    if not others:
        return []
    others = [f"`{name}`" for name in others]
    shown = [*others[:MOST_NAMED], f"{len(others) - MOST_NAMED} more"] if len(others) > MOST_NAMED + 1 else others
    return [f"Not significantly different from it on the rows that chose: {join_names(shown)}."]


def _reach(choice: ScoreChoice) -> list[str]:
    """What out-of-distribution rows had to say in the choice."""
    if choice.ood_validation:
        return ["Out-of-distribution validation rows chose: compare it only with what was chosen so too."]
    if choice.question == "mistakes":
        return []
    sentence = "The sets that it is judged on had a say in the choice"
    if choice.elsewhere is None:
        return [f"{sentence}: on others it may be worse."]
    of = "AUROC" if choice.question == "unknown" else "the AUROC of the sets alone"
    return [
        f"{sentence}; where each set is left to the choice of the other sets, {of} is "
        f"{format_number(choice.elsewhere)}."
    ]


def scores_table(choice: ScoreChoice, everything: bool = True) -> Table:
    """The scores by their area on the rows that chose; without `everything` the best of them and the baseline."""
    order = sorted(choice.areas, key=lambda name: -choice.areas[name])
    shown = order if everything else [*choice.group[:MOST_SHOWN], choice.baseline]
    lines = []
    for name in (name for name in order if name in shown):
        cells: list[Cell | None] = [Cell(choice.areas[name], best=name in choice.group, format=decimals(4))]
        if choice.folds:
            cells.append(Cell(float(choice.chosen.get(name, 0)), format=COUNT))
        lines.append(((f"{name} (baseline)" if name == choice.baseline else name,), tuple(cells)))
    heads = (
        (metric_label("auroc"), f"folds of {choice.folds} that chose it") if choice.folds else (metric_label("auroc"),)
    )
    among = ", among scores tuned on out-of-distribution rows" if choice.ood_tuned else ""
    note = (
        f"On the {choice.chosen_by:,} rows that chose, where the best looks better than it is; "
        f"{plural(len(order), 'score')} compared{among}; bold cannot be told from the best"
    )
    return Table(
        f"{TITLE} to {AGAINST[choice.question]}", ("score",), heads, tuple(lines), note, metric_legend(("auroc",))
    )
